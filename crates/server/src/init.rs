//! Making a cell: its directory, its devices, its catalog, `cell.toml`.
//!
//! `cell.toml` is written last, so a directory that has one has a whole cell. Never overwrites anything unless told to
//! by force; files it made itself are removed when it fails.

use crate::config::{ClassChoice, Config, ConfigError, DeviceConfig, DeviceKind, FILE_NAME, Located, is_uri};
use crate::devices::{self, DeviceError, OpenDevice};
use crate::dir;
use crate::durability;
use crate::images;
use crate::lock::{DirLock, LockError};
use cell::{AdminError, Cell, CellError};
use cellcli::answer::{parse_size, size_text};
use celldisk::{CachingMode, CellDiskError, DeviceId, GridDiskSpec, Probe, Purpose, Role};
use device::{Address, OpenOptions, Runtime, RuntimeConfig, RuntimeError, World};
use futures_util::future::join_all;
use nbd::Uri;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Longest name a cell gets from its directory: `DATA_CD_00_<name>` then still is a grid disk name.
const NAME_BYTES_MAX: usize = 18;
/// Disks and flash devices one call may name: what a cell can have.
const DEVICES_MAX: usize = 128;

/// How a new cell disk that is not counted as durable becomes one that is.
const DURABLE_WAY_OUT: &str = "make the cell anew (--force) with --durable yes if a FLUSH on it does survive a power cut of \
                               the host, with --durable no if not";

/// What to make.
#[derive(Clone, Debug, Default)]
pub struct InitPlan {
    /// The cell's directory, made when it is not there.
    pub dir: PathBuf,
    /// `SIZE`, `PATH` or NBD URI.
    pub disks: Vec<String>,
    /// `SIZE` or `PATH` (an NBD URI works too, and makes little sense).
    pub flash: Vec<String>,
    /// Grid disks to make, on the disks with the most room.
    pub grid_disks: Vec<GridDiskPlan>,
    /// A medium to emulate on every disk.
    pub disk_model: Option<String>,
    /// Image files take space as they need it, instead of having it from the beginning.
    pub sparse: bool,
    /// What the operator says of devices whose class is not found out; `None`: nothing, and they are not counted as durable.
    pub durable: Option<ClassChoice>,
    /// Destroy what is there.
    pub force: bool,
}

/// `NAME:SIZE[:data|redo|temp][:MODE]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridDiskPlan {
    /// Name.
    pub name: String,
    /// Bytes.
    pub size_bytes: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// How it is cached.
    pub mode: CachingMode,
}

impl FromStr for GridDiskPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<GridDiskPlan, String> {
        let mut parts = text.split(':');
        let form = || format!("{text:?} is not of the form NAME:SIZE[:data|redo|temp][:MODE]");
        let name = parts.next().filter(|name| !name.is_empty()).ok_or_else(form)?.to_owned();
        let size_bytes = parts.next().and_then(parse_size).ok_or_else(form)?;
        let (mut purpose, mut mode) = (None, None);
        for part in parts {
            if let (None, None, Some(known)) = (purpose, mode, purpose_named(part)) {
                purpose = Some(known);
            } else if let (None, Some(known)) = (mode, caching_mode_named(part)) {
                mode = Some(known);
            } else {
                return Err(form());
            }
        }
        let purpose = purpose.unwrap_or(Purpose::Data);
        let mode = mode.unwrap_or_else(|| default_mode_on_disk(purpose));
        Ok(GridDiskPlan { name, size_bytes, purpose, mode })
    }
}

/// The caching mode of a grid disk on a disk that states none. A database reads its log back after a crash at most: in the cache it would take
/// the place of data, and wear the flash for nothing beside the flash log.
pub(crate) fn default_mode_on_disk(purpose: Purpose) -> CachingMode {
    match purpose {
        Purpose::Redo => CachingMode::None,
        Purpose::Data | Purpose::Temp => CachingMode::WriteThrough,
    }
}

