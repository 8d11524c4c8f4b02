//! What an operator states of the endurance of flash drives: drive writes a day with a capacity, or a lifetime with the bytes
//! a drive is rated for.
//!
//! Units are those of data sheets, where GB and GiB differ by 7 %: whoever means neither is asked which. Never a float.

use super::{ConfigError, Located};
use flashcache::Endurance;
use flashcache::governor::{RATED_YEARS, YEAR_DAYS};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Units of a drive's data sheet.
const UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("EiB", 1 << 60),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("EB", 1_000_000_000_000_000_000),
];
/// Digits after the point that count: thousandths.
const FRACTION_DIGITS_MAX: usize = 3;
/// More drive writes a day than any drive is rated for: write-intensive ones have 100.
const MILLI_WRITES_MAX: u64 = 1_000_000;
/// A longer lifetime is a slip of the pen.
const LIFETIME_YEARS_MAX: u64 = 100;

/// Bytes of a drive: `"700GB"`, `"1.92TB"`, `"17PB"`, `"640GiB"`. Keeps the unit, so that it is written as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveBytes {
    milli: u64,
    unit: &'static str,
    bytes: u64,
}

/// Drive writes a day, in thousandths: `"10"`, `"0.3"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveWrites(pub u64);

/// Days, a year being 365: `"5y"`, `"2.5y"`, `"90d"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(pub u64);

/// A number in thousandths, exactly; none when it is not `digits[.digits]` with at most three digits after the point.
fn milli(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<FRACTION_DIGITS_MAX$}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction)
}

/// A number of thousandths as text, exactly.
fn milli_text(milli: u64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl DriveBytes {
    fn parse(text: &str) -> Result<DriveBytes, String> {
        let known = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *unit, *bytes)));
        let Some((number, unit, unit_bytes)) = known else {
            return Err(format!(
                "{text:?} states no unit of a drive: 700GB (10^9 bytes) or 700GiB (2^30) would be one"
            ));
        };
        let Some(milli) = milli(number) else {
            return Err(format!("{text:?} is no size of a drive: 700GB or 1.92TB would be"));
        };
        let bytes = u64::try_from(u128::from(milli) * u128::from(unit_bytes) / 1000);
        bytes.map(|bytes| DriveBytes { milli, unit, bytes }).map_err(|_| format!("{text:?} is more than 18EB"))
    }

    /// Whole bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for DriveBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", milli_text(self.milli), self.unit)
    }
}

impl DriveWrites {
    fn parse(text: &str) -> Result<DriveWrites, String> {
        let known = milli(text).filter(|milli| (1..=MILLI_WRITES_MAX).contains(milli));
        known.map(DriveWrites).ok_or_else(|| {
            format!("{text:?} is no number of drive writes a day: \"10\" or \"0.3\" would be, from 0.001 to 1000")
        })
    }
}

impl fmt::Display for DriveWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&milli_text(self.0))
    }
}

impl Lifetime {
    fn parse(text: &str) -> Result<Lifetime, String> {
        let wrong = || format!("{text:?} is no lifetime: \"5y\" or \"90d\" would be, from 1d to {LIFETIME_YEARS_MAX}y");
        let (number, unit_days) = match (text.strip_suffix('y'), text.strip_suffix('d')) {
            (Some(number), _) => (number, YEAR_DAYS),
            (_, Some(number)) => (number, 1),
            _ => return Err(wrong()),
        };
        let days = milli(number).and_then(|milli| milli.checked_mul(unit_days)).map(|milli| milli / 1000);
        days.filter(|days| (1..=LIFETIME_YEARS_MAX * YEAR_DAYS).contains(days)).map(Lifetime).ok_or_else(wrong)
    }
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(YEAR_DAYS) { write!(f, "{}y", self.0 / YEAR_DAYS) } else { write!(f, "{}d", self.0) }
    }
}

/// Text, or a whole number as if it were text.
struct Written<T>(fn(&str) -> Result<T, String>);

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotes, such as \"10\", \"700GB\" or \"5y\"")
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
    fn visit_i64<E: Error>(self, n: i64) -> Result<T, E> {
        self.visit_str(&n.to_string())
    }
    fn visit_u64<E: Error>(self, n: u64) -> Result<T, E> {
        self.visit_str(&n.to_string())
    }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                deserializer.deserialize_any(Written($name::parse))
            }
        }
    )*};
}

