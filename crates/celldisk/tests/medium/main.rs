//! Tests of the whole crate on a medium that forgets: power cuts, torn writes, failing devices, foreign data.
#![expect(clippy::unwrap_used, reason = "tests")]

mod adopted;
mod doc;
mod fixture;
mod foreign;
mod grid_disks;
mod labels;
mod many;
mod power_cut;
mod replicas;
mod round_trip;
mod slices;
mod stamps;
mod support;