/// The purpose of that name.
pub(crate) fn purpose_named(name: &str) -> Option<Purpose> {
    [Purpose::Data, Purpose::Redo, Purpose::Temp].into_iter().find(|p| purpose_name(*p).eq_ignore_ascii_case(name))
}

/// The word of the language for a purpose.
pub(crate) fn purpose_name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Data => "data",
        Purpose::Redo => "redo",
        Purpose::Temp => "temp",
    }
}

const MODES: [CachingMode; 5] = [
    CachingMode::WriteThrough,
    CachingMode::WriteBack,
    CachingMode::WriteBackOrdered,
    CachingMode::WriteAround,
    CachingMode::None,
];

/// The caching mode of that name.
pub(crate) fn caching_mode_named(name: &str) -> Option<CachingMode> {
    MODES.into_iter().find(|mode| caching_mode_name(*mode).eq_ignore_ascii_case(name))
}

/// The word of the language for a caching mode.
pub(crate) fn caching_mode_name(mode: CachingMode) -> &'static str {
    match mode {
        CachingMode::WriteThrough => "write-through",
        CachingMode::WriteBack => "write-back",
        CachingMode::WriteBackOrdered => "write-back-ordered",
        CachingMode::WriteAround => "write-around",
        CachingMode::None => "none",
    }
}

/// Why a cell was not made.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The plan makes no sense.
    #[error("{what}\nhint: {hint}")]
    Plan {
        /// What is wrong.
        what: String,
        /// What would do.
        hint: &'static str,
    },
    /// There is one.
    #[error("{dir} holds a cell already\nhint: choose another directory, or add --force to destroy that cell")]
    Exists {
        /// Where.
        dir: PathBuf,
    },
    /// A file is in the way.
    #[error("{path} is there already\nhint: remove it, or add --force to overwrite it")]
    FileExists {
        /// Which.
        path: PathBuf,
    },
    /// It is being served.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// A file cannot be made.
    #[error("{path}: {source}\nhint: check that there is space, and the mode of the directory")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An image does not fit.
    #[error(
        "{path}: {} asked, {} free\nhint: make it smaller, free some space, or add --sparse: a sparse image fails when its file system is full",
        size_text(*.wanted_bytes), size_text(*.free_bytes)
    )]
    NoRoom {
        /// Which.
        path: PathBuf,
        /// What was asked.
        wanted_bytes: u64,
        /// What its file system has.
        free_bytes: u64,
    },
    /// A device cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A device cannot be formatted.
    #[error("{path}: {error}\nhint: {}", .error.hint().unwrap_or("check the device"))]
    Format {
        /// Which.
        path: String,
        /// Why.
        error: CellDiskError,
    },
    /// The new cell cannot be opened.
    #[error("{error}{}", .hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
    Cell {
        /// Why.
        error: CellError,
        /// What to do.
        hint: Option<&'static str>,
    },
    /// A grid disk or the flash cache was not made.
    #[error("{what}: {error}")]
    Object {
        /// Which.
        what: String,
        /// Why.
        error: AdminError,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Threads or rings.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl From<CellError> for InitError {
    fn from(error: CellError) -> InitError {
        let hint = if let CellError::Store(error) = &error { error.hint() } else { None };
        InitError::Cell { error, hint }
    }
}

/// Files made so far; removed when the making fails.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            // It was made a moment ago, nothing is lost; when it cannot be removed the next init says so.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Make a cell. What was made, in lines for people.
///
/// # Errors
/// See [`InitError`]; devices that were formatted by then stay so, files it made are removed.
pub fn init(plan: &InitPlan) -> Result<Vec<String>, InitError> {
    check(plan)?;
    let dir = std::path::absolute(&plan.dir).map_err(|source| InitError::Io { path: plan.dir.clone(), source })?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| InitError::Io { path, source }
    };
    std::fs::create_dir_all(&dir).map_err(io(&dir))?;
    let toml = dir.join(FILE_NAME);
    if toml.exists() && !plan.force {
        return Err(InitError::Exists { dir });
    }
    let lock = DirLock::take(&dir)?;
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() })?;
    let world = runtime.world(seed());
    let given = Given::open(&dir, plan, &runtime, &world)?;
    if toml.exists() {
        // From here on there is no cell here until the new one is whole.
        std::fs::remove_file(&toml).map_err(io(&toml))?;
    }

    let mut made = Made::default();
    let mut config = Config::default();
    for (kind, wanted) in [(DeviceKind::Disk, &plan.disks), (DeviceKind::Flash, &plan.flash)] {
        for (index, text) in wanted.iter().enumerate() {
            let path = device_path(&dir, (kind, index), text, plan, &runtime, &mut made)?;
            let mut device = DeviceConfig::new(path, kind);
            device.sparse = plan.sparse && parse_size(text).is_some();
            if !is_uri(text) {
                let path = dir.join(&device.path);
                let found = device::durability(&path, None).map_err(io(&path))?;
                device.class = durability::answer(&found, plan.durable);
            }
            if kind == DeviceKind::Disk {
                device.model.clone_from(&plan.disk_model);
            }
            config.device.push(device);
        }
    }
    let located = Located { config, path: toml.clone(), dir: dir.clone() };
    let mut summary = make_cell(&located, plan, given, &cell_name(&dir), &runtime, &world)?;

    let text = located.config.to_text();
    dir::write(&toml, dir::GROUP, text.as_bytes()).map_err(io(&toml))?;
    made.0.clear();
    drop(lock);
    summary.push(format!("wrote {}", toml.display()));
    Ok(summary)
}

