//! What lies in a segment: its footer, its chunks one after the other, or what is left of them.

use crate::base::sabotage::Sabotage;
use crate::base::units::{Position, SegmentId};
use crate::format::{
    self, ChunkHeader, FORMAT_VERSION, FormatError, Owner, Record, Seen, SegmentLife, TRAILER_BYTES, Trailer, Witness,
};
use crate::log::over;
use crate::member::health::{Trouble, trouble};
use crate::member::{Member, MemberError};
use device::{Buf, Bufs, Outcome};

/// What a segment says, in its order.
pub(crate) struct Found<R> {
    pub(crate) life: SegmentLife,
    pub(crate) records: R,
    pub(crate) last_sequence: u64,
    /// What its headers say of the member: chunks up to this sequence were durable.
    pub(crate) durable: u64,
    pub(crate) footer: Footer,
    /// Headers a walk has seen; none where there was a footer.
    pub(crate) headers: Vec<WalkedHeader>,
    /// Why its first page is not what a first page is, if it is not: this is what the footer says, or chunks.
    pub(crate) headless: Option<Headless>,
    /// Where a walk has ended before the end of the segment.
    pub(crate) cut: Option<Cut>,
}

/// What lies where a walk finds no further chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// It cannot be read: a page that was being written when power failed, or one that has been lost.
    pub(crate) is_unread: bool,
    /// By the segment's witness a flush has covered the chunk that was here.
    pub(crate) was_durable: bool,
    /// Chunks of the same opening behind it, by their sequences: what was here was closed before them.
    pub(crate) behind: Vec<u64>,
}

/// Why a segment has no first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Headless {
    /// It reads as something else: its write may have been lost, undurable.
    Other,
    /// It cannot be read: a later opening may have begun there.
    Unread(Unread),
}

impl<R: Gather> Found<R> {
    fn begin(life: SegmentLife, footer: Footer) -> Found<R> {
        let (last_sequence, durable) = (0, 0);
        let (headers, headless, cut) = (Vec::new(), None, None);
        Found { life, records: R::default(), last_sequence, durable, footer, headers, headless, cut }
    }
}

/// A chunk's header as a walk has read it. It is not read twice: a page that was discarded, and whose write was lost, may read
/// as something else the next time.
pub(crate) struct WalkedHeader {
    pub(crate) header: ChunkHeader,
    pub(crate) page: Bytes,
    /// It is not there: it was made again from the segment's witness.
    pub(crate) is_rebuilt: bool,
}

/// What is kept of a segment's records while it is read.
pub(crate) trait Gather: Default + Send + Sync {
    /// The next record, of the chunk with this sequence.
    fn gather(&mut self, member: &Member, life: SegmentLife, sequence: u64, seen: Seen<'_>);
}

/// Each with the sequence of its chunk.
impl Gather for Vec<(u64, Record)> {
    fn gather(&mut self, _: &Member, _: SegmentLife, sequence: u64, seen: Seen<'_>) {
        self.push((sequence, Record::of(seen)));
    }
}

/// What was found at the end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Footer {
    /// Whole.
    Whole,
    /// A footer of this life whose records do not match their checksum.
    Torn,
    /// None of this life.
    None,
    /// It cannot be read: it may be there.
    Unreadable,
}

/// What the flash holds there is not known, and may say that something elsewhere is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    /// It did not answer.
    #[error("read at {offset}: {outcome:?}")]
    Failed { offset: u64, outcome: Outcome },
    /// Another release has written it.
    #[error(
        "the flash cache has format version {0}, and this release knows version {FORMAT_VERSION} alone\n\
         hint: with the release that wrote it flush and drop the flash cache, then create it with this one"
    )]
    Version(u16),
}

impl Unread {
    /// The device is gone: nothing else of it can be read either.
    fn is_of_device(self) -> bool {
        matches!(self, Unread::Failed { outcome, .. } if trouble(outcome) == Trouble::Gone)
    }

    /// It is these bytes that cannot be read: the device is there.
    pub(crate) fn is_of_part(self) -> bool {
        matches!(self, Unread::Failed { outcome, .. } if trouble(outcome) == Trouble::Part)
    }
}

impl From<Unread> for MemberError {
    fn from(why: Unread) -> MemberError {
        MemberError::Failed(format!("recovery: {why}"))
    }
}

/// So often what fails to be read is read: some errors pass, and what is not read ends the cache.
const READS_MAX: u32 = 3;

