//! Goal: an adopted volume reads as its owner left it, whoever that was, and goes as it came. Method: histories in virtual time of a cell over
//! a volume in memory, with clean stops, deaths of the process and power cuts, and somebody else who uses the volume while the cell is down as a file
//! system does: he changes the superblock, and blocks anywhere. Each read is compared with a flat copy; hits are counted, so that it is the cache that is tested.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, NewDevice, Session};
use celldisk::{Beside, GridDiskSpec, METADATA_BYTES, Role};
use device::layers::Memory;
use device::{Buf, Bufs, Device, Io, Outcome, Prng};
use sim::executor::Executor;
use sim::plain::{cell_on, in_an_executor, process_of};
use std::sync::Arc;

const PAGE: usize = 4096;
const PAGES: u64 = 1024;
/// The last page is not of 64 KiB that the volume has.
const VOLUME_BYTES: u64 = PAGES * PAGE as u64 - 3 * PAGE as u64;
const MIB: u64 = 1 << 20;

fn forgetful(size_bytes: u64) -> Arc<Memory> {
    Memory::with_geometry(Memory::new(size_bytes).geometry(), true)
}

struct Rig {
    disk: Arc<Memory>,
    flash: Arc<Memory>,
    metadata: Arc<Memory>,
    volume: Arc<Memory>,
    /// What the volume should hold.
    wanted: Vec<u8>,
    prng: Prng,
    hits: u64,
    noticed: u32,
}

/// What becomes of a life of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Clean,
    Killed,
    PowerCut,
}

impl Rig {
    async fn new(seed: u64) -> Rig {
        let mut rig = Rig {
            disk: forgetful(64 * MIB),
            flash: forgetful(64 * MIB),
            metadata: forgetful(METADATA_BYTES),
            volume: forgetful(VOLUME_BYTES),
            wanted: vec![0; VOLUME_BYTES as usize],
            prng: Prng::new(seed),
            hits: 0,
            noticed: 0,
        };
        for page in 0..VOLUME_BYTES / PAGE as u64 {
            rig.change_below(page * PAGE as u64, &[page as u8 | 1; PAGE]).await;
        }
        // The magic of ext4, no journal.
        rig.change_below(1024 + 56, &[0x53, 0xef]).await;
        rig
    }

