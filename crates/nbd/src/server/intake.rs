//! Bytes from the client: a small buffer for headers and short payloads, arena memory for long payloads.
//!
//! Never holds more than its buffer and a piece of a header besides; never asks the socket for what it cannot place.

use crate::codec::Request;
use device::buf::PAGE_BYTES;
use device::{Arena, Buf, Bufs, Conn, NetError};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The receive buffer: some 580 requests without payload, or three 4 KiB writes; all the memory an idle connection has.
pub(super) const RECEIVE_BYTES: usize = 16 * 1024;
/// From here on the rest of a payload is received where it belongs; below, it comes through the buffer together with
/// what follows it: a copy of 8 KiB is cheaper than a system call.
const DIRECT_BYTES_MIN: usize = RECEIVE_BYTES / 2;

type Receiving = Pin<Box<dyn Future<Output = (Result<usize, NetError>, Buf)> + Send>>;

/// The buffer and what is left in it.
pub(super) struct Inbox {
    conn: Arc<dyn Conn>,
    /// Bytes that come before those in the buffer: what the handshake left, or the beginning of a header.
    carry: Vec<u8>,
    carry_start: usize,
    /// Absent while the driver has it.
    buf: Option<Buf>,
    start: usize,
    end: usize,
    receiving: Option<(Receiving, bool)>,
}

/// What a receive brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    Bytes,
    /// End of stream, or the connection broke.
    Over,
}

impl Inbox {
    pub(super) fn new(conn: Arc<dyn Conn>, unread: Vec<u8>) -> Inbox {
        Inbox {
            conn,
            carry: unread,
            carry_start: 0,
            buf: Some(Buf::zeroed(RECEIVE_BYTES)),
            start: 0,
            end: 0,
            receiving: None,
        }
    }

    fn carried(&self) -> usize {
        self.carry.len() - self.carry_start
    }

