//! The catalog's payload, field by field.

use super::packed;
use super::{
    CachingMode, CachingPolicy, CachingRange, Catalog, Extent, FillStrategy, FlashCache, FlashLog, FlashLogMode,
    GridDisk, Lineage, Member, ModeSwitch, OUTLIER_MS_DEFAULT, Purpose, TermMark,
};
use crate::codec::{DecodeError, Decoder, Encoder};
use crate::ids::{DeviceId, GridDiskId, Stamp};
use crate::label::{Role, class_code, class_of_code};
use crate::layout::{
    ASM_ATTRIBUTES_MAX, ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_TEXT_BYTES_MAX, AVAILABLE_TO_BYTES_MAX,
    CACHING_RANGE_BYTES, CACHING_RANGES_MAX, CATALOG_PACKED_VERSION, CELL_ATTRIBUTES_MAX, COMMENT_BYTES_MAX,
    EXTENTS_MAX, FLASH_MEMBERS_MAX, FORMAT_VERSION, GRID_DISK_NAME_BYTES_MAX, GRID_DISKS_UNPACKED_MAX,
    IORM_PLAN_BYTES_MAX, JOURNAL_EXTENTS_MAX, MEMBERS_MAX, NAME_BYTES_MAX, Place, TERMS_MAX,
};
use crate::section::{self, Binding, Header, SectionKind, Version};
use device::WallTime;
use std::collections::BTreeMap;

const WHAT: &str = "catalog";
const RESERVED_BYTES: usize = 64;

impl Purpose {
    pub(super) fn code(self) -> u8 {
        match self {
            Purpose::Data => 1,
            Purpose::Redo => 2,
            Purpose::Temp => 3,
        }
    }
    pub(super) fn of_code(code: u8) -> Result<Purpose, DecodeError> {
        match code {
            1 => Ok(Purpose::Data),
            2 => Ok(Purpose::Redo),
            3 => Ok(Purpose::Temp),
            _ => Err(DecodeError::Value { what: "purpose" }),
        }
    }
}

impl FlashLogMode {
    /// 0 stands where nothing was said.
    pub(super) fn code(self) -> u8 {
        match self {
            FlashLogMode::Auto => 0,
            FlashLogMode::Race => 1,
            FlashLogMode::Hedge => 2,
            FlashLogMode::Flash => 3,
            FlashLogMode::Off => 4,
        }
    }
    pub(super) fn of_code(code: u8) -> Result<FlashLogMode, DecodeError> {
        let found = FlashLogMode::ALL.into_iter().find(|mode| mode.code() == code);
        found.ok_or(DecodeError::Value { what: "flash log mode" })
    }
}

impl FillStrategy {
    /// 0 stands where nothing was said.
    pub(super) fn code(self) -> u8 {
        match self {
            FillStrategy::Read => 0,
            FillStrategy::Evict => 1,
            FillStrategy::Feed => 2,
        }
    }
    pub(super) fn of_code(code: u8) -> Result<FillStrategy, DecodeError> {
        let found = FillStrategy::ALL.into_iter().find(|strategy| strategy.code() == code);
        found.ok_or(DecodeError::Value { what: "fill strategy" })
    }
}

impl CachingMode {
    pub(super) fn code(self) -> u8 {
        match self {
            CachingMode::WriteThrough => 1,
            CachingMode::WriteBack => 2,
            CachingMode::WriteBackOrdered => 3,
            CachingMode::WriteAround => 4,
            CachingMode::None => 5,
        }
    }
    pub(super) fn of_code(code: u8) -> Result<CachingMode, DecodeError> {
        match code {
            1 => Ok(CachingMode::WriteThrough),
            2 => Ok(CachingMode::WriteBack),
            3 => Ok(CachingMode::WriteBackOrdered),
            4 => Ok(CachingMode::WriteAround),
            5 => Ok(CachingMode::None),
            _ => Err(DecodeError::Value { what: "caching mode" }),
        }
    }
}

impl CachingPolicy {
    pub(super) fn code(self) -> u8 {
        match self {
            CachingPolicy::Default => 1,
            CachingPolicy::Keep => 2,
            CachingPolicy::None => 3,
        }
    }
    pub(super) fn of_code(code: u8) -> Result<CachingPolicy, DecodeError> {
        match code {
            1 => Ok(CachingPolicy::Default),
            2 => Ok(CachingPolicy::Keep),
            3 => Ok(CachingPolicy::None),
            _ => Err(DecodeError::Value { what: "caching policy" }),
        }
    }
}

