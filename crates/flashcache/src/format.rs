//! What the cache writes on flash, format version 2: chunk headers, footers and the records in them.
//!
//! Pure bytes in, values out: no I/O, no allocation beyond the limits, no panic on any input. Every entry kind that later
//! work needs is there. The layout is drawn in `docs/internals/flash-cache.md`.

pub mod checkpoint;
pub(crate) mod head;

use crate::base::units::{Opening, Page, Position, SEGMENT_PAGES_MAX, SegmentId};
pub use crate::format::head::HeadKind;
use device::Fields;
use device::fields::Truncated;

/// The format this code writes.
pub const FORMAT_VERSION: u16 = 3;
/// "FCch", a chunk header.
pub const CHUNK_MAGIC: u32 = 0x6863_4346;
/// "FCft", a footer's trailer.
pub const FOOTER_MAGIC: u32 = 0x7466_4346;
/// "FCop", the trailer of an open segment's witness.
pub const WITNESS_MAGIC: u32 = 0x706f_4346;
/// Bytes before the first record of a chunk header.
pub const CHUNK_FIXED_BYTES: usize = 96;
/// Bytes of the trailer at the very end of a segment.
pub const TRAILER_BYTES: usize = 96;
/// The most parts of 4 KiB a block may have (64 KiB blocks).
pub const BLOCK_PARTS_MAX: u32 = 16;
/// The longest record: an entry with a checksum for each of its parts.
pub const RECORD_BYTES_MAX: usize = 28 + 4 * BLOCK_PARTS_MAX as usize;
/// The most bytes of records a footer may hold: an eighth of the largest segment.
pub const FOOTER_RECORDS_BYTES_MAX: usize = SEGMENT_PAGES_MAX as usize * 4096 / 8;

/// Why bytes are not what they should be. None of these is an I/O error: such a chunk or footer does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too short for what it claims.
    #[error("truncated")]
    Truncated,
    /// Not ours, or torn, or rotten.
    #[error("magic or checksum does not match")]
    Checksum,
    /// Whole as far as can be told, but written in another version of the format.
    #[error("format version {0}, and this program knows version {FORMAT_VERSION} alone")]
    Version(u16),
    /// A field is outside its limits.
    #[error("field out of limits: {0}")]
    Limits(&'static str),
    /// A record kind that this version does not have.
    #[error("unknown record kind {0}")]
    UnknownKind(u8),
}

impl From<Truncated> for FormatError {
    fn from(_: Truncated) -> FormatError {
        FormatError::Truncated
    }
}

/// Who wrote it: checked before anything else is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cell.
    pub cell_id: u128,
    /// The flash device.
    pub device_id: u128,
    /// Raised when the cache is created or dropped: what an older era wrote is void.
    pub era: u64,
}

/// One life of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLife {
    /// Which segment.
    pub segment: SegmentId,
    /// When it was opened, see [`Opening`].
    pub opening: Opening,
    /// The append point.
    pub head: HeadKind,
}

/// Sequences of each life of the cache begin at a multiple of 2^32: more chunks than a flash device survives.
const LIFE_SHIFT: u32 = 32;

/// In which life of the cache a chunk of this sequence was written. A life begins with each recovery.
#[must_use]
pub fn life_of(sequence: u64) -> u64 {
    sequence >> LIFE_SHIFT
}

/// The first sequence of the life after that in which a chunk of this sequence was written.
#[must_use]
pub fn first_of_next_life(sequence: u64) -> u64 {
    (life_of(sequence) + 1) << LIFE_SHIFT
}

/// A chunk's header without its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Who.
    pub owner: Owner,
    /// Where.
    pub life: SegmentLife,
    /// First page of the chunk within its segment.
    pub position: Position,
    /// Pages of the whole chunk, header and padding included.
    pub pages: u32,
    /// Cell-wide order of chunks.
    pub sequence: u64,
    /// When this was written, every chunk of the member up to this sequence, in the same life, was durable; 0: not known. One of another life
    /// is encoded as not known.
    pub durable: u64,
}

