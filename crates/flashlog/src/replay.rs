//! What an earlier life of the flash log left: read, replayed to the disks, and the log's next life begun.
//!
//! Nothing is served before: what the rings hold of a disk is written there and flushed, so that no later write can be undone
//! by it and a second crash replays the same once more. Who may be believed is the caller's business: it names, for each grid
//! disk, rings and lives. What could not be replayed stays in the rings.

use crate::log::{FlashLog, LogConfig, RINGS_MAX, RingDevice};
use crate::ranges::RangeMap;
use crate::recover::{self, Content, Found, ReadFailed};
use crate::ring::{Kept, Ring, RingConfig};
use crate::sabotage::Sabotage;
use device::sync::Notify;
use device::{Class, Device, Outcome, World};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

mod give;

/// A grid disk to be given what the rings hold of it.
pub struct ReplayTarget {
    /// Its id.
    pub id: u64,
    /// Its device.
    pub device: Device,
    /// Bytes: nothing is replayed beyond.
    pub size_bytes: u64,
    /// Rings that are believed.
    pub rings: Vec<usize>,
    /// Lives whose records count.
    pub lives: RangeInclusive<u64>,
}

/// What was replayed to a grid disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records found, copies included.
    pub records: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// A grid disk could not be given what the rings hold of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A record cannot be read, from no ring.
    #[error("flash log, ring {ring}: {why}")]
    Read {
        /// Which.
        ring: usize,
        /// Why.
        why: ReadFailed,
    },
    /// The disk does not take it.
    #[error("the disk does not take what the flash log holds of it: {0:?}")]
    Disk(Outcome),
}

/// How a ring was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingFound {
    /// All that was durable there is there.
    Whole,
    /// Something that had been durable is not there, or is rotten.
    Damaged,
    /// The flash did not answer.
    Unreadable(ReadFailed),
}

/// See the module.
pub struct LogReader {
    rings: Vec<(RingDevice, Result<Content, ReadFailed>)>,
    sabotage: Option<Sabotage>,
}

impl LogReader {
    /// Read the rings. Only flash of class [`Class::Durable`] may be given: other flash acknowledges nothing alone (I1).
    pub async fn read(devices: Vec<RingDevice>, sabotage: Option<Sabotage>) -> LogReader {
        assert!(devices.len() <= RINGS_MAX, "as many rings as there are flash devices");
        assert!(devices.iter().all(|d| d.device.geometry().class == Class::Durable), "ephemeral flash logs nothing");
        let contents = join_all(devices.iter().map(|device| recover::read_ring(&device.device, &device.owner))).await;
        LogReader { rings: devices.into_iter().zip(contents).collect(), sabotage }
    }

    /// How a ring was found.
    #[must_use]
    pub fn found(&self, ring: usize) -> RingFound {
        match &self.rings[ring].1 {
            Ok(content) if content.damaged => RingFound::Damaged,
            Ok(_) => RingFound::Whole,
            Err(why) => RingFound::Unreadable(*why),
        }
    }

    fn contents(&self) -> impl Iterator<Item = &Content> {
        self.rings.iter().filter_map(|(_, content)| content.as_ref().ok())
    }

    /// The last life that any ring tells of; 0: none has begun.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.contents().map(|content| content.life).max().unwrap_or(0)
    }

    /// Give a grid disk what is newest of each byte, in disk order, and flush it. Without records too: what an earlier life left
    /// in the disk's cache is nobody's to flush any more.
    ///
    /// # Errors
    /// See [`ReplayError`]; it may be tried again.
    pub async fn replay(&self, target: &ReplayTarget) -> Result<Replayed, ReplayError> {
        let mut records: Vec<(usize, &Found)> = Vec::new();
        for &ring in &target.rings {
            let Ok(content) = &self.rings[ring].1 else { continue };
            let mine = |found: &&Found| found.grid_disk == target.id && target.lives.contains(&found.life());
            records.extend(content.records.iter().filter(mine).map(|found| (ring, found)));
        }
        // Not by life: an older change may have come to the rings later, and in a later one.
        records.sort_by_key(|(_, found)| found.sequence);
        if self.sabotage == Some(Sabotage::ReplayOverNewer) {
            records.reverse();
        }
        let mut newest: RangeMap<usize> = RangeMap::new();
        for (n, (_, found)) in records.iter().enumerate() {
            let end = (found.offset + found.len).min(target.size_bytes);
            if found.offset < end {
                let _ = newest.insert(found.offset..end, n);
            }
        }
        let bytes = self.give(&records, newest.iter_from(0), &target.device).await?;
        match target.device.flush().await.outcome {
            Outcome::Done => Ok(Replayed { records: records.len() as u64, bytes }),
            outcome => Err(ReplayError::Disk(outcome)),
        }
    }

    /// The data of a record, from any copy of it.
    async fn data_of(&self, records: &[(usize, &Found)], n: usize) -> Result<Vec<u8>, ReplayError> {
        let sequence = records[n].1.sequence;
        let copies = records.iter().filter(|(_, found)| found.sequence == sequence);
        let mut failed = None;
        for (ring, found) in std::iter::once(&records[n]).chain(copies) {
            match recover::read_data(&self.rings[*ring].0.device, found).await {
                Ok(data) => return Ok(data),
                Err(why) => failed = Some(ReplayError::Read { ring: *ring, why }),
            }
        }
        Err(failed.unwrap_or_else(|| unreachable!("the record itself was tried")))
    }

    /// Begin life `life`, higher than [`LogReader::life`], on the rings named: everything there but what `keep` says, of grid
    /// disk and life, counts no more. Other rings are left as they are. A ring that cannot be written has failed from the start.
    pub async fn begin(
        self,
        config: LogConfig,
        life: u64,
        serving: &[usize],
        keep: impl Fn(u64, u64) -> bool,
        world: World,
    ) -> Arc<FlashLog> {
        let sequence = self.contents().map(|content| content.sequence).max().unwrap_or(0) + 1;
        let changed = Arc::new(Notify::new());
        let mut rings = Vec::new();
        let devices: BTreeMap<usize, (RingDevice, Content)> = self
            .rings
            .into_iter()
            .enumerate()
            .filter_map(|(ring, (device, content))| Some((ring, (device, content.ok()?))))
            .filter(|(ring, _)| serving.contains(ring))
            .collect();
        assert_eq!(devices.len(), serving.len(), "only what could be read serves");
        for (_, (device, content)) in devices {
            let ring_config = RingConfig { device: device.device, owner: device.owner, hard_limit: config.hard_limit };
            let kept = kept(&content, &keep);
            let ring = Ring::new(rings.len(), ring_config, world.clone(), life, &kept, changed.clone());
            // What has failed is told as such.
            let _ = ring.begin().await;
            rings.push(ring);
        }
        FlashLog::new(config, rings, changed, (life, sequence), world)
    }
}

/// The batches from the first with something to keep on, and how much each holds.
fn kept(content: &Content, keep: &impl Fn(u64, u64) -> bool) -> Kept {
    let mut live: BTreeMap<u64, u32> = BTreeMap::new();
    for found in content.records.iter().filter(|found| keep(found.grid_disk, found.life())) {
        *live.entry(found.batch).or_default() += 1;
    }
    let Some((&first, _)) = live.first_key_value() else { return Kept::default() };
    let batches = content.batches.iter().filter(|batch| batch.number >= first);
    Kept { batches: batches.map(|batch| (*batch, live.get(&batch.number).copied().unwrap_or(0))).collect() }
}
