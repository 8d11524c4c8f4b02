//! The row of CELLDISK: physical disks taken into the cell.

use super::{
    Attribute, CANCEL_FLUSH, FLUSH, Form, HARD_OR_FLASH, Kind, ObjectSpec, ObjectType, SettingSpec, TargetKind, Verb,
};
use crate::command::Flag;

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the cell disk").modifiable().default_column(),
    Attribute::new("comment", Kind::Text, "free text").modifiable(),
    Attribute::new("creationTime", Kind::DateTime, "when it was created"),
    Attribute::new("deviceClass", Kind::Status(&["durable", "ephemeral"]), "whether content survives a host stop")
        .own(),
    Attribute::new("deviceClassSource", Kind::Text, "where deviceClass comes from: stated, or found and why").own(),
    Attribute::new("deviceId", Kind::Name, "identity of the device, kept in its label").own(),
    Attribute::new("deviceName", Kind::Text, "path of the device"),
    Attribute::new("devicePartition", Kind::Text, "path of the partition used"),
    Attribute::new("diskType", HARD_OR_FLASH, "hard disk or flash disk"),
    Attribute::new("errorCount", Kind::Number, "I/O errors since creation"),
    Attribute::new("flushError", Kind::Text, "why the last flush failed").hidden(),
    Attribute::new("flushStatus", Kind::Text, "progress of the flush").hidden(),
    Attribute::new("freeSpace", Kind::Size, "bytes not given to grid disks, flash cache or flash log"),
    Attribute::new("id", Kind::Name, "identity of the cell disk"),
    Attribute::new(
        "interleaving",
        Kind::Status(&["none", "normal_redundancy", "high_redundancy"]),
        "whether grid disks are spread over fast and slow parts",
    ),
    Attribute::new("lun", Kind::Text, "logical unit or path it was created on"),
    Attribute::new("physicalDisk", Kind::Text, "physical disk it is on"),
    Attribute::new("size", Kind::Size, "bytes in all"),
    Attribute::new(
        "status",
        Kind::Status(&["normal", "importRequired", "proactive failure", "not present"]),
        "state of the cell disk",
    )
    .default_column(),
    Attribute::new("truePageSize", Kind::Size, "bytes of the device's true page, whatever it reports").own(),
];

const CREATE_SETTINGS: &[SettingSpec] =
    &[SettingSpec::attribute("comment"), SettingSpec::attribute("deviceClass"), SettingSpec::attribute("truePageSize")];

const CREATE_ONE_SETTINGS: &[SettingSpec] = &[
    SettingSpec::attribute("lun").required(),
    SettingSpec::attribute("comment"),
    SettingSpec::attribute("deviceClass"),
    SettingSpec::attribute("truePageSize"),
];

const fn alter(target: TargetKind) -> Form {
    Form::new(
        Verb::Alter,
        target,
        "change cell disks, or flush: what the flash cache has of a hard disk, or all of it for a flash cell disk",
    )
    .modifiable_attributes()
    .operations(&[FLUSH, CANCEL_FLUSH])
    .flags(&[Flag::Force])
    .filter()
    .needs_change()
}

pub(super) const CELL_DISK: ObjectSpec = ObjectSpec {
    object: ObjectType::CellDisk,
    word: "CELLDISK",
    title: "CellDisk",
    title_with_name: true,
    xml_element: "celldisk",
    about: "physical disks taken into the cell",
    attributes: ATTRIBUTES,
    forms: &[
        Form::new(
            Verb::Create,
            TargetKind::AllOfDiskType,
            "make cell disks of all devices in cell.toml that carry nothing",
        )
        .settings(CREATE_SETTINGS)
        .flags(&[Flag::Force]),
        Form::new(Verb::Create, TargetKind::Name, "make a cell disk of a device in cell.toml")
            .settings(CREATE_ONE_SETTINGS)
            .flags(&[Flag::Force]),
        alter(TargetKind::AllOfDiskType),
        alter(TargetKind::Names),
        Form::new(Verb::Drop, TargetKind::AllOfDiskType, "remove all cell disks; FORCE with their grid disks")
            .flags(&[Flag::Force]),
        Form::new(Verb::Drop, TargetKind::Names, "remove cell disks; FORCE with their grid disks")
            .flags(&[Flag::Force]),
    ],
};
