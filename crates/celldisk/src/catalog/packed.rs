//! Grid disks as format 2 of the catalog has them: many more in the same room. What most have in common takes no byte, numbers take as
//! many as they need, and a cell disk is named by its place among the members.

use super::codec::{access_code, decode_asm, decode_ranges, encode_asm, encode_ranges, flags_of_access, push};
use super::{CachingMode, CachingPolicy, Extent, FillStrategy, FlashLogMode, GridDisk, ModeSwitch, Purpose};
use crate::codec::{DecodeError, Decoder, Encoder};
use crate::ids::{DeviceId, GridDiskId};
use crate::layout::{
    AVAILABLE_TO_BYTES_MAX, COMMENT_BYTES_MAX, EXTENTS_MAX, GRID_DISK_NAME_BYTES_MAX, GRID_DISKS_MAX,
    GRID_DISKS_UNPACKED_MAX, JOURNAL_EXTENTS_MAX, PAGE_BYTES,
};
use device::WallTime;
use std::collections::BTreeMap;

const WHAT: &str = "grid disk";

// The word of a grid disk: purpose, mode and policy, and which fields follow.
const PURPOSE_SHIFT: u32 = 0;
const MODE_SHIFT: u32 = 2;
const POLICY_SHIFT: u32 = 5;
const HAS_STATE: u16 = 1 << 7;
const HAS_GENERATION: u16 = 1 << 8;
const HAS_COMMENT: u16 = 1 << 9;
const HAS_AVAILABLE_TO: u16 = 1 << 10;
const HAS_ASM: u16 = 1 << 11;
const HAS_EXTENTS: u16 = 1 << 12;
const HAS_RANGES: u16 = 1 << 13;
const HAS_JOURNAL: u16 = 1 << 14;

/// What few grid disks differ in: all zero is left out.
type State = [u8; 7];

fn state_of(g: &GridDisk) -> State {
    let (from, to) = g.mode_switch.map_or((0, 0), |switch| (switch.from.code(), switch.to.code()));
    let access = access_code(g.read_only, g.inactive);
    [from, to, g.flash_log_mode.code(), g.fill.code(), u8::from(g.given_up), access, u8::from(g.redo_behind)]
}

/// Seven bits in each byte, the lowest first; the top bit says that more follow.
fn put_number(e: &mut Encoder, mut value: u64) {
    while value >= 0x80 {
        e.u8(value as u8 | 0x80);
        value >>= 7;
    }
    e.u8(value as u8);
}

fn number(d: &mut Decoder<'_>, what: &'static str) -> Result<u64, DecodeError> {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let byte = d.u8(what)?;
        let bits = u64::from(byte & 0x7f);
        // A last byte of zero is the same number with a byte more.
        if shift > 63 || bits << shift >> shift != bits || byte == 0 && shift > 0 {
            return Err(DecodeError::Value { what });
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Ok(value);
        }
        shift += 7;
    }
}

fn number32(d: &mut Decoder<'_>, what: &'static str) -> Result<u32, DecodeError> {
    u32::try_from(number(d, what)?).map_err(|_| DecodeError::Value { what })
}

fn put_extents(e: &mut Encoder, extents: &[Extent]) {
    for extent in extents {
        put_number(e, extent.start_au.into());
        put_number(e, extent.count_au.into());
    }
}

fn extents(d: &mut Decoder<'_>, count: usize) -> Result<Vec<Extent>, DecodeError> {
    let what = "extents";
    (0..count).map(|_| Ok(Extent { start_au: number32(d, what)?, count_au: number32(d, what)? })).collect()
}

/// What follows a flag is not what its absence means.
fn stated<T>(value: T, is_default: bool, what: &'static str) -> Result<T, DecodeError> {
    if is_default { Err(DecodeError::Value { what }) } else { Ok(value) }
}

