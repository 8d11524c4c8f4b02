//! The driver of an attachment: what the kernel asks goes to the cell, and back. Which way it comes is the front's: `fuse_front`, `nbd_front`, `ublk_front`.
//!
//! A driver that takes over keeps none of the writes of the one that died, so nobody could write them again. It has the cell flush under the
//! stamp they were acknowledged under before it serves anything; if that fails everything is answered EIO.
//!
//! It acknowledges what the cell has acknowledged and nothing else. [`RemoteDisk`] connects again, keeps what no FLUSH has covered
//! and writes it again to a cell that may have lost it (DESIGN I9). What has to outlive this process (whether there are such writes,
//! and of which instance of the cell) is in memory that the keeper has as well.
//!
//! Never makes the device and never ends it: the keeper does. (A ublk device that the keeper has made is started by who serves it: the kernel
//! will have it so.)

use super::shared::{Shared, State};
use super::spec::Spec;
use super::wire::TRANSFER_BYTES_MAX;
use super::{fuse_front, nbd_front, ublk_front};
use device::real::{FuseChannel, SharedWords, UblkEnd, passed_on};
use device::sync::lock;
use device::{Arena, Completed, Conn, FailKind, Io, Op, Outcome, Runtime, RuntimeConfig, World};
use nbd::client::{RemoteDisk, RemoteOptions, Standing};
use nbd::codec::Errno;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::{error, info, warn};

/// Memory for data under way. Requests wait in the kernel for more.
const DATA_BYTES_MAX: usize = 64 << 20;
/// Memory for what no FLUSH has covered. A write that finds it full has one sent first.
const KEEP_BYTES_MAX: usize = 64 << 20;
/// Between two looks at what is told to the keeper, and what it wants.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Between two questions how large the grid disk is.
const ASK_SIZE_EVERY: Duration = Duration::from_secs(2);
/// Between two attempts of a new driver to reach the cell.
const CONNECT_EVERY: Duration = Duration::from_millis(100);
/// For the last FLUSH, when the device has ended.
const LAST_FLUSH: Duration = Duration::from_secs(30);

/// Where the kernel's requests come out.
#[derive(Clone, Copy, Debug)]
pub enum DriverEnd {
    /// The end of a FUSE file system.
    Fuse(RawFd),
    /// The end of a connection of the kernel's NBD client.
    Nbd(RawFd),
    /// A ublk device, by its number.
    Ublk(u32),
}

/// What a driver is started with.
#[derive(Clone, Copy, Debug)]
pub struct DriverDescriptors {
    /// Where requests come from.
    pub end: DriverEnd,
    /// The numbers shared with the keeper.
    pub words: RawFd,
    /// The locks that say that the attachment lives.
    pub locks: [Option<RawFd>; 2],
    /// An earlier driver has died.
    pub resumed: bool,
}

