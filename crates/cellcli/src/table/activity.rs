//! The rows of ACTIVEREQUEST and FLASHCACHECONTENT: what goes on, and what lies on flash.

use super::{Attribute, Kind, ObjectSpec, ObjectType};

pub(super) const ACTIVE_REQUEST: ObjectSpec = ObjectSpec {
    object: ObjectType::ActiveRequest,
    word: "ACTIVEREQUEST",
    title: "ActiveRequest",
    title_with_name: true,
    xml_element: "activerequest",
    about: "requests of clients under way",
    attributes: &[
        Attribute::new("name", Kind::Name, "number of the request").default_column(),
        Attribute::new("age", Kind::Number, "microseconds since it was first seen; the cell looks once a second").own(),
        Attribute::new("dbName", Kind::Name, "database the connection is tagged with").default_column(),
        Attribute::new("ioBytes", Kind::Number, "bytes it is about").default_column(),
        Attribute::new("ioGridDisk", Kind::Reference(ObjectType::GridDisk), "grid disk it is to").default_column(),
        Attribute::new("ioOffset", Kind::Number, "bytes from the start of the grid disk"),
        Attribute::new("ioReason", Kind::Text, "what it is for, as far as it is known"),
        Attribute::new("ioType", Kind::Status(&["read", "write", "flush", "trim", "zero", "prefetch"]), "what it does")
            .default_column(),
        Attribute::new("requestState", Kind::Status(&["active"]), "its state"),
    ],
    forms: &[],
};

pub(super) const FLASH_CACHE_CONTENT: ObjectSpec = ObjectSpec {
    object: ObjectType::FlashCacheContent,
    word: "FLASHCACHECONTENT",
    title: "FlashCacheContent",
    title_with_name: true,
    xml_element: "flashcachecontent",
    about: "what the flash cache holds, by grid disk, range and database",
    attributes: &[
        Attribute::new("name", Kind::Name, "grid disk").default_column(),
        Attribute::new("cachedKeepSize", Kind::Size, "bytes of KEEP data of the range in the cache"),
        Attribute::new("cachedSize", Kind::Size, "bytes of the range in the cache").default_column(),
        Attribute::new("cachedWriteSize", Kind::Size, "bytes of the range in the cache that are newer than on disk")
            .default_column(),
        Attribute::new("dbID", Kind::Number, "the database's own number of it; empty: connections do not tell"),
        Attribute::new("dbUniqueName", Kind::Name, "database whose blocks they are; empty where it is not known")
            .default_column(),
        Attribute::new("hitCount", Kind::Number, "reads of the grid disk served from the cache, since the start"),
        Attribute::new("length", Kind::Size, "bytes of the range").default_column().own(),
        Attribute::new("missCount", Kind::Number, "reads of the grid disk that needed its disk, since the start"),
        Attribute::new(
            "objectNumber",
            Kind::Number,
            "the database's number of the table or index; empty: `flashcell contents` finds it out",
        ),
        Attribute::new("offset", Kind::Size, "bytes from the start of the grid disk").default_column().own(),
        Attribute::new(
            "tableSpaceNumber",
            Kind::Number,
            "the database's number of the tablespace; empty, as objectNumber",
        ),
    ],
    forms: &[],
};
