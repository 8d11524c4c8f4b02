//! A section: header, payload, checksums. The unit that is written at once and is valid as a whole or not at all.
//!
//! The header's first 16 bytes (magic, version) and its checksum keep their place in every version, so that an older
//! release can always tell "newer" from "damaged". Never knows what a payload means.

use crate::codec::{DecodeError, Decoder, Encoder};
use crate::ids::{CellId, DeviceId};
use crate::layout::{
    CATALOG_OFFSET, CATALOG_PACKED_VERSION, CATALOG_SECTION_BYTES, FORMAT_VERSION, HEADER_BYTES, LABEL_OFFSET,
    LABEL_SECTION_BYTES, PAGE_BYTES, Place,
};

/// Which of a slot's two sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// The device's own label.
    Label,
    /// This device's copy of the cell's catalog.
    Catalog,
}

impl SectionKind {
    /// The first eight bytes.
    #[must_use]
    pub fn magic(self) -> [u8; 8] {
        match self {
            SectionKind::Label => *b"FCELLBL\n",
            SectionKind::Catalog => *b"FCELCAT\n",
        }
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SectionKind::Label => "label",
            SectionKind::Catalog => "catalog",
        }
    }

    /// The newest format version of it that this release reads and writes.
    #[must_use]
    pub fn newest_format(self) -> u32 {
        match self {
            SectionKind::Label => FORMAT_VERSION,
            SectionKind::Catalog => CATALOG_PACKED_VERSION,
        }
    }

    /// Room for header and payload, bytes.
    #[must_use]
    pub fn room_bytes(self) -> u64 {
        match self {
            SectionKind::Label => LABEL_SECTION_BYTES,
            SectionKind::Catalog => CATALOG_SECTION_BYTES,
        }
    }

    /// First byte on the device.
    #[must_use]
    pub fn offset(self, place: Place) -> u64 {
        match self {
            SectionKind::Label => place.offset() + LABEL_OFFSET,
            SectionKind::Catalog => place.offset() + CATALOG_OFFSET,
        }
    }
}

/// How new a section is: the greater one wins. A label uses `epoch` alone (its sequence), a catalog both (term, sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Version {
    /// Label sequence, or catalog term.
    pub epoch: u64,
    /// Catalog sequence; 0 for a label.
    pub sequence: u64,
}

/// What every checksum of a section covers besides the payload, so that bytes written for another place or time never pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Cell.
    pub cell_id: CellId,
    /// Device.
    pub device_id: DeviceId,
    /// Slot and copy.
    pub place: Place,
    /// Version.
    pub version: Version,
}

/// A decoded header: enough to read the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Format version of the payload.
    pub format: u32,
    /// What it is bound to.
    pub binding: Binding,
    /// Payload length.
    pub payload_bytes: u32,
    payload_crc: u32,
    /// CRC of the header fields before the payload's CRC: the payload's checksum continues it.
    fields_crc: u32,
}

const MAGIC_AND_VERSION_BYTES: usize = 16;
const FIELDS_BYTES: usize = 76;
const CRC_OFFSET: usize = HEADER_BYTES - 4;
const HEADER_RESERVED_BYTES: usize = CRC_OFFSET - FIELDS_BYTES - 4;

/// Header and payload, which is of format version `format`, as they go to the device, padded with zeroes to [`PAGE_BYTES`].
///
/// # Panics
/// When the payload exceeds the section's room, or the format is not one of its: callers check limits first.
#[must_use]
pub fn seal(kind: SectionKind, format: u32, binding: &Binding, payload: &[u8]) -> Vec<u8> {
    let total = HEADER_BYTES + payload.len();
    assert!((1..=kind.newest_format()).contains(&format), "a {} has no format {format}", kind.name());
    assert!(total as u64 <= kind.room_bytes(), "a {} of {total} bytes was validated", kind.name());
    let mut out = Encoder(Vec::with_capacity(total.next_multiple_of(PAGE_BYTES as usize)));
    out.bytes(&kind.magic());
    out.u32(format);
    out.u32(0);
    out.u128(binding.cell_id.0);
    out.u128(binding.device_id.0);
    out.u8(binding.place.slot.index() as u8);
    out.u8(u8::from(binding.place.mirror));
    out.zeroes(6);
    out.u64(binding.version.epoch);
    out.u64(binding.version.sequence);
    out.u32(payload.len() as u32);
    assert!(out.0.len() == FIELDS_BYTES, "the header's fields are {FIELDS_BYTES} bytes");
    let payload_crc = crc32c::crc32c_append(crc32c::crc32c(&out.0), payload);
    out.u32(payload_crc);
    out.zeroes(HEADER_RESERVED_BYTES);
    let header_crc = crc32c::crc32c(&out.0);
    out.u32(header_crc);
    out.bytes(payload);
    let mut bytes = out.0;
    bytes.resize(total.next_multiple_of(PAGE_BYTES as usize), 0);
    bytes
}

