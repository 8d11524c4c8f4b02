//! What one seed does: the machine, the cell, and the list of steps. Everything is drawn before the run begins, so a run
//! is decided by its seed and its list, and a failing list can be made shorter.
//!
//! Steps name grid disks and devices by place, taken modulo what is there when the step's turn comes: a list stays
//! meaningful when steps are left out of it. Never looks at a cell.

mod far;
mod iorm;
mod members;
mod pins;
mod redo;
mod scenes;
mod steps;
mod sweeps;

pub(super) use far::FarSetup;
pub(super) use redo::RedoSetup;
use steps::Steps;

use crate::disk::DiskConfig;
use celldisk::layout::DATA_OFFSET;
use celldisk::{FillStrategy, FlashLogMode};
use device::{Class, FailKind, Prng};
use flashcache::{BusyTuning, Endurance, MemoryNeed};
use std::time::Duration;

use super::Case;
use crate::disk::{FLUSH_NS_MIN, FaultKind};

/// Allocation unit of every device of the harness: the smallest, so that small devices have many.
pub(super) const AU_BYTES: u64 = celldisk::layout::AU_BYTES_MIN;
/// Client operations of a plan unless more are asked for: DESIGN §8 wants at least 2,000.
pub const OPERATIONS_MIN: u64 = 2_000;
/// Crashes of a plan: DESIGN §8 asks for at least 3.
pub(super) const CRASHES_MIN: u64 = 3;

/// A grid disk at the start.
#[derive(Clone, Debug)]
pub(super) struct GridDiskSetup {
    /// Place of its cell disk.
    pub(super) home: usize,
    pub(super) size_bytes: u64,
    pub(super) caching: Caching,
    /// Its purpose is redo, used like this.
    pub(super) redo: Option<FlashLogMode>,
}

/// How a grid disk is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Caching {
    pub(super) mode: celldisk::CachingMode,
    pub(super) policy: celldisk::CachingPolicy,
}

impl Caching {
    /// As redo may be.
    fn of_redo(self) -> Caching {
        use celldisk::CachingMode;
        let mode = match self.mode {
            CachingMode::WriteBack | CachingMode::WriteBackOrdered => CachingMode::WriteThrough,
            mode => mode,
        };
        Caching { mode, ..self }
    }

    /// In a world of write-back, write-through becomes that, and write-around write-through. In one of flush order, it
    /// becomes that, and write-around mostly plain write-back.
    fn in_world(self, write_back: bool, ordered: bool) -> Caching {
        use celldisk::CachingMode;
        let mode = match self.mode {
            CachingMode::WriteThrough if write_back && ordered => CachingMode::WriteBackOrdered,
            CachingMode::WriteThrough if write_back => CachingMode::WriteBack,
            CachingMode::WriteAround if ordered && self.policy == celldisk::CachingPolicy::Default => {
                CachingMode::WriteBack
            }
            CachingMode::WriteAround if write_back => CachingMode::WriteThrough,
            mode => mode,
        };
        Caching { mode, ..self }
    }
}

