//! The log of one member: append points, open chunks, pending records, chunk writes and their durability.
//!
//! Pure state: every method works on memory under the member's log lock and returns the writes to issue. It never does
//! I/O and never waits.

use crate::carry::Carried;
use crate::copy::open_heads;
use crate::format::{self, ChunkHeader, HeadKind, Owner, Record, SegmentLife};
use crate::live::Live;
use crate::reclaim::free_segments_low;
use crate::undurable::Undurable;
use crate::units::{Opening, Page, Position, SegmentId};
use device::{Buf, Prng, SharedBuf, SharedBufs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Data pages of a chunk: 256 KiB, so that one header page costs under 2 %.
pub(crate) const CHUNK_DATA_PAGES_MAX: u32 = 64;
/// Records that may wait for the next chunk before a writer has to wait for it: a few header pages' worth.
pub(crate) const PENDING_RECORDS_MAX: usize = 4096;
/// Free segments that fills leave to records and reclaim.
pub(crate) const FILL_RESERVE_SEGMENTS: usize = 3;

/// Free segments that marks of writes leave to reclaim: one for what it records, one for what is recorded meanwhile.
pub(crate) const WRITE_RESERVE_SEGMENTS: usize = 2;
/// Free segments that dirty data leaves. Only the disk frees what it takes, and whoever waits for a segment may hold the
/// range that would have to be destaged: so it never takes what marks wait for.
pub(crate) const DIRTY_RESERVE_SEGMENTS: usize = WRITE_RESERVE_SEGMENTS + 1;
/// Chunks of dirty data under way at a time.
pub(crate) const DIRTY_CHUNKS_MAX: usize = 2;
/// Pages of dirty data that justify a second chunk under way: with fewer, they wait for the first to end, and whoever comes meanwhile shares
/// their header. A header for each 8 KiB write took a third of the segments of dirty data.
const DIRTY_SECOND_CHUNK_PAGES: u32 = 16;
/// Free segments that blocks moved by reclaim leave to its records.
pub(crate) const MOVE_RESERVE_SEGMENTS: usize = 1;
/// Free segments that records of everybody else leave to those of reclaim: with the free record it gives more than it takes.
pub(crate) const RECORD_RESERVE_SEGMENTS: usize = 1;
/// Cleaning a segment frees at least one in so many of the pages of data it can hold.
pub(crate) const CLEANED_GAIN_MIN: u32 = 16;
/// Chunks that are closed before they are full for one segment that is cleaned: of its copies, at two heads, and of records.
const CHUNKS_CLOSED: u64 = 3;
/// KEEP data takes at most four fifths of the segments, the vendor's share: the rest lets DEFAULT data find out what is worth it.
const KEEP_FIFTHS_MAX: usize = 4;
/// Segments that KEEP and dirty data together leave to others: those that reclaim holds free, one open for each other head, and
/// one for reclaim to give back. With them, when nothing but KEEP and dirty data is left, KEEP is beyond its share, so that
/// reclaim always finds something.
fn keep_leaves_segments(segments: usize) -> usize {
    free_segments_low(segments as u32) as usize + open_heads(segments as u32)
}

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Its free record is durable; nothing of it is believed.
    Free,
    /// Being appended to.
    Open(HeadKind),
    /// Full, or found so at recovery.
    Sealed(HeadKind),
    /// Its blocks are being moved or dropped, or its free record is not durable yet.
    Reclaiming,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Its last opening.
    pub(crate) opening: Opening,
    pub(crate) state: SegmentState,
    /// Its footer is durable, so that first page and footer each name its opening: older free records need not be kept. Until then one of
    /// the two may be of an older opening.
    pub(crate) proven: bool,
    /// It was in the keep head, unused for so long that its blocks count as others.
    pub(crate) aged: bool,
    /// The sequence of its last chunk; 0: none yet.
    pub(crate) last_sequence: u64,
    /// When it was full, by the log's clock.
    pub(crate) full_at: u64,
    /// It has its place among the others since this sequence, not since it was full; 0: since it was full.
    pub(crate) kept_at: u64,
    /// Cleaning it has left so many pages behind: it is not cleaned again until others of it die.
    pub(crate) left_with: Option<u32>,
    /// Positions of chunks and footers not yet written, open chunk included.
    pub(crate) unwritten: BTreeSet<u32>,
}

struct OpenChunk {
    position: u32,
    data: SharedBufs,
    data_pages: u32,
    records: Vec<Record>,
    records_bytes: usize,
}

struct OpenSegment {
    life: SegmentLife,
    /// First page after the last closed chunk.
    next: u32,
    /// Records of closed chunks, for the footer.
    records: Vec<Record>,
    records_bytes: usize,
    chunk: Option<OpenChunk>,
}

/// A write to issue.
pub(crate) struct LogWrite {
    pub(crate) id: u64,
    pub(crate) segment: SegmentId,
    pub(crate) position: u32,
    pub(crate) pages: u32,
    pub(crate) data: SharedBufs,
    /// None: a footer.
    pub(crate) chunk_of: Option<HeadKind>,
}