impl Catalog {
    /// The catalog section of one device for `place`, padded to a page.
    ///
    /// # Panics
    /// When [`Catalog::validate`] would fail.
    #[must_use]
    pub fn encode(&self, device_id: DeviceId, place: Place) -> Vec<u8> {
        let valid = self.validate();
        assert!(valid.is_ok(), "an invalid catalog is never written: {valid:?}");
        self.seal(device_id, place, &self.payload())
    }

    /// The section around a payload that [`Catalog::payload`] made: encoded once, sealed for each device.
    pub(crate) fn seal(&self, device_id: DeviceId, place: Place, payload: &[u8]) -> Vec<u8> {
        let version = Version { epoch: self.lineage.now.term, sequence: self.lineage.now.sequence };
        let binding = Binding { cell_id: self.cell_id, device_id, place, version };
        section::seal(SectionKind::Catalog, self.format(), &binding, payload)
    }

    /// From the bytes of a catalog section read from `place`: the catalog and the device it was written for.
    ///
    /// # Errors
    /// Anything that [`Catalog::encode`] would not have written.
    pub fn decode(place: Place, bytes: &[u8]) -> Result<(DeviceId, Catalog), DecodeError> {
        let header = section::open_header(SectionKind::Catalog, place, bytes)?;
        let payload = section::open_payload(&header, bytes)?;
        Ok((header.binding.device_id, Catalog::decode_payload(&header, payload)?))
    }

    /// The format it is written in: that of all releases while it has no more grid disks than they know.
    fn format(&self) -> u32 {
        if self.grid_disks.len() > GRID_DISKS_UNPACKED_MAX { CATALOG_PACKED_VERSION } else { FORMAT_VERSION }
    }

    /// The payload. Fields must have been validated.
    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut e = Encoder(Vec::with_capacity(4096));
        e.u64(self.created.0);
        e.u128(self.instance_stamp.0);
        e.u64(self.next_grid_disk_id.0);
        e.u128(self.lineage.now.stamp.0);
        encode_mark(&mut e, &self.lineage.changed);
        e.text8(&self.cell_name);
        e.u8(self.lineage.history.len() as u8);
        for mark in &self.lineage.history {
            encode_mark(&mut e, mark);
        }
        e.u16(self.members.len() as u16);
        for (device_id, member) in &self.members {
            e.u128(device_id.0);
            e.u8(member.role.code());
            e.u8(class_code(member.class));
            e.u64(member.au_bytes);
            e.u32(member.au_count);
            e.text8(&member.name);
            e.u64(0);
        }
        if self.format() == CATALOG_PACKED_VERSION {
            let places = self.members.keys().enumerate().map(|(place, id)| (*id, place as u8)).collect();
            packed::encode(&mut e, &self.grid_disks, &places);
        } else {
            e.u16(self.grid_disks.len() as u16);
            self.grid_disks.values().for_each(|grid_disk| encode_grid_disk(&mut e, grid_disk));
        }
        match &self.flash_cache {
            None => e.u8(0),
            Some(cache) => {
                e.u8(1);
                e.u128(cache.id.0);
                e.u64(cache.created.0);
                e.u64(cache.size_per_device_bytes);
                e.u32(cache.segment_bytes);
                e.u32(cache.block_bytes);
                e.u64(0);
                encode_regions(&mut e, &cache.regions);
            }
        }
        match &self.flash_log {
            None => e.u8(0),
            Some(log) => {
                e.u8(1);
                e.u128(log.id.0);
                e.u64(log.created.0);
                e.u64(log.size_per_device_bytes);
                // Eight bytes that were reserved: 0 stands for the default.
                e.u32(if log.outlier_ms == OUTLIER_MS_DEFAULT { 0 } else { log.outlier_ms });
                e.u32(0);
                encode_regions(&mut e, &log.regions);
            }
        }
        e.u32(self.iorm_plan.len() as u32);
        e.bytes(self.iorm_plan.as_bytes());
        e.u16(self.attributes.len() as u16);
        for (name, text) in &self.attributes {
            e.text8(name);
            e.text16(text);
        }
        e.zeroes(RESERVED_BYTES);
        e.0
    }

    fn decode_payload(header: &Header, payload: &[u8]) -> Result<Catalog, DecodeError> {
        let binding = &header.binding;
        let mut d = Decoder(payload);
        let created = WallTime(d.u64(WHAT)?);
        let instance_stamp = Stamp(d.u128(WHAT)?);
        let next_grid_disk_id = GridDiskId(d.u64(WHAT)?);
        let stamp = Stamp(d.u128(WHAT)?);
        let now = TermMark { term: binding.version.epoch, stamp, sequence: binding.version.sequence };
        let changed = decode_mark(&mut d)?;
        let cell_name = d.text8(NAME_BYTES_MAX, "cell name")?;
        let mut history = Vec::new();
        for _ in 0..d.count8(TERMS_MAX, "term history")? {
            history.push(decode_mark(&mut d)?);
        }
        let mut members = BTreeMap::new();
        for _ in 0..d.count16(MEMBERS_MAX, "members")? {
            let device_id = DeviceId(d.u128(WHAT)?);
            let role = Role::of_code(d.u8(WHAT)?)?;
            let class = class_of_code(d.u8(WHAT)?)?;
            let au_bytes = d.u64(WHAT)?;
            let au_count = d.u32(WHAT)?;
            let name = d.text8(NAME_BYTES_MAX, "cell disk name")?;
            d.reserved(8, "member")?;
            push(&mut members, device_id, Member { name, role, class, au_bytes, au_count }, "members")?;
        }
        let grid_disks = if header.format == CATALOG_PACKED_VERSION {
            packed::decode(&mut d, &members.keys().copied().collect::<Vec<_>>())?
        } else {
            decode_grid_disks(&mut d)?
        };
        let flash_cache = if d.flag("flash cache")? { Some(decode_flash_cache(&mut d)?) } else { None };
        let flash_log = if d.flag("flash log")? { Some(decode_flash_log(&mut d)?) } else { None };
        let iorm_plan = d.text32(IORM_PLAN_BYTES_MAX, "IORM plan")?;
        let mut attributes = BTreeMap::new();
        for _ in 0..d.count16(CELL_ATTRIBUTES_MAX, "cell attributes")? {
            let name = d.text8(ATTRIBUTE_NAME_BYTES_MAX, "attribute name")?;
            let text = d.text16(ATTRIBUTE_TEXT_BYTES_MAX, "attribute")?;
            push(&mut attributes, name, text, "cell attributes")?;
        }
        d.reserved(RESERVED_BYTES, WHAT)?;
        d.end(WHAT)?;
        let catalog = Catalog {
            cell_id: binding.cell_id,
            cell_name,
            created,
            lineage: Lineage { now, changed, history },
            instance_stamp,
            next_grid_disk_id,
            members,
            grid_disks,
            flash_cache,
            flash_log,
            iorm_plan,
            attributes,
        };
        // What encoding would refuse, decoding refuses: overlapping extents above all.
        catalog.check_fields().map_err(|error| DecodeError::Value { what: error.what() })?;
        Ok(catalog)
    }
}

