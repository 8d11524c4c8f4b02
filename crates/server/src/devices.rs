//! The devices of a cell, opened and wrapped: real, then delayed (emulation), with a deadline while the cell starts, watched for losses,
//! claimed, forgetful (tests), and counted. Nothing writes below the watch.
//!
//! Never decides what a device is worth: its label and the cell do.

use crate::claim::{self, Teller};
use crate::config::{Config, ConfigError, DeviceConfig, DeviceKind, Located};
use crate::{images, init};
use cell::SMALL_BYTES_MAX;
use cell::metrics::{DeviceIo, IoTotals};
use cell::{CellDevice, NewDevice};
use celldisk::claim::{ClaimError, Claimed, Holder};
use celldisk::{Beside, BesideError, CellDiskError, DeviceId, Label, Probe, Role};
use device::layers::stats::{BusyTime, VerbSnapshot};
use device::layers::{Delay, Forgetful, Losses, Silence, StartDeadline, StartLimits, Stats, WatchedDevice};
use device::{
    Address, Class, Clock, Completion, Device, Direct, Durability, Geometry, Io, Op, OpenError, OpenOptions, Runtime,
    Verb, World, copies_on_write,
};
use futures_util::future::join_all;
use nbd::{ClientError, RemoteDisk, RemoteOptions, Uri};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Un-flushed writes a forgetful device keeps: more than any test writes between two flushes.
const FORGETFUL_BYTES_MAX: u64 = 256 << 20;

/// Counts small and large requests apart, as the metrics are divided.
pub(crate) struct BySize {
    small: Arc<Stats>,
    large: Arc<Stats>,
    busy: Arc<BusyTime>,
    clock: Arc<dyn Clock>,
}

impl BySize {
    fn new(inner: Device, world: &World) -> Arc<BySize> {
        let (busy, clock) = (Arc::<BusyTime>::default(), world.clock.clone());
        let stats = || Stats::with_busy(inner.clone(), clock.clone(), busy.clone());
        Arc::new(BySize { small: stats(), large: stats(), busy, clock })
    }

    /// The figures of both sizes: `(size, figures by verb)`.
    pub(crate) fn snapshot(&self) -> [(&'static str, Vec<VerbSnapshot>); 2] {
        [("small", self.small.snapshot()), ("large", self.large.snapshot())]
    }

    /// The figures as the metric table wants them.
    pub(crate) fn totals(&self, name: String) -> DeviceIo {
        let [small, large] = [&self.small, &self.large];
        let all = || small.snapshot().into_iter().chain(large.snapshot());
        let totals = |stats: &Stats, verb| {
            let v = stats.verb(verb);
            IoTotals { requests: v.done, bytes: v.bytes, busy_ns: v.latency_ns.sum }
        };
        DeviceIo {
            name,
            read_small: totals(small, Verb::Read),
            read_large: totals(large, Verb::Read),
            write_small: totals(small, Verb::Write),
            write_large: totals(large, Verb::Write),
            flush: totals(small, Verb::Flush),
            errors: all().map(|v| v.short + v.failed + v.unknown).sum(),
            in_flight: all().map(|v| v.in_flight).sum(),
            utilised_ns: self.busy.busy_ns(self.clock.now()),
            utilised_small_ns: small.busy_ns(),
            utilised_large_ns: large.busy_ns(),
        }
    }

    /// Requests that failed, fell short or have an unknown fate.
    pub(crate) fn errors(&self) -> u64 {
        self.totals(String::new()).errors
    }
}

impl Io for BySize {
    fn geometry(&self) -> Geometry {
        self.small.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let stats = if op.range().1 <= SMALL_BYTES_MAX { &self.small } else { &self.large };
        stats.submit(op)
    }
}

/// A device of the configuration, open.
pub(crate) struct OpenDevice {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// What it has done.
    pub(crate) io: Arc<BySize>,
    /// Its claim, below every layer but the watch for losses.
    claimed: Arc<Claimed>,
    /// What the watch hears.
    losses: Arc<Losses>,
    /// Its deadline while the cell starts.
    start: Arc<StartDeadline>,
    /// Its identity, when it carries a label.
    pub(crate) device_id: Option<DeviceId>,
    /// What its durability class is found to be, or stated to be in cell.toml; none for an export of another server.
    pub(crate) durability: Option<Durability>,
    /// Bytes of the volume, where it is an adopted one or one to be adopted: nothing of it may ever be formatted.
    pub(crate) adopted_bytes: Option<u64>,
}

impl OpenDevice {
    /// The device, for what is no cell.
    pub(crate) fn device(&self) -> Device {
        self.io.clone()
    }

