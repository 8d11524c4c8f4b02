//! The flash log of a cell: its rings, the order of changes, replay, and the grid disks it serves.
//!
//! Opened before any of its grid disks is served: what the rings hold is replayed, flushed and released first, so that a
//! second crash replays the same once more and no later write can be undone by it.

use crate::format::{Owner, RecordKind};
use crate::ranges::RangeMap;
use crate::recover::{self, Found, ReadFailed};
use crate::redo_disk::{RedoDisk, RedoDiskConfig};
use crate::ring::{Ring, RingConfig};
use crate::sabotage::Sabotage;
use device::sync::{Notify, lock};
use device::{Arena, Buf, Class, Device, Outcome, SharedBufs, World};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Copies of a record where there are several flash devices: what a sync was told is durable must survive one of them (I3).
pub(crate) const COPIES: usize = 2;
/// Flash devices a log can be on.
pub const RINGS_MAX: usize = 64;
/// Bytes of a replayed piece written at once.
const REPLAY_BYTES_MAX: u64 = 1 << 20;

/// How the log works.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Memory for changes that the disks do not have durably, over all grid disks.
    pub unflushed_bytes_max: usize,
    /// A flash device slower than this is given up.
    pub hard_limit: Duration,
    /// A redo write slower than this is an outlier.
    pub outlier: Duration,
    /// Hedging waits until a disk sync has taken longer than this share of the recent ones, in thousandths.
    pub hedge_per_mille: u64,
    /// Deliberate fault, for the checkers.
    pub sabotage: Option<Sabotage>,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            unflushed_bytes_max: 64 << 20,
            hard_limit: Duration::from_secs(2),
            outlier: Duration::from_millis(500),
            hedge_per_mille: 950,
            sabotage: None,
        }
    }
}

/// One flash area of the log.
pub struct RingDevice {
    /// The area, with at most one flush in flight.
    pub device: Device,
    /// Who writes there.
    pub owner: Owner,
}

/// A grid disk at opening: what is found of it is written there.
pub struct ReplayTarget {
    /// Its id.
    pub id: u64,
    /// Its device; none: it is in the catalog, but not here.
    pub device: Option<Device>,
    /// Bytes: nothing is replayed beyond.
    pub size_bytes: u64,
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that were not released.
    pub records: u64,
    /// Bytes written to the disks.
    pub bytes: u64,
    /// Rings that hold less than they should: acknowledged redo may be gone unless another has it.
    pub damaged_rings: Vec<usize>,
    /// Records of the damaged rings may be missing, and no whole ring has them.
    pub lost: bool,
}

/// The log cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// A ring cannot be read.
    #[error("flash log, ring {ring}: {why}\nhint: bring the flash device back, or drop the flash log with FORCE")]
    Read {
        /// Which.
        ring: usize,
        /// Why.
        why: ReadFailed,
    },
    /// A grid disk with redo to be replayed is not there.
    #[error(
        "the flash log holds redo of a grid disk (id {0}) whose cell disk is absent\nhint: bring the cell disk back and restart the cell"
    )]
    Absent(u64),
    /// A disk does not take what is replayed.
    #[error("the flash log cannot be replayed to a grid disk (id {id}): {outcome:?}")]
    Replay {
        /// Which.
        id: u64,
        /// What the disk said.
        outcome: Outcome,
    },
    /// A ring cannot be written.
    #[error("flash log, ring {ring}: {why}")]
    Begin {
        /// Which.
        ring: usize,
        /// Why.
        why: String,
    },
}

/// See the module.
pub struct FlashLog {
    pub(crate) config: LogConfig,
    pub(crate) world: World,
    pub(crate) rings: Vec<Arc<Ring>>,
    pub(crate) arena: Arena,
    pub(crate) changed: Arc<Notify>,
    sequence: AtomicU64,
    disks: Mutex<BTreeMap<u64, Arc<RedoDisk>>>,
}

