//! The machine of a run: disks and flash devices that outlive processes, their mishaps and their snapshots.
//!
//! Keeps count of what was done to which device, so that the checkers know which requests may fail. Only faults that the
//! design claims to survive are permitted: on disks in the data area, never in a label whose other copy is harmed as
//! well; on flash everywhere.

use super::between::Renewals;
use super::plan::{AU_BYTES, Setup};
use crate::disk::{Armed, FaultAtlas, FaultKind, SimDevice, Snapshot};
use crate::executor::{Handle, Process};
use crate::situations::Situations;
use cell::CellDevice;
use celldisk::Label;
use celldisk::claim::Claimed;
use celldisk::layout::{DATA_OFFSET, LABEL_OFFSET, LABEL_SECTION_BYTES, Place, Slot};
use device::layers::WatchedDevice;
use device::sync::lock;
use device::{Device, FailKind, Instant, Prng, World};
use flashcache::checkpoint::{CHECKPOINT_MAGIC, PART_BYTES};
use flashcache::format::{self, Owner};
use std::cmp::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was done to a disk, as a request sees it: one that began under `faulty`, or saw `count` change, may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) faulty: bool,
    pub(super) count: u64,
}

/// From the last answer of a device that was struck to the moment at which everybody has heard of it.
const AFTERMATH: Duration = Duration::from_millis(100);

/// From the end of a pause of the host to the answers of its devices: shorter than the soft limit of any flash.
const MOMENT: Duration = Duration::from_millis(1);

/// The content of a device at some time.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) snapshot: Snapshot,
    /// Renewals of stamps by then: content of a moment after the last one cannot be told from what came after it.
    pub(super) renewals: Renewals,
}

struct Unit {
    device: Arc<SimDevice>,
    health: Health,
    slow_until: Instant,
    kept: Option<Kept>,
    /// Faults strike no more, but requests below this number may have been struck.
    healing: Option<(u64, Instant)>,
    /// Requests may still be struck or sectors still be wrong: healed while nobody runs.
    harmed: bool,
}

/// All devices.
pub(super) struct Machine {
    disks: Mutex<Vec<Unit>>,
    flashes: Mutex<Vec<Unit>>,
    /// The process was paused, or a client was cut off from it, until then.
    paused_until: Mutex<Instant>,
    /// The whole host was paused until then.
    host_paused_until: Mutex<Instant>,
}

/// A device as a server hands it to the cell, and its claim.
pub(super) struct Connected {
    pub(super) device: CellDevice,
    pub(super) claim: Arc<Claimed>,
}

fn unit(device: Arc<SimDevice>) -> Unit {
    let health = Health { faulty: false, count: 0 };
    Unit { device, health, slow_until: Instant(0), kept: None, healing: None, harmed: false }
}

/// Faults of flash that nobody may notice but by their slowness or a checksum, all gone at the next start.
fn flash_atlas(size_bytes: u64) -> FaultAtlas {
    let mut atlas = FaultAtlas::none();
    for kind in FaultKind::ALL {
        atlas = atlas.with(kind, DATA_OFFSET..size_bytes, 0);
    }
    atlas
}

impl Machine {
    pub(super) fn new(setup: &Setup, handle: &Handle, situations: &Situations) -> Machine {
        let make = |config: &crate::disk::DiskConfig| unit(SimDevice::new(config.clone(), handle, situations));
        Machine {
            disks: Mutex::new(setup.disks.iter().map(make).collect()),
            flashes: Mutex::new(setup.flashes.iter().map(make).collect()),
            paused_until: Mutex::new(Instant(0)),
            host_paused_until: Mutex::new(Instant(0)),
        }
    }

    pub(super) fn disk_count(&self) -> usize {
        lock(&self.disks).len()
    }

    pub(super) fn flash_count(&self) -> usize {
        lock(&self.flashes).len()
    }

    pub(super) fn disk(&self, n: usize) -> Arc<SimDevice> {
        lock(&self.disks)[n].device.clone()
    }

    pub(super) fn flash(&self, n: usize) -> Arc<SimDevice> {
        lock(&self.flashes)[n].device.clone()
    }

