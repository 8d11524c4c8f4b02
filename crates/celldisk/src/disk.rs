//! One cell disk: a device with a label. Opens it, and makes changes of its label and its catalog replica durable.
//!
//! Label changes that arrive while one is being written share the next write. Never interprets what a label says about
//! flash, never touches an allocation unit.

use crate::catalog::Catalog;
use crate::codec::DecodeError;
use crate::dirty::DirtyMap;
use crate::error::CellDiskError;
use crate::ids::{CellId, DeviceId, Stamp};
use crate::label::{Adopted, Label, LabelError, Role};
use crate::layout::{
    DATA_OFFSET, PAGE_BYTES, Place, Slot, TRUE_PAGE_BYTES_MAX, au_bytes_for, au_count_for, dirty_granule_bytes_for,
};
use crate::media;
use crate::probe::{Probe, Survey, probe};
use crate::sabotage::Sabotage;
use crate::section::SectionKind;
use crate::slots::{Places, write_both};
use device::sync::{Notify, lock};
use device::{Class, Device, Geometry, WallTime};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// The tail of a device that is wiped at format: backup partition tables, RAID and ZFS labels live there.
const TAIL_BYTES: u64 = 1 << 20;

/// How to make a device a cell disk.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The cell it joins.
    pub cell_id: CellId,
    /// Its new identity, random.
    pub device_id: DeviceId,
    /// Disk or flash.
    pub role: Role,
    /// Durability class; `None`: what the device says.
    pub class: Option<Class>,
    /// Cell disk name.
    pub name: String,
    /// Allocation unit in bytes, a power of two; `None`: [`au_bytes_for`] its size.
    pub au_bytes: Option<u64>,
    /// True page in bytes; `None`: what the device says (at least 4096 on flash, whatever it says).
    pub page_bytes: Option<u32>,
    /// Now.
    pub created: WallTime,
    /// First open stamp, random.
    pub stamp: Stamp,
    /// Destroy what is on it.
    pub force: bool,
    /// It is a volume of so many bytes with its metadata beside it ([`crate::Beside`]): nothing of the volume is written, whatever it carries.
    pub adopted_bytes: Option<u64>,
}

/// A device with a valid label, open. Shared by all who use it.
pub struct CellDisk {
    device: Device,
    cell_id: CellId,
    device_id: DeviceId,
    role: Role,
    au_bytes: u64,
    damaged_count: u32,
    sabotage: Option<Sabotage>,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// Durable.
    label: Arc<Label>,
    /// A slot whose last write has not failed: the next write begins with the other one.
    label_slot: Slot,
    /// Highest sequence any write has carried, failed ones included: they may have landed. One more where a slot could not
    /// be brought up to date at open.
    sequence_used: u64,
    /// Being written.
    in_flight: Option<(Arc<Label>, Arc<Round>)>,
    /// Gathers changes for the next write.
    pending: Option<(Label, Arc<Round>)>,
    /// Durable, if the device has a replica at all.
    catalog: Option<Arc<Catalog>>,
    /// As with the label.
    catalog_slot: Option<Slot>,
    /// Why nothing more may be written.
    latched: Option<String>,
    /// Copies of a label or catalog that could not be written while the other of their slot could.
    failed_copies: u64,
}

impl State {
    /// No label write is on its way or has failed since.
    fn is_label_certain(&self) -> bool {
        self.in_flight.is_none() && self.sequence_used == self.label.sequence
    }
}

/// One write of the label and what became of it, for all whose changes it carries.
#[derive(Debug, Default)]
struct Round(OnceLock<Result<(), CellDiskError>>);

pub(crate) fn check_geometry(geometry: &Geometry) -> Result<(), CellDiskError> {
    let why = if !geometry.logical_bytes.is_power_of_two() || u64::from(geometry.logical_bytes) > PAGE_BYTES {
        "its sector is larger than 4096 bytes or no power of two"
    } else if u64::from(geometry.page_bytes) > TRUE_PAGE_BYTES_MAX {
        "its true page is larger than 64 KiB"
    } else {
        return Ok(());
    };
    Err(CellDiskError::Geometry { why })
}

