//! Open stamps (DESIGN I5): flash content counts only with the disk that shows the stamp it was left with.
//!
//! A renewal gives every disk a new random stamp without a moment in which a pair that belongs together does not match:
//!
//! 1. each disk announces the new stamp beside the old one (`stamp_next`);
//! 2. each flash device of a pair accepts the new one only;
//! 3. each disk shows the new one only.
//!
//! A crash between any two writes leaves every pair matching: the flash holds the old or the new stamp, the disk shows both
//! until step 3. A disk restored from a snapshot or used elsewhere shows a stamp that the flash no longer accepts. An
//! interrupted renewal is finished with the stamp it announced before another one begins.
//!
//! Never decides whether content is good beyond that: the caller names the pairs.

use super::{CellStore, ReplicaFailure};
use crate::disk::CellDisk;
use crate::error::CellDiskError;
use crate::ids::{DeviceId, Stamp};
use crate::label::{DiskStamp, FlashMember, FlashState, Label, Role};
use device::{Clock, Prng};
use futures_util::future::{Either, join_all, select};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Why stamps are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The cell begins to serve: from here on the stop counts as unclean.
    Open,
    /// The cell has stopped serving and everything is durable.
    CleanStop,
}

/// How long the label of a flash device may take to be written: one that takes longer has failed, and its cell disk takes no more changes.
#[derive(Clone, Copy)]
pub struct FlashPatience<'a> {
    /// Whose time.
    pub clock: &'a Arc<dyn Clock>,
    /// How much of it.
    pub limit: Duration,
}

impl FlashPatience<'_> {
    async fn within(self, written: impl Future<Output = Result<(), CellDiskError>>) -> Result<(), CellDiskError> {
        match select(pin!(written), self.clock.sleep(self.limit)).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(CellDiskError::Late { seconds: self.limit.as_secs() }),
        }
    }
}

/// One renewal.
#[derive(Clone, Copy)]
struct Round<'a> {
    renewal: Renewal,
    pairs: &'a [(DeviceId, DeviceId)],
    patience: Option<FlashPatience<'a>>,
}

impl CellStore {
    /// Pairs (disk, flash) of present devices whose stamps match and where the disk has not expelled the flash: what the
    /// flash holds of that disk may be used.
    #[must_use]
    pub fn matching_pairs(&self) -> Vec<(DeviceId, DeviceId)> {
        let disks = self.cell_disks();
        let labels: Vec<Arc<Label>> = disks.iter().map(|disk| disk.label()).collect();
        let mut pairs = Vec::new();
        for disk in labels.iter().filter(|label| label.role == Role::Disk) {
            for flash in labels.iter().filter(|label| label.role == Role::Flash) {
                let member = disk.flash_members.get(&flash.device_id);
                let good = member.is_some_and(|member| {
                    member.state != FlashState::Expelled && member.generation == flash.device_generation
                });
                if good && Label::stamps_match(disk, flash) {
                    pairs.push((disk.device_id, flash.device_id));
                }
            }
        }
        pairs
    }

    /// The present disks that [`CellStore::renew_stamps`] with these pairs leaves as they are: something that they do not have may
    /// be on flash which is not listed with them.
    #[must_use]
    pub fn left_out_of_renewal(&self, pairs: &[(DeviceId, DeviceId)]) -> Vec<Arc<CellDisk>> {
        let mut disks = self.cell_disks();
        disks.retain(|disk| {
            let label = disk.label();
            let there = |id: &DeviceId| pairs.contains(&(label.device_id, *id));
            let needs = |member: &FlashMember| member.state.holds_dirty() || member.redo_pending.is_some();
            disk.role() == Role::Disk && label.flash_members.iter().any(|(id, member)| needs(member) && !there(id))
        });
        disks
    }