    fn all(&self) -> Vec<Arc<SimDevice>> {
        let flashes = lock(&self.flashes);
        lock(&self.disks).iter().chain(flashes.iter()).map(|u| u.device.clone()).collect()
    }

    /// What a process finds, in any order, watched and not claimed yet. With `cell_watches` the cell's own watch alone hears of losses: for
    /// a broken build of that one.
    pub(super) fn connect(
        &self,
        process: &Process,
        world: &World,
        cell_watches: bool,
        prng: &mut Prng,
    ) -> Vec<Connected> {
        let connected = |device: &Arc<SimDevice>| {
            let watched = WatchedDevice::new(device.connect(process), world.spawn.clone());
            let claim = Claimed::new(&watched, world);
            let device: Device = claim.clone();
            let device = match cell_watches {
                true => CellDevice::from(device),
                false => CellDevice::new(device, watched.losses().clone()),
            };
            Connected { device, claim }
        };
        let mut devices: Vec<_> = self.all().iter().filter(|d| !d.is_gone()).map(connected).collect();
        for n in (1..devices.len()).rev() {
            devices.swap(n, prng.below(n as u64 + 1) as usize);
        }
        devices
    }

    /// Requests under way on any disk, and on any flash device.
    pub(super) fn in_flight(&self) -> (usize, usize) {
        let count = |units: &[Unit]| units.iter().map(|u| u.device.in_flight()).sum();
        (count(&lock(&self.disks)), count(&lock(&self.flashes)))
    }

    pub(super) fn power_cut(&self) {
        self.all().iter().for_each(|d| d.power_cut());
    }

    /// One device alone loses its power, and the cell dies: the place of the disk that it is.
    pub(super) fn power_cut_of(&self, device: u64) -> Option<usize> {
        let (disks, all) = (self.disk_count(), self.all());
        let n = (device % all.len() as u64) as usize;
        for (at, device) in all.iter().enumerate() {
            if at == n { device.power_cut() } else { device.settle() }
        }
        (n < disks).then_some(n)
    }

    /// What a dead process had under way happens or does not.
    pub(super) fn settle(&self) {
        self.all().iter().for_each(|d| d.settle());
    }

    pub(super) fn health(&self, disk: usize, now: Instant) -> Health {
        let unit = &mut lock(&self.disks)[disk];
        if let Some((number, since)) = unit.healing {
            if unit.device.oldest_request().is_some_and(|oldest| oldest < number) {
                unit.healing = Some((number, now));
            } else if now.ns_since(since) > AFTERMATH.as_nanos() as u64 {
                unit.healing = None;
                unit.health.faulty = false;
                unit.health.count += 1;
                unit.harmed = false;
            }
        }
        unit.health
    }

    /// A request to this disk may be slow for other reasons than the cell.
    pub(super) fn disk_is_slow(&self, disk: usize, since: Instant) -> bool {
        let unit = &lock(&self.disks)[disk];
        unit.health.faulty || unit.slow_until >= since || *lock(&self.paused_until) >= since
    }

    /// The process does not run for so long: nobody answers meanwhile. Nothing is wrong with any device; with `host` they answer when
    /// the process runs again.
    pub(super) fn paused(&self, time: Duration, host: bool, now: Instant) {
        let until = time + MOMENT;
        if host {
            self.all().iter().for_each(|device| device.stall(&[], Some(until)));
            let mut last = lock(&self.host_paused_until);
            *last = (*last).max(now.after(time));
        }
        self.not_heard_until(now.after(until));
    }

    /// Requests may be slow for want of somebody who hears them.
    pub(super) fn not_heard_until(&self, until: Instant) {
        let mut last = lock(&self.paused_until);
        *last = (*last).max(until);
    }

    /// How long the whole host stands still yet: none of its processes goes on before.
    pub(super) fn host_pause_left(&self, now: Instant) -> Duration {
        Duration::from_nanos(lock(&self.host_paused_until).ns_since(now))
    }

    /// Whether some flash device is not as it should be, so that commands that write its label may fail.
    pub(super) fn some_flash_harmed(&self) -> bool {
        lock(&self.flashes).iter().any(|u| u.harmed || u.device.is_gone())
    }