/// The machine and the cell.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) disks: Vec<DiskConfig>,
    pub(super) flashes: Vec<DiskConfig>,
    /// How many of them, at the end, no cache is created on.
    pub(super) spares: usize,
    /// How often the lists of hot blocks are made anew.
    pub(super) hot_every: Duration,
    /// How long grid disks wait for the index of the flash cache at an open.
    pub(super) index_wait: Option<Duration>,
    pub(super) stamps_every: Option<Duration>,
    pub(super) grid_disks: Vec<GridDiskSetup>,
    /// All of the flash cache, over all devices.
    pub(super) flash_cache_bytes: u64,
    pub(super) block_bytes: u32,
    pub(super) segment_bytes: u32,
    /// So many of them that the cache keeps what it writes apart by its lifetime.
    pub(super) many_segments: bool,
    pub(super) staging_bytes: usize,
    pub(super) arena_bytes: usize,
    pub(super) soft_limit: Duration,
    pub(super) hard_limit: Duration,
    pub(super) chunk_age: Duration,
    pub(super) settle_every: Duration,
    pub(super) accept_diverged: bool,
    /// A flash log, with grid disks of purpose redo.
    pub(super) redo: Option<RedoSetup>,
    /// Grid disks that would be in write-through are in write-back, over durable flash devices.
    pub(super) write_back: bool,
    /// Write-back is in flush order.
    pub(super) ordered: bool,
    /// Of each journal.
    pub(super) journal_bytes: u64,
    /// The most the feeder writes, a second.
    pub(super) feed_rate_bytes: u64,
    /// In write-back over two flash devices.
    pub(super) mirrored: bool,
    /// The only flash device that comes to harm.
    pub(super) victim: Option<usize>,
    pub(super) endurance: Option<Endurance>,
    pub(super) keep_unused: Duration,
    /// The most memory of the flash cache's index.
    pub(super) index_bytes: Option<u64>,
    /// Beyond it requests in a row are a scan.
    pub(super) sequential_cutoff_bytes: u64,
    /// When flash counts as busier than the disk.
    pub(super) busy: Option<BusyTuning>,
    /// Client connections, and requests each has in flight.
    pub(super) clients: u64,
    pub(super) depth: u64,
    /// Virtual threads.
    pub(super) threads: usize,
    /// Clients are on other hosts.
    pub(super) far: Option<FarSetup>,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write {
        fua: bool,
    },
    Zeroes {
        fua: bool,
        no_hole: bool,
        fast: bool,
    },
    Trim {
        fua: bool,
    },
    Flush,
    Prefetch,
    /// A buffer cache lets go of a block it has read before, and offers it.
    Offer,
    Status,
    /// A read or write that reaches beyond the end.
    BeyondEnd {
        write: bool,
    },
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub(super) disk: u64,
    pub(super) verb: Verb,
    /// Taken modulo the grid disk's size.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Memory that is aligned to nothing.
    pub(super) odd_memory: bool,
    /// The client's pause before it.
    pub(super) think_ns: u64,
}

/// A command of the administrator.
#[derive(Clone, Copy, Debug)]
pub(super) enum Admin {
    Create {
        home: u64,
        size_bytes: u64,
        caching: Caching,
        redo: Option<FlashLogMode>,
    },
    Drop {
        disk: u64,
    },
    Resize {
        disk: u64,
        size_bytes: u64,
    },
    Rename {
        disk: u64,
    },
    SetCaching {
        disk: u64,
        caching: Caching,
    },
    SetFill {
        disk: u64,
        fill: FillStrategy,
    },
    /// To none and back: what was cached is read from disk again.
    Evict {
        disk: u64,
    },
    /// A range gets a caching policy of its own.
    Pin {
        disk: u64,
        offset: u64,
        len: u64,
        policy: Option<celldisk::CachingPolicy>,
    },
    /// A device has grown, and the cell looks for that.
    Grow {
        device: u64,
        by_bytes: u64,
    },
    /// An I/O resource plan is stated.
    Iorm {
        pick: u64,
    },
    /// FLUSH of one grid disk, then perhaps CANCEL FLUSH.
    Flush {
        disk: u64,
        cancel: bool,
    },
    /// An offline grid disk goes on from its disk alone.
    AcceptStale {
        disk: u64,
    },
    DropFlashCache,
    /// Some of the flash devices are the members of the flash cache from then on; perhaps cancelled under way.
    ChangeFlash {
        pick: u64,
        cancel: bool,
    },
    /// A blank flash device becomes a new cell disk and a member, in the place of those that are missing or have failed.
    ReplaceFlash {
        pick: u64,
    },
    CreateFlashCache {
        all: bool,
        size_bytes: u64,
    },
    CreateFlashLog,
    DropFlashLog {
        force: bool,
    },
    /// How a grid disk uses the flash log; none: its purpose is data.
    SetRedo {
        disk: u64,
        redo: Option<FlashLogMode>,
    },
}

