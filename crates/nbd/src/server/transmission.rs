//! The transmission phase of one connection: one task that reads, starts requests, and sends what is ready.
//!
//! Requests are futures of this task, not tasks of their own: starting one costs one allocation and no trip through
//! the executor. Replies are gathered until nothing else can be done, then sent with one call. Order of waiting: a slot, memory; and
//! nobody waits for memory that only its own reading could free: what has arrived of a WRITE is written when there is no more memory
//! for the rest of it, as a part of it.
//!
//! A request is owned by one thing at a time: the intake, a job, or a reply, and a long one by its parts. What it holds goes with it
//! (`Held`), so that it ends whichever way it goes: there is no table of requests that one could be forgotten in.

use super::Shared;
use super::account::{Account, Held, Kind};
use super::counters::Tally;
use super::fair::Queued;
use super::hosts::Traffic;
use super::intake::{Inbox, Payload, Received};
use super::job::{
    EXTENTS_MAX, EXTENTS_PER_SLOT, Finished, Job, Of, PIECE_BYTES_MAX, Task, Whole, Yield, errno_of, perform, status_of,
};
use super::limits::Sabotage;
use super::outbox::{Batch, Outbox, Reply, Say};
use super::registry::Handle;
use crate::codec::{Command, CommandFlags, Cookie, Errno, ExportShape, Refusal, Request};
use crate::context::ContextSet;
use cell::{RequestError, ZeroFlags};
use device::buf::{Alloc, PAGE_BYTES};
use device::net::NetFuture;
use device::{Arena, Bufs, Conn, NetError, SharedBufs};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Rounds after which the task lets others run.
const ROUNDS_MAX: usize = 16;
/// Parts of one long READ under way at a time: enough to keep a disk busy, and 4 MiB of memory.
const PARTS_MAX: usize = 4;
/// The least memory a part of a READ or WRITE waits for: what every connection has of its own. A page at any offset.
const PART_BYTES_MIN: usize = 2 * PAGE_BYTES;
/// Memory for a payload is taken for so many times what has arrived of it: most of a long one is then received in few calls.
const GROWTH: usize = 4;
/// One send: the unit in which the registry sees a slow client's progress, and more than a socket takes at once. Every send costs some turns
/// of the server's loop, so `Transmission` doubles its size for a client that takes a full one within a tick, up to a whole reply of 1 MiB.
const SEND_BYTES_MIN: usize = 256 << 10;
const SEND_BYTES_MAX: usize = (1 << 20) + (4 << 10);

/// What a connection works on.
pub(super) struct Link {
    pub(super) session: cell::Session,
    /// Of its client's host.
    pub(super) traffic: Arc<Traffic>,
    pub(super) arena: Arena,
    pub(super) structured: bool,
    pub(super) contexts: ContextSet,
    pub(super) shape: ExportShape,
}

/// Serve requests until the client leaves or the front end stops; every request received is finished first.
pub(super) async fn run(shared: Arc<Shared>, conn: Arc<dyn Conn>, handle: Arc<Handle>, link: Link, unread: Vec<u8>) {
    let link = Arc::new(link);
    let mut transmission = Transmission {
        intake: Intake::Header,
        inbox: Inbox::new(conn.clone(), unread),
        outbox: Outbox::new(link.structured),
        jobs: FuturesUnordered::new(),
        start: perform,
        queued: None,
        alloc: None,
        account: handle.account().clone(),
        sending: None,
        send_bytes: SEND_BYTES_MIN,
        gone: false,
        stopping: false,
        tally: Tally::default(),
        shared,
        conn,
        handle,
        link,
    };
    std::future::poll_fn(|cx| transmission.poll(cx)).await;
}

/// What the reading side is at.
enum Intake {
    /// A header comes next.
    Header,
    /// A READ waits for memory.
    Memory { request: Request, held: Held },
    /// Parts of a long READ are still to be started: those from `next` on.
    Long { whole: Arc<Whole>, next: u64, end: u64 },
    /// A WRITE's payload is coming.
    Payload(Incoming),
    /// The payload of a refused WRITE is thrown away.
    Drain { cookie: Cookie, held: Held, refusal: Refusal, left: u64 },
    /// Nothing more will be read.
    Ended,
}

