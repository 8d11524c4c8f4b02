//! Why a command was not carried out: what is wrong, why, and the way out.
//!
//! Never decides; the server makes error numbers of the language of it.

use crate::base::log_room::NoRoomForLog;
use crate::base::units::GRID_DISK_BYTES_MAX;
use crate::disk::last_copy::LastCopy;
use celldisk::CellDisk;
use celldisk::CellDiskError;
use celldisk::GridDiskError;
use celldisk::ReplicaFailure;
use celldisk::StoreError;
use flashcache::MemberError;
use flashcache::MemoryShort;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No grid disk of that name.
    #[error("grid disk {0} does not exist\nhint: LIST GRIDDISK shows the grid disks of this cell")]
    NoGridDisk(String),
    /// No cell disk of that name.
    #[error("cell disk {0} does not exist\nhint: LIST CELLDISK shows the cell disks of this cell")]
    NoCellDisk(String),
    /// The grid disk has sessions.
    #[error("grid disk {0} is in use by {1} connections\nhint: disconnect them, or use FORCE")]
    InUse(String, usize),
    /// Larger than the flash cache can name the blocks of.
    #[error(
        "grid disk {0} would be {1} bytes large: the flash cache names blocks of grid disks of up to {GRID_DISK_BYTES_MAX} bytes\n\
         hint: make several grid disks of it"
    )]
    TooLarge(String, u64),
    /// Not a flash cell disk.
    #[error(
        "cell disk {0} is no flash\nhint: LIST CELLDISK WHERE diskType=FlashDisk shows those that a flash cache may be on"
    )]
    NoFlash(String),
    /// A flash cell disk that the cell does not use in this life.
    #[error(
        "flash cell disk {0} is not at work: it has failed, is missing, or was left out at the start\n\
         hint: leave it out of the list, or mend it and restart the cell"
    )]
    FlashNotAtWork(String),
    /// Something lies on it.
    #[error(
        "cell disk {0} cannot be dropped: {1}\nhint: ALTER FLASHCACHE CELLDISK='…' without it, DROP FLASHLOG, or DROP GRIDDISK first; FORCE drops \
         its grid disks, as far as they are served"
    )]
    CellDiskInUse(String, &'static str),
    /// The catalog would have no disk.
    #[error(
        "cell disk {0} cannot be dropped: no other hard disk is at work, and the cell's catalog has to live on one\n\
         hint: CREATE CELLDISK another first; a cell that is not wanted any more is stopped, and its directory removed"
    )]
    LastDisk(String),
    /// Nobody would be left.
    #[error("no flash cell disk is at work\nhint: DROP FLASHCACHE, or give the cell a flash device")]
    NoFlashLeft,
    /// Dirty data could not be given to the disk.
    #[error(
        "grid disk {0} still has data that only flash holds: its disk, or the flash, does not take or give it at the moment\n\
         hint: see the alerts for the devices, mend them and repeat the command; nothing has been changed"
    )]
    StillDirty(String),
    /// The statement would give up the last copy of something.
    #[error(
        "grid disk {name} is offline, and {statement} would give up {what}\nhint: bring its flash back and restart the cell, or \
         give it up with {statement} FORCE"
    )]
    LastCopy {
        /// The grid disk.
        name: String,
        /// What would be given up.
        what: LastCopy,
        /// The statement, as an operator types it.
        statement: String,
    },
    /// A flush was cancelled.
    #[error(
        "the flush was cancelled: grid disk {0} still has data that only flash holds\nhint: repeat the FLUSH to go on"
    )]
    FlushCancelled(String),
    /// Write-back with this flash cache would not be safe.
    #[error("write-back needs {0}\nhint: use write-through, or create the flash cache on one durable flash device")]
    WriteBackUnsafe(&'static str),
    /// Its disk may be torn.
    #[error(
        "grid disk {0} waits for its flash, and its disk alone is not known to be of one moment: it may hold newer and older \
         data side by side\nhint: bring the flash back and restart the cell, or give the grid disk up with DROP GRIDDISK {0} FORCE"
    )]
    MayBeTorn(String),
    /// It would bypass the flash log.
    #[error(
        "grid disk {0} is of purpose redo, and write-back bypasses the flash log\n\
         hint: cachingMode=write-through or none with CREATE FLASHLOG ALL takes commits on flash and disk; purpose=data for data in write-back"
    )]
    RedoInWriteBack(String),
    /// The flash has no room for the flash log.
    #[error("{0}")]
    NoRoomForLog(Box<NoRoomForLog>),
    /// Its journal could not be made.
    #[error(
        "the journal of grid disk {0} could not be written\nhint: see the alerts for its disk; it needs room for its journal"
    )]
    NoJournal(String),
    /// It went offline while the cell was running.
    #[error("grid disk {0} went offline while the cell was running\nhint: restart the cell, then repeat the command")]
    RestartFirst(String),
    /// ACTIVE has come while INACTIVE was taking the grid disk out of service.
    #[error("grid disk {0} was made active meanwhile\nhint: repeat the command to take it out of service")]
    MadeActive(String),
    /// Its disk cannot be kept as it is.
    #[error("grid disk {0} cannot be frozen: {1}\nhint: LIST GRIDDISK {0} DETAIL and the alerts of the cell tell more")]
    CannotFreeze(String, &'static str),
    /// It is to be thawed and was not frozen.
    #[error(
        "grid disk {0} is not frozen\nhint: a freeze ends by itself; what was copied after its end is of no one moment: freeze it for longer, and copy anew"
    )]
    NotFrozen(String),
    /// Its writes would wait for too long.
    #[error(
        "grid disk {0} cannot be frozen for so long: it is not in write-back-ordered, so that its writes wait meanwhile\nhint: say 300 seconds or less"
    )]
    FreezeTooLong(String),
    /// Its disk is kept as it is.
    #[error("grid disk {0} is frozen\nhint: ALTER GRIDDISK {0} THAW, or wait until the freeze ends by itself")]
    IsFrozen(String),
    /// Redo would be lost.
    #[error(
        "the flash log holds redo of grid disk {0} that its disk does not have, or may hold some\n\
         hint: see the alerts for its disk, bring it back and repeat the command; DROP FLASHLOG FORCE gives such redo up, \
         ALTER GRIDDISK {0} ACTIVE FORCE goes on without what cannot be had"
    )]
    RedoOnFlash(String),
    /// A disk's label still counts on a ring that has failed.
    #[error(
        "the label of cell disk {0} still counts on a part of the flash log that has failed\n\
         hint: repeat the command in a moment; if this stays, see the alerts for that disk"
    )]
    RingLeaving(String),
    /// Its flash may not acknowledge redo.
    #[error(
        "cell disk {0} cannot carry the flash log: it has to be flash of class durable, whose flash cache (if any) is at work\n\
         hint: LIST CELLDISK ATTRIBUTES name, diskType, deviceClass, deviceClassSource"
    )]
    NotForRedo(String),
    /// No flash may acknowledge redo.
    #[error(
        "the flash log needs flash of class durable: other flash may acknowledge nothing alone\n\
         hint: LIST CELLDISK ATTRIBUTES name, diskType, deviceClass, deviceClassSource"
    )]
    NoDurableFlash,
    /// A ring could not be begun.
    #[error(
        "the flash log could not be begun on flash {0}: {1}\nhint: see to that device, or leave it out with CELLDISK="
    )]
    RingFailed(String, String),
    /// A discard of it may still happen.
    #[error(
        "flash {0}: nobody knows whether a discard of its area has happened or will\n\
         hint: restart the cell, then repeat the command; until then the device is out of service"
    )]
    FlashUncertain(String),
    /// There is no such I/O resource plan.
    #[error(transparent)]
    Plan(#[from] crate::plan::PlanError),
    /// It would take more memory than it may.
    #[error(transparent)]
    Memory(#[from] MemoryShort),
    /// The cell is stopping.
    #[error("the cell is stopping")]
    Stopping,
    /// The catalog refused or could not be written.
    #[error(transparent)]
    Store(#[from] GridDiskError),
    /// The cell could not follow.
    #[error(transparent)]
    Cell(#[from] CellError),
}

/// Why a cell cannot be made, opened or stopped.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// The catalog or the devices.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A device cannot be made a cell disk.
    #[error("device {name}: {error}")]
    Format {
        /// Its cell disk name.
        name: String,
        /// Why.
        error: CellDiskError,
    },
    /// A label could not be written.
    #[error("labels could not be written: {}", failures(.0))]
    Labels(Vec<ReplicaFailure>),
    /// A catalog change did not happen.
    #[error(transparent)]
    Change(#[from] GridDiskError),
    /// The flash cache's parameters.
    #[error(transparent)]
    Cache(#[from] MemberError),
    /// A disk did not flush while the cell stopped.
    #[error("a disk could not be flushed: the stop counts as unclean\nhint: see the alerts for the disk")]
    Unflushed,
}

impl CellError {
    /// The label of one cell disk could not be written.
    pub(crate) fn label(disk: &CellDisk, error: CellDiskError) -> CellError {
        CellError::Labels(vec![ReplicaFailure::of(disk, error)])
    }
}

fn failures(list: &[ReplicaFailure]) -> String {
    list.iter().map(|f| format!("{}: {}", f.name, f.error)).collect::<Vec<_>>().join("; ")
}
