//! Clean hits that the disk serves since flash is busy: which ones, and what they tell. When flash is busy is found by
//! [`flashcache::busy`]; here are the atomics by which the request path asks it, one set for each flash device of a grid
//! disk's cache.
//!
//! As long as all flash is healthy a hit looks at one flag. Never sends a hit that is dirty or large: what is dirty the disk
//! has not, and large requests are a matter of bandwidth, whose times would hide those of small ones.
//!
//! A stalled disk holds up only who needs it (I7): a hit that it does not answer within the time of a few reads is read from
//! flash after all, and until it answers something it gets no more.

use crate::base::counters::SMALL_BYTES_MAX;
use crate::base::range_lock::LockMode;
use crate::base::request::RequestError;
use crate::base::streams::Scan;
use crate::disk::client_io::{ClientRead, ReadSkip};
use crate::disk::grid_disk::{Binding, GridDisk};
use device::sync::lock;
use device::{Bufs, Instant, Outcome};
use flashcache::SHARE_WHOLE;
use flashcache::{BusyFlash, FlashCache, Stretch};
use futures_util::future::{Either, select};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the request path knows of one flash device, and of the hits it has sent past it. A value that is a moment old sends
/// one hit more or less to the disk.
#[derive(Debug, Default)]
struct Seat {
    share: AtomicU32,
    /// The share, summed up: each time it passes a whole, a hit goes to the disk.
    turn: AtomicU32,
    probes: AtomicU32,
    expires_ns: AtomicU64,
    patience_ns: AtomicU64,
    /// Hits the disk is reading.
    under_way: AtomicU32,
    /// Since when it has answered none of them.
    quiet_since_ns: AtomicU64,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Diverter {
    seats: Vec<Seat>,
    found: Mutex<Vec<BusyFlash>>,
    /// Something is to be sent, or every hit to be timed.
    alert: AtomicBool,
}

impl Diverter {
    /// For the members of a cache; none when it is configured so.
    pub(crate) fn of(cache: &FlashCache) -> Option<Diverter> {
        let tuning = cache.config().busy?;
        let found: Vec<BusyFlash> = cache.members().map(|_| BusyFlash::new(tuning)).collect();
        let seats = found.iter().map(|_| Seat::default()).collect();
        let diverter = Diverter { seats, alert: AtomicBool::new(tuning.every_hit), found: Mutex::new(found) };
        (0..diverter.seats.len()).for_each(|index| diverter.tell(index, |_| ()));
        Some(diverter)
    }

    /// Whether a hit has to look further.
    pub(crate) fn is_alert(&self) -> bool {
        self.alert.load(Ordering::Relaxed)
    }

    /// Tell what has happened on member `index`.
    fn tell(&self, index: usize, what: impl FnOnce(&mut BusyFlash)) {
        let mut all = lock(&self.found);
        let found = &mut all[index];
        what(found);
        let seat = &self.seats[index];
        seat.share.store(found.share(), Ordering::Relaxed);
        seat.expires_ns.store(found.expires().0, Ordering::Relaxed);
        seat.patience_ns.store(found.patience_ns(), Ordering::Relaxed);
        seat.probes.fetch_add(found.take_probes(), Ordering::Relaxed);
        self.alert.store(all.iter().any(BusyFlash::is_alert), Ordering::Relaxed);
    }

    /// A hit on member `index` was read from flash.
    pub(crate) fn flash_read(&self, index: usize, begun: Instant, now: Instant) {
        self.tell(index, |found| found.flash_read(now.ns_since(begun), now));
    }

    /// Whether fills of member `index` are declined.
    fn declines(&self, index: usize, now: Instant) -> bool {
        let seat = &self.seats[index];
        if seat.share.load(Ordering::Relaxed) == 0 {
            return false;
        }
        if now.0 >= seat.expires_ns.load(Ordering::Relaxed) {
            self.tell(index, |found| found.expire(now));
        }
        seat.share.load(Ordering::Relaxed) > 0
    }

    /// Whether this hit on member `index` goes to the disk: then it is under way until [`Diverter::answered`].
    fn sends(&self, index: usize, now: Instant) -> bool {
        let seat = &self.seats[index];
        let one_less = |probes: u32| probes.checked_sub(1);
        let is_probe = seat.probes.load(Ordering::Relaxed) > 0
            && seat.probes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        if !is_probe {
            if !self.declines(index, now) {
                return false;
            }
            let share = seat.share.load(Ordering::Relaxed);
            if seat.turn.fetch_add(share, Ordering::Relaxed) % SHARE_WHOLE + share < SHARE_WHOLE {
                return false;
            }
        }
        let quiet_ns = now.ns_since(Instant(seat.quiet_since_ns.load(Ordering::Relaxed)));
        if seat.under_way.load(Ordering::Relaxed) > 0 && quiet_ns > seat.patience_ns.load(Ordering::Relaxed) {
            return false;
        }
        if seat.under_way.fetch_add(1, Ordering::Relaxed) == 0 {
            seat.quiet_since_ns.store(now.0, Ordering::Relaxed);
        }
        true
    }

    /// The disk has answered a hit, sooner or later.
    fn answered(&self, index: usize, now: Instant) {
        let seat = &self.seats[index];
        seat.under_way.fetch_sub(1, Ordering::Relaxed);
        seat.quiet_since_ns.store(now.0, Ordering::Relaxed);
    }

