//! The checkpoint of an index, as bytes: what a member knows at a clean stop, in parts of 64 KiB, each with its checksum.
//!
//! Pure bytes in, values out: no I/O, no panic on any input. A part is bound to cell, device, era and the checkpoint's token, so
//! that one of another checkpoint, or of another device, never counts. The layout is drawn in `docs/internals/flash-cache.md`.

use crate::base::units::{DISK_SLOTS_MAX, Opening, SegmentId};
use crate::format::{FormatError, HeadKind, Owner};
use device::Fields;

/// "FCcp", a part of a checkpoint.
pub const CHECKPOINT_MAGIC: u32 = 0x7063_4346;
/// The version this code writes; of another one nothing is believed.
pub const CHECKPOINT_VERSION: u16 = 4;
/// A part: the smallest segment, and a multiple of every true page.
pub const PART_BYTES: usize = 64 << 10;
/// Bytes of a part before its items.
pub const PART_FIXED_BYTES: usize = 80;
/// Segments one checkpoint may take: their list fits the first part. At 2 MiB they hold the index of 900 million blocks.
pub const CHECKPOINT_SEGMENTS_MAX: usize = 16_000;

/// What a checkpoint belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Cell, device and era.
    pub owner: Owner,
    /// Random for each checkpoint.
    pub token: u128,
}

/// The first part: how to read the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Parts, this one included.
    pub parts: u32,
    /// Segments of the member, pages of each, parts of a block: the checkpoint is of a log of this shape only.
    pub shape: [u32; 3],
    /// The next sequence of the cell.
    pub sequence: u64,
    /// The segments the parts lie in, in their order.
    pub segments: Vec<SegmentId>,
}

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It may be opened.
    Free,
    /// It has content, and is one of this head.
    Sealed(HeadKind),
}

/// An entry of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexItem<'a> {
    /// Which grid disk, by its number in the checkpoint.
    pub disk: u16,
    /// The block.
    pub block: u64,
    /// The first page of its data.
    pub page: u32,
    /// The parts it was written with.
    pub mask: u16,
    /// The parts still valid.
    pub valid: u16,
    /// How often it was asked for: 0 to 3.
    pub frequency: u8,
    /// Newer than the disk.
    pub dirty: bool,
    /// KEEP data that counts as DEFAULT data.
    pub aged: bool,
    sums: &'a [u8],
}

impl IndexItem<'_> {
    /// The checksum of each part in `mask`, ascending.
    pub fn sums(&self) -> impl Iterator<Item = u32> + '_ {
        self.sums.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

/// A segment, as a checkpoint has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentItem {
    /// Which.
    pub segment: SegmentId,
    /// Its last opening.
    pub opening: Opening,
    /// Where it is in its life.
    pub fate: Fate,
    /// It was of the keep head and has aged.
    pub aged: bool,
    /// The sequence of its last chunk.
    pub last_sequence: u64,
}

/// What a checkpoint says, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A grid disk whose entries it has, all of them.
    Disk {
        /// Its number in the checkpoint.
        number: u16,
        /// Its generation,
        generation: u32,
        /// and its id.
        id: u64,
    },
    /// A segment. Free ones in the order in which they are opened, those of a head from the oldest on.
    Segment(SegmentItem),
    /// What the policy asks to be told: [`crate::admission::policy::Policy::note`].
    PolicyNote(u8),
    /// A region whose blocks have to be compared with the disk.
    Region {
        /// The grid disk's number in the checkpoint.
        disk: u16,
        /// The region.
        region: u64,
    },
    /// An entry.
    Index(IndexItem<'a>),
}

const KIND_DISK: u8 = 1;
const KIND_SEGMENT: u8 = 2;
const KIND_REGION: u8 = 3;
const KIND_INDEX: u8 = 4;
const KIND_POLICY_NOTE: u8 = 5;
const FATE_FREE: u8 = 255;
const META_DIRTY: u8 = 0b1000;
const META_AGED: u8 = 0b1_0000;

/// An entry to write: as [`IndexItem`], its checksums where they are.
#[derive(Clone, Copy, Debug)]
pub struct IndexOut<'a> {
    /// See [`IndexItem`].
    pub item: IndexItem<'static>,
    /// One for each part in the mask.
    pub sums: &'a [u32],
}

impl IndexItem<'static> {
    /// An entry without its checksums, for [`IndexOut`].
    #[must_use]
    pub fn new(disk: u16, block: u64, page: u32, masks: [u16; 2], frequency: u8) -> IndexItem<'static> {
        let [mask, valid] = masks;
        IndexItem { disk, block, page, mask, valid, frequency, dirty: false, aged: false, sums: &[] }
    }
}

/// Writes items into parts.
#[derive(Debug)]
pub struct Writer {
    binding: Binding,
    part: Vec<u8>,
    index: u32,
}

