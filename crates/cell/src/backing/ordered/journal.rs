//! The journal of a grid disk as a device: a batch is written there whole, then in place; cut off between the two, it is
//! written in place again at the next start.
//!
//! Two headers, one at either end, both written before anything relies on what they say: a torn or rotten one leaves the
//! other. A batch counts when a header says so, and that is written once table and data are durable; a header says void once
//! the disk has the batch durably. One user at a time. Never decides what is in a batch.

use crate::backing::ordered::format::{
    Content, HEADER_BYTES, Header, Owner, Places, TableEntry, decode_table, encode_table, part_sum,
};
use crate::backing::write_back::Pace;
use crate::base::units::PART_BYTES;
use device::sync::lock;
use device::{Buf, Bufs, Device, Outcome, SharedBufs, WallTime};
use futures_util::future::join;
use futures_util::{StreamExt, stream};
use std::ops::Range;
use std::sync::Mutex;

/// Parts read or written at a time.
pub(crate) const CHUNK_PARTS: u64 = 256;
/// Memory of a batch for each of its parts, at the worst: a stretch of one part with its place on two members (some 700 bytes),
/// their names to be called clean, and twice its entry in the table.
const BATCH_BYTES_A_PART: u64 = 1024;

/// Why a journal could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalError {
    /// The disk failed.
    Io,
    /// What it holds is not what was written.
    Rotten,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Journal {
    device: JournalDevice,
    owner: Owner,
    places: Places,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// As both headers say; none when they cannot be read, or when writing them has failed.
    now: Option<Header>,
    /// Highest sequence written here, whatever became of it.
    sequence: u64,
    /// Highest batch begun here, likewise.
    batch: u64,
}

struct JournalDevice(Device);

impl std::fmt::Debug for JournalDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JournalDevice")
    }
}

fn done(outcome: Outcome) -> Result<(), JournalError> {
    if outcome == Outcome::Done { Ok(()) } else { Err(JournalError::Io) }
}

/// Writes and bytes that [`Journal::apply`] has given the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) writes: u64,
    pub(crate) bytes: u64,
}

/// A batch that is being written to a journal.
pub(crate) struct Draft {
    batch: u64,
    parts: u64,
    entries: Vec<TableEntry>,
}

impl Draft {
    /// Parts written so far.
    pub(crate) fn written(&self) -> u64 {
        self.entries.len() as u64
    }
}

impl Journal {
    /// A journal that nobody has written to yet: make it void before anything else.
    pub(crate) fn new(device: Device, owner: Owner) -> Journal {
        let geometry = device.geometry();
        let places = Places::new(geometry.size_bytes, u64::from(geometry.page_bytes));
        Journal { device: JournalDevice(device), owner, places, state: Mutex::default() }
    }