    /// The device to hand to the cell.
    pub(crate) fn for_cell(&self) -> CellDevice {
        CellDevice::new(self.io.clone(), self.losses.clone())
    }

    /// The start of the cell needs no more answers of it: from here on it may take as long as it takes.
    pub(crate) fn start_is_over(&self) {
        self.start.end();
    }

    /// Take the claim on it: it carries a label, and is about to be used.
    ///
    /// # Errors
    /// Another process uses it.
    pub(crate) fn claim(
        &self,
        world: &World,
        tell: Teller,
    ) -> impl Future<Output = Result<(), DeviceError>> + Send + use<> {
        let us = claim::holder(world.prng.fork("claims").next_u128() ^ u128::from(init::seed()));
        let (claimed, path, world) = (self.claimed.clone(), self.path.clone(), world.clone());
        async move {
            let tell = |other: Option<&Holder>| tell(&path, &claim::watching(other, &us));
            match claimed.take(us.clone(), claim::is_alive, tell).await {
                Ok(()) => claim::keep(&claimed, &path, &world),
                Err(ClaimError::InUse(holder)) => {
                    return Err(DeviceError::Claimed { path: path.display().to_string(), holder: Box::new(holder) });
                }
                // A bad sector there says nothing about the rest of the device, which has its own ways to fail.
                Err(error @ (ClaimError::Io(_) | ClaimError::NotThere)) => {
                    tracing::warn!(device = %path.display(), %error, "used without a claim");
                }
            }
            Ok(())
        }
    }

    /// Give the claim back: the cell uses the device no more. A stamp that stays makes a start on another host wait.
    pub(crate) fn release(&self) -> impl Future<Output = ()> + Send + use<> {
        let (claimed, path) = (self.claimed.clone(), self.path.display().to_string());
        async move {
            if let Err(error) = claimed.release().await {
                tracing::warn!(device = path, %error, "the claim was not given back");
            }
        }
    }

    /// Give the claim back and take it off the device, which is no cell disk any more.
    pub(crate) fn wipe_claim(&self) -> impl Future<Output = ()> + Send + use<> {
        let (claimed, path) = (self.claimed.clone(), self.path.display().to_string());
        async move {
            if let Err(error) = claimed.wipe().await {
                tracing::warn!(device = path, %error, "the claim is still on the device that was dropped");
            }
        }
    }

