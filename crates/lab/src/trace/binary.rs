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
    let time_ns = le_u64(record, 24).and_then(|us| us.checked_mul(1000));
    Ok(Some(RawRequest {
        device: DeviceName::Number(0),
        start,
        count: u64::from(length),
        op,
        time_ns,
        latency_ns: None,
    }))
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
    Ok(Some(RawRequest {
        device: DeviceName::Number(0),
        start,
        count: u64::from(length),
        op,
        time_ns: None,
        latency_ns: None,
    }))
}

/// Bytes of a record of libCacheSim's oracleGeneral.
pub(super) const ORACLE_BYTES: usize = 24;

/// What a record of oracleGeneral says.
pub(super) struct Oracle {
    pub(super) seconds: u32,
    pub(super) object: u64,
    pub(super) bytes: u32,
    /// The request that asks for the same next; negative, or the largest there is, for none.
    pub(super) next: i64,
}

/// `clock_time u32, obj_id u64, obj_size u32, next_access_vtime i64`, little endian, without gaps.
pub(super) fn oracle_record(record: &[u8]) -> Option<Oracle> {
    let next = le_u64(record, 16)? as i64;
    Some(Oracle { seconds: le_u32(record, 0)?, object: le_u64(record, 4)?, bytes: le_u32(record, 12)?, next })
}

/// An object is a block: how it lay on a disk is not told.
pub(super) fn oracle(record: &[u8]) -> Parsed {
    let Oracle { seconds, object, bytes, .. } = oracle_record(record).ok_or("the record is too short")?;
    if bytes == 0 {
        return Err("an object of no bytes");
    }
    let time_ns = Some(u64::from(seconds) * 1_000_000_000);
    Ok(Some(RawRequest {
        device: DeviceName::Number(0),
        start: object,
        count: 1,
        op: Op::Unknown,
        time_ns,
        latency_ns: None,
    }))
}

/// Bytes of a record of blktrace, before what the driver adds.
pub(super) const BLKTRACE_BYTES: usize = 48;
/// Its magic, below which is the version.
const BLKTRACE_MAGIC: u32 = 0x6561_7400;
const BLKTRACE_VERSION: u32 = 7;
/// Of an action: a request is queued; the mark of one that names a control group.
const BLKTRACE_QUEUE: u32 = 1;
const BLKTRACE_CGROUP: u32 = 1 << 8;
/// Of its categories: writes, messages of the kernel, commands that are no data, discards.
const BLKTRACE_WRITE: u32 = 1 << 17;
const BLKTRACE_PC: u32 = 1 << 25;
const BLKTRACE_NOTIFY: u32 = 1 << 26;
const BLKTRACE_DISCARD: u32 = 1 << 29;

/// Whether a record of blktrace begins here, and whether it is of a machine that stores the low byte first.
pub(super) fn blktrace_little(record: &[u8]) -> Option<bool> {
    let magic = [le_u32(record, 0)?, be_u32(record, 0)?];
    let at = magic.iter().position(|word| word & !0xff == BLKTRACE_MAGIC)?;
    Some(at == 0)
}

/// Bytes that follow a record.
pub(super) fn blktrace_rest(record: &[u8]) -> Result<usize, &'static str> {
    let Some(little) = blktrace_little(record) else { return Err("no record of blktrace") };
    let bytes: [u8; 2] = record.get(46..48).and_then(|b| b.try_into().ok()).ok_or("the record is too short")?;
    Ok(usize::from(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }))
}

/// `magic u32, sequence u32, time u64 (ns), sector u64, bytes u32, action u32, pid u32, device u32, cpu u32, error u16, pdu_len u16`.
pub(super) fn blktrace(record: &[u8]) -> Parsed {
    let little = blktrace_little(record).ok_or("no record of blktrace")?;
    let word = |at| if little { le_u32(record, at) } else { be_u32(record, at) };
    let long = |at| if little { le_u64(record, at) } else { be_u64(record, at) };
    let fields = (word(0), long(8), long(16), word(24), word(28), word(36));
    let (Some(magic), Some(time), Some(sector), Some(bytes), Some(action), Some(device)) = fields else {
        return Err("the record is too short");
    };
    if magic & 0xff != BLKTRACE_VERSION {
        return Err("a record of another version of blktrace");
    }
    let queued = action & 0xffff & !BLKTRACE_CGROUP == BLKTRACE_QUEUE;
    if !queued || action & (BLKTRACE_NOTIFY | BLKTRACE_DISCARD | BLKTRACE_PC) != 0 || bytes == 0 {
        return Ok(None);
    }
    let op = if action & BLKTRACE_WRITE == 0 { Op::Read } else { Op::Write };
    let start = sector.checked_mul(SECTOR_BYTES).ok_or("an address beyond 64 PiB")?;
    let device = DeviceName::Number(u64::from(device));
    Ok(Some(RawRequest { device, start, count: u64::from(bytes), op, time_ns: Some(time), latency_ns: None }))
}