/// Why a driver ended.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// Started by hand.
    #[error("this is started by `flashcell attach`, not by hand: {0}")]
    Descriptors(std::io::Error),
    /// What was to be done is not told.
    #[error(transparent)]
    Spec(#[from] super::AttachError),
    /// No executor.
    #[error(transparent)]
    Runtime(#[from] device::RuntimeError),
    /// The kernel does not speak as it should.
    #[error("{0}")]
    Wire(String),
    /// The kernel's NBD client has dropped its connection, and not because it was told to.
    #[error("the kernel has dropped its connection: {0}")]
    Dropped(device::NetError),
    /// The file system is not to be read.
    #[error("/dev/fuse: {0}")]
    Channel(std::io::Error),
    /// A ublk device is not to be served.
    #[error("ublk: {step}: {source}")]
    Ublk {
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// It ended with writes that no FLUSH has covered.
    #[error("the last FLUSH failed: {0} bytes were acknowledged and may be lost")]
    Unflushed(u64),
}

/// What carries requests out, whichever way they come.
pub(super) struct Drive {
    pub(super) world: World,
    /// None: everything fails.
    disk: Option<Arc<RemoteDisk>>,
    pub(super) arena: Arena,
    shared: Shared,
    /// Bytes that an earlier driver acknowledged and did not flush, until the cell has made them durable.
    inherited: Mutex<Option<u64>>,
    size_bytes_at_start: u64,
    pub(super) read_only: bool,
}

/// The error that the kernel is answered an outcome with; none: it is done.
pub(super) fn errno_of(outcome: Outcome) -> Option<Errno> {
    match outcome {
        Outcome::Done => None,
        Outcome::Failed(FailKind::NoSpace) => Some(Errno::NoSpc),
        Outcome::Failed(FailKind::Unsupported) => Some(Errno::NotSup),
        Outcome::Failed(FailKind::Invalid) => Some(Errno::Inval),
        Outcome::Failed(_) | Outcome::Short(_) | Outcome::Unknown => Some(Errno::Io),
    }
}

enum Front {
    Fuse(FuseChannel),
    Nbd(Arc<dyn Conn>),
    Ublk(UblkEnd),
}

/// Serve an attachment until its device ends.
///
/// # Errors
/// See [`DriverError`].
pub fn drive(spec: &std::path::Path, descriptors: DriverDescriptors) -> Result<(), DriverError> {
    let take = |fd| passed_on(fd).map_err(DriverError::Descriptors);
    let words = take(descriptors.words)?;
    let _locks = descriptors.locks.into_iter().flatten().map(take).collect::<Result<Vec<_>, _>>()?;
    let spec = Spec::read(spec)?;
    super::guard();
    let shared = Shared(SharedWords::of(words).map_err(DriverError::Descriptors)?);
    // One thread: more of them wake each other up for nothing, and the cell needs the processors.
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() })?;
    let world = runtime.world(seed());
    let front = match descriptors.end {
        DriverEnd::Fuse(end) => Front::Fuse(runtime.fuse_channel(take(end)?)),
        DriverEnd::Nbd(end) => Front::Nbd(runtime.connection(take(end)?).map_err(DriverError::Descriptors)?),
        DriverEnd::Ublk(index) => Front::Ublk(runtime.ublk(index)),
    };
    let tag = spec.device_tag();
    runtime.block_on(async move {
        let disk = connect(&world, &spec, &shared).await;
        let drive = Arc::new(Drive::new(world, disk, shared, spec.size_bytes, spec.read_only));
        let beside = drive.clone();
        drive.world.spawn.spawn(Box::pin(async move { beside.keep_telling().await }));
        let beside = drive.clone();
        drive.world.spawn.spawn(Box::pin(async move { beside.keep_asking_size().await }));
        drive.begin().await;
        let served = match front {
            Front::Fuse(channel) => fuse_front::serve(&drive, channel, descriptors.resumed).await,
            // What was taken and not answered, the kernel sends again by itself.
            Front::Nbd(conn) => nbd_front::serve(&drive, conn).await,
            Front::Ublk(end) => ublk_front::serve(&drive, &end, tag, descriptors.resumed).await,
        };
        drive.end().await?;
        served
    })
}

/// Who this attachment is to the cell; none when the kernel has no random numbers: one that others may have would end their connections.
fn lineage(shared: &Shared) -> Option<u128> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(shared.lineage(u128::from_ne_bytes(random)))
}

fn seed() -> u64 {
    let mut seed = [0; 8];
    // Without one the pauses of this process are as those of another.
    let _ = getrandom::fill(&mut seed);
    u64::from_ne_bytes(seed)
}

/// The cell, as soon as it is there; none when it does not come in time.
async fn connect(world: &World, spec: &Spec, shared: &Shared) -> Option<Arc<RemoteDisk>> {
    let wait = Duration::from_secs(spec.on_loss_seconds);
    let deadline = world.clock.now().after(wait.max(Duration::from_secs(1)));
    let options = RemoteOptions {
        connections: spec.connections,
        keep_bytes_max: KEEP_BYTES_MAX,
        reconnect_for: wait,
        resend_unanswered: true,
        lineage: lineage(shared),
        patient: true,
        ..RemoteOptions::default()
    };
    let mut told = false;
    loop {
        if shared.is_to_give_up() {
            return None;
        }
        let mut options = options.clone();
        options.client.contexts.push("flashcell:instance".to_owned());
        match RemoteDisk::connect(world, &spec.device_address(), &spec.export(), options).await {
            Ok(disk) => return Some(Arc::new(disk)),
            Err(error) if world.clock.now() >= deadline => {
                error!("the cell does not answer: {error}");
                return None;
            }
            Err(error) if !told => {
                warn!("the cell does not answer yet: {error}");
                told = true;
                if shared.state() != State::Starting {
                    shared.set_state(State::Waiting);
                }
            }
            Err(_) => {}
        }
        world.clock.sleep(CONNECT_EVERY).await;
    }
}

