//! `flashcell adopt` and `flashcell release`: a cache in front of a volume that holds a file system, in place.
//!
//! The cell is stopped meanwhile. Adopt: metadata file, then the catalog, then `cell.toml`. Release: everything on the volume, then the catalog,
//! `cell.toml`, the metadata file. Cut off anywhere, either is repeated: what an adopt has left is taken away first, what a release has
//! done is not done again. Adopt writes nothing to the volume, and release what flash alone has of it: nothing unless it was in write-back-ordered.

mod entry;
mod told;
mod volume;

use crate::attach;
use crate::config::{Config, ConfigError, DeviceConfig, DeviceKind, Located, is_uri};
use crate::console::CELL_VARIABLE;
use crate::devices::{self, DeviceError, OpenDevice};
use crate::dir::{Dir, GROUP, PRIVATE};
use crate::init::{caching_mode_name, seed};
use crate::lock::{DirLock, LockError};
use crate::serve::{ServeError, cell_config};
use cell::journal_space_bytes;
use cell::{AdminError, Cell, CellConfig};
use celldisk::layout::{AU_BYTES_MIN, DATA_OFFSET};
use celldisk::{CachingMode, Catalog, DeviceId, GridDiskError, GridDiskSpec, Label, METADATA_BYTES, Probe};
use device::{Buf, Bufs, Device, Outcome, Runtime, RuntimeConfig, RuntimeError, World};
use futures_util::future::join_all;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest name of a grid disk.
const NAME_BYTES_MAX: usize = 30;

/// What to adopt.
#[derive(Clone, Debug)]
pub struct AdoptOptions {
    /// A block device, or an image file.
    pub volume: PathBuf,
    /// The cell's directory or `cell.toml`; none: the variable, or the current directory.
    pub cell: Option<PathBuf>,
    /// The grid disk's name; none: that of the volume.
    pub name: Option<String>,
    /// How it is cached.
    pub mode: String,
    /// The operator's word that nobody uses the volume but through the cell.
    pub exclusive_use: bool,
}

/// What to release.
#[derive(Clone, Debug)]
pub struct ReleaseOptions {
    /// The volume as it was adopted, or its grid disk.
    pub what: PathBuf,
    /// As for adopt.
    pub cell: Option<PathBuf>,
    /// What counts where volume and flash have gone apart; none: that is refused.
    pub counts: Option<Counts>,
}

/// Which of the two counts where a volume was used without the cell while flash had newer data of it, or where that flash is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The volume as it is: what flash alone has is given up.
    Volume,
    /// What flash has is written to the volume, over whatever it has become.
    Cache,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// It would not be safe, or makes no sense.
    #[error("{what}\nhint: {hint}")]
    Refused {
        /// What stands against it.
        what: String,
        /// The way out.
        hint: &'static str,
    },
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cell is being served.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// Threads or rings.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The cell cannot be opened or stopped.
    #[error(transparent)]
    Cell(#[from] ServeError),
    /// The cell has refused.
    #[error("{error}{}", hint_of(.error))]
    Admin {
        /// Why.
        error: AdminError,
    },
    /// A file of the cell.
    #[error(
        "{path}: {source}\nhint: check the space, the owner and the mode of the cell's directory, and repeat the command"
    )]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl From<AdminError> for AdoptError {
    fn from(error: AdminError) -> AdoptError {
        AdoptError::Admin { error }
    }
}

fn hint_of(error: &AdminError) -> String {
    let hint = if let AdminError::Store(error) = error { error.hint() } else { None };
    hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default()
}

fn refuse<T>(what: String, hint: &'static str) -> Result<T, AdoptError> {
    Err(AdoptError::Refused { what, hint })
}

/// A stopped cell that nobody else serves meanwhile.
struct Stopped {
    located: Located,
    runtime: Runtime,
    world: World,
    _lock: DirLock,
}

