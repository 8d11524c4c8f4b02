//! What an experiment with redo is told as: a table, JSON, and how the times lie. Text from rows, nothing else.

use super::arm::{Configuration, Outcomes};
use super::chart::{Axis, Chart, Curve, Curves};
use super::told::Told;
use crate::output::json_string;
use crate::redo::plot::{self, POINTS, Series};
use crate::redo::{Moments, Share, Welch, welch};

/// The rare quantile that bounds are about.
const P99_99: Share = Share(9_999, 10_000);

/// One arm, told.
pub(super) struct Row {
    pub(super) experiment: &'static str,
    /// Which of its parts: the disk, and how many sessions.
    pub(super) part: String,
    pub(super) configuration: Configuration,
    /// More about the configuration, if need be.
    pub(super) detail: &'static str,
    pub(super) outcomes: Outcomes,
    /// Against the disk alone in the same part, in percent of its mean: lower and upper end of the 95 % interval.
    pub(super) versus_disk: Option<(f64, f64)>,
    pub(super) welch: Option<Welch>,
    /// Elapsed time of flash alone in the same part, in seconds.
    pub(super) flash_elapsed_s: Option<f64>,
    pub(super) field_elapsed_s: Option<f64>,
}

impl Row {
    pub(super) fn new(
        experiment: &'static str,
        part: String,
        configuration: Configuration,
        detail: &'static str,
        outcomes: Outcomes,
    ) -> Row {
        let (versus_disk, welch, flash_elapsed_s, field_elapsed_s) = (None, None, None, None);
        Row { experiment, part, configuration, detail, outcomes, versus_disk, welch, flash_elapsed_s, field_elapsed_s }
    }

    pub(super) fn name(&self) -> String {
        let Row { configuration, detail, .. } = self;
        if detail.is_empty() { configuration.name() } else { format!("{}, {detail}", configuration.name()) }
    }

    pub(super) fn mean_us(&self) -> f64 {
        self.outcomes.samples.mean_us().unwrap_or(f64::NAN)
    }

    pub(super) fn quantile_us(&self, share: Share) -> f64 {
        self.outcomes.samples.quantile_us(share).unwrap_or(f64::NAN)
    }

    pub(super) fn p99_99_us(&self) -> f64 {
        self.quantile_us(P99_99)
    }

    pub(super) fn moments(&self) -> Moments {
        let variance = self.outcomes.samples.variance_us2().unwrap_or(0.0);
        Moments { count: self.outcomes.samples.count(), mean: self.mean_us(), variance }
    }

    /// Hold it against the disk alone.
    pub(super) fn compare(&mut self, disk: &Moments) {
        self.welch = welch(&self.moments(), disk);
        self.versus_disk = self.welch.map(|w| (100.0 * w.ci_low / disk.mean, 100.0 * w.ci_high / disk.mean));
    }
}

/// Every so manyth point of a density is drawn.
const DRAWN: usize = 4;

/// The rows in each form.
pub(super) fn told(rows: &[Row]) -> Told {
    let charts = rows.chunk_by(|a, b| a.part == b.part).flat_map(charts).collect();
    Told { lines: lines(rows), words: vec![0, 1], objects: objects(rows), charts, verdicts: [0, 0] }
}

/// Of the arms of one part: how dense their times lie, and their percentiles.
fn charts(rows: &[Row]) -> Vec<Chart> {
    let names: Vec<String> = rows.iter().map(Row::name).collect();
    let series: Vec<Series<'_>> =
        rows.iter().zip(&names).map(|(row, name)| Series { name, samples: &row.outcomes.samples }).collect();
    let (Some(first), Some((low, high))) = (rows.first(), plot::range(&series)) else { return Vec::new() };
    let times = |name: &str| Axis {
        name: name.to_owned(),
        low,
        high,
        marks: plot::marks(low, high).into_iter().map(|log| (log, plot::label(10_f64.powf(log)))).collect(),
    };
    let curves = |points: &dyn Fn(&Series<'_>) -> Vec<(f64, f64)>| -> Vec<Curve> {
        series.iter().map(|one| Curve { name: one.name.to_owned(), points: points(one) }).collect()
    };
    let step = (high - low) / (POINTS - 1) as f64;
    let densities = curves(&|one| {
        let density = plot::density(one.samples, low, high);
        let points = density.iter().enumerate().map(|(i, d)| (low + i as f64 * step, *d));
        points.step_by(DRAWN).collect()
    });
    let highest = densities.iter().flat_map(|curve| &curve.points).fold(f64::MIN_POSITIVE, |most, p| most.max(p.1));
    let density = Curves {
        title: format!("{}: density of the times", first.part),
        x: times("time of a redo write (logarithmic)"),
        y: Axis::linear("density, for a decade", highest),
        curves: densities,
        dots: false,
        has_tops: true,
    };
    let nines = rows.iter().map(|row| (row.outcomes.samples.count() as f64).log10()).fold(1.0, f64::max);
    let marks = (0..=nines.floor() as usize).map(|n| (n as f64, plot::nines_label(n))).collect();
    let percentiles = Curves {
        title: format!("{}: percentiles", first.part),
        x: Axis { name: "share of the writes that were no slower".to_owned(), low: 0.0, high: nines, marks },
        y: times("time of a redo write (logarithmic)"),
        curves: curves(&|one| plot::percentiles(one.samples)),
        dots: false,
        has_tops: false,
    };
    vec![Chart::Curves(density), Chart::Curves(percentiles)]
}

