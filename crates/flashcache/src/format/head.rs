//! The append points of the log, and what each is for.
//!
//! The numbers are on flash. Never decides what goes where.

use crate::format::FormatError;

/// Which append point a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum HeadKind {
    /// New blocks.
    Small = 0,
    /// Blocks that were asked for again.
    Main = 1,
    /// KEEP blocks.
    Keep = 2,
    /// Dirty blocks.
    Dirty = 3,
    /// Blocks that are overwritten soonest, by how long their last version lasted.
    Hot = 4,
    /// Later, and what cleaning has copied from the one before.
    Warm = 5,
    /// Later still; what cleaning has copied from where blocks are written first, too.
    Cool = 6,
    /// What lasts.
    Cold = 7,
    /// Dirty blocks that cleaning has copied.
    DirtyLasting = 8,
}

impl HeadKind {
    /// How many there are.
    pub const COUNT: usize = 9;
    /// Every head.
    pub const ALL: [HeadKind; HeadKind::COUNT] = [
        HeadKind::Small,
        HeadKind::Main,
        HeadKind::Keep,
        HeadKind::Dirty,
        HeadKind::Hot,
        HeadKind::Warm,
        HeadKind::Cool,
        HeadKind::Cold,
        HeadKind::DirtyLasting,
    ];
    /// The heads of dirty data.
    pub const DIRTY: [HeadKind; 2] = [HeadKind::Dirty, HeadKind::DirtyLasting];

    /// Whether what it holds may be dirty.
    #[must_use]
    pub fn is_dirty(self) -> bool {
        HeadKind::DIRTY.contains(&self)
    }

    /// As which of the two clean heads the policy knows it: [`HeadKind::Small`] or [`HeadKind::Main`]. Whatever was written again was
    /// asked for again, or has outlived others.
    #[must_use]
    pub fn side(self) -> Option<HeadKind> {
        match self {
            HeadKind::Small => Some(HeadKind::Small),
            HeadKind::Main | HeadKind::Hot | HeadKind::Warm | HeadKind::Cool | HeadKind::Cold => Some(HeadKind::Main),
            HeadKind::Keep | HeadKind::Dirty | HeadKind::DirtyLasting => None,
        }
    }

    /// Where cleaning puts what it copies from here.
    #[must_use]
    pub fn copied(self) -> HeadKind {
        match self {
            HeadKind::Hot => HeadKind::Warm,
            HeadKind::Small | HeadKind::Main | HeadKind::Keep | HeadKind::Dirty | HeadKind::Warm => HeadKind::Cool,
            HeadKind::Cool | HeadKind::Cold | HeadKind::DirtyLasting => HeadKind::Cold,
        }
    }

    /// Out of a record.
    pub(crate) fn decode(byte: u8) -> Result<HeadKind, FormatError> {
        HeadKind::ALL.get(usize::from(byte)).copied().ok_or(FormatError::Limits("head"))
    }
}
