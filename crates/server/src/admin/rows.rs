//! What LIST shows: every object of a type with the attributes this cell really knows.
//!
//! An attribute that is not supplied is not shown; nothing is made up to fill a column.

use super::cell_disks::comment_key;
use super::history::PERIOD;
use super::in_service::deactivation_outcome;
use super::{Context, activity_rows, alert_statements, physical_rows};
use crate::alerting::mail;
use crate::durability::{self, class_name};
use crate::init::{caching_mode_name, purpose_name};
use crate::process;
use cell::FlushStatus;
use cell::metrics::{Base, Definition, Formula, MetricObject, MetricType, RateSample, Sample};
use cellcli::{Decimal, Measure, ObjectType, Row, Timestamp, Unit, Value};
use celldisk::{CachingPolicy, FillStrategy, FlashLogMode, MemberStatus, Role};
use device::WallTime;
use std::num::NonZeroU64;
use std::sync::Arc;

/// Every object of a type.
pub(super) fn rows(context: &Context, object: ObjectType) -> Vec<Row> {
    match object {
        ObjectType::Cell => vec![cell(context)],
        ObjectType::CellDisk => cell_disks(context),
        ObjectType::GridDisk => grid_disks(context, |_| true),
        ObjectType::FlashCache => flash_cache(context).into_iter().collect(),
        ObjectType::FlashLog => flash_log(context).into_iter().collect(),
        ObjectType::MetricDefinition => super::metric_definitions::rows(context),
        ObjectType::Pin => pins(context),
        ObjectType::Threshold => alert_statements::thresholds(context),
        ObjectType::AlertDefinition => alert_statements::alert_definitions(),
        ObjectType::AlertHistory => alert_statements::alert_history(context),
        ObjectType::PhysicalDisk => physical_rows::physical_disks(context),
        ObjectType::Lun => physical_rows::luns(context),
        ObjectType::ActiveRequest => activity_rows::active_requests(context),
        // Too many to be held: these are made when they are looked at.
        ObjectType::FlashCacheContent | ObjectType::MetricCurrent | ObjectType::MetricHistory => Vec::new(),
        ObjectType::IormPlan => vec![super::iorm::plan(context)],
        ObjectType::IormProfile => super::iorm::profiles(context),
        ObjectType::Database => super::iorm::databases(context),
    }
}

pub(super) fn timestamp(at: WallTime) -> Value {
    let since_epoch_ns = i64::try_from(at.0).unwrap_or(i64::MAX);
    Value::Timestamp(Timestamp::new(since_epoch_ns, process::offset_minutes(at.0)))
}

fn integer(n: u64) -> Value {
    Value::Integer(i64::try_from(n).unwrap_or(i64::MAX))
}

fn names(list: &str) -> Value {
    Value::List(list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// 32 hexadecimal digits as the vendor shows identities: 8-4-4-4-12.
fn guid(id: u128) -> Value {
    let digits = format!("{id:032x}");
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-").into()
}

fn disk_type(role: Role) -> &'static str {
    match role {
        Role::Disk => "HardDisk",
        Role::Flash => "FlashDisk",
    }
}

fn cell(context: &Context) -> Row {
    let catalog = context.cell.store().catalog();
    let up_s = context.world.clock.now().ns_since(context.started) / 1_000_000_000;
    let (days, hours, minutes) = (up_s / 86_400, up_s / 3_600 % 24, up_s / 60 % 60);
    let row = Row::new(ObjectType::Cell)
        .with("name", catalog.cell_name.as_str())
        .with("cellVersion", format!("Flashcell {}", crate::VERSION))
        .with("cpuCount", integer(process::cpu_count()))
        .with("flashCacheMode", if context.cell.is_flash_cache_write_back() { "WriteBack" } else { "WriteThrough" })
        .with("id", guid(catalog.cell_id.0))
        .with("instanceStamp", format!("{:032x}", context.cell.instance_stamp()))
        .with("releaseVersion", crate::VERSION)
        .with("status", "online")
        .with("upTime", format!("{days} days, {hours}:{minutes:02}"))
        .with("cellsrvStatus", "running")
        .with("msStatus", "running");
    let row = row
        .with("metricCollection", if context.keeps_history(&catalog.attributes) { "TRUE" } else { "FALSE" })
        .with("metricHistoryDays", integer(context.history_days(&catalog.attributes)))
        .with(
            "notificationPolicy",
            names(catalog.attributes.get("notificationPolicy").map_or("critical,warning,info,clear", |it| it)),
        );
    let text = |row: Row, name: &'static str| match catalog.attributes.get(name) {
        Some(text) => row.with(name, text.as_str()),
        None => row,
    };
    let row = ["comment", mail::FROM, mail::FROM_ADDRESS, mail::SERVER].into_iter().fold(row, text);
    let row = row.with(mail::METHOD, names(catalog.attributes.get(mail::METHOD).map_or("none", |it| it)));
    let row = match catalog.attributes.get(mail::PORT).and_then(|port| port.parse().ok()) {
        Some(port) => row.with(mail::PORT, integer(port)),
        None => row,
    };
    let row = match catalog.attributes.get(mail::TO_ADDRESSES) {
        Some(list) => row.with(mail::TO_ADDRESSES, names(list)),
        None => row,
    };
    row.with(mail::USE_SSL, catalog.attributes.get(mail::USE_SSL).map_or("FALSE", |it| it))
}

