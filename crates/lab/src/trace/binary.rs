//! Records of binary traces. Never reads beyond the slice it is given.

use super::{DeviceName, Format, Op, Parsed, RawRequest};

/// A request of NBD starts with this.
const NBD_REQUEST: u32 = 0x2560_9513;
/// A reply.
const NBD_REPLY: u32 = 0x6744_6698;
/// Both magics.
pub(super) const NBD_MAGIC_BYTES: usize = 4;
const SECTOR_BYTES: u64 = 512;

fn le_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}
fn le_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}
fn le_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}
fn be_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}
fn be_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// Bytes of a VSCSI record.
pub(super) fn vscsi_bytes(format: Format) -> usize {
    if format == Format::Vscsi2 { 40 } else { 32 }
}

/// Version 1: `sn u32, len u32, nSG u32, cmd u16, ver u16, lbn u64, ts u64`; version 2: `cmd u16, ver u16, sn u32, len u32,
/// nSG u32, lbn u64, ts u64, rt u64`.
pub(super) fn vscsi(format: Format, record: &[u8]) -> Parsed {
    let version2 = format == Format::Vscsi2;
    let (command_at, version_at, length_at) = if version2 { (0, 2, 8) } else { (12, 14, 4) };
    let fields =
        (le_u16(record, command_at), le_u16(record, version_at), le_u32(record, length_at), le_u64(record, 16));
    let (Some(command), Some(version), Some(length), Some(lbn)) = fields else {
        return Err("the record is too short");
    };
    if version >> 8 != if version2 { 2 } else { 1 } {
        return Err("a record of another version");
    }
    let op = match command {
        0x08 | 0x28 | 0x88 | 0xa8 => Op::Read,
        0x0a | 0x2a | 0x8a | 0xaa => Op::Write,
        // Inquiries and the like move no blocks.
        _ => return Ok(None),
    };
    let start = lbn.checked_mul(SECTOR_BYTES).ok_or("an address beyond 64 PiB")?;
    Ok(Some(RawRequest { device: DeviceName::Number(0), start, count: u64::from(length), op }))
}

/// Bytes that follow a magic.
pub(super) fn nbd_rest(magic: &[u8]) -> Option<usize> {
    match be_u32(magic, 0)? {
        NBD_REQUEST => Some(24),
        NBD_REPLY => Some(12),
        _ => None,
    }
}

/// What follows a magic: `flags u16, type u16, cookie u64, offset u64, length u32` for a request.
pub(super) fn nbd(magic: &[u8], rest: &[u8]) -> Parsed {
    if be_u32(magic, 0) != Some(NBD_REQUEST) {
        return Ok(None);
    }
    let (Some(head), Some(start), Some(length)) = (be_u32(rest, 0), be_u64(rest, 12), be_u32(rest, 20)) else {
        return Err("the record is too short");
    };
    let op = match head & 0xffff {
        0 => Op::Read,
        1 => Op::Write,
        // Disconnect, flush, trim and the rest move no blocks.
        2..=7 => return Ok(None),
        _ => return Err("no request type of NBD"),
    };
    Ok(Some(RawRequest { device: DeviceName::Number(0), start, count: u64::from(length), op }))
}
