//! The database flash cache as the vendor built it: a second level between the buffer cache and the data files, in slots of a page on a
//! flash device. What is where is known in memory alone, so that it is empty after a restart.
//!
//! Only the database writer puts pages here, and only clean ones. KEEP is not pushed out by DEFAULT. A copy ends when its page is changed.

use crate::index::Index;
use crate::list::{Links, List};
use crate::object::Keep;
use crate::page::PageNumber;
use device::Device;
use device::sync::lock;
use std::sync::Mutex;

/// Counters of the database flash cache, in the words of the field's scripts `flash_insert_stats` and `flash_time_savings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashFigures {
    /// Pages written to it.
    pub inserts: u64,
    /// Pages read from it.
    pub hits: u64,
    /// Clean pages that left the buffer cache before the writer came to them.
    pub skipped_overloaded: u64,
    /// Pages that are not to be cached.
    pub skipped_none: u64,
    /// Only what is being read, or KEEP, could have made room.
    pub skipped_no_room: u64,
    /// Copies that ended since their page was changed.
    pub invalidated: u64,
    /// Copies that made room for others.
    pub pushed_out: u64,
    /// Reads that failed or gave something else; the copy ended.
    pub damaged: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Reads under way.
    readers: u32,
    /// It was ended while it was read: free with the last reader.
    is_ended: bool,
    keep: Keep,
}

struct State {
    slots: Vec<Slot>,
    links: Links,
    free: Vec<u32>,
    /// Most recently used first.
    default: List,
    kept: List,
    index: Index,
    figures: FlashFigures,
}

impl State {
    fn unlink(&mut self, slot: u32) {
        let is_kept = self.slots[slot as usize].keep == Keep::Keep;
        let list = if is_kept { &mut self.kept } else { &mut self.default };
        list.remove(&mut self.links, slot);
    }

    /// The most recently used of its list.
    fn push(&mut self, slot: u32) {
        let is_kept = self.slots[slot as usize].keep == Keep::Keep;
        let list = if is_kept { &mut self.kept } else { &mut self.default };
        list.push_head(&mut self.links, slot);
    }

    /// The copy of a page ends.
    fn end(&mut self, page: PageNumber) -> bool {
        let Some(slot) = self.index.get(page) else { return false };
        self.index.remove(slot);
        self.unlink(slot);
        if self.slots[slot as usize].readers == 0 {
            self.free.push(slot);
        } else {
            self.slots[slot as usize].is_ended = true;
        }
        true
    }

    /// The least recently used slot of a list that nobody reads.
    fn oldest(&self, list: &List) -> Option<u32> {
        let mut next = list.tail();
        while let Some(slot) = next {
            if self.slots[slot as usize].readers == 0 {
                return Some(slot);
            }
            next = self.links.before(slot);
        }
        None
    }
}

/// See the module.
pub struct FlashCache {
    device: Device,
    page_bytes: u64,
    state: Mutex<State>,
}

/// A slot that is read: not reused meanwhile.
pub(crate) struct Reading<'a> {
    cache: &'a FlashCache,
    slot: u32,
}

impl Reading<'_> {
    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.slot) * self.cache.page_bytes
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.cache.state);
        let slot = &mut state.slots[self.slot as usize];
        slot.readers -= 1;
        if slot.readers == 0 && std::mem::take(&mut slot.is_ended) {
            state.free.push(self.slot);
        }
    }
}

/// A slot that is being written: nobody's yet. Free again when dropped.
pub(crate) struct Inserting<'a> {
    cache: &'a FlashCache,
    slot: Option<u32>,
    page: PageNumber,
    keep: Keep,
}

impl Inserting<'_> {
    pub(crate) fn offset(&self) -> u64 {
        self.slot.map_or(0, |slot| u64::from(slot) * self.cache.page_bytes)
    }

    /// It is written: from now on it is found.
    pub(crate) fn done(mut self) {
        let Some(slot) = self.slot.take() else { return };
        let mut state = lock(&self.cache.state);
        state.end(self.page);
        state.slots[slot as usize].keep = self.keep;
        state.index.insert(self.page, slot);
        state.push(slot);
        state.figures.inserts += 1;
    }
}

impl Drop for Inserting<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            lock(&self.cache.state).free.push(slot);
        }
    }
}

impl FlashCache {
    /// An empty one over a whole device, or over its first `bytes`.
    ///
    /// # Panics
    /// When not even one page fits.
    #[must_use]
    pub fn new(device: Device, bytes: Option<u64>, page_bytes: usize) -> FlashCache {
        let size = device.geometry().size_bytes;
        let slots = (bytes.unwrap_or(size).min(size) / page_bytes as u64) as usize;
        assert!(slots > 0 && slots < u32::MAX as usize, "a flash cache holds pages");
        let state = State {
            slots: vec![Slot::default(); slots],
            links: Links::new(slots),
            free: (0..slots as u32).rev().collect(),
            default: List::new(),
            kept: List::new(),
            index: Index::new(slots),
            figures: FlashFigures::default(),
        };
        FlashCache { device, page_bytes: page_bytes as u64, state: Mutex::new(state) }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Counters of the flash cache since it was made.
    #[must_use]
    pub fn figures(&self) -> FlashFigures {
        lock(&self.state).figures
    }

    /// Pages on flash.
    #[must_use]
    pub fn pages(&self) -> usize {
        let state = lock(&self.state);
        state.default.len() + state.kept.len()
    }

    /// Whether a page is there.
    #[must_use]
    pub fn holds(&self, page: PageNumber) -> bool {
        lock(&self.state).index.get(page).is_some()
    }

    /// A page is going to be read, if it is there.
    pub(crate) fn read(&self, page: PageNumber) -> Option<Reading<'_>> {
        let mut state = lock(&self.state);
        let slot = state.index.get(page)?;
        state.slots[slot as usize].readers += 1;
        state.unlink(slot);
        state.push(slot);
        state.figures.hits += 1;
        Some(Reading { cache: self, slot })
    }

    /// Room for a page.
    pub(crate) fn insert(&self, page: PageNumber, keep: Keep) -> Option<Inserting<'_>> {
        let mut state = lock(&self.state);
        if keep == Keep::None {
            state.figures.skipped_none += 1;
            return None;
        }
        let slot = state.free.pop().or_else(|| {
            let default = state.oldest(&state.default);
            let oldest = default.or_else(|| (keep == Keep::Keep).then(|| state.oldest(&state.kept)).flatten())?;
            state.index.remove(oldest);
            state.unlink(oldest);
            state.figures.pushed_out += 1;
            Some(oldest)
        });
        state.figures.skipped_no_room += u64::from(slot.is_none());
        slot.map(|slot| Inserting { cache: self, slot: Some(slot), page, keep })
    }

    /// A page was changed: its copy ends.
    pub(crate) fn invalidate(&self, page: PageNumber) {
        let mut state = lock(&self.state);
        let ended = state.end(page);
        state.figures.invalidated += u64::from(ended);
    }

    /// Count a read from flash that gave another page or a damaged one.
    pub(crate) fn damaged(&self, page: PageNumber) {
        let mut state = lock(&self.state);
        state.figures.damaged += 1;
        state.end(page);
    }

    /// A clean page left the buffer cache without having been offered.
    pub(crate) fn overloaded(&self) {
        lock(&self.state).figures.skipped_overloaded += 1;
    }
}

impl std::fmt::Debug for FlashCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlashCache({} pages)", self.pages())
    }
}
