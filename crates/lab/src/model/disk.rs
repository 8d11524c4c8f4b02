//! A disk: seek curve, rotation, zones, track buffer, write cache, command queue.
//!
//! The order of service is by positioning time among the requests a drive may look at, and nobody is passed over for ever. Tracks get shorter from
//! zone to zone: a turn brings fewer bytes on the inner ones, and a cylinder holds fewer. Several disks are a set (`raid`).

use super::bucket::moved_ns;
use super::{Cost, Timing};
use device::sync::{Notify, Sender, lock, one_shot};
use device::{Verb, World};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// What a drive is. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskModel {
    pub(crate) rpm: u64,
    pub(crate) cylinders: u64,
    pub(crate) heads: u64,
    /// On the outer tracks.
    pub(crate) track_bytes: u64,
    /// On the inner ones.
    pub(crate) inner_track_bytes: u64,
    /// Of as many cylinders each; 1: all tracks are outer ones.
    pub(crate) zones: u64,
    /// To the next cylinder, over a third of the disk, over all of it.
    pub(crate) seek_ns: [u64; 3],
    /// Of the drive, its controller and the way to it, for each request.
    pub(crate) overhead_ns: u64,
    pub(crate) bus_ns_per_kib: u64,
    /// What is read ahead while nobody asks.
    pub(crate) read_ahead_bytes: u64,
    /// Requests the drive orders among.
    pub(crate) queue: usize,
    /// Writes it acknowledges before they are on the medium; 0: none.
    pub(crate) cached_writes: usize,
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

    /// The same drive with outer tracks only.
    pub(crate) fn outer(self) -> DiskModel {
        DiskModel { zones: 1, ..self }
    }

    /// What each zone is, from the outer ones inwards.
    fn layout(&self) -> Vec<Zone> {
        let zones = self.zones.clamp(1, ZONES_MAX);
        let (mut begins, mut cylinder) = (0, 0);
        let mut layout = Vec::new();
        for n in 0..zones {
            let shorter = self.track_bytes.saturating_sub(self.inner_track_bytes) * n / (zones - 1).max(1);
            // Whole sectors, all of them on one track.
            let track_bytes = (self.track_bytes - shorter) / SECTOR_BYTES * SECTOR_BYTES;
            layout.push(Zone { begins, cylinder, track_bytes });
            let next = self.cylinders * (n + 1) / zones;
            begins += (next - cylinder) * self.heads * track_bytes;
            cylinder = next;
        }
        layout
    }

    /// Bytes that it holds.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        let layout = self.layout();
        let last = layout[layout.len() - 1];
        last.begins + (self.cylinders - last.cylinder) * self.heads * last.track_bytes
    }
}

const SECTOR_BYTES: u64 = 512;
/// Zones of a drive at most: real ones have up to some thirty.
pub(crate) const ZONES_MAX: u64 = 64;

/// Tracks of one length.
#[derive(Clone, Copy, Debug)]
struct Zone {
    /// Its first byte and cylinder.
    begins: u64,
    cylinder: u64,
    track_bytes: u64,
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

/// See the module.
pub(crate) struct Disk {
    me: Weak<Disk>,
    model: DiskModel,
    zones: Vec<Zone>,
    world: World,
    state: Mutex<State>,
    /// The cache has room again.
    destaged: Notify,
}

impl Disk {
    pub(crate) fn new(model: DiskModel, world: &World) -> Arc<Disk> {
        Arc::new_cyclic(|me| Disk {
            me: me.clone(),
            model,
            zones: model.layout(),
            world: world.clone(),
            state: Mutex::default(),
            destaged: Notify::new(),
        })
    }

    fn zone(&self, offset: u64) -> Zone {
        let behind = self.zones.partition_point(|zone| zone.begins <= offset);
        self.zones[behind.saturating_sub(1)]
    }

    fn cylinder(&self, offset: u64) -> u64 {
        let zone = self.zone(offset);
        zone.cylinder + (offset - zone.begins) / (zone.track_bytes * self.model.heads)
    }

