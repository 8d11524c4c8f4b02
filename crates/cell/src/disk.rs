//! A grid disk as the cell serves it: what it is, its state, what of its requests is timed and recorded; and why a command on it is refused.

pub(crate) mod client_io;
pub(crate) mod early;
pub(crate) mod error;
pub(crate) mod freeze;
pub(crate) mod grid_disk;
pub(crate) mod last_copy;
pub(crate) mod loss;
pub(crate) mod port;
pub(crate) mod redo_record;
pub(crate) mod seat;
pub(crate) mod traced;
