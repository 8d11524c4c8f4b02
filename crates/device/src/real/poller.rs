//! The driver of the `threads` back-end: sockets through epoll, transfers of devices on the device's own threads.
//!
//! For machines where io_uring is forbidden: the same executor and the same answers, more system calls. Never blocks
//! the executor thread but in `epoll_wait`.

use super::again;
use super::driver::Wait;
use super::inbox::Inbox;
use super::request::Request;
use super::sys;
use super::uring::PIECES_MAX;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Events taken in one call.
const EVENTS_MAX: usize = 256;

/// Requests that wait for one socket. Each direction has one user at a time, so these hold one each.
#[derive(Default)]
struct Waiting {
    read: VecDeque<Request>,
    /// Those that wait for the other side to end something.
    hung: Vec<Request>,
    /// With the bytes that have gone.
    write: VecDeque<(Request, usize)>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.read.is_empty() && self.write.is_empty() && self.hung.is_empty()
    }
}

/// See the module's head.
pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: RawFd,
    /// By descriptor. Bounded by the sockets.
    waiting: BTreeMap<RawFd, Waiting>,
    events: Vec<libc::epoll_event>,
    /// Reused by [`Poller::turn`].
    pub(crate) finished: Vec<(Request, i32)>,
}

/// What one attempt at a request gave.
enum Attempt {
    Finished(Request, i32),
    /// Not ready; so many bytes of a send have gone.
    Blocked(Request, usize),
}

