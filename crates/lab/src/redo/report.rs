//! Summaries and comparisons as text and JSON. Text from results, nothing else.

use super::rprint;
use super::samples::{APPROXIMATE_BITS, DISTINCT_MAX};
use super::source::Kind;
use super::summary::{PERCENTILES, Summary};
use super::unit::US_PS;
use super::verdict::{Side, Verdict, effect_percent};
use super::welch::Welch;
use crate::output::{json_string, table};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Kinds of waits that are listed when the one asked for is not there.
const KINDS_SHOWN_MAX: usize = 10;
const DIGITS: usize = 7;

/// `500 ms`: in the largest unit that it is a whole number of.
pub(super) fn time(ps: i64) -> String {
    let units = [("s", 1_000_000 * US_PS), ("ms", 1_000 * US_PS), ("us", US_PS), ("ns", US_PS / 1_000)];
    match units.into_iter().find(|(_, unit)| ps % unit == 0) {
        Some((name, unit)) => format!("{} {name}", ps / unit),
        None => format!("{ps} ps"),
    }
}

fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn number(us: f64) -> String {
    rprint::plain(us, DIGITS)
}

/// What the files are and what of them counts.
fn head(summary: &Summary) -> String {
    let formats: Vec<&str> = summary.formats.iter().map(|format| format.title()).collect();
    let wait = if summary.wait.is_empty() { String::new() } else { format!(" '{}'", summary.wait) };
    let files = if summary.files == 1 { String::new() } else { format!(" in {} files", summary.files) };
    let count = plural(summary.samples.count(), "time");
    format!("{}: {}{wait}, {count}{files}, in us\n", summary.name, formats.join(", "))
}

/// What has to be known of a sample besides its numbers.
fn notes(summary: &Summary, cut_ps: Option<i64>) -> String {
    let samples = &summary.samples;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match summary.sd {
        Some(sd) => write!(text, "Standard deviation {}. ", number(sd)),
        None => Ok(()),
    };
    let (outliers, count) = (samples.outliers(), samples.count());
    let _ = writeln!(text, "Outliers (above {}): {outliers} of {count}.", time(samples.outlier_ps()));
    if let Some(cut) = cut_ps {
        let _ = writeln!(
            text,
            "Left out: {} above {}. What is told is of the others; of outliers it says nothing.",
            plural(summary.left_out, "time"),
            time(cut)
        );
    }
    if !samples.is_exact() {
        let _ = writeln!(
            text,
            "Approximate: of more than {DISTINCT_MAX} distinct times quartiles and percentiles are known to 1/{}.",
            1_u32 << (APPROXIMATE_BITS + 1)
        );
    }
    if samples.below_zero() > 0 {
        let _ = writeln!(text, "Below zero: {}. No redo time is.", plural(samples.below_zero(), "time"));
    }
    let malformed = &summary.malformed;
    if malformed.count > 0 {
        let _ = writeln!(text, "Malformed, not counted: {}.", plural(malformed.count, "line"));
        for line in &malformed.first {
            let _ = writeln!(text, "  {line}");
        }
        if malformed.count > malformed.first.len() as u64 {
            text.push_str("  ...\n");
        }
    }
    text
}

/// One sample, for people.
pub(super) fn summary(summary: &Summary, cut_ps: Option<i64>) -> String {
    let mut lines = vec![["percentile", "us", "times above"].map(str::to_owned)];
    for ((name, _, share), us) in PERCENTILES.iter().zip(&summary.percentiles) {
        lines.push([(*name).to_owned(), number(*us), summary.samples.beyond(*share).to_string()]);
    }
    format!("{}\n{}\n{}\n{}", head(summary), rprint::summary(&summary.six), table(&lines, &[0]), notes(summary, cut_ps))
}

/// Two samples beside each other, for people.
pub(super) fn comparison(
    a: &Summary,
    b: &Summary,
    test: Option<&Welch>,
    verdict: &Verdict,
    cut_ps: Option<i64>,
) -> String {
    let mut text = String::new();
    for (side, summary) in [("A", a), ("B", b)] {
        let _ =
            writeln!(text, "{side}: {}\n{}\n{}", head(summary), rprint::summary(&summary.six), notes(summary, cut_ps));
    }
    let mut lines = vec![["", "A us", "B us", "A to B"].map(str::to_owned)];
    let mut line = |name: &str, a: f64, b: f64| {
        let to = if b > 0.0 { format!("{:+.2} %", (a - b) / b * 100.0) } else { "-".to_owned() };
        let to = if to == "-0.00 %" { "+0.00 %".to_owned() } else { to };
        lines.push([name.to_owned(), number(a), number(b), to]);
    };
    line("median", a.median_us(), b.median_us());
    line("mean", a.mean_us(), b.mean_us());
    for ((name, _, _), (a, b)) in PERCENTILES.iter().zip(a.percentiles.iter().zip(&b.percentiles)) {
        line(name, *a, *b);
    }
    text.push_str(&table(&lines, &[0]));
    text.push('\n');
    text.push_str(&match test {
        Some(test) => rprint::t_test([&a.name, &b.name], [a.mean_us(), b.mean_us()], test),
        None => "No t-test: it takes two times on each side, not all the same.\n".to_owned(),
    });
    let [mean, tail, all] = &verdict.sentences;
    let _ = writeln!(text, "\nMean: {mean}.\nTail: {tail}.\nVerdict: {all}.");
    text
}

