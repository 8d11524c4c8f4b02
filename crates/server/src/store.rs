//! What a cell has observed, in one file beside cell.toml: readings of the metrics, once a minute, and alerts.
//!
//! An embedded store (redb): a crash at any moment leaves the last commit. Bounded three ways: readings older than so many days
//! go, but for the values of metrics that are kept for a year; the oldest go when all take more than their share of the size, and the file never grows beyond the size. Never
//! stops a cell: a file that cannot be used is set aside and a new one begun; without any, the cell remembers nothing and
//! says so. Never holds what the operator has set: that is in the catalog.

mod bounded;
mod reading;

pub(crate) use reading::{Moment, Reading};

use bounded::Bounded;
use device::sync::lock;
use redb::{Database, ReadableTable, ReadableTableMetadata, StorageError, TableDefinition};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Name of the file in a cell's directory.
pub(crate) const FILE_NAME: &str = "history.redb";
/// What a file that cannot be used is renamed to; one of an earlier time goes.
const ASIDE_NAME: &str = "history.redb.damaged";
/// Smallest bound of the file: the store's own structures, doubling as they grow, and a day of a small cell.
pub(crate) const SIZE_BYTES_MIN: u64 = 16 << 20;
/// Readings of metrics that are kept for a year go after so many days.
pub(crate) const ANNUAL_DAYS: u64 = 366;
const DAY_NS: u64 = 86_400_000_000_000;
/// Of the file, the tenths that readings may take: the rest is for the tree around them, for pages that a commit has replaced, and
/// for the file growing by doubling.
const READINGS_TENTHS: u64 = 3;
/// Pages of the store held in memory.
const CACHE_BYTES: usize = 4 << 20;
/// Metrics of objects that are told apart: a thousand grid disks with sixty metrics each.
const SERIES_MAX: usize = 1 << 16;
/// Readings removed in one commit, so that a long-stopped cell does not make one that is too large for the file.
const REMOVED_AT_ONCE_MAX: usize = 1024;

/// How long a walk waits for another use of the file to end. All long answers are made one after the other: no file system may hold them up.
const WALK_WAIT: Duration = Duration::from_secs(5);
/// How often it looks.
const WALK_LOOKS: Duration = Duration::from_millis(5);

/// Readings by number, in the order they were taken.
const READINGS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("readings");
/// Metric and object by the number readings name them with.
const SERIES: TableDefinition<'_, u32, (&str, &str)> = TableDefinition::new("series");
/// Alerts by number, as their owner writes them.
const ALERTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("alerts");

/// What the store may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Readings older than so many days go.
    pub(crate) days: u64,
    /// The file never grows beyond this, in bytes.
    pub(crate) size_bytes: u64,
}

impl Limits {
    fn readings_bytes(self) -> u64 {
        self.size_bytes / 10 * READINGS_TENTHS
    }
}

/// Why something was not kept or not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// There is none.
    #[error("there is no store of metrics and alerts: {0}")]
    None(String),
    /// It failed; by the next try it is mended or another one.
    #[error("the store of metrics and alerts: {0}")]
    Failed(String),
}

/// Why a walk did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WalkError {
    /// Another use of the file holds it: its file system may be slow.
    #[error("the store of metrics and alerts has been in use for {} s: its file system may be slow", WALK_WAIT.as_secs())]
    InUse,
    /// There is no store, or it failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The store.
pub(crate) struct Store {
    dir: PathBuf,
    state: Mutex<State>,
}

struct State {
    limits: Limits,
    /// Metrics kept for a year.
    annual: Arc<BTreeSet<&'static str>>,
    open: Result<Open, String>,
    /// What the operator should know.
    notes: Vec<String>,
    /// The last of it.
    told: Option<String>,
}

struct Open {
    database: Database,
    series: BTreeMap<(String, String), u32>,
    /// Number and bytes of each reading, oldest first.
    readings: std::collections::VecDeque<(u64, u64)>,
    readings_bytes: u64,
    /// Readings below this number hold nothing but what is kept for a year, and what that was.
    thinned: (u64, Arc<BTreeSet<&'static str>>),
}

/// Any error of the store library, by its text.
macro_rules! text_of {
    ($($error:ty),*) => { $(impl From<$error> for StoreError {
        fn from(error: $error) -> StoreError {
            StoreError::Failed(error.to_string())
        }
    })* };
}
text_of!(redb::DatabaseError, redb::TransactionError, redb::TableError, redb::CommitError, StorageError);

impl Open {
    /// Open the file. What the file system will not take is no reason to give it up: then there is no store for now.
    fn new(path: &Path, size_bytes: u64) -> Result<Open, StoreError> {
        let refused = Arc::new(AtomicBool::new(false));
        // A directory that is not there, or a file that may not be opened, is not damage either.
        let file = Bounded::open(path, size_bytes, refused.clone())
            .map_err(|error| StoreError::None(format!("{}: {error}", path.display())))?;
        guarded(|| Open::of(file)).map_err(|error| match error {
            StoreError::Failed(why) if refused.load(Ordering::Acquire) => StoreError::None(why),
            other => other,
        })
    }

