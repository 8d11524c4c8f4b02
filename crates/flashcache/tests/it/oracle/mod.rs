//! Goal: whatever comes in whatever order, a read is answered with what was written last, what is dirty is exactly what the disk
//! does not have, and no crash changes that. Method: random fills, writes, dirty writes, destages, flush failures, device failures, stops and
//! crashes on one to three flash devices, against arrays of versions; each read looks at the bytes.

#![expect(clippy::unwrap_used, reason = "tests")]

mod check;
mod destage;
mod members;
mod trust;

use crate::running::{next_life, run};
use device::layers::{Faults, Memory};
use device::spawn::yield_now;
use device::{Buf, Class, Device, Geometry, Prng, SharedBufs, World};
use flashcache::format::Owner;
use flashcache::{
    CacheConfig, CachedDisk, CheckpointPlace, DirtyRefused, DiskHandle, Evidence, FillCause, FlashCache, MemberDevice,
    PART_BYTES, Residence, Stretch, Tenant, WorthMap,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Parts of a grid disk: eight regions, twice what flash holds.
const DISK_PARTS: u64 = 2048;
const DISKS: [u64; 2] = [7, 8];
const SEGMENT_BYTES: u32 = 128 << 10;
const REGION_PARTS: u64 = 256;
const RANGE_BYTES: u64 = 1 << 20;
/// What has to happen at least once in the seeds of a test.
const WHAT: [&str; 10] = [
    "hits",
    "misses",
    "writes",
    "dirty writes",
    "refused",
    "destages",
    "revalidated",
    "distrusts",
    "by log",
    "by checkpoint",
];

/// And where blocks are kept apart by how long they last, by the counters of the members.
const CLEANING: &[&str] = &["cleans", "moves", "dirty_copies"];

/// What a seed tries.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Flash devices to begin with.
    members: usize,
    /// Others come and go.
    changes: bool,
    block_bytes: u32,
    page_bytes: u32,
    /// Power cuts, not only deaths of the process: what was not flushed is gone.
    forgets: bool,
    /// As many segments as it takes for blocks to be kept apart by how long they last.
    classes: bool,
}

impl Plan {
    fn segments(self) -> u64 {
        if self.classes { 136 } else { 40 }
    }
}

struct Flash {
    id: u128,
    memory: Arc<Memory>,
    era: u64,
    checkpoint: Option<CheckpointPlace>,
}

/// What a grid disk is, part by part.
#[derive(Clone)]
struct Truth {
    /// What its slow disk has.
    disk: Vec<u64>,
    /// What was acknowledged last.
    now: Vec<u64>,
    dirty: Vec<bool>,
    worth: WorthMap,
}

struct Rig {
    plan: Plan,
    prng: Prng,
    world: World,
    flash: Vec<Flash>,
    faults: Vec<Arc<Faults>>,
    cache: Arc<FlashCache>,
    handles: Vec<DiskHandle>,
    truth: Vec<Truth>,
    failed: Option<usize>,
    next_version: u64,
    seen: BTreeMap<&'static str, u64>,
}

