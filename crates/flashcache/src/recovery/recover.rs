//! Recovery: the index and the unsettled regions back from the footers and chunks on flash.
//!
//! Reads footers of sealed segments, walks chunks only where there is no footer, and believes nothing of an older era,
//! opening of a segment. It only adds to the log: what it finds in force and at risk is written again before anything
//! is served.

use crate::base::counters::add;
use crate::base::regions::RegionKey;
use crate::base::sabotage::Sabotage;
use crate::base::units::{Opening, Position, SegmentId};
use crate::format::{HeadKind, Record, first_of_next_life, life_of};
use crate::log::carry::Carried;
use crate::log::{LogState, SegmentState};
use crate::member::segment::{Cut, Footer, Found, Headless, Read, Unread, read_segment, read_what_can_be};
use crate::member::{Member, MemberError};
use crate::recovery::restore::{FoundSparse, Place, Said, Sparse};
use device::sync::lock;
use device::{Buf, Outcome, SharedBuf};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Segments read at the same time.
const READS_IN_FLIGHT_MAX: usize = 32;

/// What an index was rebuilt from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evidence {
    /// Footers and chunks: no checkpoint was there, as after a crash.
    #[default]
    Log,
    /// The same, since the checkpoint that should be there did not read back, or did not know all grid disks.
    LogForCheckpoint,
    /// The checkpoint of a clean stop.
    Checkpoint,
}

/// What recovery found, for the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// From what.
    pub evidence: Evidence,
    /// Segments with content.
    pub segments: u64,
    /// Segments read chunk by chunk: they had no whole footer.
    pub walked: u64,
    /// Of them, those the log goes on in.
    pub reopened: u64,
    /// Those of them that had a footer, but a torn one.
    pub torn_footers: u64,
    /// Segments whose first page cannot be read back: their footers say the same.
    pub headless: u64,
    /// Headers of chunks that were lost, rotten or unreadable, and that were made again from what a flush has left of them.
    pub rebuilt_headers: u64,
    /// Entries in the index.
    pub entries: u64,
    /// Regions to compare with the disk.
    pub unsettled_regions: u64,
    /// Dirty parts: the disk has older data there.
    pub dirty_parts: u64,
    /// Dirty parts a crash had torn before they were durable.
    pub torn_parts: u64,
}

/// By segment: since which sequence it has its place, in which opening, at which head.
type KeptAt = BTreeMap<SegmentId, (u64, Opening, HeadKind)>;

impl LogState {
    /// A new life begins, after one that had this sequence.
    pub(crate) fn set_life_after(&self, sequence: u64) {
        self.set_next_sequence(first_of_next_life(sequence));
    }

    /// Whether a chunk of this sequence was written before the last recovery.
    pub(crate) fn is_of_earlier_life(&self, sequence: u64) -> bool {
        life_of(sequence) < life_of(self.next_sequence())
    }
}

/// By life of the cache: up to which sequence every chunk was durable, by what headers say. A header proves something of chunks of its own
/// life only: what an earlier life had lost, undurable, was found missing then, and is not there for a good reason.
struct Durable(BTreeMap<u64, u64>);

impl Durable {
    fn of<'a>(found: impl Iterator<Item = &'a Found<Sparse>>) -> Durable {
        let mut durable: BTreeMap<u64, u64> = BTreeMap::new();
        for segment in found.filter(|segment| segment.durable > 0) {
            let last = durable.entry(life_of(segment.durable)).or_insert(0);
            *last = (*last).max(segment.durable);
        }
        Durable(durable)
    }

    fn had(&self, sequence: u64) -> bool {
        self.0.get(&life_of(sequence)).is_some_and(|&last| sequence <= last)
    }
}

/// A chunk that was durable, by a later header, and whose segment has not been freed since, but which is not there. Its
/// records may be what ends entries elsewhere. `remnants` are witnesses, too.
fn missing_chunk(found: &FoundSparse, remnants: &FoundSparse, freed: &BTreeMap<SegmentId, Opening>) -> Option<u64> {
    let all = || found.values().chain(remnants.values());
    let durable = Durable::of(all());
    let mut there: Vec<u64> = all().flat_map(|segment| segment.records.sequences()).collect();
    there.sort_unstable();
    let notes = all().flat_map(|segment| &segment.records.notes);
    let links = notes.filter_map(|(_, record)| match record {
        Record::Link { segment, opening, sequence, certain } => Some((*segment, *opening, *sequence, *certain)),
        _ => None,
    });
    let missing = |&(segment, opening, sequence, certain): &(SegmentId, Opening, u64, bool)| {
        let freed_since = || freed.get(&segment).is_some_and(|&last| last >= opening);
        let is_later = |found: &FoundSparse| found.get(&segment).is_some_and(|f| f.life.opening > opening);
        let reused = || is_later(found) || is_later(remnants);
        let was_durable = || certain || durable.had(sequence);
        there.binary_search(&sequence).is_err() && was_durable() && !freed_since() && !reused()
    };
    links.filter(missing).map(|(_, _, sequence, _)| sequence).next()
}