    /// Give every present disk a new stamp and pair it anew with the flash devices in `pairs` (disk, flash). A pair that is
    /// listed is matching afterwards, and was so all the time if it was before; one that is not listed matches no more.
    /// Listing a pair that did not match declares what the flash holds of that disk void: the caller has seen to that. One that
    /// had been expelled is taken in, one that is expelled meanwhile stays out.
    ///
    /// Returns what failed. A disk whose own or whose flash's label could not be written keeps showing its old stamp (and
    /// perhaps the new one too); call again without that flash once it is given up.
    pub async fn renew_stamps(
        &self,
        renewal: Renewal,
        pairs: &[(DeviceId, DeviceId)],
        prng: &mut Prng,
    ) -> Vec<ReplicaFailure> {
        self.renew(Round { renewal, pairs, patience: None }, prng).await
    }

    /// Renew the stamps of `pairs`, which match, while the cell serves: as [`CellStore::renew_stamps`].
    pub async fn renew_in_service(
        &self,
        pairs: &[(DeviceId, DeviceId)],
        patience: FlashPatience<'_>,
        prng: &mut Prng,
    ) -> Vec<ReplicaFailure> {
        self.renew(Round { renewal: Renewal::Open, pairs, patience: Some(patience) }, prng).await
    }

    async fn renew(&self, round: Round<'_>, prng: &mut Prng) -> Vec<ReplicaFailure> {
        let Round { renewal, pairs, .. } = round;
        let mut failures = Vec::new();
        let mut disks: Vec<Arc<CellDisk>> = self.cell_disks();
        disks.retain(|disk| disk.role() == Role::Disk);
        // Flash that is expelled while this goes on stays expelled.
        let taken_in: BTreeSet<(DeviceId, DeviceId)> = disks
            .iter()
            .flat_map(|disk| {
                let out = |(id, member): (&DeviceId, &FlashMember)| {
                    matches!(member.state, FlashState::Expelled | FlashState::Absent).then_some((disk.id(), *id))
                };
                disk.label().flash_members.iter().filter_map(out).collect::<Vec<_>>()
            })
            .collect();
        // A disk that is not whole without flash that is not there goes on showing the stamp which that flash knows.
        let left_out = self.left_out_of_renewal(pairs);
        disks.retain(|disk| left_out.iter().all(|left| left.id() != disk.id()));
        // Finish what an earlier renewal announced.
        let announced = |disk: &Arc<CellDisk>| Some((disk.id(), disk.label().stamp_next)).filter(|(_, s)| s.is_some());
        let unfinished: BTreeMap<DeviceId, Stamp> = disks.iter().filter_map(announced).collect();
        if !unfinished.is_empty() {
            let failed = self.hand_over(&round, &unfinished, &taken_in, &mut failures).await;
            disks.retain(|disk| !failed.contains(&disk.id()));
        }

        let stamps: BTreeMap<DeviceId, Stamp> =
            disks.iter().map(|d| (d.id(), Stamp(prng.next_u128().max(1)))).collect();
        let announcing = disks.iter().map(|disk| {
            let stamp = stamps.get(&disk.id()).copied().unwrap_or_default();
            let announce = disk.update_label(move |label| {
                label.stamp_next = stamp;
                label.clean_stop &= renewal == Renewal::CleanStop;
            });
            async move { (disk, announce.await) }
        });
        let mut announced = stamps.clone();
        for (disk, result) in join_all(announcing).await {
            if let Err(error) = result {
                announced.remove(&disk.id());
                failures.push(ReplicaFailure::of(disk, error));
            }
        }
        self.hand_over(&round, &announced, &taken_in, &mut failures).await;
        failures
    }