/// What kind of cached data an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// The same as on disk.
    Clean = 1,
    /// Newer than on disk.
    Dirty = 2,
    /// The second copy of a dirty entry.
    Mirror = 3,
    /// Reads as zeroes, newer than on disk.
    Zero = 7,
    /// Trimmed, newer than on disk.
    Trim = 8,
    /// A redo record of the flash log.
    Redo = 9,
}

/// A block of a grid disk, as entries name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockName {
    /// Grid disk id, never reused.
    pub disk: u64,
    /// The grid disk's cache generation.
    pub generation: u32,
    /// Block number.
    pub block: u64,
}

/// One record of a chunk or footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Data of some parts of a block, in consecutive pages from `position`.
    Entry {
        /// Its kind.
        kind: EntryKind,
        /// Which block.
        name: BlockName,
        /// Which parts.
        mask: u16,
        /// First page within the segment.
        position: Position,
        /// A checksum per part, see [`part_sum`].
        sums: smallvec::SmallVec<[u32; 4]>,
    },
    /// The entry at that place is dead in the parts of `mask`, or clean from now on.
    Invalidation {
        /// The entry's segment,
        segment: SegmentId,
        /// its opening then,
        opening: Opening,
        /// and its first page within the segment.
        position: Position,
        /// Which parts of its block.
        mask: u16,
        /// Not dead: the slow disk has them durably.
        cleaned: bool,
    },
    /// A region has writes that are perhaps not on the medium (`set`), or has none any more.
    Mark {
        /// Grid disk id.
        disk: u64,
        /// Cache generation.
        generation: u32,
        /// Region number.
        region: u64,
        /// Set or cleared.
        set: bool,
    },
    /// Every entry of a segment up to this opening is gone; the segment may be reused.
    Free {
        /// Which segment.
        segment: SegmentId,
        /// Its last opening.
        opening: Opening,
    },
    /// The chunk the member closed before this one, or the last one of a segment in use: one that was durable and is not there shows
    /// that the device has lost what it acknowledged.
    Link {
        /// Its segment,
        segment: SegmentId,
        /// the segment's opening then,
        opening: Opening,
        /// and its sequence.
        sequence: u64,
        /// It was durable when this was written: no header need say so.
        certain: bool,
    },
    /// A segment is the youngest of a head as it is: it was looked at and stays. For warmth alone.
    Kept {
        /// Which segment,
        segment: SegmentId,
        /// its opening then,
        opening: Opening,
        /// the head,
        head: HeadKind,
        /// and the sequence that was next then.
        sequence: u64,
    },
    /// What the policy asks to be told after a restart: [`crate::admission::policy::Policy::note`]. For warmth alone.
    PolicyNote {
        /// Its note.
        note: u8,
    },
    /// In footers: the records that follow come from this chunk.
    Chunk {
        /// Its first page.
        position: Position,
        /// Its sequence.
        sequence: u64,
    },
}

const KIND_INVALIDATION: u8 = 4;
const KIND_MARK: u8 = 5;
const KIND_FREE: u8 = 6;
const KIND_CHUNK: u8 = 16;
const KIND_LINK: u8 = 17;
const KIND_KEPT: u8 = 18;
const KIND_POLICY_NOTE: u8 = 19;

