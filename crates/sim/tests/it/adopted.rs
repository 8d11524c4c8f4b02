//! Goal: an adopted volume reads as its owner left it, whoever that was, and goes as it came. Method: histories in virtual time of a cell over
//! a volume in memory, with clean stops, deaths of the process and power cuts, and somebody else who uses the volume while the cell is down as a file
//! system does: he changes the superblock, and blocks anywhere. Each read is compared with a flat copy; hits are counted, so that it is the cache that is tested.
//!
//! In write-back-ordered he uses it after clean stops alone, as its owner has given his word that he does not: what is dirty then must be noticed, and
//! neither given to the volume nor forgotten, until somebody says that the volume counts.
#![expect(clippy::unwrap_used, reason = "tests")]

use cell::{Cell, CellConfig, Context, NewDevice, Session};
use celldisk::{Beside, CachingMode, GridDiskSpec, METADATA_BYTES, Role};
use device::layers::{Action, Fault, Faults, Memory};
use device::{Buf, Bufs, Device, FailKind, Io, Outcome, Prng, Verb};
use sim::executor::Executor;
use sim::plain::{cell_on, full_of, in_an_executor, process_of};
use std::sync::Arc;
use std::time::Duration;

const PAGE: usize = 4096;
const PAGES: u64 = 1024;
/// The last page is not of 64 KiB that the volume has.
const VOLUME_BYTES: u64 = PAGES * PAGE as u64 - 3 * PAGE as u64;
const MIB: u64 = 1 << 20;
const JOURNAL_BYTES: u64 = MIB;

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
    /// In write-back-ordered.
    ordered: bool,
    hits: u64,
    noticed: u32,
    used_after_clean: u32,
    /// Starts at which flash had what the volume had not, and somebody had used that; and starts after which flash had some.
    apart: u32,
    dirty: u32,
}

/// What becomes of a life of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Clean,
    Killed,
    PowerCut,
}

