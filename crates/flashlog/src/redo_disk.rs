//! A grid disk behind the flash log: a device with the same verbs whose syncs do not wait for the slower of disk and flash.
//!
//! Every change is kept in reserved memory until a disk flush issued after its write has succeeded; a sync starts that flush
//! and gives the ring what is not durable yet, the one at once, the other after the mode's delay. Reads see acknowledged
//! changes the disk has not taken.
//!
//! Never waits longer than the disk alone because of flash; never acknowledges by flash what replay could undo.

mod change;
mod disk;
mod label;
mod read;
mod records;
mod sync;

use crate::counters::{Counters, Skip};
use crate::errand::Errand;
use crate::estimate::Estimate;
use crate::ledger::{Effect, Ledger, Seq, SyncId, WriteId};
use crate::legs::{Legs, Place, Standings};
use crate::log::FlashLog;
use crate::mode::{Mode, SyncHabit};
use crate::ranges::RangeMap;
use crate::ring::{RingClient, RingEvent};
use crate::sabotage::Sabotage;
use device::sync::{Notify, Sender, lock};
use device::{Completed, Completion, Device, FailKind, Geometry, Instant, Io, Op, Outcome};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What nobody syncs is flushed after this, so that memory and ring are not held by it.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// What flash has answered is asked of the disk after this at the latest: a flush then covers many commits, and of what a power cut
/// takes with the flash itself, no more than this is missing.
const DISK_EVERY: Duration = Duration::from_millis(20);
/// Pause before a disk that has refused a write, or a flush, is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Syncs whose disk leg is still measured after flash has answered them: some seconds of a disk that stalls. More are not measured.
const WATCHED_MAX: usize = 1 << 16;

/// What waits so long for a release that does not come asks to be rid of what the rings hold: longer than a flush takes.
const PLEAD_AFTER: Duration = Duration::from_millis(100);
/// What is known to be in a ring is looked through for what is released once it has grown by so much.
const IN_RING_SLACK: usize = 1024;

/// What a redo grid disk is made of.
pub struct RedoDiskConfig {
    /// Its id, never reused.
    pub id: u64,
    /// The slow device, with at most one flush in flight.
    pub device: Device,
    /// How it begins.
    pub mode: Mode,
    /// Why flash takes nothing of it for now, if so.
    pub barred: Option<Skip>,
    /// By ring: whether nothing that is there of it is ever replayed.
    pub void: Vec<bool>,
    /// Nothing has been written to the device that a flush has not covered. Else [`RedoDisk::took_over`] has to be called.
    pub is_flushed: bool,
    /// Where its deeds are counted.
    pub counters: Arc<Counters>,
}

/// A sync whose disk leg is measured.
struct Watched {
    last: Seq,
    /// When that leg began; none: it has not yet.
    begun: Option<Instant>,
    /// Flash has answered it in time.
    saved: bool,
}

struct State {
    ledger: Ledger,
    acks: BTreeMap<Seq, Sender<Result<(), FailKind>>>,
    /// True: answered by flash; none: lost.
    syncs: BTreeMap<SyncId, Sender<Option<bool>>>,
    legs: BTreeMap<Seq, Legs>,
    /// By ring.
    in_ring: Vec<RangeMap<Place>>,
    /// By ring: how many pieces it had when it was last looked through.
    in_ring_kept: usize,
    standing: Standings,
    /// Stands for what was written past the log before it took over.
    unknown: Option<Seq>,
    watched: VecDeque<Watched>,
    /// How many of those have not begun.
    watched_later: usize,
    disk_syncs: Estimate,
    disk_writes: Estimate,
    /// From when flash was asked until it had answered.
    flash_waits: Estimate,
    habit: SyncHabit,
    /// When the last write that counts among them ended.
    write_counted: Instant,
    flushing: bool,
    /// When the flush in flight was issued.
    flush_begun: Option<Instant>,
    /// When the disk was last asked for everything there is.
    disk_wanted: Instant,
    /// It will be soon.
    pacing: bool,
    /// Syncs that wait for the disk, flash or no flash.
    disk_waits: usize,
    /// Disk writes in flight, in the order they were issued, with when: at most [`crate::ledger::FLYING_MAX`] and those of what is not
    /// held.
    writing: BTreeMap<WriteId, Instant>,
    /// The last flush of the disk failed, then.
    flush_refused: Option<Instant>,
    settling: bool,
    retrying: bool,
    /// Somebody looks at those that are stranded, and at what replay may undo.
    watching: bool,
    /// Changes that wait for releases because the ring did not take them.
    stranded: Vec<Seq>,
}

