//! The metrics of a cell as one table: what each is called, counts and means, and how its value is read.
//!
//! Names are the vendor's where it has one for the same thing; only what this cell really counts has a row. Values are
//! integers in a base unit (bytes, nanoseconds, requests); turning them into MB or rates a second is for whoever shows
//! them, with [`between`] for rates. Never samples by itself, never keeps a value, never prints.

mod cell_disk;
mod database;
mod fill;
mod flash_cache;
mod grid_disk;
mod held;
mod host;
mod interconnect;
mod keep;
mod member;
mod ordered;
pub(crate) mod redo;
pub(crate) mod saving;
mod totals;

pub use held::Held;
pub use interconnect::HostUse;
pub use redo::LogTotals;
pub use totals::CacheTotals;

use crate::base::counters::GridDiskCounters;
use crate::disk::grid_disk::GridDisk;
use crate::lifecycle::cell::Cell;
use crate::plan::{Account, OTHER_DATABASE};
use flashcache::{EnduranceFigures, Tenant};
use held::AllHeld;
use member::MemberFigures;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a value is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Grows since the cell was started.
    Cumulative,
    /// As it is now.
    Instantaneous,
    /// Over the last period.
    Rate,
}

/// The type of the object a value is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricObject {
    /// The cell; its name is the object's.
    Cell,
    /// A cell disk.
    CellDisk,
    /// The flash cache; the object's name is always `FLASHCACHE`.
    FlashCache,
    /// The flash log; the object's name is always `FLASHLOG`.
    FlashLog,
    /// A grid disk.
    GridDisk,
    /// A database, by the tag of its connections; those without are [`OTHER_DATABASE`](crate::plan::OTHER_DATABASE).
    Database,
    /// The host of clients, by its address.
    ClientHost,
}

/// The base unit of a sample's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Bytes.
    Bytes,
    /// I/O requests.
    Requests,
    /// Events or things.
    Count,
    /// Nanoseconds.
    Nanoseconds,
    /// Thousandths: of a load average.
    Milli,
    /// Thousandths of one per cent.
    MilliPercent,
}

/// One metric.
#[derive(Debug)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// What it counts or measures, one line.
    pub description: &'static str,
    /// The type of the objects it is about.
    pub object: MetricObject,
    /// Unit of the value; for rates of what is divided.
    pub base: Base,
    /// How it is formed.
    pub formula: Formula,
}