impl Poller {
    pub(crate) fn new(inbox: &Inbox) -> io::Result<Poller> {
        // SAFETY: no memory is passed.
        let epoll = sys::own(sys::check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?);
        let bell = inbox.bell();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: bell as u64 };
        // SAFETY: one live event.
        sys::check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, bell, &raw mut event) })?;
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        Ok(Poller { epoll, bell, waiting: BTreeMap::new(), events, finished: Vec::new() })
    }

    /// Take a request; what could be done at once comes back with its result.
    pub(crate) fn start(&mut self, request: Request) -> Option<(Request, i32)> {
        if request.is_device() {
            transfer(request);
            return None;
        }
        let fd = request.fd();
        if let Request::HungUp { socket, .. } = &request {
            if sys::hang_up(socket.fd()).is_some() {
                return Some((request, 0));
            }
            self.waiting.entry(fd).or_default().hung.push(request);
            self.arm(fd);
            return None;
        }
        // Those who wait already come first.
        let busy = self
            .waiting
            .get(&fd)
            .is_some_and(|w| if is_read(&request) { !w.read.is_empty() } else { !w.write.is_empty() });
        let (request, sent) = if busy {
            (request, 0)
        } else {
            match attempt(request, 0, true) {
                Attempt::Finished(request, result) => return Some((request, result)),
                Attempt::Blocked(request, sent) => (request, sent),
            }
        };
        let waiting = self.waiting.entry(fd).or_default();
        if is_read(&request) {
            waiting.read.push_back(request);
        } else {
            waiting.write.push_back((request, sent));
        }
        self.arm(fd);
        None
    }

    /// One look at the kernel.
    pub(crate) fn turn(&mut self, wait: Wait, inbox: &Inbox) -> Vec<(Request, i32)> {
        let time = match wait {
            Wait::No => Some(Duration::ZERO),
            Wait::For(time) if time.is_zero() || !inbox.fall_asleep() => Some(Duration::ZERO),
            Wait::For(time) => Some(time),
            Wait::Forever => {
                if inbox.fall_asleep() {
                    None
                } else {
                    Some(Duration::ZERO)
                }
            }
        };
        let count = self.wait(time);
        if wait != Wait::No {
            inbox.wake_up();
        }
        for index in 0..count {
            let libc::epoll_event { events, u64: fd } = self.events[index];
            let fd = fd as RawFd;
            if fd == self.bell {
                sys::quiet_bell(fd);
            } else {
                self.ready(fd, events);
            }
        }
        std::mem::take(&mut self.finished)
    }

    fn wait(&mut self, time: Option<Duration>) -> usize {
        let limit = time.map(|t| libc::timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        let room = self.events.len() as i32;
        // SAFETY: `events` has that much room, the time-out lives, no signal mask.
        let count =
            unsafe { libc::epoll_pwait2(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), room, limit, ptr::null()) };
        match usize::try_from(count) {
            Ok(count) => count,
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOSYS) => self.wait_coarse(time),
                _ => 0,
            },
        }
    }

    /// Kernels before 5.11 count the time-out in milliseconds.
    fn wait_coarse(&mut self, time: Option<Duration>) -> usize {
        let ms = time.map_or(-1, |t| i32::try_from(t.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        let room = self.events.len() as i32;
        // SAFETY: `events` has that much room.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), room, ms) };
        usize::try_from(count).unwrap_or(0)
    }

    fn ready(&mut self, fd: RawFd, events: u32) {
        let Some(mut waiting) = self.waiting.remove(&fd) else { return };
        let gone = events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        if gone || events & (libc::EPOLLIN | libc::EPOLLRDHUP) as u32 != 0 {
            while let Some(request) = waiting.read.pop_front() {
                match attempt(request, 0, false) {
                    Attempt::Finished(request, result) => self.finished.push((request, result)),
                    Attempt::Blocked(request, _) => {
                        waiting.read.push_front(request);
                        break;
                    }
                }
            }
        }
        if gone || events & libc::EPOLLOUT as u32 != 0 {
            while let Some((request, sent)) = waiting.write.pop_front() {
                match attempt(request, sent, false) {
                    Attempt::Finished(request, result) => self.finished.push((request, result)),
                    Attempt::Blocked(request, sent) => {
                        waiting.write.push_front((request, sent));
                        break;
                    }
                }
            }
        }
        if gone || events & libc::EPOLLRDHUP as u32 != 0 {
            self.finished.extend(waiting.hung.drain(..).map(|request| (request, 0)));
        }
        if !waiting.is_empty() {
            self.waiting.insert(fd, waiting);
            self.arm(fd);
        }
    }

    /// Ask for one event of what is waited for. An interest of an earlier socket with this number is gone with it.
    fn arm(&mut self, fd: RawFd) {
        let Some(waiting) = self.waiting.get(&fd) else { return };
        let mut events = libc::EPOLLONESHOT as u32;
        if !waiting.read.is_empty() {
            events |= (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        }
        if !waiting.hung.is_empty() {
            events |= libc::EPOLLRDHUP as u32;
        }
        if !waiting.write.is_empty() {
            events |= libc::EPOLLOUT as u32;
        }
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: one live event.
        let changed = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
        if changed == 0 {
            return;
        }
        // SAFETY: as above.
        let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if added != 0 {
            // No memory or no watches left: the requests fail, the executor goes on.
            let errno = sys::negative(&io::Error::last_os_error());
            if let Some(waiting) = self.waiting.remove(&fd) {
                self.finished.extend(waiting.read.into_iter().map(|r| (r, errno)));
                self.finished.extend(waiting.write.into_iter().map(|(r, _)| (r, errno)));
                self.finished.extend(waiting.hung.into_iter().map(|r| (r, errno)));
                // The list is delivered at the end of a turn: make sure that there is one soon.
                sys::ring_bell(self.bell);
            }
        }
    }

    /// Take back every request of a socket.
    pub(crate) fn cancel_network(&mut self) {
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            self.finished.extend(waiting.read.into_iter().map(|r| (r, -libc::ECANCELED)));
            self.finished.extend(waiting.write.into_iter().map(|(r, _)| (r, -libc::ECANCELED)));
            self.finished.extend(waiting.hung.into_iter().map(|r| (r, -libc::ECANCELED)));
        }
    }

    /// Nothing is left to deliver. Transfers are counted by their devices.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.finished.is_empty()
    }
}

fn is_read(request: &Request) -> bool {
    matches!(request, Request::Receive { .. } | Request::Accept { .. } | Request::Readable { .. })
}