/// See the module.
pub struct RedoDisk {
    id: u64,
    disk: Device,
    log: Arc<FlashLog>,
    me: std::sync::Weak<RedoDisk>,
    state: Mutex<State>,
    changed: Notify,
    mode: AtomicU8,
    barred: Mutex<Option<Skip>>,
    syncs_begun: AtomicU64,
    changes_begun: AtomicU64,
    stopping: AtomicBool,
    /// See [`RedoDisk::leaves`].
    leaves: AtomicBool,
    losses: AtomicU64,
    pleaded_ns: AtomicU64,
    /// A completed write is durable: the disk has no volatile cache.
    write_through: bool,
    /// The disk's label refuses: what waits for it is answered.
    label_refuses: AtomicBool,
    /// What it has done.
    pub counters: Arc<Counters>,
}

impl RedoDisk {
    pub(crate) fn new(log: Arc<FlashLog>, config: RedoDiskConfig) -> Arc<RedoDisk> {
        let rings = log.rings.len();
        let write_through = !config.device.geometry().volatile_cache;
        let mut ledger = Ledger::new(write_through, log.config.sabotage == Some(Sabotage::OverlappingDiskWrites));
        let unknown = (!config.is_flushed).then(|| log.next_sequence());
        unknown.iter().for_each(|seq| ledger.begin_unknown(*seq));
        assert_eq!(config.void.len(), rings, "each ring counts or does not");
        Arc::new_cyclic(|me| RedoDisk {
            id: config.id,
            disk: config.device,
            me: me.clone(),
            state: Mutex::new(State {
                ledger,
                acks: BTreeMap::new(),
                syncs: BTreeMap::new(),
                legs: BTreeMap::new(),
                in_ring: (0..rings).map(|_| RangeMap::new()).collect(),
                in_ring_kept: 0,
                standing: Standings::new(&config.void),
                unknown,
                watched: VecDeque::new(),
                watched_later: 0,
                disk_syncs: Estimate::default(),
                disk_writes: Estimate::default(),
                flash_waits: Estimate::default(),
                habit: SyncHabit::default(),
                write_counted: Instant::default(),
                flushing: false,
                flush_begun: None,
                disk_wanted: Instant::default(),
                pacing: false,
                disk_waits: 0,
                writing: BTreeMap::new(),
                flush_refused: None,
                settling: false,
                retrying: false,
                watching: false,
                stranded: Vec::new(),
            }),
            changed: Notify::new(),
            mode: AtomicU8::new(config.mode as u8),
            barred: Mutex::new(config.barred),
            syncs_begun: AtomicU64::new(0),
            changes_begun: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            losses: AtomicU64::new(0),
            pleaded_ns: AtomicU64::new(0),
            write_through,
            label_refuses: AtomicBool::new(false),
            counters: config.counters,
            log,
        })
    }

    /// The grid disk's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How it uses the log.
    #[must_use]
    pub fn mode(&self) -> Mode {
        Mode::of_code(self.mode.load(Ordering::Acquire))
    }

