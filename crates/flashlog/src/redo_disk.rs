//! A grid disk behind the flash log: a device with the same verbs whose syncs do not wait for the slower of disk and flash.
//!
//! Every change is kept in reserved memory until a disk flush issued after its write has succeeded; a sync starts that flush
//! at once and, after the mode's delay, gives the ring what is not durable yet. Reads see acknowledged changes the disk has
//! not taken.
//!
//! Never waits longer than the disk alone because of flash; never acknowledges by flash what replay could undo.

use crate::counters::{Counters, Skip};
use crate::estimate::Estimate;
use crate::format::{RECORD_DATA_BYTES_MAX, RecordKind, ZEROES_BYTES_MAX};
use crate::ledger::{Content, DiskWrite, Effect, Ledger, RingLeg, Seq, SyncId};
use crate::legs::{Legs, Place, Standing};
use crate::log::{COPIES, FlashLog};
use crate::mode::{self, Mode, PROBE_EVERY};
use crate::ranges::RangeMap;
use crate::ring::{LIFE_SHIFT, RingClient, RingEvent, RingRecord};
use crate::sabotage::Sabotage;
use device::sync::{Notify, Sender, lock, one_shot};
use device::{
    Buf, Bufs, Completed, Completion, Device, DeviceExtent, FailKind, Geometry, Instant, Io, Op, Outcome, SharedBufs,
};
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What nobody syncs is flushed after this, so that memory and ring are not held by it.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// Pause before a disk that has refused a write, or a flush, is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Syncs whose disk leg is still measured after flash has answered them; older ones are not measured.
const WATCHED_MAX: usize = 1024;

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
    begun: Instant,
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
    /// By ring.
    standing: Vec<Standing>,
    /// Stands for what was written past the log before it took over.
    unknown: Option<Seq>,
    watched: VecDeque<Watched>,
    disk_syncs: Estimate,
    disk_writes: Estimate,
    flushing: bool,
    /// The last flush of the disk failed.
    flush_refused: bool,
    settling: bool,
    retrying: bool,
    /// Somebody looks at those that are stranded.
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
    stopping: AtomicBool,
    losses: AtomicU64,
    pleaded_ns: AtomicU64,
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
        let standing = |void: &bool| if *void { Standing::Void } else { Standing::Counts };
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
                standing: config.void.iter().map(standing).collect(),
                unknown,
                watched: VecDeque::new(),
                disk_syncs: Estimate::default(),
                disk_writes: Estimate::default(),
                flushing: false,
                flush_refused: false,
                settling: false,
                retrying: false,
                watching: false,
                stranded: Vec::new(),
            }),
            changed: Notify::new(),
            mode: AtomicU8::new(config.mode as u8),
            barred: Mutex::new(config.barred),
            syncs_begun: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            losses: AtomicU64::new(0),
            pleaded_ns: AtomicU64::new(0),
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

    /// Bytes that the disk refuses and flash or memory has: saved redo.
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

    /// Give the disk everything, durably. False: the disk does not take it, or the log has stopped.
    pub async fn settle(&self) -> bool {
        let mut flushed_once = false;
        loop {
            let ticket = self.changed.ticket();
            self.kick_flush();
            let (empty, held_back) = {
                let state = lock(&self.state);
                let refused = state.ledger.is_held_back() || state.ledger.is_paused();
                (state.ledger.is_empty(), refused || std::mem::take(&mut flushed_once) && state.flush_refused)
            };
            flushed_once = true;
            if empty {
                return true;
            }
            if held_back || self.stopping.load(Ordering::Acquire) {
                return false;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// The disk has everything durably.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        lock(&self.state).ledger.is_empty()
    }

    /// What was written to the device before this took over has been completed: the next flush covers it.
    pub fn took_over(&self) {
        {
            let mut state = lock(&self.state);
            if let Some(seq) = state.unknown.take() {
                state.ledger.unknown_ended(seq);
            }
        }
        self.kick_flush();
    }

    /// Begin no disk write from now on, and wait until none is in flight; [`RedoDisk::resume`] goes on.
    pub async fn quiesce(&self) {
        loop {
            let ticket = self.changed.ticket();
            {
                let mut state = lock(&self.state);
                // Nothing is to be begun by a pause.
                let _ = state.ledger.pause(true);
                if state.ledger.is_quiet() {
                    return;
                }
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Begin disk writes again.
    pub fn resume(&self) {
        let mut state = lock(&self.state);
        let writes = state.ledger.pause(false);
        self.issue(writes);
        self.pump(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    /// What the disk does not have is nobody's any more: its records are worth nothing. Quiesced, and nothing is asked of it.
    pub fn abandon(&self) {
        self.stop();
        let mut state = lock(&self.state);
        let all: Vec<Seq> = state.legs.keys().copied().collect();
        all.into_iter().for_each(|seq| self.release(&mut state, seq));
        state.ledger = Ledger::new(false, false);
        state.acks.clear();
        state.syncs.clear();
    }

    /// The device has dropped what it had not made durable: what is held is written again. Whether something acknowledged was
    /// lost, that nobody held.
    pub fn disk_has_lost(&self) -> bool {
        self.losses.fetch_add(1, Ordering::AcqRel);
        let lost = {
            let mut state = lock(&self.state);
            let before = state.ledger.lost_acked();
            let writes = state.ledger.flush_ended(0, false);
            self.issue(writes);
            self.pump(&mut state);
            state.ledger.lost_acked() > before
        };
        self.changed.notify_all();
        self.start_settling();
        lost
    }

    /// How often the device has dropped something, as far as this has heard.
    #[must_use]
    pub fn losses_heard(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    // --- what the label of the disk says of rings ---------------------------------------------------------------------

    /// Nothing of a ring is ever replayed to this disk: the disk's label says so.
    pub fn ring_is_void(&self, ring: usize) {
        self.ring_stands(ring, Standing::Void);
    }

    /// A ring has failed, and the disk's label cannot be told: whoever waits for that is answered.
    pub fn ring_stays(&self, ring: usize) {
        self.ring_stands(ring, Standing::Refused);
        self.label_refuses();
    }

    /// The disk's label cannot be told that nothing in the rings counts: whoever waits for that is answered.
    pub fn label_refuses(&self) {
        self.label_refuses.store(true, Ordering::Release);
        {
            let mut state = lock(&self.state);
            for seq in std::mem::take(&mut state.stranded) {
                if state.ledger.change(seq).is_some_and(|change| change.must_ring) {
                    state.ledger.cannot_be_safe(seq);
                }
            }
            self.pump(&mut state);
        }
        self.changed.notify_all();
    }

    fn ring_stands(&self, ring: usize, standing: Standing) {
        if standing == Standing::Void {
            self.label_refuses.store(false, Ordering::Release);
        }
        {
            let mut state = lock(&self.state);
            state.standing[ring] = standing;
            if standing == Standing::Void {
                state.in_ring[ring] = RangeMap::new();
                state.legs.values_mut().for_each(|legs| {
                    legs.rings.remove(&ring);
                });
            }
            let all: Vec<Seq> = state.legs.keys().copied().collect();
            all.into_iter().for_each(|seq| self.look_at_legs(&mut state, seq));
            self.look_at_stranded(&mut state);
        }
        self.changed.notify_all();
    }

    /// Wait until everything that somebody was told is on flash is there without this ring, or on the disk. False: the log has
    /// stopped.
    pub async fn is_safe_without(&self, ring: usize) -> bool {
        self.until(|state| {
            let safe =
                |(seq, leg): (Seq, RingLeg)| state.legs.get(&seq).is_some_and(|legs| legs.is_safe_without(ring, leg));
            state.ledger.on_flash_alone().all(safe)
        })
        .await
    }

    /// Wait until everything that somebody was told is on flash is there in a later life than this one, or on the disk. False:
    /// the log has stopped, or (unless `patient`) the disk refuses.
    pub async fn is_safe_without_life(&self, life: u64, patient: bool) -> bool {
        let refused = |state: &State| !patient && (state.ledger.is_held_back() || state.ledger.is_paused());
        let safe = |state: &State| {
            let later = |(seq, _): (Seq, RingLeg)| state.legs.get(&seq).is_some_and(|legs| legs.is_after(life));
            state.ledger.on_flash_alone().all(later)
        };
        self.until(|state| refused(state) || safe(state)).await && !refused(&lock(&self.state))
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) -> bool {
        loop {
            let ticket = self.changed.ticket();
            if is_so(&lock(&self.state)) {
                return true;
            }
            if self.stopping.load(Ordering::Acquire) {
                return false;
            }
            self.kick_flush();
            self.changed.wait(ticket).await;
            if lock(&self.state).flush_refused {
                // A device that is gone refuses at once.
                self.log.world.clock.sleep(RETRY_AFTER).await;
            }
        }
    }

    /// Nothing of this life or an earlier one is ever replayed to this disk: the disk's label says so.
    pub fn life_is_void(&self, life: u64) {
        self.label_refuses.store(false, Ordering::Release);
        {
            let mut state = lock(&self.state);
            for map in &mut state.in_ring {
                map.drop_where(|place| matches!(place, Place::Batch(number) if number >> LIFE_SHIFT <= life));
            }
            self.look_at_stranded(&mut state);
        }
        self.changed.notify_all();
    }

    // --- changes ----------------------------------------------------------------------------------------------------

    /// Keep what a change does, if there is memory: nobody waits for it, the disk can do without.
    fn hold(&self, given: &Option<SharedBufs>, len: u64, may_unmap: bool) -> Result<Content, Skip> {
        let Some(data) = given else {
            return if len <= ZEROES_BYTES_MAX { Ok(Content::Zeroes { may_unmap }) } else { Err(Skip::Large) };
        };
        if data.len_bytes() > RECORD_DATA_BYTES_MAX {
            return Err(Skip::Large);
        }
        let mut zero = true;
        data.for_each(0..data.len_bytes(), |bytes| zero &= bytes.iter().all(|byte| *byte == 0));
        if zero {
            // A new segment of a write-ahead log is filled with them.
            return Ok(Content::Zeroes { may_unmap: false });
        }
        let Some(mut copy) = self.log.arena.try_alloc(data.len_bytes()) else { return Err(Skip::NoBuffer) };
        copy.copy_in_rope(0, data);
        Ok(Content::Data(copy.freeze()))
    }

    async fn change(
        self: Arc<Self>,
        range: Range<u64>,
        given: Option<SharedBufs>,
        may_unmap: bool,
        fua: bool,
    ) -> Outcome {
        let (mode, off) = self.in_force();
        let held = off.map_or_else(|| self.hold(&given, range.end - range.start, may_unmap), Err);
        let skip = held.as_ref().err().copied();
        let mut content = Some(held.unwrap_or(Content::Unheld));
        let begun = self.now();
        let (sender, acked) = one_shot();
        let mut sender = Some(sender);
        let mut tried = false;
        let (seq, must, sync) = loop {
            let ticket = self.changed.ticket();
            let released = self.log.changed.ticket();
            {
                let mut state = lock(&self.state);
                let must = self.may_be_replayed(&state, &range) && !self.sabotaged(Sabotage::DiskOnlyOverRecord);
                let unheld = matches!(content, Some(Content::Unheld));
                if (!unheld || !(must || state.ledger.is_busy(&range) || state.ledger.is_paused()))
                    && let (Some(content), Some(sender)) = (content.take(), sender.take())
                {
                    let seq = self.log.next_sequence();
                    let first = given.clone().map_or(Content::Zeroes { may_unmap }, Content::Data);
                    let writes = state.ledger.begin(seq, range.clone(), content, first, fua, must);
                    state.acks.insert(seq, sender);
                    let sync = if fua { self.begin_sync(&mut state, Some(seq)) } else { None };
                    self.issue(writes);
                    self.pump(&mut state);
                    break (seq, must, sync);
                }
                if state.ledger.is_held_back() {
                    // What it waits for the disk has refused: asked once more, it decides.
                    if std::mem::replace(&mut tried, true) {
                        return Outcome::Failed(FailKind::Media);
                    }
                    let writes = state.ledger.retry();
                    self.issue(writes);
                }
            }
            // Only what is not held waits here.
            if self.stopping.load(Ordering::Acquire) || self.label_refuses.load(Ordering::Acquire) {
                return Outcome::Failed(FailKind::Media);
            }
            self.wait_for_releases(ticket, released, begun).await;
        };
        self.start_settling();
        if must {
            self.ask(seq, fua, true);
        }
        if let Some((sync, answer)) = sync {
            return self.finish_sync(sync, answer, begun, skip).await;
        }
        let outcome = |answer: Option<Result<(), FailKind>>| match answer {
            Some(Ok(())) => Outcome::Done,
            Some(Err(kind)) => Outcome::Failed(kind),
            None => Outcome::Unknown,
        };
        if fua || skip.is_some() {
            return outcome(acked.await);
        }
        let delay = {
            let state = lock(&self.state);
            mode::write_delay(mode, &state.disk_writes, self.ring_medians().0)
        };
        let timer = self.log.world.clock.sleep(delay);
        match select(acked, timer).await {
            Either::Left((answer, _)) => outcome(answer),
            Either::Right(((), acked)) => {
                self.ask(seq, false, false);
                outcome(acked.await)
            }
        }
    }

    /// Whether replay may find something of these bytes that a newer write must not be undone by.
    fn may_be_replayed(&self, state: &State, range: &Range<u64>) -> bool {
        state.in_ring.iter().enumerate().any(|(ring, map)| {
            let tail = self.log.rings[ring].durable_tail();
            map.overlapping(range).any(|(_, place)| match place {
                Place::Asked(_) => true,
                Place::Batch(number) => number >= tail,
            })
        })
    }

    /// Wait for something to happen, seeing to it that the rings are told what the disk has. Whoever has waited `since` long
    /// asks to be rid of what they hold: redo of a disk that does not take it may keep them from releasing anything.
    async fn wait_for_releases(&self, ticket: u64, released: u64, since: Instant) {
        self.kick_flush();
        self.log.rings.iter().for_each(|ring| ring.want_release());
        let last = Instant(self.pleaded_ns.load(Ordering::Acquire).max(since.0));
        let patience = PLEAD_AFTER.saturating_sub(Duration::from_nanos(self.now().ns_since(last)));
        if patience.is_zero() {
            self.pleaded_ns.store(self.now().0, Ordering::Release);
            self.log.plead(self.id);
        }
        let pleading =
            std::pin::pin!(self.log.world.clock.sleep(if patience.is_zero() { RETRY_AFTER } else { patience }));
        let released = std::pin::pin!(self.log.changed.wait(released));
        select(select(std::pin::pin!(self.changed.wait(ticket)), released), pleading).await;
    }

    /// Medians of a ring write and of a durable one: of the slowest ring that a record goes to.
    fn ring_medians(&self) -> (Option<u64>, Option<u64>, u64) {
        let live = self.log.rings.iter().filter(|ring| !ring.has_failed());
        live.fold((None, None, 0), |(write, sync, samples), ring| {
            let (w, s) = ring.medians();
            (write.max(w), sync.max(s), samples.max(ring.samples()))
        })
    }

    /// Give a change to the ring.
    fn ask(&self, seq: Seq, durable: bool, must: bool) {
        let mut state = lock(&self.state);
        self.ask_locked(&mut state, seq, durable, must);
        self.pump(&mut state);
    }

    fn ask_locked(&self, state: &mut State, seq: Seq, durable: bool, must: bool) {
        let Some(change) = state.ledger.change(seq).filter(|change| change.ring == RingLeg::None) else { return };
        let must = must || change.must_ring;
        let range = change.range.clone();
        let (kind, data) = match (state.ledger.record_of(seq), &change.content) {
            (Some(Content::Data(data)), _) => (RecordKind::Data, data),
            (Some(Content::Zeroes { may_unmap: false }), _) => (RecordKind::Zeroes, SharedBufs::new()),
            (Some(Content::Zeroes { may_unmap: true }), _) => (RecordKind::Unmapped, SharedBufs::new()),
            (None, Content::Unheld) => return,
            // The disk alone can have it: a newer change of the same bytes is there and nowhere else.
            (None, _) | (Some(Content::Unheld), _) => {
                state.legs.insert(seq, Legs { range, ..Legs::default() });
                return self.look_at_legs(state, seq);
            }
        };
        let legs = Legs { asked_at: self.now(), range: range.clone(), ..Legs::default() };
        let record =
            |client| RingRecord { seq, grid_disk: self.id, range: range.clone(), kind, data: data.clone(), client };
        state.legs.insert(seq, legs);
        let rings = self.log.rings_for(seq, Self::copies(state)).and_then(|rings| {
            let probe = record(self.arc() as Arc<dyn RingClient>);
            rings.iter().try_for_each(|(_, ring)| ring.would_take(&probe, must)).map(|()| rings)
        });
        for (index, ring) in rings.unwrap_or_default() {
            if ring.append(record(self.arc()), durable, must).is_ok()
                && let Some(legs) = state.legs.get_mut(&seq)
            {
                legs.rings.insert(index, crate::legs::Leg::default());
                let _ = state.in_ring[index].insert(range.clone(), Place::Asked(seq));
            }
        }
        self.look_at_legs(state, seq);
        self.forget_released(state);
    }

    /// How many rings a change has to be on: what a sync was told is durable survives the loss of one of them (I3).
    fn copies(state: &State) -> usize {
        state.standing.iter().filter(|standing| **standing != Standing::Void).count().min(COPIES)
    }

    /// Tell the ledger how far a change is in the rings.
    fn look_at_legs(&self, state: &mut State, seq: Seq) {
        let copies = Self::copies(state);
        let Some(legs) = state.legs.get(&seq) else { return };
        let waits = |ring: usize| state.standing[ring] == Standing::Counts && self.log.rings[ring].has_failed();
        let leg = legs.leg(copies, (0..state.standing.len()).any(waits));
        let lies = !legs.rings.is_empty();
        if legs.rings.is_empty() && leg == RingLeg::Refused {
            state.legs.remove(&seq);
        }
        let must = state.ledger.change(seq).is_some_and(|change| change.must_ring && change.ring != RingLeg::Refused);
        state.ledger.ring(seq, leg, lies);
        if leg == RingLeg::Refused && must {
            state.stranded.push(seq);
            if !std::mem::replace(&mut state.watching, true) {
                self.watch_stranded();
            }
        }
    }

    /// Forget what is released: the maps stay as large as what is not.
    fn forget_released(&self, state: &mut State) {
        if state.in_ring.iter().map(RangeMap::len).sum::<usize>() < 2 * state.in_ring_kept + IN_RING_SLACK {
            return;
        }
        for (ring, map) in state.in_ring.iter_mut().enumerate() {
            let tail = self.log.rings[ring].durable_tail();
            map.drop_where(|place| matches!(place, Place::Batch(number) if number < tail));
        }
        state.in_ring_kept = state.in_ring.iter().map(RangeMap::len).sum();
    }

    /// Look again, whenever something is released for good, at what the ring did not take.
    fn watch_stranded(&self) {
        let (me, since) = (self.arc(), self.now());
        self.log.world.spawn.spawn(Box::pin(async move {
            let mut waiting = usize::MAX;
            loop {
                let ticket = me.changed.ticket();
                let released = me.log.changed.ticket();
                let left = {
                    let mut state = lock(&me.state);
                    me.look_at_stranded(&mut state);
                    state.watching &= !state.stranded.is_empty();
                    state.stranded.len()
                };
                if std::mem::replace(&mut waiting, left) != left {
                    me.changed.notify_all();
                }
                if left == 0 || me.stopping.load(Ordering::Acquire) {
                    return;
                }
                me.wait_for_releases(ticket, released, since).await;
            }
        }));
    }

    /// Changes that had to be in a ring need not be where nothing can undo them any more.
    fn look_at_stranded(&self, state: &mut State) {
        for (seq, range) in state.ledger.bound_to_ring() {
            if !self.may_be_replayed(state, &range) {
                state.ledger.need_not_ring(seq);
            }
        }
        let stranded = std::mem::take(&mut state.stranded);
        let waits = |seq: &Seq| state.ledger.change(*seq).is_some_and(|change| change.must_ring);
        state.stranded = stranded.into_iter().filter(waits).collect();
        self.pump(state);
    }

    // --- the disk -----------------------------------------------------------------------------------------------------

    fn issue(&self, writes: Vec<DiskWrite>) {
        for write in writes {
            let me = self.arc();
            self.log.world.spawn.spawn(Box::pin(async move { me.write_disk(write).await }));
        }
    }

    async fn write_disk(self: Arc<Self>, write: DiskWrite) {
        let begun = self.now();
        let len = write.range.end - write.range.start;
        self.counters.disk_bytes.add(len);
        let outcome = match write.content {
            Content::Data(data) => self.disk.write(write.range.start, data, write.fua).await.outcome,
            Content::Zeroes { may_unmap } => self.zero_disk(&write.range, write.fua, may_unmap).await,
            Content::Unheld => Outcome::Failed(FailKind::Invalid),
        };
        let good = outcome == Outcome::Done;
        if !good {
            self.counters.disk_errors.add(1);
        }
        {
            let mut state = lock(&self.state);
            state.disk_writes.add(self.now().ns_since(begun));
            let more = state.ledger.disk_wrote(write.id, good);
            self.issue(more);
            self.pump(&mut state);
            self.measure(&mut state);
            if state.ledger.is_held_back() {
                self.retry_later(&mut state);
            }
        }
        self.changed.notify_all();
        let wanted = lock(&self.state).ledger.flush_wanted();
        if wanted {
            self.kick_flush();
        }
    }

    async fn zero_disk(&self, range: &Range<u64>, fua: bool, may_unmap: bool) -> Outcome {
        let (offset, len) = (range.start, range.end - range.start);
        match self.disk.write_zeroes(offset, len, fua, may_unmap).await.outcome {
            Outcome::Failed(FailKind::Unsupported) => {}
            outcome => return outcome,
        }
        let mut done = 0;
        while done < len {
            let n = (len - done).min(RECORD_DATA_BYTES_MAX as u64);
            let data: SharedBufs = Buf::zeroed(n as usize).freeze().into();
            let outcome = self.disk.write(offset + done, data, fua).await.outcome;
            if outcome != Outcome::Done {
                return outcome;
            }
            done += n;
        }
        Outcome::Done
    }

    fn retry_later(&self, state: &mut State) {
        if std::mem::replace(&mut state.retrying, true) {
            return;
        }
        let me = self.arc();
        self.log.world.spawn.spawn(Box::pin(async move {
            me.log.world.clock.sleep(RETRY_AFTER).await;
            let mut state = lock(&me.state);
            state.retrying = false;
            if !me.stopping.load(Ordering::Acquire) {
                let writes = state.ledger.retry();
                me.issue(writes);
                me.pump(&mut state);
            }
        }));
    }

    /// Flush the disk, unless a flush is under way: then once more after it, if something waits for that.
    fn kick_flush(&self) {
        {
            let mut state = lock(&self.state);
            if state.ledger.has_bound_to_ring() {
                // The disk alone does not make them durable: the ring does, or what it releases.
                self.log.rings.iter().for_each(|ring| {
                    ring.want_durable();
                    ring.want_release();
                });
            }
            if !state.ledger.has_unflushed() || std::mem::replace(&mut state.flushing, true) {
                return;
            }
        }
        let me = self.arc();
        self.log.world.spawn.spawn(Box::pin(async move { me.flush_while_wanted().await }));
    }

    async fn flush_while_wanted(self: Arc<Self>) {
        loop {
            let begun_at = lock(&self.state).ledger.flush_begins();
            let good = self.disk.flush().await.outcome == Outcome::Done;
            let again = {
                let mut state = lock(&self.state);
                let covers =
                    if self.sabotaged(Sabotage::JoinedIssuedFlush) { state.ledger.flush_begins() } else { begun_at };
                if !good {
                    self.counters.disk_errors.add(1);
                }
                state.flush_refused = !good;
                let heard = !good && self.log.config.told_of_losses;
                let more = if heard { Vec::new() } else { state.ledger.flush_ended(covers, good) };
                self.issue(more);
                self.pump(&mut state);
                self.measure(&mut state);
                let again =
                    good && (state.ledger.flush_wanted() || !state.stranded.is_empty() && state.ledger.has_unflushed());
                state.flushing = again;
                again
            };
            self.changed.notify_all();
            if !again {
                return;
            }
        }
    }

    /// See that what nobody syncs is flushed before long.
    fn start_settling(&self) {
        if std::mem::replace(&mut lock(&self.state).settling, true) {
            return;
        }
        let me = self.arc();
        self.log.world.spawn.spawn(Box::pin(async move {
            me.log.world.clock.sleep(SETTLE_AFTER).await;
            lock(&me.state).settling = false;
            me.kick_flush();
            let more = !lock(&me.state).ledger.is_empty() && !me.stopping.load(Ordering::Acquire);
            if more {
                me.start_settling();
            }
        }));
    }

    // --- syncs ----------------------------------------------------------------------------------------------------------

    fn begin_sync(
        &self,
        state: &mut State,
        only: Option<Seq>,
    ) -> Option<(SyncId, device::sync::Receiver<Option<bool>>)> {
        let sync = state.ledger.begin_sync(only)?;
        let (sender, receiver) = one_shot();
        state.syncs.insert(sync, sender);
        Some((sync, receiver))
    }

    async fn sync(self: Arc<Self>) -> Outcome {
        let begun = self.now();
        let (sync, skip) = {
            let mut state = lock(&self.state);
            let skip = state.ledger.has_unheld();
            let begun = self.begin_sync(&mut state, None);
            self.pump(&mut state);
            (begun, skip)
        };
        let Some((sync, answer)) = sync else { return Outcome::Done };
        let (mode, off) = self.in_force();
        if mode != Mode::Flash || skip {
            self.kick_flush();
        }
        let skip = off.or(skip.then_some(Skip::Large));
        self.finish_sync(sync, answer, begun, skip).await
    }

    /// Wait for a sync, giving it to the ring in time.
    async fn finish_sync(
        self: &Arc<Self>,
        sync: SyncId,
        answer: device::sync::Receiver<Option<bool>>,
        begun: Instant,
        skip: Option<Skip>,
    ) -> Outcome {
        let mode = self.in_force().0;
        let skip = skip.or_else(|| self.log.rings.iter().all(|ring| ring.has_failed()).then_some(Skip::NoFlashDisk));
        let (last, delay) = {
            let state = lock(&self.state);
            let (_, flash_ns, samples) = self.ring_medians();
            let delay = mode::sync_delay(mode, &state.disk_syncs, flash_ns, samples, self.log.config.hedge_per_mille);
            (state.ledger.last(), delay)
        };
        let probe = self.syncs_begun.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE_EVERY);
        let delay = if probe && mode == Mode::Auto { Duration::ZERO } else { delay };
        let mut asked = Ok(false);
        let answered = if skip.is_some() {
            answer.await
        } else if delay.is_zero() {
            asked = self.ask_for(sync);
            answer.await
        } else {
            match select(answer, self.log.world.clock.sleep(delay)).await {
                Either::Left((answered, _)) => answered,
                Either::Right(((), answer)) => {
                    asked = self.ask_for(sync);
                    answer.await
                }
            }
        };
        let skip = skip.or(asked.err());
        self.count_sync(begun, last, answered.flatten(), skip, asked == Ok(true));
        match answered.flatten() {
            Some(_) => Outcome::Done,
            None => Outcome::Failed(FailKind::Media),
        }
    }

    /// Give the ring what a sync waits for. Whether it got any of it.
    fn ask_for(&self, sync: SyncId) -> Result<bool, Skip> {
        let asked = self.try_ask_for(sync);
        if asked.is_err() {
            self.kick_flush();
        }
        asked
    }

    fn try_ask_for(&self, sync: SyncId) -> Result<bool, Skip> {
        let mut state = lock(&self.state);
        if !state.ledger.ring_can_help(sync) {
            return Err(Skip::Large);
        }
        let unasked = state.ledger.unasked(sync);
        let mut any = false;
        for seq in &unasked {
            self.ask_locked(&mut state, *seq, true, false);
        }
        for seq in state.ledger.waited_for(sync) {
            any |= state.legs.contains_key(&seq);
        }
        self.pump(&mut state);
        drop(state);
        if any {
            self.log.rings.iter().for_each(|ring| ring.want_durable());
            if self.sabotaged(Sabotage::AckBeforeDurable) {
                self.pretend(sync);
            }
            Ok(true)
        } else {
            // The disk alone has it by now, or the ring took nothing.
            if unasked.is_empty() { Ok(false) } else { Err(Skip::Busy) }
        }
    }

    fn pretend(&self, sync: SyncId) {
        if let Some(sender) = lock(&self.state).syncs.remove(&sync) {
            sender.send(Some(true));
        }
    }

    fn count_sync(&self, begun: Instant, last: Seq, answered: Option<bool>, skip: Option<Skip>, asked: bool) {
        let took_ns = self.now().ns_since(begun);
        let slow = self.log.is_outlier(took_ns);
        let counters = &self.counters;
        if answered.is_some() {
            counters.redo_writes.add(1);
            counters.redo_time_us.add(took_ns / 1000);
        }
        if asked {
            counters.flash_writes.add(1);
        }
        match (answered, skip) {
            (None, _) => counters.failed.add(1),
            (Some(_), Some(why)) => {
                counters.skip(why);
                if slow {
                    counters.skip_outliers.add(1);
                }
            }
            (Some(true), None) => counters.flash_first.add(1),
            (Some(false), None) => counters.disk_first.add(1),
        }
        if slow && skip.is_none() && answered.is_some() {
            counters.actual_outliers.add(1);
        }
        let mut state = lock(&self.state);
        if state.watched.len() < WATCHED_MAX {
            state.watched.push_back(Watched { last, begun, saved: answered == Some(true) && !slow });
        }
        self.measure(&mut state);
    }

    /// Syncs whose every change the disk has by now: so long has the disk taken.
    fn measure(&self, state: &mut State) {
        let first_open = state.ledger.first_off_disk().unwrap_or(Seq::MAX);
        let now = self.now();
        while state.watched.front().is_some_and(|watched| watched.last < first_open) {
            let Some(watched) = state.watched.pop_front() else { return };
            let took_ns = now.ns_since(watched.begun);
            state.disk_syncs.add(took_ns);
            if watched.saved && self.log.is_outlier(took_ns) {
                self.counters.prevented_outliers.add(1);
            }
        }
    }

    /// Carry out what has come of events.
    fn pump(&self, state: &mut State) {
        loop {
            let effects = state.ledger.take_effects();
            if effects.is_empty() {
                return;
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
                        self.issue(writes);
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

    /// The disk has a change durably: its records may go, now or when they have arrived.
    fn release(&self, state: &mut State, seq: Seq) {
        let Some(legs) = state.legs.get_mut(&seq) else { return };
        let rings = &self.log.rings;
        legs.rings.retain(|ring, leg| match leg.batch {
            Some(number) => {
                rings[*ring].release(number);
                false
            }
            None => true,
        });
        if legs.rings.is_empty() {
            state.legs.remove(&seq);
        }
    }

    // --- reading ----------------------------------------------------------------------------------------------------------

    fn read(&self, offset: u64, bufs: Bufs) -> Completion {
        let range = offset..offset + bufs.len_bytes() as u64;
        let over = if self.sabotaged(Sabotage::SavedRedoForgotten) {
            Vec::new()
        } else {
            lock(&self.state).ledger.overlay(&range)
        };
        if over.is_empty() {
            return self.disk.read(offset, bufs);
        }
        let all = over.iter().map(|(r, _)| r.end - r.start).sum::<u64>() == range.end - range.start;
        let disk = self.disk.clone();
        Completion::future(async move {
            let mut done = if all {
                Completed { outcome: Outcome::Done, bufs, extents: Vec::new() }
            } else {
                disk.read(offset, bufs).await
            };
            if done.outcome == Outcome::Done {
                for (piece, content) in over {
                    let (at, len) = ((piece.start - offset) as usize, (piece.end - piece.start) as usize);
                    match content {
                        Content::Data(data) => done.bufs.copy_in_rope(at, &data),
                        _ => done.bufs.fill_zero(at..at + len),
                    }
                }
            }
            done
        })
    }

    /// What a client could find out from the disk may be old where a write has not arrived.
    fn status(&self, offset: u64, len: u64) -> Completion {
        if lock(&self.state).ledger.is_busy(&(offset..offset + len)) {
            let extents = vec![DeviceExtent { len, hole: false }];
            return Completion::ready(Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents });
        }
        self.disk.submit(Op::Status { offset, len })
    }

    /// A discarded range may read as anything: only what is in flight must not come after it.
    async fn discard(self: Arc<Self>, offset: u64, len: u64) -> Outcome {
        loop {
            let ticket = self.changed.ticket();
            if !lock(&self.state).ledger.is_busy(&(offset..offset + len)) {
                return self.disk.discard(offset, len).await.outcome;
            }
            self.changed.wait(ticket).await;
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
        let (stranded, standing, flushing) = (&state.stranded, &state.standing, state.flushing);
        let ledger = state.ledger.told();
        write!(f, "RedoDisk({}: stranded {stranded:?}, rings {standing:?}, flushing {flushing}, {ledger})", self.id)
    }
}

impl Io for RedoDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        match op {
            Op::Read { offset, bufs } => self.read(offset, bufs),
            Op::Write { offset, data, fua } => {
                let range = offset..offset + data.len_bytes() as u64;
                self.in_a_task(self.arc().change(range, Some(data), false, fua))
            }
            Op::WriteZeroes { offset, len, fua, may_unmap } => {
                self.in_a_task(self.arc().change(offset..offset + len, None, may_unmap, fua))
            }
            Op::Flush => self.in_a_task(self.arc().sync()),
            Op::Discard { offset, len } => self.in_a_task(self.arc().discard(offset, len)),
            Op::Status { offset, len } => self.status(offset, len),
        }
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

impl RedoDisk {
    fn hear(&self, state: &mut State, seq: Seq, ring: usize, event: RingEvent) {
        let gone = state.ledger.change(seq).is_none();
        let copies = Self::copies(state);
        let Some(legs) = state.legs.get_mut(&seq) else { return };
        let lies = |batch: u64| move |place| if place == Place::Asked(seq) { Place::Batch(batch) } else { place };
        match event {
            RingEvent::Written(number) => {
                if let Some(leg) = legs.rings.get_mut(&ring) {
                    leg.batch = Some(number);
                }
                state.in_ring[ring].update(&legs.range, lies(number));
                if gone {
                    // The disk was quicker.
                    self.release(state, seq);
                    return;
                }
            }
            RingEvent::Durable => {
                if let Some(leg) = legs.rings.get_mut(&ring) {
                    leg.durable = true;
                }
                // As its release would have it: the disk was quicker.
                let all = legs.leg(copies, false) == RingLeg::Durable;
                if all && state.ledger.change(seq).is_some_and(|change| change.is_on_disk()) {
                    let late = self.log.is_outlier(self.now().ns_since(legs.asked_at));
                    self.counters.flash_only_outliers.add(u64::from(late));
                }
            }
            RingEvent::Refused(why) => {
                // What was written when the flash failed, nobody knows.
                let batch = if why == Skip::NoFlashDisk { u64::MAX } else { self.log.rings[ring].next_number() };
                state.in_ring[ring].update(&legs.range, lies(batch));
                legs.rings.remove(&ring);
            }
        }
        self.look_at_legs(state, seq);
    }
}