impl FlashLog {
    /// Read the rings, replay what is not released, and begin a new life. Only flash of class [`Class::Durable`] may be given:
    /// other flash acknowledges nothing alone (I1).
    ///
    /// # Errors
    /// See [`LogError`]; nothing has been released then.
    pub async fn open(
        config: LogConfig,
        devices: Vec<RingDevice>,
        targets: &[ReplayTarget],
        world: World,
    ) -> Result<(Arc<FlashLog>, Replayed), LogError> {
        assert!(devices.len() <= RINGS_MAX, "as many rings as there are flash devices");
        assert!(devices.iter().all(|d| d.device.geometry().class == Class::Durable), "ephemeral flash logs nothing");
        let mut contents = Vec::new();
        for (ring, device) in devices.iter().enumerate() {
            let content = recover::read_ring(&device.device, &device.owner).await;
            contents.push(content.map_err(|why| LogError::Read { ring, why })?);
        }
        let mut replayed = Replayed::default();
        replayed.damaged_rings = (0..contents.len()).filter(|&ring| contents[ring].damaged).collect();
        // With two copies of each record, one ring may be damaged: the next one has what it had.
        replayed.lost =
            !replayed.damaged_rings.is_empty() && (contents.len() < COPIES || replayed.damaged_rings.len() > 1);
        let mut records: Vec<(usize, &Found)> = Vec::new();
        for (ring, content) in contents.iter().enumerate() {
            records.extend(content.records.iter().map(|found| (ring, found)));
        }
        replayed.records = records.len() as u64;
        if config.sabotage != Some(Sabotage::ReplayOverNewer) {
            records.sort_by_key(|(_, found)| found.sequence);
        }
        for target in targets {
            let mine: Vec<(usize, &Found)> =
                records.iter().filter(|(_, f)| f.grid_disk == target.id).copied().collect();
            let Some(disk) = &target.device else {
                if mine.is_empty() {
                    continue;
                }
                return Err(LogError::Absent(target.id));
            };
            // Without records too: what an earlier life left in the disk's cache is nobody's to flush any more.
            replayed.bytes += replay(target, disk, &devices, &mine).await?;
        }
        let life = contents.iter().map(|c| c.life).max().unwrap_or(0) + 1;
        let sequence = contents.iter().map(|c| c.sequence).max().unwrap_or(0) + 1;
        let changed = Arc::new(Notify::new());
        let mut rings = Vec::new();
        for (index, device) in devices.into_iter().enumerate() {
            let ring_config = RingConfig { device: device.device, owner: device.owner, hard_limit: config.hard_limit };
            let ring = Ring::new(index, ring_config, world.clone(), life, changed.clone());
            ring.begin().await.map_err(|why| LogError::Begin { ring: index, why })?;
            rings.push(ring);
        }
        for ring in &rings {
            world.spawn.spawn(Box::pin(ring.clone().run()));
        }
        let arena = Arena::new(config.unflushed_bytes_max);
        let log = FlashLog {
            config,
            world,
            rings,
            arena,
            changed,
            sequence: AtomicU64::new(sequence),
            disks: Mutex::default(),
        };
        Ok((Arc::new(log), replayed))
    }

    /// Serve a grid disk: what is returned stands for its device from here on.
    #[must_use]
    pub fn attach(self: &Arc<Self>, config: RedoDiskConfig) -> Arc<RedoDisk> {
        let id = config.id;
        let disk = RedoDisk::new(self.clone(), config);
        lock(&self.disks).insert(id, disk.clone());
        disk
    }

    /// The grid disks it serves.
    #[must_use]
    pub fn disks(&self) -> Vec<Arc<RedoDisk>> {
        lock(&self.disks).values().cloned().collect()
    }

    /// Give the disks everything and release it for good. False: a disk does not take what is saved, or a ring fails.
    pub async fn drain(&self) -> bool {
        let mut good = true;
        for disk in self.disks() {
            good &= disk.drain().await;
        }
        good
    }

    /// End. Does not wait: [`FlashLog::drain`] before does.
    pub fn stop(&self) {
        self.rings.iter().for_each(|ring| ring.stop());
        for disk in self.disks() {
            disk.stop();
        }
        self.changed.notify_all();
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::AcqRel)
    }

    /// The rings a change goes to.
    pub(crate) fn rings_for(&self, seq: u64) -> Vec<(usize, Arc<Ring>)> {
        let live: Vec<(usize, &Arc<Ring>)> = self.rings.iter().enumerate().filter(|(_, r)| !r.has_failed()).collect();
        let copies = live.len().min(COPIES);
        let at = |k: usize| live[(seq as usize + k) % live.len()];
        (0..copies).map(at).map(|(index, ring)| (index, ring.clone())).collect()
    }

    /// Why a ring was given up, by ring.
    #[must_use]
    pub fn failures(&self) -> Vec<Option<String>> {
        self.rings.iter().map(|ring| ring.failure()).collect()
    }

    /// Pages that hold something not released, and all, by ring.
    #[must_use]
    pub fn used_pages(&self) -> Vec<(u32, u32)> {
        self.rings.iter().map(|ring| ring.used_pages()).collect()
    }

    /// The failure of a ring is durable in the labels of the disks: its records count no more.
    pub fn confirm_expelled(&self, ring: usize) {
        for disk in self.disks() {
            disk.ring_is_void(ring);
        }
    }
}

/// Write what is newest of each byte, in disk order, and flush. The bytes written.
async fn replay(
    target: &ReplayTarget,
    disk: &Device,
    rings: &[RingDevice],
    records: &[(usize, &Found)],
) -> Result<u64, LogError> {
    let failed = |outcome| LogError::Replay { id: target.id, outcome };
    let mut newest: RangeMap<usize> = RangeMap::new();
    for (n, (_, found)) in records.iter().enumerate() {
        let end = (found.offset + found.len).min(target.size_bytes);
        if found.offset < end {
            let _ = newest.insert(found.offset..end, n);
        }
    }
    let unit = disk.geometry().logical_bytes as usize;
    let mut bytes = 0;
    for (range, n) in newest.iter_from(0) {
        let (ring, found) = records[n];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(REPLAY_BYTES_MAX);
            let data: SharedBufs = match found.kind {
                RecordKind::Data => {
                    let read = recover::read_data(&rings[ring].device, found, at - found.offset, len as usize).await;
                    let data = read.map_err(|why| LogError::Read { ring, why })?;
                    Buf::padded(&data, unit).freeze().into()
                }
                RecordKind::Zeroes | RecordKind::Unmapped => Buf::zeroed(len as usize).freeze().into(),
            };
            let outcome = disk.write(at, data, false).await.outcome;
            if outcome != Outcome::Done {
                return Err(failed(outcome));
            }
            at += len;
            bytes += len;
        }
    }
    match disk.flush().await.outcome {
        Outcome::Done => Ok(bytes),
        outcome => Err(failed(outcome)),
    }
}
