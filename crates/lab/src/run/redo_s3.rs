//! S3 of the field: redo on flash that writes pages of 4 KiB and claims sectors of 512 bytes.
//!
//! Redo of 512 bytes goes straight to such flash, to a disk, and to a disk behind the flash log, whose ring is on that flash; and the same
//! with records of 4 KiB.

use super::arm::{Arm, Configuration};
use super::report::{self, Row};
use super::{Bound, Experiment, RunError, RunOptions};
use crate::devices::DeviceModel;
use flashlog::Mode;
use std::time::Duration;

pub(super) const NAME: &str = "redo-s3";
pub(super) const ABOUT: &str =
    "redo of 512 bytes and of 4 KiB on flash pages of 4 KiB that the device does not own up to (S3)";
/// Commits of an arm unless told otherwise.
pub(super) const SYNCS: u64 = 10_000;
const SESSIONS: [usize; 2] = [1, 10];

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
                disk: DeviceModel::built_in("s3-disk"),
                flash: DeviceModel::built_in("s3-flash"),
                sessions,
                syncs: options.syncs.unwrap_or(SYNCS),
                record_bytes,
                apart_bytes: record_bytes,
                think: THINK,
                is_served: false,
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
