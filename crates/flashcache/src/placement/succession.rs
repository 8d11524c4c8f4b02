//! Another cache in place of one that runs, with other members: those that stay go on as they are, log, index and tasks.
//!
//! A cache never changes its members: a *successor* has the new ones, and who serves binds grid disks to it. What makes that
//! safe, in this order, with nothing dirty and nothing becoming so, and no fills:
//!
//! 1. Members that stay have ended, durably, what they hold of regions that go to a new one: writes there will not end it.
//! 2. The catalog has the new members, durably. A crash from here on finds them; of a member that has left nobody believes
//!    anything.
//! 3. Those that leave answer nothing more; grid disks are bound to the successor; the old cache is retired.
//! 4. Requests that began under the old one have ended, and a flush has covered what they wrote: whoever serves a region now
//!    has no mark of it. Only then may anything be filled.
//!
//! Never moves data, never touches a slow disk.

use crate::base::sabotage::Sabotage;
use crate::base::units::{BlockKey, Page, REGION_PARTS};
use crate::member::{MemberError, check_area};
use crate::placement::cache::{FlashCache, MEMBERS_MAX, MemberDevice};
use crate::placement::seat::{Seat, Shared, new_seat, recover, start};
use crate::recovery::recover::Recovered;
use device::spawn::yield_now;
use device::sync::lock;
use device::{Geometry, World};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks listed at a time: bounds the memory for them to one megabyte.
const ENDED_LISTED_MAX: usize = 64 << 10;
/// Blocks ended under one hold of the log's lock.
const ENDED_AT_ONCE_MAX: usize = 1024;

impl FlashCache {
    /// Whether a device with this geometry could be a member.
    ///
    /// # Errors
    /// Why not.
    pub fn check_device(&self, geometry: &Geometry) -> Result<(), MemberError> {
        check_area(geometry, self.config.segment_bytes, self.config.block_bytes)
    }

    /// These members are about to leave: should one fail, its expulsion waits for what becomes of that. `false`: they stay.
    pub fn set_members_leaving(&self, leaving: &[usize], set: bool) {
        leaving.iter().filter_map(|i| self.seats.get(*i)).for_each(|seat| seat.leaving.store(set, Ordering::Release));
        self.changed.notify_all();
    }

