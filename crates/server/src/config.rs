//! `cell.toml`: where the devices of a cell are, where it listens, how much memory it takes.
//!
//! What the cell is (grid disks, caching, names) is in the catalog on the devices, never here. Paths are relative to the
//! directory of the file.

use device::layers::Model;
use device::{Backend, Class, Direct};
use flashcache::Sabotage;
use nbd::Uri;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};
use std::str::FromStr;

mod admin;
mod endurance;
mod head;
mod listen;
mod observe;
mod span;
pub use admin::Admin;
pub use endurance::{DriveBytes, DriveWrites, Lifetime};
use head::HEAD;
pub(crate) use listen::host_and_port;
pub use listen::{ADMIN_PORT, Listen, NBD_PORT, NbdAddress};
pub(crate) use observe::DAYS_MAX as HISTORY_DAYS_MAX;
pub use observe::{Alerts, CommandHook, History, MailAccess, WebHook};
pub use span::Span;

/// Name of the file in a cell's directory.
pub const FILE_NAME: &str = "cell.toml";
/// A configuration larger than this is not one: a thousand devices take a tenth of it.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// What cannot be used about a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not there.
    #[error("{path}: no such file\nhint: make a cell with `flashcell init DIR`, or name its directory or cell.toml")]
    NotFound {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// It cannot be read or written.
    #[error("{path}: {source}\nhint: check the owner and the mode of the file and its directory")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not of the form.
    #[error("{path}: {reason}\nhint: the comment lines of a fresh cell.toml name every key")]
    Syntax {
        /// Which.
        path: PathBuf,
        /// What and where, from the parser.
        reason: String,
    },
    /// A value makes no sense.
    #[error("{path}: {key} = {value:?}: {reason}")]
    Value {
        /// Which.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what would do.
        reason: String,
    },
}

/// Bytes, written as the command language writes them: `"64M"`, or a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&cellcli::answer::size_text(self.0))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let size = cellcli::answer::parse_size(text).map(Size);
        size.ok_or_else(|| format!("{text:?} is no size; 64M, 1.5G or bytes would be"))
    }
}

impl Size {
    /// In the address space of this machine.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Executor threads; 0 is one for each processor.
    pub threads: usize,
    /// `auto`, `uring` or `threads`.
    pub io: IoChoice,
    /// Seconds a device may take to answer one request while the cell starts, before the start goes on without it.
    pub start_deadline_s: u64,
    /// Seconds a stop may take before it names the device that hangs and gives up.
    pub stop_deadline_s: u64,
    /// Where it listens.
    pub listen: Listen,
    /// Who may administer it.
    #[serde(skip_serializing_if = "Admin::is_default")]
    pub admin: Admin,
    /// How grid disks are exported.
    #[serde(skip_serializing_if = "Nbd::is_default")]
    pub nbd: Nbd,
    /// What it takes.
    pub memory: Memory,
    /// The flash cache at work.
    pub flash_cache: FlashCacheTuning,
    /// What it remembers of its metrics.
    #[serde(skip_serializing_if = "History::is_default")]
    pub history: History,
    /// Whom it tells of alerts.
    #[serde(skip_serializing_if = "Alerts::is_none")]
    pub alerts: Alerts,
    /// For tests.
    #[serde(skip_serializing_if = "Testing::is_off")]
    pub test: Testing,
    /// The devices, in any order: they are known by what is on them.
    pub device: Vec<DeviceConfig>,
}

/// Which back-end does I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoChoice {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Blocking threads.
    Threads,
}

impl From<IoChoice> for Backend {
    fn from(choice: IoChoice) -> Backend {
        match choice {
            IoChoice::Auto => Backend::Auto,
            IoChoice::Uring => Backend::Uring,
            IoChoice::Threads => Backend::Threads,
        }
    }
}

/// How grid disks are exported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nbd {
    /// The grid disk that clients without an export name get; the only one of the cell unless stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

impl Nbd {
    fn is_default(&self) -> bool {
        *self == Nbd::default()
    }
}

/// Memory, reserved at start or as it is needed up to this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Payloads of requests under way.
    pub requests: Size,
    /// Read-modify-write and background work.
    pub work: Size,
    /// Data on its way to flash, for each flash device of the cache.
    pub staging: Size,
    /// Index, checksums and policy of the flash cache, all flash devices together; by the size of the flash unless stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<Size>,
}

