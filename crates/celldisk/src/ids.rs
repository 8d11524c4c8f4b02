//! Numbers that must not be swapped: one newtype each.
//!
//! Never generates an identity: those come from the caller's [`device::Prng`].

use std::fmt;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(", $format, ")"), self.0)
            }
        }
    };
}

identity!(
    /// A cell, for ever.
    CellId, u128, "{:032x}"
);
identity!(
    /// A physical device that a cell manages, for ever; a new one at each format.
    DeviceId, u128, "{:032x}"
);
identity!(
    /// A random mark that two sides compare; zero is "none".
    Stamp, u128, "{:032x}"
);
identity!(
    /// A grid disk; never reused within a cell, 0 is never given.
    GridDiskId, u64, "{}"
);

impl Stamp {
    /// No stamp: matches nothing.
    pub const NONE: Stamp = Stamp(0);

    /// Whether this is a real stamp.
    #[must_use]
    pub fn is_some(self) -> bool {
        self.0 != 0
    }
}