pub(crate) async fn read_bytes(member: &Member, offset: u64, len: usize) -> Result<Bytes, Unread> {
    let mut reads = 0;
    loop {
        let read = member.config.device.read(offset, Buf::zeroed(len).into());
        let outcome = match member.within_hard_limit(read).await {
            Some(done) if done.outcome == Outcome::Done => return Ok(Bytes::of(done.bufs)),
            done => done.map_or(Outcome::Unknown, |done| done.outcome),
        };
        reads += 1;
        if reads == READS_MAX || trouble(outcome) == Trouble::Gone {
            return Err(Unread::Failed { offset, outcome });
        }
        member.pause(reads).await;
    }
}

/// Read so many pages, one by one where not all of them can be read. With the numbers of those that cannot be, as a mask; in their place are
/// zeroes.
///
/// # Errors
/// The device does not answer.
pub(crate) async fn read_what_can_be(member: &Member, offset: u64, pages: usize) -> Result<(Bytes, u16), Unread> {
    match read_bytes(member, offset, pages * 4096).await {
        Ok(bytes) => return Ok((bytes, 0)),
        Err(why) if why.is_of_part() => {}
        Err(why) => return Err(why),
    }
    let (mut all, mut unread) = (vec![0; pages * 4096], 0);
    for (page, bytes) in all.chunks_exact_mut(4096).enumerate() {
        match read_bytes(member, offset + page as u64 * 4096, 4096).await {
            Ok(read) => bytes.copy_from_slice(&read),
            Err(why) if why.is_of_part() => unread |= 1 << page,
            Err(why) => return Err(why),
        }
    }
    Ok((Bytes::Copied(all), unread))
}

/// What was read, in one piece.
pub(crate) enum Bytes {
    Whole(Buf),
    Copied(Vec<u8>),
}

impl Bytes {
    fn of(bufs: Bufs) -> Bytes {
        let len = bufs.len_bytes();
        if bufs.pieces().len() == 1 {
            bufs.into_pieces().next().map_or_else(|| Bytes::Copied(Vec::new()), Bytes::Whole)
        } else {
            Bytes::Copied(bufs.to_vec(0..len))
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Whole(buf) => buf,
            Bytes::Copied(bytes) => bytes,
        }
    }
}

/// What lies in a segment.
pub(crate) enum Read<R> {
    /// An opening of it, by its footer or chunk by chunk.
    Found(Found<R>),
    /// No first page and no footer of an opening, but chunks of it: they are not to be believed, and say what was before them.
    Remnant(Found<R>),
    /// Neither first page nor footer can be read, and no chunk between them.
    Unread(Unread),
    /// Nothing of this owner.
    Blank,
}

/// Read what a segment says of itself: by its footer, or chunk by chunk.
///
/// # Errors
/// Another release has written it.
pub(crate) async fn read_segment<R: Gather>(member: &Member, id: SegmentId) -> Result<Read<R>, Unread> {
    let (shape, owner) = (member.shape, &member.config.owner);
    let unit = shape.align as usize * 4096;
    let segment_bytes = shape.segment_pages as usize * 4096;
    let start = u64::from(id.0) * segment_bytes as u64;
    let first = read_bytes(member, start, unit).await;
    let header = match first.as_ref().map(|first| format::visit_chunk(first, owner, &mut |_, _| {})) {
        Ok(Err(FormatError::Version(version))) => return Err(Unread::Version(version)),
        Ok(Ok(header)) if header.life.segment == id && header.position.0 == 0 => Some(header),
        _ => None,
    };
    let (first, life) = match (first, header) {
        (Ok(first), Some(header)) => (first, header.life),
        _ if member.sabotaged(Sabotage::RottenSegmentVanishes) => return Ok(Read::Blank),
        (first, _) => return read_headless(member, id, first).await,
    };
    let (footer, witness) = match read_footer(member, Some(life), id).await {
        Ok(found) => return Ok(Read::Found(found)),
        Err(NoFooter { is_later: true, .. }) if !member.sabotaged(Sabotage::EarlierFirstPageCounts) => {
            // Where a page was discarded and its write was lost, what was there before may come back, at any read.
            let first = Bytes::Copied(first.to_vec());
            match read_headless(member, id, Ok(first)).await? {
                Read::Found(found) if found.life.opening > life.opening => return Ok(Read::Found(found)),
                _ => (Footer::None, None),
            }
        }
        Err(NoFooter { footer, witness, .. }) => (footer, witness),
    };
    walk(member, life, Some(first), footer, witness).await.map(Read::Found)
}

