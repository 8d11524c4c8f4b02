//! `flashcell trace record --device`: what a block device of this host is asked, by the kernel's own events, before any cell has it.
//!
//! The events are those of `block_bio_queue`: what programs and file systems ask for, before the elevator merges or splits it; and where the
//! kernel has them those of ends, for how long each took (of `lab`'s pairs; Linux 6.18 tells of ends by request for a disk whose driver takes
//! requests, and by `bio` for other devices, never both). They come through an instance of tracefs that is this process's own, so that nobody else's tracing is disturbed, and that goes with it; what a killed
//! process left is removed by who comes next. Never changes anything else; never reads what is read or written.

use device::HeldSignals;
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where tracefs is.
const TRACING: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const EVENT: &str = "events/block/block_bio_queue";
/// What is taken: the first has to be there.
const EVENTS: [&str; 3] = [EVENT, "events/block/block_rq_complete", "events/block/block_bio_complete"];
/// Instances are named by this and the process that made them. Another namespace may have a process of the same number.
const INSTANCE: &str = "flashcell-trace-";
const SAME_NUMBER_MAX: u32 = 16;
/// So old an instance is read by the process that made it, or that process is gone: the kernel removes none that is read.
const MADE: Duration = Duration::from_secs(60);
/// The kernel's memory for events, of each processor (a second of 80,000 requests, and of their ends) and of all.
const BUFFER_KIB_MAX: u64 = 16384;
const BUFFERS_KIB_MAX: u64 = 256 << 10;
const BUFFER_KIB_MIN: u64 = 1024;
/// How the kernel writes events, whatever others have made the default. Not every kernel has all.
const OPTIONS: [&str; 7] = ["overwrite", "noraw", "nohex", "nobin", "nofields", "context-info", "nolatency-format"];
/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);
const READ_BYTES: usize = 64 << 10;
/// Text that is taken before it is looked whether to go on.
const TAKEN_BYTES_MAX: usize = 4 << 20;
/// Devices at a time: the kernel's filter is one line.
const DEVICES_MAX: usize = 64;

/// Why devices cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The path is something else.
    #[error("{} is not a block device\nhint: name a disk, a partition or a volume, as `lsblk -p` lists them", .0.display())]
    NotABlockDevice(PathBuf),
    /// It is not there, or the kernel says nothing of it.
    #[error("cannot look at {}: {source}", .path.display())]
    Device {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Too many at once.
    #[error(
        "more than {DEVICES_MAX} devices at a time\nhint: record some of them into one file and the others into another"
    )]
    TooMany,
    /// There is no tracefs, or it has no events of block devices.
    #[error(
        "the kernel does not tell of its block requests here: {EVENT} is not in {}\nhint: mount -t tracefs tracefs {0}, as root; a kernel \
         without it may have blktrace, whose files `lab what-if` reads as well", TRACING[0]
    )]
    NoEvents,
    /// Only root may.
    #[error(
        "the kernel's events are root's: {0}\nhint: run it as root, or as a user with CAP_SYS_ADMIN and access to tracefs"
    )]
    Denied(io::Error),
    /// Tracefs refuses something else.
    #[error("cannot {what}: {source}")]
    Trace {
        /// Doing what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// What came cannot be kept.
    #[error("cannot write the recording: {0}")]
    Output(io::Error),
}

/// A device that is watched, a part of a disk or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedDevice {
    /// As the kernel calls it.
    pub name: String,
    /// Major and minor number of the disk.
    pub disk: (u32, u32),
    /// Where it begins on the disk.
    pub first_sector: u64,
    /// Sectors of 512 bytes of a part of a disk; a disk may grow, and has no end.
    pub sectors: u64,
    /// The disk says that a completed write is durable: the kernel drops flushes before anybody can see them.
    pub drops_flushes: bool,
}

