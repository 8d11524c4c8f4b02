//! `flashcell attach`, `detach`: a grid disk as a block device of this host.
//!
//! ```text
//!   fuse:  /dev/loopN ── a file without a path ── /dev/fuse ──► driver ── NBD ──► cell
//!   nbd:   /dev/nbdN ───────────────────────── a socket pair ──► driver ── NBD ──► cell
//!   ublk:  /dev/ublkbN ─────────────────────── /dev/ublkcN ──► driver ── NBD ──► cell
//!                                                     └────── keeper (holds it open, of ublk its number; starts another driver when one dies)
//! ```
//!
//! The driver is replaceable: what it must not lose is in memory the keeper has too ([`shared`]), what it had under way the kernel
//! hands out again, at once (fuse) or when its time is over (nbd). The cell is replaceable: [`nbd::client::RemoteDisk`] connects again and keeps what no FLUSH has covered (DESIGN I9).
//!
//! Never decides what is durable, and acknowledges nothing that the cell has not.

mod block;
mod detach;
mod driver;
mod error;
mod file_system;
mod fuse_front;
mod gate;
mod host;
mod keeper;
mod link;
mod list;
mod nbd_front;
mod probe;
mod reach;
mod shared;
mod spec;
mod ublk_front;
mod wire;

pub use detach::{DetachOptions, detach};
pub use driver::{DriverDescriptors, DriverEnd, DriverError, drive};
pub use error::AttachError;
pub use file_system::FileSystem;
pub use keeper::keep;
pub use list::list;
pub use spec::RUNTIME_VARIABLE;
pub(crate) use spec::attached_by;

use file_system::Mounting;
use keeper::Ask;
use nbd::codec::TransmissionFlags;
use reach::Reached;
use spec::{Kind, Place, Record, Spec};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A sector of the device, unless another is asked for: the true page of nearly every disk and flash device, and what databases write.
pub const SECTOR_BYTES: u32 = 4096;
/// How long requests wait for a cell that is away, unless told otherwise: a restart takes seconds, an operator who is called minutes.
pub const ON_LOSS_SECONDS: u64 = 600;
/// For the keeper to say what came of it.
const READY: Duration = Duration::from_secs(60);
/// The same where another driver can be tried.
const READY_OR_ANOTHER: Duration = Duration::from_secs(8);
/// For what is left of a way that failed to end.
const LEFT: Duration = Duration::from_secs(2);
/// Seen with a memory limit (cgroup v1) that driver and writers shared: the driver waited for a page that only it could write out, for ever.
const MAY_HANG: &str = "without CAP_SYS_RESOURCE the driver may wait for pages that only it can write out: where memory is limited or short, \
     the device can hang; in a container give it that capability, or keep it outside of the limit";
/// Between two attempts of `--wait`.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// Which way a block device comes about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// The best there is.
    #[default]
    Auto,
    /// A user-space block device of the kernel (6.0).
    Ublk,
    /// The kernel's NBD client.
    Nbd,
    /// A file over FUSE, and a loop device on it.
    Fuse,
}

/// What to attach, and how.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The grid disk, `@DATABASE` after it tags its requests.
    pub grid_disk: String,
    /// Where to mount it.
    pub mount_point: Option<PathBuf>,
    /// A cell's directory, or an `nbd://` URI without an export; none: as for CellCLI.
    pub cell: Option<String>,
    /// Which way.
    pub driver: Driver,
    /// Nothing is written.
    pub read_only: bool,
    /// Wait for the cell, and for who has it attached.
    pub wait: bool,
    /// Detach it first where it is attached.
    pub take_over: bool,
    /// Seconds requests wait for a cell that is away; 0: they fail at once.
    pub on_loss_seconds: u64,
    /// 512 or 4096.
    pub sector_bytes: u32,
    /// NBD connections.
    pub connections: usize,
    /// Make a file system where there is nothing.
    pub mkfs: Option<FileSystem>,
    /// Options of mount(8).
    pub mount_options: Option<String>,
    /// The file system grows with the grid disk.
    pub grow_fs: bool,
    /// This program.
    pub program: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The block device.
    pub device: PathBuf,
    /// What is worth telling.
    pub notes: Vec<String>,
}

