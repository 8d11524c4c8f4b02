//! A failing list of operations made short: delta debugging (Zeller and Hildebrandt, 2002), then each operation
//! made simpler.
//!
//! The caller's `fails` runs the list in a fresh world and says whether it still fails in the way that matters.

/// What shrinking came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk<T> {
    /// The shortest list found that still fails.
    pub items: Vec<T>,
    /// How many lists were tried.
    pub runs: usize,
    /// No single item can be left out (false when `runs_max` was reached before that was known).
    pub minimal: bool,
}

/// Leave out as much of `items` as possible while `fails` stays true, in at most `runs_max` runs. `items` is taken to
/// fail. The order is kept.
pub fn shrink<T: Clone>(items: Vec<T>, runs_max: usize, mut fails: impl FnMut(&[T]) -> bool) -> Shrunk<T> {
    let mut items = items;
    let mut runs = 0;
    let mut parts = 2_usize;
    while !items.is_empty() {
        let part = items.len().div_ceil(parts);
        let mut shorter = None;
        let mut start = 0;
        while start < items.len() {
            if runs == runs_max {
                return Shrunk { items, runs, minimal: false };
            }
            let without: Vec<T> =
                items[..start].iter().chain(&items[(start + part).min(items.len())..]).cloned().collect();
            runs += 1;
            if fails(&without) {
                shorter = Some(without);
                break;
            }
            start += part;
        }
        match shorter {
            Some(without) => {
                items = without;
                parts = parts.saturating_sub(1).max(2);
            }
            None if part == 1 => return Shrunk { items, runs, minimal: true },
            None => parts = (parts * 2).min(items.len()),
        }
    }
    Shrunk { items, runs, minimal: true }
}

/// Replace single items by simpler ones while `fails` stays true, in at most `runs_max` runs. `simpler` gives the
/// candidates for one item, simplest first; it must not go round in circles.
pub fn simplify<T: Clone>(
    items: Vec<T>,
    runs_max: usize,
    simpler: impl Fn(&T) -> Vec<T>,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Shrunk<T> {
    let mut items = items;
    let mut runs = 0;
    let mut at = 0;
    while at < items.len() {
        let mut replaced = false;
        for candidate in simpler(&items[at]) {
            if runs == runs_max {
                return Shrunk { items, runs, minimal: false };
            }
            let mut with = items.clone();
            with[at] = candidate;
            runs += 1;
            if fails(&with) {
                items = with;
                replaced = true;
                break;
            }
        }
        // A simpler item may have simpler ones of its own.
        at += usize::from(!replaced);
    }
    Shrunk { items, runs, minimal: true }
}

#[cfg(test)]
mod tests {
    use super::{shrink, simplify};

    #[test]
    fn finds_the_three_items_that_matter_in_two_thousand() {
        let items: Vec<u32> = (0..2000).collect();
        let wanted = [17, 1024, 1999];
        let shrunk = shrink(items, 1000, |list| wanted.iter().all(|w| list.contains(w)));
        assert_eq!(shrunk.items, wanted);
        assert!(shrunk.minimal && shrunk.runs < 200, "{} runs", shrunk.runs);
    }

    #[test]
    fn stops_when_its_runs_are_used_up_with_a_list_that_fails() {
        let shrunk = shrink((0..100).collect(), 5, |list| list.contains(&99));
        assert!(!shrunk.minimal && shrunk.runs == 5 && shrunk.items.contains(&99));
    }

    #[test]
    fn a_failure_that_needs_nothing_shrinks_to_nothing() {
        let shrunk = shrink(vec![1, 2, 3], 100, |_| true);
        assert!(shrunk.minimal && shrunk.items.is_empty());
    }

    #[test]
    fn items_are_made_simpler_until_they_no_longer_fail() {
        let halves = |n: &u32| if *n > 0 { vec![n / 2, n - 1] } else { Vec::new() };
        let shrunk = simplify(vec![90, 64, 7], 1000, halves, |list| list.iter().sum::<u32>() >= 30);
        assert_eq!(shrunk.items.iter().sum::<u32>(), 30);
        assert!(shrunk.minimal);
    }
}
