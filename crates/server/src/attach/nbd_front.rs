//! The driver's front for the kernel's NBD client: it is the server of a connection that begins where negotiation would have ended.
//!
//! Takes no more from the connection than there is memory for; answers in whatever order requests end.

use super::driver::{Drive, DriverError, errno_of};
use device::sync::{Notify, lock};
use device::{Buf, Bufs, Conn, NetError, Op, SharedBuf, SharedBufs};
use nbd::codec::{
    Command, CommandFlags, Cookie, Errno, ExportShape, PAYLOAD_BYTES_MAX, Request, TransmissionFlags, encode_simple,
};
use std::sync::{Arc, Mutex};
use tracing::debug;

/// What one receive may bring: many small requests, or a part of a long one.
const INTAKE_BYTES: usize = 256 << 10;
/// Replies in one send: with a few pieces of data each they stay below the system's limit of 1024.
const REPLIES_AT_ONCE: usize = 128;
/// Bytes after which a send is closed.
const SEND_BYTES: usize = 1 << 20;

/// What the kernel is told of the device.
pub(super) fn flags(trims: bool, zeroes: bool, rotational: bool, read_only: bool) -> TransmissionFlags {
    // FUA is offered always: where the cell has none, it is a write and a FLUSH.
    TransmissionFlags::HAS_FLAGS
        .with(TransmissionFlags::SEND_FLUSH)
        .with(TransmissionFlags::SEND_FUA)
        .with_if(TransmissionFlags::SEND_TRIM, trims)
        .with_if(TransmissionFlags::SEND_WRITE_ZEROES, zeroes)
        .with_if(TransmissionFlags::ROTATIONAL, rotational)
        .with_if(TransmissionFlags::READ_ONLY, read_only)
}

struct Front {
    drive: Arc<Drive>,
    conn: Arc<dyn Conn>,
    outbox: Mutex<Vec<(Cookie, Option<Errno>, SharedBufs)>>,
    bell: Notify,
}

/// Serve until the kernel says that it disconnects.
pub(super) async fn serve(drive: &Arc<Drive>, conn: Arc<dyn Conn>) -> Result<(), DriverError> {
    let front =
        Arc::new(Front { drive: drive.clone(), conn: conn.clone(), outbox: Mutex::default(), bell: Notify::new() });
    let sender = front.clone();
    drive.world.spawn.spawn(Box::pin(async move { sender.send_replies().await }));
    let mut intake = Intake { conn, buf: Some(Buf::zeroed(INTAKE_BYTES)), from: 0, to: 0 };
    loop {
        let mut head = [0; Request::BYTES];
        intake.exact(&mut head).await?;
        let request = Request::decode(&head).map_err(|error| DriverError::Wire(error.to_string()))?;
        if request.command == Command::Disconnect {
            return Ok(());
        }
        front.take(request, &mut intake).await?;
    }
}

/// What has come and was not looked at yet.
struct Intake {
    conn: Arc<dyn Conn>,
    /// None while the connection has it.
    buf: Option<Buf>,
    from: usize,
    to: usize,
}

impl Intake {
    /// What is there, at most `len` bytes of it, at least one.
    async fn some(&mut self, len: usize) -> Result<&[u8], DriverError> {
        if self.from == self.to {
            let Some(buf) = self.buf.take() else { return Err(DriverError::Dropped(NetError::Closed)) };
            let (received, buf) = self.conn.receive(buf).await;
            self.buf = Some(buf);
            (self.from, self.to) = match received {
                Ok(0) => return Err(DriverError::Dropped(NetError::Closed)),
                Err(error) => return Err(DriverError::Dropped(error)),
                Ok(count) => (0, count),
            };
        }
        let start = self.from;
        self.from += len.min(self.to - self.from);
        Ok(self.buf.as_ref().map_or(&[], |buf| &buf[start..self.from]))
    }

