//! One number for several objects and cells, by what the metric is.
//!
//! The field's tool added everything. Counters, rates and sizes are added; times per request are means weighted by the requests
//! they are of; shares are means; ages and temperatures are maxima. Never adds what has no sum.

use super::number::Number;
use super::reading::{Metric, Type};

/// How values of several objects become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Added.
    Sum,
    /// The mean.
    Mean,
    /// The mean, weighted by the first of these metrics the cell has for the object.
    Weighted(Vec<String>),
    /// The greatest.
    Maximum,
    /// The least.
    Minimum,
}

impl How {
    /// In a word, for the table.
    pub(super) fn word(&self) -> &'static str {
        match self {
            How::Sum => "sum",
            How::Mean | How::Weighted(_) => "mean",
            How::Maximum => "max",
            How::Minimum => "min",
        }
    }
}

/// How a metric combines.
pub(super) fn how(metric: &Metric) -> How {
    let weighted = |name: &str| How::Weighted(vec![name.to_owned()]);
    match metric.name.as_str() {
        "CL_RUNQ" | "IORM_MODE" => return How::Mean,
        "CD_FC_LIFETIME_DAYS" => return How::Minimum,
        "CD_FC_WRITE_AMP" => return weighted("CD_BY_FC_W"),
        "FC_BY_MEM_INDEX_ENTRY" => return weighted("FC_ENTRIES"),
        "FC_DIRTY_AGE" => return How::Maximum,
        "GD_FC_TM_SAVED" => return How::Sum,
        "GD_FC_TM_R_DISK" | "GD_FC_TM_R_FLASH" => return weighted("GD_FC_IO_RQ_R"),
        _ => {}
    }
    match (metric.metric_type, metric.unit.as_str()) {
        (Type::Cumulative, _) => How::Sum,
        (_, "us/request" | "ms/request") => How::Weighted(weights(&metric.name)),
        (_, "%") => How::Mean,
        (_, "C") | (Type::Transition, _) => How::Maximum,
        (Type::Instantaneous, "us" | "ms") => How::Mean,
        (Type::Instantaneous | Type::Rate, _) => How::Sum,
    }
}

/// The metrics that count the requests of a time per request: `CD_IO_TM_R_SM_RQ` is of `CD_IO_RQ_R_SM_SEC`, and
/// `FL_IO_TM_W_RQ` of `FL_IO_W`.
fn weights(name: &str) -> Vec<String> {
    let of_time = name.strip_suffix("_RQ").unwrap_or(name);
    let mut stems = Vec::new();
    for part in ["_TM", "_WT"] {
        if of_time.contains(part) {
            stems.push(of_time.replacen(part, "_RQ", 1));
            stems.push(of_time.replacen(part, "", 1));
        }
    }
    // What happened in the last minute first, as the time does; else since the start.
    let recent = stems.iter().map(|stem| format!("{stem}_SEC"));
    recent.chain(stems.iter().cloned()).collect()
}

/// The counter a rate is of: `FC_IO_RQ_R_SEC` of `FC_IO_RQ_R`.
pub(super) fn counter(rate: &str) -> Option<&str> {
    ["_SEC", "_MIN", "_RQ"].into_iter().find_map(|suffix| rate.strip_suffix(suffix))
}

/// One for all; none when there are none.
pub(super) fn combine(how: &How, values: &[(Number, Option<Number>)]) -> Option<Number> {
    let numbers = values.iter().map(|(value, _)| *value);
    match how {
        How::Sum => numbers.reduce(Number::plus),
        How::Maximum => numbers.max(),
        How::Minimum => numbers.min(),
        // One is itself, with all its digits.
        How::Mean | How::Weighted(_) if values.len() == 1 => values.first().map(|(value, _)| *value),
        How::Mean => {
            let plain: Vec<(Number, Option<Number>)> = numbers.map(|value| (value, None)).collect();
            Number::mean(&plain).map(Number::to_thousandths)
        }
        How::Weighted(_) => Number::mean(values).map(Number::to_thousandths),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn of(name: &str, metric_type: Type, unit: &str) -> How {
        let object_type = "CELLDISK".to_owned();
        how(&Metric {
            name: name.to_owned(),
            metric_type,
            object_type,
            unit: unit.to_owned(),
            description: String::new(),
        })
    }

    #[test]
    fn by_what_it_is() {
        assert_eq!(of("FC_IO_RQ_R", Type::Cumulative, "IO requests"), How::Sum);
        assert_eq!(of("FC_IO_RQ_R_SEC", Type::Rate, "IO/sec"), How::Sum);
        assert_eq!(of("FC_BY_USED", Type::Instantaneous, "MB"), How::Sum);
        assert_eq!(of("CL_CPUT", Type::Instantaneous, "%"), How::Mean);
        assert_eq!(of("CL_TEMP", Type::Instantaneous, "C"), How::Maximum);
        assert_eq!(of("FC_DIRTY_AGE", Type::Instantaneous, "us"), How::Maximum);
        let How::Weighted(names) = of("CD_IO_TM_R_SM_RQ", Type::Rate, "us/request") else { panic!("a weighted mean") };
        assert_eq!(names[0], "CD_IO_RQ_R_SM_SEC");
        for (name, weight) in [
            ("CD_IO_TM_FLUSH_RQ", "CD_IO_FLUSH_SEC"),
            ("FL_IO_TM_W_RQ", "FL_IO_W"),
            ("FL_RQ_TM_W_RQ", "FL_RQ_W"),
            ("DB_IO_WT_SM_RQ", "DB_IO_RQ_SM_SEC"),
        ] {
            assert!(weights(name).contains(&weight.to_owned()), "{name}: {:?}", weights(name));
        }
    }

    /// Every metric of a cell is either added, or has a weight a cell has.
    #[test]
    fn every_metric_of_a_cell_has_its_weight() {
        let names: Vec<&str> = cell::metrics::definitions().map(|definition| definition.name).collect();
        let mut weighted = 0;
        for name in names.iter().filter(|name| name.ends_with("_RQ") && name.contains("_TM_")) {
            weighted += 1;
            assert!(weights(name).iter().any(|weight| names.contains(&weight.as_str())), "{name} has no weight");
        }
        assert!(weighted >= 5);
        for name in ["CD_BY_FC_W", "FC_ENTRIES", "GD_FC_IO_RQ_R", "FC_DIRTY_AGE", "CD_FC_LIFETIME_DAYS", "CL_RUNQ"] {
            assert!(names.contains(&name), "{name} is a metric of a cell");
        }
    }

    #[test]
    fn combined() {
        let values: Vec<_> = [(1, 1), (2, 1), (9, 2)].map(|(v, w)| (Number::whole(v), Some(Number::whole(w)))).to_vec();
        let weighted = How::Weighted(Vec::new());
        for (how, expected) in
            [(How::Sum, "12"), (How::Mean, "4"), (weighted.clone(), "5.25"), (How::Maximum, "9"), (How::Minimum, "1")]
        {
            assert_eq!(combine(&how, &values).unwrap().to_string(), expected, "{how:?}");
        }
        assert_eq!(combine(&How::Sum, &[]), None);
        let one = [(Number::parse("0.123456789").unwrap(), None)];
        assert_eq!(combine(&weighted, &one).unwrap().to_string(), "0.123456789");
    }
}
