//! OVER: the values of one metric of one object in so many minutes.
//!
//! Windows begin at whole multiples of their length since the epoch, so that two lists have the same ones.

use cellcli::command::Aggregate;
use cellcli::{Decimal, Measure};
use std::num::NonZeroU64;

/// Values so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The time of the last value, nanoseconds since the epoch.
    pub(super) last_ns: u64,
    /// The last value.
    pub(super) last: Measure,
    /// Billionths of the unit.
    sum: i128,
    count: NonZeroU64,
    highest: Measure,
    lowest: Measure,
}

impl Window {
    /// One value.
    pub(super) fn of(at_ns: u64, value: Measure) -> Window {
        let sum = value.number.at_full_scale();
        Window { last_ns: at_ns, last: value, sum, count: NonZeroU64::MIN, highest: value, lowest: value }
    }

    /// Take a value into the window that is open; the one that is over, if this value is not of it.
    pub(super) fn take(open: &mut Option<Window>, window_ns: u64, at_ns: u64, value: Measure) -> Option<Window> {
        match open {
            Some(window) if window.last_ns / window_ns == at_ns / window_ns => {
                window.add(at_ns, value);
                None
            }
            _ => open.replace(Window::of(at_ns, value)),
        }
    }

    fn add(&mut self, at_ns: u64, value: Measure) {
        let number = value.number.at_full_scale();
        self.sum = self.sum.saturating_add(number);
        self.count = self.count.saturating_add(1);
        if number > self.highest.number.at_full_scale() {
            self.highest = value;
        }
        if number < self.lowest.number.at_full_scale() {
            self.lowest = value;
        }
        (self.last_ns, self.last) = (at_ns, value);
    }

    /// What is made of the values, in the order of [`Aggregate::ALL`] and in their unit.
    pub(super) fn aggregates(&self) -> [Decimal; 3] {
        Aggregate::ALL.map(|aggregate| match aggregate {
            Aggregate::Average => Decimal::mean_of(self.sum, self.count),
            Aggregate::Maximum => self.highest.number,
            Aggregate::Minimum => self.lowest.number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cellcli::Unit;

    const MINUTE_NS: u64 = 60_000_000_000;

    fn shown(over: &Window) -> Vec<String> {
        over.aggregates().map(|number| Measure { number, ..over.last }.to_string()).to_vec()
    }

    #[test]
    fn windows_are_of_whole_multiples() {
        let value = |n: i64| Measure::new(Decimal::from_integer(n), Unit::Percent);
        let (mut open, mut over) = (None, Vec::new());
        for (minute, n) in [(9, 1), (10, 30), (13, 10), (14, 21), (15, 7), (31, 8)] {
            over.extend(Window::take(&mut open, 5 * MINUTE_NS, minute * MINUTE_NS, value(n)));
        }
        over.extend(open);
        let times: Vec<(u64, u64)> = over.iter().map(|it| (it.last_ns / MINUTE_NS, it.count.get())).collect();
        assert_eq!(times, [(9, 1), (14, 3), (15, 1), (31, 1)]);
        assert_eq!(shown(&over[1]), ["20.3 %", "30.0 %", "10.0 %"]);
        assert_eq!(over[1].last, value(21));
    }
}