/// Check the header at the start of `bytes`, read from `place`.
///
/// # Errors
/// [`DecodeError::Empty`] when it is all zero; [`DecodeError::NewerVersion`] only for an undamaged header.
pub fn open_header(kind: SectionKind, place: Place, bytes: &[u8]) -> Result<Header, DecodeError> {
    let what = "header";
    let header = bytes.get(..HEADER_BYTES).ok_or(DecodeError::Truncated { what })?;
    if header.iter().all(|&b| b == 0) {
        return Err(DecodeError::Empty);
    }
    let mut d = Decoder(header);
    if d.take(8, what)? != kind.magic() {
        return Err(DecodeError::Magic { what: kind.name() });
    }
    let stored = Decoder(&header[CRC_OFFSET..]).u32(what)?;
    if crc32c::crc32c(&header[..CRC_OFFSET]) != stored {
        return Err(DecodeError::Checksum { what: "header" });
    }
    let format = d.u32(what)?;
    if format > kind.newest_format() {
        return Err(DecodeError::NewerVersion { found: format, known: kind.newest_format() });
    }
    if format == 0 {
        return Err(DecodeError::Value { what: "format version" });
    }
    d.reserved(4, what)?;
    debug_assert_eq!(header.len() - d.0.len(), MAGIC_AND_VERSION_BYTES);
    let cell_id = CellId(d.u128(what)?);
    let device_id = DeviceId(d.u128(what)?);
    if (usize::from(d.u8(what)?), d.flag("place")?) != (place.slot.index(), place.mirror) {
        return Err(DecodeError::Value { what: "place" });
    }
    d.reserved(6, what)?;
    let version = Version { epoch: d.u64(what)?, sequence: d.u64(what)? };
    let payload_bytes = d.u32(what)?;
    let payload_crc = d.u32(what)?;
    d.reserved(HEADER_RESERVED_BYTES, what)?;
    let max = kind.room_bytes() as usize - HEADER_BYTES;
    if payload_bytes as usize > max {
        return Err(DecodeError::Limit { what: "payload", max });
    }
    let fields_crc = crc32c::crc32c(&header[..FIELDS_BYTES]);
    Ok(Header {
        format,
        binding: Binding { cell_id, device_id, place, version },
        payload_bytes,
        payload_crc,
        fields_crc,
    })
}

/// The checked payload of a section whose header was accepted; `bytes` starts at the header.
///
/// # Errors
/// When bytes are missing or the checksum does not match.
pub fn open_payload<'a>(header: &Header, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let end = HEADER_BYTES + header.payload_bytes as usize;
    let payload = bytes.get(HEADER_BYTES..end).ok_or(DecodeError::Truncated { what: "payload" })?;
    if crc32c::crc32c_append(header.fields_crc, payload) != header.payload_crc {
        return Err(DecodeError::Checksum { what: "payload" });
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::layout::Slot;

    const A: Place = Place { slot: Slot::A, mirror: false };
    const B: Place = Place { slot: Slot::B, mirror: true };

    fn binding(place: Place) -> Binding {
        Binding {
            cell_id: CellId(0x1111),
            device_id: DeviceId(0x2222),
            place,
            version: Version { epoch: 7, sequence: 9 },
        }
    }

    #[test]
    fn a_section_opens_with_what_it_was_sealed_with() {
        for kind in [SectionKind::Label, SectionKind::Catalog] {
            let bytes = seal(kind, FORMAT_VERSION, &binding(B), b"payload");
            assert_eq!(bytes.len(), PAGE_BYTES as usize);
            let header = open_header(kind, B, &bytes).unwrap();
            assert_eq!(header.binding, binding(B));
            assert_eq!(open_payload(&header, &bytes).unwrap(), b"payload");
            assert_eq!(open_header(kind, A, &bytes), Err(DecodeError::Value { what: "place" }));
        }
    }

    #[test]
    fn every_flipped_bit_of_header_and_payload_is_noticed() {
        let bytes = seal(SectionKind::Label, FORMAT_VERSION, &binding(A), b"0123456789");
        for bit in 0..(HEADER_BYTES + 10) * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let opened = open_header(SectionKind::Label, A, &bad)
                .and_then(|header| open_payload(&header, &bad).map(<[u8]>::to_vec));
            assert!(opened.is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_payload_of_another_version_never_passes() {
        let mut newer = binding(A);
        newer.version.epoch += 1;
        let old = seal(SectionKind::Label, FORMAT_VERSION, &binding(A), &[7; 5000]);
        let mut torn = seal(SectionKind::Label, FORMAT_VERSION, &newer, &[7; 5000]);
        // The payload's bytes are the same; a payload CRC that came from the older header must still not fit.
        torn[FIELDS_BYTES..FIELDS_BYTES + 4].copy_from_slice(&old[FIELDS_BYTES..FIELDS_BYTES + 4]);
        let crc = crc32c::crc32c(&torn[..CRC_OFFSET]);
        torn[CRC_OFFSET..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        let header = open_header(SectionKind::Label, A, &torn).unwrap();
        assert_eq!(open_payload(&header, &torn), Err(DecodeError::Checksum { what: "payload" }));
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let mut bytes = seal(SectionKind::Label, FORMAT_VERSION, &binding(A), b"x");
        bytes[8] = 2;
        assert_eq!(open_header(SectionKind::Label, A, &bytes), Err(DecodeError::Checksum { what: "header" }));
        let crc = crc32c::crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(open_header(SectionKind::Label, A, &bytes), Err(DecodeError::NewerVersion { found: 2, known: 1 }));
    }

    #[test]
    fn emptiness_is_not_damage() {
        assert_eq!(open_header(SectionKind::Label, A, &[0; 4096]), Err(DecodeError::Empty));
        assert_eq!(open_header(SectionKind::Label, A, &[1; 4096]), Err(DecodeError::Magic { what: "label" }));
        assert_eq!(open_header(SectionKind::Label, A, &[0; 7]), Err(DecodeError::Truncated { what: "header" }));
    }
}
