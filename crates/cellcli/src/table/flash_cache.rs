//! The row of FLASHCACHE: the one flash cache of a cell.

use super::{Attribute, CANCEL_FLUSH, FLUSH, Form, Kind, ObjectSpec, ObjectType, SettingSpec, TargetKind, Verb};
use crate::command::Flag;

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the flash cache").default_column(),
    Attribute::new("cellDisk", Kind::List, "flash cell disks it uses").modifiable(),
    Attribute::new("creationTime", Kind::DateTime, "when it was created"),
    Attribute::new("degradedCelldisks", Kind::List, "flash cell disks that are configured but gone"),
    Attribute::new("effectiveCacheSize", Kind::Size, "bytes without those of degraded cell disks"),
    Attribute::new("id", Kind::Name, "identity of the flash cache"),
    Attribute::new("size", Kind::Size, "bytes in all").modifiable(),
    Attribute::new(
        "status",
        Kind::Status(&["normal", "warning", "critical", "starting"]),
        "all, some or none of its disks present; starting: its index is still being read",
    )
    .default_column(),
];

const SIZE: &[SettingSpec] = &[SettingSpec::attribute("size")];
const CELLDISK_AND_SIZE: &[SettingSpec] =
    &[SettingSpec::attribute("cellDisk").required(), SettingSpec::attribute("size")];
const OPTIONAL_CELLDISK_AND_SIZE: &[SettingSpec] =
    &[SettingSpec::attribute("cellDisk"), SettingSpec::attribute("size").needs("cellDisk")];

pub(super) const FLASH_CACHE: ObjectSpec = ObjectSpec {
    object: ObjectType::FlashCache,
    word: "FLASHCACHE",
    title: "Flash cache",
    title_with_name: true,
    xml_element: "flashcache",
    about: "the flash cache of the cell",
    attributes: ATTRIBUTES,
    forms: &[
        Form::new(Verb::Create, TargetKind::All, "make the flash cache on all flash cell disks").settings(SIZE),
        Form::new(Verb::Create, TargetKind::Whole, "make the flash cache on the cell disks named")
            .settings(CELLDISK_AND_SIZE),
        Form::new(Verb::Alter, TargetKind::All, "use all flash cell disks; with a size drop and make again; or flush")
            .settings(SIZE)
            .operations(&[FLUSH, CANCEL_FLUSH])
            .flags(&[Flag::Force]),
        Form::new(
            Verb::Alter,
            TargetKind::Whole,
            "use the cell disks named; with a size drop and make again; or flush",
        )
        .settings(OPTIONAL_CELLDISK_AND_SIZE)
        .operations(&[FLUSH, CANCEL_FLUSH])
        .beside_operation(&["cellDisk"])
        .flags(&[Flag::Force])
        .needs_change(),
        Form::new(Verb::Drop, TargetKind::All, "remove the flash cache").flags(&[Flag::Force]),
        Form::new(
            Verb::Drop,
            TargetKind::Whole,
            "remove the flash cache; FORCE though dirty data cannot be written down",
        )
        .flags(&[Flag::Force]),
    ],
};