/// A write that has completed.
#[derive(Clone, Copy)]
pub(crate) struct WriteDone {
    pub(crate) id: u64,
    pub(crate) segment: SegmentId,
    pub(crate) position: u32,
    pub(crate) pages: u32,
    pub(crate) chunk_of: Option<HeadKind>,
}

impl LogWrite {
    /// What is left to tell when it has completed.
    pub(crate) fn done(&self) -> WriteDone {
        let LogWrite { id, segment, position, pages, chunk_of, .. } = *self;
        WriteDone { id, segment, position, pages, chunk_of }
    }
}

/// No segment to append to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSpace;

/// Shape of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) segments: u32,
    pub(crate) segment_pages: u32,
    /// Pages per true page of the device: chunks start and end on these.
    pub(crate) align: u32,
}

impl Shape {
    pub(crate) fn header_capacity(&self) -> usize {
        self.align as usize * 4096 - format::CHUNK_FIXED_BYTES
    }
    pub(crate) fn footer_pages(&self, records_bytes: usize) -> u32 {
        (format::footer_bytes(records_bytes, self.align as usize * 4096) / 4096) as u32
    }
    /// Whether a segment takes a chunk of `data_pages` at `position` and, after `records_bytes` of records so far, its footer:
    /// the chunk may fill its header with pending records when it is closed.
    pub(crate) fn takes(&self, position: u32, data_pages: u32, records_bytes: usize) -> bool {
        let end = position + (self.align + data_pages).next_multiple_of(self.align);
        end + self.footer_pages(records_bytes + 16 + self.header_capacity()) <= self.segment_pages
    }
    /// Whether a fresh segment takes a block of `pages` in a chunk whose header is full, and the footer for that.
    pub(crate) fn holds(&self, pages: u32) -> bool {
        let footer = self.footer_pages(16 + self.header_capacity());
        (self.align + pages).next_multiple_of(self.align) + footer <= self.segment_pages
    }
    pub(crate) fn page(&self, segment: SegmentId, position: u32) -> Page {
        format::page_of(segment, Position(position), self.segment_pages)
    }
    pub(crate) fn place(&self, page: Page) -> (SegmentId, Position) {
        (SegmentId(page.0 / self.segment_pages), Position(page.0 % self.segment_pages))
    }
}

pub(crate) struct LogState {
    pub(crate) shape: Shape,
    owner: Owner,
    prng: Prng,
    /// The life of the member, and the segments opened in it.
    pub(crate) life: u32,
    opened: u32,
    pub(crate) segments: Vec<Segment>,
    /// Opened segments whose footer is not known to be durable.
    unproven: BTreeSet<SegmentId>,
    /// For readers without the lock: the position of each segment below which pages are on the device.
    readable: Arc<[AtomicU32]>,
    /// For readers without the lock: whether a segment is one of the keep head.
    kept: Arc<[AtomicBool]>,
    /// Segments of the keep head to be reclaimed when segments are plenty, since little of them is left.
    pub(crate) cleaning: VecDeque<SegmentId>,
    pub(crate) free: VecDeque<SegmentId>,
    pub(crate) sealed: [VecDeque<SegmentId>; HeadKind::COUNT],
    /// The last note of the policy that was said.
    pub(crate) policy_note: u8,
    heads: [Option<OpenSegment>; HeadKind::COUNT],
    /// Pages of data appended so far: the time by which segments age.
    pub(crate) clock: u64,
    /// Records that go into the next chunk closed, whichever head's it is.
    pending: VecDeque<Record>,
    /// Data of pages not yet written, by page.
    pub(crate) staged: BTreeMap<u32, SharedBuf>,
    sequence: Arc<AtomicU64>,
    next_write_id: u64,
    /// Writes issued and not completed.
    pub(crate) writes_outstanding: BTreeSet<u64>,
    /// Things appended so far, and how many of them are durable.
    pub(crate) appended: u64,
    pub(crate) synced: u64,
    pub(crate) syncing: bool,
    /// The sequence of the last chunk closed, and up to which one every chunk is durable; 0: not known.
    last_closed: u64,
    durable: u64,
    /// Where that last chunk is.
    link: Option<Record>,
    /// Deaths of dirty entries, each to be said once so many things are durable: before, the successor may be lost and the
    /// dead entry be what counts.
    deferred: VecDeque<(u64, Record)>,
    dirty_chunks: usize,
    /// The writes that no flush has covered, where the device has a volatile cache.
    pub(crate) undurable: Undurable,
    /// Reclaim gives a segment up and has not said so durably: it is going to need room for what it says.
    pub(crate) reclaims: bool,
}

impl std::fmt::Debug for LogState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sealed: Vec<usize> = self.sealed.iter().map(VecDeque::len).collect();
        // By head: none; a segment; one with a chunk.
        let open: String = self
            .heads
            .iter()
            .map(|head| head.as_ref().map_or('-', |h| if h.chunk.is_some() { '+' } else { '.' }))
            .collect();
        let given_up = |&(_, segment): &(usize, &Segment)| segment.state == SegmentState::Reclaiming;
        let given_up: Vec<usize> = self.segments.iter().enumerate().filter(given_up).map(|(id, _)| id).collect();
        write!(
            f,
            "{} free, sealed {sealed:?}, open {open}, {} staged, {} pending, {} deferred, {} writes out, \
             {} dirty ones, syncing {}, synced {} of {}, reclaims {}, being given up {given_up:?}",
            self.free.len(),
            self.staged.len(),
            self.pending.len(),
            self.deferred.len(),
            self.writes_outstanding.len(),
            self.dirty_chunks,
            self.syncing,
            self.synced,
            self.appended,
            self.reclaims
        )
    }
}

