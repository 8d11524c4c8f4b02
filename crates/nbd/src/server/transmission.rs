//! The transmission phase of one connection: one task that reads, starts requests, and sends what is ready.
//!
//! Requests are futures of this task, not tasks of their own: starting one costs one allocation and no trip through
//! the executor. Replies are gathered until nothing else can be done, then sent with one call. Order of waiting: room
//! on the connection, room in the front end, memory; nothing that is waited for later is held while waiting earlier.

use super::Shared;
use super::counters::Tally;
use super::hosts::Traffic;
use super::intake::{Inbox, Payload, Received};
use super::job::{Finished, Job, LongId, PIECE_BYTES_MAX, Yield, errno_of, perform, status_of};
use super::outbox::{Batch, Outbox, Reply, Say};
use super::registry::Handle;
use crate::codec::{Command, CommandFlags, Cookie, Errno, ExportShape, Refusal, Request};
use crate::context::ContextSet;
use cell::{RequestError, ZeroFlags};
use device::net::NetFuture;
use device::{Arena, Bufs, Conn, NetError};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Rounds after which the task lets others run.
const ROUNDS_MAX: usize = 16;
/// Pieces of one long READ under way at a time: enough to keep a disk busy, and 4 MiB of memory.
const LONG_PIECES_MAX: usize = 4;

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
        longs: BTreeMap::new(),
        next_long: 0,
        gate: None,
        requests: 0,
        bytes: 0,
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
    Memory { request: Request, alloc: device::buf::Alloc },
    /// A WRITE's payload is coming.
    Payload { request: Request, payload: Payload },
    /// The payload of a refused WRITE is thrown away.
    Drain { cookie: Cookie, refusal: Refusal, left: u64 },
    /// Nothing more will be read.
    Ended,
}

/// A READ served in pieces.
struct Long {
    cookie: Cookie,
    next: u64,
    end: u64,
    under_way: usize,
    failed: Option<(RequestError, u64)>,
}

