//! What is given up where a grid disk goes on without its flash, and as of when its disk alone is.

use device::WallTime;

/// A moment as people write it, in UTC to the second.
pub(crate) fn told(at: WallTime) -> String {
    let seconds = at.0 / 1_000_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days to a date: Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days, for days from 1970 on.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Why a grid disk is offline whose disk is of one moment.
pub(crate) fn stale_note(name: &str, flash: &str, as_of: WallTime) -> String {
    format!(
        "grid disk {name} is offline: flash {flash} holds writes that its disk does not have, and cannot be used; its disk is \
         consistent as of {}; hint: bring that flash back and restart the cell, or go on from that moment with ALTER GRIDDISK \
         {name} ACTIVE FORCE",
        told(as_of)
    )
}

/// What only flash that is out of reach may hold of an offline grid disk: given up where the grid disk is dropped or goes on without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastCopy {
    /// Bytes, at most: the disk's label records whole granules. `None`: redo, of which the label records only that there is some.
    pub bytes_max: Option<u64>,
    /// The moment as of which the disk alone is consistent. `None`: it is not known to be consistent as of any.
    pub as_of: Option<WallTime>,
}

impl std::fmt::Display for LastCopy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bytes_max {
            Some(bytes) => write!(f, "up to {} KiB that only its flash holds", bytes.div_ceil(1024))?,
            None => f.write_str("redo that only the flash log holds")?,
        }
        match self.as_of {
            Some(at) => write!(f, ", written since {}", told(at)),
            None => f.write_str(", of unknown age"),
        }
    }
}
