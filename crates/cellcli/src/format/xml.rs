//! The XML form of recent clients: `cli-output`, a `context`, one element an object, one child an attribute. Values are raw
//! as in JSON; empty attributes are empty elements. Never writes a character XML 1.0 forbids.

use std::iter::once;

use crate::answer::{Answer, Value};

/// `answer` as the pieces of an XML document; `cell` is the name of the cell that gave it.
pub fn xml(answer: Answer, cell: &str) -> impl Iterator<Item = String> + Send + use<> {
    let element = answer.object.spec().xml_element;
    let head =
        format!("<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n<cli-output>\n<context cell=\"{}\"/>\n", escaped(cell));
    let rows = (0..answer.count()).map(move |place| {
        let mut text = format!("<{element}>\n");
        for (column, value) in answer.columns.iter().zip(answer.row(place)) {
            text.push_str(&format!("  <{column}>{}</{column}>\n", escaped(&raw(&value))));
        }
        text.push_str(&format!("</{element}>\n"));
        text
    });
    once(head).chain(rows).chain(once("</cli-output>\n".to_owned()))
}

fn raw(value: &Value) -> String {
    match value {
        Value::SizeBytes(size_bytes) => size_bytes.to_string(),
        Value::Measure(measure) => measure.number.to_string(),
        Value::Timestamp(timestamp) => timestamp.since_epoch_ms().to_string(),
        Value::Null | Value::Text(_) | Value::Integer(_) | Value::List(_) => value.text(),
    }
}

fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            control if control.is_control() => xml.push(' '),
            '\u{fffe}' | '\u{ffff}' => xml.push('\u{fffd}'),
            other => xml.push(other),
        }
    }
    xml
}
