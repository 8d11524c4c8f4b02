//! Deliberately broken builds of the claim: the checker of claims must catch each of them by name.
//!
//! Production code never sets one.

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// A start takes the claim whatever stamp it finds.
    StampIgnored,
    /// A start in a race does not read the record.
    RecordUnread,
    /// A start in a race does not read the claim again.
    ClaimUnread,
    /// A holder that is overdue renews, where its old stamp is still there, instead of racing.
    LateRenewed,
    /// A renewal writes its stamp over another holder's.
    RenewedBlindly,
    /// A holder that has not looked for long writes without a look.
    OverdueIgnored,
    /// A holder writes on after it has given the claim back.
    ReleaseForgotten,
}

impl Sabotage {
    /// Every one of them.
    pub const ALL: [Sabotage; 7] = [
        Sabotage::StampIgnored,
        Sabotage::RecordUnread,
        Sabotage::ClaimUnread,
        Sabotage::LateRenewed,
        Sabotage::RenewedBlindly,
        Sabotage::OverdueIgnored,
        Sabotage::ReleaseForgotten,
    ];

    /// Those that show only where several starts meet, or a process is paused within a look.
    pub const RACES: [Sabotage; 3] = [Sabotage::RecordUnread, Sabotage::ClaimUnread, Sabotage::LateRenewed];
}
