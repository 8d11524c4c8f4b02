//! Goal: the tables never lose, duplicate or confuse an entry. Method: random operations against a map from
//! (block, part) to page.
use super::*;
use crate::base::units::DiskSlot;
use device::Prng;
use std::collections::BTreeMap;

#[test]
fn agrees_with_a_map_of_parts() {
    for seed in 0..40 {
        let mut prng = Prng::new(seed);
        let index = Index::new(10_000);
        let mut model: BTreeMap<(u64, u32), u32> = BTreeMap::new();
        let mut next_page = 0;
        for _ in 0..3000 {
            let key = BlockKey::new(DiskSlot(prng.below(3) as u16), prng.below(300));
            let mask = prng.between(1, 15) as u16;
            match prng.below(4) {
                0 | 1 => {
                    index.insert(Entry::new(key, Page(next_page), mask, 0, false)).expect("room");
                    for (k, part) in (0..16).filter(|p| mask >> p & 1 == 1).enumerate() {
                        model.insert((key.0, part), next_page + k as u32);
                    }
                    next_page += 16;
                }
                2 => {
                    let dead = index.kill(key, mask);
                    let parts: u32 = dead.iter().map(|d| d.mask.count_ones()).sum();
                    let before = model.len();
                    model.retain(|&(k, part), _| k != key.0 || mask >> part & 1 == 0);
                    assert_eq!(parts as usize, before - model.len());
                }
                _ => {
                    let mut first = None;
                    index.visit(key, |e| first = first.or(Some(*e)));
                    if let Some(entry) = first {
                        assert!(index.relocate(key, entry.page(), entry.valid(), Page(next_page), 1));
                        for (k, part) in (0..16).filter(|p| entry.valid() >> p & 1 == 1).enumerate() {
                            model.insert((key.0, part), next_page + k as u32);
                        }
                        next_page += 16;
                    }
                }
            }
        }
        let mut found = BTreeMap::new();
        let mut entries = 0;
        index.for_each(|e| {
            entries += 1;
            for part in (0..16).filter(|p| e.valid() >> p & 1 == 1) {
                assert!(found.insert((e.key().0, part), e.page_of_part(part).0).is_none());
            }
        });
        assert_eq!(found, model, "seed {seed}");
        assert_eq!(index.len(), entries);
    }
}

#[test]
fn the_tally_is_what_a_walk_counts() {
    let somebody = |prng: &mut Prng| Tenant::from_bits([0, 1, 2, 126, 127][prng.below(5) as usize]);
    for seed in 0..40 {
        let mut prng = Prng::new(seed);
        let tally = Arc::<Tally>::default();
        let indexes = [0, 1].map(|_| Index::new(10_000).with_tally(&tally, false));
        let (mut next_page, mut round) = (0, Place::default());
        for step in 0..3000 {
            let index = &indexes[prng.below(2) as usize];
            let key = BlockKey::new(DiskSlot(prng.below(3) as u16), prng.below(300));
            let mask = prng.between(1, 15) as u16;
            let mut first = None;
            index.visit(key, |e| first = first.or(Some(*e)));
            let entry = Entry::new(key, Page(next_page), mask, 0, false).of(somebody(&mut prng));
            assert_eq!((entry.key(), entry.frequency(), entry.dirty(), entry.aged()), (key, 0, false, false));
            match (prng.below(8), first) {
                (0 | 1, _) => drop(index.insert(entry).expect("room")),
                (2, _) => index.fill(index.shard_of(key), vec![entry], &mut |_, _| ()),
                (3, _) => drop(index.kill(key, mask)),
                (4, Some(e)) => {
                    let tenant = e.tenant();
                    assert!(index.relocate(key, e.page(), e.valid(), Page(next_page), 1));
                    let moved = index.get_at(key, Page(next_page)).expect("it has moved");
                    assert_eq!(moved.tenant(), tenant, "an entry that moves stays whose it was");
                }
                (5, Some(e)) => drop(index.cut_at(key, e.page(), u16::MAX)),
                (6, Some(e)) => drop(index.cut_at(key, e.page(), mask)),
                (7, _) => {
                    let tenant = somebody(&mut prng);
                    round = index.go_round(round, 8, |e| {
                        e.touch();
                        e.set_tenant(tenant);
                        false
                    });
                }
                _ => {}
            }
            next_page += 16;
            if step == 2000 && seed % 2 == 0 {
                index.clear();
            }
            if step % 100 == 0 {
                let mut walked = [0_u64; 128];
                for index in &indexes {
                    index.for_each(|e| walked[usize::from(e.tenant().bits())] += u64::from(e.valid().count_ones()));
                }
                for tenant in Tenant::all().chain([Tenant::REST]) {
                    let counted = walked[usize::from(tenant.bits())];
                    assert_eq!(tally.parts(tenant), counted, "seed {seed}, step {step}, {tenant:?}");
                }
            }
        }
    }
}

