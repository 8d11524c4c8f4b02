//! The task that owns a client's connection.
//!
//! Bounded by its users: the client lets only so many requests in. Received data is copied once, from a buffer that
//! belongs to the connection to where the caller wants it.

use super::{Answer, ClientError};
use crate::codec::{
    CodecError, Command, CommandFlags, Cookie, Errno, Expect, Expected, ReplyDecoder, ReplyEvent, Request, StatusExtent,
};
use device::net::NetFuture;
use device::sync::{Notify, Sender, lock};
use device::{Buf, Bufs, Conn, NetError, SharedBuf, SharedBufs, World};
use futures_util::task::AtomicWaker;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

/// The receive buffer: some fifteen 4 KiB replies, or a good part of a large one, per system call.
const RECEIVE_BYTES: usize = 64 * 1024;
/// Most requests in one send, below the system's limit of 1024 pieces per call.
const BATCH_REQUESTS_MAX: usize = 256;
/// Most extents kept of one status reply per context; the rest is dropped, as if the server had said less.
const EXTENTS_MAX: usize = 128 * 1024;

/// A request on its way to the driver.
pub(super) struct Submission {
    pub(super) command: Command,
    pub(super) flags: CommandFlags,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) payload: SharedBufs,
    pub(super) into: Bufs,
    pub(super) sender: Sender<Answer>,
}

impl Submission {
    fn fail(self, error: ClientError) {
        self.sender.send(Answer { result: Err(error), bufs: self.into, extents: Vec::new() });
    }
}

/// What clients and the driver share.
pub(super) struct Channel {
    state: Mutex<State>,
    waker: AtomicWaker,
    closed: Notify,
    conn: Arc<dyn Conn>,
}

#[derive(Default)]
struct State {
    queue: Vec<Submission>,
    /// Nobody will ask any more: say goodbye when all is answered.
    leaving: bool,
    /// The connection is gone.
    lost: bool,
}

impl Channel {
    pub(super) fn start(world: &World, conn: Arc<dyn Conn>, structured: bool, unread: Vec<u8>) -> Arc<Channel> {
        let channel = Arc::new(Channel {
            state: Mutex::default(),
            waker: AtomicWaker::new(),
            closed: Notify::new(),
            conn: conn.clone(),
        });
        let mut driver = Driver {
            channel: channel.clone(),
            conn,
            decoder: ReplyDecoder::new(structured),
            waiting: Waiting::default(),
            unread,
            receiving: None,
            sending: None,
            next_cookie: 1,
            goodbye_sent: false,
        };
        world.spawn.spawn(Box::pin(async move {
            let error = std::future::poll_fn(|cx| driver.poll(cx)).await;
            driver.fail_all(&error);
        }));
        channel
    }

    pub(super) fn submit(&self, submission: Submission) {
        let refused = {
            let mut state = lock(&self.state);
            if state.lost || state.leaving {
                Some(submission)
            } else {
                state.queue.push(submission);
                None
            }
        };
        match refused {
            Some(submission) => submission.fail(ClientError::Lost),
            None => self.waker.wake(),
        }
    }

    pub(super) fn leave(&self) {
        lock(&self.state).leaving = true;
        self.waker.wake();
    }

    pub(super) fn abort(&self) {
        self.conn.close();
    }

    pub(super) fn is_lost(&self) -> bool {
        lock(&self.state).lost
    }

    pub(super) async fn closed(&self) {
        loop {
            let ticket = self.closed.ticket();
            if self.is_lost() {
                return;
            }
            self.closed.wait(ticket).await;
        }
    }
}

/// A request that waits for its reply.
struct Pending {
    expected: Expected,
    into: Bufs,
    /// Bytes of a read that have come.
    covered: u64,
    error: Option<(Errno, String)>,
    extents: Vec<(u32, Vec<StatusExtent>)>,
    sender: Sender<Answer>,
}

