//! The io_uring driver of one executor thread.
//!
//! What is started in a turn goes to the kernel in as few `io_uring_enter` as keep the devices busy; the last one of a turn
//! also runs deferred completions and sleeps when the thread has nothing to do. A request sits in its slot, with its buffers, until its completion.
//! Never cancels a transfer of a device; never frees a slot before the kernel has answered.

use super::again::{self, is_shortage};
use super::driver::Wait;
use super::files::{FixedSlot, InFlight};
use super::inbox::Inbox;
use super::request::Request;
use super::sys;
use crate::buf::Arena;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// Entries of the submission queue: one turn's worth (a full queue costs one more system call, nothing else).
const SQ_ENTRIES: u32 = 1024;
/// Entries of the completion queue: completions of a turn; the kernel keeps what overflows.
const CQ_ENTRIES: u32 = 8192;
/// Transfers that wait for each other before they go to the device. The kernel rings a device once for all entries of a
/// call, after the last: with a whole turn's worth the device idles while the thread works, and the thread while the device
/// works. `docs/benchmarks.md` has what one, two, four and eight gave.
const TRANSFERS_AT_ONCE: usize = 2;
/// Requests with the kernel, per ring: two for each of 16,000 connections and 30,000 transfers; more wait their turn
/// in the memory of those who asked.
pub(crate) const IN_FLIGHT_MAX: usize = 65_536;
/// Places in the ring's table of files, for devices only: a cell has tens of them. Devices beyond it use descriptors.
pub(crate) const FIXED_FILES_MAX: usize = 256;
/// Pieces of one transfer or one send (IOV_MAX of the kernel).
pub(crate) const PIECES_MAX: usize = 1024;
/// Kernel workers for requests that block, per ring: a device that stalls with this many of them would delay others.
const BLOCKED_WORKERS_MAX: u32 = 256;
/// The kernel takes registered buffers of at most 1 GiB.
const REGISTERED_BYTES_MAX: usize = 1 << 30;
/// Bytes of a socket's buffer in one entry: its length field has 32 bits, the kernel's own limit is 2 GiB.
const STRETCH_BYTES_MAX: usize = 1 << 30;
/// Scratch lists kept for the next requests.
const SCRATCH_KEPT_MAX: usize = 256;

const BELL: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
/// With a slot's number: the pause before its next try is over. Beyond [`IN_FLIGHT_MAX`], not set in slots' numbers.
const PAUSE_OVER: u64 = 1 << 62;

/// Lists of pieces the kernel reads until the request completes. Boxed, so that they do not move.
struct Scratch {
    pieces: Vec<libc::iovec>,
    header: libc::msghdr,
}

struct Flight {
    request: Request,
    scratch: Option<Box<Scratch>>,
    /// Bytes of a send that have gone.
    sent: usize,
    /// How often it has been with the kernel and could not be carried out just then.
    tries: u32,
}

struct Registered {
    arena: u64,
    start: usize,
    end: usize,
}

/// See the module's head.
pub(crate) struct Uring {
    ring: IoUring,
    flights: Slab<Flight>,
    /// Requests beyond [`IN_FLIGHT_MAX`], in order.
    backlog: VecDeque<Request>,
    /// Entries that found the submission queue full twice.
    unsent: VecDeque<squeue::Entry>,
    #[expect(clippy::vec_box, reason = "the boxes go in and out of flights; what is in them must not move")]
    scratch: Vec<Box<Scratch>>,
    fixed_files: Vec<bool>,
    registered: Vec<Registered>,
    /// Keeps the registered memory alive.
    _arenas: Vec<Arena>,
    /// Transfers started since the kernel was entered last.
    transfers_waiting: usize,
    bell_armed: bool,
    /// No bell any more: the ring is about to go.
    closing: bool,
    /// Where the bell's counter is read to; never moves while the ring lives.
    bell_count: Box<u64>,
    /// Reused by [`Uring::turn`].
    pub(crate) finished: Vec<(Request, i32)>,
}

/// How long the kernel may be short of what a ring needs: what a process that was killed had registered is given back a while after its end.
const SHORT_FOR_MAX: Duration = Duration::from_secs(5);
const SHORT_PAUSE: Duration = Duration::from_millis(50);

