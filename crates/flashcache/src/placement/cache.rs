//! The flash cache of a cell: its members, and which of them serves which region.
//!
//! All entries of a region of a grid disk live on one member, chosen by rendezvous hashing, so that a write has one place
//! to mark and to invalidate. Never touches a slow disk: the cell brings data and takes hits.

use crate::admission::governor::Endurance;
use crate::admission::quota::Quotas;
use crate::admission::worth::{Worth, Worths};
use crate::base::busy::BusyTuning;
use crate::base::disk::DiskHandle;
use crate::base::disk::FillCause;
use crate::base::mechanism::Mechanism;
use crate::base::regions::{Candidate, Suspect};
use crate::base::sabotage::Sabotage;
use crate::base::tenant::Tenant;
use crate::base::units::{DISK_SLOTS_MAX, DiskSlot, PART_BYTES, REGION_PARTS};
use crate::data::fill::FillReport;
use crate::format::Owner;
use crate::member::{Member, MemberError};
use crate::placement::seat::{Seat, Shared, new_seat, recover, start};
use crate::placement::slots::Slots;
use crate::recovery::recover::Recovered;
use crate::recovery::snapshot::CheckpointPlace;
use device::sync::{Notify, lock};
use device::{Device, Instant, View, World};
use futures_util::future::join_all;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The most flash devices of one cache: rendezvous hashing looks at each for each region.
pub(crate) const MEMBERS_MAX: usize = 64;

/// KEEP data unused for a day counts as DEFAULT data: the vendor's time, one turn of what comes round daily.
pub(crate) const KEEP_UNUSED: Duration = Duration::from_secs(24 * 3600);

/// How a cache works.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Unit of the index, a power of two from 4 to 64 KiB.
    pub block_bytes: u32,
    /// Unit of allocation and reclaim, a power of two from 64 KiB to 64 MiB.
    pub segment_bytes: u32,
    /// Memory per member for data on its way to flash.
    pub staging_bytes: usize,
    /// Slower than this, a read goes to the disk as well and the member rests.
    pub soft_limit: Duration,
    /// Slower than this, a member is given up.
    pub hard_limit: Duration,
    /// A chunk that is not full is written after about this time.
    pub chunk_age: Duration,
    /// What may be written to each flash device; no limit without.
    pub endurance: Option<Endurance>,
    /// It was made of several flash devices: what is dirty is on two of them.
    pub mirrored: bool,
    /// KEEP data that nobody asked for during this time counts as DEFAULT data.
    pub keep_unused: Duration,
    /// The most memory that index, checksums and policy may take, all members together; by the size of the flash without.
    pub memory_bytes_max: Option<u64>,
    /// When flash counts as busier than the disk, which then serves a share of the clean hits; without, it never does.
    pub busy: Option<BusyTuning>,
    /// How much databases may have.
    pub quotas: Arc<Quotas>,
    /// The mechanism that the cache does without, for experiments.
    pub without: Option<Mechanism>,
    /// Deliberate fault, for the checkers.
    pub sabotage: Option<Sabotage>,
}

impl Default for CacheConfig {
    fn default() -> CacheConfig {
        CacheConfig {
            block_bytes: 16 << 10,
            segment_bytes: 2 << 20,
            staging_bytes: 32 << 20,
            soft_limit: Duration::from_millis(100),
            hard_limit: Duration::from_secs(10),
            chunk_age: Duration::from_millis(200),
            endurance: None,
            mirrored: false,
            keep_unused: KEEP_UNUSED,
            memory_bytes_max: None,
            busy: None,
            quotas: Arc::default(),
            without: None,
            sabotage: None,
        }
    }
}

/// A flash device given to the cache.
#[derive(Clone)]
pub struct MemberDevice {
    /// Its cache area, with at most one flush in flight.
    pub device: Device,
    /// Cell, device and era.
    pub owner: Owner,
    /// Higher than whenever the device was opened in this era before, durably: openings of segments are named by it, and no name may be
    /// used twice. The cell takes the sequence of the device's label, which it writes at each open.
    pub life: u64,
    /// What was flushed there survives a power cut (I1): without that it takes no dirty data.
    pub durable: bool,
    /// The checkpoint of a clean stop, if nothing there has changed since. Whoever passes it has made sure that nobody will
    /// pass it again.
    pub checkpoint: Option<CheckpointPlace>,
}