#[test]
fn a_hand_meets_every_entry_in_one_round() {
    let index = Index::new(10_000);
    for n in 0..2000 {
        index.insert(Entry::new(BlockKey::new(DiskSlot(1), n), Page(n as u32), 1, 0, false)).expect("room");
    }
    let places = index.places.load(Ordering::Relaxed);
    let (mut met, mut at) = (0, Place { shard: 3, at: 5 });
    for step in [1, 7, 500].into_iter().cycle() {
        at = index.go_round(at, step.min(places as u32 - met), |e| {
            e.touch();
            false
        });
        met += step.min(places as u32 - met);
        if met == places as u32 {
            break;
        }
    }
    index.for_each(|e| assert_eq!(e.frequency(), 1));
}

#[test]
fn memory_stays_within_twenty_bytes_an_entry() {
    let entries_max = 1 << 21;
    let index = Index::new(entries_max);
    let mut prng = Prng::new(1);
    for n in 1..=300_000_u32 {
        let key = BlockKey::new(DiskSlot(0), prng.below(crate::base::units::BLOCKS_MAX));
        index.insert(Entry::new(key, Page(n), 1, 0, false)).expect("room");
        if n >= 50_000 && n % 10_000 == 0 {
            let bytes = index.memory_bytes() as u64;
            assert!(bytes <= u64::from(n) * 20, "{bytes} bytes for {n} entries");
            assert!(bytes <= Index::memory_bytes_max(entries_max as u64));
        }
    }
}

#[test]
fn chains_stay_in_order_when_entries_come_and_go() {
    let index = Index::new(10_000);
    let mut prng = Prng::new(9);
    let mut there = Vec::new();
    for n in 0..40_000_u32 {
        if there.len() < 3_000 && prng.below(3) > 0 {
            let key = BlockKey::new(DiskSlot(0), prng.below(crate::base::units::BLOCKS_MAX));
            index.insert(Entry::new(key, Page(n), 1, 0, false)).expect("room");
            there.push((key, Page(n)));
        } else if !there.is_empty() {
            let (key, page) = there.swap_remove(prng.below(there.len() as u64) as usize);
            assert_eq!(index.cut_at(key, page, u16::MAX)[..], [Killed::clean(page, 1)]);
        }
    }
    for &(key, page) in &there {
        assert_eq!(index.get_at(key, page).map(|e| e.page()), Some(page));
    }
    for shard in &index.shards {
        let shard = lock(shard);
        for at in 0..shard.table.len() {
            let next = shard.next(at);
            if !shard.table[next].is_empty() && shard.distance(next) > 0 {
                assert!(!shard.table[at].is_empty(), "no hole within a chain");
                assert!(shard.distance(next) <= shard.distance(at) + 1, "nobody has jumped the queue");
            }
        }
    }
}

