//! A member's place in the cache: which cell disks it serves, and how its failure becomes durable in their labels.

use crate::admission::worth::Worths;
use crate::base::disk::DiskHandle;
use crate::base::tenant::Tally;
use crate::member::{Member, MemberConfig, MemberError};
use crate::placement::cache::{CacheConfig, FlashCache, LabelRefused, MemberDevice};
use crate::recovery::recover::{Evidence, Recovered};
use crate::recovery::snapshot::CheckpointPlace;
use device::sync::{Notify, lock};
use device::{Arena, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A member in the cache.
pub(crate) struct Seat {
    pub(crate) member: Arc<Member>,
    pub(crate) device_id: u128,
    pub(crate) durable: bool,
    /// By cell disk, once the member has failed. Looked at only then. One with the seat of a former or later cache that has
    /// this member.
    pub(crate) expulsions: Arc<Mutex<BTreeMap<u128, Expulsion>>>,
    /// Grid disks that wait for what the failed member has: it counts again once it is back. One with other caches' as well.
    pub(crate) awaited_by: Arc<Mutex<BTreeSet<u64>>>,
    /// It is about to leave the cache: should it fail, its expulsion waits for what becomes of that.
    pub(crate) leaving: AtomicBool,
    /// It has left the cache, durably: nobody waits for its expulsion.
    pub(crate) left: AtomicBool,
}

/// How far a failed member's expulsion from the label of a cell disk has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expulsion {
    /// The label could not be written: writes there fail until it can.
    Refused,
    /// Durable: writes there go on without the member.
    Durable,
}

impl Seat {
    pub(crate) fn new(member: Arc<Member>, device_id: u128, durable: bool) -> Seat {
        let (leaving, left) = (AtomicBool::new(false), AtomicBool::new(false));
        Seat { member, device_id, durable, expulsions: Arc::default(), awaited_by: Arc::default(), leaving, left }
    }

    fn expulsion(&self, home: u128) -> Option<Expulsion> {
        if self.member.has_failed() { lock(&self.expulsions).get(&home).copied() } else { None }
    }

    /// Whether it has failed and a grid disk waits for it.
    pub(crate) fn is_awaited_by(&self, disk: &DiskHandle) -> bool {
        self.member.has_failed() && lock(&self.awaited_by).contains(&disk.id)
    }

    /// Whether it serves a cell disk and has not failed.
    pub(crate) fn is_live_for(&self, home: u128) -> bool {
        self.serves(home) && !self.member.has_failed()
    }

    pub(crate) fn serves(&self, home: u128) -> bool {
        !self.left.load(Ordering::Acquire) && self.expulsion(home) != Some(Expulsion::Durable)
    }
}

impl FlashCache {
    pub(crate) async fn wait_expelled(&self, seat: &Seat, disk: &DiskHandle) -> Result<(), LabelRefused> {
        loop {
            let ticket = self.changed.ticket();
            if self.void.load(Ordering::Acquire) || seat.left.load(Ordering::Acquire) {
                return Ok(());
            }
            match seat.expulsion(disk.home) {
                Some(Expulsion::Durable) if seat.is_awaited_by(disk) => return Err(LabelRefused),
                Some(Expulsion::Durable) => return Ok(()),
                Some(Expulsion::Refused) => return Err(LabelRefused),
                None => self.changed.wait(ticket).await,
            }
        }
    }

    /// The next member that has failed and is not among `known`: write its expulsion into the label of each cell disk and
    /// tell with [`FlashCache::confirm_expelled`] and [`FlashCache::expulsion_refused`]. None once the cache has stopped.
    pub async fn next_failure(&self, known: &BTreeSet<usize>) -> Option<usize> {
        loop {
            let ticket = self.changed.ticket();
            if self.stopped.load(Ordering::Acquire) {
                return None;
            }
            let staying = !self.leaving.load(Ordering::Acquire);
            let stays = |seat: &Seat| !seat.leaving.load(Ordering::Acquire) && !seat.left.load(Ordering::Acquire);
            let failed = |i: &usize| {
                let seat = &self.seats[*i];
                staying && stays(seat) && seat.member.has_failed() && !known.contains(i)
            };
            if let Some(index) = (0..self.seats.len()).find(failed) {
                return Some(index);
            }
            self.changed.wait(ticket).await;
        }
    }

