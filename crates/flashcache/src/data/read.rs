//! Reading: what of a request is cached, and getting it from flash or from memory on its way there.
//!
//! Never falls back to the disk itself: it says what it could not answer. Every part is checked against its checksum
//! before it is handed out (I4).

use crate::admission::worth::Worth;
use crate::base::counters::add;
use crate::base::disk::DiskHandle;
use crate::base::sabotage::Sabotage;
use crate::base::units::{BlockKey, DiskSlot, PART_BYTES, Page, SegmentId};
use crate::member::Member;
use crate::member::health::{Trouble, trouble};
use crate::placement::cache::FlashCache;
use device::sync::lock;
use device::{Bufs, Completed, Outcome};
use smallvec::SmallVec;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// A segment held against reuse while somebody reads from it.
#[derive(Debug)]
pub(crate) struct Pin {
    member: Arc<Member>,
    segment: SegmentId,
}

impl Pin {
    /// Taken under the lock of the index shard that names the segment, so that reclaim, which first removes the name,
    /// sees either no pin or this one.
    pub(crate) fn new(member: &Arc<Member>, segment: SegmentId) -> Pin {
        member.keep.touch(segment);
        Pin::passing(member, segment)
    }

    /// The same for whoever passes by: it makes the segment no more worth keeping.
    pub(crate) fn passing(member: &Arc<Member>, segment: SegmentId) -> Pin {
        member.pins[segment.0 as usize].fetch_add(1, Ordering::AcqRel);
        Pin { member: member.clone(), segment }
    }

    /// Both hold one segment. Members number their segments alike: the number alone does not tell, where a request goes over the border of
    /// two regions with different members.
    fn is_same_place(&self, other: &Pin) -> bool {
        Arc::ptr_eq(&self.member, &other.member) && self.segment == other.segment
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.member.pins[self.segment.0 as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.member.unpinned(self.segment);
        }
    }
}

/// Consecutive parts that lie in consecutive pages.
#[derive(Debug)]
pub struct Hit {
    pin: Pin,
    page: Page,
    slot: DiskSlot,
    first_part: u64,
    parts: u32,
    /// It lives here alone: the disk cannot stand in for it.
    dirty: bool,
}

impl Hit {
    /// Which parts of the grid disk.
    #[must_use]
    pub fn parts(&self) -> Range<u64> {
        self.first_part..self.first_part + u64::from(self.parts)
    }

    /// Whether the disk has older data there.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(crate) fn slot(&self) -> DiskSlot {
        self.slot
    }

    pub(crate) fn page(&self) -> Page {
        self.page
    }

    /// Who holds it.
    pub(crate) fn member(&self) -> &Arc<Member> {
        &self.pin.member
    }
}

/// Consecutive parts of one block that lie in consecutive pages.
struct Run {
    /// The first of them, within the block.
    first: u32,
    parts: u32,
    page: Page,
    pin: Pin,
    dirty: bool,
}

/// A stretch of a request.
#[derive(Debug)]
pub enum Stretch {
    /// So many parts are not cached (or have to be compared with the disk first).
    Miss(u32),
    /// So many parts are.
    Hit(Hit),
}

impl Stretch {
    /// Parts of the stretch.
    #[must_use]
    pub fn parts(&self) -> u32 {
        match self {
            Stretch::Miss(parts) => *parts,
            Stretch::Hit(hit) => hit.parts,
        }
    }
}

/// Where a part of a grid disk lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// On the disk alone.
    Disk,
    /// On the disk and on flash.
    Cached,
    /// The same, among KEEP data.
    Kept,
    /// On flash alone: the disk has older data.
    Dirty,
}

/// Why a hit could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitError {
    /// Checksum mismatch: the part is forgotten, read it from disk.
    Rot,
    /// The flash failed; the member was given up.
    Failed,
    /// The flash is slower than the soft limit: its buffer comes back later, read from disk.
    Slow,
    /// A dirty part cannot be read: nobody has it.
    Lost,
}

