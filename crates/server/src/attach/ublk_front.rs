//! The driver's front for a ublk device: one task for each tag takes its requests, has them carried out and answers.
//!
//! A driver that takes over from one that died says so to the kernel first, which then hands out again what had no answer.

use super::driver::{Drive, DriverError, errno_of};
use device::real::{UblkDevice, UblkEnd, UblkOp, UblkQueue, UblkRequest};
use device::sync::{Receiver, one_shot};
use device::{Completed, Op};
use futures_util::future::{Either, select, try_join_all};
use nbd::codec::Errno;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// For the kernel to be through with a driver that has died: up to Linux 6.6 it looks every five seconds.
const TAKE_OVER: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_millis(20);

const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

fn step(step: &'static str) -> impl Fn(io::Error) -> DriverError {
    move |source| DriverError::Ublk { step, source }
}

/// Serve until the device ends. `tag`: what its device was made with. `resumed`: an earlier driver has died.
pub(super) async fn serve(drive: &Arc<Drive>, end: &UblkEnd, tag: u64, resumed: bool) -> Result<(), DriverError> {
    let device = end.device();
    // Numbers of devices are used again: it may be another's by now.
    let find = || match device.has_tag(tag) {
        true => Ok(()),
        false => Err(step("find the device")(io::Error::from_raw_os_error(ENODEV))),
    };
    find()?;
    if resumed {
        take_over(drive, &device).await?;
    }
    let queue = Arc::new(end.open().map_err(step("open the queue"))?);
    // From here on its number cannot become another's.
    find()?;
    let tags: Vec<_> = queue
        .tags()
        .map(|tag| {
            let (reply, ended) = one_shot();
            let (drive_of_tag, queue) = (drive.clone(), queue.clone());
            let serve = async move { reply.send(serve_tag(&drive_of_tag, &queue, tag).await) };
            drive.world.spawn.spawn(Box::pin(serve));
            async move { ended.await.unwrap_or(Ok(())) }
        })
        .collect();
    let ended = try_join_all(tags);
    let ended = match select(start(device, resumed), ended).await {
        Either::Left((Some(Ok(())), ended)) => ended.await,
        Either::Left((Some(Err(error)), _)) => return Err(step("start the device")(error)),
        Either::Left((None, _)) => return Err(step("start the device")(io::ErrorKind::Interrupted.into())),
        Either::Right((ended, _)) => ended,
    };
    ended.map(drop).map_err(step("take requests"))
}

/// Have the kernel wait for this process instead of the one that died.
async fn take_over(drive: &Drive, device: &UblkDevice) -> Result<(), DriverError> {
    let deadline = drive.world.clock.now().after(TAKE_OVER);
    loop {
        match device.start_recovery() {
            Ok(()) => {
                info!("took over from a driver that died");
                return Ok(());
            }
            Err(error) if error.raw_os_error() == Some(EBUSY) && drive.world.clock.now() < deadline => {}
            Err(error) if error.raw_os_error() == Some(EINVAL) => {
                warn!("took over from a driver that died while it took over");
                return Ok(());
            }
            Err(error) => return Err(step("take over")(error)),
        }
        drive.world.clock.sleep(TRY_EVERY).await;
    }
}

/// Have it be a block device. The kernel waits until all tags are served, and reads what is on it: on a thread of its own.
fn start(device: UblkDevice, resumed: bool) -> Receiver<io::Result<()>> {
    let (reply, started) = one_shot();
    let call = move || reply.send(if resumed { device.end_recovery() } else { device.start() });
    // Without a thread the sender is dropped, which is the answer.
    let _ = std::thread::Builder::new().name("start".to_owned()).spawn(call);
    started
}

async fn serve_tag(drive: &Drive, queue: &UblkQueue, tag: u16) -> io::Result<()> {
    let mut answer = None;
    loop {
        match queue.next(tag, answer).await {
            Ok(request) => {
                let done = carry_out(drive, queue, tag, request).await;
                answer = Some(done.unwrap_or_else(|errno| -(errno.to_wire() as i32)));
            }
            Err(error) if error.raw_os_error() == Some(ENODEV) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The bytes that were moved. NBD's numbers of errors are Linux's.
async fn carry_out(drive: &Drive, queue: &UblkQueue, tag: u16, request: UblkRequest) -> Result<i32, Errno> {
    let UblkRequest { op, fua, may_unmap, offset_bytes: offset, len_bytes: len } = request;
    let moves = matches!(op, UblkOp::Read | UblkOp::Write);
    if drive.has_failed() {
        return Err(Errno::Io);
    }
    if moves && len > u64::from(drive.transfer_bytes_max()) {
        return Err(Errno::Inval);
    }
    let unmoved = |error: io::Error| {
        warn!("data of a request is not moved: {error}");
        Errno::Io
    };
    match op {
        UblkOp::Read => {
            let bufs = drive.arena.alloc(len as usize).await;
            let done = done(drive.perform(Op::Read { offset, bufs }).await)?;
            queue.give_data(tag, &done.bufs.freeze()).map_err(unmoved)?;
        }
        UblkOp::Write => {
            let mut bufs = drive.arena.alloc(len as usize).await;
            queue.take_data(tag, &mut bufs).map_err(unmoved)?;
            done(drive.perform(Op::Write { offset, data: bufs.freeze(), fua }).await)?;
        }
        UblkOp::Flush => drop(done(drive.perform(Op::Flush).await)?),
        UblkOp::Discard => drop(done(drive.perform(Op::Discard { offset, len }).await)?),
        UblkOp::WriteZeroes => drop(done(drive.perform(Op::WriteZeroes { offset, len, fua, may_unmap }).await)?),
        UblkOp::Other(_) => return Err(Errno::NotSup),
    }
    Ok(if moves { len as i32 } else { 0 })
}

fn done(completed: Completed) -> Result<Completed, Errno> {
    errno_of(completed.outcome).map_or(Ok(completed), Err)
}