/// The chunks of an opening, one after the other from the first page on, which has been read.
///
/// # Errors
/// The device does not answer.
async fn walk<R: Gather>(
    member: &Member,
    life: SegmentLife,
    first: Option<Bytes>,
    footer: Footer,
    witness: Option<Witness>,
) -> Result<Found<R>, Unread> {
    let (shape, owner) = (member.shape, &member.config.owner);
    let unit = shape.align as usize * 4096;
    let start = u64::from(life.segment.0) * u64::from(shape.segment_pages) * 4096;
    let witness = witness.filter(|witness| witness.life == life);
    let mut found = Found::<R>::begin(life, footer);
    found.durable = witness.as_ref().map_or(0, |witness| witness.durable);
    let (mut first, mut position) = (first, 0);
    while position + shape.align < shape.segment_pages {
        let page = match first.take() {
            Some(first) => Ok(first),
            None => read_bytes(member, start + u64::from(position) * 4096, unit).await,
        };
        let is_next = |page: &Bytes| next_header(page, owner, &found, position);
        let (header, page, is_rebuilt) = match (page.as_ref().ok().and_then(is_next), page) {
            (Some(header), Ok(page)) => (header, page, false),
            (_, Err(why)) if !why.is_of_part() || member.sabotaged(Sabotage::UnreadablePageEndsCache) => {
                return Err(why);
            }
            (_, page) => match rebuilt_header(member, &found, position, witness.as_ref()).await? {
                Ok((header, page)) => (header, page, true),
                Err(cut) => {
                    found.cut = Some(Cut { is_unread: page.is_err(), ..cut });
                    break;
                }
            },
        };
        found.last_sequence = header.sequence;
        found.durable = found.durable.max(header.durable);
        let gather = &mut |_: &ChunkHeader, seen: Seen<'_>| found.records.gather(member, life, header.sequence, seen);
        // Looked at before, so that nothing of a chunk that does not count is gathered.
        let _ = format::visit_chunk(&page, owner, gather);
        position += header.pages;
        found.headers.push(WalkedHeader { header, page, is_rebuilt });
    }
    Ok(found)
}

/// The header of the chunk that follows what has been found, if this page is one.
fn next_header<R>(page: &[u8], owner: &Owner, found: &Found<R>, position: u32) -> Option<ChunkHeader> {
    let header = format::visit_chunk(page, owner, &mut |_, _| {}).ok()?;
    let follows = found.headers.is_empty() || header.sequence > found.last_sequence;
    (header.life == found.life && header.position.0 == position && follows).then_some(header)
}

/// The header at a position where none is, from the witness and all others that it has: those before, and those behind.
///
/// Where it is not to be had: what that says of the segment.
///
/// # Errors
/// The device does not answer.
async fn rebuilt_header<R: Sync>(
    member: &Member,
    found: &Found<R>,
    position: u32,
    witness: Option<&Witness>,
) -> Result<Result<(ChunkHeader, Bytes), Cut>, Unread> {
    let mut behind = headers_behind(member, found, position).await?;
    let mut cut = Cut { behind: behind.iter().map(|(header, _)| header.sequence).collect(), ..Cut::default() };
    let Some(witness) = witness else { return Ok(Err(cut)) };
    behind.retain(|(header, _)| header.sequence <= witness.last_sequence);
    let before = found.headers.iter().filter(|walked| walked.header.sequence <= witness.last_sequence);
    let there = before.clone().count() + behind.len();
    cut.was_durable = before.clone().count() < witness.headers as usize;
    if there + 1 != witness.headers as usize {
        return Ok(Err(cut));
    }
    let mut page = witness.parity.clone();
    before.for_each(|walked| over(&mut page, format::used_bytes(&walked.page)));
    behind.iter().for_each(|(_, other)| over(&mut page, format::used_bytes(other)));
    page.resize(page.len() + TRAILER_BYTES, 0);
    let header = next_header(&page, &member.config.owner, found, position);
    Ok(header.map(|header| (header, Bytes::Copied(page))).ok_or(cut))
}