/// How the value of a metric is formed.
#[derive(Clone, Copy, Debug)]
pub enum Formula {
    /// Read from counters, only grows.
    Counter(Reading),
    /// Read, as it is now.
    Gauge(Reading),
    /// The growth of the named counter in a second.
    PerSecond(&'static str),
    /// The growth of the named counter in a minute.
    PerMinute(&'static str),
    /// The growth of the first named counter for one of the second.
    PerRequest(&'static str, &'static str),
    /// Thousandths of one per cent: growth of a counter of nanoseconds against time passed.
    ShareOfTime(&'static str),
}

/// Where a value is read.
#[derive(Clone, Copy, Debug)]
pub enum Reading {
    /// From the counters of each grid disk.
    GridDisk(fn(&GridDiskCounters) -> u64),
    /// From what flash holds of each grid disk.
    HeldOfGridDisk(fn(&Held) -> u64),
    /// From the counters of all flash cache members and grid disks together.
    FlashCache(fn(&CacheTotals) -> u64),
    /// From what all redo grid disks and rings have counted together.
    FlashLog(fn(&LogTotals) -> u64),
    /// From what passed to each physical device.
    CellDisk(fn(&DeviceIo) -> u64),
    /// From what flash holds for each hard disk, by its cell disk.
    HeldOfCellDisk(fn(&Held) -> u64),
    /// From each member of the flash cache, by its cell disk; none where there is nothing to tell.
    Member(fn(&EnduranceFigures) -> Option<u64>),
    /// From what the process uses.
    Cell(fn(&ProcessUse) -> u64),
    /// From what each database has done.
    Database(fn(&Account) -> u64),
    /// From the flash cache: bytes of each database that has a number there, and of all others together.
    DatabaseContent,
    /// From what has passed to and from each client host.
    ClientHost(fn(&HostUse) -> u64),
    /// From the I/O plan; none where there is nothing to tell.
    Plan(fn(&crate::plan::Iorm) -> Option<u64>),
}

impl Definition {
    /// How the value is formed, in one word.
    #[must_use]
    pub fn metric_type(&self) -> MetricType {
        match self.formula {
            Formula::Counter(_) => MetricType::Cumulative,
            Formula::Gauge(_) => MetricType::Instantaneous,
            _ => MetricType::Rate,
        }
    }
}

/// Requests of one kind to a physical device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Requests that were done.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nanoseconds from submission to completion, summed.
    pub busy_ns: u64,
}

/// What has passed to one physical device, counted below the cell. Small is up to
/// [`SMALL_BYTES_MAX`](crate::base::counters::SMALL_BYTES_MAX).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// Cell disk name.
    pub name: String,
    /// Small reads.
    pub read_small: IoTotals,
    /// Large reads.
    pub read_large: IoTotals,
    /// Small writes.
    pub write_small: IoTotals,
    /// Large writes.
    pub write_large: IoTotals,
    /// Flushes.
    pub flush: IoTotals,
    /// Requests of any kind that failed, fell short or have an unknown fate.
    pub errors: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// Nanoseconds in which any was under way.
    pub utilised_ns: u64,
    /// In which a small one was.
    pub utilised_small_ns: u64,
    /// In which a large one was.
    pub utilised_large_ns: u64,
}

/// What the process that serves the cell uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUse {
    /// Processor time, all threads.
    pub cpu_ns: u64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Address space.
    pub virtual_bytes: u64,
    /// Memory of the host.
    pub host_memory_bytes: u64,
    /// Memory of the host that is not to be had without swapping.
    pub host_memory_used_bytes: u64,
    /// Swap space of the host.
    pub host_swap_bytes: u64,
    /// Swap space of the host in use.
    pub host_swap_used_bytes: u64,
    /// Processor time of the host in use since it started, in the mean of its processors.
    pub host_cpu_ns: u64,
    /// Load average of the host over a minute, in thousandths.
    pub load_milli: u64,
    /// Bytes the host's network interfaces have received.
    pub nic_received_bytes: u64,
    /// Bytes they have sent.
    pub nic_sent_bytes: u64,
}

/// The value of one metric for one object.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What it means.
    pub definition: &'static Definition,
    /// The object.
    pub object: Arc<str>,
    /// In [`Definition::base`].
    pub value: u64,
}

/// A rate: `amount` in the base unit of its definition for every `per`, which is nanoseconds for rates over time and
/// requests for those per request. `per` is never 0.
#[derive(Clone, Debug)]
pub struct RateSample {
    /// What it means.
    pub definition: &'static Definition,
    /// The object.
    pub object: Arc<str>,
    /// How much it grew.
    pub amount: u64,
    /// In how many nanoseconds or requests.
    pub per: u64,
}

/// A counter and its growth a second: two rows.
macro_rules! counter {
    ($object:ident, $name:literal, $base:ident, $description:literal, $read:expr) => {
        &[
            Definition {
                name: $name,
                description: $description,
                object: MetricObject::$object,
                base: Base::$base,
                formula: Formula::Counter(Reading::$object($read)),
            },
            Definition {
                name: concat!($name, "_SEC"),
                description: concat!($description, ", a second"),
                object: MetricObject::$object,
                base: Base::$base,
                formula: Formula::PerSecond($name),
            },
        ]
    };
}

/// One row.
macro_rules! metric {
    ($object:ident, $name:literal, $base:ident, $description:literal, $formula:expr) => {
        &[Definition {
            name: $name,
            description: $description,
            object: MetricObject::$object,
            base: Base::$base,
            formula: $formula,
        }]
    };
}

/// A time, and how long it was for one request: two rows.
macro_rules! time {
    ($object:ident, $name:literal, $requests:literal, $description:literal, $read:expr) => {
        time!($object, $name, $requests, $description, concat!($description, ", for one"), $read)
    };
    ($object:ident, $name:literal, $requests:literal, $all:expr, $one:expr, $read:expr) => {
        &[
            Definition {
                name: $name,
                description: $all,
                object: MetricObject::$object,
                base: Base::Nanoseconds,
                formula: Formula::Counter(Reading::$object($read)),
            },
            Definition {
                name: concat!($name, "_RQ"),
                description: $one,
                object: MetricObject::$object,
                base: Base::Nanoseconds,
                formula: Formula::PerRequest($name, $requests),
            },
        ]
    };
}