/// What reading all segments has found.
#[derive(Default)]
struct AllRead {
    found: FoundSparse,
    /// Chunks of openings that have neither first page nor footer.
    remnants: FoundSparse,
    /// Segments of which nothing can be read.
    unread: BTreeMap<SegmentId, Unread>,
}

impl AllRead {
    /// Whether something is missing that was there: nothing of the rest can be believed then.
    ///
    /// # Errors
    /// What is missing.
    fn check(&self, freed: &BTreeMap<SegmentId, Opening>) -> Result<(), MemberError> {
        // That nobody has said that one is free means that it is in use, or never was: a device that is new is written once.
        if let Some((_, why)) = self.unread.iter().find(|(id, _)| !freed.contains_key(id)) {
            return Err((*why).into());
        }
        if let Some(why) = self.unread_opening(freed) {
            return Err(why.into());
        }
        if let Some(id) = self.cut_off(freed) {
            return Err(MemberError::Failed(format!(
                "recovery: a chunk of segment {} was acknowledged as durable and is not there: nothing on the device can be believed",
                id.0
            )));
        }
        missing_chunk(&self.found, &self.remnants, freed).map_or(Ok(()), |sequence| {
            Err(MemberError::Failed(format!(
                "recovery: chunk {sequence} was acknowledged as durable and is not there: nothing on the device can be believed"
            )))
        })
    }

    /// A segment that lacks a chunk which a flush has covered: by its witness, or since a flush has covered one behind it.
    fn cut_off(&self, freed: &BTreeMap<SegmentId, Opening>) -> Option<SegmentId> {
        let durable = Durable::of(self.found.values().chain(self.remnants.values()));
        let lacks = |(id, f): &(&SegmentId, &Found<Sparse>)| {
            let is_freed = freed.get(id).is_some_and(|&last| last >= f.life.opening);
            let was_durable = |cut: &Cut| cut.was_durable || cut.behind.iter().any(|&behind| durable.had(behind));
            !is_freed && f.cut.as_ref().is_some_and(was_durable)
        };
        self.found.iter().find(lacks).map(|(id, _)| *id)
    }

    /// Why a segment cannot be read whose first page is that of an opening later than what is known of it: by a chunk behind it, or a link
    /// to one. Whether that was durable does not matter: what was lost undurable can be read, as something else.
    fn unread_opening(&self, freed: &BTreeMap<SegmentId, Opening>) -> Option<Unread> {
        let unread = |f: &Found<Sparse>| match f.headless {
            Some(Headless::Unread(why)) => Some(why),
            _ => None,
        };
        // With the last opening that all is known of.
        let mut known: BTreeMap<SegmentId, (Opening, Unread)> = BTreeMap::new();
        let found = self.found.iter().filter_map(|(&id, f)| Some((id, (f.life.opening, unread(f)?))));
        let remnants = self.remnants.iter().filter_map(|(&id, f)| Some((id, (Opening::NEVER, unread(f)?))));
        known.extend(found.chain(remnants));
        known.extend(self.unread.iter().map(|(&id, &why)| (id, (Opening::NEVER, why))));
        for (id, (opening, _)) in &mut known {
            *opening = (*opening).max(freed.get(id).copied().unwrap_or(Opening::NEVER));
        }
        let notes = self.found.values().chain(self.remnants.values()).flat_map(|f| &f.records.notes);
        let linked = notes.filter_map(|(_, record)| match record {
            Record::Link { segment, opening, .. } => Some((*segment, *opening)),
            _ => None,
        });
        let seen = self.remnants.iter().map(|(&id, f)| (id, f.life.opening)).chain(linked);
        seen.filter_map(|(id, seen)| known.get(&id).filter(|(opening, _)| seen > *opening)).map(|(_, why)| *why).next()
    }
}

