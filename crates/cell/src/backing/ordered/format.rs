//! The bytes of a journal: what a header says, and the table of a batch. Format version 2, little endian, drawn in
//! `docs/internals/disk-format.md`.
//!
//! Never does I/O. What decodes encodes to the same bytes; everything else is refused.

use crate::base::units::PART_BYTES;
use device::{View, WallTime};

/// Bytes of a header: the smallest unit a device writes whole, so a torn header is the old or the new one.
pub(crate) const HEADER_BYTES: usize = 512;
/// Bytes of a table entry: part, checksum.
pub(crate) const ENTRY_BYTES: usize = 12;
const MAGIC: [u8; 8] = *b"FCjrnl\r\n";
const VERSION: u32 = 2;
/// Where the checksum lies, over everything else.
const CRC_AT: usize = 12;

/// Whose journal it is: bytes of another never pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) cell: u128,
    pub(crate) device: u128,
    pub(crate) grid_disk: u64,
}

/// What a journal holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing that is to be applied.
    Void,
    /// A whole batch, of which any part may be on the disk already.
    Batch {
        parts: u64,
        /// Checksum of the table.
        table_crc: u32,
    },
}

/// A header. There are two copies; of two that differ the one with the higher sequence counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) owner: Owner,
    pub(crate) sequence: u64,
    /// Number of the last batch.
    pub(crate) batch: u64,
    /// When the state of the disk (with the batch applied, if there is one) was the grid disk's.
    pub(crate) as_of: WallTime,
    pub(crate) content: Content,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let (state, parts, table_crc) = match self.content {
            Content::Void => (1_u64, 0, 0),
            Content::Batch { parts, table_crc } => (2, parts, table_crc),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.owner.cell.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.owner.device.to_le_bytes());
        for (n, word) in
            [self.owner.grid_disk, self.sequence, state, self.batch, self.as_of.0, parts].into_iter().enumerate()
        {
            bytes[48 + n * 8..56 + n * 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[96..100].copy_from_slice(&table_crc.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// None: this is no header of that owner's journal.
    pub(crate) fn decode(bytes: &[u8], owner: &Owner) -> Option<Header> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let u128_at = |at: usize| u128::from(u64_at(at)) | u128::from(u64_at(at + 8)) << 64;
        let known = bytes[..8] == MAGIC && u32_at(8) == VERSION && u32_at(CRC_AT) == header_crc(bytes);
        let found = Owner { cell: u128_at(16), device: u128_at(32), grid_disk: u64_at(48) };
        if !known || found != *owner || bytes[100..].iter().any(|&b| b != 0) {
            return None;
        }
        let content = match (u64_at(64), u64_at(88), u32_at(96)) {
            (1, 0, 0) => Content::Void,
            (2, parts, table_crc) if parts > 0 => Content::Batch { parts, table_crc },
            _ => return None,
        };
        let (sequence, batch, as_of) = (u64_at(56), u64_at(72), WallTime(u64_at(80)));
        Some(Header { owner: found, sequence, batch, as_of, content })
    }
}

fn header_crc(bytes: &[u8]) -> u32 {
    let head = crc32c::crc32c(&bytes[..CRC_AT]);
    crc32c::crc32c_append(head, &bytes[CRC_AT + 4..])
}

/// A part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) part: u64,
    pub(crate) sum: u32,
}