/// A time, and its share of the time that passed: two rows.
macro_rules! utilisation {
    ($object:ident, $time:literal, $name:literal, $all:expr, $share:expr, $read:expr) => {
        &[
            Definition {
                name: $time,
                description: $all,
                object: MetricObject::$object,
                base: Base::Nanoseconds,
                formula: Formula::Counter(Reading::$object($read)),
            },
            Definition {
                name: $name,
                description: $share,
                object: MetricObject::$object,
                base: Base::MilliPercent,
                formula: Formula::ShareOfTime($time),
            },
        ]
    };
}

pub(crate) use {counter, metric, time, utilisation};

pub(crate) fn milli_percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100_000).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// Every metric.
pub fn definitions() -> impl Iterator<Item = &'static Definition> {
    let tables = [
        host::ROWS,
        cell_disk::ROWS,
        flash_cache::ROWS,
        grid_disk::ROWS,
        member::ROWS,
        crate::metrics::saving::ROWS,
        keep::ROWS,
        ordered::ROWS,
        redo::ROWS,
        fill::ROWS,
        database::ROWS,
        interconnect::ROWS,
    ];
    tables.into_iter().flatten().copied().flatten()
}

/// With more grid disks, those that nobody uses are not shown: a page for Prometheus has 1.7 MB for so many, and a reading of the history
/// names a thousand.
pub const GRID_DISKS_UNUSED_MAX: usize = 1024;

/// The metric of that name.
#[must_use]
pub fn definition(name: &str) -> Option<&'static Definition> {
    definitions().find(|d| d.name == name)
}

/// Every counter and gauge of every object as it is now, in the order of the table, rates left out. Of more than
/// [`GRID_DISKS_UNUSED_MAX`] grid disks those that no client has used since the cell was started, and of which nothing is dirty, are left out. Costs a walk over the
/// cache's index: for once a second, not for every request.
#[must_use]
pub fn samples(
    cell: &Cell,
    cell_name: &str,
    devices: &[DeviceIo],
    process: &ProcessUse,
    hosts: &[HostUse],
) -> Vec<Sample> {
    let totals = cell.flash_cache().is_some().then(|| CacheTotals::of(cell));
    let log = cell.flash_log().map(|_| LogTotals::of(cell));
    let members = MemberFigures::all(cell);
    let grid_disks = cell.grid_disks();
    let AllHeld { grid_disks: of_grid_disks, cell_disks: of_cell_disks } = AllHeld::of(cell, &grid_disks);
    let shows_all = grid_disks.len() <= GRID_DISKS_UNUSED_MAX;
    let is_shown = |disk: &GridDisk, held: &Held| shows_all || disk.counters.is_used() || held.dirty_bytes > 0;
    let shown: Vec<(&GridDisk, &Held)> =
        grid_disks.iter().map(Arc::as_ref).zip(&of_grid_disks).filter(|(disk, held)| is_shown(disk, held)).collect();
    let accounts = cell.iorm().accounts();
    let mut samples = Vec::new();
    for definition in definitions() {
        let (Formula::Counter(reading) | Formula::Gauge(reading)) = definition.formula else { continue };
        let mut push = |object: Arc<str>, value: u64| samples.push(Sample { definition, object, value });
        match reading {
            Reading::GridDisk(read) => {
                shown.iter().for_each(|(disk, held)| push(held.name.clone(), read(&disk.counters)));
            }
            Reading::HeldOfGridDisk(read) => shown.iter().for_each(|(_, held)| push(held.name.clone(), read(held))),
            Reading::FlashCache(read) => totals.iter().for_each(|totals| push("FLASHCACHE".into(), read(totals))),
            Reading::FlashLog(read) => log.iter().for_each(|totals| push("FLASHLOG".into(), read(totals))),
            Reading::CellDisk(read) => {
                devices.iter().for_each(|device| push(device.name.as_str().into(), read(device)))
            }
            Reading::HeldOfCellDisk(read) => of_cell_disks.iter().for_each(|it| push(it.name.clone(), read(it))),
            Reading::Member(read) => {
                let known = members.iter().filter_map(|member| Some((member, read(&member.endurance)?)));
                known.for_each(|(member, value)| push(member.name.as_str().into(), value));
            }
            Reading::Cell(read) => push(cell_name.into(), read(process)),
            Reading::Database(read) => accounts.iter().for_each(|one| push(one.name().into(), read(one))),
            Reading::ClientHost(read) => hosts.iter().for_each(|host| push(host.name.as_str().into(), read(host))),
            Reading::DatabaseContent => {
                content_by_database(cell, &accounts, totals.as_ref())
                    .for_each(|(name, bytes)| push(name.into(), bytes));
            }
            Reading::Plan(read) => read(cell.iorm()).into_iter().for_each(|value| push(cell_name.into(), value)),
        }
    }
    samples
}