    /// What makes a cell disk of this name of it, as its configuration says.
    pub(crate) fn to_be(&self, config: &DeviceConfig, name: String) -> NewDevice {
        let role = if config.kind == DeviceKind::Flash { Role::Flash } else { Role::Disk };
        NewDevice {
            class: config.class.map(Into::into),
            page_bytes: config.page.and_then(|page| u32::try_from(page.0).ok()),
            adopted_bytes: self.adopted_bytes,
            au_bytes: self.adopted_bytes.map(|_| celldisk::layout::AU_BYTES_MIN),
            ..NewDevice::new(self.for_cell(), name, role)
        }
    }
}

/// Why a device of the configuration cannot be served from.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// It is required and not there.
    #[error("{0}{REQUIRED_HINT}")]
    Missing(OpenError),
    /// It is required and belongs to another cell.
    #[error("{path} is cell disk {name} of another cell than {other}\nhint: remove one of them from cell.toml")]
    ForeignCell {
        /// Which.
        path: String,
        /// Its cell disk name.
        name: String,
        /// A device of the cell that is being served.
        other: String,
    },
    /// An NBD export cannot be used.
    #[error("{uri}: {error}\nhint: start its server, and check the address and the name of the export")]
    Remote {
        /// Which.
        uri: String,
        /// Why.
        error: ClientError,
    },
    /// Somebody else uses it.
    #[error(
        "{path} is in use by {holder}\nhint: stop that server first; two that write to one device destroy what is on it"
    )]
    Claimed {
        /// Which.
        path: String,
        /// Who.
        holder: Box<Holder>,
    },
    /// A volume and its metadata make no disk.
    #[error(
        "{path} is an adopted volume: {error}\nhint: bring the volume and its metadata file {metadata} back as they were"
    )]
    Beside {
        /// The volume.
        path: String,
        /// The file.
        metadata: String,
        /// Why.
        error: BesideError,
    },
    /// A label and cell.toml disagree about what is adopted.
    #[error(
        "{path}: cell.toml and the label disagree whether it is an adopted volume\n\
         hint: the key metadata of this device stands in cell.toml as long as the volume is adopted; restore the line that `flashcell adopt` wrote"
    )]
    AdoptedOrNot {
        /// The volume.
        path: String,
    },
    /// It does not answer while the cell starts.
    #[error(
        "{path} has not answered within {seconds} s\nhint: see the kernel's log and the device; start_deadline_s in cell.toml is how long a start waits for an answer{REQUIRED_HINT}"
    )]
    Silent {
        /// Which.
        path: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// What is on it is not what it should be.
    #[error("{path}: {error}\nhint: {}{REQUIRED_HINT}", .error.hint().unwrap_or("check the device"))]
    Unusable {
        /// Which.
        path: String,
        /// Why.
        error: CellDiskError,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The way round a lost disk.
const REQUIRED_HINT: &str =
    "; to serve the other disks without it, write required = false under this device in cell.toml";

/// Until a start that waits for a device says so.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Open one device and wrap it.
pub(crate) fn open(
    located: &Located,
    config: &DeviceConfig,
    runtime: &Runtime,
    world: &World,
) -> Result<OpenDevice, DeviceError> {
    let open = open_for_start(located, config, runtime, world)?;
    open.start_is_over();
    Ok(open)
}

/// The same, with a deadline for each request until [`OpenDevice::start_is_over`].
fn open_for_start(
    located: &Located,
    config: &DeviceConfig,
    runtime: &Runtime,
    world: &World,
) -> Result<OpenDevice, DeviceError> {
    let remote = located.remote(config)?;
    let path = if remote.is_some() { config.path.clone() } else { located.resolve(&config.path) };
    let name = path.display().to_string();
    let mut found = None;
    let mut device = match remote {
        Some(uri) => connect(located, config, uri, &name, runtime, world)?,
        None => {
            if let Ok(Some(file_system)) = copies_on_write(&path)
                && path.is_file()
                && !config.sparse
            {
                tracing::warn!(device = name, "{}", images::copy_on_write_limit(file_system));
            }
            let options = OpenOptions {
                direct: config.direct.into(),
                page_override: config.page.and_then(|page| u32::try_from(page.0).ok()),
                sparse: config.sparse,
                class_override: config.class.map(Into::into),
                name: Some(name.clone()),
                ..OpenOptions::default()
            };
            let device = runtime.open(&path, &options)?;
            found = device::durability(&path, options.class_override).ok();
            device
        }
    };
    let mut adopted_bytes = None;
    if let Some(metadata) = &config.metadata {
        let metadata = located.resolve(metadata);
        let beside = open_metadata(&metadata, runtime)?;
        let volume_bytes = volume_bytes(&beside, &metadata, runtime)?.unwrap_or(device.geometry().size_bytes);
        adopted_bytes = Some(volume_bytes);
        device = Beside::new(beside, device, volume_bytes).map_err(|error| DeviceError::Beside {
            path: name.clone(),
            metadata: metadata.display().to_string(),
            error,
        })?;
    }
    if let Some(model) = located.model(config)? {
        let prng = world.prng.fork(&name);
        device = Delay::new(device, model, world.clock.clone(), world.spawn.clone(), prng);
    }
    let start = with_deadline(device, &name, located.config.start_deadline_s, world);
    let watched = WatchedDevice::new(start.clone(), world.spawn.clone());
    let claimed = Claimed::new(&watched, world);
    let mut device: Device = claimed.clone();
    if config.forgetful {
        tracing::warn!(device = name, "forgetful: killing this process loses un-flushed writes, on purpose");
        device = Forgetful::new(device, world.spawn.clone(), FORGETFUL_BYTES_MAX);
    }
    let losses = watched.losses().clone();
    let io = BySize::new(device, world);
    Ok(OpenDevice { path, io, claimed, losses, start, device_id: None, durability: found, adopted_bytes })
}

/// A device whose silence does not hold up the start, and which is told of in the log.
fn with_deadline(device: Device, name: &str, deadline_s: u64, world: &World) -> Arc<StartDeadline> {
    let name = name.to_owned();
    let tell = move |silence| match silence {
        Silence::Waits { verb, offset, len } => tracing::warn!(
            device = name,
            "the start waits for this device: no answer to a {verb:?} of {len} bytes at {offset} for {} s; it goes on without it after {deadline_s} s",
            TELL_AFTER.as_secs()
        ),
        Silence::Answered => tracing::info!(device = name, "the device answers again"),
        Silence::GivenUp => tracing::error!(
            device = name,
            "the device has not answered for {deadline_s} s: the start goes on without it; restart the cell when it answers again"
        ),
    };
    let give_up_after = Duration::from_secs(deadline_s);
    let limits = StartLimits { tell_after: TELL_AFTER.min(give_up_after / 2), give_up_after };
    StartDeadline::new(device, world.clock.clone(), world.spawn.clone(), limits, Arc::new(tell))
}

/// The file with the metadata of an adopted volume: small, and through the page cache, which takes sectors of any size.
pub(crate) fn open_metadata(path: &Path, runtime: &Runtime) -> Result<Device, DeviceError> {
    let options = OpenOptions { direct: Direct::Never, ..OpenOptions::default() };
    Ok(runtime.open(path, &options)?)
}

/// As large as the volume was when it was adopted, by the label in its metadata file; none: there is no label yet.
pub(crate) fn volume_bytes(metadata: &Device, path: &Path, runtime: &Runtime) -> Result<Option<u64>, DeviceError> {
    let unusable = |error| DeviceError::Unusable { path: path.display().to_string(), error };
    let metadata = metadata.clone();
    match runtime.block_on(async move { celldisk::probe(&metadata).await }).map_err(unusable)? {
        Probe::Flashcell(label) => match label.adopted {
            Some(adopted) => Ok(Some(adopted.volume_bytes)),
            None => Err(DeviceError::AdoptedOrNot { path: path.display().to_string() }),
        },
        Probe::Blank => Ok(None),
        Probe::Foreign { what } => Err(unusable(CellDiskError::Foreign { what })),
        Probe::Damaged { why } => Err(unusable(CellDiskError::Damaged { why })),
        Probe::Newer(error) => Err(unusable(CellDiskError::Newer(error))),
    }
}

/// Opens devices of the configuration while the cell is served: those that were written into it since.
pub(crate) struct Opener {
    config: PathBuf,
    runtime: Weak<Runtime>,
}

/// Why a device does not join a running cell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenerError {
    /// Nobody says what it is.
    #[error(
        "{config} has no [[device]] with path = \"{path}\"\nhint: add one with its path and kind = \"flash\" or \"disk\", so that the next start finds it, then repeat the command"
    )]
    NotConfigured {
        /// The configuration.
        config: String,
        /// As asked for.
        path: String,
    },
    /// It is open already.
    #[error("{0} is open: it is a device of the cell already\nhint: LIST CELLDISK DETAIL shows which (deviceName)")]
    Open(String),
    /// An export of another server.
    #[error("{0} is an NBD export, which joins at the next start only\nhint: restart the cell")]
    Remote(String),
    /// It cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The cell is stopping.
    #[error("the cell is stopping")]
    Stopping,
}