impl Stopped {
    fn take(cell: Option<&Path>) -> Result<Stopped, AdoptError> {
        let named = cell.map(Path::to_owned).or_else(|| std::env::var_os(CELL_VARIABLE).map(PathBuf::from));
        let located = Config::load(&named.unwrap_or_else(|| PathBuf::from(".")))?;
        let lock = DirLock::take(&located.dir)?;
        let runtime =
            Runtime::new(RuntimeConfig { threads: 1, backend: located.config.io.into(), ..RuntimeConfig::default() })?;
        let world = runtime.world(seed());
        Ok(Stopped { located, runtime, world, _lock: lock })
    }

    /// The entry of an adopted volume, by its path or (`or_name`) by the name of its metadata file.
    fn entry(&self, volume: &Path, or_name: bool) -> Option<&DeviceConfig> {
        let wanted = std::path::absolute(volume).unwrap_or_else(|_| volume.to_owned());
        let same = |path: &Path| {
            path == wanted || path.canonicalize().is_ok_and(|path| wanted.canonicalize().is_ok_and(|it| it == path))
        };
        let named = volume.to_str().filter(|_| or_name).map(metadata_name);
        let local = |device: &&DeviceConfig| !device.path.to_str().is_some_and(is_uri);
        let mut devices = self.located.config.device.iter().filter(local);
        let it = |device: &&DeviceConfig| {
            same(&self.located.resolve(&device.path))
                || named.is_some() && device.metadata.as_deref().and_then(Path::to_str) == named.as_deref()
        };
        devices.find(it)
    }

    /// Carry out a change of the cell while it is open, and stop it clean. What flash has of a volume that was used counts where it is
    /// `believed`.
    fn change<T, F>(
        &self,
        found: Vec<OpenDevice>,
        believed: Option<DeviceId>,
        change: impl FnOnce(Arc<Cell>, World) -> F + Send + 'static,
    ) -> Result<T, AdoptError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, AdoptError>> + Send,
    {
        let config = CellConfig { believe_cache: believed, ..cell_config(&self.located)? };
        let opened: Vec<_> = found.iter().map(OpenDevice::for_cell).collect();
        let world = self.world.clone();
        let changed = self.runtime.block_on(async move {
            let (cell, _) = Cell::open(opened, config, world.clone()).await.map_err(ServeError::from)?;
            cell.index_is_whole().await;
            let changed = change(cell.clone(), world).await;
            // Whatever became of it.
            let stopped = cell.stop().await.map_err(ServeError::from);
            let changed = changed?;
            stopped?;
            Ok(changed)
        });
        let claims: Vec<_> = found.iter().map(OpenDevice::release).collect();
        self.runtime.block_on(join_all(claims));
        changed
    }

    /// Write `cell.toml` anew, for whom it belongs to.
    fn write_config(&self, text: &str) -> Result<(), AdoptError> {
        self.write(&self.located.path, GROUP, text.as_bytes())
    }

    /// Write a file of the cell, for whom `cell.toml` belongs to.
    fn write(&self, path: &Path, mode: u32, bytes: &[u8]) -> Result<(), AdoptError> {
        let io = |source| AdoptError::Io { path: path.to_owned(), source };
        let (config_dir, config) = Dir::of(&self.located.path).map_err(io)?;
        let owner = config_dir.owner_of(config).map_err(io)?;
        let (dir, name) = Dir::of(path).map_err(io)?;
        dir.write(name, mode, owner, bytes).map_err(io)
    }

    fn read_config(&self) -> Result<String, AdoptError> {
        let path = self.located.path.clone();
        std::fs::read_to_string(&path).map_err(|source| AdoptError::Io { path, source })
    }

    fn remove(&self, path: &Path) -> Result<(), AdoptError> {
        let io = |source| AdoptError::Io { path: path.to_owned(), source };
        std::fs::remove_file(path).map_err(io)?;
        std::fs::File::open(&self.located.dir).and_then(|dir| dir.sync_all()).map_err(io)
    }
}

/// The metadata file of a grid disk, beside `cell.toml`.
fn metadata_name(grid_disk: &str) -> String {
    format!("adopted-{}.meta", grid_disk.to_lowercase())
}