    pub(super) fn some_disk_harmed(&self, now: Instant) -> bool {
        for n in 0..self.disk_count() {
            let _current = self.health(n, now);
        }
        lock(&self.disks).iter().any(|u| u.health.faulty || u.slow_until >= now || u.device.is_gone())
    }

    fn worsen(unit: &mut Unit) {
        unit.healing = None;
        unit.harmed = true;
        unit.health.faulty = true;
        unit.health.count += 1;
    }

    pub(super) fn disk_fault(&self, n: usize, kind: FaultKind, times: u32, fail: FailKind) {
        let unit = &mut lock(&self.disks)[n];
        Machine::worsen(unit);
        let area = DATA_OFFSET..unit.device.size_bytes();
        unit.device.set_atlas(FaultAtlas::none().with(kind, area.clone(), 0));
        let _ = unit.device.arm(Armed { kind, range: area, fail, times });
    }

    pub(super) fn disk_healed(&self, n: usize, now: Instant) {
        let unit = &mut lock(&self.disks)[n];
        if unit.health.faulty && !unit.device.is_gone() {
            unit.device.set_atlas(FaultAtlas::none());
            unit.device.repair(0..unit.device.size_bytes());
            unit.healing = Some((unit.device.next_request(), now));
        }
    }

    pub(super) fn disk_stall(&self, n: usize, time: Duration, now: Instant) {
        let unit = &mut lock(&self.disks)[n];
        unit.slow_until = unit.slow_until.max(now.after(time).after(Duration::from_millis(2)));
        unit.device.stall(&[], Some(time));
    }

    pub(super) fn disk_vanishes(&self, n: usize) {
        let unit = &mut lock(&self.disks)[n];
        Machine::worsen(unit);
        unit.device.vanish();
    }

    pub(super) fn flash_fault(&self, n: usize, kind: FaultKind, times: u32, fail: FailKind) {
        let unit = &mut lock(&self.flashes)[n];
        unit.harmed = true;
        let all = 0..unit.device.size_bytes();
        unit.device.set_atlas(flash_atlas(all.end));
        let _ = unit.device.arm(Armed { kind, range: DATA_OFFSET..all.end, fail, times });
    }

    pub(super) fn flash_has_room(&self, n: usize) {
        lock(&self.flashes)[n].device.disarm(FailKind::NoSpace);
    }

    /// So many of a million requests go wrong from now on, to labels and catalog as well.
    pub(super) fn flash_fault_at_open(&self, n: usize, kind: FaultKind, ppm: u32) {
        let unit = &mut lock(&self.flashes)[n];
        unit.harmed = true;
        unit.device.set_atlas(FaultAtlas::none().with(kind, 0..unit.device.size_bytes(), ppm));
    }

    pub(super) fn flash_stall(&self, n: usize, time: Duration) {
        let unit = &mut lock(&self.flashes)[n];
        unit.harmed = true;
        unit.device.stall(&[], Some(time));
    }

    pub(super) fn flash_vanishes(&self, n: usize) {
        let unit = &mut lock(&self.flashes)[n];
        unit.harmed = true;
        unit.device.vanish();
    }