impl FlashCache {
    /// The stretches of `parts` that are cached and those that are not, in order. Each block found counts a hit. A slow member
    /// answers for its dirty data alone, and a failed one for nothing: look at [`FlashCache::has_lost`] first.
    #[must_use]
    pub fn lookup(&self, disk: &DiskHandle, parts: Range<u64>) -> SmallVec<[Stretch; 4]> {
        let mut out = SmallVec::new();
        if self.retired.load(Ordering::Acquire) {
            // A request that misses looks again while it holds the range, at the cache of that moment.
            out.push(Stretch::Miss((parts.end - parts.start) as u32));
            return out;
        }
        self.by_live_seat(disk, parts, |seat, parts| {
            let member = seat.map(|i| &self.seats[i].member);
            let slow = member.is_some_and(|m| m.is_slow());
            let bypassed = slow && self.config.sabotage == Some(Sabotage::DirtyBypassed);
            match member.filter(|m| !slow || (!bypassed && m.dirty_bytes() > 0)) {
                Some(member) => self.by_worth(disk, parts, |parts, cached| {
                    member.lookup(disk, parts, slow || !cached, &mut out);
                }),
                None => out.push(Stretch::Miss((parts.end - parts.start) as u32)),
            }
        });
        out
    }

    /// Where `parts` live, as runs of (parts, residence) in order; counts no hit.
    #[must_use]
    pub fn residence(&self, disk: &DiskHandle, parts: Range<u64>) -> Vec<(u64, Residence)> {
        let mut runs: Vec<(u64, Residence)> = Vec::new();
        self.by_live_seat(disk, parts, |seat, parts| {
            let member = seat.map(|i| &self.seats[i].member);
            let refusing = self.worths.refusing(disk.slot);
            for part in parts {
                let found = match member.map_or(Residence::Disk, |m| m.residence(disk.slot, part)) {
                    Residence::Cached | Residence::Kept
                        if refusing.as_ref().is_some_and(|map| map.of(part) == Worth::None) =>
                    {
                        Residence::Disk
                    }
                    found => found,
                };
                match runs.last_mut() {
                    Some(last) if last.1 == found => last.0 += 1,
                    _ => runs.push((1, found)),
                }
            }
        });
        runs
    }

    /// Whether some of `parts`, which [`FlashCache::lookup`] has missed, are cached all the same: their device is slow, and
    /// the disk reads them.
    #[must_use]
    pub fn is_on_slow_flash(&self, disk: &DiskHandle, parts: Range<u64>) -> bool {
        let is_cached = |(_, found): &(u64, Residence)| matches!(found, Residence::Cached | Residence::Kept);
        self.members().any(|member| member.is_slow()) && self.residence(disk, parts).iter().any(is_cached)
    }
}

