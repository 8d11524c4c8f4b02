//! Dirty data in the cache as a whole: taken on one flash device, or on two where there are several, so that one may die.
//!
//! The member that serves a region holds what is dirty there; the next in the region's order holds the same data as its
//! mirror. A request is answered when both have it, a flush when it is durable on both. Once the disk has it, the mirror's
//! death is durable before the other copy is called clean: so what is dirty on either is never older than the disk. When
//! one fails, the other goes on alone as soon as the labels of the disks say so durably; nothing new becomes dirty until
//! the next start, and what is goes to the disks at once. Never touches the slow disk.

use crate::base::counters::add;
use crate::base::disk::DiskHandle;
use crate::base::sabotage::Sabotage;
use crate::base::units::{BlockKey, DiskSlot, PART_BYTES, Page, REGION_BYTES, REGION_PARTS};
use crate::data::fill::{NewEntry, blocks_of};
use crate::data::read::{Hit, HitError, Residence};
use crate::data::room::Waiter;
use crate::data::write_back::{Destaged, DestagedList, DirtyOfDisk, DirtyRefused, DirtyRun, Places, Room, RunLimits};
use crate::format::EntryKind;
use crate::member::testimony::Testimony;
use crate::member::{Member, MemberError};
use crate::placement::cache::{CachedDisk, FlashCache, LabelRefused, by_region};
use crate::placement::seat::Seat;
use device::sync::{Notify, lock};
use device::{Buf, Bufs, SharedBufs};
use futures_util::future::{Either, join_all, select};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl FlashCache {
    /// Whether the cache takes dirty data: its flash devices are durable, and where it was made of several, two are there
    /// and none has failed.
    #[must_use]
    pub fn takes_dirty(&self) -> bool {
        let enough = if self.config.mirrored { self.seats.len() >= 2 } else { self.seats.len() == 1 };
        enough && self.seats.iter().all(|seat| seat.durable) && !self.is_short_of_members()
    }

    /// Whether what is dirty may be on one flash device alone although the cache was made of several: it should go to the
    /// disks soon.
    #[must_use]
    pub fn is_short_of_members(&self) -> bool {
        self.config.mirrored && (self.seats.len() < 2 || self.seats.iter().any(|seat| seat.member.has_failed()))
    }

    /// The dirty data of a grid disk: its bytes, each mirrored block once, and when the oldest of it was acknowledged.
    #[must_use]
    pub fn dirty(&self, disk: &DiskHandle) -> DirtyOfDisk {
        let of: Vec<DirtyOfDisk> = self.seats.iter().map(|seat| seat.member.dirty_of(disk.slot)).collect();
        let bytes = self.once(of.iter().map(|it| it.bytes).sum());
        DirtyOfDisk { bytes, oldest: of.iter().filter_map(|it| it.oldest).min() }
    }

    /// When the oldest dirty data of a grid disk was acknowledged, at the latest. Costs a look at each segment with dirty data.
    #[must_use]
    pub fn oldest_dirty(&self, disk: &DiskHandle) -> Option<device::Instant> {
        self.seats.iter().filter_map(|seat| seat.member.dirty.oldest_of(disk.slot)).min()
    }

    /// Bytes of a grid disk that are dirty, mirrors not counted.
    #[must_use]
    pub fn dirty_bytes(&self, disk: &DiskHandle) -> u64 {
        self.dirty(disk).bytes
    }

    /// Bytes that are dirty, mirrors not counted: those that flash has, and those that were on failed flash alone.
    #[must_use]
    pub fn all_dirty_bytes(&self) -> (u64, u64) {
        let sum = |failed: bool| {
            let members = self.seats.iter().map(|seat| &seat.member).filter(|m| m.has_failed() == failed);
            members.filter(|m| !m.is_covered()).map(|m| m.dirty_bytes()).sum()
        };
        (self.once(sum(false)), sum(true))
    }

    /// Bytes of the disks whose cached blocks have still to be compared with them, in whole regions, mirrors not counted: until then,
    /// reads of these blocks go to the disk.
    #[must_use]
    pub fn suspect_bytes(&self) -> u64 {
        let live = self.seats.iter().map(|seat| &seat.member).filter(|m| !m.has_failed());
        self.once(live.map(|m| m.regions.suspect_count() as u64 * REGION_BYTES).sum())
    }

    fn once(&self, bytes: u64) -> u64 {
        if self.config.mirrored && !self.is_short_of_members() { bytes / 2 } else { bytes }
    }

    /// Whether the grid disk has dirty data.
    #[must_use]
    pub fn has_dirty(&self, disk: &DiskHandle) -> bool {
        self.seats.iter().any(|seat| !seat.member.is_covered() && seat.member.dirty.any(disk.slot))
    }

    /// Whether something of a range is dirty. Exact where the caller holds the range.
    #[must_use]
    pub fn is_dirty(&self, disk: &DiskHandle, parts: &Range<u64>) -> bool {
        let per_block = u64::from(self.config.block_bytes) / PART_BYTES;
        let blocks = parts.start / per_block..parts.end.div_ceil(per_block);
        self.seats.iter().any(|seat| seat.member.dirty.any_in(disk.slot, blocks.clone()))
            && self.residence(disk, parts.clone()).iter().any(|(_, r)| *r == Residence::Dirty)
    }

    /// Whether dirty data of the grid disk was on flash devices that have failed, and on no other, or it waits for one of them
    /// with others: nobody may read or write it any more.
    #[must_use]
    pub fn has_lost(&self, disk: &DiskHandle) -> bool {
        let lost = |seat: &Seat| seat.member.has_lost() && seat.member.dirty.any(disk.slot);
        self.seats.iter().any(|seat| lost(seat) || seat.is_awaited_by(disk))
    }

    /// Whether any grid disk's dirty data was lost with flash devices that have failed.
    #[must_use]
    pub fn has_lost_any(&self) -> bool {
        self.seats.iter().any(|seat| seat.member.has_lost() && seat.member.dirty_bytes() > 0)
    }

    /// Rung when dirty data should go to the disk soon.
    #[must_use]
    pub fn dirty_wanted(&self) -> &Arc<Notify> {
        &self.dirty_wanted
    }

    /// Members that have failed are expelled from the label of a cell disk before anything there is changed without them.
    pub(crate) async fn await_expulsions(&self, disk: &DiskHandle) -> Result<(), LabelRefused> {
        for seat in self.seats.iter().filter(|seat| seat.member.has_failed()) {
            self.wait_expelled(seat, disk).await?;
        }
        Ok(())
    }

    /// Take the data of whole parts as dirty. `again`: it is dirty already, so that it may go nowhere else before that has
    /// been destaged; it may use more room then. The caller holds the range exclusively.
    ///
    /// # Errors
    /// [`DirtyRefused`]; some of it may have been taken all the same, and is dirty then.
    pub async fn write_dirty(
        &self,
        disk: &DiskHandle,
        parts: Range<u64>,
        data: &SharedBufs,
        again: bool,
    ) -> Result<(), DirtyRefused> {
        self.write_dirty_from(disk, parts, data, again, &mut 0).await
    }

    /// The same; `done` counts the parts, from the first on, that were taken for certain, for who cannot take back what was
    /// taken when the rest is refused.
    ///
    /// # Errors
    /// As [`FlashCache::write_dirty`].
    pub async fn write_dirty_from(
        &self,
        disk: &DiskHandle,
        parts: Range<u64>,
        data: &SharedBufs,
        again: bool,
        done: &mut u64,
    ) -> Result<(), DirtyRefused> {
        let at = |part: u64| ((part - parts.start) * PART_BYTES) as usize;
        for piece in by_region(parts.clone()) {
            let data = data.slice(at(piece.start)..at(piece.end));
            let mut again = again;
            loop {
                let mut taken = 0;
                let whole = self.write_dirty_piece(disk, piece.clone(), &data, again, &mut taken).await;
                if whole != Ok(false) {
                    *done = piece.start - parts.start + taken;
                    whole?;
                    break;
                }
                // Some of it may be on the member that is left, where readers find it: all of it goes there, as if that had failed
                // right after. Refused instead, it would have been seen, and be written once more after what others write.
                again = true;
            }
        }
        Ok(())
    }

    /// The same within a region. False: a member has failed meanwhile, and another goes on.
    async fn write_dirty_piece(
        &self,
        disk: &DiskHandle,
        parts: Range<u64>,
        data: &SharedBufs,
        again: bool,
        done: &mut u64,
    ) -> Result<bool, DirtyRefused> {
        if self.config.mirrored {
            Box::pin(self.await_expulsions(disk)).await.map_err(|LabelRefused| DirtyRefused::Failed)?;
        }
        if self.void.load(Ordering::Acquire) {
            return Err(DirtyRefused::Failed);
        }
        if !again && self.is_short_of_members() {
            return Err(DirtyRefused::NoRoom);
        }
        let pair = self.pair_of(disk.id, parts.start / REGION_PARTS, &|seat| seat.serves(disk.home));
        let (Some(first), second) = pair else { return Err(DirtyRefused::Failed) };
        let first = &self.seats[first].member;
        let second = second.filter(|_| self.config.mirrored && !first.sabotaged(Sabotage::MirrorForgotten));
        let second = second.map(|i| &self.seats[i].member);
        let (who, begun) = (Waiter::Dirty { pages: first.block_parts }, first.world.clock.now());
        let mut from = parts.start;
        let taken = loop {
            let mut has_room = !again;
            if has_room {
                has_room = first.wait_for_room(who, begun).await;
                if let Some(second) = second {
                    has_room &= second.wait_for_room(who, begun).await;
                }
            }
            let mut taken_parts = 0;
            let rest = data.slice((from - parts.start) as usize * PART_BYTES as usize..data.len_bytes());
            let taken = take(first, second, disk, from..parts.end, &rest, again, &mut taken_parts).await;
            from += taken_parts;
            *done = from - parts.start;
            // Others that waited have taken it, or this has filled a segment: it goes on when there is more.
            let lacks_room = || first.lacks_room(who) || second.is_some_and(|second| second.lacks_room(who));
            if taken != Err(DirtyRefused::NoRoom) || !has_room || !lacks_room() {
                break taken;
            }
        };
        match taken {
            Err(DirtyRefused::Failed) if self.config.mirrored => {
                // Whoever is left goes on, unless nobody is.
                if self.seats.iter().all(|seat| seat.member.has_failed()) {
                    Err(DirtyRefused::Failed)
                } else {
                    Ok(false)
                }
            }
            taken => taken.map(|()| true),
        }
    }

    /// Everything of a grid disk taken so far is durable on flash when this returns, on all members that have it.
    ///
    /// # Errors
    /// A member has failed, and the label of the cell disk cannot say so; or the only one has.
    pub async fn sync(&self, disk: &DiskHandle) -> Result<(), MemberError> {
        loop {
            if self.config.mirrored {
                let refused = |LabelRefused| MemberError::Failed(LabelRefused.to_string());
                self.await_expulsions(disk).await.map_err(refused)?;
            }
            let live = self.seats.iter().filter(|seat| !self.config.mirrored || !seat.member.has_failed());
            let results = join_all(live.map(|seat| seat.member.sync())).await;
            match results.into_iter().find(Result::is_err) {
                None => return Ok(()),
                // The others have what it had, durably once they have been asked again.
                Some(_) if self.config.mirrored => {}
                Some(error) => return error,
            }
        }
    }

    /// Everything taken so far, what is clean as well, is on flash when this returns, on members that have not failed.
    ///
    /// # Errors
    /// A member has failed meanwhile.
    pub async fn sync_all(&self) -> Result<(), MemberError> {
        let live = self.seats.iter().filter(|seat| !seat.member.has_failed());
        join_all(live.map(|seat| seat.member.sync_all())).await.into_iter().collect()
    }

    // --- destaging ------------------------------------------------------------------------------------------------

    /// Dirty stretches of a grid disk on member `index`, in disk order from `block` on, and the block to go on from. Read
    /// and write each while holding its range; after a flush of the disk tell with [`FlashCache::commit_destaged`].
    #[must_use]
    pub fn dirty_runs(
        &self,
        index: usize,
        disk: &DiskHandle,
        block: u64,
        limits: RunLimits,
    ) -> (Vec<DirtyRun>, Option<u64>) {
        let member = &self.seats[index].member;
        if member.has_failed() {
            return (Vec::new(), None);
        }
        let mine = |block: u64| {
            let region = block * u64::from(member.block_parts) / REGION_PARTS;
            self.seats.len() == 1 || self.pair_of(disk.id, region, &|seat| seat.is_live_for(disk.home)).0 == Some(index)
        };
        member.dirty_runs(disk.slot, block, limits, &mine)
    }

    /// After stretches were listed, before the disk is given them: what is dirty now becomes durable everywhere, then the
    /// deaths of what it has replaced. Otherwise a power cut could lose it, and leave what it replaced beside what the disk
    /// was given.
    ///
    /// # Errors
    /// Member `index` has failed.
    pub async fn prepare_destage(&self, index: usize) -> Result<(), MemberError> {
        let others = self.seats.iter().enumerate().filter(|(i, seat)| *i != index && !seat.member.has_failed());
        let prepared = join_all(others.map(|(_, seat)| seat.member.prepare_destage()));
        let (mine, _) = futures_util::future::join(self.seats[index].member.prepare_destage(), prepared).await;
        mine
    }

    /// Whether all of a stretch is still what counts; before, it may have been overwritten, and the disk been given
    /// something newer, or it is being copied by cleaning just now. The caller holds its range, which keeps it so. Looks up its mirrors. All
    /// of them stay where they are as long as the run, and the list it is pushed to.
    #[must_use]
    pub fn confirm_current(&self, run: &mut DirtyRun) -> bool {
        let mine = run.member.clone();
        for &Destaged { key, mask, .. } in &run.entries {
            let Some((_, pins)) = mine.held_dirty_places(key, mask) else { return false };
            run.pins.extend(pins);
        }
        if !run.is_current() || run.hits.is_empty() && !run.take_hold() {
            return false;
        }
        for (i, seat) in self.seats.iter().enumerate() {
            if Arc::ptr_eq(&mine, &seat.member) || seat.member.has_failed() {
                continue;
            }
            let mut places = Places::new();
            for &Destaged { key, mask, .. } in &run.entries {
                let Some((found, pins)) = seat.member.held_dirty_places(key, mask) else { return false };
                found.into_iter().for_each(|(place, mask)| *places.entry(place).or_insert(0) |= mask);
                run.pins.extend(pins);
            }
            if !places.is_empty() {
                run.mirrors.push((i, places));
            }
        }
        true
    }

    /// Wait until nothing that is dirty in the blocks of these parts is being copied by cleaning, so that [`FlashCache::confirm_current`] may
    /// succeed. The caller holds the range, and nothing of it on flash.
    pub async fn wait_while_copied(&self, disk: &DiskHandle, parts: &Range<u64>) {
        for seat in self.seats.iter().filter(|seat| !seat.member.has_failed()) {
            let blocks = blocks_of(parts.clone(), seat.member.block_parts);
            seat.member.wait_while_copied(blocks.map(|(block, _)| BlockKey::new(disk.slot, block))).await;
        }
    }

    /// The disk has these stretches of member `index` durably: what was dirty is clean there, and its mirrors are dead.
    ///
    /// # Errors
    /// The member has failed.
    pub async fn commit_destaged(&self, index: usize, list: &DestagedList) -> Result<(), MemberError> {
        let member = &self.seats[index].member;
        member.record_clean(&list.entries);
        let mirrors: Vec<_> = list.mirrors.iter().map(|(i, entries)| (&self.seats[*i].member, entries)).collect();
        for (mirror, entries) in &mirrors {
            if !member.sabotaged(Sabotage::MirrorDeathForgotten) {
                mirror.record_dead(entries);
            }
        }
        // A mirror that fails now is expelled before the disk is written to past it.
        let _ = join_all(mirrors.iter().map(|(mirror, _)| mirror.sync_destaged())).await;
        member.sync_destaged().await?;
        for (mirror, entries) in mirrors {
            let _ = mirror.forget_dead(entries).await;
        }
        member.call_clean(&list.entries).await
    }

    // --- one of two copies ----------------------------------------------------------------------------------------

    /// Read a hit into a buffer of its length. What is dirty and cannot be read is read from its mirror.
    ///
    /// # Errors
    /// See [`HitError`]; the buffer comes back unless the flash is slow.
    pub async fn read_hit(&self, hit: Hit, bufs: Bufs) -> (Result<(), HitError>, Option<Bufs>) {
        let member = hit.member().clone();
        if !self.config.mirrored || !hit.is_dirty() {
            return member.read_hit(hit, bufs).await;
        }
        // Boxed: other hits do not carry it.
        Box::pin(self.read_mirrored(member, hit, bufs)).await
    }

    async fn read_mirrored(&self, member: Arc<Member>, hit: Hit, bufs: Bufs) -> (Result<(), HitError>, Option<Bufs>) {
        let wanted = member.known_crcs(&hit);
        let (slot, parts, len) = (hit.slot(), hit.parts(), bufs.len_bytes());
        let (result, back) = member.read_hit(hit, bufs).await;
        if result != Err(HitError::Lost) {
            return (result, back);
        }
        let mut bufs = back.unwrap_or_else(|| Buf::zeroed(len).into());
        for seat in self.seats.iter().filter(|seat| !Arc::ptr_eq(&seat.member, &member) && !seat.member.has_failed()) {
            if seat.member.read_copy(slot, parts.clone(), &wanted, &mut bufs).await {
                add(&seat.member.counters.mirror_reads, parts.end - parts.start);
                return (Ok(()), Some(bufs));
            }
        }
        (Err(HitError::Lost), Some(bufs))
    }

    /// After recovery, before anything is served: the two members of a region are made to agree on what is dirty. A crash between the two
    /// copies of a write may have left either without the other, or with an older version. The later version of a part counts, by the
    /// sequence of its chunk, and one that a single member has counts: what is dirty on either is never older than the disk, since a
    /// mirror's death is durable before the other copy is called clean, so absence shows a loss or a write that was under way.
    pub(crate) async fn agree_on_dirty(&self, disks: &[CachedDisk]) {
        if self.config.mirrored {
            self.make_mirrors_agree(disks).await;
        }
        for seat in &self.seats {
            *lock(&seat.member.testimony) = Testimony::default();
        }
    }

    async fn make_mirrors_agree(&self, disks: &[CachedDisk]) {
        let live = |seat: &Seat| !seat.member.has_failed();
        // What a member holds of a disk that is not there may be void: that disk's label knows.
        for disk in disks.iter().filter(|disk| disk.is_home_there) {
            let Some(slot) = lock(&self.disks).of(disk.id) else { continue };
            // By who has it and who lacks it: parts, and as what the other takes each.
            let mut lonely: BTreeMap<(usize, usize), Vec<(EntryKind, u64)>> = BTreeMap::new();
            for (i, seat) in self.seats.iter().enumerate().filter(|(_, seat)| live(seat)) {
                for key in seat.member.dirty.blocks(slot) {
                    let per_block = u64::from(seat.member.block_parts);
                    let region = key.block() * per_block / REGION_PARTS;
                    let (Some(first), second) = self.pair_of(disk.id, region, &live) else { continue };
                    let Some(second) = second else { continue };
                    let (counts, mirror) = (&self.seats[first].member, &self.seats[second].member);
                    let mut give = |from, to, kind, mask: u16| {
                        let parts = (0..16).filter(|p| mask >> p & 1 == 1).map(|p| key.block() * per_block + p);
                        lonely.entry((from, to)).or_default().extend(parts.map(|part| (kind, part)));
                    };
                    if first == i {
                        let later = counts.dirty_unlike(key, mirror) & !mirror.dirty_later(key, counts);
                        give(first, second, EntryKind::Mirror, later);
                    } else if second == i {
                        let later = mirror.dirty_later(key, counts);
                        if mirror.sabotaged(Sabotage::AbsenceKillsMirror) {
                            mirror.end_mirror(key, later);
                        } else {
                            give(second, first, EntryKind::Dirty, later);
                        }
                    } else {
                        seat.member.fail("it holds dirty data of a region of others".to_owned());
                    }
                }
            }
            for ((from, to), parts) in lonely {
                let (from, to) = (&self.seats[from].member, &self.seats[to].member);
                for (kind, part) in parts {
                    if !copy_dirty(from, to, kind, slot, part..part + 1).await && !from.has_failed() {
                        to.fail("it has no room for what is dirty elsewhere".to_owned());
                    }
                }
            }
        }
        for seat in self.seats.iter().filter(|seat| live(seat)) {
            // A member that fails here is expelled like any other.
            let _ = seat.member.sync_all().await;
        }
    }
}