    fn of(file: Bounded) -> Result<Open, StoreError> {
        let mut builder = Database::builder();
        // Its format is the one that later versions of the library read.
        let database =
            builder.create_with_file_format_v3(true).set_cache_size(CACHE_BYTES).create_with_backend(file)?;
        let writing = database.begin_write()?;
        let (mut series, mut readings) = (BTreeMap::new(), std::collections::VecDeque::new());
        {
            for entry in writing.open_table(SERIES)?.iter()? {
                let (id, key) = entry?;
                let (name, object) = key.value();
                series.insert((name.to_owned(), object.to_owned()), id.value());
            }
            for entry in writing.open_table(READINGS)?.iter()? {
                let (id, bytes) = entry?;
                readings.push_back((id.value(), bytes.value().len() as u64));
            }
            writing.open_table(ALERTS)?.len()?;
        }
        writing.commit()?;
        let readings_bytes = readings.iter().map(|(_, bytes)| bytes).sum();
        Ok(Open { database, series, readings, readings_bytes, thinned: Default::default() })
    }

    fn keep(
        &mut self,
        at: Moment,
        values: &[(&str, &str, u64)],
        limits: Limits,
        annual: &Arc<BTreeSet<&'static str>>,
    ) -> Result<(), StoreError> {
        let since = |days: u64| at.wall_ns.saturating_sub(days.saturating_mul(DAY_NS));
        let thin_ns = since(limits.days);
        let oldest_ns = if annual.is_empty() { thin_ns } else { since(limits.days.max(ANNUAL_DAYS)) };
        if self.thinned.1 != *annual {
            self.thinned = (0, annual.clone());
        }
        let mut reading = Reading { at, values: Vec::with_capacity(values.len()) };
        let mut new = Vec::new();
        let mut next = self.series.values().max().map_or(0, |id| id + 1);
        for (name, object, value) in values {
            let key = ((*name).to_owned(), (*object).to_owned());
            let known = self.series.get(&key).copied();
            let id = match known {
                Some(id) => id,
                // Objects come and go: when there is no number left, those of readings long gone are given up with the readings.
                None if self.series.len() + new.len() >= SERIES_MAX => continue,
                None => {
                    new.push((key, next));
                    next += 1;
                    next - 1
                }
            };
            reading.values.push((id, *value));
        }
        reading.values.sort_unstable();
        let bytes = reading.encode();
        let writing = self.database.begin_write()?;
        let number = self.readings.back().map_or(0, |(number, _)| number + 1);
        let mut gone = Vec::new();
        let mut thinned: Vec<(usize, u64)> = Vec::new();
        {
            let mut series = writing.open_table(SERIES)?;
            for ((name, object), id) in &new {
                series.insert(id, (name.as_str(), object.as_str()))?;
            }
            let mut readings = writing.open_table(READINGS)?;
            let mut left_bytes = self.readings_bytes + bytes.len() as u64;
            for (old, old_bytes) in self.readings.iter().take(REMOVED_AT_ONCE_MAX) {
                let taken_ns = readings.get(old)?.and_then(|it| Reading::wall_ns(it.value())).unwrap_or(0);
                if left_bytes <= limits.readings_bytes() && taken_ns >= oldest_ns {
                    break;
                }
                left_bytes -= old_bytes;
                gone.push(*old);
            }
            for old in &gone {
                readings.remove(old)?;
            }
            if !annual.is_empty() {
                let kept: BTreeSet<u32> = self
                    .series
                    .iter()
                    .filter(|((name, _), _)| annual.contains(name.as_str()))
                    .map(|(_, id)| *id)
                    .collect();
                let first = self.readings.partition_point(|(old, _)| *old < self.thinned.0).max(gone.len());
                for (place, (old, _)) in self.readings.iter().enumerate().skip(first).take(REMOVED_AT_ONCE_MAX) {
                    let whole = readings.get(old)?.and_then(|it| Reading::decode(it.value())).unwrap_or_default();
                    if whole.at.wall_ns >= thin_ns {
                        break;
                    }
                    let values = whole.values.into_iter().filter(|(id, _)| kept.contains(id)).collect();
                    let left = Reading { values, ..whole }.encode();
                    readings.insert(old, left.as_slice())?;
                    thinned.push((place, left.len() as u64));
                }
            }
            if bytes.len() as u64 <= limits.readings_bytes() {
                readings.insert(number, bytes.as_slice())?;
            }
        }
        writing.commit()?;
        self.series.extend(new);
        for (place, bytes) in thinned {
            if let Some((old, before)) = self.readings.get_mut(place) {
                self.readings_bytes -= *before - (*before).min(bytes);
                *before = (*before).min(bytes);
                self.thinned.0 = *old + 1;
            }
        }
        for _ in gone {
            self.readings_bytes -= self.readings.pop_front().map_or(0, |(_, bytes)| bytes);
        }
        self.readings_bytes += bytes.len() as u64;
        self.readings.push_back((number, bytes.len() as u64));
        if self.series.len() >= SERIES_MAX {
            self.forget_series()?;
        }
        Ok(())
    }

