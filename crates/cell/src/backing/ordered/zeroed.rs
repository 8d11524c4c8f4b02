//! Which bytes of a grid disk in flush order read as zeroes because a client has zeroed them. Zeroes are written on flash there like
//! everything else, and reach the disk as data, so that neither could tell.
//!
//! In RAM alone, for block status: what is not known here counts as data. Never calls zero what a change may have touched that has begun
//! since.

use device::sync::lock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stretches remembered of one grid disk: a few hundred KiB at most. Those beyond it count as data.
const STRETCHES_MAX: usize = 4096;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Zeroed {
    /// Begin and end, in bytes; they neither overlap nor touch.
    stretches: Mutex<BTreeMap<u64, u64>>,
    /// There are some: a change where nothing was ever zeroed takes no lock. Set and read by who holds the range in question alone.
    any: AtomicBool,
}

impl Zeroed {
    /// A change of these bytes begins. Its range is held alone.
    pub(crate) fn begins(&self, bytes: &Range<u64>) {
        if self.any.load(Ordering::Acquire) {
            remove(&mut lock(&self.stretches), bytes);
        }
    }

    /// These bytes have been zeroed. Their range is held alone, since before it was done.
    pub(crate) fn done(&self, bytes: Range<u64>) {
        let mut stretches = lock(&self.stretches);
        remove(&mut stretches, &bytes);
        let (mut start, mut end) = (bytes.start, bytes.end);
        if let Some((&before, &to)) = stretches.range(..start).next_back()
            && to == start
        {
            stretches.remove(&before);
            start = before;
        }
        if let Some(to) = stretches.remove(&end) {
            end = to;
        }
        if start < end && stretches.len() < STRETCHES_MAX {
            stretches.insert(start, end);
        }
        self.any.store(true, Ordering::Release);
    }

    /// The content is another from here on.
    pub(crate) fn forget(&self) {
        lock(&self.stretches).clear();
    }

    /// Cut a range by what is known to be zero: `each` gets length and whether, until it is false; whether it never was.
    pub(crate) fn cut(&self, bytes: Range<u64>, each: &mut dyn FnMut(u64, bool) -> bool) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let stretches = lock(&self.stretches);
        let mut at = bytes.start;
        let before = stretches.range(..=at).next_back();
        let touching = before.into_iter().chain(stretches.range(at + 1..bytes.end));
        for (&start, &end) in touching.filter(|(_, end)| **end > bytes.start) {
            let (start, end) = (start.max(at), end.min(bytes.end));
            if at < start && !each(start - at, false) || start < end && !each(end - start, true) {
                return false;
            }
            at = end;
        }
        at >= bytes.end || each(bytes.end - at, false)
    }
}

fn remove(stretches: &mut BTreeMap<u64, u64>, bytes: &Range<u64>) {
    if bytes.is_empty() {
        return;
    }
    let before = stretches.range(..bytes.start).next_back().map(|(&start, &end)| (start, end));
    let within = stretches.range(bytes.start..bytes.end).map(|(&start, &end)| (start, end));
    let touched: Vec<(u64, u64)> = before.into_iter().chain(within).filter(|(_, end)| *end > bytes.start).collect();
    for (start, end) in touched {
        stretches.remove(&start);
        if start < bytes.start {
            stretches.insert(start, bytes.start);
        }
        if end > bytes.end && stretches.len() < STRETCHES_MAX {
            stretches.insert(bytes.end, end);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is called zero was zeroed, and not changed since. Method: random ranges against one flag for each byte.
    use super::*;
    use device::Prng;

    fn cut(zeroed: &Zeroed, bytes: Range<u64>) -> Vec<bool> {
        let mut told = Vec::new();
        assert!(zeroed.cut(bytes, &mut |len, zero| {
            assert!(len > 0);
            told.extend((0..len).map(|_| zero));
            true
        }));
        told
    }

    #[test]
    fn as_one_flag_for_each_byte() {
        const BYTES: u64 = 200;
        let mut prng = Prng::new(1);
        let (zeroed, mut flags) = (Zeroed::default(), vec![false; BYTES as usize]);
        for round in 0..20_000 {
            let start = prng.below(BYTES);
            let bytes = start..prng.between(start, BYTES.min(start + 40));
            let zero = prng.chance(1, 2);
            if zero {
                zeroed.done(bytes.clone());
            } else {
                zeroed.begins(&bytes);
            }
            flags[bytes.start as usize..bytes.end as usize].fill(zero);
            assert_eq!(cut(&zeroed, 0..BYTES), flags, "round {round}");
            let part = prng.below(BYTES / 2)..prng.between(BYTES / 2, BYTES);
            assert_eq!(cut(&zeroed, part.clone()), flags[part.start as usize..part.end as usize]);
            let all: Vec<_> = lock(&zeroed.stretches).clone().into_iter().collect();
            assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0), "neighbours are one: {all:?}");
        }
        zeroed.forget();
        assert!(cut(&zeroed, 0..BYTES).iter().all(|zero| !zero));
    }

    #[test]
    fn no_more_than_so_many_are_kept_and_the_others_are_data() {
        let zeroed = Zeroed::default();
        for n in 0..STRETCHES_MAX as u64 + 10 {
            zeroed.done(n * 10..n * 10 + 4);
        }
        assert_eq!(lock(&zeroed.stretches).len(), STRETCHES_MAX);
        // Cut in two while there is no place for one more: the second half is data.
        zeroed.begins(&(1..2));
        assert_eq!(lock(&zeroed.stretches).len(), STRETCHES_MAX);
        assert_eq!(cut(&zeroed, 0..4), [true, false, false, false]);
    }
}
