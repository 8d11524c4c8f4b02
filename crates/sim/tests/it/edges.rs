//! Goal: a write that begins or ends within a part of 4 KiB keeps the part cached, and does not wait for the disk where flash has what
//! surrounds it. Method: a whole cell in virtual time on a disk of 8 ms and flash of 50 us; writes at odd sectors over what is cached and
//! what is not; every byte compared with a shadow, hits and times looked at.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, GridDisk, Session};
use celldisk::{CachingMode, GridDiskSpec, Role};
use device::layers::{Delay, Memory, Model};
use device::{Buf, Bufs, Device, Prng, World};
use sim::plain::{cell_on, in_a_world};
use std::sync::Arc;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SECTOR_BYTES: u64 = 512;
const DATA_BYTES: u64 = 32 * MIB;
const READS: u64 = 2000;
const DISK_TIME: Duration = Duration::from_millis(8);

struct Rig {
    cell: Arc<Cell>,
    grid_disk: Arc<GridDisk>,
    session: Session,
    world: World,
    shadow: Vec<u8>,
    prng: Prng,
}

impl Rig {
    async fn new(world: &World, mode: CachingMode) -> Rig {
        let device = |name: &str, size_bytes, model| -> Device {
            let prng = world.prng.fork(name);
            Delay::new(Memory::new(size_bytes), model, world.clock.clone(), world.spawn.clone(), prng)
        };
        let disk = device("disk", 256 * MIB, Model::fixed(DISK_TIME.as_nanos() as u64, 16));
        let devices = [disk, device("flash", 128 * MIB, Model::fixed(50_000, 16))];
        let mut config = CellConfig::default();
        config.cache.segment_bytes = 256 << 10;
        let cell = cell_on(&devices, &[("CD_disk01", Role::Disk), ("FD_00", Role::Flash)], config, world).await;
        cell.create_flash_cache(Some(96 * MIB), &[]).await.unwrap();
        let cell_disk = cell.store().catalog().member_named("CD_disk01").unwrap().0;
        let mut spec = GridDiskSpec::new("ODD", cell_disk, DATA_BYTES, world.clock.wall());
        spec.caching_mode = mode;
        let grid_disk = cell.create_grid_disk(spec, &mut |_, _| ()).await.unwrap();
        let session = grid_disk.open_session(Context::default());
        let (shadow, prng) = (vec![0; DATA_BYTES as usize], Prng::new(11));
        Rig { cell, grid_disk, session, world: world.clone(), shadow, prng }
    }

    /// How long a write of random bytes takes.
    async fn write(&mut self, offset: u64, len: u64) -> Duration {
        let begun = self.world.clock.now();
        let mut buf = Buf::zeroed(len as usize);
        buf.iter_mut().for_each(|byte| *byte = self.prng.below(256) as u8);
        self.shadow[offset as usize..(offset + len) as usize].copy_from_slice(&buf);
        self.session.write(offset, Bufs::from(buf).freeze(), false).await.unwrap();
        Duration::from_nanos(self.world.clock.now().ns_since(begun))
    }

    async fn read(&self, offset: u64, len: u64) {
        let (result, bufs) = self.session.read(offset, Bufs::from(Buf::zeroed(len as usize))).await;
        result.unwrap();
        let wanted = &self.shadow[offset as usize..(offset + len) as usize];
        assert_eq!(bufs.to_vec(0..len as usize), wanted, "{len} bytes at {offset}");
    }

    /// Read all of a range, so that it is cached.
    async fn warm(&self, bytes: u64) {
        for at in (0..bytes).step_by(16 << 10) {
            self.read(at, 16 * KIB).await;
        }
    }

    fn hits(&self) -> u64 {
        self.grid_disk.counters.cache_hits.requests.get()
    }
}

async fn odd_writes_over_what_is_cached(world: &World, mode: CachingMode) {
    let mut rig = Rig::new(world, mode).await;
    let bytes = 4 * MIB;
    rig.warm(bytes).await;
    let hits = rig.hits();
    for _ in 0..READS {
        let len = SECTOR_BYTES * (1 + rig.prng.below(40));
        let offset = rig.prng.below((bytes - len) / SECTOR_BYTES) * SECTOR_BYTES;
        rig.write(offset, len).await;
        let len = SECTOR_BYTES * (1 + rig.prng.below(40));
        let offset = rig.prng.below((bytes - len) / SECTOR_BYTES) * SECTOR_BYTES;
        rig.read(offset, len).await;
    }
    let hits = rig.hits() - hits;
    assert!(hits >= READS / 100 * 99, "{hits} of {READS} reads were hits in {mode:?}");
    // The disk has it too, and nothing else.
    rig.cell.flush_flash_cache(&[], &mut |_, _| ()).await.unwrap();
    rig.read(0, bytes).await;
}

#[test]
fn what_is_written_at_odd_sectors_stays_cached() {
    for mode in [CachingMode::WriteThrough, CachingMode::WriteBack, CachingMode::WriteBackOrdered] {
        in_a_world(async move |_, world| odd_writes_over_what_is_cached(&world, mode).await);
    }
}

#[test]
fn in_write_back_an_odd_write_waits_for_the_disk_only_where_flash_lacks_what_surrounds_it() {
    in_a_world(async |_, world| {
        let mut rig = Rig::new(&world, CachingMode::WriteBack).await;
        rig.warm(4 * MIB).await;
        // The first says in the label of the disk that flash has dirty data.
        rig.write(3 * MIB, 4 * KIB).await;
        for (offset, len) in [(512, 512), (64 * KIB + 512, 4 * KIB), (MIB + 1024, 8 * KIB), (2 * MIB - 512, 60 * KIB)] {
            let took = rig.write(offset, len).await;
            assert!(took < DISK_TIME / 4, "{len} bytes at {offset}, cached, took {took:?}");
        }
        // One turn of the disk, however long it is and whatever of it is odd.
        for (offset, len) in
            [(8 * MIB + 512, 512), (9 * MIB + 512, 8 * KIB), (10 * MIB + 512, 60 * KIB), (12 * MIB, 512)]
        {
            let took = rig.write(offset, len).await;
            assert!(took >= DISK_TIME, "{len} bytes at {offset} took {took:?} without what surrounds them");
            assert!(took < DISK_TIME * 5 / 4, "{len} bytes at {offset}, not cached, took {took:?}");
        }
        rig.read(0, 4 * MIB).await;
        rig.read(8 * MIB, 6 * MIB).await;
    });
}
