//! The driver of an attachment: what comes out of `/dev/fuse` goes to the cell, and back.
//!
//! It acknowledges what the cell has acknowledged and nothing else. [`RemoteDisk`] connects again, keeps what no FLUSH has covered
//! and writes it again to a cell that may have lost it (DESIGN I9). What has to outlive this process (whether there are such writes,
//! and of which instance of the cell) is in memory that the keeper has as well.
//!
//! Never makes the file system and never ends it: the keeper does.

use super::shared::{Shared, State};
use super::spec::Spec;
use super::wire::{self, Message, TRANSFER_BYTES_MAX, Unique};
use device::real::{FuseChannel, SharedWords, passed_on};
use device::{Arena, Buf, FailKind, Io, Op, Outcome, Runtime, RuntimeConfig, World};
use nbd::client::{RemoteDisk, RemoteOptions, Standing};
use std::io::IoSlice;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// Memory for data under way. Requests wait in the kernel for more.
const DATA_BYTES_MAX: usize = 64 << 20;
/// Memory for what no FLUSH has covered. A write that finds it full has one sent first.
const KEEP_BYTES_MAX: usize = 64 << 20;
/// Messages taken in a row before other tasks have their turn.
const MESSAGES_AT_ONCE: usize = 64;
/// Between two looks at what is told to the keeper, and what it wants.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Between two questions how large the grid disk is: of these.
const TELLS_PER_SIZE: u32 = 10;
/// Between two attempts of a new driver to reach the cell.
const CONNECT_EVERY: Duration = Duration::from_millis(100);
/// For the last FLUSH, when the file system has ended.
const LAST_FLUSH: Duration = Duration::from_secs(30);
/// Pieces of one answer. The kernel takes 1024; a buffer of the arena has few.
const PIECES_MAX: usize = 64;

/// What a driver is started with.
#[derive(Clone, Copy, Debug)]
pub struct DriverDescriptors {
    /// The end of the file system.
    pub fuse: RawFd,
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
    /// The file system is not to be read.
    #[error("/dev/fuse: {0}")]
    Channel(std::io::Error),
    /// It ended with writes that no FLUSH has covered.
    #[error("the last FLUSH failed: {0} bytes were acknowledged and may be lost")]
    Unflushed(u64),
}

struct Drive {
    world: World,
    channel: FuseChannel,
    /// None: everything fails.
    disk: Option<Arc<RemoteDisk>>,
    arena: Arena,
    shared: Shared,
    size_bytes_at_start: u64,
    read_only: bool,
}