/// The table of a batch, padded to a page.
pub(crate) fn encode_table(entries: &[TableEntry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((entries.len() * ENTRY_BYTES).next_multiple_of(PART_BYTES as usize));
    for entry in entries {
        bytes.extend_from_slice(&entry.part.to_le_bytes());
        bytes.extend_from_slice(&entry.sum.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(PART_BYTES as usize), 0);
    bytes
}

/// The entries of a table of `parts` parts with that checksum, ascending; none when it is not that.
pub(crate) fn decode_table(bytes: &[u8], parts: u64, crc: u32) -> Option<Vec<TableEntry>> {
    let len = usize::try_from(parts).ok()?.checked_mul(ENTRY_BYTES)?;
    let (table, padding) = bytes.split_at_checked(len)?;
    if crc32c::crc32c(bytes) != crc || padding.len() >= PART_BYTES as usize || padding.iter().any(|&b| b != 0) {
        return None;
    }
    let mut entries: Vec<TableEntry> = Vec::with_capacity(parts as usize);
    for entry in table.chunks_exact(ENTRY_BYTES) {
        let word =
            |from: usize, len: usize| entry[from..from + len].iter().rev().fold(0_u64, |n, &b| n << 8 | u64::from(b));
        let (part, sum) = (word(0, 8), word(8, 4) as u32);
        if entries.last().is_some_and(|last| last.part >= part) {
            return None;
        }
        entries.push(TableEntry { part, sum });
    }
    Some(entries)
}

/// The checksum of a part's data ([`device::sum`]) with that of its address over it: what an older batch left at the same place does not match.
pub(crate) fn part_sum(grid_disk: u64, batch: u64, part: u64, data: View<'_>) -> u32 {
    let mut address = crc32c::crc32c(&grid_disk.to_le_bytes());
    address = crc32c::crc32c_append(address, &batch.to_le_bytes());
    address = crc32c::crc32c_append(address, &part.to_le_bytes());
    address ^ data.sum()
}

/// Where things lie in a journal of `size_bytes` on a device with true pages of `page_bytes`: a header at either end, each on
/// a true page of its own, so that a write of one that is cut off harms nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    size_bytes: u64,
    page_bytes: u64,
}

impl Places {
    pub(crate) fn new(size_bytes: u64, page_bytes: u64) -> Places {
        Places { size_bytes, page_bytes: page_bytes.max(PART_BYTES) }
    }

    /// Bytes written with a header.
    pub(crate) fn header_bytes(&self) -> u64 {
        self.page_bytes
    }

    pub(crate) fn headers(&self) -> [u64; 2] {
        [0, self.size_bytes.saturating_sub(self.page_bytes)]
    }

    pub(crate) fn table(&self) -> u64 {
        self.page_bytes
    }

    pub(crate) fn table_bytes(parts: u64) -> u64 {
        (parts * ENTRY_BYTES as u64).next_multiple_of(PART_BYTES)
    }

    /// Of a batch of so many parts.
    pub(crate) fn data(&self, parts: u64) -> u64 {
        self.table() + Places::table_bytes(parts)
    }

    /// Parts the largest batch has; 0 where nothing fits.
    pub(crate) fn parts_max(&self) -> u64 {
        let room = self.size_bytes.saturating_sub(2 * self.page_bytes + PART_BYTES);
        room / (PART_BYTES + ENTRY_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    //! Goal: the bytes are what the page on formats says, and nothing else is taken for them. Method: a header written out by
    //! hand, and random ones with single bits flipped.
    use super::*;
    use proptest::prelude::*;

    fn owner() -> Owner {
        Owner { cell: 0x11 << 120 | 1, device: 0x22 << 120 | 2, grid_disk: 7 }
    }

    fn header(content: Content) -> Header {
        Header { owner: owner(), sequence: 5, batch: 3, as_of: WallTime(0x0102_0304_0506_0708), content }
    }

    #[test]
    fn the_fixture() {
        let bytes = header(Content::Batch { parts: 9, table_crc: 0xaabb_ccdd }).encode();
        let mut by_hand = Vec::from(*b"FCjrnl\r\n");
        by_hand.extend([2, 0, 0, 0, 0xc2, 0x4a, 0xda, 0xae]);
        by_hand.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11]);
        by_hand.extend([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x22]);
        for word in [7_u64, 5, 2, 3, 0x0102_0304_0506_0708, 9] {
            by_hand.extend(word.to_le_bytes());
        }
        by_hand.extend([0xdd, 0xcc, 0xbb, 0xaa]);
        by_hand.resize(HEADER_BYTES, 0);
        assert_eq!(bytes[12..16], by_hand[12..16], "checksum {:02x?}", &bytes[12..16]);
        assert_eq!(bytes[..], by_hand[..]);
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283, "the checksum is CRC32C");
        let table = encode_table(&[TableEntry { part: 2, sum: 0x0403_0201 }]);
        assert_eq!((&table[..12], table.len()), (&[2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4][..], 4096));
    }

    #[test]
    fn the_places_of_a_batch_do_not_overlap() {
        for page_bytes in [512, 4096, 16384, 65536] {
            for size_bytes in (128 << 10..4 << 20).step_by(64 << 10) {
                let places = Places::new(size_bytes, page_bytes);
                let parts = places.parts_max();
                let [first, second] = places.headers();
                let end = |parts: u64| places.data(parts) + parts * PART_BYTES;
                assert!(parts == 0 || end(parts) <= second, "{size_bytes} {page_bytes}");
                assert!(end(parts + 2) > second, "{size_bytes} {page_bytes}: room for more");
                assert_eq!((first, places.table()), (0, places.header_bytes()));
            }
        }
        assert_eq!(Places::new(4096, 4096).parts_max(), 0);
    }

    fn contents() -> impl Strategy<Value = Content> {
        prop_oneof![
            Just(Content::Void),
            (1..u64::MAX, any::<u32>()).prop_map(|(parts, table_crc)| Content::Batch { parts, table_crc })
        ]
    }

    proptest! {
        #[test]
        fn headers_round_trip_and_no_bit_may_change(
            content in contents(), numbers in any::<(u64, u64, u64)>(), bit in 0..HEADER_BYTES * 8, noise in any::<u64>()
        ) {
            let (sequence, batch, as_of) = (numbers.0, numbers.1, WallTime(numbers.2));
            let header = Header { owner: owner(), sequence, batch, as_of, content };
            let mut bytes = header.encode();
            prop_assert_eq!(Header::decode(&bytes, &owner()), Some(header));
            for other in [
                Owner { cell: 1, ..owner() },
                Owner { device: 1, ..owner() },
                Owner { grid_disk: 8, ..owner() },
            ] {
                prop_assert_eq!(Header::decode(&bytes, &other), None);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes, &owner()), None);
            prop_assert_eq!(Header::decode(&noise.to_le_bytes().repeat(64), &owner()), None);
            prop_assert_eq!(Header::decode(&bytes[..HEADER_BYTES - 1], &owner()), None);
        }

        #[test]
        fn tables_round_trip(entries in proptest::collection::btree_map(any::<u64>(), any::<u32>(), 1..800), bit in any::<u32>()) {
            let entries: Vec<_> = entries.into_iter().map(|(part, sum)| TableEntry { part, sum }).collect();
            let mut bytes = encode_table(&entries);
            let (crc, parts) = (crc32c::crc32c(&bytes), entries.len() as u64);
            prop_assert_eq!(bytes.len() as u64, Places::table_bytes(parts));
            prop_assert_eq!(decode_table(&bytes, parts, crc).unwrap(), entries.clone());
            prop_assert_eq!(decode_table(&bytes, u64::MAX, crc), None);
            let at = bit as usize % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(decode_table(&bytes, parts, crc), None);
            // Right by its checksum, wrong by its order.
            let mut twice = entries.clone();
            twice.push(entries[0]);
            let bytes = encode_table(&twice);
            prop_assert_eq!(decode_table(&bytes, parts + 1, crc32c::crc32c(&bytes)), None);
        }
    }
}
