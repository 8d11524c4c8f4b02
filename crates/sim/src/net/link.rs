//! One connection: two pipes, each a stream of bytes that is on its way, has arrived, or will never arrive.
//!
//! Memory only: times are handed in, who must be woken is handed out.

use device::{HangUp, Prng};
use std::collections::VecDeque;
use std::task::Waker;

/// Bytes that travel together.
pub(super) struct Packet {
    pub(super) at_ns: u64,
    bytes: Vec<u8>,
    /// The connection breaks when so many of its bytes have arrived.
    breaks_after: Option<usize>,
    /// Nothing follows.
    last: bool,
}

/// One direction.
#[derive(Default)]
pub(super) struct Pipe {
    under_way: VecDeque<Packet>,
    under_way_bytes: usize,
    arrived: VecDeque<u8>,
    /// The end of the stream has arrived.
    finished: bool,
    /// The receiver has closed: what arrives is thrown away.
    refused: bool,
    /// Something was thrown away, and the sender has learned of it.
    reset: bool,
    receiver: Option<Waker>,
    /// The receiving end waits for the end of the stream.
    pub(super) watcher: Option<Waker>,
    sender: Option<Waker>,
    last_ns: u64,
    /// Break the connection after so many more bytes.
    pub(super) bytes_left: Option<u64>,
}

impl Pipe {
    /// Room for more bytes, under way and arrived together.
    pub(super) fn room(&self, window_bytes: usize) -> usize {
        window_bytes.saturating_sub(self.under_way_bytes + self.arrived.len())
    }

    /// Put `bytes` on the way, to arrive no earlier than `at_ns` and than what went before; when that is.
    pub(super) fn put(&mut self, bytes: &[u8], at_ns: u64, breaks_after: Option<usize>) -> u64 {
        self.last_ns = self.last_ns.max(at_ns);
        let mut breaks_after = breaks_after;
        if let Some(left) = &mut self.bytes_left {
            if *left < bytes.len() as u64 {
                breaks_after = Some(breaks_after.unwrap_or(usize::MAX).min(*left as usize));
            }
            *left = left.saturating_sub(bytes.len() as u64);
        }
        self.under_way_bytes += bytes.len();
        self.under_way.push_back(Packet { at_ns: self.last_ns, bytes: bytes.to_vec(), breaks_after, last: false });
        self.last_ns
    }

    /// Put the end of the stream on the way; when it arrives.
    fn put_end(&mut self, at_ns: u64) -> u64 {
        self.last_ns = self.last_ns.max(at_ns);
        self.under_way.push_back(Packet { at_ns: self.last_ns, bytes: Vec::new(), breaks_after: None, last: true });
        self.last_ns
    }

    /// What is due arrives; true when the connection breaks by it.
    fn deliver(&mut self, now_ns: u64, wake: &mut Vec<Waker>) -> bool {
        while self.under_way.front().is_some_and(|p| p.at_ns <= now_ns) {
            let Some(packet) = self.under_way.pop_front() else { break };
            self.under_way_bytes -= packet.bytes.len();
            if self.refused {
                self.reset |= !packet.last;
                wake.extend(self.sender.take());
                continue;
            }
            self.finished |= packet.last;
            if packet.last {
                wake.extend(self.watcher.take());
            }
            let keep = packet.breaks_after.unwrap_or(packet.bytes.len());
            self.arrived.extend(&packet.bytes[..keep]);
            wake.extend(self.receiver.take());
            if packet.breaks_after.is_some() {
                return true;
            }
        }
        false
    }
}

/// What one end of a connection is told.
pub(super) enum Answer<T> {
    Ready(T),
    Closed,
    Wait,
}

/// A connection. End 0 connected, end 1 accepted; pipe `n` leads away from end `n`.
#[derive(Default)]
pub(super) struct Link {
    pub(super) hosts: [String; 2],
    pub(super) processes: [u64; 2],
    pub(super) pipes: [Pipe; 2],
    closed: [bool; 2],
    /// Both ends are told that it broke.
    broken: bool,
    /// Nothing arrives any more, and nobody is told yet: a host is gone, or died behind a partition.
    pub(super) severed: bool,
}