/// Build a ring with the best flags this kernel has, and name them. Tries again for some seconds where the kernel is short of memory.
pub(crate) fn build_ring(entries: u32, completions: u32) -> io::Result<(IoUring, &'static str)> {
    let until = Instant::now() + SHORT_FOR_MAX;
    loop {
        match try_build_ring(entries, completions) {
            Err(e) if e.raw_os_error().is_some_and(is_shortage) && Instant::now() < until => {
                std::thread::sleep(SHORT_PAUSE);
            }
            built => return built,
        }
    }
}

fn try_build_ring(entries: u32, completions: u32) -> io::Result<(IoUring, &'static str)> {
    type Setup = fn(&mut io_uring::Builder);
    let variants: [(&'static str, Setup); 3] = [
        ("single issuer, deferred task work", |b| {
            b.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
        }),
        ("cooperative task work", |b| {
            b.setup_coop_taskrun().setup_taskrun_flag();
        }),
        ("plain", |_| {}),
    ];
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for (name, setup) in variants {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions).setup_clamp();
        setup(&mut builder);
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, name)),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

impl Uring {
    /// The ring of the calling thread, and a line on each thing worth telling.
    pub(crate) fn new(arenas: &[Arena]) -> io::Result<(Uring, Vec<String>)> {
        let (ring, flags) = build_ring(SQ_ENTRIES, CQ_ENTRIES)?;
        let mut facts = vec![format!("io_uring: {SQ_ENTRIES} entries, {flags}")];
        let submitter = ring.submitter();
        if submitter.register_iowq_max_workers(&mut [BLOCKED_WORKERS_MAX, 0]).is_err() {
            facts.push("io_uring: the number of blocking workers cannot be raised on this kernel".to_owned());
        }
        let fixed = match submitter.register_files_sparse(FIXED_FILES_MAX as u32) {
            Ok(()) => FIXED_FILES_MAX,
            Err(e) => {
                facts.push(format!("io_uring: no fixed files ({e})"));
                0
            }
        };
        let (registered, kept) = register_arenas(&ring, arenas, &mut facts);
        let uring = Uring {
            ring,
            flights: Slab::new(),
            backlog: VecDeque::new(),
            unsent: VecDeque::new(),
            scratch: Vec::new(),
            fixed_files: vec![false; fixed],
            registered,
            _arenas: kept,
            transfers_waiting: 0,
            bell_armed: false,
            closing: false,
            bell_count: Box::new(0),
            finished: Vec::new(),
        };
        Ok((uring, facts))
    }

    /// Take a request; it goes to the kernel at the next turn.
    pub(crate) fn start(&mut self, request: Request) {
        if self.flights.len() >= IN_FLIGHT_MAX {
            self.backlog.push_back(request);
            return;
        }
        let is_device = request.is_device();
        let key = self.flights.insert(Flight { request, scratch: None, sent: 0, tries: 0 });
        self.submit(key);
        if is_device {
            self.transfers_waiting += 1;
            if self.transfers_waiting >= TRANSFERS_AT_ONCE {
                self.enter(None);
            }
        }
    }

    /// One look at the kernel: submit, run completions, sleep if allowed. What has finished comes back.
    pub(crate) fn turn(&mut self, wait: Wait, inbox: &Inbox) -> Vec<(Request, i32)> {
        if !self.bell_armed && !self.closing {
            self.bell_armed = true;
            let read = opcode::Read::new(types::Fd(inbox.bell()), (&raw mut *self.bell_count).cast(), 8).build();
            self.push(read.user_data(BELL));
        }
        while let Some(entry) = self.unsent.pop_front() {
            if !self.try_push(&entry) {
                self.unsent.push_front(entry);
                break;
            }
        }
        let sleep = match wait {
            Wait::No => None,
            Wait::For(time) if time.is_zero() => None,
            Wait::For(time) => inbox.fall_asleep().then_some(Some(time)),
            Wait::Forever => inbox.fall_asleep().then_some(None),
        };
        self.enter(sleep);
        if sleep.is_some() {
            inbox.wake_up();
        }
        self.reap();
        std::mem::take(&mut self.finished)
    }

