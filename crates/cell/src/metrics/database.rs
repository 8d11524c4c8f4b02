//! The metrics of the I/O resource plan and of databases, by the vendor's names.
//!
//! Never keeps a value. DB_IO_… is of disks, DB_FD_IO_… of flash as a device, DB_FC_… of the flash cache, DB_FL_… of the flash log.
//! What counts requests counts them plan or no plan; what is measured in the plan (waits, times, utilisation, load) stands still while
//! nothing is delayed by one, so that it costs nothing then.

use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, counter, metric, time, utilisation};

/// Device time and its part of the time of one device.
macro_rules! device_time {
    ($time:literal, $name:literal, $of:literal, $read:expr) => {
        utilisation!(
            Database,
            $time,
            $name,
            concat!($of, ": device time"),
            concat!($of, ": device time, of that of one device"),
            $read
        )
    };
}

/// A gauge of a database.
macro_rules! gauge {
    ($name:literal, $base:ident, $description:literal, $read:expr) => {
        metric!(Database, $name, $base, $description, Formula::Gauge(Reading::Database($read)))
    };
}

/// The metrics of databases and of the plan.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        Cell,
        "IORM_MODE",
        Milli,
        "what the I/O plan aims at, in the mean of all devices: 1 low latency, 2 balanced, 3 high throughput",
        Formula::Gauge(Reading::Plan(|plan| plan.mode_milli()))
    ),
    metric!(
        Database,
        "DB_FC_BY_ALLOCATED",
        Bytes,
        "bytes of the flash cache that hold blocks of a database",
        Formula::Gauge(Reading::DatabaseContent)
    ),
    counter!(Database, "DB_FC_IO_BY", Bytes, "bytes a database read from the flash cache or wrote into it", |d| d
        .cache_bytes
        .get()),
    counter!(Database, "DB_FC_IO_RQ", Requests, "requests of a database that the flash cache served", |d| d
        .cache_requests
        .all()),
    counter!(Database, "DB_FC_IO_RQ_LG", Requests, "large requests of a database that the flash cache served", |d| d
        .cache_requests
        .large
        .get()),
    counter!(Database, "DB_FC_IO_RQ_SM", Requests, "small requests of a database that the flash cache served", |d| d
        .cache_requests
        .small
        .get()),
    counter!(Database, "DB_FD_IO_BY", Bytes, "bytes a database read from flash or wrote to it", |d| d
        .flash
        .bytes
        .get()),
    gauge!("DB_FD_IO_LOAD", Count, "requests of a database that use flash now", |d| d.flash.under_way()),
    counter!(Database, "DB_FD_IO_RQ_LG", Requests, "large requests of a database to flash", |d| d
        .flash
        .requests
        .large
        .get()),
    counter!(Database, "DB_FD_IO_RQ_SM", Requests, "small requests of a database to flash", |d| d
        .flash
        .requests
        .small
        .get()),
    time!(Database, "DB_FD_IO_TM_LG", "DB_FD_IO_RQ_LG", "time of large requests of a database to flash", |d| d
        .flash
        .time_ns
        .large
        .get()),
    time!(Database, "DB_FD_IO_TM_SM", "DB_FD_IO_RQ_SM", "time of small requests of a database to flash", |d| d
        .flash
        .time_ns
        .small
        .get()),
    device_time!("DB_FD_IO_DT_LG", "DB_FD_IO_UTIL_LG", "large requests of a database to flash", |d| d
        .flash
        .device_ns
        .large
        .get()),
    device_time!("DB_FD_IO_DT_SM", "DB_FD_IO_UTIL_SM", "small requests of a database to flash", |d| d
        .flash
        .device_ns
        .small
        .get()),
    time!(Database, "DB_FD_IO_WT_LG", "DB_FD_IO_RQ_LG", "time large requests to flash waited in the plan", |d| d
        .flash
        .wait_ns
        .large
        .get()),
    time!(Database, "DB_FD_IO_WT_SM", "DB_FD_IO_RQ_SM", "time small requests to flash waited in the plan", |d| d
        .flash
        .wait_ns
        .small
        .get()),
    counter!(Database, "DB_FL_IO_BY", Bytes, "bytes of redo of a database given to the flash log", |d| d
        .log_bytes
        .get()),
    counter!(Database, "DB_FL_IO_RQ", Requests, "redo writes of a database given to the flash log", |d| d
        .log_requests
        .get()),
    counter!(Database, "DB_IO_BY", Bytes, "bytes a database read from disks or wrote to them", |d| d.disk.bytes.get()),
    gauge!("DB_IO_LOAD", Count, "requests of a database that use disks now", |d| d.disk.under_way()),
    counter!(Database, "DB_IO_RQ_LG", Requests, "large requests of a database to disks", |d| d
        .disk
        .requests
        .large
        .get()),
    counter!(Database, "DB_IO_RQ_SM", Requests, "small requests of a database to disks", |d| d
        .disk
        .requests
        .small
        .get()),
    time!(Database, "DB_IO_TM_LG", "DB_IO_RQ_LG", "time of large requests of a database to disks", |d| d
        .disk
        .time_ns
        .large
        .get()),
    time!(Database, "DB_IO_TM_SM", "DB_IO_RQ_SM", "time of small requests of a database to disks", |d| d
        .disk
        .time_ns
        .small
        .get()),
    device_time!("DB_IO_DT_LG", "DB_IO_UTIL_LG", "large requests of a database to disks", |d| d
        .disk
        .device_ns
        .large
        .get()),
    device_time!("DB_IO_DT_SM", "DB_IO_UTIL_SM", "small requests of a database to disks", |d| d
        .disk
        .device_ns
        .small
        .get()),
    time!(Database, "DB_IO_WT_LG", "DB_IO_RQ_LG", "time large requests to disks waited in the plan", |d| d
        .disk
        .wait_ns
        .large
        .get()),
    time!(Database, "DB_IO_WT_SM", "DB_IO_RQ_SM", "time small requests to disks waited in the plan", |d| d
        .disk
        .wait_ns
        .small
        .get()),
];