impl CellDisk {
    /// Make `device` a cell disk without a catalog: what was on it is void, both label slots are written.
    ///
    /// A power cut leaves the device blank, damaged, a former cell disk or the new one; never one that claims a
    /// catalog or grid disks.
    ///
    /// # Errors
    /// Refuses a device that carries anything unless `options.force`; label, geometry and I/O errors.
    pub async fn format(device: Device, options: FormatOptions) -> Result<Arc<CellDisk>, CellDiskError> {
        let geometry = device.geometry();
        check_geometry(&geometry)?;
        let size_bytes = geometry.size_bytes / PAGE_BYTES * PAGE_BYTES;
        let au_bytes = options.au_bytes.unwrap_or_else(|| au_bytes_for(size_bytes));
        let page_bytes = match options.page_bytes {
            Some(page_bytes) => page_bytes,
            None if options.role == Role::Flash => geometry.page_bytes.max(PAGE_BYTES as u32),
            None => geometry.page_bytes.max(512),
        };
        let label = Label {
            cell_id: options.cell_id,
            device_id: options.device_id,
            device_generation: 1,
            role: options.role,
            class: options.class.unwrap_or(geometry.class),
            name: options.name,
            size_bytes,
            page_bytes,
            au_bytes,
            created: options.created,
            sequence: 1,
            stamp: options.stamp,
            stamp_next: Stamp::NONE,
            clean_stop: true,
            flash_members: BTreeMap::new(),
            disk_stamps: BTreeMap::new(),
            dirty: DirtyMap::new(size_bytes),
            ring_generation: 0,
            ring_generation_dead: 0,
            cache_era: 0,
            checkpoint: None,
            adopted: options.adopted_bytes.map(|volume_bytes| Adopted { volume_bytes, fingerprint: 0 }),
        };
        if size_bytes < DATA_OFFSET + au_bytes {
            return Err(CellDiskError::TooSmall { size_bytes: geometry.size_bytes, min_bytes: DATA_OFFSET + au_bytes });
        }
        label.validate()?;
        if !options.force {
            match probe(&device).await? {
                Probe::Blank => {}
                Probe::Flashcell(old) => {
                    return Err(CellDiskError::InUse { name: old.name.clone(), cell_id: old.cell_id });
                }
                Probe::Foreign { what } => return Err(CellDiskError::Foreign { what }),
                Probe::Damaged { why } => return Err(CellDiskError::Damaged { why }),
                Probe::Newer(error) => return Err(CellDiskError::Newer(error)),
            }
        }
        wipe(&device, &label).await?;
        write_both(&device, SectionKind::Label, Slot::A, None, |place| label.encode(place)).await.result?;
        CellDisk::open(device).await
    }

    /// Open a cell disk: the newest whole label and catalog replica count; what was torn falls back to the other slot;
    /// every place that does not hold the newest is written again.
    ///
    /// # Errors
    /// Blank, foreign, damaged, written by a newer release, smaller than its label says, or I/O errors.
    pub async fn open(device: Device) -> Result<Arc<CellDisk>, CellDiskError> {
        CellDisk::open_broken(device, None).await
    }