    /// The first of these members to fail; for ever, if there is none.
    pub async fn failure_among(&self, members: &[usize]) -> usize {
        loop {
            let ticket = self.changed.ticket();
            let failed = |i: &&usize| self.seats.get(**i).is_some_and(|seat| seat.member.has_failed());
            if let Some(index) = members.iter().find(failed) {
                return *index;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// The cache that takes this one's place: without `leaving`, with `joining`, whose areas are void; members that stay come
    /// first, in their order. Nothing of this one has changed. A new one that cannot be used is given up at once; the report has
    /// one line for each. `mirrored`: the new one is made of several members. `memory_bytes_max` is for each new one.
    ///
    /// # Errors
    /// A device with which no member can work: see [`FlashCache::check_device`].
    pub async fn successor(
        &self,
        leaving: &[usize],
        joining: Vec<MemberDevice>,
        mirrored: bool,
        memory_bytes_max: Option<u64>,
        world: &World,
    ) -> Result<(Arc<FlashCache>, Vec<Result<Recovered, MemberError>>), MemberError> {
        let config = crate::placement::cache::CacheConfig { mirrored, ..self.config.clone() };
        let first = &self.seats[0].member.config;
        let shared = Shared {
            worths: self.worths.clone(),
            changed: self.changed.clone(),
            dirty_wanted: self.dirty_wanted.clone(),
            sequence: first.sequence.clone(),
            failures: first.failures.clone(),
            tally: first.tally.clone(),
        };
        let mut seats = Vec::new();
        for (_, seat) in self.seats.iter().enumerate().filter(|(i, _)| !leaving.contains(i)) {
            let same = Seat::new(seat.member.clone(), seat.device_id, seat.durable);
            let (expulsions, awaited_by) = (seat.expulsions.clone(), seat.awaited_by.clone());
            seats.push(Seat { expulsions, awaited_by, ..same });
        }
        let stay = seats.len();
        let several = stay + joining.len() > 1;
        for device in joining {
            let name = format!("flash member {:032x}", device.owner.device_id);
            let seat = new_seat(&config, device, memory_bytes_max, mirrored && several, &shared, world, &name)?;
            seats.push(seat);
        }
        if seats.is_empty() || seats.len() > MEMBERS_MAX {
            return Err(MemberError::Config("a flash cache has 1 to 64 members"));
        }
        let disks: Vec<_> = lock(&self.disks).all().collect();
        for seat in &seats[stay..] {
            for &(id, slot) in &disks {
                if let Some(name) = self.seats[0].member.disk_name(slot) {
                    seat.member.register(slot, id, name.generation);
                }
            }
        }
        let next = Arc::new(FlashCache {
            config,
            world: world.clone(),
            seats,
            disks: self.disks.clone(),
            worths: shared.worths,
            membership: self.membership.clone(),
            changed: shared.changed,
            dirty_wanted: shared.dirty_wanted,
            stopped: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            void: AtomicBool::new(false),
        });
        let mut report = Vec::new();
        for (i, seat) in next.seats.iter().enumerate().skip(stay) {
            let owned = |disk: u64, region: u64| !several || next.seat_of(disk, 0, region) == Some(i);
            let recovered = recover(&seat.member, None, &owned).await;
            match &recovered {
                Err(error) => seat.member.fail(error.to_string()),
                Ok(_) => start(&seat.member, world),
            }
            report.push(recovered);
        }
        Ok((next, report))
    }

    /// Of the successor, before it serves: its members end what they hold of regions that others serve in it, durably. Nothing
    /// is filled meanwhile, and nothing dirty.
    ///
    /// A member that fails at that is one that has failed: expelled before anything is written without it.
    pub async fn end_what_others_serve(&self) {
        join_all((0..self.seats.len()).map(|index| self.end_strange(index))).await;
    }

    async fn end_strange(&self, index: usize) {
        let member = &self.seats[index].member;
        let several = self.seats.len() > 1;
        if !several || member.has_failed() || member.sabotaged(Sabotage::MovedRegionKept) {
            return;
        }
        let ids = lock(&self.disks).ids();
        let is_strange = |key: BlockKey| {
            let region = key.block() * u64::from(member.block_parts) / REGION_PARTS;
            // Whatever has failed: who is expelled from one disk serves another.
            ids.get(&key.slot()).is_none_or(|id| self.pair_of(*id, region, &|_| true).0 != Some(index))
        };
        loop {
            let mut doomed: Vec<(BlockKey, Page)> = Vec::new();
            for shard in 0..member.index.shards() {
                member.index.for_each_of(shard, |e| {
                    if doomed.len() < ENDED_LISTED_MAX && !e.dirty() && is_strange(e.key()) {
                        doomed.push((e.key(), e.page()));
                    }
                });
                yield_now().await;
            }
            if doomed.is_empty() {
                break;
            }
            for some in doomed.chunks(ENDED_AT_ONCE_MAX) {
                {
                    let mut log = lock(&member.log);
                    for &(key, page) in some {
                        member.index.under(&mut log).end_clean(key, page).record(member);
                    }
                }
                if member.sync().await.is_err() {
                    return;
                }
            }
        }
        // Deaths of before as well, whoever has recorded them.
        let _ = member.sync().await;
    }

    /// Of the one before, when the catalog has its successor durably, and that has ended what others serve: `leaving` answer
    /// nothing more, and it shows nothing and takes nothing. What is under way goes on in it.
    pub fn retire(&self, leaving: &[usize], next: &FlashCache) {
        // Before anything goes elsewhere.
        self.membership.fetch_add(1, Ordering::AcqRel);
        for seat in leaving.iter().filter_map(|i| self.seats.get(*i)) {
            seat.left.store(true, Ordering::Release);
            seat.member.leave();
        }
        let mirrored = next.config.mirrored && next.seats.len() > 1;
        next.seats.iter().for_each(|seat| seat.member.set_mirrored(mirrored));
        self.retired.store(true, Ordering::Release);
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// A successor that is not to be: its new members end. What it has ended stays so.
    pub fn abandon(&self, next: &FlashCache) {
        let mine = |seat: &Seat| self.seats.iter().any(|own| Arc::ptr_eq(&own.member, &seat.member));
        next.seats.iter().filter(|seat| !mine(seat)).for_each(|seat| seat.member.leave());
    }

    /// The places among [`FlashCache::members`] of these devices.
    #[must_use]
    pub fn places_of(&self, devices: &BTreeSet<u128>) -> Vec<usize> {
        (0..self.seats.len()).filter(|i| devices.contains(&self.seats[*i].device_id)).collect()
    }

    /// Bytes of memory that members which stay may use.
    #[must_use]
    pub fn memory_bytes_max_without(&self, leaving: &[usize]) -> u64 {
        let stay = self.seats.iter().enumerate().filter(|(i, _)| !leaving.contains(i));
        stay.map(|(_, seat)| seat.member.memory_bytes_max()).sum()
    }

    /// Whether another has taken its place.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }
}
