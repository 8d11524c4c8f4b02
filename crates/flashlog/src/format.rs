//! What the flash log writes on flash, format version 1: batches of records in a ring of pages.
//!
//! Pure bytes in, values out: no I/O, no allocation beyond the limits, no panic on any input. A batch begins on a true page
//! and is padded to whole ones, so that no write makes a flash device read before it writes (S3 of the field). The layout is
//! drawn in `docs/internals/flash-log.md`.

use device::Fields;
use device::fields::Truncated;
use std::ops::Range;

/// The format this code writes.
pub const FORMAT_VERSION: u16 = 2;
/// "FCrg", a batch.
pub const BATCH_MAGIC: u32 = 0x6772_4346;
/// Bytes before the first record of a batch.
pub const BATCH_FIXED_BYTES: usize = 96;
/// Bytes of a record without its data.
pub const RECORD_BYTES: usize = 40;
/// The longest data of one record: the longest piece the request path writes at once.
pub const RECORD_DATA_BYTES_MAX: usize = 1 << 20;
/// The longest batch, header and padding included: two of the longest records, so that group commit has room.
pub const BATCH_BYTES_MAX: usize = (2 << 20) + (128 << 10);
/// The most records of a batch: their table takes at most 40 KiB.
pub const BATCH_RECORDS_MAX: usize = 1024;
/// The longest zeroed range of one record.
pub const ZEROES_BYTES_MAX: u64 = 64 << 20;

/// Why bytes are not what they should be. None of these is an I/O error: such a batch does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too short for what it claims.
    #[error("truncated")]
    Truncated,
    /// Not ours, or torn, or rotten.
    #[error("magic, owner or checksum does not match")]
    Checksum,
    /// Written by another version.
    #[error("format version {0}, and this program knows version {FORMAT_VERSION} alone")]
    Version(u16),
    /// A field is outside its limits.
    #[error("field out of limits: {0}")]
    Limits(&'static str),
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
    /// The flash log: drawn anew when it is created, so that nothing of an earlier one is taken for it.
    pub log_id: u128,
}

/// A batch without its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Its number in its ring, ascending. The upper half is the life of the log: one for each time it was opened.
    pub number: u64,
    /// Its first page in the ring.
    pub start_page: u32,
    /// Its pages.
    pub pages: u32,
    /// Batches below this number are released: the disks have durably what they say.
    pub tail: u64,
    /// Batches of this life up to this number were durable when this one was written; 0: not known.
    pub durable: u64,
}

/// What a record does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKind {
    /// Bytes.
    Data,
    /// Zeroes.
    Zeroes,
    /// Zeroes whose space may be given back.
    Unmapped,
}

impl RecordKind {
    fn code(self) -> u8 {
        match self {
            RecordKind::Data => 1,
            RecordKind::Zeroes => 2,
            RecordKind::Unmapped => 3,
        }
    }

    fn of_code(code: u8) -> Result<RecordKind, FormatError> {
        match code {
            1 => Ok(RecordKind::Data),
            2 => Ok(RecordKind::Zeroes),
            3 => Ok(RecordKind::Unmapped),
            _ => Err(FormatError::Limits("record kind")),
        }
    }
}

/// One change of a grid disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Order of changes over all grid disks of the cell: of two that overlap, the higher is newer.
    pub sequence: u64,
    /// Grid disk id, never reused.
    pub grid_disk: u64,
    /// First byte in the grid disk.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// What it does.
    pub kind: RecordKind,
    /// Checksum of the data, see [`record_sum`]; 0 without data.
    pub sum: u32,
    /// Where its data lies in the batch, in bytes.
    pub data: Range<usize>,
}

/// The checksum of a record: that of its address and sequence over that of its data, `data_sum` (see [`device::sum`]).
#[must_use]
pub fn record_sum(grid_disk: u64, offset: u64, sequence: u64, data_sum: u32) -> u32 {
    let mut address = [0; 24];
    address[..8].copy_from_slice(&grid_disk.to_le_bytes());
    address[8..16].copy_from_slice(&offset.to_le_bytes());
    address[16..].copy_from_slice(&sequence.to_le_bytes());
    crc32c::crc32c(&address) ^ data_sum
}

/// The bytes before the data of a batch with so many records.
#[must_use]
pub fn head_bytes(records: usize) -> usize {
    BATCH_FIXED_BYTES + records * RECORD_BYTES
}