/// A WRITE whose payload is coming. It is written in one piece, or in parts: at most [`PIECE_BYTES_MAX`] each, less where there is no
/// memory for so much.
struct Incoming {
    request: Request,
    /// The slot, until there are parts, which own it then.
    held: Option<Held>,
    whole: Option<Arc<Whole>>,
    /// Bytes of the request that are written, or on their way to the cell.
    started: usize,
    /// Bytes of the request that have memory, or had.
    placed: usize,
    /// What comes after those that are started.
    part: Payload,
    memory: Option<Held>,
}

impl Incoming {
    /// Where the part that is being received ends at the latest: parts end at multiples of their size.
    fn part_end(&self) -> usize {
        let at = self.request.offset + self.started as u64;
        let border = PIECE_BYTES_MAX as usize - (at % u64::from(PIECE_BYTES_MAX)) as usize;
        (self.started + border).min(self.request.len as usize)
    }

    /// Memory for more of the part.
    fn extend(&mut self, bufs: Bufs, held: Held) {
        self.placed += bufs.len_bytes();
        self.part.extend(bufs);
        match &mut self.memory {
            Some(memory) => memory.merge(held),
            None => self.memory = Some(held),
        }
    }
}

/// A batch on its way: the send that is under way, the tick in which it began and its bytes, what is still to be sent, and what is held until
/// then.
struct Sending {
    send: NetFuture<Result<(), NetError>>,
    begun: u64,
    bytes: usize,
    rest: SharedBufs,
    held: Held,
}

struct Transmission<F, S> {
    shared: Arc<Shared>,
    conn: Arc<dyn Conn>,
    handle: Arc<Handle>,
    link: Arc<Link>,
    intake: Intake,
    inbox: Inbox,
    outbox: Outbox,
    jobs: FuturesUnordered<F>,
    start: S,
    /// Waiting for a slot or memory that others hold.
    queued: Option<Queued>,
    /// The right to memory is in hand, the memory is not: the cell still works on what was written.
    alloc: Option<(Alloc, Held)>,
    /// What the requests of this connection hold until their replies are sent.
    account: Arc<Account>,
    sending: Option<Sending>,
    /// The most bytes of the next send: as many as the client has lately taken within a tick, see [`SEND_BYTES_MIN`].
    send_bytes: usize,
    /// The client takes no more replies.
    gone: bool,
    /// The front end stops.
    stopping: bool,
    tally: Tally,
}