fn check(plan: &InitPlan) -> Result<(), InitError> {
    let wrong = |what: String, hint| Err(InitError::Plan { what, hint });
    if plan.disks.is_empty() {
        return wrong("a cell needs a disk".to_owned(), "add --disk SIZE for a file, or --disk PATH");
    }
    if plan.disks.len().max(plan.flash.len()) > DEVICES_MAX {
        return wrong(format!("a cell has at most {DEVICES_MAX} disks"), "make several cells");
    }
    for text in plan.disks.iter().chain(&plan.flash).filter(|text| is_uri(text)) {
        match text.parse::<Uri>() {
            Err(error) => {
                return wrong(error.to_string(), "nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH");
            }
            Ok(Uri { address: Address::Unix(path), .. }) if path.is_relative() => {
                return wrong(format!("{text}: the path of the socket is relative"), "name it from the root");
            }
            Ok(_) => {}
        }
    }
    if let Some(redo) = plan.grid_disks.iter().find(|g| g.purpose == Purpose::Redo && g.mode.is_write_back()) {
        let (name, mode) = (&redo.name, caching_mode_name(redo.mode));
        return wrong(
            format!("grid disk {name}: redo in {mode} would bypass the flash log"),
            "leave the mode away: with --flash, init makes a flash log that takes commits on flash and disk; or use :data",
        );
    }
    if let Some(model) = &plan.disk_model
        && let Err(error) = model.parse::<device::layers::Model>()
    {
        let what = format!("--disk-model {model}: no such model");
        // The hint of the error lists the names; it is part of its text.
        return wrong(format!("{what} ({})", error.to_string().replace("\nhint:", ";")), "choose one of these");
    }
    Ok(())
}

/// A seed from the kernel.
pub(crate) fn seed() -> u64 {
    // The kernel's generator has been ready since boot; if it is not there, nothing that needs an identity may start.
    match getrandom::u64() {
        Ok(seed) => seed,
        Err(error) => panic!("the kernel gives no random numbers: {error}"),
    }
}

/// The path of a device that is there.
fn given_path(dir: &Path, text: &str) -> Result<PathBuf, InitError> {
    if is_uri(text) {
        return Ok(text.into());
    }
    let path = std::path::absolute(text).map_err(|source| InitError::Io { path: text.into(), source })?;
    Ok(path.strip_prefix(dir).map(Path::to_owned).unwrap_or(path))
}