fn cell_disks(context: &Context) -> Vec<Row> {
    let store = context.cell.store();
    let catalog = store.catalog();
    let statuses = store.members();
    let mut rows = Vec::new();
    for (id, member) in &catalog.members {
        let status = match statuses.get(id) {
            Some(MemberStatus::InService(_)) => "normal",
            Some(MemberStatus::OutOfService(..)) => "proactive failure",
            Some(MemberStatus::Missing) | None => "not present",
        };
        let mut row = Row::new(ObjectType::CellDisk)
            .with("name", member.name.as_str())
            .with("deviceClass", class_name(member.class))
            .with("deviceId", format!("{id}"))
            .with("diskType", disk_type(member.role))
            .with("freeSpace", Value::SizeBytes(catalog.free_bytes(*id)))
            .with("id", guid(id.0))
            .with("interleaving", "none")
            .with("status", status);
        if let Some(comment) = catalog.attributes.get(&comment_key(*id)) {
            row = row.with("comment", comment.as_str());
        }
        // Of the flash whose data goes to the disks.
        if catalog.flash_cache.as_ref().is_some_and(|cache| cache.regions.contains_key(id))
            && let Some((status, error)) = context.cell.last_flush().map(flush_words)
        {
            row = row.with("flushStatus", status).with("flushError", error);
        }
        if let Some(device) = context.device(*id) {
            let path = device.path.display().to_string();
            row = row
                .with("deviceName", path.as_str())
                .with("devicePartition", path.as_str())
                .with("lun", path.as_str())
                .with("physicalDisk", path)
                .with("deviceClassSource", durability::source(member.class, device.durability.as_ref()))
                .with("errorCount", integer(device.io.errors()));
        }
        if let Some(disk) = store.cell_disk(*id) {
            let label = disk.label();
            row = row
                .with("creationTime", timestamp(label.created))
                .with("size", Value::SizeBytes(label.size_bytes))
                .with("truePageSize", Value::SizeBytes(u64::from(label.page_bytes)));
        }
        rows.push(row);
    }
    // Identities are random: names are what people know.
    rows.sort_by_key(Row::name);
    rows
}

/// flushStatus and flushError.
fn flush_words(status: FlushStatus) -> (&'static str, String) {
    match status {
        FlushStatus::Working => ("working", String::new()),
        FlushStatus::Completed => ("completed", String::new()),
        FlushStatus::Cancelled => ("cancelled", String::new()),
        FlushStatus::Failed(why) => ("failed", why.lines().next().unwrap_or_default().to_owned()),
    }
}

/// Those of these names, whatever their case, and perhaps others.
pub(super) fn rows_named(context: &Context, object: ObjectType, names: &[String]) -> Vec<Row> {
    let is_named = |record: &celldisk::GridDisk| names.iter().any(|name| name.eq_ignore_ascii_case(&record.name));
    if object == ObjectType::GridDisk { grid_disks(context, is_named) } else { rows(context, object) }
}

