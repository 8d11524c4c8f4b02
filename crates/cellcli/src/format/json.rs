//! The JSON form: `[{attribute: value, ...}]` with raw numbers, one object a line.
//!
//! Sizes are bytes, times milliseconds since the epoch, metric values the exact number without its unit (ask for `unit`).
//! Written by hand so that the crate needs no serialisation library; never writes a number as a float.

use std::fmt::Write as _;

use crate::answer::{Answer, Value};
use crate::table::ObjectType;

/// `answer` as the pieces of a JSON array of objects; `[]` when it is empty.
pub fn json(answer: Answer) -> impl Iterator<Item = String> + Send {
    array((0..answer.count()).map(move |place| {
        let row = answer.row(place);
        let fields = answer.columns.iter().zip(&row);
        object(fields.map(|(column, value)| (*column, value_json(value))))
    }))
}

/// The attributes of a type as a JSON array: `attribute`, `kind`, `modifiable`, `hidden`, `default_column`, `own`, `description`.
#[must_use]
pub fn describe_json(object_type: ObjectType) -> String {
    array(object_type.spec().attributes.iter().map(|attribute| {
        object(
            [
                ("attribute", string(attribute.name)),
                ("kind", string(attribute.kind.word())),
                ("modifiable", attribute.modifiable.to_string()),
                ("hidden", attribute.hidden.to_string()),
                ("default_column", attribute.default_column.to_string()),
                ("own", attribute.own.to_string()),
                ("description", string(attribute.about)),
            ]
            .into_iter(),
        )
    }))
    .collect()
}

/// The pieces of an array of these objects.
fn array(mut objects: impl Iterator<Item = String> + Send) -> impl Iterator<Item = String> + Send {
    let mut given = Some(0_usize);
    std::iter::from_fn(move || {
        let before = given?;
        let object = objects.next();
        given = object.is_some().then_some(before + 1);
        Some(match (object, before) {
            (Some(object), 0) => format!("[\n{object}"),
            (Some(object), _) => format!(",\n{object}"),
            (None, 0) => "[]\n".to_owned(),
            (None, _) => "\n]\n".to_owned(),
        })
    })
}

fn object(fields: impl Iterator<Item = (&'static str, String)>) -> String {
    let fields: Vec<String> = fields.map(|(name, value)| format!("{}:{value}", string(name))).collect();
    format!("{{{}}}", fields.join(","))
}

fn value_json(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Text(text) => string(text),
        Value::Integer(number) => number.to_string(),
        Value::SizeBytes(size_bytes) => size_bytes.to_string(),
        Value::Measure(measure) => measure.number.to_string(),
        Value::Timestamp(timestamp) => timestamp.since_epoch_ms().to_string(),
        Value::List(names) => format!("[{}]", names.iter().map(|name| string(name)).collect::<Vec<_>>().join(",")),
    }
}

/// A JSON string: quotes, backslashes and control characters escaped, everything else as it is.
fn string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                // Writing to a string cannot fail.
                let _ = write!(json, "\\u{:04x}", u32::from(control));
            }
            other => json.push(other),
        }
    }
    json.push('"');
    json
}