    /// As [`CellDisk::open`], with a deliberate fault for the checkers.
    pub(crate) async fn open_broken(
        device: Device,
        sabotage: Option<Sabotage>,
    ) -> Result<Arc<CellDisk>, CellDiskError> {
        let geometry = device.geometry();
        check_geometry(&geometry)?;
        let survey = Survey::of(&device).await;
        let (label_slot, label) = match survey.usable() {
            Ok((slot, label)) => (slot, Arc::new(label.clone())),
            Err(why) => return Err(survey.explain(&device, why).await),
        };
        if geometry.size_bytes < label.size_bytes {
            let (label_bytes, device_bytes) = (label.size_bytes, geometry.size_bytes);
            return Err(CellDiskError::Shrunk { name: label.name.clone(), label_bytes, device_bytes });
        }
        let catalogs = read_catalogs(&device, &label).await;
        if let Some(error) = catalogs.newer_release() {
            return Err(CellDiskError::Newer(error));
        }
        let newest_catalog = catalogs.newest().map(|(slot, _, catalog)| (slot, Arc::new(catalog.clone())));

        // What was read may sit in a volatile cache only (this process may have died, not the machine). It must be
        // durable before the other slot is overwritten, or a power cut could take both.
        media::flush(&device).await?;
        let keeps = |place: &Place, slot: Slot| sabotage != Some(Sabotage::SecondSlotSkipped) || place.slot == slot;
        let mut places = survey.labels.to_heal();
        places.retain(|place| keeps(place, label_slot));
        let failed = heal(&device, SectionKind::Label, &places, |place| label.encode(place)).await?;
        // A slot without a copy of this label may hold an older one that is whole. As after a write of both slots that
        // failed in one of them, the label counts as written only when a later write has reached both.
        let lacks = |slot: Slot| slot.places().iter().all(|place| failed.contains(place));
        let is_in_both = !lacks(label_slot.other());
        let mut failed_copies = failed.len() as u64;
        if let Some((slot, catalog)) = &newest_catalog {
            // The store writes a catalog of a new term when it opens, to both slots or the device is out of service.
            let mut places = catalogs.to_heal();
            places.retain(|place| keeps(place, *slot));
            let encode = |place| catalog.encode(label.device_id, place);
            failed_copies += heal(&device, SectionKind::Catalog, &places, encode).await?.len() as u64;
        }
        let state = State {
            label_slot,
            sequence_used: label.sequence + u64::from(!is_in_both),
            in_flight: None,
            pending: None,
            catalog_slot: newest_catalog.as_ref().map(|(slot, _)| *slot),
            catalog: newest_catalog.map(|(_, catalog)| catalog),
            latched: None,
            failed_copies,
            label: label.clone(),
        };
        Ok(Arc::new(CellDisk {
            device,
            cell_id: label.cell_id,
            device_id: label.device_id,
            role: label.role,
            au_bytes: label.au_bytes,
            damaged_count: survey.labels.damaged_count() + catalogs.damaged_count(),
            sabotage,
            state: Mutex::new(state),
            changed: Notify::new(),
        }))
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The cell it belongs to.
    #[must_use]
    pub fn cell_id(&self) -> CellId {
        self.cell_id
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.device_id
    }

    /// Disk or flash.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Allocation unit, bytes.
    #[must_use]
    pub fn au_bytes(&self) -> u64 {
        self.au_bytes
    }

    /// Allocation units that the device has room for, whatever its label says.
    #[must_use]
    pub fn au_count_possible(&self) -> u32 {
        au_count_for(self.device.geometry().size_bytes, self.au_bytes)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        lock(&self.state).label.name.clone()
    }

    /// The label as it is durable now.
    #[must_use]
    pub fn label(&self) -> Arc<Label> {
        lock(&self.state).label.clone()
    }

    /// The newest catalog replica on this device; which replica is in force only the store knows.
    #[must_use]
    pub fn catalog_replica(&self) -> Option<Arc<Catalog>> {
        lock(&self.state).catalog.clone()
    }

    /// Sections found neither whole nor empty when it was opened, and written anew from a whole one: up to two after a
    /// crash in mid-write, more mean rot.
    #[must_use]
    pub fn damaged_count(&self) -> u32 {
        self.damaged_count
    }

    /// Copies of a label or catalog that could not be written since it was opened, while the other of their slot could:
    /// above 0 the medium is failing.
    #[must_use]
    pub fn failed_copies(&self) -> u64 {
        lock(&self.state).failed_copies
    }

    /// Why it takes no more changes, if it does not.
    #[must_use]
    pub fn latched(&self) -> Option<String> {
        lock(&self.state).latched.clone()
    }

    /// Change the label; durable when this returns. Changes that arrive while a write is under way are carried by the
    /// next one together. A change that changes nothing costs no write.
    ///
    /// `change` runs at once, on top of all earlier changes, under a lock: memory work only, and no call to this cell disk.
    ///
    /// # Errors
    /// [`CellDiskError::Label`]: the change is not allowed, nothing happened. Otherwise the write failed: the label in
    /// memory stays what it was, the one on the device is the old or the new one, and later changes are tried anew;
    /// after a write of unknown fate (or a dropped future in mid-write) the cell disk is latched.
    pub async fn update_label(&self, change: impl FnOnce(&mut Label)) -> Result<(), CellDiskError> {
        let round = self.enqueue(change, Rewrite::Changed)?;
        self.written(round).await
    }

    /// The same, but the label is written although nothing changes: its sequence is higher than ever before, durably.
    ///
    /// # Errors
    /// As [`CellDisk::update_label`].
    pub async fn rewrite_label(&self, change: impl FnOnce(&mut Label)) -> Result<(), CellDiskError> {
        let round = self.enqueue(change, Rewrite::Always)?;
        self.written(round).await
    }

    /// Write the label again if a later one may be there: after a write that has failed.
    ///
    /// # Errors
    /// As [`CellDisk::update_label`].
    pub async fn make_label_certain(&self) -> Result<(), CellDiskError> {
        self.update_label(|_| ()).await
    }

    async fn written(&self, round: Option<Arc<Round>>) -> Result<(), CellDiskError> {
        let Some(round) = round else { return Ok(()) };
        loop {
            let ticket = self.changed.ticket();
            if let Some(result) = round.0.get() {
                return result.clone();
            }
            match self.lead() {
                Some(mut lead) => lead.write().await,
                None => self.changed.wait(ticket).await,
            }
        }
    }

    /// Whether the device has the label that [`CellDisk::label`] shows: a later one is not on its way, and none that has failed
    /// may have landed all the same.
    #[must_use]
    pub fn is_label_certain(&self) -> bool {
        lock(&self.state).is_label_certain()
    }

    /// Apply a change to what the next write will carry; `None` when there is nothing to wait for: the device certainly has it.
    fn enqueue(&self, change: impl FnOnce(&mut Label), rewrite: Rewrite) -> Result<Option<Arc<Round>>, CellDiskError> {
        let mut state = lock(&self.state);
        if let Some(why) = &state.latched {
            return Err(self.latched_error(why));
        }
        let (base, waiting) = match (&state.pending, &state.in_flight) {
            (Some((label, round)), _) => (label, Some(round.clone())),
            (None, Some((label, round))) => (&**label, Some(round.clone())),
            (None, None) => (&*state.label, None),
        };
        let mut next = base.clone();
        change(&mut next);
        next.sequence = base.sequence;
        // After a write that has failed, the device may have what that one said.
        let needless = rewrite == Rewrite::Changed && (waiting.is_some() || state.is_label_certain());
        if next == *base && needless {
            return Ok(waiting);
        }
        check_fixed(base, &next, self.device.geometry().size_bytes)?;
        next.validate()?;
        let round = match state.pending.take() {
            Some((_, round)) => round,
            None => Arc::default(),
        };
        state.pending = Some((next, round.clone()));
        Ok(Some(round))
    }

    /// Become the one who writes, when there is something to write and nobody does.
    fn lead(&self) -> Option<Lead<'_>> {
        let mut state = lock(&self.state);
        if state.in_flight.is_some() {
            return None;
        }
        let (mut label, round) = state.pending.take()?;
        state.sequence_used += 1;
        label.sequence = state.sequence_used;
        let label = Arc::new(label);
        state.in_flight = Some((label.clone(), round));
        Some(Lead { disk: self, label, slot: state.label_slot.other(), finished: false })
    }