impl WatchedDevice {
    /// What the kernel says of the block device at `path`.
    fn look(path: &Path) -> Result<WatchedDevice, WatchError> {
        let failed = |source| WatchError::Device { path: path.to_owned(), source };
        let meta = fs::metadata(path).map_err(failed)?;
        if !meta.file_type().is_block_device() {
            return Err(WatchError::NotABlockDevice(path.to_owned()));
        }
        let numbers = |dev| (rustix::fs::major(dev), rustix::fs::minor(dev));
        let (major, minor) = numbers(meta.rdev());
        let at = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).map_err(failed)?;
        let read = |path: PathBuf| fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(failed);
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_| failed(io::Error::new(ErrorKind::InvalidData, "the kernel gives no number")))
        };
        let part_of = at.parent().filter(|_| at.join("partition").exists());
        let (disk, first_sector, sectors) = match part_of {
            None => ((major, minor), 0, u64::MAX),
            Some(disk) => {
                let text = read(disk.join("dev"))?;
                let (major, minor) = text.split_once(':').unwrap_or_default();
                let part = |text: &str| number(text.to_owned()).map(|n| n as u32);
                ((part(major)?, part(minor)?), number(read(at.join("start"))?)?, number(read(at.join("size"))?)?)
            }
        };
        let drops_flushes =
            read(part_of.unwrap_or(&at).join("queue/write_cache")).is_ok_and(|text| text == "write through");
        let name = at.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(WatchedDevice { name, disk, first_sector, sectors, drops_flushes })
    }
}

/// An instance of tracefs.
struct Instance(PathBuf);

impl Instance {
    fn make() -> Result<Instance, WatchError> {
        let tracing = TRACING.iter().map(Path::new).find(|path| path.join(EVENT).exists());
        let tracing = match tracing {
            Some(tracing) => tracing,
            None => match fs::read_dir(TRACING[0]) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(WatchError::Denied(error)),
                _ => return Err(WatchError::NoEvents),
            },
        };
        let instances = tracing.join("instances");
        remove_left(&instances);
        for number in 0..SAME_NUMBER_MAX {
            let suffix = if number == 0 { String::new() } else { format!("-{number}") };
            let path = instances.join(format!("{INSTANCE}{}{suffix}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Instance(path)),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(WatchError::Denied(error)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number + 1 < SAME_NUMBER_MAX => {}
                Err(source) => return Err(WatchError::Trace { what: "make an instance of tracefs", source }),
            }
        }
        unreachable!("the last try is answered")
    }

    fn set(&self, file: &str, value: &str, what: &'static str) -> Result<(), WatchError> {
        fs::write(self.0.join(file), value).map_err(|source| match source.kind() {
            ErrorKind::PermissionDenied => WatchError::Denied(source),
            _ => WatchError::Trace { what, source },
        })
    }

    /// Let the events of these disks come. Their times are those of the monotonic clock.
    fn begin(&self, devices: &[WatchedDevice]) -> Result<File, WatchError> {
        let buffer_kib = (BUFFERS_KIB_MAX / processors()).clamp(BUFFER_KIB_MIN, BUFFER_KIB_MAX);
        self.set("buffer_size_kb", &buffer_kib.to_string(), "give the kernel memory for events")?;
        for option in OPTIONS {
            let _ = fs::write(self.0.join("trace_options"), option);
        }
        self.set("trace_clock", "mono", "choose the clock of events")?;
        let mut disks: Vec<(u32, u32)> = devices.iter().map(|device| device.disk).collect();
        disks.sort_unstable();
        disks.dedup();
        // The kernel's own form of a device number.
        let of_disk = |(major, minor): &(u32, u32)| format!("dev == {}", u64::from(*major) << 20 | u64::from(*minor));
        let filter = disks.iter().map(of_disk).collect::<Vec<_>>().join(" || ");
        for event in self.events() {
            self.set(&format!("{event}/filter"), &filter, "choose the disks")?;
        }
        let pipe =
            OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(self.0.join("trace_pipe"));
        let pipe = pipe.map_err(|source| WatchError::Trace { what: "read the kernel's events", source })?;
        // Ends before beginnings: none begins without its end.
        for event in self.events().rev() {
            self.set(&format!("{event}/enable"), "1", "ask for the kernel's events")?;
        }
        Ok(pipe)
    }

    /// Let no more come: what is still to be read has an end then.
    fn end(&self) {
        for event in self.events() {
            let _ = self.set(&format!("{event}/enable"), "0", "end the kernel's events");
        }
    }

