//! S1 of the field: sessions that update and commit, with the flash log in each of its modes, on three disks.
//!
//! The disk with a write cache takes as long as S1's did without flash logging (its summary, as quantiles), the flash as long as lets it
//! win about as many races as it did there. What S1 says of the tail is nothing, its data were cut at 4 ms; the tails here are made up.

use super::arm::{Arm, Configuration};
use super::medium::{Model, Quantiles, Stalls};
use super::report::{self, Row};
use super::{Bound, Experiment, RunError, RunOptions};
use flashlog::Mode;
use std::time::Duration;

pub(super) const NAME: &str = "redo-s1";
pub(super) const ABOUT: &str = "commits on three disks, the flash log in every mode against disk and flash alone (S1)";
/// Commits of an arm unless told otherwise.
pub(super) const SYNCS: u64 = 20_000;
/// S1 had 20.
const SESSIONS: [usize; 4] = [1, 10, 20, 100];

const WRITE_CACHE: Quantiles = &[(0, 10_000), (500_000_000, 20_000), (999_000_000, 60_000), (1_000_000_000, 400_000)];
/// S1 without flash logging: 29, 435, 481, 535, at most 3,998 us; mean 508.7, deviation about 176.
const S1_DISK: Quantiles = &[
    (0, 15_000),
    (10_000_000, 300_000),
    (250_000_000, 415_000),
    (500_000_000, 461_000),
    (750_000_000, 515_000),
    (950_000_000, 700_000),
    (990_000_000, 1_150_000),
    (999_000_000, 2_200_000),
    (1_000_000_000, 3_980_000),
];
/// Flash of 2010: no quicker than a disk with a controller cache.
const S1_FLASH: Quantiles = &[
    (0, 150_000),
    (20_000_000, 420_000),
    (250_000_000, 620_000),
    (500_000_000, 720_000),
    (750_000_000, 860_000),
    (990_000_000, 1_500_000),
    (999_900_000, 2_500_000),
    (1_000_000_000, 4_000_000),
];
const SLOW: Quantiles =
    &[(0, 2_000_000), (500_000_000, 4_000_000), (990_000_000, 7_000_000), (1_000_000_000, 12_000_000)];
const NOTHING: Quantiles = &[(0, 0), (1_000_000_000, 0)];

const CACHED: Model = Model {
    volatile_cache: true,
    write: WRITE_CACHE,
    flush: S1_DISK,
    ns_per_kib: 200,
    parallel: 32,
    claims_page_bytes: 512,
    page_bytes: 512,
    part_of_page: NOTHING,
    stalls: None,
};
const STALLS: Stalls = Stalls {
    every: Duration::from_secs(3),
    length: (Duration::from_millis(200), Duration::from_secs(2)),
    writes: false,
};
const FLASH: Model = Model {
    volatile_cache: false,
    write: S1_FLASH,
    flush: NOTHING,
    ns_per_kib: 1_000,
    parallel: 16,
    claims_page_bytes: 4096,
    page_bytes: 4096,
    part_of_page: NOTHING,
    stalls: None,
};

