//! Alerts: what they mean, when metrics raise them, which there are and were, and whom they are sent to.
//!
//! Never looks at a cell: who does (`admin::conditions`, `admin::watch`) tells what is wrong now, and this finds what is new.

mod definitions;
mod hooks;
pub(crate) mod mail;
mod records;
mod threshold;
mod webhook;

pub(crate) use definitions::{Definition, Every, GRID_DISK_OFFLINE, Kind, definition, definitions};
pub(crate) use hooks::Hooks;
pub(crate) use records::{Alerts, Condition, Record, Severity};
pub(crate) use threshold::{Comparison, THRESHOLDS_MAX, Threshold, ThresholdError, Watch};
pub(crate) use webhook::Address;
