//! The driver's front for `/dev/fuse`: messages of the kernel to requests, outcomes to answers.

use super::driver::{Drive, DriverError, errno_of};
use super::wire::{self, Message, Unique};
use device::real::FuseChannel;
use device::{Buf, Bufs, Op, Outcome};
use std::io::IoSlice;
use std::sync::Arc;
use tracing::{error, info, warn};

/// Messages taken in a row before other tasks have their turn.
const MESSAGES_AT_ONCE: usize = 64;
/// Pieces of one answer. The kernel takes 1024; a buffer of the arena has few.
const PIECES_MAX: usize = 64;

const EPERM: i32 = 1;
const EIO: i32 = 5;
const ENOSYS: i32 = 38;

struct Front {
    drive: Arc<Drive>,
    channel: FuseChannel,
}

/// Serve until the file system ends. `resumed`: an earlier driver has died.
pub(super) async fn serve(drive: &Arc<Drive>, channel: FuseChannel, resumed: bool) -> Result<(), DriverError> {
    let front = Arc::new(Front { drive: drive.clone(), channel });
    if resumed {
        front.resend();
    }
    let mut buf = Buf::zeroed(wire::MESSAGE_BYTES_MAX);
    let mut in_a_row = 0;
    loop {
        let count = match front.channel.next(&mut buf).await {
            Ok(count) => count,
            // Unmounted (ENODEV), or ended by the kernel (ECONNABORTED).
            Err(error) if matches!(error.raw_os_error(), Some(19 | 103)) => return Ok(()),
            Err(error) => return Err(DriverError::Channel(error)),
        };
        let (unique, message) = wire::decode(&buf[..count]).map_err(|error| DriverError::Wire(error.to_string()))?;
        front.take(unique, message).await;
        in_a_row += 1;
        if in_a_row == MESSAGES_AT_ONCE {
            in_a_row = 0;
            device::spawn::yield_now().await;
        }
    }
}

impl Front {
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

    /// Carry out a request, beside the others. Waits for memory only.
    async fn take(self: &Arc<Self>, unique: Unique, message: Message<'_>) {
        let (front, drive) = (self.clone(), &self.drive);
        match message {
            Message::Write { .. } | Message::PunchHole { .. } | Message::ZeroRange { .. } if drive.read_only => {
                self.answer(unique, EPERM, &[]);
            }
            Message::Read { .. } | Message::Write { .. } if drive.has_failed() => self.answer(unique, EIO, &[]),
            Message::Read { offset, len } => {
                let left = drive.size_bytes().saturating_sub(offset);
                let len = u64::from(len).min(left) as usize;
                if len == 0 {
                    return self.answer(unique, 0, &[]);
                }
                let bufs = drive.arena.alloc(len).await;
                self.spawn(async move {
                    let done = front.drive.perform(Op::Read { offset, bufs }).await;
                    front.answer_read(unique, done.outcome, &done.bufs);
                });
            }
            Message::Write { offset, data } => {
                let mut bufs = drive.arena.alloc(data.len()).await;
                bufs.copy_in(0, data);
                let len = data.len() as u32;
                self.spawn(async move {
                    let op = Op::Write { offset, data: bufs.freeze(), fua: false };
                    let done = front.drive.perform(op).await;
                    front.answer(unique, number_of(done.outcome), &wire::written(len));
                });
            }
            // A loop device punches a hole for a discard and for zeroes that may be unmapped, so it must read as zeroes. Where that would
            // be slow, the kernel is told that there is no such thing, and writes zeroes itself where it needs them.
            Message::PunchHole { offset, len } => self.spawn(async move {
                let done = front.drive.zero_fast(offset, len).await;
                front.answer(unique, number_of(done.outcome), &[]);
            }),
            Message::ZeroRange { offset, len } => self.spawn(async move {
                let op = Op::WriteZeroes { offset, len, fua: false, may_unmap: false };
                let done = front.drive.perform(op).await;
                front.answer(unique, number_of(done.outcome), &[]);
            }),
            Message::Sync => self.spawn(async move {
                let done = front.drive.perform(Op::Flush).await;
                front.answer(unique, number_of(done.outcome), &[]);
            }),
            Message::Attributes => {
                self.answer(unique, 0, &wire::attributes(drive.size_bytes(), drive.read_only));
            }
            Message::StatFs => self.answer(unique, 0, &wire::stat_fs(drive.size_bytes())),
            Message::Open => self.answer(unique, 0, &wire::opened()),
            Message::Release | Message::Destroy => self.answer(unique, 0, &[]),
            Message::NoAnswer => {}
            Message::Init { .. } | Message::Other => self.answer(unique, ENOSYS, &[]),
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.drive.world.spawn.spawn(Box::pin(task));
    }

    fn answer_read(&self, unique: Unique, outcome: Outcome, bufs: &Bufs) {
        let errno = number_of(outcome);
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

/// The kernel's number of an outcome; 0: done. NBD's numbers are Linux's.
fn number_of(outcome: Outcome) -> i32 {
    errno_of(outcome).map_or(0, |errno| errno.to_wire() as i32)
}
