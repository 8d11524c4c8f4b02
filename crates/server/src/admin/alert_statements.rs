//! THRESHOLD, ALERTDEFINITION and ALERTHISTORY: their rows, and what may be changed about them.

use super::Context;
use super::change::{Refusal, Step, stood, targets};
use super::rows::timestamp;
use crate::alerting::{Comparison, Kind, Record, THRESHOLDS_MAX, Threshold, ThresholdError, definition, definitions};
use cellcli::command::{Change, Target};
use cellcli::{Decimal, ErrorCode, Measure, ObjectType, Row, Source, Unit, Value, format};
use device::WallTime;
use std::sync::Arc;

fn integer(n: u64) -> Value {
    Value::Integer(i64::try_from(n).unwrap_or(i64::MAX))
}

pub(super) fn thresholds(context: &Context) -> Vec<Row> {
    let optional = |limit: Option<u64>| limit.map_or(Value::Null, integer);
    let row = |it: &Threshold| {
        Row::new(ObjectType::Threshold)
            .with("name", it.name())
            .with("comparison", it.comparison.text())
            .with("critical", optional(it.critical))
            .with("observation", integer(it.observation))
            .with("occurrences", integer(it.occurrences))
            .with("warning", optional(it.warning))
    };
    Threshold::all(&context.cell.store().catalog().attributes).iter().map(row).collect()
}

pub(super) fn alert_definitions() -> Vec<Row> {
    let row = |it: crate::alerting::Definition| {
        Row::new(ObjectType::AlertDefinition)
            .with("name", it.name.as_ref())
            .with("alertShortName", short_name(&it.name))
            .with("alertSource", format!("{:?}", it.source))
            .with("alertType", alert_type(it.kind))
            .with("description", it.description.as_ref())
            .with("metricName", it.metric.map_or(Value::Null, Value::from))
    };
    definitions().map(row).collect()
}

/// What follows the kind of thing it is about.
fn short_name(name: &str) -> &str {
    name.split_once('_').map_or(name, |(_, rest)| rest)
}

fn alert_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Stateful => "Stateful",
        Kind::Stateless => "Stateless",
    }
}

/// Every record of alerts, for statements that change some.
pub(super) fn alert_history(context: &Context) -> Vec<Row> {
    let history = AlertHistory::new(context);
    (0..history.count()).map(|place| history.row(place)).collect()
}

/// The records of alerts at one moment, as a source of rows.
pub(super) struct AlertHistory {
    records: Vec<Record>,
    now_ns: u64,
}

impl AlertHistory {
    pub(super) fn new(context: &Context) -> AlertHistory {
        AlertHistory { records: context.alerts.records(), now_ns: context.world.clock.wall().0 }
    }
}

impl Source for AlertHistory {
    fn count(&self) -> usize {
        self.records.len()
    }

    fn row(&self, place: usize) -> Row {
        alert(&self.records[place], self.now_ns)
    }

    fn bytes(&self) -> usize {
        let of_record = |it: &Record| {
            let value = it.value.as_ref().map_or(0, |(number, unit)| number.capacity() + unit.capacity());
            let texts = [&it.definition, &it.object, &it.message, &it.examined_by].map(String::capacity);
            size_of::<Record>() + value + texts.iter().sum::<usize>()
        };
        self.records.iter().map(of_record).sum()
    }
}

fn alert(record: &Record, now_ns: u64) -> Row {
    let time = |ns: u64| timestamp(WallTime(ns));
    let known = definition(&record.definition);
    let kind = if record.step == 0 { Kind::Stateless } else { Kind::Stateful };
    let row = Row::new(ObjectType::AlertHistory)
        .with("name", record.name())
        .with("beginTime", time(record.begin_ns))
        .with("severity", record.severity.word())
        .with("alertMessage", record.message.as_str())
        .with("age", integer(now_ns.saturating_sub(record.begin_ns) / 1_000_000_000))
        .with("alertSequenceID", integer(record.sequence))
        .with("alertShortName", short_name(&record.definition))
        .with("alertType", alert_type(kind))
        .with("definition", record.definition.as_str())
        .with("description", known.map_or_else(String::new, |it| it.description.into_owned()))
        .with("endTime", record.end_ns.map_or(Value::Null, time))
        .with("examinedBy", record.examined_by.as_str())
        .with("metricObjectName", record.object.as_str())
        .with("sequenceBeginTime", time(record.sequence_begin_ns));
    match &record.value {
        Some((number, unit)) => {
            let unit = Unit::from_text(unit).unwrap_or(Unit::None);
            let number = Decimal::parse(number).unwrap_or(Decimal::ZERO);
            row.with("metricValue", Value::Measure(Measure::new(number, unit))).with("unit", unit.text())
        }
        None => row,
    }
}

