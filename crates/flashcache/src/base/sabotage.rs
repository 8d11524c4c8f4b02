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
    /// A FLUSH that waits behind a failing flush is acknowledged when the next one succeeds, with nothing left to flush.
    FlushBehindLoss,
    /// What is under way when a device loses something fails, and no connection hears of it afterwards.
    LossUntold,
    /// A durable write that fails is the failure of its request alone.
    FailedFuaUnheard,
    /// A dirty write is acknowledged before its bytes are on the device.
    DirtyAckedFromMemory,
    /// The death of dirty data is recorded before its successor is durable.
    DirtyDeathTooEarly,
    /// Dirty data is called clean without a flush of the disk it was written to.
    DestageNotFlushed,
    /// What is dirty is looked for on the disk while the flash is slow.
    DirtyBypassed,
    /// A dirty write is acknowledged with one copy where there should be two.
    MirrorForgotten,
    /// What the disk has durably is not ended on the mirror.
    MirrorDeathForgotten,
    /// In flush order, what is dirty is written to the disk in place, without a journal.
    OrderedWithoutJournal,
    /// The checkpoint of an index is believed again after what it says has changed.
    StaleCheckpoint,
    /// Data that waited to be written to flash is, whatever has been written since it was read.
    NoteNotChecked,
    /// A flash device leaves the cache with what is dirty on it.
    RemovedBeforeDestage,
    /// A flash device keeps what it holds of regions that have gone to a new one.
    MovedRegionKept,
    /// What is written again at reclaim is counted as its database's, and known as nobody's.
    TenantLostWhenMoved,
    /// What was written before the index was whole is not announced to it.
    EarlyWritesForgotten,
    /// What flash has is not void while grid disks are served before the index is whole.
    EarlyContentKept,
    /// The life of a member is not raised: openings of segments are named as others were before.
    OpeningUsedAgain,
    /// A segment whose first page cannot be read back is taken for one that was never there.
    RottenSegmentVanishes,
    /// What is dirty on a mirror alone ends there.
    AbsenceKillsMirror,
    /// Recovery leaves the chunks in place that a power cut has left behind the end of a segment in which the log goes on.
    TailKept,
    /// A flush of flash that fails is tried again, and what it should have made durable is not written again before.
    FlashFlushTriedAgain,
    /// A dirty write is acknowledged behind one that a failed flush of flash may have dropped.
    AcknowledgedBehindLoss,
    /// A dirty version is appended while the chunk with the one before it, at another head, is still open.
    PredecessorLeftOpen,
    /// A segment of dirty data is freed before what took its place is durable.
    FreedBeforeSuccessors,
    /// A flash device that has no room for a moment, or whose answer to one write is lost, is given up.
    NoRoomGivesUp,
    /// The chunk with copies of dirty data stays open as long as others write.
    CopiesWaitForCompany,
    /// A page that recovery cannot read ends the whole flash device.
    UnreadablePageEndsCache,
    /// What a flush has covered is said by the next chunk alone.
    WitnessNotWritten,
    /// After a start from a checkpoint nobody reads the log before the next crash.
    LogNotVerified,
    /// Recovery leaves a segment that has lost its footer without one.
    FooterNotWrittenAgain,
    /// A failed flush that has lost clean data alone gives the device up.
    CleanLossGivesUp,
    /// A link that is written again calls its chunk durable where the opening of its segment is of an earlier life.
    LinkCertainByOpening,
    /// A first page of an earlier opening counts beside a later footer.
    EarlierFirstPageCounts,
}

