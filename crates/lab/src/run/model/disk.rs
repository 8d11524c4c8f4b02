//! A set of disks, striped: seek curve, rotation, track buffer, write cache, command queue.
//!
//! The order of service is by positioning time among the requests a drive may look at, and nobody is passed over for ever. Zones are left out:
//! the tables of the experiments are short beside a disk, and lie on its outer tracks.

use super::{Cost, Timing};
use device::sync::{Notify, Sender, lock, one_shot};
use device::{Verb, World};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What a drive is. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(in crate::run) struct DiskModel {
    pub(in crate::run) rpm: u64,
    pub(in crate::run) cylinders: u64,
    pub(in crate::run) heads: u64,
    /// On the outer tracks.
    pub(in crate::run) track_bytes: u64,
    /// To the next cylinder, over a third of the disk, over all of it.
    pub(in crate::run) seek_ns: [u64; 3],
    /// Of the drive, its controller and the way to it, for each request.
    pub(in crate::run) overhead_ns: u64,
    pub(in crate::run) bus_ns_per_kib: u64,
    /// What is read ahead while nobody asks.
    pub(in crate::run) read_ahead_bytes: u64,
    /// Requests the drive orders among.
    pub(in crate::run) queue: usize,
    /// Writes it acknowledges before they are on the medium; 0: none.
    pub(in crate::run) cached_writes: usize,
}

/// So often others may go first.
const PASSED_MAX: u32 = 64;

impl DiskModel {
    fn turn_ns(&self) -> u64 {
        60_000_000_000 / self.rpm
    }

    /// A square root to a third of the disk, a straight line beyond.
    fn seek(&self, from: u64, to: u64) -> u64 {
        let (distance, third) = (from.abs_diff(to), (self.cylinders / 3).max(2));
        let [next, average, full] = self.seek_ns;
        match distance {
            0 => 0,
            _ if distance <= third => next + (average - next) * (distance - 1).isqrt() / (third - 1).isqrt(),
            _ => average + (full - average) * (distance - third) / (self.cylinders - third).max(1),
        }
    }

    fn cylinder(&self, offset: u64) -> u64 {
        offset / (self.track_bytes * self.heads)
    }

    fn pass_ns(&self, len: u64) -> u64 {
        len * self.turn_ns() / self.track_bytes
    }
}

struct Item {
    offset: u64,
    len: u64,
    is_read: bool,
    /// Nobody waits for it: it is on its way from the cache to the medium.
    is_destage: bool,
    passed: u32,
    done: Option<Sender<()>>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Item>,
    is_busy: bool,
    cylinder: u64,
    /// Where the last transfer ended, and when.
    end: u64,
    end_at: u64,
    cached: usize,
}

struct Spindle {
    me: Weak<Spindle>,
    model: DiskModel,
    world: World,
    state: Mutex<State>,
    /// The cache has room again.
    destaged: Notify,
}

impl Spindle {
    /// From now until the request is done.
    fn service_ns(&self, state: &State, item: &Item, now: u64) -> u64 {
        let model = &self.model;
        let pass = model.pass_ns(item.len);
        if let Some(at) = self.ahead(state, item) {
            return at.saturating_sub(now);
        }
        let at = now + model.seek(state.cylinder, model.cylinder(item.offset));
        let (turn, track) = (model.turn_ns(), model.track_bytes);
        let angle = item.offset % track * turn / track;
        at - now + (angle + turn - at % turn) % turn + pass
    }

    /// When the drive, which has gone on reading, has this in its buffer; none when it never will.
    fn ahead(&self, state: &State, item: &Item) -> Option<u64> {
        let end = item.offset + item.len;
        let is_ahead = item.is_read && item.offset >= state.end && end <= state.end + self.model.read_ahead_bytes;
        is_ahead.then(|| state.end_at + self.model.pass_ns(end - state.end))
    }

    fn choose(&self, state: &mut State, now: u64) -> Option<Item> {
        let hurry = state.cached * 4 >= self.model.cached_writes * 3;
        let is_waited_for = state.queue.iter().any(|item| !item.is_destage);
        let mut best: Option<(u64, usize)> = None;
        let eligible = |item: &Item| !item.is_destage || hurry || !is_waited_for;
        for (n, item) in state.queue.iter().enumerate().filter(|(_, i)| eligible(i)).take(self.model.queue.max(1)) {
            if item.passed >= PASSED_MAX {
                best = Some((0, n));
                break;
            }
            let ns = self.service_ns(state, item, now);
            if best.is_none_or(|(least, _)| ns < least) {
                best = Some((ns, n));
            }
        }
        let (_, n) = best?;
        state.queue.iter_mut().take(n).for_each(|item| item.passed += 1);
        state.queue.remove(n)
    }

