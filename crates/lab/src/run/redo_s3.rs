//! S3 of the field: redo on flash that writes pages of 4 KiB and claims sectors of 512 bytes.
//!
//! Redo of 512 bytes goes straight to such flash, to a disk, and to a disk behind the flash log, whose ring is on that flash; and the same
//! with records of 4 KiB.

use super::arm::{Arm, Configuration};
use super::medium::{Model, Quantiles};
use super::report::{self, Row};
use super::{Bound, Experiment, RunError, RunOptions};
use flashlog::Mode;
use std::time::Duration;

pub(super) const NAME: &str = "redo-s3";
pub(super) const ABOUT: &str =
    "redo of 512 bytes and of 4 KiB on flash pages of 4 KiB that the device does not own up to (S3)";
/// Commits of an arm unless told otherwise.
pub(super) const SYNCS: u64 = 10_000;
const SESSIONS: [usize; 2] = [1, 10];

/// A disk with a controller cache, one of 36: 10 sessions do not queue.
const SPINDLES: Quantiles = &[(0, 150_000), (500_000_000, 300_000), (990_000_000, 900_000), (1_000_000_000, 4_000_000)];
/// A page, as flash of 2010 took it.
const PAGE: Quantiles = &[(0, 250_000), (500_000_000, 350_000), (990_000_000, 700_000), (1_000_000_000, 3_000_000)];
/// Less than a page: read, changed, written, one after another.
const PART: Quantiles = &[(0, 600_000), (500_000_000, 850_000), (990_000_000, 1_600_000), (1_000_000_000, 5_000_000)];
const NOTHING: Quantiles = &[(0, 0), (1_000_000_000, 0)];

const DISK: Model = Model {
    volatile_cache: false,
    write: SPINDLES,
    flush: NOTHING,
    ns_per_kib: 1_000,
    parallel: 36,
    claims_page_bytes: 512,
    page_bytes: 512,
    part_of_page: NOTHING,
    stalls: None,
};
const FLASH: Model =
    Model { write: PAGE, parallel: 12, claims_page_bytes: 512, page_bytes: 4096, part_of_page: PART, ..DISK };
/// The redo of one of the field's transactions comes with little work in between.
const THINK: Duration = Duration::from_micros(100);

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let sessions = if options.sessions.is_empty() { SESSIONS.to_vec() } else { options.sessions.clone() };
    let log = |mode| Configuration::Log(mode);
    let arms = [
        (Configuration::Disk, 512, "512 bytes"),
        (Configuration::Flash, 512, "512 bytes"),
        (Configuration::Flash, 4096, "4 KiB"),
        (log(Mode::Flash), 512, "512 bytes"),
        (log(Mode::Auto), 512, "512 bytes"),
        (log(Mode::Auto), 4096, "4 KiB"),
    ];
    let (mut rows, mut bounds): (Vec<Row>, Vec<Bound>) = (Vec::new(), Vec::new());
    for &sessions in &sessions {
        let first = rows.len();
        for (configuration, record_bytes, detail) in arms {
            let arm = Arm {
                seed: options.seed,
                configuration,
                disk: DISK,
                flash: FLASH,
                sessions,
                syncs: options.syncs.unwrap_or(SYNCS),
                record_bytes,
                think: THINK,
            };
            rows.push(super::measure(NAME, format!("{sessions} sessions"), detail, arm, tell)?);
        }
        super::compare(&mut rows[first..]);
        for row in &rows[first..] {
            let Some(log) = row.outcomes.log else { continue };
            bounds.push(Bound::of(row, "firsts and skips are the redo writes", log.adds_up(), format!("{log:?}")));
            let text = format!("{} writes of less", row.outcomes.parts_of_pages);
            bounds.push(Bound::of(row, "the ring writes whole pages", row.outcomes.parts_of_pages == 0, text));
        }
    }
    let notes = "The field: with redo of 512 bytes on such flash about 4 times as long as on 36 spindles with one session, 20 times with ten; with\n\
                 4 KiB 70 % less. The flash log pads to 4 KiB whatever the device claims.\n";
    Ok(Experiment { told: report::told(&rows), bounds, notes: notes.to_owned() })
}
