//! What lies in a segment: its footer, its chunks one after the other, or what is left of them.

use crate::format::{self, ChunkHeader, FORMAT_VERSION, FormatError, Record, Seen, SegmentLife, TRAILER_BYTES};
use crate::member::{Member, MemberError};
use crate::sabotage::Sabotage;
use crate::units::{Position, SegmentId};
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
        Found { life, records: R::default(), last_sequence, durable, footer, headers: Vec::new(), headless: None }
    }
}

/// A chunk's header as a walk has read it. It is not read twice: a page that was discarded, and whose write was lost, may read
/// as something else the next time.
pub(crate) struct WalkedHeader {
    pub(crate) header: ChunkHeader,
    pub(crate) page: Bytes,
}

/// What is kept of a segment's records while it is read.
pub(crate) trait Gather: Default {
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
        if reads == READS_MAX || outcome == Outcome::Unknown {
            return Err(Unread::Failed { offset, outcome });
        }
        member.pause(reads).await;
    }
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
    let (first, header) = match (first, header) {
        (Ok(first), Some(header)) => (first, header),
        _ if member.sabotaged(Sabotage::RottenSegmentVanishes) => return Ok(Read::Blank),
        (first, _) => return read_headless(member, id, first).await,
    };
    let life = header.life;
    let footer = match read_footer(member, Some(life), id).await {
        Ok(found) => return Ok(Read::Found(found)),
        Err(footer) => footer,
    };
    let mut found = Found::<R>::begin(life, footer);
    let (mut page, mut header, mut position) = (first, header, 0);
    loop {
        found.last_sequence = header.sequence;
        found.durable = found.durable.max(header.durable);
        let gather = &mut |_: &ChunkHeader, seen: Seen<'_>| found.records.gather(member, life, header.sequence, seen);
        // Looked at before, so that nothing of a chunk that does not count is gathered.
        let _ = format::visit_chunk(&page, owner, gather);
        position += header.pages;
        found.headers.push(WalkedHeader { header, page });
        if position + shape.align >= shape.segment_pages {
            break;
        }
        page = read_bytes(member, start + u64::from(position) * 4096, unit).await?;
        let Ok(next) = format::visit_chunk(&page, owner, &mut |_, _| {}) else { break };
        if next.life != life || next.position.0 != position || next.sequence <= found.last_sequence {
            break;
        }
        header = next;
    }
    Ok(Read::Found(found))
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
    if is_blank && matches!(footer, Err(Footer::None)) {
        return Ok(Read::Blank);
    }
    let segment_bytes = member.shape.segment_pages as usize * 4096;
    let unit = member.shape.align as usize * 4096;
    let mut remnant: Option<Found<R>> = None;
    let mut at = unit;
    while at < segment_bytes {
        let len = LOOKED_THROUGH_BYTES.min(segment_bytes - at);
        let offset = u64::from(id.0) * segment_bytes as u64 + at as u64;
        if let Ok(bytes) = read_bytes(member, offset, len).await {
            look_through(member, id, (at, &bytes), &mut remnant);
        } else {
            // Whatever of it can be read.
            for at in (at..at + len).step_by(unit) {
                let offset = u64::from(id.0) * segment_bytes as u64 + at as u64;
                if let Ok(page) = read_bytes(member, offset, unit).await {
                    look_through(member, id, (at, &page), &mut remnant);
                }
            }
        }
        at += len;
    }
    let why = first.map_or_else(Headless::Unread, |_| Headless::Other);
    let with_why = |found: Found<R>| Found { headless: Some(why), ..found };
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

/// Look for chunks of the latest opening in these bytes of a segment, from byte `from` of it on.
fn look_through<R: Gather>(
    member: &Member,
    id: SegmentId,
    (from, bytes): (usize, &[u8]),
    remnant: &mut Option<Found<R>>,
) {
    let (unit, owner) = (member.shape.align as usize * 4096, &member.config.owner);
    for (at, page) in bytes.chunks_exact(unit).enumerate().map(|(n, page)| (from + n * unit, page)) {
        let Ok(header) = format::visit_chunk(page, owner, &mut |_, _| {}) else { continue };
        let (life, sequence) = (header.life, header.sequence);
        let is_here = life.segment == id && header.position.0 as usize * 4096 == at;
        let older = remnant.as_ref().is_some_and(|r| (life.opening, sequence) < (r.life.opening, r.last_sequence));
        if !is_here || older {
            continue;
        }
        let of_this = remnant.take().filter(|remnant| remnant.life == life);
        let mut found = of_this.unwrap_or_else(|| Found::begin(life, Footer::None));
        found.last_sequence = sequence;
        found.durable = found.durable.max(header.durable);
        let gather = &mut |_: &ChunkHeader, seen: Seen<'_>| found.records.gather(member, life, sequence, seen);
        let _ = format::visit_chunk(page, owner, gather);
        *remnant = Some(found);
    }
}

/// The footer of an opening, or of whichever it is of. One that cannot be read is none: the chunks say the same.
async fn read_footer<R: Gather>(member: &Member, life: Option<SegmentLife>, id: SegmentId) -> Result<Found<R>, Footer> {
    let (bytes, life) = read_footer_bytes(member, life, id).await?;
    let mut records = R::default();
    let mut sequence = 0;
    let gather = &mut |seen: Seen<'_>| match seen {
        Seen::Other(Record::Chunk { sequence: next, .. }) => sequence = next,
        other => records.gather(member, life, sequence, other),
    };
    let trailer = format::visit_footer(&bytes, &member.config.owner, gather).map_err(|_| Footer::Torn)?;
    let (last_sequence, durable) = (trailer.sequence, trailer.durable);
    Ok(Found { life, records, last_sequence, durable, footer: Footer::Whole, headers: Vec::new(), headless: None })
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
) -> Result<(Bytes, SegmentLife), Footer> {
    let (shape, owner) = (member.shape, &member.config.owner);
    let unit = shape.align as usize * 4096;
    let segment_bytes = shape.segment_pages as usize * 4096;
    let start = u64::from(id.0) * segment_bytes as u64;
    let last = read_bytes(member, start + (segment_bytes - unit) as u64, unit).await;
    let last = last.map_err(|_| Footer::Unreadable)?;
    let trailer = format::decode_trailer(&last[unit - TRAILER_BYTES..], owner).map_err(|_| Footer::None)?;
    if trailer.life.segment != id || life.is_some_and(|life| life != trailer.life) {
        return Err(Footer::None);
    }
    let bytes = format::footer_bytes(trailer.records_bytes, unit);
    if bytes == unit {
        return Ok((last, trailer.life));
    }
    let from = segment_bytes.checked_sub(bytes).ok_or(Footer::Torn)?;
    let whole = read_bytes(member, start + from as u64, bytes).await.map_err(|_| Footer::Unreadable)?;
    Ok((whole, trailer.life))
}
