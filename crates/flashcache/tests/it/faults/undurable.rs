//! A flush of flash that fails costs nothing while the device still reads what it was to make durable: that is written again.

use super::rig::*;
use crate::running::{next_life, run};
use device::io::{Completed, FailKind, Io, Op, Outcome};
use device::layers::Memory;
use device::sync::lock;
use device::{Bufs, Completer, Completion, Device, Geometry, SharedBufs, World};
use flashcache::format::Owner;
use flashcache::{CacheConfig, DirtyRefused, FlashCache, MemberDevice, Residence, Sabotage};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A device whose failed flush drops what it held in its cache: reads see that until the power goes, and no later flush makes it durable.
struct Dropping {
    visible: Arc<Memory>,
    durable: Arc<Memory>,
    held: Mutex<Vec<(u64, SharedBufs)>>,
    flushes_to_fail: AtomicU32,
    /// The next write is told to have ended only when that is asked for.
    is_late: AtomicBool,
    late: Mutex<Option<(Completer, Completed)>>,
}

impl Dropping {
    fn new() -> Arc<Dropping> {
        let geometry = Geometry { discard_bytes: 0, ..geometry() };
        let medium = || Memory::with_geometry(geometry.clone(), false);
        let (held, flushes_to_fail) = (Mutex::default(), AtomicU32::new(0));
        let (is_late, late) = (AtomicBool::new(false), Mutex::default());
        Arc::new(Dropping { visible: medium(), durable: medium(), held, flushes_to_fail, is_late, late })
    }

    fn fail_flushes(&self, count: u32) {
        self.flushes_to_fail.store(count, Ordering::SeqCst);
    }

    /// As somebody else's failed flush does.
    fn drop_held(&self) {
        lock(&self.held).clear();
    }

    /// As it does where reads do not go on seeing it.
    async fn drop_held_and_seen(&self) {
        let held = std::mem::take(&mut *lock(&self.held));
        for (offset, data) in held {
            for at in (offset..offset + data.len_bytes() as u64).step_by(4096) {
                let durable = self.durable.read_at(at).await;
                self.visible.write_at(at, &durable).await;
            }
        }
    }

    fn flush(&self) -> Outcome {
        let fails = self.flushes_to_fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        for (offset, data) in lock(&self.held).drain(..) {
            if fails.is_err() {
                drop(self.durable.submit(Op::Write { offset, data, fua: true }));
            }
        }
        if fails.is_ok() { Outcome::Failed(FailKind::Media) } else { Outcome::Done }
    }
}

impl Io for Dropping {
    fn geometry(&self) -> Geometry {
        self.visible.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        match &op {
            Op::Flush => {
                let outcome = self.flush();
                return Completion::ready(Completed { outcome, bufs: Bufs::new(), extents: Vec::new() });
            }
            Op::Write { offset, data, .. } => {
                lock(&self.held).push((*offset, data.clone()));
                if self.is_late.swap(false, Ordering::SeqCst) {
                    drop(self.visible.submit(op));
                    let (completer, completion) = Completion::pair();
                    let done = Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents: Vec::new() };
                    *lock(&self.late) = Some((completer, done));
                    return completion;
                }
            }
            Op::WriteZeroes { .. } | Op::Discard { .. } => unreachable!("the log of a device without TRIM only writes"),
            Op::Read { .. } | Op::Status { .. } => {}
        }
        self.visible.submit(op)
    }
}

async fn opened(device: Device, sabotage: Option<Sabotage>, world: &World) -> Rig {
    let config = CacheConfig { sabotage, ..config() };
    let owner = Owner { cell_id: 1, device_id: 2, era: 1 };
    let member = MemberDevice { device, owner, life: next_life(), durable: true, checkpoint: None };
    let (cache, recovered) = FlashCache::open(config, vec![member], &[DISK], world.clone()).await.unwrap();
    let disk = cache.disk(DISK);
    Rig { cache, disk, faults: Vec::new(), media: Vec::new(), world: world.clone(), recovered }
}

async fn dies(rig: Rig) {
    rig.cache.members().for_each(|member| member.fail("the process has died".to_owned()));
    rig.cache.stop().await;
}

/// The process dies, and another opens what a medium holds.
async fn reopened(rig: Rig, medium: Device) -> Rig {
    let world = rig.world.clone();
    dies(rig).await;
    opened(medium, None, &world).await
}

/// A dirty block that is seen, and that the failed flush of somebody else has dropped.
async fn after_a_loss(world: &World) -> (Arc<Dropping>, Rig) {
    let device = Dropping::new();
    let rig = opened(device.clone(), None, world).await;
    rig.dirty(1).await.unwrap();
    device.drop_held();
    rig.member().may_have_lost();
    (device, rig)
}