impl Opener {
    pub(crate) fn new(located: &Located, runtime: &Arc<Runtime>) -> Opener {
        Opener { config: located.path.clone(), runtime: Arc::downgrade(runtime) }
    }

    /// Look again how large the open files and devices are. Exports of other servers stay as they are.
    pub(crate) fn look_for_growth(&self) {
        if let Some(runtime) = self.runtime.upgrade() {
            runtime.look_for_growth();
        }
    }

    /// How often a transfer of each local device was tried again, by its name.
    pub(crate) fn tried_again(&self) -> Vec<(String, u64)> {
        self.runtime.upgrade().map(|runtime| runtime.tried_again()).unwrap_or_default()
    }

    /// Devices of this host that the configuration names now and that are not among those open, in its order.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub(crate) fn not_open(&self, open: &[Arc<OpenDevice>]) -> Result<Vec<DeviceConfig>, OpenerError> {
        let located = Config::load(&self.config).map_err(DeviceError::from)?;
        let is_open = |config: &DeviceConfig| open.iter().any(|device| device.path == located.resolve(&config.path));
        let is_local = |config: &DeviceConfig| located.remote(config).is_ok_and(|remote| remote.is_none());
        Ok(located.config.device.iter().filter(|config| is_local(config) && !is_open(config)).cloned().collect())
    }

    /// Open the device with this path, as the configuration says now; `open` are those that are. Blocks for as long as the
    /// system takes to open a file.
    ///
    /// # Errors
    /// See [`OpenerError`].
    pub(crate) fn open(
        &self,
        path: &str,
        open: &[Arc<OpenDevice>],
        world: &World,
    ) -> Result<(OpenDevice, DeviceConfig), OpenerError> {
        let runtime = self.runtime.upgrade().ok_or(OpenerError::Stopping)?;
        let located = Config::load(&self.config).map_err(DeviceError::from)?;
        let wanted = located.resolve(Path::new(path));
        let found = located.config.device.iter().find(|device| located.resolve(&device.path) == wanted);
        let Some(config) = found else {
            let config = located.path.display().to_string();
            return Err(OpenerError::NotConfigured { config, path: path.to_owned() });
        };
        if located.remote(config).map_err(DeviceError::from)?.is_some() {
            return Err(OpenerError::Remote(path.to_owned()));
        }
        if open.iter().any(|device| device.path == wanted) {
            return Err(OpenerError::Open(path.to_owned()));
        }
        Ok((self::open(&located, config, &runtime, world)?, config.clone()))
    }
}