    /// So many bytes from there on pass the head.
    fn pass_ns(&self, offset: u64, len: u64) -> u64 {
        let (len, turn) = (u128::from(len), u128::from(self.model.turn_ns()));
        (len * turn / u128::from(self.zone(offset).track_bytes)).min(u128::from(u64::MAX / 4)) as u64
    }

    /// From now until the request is done.
    fn service_ns(&self, state: &State, item: &Item, now: u64) -> u64 {
        let model = &self.model;
        let pass = self.pass_ns(item.offset, item.len);
        if let Some(at) = self.ahead(state, item) {
            return at.saturating_sub(now);
        }
        let at = now + model.seek(state.cylinder, self.cylinder(item.offset));
        let (turn, zone) = (model.turn_ns(), self.zone(item.offset));
        let angle = (item.offset - zone.begins) % zone.track_bytes * turn / zone.track_bytes;
        at - now + (angle + turn - at % turn) % turn + pass
    }

    /// When the drive, which has gone on reading, has this in its buffer; none when it never will.
    fn ahead(&self, state: &State, item: &Item) -> Option<u64> {
        let end = item.offset + item.len;
        let is_ahead = item.is_read && item.offset >= state.end && end <= state.end + self.model.read_ahead_bytes;
        is_ahead.then(|| state.end_at + self.pass_ns(state.end, end - state.end))
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
                let ahead = self.pass_ns(item.offset, self.model.read_ahead_bytes);
                // What was read ahead by then is bounded by the buffer.
                let passed = self.ahead(&state, &item).unwrap_or(now).min(now);
                state.end = item.offset + item.len;
                state.end_at = passed.max(now.saturating_sub(ahead));
                state.cylinder = self.cylinder(state.end);
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
        let bus = moved_ns(len, self.model.bus_ns_per_kib);
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

impl Timing for Disk {
    fn take(&self, verb: Verb, offset: u64, len: u64, fua: bool) -> Cost {
        let Some(me) = self.me.upgrade() else { unreachable!("it is called through an Arc") };
        match verb {
            Verb::Read => Box::pin(me.transfer(true, offset, len, fua)),
            Verb::Write | Verb::WriteZeroes => Box::pin(me.transfer(false, offset, len, fua)),
            Verb::Flush => Box::pin(me.flush()),
            Verb::Discard | Verb::Status => Box::pin(async {}),
        }
    }

    fn is_rotational(&self) -> bool {
        true
    }

    fn has_volatile_cache(&self) -> bool {
        self.model.cached_writes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: DiskModel = DiskModel {
        rpm: 7_200,
        cylinders: 1_000,
        heads: 2,
        track_bytes: 1 << 20,
        inner_track_bytes: 512 << 10,
        zones: 3,
        seek_ns: [800_000, 8_500_000, 17_000_000],
        overhead_ns: 0,
        bus_ns_per_kib: 0,
        read_ahead_bytes: 0,
        queue: 1,
        cached_writes: 0,
    };

    /// Goal: zones follow each other without a gap, tracks get shorter, and the sum is what the drive holds. Method: three zones by hand.
    #[test]
    fn zones_lie_one_behind_the_other() {
        let layout = MODEL.layout();
        let of = |of: fn(&Zone) -> u64| layout.iter().map(of).collect::<Vec<_>>();
        assert_eq!(of(|zone| zone.cylinder), [0, 333, 666]);
        assert_eq!(of(|zone| zone.track_bytes), [1 << 20, 768 << 10, 512 << 10]);
        assert_eq!(of(|zone| zone.begins >> 19), [0, 333 * 2 * 2, 333 * 4 + 333 * 3]);
        assert_eq!(MODEL.capacity_bytes() >> 19, 333 * 4 + 333 * 3 + 334 * 2);
        assert_eq!(MODEL.outer().capacity_bytes(), 2_000 << 20);
    }
}