/// What there was to wait for, by time: a table in a message.
pub(super) fn kinds(kinds: &BTreeMap<Vec<u8>, Kind>) -> String {
    let mut all: Vec<(&Vec<u8>, &Kind)> = kinds.iter().collect();
    all.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.ps));
    let mut lines = vec![["wait", "count", "time s"].map(str::to_owned)];
    for (name, kind) in all.iter().take(KINDS_SHOWN_MAX) {
        let ms = kind.ps / i128::from(1_000 * US_PS);
        let seconds = format!("{}.{:03}", ms / 1_000, ms % 1_000);
        lines.push([String::from_utf8_lossy(name).into_owned(), kind.count.to_string(), seconds]);
    }
    let mut text = table(&lines, &[0]);
    if all.len() > KINDS_SHOWN_MAX {
        let _ = writeln!(text, "and {} more", all.len() - KINDS_SHOWN_MAX);
    }
    text.trim_end().to_owned()
}

/// A number of JSON, with all its digits.
fn json_number(x: f64) -> String {
    match x.abs() {
        _ if !x.is_finite() => "null".to_owned(),
        0.0 => "0".to_owned(),
        1e-5..1e16 => x.to_string(),
        _ => format!("{x:e}"),
    }
}

fn json_optional(x: Option<f64>) -> String {
    x.map_or_else(|| "null".to_owned(), json_number)
}

fn json_object(summary: &Summary) -> String {
    let [min, q1, median, mean, q3, max] = summary.six.map(json_number);
    let samples = &summary.samples;
    let mut text = format!(
        "{{\"count\":{},\"min\":{min},\"q1\":{q1},\"median\":{median},\"mean\":{mean},\"q3\":{q3},\"max\":{max},\"sd\":{}",
        samples.count(),
        json_optional(summary.sd)
    );
    for ((_, key, _), us) in PERCENTILES.iter().zip(&summary.percentiles) {
        let _ = write!(text, ",\"{key}\":{}", json_number(*us));
    }
    let formats: Vec<String> = summary.formats.iter().map(|format| json_string(&format.to_string())).collect();
    let _ = write!(
        text,
        ",\"outliers\":{},\"outlier_us\":{},\"unit\":\"us\",\"exact\":{},\"left_out\":{},\"malformed\":{},\"name\":{},\
         \"files\":{},\"formats\":[{}],\"wait\":{}}}",
        samples.outliers(),
        json_number(samples.outlier_ps() as f64 / US_PS as f64),
        samples.is_exact(),
        summary.left_out,
        summary.malformed.count,
        json_string(&summary.name),
        summary.files,
        formats.join(","),
        json_string(&summary.wait),
    );
    text
}

/// One sample, as scripts read it.
pub(super) fn summary_json(summary: &Summary) -> String {
    format!("{}\n", json_object(summary))
}

/// Two samples, as scripts read them.
pub(super) fn comparison_json(a: &Summary, b: &Summary, test: Option<&Welch>, verdict: &Verdict) -> String {
    let of = |part: fn(&Welch) -> f64| json_optional(test.map(part));
    let [mean, tail, all] = &verdict.sentences;
    let better = match verdict.better {
        Some(Side::A) => "\"a\"",
        Some(Side::B) => "\"b\"",
        None => "null",
    };
    format!(
        "{{\"a\":{},\n\"b\":{},\n\"t\":{},\"df\":{},\"p_value\":{},\"ci_low\":{},\"ci_high\":{},\"difference\":{},\
         \"effect_percent\":{},\"unit\":\"us\",\"better\":{better},\"on_mean\":{},\"on_tail\":{},\"verdict\":{}}}\n",
        json_object(a),
        json_object(b),
        of(|t| t.t),
        of(|t| t.df),
        of(|t| t.p_value),
        of(|t| t.ci_low),
        of(|t| t.ci_high),
        json_number(a.mean_us() - b.mean_us()),
        json_optional(effect_percent(&a.moments(), &b.moments())),
        json_string(mean),
        json_string(tail),
        json_string(all),
    )
}
