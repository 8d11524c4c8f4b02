//! Sizes in bytes as the language writes them: `288G`, `364.75G`, `512M`. Suffixes K, M, G, T are powers of 1024.
//!
//! Never rounds: a size that is printed and read again is the same number of bytes.

/// Digits allowed after the point: 16 MB, the allocation unit, is an exact six-digit fraction of one G.
const FRACTION_DIGITS_MAX: usize = 10;

const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Reads `digits[.digits][K|M|G|T]`, either case. Without a suffix the number counts bytes. `None` when the text is not
/// of that form, does not come out as whole bytes, or exceeds `u64::MAX`.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, shift) = match text.chars().last() {
        Some(last) if last.is_ascii_alphabetic() => {
            let (_, shift) = SUFFIXES.iter().find(|(suffix, _)| suffix.eq_ignore_ascii_case(&last))?;
            (&text[..text.len() - 1], *shift)
        }
        _ => (text, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    let step = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let part = fraction << shift;
    if !part.is_multiple_of(step) {
        return None;
    }
    u64::try_from((u128::from(whole) << shift) + part / step).ok()
}

/// Prints `size_bytes` exactly, with the largest suffix that leaves at most six digits after the point; plain bytes when
/// none does.
#[must_use]
pub fn size_text(size_bytes: u64) -> String {
    for (suffix, shift) in SUFFIXES {
        if size_bytes >> shift != 0
            && let Some(text) = exact_text(size_bytes, suffix, shift, 6)
        {
            return text;
        }
    }
    size_bytes.to_string()
}

/// Prints `size_bytes` always with a suffix, so that it reads back as a size and not as a plain number.
pub(crate) fn suffixed_size_text(size_bytes: u64) -> String {
    let text = size_text(size_bytes);
    if text.ends_with(|last: char| last.is_ascii_alphabetic()) {
        return text;
    }
    // One byte is 2^-10 K, which is exact in ten digits.
    exact_text(size_bytes, 'K', 10, FRACTION_DIGITS_MAX).unwrap_or(text)
}

fn exact_text(size_bytes: u64, suffix: char, shift: u32, digits_max: usize) -> Option<String> {
    let whole = size_bytes >> shift;
    let mut rest = u128::from(size_bytes & ((1 << shift) - 1));
    if rest == 0 {
        return Some(format!("{whole}{suffix}"));
    }
    let mut digits = String::new();
    while rest != 0 {
        if digits.len() == digits_max {
            return None;
        }
        rest *= 10;
        digits.push(char::from(b'0' + u8::try_from(rest >> shift).ok()?));
        rest &= (1 << shift) - 1;
    }
    Some(format!("{whole}.{digits}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_field_writes() {
        assert_eq!(parse_size("288g"), Some(288 << 30));
        assert_eq!(parse_size("364.75G"), Some((364 << 30) + (768 << 20)));
        assert_eq!(parse_size("0M"), Some(0));
        assert_eq!(parse_size("4096"), Some(4096));
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in ["", "G", "1.G", ".5G", "1GB", "-1G", "0.3K", "20000000T", "1.00000000001T", "99999999999999999999"]
        {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn prints_exactly() {
        assert_eq!(size_text(0), "0");
        assert_eq!(size_text(512 << 20), "512M");
        assert_eq!(size_text((364 << 30) + (768 << 20)), "364.75G");
        assert_eq!(size_text(58_643 * (32 << 20)), "1832.59375G");
        assert_eq!(size_text((1 << 40) + 1), "1099511627777");
        assert_eq!(suffixed_size_text(1000), "0.9765625K");
        assert_eq!(suffixed_size_text(0), "0K");
    }

    #[test]
    fn printed_sizes_read_back() {
        let mut size_bytes: u64 = 1;
        for step in 0_u64..2000 {
            size_bytes = size_bytes.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
            let size_bytes = size_bytes >> (step % 64);
            assert_eq!(parse_size(&size_text(size_bytes)), Some(size_bytes));
            assert_eq!(parse_size(&suffixed_size_text(size_bytes)), Some(size_bytes));
        }
    }
}