/// A name for the grid disk: that of the volume, as far as names allow.
fn name_of(volume: &Path) -> String {
    let stem = volume.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut name: String = stem.chars().filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)).collect();
    name = name.trim_start_matches('-').to_owned();
    name.truncate(NAME_BYTES_MAX);
    if name.is_empty() { "volume".to_owned() } else { name }
}

/// Whether the name can be part of that of a file; what else stands against it, the catalog says.
fn check_name(name: &str) -> Result<(), AdoptError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.$#".contains(c);
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(fits) && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    refuse(format!("{name:?} is no name for a grid disk"), "--name with up to 30 letters, digits, _ and -")
}

/// The modes there are for an adopted volume.
fn check_mode(mode: &str, exclusive_use: bool) -> Result<CachingMode, AdoptError> {
    let known = crate::init::caching_mode_named(mode);
    match known {
        None => refuse(
            format!("{mode:?} is no caching mode"),
            "--mode write-through, write-around, none or write-back-ordered",
        ),
        Some(mode @ (CachingMode::WriteThrough | CachingMode::WriteAround | CachingMode::None)) => Ok(mode),
        Some(mode @ CachingMode::WriteBackOrdered) if exclusive_use => Ok(mode),
        Some(mode @ CachingMode::WriteBackOrdered) => refuse(
            format!(
                "an adopted volume is not cached in {} unless you give your word that nobody uses it but through the cell: flash has \
                     writes then that the volume does not have, and who mounts the volume without them may destroy the file system",
                caching_mode_name(mode)
            ),
            "add --exclusive-use if that is so; or leave --mode away (write-through)",
        ),
        Some(mode @ CachingMode::WriteBack) => refuse(
            format!(
                "an adopted volume is not cached in {}: were its flash lost, the volume would be torn",
                caching_mode_name(mode)
            ),
            "--mode write-back-ordered --exclusive-use takes writes on flash, and the volume is of one moment at any time; or leave \
             --mode away (write-through)",
        ),
    }
}

/// Bytes of the metadata file: with room for a journal where flash may have newer data than the volume.
fn metadata_bytes(stopped: &Stopped, volume: &Device, exclusive_use: bool) -> u64 {
    if !exclusive_use {
        return METADATA_BYTES;
    }
    let (geometry, stated) = (volume.geometry(), stopped.located.config.flash_cache.journal.map(|size| size.0));
    METADATA_BYTES
        + journal_space_bytes(stated, geometry.size_bytes, geometry.page_bytes).next_multiple_of(AU_BYTES_MIN)
}

