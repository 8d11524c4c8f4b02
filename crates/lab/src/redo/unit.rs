//! Units of time, and decimal numbers read exactly: everything is whole picoseconds inside.
//!
//! Never goes through a float.

use std::fmt;
use std::str::FromStr;

/// Picoseconds of a microsecond, the unit everything is printed in.
pub(super) const US_PS: i64 = 1_000_000;

/// What the numbers of a file count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// 1,024 ns, what some Oracle 9.2 and 10.2 call a microsecond (docs/redo.md).
    Ns1024,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Hundredths of a second.
    Cs,
    /// Seconds.
    S,
}

impl Unit {
    /// All of them, as the command line names them.
    pub const ALL: [(&'static str, Unit); 6] = [
        ("ns", Unit::Ns),
        ("1024ns", Unit::Ns1024),
        ("us", Unit::Us),
        ("ms", Unit::Ms),
        ("cs", Unit::Cs),
        ("s", Unit::S),
    ];

    /// In picoseconds.
    #[must_use]
    pub fn ps(self) -> i64 {
        match self {
            Unit::Ns => 1_000,
            Unit::Ns1024 => 1_024_000,
            Unit::Us => US_PS,
            Unit::Ms => 1_000 * US_PS,
            Unit::Cs => 10_000 * US_PS,
            Unit::S => 1_000_000 * US_PS,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Unit::ALL.iter().find(|(_, unit)| unit == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Unit, String> {
        let found = Unit::ALL.iter().find(|(name, _)| *name == text).map(|(_, unit)| *unit);
        found.ok_or_else(|| {
            let names: Vec<&str> = Unit::ALL.iter().map(|(name, _)| *name).collect();
            format!("no unit {text}\nhint: one of {}", names.join(", "))
        })
    }
}

/// A time on the command line: `500ms`, `1.5s`, `10m`, `2h`.
///
/// # Errors
/// It is none, or not above zero.
pub fn parse_time_ps(text: &str) -> Result<i64, String> {
    let wrong = || format!("no time: {text}\nhint: a number with its unit, like 500ms, 4ms, 100us, 1.5s, 10m or 2h");
    let units = [("ns", "ns", 1), ("us", "us", 1), ("ms", "ms", 1), ("s", "s", 1), ("m", "s", 60), ("h", "s", 3600)];
    let (name, unit, times) = units.into_iter().find(|(name, ..)| text.ends_with(name)).ok_or_else(wrong)?;
    let number = &text.as_bytes()[..text.len() - name.len()];
    let ps = decimal_ps(number, unit.parse()?).ok().and_then(|ps| ps.checked_mul(times));
    ps.filter(|ps| *ps > 0).ok_or_else(wrong)
}

/// Digits that are kept: what is behind them is below a picosecond in every unit, for every time that is short enough.
const DIGITS_MAX: u32 = 34;
/// Powers of ten beyond this are no time in any unit.
const EXPONENT_MAX: i64 = 40;
pub(super) const NOT_A_NUMBER: &str = "not a number";
pub(super) const TOO_LONG: &str = "a time beyond 106 days";

/// A decimal number of `unit` in picoseconds: `-12.5`, `4.52e2`. What is below a picosecond is rounded half away from zero.
///
/// # Errors
/// It is no number, or too large.
pub(super) fn decimal_ps(word: &[u8], unit: Unit) -> Result<i64, &'static str> {
    let (negative, digits) = match word {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, word),
    };
    let (mut mantissa, mut exponent, mut kept) = (0_i128, 0_i64, 0_u32);
    let (mut seen, mut point) = (false, false);
    let mut rest = digits.iter();
    for &byte in rest.by_ref() {
        match byte {
            b'0'..=b'9' => {
                seen = true;
                if kept < DIGITS_MAX {
                    mantissa = mantissa * 10 + i128::from(byte - b'0');
                    kept += u32::from(mantissa > 0);
                    exponent -= i64::from(point);
                } else {
                    exponent += i64::from(!point);
                }
            }
            b'.' if !point => point = true,
            b'e' | b'E' if seen => {
                exponent += power(rest.as_slice()).ok_or(NOT_A_NUMBER)?;
                break;
            }
            _ => return Err(NOT_A_NUMBER),
        }
    }
    if !seen {
        return Err(NOT_A_NUMBER);
    }
    // Zeros at the end say nothing: 1.50 is 1.5. What is left of a mantissa then has room for the unit.
    while mantissa != 0 && mantissa % 10 == 0 {
        mantissa /= 10;
        exponent += 1;
    }
    if mantissa == 0 || exponent < -2 * EXPONENT_MAX {
        return Ok(0);
    }
    let mut ps = mantissa;
    let mut factor = i128::from(unit.ps());
    while factor % 10 == 0 {
        factor /= 10;
        exponent += 1;
    }
    ps = ps.checked_mul(factor).ok_or(TOO_LONG)?;
    let power = |n: i64| u32::try_from(n).ok().and_then(|n| 10_i128.checked_pow(n));
    if exponent >= 0 {
        ps = power(exponent).and_then(|factor| ps.checked_mul(factor)).ok_or(TOO_LONG)?;
    } else {
        // A divisor too large to hold leaves nothing of a mantissa that is held.
        ps = power(-exponent).map_or(0, |divisor| (ps + divisor / 2) / divisor);
    }
    let ps = i64::try_from(ps).map_err(|_| TOO_LONG)?;
    Ok(if negative { -ps } else { ps })
}

fn power(word: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(word).ok()?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || digits.len() > 6 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals_are_read_exactly() {
        for (text, unit, ps) in [
            ("452", Unit::Us, 452_000_000),
            ("-1.6", Unit::Us, -1_600_000),
            ("+0.30", Unit::Us, 300_000),
            (".5", Unit::Ms, 500_000_000),
            ("5.", Unit::Ns, 5_000),
            ("4.52e2", Unit::Us, 452_000_000),
            ("45200E-02", Unit::Us, 452_000_000),
            ("1", Unit::Cs, 10_000_000_000),
            ("1", Unit::Ns1024, 1_024_000),
            ("0.0000004", Unit::Us, 0),
            ("0.0000005", Unit::Us, 1),
            ("-0.0000005", Unit::Us, -1),
            ("0.00000000000000000000000000000000000000001", Unit::S, 0),
            ("1e-99999", Unit::S, 0),
            ("000000000000000000000000000000000000000000001.5", Unit::Us, 1_500_000),
            ("1.00000000000000000000000000000000000000000000000", Unit::Us, 1_000_000),
            ("9223372", Unit::S, 9_223_372_000_000_000_000),
        ] {
            assert_eq!(decimal_ps(text.as_bytes(), unit), Ok(ps), "{text} {unit}");
        }
        for text in ["", "-", ".", "+.", "NA", "1,5", "1.2.3", "0x10", "1e", "1e+", "e5", "12 ", "--1", "1e9999999"] {
            assert_eq!(decimal_ps(text.as_bytes(), Unit::Us), Err(NOT_A_NUMBER), "{text}");
        }
        for text in ["9223373", "1e30", "1e99999", "99999999999999999999999999999999999999999999"] {
            assert_eq!(decimal_ps(text.as_bytes(), Unit::S), Err(TOO_LONG), "{text}");
        }
    }

    #[test]
    fn times_of_the_command_line() {
        assert_eq!(parse_time_ps("500ms"), Ok(500_000 * US_PS));
        assert_eq!(parse_time_ps("1.5s"), Ok(1_500_000 * US_PS));
        assert_eq!(parse_time_ps("100us"), Ok(100 * US_PS));
        assert_eq!(parse_time_ps("10m"), Ok(600_000_000 * US_PS));
        assert_eq!(parse_time_ps("0.5h"), Ok(1_800_000_000 * US_PS));
        for wrong in ["500", "ms", "", "m", "-1ms", "0s", "0m", "1d", "2600h", "1 ms", "10 m"] {
            assert!(parse_time_ps(wrong).is_err(), "{wrong}");
        }
        assert!("hour".parse::<Unit>().is_err_and(|e| e.contains("1024ns, us")));
    }

    proptest! {
        /// Against whole numbers with a point put in.
        #[test]
        fn decimals_are_numbers_with_a_point(value in -9_000_000_000_000_i64..9_000_000_000_000, digits in 0_u32..=6) {
            let scale = 10_i64.pow(digits);
            let (whole, fraction) = (value.unsigned_abs() / scale as u64, value.unsigned_abs() % scale as u64);
            let sign = if value < 0 { "-" } else { "" };
            let text = format!("{sign}{whole}.{fraction:0width$}", width = digits as usize);
            prop_assert_eq!(decimal_ps(text.as_bytes(), Unit::Us), Ok(value * (US_PS / scale)));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decimal_ps(&bytes, Unit::S);
            let text: Vec<u8> = bytes.iter().map(|b| b"0123456789.eE+-"[usize::from(*b) % 15]).collect();
            let _ = decimal_ps(&text, Unit::S);
        }
    }
}