    async fn serve(self: Arc<Self>) {
        loop {
            let (item, ns) = {
                let now = self.world.clock.now().0;
                let mut state = lock(&self.state);
                let Some(item) = self.choose(&mut state, now) else {
                    state.is_busy = false;
                    return;
                };
                let ns = self.service_ns(&state, &item, now);
                (item, ns)
            };
            self.world.clock.sleep(Duration::from_nanos(ns)).await;
            {
                let now = self.world.clock.now().0;
                let mut state = lock(&self.state);
                let ahead = self.model.pass_ns(self.model.read_ahead_bytes);
                // What was read ahead by then is bounded by the buffer.
                let passed = self.ahead(&state, &item).unwrap_or(now).min(now);
                state.end = item.offset + item.len;
                state.end_at = passed.max(now.saturating_sub(ahead));
                state.cylinder = self.model.cylinder(state.end);
                if item.is_destage {
                    state.cached -= 1;
                }
            }
            if item.is_destage {
                self.destaged.notify_all();
            }
            if let Some(done) = item.done {
                done.send(());
            }
        }
    }

    fn push(&self, item: Item) {
        let Some(me) = self.me.upgrade() else { unreachable!("it is called through an Arc") };
        let begins = {
            let mut state = lock(&self.state);
            state.queue.push_back(item);
            !std::mem::replace(&mut state.is_busy, true)
        };
        if begins {
            self.world.spawn.spawn(Box::pin(me.serve()));
        }
    }

    async fn transfer(self: Arc<Self>, is_read: bool, offset: u64, len: u64, is_durable: bool) {
        if !is_read && !is_durable && self.model.cached_writes > 0 {
            loop {
                let ticket = self.destaged.ticket();
                {
                    let mut state = lock(&self.state);
                    if state.cached < self.model.cached_writes {
                        state.cached += 1;
                        break;
                    }
                }
                self.destaged.wait(ticket).await;
            }
            self.push(Item { offset, len, is_read, is_destage: true, passed: 0, done: None });
        } else {
            let (sender, receiver) = one_shot();
            self.push(Item { offset, len, is_read, is_destage: false, passed: 0, done: Some(sender) });
            receiver.await;
        }
        let bus = len * self.model.bus_ns_per_kib / 1024;
        self.world.clock.sleep(Duration::from_nanos(self.model.overhead_ns + bus)).await;
    }

    async fn flush(self: Arc<Self>) {
        loop {
            let ticket = self.destaged.ticket();
            if lock(&self.state).cached == 0 {
                return;
            }
            self.destaged.wait(ticket).await;
        }
    }
}

/// See the module.
pub(in crate::run) struct Disks {
    spindles: Vec<Arc<Spindle>>,
    stripe_bytes: u64,
}

impl Disks {
    pub(in crate::run) fn new(model: DiskModel, count: usize, stripe_bytes: u64, world: &World) -> Arc<Disks> {
        let spindle = |_| {
            Arc::new_cyclic(|me| Spindle {
                me: me.clone(),
                model,
                world: world.clone(),
                state: Mutex::default(),
                destaged: Notify::new(),
            })
        };
        Arc::new(Disks { spindles: (0..count).map(spindle).collect(), stripe_bytes })
    }

    /// Which disk, and where on it.
    fn place(&self, offset: u64) -> (usize, u64) {
        let (stripe, disks) = (offset / self.stripe_bytes, self.spindles.len() as u64);
        ((stripe % disks) as usize, stripe / disks * self.stripe_bytes + offset % self.stripe_bytes)
    }
}

impl Timing for Disks {
    fn take(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost {
        let is_read = match verb {
            Verb::Read => true,
            Verb::Write | Verb::WriteZeroes => false,
            Verb::Flush => {
                let all: Vec<_> = self.spindles.iter().map(|spindle| spindle.clone().flush()).collect();
                return Box::pin(async {
                    futures_util::future::join_all(all).await;
                });
            }
            Verb::Discard | Verb::Status => return Box::pin(async {}),
        };
        let mut pieces = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let len = (self.stripe_bytes - at % self.stripe_bytes).min(end - at);
            let (disk, place) = self.place(at);
            pieces.push(self.spindles[disk].clone().transfer(is_read, place, len, fua));
            at += len;
        }
        Box::pin(async {
            futures_util::future::join_all(pieces).await;
        })
    }

    fn is_rotational(&self) -> bool {
        true
    }
}