    /// How long to wait for the disk.
    fn patience(&self, index: usize) -> Duration {
        Duration::from_nanos(self.seats[index].patience_ns.load(Ordering::Relaxed))
    }
}

/// A hit that the disk reads. When this is dropped the disk has answered, or nobody waits for it any more: a client that dies takes its
/// requests with it, and one that counted for ever would end the help of the disk.
#[derive(Debug)]
pub(crate) struct SentHit {
    diverter: Arc<Diverter>,
    cache: Arc<FlashCache>,
    index: usize,
}

impl SentHit {
    fn tell(&self, what: impl FnOnce(&mut BusyFlash)) {
        self.diverter.tell(self.index, what);
    }
}

impl Drop for SentHit {
    fn drop(&mut self) {
        self.diverter.answered(self.index, self.cache.now());
    }
}

/// A hit, as it begins: whether it is timed, and against which member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HitTimer<'a> {
    diverter: &'a Diverter,
    index: usize,
    begun: Instant,
}

impl HitTimer<'_> {
    /// It was served from flash.
    pub(crate) fn ended(self, now: Instant) {
        self.diverter.flash_read(self.index, self.begun, now);
    }
}

impl Binding {
    /// A hit of `len` bytes from part `first` on begins; `timed` is when, if it is one of those that are always timed.
    pub(crate) fn time_hit(&self, first: u64, len: u64, timed: Option<Instant>) -> Option<HitTimer<'_>> {
        let diverter = self.diverter.as_ref().filter(|diverter| timed.is_some() || diverter.is_alert())?;
        if len > SMALL_BYTES_MAX {
            return None;
        }
        // A request rarely spans two members; the first speaks for it.
        let index = self.cache.member_of(&self.disk, first)?;
        Some(HitTimer { diverter, index, begun: timed.unwrap_or_else(|| self.cache.now()) })
    }

    /// Whether data from part `first` on is not to be kept since the flash that would is busy.
    pub(crate) fn declines_fill(&self, first: u64) -> bool {
        self.diverter.as_ref().filter(|diverter| diverter.is_alert()).is_some_and(|diverter| {
            let index = self.cache.member_of(&self.disk, first);
            index.is_some_and(|index| diverter.declines(index, self.cache.now()))
        })
    }
}

impl GridDisk {
    /// Whether hits that make up a request go to the disk all the same.
    pub(crate) fn diverts(
        &self,
        binding: &Binding,
        timer: Option<HitTimer<'_>>,
        stretches: &[Stretch],
    ) -> Option<SentHit> {
        let diverter = binding.diverter.as_ref()?;
        let HitTimer { index, begun, .. } = timer.filter(|timer| timer.diverter.is_alert())?;
        let dirty = stretches.iter().any(|s| matches!(s, Stretch::Hit(hit) if hit.is_dirty()));
        let sent = !dirty && diverter.sends(index, begun);
        sent.then(|| SentHit { diverter: diverter.clone(), cache: binding.cache.clone(), index })
    }

    /// Read hits from disk; what it cannot read, or not soon, from flash after all.
    pub(crate) async fn read_diverted(
        &self,
        read: &mut ClientRead<'_>,
        binding: &Binding,
        scan: Option<Scan>,
        sent: SentHit,
        offset: u64,
        bufs: Bufs,
    ) -> (Result<(), RequestError>, Bufs) {
        let (done, bufs) = self.read_from_disk_instead(sent, offset, bufs).await;
        if done {
            read.skips(ReadSkip::Busy);
            return (Ok(()), bufs);
        }
        self.read_missed(read, binding, scan, offset, bufs).await
    }

    /// Whether the disk has read it. The buffer of a disk that takes too long is replaced.
    async fn read_from_disk_instead(&self, sent: SentHit, offset: u64, bufs: Bufs) -> (bool, Bufs) {
        let bytes = bufs.len_bytes();
        // As every read of the disk: no write of the same blocks is under way. Looked at again under the lock: what became
        // dirty while this waited for it is not on the disk.
        let Ok(guard) = self.claim_bytes(offset, bytes as u64, LockMode::Shared).await else {
            // Dropped meanwhile: whoever reads it as a miss hears why.
            return (false, bufs);
        };
        if self.check_not_lost().is_err() || self.dirty_stretches(offset, bytes as u64).is_some() {
            return (false, bufs);
        }
        let cache = sent.cache.clone();
        let begun = cache.now();
        self.counters.disk_reads.count(bytes as u64);
        let patience = sent.diverter.patience(sent.index);
        let read = select(self.disk.read(offset, bufs), cache.world().clock.sleep(patience)).await;
        // Of a read that goes on nobody sees the data: its range is free.
        drop(guard);
        let now = cache.now();
        match read {
            Either::Left((done, _)) => {
                let read = done.outcome == Outcome::Done;
                sent.tell(
                    |found| if read { found.disk_read(now.ns_since(begun), now) } else { found.disk_failed(now) },
                );
                (read, done.bufs)
            }
            Either::Right(((), late)) => {
                sent.tell(|found| found.disk_read(now.ns_since(begun), now));
                cache.world().spawn.spawn(Box::pin(async move {
                    let _ = late.await;
                    drop(sent);
                }));
                (false, self.replacement(bytes))
            }
        }
    }
}
