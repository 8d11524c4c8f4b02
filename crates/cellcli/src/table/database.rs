//! The row of DATABASE: the databases whose connections the cell has seen. The vendor's cells learn a database's profile from the
//! database; ours are told by ALTER DATABASE.

use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, TargetKind, Verb};

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
    Attribute::new(
        "profile",
        Kind::Reference(ObjectType::IormProfile),
        "profile of the plan it has; counts unless the plan has a directive of its own for it. '' takes it away",
    )
    .modifiable()
    .own(),
];

pub(super) const ON_OR_OFF: Kind = Kind::Status(&["on", "off"]);

pub(super) const DATABASE: ObjectSpec = ObjectSpec {
    object: ObjectType::Database,
    word: "DATABASE",
    title: "Database",
    title_with_name: true,
    xml_element: "database",
    about: "databases that have connected since the cell was started, and those that the I/O resource plan names",
    attributes: ATTRIBUTES,
    forms: &[
        Form::new(Verb::Alter, TargetKind::All, "give a profile to all databases that LIST DATABASE shows")
            .modifiable_attributes()
            .filter()
            .needs_change(),
        Form::new(Verb::Alter, TargetKind::Names, "give a profile to databases, whether they have connected or not")
            .modifiable_attributes()
            .needs_change(),
    ],
};
