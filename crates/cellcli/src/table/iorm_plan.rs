//! The row of IORMPLAN: the one I/O resource plan of a cell.

use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, OperationSpec, TargetKind, Verb};
use crate::command::Operation;

const OBJECTIVES: Kind = Kind::Status(&["auto", "basic", "balanced", "high_throughput", "low_latency"]);

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "name of the plan").default_column(),
    Attribute::new("catPlan", Kind::Directives, "directives for categories: none, the vendor has given them up")
        .modifiable()
        .default_column(),
    Attribute::new("dbPlan", Kind::Directives, "directives for databases, by the tag of their connections")
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
