//! One arm of an experiment: sessions that commit, on a disk, on flash, or on a disk behind the flash log of the cell.
//!
//! The engine is the cell's own `flashlog`, in virtual time; request path and network, which take no virtual time, are left out. What
//! running a race costs the processor is therefore not in it: that is for the bench. Same seed, same figures.

use super::machine::{reached, seen};
use crate::devices::{DeviceModel, Medium};
use crate::model::quantiles::exponential;
use crate::redo::Samples;
use device::buf::Buf;
use device::layers::FlushGate;
use device::sync::{lock, one_shot};
use device::{Bufs, Clock, Device, Outcome, Prng, SharedBufs, World};
use flashlog::{LogConfig, LogReader, Mode, Owner, RedoDiskConfig, RingDevice, Skip};
use sim::executor::{Executor, ExecutorConfig, Stuck};
use sim::plain::process_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The ring: half of what the vendor has over all flash of a cell.
pub(super) const RING_BYTES: u64 = 256 << 20;
/// The redo log is written round and round.
pub(super) const LOG_BYTES: u64 = 256 << 20;
/// A redo write slower than this is an outlier (S1).
const OUTLIER_PS: i64 = 500_000_000_000;
/// A nanosecond in picoseconds.
const NS_PS: i64 = 1_000;

/// What takes the commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Configuration {
    Disk,
    Flash,
    Log(Mode),
}