/// Dirty blocks, of which the first is durable before the flush fails: what is there after the power cut.
async fn left_by_a_failed_flush(sabotage: Option<Sabotage>, world: World) -> Vec<Residence> {
    let device = Dropping::new();
    let rig = opened(device.clone(), sabotage, &world).await;
    rig.dirty(1).await.unwrap();
    rig.on_flash().await;
    for block in 2..5 {
        rig.dirty(block).await.unwrap();
    }
    device.fail_flushes(1);
    rig.cache.sync_all().await.unwrap();
    assert!(!rig.member().has_failed(), "{:?}", rig.member().failure());
    assert_eq!((rig.counters()["errors"], rig.counters()["written_again"] > 0), (1, sabotage.is_none()));
    let rig = reopened(rig, device.durable.clone()).await;
    let mut left = Vec::new();
    for block in 1..5 {
        let [(4, residence)] = rig.residence(block)[..] else { panic!("{:?}", rig.residence(block)) };
        left.push(residence);
        if residence == Residence::Dirty {
            assert_eq!(rig.read(rig.hit(block)).await, Ok(()));
        }
    }
    left
}

#[test]
fn what_a_failed_flush_may_have_dropped_is_durable_after_the_next() {
    run(|world| async move { assert_eq!(left_by_a_failed_flush(None, world).await, [Residence::Dirty; 4]) });
}

#[test]
fn a_flush_that_is_only_tried_again_is_caught() {
    run(|world| async move {
        let left = left_by_a_failed_flush(Some(Sabotage::FlashFlushTriedAgain), world).await;
        assert_eq!(left, [Residence::Dirty, Residence::Disk, Residence::Disk, Residence::Disk]);
    });
}

#[test]
fn the_loss_that_others_on_the_device_hear_of_is_made_good() {
    run(|world| async move {
        let (device, rig) = after_a_loss(&world).await;
        rig.cache.sync_all().await.unwrap();
        let written_again = rig.counters()["written_again"];
        assert!(written_again > 0);
        rig.dirty(2).await.unwrap();
        rig.cache.sync_all().await.unwrap();
        assert_eq!(rig.counters()["written_again"], written_again, "once");
        let rig = reopened(rig, device.durable.clone()).await;
        assert_eq!([rig.residence(1), rig.residence(2)], [[(4, Residence::Dirty)]; 2].map(Vec::from));
    });
}

/// A dirty block, dropped by a failed flush of somebody else, and one after it: how that was answered, and where it is found after the process
/// has died.
async fn written_behind_a_loss(sabotage: Option<Sabotage>, world: World) -> (Result<(), DirtyRefused>, Residence) {
    let device = Dropping::new();
    let rig = opened(device.clone(), sabotage, &world).await;
    rig.dirty(1).await.unwrap();
    rig.on_flash().await;
    rig.dirty(2).await.unwrap();
    device.drop_held_and_seen().await;
    rig.member().may_have_lost();
    let answered = rig.dirty(3).await;
    let rig = reopened(rig, device.visible.clone()).await;
    assert_eq!(rig.residence(1), [(4, Residence::Dirty)]);
    let [(4, residence)] = rig.residence(3)[..] else { panic!("{:?}", rig.residence(3)) };
    (answered, residence)
}

#[test]
fn nothing_is_acknowledged_behind_what_was_lost() {
    run(|world| async move {
        let (answered, _) = written_behind_a_loss(None, world.clone()).await;
        assert_eq!(answered, Err(DirtyRefused::Failed));
    });
}

#[test]
fn an_acknowledgement_behind_a_loss_is_caught() {
    run(|world| async move {
        let broken = written_behind_a_loss(Some(Sabotage::AcknowledgedBehindLoss), world).await;
        assert_eq!(broken, (Ok(()), Residence::Disk));
    });
}

#[test]
fn what_was_dropped_is_durable_before_what_follows_is_acknowledged() {
    run(|world| async move {
        let (device, rig) = after_a_loss(&world).await;
        rig.dirty(2).await.unwrap();
        let rig = reopened(rig, device.durable.clone()).await;
        assert_eq!([rig.residence(1), rig.residence(2)], [[(4, Residence::Dirty)]; 2].map(Vec::from));
    });
}

/// The device has taken it, and dropped it before anybody was told that it had ended.
#[test]
fn what_is_under_way_while_a_loss_is_heard_of_is_written_again() {
    run(|world| async move {
        let device = Dropping::new();
        let rig = opened(device.clone(), None, &world).await;
        rig.filled(1).await;
        device.is_late.store(true, Ordering::SeqCst);
        assert_eq!(rig.offer(2).taken, 1);
        rig.until(|_| lock(&device.late).is_some()).await;
        device.drop_held();
        rig.member().may_have_lost();
        let later = async {
            world.clock.sleep(Duration::from_millis(50)).await;
            let (completer, done) = lock(&device.late).take().unwrap();
            completer.complete(done);
        };
        let (answered, ()) = futures_util::future::join(rig.dirty(3), later).await;
        assert_eq!(answered, Ok(()));
        rig.on_flash().await;
        let rig = reopened(rig, device.durable.clone()).await;
        assert_ne!(rig.residence(2), [(4, Residence::Disk)]);
        assert_eq!(rig.residence(3), [(4, Residence::Dirty)]);
    });
}