/// How the flash cache works. Block and segment size count when a cache is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlashCacheTuning {
    /// Unit of the index.
    pub block: Size,
    /// Unit of allocation and reclaim.
    pub segment: Size,
    /// A flash device slower than this is passed by for a while.
    pub soft_limit_ms: u64,
    /// A flash device slower than this is given up.
    pub hard_limit_ms: u64,
    /// KEEP data that nobody asked for during this time counts as DEFAULT data: `"24h"`, `"90m"`, `"7d"`.
    pub keep_unused: Span,
    /// How often flash and disks get new open stamps while clients write. Flash that is put back to an older moment than that is found out.
    pub stamps_every: Span,
    /// While flash is busier than the disk, the disk serves a share of what is cached, and nothing more is cached. Off unless
    /// asked for: where the two are about as quick, the cache never becomes warm.
    pub busy_to_disk: bool,
    /// Of each grid disk that is put into write-back-ordered from now on, on its own cell disk: at most 256M; 1/64 of the grid disk,
    /// at least 16M, unless stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<Size>,
    /// The most that is written to flash in a second for grid disks whose fillStrategy is feed.
    pub feed_rate: Size,
    /// So many times that while the cache has not given up anything since the start.
    pub feed_boost: u64,
    /// Beyond so many bytes in a row requests are a scan: what it misses pushes nothing out of the cache, unless it comes back and
    /// fits. 0: there are no scans.
    pub sequential_cutoff: Size,
    /// Reads that follow one another are not fed.
    pub noprefetch: bool,
    /// How often a day each drive may be written over, as its data sheet says; with `drive_capacity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_writes_per_day: Option<DriveWrites>,
    /// The capacity of a drive, as its data sheet says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drive_capacity: Option<DriveBytes>,
    /// How long a drive shall last; with `rated_writes`. With `drive_writes_per_day`, how long they are rated for: 5 years
    /// unless stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
    /// The bytes a drive is rated for in all, as its data sheet says (TBW).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rated_writes: Option<DriveBytes>,
    /// Days' worth of writes that may be saved up; 1 unless stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endurance_burst_days: Option<u64>,
}

/// Switches that break a cell on purpose, for the tests that must notice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Testing {
    /// A deliberate fault by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sabotage: Option<String>,
}

impl Testing {
    fn is_off(&self) -> bool {
        self.sabotage.is_none()
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// Where it is: a file, a block device, or an NBD export as `nbd://HOST[:PORT]/EXPORT` or
    /// `nbd+unix:///EXPORT?socket=PATH`. An export has no lock: that only one cell uses it is for the operator to see to.
    pub path: PathBuf,
    /// What it is for; its label decides, this tells what to do when it is missing.
    pub kind: DeviceKind,
    /// Whether the cell refuses to start without it. Default: disks yes, flash no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
    /// Emulate a medium: its service times are added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether flushed data survives a stop of the host, for the day that a cell disk is made of it. Default: what the device is
    /// found to be, and ephemeral where that is not found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<ClassChoice>,
    /// True page. Default: what the device is found to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<Size>,
    /// Past the page cache: `auto` where the file system can, `always`, `never`.
    #[serde(default, skip_serializing_if = "DirectChoice::is_auto")]
    pub direct: DirectChoice,
    /// An image file that takes space as it needs it and gives back what is zeroed or trimmed: it fails when its file system is full.
    /// Others keep what is allocated to them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sparse: bool,
    /// It is a volume that `flashcell adopt` has adopted: path is the volume, and this the file with the cell's metadata of it. Never
    /// written by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PathBuf>,
    /// For tests: keep un-flushed writes in memory, so that killing the server loses them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgetful: bool,
}

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Carries grid disks.
    Disk,
    /// Carries the flash cache, and grid disks.
    Flash,
}

/// Durability class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClassChoice {
    /// Survives a power cut.
    Durable,
    /// May be gone when the host stops.
    Ephemeral,
}

impl From<ClassChoice> for Class {
    fn from(choice: ClassChoice) -> Class {
        match choice {
            ClassChoice::Durable => Class::Durable,
            ClassChoice::Ephemeral => Class::Ephemeral,
        }
    }
}

/// Past the page cache or through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectChoice {
    /// Where the file system can.
    #[default]
    Auto,
    /// Or an error.
    Always,
    /// Through the page cache.
    Never,
}

impl DirectChoice {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
    fn is_auto(&self) -> bool {
        *self == DirectChoice::Auto
    }
}

impl From<DirectChoice> for Direct {
    fn from(choice: DirectChoice) -> Direct {
        match choice {
            DirectChoice::Auto => Direct::Auto,
            DirectChoice::Always => Direct::Always,
            DirectChoice::Never => Direct::Never,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            threads: 0,
            io: IoChoice::Auto,
            start_deadline_s: 30,
            stop_deadline_s: 60,
            listen: Listen::default(),
            admin: Admin::default(),
            nbd: Nbd::default(),
            memory: Memory::default(),
            flash_cache: FlashCacheTuning::default(),
            history: History::default(),
            alerts: Alerts::default(),
            test: Testing::default(),
            device: Vec::new(),
        }
    }
}

