//! The rows of PHYSICALDISK and LUN: the devices below the cell disks, by their paths. Here one physical disk is one LUN.

use super::{Attribute, HARD_OR_FLASH, Kind, ObjectSpec, ObjectType};

const STATUS: Kind = Kind::Status(&["normal", "warning - I/O errors", "failed", "not present"]);

pub(super) const PHYSICAL_DISK: ObjectSpec = ObjectSpec {
    object: ObjectType::PhysicalDisk,
    word: "PHYSICALDISK",
    title: "PhysicalDisk",
    title_with_name: true,
    xml_element: "physicaldisk",
    about: "devices the cell has opened, and those it misses",
    attributes: &[
        Attribute::new("name", Kind::Name, "path of the device; the cell disk's name when it is not present")
            .default_column(),
        Attribute::new("cellDisk", Kind::Reference(ObjectType::CellDisk), "cell disk on it").own(),
        Attribute::new("deviceClass", Kind::Status(&["durable", "ephemeral"]), "whether content survives a host stop")
            .own(),
        Attribute::new("diskType", HARD_OR_FLASH, "hard disk or flash disk").default_column(),
        Attribute::new("errorCount", Kind::Number, "requests that failed since the cell was started"),
        Attribute::new("flushCount", Kind::Number, "flushes since the cell was started").own(),
        Attribute::new("id", Kind::Name, "identity kept in its label"),
        Attribute::new("luns", Kind::List, "logical units on it"),
        Attribute::new("physicalSize", Kind::Size, "bytes of the device"),
        Attribute::new("requestsInFlight", Kind::Number, "requests under way").own(),
        Attribute::new("rotational", Kind::Status(&["TRUE", "FALSE"]), "whether it seeks").own(),
        Attribute::new("sectorSize", Kind::Size, "bytes of a logical block"),
        Attribute::new("status", STATUS, "state of the device").default_column(),
        Attribute::new("truePageSize", Kind::Size, "bytes of its true page, whatever it reports").own(),
        Attribute::new("volatileCache", Kind::Status(&["TRUE", "FALSE"]), "whether writes need a flush to last").own(),
    ],
    forms: &[],
};

pub(super) const LUN: ObjectSpec = ObjectSpec {
    object: ObjectType::Lun,
    word: "LUN",
    title: "LUN",
    title_with_name: true,
    xml_element: "lun",
    about: "devices as CREATE CELLDISK ... LUN= names them",
    attributes: &[
        Attribute::new("name", Kind::Name, "path of the device").default_column(),
        Attribute::new("cellDisk", Kind::Reference(ObjectType::CellDisk), "cell disk on it"),
        Attribute::new("deviceName", Kind::Text, "path of the device"),
        Attribute::new("diskType", HARD_OR_FLASH, "hard disk or flash disk"),
        Attribute::new("errorCount", Kind::Number, "requests that failed since the cell was started"),
        Attribute::new("id", Kind::Name, "identity kept in its label").default_column(),
        Attribute::new("isSystemLun", Kind::Status(&["TRUE", "FALSE"]), "whether the host's system is on it"),
        Attribute::new("lunSize", Kind::Size, "bytes of it"),
        Attribute::new("physicalDrives", Kind::List, "physical disks it is on"),
        Attribute::new("status", STATUS, "state of the device").default_column(),
    ],
    forms: &[],
};
