//! The rows of THRESHOLD, ALERTDEFINITION and ALERTHISTORY.

use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, SettingSpec, TargetKind, Verb};

const COMPARISON: Kind = Kind::Status(&["<", "<=", "=", ">=", ">"]);
const ALERT_TYPE: Kind = Kind::Status(&["Stateful", "Stateless"]);

const CREATE_THRESHOLD: &[SettingSpec] = &[
    SettingSpec::attribute("comparison").required(),
    SettingSpec::attribute("warning"),
    SettingSpec::attribute("critical"),
    SettingSpec::attribute("occurrences"),
    SettingSpec::attribute("observation"),
];

pub(super) const THRESHOLD: ObjectSpec = ObjectSpec {
    object: ObjectType::Threshold,
    word: "THRESHOLD",
    title: "Threshold",
    title_with_name: true,
    xml_element: "threshold",
    about: "values of metrics that raise an alert",
    attributes: &[
        Attribute::new("name", Kind::Name, "metric, or metric.object for one object alone").default_column(),
        Attribute::new("comparison", COMPARISON, "how the metric's value stands to the limits when it is an alert")
            .modifiable(),
        Attribute::new("critical", Kind::Number, "limit of a critical alert, in the metric's unit").modifiable(),
        Attribute::new("observation", Kind::Number, "samples, one a minute, whose mean is compared").modifiable(),
        Attribute::new("occurrences", Kind::Number, "violations one after the other that raise the alert").modifiable(),
        Attribute::new("warning", Kind::Number, "limit of a warning, in the metric's unit").modifiable(),
    ],
    forms: &[
        Form::new(Verb::Create, TargetKind::Name, "raise an alert when a metric is beyond a limit")
            .settings(CREATE_THRESHOLD),
        Form::new(Verb::Alter, TargetKind::Names, "change thresholds").modifiable_attributes().needs_change(),
        Form::new(Verb::Drop, TargetKind::All, "remove all thresholds; their alerts are cleared"),
        Form::new(Verb::Drop, TargetKind::Names, "remove thresholds; their alerts are cleared"),
    ],
};

pub(super) const DEFINITION: ObjectSpec = ObjectSpec {
    object: ObjectType::AlertDefinition,
    word: "ALERTDEFINITION",
    title: "AlertDefinition",
    title_with_name: true,
    xml_element: "alertdefinition",
    about: "what each alert means",
    attributes: &[
        Attribute::new("name", Kind::Name, "name of the alert").default_column(),
        Attribute::new("alertShortName", Kind::Name, "short name of the alert"),
        Attribute::new("alertSource", Kind::Status(&["Hardware", "Metric", "Software"]), "what raises it"),
        Attribute::new("alertType", ALERT_TYPE, "Stateful: it is cleared when its cause has gone"),
        Attribute::new("description", Kind::Text, "what it tells of"),
        Attribute::new("metricName", Kind::Name, "metric whose threshold raises it"),
    ],
    forms: &[],
};

pub(super) const HISTORY: ObjectSpec = ObjectSpec {
    object: ObjectType::AlertHistory,
    word: "ALERTHISTORY",
    title: "Alert",
    title_with_name: true,
    xml_element: "alerthistory",
    about: "alerts raised and cleared",
    attributes: &[
        Attribute::new("name", Kind::Name, "number of the alert, and of its change: 3_1, 3_2").default_column(),
        Attribute::new("beginTime", Kind::DateTime, "when it was raised or changed").default_column(),
        Attribute::new("severity", Kind::Status(&["critical", "warning", "info", "clear"]), "how bad it is")
            .default_column(),
        Attribute::new("alertMessage", Kind::Text, "what has happened").default_column(),
        Attribute::new("age", Kind::Number, "seconds since beginTime").own(),
        Attribute::new("alertSequenceID", Kind::Number, "number of the alert, the same for all of its changes"),
        Attribute::new("alertShortName", Kind::Name, "short name of its definition"),
        Attribute::new("alertType", ALERT_TYPE, "Stateful: it is cleared when its cause has gone"),
        Attribute::new("definition", Kind::Name, "name of its definition").own(),
        Attribute::new("description", Kind::Text, "what the definition tells of").own(),
        Attribute::new("endTime", Kind::DateTime, "when it was cleared; empty while it lasts"),
        Attribute::new("examinedBy", Kind::Text, "who has looked into it").modifiable(),
        Attribute::new("metricObjectName", Kind::Name, "object it is about"),
        Attribute::new("metricValue", Kind::Measure, "value of the metric that raised it"),
        Attribute::new("sequenceBeginTime", Kind::DateTime, "when its first change was"),
        Attribute::new("unit", Kind::Text, "unit of the value").own(),
    ],
    forms: &[
        Form::new(Verb::Alter, TargetKind::All, "say who has looked into all alerts")
            .modifiable_attributes()
            .needs_change(),
        Form::new(Verb::Alter, TargetKind::Names, "say who has looked into alerts")
            .modifiable_attributes()
            .needs_change(),
        Form::new(Verb::Drop, TargetKind::All, "forget all alerts that are over").filter(),
        Form::new(Verb::Drop, TargetKind::Names, "forget alerts that are over, with all of their changes"),
    ],
};
