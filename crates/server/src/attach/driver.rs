//! The driver of an attachment: what the kernel asks goes to the cell, and back. Which way it comes is the front's: `fuse_front`, `nbd_front`, `ublk_front`.
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
use device::{Arena, Completed, Conn, FailKind, Io, Op, Outcome, Runtime, RuntimeConfig, World};
use nbd::client::{RemoteDisk, RemoteOptions, Standing};
use nbd::codec::Errno;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// Memory for data under way. Requests wait in the kernel for more.
const DATA_BYTES_MAX: usize = 64 << 20;
/// Memory for what no FLUSH has covered. A write that finds it full has one sent first.
const KEEP_BYTES_MAX: usize = 64 << 20;
/// Between two looks at what is told to the keeper, and what it wants.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Between two questions how large the grid disk is: of these.
const TELLS_PER_SIZE: u32 = 10;
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
        let mut drive = Drive {
            world,
            disk,
            arena: Arena::new(DATA_BYTES_MAX),
            size_bytes_at_start: spec.size_bytes,
            read_only: spec.read_only,
            shared,
        };
        drive.begin();
        let drive = Arc::new(drive);
        let beside = drive.clone();
        drive.world.spawn.spawn(Box::pin(async move { beside.keep_telling().await }));
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
    /// Look what an earlier driver has left: what it had acknowledged and not flushed is not known here, so the cell must still
    /// have it.
    fn begin(&mut self) {
        if let Some(disk) = &self.disk
            && self.shared.is_unflushed()
        {
            let now = match disk.standing() {
                Standing::Up { stamp } => stamp,
                _ => None,
            };
            if now.is_none() || now != self.shared.stamp() {
                error!(
                    "driver and cell have both gone, and with them writes that were acknowledged and not flushed: EIO until detached"
                );
                self.shared.set_given_up_bytes(self.shared.unflushed_bytes());
                self.disk = None;
            }
        }
        self.tell();
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.disk.as_ref().map_or(self.shared.size_bytes().max(self.size_bytes_at_start), |d| d.geometry().size_bytes)
    }

    /// What the keeper may know.
    fn tell(&self) {
        let state = match self.disk.as_ref().map(|disk| disk.standing()) {
            Some(Standing::Up { .. }) => State::Up,
            Some(Standing::Waiting) => State::Waiting,
            Some(Standing::Dead) | None => State::Failed,
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
        if let Some(disk) = self.disk.as_ref().filter(|_| state != State::Failed) {
            self.shared.set_unflushed_bytes(disk.unflushed_bytes());
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
        let mut turn: u32 = 0;
        loop {
            self.world.clock.sleep(TELL_EVERY).await;
            if let Some(disk) = &self.disk {
                if self.shared.is_to_give_up() && !matches!(disk.standing(), Standing::Dead) {
                    self.shared.set_given_up_bytes(disk.unflushed_bytes());
                    disk.give_up();
                }
                disk.look_for_loss();
                turn = turn.wrapping_add(1);
                if turn.is_multiple_of(TELLS_PER_SIZE) && matches!(disk.standing(), Standing::Up { .. }) {
                    // A cell that does not answer is seen by the requests.
                    if let Ok(true) = disk.look_for_growth().await {
                        info!("the grid disk has grown");
                    }
                }
            }
            self.tell();
        }
    }

    /// One that everything fails on, as after a loss.
    #[cfg(test)]
    pub(super) fn failed(world: World, size_bytes: u64) -> std::io::Result<Drive> {
        let shared = Shared(SharedWords::new()?);
        let arena = Arena::new(DATA_BYTES_MAX);
        Ok(Drive { world, disk: None, arena, shared, size_bytes_at_start: size_bytes, read_only: false })
    }

    /// Whether everything fails.
    pub(super) fn has_failed(&self) -> bool {
        self.disk.is_none()
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
            self.shared.set_unflushed(true);
        }
    }
}

const _: () = assert!(TRANSFER_BYTES_MAX as usize * 4 <= DATA_BYTES_MAX);