/// Attach a grid disk. Attached like this already: nothing changes.
///
/// # Errors
/// See [`AttachError`]; then nothing is left of what this began.
pub fn attach(options: &AttachOptions) -> Result<Attached, AttachError> {
    if !rustix::process::geteuid().is_root() {
        return Err(AttachError::NotRoot { what: "attach" });
    }
    let mut notes = Vec::new();
    let mut ways = probe::probe(options.driver)?;
    if options.mkfs.is_some() && options.mount_point.is_none() {
        return Err(AttachError::FileSystem {
            what: "--mkfs makes a file system to be mounted, and there is no MOUNTPOINT".to_owned(),
            hint: "name one, or make the file system by hand".to_owned(),
        });
    }
    let reached = reach_patiently(options)?;
    let spec = spec(options, ways.best(), reached)?;
    let place = Place::of(&spec.id());
    let (record, is_new) = match existing(&place, &spec, options)? {
        Some(record) => (record, false),
        None => {
            let begun = ways.first_that_works(|driver, has_another| {
                let patience = if has_another { READY_OR_ANOTHER } else { READY };
                begin_patiently(&place, &Spec { driver, ..spec.clone() }, options, patience)
            });
            (begun?, true)
        }
    };
    notes.extend(ways.told().filter(|_| is_new));
    if is_new && !device::may_skip_own_io() {
        notes.push(MAY_HANG.to_owned());
    }
    if let Some(path) = &options.mount_point {
        let mounting = Mounting {
            device: &record.device,
            grid_disk: &spec.grid_disk,
            size_bytes: spec.size_bytes,
            path,
            mkfs: options.mkfs,
            options: options.mount_options.as_deref(),
            read_only: spec.read_only,
        };
        if let Err(error) = mounting.carry_out(&mut notes) {
            if is_new {
                // What was not wanted without being mounted is not left behind, though its cell does not answer.
                let target = record.device.display().to_string();
                let ended = |force| detach(&DetachOptions { target: target.clone(), cell: None, force }).is_ok();
                let _ = ended(false) || ended(true);
            }
            return Err(error);
        }
    }
    Ok(Attached { device: record.device, notes })
}

fn reach_patiently(options: &AttachOptions) -> Result<Reached, AttachError> {
    loop {
        match reach::reach(options) {
            Err(AttachError::Export { .. }) if options.wait => std::thread::sleep(TRY_EVERY),
            reached => return reached,
        }
    }
}

fn spec(options: &AttachOptions, driver: Kind, reached: Reached) -> Result<Spec, AttachError> {
    let Reached { export, address, cell, cell_dir } = reached;
    let unsuitable = |why: String, hint| AttachError::Unsuitable { grid_disk: options.grid_disk.clone(), why, hint };
    if !export.size_bytes.is_multiple_of(u64::from(options.sector_bytes)) {
        let why = format!("has {} bytes, not a multiple of a sector of {}", export.size_bytes, options.sector_bytes);
        return Err(unsuitable(why, "--sector-size 512"));
    }
    let has = |flag| export.flags.contains(flag);
    if has(TransmissionFlags::READ_ONLY) && !options.read_only {
        return Err(unsuitable("is read-only for this client".to_owned(), "--readonly"));
    }
    let (socket, host) = match address {
        device::Address::Unix(path) => (Some(path), None),
        device::Address::Tcp { host, port } => (None, Some((host, port))),
    };
    Ok(Spec {
        grid_disk: options.grid_disk.clone(),
        driver,
        cell,
        cell_dir,
        socket,
        host,
        size_bytes: export.size_bytes,
        rotational: has(TransmissionFlags::ROTATIONAL),
        trims: has(TransmissionFlags::SEND_TRIM),
        zeroes: has(TransmissionFlags::SEND_WRITE_ZEROES),
        read_only: options.read_only,
        sector_bytes: options.sector_bytes,
        connections: options.connections,
        on_loss_seconds: options.on_loss_seconds,
        grow_fs: options.grow_fs,
        program: options.program.clone(),
    })
}