/// Header and record table. [`Record::data`] must lie behind it, in order.
///
/// # Panics
/// More than [`BATCH_RECORDS_MAX`] records.
#[must_use]
pub fn encode_head(owner: &Owner, header: &BatchHeader, records: &[Record]) -> Vec<u8> {
    assert!(records.len() <= BATCH_RECORDS_MAX, "a batch has a limited table");
    let mut out = Vec::with_capacity(head_bytes(records.len()));
    out.extend(BATCH_MAGIC.to_le_bytes());
    out.extend([0; 4]);
    out.extend(FORMAT_VERSION.to_le_bytes());
    out.extend((records.len() as u16).to_le_bytes());
    out.extend(header.start_page.to_le_bytes());
    out.extend(owner.cell_id.to_le_bytes());
    out.extend(owner.device_id.to_le_bytes());
    out.extend(owner.log_id.to_le_bytes());
    out.extend(header.number.to_le_bytes());
    out.extend(header.tail.to_le_bytes());
    out.extend(header.durable.to_le_bytes());
    out.extend(header.pages.to_le_bytes());
    out.extend([0; 4]);
    debug_assert_eq!(out.len(), BATCH_FIXED_BYTES);
    for record in records {
        out.extend(record.sequence.to_le_bytes());
        out.extend(record.grid_disk.to_le_bytes());
        out.extend(record.offset.to_le_bytes());
        out.extend(record.len.to_le_bytes());
        out.extend(record.sum.to_le_bytes());
        out.extend((record.data.start as u32).to_le_bytes());
        out.extend([record.kind.code(), 0, 0, 0]);
    }
    let crc = crc32c::crc32c(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Whether a batch may begin here: looked at before its head is decoded.
#[must_use]
pub fn is_batch(page: &[u8]) -> bool {
    page.first_chunk::<4>() == Some(&BATCH_MAGIC.to_le_bytes())
}

/// How many bytes the head of the batch that begins here takes, if one does.
#[must_use]
pub fn claimed_head_bytes(page: &[u8]) -> Option<usize> {
    let count = page.get(10..12)?;
    let count = usize::from(u16::from_le_bytes([count[0], count[1]]));
    (is_batch(page) && count <= BATCH_RECORDS_MAX).then(|| head_bytes(count))
}

/// Decode header and record table; `bytes` begins with the batch and holds at least its head. `page_bytes` is the ring's
/// page, `pages_max` the pages of the ring.
///
/// # Errors
/// See [`FormatError`].
pub fn decode_head(
    bytes: &[u8],
    owner: &Owner,
    page_bytes: usize,
    pages_max: u32,
) -> Result<(BatchHeader, Vec<Record>), FormatError> {
    let mut from = Fields::new(bytes);
    if from.u32()? != BATCH_MAGIC {
        return Err(FormatError::Checksum);
    }
    let crc = from.u32()?;
    let version = from.u16()?;
    let count = usize::from(from.u16()?);
    if count > BATCH_RECORDS_MAX {
        return Err(FormatError::Limits("record count"));
    }
    let covered = bytes.get(8..head_bytes(count)).ok_or(FormatError::Truncated)?;
    if crc32c::crc32c(covered) != crc {
        return Err(FormatError::Checksum);
    }
    let start_page = from.u32()?;
    let found = Owner { cell_id: from.u128()?, device_id: from.u128()?, log_id: from.u128()? };
    if found != *owner {
        return Err(FormatError::Checksum);
    }
    if version != FORMAT_VERSION {
        return Err(FormatError::Version(version));
    }
    let (number, tail, durable, pages) = (from.u64()?, from.u64()?, from.u64()?, from.u32()?);
    from.u32()?;
    let header = BatchHeader { number, start_page, pages, tail, durable };
    let fits = start_page.checked_add(pages).is_some_and(|end| pages > 0 && end <= pages_max);
    if !fits || tail > number || durable >= number {
        return Err(FormatError::Limits("batch"));
    }
    let batch_bytes = pages as usize * page_bytes;
    if batch_bytes > BATCH_BYTES_MAX.next_multiple_of(page_bytes) {
        return Err(FormatError::Limits("batch size"));
    }
    let mut records = Vec::with_capacity(count);
    let mut least = head_bytes(count);
    for _ in 0..count {
        let (sequence, grid_disk, offset) = (from.u64()?, from.u64()?, from.u64()?);
        let (len, sum, at) = (from.u32()?, from.u32()?, from.u32()? as usize);
        let kind = RecordKind::of_code(from.u8()?)?;
        from.u8()?;
        from.u16()?;
        let data_len = if kind == RecordKind::Data { len as usize } else { 0 };
        let limit = if kind == RecordKind::Data { RECORD_DATA_BYTES_MAX as u64 } else { ZEROES_BYTES_MAX };
        if len == 0 || u64::from(len) > limit || offset.checked_add(u64::from(len)).is_none() {
            return Err(FormatError::Limits("record length"));
        }
        let end = at.checked_add(data_len).filter(|end| *end <= batch_bytes);
        let Some(end) = end.filter(|_| at >= least) else { return Err(FormatError::Limits("record data")) };
        least = end;
        records.push(Record { sequence, grid_disk, offset, len, kind, sum, data: at..end });
    }
    Ok((header, records))
}

#[cfg(test)]
mod documented {
    //! Goal: the page about the format tells what the code does. Method: its tables are read.
    use super::*;

    #[test]
    fn constants_are_those_of_the_documentation() {
        let page = include_str!("../../../docs/internals/flash-log.md");
        let constants = [
            ("BATCH_FIXED_BYTES", BATCH_FIXED_BYTES as u64),
            ("RECORD_BYTES", RECORD_BYTES as u64),
            ("RECORD_DATA_BYTES_MAX", RECORD_DATA_BYTES_MAX as u64),
            ("BATCH_BYTES_MAX", BATCH_BYTES_MAX as u64),
            ("BATCH_RECORDS_MAX", BATCH_RECORDS_MAX as u64),
            ("ZEROES_BYTES_MAX", ZEROES_BYTES_MAX),
        ];
        for (name, value) in constants {
            assert!(page.contains(&format!("| `{name}` | {value} |")), "{name} is {value}");
        }
        // The layouts: fields without a gap, as long as the constants say.
        for (table, bytes) in [("| batch |", BATCH_FIXED_BYTES), ("| record |", RECORD_BYTES)] {
            let rows = page.split(table).nth(1).map(|rest| rest.lines().skip(2).take_while(|l| l.starts_with('|')));
            let mut at = 0;
            for row in rows.into_iter().flatten() {
                let cells: Vec<usize> = row.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
                assert_eq!(cells[0], at, "{row}");
                at += cells[1];
            }
            assert_eq!(at, bytes, "{table}");
        }
    }
}

const _: () = assert!(BATCH_FIXED_BYTES == 4 + 4 + 2 + 2 + 4 + 3 * 16 + 3 * 8 + 4 + 4);
const _: () = assert!(RECORD_BYTES == 3 * 8 + 3 * 4 + 4);
const _: () =
    assert!(BATCH_BYTES_MAX >= 2 * RECORD_DATA_BYTES_MAX + BATCH_FIXED_BYTES + BATCH_RECORDS_MAX * RECORD_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNER: Owner = Owner { cell_id: 1, device_id: 2, log_id: 3 };

    fn sample() -> (BatchHeader, Vec<Record>) {
        let header = BatchHeader { number: 9, start_page: 4, pages: 3, tail: 7, durable: 8 };
        let at = head_bytes(2);
        let data = Record {
            sequence: 5,
            grid_disk: 1,
            offset: 8192,
            len: 4096,
            kind: RecordKind::Data,
            sum: 77,
            data: at..at + 4096,
        };
        let zeroes = Record {
            sequence: 6,
            grid_disk: 2,
            offset: 0,
            len: 16 << 20,
            kind: RecordKind::Unmapped,
            sum: 0,
            data: at + 4096..at + 4096,
        };
        (header, vec![data, zeroes])
    }

    #[test]
    fn a_batch_comes_back_as_it_was() {
        let (header, records) = sample();
        let bytes = encode_head(&OWNER, &header, &records);
        assert_eq!(claimed_head_bytes(&bytes), Some(bytes.len()));
        assert_eq!(decode_head(&bytes, &OWNER, 4096, 100), Ok((header, records)));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let (header, records) = sample();
        let bytes = encode_head(&OWNER, &header, &records);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                assert!(decode_head(&bad, &OWNER, 4096, 100).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn another_owner_or_place_is_refused() {
        let (header, records) = sample();
        let bytes = encode_head(&OWNER, &header, &records);
        assert_eq!(decode_head(&bytes, &Owner { log_id: 4, ..OWNER }, 4096, 100), Err(FormatError::Checksum));
        assert_eq!(decode_head(&bytes, &OWNER, 4096, 6), Err(FormatError::Limits("batch")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..400), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
            }
            let _ = claimed_head_bytes(&bytes);
            let _ = decode_head(&bytes, &OWNER, 4096, 100);
        }
    }
}