    /// A journal as the last life has left it.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(crate) async fn open(device: Device, owner: Owner) -> Result<Journal, JournalError> {
        let journal = Journal::new(device, owner);
        let [a, b] = journal.places.headers();
        let (a, b) = join(journal.read_header(a), journal.read_header(b)).await;
        // One that cannot be read is as one that is torn: it was not needed for anything that has happened.
        let newest = match (&a, &b) {
            (Err(_), Err(error)) => return Err(*error),
            _ => [a.ok().flatten(), b.ok().flatten()].into_iter().flatten().max_by_key(|header| header.sequence),
        };
        *lock(&journal.state) = State {
            now: newest,
            sequence: newest.map_or(0, |header| header.sequence),
            batch: newest.map_or(0, |header| header.batch),
        };
        Ok(journal)
    }

    async fn read_header(&self, at: u64) -> Result<Option<Header>, JournalError> {
        let bytes = self.read(at, PART_BYTES).await?.to_vec(0..HEADER_BYTES);
        Ok(Header::decode(&bytes, &self.owner))
    }

    async fn read(&self, at: u64, len: u64) -> Result<Bufs, JournalError> {
        let read = self.device.0.read(at, Buf::zeroed(len as usize).into()).await;
        done(read.outcome)?;
        Ok(read.bufs)
    }

    /// Parts the largest batch may have.
    pub(crate) fn parts_max(&self) -> u64 {
        self.places.parts_max()
    }

    /// The most memory a batch takes: its table, what it holds on flash, and two pieces of data.
    pub(crate) fn batch_memory_bytes(&self) -> u64 {
        self.parts_max() * BATCH_BYTES_A_PART + 2 * CHUNK_PARTS * PART_BYTES
    }

    /// What the headers say; none when that is not known.
    pub(crate) fn now(&self) -> Option<Header> {
        lock(&self.state).now
    }

    /// Bytes of a batch that counts and is not void yet.
    pub(crate) fn used_bytes(&self) -> u64 {
        match self.now() {
            Some(Header { content: Content::Batch { parts, .. }, .. }) => parts * PART_BYTES,
            _ => 0,
        }
    }

    /// Whether there is nothing to be applied.
    pub(crate) fn is_void(&self) -> bool {
        self.now().is_some_and(|header| header.content == Content::Void)
    }

    /// Write both headers, durably.
    async fn set(&self, batch: u64, as_of: WallTime, content: Content) -> Result<(), JournalError> {
        let sequence = {
            let mut state = lock(&self.state);
            state.now = None;
            state.sequence += 1;
            state.sequence
        };
        let header = Header { owner: self.owner, sequence, batch, as_of, content };
        let mut page = Buf::zeroed(self.places.header_bytes() as usize);
        page[..HEADER_BYTES].copy_from_slice(&header.encode());
        let page = Bufs::from(page).freeze();
        let [a, b] = self.places.headers();
        let writes = join(self.device.0.write(a, page.clone(), true), self.device.0.write(b, page, true));
        let (a, b) = writes.await;
        done(a.outcome)?;
        done(b.outcome)?;
        lock(&self.state).now = Some(header);
        Ok(())
    }

    /// Nothing is to be applied: the disk is as the grid disk was at `as_of`. Durable when it returns.
    ///
    /// # Errors
    /// The disk failed: either may be found after a restart.
    pub(crate) async fn make_void(&self, as_of: WallTime) -> Result<(), JournalError> {
        let batch = lock(&self.state).batch;
        self.set(batch, as_of, Content::Void).await
    }

    /// Begin a batch of so many parts, at most [`Journal::parts_max`]. The journal is void.
    pub(crate) fn begin(&self, parts: u64) -> Draft {
        assert!(self.is_void(), "what is in the journal has been applied");
        assert!(parts <= self.parts_max(), "a batch fits the journal: nobody takes more dirty data than that");
        let batch = {
            let mut state = lock(&self.state);
            state.batch += 1;
            state.batch
        };
        Draft { batch, parts, entries: Vec::with_capacity(parts as usize) }
    }

    /// Write the next parts of a batch, ascending. Not durable yet.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) async fn append(
        &self,
        draft: &mut Draft,
        parts: impl Iterator<Item = u64>,
        data: SharedBufs,
    ) -> Result<(), JournalError> {
        let at = self.places.data(draft.parts) + draft.written() * PART_BYTES;
        for (n, part) in parts.enumerate() {
            let from = n * PART_BYTES as usize;
            let sum = part_sum(self.owner.grid_disk, draft.batch, part, data.view(from..from + PART_BYTES as usize));
            draft.entries.push(TableEntry { part, sum });
        }
        done(self.device.0.write(at, data, false).await.outcome)
    }

    /// All of a batch is there: make it durable. It does not count yet.
    ///
    /// # Errors
    /// The disk failed.
    pub(crate) async fn finish(&self, draft: &Draft) -> Result<u32, JournalError> {
        assert_eq!(draft.written(), draft.parts, "all parts of a batch are written");
        let table = encode_table(&draft.entries);
        let crc = crc32c::crc32c(&table);
        let mut at = self.places.table();
        for piece in table.chunks((CHUNK_PARTS * PART_BYTES) as usize) {
            let mut buf = Buf::zeroed(piece.len());
            buf.copy_from_slice(piece);
            done(self.device.0.write(at, Bufs::from(buf).freeze(), false).await.outcome)?;
            at += piece.len() as u64;
        }
        done(self.device.0.flush().await.outcome)?;
        Ok(crc)
    }

    /// The batch counts from here on, durably: what it holds was the grid disk at `as_of`.
    ///
    /// # Errors
    /// The disk failed: nobody knows whether it counts.
    pub(crate) async fn commit(&self, draft: Draft, table_crc: u32, as_of: WallTime) -> Result<(), JournalError> {
        self.set(draft.batch, as_of, Content::Batch { parts: draft.parts, table_crc }).await
    }

    /// Write what is in the journal in place, in disk order, stretches that touch as one. Not durable yet. `pace` is asked
    /// before each chunk, `between` is awaited before each stretch. What was written.
    ///
    /// # Errors
    /// The disk failed, or the journal is not what was written: then any part of it may be in place.
    pub(crate) async fn apply<B: Future<Output = ()>>(
        &self,
        disk: &Device,
        pace: impl Fn() -> Pace,
        between: impl Fn(Pace) -> B,
    ) -> Result<Applied, JournalError> {
        let header = self.now().ok_or(JournalError::Rotten)?;
        let Content::Batch { parts, table_crc } = header.content else { return Ok(Applied::default()) };
        if parts > self.parts_max() {
            return Err(JournalError::Rotten);
        }
        let entries = self.read_table(parts, table_crc).await?;
        let parts_there = disk.geometry().size_bytes / PART_BYTES;
        if entries.last().is_some_and(|last| last.part >= parts_there) {
            return Err(JournalError::Rotten);
        }
        let mut at = self.places.data(parts);
        let mut applied = Applied::default();
        for chunk in entries.chunks(CHUNK_PARTS as usize) {
            let len = chunk.len() as u64 * PART_BYTES;
            let data = self.read(at, len).await?;
            at += len;
            self.check(header.batch, chunk, &data)?;
            let data = data.freeze();
            let pace = pace();
            let mut writes = stream::iter(stretches(chunk).into_iter().map(|(index, parts)| {
                let from = index * PART_BYTES as usize;
                let len = ((parts.end - parts.start) * PART_BYTES) as usize;
                let (piece, between) = (data.slice(from..from + len), &between);
                async move {
                    between(pace).await;
                    disk.write(parts.start * PART_BYTES, piece, false).await.outcome
                }
            }))
            .buffer_unordered(pace.runs_at_once());
            let mut all = Ok(());
            // Each is waited for: none may happen after this has returned.
            while let Some(outcome) = writes.next().await {
                all = all.and(done(outcome));
                applied.writes += 1;
            }
            all?;
            applied.bytes += len;
        }
        Ok(applied)
    }

    async fn read_table(&self, parts: u64, crc: u32) -> Result<Vec<TableEntry>, JournalError> {
        let (mut at, end) = (self.places.table(), self.places.data(parts));
        let mut bytes = Vec::with_capacity((end - at) as usize);
        while at < end {
            let len = (end - at).min(CHUNK_PARTS * PART_BYTES);
            bytes.extend(self.read(at, len).await?.to_vec(0..len as usize));
            at += len;
        }
        decode_table(&bytes, parts, crc).ok_or(JournalError::Rotten)
    }

    fn check(&self, batch: u64, chunk: &[TableEntry], data: &Bufs) -> Result<(), JournalError> {
        for (n, entry) in chunk.iter().enumerate() {
            let from = n * PART_BYTES as usize;
            let data = data.view(from..from + PART_BYTES as usize);
            if part_sum(self.owner.grid_disk, batch, entry.part, data) != entry.sum {
                return Err(JournalError::Rotten);
            }
        }
        Ok(())
    }
}

/// Stretches of consecutive parts, each with the index of its first in the table.
fn stretches(entries: &[TableEntry]) -> Vec<(usize, Range<u64>)> {
    let mut out: Vec<(usize, Range<u64>)> = Vec::new();
    for (n, entry) in entries.iter().enumerate() {
        match out.last_mut() {
            Some((_, last)) if last.end == entry.part => last.end += 1,
            _ => out.push((n, entry.part..entry.part + 1)),
        }
    }
    out
}

/// Of which moment of the grid disk its disk is; none when that is not known.
pub(crate) fn as_of(journal: &Journal) -> Option<WallTime> {
    journal.now().filter(|header| journal.is_void() && header.as_of > WallTime(0)).map(|header| header.as_of)
}
