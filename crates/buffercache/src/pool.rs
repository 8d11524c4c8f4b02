//! The buffers: which page is in which, in what order they are reused, and which must be written first.
//!
//! The rules are Oracle's: one list with a hot and a cold half. A page that is read goes to the head of the cold half (the *midpoint*). A
//! touch moves nothing: it is counted, once in a while. The search for a buffer begins at the cold end; what has been touched often enough
//! goes to the hot end with its count gone, what is dirty goes to the list of the writer, the first clean one is taken.
//!
//! Decides only: no I/O, no waiting, no clock of its own.

use crate::Sabotage;
use crate::index::Index;
use crate::list::{Links, List};
use crate::page::PageNumber;
use device::Instant;
use std::collections::BTreeSet;

/// How buffers are reused. The defaults are the vendor's (`_db_percent_hot_default`, `_db_aging_…`, `_db_block_max_scan_pct`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Share of the buffers in the hot half.
    pub(crate) hot_percent: usize,
    /// Touches that make a buffer hot when the search comes to it.
    pub(crate) hot_touches: u32,
    /// Touches of a buffer that leaves the hot half.
    pub(crate) cool_touches: u32,
    /// Touches within this time count once.
    pub(crate) touch_ns: u64,
    /// Share of the buffers a search looks at before it gives up.
    pub(crate) search_percent: usize,
}

/// What a buffer is being written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    DataFile,
    Flash,
}

/// Where a page goes that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The head of the cold half.
    Midpoint,
    /// The cold end: it is the next to go.
    ColdEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Free,
    /// Its page is being read: in no list.
    Reading,
    Hot,
    Cold,
    /// It waits for the writer.
    WriteList,
}

#[derive(Debug)]
struct Frame<P> {
    home: Home,
    page: Option<P>,
    touches: u32,
    touched_at: Instant,
    /// The first change since it was last written.
    dirty: Option<u64>,
    /// The last change.
    changed: u64,
    writing: Option<Target>,
    /// It was changed while it was being written; only a sabotaged pool lets that happen.
    changed_meanwhile: bool,
    /// The flash cache has it, or does not want it.
    offered: bool,
}

/// A buffer to be written.
#[derive(Clone, Debug)]
pub(crate) struct Job<P> {
    pub(crate) frame: u32,
    pub(crate) number: PageNumber,
    pub(crate) page: P,
    /// Its last change: whose redo goes first.
    pub(crate) changed: u64,
}

/// What is known of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<P> {
    Here(P),
    /// Somebody reads it.
    Coming,
    Absent,
}

/// What became of a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Done,
    /// It has to wait for the end of a write.
    Busy(Target),
    Absent,
}

/// A page that left the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) number: PageNumber,
    /// The flash cache has it, or does not want it.
    pub(crate) offered: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool<P> {
    rules: Rules,
    frames: Vec<Frame<P>>,
    links: Links,
    free: Vec<u32>,
    hot: List,
    cold: List,
    write_list: List,
    index: Index,
    /// First change and buffer of all that is dirty: the order of a checkpoint.
    dirty: BTreeSet<(u64, u32)>,
    sabotage: Option<Sabotage>,
}

impl<P: Clone> Pool<P> {
    pub(crate) fn new(frames: usize, rules: Rules, sabotage: Option<Sabotage>) -> Pool<P> {
        let frame = || Frame {
            home: Home::Free,
            page: None,
            touches: 0,
            touched_at: Instant(0),
            dirty: None,
            changed: 0,
            writing: None,
            changed_meanwhile: false,
            offered: false,
        };
        Pool {
            rules,
            frames: (0..frames).map(|_| frame()).collect(),
            links: Links::new(frames),
            free: (0..frames as u32).rev().collect(),
            hot: List::new(),
            cold: List::new(),
            write_list: List::new(),
            index: Index::new(frames),
            dirty: BTreeSet::new(),
            sabotage,
        }
    }

    /// Look at a page and touch it.
    pub(crate) fn touch(&mut self, number: PageNumber, now: Instant) -> Found<P> {
        let Some(at) = self.index.get(number) else { return Found::Absent };
        let rules = self.rules;
        let frame = &mut self.frames[at as usize];
        let Some(page) = &frame.page else { return Found::Coming };
        if frame.touches == 0 || now.ns_since(frame.touched_at) >= rules.touch_ns {
            frame.touches += 1;
            frame.touched_at = now;
        }
        Found::Here(page.clone())
    }