/// Something that befalls the machine while it runs.
#[derive(Clone, Debug)]
pub(super) enum Mishap {
    /// The next matching requests of a flash device go wrong.
    FlashFault {
        flash: u64,
        kind: FaultKind,
        times: u32,
        fail: FailKind,
    },
    /// A sector of cached data changes.
    FlashRot {
        flash: u64,
        pick: u64,
    },
    FlashStall {
        flash: u64,
        time: Duration,
    },
    FlashVanishes {
        flash: u64,
    },
    FlashSnapshot {
        flash: u64,
    },
    /// The next requests to a disk's data go wrong; healed by [`Mishap::DiskHealed`] or the next restart.
    DiskFault {
        disk: u64,
        kind: FaultKind,
        times: u32,
    },
    DiskHealed {
        disk: u64,
    },
    DiskStall {
        disk: u64,
        time: Duration,
    },
    DiskVanishes {
        disk: u64,
    },
    DiskSnapshot {
        disk: u64,
    },
    /// No room is left below a flash device for so long (a sparse image on a full file system).
    FlashFull {
        flash: u64,
        time: Duration,
    },
    DiskFull {
        disk: u64,
        time: Duration,
    },
    /// Somebody sets the wall clock of the host.
    ClockStep {
        by: Duration,
        forward: bool,
    },
    /// Nothing of the cell's process runs for so long, and its clocks stand still.
    Pause {
        time: Duration,
        /// Its whole host stands still: devices answer a moment after it.
        host: bool,
    },
    /// Nothing passes between the cell and one of the hosts of its clients for so long.
    Partition {
        host: u64,
        time: Duration,
        /// Their connections break meanwhile.
        breaks: bool,
    },
    /// The host of a grid disk dies, and comes back when it is asked for something.
    HostDies {
        host: u64,
    },
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    PowerCut,
    /// One device loses its power, and the process dies with it.
    PowerCutOf(u64),
    Kill,
    CleanStop,
}

/// What happens while no process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    FlashAbsent {
        flash: u64,
    },
    AllFlashAbsent,
    FlashBack {
        flash: u64,
    },
    FlashBlank {
        flash: u64,
    },
    FlashStale {
        flash: u64,
    },
    FlashSwap {
        flash: u64,
    },
    /// The last disk, if there are several.
    DiskAbsent,
    DiskBack,
    DiskStale {
        disk: u64,
    },
    /// Requests of the next life go wrong, from its opening on, so many of a million.
    FlashFault {
        flash: u64,
        kind: FaultKind,
        ppm: u32,
    },
    /// A device is larger than it was.
    DeviceGrows {
        device: u64,
        by_bytes: u64,
    },
    /// What is wrong with sectors of flash outlives the process.
    FlashStaysBad,
    /// Both copies of the newest label rot on every device; the other slot must say the same.
    LabelRot {
        slot: u64,
    },
    /// A sector of the index checkpoint of a clean stop rots, if there is one: the log says the same.
    CheckpointRot {
        flash: u64,
        pick: u64,
    },
}

/// How much is read back after a restart, before clients go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Everything { step_bytes: u64 },
    Some { ranges: u64 },
    Nothing,
}

/// The end of a life and the beginning of the next.
#[derive(Clone, Debug)]
pub(super) struct Crash {
    pub(super) end: End,
    /// From the step's turn to the moment; requests go on meanwhile.
    pub(super) delay_ns: u64,
    pub(super) between: Vec<Between>,
    /// Openings that end before they are done.
    pub(super) broken_opens: Vec<(End, u64)>,
    pub(super) pass: Pass,
    /// Then everything cached is dropped and read again.
    pub(super) evict: bool,
    /// The moment is in the middle of a flush of a device.
    pub(super) in_flush: Option<InFlush>,
}

/// Which flush a life ends in. A life whose devices flush too seldom ends without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InFlush {
    /// Of a flash device, else of a disk.
    pub(super) flash: bool,
    /// Flushes of such devices that begin before it.
    pub(super) earlier: u64,
    /// From the beginning of the flush to the end of the life: no flush of a device is shorter.
    pub(super) after_ns: u64,
}

/// One step.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Io(Io),
    Admin(Admin),
    Mishap(Mishap),
    Crash(Crash),
    /// Nobody goes on until all earlier steps are done and so much time has passed.
    Rest(Duration),
}

/// A whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) setup: Setup,
    pub(super) steps: Vec<Step>,
}

