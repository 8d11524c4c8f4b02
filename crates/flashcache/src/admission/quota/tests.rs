//! Goal: when the cache counts as full, to the segment and to the entry; what quotas allow, to the part. Method: a member whose index is
//! filled by hand.

use super::*;
use crate::format::Owner;
use crate::placement::cache::{CacheConfig, MemberDevice};
use device::layers::Memory;
use device::{Runtime, RuntimeConfig};

const SEGMENT_BYTES: u32 = 256 << 10;

fn with_member(test: impl FnOnce(Arc<Member>) + Send + 'static) {
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).expect("a runtime");
    let world = runtime.world(1);
    runtime.block_on(async move {
        // The least an index may have: 512 entries.
        let config = CacheConfig { segment_bytes: SEGMENT_BYTES, memory_bytes_max: Some(1), ..CacheConfig::default() };
        let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
        let device = Memory::new(64 * u64::from(SEGMENT_BYTES));
        let members = vec![MemberDevice { device, owner, life: 1, durable: true, checkpoint: None }];
        let (cache, _) = FlashCache::open(config, members, &[], world).await.expect("it opens");
        test(cache.seats[0].member.clone());
        cache.stop().await;
    });
}

fn entry(n: u64, tenant: Tenant) -> Entry {
    let key = BlockKey::new(crate::base::units::DiskSlot(0), n);
    Entry::new(key, Page(n as u32 * 4), 0b1111, 0, false).of(tenant)
}

fn insert(member: &Member, entry: Entry) {
    let mut log = lock(&member.log);
    assert!(member.index.under(&mut log).insert(entry).expect("room").unsaid().is_empty());
}

#[test]
fn it_is_full_until_reclaim_is_ahead_in_segments_and_entries() {
    with_member(|member| {
        assert_eq!((member.index.entries_max(), member.is_full()), (512, false));
        member.note_full();
        member.note_plenty(8, 4);
        assert!(member.is_full(), "four more than it begins at are not enough");
        member.note_plenty(9, 4);
        assert!(!member.is_full());
        // One in sixteen entries has to be free: 480 are too many, 479 are not.
        (0..480).for_each(|n| insert(&member, entry(n, Tenant::NOBODY)));
        member.note_full();
        member.note_plenty(60, 4);
        assert!(member.is_full());
        let key = entry(0, Tenant::NOBODY).key();
        assert_eq!(member.index.under(&mut lock(&member.log)).end_clean(key, Page(0)).unsaid().len(), 1);
        member.note_plenty(60, 4);
        assert!(!member.is_full());
    });
}

#[test]
fn caps_count_by_the_part_and_a_limit_while_it_is_full() {
    with_member(|member| {
        let (a, b) = (Tenant::from_bits(1), Tenant::from_bits(2));
        let quota = |size: Option<u64>, limit: Option<u64>| Quota {
            tenants: [a].into_iter().collect(),
            min_bytes: 8 * PART_BYTES,
            limit_bytes: limit.map(|parts| parts * PART_BYTES),
            size_bytes: size.map(|parts| parts * PART_BYTES),
        };
        let quotas = &member.config.quotas;
        assert!(member.claims().is_none() && member.quota_turn(a).is_none());
        (0..5).for_each(|n| insert(&member, entry(n, a)));
        member.index.for_each(|entry| (0..3).for_each(|_| entry.touch()));
        quotas.set(vec![quota(Some(24), Some(22))]);
        assert!(member.quota_turn(a).is_some() && member.quota_turn(b).is_none());
        assert_eq!([3, 4, 5].map(|parts| member.has_room(a, parts, None)), [true, true, false]);
        assert!(member.has_room(b, 1000, None), "nobody bounds him");
        member.note_full();
        assert_eq!([2, 3].map(|parts| member.has_room(a, parts, None)), [true, false], "the limit counts");
        assert!(member.may_adopt(a, 2).0 && !member.may_adopt(a, 3).0 && member.may_adopt(b, 1000).0);
        // A second one that holds the turn: another time.
        let turn = member.tally().turn();
        assert!(!member.may_adopt(a, 1).0);
        drop(turn);
        assert_eq!(member.parts_there(entry(2, a).key(), 0b0110, a), 2);
        assert_eq!(
            (member.parts_there(entry(2, a).key(), 0b0110, b), member.parts_there(entry(9, a).key(), 1, a)),
            (0, 0)
        );
        // Reclaim: 20 parts there are, 2 over a limit of 18, 12 more than the least.
        quotas.set(vec![quota(None, Some(18))]);
        let mut claims = member.claims().expect("there is a quota");
        assert_eq!(claims.left, [(2, 12)]);
        assert!(!claims.takes_excess(&entry(7, b)) && claims.takes_excess(&entry(0, a)));
        assert!(!claims.takes_excess(&entry(1, a)), "enough has left");
        assert_eq!(claims.left, [(0, 8)]);
        // All of what is in the segment is looked at: 20 parts, of which 8 more than the least may go.
        let mut all: Vec<((), Entry, bool)> = (0..5).map(|n| ((), entry(n, a), false)).collect();
        (0..2).for_each(|_| all[3].1.touch());
        let guarded = claims.guard(&mut all);
        assert_eq!((guarded.len(), all.len()), (3, 2));
        assert_eq!(guarded[0].1.key(), entry(3, a).key(), "hottest first");
        quotas.set(Vec::new());
    });
}
