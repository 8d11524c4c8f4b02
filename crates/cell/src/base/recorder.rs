//! What a cell's requests do, kept for who asks: `flashcell redo record` and `flashcell trace record`.
//!
//! Kept only while somebody asks, in bounded memory: who asks too seldom is told how many were missed. Never delays a request.

use device::sync::lock;
use device::{Clock, Instant};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Kept for who asks: a quarter of a second at 260,000 a second, of some hundred bytes each.
pub const RECORDED_MAX: usize = 1 << 16;
/// Given up, and handed out, together: whoever asks holds requests up for as long as it takes to name a few bundles.
const BUNDLE: usize = 1 << 12;
/// A request that has not ended holds back those behind it for so long; then the recorder hands it out as it is.
const HELD_BACK: Duration = Duration::from_secs(1);
/// And no longer than until so many wait behind it: none is given up for the sake of another's end.
const HELD_BACK_MAX: u64 = RECORDED_MAX as u64 / 8;
/// Nobody has asked for so long: nothing is kept any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);

/// What has been recorded since somebody asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded<T> {
    /// Ask with this the next time.
    pub next: u64,
    /// So many went unseen before the first of these.
    pub missed: u64,
    /// In the order they came.
    pub items: Vec<T>,
}

/// A record of a request that may still be under way.
pub(crate) trait Kept: Clone {
    /// Since when it is under way; none once all is known of it that will be.
    fn under_way_since(&self) -> Option<Instant>;
}

struct State<T> {
    /// Number of the first that is kept.
    first: u64,
    /// Full, or handed out.
    bundles: VecDeque<Arc<Vec<T>>>,
    /// How many are in those.
    bundled: usize,
    /// The newest.
    open: Vec<T>,
    asked: Instant,
}

impl<T> State<T> {
    /// Number of the next that comes.
    fn next(&self) -> u64 {
        self.first + (self.bundled + self.open.len()) as u64
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.bundled += self.open.len();
            self.bundles.push_back(Arc::new(std::mem::take(&mut self.open)));
        }
    }

    fn give_up_oldest(&mut self) {
        if let Some(oldest) = self.bundles.pop_front() {
            self.bundled -= oldest.len();
            self.first += oldest.len() as u64;
        }
    }
}