    /// `sleep`: none to return at once, else for how long (none: until something completes).
    fn enter(&mut self, sleep: Option<Option<Duration>>) {
        let (entries, work) = {
            let queue = self.ring.submission();
            (queue.len(), queue.taskrun() || queue.cq_overflow())
        };
        self.transfers_waiting = 0;
        let submitter = self.ring.submitter();
        let entered = match sleep {
            None if entries == 0 && !work => return,
            None => {
                // SAFETY: no argument is passed; every entry in the queue describes memory that its slot owns.
                unsafe { submitter.enter::<libc::sigset_t>(entries as u32, 0, EnterFlags::GETEVENTS.bits(), None) }
            }
            Some(None) => submitter.submit_and_wait(1),
            Some(Some(time)) => {
                let time = types::Timespec::from(time);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        let Err(e) = entered else { return };
        match e.raw_os_error() {
            // Interrupted, timed out, or completions to be reaped first.
            Some(libc::EINTR | libc::ETIME | libc::EBUSY) => {}
            // No memory for requests just now: a short pause instead of a spin.
            Some(libc::EAGAIN | libc::ENOMEM) => std::thread::sleep(Duration::from_millis(1)),
            _ => panic!("io_uring_enter refuses a ring it has built: {e}"),
        }
    }

    fn reap(&mut self) {
        loop {
            let Some((key, result)) = self.ring.completion().next().map(|c: cqueue::Entry| (c.user_data(), c.result()))
            else {
                break;
            };
            match key {
                BELL => self.bell_armed = false,
                CANCEL => {}
                key if key & PAUSE_OVER != 0 => self.submit((key & !PAUSE_OVER) as usize),
                key => self.complete(key as usize, result),
            }
        }
        while self.flights.len() < IN_FLIGHT_MAX {
            let Some(request) = self.backlog.pop_front() else { break };
            self.start(request);
        }
    }

    fn complete(&mut self, key: usize, result: i32) {
        let flight = &mut self.flights[key];
        if result == -libc::EINTR {
            self.submit(key);
            return;
        }
        let result = flight.request.device().map_or(result, |file| file.result_of(result));
        if result < 0
            && let Some(file) = flight.request.to_be_tried_again()
            && let Some(pause) = again::pause(result, flight.tries + 1)
        {
            file.count_again();
            flight.tries += 1;
            self.push(opcode::Timeout::new(&raw const pause.for_ring).build().user_data(key as u64 | PAUSE_OVER));
            return;
        }
        if let Request::Send { data, .. } = &flight.request
            && let Ok(sent) = usize::try_from(result)
        {
            flight.sent += sent;
            // A send of nothing for something would go on for ever; the kernel does not do it.
            if flight.sent < data.len_bytes() && sent > 0 {
                self.submit(key);
                return;
            }
        }
        let flight = self.flights.remove(key);
        if let Some(scratch) = flight.scratch
            && self.scratch.len() < SCRATCH_KEPT_MAX
        {
            self.scratch.push(scratch);
        }
        self.finished.push((flight.request, result));
    }

    /// Take back every request of a socket; their completions arrive as usual.
    pub(crate) fn cancel_network(&mut self) {
        self.backlog.retain(Request::is_device);
        let keys: Vec<_> = self.flights.iter().filter(|(_, f)| !f.request.is_device()).map(|(k, _)| k as u64).collect();
        self.closing = true;
        for key in keys.into_iter().chain(self.bell_armed.then_some(BELL)) {
            self.push(opcode::AsyncCancel::new(key).build().user_data(CANCEL));
        }
    }

    /// Nothing is with the kernel (the bell is, unless the network has been cancelled).
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.backlog.is_empty() && !self.bell_armed
    }

    /// Free a device's place in the table of files.
    pub(crate) fn forget(&mut self, slot: &FixedSlot) {
        if let Some(place) = self.fixed_files.get_mut(slot.index)
            && std::mem::take(place)
        {
            let updated = self.ring.submitter().register_files_update(slot.index as u32, &[-1]);
            assert!(updated.is_ok(), "a place that was filled can be emptied");
        }
    }

    fn submit(&mut self, key: usize) {
        let entry = self.prepare(key);
        self.push(entry.user_data(key as u64));
    }

    fn push(&mut self, entry: squeue::Entry) {
        if !self.unsent.is_empty() || !self.try_push(&entry) {
            self.unsent.push_back(entry);
        }
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        for _ in 0..2 {
            // SAFETY: the entry points to buffers, lists and addresses owned by a slot (or by `self`) that is freed
            // only at its completion.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return true;
            }
            self.enter(None);
        }
        false
    }