#[test]
fn entries_keep_what_they_are_told_apart() {
    let key = BlockKey::new(DiskSlot(4095), crate::base::units::BLOCKS_MAX - 1);
    let mut entry = Entry::new(key, Page(900), 0b1011_0010, 7, true);
    assert_eq!((entry.key(), entry.page(), entry.mask(), entry.valid()), (key, Page(900), 0b1011_0010, 0b1011_0010));
    assert_eq!((entry.frequency(), entry.suspect(), entry.dirty(), entry.aged()), (3, true, false, false));
    assert_eq!([1, 4, 5, 7].map(|part| entry.page_of_part(part).0), [900, 901, 902, 903]);
    entry.set_tenant(Tenant::REST);
    entry.set_aged();
    entry.set_dirty(true);
    assert_eq!((entry.tenant(), entry.suspect(), entry.dirty(), entry.aged()), (Tenant::REST, true, true, true));
    entry.set_suspect(false);
    assert_eq!((entry.suspect(), entry.dirty(), entry.aged(), entry.frequency()), (false, true, true, 3));
    entry.touch();
    assert_eq!((entry.frequency(), entry.aged(), entry.dirty(), entry.tenant()), (3, false, true, Tenant::REST));
    entry.cool();
    entry.cool();
    assert_eq!(entry.frequency(), 1);
    entry.cool();
    entry.cool();
    assert_eq!((entry.frequency(), entry.key()), (0, key));
    entry.touch();
    entry.set_dirty(false);
    entry.set_suspect(true);
    assert_eq!((entry.frequency(), entry.dirty(), entry.suspect()), (1, false, true));
    let less = entry.without(0b1000_0010);
    assert_eq!((less.mask(), less.valid(), less.page_of_part(5)), (0b1011_0010, 0b0011_0000, Page(902)));
    assert_eq!((entry.of(Tenant::NOBODY).tenant(), entry.of(Tenant::NOBODY).frequency()), (Tenant::NOBODY, 1));
}

#[test]
fn it_is_full_at_its_size_and_dirty_entries_may_go_beyond() {
    let index = Index::new(3).with_dirty_max(5);
    let at = |n: u64| BlockKey::new(DiskSlot(1), n);
    let clean = |n: u64| Entry::new(at(n), Page(n as u32), 0b11, 0, false);
    let dirty = |n: u64| {
        let mut entry = clean(n);
        entry.set_dirty(true);
        entry
    };
    assert!(index.len() == 0 && !index.take_refused());
    for n in 0..3 {
        assert!(!index.is_full());
        assert_eq!(index.insert(clean(n)), Ok(KilledList::new()));
    }
    assert!(index.is_full() && index.len() != 0 && !index.take_refused());
    assert_eq!(index.insert(clean(9)), Err(IndexFull));
    assert!(index.take_refused() && !index.take_refused(), "told once");
    assert_eq!((index.len(), index.get_at(at(9), Page(9))), (3, None), "nothing was changed");
    assert!(index.insert(dirty(3)).is_ok() && index.insert(dirty(4)).is_ok());
    assert_eq!(index.insert(dirty(5)), Err(IndexFull));
    // One that ends another leaves as many as there were.
    assert!(index.kill(at(0), 0b01).len() == 1 && index.len() == 5);
    assert_eq!(index.cut_at(at(0), Page(0), 0b11)[..], [Killed::clean(Page(0), 0b10)]);
    assert!(index.cut_at(at(0), Page(0), 0b11).is_empty());
    assert_eq!(index.cut_at(at(1), Page(1), 0b01)[..], [Killed::clean(Page(1), 0b01)]);
    assert_eq!(index.len(), 4);
    let dead = index.kill(at(3), u16::MAX);
    assert_eq!(dead[..], [Killed { page: Page(3), mask: 0b11, dirty: true, frequency: 0, tenant: Tenant::NOBODY }]);
    assert!(!index.relocate(at(4), Page(4), 0b11, Page(40), 1), "a dirty one stays where it is");
    assert!(!index.relocate(at(1), Page(1), 0b11, Page(40), 1), "it is not what was copied");
    assert!(!index.relocate(at(1), Page(7), 0b10, Page(40), 1));
    assert!(index.relocate(at(1), Page(1), 0b10, Page(40), 2));
    let moved = index.get_at(at(1), Page(40)).expect("it has moved");
    assert_eq!((moved.mask(), moved.valid(), moved.frequency()), (0b10, 0b10, 2));
    assert!(index.cut_at(at(1), Page(1), u16::MAX).is_empty(), "it has moved");
    assert_eq!((index.cut_at(at(1), Page(40), u16::MAX)[0].frequency, index.len()), (2, 2));
    index.clear();
    assert!(index.len() == 0 && index.get_at(at(2), Page(2)).is_none());
    assert_eq!(index.memory_bytes(), index.shards() * SHARD_PLACES_MIN * 16);
    assert_eq!(index.places.load(Ordering::Relaxed), index.shards() * SHARD_PLACES_MIN);
}