impl Plan {
    /// The plan of a case.
    pub(super) fn of_case(Case { seed, operations, sabotage }: Case) -> Plan {
        let mut prng = Prng::new(seed).fork("harness.plan");
        let mut setup = Setup::draw(&mut prng);
        let mut steps = Steps::draw(&setup, operations, &mut prng);
        redo::add(&mut steps, &mut setup, &mut prng.fork("redo"));
        pins::add(&mut steps, &setup, &mut prng.fork("pins"));
        rot_checkpoints(&mut steps, &mut prng.fork("checkpoints"));
        members::add(&mut steps, &setup, &mut prng.fork("members"));
        members::grow(&mut steps, &mut prng.fork("growth"));
        iorm::add(&mut steps, &mut prng.fork("iorm"));
        stay_bad(&mut steps, &mut prng.fork("bad sectors"));
        cut_one(&mut steps, &mut prng.fork("one device"));
        pause(&mut steps, &mut prng.fork("pauses"));
        fill_up(&mut steps, &setup, &mut prng.fork("room"));
        step_clocks(&mut steps, &mut prng.fork("clock steps"));
        end_in_flushes(&mut steps, &setup, &mut prng.fork("flushes"));
        sweeps::add(&mut steps, &setup, &mut prng.fork("sweeps"));
        let mut plan = Plan { seed, setup, steps };
        let far = sabotage.is_some_and(super::Canary::is_far);
        far::fit(&mut plan, far, &mut prng.fork("far"));
        plan
    }
}

/// After one clean stop in two. Drawn apart from everything else.
fn rot_checkpoints(steps: &mut [Step], prng: &mut Prng) {
    for step in steps {
        if let Step::Crash(crash) = step
            && crash.end == End::CleanStop
            && prng.chance(1, 2)
        {
            crash.between.push(Between::CheckpointRot { flash: prng.below(4), pick: prng.next_u64() });
        }
    }
}

/// At one start in three sectors of flash that have gone bad are bad still. Drawn apart from everything else.
fn stay_bad(steps: &mut [Step], prng: &mut Prng) {
    for step in steps {
        if let Step::Crash(crash) = step
            && prng.chance(1, 3)
        {
            crash.between.push(Between::FlashStaysBad);
        }
    }
}

/// One power cut or death in eight is the power of one device alone. Drawn apart from everything else.
fn cut_one(steps: &mut [Step], prng: &mut Prng) {
    for step in steps {
        if let Step::Crash(crash) = step
            && crash.end != End::CleanStop
            && prng.chance(1, 8)
        {
            crash.end = End::PowerCutOf(prng.next_u64());
        }
    }
}

/// In one world of four the process is paused some times: for a moment, or for longer than any time-out. Drawn apart from everything else.
fn pause(steps: &mut Vec<Step>, prng: &mut Prng) {
    if !prng.chance(1, 4) {
        return;
    }
    for _ in 0..prng.between(1, 4) {
        let time = Duration::from_millis(pick(prng, &[20, 300, 3_000, 30_000, 90_000]) + prng.below(20));
        let at = prng.below(steps.len() as u64 + 1) as usize;
        steps.insert(at, Step::Mishap(Mishap::Pause { time, host: prng.chance(1, 2) }));
    }
}

/// In one world of four there is no room below a device some times: below flash for less than it is waited
/// for in all. Drawn apart from everything else.
fn fill_up(steps: &mut Vec<Step>, setup: &Setup, prng: &mut Prng) {
    if !prng.chance(1, 4) {
        return;
    }
    for _ in 0..prng.between(1, 4) {
        let mishap = if prng.chance(2, 3) {
            Mishap::FlashFull { flash: prng.below(64), time: setup.hard_limit / pick(prng, &[50, 20, 8]) }
        } else {
            Mishap::DiskFull { disk: prng.below(64), time: Duration::from_millis(prng.between(1, 4_000)) }
        };
        let at = prng.below(steps.len() as u64 + 1) as usize;
        steps.insert(at, Step::Mishap(mishap));
    }
}