/// The disks: name, what it costs.
fn disks() -> [(&'static str, Model); 4] {
    [
        ("healthy", CACHED),
        ("stalls", Model { stalls: Some(STALLS), ..CACHED }),
        ("hangs", Model { stalls: Some(Stalls { writes: true, ..STALLS }), ..CACHED }),
        ("4 ms", Model { volatile_cache: false, write: SLOW, flush: NOTHING, parallel: 64, ..CACHED }),
    ]
}

/// An update and its commit. What a stall of two seconds leaves unflushed keeps within the log's memory.
const RECORD_BYTES: u64 = 1024;
/// An update between two commits.
const THINK: Duration = Duration::from_millis(1);

fn configurations() -> Vec<Configuration> {
    let modes = [Mode::Off, Mode::Race, Mode::Hedge, Mode::Flash, Mode::Auto];
    let log = modes.into_iter().map(Configuration::Log);
    [Configuration::Disk, Configuration::Flash].into_iter().chain(log).collect()
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let known = disks().map(|(name, _)| name);
    if let Some(name) = options.disks.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(RunError::NoDisk { name: name.clone(), known: known.join(", ") });
    }
    let sessions = if options.sessions.is_empty() { SESSIONS.to_vec() } else { options.sessions.clone() };
    let mut rows: Vec<Row> = Vec::new();
    let mut bounds = Vec::new();
    for (name, disk) in
        disks().into_iter().filter(|(name, _)| options.disks.is_empty() || options.disks.iter().any(|d| d == name))
    {
        for &sessions in &sessions {
            let part = format!("{name}, {sessions} sessions");
            let first = rows.len();
            for configuration in configurations() {
                let arm = Arm {
                    seed: options.seed,
                    configuration,
                    disk,
                    flash: FLASH,
                    sessions,
                    syncs: options.syncs.unwrap_or(SYNCS),
                    record_bytes: RECORD_BYTES,
                    think: THINK,
                };
                rows.push(super::measure(NAME, part.clone(), "", arm, tell)?);
            }
            super::compare(&mut rows[first..]);
            bounds.extend(judge(name, &rows[first..]));
        }
    }
    Ok(Experiment { told: report::told(&rows), bounds, notes: field_table() })
}

/// What the design asks of the log, held against one part.
fn judge(disk: &str, rows: &[Row]) -> Vec<Bound> {
    let of = |configuration| rows.iter().find(|row| row.configuration == configuration);
    let mut bounds = Vec::new();
    let Some(flash) = of(Configuration::Flash) else { return bounds };
    for row in rows {
        if let Some(log) = row.outcomes.log {
            bounds.push(Bound::of(row, "firsts and skips are the redo writes", log.adds_up(), format!("{log:?}")));
        }
    }
    for mode in [Mode::Auto, Mode::Hedge] {
        let Some(row) = of(Configuration::Log(mode)) else { continue };
        match disk {
            "healthy" => {
                let (low, high) = row.versus_disk.unwrap_or((f64::NAN, f64::NAN));
                let text = format!("mean {low:+.3} to {high:+.3} % of the disk's");
                // An interval wider than the bound says nothing.
                if high - low < 1.0 {
                    bounds.push(Bound::of(row, "no slower than the disk by more than 0.5 %", high <= 0.5, text));
                }
            }
            "stalls" | "hangs" => {
                let delay_us =
                    of(Configuration::Disk).map_or(f64::NAN, |disk| disk.quantile_us(crate::redo::Share(95, 100)));
                let bound_us = delay_us + 1.1 * flash.p99_99_us();
                let text = format!("p99.99 {:.0} us, bound {bound_us:.0} us", row.p99_99_us());
                bounds.push(Bound::of(row, "p99.99 within delay and flash", row.p99_99_us() <= bound_us, text));
            }
            _ if mode == Mode::Auto => {
                let ratio = row.mean_us() / flash.mean_us();
                bounds.push(Bound::of(
                    row,
                    "within 15 % of flash alone",
                    ratio <= 1.15,
                    format!("{ratio:.3} of its mean"),
                ));
            }
            _ => {}
        }
    }
    bounds
}

fn field_table() -> String {
    "S1 as the field measured it (us; 4,000,000 syncs an arm, cut at 4 ms, 20 sessions):\n\n\
     | configuration | min | 1st qu. | median | mean | 3rd qu. | max |\n\
     |---------------|----:|--------:|-------:|-----:|--------:|----:|\n\
     | flash logging on (the vendor's race) | 1.0 | 452 | 500 | 542.4 | 567 | 3999 |\n\
     | flash logging off | 29.0 | 435 | 481 | 508.7 | 535 | 3998 |\n\n\
     Its race made the mean 6.6 % worse (95 %: 33.43 to 33.93 us); flash won 3.48 % of the races. Virtual time has no processor: what\n\
     running a race costs there is not in the figures above.\n"
        .to_owned()
}
