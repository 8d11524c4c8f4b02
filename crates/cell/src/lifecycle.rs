//! The cell from its opening to its stop: which content of flash counts, which grid disks are served, what runs beside them.

pub(crate) mod adopted;
pub(crate) mod cell;
pub(crate) mod cell_disks;
pub(crate) mod compared;
pub(crate) mod discard;
pub(crate) mod early;
pub(crate) mod expel;
pub(crate) mod flash_log;
pub(crate) mod housekeeping;
pub(crate) mod journals;
pub(crate) mod membership;
pub(crate) mod open;
pub(crate) mod rebind;
pub(crate) mod refill;
pub(crate) mod replay;
pub(crate) mod stamps;
