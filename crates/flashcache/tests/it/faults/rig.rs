//! A cache on memory devices with faults on demand, in which the bytes of each part tell which it is.

use crate::running::next_life;
use device::io::FailKind;
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Device, Geometry, SharedBufs, World};
use flashcache::format::Owner;
use flashcache::{
    CacheConfig, CachedDisk, CheckpointPlace, DirtyRefused, DiskHandle, FillCause, FlashCache, Hit, HitError, Member,
    MemberDevice, MemberError, Recovered, Residence, Stretch,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub(super) const BLOCK_PARTS: u64 = 4;
pub(super) const BLOCK_BYTES: usize = 16 << 10;
pub(super) const SEGMENT_BYTES: u32 = 256 << 10;
pub(super) const SEGMENTS: u64 = 32;
pub(super) const HOME: u128 = 1;
pub(super) const DISK: CachedDisk = CachedDisk { id: 7, generation: 1, home: HOME, is_home_there: true };

pub(super) struct Rig {
    pub(super) cache: Arc<FlashCache>,
    pub(super) disk: DiskHandle,
    pub(super) faults: Vec<Arc<Faults>>,
    pub(super) media: Vec<Arc<Memory>>,
    pub(super) world: World,
    pub(super) recovered: Vec<Result<Recovered, MemberError>>,
}

pub(super) fn parts(block: u64) -> Range<u64> {
    block * BLOCK_PARTS..(block + 1) * BLOCK_PARTS
}

pub(super) fn data(block: u64) -> SharedBufs {
    let bytes: Vec<u8> = parts(block).flat_map(|part| [(part as u8).wrapping_add(1); 4096]).collect();
    SharedBufs::from(Buf::padded(&bytes, 4096).freeze())
}

pub(super) fn geometry() -> Geometry {
    let plain: Device = Memory::new(SEGMENTS * u64::from(SEGMENT_BYTES));
    Geometry { volatile_cache: true, ..plain.geometry() }
}

pub(super) fn config() -> CacheConfig {
    CacheConfig {
        segment_bytes: SEGMENT_BYTES,
        chunk_age: Duration::from_millis(1),
        soft_limit: Duration::from_millis(20),
        // Nobody comes near it but who waits for it: see [`impatient`].
        hard_limit: Duration::from_secs(60),
        ..CacheConfig::default()
    }
}

/// One that gives up soon what does not answer.
pub(super) fn impatient() -> CacheConfig {
    CacheConfig { hard_limit: Duration::from_millis(100), ..config() }
}

impl Rig {
    pub(super) async fn new(members: usize, world: World) -> Rig {
        Rig::with(geometry(), config(), members, world).await
    }

    pub(super) async fn with(geometry: Geometry, config: CacheConfig, members: usize, world: World) -> Rig {
        let media = (0..members).map(|_| Memory::with_geometry(geometry.clone(), false)).collect();
        Rig::on(media, config, world).await
    }

    pub(super) async fn on(media: Vec<Arc<Memory>>, config: CacheConfig, world: World) -> Rig {
        Rig::on_faulty(media, config, world, |_| {}).await
    }

    /// With faults that are there when it opens.
    pub(super) async fn on_faulty(
        media: Vec<Arc<Memory>>,
        config: CacheConfig,
        world: World,
        harm: impl Fn(&Faults),
    ) -> Rig {
        Rig::opened(media, None, config, world, harm).await
    }

    /// One device after a clean stop.
    pub(super) async fn from_checkpoint(
        medium: Arc<Memory>,
        place: CheckpointPlace,
        config: CacheConfig,
        world: World,
    ) -> Rig {
        Rig::opened(vec![medium], Some(place), config, world, |_| {}).await
    }

    async fn opened(
        media: Vec<Arc<Memory>>,
        checkpoint: Option<CheckpointPlace>,
        config: CacheConfig,
        world: World,
        harm: impl Fn(&Faults),
    ) -> Rig {
        let faults: Vec<_> =
            media.iter().map(|memory| Faults::new(memory.clone() as Device, world.spawn.clone())).collect();
        faults.iter().for_each(|faults| harm(faults));
        let member = |(n, faults): (usize, &Arc<Faults>)| {
            let owner = Owner { cell_id: 1, device_id: 2 + n as u128, era: 1 };
            MemberDevice { device: faults.clone(), owner, life: next_life(), durable: true, checkpoint }
        };
        let members = faults.iter().enumerate().map(member).collect();
        let config = CacheConfig { mirrored: media.len() > 1, ..config };
        let (cache, recovered) = FlashCache::open(config, members, &[DISK], world.clone()).await.unwrap();
        let disk = cache.disk(DISK);
        Rig { cache, disk, faults, media, world, recovered }
    }

    /// The process dies, and another opens the devices as they are.
    pub(super) async fn again(self) -> Rig {
        self.again_with(config()).await
    }

    pub(super) async fn again_with(self, config: CacheConfig) -> Rig {
        self.faults.iter().for_each(|faults| {
            let _ = faults.add(every(FailKind::Gone));
        });
        // Nothing of it is waited for.
        self.cache.members().for_each(|member| member.fail("the process has died".to_owned()));
        self.cache.stop().await;
        Rig::on(self.media, config, self.world).await
    }

    /// Its first device, for another cache.
    pub(super) fn as_member(&self, id: u128) -> MemberDevice {
        let owner = Owner { cell_id: 1, device_id: id, era: 1 };
        MemberDevice { device: self.faults[0].clone(), owner, life: next_life(), durable: true, checkpoint: None }
    }

    pub(super) fn member(&self) -> &Arc<Member> {
        self.cache.members().next().unwrap()
    }

    pub(super) fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.member().counters.snapshot().into_iter().collect()
    }

    pub(super) fn offer(&self, block: u64) -> flashcache::FillReport {
        let data = data(block);
        let view = data.view(0..BLOCK_BYTES);
        self.cache.fill(&self.disk, parts(block), view, FillCause::ReadMiss, self.cache.membership())
    }

    /// Fill a block and wait until it is on flash.
    pub(super) async fn filled(&self, block: u64) {
        assert_eq!(self.offer(block).taken, 1);
        self.on_flash().await;
    }

    /// Whatever was filled is on flash, so that a hit is read from there.
    pub(super) async fn on_flash(&self) {
        self.cache.sync_all().await.unwrap();
    }

    pub(super) fn hit(&self, block: u64) -> Hit {
        let mut found = self.cache.lookup(&self.disk, parts(block));
        match (found.pop(), found.len()) {
            (Some(Stretch::Hit(hit)), 0) => hit,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn misses(&self, block: u64) -> bool {
        matches!(self.cache.lookup(&self.disk, parts(block))[..], [Stretch::Miss(4)])
    }

    pub(super) async fn read(&self, hit: Hit) -> Result<(), HitError> {
        let block = hit.parts().start / BLOCK_PARTS;
        let (result, back) = self.cache.read_hit(hit, Buf::zeroed(BLOCK_BYTES).into()).await;
        if result.is_ok() {
            assert!(back.as_ref().unwrap().to_vec(0..BLOCK_BYTES) == data(block).to_vec(0..BLOCK_BYTES));
        }
        assert_eq!(back.is_none(), matches!(result, Err(HitError::Slow)) || self.has_timed_out());
        result
    }

    pub(super) fn has_timed_out(&self) -> bool {
        self.cache.members().any(|m| m.failure().is_some_and(|why| why.contains("read took longer")))
    }

    pub(super) async fn dirty(&self, block: u64) -> Result<(), DirtyRefused> {
        self.cache.write_dirty(&self.disk, parts(block), &data(block), false).await
    }

    pub(super) fn residence(&self, block: u64) -> Vec<(u64, Residence)> {
        self.cache.residence(&self.disk, parts(block))
    }

    pub(super) async fn until(&self, done: impl Fn(&Rig) -> bool) {
        for _ in 0..5_000 {
            if done(self) {
                return;
            }
            self.world.clock.sleep(Duration::from_millis(1)).await;
        }
        panic!("it does not come to that: {:?}", self.member());
    }

    /// Change a byte on a device, of whatever page holds the data of a part.
    pub(super) async fn rot(&self, medium: usize, part: u64) {
        let wanted = [(part as u8).wrapping_add(1); 4096];
        let mut found = 0;
        for page in 0..SEGMENTS * u64::from(SEGMENT_BYTES) / 4096 {
            let done = self.media[medium].read_at(page * 4096).await;
            if done == wanted {
                let mut bad = wanted;
                bad[100] ^= 1;
                self.media[medium].write_at(page * 4096, &bad).await;
                found += 1;
            }
        }
        assert!(found > 0, "part {part} is on the device");
    }
}

pub(super) trait At {
    async fn read_at(&self, offset: u64) -> Vec<u8>;
    async fn write_at(&self, offset: u64, bytes: &[u8]);
}

impl At for Arc<Memory> {
    async fn read_at(&self, offset: u64) -> Vec<u8> {
        let device: Device = self.clone();
        device.read(offset, Buf::zeroed(4096).into()).await.bufs.to_vec(0..4096)
    }
    async fn write_at(&self, offset: u64, bytes: &[u8]) {
        let device: Device = self.clone();
        device.write(offset, Buf::padded(bytes, 4096).freeze().into(), false).await;
    }
}

pub(super) fn every(kind: FailKind) -> Fault {
    Fault { verbs: Vec::new(), range: None, skip: 0, count: u64::MAX, action: Action::Fail(kind) }
}