    /// Give up the numbers of series that no reading names, and a half of the readings when all are named.
    fn forget_series(&mut self) -> Result<(), StoreError> {
        let mut named = BTreeSet::new();
        self.walk(&mut |reading| {
            named.extend(reading.values.iter().map(|(id, _)| *id));
            ControlFlow::Continue(())
        })?;
        let writing = self.database.begin_write()?;
        {
            let mut series = writing.open_table(SERIES)?;
            for id in self.series.values().filter(|id| !named.contains(id)) {
                series.remove(id)?;
            }
        }
        writing.commit()?;
        self.series.retain(|_, id| named.contains(id));
        if self.series.len() >= SERIES_MAX { self.remove_oldest(self.readings.len().div_ceil(2)) } else { Ok(()) }
    }

    fn remove_oldest(&mut self, count: usize) -> Result<(), StoreError> {
        let mut left = count.min(self.readings.len());
        while left > 0 {
            let now = left.min(REMOVED_AT_ONCE_MAX);
            let writing = self.database.begin_write()?;
            {
                let mut readings = writing.open_table(READINGS)?;
                for (number, _) in self.readings.iter().take(now) {
                    readings.remove(number)?;
                }
            }
            writing.commit()?;
            for _ in 0..now {
                self.readings_bytes -= self.readings.pop_front().map_or(0, |(_, bytes)| bytes);
            }
            left -= now;
        }
        Ok(())
    }

    fn walk(&self, visit: &mut dyn FnMut(Reading) -> ControlFlow<()>) -> Result<(), StoreError> {
        let reading = self.database.begin_read()?;
        for entry in reading.open_table(READINGS)?.iter()? {
            let (_, bytes) = entry?;
            // Of another version, or damaged where the library does not notice.
            let Some(reading) = Reading::decode(bytes.value()) else { continue };
            if visit(reading).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write_alerts(&self, put: &[(u64, Vec<u8>)], removed: &[u64]) -> Result<(), StoreError> {
        let writing = self.database.begin_write()?;
        {
            let mut alerts = writing.open_table(ALERTS)?;
            for (number, bytes) in put {
                alerts.insert(number, bytes.as_slice())?;
            }
            for number in removed {
                alerts.remove(number)?;
            }
        }
        Ok(writing.commit()?)
    }

    fn alerts(&self) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let reading = self.database.begin_read()?;
        let alerts = reading.open_table(ALERTS)?;
        let mut all = Vec::new();
        for entry in alerts.iter()? {
            let (number, bytes) = entry?;
            all.push((number.value(), bytes.value().to_vec()));
        }
        Ok(all)
    }
}

/// The library stops the process where a damaged file leads it astray; here it only fails.
fn guarded<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(StoreError::Failed("its content makes no sense".to_owned())))
}

impl State {
    /// Open the file; set it aside and begin another one when it cannot be used.
    fn open(&mut self, dir: &Path) {
        let path = dir.join(FILE_NAME);
        let size_bytes = self.limits.size_bytes;
        // The one before has to let go of the file.
        self.open = Err("it is being opened".to_owned());
        let aside = dir.join(ASIDE_NAME);
        let (again, note) = match Open::new(&path, size_bytes) {
            Ok(open) => {
                self.open = Ok(open);
                return;
            }
            Err(StoreError::None(why)) => (Err(why.clone()), format!("metric and alert history are not kept: {why}")),
            Err(StoreError::Failed(why)) => {
                let again = std::fs::rename(&path, &aside)
                    .map_err(|error| format!("{}: {error}", path.display()))
                    .and_then(|()| Open::new(&path, size_bytes).map_err(|error| error.to_string()));
                let note = match &again {
                    Ok(_) => format!("metric and alert history: {why}; set aside as {}, begun anew", aside.display()),
                    Err(error) => format!("metric and alert history are not kept: {error}"),
                };
                (again, note)
            }
        };
        // Tried again each minute, told once.
        if self.told.as_ref() != Some(&note) {
            self.told = Some(note.clone());
            self.notes.push(note);
        }
        self.open = again;
    }

