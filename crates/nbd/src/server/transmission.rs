//! The transmission phase of one connection: one task that reads, starts requests, and sends what is ready.
//!
//! Requests are futures of this task, not tasks of their own: starting one costs one allocation and no trip through
//! the executor. Replies are gathered until nothing else can be done, then sent with one call. Order of waiting: room
//! on the connection, room in the front end, memory; nothing that is waited for later is held while waiting earlier.
//!
//! A request is owned by one thing at a time: the intake, a job, or a reply, and a long one by its parts. What it holds goes with it
//! (`Held`), so that it ends whichever way it goes: there is no table of requests that one could be forgotten in.

use super::Shared;
use super::account::{Account, Held};
use super::counters::Tally;
use super::hosts::Traffic;
use super::intake::{Inbox, Payload, Received};
use super::job::{Finished, Job, Of, PIECE_BYTES_MAX, Task, Whole, Yield, errno_of, perform, status_of};
use super::outbox::{Batch, Outbox, Reply, Say};
use super::registry::Handle;
use crate::codec::{Command, CommandFlags, Cookie, Errno, ExportShape, Refusal, Request};
use crate::context::ContextSet;
use cell::{RequestError, ZeroFlags};
use device::net::NetFuture;
use device::{Arena, Bufs, Conn, NetError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Rounds after which the task lets others run.
const ROUNDS_MAX: usize = 16;

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
        gate: None,
        account: Account::new(shared.gate.clone()),
        sending: None,
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
    /// A READ or WRITE waits for memory.
    Memory { request: Request, held: Held, alloc: device::buf::Alloc },
    /// Parts of a long READ are still to be started: those from `next` on.
    Long { whole: Arc<Whole>, next: u64, end: u64 },
    /// A WRITE's payload is coming.
    Payload { request: Request, held: Held, payload: Payload },
    /// The payload of a refused WRITE is thrown away.
    Drain { cookie: Cookie, held: Held, refusal: Refusal, left: u64 },
    /// Nothing more will be read.
    Ended,
}