/// A grid disk as the catalog names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedDisk {
    /// Identity, never reused.
    pub id: u64,
    /// Entries of other generations are void.
    pub generation: u32,
    /// The cell disk it lies on: members are expelled from the label of each by itself.
    pub home: u128,
    /// That is there, and has said which members' content counts.
    pub is_home_there: bool,
}

/// A write under way: give it back with [`FlashCache::end_write`].
#[derive(Debug, Default)]
#[must_use]
pub struct WriteTicket {
    begun: SmallVec<[Begun; 1]>,
}

#[derive(Debug)]
struct Begun {
    member: Arc<Member>,
    slot: DiskSlot,
    parts: Range<u64>,
}

/// A write cannot begin: a member has failed and the label of its cell disk, which must say so first, cannot be written; or
/// the grid disk waits for that member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a flash device has failed and the label of the cell disk does not take it, or waits for it")]
pub struct LabelRefused;

/// Regions of one grid disk that may be settled after the next flush of its disk.
#[derive(Debug, Default)]
pub struct SettleList(Vec<(usize, Candidate)>);

impl SettleList {
    /// Whether there is nothing to settle.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The cache of a cell.
pub struct FlashCache {
    pub(crate) config: CacheConfig,
    pub(crate) world: World,
    pub(crate) seats: Vec<Seat>,
    /// Shared with the cache that takes its place.
    pub(crate) disks: Arc<Mutex<Slots>>,
    pub(crate) worths: Arc<Worths>,
    /// Raised whenever regions go from one member to others, before they do.
    pub(crate) membership: Arc<AtomicU64>,
    /// A member failed or was expelled, or the cache stopped.
    pub(crate) changed: Arc<Notify>,
    /// Dirty data should go to the disk soon.
    pub(crate) dirty_wanted: Arc<Notify>,
    pub(crate) stopped: AtomicBool,
    /// Another with other members has taken its place: it shows and takes nothing any more.
    pub(crate) retired: AtomicBool,
    /// It is being dropped: a member that fails now is perhaps only gone with it.
    pub(crate) leaving: AtomicBool,
    /// It has been dropped: its content is void durably, and so is the failure of a member.
    pub(crate) void: AtomicBool,
}

impl FlashCache {
    /// Recover every member and start its work. Entries of grid disks that are not in `disks`
    /// are void. A member that cannot be used is given up at once; the report has one line per member.
    ///
    /// # Errors
    /// A configuration no member could work with.
    pub async fn open(
        config: CacheConfig,
        members: Vec<MemberDevice>,
        disks: &[CachedDisk],
        world: World,
    ) -> Result<(Arc<FlashCache>, Vec<Result<Recovered, MemberError>>), MemberError> {
        if members.is_empty() || members.len() > MEMBERS_MAX {
            return Err(MemberError::Config("a flash cache has 1 to 64 members"));
        }
        let changed = Arc::new(Notify::new());
        let dirty_wanted = Arc::new(Notify::new());
        let sequence = Arc::new(AtomicU64::new(1));
        let failures = Arc::new(AtomicUsize::new(0));
        let worths = Worths::new();
        let mut seats = Vec::new();
        let several = members.len() > 1;
        let all_bytes: u64 = members.iter().map(|member| member.device.geometry().size_bytes).sum();
        let share = |limit_bytes: u64, size_bytes: u64| {
            (u128::from(limit_bytes) * u128::from(size_bytes) / u128::from(all_bytes.max(1))) as u64
        };
        let checkpoints: Vec<_> = members.iter().map(|device| device.checkpoint).collect();
        let shared = Shared {
            worths: worths.clone(),
            changed: changed.clone(),
            dirty_wanted: dirty_wanted.clone(),
            sequence,
            failures,
            tally: Arc::default(),
        };
        for (i, device) in members.into_iter().enumerate() {
            let size_bytes = device.device.geometry().size_bytes;
            let memory_bytes_max = config.memory_bytes_max.map(|limit_bytes| share(limit_bytes, size_bytes));
            // One that is there alone has nobody to stand in for it.
            let mirrored = config.mirrored && several;
            let name = format!("flash member {i}");
            seats.push(new_seat(&config, device, memory_bytes_max, mirrored, &shared, &world, &name)?);
        }
        let cache = Arc::new(FlashCache {
            config,
            world,
            seats,
            disks: Arc::default(),
            worths,
            membership: Arc::new(AtomicU64::new(0)),
            changed,
            dirty_wanted,
            stopped: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            void: AtomicBool::new(false),
        });
        for disk in disks {
            let _ = cache.disk(*disk);
        }
        let mut report = Vec::new();
        for (i, seat) in cache.seats.iter().enumerate() {
            // Nobody is expelled yet, so the home does not matter.
            let owned = |disk: u64, region: u64| !several || cache.seat_of(disk, 0, region) == Some(i);
            let recovered = recover(&seat.member, checkpoints[i], &owned).await;
            if let Err(error) = &recovered {
                seat.member.fail(error.to_string());
            }
            report.push(recovered);
        }
        cache.seats.iter().for_each(|seat| start(&seat.member, &cache.world));
        cache.agree_on_dirty(disks).await;
        Ok((cache, report))
    }

