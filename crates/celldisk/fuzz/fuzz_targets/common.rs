// Shared by the targets: makes a section of the fuzzer's bytes.

use celldisk::layout::{FORMAT_VERSION, HEADER_BYTES};
use celldisk::section::{self, Binding, SectionKind, Version};
use celldisk::{CellId, DeviceId, Place};

/// The first byte chooses: its low two bits the place; bit 2 whether the rest is a payload (sealed here, padded with
/// zeroes to `payload_bytes`) or a whole section whose checksums are repaired, so that the fields behind them are reached;
/// bit 3 whether the checksums are left as they are; bit 4 whether the payload is of the newest format.
pub fn section_of(data: &[u8], kind: SectionKind, payload_bytes: usize) -> Option<(Place, Vec<u8>)> {
    let (&mode, rest) = data.split_first()?;
    let place = Place::ALL[usize::from(mode & 3)];
    if mode & 4 == 0 {
        let mut payload = rest.to_vec();
        if payload.len() < payload_bytes {
            payload.resize(payload_bytes, 0);
        }
        payload.truncate(kind.room_bytes() as usize - HEADER_BYTES);
        let version = Version { epoch: 7, sequence: if kind == SectionKind::Catalog { 9 } else { 0 } };
        let binding = Binding { cell_id: CellId(1), device_id: DeviceId(2), place, version };
        let format = if mode & 16 == 0 { FORMAT_VERSION } else { kind.newest_format() };
        return Some((place, section::seal(kind, format, &binding, &payload)));
    }
    let mut bytes = rest.to_vec();
    if mode & 8 == 0 && bytes.len() >= HEADER_BYTES {
        let payload_bytes = u32::from_le_bytes(bytes[72..76].try_into().unwrap()) as usize;
        let crc = crc32c::crc32c(&bytes[..76]);
        if let Some(payload) = bytes.get(HEADER_BYTES..HEADER_BYTES.saturating_add(payload_bytes)) {
            let crc = crc32c::crc32c_append(crc, payload);
            bytes[76..80].copy_from_slice(&crc.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    }
    Some((place, bytes))
}

/// What decodes must encode to the same bytes, as far as header and payload go.
pub fn assert_same(again: &[u8], bytes: &[u8]) {
    let payload_bytes = u32::from_le_bytes(bytes[72..76].try_into().unwrap()) as usize;
    let len = HEADER_BYTES + payload_bytes;
    assert!(again[..len] == bytes[..len], "one value, one encoding");
}