    /// The entry for a slot's request; its lists are in the slot's scratch.
    fn prepare(&mut self, key: usize) -> squeue::Entry {
        let Uring { ring, flights, scratch: free, fixed_files, registered, .. } = self;
        let Flight { request, scratch, sent, .. } = &mut flights[key];
        match request {
            Request::Read { file, offset, bufs, .. } => {
                let (fd, flags) = target(ring, fixed_files, file);
                let fd = types::Fd(fd);
                let entry = match bufs.pieces_mut() {
                    [piece] => {
                        let (start, len) = (piece.as_mut_ptr(), piece.len() as u32);
                        let index = if file.is_direct() { find(registered, piece.arena_id(), start) } else { None };
                        match index {
                            Some(index) => opcode::ReadFixed::new(fd, start, len, index).offset(*offset).build(),
                            None => opcode::Read::new(fd, start, len).offset(*offset).build(),
                        }
                    }
                    pieces => {
                        let list = scratch.get_or_insert_with(|| take_scratch(free));
                        list.pieces.clear();
                        list.pieces.extend(pieces.iter_mut().map(|p| iovec(p.as_mut_ptr(), p.len())));
                        opcode::Readv::new(fd, list.pieces.as_ptr(), list.pieces.len() as u32).offset(*offset).build()
                    }
                };
                entry.flags(flags)
            }
            Request::Write { file, offset, data, fua, .. } => {
                let (fd, flags) = target(ring, fixed_files, file);
                let fd = types::Fd(fd);
                let sync = if *fua { libc::RWF_DSYNC } else { 0 };
                let entry = match data.pieces() {
                    [piece] => {
                        let (start, len) = (piece.as_ptr(), piece.len() as u32);
                        let index = if file.is_direct() { find(registered, piece.arena_id(), start) } else { None };
                        match index {
                            Some(index) => {
                                opcode::WriteFixed::new(fd, start, len, index).offset(*offset).rw_flags(sync).build()
                            }
                            None => opcode::Write::new(fd, start, len).offset(*offset).rw_flags(sync).build(),
                        }
                    }
                    pieces => {
                        let list = scratch.get_or_insert_with(|| take_scratch(free));
                        list.pieces.clear();
                        list.pieces.extend(pieces.iter().map(|p| iovec(p.as_ptr().cast_mut(), p.len())));
                        opcode::Writev::new(fd, list.pieces.as_ptr(), list.pieces.len() as u32)
                            .offset(*offset)
                            .rw_flags(sync)
                            .build()
                    }
                };
                entry.flags(flags)
            }
            Request::Receive { socket, buf, .. } => {
                opcode::Recv::new(types::Fd(socket.fd()), buf.as_mut_ptr(), stretch(buf.len())).build()
            }
            Request::Send { socket, data, .. } => {
                let fd = types::Fd(socket.fd());
                let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
                match data.pieces() {
                    [piece] => {
                        let rest = &piece[*sent..];
                        opcode::Send::new(fd, rest.as_ptr(), stretch(rest.len())).flags(flags).build()
                    }
                    _ => {
                        let list = scratch.get_or_insert_with(|| take_scratch(free));
                        list.pieces.clear();
                        let mut skip = *sent;
                        for piece in data.pieces() {
                            let rest = &piece[skip.min(piece.len())..];
                            skip -= skip.min(piece.len());
                            if !rest.is_empty() && list.pieces.len() < PIECES_MAX {
                                list.pieces.push(iovec(rest.as_ptr().cast_mut(), rest.len()));
                            }
                        }
                        list.header.msg_iov = list.pieces.as_mut_ptr();
                        list.header.msg_iovlen = list.pieces.len();
                        opcode::SendMsg::new(fd, &raw const list.header).flags(flags as u32).build()
                    }
                }
            }
            Request::Accept { socket, .. } => {
                opcode::Accept::new(types::Fd(socket.fd()), ptr::null_mut(), ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Request::Connect { socket, address, .. } => {
                opcode::Connect::new(types::Fd(socket.fd()), address.as_ptr(), address.len()).build()
            }
            // The kernel reports the end of a direction whatever is asked for.
            Request::HungUp { socket, .. } => {
                opcode::PollAdd::new(types::Fd(socket.fd()), libc::POLLRDHUP as u32).build()
            }
            Request::Readable { fd, .. } => {
                opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), libc::POLLIN as u32).build()
            }
            Request::Command { fd, code, argument, .. } => {
                opcode::UringCmd16::new(types::Fd(fd.as_raw_fd()), *code).cmd(*argument).build()
            }
        }
    }
}