/// A batch on its way, and what is held until it is sent.
type Sending = (NetFuture<Result<(), NetError>>, Held);

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
    /// Waiting for room in the front end.
    gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// What the requests of this connection hold until their replies are sent.
    account: Arc<Account>,
    sending: Option<Sending>,
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
        for _ in 0..ROUNDS_MAX {
            let jobs = self.poll_jobs(cx);
            let intake = self.poll_intake(cx);
            // Replies wait for each other only while there is something else to do.
            let sent = if jobs || intake { false } else { self.poll_send(cx) };
            if !(jobs || intake || sent) {
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
                held.give_back_bytes();
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
            Ok(_) => drop(held),
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

    /// Whether a payload of `bytes` may be held; a single one always may, and no second one of a database that the I/O plan holds
    /// back: the memory is for all.
    fn has_room(&self, bytes: usize) -> bool {
        let (held, most) = (self.account.bytes(), self.shared.limits.bytes_per_connection_max);
        held == 0 || held + bytes <= most && !self.link.session.is_held_back()
    }

    fn push(&mut self, of: Of, held: Held, offset: u64, task: Task) {
        self.jobs.push((self.start)(self.link.clone(), Job { of, held, offset, task }));
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
                Intake::Memory { alloc, .. } => match Pin::new(alloc).poll(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(memory) => {
                        if let Intake::Memory { request, held, .. } = self.take_intake() {
                            self.with_memory(request, held, memory);
                        }
                        Poll::Ready(Received::Bytes)
                    }
                },
                Intake::Long { .. } => self.start_parts(),
                Intake::Payload { payload, .. } => match self.inbox.poll_payload(payload, cx) {
                    Poll::Ready(Received::Bytes) => {
                        self.payload_complete();
                        Poll::Ready(Received::Bytes)
                    }
                    other => other,
                },
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
        // Both limits open when replies have been sent, which is this task's own doing.
        let payload = match request.command {
            Command::Read | Command::Write => request.len.min(self.link.shape.payload_bytes_max) as usize,
            _ => 0,
        };
        if self.account.slots() >= self.shared.limits.requests_per_connection_max || !self.has_room(payload) {
            return Poll::Pending;
        }
        let Some(held) = self.poll_slot(cx) else { return Poll::Pending };
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

    /// Take one of the front end's slots, or wait for one.
    fn poll_slot(&mut self, cx: &mut Context<'_>) -> Option<Held> {
        loop {
            if let Some(waiting) = &mut self.gate {
                if waiting.as_mut().poll(cx).is_pending() {
                    return None;
                }
                self.gate = None;
            }
            if let Some(held) = self.account.take_slot() {
                return Some(held);
            }
            let shared = self.shared.clone();
            self.gate = Some(Box::pin(async move { shared.gate.opened().await }));
        }
    }

    fn begin(&mut self, request: Request, mut held: Held) {
        let Request { command, cookie, offset, len, flags } = request;
        let fua = flags.contains(CommandFlags::FUA);
        let of = Of::All { cookie, command };
        match command {
            Command::Disconnect => self.end_intake(),
            // Reading has no effect, and nobody waits for the data.
            Command::Read if self.gone => {}
            Command::Read if len == 0 => self.reply(Reply { cookie, say: Say::Done { command }, held }),
            Command::Read if self.is_long(&request) => {
                let whole = Whole::new(cookie, command, held);
                self.intake = Intake::Long { whole, next: offset, end: offset + u64::from(len) };
            }
            Command::Read | Command::Write => {
                held.merge(self.account.take_bytes(len as usize));
                match self.link.arena.try_alloc(len as usize) {
                    Some(memory) => self.with_memory(request, held, memory),
                    None => {
                        let alloc = self.link.arena.alloc(len as usize);
                        self.intake = Intake::Memory { request, held, alloc };
                    }
                }
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
                self.push(of, held, offset, Task::Status { len, one });
            }
            Command::Unknown(_) => unreachable!("the check refuses unknown commands"),
        }
    }

    /// Chunks need structured replies and leave to fragment; a simple reply is one piece however long.
    fn is_long(&self, request: &Request) -> bool {
        self.link.structured && request.len > PIECE_BYTES_MAX && !request.flags.contains(CommandFlags::DF)
    }

    /// Start the next parts of a long READ, as far as there is room for them.
    fn start_parts(&mut self) -> Poll<Received> {
        loop {
            let Intake::Long { whole, next, end } = &mut self.intake else { return Poll::Ready(Received::Bytes) };
            if self.gone || *next == *end || whole.failed().is_some() {
                if let Intake::Long { whole, .. } = self.take_intake() {
                    self.part_over(whole);
                }
                return Poll::Ready(Received::Bytes);
            }
            // Parts end at multiples of their size, so that chunks are aligned as clients like them.
            let offset = *next;
            let border = (offset / u64::from(PIECE_BYTES_MAX) + 1) * u64::from(PIECE_BYTES_MAX);
            let len = (border.min(*end) - offset) as u32;
            let whole = whole.clone();
            if !self.has_room(len as usize) {
                return Poll::Pending;
            }
            if let Intake::Long { next, .. } = &mut self.intake {
                *next += u64::from(len);
            }
            let held = self.account.take_bytes(len as usize);
            self.push(Of::Part(whole), held, offset, Task::ReadPart { len });
        }
    }

    fn with_memory(&mut self, request: Request, held: Held, memory: Bufs) {
        let Request { command, cookie, offset, flags, .. } = request;
        if command == Command::Read {
            let one_chunk = flags.contains(CommandFlags::DF);
            self.push(Of::All { cookie, command }, held, offset, Task::Read { bufs: memory, one_chunk });
        } else {
            // The client is waited for from here on, not the cell.
            self.handle.payload_due(u64::from(request.len));
            self.intake = Intake::Payload { request, held, payload: Payload::new(memory) };
        }
    }

    fn payload_complete(&mut self) {
        let Intake::Payload { request, held, payload } = self.take_intake() else {
            unreachable!("called when a payload is complete");
        };
        self.handle.payload_done();
        let Request { command, cookie, offset, flags, .. } = request;
        let data = payload.finish(&self.link.arena).freeze();
        let fua = flags.contains(CommandFlags::FUA);
        self.push(Of::All { cookie, command }, held, offset, Task::Write { data, fua });
    }

    fn refuse(&mut self, cookie: Cookie, held: Held, refusal: Refusal) {
        let say = self.error(refusal.errno, refusal.message.to_owned(), None);
        self.reply(Reply { cookie, say, held });
    }

    /// Read nothing more. A request whose payload has not come was not received.
    fn end_intake(&mut self) {
        if let Intake::Long { whole, .. } = std::mem::replace(&mut self.intake, Intake::Ended) {
            self.part_over(whole);
        }
        self.handle.payload_done();
        self.gate = None;
    }

    // --- sending --------------------------------------------------------------------------------------------------

    fn poll_send(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        loop {
            if let Some((future, _)) = &mut self.sending {
                let Poll::Ready(result) = future.as_mut().poll(cx) else { return progress };
                self.sending = None;
                self.handle.send_done();
                progress = true;
                if result.is_err() {
                    self.client_gone();
                }
            }
            let Some(Batch { data, replies, held }) = self.outbox.batch() else { return progress };
            self.tally.batch(replies);
            self.handle.send_due();
            self.sending = Some((self.conn.send(data), held));
        }
    }

    /// Replies go nowhere from now on. What has been received is still read and done, as far as it has effects: they are due.
    fn client_gone(&mut self) {
        self.gone = true;
        self.outbox.clear();
    }
}