/// Take whole parts within a region as dirty, on two members if there is a second.
async fn take(
    first: &Arc<Member>,
    second: Option<&Arc<Member>>,
    disk: &DiskHandle,
    parts: Range<u64>,
    data: &SharedBufs,
    again: bool,
    done: &mut u64,
) -> Result<(), DirtyRefused> {
    let slot = disk.slot;
    let mut taken_parts = 0;
    let mut pages: SmallVec<[(Page, Option<Page>); 4]> = SmallVec::new();
    let mut refused = None;
    for (block, mask) in blocks_of(parts.clone(), first.block_parts) {
        let from = block * u64::from(first.block_parts) + u64::from(mask.trailing_zeros());
        let at = (from - parts.start) as usize * PART_BYTES as usize;
        let piece = data.slice(at..at + mask.count_ones() as usize * PART_BYTES as usize);
        // What is dirty stays whose it was: he has room for it already.
        let inherited = if again { first.dirty_tenant(BlockKey::new(slot, block), mask) } else { None };
        let tenant = inherited.unwrap_or(disk.tenant);
        let entry = first.dirty_entry((slot, tenant), block, mask, &piece);
        let Some(entry) = entry else { return Err(DirtyRefused::Failed) };
        let turn = if again || disk.beyond { None } else { first.quota_turn(tenant) };
        if turn.is_some() && !has_room_for(first, second, &entry) {
            add(&first.counters.dirty_skips_quota, 1);
            first.config.dirty_wanted.notify_all();
            refused = Some(DirtyRefused::NoRoom);
            break;
        }
        let taken = match second {
            Some(second) => first.take_block_twice(second, &entry, piece, again).map(|(a, b)| (a, Some(b))),
            None => first
                .take_block(EntryKind::Dirty, &entry, piece, if again { Room::Again } else { Room::New })
                .map(|page| (page, None)),
        };
        match taken {
            Ok(last) => {
                pages.push(last);
                taken_parts += u64::from(mask.count_ones());
            }
            Err(why) => {
                refused = Some(why);
                break;
            }
        }
    }
    first.send_dirty();
    second.into_iter().for_each(|second| second.send_dirty());
    add(&first.counters.dirty_writes, taken_parts);
    add(&first.counters.dirty_write_bytes, taken_parts * PART_BYTES);
    if first.sabotaged(Sabotage::DirtyAckedFromMemory) {
        return refused.map_or(Ok(()), Err);
    }
    // Of each block: they may lie in several segments.
    for (page, mirror) in pages {
        first.wait_arrived(page).await?;
        if let (Some(second), Some(page)) = (second, mirror) {
            second.wait_arrived(page).await?;
        }
    }
    for member in std::iter::once(first).chain(second) {
        member.await_losses_mended().await.map_err(|_| DirtyRefused::Failed)?;
    }
    *done = taken_parts;
    refused.map_or(Ok(()), Err)
}

