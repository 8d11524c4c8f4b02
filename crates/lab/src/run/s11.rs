//! A caching block device (S11): two scans of a table through directCache, which caches whatever is read.

use super::ablation;
use super::database::{Load, PAGE_BYTES, SCAN_PAGES, Setup, Storage};
use super::field::{self, Part};
use super::machine::{QUAD_CORES_SCANNED, Under};
use super::ranges;
use super::sets;
use super::{Bound, Experiment, RunError, RunOptions};
use celldisk::CachingMode;

pub(super) const NAME: &str = "s11";
pub(super) const ABOUT: &str = "two full scans and a third through a caching block device (S11)";

/// The model scans one of so many parts of the table.
const SCALE: u64 = 32;
/// Fitted to the scan without a cache: 147 s.
const TABLE_BYTES: u64 = 14_080 << 20;
/// As fitted for the scan of S9, which no figure of this row says more about.
const CPU_NS: u64 = 1_500;
/// Assumed: 64 KiB (4 KiB to 1 MiB).
const LINE_BYTES: u64 = 64 << 10;

const THROUGH: Storage = Storage::Cell { mode: CachingMode::WriteThrough, fills_scans: false };
const FILLING: Storage = Storage::Cell { mode: CachingMode::WriteThrough, fills_scans: true };

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let pages = options.syncs.unwrap_or(TABLE_BYTES / PAGE_BYTES / SCALE);
    let setup = Setup {
        seed: options.seed,
        under: Under::new(&QUAD_CORES_SCANNED, options),
        storage: Storage::Disk,
        load: Load::Scan(pages),
        operations: 1,
        later_operations: 1,
        passes: 3,
        cpu_ns: CPU_NS,
        scan_pages: SCAN_PAGES,
        // Less than any table: what memory holds is not what the row is about.
        frames: 1_024,
        flash_bytes: (pages * PAGE_BYTES * 5 / 4).next_multiple_of(64 << 20),
    };
    let part = Part {
        name: format!("full scan{}", setup.under.moved()),
        arms: vec![
            (Storage::Disk, [Some(147.0), Some(147.0)]),
            (Storage::LineCache(LINE_BYTES), [Some(147.0), Some(36.0)]),
            (THROUGH, [None, None]),
            (FILLING, [None, None]),
            (Storage::Flash, [None, None]),
        ],
        setup,
        passes: &["first", "second", "third"],
        scale: SCALE,
        not_identifiable: false,
        flash_calibrates: false,
        ranges: &ranges::S11,
        reduced: 8,
    };
    field::check_room(std::slice::from_ref(&part))?;
    if options.ablation {
        return ablation::run(NAME, &[part], options, tell);
    }
    if let Some(count) = options.sets {
        return sets::run(NAME, &[part], count, options, tell);
    }
    let notes = "The row without a cache calibrates the size of the table. The model scans a 32nd of it.\n";
    let (rows, mut bounds) = field::rows(NAME, vec![part], options, tell)?;
    let elapsed = |storage: Storage| -> Vec<f64> {
        rows.iter().filter(|row| row.storage == storage).map(|row| row.elapsed_s).collect()
    };
    let (disk, defaults, filling) = (elapsed(Storage::Disk), elapsed(THROUGH), elapsed(FILLING));
    let mut add = |what: &str, slow: f64, fast: f64, times: f64| {
        let text = format!("full scan: {what}: {slow:.1} s and {fast:.1} s, {:.2} times", slow / fast);
        bounds.push(Bound { text, holds: slow >= times * fast });
    };
    // How much flash can win is the devices'.
    if options.devices.is_none() {
        add("with scans filling the second is 4 times as fast as the first", filling[0], filling[1], 4.0);
        add("with defaults the third is 4 times as fast as the first", defaults[0], defaults[2], 4.0);
    }
    add("with scans filling the first is no slower than without a cache", disk[0] * 1.01, filling[0], 1.0);
    add("with defaults the first is no slower than without a cache", disk[0] * 1.01, defaults[0], 1.0);
    Ok(Experiment { told: field::told(&rows), bounds, notes: field::notes_of(notes, options) })
}