impl Member {
    /// Rebuild from flash. Grid disks must be registered before; entries of others are void, and entries of regions that
    /// `owned` (grid disk id, region) says are another member's end here.
    ///
    /// # Errors
    /// The flash cannot be written, or a segment cannot be read: what it held may be what ends an entry elsewhere.
    pub(crate) async fn recover(
        self: &Arc<Self>,
        owned: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Recovered, MemberError> {
        let all = self.read_all().await?;
        let found = &all.found;
        let life = lock(&self.log).life;
        let later = |segment: &Found<Sparse>| segment.life.opening.life() >= life;
        let is_checked = !self.sabotaged(Sabotage::OpeningUsedAgain);
        if let Some((id, later)) = found.iter().find(|(_, segment)| is_checked && later(segment)) {
            return Err(MemberError::Failed(format!(
                "recovery: segment {} was opened in life {} of the flash cache, and this is life {life}: the label of the flash device was \
                 put back in time without its content",
                id.0,
                later.life.opening.life()
            )));
        }
        let mut result = Recovered::default();
        let mut freed: BTreeMap<SegmentId, Opening> = BTreeMap::new();
        let mut said = Said::default();
        let mut durable = 0;
        let mut marks: BTreeMap<RegionKey, (u64, bool)> = BTreeMap::new();
        let mut last_sequence = 0;
        let mut kept = KeptAt::new();
        let mut policy_note = (0, 0);
        for segment in found.values() {
            last_sequence = last_sequence.max(segment.last_sequence);
            durable = durable.max(segment.durable);
            result.walked += u64::from(segment.footer != Footer::Whole);
            result.torn_footers += u64::from(segment.footer == Footer::Torn);
            for (sequence, record) in &segment.records.notes {
                match record {
                    Record::Free { segment, opening } => {
                        let last = freed.entry(*segment).or_insert(Opening::NEVER);
                        *last = (*last).max(*opening);
                    }
                    Record::Invalidation { segment, opening, position, mask, cleaned } => {
                        said.say((*segment, *opening, position.0), *mask, *cleaned);
                    }
                    Record::Mark { disk, generation, region, set } => {
                        if let Some(key) = self.region_key(*disk, *generation, *region) {
                            let mark = marks.entry(key).or_insert((*sequence, *set));
                            if *sequence >= mark.0 {
                                *mark = (*sequence, *set);
                            }
                        }
                    }
                    Record::Kept { segment, opening, head, sequence } => {
                        let last = kept.entry(*segment).or_insert((*sequence, *opening, *head));
                        *last = (*last).max((*sequence, *opening, *head));
                    }
                    Record::PolicyNote { note } => policy_note = policy_note.max((*sequence, *note)),
                    Record::Entry { .. } | Record::Chunk { .. } | Record::Link { .. } => {}
                }
            }
        }
        all.check(&freed)?;
        let mut found = all.found;
        said.sort();
        let alive = |id: &SegmentId, s: &Found<Sparse>| freed.get(id).is_none_or(|&g| g < s.life.opening);
        let headless = found.iter().filter(|(id, s)| s.headless.is_some() && alive(id, s)).count() as u64;
        result.headless = headless;
        let walked = found.iter().filter(|(id, s)| alive(id, s)).flat_map(|(_, s)| &s.headers);
        result.rebuilt_headers = walked.filter(|walked| walked.is_rebuilt).count() as u64;
        add(&self.counters.segments_headless, headless);
        self.write_headers_again(&found, &alive, durable).await?;
        let torn = self.find_torn(&found, &alive, &said, durable).await?;
        let ends = self.ends(&found, &alive);
        self.clear_behind(&ends).await?;
        // What was read must not change its mind at a later power cut: links say from now on that it was durable.
        match self.within_hard_limit(self.config.device.flush()).await {
            Some(done) if done.outcome == Outcome::Done => {}
            done => return Err(MemberError::Failed(format!("recovery: flush: {:?}", done.map(|d| d.outcome)))),
        }
        self.restore_segments(&found, &freed, &kept, last_sequence);
        self.remind_policy(policy_note.1);
        result.reopened = self.reopen(&found, &ends);
        self.write_missing_footers(&found, &alive).await?;
        let witnesses = lock(&self.log).witness_reopened();
        self.issue_witnesses(witnesses);
        for &(place, mask) in &torn {
            result.torn_parts += u64::from(mask.count_ones());
            said.say(place, mask, false);
            let mut log = lock(&self.log);
            let (segment, opening, position) = (place.0, place.1, Position(place.2));
            log.append_record(Record::Invalidation { segment, opening, position, mask, cleaned: false });
        }
        add(&self.counters.dirty_torn, result.torn_parts);
        for (&key, &(_, set)) in &marks {
            if set {
                self.regions.restore(key);
                result.unsettled_regions += 1;
            }
        }
        // What only a freed segment still says would be lost with its reuse: say it again before anything is reused.
        self.carry_from_freed(&found, &freed, durable);
        found.retain(|id, s| freed.get(id).is_none_or(|&g| g < s.life.opening));
        result.segments = found.len() as u64;
        said.sort();
        result.entries = self.restore_entries(found, &said, owned).await;
        result.dirty_parts = self.dirty.pages();
        add(&self.counters.dirty_recovered, result.dirty_parts);
        self.sync_all().await?;
        self.release_dirty_segments().await?;
        Ok(result)
    }

    /// Dirty parts of chunks that are not known to have been durable and whose data is not there: they were never written.
    /// Recovery writes their whole parts again, see [`Member::write_headers_again`]; the caller flushes.
    async fn find_torn(
        self: &Arc<Self>,
        found: &FoundSparse,
        alive: &(dyn Fn(&SegmentId, &Found<Sparse>) -> bool + Sync),
        said: &Said,
        durable: u64,
    ) -> Result<Vec<(Place, u16)>, MemberError> {
        let mut doubtful = Vec::new();
        for (id, segment) in found.iter().filter(|(id, segment)| alive(id, segment)) {
            for record in segment.records.dirty_after(self, segment.life, durable) {
                let Record::Entry { kind, name, mask, position, sums } = record else { continue };
                let place = (*id, segment.life.opening, position.0);
                let dirty = said.dirty(place, kind, mask);
                if dirty != 0 {
                    doubtful.push((place, name, (mask, dirty), sums));
                }
            }
        }
        if doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let mut torn = Vec::new();
        let mut under_way = FuturesUnordered::new();
        let mut next = doubtful.into_iter();
        loop {
            while under_way.len() < READS_IN_FLIGHT_MAX {
                let Some((place, name, masks, sums)) = next.next() else { break };
                under_way.push(async move {
                    let offset = self.device_offset(self.shape.page(place.0, place.2));
                    let read = read_what_can_be(self, offset, masks.0.count_ones() as usize).await;
                    (place, name, masks, sums, read)
                });
            }
            let Some((place, name, (mask, dirty), sums, read)) = under_way.next().await else { break };
            let (bytes, unread) = match read {
                Ok((bytes, unread)) if unread == 0 || !self.sabotaged(Sabotage::UnreadablePageEndsCache) => {
                    (bytes, unread)
                }
                Ok(_) => return Err(MemberError::Failed("recovery: a page cannot be read".to_owned())),
                Err(why) => {
                    add(&self.counters.errors, 1);
                    return Err(why.into());
                }
            };
            add(&self.counters.errors, u64::from(unread.count_ones()));
            // A page that was being written when power failed may be one that cannot be read.
            let parts = (0..16_u16).filter(|part| mask >> part & 1 == 1).enumerate();
            let unread = parts.filter(|(k, _)| unread >> k & 1 == 1).fold(0, |all, (_, part)| all | 1 << part);
            let bad = self.bad_parts(name, mask, &sums, &bytes) | unread;
            let mut good: Vec<Range<usize>> = Vec::new();
            for (k, _) in
                (0..16).filter(|part| mask >> part & 1 == 1).enumerate().filter(|(_, part)| bad >> part & 1 == 0)
            {
                match good.last_mut() {
                    Some(last) if last.end == k => last.end = k + 1,
                    _ => good.push(k..k + 1),
                }
            }
            // What a recovery before this one found torn, or was overwritten, is dead already.
            if bad & dirty != 0 {
                torn.push((place, bad & dirty));
            }
            for run in good {
                let offset = self.device_offset(self.shape.page(place.0, place.2 + run.start as u32));
                let data = &bytes[run.start * 4096..run.end * 4096];
                self.write_in_recovery(offset, Buf::padded(data, 4096).freeze()).await?;
            }
        }
        Ok(torn)
    }

    pub(crate) async fn write_in_recovery(&self, offset: u64, data: SharedBuf) -> Result<(), MemberError> {
        match self.within_hard_limit(self.config.device.write(offset, data.into(), false)).await {
            Some(done) if done.outcome == Outcome::Done => Ok(()),
            done => {
                add(&self.counters.errors, 1);
                let outcome = done.map(|done| done.outcome);
                Err(MemberError::Failed(format!("recovery: write at {offset}: {outcome:?}")))
            }
        }
    }

    async fn read_all(self: &Arc<Self>) -> Result<AllRead, MemberError> {
        let mut all = AllRead::default();
        let mut under_way = FuturesUnordered::new();
        let mut next = 0;
        loop {
            while next < self.shape.segments && under_way.len() < READS_IN_FLIGHT_MAX {
                let id = SegmentId(next);
                next += 1;
                under_way.push(async move { (id, read_segment(self, id).await) });
            }
            match under_way.next().await {
                Some((id, Ok(Read::Found(segment)))) => {
                    all.found.insert(id, segment);
                }
                Some((id, Ok(Read::Remnant(remnant)))) => {
                    all.remnants.insert(id, remnant);
                }
                Some((id, Ok(Read::Unread(why)))) => {
                    add(&self.counters.errors, 1);
                    all.unread.insert(id, why);
                }
                Some((_, Ok(Read::Blank))) => {}
                Some((_, Err(why))) => return Err(why.into()),
                None => return Ok(all),
            }
        }
    }

    fn restore_segments(
        &self,
        found: &FoundSparse,
        freed: &BTreeMap<SegmentId, Opening>,
        kept: &KeptAt,
        last_sequence: u64,
    ) {
        let mut log = lock(&self.log);
        let mut order: Vec<(u64, SegmentId, HeadKind)> = Vec::new();
        for index in 0..self.shape.segments {
            let id = SegmentId(index);
            let freed_at = freed.get(&id).copied().unwrap_or(Opening::NEVER);
            let segment = &mut log.segments[index as usize];
            match found.get(&id) {
                Some(f) if f.life.opening > freed_at => {
                    segment.opening = f.life.opening;
                    segment.proven = f.footer == Footer::Whole && f.headless.is_none();
                    segment.last_sequence = f.last_sequence;
                    // What may be dirty is not the clean heads' to give up, whatever is said of warmth: the records that made it
                    // clean may be lost. One without a footer may be gone on with.
                    let place = kept.get(&id).filter(|(_, opening, _)| *opening == f.life.opening);
                    let place = place.filter(|_| !f.life.head.is_dirty() && f.footer == Footer::Whole);
                    segment.kept_at = place.map_or(0, |(sequence, _, _)| *sequence);
                    let head = place.map_or(f.life.head, |(_, _, head)| *head);
                    let since = f.last_sequence.max(segment.kept_at);
                    log.set_state(id, SegmentState::Sealed(head));
                    order.push((since, id, head));
                }
                other => {
                    segment.opening = other.map_or(freed_at, |f| f.life.opening.max(freed_at));
                    segment.state = SegmentState::Free;
                    log.free.push_back(id);
                }
            }
        }
        order.sort_unstable_by_key(|&(sequence, id, _)| (sequence, id));
        for (_, id, head) in order {
            log.found_full(id, head);
        }
        log.set_life_after(last_sequence);
    }

    /// After a restart.
    pub(crate) fn remind_policy(&self, note: u8) {
        self.policy.remind(note);
        lock(&self.log).policy_note = note;
    }

    fn carry_from_freed(&self, found: &FoundSparse, freed: &BTreeMap<SegmentId, Opening>, durable: u64) {
        let is_freed = |id: &SegmentId, s: &Found<Sparse>| freed.get(id).is_some_and(|&g| g >= s.life.opening);
        let mut carried = Carried::default();
        for (id, segment) in found.iter().filter(|(id, segment)| is_freed(id, segment)) {
            for (_, record) in &segment.records.notes {
                if self.is_mark_in_force(record) {
                    carried.add(record);
                }
                lock(&self.log).carry(record, *id, &mut carried);
            }
        }
        if carried.is_empty() {
            return;
        }
        for (_, segment) in found.iter().filter(|(id, segment)| !is_freed(id, segment)) {
            let notes = segment.records.notes.iter().filter(|(sequence, _)| *sequence <= durable);
            notes.for_each(|(_, record)| carried.is_said(record));
        }
        let _ = lock(&self.log).append_carried(carried);
    }
}