/// Somebody's durable write has failed on a device that keeps nothing back: there is nothing to be made good.
#[test]
fn a_device_without_a_volatile_cache_loses_nothing() {
    run(|world| async move {
        let geometry = Geometry { volatile_cache: false, ..geometry() };
        let rig = Rig::with(geometry, config(), 1, world).await;
        rig.member().may_have_lost();
        rig.dirty(1).await.unwrap();
        assert_eq!((rig.counters()["written_again"], rig.member().has_failed()), (0, false));
    });
}

#[test]
fn a_device_that_has_lost_what_was_written_is_given_up() {
    run(|world| async move {
        let device = Dropping::new();
        let mut rig = opened(device.clone(), None, &world).await;
        rig.dirty(1).await.unwrap();
        rig.media = vec![device.visible.clone()];
        rig.rot(0, 5).await;
        device.fail_flushes(1);
        let error = rig.cache.sync_all().await.unwrap_err().to_string();
        assert!(error.contains("is lost: reads as something else"), "{error}");
        assert!(rig.member().has_failed());
    });
}

#[test]
fn a_device_that_never_flushes_is_given_up() {
    run(|world| async move {
        let device = Dropping::new();
        let rig = opened(device.clone(), None, &world).await;
        rig.dirty(1).await.unwrap();
        device.fail_flushes(u32::MAX);
        let error = rig.cache.sync_all().await.unwrap_err().to_string();
        assert!(error.contains("flush: Failed(Media)"), "{error}");
        assert_eq!(rig.counters()["errors"], 6);
    });
}

#[test]
fn what_was_dropped_before_the_process_died_is_durable_once_the_next_has_read_it() {
    run(|world| async move {
        let device = Dropping::new();
        let rig = opened(device.clone(), None, &world).await;
        // More than a segment, so that a footer is among what is dropped.
        for block in 0..20 {
            rig.dirty(block).await.unwrap();
        }
        rig.until(|rig| rig.cache.members().all(|member| member.segments().sealed > 0)).await;
        device.drop_held();
        dies(rig).await;

        let rig = opened(device.clone(), None, &world).await;
        assert_eq!(rig.recovered[0].as_ref().unwrap().dirty_parts, 80);
        let rig = reopened(rig, device.durable.clone()).await;
        assert_eq!(rig.recovered[0].as_ref().unwrap().dirty_parts, 80);
        for block in 0..20 {
            assert_eq!(rig.read(rig.hit(block)).await, Ok(()));
        }
    });
}

/// Clean blocks and a footer are dropped by a failed flush and read as what was there before. Whether the device is given up.
async fn is_given_up_for_clean(sabotage: Option<Sabotage>, world: World) -> bool {
    let device = Dropping::new();
    let rig = opened(device.clone(), sabotage, &world).await;
    rig.dirty(1).await.unwrap();
    rig.filled(2).await;
    for block in 3..30 {
        assert_eq!(rig.offer(block).taken, 1);
    }
    // The block and a footer have reached the device.
    let has = |wanted: &dyn Fn(&[u8]) -> bool| {
        lock(&device.held)
            .iter()
            .any(|(_, data)| data.pieces().iter().any(|piece| piece.chunks_exact(4096).any(wanted)))
    };
    let is_data = |page: &[u8]| page == [(4 * BLOCK_PARTS as u8).wrapping_add(1); 4096];
    let is_footer = |page: &[u8]| page[4096 - 96..].starts_with(b"FCft");
    rig.until(|_| has(&is_data) && has(&is_footer)).await;
    device.drop_held_and_seen().await;
    rig.member().may_have_lost();
    let made_good = rig.cache.sync_all().await;
    if rig.member().has_failed() {
        return true;
    }
    made_good.unwrap();
    assert_eq!(
        [rig.residence(1), rig.residence(2)],
        [[(4, Residence::Dirty)], [(4, Residence::Cached)]].map(Vec::from)
    );
    assert_eq!(rig.residence(4), [(4, Residence::Disk)], "it was lost, and the disk has it");
    rig.dirty(4).await.unwrap();
    rig.filled(5).await;
    let rig = reopened(rig, device.durable.clone()).await;
    assert!(rig.recovered[0].is_ok(), "{:?}", rig.recovered);
    assert_eq!([rig.residence(1), rig.residence(4)], [[(4, Residence::Dirty)]; 2].map(Vec::from));
    for block in [1, 2, 4, 5] {
        assert_eq!(rig.read(rig.hit(block)).await, Ok(()), "block {block}");
    }
    false
}

#[test]
fn a_failed_flush_that_has_lost_clean_data_alone_costs_that() {
    run(|world| async move { assert!(!is_given_up_for_clean(None, world).await) });
}

#[test]
fn a_device_given_up_for_clean_data_is_caught() {
    run(|world| async move { assert!(is_given_up_for_clean(Some(Sabotage::CleanLossGivesUp), world).await) });
}