impl Record {
    /// Bytes when encoded.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        match self {
            Record::Entry { sums, .. } => 28 + 4 * sums.len(),
            Record::Free { .. } | Record::Chunk { .. } => 16,
            Record::Invalidation { .. } => 20,
            Record::Mark { .. } | Record::Link { .. } | Record::Kept { .. } => 24,
            Record::PolicyNote { .. } => 4,
        }
    }

    /// Append the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Record::Entry { kind, name, mask, position, sums } => {
                out.extend([*kind as u8, 0]);
                out.extend(mask.to_le_bytes());
                out.extend(position.0.to_le_bytes());
                out.extend(name.disk.to_le_bytes());
                out.extend(name.block.to_le_bytes());
                out.extend(name.generation.to_le_bytes());
                for sum in sums {
                    out.extend(sum.to_le_bytes());
                }
            }
            Record::Invalidation { segment, opening, position, mask, cleaned } => {
                out.extend([KIND_INVALIDATION, u8::from(*cleaned)]);
                out.extend(mask.to_le_bytes());
                out.extend(segment.0.to_le_bytes());
                out.extend(opening.0.to_le_bytes());
                out.extend(position.0.to_le_bytes());
            }
            Record::Mark { disk, generation, region, set } => {
                out.extend([KIND_MARK, u8::from(*set), 0, 0]);
                out.extend(generation.to_le_bytes());
                out.extend(disk.to_le_bytes());
                out.extend(region.to_le_bytes());
            }
            Record::Free { segment, opening } => {
                out.extend([KIND_FREE, 0, 0, 0]);
                out.extend(segment.0.to_le_bytes());
                out.extend(opening.0.to_le_bytes());
            }
            Record::Link { segment, opening, sequence, certain } => {
                out.extend([KIND_LINK, u8::from(*certain), 0, 0]);
                out.extend(segment.0.to_le_bytes());
                out.extend(opening.0.to_le_bytes());
                out.extend(sequence.to_le_bytes());
            }
            Record::Kept { segment, opening, head, sequence } => {
                out.extend([KIND_KEPT, *head as u8, 0, 0]);
                out.extend(segment.0.to_le_bytes());
                out.extend(opening.0.to_le_bytes());
                out.extend(sequence.to_le_bytes());
            }
            Record::PolicyNote { note } => out.extend([KIND_POLICY_NOTE, *note, 0, 0]),
            Record::Chunk { position, sequence } => {
                out.extend([KIND_CHUNK, 0, 0, 0]);
                out.extend(position.0.to_le_bytes());
                out.extend(sequence.to_le_bytes());
            }
        }
    }

    /// A copy of what was seen.
    #[must_use]
    pub fn of(seen: Seen<'_>) -> Record {
        match seen {
            Seen::Other(record) => record,
            Seen::Entry(SeenEntry { kind, name, mask, position, sums }) => {
                Record::Entry { kind, name, mask, position, sums: crcs_of(sums).collect() }
            }
        }
    }
}

/// A record where it lies: an entry's checksums are not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// [`Record::Entry`].
    Entry(SeenEntry<'a>),
    /// Any other.
    Other(Record),
}

/// [`Record::Entry`] where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenEntry<'a> {
    /// Its kind.
    pub kind: EntryKind,
    /// Which block.
    pub name: BlockName,
    /// Which parts; not empty.
    pub mask: u16,
    /// First page within the segment.
    pub position: Position,
    sums: &'a [u8],
}

impl SeenEntry<'_> {
    /// Of each part in `mask`, ascending; none for zero and trim.
    pub fn sums(&self) -> impl Iterator<Item = u32> + '_ {
        crcs_of(self.sums)
    }
}