    /// Steps 2 and 3 for the disks in `stamps`; the disks whose hand-over could not be finished.
    async fn hand_over(
        &self,
        round: &Round<'_>,
        stamps: &BTreeMap<DeviceId, Stamp>,
        taken_in: &BTreeSet<(DeviceId, DeviceId)>,
        failures: &mut Vec<ReplicaFailure>,
    ) -> BTreeSet<DeviceId> {
        let Round { renewal, pairs, .. } = *round;
        let mut failed = BTreeSet::new();
        let disks: BTreeMap<DeviceId, Arc<CellDisk>> =
            stamps.keys().filter_map(|id| Some((*id, self.cell_disk(*id)?))).collect();
        let all = self.cell_disks();
        let flashes: Vec<&Arc<CellDisk>> = all.iter().filter(|disk| disk.role() == Role::Flash).collect();

        // One that failed before, in this renewal, is given up by the caller.
        let given_up: BTreeSet<DeviceId> = failures.iter().map(|failure| failure.device_id).collect();
        let accepting = flashes.iter().map(|flash| {
            let mine = pairs.iter().filter(|(_, flash_id)| *flash_id == flash.id());
            let is_paired = mine.clone().next().is_some() && !given_up.contains(&flash.id());
            let entries: Vec<(DeviceId, DiskStamp)> = mine
                .filter_map(|(disk_id, _)| {
                    let generation = disks.get(disk_id)?.label().device_generation;
                    Some((*disk_id, DiskStamp { current: *stamps.get(disk_id)?, next: Stamp::NONE, generation }))
                })
                .collect();
            async move {
                let accept = |label: &mut Label| {
                    label.disk_stamps.extend(entries.iter().copied());
                    // From here on the cache may change: what a checkpoint says is not believed again.
                    label.checkpoint = label.checkpoint.filter(|_| renewal == Renewal::CleanStop);
                    label.clean_stop = renewal == Renewal::CleanStop;
                };
                // One that nobody is paired with any more need not be able to say again what it says.
                let (before, mut after) = (flash.label(), Label::clone(&flash.label()));
                accept(&mut after);
                // One that is used is written in any case: the sequence of its label is the life of the flash cache there, and no two
                // openings have the same.
                let result = match (is_paired, round.patience) {
                    (false, _) if after == *before => Ok(()),
                    (_, Some(patience)) => patience.within(flash.rewrite_label(accept)).await,
                    (_, None) => flash.rewrite_label(accept).await,
                };
                (flash, result)
            }
        });
        for (flash, result) in join_all(accepting).await {
            if let Err(error) = result {
                failures.push(ReplicaFailure::of(flash, error));
                failed.extend(pairs.iter().filter(|(_, id)| *id == flash.id()).map(|(disk_id, _)| *disk_id));
            }
        }

        let generations: BTreeMap<DeviceId, u64> =
            flashes.iter().map(|flash| (flash.id(), flash.label().device_generation)).collect();
        let showing = disks.iter().filter(|(id, _)| !failed.contains(id)).map(|(id, disk)| {
            let stamp = stamps.get(id).copied().unwrap_or_default();
            let mine = pairs.iter().filter(|(disk_id, _)| disk_id == id);
            let members: Vec<(DeviceId, u64)> =
                mine.filter_map(|(_, flash_id)| Some((*flash_id, *generations.get(flash_id)?))).collect();
            async move {
                let result = disk
                    .update_label(|label| {
                        label.stamp = stamp;
                        label.stamp_next = Stamp::NONE;
                        label.clean_stop = renewal == Renewal::CleanStop;
                        for (flash_id, generation) in members {
                            let new = FlashMember {
                                generation,
                                state: FlashState::Clean,
                                redo_pending: None,
                                paired_stamp: stamp,
                            };
                            let member = label.flash_members.entry(flash_id).or_insert(new);
                            member.generation = generation;
                            member.paired_stamp = stamp;
                            let out = matches!(member.state, FlashState::Expelled | FlashState::Absent);
                            if out && taken_in.contains(&(disk.id(), flash_id)) {
                                member.state = FlashState::Clean;
                            }
                        }
                    })
                    .await;
                (disk, result)
            }
        });
        for (disk, result) in join_all(showing).await {
            if let Err(error) = result {
                failed.insert(disk.id());
                failures.push(ReplicaFailure::of(disk, error));
            }
        }
        failed
    }
}
