//! The rows of IORMPLAN, the one I/O resource plan of a cell, and of IORMPROFILE, the profiles that it states.

use super::database::ON_OR_OFF;
use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, OperationSpec, TargetKind, Verb};
use crate::command::Operation;

const OBJECTIVES: Kind = Kind::Status(&["auto", "basic", "balanced", "high_throughput", "low_latency"]);

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the plan").default_column(),
    Attribute::new("catPlan", Kind::Directives, "directives for categories: none, the vendor has given them up")
        .modifiable()
        .default_column(),
    Attribute::new("dbPlan", Kind::Directives, "directives for databases, by the tag of their connections, and with type=profile for those that have a profile")
        .modifiable()
        .default_column(),
    Attribute::new("objective", OBJECTIVES, "short queues or much throughput; basic delays nobody").modifiable(),
    Attribute::new("status", Kind::Status(&["active", "inactive"]), "carried out, or only kept").default_column(),
];

const OPERATIONS: &[OperationSpec] = &[
    OperationSpec { words: &[&["ACTIVE"]], build: |_| Operation::Active, flags: &[], about: "carry the plan out" },
    OperationSpec {
        words: &[&["INACTIVE"]],
        build: |_| Operation::Inactive,
        flags: &[],
        about: "keep the plan and go on as if there were none",
    },
];

pub(super) const IORM_PLAN: ObjectSpec = ObjectSpec {
    object: ObjectType::IormPlan,
    word: "IORMPLAN",
    title: "IORMPLAN",
    title_with_name: false,
    xml_element: "iormplan",
    about: "the I/O resource plan of the cell: which database gets how much, and whether it uses flash",
    attributes: ATTRIBUTES,
    forms: &[Form::new(
        Verb::Alter,
        TargetKind::Whole,
        "state the plan; dbplan='' takes all directives away, and each database counts as any other",
    )
    .modifiable_attributes()
    .operations(OPERATIONS)
    .needs_change()],
};

const PROFILE_ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the profile").default_column(),
    Attribute::new("allocation", Kind::Number, "per cent of what its level gets, for each database that has it"),
    Attribute::new("databases", Kind::List, "databases that have it, by ALTER DATABASE").own(),
    Attribute::new("flashCache", ON_OR_OFF, "whether its databases may use the flash cache"),
    Attribute::new("flashCacheLimit", Kind::Size, "bytes of the flash cache for each of them while the cache is full"),
    Attribute::new("flashCacheMin", Kind::Size, "bytes of the flash cache guaranteed to each of them"),
    Attribute::new("flashCacheSize", Kind::Size, "bytes of the flash cache for each of them at most"),
    Attribute::new("flashLog", ON_OR_OFF, "whether redo of its databases may use the flash log"),
    Attribute::new("level", Kind::Number, "level that each of them is on"),
    Attribute::new("limit", Kind::Number, "the most of a device's time for each of them, per cent").default_column(),
    Attribute::new("share", Kind::Number, "shares of each of them").default_column(),
];

pub(super) const IORM_PROFILE: ObjectSpec = ObjectSpec {
    object: ObjectType::IormProfile,
    word: "IORMPROFILE",
    title: "IORMPROFILE",
    title_with_name: true,
    xml_element: "iormprofile",
    about: "directives of the I/O resource plan that count for each database that has the profile",
    attributes: PROFILE_ATTRIBUTES,
    forms: &[],
};