    /// Whether the socket has been asked for bytes.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.is_some()
    }

    /// Bytes at hand.
    pub(super) fn available(&self) -> usize {
        self.carried() + (self.end - self.start)
    }

    fn buffered(&self) -> &[u8] {
        self.buf.as_ref().map_or(&[], |buf| &buf[self.start..self.end])
    }

    /// The next header, not yet used up.
    pub(super) fn peek_header(&self) -> Option<[u8; Request::BYTES]> {
        if self.carried() == 0 {
            return self.buffered().first_chunk().copied();
        }
        if self.available() < Request::BYTES {
            return None;
        }
        let mut header = [0; Request::BYTES];
        let first = self.carried().min(Request::BYTES);
        header[..first].copy_from_slice(&self.carry[self.carry_start..self.carry_start + first]);
        header[first..].copy_from_slice(&self.buffered()[..Request::BYTES - first]);
        Some(header)
    }

    /// Use up `count` bytes that are at hand, handing them to `take` in order.
    pub(super) fn consume(&mut self, count: usize, mut take: impl FnMut(&[u8])) {
        assert!(count <= self.available(), "only bytes at hand are used up");
        let from_carry = count.min(self.carried());
        if from_carry > 0 {
            take(&self.carry[self.carry_start..self.carry_start + from_carry]);
            self.carry_start += from_carry;
            if self.carried() == 0 {
                self.carry = Vec::new();
                self.carry_start = 0;
            }
        }
        let rest = count - from_carry;
        if rest > 0 {
            take(&self.buffered()[..rest]);
            self.start += rest;
        }
    }

    /// Receive into the buffer. What is left in it is set aside first, so that is less than a header.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        if self.receiving.is_none() {
            if self.start < self.end {
                let left = self.buffered().to_vec();
                self.carry.extend_from_slice(&left);
            }
            (self.start, self.end) = (0, 0);
            let Some(buf) = self.buf.take() else { unreachable!("the buffer is here when nothing is being received") };
            self.receiving = Some((self.conn.receive(buf), false));
        }
        self.poll_receiving(cx, None)
    }

    /// Receive the rest of a payload where it belongs.
    fn poll_receive_payload(&mut self, payload: &mut Payload, cx: &mut Context<'_>) -> Poll<Received> {
        if self.receiving.is_none() {
            self.receiving = Some((self.conn.receive(payload.lend()), true));
        }
        self.poll_receiving(cx, Some(payload))
    }

    fn poll_receiving(&mut self, cx: &mut Context<'_>, payload: Option<&mut Payload>) -> Poll<Received> {
        let Some((future, _)) = &mut self.receiving else { unreachable!("set by the callers") };
        let Poll::Ready((result, buf)) = future.as_mut().poll(cx) else { return Poll::Pending };
        let direct = self.receiving.take().is_some_and(|(_, direct)| direct);
        let count = result.unwrap_or(0).min(buf.len());
        match (direct, payload) {
            (true, Some(payload)) => payload.give_back(buf, count),
            // A payload that was given up while its memory was lent.
            (true, None) => drop(buf),
            (false, _) => {
                self.buf = Some(buf);
                self.end = count;
            }
        }
        Poll::Ready(if count == 0 { Received::Over } else { Received::Bytes })
    }

    /// Whether the client has to send something before `payload` is complete.
    pub(super) fn needs(&self, payload: &Payload) -> bool {
        self.available() < payload.left()
    }

    /// Go on with a payload: ready with bytes when it is complete.
    pub(super) fn poll_payload(&mut self, payload: &mut Payload, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            if self.receiving.is_none() {
                let at_hand = self.available().min(payload.left());
                self.consume(at_hand, |bytes| payload.copy_in(bytes));
            }
            if payload.left() == 0 && self.receiving.is_none() {
                return Poll::Ready(Received::Bytes);
            }
            let direct = match &self.receiving {
                Some((_, direct)) => *direct,
                None => payload.contiguous_left() >= DIRECT_BYTES_MIN,
            };
            let received = if direct { self.poll_receive_payload(payload, cx) } else { self.poll_receive(cx) };
            match received {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Received::Over) => return Poll::Ready(Received::Over),
                Poll::Ready(Received::Bytes) => {}
            }
        }
    }

    /// Throw `left` bytes away: ready when they are gone.
    pub(super) fn poll_drain(&mut self, left: &mut u64, cx: &mut Context<'_>) -> Poll<Received> {
        loop {
            let count = usize::try_from(*left).unwrap_or(usize::MAX).min(self.available());
            self.consume(count, |_| ());
            *left -= count as u64;
            if *left == 0 {
                return Poll::Ready(Received::Bytes);
            }
            match self.poll_receive(cx) {
                Poll::Ready(Received::Bytes) => {}
                other => return other,
            }
        }
    }
}

/// A payload on its way into arena memory.
pub(super) struct Payload {
    done: Bufs,
    /// The piece being filled and how far; absent while the driver has it, or when all is done.
    current: Option<Buf>,
    filled: usize,
    /// Pieces to come.
    later: VecDeque<Buf>,
    left: usize,
}

impl Payload {
    /// No memory yet.
    pub(super) fn new() -> Payload {
        Payload { done: Bufs::new(), current: None, filled: 0, later: VecDeque::new(), left: 0 }
    }

    /// Fill `memory` too, after what there is.
    pub(super) fn extend(&mut self, memory: Bufs) {
        self.left += memory.len_bytes();
        self.later.extend(memory.into_pieces());
        if self.current.is_none() {
            self.current = self.later.pop_front();
        }
    }

    /// Bytes still to come.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Bytes still to come into the piece being filled.
    fn contiguous_left(&self) -> usize {
        self.current.as_ref().map_or(0, |buf| buf.len() - self.filled)
    }

    fn advance(&mut self, count: usize) {
        self.filled += count;
        self.left -= count;
        if self.contiguous_left() == 0 {
            if let Some(full) = self.current.take() {
                self.done.push(full);
            }
            self.current = self.later.pop_front();
            self.filled = 0;
        }
    }

