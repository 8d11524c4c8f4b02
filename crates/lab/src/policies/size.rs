//! Sizes of a cache: a share of a trace's distinct blocks, or a number of blocks.

use std::fmt;
use std::str::FromStr;

/// A size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many millionths of the distinct blocks.
    SharePpm(u64),
    /// So many blocks.
    Blocks(u64),
}

impl Size {
    /// In blocks, of a trace with so many distinct ones.
    #[must_use]
    pub fn of(self, distinct: u64) -> u64 {
        match self {
            Size::SharePpm(ppm) => (u128::from(distinct) * u128::from(ppm) / 1_000_000) as u64,
            Size::Blocks(blocks) => blocks,
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("no size: {text}\nhint: a share like 10% or 0.5%, or a number of blocks");
        let Some(percent) = text.strip_suffix('%') else {
            return match text.parse() {
                Ok(blocks) if (1..=1 << 32).contains(&blocks) => Ok(Size::Blocks(blocks)),
                _ => Err(wrong()),
            };
        };
        let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
        if fraction.len() > 4 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let fraction: u64 = format!("{fraction:0<4}").parse().map_err(|_| wrong())?;
        let ppm = whole.checked_mul(10_000).and_then(|ppm| ppm.checked_add(fraction)).ok_or_else(wrong)?;
        if (1..=100_000_000).contains(&ppm) { Ok(Size::SharePpm(ppm)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Size::SharePpm(ppm) if ppm % 10_000 == 0 => write!(f, "{}%", ppm / 10_000),
            Size::SharePpm(ppm) => {
                let fraction = format!("{:04}", ppm % 10_000);
                write!(f, "{}.{}%", ppm / 10_000, fraction.trim_end_matches('0'))
            }
            Size::Blocks(blocks) => write!(f, "{blocks} blocks"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, size, of_1000) in [
            ("10%", Size::SharePpm(100_000), 100),
            ("0.5%", Size::SharePpm(5_000), 5),
            ("12.25%", Size::SharePpm(122_500), 122),
        ] {
            assert_eq!(text.parse(), Ok(size));
            assert_eq!(size.to_string(), text);
            assert_eq!(size.of(1000), of_1000);
        }
        assert_eq!("77".parse(), Ok(Size::Blocks(77)));
        for wrong in ["", "0", "-1", "0%", "%", "1.00001%", "ten", "1.x%", "99999999999999999999%"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
