//! The metrics in Prometheus' text format, and in OpenMetrics for who asks for it.
//!
//! Names follow from the table: `flashcell_` and the metric's name in small letters (without MB), `_bytes` or `_seconds` for what is
//! counted, `_total` for what only grows. Rates are left out: Prometheus makes its own. In OpenMetrics a family has one type, and what only
//! grows says since when: since the process was started.

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

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Prometheus' own text, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    Open,
}

impl Style {
    /// What is asked for: OpenMetrics is given to who names it.
    pub(super) fn of_accept(accept: &str) -> Style {
        if accept.contains("application/openmetrics-text") { Style::Open } else { Style::Text }
    }

    /// The type of the page.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Style::Text => "text/plain; version=0.0.4; charset=utf-8",
            Style::Open => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A page being written.
struct Page {
    style: Style,
    /// When the process was started, as it is written.
    created: String,
    text: String,
}

/// What is written of a family before its samples.
const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";

impl Page {
    fn new(style: Style, created_ns: u64) -> Page {
        Page { style, created: decimal(created_ns, 9), text: String::new() }
    }

    /// A family begins. `name` is that of its samples: in OpenMetrics the family of a counter has no `_total`.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let family = match self.style {
            Style::Open if kind == COUNTER => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let help = escaped(help);
        self.line(format_args!("# HELP {family} {help}\n# TYPE {family} {kind}"));
        let unit = ["bytes", "seconds"].into_iter().find(|unit| family.ends_with(&format!("_{unit}")));
        if let (Style::Open, Some(unit)) = (self.style, unit) {
            self.line(format_args!("# UNIT {family} {unit}"));
        }
    }

    /// The sample of a counter; `labels` with their braces, if any.
    fn counter(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        self.line(format_args!("{name}{labels} {value}"));
        self.created(name.strip_suffix("_total").unwrap_or(name), labels);
    }