/// Whether the plan lets its tenant have an entry, on two members if there is a second. The caller has the turn.
fn has_room_for(first: &Arc<Member>, second: Option<&Arc<Member>>, entry: &NewEntry) -> bool {
    let more = |member: &Arc<Member>| entry.mask.count_ones() - member.parts_there(entry.key, entry.mask, entry.tenant);
    let parts = more(first) + second.map_or(0, more);
    parts == 0 || first.has_room(entry.tenant, parts, second)
}

/// Give a member parts that are dirty on another.
async fn copy_dirty(
    first: &Arc<Member>,
    second: &Arc<Member>,
    kind: EntryKind,
    slot: DiskSlot,
    parts: Range<u64>,
) -> bool {
    for (hit, _) in first.dirty_hits(slot, parts) {
        let range = hit.parts();
        let bytes = (range.end - range.start) * PART_BYTES;
        let (result, back) = first.read_hit(hit, Buf::zeroed(bytes as usize).into()).await;
        let (Ok(()), Some(back)) = (result, back) else { return false };
        let data = back.freeze();
        let (block, mask) = match blocks_of(range, first.block_parts).next() {
            Some(found) => found,
            None => continue,
        };
        let tenant = first.dirty_tenant(BlockKey::new(slot, block), mask).unwrap_or_default();
        let Some(entry) = second.dirty_entry((slot, tenant), block, mask, &data) else { return false };
        loop {
            let ticket = second.changed.ticket();
            match second.take_block(kind, &entry, data.clone(), Room::Copy) {
                Ok(_) => break,
                Err(DirtyRefused::Failed) => return false,
                // Reclaim makes room, of what is clean.
                Err(DirtyRefused::NoRoom) => {
                    second.send_dirty();
                    let more = std::pin::pin!(second.changed.wait(ticket));
                    let limit = std::pin::pin!(second.world.clock.sleep(second.config.hard_limit));
                    if let Either::Right(_) = select(more, limit).await {
                        return false;
                    }
                }
            }
        }
    }
    true
}