impl Member {
    /// What of `parts` of a grid disk is cached, or with `dirty_only` lives here alone, appended to `out` in order. Counts a
    /// hit on each block found, unless who looks is passing by; it becomes the tenant's if it was nobody's.
    pub(crate) fn lookup(
        self: &Arc<Self>,
        disk: &DiskHandle,
        parts: Range<u64>,
        dirty_only: bool,
        out: &mut SmallVec<[Stretch; 4]>,
    ) {
        let (slot, tenant) = (disk.slot, disk.tenant);
        let block_parts = u64::from(self.block_parts);
        let mut part = parts.start;
        while part < parts.end {
            let block = part / block_parts;
            let (low, high) = ((part % block_parts) as u32, (parts.end - block * block_parts).min(block_parts) as u32);
            // Under the shard's lock: where each part lies, and one pin for each run of pages.
            let mut runs: SmallVec<[Run; 2]> = SmallVec::new();
            let key = BlockKey::new(slot, block);
            if !disk.passing && !dirty_only {
                self.policy.expect(key);
            }
            let mut hit = 0;
            // Held while the index counts.
            let mut turn = None;
            self.index.visit(key, |entry| {
                if entry.suspect() || (dirty_only && !entry.dirty()) {
                    return;
                }
                let dirty = entry.dirty();
                let mut touched = 0;
                for at in low..high {
                    if entry.valid() >> at & 1 == 0 {
                        continue;
                    }
                    touched |= 1 << at;
                    let page = entry.page_of_part(at);
                    match runs.last_mut() {
                        Some(run)
                            if run.first + run.parts == at
                                && run.page.0 + run.parts == page.0
                                && run.dirty == dirty =>
                        {
                            run.parts += 1;
                        }
                        _ => {
                            let segment = self.segment_of(page);
                            let pin = if disk.passing { Pin::passing(self, segment) } else { Pin::new(self, segment) };
                            runs.push(Run { first: at, parts: 1, page, pin, dirty });
                        }
                    }
                }
                if touched != 0 {
                    if !disk.passing {
                        entry.touch();
                        hit |= touched;
                    }
                    if tenant.is_somebody() && !entry.tenant().is_somebody() && turn.is_none() {
                        let (may, held) = self.may_adopt(tenant, entry.valid().count_ones());
                        turn = held;
                        if may {
                            entry.set_tenant(tenant);
                        }
                    }
                }
            });
            drop(turn);
            if hit != 0 {
                self.policy.hit(key);
                self.was_read(key, hit);
            }
            runs.sort_by_key(|run| run.first);
            let mut at = low;
            for Run { first, parts, page, pin, dirty } in runs {
                if first > at {
                    push_miss(out, first - at);
                }
                let first_part = block * block_parts + u64::from(first);
                push_hit(out, Hit { pin, page, slot, first_part, parts, dirty });
                at = first + parts;
            }
            if at < high {
                push_miss(out, high - at);
            }
            part = block * block_parts + u64::from(high);
        }
    }

    /// Where a part lives.
    pub(crate) fn residence(&self, slot: DiskSlot, part: u64) -> Residence {
        let (block, at) = (part / u64::from(self.block_parts), (part % u64::from(self.block_parts)) as u32);
        let mut found = Residence::Disk;
        self.index.visit(BlockKey::new(slot, block), |e| {
            if !e.suspect() && e.valid() >> at & 1 == 1 {
                found = match e.dirty() {
                    true => Residence::Dirty,
                    false if self.keep.holds(self.segment_of(e.page())) => Residence::Kept,
                    false => Residence::Cached,
                };
            }
        });
        found
    }

    /// The dirty parts of a range within one block, each run with the first page of its entry, in order.
    pub(crate) fn dirty_hits(self: &Arc<Self>, slot: DiskSlot, parts: Range<u64>) -> Vec<(Hit, Page)> {
        let block_parts = u64::from(self.block_parts);
        let block = parts.start / block_parts;
        let mut hits: Vec<(Hit, Page)> = Vec::new();
        self.index.visit(BlockKey::new(slot, block), |entry| {
            if !entry.dirty() {
                return;
            }
            let first = block * block_parts;
            for at in (0..16).filter(|p| entry.valid() >> p & 1 == 1 && parts.contains(&(first + u64::from(*p)))) {
                let page = entry.page_of_part(at);
                match hits.last_mut() {
                    Some((last, of)) if *of == entry.page() && last.parts().end == first + u64::from(at) => {
                        last.parts += 1;
                    }
                    _ => {
                        let pin = Pin::new(self, self.segment_of(page));
                        let first_part = first + u64::from(at);
                        hits.push((Hit { pin, page, slot, first_part, parts: 1, dirty: true }, entry.page()));
                    }
                }
            }
        });
        hits.sort_by_key(|(hit, _)| hit.first_part);
        hits
    }

