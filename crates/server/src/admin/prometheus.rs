//! The metrics in Prometheus' text format.
//!
//! Names follow from the table: `flashcell_` and the metric's name in small letters, `_bytes` or `_seconds` for what is
//! counted, `_total` for what only grows. Rates are left out: Prometheus makes its own.

use super::Context;
use cell::metrics::{Base, Definition, MetricObject, MetricType, Sample};
use device::layers::stats::HistogramSnapshot;
use std::fmt::Write;

/// Upper ends of the buckets of device latencies, in nanoseconds: from a fast flash hit to a device that hangs.
const LATENCY_NS: [u64; 17] = [
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
];

/// The whole page.
pub(super) fn page(context: &Context) -> String {
    let mut text = String::new();
    let mut last = "";
    for sample in context.samples() {
        if sample.definition.name != last {
            last = sample.definition.name;
            head(&mut text, sample.definition);
        }
        line(&mut text, &sample);
    }
    front_end(&mut text, context);
    latencies(&mut text, context);
    text
}

fn name_of(definition: &Definition) -> String {
    let unit = match definition.base {
        Base::Bytes => "_bytes",
        Base::Nanoseconds => "_seconds",
        Base::MilliPercent => "_percent",
        Base::Requests | Base::Count | Base::Milli => "",
    };
    let total = if definition.metric_type() == MetricType::Cumulative { "_total" } else { "" };
    format!("flashcell_{}{unit}{total}", definition.name.to_lowercase())
}

fn head(text: &mut String, definition: &Definition) {
    let kind = if definition.metric_type() == MetricType::Cumulative { "counter" } else { "gauge" };
    let name = name_of(definition);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {} ({})\n# TYPE {name} {kind}", definition.description, definition.name);
}

fn line(text: &mut String, sample: &Sample) {
    let label = match sample.definition.object {
        MetricObject::Cell => "cell",
        MetricObject::CellDisk => "celldisk",
        MetricObject::FlashCache => "flashcache",
        MetricObject::FlashLog => "flashlog",
        MetricObject::GridDisk => "griddisk",
        MetricObject::Database => "database",
    };
    let value = match sample.definition.base {
        Base::Bytes | Base::Requests | Base::Count => sample.value.to_string(),
        Base::Nanoseconds => decimal(sample.value, 9),
        Base::Milli | Base::MilliPercent => decimal(sample.value, 3),
    };
    let _ = writeln!(text, "{}{{{label}=\"{}\"}} {value}", name_of(sample.definition), escaped(&sample.object));
}

/// `units / 10^digits`, exactly.
fn decimal(units: u64, digits: usize) -> String {
    let text = format!("{units:0width$}", width = digits + 1);
    let (whole, fraction) = text.split_at(text.len() - digits);
    format!("{whole}.{fraction}")
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn front_end(text: &mut String, context: &Context) {
    let stats = context.front_end.stats();
    let gauges = [("connections", "NBD connections open", stats.connections_open)];
    let counters = [
        ("connections_total", "NBD connections accepted", stats.connections),
        ("requests_total", "NBD requests", stats.requests()),
        ("replies_total", "NBD replies sent", stats.replies),
        ("reply_batches_total", "calls it took to send the replies", stats.batches),
        ("read_bytes_total", "bytes of successful NBD reads", stats.bytes_read),
        ("written_bytes_total", "bytes of successful NBD writes", stats.bytes_written),
        ("malformed_total", "connections closed because their bytes were not the protocol", stats.malformed),
        ("timed_out_total", "connections closed by a time-out", stats.timed_out),
        ("error_replies_total", "NBD error replies", stats.errors.iter().sum()),
    ];
    let kinds = gauges.into_iter().map(|it| ("gauge", it)).chain(counters.into_iter().map(|it| ("counter", it)));
    for (kind, (name, help, value)) in kinds {
        let name = format!("flashcell_nbd_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
}

fn latencies(text: &mut String, context: &Context) {
    let name = "flashcell_device_latency_seconds";
    let _ = writeln!(text, "# HELP {name} from submission to completion of requests that were done");
    let _ = writeln!(text, "# TYPE {name} histogram");
    let catalog = context.cell.store().catalog();
    for device in context.devices() {
        let Some(member) = device.device_id.and_then(|id| catalog.members.get(&id)) else { continue };
        for (size, verbs) in device.io.snapshot() {
            for verb in verbs.iter().filter(|verb| verb.done > 0) {
                let kind = format!("{:?}", verb.verb).to_lowercase();
                let labels = format!("celldisk=\"{}\",verb=\"{kind}\",size=\"{size}\"", escaped(&member.name));
                histogram(text, name, &labels, &verb.latency_ns);
            }
        }
    }
}

fn histogram(text: &mut String, name: &str, labels: &str, values: &HistogramSnapshot) {
    for end_ns in LATENCY_NS {
        let count = count_up_to(values, end_ns);
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{}\"}} {count}", decimal(end_ns, 9));
    }
    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", values.count);
    let _ = writeln!(text, "{name}_sum{{{labels}}} {}", decimal(values.sum, 9));
    let _ = writeln!(text, "{name}_count{{{labels}}} {}", values.count);
}

/// How many values are at most `end`, to the histogram's own precision: the last rank whose quantile is not beyond it.
fn count_up_to(values: &HistogramSnapshot, end: u64) -> u64 {
    let (mut low, mut high) = (0, values.count);
    while low < high {
        let rank = low + (high - low).div_ceil(2);
        if values.quantile(rank, values.count) <= end {
            low = rank;
        } else {
            high = rank - 1;
        }
    }
    low
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use cell::metrics::{definition, definitions};
    use device::layers::Histogram;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_valid() {
        let mut seen = BTreeSet::new();
        for name in definitions().map(name_of) {
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
            assert!(seen.insert(name.clone()), "{name} stands twice");
        }
        assert_eq!(name_of(definition("FC_IO_BY_R").unwrap()), "flashcell_fc_io_by_r_bytes_total");
        assert_eq!(name_of(definition("CD_IO_TM_R_SM").unwrap()), "flashcell_cd_io_tm_r_sm_seconds_total");
        assert_eq!(name_of(definition("FC_BY_USED").unwrap()), "flashcell_fc_by_used_bytes");
    }

    #[test]
    fn lines() {
        let mut text = String::new();
        let definition = definition("CD_IO_TM_R_SM").unwrap();
        line(&mut text, &Sample { definition, object: "a\"b".to_owned(), value: 1_500_000_000 });
        assert_eq!(text, "flashcell_cd_io_tm_r_sm_seconds_total{celldisk=\"a\\\"b\"} 1.500000000\n");
        assert_eq!((decimal(0, 9), decimal(25_000, 9)), ("0.000000000".to_owned(), "0.000025000".to_owned()));
    }

    /// The search must agree with counting by hand, for values that are exact in the histogram.
    #[test]
    fn buckets_count_what_is_below_them() {
        let histogram = Histogram::default();
        let values: Vec<u64> = (0..31).chain([32, 40, 62, 1 << 20]).collect();
        values.iter().for_each(|value| histogram.record(*value));
        let snapshot = histogram.snapshot();
        for end in [0, 1, 15, 31, 32, 39, 40, 61, 62, 1 << 19, 1 << 20] {
            let expected = values.iter().filter(|value| **value <= end).count() as u64;
            assert_eq!(count_up_to(&snapshot, end), expected, "at most {end}");
        }
        assert_eq!(count_up_to(&Histogram::default().snapshot(), 1), 0);
    }
}
