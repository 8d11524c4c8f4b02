//! Goal: the tables never lose, duplicate or confuse an entry. Method: random operations against a map from
//! (block, part) to page.
use super::*;
use crate::units::DiskSlot;
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
                (5, Some(e)) => drop(index.remove_at(key, e.page())),
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
        let key = BlockKey::new(DiskSlot(0), prng.below(crate::units::BLOCKS_MAX));
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
            let key = BlockKey::new(DiskSlot(0), prng.below(crate::units::BLOCKS_MAX));
            index.insert(Entry::new(key, Page(n), 1, 0, false)).expect("room");
            there.push((key, Page(n)));
        } else if !there.is_empty() {
            let (key, page) = there.swap_remove(prng.below(there.len() as u64) as usize);
            assert_eq!(index.remove_at(key, page).map(|e| e.page()), Some(page));
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