impl Configuration {
    pub(super) fn name(self) -> String {
        match self {
            Configuration::Disk => "disk alone".to_owned(),
            Configuration::Flash => "flash alone".to_owned(),
            Configuration::Log(mode) => format!("flash log, {}", mode.name()),
        }
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub(super) struct Arm {
    pub(super) seed: u64,
    pub(super) configuration: Configuration,
    pub(super) disk: Arc<DeviceModel>,
    pub(super) flash: Arc<DeviceModel>,
    pub(super) sessions: usize,
    /// Over all sessions.
    pub(super) syncs: u64,
    /// Bytes of redo of each.
    pub(super) record_bytes: u64,
    /// From the beginning of one to the beginning of the next.
    pub(super) apart_bytes: u64,
    /// Between two commits of a session, in the mean.
    pub(super) think: Duration,
    /// What a served cell takes beside its devices counts, as it is measured as well.
    pub(super) is_served: bool,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcomes {
    /// Redo times.
    pub(super) samples: Samples,
    /// Virtual time from the first commit to the last.
    pub(super) elapsed: Duration,
    /// Of the flash log; none without one.
    pub(super) log: Option<LogFigures>,
    /// Writes to the flash that did not fill its pages.
    pub(super) parts_of_pages: u64,
}

/// Its counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogFigures {
    pub(super) redo_writes: u64,
    pub(super) disk_first: u64,
    pub(super) flash_first: u64,
    pub(super) skips: u64,
    pub(super) flash_legs: u64,
    pub(super) prevented: u64,
    pub(super) actual: u64,
}

impl LogFigures {
    /// Every redo write is counted once.
    pub(super) fn adds_up(&self) -> bool {
        self.disk_first + self.flash_first + self.skips == self.redo_writes
    }
}

struct Sessions {
    device: Device,
    clock: Arc<dyn Clock>,
    data: SharedBufs,
    next_record: AtomicU64,
    samples: Mutex<Samples>,
    /// The answer to the first commit that failed.
    refused: Mutex<Option<String>>,
    apart_bytes: u64,
    think: Duration,
}

impl Sessions {
    async fn session(self: Arc<Self>, mut prng: Prng, commits: u64) {
        for _ in 0..commits {
            let think = exponential(&mut prng, self.think);
            self.clock.sleep(Duration::from_nanos(think)).await;
            let record = self.next_record.fetch_add(1, Ordering::Relaxed);
            let offset = record * self.apart_bytes % LOG_BYTES;
            let begun = self.clock.now();
            let written = self.device.write(offset, self.data.clone(), false).await.outcome;
            let flushed = self.device.flush().await.outcome;
            if !(written == Outcome::Done && flushed == Outcome::Done) {
                let told = format!("a commit was refused: write {written:?}, flush {flushed:?}");
                lock(&self.refused).get_or_insert(told);
                return;
            }
            let took = self.clock.now().ns_since(begun);
            lock(&self.samples).push(took as i64 * NS_PS);
        }
    }
}

/// The sessions of an arm commit on `device`: what each commit took, and all of them.
///
/// # Errors
/// The device refuses.
pub(super) async fn commits(
    device: Device,
    arm: &Arm,
    prng: Prng,
    world: &World,
) -> Result<(Samples, Duration), String> {
    let begun = world.clock.now();
    let record = vec![0xa5; arm.record_bytes as usize];
    let sessions = Arc::new(Sessions {
        device,
        clock: world.clock.clone(),
        data: Bufs::from(Buf::padded(&record, 512)).freeze(),
        next_record: AtomicU64::new(0),
        samples: Mutex::new(Samples::new(OUTLIER_PS)),
        refused: Mutex::default(),
        apart_bytes: arm.apart_bytes,
        think: arm.think,
    });
    let mut ends = Vec::new();
    for n in 0..arm.sessions {
        let (sender, receiver) = one_shot();
        let commits = arm.syncs / arm.sessions as u64;
        let work = sessions.clone().session(prng.fork(&format!("session {n}")), commits);
        world.spawn.spawn(Box::pin(async move {
            work.await;
            sender.send(());
        }));
        ends.push(receiver);
    }
    for end in ends {
        let _ = end.await;
    }
    let elapsed = Duration::from_nanos(world.clock.now().ns_since(begun));
    if let Some(told) = lock(&sessions.refused).take() {
        return Err(told);
    }
    let mut samples = std::mem::replace(&mut *lock(&sessions.samples), Samples::new(OUTLIER_PS));
    samples.finish();
    Ok((samples, elapsed))
}

/// Run it.
///
/// # Errors
/// It does not end.
pub(super) fn run(arm: Arm) -> Result<Outcomes, Stuck> {
    let plain = ExecutorConfig::plain(arm.seed);
    let limits = ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain };
    let executor = Executor::new(limits);
    let (_process, world) = process_of(&executor);
    // One stream for each medium, whatever else there is: arms differ by what they do, not by luck.
    let disk = arm.disk.modelled(LOG_BYTES, false, &world, executor.prng("disk"));
    let flash_bytes = if arm.configuration == Configuration::Flash { LOG_BYTES } else { RING_BYTES };
    let Medium { device: flash, content: flash_content } =
        arm.flash.modelled(flash_bytes, false, &world, executor.prng("flash"));
    let disk: Device = FlushGate::new(seen(disk.device, arm.is_served, &world), world.spawn.clone());
    let flash: Device = FlushGate::new(seen(flash, arm.is_served, &world), world.spawn.clone());
    let prng = executor.prng("sessions");
    executor.run(async {
        let (device, redo): (Device, _) = match arm.configuration {
            Configuration::Disk => (disk, None),
            Configuration::Flash => (flash, None),
            Configuration::Log(mode) => {
                let owner = Owner { cell_id: 1, device_id: 1, log_id: 1 };
                let reader = LogReader::read(vec![RingDevice { device: flash, owner }], None).await;
                let log = reader.begin(LogConfig::default(), 1, &[0], |_, _| false, world.clone()).await;
                let redo = log.attach(RedoDiskConfig {
                    id: 1,
                    device: disk,
                    mode,
                    barred: None,
                    void: vec![false],
                    is_flushed: true,
                    counters: Arc::default(),
                });
                (redo.clone(), Some((log, redo)))
            }
        };
        let device = reached(device, arm.is_served, false, &world);
        let (samples, elapsed) = match commits(device, &arm, prng, &world).await {
            Ok(done) => done,
            Err(told) => panic!("no device fails here: {told}"),
        };
        let log = match redo {
            None => None,
            Some((log, redo)) => {
                // What the disk has still to do counts for what flash has prevented.
                redo.settle().await;
                log.stop();
                let counters = &redo.counters;
                Some(LogFigures {
                    redo_writes: counters.redo_writes.get(),
                    disk_first: counters.disk_first.get(),
                    flash_first: counters.flash_first.get(),
                    skips: Skip::ALL.iter().map(|why| counters.skipped(*why)).sum(),
                    flash_legs: counters.flash_writes.get(),
                    prevented: counters.prevented_outliers.get(),
                    actual: counters.actual_outliers.get(),
                })
            }
        };
        Outcomes { samples, elapsed, log, parts_of_pages: flash_content.parts_of_pages() }
    })
}