    /// Write to the volume past the cell, durably.
    async fn change_below(&mut self, at: u64, bytes: &[u8]) {
        self.wanted[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let from = at / PAGE as u64 * PAGE as u64;
        let volume: Device = self.volume.clone();
        let mut buf = Buf::zeroed(PAGE);
        buf.copy_from_slice(&self.wanted[from as usize..][..PAGE]);
        assert_eq!(volume.write(from, Bufs::from(buf).freeze(), true).await.outcome, Outcome::Done);
    }

    /// As a file system that is mounted and unmounted.
    async fn use_behind(&mut self) {
        let mounts = self.wanted[1024 + 52].wrapping_add(1);
        self.change_below(1024 + 52, &[mounts]).await;
        for _ in 0..self.prng.below(24) {
            let page = self.prng.below(VOLUME_BYTES / PAGE as u64 - 1) + 1;
            let fill = self.prng.below(255) as u8 + 1;
            self.change_below(page * PAGE as u64, &[fill; PAGE]).await;
        }
    }

    async fn below(&self) -> Vec<u8> {
        let volume: Device = self.volume.clone();
        let done = volume.read(0, Bufs::from(Buf::zeroed(VOLUME_BYTES as usize))).await;
        done.bufs.to_vec(0..VOLUME_BYTES as usize)
    }

    fn both(&self) -> Device {
        Beside::new(self.metadata.clone(), self.volume.clone(), VOLUME_BYTES).unwrap()
    }

    fn devices(&self) -> Vec<Device> {
        vec![self.disk.clone(), self.flash.clone(), self.both()]
    }

    async fn read(&self, session: &Session, page: u64) {
        let (outcome, bytes) = session.read(page * PAGE as u64, Bufs::from(Buf::zeroed(PAGE))).await;
        outcome.unwrap();
        let wanted = &self.wanted[page as usize * PAGE..][..PAGE];
        assert!(bytes.to_vec(0..PAGE) == wanted, "page {page} is not what was written last");
    }

    /// Reads and writes, until the cell ends like this.
    async fn live(&mut self, executor: &Executor, end: End) {
        let (process, world) = process_of(executor);
        let config = CellConfig { sequential_cutoff_bytes: 0, ..CellConfig::default() };
        let (cell, report) = Cell::open(self.devices(), config, world).await.unwrap();
        self.noticed += u32::from(report.notes.iter().any(|note| note.contains("was used without the cell")));
        let session = cell.grid_disk("SHOP").unwrap().open_session(Context::default());
        let pages = VOLUME_BYTES / PAGE as u64;
        for _ in 0..300 {
            let page = self.prng.below(pages);
            match self.prng.below(10) {
                0..7 => self.read(&session, page).await,
                7..9 => {
                    let fill = self.prng.below(255) as u8 + 1;
                    session.write(page * PAGE as u64, sim::plain::full_of(PAGE, fill), false).await.unwrap();
                    self.wanted[page as usize * PAGE..][..PAGE].fill(fill);
                    if page == 0 {
                        // Still the same file system.
                        let mut head = Buf::zeroed(PAGE);
                        head.fill(fill);
                        head[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
                        self.wanted[..PAGE].copy_from_slice(&head);
                        session.write(0, Bufs::from(head).freeze(), false).await.unwrap();
                    }
                }
                _ => session.flush().await.unwrap(),
            }
        }
        self.hits += cell.grid_disk("SHOP").unwrap().counters.cache_hits.requests.get();
        match end {
            End::Clean => {
                drop(session);
                cell.stop().await.unwrap();
                assert!(self.below().await == self.wanted, "the volume after a clean stop");
            }
            End::Killed => process.kill(),
            End::PowerCut => {
                session.flush().await.unwrap();
                process.kill();
                for device in [&self.disk, &self.flash, &self.metadata, &self.volume] {
                    device.power_cut();
                }
            }
        }
    }
}

async fn history(executor: &Executor, seed: u64) -> (u64, u32, u32) {
    let mut rig = Rig::new(seed).await;
    {
        let (_process, world) = process_of(executor);
        let devices: Vec<Device> = vec![rig.disk.clone(), rig.flash.clone()];
        let names = [("CD_00_cell", Role::Disk), ("FD_00_cell", Role::Flash)];
        let cell = cell_on(&devices, &names, CellConfig::default(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let new = NewDevice {
            adopted_bytes: Some(VOLUME_BYTES),
            au_bytes: Some(64 << 10),
            ..NewDevice::new(rig.both(), "CD_01_cell", Role::Disk)
        };
        let spec = GridDiskSpec::new("SHOP", celldisk::DeviceId(0), 0, world.clock.wall());
        cell.adopt(new, spec).await.unwrap();
        cell.stop().await.unwrap();
        assert!(rig.below().await == rig.wanted, "the volume after it was adopted");
    }
    let mut used_after_clean = 0;
    for _ in 0..6 {
        let end = [End::Clean, End::Clean, End::Killed, End::PowerCut][rig.prng.below(4) as usize];
        rig.live(executor, end).await;
        if rig.prng.below(2) == 0 {
            // What was not flushed when a process died is in the volume's own cache, which somebody else reads as well.
            rig.use_behind().await;
            used_after_clean += u32::from(end == End::Clean);
        }
    }
    rig.live(executor, End::Clean).await;
    let (_process, world) = process_of(executor);
    let (cell, _) = Cell::open(rig.devices(), CellConfig::default(), world).await.unwrap();
    let id = cell.store().catalog().member_named("CD_01_cell").unwrap().0;
    cell.release(id).await.unwrap();
    assert!(cell.grid_disk("SHOP").is_none() && cell.store().catalog().members.len() == 2);
    cell.stop().await.unwrap();
    assert!(rig.below().await == rig.wanted, "the volume after it was released");
    (rig.hits, used_after_clean, rig.noticed)
}

#[test]
fn an_adopted_volume_reads_as_it_was_left() {
    let (mut hits, mut used, mut noticed) = (0, 0, 0);
    for seed in 0..6 {
        let of = in_an_executor(async |executor| history(executor, seed).await);
        (hits, used, noticed) = (hits + of.0, used + of.1, noticed + of.2);
    }
    assert!(hits > 500, "{hits} hits");
    assert!(
        used > 5 && used == noticed,
        "used behind the cell's back {used} times after a clean stop, noticed {noticed} times"
    );
}
