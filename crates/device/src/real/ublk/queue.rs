//! Serving a ublk device: taking its requests, moving their data, answering.

use super::super::executor;
use super::super::inbox::Message;
use super::super::request::Request;
use super::super::runtime::{Runtime, Shared};
use super::super::sys;
use super::super::uring::{PIECES_MAX, iovec};
use super::control::{BOTH, QUEUE_DEPTH, UblkDevice, code};
use super::layout::{DESCRIPTOR_BYTES, UblkRequest, data_offset, queue_argument};
use crate::buf::{Bufs, SharedBufs};
use crate::sync::one_shot;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const FETCH: u32 = code(BOTH, 16, 0x20);
const COMMIT_AND_FETCH: u32 = code(BOTH, 16, 0x21);

/// Where the requests of a ublk device come out, on a runtime's executor.
#[derive(Clone)]
pub struct UblkEnd {
    shared: Arc<Shared>,
    index: u32,
}

impl std::fmt::Debug for UblkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UblkEnd({})", self.index)
    }
}

impl Runtime {
    /// The end of a ublk device, on this runtime's first executor.
    #[must_use]
    pub fn ublk(&self, index: u32) -> UblkEnd {
        UblkEnd { shared: self.shared().clone(), index }
    }
}

impl UblkEnd {
    /// The device.
    #[must_use]
    pub fn device(&self) -> UblkDevice {
        UblkDevice::numbered(self.index)
    }

    /// The queue of the device. One process has it at a time.
    ///
    /// # Errors
    /// `EBUSY`: another process serves it.
    pub fn open(&self) -> Result<UblkQueue> {
        let mapped_bytes = descriptors_bytes();
        let file = File::options().read(true).write(true).open(format!("/dev/ublkc{}", self.index))?;
        let fd = Arc::new(OwnedFd::from(file));
        // SAFETY: a new mapping, at an address of the kernel's choice, that is only read.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(start.cast()) {
            Some(descriptors) if start != libc::MAP_FAILED => {
                Ok(UblkQueue { shared: self.shared.clone(), fd, descriptors })
            }
            _ => Err(Error::last_os_error()),
        }
    }
}

/// The queue of a ublk device: each of its tags ([`UblkQueue::tags`]) is to be asked for requests by one task.
pub struct UblkQueue {
    shared: Arc<Shared>,
    fd: Arc<OwnedFd>,
    descriptors: NonNull<[u8; DESCRIPTOR_BYTES]>,
}

// SAFETY: the mapping is only read, and lives as long as the value.
unsafe impl Send for UblkQueue {}
// SAFETY: as above.
unsafe impl Sync for UblkQueue {}

impl std::fmt::Debug for UblkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UblkQueue({})", self.fd.as_raw_fd())
    }
}

impl UblkQueue {
    /// All tags of the queue.
    pub fn tags(&self) -> impl Iterator<Item = u16> + use<> {
        0..QUEUE_DEPTH
    }

    /// Answer the tag's last request (`answer`: bytes, or a negative errno; none at first), and wait for the next one.
    ///
    /// # Errors
    /// `ENODEV`: the device has ended.
    pub async fn next(&self, tag: u16, answer: Option<i32>) -> Result<UblkRequest> {
        let (code, result) = answer.map_or((FETCH, -1), |result| (COMMIT_AND_FETCH, result));
        let (reply, taken) = one_shot();
        let request = Request::Command { fd: self.fd.clone(), code, argument: queue_argument(tag, result), reply };
        // The kernel takes all commands of a queue from one thread: the first executor's.
        if let Some(unsent) = executor::start_here(&self.shared, request) {
            self.shared.inboxes[0].send(Message::Start(unsent));
        }
        match taken.await {
            Some(0) => Ok(self.request(tag)),
            Some(result) if result < 0 => Err(Error::from_raw_os_error(-result)),
            // Nothing else was asked for.
            Some(_) => Err(Error::from_raw_os_error(libc::EPROTO)),
            None => Err(Error::from_raw_os_error(libc::ECANCELED)),
        }
    }

    fn request(&self, tag: u16) -> UblkRequest {
        assert!(tag < QUEUE_DEPTH, "tag {tag} is none of the queue's");
        // SAFETY: within the mapping. The kernel has written it before it completed the command, and writes it again when the request
        // is answered only.
        let bytes = unsafe { std::ptr::read_volatile(self.descriptors.as_ptr().add(usize::from(tag))) };
        UblkRequest::decode(&bytes)
    }

    /// Take the data of a write that has been asked for.
    ///
    /// # Errors
    /// The kernel's; it has less than `bufs` has room for.
    pub fn take_data(&self, tag: u16, bufs: &mut Bufs) -> Result<()> {
        let list: Vec<libc::iovec> =
            bufs.pieces_mut().iter_mut().map(|piece| iovec(piece.as_mut_ptr(), piece.len())).collect();
        // SAFETY: the pieces are the caller's buffers, which live for the length of the calls.
        transfer(&list, |pieces, at| unsafe { sys::read_at(self.fd.as_raw_fd(), pieces, data_offset(tag) + at) })
    }

    /// Hand over the data of a read that has been asked for, before it is answered.
    ///
    /// # Errors
    /// The kernel's; it wants less than that.
    pub fn give_data(&self, tag: u16, data: &SharedBufs) -> Result<()> {
        let list: Vec<libc::iovec> =
            data.pieces().iter().map(|piece| iovec(piece.as_ptr().cast_mut(), piece.len())).collect();
        // SAFETY: the pieces are the caller's buffers, which live for the length of the calls, and are only read.
        transfer(&list, |pieces, at| unsafe {
            sys::write_at(self.fd.as_raw_fd(), pieces, data_offset(tag) + at, false)
        })
    }
}

impl Drop for UblkQueue {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; nothing refers to it.
        let _ = unsafe { libc::munmap(self.descriptors.as_ptr().cast(), descriptors_bytes()) };
    }
}

/// The descriptors of a queue fill whole pages.
fn descriptors_bytes() -> usize {
    // SAFETY: no memory is passed.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    (usize::from(QUEUE_DEPTH) * DESCRIPTOR_BYTES).next_multiple_of(page_bytes)
}

/// Move all of a list, [`PIECES_MAX`] of it at a time. The kernel moves all it is asked for, or fails.
fn transfer(list: &[libc::iovec], mut call: impl FnMut(&[libc::iovec], u64) -> i32) -> Result<()> {
    let mut at = 0;
    for pieces in list.chunks(PIECES_MAX) {
        let wanted: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let moved = call(pieces, at);
        if moved < 0 {
            return Err(Error::from_raw_os_error(-moved));
        }
        if moved as usize != wanted {
            return Err(Error::from_raw_os_error(libc::EIO));
        }
        at += wanted as u64;
    }
    Ok(())
}
