//! Deliberately broken builds of the claim: the checker of claims must catch each of them by name.
//!
//! Production code never sets one.

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// A start takes the claim whatever stamp it finds.
    StampIgnored,
    /// A renewal writes its stamp over another holder's.
    RenewedBlindly,
    /// A holder that has not looked for long writes without a look.
    OverdueIgnored,
    /// A holder writes on after it has given the claim back.
    ReleaseForgotten,
}

impl Sabotage {
    /// Every one of them.
    pub const ALL: [Sabotage; 4] =
        [Sabotage::StampIgnored, Sabotage::RenewedBlindly, Sabotage::OverdueIgnored, Sabotage::ReleaseForgotten];
}
