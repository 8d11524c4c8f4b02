//! Readings of the metrics a period apart, for rates.
//!
//! Keeps two: rates are over at least one whole period, so that two looks in quick succession do not divide by nothing.

use cell::metrics::Sample;
use device::Instant;
use device::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

pub(super) use crate::config::HISTORY_DAYS_MAX;

/// The attribute of the catalog that says how long the history is kept.
pub(super) const HISTORY_DAYS: &str = "metricHistoryDays";
/// The attribute of the catalog that says, with FALSE, that none is written.
pub(super) const METRIC_COLLECTION: &str = "metricCollection";
/// The vendor's period of rates.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);
/// Readings kept: the last one may be too young.
const READINGS_MAX: usize = 2;

/// Readings, oldest first.
#[derive(Default)]
pub(crate) struct History(Mutex<VecDeque<(Instant, Vec<Sample>)>>);

impl History {
    /// Keep a reading.
    pub(crate) fn push(&self, at: Instant, samples: Vec<Sample>) {
        let mut readings = lock(&self.0);
        while readings.len() >= READINGS_MAX {
            readings.pop_front();
        }
        readings.push_back((at, samples));
    }

    /// Those there are, oldest first.
    pub(crate) fn readings(&self) -> Vec<(Instant, Vec<Sample>)> {
        lock(&self.0).iter().cloned().collect()
    }

    /// The oldest reading: what rates are counted from.
    pub(crate) fn base(&self) -> Option<(Instant, Vec<Sample>)> {
        lock(&self.0).front().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_is_at_least_a_period_old_once_there_was_one() {
        let history = History::default();
        assert!(history.base().is_none());
        for at in 0..4 {
            history.push(Instant(at), Vec::new());
        }
        assert_eq!(history.base().map(|(at, _)| at), Some(Instant(2)));
    }
}
