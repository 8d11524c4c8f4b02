//! What a policy can vary, and the variants tried against each other. Pure decisions on numbers; floats never decide.

use super::ghosts::EPOCHS_PER_CACHE;

/// One way to run a log of segments with a small and a main head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Share of the segments the small head aims at, in 1/1024.
    pub small_share: u32,
    /// Hits a block of the small head needs to be written again at the main head.
    pub promote_hits: u8,
    /// How long the name of a block that left is believed, in epochs of 1/8 of the cache's blocks.
    pub ghost_epochs: u16,
    /// A segment of the small head becomes one of the main head as it is when so many 1/1024 of it were hit.
    pub keep_small: u32,
    /// A segment of the main head stays when so many 1/1024 of it were hit.
    pub keep_main: u32,
    /// Of the blocks nothing is known of, so many 1/1024 are let in.
    pub admitted: u32,
}

/// More than any share: never.
const NEVER: u32 = 2048;
const CACHE: u16 = EPOCHS_PER_CACHE;

/// The variants, the first being what a cache starts with. Found by a search over about 500 combinations on the traces of
/// docs/policies.md: eight of them come within 1 % of what the best combination gives on each.
pub const STRATEGIES: [Strategy; 8] = [
    variant(51, 3, CACHE * 2, NEVER, 717, 1024),
    variant(20, 1, CACHE / 2, 820, 717, 1024),
    variant(205, 3, CACHE / 2, NEVER, 717, 1024),
    variant(20, 2, CACHE / 4, NEVER, NEVER, 1024),
    variant(973, 2, CACHE * 2, 205, 307, 1024),
    variant(10, 3, CACHE / 4, NEVER, 410, 102),
    variant(51, 1, CACHE, 410, 512, 1024),
    variant(102, 3, CACHE * 2, 614, 410, 1024),
];

const fn variant(
    small_share: u32,
    promote_hits: u8,
    ghost_epochs: u16,
    keep_small: u32,
    keep_main: u32,
    admitted: u32,
) -> Strategy {
    Strategy { small_share, promote_hits, ghost_epochs, keep_small, keep_main, admitted }
}

/// The two clean heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Small,
    Main,
}

impl Strategy {
    /// Which head gives up its oldest segment, given what each holds in any unit.
    pub(super) fn victim(&self, small: u64, main: u64) -> Side {
        let over = small * 1024 > (small + main) * u64::from(self.small_share);
        if main == 0 || over { Side::Small } else { Side::Main }
    }

    /// Whether a segment of which `hot` of `all` pages were hit stays where it is.
    pub(super) fn keeps(&self, side: Side, hot: u64, all: u64) -> bool {
        let least = if side == Side::Small { self.keep_small } else { self.keep_main };
        hot > 0 && hot * 1024 >= all * u64::from(least)
    }

    /// Whether a block with so many hits is worth writing again.
    pub(super) fn moves(&self, side: Side, frequency: u8) -> bool {
        frequency >= if side == Side::Small { self.promote_hits } else { 1 }
    }

    /// The frequency of a block that is written again.
    pub(super) fn frequency_moved(side: Side, frequency: u8) -> u8 {
        if side == Side::Small { 0 } else { frequency.saturating_sub(1) }
    }

    /// Whether a block nothing is known of is let in, given an even draw from 0 to 1023.
    pub(super) fn admits(&self, draw: u32) -> bool {
        draw < self.admitted
    }
}

/// Pages of a segment that may be written again, in quarters: reclaim always gains.
pub(crate) const MOVED_QUARTERS_MAX: u32 = 3;
