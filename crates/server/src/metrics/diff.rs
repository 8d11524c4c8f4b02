//! The difference of two readings: what has been counted between them.
//!
//! Counters and levels are subtracted; a rate of the last minute says nothing about the time between, so it is made anew from the
//! counter it is of. A cell whose counters began anew in between is named and left out.

use super::combine::{How, counter, how};
use super::number::Number;
use super::reading::{Reading, Type, Value};
use std::collections::HashMap;

type ByObject<'a> = HashMap<(&'a str, &'a str), &'a Value>;

fn by_object(reading: &Reading) -> ByObject<'_> {
    reading.values.iter().map(|value| ((value.metric.name.as_str(), value.object.as_str()), value)).collect()
}

/// What has changed in each cell, and what there is to say about those that are missing.
pub(super) fn difference(before: &[Reading], now: &[Reading]) -> (Vec<Reading>, Vec<String>) {
    let mut shown = Vec::new();
    let mut notes = Vec::new();
    for reading in now {
        let Some(then) = before.iter().find(|then| then.cell == reading.cell) else {
            notes.push(format!("{}: not in the earlier reading", reading.cell));
            continue;
        };
        match between(then, reading) {
            Ok(reading) => shown.push(reading),
            Err(why) => notes.push(format!("{}: {why}", reading.cell)),
        }
    }
    (shown, notes)
}

fn between(then: &Reading, now: &Reading) -> Result<Reading, String> {
    let elapsed_ms = i128::from(now.at_ms) - i128::from(then.at_ms);
    if elapsed_ms <= 0 {
        return Err("the earlier reading is not earlier".to_owned());
    }
    let (before, after) = (by_object(then), by_object(now));
    let grown = |name: &str, object: &str| {
        let now = after.get(&(name, object)).filter(|value| value.metric.metric_type == Type::Cumulative)?;
        // An object that is new since then began at nothing.
        let then = before.get(&(name, object)).map_or(Number::ZERO, |value| value.value);
        Some(now.value.minus(then))
    };
    let mut values = Vec::new();
    for value in &now.values {
        let (metric, object) = (&value.metric, value.object.as_str());
        let then = before.get(&(metric.name.as_str(), object)).map_or(Number::ZERO, |value| value.value);
        let changed = match metric.metric_type {
            Type::Cumulative => {
                let grown = value.value.minus(then);
                if grown.is_negative() {
                    return Err(format!("its counters began anew in between ({} fell)", metric.name));
                }
                Some(grown)
            }
            Type::Instantaneous | Type::Transition => Some(value.value.minus(then)),
            Type::Rate => counter(&metric.name).and_then(|counter| {
                let counted = grown(counter, object)?;
                match (metric.unit.as_str(), how(metric)) {
                    ("/min", _) => Some(counted.times(60_000, elapsed_ms)),
                    (_, How::Weighted(names)) => {
                        let mut weights = names.iter().filter_map(|name| grown(name, object));
                        weights.next().map(|weight| counted.over(weight).unwrap_or(Number::ZERO))
                    }
                    _ => Some(counted.times(1_000, elapsed_ms)),
                }
            }),
        };
        if let Some(changed) = changed {
            let changed = if metric.metric_type == Type::Rate { changed.to_thousandths() } else { changed };
            values.push(Value { metric: metric.clone(), object: value.object.clone(), value: changed });
        }
    }
    Ok(Reading { cell: now.cell.clone(), at_ms: now.at_ms, values })
}

#[cfg(test)]
mod tests {
    use super::super::reading::Metric;
    use super::*;
    use std::sync::Arc;

    fn reading(cell: &str, at_ms: i64, values: &[(&str, Type, &str, &str, i64)]) -> Reading {
        let value = |(name, metric_type, unit, object, value): &(&str, Type, &str, &str, i64)| Value {
            metric: Arc::new(Metric {
                name: (*name).to_owned(),
                metric_type: *metric_type,
                object_type: "X".to_owned(),
                unit: (*unit).to_owned(),
                description: String::new(),
            }),
            object: (*object).to_owned(),
            value: Number::whole(*value),
        };
        Reading { cell: cell.to_owned(), at_ms, values: values.iter().map(value).collect() }
    }

    fn of(requests: i64, time: i64, level: i64) -> [(&'static str, Type, &'static str, &'static str, i64); 6] {
        [
            ("CD_IO_RQ_R_SM", Type::Cumulative, "IO requests", "d", requests),
            ("CD_IO_RQ_R_SM_SEC", Type::Rate, "IO/sec", "d", 777),
            ("CD_IO_TM_R_SM", Type::Cumulative, "us", "d", time),
            ("CD_IO_TM_R_SM_RQ", Type::Rate, "us/request", "d", 777),
            ("FC_BY_DIRTY", Type::Instantaneous, "MB", "d", level),
            ("CL_CPUT_CS", Type::Rate, "%", "d", 777),
        ]
    }

    #[test]
    fn counters_levels_and_rates_of_the_time_between() {
        let before = [reading("c1", 1_000, &of(100, 5_000, 40))];
        let now = [reading("c1", 21_000, &of(300, 25_000, 10)), reading("c2", 21_000, &of(1, 1, 1))];
        let (shown, notes) = difference(&before, &now);
        assert_eq!(notes, ["c2: not in the earlier reading"]);
        let values: Vec<String> =
            shown[0].values.iter().map(|value| format!("{}={}", value.metric.name, value.value)).collect();
        assert_eq!(
            values,
            [
                "CD_IO_RQ_R_SM=200",
                "CD_IO_RQ_R_SM_SEC=10",
                "CD_IO_TM_R_SM=20000",
                "CD_IO_TM_R_SM_RQ=100",
                "FC_BY_DIRTY=-30"
            ]
        );
    }

    #[test]
    fn a_restart_in_between_is_told() {
        let before = [reading("c1", 1_000, &of(100, 5_000, 40))];
        let (shown, notes) = difference(&before, &[reading("c1", 2_000, &of(3, 7, 40))]);
        assert!(shown.is_empty());
        assert_eq!(notes, ["c1: its counters began anew in between (CD_IO_RQ_R_SM fell)"]);
        let (_, notes) = difference(&before, &before);
        assert_eq!(notes, ["c1: the earlier reading is not earlier"]);
    }
}
