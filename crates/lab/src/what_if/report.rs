//! What it is told as: tables that are Markdown too, the advice in words, JSON. Text from figures, nothing else.

use super::WhatIfOptions;
use super::advice::{self, Advice, Facts, about, size, size_text};
use super::arm::{Placement, Run, Setting, mode_name};
use super::driver::Times;
use super::prices::Prices;
use super::workload::Workload;
use crate::output::{json_string, table};
use std::fmt::Write;

const DAY_S: f64 = 86_400.0;
const DAYS_A_YEAR: f64 = 365.0;
/// What is measured may deviate by so much from what was foretold, or by the spread of what was measured.
const WITHIN: f64 = 0.10;

/// A model of the disk that is so many times slower or faster than what was recorded is told.
const FAR_OFF: u64 = 2;

/// Requests that pass the cache by for one reason are told where they are more than one in so many of all.
const PASSED_ONE_IN: u64 = 50;

/// How much is missed with so much flash, without time.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurvePoint {
    pub(super) share_ppm: u64,
    pub(super) bytes: u64,
    pub(super) miss_ppm: u64,
    pub(super) read_hit_ppm: Option<u64>,
}

/// Everything there is to tell.
pub(super) struct Report<'a> {
    pub(super) name: String,
    pub(super) options: &'a WhatIfOptions,
    pub(super) workload: &'a Workload,
    pub(super) setting: &'a Setting,
    pub(super) runs: Vec<Run>,
    pub(super) curve: Vec<CurvePoint>,
    /// By configuration; empty without `--real`.
    pub(super) measured: Vec<Vec<Run>>,
    pub(super) prices: Prices,
}

/// A figure that is compared.
struct Compared {
    name: &'static str,
    foretold: f64,
    /// In order of size.
    measured: Vec<f64>,
}

impl Compared {
    fn median(&self) -> f64 {
        let n = self.measured.len();
        (self.measured[(n - 1) / 2] + self.measured[n / 2]) / 2.0
    }

    fn deviation(&self) -> f64 {
        if self.median() > 0.0 { self.foretold / self.median() - 1.0 } else { 0.0 }
    }

    /// Within a tenth, or within what the runs themselves spread over.
    fn agrees(&self) -> bool {
        let (low, high) = (self.measured[0], self.measured[self.measured.len() - 1]);
        self.deviation().abs() <= WITHIN || (low..=high).contains(&self.foretold)
    }
}

fn ms(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| figures(ns as f64 / 1e6))
}

/// With three figures.
fn figures(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// How long flash lasts, in the unit that fits.
pub(super) fn lasts(years: Option<f64>) -> String {
    match years {
        None => "-".to_owned(),
        Some(years) if years > 100.0 => "> 100 years".to_owned(),
        Some(years) if years >= 1.0 => format!("{} years", figures(years)),
        Some(years) if years * DAYS_A_YEAR >= 1.0 => format!("{} days", figures(years * DAYS_A_YEAR)),
        Some(years) => format!("{} hours", figures(years * DAYS_A_YEAR * 24.0)),
    }
}

fn ppm(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ppm| format!("{:.1} %", ppm as f64 / 1e4))
}