    fn events(&self) -> impl DoubleEndedIterator<Item = &'static str> {
        EVENTS.into_iter().filter(|event| self.0.join(event).exists())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Whoever comes next tries again.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Processors that the kernel may have memory for events of.
fn processors() -> u64 {
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = possible.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u64>().ok());
    last.map_or(1, |last| last + 1)
}

/// Remove the instances of processes that are gone, of whatever namespace. The kernel keeps what is being read.
fn remove_left(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    let mine = std::process::id().to_string();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(process) = name.to_str().and_then(|name| name.strip_prefix(INSTANCE)) else { continue };
        let is_gone = process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists();
        let made = entry.metadata().and_then(|meta| meta.modified());
        let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MADE));
        if is_gone || is_old || process == mine {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// What is kept of the kernel's events.
pub struct Events<'a> {
    /// Lines of ftrace, whole ones.
    pub lines: &'a [u8],
    /// What has to be added to their times to have nanoseconds since 1970.
    pub since_epoch_ns: i128,
    /// By the clock of their times: everything up to then has come. None: more is to be read.
    pub until_ns: Option<u64>,
    /// Nothing comes after these.
    pub is_last: bool,
}

/// Watch block devices for so long, or until ^C, or until `keep` wants no more (a broken pipe). A signal that ended it acts when what is
/// returned is dropped.
///
/// # Errors
/// See [`WatchError`].
pub fn watch(
    paths: &[PathBuf],
    time: Option<Duration>,
    keep: &mut dyn FnMut(&[WatchedDevice], &Events<'_>) -> io::Result<()>,
) -> Result<HeldSignals, WatchError> {
    if paths.len() > DEVICES_MAX {
        return Err(WatchError::TooMany);
    }
    let mut devices: Vec<WatchedDevice> =
        paths.iter().map(|path| WatchedDevice::look(path)).collect::<Result<_, _>>()?;
    devices.sort_by_key(|device| (device.disk, device.first_sector, device.sectors));
    devices.dedup();
    let held = HeldSignals::hold().map_err(|source| WatchError::Trace { what: "hold back signals", source })?;
    let instance = Instance::make()?;
    let since_epoch_ns = since_epoch_ns();
    let mut pipe = instance.begin(&devices)?;
    let begun = Instant::now();
    let (mut text, mut more) = (Vec::new(), false);
    loop {
        let left = time.map(|time| time.saturating_sub(begun.elapsed()));
        let pause = if more { Duration::ZERO } else { left.map_or(EVERY, |left| left.min(EVERY)) };
        let ends = held.pause(pause).is_err() || left.is_some_and(|left| left <= pause);
        if ends {
            instance.end();
        }
        loop {
            let now_ns = monotonic_ns();
            let taken = take(&mut pipe, &mut text);
            more = taken.map_err(|source| WatchError::Trace { what: "read the kernel's events", source })?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let (until_ns, is_last) = ((!more).then_some(now_ns), ends && !more);
            match keep(&devices, &Events { lines: &text[..whole], since_epoch_ns, until_ns, is_last }) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(held),
                kept => kept.map_err(WatchError::Output)?,
            }
            text.drain(..whole);
            if !(ends && more) {
                break;
            }
        }
        if ends {
            // The pipe first: an instance that is read from stays.
            drop(pipe);
            return Ok(held);
        }
    }
}

/// What has come, up to so much. Whether there may be more.
fn take(pipe: &mut File, text: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = vec![0; READ_BYTES];
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => return Ok(false),
            Ok(bytes) => text.extend_from_slice(&piece[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if text.len() >= TAKEN_BYTES_MAX {
            return Ok(true);
        }
    }
}

fn ns_of(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Between the monotonic clock and nanoseconds since 1970.
fn since_epoch_ns() -> i128 {
    ns_of(ClockId::Realtime) - ns_of(ClockId::Monotonic)
}

/// By the clock of the events.
fn monotonic_ns() -> u64 {
    u64::try_from(ns_of(ClockId::Monotonic)).unwrap_or(0)
}