fn grid_disks(context: &Context, is_wanted: impl Fn(&celldisk::GridDisk) -> bool) -> Vec<Row> {
    let catalog = context.cell.store().catalog();
    let mut rows = Vec::new();
    for record in catalog.grid_disks.values().filter(|record| is_wanted(record)) {
        let member = catalog.members.get(&record.cell_disk);
        let served = context.cell.grid_disk(&record.name).filter(|disk| disk.id() == record.id.0);
        let au_bytes = member.map_or(0, |member| member.au_bytes);
        let offline = served.as_ref().is_some_and(|disk| disk.offline().is_some());
        let status = match &served {
            // As its operator wants it, whatever it waits for besides.
            Some(disk) if disk.is_inactive() => "inactive",
            Some(_) if offline => "offline",
            Some(disk) if disk.is_waiting_for_index() => "starting",
            Some(_) => "active",
            None => "not present",
        };
        let mut row = Row::new(ObjectType::GridDisk)
            .with("name", record.name.as_str())
            .with("availableTo", names(&record.available_to))
            .with("cachedBy", Value::List(Vec::new()))
            .with("cachingMode", caching_mode_name(record.caching_mode))
            .with("cachingPolicy", policy_name(record.caching_policy))
            .with("comment", record.comment.as_str())
            .with("creationTime", timestamp(record.created))
            .with("fillStrategy", fill_name(record.fill))
            .with("flashLogMode", flash_log_mode_name(record.flash_log_mode))
            .with("id", format!("{}", record.id))
            .with("purpose", purpose_name(record.purpose))
            .with("readOnly", if record.read_only { "TRUE" } else { "FALSE" })
            .with("size", Value::SizeBytes(record.size_bytes))
            .with("sizeAllocated", Value::SizeBytes(record.extents.iter().map(|e| e.len_bytes(au_bytes)).sum()))
            .with("sparse", "FALSE")
            .with("status", status);
        if let Some(member) = member {
            row = row.with("cellDisk", member.name.as_str()).with("diskType", disk_type(member.role));
        }
        if let Some(first) = record.extents.first() {
            row = row.with("offset", Value::SizeBytes(first.offset(au_bytes)));
        }
        if let Some(disk) = served {
            row = row.with("errorCount", integer(disk.counters.errors.get()));
            row = row.with("asmDeactivationOutcome", deactivation_outcome(context, &disk));
            if let Some(until) = disk.frozen_until() {
                let left_ns = until.ns_since(context.world.clock.now());
                row = row.with("frozenFor", integer(left_ns.div_ceil(1_000_000_000)));
            }
        }
        if let Some(as_of) = context.cell.stale_as_of(&record.name) {
            row = row.with("staleAsOf", timestamp(as_of));
        }
        rows.push(row);
    }
    rows.sort_by_key(Row::name);
    rows
}

fn policy_name(policy: CachingPolicy) -> &'static str {
    match policy {
        CachingPolicy::Default => "default",
        CachingPolicy::Keep => "keep",
        CachingPolicy::None => "none",
    }
}

fn fill_name(fill: FillStrategy) -> &'static str {
    match fill {
        FillStrategy::Read => "read",
        FillStrategy::Evict => "evict",
        FillStrategy::Feed => "feed",
    }
}

/// By grid disk, in the order of its bytes.
fn pins(context: &Context) -> Vec<Row> {
    let catalog = context.cell.store().catalog();
    let mut rows = Vec::new();
    for record in catalog.grid_disks.values() {
        rows.extend(record.caching_ranges.iter().map(|range| {
            Row::new(ObjectType::Pin)
                .with("name", record.name.as_str())
                .with("cachingPolicy", policy_name(range.policy))
                .with("length", Value::SizeBytes(range.end_bytes - range.start_bytes))
                .with("offset", Value::SizeBytes(range.start_bytes))
        }));
    }
    rows.sort_by_key(Row::name);
    rows
}

/// The name of the flash cache of a cell.
pub(super) fn flash_cache_name(cell_name: &str) -> String {
    format!("{cell_name}_FLASHCACHE")
}