#[derive(Default)]
struct Waiting(BTreeMap<Cookie, Pending>);

impl Expect for Waiting {
    fn expected(&self, cookie: Cookie) -> Option<Expected> {
        self.0.get(&cookie).map(|pending| pending.expected)
    }
}

struct Driver {
    channel: Arc<Channel>,
    conn: Arc<dyn Conn>,
    decoder: ReplyDecoder,
    waiting: Waiting,
    /// Bytes of a header or error text that is not complete.
    unread: Vec<u8>,
    receiving: Option<NetFuture<(Result<usize, NetError>, Buf)>>,
    sending: Option<NetFuture<Result<(), NetError>>>,
    next_cookie: u64,
    goodbye_sent: bool,
}

impl Driver {
    /// Ready when the connection is over, with the reason.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ClientError> {
        self.channel.waker.register(cx.waker());
        if let Err(error) = self.poll_send(cx) {
            return Poll::Ready(error);
        }
        match self.poll_receive(cx) {
            Err(error) => return Poll::Ready(error),
            Ok(()) => {
                if self.goodbye_sent && self.sending.is_none() {
                    return Poll::Ready(ClientError::Lost);
                }
            }
        }
        Poll::Pending
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Result<(), ClientError> {
        loop {
            if let Some(future) = &mut self.sending {
                match future.as_mut().poll(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(result) => {
                        self.sending = None;
                        result?;
                    }
                }
            }
            match self.batch() {
                Some(data) => self.sending = Some(self.conn.send(data)),
                None => return Ok(()),
            }
        }
    }

