//! Deliberate faults, to prove that the checkers see them. Off in production; chosen when the log is opened.

/// One deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Acknowledges a sync when the ring write has been issued.
    AckBeforeDurable,
    /// Lets the disk alone take a write over a record whose release is not durable.
    DiskOnlyOverRecord,
    /// Reads the disk where it has not taken an acknowledged write.
    SavedRedoForgotten,
    /// Replays records in the order they lie in the ring, whatever their sequence.
    ReplayOverNewer,
    /// Issues a newer write while an older one of the same bytes is in flight.
    OverlappingDiskWrites,
    /// Lets a sync join a flush that was issued before its writes completed.
    JoinedIssuedFlush,
}

impl Sabotage {
    /// Every one of them.
    pub const ALL: [Sabotage; 6] = [
        Sabotage::AckBeforeDurable,
        Sabotage::DiskOnlyOverRecord,
        Sabotage::SavedRedoForgotten,
        Sabotage::ReplayOverNewer,
        Sabotage::OverlappingDiskWrites,
        Sabotage::JoinedIssuedFlush,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sabotage::AckBeforeDurable => "redo-acked-before-durable",
            Sabotage::DiskOnlyOverRecord => "redo-disk-only-over-record",
            Sabotage::SavedRedoForgotten => "redo-saved-forgotten",
            Sabotage::ReplayOverNewer => "redo-replayed-over-newer",
            Sabotage::OverlappingDiskWrites => "redo-overlapping-disk-writes",
            Sabotage::JoinedIssuedFlush => "redo-joined-issued-flush",
        }
    }
}