fn flash_cache(context: &Context) -> Option<Row> {
    let catalog = context.cell.store().catalog();
    let record = catalog.flash_cache.as_ref()?;
    let name = |id| catalog.members.get(id).map_or_else(|| format!("{id}"), |member| member.name.clone());
    let at_work = context.cell.flash_cache_devices();
    let cache = context.cell.flash_cache();
    let failed: Vec<bool> = cache.iter().flat_map(|c| c.members()).map(|member| member.has_failed()).collect();
    let opening = context.cell.is_opening();
    let is_good = |id: &celldisk::DeviceId| {
        let place = at_work.iter().position(|it| it == id);
        opening || place.is_some_and(|place| !failed.get(place).copied().unwrap_or(true))
    };
    let mut cell_disks: Vec<String> = record.regions.keys().map(name).collect();
    let mut degraded: Vec<String> = record.regions.keys().filter(|id| !is_good(id)).map(name).collect();
    cell_disks.sort_unstable();
    degraded.sort_unstable();
    let total = cell_disks.len() as u64;
    let good = total - degraded.len() as u64;
    let status = match good {
        _ if opening => "starting",
        0 => "critical",
        _ if good < total => "warning",
        _ => "normal",
    };
    Some(
        Row::new(ObjectType::FlashCache)
            .with("name", flash_cache_name(&catalog.cell_name))
            .with("cellDisk", Value::List(cell_disks))
            .with("creationTime", timestamp(record.created))
            .with("degradedCelldisks", Value::List(degraded))
            .with("effectiveCacheSize", Value::SizeBytes(record.size_per_device_bytes * good))
            .with("id", guid(record.id.0))
            .with("size", Value::SizeBytes(record.size_per_device_bytes * total))
            .with("status", status),
    )
}

/// The name of the flash log of a cell.
pub(super) fn flash_log_name(cell_name: &str) -> String {
    format!("{cell_name}_FLASHLOG")
}

/// How a grid disk uses the flash log, as the operator writes it.
pub(super) fn flash_log_mode_name(mode: FlashLogMode) -> &'static str {
    match mode {
        FlashLogMode::Auto => "auto",
        FlashLogMode::Race => "race",
        FlashLogMode::Hedge => "hedge",
        FlashLogMode::Flash => "flash",
        FlashLogMode::Off => "off",
    }
}

fn flash_log(context: &Context) -> Option<Row> {
    let catalog = context.cell.store().catalog();
    let record = catalog.flash_log.as_ref()?;
    let name = |id| catalog.members.get(id).map_or_else(|| format!("{id}"), |member| member.name.clone());
    let at_work = context.cell.flash_log_devices();
    let failures = context.cell.flash_log().map_or_else(Vec::new, |log| log.failures());
    let is_good = |id: &celldisk::DeviceId| {
        let place = at_work.iter().position(|it| it == id);
        place.is_some_and(|place| failures.get(place).is_some_and(Option::is_none))
    };
    let mut cell_disks: Vec<String> = record.regions.keys().map(name).collect();
    let mut degraded: Vec<String> = record.regions.keys().filter(|id| !is_good(id)).map(name).collect();
    cell_disks.sort_unstable();
    degraded.sort_unstable();
    let total = cell_disks.len() as u64;
    let good = total - degraded.len() as u64;
    let status = match good {
        0 => "critical",
        _ if good < total => "warning",
        _ => "normal",
    };
    let efficiency = context.samples().into_iter().find(|sample| sample.definition.name == "FL_EFFICIENCY_PERCENTAGE");
    let row = Row::new(ObjectType::FlashLog)
        .with("name", flash_log_name(&catalog.cell_name))
        .with("cellDisk", Value::List(cell_disks))
        .with("creationTime", timestamp(record.created))
        .with("degradedCelldisks", Value::List(degraded))
        .with("effectiveSize", Value::SizeBytes(record.size_per_device_bytes * good))
        .with("id", guid(record.id.0))
        .with("outlierLimit", integer(u64::from(record.outlier_ms)))
        .with("size", Value::SizeBytes(record.size_per_device_bytes * total))
        .with("status", status);
    Some(match efficiency {
        Some(sample) => row.with("efficiency", Value::Measure(amount(&sample))),
        None => row,
    })
}