fn crcs_of(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

impl<'a> Seen<'a> {
    fn decode(from: &mut Fields<'a>) -> Result<Seen<'a>, FormatError> {
        let kind = from.u8()?;
        let flag = from.u8()?;
        let mask = from.u16()?;
        let entry_kind = match kind {
            1 => EntryKind::Clean,
            2 => EntryKind::Dirty,
            3 => EntryKind::Mirror,
            7 => EntryKind::Zero,
            8 => EntryKind::Trim,
            9 => EntryKind::Redo,
            KIND_INVALIDATION => {
                let segment = SegmentId(from.u32()?);
                let opening = Opening(from.u64()?);
                let position = position(from)?;
                let cleaned = flag != 0;
                return Ok(Seen::Other(Record::Invalidation { segment, opening, position, mask, cleaned }));
            }
            KIND_MARK => {
                let generation = from.u32()?;
                let (disk, region) = (from.u64()?, from.u64()?);
                return Ok(Seen::Other(Record::Mark { disk, generation, region, set: flag != 0 }));
            }
            KIND_FREE => {
                let (segment, opening) = (SegmentId(from.u32()?), Opening(from.u64()?));
                return Ok(Seen::Other(Record::Free { segment, opening }));
            }
            KIND_CHUNK => {
                let (position, sequence) = (position(from)?, from.u64()?);
                return Ok(Seen::Other(Record::Chunk { position, sequence }));
            }
            KIND_LINK => {
                let (segment, opening) = (SegmentId(from.u32()?), Opening(from.u64()?));
                let (sequence, certain) = (from.u64()?, flag != 0);
                return Ok(Seen::Other(Record::Link { segment, opening, sequence, certain }));
            }
            KIND_KEPT => {
                let (head, segment) = (HeadKind::decode(flag)?, SegmentId(from.u32()?));
                let opening = Opening(from.u64()?);
                return Ok(Seen::Other(Record::Kept { segment, opening, head, sequence: from.u64()? }));
            }
            KIND_POLICY_NOTE => return Ok(Seen::Other(Record::PolicyNote { note: flag })),
            other => return Err(FormatError::UnknownKind(other)),
        };
        let position = position(from)?;
        let disk = from.u64()?;
        let block = from.u64()?;
        let generation = from.u32()?;
        let bare = matches!(entry_kind, EntryKind::Zero | EntryKind::Trim);
        let sums = from.bytes(if bare { 0 } else { 4 * mask.count_ones() as usize })?;
        if mask == 0 {
            return Err(FormatError::Limits("an entry without parts"));
        }
        let name = BlockName { disk, generation, block };
        Ok(Seen::Entry(SeenEntry { kind: entry_kind, name, mask, position, sums }))
    }
}

/// The checksum of one 4 KiB part: that of its address and generation over that of its data ([`device::sum`]), so that a block that ended
/// up at another address, or outlived its generation, does not match.
#[must_use]
pub fn part_sum(disk: u64, generation: u32, part: u64, data: &[u8]) -> u32 {
    part_sum_seed(disk, generation, part) ^ device::data_sum(data)
}

/// The address part of [`part_sum`].
#[must_use]
pub fn part_sum_seed(disk: u64, generation: u32, part: u64) -> u32 {
    let mut address = [0; 20];
    address[..8].copy_from_slice(&disk.to_le_bytes());
    address[8..12].copy_from_slice(&generation.to_le_bytes());
    address[12..].copy_from_slice(&part.to_le_bytes());
    crc32c::crc32c(&address)
}

fn encode_fixed(magic: u32, header: &ChunkHeader, records: &[u8], count: u32) -> [u8; CHUNK_FIXED_BYTES] {
    let mut out = Vec::with_capacity(CHUNK_FIXED_BYTES);
    out.extend(magic.to_le_bytes());
    out.extend([0; 4]);
    out.extend(FORMAT_VERSION.to_le_bytes());
    out.extend([header.life.head as u8, 0]);
    out.extend((records.len() as u32).to_le_bytes());
    out.extend(header.owner.cell_id.to_le_bytes());
    out.extend(header.owner.device_id.to_le_bytes());
    out.extend(header.owner.era.to_le_bytes());
    out.extend(header.life.segment.0.to_le_bytes());
    out.extend([0; 4]);
    out.extend(header.life.opening.0.to_le_bytes());
    out.extend(header.position.0.to_le_bytes());
    out.extend(header.pages.to_le_bytes());
    out.extend(header.sequence.to_le_bytes());
    out.extend(count.to_le_bytes());
    // As a distance plus one: 32 bits reach back further than a chunk is ever waited for. A distance speaks of the life of its own chunk: of an
    // earlier life a chunk may be missing that was never durable, and what a later one knows of itself says nothing of that.
    let is_of_life = header.durable > 0 && life_of(header.durable) == life_of(header.sequence);
    let distance = is_of_life.then(|| header.sequence - header.durable.min(header.sequence));
    let field = distance.and_then(|d| u32::try_from(d + 1).ok()).unwrap_or(0);
    out.extend(field.to_le_bytes());
    let mut fixed = [0; CHUNK_FIXED_BYTES];
    fixed.copy_from_slice(&out);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&fixed[8..]), records);
    fixed[4..8].copy_from_slice(&crc.to_le_bytes());
    fixed
}