impl Sabotage {
    /// Every one of them.
    pub const ALL: [Sabotage; 40] = [
        Sabotage::InvalidationForgotten,
        Sabotage::FreeRecordSkipped,
        Sabotage::TombstoneLostAtReclaim,
        Sabotage::OldGenerationAccepted,
        Sabotage::UnflushedFillKept,
        Sabotage::FlushNotWaiting,
        Sabotage::FlushBehindLoss,
        Sabotage::LossUntold,
        Sabotage::FailedFuaUnheard,
        Sabotage::DirtyAckedFromMemory,
        Sabotage::DirtyDeathTooEarly,
        Sabotage::DestageNotFlushed,
        Sabotage::DirtyBypassed,
        Sabotage::MirrorForgotten,
        Sabotage::MirrorDeathForgotten,
        Sabotage::OrderedWithoutJournal,
        Sabotage::StaleCheckpoint,
        Sabotage::NoteNotChecked,
        Sabotage::RemovedBeforeDestage,
        Sabotage::MovedRegionKept,
        Sabotage::TenantLostWhenMoved,
        Sabotage::EarlyWritesForgotten,
        Sabotage::EarlyContentKept,
        Sabotage::OpeningUsedAgain,
        Sabotage::RottenSegmentVanishes,
        Sabotage::AbsenceKillsMirror,
        Sabotage::TailKept,
        Sabotage::FlashFlushTriedAgain,
        Sabotage::AcknowledgedBehindLoss,
        Sabotage::PredecessorLeftOpen,
        Sabotage::FreedBeforeSuccessors,
        Sabotage::NoRoomGivesUp,
        Sabotage::CopiesWaitForCompany,
        Sabotage::UnreadablePageEndsCache,
        Sabotage::WitnessNotWritten,
        Sabotage::LogNotVerified,
        Sabotage::FooterNotWrittenAgain,
        Sabotage::CleanLossGivesUp,
        Sabotage::LinkCertainByOpening,
        Sabotage::EarlierFirstPageCounts,
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
            Sabotage::FlushBehindLoss => "flush-behind-loss",
            Sabotage::LossUntold => "loss-untold",
            Sabotage::FailedFuaUnheard => "failed-fua-unheard",
            Sabotage::DirtyAckedFromMemory => "dirty-acked-from-memory",
            Sabotage::DirtyDeathTooEarly => "dirty-death-too-early",
            Sabotage::DestageNotFlushed => "destage-not-flushed",
            Sabotage::DirtyBypassed => "dirty-bypassed",
            Sabotage::MirrorForgotten => "mirror-forgotten",
            Sabotage::MirrorDeathForgotten => "mirror-death-forgotten",
            Sabotage::OrderedWithoutJournal => "ordered-without-journal",
            Sabotage::StaleCheckpoint => "stale-checkpoint",
            Sabotage::NoteNotChecked => "note-not-checked",
            Sabotage::RemovedBeforeDestage => "removed-before-destage",
            Sabotage::MovedRegionKept => "moved-region-kept",
            Sabotage::TenantLostWhenMoved => "tenant-lost-when-moved",
            Sabotage::EarlyWritesForgotten => "early-writes-forgotten",
            Sabotage::EarlyContentKept => "early-content-kept",
            Sabotage::OpeningUsedAgain => "opening-used-again",
            Sabotage::RottenSegmentVanishes => "rotten-segment-vanishes",
            Sabotage::AbsenceKillsMirror => "absence-kills-mirror",
            Sabotage::TailKept => "tail-kept",
            Sabotage::FlashFlushTriedAgain => "flash-flush-tried-again",
            Sabotage::AcknowledgedBehindLoss => "acknowledged-behind-loss",
            Sabotage::PredecessorLeftOpen => "predecessor-left-open",
            Sabotage::FreedBeforeSuccessors => "freed-before-successors",
            Sabotage::NoRoomGivesUp => "no-room-gives-up",
            Sabotage::CopiesWaitForCompany => "copies-wait-for-company",
            Sabotage::UnreadablePageEndsCache => "unreadable-page-ends-cache",
            Sabotage::WitnessNotWritten => "witness-not-written",
            Sabotage::LogNotVerified => "log-not-verified",
            Sabotage::FooterNotWrittenAgain => "footer-not-written-again",
            Sabotage::CleanLossGivesUp => "clean-loss-gives-up",
            Sabotage::LinkCertainByOpening => "link-certain-by-opening",
            Sabotage::EarlierFirstPageCounts => "earlier-first-page-counts",
        }
    }
}