/// See the module.
pub(crate) struct Recorder<T> {
    on: AtomicBool,
    state: Mutex<State<T>>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl<T: Kept> Recorder<T> {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Recorder<T> {
        let (bundles, asked) = (VecDeque::new(), Instant::default());
        let state = Mutex::new(State { first: 0, bundles, bundled: 0, open: Vec::new(), asked });
        Recorder { on: AtomicBool::new(false), state, clock }
    }

    /// Somebody asks.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Records since `after`, which an earlier answer gave; none: begin with what comes from now on. The answer ends before the first request
    /// that is still under way, unless this is the `last` question or that request has been waited for long enough.
    pub(crate) fn since(&self, after: Option<u64>, last: bool) -> Recorded<T> {
        let now = self.clock.now();
        let (first, next, bundles) = {
            let mut state = lock(&self.state);
            state.asked = now;
            self.on.store(true, Ordering::Release);
            state.close();
            // A number of another life of the cell says nothing here.
            let Some(after) = after.filter(|after| *after <= state.next()) else {
                return Recorded { next: state.next(), missed: 0, items: Vec::new() };
            };
            // Newest first: as many as hold what is asked for.
            let (mut bundles, mut first) = (Vec::new(), state.next());
            for bundle in state.bundles.iter().rev() {
                if first <= after {
                    break;
                }
                first -= bundle.len() as u64;
                bundles.push(bundle.clone());
            }
            (first, state.next(), bundles)
        };
        let after = after.unwrap_or(next);
        let all = bundles.iter().rev().flat_map(|bundle| bundle.iter());
        let begin = after.max(first);
        let ends = |(number, item): &(u64, &T)| {
            let waited = item.under_way_since().map(|begun| now.ns_since(begun));
            last || next - number > HELD_BACK_MAX || waited.is_none_or(|ns| ns > HELD_BACK.as_nanos() as u64)
        };
        let items = (begin..).zip(all.skip((begin - first) as usize)).take_while(ends);
        let items: Vec<T> = items.map(|(_, item)| item.clone()).collect();
        Recorded { next: begin + items.len() as u64, missed: begin - after, items }
    }

    pub(crate) fn keep(&self, item: T) {
        let mut state = lock(&self.state);
        if self.clock.now().ns_since(state.asked) > FORGOTTEN_AFTER.as_nanos() as u64 {
            self.on.store(false, Ordering::Release);
            state.close();
            while !state.bundles.is_empty() {
                state.give_up_oldest();
            }
            return;
        }
        state.open.push(item);
        if state.open.len() == BUNDLE {
            state.close();
        }
        while state.bundled + state.open.len() > RECORDED_MAX {
            state.give_up_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{Prng, WallTime};

    impl Kept for u64 {
        fn under_way_since(&self) -> Option<Instant> {
            None
        }
    }

    #[derive(Default)]
    struct Hands(std::sync::atomic::AtomicU64);

    impl Clock for Hands {
        fn now(&self) -> Instant {
            Instant(self.0.load(Ordering::Relaxed))
        }
        fn wall(&self) -> WallTime {
            WallTime(self.now().0)
        }
        fn sleep_until(&self, _: Instant) -> device::Timer {
            unreachable!("nobody sleeps here")
        }
    }

    #[test]
    fn each_asker_gets_what_came_since_and_hears_of_what_went_unseen() {
        let clock = Arc::new(Hands::default());
        let record = Recorder::new(clock.clone());
        let first = record.since(None, false);
        assert_eq!(first, Recorded { next: 0, missed: 0, items: Vec::new() });
        record.keep(1);
        record.keep(2);
        let got = record.since(Some(first.next), false);
        assert_eq!((got.next, got.missed, got.items.len()), (2, 0, 2));
        assert_eq!(record.since(Some(2), false).items, []);
        let mut prng = Prng::new(1);
        let many = RECORDED_MAX as u64 + 1 + prng.below(100);
        (0..many).for_each(|n| record.keep(n));
        let got = record.since(Some(2), false);
        assert_eq!((got.next, got.missed + got.items.len() as u64), (2 + many, many));
        assert!(got.items.len() <= RECORDED_MAX && got.items.len() > RECORDED_MAX - BUNDLE, "{}", got.items.len());
        assert!(got.items.iter().copied().eq(got.missed..many), "all that are left, in their order");
        assert_eq!(record.since(Some(2 + many - 5), false).items, (many - 5..many).collect::<Vec<u64>>());
        assert_eq!(record.since(Some(u64::MAX), false).items, [], "of another life");
    }

    /// Number, when it began, and whether it is under way.
    #[derive(Clone, Debug)]
    struct Slow(u64, Instant, Arc<AtomicBool>);

    impl Kept for Slow {
        fn under_way_since(&self) -> Option<Instant> {
            self.2.load(Ordering::Relaxed).then_some(self.1)
        }
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_under_way_is_waited_for_and_not_for_ever() {
        let clock = Arc::new(Hands::default());
        let record = Recorder::new(clock.clone());
        let begin = |number, is_under_way| {
            let slow = Slow(number, clock.now(), Arc::new(AtomicBool::new(is_under_way)));
            record.keep(slow.clone());
            slow.2
        };
        let since = |after, last| {
            let got = record.since(Some(after), last);
            assert_eq!(got.missed, 0);
            (got.next, got.items.iter().map(|item| item.0).collect::<Vec<u64>>())
        };
        record.since(None, false);
        begin(0, false);
        let held = begin(1, true);
        begin(2, false);
        assert_eq!(since(0, false), (1, vec![0]), "up to the one that is under way");
        assert_eq!(since(1, false), (1, vec![]));
        assert_eq!(since(1, true), (3, vec![1, 2]), "the last question gets all there is");
        held.store(false, Ordering::Relaxed);
        assert_eq!(since(1, false), (3, vec![1, 2]), "in the order they began");
        begin(3, true);
        clock.0.fetch_add(500 * MS, Ordering::Relaxed);
        begin(4, true);
        clock.0.fetch_add(500 * MS, Ordering::Relaxed);
        assert_eq!(since(3, false), (3, vec![]));
        clock.0.fetch_add(1, Ordering::Relaxed);
        assert_eq!(since(3, false), (4, vec![3]), "one that never ends is handed out, the next is waited for");
    }

    #[test]
    fn none_is_lost_because_another_does_not_end() {
        let clock = Arc::new(Hands::default());
        let record = Recorder::new(clock.clone());
        record.since(None, false);
        let begin = |number| record.keep(Slow(number, clock.now(), Arc::new(AtomicBool::new(number == 0))));
        (0..HELD_BACK_MAX).for_each(begin);
        assert_eq!(record.since(Some(0), false).next, 0, "waited for");
        begin(HELD_BACK_MAX);
        let got = record.since(Some(0), false);
        assert_eq!((got.next, got.missed), (HELD_BACK_MAX + 1, 0), "and no longer");
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let clock = Arc::new(Hands::default());
        let record = Recorder::new(clock.clone());
        record.since(None, false);
        record.keep(1);
        clock.0.store(FORGOTTEN_AFTER.as_nanos() as u64 + 1, Ordering::Relaxed);
        record.keep(2);
        assert!(!record.on.load(Ordering::Relaxed));
        let got = record.since(Some(0), false);
        assert_eq!((got.next, got.missed, got.items.len()), (1, 1, 0), "what was kept is gone, and said so");
    }
}