/// The attachment there is, when it is as it is wanted.
fn existing(place: &Place, spec: &Spec, options: &AttachOptions) -> Result<Option<Record>, AttachError> {
    let (Ok(record), true) = (place.record(), place.is_live()) else {
        // What is left of one whose processes are gone, its device with them or not.
        if place.record().is_ok() {
            detach::bury(place)?;
        }
        return Ok(None);
    };
    if record.is_early {
        // Its keeper has the lock, and says so.
        return Ok(None);
    }
    let other = place.spec()?;
    let same = |spec: &Spec| (spec.sector_bytes, spec.on_loss_seconds, spec.grow_fs, spec.connections);
    if options.take_over {
        detach(&DetachOptions { target: record.device.display().to_string(), cell: None, force: false })?;
        return Ok(None);
    }
    // A second one with a mount point of its own has something else in mind than the first.
    let mounts = host::number(&record.device).map(|number| host::mounts(&number)).unwrap_or_default();
    let elsewhere = options.mount_point.is_some()
        && !mounts.is_empty()
        && !mounts.iter().any(|mount| Some(&mount.path) == options.mount_point.as_ref());
    let is_this_way = options.driver == Driver::Auto || other.driver == spec.driver;
    if same(&other) == same(spec) && is_this_way && !elsewhere {
        return Ok(Some(record));
    }
    if options.wait {
        while place.is_live() {
            std::thread::sleep(TRY_EVERY);
        }
        return Ok(None);
    }
    Err(AttachError::Held { grid_disk: spec.grid_disk.clone(), holder: holder(&record, &mounts) })
}

fn holder(record: &Record, mounts: &[host::Mount]) -> String {
    let at: Vec<String> = mounts.iter().map(|mount| mount.path.display().to_string()).collect();
    let mounted = if at.is_empty() { String::new() } else { format!(", mounted at {}", at.join(" and ")) };
    format!("as {}{mounted}, by process {}", record.device.display(), record.keeper_pid)
}

fn begin_patiently(
    place: &Place,
    spec: &Spec,
    options: &AttachOptions,
    patience: Duration,
) -> Result<Record, AttachError> {
    loop {
        if let Some(path) = spec.cell_lock()
            && spec::take_lock(&path)?.is_none()
        {
            if options.wait {
                std::thread::sleep(TRY_EVERY);
                continue;
            }
            return Err(AttachError::Held { grid_disk: spec.grid_disk.clone(), holder: spec::signed(&path) });
        }
        return begin(place, spec, patience);
    }
}

/// Start a keeper, and wait for what it says.
fn begin(place: &Place, spec: &Spec, patience: Duration) -> Result<Record, AttachError> {
    place.make()?;
    place.write_spec(spec)?;
    let failed = |why: String| AttachError::Failed { grid_disk: spec.grid_disk.clone(), why };
    let path = place.log_path();
    // Keeper and drivers each write at its end.
    let log = std::fs::File::options().append(true).create(true).open(&path);
    let log = log.map_err(|source| AttachError::File { path, source })?;
    let mut command = Command::new(&spec.program);
    command.arg("attach-keeper").arg(&place.dir);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).current_dir("/").spawn();
    let mut keeper = spawned.map_err(|error| failed(format!("{}: {error}", spec.program.display())))?;
    let Some(stdout) = keeper.stdout.take() else { return Err(failed("no pipe to the keeper".to_owned())) };
    let (said, hear) = std::sync::mpsc::channel();
    let listen = move || {
        let mut line = String::new();
        let _ = BufReader::new(stdout).read_line(&mut line);
        let _ = said.send(line);
    };
    std::thread::Builder::new().name("ready".to_owned()).spawn(listen).map_err(|error| failed(error.to_string()))?;
    let heard = hear.recv_timeout(patience);
    let is_late = heard.is_err();
    let line = heard.unwrap_or_default();
    let line = line.trim_end();
    if line.starts_with("ready ") {
        return place.record();
    }
    // Its processes end with it; what is left is a directory.
    let why = match line.strip_prefix("failed ") {
        Some(why) => why.replace('\u{1}', "\n").replace(&format!("cannot attach {}: ", spec.grid_disk), ""),
        None if is_late => {
            format!("the keeper has not said anything for {} s: {}", patience.as_secs(), place.last_words())
        }
        None => format!("the keeper ended: {}", place.last_words()),
    };
    end_keeper(keeper, place);
    // Another attach may have been quicker: then it is its directory. A device that is half made goes with it.
    if !place.is_live() && detach::bury(place).is_err() {
        place.remove();
    }
    Err(failed(why))
}