    /// Since when a counter or histogram counts: for OpenMetrics alone.
    fn created(&mut self, family: &str, labels: &str) {
        if self.style == Style::Open {
            let created = std::mem::take(&mut self.created);
            self.line(format_args!("{family}_created{labels} {created}"));
            self.created = created;
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Samples that are written at a time.
const SAMPLES_AT_ONCE: usize = 64;

/// A whole page, written as it is taken.
pub(super) struct Pages {
    page: Page,
    samples: Vec<Sample>,
    written: usize,
    /// What comes after the samples, until it is written.
    tail: Option<String>,
}

impl Pages {
    pub(super) fn new(context: &Context, style: Style) -> Pages {
        let mut page = Page::new(style, crate::process::started_ns());
        alerts(&mut page, context);
        front_end(&mut page, context);
        tried_again(&mut page, context);
        latencies(&mut page, context);
        if style == Style::Open {
            page.line(format_args!("# EOF"));
        }
        let tail = Some(std::mem::take(&mut page.text));
        process(&mut page);
        Pages { page, samples: context.samples(), written: 0, tail }
    }

    /// About how much memory it holds.
    pub(super) fn bytes(&self) -> usize {
        self.samples.capacity() * size_of::<Sample>() + self.tail.as_ref().map_or(0, String::capacity)
    }
}

impl Iterator for Pages {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let end = self.samples.len().min(self.written + SAMPLES_AT_ONCE);
        if self.written == end {
            let head = std::mem::take(&mut self.page.text);
            return self.tail.take().map(|tail| head + &tail);
        }
        for at in self.written..end {
            let before = at.checked_sub(1).map(|before| self.samples[before].definition.name);
            let sample = &self.samples[at];
            if before != Some(sample.definition.name) {
                head(&mut self.page, sample.definition);
            }
            line(&mut self.page, sample);
        }
        self.written = end;
        Some(std::mem::take(&mut self.page.text))
    }
}

/// Which program this is, and since when it runs.
fn process(page: &mut Page) {
    // OpenMetrics has a type for it, whose samples have a suffix that the family has not.
    let (name, family, kind) = match page.style {
        Style::Open => ("flashcell_build_info", "flashcell_build", "info"),
        Style::Text => ("flashcell_build_info", "flashcell_build_info", GAUGE),
    };
    page.family(family, kind, "the program that serves the cell");
    page.line(format_args!("{name}{{version=\"{}\"}} 1", escaped(env!("CARGO_PKG_VERSION"))));
    let name = "process_start_time_seconds";
    page.family(name, GAUGE, "when the process was started, in seconds since 1970");
    let created = page.created.clone();
    page.line(format_args!("{name} {created}"));
}

fn name_of(definition: &Definition) -> String {
    let unit = match definition.base {
        Base::Bytes => "_bytes",
        Base::Nanoseconds => "_seconds",
        Base::MilliPercent => "_percent",
        Base::Requests | Base::Count | Base::Milli => "",
    };
    let total = if definition.metric_type() == MetricType::Cumulative { "_total" } else { "" };
    // The vendor has the printed unit in these names, which is not Prometheus'.
    let name = definition.name.to_lowercase();
    let name = name.strip_prefix("n_mb_").map_or_else(|| name.clone(), |rest| format!("n_{rest}"));
    format!("flashcell_{name}{unit}{total}")
}

fn head(page: &mut Page, definition: &Definition) {
    let kind = if definition.metric_type() == MetricType::Cumulative { COUNTER } else { GAUGE };
    let help = format!("{} ({})", definition.description, definition.name);
    page.family(&name_of(definition), kind, &help);
}

fn line(page: &mut Page, sample: &Sample) {
    let label = match sample.definition.object {
        MetricObject::Cell => "cell",
        MetricObject::CellDisk => "celldisk",
        MetricObject::FlashCache => "flashcache",
        MetricObject::FlashLog => "flashlog",
        MetricObject::GridDisk => "griddisk",
        MetricObject::Database => "database",
        MetricObject::ClientHost => "client",
    };
    let value = match sample.definition.base {
        Base::Bytes | Base::Requests | Base::Count => sample.value.to_string(),
        Base::Nanoseconds => decimal(sample.value, 9),
        Base::Milli | Base::MilliPercent => decimal(sample.value, 3),
    };
    let name = name_of(sample.definition);
    let labels = format!("{{{label}=\"{}\"}}", escaped(&sample.object));
    if sample.definition.metric_type() == MetricType::Cumulative {
        page.counter(&name, &labels, value);
    } else {
        page.line(format_args!("{name}{labels} {value}"));
    }
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

fn alerts(page: &mut Page, context: &Context) {
    let name = "flashcell_alerts";
    page.family(name, GAUGE, "alerts that are not over");
    for (severity, count) in context.alerts.active_counts() {
        page.line(format_args!("{name}{{severity=\"{}\"}} {count}", severity.word()));
    }
}

fn front_end(page: &mut Page, context: &Context) {
    let stats = context.front_end.stats();
    // Not "connections": the family of that name is the counter's.
    page.family("flashcell_nbd_connections_open", GAUGE, "NBD connections open");
    page.line(format_args!("flashcell_nbd_connections_open {}", stats.connections_open));
    let counters = [
        ("connections_total", "NBD connections accepted", stats.connections),
        ("requests_total", "NBD requests", stats.requests()),
        ("replies_total", "NBD replies sent", stats.replies),
        ("reply_batches_total", "calls it took to send the replies", stats.batches),
        ("read_bytes_total", "bytes of successful NBD reads", stats.bytes_read),
        ("written_bytes_total", "bytes of successful NBD writes", stats.bytes_written),
        ("malformed_total", "connections closed because their bytes were not the protocol", stats.malformed),
        ("timed_out_total", "connections closed by a time-out", stats.timed_out),
        ("cut_off_total", "connections closed because they kept from others what they had borrowed", stats.cut_off),
        ("tls_total", "NBD connections over TLS", stats.tls),
        ("tls_failed_total", "NBD connections closed because TLS did not come about", stats.tls_failed),
        ("error_replies_total", "NBD error replies", stats.errors.iter().sum()),
    ];
    for (name, help, value) in counters {
        let name = format!("flashcell_nbd_{name}");
        page.family(&name, COUNTER, help);
        page.counter(&name, "", value);
    }
    let name = "flashcell_nbd_host_cut_off_total";
    page.family(name, COUNTER, "of these, by client host");
    for host in context.front_end.hosts() {
        page.counter(name, &format!("{{host=\"{}\"}}", escaped(&host.name)), host.cut_off);
    }
}

fn tried_again(page: &mut Page, context: &Context) {
    let name = "flashcell_device_tried_again_total";
    page.family(name, COUNTER, "transfers tried again because the kernel was short of memory or requests for them");
    for (device, count) in context.opener.tried_again() {
        page.counter(name, &format!("{{device=\"{}\"}}", escaped(&device)), count);
    }
}

fn latencies(page: &mut Page, context: &Context) {
    let name = "flashcell_device_latency_seconds";
    page.family(name, HISTOGRAM, "from submission to completion of requests that were done");
    let catalog = context.cell.store().catalog();
    for device in context.devices() {
        let Some(member) = device.device_id.and_then(|id| catalog.members.get(&id)) else { continue };
        for (size, verbs) in device.io.snapshot() {
            for verb in verbs.iter().filter(|verb| verb.done > 0) {
                let kind = format!("{:?}", verb.verb).to_lowercase();
                let labels = format!("celldisk=\"{}\",verb=\"{kind}\",size=\"{size}\"", escaped(&member.name));
                histogram(page, name, &labels, &verb.latency_ns);
            }
        }
    }
}

fn histogram(page: &mut Page, name: &str, labels: &str, values: &HistogramSnapshot) {
    for end_ns in LATENCY_NS {
        let count = count_up_to(values, end_ns);
        page.line(format_args!("{name}_bucket{{{labels},le=\"{}\"}} {count}", short(end_ns)));
    }
    page.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {}", values.count));
    page.line(format_args!("{name}_sum{{{labels}}} {}", decimal(values.sum, 9)));
    page.line(format_args!("{name}_count{{{labels}}} {}", values.count));
    page.created(name, &format!("{{{labels}}}"));
}

/// Seconds as bucket ends are written: no more digits than they have, one after the point at least.
fn short(ns: u64) -> String {
    let text = decimal(ns, 9);
    let text = text.trim_end_matches('0');
    if text.ends_with('.') { format!("{text}0") } else { text.to_owned() }
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
        assert_eq!(name_of(definition("N_MB_SENT").unwrap()), "flashcell_n_sent_bytes_total");
        assert_eq!(name_of(definition("FC_BY_USED").unwrap()), "flashcell_fc_by_used_bytes");
    }

    #[test]
    fn lines() {
        let definition = definition("CD_IO_TM_R_SM").unwrap();
        let written = |style| {
            let mut page = Page::new(style, 1_700_000_000_250_000_000);
            head(&mut page, definition);
            line(&mut page, &Sample { definition, object: "a\"b".into(), value: 1_500_000_000 });
            page.text
        };
        expect_test::expect![[r#"
            # HELP flashcell_cd_io_tm_r_sm_seconds_total time of small reads from a cell disk (CD_IO_TM_R_SM)
            # TYPE flashcell_cd_io_tm_r_sm_seconds_total counter
            flashcell_cd_io_tm_r_sm_seconds_total{celldisk="a\"b"} 1.500000000
        "#]]
        .assert_eq(&written(Style::Text));
        expect_test::expect![[r#"
            # HELP flashcell_cd_io_tm_r_sm_seconds time of small reads from a cell disk (CD_IO_TM_R_SM)
            # TYPE flashcell_cd_io_tm_r_sm_seconds counter
            # UNIT flashcell_cd_io_tm_r_sm_seconds seconds
            flashcell_cd_io_tm_r_sm_seconds_total{celldisk="a\"b"} 1.500000000
            flashcell_cd_io_tm_r_sm_seconds_created{celldisk="a\"b"} 1700000000.250000000
        "#]]
        .assert_eq(&written(Style::Open));
        assert_eq!([short(25_000), short(500_000_000), short(10_000_000_000)], ["0.000025", "0.5", "10.0"]);
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
