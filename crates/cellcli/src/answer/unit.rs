//! Metric values: a number with its unit, and the vendor's rules for printing them.
//!
//! Never rounds the number itself; rounding is for the text alone.

use super::decimal::Decimal;

/// The units metric values are printed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// No unit.
    None,
    /// Binary megabytes.
    Mb,
    /// Binary megabytes a second.
    MbPerSecond,
    /// Binary kilobytes a second.
    KbPerSecond,
    /// Requests.
    IoRequests,
    /// Requests a second.
    IoPerSecond,
    /// Milliseconds.
    Ms,
    /// Milliseconds a request.
    MsPerRequest,
    /// Microseconds.
    Us,
    /// Microseconds a request.
    UsPerRequest,
    /// Per cent.
    Percent,
    /// Events a minute.
    PerMinute,
    /// Degrees Celsius.
    Celsius,
}

impl Unit {
    /// Every unit.
    pub const ALL: &[Self] = &[
        Self::None,
        Self::Mb,
        Self::MbPerSecond,
        Self::KbPerSecond,
        Self::IoRequests,
        Self::IoPerSecond,
        Self::Ms,
        Self::MsPerRequest,
        Self::Us,
        Self::UsPerRequest,
        Self::Percent,
        Self::PerMinute,
        Self::Celsius,
    ];

    /// The unit as printed; empty for none.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Mb => "MB",
            Self::MbPerSecond => "MB/sec",
            Self::KbPerSecond => "KB/sec",
            Self::IoRequests => "IO requests",
            Self::IoPerSecond => "IO/sec",
            Self::Ms => "ms",
            Self::MsPerRequest => "ms/request",
            Self::Us => "us",
            Self::UsPerRequest => "us/request",
            Self::Percent => "%",
            Self::PerMinute => "/min",
            Self::Celsius => "C",
        }
    }

    /// The unit printed as `text`.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|unit| unit.text() == text)
    }

    /// Bytes in one of the unit, for comparison with sizes; `None` when it does not count bytes.
    pub(crate) const fn bytes(self) -> Option<i128> {
        match self {
            Self::Mb | Self::MbPerSecond => Some(1 << 20),
            Self::KbPerSecond => Some(1 << 10),
            _ => None,
        }
    }

    /// Digits after the point of values below 100: three where bytes are counted, none for pure counters, else one.
    const fn digits(self) -> u8 {
        match self {
            Self::Mb | Self::MbPerSecond | Self::KbPerSecond => 3,
            Self::IoRequests | Self::Ms | Self::Us => 0,
            Self::None
            | Self::IoPerSecond
            | Self::MsPerRequest
            | Self::UsPerRequest
            | Self::Percent
            | Self::PerMinute
            | Self::Celsius => 1,
        }
    }
}

/// How many digits a metric value is printed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// By the unit: below 100 three digits for bytes, one for other fractions, none for counters; none from 100 up.
    #[default]
    ByUnit,
    /// Always whole: counters without a unit, and the metrics the vendor prints whole (DB_*_BY_SEC, DB_IO_UTIL_*).
    Whole,
}

/// A metric value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Measure {
    /// The exact number, in the unit.
    pub number: Decimal,
    /// The unit.
    pub unit: Unit,
    /// How it is printed.
    pub precision: Precision,
}

impl Measure {
    /// A value printed by the rules of its unit.
    #[must_use]
    pub const fn new(number: Decimal, unit: Unit) -> Self {
        Self { number, unit, precision: Precision::ByUnit }
    }

    /// A value printed without a fraction.
    #[must_use]
    pub const fn whole(number: Decimal, unit: Unit) -> Self {
        Self { number, unit, precision: Precision::Whole }
    }

    /// The number as printed, without the unit: `2,844`, `0.047`, `28.5`.
    #[must_use]
    pub fn number_text(self) -> String {
        let digits = match self.precision {
            Precision::ByUnit => self.unit.digits(),
            Precision::Whole => 0,
        };
        let digits = if self.number.rounds_below_hundred(digits) { digits } else { 0 };
        self.number.rounded_text(digits, true)
    }
}

impl std::fmt::Display for Measure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.number_text())?;
        match self.unit {
            Unit::None => Ok(()),
            unit => write!(formatter, " {}", unit.text()),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Every figure with its unit that the field's listings show, from the exact number behind it.
    #[test]
    fn figures_of_the_field_print_as_they_did() {
        let samples = [
            ("0.0473", Unit::Mb, "0.047 MB"),
            ("60.191", Unit::Mb, "60.191 MB"),
            ("21.1934", Unit::MbPerSecond, "21.193 MB/sec"),
            ("28.46", Unit::IoPerSecond, "28.5 IO/sec"),
            ("0", Unit::MsPerRequest, "0.0 ms/request"),
            ("3.6", Unit::Percent, "3.6 %"),
            ("372.6", Unit::Mb, "373 MB"),
            ("326.4", Unit::IoPerSecond, "326 IO/sec"),
            ("2844", Unit::MsPerRequest, "2,844 ms/request"),
            ("365322.2", Unit::Mb, "365,322 MB"),
            ("32669310", Unit::IoRequests, "32,669,310 IO requests"),
            ("0", Unit::IoRequests, "0 IO requests"),
            ("120", Unit::Ms, "120 ms"),
            ("99.9994", Unit::Mb, "99.999 MB"),
            ("99.9996", Unit::Mb, "100 MB"),
            ("99.95", Unit::Percent, "100 %"),
            ("-1.25", Unit::Celsius, "-1.3 C"),
        ];
        for (number, unit, text) in samples {
            assert_eq!(Measure::new(Decimal::parse(number).unwrap(), unit).to_string(), text);
        }
        assert_eq!(Measure::whole(Decimal::parse("850.2").unwrap(), Unit::MbPerSecond).to_string(), "850 MB/sec");
        assert_eq!(Measure::whole(Decimal::ZERO, Unit::None).to_string(), "0");
    }

    #[test]
    fn units_are_told_apart_by_their_text() {
        for unit in Unit::ALL {
            assert_eq!(Unit::from_text(unit.text()), Some(*unit));
        }
        assert_eq!(Unit::from_text("MiB"), None);
    }
}
