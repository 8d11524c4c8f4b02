//! LIST METRICCURRENT: values of the metrics now, as a source of rows. Never more than [`VALUES_MAX`], never a row that is not looked at.

use super::Context;
use super::answers::ANSWER_BYTES_MAX;
use super::rows::{metric_object, metric_type, metric_unit, timestamp, values};
use cell::metrics::{Definition, between};
use cellcli::answer::Matcher;
use cellcli::command::List;
use cellcli::{ErrorCode, Measure, ObjectType, Row, Source, Value, failure_text};
use std::sync::Arc;

/// Values of one answer: what 1,024 grid disks have, twice.
const VALUES_MAX: usize = 100_000;

/// See the module's head.
pub(super) struct Current {
    values: Vec<Entry>,
    collected: Value,
}

struct Entry {
    definition: &'static Definition,
    object: Arc<str>,
    value: Measure,
    alert_state: &'static str,
}

const _: () =
    assert!(VALUES_MAX * size_of::<Entry>() <= ANSWER_BYTES_MAX, "the longest answer fits into the memory for one");

impl Entry {
    fn row(&self, collected: &Value) -> Row {
        let definition = self.definition;
        Row::new(ObjectType::MetricCurrent)
            .with("name", definition.name)
            .with("age", Value::Integer(0))
            .with("alertState", self.alert_state)
            .with("collectionTime", collected.clone())
            .with("description", definition.description)
            .with("metricObjectName", &*self.object)
            .with("metricType", metric_type(definition))
            .with("metricValue", Value::Measure(self.value))
            .with("objectType", metric_object(definition))
            .with("unit", metric_unit(definition).text())
    }
}

impl Source for Current {
    fn count(&self) -> usize {
        self.values.len()
    }

    fn row(&self, place: usize) -> Row {
        self.values[place].row(&self.collected)
    }

    fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<Entry>()
    }
}

/// The values that a query asks for, of those that the caller may see; the query is left with no condition to look at again.
pub(super) fn rows(context: &Context, query: &mut List, may_see: impl Fn(&Row) -> bool) -> Result<Current, String> {
    let collected = timestamp(context.world.clock.wall());
    // `cellcli::select` refuses a condition that cannot be evaluated.
    let Ok(filter) = Matcher::of(query) else { return Ok(Current { values: Vec::new(), collected }) };
    query.filter = None;
    let now = context.samples();
    let at = context.world.clock.now();
    let rates = match context.history.base() {
        Some((base, before)) => between(&before, &now, at.ns_since(base).max(1)),
        None => Vec::new(),
    };
    let entry = |(definition, object, value): (&'static Definition, Arc<str>, Measure)| {
        let alert_state = context.alerts.of_metric(definition.name, &object);
        Entry { definition, object, value, alert_state }
    };
    // `cellcli::select` refuses a name that no metric has.
    let is_named = |entry: &Entry| query.asks_for(entry.definition.name);
    let is_wanted = |entry: &Entry| {
        let row = entry.row(&collected);
        may_see(&row) && filter.as_ref().is_none_or(|filter| filter.matches(&row))
    };
    let wanted = values(&now, &rates).map(entry).filter(is_named).filter(is_wanted);
    let mut values: Vec<Entry> = wanted.take(VALUES_MAX + 1).collect();
    if values.len() > VALUES_MAX {
        let what = format!("the answer has more than {VALUES_MAX} values");
        let hint = "ask for less: LIST METRICCURRENT name, or LIST METRICCURRENT WHERE metricObjectName = '...'";
        return Err(failure_text(ErrorCode::TooLarge, &what, Some(hint)));
    }
    values.shrink_to_fit();
    values.sort_by(|left, right| (left.definition.name, &left.object).cmp(&(right.definition.name, &right.object)));
    Ok(Current { values, collected })
}
