//! The row of GRIDDISK: slices of cell disks, each served as one export.

use super::{
    Attribute, CANCEL_FLUSH, FLUSH, Form, HARD_OR_FLASH, Kind, ObjectSpec, ObjectType, OperationSpec, SettingSpec,
    TargetKind, Verb,
};
use crate::command::{Flag, Operation};

const CACHING_MODE: Kind = Kind::Status(&["write-through", "write-back", "write-back-ordered", "write-around", "none"]);

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the grid disk and of its export").modifiable().default_column(),
    Attribute::new("asmDeactivationOutcome", Kind::Text, "Yes when it can go offline without losing data, or why not"),
    Attribute::new("asmDiskgroupName", Kind::Name, "disk group it belongs to"),
    Attribute::new("asmDiskName", Kind::Name, "its name in the disk group"),
    Attribute::new("asmDiskRepairTime", Kind::Number, "seconds the disk group waits before dropping it"),
    Attribute::new("asmDiskSize", Kind::Size, "bytes the disk group uses of it"),
    Attribute::new("asmFailGroupName", Kind::Name, "failure group it belongs to"),
    Attribute::new(
        "asmModeStatus",
        Kind::Status(&["ONLINE", "OFFLINE", "DROPPED", "UNUSED", "SYNCING", "UNKNOWN"]),
        "its state in the disk group",
    ),
    Attribute::new("availableTo", Kind::List, "clients that may use it: names of databases, certificates or users; empty for all").modifiable(),
    Attribute::new("cachedBy", Kind::List, "flash cell disks that hold dirty data of it"),
    Attribute::new("cachingMode", CACHING_MODE, "how writes use the flash cache").modifiable().own(),
    Attribute::new(
        "cachingPolicy",
        Kind::Status(&["default", "keep", "none"]),
        "how the flash cache values its data; PIN tells of ranges",
    )
    .modifiable(),
    Attribute::new("cellDisk", Kind::Reference(ObjectType::CellDisk), "cell disk it is on"),
    Attribute::new("comment", Kind::Text, "free text").modifiable(),
    Attribute::new("creationTime", Kind::DateTime, "when it was created"),
    Attribute::new("diskType", HARD_OR_FLASH, "hard disk or flash disk"),
    Attribute::new("errorCount", Kind::Number, "I/O errors since creation"),
    Attribute::new(
        "fillStrategy",
        Kind::Status(&["read", "evict", "feed"]),
        "when clean data comes into the flash cache: on a read miss, when a buffer cache lets go of it, or fed at a rate",
    )
    .modifiable()
    .own(),
    Attribute::new(
        "flashLogMode",
        Kind::Status(&["auto", "race", "hedge", "flash", "off"]),
        "how writes of purpose redo use the flash log",
    )
    .modifiable()
    .own(),
    Attribute::new("frozenFor", Kind::Number, "seconds until a freeze of its disk ends").own(),
    Attribute::new("id", Kind::Name, "identity of the grid disk"),
    Attribute::new("offset", Kind::Size, "bytes from the start of the cell disk"),
    Attribute::new("purpose", Kind::Status(&["data", "redo", "temp"]), "what the database keeps on it")
        .modifiable()
        .own(),
    Attribute::new("readOnly", Kind::Status(&["TRUE", "FALSE"]), "whether clients may only read").modifiable().own(),
    Attribute::new("size", Kind::Size, "bytes a client sees").modifiable(),
    Attribute::new("sizeAllocated", Kind::Size, "bytes of the cell disk it takes"),
    Attribute::new("sparse", Kind::Status(&["TRUE", "FALSE"]), "whether it takes less than it shows"),
    Attribute::new("staleAsOf", Kind::DateTime, "moment of which its disk alone is, while it waits for lost flash")
        .own(),
    Attribute::new(
        "status",
        Kind::Status(&["active", "inactive", "offline", "starting", "not present", "importRequired"]),
        "state of the grid disk; starting: its requests wait for the index of the flash cache",
    )
    .default_column(),
    Attribute::new("virtualSize", Kind::Size, "bytes a client sees of a sparse grid disk"),
];