impl Drive {
    fn new(
        world: World,
        disk: Option<Arc<RemoteDisk>>,
        shared: Shared,
        size_bytes_at_start: u64,
        read_only: bool,
    ) -> Drive {
        let inherited = Mutex::new(shared.is_unflushed().then(|| shared.unflushed_bytes()));
        let arena = Arena::new(DATA_BYTES_MAX);
        Drive { world, disk, arena, shared, inherited, size_bytes_at_start, read_only }
    }

    /// Settle what an earlier driver has left: the cell makes it durable under the same stamp, or everything fails.
    async fn begin(&self) {
        let inherited = *lock(&self.inherited);
        if let Some(bytes) = inherited {
            let is_durable = match (&self.disk, self.shared.stamp()) {
                (Some(disk), Some(stamp)) => disk.flush_under(stamp).await,
                _ => false,
            };
            if is_durable {
                self.shared.set_unflushed_bytes(0);
                self.shared.set_unflushed(false);
                *lock(&self.inherited) = None;
            } else {
                error!(
                    bytes,
                    "writes that an earlier driver acknowledged and did not flush may be lost: EIO until detached"
                );
                self.shared.set_given_up_bytes(bytes);
                if let Some(disk) = &self.disk {
                    disk.give_up();
                }
            }
        }
        self.tell();
    }

    /// Bytes that were acknowledged and not flushed, here or by an earlier driver.
    fn unflushed_bytes(&self) -> u64 {
        let inherited = lock(&self.inherited).unwrap_or(0);
        inherited + self.disk.as_ref().map_or(0, |disk| disk.unflushed_bytes())
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.disk.as_ref().map_or(self.shared.size_bytes().max(self.size_bytes_at_start), |d| d.geometry().size_bytes)
    }

    /// What the keeper may know.
    fn tell(&self) {
        let state = match self.disk.as_ref().map(|disk| disk.standing()) {
            Some(Standing::Dead) | None => State::Failed,
            // Nothing is served before it is settled.
            Some(_) if lock(&self.inherited).is_some() => State::Waiting,
            Some(Standing::Up { .. }) => State::Up,
            Some(Standing::Waiting) => State::Waiting,
        };
        let before = self.shared.state();
        if state != before {
            match state {
                State::Up => info!("up"),
                State::Waiting => warn!("the cell is away: requests wait"),
                _ => error!("everything is answered EIO until it is detached"),
            }
            self.shared.set_state(state);
        }
        if state != State::Failed {
            self.shared.set_unflushed_bytes(self.unflushed_bytes());
        }
        self.shared.set_size_bytes(self.size_bytes());
    }

    /// The device is gone, or the way its requests come: nobody will ask for a FLUSH here any more.
    async fn end(&self) -> Result<(), DriverError> {
        let Some(disk) = &self.disk else { return Ok(()) };
        if !self.shared.is_unflushed() || matches!(disk.standing(), Standing::Dead) {
            return Ok(());
        }
        let flush = disk.submit(Op::Flush);
        let late = self.world.clock.sleep(LAST_FLUSH);
        match futures_util::future::select(flush, late).await {
            futures_util::future::Either::Left((done, _)) if done.outcome == Outcome::Done => {
                self.shared.set_unflushed(false);
                Ok(())
            }
            _ => Err(DriverError::Unflushed(disk.unflushed_bytes())),
        }
    }

    async fn keep_telling(self: Arc<Self>) {
        loop {
            self.world.clock.sleep(TELL_EVERY).await;
            if let Some(disk) = &self.disk {
                if self.shared.is_to_give_up() && !matches!(disk.standing(), Standing::Dead) {
                    self.shared.set_given_up_bytes(self.unflushed_bytes());
                    disk.give_up();
                }
                disk.look_for_loss();
            }
            self.tell();
        }
    }

    /// Apart from what is told: a cell that does not answer is waited for here. The requests notice that it does not.
    async fn keep_asking_size(self: Arc<Self>) {
        let Some(disk) = &self.disk else { return };
        loop {
            self.world.clock.sleep(ASK_SIZE_EVERY).await;
            if matches!(disk.standing(), Standing::Up { .. })
                && let Ok(true) = disk.look_for_growth().await
            {
                info!("the grid disk has grown");
            }
        }
    }

