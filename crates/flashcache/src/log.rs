//! The log of one member: append points, open chunks, pending records, chunk writes and their durability.
//!
//! Pure state: every method works on memory under the member's log lock and returns the writes to issue. It never does
//! I/O and never waits.

pub(crate) mod carry;
mod freeing;
mod needed;
pub(crate) mod sizing;
mod space;
mod victims;
mod witness;

pub(crate) use freeing::SuccessorsDurable;
pub(crate) use space::{
    CHUNK_DATA_PAGES_MAX, CLEANED_GAIN_MIN, DIRTY_CHUNKS_MAX, DIRTY_RESERVE_SEGMENTS, FILL_RESERVE_SEGMENTS,
    MOVE_RESERVE_SEGMENTS, PENDING_RECORDS_MAX, RECORD_RESERVE_SEGMENTS, Shape, WRITE_RESERVE_SEGMENTS,
};

pub(crate) use witness::{Parity, WitnessWrite, over};

use crate::base::units::{Opening, Page, Position, SegmentId};
use crate::format::{self, ChunkHeader, HeadKind, Owner, Record, SegmentLife};
use crate::member::undurable::Undurable;
use device::{Buf, Prng, SharedBuf, SharedBufs};
use space::DIRTY_SECOND_CHUNK_PAGES;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use witness::WitnessesOut;

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
    /// Things that had been appended when an entry of it last ended while it was dirty; 0: none has in this opening.
    superseded_at: u64,
    /// A write to it may take effect late.
    set_aside: bool,
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
    /// Of the headers of closed chunks, and what the last witness said of them.
    parity: Parity,
    witnessed: Parity,
}

/// A write to issue.
pub(crate) struct LogWrite {
    pub(crate) id: u64,
    pub(crate) segment: SegmentId,
    pub(crate) position: u32,
    pub(crate) pages: u32,
    pub(crate) data: SharedBufs,
    /// Of a chunk its own, of a footer that of the last chunk.
    pub(crate) sequence: u64,
    /// Up to where the member was durable, as the header or the trailer says.
    pub(crate) durable: u64,
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

pub(crate) struct LogState {
    pub(crate) shape: Shape,
    owner: Owner,
    prng: Prng,
    /// The life of the member, and the segments opened in it.
    pub(crate) life: u32,
    opened: u32,
    pub(crate) segments: Vec<Segment>,
    /// A broken build: a chunk counts as of an earlier life where its opening is.
    pub(crate) goes_by_openings: bool,
    /// Opened segments whose footer is not known to be durable.
    unproven: BTreeSet<SegmentId>,
    /// Where a flush may lose writes: the records of full segments whose footer no flush has covered, from which a lost header or footer is
    /// made again. Bounded by the pages that wait for a flush.
    full_records: Option<BTreeMap<SegmentId, (SegmentLife, Vec<Record>)>>,
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
    /// Witnesses on their way to the device.
    witnesses: WitnessesOut,
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
            superseded_at: 0,
            set_aside: false,
            unwritten: BTreeSet::new(),
        };
        LogState {
            shape,
            owner,
            prng,
            life,
            opened: 0,
            segments: vec![blank; shape.segments as usize],
            goes_by_openings: false,
            unproven: BTreeSet::new(),
            full_records: None,
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
            witnesses: WitnessesOut::default(),
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

    /// Sealed segments of the heads of dirty data.
    pub(crate) fn sealed_dirty(&self) -> impl Iterator<Item = (SegmentId, HeadKind)> + '_ {
        HeadKind::DIRTY.into_iter().flat_map(|head| self.sealed[head as usize].iter().map(move |&id| (id, head)))
    }

