//! Deliberate faults of a remote disk. Each breaks one guarantee, and a test by the same name has to notice it.

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A FLUSH that succeeds counts although another durable request beside it fails.
    FlushBesideFailing,
    /// A trim is not sent again to a server that lost it.
    TrimsNotKept,
    /// A failed write is not sent again with the older write below it.
    FailedNotKept,
    /// An error of a session that another client's FLUSH broke goes to the caller.
    BrokenSessionTold,
    /// A client that takes over trusts the stamp without a FLUSH.
    TakeOverUnflushed,
    /// A server that cannot take what is kept at once is given up.
    ReplayTriedOnce,
}

impl Sabotage {
    /// Every fault.
    pub const ALL: [Sabotage; 6] = [
        Sabotage::FlushBesideFailing,
        Sabotage::TrimsNotKept,
        Sabotage::FailedNotKept,
        Sabotage::BrokenSessionTold,
        Sabotage::TakeOverUnflushed,
        Sabotage::ReplayTriedOnce,
    ];

    /// The fault's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Sabotage::FlushBesideFailing => "client-flush-beside-failing",
            Sabotage::TrimsNotKept => "client-trims-not-kept",
            Sabotage::FailedNotKept => "client-failed-not-kept",
            Sabotage::BrokenSessionTold => "client-broken-session-told",
            Sabotage::TakeOverUnflushed => "client-take-over-unflushed",
            Sabotage::ReplayTriedOnce => "client-replay-tried-once",
        }
    }
}