fn bytes_of(disk: usize, part: u64, version: u64) -> Vec<u8> {
    let word = (version << 20 | part << 4 | disk as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes().repeat(PART_BYTES as usize / 8)
}

fn cached_disk(id: u64) -> CachedDisk {
    CachedDisk { id, generation: 3, home: 1, is_home_there: true }
}

impl Flash {
    fn new(plan: Plan, id: u128) -> Flash {
        let geometry = Geometry {
            size_bytes: plan.segments() * u64::from(SEGMENT_BYTES),
            logical_bytes: 512,
            page_bytes: plan.page_bytes,
            rotational: false,
            volatile_cache: plan.forgets,
            discard_bytes: 4096,
            fast_zeroes: true,
            transfer_bytes_max: 4 << 20,
            class: Class::Durable,
        };
        Flash { id, memory: Memory::with_geometry(geometry, plan.forgets), era: 1, checkpoint: None }
    }

    fn member(&self, faults: &Arc<Faults>) -> MemberDevice {
        let owner = Owner { cell_id: 1, device_id: self.id, era: self.era };
        MemberDevice { device: faults.clone(), owner, life: next_life(), durable: true, checkpoint: self.checkpoint }
    }
}

impl Rig {
    async fn new(plan: Plan, seed: u64, world: World) -> Rig {
        let flash: Vec<Flash> = (0..plan.members as u128).map(|n| Flash::new(plan, 100 + n)).collect();
        let zeroes = vec![0; DISK_PARTS as usize];
        let blank = Truth {
            disk: zeroes.clone(),
            now: zeroes,
            dirty: vec![false; DISK_PARTS as usize],
            worth: WorthMap::default(),
        };
        let (faults, cache, handles, _) = open(plan, &flash, &world).await;
        let truth = vec![blank; DISKS.len()];
        let (prng, seen) = (Prng::new(seed), BTreeMap::new());
        Rig { plan, prng, world, flash, faults, cache, handles, truth, failed: None, next_version: 1, seen }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    fn some_range(&mut self) -> (usize, Range<u64>) {
        let disk = self.prng.below(DISKS.len() as u64) as usize;
        let len = if self.prng.chance(1, 4) { self.prng.between(1, 60) } else { self.prng.between(1, 9) };
        // Some places are more liked than others.
        let near = if self.prng.chance(1, 2) { 300 } else { DISK_PARTS };
        let start = self.prng.below(near - len);
        (disk, start..start + len)
    }

    fn handle(&mut self, disk: usize) -> DiskHandle {
        self.handles[disk].of(Tenant::from_bits([0, 1, 2][self.prng.below(3) as usize]))
    }

    fn data(&self, disk: usize, parts: Range<u64>, versions: impl Fn(u64) -> u64) -> SharedBufs {
        let bytes: Vec<u8> = parts.flat_map(|part| bytes_of(disk, part, versions(part))).collect();
        SharedBufs::from(Buf::padded(&bytes, 4096).freeze())
    }

    fn disk_data(&self, disk: usize, parts: Range<u64>) -> SharedBufs {
        self.data(disk, parts, |part| self.truth[disk].disk[part as usize])
    }

    fn offer(&mut self, disk: usize, parts: Range<u64>, cause: FillCause) {
        let data = self.disk_data(disk, parts.clone());
        let handle = self.handle(disk);
        let len = data.len_bytes();
        let report = self.cache.fill(&handle, parts, data.view(0..len), cause, self.cache.membership());
        assert!(!report.stale);
    }

    async fn read(&mut self) {
        let (disk, parts) = self.some_range();
        let handle = self.handle(disk);
        let stretches = self.cache.lookup(&handle, parts.clone());
        assert_eq!(stretches.iter().map(|s| u64::from(s.parts())).sum::<u64>(), parts.end - parts.start);
        let mut at = parts.start;
        let mut missed = Vec::new();
        for stretch in stretches {
            let end = at + u64::from(stretch.parts());
            match stretch {
                Stretch::Miss(_) => {
                    let truth = &self.truth[disk];
                    assert!((at..end).all(|part| !truth.dirty[part as usize]), "what is dirty is never missed");
                    missed.push(at..end);
                }
                Stretch::Hit(hit) => {
                    assert_eq!(hit.parts(), at..end);
                    assert_eq!(hit.is_dirty(), self.truth[disk].dirty[at as usize]);
                    let len = ((end - at) * PART_BYTES) as usize;
                    let (result, back) = self.cache.read_hit(hit, Buf::zeroed(len).into()).await;
                    assert_eq!(result, Ok(()));
                    let now = self.data(disk, at..end, |part| self.truth[disk].now[part as usize]);
                    assert!(back.unwrap().to_vec(0..len) == now.to_vec(0..len), "{disk} {at}..{end} is stale");
                    self.count("hits");
                }
            }
            at = end;
        }
        for parts in missed {
            self.count("misses");
            self.offer(disk, parts, FillCause::ReadMiss);
        }
    }

    fn version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }

    /// To the disk; what is dirty there has been destaged.
    async fn write_through(&mut self, disk: usize, parts: Range<u64>) {
        let ticket = self.cache.begin_write(&self.handles[disk], parts.clone()).await.unwrap();
        let version = self.version();
        for part in parts.clone() {
            assert!(!self.truth[disk].dirty[part as usize]);
            self.truth[disk].disk[part as usize] = version;
            self.truth[disk].now[part as usize] = version;
        }
        let residence = self.cache.residence(&self.handles[disk], parts.clone());
        assert_eq!(residence, [(parts.end - parts.start, Residence::Disk)], "copies have ended");
        if self.prng.chance(1, 2) {
            self.offer(disk, parts, FillCause::Write);
        }
        if self.prng.chance(1, 8) {
            yield_now().await;
        }
        self.cache.end_write(ticket);
        self.count("writes");
    }

    async fn write(&mut self) {
        let (disk, parts) = self.some_range();
        let again = self.cache.is_dirty(&self.handles[disk], &parts);
        assert_eq!(again, parts.clone().any(|part| self.truth[disk].dirty[part as usize]), "{parts:?}");
        if !again && self.prng.chance(1, 2) {
            return self.write_through(disk, parts).await;
        }
        self.write_dirty(disk, parts, again).await;
    }

    async fn write_dirty(&mut self, disk: usize, parts: Range<u64>, again: bool) {
        let version = self.version();
        let data = self.data(disk, parts.clone(), |_| version);
        let handle = self.handle(disk);
        let mut done = 0;
        let taken = self.cache.write_dirty_from(&handle, parts.clone(), &data, again, &mut done).await;
        for part in parts.start..parts.start + done {
            self.truth[disk].now[part as usize] = version;
            self.truth[disk].dirty[part as usize] = true;
        }
        match taken {
            Ok(()) => assert_eq!(done, parts.end - parts.start),
            Err(DirtyRefused::NoRoom) => {
                assert!(done < parts.end - parts.start);
                self.count("refused");
                self.destage(true).await;
                return self.write_through(disk, parts).await;
            }
            Err(DirtyRefused::Failed) => panic!("somebody is left"),
        }
        self.count("dirty writes");
    }

    async fn step(&mut self) {
        match self.prng.below(400) {
            0..200 => self.read().await,
            200..360 => self.write().await,
            360..368 => self.destage(false).await,
            368..372 => self.destage(true).await,
            372..380 => self.settle().await,
            380..384 => self.distrust(),
            384..394 => self.revalidate(false),
            394..396 => self.set_worth(),
            396 => self.fail().await,
            397 => {
                let how = self.prng.below(4);
                self.restart(how).await;
            }
            398 if self.plan.changes => self.change_members().await,
            _ => self.check(),
        }
        if self.cache.members().any(|member| !member.has_failed() && member.is_crowded_with_dirty()) {
            self.destage(true).await;
        }
        if self.prng.chance(1, 4) {
            yield_now().await;
        }
        self.wait_for_segments().await;
    }
}

type Opened = (Vec<Arc<Faults>>, Arc<FlashCache>, Vec<DiskHandle>, Vec<Evidence>);

async fn open(plan: Plan, flash: &[Flash], world: &World) -> Opened {
    let faults: Vec<_> =
        flash.iter().map(|flash| Faults::new(flash.memory.clone() as Device, world.spawn.clone())).collect();
    let members: Vec<MemberDevice> = flash.iter().zip(&faults).map(|(flash, faults)| flash.member(faults)).collect();
    let config = CacheConfig {
        segment_bytes: SEGMENT_BYTES,
        block_bytes: plan.block_bytes,
        chunk_age: Duration::from_millis(1),
        staging_bytes: 4 << 20,
        mirrored: flash.len() > 1,
        ..CacheConfig::default()
    };
    let disks = DISKS.map(cached_disk);
    let (cache, recovered) = FlashCache::open(config, members, &disks, world.clone()).await.unwrap();
    let evidence = recovered.into_iter().map(|recovered| recovered.unwrap().evidence).collect();
    let handles = disks.iter().map(|disk| cache.disk(*disk)).collect();
    (faults, cache, handles, evidence)
}

fn try_seeds(plan: Plan, seeds: Range<u64>, steps: u32) {
    let seen: Arc<Mutex<BTreeMap<&'static str, u64>>> = Arc::default();
    for seed in seeds {
        let all = seen.clone();
        run(move |world| async move {
            let mut rig = Rig::new(plan, seed, world).await;
            for _ in 0..steps {
                rig.step().await;
            }
            rig.restart(0).await;
            rig.destage(true).await;
            rig.check();
            let mut all = all.lock().unwrap();
            rig.seen.iter().for_each(|(what, n)| *all.entry(what).or_insert(0) += n);
        });
    }
    let seen = seen.lock().unwrap();
    let may_fail = (plan.members > 1).then_some("failures").into_iter().chain(plan.changes.then_some("changes"));
    // What is mirrored is not copied as long as it is dirty.
    let cleaning = if plan.classes { &CLEANING[..CLEANING.len() - usize::from(plan.members > 1)] } else { &[] };
    for what in WHAT.into_iter().chain(may_fail).chain(cleaning.iter().copied()) {
        assert!(seen.get(what).is_some_and(|n| *n > 0), "{what}: {seen:?}");
    }
}

#[test]
fn one_device() {
    try_seeds(
        Plan { members: 1, changes: false, block_bytes: 16 << 10, page_bytes: 4096, forgets: false, classes: false },
        0..3,
        1200,
    );
}

#[test]
fn one_device_with_large_pages_and_power_cuts() {
    try_seeds(
        Plan { members: 1, changes: false, block_bytes: 4 << 10, page_bytes: 8192, forgets: true, classes: false },
        10..14,
        1200,
    );
}

#[test]
fn two_devices_mirrored() {
    try_seeds(
        Plan { members: 2, changes: false, block_bytes: 16 << 10, page_bytes: 4096, forgets: false, classes: false },
        20..23,
        1200,
    );
}

#[test]
fn devices_come_and_go() {
    try_seeds(
        Plan { members: 2, changes: true, block_bytes: 16 << 10, page_bytes: 4096, forgets: false, classes: false },
        40..44,
        1500,
    );
}

#[test]
fn three_devices_mirrored_with_coarse_blocks_and_power_cuts() {
    try_seeds(
        Plan { members: 3, changes: false, block_bytes: 64 << 10, page_bytes: 4096, forgets: true, classes: false },
        30..33,
        1200,
    );
}

#[test]
fn one_device_with_classes_and_power_cuts() {
    try_seeds(
        Plan { members: 1, changes: false, block_bytes: 16 << 10, page_bytes: 4096, forgets: true, classes: true },
        50..54,
        2500,
    );
}

#[test]
fn two_devices_with_classes_come_and_go() {
    try_seeds(
        Plan { members: 2, changes: true, block_bytes: 8 << 10, page_bytes: 4096, forgets: false, classes: true },
        60..64,
        2000,
    );
}