impl Rig {
    async fn new(seed: u64, ordered: bool) -> Rig {
        let mut rig = Rig {
            disk: forgetful(64 * MIB),
            flash: forgetful(64 * MIB),
            metadata: forgetful(METADATA_BYTES + if ordered { JOURNAL_BYTES } else { 0 }),
            volume: forgetful(VOLUME_BYTES),
            wanted: vec![0; VOLUME_BYTES as usize],
            prng: Prng::new(seed),
            ordered,
            hits: 0,
            noticed: 0,
            used_after_clean: 0,
            apart: 0,
            dirty: 0,
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

    fn config(&self) -> CellConfig {
        CellConfig { sequential_cutoff_bytes: 0, journal_bytes: Some(JOURNAL_BYTES / 2), ..CellConfig::default() }
    }

    fn home(&self, cell: &Cell) -> celldisk::DeviceId {
        cell.store().catalog().member_named("CD_01_cell").unwrap().0
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
        let (cell, report) = Cell::open(self.devices(), self.config(), world).await.unwrap();
        self.noticed += u32::from(report.notes.iter().any(|note| note.contains("was used without the cell")));
        let disk = cell.grid_disk("SHOP").unwrap();
        if disk.offline().is_some() {
            self.apart += 1;
            assert!(
                self.ordered && cell.release(self.home(&cell), false).await.is_err(),
                "what is dirty is not forgotten"
            );
            self.wanted = self.below().await;
            cell.accept_stale("SHOP").await.unwrap();
            cell.set_caching("SHOP", Some(CachingMode::WriteBackOrdered), None).await.unwrap();
        }
        let session = cell.grid_disk("SHOP").unwrap().open_session(Context::default());
        let pages = VOLUME_BYTES / PAGE as u64;
        for _ in 0..300 {
            let page = self.prng.below(pages);
            match self.prng.below(10) {
                0..7 => self.read(&session, page).await,
                7..9 => {
                    let mut bytes = [self.prng.below(255) as u8 + 1; PAGE];
                    if page == 0 {
                        // Still the same file system, at any moment.
                        bytes[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
                    }
                    let mut buf = Buf::zeroed(PAGE);
                    buf.copy_from_slice(&bytes);
                    session.write(page * PAGE as u64, Bufs::from(buf).freeze(), false).await.unwrap();
                    self.wanted[page as usize * PAGE..][..PAGE].copy_from_slice(&bytes);
                }
                _ => session.flush().await.unwrap(),
            }
        }
        self.hits += cell.grid_disk("SHOP").unwrap().counters.cache_hits.requests.get();
        match end {
            End::Clean => {
                drop(session);
                self.dirty += u32::from(disk.dirty_bytes() > 0);
                cell.stop().await.unwrap();
                assert!(self.ordered || self.below().await == self.wanted, "the volume after a clean stop");
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

/// A rig whose volume has been adopted.
async fn adopted(executor: &Executor, seed: u64, ordered: bool) -> Rig {
    let rig = Rig::new(seed, ordered).await;
    {
        let (_process, world) = process_of(executor);
        let devices: Vec<Device> = vec![rig.disk.clone(), rig.flash.clone()];
        let names = [("CD_00_cell", Role::Disk), ("FD_00_cell", Role::Flash)];
        let cell = cell_on(&devices, &names, rig.config(), &world).await;
        cell.create_flash_cache(None, &[]).await.unwrap();
        let new = NewDevice {
            adopted_bytes: Some(VOLUME_BYTES),
            au_bytes: Some(64 << 10),
            ..NewDevice::new(rig.both(), "CD_01_cell", Role::Disk)
        };
        let caching_mode = if ordered { CachingMode::WriteBackOrdered } else { CachingMode::WriteThrough };
        let spec = GridDiskSpec {
            caching_mode,
            ..GridDiskSpec::new("SHOP", celldisk::DeviceId(0), VOLUME_BYTES, world.clock.wall())
        };
        cell.adopt(new, spec).await.unwrap();
        cell.stop().await.unwrap();
        assert!(rig.below().await == rig.wanted, "the volume after it was adopted");
    }
    rig
}

async fn history(executor: &Executor, seed: u64, ordered: bool) -> Rig {
    let mut rig = adopted(executor, seed, ordered).await;
    for _ in 0..6 {
        let end = [End::Clean, End::Clean, End::Killed, End::PowerCut][rig.prng.below(4) as usize];
        rig.live(executor, end).await;
        if rig.prng.below(2) == 0 && (end == End::Clean || !ordered) {
            // What was not flushed when a process died is in the volume's own cache, which somebody else reads as well.
            rig.use_behind().await;
            rig.used_after_clean += u32::from(end == End::Clean);
        }
    }
    rig.live(executor, End::Clean).await;
    let (_process, world) = process_of(executor);
    let (cell, _) = Cell::open(rig.devices(), rig.config(), world).await.unwrap();
    cell.release(rig.home(&cell), false).await.unwrap();
    assert!(cell.grid_disk("SHOP").is_none() && cell.store().catalog().members.len() == 2);
    cell.stop().await.unwrap();
    assert!(rig.below().await == rig.wanted, "the volume after it was released");
    rig
}

fn histories(ordered: bool) -> Vec<Rig> {
    (0..8).map(|seed| in_an_executor(async |executor| history(executor, seed, ordered).await)).collect()
}

#[test]
fn an_adopted_volume_reads_as_it_was_left() {
    let rigs = histories(false);
    let sum = |of: fn(&Rig) -> u64| rigs.iter().map(of).sum::<u64>();
    assert!(sum(|rig| rig.hits) > 500, "{} hits", sum(|rig| rig.hits));
    let (used, noticed) = (sum(|rig| rig.used_after_clean.into()), sum(|rig| rig.noticed.into()));
    assert!(
        used > 5 && used == noticed,
        "used behind the cell's back {used} times after a clean stop, noticed {noticed} times"
    );
}

#[test]
fn an_adopted_volume_in_write_back_reads_as_it_was_left() {
    let rigs = histories(true);
    let sum = |of: fn(&Rig) -> u64| rigs.iter().map(of).sum::<u64>();
    let (used, noticed) = (sum(|rig| rig.used_after_clean.into()), sum(|rig| rig.noticed.into()));
    assert!(
        used > 5 && used == noticed,
        "used behind the cell's back {used} times after a clean stop, noticed {noticed} times"
    );
    let (apart, dirty) = (sum(|rig| rig.apart.into()), sum(|rig| rig.dirty.into()));
    assert!(sum(|rig| rig.hits) > 500 && apart > 2 && dirty > 5, "{apart} times apart, {dirty} stops with dirty data");
}

/// The cell dies while a batch is being put in place; somebody has changed the superblock then, or nobody has.
async fn cut_off_batch(executor: &Executor, is_used: bool) {
    let mut rig = adopted(executor, 1, true).await;
    {
        let (process, world) = process_of(executor);
        let volume = Faults::new(rig.volume.clone(), world.spawn.clone());
        let both: Device = Beside::new(rig.metadata.clone(), volume.clone(), VOLUME_BYTES).unwrap();
        let devices = vec![rig.disk.clone() as Device, rig.flash.clone(), both];
        let (cell, _) = Cell::open(devices, rig.config(), world.clone()).await.unwrap();
        let session = cell.grid_disk("SHOP").unwrap().open_session(Context::default());
        // Until they are on flash: the ends of the volume are compared.
        for page in (0..32).cycle().take(96) {
            rig.read(&session, page).await;
        }
        let _ = volume.add(Fault::every(Verb::Write, Action::Fail(FailKind::Media)));
        for page in 100..164 {
            session.write(page * PAGE as u64, full_of(PAGE, 0xbb), false).await.unwrap();
            rig.wanted[page as usize * PAGE..][..PAGE].fill(0xbb);
        }
        session.flush().await.unwrap();
        world.clock.sleep(Duration::from_secs(60)).await;
        assert!(volume.struck() > 0, "a batch is in the journal, and not in place");
        process.kill();
    }
    if is_used {
        rig.change_below(1024 + 52, &[77]).await;
    }
    let before = rig.below().await;
    let (_process, world) = process_of(executor);
    let (cell, report) = Cell::open(rig.devices(), rig.config(), world).await.unwrap();
    let disk = cell.grid_disk("SHOP").unwrap();
    assert_eq!(disk.offline().is_some(), is_used, "{:?}", report.notes);
    let is_put = report.notes.iter().any(|note| note.contains("in its journal was put in place"));
    assert_eq!(is_put, !is_used, "{:?}", report.notes);
    if is_used {
        cell.stop().await.unwrap();
        assert!(rig.below().await == before, "nothing is written to the volume before the operator has chosen");
    } else {
        let session = disk.open_session(Context::default());
        for page in 0..VOLUME_BYTES / PAGE as u64 {
            rig.read(&session, page).await;
        }
    }
}

#[test]
fn a_batch_that_was_cut_off_is_not_put_over_what_others_have_made_of_the_volume() {
    for is_used in [true, false] {
        in_an_executor(async |executor| cut_off_batch(executor, is_used).await);
    }
}
