//! What nobody wrote down of the field's machines and loads, with the range each figure may plausibly have, for `flashcell lab run --sets`.
//!
//! The ranges are those that stand beside the figures in `machine.rs` and the experiments, and were committed before the first run. What was
//! *fitted* and has no range there is taken from half to twice what was fitted. Nothing here was changed after a run.

use super::database::{Load, Storage};
use super::field::Part;

/// A figure that may have any value from `low` to `high`, all orders of magnitude alike.
pub(super) struct Range {
    pub(super) what: &'static str,
    /// Of `low` and `high`.
    pub(super) unit: &'static str,
    pub(super) low: u64,
    pub(super) high: u64,
    /// Why so, and what the model has.
    pub(super) source: &'static str,
    pub(super) set: fn(&mut Part, u64),
}

const fn range(
    what: &'static str,
    (low, high, unit): (u64, u64, &'static str),
    source: &'static str,
    set: fn(&mut Part, u64),
) -> Range {
    Range { what, unit, low, high, source, set }
}

const FITTED: &str = "half to twice what was fitted";

/// The disks of S9's first machine.
pub(super) static SATA: [Range; 6] = [
    range("seek to the next cylinder", (500, 1_200, "us"), "assumed, drives of the day; model 800", |part, us| {
        part.setup.under.machine.disk.seek_ns[0] = us * 1_000;
    }),
    range("seek over all", (15_000, 20_000, "us"), "assumed, drives of the day; model 17,000", |part, us| {
        part.setup.under.machine.disk.seek_ns[2] = us * 1_000;
    }),
    range("overhead of a request", (100, 500, "us"), "assumed: drive, controller, kernel; model 200", overhead),
    range("read ahead", (256, 1_024, "KiB"), "one of 8 to 32 segments of the data sheet's 8 MB; model 512", read_ahead),
    range("requests ordered among", (1, 128, "requests"), "the kernel's elevator, no NCQ; model 32", queue),
    range("writes in the drive's cache", (16, 512, "writes"), "of the data sheet's 8 MB; model 64", |part, writes| {
        part.setup.under.machine.disk.cached_writes = writes as usize;
    }),
];

/// The disks of all others; S10 and scans have an overhead of their own.
pub(super) static SAS: [Range; 3] = [
    range("seek over all", (6_000, 8_000, "us"), "assumed, drives of the day; model 7,000", |part, us| {
        part.setup.under.machine.disk.seek_ns[2] = us * 1_000;
    }),
    range(
        "read ahead",
        (256, 1_024, "KiB"),
        "one of 16 to 64 segments of the data sheet's 16 MB; model 512",
        read_ahead,
    ),
    range("requests ordered among", (16, 128, "requests"), "assumed; model 32", queue),
];

/// As data sheets of SAS controllers and drives let expect.
pub(super) static SAS_OVERHEAD: [Range; 1] =
    [range("overhead of a request", (100, 400, "us"), "assumed: drive, controller, kernel", overhead)];

pub(super) static X25_E: [Range; 2] = [
    range("flash: a read", (75, 80, "us"), "data sheet and S16; model 80", |part, us| {
        part.setup.under.machine.flash.read_ns = us * 1_000;
    }),
    range("flash: random writes ahead", (100, 10_000, "writes"), "assumed; model 1,000", |part, writes| {
        part.setup.under.machine.flash.random_burst = writes;
    }),
];

pub(super) static IODRIVE: [Range; 3] = [
    range("flash: a write", (15, 60, "us"), "assumed, through a buffer; model 30", |part, us| {
        part.setup.under.machine.flash.write_ns = us * 1_000;
    }),
    range("flash: channels", (16, 25, "channels"), "assumed; model 24", |part, channels| {
        part.setup.under.machine.flash.channels = channels;
    }),
    range(
        "flash: random writes",
        (20_000, 100_000, "a second"),
        "data sheet 100,000 fresh; model 60,000",
        |part, writes| {
            part.setup.under.machine.flash.random_writes_per_s = Some(writes);
        },
    ),
];

/// Flash of S10, with the way to it.
pub(super) static RACK: [Range; 3] = [
    range("flash: SAS, the cell's server, the network", (100, 400, "us"), "assumed; model 200", |part, us| {
        part.setup.under.machine.flash.read_ns = 25_000 + us * 1_000;
        part.setup.under.machine.flash.write_ns = 50_000 + us * 1_000;
    }),
    range("overhead of a read from disk", (100, 500, "us"), "assumed; fitted beyond that: 1,640 and 790", overhead),
    range("memory", (1, 100_000, "pages"), "assumed; model 1,000 and 20,000", |part, pages| {
        part.setup.frames = pages as usize;
    }),
];

/// First machine's table.
pub(super) static ROWS_DUAL: [Range; 1] =
    [range("rows", (500_000, 6_000_000, "rows"), "assumed; model 1,000,000", rows)];
pub(super) static ROWS_QUAD: [Range; 1] =
    [range("rows", (5_000_000, 50_000_000, "rows"), "assumed; model 10,000,000", rows)];

/// Of the table and its index, in memory; after the rows.
pub(super) static MEMORY_DUAL_READS: [Range; 1] = [range(
    "held in memory",
    (433, 950, "permille"),
    "half to twice what was fitted, and not all of it; model 867",
    memory,
)];
pub(super) static MEMORY_DUAL_UPDATES: [Range; 1] = [range("held in memory", (143, 573, "permille"), FITTED, memory)];
pub(super) static MEMORY_QUAD: [Range; 1] = [range("held in memory", (40, 160, "permille"), FITTED, memory)];
pub(super) static UPDATES_DUAL: [Range; 1] =
    [range("updates", (200_000, 1_000_000, "updates"), "assumed; model 500,000", updates)];
pub(super) static UPDATES_QUAD: [Range; 1] = [range("updates", (655_000, 2_620_000, "updates"), FITTED, updates)];

/// Of an operation.
pub(super) static PROCESSOR: [Range; 1] =
    [range("processor", (500, 2_000, "permille of the model's"), FITTED, |part, permille| {
        part.setup.cpu_ns = (part.setup.cpu_ns * permille / 1_000).max(1);
    })];

pub(super) static REDO: [Range; 1] = [range("redo: a write", (50, 300, "us"), "assumed; model 100", |part, us| {
    part.setup.under.machine.redo.write_ns = us * 1_000;
})];

/// Of every scan.
pub(super) static SCAN: [Range; 2] = [
    range("table", (500, 2_000, "permille of the model's"), FITTED, |part, permille| {
        if let Load::Scan(pages) = &mut part.setup.load {
            *pages = (*pages * permille / 1_000).max(1);
        }
    }),
    range(
        "pages read at once",
        (8, 128, "pages"),
        "db_file_multiblock_read_count, assumed; model 16",
        |part, pages| {
            part.setup.scan_pages = pages as usize;
        },
    ),
];

/// Of S9's scan.
pub(super) static SCAN_MEMORY: [Range; 1] =
    [range("memory", (4, 24, "GiB"), "of 32, assumed; model 8", |part, gib| {
        part.setup.frames = ((gib << 30) / super::database::PAGE_BYTES / part.scale) as usize;
    })];

/// Of S11's cache.
pub(super) static LINE: [Range; 1] = [range(
    "line of the cache",
    (4 << 10, 1 << 20, "bytes, the power of two below"),
    "assumed; model 65,536",
    |part, bytes| {
        for (storage, _) in &mut part.arms {
            if let Storage::LineCache(line_bytes) = storage {
                *line_bytes = 1 << bytes.max(1).ilog2();
            }
        }
    },
)];

/// By row of the field.
pub(super) static S9_SCAN: [&[Range]; 6] = [&SAS, &SAS_OVERHEAD, &IODRIVE, &SCAN, &SCAN_MEMORY, &PROCESSOR];
pub(super) static S10: [&[Range]; 3] = [&SAS, &RACK, &PROCESSOR];
pub(super) static S11: [&[Range]; 6] = [&SAS, &SAS_OVERHEAD, &IODRIVE, &SCAN, &LINE, &PROCESSOR];

fn overhead(part: &mut Part, us: u64) {
    part.setup.under.machine.disk.overhead_ns = us * 1_000;
}

fn read_ahead(part: &mut Part, kib: u64) {
    part.setup.under.machine.disk.read_ahead_bytes = kib << 10;
}

fn queue(part: &mut Part, requests: u64) {
    part.setup.under.machine.disk.queue = requests as usize;
}

/// Of 100 bytes, 80 to a page, 400 keys to a leaf, as the model has them.
fn rows(part: &mut Part, rows: u64) {
    if let Load::Reads(keys) | Load::Updates(keys) = &mut part.setup.load {
        (keys.count, keys.row_pages, keys.leaf_pages) = (rows, (rows / 80).max(1), (rows / 400).max(1));
    }
}

fn memory(part: &mut Part, permille: u64) {
    part.setup.frames = (part.setup.load.pages() * permille / 1_000) as usize;
}

fn updates(part: &mut Part, updates: u64) {
    part.setup.operations = updates;
}