/// In one world of four somebody sets the wall clock some times. Drawn apart from everything else.
fn step_clocks(steps: &mut Vec<Step>, prng: &mut Prng) {
    if !prng.chance(1, 4) {
        return;
    }
    for _ in 0..prng.between(1, 4) {
        let by = Duration::from_secs(pick(prng, &[1, 20, 3_600, 86_400]) + prng.below(20));
        let at = prng.below(steps.len() as u64 + 1) as usize;
        steps.insert(at, Step::Mishap(Mishap::ClockStep { by, forward: prng.chance(1, 2) }));
    }
}

/// Half of the power cuts come in the middle of a flush: what it covers survives in part. Drawn apart from everything else.
fn end_in_flushes(steps: &mut [Step], setup: &Setup, prng: &mut Prng) {
    for step in steps {
        if let Step::Crash(crash) = step
            && matches!(crash.end, End::PowerCut | End::PowerCutOf(_))
            && prng.chance(1, 2)
        {
            let flash = !setup.flashes.is_empty() && prng.chance(2, 3);
            let after_ns = prng.below(FLUSH_NS_MIN);
            crash.in_flush = Some(InFlush { flash, earlier: prng.below(4), after_ns });
        }
    }
}

fn pick<T: Copy>(prng: &mut Prng, from: &[T]) -> T {
    from[prng.below(from.len() as u64) as usize]
}

fn caching(prng: &mut Prng) -> Caching {
    use celldisk::{CachingMode, CachingPolicy};
    let mode = pick(
        prng,
        &[
            CachingMode::WriteThrough,
            CachingMode::WriteThrough,
            CachingMode::WriteThrough,
            CachingMode::WriteAround,
            CachingMode::WriteAround,
            CachingMode::None,
        ],
    );
    let policy = pick(
        prng,
        &[
            CachingPolicy::Default,
            CachingPolicy::Default,
            CachingPolicy::Default,
            CachingPolicy::Default,
            CachingPolicy::Keep,
            CachingPolicy::None,
        ],
    );
    Caching { mode, policy }
}