impl<F, S> Transmission<F, S>
where
    F: Future<Output = Finished>,
    S: Fn(Arc<Link>, Job) -> F,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stopping = self.handle.stopping(cx.waker());
        if !self.gone && (self.handle.has_hung_up() || self.handle.fence().is_closed()) {
            self.take_no_replies();
        }
        for _ in 0..ROUNDS_MAX {
            let jobs = self.poll_jobs(cx);
            let intake = self.poll_intake(cx);
            // Replies wait for each other only while there is something else to do.
            let sent = if jobs || intake { false } else { self.poll_send(cx) };
            if !(jobs || intake || sent) {
                self.end_what_hung_up();
                self.tally.add_to(&self.shared.counters, &self.link.traffic);
                return if self.is_over() { Poll::Ready(()) } else { Poll::Pending };
            }
        }
        self.poll_send(cx);
        self.tally.add_to(&self.shared.counters, &self.link.traffic);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Nothing is read any more, done, or to be sent.
    fn is_over(&self) -> bool {
        matches!(self.intake, Intake::Ended) && self.jobs.is_empty() && self.outbox.is_empty() && self.sending.is_none()
    }

    // --- requests under way -------------------------------------------------------------------------------------

    fn poll_jobs(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some(finished)) = self.jobs.poll_next_unpin(cx) {
            progress = true;
            self.finished(finished);
        }
        progress
    }

    fn finished(&mut self, finished: Finished) {
        let Finished { of, mut held, offset, outcome } = finished;
        let (cookie, command) = match of {
            Of::All { cookie, command } => (cookie, command),
            Of::Part(whole) => return self.part_finished(whole, held, offset, outcome),
        };
        let say = match outcome {
            Ok(Yield::Nothing) => Say::Done { command },
            Ok(Yield::Written(bytes)) => {
                self.tally.wrote(bytes as u64);
                held.give_back(Kind::Bytes);
                Say::Done { command }
            }
            Ok(Yield::Data { data, one_chunk }) => {
                self.tally.read(data.len_bytes() as u64);
                Say::Data { offset, data, done: true, one_chunk }
            }
            Ok(Yield::Extents(extents)) if extents.is_empty() => {
                self.error(Errno::Io, "no status for a range that exists".to_owned(), None)
            }
            Ok(Yield::Extents(extents)) => Say::Status(status_of(&extents, self.link.contexts)),
            Err(error) => self.error(errno_of(error, command), error.to_string(), None),
        };
        self.reply(Reply { cookie, say, held });
    }

    fn part_finished(&mut self, whole: Arc<Whole>, held: Held, offset: u64, outcome: Result<Yield, RequestError>) {
        match outcome {
            Ok(Yield::Data { data, one_chunk }) => {
                self.tally.read(data.len_bytes() as u64);
                let say = Say::Data { offset, data, done: false, one_chunk };
                self.reply(Reply { cookie: whole.cookie, say, held });
            }
            Ok(Yield::Written(bytes)) => self.tally.wrote(bytes as u64),
            Ok(_) => unreachable!("parts are of READs and WRITEs"),
            Err(error) => whole.fail(error, offset),
        }
        self.part_over(whole);
    }

    /// A handle of a request in parts is no longer needed. With the last one the request is over.
    fn part_over(&mut self, whole: Arc<Whole>) {
        let Some(whole) = Arc::into_inner(whole) else { return };
        let failed = whole.failed();
        let Whole { cookie, command, held, .. } = whole;
        let say = match failed {
            None => Say::Done { command },
            Some((error, at)) => self.error(errno_of(error, command), error.to_string(), Some(at)),
        };
        self.reply(Reply { cookie, say, held });
    }

    fn error(&mut self, errno: Errno, message: String, offset: Option<u64>) -> Say {
        self.tally.error(errno);
        Say::Error { errno, message, offset }
    }

    /// A reply to a client that has gone ends here.
    fn reply(&mut self, reply: Reply) {
        if !self.gone {
            self.outbox.push(reply);
        }
    }

    /// Whether a database that the I/O plan holds back has a payload under way, and may have no second one: the memory is for all.
    fn is_held_back(&self) -> bool {
        self.account.held(Kind::Bytes) > 0 && self.link.session.is_held_back()
    }

    fn push(&mut self, of: Of, held: Held, offset: u64, task: Task) {
        let is_change = matches!(task, Task::Write { .. } | Task::Trim { .. } | Task::WriteZeroes { .. });
        let after =
            if is_change { self.handle.predecessors(&self.shared.world.clock, &self.shared.limits) } else { None };
        self.jobs.push((self.start)(self.link.clone(), Job { of, held, offset, task, after }));
    }

    // --- reading --------------------------------------------------------------------------------------------------

    fn poll_intake(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        loop {
            let step = match &mut self.intake {
                Intake::Ended => return progress,
                // A READ that waits for memory has been received; everything else can end here.
                Intake::Header | Intake::Payload { .. } | Intake::Drain { .. } if self.stopping => {
                    Poll::Ready(Received::Over)
                }
                Intake::Header => self.poll_header(cx),
                Intake::Memory { .. } => self.poll_memory_of_read(cx),
                Intake::Long { .. } => self.start_parts(cx),
                Intake::Payload(_) => self.poll_incoming(cx),
                Intake::Drain { left, .. } => match self.inbox.poll_drain(left, cx) {
                    Poll::Ready(Received::Bytes) => {
                        self.handle.payload_done();
                        if let Intake::Drain { cookie, held, refusal, .. } = self.take_intake() {
                            self.refuse(cookie, held, refusal);
                        }
                        Poll::Ready(Received::Bytes)
                    }
                    other => other,
                },
            };
            match step {
                Poll::Pending => return progress,
                Poll::Ready(Received::Bytes) => progress = true,
                Poll::Ready(Received::Over) => {
                    if !self.stopping {
                        self.handle.leaves();
                    }
                    self.end_intake();
                    return true;
                }
            }
        }
    }

    /// Start the next request at hand, or receive.
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        let Some(bytes) = self.inbox.peek_header() else { return self.inbox.poll_receive(cx) };
        let Ok(request) = Request::decode(&bytes) else {
            // Nobody knows where the next request begins.
            self.shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Received::Over);
        };
        // Both open when replies have been sent, which is this task's own doing.
        let has_payload = matches!(request.command, Command::Read | Command::Write) && request.len > 0;
        if self.account.held(Kind::Slots) >= self.shared.limits.requests_per_connection_max
            || has_payload && self.is_held_back()
        {
            return Poll::Pending;
        }
        let Some(held) = self.account.poll_take(Kind::Slots, (1, 1), &mut self.queued, cx) else {
            return Poll::Pending;
        };
        self.inbox.consume(Request::BYTES, |_| ());
        self.tally.request(request.command);
        match request.check(&self.link.shape) {
            Ok(()) => self.begin(request, held),
            Err(refusal) if request.payload_bytes() > 0 => {
                let left = u64::from(request.payload_bytes());
                self.handle.payload_due(left);
                self.intake = Intake::Drain { cookie: request.cookie, held, refusal, left };
            }
            Err(refusal) => self.refuse(request.cookie, held, refusal),
        }
        if matches!(self.intake, Intake::Ended) { Poll::Ready(Received::Over) } else { Poll::Ready(Received::Bytes) }
    }

    /// What the reading side was at, which is over.
    fn take_intake(&mut self) -> Intake {
        std::mem::replace(&mut self.intake, Intake::Header)
    }

    fn begin(&mut self, request: Request, mut held: Held) {
        let Request { command, cookie, offset, len, flags } = request;
        let fua = flags.contains(CommandFlags::FUA);
        let of = Of::All { cookie, command };
        match command {
            Command::Disconnect => {
                self.handle.disconnects();
                self.end_intake();
            }
            // Reading has no effect, and nobody waits for the data.
            Command::Read if self.gone => {}
            Command::Read if len == 0 => self.reply(Reply { cookie, say: Say::Done { command }, held }),
            Command::Read if self.may_be_cut(&request) && len > PIECE_BYTES_MAX => self.begin_long(request, held),
            Command::Read => self.intake = Intake::Memory { request, held },
            // Nothing comes, and nothing is held for it.
            Command::Write if len == 0 => self.push(of, held, offset, Task::Write { data: SharedBufs::default(), fua }),
            Command::Write => {
                self.intake = Intake::Payload(Incoming {
                    request,
                    held: Some(held),
                    whole: None,
                    started: 0,
                    placed: 0,
                    part: Payload::new(),
                    memory: None,
                });
            }
            Command::Flush => self.push(of, held, 0, Task::Flush),
            Command::Trim => self.push(of, held, offset, Task::Trim { len, fua }),
            Command::Cache => self.push(of, held, offset, Task::Cache { len }),
            Command::WriteZeroes => {
                let no_hole = flags.contains(CommandFlags::NO_HOLE);
                let flags = ZeroFlags { no_hole, fast: flags.contains(CommandFlags::FAST_ZERO), fua };
                self.push(of, held, offset, Task::WriteZeroes { len, flags });
            }
            Command::BlockStatus => {
                let one = flags.contains(CommandFlags::REQ_ONE);
                if !one && let Some(more) = self.account.take(Kind::Slots, 1, EXTENTS_MAX / EXTENTS_PER_SLOT - 1) {
                    held.merge(more);
                }
                let extents_max = if one { 1 } else { held.amount(Kind::Slots) * EXTENTS_PER_SLOT };
                self.push(of, held, offset, Task::Status { len, extents_max });
            }
            Command::Unknown(_) => unreachable!("the check refuses unknown commands"),
        }
    }

    /// Chunks need structured replies and leave to fragment; a simple reply is one piece however long.
    fn may_be_cut(&self, request: &Request) -> bool {
        self.link.structured && !request.flags.contains(CommandFlags::DF)
    }

    fn begin_long(&mut self, request: Request, held: Held) {
        let Request { command, cookie, offset, len, .. } = request;
        let whole = Whole::new(cookie, command, held);
        self.intake = Intake::Long { whole, next: offset, end: offset + u64::from(len) };
    }

    // --- memory ---------------------------------------------------------------------------------------------------

    /// How long a part from `offset` on is that could have `most` bytes and has `memory` for so many: all of it, or up to the end of a page.
    /// Each part is a request to the cell of its own, and a sector that two of them share could be torn.
    fn part_len(&self, offset: u64, most: usize, memory: usize) -> usize {
        if memory >= most || self.shared.limits.sabotage == Some(Sabotage::PartsEndAnywhere) {
            return most.min(memory);
        }
        let page = PAGE_BYTES as u64;
        let end = (offset + memory as u64) / page * page;
        assert!(end > offset, "a part has memory for a page at any offset");
        (end - offset) as usize
    }

    /// Memory for a part of up to `most` bytes from `offset` on, at least for `least`, if it may be had now.
    fn try_memory(&self, offset: u64, least: usize, most: usize) -> Option<(Bufs, Held)> {
        let held = self.account.take(Kind::Bytes, pages(least), pages(most))?;
        let bufs = self.link.arena.try_alloc(self.part_len(offset, most, held.amount(Kind::Bytes)))?;
        Some((bufs, held))
    }

    /// Memory for a part of up to `most` bytes from `offset` on, at least for `least`, as soon as it may be had.
    fn poll_memory(&mut self, offset: u64, least: usize, most: usize, cx: &mut Context<'_>) -> Poll<(Bufs, Held)> {
        if self.alloc.is_none() {
            let range = (pages(least), pages(most));
            let Some(held) = self.account.poll_take(Kind::Bytes, range, &mut self.queued, cx) else {
                return Poll::Pending;
            };
            let len = self.part_len(offset, most, held.amount(Kind::Bytes));
            if let Some(bufs) = self.link.arena.try_alloc(len) {
                return Poll::Ready((bufs, held));
            }
            self.alloc = Some((self.link.arena.alloc(len), held));
        }
        let Some((alloc, _)) = &mut self.alloc else { unreachable!("set above") };
        let Poll::Ready(bufs) = Pin::new(alloc).poll(cx) else { return Poll::Pending };
        let Some((_, held)) = self.alloc.take() else { unreachable!("just looked") };
        Poll::Ready((bufs, held))
    }

    /// Start a READ in one piece, or in parts where there is no memory for one.
    fn poll_memory_of_read(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        let Intake::Memory { request, .. } = &self.intake else { unreachable!("the caller looked") };
        let (request, len) = (*request, request.len as usize);
        if self.gone {
            self.stop_waiting();
            self.intake = Intake::Header;
            return Poll::Ready(Received::Bytes);
        }
        let memory = match self.may_be_cut(&request) {
            true => self.try_memory(request.offset, len, len),
            false => match self.poll_memory(request.offset, len, len, cx) {
                Poll::Ready(memory) => Some(memory),
                Poll::Pending => return Poll::Pending,
            },
        };
        let Intake::Memory { mut held, .. } = self.take_intake() else { unreachable!("looked at above") };
        let Some((bufs, memory)) = memory else {
            self.begin_long(request, held);
            return Poll::Ready(Received::Bytes);
        };
        held.merge(memory);
        let Request { command, cookie, offset, flags, .. } = request;
        let one_chunk = flags.contains(CommandFlags::DF);
        self.push(Of::All { cookie, command }, held, offset, Task::Read { bufs, one_chunk });
        Poll::Ready(Received::Bytes)
    }

    /// Start the next parts of a long READ, as far as there is memory for them.
    fn start_parts(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            let Intake::Long { whole, next, end } = &self.intake else { return Poll::Ready(Received::Bytes) };
            if self.gone || *next == *end || whole.failed().is_some() {
                self.stop_waiting();
                if let Intake::Long { whole, .. } = self.take_intake() {
                    self.part_over(whole);
                }
                return Poll::Ready(Received::Bytes);
            }
            // Parts end at multiples of their size, so that chunks are aligned as clients like them.
            let (offset, whole) = (*next, whole.clone());
            let border = (offset / u64::from(PIECE_BYTES_MAX) + 1) * u64::from(PIECE_BYTES_MAX);
            let most = (border.min(*end) - offset) as usize;
            // Besides those of the parts there are the intake's handle and the one here.
            if Arc::strong_count(&whole) >= PARTS_MAX + 2 || self.is_held_back() {
                return Poll::Pending;
            }
            let Poll::Ready((bufs, held)) = self.poll_memory(offset, most.min(PART_BYTES_MIN), most, cx) else {
                return Poll::Pending;
            };
            if let Intake::Long { next, .. } = &mut self.intake {
                *next += bufs.len_bytes() as u64;
            }
            self.push(Of::Part(whole), held, offset, Task::Read { bufs, one_chunk: false });
        }
    }

    // --- payload of a WRITE ---------------------------------------------------------------------------------------

    /// Receive what there is memory for; take memory for more; write what is there when it is a whole part, or when there is no memory
    /// for more of it.
    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            let Intake::Payload(incoming) = &mut self.intake else { return Poll::Ready(Received::Bytes) };
            if incoming.placed > incoming.started {
                if self.inbox.needs(&incoming.part) {
                    self.handle.payload_due(incoming.part.left() as u64);
                }
                let left = incoming.part.left();
                let received = self.inbox.poll_payload(&mut incoming.part, cx);
                self.handle.has_moved((left - incoming.part.left()) as u64);
                match received {
                    Poll::Ready(Received::Bytes) => self.handle.payload_done(),
                    other => return other,
                }
            } else if incoming.placed == 0 && self.inbox.available() == 0 {
                // Nothing has arrived: no memory is taken.
                self.handle.payload_due(0);
                match self.inbox.poll_receive(cx) {
                    Poll::Ready(Received::Bytes) => self.handle.payload_done(),
                    other => return other,
                }
            }
            let (started, placed, part_end) = (incoming.started, incoming.placed, incoming.part_end());
            let at = incoming.request.offset + placed as u64;
            if placed == part_end {
                self.start_write();
                continue;
            }
            let arrived = placed + self.inbox.available();
            let most = (arrived * GROWTH).clamp(placed + 1, part_end) - placed;
            let end = (at + most as u64).next_multiple_of(PAGE_BYTES as u64);
            let most = ((end - at) as usize).min(part_end - placed);
            let least = most.min(PART_BYTES_MIN);
            let memory = if placed > started {
                self.try_memory(at, least, most)
            } else if self.is_held_back() {
                return Poll::Pending;
            } else {
                match self.poll_memory(at, least, most, cx) {
                    Poll::Ready(memory) => Some(memory),
                    Poll::Pending => return Poll::Pending,
                }
            };
            match (memory, &mut self.intake) {
                (Some((bufs, held)), Intake::Payload(incoming)) => incoming.extend(bufs, held),
                _ => self.start_write(),
            }
        }
    }

    /// Write what has arrived: all of the request, or the next part of it.
    fn start_write(&mut self) {
        let Intake::Payload(incoming) = &mut self.intake else { unreachable!("called while a payload is coming") };
        let Request { command, cookie, offset, len, flags } = incoming.request;
        let offset = offset + incoming.started as u64;
        let first = incoming.started == 0;
        incoming.started = incoming.placed;
        let last = incoming.started == len as usize;
        let data = std::mem::replace(&mut incoming.part, Payload::new()).finish(&self.link.arena).freeze();
        let memory = incoming.memory.take();
        let whole = match (incoming.held.take(), &incoming.whole) {
            (Some(held), _) if first && last => Err(held),
            (Some(held), _) => Ok(incoming.whole.insert(Whole::new(cookie, command, held)).clone()),
            (None, Some(whole)) => Ok(whole.clone()),
            (None, None) => unreachable!("a request has its slot until there are parts"),
        };
        if last {
            // The parts alone own it from here on.
            self.intake = Intake::Header;
        }
        let (of, held) = match (whole, memory) {
            (Err(mut held), Some(memory)) => {
                held.merge(memory);
                (Of::All { cookie, command }, held)
            }
            (Ok(whole), Some(memory)) => (Of::Part(whole), memory),
            // A WRITE of no bytes.
            (Err(held), None) => (Of::All { cookie, command }, held),
            (Ok(_), None) => unreachable!("a part has memory"),
        };
        self.push(of, held, offset, Task::Write { data, fua: flags.contains(CommandFlags::FUA) });
    }

    fn refuse(&mut self, cookie: Cookie, held: Held, refusal: Refusal) {
        let say = self.error(refusal.errno, refusal.message.to_owned(), None);
        self.reply(Reply { cookie, say, held });
    }

    /// Read nothing more. A request whose payload has not come was not received, but for parts of it that are written already.
    fn end_intake(&mut self) {
        match std::mem::replace(&mut self.intake, Intake::Ended) {
            Intake::Long { whole, .. } => self.part_over(whole),
            Intake::Payload(Incoming { whole: Some(whole), request, started, .. }) => {
                let error = if self.stopping { RequestError::Stopping } else { RequestError::Io };
                whole.fail(error, request.offset + started as u64);
                self.part_over(whole);
            }
            _ => {}
        }
        self.handle.payload_done();
        self.stop_waiting();
    }

    /// What was waited for is not wanted any more.
    fn stop_waiting(&mut self) {
        self.account.wait_over();
        self.queued = None;
        self.alloc = None;
    }

    // --- sending --------------------------------------------------------------------------------------------------

    fn poll_send(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        loop {
            if let Some(sending) = &mut self.sending {
                let Poll::Ready(result) = sending.send.as_mut().poll(cx) else { return progress };
                progress = true;
                self.handle.send_done();
                self.handle.has_moved(sending.bytes as u64);
                if self.handle.tick() != sending.begun {
                    self.send_bytes = SEND_BYTES_MIN;
                } else if sending.bytes == self.send_bytes {
                    self.send_bytes = (2 * self.send_bytes).min(SEND_BYTES_MAX);
                }
                let Some(Sending { rest, held, .. }) = self.sending.take() else { unreachable!("just looked") };
                if result.is_err() {
                    self.take_no_replies();
                    self.handle.cannot_send();
                } else if !rest.is_empty() {
                    self.send(rest, held);
                    continue;
                }
            }
            let Some(Batch { data, replies, held }) = self.outbox.batch() else { return progress };
            self.tally.batch(replies);
            self.send(data, held);
        }
    }

    fn send(&mut self, data: SharedBufs, held: Held) {
        let (len, bytes) = (data.len_bytes(), data.len_bytes().min(self.send_bytes));
        // Most fit in one.
        let (first, rest) =
            if len == bytes { (data, SharedBufs::new()) } else { (data.slice(0..bytes), data.slice(bytes..len)) };
        self.handle.send_due();
        let begun = self.handle.tick();
        self.sending = Some(Sending { send: self.conn.send(first), begun, bytes, rest, held });
    }

    /// Replies go nowhere from now on. What has been received is still read, for a goodbye that may be in it.
    fn take_no_replies(&mut self) {
        self.gone = true;
        self.outbox.clear();
    }

    /// No change of a client that has hung up begins any more, once what it sent has been read as far as that can be done at once: a client that comes again
    /// must not be overtaken by what it asked for before, nor wait for what would be read later. Receiving from a connection that has hung up takes no time.
    fn end_what_hung_up(&mut self) {
        let reads_on = self.inbox.is_receiving() && !matches!(self.intake, Intake::Ended);
        if self.handle.has_hung_up() && !reads_on {
            self.handle.ends();
        }
    }
}

/// So many bytes in whole pages.
fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}
