//! Exadata's smart flash cache (S10): look-ups by random keys through cells that cache what was read.

use super::database::{Keys, Load, PAGE_BYTES, SCAN_PAGES, Setup, Storage};
use super::field::{self, Part};
use super::machine::{Machine, RACK_DENSE, RACK_SCATTERED, Under};
use super::ranges;
use super::{Experiment, RunError, RunOptions};
use celldisk::CachingMode;

pub(super) const NAME: &str = "s10";
pub(super) const ABOUT: &str = "200,000 look-ups through the smart flash cache of Exadata cells (S10)";

/// Document.
const LOOKUPS: u64 = 200_000;
/// Document: 1 M keys, of a table of 100 M rows. Nobody says where they lie. One after another they are on 12,500 pages.
const DENSE: Keys = Keys { count: 1_000_000, row_pages: 12_500, leaf_pages: 2_500, scattered: false };
/// Anywhere: 100 M rows of 100 bytes, 80 to a page, 400 keys to a leaf.
const SCATTERED: Keys = Keys { count: 1_000_000, row_pages: 1_250_000, leaf_pages: 250_000, scattered: true };

pub(super) fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let lookups = options.syncs.unwrap_or(LOOKUPS);
    let part = |name: &str, machine: &Machine, keys: Keys, frames: usize, cpu_ns: u64| {
        let setup = Setup {
            seed: options.seed,
            under: Under::new(machine, options),
            storage: Storage::Disk,
            load: Load::Reads(keys),
            operations: lookups,
            later_operations: lookups,
            passes: 2,
            cpu_ns,
            scan_pages: SCAN_PAGES,
            frames,
            flash_bytes: (keys.pages() * PAGE_BYTES * 5 / 4).next_multiple_of(64 << 20),
        };
        Part {
            name: format!("{lookups} look-ups, {name}{}", setup.under.moved()),
            arms: vec![
                (Storage::Disk, [Some(1_240.0), None]),
                (Storage::LineCache(PAGE_BYTES), [Some(429.0), None]),
                (Storage::Cell { mode: CachingMode::WriteThrough, fills_scans: false }, [None, None]),
                (Storage::Flash, [Some(119.0), None]),
            ],
            setup,
            passes: &["cold", "warm"],
            scale: 1,
            not_identifiable: true,
            flash_calibrates: true,
            ranges: &ranges::S10,
            reduced: 10,
        }
    };
    // Memory is assumed (0 to 100,000 pages); the processor's time is fitted to the row with the table on flash.
    let parts = vec![
        part("keys side by side", &RACK_DENSE, DENSE, 1_000, 179_000),
        part("keys anywhere", &RACK_SCATTERED, SCATTERED, 20_000, 125_000),
    ];
    let notes = "The field's figure needs a hit ratio of 72 %; where the keys lie decides, and the documents allow 9 to 95 %. The two parts are\n\
                 the ends of that range: the row is not identifiable.\n";
    field::run(NAME, parts, notes, options, tell)
}