/// Keys ascend: one value has one encoding.
pub(super) fn push<K: Ord, V>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: V,
    what: &'static str,
) -> Result<(), DecodeError> {
    if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
        return Err(DecodeError::Value { what });
    }
    map.insert(key, value);
    Ok(())
}

fn encode_mark(e: &mut Encoder, mark: &TermMark) {
    e.u64(mark.term);
    e.u128(mark.stamp.0);
    e.u64(mark.sequence);
}

fn decode_mark(d: &mut Decoder<'_>) -> Result<TermMark, DecodeError> {
    let what = "term mark";
    Ok(TermMark { term: d.u64(what)?, stamp: Stamp(d.u128(what)?), sequence: d.u64(what)? })
}

fn encode_extents(e: &mut Encoder, extents: &[Extent]) {
    e.u8(extents.len() as u8);
    for extent in extents {
        e.u32(extent.start_au);
        e.u32(extent.count_au);
    }
}

fn decode_extents(d: &mut Decoder<'_>) -> Result<Vec<Extent>, DecodeError> {
    let what = "extents";
    let count = d.count8(EXTENTS_MAX, what)?;
    decode_extent_list(d, count, what)
}

fn decode_extent_list(d: &mut Decoder<'_>, count: usize, what: &'static str) -> Result<Vec<Extent>, DecodeError> {
    let mut bytes = Decoder(d.take(count * 8, what)?);
    let mut extents = Vec::with_capacity(count);
    for _ in 0..count {
        extents.push(Extent { start_au: bytes.u32(what)?, count_au: bytes.u32(what)? });
    }
    Ok(extents)
}

fn encode_regions(e: &mut Encoder, regions: &BTreeMap<DeviceId, Vec<Extent>>) {
    e.u8(regions.len() as u8);
    for (device_id, extents) in regions {
        e.u128(device_id.0);
        encode_extents(e, extents);
    }
}

