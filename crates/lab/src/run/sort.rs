//! An external sort as a database does it: runs as long as the sort area, merged in one pass or in several through a temporary segment.
//!
//! The rows and their keys are real, so is their order; what is in the temporary segment is read back from its device, and every page of it says
//! which it is and carries a checksum over its rows. One session, which waits for each of its reads and writes.

use super::database::PAGE_BYTES;
use buffercache::Version;
use buffercache::page::{PART_BYTES, Stamp};
use device::{Buf, Bufs, Clock, Device, Outcome};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = PAGE_BYTES as usize;
/// A row: its key, its number, and what the number says the rest is.
const ROW_BYTES: usize = 128;
const HEADER_BYTES: usize = 64;
/// Rows of a page.
pub(super) const ROWS: usize = (PAGE - HEADER_BYTES) / ROW_BYTES;
const MAGIC: u64 = 0x666c_6173_6873_6f72;

/// Assumed: what a database reads of a table at once (128 KiB), as in the scans of S9.
const TABLE_PAGES: usize = 16;
/// Assumed: a run is read and written in pieces of 64 KiB to 256 KiB (32 KiB to 1 MiB): as large as lets all runs be merged at once.
const PIECE_PAGES: (usize, usize) = (8, 32);
/// The least memory: pieces of two runs and of what they become.
pub(super) const PAGES_MIN: usize = 3 * PIECE_PAGES.0;
/// Assumed: 60 ns a comparison (20 to 150), 400 ns a row for everything else (100 to 1,000), on a processor of 2010.
const COMPARE_NS: u64 = 60;
const ROW_NS: u64 = 400;

/// What a sort is given.
pub(super) struct Parts {
    pub(super) table: Device,
    pub(super) temp: Device,
    /// Pages of `temp`.
    pub(super) temp_pages: usize,
    pub(super) pages: usize,
    /// Pages of the sort area.
    pub(super) memory: usize,
    /// Decides the keys.
    pub(super) seed: u64,
    pub(super) clock: Arc<dyn Clock>,
}

/// What came of it; nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcomes {
    pub(super) table_ns: u64,
    pub(super) cpu_ns: u64,
    pub(super) temp_ns: u64,
    pub(super) runs: usize,
    /// How often a row was written to the temporary segment, at most.
    pub(super) passes: usize,
    /// Pages of the temporary segment that were read, and were what they must be.
    pub(super) verified: u64,
    pub(super) written: u64,
}

impl Outcomes {
    pub(super) fn elapsed_ns(&self) -> u64 {
        self.table_ns + self.cpu_ns + self.temp_ns
    }
}

/// Why a sort ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum SortError {
    /// A device did not do it.
    #[error("{what} from byte {offset}: {outcome:?}")]
    Io {
        /// The request that the sort made.
        what: &'static str,
        /// Where.
        offset: u64,
        /// The answer of the device.
        outcome: Outcome,
    },
    /// What was read of the table is something else.
    #[error("table: what is at byte {offset} is not what was written there")]
    Table {
        /// Where.
        offset: u64,
    },
    /// What was read of the temporary segment is another page, an older one, or not whole.
    #[error("temporary segment: page {index} of run {run} is not what was written last")]
    Page {
        /// Of which run.
        run: u64,
        /// Which of it.
        index: usize,
    },
    /// A row follows one that belongs behind it.
    #[error("row {count} is out of order")]
    Order {
        /// The rows before it.
        count: u64,
    },
    /// A row is missing, or there twice.
    #[error("{found} rows came out of {wanted}, or not the same ones")]
    Rows {
        /// What came out.
        found: u64,
        /// What went in.
        wanted: u64,
    },
}

type Row = (u64, u64);

struct Run {
    number: u64,
    first_page: usize,
    rows: usize,
    pass: usize,
}

impl Run {
    fn pages(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }
}

/// A run being read.
struct Reader {
    run: Run,
    next_page: usize,
    rows: VecDeque<Row>,
    last: Row,
}

