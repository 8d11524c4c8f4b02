//! LIST over rows: names, WHERE, ORDER BY, LIMIT, ATTRIBUTES.
//!
//! Never changes a value; what it gives out is what the server supplied, in other order and number.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::decimal::Decimal;
use super::matching::Matcher;
use super::timestamp::Timestamp;
use super::value::{Row, Value};
use crate::command::{List, Projection};
use crate::error::{ErrorCode, ErrorKind};
use crate::table::{Attribute, ObjectType};

/// What LIST found, ready for a formatter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The type listed.
    pub object: ObjectType,
    /// One attribute a line instead of one object a line.
    pub detail: bool,
    /// The attributes shown, in order.
    pub columns: Vec<&'static str>,
    /// One entry an object, each with one value a column.
    pub rows: Vec<Vec<Value>>,
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

/// Carries out `list` over `rows`: every object of the type, in the server's order. Order is kept where ORDER BY does not
/// say otherwise. Several rows may have one name, as metrics of several objects do.
///
/// # Errors
/// A name that no row has; a hand-made condition that does not compile.
pub fn select(list: &List, rows: Vec<Row>) -> Result<Answer, SelectError> {
    let mut rows = named(list, rows)?;
    if let Some(filter) = &list.filter {
        let matcher = Matcher::new(list.object, filter).map_err(|reason| SelectError::Filter { reason })?;
        rows.retain(|row| matcher.matches(row));
    }
    if !list.order_by.is_empty() {
        rows.sort_by(|left, right| order(list, left, right));
    }
    if let Some(limit) = list.limit {
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    let columns = columns(list, &rows);
    let rows = rows
        .iter()
        .map(|row| columns.iter().map(|column| row.get(column).cloned().unwrap_or(Value::Null)).collect())
        .collect();
    Ok(Answer { object: list.object, detail: list.detail, columns, rows })
}

/// The rows whose names are asked for, in the server's order.
fn named(list: &List, mut rows: Vec<Row>) -> Result<Vec<Row>, SelectError> {
    if list.names.is_empty() {
        return Ok(rows);
    }
    let mut found: BTreeMap<String, bool> = list.names.iter().map(|name| (name.to_lowercase(), false)).collect();
    rows.retain(|row| match found.get_mut(&row.name().to_lowercase()) {
        Some(found) => {
            *found = true;
            true
        }
        None => false,
    });
    match list.names.iter().find(|name| !found[&name.to_lowercase()]) {
        Some(missing) => Err(SelectError::NoSuchObject { object: list.object, name: missing.clone() }),
        None => Ok(rows),
    }
}

fn columns(list: &List, rows: &[Row]) -> Vec<&'static str> {
    let spec = list.object.spec();
    let supplied =
        |attribute: &&Attribute| !attribute.hidden && rows.iter().any(|row| row.get(attribute.name).is_some());
    match &list.projection {
        Projection::Attributes(attributes) => attributes.clone(),
        Projection::Default if !list.detail => spec.default_columns().map(|it| it.name).collect(),
        Projection::Default | Projection::All => {
            spec.attributes.iter().filter(supplied).map(|attribute| attribute.name).collect()
        }
    }
}

fn order(list: &List, left: &Row, right: &Row) -> Ordering {
    let mut ordering = Ordering::Equal;
    for key in &list.order_by {
        let left = left.get(key.attribute).unwrap_or(&Value::Null);
        let right = right.get(key.attribute).unwrap_or(&Value::Null);
        ordering = compare_values(left, right);
        if key.descending {
            ordering = ordering.reverse();
        }
        if ordering.is_ne() {
            break;
        }
    }
    ordering
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