/// An NBD export as a device.
fn connect(
    located: &Located,
    config: &DeviceConfig,
    uri: Uri,
    name: &str,
    runtime: &Runtime,
    world: &World,
) -> Result<Device, DeviceError> {
    let address = match uri.address {
        Address::Unix(path) => Address::Unix(located.resolve(&path)),
        tcp @ Address::Tcp { .. } => tcp,
    };
    let options = remote_options(config.class.map_or(Class::Durable, Into::into));
    let world = world.clone();
    let connected = runtime.block_on(async move { RemoteDisk::connect(&world, &address, &uri.export, options).await });
    match connected {
        Ok(disk) => Ok(Arc::new(disk)),
        Err(error) => Err(DeviceError::Remote { uri: name.to_owned(), error }),
    }
}

/// How a far disk behaves. Its connections have a lineage: a write that a lost connection left at a Flashcell server ends before the next
/// connection is read, so it never lands over data that was destaged later. Without random numbers there is none: a number that others may
/// have would end their connections.
fn remote_options(class: Class) -> RemoteOptions {
    let mut random = [0; 16];
    let lineage = getrandom::fill(&mut random).ok().map(|()| u128::from_ne_bytes(random));
    RemoteOptions { class, lineage, ..RemoteOptions::default() }
}

/// The devices that can be served from.
pub(crate) struct Found {
    /// Open, with a label of a cell disk.
    pub(crate) devices: Vec<OpenDevice>,
    /// What is not there or not usable, and not required: lines for the log.
    pub(crate) without: Vec<String>,
}

/// Open every device of the configuration and look at its label.
///
/// # Errors
/// The first one that is required and cannot be used.
pub(crate) fn open_all(located: &Located, runtime: &Runtime, world: &World) -> Result<Found, DeviceError> {
    let mut found = Found { devices: Vec::new(), without: Vec::new() };
    let mut labelled = Vec::new();
    let configs = &located.config.device;
    let opened: Vec<_> = configs.iter().map(|config| open_for_start(located, config, runtime, world)).collect();
    // At once: several that do not answer are waited for as long as one.
    let labels = opened.into_iter().map(|opened| {
        let deadline_s = located.config.start_deadline_s;
        async move { labelled_as(opened?, deadline_s).await }
    });
    let labels = labels.collect::<Vec<_>>();
    for (config, opened) in configs.iter().zip(runtime.block_on(join_all(labels))) {
        match opened {
            Ok((device, label)) => {
                let expected = if config.kind == DeviceKind::Disk { Role::Disk } else { Role::Flash };
                if label.role != expected {
                    let path = device.path.display();
                    let role = label.role;
                    found.without.push(format!("{path}: cell.toml calls it {:?}, its label {role:?}", config.kind));
                }
                labelled.push((device, label, config.is_required()));
            }
            // Somebody else writes to it: that is never to be passed over.
            Err(error @ DeviceError::Open(OpenError::InUse { .. })) => return Err(error),
            // Nor is what a newer release has written: flash may hold what no disk has, and going on without it makes that void.
            Err(error @ DeviceError::Unusable { error: CellDiskError::Newer(_), .. }) => return Err(error),
            Err(DeviceError::Open(error @ OpenError::NotFound { .. })) if config.is_required() => {
                return Err(DeviceError::Missing(error));
            }
            Err(error) if config.is_required() => return Err(error),
            Err(error) => found.without.push(format!("going on without {error}")),
        }
    }
    keep_one_cell(labelled, &mut found)?;
    // At once: where several are to be watched, they are for as long as one.
    let claims: Vec<_> = found.devices.iter().map(|device| device.claim(world, claim::tell_in_log)).collect();
    for claimed in runtime.block_on(join_all(claims)) {
        claimed?;
    }
    Ok(found)
}

