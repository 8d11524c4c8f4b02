//! The kernel's user-space block device (ublk): made and taken apart through `/dev/ublk-control`; its requests come out of `/dev/ublkcN`,
//! as completions of commands that wait there, one for each tag.
//!
//! The process that serves the queue may die: the kernel keeps the device, holds its requests, and hands out again what had no answer
//! when another process serves it (user recovery). Data is copied by reads and writes of the character device, straight into the buffers of who
//! serves ("user copy").
//!
//! Never looks at data; never decides what a request means to a cell.
//!
//! Layouts, command codes and flags: `linux/ublk_cmd.h`, Linux 6.12, and 6.16 for the change of size.

mod control;
mod layout;
mod queue;

pub use control::{UblkDevice, UblkFeatures, UblkSetup};
pub use layout::{UblkOp, UblkRequest};
pub use queue::{UblkEnd, UblkQueue};