    /// Use the size the device has grown to. The data area gains allocation units; dirty granules may get coarser.
    ///
    /// # Errors
    /// As [`CellDisk::update_label`].
    pub async fn adopt_size(&self) -> Result<(), CellDiskError> {
        let size_bytes = self.device.geometry().size_bytes / PAGE_BYTES * PAGE_BYTES;
        self.update_label(|label| {
            if size_bytes > label.size_bytes {
                label.size_bytes = size_bytes;
                label.dirty.grow_to(size_bytes);
            }
        })
        .await
    }

    /// Wipe the metadata: the device is blank afterwards and this cell disk takes no more changes.
    ///
    /// # Errors
    /// I/O errors; the device may then still carry its label.
    pub async fn erase(&self) -> Result<(), CellDiskError> {
        self.latch("it was erased");
        wipe(&self.device, &self.label()).await
    }

    /// Write the replica of `catalog`, whose payload is `payload`. The store calls this for one catalog at a time.
    pub(crate) async fn write_catalog(&self, catalog: &Arc<Catalog>, payload: &[u8]) -> Result<(), CellDiskError> {
        let slot = {
            let state = lock(&self.state);
            if let Some(why) = &state.latched {
                return Err(self.latched_error(why));
            }
            state.catalog_slot.map_or(Slot::A, Slot::other)
        };
        let mut guard = LatchOnDrop { disk: self, armed: true };
        let seal = |place| catalog.seal(self.device_id, place, payload);
        let written = write_both(&self.device, SectionKind::Catalog, slot, self.sabotage, seal).await;
        guard.armed = false;
        lock(&self.state).catalog_slot = Some(written.holder);
        match written.result {
            Ok(failed_copies) => {
                let mut state = lock(&self.state);
                state.failed_copies += u64::from(failed_copies);
                state.catalog = Some(catalog.clone());
                Ok(())
            }
            Err(error) => {
                if error.is_unknown() {
                    self.latch(&error.to_string());
                }
                Err(error.into())
            }
        }
    }

    fn latched_error(&self, why: &str) -> CellDiskError {
        CellDiskError::Latched { device_id: self.device_id, why: why.to_owned() }
    }

    /// Take no more changes; those waiting are told.
    pub(crate) fn latch(&self, why: &str) {
        {
            let mut state = lock(&self.state);
            state.latched.get_or_insert_with(|| why.to_owned());
            let rounds = [state.in_flight.take().map(|(_, round)| round), state.pending.take().map(|(_, round)| round)];
            for round in rounds.into_iter().flatten() {
                // Set already when its write has just finished: then that is the answer.
                round.0.get_or_init(|| Err(self.latched_error(why)));
            }
        }
        self.changed.notify_all();
    }
}

