//! Exact decimal numbers for metric values, and their way to text.
//!
//! Metric values are ratios of integers (bytes per MiB, requests per second). They are kept as integers scaled by a
//! power of ten, so that filters, sorting and printing never depend on binary floating point. Never computes: it
//! only carries, compares, rounds and prints.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;

/// Digits kept after the point: enough for bytes shown in MB (six are exact to the byte's 2^-20 neighbourhood) and for
/// rates, few enough that every comparison below fits an `i128`.
pub const DECIMAL_SCALE_MAX: u8 = 9;

/// Largest magnitude of the integer part that text may give: the digits of `u64::MAX`.
pub const DECIMAL_INTEGER_DIGITS_MAX: usize = 20;

/// `units / 10^scale`, in lowest terms of ten: trailing zeros after the point are never kept, so equal numbers are equal values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal {
    units: i128,
    scale: u8,
}

const fn power_of_ten(exponent: u8) -> i128 {
    10_i128.pow(exponent as u32)
}

impl Decimal {
    /// Zero.
    pub const ZERO: Self = Self { units: 0, scale: 0 };

    /// A whole number.
    #[must_use]
    pub const fn from_integer(number: i64) -> Self {
        Self { units: number as i128, scale: 0 }
    }

    /// A whole number, as counters are.
    #[must_use]
    pub const fn from_count(number: u64) -> Self {
        Self { units: number as i128, scale: 0 }
    }

    /// `numerator / denominator`, rounded half up at [`DECIMAL_SCALE_MAX`] digits.
    /// Bytes to MB are `from_ratio(bytes, 1 << 20)`; a rate per second is `from_ratio(count * 1_000_000_000, elapsed_ns)`.
    #[must_use]
    pub fn from_ratio(numerator: u64, denominator: NonZeroU64) -> Self {
        let denominator = i128::from(denominator.get());
        let scaled = i128::from(numerator) * power_of_ten(DECIMAL_SCALE_MAX);
        Self::normal((scaled + denominator / 2) / denominator, DECIMAL_SCALE_MAX)
    }

    /// The mean of so many numbers whose sum is so many billionths, rounded half up.
    #[must_use]
    pub fn mean_of(sum_at_full_scale: i128, count: NonZeroU64) -> Self {
        let count = i128::from(count.get());
        Self::normal((sum_at_full_scale + count / 2).div_euclid(count), DECIMAL_SCALE_MAX)
    }

    fn normal(mut units: i128, mut scale: u8) -> Self {
        while scale > 0 && units % 10 == 0 {
            units /= 10;
            scale -= 1;
        }
        Self { units, scale }
    }

    /// In billionths, exactly: `units * 10^DECIMAL_SCALE_MAX`; at most 10^29 in magnitude by construction.
    #[must_use]
    pub fn at_full_scale(self) -> i128 {
        self.units * power_of_ten(DECIMAL_SCALE_MAX - self.scale)
    }

    /// Reads `[-]digits[.digits]`. `None` when `text` is not of that form or has more digits than the limits allow.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let whole = whole.trim_start_matches('0');
        let fraction = fraction.trim_end_matches('0');
        if whole.len() > DECIMAL_INTEGER_DIGITS_MAX || fraction.len() > usize::from(DECIMAL_SCALE_MAX) {
            return None;
        }
        let mut units: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            units = units * 10 + i128::from(digit - b'0');
        }
        let scale = u8::try_from(fraction.len()).ok()?;
        Some(Self { units: if negative { -units } else { units }, scale })
    }

    /// The whole number, when there is nothing after the point and it fits.
    #[must_use]
    pub fn to_u64(self) -> Option<u64> {
        if self.scale == 0 { u64::try_from(self.units).ok() } else { None }
    }

    /// Rounded half away from zero to `digits` after the point; prints exactly that many digits and, if `grouped`,
    /// commas between thousands.
    pub(crate) fn rounded_text(self, digits: u8, grouped: bool) -> String {
        let units = if digits >= self.scale {
            self.units * power_of_ten(digits - self.scale)
        } else {
            let step = power_of_ten(self.scale - digits);
            let half = step / 2;
            (self.units + if self.units < 0 { -half } else { half }) / step
        };
        let magnitude = units.unsigned_abs();
        let unit = power_of_ten(digits).unsigned_abs();
        let whole = (magnitude / unit).to_string();
        let mut text = String::new();
        if units < 0 {
            text.push('-');
        }
        for (index, digit) in whole.chars().enumerate() {
            if grouped && index > 0 && (whole.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        if digits > 0 {
            text.push_str(&format!(".{:0width$}", magnitude % unit, width = usize::from(digits)));
        }
        text
    }

    /// Whether the number, once rounded to `digits` after the point, is below 100 in magnitude.
    pub(crate) fn rounds_below_hundred(self, digits: u8) -> bool {
        let magnitude = self.at_full_scale().abs();
        let half = power_of_ten(DECIMAL_SCALE_MAX - digits) / 2;
        magnitude + half < 100 * power_of_ten(DECIMAL_SCALE_MAX)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_full_scale().cmp(&other.at_full_scale())
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Decimal {
    /// All digits, no grouping: the raw form of JSON and of command text.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.rounded_text(self.scale, false))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn ratio(numerator: u64, denominator: u64) -> Decimal {
        Decimal::from_ratio(numerator, NonZeroU64::new(denominator).unwrap())
    }

    /// The raw number of the vendor's own XML sample comes out digit for digit.
    #[test]
    fn bytes_to_megabytes_are_exact() {
        assert_eq!(ratio(634_659 * (1 << 20) + 311_296, 1 << 20).to_string(), "634659.296875");
    }

    #[test]
    fn ratio_rounds_half_up() {
        assert_eq!(ratio(2, 3).to_string(), "0.666666667");
        assert_eq!(ratio(u64::MAX, 1).to_string(), u64::MAX.to_string());
    }

    #[test]
    fn equal_numbers_are_equal_values() {
        assert_eq!(Decimal::parse("1.50"), Decimal::parse("001.5"));
        assert_eq!(Decimal::parse("-0"), Some(Decimal::ZERO));
        assert!(Decimal::parse("-1.5").unwrap() < Decimal::parse("-1.25").unwrap());
    }

    #[test]
    fn what_is_not_a_number() {
        for text in ["", "-", ".5", "5.", "1e3", "1,000", "+1", "--1", "123456789012345678901", "0.1234567891"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn rounding_and_grouping() {
        let number = Decimal::parse("1234567.8951").unwrap();
        assert_eq!(number.rounded_text(0, true), "1,234,568");
        assert_eq!(number.rounded_text(3, true), "1,234,567.895");
        assert_eq!(Decimal::parse("-0.05").unwrap().rounded_text(1, true), "-0.1");
        assert_eq!(Decimal::from_integer(100).rounded_text(0, true), "100");
    }
}