/// End a keeper whose device did not come about, and the driver it may have started. One that waits in the kernel cannot be ended, and is not
/// waited for longer.
fn end_keeper(mut keeper: std::process::Child, place: &Place) {
    let keeper_pid = keeper.id();
    let _ = keeper.kill();
    if let Ok(record) = place.record()
        && record.keeper_pid == keeper_pid
    {
        detach::end_driver(record.driver_pid);
    }
    let until = Instant::now() + LEFT;
    while matches!(keeper.try_wait(), Ok(None)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The locks go with the last process.
    let _ = await_end(place, until.saturating_duration_since(Instant::now()));
}

/// Keep this process in memory, and out of its own way: pages that are written to its device may be what it needs.
fn guard() {
    for guard in device::guard_memory() {
        match guard {
            device::MemoryGuard::InForce(what) => tracing::info!("{what}"),
            device::MemoryGuard::Refused { what, why, hint } => tracing::warn!("{what}: {why}; hint: {hint}"),
        }
    }
}

/// Wait until the keeper and the driver of an attachment are gone.
fn await_end(place: &Place, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while place.is_live() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// An attached grid disk.
pub(crate) struct AttachedAs {
    pub(crate) grid_disk: String,
    /// Its directory, or the host of a cell elsewhere.
    pub(crate) cell: Option<String>,
}

/// Which grid disk a device (`st_rdev`) is, as far as it is attached here.
pub(crate) fn attached_as(device: u64) -> Option<AttachedAs> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let dir = std::fs::canonicalize(Path::new("/sys/dev/block").join(number)).ok()?;
    let name = dir.file_name()?.to_owned();
    Place::all().into_iter().find_map(|place| {
        let (record, spec) = (place.record().ok()?, place.spec().ok()?);
        let cell = spec.cell_dir.as_ref().map(|dir| dir.display().to_string());
        let cell = cell.or_else(|| spec.host.as_ref().map(|(host, _)| host.clone()));
        (record.device.file_name()? == name).then_some(AttachedAs { grid_disk: spec.grid_disk, cell })
    })
}

/// Where a device (`major:minor`) is mounted first, in any mount namespace.
pub(crate) fn mounted_at(number: &str) -> Option<String> {
    host::mounts(number).first().map(|mount| mount.path.display().to_string())
}

/// Where what is known of this host alone is.
pub(crate) fn runtime_dir() -> PathBuf {
    let root = Place::root();
    root.parent().map_or(root.clone(), Path::to_owned)
}

/// How the keeper of a live attachment says it is.
fn told(place: &Place) -> Option<keeper::Told> {
    Ask::Status.of(place).ok()
}

/// A path without what a path may end in, for comparing it as text: a mount point is not looked at.
fn trimmed(path: &str) -> &Path {
    let trimmed = path.trim_end_matches('/');
    Path::new(if trimmed.is_empty() { path } else { trimmed })
}