    /// Use the log in another way from now on. What is in the ring stays there until the disk has it.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Release);
    }

    /// Give flash nothing from now on, for this reason, or use it as the mode says again. Changes that have begun may still be
    /// given to it.
    pub fn bar(&self, why: Option<Skip>) {
        *lock(&self.barred) = why;
    }

    /// Why flash takes nothing of it, if so.
    #[must_use]
    pub fn barred(&self) -> Option<Skip> {
        *lock(&self.barred)
    }

    /// The mode in force, and why flash is not used if it is not.
    fn in_force(&self) -> (Mode, Option<Skip>) {
        match (self.barred(), self.mode()) {
            (Some(why), _) => (Mode::Off, Some(why)),
            (None, Mode::Off) => (Mode::Off, Some(Skip::DisabledGridDisk)),
            (None, mode) => (mode, None),
        }
    }

    /// Bytes that the disk has refused and flash has: saved redo.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        lock(&self.state).ledger.saved_bytes()
    }

    /// Medians of a disk sync and a disk write of late, in nanoseconds.
    #[must_use]
    pub fn disk_medians_ns(&self) -> (Option<u64>, Option<u64>) {
        let state = lock(&self.state);
        (state.disk_syncs.quantile(500), state.disk_writes.quantile(500))
    }

    fn sabotaged(&self, which: Sabotage) -> bool {
        self.log.config.sabotage == Some(which)
    }

    /// Carry out a request that brings something along.
    pub fn submit_for(&self, op: Op, errand: Errand) -> Completion {
        match op {
            Op::Read { offset, bufs } => self.read(offset, bufs),
            Op::Write { offset, data, fua } => {
                let range = offset..offset + data.len_bytes() as u64;
                self.in_a_task(self.arc().change(range, Some(data), false, fua, errand))
            }
            Op::WriteZeroes { offset, len, fua, may_unmap } => {
                self.in_a_task(self.arc().change(offset..offset + len, None, may_unmap, fua, errand))
            }
            Op::Flush => self.in_a_task(self.arc().sync(errand)),
            Op::Discard { offset, len } => self.in_a_task(self.arc().discard(offset, len)),
            Op::Status { offset, len } => self.status(offset, len),
        }
    }

    /// The time by which it counts.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.log.world.clock.now()
    }

    fn arc(&self) -> Arc<RedoDisk> {
        self.me.upgrade().unwrap_or_else(|| unreachable!("it is called through an Arc"))
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// The disk has everything durably.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        lock(&self.state).ledger.is_empty()
    }

    /// How often the device has dropped something, as far as this has heard.
    #[must_use]
    pub fn losses_heard(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Carry out what has come of events.
    fn pump(&self, state: &mut State) {
        loop {
            let effects = state.ledger.take_effects();
            if effects.is_empty() {
                return self.watch_undone(state);
            }
            for effect in effects {
                match effect {
                    Effect::Acked { seq, .. } => {
                        if let Some(sender) = state.acks.remove(&seq) {
                            sender.send(Ok(()));
                        }
                    }
                    Effect::Failed { seq } => {
                        if let Some(sender) = state.acks.remove(&seq) {
                            sender.send(Err(FailKind::Media));
                        }
                    }
                    Effect::TryDisk => {
                        let writes = state.ledger.retry();
                        self.issue(state, writes);
                    }
                    Effect::DiskFailed { seq } => self.ask_locked(state, seq, true, false),
                    Effect::Synced { sync, by_ring } => {
                        if let Some(sender) = state.syncs.remove(&sync) {
                            sender.send(Some(by_ring));
                        }
                    }
                    Effect::SyncLost { sync } => {
                        if let Some(sender) = state.syncs.remove(&sync) {
                            sender.send(None);
                        }
                    }
                    Effect::Released { seq } => self.release(state, seq),
                }
            }
        }
    }

    /// Start what goes on whoever waits for it.
    fn in_a_task(&self, task: impl Future<Output = Outcome> + Send + 'static) -> Completion {
        let (completer, completion) = Completion::pair();
        self.log.world.spawn.spawn(Box::pin(async move { completer.complete(Completed::bare(task.await)) }));
        completion
    }
}

impl std::fmt::Debug for RedoDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        let rings =
            state.standing.all().iter().zip(&self.log.rings).map(|(standing, ring)| (standing, ring.has_failed()));
        let (stranded, standing, flushing) = (&state.stranded, rings.collect::<Vec<_>>(), state.flushing);
        let ledger = state.ledger.told();
        write!(f, "RedoDisk({}: stranded {stranded:?}, rings {standing:?}, flushing {flushing}, {ledger})", self.id)
    }
}

impl Io for RedoDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        self.submit_for(op, Errand::default())
    }
}

impl RingClient for RedoDisk {
    fn ring_event(&self, seq: Seq, ring: usize, event: RingEvent) {
        {
            let mut state = lock(&self.state);
            self.hear(&mut state, seq, ring, event);
            self.pump(&mut state);
        }
        self.changed.notify_all();
    }
}
