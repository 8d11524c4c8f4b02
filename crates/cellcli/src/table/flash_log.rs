//! The row of FLASHLOG: the one flash log of a cell.

use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, SettingSpec, TargetKind, Verb};
use crate::command::Flag;

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the flash log").default_column(),
    Attribute::new("cellDisk", Kind::List, "flash cell disks it uses"),
    Attribute::new("creationTime", Kind::DateTime, "when it was created"),
    Attribute::new("degradedCelldisks", Kind::List, "flash cell disks that are configured but gone"),
    Attribute::new("effectiveSize", Kind::Size, "bytes without those of degraded cell disks"),
    Attribute::new("efficiency", Kind::Measure, "outliers prevented of those there would have been, per cent"),
    Attribute::new("id", Kind::Name, "identity of the flash log"),
    Attribute::new("outlierLimit", Kind::Number, "milliseconds after which a redo write is an outlier")
        .modifiable()
        .own(),
    Attribute::new("size", Kind::Size, "bytes in all"),
    Attribute::new(
        "status",
        Kind::Status(&["normal", "warning", "critical"]),
        "all, some or none of its disks present",
    )
    .default_column(),
];

const SIZE: &[SettingSpec] = &[SettingSpec::attribute("size")];
const CELLDISK_AND_SIZE: &[SettingSpec] =
    &[SettingSpec::attribute("cellDisk").required(), SettingSpec::attribute("size")];

pub(super) const FLASH_LOG: ObjectSpec = ObjectSpec {
    object: ObjectType::FlashLog,
    word: "FLASHLOG",
    title: "Flash log",
    title_with_name: true,
    xml_element: "flashlog",
    about: "the flash log of the cell: redo writes on disk and flash",
    attributes: ATTRIBUTES,
    forms: &[
        Form::new(Verb::Create, TargetKind::AllOfDiskType, "make the flash log on all durable flash cell disks")
            .settings(SIZE),
        Form::new(Verb::Create, TargetKind::Whole, "make the flash log on the cell disks named")
            .settings(CELLDISK_AND_SIZE),
        Form::new(Verb::Alter, TargetKind::Whole, "say which redo writes are outliers")
            .modifiable_attributes()
            .needs_change(),
        Form::new(
            Verb::Drop,
            TargetKind::Whole,
            "remove the flash log once all redo is on disk; FORCE gives up what a disk does not take",
        )
        .flags(&[Flag::Force]),
    ],
};