/// Run a transfer on a thread of its device.
fn transfer(request: Request) {
    let mut request = request;
    let (Request::Read { file, .. } | Request::Write { file, .. }) = &request else {
        unreachable!("only transfers get here");
    };
    let device = file.device();
    device.transfers().submit(move || {
        let may_wait = request.to_be_tried_again().map(|file| file.device());
        let mut call = || match &mut request {
            Request::Read { file, offset, bufs, .. } => {
                let pieces: Vec<_> = bufs
                    .pieces_mut()
                    .iter_mut()
                    .map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() })
                    .collect();
                // SAFETY: the pieces are the request's own buffers, held by this job.
                file.result_of(unsafe { sys::read_at(file.fd(), &pieces, *offset) })
            }
            Request::Write { file, offset, data, fua, .. } => {
                let pieces: Vec<_> = data
                    .pieces()
                    .iter()
                    .map(|p| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() })
                    .collect();
                // SAFETY: as above; only read.
                file.result_of(unsafe { sys::write_at(file.fd(), &pieces, *offset, *fua) })
            }
            _ => unreachable!("only transfers get here"),
        };
        let result = match may_wait {
            Some(device) => again::patiently(&mut call, |time| device.pause(time)),
            None => call(),
        };
        request.finish(result);
    });
    drop::<Arc<_>>(device);
}

/// Try a socket's verb without blocking. `first`: a connect is to be begun, not asked about.
fn attempt(request: Request, sent: usize, first: bool) -> Attempt {
    let mut request = request;
    let mut sent = sent;
    loop {
        let result = match &mut request {
            Request::Receive { socket, buf, .. } => {
                // SAFETY: the buffer is the request's own.
                unsafe { libc::recv(socket.fd(), buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) }
            }
            Request::Send { socket, data, .. } => send(socket.fd(), data, sent),
            Request::Accept { socket, .. } => {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                // SAFETY: no address is asked for.
                unsafe { libc::accept4(socket.fd(), ptr::null_mut(), ptr::null_mut(), flags) as isize }
            }
            Request::Connect { socket, address, .. } => {
                if !first {
                    return match connected(socket.fd()) {
                        0 => Attempt::Finished(request, 0),
                        errno => Attempt::Finished(request, -errno),
                    };
                }
                // SAFETY: the address lives and has that length.
                unsafe { libc::connect(socket.fd(), address.as_ptr(), address.len()) as isize }
            }
            Request::Readable { fd, .. } => match sys::is_readable(fd.as_raw_fd()) {
                Ok(true) => 1,
                Ok(false) => return Attempt::Blocked(request, sent),
                Err(error) => return Attempt::Finished(request, sys::negative(&error)),
            },
            Request::Command { .. } => return Attempt::Finished(request, -libc::ENOSYS),
            Request::Read { .. } | Request::Write { .. } | Request::HungUp { .. } => {
                unreachable!("only verbs of sockets get here")
            }
        };
        if let Ok(count) = usize::try_from(result) {
            if let Request::Send { data, .. } = &request {
                sent += count;
                if sent < data.len_bytes() && count > 0 {
                    continue;
                }
            }
            return Attempt::Finished(request, count as i32);
        }
        let errno = -sys::negative(&io::Error::last_os_error());
        let unix_connect = matches!(&request, Request::Connect { .. }) && errno == libc::EAGAIN;
        match errno {
            libc::EINTR => {}
            // A unix socket that was shut down while listening says "not ready" for ever.
            libc::EAGAIN if matches!(&request, Request::Accept { socket, .. } if socket.is_closed()) => {
                return Attempt::Finished(request, -libc::ECANCELED);
            }
            libc::EAGAIN | libc::EINPROGRESS if !unix_connect => return Attempt::Blocked(request, sent),
            _ => return Attempt::Finished(request, -errno),
        }
    }
}

fn send(fd: RawFd, data: &crate::buf::SharedBufs, sent: usize) -> isize {
    let mut pieces = Vec::with_capacity(data.pieces().len().min(PIECES_MAX));
    let mut skip = sent;
    for piece in data.pieces() {
        let rest = &piece[skip.min(piece.len())..];
        skip -= skip.min(piece.len());
        if !rest.is_empty() && pieces.len() < PIECES_MAX {
            pieces.push(libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() });
        }
    }
    // SAFETY: a msghdr of zeroes is an empty message.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = pieces.as_mut_ptr();
    header.msg_iovlen = pieces.len();
    // SAFETY: the list and the bytes live for the length of the call; they are only read.
    unsafe { libc::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }
}

/// What became of a connect: 0 or an errno.
fn connected(fd: RawFd) -> i32 {
    let mut error = 0_i32;
    let mut len = 4;
    // SAFETY: four bytes of a live integer.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len) };
    if got == 0 { error } else { -sys::negative(&io::Error::last_os_error()) }
}