    /// How it works.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Its clock and its tasks.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The time by its clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.world.clock.now()
    }

    /// Its members.
    pub fn members(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.seats.iter().map(|seat| &seat.member)
    }

    /// The handle of a grid disk; entries of other generations are void from now on.
    ///
    /// # Panics
    /// Where [`FlashCache::try_disk`] has none.
    pub fn disk(&self, disk: CachedDisk) -> DiskHandle {
        let Some(handle) = self.try_disk(disk) else { panic!("{DISK_SLOTS_MAX} grid disks are told apart") };
        handle
    }

    /// The same; none when as many grid disks as can be told apart are there, or have gone and left something behind: writes that
    /// may still happen.
    pub fn try_disk(&self, disk: CachedDisk) -> Option<DiskHandle> {
        let CachedDisk { id, generation, home, .. } = disk;
        let generation = if self.config.sabotage == Some(Sabotage::OldGenerationAccepted) { 1 } else { generation };
        let slot = lock(&self.disks).take(id, |slot| self.seats.iter().all(|seat| seat.member.clear_slot(slot)))?;
        for seat in &self.seats {
            if seat.member.disk_name(slot).is_some_and(|n| n.id == id && n.generation != generation) {
                seat.member.forget_disk(slot);
            }
            seat.member.register(slot, id, generation);
        }
        Some(DiskHandle { slot, id, home, tenant: Tenant::NOBODY, beyond: false, passing: false })
    }

    /// Cut parts into those that are cached and those that are not.
    pub(crate) fn by_worth(&self, disk: &DiskHandle, parts: Range<u64>, mut f: impl FnMut(Range<u64>, bool)) {
        match self.worths.refusing(disk.slot) {
            None => f(parts, true),
            Some(map) => {
                map.pieces(parts).into_iter().for_each(|(piece, worth)| f(piece, worth != Worth::None));
            }
        }
    }

    /// Forget every block of a grid disk. Raise its cache generation durably before.
    pub fn forget(&self, disk: &DiskHandle) {
        for seat in &self.seats {
            seat.member.forget_disk(disk.slot);
        }
    }

    pub(crate) fn seat_of(&self, disk: u64, home: u128, region: u64) -> Option<usize> {
        self.pair_of(disk, region, &|seat| seat.serves(home)).0
    }

