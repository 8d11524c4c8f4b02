//! Memory over a device, with ZFS's L2ARC as a second level or without one (S12): whole records, the least recently used leaves memory, and a
//! thread that once a second writes what is about to leave, so many bytes and no more.
//!
//! Memory is the same in front of a cell of ours, where there is no second level. Of ARC's two lists there is one; what is compared is what
//! goes to flash, not what stays in memory.

use device::sync::lock;
use device::{Buf, Bufs, Device, Outcome, World};
use futures_util::future::join_all;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Document: `l2arc_feed_secs`, `l2arc_headroom`: how far from the end of the list is looked at, in what may be written.
const FEED_EVERY: Duration = Duration::from_secs(1);
const HEADROOM: u64 = 2;
/// Assumed: writes of a feed that are under way at once (8 to 256).
const WRITES_AT_ONCE: usize = 32;

/// The second level.
#[derive(Clone)]
pub(super) struct Second {
    pub(super) flash: Device,
    pub(super) bytes: u64,
    /// `l2arc_write_max`, bytes a second.
    pub(super) write_max: u64,
    /// `l2arc_noprefetch`.
    pub(super) noprefetch: bool,
}

struct Held {
    used: u64,
    is_prefetched: bool,
    data: Vec<u8>,
}

#[derive(Default)]
struct State {
    memory: HashMap<u64, Held>,
    by_use: BTreeMap<u64, u64>,
    now: u64,
    on_flash: HashMap<u64, u64>,
    /// Which record is in each place of the flash, written round and round.
    places: Vec<Option<u64>>,
    next_place: u64,
    figures: Figures,
    has_ended: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) memory_hits: u64,
    pub(super) flash_hits: u64,
    pub(super) misses: u64,
    pub(super) fed_bytes: u64,
}

/// See the module.
pub(super) struct Levels {
    me: Weak<Levels>,
    below: Device,
    record_bytes: u64,
    records_max: usize,
    second: Option<Second>,
    world: World,
    state: Mutex<State>,
}

impl State {
    fn touch(&mut self, record: u64) -> Option<&Held> {
        self.now += 1;
        let held = self.memory.get_mut(&record)?;
        self.by_use.remove(&held.used);
        held.used = self.now;
        self.by_use.insert(self.now, record);
        Some(held)
    }
}

impl Levels {
    pub(super) fn new(
        below: Device,
        record_bytes: u64,
        memory_bytes: u64,
        second: Option<Second>,
        world: &World,
    ) -> Arc<Levels> {
        let places = second.as_ref().map_or(0, |second| second.bytes / record_bytes);
        let levels = Arc::new_cyclic(|me| Levels {
            me: me.clone(),
            below,
            record_bytes,
            records_max: (memory_bytes / record_bytes).max(1) as usize,
            second,
            world: world.clone(),
            state: Mutex::new(State { places: vec![None; places as usize], ..State::default() }),
        });
        if let Some(second) = levels.second.clone() {
            world.spawn.spawn(Box::pin(levels.clone().feed(second)));
        }
        levels
    }

    /// The feed ends.
    pub(super) fn end(&self) {
        lock(&self.state).has_ended = true;
    }

    pub(super) fn figures(&self) -> Figures {
        lock(&self.state).figures
    }

    /// Some bytes, all of one record; `is_prefetch`: nobody asked for it yet, others before it were.
    pub(super) async fn read(&self, offset: u64, len: usize, is_prefetch: bool) -> Vec<u8> {
        let (record, within) = (offset / self.record_bytes, (offset % self.record_bytes) as usize);
        {
            let mut state = lock(&self.state);
            if let Some(held) = state.touch(record) {
                let data = held.data[within..within + len].to_vec();
                state.figures.memory_hits += 1;
                return data;
            }
        }
        let data = match self.read_second(record).await {
            Some(data) => data,
            None => {
                lock(&self.state).figures.misses += 1;
                self.take(&self.below, record * self.record_bytes).await
            }
        };
        let part = data[within..within + len].to_vec();
        self.keep(record, data, is_prefetch);
        part
    }

    async fn take(&self, device: &Device, offset: u64) -> Vec<u8> {
        let len = self.record_bytes as usize;
        let read = device.read(offset, Bufs::from(Buf::zeroed(len))).await;
        assert!(read.outcome == Outcome::Done, "no device fails here");
        read.bufs.to_vec(0..len)
    }

    async fn read_second(&self, record: u64) -> Option<Vec<u8>> {
        let second = self.second.as_ref()?;
        let place = *lock(&self.state).on_flash.get(&record)?;
        let data = self.take(&second.flash, place * self.record_bytes).await;
        let mut state = lock(&self.state);
        // It may have been overwritten meanwhile; ZFS has a checksum to tell.
        let is_there = state.on_flash.get(&record) == Some(&place);
        state.figures.flash_hits += u64::from(is_there);
        is_there.then_some(data)
    }

    fn keep(&self, record: u64, data: Vec<u8>, is_prefetched: bool) {
        let mut state = lock(&self.state);
        if state.touch(record).is_some() {
            return;
        }
        let used = state.now;
        state.memory.insert(record, Held { used, is_prefetched, data });
        state.by_use.insert(used, record);
        while state.memory.len() > self.records_max {
            let Some((_, oldest)) = state.by_use.pop_first() else { return };
            state.memory.remove(&oldest);
        }
    }

    async fn feed(self: Arc<Self>, second: Second) {
        let me = self.me.clone();
        drop(self);
        loop {
            let Some(levels) = me.upgrade() else { return };
            let clock = levels.world.clock.clone();
            if lock(&levels.state).has_ended {
                return;
            }
            let chosen = levels.about_to_leave(&second);
            for some in chosen.chunks(WRITES_AT_ONCE) {
                join_all(some.iter().map(|(record, data)| levels.write(&second, *record, data))).await;
            }
            drop(levels);
            clock.sleep(FEED_EVERY).await;
        }
    }

    /// From the end of the list, what is not on flash and may be.
    fn about_to_leave(&self, second: &Second) -> Vec<(u64, Vec<u8>)> {
        let state = lock(&self.state);
        let records = |bytes: u64| (bytes / self.record_bytes) as usize;
        let oldest = state.by_use.values().take(records(HEADROOM * second.write_max));
        let held = oldest.filter_map(|record| Some((*record, state.memory.get(record)?)));
        let wanted = held
            .filter(|(record, held)| !(state.on_flash.contains_key(record) || second.noprefetch && held.is_prefetched));
        wanted.take(records(second.write_max)).map(|(record, held)| (record, held.data.clone())).collect()
    }

    async fn write(&self, second: &Second, record: u64, data: &[u8]) {
        let place = {
            let mut state = lock(&self.state);
            let place = state.next_place;
            state.next_place = (place + 1) % state.places.len() as u64;
            if let Some(old) = state.places[place as usize].take() {
                state.on_flash.remove(&old);
            }
            place
        };
        let data = Bufs::from(Buf::padded(data, 512)).freeze();
        let written = second.flash.write(place * self.record_bytes, data, false).await;
        assert!(written.outcome == Outcome::Done, "no device fails here");
        let mut state = lock(&self.state);
        state.figures.fed_bytes += self.record_bytes;
        state.places[place as usize] = Some(record);
        state.on_flash.insert(record, place);
    }
}