/// Adopt a volume: the grid disk's name, and lines for people.
///
/// # Errors
/// See [`AdoptError`]; the volume is as it was, and the command can be repeated.
pub fn adopt(options: &AdoptOptions) -> Result<(String, Vec<String>), AdoptError> {
    let mode = check_mode(&options.mode, options.exclusive_use)?;
    let name = options.name.clone().unwrap_or_else(|| name_of(&options.volume));
    check_name(&name)?;
    let stopped = Stopped::take(options.cell.as_deref())?;
    let path = std::path::absolute(&options.volume)
        .map_err(|source| AdoptError::Io { path: options.volume.clone(), source })?;
    if let Some(entry) = stopped.entry(&path, false) {
        return match entry.metadata {
            Some(_) => refuse(format!("{} is adopted already", path.display()), "`flashcell release` gives it back"),
            None => refuse(format!("{} is a disk of the cell", path.display()), "cell.toml names its devices"),
        };
    }
    let metadata = PathBuf::from(metadata_name(&name));
    if stopped.located.config.device.iter().any(|device| device.metadata.as_ref() == Some(&metadata)) {
        return refuse(format!("grid disk {name} is an adopted volume already"), "choose another name with --name");
    }
    // First: what is refused for the volume's sake changes nothing.
    let (volume, what) = volume::open(&path, &stopped.runtime)?;
    let (volume_bytes, sector_bytes) = (volume.geometry().size_bytes, volume::sector_bytes(&path, &volume));
    let metadata_bytes = metadata_bytes(&stopped, &volume, options.exclusive_use);
    drop(volume);
    // Before its metadata file is written anew: afterwards nothing tells which member of the catalog it was.
    if let Some(label) = left_over(&stopped, &metadata)? {
        let found = devices::open_all(&stopped.located, &stopped.runtime, &stopped.world)?.devices;
        stopped.change(found, None, move |cell, _| async move { forget(&cell, &label).await })?;
    }
    let found = devices::open_all(&stopped.located, &stopped.runtime, &stopped.world)?.devices;
    stopped.write(&stopped.located.resolve(&metadata), PRIVATE, &vec![0; metadata_bytes as usize])?;
    let config = DeviceConfig { metadata: Some(metadata), ..DeviceConfig::new(path.clone(), DeviceKind::Disk) };
    let new = devices::open(&stopped.located, &config, &stopped.runtime, &stopped.world)?;
    let rest_bytes = volume_bytes.next_multiple_of(AU_BYTES_MIN) - volume_bytes;
    let (grid_disk, entry) = (name.clone(), config.clone());
    stopped.change(found, None, move |cell, world| async move {
        if mode == CachingMode::WriteBackOrdered && cell.flash_cache().is_none() {
            return refuse(
                "the cell has no flash cache that could take writes".to_owned(),
                "add flash, or CREATE FLASHCACHE ALL; or leave --mode away (write-through)",
            );
        }
        let cell_disk = free_name(&cell.store().catalog());
        let new = new.to_be(&config, cell_disk);
        let spec = GridDiskSpec {
            caching_mode: mode,
            ..GridDiskSpec::new(&grid_disk, DeviceId(0), volume_bytes, world.clock.wall())
        };
        cell.adopt(new, spec).await?;
        Ok(())
    })?;
    stopped.write_config(&entry::with(&stopped.read_config()?, &stopped.located.config, &entry))?;
    let mut lines = vec![format!("{} with {what} is grid disk {name}: {volume_bytes} bytes", path.display())];
    if rest_bytes > 0 {
        lines.push(format!(
            "the grid disk has {rest_bytes} bytes more, in {}: do not let the file system grow into them",
            metadata_name(&name)
        ));
    }
    if mode == CachingMode::WriteBackOrdered {
        lines.push(format!(
            "writes are on flash before they are on the volume: nobody may mount {} until `flashcell release`",
            path.display()
        ));
    }
    lines.push(format!(
        "from now on mount it through the cell alone: flashcell serve, then flashcell attach {name} --sector-size {sector_bytes}"
    ));
    Ok((name, lines))
}

/// The label in a metadata file that the configuration does not name: of an adopt that was cut off, of a release, or of a volume whose lines
/// somebody has taken out.
fn left_over(stopped: &Stopped, metadata: &Path) -> Result<Option<Label>, AdoptError> {
    let path = stopped.located.resolve(metadata);
    if !path.exists() {
        return Ok(None);
    }
    let device = devices::open_metadata(&path, &stopped.runtime)?;
    // What is no label has no place in the catalog either.
    match stopped.runtime.block_on(async move { celldisk::probe(&device).await }) {
        Ok(Probe::Flashcell(label)) => Ok(Some(*label)),
        _ => Ok(None),
    }
}

/// Take out of the catalog what an adopt that was cut off has put there. The volume has everything then. Where it has not, somebody has taken
/// its lines out of the configuration; a batch in the journal is on flash too until it is in place, so that the label tells that as well.
async fn forget(cell: &Cell, label: &Label) -> Result<(), AdoptError> {
    let (store, id) = (cell.store(), label.device_id);
    let catalog = store.catalog();
    if !catalog.members.contains_key(&id) {
        return Ok(());
    }
    if !label.is_whole() {
        let mut names = catalog.grid_disks.values().filter(|record| record.cell_disk == id).map(|record| &record.name);
        return refuse(
            format!(
                "grid disk {} of this cell has data on flash that its volume does not have, and its lines are gone from cell.toml",
                names.next().unwrap_or(&label.name)
            ),
            "put its [[device]] lines, with `path` and `metadata`, back into cell.toml and give it back with `flashcell release`; or choose another \
             name with --name for another volume",
        );
    }
    let gone = |error: GridDiskError| AdoptError::from(AdminError::from(error));
    for record in catalog.grid_disks.values().filter(|record| record.cell_disk == id) {
        let _ = store.drop_grid_disk(record.id).await.map_err(gone)?;
    }
    let _ = store.remove(id).await.map_err(gone)?;
    store.forget_disk(id).await;
    Ok(())
}

