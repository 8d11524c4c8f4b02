//! The flash log: redo writes that never wait for the slower of disk and flash (DESIGN section 4).
//!
//! - [`LogReader`] reads the rings, replays what they hold and begins the next life of the log.
//! - [`FlashLog`] serves grid disks.
//! - [`RedoDisk`] is a grid disk behind it: a device with the same verbs.
//! - `ledger` decides, without I/O or time, what each event means; `ring` writes batches on one flash device; `recover`
//!   reads them back; `mode` says when the flash leg of a sync begins.
//! - [`format`] is what lies on flash.
//!
//! Never touches the flash cache; never knows a catalog, a label or a client.

mod counters;
mod errand;
mod estimate;
pub mod format;
mod ledger;
mod legs;
mod log;
mod mode;
mod ranges;
mod recover;
mod redo_disk;
mod replay;
mod ring;
mod sabotage;

pub use counters::{Count, Counters, Skip};
pub use errand::{Answered, Errand, Verdict};
pub use format::Owner;
pub use log::{FlashLog, LogConfig, RINGS_MAX, RingDevice};
pub use mode::Mode;
pub use recover::ReadFailed;
pub use redo_disk::{RedoDisk, RedoDiskConfig};
pub use replay::{LogReader, ReplayError, ReplayTarget, Replayed, RingFound};
pub use ring::RingTotals;
pub use sabotage::Sabotage;
