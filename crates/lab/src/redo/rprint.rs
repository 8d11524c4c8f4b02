//! Numbers as R prints them: `format`, `print(summary(x))` and the lines of `t.test`.
//!
//! R shows the fewest digits that give every number of a vector at least so many significant ones, all with the same decimals,
//! and changes to powers of ten when that is shorter (`formatReal` in R's format.c; `print.summaryDefault`, `print.htest`,
//! `format.pval` in R 4). Never computes a statistic.

use super::welch::Welch;

/// Digits R prints by default.
const DIGITS: usize = 7;
/// A p-value below the machine's precision is not told.
const P_MIN: f64 = f64::EPSILON;

/// One number rounded to so many significant digits.
struct Scientific {
    negative: bool,
    exponent: i64,
    significant: i64,
    /// In fixed notation the rounding does not carry into a new digit: 9.9996 has one before the point.
    widens: bool,
}

fn scientific(x: f64, digits: usize) -> Scientific {
    if x == 0.0 {
        return Scientific { negative: false, exponent: 0, significant: 1, widens: false };
    }
    let text = format!("{:.*e}", digits - 1, x.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let significant = mantissa.trim_end_matches('0').bytes().filter(u8::is_ascii_digit).count().max(1);
    let widens = exponent > 0 && x.abs() < 10_f64.powi(exponent as i32);
    Scientific { negative: x < 0.0, exponent, significant: significant as i64, widens }
}

/// `format(values, digits = digits)`, without the blanks that make them equally wide.
pub(super) fn format(values: &[f64], digits: usize) -> Vec<String> {
    let parts: Vec<Scientific> = values.iter().map(|x| scientific(*x, digits)).collect();
    let left = |p: &Scientific| (p.exponent + 1 - i64::from(p.widens)).max(1) + i64::from(p.negative);
    let right = parts.iter().map(|p| p.significant - p.exponent - 1).max().unwrap_or(0).max(0);
    let fixed = parts.iter().map(left).max().unwrap_or(0) + right + i64::from(right > 0);
    let mantissa = parts.iter().map(|p| p.significant - 1).max().unwrap_or(0);
    let long = parts.iter().any(|p| p.exponent.abs() >= 100);
    let negative = parts.iter().any(|p| p.negative);
    let powers = i64::from(negative) + 1 + i64::from(mantissa > 0) + mantissa + 4 + i64::from(long);
    values
        .iter()
        .map(|x| {
            if fixed <= powers {
                return format!("{x:.*}", right as usize);
            }
            let text = format!("{x:.*e}", mantissa as usize);
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{mantissa}e{sign}{exponent:0>2}")
        })
        .collect()
}

/// One number with at most so many significant digits and never in powers of ten, for tables and sentences of our own.
pub(super) fn plain(x: f64, digits: usize) -> String {
    let parts = scientific(x, digits);
    let decimals = (parts.significant - parts.exponent - 1).clamp(0, 12) as usize;
    let text = format!("{x:.decimals$}");
    if text.bytes().all(|b| matches!(b, b'0' | b'.' | b'-')) { "0".to_owned() } else { text }
}

/// `zapsmall`: what is tiny beside the largest is rounded away.
fn without_small(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().fold(0_f64, |most, x| most.max(x.abs()));
    if largest == 0.0 {
        return values.to_vec();
    }
    let decimals = (DIGITS as f64 - largest.log10().ceil()).max(0.0) as usize;
    values.iter().map(|x| format!("{x:.decimals$}").parse().unwrap_or(*x)).collect()
}

/// Columns under their names, as R prints a named vector.
fn named(names: &[&str], values: &[String]) -> String {
    let width = names.iter().copied().chain(values.iter().map(String::as_str)).map(str::len).max().unwrap_or(0);
    let line = |words: &mut dyn Iterator<Item = &str>| -> String {
        words.map(|word| format!("{word:>width$}")).collect::<Vec<_>>().join(" ")
    };
    format!("{}\n{}\n", line(&mut names.iter().copied()), line(&mut values.iter().map(String::as_str)))
}

/// `print(summary(x))`: minimum, first quartile, median, mean, third quartile, maximum.
pub(super) fn summary(six: &[f64; 6]) -> String {
    let values = format(&without_small(six), DIGITS - 3);
    named(&["Min.", "1st Qu.", "Median", "Mean", "3rd Qu.", "Max."], &values)
}

/// A p-value after `p-value`.
pub(super) fn p_value(p: f64) -> String {
    if p < P_MIN {
        return format!("< {}", format(&[P_MIN], 2).concat());
    }
    format!("= {}", format(&[p], DIGITS - 3).concat())
}

/// `print(t.test(x, y))`, without blank lines around it.
pub(super) fn t_test(names: [&str; 2], means: [f64; 2], test: &Welch) -> String {
    let one = |x: f64| format(&[x], DIGITS - 2).concat();
    let interval = format(&[test.ci_low, test.ci_high], DIGITS);
    let width = interval.iter().map(String::len).max().unwrap_or(0);
    format!(
        "\tWelch Two Sample t-test\n\ndata:  {} and {}\nt = {}, df = {}, p-value {}\n\
         alternative hypothesis: true difference in means is not equal to 0\n95 percent confidence interval:\n \
         {:>width$} {:>width$}\nsample estimates:\n{}",
        names[0],
        names[1],
        one(test.t),
        one(test.df),
        p_value(test.p_value),
        interval[0],
        interval[1],
        named(&["mean of x", "mean of y"], &format(&means, DIGITS))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(values: &[f64], digits: usize) -> String {
        format(values, digits).join(" ")
    }

    /// The examples of R's help pages and introductions: `format(10^(0:3), digits = 4)`, `format(2^31 - 1)` and so on; the rest
    /// follows from the rule in format.c.
    #[test]
    fn format_as_r_does() {
        assert_eq!(joined(&[1.0, 10.0, 100.0, 1000.0], 4), "1 10 100 1000");
        assert_eq!(joined(&[2_147_483_647.0], 7), "2147483647");
        assert_eq!(joined(&[13.7], 7), "13.7");
        assert_eq!(joined(&[6.0, 13.1], 2), "6 13");
        assert_eq!(joined(&[std::f64::consts::PI], 7), "3.141593");
        assert_eq!(joined(&[100_000.0], 7), "1e+05", "as R prints 100000");
        assert_eq!(joined(&[123_456.0], 7), "123456");
        assert_eq!(joined(&[0.0001], 7), "1e-04", "as R prints 0.0001");
        assert_eq!(joined(&[0.000_123_4], 4), "0.0001234");
        assert_eq!(joined(&[0.000_012_34], 4), "1.234e-05");
        assert_eq!(joined(&[9.9996], 4), "10");
        assert_eq!(joined(&[-1.5, 1e-300], 7), "-1.5e+00 1.0e-300");
        assert_eq!(joined(&[0.0], 4), "0");
        assert_eq!(joined(&[263.2139], 5), "263.21");
        assert_eq!(joined(&[7_977_922.3], 5), "7977922");
    }

    #[test]
    fn plain_numbers() {
        for (x, text) in [
            (800_000.0, "800000"),
            (452.0, "452"),
            (3.699_973, "3.699973"),
            (0.0005, "0.0005"),
            (-1e-300, "0"),
            (0.0, "0"),
            (1_234_567.89, "1234568"),
        ] {
            assert_eq!(plain(x, 7), text);
        }
    }

    #[test]
    fn p_values() {
        assert_eq!(p_value(0.079_394_14), "= 0.07939");
        assert_eq!(p_value(0.001_373_638), "= 0.001374");
        assert_eq!(p_value(4.397_525e-14), "= 4.398e-14");
        assert_eq!(p_value(1.0), "= 1");
        assert_eq!(p_value(0.0), "< 2.2e-16");
    }

    /// Beside 12 seconds in microseconds tenths are noise: with them R would change to powers of ten.
    #[test]
    fn large_values_stay_readable() {
        let text = summary(&[1.0, 452.0, 500.0, 542.4, 567.0, 12_345_678.0]);
        assert_eq!(text.lines().nth(1), Some("       1      452      500      542      567 12345678"));
    }
}
