//! A caching block device as the vendors built them: the smart flash cache of a storage server (S10), directCache (S11). A line that was read
//! and is not on flash is written there afterwards; the least recently used one makes room. Scans are not told from anything else.
//!
//! What is where is known in memory alone. A write goes to the disk and ends the copies it touches.

use device::sync::{Semaphore, lock};
use device::{Bufs, Completed, Completion, Device, FailKind, Geometry, Io, Op, Outcome, SharedBufs, World};
use futures_util::future::join_all;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

/// Copies under way to flash; beyond that a line is not cached.
const FILLS_MAX: u64 = 256;

#[derive(Clone, Copy)]
struct Copy {
    slot: u64,
    used: u64,
    made: u64,
}

#[derive(Default)]
struct State {
    lines: HashMap<u64, Copy>,
    by_use: BTreeMap<u64, u64>,
    free: Vec<u64>,
    now: u64,
    /// Writes so far: what was read before the last one is not cached.
    changes: u64,
    hits: u64,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn end(&mut self, line: u64) {
        if let Some(copy) = self.lines.remove(&line) {
            self.by_use.remove(&copy.used);
            self.free.push(copy.slot);
        }
    }

    /// Use a line that is on flash.
    fn find(&mut self, line: u64) -> Option<Copy> {
        let now = self.tick();
        let copy = self.lines.get_mut(&line)?;
        self.by_use.remove(&copy.used);
        copy.used = now;
        self.by_use.insert(now, line);
        self.hits += 1;
        Some(*copy)
    }

    fn room(&mut self) -> Option<u64> {
        if self.free.is_empty() {
            let oldest = self.by_use.first_key_value().map(|(_, line)| *line)?;
            self.end(oldest);
        }
        self.free.pop()
    }
}

/// See the module.
pub(super) struct BlockCache {
    me: Weak<BlockCache>,
    disk: Device,
    flash: Device,
    line_bytes: u64,
    world: World,
    state: Mutex<State>,
    fills: Semaphore,
}

impl BlockCache {
    pub(super) fn new(disk: Device, flash: Device, bytes: u64, line_bytes: u64, world: &World) -> Arc<BlockCache> {
        let state = State { free: (0..bytes / line_bytes).rev().collect(), ..State::default() };
        Arc::new_cyclic(|me| BlockCache {
            me: me.clone(),
            disk,
            flash,
            line_bytes,
            world: world.clone(),
            state: Mutex::new(state),
            fills: Semaphore::new(FILLS_MAX),
        })
    }

    /// Lines that were read from flash.
    pub(super) fn hits(&self) -> u64 {
        lock(&self.state).hits
    }

    async fn read_disk(&self, offset: u64, bufs: Bufs, changes: u64) -> Result<Bufs, FailKind> {
        let len = bufs.len_bytes() as u64;
        let done = self.disk.read(offset, bufs).await;
        done.outcome.ok()?;
        let whole = offset.is_multiple_of(self.line_bytes) && len.is_multiple_of(self.line_bytes);
        if whole {
            for n in 0..len / self.line_bytes {
                self.fill(offset / self.line_bytes + n, &done.bufs, n * self.line_bytes, changes);
            }
        }
        Ok(done.bufs)
    }

    /// Write a line to flash, some time.
    fn fill(&self, line: u64, bufs: &Bufs, at: u64, changes: u64) {
        let (Some(permit), Some(me)) = (self.fills.try_acquire(1), self.me.upgrade()) else { return };
        let mut copy = Bufs::from(device::Buf::zeroed(self.line_bytes as usize));
        copy.copy_in_view(0, bufs.view(at as usize..(at + self.line_bytes) as usize));
        let data: SharedBufs = copy.freeze();
        self.world.spawn.spawn(Box::pin(async move {
            let Some(slot) = lock(&me.state).room() else { return };
            let written = me.flash.write(slot * me.line_bytes, data, false).await.outcome == Outcome::Done;
            let mut state = lock(&me.state);
            if written && state.changes == changes && !state.lines.contains_key(&line) {
                let used = state.tick();
                state.lines.insert(line, Copy { slot, used, made: used });
                state.by_use.insert(used, line);
            } else {
                state.free.push(slot);
            }
            drop(permit);
        }));
    }

    /// A stretch that is one line on flash, or none of which is there.
    async fn stretch(
        self: Arc<Self>,
        offset: u64,
        bufs: Bufs,
        copy: Option<Copy>,
        changes: u64,
    ) -> Result<Bufs, FailKind> {
        let Some(copy) = copy else { return self.read_disk(offset, bufs, changes).await };
        let line = offset / self.line_bytes;
        let done = self.flash.read(copy.slot * self.line_bytes + offset % self.line_bytes, bufs).await;
        let is_same = lock(&self.state).lines.get(&line).is_some_and(|now| now.made == copy.made);
        if is_same && done.outcome == Outcome::Done {
            Ok(done.bufs)
        } else {
            self.read_disk(offset, done.bufs, changes).await
        }
    }

    async fn read(self: Arc<Self>, offset: u64, mut bufs: Bufs) -> Completed {
        let mut stretches = Vec::new();
        {
            let mut state = lock(&self.state);
            let changes = state.changes;
            let (mut at, end) = (offset, offset + bufs.len_bytes() as u64);
            let mut missed = None;
            while at < end {
                let next = ((at / self.line_bytes + 1) * self.line_bytes).min(end);
                match state.find(at / self.line_bytes) {
                    None => missed = missed.or(Some(at)),
                    Some(copy) => {
                        if let Some(from) = missed.take() {
                            stretches.push((from, bufs.split_to((at - from) as usize), None, changes));
                        }
                        stretches.push((at, bufs.split_to((next - at) as usize), Some(copy), changes));
                    }
                }
                at = next;
            }
            if let Some(from) = missed {
                stretches.push((from, bufs, None, changes));
            }
        }
        let all = stretches.into_iter().map(|(at, bufs, copy, changes)| self.clone().stretch(at, bufs, copy, changes));
        let mut completed = Completed::bare(Outcome::Done);
        for read in join_all(all).await {
            match read {
                Ok(bufs) => completed.bufs.append(bufs),
                Err(kind) => completed.outcome = Outcome::Failed(kind),
            }
        }
        completed
    }
}

impl Io for BlockCache {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let Some(me) = self.me.upgrade() else { unreachable!("it is called through an Arc") };
        match op {
            Op::Read { offset, bufs } => Completion::future(me.read(offset, bufs)),
            op => {
                let (offset, len) = op.range();
                let lines = offset / self.line_bytes..(offset + len).div_ceil(self.line_bytes);
                let end = move |me: &BlockCache| {
                    let mut state = lock(&me.state);
                    state.changes += 1;
                    lines.clone().for_each(|line| state.end(line));
                };
                end(&me);
                let submitted = self.disk.submit(op);
                Completion::future(async move {
                    let done = submitted.await;
                    // Once more: what was read while it was written may be either.
                    end(&me);
                    done
                })
            }
        }
    }
}