impl Setup {
    fn draw(prng: &mut Prng) -> Setup {
        let disk_count = pick(prng, &[1, 1, 2, 3]);
        let write_back = prng.fork("write back").chance(1, 3);
        let flash_count = pick(prng, &[0, 1, 1, 1, 1, 2, 2, 3]);
        let mut mirrors = prng.fork("mirrors");
        let mirrored = write_back && mirrors.chance(1, 2);
        let mut order = prng.fork("ordered");
        let ordered = write_back && order.chance(1, 2);
        let journal_bytes = AU_BYTES * pick(&mut order, &[2, 2, 3, 4, 8]);
        let flash_count = if write_back { 1 + u64::from(mirrored) } else { flash_count };
        // With two copies of what is dirty, one device may come to harm, again and again; in some worlds both do.
        let victim = (mirrored && mirrors.chance(3, 4)).then(|| mirrors.below(2) as usize);
        let mut segments = prng.fork("segments");
        let many_segments = sweeps::wanted(flash_count, write_back && !mirrored, &mut segments);
        let block_bytes: u32 = 4096 << prng.below(5);
        let block_bytes = if many_segments { block_bytes.min(sweeps::BLOCK_BYTES_MAX) } else { block_bytes };
        let page_bytes: u32 = pick(prng, &[4096, 4096, 4096, 4096, 8192, 16384]);
        let page_bytes = if many_segments { 4096 } else { page_bytes };
        // A segment holds a block with a header and a footer of true pages.
        let least = if block_bytes == 64 << 10 { 128 << 10 } else { 64 << 10 }.max(16 * page_bytes);
        let segment_bytes: u32 = (64 << 10 << prng.below(3)).max(least);
        let segment_bytes = if many_segments { sweeps::SEGMENT_BYTES } else { segment_bytes };
        let mut disks = Vec::new();
        let mut grid_disks = Vec::new();
        for n in 0..disk_count {
            let mut data_bytes = 0;
            for _ in 0..prng.between(1, if disk_count == 1 { 3 } else { 2 }) {
                let mut size_bytes = AU_BYTES * prng.between(4, 32);
                if many_segments && grid_disks.is_empty() {
                    size_bytes = AU_BYTES * segments.between(sweeps::AU_COUNT.0, sweeps::AU_COUNT.1);
                }
                data_bytes += size_bytes;
                grid_disks.push(GridDiskSetup { home: n, size_bytes, caching: caching(prng), redo: None });
            }
            // Room to create and to grow; little, so that space is used again.
            let size_bytes = DATA_OFFSET + data_bytes + AU_BYTES * prng.between(2, 16);
            let journals = if ordered { grid_disks.iter().filter(|g| g.home == n).count() as u64 } else { 0 };
            let size_bytes = size_bytes + journals * journal_bytes;
            disks.push(DiskConfig {
                failed_fua_drops: true,
                ..DiskConfig::random(&format!("disk {n}"), size_bytes, true, prng)
            });
        }
        // Something has to be cached.
        if let Some(first) = grid_disks.first_mut() {
            let mode = pick(prng, &[celldisk::CachingMode::WriteThrough, celldisk::CachingMode::WriteAround]);
            first.caching = Caching { mode, policy: celldisk::CachingPolicy::Default };
        }
        let data_bytes: u64 = grid_disks.iter().map(|g| g.size_bytes).sum();
        let mut flash_cache_bytes = data_bytes * prng.between(10, 100) / 100;
        if many_segments {
            let each = segments.between(sweeps::SEGMENTS_MIN, sweeps::SEGMENTS_MAX);
            flash_cache_bytes = flash_count * each * u64::from(segment_bytes);
        }
        let mut flashes = Vec::new();
        // Devices of one size can change places.
        let same_size = prng.chance(1, 2);
        for n in 0..flash_count {
            let least = 8 * u64::from(segment_bytes);
            let cache_bytes = (flash_cache_bytes / flash_count).max(least).next_multiple_of(u64::from(segment_bytes));
            let size_bytes = DATA_OFFSET + cache_bytes + if same_size { 0 } else { AU_BYTES * prng.below(4) };
            let mut config = DiskConfig::random(&format!("flash {n}"), size_bytes, false, prng);
            if prng.chance(1, 4) {
                config.geometry.class = Class::Ephemeral;
                config.gone_after_power_cut = prng.chance(1, 2);
            }
            if write_back {
                config.geometry.class = Class::Durable;
                config.gone_after_power_cut = false;
            }
            config.geometry.page_bytes = config.geometry.page_bytes.max(page_bytes);
            (config.failed_fua_drops, config.failed_flush_shows) = (true, true);
            flashes.push(config);
        }
        for grid_disk in &mut grid_disks {
            grid_disk.caching = grid_disk.caching.in_world(write_back, ordered);
        }
        // One cell in four has memory for one entry a block: parts that come by themselves fill the index.
        let need = |flash: &DiskConfig| MemoryNeed::of(flash.geometry.size_bytes, segment_bytes, block_bytes, None);
        let need_bytes = flashes.iter().map(|flash| need(flash).all_bytes()).sum();
        let index_bytes = prng.fork("index").chance(1, 4).then_some(need_bytes);
        let sequential_cutoff_bytes = pick(&mut prng.fork("streams"), &[512 << 10, 1 << 20, 4 << 20]);
        let spare = members::spare(&flashes, &mut prng.fork("spare"));
        let spares = spare.iter().count();
        flashes.extend(spare);
        let hard_limit = Duration::from_millis(prng.between(200, 3_000));
        Setup {
            redo: None,
            write_back,
            ordered,
            journal_bytes,
            feed_rate_bytes: 64 << prng.fork("feed").between(10, 20),
            mirrored,
            victim,
            disks,
            flashes,
            spares,
            many_segments,
            hot_every: Duration::from_millis(prng.fork("hot").between(2, 400)),
            index_wait: index_wait(&mut prng.fork("index wait")),
            stamps_every: stamps_every(&mut prng.fork("stamps")),
            grid_disks,
            flash_cache_bytes,
            block_bytes,
            segment_bytes,
            // The least an arena has, and about as much as a cache here: fills run out of segments before buffers.
            staging_bytes: 2 << 20,
            arena_bytes: pick(prng, &[4 << 20, 8 << 20]),
            soft_limit: hard_limit / prng.between(3, 20) as u32,
            hard_limit,
            chunk_age: Duration::from_micros(prng.between(500, 50_000)),
            settle_every: Duration::from_millis(prng.between(2, 200)),
            accept_diverged: prng.chance(1, 2),
            endurance: endurance(&mut prng.fork("endurance")),
            keep_unused: Duration::from_millis(prng.fork("keep").between(20, 1_000)),
            index_bytes,
            sequential_cutoff_bytes,
            busy: busy(&mut prng.fork("busy")),
            clients: prng.between(1, 8),
            depth: prng.between(1, 3),
            threads: prng.between(1, 4) as usize,
            far: None,
        }
    }
}