    /// How many there are.
    pub(crate) fn dirty_segments(&self) -> usize {
        HeadKind::DIRTY.iter().map(|&head| self.sealed[head as usize].len()).sum()
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
            && self.is_witnessed()
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
    ///
    /// # Panics
    /// When it is a free record: see [`LogState::append_free`].
    pub(crate) fn append_record(&mut self, record: Record) {
        assert!(!matches!(record, Record::Free { .. }), "a segment is freed with a proof");
        self.append_any(record);
    }

    fn append_any(&mut self, record: Record) {
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
        segment.superseded_at = 0;
        let opening = segment.opening;
        self.set_state(id, SegmentState::Open(head));
        self.unproven.insert(id);
        let life = SegmentLife { segment: id, opening, head };
        let parity = Parity::new(self.shape);
        let witnessed = parity.clone();
        let open = OpenSegment { life, next: 0, records: Vec::new(), records_bytes: 0, chunk: None, parity, witnessed };
        self.heads[head as usize] = Some(open);
    }

    /// A flush may lose writes: keep the records of full segments until a flush has covered their footers.
    pub(crate) fn keep_full_records(&mut self) {
        self.full_records = Some(BTreeMap::new());
    }

    /// The records of a segment whose footer no flush has covered, chunk by chunk.
    pub(crate) fn records_of(&self, id: SegmentId) -> Option<(SegmentLife, Vec<Record>)> {
        let open = self.heads.iter().flatten().find(|open| open.life.segment == id);
        let open = open.map(|open| (open.life, open.records.clone()));
        open.or_else(|| self.full_records.as_ref()?.get(&id).cloned())
    }

    /// The head in whose open chunk a page is.
    pub(crate) fn open_chunk_of(&self, page: Page) -> Option<HeadKind> {
        let (id, position) = self.shape.place(page);
        let SegmentState::Open(head) = self.segments[id.0 as usize].state else { return None };
        let chunk = self.heads[head as usize].as_ref()?.chunk.as_ref()?;
        (position.0 >= chunk.position).then_some(head)
    }

    /// The first page of the head's open chunk, if there is one, in its segment's opening.
    pub(crate) fn open_chunk(&self, head: HeadKind) -> Option<(Opening, u32)> {
        let open = self.heads[head as usize].as_ref()?;
        Some((open.life.opening, open.chunk.as_ref()?.position))
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
        open.parity.add(&page, sequence);
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
        let (sequence, durable) = (self.segments[segment.0 as usize].last_sequence, self.durable);
        LogWrite { id, segment, position, pages, data, sequence, durable, chunk_of }
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
        if let Some(records) = &mut self.full_records {
            records.insert(id, (open.life, open.records));
        }
        let footer = self.log_write(id, position, data, None);
        // A footer lies where the witness was: it is written after it.
        writes.extend(self.witnesses.hold_footer(footer));
    }

    /// Write the footers of all segments being appended to. No chunk is open.
    pub(crate) fn seal_all(&mut self, writes: &mut Vec<LogWrite>) {
        HeadKind::ALL.into_iter().for_each(|head| self.seal(head, writes));
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
    pub(crate) fn reopen(&mut self, life: SegmentLife, next: u32, records: Vec<Record>, parity: Parity) -> bool {
        let (id, head) = (life.segment, life.head);
        let records_bytes = records.iter().map(Record::encoded_bytes).sum();
        let room = self.shape.takes(next, 0, records_bytes) && self.heads[head as usize].is_none();
        if !room || !self.take_out(id, head) {
            return false;
        }
        self.set_state(id, SegmentState::Open(head));
        self.unproven.insert(id);
        let witnessed = Parity::new(self.shape);
        let open = OpenSegment { life, next, records, records_bytes, chunk: None, parity, witnessed };
        self.heads[head as usize] = Some(open);
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
                if let Some(records) = &mut self.full_records {
                    records.remove(&id);
                }
            }
        }
    }

    /// What the policy asks to be told after a restart, if that is not said yet.
    pub(crate) fn say_policy_note(&mut self, note: u8) {
        if self.policy_note != note {
            self.policy_note = note;
            self.append_record(Record::PolicyNote { note });
        }
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
