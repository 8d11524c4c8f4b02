//! A figure as it was an hour ago.

use std::collections::VecDeque;

/// One reading a minute, of the last hour.
const READINGS_MAX: usize = 60;
const MINUTE_NS: u64 = 60 * 1_000_000_000;

/// What the outliers were in the last hour, minute by minute: prevented, and not. As old as somebody has asked: metrics are read every
/// minute.
#[derive(Debug, Default)]
pub(crate) struct LastHour(VecDeque<(u64, (u64, u64))>);

impl LastHour {
    /// What was an hour before `now_ns`, when the figures are these by now.
    pub(crate) fn before(&mut self, now_ns: u64, figures: (u64, u64)) -> (u64, u64) {
        let long_ago = |at: u64| now_ns.saturating_sub(at) > READINGS_MAX as u64 * MINUTE_NS;
        while self.0.get(1).is_some_and(|(at, _)| long_ago(*at)) || self.0.len() > READINGS_MAX + 1 {
            self.0.pop_front();
        }
        let ago = self.0.front().map_or((0, 0), |(_, figures)| *figures);
        if self.0.back().is_none_or(|(at, _)| now_ns.saturating_sub(*at) >= MINUTE_NS) {
            self.0.push_back((now_ns, figures));
        }
        ago
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hour_forgets_what_was_before() {
        let mut hour = LastHour::default();
        assert_eq!(hour.before(0, (1, 1)), (0, 0), "the start");
        for minute in 1..=60 {
            assert_eq!(hour.before(minute * MINUTE_NS, (1, 1 + minute)), (1, 1));
            assert_eq!(hour.before(minute * MINUTE_NS + 1, (1, 1 + minute)), (1, 1), "one reading a minute");
        }
        assert_eq!(hour.before(90 * MINUTE_NS, (1, 91)), (1, 30));
        assert!(hour.0.len() <= READINGS_MAX + 1);
    }
}