    /// One that everything fails on, as after a loss.
    #[cfg(test)]
    pub(super) fn failed(world: World, size_bytes: u64) -> std::io::Result<Drive> {
        let shared = Shared(SharedWords::new()?);
        Ok(Drive::new(world, None, shared, size_bytes, false))
    }

    /// Whether everything fails.
    pub(super) fn has_failed(&self) -> bool {
        self.disk.as_ref().is_none_or(|disk| disk.is_dead())
    }

    /// Longest read and write.
    pub(super) fn transfer_bytes_max(&self) -> u32 {
        self.disk.as_ref().map_or(TRANSFER_BYTES_MAX, |disk| disk.geometry().transfer_bytes_max)
    }

    /// Have the cell carry it out. A change is on record as not flushed before anybody hears of it.
    pub(super) async fn perform(&self, op: Op) -> Completed {
        let Some(disk) = &self.disk else { return Completed::bare(Outcome::Failed(FailKind::Gone)) };
        let (is_read, is_flush) = (matches!(op, Op::Read { .. }), matches!(op, Op::Flush));
        let done = disk.submit(op).await;
        if done.outcome == Outcome::Done && is_flush {
            // On this thread, and so at one moment with the look at what is kept.
            if !disk.has_unflushed() {
                self.shared.set_unflushed(false);
            }
        } else if !is_read {
            self.note_change(disk, done.outcome);
        }
        done
    }

    /// Zeroes, where that is quick; else it is not supported.
    pub(super) async fn zero_fast(&self, offset: u64, len: u64) -> Completed {
        let Some(disk) = &self.disk else { return Completed::bare(Outcome::Failed(FailKind::Gone)) };
        let done = disk.zero_fast(offset, len).await;
        self.note_change(disk, done.outcome);
        done
    }

    fn note_change(&self, disk: &RemoteDisk, outcome: Outcome) {
        if outcome == Outcome::Done && disk.has_unflushed() {
            if let Standing::Up { stamp } = disk.standing()
                && stamp != self.shared.stamp()
            {
                self.shared.set_stamp(stamp);
            }
            // A driver that takes over says how much there was.
            self.shared.set_unflushed_bytes(disk.unflushed_bytes());
            self.shared.set_unflushed(true);
        }
    }
}