/// Steps of a world of write-back: a flash device that loses what it acknowledged as durable loses data, so that one does not.
fn in_world(step: &mut Step, write_back: bool, ordered: bool) {
    match step {
        Step::Admin(Admin::Create { caching, .. } | Admin::SetCaching { caching, .. }) => {
            *caching = caching.in_world(write_back, ordered);
        }
        Step::Admin(admin @ Admin::Rename { .. }) if write_back => {
            if let Admin::Rename { disk } = *admin
                && disk % 4 != 0
            {
                *admin = Admin::Flush { disk, cancel: disk % 4 != 1 };
            }
        }
        // A cache on one of two flash devices is that of another world.
        Step::Admin(Admin::CreateFlashCache { all, .. }) if write_back => *all = true,
        Step::Mishap(Mishap::FlashFault { kind: kind @ (FaultKind::Lost | FaultKind::Misdirected), .. })
            if write_back =>
        {
            *kind = FaultKind::Slow;
        }
        _ => {}
    }
}

/// Reading the index takes milliseconds here.
fn index_wait(prng: &mut Prng) -> Option<Duration> {
    prng.chance(1, 2).then(|| Duration::from_micros(pick(prng, &[0, 0, 100, 1_000])))
}

/// One cell in four renews its stamps while it serves.
fn stamps_every(prng: &mut Prng) -> Option<Duration> {
    prng.chance(1, 4).then(|| Duration::from_millis(prng.between(5, 300)))
}

/// One cell in four has a budget, of which the few seconds of a run earn nothing to speak of: it runs low, then empty.
fn endurance(prng: &mut Prng) -> Option<Endurance> {
    let (limited, start_bytes) = (prng.chance(1, 4), prng.between(64 << 10, 4 << 20));
    limited.then(|| Endurance::of_lifetime(start_bytes * 10, 1).ok()).flatten()
}

/// Runs are short: most cells take a few reads for a load.
fn busy(prng: &mut Prng) -> Option<BusyTuning> {
    let keen = BusyTuning {
        floor: Duration::ZERO,
        samples_min: 2,
        window: Duration::from_micros(prng.between(100, 5_000)),
        rest: Duration::from_micros(prng.between(100, 50_000)),
        every_hit: true,
    };
    pick(prng, &[None, Some(BusyTuning::default()), Some(keen), Some(keen)])
}

#[cfg(test)]
mod tests {
    use super::{CRASHES_MIN, Case, OPERATIONS_MIN, Plan, Step};

    #[test]
    fn a_quarter_of_the_worlds_has_a_cache_of_many_segments() {
        let has = |seed: &u64| {
            let setup = Plan::of_case(Case::of_seed(*seed)).setup;
            let segments = setup.flash_cache_bytes / u64::from(setup.segment_bytes);
            setup.many_segments && segments >= 128 * (setup.flashes.len() - setup.spares) as u64
        };
        let count = (0..200).filter(has).count();
        assert!(count >= 50, "{count} of 200 worlds");
    }

    #[test]
    fn a_plan_has_the_size_the_design_asks_for_and_is_drawn_the_same_twice() {
        for seed in 0..50 {
            let case = Case { operations: if seed % 10 == 0 { 5_000 } else { OPERATIONS_MIN }, ..Case::of_seed(seed) };
            let plan = Plan::of_case(case);
            let operations = plan.steps.iter().filter(|s| matches!(s, Step::Io(_))).count() as u64;
            let crashes = plan.steps.iter().filter(|s| matches!(s, Step::Crash(_))).count() as u64;
            assert!(operations >= case.operations && crashes >= CRASHES_MIN, "seed {seed}: {operations}, {crashes}");
            assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::of_case(case)));
        }
    }
}
