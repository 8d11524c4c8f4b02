//! Sizes of a flash cache: bytes, or a share of the data that a trace touches.

use std::str::FromStr;

/// A size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashSize {
    /// So many millionths of the data touched.
    SharePpm(u64),
    /// So many bytes.
    Bytes(u64),
}

impl FlashSize {
    /// In bytes, where so many are touched.
    pub(super) fn of(self, touched_bytes: u64) -> u64 {
        match self {
            FlashSize::SharePpm(ppm) => (u128::from(touched_bytes) * u128::from(ppm) / 1_000_000) as u64,
            FlashSize::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for FlashSize {
    type Err = String;

    fn from_str(text: &str) -> Result<FlashSize, String> {
        if text.ends_with('%') {
            return match text.parse() {
                Ok(crate::policies::Size::SharePpm(ppm)) => Ok(FlashSize::SharePpm(ppm)),
                _ => Err(format!("no size: {text}\nhint: a share of the data touched, like 10%")),
            };
        }
        let wrong = || {
            format!(
                "no size: {text}\nhint: bytes with a unit, like 512M or 4G, or a share of the data touched, like 10%"
            )
        };
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.to_ascii_uppercase().as_str() {
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(wrong()),
        };
        let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
        bytes.filter(|bytes| (1 << 20..=1 << 46).contains(bytes)).map(FlashSize::Bytes).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!("512M".parse(), Ok(FlashSize::Bytes(512 << 20)));
        assert_eq!("4g".parse(), Ok(FlashSize::Bytes(4 << 30)));
        assert_eq!("12.5%".parse(), Ok(FlashSize::SharePpm(125_000)));
        assert_eq!(FlashSize::SharePpm(125_000).of(800), 100);
        for wrong in ["", "4", "G", "0G", "-1G", "1X", "0%", "99999999999999T", "1K"] {
            assert!(wrong.parse::<FlashSize>().is_err_and(|error| error.contains("hint: ")), "{wrong}");
        }
    }
}