const _: () = assert!(TRANSFER_BYTES_MAX as usize * 4 <= DATA_BYTES_MAX);

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use device::{Address, Completion, Geometry, SharedBuf};
    use nbd::{FrontEnd, FrontEndLimits};
    use std::sync::atomic::{AtomicBool, Ordering};

    const SIZE_BYTES: u64 = 1 << 20;

    /// A disk with a volatile cache.
    #[derive(Default)]
    struct Disk {
        now: Mutex<Vec<u8>>,
        durable: Mutex<Vec<u8>>,
        fails_flushes: AtomicBool,
    }

    struct DiskDevice(Arc<Disk>);

    impl Io for DiskDevice {
        fn geometry(&self) -> Geometry {
            Geometry {
                size_bytes: SIZE_BYTES,
                logical_bytes: 512,
                page_bytes: 4096,
                rotational: false,
                volatile_cache: true,
                discard_bytes: 0,
                fast_zeroes: false,
                transfer_bytes_max: 1 << 20,
                class: device::Class::Durable,
            }
        }

        fn submit(&self, op: Op) -> Completion {
            let disk = &self.0;
            let mut now = lock(&disk.now);
            now.resize(SIZE_BYTES as usize, 0);
            Completion::ready(match op {
                Op::Read { offset, mut bufs } => {
                    let len = bufs.len_bytes();
                    bufs.copy_in(0, &now[offset as usize..][..len]);
                    Completed { outcome: Outcome::Done, bufs, extents: Vec::new() }
                }
                Op::Write { offset, data, .. } => {
                    let bytes = data.to_vec(0..data.len_bytes());
                    now[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                    Completed::bare(Outcome::Done)
                }
                Op::Flush if disk.fails_flushes.load(Ordering::SeqCst) => {
                    Completed::bare(Outcome::Failed(FailKind::Media))
                }
                Op::Flush => {
                    lock(&disk.durable).clone_from(&now);
                    Completed::bare(Outcome::Done)
                }
                _ => Completed::bare(Outcome::Failed(FailKind::Unsupported)),
            })
        }
    }

    struct Served {
        front: FrontEnd,
        listener: Arc<dyn device::Listener>,
    }

    async fn serve(world: &World, address: &Address, disk: &Arc<Disk>, stamp: u128) -> Served {
        let grid_disk = cell::GridDisk::new(cell::GridDiskParts {
            id: 1,
            name: "data".into(),
            disk: Arc::new(DiskDevice(disk.clone())),
            size_bytes: SIZE_BYTES,
            arena: Arena::new(8 << 20),
            block_bytes: 16384,
            alarm: Arc::default(),
            sequential_cutoff_bytes: cell::SEQUENTIAL_CUTOFF_BYTES,
            sabotage: None,
        });
        let cell = cell::Cell::of_grid_disks(vec![grid_disk], stamp, world.clone());
        let front = FrontEnd::new(cell, world.clone(), Arena::new(16 << 20), FrontEndLimits::default());
        let listener = world.net.listen(address).await.unwrap();
        front.serve(listener.clone());
        Served { front, listener }
    }

    async fn driver(world: &World, address: &Address, words: &SharedWords) -> Drive {
        let shared = Shared(SharedWords::of(words.fd().try_clone().unwrap()).unwrap());
        let mut options = RemoteOptions { lineage: lineage(&shared), patient: true, ..RemoteOptions::default() };
        options.client.contexts.push("flashcell:instance".to_owned());
        let disk = RemoteDisk::connect(world, address, "data", options).await.unwrap();
        Drive::new(world.clone(), Some(Arc::new(disk)), shared, SIZE_BYTES, false)
    }

    /// What the cell does between the death of one driver and the start of the next.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Cell {
        Stays,
        FailsFlushes,
        /// The cell is another instance before the next driver has connected.
        Restarts,
        /// The same, after it has connected.
        RestartsLater,
    }

    /// State, bytes not flushed, bytes given up, and whether the write of the first driver is durable.
    fn taken_over(what: Cell) -> (State, u64, u64, bool) {
        let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Unix(dir.path().join("nbd"));
        let world = runtime.world(1);
        runtime.block_on(async move {
            let disk = Arc::new(Disk::default());
            let words = SharedWords::new().unwrap();
            let restart = async |served: Served| {
                served.listener.close();
                served.front.stop().await;
                let durable = lock(&disk.durable).clone();
                *lock(&disk.now) = durable;
                serve(&world, &address, &disk, 2).await
            };
            let mut served = serve(&world, &address, &disk, 1).await;
            let first = driver(&world, &address, &words).await;
            first.begin().await;
            let data = SharedBuf::from(vec![7; 4096]).into();
            assert_eq!(first.perform(Op::Write { offset: 0, data, fua: false }).await.outcome, Outcome::Done);
            assert!(first.shared.is_unflushed() && first.shared.unflushed_bytes() == 4096);
            drop(first);
            disk.fails_flushes.store(what == Cell::FailsFlushes, Ordering::SeqCst);
            if what == Cell::Restarts {
                served = restart(served).await;
            }
            let next = driver(&world, &address, &words).await;
            next.tell();
            assert!(next.shared.state() != State::Up && next.shared.unflushed_bytes() == 4096, "before it is settled");
            if what == Cell::RestartsLater {
                served = restart(served).await;
            }
            next.begin().await;
            let is_durable = lock(&disk.durable).first() == Some(&7);
            let serves = next.perform(Op::Flush).await.outcome == Outcome::Done;
            assert_eq!(serves, next.shared.state() == State::Up, "FLUSH");
            drop(served);
            let shared = &next.shared;
            (shared.state(), shared.unflushed_bytes(), shared.given_up_bytes(), is_durable)
        })
    }

    #[test]
    fn a_driver_that_takes_over_flushes_before_it_serves() {
        assert_eq!(taken_over(Cell::Stays), (State::Up, 0, 0, true));
    }

    #[test]
    fn a_driver_that_takes_over_what_is_lost_answers_eio() {
        for what in [Cell::FailsFlushes, Cell::Restarts, Cell::RestartsLater] {
            assert_eq!(taken_over(what), (State::Failed, 4096, 4096, false));
        }
    }
}