/// The devices of a plan that are there: open, by their path in the configuration; with `--force` claimed, those with a label. A
/// device with a label is perhaps used, by a process of this host or of another that reaches it too, and what is used is not
/// overwritten. Claims are given back when this goes: a stamp that stays makes a start on another host wait.
struct Given<'a> {
    devices: BTreeMap<PathBuf, OpenDevice>,
    runtime: &'a Runtime,
}

impl<'a> Given<'a> {
    /// Open and claim, before anything is changed.
    fn open(dir: &Path, plan: &InitPlan, runtime: &'a Runtime, world: &World) -> Result<Given<'a>, InitError> {
        let mut given = Given { devices: BTreeMap::new(), runtime };
        let located = Located { config: Config::default(), path: dir.join(FILE_NAME), dir: dir.to_owned() };
        for (kind, wanted) in [(DeviceKind::Disk, &plan.disks), (DeviceKind::Flash, &plan.flash)] {
            for text in wanted.iter().filter(|text| is_uri(text) || parse_size(text).is_none()) {
                let path = given_path(dir, text)?;
                let open = devices::open(&located, &DeviceConfig::new(path.clone(), kind), runtime, world)?;
                given.devices.insert(path, open);
            }
        }
        if plan.force {
            given.claim(world)?;
        }
        Ok(given)
    }

    fn claim(&self, world: &World) -> Result<(), DeviceError> {
        let claims = self.devices.values().map(|open| {
            let (device, claim) = (open.device(), open.claim(world, tell_on_stderr));
            async move {
                match celldisk::probe(&device).await {
                    // There is no claim where there is no label; and what cannot be read is told by who formats it.
                    Ok(Probe::Blank | Probe::Foreign { .. }) | Err(_) => Ok(()),
                    Ok(Probe::Flashcell(_) | Probe::Damaged { .. } | Probe::Newer(_)) => claim.await,
                }
            }
        });
        // All at once: where several are to be watched, they are for as long as one.
        self.runtime.block_on(join_all(claims.collect::<Vec<_>>())).into_iter().collect()
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        let claims: Vec<_> = self.devices.values().map(OpenDevice::release).collect();
        self.runtime.block_on(join_all(claims));
    }
}

#[expect(clippy::print_stderr, reason = "a command that waits says why")]
fn tell_on_stderr(path: &Path, why: &str) {
    eprintln!("{}: {why}", path.display());
}

/// The path of one device, made as a file when a size was given. Relative to the directory when it lies there.
fn device_path(
    dir: &Path,
    (kind, index): (DeviceKind, usize),
    text: &str,
    plan: &InitPlan,
    runtime: &Runtime,
    made: &mut Made,
) -> Result<PathBuf, InitError> {
    let Some(size_bytes) = parse_size(text) else { return given_path(dir, text) };
    let name = match kind {
        DeviceKind::Disk => format!("disk-{index}.img"),
        DeviceKind::Flash => format!("flash-{index}.img"),
    };
    let path = dir.join(&name);
    if path.exists() {
        if !plan.force {
            return Err(InitError::FileExists { path });
        }
        // Opened with its lock: a server that is still finishing its last request keeps it.
        if let Err(error @ device::OpenError::InUse { .. }) = runtime.open(&path, &OpenOptions::default()) {
            return Err(DeviceError::Open(error).into());
        }
        std::fs::remove_file(&path).map_err(|source| InitError::Io { path: path.clone(), source })?;
    }
    images::make(&path, size_bytes, kind, plan.sparse)?;
    made.0.push(path);
    Ok(name.into())
}

/// A name for the cell: the directory's, as far as names allow.
fn cell_name(dir: &Path) -> String {
    let last = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut name: String = last.chars().filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect();
    name = name.trim_start_matches('-').to_owned();
    name.truncate(NAME_BYTES_MAX);
    if name.is_empty() { "cell".to_owned() } else { name }
}

fn make_cell(
    located: &Located,
    plan: &InitPlan,
    given: Given<'_>,
    name: &str,
    runtime: &Runtime,
    world: &World,
) -> Result<Vec<String>, InitError> {
    let mut new = Vec::new();
    let mut opened = Vec::new();
    let mut paths = BTreeMap::new();
    let mut notes = Vec::new();
    let (mut disks, mut flash) = (0, 0);
    for config in &located.config.device {
        // An emulated medium would only make this slow.
        let plain = DeviceConfig { model: None, ..config.clone() };
        let made;
        let open = match given.devices.get(&config.path) {
            Some(open) => open,
            None => {
                made = devices::open(located, &plain, runtime, world)?;
                &made
            }
        };
        let (prefix, count) = match config.kind {
            DeviceKind::Disk => ("CD", &mut disks),
            DeviceKind::Flash => ("FD", &mut flash),
        };
        let cell_disk = format!("{prefix}_{count:02}_{name}");
        *count += 1;
        paths.insert(cell_disk.clone(), open.path.display().to_string());
        let unstated = open.durability.as_ref().filter(|_| config.class.is_none());
        notes.extend(unstated.and_then(|found| durability::note(&cell_disk, found, DURABLE_WAY_OUT)));
        new.push(open.to_be(config, cell_disk));
        opened.push(open.for_cell());
    }
    let has_flash = !plan.flash.is_empty();
    let (plan, name, world) = (plan.clone(), name.to_owned(), world.clone());
    runtime.block_on(async move {
        let store = Cell::create(&name, new, plan.force, &world).await.map_err(|error| match error {
            CellError::Format { name, error } => {
                let path = paths.get(&name).cloned().unwrap_or(name);
                InitError::Format { path, error }
            }
            other => other.into(),
        })?;
        let mut summary = Vec::new();
        for disk in store.cell_disks() {
            let size = size_text(disk.label().size_bytes);
            summary.push(format!("cell disk {} on {size}", disk.name()));
        }
        drop(store);
        let (cell, _) = Cell::open(opened, cell::CellConfig::default(), world.clone()).await?;
        for wanted in &plan.grid_disks {
            let made = make_grid_disk(&cell, wanted, &world).await?;
            summary.push(made);
        }
        if has_flash && plan.grid_disks.iter().any(|wanted| wanted.purpose == Purpose::Redo) {
            // Before the cache, which takes what is left.
            summary.push(make_flash_log(&cell).await?);
        }
        if has_flash {
            cell.create_flash_cache(None, &[])
                .await
                .map_err(|error| InitError::Object { what: "flash cache".to_owned(), error })?;
            summary.push("flash cache on all flash".to_owned());
            summary.extend(not_in_write_back(&cell, &plan.grid_disks));
        }
        cell.stop().await?;
        summary.extend(notes);
        Ok(summary)
    })
}

/// What is said of grid disks that were asked for in write-back, where the flash cache takes no dirty data.
fn not_in_write_back(cell: &Cell, wanted: &[GridDiskPlan]) -> Option<String> {
    let takes_dirty = cell.flash_cache().is_some_and(|cache| cache.takes_dirty());
    let names: Vec<&str> = wanted.iter().filter(|it| it.mode.is_write_back()).map(|it| it.name.as_str()).collect();
    (!takes_dirty && !names.is_empty()).then(|| {
        let names = names.join(", ");
        format!("no flash is of class durable: writes to {names} wait for the disk, as in write-through")
    })
}

/// The flash log in its usual size; what has become of it.
async fn make_flash_log(cell: &Arc<Cell>) -> Result<String, InitError> {
    match cell.create_flash_log(None, &[]).await {
        Ok(()) => {}
        Err(AdminError::NoDurableFlash) => {
            return Ok("no flash log: no flash is of class durable, commits wait for the disks".to_owned());
        }
        Err(error) => return Err(InitError::Object { what: "flash log".to_owned(), error }),
    }
    let catalog = cell.store().catalog();
    let Some(log) = &catalog.flash_log else { return Ok("no flash log".to_owned()) };
    let on: Vec<&str> =
        log.regions.keys().filter_map(|id| catalog.members.get(id).map(|member| member.name.as_str())).collect();
    let (on, all_bytes) = (on.join(", "), log.size_per_device_bytes * log.regions.len() as u64);
    Ok(format!("flash log of {} on {on}, since a grid disk carries redo", size_text(all_bytes)))
}

async fn make_grid_disk(cell: &Arc<Cell>, wanted: &GridDiskPlan, world: &World) -> Result<String, InitError> {
    let Some(cell_disk) = roomiest(cell) else {
        return Err(InitError::Plan { what: "a cell needs a disk".to_owned(), hint: "add --disk SIZE" });
    };
    let spec = GridDiskSpec {
        purpose: wanted.purpose,
        caching_mode: wanted.mode,
        ..GridDiskSpec::new(&wanted.name, cell_disk, wanted.size_bytes, world.clock.wall())
    };
    let made = cell.create_grid_disk(spec, &mut |_, _| ()).await;
    let disk = made.map_err(|error| InitError::Object { what: format!("grid disk {}", wanted.name), error })?;
    let (size_bytes, asked_bytes) = (disk.size_bytes(), wanted.size_bytes);
    let rounded = match size_bytes == asked_bytes {
        true => String::new(),
        false => format!(", {size_bytes} bytes: {asked_bytes} rounded up to a multiple of 64K"),
    };
    Ok(format!("grid disk {} of {}{rounded}", disk.name(), size_text(size_bytes)))
}

/// The disk with the most free space.
fn roomiest(cell: &Cell) -> Option<DeviceId> {
    let catalog = cell.store().catalog();
    let disks = catalog.members.iter().filter(|(_, member)| member.role == Role::Disk);
    disks.max_by_key(|(id, _)| catalog.free_bytes(**id)).map(|(id, _)| *id)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn grid_disk_plans() {
        let plan = |text: &str| text.parse::<GridDiskPlan>();
        let full = plan("redo1:512M:redo:none").unwrap();
        assert_eq!((full.size_bytes, full.purpose, full.mode), (512 << 20, Purpose::Redo, CachingMode::None));
        let bare = plan("data:1G").unwrap();
        assert_eq!((bare.purpose, bare.mode), (Purpose::Data, CachingMode::WriteThrough));
        assert_eq!(plan("l:1G:redo").unwrap().mode, CachingMode::None);
        assert_eq!(plan("t:1G:write-around").unwrap().mode, CachingMode::WriteAround);
        for wrong in ["", "a", "a:", ":1G", "a:1G:x", "a:1G:none:redo", "a:1G:redo:redo", "a:1G:none:none"] {
            assert!(plan(wrong).unwrap_err().contains("NAME:SIZE"), "{wrong}");
        }
    }

    #[test]
    fn redo_in_write_back_is_refused_before_anything_is_made() {
        for (text, refused) in
            [("r:1G:redo:write-back", true), ("r:1G:redo:write-back-ordered", true), ("r:1G:redo", false)]
        {
            let grid_disks = vec![text.parse().unwrap()];
            let plan = InitPlan { disks: vec!["2G".to_owned()], grid_disks, ..InitPlan::default() };
            let told = check(&plan).map_err(|error| error.to_string());
            assert_eq!(told.is_err(), refused, "{text}: {told:?}");
            assert!(
                told.is_ok() || told.unwrap_err().contains("would bypass the flash log\nhint: leave the mode away")
            );
        }
    }

    #[test]
    fn cell_names_come_from_directories() {
        for (dir, name) in [("/a/exa1", "exa1"), ("/", "cell"), ("/a/-x y.z", "xyz"), ("/a/.", "a")] {
            assert_eq!(cell_name(Path::new(dir)), name, "{dir}");
        }
        assert_eq!(cell_name(Path::new("/a/abcdefghijklmnopqrstuvwxyz")), "abcdefghijklmnopqr");
    }
}