impl From<ThresholdError> for Refusal {
    fn from(error: ThresholdError) -> Refusal {
        let code = match &error {
            ThresholdError::NoMetric(_) => ErrorCode::NoSuchObject,
            ThresholdError::NoLimit => ErrorCode::MissingOption,
            ThresholdError::Samples(_) | ThresholdError::Object(_) => ErrorCode::InvalidValue,
        };
        let text = error.to_string();
        let (what, hint) = text.split_once("\nhint: ").map_or((text.as_str(), None), |(what, hint)| (what, Some(hint)));
        Refusal::new(code, what, hint)
    }
}

/// A threshold with what a statement says of it.
fn with_settings(mut threshold: Threshold, change: &Change) -> Step<Threshold> {
    if let Some(comparison) = change.choice("comparison").and_then(Comparison::named) {
        threshold.comparison = comparison;
    }
    threshold.warning = change.number("warning").or(threshold.warning);
    threshold.critical = change.number("critical").or(threshold.critical);
    threshold.occurrences = change.number("occurrences").unwrap_or(threshold.occurrences);
    threshold.observation = change.number("observation").unwrap_or(threshold.observation);
    threshold.check()?;
    Ok(threshold)
}

pub(super) async fn create_threshold(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let Target::Names(names) = &change.target else { return Ok(()) };
    let comparison = change.choice("comparison").and_then(Comparison::named).unwrap_or(Comparison::Greater);
    for name in names {
        let threshold = with_settings(Threshold::named(name, comparison)?, change)?;
        let there = Threshold::all(&context.cell.store().catalog().attributes);
        let name = threshold.name();
        if there.iter().any(|it| it.name().eq_ignore_ascii_case(&name)) {
            let what = format!("there is a threshold {name}");
            return Err(Refusal::new(ErrorCode::ObjectExists, what, Some("ALTER THRESHOLD changes it")));
        }
        if there.len() >= THRESHOLDS_MAX {
            let what = format!("there are {THRESHOLDS_MAX} thresholds, and no more can be kept");
            return Err(Refusal::new(ErrorCode::NoSpace, what, Some("one without an object is about all objects")));
        }
        stood(context.cell.store().alter_cell(|catalog| threshold.put(&mut catalog.attributes)).await?);
        lines.push(format::created(ObjectType::Threshold, &name));
    }
    Ok(())
}

pub(super) async fn alter_thresholds(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    if change.setting("name").is_some() {
        return Err(Refusal::unsupported("another name of a THRESHOLD"));
    }
    for name in targets(context, change)? {
        let there = Threshold::all(&context.cell.store().catalog().attributes);
        let found = there.into_iter().find(|it| it.name() == name);
        let threshold = with_settings(found.ok_or_else(|| Refusal::missing(ObjectType::Threshold, &name))?, change)?;
        stood(context.cell.store().alter_cell(|catalog| threshold.put(&mut catalog.attributes)).await?);
        lines.push(format::altered(ObjectType::Threshold, &name));
    }
    Ok(())
}

pub(super) async fn drop_thresholds(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let names = targets(context, change)?;
    let remove = |catalog: &mut celldisk::Catalog| {
        names.iter().for_each(|name| Threshold::remove(name, &mut catalog.attributes));
    };
    stood(context.cell.store().alter_cell(remove).await?);
    lines.extend(names.iter().map(|name| format::dropped(ObjectType::Threshold, name)));
    Ok(())
}

pub(super) async fn examine(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let names = targets(context, change)?;
    context.alerts.examine(&names, change.text("examinedBy").unwrap_or(""));
    written(context).await;
    lines.extend(names.iter().map(|name| format::altered(ObjectType::AlertHistory, name)));
    Ok(())
}

pub(super) async fn forget(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let mut names = targets(context, change)?;
    if !matches!(change.target, Target::Names(_)) {
        // ALL: those that are over.
        let records = context.alerts.records();
        let over = |name: &String| {
            records.iter().any(|it| it.name() == *name && (it.step == 0 || context.alerts.is_over(it.sequence)))
        };
        names.retain(over);
    }
    context.alerts.forget(&names).map_err(|lasting| {
        let hint = "its cause has to go first; ALTER ALERTHISTORY ... examinedBy= says that somebody knows";
        Refusal::new(ErrorCode::NotPermittedNow, format!("alert {lasting} is not over"), Some(hint))
    })?;
    written(context).await;
    lines.extend(names.iter().map(|name| format::dropped(ObjectType::AlertHistory, name)));
    Ok(())
}

/// Into the store, away from the cell's own threads.
async fn written(context: &Arc<Context>) {
    let writing = context.clone();
    // Refused only when the runtime ends.
    let _ = tokio::task::spawn_blocking(move || writing.alerts.write(&writing.store)).await;
}