struct Fixed {
    crc: u32,
    records_len: usize,
    record_count: u32,
    header: ChunkHeader,
}

fn decode_fixed(magic: u32, fixed: &[u8], owner: &Owner) -> Result<Fixed, FormatError> {
    let mut from = Fields::new(fixed);
    if from.u32()? != magic {
        return Err(FormatError::Checksum);
    }
    let crc = from.u32()?;
    let version = from.u16()?;
    let head = from.u8()?;
    let _ = from.u8()?;
    let records_len = from.u32()? as usize;
    let found = Owner { cell_id: from.u128()?, device_id: from.u128()?, era: from.u64()? };
    let segment = SegmentId(from.u32()?);
    let _ = from.u32()?;
    let opening = Opening(from.u64()?);
    let position = from.u32()?;
    let pages = from.u32()?;
    let sequence = from.u64()?;
    let record_count = from.u32()?;
    let distance = from.u32()?.checked_sub(1);
    let durable = distance.and_then(|d| sequence.checked_sub(u64::from(d))).unwrap_or(0);
    if found != *owner {
        return Err(FormatError::Checksum);
    }
    if version != FORMAT_VERSION {
        return Err(FormatError::Version(version));
    }
    let life = SegmentLife { segment, opening, head: HeadKind::decode(head)? };
    let header = ChunkHeader { owner: found, life, position: Position(position), pages, sequence, durable };
    Ok(Fixed { crc, records_len, record_count, header })
}

fn visit_records<'a>(bytes: &'a [u8], count: u32, f: &mut dyn FnMut(Seen<'a>)) -> Result<(), FormatError> {
    let mut from = Fields::new(bytes);
    for _ in 0..count {
        f(Seen::decode(&mut from)?);
    }
    if from.rest().is_empty() { Ok(()) } else { Err(FormatError::Limits("bytes after the last record")) }
}

/// Encode a chunk header and its records into `page`, the chunk's first page or pages.
///
/// # Panics
/// When the records do not fit: the caller closes a chunk before that.
pub fn encode_chunk(header: &ChunkHeader, records: &[Record], page: &mut [u8]) {
    let mut bytes = Vec::with_capacity(page.len());
    records.iter().for_each(|r| r.encode(&mut bytes));
    assert!(CHUNK_FIXED_BYTES + bytes.len() <= page.len(), "records fit the chunk header");
    let fixed = encode_fixed(CHUNK_MAGIC, header, &bytes, records.len() as u32);
    page[..CHUNK_FIXED_BYTES].copy_from_slice(&fixed);
    page[CHUNK_FIXED_BYTES..CHUNK_FIXED_BYTES + bytes.len()].copy_from_slice(&bytes);
    page[CHUNK_FIXED_BYTES + bytes.len()..].fill(0);
}

/// Decode a chunk header page of `owner`.
///
/// # Errors
/// Anything that is not a whole, unharmed chunk header of this owner.
pub fn decode_chunk(page: &[u8], owner: &Owner) -> Result<(ChunkHeader, Vec<Record>), FormatError> {
    let mut records = Vec::new();
    let header = visit_chunk(page, owner, &mut |_, seen| records.push(Record::of(seen)))?;
    Ok((header, records))
}

