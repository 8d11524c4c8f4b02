//! Goal: a death names the opening that the dead entry lay in, whatever becomes of the segment meanwhile. Method: another thread ends an
//! entry while the log's lock is held here, and the segment is given up and opened anew under that hold, as reclaim would.

use crate::base::disk::FillCause;
use crate::base::units::{BlockKey, SegmentId};
use crate::format::{Owner, Record};
use crate::member::Member;
use crate::placement::cache::{CacheConfig, CachedDisk, FlashCache, MemberDevice};
use device::layers::Memory;
use device::sync::lock;
use device::{Buf, Runtime, RuntimeConfig, SharedBufs, World};
use std::sync::Arc;
use std::time::Duration;

const DISK: CachedDisk = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };
const SEGMENT_BYTES: u32 = 256 << 10;
/// How long another thread has to forget an entry that it must not forget yet: one that would takes microseconds.
const LOOKS: u32 = 200;

async fn filled(world: World) -> (Arc<FlashCache>, Arc<Member>) {
    let config =
        CacheConfig { segment_bytes: SEGMENT_BYTES, chunk_age: Duration::from_secs(3600), ..CacheConfig::default() };
    let device = Memory::new(32 * u64::from(SEGMENT_BYTES));
    let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
    let members = vec![MemberDevice { device, owner, life: 1, durable: true, checkpoint: None }];
    let (cache, _) = FlashCache::open(config, members, &[DISK], world).await.expect("a cache");
    let disk = cache.disk(DISK);
    let data = SharedBufs::from(Buf::zeroed(16 << 10).freeze());
    cache.fill(&disk, 0..4, data.view(0..16 << 10), FillCause::ReadMiss, cache.membership());
    cache.sync_all().await.expect("a sync");
    let member = cache.members().next().expect("a member").clone();
    (cache, member)
}

/// `end` runs in another thread while the segment of the entry is given up and opened anew; it must not name the new opening.
fn does_not_name_what_comes_after(end: fn(&FlashCache, &Member)) {
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).expect("a runtime");
    let world = runtime.world(1);
    runtime.block_on(async move {
        let (cache, member) = filled(world).await;
        let disk = cache.disk(DISK);
        let key = BlockKey::new(disk.slot(), 0);
        let mut page = None;
        member.index.visit(key, |entry| page = Some(entry.page()));
        let page = page.expect("it is cached");
        let mut log = lock(&member.log);
        let after = std::thread::scope(|threads| {
            threads.spawn(|| end(&cache, &member));
            for _ in 0..LOOKS {
                if member.index.get_at(key, page).is_none() {
                    break;
                }
                std::thread::yield_now();
                std::thread::park_timeout(Duration::from_millis(1));
            }
            // As reclaim does under the log's lock, and then whoever opens the segment next.
            member.index.under(&mut log).cut_at(key, page, u16::MAX).unsaid();
            let after = log.open_anew_for_test(SegmentId(0));
            drop(log);
            after
        });
        let mut log = lock(&member.log);
        let named = log.take_pending_for_test().into_iter().any(
            |record| matches!(record, Record::Invalidation { segment: SegmentId(0), opening, .. } if opening == after),
        );
        assert!(!named, "a death names an opening that began after it");
    });
}

#[test]
fn a_write_ends_what_was_there() {
    does_not_name_what_comes_after(|cache, member| member.invalidate(cache.disk(DISK).slot(), 0..4));
}

#[test]
fn a_comparison_ends_what_was_there() {
    does_not_name_what_comes_after(|cache, member| {
        let slot = cache.disk(DISK).slot();
        member.index.visit(BlockKey::new(slot, 0), |entry| entry.set_suspect(true));
        let other = SharedBufs::from(Buf::padded(&vec![1; 16 << 10], 4096).freeze());
        member.revalidate(slot, 0..4, other.view(0..16 << 10));
    });
}
