//! The nearest known word to a mistyped one, for hints. Never decides anything: an unknown word stays an error.

/// Longer words are not compared: nothing in the table is near this long, and the comparison is quadratic.
const WORD_CHARS_MAX: usize = 48;

/// The candidate most like `word`, case ignored: one that begins with it, or the one with the fewest typing slips if those
/// are at most a third of the word. The shorter one wins a tie, then the first.
pub(crate) fn nearest(word: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let word: Vec<char> = word.to_lowercase().chars().collect();
    if word.is_empty() || word.len() > WORD_CHARS_MAX {
        return None;
    }
    let slips_max = (word.len() / 3).max(1);
    let mut best: Option<((usize, usize), &'static str)> = None;
    for candidate in candidates {
        let lower: Vec<char> = candidate.to_lowercase().chars().collect();
        let slips = if word.len() >= 3 && lower.starts_with(&word) { 1 } else { slips_between(&word, &lower) };
        let rank = (slips, lower.len());
        if slips <= slips_max && best.is_none_or(|(lowest, _)| rank < lowest) {
            best = Some((rank, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `from` into `to`.
fn slips_between(from: &[char], to: &[char]) -> usize {
    let width = to.len() + 1;
    let mut rows: Vec<Vec<usize>> = vec![(0..width).collect()];
    for (row, &left) in from.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, &right) in to.iter().enumerate() {
            let mut slips = (rows[row][column] + usize::from(left != right))
                .min(rows[row][column + 1] + 1)
                .min(current[column] + 1);
            if row > 0 && column > 0 && left == to[column - 1] && from[row - 1] == right {
                slips = slips.min(rows[row - 1][column - 1] + 1);
            }
            current.push(slips);
        }
        rows.push(current);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(word: &str) -> Option<&'static str> {
        nearest(word, ["GRIDDISK", "CELLDISK", "CELL", "FLASHCACHE"].into_iter())
    }

    #[test]
    fn slips_are_forgiven_and_strangers_are_not() {
        assert_eq!(of("gridisk"), Some("GRIDDISK"));
        assert_eq!(of("grdidisk"), Some("GRIDDISK"));
        assert_eq!(of("flash"), Some("FLASHCACHE"));
        assert_eq!(of("cel"), Some("CELL"));
        assert_eq!(of("tablespace"), None);
        assert_eq!(of(""), None);
        assert_eq!(of(&"x".repeat(100_000)), None);
    }
}