impl Link {
    pub(super) fn new(hosts: [String; 2], processes: [u64; 2]) -> Link {
        Link { hosts, processes, ..Link::default() }
    }

    pub(super) fn is_closed(&self, end: usize) -> bool {
        self.closed[end] || self.broken
    }

    /// How much of it is over as `end` knows; see [`Conn::hang_up`](device::Conn::hang_up).
    pub(super) fn hang_up(&self, end: usize) -> Option<HangUp> {
        if self.is_closed(end) || self.pipes[end].reset {
            Some(HangUp::Both)
        } else if self.pipes[1 - end].finished {
            Some(HangUp::Sending)
        } else {
            None
        }
    }

    /// Nobody can see it any more.
    pub(super) fn is_over(&self) -> bool {
        self.closed[0] && self.closed[1]
    }

    pub(super) fn wake_all(&mut self, wake: &mut Vec<Waker>) {
        for pipe in &mut self.pipes {
            wake.extend(pipe.sender.take());
            wake.extend(pipe.receiver.take());
            wake.extend(pipe.watcher.take());
        }
    }

    /// Take up to `len` bytes that arrived at `end`; with a choice, how many is drawn.
    pub(super) fn receive(
        &mut self,
        end: usize,
        into: &mut [u8],
        prng: Option<&mut Prng>,
        waker: &Waker,
        wake: &mut Vec<Waker>,
    ) -> Answer<usize> {
        if self.closed[end] {
            return Answer::Closed;
        }
        let broken = self.broken;
        let pipe = &mut self.pipes[1 - end];
        let most = into.len().min(pipe.arrived.len());
        if most > 0 {
            let n = prng.map_or(most, |prng| prng.between(1, most as u64) as usize);
            let (first, second) = pipe.arrived.as_slices();
            let from_first = n.min(first.len());
            into[..from_first].copy_from_slice(&first[..from_first]);
            into[from_first..n].copy_from_slice(&second[..n - from_first]);
            pipe.arrived.drain(..n);
            wake.extend(pipe.sender.take());
            return Answer::Ready(n);
        }
        if broken {
            return Answer::Closed;
        }
        if into.is_empty() || pipe.finished {
            return Answer::Ready(0);
        }
        pipe.receiver = Some(waker.clone());
        Answer::Wait
    }

    /// Whether `end` may send, and how many bytes there is room for.
    pub(super) fn may_send(&mut self, end: usize, window_bytes: usize, waker: &Waker) -> Answer<usize> {
        if self.is_closed(end) || self.pipes[end].reset {
            return Answer::Closed;
        }
        match self.pipes[end].room(window_bytes) {
            0 => {
                self.pipes[end].sender = Some(waker.clone());
                Answer::Wait
            }
            room => Answer::Ready(room),
        }
    }

    /// Let what is due arrive over pipe `n`.
    pub(super) fn deliver(&mut self, n: usize, now_ns: u64, wake: &mut Vec<Waker>) {
        if self.severed || self.broken {
            return;
        }
        if self.pipes[n].deliver(now_ns, wake) {
            self.break_up(wake);
        }
    }

    /// `end` closes: what it sent still arrives, and then the end of the stream; what is sent to it is refused.
    /// When the end of the stream arrives.
    pub(super) fn close(&mut self, end: usize, at_ns: u64, wake: &mut Vec<Waker>) -> Option<u64> {
        if self.closed[end] {
            return None;
        }
        self.closed[end] = true;
        self.pipes[1 - end].refused = true;
        self.pipes[1 - end].arrived.clear();
        wake.extend(self.pipes[end].sender.take());
        wake.extend(self.pipes[1 - end].receiver.take());
        wake.extend(self.pipes[1 - end].watcher.take());
        Some(self.pipes[end].put_end(at_ns))
    }

    /// The connection breaks: what is under way is gone, what arrived can still be received.
    pub(super) fn break_up(&mut self, wake: &mut Vec<Waker>) {
        self.broken = true;
        for pipe in &mut self.pipes {
            pipe.under_way.clear();
            pipe.under_way_bytes = 0;
        }
        self.wake_all(wake);
    }
}