impl Member {
    /// Which dirty parts of a block are not dirty with the same content on another member.
    fn dirty_unlike(&self, key: BlockKey, other: &Member) -> u16 {
        let mut unlike = 0;
        for part in 0..self.block_parts {
            let mine = self.dirty_crc(key, part);
            if mine.is_some() && mine != other.dirty_crc(key, part) {
                unlike |= 1 << part;
            }
        }
        unlike
    }

    /// Of a block's parts that are dirty here: those that are not dirty on another member, or are with other content that was written
    /// before.
    fn dirty_later(&self, key: BlockKey, other: &Member) -> u16 {
        let unlike = self.dirty_unlike(key, other);
        if unlike == 0 {
            return 0;
        }
        let (mine, theirs) = (self.dirty_sequences(key, unlike), other.dirty_sequences(key, unlike));
        (0..16_usize).filter(|&part| mine[part] > theirs[part]).fold(0, |parts, part| parts | 1 << part)
    }

    /// By part: the sequence of what is dirty, where it is known, and above nothing.
    fn dirty_sequences(&self, key: BlockKey, mask: u16) -> [Option<u64>; 16] {
        let testimony = lock(&self.testimony);
        let mut found = [None; 16];
        for ((_, page, _), mask) in self.dirty_places(key, mask) {
            let sequence = testimony.dirty.get(&page).copied().unwrap_or(0);
            for part in (0..16_usize).filter(|part| mask >> part & 1 == 1) {
                found[part] = found[part].max(Some(sequence));
            }
        }
        found
    }