    /// What has been asked since the last look; at the end, goodbye.
    fn batch(&mut self) -> Option<SharedBufs> {
        let (batch, leaving) = {
            let mut state = lock(&self.channel.state);
            let count = state.queue.len().min(BATCH_REQUESTS_MAX);
            let batch: Vec<Submission> = state.queue.drain(..count).collect();
            (batch, state.leaving && state.queue.is_empty())
        };
        let mut head = Vec::with_capacity(Request::BYTES * (batch.len() + 1));
        let mut cuts = Vec::new();
        for submission in batch {
            let Submission { command, flags, offset, len, payload, into, sender } = submission;
            let cookie = Cookie(self.next_cookie);
            self.next_cookie += 1;
            head.extend_from_slice(&Request { flags, command, cookie, offset, len }.encode());
            if !payload.is_empty() {
                cuts.push((head.len(), payload));
            }
            let expected = Expected { command, offset, len };
            let pending = Pending { expected, into, covered: 0, error: None, extents: Vec::new(), sender };
            self.waiting.0.insert(cookie, pending);
        }
        if leaving && self.waiting.0.is_empty() && !self.goodbye_sent {
            self.goodbye_sent = true;
            let (flags, command) = (CommandFlags::NONE, Command::Disconnect);
            let goodbye = Request { flags, command, cookie: Cookie(self.next_cookie), offset: 0, len: 0 };
            head.extend_from_slice(&goodbye.encode());
        }
        if head.is_empty() {
            return None;
        }
        let head = SharedBuf::from(head);
        let mut out = SharedBufs::new();
        let mut at = 0;
        for (cut, payload) in cuts {
            out.push(head.slice(at..cut));
            at = cut;
            payload.pieces().iter().for_each(|piece| out.push(piece.clone()));
        }
        out.push(head.slice(at..head.len()));
        Some(out)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Result<(), ClientError> {
        let mut buf = None;
        loop {
            let receiving = self
                .receiving
                .get_or_insert_with(|| self.conn.receive(buf.take().unwrap_or_else(|| Buf::zeroed(RECEIVE_BYTES))));
            let Poll::Ready((result, back)) = receiving.as_mut().poll(cx) else { return Ok(()) };
            self.receiving = None;
            let count = result?;
            if count == 0 {
                return Err(ClientError::Lost);
            }
            if self.unread.is_empty() {
                let used = self.digest(&back[..count])?;
                self.unread.extend_from_slice(&back[used..count]);
            } else {
                let mut bytes = std::mem::take(&mut self.unread);
                bytes.extend_from_slice(&back[..count]);
                let used = self.digest(&bytes)?;
                bytes.drain(..used);
                self.unread = bytes;
            }
            buf = Some(back);
            // An answer may have been the last one before goodbye.
            self.poll_send(cx)?;
        }
    }

    /// Hand on what `bytes` say; returns how many were used.
    fn digest(&mut self, bytes: &[u8]) -> Result<usize, CodecError> {
        let mut at = 0;
        loop {
            let (event, used) = self.decoder.next(&bytes[at..], &self.waiting)?;
            at += used;
            let Some(event) = event else { return Ok(at) };
            let waiting = &mut self.waiting.0;
            match event {
                ReplyEvent::Data { cookie, offset, bytes } => {
                    let pending = waiting.get_mut(&cookie).ok_or(CodecError::UnknownCookie(cookie.0))?;
                    pending.into.copy_in((offset - pending.expected.offset) as usize, bytes);
                    pending.covered += bytes.len() as u64;
                }
                ReplyEvent::Hole { cookie, offset, len } => {
                    let pending = waiting.get_mut(&cookie).ok_or(CodecError::UnknownCookie(cookie.0))?;
                    let start = (offset - pending.expected.offset) as usize;
                    pending.into.fill_zero(start..start + len as usize);
                    pending.covered += u64::from(len);
                }
                ReplyEvent::Status { cookie, context, extents } => {
                    let pending = waiting.get_mut(&cookie).ok_or(CodecError::UnknownCookie(cookie.0))?;
                    match pending.extents.last_mut() {
                        Some((id, known)) if *id == context => {
                            let room = EXTENTS_MAX.saturating_sub(known.len());
                            known.extend(extents.into_iter().take(room));
                        }
                        _ => pending.extents.push((context, extents)),
                    }
                }
                ReplyEvent::Error { cookie, errno, message, .. } => {
                    let pending = waiting.get_mut(&cookie).ok_or(CodecError::UnknownCookie(cookie.0))?;
                    pending.error.get_or_insert((errno, message));
                }
                ReplyEvent::Done { cookie } => {
                    let pending = waiting.remove(&cookie).ok_or(CodecError::UnknownCookie(cookie.0))?;
                    pending.answer()?;
                }
            }
        }
    }

    /// The connection is over: tell everybody.
    fn fail_all(&mut self, error: &ClientError) {
        self.conn.close();
        let queue = {
            let mut state = lock(&self.channel.state);
            state.lost = true;
            std::mem::take(&mut state.queue)
        };
        // Whatever the reason, those who wait only know that no reply came; a broken protocol is told as such.
        let told = match error {
            ClientError::Protocol(_) => error.clone(),
            _ => ClientError::Lost,
        };
        for pending in std::mem::take(&mut self.waiting.0).into_values() {
            let Pending { into, sender, .. } = pending;
            sender.send(Answer { result: Err(told.clone()), bufs: into, extents: Vec::new() });
        }
        queue.into_iter().for_each(|submission| submission.fail(ClientError::Lost));
        self.channel.closed.notify_all();
    }
}

impl Pending {
    fn answer(self) -> Result<(), CodecError> {
        let Pending { expected, into, covered, error, extents, sender } = self;
        let result = match error {
            Some((errno, message)) => Err(ClientError::Remote { errno, message }),
            None if expected.command == Command::Read && covered != u64::from(expected.len) => {
                let broken = CodecError::Malformed("read reply: does not cover the request");
                let result = Err(ClientError::Protocol(broken));
                sender.send(Answer { result, bufs: into, extents });
                return Err(broken);
            }
            None => Ok(()),
        };
        sender.send(Answer { result, bufs: into, extents });
        Ok(())
    }
}
