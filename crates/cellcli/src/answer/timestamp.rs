//! Points in time as the language writes them: ISO 8601 with an offset, `2013-09-12T23:46:14+02:00`.
//!
//! Never reads a clock: the server supplies the time and the offset of its zone.

use std::cmp::Ordering;
use std::fmt;

const NS_PER_SECOND: i64 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// Offsets lie within a day; the real world uses at most 14 hours.
const OFFSET_MINUTES_MAX: i16 = 24 * 60 - 1;

/// Years that fit nanoseconds in an `i64` with room for any offset.
const YEARS: std::ops::RangeInclusive<i64> = 1970..=2261;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A point in time with the offset from UTC it is shown in. Order is by the instant, then by offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timestamp {
    since_epoch_ns: i64,
    offset_minutes: i16,
}

impl Timestamp {
    /// `since_epoch_ns` counts nanoseconds since 1970-01-01T00:00:00Z. `offset_minutes` east of UTC; an offset of a day or
    /// more is a programmer error and stops the process.
    #[must_use]
    pub const fn new(since_epoch_ns: i64, offset_minutes: i16) -> Self {
        assert!(offset_minutes.abs() <= OFFSET_MINUTES_MAX, "an offset from UTC is less than a day");
        Self { since_epoch_ns, offset_minutes }
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn since_epoch_ns(self) -> i64 {
        self.since_epoch_ns
    }

    /// Milliseconds since the epoch, the form of JSON and XML.
    #[must_use]
    pub const fn since_epoch_ms(self) -> i64 {
        self.since_epoch_ns.div_euclid(1_000_000)
    }

    /// Reads `YYYY-MM-DDThh:mm:ss[.fraction](Z|±hh:mm)`, years 1970 to 2261. `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // Every piece is ASCII; slicing below relies on it.
        if !text.is_ascii() || text.len() < "1970-01-01T00:00:00Z".len() {
            return None;
        }
        let number = |from: usize, digits: usize| -> Option<i64> {
            let part = text.get(from..from + digits)?;
            part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
        };
        let separator =
            |at: usize, wanted: u8| text.as_bytes().get(at).is_some_and(|byte| byte.eq_ignore_ascii_case(&wanted));
        let separated = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')]
            .iter()
            .all(|&(at, wanted)| separator(at, wanted));
        if !separated {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
        let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
        let in_range = YEARS.contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in_month(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !in_range {
            return None;
        }
        let (fraction_ns, rest) = parse_fraction(&text[19..])?;
        let offset_minutes = parse_offset(rest)?;
        let local_s = days_from_civil(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
        let since_epoch_ns =
            (local_s - i64::from(offset_minutes) * 60).checked_mul(NS_PER_SECOND)?.checked_add(fraction_ns)?;
        Some(Self { since_epoch_ns, offset_minutes })
    }

    /// The date and time of day in the value's own offset.
    fn local(self) -> Local {
        let seconds = self.since_epoch_ns.div_euclid(NS_PER_SECOND) + i64::from(self.offset_minutes) * 60;
        let (year, month, day) = civil_from_days(seconds.div_euclid(SECONDS_PER_DAY));
        Local { year, month, day, second_of_day: seconds.rem_euclid(SECONDS_PER_DAY) }
    }

    /// The LOCAL date format: `Sep 12, 2013 11:46:14 PM`.
    #[must_use]
    pub fn local_text(self) -> String {
        let local = self.local();
        let (hour, minute, second) = local.time();
        let month = MONTHS[usize::try_from(local.month - 1).unwrap_or(0) % MONTHS.len()];
        let (hour_of_half, half) = match hour {
            0 => (12, "AM"),
            1..12 => (hour, "AM"),
            12 => (12, "PM"),
            _ => (hour - 12, "PM"),
        };
        format!("{month} {}, {} {hour_of_half}:{minute:02}:{second:02} {half}", local.day, local.year)
    }

    /// The STANDARD date format with all digits of the fraction, so that it reads back as the same instant.
    pub(crate) fn exact_text(self) -> String {
        let fraction_ns = self.since_epoch_ns.rem_euclid(NS_PER_SECOND);
        let text = self.to_string();
        if fraction_ns == 0 {
            return text;
        }
        let (date_and_time, offset) = text.split_at(text.len() - "+00:00".len());
        format!("{date_and_time}.{fraction_ns:09}{offset}")
    }
}

struct Local {
    year: i64,
    month: i64,
    day: i64,
    second_of_day: i64,
}

impl Local {
    fn time(&self) -> (i64, i64, i64) {
        (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }
}

impl fmt::Display for Timestamp {
    /// The STANDARD date format, whole seconds.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = self.local();
        let (hour, minute, second) = local.time();
        let sign = if self.offset_minutes < 0 { '-' } else { '+' };
        let offset = self.offset_minutes.unsigned_abs();
        write!(
            formatter,
            "{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}{sign}{:02}:{:02}",
            local.year,
            local.month,
            local.day,
            offset / 60,
            offset % 60
        )
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.since_epoch_ns, self.offset_minutes).cmp(&(other.since_epoch_ns, other.offset_minutes))
    }
}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn parse_fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits > 9 {
        return None;
    }
    let number: i64 = rest[..digits].parse().ok()?;
    Some((number * 10_i64.pow(9 - u32::try_from(digits).ok()?), &rest[digits..]))
}

fn parse_offset(text: &str) -> Option<i16> {
    if text.eq_ignore_ascii_case("Z") {
        return Some(0);
    }
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !two_digits(hours) || !two_digits(minutes) {
        return None;
    }
    let (hours, minutes): (i16, i16) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar; years count from March so that the leap day is last.
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`]: year, month, day.
const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_samples_of_the_field_read_and_print() {
        for (text, epoch_s) in [
            ("2013-09-12T23:46:14+02:00", 1_379_022_374),
            ("2011-01-23T12:34:56-05:00", 1_295_804_096),
            ("2000-02-29T00:00:00+00:00", 951_782_400),
        ] {
            let timestamp = Timestamp::parse(text).unwrap();
            assert_eq!(timestamp.since_epoch_ns(), epoch_s * NS_PER_SECOND, "{text}");
            assert_eq!(timestamp.to_string(), text);
        }
        assert_eq!(Timestamp::parse("2013-09-12T23:46:14+02:00").unwrap().local_text(), "Sep 12, 2013 11:46:14 PM");
        assert_eq!(Timestamp::new(0, 0).local_text(), "Jan 1, 1970 12:00:00 AM");
    }

    /// Every day of the range goes to a date and back.
    #[test]
    fn calendar_is_its_own_inverse() {
        let mut expected = (1970, 1, 1);
        for days in 0..days_from_civil(2262, 1, 1) {
            assert_eq!(civil_from_days(days), expected);
            let (year, month, day) = expected;
            assert_eq!(days_from_civil(year, month, day), days);
            expected = if day < days_in_month(year, month) {
                (year, month, day + 1)
            } else if month < 12 {
                (year, month + 1, 1)
            } else {
                (year + 1, 1, 1)
            };
        }
    }

    #[test]
    fn fraction_is_kept_in_the_exact_form() {
        let timestamp = Timestamp::parse("2013-09-12T23:46:14.25Z").unwrap();
        assert_eq!(timestamp.exact_text(), "2013-09-12T23:46:14.250000000+00:00");
        assert_eq!(Timestamp::parse(&timestamp.exact_text()), Some(timestamp));
        assert_eq!(timestamp.since_epoch_ms(), 1_379_029_574_250);
    }

    #[test]
    fn what_is_not_a_time() {
        for text in [
            "2013-09-12",
            "2013-09-12T23:46:14",
            "2013-02-29T00:00:00Z",
            "2013-13-01T00:00:00Z",
            "2013-09-12T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "2013-09-12T23:46:14+2:00",
            "2013-09-12T23:46:14.Z",
            "2013-09-12T23:46:14+24:00",
            "2013-09-12T23:46:14Zé",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }
}
