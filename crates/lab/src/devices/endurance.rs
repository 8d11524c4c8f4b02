//! How often flash can be written: erases that a cell bears, by how many bits it holds.

/// Bits of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Slc,
    Mlc,
    Tlc,
    Qlc,
}

impl Cell {
    /// The words of a description.
    pub(crate) const NAMES: [(&'static str, Cell); 4] =
        [("slc", Cell::Slc), ("mlc", Cell::Mlc), ("tlc", Cell::Tlc), ("qlc", Cell::Qlc)];

    /// Erases that a block bears.
    pub(crate) const fn erases(self) -> u64 {
        match self {
            // Document: S15.
            Cell::Slc => 100_000,
            // Document: S15, 5,000 to 10,000.
            Cell::Mlc => 5_000,
            // Assumed: 3,000 (1,000 to 10,000), as makers of drives have let know of flash in three dimensions.
            Cell::Tlc => 3_000,
            // Assumed: 1,000 (500 to 1,500).
            Cell::Qlc => 1_000,
        }
    }
}

/// What a drive endures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endurance {
    /// Erases that a block bears.
    pub(crate) erases: u64,
    /// Flash in it for each hundred bytes of its user's.
    pub(crate) raw_percent: u64,
    /// Bytes programmed for a hundred that are written, where what goes on inside is not modelled.
    pub(crate) amplification_percent: u64,
}

impl Endurance {
    /// Bytes that may be written to a drive of this size until its blocks are worn, wear being level. `inside` is what was written and programmed
    /// of it, where that is modelled.
    pub(crate) fn writable_bytes(&self, size_bytes: u64, inside: Option<(u64, u64)>) -> f64 {
        let amplification = match inside {
            Some((written, programmed)) if written > 0 => programmed as f64 / written as f64,
            _ => self.amplification_percent as f64 / 100.0,
        };
        size_bytes as f64 * self.raw_percent as f64 / 100.0 * self.erases as f64 / amplification
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: more erases, more flash and less copying last longer, in proportion. Method: figures by hand.
    #[test]
    fn wear_is_counted() {
        let slc = Endurance { erases: Cell::Slc.erases(), raw_percent: 125, amplification_percent: 200 };
        assert_eq!(slc.writable_bytes(1_000, None), 62_500_000.0);
        assert_eq!(slc.writable_bytes(1_000, Some((100, 125))), 100_000_000.0);
        assert_eq!(slc.writable_bytes(1_000, Some((0, 0))), 62_500_000.0);
        assert!(Cell::NAMES.is_sorted_by(|(_, a), (_, b)| a.erases() > b.erases()));
    }
}