impl Default for Memory {
    fn default() -> Memory {
        let cell = cell::CellConfig::default();
        Memory {
            // Four times the largest request, and 32 MiB of small ones.
            requests: Size(160 << 20),
            work: Size(cell.arena_bytes as u64),
            staging: Size(cell.cache.staging_bytes as u64),
            index: None,
        }
    }
}

impl Default for FlashCacheTuning {
    fn default() -> FlashCacheTuning {
        let cache = flashcache::CacheConfig::default();
        let feed = cell::FeedConfig::default();
        FlashCacheTuning {
            block: Size(u64::from(cache.block_bytes)),
            segment: Size(u64::from(cache.segment_bytes)),
            soft_limit_ms: u64::try_from(cache.soft_limit.as_millis()).unwrap_or(u64::MAX),
            hard_limit_ms: u64::try_from(cache.hard_limit.as_millis()).unwrap_or(u64::MAX),
            keep_unused: Span(cache.keep_unused.as_secs()),
            stamps_every: Span(cell::STAMPS_EVERY.as_secs()),
            busy_to_disk: cache.busy.is_some(),
            journal: None,
            feed_rate: Size(feed.rate_bytes),
            feed_boost: feed.boost,
            sequential_cutoff: Size(cell::SEQUENTIAL_CUTOFF_BYTES),
            noprefetch: feed.noprefetch,
            drive_writes_per_day: None,
            drive_capacity: None,
            lifetime: None,
            rated_writes: None,
            endurance_burst_days: None,
        }
    }
}

/// A configuration with the directory its paths are relative to.
#[derive(Clone, Debug)]
pub struct Located {
    /// The configuration.
    pub config: Config,
    /// The file.
    pub path: PathBuf,
    /// Its directory, absolute.
    pub dir: PathBuf,
}

impl DeviceConfig {
    /// A device at a path, nothing overridden.
    #[must_use]
    pub fn new(path: PathBuf, kind: DeviceKind) -> DeviceConfig {
        DeviceConfig {
            path,
            kind,
            required: None,
            model: None,
            class: None,
            page: None,
            direct: DirectChoice::Auto,
            sparse: false,
            metadata: None,
            forgetful: false,
        }
    }

    /// Whether the cell refuses to start without it.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required.unwrap_or(self.kind == DeviceKind::Disk)
    }
}

impl Config {
    /// The text of a file with this content.
    #[must_use]
    pub fn to_text(&self) -> String {
        match toml::to_string(self) {
            Ok(text) => format!("{HEAD}{text}"),
            Err(error) => unreachable!("a configuration is tables of plain values: {error}"),
        }
    }

    /// Read `path`: a file, or a directory with a `cell.toml`.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: &Path) -> Result<Located, ConfigError> {
        let path = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
        let io = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => ConfigError::NotFound { path: path.clone() },
            _ => ConfigError::Io { path: path.clone(), source },
        };
        let size_bytes = std::fs::metadata(&path).map_err(io)?.len();
        if size_bytes > FILE_BYTES_MAX {
            let reason = format!("{size_bytes} bytes are more than {FILE_BYTES_MAX}");
            return Err(ConfigError::Syntax { path, reason });
        }
        let text = std::fs::read_to_string(&path).map_err(io)?;
        let absolute = std::path::absolute(&path).map_err(io)?;
        let dir = absolute.parent().unwrap_or(Path::new("/")).to_owned();
        let config: Config = toml::from_str(&text)
            .map_err(|error| ConfigError::Syntax { path: path.clone(), reason: error.to_string() })?;
        let located = Located { config, path, dir };
        located.check()?;
        Ok(located)
    }
}

impl Located {
    fn bad(&self, key: &'static str, value: impl ToString, reason: impl ToString) -> ConfigError {
        ConfigError::Value { path: self.path.clone(), key, value: value.to_string(), reason: reason.to_string() }
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.check_listening()?;
        for device in &self.config.device {
            self.model(device)?;
            if self.remote(device)?.is_some() && device.metadata.is_some() {
                return Err(self.bad("device.metadata", device.path.display(), "an NBD export cannot be adopted"));
            }
            if let Some(page) = device.page
                && u32::try_from(page.0).is_err()
            {
                return Err(self.bad("device.page", page.0, "a page has at most 64K"));
            }
        }
        self.sabotage()?;
        let arena = self.config.memory.requests.0;
        let arena_bytes_min = 1 << 20;
        if arena < arena_bytes_min {
            return Err(self.bad("memory.requests", arena, "less than 1M serves nobody"));
        }
        let tuning = &self.config.flash_cache;
        let bounds = [
            ("flash_cache.block", tuning.block.0, 4 << 10, 64 << 10),
            ("flash_cache.segment", tuning.segment.0, 64 << 10, 64 << 20),
        ];
        for (key, value, low, high) in bounds {
            if !value.is_power_of_two() || !(low..=high).contains(&value) {
                return Err(self.bad(key, value, format!("it must be a power of two from {low} to {high}")));
            }
        }
        if tuning.feed_rate.0 == 0 || !(1..=100).contains(&tuning.feed_boost) {
            let (rate, boost) = (tuning.feed_rate.0, tuning.feed_boost);
            return Err(self.bad(
                "flash_cache.feed_rate, feed_boost",
                format!("{rate}, {boost}"),
                "a rate above 0, at most 100 times that while cold",
            ));
        }
        self.endurance()?;
        self.check_observation()
    }

