//! What one cell has answered: parsed, checked, kept in a file, printed as JSON.
//!
//! An answer is somebody else's text: bounded, without control characters, with numbers that are numbers; anything else is no
//! reading.

use super::MetricsError;
use super::number::Number;
use crate::dir;
use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Values of one cell: 128 devices and 2,000 grid disks have half as many.
const VALUES_MAX: usize = 200_000;
/// Of a name, a unit, a description.
const TEXT_BYTES_MAX: usize = 512;
/// A file of readings: a thousand cells with a thousand metrics take a tenth of it.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// The form of the file.
const VERSION: u32 = 1;

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum Type {
    /// Since the cell's start.
    Cumulative,
    /// Now.
    Instantaneous,
    /// Over the last minute.
    Rate,
    /// At its last change.
    Transition,
}

/// What a value is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Metric {
    pub(super) name: String,
    pub(super) metric_type: Type,
    pub(super) object_type: String,
    pub(super) unit: String,
    pub(super) description: String,
}

/// A value of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) metric: Arc<Metric>,
    pub(super) object: String,
    pub(super) value: Number,
}

/// Everything one cell told at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The cell's name.
    pub(super) cell: String,
    /// Milliseconds since 1970, by its clock.
    pub(super) at_ms: i64,
    pub(super) values: Vec<Value>,
}

/// Metrics met so far: each is kept once, however many cells have it.
pub(super) type Known = HashMap<String, Arc<Metric>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    metric_object_name: Cow<'a, str>,
    metric_type: Type,
    #[serde(borrow)]
    object_type: Cow<'a, str>,
    #[serde(borrow)]
    unit: Cow<'a, str>,
    #[serde(borrow)]
    metric_value: &'a RawValue,
    collection_time: i64,
    #[serde(borrow, default)]
    description: Option<Cow<'a, str>>,
}

/// The reading in an answer to LIST METRICCURRENT.
pub(super) fn parse(cell: &str, text: &str, known: &mut Known) -> Result<Reading, String> {
    let rows: Vec<Row<'_>> = serde_json::from_str(text).map_err(|error| format!("not a list of metrics: {error}"))?;
    if rows.len() > VALUES_MAX {
        return Err(format!("{} values are more than a cell has", rows.len()));
    }
    let mut values = Vec::with_capacity(rows.len());
    let mut at_ms = 0;
    for row in &rows {
        for text in [&row.name, &row.metric_object_name, &row.object_type, &row.unit] {
            checked(text)?;
        }
        let value = row.metric_value.get();
        let value = Number::parse(value).ok_or_else(|| format!("{}: {value:.40} is no value", row.name))?;
        at_ms = at_ms.max(row.collection_time);
        let metric = match known.get(row.name.as_ref()).filter(|known| is_same(known, row)) {
            Some(metric) => metric.clone(),
            None => {
                let description = row.description.as_deref().unwrap_or("");
                checked(description)?;
                let metric = Arc::new(Metric {
                    name: row.name.clone().into_owned(),
                    metric_type: row.metric_type,
                    object_type: row.object_type.clone().into_owned(),
                    unit: row.unit.clone().into_owned(),
                    description: description.to_owned(),
                });
                // Another version may mean something else by a name: that one is kept by itself.
                known.entry(metric.name.clone()).or_insert_with(|| metric.clone());
                metric
            }
        };
        values.push(Value { metric, object: row.metric_object_name.clone().into_owned(), value });
    }
    Ok(Reading { cell: cell.to_owned(), at_ms, values })
}

fn is_same(metric: &Metric, row: &Row<'_>) -> bool {
    metric.metric_type == row.metric_type && metric.unit == row.unit && metric.object_type == row.object_type
}

/// A text that can be printed.
pub(super) fn checked(text: &str) -> Result<(), String> {
    if text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        return Err("it has texts no cell has".to_owned());
    }
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct File {
    flashcell_metrics: u32,
    cells: Vec<FileCell>,
}

#[derive(Serialize, Deserialize)]
struct FileCell {
    cell: String,
    at_ms: i64,
    /// Name, type, object type, unit; then object and value of each.
    metrics: Vec<(Metric, Vec<(String, String)>)>,
}

/// Keep readings in a file, whole or not at all.
pub(super) fn save(path: &Path, readings: &[Reading]) -> Result<(), MetricsError> {
    let cells = readings.iter().map(|reading| {
        let mut metrics: Vec<(Metric, Vec<(String, String)>)> = Vec::new();
        for value in &reading.values {
            let one = (value.object.clone(), value.value.to_string());
            // Values of a metric come one after the other.
            match metrics.last_mut().filter(|(metric, _)| *metric == *value.metric) {
                Some((_, values)) => values.push(one),
                None => metrics.push(((*value.metric).clone(), vec![one])),
            }
        }
        FileCell { cell: reading.cell.clone(), at_ms: reading.at_ms, metrics }
    });
    let file = File { flashcell_metrics: VERSION, cells: cells.collect() };
    let fail = |error: std::io::Error| MetricsError::File { path: path.to_owned(), reason: error.to_string() };
    let text = serde_json::to_vec(&file).map_err(|error| fail(error.into()))?;
    dir::write(path, dir::PUBLIC, &text).map_err(fail)
}