    async fn exact(&mut self, out: &mut [u8]) -> Result<(), DriverError> {
        let mut at = 0;
        while at < out.len() {
            let part = self.some(out.len() - at).await?;
            out[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(())
    }

    async fn fill(&mut self, out: &mut Bufs) -> Result<(), DriverError> {
        let mut at = 0;
        while at < out.len_bytes() {
            let part = self.some(out.len_bytes() - at).await?;
            out.copy_in(at, part);
            at += part.len();
        }
        Ok(())
    }

    async fn skip(&mut self, mut len: usize) -> Result<(), DriverError> {
        while len > 0 {
            len -= self.some(len).await?.len();
        }
        Ok(())
    }
}

impl Front {
    /// Carry out a request, beside the others. Waits for its payload, and for memory.
    async fn take(self: &Arc<Self>, request: Request, intake: &mut Intake) -> Result<(), DriverError> {
        let drive = &self.drive;
        let shape = ExportShape {
            size_bytes: drive.size_bytes(),
            flags: flags(true, true, false, drive.read_only),
            contexts: false,
            payload_bytes_max: drive.transfer_bytes_max().min(PAYLOAD_BYTES_MAX),
            unfragmented_bytes_max: 0,
        };
        let refused = match request.check(&shape) {
            Err(refusal) => Some(refusal.errno),
            Ok(()) if drive.has_failed() => Some(Errno::Io),
            Ok(()) => None,
        };
        if let Some(errno) = refused {
            debug!(?request, %errno, "refused");
            intake.skip(request.payload_bytes() as usize).await?;
            self.reply(request.cookie, Some(errno), SharedBufs::new());
            return Ok(());
        }
        if request.len == 0 && matches!(request.command, Command::Read | Command::Write) {
            self.reply(request.cookie, None, SharedBufs::new());
            return Ok(());
        }
        let (offset, len, fua) = (request.offset, request.len, request.flags.contains(CommandFlags::FUA));
        let op = match request.command {
            Command::Read => Op::Read { offset, bufs: drive.arena.alloc(len as usize).await },
            Command::Write => {
                let mut bufs = drive.arena.alloc(len as usize).await;
                intake.fill(&mut bufs).await?;
                Op::Write { offset, data: bufs.freeze(), fua }
            }
            Command::Trim => Op::Discard { offset, len: u64::from(len) },
            Command::WriteZeroes => {
                let may_unmap = !request.flags.contains(CommandFlags::NO_HOLE);
                Op::WriteZeroes { offset, len: u64::from(len), fua, may_unmap }
            }
            Command::Flush => Op::Flush,
            Command::Disconnect | Command::Cache | Command::BlockStatus | Command::Unknown(_) => {
                self.reply(request.cookie, Some(Errno::NotSup), SharedBufs::new());
                return Ok(());
            }
        };
        let front = self.clone();
        drive.world.spawn.spawn(Box::pin(async move {
            let done = front.drive.perform(op).await;
            let data = if request.command == Command::Read { done.bufs.freeze() } else { SharedBufs::new() };
            front.reply(request.cookie, errno_of(done.outcome), data);
        }));
        Ok(())
    }

    fn reply(&self, cookie: Cookie, errno: Option<Errno>, data: SharedBufs) {
        lock(&self.outbox).push((cookie, errno, if errno.is_none() { data } else { SharedBufs::new() }));
        self.bell.notify_all();
    }

    /// Until the connection is gone: then nobody waits for a reply.
    async fn send_replies(self: Arc<Self>) {
        loop {
            let ticket = self.bell.ticket();
            let replies = std::mem::take(&mut *lock(&self.outbox));
            if replies.is_empty() {
                self.bell.wait(ticket).await;
                continue;
            }
            let mut replies = replies.into_iter().peekable();
            while replies.peek().is_some() {
                let mut batch = SharedBufs::new();
                for (cookie, errno, data) in replies.by_ref().take(REPLIES_AT_ONCE) {
                    let mut head = Vec::with_capacity(16);
                    encode_simple(&mut head, cookie, errno);
                    batch.push(SharedBuf::from(head));
                    batch.append(data);
                    if batch.len_bytes() >= SEND_BYTES {
                        break;
                    }
                }
                if self.conn.send(batch).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use device::real::stream_pair;
    use device::{Runtime, RuntimeConfig};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    const SIZE_BYTES: u64 = 1 << 20;

    /// What a driver that everything fails on answers to `requests`, and how it ends.
    fn served(requests: &[(Request, usize)]) -> (Vec<(u64, u32)>, Result<(), DriverError>) {
        let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
        let (ours, kernels) = stream_pair().unwrap();
        let conn = runtime.connection(ours).unwrap();
        let drive = Arc::new(Drive::failed(runtime.world(1), SIZE_BYTES).unwrap());
        let mut bytes = Vec::new();
        for (request, payload_bytes) in requests {
            bytes.extend_from_slice(&request.encode());
            bytes.resize(bytes.len() + payload_bytes, 7);
        }
        let kernel = std::thread::spawn(move || {
            let mut stream = UnixStream::from(kernels);
            // In pieces that no head and no payload ends with.
            for piece in bytes.chunks(1001) {
                stream.write_all(piece).unwrap();
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut replies = Vec::new();
            let mut reply = [0; 16];
            while stream.read_exact(&mut reply).is_ok() {
                let errno = u32::from_be_bytes(reply[4..8].try_into().unwrap());
                replies.push((u64::from_be_bytes(reply[8..].try_into().unwrap()), errno));
            }
            replies
        });
        let end = runtime.block_on(async move {
            let end = serve(&drive, conn.clone()).await;
            // What was answered is on its way: the sender has its turn before this.
            drive.world.clock.sleep(std::time::Duration::from_millis(200)).await;
            conn.close();
            end
        });
        (kernel.join().unwrap(), end)
    }

    fn request(cookie: u64, command: Command, offset: u64, len: u32) -> Request {
        Request { flags: CommandFlags::NONE, command, cookie: Cookie(cookie), offset, len }
    }

    /// Payloads of what is refused are passed over: the next request is found where it begins.
    #[test]
    fn every_request_is_answered_and_the_stream_followed() {
        let long = PAYLOAD_BYTES_MAX / 8;
        let (replies, end) = served(&[
            (request(1, Command::Write, 0, 70_000), 70_000),
            (request(2, Command::Write, SIZE_BYTES, 4096), 4096),
            (request(3, Command::Write, 0, long), long as usize),
            (request(4, Command::Unknown(99), 0, 0), 0),
            (request(5, Command::Read, SIZE_BYTES - 512, 1024), 0),
            (request(6, Command::Flush, 0, 0), 0),
            (request(7, Command::Disconnect, 0, 0), 0),
        ]);
        let wire = Errno::to_wire;
        let (io, no_room, invalid) = (wire(Errno::Io), wire(Errno::NoSpc), wire(Errno::Inval));
        assert_eq!(replies, [(1, io), (2, no_room), (3, invalid), (4, invalid), (5, invalid), (6, io)]);
        assert!(end.is_ok(), "{end:?}");
    }

    #[test]
    fn an_end_without_a_word_and_nonsense_are_told_apart() {
        let (replies, end) = served(&[(request(1, Command::Flush, 0, 0), 0)]);
        assert!(replies.len() == 1 && matches!(end, Err(DriverError::Dropped(_))), "{end:?}");
        // The payload is shorter than was said: the next head is in the middle of it.
        let (_, end) = served(&[(request(1, Command::Write, 0, 16), 0), (request(2, Command::Flush, 0, 0), 28)]);
        assert!(matches!(end, Err(DriverError::Wire(_))), "{end:?}");
    }
}