/// The same, but `f` is called with each record in turn, and with the header. On an error what it was called with is void.
///
/// # Errors
/// As [`decode_chunk`].
pub fn visit_chunk(
    page: &[u8],
    owner: &Owner,
    f: &mut dyn FnMut(&ChunkHeader, Seen<'_>),
) -> Result<ChunkHeader, FormatError> {
    let fixed_bytes = page.get(..CHUNK_FIXED_BYTES).ok_or(FormatError::Truncated)?;
    let fixed = decode_fixed(CHUNK_MAGIC, fixed_bytes, owner)?;
    let records = page.get(CHUNK_FIXED_BYTES..).and_then(|rest| rest.get(..fixed.records_len));
    let records = records.ok_or(FormatError::Truncated)?;
    if crc32c::crc32c_append(crc32c::crc32c(&fixed_bytes[8..]), records) != fixed.crc {
        return Err(FormatError::Checksum);
    }
    if fixed.header.position.0 >= SEGMENT_PAGES_MAX || fixed.header.pages == 0 || fixed.header.pages > SEGMENT_PAGES_MAX
    {
        return Err(FormatError::Limits("position"));
    }
    visit_records(records, fixed.record_count, &mut |seen| f(&fixed.header, seen))?;
    Ok(fixed.header)
}

/// Of the page of a chunk header, which has been decoded, the bytes that its checksum covers: nobody knows of the others whether they are rotten.
#[must_use]
pub fn used_bytes(page: &[u8]) -> &[u8] {
    let records = page.get(12..).and_then(|rest| rest.first_chunk()).map_or(0, |len| u32::from_le_bytes(*len) as usize);
    page.get(..CHUNK_FIXED_BYTES + records).unwrap_or(page)
}

/// Bytes of a footer with `records_bytes` of records, a multiple of `unit`.
#[must_use]
pub fn footer_bytes(records_bytes: usize, unit: usize) -> usize {
    (records_bytes + TRAILER_BYTES).next_multiple_of(unit)
}

/// Encode a footer: records first, zeroes, the trailer at the very end. `sequence` is that of the last chunk,
/// `durable` as in [`ChunkHeader`].
#[must_use]
pub fn encode_footer(
    owner: Owner,
    life: SegmentLife,
    sequence: u64,
    durable: u64,
    records: &[Record],
    unit: usize,
) -> Vec<u8> {
    let mut out = Vec::new();
    records.iter().for_each(|r| r.encode(&mut out));
    let header = ChunkHeader { owner, life, position: Position(0), pages: 0, sequence, durable };
    let trailer = encode_fixed(FOOTER_MAGIC, &header, &out, records.len() as u32);
    out.resize(footer_bytes(out.len(), unit) - TRAILER_BYTES, 0);
    out.extend(trailer);
    out
}

/// A footer's trailer, not yet believed: its records have to be read to check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Which life of which segment.
    pub life: SegmentLife,
    /// Sequence of the segment's last chunk.
    pub sequence: u64,
    /// As in [`ChunkHeader`].
    pub durable: u64,
    /// Bytes of records.
    pub records_bytes: usize,
}

/// Look at the last [`TRAILER_BYTES`] of a segment.
///
/// # Errors
/// Anything that cannot be a trailer of this owner.
pub fn decode_trailer(bytes: &[u8], owner: &Owner) -> Result<Trailer, FormatError> {
    let fixed = decode_fixed(FOOTER_MAGIC, bytes, owner)?;
    if fixed.records_len > FOOTER_RECORDS_BYTES_MAX {
        return Err(FormatError::Limits("footer"));
    }
    let ChunkHeader { life, sequence, durable, .. } = fixed.header;
    Ok(Trailer { life, sequence, durable, records_bytes: fixed.records_len })
}

/// Decode a whole footer, as [`encode_footer`] made it.
///
/// # Errors
/// Anything that is not a whole, unharmed footer of this owner.
pub fn decode_footer(bytes: &[u8], owner: &Owner) -> Result<(Trailer, Vec<Record>), FormatError> {
    let mut records = Vec::new();
    let trailer = visit_footer(bytes, owner, &mut |seen| records.push(Record::of(seen)))?;
    Ok((trailer, records))
}