fn decode_regions(d: &mut Decoder<'_>) -> Result<BTreeMap<DeviceId, Vec<Extent>>, DecodeError> {
    let mut regions = BTreeMap::new();
    for _ in 0..d.count8(FLASH_MEMBERS_MAX, "flash regions")? {
        let device_id = DeviceId(d.u128("flash region")?);
        let extents = decode_extents(d)?;
        push(&mut regions, device_id, extents, "flash regions")?;
    }
    Ok(regions)
}

fn encode_grid_disk(e: &mut Encoder, g: &GridDisk) {
    e.u64(g.id.0);
    e.text8(&g.name);
    e.u128(g.cell_disk.0);
    e.u64(g.size_bytes);
    e.u8(g.purpose.code());
    e.u8(g.caching_mode.code());
    match g.mode_switch {
        None => e.u16(0),
        Some(switch) => {
            e.u8(switch.from.code());
            e.u8(switch.to.code());
        }
    }
    e.u8(g.caching_policy.code());
    e.u32(g.cache_generation);
    e.u64(g.created.0);
    e.text8(&g.comment);
    e.text8(&g.available_to);
    encode_asm(e, &g.asm);
    encode_extents(e, &g.extents);
    // Eight bytes that were reserved: without ranges and journal they are zero, as before there were any.
    e.u16(g.caching_ranges.len() as u16);
    e.u8(g.journal.len() as u8);
    e.u8(g.flash_log_mode.code());
    e.u8(g.fill.code());
    e.u8(u8::from(g.given_up));
    e.u8(access_code(g.read_only, g.inactive));
    e.u8(u8::from(g.redo_behind));
    encode_ranges(e, &g.caching_ranges);
    for extent in &g.journal {
        e.u32(extent.start_au);
        e.u32(extent.count_au);
    }
}

pub(super) fn encode_asm(e: &mut Encoder, asm: &BTreeMap<String, String>) {
    e.u8(asm.len() as u8);
    for (name, text) in asm {
        e.text8(name);
        e.text8(text);
    }
}

pub(super) fn decode_asm(d: &mut Decoder<'_>) -> Result<BTreeMap<String, String>, DecodeError> {
    let mut asm = BTreeMap::new();
    for _ in 0..d.count8(ASM_ATTRIBUTES_MAX, "ASM attributes")? {
        let name = d.text8(ATTRIBUTE_NAME_BYTES_MAX, "ASM attribute name")?;
        let text = d.text8(u8::MAX.into(), "ASM attribute")?;
        push(&mut asm, name, text, "ASM attributes")?;
    }
    Ok(asm)
}

pub(super) fn encode_ranges(e: &mut Encoder, ranges: &[CachingRange]) {
    for range in ranges {
        e.u64(range.start_bytes);
        e.u64(range.end_bytes);
        e.u8(range.policy.code());
    }
}

pub(super) fn decode_ranges(d: &mut Decoder<'_>, count: usize) -> Result<Vec<CachingRange>, DecodeError> {
    let what = "caching ranges";
    if count > CACHING_RANGES_MAX {
        return Err(DecodeError::Limit { what, max: CACHING_RANGES_MAX });
    }
    let mut bytes = Decoder(d.take(count * CACHING_RANGE_BYTES, what)?);
    let mut ranges = Vec::with_capacity(count);
    for _ in 0..count {
        let (start_bytes, end_bytes) = (bytes.u64(what)?, bytes.u64(what)?);
        ranges.push(CachingRange { start_bytes, end_bytes, policy: CachingPolicy::of_code(bytes.u8(what)?)? });
    }
    Ok(ranges)
}

/// What stands in the eight bytes after the extents, and the lists they count.
struct Tail {
    caching_ranges: Vec<CachingRange>,
    journal: Vec<Extent>,
    flash_log_mode: FlashLogMode,
    fill: FillStrategy,
    given_up: bool,
    read_only: bool,
    inactive: bool,
    redo_behind: bool,
}

/// What clients may do with a grid disk, one bit for each thing they may not. Without [`INACTIVE`] the byte is the flag that it was before
/// grid disks could be taken out of service; with it a release that does not know it refuses the catalog.
const READ_ONLY: u8 = 1;
const INACTIVE: u8 = 2;

pub(super) fn access_code(read_only: bool, inactive: bool) -> u8 {
    (if read_only { READ_ONLY } else { 0 }) | (if inactive { INACTIVE } else { 0 })
}

/// Whether clients may only read, and whether it is out of service.
pub(super) fn flags_of_access(access: u8) -> Result<(bool, bool), DecodeError> {
    if access & !(READ_ONLY | INACTIVE) != 0 {
        return Err(DecodeError::Value { what: "access" });
    }
    Ok((access & READ_ONLY != 0, access & INACTIVE != 0))
}

