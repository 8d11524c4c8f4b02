//! The rows of METRICDEFINITION and METRICCURRENT. Both carry description and unit, so that no join is needed.

use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, TargetKind, Verb};

pub(super) const METRIC_TYPE: Kind = Kind::Status(&["Cumulative", "Instantaneous", "Rate", "Transition"]);
pub(super) const OBJECT_TYPE: Kind =
    Kind::Status(&["CELL", "CELLDISK", "FLASHCACHE", "FLASHLOG", "GRIDDISK", "HOST_INTERCONNECT", "IORM_DATABASE"]);
const ENABLED: Kind = Kind::Status(&["Enabled", "Disabled"]);

const fn alter(target: TargetKind) -> Form {
    Form::new(Verb::Alter, target, "change how metrics are kept").modifiable_attributes().filter().needs_change()
}

pub(super) const DEFINITION: ObjectSpec = ObjectSpec {
    object: ObjectType::MetricDefinition,
    word: "METRICDEFINITION",
    title: "MetricDefinition",
    title_with_name: true,
    xml_element: "metricdefinition",
    about: "what each metric means",
    attributes: &[
        Attribute::new("name", Kind::Name, "name of the metric").default_column(),
        Attribute::new("description", Kind::Text, "what it counts or measures"),
        Attribute::new("fineGrained", ENABLED, "collected every second"),
        Attribute::new("metricType", METRIC_TYPE, "how the value is formed"),
        Attribute::new("objectType", OBJECT_TYPE, "type of the objects it is about"),
        Attribute::new("retentionPolicy", Kind::Status(&["Default", "Annual"]), "how long history is kept")
            .modifiable(),
        Attribute::new("streaming", ENABLED, "sent to the metric stream"),
        Attribute::new("unit", Kind::Text, "unit of the value"),
    ],
    forms: &[alter(TargetKind::Names), alter(TargetKind::Whole)],
};

pub(super) const CURRENT: ObjectSpec = ObjectSpec {
    object: ObjectType::MetricCurrent,
    word: "METRICCURRENT",
    title: "MetricCurrent",
    title_with_name: true,
    xml_element: "metric",
    about: "the latest value of each metric for each object",
    attributes: &[
        Attribute::new("name", Kind::Name, "name of the metric").default_column(),
        Attribute::new("age", Kind::Number, "seconds since the value was collected").own(),
        Attribute::new(
            "alertState",
            Kind::Status(&["normal", "warning", "critical", "unknown"]),
            "how the value stands to its threshold",
        ),
        Attribute::new("collectionTime", Kind::DateTime, "when the value was collected"),
        Attribute::new("description", Kind::Text, "what it counts or measures").own(),
        Attribute::new("metricObjectName", Kind::Name, "object the value is about").default_column(),
        Attribute::new("metricType", METRIC_TYPE, "how the value is formed"),
        Attribute::new("metricValue", Kind::Measure, "the value with its unit").default_column(),
        Attribute::new("objectType", OBJECT_TYPE, "type of the object"),
        Attribute::new("unit", Kind::Text, "unit of the value").own(),
    ],
    forms: &[],
};
