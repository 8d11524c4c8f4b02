//! Goal: what is encoded decodes to the same value and back to the same bytes; what is not ours is refused, never a panic.
//! Method: random labels and catalogs over their whole range; random damage behind a repaired checksum, so that it reaches
//! the field decoders.

use celldisk::layout::{
    AU_BYTES_MIN, DATA_OFFSET, DIRTY_BITS, EXTENTS_MAX, GRID_DISKS_UNPACKED_MAX, HEADER_BYTES, JOURNAL_EXTENTS_MAX,
    LABEL_PAYLOAD_BYTES, TERMS_MAX, dirty_granule_bytes_for,
};
use celldisk::{
    CachingMode, CachingPolicy, CachingRange, Catalog, CellId, DeviceId, DirtyMap, DiskStamp, Extent, FillStrategy,
    FlashCache, FlashLog, FlashLogMode, FlashMember, FlashState, GridDisk, GridDiskId, Label, Lineage, Member,
    ModeSwitch, Place, Purpose, Role, Stamp, TermMark,
};
use device::{Class, Prng, WallTime};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NAME: &str = "[A-Za-z0-9_][A-Za-z0-9_.$#-]{0,29}";

/// Repair the checksums of a section, so that only its fields are wrong.
pub(crate) fn repair(section: &mut [u8]) {
    let payload_bytes = u32::from_le_bytes(section[72..76].try_into().unwrap()) as usize;
    if let Some(payload) = section.get(HEADER_BYTES..HEADER_BYTES + payload_bytes) {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&section[..76]), payload);
        section[76..80].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c::crc32c(&section[..HEADER_BYTES - 4]);
    section[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

fn places() -> impl Strategy<Value = Place> {
    prop::sample::select(Place::ALL.to_vec())
}

fn modes() -> impl Strategy<Value = CachingMode> {
    use CachingMode::{None, WriteAround, WriteBack, WriteBackOrdered, WriteThrough};
    prop::sample::select(vec![WriteThrough, WriteBack, WriteBackOrdered, WriteAround, None])
}

fn classes() -> impl Strategy<Value = Class> {
    prop::sample::select(vec![Class::Durable, Class::Ephemeral])
}

prop_compose! {
    fn labels()(
        ids in any::<(u128, u128, u64, u64)>(),
        is_disk in any::<bool>(),
        class in classes(),
        name in NAME,
        au_shift in 16_u32..30,
        au_count in 1_u64..2000,
        slack in 0_u64..16,
        page_shift in 9_u32..=16,
        numbers in any::<(u64, u128, u128, bool, u64, u64, u64)>(),
        members in prop::collection::btree_map(any::<u128>(), (any::<u64>(), 0_usize..8, any::<u128>()), 0..=64),
        stamps in prop::collection::btree_map(any::<u128>(), any::<(u128, u128, u64)>(), 0..=128),
        dirty in prop::collection::vec((any::<u64>(), any::<u64>()), 0..20),
    ) -> Label {
        let states = [FlashState::Clean, FlashState::Dirty, FlashState::Expelled, FlashState::Absent];
        let au_bytes = 1_u64 << au_shift;
        let size_bytes = DATA_OFFSET + au_count * au_bytes + slack * 4096;
        let mut map = DirtyMap::new(size_bytes);
        let mut flash_members = BTreeMap::new();
        let mut disk_stamps = BTreeMap::new();
        if is_disk {
            for (offset, len) in dirty {
                let offset = offset % size_bytes;
                map.set(offset, len % (size_bytes - offset) + 1);
            }
            for (id, (generation, state, stamp)) in members {
                let redo_pending = (state >= 4).then_some(Stamp(stamp | 1));
                let member =
                    FlashMember { generation, state: states[state % 4], redo_pending, paired_stamp: Stamp(stamp) };
                flash_members.insert(DeviceId(id), member);
            }
        } else {
            for (id, (current, next, generation)) in stamps {
                let stamp = DiskStamp { current: Stamp(current), next: Stamp(next), generation };
                disk_stamps.insert(DeviceId(id), stamp);
            }
        }
        Label {
            cell_id: CellId(ids.0),
            device_id: DeviceId(ids.1),
            device_generation: ids.2,
            role: if is_disk { Role::Disk } else { Role::Flash },
            class,
            name,
            size_bytes,
            page_bytes: 1 << page_shift,
            au_bytes,
            created: WallTime(ids.3),
            sequence: numbers.0,
            stamp: Stamp(numbers.1),
            stamp_next: Stamp(numbers.2),
            clean_stop: numbers.3,
            flash_members,
            disk_stamps,
            dirty: map,
            ring_generation: numbers.4,
            ring_generation_dead: numbers.5,
            cache_era: if is_disk { 0 } else { numbers.6 },
            checkpoint: (!is_disk && numbers.1 % 2 == 1)
                .then_some(celldisk::Checkpoint { token: numbers.1, segment: numbers.6 as u32 }),
            adopted: (is_disk && au_bytes == AU_BYTES_MIN && slack == 0).then(|| celldisk::Adopted {
                volume_bytes: au_count * au_bytes - numbers.1 as u64 % AU_BYTES_MIN,
                fingerprint: ids.2,
            }),
        }
    }
}

/// Space handed out unit by unit, so that no two claims overlap.
fn extents(next_au: &mut u32, counts: &[u32]) -> Vec<Extent> {
    let take = |count_au: &u32| {
        let extent = Extent { start_au: *next_au, count_au: *count_au };
        *next_au += count_au + 1;
        extent
    };
    counts.iter().map(take).collect()
}

prop_compose! {
    fn grid_disks()(
        name in "[A-Za-z0-9_][A-Za-z0-9_.$#-]{0,22}",
        counts in prop::collection::vec(1_u32..5, 1..=EXTENTS_MAX),
        slack in 0_u64..16,
        purpose in prop::sample::select(vec![Purpose::Data, Purpose::Redo, Purpose::Temp]),
        mode in modes(),
        switch in prop::option::of((modes(), modes())),
        policy in prop::sample::select(vec![CachingPolicy::Default, CachingPolicy::Keep, CachingPolicy::None]),
        gaps in prop::collection::vec((any::<bool>(), 0..3_u8), 0..=4),
        fill in prop::sample::select(&FillStrategy::ALL[..]),
        numbers in any::<(u32, u64)>(),
        texts in ("[^\\p{Cc}]{0,32}", "[^\\p{Cc}]{0,32}"),
        asm in prop::collection::btree_map("[a-z]{1,8}", "[^\\p{Cc}]{0,5}", 0..=8),
    ) -> (Vec<u32>, u64, GridDisk) {
        // Pages of the first allocation unit; two that touch differ.
        let range = |(n, (gap, policy)): (usize, &(bool, u8))| CachingRange {
            start_bytes: n as u64 * 8192,
            end_bytes: n as u64 * 8192 + if *gap { 4096 } else { 8192 },
            policy: [CachingPolicy::Default, CachingPolicy::Keep, CachingPolicy::None][usize::from(*policy)],
        };
        let mut caching_ranges: Vec<CachingRange> = gaps.iter().enumerate().map(range).collect();
        for n in 1..caching_ranges.len() {
            if caching_ranges[n - 1].policy == caching_ranges[n].policy {
                caching_ranges[n - 1].end_bytes = caching_ranges[n - 1].start_bytes + 4096;
            }
        }
        let grid_disk = GridDisk {
            id: GridDiskId(0),
            name,
            cell_disk: DeviceId(0),
            extents: Vec::new(),
            size_bytes: 0,
            purpose,
            caching_mode: mode,
            mode_switch: switch.map(|(from, to)| ModeSwitch { from, to }),
            caching_policy: policy,
            fill,
            caching_ranges,
            flash_log_mode: FlashLogMode::ALL[numbers.0 as usize % 5],
            journal: Vec::new(),
            cache_generation: numbers.0,
 given_up: numbers.0 % 2 == 1,
 read_only: numbers.0 % 4 > 1,
 inactive: numbers.1 % 2 == 1,
 redo_behind: numbers.0 % 8 > 3,
            created: WallTime(numbers.1),
            comment: texts.0,
            available_to: texts.1,
            asm,
        };
        (counts, slack, grid_disk)
    }
}

prop_compose! {
    fn catalogs()(
        ids in any::<(u128, u64, u128, u64, u64, u128)>(),
        cell_name in NAME,
        members in prop::collection::btree_map(any::<u128>(), (any::<bool>(), classes(), 16_u32..=30), 1..12),
        grids in prop::collection::vec((any::<prop::sample::Index>(), grid_disks()), 0..20),
        cache in prop::option::of((any::<(u128, u64)>(), prop::collection::vec(1_u32..9, 1..4))),
        log in prop::option::of((any::<(u128, u64)>(), prop::collection::vec(1_u32..9, 1..4))),
        history in prop::collection::btree_map(any::<u64>(), any::<u128>(), 0..=TERMS_MAX),
        changed in any::<(u64, u128, u64)>(),
        iorm_plan in "\\PC{0,200}",
        attributes in prop::collection::btree_map("[a-zA-Z]{1,20}", "\\PC{0,50}", 0..20),
    ) -> Catalog {
        let mut next_au: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let members: BTreeMap<DeviceId, Member> = members
            .into_iter()
            .enumerate()
            .map(|(n, (id, (is_disk, class, shift)))| {
                let role = if is_disk { Role::Disk } else { Role::Flash };
                let member = Member { name: format!("CD_{n}"), role, class, au_bytes: 1 << shift, au_count: u32::MAX };
                (DeviceId(id), member)
            })
            .collect();
        let device_ids: Vec<DeviceId> = members.keys().copied().collect();
        let mut grid_disks = BTreeMap::new();
        for (n, (on, (counts, slack, mut g))) in grids.into_iter().enumerate() {
            g.id = GridDiskId(n as u64 * 3 + 1);
            g.name = format!("{}.{n}", g.name);
            g.cell_disk = device_ids[on.index(device_ids.len())];
            let au_bytes = members[&g.cell_disk].au_bytes;
            g.extents = extents(next_au.entry(g.cell_disk).or_default(), &counts);
            g.size_bytes = counts.iter().map(|c| u64::from(*c)).sum::<u64>() * au_bytes - slack * 4096 % au_bytes;
            let size_bytes = g.size_bytes;
            g.caching_ranges.retain(|range| range.end_bytes <= size_bytes);
            if g.caching_mode == CachingMode::WriteBackOrdered {
                let journal = &counts[..counts.len().min(JOURNAL_EXTENTS_MAX)];
                g.journal = extents(next_au.entry(g.cell_disk).or_default(), journal);
            }
            grid_disks.insert(g.id, g);
        }
        let flash: Vec<(DeviceId, u64)> = members
            .iter()
            .filter(|(_, m)| m.role == Role::Flash)
            .map(|(id, m)| (*id, m.au_bytes))
            .collect();
        // One size on each device: only those with the same allocation unit take part.
        let mut regions = |counts: &[u32]| {
            let au_bytes = flash.first().map(|(_, au_bytes)| *au_bytes)?;
            let same = flash.iter().filter(|(_, other)| *other == au_bytes);
            let regions: BTreeMap<DeviceId, Vec<Extent>> =
                same.map(|(id, _)| (*id, extents(next_au.entry(*id).or_default(), counts))).collect();
            Some((counts.iter().map(|c| u64::from(*c)).sum::<u64>() * au_bytes, regions))
        };
        let flash_cache = cache.and_then(|((id, created), counts)| {
            let (size_per_device_bytes, regions) = regions(&counts)?;
            let (segment_bytes, block_bytes) = (2 << 20, 16 << 10);
            let created = WallTime(created);
            Some(FlashCache { id: Stamp(id), size_per_device_bytes, regions, segment_bytes, block_bytes, created })
        });
        let flash_log = log.and_then(|((id, created), counts)| {
            let (size_per_device_bytes, regions) = regions(&counts)?;
            let (outlier_ms, created) = (created as u32 | 1, WallTime(created));
            Some(FlashLog { id: Stamp(id), size_per_device_bytes, regions, outlier_ms, created })
        });
        let mark = |(n, (term, stamp)): (usize, (u64, u128))| TermMark { term, stamp: Stamp(stamp), sequence: n as u64 };
        Catalog {
            cell_id: CellId(ids.0),
            cell_name,
            created: WallTime(ids.1),
            lineage: Lineage {
                now: TermMark { term: ids.3, stamp: Stamp(ids.5), sequence: ids.4 },
                changed: TermMark { term: changed.0, stamp: Stamp(changed.1), sequence: changed.2 },
                history: history.into_iter().enumerate().map(mark).collect(),
            },
            instance_stamp: Stamp(ids.2),
            next_grid_disk_id: GridDiskId(grid_disks.len() as u64 * 3 + 1),
            members,
            grid_disks,
            flash_cache,
            flash_log,
            iorm_plan,
            attributes,
        }
    }
}

/// The same with so many grid disks more that it is packed: plain ones before and after those that it had.
fn packed(mut catalog: Catalog) -> Catalog {
    let Some((home, member)) = catalog.members.iter().next().map(|(id, member)| (*id, member.clone())) else {
        unreachable!("it has members")
    };
    let all = catalog.grid_disks.values().flat_map(|g| g.extents.iter().chain(&g.journal));
    let regions =
        catalog.flash_cache.iter().map(|cache| &cache.regions).chain(catalog.flash_log.iter().map(|log| &log.regions));
    let used = all.chain(regions.flat_map(|of| of.values().flatten())).map(|extent| extent.end_au()).max();
    let mut next_au = used.unwrap_or(0) as u32;
    let had: Vec<GridDisk> = std::mem::take(&mut catalog.grid_disks).into_values().collect();
    let plain = |n: u64, next_au: &mut u32| GridDisk {
        id: GridDiskId(0),
        name: format!("plain{n}"),
        cell_disk: home,
        extents: extents(next_au, &[1]),
        size_bytes: member.au_bytes,
        purpose: Purpose::Data,
        flash_log_mode: FlashLogMode::Auto,
        caching_mode: CachingMode::WriteThrough,
        mode_switch: None,
        caching_policy: CachingPolicy::Default,
        fill: FillStrategy::Read,
        caching_ranges: Vec::new(),
        journal: Vec::new(),
        cache_generation: 1,
        given_up: false,
        read_only: false,
        inactive: false,
        redo_behind: false,
        available_to: String::new(),
        comment: String::new(),
        created: WallTime(n),
        asm: BTreeMap::new(),
    };
    let mut all: Vec<GridDisk> = (0..10).map(|n| plain(n, &mut next_au)).collect();
    all.extend(had);
    all.extend((10..GRID_DISKS_UNPACKED_MAX as u64).map(|n| plain(n, &mut next_au)));
    while all.len() <= GRID_DISKS_UNPACKED_MAX {
        all.push(plain(all.len() as u64, &mut next_au));
    }
    for (n, mut g) in all.into_iter().enumerate() {
        g.id = GridDiskId(n as u64 * 300 + 1);
        catalog.next_grid_disk_id = GridDiskId(g.id.0 + 1);
        catalog.grid_disks.insert(g.id, g);
    }
    catalog
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn packed_catalogs_round_trip(catalog in catalogs(), device_id in any::<u128>(), place in places()) {
        let catalog = packed(catalog);
        prop_assert_eq!(catalog.validate(), Ok(()));
        let bytes = catalog.encode(DeviceId(device_id), place);
        prop_assert_eq!(bytes[8], 2);
        prop_assert!(Catalog::decode(place, &bytes) == Ok((DeviceId(device_id), catalog)));
        // As the other format it means nothing.
        let mut other = bytes;
        other[8] = 1;
        repair(&mut other);
        prop_assert!(Catalog::decode(place, &other).is_err());
    }

    #[test]
    fn damaged_packed_catalogs_are_refused_or_mean_what_they_say(catalog in catalogs(), seed in any::<u64>()) {
        let place = Place::ALL[3];
        let sound = packed(catalog).encode(DeviceId(7), place);
        let payload_bytes = u32::from_le_bytes(sound[72..76].try_into().unwrap()) as usize;
        let mut prng = Prng::new(seed);
        for _ in 0..20 {
            let mut bytes = sound.clone();
            for _ in 0..prng.between(1, 3) {
                // Mostly where the first grid disks are.
                let end = if prng.chance(1, 2) { payload_bytes } else { payload_bytes.min(6000) };
                let at = HEADER_BYTES + prng.below(end as u64) as usize;
                bytes[at] = if prng.chance(1, 2) { bytes[at].wrapping_add(1) } else { prng.next_u64() as u8 };
            }
            repair(&mut bytes);
            if let Ok((device_id, decoded)) = Catalog::decode(place, &bytes) {
                prop_assert!(decoded.encode(device_id, place) == bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn labels_round_trip(label in labels(), place in places()) {
        prop_assert_eq!(label.validate(), Ok(()));
        let bytes = label.encode(place);
        prop_assert_eq!(Label::decode(place, &bytes), Ok(label));
        for other in Place::ALL {
            prop_assert_eq!(Label::decode(other, &bytes).is_ok(), other == place);
        }
    }

    #[test]
    fn catalogs_round_trip(catalog in catalogs(), device_id in any::<u128>(), place in places()) {
        prop_assert_eq!(catalog.validate(), Ok(()));
        let device_id = DeviceId(device_id);
        let bytes = catalog.encode(device_id, place);
        prop_assert_eq!(Catalog::decode(place, &bytes), Ok((device_id, catalog)));
    }

    /// Damage that the checksums would catch, let through: each field decoder must hold on its own. What still decodes is
    /// a value that encodes to exactly these bytes.
    #[test]
    fn damaged_labels_are_refused_or_mean_what_they_say(label in labels(), seed in any::<u64>()) {
        let place = Place::ALL[0];
        let mut bytes = label.encode(place);
        let mut prng = Prng::new(seed);
        for _ in 0..prng.between(1, 3) {
            // Mostly where the numbers are.
            let end = HEADER_BYTES + if prng.chance(1, 2) { 256 } else { LABEL_PAYLOAD_BYTES };
            bytes[prng.below(end as u64) as usize] = prng.next_u64() as u8;
        }
        repair(&mut bytes);
        if let Ok(decoded) = Label::decode(place, &bytes) {
            prop_assert!(decoded.encode(place) == bytes);
        }
    }

    #[test]
    fn damaged_catalogs_are_refused_or_mean_what_they_say(catalog in catalogs(), seed in any::<u64>()) {
        let place = Place::ALL[3];
        let mut bytes = catalog.encode(DeviceId(7), place);
        let payload_bytes = u32::from_le_bytes(bytes[72..76].try_into().unwrap()) as usize;
        let mut prng = Prng::new(seed);
        for _ in 0..prng.between(1, 3) {
            let at = prng.below((HEADER_BYTES + payload_bytes) as u64) as usize;
            bytes[at] = if prng.chance(1, 2) { bytes[at].wrapping_add(1) } else { prng.next_u64() as u8 };
        }
        repair(&mut bytes);
        if let Ok((device_id, decoded)) = Catalog::decode(place, &bytes) {
            prop_assert!(decoded.encode(device_id, place) == bytes);
        }
    }

    #[test]
    fn cut_short_is_refused(catalog in catalogs(), label in labels(), part in 0_usize..1000) {
        let place = Place::ALL[1];
        let bytes = label.encode(place);
        prop_assert!(Label::decode(place, &bytes[..HEADER_BYTES + part]).is_err());
        // A payload that ends early by its own word, checksums and all.
        let mut bytes = catalog.encode(DeviceId(7), place);
        let payload_bytes = u32::from_le_bytes(bytes[72..76].try_into().unwrap()) as usize;
        let cut = payload_bytes * part / 1000;
        bytes[72..76].copy_from_slice(&(cut as u32).to_le_bytes());
        repair(&mut bytes);
        prop_assert!(Catalog::decode(place, &bytes).is_err());
    }
}

/// A catalog with one of everything, to be broken in one place at a time.
fn whole() -> Catalog {
    let mut catalog = Catalog::new(CellId(1), "c1", WallTime(1), Stamp(2));
    let disk = Member { name: "CD".into(), role: Role::Disk, class: Class::Durable, au_bytes: 1 << 24, au_count: 100 };
    let flash = Member { name: "FD".into(), role: Role::Flash, ..disk.clone() };
    catalog.members.insert(DeviceId(1), disk);
    catalog.members.insert(DeviceId(2), flash);
    for (id, start_au) in [(1, 0), (2, 10)] {
        let grid_disk = GridDisk {
            id: GridDiskId(id),
            name: format!("g{id}"),
            cell_disk: DeviceId(1),
            extents: vec![Extent { start_au, count_au: 4 }, Extent { start_au: start_au + 20, count_au: 1 }],
            size_bytes: 5 << 24,
            purpose: Purpose::Data,
            caching_mode: CachingMode::WriteThrough,
            mode_switch: None,
            caching_policy: CachingPolicy::Default,
            fill: FillStrategy::default(),
            caching_ranges: Vec::new(),
            flash_log_mode: FlashLogMode::Race,
            journal: Vec::new(),
            cache_generation: 1,
            given_up: false,
            inactive: false,
            redo_behind: false,
            read_only: false,
            available_to: String::new(),
            comment: String::new(),
            created: WallTime(1),
            asm: BTreeMap::new(),
        };
        catalog.grid_disks.insert(grid_disk.id, grid_disk);
    }
    catalog.next_grid_disk_id = GridDiskId(3);
    let region = |start_au| BTreeMap::from([(DeviceId(2), vec![Extent { start_au, count_au: 2 }])]);
    let (created, size_per_device_bytes) = (WallTime(1), 2 << 24);
    catalog.flash_log =
        Some(FlashLog { id: Stamp(1), size_per_device_bytes, regions: region(0), outlier_ms: 7, created });
    let (segment_bytes, block_bytes, regions) = (2 << 20, 16 << 10, region(2));
    catalog.flash_cache =
        Some(FlashCache { id: Stamp(2), size_per_device_bytes, regions, segment_bytes, block_bytes, created });
    catalog
}

#[test]
fn every_rule_of_the_catalog_is_enforced() {
    type Break = fn(&mut Catalog);
    fn g(catalog: &mut Catalog) -> &mut GridDisk {
        catalog.grid_disks.get_mut(&GridDiskId(2)).unwrap()
    }
    fn cache(catalog: &mut Catalog) -> &mut FlashCache {
        catalog.flash_cache.as_mut().unwrap()
    }
    whole().validate().unwrap();
    let breaks: &[(&str, Break)] = &[
        ("overlap with another grid disk", |c| g(c).extents[0].start_au = 3),
        ("overlap with itself", |c| g(c).extents[1].start_au = 13),
        ("beyond the device", |c| g(c).extents[1].start_au = 100),
        ("beyond every device", |c| g(c).extents[1].start_au = u32::MAX),
        ("empty extent", |c| g(c).extents[1].count_au = 0),
        ("no extents", |c| g(c).extents.clear()),
        ("larger than its extents", |c| g(c).size_bytes += 4096),
        ("a whole unit smaller than its extents", |c| g(c).size_bytes -= 1 << 24),
        ("size no multiple of a page", |c| g(c).size_bytes -= 512),
        ("size zero", |c| g(c).size_bytes = 0),
        ("id not below the next one", |c| c.next_grid_disk_id = GridDiskId(2)),
        ("id not its key", |c| g(c).id = GridDiskId(1)),
        ("name taken", |c| g(c).name = "G1".into()),
        ("name not valid", |c| g(c).name = "a b".into()),
        ("comment of two lines", |c| g(c).comment = "a\nb".into()),
        ("availableTo too long", |c| g(c).available_to = "x".repeat(129)),
        ("too many ASM attributes", |c| g(c).asm.extend((0..9).map(|n| (format!("a{n}"), String::new())))),
        ("ASM attributes too long", |c| g(c).asm.extend([("a".into(), "x".repeat(254))])),
        ("unknown cell disk", |c| g(c).cell_disk = DeviceId(3)),
        ("member still in use", |c| drop(c.members.remove(&DeviceId(1)))),
        ("flash region on a disk", |c| {
            let extents = cache(c).regions.remove(&DeviceId(2)).unwrap();
            cache(c).regions.insert(DeviceId(1), extents);
        }),
        ("flash cache over flash log", |c| cache(c).regions.get_mut(&DeviceId(2)).unwrap()[0].start_au = 1),
        ("flash cache without a device", |c| cache(c).regions.clear()),
        ("flash cache of another size", |c| cache(c).size_per_device_bytes += 1),
        ("block no power of two", |c| cache(c).block_bytes = 12 << 10),
        ("block below a page", |c| cache(c).block_bytes = 2048),
        ("segment no multiple of the block", |c| cache(c).segment_bytes += 4096),
        ("segment zero", |c| cache(c).segment_bytes = 0),
        ("cell disk names that clash", |c| c.members.get_mut(&DeviceId(2)).unwrap().name = "cd".into()),
        ("allocation unit no power of two", |c| c.members.get_mut(&DeviceId(2)).unwrap().au_bytes -= 1),
        ("allocation unit too small", |c| c.members.get_mut(&DeviceId(2)).unwrap().au_bytes = AU_BYTES_MIN / 2),
        ("cell name", |c| c.cell_name.clear()),
        ("plan too long", |c| c.iorm_plan = "x".repeat(40_000)),
        ("attribute too long", |c| drop(c.attributes.insert("a".into(), "x".repeat(1025)))),
        ("attribute without a name", |c| drop(c.attributes.insert(String::new(), String::new()))),
        ("attributes too many", |c| c.attributes.extend((0..257).map(|n| (format!("a{n}"), String::new())))),
        ("attributes too long in all", |c| {
            c.attributes.extend((0..70).map(|n| (format!("a{n}"), "x".repeat(1000))));
        }),
        ("history out of order", |c| {
            c.lineage.history =
                vec![TermMark { term: 2, ..TermMark::default() }, TermMark { term: 1, ..TermMark::default() }];
        }),
        ("history too long", |c| {
            c.lineage.history = (0..65).map(|term| TermMark { term, ..TermMark::default() }).collect();
        }),
    ];
    for (what, break_it) in breaks {
        let mut broken = whole();
        break_it(&mut broken);
        assert!(broken.validate().is_err(), "{what}");
    }
}

#[test]
fn the_largest_label_fits_its_section() {
    let size_bytes = DATA_OFFSET + (1 << 40);
    let mut dirty = DirtyMap::new(size_bytes);
    dirty.set(0, size_bytes);
    assert!(dirty.dirty_count() as usize <= DIRTY_BITS && dirty_granule_bytes_for(size_bytes) == dirty.granule_bytes());
    let (state, redo_pending, paired_stamp) = (FlashState::Dirty, Some(Stamp(u128::MAX)), Stamp(u128::MAX));
    let member = FlashMember { generation: u64::MAX, state, redo_pending, paired_stamp };
    let mut label = Label {
        cell_id: CellId(u128::MAX),
        device_id: DeviceId(u128::MAX),
        device_generation: u64::MAX,
        role: Role::Disk,
        class: Class::Durable,
        name: "x".repeat(64),
        size_bytes,
        page_bytes: 65536,
        au_bytes: 1 << 24,
        created: WallTime(u64::MAX),
        sequence: u64::MAX,
        stamp: Stamp(u128::MAX),
        stamp_next: Stamp(u128::MAX),
        clean_stop: true,
        flash_members: (0..64).map(|n| (DeviceId(n), member)).collect(),
        disk_stamps: BTreeMap::new(),
        dirty,
        ring_generation: u64::MAX,
        ring_generation_dead: u64::MAX,
        cache_era: 0,
        checkpoint: None,
        adopted: None,
    };
    let bytes = label.encode(Place::ALL[0]);
    assert!(bytes.len() as u64 <= celldisk::section::SectionKind::Label.room_bytes());
    assert_eq!(Label::decode(Place::ALL[0], &bytes), Ok(label.clone()));
    label.flash_members.insert(DeviceId(64), member);
    assert!(label.validate().is_err());
}