/// The table.
fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    let head = [
        "part",
        "configuration",
        "syncs",
        "min",
        "1st qu.",
        "median",
        "mean",
        "3rd qu.",
        "p99.99",
        "max",
        "outliers",
        "flash first",
        "prevented",
        "mean to disk alone, 95 %",
        "elapsed s",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let us = |share| format!("{:.1}", row.quantile_us(share));
        let log = row.outcomes.log;
        lines.push(vec![
            row.part.clone(),
            row.name(),
            row.outcomes.samples.count().to_string(),
            us(Share(0, 1)),
            us(Share(1, 4)),
            us(Share(1, 2)),
            format!("{:.1}", row.mean_us()),
            us(Share(3, 4)),
            us(P99_99),
            us(Share(1, 1)),
            row.outcomes.samples.outliers().to_string(),
            log.map_or_else(|| "-".to_owned(), |l| format!("{:.2} %", percent(l.flash_first, l.redo_writes))),
            log.map_or_else(|| "-".to_owned(), |l| l.prevented.to_string()),
            row.versus_disk.map_or_else(|| "-".to_owned(), |(low, high)| format!("{low:+.2} to {high:+.2} %")),
            format!("{:.2}", row.outcomes.elapsed.as_secs_f64()),
        ]);
    }
    lines
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// The rows as scripts read them, an object each. Times are microseconds where a key says so, else seconds.
fn objects(rows: &[Row]) -> Vec<String> {
    let or_null =
        |value: Option<f64>| value.filter(|v| v.is_finite()).map_or_else(|| "null".to_owned(), |v| format!("{v:.6}"));
    let object = |row: &Row| {
        let samples = &row.outcomes.samples;
        let elapsed_s = row.outcomes.elapsed.as_secs_f64();
        let waited_s = row.mean_us() * samples.count() as f64 / 1e6;
        let us = |share| or_null(samples.quantile_us(share));
        let log = row.outcomes.log.map_or_else(String::new, |l| {
            format!(
                ",\"redo_writes\":{},\"disk_first\":{},\"flash_first\":{},\"skips\":{},\"flash_legs\":{},\"prevented_outliers\":{},\
                 \"actual_outliers\":{}",
                l.redo_writes, l.disk_first, l.flash_first, l.skips, l.flash_legs, l.prevented, l.actual
            )
        });
        let test = row.welch.map_or_else(String::new, |w| {
            format!(
                ",\"t\":{:.4},\"df\":{:.1},\"p_value\":{:e},\"ci_low_us\":{:.4},\"ci_high_us\":{:.4}",
                w.t, w.df, w.p_value, w.ci_low, w.ci_high
            )
        });
        format!(
            "{{\"experiment\":{},\"row\":{},\"configuration\":{},\"elapsed_s\":{elapsed_s:.6},\"ratio_to_all_flash\":{},\
             \"hit_ratio\":null,\"verified_blocks\":0,\"waits\":{{\"log file sync\":{waited_s:.6}}},\"field_elapsed_s\":{},\
             \"count\":{},\"min_us\":{},\"q1_us\":{},\"median_us\":{},\"mean_us\":{},\"q3_us\":{},\"max_us\":{},\"p99_us\":{},\
             \"p99_9_us\":{},\"p99_99_us\":{},\"outliers\":{},\"parts_of_pages\":{}{log}{test}}}",
            json_string(row.experiment),
            json_string(&row.part),
            json_string(&row.name()),
            or_null(row.flash_elapsed_s.map(|flash| elapsed_s / flash)),
            or_null(row.field_elapsed_s),
            samples.count(),
            us(Share(0, 1)),
            us(Share(1, 4)),
            us(Share(1, 2)),
            or_null(samples.mean_us()),
            us(Share(3, 4)),
            us(Share(1, 1)),
            us(Share(99, 100)),
            us(Share(999, 1_000)),
            us(P99_99),
            samples.outliers(),
            row.outcomes.parts_of_pages,
        )
    };
    rows.iter().map(object).collect()
}
