//! S1 of the field: sessions that update and commit, with the flash log in each of its modes, on three disks.
//!
//! The disk with a write cache takes as long as S1's did without flash logging (its summary, as quantiles), the flash as long as lets it
//! win about as many races as it did there. What S1 says of the tail is nothing, its data were cut at 4 ms; the tails here are assumed.

use super::arm::{Arm, Configuration};
use super::real::Real;
use super::report::{self, Row};
use super::told;
use super::{Bound, Experiment, RunError, RunOptions};
use crate::devices::DeviceModel;
use crate::redo::Share;
use crate::what_if::Devices;
use flashlog::Mode;
use std::sync::Arc;
use std::time::Duration;

pub(super) const NAME: &str = "redo-s1";
pub(super) const ABOUT: &str = "commits on three disks, the flash log in every mode against disk and flash alone (S1)";
/// Commits of an arm unless told otherwise.
pub(super) const SYNCS: u64 = 20_000;
/// S1 had 20.
const SESSIONS: [usize; 4] = [1, 10, 20, 100];

/// The disks: the name of each, and its description.
const DISKS: [(&str, &str); 4] =
    [("healthy", "s1-disk"), ("stalls", "s1-disk-stalls"), ("hangs", "s1-disk-hangs"), ("4 ms", "s1-disk-4ms")];

/// An update and its commit. What a stall of two seconds leaves unflushed keeps within the log's memory.
const RECORD_BYTES: u64 = 1024;
/// An update between two commits.
const THINK: Duration = Duration::from_millis(1);

fn configurations() -> Vec<Configuration> {
    let modes = [Mode::Off, Mode::Race, Mode::Hedge, Mode::Flash, Mode::Auto];
    let log = modes.into_iter().map(Configuration::Log);
    [Configuration::Disk, Configuration::Flash].into_iter().chain(log).collect()
}

/// PostgreSQL's page of redo, on devices of the user's.
const PAGE_RECORD_BYTES: u64 = 8192;
/// Sessions stand for databases: none writes to a block of the cell that another is writing to.
const BLOCK_BYTES: u64 = 16 << 10;

/// A disk and the flash beside it.
struct Pair {
    name: String,
    disk: Arc<DeviceModel>,
    flash: Arc<DeviceModel>,
    record_bytes: u64,
    apart_bytes: u64,
}

fn pairs(options: &RunOptions) -> Result<Vec<Pair>, RunError> {
    if let Some(Devices { disk, flash }) = &options.devices {
        let name = format!("{} and {}", disk.name(), flash.name());
        return Ok(vec![Pair {
            name,
            disk: disk.clone(),
            flash: flash.clone(),
            record_bytes: PAGE_RECORD_BYTES,
            apart_bytes: BLOCK_BYTES,
        }]);
    }
    let known = DISKS.map(|(name, _)| name);
    if let Some(name) = options.disks.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(RunError::NoDisk { name: name.clone(), known: known.join(", ") });
    }
    let wanted = |name: &str| options.disks.is_empty() || options.disks.iter().any(|disk| disk == name);
    let pair = |(name, disk): &(&str, &str)| Pair {
        name: (*name).to_owned(),
        disk: DeviceModel::built_in(disk),
        flash: DeviceModel::built_in("s1-flash"),
        record_bytes: RECORD_BYTES,
        apart_bytes: RECORD_BYTES,
    };
    Ok(DISKS.iter().filter(|(name, _)| wanted(name)).map(pair).collect())
}

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let sessions = if options.sessions.is_empty() { SESSIONS.to_vec() } else { options.sessions.clone() };
    let real = Real::of(options)?;
    let (mut rows, mut bounds): (Vec<Row>, Vec<Bound>) = (Vec::new(), Vec::new());
    for pair in pairs(options)? {
        for &sessions in &sessions {
            let part = format!("{}, {sessions} sessions", pair.name);
            let arm = |configuration| Arm {
                seed: options.seed,
                configuration,
                disk: pair.disk.clone(),
                flash: pair.flash.clone(),
                sessions,
                syncs: options.syncs.unwrap_or(SYNCS),
                record_bytes: pair.record_bytes,
                apart_bytes: pair.apart_bytes,
                think: THINK,
                is_served: options.real.is_some(),
            };
            let first = rows.len();
            for configuration in configurations() {
                rows.push(super::measure(NAME, part.clone(), "", arm(configuration), tell)?);
            }
            super::compare(&mut rows[first..]);
            bounds.extend(judge(&pair.name, &rows[first..]));
            let Some(real) = &real else { continue };
            let elapsed_ns = |row: &Row| u64::try_from(row.outcomes.elapsed.as_nanos()).unwrap_or(u64::MAX);
            real.say_how_long(rows[first..].iter().map(elapsed_ns).sum(), "");
            let measured = rows.len();
            for configuration in configurations() {
                let outcomes = real.commits(&arm(configuration), tell)?;
                rows.push(Row::new(NAME, format!("{part}, measured"), configuration, "", outcomes));
            }
            super::compare(&mut rows[measured..]);
            bounds.extend(rows[measured..].iter().filter_map(adds_up));
            bounds.extend(
                rows[first..measured].iter().zip(&rows[measured..]).map(|(foretold, row)| agrees(foretold, row)),
            );
        }
    }
    let notes = if options.devices.is_some() { String::new() } else { field_table() };
    Ok(Experiment { told: report::told(&rows), bounds, notes })
}

/// A median that was foretold beside the one that was measured.
fn agrees(foretold: &Row, measured: &Row) -> Bound {
    let median = |row: &Row| row.quantile_us(Share(1, 2));
    let (model, real) = (median(foretold), median(measured));
    let figures = format!("{model:.0} us foretold, {real:.0} us measured");
    Bound::of(measured, "median foretold within 20 % of what was measured", told::agrees(model, real), figures)
}

/// Every redo write is counted once, where there is a flash log.
fn adds_up(row: &Row) -> Option<Bound> {
    let log = row.outcomes.log?;
    Some(Bound::of(row, "firsts and skips are the redo writes", log.adds_up(), format!("{log:?}")))
}

/// What the design asks of the log, held against one part.
fn judge(disk: &str, rows: &[Row]) -> Vec<Bound> {
    let of = |configuration| rows.iter().find(|row| row.configuration == configuration);
    let mut bounds = Vec::new();
    let Some(flash) = of(Configuration::Flash) else { return bounds };
    bounds.extend(rows.iter().filter_map(adds_up));
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
            "4 ms" if mode == Mode::Auto => {
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
