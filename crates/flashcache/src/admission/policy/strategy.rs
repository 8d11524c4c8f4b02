//! What a policy can vary, and the variants tried against each other. Pure decisions on numbers; floats never decide.

use crate::admission::policy::CacheShape;
use crate::admission::policy::ghosts::EPOCHS_PER_CACHE;

/// One way to run a log of segments with a small and a main head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Share of the segments the small head aims at, in 1/1024.
    pub small_share: u32,
    /// The condition on which a block enters the main head.
    pub entry: Entry,
    /// Hits a block of the small head needs, besides, to be written again at the main head.
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

/// The condition on which a block enters the main head. Where the condition is frequency, cached blocks stay until another block is asked for more
/// often: of a loop larger than the cache a part stays cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It comes back before its name is forgotten; from the small head its hits suffice.
    ComesBack,
    /// It is asked for more often than what the main head gives up.
    AskedForMore,
    /// Both.
    ComesBackAskedForMore,
}

/// Where nothing passes what the main head gave up last, as in a loop, nothing needs the main head's space. Its oldest segment is looked at
/// after so many of the small head, so that what nobody asks for any more leaves.
const LOOK_AT_MAIN_EVERY: u32 = 8;
/// Segments above its share that the small head keeps: of a small one that share is less than a segment.
const ADOPTS_ABOVE_SEGMENTS: u64 = 3;

/// Segments of a cache from which on strategies that go by frequency are followed. In fewer, a segment given up takes so much of the main head
/// along that they miss more than their models do (docs/policies.md).
const BY_FREQUENCY_SEGMENTS_MIN: u32 = 256;

/// More than any share: never.
const NEVER: u32 = 2048;
const CACHE: u16 = EPOCHS_PER_CACHE;

/// The variants, the first being what a cache starts with. Those that go by coming back alone were found by a search over about 500 combinations on the traces of docs/policies.md; those
/// that go by frequency are W-TinyLFU's rule (Einziger et al., TOS 2017) on two heads of segments. Their places are written to the log
/// ([`Policy::note`](crate::admission::policy::Policy::note)).
pub const STRATEGIES: [Strategy; 9] = [
    variant(51, 3, CACHE * 2, NEVER, 717, 1024),
    variant(20, 1, CACHE / 2, 820, 717, 1024),
    variant(205, 3, CACHE / 2, NEVER, 717, 1024),
    variant(20, 2, CACHE / 4, NEVER, NEVER, 1024),
    by_frequency(Entry::AskedForMore, 1),
    Strategy { admitted: 102, ..by_frequency(Entry::ComesBackAskedForMore, 2) },
    variant(51, 1, CACHE, 410, 512, 1024),
    variant(102, 3, CACHE * 2, 614, 410, 1024),
    by_frequency(Entry::ComesBackAskedForMore, 2),
];

const fn variant(
    small_share: u32,
    promote_hits: u8,
    ghost_epochs: u16,
    keep_small: u32,
    keep_main: u32,
    admitted: u32,
) -> Strategy {
    let entry = Entry::ComesBack;
    Strategy { small_share, entry, promote_hits, ghost_epochs, keep_small, keep_main, admitted }
}

/// A small head of a hundredth, names believed for two caches.
const fn by_frequency(entry: Entry, promote_hits: u8) -> Strategy {
    Strategy { entry, ..variant(10, promote_hits, CACHE * 2, NEVER, 717, 1024) }
}

/// The two clean heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Small,
    Main,
}

impl Strategy {
    /// Which head gives up its oldest segment, given what each holds in any unit, and how often in a row it was the small head.
    /// `must`: what is looked at is given up.
    pub(crate) fn victim(&self, small: u64, main: u64, small_in_a_row: u32, must: bool) -> Side {
        let looks = !must && self.goes_by_frequency() && small_in_a_row >= LOOK_AT_MAIN_EVERY;
        if main == 0 || (self.is_over_share(small, main) && !looks) { Side::Small } else { Side::Main }
    }

    /// Whether the small head's oldest segment becomes one of the main head, given what each holds besides it, how much of it is left and what a
    /// segment holds. The
    /// blocks that the small head has held longest so take the room of those that left the main head, and the main head comes to its share without a
    /// write where another strategy was in force before.
    pub(crate) fn adopts(&self, small: u64, main: u64, left: u64, segment: u64) -> bool {
        let is_full_enough = left * 2 > segment;
        self.goes_by_frequency()
            && is_full_enough
            && self.is_over_share(small.saturating_sub(ADOPTS_ABOVE_SEGMENTS * segment), main)
    }

    /// Whether a cache of this shape may follow it.
    pub(crate) fn suits(&self, shape: &CacheShape) -> bool {
        !self.goes_by_frequency() || shape.segments >= BY_FREQUENCY_SEGMENTS_MIN
    }

    fn goes_by_frequency(&self) -> bool {
        self.entry != Entry::ComesBack
    }

    fn is_over_share(&self, small: u64, main: u64) -> bool {
        small * 1024 > (small + main) * u64::from(self.small_share)
    }

    /// Whether a segment of which `hot` of `all` pages were hit stays where it is.
    pub(crate) fn keeps(&self, side: Side, hot: u64, all: u64) -> bool {
        let least = if side == Side::Small { self.keep_small } else { self.keep_main };
        hot > 0 && hot * 1024 >= all * u64::from(least)
    }

    /// Whether a block with so many hits is worth writing again. `asked_for_more`: than what the main head gives up.
    pub(crate) fn moves(&self, side: Side, frequency: u8, asked_for_more: impl FnOnce() -> bool) -> bool {
        match side {
            Side::Main => frequency >= 1,
            Side::Small => frequency >= self.promote_hits && (self.entry == Entry::ComesBack || asked_for_more()),
        }
    }

    /// Where a block that is let in goes. `comes_back`: its name is known still. `asked_for_more`: than what the main head gives up.
    pub(crate) fn enters(&self, comes_back: bool, asked_for_more: impl FnOnce() -> bool) -> Side {
        let main = match self.entry {
            Entry::ComesBack => comes_back,
            Entry::AskedForMore => asked_for_more(),
            Entry::ComesBackAskedForMore => comes_back && asked_for_more(),
        };
        if main { Side::Main } else { Side::Small }
    }

    /// The frequency of a block that is written again.
    pub(crate) fn frequency_moved(side: Side, frequency: u8) -> u8 {
        if side == Side::Small { 0 } else { frequency.saturating_sub(1) }
    }

    /// Whether a block nothing is known of is let in, given an even draw from 0 to 1023.
    pub(crate) fn admits(&self, draw: u32) -> bool {
        draw < self.admitted
    }
}

/// Pages of a segment that may be written again, in quarters: reclaim always gains.
pub(crate) const MOVED_QUARTERS_MAX: u32 = 3;
