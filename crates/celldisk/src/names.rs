//! What cells, cell disks and grid disks may be called.
//!
//! Names become NBD export names, file names and words of the command language, so the set is small. Names that differ
//! only in case count as the same, because the language does not tell them apart.

/// Whether `name` may be given, with at most `bytes_max` bytes.
pub(crate) fn check_name(name: &str, bytes_max: usize) -> Result<(), &'static str> {
    let Some(first) = name.bytes().next() else { return Err("is empty") };
    if name.len() > bytes_max {
        return Err("is too long");
    }
    if !first.is_ascii_alphanumeric() && first != b'_' {
        return Err("must start with a letter, a digit or _");
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.$#".contains(&b)) {
        return Err("may hold letters, digits and _ - . $ # only");
    }
    Ok(())
}

/// The form in which names are compared.
pub(crate) fn folded(name: &str) -> String {
    name.to_ascii_lowercase()
}

/// Whether `text` may be stored: no control characters, so that one line stays one line wherever it is printed.
pub(crate) fn check_text(text: &str, bytes_max: usize) -> bool {
    text.len() <= bytes_max && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["DATA_CD_00_c1", "a", "_x", "0", "SYS$AUX#1", "a-b.c"] {
            assert_eq!(check_name(good, 30), Ok(()), "{good}");
        }
        for bad in ["", "-a", "a b", "a@b", "ä", "a/b", ".."] {
            assert!(check_name(bad, 30).is_err(), "{bad}");
        }
        assert!(check_name(&"x".repeat(30), 30).is_ok() && check_name(&"x".repeat(31), 30).is_err());
    }

    #[test]
    fn texts_are_one_line() {
        assert!(check_text("für Müller, 10%", 128) && check_text("", 128));
        assert!(!check_text("a\nb", 128) && !check_text("\u{1b}[2J", 128) && !check_text("abcd", 3));
    }
}
