//! What a driver carries out: transfers of devices, and the verbs of sockets; and waiting for other
//! descriptors.
//!
//! A request owns its buffers, its device or socket and its reply until the kernel has answered, whoever has stopped
//! waiting: memory the kernel may write is never freed early.

use super::files::InFlight;
use super::net::{Socket, SocketAddress};
use super::sys;
use crate::buf::{Buf, Bufs, SharedBufs};
use crate::io::{Completed, Completer};
use crate::sync::Sender;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// One request.
pub(crate) enum Request {
    /// Fill buffers from a device.
    Read { file: InFlight, offset: u64, bufs: Bufs, completer: Completer },
    /// Write to a device.
    Write { file: InFlight, offset: u64, data: SharedBufs, fua: bool, completer: Completer },
    /// At least one byte from a socket; the result is a count or a negative errno.
    Receive { socket: Arc<Socket>, buf: Buf, reply: Sender<(i32, Buf)> },
    /// All of `data` to a socket; the result is 0 or a negative errno.
    Send { socket: Arc<Socket>, data: SharedBufs, reply: Sender<i32> },
    /// The next connection of a listening socket, or an errno.
    Accept { socket: Arc<Socket>, reply: Sender<Result<OwnedFd, i32>> },
    /// Connect a socket; the result is 0 or a negative errno.
    Connect { socket: Arc<Socket>, address: Box<SocketAddress>, reply: Sender<i32> },
    /// A descriptor has something to read, or is at its end; the result is what `poll` says or a negative errno.
    Readable { fd: Arc<OwnedFd>, reply: Sender<i32> },
    /// The other side of a socket has ended one direction at least; the result is what `poll` says or a negative errno.
    HungUp { socket: Arc<Socket>, reply: Sender<i32> },
    /// A command of the kernel's for a character device (`IORING_OP_URING_CMD`), with what it takes; the result is the device's. Without
    /// io_uring there is no such thing.
    Command { fd: Arc<OwnedFd>, code: u32, argument: [u8; 16], reply: Sender<i32> },
}

impl Request {
    /// Whether it moves data of a device (and so may not be abandoned).
    pub(crate) fn is_device(&self) -> bool {
        matches!(self, Request::Read { .. } | Request::Write { .. })
    }

    /// The device of a transfer.
    pub(crate) fn device(&self) -> Option<&InFlight> {
        match self {
            Request::Read { file, .. } | Request::Write { file, .. } => Some(file),
            _ => None,
        }
    }

    /// The device of a transfer that may be tried again when the kernel was short of something: it says nothing about the durability
    /// of anything else.
    pub(crate) fn to_be_tried_again(&self) -> Option<&InFlight> {
        match self {
            Request::Read { file, .. } | Request::Write { file, fua: false, .. } => Some(file),
            _ => None,
        }
    }

    /// The descriptor it is about.
    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Request::Read { file, .. } | Request::Write { file, .. } => file.fd(),
            Request::Receive { socket, .. }
            | Request::Send { socket, .. }
            | Request::Accept { socket, .. }
            | Request::HungUp { socket, .. }
            | Request::Connect { socket, .. } => socket.fd.as_raw_fd(),
            Request::Readable { fd, .. } | Request::Command { fd, .. } => fd.as_raw_fd(),
        }
    }

    /// Deliver the kernel's result. No borrow of the driver may be held: this wakes tasks and drops buffers.
    pub(crate) fn finish(self, result: i32) {
        match self {
            Request::Read { file, bufs, completer, .. } => {
                let outcome = sys::outcome_of_transfer(result, bufs.len_bytes(), false);
                // First, so that a device whose last request has been answered counts as idle.
                drop(file);
                completer.complete(Completed { outcome, bufs, extents: Vec::new() });
            }
            Request::Write { file, data, completer, .. } => {
                let outcome = sys::outcome_of_transfer(result, data.len_bytes(), true);
                drop(file);
                drop(data);
                completer.complete(Completed::bare(outcome));
            }
            Request::Receive { buf, reply, .. } => reply.send((result, buf)),
            Request::Send { reply, .. } | Request::Connect { reply, .. } => reply.send(result.min(0)),
            Request::Readable { fd, reply } | Request::Command { fd, reply, .. } => {
                drop(fd);
                reply.send(result);
            }
            Request::HungUp { reply, .. } => reply.send(result),
            Request::Accept { reply, .. } => {
                reply.send(if result < 0 { Err(-result) } else { Ok(sys::own(result)) });
            }
        }
    }
}
