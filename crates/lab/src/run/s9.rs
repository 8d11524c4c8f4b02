//! The database flash cache against disks alone and against the table on flash (S9): random indexed reads, updates by key, and a full scan.

use super::database::{Keys, Load, PAGE_BYTES, SCAN_PAGES, Setup, Storage};
use super::field::{self, Part};
use super::machine::{DUAL_CORE, Machine, QUAD_CORES, QUAD_CORES_SCANNED, Under};
use super::ranges::{self, Range};
use super::{Experiment, RunError, RunOptions};
use celldisk::CachingMode;
use std::sync::LazyLock;

pub(super) const READS: &str = "s9-reads";
pub(super) const ABOUT_READS: &str =
    "500,000 random indexed reads with the database flash cache, on both machines (S9)";
pub(super) const UPDATES: &str = "s9-updates";
pub(super) const ABOUT_UPDATES: &str = "updates by primary key with the database flash cache, on both machines (S9)";
pub(super) const SCAN: &str = "s9-scan";
pub(super) const ABOUT_SCAN: &str = "a full table scan with the database flash cache (S9)";

const THROUGH: Storage = Storage::Cell { mode: CachingMode::WriteThrough, fills_scans: false };
const BACK: Storage = Storage::Cell { mode: CachingMode::WriteBack, fills_scans: false };

/// What is not in the field's report about one machine.
struct Unknown {
    machine: &'static LazyLock<Machine>,
    table: &'static str,
    keys: Keys,
    /// Fitted to the reads without flash.
    frames: usize,
    flash_bytes: u64,
    /// Document; the second machine's is assumed to be the same.
    reads: u64,
    /// Fitted to the reads with the table on flash.
    read_cpu_ns: u64,
    /// The field does not say how many there were.
    updates: u64,
    /// What undo and redo leave of memory for the table.
    update_frames: usize,
    /// Fitted to the updates with the table on flash.
    update_cpu_ns: u64,
    /// Plausible ranges, of reads and of updates; the rows before what is held in memory of them.
    ranges: [&'static [&'static [Range]]; 2],
}

/// Assumed: 1,000,000 rows (500,000 to 6,000,000) of 100 bytes, 80 to a page, 400 keys to a leaf. S10's author asked for 1 M keys too.
const ROWS_DUAL: Keys = Keys { count: 1_000_000, row_pages: 12_500, leaf_pages: 2_500, scattered: false };
/// Assumed: ten times as many (5 to 50 M), as the machine has eight times the memory.
const ROWS_QUAD: Keys = Keys { count: 10_000_000, row_pages: 125_000, leaf_pages: 25_000, scattered: false };

static DUAL: Unknown = Unknown {
    machine: &DUAL_CORE,
    table: "1,000,000 rows",
    keys: ROWS_DUAL,
    frames: 13_000,
    // Assumed: more than the table, in every arm.
    flash_bytes: 512 << 20,
    reads: 500_000,
    read_cpu_ns: 75_300,
    // Assumed: as many as reads (200,000 to 1,000,000).
    updates: 500_000,
    // Fitted to the updates without flash.
    update_frames: 4_300,
    update_cpu_ns: 98_000,
    ranges: [
        &[&ranges::SATA, &ranges::X25_E, &ranges::ROWS_DUAL, &ranges::MEMORY_DUAL_READS, &ranges::PROCESSOR],
        &[
            &ranges::SATA,
            &ranges::X25_E,
            &ranges::ROWS_DUAL,
            &ranges::MEMORY_DUAL_UPDATES,
            &ranges::PROCESSOR,
            &ranges::UPDATES_DUAL,
            &ranges::REDO,
        ],
    ],
};

static QUAD: Unknown = Unknown {
    machine: &QUAD_CORES,
    table: "10,000,000 rows",
    keys: ROWS_QUAD,
    frames: 12_000,
    flash_bytes: 2 << 30,
    reads: 500_000,
    read_cpu_ns: 185_000,
    // Fitted to the updates without flash: as many as reads could not take that long.
    updates: 1_310_000,
    // As for reads.
    update_frames: 12_000,
    update_cpu_ns: 175_000,
    ranges: [
        &[
            &ranges::SAS,
            &ranges::SAS_OVERHEAD,
            &ranges::IODRIVE,
            &ranges::ROWS_QUAD,
            &ranges::MEMORY_QUAD,
            &ranges::PROCESSOR,
        ],
        &[
            &ranges::SAS,
            &ranges::SAS_OVERHEAD,
            &ranges::IODRIVE,
            &ranges::ROWS_QUAD,
            &ranges::MEMORY_QUAD,
            &ranges::PROCESSOR,
            &ranges::UPDATES_QUAD,
            &ranges::REDO,
        ],
    ],
};

/// Of the second pass.
const WARM_UPDATES: u64 = 100_000;