as_text!(DriveBytes, DriveWrites, Lifetime);

impl Located {
    /// What may be written to each flash device of the cache; none without a statement.
    ///
    /// # Errors
    /// Half a statement, two at once, or one that allows nothing.
    pub fn endurance(&self) -> Result<Option<Endurance>, ConfigError> {
        let tuning = &self.config.flash_cache;
        let (writes, capacity) = (tuning.drive_writes_per_day, tuning.drive_capacity);
        let (lifetime, rated) = (tuning.lifetime, tuning.rated_writes);
        let (key, value, made) = match (writes, capacity, lifetime, rated) {
            (None, None, None, None) => {
                return match tuning.endurance_burst_days {
                    None => Ok(None),
                    Some(days) => {
                        let reason = "days' worth of what?\nhint: state drive_writes_per_day and drive_capacity, or lifetime and rated_writes";
                        Err(self.bad("flash_cache.endurance_burst_days", days, reason))
                    }
                };
            }
            (Some(writes), Some(capacity), lifetime, None) => {
                let days = lifetime.map_or(RATED_YEARS * YEAR_DAYS, |lifetime| lifetime.0);
                let made = Endurance::of_drive_writes(writes.0, capacity.bytes(), days);
                ("flash_cache.drive_writes_per_day", writes.to_string(), made)
            }
            (None, None, Some(lifetime), Some(rated)) => {
                ("flash_cache.rated_writes", rated.to_string(), Endurance::of_lifetime(rated.bytes(), lifetime.0))
            }
            (Some(writes), _, _, Some(_)) => {
                let reason = "rated_writes says it another way\nhint: keep one of the two";
                return Err(self.bad("flash_cache.drive_writes_per_day", writes, reason));
            }
            (Some(writes), None, ..) => {
                let reason = "of how much?\nhint: state the drive's size: drive_capacity = \"700GB\"";
                return Err(self.bad("flash_cache.drive_writes_per_day", writes, reason));
            }
            (None, Some(capacity), ..) => {
                let reason = "a capacity alone limits nothing\nhint: drive_writes_per_day = \"1\", or leave it out";
                return Err(self.bad("flash_cache.drive_capacity", capacity, reason));
            }
            (None, None, Some(lifetime), None) => {
                let reason = "of what?\nhint: state what the drive is rated for in all: rated_writes = \"17PB\"";
                return Err(self.bad("flash_cache.lifetime", lifetime, reason));
            }
            (None, None, None, Some(rated)) => {
                let reason = "in what time?\nhint: lifetime = \"5y\"";
                return Err(self.bad("flash_cache.rated_writes", rated, reason));
            }
        };
        let endurance = made.map_err(|error| self.bad(key, value, error))?;
        match tuning.endurance_burst_days {
            None => Ok(Some(endurance)),
            Some(days) => {
                let made = endurance.with_burst_days(days);
                made.map(Some).map_err(|error| self.bad("flash_cache.endurance_burst_days", days, error))
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::Config;
    use super::*;

    /// The keys of [flash_cache], as a file.
    fn load(keys: &str) -> Result<Option<Endurance>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(super::super::FILE_NAME), format!("[flash_cache]\n{keys}\n")).unwrap();
        let located = Config::load(dir.path()).map_err(|error| error.to_string())?;
        // What is written out again says the same.
        let again: Config = toml::from_str(&located.config.to_text()).unwrap();
        assert_eq!(again, located.config);
        located.endurance().map_err(|error| error.to_string())
    }

    fn per_day(keys: &str) -> u64 {
        load(keys).unwrap().unwrap().bytes_per_day()
    }

    #[test]
    fn what_data_sheets_say() {
        assert_eq!(load("").unwrap(), None);
        let seven_tb = load("drive_writes_per_day = \"10\"\ndrive_capacity = \"700GB\"").unwrap().unwrap();
        assert_eq!((seven_tb.bytes_per_day(), seven_tb.bytes_per_second()), (7_000_000_000_000, 81_018_518));
        assert_eq!(seven_tb.rated_bytes(), 12_775_000_000_000_000, "5 years unless stated");
        assert_eq!(load("lifetime = \"5y\"\nrated_writes = \"12.775PB\"").unwrap().unwrap(), seven_tb);
        // Decimal and binary are told apart.
        assert_eq!(per_day("drive_writes_per_day = 10\ndrive_capacity = \"700GiB\""), 7_516_192_768_000);
        assert_eq!(per_day("drive_writes_per_day = \"0.3\"\ndrive_capacity = \"3.84 TB\""), 1_152_000_000_000);
        assert_eq!(per_day("lifetime = \"730d\"\nrated_writes = \"17PB\""), 17_000_000_000_000_000 / 730);
        assert_eq!(per_day("lifetime = \"2.5y\"\nrated_writes = \"1TiB\""), (1 << 40) / 912);
        let three = load(
            "drive_writes_per_day = \"3\"\ndrive_capacity = \"1.92TB\"\nlifetime = \"3y\"\nendurance_burst_days = 7",
        );
        let three = three.unwrap().unwrap();
        assert_eq!(three.rated_bytes(), 5_760_000_000_000 * 1095);
        assert_eq!(three.budget_bytes_max(), 5_760_000_000_000 * 7);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let size = "drive_capacity = \"700GB\"";
        for (keys, part) in [
            ("drive_writes_per_day = \"10\"", "hint: state the drive's size"),
            (size, "a capacity alone limits nothing"),
            ("lifetime = \"5y\"", "rated_writes = \"17PB\""),
            ("rated_writes = \"17PB\"", "hint: lifetime"),
            ("endurance_burst_days = 2", "days' worth of what?"),
            ("drive_capacity = \"700G\"", "700GB (10^9 bytes) or 700GiB (2^30)"),
            ("drive_capacity = 700", "states no unit of a drive"),
            ("drive_capacity = \"fast TB\"", "is no size of a drive"),
            ("drive_capacity = \"1.2345TB\"", "is no size of a drive"),
            ("drive_capacity = \"19EB\"", "more than 18EB"),
            ("drive_capacity = true", "text in quotes"),
            ("drive_writes_per_day = 0.3", "text in quotes"),
            ("drive_writes_per_day = -1", "from 0.001 to 1000"),
            ("drive_writes_per_day = \"0\"", "from 0.001 to 1000"),
            ("drive_writes_per_day = \"ten\"", "from 0.001 to 1000"),
            ("drive_writes_per_day = \"1001\"", "from 0.001 to 1000"),
            ("lifetime = \"5\"", "is no lifetime"),
            ("lifetime = \"0y\"", "is no lifetime"),
            ("lifetime = \"101y\"", "is no lifetime"),
            ("lifetime = \"5 years\"", "is no lifetime"),
        ] {
            let error = load(keys).unwrap_err();
            assert!(error.contains(part), "{keys}: {error}");
        }
        for (more, part) in [
            ("drive_writes_per_day = \"1\"\nrated_writes = \"17PB\"", "keep one of the two"),
            ("drive_writes_per_day = \"1\"\nendurance_burst_days = 0", "1 to 31 days"),
            ("drive_writes_per_day = \"1\"\nendurance_burst_days = 32", "1 to 31 days"),
        ] {
            let error = load(&format!("{size}\n{more}")).unwrap_err();
            assert!(error.contains(part), "{more}: {error}");
        }
        let nothing = load("drive_writes_per_day = \"1\"\ndrive_capacity = \"0GB\"").unwrap_err();
        assert!(nothing.contains("allows no byte a day") && nothing.contains("drive_writes_per_day"), "{nothing}");
        let much = load("drive_writes_per_day = \"1000\"\ndrive_capacity = \"1EB\"").unwrap_err();
        assert!(much.contains("more bytes than can be counted"), "{much}");
    }

    #[test]
    fn they_are_written_as_they_were_read() {
        for text in ["700GB", "1.92TB", "17PB", "640GiB", "1.921TiB", "18EB", "0.5GB"] {
            assert_eq!(DriveBytes::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(DriveBytes::parse("1.9200 TB").unwrap().to_string(), "1.92TB");
        for text in ["0.3", "10", "0.001"] {
            assert_eq!(DriveWrites::parse(text).unwrap().to_string(), text);
        }
        for text in ["5y", "90d"] {
            assert_eq!(Lifetime::parse(text).unwrap().to_string(), text);
        }
    }
}