    /// Read a hit. The buffer is lost to the driver when the flash is slow; it comes back otherwise.
    pub(crate) async fn read_hit(self: &Arc<Self>, hit: Hit, bufs: Bufs) -> (Result<(), HitError>, Option<Bufs>) {
        assert_eq!(bufs.len_bytes() as u64, u64::from(hit.parts) * PART_BYTES, "a buffer as long as the hit");
        let (_, position) = self.shape.place(hit.page);
        let below = self.readable[hit.pin.segment.0 as usize].load(Ordering::Acquire);
        let mut bufs = bufs;
        if hit.dirty && position.0 + hit.parts > below {
            // Nobody is told of a write that the death of the process could still undo.
            let last = Page(hit.page.0 + hit.parts - 1);
            if self.wait_arrived(last).await.is_err() {
                return (Err(HitError::Lost), Some(bufs));
            }
        }
        if position.0 + hit.parts > below && self.copy_staged(&hit, &mut bufs) {
            return (self.verify(&hit, &bufs), Some(bufs));
        }
        let at = self.device_offset(hit.page);
        let mut tries = 0;
        loop {
            let completion = self.config.device.read(at, bufs);
            let done = if hit.dirty {
                // Nobody else has it, so it is waited for.
                let Some(done) = self.within_hard_limit(completion).await else {
                    self.fail("a read took longer than the hard limit".to_owned());
                    return (Err(HitError::Lost), None);
                };
                done
            } else {
                match self.hedge(completion).await {
                    Ok(done) => done,
                    Err(late) => {
                        // The guard of the segment belongs to the I/O, not to the request that stops waiting for it.
                        self.world.spawn.spawn(Box::pin(async move {
                            let _ = late.await;
                            drop(hit);
                        }));
                        return (Err(HitError::Slow), None);
                    }
                }
            };
            bufs = done.bufs;
            if done.outcome == Outcome::Done {
                self.read_well();
                return (self.verify(&hit, &bufs), Some(bufs));
            }
            tries += 1;
            match self.read_badly(at, done.outcome, tries) {
                Trouble::Again => self.pause(tries).await,
                Trouble::Part => return (Err(self.unreadable(&hit)), Some(bufs)),
                Trouble::Gone if hit.dirty => return (Err(HitError::Lost), Some(bufs)),
                Trouble::Gone => return (Err(HitError::Failed), Some(bufs)),
            }
        }
    }

    /// The device cannot read some of a hit: what is clean of it is the disk's again; what is dirty is its mirror's, or nobody's.
    fn unreadable(&self, hit: &Hit) -> HitError {
        if hit.dirty {
            return HitError::Lost;
        }
        for k in 0..hit.parts {
            self.forget_part(hit.slot, hit.first_part + u64::from(k), Page(hit.page.0 + k));
        }
        HitError::Rot
    }

    /// Copy pages that are still on their way to flash; false when they have arrived meanwhile.
    fn copy_staged(&self, hit: &Hit, bufs: &mut Bufs) -> bool {
        let staged: SmallVec<[_; 4]> = {
            let log = lock(&self.log);
            (0..hit.parts).map(|k| log.staged.get(&(hit.page.0 + k)).cloned()).collect()
        };
        // One chunk holds them all, so they are staged or written together.
        let Some(staged) = staged.into_iter().collect::<Option<SmallVec<[_; 4]>>>() else { return false };
        for (k, page) in staged.iter().enumerate() {
            bufs.copy_in(k * PART_BYTES as usize, page);
        }
        true
    }