pub(super) fn metric_type(definition: &Definition) -> &'static str {
    match definition.metric_type() {
        MetricType::Cumulative => "Cumulative",
        MetricType::Instantaneous => "Instantaneous",
        MetricType::Rate => "Rate",
    }
}

pub(super) fn metric_object(definition: &Definition) -> &'static str {
    match definition.object {
        MetricObject::Cell => "CELL",
        MetricObject::CellDisk => "CELLDISK",
        MetricObject::FlashCache => "FLASHCACHE",
        MetricObject::FlashLog => "FLASHLOG",
        MetricObject::GridDisk => "GRIDDISK",
        MetricObject::Database => "IORM_DATABASE",
        MetricObject::ClientHost => "HOST_INTERCONNECT",
    }
}

/// The unit a metric is printed in.
pub(super) fn metric_unit(definition: &Definition) -> Unit {
    match (definition.base, definition.formula) {
        (Base::Bytes, Formula::PerSecond(_)) if is_in_kb(definition) => Unit::KbPerSecond,
        (Base::Bytes, Formula::PerSecond(_)) => Unit::MbPerSecond,
        (Base::Bytes, _) => Unit::Mb,
        (Base::Requests, Formula::PerSecond(_)) => Unit::IoPerSecond,
        (Base::Requests, _) => Unit::IoRequests,
        (Base::Nanoseconds, Formula::PerRequest(..)) if is_wait(definition) => Unit::MsPerRequest,
        (Base::Nanoseconds, _) if is_wait(definition) => Unit::Ms,
        (Base::Nanoseconds, Formula::PerRequest(..)) => Unit::UsPerRequest,
        (Base::Nanoseconds, _) => Unit::Us,
        (Base::MilliPercent, _) => Unit::Percent,
        (_, Formula::PerMinute(_)) => Unit::PerMinute,
        (Base::Count | Base::Milli, _) => Unit::None,
    }
}

/// Waits in the I/O plan are shown in milliseconds, as the vendor's.
fn is_wait(definition: &Definition) -> bool {
    definition.name.contains("_IO_WT_")
}

/// What the host's network carries is shown in kilobytes a second, as the vendor's.
fn is_in_kb(definition: &Definition) -> bool {
    definition.name.starts_with("N_NIC_KB_")
}

/// How many of its base unit make one of the printed unit.
fn divisor(definition: &Definition) -> NonZeroU64 {
    const ONE: NonZeroU64 = NonZeroU64::MIN;
    let n = match definition.base {
        Base::Nanoseconds if is_wait(definition) => 1_000_000,
        Base::Bytes if is_in_kb(definition) => 1 << 10,
        Base::Bytes => 1 << 20,
        Base::Requests | Base::Count => 1,
        Base::Nanoseconds | Base::Milli | Base::MilliPercent => 1_000,
    };
    NonZeroU64::new(n).unwrap_or(ONE)
}

/// A row of METRICDEFINITION without what is set of it.
pub(super) fn metric_definition(definition: &'static Definition) -> Row {
    Row::new(ObjectType::MetricDefinition)
        .with("name", definition.name)
        .with("description", definition.description)
        .with("fineGrained", "Disabled")
        .with("metricType", metric_type(definition))
        .with("objectType", metric_object(definition))
        .with("streaming", "Disabled")
        .with("unit", metric_unit(definition).text())
}

/// Every value as it is shown.
pub(super) fn values(
    samples: &[Sample],
    rates: &[RateSample],
) -> impl Iterator<Item = (&'static Definition, Arc<str>, Measure)> {
    let of_now = samples.iter().map(|it| (it.definition, it.object.clone(), amount(it)));
    of_now.chain(rates.iter().map(|it| (it.definition, it.object.clone(), rate(it))))
}

/// A row of METRICHISTORY without its value.
pub(super) fn history_row(definition: &'static Definition, object: &str, at: WallTime, now_ns: u64) -> Row {
    let row = Row::new(ObjectType::MetricHistory)
        .with("name", definition.name)
        .with("description", definition.description)
        .with("metricObjectName", object)
        .with("metricType", metric_type(definition))
        .with("objectType", metric_object(definition))
        .with("unit", metric_unit(definition).text());
    with_time(row, at, now_ns)
}