/// Differences of times, near zero whichever is later.
fn folded(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

fn unfolded(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Append all grid disks; `places` says which member a device is.
pub(super) fn encode(e: &mut Encoder, grid_disks: &BTreeMap<GridDiskId, GridDisk>, places: &BTreeMap<DeviceId, u8>) {
    e.u16(grid_disks.len() as u16);
    let (mut last_id, mut last_created) = (0, 0_u64);
    for g in grid_disks.values() {
        put_number(e, g.id.0 - last_id);
        e.text8(&g.name);
        let Some(place) = places.get(&g.cell_disk) else { panic!("the cell disk of {} was validated", g.name) };
        e.u8(*place);
        put_number(e, g.size_bytes / PAGE_BYTES);
        put_number(e, folded(g.created.0.wrapping_sub(last_created) as i64));
        let state = state_of(g);
        let mut word = u16::from(g.purpose.code()) << PURPOSE_SHIFT;
        word |= u16::from(g.caching_mode.code()) << MODE_SHIFT | u16::from(g.caching_policy.code()) << POLICY_SHIFT;
        let flags = [
            (HAS_STATE, state != State::default()),
            (HAS_GENERATION, g.cache_generation != 1),
            (HAS_COMMENT, !g.comment.is_empty()),
            (HAS_AVAILABLE_TO, !g.available_to.is_empty()),
            (HAS_ASM, !g.asm.is_empty()),
            (HAS_EXTENTS, g.extents.len() != 1),
            (HAS_RANGES, !g.caching_ranges.is_empty()),
            (HAS_JOURNAL, !g.journal.is_empty()),
        ];
        word |= flags.iter().map(|(flag, is_set)| if *is_set { *flag } else { 0 }).sum::<u16>();
        e.u16(word);
        let has = |flag| word & flag != 0;
        if has(HAS_STATE) {
            e.bytes(&state);
        }
        if has(HAS_GENERATION) {
            put_number(e, g.cache_generation.into());
        }
        if has(HAS_COMMENT) {
            e.text8(&g.comment);
        }
        if has(HAS_AVAILABLE_TO) {
            e.text8(&g.available_to);
        }
        if has(HAS_ASM) {
            encode_asm(e, &g.asm);
        }
        if has(HAS_EXTENTS) {
            e.u8(g.extents.len() as u8);
        }
        put_extents(e, &g.extents);
        if has(HAS_RANGES) {
            e.u16(g.caching_ranges.len() as u16);
            encode_ranges(e, &g.caching_ranges);
        }
        if has(HAS_JOURNAL) {
            e.u8(g.journal.len() as u8);
            put_extents(e, &g.journal);
        }
        (last_id, last_created) = (g.id.0, g.created.0);
    }
}

/// All grid disks; `members` are the devices in their order.
pub(super) fn decode(d: &mut Decoder<'_>, members: &[DeviceId]) -> Result<BTreeMap<GridDiskId, GridDisk>, DecodeError> {
    let count = d.count16(GRID_DISKS_MAX, "grid disks")?;
    // Fewer are written as format 1.
    stated((), count <= GRID_DISKS_UNPACKED_MAX, "grid disks")?;
    let mut grid_disks = BTreeMap::new();
    let (mut last_id, mut last_created) = (0_u64, 0_u64);
    for _ in 0..count {
        let g = decode_one(d, members, last_id, last_created)?;
        (last_id, last_created) = (g.id.0, g.created.0);
        push(&mut grid_disks, g.id, g, "grid disks")?;
    }
    Ok(grid_disks)
}

fn decode_one(
    d: &mut Decoder<'_>,
    members: &[DeviceId],
    last_id: u64,
    last_created: u64,
) -> Result<GridDisk, DecodeError> {
    let bad = DecodeError::Value { what: WHAT };
    let id = last_id.checked_add(number(d, WHAT)?).ok_or(bad.clone())?;
    let name = d.text8(GRID_DISK_NAME_BYTES_MAX, "grid disk name")?;
    let cell_disk = *members.get(usize::from(d.u8(WHAT)?)).ok_or(bad.clone())?;
    let size_bytes = number(d, WHAT)?.checked_mul(PAGE_BYTES).ok_or(bad)?;
    let created = last_created.wrapping_add(unfolded(number(d, WHAT)?) as u64);
    let word = d.u16(WHAT)?;
    stated((), word >> 15 != 0, WHAT)?;
    let (code, has) = (|shift: u32, mask: u16| (word >> shift & mask) as u8, |flag: u16| word & flag != 0);
    let mut state = State::default();
    if has(HAS_STATE) {
        state.copy_from_slice(d.take(size_of::<State>(), WHAT)?);
        stated((), state == State::default(), WHAT)?;
    }
    let [from, to, flash_log_mode, fill, given_up, access, redo_behind] = state;
    let flag = |byte: u8| if byte > 1 { Err(DecodeError::Value { what: WHAT }) } else { Ok(byte == 1) };
    let (read_only, inactive) = flags_of_access(access)?;
    let mode_switch = match (from, to) {
        (0, 0) => None,
        (from, to) => Some(ModeSwitch { from: CachingMode::of_code(from)?, to: CachingMode::of_code(to)? }),
    };
    let cache_generation = match has(HAS_GENERATION) {
        true => number32(d, WHAT).and_then(|n| stated(n, n == 1, WHAT))?,
        false => 1,
    };
    let text = |d: &mut Decoder<'_>, flag, max, what| match has(flag) {
        true => d.text8(max, what).and_then(|text| stated((), text.is_empty(), what).map(|()| text)),
        false => Ok(String::new()),
    };
    let comment = text(d, HAS_COMMENT, COMMENT_BYTES_MAX, "comment")?;
    let available_to = text(d, HAS_AVAILABLE_TO, AVAILABLE_TO_BYTES_MAX, "availableTo")?;
    let asm = if has(HAS_ASM) { decode_asm(d)? } else { BTreeMap::new() };
    stated((), has(HAS_ASM) && asm.is_empty(), "ASM attributes")?;
    let count = if has(HAS_EXTENTS) { d.count8(EXTENTS_MAX, "extents")? } else { 1 };
    stated((), has(HAS_EXTENTS) && count == 1, "extents")?;
    let extents_of_it = extents(d, count)?;
    let caching_ranges = match has(HAS_RANGES) {
        true => {
            let count = usize::from(d.u16("caching ranges")?);
            stated((), count == 0, "caching ranges")?;
            decode_ranges(d, count)?
        }
        false => Vec::new(),
    };
    let journal = match has(HAS_JOURNAL) {
        true => {
            let count = d.count8(JOURNAL_EXTENTS_MAX, "journal")?;
            stated((), count == 0, "journal")?;
            extents(d, count)?
        }
        false => Vec::new(),
    };
    Ok(GridDisk {
        id: GridDiskId(id),
        name,
        cell_disk,
        extents: extents_of_it,
        size_bytes,
        purpose: Purpose::of_code(code(PURPOSE_SHIFT, 0b11))?,
        flash_log_mode: FlashLogMode::of_code(flash_log_mode)?,
        caching_mode: CachingMode::of_code(code(MODE_SHIFT, 0b111))?,
        mode_switch,
        caching_policy: CachingPolicy::of_code(code(POLICY_SHIFT, 0b11))?,
        fill: FillStrategy::of_code(fill)?,
        caching_ranges,
        journal,
        cache_generation,
        given_up: flag(given_up)?,
        read_only,
        inactive,
        redo_behind: flag(redo_behind)?,
        available_to,
        comment,
        created: WallTime(created),
        asm,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: a number has one form, whatever it is. Method: the ends of each length, and each byte sequence of up to two bytes.
    use super::*;

    #[test]
    fn numbers_come_back_and_have_one_form() {
        let ends = (0..64).flat_map(|bits| [(1_u64 << bits) - 1, 1 << bits]).chain([u64::MAX]);
        for value in ends {
            let mut e = Encoder::default();
            put_number(&mut e, value);
            let mut d = Decoder(&e.0);
            assert_eq!(number(&mut d, WHAT).unwrap(), value);
            assert!(d.0.is_empty() && e.0.len() <= 10);
            for difference in [value as i64, (value as i64).wrapping_neg()] {
                assert_eq!(unfolded(folded(difference)), difference);
            }
        }
        for bytes in (0..=u16::MAX).map(u16::to_le_bytes) {
            let mut d = Decoder(&bytes);
            if let Ok(value) = number(&mut d, WHAT) {
                let mut e = Encoder::default();
                put_number(&mut e, value);
                assert_eq!(e.0, bytes[..2 - d.0.len()]);
            }
        }
        assert!(number(&mut Decoder(&[0xff; 11]), WHAT).is_err(), "more than 64 bits");
        assert!(number(&mut Decoder(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), WHAT).is_err());
        assert!((0..100).all(|n| folded(n) < 200 && folded(-n) < 200), "near zero is small");
    }
}