/// As `flashcell init` names disks: the first number that is free.
fn free_name(catalog: &Catalog) -> String {
    let names = (0_u32..).map(|number| format!("CD_{number:02}_{}", catalog.cell_name));
    let free = names.into_iter().find(|name| catalog.member_named(name).is_none());
    free.unwrap_or_else(|| unreachable!("a cell has fewer disks than there are numbers"))
}

/// Release a volume: lines for people.
///
/// # Errors
/// See [`AdoptError`]; the volume holds everything at any moment, and the command can be repeated.
pub fn release(options: &ReleaseOptions) -> Result<Vec<String>, AdoptError> {
    let stopped = Stopped::take(options.cell.as_deref())?;
    let what = options.what.display().to_string();
    let entry = stopped.entry(&options.what, true).cloned();
    let Some((entry, metadata)) = entry.and_then(|entry| entry.metadata.clone().map(|metadata| (entry, metadata)))
    else {
        return refuse(
            format!("{what} is not an adopted volume of {}", stopped.located.path.display()),
            "name the volume as in cell.toml, or its grid disk; what was released needs no further release",
        );
    };
    let found = devices::open_all(&stopped.located, &stopped.runtime, &stopped.world)?.devices;
    let path = stopped.located.resolve(&entry.path);
    let open = found.iter().find(|device| device.path == path);
    let Some((id, volume_bytes, device)) =
        open.and_then(|open| Some((open.device_id?, open.adopted_bytes?, open.device())))
    else {
        return refuse(format!("{} is not there", path.display()), "bring the volume back first");
    };
    check_rest(&stopped.runtime, &device, volume_bytes)?;
    drop(device);
    let dir = stopped.located.dir.clone();
    let (counts, believed) = (options.counts, (options.counts == Some(Counts::Cache)).then_some(id));
    let found = if believed.is_some() {
        // An open that believes flash writes to the volume: what stands against the release is found out by one that does not.
        let dir = dir.clone();
        stopped.change(found, None, move |cell, _| async move { check_release(&cell, &dir, id) })?;
        devices::open_all(&stopped.located, &stopped.runtime, &stopped.world)?.devices
    } else {
        found
    };
    let written_bytes = stopped.change(found, believed, move |cell, world| async move {
        check_release(&cell, &dir, id)?;
        // One that an earlier release has taken out of the catalog is in nobody's way.
        if !cell.store().catalog().members.contains_key(&id) {
            return Ok(0);
        }
        check_counts(&cell, id, counts)?;
        let dirty_bytes = cell.dirty_bytes(&cell.grid_disks());
        told::while_it_goes(&cell, &world, cell.release(id, counts == Some(Counts::Volume))).await?;
        Ok(dirty_bytes - cell.dirty_bytes(&cell.grid_disks()).min(dirty_bytes))
    })?;
    stopped.write_config(&entry::without(&stopped.read_config()?, &stopped.located.config, &metadata))?;
    stopped.remove(&stopped.located.resolve(&metadata))?;
    let checked = if counts == Some(Counts::Cache) { "; check its file system before (fsck)" } else { "" };
    let mut lines = Vec::new();
    if written_bytes > 0 {
        lines.push(format!("{written_bytes} bytes that only flash had are on {} now", path.display()));
    }
    lines.push(format!("{} is a volume of its own again: mount it as before{checked}", path.display()));
    Ok(lines)
}