/// Pinned ranges and the journal's extents, whose counts stand together before both; beside the counts how the flash log
/// is used, the fill strategy, what its operator has given up, what clients may do with it, and whether redo is missing.
fn decode_tail(d: &mut Decoder<'_>) -> Result<Tail, DecodeError> {
    let what = "caching ranges";
    let count = d.count16(CACHING_RANGES_MAX, what)?;
    let journal_count = d.count8(JOURNAL_EXTENTS_MAX, "journal")?;
    let flash_log_mode = FlashLogMode::of_code(d.u8(what)?)?;
    let fill = FillStrategy::of_code(d.u8(what)?)?;
    let given_up = d.flag("given up")?;
    let (read_only, inactive) = flags_of_access(d.u8(what)?)?;
    let redo_behind = d.flag("redo behind")?;
    let ranges = decode_ranges(d, count)?;
    let journal = decode_extent_list(d, journal_count, "journal")?;
    Ok(Tail { caching_ranges: ranges, journal, flash_log_mode, fill, given_up, read_only, inactive, redo_behind })
}

fn decode_grid_disks(d: &mut Decoder<'_>) -> Result<BTreeMap<GridDiskId, GridDisk>, DecodeError> {
    let mut grid_disks = BTreeMap::new();
    for _ in 0..d.count16(GRID_DISKS_UNPACKED_MAX, "grid disks")? {
        let grid_disk = decode_grid_disk(d)?;
        push(&mut grid_disks, grid_disk.id, grid_disk, "grid disks")?;
    }
    Ok(grid_disks)
}

fn decode_grid_disk(d: &mut Decoder<'_>) -> Result<GridDisk, DecodeError> {
    let what = "grid disk";
    let id = GridDiskId(d.u64(what)?);
    let name = d.text8(GRID_DISK_NAME_BYTES_MAX, "grid disk name")?;
    let cell_disk = DeviceId(d.u128(what)?);
    let size_bytes = d.u64(what)?;
    let purpose = Purpose::of_code(d.u8(what)?)?;
    let caching_mode = CachingMode::of_code(d.u8(what)?)?;
    let mode_switch = match (d.u8(what)?, d.u8(what)?) {
        (0, 0) => None,
        (from, to) => Some(ModeSwitch { from: CachingMode::of_code(from)?, to: CachingMode::of_code(to)? }),
    };
    let caching_policy = CachingPolicy::of_code(d.u8(what)?)?;
    let cache_generation = d.u32(what)?;
    let created = WallTime(d.u64(what)?);
    let comment = d.text8(COMMENT_BYTES_MAX, "comment")?;
    let available_to = d.text8(AVAILABLE_TO_BYTES_MAX, "availableTo")?;
    let asm = decode_asm(d)?;
    let extents = decode_extents(d)?;
    let Tail { caching_ranges, journal, flash_log_mode, fill, given_up, read_only, inactive, redo_behind } =
        decode_tail(d)?;
    Ok(GridDisk {
        id,
        name,
        cell_disk,
        extents,
        size_bytes,
        purpose,
        flash_log_mode,
        caching_mode,
        mode_switch,
        caching_policy,
        fill,
        caching_ranges,
        journal,
        cache_generation,
        given_up,
        read_only,
        inactive,
        redo_behind,
        available_to,
        comment,
        created,
        asm,
    })
}

fn decode_flash_cache(d: &mut Decoder<'_>) -> Result<FlashCache, DecodeError> {
    let what = "flash cache";
    let id = Stamp(d.u128(what)?);
    let created = WallTime(d.u64(what)?);
    let size_per_device_bytes = d.u64(what)?;
    let segment_bytes = d.u32(what)?;
    let block_bytes = d.u32(what)?;
    d.reserved(8, what)?;
    let regions = decode_regions(d)?;
    Ok(FlashCache { id, size_per_device_bytes, regions, segment_bytes, block_bytes, created })
}

fn decode_flash_log(d: &mut Decoder<'_>) -> Result<FlashLog, DecodeError> {
    let what = "flash log";
    let id = Stamp(d.u128(what)?);
    let created = WallTime(d.u64(what)?);
    let size_per_device_bytes = d.u64(what)?;
    let outlier_ms = match d.u32(what)? {
        OUTLIER_MS_DEFAULT => return Err(DecodeError::Value { what: "outlier limit" }),
        0 => OUTLIER_MS_DEFAULT,
        stated => stated,
    };
    d.reserved(4, what)?;
    let regions = decode_regions(d)?;
    Ok(FlashLog { id, size_per_device_bytes, regions, outlier_ms, created })
}