impl LogState {
    pub(crate) fn new(shape: Shape, owner: Owner, life: u32, sequence: Arc<AtomicU64>, prng: Prng) -> LogState {
        let blank = Segment {
            opening: Opening::NEVER,
            state: SegmentState::Free,
            proven: false,
            aged: false,
            last_sequence: 0,
            full_at: 0,
            kept_at: 0,
            left_with: None,
            unwritten: BTreeSet::new(),
        };
        LogState {
            shape,
            owner,
            prng,
            life,
            opened: 0,
            segments: vec![blank; shape.segments as usize],
            unproven: BTreeSet::new(),
            readable: (0..shape.segments).map(|_| AtomicU32::new(u32::MAX)).collect(),
            kept: (0..shape.segments).map(|_| AtomicBool::new(false)).collect(),
            cleaning: VecDeque::new(),
            free: VecDeque::new(),
            sealed: Default::default(),
            policy_note: 0,
            heads: Default::default(),
            clock: 0,
            pending: VecDeque::new(),
            staged: BTreeMap::new(),
            sequence,
            next_write_id: 0,
            writes_outstanding: BTreeSet::new(),
            appended: 0,
            synced: 0,
            syncing: false,
            last_closed: 0,
            durable: 0,
            link: None,
            deferred: VecDeque::new(),
            dirty_chunks: 0,
            undurable: Undurable::default(),
            reclaims: false,
        }
    }

    pub(crate) fn readable(&self) -> Arc<[AtomicU32]> {
        self.readable.clone()
    }

    pub(crate) fn kept(&self) -> Arc<[AtomicBool]> {
        self.kept.clone()
    }

    /// In which opening the segment of a page is.
    pub(crate) fn opening_at(&self, page: Page) -> Opening {
        self.segments[self.shape.place(page).0.0 as usize].opening
    }

    /// How many pages were appended since that of a page was full.
    pub(crate) fn age_of(&self, page: Page) -> u64 {
        let segment = &self.segments[self.shape.place(page).0.0 as usize];
        if matches!(segment.state, SegmentState::Open(_)) { 0 } else { self.clock.saturating_sub(segment.full_at) }
    }

    /// A segment goes on in its life.
    pub(crate) fn set_state(&mut self, id: SegmentId, state: SegmentState) {
        self.segments[id.0 as usize].state = state;
        let kept = matches!(state, SegmentState::Open(HeadKind::Keep) | SegmentState::Sealed(HeadKind::Keep));
        self.kept[id.0 as usize].store(kept, Ordering::Release);
    }

    /// Segments the keep head may have now, its open one included.
    pub(crate) fn keep_segments_max(&self) -> usize {
        let all = self.segments.len();
        let dirty = self.dirty_segments();
        (all * KEEP_FIFTHS_MAX / 5).min(all.saturating_sub(keep_leaves_segments(all) + dirty))
    }

    /// Segments the keep head has, its open one included.
    pub(crate) fn keep_segments(&self) -> usize {
        let keep = HeadKind::Keep as usize;
        self.sealed[keep].len() + usize::from(self.heads[keep].is_some())
    }