/// A batch on its way, and the requests and payload bytes that are no longer under way once it is sent.
type Sending = (NetFuture<Result<(), NetError>>, usize, usize);

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
    longs: BTreeMap<LongId, Long>,
    next_long: u32,
    /// Waiting for room in the front end.
    gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Requests received whose reply has not been sent, and the payload bytes held for them.
    requests: usize,
    bytes: usize,
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
                let over = matches!(self.intake, Intake::Ended) && self.requests == 0 && self.jobs.is_empty();
                self.tally.add_to(&self.shared.counters, &self.link.traffic);
                return if over { Poll::Ready(()) } else { Poll::Pending };
            }
        }
        self.poll_send(cx);
        self.tally.add_to(&self.shared.counters, &self.link.traffic);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    // --- requests under way -------------------------------------------------------------------------------------

    fn poll_jobs(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some(finished)) = self.jobs.poll_next_unpin(cx) {
            progress = true;
            match finished.long {
                Some(long) => self.piece_finished(long, finished),
                None => self.finished(finished),
            }
        }
        if !self.longs.is_empty() {
            progress |= self.start_pieces();
        }
        progress
    }

    fn finished(&mut self, finished: Finished) {
        let Finished { cookie, command, offset, bytes, whole, outcome, .. } = finished;
        let say = match outcome {
            Ok(Yield::Nothing) => {
                if command == Command::Write {
                    self.tally.wrote(bytes as u64);
                }
                Say::Done { command }
            }
            Ok(Yield::Data(data)) => {
                self.tally.read(bytes as u64);
                Say::Data { offset, data, done: true, whole }
            }
            Ok(Yield::Extents(extents)) if extents.is_empty() => {
                self.error(Errno::Io, "no status for a range that exists".to_owned(), None)
            }
            Ok(Yield::Extents(extents)) => Say::Status(status_of(&extents, self.link.contexts)),
            Err(error) => self.error(errno_of(error, command), error.to_string(), None),
        };
        self.reply(Reply { cookie, say, requests: 1, bytes });
    }

    fn error(&mut self, errno: Errno, message: String, offset: Option<u64>) -> Say {
        self.tally.error(errno);
        Say::Error { errno, message, offset }
    }

    fn reply(&mut self, reply: Reply) {
        if self.gone {
            self.release(reply.requests, reply.bytes);
        } else {
            self.outbox.push(reply);
        }
    }

    fn release(&mut self, requests: usize, bytes: usize) {
        self.requests -= requests;
        self.bytes -= bytes;
        self.shared.gate.leave(requests);
    }

    /// Whether a payload of `bytes` may be held; a single one always may, and no second one of a database that the I/O plan holds
    /// back: the memory is for all.
    fn has_room(&self, bytes: usize) -> bool {
        let most = self.shared.limits.bytes_per_connection_max;
        self.bytes == 0 || self.bytes + bytes <= most && !self.link.session.is_held_back()
    }

    fn push(&mut self, job: Job) {
        self.jobs.push((self.start)(self.link.clone(), job));
    }

    // --- long reads -----------------------------------------------------------------------------------------------

    fn start_long(&mut self, request: &Request) {
        let id = LongId(self.next_long);
        self.next_long = self.next_long.wrapping_add(1);
        let end = request.offset + u64::from(request.len);
        let long = Long { cookie: request.cookie, next: request.offset, end, under_way: 0, failed: None };
        self.longs.insert(id, long);
        self.start_pieces();
    }

    fn start_pieces(&mut self) -> bool {
        let mut started = Vec::new();
        let mut bytes = self.bytes;
        for (id, long) in &mut self.longs {
            while long.failed.is_none() && long.next < long.end && long.under_way < LONG_PIECES_MAX && !self.gone {
                // Pieces end at multiples of their size, so that chunks are aligned as clients like them.
                let border = (long.next / u64::from(PIECE_BYTES_MAX) + 1) * u64::from(PIECE_BYTES_MAX);
                let len = (border.min(long.end) - long.next) as u32;
                if bytes > 0 && bytes + len as usize > self.shared.limits.bytes_per_connection_max {
                    break;
                }
                bytes += len as usize;
                started.push(Job::ReadPiece { long: *id, cookie: long.cookie, offset: long.next, len });
                long.next += u64::from(len);
                long.under_way += 1;
            }
        }
        self.bytes = bytes;
        let any = !started.is_empty();
        started.into_iter().for_each(|job| self.push(job));
        any
    }

    fn piece_finished(&mut self, id: LongId, finished: Finished) {
        let Finished { cookie, offset, bytes, outcome, .. } = finished;
        match outcome {
            Ok(Yield::Data(data)) => {
                self.tally.read(bytes as u64);
                let say = Say::Data { offset, data, done: false, whole: false };
                self.reply(Reply { cookie, say, requests: 0, bytes });
            }
            Ok(_) => unreachable!("a piece of a READ yields data"),
            Err(error) => {
                self.release(0, bytes);
                if let Some(long) = self.longs.get_mut(&id) {
                    long.failed = long.failed.or(Some((error, offset)));
                }
            }
        }
        let Some(long) = self.longs.get_mut(&id) else { unreachable!("a long READ lives as long as its pieces") };
        long.under_way -= 1;
        if long.under_way > 0 || (long.next < long.end && long.failed.is_none() && !self.gone) {
            return;
        }
        let failed = long.failed;
        self.longs.remove(&id);
        let say = match failed {
            None => Say::Done { command: Command::Read },
            Some((error, at)) => self.error(errno_of(error, Command::Read), error.to_string(), Some(at)),
        };
        self.reply(Reply { cookie, say, requests: 1, bytes: 0 });
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
                Intake::Memory { request, alloc } => {
                    let request = *request;
                    match Pin::new(alloc).poll(cx) {
                        Poll::Pending => Poll::Pending,
                        Poll::Ready(memory) => {
                            self.intake = Intake::Header;
                            self.with_memory(&request, memory);
                            Poll::Ready(Received::Bytes)
                        }
                    }
                }
                Intake::Payload { payload, .. } => match self.inbox.poll_payload(payload, cx) {
                    Poll::Ready(Received::Bytes) => {
                        self.payload_complete();
                        Poll::Ready(Received::Bytes)
                    }
                    other => other,
                },
                Intake::Drain { cookie, refusal, left } => match self.inbox.poll_drain(left, cx) {
                    Poll::Ready(Received::Bytes) => {
                        let (cookie, refusal) = (*cookie, *refusal);
                        self.intake = Intake::Header;
                        self.handle.payload_done();
                        self.refuse(cookie, refusal);
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
        if self.requests >= self.shared.limits.requests_per_connection_max || !self.has_room(payload) {
            return Poll::Pending;
        }
        if !self.poll_gate(cx) {
            return Poll::Pending;
        }
        self.inbox.consume(Request::BYTES, |_| ());
        self.requests += 1;
        self.tally.request(request.command);
        match request.check(&self.link.shape) {
            Ok(()) => self.begin(request),
            Err(refusal) if request.payload_bytes() > 0 => {
                let left = u64::from(request.payload_bytes());
                self.handle.payload_due(left);
                self.intake = Intake::Drain { cookie: request.cookie, refusal, left };
            }
            Err(refusal) => self.refuse(request.cookie, refusal),
        }
        if matches!(self.intake, Intake::Ended) { Poll::Ready(Received::Over) } else { Poll::Ready(Received::Bytes) }
    }

    /// Take one of the front end's places, or wait for one.
    fn poll_gate(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            if let Some(waiting) = &mut self.gate {
                if waiting.as_mut().poll(cx).is_pending() {
                    return false;
                }
                self.gate = None;
            }
            if self.shared.gate.try_enter() {
                return true;
            }
            let shared = self.shared.clone();
            self.gate = Some(Box::pin(async move { shared.gate.opened().await }));
        }
    }

    fn begin(&mut self, request: Request) {
        let Request { cookie, offset, len, flags, .. } = request;
        let fua = flags.contains(CommandFlags::FUA);
        match request.command {
            Command::Disconnect => {
                self.release(1, 0);
                self.end_intake();
            }
            Command::Read if len == 0 => {
                let say = Say::Done { command: Command::Read };
                self.reply(Reply { cookie, say, requests: 1, bytes: 0 });
            }
            Command::Read if self.is_long(&request) => self.start_long(&request),
            Command::Read | Command::Write => {
                self.bytes += len as usize;
                match self.link.arena.try_alloc(len as usize) {
                    Some(memory) => self.with_memory(&request, memory),
                    None => {
                        let alloc = self.link.arena.alloc(len as usize);
                        self.intake = Intake::Memory { request, alloc };
                    }
                }
            }
            Command::Flush => self.push(Job::Flush { cookie }),
            Command::Trim => self.push(Job::Trim { cookie, offset, len, fua }),
            Command::Cache => self.push(Job::Cache { cookie, offset, len }),
            Command::WriteZeroes => {
                let no_hole = flags.contains(CommandFlags::NO_HOLE);
                let flags = ZeroFlags { no_hole, fast: flags.contains(CommandFlags::FAST_ZERO), fua };
                self.push(Job::WriteZeroes { cookie, offset, len, flags });
            }
            Command::BlockStatus => {
                self.push(Job::Status { cookie, offset, len, one: flags.contains(CommandFlags::REQ_ONE) });
            }
            Command::Unknown(_) => unreachable!("the check refuses unknown commands"),
        }
    }

    /// Chunks need structured replies and leave to fragment; a simple reply is one piece however long.
    fn is_long(&self, request: &Request) -> bool {
        self.link.structured && request.len > PIECE_BYTES_MAX && !request.flags.contains(CommandFlags::DF)
    }

    fn with_memory(&mut self, request: &Request, memory: Bufs) {
        let Request { cookie, offset, .. } = *request;
        if request.command == Command::Read {
            let whole = request.flags.contains(CommandFlags::DF);
            self.push(Job::Read { cookie, offset, bufs: memory, whole });
        } else {
            // The client is waited for from here on, not the cell.
            self.handle.payload_due(u64::from(request.len));
            self.intake = Intake::Payload { request: *request, payload: Payload::new(memory) };
        }
    }

    fn payload_complete(&mut self) {
        let Intake::Payload { request, payload } = std::mem::replace(&mut self.intake, Intake::Header) else {
            unreachable!("called when a payload is complete");
        };
        self.handle.payload_done();
        let fua = request.flags.contains(CommandFlags::FUA);
        let data = payload.finish(&self.link.arena).freeze();
        self.push(Job::Write { cookie: request.cookie, offset: request.offset, data, fua });
    }

    fn refuse(&mut self, cookie: Cookie, refusal: Refusal) {
        let say = self.error(refusal.errno, refusal.message.to_owned(), None);
        self.reply(Reply { cookie, say, requests: 1, bytes: 0 });
    }

    /// Read nothing more. A request whose payload has not come was not received.
    fn end_intake(&mut self) {
        match std::mem::replace(&mut self.intake, Intake::Ended) {
            Intake::Memory { request, .. } | Intake::Payload { request, .. } => {
                self.release(1, request.len as usize);
            }
            Intake::Drain { .. } => self.release(1, 0),
            Intake::Header | Intake::Ended => {}
        }
        self.handle.payload_done();
        self.gate = None;
    }

    // --- sending --------------------------------------------------------------------------------------------------

    fn poll_send(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        loop {
            if let Some((future, requests, bytes)) = &mut self.sending {
                let Poll::Ready(result) = future.as_mut().poll(cx) else { return progress };
                let (requests, bytes) = (*requests, *bytes);
                self.sending = None;
                self.handle.send_done();
                self.release(requests, bytes);
                progress = true;
                if result.is_err() {
                    self.client_gone();
                }
            }
            let Some(Batch { data, replies, requests, bytes }) = self.outbox.batch() else { return progress };
            self.tally.batch(replies);
            self.handle.send_due();
            self.sending = Some((self.conn.send(data), requests, bytes));
        }
    }

    /// Replies go nowhere from now on. What has been received is still read and done: its effects are due.
    fn client_gone(&mut self) {
        self.gone = true;
        let (requests, bytes) = self.outbox.clear();
        self.release(requests, bytes);
        // Long reads have no effect: what is not under way need not be begun.
        let idle: Vec<LongId> = self.longs.iter().filter(|(_, l)| l.under_way == 0).map(|(id, _)| *id).collect();
        for id in idle {
            self.longs.remove(&id);
            self.release(1, 0);
        }
    }
}
