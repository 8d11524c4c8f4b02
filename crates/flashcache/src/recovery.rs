//! What a member holds after a restart: segments read back, the index restored, the log gone on with, records verified.

pub(crate) mod recover;
pub(crate) mod reopen;
pub(crate) mod restore;
pub(crate) mod snapshot;
pub(crate) mod verify;