/// Serve an attachment until its file system ends.
///
/// # Errors
/// See [`DriverError`].
pub fn drive(spec: &std::path::Path, descriptors: DriverDescriptors) -> Result<(), DriverError> {
    let take = |fd| passed_on(fd).map_err(DriverError::Descriptors);
    let (fuse, words) = (take(descriptors.fuse)?, take(descriptors.words)?);
    let _locks = descriptors.locks.into_iter().flatten().map(take).collect::<Result<Vec<_>, _>>()?;
    let spec = Spec::read(spec)?;
    super::guard();
    let shared = Shared(SharedWords::of(words).map_err(DriverError::Descriptors)?);
    // One thread: more of them wake each other up for nothing, and the cell needs the processors.
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() })?;
    let world = runtime.world(seed());
    let channel = runtime.fuse_channel(fuse);
    runtime.block_on(async move {
        let disk = connect(&world, &spec, &shared).await;
        let mut drive = Drive {
            world,
            channel,
            disk,
            arena: Arena::new(DATA_BYTES_MAX),
            size_bytes_at_start: spec.size_bytes,
            read_only: spec.read_only,
            shared,
        };
        drive.begin();
        if descriptors.resumed {
            drive.resend();
        }
        Arc::new(drive).run().await
    })
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

    /// Have what the earlier driver had taken and not answered.
    fn resend(&self) {
        match self.channel.send(&[IoSlice::new(&wire::resend())]) {
            Ok(()) => info!("took over from a driver that died"),
            Err(error) => warn!(
                "took over from a driver that died; what it had taken and not answered hangs until `flashcell detach --force`: this \
                 kernel does not hand it out again ({error}; Linux 6.9 does)"
            ),
        }
    }

    fn size_bytes(&self) -> u64 {
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

    async fn run(self: Arc<Self>) -> Result<(), DriverError> {
        let beside = self.clone();
        self.world.spawn.spawn(Box::pin(async move { beside.keep_telling().await }));
        let mut buf = Buf::zeroed(wire::MESSAGE_BYTES_MAX);
        let mut in_a_row = 0;
        loop {
            let count = match self.channel.next(&mut buf).await {
                Ok(count) => count,
                // Unmounted (ENODEV), or ended by the kernel (ECONNABORTED).
                Err(error) if matches!(error.raw_os_error(), Some(19 | 103)) => break,
                Err(error) => return Err(DriverError::Channel(error)),
            };
            let (unique, message) =
                wire::decode(&buf[..count]).map_err(|error| DriverError::Wire(error.to_string()))?;
            self.take(unique, message).await;
            in_a_row += 1;
            if in_a_row == MESSAGES_AT_ONCE {
                in_a_row = 0;
                device::spawn::yield_now().await;
            }
        }
        self.end().await
    }

    /// The file system is gone: nobody will ask for a FLUSH any more.
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

    /// Carry out a request, beside the others. Waits for memory only.
    async fn take(self: &Arc<Self>, unique: Unique, message: Message<'_>) {
        match message {
            Message::Read { offset, len } => {
                let left = self.size_bytes().saturating_sub(offset);
                let len = u64::from(len).min(left) as usize;
                let (Some(disk), true) = (self.disk.clone(), len > 0) else {
                    return self.answer(unique, if self.disk.is_some() { 0 } else { EIO }, &[]);
                };
                let bufs = self.arena.alloc(len).await;
                let drive = self.clone();
                self.world.spawn.spawn(Box::pin(async move {
                    let done = disk.submit(Op::Read { offset, bufs }).await;
                    drive.answer_read(unique, done.outcome, &done.bufs);
                }));
            }
            Message::Write { offset, data } => {
                if self.read_only {
                    return self.answer(unique, EPERM, &[]);
                }
                let Some(disk) = self.disk.clone() else { return self.answer(unique, EIO, &[]) };
                let mut bufs = self.arena.alloc(data.len()).await;
                bufs.copy_in(0, data);
                let (drive, len) = (self.clone(), data.len() as u32);
                self.world.spawn.spawn(Box::pin(async move {
                    let op = Op::Write { offset, data: bufs.freeze(), fua: false };
                    let done = disk.submit(op).await;
                    drive.answer_change(&disk, unique, done.outcome, &wire::written(len));
                }));
            }
            Message::PunchHole { offset, len } | Message::ZeroRange { offset, len } => {
                if self.read_only {
                    return self.answer(unique, EPERM, &[]);
                }
                let Some(disk) = self.disk.clone() else { return self.answer(unique, EIO, &[]) };
                let (drive, may_unmap) = (self.clone(), matches!(message, Message::PunchHole { .. }));
                self.world.spawn.spawn(Box::pin(async move {
                    let done = if may_unmap {
                        // A loop device punches a hole for a discard and for zeroes that may be unmapped, so it must read as zeroes.
                        // Where that would be slow, the kernel is told that there is no such thing, and writes zeroes itself where it
                        // needs them.
                        disk.zero_fast(offset, len).await
                    } else {
                        disk.submit(Op::WriteZeroes { offset, len, fua: false, may_unmap }).await
                    };
                    drive.answer_change(&disk, unique, done.outcome, &[]);
                }));
            }
            Message::Sync => {
                let Some(disk) = self.disk.clone() else { return self.answer(unique, EIO, &[]) };
                let drive = self.clone();
                self.world.spawn.spawn(Box::pin(async move {
                    let done = disk.submit(Op::Flush).await;
                    if done.outcome == Outcome::Done && !disk.has_unflushed() {
                        // On this thread, and so at one moment with the look at what is kept.
                        drive.shared.set_unflushed(false);
                    }
                    drive.answer(unique, errno_of(done.outcome), &[]);
                }));
            }
            Message::Attributes => {
                self.answer(unique, 0, &wire::attributes(self.size_bytes(), self.read_only));
            }
            Message::StatFs => self.answer(unique, 0, &wire::stat_fs(self.size_bytes())),
            Message::Open => self.answer(unique, 0, &wire::opened()),
            Message::Release | Message::Destroy => self.answer(unique, 0, &[]),
            Message::NoAnswer => {}
            Message::Init { .. } | Message::Other => self.answer(unique, ENOSYS, &[]),
        }
    }

    /// A change is done: it is on record as not flushed before anybody hears of it.
    fn answer_change(&self, disk: &RemoteDisk, unique: Unique, outcome: Outcome, payload: &[u8]) {
        if outcome == Outcome::Done && disk.has_unflushed() {
            if let Standing::Up { stamp } = disk.standing()
                && stamp != self.shared.stamp()
            {
                self.shared.set_stamp(stamp);
            }
            self.shared.set_unflushed(true);
        }
        self.answer(unique, errno_of(outcome), payload);
    }

    fn answer_read(&self, unique: Unique, outcome: Outcome, bufs: &device::Bufs) {
        let errno = errno_of(outcome);
        if errno != 0 || bufs.pieces().len() > PIECES_MAX {
            return if errno == 0 {
                self.answer(unique, 0, &bufs.to_vec(0..bufs.len_bytes()))
            } else {
                self.answer(unique, errno, &[])
            };
        }
        let head = wire::answer(unique, 0, bufs.len_bytes());
        let mut pieces = vec![IoSlice::new(&head)];
        pieces.extend(bufs.pieces().iter().map(|piece| IoSlice::new(piece)));
        self.send(&pieces);
    }

    fn answer(&self, unique: Unique, errno: i32, payload: &[u8]) {
        let payload = if errno == 0 { payload } else { &[] };
        let head = wire::answer(unique, errno, payload.len());
        self.send(&[IoSlice::new(&head), IoSlice::new(payload)]);
    }

    fn send(&self, pieces: &[IoSlice<'_>]) {
        match self.channel.send(pieces) {
            Ok(()) => {}
            // Nobody waits for it any more, or the file system has ended.
            Err(error) if matches!(error.raw_os_error(), Some(2 | 19 | 103)) => {}
            Err(error) => error!("/dev/fuse does not take an answer: {error}"),
        }
    }
}

const EPERM: i32 = 1;
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

fn errno_of(outcome: Outcome) -> i32 {
    match outcome {
        Outcome::Done => 0,
        Outcome::Failed(FailKind::NoSpace) => ENOSPC,
        Outcome::Failed(FailKind::Unsupported) => EOPNOTSUPP,
        Outcome::Failed(FailKind::Invalid) => EINVAL,
        Outcome::Failed(_) | Outcome::Short(_) | Outcome::Unknown => EIO,
    }
}

const _: () = assert!(TRANSFER_BYTES_MAX as usize * 4 <= DATA_BYTES_MAX);
