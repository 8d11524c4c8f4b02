//! Decimal numbers for sums over cells: integers of 10^-9, as many digits as a cell gives.
//!
//! Never a binary fraction: what is added here is what a cell has counted, and 0.1 is 0.1.

use std::fmt::{self, Display, Formatter};

/// Digits after the point.
const SCALE: usize = 9;
const ONE: i128 = 1_000_000_000;
/// Digits before it: those of `u64::MAX`. Ten thousand cells with a thousand objects each still fit an `i128`.
const WHOLE_DIGITS_MAX: usize = 20;
/// Digits of scientific notation, as `%g` has them.
const SIGNIFICANT: usize = 6;

/// A number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(i128);

impl Number {
    pub(super) const ZERO: Number = Number(0);

    /// `[-]digits[.digits]`; further digits after the point than nine are dropped.
    pub(super) fn parse(text: &str) -> Option<Number> {
        let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let good = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let whole = if good(whole) { whole.trim_start_matches('0') } else { return None };
        if !good(fraction) || whole.len() > WHOLE_DIGITS_MAX {
            return None;
        }
        let fraction = fraction.bytes().chain(std::iter::repeat(b'0')).take(SCALE);
        let units = whole.bytes().chain(fraction).fold(0_i128, |n, digit| n * 10 + i128::from(digit - b'0'));
        Some(Number(if negative { -units } else { units }))
    }

    /// A whole number.
    #[cfg(test)]
    pub(super) fn whole(n: i64) -> Number {
        Number(i128::from(n) * ONE)
    }

    pub(super) fn plus(self, other: Number) -> Number {
        Number(self.0.saturating_add(other.0))
    }

    pub(super) fn minus(self, other: Number) -> Number {
        Number(self.0.saturating_sub(other.0))
    }

    pub(super) fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Multiplied by a fraction of whole numbers, rounded half away from zero; zero when the fraction is not one.
    pub(super) fn times(self, numerator: i128, denominator: i128) -> Number {
        match self.0.checked_mul(numerator) {
            Some(product) if denominator > 0 => Number(divided(product, denominator)),
            // Beyond 10^38: the order of the operations is what gives, not the result.
            _ if denominator > 0 => Number((self.0 / denominator).saturating_mul(numerator)),
            _ => Number::ZERO,
        }
    }

    /// The quotient; none when `other` is zero or less.
    pub(super) fn over(self, other: Number) -> Option<Number> {
        if other.0 <= 0 {
            return None;
        }
        Some(match self.0.checked_mul(ONE) {
            Some(scaled) => Number(divided(scaled, other.0)),
            None => Number((self.0 / other.0).saturating_mul(ONE)),
        })
    }

    /// The mean, each value as often as its weight says; the plain mean where weights are missing or nothing.
    pub(super) fn mean(values: &[(Number, Option<Number>)]) -> Option<Number> {
        // Weights in thousandths: requests a second have no more digits that matter, and products fit.
        let weight = |weight: Option<Number>| weight.map(|weight| (weight.0 / (ONE / 1000)).max(0));
        let weights: Option<Vec<i128>> = values.iter().map(|(_, it)| weight(*it)).collect();
        let weighted = weights.and_then(|weights| {
            let total: i128 = weights.iter().sum();
            let products = values.iter().zip(&weights).map(|((value, _), weight)| value.0.checked_mul(*weight));
            let sum = products.collect::<Option<Vec<i128>>>()?.into_iter().try_fold(0_i128, i128::checked_add)?;
            (total > 0).then(|| Number(divided(sum, total)))
        });
        let count = i128::try_from(values.len()).ok().filter(|count| *count > 0)?;
        weighted.or_else(|| {
            let sum = values.iter().fold(Number::ZERO, |sum, (value, _)| sum.plus(*value));
            Some(Number(divided(sum.0, count)))
        })
    }

    /// Rounded half away from zero to thousandths: what is computed has no more digits that mean anything.
    pub(super) fn to_thousandths(self) -> Number {
        Number(divided(self.0, ONE / 1000) * (ONE / 1000))
    }

