//! Situations: named counters of the rare things a run has been through, so that a simulation that never reaches
//! them is told apart from one that survives them.
//!
//! Never part of a decision.

use device::sync::lock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

/// A registry of situations; clones share it.
#[derive(Clone, Default)]
pub struct Situations(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Situations {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Situations {
        Situations::default()
    }

    /// Situations that must be reached: they have a row in the table from the start, with a zero in it.
    pub fn expect(&self, names: &[&'static str]) {
        let mut rows = lock(&self.0);
        for name in names {
            rows.entry(name).or_insert(0);
        }
    }

    /// `name` was reached once more.
    pub fn hit(&self, name: &'static str) {
        self.hit_times(name, 1);
    }

    /// `name` was reached `times` more times; no times make no row.
    pub fn hit_times(&self, name: &'static str, times: u64) {
        if times == 0 {
            return;
        }
        *lock(&self.0).entry(name).or_insert(0) += times;
    }

    /// How often `name` was reached.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        lock(&self.0).get(name).copied().unwrap_or(0)
    }

    /// Every row in the order of the names.
    #[must_use]
    pub fn rows(&self) -> Vec<(&'static str, u64)> {
        lock(&self.0).iter().map(|(&name, &count)| (name, count)).collect()
    }

    /// Add another registry's counts: one seed's to all seeds'.
    pub fn merge(&self, other: &Situations) {
        if Arc::ptr_eq(&self.0, &other.0) {
            return;
        }
        for (name, count) in other.rows() {
            self.hit_times(name, count);
        }
    }

    /// The rows never reached: a run over many seeds fails when there is one.
    #[must_use]
    pub fn zero_rows(&self) -> Vec<&'static str> {
        self.rows().into_iter().filter(|&(_, count)| count == 0).map(|(name, _)| name).collect()
    }

    /// The table, one row a line, a zero marked.
    #[must_use]
    pub fn table(&self) -> String {
        let rows = self.rows();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, count) in rows {
            let mark = if count == 0 { "  NEVER REACHED" } else { "" };
            let _ = writeln!(out, "{name:<width$}  {count:>10}{mark}");
        }
        out
    }
}

impl std::fmt::Debug for Situations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.table())
    }
}

#[cfg(test)]
mod tests {
    use super::Situations;

    #[test]
    fn a_row_that_was_expected_and_never_reached_is_told() {
        let all = Situations::new();
        all.expect(&["cut during reclaim", "torn write"]);
        let one = Situations::new();
        one.hit("torn write");
        one.hit("torn write");
        one.hit("unforeseen");
        one.hit_times("never mentioned", 0);
        all.merge(&one);
        all.merge(&all.clone());
        assert_eq!(all.count("torn write"), 2);
        assert_eq!(all.zero_rows(), ["cut during reclaim"]);
        let expected = "cut during reclaim           0  NEVER REACHED\n\
                        torn write                   2\n\
                        unforeseen                   1\n";
        assert_eq!(all.table(), expected);
    }
}