impl std::fmt::Debug for CellDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CellDisk({} {})", self.name(), self.device_id)
    }
}

/// When a label is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rewrite {
    /// When it says something else than the one that is there.
    Changed,
    /// In any case.
    Always,
}

/// The one who writes a round. Dropped in mid-write, the fate of the write is unknown.
struct Lead<'a> {
    disk: &'a CellDisk,
    label: Arc<Label>,
    slot: Slot,
    finished: bool,
}

impl Lead<'_> {
    async fn write(&mut self) {
        let Lead { disk, label, slot, .. } = &*self;
        let seal = |place| label.encode(place);
        let written = write_both(&disk.device, SectionKind::Label, *slot, disk.sabotage, seal).await;
        self.finished = true;
        if let Err(error) = &written.result
            && error.is_unknown()
        {
            return self.disk.latch(&error.to_string());
        }
        {
            let mut state = lock(&self.disk.state);
            let in_flight = state.in_flight.take();
            state.label_slot = written.holder;
            let result = match written.result {
                Ok(failed_copies) => {
                    state.failed_copies += u64::from(failed_copies);
                    state.label = self.label.clone();
                    Ok(())
                }
                Err(error) => {
                    let failed = Err(CellDiskError::from(error));
                    // What waits was built on what failed: it fails with it.
                    if let Some((_, round)) = state.pending.take() {
                        round.0.get_or_init(|| failed.clone());
                    }
                    failed
                }
            };
            // None when it was latched meanwhile: all who wait have been told.
            if let Some((_, round)) = in_flight {
                round.0.get_or_init(|| result);
            }
        }
        self.disk.changed.notify_all();
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.disk.latch("a label write was abandoned");
        }
    }
}

struct LatchOnDrop<'a> {
    disk: &'a CellDisk,
    armed: bool,
}

impl Drop for LatchOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.disk.latch("a catalog write was abandoned");
        }
    }
}

/// Write a copy of the newest section to each place where it is missing. Failing to is no reason not to serve: the places
/// where it failed.
async fn heal(
    device: &Device,
    kind: SectionKind,
    places: &[Place],
    seal: impl Fn(Place) -> Vec<u8>,
) -> Result<Vec<Place>, CellDiskError> {
    let mut failed = Vec::new();
    for place in places {
        match media::write_durable(device, kind.offset(*place), &seal(*place)).await {
            Ok(()) => {}
            Err(error) if error.is_unknown() => return Err(error.into()),
            Err(_) => failed.push(*place),
        }
    }
    Ok(failed)
}

/// The replicas on a device; one that was written for another device or cell is damage.
async fn read_catalogs(device: &Device, label: &Label) -> Places<Catalog> {
    let owner = (label.cell_id, label.device_id);
    Places::read(device, SectionKind::Catalog, |header, place, bytes| {
        if (header.binding.cell_id, header.binding.device_id) != owner {
            return Err(DecodeError::Value { what: "identity" });
        }
        Ok(Catalog::decode(place, bytes)?.1)
    })
    .await
}

/// Zero everything before the data area and the last bytes of the device, where other formats keep copies; of an adopted volume nothing.
async fn wipe(device: &Device, label: &Label) -> Result<(), CellDiskError> {
    let size_bytes = label.size_bytes;
    let tail = size_bytes.saturating_sub(TAIL_BYTES).max(DATA_OFFSET) / PAGE_BYTES * PAGE_BYTES;
    media::zero(device, 0, DATA_OFFSET.min(size_bytes), &mut |_| ()).await?;
    if label.adopted.is_some() {
        return Ok(());
    }
    media::zero(device, tail, size_bytes.saturating_sub(tail), &mut |_| ()).await?;
    Ok(())
}

fn check_fixed(old: &Label, new: &Label, device_bytes: u64) -> Result<(), LabelError> {
    let fixed = [
        ("cell id", old.cell_id == new.cell_id),
        ("device id", old.device_id == new.device_id),
        ("role", old.role == new.role),
        ("allocation unit", old.au_bytes == new.au_bytes),
        ("creation time", old.created == new.created),
        ("size", new.size_bytes >= old.size_bytes && new.size_bytes <= device_bytes.max(old.size_bytes)),
        ("adopted volume", old.adopted.map(|a| a.volume_bytes) == new.adopted.map(|a| a.volume_bytes)),
        ("dirty granule", new.dirty.granule_bytes() == dirty_granule_bytes_for(new.size_bytes)),
    ];
    match fixed.into_iter().find(|(_, same)| !same) {
        Some((field, _)) => Err(LabelError::Fixed { field }),
        None => Ok(()),
    }
}
