//! The row of METRICHISTORY: what METRICCURRENT showed each minute.

use super::metric::{METRIC_TYPE, OBJECT_TYPE};
use super::{Attribute, Kind, ObjectSpec, ObjectType};

pub(super) const HISTORY: ObjectSpec = ObjectSpec {
    object: ObjectType::MetricHistory,
    word: "METRICHISTORY",
    title: "MetricHistory",
    title_with_name: true,
    xml_element: "metric",
    about: "the values of each metric for each object, once a minute; MEMORY: those of the last minutes, which memory holds",
    attributes: &[
        Attribute::new("name", Kind::Name, "name of the metric").default_column(),
        Attribute::new("age", Kind::Number, "seconds since the value was collected").own(),
        Attribute::new("description", Kind::Text, "what it counts or measures").own(),
        Attribute::new("metricObjectName", Kind::Name, "object the value is about").default_column(),
        Attribute::new("metricType", METRIC_TYPE, "how the value is formed"),
        Attribute::new("metricValue", Kind::Measure, "the value with its unit").default_column(),
        Attribute::new("metricValueAvg", Kind::Measure, "with OVER: the mean of the values"),
        Attribute::new("metricValueMax", Kind::Measure, "with OVER: the highest of them"),
        Attribute::new("metricValueMin", Kind::Measure, "with OVER: the lowest of them"),
        Attribute::new("objectType", OBJECT_TYPE, "type of the object"),
        Attribute::new("unit", Kind::Text, "unit of the value").own(),
        // Last, since the field's listings have it there.
        Attribute::new("collectionTime", Kind::DateTime, "when the value was collected").default_column(),
    ],
    forms: &[],
};