/// The readings of a file.
pub(super) fn load(path: &Path) -> Result<Vec<Reading>, MetricsError> {
    let fail = |reason: String| MetricsError::File { path: path.to_owned(), reason };
    let size = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(fail(format!("{size} bytes are too many for a reading")));
    }
    let text = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    let no_reading = |reason: String| fail(format!("not a reading that --before has kept: {reason}"));
    let file: File = serde_json::from_slice(&text).map_err(|error| no_reading(error.to_string()))?;
    if file.flashcell_metrics != VERSION {
        return Err(no_reading(format!("version {}", file.flashcell_metrics)));
    }
    let mut readings = Vec::new();
    for cell in file.cells {
        let mut values = Vec::new();
        for (metric, of) in cell.metrics {
            let metric = Arc::new(metric);
            for (object, value) in of {
                let value = Number::parse(&value).ok_or_else(|| no_reading(format!("{value:?} is no value")))?;
                values.push(Value { metric: metric.clone(), object, value });
            }
        }
        readings.push(Reading { cell: cell.cell, at_ms: cell.at_ms, values });
    }
    Ok(readings)
}

#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    object_type: &'a str,
    object: &'a str,
    cell: &'a str,
    value: Box<RawValue>,
    unit: &'a str,
    #[serde(rename = "type")]
    metric_type: Type,
    at_ms: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
}

/// Every value of every cell, a line each.
pub(super) fn json(readings: &[Reading], mask: Option<&Regex>) -> String {
    let mut lines = Vec::new();
    for reading in readings {
        let shown = reading.values.iter().filter(|value| mask.is_none_or(|mask| mask.is_match(&value.metric.name)));
        for value in shown {
            let metric = &value.metric;
            let number = RawValue::from_string(value.value.to_string());
            let line = number.and_then(|number| {
                serde_json::to_string(&Shown {
                    name: &metric.name,
                    object_type: &metric.object_type,
                    object: &value.object,
                    cell: &reading.cell,
                    value: number,
                    unit: &metric.unit,
                    metric_type: metric.metric_type,
                    at_ms: reading.at_ms,
                    description: &metric.description,
                })
            });
            match line {
                Ok(line) => lines.push(line),
                Err(error) => unreachable!("plain texts and digits: {error}"),
            }
        }
    }
    if lines.is_empty() { "[]\n".to_owned() } else { format!("[\n{}\n]\n", lines.join(",\n")) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const ROWS: &str = r#"[
        {"name":"GD_IO_RQ_R_SM","metricObjectName":"a","metricType":"Cumulative","metricValue":18446744073709551615,
         "objectType":"GRIDDISK","unit":"IO requests","collectionTime":1700000000123},
        {"name":"GD_IO_RQ_R_SM","metricObjectName":"b","metricType":"Cumulative","metricValue":0.100000001,
         "objectType":"GRIDDISK","unit":"IO requests","collectionTime":1700000000123,"extra":1}
    ]"#;

    #[test]
    fn a_reading_goes_through_a_file_and_json_digit_for_digit() {
        let mut known = Known::new();
        let reading = parse("c1", ROWS, &mut known).unwrap();
        assert!(Arc::ptr_eq(&reading.values[0].metric, &reading.values[1].metric));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("before");
        save(&path, std::slice::from_ref(&reading)).unwrap();
        assert_eq!(load(&path).unwrap(), std::slice::from_ref(&reading));
        expect_test::expect![[r#"
            [
            {"name":"GD_IO_RQ_R_SM","object_type":"GRIDDISK","object":"a","cell":"c1","value":18446744073709551615,"unit":"IO requests","type":"Cumulative","at_ms":1700000000123},
            {"name":"GD_IO_RQ_R_SM","object_type":"GRIDDISK","object":"b","cell":"c1","value":0.100000001,"unit":"IO requests","type":"Cumulative","at_ms":1700000000123}
            ]
        "#]]
        .assert_eq(&json(&[reading], None));
    }

    #[test]
    fn what_is_no_reading() {
        for (text, part) in [
            ("", "not a list of metrics"),
            ("{}", "not a list of metrics"),
            ("[{\"name\":\"x\"}]", "missing field"),
            (&ROWS.replace("0.100000001", "\"many\""), "is no value"),
            (&ROWS.replace("0.100000001", "1e99"), "is no value"),
            (&ROWS.replace("\"b\"", "\"b\\u001b[2J\""), "texts no cell has"),
            (&ROWS.replace("\"b\"", &format!("\"{}\"", "b".repeat(1000))), "texts no cell has"),
            (&ROWS.replace("Cumulative", "Funny"), "unknown variant"),
        ] {
            let error = parse("c", text, &mut Known::new()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for text in ["", "{}", "[]", r#"{"flashcell_metrics":2,"cells":[]}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(load(&path).unwrap_err().to_string().contains("not a reading"), "{text}");
        }
    }
}