/// How an entry names a device: its place in the table of files, filled at first use, or its descriptor.
fn target(ring: &IoUring, places: &mut [bool], file: &InFlight) -> (RawFd, squeue::Flags) {
    if let Some(slot) = file.fixed_slot()
        && let Some(place) = places.get_mut(slot)
    {
        if !*place {
            *place = ring.submitter().register_files_update(slot as u32, &[file.fd()]).is_ok();
        }
        if *place {
            return (slot as RawFd, squeue::Flags::FIXED_FILE);
        }
    }
    (file.fd(), squeue::Flags::empty())
}

/// The number of the registered memory that holds a piece.
fn find(registered: &[Registered], arena: Option<u64>, start: *const u8) -> Option<u16> {
    let arena = arena?;
    let found = registered.iter().position(|r| r.arena == arena && (r.start..r.end).contains(&start.addr()));
    found.and_then(|index| u16::try_from(index).ok())
}

/// What of a socket's buffer goes into one entry; the rest follows.
fn stretch(len: usize) -> u32 {
    len.min(STRETCH_BYTES_MAX) as u32
}

/// A piece of memory, as the kernel's calls take a list of them.
pub(crate) fn iovec(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: len }
}

#[expect(clippy::vec_box, reason = "see `Uring::scratch`")]
fn take_scratch(free: &mut Vec<Box<Scratch>>) -> Box<Scratch> {
    free.pop().unwrap_or_else(|| {
        // SAFETY: a msghdr of zeroes is an empty message: no name, no list, no control data.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Scratch { pieces: Vec::new(), header })
    })
}

/// Register the arenas' memory with the ring; without it transfers work the same at some more cost each.
fn register_arenas(ring: &IoUring, arenas: &[Arena], facts: &mut Vec<String>) -> (Vec<Registered>, Vec<Arena>) {
    let mut list = Vec::new();
    let mut lists = Vec::new();
    for arena in arenas {
        let (start, len) = arena.region();
        for at in (0..len).step_by(REGISTERED_BYTES_MAX) {
            let part = REGISTERED_BYTES_MAX.min(len - at);
            // Pieces never cross this cut: it is a multiple of the largest one.
            let start = start.wrapping_add(at);
            lists.push(iovec(start, part));
            list.push(Registered { arena: arena.id(), start: start.addr(), end: start.addr() + part });
        }
    }
    if list.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let bytes: usize = arenas.iter().map(Arena::size_bytes).sum();
    // SAFETY: the memory lives as long as the ring: the driver keeps the arenas.
    match unsafe { ring.submitter().register_buffers(&lists) } {
        Ok(()) => {
            facts.push(format!("io_uring: {} MiB of buffers registered", bytes >> 20));
            (list, arenas.to_vec())
        }
        Err(e) => {
            let limit = match sys::memlock_limit_bytes() {
                Some(limit) => format!("memlock limit {} KiB", limit >> 10),
                None => "no memlock limit".to_owned(),
            };
            facts.push(format!(
                "io_uring: buffers not registered ({e}; {} MiB wanted, {limit}); hint: raise LimitMEMLOCK / ulimit -l",
                bytes >> 20
            ));
            (Vec::new(), Vec::new())
        }
    }
}