impl Writer {
    /// The first part is written last, with [`encode_root`].
    #[must_use]
    pub fn new(binding: Binding) -> Writer {
        Writer { binding, part: vec![0; PART_FIXED_BYTES], index: 1 }
    }

    /// Parts begun so far, the first included.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.index + 1
    }

    /// Add what is no entry. A part that is full, if one is: its number and bytes.
    pub fn push(&mut self, item: &Item<'_>) -> Option<(u32, Vec<u8>)> {
        let full = self.make_room(24);
        let out = &mut self.part;
        match *item {
            Item::Disk { number, generation, id } => {
                out.extend([KIND_DISK, 0]);
                out.extend(number.to_le_bytes());
                out.extend(generation.to_le_bytes());
                out.extend(id.to_le_bytes());
            }
            Item::Segment(SegmentItem { segment, opening, fate, aged, last_sequence }) => {
                let fate = match fate {
                    Fate::Free => FATE_FREE,
                    Fate::Sealed(head) => head as u8,
                };
                out.extend([KIND_SEGMENT, fate, u8::from(aged), 0]);
                out.extend(segment.0.to_le_bytes());
                out.extend(opening.0.to_le_bytes());
                out.extend(last_sequence.to_le_bytes());
            }
            Item::PolicyNote(note) => out.extend([KIND_POLICY_NOTE, note]),
            Item::Region { disk, region } => {
                out.extend([KIND_REGION, 0]);
                out.extend(disk.to_le_bytes());
                out.extend(region.to_le_bytes());
            }
            Item::Index(_) => unreachable!("entries come with their checksums"),
        }
        full
    }

    /// Add an entry. A part that is full, if one is.
    pub fn push_entry(&mut self, IndexOut { item, sums }: IndexOut<'_>) -> Option<(u32, Vec<u8>)> {
        let full = self.make_room(20 + 4 * sums.len());
        let out = &mut self.part;
        let meta = item.frequency & 0b11 | if item.dirty { META_DIRTY } else { 0 };
        out.extend([KIND_INDEX, meta | if item.aged { META_AGED } else { 0 }]);
        out.extend(item.mask.to_le_bytes());
        out.extend(item.valid.to_le_bytes());
        out.extend(item.disk.to_le_bytes());
        out.extend(item.page.to_le_bytes());
        out.extend(item.block.to_le_bytes());
        sums.iter().for_each(|sum| out.extend(sum.to_le_bytes()));
        full
    }

    fn make_room(&mut self, bytes: usize) -> Option<(u32, Vec<u8>)> {
        (self.part.len() + bytes > PART_BYTES).then(|| {
            let full = self.seal();
            self.index += 1;
            full
        })
    }

    fn seal(&mut self) -> (u32, Vec<u8>) {
        let fresh = Vec::with_capacity(PART_BYTES);
        let mut part = std::mem::replace(&mut self.part, fresh);
        self.part.resize(PART_FIXED_BYTES, 0);
        seal(&self.binding, self.index, &mut part);
        (self.index, part)
    }

    /// The last part.
    #[must_use]
    pub fn end(mut self) -> (u32, Vec<u8>) {
        self.seal()
    }
}

/// The first part.
///
/// # Panics
/// With more than [`CHECKPOINT_SEGMENTS_MAX`] segments.
#[must_use]
pub fn encode_root(binding: &Binding, root: &Root) -> Vec<u8> {
    assert!(root.segments.len() <= CHECKPOINT_SEGMENTS_MAX, "the segments of a checkpoint fit its first part");
    let mut part = vec![0; PART_FIXED_BYTES];
    part.extend(root.parts.to_le_bytes());
    root.shape.iter().for_each(|field| part.extend(field.to_le_bytes()));
    part.extend(root.sequence.to_le_bytes());
    part.extend((root.segments.len() as u32).to_le_bytes());
    root.segments.iter().for_each(|segment| part.extend(segment.0.to_le_bytes()));
    seal(binding, 0, &mut part);
    part
}

/// Fill in the fixed bytes, and zeroes at the end.
fn seal(binding: &Binding, index: u32, part: &mut Vec<u8>) {
    let len = (part.len() - PART_FIXED_BYTES) as u32;
    let mut fixed = Vec::with_capacity(PART_FIXED_BYTES);
    fixed.extend(CHECKPOINT_MAGIC.to_le_bytes());
    fixed.extend([0; 4]);
    fixed.extend(CHECKPOINT_VERSION.to_le_bytes());
    fixed.extend([0; 2]);
    fixed.extend(len.to_le_bytes());
    fixed.extend(binding.owner.cell_id.to_le_bytes());
    fixed.extend(binding.owner.device_id.to_le_bytes());
    fixed.extend(binding.owner.era.to_le_bytes());
    fixed.extend(binding.token.to_le_bytes());
    fixed.extend(index.to_le_bytes());
    fixed.extend([0; 4]);
    part[..PART_FIXED_BYTES].copy_from_slice(&fixed);
    let crc = crc32c::crc32c(&part[8..]);
    part[4..8].copy_from_slice(&crc.to_le_bytes());
    part.resize(PART_BYTES, 0);
}