    fn copy_in(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let at = self.filled;
            let count = bytes.len().min(self.contiguous_left());
            let Some(current) = &mut self.current else { unreachable!("never more bytes than are to come") };
            current[at..at + count].copy_from_slice(&bytes[..count]);
            self.advance(count);
            bytes = &bytes[count..];
        }
    }

    /// The unfilled part of the current piece, for the driver. A handle covers one range, so a piece received in
    /// several goes ends up as several handles: see [`realign`].
    fn lend(&mut self) -> Buf {
        let Some(mut current) = self.current.take() else { unreachable!("there are bytes to come") };
        if self.filled > 0 {
            self.done.push(current.split_to(self.filled));
            self.filled = 0;
        }
        current
    }

    fn give_back(&mut self, buf: Buf, count: usize) {
        self.current = Some(buf);
        self.advance(count);
    }

    /// The complete payload, in whole pages as far as `arena` has pages to spare.
    pub(super) fn finish(self, arena: &Arena) -> Bufs {
        assert!(self.left == 0, "a payload is used when it is complete");
        realign(self.done, arena)
    }
}

/// Handles that meet within a page cannot be written by a device that wants whole pages: copy each such page to a page
/// of its own, some 4 KiB per system call of the receiving, instead of leaving it to the cell to copy everything. When
/// the arena has no page to spare at once, the handles stay as they are, which is slower and as correct.
fn realign(bufs: Bufs, arena: &Arena) -> Bufs {
    let mut ends = bufs.pieces().iter().scan(0, |at, piece| {
        *at += piece.len();
        Some(*at)
    });
    // The last end is that of the payload: no handle meets another there.
    let mut torn: Vec<usize> =
        ends.by_ref().take(bufs.pieces().len().saturating_sub(1)).filter(|at| at % PAGE_BYTES != 0).collect();
    torn.iter_mut().for_each(|at| *at /= PAGE_BYTES);
    torn.dedup();
    if torn.is_empty() {
        return bufs;
    }
    let Some(spare) = arena.try_alloc(torn.len() * PAGE_BYTES) else { return bufs };
    let mut spare: Vec<Buf> = spare.into_pieces().collect();
    let mut whole = Bufs::new();
    let mut torn_page: Option<(Buf, usize)> = None;
    let mut left = bufs.len_bytes();
    for mut piece in bufs.into_pieces() {
        left -= piece.len();
        if let Some((mut page, filled)) = torn_page.take() {
            let count = piece.len().min(PAGE_BYTES - filled);
            page[filled..filled + count].copy_from_slice(&piece.split_to(count));
            if filled + count < PAGE_BYTES && left > 0 {
                torn_page = Some((page, filled + count));
                continue;
            }
            page.truncate(filled + count);
            whole.push(page);
        }
        let rest = if left == 0 { 0 } else { piece.len() % PAGE_BYTES };
        let torn = piece.split_off(piece.len() - rest);
        whole.push(piece);
        if rest > 0 {
            let mut page = take_page(&mut spare);
            page[..rest].copy_from_slice(&torn);
            torn_page = Some((page, rest));
        }
    }
    whole
}

/// The next page of what was reserved for the torn ones.
fn take_page(spare: &mut Vec<Buf>) -> Buf {
    let Some(piece) = spare.last_mut() else { unreachable!("a page was reserved for every torn one") };
    let page = piece.split_to(PAGE_BYTES);
    if piece.is_empty() {
        spare.pop();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Prng;

    #[test]
    fn torn_pages_are_made_whole_wherever_they_were_torn() {
        let arena = Arena::new(4 << 20);
        let mut prng = Prng::new(7);
        for _ in 0..300 {
            let len = 1 + prng.below(300_000) as usize;
            let mut memory = arena.try_alloc(len).expect("room");
            let mut want = vec![0; len];
            prng.fill(&mut want);
            memory.copy_in(0, &want);
            // Cut the handles anywhere, as receives do.
            let mut torn = Bufs::new();
            for mut piece in memory.into_pieces() {
                while !piece.is_empty() {
                    let most = if prng.chance(1, 2) { piece.len() } else { piece.len().min(5000) };
                    torn.push(piece.split_to(1 + prng.below(most as u64) as usize));
                }
            }
            let whole = realign(torn, &arena);
            assert!(whole.to_vec(0..len) == want);
            let last = whole.pieces().len() - 1;
            for (i, piece) in whole.pieces().iter().enumerate() {
                assert_eq!(piece.as_ptr().addr() % PAGE_BYTES, 0);
                assert!(i == last || piece.len() % PAGE_BYTES == 0);
            }
        }
        assert_eq!(arena.free_bytes(), arena.size_bytes());
    }
}
