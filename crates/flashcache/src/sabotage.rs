//! Deliberately broken builds: the checkers must catch each of them by name.
//!
//! Production code never sets one; the simulator does, to prove that its alarm rings.

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// A write ends one cached copy in RAM only: its invalidation is never recorded.
    InvalidationForgotten,
    /// A segment is reused without a free record, on a device whose TRIM does nothing.
    FreeRecordSkipped,
    /// Reclaim drops invalidations that are still needed.
    TombstoneLostAtReclaim,
    /// Cache generations of a grid disk are not told apart.
    OldGenerationAccepted,
    /// After a crash, what was cached of writes that no flush covered is believed without a comparison with the disk.
    UnflushedFillKept,
    /// FLUSH is acknowledged without asking the device.
    FlushNotWaiting,
}

impl Sabotage {
    /// Every one of them.
    pub const ALL: [Sabotage; 6] = [
        Sabotage::InvalidationForgotten,
        Sabotage::FreeRecordSkipped,
        Sabotage::TombstoneLostAtReclaim,
        Sabotage::OldGenerationAccepted,
        Sabotage::UnflushedFillKept,
        Sabotage::FlushNotWaiting,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sabotage::InvalidationForgotten => "invalidation-forgotten",
            Sabotage::FreeRecordSkipped => "free-record-skipped",
            Sabotage::TombstoneLostAtReclaim => "tombstone-lost-at-reclaim",
            Sabotage::OldGenerationAccepted => "old-generation-accepted",
            Sabotage::UnflushedFillKept => "unflushed-fill-kept",
            Sabotage::FlushNotWaiting => "flush-not-waiting",
        }
    }
}