/// The items of a part, still encoded.
fn open<'a>(binding: &Binding, index: u32, part: &'a [u8]) -> Result<&'a [u8], FormatError> {
    let mut from = Fields::new(part);
    if from.u32()? != CHECKPOINT_MAGIC {
        return Err(FormatError::Checksum);
    }
    let (crc, version) = (from.u32()?, from.u16()?);
    let _ = from.u16()?;
    let len = from.u32()? as usize;
    let owner = Owner { cell_id: from.u128()?, device_id: from.u128()?, era: from.u64()? };
    let (token, found) = (from.u128()?, from.u32()?);
    if owner != binding.owner || token != binding.token || found != index {
        return Err(FormatError::Checksum);
    }
    let end = PART_FIXED_BYTES.checked_add(len).filter(|&end| end <= part.len()).ok_or(FormatError::Truncated)?;
    if crc32c::crc32c(&part[8..end]) != crc {
        return Err(FormatError::Checksum);
    }
    if version != CHECKPOINT_VERSION {
        return Err(FormatError::Version(version));
    }
    Ok(&part[PART_FIXED_BYTES..end])
}

/// Decode the first part.
///
/// # Errors
/// Anything that is not the whole first part of this checkpoint.
pub fn decode_root(binding: &Binding, part: &[u8]) -> Result<Root, FormatError> {
    let mut from = Fields::new(open(binding, 0, part)?);
    let parts = from.u32()?;
    let shape = [from.u32()?, from.u32()?, from.u32()?];
    let sequence = from.u64()?;
    let count = from.u32()? as usize;
    if count > CHECKPOINT_SEGMENTS_MAX || from.rest().len() != count * 4 {
        return Err(FormatError::Limits("segments of a checkpoint"));
    }
    let segments = (0..count).map(|_| from.u32().map(SegmentId)).collect::<Result<Vec<_>, _>>()?;
    Ok(Root { parts, shape, sequence, segments })
}

/// Decode part `index`: `f` is called with each of its items in turn. On an error what it was called with is void.
///
/// # Errors
/// Anything that is not that whole part of this checkpoint.
pub fn visit_part(binding: &Binding, index: u32, part: &[u8], f: &mut dyn FnMut(Item<'_>)) -> Result<(), FormatError> {
    let mut from = Fields::new(open(binding, index, part)?);
    while !from.rest().is_empty() {
        f(item(&mut from)?);
    }
    Ok(())
}

fn item<'a>(from: &mut Fields<'a>) -> Result<Item<'a>, FormatError> {
    let [kind, flag] = from.u16()?.to_le_bytes();
    match kind {
        KIND_DISK => {
            let number = from.u16()?;
            if number >= DISK_SLOTS_MAX {
                return Err(FormatError::Limits("disk number"));
            }
            Ok(Item::Disk { number, generation: from.u32()?, id: from.u64()? })
        }
        KIND_SEGMENT => {
            let aged = from.u16()? != 0;
            let head = HeadKind::ALL.get(usize::from(flag)).copied().map(Fate::Sealed);
            let fate = if flag == FATE_FREE { Some(Fate::Free) } else { head };
            let fate = fate.ok_or(FormatError::Limits("head"))?;
            let (segment, opening) = (SegmentId(from.u32()?), Opening(from.u64()?));
            Ok(Item::Segment(SegmentItem { segment, opening, fate, aged, last_sequence: from.u64()? }))
        }
        KIND_POLICY_NOTE => Ok(Item::PolicyNote(flag)),
        KIND_REGION => Ok(Item::Region { disk: from.u16()?, region: from.u64()? }),
        KIND_INDEX => {
            let (mask, valid, disk) = (from.u16()?, from.u16()?, from.u16()?);
            let (page, block) = (from.u32()?, from.u64()?);
            if mask == 0 || valid == 0 || valid & !mask != 0 || block >= 1 << 44 {
                return Err(FormatError::Limits("an entry's parts"));
            }
            let sums = from.bytes(4 * mask.count_ones() as usize)?;
            let (dirty, aged) = (flag & META_DIRTY != 0, flag & META_AGED != 0);
            Ok(Item::Index(IndexItem { disk, block, page, mask, valid, frequency: flag & 0b11, dirty, aged, sums }))
        }
        other => Err(FormatError::UnknownKind(other)),
    }
}

const _: () = assert!(PART_FIXED_BYTES == 4 + 4 + 2 + 2 + 4 + 16 + 16 + 8 + 16 + 4 + 4);
const _: () = assert!(PART_FIXED_BYTES + 4 + 12 + 8 + 4 + 4 * CHECKPOINT_SEGMENTS_MAX <= PART_BYTES);
