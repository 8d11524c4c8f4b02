//! One ring on one flash device: group commit of records, room, and what is released.
//!
//! A few batches are on their way at a time (one, where the flash has a volatile cache); what comes meanwhile shares the next. They are
//! written by a task that whoever brings work begins, if there is none, and that ends with the work: on the thread of a single
//! client nothing of a commit waits for another thread to wake up. A
//! batch may be overwritten only when it has been written and its release is durable: a later batch says that everything below its
//! `tail` is on the disks. Once failed it writes nothing any more.
//!
//! Never knows a disk; never waits for one.

mod room;

use crate::counters::{Count, Skip};
use crate::estimate::Estimate;
use crate::format::{self, BATCH_BYTES_MAX, BATCH_RECORDS_MAX, BatchHeader, Owner, RecordKind};
use crate::ledger::Seq;
use crate::mode::FlashTimes;
use crate::recover::FoundBatch;
use device::sync::{Notify, lock};
use device::{Device, Instant, Outcome, SharedBufs, World};
use futures_util::future::{Either, select};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) use room::{page_bytes, pages};

/// Records waiting for a batch, in bytes: two batches; what is beyond is refused as busy.
const QUEUE_BYTES_MAX: usize = 2 * BATCH_BYTES_MAX;
/// After so long without records a release is written by itself, so that the next write over the same bytes need not go to
/// the ring: longer than a busy log's pause between two commits, shorter than anybody's patience.
const RELEASE_AFTER: Duration = Duration::from_millis(20);
/// Batches on their way at a time: enough that nobody waits for another's, few enough that a busy log still shares them.
const BATCHES_FLYING_MAX: usize = 8;
/// What writes took longer ago than this says nothing of flash now.
const TIMES_AGE_MAX: Duration = Duration::from_secs(10);
/// A life of a ring has so many batch numbers.
pub(crate) const LIFE_SHIFT: u32 = 32;

/// What has become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingEvent {
    /// It is in this batch: on flash, but perhaps in its volatile cache.
    Written(u64),
    /// It is durable.
    Durable,
    /// It was not taken.
    Refused(Skip),
}

/// Who put records in.
pub(crate) trait RingClient: Send + Sync {
    /// Something has become of record `seq` on ring `ring`. Called without locks.
    fn ring_event(&self, seq: Seq, ring: usize, event: RingEvent);
}

/// A record to be written.
pub(crate) struct RingRecord {
    pub(crate) seq: Seq,
    pub(crate) grid_disk: u64,
    pub(crate) range: Range<u64>,
    pub(crate) kind: RecordKind,
    /// Empty for zeroes.
    pub(crate) data: SharedBufs,
    pub(crate) client: Arc<dyn RingClient>,
}

impl RingRecord {
    fn bytes(&self) -> usize {
        format::RECORD_BYTES + self.data.len_bytes()
    }
}

struct Batch {
    number: u64,
    start_page: u32,
    /// Records, and those that are not released.
    count: u32,
    live: u32,
    tail: u64,
    written: bool,
    durable: bool,
    /// Of an earlier life, with redo that nobody could be given: stays where it is.
    kept: bool,
    records: Vec<(Seq, Arc<dyn RingClient>)>,
}

impl Batch {
    /// Its place must not be written to.
    fn holds(&self) -> bool {
        self.live > 0 || !self.written
    }
}

/// What an earlier life left and is still needed: its batches from the first that holds such redo on, with how much each holds.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) batches: Vec<(FoundBatch, u32)>,
}

struct State {
    queue: VecDeque<RingRecord>,
    queue_bytes: usize,
    /// Oldest first; gone once their release is durable.
    batches: VecDeque<Batch>,
    /// Records in them that are not released.
    live: u64,
    head_page: u32,
    next_number: u64,
    /// Every batch of this life up to this one is durable.
    durable_number: u64,
    durable_tail: u64,
    /// Batches on their way, where several may be.
    in_flight: usize,
    durable_wanted: bool,
    release_wanted: bool,
    /// It has begun to write what it is given.
    running: bool,
    /// A task writes, and looks for more before it ends.
    driven: bool,
    /// When somebody last brought work.
    worked: Instant,
    /// A task waits until nobody has brought work for a while.
    release_timed: bool,
    stopping: bool,
    failed: Option<String>,
    write_times: Estimate,
    /// When the last was added.
    write_timed: Instant,
    sync_times: Estimate,
}