    /// Rot one sector of a page of cached data, found by walking a segment as `owner` wrote it from byte `area` on. With
    /// `durable_only` of data that a later header of the segment calls durable: what is not cannot be told, after a
    /// crash, from what the crash has torn.
    pub(super) fn rot_data(
        &self,
        n: usize,
        owner: &Owner,
        (area, segment_bytes): (u64, u64),
        durable_only: bool,
        pick: u64,
    ) -> bool {
        let device = self.flash(n);
        let end = device.size_bytes();
        let segments = (end - area) / segment_bytes;
        if segments == 0 {
            return false;
        }
        let mut prng = Prng::new(pick);
        let start = area + prng.below(segments) * segment_bytes;
        let mut pages = Vec::new();
        let mut said = Vec::new();
        let mut position = 0;
        while position + 4096 < segment_bytes {
            let header = device.pristine(start + position, 65536.min((segment_bytes - position) as usize));
            let Some((first, header)) = data_starts(&header, owner) else { break };
            said.push((header.sequence, header.durable));
            let data = first..header.pages;
            pages.extend(data.map(|page| (header.sequence, start + position + u64::from(page) * 4096)));
            position += u64::from(header.pages) * 4096;
        }
        if durable_only {
            // Known to be durable by a header that is durable itself: a power cut may take the last one away, and what rots
            // then looks like what was never written.
            let last = said.iter().map(|(_, durable)| *durable).max().unwrap_or(0);
            let lasting = said.iter().filter(|(sequence, _)| *sequence <= last);
            let durable = lasting.map(|(_, durable)| *durable).max().unwrap_or(0);
            pages.retain(|(sequence, _)| *sequence <= durable);
        }
        if pages.is_empty() {
            return false;
        }
        let (_, page) = pages[prng.below(pages.len() as u64) as usize];
        if page + 4096 > end {
            return false;
        }
        device.set_atlas(flash_atlas(end));
        lock(&self.flashes)[n].harmed = true;
        device.rot(page..page + 4096)
    }

    /// Rot the first page of a segment whose footer is durable: so many chunks came after it, and were.
    pub(super) fn rot_first_page(&self, n: usize, owner: &Owner, (area, segment_bytes): (u64, u64), pick: u64) -> bool {
        let device = self.flash(n);
        let end = device.size_bytes();
        let mut durable = 0;
        let mut full = Vec::new();
        for segment in 0..(end - area) / segment_bytes {
            let start = area + segment * segment_bytes;
            let Some((pages, header)) = data_starts(&device.pristine(start, 16384), owner) else { continue };
            let mut last = header.durable;
            let tail = device.pristine(start + segment_bytes - 4096, 4096);
            let trailer = format::decode_trailer(&tail[4096 - format::TRAILER_BYTES..], owner);
            if let Ok(trailer) = trailer.as_ref().map_err(drop)
                && trailer.life == header.life
            {
                last = last.max(trailer.durable);
                full.push((trailer.sequence, start..start + u64::from(pages) * 4096));
            }
            durable = durable.max(last);
        }
        full.retain(|(sequence, _)| sequence + CHUNKS_AFTER_FOOTER <= durable);
        let Some((_, range)) = full.get((pick % full.len().max(1) as u64) as usize) else { return false };
        device.set_atlas(flash_atlas(end));
        lock(&self.flashes)[n].harmed = true;
        device.rot(range.start..range.start + 4096)
    }

    /// A device is larger; what was kept of it fits no more.
    pub(super) fn grow(&self, device: u64, by_bytes: u64) {
        let (disks, flashes) = (self.disk_count(), self.flash_count());
        let n = (device % (disks + flashes) as u64) as usize;
        let (units, n) = if n < disks { (&self.disks, n) } else { (&self.flashes, n - disks) };
        let unit = &mut lock(units)[n];
        let size_bytes = unit.device.size_bytes();
        unit.device.grow((size_bytes + by_bytes) / 4096 * 4096);
        unit.kept = None;
    }

    /// Rot both copies of the newest label on every device, of slot `slot` where both are as new; how many devices. One whose other
    /// slot has no whole label is left alone: a crash has just torn it.
    pub(super) fn label_rot(&self, slot: u64) -> u64 {
        let mut rotten = 0;
        for device in self.all() {
            let sequence = |slot: Slot| {
                let label = |place: Place| {
                    let bytes = device.pristine(place.offset() + LABEL_OFFSET, LABEL_SECTION_BYTES as usize);
                    Label::decode(place, &bytes).ok()
                };
                slot.places().into_iter().filter_map(label).map(|label| label.sequence).max()
            };
            let (Some(a), Some(b)) = (sequence(Slot::A), sequence(Slot::B)) else { continue };
            let newest = match a.cmp(&b) {
                Ordering::Greater => Slot::A,
                Ordering::Less => Slot::B,
                Ordering::Equal => Slot::BOTH[slot as usize % 2],
            };
            for place in newest.places() {
                let at = place.offset() + LABEL_OFFSET;
                let range = at..at + LABEL_SECTION_BYTES;
                device.set_atlas(FaultAtlas::none().with(FaultKind::Rot, range.clone(), 0));
                let _ = device.rot(range);
            }
            device.set_atlas(FaultAtlas::none());
            rotten += 1;
        }
        rotten
    }