    fn verify(&self, hit: &Hit, bufs: &Bufs) -> Result<(), HitError> {
        let Some(name) = self.disk_name(hit.slot) else { return Err(HitError::Failed) };
        let mut bad = 0_u64;
        for k in 0..hit.parts {
            let part = hit.first_part + u64::from(k);
            let at = k as usize * PART_BYTES as usize;
            if name.part_sum(part, bufs.view(at..at + PART_BYTES as usize))
                != self.sums[(hit.page.0 + k) as usize].load(Ordering::Acquire)
            {
                bad += 1;
                if !hit.dirty {
                    self.forget_part(hit.slot, part, Page(hit.page.0 + k));
                }
            }
        }
        if bad == 0 {
            return Ok(());
        }
        add(&self.counters.rot_parts, bad);
        Err(if hit.dirty { HitError::Lost } else { HitError::Rot })
    }

    /// A clean part is rotten: forget it, durably in time.
    fn forget_part(&self, slot: DiskSlot, part: u64, page: Page) {
        let (block, at) = (part / u64::from(self.block_parts), (part % u64::from(self.block_parts)) as u32);
        let key = BlockKey::new(slot, block);
        let mut log = lock(&self.log);
        // What becomes dirty does so under the log's lock, and the hit keeps the segment in this opening.
        let mut rotten = None;
        self.index.visit(key, |e| {
            let is_it = !e.dirty() && e.valid() >> at & 1 == 1 && e.page_of_part(at) == page;
            rotten = rotten.or(is_it.then(|| e.page()));
        });
        if let Some(entry) = rotten {
            self.index.under(&mut log).cut_at(key, entry, 1 << at).record(self);
        }
    }

    /// Await a read; after the soft limit give the completion back and call the member slow until a probe is quick again.
    async fn hedge(self: &Arc<Self>, completion: device::Completion) -> Result<device::Completed, device::Completion> {
        let mut completion = completion;
        // Done already (memory devices): no timer is needed.
        let first = std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut completion).poll(cx))).await;
        if let Poll::Ready(done) = first {
            return Ok(done);
        }
        let timer = self.world.clock.sleep(self.config.soft_limit);
        match futures_util::future::select(completion, timer).await {
            futures_util::future::Either::Left((done, _)) => Ok(done),
            futures_util::future::Either::Right(((), late)) => {
                if !self.slow.swap(true, Ordering::AcqRel) {
                    let member = self.clone();
                    self.world.spawn.spawn(Box::pin(async move { member.probe_until_quick().await }));
                }
                Err(late)
            }
        }
    }

    /// A slow member is asked for one page at a time until it answers within the soft limit, or is given up after the hard
    /// one. No pause between: an answer that is late has taken the soft limit.
    async fn probe_until_quick(self: Arc<Self>) {
        while !self.has_failed() && !self.stopping.load(Ordering::Acquire) {
            let started = self.world.clock.now();
            let read = self.config.device.read(0, device::Buf::zeroed(PART_BYTES as usize).into());
            match self.within_hard_limit(read).await {
                None => return self.fail("a read took longer than the hard limit".to_owned()),
                // A page that cannot be read is an answer too.
                Some(Completed { outcome, .. }) if outcome != Outcome::Done && trouble(outcome) == Trouble::Gone => {
                    return self.fail(format!("probe read: {outcome:?}"));
                }
                Some(_) => {}
            }
            if u128::from(self.world.clock.now().ns_since(started)) <= self.config.soft_limit.as_nanos() {
                self.slow.store(false, Ordering::Release);
                return;
            }
        }
    }
}

fn push_miss(out: &mut SmallVec<[Stretch; 4]>, parts: u32) {
    match out.last_mut() {
        Some(Stretch::Miss(count)) => *count += parts,
        _ => out.push(Stretch::Miss(parts)),
    }
}

fn push_hit(out: &mut SmallVec<[Stretch; 4]>, hit: Hit) {
    if let Some(Stretch::Hit(last)) = out.last_mut()
        && last.page.0 + last.parts == hit.page.0
        && last.pin.is_same_place(&hit.pin)
        && last.first_part + u64::from(last.parts) == hit.first_part
        && last.dirty == hit.dirty
    {
        last.parts += hit.parts;
        return;
    }
    out.push(Stretch::Hit(hit));
}