/// Whether nobody uses the volume, and the cell can do without it.
fn check_release(cell: &Cell, dir: &Path, id: DeviceId) -> Result<(), AdoptError> {
    let catalog = cell.store().catalog();
    if let Some(record) = catalog.grid_disks.values().find(|record| record.cell_disk == id)
        && let Some(by) = attach::attached_by(dir, &record.name)
    {
        return refuse(format!("grid disk {} is attached by {by}", record.name), "`flashcell detach` it first");
    }
    Ok(cell.check_not_last(id)?)
}

/// Whether volume and flash belong together, or the operator has said which of them counts.
fn check_counts(cell: &Cell, id: DeviceId, counts: Option<Counts>) -> Result<(), AdoptError> {
    let catalog = cell.store().catalog();
    let here = catalog.grid_disks.values().filter(|record| record.cell_disk == id);
    let mut offline = here.filter_map(|record| cell.grid_disk(&record.name)?.offline());
    match (offline.next(), counts) {
        (Some(why), None) => {
            let what = why.split("; hint: ").next().unwrap_or_default().to_owned();
            refuse(
                what,
                "--discard-dirty keeps the volume as it is and gives up what flash alone has; --believe-cache writes what flash has over \
                 what somebody has made of the volume; or bring missing flash back and repeat the command",
            )
        }
        (Some(why), Some(Counts::Cache)) => refuse(
            format!("{}, so that it cannot be believed", why.split("; hint: ").next().unwrap_or_default()),
            "bring the flash back and repeat the command, or give up what it has with --discard-dirty",
        ),
        (None, Some(Counts::Volume)) => refuse(
            "nothing has to be given up: volume and flash belong together".to_owned(),
            "release it without --discard-dirty, and it has everything",
        ),
        (Some(_), Some(Counts::Volume)) | (None, _) => Ok(()),
    }
}

/// Whether nothing was written behind the end of the volume, which would be lost.
fn check_rest(runtime: &Runtime, device: &Device, volume_bytes: u64) -> Result<(), AdoptError> {
    let from = DATA_OFFSET + volume_bytes;
    let len = (volume_bytes.next_multiple_of(AU_BYTES_MIN) - volume_bytes) as usize;
    if len == 0 {
        return Ok(());
    }
    let device = device.clone();
    let read = runtime.block_on(async move { device.read(from, Bufs::from(Buf::zeroed(len))).await });
    let mut is_zero = read.outcome == Outcome::Done;
    if is_zero {
        read.bufs.for_each(0..len, |piece| is_zero &= piece.iter().all(|byte| *byte == 0));
    }
    if is_zero {
        return Ok(());
    }
    refuse(
        format!(
            "the last {len} bytes of the grid disk hold data, or cannot be read, and the volume has no room for them"
        ),
        "shrink what was made larger than the volume through the cell (resize2fs, a partition table at the end), write zeroes there, and repeat",
    )
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_volumes() {
        for (path, name) in [
            ("/dev/vdb", "vdb"),
            ("/srv/my data.img", "mydata"),
            ("/x/---", "volume"),
            ("/dev/mapper/vg-home", "vg-home"),
        ] {
            assert_eq!(name_of(Path::new(path)), name);
            check_name(name).unwrap();
        }
        for wrong in ["", "a/b", ".x", "a b", "abcdefghijklmnopqrstuvwxyz12345"] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modes_that_leave_data_on_flash_alone_are_refused() {
        for exclusive_use in [false, true] {
            assert_eq!(check_mode("write-through", exclusive_use).unwrap(), CachingMode::WriteThrough);
            for mode in ["write-back", "fast"] {
                assert!(check_mode(mode, exclusive_use).unwrap_err().to_string().contains("\nhint: "), "{mode}");
            }
        }
        let refused = check_mode("write-back-ordered", false).unwrap_err().to_string();
        assert!(refused.contains("\nhint: add --exclusive-use"), "{refused}");
        assert_eq!(check_mode("write-back-ordered", true).unwrap(), CachingMode::WriteBackOrdered);
    }
}