/// No flash, flash cache, table on flash.
type Figures = [f64; 3];
const READS_DUAL: Figures = [529.7, 143.27, 48.17];
const READS_QUAD: Figures = [2_211.0, 583.0, 121.0];
const UPDATES_DUAL: Figures = [3_289.0, 1_693.0, 200.0];
const UPDATES_QUAD: Figures = [6_219.0, 1_934.0, 529.0];
const SCAN_QUAD: Figures = [418.0, 398.0, 72.0];

/// The field's figures are cold: "database restarted before each test".
fn arms(field: Figures, ours: &[Storage]) -> Vec<(Storage, [Option<f64>; 2])> {
    let cold = |n: usize| [Some(field[n]), None];
    let mut arms = vec![(Storage::Disk, cold(0)), (Storage::DatabaseFlashCache, cold(1))];
    arms.extend(ours.iter().map(|storage| (*storage, [None, None])));
    arms.push((Storage::Flash, cold(2)));
    arms
}

fn part(unknown: &Unknown, field: Figures, is_update: bool, options: &RunOptions) -> Part {
    let &Unknown {
        machine,
        table,
        keys,
        flash_bytes,
        reads,
        read_cpu_ns,
        updates,
        update_frames,
        update_cpu_ns,
        ranges,
        ..
    } = unknown;
    let frames = if is_update { update_frames } else { unknown.frames };
    let (operations, cpu_ns, load, ours): (_, _, _, &[Storage]) = if is_update {
        (updates, update_cpu_ns, Load::Updates(keys), &[THROUGH, BACK])
    } else {
        (reads, read_cpu_ns, Load::Reads(keys), &[THROUGH])
    };
    let operations = options.syncs.unwrap_or(operations);
    let setup = Setup {
        seed: options.seed,
        under: Under::new(machine, options),
        storage: Storage::Disk,
        load,
        operations,
        // The second pass of updates is short: it is warm from its beginning on.
        later_operations: if is_update { operations.min(WARM_UPDATES) } else { operations },
        passes: 2,
        cpu_ns,
        scan_pages: SCAN_PAGES,
        frames,
        flash_bytes,
    };
    let what = if is_update { "updates" } else { "reads" };
    let name = format!("{operations} {what}, {}", setup.under.name(table));
    Part {
        name,
        arms: arms(field, ours),
        setup,
        passes: &["cold", "warm"],
        scale: 1,
        not_identifiable: true,
        flash_calibrates: true,
        ranges: ranges[usize::from(is_update)],
        reduced: if is_update { 40 } else { 20 },
    }
}

const NOTES: &str = "Rows without flash and with the table on flash calibrate; all others are predictions. The field's are cold. Its report does not say how\n\
     large the table was, how much of it memory held, nor how many updates there were: there are more free parameters than figures.\n";

pub(super) fn reads(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let parts = vec![part(&DUAL, READS_DUAL, false, options), part(&QUAD, READS_QUAD, false, options)];
    field::run(READS, parts, NOTES, options, tell)
}

pub(super) fn updates(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let parts = vec![part(&DUAL, UPDATES_DUAL, true, options), part(&QUAD, UPDATES_QUAD, true, options)];
    field::run(UPDATES, parts, NOTES, options, tell)
}

/// The model scans one of so many parts of the table, with that part of memory and flash: a scan is the same from beginning to end.
const SCAN_SCALE: u64 = 64;
/// Fitted to the scan without flash.
const SCAN_BYTES: u64 = 39 << 30;
/// Fitted to the scan with the table on flash; for a page.
const SCAN_CPU_NS: u64 = 1_500;

pub(super) fn scan(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<Experiment, RunError> {
    let pages = options.syncs.unwrap_or(SCAN_BYTES / PAGE_BYTES / SCAN_SCALE);
    let setup = Setup {
        seed: options.seed,
        under: Under::new(&QUAD_CORES_SCANNED, options),
        storage: Storage::Disk,
        load: Load::Scan(pages),
        operations: 1,
        later_operations: 1,
        passes: 2,
        cpu_ns: SCAN_CPU_NS,
        scan_pages: SCAN_PAGES,
        // Assumed: 8 GB (4 to 24) of the 32 GB.
        frames: ((8 << 30) / PAGE_BYTES / SCAN_SCALE) as usize,
        // Assumed: more than the table.
        flash_bytes: (pages * PAGE_BYTES * 5 / 4).next_multiple_of(64 << 20),
    };
    let ours = [THROUGH, Storage::Cell { mode: CachingMode::WriteThrough, fills_scans: true }];
    let part = Part {
        name: format!("full scan, {}", setup.under.name("its table")),
        arms: arms(SCAN_QUAD, &ours),
        setup,
        passes: &["first", "second"],
        scale: SCAN_SCALE,
        not_identifiable: false,
        flash_calibrates: true,
        ranges: &ranges::S9_SCAN,
        reduced: 8,
    };
    let notes = "Rows without flash and with the table on flash calibrate the size of the table and the processor's time; the others are\n\
                 predictions. The model scans a 64th of the table with a 64th of memory and flash.\n";
    field::run(SCAN, vec![part], notes, options, tell)
}
