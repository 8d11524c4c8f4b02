//! What a kernel puts before a device: requests wait there until they are given to the driver, which takes so many at once.
//!
//! *None* gives them on as they come. *Deadline* goes over the device in one direction, in batches of reads or of writes, and passes nobody over
//! for longer than it may. *Fair* (CFQ, what kernels had unless told otherwise in 2010) gives the device to one issuer after another for a
//! slice of time; where it believes that an issuer goes on nearby, it waits for his next request, and the others wait too. Rules and numbers
//! are those of `block/deadline-iosched.c` and `block/cfq-iosched.c` of Linux 2.6 before CFQ was told of drives without seeks, for which later
//! ones do not wait if the drive says that it is one. Left out: priorities, merging, preemption, and the plug, which a reader who waits pulls
//! at once.

use super::{Cost, Timing};
use device::sync::{Sender, lock, one_shot};
use device::{Instant, Verb, World};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    None,
    Deadline,
    Fair,
}

impl Order {
    /// The words of a description.
    pub(crate) const NAMES: [(&'static str, Order); 3] =
        [("none", Order::None), ("deadline", Order::Deadline), ("fair", Order::Fair)];
}

const MS: u64 = 1_000_000;
/// Document: `fifo_batch`, `writes_starved`, `read_expire`, `write_expire`.
const BATCH: u32 = 16;
const WRITES_STARVED: u32 = 2;
const EXPIRE_NS: [u64; 2] = [500 * MS, 5_000 * MS];
/// Document: `cfq_quantum`, `cfq_slice_sync`, `cfq_slice_async`, `cfq_slice_idle`.
const QUANTUM: usize = 4;
const SLICE_NS: [u64; 2] = [100 * MS, 40 * MS];
const IDLE_NS: u64 = 8 * MS;
/// Document: `CIC_SEEKY`, 8 Ki sectors between requests in the mean; nobody waits for such an issuer where the device takes several at once.
const SEEKY_BYTES: u64 = 8 * 1024 * 512;

struct Item {
    number: u64,
    issuer: u32,
    is_read: bool,
    offset: u64,
    len: u64,
    since: u64,
    begun: Sender<()>,
}

/// What CFQ knows of an issuer.
#[derive(Default)]
struct Issuer {
    in_flight: usize,
    last_end: Option<u64>,
    /// Decayed means, of the way to the next request and of the time until it comes.
    seek_bytes: u64,
    think_ns: u64,
    completed_at: u64,
}

#[derive(Default)]
struct State {
    queue: Vec<Item>,
    next_number: u64,
    in_flight: usize,
    /// Where the last one given on ended.
    end: u64,
    /// Deadline: the batch goes this way, so far; reads have gone first so often.
    batch_reads: bool,
    batch: u32,
    starved: u32,
    /// Fair: whose turn it is, and until when.
    active: Option<(u32, u64)>,
    last_active: u32,
    issuers: BTreeMap<u32, Issuer>,
}

enum Choice {
    Give(usize),
    /// Nothing before then, unless something comes.
    WaitUntil(u64),
    Nothing,
}

/// See the module.
pub(crate) struct Elevator {
    me: Weak<Elevator>,
    order: Order,
    /// Requests the driver takes at once.
    depth: usize,
    timing: Arc<dyn Timing>,
    world: World,
    state: Mutex<State>,
}

impl Elevator {
    pub(crate) fn new(order: Order, depth: usize, timing: Arc<dyn Timing>, world: &World) -> Arc<Elevator> {
        Arc::new_cyclic(|me| Elevator {
            me: me.clone(),
            order,
            depth,
            timing,
            world: world.clone(),
            state: Mutex::default(),
        })
    }

    /// A request from its coming to its end: the nanoseconds it was held back, and those it took.
    pub(crate) async fn request(&self, issuer: u32, is_read: bool, offset: u64, len: u64) -> (u64, u64) {
        self.verb(issuer, if is_read { Verb::Read } else { Verb::Write }, offset, len, false).await
    }

    async fn verb(&self, issuer: u32, verb: Verb, offset: u64, len: u64, fua: bool) -> (u64, u64) {
        let is_read = verb == Verb::Read;
        let since = self.world.clock.now().0;
        let (begun, begins) = one_shot();
        {
            let mut state = lock(&self.state);
            let number = state.next_number;
            state.next_number += 1;
            state.came(issuer, offset, since);
            state.queue.push(Item { number, issuer, is_read, offset, len, since, begun });
        }
        self.pump();
        begins.await;
        let begun_at = self.world.clock.now().0;
        self.timing.take(verb, offset, len, fua).await;
        let now = self.world.clock.now().0;
        lock(&self.state).completed(issuer, now);
        self.pump();
        (begun_at - since, now - begun_at)
    }

    /// Give on what may be given on.
    fn pump(&self) {
        let now = self.world.clock.now().0;
        let mut state = lock(&self.state);
        while state.in_flight < self.depth {
            let choice = match self.order {
                Order::None => {
                    if state.queue.is_empty() {
                        Choice::Nothing
                    } else {
                        Choice::Give(0)
                    }
                }
                Order::Deadline => state.choose_by_deadline(now),
                Order::Fair => state.choose_fairly(now, self.depth > 1),
            };
            match choice {
                Choice::Give(at) => {
                    let item = state.queue.remove(at);
                    state.in_flight += 1;
                    state.end = item.offset + item.len;
                    state.issuers.entry(item.issuer).or_default().in_flight += 1;
                    item.begun.send(());
                }
                Choice::WaitUntil(at) => {
                    let (me, clock) = (self.me.clone(), self.world.clock.clone());
                    self.world.spawn.spawn(Box::pin(async move {
                        clock.sleep_until(Instant(at)).await;
                        if let Some(me) = me.upgrade() {
                            me.pump();
                        }
                    }));
                    return;
                }
                Choice::Nothing => return,
            }
        }
    }
}

/// Before a device of one issuer, which a cell is.
impl Timing for Elevator {
    fn take(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost {
        let Some(me) = self.me.upgrade() else { unreachable!("it is called through an Arc") };
        match verb {
            Verb::Read | Verb::Write | Verb::WriteZeroes => Box::pin(async move {
                me.verb(0, verb, offset, len, fua).await;
            }),
            Verb::Flush | Verb::Discard | Verb::Status => self.timing.take(verb, offset, len, fua),
        }
    }

    fn is_rotational(&self) -> bool {
        self.timing.is_rotational()
    }

    fn has_volatile_cache(&self) -> bool {
        self.timing.has_volatile_cache()
    }

    fn claimed_page_bytes(&self) -> Option<u32> {
        self.timing.claimed_page_bytes()
    }
}

/// A mean that forgets an eighth with each value.
fn decayed(mean: u64, value: u64) -> u64 {
    (7 * mean + value) / 8
}

impl State {
    fn came(&mut self, id: u32, offset: u64, now: u64) {
        let issuer = self.issuers.entry(id).or_default();
        if let Some(last) = issuer.last_end {
            issuer.seek_bytes = decayed(issuer.seek_bytes, offset.abs_diff(last));
        }
        if issuer.in_flight == 0 && issuer.completed_at > 0 {
            issuer.think_ns = decayed(issuer.think_ns, (now - issuer.completed_at).min(2 * IDLE_NS));
        }
        issuer.last_end = Some(offset);
    }

    fn completed(&mut self, id: u32, now: u64) {
        self.in_flight -= 1;
        let issuer = self.issuers.entry(id).or_default();
        issuer.in_flight -= 1;
        issuer.completed_at = now;
    }

    /// The next one upwards from where the last one ended, among those that are asked for; else the lowest.
    fn upwards(&self, which: impl Fn(&Item) -> bool) -> Option<usize> {
        let of = |item: &Item| (item.offset < self.end, item.offset, item.number);
        let found = self.queue.iter().enumerate().filter(|(_, item)| which(item));
        found.min_by_key(|(_, item)| of(item)).map(|(at, _)| at)
    }

    fn choose_by_deadline(&mut self, now: u64) -> Choice {
        let has = |reads: bool| self.queue.iter().any(|item| item.is_read == reads);
        let (reads, writes) = (has(true), has(false));
        if !reads && !writes {
            return Choice::Nothing;
        }
        // A batch goes on while there is something ahead of it.
        let goes_on = self.batch > 0 && self.batch < BATCH && if self.batch_reads { reads } else { writes };
        if !goes_on {
            let write = writes && (!reads || self.starved >= WRITES_STARVED);
            self.starved = if write { 0 } else { self.starved + u32::from(writes) };
            (self.batch_reads, self.batch) = (!write, 0);
            let direction = self.batch_reads;
            let oldest = self.queue.iter().enumerate().filter(|(_, item)| item.is_read == direction);
            let oldest = oldest.min_by_key(|(_, item)| item.number);
            if let Some((at, item)) = oldest
                && now >= item.since + EXPIRE_NS[usize::from(!direction)]
            {
                self.batch = 1;
                return Choice::Give(at);
            }
        }
        self.batch += 1;
        let direction = self.batch_reads;
        self.upwards(|item| item.is_read == direction).map_or(Choice::Nothing, Choice::Give)
    }

    fn choose_fairly(&mut self, now: u64, takes_several: bool) -> Choice {
        if let Some((id, slice_end)) = self.active {
            let others = self.queue.iter().any(|item| item.issuer != id);
            let issuer = self.issuers.entry(id).or_default();
            let (in_flight, completed_at) = (issuer.in_flight, issuer.completed_at);
            let goes_on = issuer.think_ns <= IDLE_NS && !(takes_several && issuer.seek_bytes > SEEKY_BYTES);
            let mine = self.upwards(|item| item.issuer == id);
            if now < slice_end || !others {
                match mine {
                    Some(at) if in_flight < QUANTUM || !others => return Choice::Give(at),
                    Some(_) => return Choice::Nothing,
                    None if !others => return Choice::Nothing,
                    // His next request is nearby: it is worth waiting for, CFQ believes.
                    None if goes_on && in_flight > 0 => return Choice::Nothing,
                    None if goes_on && now < completed_at + IDLE_NS => {
                        return Choice::WaitUntil(completed_at + IDLE_NS);
                    }
                    None => {}
                }
            }
            self.active = None;
        }
        // One after the other.
        let of = |item: &Item| (item.issuer <= self.last_active, item.issuer);
        let Some(next) = self.queue.iter().min_by_key(|item| of(item)) else { return Choice::Nothing };
        let (id, slice) = (next.issuer, SLICE_NS[usize::from(!next.is_read)]);
        (self.active, self.last_active) = (Some((id, now + slice)), id);
        self.upwards(|item| item.issuer == id).map_or(Choice::Nothing, Choice::Give)
    }
}
