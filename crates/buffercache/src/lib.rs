//! The block cache in a database's memory: hash and LRU with touch counts, dirty buffers, a database writer, redo, and the
//! *database flash cache* as the vendor built it, a second level that the writer alone fills and only when it is idle (S9).
//!
//! The model is Oracle 11gR2, whose waits a session accounts for under the names the field knows them by ([`Wait`]). Devices, time and
//! tasks come through the seams of [`device`], so the same code runs in the real and in the virtual world. It knows nothing of cells: what
//! its data files lie on is a [`device::Device`]. It is no database: it never replays redo.

mod cache;
mod flash;
mod index;
mod list;
mod object;
pub mod page;
mod pool;
mod redo;
mod session;
mod waits;
mod writer;

pub use cache::{BufferCache, CacheParts, Config, Counters, Figures};
pub use flash::{FlashCache, FlashFigures};
pub use object::{Keep, Objects};
pub use page::{PageFormat, PageNumber, Stamped, Version};
pub use redo::RedoLog;
pub use session::Session;
pub use waits::{Wait, Waits};

use device::FailKind;

/// Why a page cannot be had or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The data file failed.
    #[error("page {}: {kind}", page.0)]
    Io {
        /// Which page.
        page: PageNumber,
        /// The failure that the device reported.
        kind: FailKind,
    },
    /// The data read is of another page, or damaged.
    #[error("page {}: what was read is not this page", .0.0)]
    Foreign(PageNumber),
    /// Redo cannot be written: no change can be made durable any more.
    #[error("redo log: {0}")]
    Redo(FailKind),
    /// Beyond the end of the data file.
    #[error("page {}: beyond the end of the data file", .0.0)]
    Range(PageNumber),
}

/// Ways to be wrong, for the tests that must catch them. Production sets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A change leaves the copy on flash as it is.
    StaleFlash,
    /// The writer lets go of a buffer that was changed while it was being written.
    LostChange,
    /// The writer writes pages whose redo is not durable.
    DataBeforeRedo,
    /// A dirty buffer is reused without being written.
    ReusesDirty,
}