    /// Mirrors of parts end.
    fn end_mirror(&self, key: BlockKey, mask: u16) {
        let places = self.dirty_places(key, mask);
        self.record_dead(&places);
        self.forget(&places);
        self.dirty.settle(&self.index, key);
    }

    /// What the parts of a hit should be.
    fn known_crcs(&self, hit: &Hit) -> Vec<u32> {
        let parts = (hit.parts().end - hit.parts().start) as u32;
        (0..parts).map(|k| self.sums[(hit.page().0 + k) as usize].load(Ordering::Acquire)).collect()
    }

    /// Read the mirror of parts, if it is the same version.
    async fn read_copy(self: &Arc<Self>, slot: DiskSlot, parts: Range<u64>, wanted: &[u32], bufs: &mut Bufs) -> bool {
        let per_block = u64::from(self.block_parts);
        let mut done = 0;
        for block in parts.start / per_block..parts.end.div_ceil(per_block) {
            let within = parts.start.max(block * per_block)..parts.end.min((block + 1) * per_block);
            for (hit, _) in self.dirty_hits(slot, within) {
                let (first, last) = (hit.parts().start - parts.start, hit.parts().end - parts.start);
                if self.known_crcs(&hit) != wanted[first as usize..last as usize] {
                    return false;
                }
                let bytes = ((last - first) * PART_BYTES) as usize;
                let (result, back) = self.read_hit(hit, Buf::zeroed(bytes).into()).await;
                let (Ok(()), Some(back)) = (result, back) else { return false };
                let mut to = (first * PART_BYTES) as usize;
                back.for_each(0..bytes, |piece| {
                    bufs.copy_in(to, piece);
                    to += piece.len();
                });
                done += last - first;
            }
        }
        done == parts.end - parts.start
    }
}
