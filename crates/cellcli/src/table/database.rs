//! The row of DATABASE: the databases whose connections the cell has seen.

use super::{Attribute, Kind, ObjectSpec, ObjectType};

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "the tag of its connections: GRIDDISK@NAME").default_column(),
    Attribute::new("flashCache", ON_OR_OFF, "whether the I/O resource plan lets it use the flash cache").own(),
    Attribute::new("flashCacheLimit", Kind::Size, "bytes of the flash cache the plan gives it while the cache is full"),
    Attribute::new("flashCacheMin", Kind::Size, "bytes of the flash cache the plan guarantees it"),
    Attribute::new("flashCacheSize", Kind::Size, "bytes of the flash cache the plan gives it at most"),
    Attribute::new("flashCacheUsed", Kind::Size, "bytes of the flash cache that hold blocks of it").own(),
    Attribute::new("flashLog", ON_OR_OFF, "whether the plan lets its redo use the flash log").own(),
    Attribute::new("iormLimit", Kind::Number, "the most of a device's time the plan gives it, per cent"),
    Attribute::new("iormShare", Kind::Number, "the shares the plan gives it"),
];

const ON_OR_OFF: Kind = Kind::Status(&["on", "off"]);

pub(super) const DATABASE: ObjectSpec = ObjectSpec {
    object: ObjectType::Database,
    word: "DATABASE",
    title: "Database",
    title_with_name: true,
    xml_element: "database",
    about: "databases that have connected since the cell was started, and those that the I/O resource plan names",
    attributes: ATTRIBUTES,
    forms: &[],
};
