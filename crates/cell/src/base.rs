//! What every room of the cell uses: units, the words of a request, range locks, counters, records of requests.
//!
//! Never knows a grid disk.

pub(crate) mod access;
pub(crate) mod active;
pub(crate) mod counters;
pub(crate) mod fence;
pub(crate) mod last_hour;
pub(crate) mod log_room;
pub(crate) mod range_lock;
pub(crate) mod recorder;
pub(crate) mod request;
pub(crate) mod service_times;
pub(crate) mod streams;
pub(crate) mod tally;
pub(crate) mod transfer;
pub(crate) mod units;
pub(crate) mod work;