/// Take the devices of one cell: that of the first required one. Flash of another cell that was put in its place must
/// not keep the cell from serving (I3).
fn keep_one_cell(labelled: Vec<(OpenDevice, Box<Label>, bool)>, found: &mut Found) -> Result<(), DeviceError> {
    let first = labelled.iter().find(|(_, _, required)| *required).or(labelled.first());
    let Some((cell_id, other)) = first.map(|(device, label, _)| (label.cell_id, device.path.display().to_string()))
    else {
        return Ok(());
    };
    for (device, label, required) in labelled {
        if label.cell_id == cell_id {
            found.devices.push(device);
            continue;
        }
        let error = DeviceError::ForeignCell {
            path: device.path.display().to_string(),
            name: label.name,
            other: other.clone(),
        };
        if required {
            return Err(error);
        }
        found.without.push(format!("going on without {error}"));
    }
    Ok(())
}

/// A device with the label that it carries.
async fn labelled_as(mut open: OpenDevice, deadline_s: u64) -> Result<(OpenDevice, Box<Label>), DeviceError> {
    let path = open.path.display().to_string();
    let unusable = |error| DeviceError::Unusable { path: path.clone(), error };
    let probed = celldisk::probe(&open.device()).await;
    if open.start.is_silent() {
        return Err(DeviceError::Silent { path, seconds: deadline_s });
    }
    match probed.map_err(unusable)? {
        Probe::Flashcell(label) if label.adopted.map(|adopted| adopted.volume_bytes) != open.adopted_bytes => {
            Err(DeviceError::AdoptedOrNot { path })
        }
        Probe::Flashcell(label) => {
            open.device_id = Some(label.device_id);
            Ok((open, label))
        }
        Probe::Blank => Err(unusable(CellDiskError::Blank)),
        Probe::Foreign { what } => Err(unusable(CellDiskError::Foreign { what })),
        Probe::Damaged { why } => Err(unusable(CellDiskError::Damaged { why })),
        Probe::Newer(error) => Err(unusable(CellDiskError::Newer(error))),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use device::layers::Memory;
    use device::{Buf, Bufs, RuntimeConfig};

    #[test]
    fn every_far_disk_has_a_lineage_of_its_own() {
        let of = || remote_options(Class::Durable).lineage;
        assert!(of().is_some() && of() != of());
    }

    #[test]
    fn small_and_large_are_counted_apart() {
        let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
        let io = BySize::new(Memory::new(4 << 20), &runtime.world(1));
        let device: Device = io.clone();
        let done = runtime.block_on(async move {
            let mut all_done = true;
            for len in [512, 128 << 10, (128 << 10) + 512] {
                let mut bufs = Bufs::new();
                bufs.push(Buf::zeroed(len));
                all_done &= device.read(0, bufs).await.outcome.ok().is_ok();
            }
            all_done & device.flush().await.outcome.ok().is_ok()
        });
        assert!(done);
        let totals = io.totals("CD_00_x".to_owned());
        assert_eq!((totals.read_small.requests, totals.read_small.bytes), (2, (128 << 10) + 512));
        assert_eq!((totals.read_large.requests, totals.read_large.bytes), (1, (128 << 10) + 512));
        assert_eq!((totals.flush.requests, totals.errors, totals.in_flight), (1, 0, 0));
        let each = totals.utilised_small_ns + totals.utilised_large_ns;
        assert!(totals.utilised_ns <= each, "one after the other: {totals:?}");
    }
}