    /// A path relative to the file.
    #[must_use]
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.dir.join(path)
    }

    /// The directory of certificates for TCP.
    #[must_use]
    pub fn trust_dir(&self) -> PathBuf {
        self.resolve(&self.config.admin.trust)
    }

    /// The emulated medium of a device.
    ///
    /// # Errors
    /// No such model.
    pub fn model(&self, device: &DeviceConfig) -> Result<Option<Model>, ConfigError> {
        let Some(name) = &device.model else { return Ok(None) };
        name.parse().map(Some).map_err(|error| self.bad("device.model", name, error))
    }

    /// The NBD export a device is, when its path is a URI.
    ///
    /// # Errors
    /// It looks like one and is none.
    pub fn remote(&self, device: &DeviceConfig) -> Result<Option<Uri>, ConfigError> {
        let Some(text) = device.path.to_str().filter(|text| is_uri(text)) else { return Ok(None) };
        text.parse().map(Some).map_err(|error| self.bad("device.path", text, error))
    }

    /// The deliberate fault asked for.
    ///
    /// # Errors
    /// No such fault.
    pub fn sabotage(&self) -> Result<Option<Sabotage>, ConfigError> {
        let Some(name) = &self.config.test.sabotage else { return Ok(None) };
        let known = Sabotage::ALL.into_iter().find(|sabotage| sabotage.name() == name);
        let names: Vec<_> = Sabotage::ALL.iter().map(|sabotage| sabotage.name()).collect();
        known.map(Some).ok_or_else(|| self.bad("test.sabotage", name, format!("known are {}", names.join(", "))))
    }
}

/// Whether a path names an NBD export and not a file.
pub(crate) fn is_uri(text: &str) -> bool {
    ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"].iter().any(|scheme| text.starts_with(scheme))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Located, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        std::fs::write(&path, text).unwrap();
        Config::load(dir.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_written_configuration_reads_back() {
        let mut config = Config::default();
        let mut device = DeviceConfig::new("disk-0.img".into(), DeviceKind::Disk);
        device.model = Some("sata-7200".to_owned());
        device.page = Some(Size(4096));
        device.class = Some(ClassChoice::Ephemeral);
        device.sparse = true;
        device.forgetful = true;
        config.device.push(device);
        config.device.push(DeviceConfig::new("/dev/nvme0n1".into(), DeviceKind::Flash));
        config.test.sabotage = Some("flush-not-waiting".to_owned());
        let located = load(&config.to_text()).unwrap();
        assert_eq!(located.config, config);
        assert_eq!(located.sabotage().unwrap(), Some(Sabotage::FlushNotWaiting));
        assert!(located.config.device[0].is_required() && !located.config.device[1].is_required());
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let located = load("").unwrap();
        assert_eq!(located.config, Config::default());
        let [NbdAddress { address: device::Address::Unix(path), tls: false }] = &located.nbd_addresses()[..] else {
            panic!("one unix socket")
        };
        assert!(path.is_absolute() && path.ends_with("nbd.sock"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("colour = 1", "colour"),
            ("[[device]]\npath = \"x\"", "kind"),
            ("[[device]]\npath = \"x\"\nkind = \"disk\"\nmodel = \"tape\"", "tape is not a disk model"),
            ("[listen]\nnbd = [\"udp:x\"]", "listen.nbd = \"udp:x\""),
            ("[listen]\nadmin = [\"tcp-plain:x\"]", "administration over TCP is TLS"),
            ("[memory]\nrequests = \"many\"", "\"many\" is no size"),
            ("[memory]\nrequests = 4096", "memory.requests"),
            ("[flash_cache]\nblock = \"5K\"", "flash_cache.block"),
            ("[flash_cache]\nkeep_unused = \"soon\"", "\"24h\", \"90m\" or \"7d\" would be"),
            ("[flash_cache]\nkeep_unused = 24", "a time in quotes"),
            ("[test]\nsabotage = \"all\"", "flush-not-waiting"),
            ("[[device]]\npath = \"nbds://x/y\"\nkind = \"disk\"", "no TLS"),
        ] {
            let error = load(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Config::load(Path::new("/nonexistent")).unwrap_err().to_string().contains("flashcell init"));
    }
}