    /// Look at a page as a scan does: it does not count as a touch.
    pub(crate) fn peek(&self, number: PageNumber) -> Found<P> {
        let Some(at) = self.index.get(number) else { return Found::Absent };
        self.frames[at as usize].page.clone().map_or(Found::Coming, Found::Here)
    }

    /// A buffer for a page that is not here and is going to be read; none when nothing may be reused now. And what had to go for it.
    pub(crate) fn begin_read(&mut self, number: PageNumber) -> Option<(u32, Option<Evicted>)> {
        let (at, evicted) = match self.free.pop() {
            Some(at) => (at, None),
            None => {
                let at = self.search()?;
                let frame = &mut self.frames[at as usize];
                let offered = frame.offered;
                if let Some(first) = frame.dirty.take() {
                    self.dirty.remove(&(first, at));
                }
                (at, Some(Evicted { number: self.index.remove(at), offered }))
            }
        };
        self.index.insert(number, at);
        let frame = &mut self.frames[at as usize];
        frame.home = Home::Reading;
        frame.page = None;
        frame.offered = false;
        frame.changed = 0;
        Some((at, evicted))
    }

    /// It was read; `offered` when it came from flash.
    pub(crate) fn end_read(&mut self, at: u32, page: P, place: Place, offered: bool, now: Instant) {
        let frame = &mut self.frames[at as usize];
        debug_assert!(frame.home == Home::Reading, "a buffer is filled once");
        frame.page = Some(page);
        frame.touches = u32::from(place == Place::Midpoint);
        frame.touched_at = now;
        frame.offered = offered;
        frame.home = Home::Cold;
        match place {
            Place::Midpoint => self.cold.push_head(&mut self.links, at),
            Place::ColdEnd => self.cold.push_tail(&mut self.links, at),
        }
    }

    /// It could not be read.
    pub(crate) fn abandon_read(&mut self, at: u32) {
        debug_assert!(self.frames[at as usize].home == Home::Reading, "only what is being read is abandoned");
        self.index.remove(at);
        self.frames[at as usize].home = Home::Free;
        self.free.push(at);
    }

    /// The first buffer from the cold end on that may be reused, taken out of its list.
    fn search(&mut self) -> Option<u32> {
        let rules = self.rules;
        let steps = (self.frames.len() * rules.search_percent / 100).max(1);
        let mut next = self.cold.tail();
        for _ in 0..steps {
            let at = match next {
                Some(at) => at,
                // The cold half is empty, or all of it is busy: what is coldest of the hot half.
                None => self.cool_one()?,
            };
            next = self.links.before(at);
            let frame = &mut self.frames[at as usize];
            if frame.writing.is_some() {
                continue;
            }
            if frame.touches >= rules.hot_touches {
                frame.touches = 0;
                frame.home = Home::Hot;
                self.cold.remove(&mut self.links, at);
                self.hot.push_head(&mut self.links, at);
                self.balance();
                if next.is_none() {
                    next = self.cold.tail();
                }
                continue;
            }
            if frame.dirty.is_some() && self.sabotage != Some(Sabotage::ReusesDirty) {
                frame.home = Home::WriteList;
                self.cold.remove(&mut self.links, at);
                self.write_list.push_head(&mut self.links, at);
                continue;
            }
            self.cold.remove(&mut self.links, at);
            return Some(at);
        }
        None
    }

    fn cool_one(&mut self) -> Option<u32> {
        let at = self.hot.tail()?;
        self.hot.remove(&mut self.links, at);
        let frame = &mut self.frames[at as usize];
        frame.home = Home::Cold;
        frame.touches = self.rules.cool_touches;
        self.cold.push_head(&mut self.links, at);
        Some(at)
    }

    /// The hot half is no larger than its share.
    fn balance(&mut self) {
        let hot_max = self.frames.len() * self.rules.hot_percent / 100;
        while self.hot.len() > hot_max && self.cool_one().is_some() {}
    }

    /// Change a page with change number `change`.
    pub(crate) fn change(
        &mut self,
        number: PageNumber,
        change: impl FnOnce() -> u64,
        edit: impl FnOnce(&mut P),
    ) -> Change {
        let Some(at) = self.index.get(number) else { return Change::Absent };
        let frame = &mut self.frames[at as usize];
        let Some(page) = &mut frame.page else { return Change::Absent };
        if let Some(target) = frame.writing {
            if self.sabotage != Some(Sabotage::LostChange) {
                return Change::Busy(target);
            }
            frame.changed_meanwhile = true;
        }
        edit(page);
        frame.changed = change();
        frame.offered = false;
        if frame.dirty.is_none() {
            frame.dirty = Some(frame.changed);
            self.dirty.insert((frame.changed, at));
        }
        Change::Done
    }