/// The same, but `f` is called with each record in turn. On an error what it was called with is void.
///
/// # Errors
/// As [`decode_footer`].
pub fn visit_footer<'a>(bytes: &'a [u8], owner: &Owner, f: &mut dyn FnMut(Seen<'a>)) -> Result<Trailer, FormatError> {
    let at = bytes.len().checked_sub(TRAILER_BYTES).ok_or(FormatError::Truncated)?;
    let (body, trailer_bytes) = bytes.split_at(at);
    let trailer = decode_trailer(trailer_bytes, owner)?;
    let fixed = decode_fixed(FOOTER_MAGIC, trailer_bytes, owner)?;
    let records = body.get(..trailer.records_bytes).ok_or(FormatError::Truncated)?;
    if crc32c::crc32c_append(crc32c::crc32c(&trailer_bytes[8..]), records) != fixed.crc {
        return Err(FormatError::Checksum);
    }
    visit_records(records, fixed.record_count, f)?;
    Ok(trailer)
}

/// What lies in the last true page of a segment that is being appended to, where its footer will be: up to which sequence a flush has
/// covered the member, and the parity of the segment's headers that it has covered, from which any one of them can be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Which life of which segment.
    pub life: SegmentLife,
    /// Every chunk of the member up to this sequence is durable; 0: not known.
    pub durable: u64,
    /// The headers of the segment in `parity`: so many,
    pub headers: u32,
    /// the last of them with this sequence; 0: none.
    pub last_sequence: u64,
    /// Their pages one over the other, without the last [`TRAILER_BYTES`], which are zero in each of them.
    pub parity: Vec<u8>,
}

/// Encode a witness for a true page.
#[must_use]
pub fn encode_witness(owner: Owner, witness: &Witness) -> Vec<u8> {
    let Witness { life, durable, headers, last_sequence, ref parity } = *witness;
    // It is of no place and of no length: there is what it says of the member.
    let (position, pages) = (Position(durable as u32), (durable >> 32) as u32);
    let header = ChunkHeader { owner, life, position, pages, sequence: last_sequence, durable: 0 };
    let trailer = encode_fixed(WITNESS_MAGIC, &header, parity, headers);
    let mut out = parity.clone();
    out.extend(trailer);
    out
}

/// Decode the last true page of a segment as a witness.
///
/// # Errors
/// Anything that is not a whole, unharmed witness of this owner.
pub fn decode_witness(page: &[u8], owner: &Owner) -> Result<Witness, FormatError> {
    let at = page.len().checked_sub(TRAILER_BYTES).ok_or(FormatError::Truncated)?;
    let (parity, trailer) = page.split_at(at);
    let fixed = decode_fixed(WITNESS_MAGIC, trailer, owner)?;
    if fixed.records_len != parity.len() {
        return Err(FormatError::Limits("parity"));
    }
    if crc32c::crc32c_append(crc32c::crc32c(&trailer[8..]), parity) != fixed.crc {
        return Err(FormatError::Checksum);
    }
    let ChunkHeader { life, position, pages, sequence, .. } = fixed.header;
    let durable = u64::from(pages) << 32 | u64::from(position.0);
    Ok(Witness { life, durable, headers: fixed.record_count, last_sequence: sequence, parity: parity.to_vec() })
}

/// The page of a position in a segment.
#[must_use]
pub fn page_of(segment: SegmentId, position: Position, segment_pages: u32) -> Page {
    Page(segment.0 * segment_pages + position.0)
}

/// A page of a segment.
fn position(from: &mut Fields<'_>) -> Result<Position, FormatError> {
    let position = from.u32()?;
    if position < SEGMENT_PAGES_MAX { Ok(Position(position)) } else { Err(FormatError::Limits("position")) }
}

const _: () = assert!(CHUNK_FIXED_BYTES == 4 + 4 + 4 + 4 + 16 + 16 + 8 + 4 + 4 + 8 + 4 + 4 + 8 + 4 + 4);
const _: () = assert!(CHUNK_FIXED_BYTES + RECORD_BYTES_MAX + TRAILER_BYTES <= 4096);