/// Goal: a walk that is told what will come says yes only if it fits, and building in one go is as one after the other.
#[test]
fn what_is_taken_fits_and_is_the_same_at_once_as_one_by_one() {
    let mut prng = Prng::new(3);
    let entries: Vec<Entry> = (0..4_000_u32)
        .map(|n| {
            let key = BlockKey::new(DiskSlot(0), prng.below(1_500));
            Entry::new(key, Page(n * 4), prng.between(1, 15) as u16, 0, false)
        })
        .collect();
    let (at_once, one_by_one) = (Index::new(4_000), Index::new(4_000));
    let mut shards: Vec<Vec<Entry>> = vec![Vec::new(); at_once.shards()];
    let mut ended = Vec::new();
    for entry in &entries {
        shards[at_once.shard_of(entry.key())].push(*entry);
        ended.extend(one_by_one.insert(*entry).expect("room"));
    }
    let counts: Vec<u32> = shards.iter().map(|shard| shard.len() as u32).collect();
    assert!(at_once.takes(&counts));
    let mut more = counts.clone();
    more[5] += 1;
    assert!(!at_once.takes(&more), "one entry too many");
    let mut ended_at_once = Vec::new();
    for (shard, entries) in shards.into_iter().enumerate() {
        at_once.fill(shard, entries, &mut |_, dead| ended_at_once.extend(dead));
    }
    let in_order = |mut all: Vec<Killed>| {
        all.sort_by_key(|killed| (killed.page, killed.mask));
        all
    };
    assert_eq!(in_order(ended_at_once), in_order(ended));
    let walk = |index: &Index| {
        let mut all = Vec::new();
        index.for_each(|entry| all.push((entry.key(), entry.page(), entry.valid())));
        all.sort();
        all
    };
    assert_eq!(walk(&at_once), walk(&one_by_one));
    assert_eq!(at_once.len(), one_by_one.len());
    // Tables: one that is built at once is no larger than what was announced, and all is counted.
    assert_eq!(at_once.places.load(Ordering::Relaxed) * 16, at_once.memory_bytes());
    assert_eq!(one_by_one.places.load(Ordering::Relaxed) * 16, one_by_one.memory_bytes());
    assert!(at_once.memory_bytes() as u64 <= Index::memory_bytes_max(4_000));
}

#[test]
fn memory_for_so_many_entries_to_the_byte() {
    // 64 shards at least, of 18 places, and 6 places for each 5 entries; 4096 shards at most.
    for (entries, bytes) in [
        (0, 18_432),
        (1, 18_464),
        (5, 18_528),
        (1 << 20, 18_432 + 20_132_672),
        (1 << 21, 2 * 18_432 + 40_265_328),
        (1 << 30, 1_179_648 + 20_615_843_024),
    ] {
        assert_eq!(Index::memory_bytes_max(entries), bytes, "{entries}");
    }
    let shards = [0, 1 << 20, 1 << 21, 1 << 26, 1 << 30].map(Index::shards_for);
    assert_eq!(shards, [64, 64, 128, 4096, 4096]);
}