    /// It is about to be dropped (or, after all, not): the failure of a member waits for what becomes of that.
    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.store(leaving, Ordering::Release);
        self.changed.notify_all();
    }

    /// It has been dropped, durably: writes that still begin under it go on without it.
    pub fn set_void(&self) {
        self.void.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// The failure of member `index` is durable in the label of cell disk `home`: its content is void there for ever.
    ///
    /// # Panics
    /// When there is no such member.
    pub fn confirm_expelled(&self, index: usize, home: u128) {
        self.set_expulsion(index, home, Expulsion::Durable);
    }

    /// A grid disk waits for member `index`, which has failed: nothing of it may be changed any more, because what the member
    /// has of it counts again once it is back. Before [`FlashCache::confirm_expelled`].
    ///
    /// # Panics
    /// When there is no such member.
    pub fn await_member(&self, index: usize, disk: &DiskHandle) {
        lock(&self.seats[index].awaited_by).insert(disk.id);
    }

    /// The label of cell disk `home` does not take the failure of member `index` at the moment: writes there fail.
    ///
    /// # Panics
    /// When there is no such member.
    pub fn expulsion_refused(&self, index: usize, home: u128) {
        self.set_expulsion(index, home, Expulsion::Refused);
    }

    fn set_expulsion(&self, index: usize, home: u128, state: Expulsion) {
        self.membership.fetch_add(1, Ordering::AcqRel);
        lock(&self.seats[index].expulsions).insert(home, state);
        self.changed.notify_all();
    }
}

/// What the members of a cache, and of those that take its place, have in common.
pub(crate) struct Shared {
    pub(crate) worths: Arc<Worths>,
    pub(crate) changed: Arc<Notify>,
    pub(crate) dirty_wanted: Arc<Notify>,
    pub(crate) sequence: Arc<AtomicU64>,
    pub(crate) failures: Arc<AtomicUsize>,
    pub(crate) tally: Arc<Tally>,
}

/// A member that has not looked at its flash yet.
pub(crate) fn new_seat(
    config: &CacheConfig,
    device: MemberDevice,
    memory_bytes_max: Option<u64>,
    mirrored: bool,
    shared: &Shared,
    world: &World,
    name: &str,
) -> Result<Seat, MemberError> {
    let member_config = MemberConfig {
        memory_bytes_max,
        device: device.device,
        owner: device.owner,
        life: device.life,
        segment_bytes: config.segment_bytes,
        block_bytes: config.block_bytes,
        staging: Arena::new(config.staging_bytes),
        soft_limit: config.soft_limit,
        hard_limit: config.hard_limit,
        chunk_age: config.chunk_age,
        endurance: config.endurance,
        keep_unused: config.keep_unused,
        worths: shared.worths.clone(),
        without: config.without,
        sabotage: config.sabotage,
        alarm: shared.changed.clone(),
        dirty_wanted: shared.dirty_wanted.clone(),
        sequence: shared.sequence.clone(),
        mirrored,
        failures: shared.failures.clone(),
        quotas: config.quotas.clone(),
        tally: shared.tally.clone(),
    };
    let mut world = world.clone();
    world.prng = world.prng.fork(name);
    let member = Member::new(member_config, world)?;
    Ok(Seat::new(member, device.owner.device_id, device.durable))
}

/// Begin the work of a member.
pub(crate) fn start(member: &Arc<Member>, world: &World) {
    world.spawn.spawn(Box::pin(member.clone().run_reclaim()));
    world.spawn.spawn(Box::pin(member.clone().run_chunk_writer()));
    world.spawn.spawn(Box::pin(member.clone().run_keep()));
    world.spawn.spawn(Box::pin(member.clone().run_quotas()));
    world.spawn.spawn(Box::pin(member.clone().run_verification()));
}

/// From its checkpoint if it has one that can be believed, else from its log.
pub(crate) async fn recover(
    member: &Arc<Member>,
    checkpoint: Option<CheckpointPlace>,
    owned: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<Recovered, MemberError> {
    let Some(at) = checkpoint else { return member.recover(owned).await };
    match member.load_checkpoint(at, owned).await? {
        Some(recovered) => Ok(recovered),
        None => Ok(Recovered { evidence: Evidence::LogForCheckpoint, ..member.recover(owned).await? }),
    }
}
