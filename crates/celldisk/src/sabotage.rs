//! Deliberately broken builds: the checkers must catch each of them by name.
//!
//! Production code never sets one; the simulator does, to prove that its alarm rings.

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sabotage {
    /// A change of a label or catalog goes to one slot only: the other still holds what was true before.
    SecondSlotSkipped,
    /// Open stamps are renewed at each open alone: flash that is put back to an earlier moment of a life is believed.
    StampsNotRenewed,
}

impl Sabotage {
    /// Every one of them.
    pub const ALL: [Sabotage; 2] = [Sabotage::SecondSlotSkipped, Sabotage::StampsNotRenewed];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sabotage::SecondSlotSkipped => "second-slot-skipped",
            Sabotage::StampsNotRenewed => "stamps-not-renewed",
        }
    }
}