    /// The member that serves a region of those that `may`, and the one that holds the mirror of what is dirty there.
    pub(crate) fn pair_of(
        &self,
        disk: u64,
        region: u64,
        may: &dyn Fn(&Seat) -> bool,
    ) -> (Option<usize>, Option<usize>) {
        let weight = |seat: &Seat| {
            let mut h = disk.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ region;
            h ^= (seat.device_id as u64) ^ ((seat.device_id >> 64) as u64);
            h = (h ^ (h >> 32)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            h = (h ^ (h >> 29)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            h ^ (h >> 32)
        };
        let mut best: [Option<(u64, usize)>; 2] = [None; 2];
        for (i, seat) in self.seats.iter().enumerate().filter(|(_, seat)| may(seat)) {
            let this = Some((weight(seat), i));
            if this > best[0] {
                best = [this, best[0]];
            } else if this > best[1] {
                best[1] = this;
            }
        }
        (best[0].map(|(_, i)| i), best[1].map(|(_, i)| i))
    }

    /// The place among [`FlashCache::members`] of the one that holds a part; none when none does.
    #[must_use]
    pub fn member_of(&self, disk: &DiskHandle, part: u64) -> Option<usize> {
        let mut found = None;
        self.by_seat(disk, part..part + 1, |seat, _| found = seat);
        found
    }

    /// Cut a range at the borders between members.
    fn by_seat(&self, disk: &DiskHandle, parts: Range<u64>, f: impl FnMut(Option<usize>, Range<u64>)) {
        self.by_seat_that(disk, parts, &|seat| seat.serves(disk.home), f);
    }

    /// The same for looking something up: what was dirty on a member that has failed is on the next, before the labels say
    /// that it has been expelled.
    pub(crate) fn by_live_seat(&self, disk: &DiskHandle, parts: Range<u64>, f: impl FnMut(Option<usize>, Range<u64>)) {
        self.by_seat_that(disk, parts, &|seat| seat.is_live_for(disk.home), f);
    }

    fn by_seat_that(
        &self,
        disk: &DiskHandle,
        parts: Range<u64>,
        may: &dyn Fn(&Seat) -> bool,
        mut f: impl FnMut(Option<usize>, Range<u64>),
    ) {
        if self.void.load(Ordering::Acquire) {
            return f(None, parts);
        }
        if self.seats.len() == 1 {
            return f(may(&self.seats[0]).then_some(0), parts);
        }
        for piece in by_region(parts) {
            f(self.pair_of(disk.id, piece.start / REGION_PARTS, may).0, piece);
        }
    }

    /// Whether a fill of a part would push others out: its device has no more free segments than it needs.
    #[must_use]
    pub fn would_displace(&self, disk: &DiskHandle, part: u64) -> bool {
        self.member_of(disk, part)
            .and_then(|place| self.seats.get(place))
            .is_none_or(|seat| seat.member.would_displace())
    }

    /// The most bytes of data that the devices at work hold.
    #[must_use]
    pub fn data_bytes_max(&self) -> u64 {
        self.members().filter(|member| !member.has_failed()).map(|member| member.data_bytes_max()).sum()
    }

    /// Before a write to `parts` is issued to the slow disk. The caller holds the range exclusively. Returns once the
    /// regions are marked durably and the cached copies have ended, or the member that held them has been expelled from
    /// the label of the cell disk.
    ///
    /// # Errors
    /// The member has failed and the label cannot be written: the write must not be issued.
    pub async fn begin_write(&self, disk: &DiskHandle, parts: Range<u64>) -> Result<WriteTicket, LabelRefused> {
        if self.config.mirrored {
            // A mirror that has failed may come back with what the disk is about to have newer data of.
            Box::pin(self.await_expulsions(disk)).await?;
        }
        let mut ticket = WriteTicket::default();
        let mut todo: SmallVec<[Range<u64>; 2]> = SmallVec::new();
        todo.push(parts);
        while let Some(parts) = todo.pop() {
            let mut pieces: SmallVec<[(Option<usize>, Range<u64>); 2]> = SmallVec::new();
            self.by_seat(disk, parts, |seat, parts| pieces.push((seat, parts)));
            for (seat, parts) in pieces {
                let Some(seat) = seat.map(|i| &self.seats[i]) else { continue };
                match seat.member.begin_write(disk.slot, parts.clone()).await {
                    Ok(()) => ticket.begun.push(Begun { member: seat.member.clone(), slot: disk.slot, parts }),
                    Err(_) => {
                        if let Err(refused) = Box::pin(self.wait_expelled(seat, disk)).await {
                            self.end_write(ticket);
                            return Err(refused);
                        }
                        todo.push(parts);
                    }
                }
            }
        }
        Ok(ticket)
    }

    /// The write has ended, whatever became of it.
    pub fn end_write(&self, ticket: WriteTicket) {
        for Begun { member, slot, parts } in ticket.begun {
            member.end_write(slot, parts);
        }
    }

    /// A number that changes whenever regions go from one member to others.
    #[must_use]
    pub fn membership(&self) -> u64 {
        self.membership.load(Ordering::Acquire)
    }

    /// Offer data of `parts`, whole parts only. The caller holds the range exclusively. Never waits. `membership` is from
    /// before the data was read from disk, or before the write of it was marked: a member that has taken over the region
    /// since has no mark of it and gets no fill.
    pub fn fill(
        &self,
        disk: &DiskHandle,
        parts: Range<u64>,
        data: View<'_>,
        cause: FillCause,
        membership: u64,
    ) -> FillReport {
        let first = parts.start;
        let mut report = FillReport::default();
        let mut pieces: SmallVec<[(usize, Range<u64>); 2]> = SmallVec::new();
        self.by_seat(disk, parts, |seat, parts| pieces.extend(seat.map(|seat| (seat, parts))));
        if self.membership() != membership || self.retired.load(Ordering::Acquire) {
            return FillReport { stale: true, ..report };
        }
        for (seat, parts) in pieces {
            self.by_worth(disk, parts, |parts, cached| {
                if cached {
                    let (low, high) = ((parts.start - first) * PART_BYTES, (parts.end - first) * PART_BYTES);
                    let data = data.slice(low as usize..high as usize);
                    self.seats[seat].member.fill(disk, parts, data, cause, &mut report);
                }
            });
        }
        report
    }

    /// End the cached copies of `parts` without a write: what was filled may not be on the disk any more.
    pub fn end_copies(&self, disk: &DiskHandle, parts: Range<u64>) {
        self.by_seat(disk, parts, |seat, parts| {
            if let Some(seat) = seat.map(|i| &self.seats[i]) {
                seat.member.invalidate(disk.slot, parts);
            }
        });
    }

    /// The flash device of member `index`.
    #[must_use]
    pub fn device_id(&self, index: usize) -> Option<u128> {
        self.seats.get(index).map(|seat| seat.device_id)
    }

    /// A number that tells writes begun before from writes begun after, one per member.
    #[must_use]
    pub fn epochs(&self) -> Vec<u64> {
        self.seats.iter().map(|seat| seat.member.regions.epoch()).collect()
    }

    /// Regions of a grid disk that nothing was written to since `before` was taken with [`FlashCache::epochs`], at most
    /// `max` per member. Flush the slow disk after this, then [`FlashCache::settle`] them.
    #[must_use]
    pub fn settle_list(&self, disk: &DiskHandle, before: &[u64], max: usize) -> SettleList {
        let mut list = SettleList::default();
        for (i, seat) in self.seats.iter().enumerate().filter(|(_, s)| !s.member.has_failed()) {
            let epoch = before.get(i).copied().unwrap_or(0) + 1;
            list.0.extend(seat.member.regions.candidates(disk.slot, epoch, max).into_iter().map(|c| (i, c)));
        }
        list
    }

    /// Settle regions whose writes a disk flush has covered: their invalidations are made durable, then the marks go.
    /// How many were settled; those written to meanwhile are left.
    pub async fn settle(&self, list: SettleList) -> usize {
        let mut settled = 0;
        for (i, seat) in self.seats.iter().enumerate() {
            let mine: Vec<Candidate> = list.0.iter().filter(|(at, _)| *at == i).map(|&(_, c)| c).collect();
            if !mine.is_empty() {
                settled += seat.member.settle(mine).await;
            }
        }
        settled
    }

    /// Regions of a grid disk that have to be compared with the disk, in disk order within each member.
    #[must_use]
    pub fn suspects(&self, disk: &DiskHandle) -> Vec<(usize, Suspect)> {
        let live = self.seats.iter().enumerate().filter(|(_, s)| !s.member.has_failed());
        let mut all: Vec<_> =
            live.flat_map(|(i, s)| s.member.regions.suspects(disk.slot).into_iter().map(move |k| (i, k))).collect();
        all.sort_by_key(|&(_, suspect)| suspect.key);
        all
    }

    /// The parts of a suspect region to read from disk and hand to [`FlashCache::revalidate`].
    #[must_use]
    pub fn suspect_parts(&self, at: (usize, Suspect)) -> Vec<Range<u64>> {
        self.seats[at.0].member.suspect_parts(at.1.key)
    }

    /// Compare cached blocks with what the disk holds. The caller holds the range exclusively since before it read.
    pub fn revalidate(&self, disk: &DiskHandle, parts: Range<u64>, data: View<'_>) {
        let first = parts.start;
        self.by_seat(disk, parts, |seat, parts| {
            if let Some(seat) = seat.map(|i| &self.seats[i]) {
                let (low, high) = ((parts.start - first) * PART_BYTES, (parts.end - first) * PART_BYTES);
                seat.member.revalidate(disk.slot, parts, data.slice(low as usize..high as usize));
            }
        });
    }

    /// A suspect region has no suspect block left, unless it has become suspect anew since it was listed.
    pub fn trusted(&self, at: (usize, Suspect)) {
        self.seats[at.0].member.regions.trusted(at.1);
    }

    /// A flush of a grid disk's slow device has failed: cached blocks of its unsettled regions have to be compared again.
    pub fn distrust(&self, disk: &DiskHandle) {
        for seat in &self.seats {
            seat.member.distrust(disk.slot);
        }
    }

    /// Stop: what was appended becomes durable, background work ends. Settle everything before, so that the next start
    /// has nothing to compare.
    pub async fn stop(&self) {
        for seat in &self.seats {
            if !seat.member.has_failed() {
                // A failure here costs a comparison at the next start, nothing else.
                let _ = seat.member.sync_all().await;
            }
            seat.member.stopping.store(true, Ordering::SeqCst);
            seat.member.changed.notify_all();
            seat.member.keep.wake.notify_all();
            seat.member.await_last_repair().await;
        }
        self.config.quotas.look();
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// After [`FlashCache::stop`], when nobody serves any more: what each member knows is written to it, for the next open.
    /// Where it lies, by member; none where it has no room, or the member has failed. Nothing is written afterwards.
    pub async fn checkpoint(&self) -> Vec<Option<CheckpointPlace>> {
        // All of them at rest first: what one does may have to be said on another.
        let frozen = join_all(self.seats.iter().map(|seat| seat.member.freeze())).await;
        let places = self
            .seats
            .iter()
            .zip(frozen)
            .map(async |(seat, frozen)| if frozen { seat.member.write_checkpoint().await } else { None });
        join_all(places).await
    }

    /// Bytes by grid disk id.
    #[must_use]
    pub fn bytes_by_disk(&self) -> BTreeMap<u64, u64> {
        let ids = lock(&self.disks).ids();
        let mut all = BTreeMap::new();
        for seat in &self.seats {
            for (slot, bytes) in crate::data::reclaim::bytes_by_disk(&seat.member) {
                if let Some(&id) = ids.get(&slot) {
                    *all.entry(id).or_insert(0) += bytes;
                }
            }
        }
        all
    }
}

impl std::fmt::Debug for FlashCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlashCache({} members)", self.seats.len())
    }
}

/// Cut parts where a region ends.
pub(crate) fn by_region(parts: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let regions = parts.start / REGION_PARTS..parts.end.div_ceil(REGION_PARTS);
    let cut = move |region| parts.start.max(region * REGION_PARTS)..parts.end.min((region + 1) * REGION_PARTS);
    regions.map(cut).filter(|piece| !piece.is_empty())
}