/// A row of METRICHISTORY with the time of its reading.
pub(super) fn with_time(row: Row, at: WallTime, now_ns: u64) -> Row {
    row.with("age", integer(now_ns.saturating_sub(at.0) / 1_000_000_000)).with("collectionTime", timestamp(at))
}

fn measure(definition: &Definition, number: Decimal) -> Measure {
    let unit = metric_unit(definition);
    if definition.base == Base::Count && !matches!(definition.formula, Formula::PerMinute(_)) {
        Measure::whole(number, unit)
    } else {
        Measure::new(number, unit)
    }
}

pub(super) fn amount(sample: &Sample) -> Measure {
    measure(sample.definition, Decimal::from_ratio(sample.value, divisor(sample.definition)))
}

/// Thousandths kept of a rate while it is computed.
const MILLI: u128 = 1_000;

pub(super) fn rate(rate: &RateSample) -> Measure {
    let (amount, per) = (u128::from(rate.amount), u128::from(rate.per.max(1)));
    let (milli, divisor) = match rate.definition.formula {
        Formula::PerSecond(_) => (amount * MILLI * 1_000_000_000 / per, divisor(rate.definition)),
        Formula::PerMinute(_) => (amount * MILLI * PERIOD.as_nanos() / per, divisor(rate.definition)),
        // Of one processor: amount and per are both nanoseconds.
        Formula::ShareOfTime(_) => (amount * MILLI * 100 / per, NonZeroU64::MIN),
        Formula::PerRequest(..) | Formula::Counter(_) | Formula::Gauge(_) => {
            (amount * MILLI / per, divisor(rate.definition))
        }
    };
    let divisor = divisor.saturating_mul(NonZeroU64::new(MILLI as u64).unwrap_or(NonZeroU64::MIN));
    let number = Decimal::from_ratio(u64::try_from(milli).unwrap_or(u64::MAX), divisor);
    measure(rate.definition, number)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use cell::metrics::definition;

    fn shown(name: &str, amount: u64, per: u64) -> String {
        rate(&RateSample { definition: definition(name).unwrap(), object: "".into(), amount, per }).to_string()
    }

    #[test]
    fn rates_are_printed_in_their_units() {
        assert_eq!(shown("FC_IO_RQ_R_SEC", 336, 10_000_000_000), "33.6 IO/sec");
        assert_eq!(shown("FC_IO_BY_R_SEC", 3 << 20, 2_000_000_000), "1.500 MB/sec");
        assert_eq!(shown("GD_IO_ERRS_MIN", 1, 30_000_000_000), "2.0 /min");
        assert_eq!(shown("CL_CPUT_CS", 1_500_000_000, 1_000_000_000), "150 %");
        assert_eq!(shown("CD_IO_TM_R_SM_RQ", 12_800_000, 1), "12,800 us/request");
        // A terabyte a second for a day does not overflow.
        assert_eq!(shown("FC_IO_BY_R_SEC", (1 << 40) * 86_400, 86_400_000_000_000), "1,048,576 MB/sec");
    }

    #[test]
    fn counters_are_printed_in_their_units() {
        let shown = |name: &str, value| {
            amount(&Sample { definition: definition(name).unwrap(), object: "".into(), value }).to_string()
        };
        assert_eq!(shown("FC_IO_RQ_R", 8_551_640), "8,551,640 IO requests");
        assert_eq!(shown("FC_BY_USED", 3 << 19), "1.500 MB");
        assert_eq!(shown("CD_IO_TM_R_SM", 1_500_000), "1,500 us");
        assert_eq!(shown("GD_IO_ERRS", 7), "7");
        assert_eq!(shown("DB_IO_WT_SM", 120_000_000), "120 ms");
        assert_eq!(shown("CL_RUNQ", 1_250), "1.3");
    }

    #[test]
    fn identities() {
        assert_eq!(guid(1).text(), "00000000-0000-0000-0000-000000000001");
    }

    /// A table row that the language does not know would stop the server at the first LIST.
    #[test]
    fn every_definition_makes_a_row() {
        let rows: Vec<Row> = cell::metrics::definitions().map(metric_definition).collect();
        assert!(rows.len() > 60);
        assert!(rows.iter().all(|row| !row.name().is_empty()));
    }
}