impl State {
    /// Where writes are not raced because flash was slow at them, nothing else would show that it no longer is.
    fn forget_old_times(&mut self, now: Instant) {
        if self.write_times.samples() > 0 && now.ns_since(self.write_timed) > TIMES_AGE_MAX.as_nanos() as u64 {
            self.write_times = Estimate::default();
        }
    }
}

/// What a ring is made of.
pub(crate) struct RingConfig {
    /// The flash area, with at most one flush in flight.
    pub(crate) device: Device,
    /// Who writes.
    pub(crate) owner: Owner,
    /// Slower than this, the flash is given up.
    pub(crate) hard_limit: Duration,
}

/// See the module.
pub(crate) struct Ring {
    index: usize,
    config: RingConfig,
    world: World,
    page_bytes: usize,
    pages: u32,
    /// A completed write is durable, so that batches need not wait for each other.
    write_through: bool,
    state: Mutex<State>,
    /// Rung when a release has become durable, or the ring has failed.
    pub(crate) changed: Arc<Notify>,
    bytes_written: Count,
    writes: Count,
    write_ns: Count,
    errors: Count,
}

/// What rings have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingTotals {
    /// Batches written.
    pub writes: u64,
    /// Their bytes, headers and padding included.
    pub bytes: u64,
    /// Nanoseconds they took, summed.
    pub write_ns: u64,
    /// Writes and flushes that failed.
    pub errors: u64,
}

/// What the writer does next.
enum Step {
    Write { offset: u64, data: SharedBufs, number: u64, durable: bool },
    Flush { covered: Vec<u64> },
    Idle { release_later: bool },
    End,
}