/// Bytes of the flash cache by database. What is nobody's, or of databases without a number, is with the rest.
fn content_by_database(
    cell: &Cell,
    accounts: &[Arc<Account>],
    totals: Option<&CacheTotals>,
) -> impl Iterator<Item = (String, u64)> {
    let cache = cell.flash_cache();
    let bytes = |tenant| cache.as_ref().map_or(0, |cache| cache.tenant_bytes(tenant));
    let used_bytes = totals.map_or(0, |totals| totals.used_bytes);
    let known: u64 = Tenant::all().map(&bytes).sum();
    let mut found = Vec::new();
    for account in accounts.iter().filter(|_| cache.is_some()) {
        let is_rest = account.name() == OTHER_DATABASE;
        if is_rest {
            // Counted at two moments.
            found.push((account.name().to_owned(), used_bytes.saturating_sub(known)));
        } else if account.tenant() != Tenant::REST {
            found.push((account.name().to_owned(), bytes(account.tenant())));
        }
    }
    found.into_iter()
}

/// Every rate over the time between two calls of [`samples`], `elapsed_ns` apart. An object that is new has grown from 0;
/// a rate per request without a request is left out.
#[must_use]
pub fn between(before: &[Sample], after: &[Sample], elapsed_ns: u64) -> Vec<RateSample> {
    fn key(sample: &Sample) -> (&'static str, &str) {
        (sample.definition.name, &*sample.object)
    }
    let before: BTreeMap<_, u64> = before.iter().map(|s| (key(s), s.value)).collect();
    let mut grown: BTreeMap<&'static str, BTreeMap<&Arc<str>, u64>> = BTreeMap::new();
    for sample in after {
        let growth = sample.value.saturating_sub(before.get(&key(sample)).copied().unwrap_or(0));
        grown.entry(sample.definition.name).or_default().insert(&sample.object, growth);
    }
    let none = BTreeMap::new();
    let of = |name: &str| grown.get(name).unwrap_or(&none);
    let mut rates = Vec::new();
    for definition in definitions() {
        let (base, requests) = match definition.formula {
            Formula::Counter(_) | Formula::Gauge(_) => continue,
            Formula::PerSecond(base) | Formula::PerMinute(base) | Formula::ShareOfTime(base) => (base, None),
            Formula::PerRequest(base, requests) => (base, Some(requests)),
        };
        for (object, amount) in of(base) {
            let per = requests.map_or(elapsed_ns, |requests| of(requests).get(object).copied().unwrap_or(0));
            if per > 0 {
                rates.push(RateSample { definition, object: Arc::clone(object), amount: *amount, per });
            }
        }
    }
    rates
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_say_their_object() {
        let mut seen = BTreeSet::new();
        for d in definitions() {
            assert!(seen.insert(d.name), "{} stands twice", d.name);
            let prefix = match d.object {
                MetricObject::Cell => "CL_",
                MetricObject::CellDisk => "CD_",
                MetricObject::FlashCache => "FC_",
                MetricObject::FlashLog => "FL_",
                MetricObject::GridDisk => "GD_",
                MetricObject::Database => "DB_",
                MetricObject::ClientHost => "N_",
            };
            let of_host = d.object == MetricObject::Cell && d.name.starts_with("N_NIC_");
            assert!(d.name.starts_with(prefix) || of_host || d.name == "IORM_MODE", "{}", d.name);
        }
    }

    #[test]
    fn rates_are_of_counters_of_the_same_object() {
        for d in definitions() {
            let bases = match d.formula {
                Formula::Counter(_) | Formula::Gauge(_) => continue,
                Formula::PerSecond(base) | Formula::PerMinute(base) | Formula::ShareOfTime(base) => vec![base],
                Formula::PerRequest(base, requests) => vec![base, requests],
            };
            for base in bases {
                let base = definition(base).unwrap();
                assert!(matches!(base.formula, Formula::Counter(_)), "{} is a rate of {}", d.name, base.name);
                assert_eq!(base.object, d.object, "{}", d.name);
            }
        }
    }

    /// Reading a counter that the cache does not have would show 0 for ever.
    #[test]
    fn every_member_counter_that_is_read_exists() {
        let known: BTreeMap<_, _> =
            flashcache::Counters::default().snapshot().into_iter().map(|(n, _)| (n, 1)).collect();
        let totals = CacheTotals { members: known, ..CacheTotals::default() };
        let read_from_members =
            ["FC_IO_BY_FLASH_W", "FC_IO_BY_W", "FC_IO_ERRS", "FC_IO_ROT", "FC_IO_RQ_EVICT", "FC_IO_RQ_REWRITE"];
        let more = ["FC_IO_RQ_REPLACEMENT_ATTEMPTED", "FC_IO_RQ_REPLACEMENT_FAILED", "FC_IO_BY_W_POPULATE"];
        let discards = ["FC_IO_BY_DISCARD", "FC_IO_RQ_DISCARD"];
        let cleaning = ["FC_IO_BY_CARRY", "FC_IO_BY_COPY", "FC_IO_RQ_CLEAN"];
        let endurance =
            ["FC_IO_RQ_W_SKIP_ENDURANCE", "FC_IO_RQ_MOVE_SKIP_ENDURANCE", "FC_IO_RQ_OVERWRITE_SKIP_ENDURANCE"];
        let skips = ["INDEX", "MEM", "POLICY", "SLOW", "SPACE"].map(|why| format!("FC_IO_RQ_W_SKIP_{why}"));
        let keep = ["FC_BYKEEP_OVERWR", "FC_IO_BYKEEP_W", "FC_IO_RQKEEP_W", "FC_IO_RQKEEP_W_SKIP_SHARE"];
        let all =
            read_from_members.into_iter().chain(more).chain(discards).chain(cleaning).chain(endurance).chain(keep);
        for name in all.chain(skips.iter().map(String::as_str)) {
            let Formula::Counter(Reading::FlashCache(read)) = definition(name).unwrap().formula else {
                panic!("{name}")
            };
            assert!(read(&totals) > 0, "{name} reads a counter that does not exist");
        }
    }

    fn sample(name: &str, object: &str, value: u64) -> Sample {
        Sample { definition: definition(name).unwrap(), object: object.into(), value }
    }

    #[test]
    fn rates_between_two_readings() {
        let before = [sample("CD_IO_TM_R_SM", "d", 100), sample("CD_IO_RQ_R_SM", "d", 10)];
        let after = [
            sample("CD_IO_TM_R_SM", "d", 1_100),
            sample("CD_IO_RQ_R_SM", "d", 14),
            sample("CD_IO_TM_R_SM", "new", 50),
            sample("CD_IO_RQ_R_SM", "new", 0),
        ];
        let rates: BTreeMap<_, _> = between(&before, &after, 7)
            .into_iter()
            .map(|r| ((r.definition.name, r.object.to_string()), (r.amount, r.per)))
            .collect();
        let rate = |name, object: &str| rates.get(&(name, object.to_owned())).copied();
        assert_eq!(rate("CD_IO_RQ_R_SM_SEC", "d"), Some((4, 7)));
        assert_eq!(rate("CD_IO_TM_R_SM_RQ", "d"), Some((1_000, 4)));
        assert_eq!(rate("CD_IO_RQ_R_SM_SEC", "new"), Some((0, 7)));
        assert_eq!(rate("CD_IO_TM_R_SM_RQ", "new"), None, "no request, no time of one");
    }
}