/// Headers of chunks of the same opening behind a position of it, whatever of them can be read.
///
/// # Errors
/// The device does not answer.
async fn headers_behind<R: Sync>(
    member: &Member,
    found: &Found<R>,
    position: u32,
) -> Result<Vec<(ChunkHeader, Vec<u8>)>, Unread> {
    let unit = member.shape.align as usize * 4096;
    let mut all: Vec<(ChunkHeader, Vec<u8>)> = Vec::new();
    let from = (position + member.shape.align) as usize * 4096;
    for_each_unit(member, found.life.segment, from, &mut |at, page| {
        let Ok(header) = format::visit_chunk(page, &member.config.owner, &mut |_, _| {}) else { return };
        let last = all.last().map_or(found.last_sequence, |(last, _)| last.sequence);
        let is_here = header.life == found.life && header.position.0 as usize * 4096 == at;
        if is_here && header.sequence > last {
            all.push((header, page[..unit].to_vec()));
        }
    })
    .await?;
    Ok(all)
}

/// Bytes read at a time where chunks are looked for.
const LOOKED_THROUGH_BYTES: usize = 1 << 20;

/// Read a segment without the first page of an opening: the footer says all that the chunks do. Without that too, a chunk behind the first
/// page shows that there was an opening; one that is blank is not looked through, since a large device is mostly that at first.
async fn read_headless<R: Gather>(
    member: &Member,
    id: SegmentId,
    first: Result<Bytes, Unread>,
) -> Result<Read<R>, Unread> {
    let footer = read_footer(member, None, id).await;
    let is_blank = first.as_ref().is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    if is_blank && matches!(footer, Err(NoFooter { footer: Footer::None, witness: None, .. })) {
        return Ok(Read::Blank);
    }
    let mut remnant: Option<Found<R>> = None;
    for_each_unit(member, id, member.shape.align as usize * 4096, &mut |at, page| {
        look_at(member, id, (at, page), &mut remnant);
    })
    .await?;
    let why = first.map_or_else(Headless::Unread, |_| Headless::Other);
    let with_why = |found: Found<R>| Found { headless: Some(why), ..found };
    // The witness may be of an opening before, too.
    if let Err(NoFooter { footer, witness: Some(witness), .. }) = &footer
        && remnant.as_ref().is_none_or(|remnant| remnant.life.opening <= witness.life.opening)
    {
        let found = walk(member, witness.life, None, *footer, Some(witness.clone())).await?;
        if !found.headers.is_empty() || found.cut.as_ref().is_some_and(|cut| cut.was_durable) {
            return Ok(Read::Found(with_why(found)));
        }
    }
    Ok(match (footer, remnant) {
        // The footer may be of an opening before.
        (Ok(found), remnant) if remnant.as_ref().is_none_or(|r| r.life.opening <= found.life.opening) => {
            Read::Found(with_why(found))
        }
        (_, Some(remnant)) => Read::Remnant(with_why(remnant)),
        (_, None) => match why {
            Headless::Unread(why) => Read::Unread(why),
            Headless::Other => Read::Blank,
        },
    })
}