    /// Do it; when that fails, with the file opened anew, or another one; and at last with less in it.
    fn tried<T>(
        &mut self,
        dir: &Path,
        mut work: impl FnMut(&mut Open, Limits) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let limits = self.limits;
        let mut attempt = |state: &mut State| match &mut state.open {
            Ok(open) => guarded(|| work(open, limits)),
            Err(why) => Err(StoreError::None(why.clone())),
        };
        match attempt(self) {
            Err(first) => tracing::warn!(error = %first, "the store of metrics and alerts is opened anew"),
            done => return done,
        }
        self.open(dir);
        let again = attempt(self);
        if again.is_ok() {
            return again;
        }
        if let Ok(open) = &mut self.open {
            let quarter = open.readings.len().div_ceil(4);
            // Its failure shows in the attempt that follows.
            let _ = guarded(|| open.remove_oldest(quarter));
        }
        attempt(self)
    }
}

impl Store {
    /// The store in a cell's directory.
    pub(crate) fn open(dir: &Path, limits: Limits) -> Store {
        let (annual, open) = (Arc::default(), Err(String::new()));
        let mut state = State { limits, annual, open, notes: Vec::new(), told: None };
        state.open(dir);
        Store { dir: dir.to_owned(), state: Mutex::new(state) }
    }

    /// What the operator should know since the last call.
    pub(crate) fn notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).notes)
    }

    /// Keep readings for so many days from now on, and of these metrics for a year.
    pub(crate) fn keep_for(&self, days: u64, annual: BTreeSet<&'static str>) {
        let mut state = lock(&self.state);
        state.limits.days = days;
        state.annual = Arc::new(annual);
    }

    /// Keep a reading: metric, object, value of each.
    pub(crate) fn keep(&self, at: Moment, values: &[(&str, &str, u64)]) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        let annual = state.annual.clone();
        state.tried(&self.dir, |open, limits| open.keep(at, values, limits, &annual))
    }

    /// Every reading, oldest first, until told to stop; before it the numbers by which readings name metric and object.
    pub(crate) fn walk<T: FnMut(Reading) -> ControlFlow<()>>(
        &self,
        begin: impl FnOnce(&BTreeMap<(String, String), u32>) -> T,
    ) -> Result<(), WalkError> {
        self.walk_within(WALK_WAIT, begin)
    }

    fn walk_within<T: FnMut(Reading) -> ControlFlow<()>>(
        &self,
        wait: Duration,
        begin: impl FnOnce(&BTreeMap<(String, String), u32>) -> T,
    ) -> Result<(), WalkError> {
        let mut begin = Some(begin);
        let mut state = self.state_within(wait).ok_or(WalkError::InUse)?;
        // Not repeated: what has been visited cannot be taken back.
        let walked = match &state.open {
            Ok(open) => guarded(|| match begin.take() {
                Some(begin) => open.walk(&mut begin(&open.series)),
                None => Ok(()),
            }),
            Err(why) => Err(StoreError::None(why.clone())),
        };
        if let Err(StoreError::Failed(_)) = &walked {
            state.open(&self.dir);
        }
        Ok(walked?)
    }

    fn state_within(&self, wait: Duration) -> Option<MutexGuard<'_, State>> {
        let began = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(state)) => return Some(state.into_inner()),
                Err(TryLockError::WouldBlock) if began.elapsed() < wait => std::thread::sleep(WALK_LOOKS),
                Err(TryLockError::WouldBlock) => return None,
            }
        }
    }

    /// Put and remove alerts, all or none.
    pub(crate) fn write_alerts(&self, put: &[(u64, Vec<u8>)], removed: &[u64]) -> Result<(), StoreError> {
        lock(&self.state).tried(&self.dir, |open, _| open.write_alerts(put, removed))
    }

    /// Every alert by its number.
    pub(crate) fn alerts(&self) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        lock(&self.state).tried(&self.dir, |open, _| open.alerts())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