    /// Sealed segments of the heads of dirty data.
    pub(crate) fn sealed_dirty(&self) -> impl Iterator<Item = (SegmentId, HeadKind)> + '_ {
        HeadKind::DIRTY.into_iter().flat_map(|head| self.sealed[head as usize].iter().map(move |&id| (id, head)))
    }

    /// How many there are.
    pub(crate) fn dirty_segments(&self) -> usize {
        HeadKind::DIRTY.iter().map(|&head| self.sealed[head as usize].len()).sum()
    }

    /// Take a sealed segment out of a head; false when it is not there any more.
    fn take_out(&mut self, id: SegmentId, head: HeadKind) -> bool {
        let queue = &mut self.sealed[head as usize];
        queue.iter().position(|&other| other == id).is_some_and(|at| queue.remove(at).is_some())
    }

    /// A sealed segment becomes the youngest of another head, as it is, unless it has left this one.
    pub(crate) fn change_head(&mut self, id: SegmentId, from: HeadKind, to: HeadKind) {
        if self.take_out(id, from) {
            self.set_state(id, SegmentState::Sealed(to));
            let segment = &mut self.segments[id.0 as usize];
            (segment.aged, segment.left_with) = (false, None);
            self.sealed[to as usize].push_back(id);
            self.say_kept(id, to);
        }
    }

    /// A segment of the keep head has aged: it becomes the oldest of the main head.
    pub(crate) fn age(&mut self, id: SegmentId) {
        if self.take_out(id, HeadKind::Keep) {
            self.set_state(id, SegmentState::Sealed(HeadKind::Main));
            self.segments[id.0 as usize].aged = true;
            self.sealed[HeadKind::Main as usize].push_front(id);
        }
    }

    /// The next segment of the keep head that is to be cleaned, taken as a victim.
    pub(crate) fn take_cleaning(&mut self) -> Option<SegmentId> {
        while let Some(id) = self.cleaning.pop_front() {
            if self.take(id, HeadKind::Keep) {
                return Some(id);
            }
        }
        None
    }

    /// Keep the lock-free view of what can be read from the device true; called whenever `unwritten` changes.
    fn update_readable(&self, segment: SegmentId) {
        let below = self.segments[segment.0 as usize].unwritten.first().copied().unwrap_or(u32::MAX);
        self.readable[segment.0 as usize].store(below, Ordering::Release);
    }

    /// Nothing waits, nothing is under way, and no segment is between two states: all there is to know is durable.
    pub(crate) fn rests(&self) -> bool {
        let busy = |segment: &Segment| segment.state == SegmentState::Reclaiming || !segment.unwritten.is_empty();
        self.pending_records() == 0
            && self.staged.is_empty()
            && self.writes_outstanding.is_empty()
            && !self.syncing
            && self.synced >= self.appended
            && !self.heads.iter().flatten().any(|head| head.chunk.is_some())
            && !self.segments.iter().any(busy)
    }

    /// The next sequence of the cell.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// A random number.
    pub(crate) fn draw(&mut self) -> u64 {
        self.prng.next_u64()
    }

    /// Chunks written from now on come after `sequence - 1`.
    pub(crate) fn set_next_sequence(&self, sequence: u64) {
        self.sequence.fetch_max(sequence, Ordering::AcqRel);
    }

    /// Add a record to what the next chunk carries.
    pub(crate) fn append_record(&mut self, record: Record) {
        self.pending.push_back(record);
        self.appended += 1;
    }

    /// Say it when everything appended so far is durable: at once where it is, as in recovery, since no sync would come to that.
    pub(crate) fn append_once_durable(&mut self, record: Record) {
        if self.appended <= self.synced && self.deferred.is_empty() {
            self.append_record(record);
        } else {
            self.deferred.push_back((self.appended, record));
        }
    }

    pub(crate) fn pending_records(&self) -> usize {
        self.pending.len() + self.deferred.len()
    }

    /// What a sync that begins now makes durable: things appended, chunks closed.
    pub(crate) fn covered(&self) -> (u64, u64) {
        (self.appended, self.last_closed)
    }

    /// That sync has ended well.
    pub(crate) fn set_synced(&mut self, (appended, closed): (u64, u64)) {
        self.synced = self.synced.max(appended);
        self.durable = self.durable.max(closed);
        while let Some((after, _)) = self.deferred.front()
            && *after <= self.synced
        {
            let record = self.deferred.pop_front();
            record.into_iter().for_each(|(_, record)| self.append_record(record));
        }
    }

    /// Send dirty data on its way, unless enough of it is under way: then the end of that will.
    pub(crate) fn push_dirty(&mut self, writes: &mut Vec<LogWrite>) {
        let waiting = self.heads[HeadKind::Dirty as usize].as_ref().and_then(|open| open.chunk.as_ref());
        let is_much = waiting.is_some_and(|chunk| chunk.data_pages >= DIRTY_SECOND_CHUNK_PAGES);
        if self.dirty_chunks == 0 || (is_much && self.dirty_chunks < DIRTY_CHUNKS_MAX) {
            self.close_chunk(HeadKind::Dirty, writes);
        }
    }

    /// Whether a segment's pages from `position` on, so many, and all before them, are on the device: a walk finds them
    /// after the death of the process.
    pub(crate) fn has_arrived(&self, segment: SegmentId, position: Position) -> bool {
        self.segments[segment.0 as usize].unwritten.first().is_none_or(|&first| first > position.0)
    }

    /// Add an entry's data at a head, leaving `reserve` segments free. Its first page.
    pub(crate) fn append_entry(
        &mut self,
        head: HeadKind,
        record: &dyn Fn(Position) -> Record,
        data: SharedBufs,
        reserve: usize,
        writes: &mut Vec<LogWrite>,
    ) -> Result<Page, NoSpace> {
        let pages = (data.len_bytes() / 4096) as u32;
        let record_bytes = record(Position(0)).encoded_bytes();
        self.make_room(head, pages, record_bytes, reserve, writes)?;
        let align = self.shape.align;
        let Some(open) = &mut self.heads[head as usize] else { unreachable!("room was made at this head") };
        let Some(chunk) = &mut open.chunk else { unreachable!("room was made in this chunk") };
        let position = chunk.position + align + chunk.data_pages;
        let record = record(Position(position));
        chunk.records_bytes += record.encoded_bytes();
        chunk.records.push(record);
        let page = self.shape.page(open.life.segment, position);
        let mut at = page.0;
        for piece in data.pieces() {
            // Staged page by page, so that a part is found without searching.
            for k in 0..piece.len() / 4096 {
                self.staged.insert(at, piece.slice(k * 4096..(k + 1) * 4096));
                at += 1;
            }
        }
        chunk.data.append(data);
        chunk.data_pages += pages;
        self.clock += u64::from(pages);
        self.appended += 1;
        if chunk.data_pages >= CHUNK_DATA_PAGES_MAX {
            self.close_chunk(head, writes);
        }
        Ok(page)
    }

    /// See to it that the head has an open chunk with room for `pages` and `record_bytes`.
    fn make_room(
        &mut self,
        head: HeadKind,
        pages: u32,
        record_bytes: usize,
        reserve: usize,
        writes: &mut Vec<LogWrite>,
    ) -> Result<(), NoSpace> {
        if self.chunk_takes(head, pages, record_bytes) {
            return Ok(());
        }
        self.close_chunk(head, writes);
        if let Some(open) = &self.heads[head as usize]
            && !self.shape.takes(open.next, pages, open.records_bytes)
        {
            self.seal(head, writes);
        }
        // Once none is free, what is left of the open ones is for those who may take the last: but dirty data has its own.
        let own = head == HeadKind::Dirty && pages > 0;
        if self.free.is_empty() && reserve > 0 && !own {
            return Err(NoSpace);
        }
        if self.heads[head as usize].is_none() {
            let share_full = head == HeadKind::Keep && self.keep_segments() >= self.keep_segments_max();
            if self.free.len() <= reserve || share_full || self.is_spent() {
                return Err(NoSpace);
            }
            self.open(head);
        }
        let Some(open) = &mut self.heads[head as usize] else { unreachable!("just opened") };
        let position = open.next;
        open.chunk =
            Some(OpenChunk { position, data: SharedBufs::new(), data_pages: 0, records: Vec::new(), records_bytes: 0 });
        let id = open.life.segment;
        self.segments[id.0 as usize].unwritten.insert(position);
        self.update_readable(id);
        Ok(())
    }

    /// Whether the head's open chunk has room for `pages` and `record_bytes`.
    fn chunk_takes(&self, head: HeadKind, pages: u32, record_bytes: usize) -> bool {
        let Some(open) = &self.heads[head as usize] else { return false };
        let Some(chunk) = &open.chunk else { return false };
        chunk.data_pages + pages <= CHUNK_DATA_PAGES_MAX
            && chunk.records_bytes + record_bytes <= self.shape.header_capacity()
            && self.shape.takes(chunk.position, chunk.data_pages + pages, open.records_bytes)
    }

    /// Free segments that data at a head leaves to others: `reserve`, and while the small head has no segment one more. The next records open
    /// that one, and there may be nothing to reclaim in its place.
    pub(crate) fn left_by(&self, head: HeadKind, reserve: usize) -> usize {
        reserve + usize::from(head != HeadKind::Small && self.heads[HeadKind::Small as usize].is_none())
    }

    /// Whether an entry is sure to be taken at a head: one that is not may be taken all the same.
    pub(crate) fn surely_takes(&self, head: HeadKind, pages: u32, record_bytes: usize, reserve: usize) -> bool {
        self.free.len() > reserve || self.chunk_takes(head, pages, record_bytes)
    }

    /// Openings have no number left in this life of the member.
    pub(crate) fn is_spent(&self) -> bool {
        self.opened == u32::MAX
    }

    fn open(&mut self, head: HeadKind) {
        let Some(id) = self.free.pop_front() else { unreachable!("the caller looked") };
        self.opened += 1;
        let segment = &mut self.segments[id.0 as usize];
        assert_eq!(segment.state, SegmentState::Free, "only a free segment is opened");
        segment.opening = Opening::new(self.life, self.opened);
        segment.proven = false;
        segment.aged = false;
        segment.last_sequence = 0;
        segment.kept_at = 0;
        let opening = segment.opening;
        self.set_state(id, SegmentState::Open(head));
        self.unproven.insert(id);
        let life = SegmentLife { segment: id, opening, head };
        self.heads[head as usize] =
            Some(OpenSegment { life, next: 0, records: Vec::new(), records_bytes: 0, chunk: None });
    }

    /// The head in whose open chunk a page is.
    pub(crate) fn open_chunk_of(&self, page: Page) -> Option<HeadKind> {
        let (id, position) = self.shape.place(page);
        let SegmentState::Open(head) = self.segments[id.0 as usize].state else { return None };
        let chunk = self.heads[head as usize].as_ref()?.chunk.as_ref()?;
        (position.0 >= chunk.position).then_some(head)
    }

    /// Close the head's open chunk, with as many pending records as fit.
    pub(crate) fn close_chunk(&mut self, head: HeadKind, writes: &mut Vec<LogWrite>) {
        let shape = self.shape;
        let Some(open) = &mut self.heads[head as usize] else { return };
        let Some(mut chunk) = open.chunk.take() else { return };
        if let Some(link) = self.link.take()
            && chunk.records_bytes + link.encoded_bytes() <= shape.header_capacity()
        {
            chunk.records_bytes += link.encoded_bytes();
            chunk.records.push(link);
        }
        while let Some(record) = self.pending.front() {
            if chunk.records_bytes + record.encoded_bytes() > shape.header_capacity() {
                break;
            }
            chunk.records_bytes += record.encoded_bytes();
            chunk.records.extend(self.pending.pop_front());
        }
        let pages = (shape.align + chunk.data_pages).next_multiple_of(shape.align);
        let sequence = self.sequence.fetch_add(1, Ordering::AcqRel);
        self.last_closed = sequence;
        let SegmentLife { segment, opening, .. } = open.life;
        self.link = Some(Record::Link { segment, opening, sequence, certain: false });
        let (position, durable) = (Position(chunk.position), self.durable);
        let header = ChunkHeader { owner: self.owner, life: open.life, position, pages, sequence, durable };
        let mut page = Buf::zeroed(shape.align as usize * 4096);
        format::encode_chunk(&header, &chunk.records, &mut page);
        let mut data = SharedBufs::from(page.freeze());
        data.append(chunk.data);
        let padding = pages as usize * 4096 - data.len_bytes();
        if padding > 0 {
            data.push(Buf::zeroed(padding).freeze());
        }
        open.records.push(Record::Chunk { position: Position(chunk.position), sequence });
        open.records_bytes += 16 + chunk.records_bytes;
        open.records.extend(chunk.records);
        open.next = chunk.position + pages;
        let segment = open.life.segment;
        self.segments[segment.0 as usize].last_sequence = sequence;
        self.dirty_chunks += usize::from(head == HeadKind::Dirty);
        writes.push(self.log_write(segment, chunk.position, data, Some(head)));
    }

    fn log_write(
        &mut self,
        segment: SegmentId,
        position: u32,
        data: SharedBufs,
        chunk_of: Option<HeadKind>,
    ) -> LogWrite {
        let id = self.next_write_id;
        self.next_write_id += 1;
        self.writes_outstanding.insert(id);
        let pages = (data.len_bytes() / 4096) as u32;
        LogWrite { id, segment, position, pages, data, chunk_of }
    }

    /// Write the head's footer and let go of the segment.
    fn seal(&mut self, head: HeadKind, writes: &mut Vec<LogWrite>) {
        let shape = self.shape;
        let Some(open) = self.heads[head as usize].take() else { return };
        assert!(open.chunk.is_none(), "a segment is sealed after its last chunk was closed");
        let bytes = format::encode_footer(
            self.owner,
            open.life,
            self.segments[open.life.segment.0 as usize].last_sequence,
            self.durable,
            &open.records,
            shape.align as usize * 4096,
        );
        let position = shape.segment_pages - (bytes.len() / 4096) as u32;
        assert!(position >= open.next, "a footer does not overlap the last chunk");
        let data = SharedBufs::from(Buf::padded(&bytes, 4096).freeze());
        let id = open.life.segment;
        self.set_state(id, SegmentState::Sealed(head));
        let segment = &mut self.segments[id.0 as usize];
        segment.unwritten.insert(position);
        (segment.full_at, segment.left_with) = (self.clock, None);
        self.update_readable(id);
        self.sealed[head as usize].push_back(id);
        writes.push(self.log_write(id, position, data, None));
    }

    /// Close every open chunk that holds anything, and as many further ones as the pending records need, leaving `reserve`
    /// segments free.
    ///
    /// # Errors
    /// No segment for some of the records: they stay pending.
    pub(crate) fn close_all(&mut self, reserve: usize, writes: &mut Vec<LogWrite>) -> Result<(), NoSpace> {
        for head in HeadKind::ALL {
            self.close_chunk(head, writes);
        }
        self.close_for_records(reserve, writes)
    }

    /// Whether a chunk is open.
    pub(crate) fn has_open_chunk(&self) -> bool {
        self.heads.iter().flatten().any(|head| head.chunk.is_some())
    }

    /// Close the open chunk of dirty data, and as many others, the fullest first, as the pending records need. What is clean may wait for
    /// company: a crash that loses it costs a miss, and a header for each head at each flush costs a sixth of the flash.
    ///
    /// # Errors
    /// As [`LogState::close_all`].
    pub(crate) fn close_for_records(&mut self, reserve: usize, writes: &mut Vec<LogWrite>) -> Result<(), NoSpace> {
        HeadKind::DIRTY.into_iter().for_each(|head| self.close_chunk(head, writes));
        while !self.pending.is_empty() {
            let held = |head: &HeadKind| Some((self.heads[*head as usize].as_ref()?.chunk.as_ref()?.data_pages, *head));
            if let Some((_, head)) = HeadKind::ALL.iter().filter_map(held).max_by_key(|(pages, _)| *pages) {
                self.close_chunk(head, writes);
                continue;
            }
            let head = match self.make_room(HeadKind::Small, 0, 0, reserve, writes) {
                Ok(()) => HeadKind::Small,
                Err(NoSpace) => {
                    let head = HeadKind::ALL.into_iter().find(|&head| self.has_room_left(head)).ok_or(NoSpace)?;
                    self.make_room(head, 0, 0, reserve, writes)?;
                    head
                }
            };
            self.close_chunk(head, writes);
        }
        Ok(())
    }

    /// Whether the segment a head is in takes another chunk of records.
    fn has_room_left(&self, head: HeadKind) -> bool {
        self.heads[head as usize].as_ref().is_some_and(|open| self.shape.takes(open.next, 0, open.records_bytes))
    }

    /// Go on in a segment that a crash has left without a footer, behind its last chunk. Recovery has overwritten what lay behind that.
    /// False when there is no room.
    pub(crate) fn reopen(&mut self, life: SegmentLife, next: u32, records: Vec<Record>) -> bool {
        let (id, head) = (life.segment, life.head);
        let records_bytes = records.iter().map(Record::encoded_bytes).sum();
        let room = self.shape.takes(next, 0, records_bytes) && self.heads[head as usize].is_none();
        if !room || !self.take_out(id, head) {
            return false;
        }
        self.set_state(id, SegmentState::Open(head));
        self.unproven.insert(id);
        self.heads[head as usize] = Some(OpenSegment { life, next, records, records_bytes, chunk: None });
        true
    }

    /// A write has completed: its pages are on the device now. Dirty data that waited for its turn goes next.
    pub(crate) fn written(&mut self, write: WriteDone, writes: &mut Vec<LogWrite>) {
        let WriteDone { id, segment, position, pages, chunk_of } = write;
        assert!(self.writes_outstanding.remove(&id), "a write completes once");
        assert!(self.segments[segment.0 as usize].unwritten.remove(&position), "a write was noted when issued");
        if chunk_of == Some(HeadKind::Dirty) {
            self.dirty_chunks -= 1;
            self.push_dirty(writes);
        }
        self.update_readable(segment);
        let first = self.shape.page(segment, position).0;
        let staged: Vec<u32> = self.staged.range(first..first + pages).map(|(&page, _)| page).collect();
        for page in staged {
            self.staged.remove(&page);
        }
    }

    /// The segments whose footer has been written: after the next device flush they are proven.
    pub(crate) fn provable(&self) -> Vec<(SegmentId, Opening)> {
        let ready = |id: &SegmentId| {
            let segment = &self.segments[id.0 as usize];
            let is_full = !matches!(segment.state, SegmentState::Open(_)) && segment.unwritten.is_empty();
            is_full.then_some((*id, segment.opening))
        };
        self.unproven.iter().filter_map(ready).collect()
    }

    /// Note that the segments' footers are durable.
    pub(crate) fn prove(&mut self, which: &[(SegmentId, Opening)]) {
        for &(id, opening) in which {
            let segment = &mut self.segments[id.0 as usize];
            if segment.opening == opening {
                segment.proven = true;
                self.unproven.remove(&id);
            }
        }
    }

    /// A link of a segment that is being reclaimed, as it is written again while it is the last chunk of a segment in use: otherwise nobody
    /// would notice that all of that segment had vanished.
    pub(crate) fn link_still_needed(&self, record: &Record, reclaiming: SegmentId) -> Option<Record> {
        let Record::Link { segment, opening, sequence, certain } = *record else { return None };
        let target = self.segments.get(segment.0 as usize)?;
        let is_last = target.opening == opening && target.last_sequence == sequence;
        if segment == reclaiming || !is_last || target.state == SegmentState::Free {
            return None;
        }
        // What an earlier life has left was made durable by recovery.
        let certain = certain || sequence <= self.durable || opening.life() < self.life;
        Some(Record::Link { segment, opening, sequence, certain })
    }

    /// Add a record found in a segment that is being reclaimed to what is written again, if it is still needed.
    pub(crate) fn carry(&self, record: &Record, reclaiming: SegmentId, carried: &mut Carried) {
        if let Some(link) = self.link_still_needed(record, reclaiming) {
            carried.add(&link);
        } else if self.still_needed(record, reclaiming) {
            carried.add(record);
        }
    }

    /// Whether a record found in a segment that is being reclaimed is still needed, so that it must be written again.
    pub(crate) fn still_needed(&self, record: &Record, reclaiming: SegmentId) -> bool {
        match record {
            Record::Invalidation { segment, opening, .. } => {
                *segment != reclaiming
                    && self
                        .segments
                        .get(segment.0 as usize)
                        .is_some_and(|target| target.opening == *opening && target.state != SegmentState::Free)
            }
            Record::Free { segment, opening } => self
                .segments
                .get(segment.0 as usize)
                .is_some_and(|target| !(target.opening > *opening && target.proven)),
            Record::Kept { segment, opening, sequence, .. } => {
                *segment != reclaiming
                    && self
                        .segments
                        .get(segment.0 as usize)
                        .is_some_and(|target| target.opening == *opening && target.kept_at <= *sequence)
            }
            Record::PolicyNote { note } => *note == self.policy_note,
            _ => false,
        }
    }

    /// Pages of sealed and open segments of the two clean heads.
    pub(crate) fn held(&self) -> crate::policy::HeadPages {
        let pages = |side: HeadKind| {
            let of = |head: &HeadKind| {
                let open = u64::from(self.heads[*head as usize].is_some());
                (self.sealed[*head as usize].len() as u64 + open) * u64::from(self.shape.segment_pages)
            };
            HeadKind::ALL.iter().filter(|head| head.side() == Some(side)).map(of).sum()
        };
        crate::policy::HeadPages { small: pages(HeadKind::Small), main: pages(HeadKind::Main) }
    }

    /// The oldest sealed segment of a head, or of those that are one to the policy, whose writes are all done.
    pub(crate) fn take_victim(&mut self, side: HeadKind) -> Option<SegmentId> {
        let is_one = |head: &&HeadKind| **head == side || head.side() == Some(side);
        let oldest = |head: &HeadKind| {
            let written = |id: &&SegmentId| self.segments[id.0 as usize].unwritten.is_empty();
            let id = *self.sealed[*head as usize].iter().find(written)?;
            let Segment { last_sequence, kept_at, .. } = self.segments[id.0 as usize];
            Some((last_sequence.max(kept_at), id, *head))
        };
        let (_, id, head) = HeadKind::ALL.iter().filter(is_one).filter_map(oldest).min_by_key(|(since, ..)| *since)?;
        self.take(id, head).then_some(id)
    }

    /// The sealed segment, of those that `may` be cleaned, that this gains most from, by what it holds that `live` says counts, with its head. None where all
    /// are so full of that that a copy of it gains less than one in [`CLEANED_GAIN_MIN`]. A segment that is written anew holds
    /// `data_pages`.
    ///
    /// Cost-benefit of Rosenblum and Ousterhout (1992): what comes free, times its age, for what is read and written. Young segments wait,
    /// since more of them is going to die. The age counts by its root: blocks are apart by their age already, and with all of it cleaning wrote
    /// a tenth more under zipfian overwrites.
    pub(crate) fn most_worth_cleaning(
        &self,
        live: &Live,
        data_pages: u32,
        may: &dyn Fn(SegmentId, HeadKind) -> bool,
    ) -> Option<(SegmentId, HeadKind)> {
        let mut best: Option<(u64, SegmentId, HeadKind)> = None;
        let all = u64::from(data_pages);
        for head in HeadKind::ALL {
            for &id in &self.sealed[head as usize] {
                let segment = &self.segments[id.0 as usize];
                if segment.left_with == Some(live.of(id)) {
                    continue;
                }
                let kept = u64::from(live.of(id));
                // Headers and padding of the chunks with what is copied and of those that are closed for it.
                let chunks = CHUNKS_CLOSED + kept / u64::from(CHUNK_DATA_PAGES_MAX);
                let gained = all.saturating_sub(kept + 2 * u64::from(self.shape.align) * chunks);
                if gained < (all / u64::from(CLEANED_GAIN_MIN)).max(1) || !segment.unwritten.is_empty() {
                    continue;
                }
                let age = self.clock.saturating_sub(segment.full_at) + all;
                // Scaled, so that the quotient is exact enough.
                let score = (gained << 20).saturating_mul(age.isqrt()) / (all + kept);
                if best.is_none_or(|(most, ..)| score > most) && may(id, head) {
                    best = Some((score, id, head));
                }
            }
        }
        best.map(|(_, id, head)| (id, head))
    }

    /// Take a sealed segment of a head as a victim, whatever its place; false when it is not there, or not on the device yet.
    pub(crate) fn take(&mut self, id: SegmentId, head: HeadKind) -> bool {
        let taken = self.segments[id.0 as usize].unwritten.is_empty() && self.take_out(id, head);
        if taken {
            self.set_state(id, SegmentState::Reclaiming);
        }
        taken
    }

    /// After a restart: the next segment, in their order, that is full.
    pub(crate) fn found_full(&mut self, id: SegmentId, head: HeadKind) {
        self.clock += u64::from(self.shape.segment_pages);
        self.segments[id.0 as usize].full_at = self.clock;
        self.sealed[head as usize].push_back(id);
    }

    /// A segment taken as a victim stays after all, as the youngest of a head.
    pub(crate) fn keep(&mut self, id: SegmentId, head: HeadKind) {
        assert_eq!(self.segments[id.0 as usize].state, SegmentState::Reclaiming, "only a victim is kept");
        self.set_state(id, SegmentState::Sealed(head));
        self.sealed[head as usize].push_back(id);
        self.say_kept(id, head);
    }

    /// The place of a segment among the others is worth finding again after a crash.
    fn say_kept(&mut self, segment: SegmentId, head: HeadKind) {
        let sequence = self.next_sequence();
        let kept = &mut self.segments[segment.0 as usize];
        kept.kept_at = sequence;
        let opening = kept.opening;
        self.append_record(Record::Kept { segment, opening, head, sequence });
    }

    /// What the policy asks to be told after a restart, if that is not said yet.
    pub(crate) fn say_policy_note(&mut self, note: u8) {
        if self.policy_note != note {
            self.policy_note = note;
            self.append_record(Record::PolicyNote { note });
        }
    }

    /// A reclaimed segment's free record is durable and nobody reads it: it may be opened again.
    pub(crate) fn release(&mut self, id: SegmentId) {
        assert_eq!(self.segments[id.0 as usize].state, SegmentState::Reclaiming, "only a reclaimed segment is freed");
        self.set_state(id, SegmentState::Free);
        self.free.push_back(id);
    }
}

#[cfg(test)]
impl LogState {
    /// A segment is given up and opened anew, as reclaim and the next append would; that opening.
    pub(crate) fn open_anew_for_test(&mut self, id: SegmentId) -> Opening {
        self.opened += 1;
        self.segments[id.0 as usize].opening = Opening::new(self.life, self.opened);
        self.segments[id.0 as usize].opening
    }

    /// Records that wait for the next chunk.
    pub(crate) fn take_pending_for_test(&mut self) -> Vec<Record> {
        self.pending.drain(..).collect()
    }
}

#[cfg(test)]
mod tests;