    /// Six digits, with an exponent where that is shorter: as `%g`.
    pub(super) fn scientific(self) -> String {
        let sign = if self.is_negative() { "-" } else { "" };
        let digits = self.0.unsigned_abs().to_string();
        if digits == "0" {
            return "0".to_owned();
        }
        // Rounded in decimal, so that what is shown is the nearest of six digits.
        let (mut mantissa, mut places) = match digits.get(..SIGNIFICANT) {
            Some(head) => (head.parse::<u64>().unwrap_or(0), digits.len()),
            None => (digits.parse::<u64>().unwrap_or(0), digits.len()),
        };
        if digits.as_bytes().get(SIGNIFICANT).is_some_and(|next| *next >= b'5') {
            mantissa += 1;
            if mantissa == 10_u64.pow(6) {
                (mantissa, places) = (mantissa / 10, places + 1);
            }
        }
        let mantissa = mantissa.to_string();
        let shown = mantissa.trim_end_matches('0');
        // Of the first digit.
        let exponent = i32::try_from(places).unwrap_or(0) - 1 - i32::try_from(SCALE).unwrap_or(0);
        if !(-4..6).contains(&exponent) {
            let (first, rest) = shown.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            let mark = if exponent < 0 { '-' } else { '+' };
            return format!("{sign}{first}{point}{rest}e{mark}{:02}", exponent.abs());
        }
        match usize::try_from(exponent) {
            Ok(exponent) if shown.len() <= exponent + 1 => {
                format!("{sign}{shown}{}", "0".repeat(exponent + 1 - shown.len()))
            }
            Ok(exponent) => format!("{sign}{}.{}", &shown[..=exponent], &shown[exponent + 1..]),
            Err(_) => format!("{sign}0.{}{shown}", "0".repeat(exponent.unsigned_abs() as usize - 1)),
        }
    }
}

/// Rounded half away from zero; the divisor is positive.
fn divided(n: i128, divisor: i128) -> i128 {
    let half = divisor / 2;
    let up = if n < 0 { -half } else { half };
    n.checked_add(up).map_or(n / divisor, |n| n / divisor)
}

impl Display for Number {
    /// All digits.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let (whole, fraction) = (magnitude / ONE.unsigned_abs(), magnitude % ONE.unsigned_abs());
        let sign = if self.0 < 0 { "-" } else { "" };
        if fraction == 0 {
            return write!(f, "{sign}{whole}");
        }
        let fraction = format!("{fraction:09}");
        write!(f, "{sign}{whole}.{}", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        Number::parse(text).unwrap()
    }

    #[test]
    fn text_and_back() {
        for text in ["0", "1", "-1.5", "634659.296875", "18446744073709551615", "0.000000001", "-0.1"] {
            assert_eq!(number(text).to_string(), text);
        }
        assert_eq!(number("1.10000000049").to_string(), "1.1");
        for bad in ["", "-", "1e3", "1.", ".5", "NaN", "1,0", "123456789012345678901", "+1"] {
            assert_eq!(Number::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sums_are_exact() {
        let sum = (0..10).fold(Number::ZERO, |sum, _| sum.plus(number("0.1")));
        assert_eq!(sum, Number::whole(1));
        assert_eq!(number("8551640.5").minus(number("8551640.4")).to_string(), "0.1");
    }

    #[test]
    fn means() {
        let mean = |values: &[(i64, Option<i64>)]| {
            let values: Vec<_> = values.iter().map(|(v, w)| (Number::whole(*v), w.map(Number::whole))).collect();
            Number::mean(&values).map(|mean| mean.to_thousandths().to_string())
        };
        // 990 requests of 1 ms and 10 of 101 ms: 2 ms, not 51.
        assert_eq!(mean(&[(1, Some(990)), (101, Some(10))]).unwrap(), "2");
        assert_eq!(mean(&[(1, Some(0)), (4, Some(0))]).unwrap(), "2.5", "nothing was asked of either");
        assert_eq!(mean(&[(1, Some(5)), (4, None)]).unwrap(), "2.5", "a weight is missing");
        assert_eq!(mean(&[(1, None), (1, None), (3, None)]).unwrap(), "1.667");
        assert_eq!(mean(&[]), None);
        let huge = number("99999999999999999999");
        assert!(Number::mean(&[(huge, Some(huge)), (huge, Some(huge))]).unwrap() == huge, "without a wrong product");
    }

    #[test]
    fn quotients() {
        assert_eq!(number("10").over(number("4")).unwrap().to_string(), "2.5");
        assert_eq!(number("1").over(Number::ZERO), None);
        assert_eq!(number("10").times(60, 4).to_string(), "150");
    }

    /// The field's own column, and what `printf %g` makes of others.
    #[test]
    fn scientific_notation() {
        for (text, expected) in [
            ("8551640", "8.55164e+06"),
            ("675223", "675223"),
            ("0", "0"),
            ("0.1", "0.1"),
            ("174200000", "1.742e+08"),
            ("33.6", "33.6"),
            ("999999.5", "1e+06"),
            ("123456.7", "123457"),
            ("0.0001", "0.0001"),
            ("0.00001234", "1.234e-05"),
            ("-1234567", "-1.23457e+06"),
            ("100", "100"),
            ("12.34567", "12.3457"),
        ] {
            assert_eq!(number(text).scientific(), expected, "{text}");
        }
    }
}