    /// Rot a sector in index checkpoints, of one that counts or of older ones: in each part, or in one of them.
    pub(super) fn checkpoint_rot(&self, n: usize, pick: u64) -> bool {
        let device = self.flash(n);
        let end = device.size_bytes();
        let starts = (DATA_OFFSET..end).step_by(PART_BYTES);
        let is_part = |&at: &u64| device.pristine(at, 512).starts_with(&CHECKPOINT_MAGIC.to_le_bytes());
        let parts: Vec<u64> = starts.filter(is_part).collect();
        if parts.is_empty() || device.is_gone() {
            return false;
        }
        let mut prng = Prng::new(pick);
        let one = prng.chance(1, 2).then(|| parts[prng.below(parts.len() as u64) as usize]);
        // What a small cache has to say is at the beginning.
        let page = 4096 * prng.below(2);
        for part in parts.into_iter().filter(|part| one.is_none_or(|one| one == *part)) {
            let sectors = part + page..part + page + 512;
            device.set_atlas(FaultAtlas::none().with(FaultKind::Rot, sectors.clone(), 0));
            let _ = device.rot(sectors);
        }
        device.set_atlas(FaultAtlas::none());
        true
    }

    /// While nobody runs: what was armed strikes no more, sectors hold what they should, stalls are over. With `flash_stays_bad` what
    /// is wrong with sectors of flash is so still, but for those of labels; how many these are.
    pub(super) fn heal_all(&self, flash_stays_bad: bool) -> u64 {
        let mut bad = 0;
        for (units, stays_bad) in [(&self.disks, false), (&self.flashes, flash_stays_bad)] {
            for unit in lock(units).iter_mut() {
                unit.device.release();
                unit.device.set_atlas(FaultAtlas::none());
                unit.device.repair(0..if stays_bad { DATA_OFFSET } else { unit.device.size_bytes() });
                let sectors = unit.device.faulty_sectors() as u64;
                bad += sectors;
                unit.harmed = sectors > 0;
                unit.healing = None;
                if unit.health.faulty && !unit.device.is_gone() {
                    unit.health.faulty = false;
                    unit.health.count += 1;
                }
            }
        }
        bad
    }

    pub(super) fn keep_flash(&self, n: usize, renewals: Renewals) {
        let unit = &mut lock(&self.flashes)[n];
        unit.kept = Some(Kept { snapshot: unit.device.snapshot(), renewals });
    }

    pub(super) fn kept_flash(&self, n: usize) -> Option<Kept> {
        lock(&self.flashes)[n].kept.clone()
    }

    /// A device that was gone is there again, as it was.
    pub(super) fn flash_back(&self, n: usize) {
        lock(&self.flashes)[n].device.reappear();
    }

    pub(super) fn disk_back(&self, n: usize) {
        let unit = &mut lock(&self.disks)[n];
        if unit.device.is_gone() {
            unit.device.reappear();
            unit.health.faulty = false;
            unit.health.count += 1;
        }
    }
}

/// First page behind the header of the chunk that `bytes` begin with, and that header.
fn data_starts(bytes: &[u8], owner: &Owner) -> Option<(u32, format::ChunkHeader)> {
    // A header takes one true page, whose size the bytes do not tell: the smallest at which it decodes. With a larger
    // true page what follows up to its end is padding, and rot there harms nobody.
    for align in [1_u32, 2, 4] {
        let page = bytes.get(..align as usize * 4096)?;
        if let Ok((header, _)) = format::decode_chunk(page, owner) {
            return Some((align, header));
        }
    }
    None
}

/// A footer is written before the next chunk of its head; others close chunks meanwhile.
const CHUNKS_AFTER_FOOTER: u64 = 32;

const _: () = assert!(AU_BYTES.is_multiple_of(4096));