    /// Buffers from the cold end on that may be reused at once are at least `target`, or what stands in the way goes to the writer.
    pub(crate) fn look_ahead(&mut self, target: usize) {
        if self.dirty.is_empty() {
            return;
        }
        let (mut clean, mut next) = (self.free.len(), self.cold.tail());
        let mut steps = target.saturating_mul(2);
        while let Some(at) = next.filter(|_| clean < target && steps > 0) {
            steps -= 1;
            next = self.links.before(at);
            let frame = &mut self.frames[at as usize];
            if frame.writing.is_some() || frame.touches >= self.rules.hot_touches {
                continue;
            }
            if frame.dirty.is_some() {
                frame.home = Home::WriteList;
                self.cold.remove(&mut self.links, at);
                self.write_list.push_head(&mut self.links, at);
            } else {
                clean += 1;
            }
        }
    }

    fn job(&mut self, at: u32, target: Target) -> Option<Job<P>> {
        let frame = &mut self.frames[at as usize];
        let page = frame.page.clone()?;
        frame.writing = Some(target);
        Some(Job { frame: at, number: self.index.key(at), page, changed: frame.changed })
    }

    /// The next buffers to be written to the data file, at most `max`: those that stand in the way, then those whose first change is
    /// `due` or older. None of them may be changed or reused until [`Pool::end_write`].
    pub(crate) fn begin_writes(&mut self, max: usize, due: u64) -> Vec<Job<P>> {
        let mut jobs = Vec::new();
        let mut next = self.write_list.tail();
        while let Some(at) = next.filter(|_| jobs.len() < max) {
            next = self.links.before(at);
            if self.frames[at as usize].writing.is_none() {
                jobs.extend(self.job(at, Target::DataFile));
            }
        }
        if jobs.len() < max {
            let old = self.dirty.range(..=(due, u32::MAX)).map(|(_, at)| *at);
            let idle = old.filter(|at| self.frames[*at as usize].writing.is_none());
            let chosen: Vec<u32> = idle.take(max - jobs.len()).collect();
            jobs.extend(chosen.into_iter().filter_map(|at| self.job(at, Target::DataFile)));
        }
        jobs
    }

    /// A write has ended; what was written is clean.
    pub(crate) fn end_write(&mut self, at: u32, is_written: bool) {
        let frame = &mut self.frames[at as usize];
        frame.writing = None;
        let is_lost = std::mem::take(&mut frame.changed_meanwhile) && self.sabotage != Some(Sabotage::LostChange);
        if is_written
            && !is_lost
            && let Some(first) = frame.dirty.take()
        {
            self.dirty.remove(&(first, at));
        }
        if frame.home == Home::WriteList && frame.dirty.is_none() {
            // It was the next to go: it still is, unless it has been touched since.
            frame.home = Home::Cold;
            self.write_list.remove(&mut self.links, at);
            self.cold.push_tail(&mut self.links, at);
        }
    }

    /// The next clean buffers at the cold end that flash does not have, at most `max` among `window`; `wants` says no for good. None of
    /// them may be changed or reused until [`Pool::end_feed`].
    pub(crate) fn begin_feed(
        &mut self,
        max: usize,
        window: usize,
        mut wants: impl FnMut(PageNumber) -> bool,
    ) -> Vec<Job<P>> {
        let mut jobs = Vec::new();
        let mut next = self.cold.tail();
        for _ in 0..window {
            let Some(at) = next.filter(|_| jobs.len() < max) else { break };
            next = self.links.before(at);
            let number = self.index.key(at);
            let frame = &mut self.frames[at as usize];
            let is_going = frame.writing.is_none() && frame.touches < self.rules.hot_touches;
            if !is_going || frame.dirty.is_some() || frame.offered {
                continue;
            }
            frame.offered = true;
            if wants(number) {
                jobs.extend(self.job(at, Target::Flash));
            }
        }
        jobs
    }

    /// A write to flash has ended.
    pub(crate) fn end_feed(&mut self, at: u32) {
        self.frames[at as usize].writing = None;
    }

    /// Buffers that are dirty.
    pub(crate) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// The first change that is not written.
    pub(crate) fn oldest_change(&self) -> Option<u64> {
        self.dirty.first().map(|(first, _)| *first)
    }
}

#[cfg(test)]
mod tests;