const PREFIX: SettingSpec =
    SettingSpec::own("prefix", Kind::Name, "first part of each name: prefix_celldisk, as in ssddisk_FD_00_c1");

const CREATE_ALL_SETTINGS: &[SettingSpec] = &[
    PREFIX.required(),
    SettingSpec::attribute("size"),
    SettingSpec::attribute("availableTo"),
    SettingSpec::attribute("cachingMode"),
    SettingSpec::attribute("cachingPolicy"),
    SettingSpec::attribute("comment"),
    SettingSpec::attribute("fillStrategy"),
    SettingSpec::attribute("purpose"),
    SettingSpec::attribute("readOnly"),
];

const CREATE_ONE_SETTINGS: &[SettingSpec] = &[
    SettingSpec::attribute("cellDisk").required(),
    SettingSpec::attribute("size"),
    SettingSpec::attribute("availableTo"),
    SettingSpec::attribute("cachingMode"),
    SettingSpec::attribute("cachingPolicy"),
    SettingSpec::attribute("comment"),
    SettingSpec::attribute("fillStrategy"),
    SettingSpec::attribute("purpose"),
    SettingSpec::attribute("readOnly"),
];

const OPERATIONS: &[OperationSpec] = &[
    OperationSpec {
        words: &[&["ACTIVE"]],
        build: |_| Operation::Active,
        flags: &[Flag::Force],
        about: "serve the grid disk again; FORCE: from its disk alone, as of staleAsOf, giving up what only lost flash holds",
    },
    OperationSpec {
        words: &[&["INACTIVE"]],
        build: |_| Operation::Inactive,
        flags: &[Flag::Force, Flag::NoWait],
        about: "take it out of service until ACTIVE: clients are refused, dirty data goes to its disk. FORCE ends connections, and leaves on flash what \
                the disk does not take; NOWAIT leaves dirty data for later",
    },
    FLUSH,
    CANCEL_FLUSH,
    OperationSpec {
        words: &[&["FREEZE"]],
        build: |_| Operation::Freeze,
        flags: &[],
        about: "keep its disk as it is, consistent, for a snapshot of its volume; several are of one moment. Writes go on in write-back-ordered, \
                and wait in every other mode",
    },
    OperationSpec { words: &[&["THAW"]], build: |_| Operation::Thaw, flags: &[], about: "end a freeze" },
];

const SECONDS: SettingSpec = SettingSpec::own(
    "seconds",
    Kind::Number,
    "how long a FREEZE lasts unless THAW ends it; 60 unless stated, at most 300 where writes wait and 3600 where they go on",
);

const fn alter(target: TargetKind) -> Form {
    Form::new(Verb::Alter, target, "change grid disks, take them in and out of service, or flush them")
        .settings(&[SECONDS])
        .modifiable_attributes()
        .operations(OPERATIONS)
        .beside_operation(&["seconds"])
        .flags(&[Flag::Force, Flag::NoWait])
        .filter()
        .needs_change()
}

pub(super) const GRID_DISK: ObjectSpec = ObjectSpec {
    object: ObjectType::GridDisk,
    word: "GRIDDISK",
    title: "GridDisk",
    title_with_name: true,
    xml_element: "griddisk",
    about: "slices of cell disks, each served as one export",
    attributes: ATTRIBUTES,
    forms: &[
        Form::new(Verb::Create, TargetKind::AllOfDiskType, "make one grid disk on each cell disk")
            .settings(CREATE_ALL_SETTINGS),
        Form::new(Verb::Create, TargetKind::Name, "make one grid disk").settings(CREATE_ONE_SETTINGS),
        alter(TargetKind::AllOfDiskType),
        alter(TargetKind::Names),
        Form::new(Verb::Drop, TargetKind::AllOfDiskType, "remove all grid disks, or those of a prefix")
            .settings(&[PREFIX])
            .flags(&[Flag::Force]),
        Form::new(Verb::Drop, TargetKind::Names, "remove grid disks; FORCE though they are in use")
            .flags(&[Flag::Force]),
    ],
};