struct Sorter {
    parts: Parts,
    outcomes: Outcomes,
    next_page: usize,
    next_run: u64,
}

fn mix(number: u64, seed: u64) -> u64 {
    let mut z = (number ^ seed.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// That a device has done it.
fn done(what: &'static str, offset: u64, outcome: Outcome) -> Result<(), SortError> {
    if outcome == Outcome::Done { Ok(()) } else { Err(SortError::Io { what, offset, outcome }) }
}

fn log2_up(n: usize) -> u64 {
    u64::from(n.max(1).next_power_of_two().trailing_zeros())
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn put_page(page: &mut [u8], run: u64, index: usize, rows: &[Row]) {
    for (row, (key, id)) in page[HEADER_BYTES..].chunks_exact_mut(ROW_BYTES).zip(rows) {
        let (words, _) = row.as_chunks_mut::<8>();
        words.fill(id.to_le_bytes());
        words[0] = key.to_le_bytes();
    }
    let crc = crc32c::crc32c(&page[HEADER_BYTES..]);
    for (at, word) in [MAGIC, run, index as u64, rows.len() as u64, u64::from(crc)].into_iter().enumerate() {
        page[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
    }
}

/// The rows of a page, so many.
///
/// # Errors
/// It is another page, or not whole.
fn take_page(page: &[u8], run: u64, index: usize, count: usize, into: &mut VecDeque<Row>) -> Result<(), SortError> {
    let crc = crc32c::crc32c(&page[HEADER_BYTES..]);
    let wanted = [MAGIC, run, index as u64, count as u64, u64::from(crc)];
    let found = [0, 8, 16, 24, 32].map(|at| number(page, at));
    if found != wanted {
        return Err(SortError::Page { run, index });
    }
    let rows = page[HEADER_BYTES..].chunks_exact(ROW_BYTES).take(count);
    into.extend(rows.map(|row| (number(row, 0), number(row, 8))));
    Ok(())
}

/// Sort the table: what it took.
///
/// # Errors
/// A device fails, what is read is not what was written, or the rows do not come out sorted.
pub(super) async fn sort(parts: Parts) -> Result<Outcomes, SortError> {
    assert!(parts.memory >= PAGES_MIN.min(parts.pages), "a sort area of {} pages", parts.memory);
    let mut sorter = Sorter { parts, outcomes: Outcomes::default(), next_page: 0, next_run: 0 };
    let mut runs = VecDeque::new();
    let (pages, memory) = (sorter.parts.pages, sorter.parts.memory);
    let mut out = Delivery::default();
    for from in (0..pages).step_by(memory) {
        let mut rows = sorter.read_table(from, (from + memory).min(pages)).await?;
        rows.sort_unstable();
        let count = rows.len() as u64;
        sorter.compute(count * (ROW_NS + log2_up(rows.len()) * COMPARE_NS)).await;
        if memory >= pages {
            rows.into_iter().try_for_each(|row| out.take(row))?;
        } else {
            let piece = PIECE_PAGES.1.min(memory);
            let mut writer = sorter.begin(rows.len(), piece, 1);
            for row in rows {
                sorter.put(&mut writer, row).await?;
            }
            runs.push_back(sorter.end(writer).await?);
        }
    }
    sorter.outcomes.runs = runs.len();
    sorter.merge_all(runs, &mut out).await?;
    out.check((pages * ROWS) as u64, sorter.parts.seed)?;
    Ok(sorter.outcomes)
}

/// What the sort gives to who asked for it.
#[derive(Default)]
struct Delivery {
    count: u64,
    keys: u64,
    numbers: u64,
    last: Row,
}

impl Delivery {
    fn take(&mut self, row: Row) -> Result<(), SortError> {
        if self.count > 0 && row <= self.last {
            return Err(SortError::Order { count: self.count });
        }
        self.last = row;
        self.count += 1;
        self.keys = self.keys.wrapping_add(row.0);
        self.numbers = self.numbers.wrapping_add(mix(row.1, 7));
        Ok(())
    }

    /// Every row is there once: sums over keys and numbers say so.
    fn check(&self, rows: u64, seed: u64) -> Result<(), SortError> {
        let keys = (0..rows).fold(0_u64, |sum, n| sum.wrapping_add(mix(n, seed)));
        let numbers = (0..rows).fold(0_u64, |sum, n| sum.wrapping_add(mix(n, 7)));
        match (self.count, self.keys, self.numbers) == (rows, keys, numbers) {
            true => Ok(()),
            false => Err(SortError::Rows { found: self.count, wanted: rows }),
        }
    }
}

/// A run being written.
struct Writer {
    run: Run,
    rows_max: usize,
    piece: usize,
    rows: Vec<Row>,
    pages_written: usize,
}

impl Sorter {
    async fn compute(&mut self, ns: u64) {
        self.outcomes.cpu_ns += ns;
        self.parts.clock.sleep(Duration::from_nanos(ns)).await;
    }

    async fn read_table(&mut self, from: usize, end: usize) -> Result<Vec<Row>, SortError> {
        let mut rows = Vec::with_capacity((end - from) * ROWS);
        for first in (from..end).step_by(TABLE_PAGES) {
            let pages = TABLE_PAGES.min(end - first);
            let begun = self.parts.clock.now();
            let bufs = Bufs::from(Buf::zeroed(pages * PAGE));
            let offset = (first * PAGE) as u64;
            let read = self.parts.table.read(offset, bufs).await;
            done("a read of the table", offset, read.outcome)?;
            self.outcomes.table_ns += self.parts.clock.now().ns_since(begun);
            let bytes = read.bufs.to_vec(0..pages * PAGE);
            for (part, bytes) in bytes.chunks_exact(PART_BYTES).enumerate() {
                let part = (first * PAGE / PART_BYTES + part) as u64;
                if Stamp::of(bytes) != Some(Stamp { part, version: Version(1) }) {
                    return Err(SortError::Table { offset: part * PART_BYTES as u64 });
                }
            }
            let numbers = (first * ROWS) as u64..((first + pages) * ROWS) as u64;
            rows.extend(numbers.map(|n| (mix(n, self.parts.seed), n)));
        }
        Ok(rows)
    }

    /// Room for a run: round and round, over what was merged longest ago.
    fn begin(&mut self, rows: usize, piece: usize, pass: usize) -> Writer {
        let pages = rows.div_ceil(ROWS);
        if self.next_page + pages > self.parts.temp_pages {
            self.next_page = 0;
        }
        let run = Run { number: self.next_run, first_page: self.next_page, rows: 0, pass };
        self.next_page += pages;
        self.next_run += 1;
        self.outcomes.passes = self.outcomes.passes.max(pass);
        Writer { run, rows_max: rows, piece, rows: Vec::with_capacity(piece * ROWS), pages_written: 0 }
    }

    async fn put(&mut self, writer: &mut Writer, row: Row) -> Result<(), SortError> {
        writer.rows.push(row);
        writer.run.rows += 1;
        if writer.rows.len() == writer.piece * ROWS {
            self.write(writer).await?;
        }
        Ok(())
    }

    async fn write(&mut self, writer: &mut Writer) -> Result<(), SortError> {
        let pages = writer.rows.len().div_ceil(ROWS);
        let mut buf = Buf::zeroed(pages * PAGE);
        for (n, (page, rows)) in buf.chunks_exact_mut(PAGE).zip(writer.rows.chunks(ROWS)).enumerate() {
            put_page(page, writer.run.number, writer.pages_written + n, rows);
        }
        let offset = ((writer.run.first_page + writer.pages_written) * PAGE) as u64;
        let begun = self.parts.clock.now();
        let written = self.parts.temp.write(offset, Bufs::from(buf).freeze(), false).await;
        done("a write to the temporary segment", offset, written.outcome)?;
        self.outcomes.temp_ns += self.parts.clock.now().ns_since(begun);
        self.outcomes.written += pages as u64;
        writer.pages_written += pages;
        writer.rows.clear();
        Ok(())
    }

    async fn end(&mut self, mut writer: Writer) -> Result<Run, SortError> {
        if !writer.rows.is_empty() {
            self.write(&mut writer).await?;
        }
        assert!(writer.run.rows == writer.rows_max, "a run of {} rows", writer.run.rows);
        Ok(writer.run)
    }

    /// The next piece of a run.
    async fn refill(&mut self, reader: &mut Reader, piece: usize) -> Result<(), SortError> {
        let pages = piece.min(reader.run.pages() - reader.next_page);
        if pages == 0 {
            return Ok(());
        }
        let begun = self.parts.clock.now();
        let offset = ((reader.run.first_page + reader.next_page) * PAGE) as u64;
        let read = self.parts.temp.read(offset, Bufs::from(Buf::zeroed(pages * PAGE))).await;
        done("a read of the temporary segment", offset, read.outcome)?;
        self.outcomes.temp_ns += self.parts.clock.now().ns_since(begun);
        let bytes = read.bufs.to_vec(0..pages * PAGE);
        for (n, page) in bytes.chunks_exact(PAGE).enumerate() {
            let index = reader.next_page + n;
            take_page(page, reader.run.number, index, ROWS.min(reader.run.rows - index * ROWS), &mut reader.rows)?;
        }
        self.outcomes.verified += pages as u64;
        reader.next_page += pages;
        Ok(())
    }

    /// Merge until one pass gives it all.
    async fn merge_all(&mut self, mut runs: VecDeque<Run>, out: &mut Delivery) -> Result<(), SortError> {
        let (least, most) = PIECE_PAGES;
        while !runs.is_empty() {
            let piece = (self.parts.memory / (runs.len() + 1)).clamp(least, most);
            let fan = (self.parts.memory / piece - 1).max(2);
            if runs.len() <= fan {
                self.merge(runs.drain(..).collect(), piece, None, out).await?;
                return Ok(());
            }
            // The first one takes as few as make all later ones whole.
            let few = (runs.len() - 1) % (fan - 1) + 1;
            let count = if few > 1 { few } else { fan };
            let some: Vec<Run> = runs.drain(..count).collect();
            let pass = some.iter().map(|run| run.pass).max().unwrap_or(0) + 1;
            if let Some(run) = self.merge(some, piece, Some(pass), out).await? {
                runs.push_back(run);
            }
        }
        Ok(())
    }

    /// Into a run, or to who asked for it.
    async fn merge(
        &mut self,
        runs: Vec<Run>,
        piece: usize,
        pass: Option<usize>,
        out: &mut Delivery,
    ) -> Result<Option<Run>, SortError> {
        let (fan, rows) = (runs.len(), runs.iter().map(|run| run.rows).sum());
        let mut readers: Vec<Reader> =
            runs.into_iter().map(|run| Reader { run, next_page: 0, rows: VecDeque::new(), last: (0, 0) }).collect();
        let mut heap = BinaryHeap::new();
        for (n, reader) in readers.iter_mut().enumerate() {
            self.refill(reader, piece).await?;
            heap.extend(reader.rows.pop_front().map(|row| Reverse((row, n))));
        }
        let mut writer = pass.map(|pass| self.begin(rows, piece, pass));
        let (each, mut due) = (ROW_NS + log2_up(fan) * COMPARE_NS, 0);
        while let Some(Reverse((row, n))) = heap.pop() {
            due += each;
            let reader = &mut readers[n];
            if row < reader.last {
                return Err(SortError::Order { count: out.count });
            }
            reader.last = row;
            if reader.rows.is_empty() {
                self.compute(std::mem::take(&mut due)).await;
                self.refill(reader, piece).await?;
            }
            heap.extend(reader.rows.pop_front().map(|row| Reverse((row, n))));
            match &mut writer {
                Some(writer) => self.put(writer, row).await?,
                None => out.take(row)?,
            }
        }
        self.compute(due).await;
        match writer {
            Some(writer) => self.end(writer).await.map(Some),
            None => Ok(None),
        }
    }
}
