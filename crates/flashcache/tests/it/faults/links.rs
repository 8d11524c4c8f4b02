//! A link to the last chunk of a segment calls that chunk durable only if it is: a segment that a crash has left open is gone on in under its
//! opening of an earlier life, and a chunk of this life there may be lost with the power.

use super::rig::*;
use crate::running::{next_life, run};
use device::io::{Completed, FailKind, Io, Op, Outcome};
use device::layers::Memory;
use device::sync::lock;
use device::{Bufs, Completion, Device, Geometry, SharedBufs, World};
use flashcache::format::{self, Owner};
use flashcache::{CacheConfig, FlashCache, MemberDevice, Residence, Sabotage};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 1 };
const PAGE: u64 = 4096;

/// A device with a volatile cache whose power goes in a flush: of what it held, writes to some pages do not survive.
struct Cut {
    visible: Arc<Memory>,
    durable: Arc<Memory>,
    held: Mutex<Vec<(u64, SharedBufs)>>,
    /// The next flush is the last one, and these bytes are lost in it.
    lost: Mutex<Option<Range<u64>>>,
    is_off: AtomicBool,
}

impl Cut {
    fn new() -> Arc<Cut> {
        let geometry = Geometry { discard_bytes: 0, ..geometry() };
        let medium = || Memory::with_geometry(geometry.clone(), false);
        let (held, lost, is_off) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Arc::new(Cut { visible: medium(), durable: medium(), held, lost, is_off })
    }

    fn flush(&self) -> Outcome {
        let lost = lock(&self.lost).take();
        for (offset, data) in lock(&self.held).drain(..) {
            if lost.as_ref().is_none_or(|lost| !lost.contains(&offset)) {
                drop(self.durable.submit(Op::Write { offset, data, fua: true }));
            }
        }
        self.is_off.store(lost.is_some(), Ordering::SeqCst);
        if lost.is_some() { Outcome::Failed(FailKind::Gone) } else { Outcome::Done }
    }
}

impl Io for Cut {
    fn geometry(&self) -> Geometry {
        self.visible.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        if self.is_off.load(Ordering::SeqCst) {
            return Completion::failed(FailKind::Gone, op);
        }
        match &op {
            Op::Flush => {
                let outcome = self.flush();
                return Completion::ready(Completed { outcome, bufs: Bufs::new(), extents: Vec::new() });
            }
            Op::Write { offset, data, .. } => lock(&self.held).push((*offset, data.clone())),
            Op::WriteZeroes { .. } | Op::Discard { .. } => unreachable!("the log of a device without TRIM only writes"),
            Op::Read { .. } | Op::Status { .. } => {}
        }
        self.visible.submit(op)
    }
}

async fn opened(device: Device, sabotage: Option<Sabotage>, world: &World) -> Rig {
    let config = CacheConfig { sabotage, ..config() };
    let member = MemberDevice { device, owner: OWNER, life: next_life(), durable: true, checkpoint: None };
    let (cache, recovered) = FlashCache::open(config, vec![member], &[DISK], world.clone()).await.unwrap();
    let disk = cache.disk(DISK);
    Rig { cache, disk, faults: Vec::new(), media: Vec::new(), world: world.clone(), recovered }
}

async fn again(rig: Rig, device: Device, sabotage: Option<Sabotage>) -> Rig {
    rig.member().fail("the process has died".to_owned());
    rig.cache.stop().await;
    opened(device, sabotage, &rig.world).await
}

/// The last chunk that was closed.
async fn last_chunk(device: &Cut) -> (format::ChunkHeader, u64) {
    let mut last: Option<(format::ChunkHeader, u64)> = None;
    for page in 0..SEGMENTS * u64::from(SEGMENT_BYTES) / PAGE {
        let Ok((header, _)) = format::decode_chunk(&device.visible.read_at(page * PAGE).await, &OWNER) else {
            continue;
        };
        if last.as_ref().is_none_or(|(last, _)| last.sequence < header.sequence) {
            last = Some((header, page));
        }
    }
    last.unwrap()
}

/// Clean blocks fill the cache behind the chunk, none of which asks for a flush, until reclaim frees the segment with the link to it and
/// flushes. That flush loses the chunk alone. Whether the next start believes the device.
async fn is_believed(sabotage: Option<Sabotage>, world: World) -> bool {
    let device = Cut::new();
    let rig = opened(device.clone(), sabotage, &world).await;
    rig.dirty(1000).await.unwrap();
    rig.on_flash().await;
    let (first, _) = last_chunk(&device).await;
    let rig = again(rig, device.clone(), sabotage).await;
    assert_eq!(rig.recovered[0].as_ref().unwrap().reopened, 1);
    rig.on_flash().await;
    rig.dirty(1001).await.unwrap();
    let (chunk, page) = last_chunk(&device).await;
    assert_eq!(chunk.life, first.life, "the log goes on in the opening of the life before");
    *lock(&device.lost) = Some(page * PAGE..(page + u64::from(chunk.pages)) * PAGE);
    let mut block = 0;
    while !device.is_off.load(Ordering::SeqCst) {
        assert!(block < 10_000, "reclaim flushes: {:?}", rig.member());
        rig.offer(block % 900);
        block += 1;
        if block % 8 == 0 {
            world.clock.sleep(Duration::from_millis(1)).await;
        }
    }
    let rig = again(rig, device.durable.clone(), None).await;
    if rig.recovered[0].is_err() {
        return false;
    }
    assert_eq!(rig.residence(1000), [(4, Residence::Dirty)]);
    assert_eq!(rig.residence(1001), [(4, Residence::Disk)], "no flush has covered it");
    true
}

#[test]
fn a_chunk_of_this_life_in_an_opening_of_an_earlier_one_is_not_called_durable_before_a_flush() {
    run(|world| async move { assert!(is_believed(None, world).await) });
}

#[test]
fn a_link_that_is_certain_by_its_opening_is_caught() {
    run(|world| async move { assert!(!is_believed(Some(Sabotage::LinkCertainByOpening), world).await) });
}