/// Look at each true page of a segment from byte `from` of it on, whatever of it can be read.
///
/// # Errors
/// The device does not answer.
async fn for_each_unit(
    member: &Member,
    id: SegmentId,
    from: usize,
    f: &mut (dyn FnMut(usize, &[u8]) + Send),
) -> Result<(), Unread> {
    let segment_bytes = member.shape.segment_pages as usize * 4096;
    let unit = member.shape.align as usize * 4096;
    let start = u64::from(id.0) * segment_bytes as u64;
    for at in (from..segment_bytes).step_by(LOOKED_THROUGH_BYTES) {
        let len = LOOKED_THROUGH_BYTES.min(segment_bytes - at);
        match read_bytes(member, start + at as u64, len).await {
            Ok(bytes) => {
                bytes.chunks_exact(unit).enumerate().for_each(|(n, page)| f(at + n * unit, page));
                continue;
            }
            Err(why) if why.is_of_device() => return Err(why),
            Err(_) => {}
        }
        for at in (at..at + len).step_by(unit) {
            match read_bytes(member, start + at as u64, unit).await {
                Ok(page) => f(at, &page),
                Err(why) if why.is_of_device() => return Err(why),
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Look whether a page of a segment, from byte `at` of it on, is that of a chunk of the latest opening.
fn look_at<R: Gather>(member: &Member, id: SegmentId, (at, page): (usize, &[u8]), remnant: &mut Option<Found<R>>) {
    let owner = &member.config.owner;
    let Ok(header) = format::visit_chunk(page, owner, &mut |_, _| {}) else { return };
    let (life, sequence) = (header.life, header.sequence);
    let is_here = life.segment == id && header.position.0 as usize * 4096 == at;
    let older = remnant.as_ref().is_some_and(|r| (life.opening, sequence) < (r.life.opening, r.last_sequence));
    if !is_here || older {
        return;
    }
    let of_this = remnant.take().filter(|remnant| remnant.life == life);
    let mut found = of_this.unwrap_or_else(|| Found::begin(life, Footer::None));
    found.last_sequence = sequence;
    found.durable = found.durable.max(header.durable);
    let gather = &mut |_: &ChunkHeader, seen: Seen<'_>| found.records.gather(member, life, sequence, seen);
    let _ = format::visit_chunk(page, owner, gather);
    *remnant = Some(found);
}

/// There is no footer.
struct NoFooter {
    footer: Footer,
    /// What lies there in its place while the segment is being appended to.
    witness: Option<Witness>,
    /// There is one of a later opening than that which was asked for.
    is_later: bool,
}

impl From<Footer> for NoFooter {
    fn from(footer: Footer) -> NoFooter {
        NoFooter { footer, witness: None, is_later: false }
    }
}

/// The footer of an opening, or of whichever it is of. One that cannot be read is none: the chunks say the same.
async fn read_footer<R: Gather>(
    member: &Member,
    life: Option<SegmentLife>,
    id: SegmentId,
) -> Result<Found<R>, NoFooter> {
    let (bytes, life) = read_footer_bytes(member, life, id).await?;
    let mut records = R::default();
    let mut sequence = 0;
    let gather = &mut |seen: Seen<'_>| match seen {
        Seen::Other(Record::Chunk { sequence: next, .. }) => sequence = next,
        other => records.gather(member, life, sequence, other),
    };
    let trailer = format::visit_footer(&bytes, &member.config.owner, gather).map_err(|_| Footer::Torn)?;
    let (last_sequence, durable) = (trailer.sequence, trailer.durable);
    Ok(Found { records, last_sequence, durable, ..Found::begin(life, Footer::Whole) })
}

/// The footer of a segment, of whichever opening: its trailer and its records, those that begin chunks included. `None` when it cannot be read.
pub(crate) async fn read_footer_records(member: &Member, id: SegmentId) -> Option<(Trailer, Vec<Record>)> {
    let (bytes, _) = read_footer_bytes(member, None, id).await.ok()?;
    format::decode_footer(&bytes, &member.config.owner).ok()
}

/// The footer of an opening as it is, with the position and the sequence of each of its chunks. None when it cannot be read.
pub(crate) async fn read_footer_with_chunks(
    member: &Member,
    life: SegmentLife,
) -> Option<(Bytes, Vec<(Position, u64)>)> {
    let (bytes, _) = read_footer_bytes(member, Some(life), life.segment).await.ok()?;
    let mut chunks = Vec::new();
    let gather = &mut |seen: Seen<'_>| {
        if let Seen::Other(Record::Chunk { position, sequence }) = seen {
            chunks.push((position, sequence));
        }
    };
    format::visit_footer(&bytes, &member.config.owner, gather).ok()?;
    Some((bytes, chunks))
}

/// The bytes of a footer whose last page is one, and of which opening that says it is.
async fn read_footer_bytes(
    member: &Member,
    life: Option<SegmentLife>,
    id: SegmentId,
) -> Result<(Bytes, SegmentLife), NoFooter> {
    let (shape, owner) = (member.shape, &member.config.owner);
    let unit = shape.align as usize * 4096;
    let segment_bytes = shape.segment_pages as usize * 4096;
    let start = u64::from(id.0) * segment_bytes as u64;
    let last = read_bytes(member, start + (segment_bytes - unit) as u64, unit).await;
    let last = last.map_err(|_| Footer::Unreadable)?;
    let Ok(trailer) = format::decode_trailer(&last[unit - TRAILER_BYTES..], owner) else {
        let witness = format::decode_witness(&last, owner).ok().filter(|witness| witness.life.segment == id);
        return Err(NoFooter { footer: Footer::None, witness, is_later: false });
    };
    if trailer.life.segment != id {
        return Err(Footer::None.into());
    }
    if let Some(life) = life.filter(|life| *life != trailer.life) {
        let is_later = trailer.life.opening > life.opening;
        return Err(NoFooter { footer: Footer::None, witness: None, is_later });
    }
    let bytes = format::footer_bytes(trailer.records_bytes, unit);
    if bytes == unit {
        return Ok((last, trailer.life));
    }
    let from = segment_bytes.checked_sub(bytes).ok_or(Footer::Torn)?;
    let whole = read_bytes(member, start + from as u64, bytes).await.map_err(|_| Footer::Unreadable)?;
    Ok((whole, trailer.life))
}