impl Report<'_> {
    fn flash_bytes(&self, placement: Placement) -> u64 {
        match placement {
            Placement::Disk => 0,
            Placement::Cached { flash_bytes, .. } => flash_bytes,
            Placement::Flash => self.workload.span_bytes(),
        }
    }

    /// Bytes of flash that are bought: the drive's, where that is stated and has room.
    fn bought_bytes(&self, placement: Placement) -> u64 {
        match self.flash_bytes(placement) {
            0 => 0,
            bytes => bytes.max(self.options.drive_bytes.unwrap_or(0)),
        }
    }

    /// Bytes written to flash: all that is written where everything is on flash.
    fn written(&self, run: &Run) -> u64 {
        match run.placement {
            Placement::Flash => self.workload.devices.iter().map(|device| device.written_bytes).sum(),
            Placement::Disk | Placement::Cached { .. } => run.counts.flash_bytes,
        }
    }

    /// Seconds in which the workload does what it does: those of the trace where it tells them, as fast as they are replayed.
    fn seconds(&self, run: &Run) -> f64 {
        let by_trace = self.workload.span_ns.map(|ns| {
            let milli = self.setting.pace.speed_milli.unwrap_or(1000);
            ns as f64 / 1e9 * 1000.0 / milli as f64
        });
        by_trace.unwrap_or(run.tally.elapsed_ns as f64 / 1e9).max(1e-9)
    }

    fn years(&self, run: &Run) -> Option<f64> {
        let device = &self.options.devices.flash;
        let (written, bought) = (self.written(run) as f64, self.bought_bytes(run.placement));
        // A device that says what its cells bear is worn by what it programs; another is rated by the table.
        let rated = match device.endurance() {
            Some(endurance) => endurance.writable_bytes(bought, Some(run.counts.inside)),
            None => self.prices.flash(&device.price_names()).rated_bytes(bought)?,
        };
        (written > 0.0).then(|| rated / (written / self.seconds(run) * DAY_S * DAYS_A_YEAR))
    }

    fn cost(&self, run: &Run) -> f64 {
        let (disk, flash) = (&self.options.devices.disk.price_names(), &self.options.devices.flash.price_names());
        let on_flash = self.prices.flash(flash).price(self.bought_bytes(run.placement));
        let on_disk = self.prices.disk(disk).price(self.workload.span_bytes());
        if run.placement == Placement::Flash { on_flash } else { on_disk + on_flash }
    }

    fn advice(&self) -> Advice {
        let disk_run = self.runs.iter().find(|run| run.placement == Placement::Disk);
        let facts = Facts {
            workload: self.workload,
            runs: &self.runs,
            prices: &self.prices,
            disk: self.prices.disk(&self.options.devices.disk.price_names()),
            flash: self.prices.flash(&self.options.devices.flash.price_names()),
            drive_bytes: self.options.drive_bytes.unwrap_or(0),
            years: self.runs.iter().map(|run| self.years(run)).collect(),
            seconds: disk_run.map_or(1.0, |run| self.seconds(run)),
        };
        advice::advise(&facts)
    }

    /// Of each configuration what is compared; none without measurements.
    fn compared(&self) -> Vec<(Placement, Vec<Compared>)> {
        let quantile = |times: &Times, milli| times.quantile_ns(milli).map(|ns| ns as f64 / 1e6);
        type Figure<'f> = (&'static str, Box<dyn Fn(&Run) -> Option<f64> + 'f>);
        let figures: [Figure<'_>; 7] = [
            ("reads hit, %", Box::new(|run| run.hit_ppm().map(|ppm| ppm as f64 / 1e4))),
            ("elapsed, s", Box::new(|run| Some(run.tally.elapsed_ns as f64 / 1e9))),
            ("read p50, ms", Box::new(|run| quantile(&run.tally.reads, 500))),
            ("read p99, ms", Box::new(|run| quantile(&run.tally.reads, 990))),
            ("write p50, ms", Box::new(|run| quantile(&run.tally.writes, 500))),
            ("write p99, ms", Box::new(|run| quantile(&run.tally.writes, 990))),
            (
                "written to flash, MB",
                Box::new(|run| run.placement.is_cached().then_some(run.counts.flash_bytes as f64 / 1e6)),
            ),
        ];
        let of = |(run, measured): (&Run, &Vec<Run>)| {
            let compared = figures.iter().filter_map(|(name, figure)| {
                let mut values: Vec<f64> = measured.iter().filter_map(figure).collect();
                values.sort_by(f64::total_cmp);
                let foretold = figure(run)?;
                (!values.is_empty()).then_some(Compared { name, foretold, measured: values })
            });
            (run.placement, compared.collect())
        };
        self.runs.iter().zip(&self.measured).map(of).collect()
    }

    /// Whether what was measured is what was foretold.
    pub(super) fn agrees(&self) -> bool {
        self.compared().iter().all(|(_, compared)| compared.iter().all(Compared::agrees))
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}\n", self.head());
        text.push_str(&self.configurations());
        if let Some(note) = self.far_off() {
            let _ = writeln!(text, "\n{note}");
        }
        let _ = writeln!(text, "\n{}", self.basis());
        text.push_str(&self.passed());
        if !self.curve.is_empty() {
            let _ = writeln!(text, "\nWhat misses by size, all requests, without time:\n\n{}", self.curve_table());
        }
        if !self.measured.is_empty() {
            let _ = writeln!(text, "\n{}", self.comparison());
        }
        let advice = self.advice();
        text.push_str("\nAdvice\n\n");
        for sentence in &advice.summary {
            let _ = writeln!(text, "- {sentence}");
        }
        text.push('\n');
        let mut lines = vec![["device", "range", "advice", "because"].map(str::to_owned)];
        for line in &advice.lines {
            let range = line.range.map_or_else(
                || "all of it".to_owned(),
                |(from, len)| format!("{} {}", size_text(from), size_text(len)),
            );
            lines.push([line.device.clone(), range, line.verdict.name().to_owned(), line.reason.clone()]);
        }
        text.push_str(&table(&lines, &[0, 1, 2, 3]));
        let pins: Vec<String> = advice.lines.iter().filter_map(pin).collect();
        if !pins.is_empty() {
            let _ = write!(text, "\nTo do so on a cell:\n\n{}\n", pins.join("\n"));
        }
        text
    }

    fn head(&self) -> String {
        let workload = self.workload;
        let pace = match self.setting.pace {
            pace if pace.open => format!("open loop at {} times the speed of the trace", self.speed()),
            pace if pace.speed_milli.is_some() => {
                format!(
                    "closed loop, {} sessions, no earlier than at {} times the speed of the trace",
                    pace.sessions,
                    self.speed()
                )
            }
            pace => format!("closed loop, {} sessions as fast as they are answered", pace.sessions),
        };
        format!(
            "{}: {} requests touch {} of {}; {}{}",
            self.name,
            workload.requests(),
            about(workload.footprint_bytes()),
            about(workload.span_bytes()),
            pace,
            if self.setting.warm {
                "; warm: the trace has been through once"
            } else {
                "; cold: the cache is empty at the start"
            }
        )
    }

    fn speed(&self) -> String {
        figures(self.setting.pace.speed_milli.unwrap_or(1000) as f64 / 1000.0)
    }

    fn configurations(&self) -> String {
        let cost = format!("cost, {}", self.prices.currency);
        let head = [
            "configuration",
            "flash",
            "reads hit",
            "elapsed, s",
            "read p50, ms",
            "read p99, ms",
            "write p50, ms",
            "write p99, ms",
            "written to flash",
            "per client byte",
            "flash lasts",
            &cost,
        ];
        let has_flushes = self.runs.iter().any(|run| run.tally.flushes.count() > 0);
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        if let Some(recorded) = &self.workload.recorded {
            let mut line = vec!["-".to_owned(); head.len()];
            "as recorded".clone_into(&mut line[0]);
            let known = [recorded.read_p50_ns, recorded.read_p99_ns, recorded.write_p50_ns, recorded.write_p99_ns];
            line.splice(4..8, known.map(ms));
            lines.push(line);
        }
        if has_flushes {
            lines[0].insert(8, "flush p99, ms".to_owned());
            let recorded = self.workload.recorded.and_then(|recorded| recorded.flush_p99_ns);
            lines.iter_mut().skip(1).for_each(|line| line.insert(8, ms(recorded)));
        }
        for run in &self.runs {
            let (tally, written) = (&run.tally, self.written(run));
            let is_on_flash = run.placement != Placement::Disk;
            let only_flash = |text: String| if is_on_flash { text } else { "-".to_owned() };
            let mut line = vec![
                run.placement.name(),
                only_flash(size(self.flash_bytes(run.placement))),
                ppm(run.hit_ppm()),
                figures(tally.elapsed_ns as f64 / 1e9),
                ms(tally.reads.quantile_ns(500)),
                ms(tally.reads.quantile_ns(990)),
                ms(tally.writes.quantile_ns(500)),
                ms(tally.writes.quantile_ns(990)),
                only_flash(about(written)),
                only_flash(figures(written as f64 / self.workload.client_bytes().max(1) as f64)),
                only_flash(lasts(self.years(run))),
                figures(self.cost(run)),
            ];
            if has_flushes {
                line.insert(8, ms(tally.flushes.quantile_ns(990)));
            }
            lines.push(line);
        }
        table(&lines, &[0])
    }

    /// Where the disk alone is foretold to be another one than what was recorded.
    fn far_off(&self) -> Option<String> {
        let recorded_ns = self.workload.recorded?.read_p50_ns?;
        let disk = self.runs.iter().find(|run| run.placement == Placement::Disk)?;
        let foretold_ns = disk.tally.reads.quantile_ns(500)?;
        if !is_far_off(recorded_ns, foretold_ns) {
            return None;
        }
        let pace = match self.setting.pace.speed_milli {
            None => {
                " Asked as fast as they are answered, reads wait for one another: `--speed 1` asks as the trace does."
            }
            Some(_) => "",
        };
        Some(format!(
            "The disk alone is foretold to take {} ms for a read (p50), and {} ms were recorded. Unless the recording is of a cell with flash, the model is of another disk: \
             `--devices fixed:{}us:PARALLEL,FLASH` is a start, with as many at a time as the disk takes.{pace}",
            ms(Some(foretold_ns)),
            ms(Some(recorded_ns)),
            recorded_ns.div_ceil(1000).max(1)
        ))
    }

    fn basis(&self) -> String {
        let (disk, flash) = (&self.options.devices.disk, &self.options.devices.flash);
        let over = match self.workload.span_ns {
            Some(_) => "the time the trace took",
            None => "the time elapsed, since the trace tells none",
        };
        let (disk_price, flash_price) =
            (self.prices.disk(&disk.price_names()), self.prices.flash(&flash.price_names()));
        let rated = match (flash.endurance(), flash_price.dwpd, flash_price.warranty_years) {
            (Some(endurance), ..) => format!("worn after {} erases", endurance.erases),
            (None, Some(dwpd), Some(years)) => format!("rated for {dwpd} drive writes a day over {years} years"),
            _ => "its endurance is not in the table".to_owned(),
        };
        let pace = match (self.workload.span_ns, self.setting.pace.speed_milli) {
            (Some(ns), None) => format!(
                " The trace took {} s; asked as fast as it answers, a medium is busy all the time: --speed 1 keeps the pauses of the trace.",
                figures(ns as f64 / 1e9)
            ),
            _ => String::new(),
        };
        let (disk, flash) = (disk.name(), flash.name());
        format!(
            "Disk {disk}, flash {flash}, in virtual time.{pace} Prices {}: {} at {} a GB, {} at {}, {rated}; it lasts as long as it may be written to, \
             if the workload goes on day and night as over {over}.",
            self.prices.name, disk_price.text, disk_price.per_gb, flash_price.text, flash_price.per_gb
        )
    }

    /// Why the cache did not serve or keep what it might have, where that was much.
    fn passed(&self) -> String {
        let mut text = String::new();
        let much = self.workload.requests() / PASSED_ONE_IN;
        for run in &self.runs {
            for (count, why) in run.passed.iter().filter(|(count, _)| *count > much) {
                let flash = size(self.flash_bytes(run.placement));
                // Writing to a string cannot fail.
                let _ = writeln!(text, "- {}, {flash}: {count} {why}", run.placement.name());
            }
        }
        if text.is_empty() { text } else { format!("\nWhat passed the cache by:\n\n{text}") }
    }

    fn curve_table(&self) -> String {
        let mut lines = vec![["share of the data", "flash", "misses", "reads hit"].map(str::to_owned)];
        for point in &self.curve {
            lines.push([
                format!("{} %", figures_of_share(point.share_ppm)),
                about(point.bytes),
                ppm(Some(point.miss_ppm)),
                ppm(point.read_hit_ppm),
            ]);
        }
        table(&lines, &[])
    }

    fn comparison(&self) -> String {
        let runs = self.measured.first().map_or(0, Vec::len);
        let mut lines = vec![
            ["configuration", "flash", "", "foretold", "measured", "from", "to", "deviation", ""].map(str::to_owned),
        ];
        for (placement, compared) in self.compared() {
            for one in compared {
                let flash = size(self.flash_bytes(placement));
                lines.push([
                    placement.name(),
                    if placement == Placement::Disk { "-".to_owned() } else { flash },
                    one.name.to_owned(),
                    figures(one.foretold),
                    figures(one.median()),
                    figures(one.measured[0]),
                    figures(one.measured[one.measured.len() - 1]),
                    format!("{:+.1} %", 100.0 * one.deviation()),
                    if one.agrees() { "agrees" } else { "**off**" }.to_owned(),
                ]);
            }
        }
        format!(
            "Against a served cell on real files, {runs} runs, their median (agrees: within {:.0} %, or within the spread):\n\n{}",
            100.0 * WITHIN,
            table(&lines, &[0, 2, 8])
        )
    }

    pub(super) fn json(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "null".to_owned(), |value| format!("{value:.6}"));
        let ns = |value: Option<u64>| value.map_or_else(|| "null".to_owned(), |ns| ns.to_string());
        let compared = self.compared();
        let configuration = |(n, run): (usize, &Run)| {
            let (tally, mode) = (
                &run.tally,
                match run.placement {
                    Placement::Disk => "disk",
                    Placement::Flash => "flash",
                    Placement::Cached { mode, .. } => mode_name(mode),
                },
            );
            let real = compared.get(n).map_or_else(String::new, |(_, compared)| {
                let one = |one: &Compared| {
                    let values: Vec<String> = one.measured.iter().map(|value| number(Some(*value))).collect();
                    format!(
                        "{{\"figure\":{},\"foretold\":{},\"measured\":[{}],\"deviation\":{},\"agrees\":{}}}",
                        json_string(one.name),
                        number(Some(one.foretold)),
                        values.join(","),
                        number(Some(one.deviation())),
                        one.agrees()
                    )
                };
                format!(",\"real\":[{}]", compared.iter().map(one).collect::<Vec<_>>().join(","))
            });
            format!(
                "{{\"configuration\":{},\"mode\":{},\"flash_bytes\":{},\"read_hit_ratio\":{},\"elapsed_s\":{},\
                 \"read_p50_ns\":{},\"read_p99_ns\":{},\"write_p50_ns\":{},\"write_p99_ns\":{},\"flush_p99_ns\":{},\
                 \"flash_bytes_written\":{},\"flash_bytes_per_client_byte\":{},\"lifetime_years\":{},\"cost\":{}{real}}}",
                json_string(&run.placement.name()),
                json_string(mode),
                self.flash_bytes(run.placement),
                number(run.hit_ppm().map(|ppm| ppm as f64 / 1e6)),
                number(Some(tally.elapsed_ns as f64 / 1e9)),
                ns(tally.reads.quantile_ns(500)),
                ns(tally.reads.quantile_ns(990)),
                ns(tally.writes.quantile_ns(500)),
                ns(tally.writes.quantile_ns(990)),
                ns(tally.flushes.quantile_ns(990)),
                self.written(run),
                number(Some(self.written(run) as f64 / self.workload.client_bytes().max(1) as f64)),
                number(self.years(run)),
                number(Some(self.cost(run))),
            )
        };
        let configurations: Vec<String> = self.runs.iter().enumerate().map(configuration).collect();
        let point = |point: &CurvePoint| {
            format!(
                "{{\"flash_bytes\":{},\"miss_ratio\":{},\"read_hit_ratio\":{}}}",
                point.bytes,
                number(Some(point.miss_ppm as f64 / 1e6)),
                number(point.read_hit_ppm.map(|ppm| ppm as f64 / 1e6))
            )
        };
        let advice = self.advice();
        let line = |line: &advice::Line| {
            let (offset, len) = line.range.map_or((None, None), |(offset, len)| (Some(offset), Some(len)));
            format!(
                "{{\"device\":{},\"offset_bytes\":{},\"bytes\":{},\"advice\":{},\"because\":{}}}",
                json_string(&line.device),
                ns(offset),
                ns(len),
                json_string(line.verdict.name()),
                json_string(&line.reason)
            )
        };
        let recorded = self.workload.recorded.map_or_else(
            || "null".to_owned(),
            |of| {
                format!(
                    "{{\"read_p50_ns\":{},\"read_p99_ns\":{},\"write_p50_ns\":{},\"write_p99_ns\":{},\"flush_p99_ns\":{}}}",
                    ns(of.read_p50_ns),
                    ns(of.read_p99_ns),
                    ns(of.write_p50_ns),
                    ns(of.write_p99_ns),
                    ns(of.flush_p99_ns)
                )
            },
        );
        let joined = |items: Vec<String>| items.join(",\n  ");
        format!(
            "{{\"trace\":{},\"requests\":{},\"footprint_bytes\":{},\"span_bytes\":{},\"client_bytes\":{},\"disk\":{},\"flash\":{},\
             \"prices\":{},\"currency\":{},\"chosen\":{},\"recorded\":{recorded},\n \"configurations\":[\n  {}],\n \"curve\":[\n  {}],\n \"summary\":[\n  {}],\n \
             \"advice\":[\n  {}]}}\n",
            json_string(&self.name),
            self.workload.requests(),
            self.workload.footprint_bytes(),
            self.workload.span_bytes(),
            self.workload.client_bytes(),
            json_string(self.options.devices.disk.name()),
            json_string(self.options.devices.flash.name()),
            json_string(&self.prices.name),
            json_string(&self.prices.currency),
            advice.chosen.map_or_else(|| "null".to_owned(), |n| n.to_string()),
            joined(configurations),
            joined(self.curve.iter().map(point).collect()),
            joined(advice.summary.iter().map(|text| json_string(text)).collect()),
            joined(advice.lines.iter().map(line).collect()),
        )
    }
}

fn is_far_off(one_ns: u64, other_ns: u64) -> bool {
    one_ns.max(other_ns) > one_ns.min(other_ns).saturating_mul(FAR_OFF)
}

fn figures_of_share(share_ppm: u64) -> String {
    format!("{}", share_ppm as f64 / 1e4)
}

/// The command that does what a line says, for what is kept.
fn pin(line: &advice::Line) -> Option<String> {
    let (offset, len) = line.range?;
    let policy = match line.verdict {
        advice::Verdict::Keep => "keep",
        advice::Verdict::Leave => "none",
        advice::Verdict::Flash | advice::Verdict::Cache => return None,
    };
    let offset = if offset == 0 { "0".to_owned() } else { size_text(offset) };
    Some(format!("    flashcell pin {} {offset} {} {policy}", line.device, size_text(len)))
}

#[cfg(test)]
mod tests {
    use super::is_far_off;

    #[test]
    fn far_off_is_beyond_twice_either_way() {
        assert!(!is_far_off(1000, 2000) && !is_far_off(2000, 1000) && !is_far_off(0, 0));
        assert!(is_far_off(1000, 2001) && is_far_off(2001, 1000) && is_far_off(0, 1));
    }
}
