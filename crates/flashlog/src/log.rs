//! The flash log of a cell: its rings, the order of changes, and the grid disks it serves.
//!
//! Made by a [`crate::LogReader`], which replays first what an earlier life left. Which records count for a disk, its owner
//! says by their life: the log begins a new one at each start, and whenever a disk is to be rid of what the rings hold of it.

use crate::counters::Skip;
use crate::format::Owner;
use crate::redo_disk::{RedoDisk, RedoDiskConfig};
use crate::ring::{Ring, RingTotals};
use crate::sabotage::Sabotage;
use device::sync::{Notify, lock};
use device::{Arena, Device, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Copies of a record where there are several flash devices: what a sync was told is durable must survive one of them (I3).
pub(crate) const COPIES: usize = 2;
/// Flash devices a log can be on.
pub const RINGS_MAX: usize = 64;
/// How the log works.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Memory for changes that the disks do not have durably, over all grid disks.
    pub unflushed_bytes_max: usize,
    /// A flash device slower than this is given up.
    pub hard_limit: Duration,
    /// A redo write slower than this is an outlier, see also [`FlashLog::set_outlier`].
    pub outlier: Duration,
    /// Failed flushes of a disk, whoever asked for them, are told by [`RedoDisk::disk_has_lost`] before they are answered.
    pub told_of_losses: bool,
    /// Hedging waits until a disk sync has taken longer than this share of the recent ones, in thousandths.
    pub hedge_per_mille: u64,
    /// Deliberate fault, for the checkers.
    pub sabotage: Option<Sabotage>,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            // What is kept takes whole pages: 2 s of a disk that stalls, at 15,000 commits a second.
            unflushed_bytes_max: 128 << 20,
            hard_limit: Duration::from_secs(2),
            outlier: Duration::from_millis(500),
            told_of_losses: false,
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

/// See the module.
pub struct FlashLog {
    pub(crate) config: LogConfig,
    pub(crate) world: World,
    pub(crate) rings: Vec<Arc<Ring>>,
    pub(crate) arena: Arena,
    /// Rung when something has become durably released, a ring has failed, or a disk pleads.
    pub(crate) changed: Arc<Notify>,
    outlier_ns: AtomicU64,
    life: AtomicU64,
    sequence: AtomicU64,
    /// Each holds the log.
    disks: Mutex<BTreeMap<u64, Weak<RedoDisk>>>,
    /// Grid disks with writes that wait for releases which do not come.
    pleas: Mutex<BTreeSet<u64>>,
}

impl FlashLog {
    /// Rings that have begun life `life`; sequences go on from `sequence`.
    pub(crate) fn new(
        config: LogConfig,
        rings: Vec<Arc<Ring>>,
        changed: Arc<Notify>,
        (life, sequence): (u64, u64),
        world: World,
    ) -> Arc<FlashLog> {
        for ring in rings.iter().filter(|ring| !ring.has_failed()) {
            ring.run();
        }
        let arena = Arena::new(config.unflushed_bytes_max);
        let outlier_ns = AtomicU64::new(config.outlier.as_nanos() as u64);
        Arc::new(FlashLog {
            config,
            world,
            rings,
            arena,
            changed,
            outlier_ns,
            life: AtomicU64::new(life),
            sequence: AtomicU64::new(sequence),
            disks: Mutex::default(),
            pleas: Mutex::default(),
        })
    }

    /// Serve a grid disk: what is returned stands for its device from here on.
    #[must_use]
    pub fn attach(self: &Arc<Self>, config: RedoDiskConfig) -> Arc<RedoDisk> {
        let id = config.id;
        let disk = RedoDisk::new(self.clone(), config);
        lock(&self.disks).insert(id, Arc::downgrade(&disk));
        disk
    }

    /// Know a grid disk no more. The disk has everything ([`RedoDisk::settle`]), or nobody wants it any more
    /// ([`RedoDisk::abandon`]).
    pub fn detach(&self, id: u64) {
        if let Some(disk) = lock(&self.disks).remove(&id).and_then(|disk| disk.upgrade()) {
            disk.stop();
        }
        lock(&self.pleas).remove(&id);
    }

    /// The grid disks it serves.
    #[must_use]
    pub fn disks(&self) -> Vec<Arc<RedoDisk>> {
        lock(&self.disks).values().filter_map(Weak::upgrade).collect()
    }

    /// Memory set aside for changes that the disks do not have durably, in bytes.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.arena.size_bytes() as u64
    }

    /// From when on a redo write is an outlier.
    pub fn set_outlier(&self, outlier: Duration) {
        self.outlier_ns.store(u64::try_from(outlier.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Memory or a ring is half full of what a flush of the disks would release.
    pub(crate) fn is_half_full(&self) -> bool {
        let ring_fills = |(used, all): (u32, u32)| used > all / 2;
        self.arena.free_bytes() < self.arena.size_bytes() / 2 || self.used_pages().into_iter().any(ring_fills)
    }

    pub(crate) fn is_outlier(&self, took_ns: u64) -> bool {
        took_ns > self.outlier_ns.load(Ordering::Relaxed)
    }

    /// End. Does not wait: [`RedoDisk::settle`] before does.
    pub fn stop(&self) {
        self.rings.iter().for_each(|ring| ring.stop());
        for disk in self.disks() {
            disk.stop();
        }
        self.changed.notify_all();
    }

    /// Nothing more is given to it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.rings.iter().all(|ring| ring.is_stopping())
    }

    /// The life that records are written in now.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life.load(Ordering::Acquire)
    }

    /// Begin another life: the one before. Records that are on their way may still be of it.
    pub fn next_life(&self) -> u64 {
        let before = self.life.fetch_add(1, Ordering::AcqRel);
        self.rings.iter().for_each(|ring| ring.begin_life(before + 1));
        before
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::AcqRel)
    }

    /// The rings a change of so many copies goes to.
    pub(crate) fn rings_for(&self, seq: u64, copies: usize) -> Result<Vec<(usize, Arc<Ring>)>, Skip> {
        let live: Vec<(usize, &Arc<Ring>)> = self.rings.iter().enumerate().filter(|(_, r)| !r.has_failed()).collect();
        if copies == 0 || live.len() < copies {
            return Err(Skip::NoFlashDisk);
        }
        let at = |k: usize| live[(seq as usize + k) % live.len()];
        Ok((0..copies).map(at).map(|(index, ring)| (index, ring.clone())).collect())
    }

    /// How many rings it has.
    #[must_use]
    pub fn ring_count(&self) -> usize {
        self.rings.len()
    }

    /// Why a ring was given up, by ring.
    #[must_use]
    pub fn failures(&self) -> Vec<Option<String>> {
        self.rings.iter().map(|ring| ring.failure()).collect()
    }

    /// Give a ring up: its device has lost something.
    pub fn fail_ring(&self, ring: usize, why: &str) {
        self.rings[ring].fail(why.to_owned());
    }

    /// The next ring that has failed and is not among `known`; none once the log has stopped.
    pub async fn next_failure(&self, known: &BTreeSet<usize>) -> Option<usize> {
        loop {
            let ticket = self.changed.ticket();
            let failed = |n: &usize| !known.contains(n) && self.rings[*n].has_failed();
            if let Some(ring) = (0..self.rings.len()).find(failed) {
                return Some(ring);
            }
            if self.rings.iter().all(|ring| ring.is_stopping()) {
                return None;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// The next grid disk with writes that wait for releases which do not come; none once the log has stopped.
    pub async fn next_plea(&self) -> Option<u64> {
        loop {
            let ticket = self.changed.ticket();
            if let Some(id) = lock(&self.pleas).pop_first() {
                return Some(id);
            }
            if self.rings.iter().all(|ring| ring.is_stopping() || ring.has_failed()) {
                return None;
            }
            self.changed.wait(ticket).await;
        }
    }

    pub(crate) fn plead(&self, id: u64) {
        if lock(&self.pleas).insert(id) {
            self.changed.notify_all();
        }
    }

    /// Pages that hold something not released, and all, by ring.
    #[must_use]
    pub fn used_pages(&self) -> Vec<(u32, u32)> {
        self.rings.iter().map(|ring| ring.used_pages()).collect()
    }

    /// Records of earlier lives that are kept for disks which could not be given them.
    #[must_use]
    pub fn kept_records(&self) -> u64 {
        self.rings.iter().map(|ring| ring.kept_records()).sum()
    }

    /// What the rings have done.
    #[must_use]
    pub fn totals(&self) -> RingTotals {
        let mut all = RingTotals::default();
        for ring in &self.rings {
            let one = ring.totals();
            all.writes += one.writes;
            all.bytes += one.bytes;
            all.write_ns += one.write_ns;
            all.errors += one.errors;
        }
        all
    }
}
