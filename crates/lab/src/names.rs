//! Fields of the text files that a cell records to: names without a comma, numbers, the version on the first line.
//!
//! Never accepts what it would not write.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// A name, each byte that no grid disk or database may have (celldisk's names) as `%` and two hex digits.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    name.bytes().try_for_each(|byte| {
        if byte.is_ascii_alphanumeric() || b"_-.$#".contains(&byte) {
            f.write_char(char::from(byte))
        } else {
            write!(f, "%{byte:02X}")
        }
    })
}

/// A name that [`write`] has written.
///
/// # Errors
/// It is not one.
pub(crate) fn parse(field: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    const WRONG: &str = "not a name";
    let text = std::str::from_utf8(field).map_err(|_| WRONG)?;
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = field.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(*b).to_digit(16)).ok_or(WRONG);
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| WRONG)
}

/// A whole number in decimal digits.
///
/// # Errors
/// It is not one, or beyond 64 bits.
pub(crate) fn number(field: &[u8]) -> Result<u64, &'static str> {
    let digits = field.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(field).ok().filter(|_| digits).and_then(|text| text.parse().ok()).ok_or("not a number")
}

/// The number that follows `magic` on the first line; none where the file begins with something else.
pub(crate) fn version(head: &[u8], magic: &str) -> Option<u32> {
    let first = head.split(|b| *b == b'\n').next()?.trim_ascii();
    std::str::from_utf8(first.strip_prefix(magic.as_bytes())?).ok()?.parse().ok()
}