impl Ring {
    /// A ring that begins life `life` on an area that holds nothing alive but what is kept.
    pub(crate) fn new(
        index: usize,
        config: RingConfig,
        world: World,
        life: u64,
        kept: &Kept,
        changed: Arc<Notify>,
    ) -> Arc<Ring> {
        let page_bytes = page_bytes(&config.device);
        let pages = pages(&config.device);
        let write_through = !config.device.geometry().volatile_cache;
        let first = (life << LIFE_SHIFT) + 1;
        let old = |(found, live): &(FoundBatch, u32)| Batch {
            number: found.number,
            start_page: found.start_page,
            count: *live,
            live: *live,
            tail: 0,
            written: true,
            durable: true,
            kept: true,
            records: Vec::new(),
        };
        let head_page = kept.batches.last().map_or(0, |(last, _)| last.start_page + last.pages);
        Arc::new(Ring {
            index,
            config,
            world,
            page_bytes,
            pages,
            write_through,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                queue_bytes: 0,
                batches: kept.batches.iter().map(old).collect(),
                live: kept.batches.iter().map(|(_, live)| u64::from(*live)).sum(),
                head_page,
                next_number: first,
                durable_number: 0,
                durable_tail: 0,
                in_flight: 0,
                durable_wanted: false,
                release_wanted: false,
                running: false,
                driven: false,
                worked: Instant::default(),
                release_timed: false,
                stopping: false,
                failed: None,
                write_times: Estimate::default(),
                write_timed: Instant::default(),
                sync_times: Estimate::default(),
            }),
            changed,
            bytes_written: Count::default(),
            writes: Count::default(),
            write_ns: Count::default(),
            errors: Count::default(),
        })
    }

    /// Make it durable that nothing of earlier lives counts any more. Before the first change is taken.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<(), String> {
        lock(&self.state).release_wanted = true;
        loop {
            match self.next_step(true) {
                Step::Idle { .. } | Step::End => break,
                step => self.carry_out(step).await,
            }
        }
        if lock(&self.state).durable_tail == 0 {
            self.fail("it is full of redo of disks that are not there".to_owned());
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Batches from here on belong to life `life`, if that is a later one.
    pub(crate) fn begin_life(&self, life: u64) {
        let mut state = lock(&self.state);
        state.next_number = state.next_number.max((life << LIFE_SHIFT) + 1);
    }

    /// Records of earlier lives that are kept for disks that could not be given them.
    pub(crate) fn kept_records(&self) -> u64 {
        lock(&self.state).batches.iter().filter(|batch| batch.kept).map(|batch| u64::from(batch.live)).sum()
    }

    /// Whether a record would be taken now.
    pub(crate) fn would_take(&self, record: &RingRecord, must: bool) -> Result<(), Skip> {
        self.check(&lock(&self.state), record.bytes(), must)
    }

    fn check(&self, state: &State, bytes: usize, must: bool) -> Result<(), Skip> {
        if state.failed.is_some() || state.stopping {
            return Err(Skip::NoFlashDisk);
        }
        if bytes > BATCH_BYTES_MAX - format::BATCH_FIXED_BYTES || bytes as u64 > self.bytes() / 8 {
            return Err(Skip::Large);
        }
        let queued = state.queue_bytes + bytes;
        let fits = queued <= QUEUE_BYTES_MAX && self.has_room(state, queued, must);
        if fits { Ok(()) } else { Err(Skip::Busy) }
    }

    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.state).failed.clone()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        lock(&self.state).stopping
    }

    pub(crate) fn totals(&self) -> RingTotals {
        RingTotals {
            writes: self.writes.get(),
            bytes: self.bytes_written.get(),
            write_ns: self.write_ns.get(),
            errors: self.errors.get(),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        lock(&self.state).failed.is_some()
    }

    /// Whatever has been written is in batches below this.
    pub(crate) fn next_number(&self) -> u64 {
        lock(&self.state).next_number
    }

    /// Batches below this are released for good.
    pub(crate) fn durable_tail(&self) -> u64 {
        lock(&self.state).durable_tail
    }

    /// Pages of the ring that hold something not released for good, and all.
    pub(crate) fn used_pages(&self) -> (u32, u32) {
        let state = lock(&self.state);
        let Some(first) = state.batches.front() else { return (0, self.pages) };
        ((state.head_page + self.pages - first.start_page) % self.pages, self.pages)
    }

    /// How long it takes of late.
    pub(crate) fn times(&self) -> FlashTimes {
        let mut state = lock(&self.state);
        state.forget_old_times(self.world.clock.now());
        FlashTimes::of(&state.write_times, &state.sync_times)
    }

    /// Take a record, if there is room; `durable`: somebody waits until it is. What becomes of it is told as an event; when
    /// it is refused here, it is not.
    ///
    /// What `must` go in, because replay would undo it otherwise, may use room that is kept for it.
    pub(crate) fn append(self: &Arc<Self>, record: RingRecord, durable: bool, must: bool) -> Result<(), Skip> {
        {
            let mut state = lock(&self.state);
            if let Err(why) = self.check(&state, record.bytes(), must) {
                state.release_wanted |= why == Skip::Busy;
                drop(state);
                self.drive();
                return Err(why);
            }
            state.queue_bytes += record.bytes();
            state.queue.push_back(record);
            state.durable_wanted |= durable;
        }
        self.drive();
        Ok(())
    }

    /// Make durable what has been taken.
    pub(crate) fn want_durable(self: &Arc<Self>) {
        lock(&self.state).durable_wanted = true;
        self.drive();
    }

    /// Make durable what has been released.
    pub(crate) fn want_release(self: &Arc<Self>) {
        lock(&self.state).release_wanted = true;
        self.drive();
    }

    /// A record of batch `number` is worth nothing any more.
    pub(crate) fn release(self: &Arc<Self>, number: u64) {
        let mut state = lock(&self.state);
        let at = state.batches.partition_point(|batch| batch.number < number);
        if let Some(batch) = state.batches.get_mut(at).filter(|batch| batch.number == number) {
            let before = batch.live;
            batch.live = before.saturating_sub(1);
            state.live -= u64::from(before > 0);
        }
        let idle = state.live == 0;
        drop(state);
        if idle {
            self.drive();
        }
    }

    /// End: nothing more is taken, what is queued is refused.
    pub(crate) fn stop(self: &Arc<Self>) {
        lock(&self.state).stopping = true;
        self.drive();
    }

    /// Give the flash up.
    pub(crate) fn fail(&self, why: String) {
        let refused = {
            let mut state = lock(&self.state);
            state.failed.get_or_insert(why);
            state.queue_bytes = 0;
            let mut refused: Vec<(Seq, Arc<dyn RingClient>)> =
                state.queue.drain(..).map(|record| (record.seq, record.client)).collect();
            refused.extend(state.batches.iter_mut().flat_map(|batch| std::mem::take(&mut batch.records)));
            refused
        };
        for (seq, client) in refused {
            client.ring_event(seq, self.index, RingEvent::Refused(Skip::NoFlashDisk));
        }
        self.changed.notify_all();
    }

    /// Write what it is given from now on.
    pub(crate) fn run(self: &Arc<Self>) {
        lock(&self.state).running = true;
        self.drive();
    }

    /// There is work: a task of this thread does it, unless one is at it already.
    fn drive(self: &Arc<Self>) {
        {
            let mut state = lock(&self.state);
            state.worked = self.world.clock.now();
            if !state.running || state.failed.is_some() || std::mem::replace(&mut state.driven, true) {
                return;
            }
        }
        self.world.spawn.spawn(Box::pin(self.clone().work()));
    }

    /// Write batches until there is nothing to write. Whoever brings work after that begins another such task.
    async fn work(self: Arc<Self>) {
        loop {
            match self.next_step(false) {
                Step::End | Step::Idle { release_later: false } => return,
                Step::Idle { release_later: true } => return self.time_release(),
                step @ Step::Write { .. } if self.write_through => {
                    lock(&self.state).in_flight += 1;
                    let me = self.clone();
                    self.world.spawn.spawn(Box::pin(async move {
                        me.carry_out(step).await;
                        lock(&me.state).in_flight -= 1;
                        me.drive();
                    }));
                }
                step => self.carry_out(step).await,
            }
        }
    }

    /// Write a release by itself once nobody has brought work for a while.
    fn time_release(self: &Arc<Self>) {
        if std::mem::replace(&mut lock(&self.state).release_timed, true) {
            return;
        }
        let me = self.clone();
        self.world.spawn.spawn(Box::pin(async move {
            let mut pause = RELEASE_AFTER;
            while !pause.is_zero() {
                me.world.clock.sleep(pause).await;
                let mut state = lock(&me.state);
                pause = RELEASE_AFTER.saturating_sub(Duration::from_nanos(me.world.clock.now().ns_since(state.worked)));
                if pause.is_zero() {
                    (state.release_timed, state.release_wanted) = (false, true);
                }
            }
            me.drive();
        }));
    }

    fn next_step(&self, beginning: bool) -> Step {
        let mut state = lock(&self.state);
        // Until a step is found there is nothing to do: who brings work from here on is heard.
        state.driven = false;
        if state.failed.is_some() || (state.stopping && state.queue.is_empty()) {
            return Step::End;
        }
        let released = state.batches.iter().find(|batch| batch.holds()).map_or(state.next_number, |batch| batch.number);
        // What holds no records need not be released.
        let worth = |batch: &Batch| batch.count > 0 && batch.number < released;
        let release_due = (beginning && state.durable_tail == 0) || state.batches.iter().any(worth);
        if state.in_flight >= BATCHES_FLYING_MAX {
            return Step::Idle { release_later: false };
        }
        if !state.queue.is_empty() || (state.release_wanted && release_due) {
            if let Some(step) = self.make_batch(&mut state) {
                state.driven = true;
                return step;
            }
            // No room after all: those who wait do without.
            let refused: Vec<RingRecord> = state.queue.drain(..).collect();
            state.queue_bytes = 0;
            drop(state);
            for record in refused {
                record.client.ring_event(record.seq, self.index, RingEvent::Refused(Skip::Busy));
            }
            return Step::Idle { release_later: false };
        }
        state.release_wanted &= release_due;
        let covered: Vec<u64> =
            state.batches.iter().filter(|batch| batch.written && !batch.durable).map(|batch| batch.number).collect();
        // Without a volatile cache each batch is durable as it is written; one may just be told of.
        if state.durable_wanted && !self.write_through && !covered.is_empty() {
            (state.durable_wanted, state.driven) = (false, true);
            return Step::Flush { covered };
        }
        state.durable_wanted = false;
        Step::Idle { release_later: release_due }
    }

    /// The next batch: as many records as it takes, or none, for the release alone.
    fn make_batch(&self, state: &mut State) -> Option<Step> {
        let mut count = 0;
        let mut bytes = format::BATCH_FIXED_BYTES;
        for record in state.queue.iter().take(BATCH_RECORDS_MAX) {
            if bytes + record.bytes() > BATCH_BYTES_MAX {
                break;
            }
            bytes += record.bytes();
            count += 1;
        }
        let pages = self.pages_of(bytes);
        let start_page = self.place(state, pages)?;
        let number = state.next_number;
        state.next_number += 1;
        state.head_page = start_page + pages;
        let taken: Vec<RingRecord> = state.queue.drain(..count).collect();
        state.queue_bytes -= taken.iter().map(RingRecord::bytes).sum::<usize>();
        let tail = state.batches.iter().find(|batch| batch.holds()).map_or(number, |batch| batch.number);
        let header = BatchHeader { number, start_page, pages, tail, durable: state.durable_number };
        // A flush is cheaper than durable writes where something older waits for it as well.
        let durable = state.durable_wanted || state.release_wanted || count == 0;
        let older = state.batches.iter().any(|batch| batch.written && !batch.durable);
        let fua = self.write_through || durable && !older;
        state.release_wanted = false;
        if fua {
            state.durable_wanted = false;
        } else {
            state.durable_wanted |= durable;
        }
        let data = self.encode(&header, &taken, pages);
        state.live += taken.len() as u64;
        state.batches.push_back(Batch {
            number,
            start_page,
            count: taken.len() as u32,
            live: taken.len() as u32,
            tail,
            written: false,
            durable: false,
            kept: false,
            records: taken.into_iter().map(|record| (record.seq, record.client)).collect(),
        });
        let offset = u64::from(start_page) * self.page_bytes as u64;
        Some(Step::Write { offset, data, number, durable: fua })
    }

    async fn carry_out(self: &Arc<Self>, step: Step) {
        let begun = self.world.clock.now();
        match step {
            Step::Write { offset, data, number, durable } => {
                self.bytes_written.add(data.len_bytes() as u64);
                let written = self.config.device.write(offset, data, durable);
                if !self.went_well(written, "write").await {
                    return;
                }
                let took_ns = self.world.clock.now().ns_since(begun);
                self.writes.add(1);
                self.write_ns.add(took_ns);
                let told: Vec<(Seq, Arc<dyn RingClient>)> = {
                    let mut state = lock(&self.state);
                    if durable {
                        state.sync_times.add(took_ns);
                    } else {
                        state.write_times.add(took_ns);
                        state.write_timed = self.world.clock.now();
                    }
                    let Some(batch) = state.batches.iter_mut().find(|batch| batch.number == number) else { return };
                    batch.written = true;
                    batch.records.clone()
                };
                for (seq, client) in told {
                    client.ring_event(seq, self.index, RingEvent::Written(number));
                }
                if durable {
                    self.are_durable(&[number]);
                }
            }
            Step::Flush { covered } => {
                if self.went_well(self.config.device.flush(), "flush").await {
                    lock(&self.state).sync_times.add(self.world.clock.now().ns_since(begun));
                    self.are_durable(&covered);
                }
            }
            Step::Idle { .. } | Step::End => {}
        }
    }

    async fn went_well(&self, completion: device::Completion, what: &str) -> bool {
        let limit = self.world.clock.sleep(self.config.hard_limit);
        let why = match select(completion, limit).await {
            Either::Left((done, _)) if done.outcome == Outcome::Done => return true,
            Either::Left((done, _)) => format!("{what} of the flash log: {:?}", done.outcome),
            Either::Right(_) => format!("a {what} of the flash log took longer than the hard limit"),
        };
        self.errors.add(1);
        self.fail(why);
        false
    }

    /// These batches are durable, ascending.
    fn are_durable(&self, numbers: &[u64]) {
        let told = {
            let mut state = lock(&self.state);
            let mut told = Vec::new();
            let mut tail = state.durable_tail;
            for batch in state.batches.iter_mut().filter(|batch| numbers.binary_search(&batch.number).is_ok()) {
                batch.durable = true;
                told.append(&mut batch.records);
                tail = tail.max(batch.tail);
            }
            state.durable_tail = tail;
            let so_far = state.batches.iter().filter(|batch| !batch.kept).take_while(|batch| batch.durable).last();
            let so_far = so_far.map_or(0, |batch| batch.number);
            state.durable_number = state.durable_number.max(so_far);
            while state.batches.front().is_some_and(|batch| batch.number < tail) {
                state.batches.pop_front();
            }
            told
        };
        for (seq, client) in told {
            client.ring_event(seq, self.index, RingEvent::Durable);
        }
        self.changed.notify_all();
    }
}
