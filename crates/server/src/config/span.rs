//! A time in the configuration: `"24h"`, `"90m"`, `"7d"`. Whole seconds, never a float.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Units, the longest first: a time is written in the longest that tells it whole.
const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];
/// A year.
const SECONDS_MAX: u64 = 365 * 86_400;

/// Seconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub u64);

impl Span {
    fn parse(text: &str) -> Result<Span, String> {
        let wrong = || format!("{text:?} is no time: \"24h\", \"90m\" or \"7d\" would be, from 1s to 365d");
        let known = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, *seconds)));
        let (number, unit_s) = known.ok_or_else(wrong)?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let seconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit_s));
        seconds.filter(|seconds| (1..=SECONDS_MAX).contains(seconds)).map(Span).ok_or_else(wrong)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A day is written as hours, as everybody says it of KEEP.
        let whole = |(_, seconds): &&(char, u64)| self.0.is_multiple_of(*seconds) && self.0 >= 2 * seconds;
        let (unit, seconds) = UNITS.iter().find(whole).unwrap_or(&UNITS[3]);
        write!(f, "{}{unit}", self.0 / seconds)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct Written;

impl Visitor<'_> for Written {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time in quotes, such as \"24h\", \"90m\" or \"7d\"")
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
        Span::parse(text).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        deserializer.deserialize_str(Written)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (text, seconds, again) in [
            ("24h", 86_400, "24h"),
            ("1d", 86_400, "24h"),
            ("90m", 5_400, "90m"),
            ("7d", 604_800, "7d"),
            ("1s", 1, "1s"),
            ("60s", 60, "60s"),
            ("365d", SECONDS_MAX, "365d"),
        ] {
            let unused = Span::parse(text).unwrap();
            assert_eq!((unused.0, unused.to_string().as_str()), (seconds, again), "{text}");
            assert_eq!(Span::parse(again).unwrap(), unused);
        }
        for wrong in ["", "h", "24", "0s", "366d", "1.5h", "-1h", "24 h", "99999999999999999999d"] {
            assert!(Span::parse(wrong).unwrap_err().contains("from 1s to 365d"), "{wrong}");
        }
    }
}
