//! LIST over rows: names, WHERE, ORDER BY, LIMIT, ATTRIBUTES.
//!
//! Never changes a value; what it gives out is what the server supplied, in other order and number.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::decimal::Decimal;
use super::matching::Matcher;
use super::timestamp::Timestamp;
use super::value::{Row, Value};
use crate::command::{List, OrderKey, Projection};
use crate::error::{ErrorCode, ErrorKind};
use crate::table::{Attribute, ObjectType};

/// Where the rows of a LIST come from. A row may be made each time it is looked at, so that many of them take the memory of what they
/// are made from.
pub trait Source: Send {
    /// Number of rows; fewer than 2^32.
    fn count(&self) -> usize;

    /// The row at a place below [`Source::count`].
    fn row(&self, place: usize) -> Row;

    /// About how much memory the source holds.
    fn bytes(&self) -> usize;
}

impl Source for Vec<Row> {
    fn count(&self) -> usize {
        self.len()
    }

    fn row(&self, place: usize) -> Row {
        self[place].clone()
    }

    fn bytes(&self) -> usize {
        self.iter().map(Row::bytes).sum()
    }
}

/// What LIST found, ready for a formatter.
pub struct Answer {
    /// The type listed.
    pub object: ObjectType,
    /// One attribute a line instead of one object a line.
    pub detail: bool,
    /// The attributes shown, in order.
    pub columns: Vec<&'static str>,
    source: Box<dyn Source>,
    /// Places in the source, in the order of the answer.
    chosen: Vec<u32>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").field("object", &self.object).field("rows", &self.chosen.len()).finish_non_exhaustive()
    }
}

impl Answer {
    /// Number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.chosen.len()
    }

    /// The values of the object at a place below [`Answer::count`], one a column.
    #[must_use]
    pub fn row(&self, place: usize) -> Vec<Value> {
        let row = self.source.row(self.chosen[place] as usize);
        self.columns.iter().map(|column| row.get(column).cloned().unwrap_or(Value::Null)).collect()
    }

    /// The values of each object, in order.
    pub fn rows(&self) -> impl Iterator<Item = Vec<Value>> {
        (0..self.count()).map(|place| self.row(place))
    }

    /// About how much memory the answer holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.source.bytes() + self.chosen.capacity() * size_of::<u32>()
    }
}

/// Why LIST has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// A name was asked for that no object has.
    #[error("{}: {} does not exist: {name}.", ErrorCode::NoSuchObject, object.spec().title)]
    NoSuchObject {
        /// The type listed.
        object: ObjectType,
        /// The name as asked for.
        name: String,
    },
    /// The condition cannot be evaluated; never so for one that was parsed.
    #[error("{}: {reason}.", reason.code())]
    Filter {
        /// Why.
        reason: ErrorKind,
    },
}

/// Carries out `list` over `source`: every object of the type, in the server's order. Order is kept where ORDER BY does not
/// say otherwise. Several rows may have one name, as metrics of several objects do.
///
/// # Errors
/// A name that no row has; a hand-made condition that does not compile.
pub fn select(list: &List, source: Box<dyn Source>) -> Result<Answer, SelectError> {
    let matcher = Matcher::of(list).map_err(|reason| SelectError::Filter { reason })?;
    let mut named: BTreeMap<String, bool> = list.names.iter().map(|name| (name.to_lowercase(), false)).collect();
    let mut is_chosen = |row: &Row| {
        let is_named = match named.get_mut(&row.name().to_lowercase()) {
            Some(found) => {
                *found = true;
                true
            }
            None => list.names.is_empty(),
        };
        is_named && matcher.as_ref().is_none_or(|matcher| matcher.matches(row))
    };
    let places = 0..u32::try_from(source.count()).unwrap_or(u32::MAX);
    let mut chosen: Vec<u32> = if list.names.is_empty() && matcher.is_none() {
        places.collect()
    } else {
        places.filter(|place| is_chosen(&source.row(*place as usize))).collect()
    };
    if let Some(missing) = list.names.iter().find(|name| !named[&name.to_lowercase()]) {
        return Err(SelectError::NoSuchObject { object: list.object, name: missing.clone() });
    }
    if !list.order_by.is_empty() {
        chosen = sorted(list, source.as_ref(), chosen);
    }
    if let Some(limit) = list.limit {
        chosen.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    chosen.shrink_to_fit();
    let columns = columns(list, chosen.iter().map(|place| source.row(*place as usize)));
    Ok(Answer { object: list.object, detail: list.detail, columns, source, chosen })
}

fn columns(list: &List, rows: impl Iterator<Item = Row>) -> Vec<&'static str> {
    let spec = list.object.spec();
    match &list.projection {
        Projection::Attributes(attributes) => attributes.clone(),
        Projection::Default if !list.detail => spec.default_columns().map(|it| it.name).collect(),
        Projection::Default | Projection::All => {
            let mut absent: Vec<&Attribute> = spec.attributes.iter().filter(|attribute| !attribute.hidden).collect();
            for row in rows {
                absent.retain(|attribute| row.get(attribute.name).is_none());
                if absent.is_empty() {
                    break;
                }
            }
            let is_absent = |attribute: &&Attribute| absent.iter().any(|it| it.name == attribute.name);
            let shown = spec.attributes.iter().filter(|attribute| !attribute.hidden && !is_absent(attribute));
            shown.map(|attribute| attribute.name).collect()
        }
    }
}

/// The places in the order of ORDER BY. The values of one key are held at a time: sorts are stable, so the last key goes first.
fn sorted(list: &List, source: &dyn Source, mut places: Vec<u32>) -> Vec<u32> {
    let mut by: Vec<&OrderKey> = Vec::new();
    for key in &list.order_by {
        // An attribute that is named again decides nothing more.
        if by.iter().all(|it| it.attribute != key.attribute) {
            by.push(key);
        }
    }
    for key in by.into_iter().rev() {
        let value = |place: u32| source.row(place as usize).get(key.attribute).cloned().unwrap_or(Value::Null);
        let mut rows: Vec<(Value, u32)> = places.iter().map(|place| (value(*place), *place)).collect();
        rows.sort_by(|(left, _), (right, _)| {
            let ordering = compare_values(left, right);
            if key.descending { ordering.reverse() } else { ordering }
        });
        places.clear();
        places.extend(rows.into_iter().map(|(_, place)| place));
    }
    places
}

/// Empty values first, then numbers by size, times by instant, text by its bytes. A total order, also over values of
/// different kinds.
fn compare_values(left: &Value, right: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        empty if empty.is_empty() => 0,
        Value::Integer(_) | Value::SizeBytes(_) | Value::Measure(_) => 1,
        Value::Timestamp(_) => 2,
        Value::Null | Value::Text(_) | Value::List(_) => 3,
    };
    let instant = |value: &Value| match value {
        Value::Timestamp(timestamp) => Timestamp::since_epoch_ns(*timestamp),
        _ => 0,
    };
    rank(left).cmp(&rank(right)).then_with(|| match rank(left) {
        0 => Ordering::Equal,
        1 => number(left).cmp(&number(right)),
        2 => instant(left).cmp(&instant(right)),
        _ => left.text().cmp(&right.text()),
    })
}

/// A number in billionths.
fn number(value: &Value) -> i128 {
    match value {
        Value::Integer(number) => Decimal::from_integer(*number).at_full_scale(),
        Value::SizeBytes(size_bytes) => Decimal::from_count(*size_bytes).at_full_scale(),
        Value::Measure(measure) => measure.number.at_full_scale(),
        Value::Null | Value::Text(_) | Value::Timestamp(_) | Value::List(_) => 0,
    }
}
