//! Who goes next on one device: start-time fair queueing with a bounded number of slots, and limits by token buckets.
//!
//! Each flow (a database, or all the rest) has a queue. Its first request carries a start tag: the virtual time at which it
//! came, or the end of what the flow was given last, whichever is later; an end is the start and the request's cost divided by
//! the flow's weight. The least start tag goes first, and is the virtual time from then on. So whoever waits gets its part of
//! what is given, in cost and not in requests; who did not wait has saved up nothing; and what nobody asks for goes to those who
//! ask (Goyal, Vin, Cheng, *Start-time Fair Queueing*, SIGCOMM 1996; with slots on a device that takes several at a time: Jin,
//! Chase, Kaur, *Interposed Proportional Sharing*, SIGMETRICS 2004). Nobody starves: a tag that waits only gets nearer.
//!
//! A limit is a bucket that fills at its rate and is emptied by what was given. Once empty it has to be full before more is
//! given, as a quota in a period: so a device that takes many at a time is used as such for a part of the time, instead of being
//! given one request after the other, each of which would seem to need it for as long as it takes.
//!
//! Never waits, never looks at a clock: time comes in. Integers only.

use device::Instant;
use std::collections::{BTreeMap, VecDeque};

/// Virtual time a request of cost 1 takes at weight 1.
const VIRTUAL_SCALE: u128 = 1 << 40;
/// The weight of one share; that of everything in a plan with levels is a thousand times this.
pub(crate) const SHARE_WEIGHT: u64 = 1_000;
const WHOLE_WEIGHT: u64 = 1_000_000;
/// Of what a level leaves, somebody on a lower one gets at least this: a thousandth, so that nobody starves.
const LEAST_WEIGHT: u64 = 1_000;
/// Time a limit is kept over: its bucket holds its part of this. Short enough that a limited database does not feel pauses longer
/// than a slow disk makes; long enough for some requests.
pub(crate) const LIMIT_PERIOD_NS: u64 = 50_000_000;
/// Tokens are kept in hundredths of a nanosecond: a limit is per cent.
const PER_CENT: i64 = 100;

/// What a flow is entitled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// In units of [`SHARE_WEIGHT`] to a share.
    Share(u64),
    /// Per cent of what higher levels leave.
    Level { level: u32, allocation: u32 },
}

/// What counts for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) weight: Weight,
    /// Per cent of the device's time.
    pub(crate) limit: Option<u32>,
}

/// Who a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlowKey {
    /// A database with a claim of its own.
    Database(u32),
    /// All others together.
    Rest,
}

/// What a request takes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// In nanoseconds of a device as modelled, see [`crate::plan::meter`].
    pub(crate) cost: u64,
    /// Of the device's slots.
    pub(crate) slots: u32,
}

/// Device time that may be used, and is not used up.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_cent: i64,
    /// Hundredths of a nanosecond; below 0: used before it was there.
    tokens: i64,
    filled: Instant,
    /// Empty since, and not full yet.
    refilling: bool,
}

impl Bucket {
    /// An empty one: a plan that is stated again and again gives nothing away.
    fn new(per_cent: u32, now: Instant) -> Bucket {
        Bucket { per_cent: i64::from(per_cent), tokens: 0, filled: now, refilling: true }
    }

    fn full(&self) -> i64 {
        LIMIT_PERIOD_NS as i64 * self.per_cent
    }

    fn is_ready(&mut self, now: Instant) -> bool {
        let passed = i64::try_from(now.ns_since(self.filled)).unwrap_or(i64::MAX);
        self.filled = self.filled.max(now);
        self.tokens = self.tokens.saturating_add(passed.saturating_mul(self.per_cent)).min(self.full());
        self.refilling &= self.tokens < self.full();
        !self.refilling
    }

    fn ready_at(&self) -> Instant {
        let short = (self.full() - self.tokens).max(0) as u64;
        Instant(self.filled.0.saturating_add(short.div_ceil(self.per_cent as u64)))
    }

    /// `ns` may be negative: given back.
    fn take(&mut self, ns: i64) {
        self.tokens = self.tokens.saturating_sub(ns.saturating_mul(PER_CENT)).min(self.full());
        self.refilling |= self.tokens <= 0;
    }
}

#[derive(Debug)]
struct Flow<T> {
    terms: Terms,
    /// Of the first in the queue.
    start: u128,
    /// Of what was given last.
    finish: u128,
    queue: VecDeque<(Demand, T)>,
    in_flight: u32,
    bucket: Option<Bucket>,
}

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// Give the device this.
    Go { key: FlowKey, demand: Demand, what: T },
    /// Nobody: nobody waits, or may.
    Nothing,
    /// Somebody could, and the slots are taken.
    Full,
    /// Nothing before then: limits.
    NotBefore(Instant),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Fair<T> {
    flows: BTreeMap<FlowKey, Flow<T>>,
    virtual_now: u128,
    /// The latest end of all.
    last_finish: u128,
    waiting: usize,
    slots: u32,
    taken: u32,
}

impl<T> Fair<T> {
    pub(crate) fn new(slots: u32) -> Fair<T> {
        Fair { flows: BTreeMap::new(), virtual_now: 0, last_finish: 0, waiting: 0, slots, taken: 0 }
    }

    /// So many slots from now on.
    pub(crate) fn set_slots(&mut self, slots: u32) {
        self.slots = slots;
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    fn flow(&mut self, key: FlowKey, terms: Terms, now: Instant) -> &mut Flow<T> {
        if self.waiting == 0 && self.taken == 0 {
            // A busy period has ended: whoever comes now comes after all that was given.
            self.virtual_now = self.last_finish;
        }
        let (virtual_now, limit) = (self.virtual_now, terms.limit);
        self.flows.entry(key).or_insert_with(|| Flow {
            terms,
            start: virtual_now,
            finish: virtual_now,
            queue: VecDeque::new(),
            in_flight: 0,
            bucket: limit.map(|per_cent| Bucket::new(per_cent, now)),
        })
    }

    /// One that waits from now on.
    pub(crate) fn push(&mut self, key: FlowKey, terms: Terms, demand: Demand, what: T, now: Instant) {
        self.flow(key, terms, now);
        let virtual_now = self.virtual_now;
        if let Some(flow) = self.flows.get_mut(&key) {
            if flow.queue.is_empty() {
                flow.start = flow.finish.max(virtual_now);
            }
            flow.queue.push_back((demand, what));
            self.waiting += 1;
        }
    }

    /// One that does not wait, and takes no slot: its flow pays for it with what comes after.
    pub(crate) fn jump(&mut self, key: FlowKey, terms: Terms, cost: u64, cost_ns: u64, now: Instant) {
        self.flow(key, terms, now);
        let weight = self.weight_of(key);
        let virtual_now = self.virtual_now;
        if let Some(flow) = self.flows.get_mut(&key) {
            let longer = u128::from(cost) * VIRTUAL_SCALE / u128::from(weight);
            flow.finish = flow.finish.max(virtual_now) + longer;
            flow.start += longer;
            self.last_finish = self.last_finish.max(flow.finish);
            if let Some(bucket) = &mut flow.bucket {
                bucket.is_ready(now);
                bucket.take(cost_ns as i64);
            }
        }
    }

    /// The weight of a flow among those that want something now.
    fn weight_of(&self, key: FlowKey) -> u64 {
        let Some(flow) = self.flows.get(&key) else { return SHARE_WEIGHT };
        let (at, allocation) = match flow.terms.weight {
            Weight::Share(weight) => return weight.max(1),
            Weight::Level { level, allocation } => (level, allocation),
        };
        let mut left = WHOLE_WEIGHT;
        for level in 1..at {
            let wants = |flow: &&Flow<T>| !flow.queue.is_empty() || flow.in_flight > 0;
            let on_it = self.flows.values().filter(wants).filter_map(|flow| match flow.terms.weight {
                Weight::Level { level: one, allocation } if one == level => Some(u64::from(allocation)),
                _ => None,
            });
            left = left * 100_u64.saturating_sub(on_it.sum()) / 100;
        }
        (left * u64::from(allocation) / 100).max(LEAST_WEIGHT)
    }

    /// The next to go. `cost_ns` turns a cost into device time; until the device is `measured` a limited flow has one request under
    /// way at a time.
    pub(crate) fn next(&mut self, now: Instant, measured: bool, cost_ns: impl Fn(u64) -> u64) -> Next<T> {
        let mut first: Option<(u128, FlowKey, u32)> = None;
        let mut not_before: Option<Instant> = None;
        for (key, flow) in &mut self.flows {
            let Some((demand, _)) = flow.queue.front() else { continue };
            if let Some(bucket) = &mut flow.bucket {
                if !measured && flow.in_flight > 0 {
                    continue;
                }
                if !bucket.is_ready(now) {
                    let at = bucket.ready_at();
                    not_before = Some(not_before.map_or(at, |other| other.min(at)));
                    continue;
                }
            }
            if first.is_none_or(|(start, ..)| flow.start < start) {
                first = Some((flow.start, *key, demand.slots));
            }
        }
        let Some((start, key, slots)) = first else {
            // Of those that must wait for their limit's sake nobody waits for a slot.
            return not_before.map_or(Next::Nothing, Next::NotBefore);
        };
        // Nobody behind it goes instead: what needs several slots gets them.
        if self.taken > 0 && self.taken.saturating_add(slots) > self.slots {
            return Next::Full;
        }
        let weight = self.weight_of(key);
        let Some(flow) = self.flows.get_mut(&key) else { return Next::Nothing };
        let Some((demand, what)) = flow.queue.pop_front() else { return Next::Nothing };
        self.virtual_now = self.virtual_now.max(start);
        flow.finish = start + u128::from(demand.cost) * VIRTUAL_SCALE / u128::from(weight);
        flow.start = flow.finish;
        flow.in_flight += 1;
        self.last_finish = self.last_finish.max(flow.finish);
        if let Some(bucket) = &mut flow.bucket {
            bucket.take(cost_ns(demand.cost) as i64);
        }
        self.waiting -= 1;
        self.taken += demand.slots;
        Next::Go { key, demand, what }
    }

    /// One has ended; its device time was this much more (or less) than was taken for it.
    pub(crate) fn ended(&mut self, key: FlowKey, slots: u32, more_ns: i64) {
        self.taken = self.taken.saturating_sub(slots);
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.in_flight = flow.in_flight.saturating_sub(1);
            if let Some(bucket) = &mut flow.bucket {
                bucket.take(more_ns);
            }
        }
    }

    /// Everything that waits, in the order of flows, and nothing is known of any flow any more. What is under way keeps its slots.
    pub(crate) fn empty(&mut self) -> Vec<(Demand, T)> {
        self.waiting = 0;
        (self.virtual_now, self.last_finish) = (0, 0);
        std::mem::take(&mut self.flows).into_values().flat_map(|flow| flow.queue).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: shares in cost whatever the requests, nobody starves, what is idle goes to others, limits hold. Method: a device that
    //! serves what it is given, in time that is counted by hand.
    use super::*;

    const A: FlowKey = FlowKey::Database(1);
    const B: FlowKey = FlowKey::Database(2);
    const C: FlowKey = FlowKey::Rest;

    fn share(n: u64) -> Terms {
        Terms { weight: Weight::Share(n * SHARE_WEIGHT), limit: None }
    }

    fn level(level: u32, allocation: u32) -> Terms {
        Terms { weight: Weight::Level { level, allocation }, limit: None }
    }

    fn of(cost: u64) -> Demand {
        Demand { cost, slots: 1 }
    }

    /// Cost given to each of `who`, who always have a request waiting, of `all` in all.
    fn given(who: &[(FlowKey, Terms, u64)], slots: u32, all: u64) -> Vec<u64> {
        let mut fair = Fair::new(slots);
        let now = Instant(0);
        let mut under_way = VecDeque::new();
        let mut sums = vec![0; who.len()];
        for (key, terms, cost) in who {
            for _ in 0..64 {
                fair.push(*key, *terms, of(*cost), (), now);
            }
        }
        while sums.iter().sum::<u64>() < all {
            while let Next::Go { key, demand, .. } = fair.next(now, true, |cost| cost) {
                under_way.push_back((key, demand));
                let at = who.iter().position(|(one, ..)| *one == key);
                if let Some(at) = at {
                    sums[at] += demand.cost;
                    fair.push(key, who[at].1, demand, (), now);
                }
            }
            if let Some((key, demand)) = under_way.pop_front() {
                fair.ended(key, demand.slots, 0);
            }
        }
        sums
    }

    fn per_mille(sums: &[u64]) -> Vec<u64> {
        sums.iter().map(|one| one * 1000 / sums.iter().sum::<u64>()).collect()
    }

    #[test]
    fn shares_are_of_cost() {
        let equal = per_mille(&given(&[(A, share(3), 10), (B, share(7), 10)], 8, 1_000_000));
        assert!(equal[0].abs_diff(300) <= 1, "{equal:?}");
        let large = per_mille(&given(&[(A, share(3), 1000), (B, share(7), 10)], 8, 10_000_000));
        assert!(large[0].abs_diff(300) <= 2, "{large:?}");
        let three = per_mille(&given(&[(A, share(1), 7), (B, share(2), 10), (C, share(5), 31)], 32, 1_000_000));
        assert!(three[0].abs_diff(125) <= 2 && three[1].abs_diff(250) <= 2, "{three:?}");
    }

    #[test]
    fn a_level_gets_what_those_above_leave() {
        let both =
            per_mille(&given(&[(A, level(1, 60), 10), (B, level(2, 50), 10), (C, level(2, 50), 10)], 4, 1_000_000));
        assert!(both[0].abs_diff(600) <= 2 && both[1].abs_diff(200) <= 2, "{both:?}");
        let alone = per_mille(&given(&[(B, level(2, 50), 10), (C, level(2, 50), 10)], 4, 1_000_000));
        assert!(alone[0].abs_diff(500) <= 2, "what nobody asks for goes to those who ask: {alone:?}");
        let starved = given(&[(A, level(1, 100), 10), (C, level(2, 100), 10)], 4, 1_000_000);
        assert!(starved[1] >= 900, "a thousandth at least: {starved:?}");
    }

    #[test]
    fn who_was_away_has_saved_up_nothing() {
        let mut fair = Fair::new(1);
        let now = Instant(0);
        for _ in 0..100 {
            fair.push(A, share(1), of(10), (), now);
        }
        for _ in 0..50 {
            assert!(matches!(fair.next(now, true, |c| c), Next::Go { key: A, .. }));
            fair.ended(A, 1, 0);
        }
        for _ in 0..100 {
            fair.push(B, share(1), of(10), (), now);
        }
        let mut b = 0;
        for _ in 0..40 {
            let Next::Go { key, .. } = fair.next(now, true, |c| c) else { unreachable!() };
            b += u64::from(key == B);
            fair.ended(key, 1, 0);
        }
        assert!((19..=21).contains(&b), "{b} of 40");
    }

    #[test]
    fn what_jumps_is_paid_for() {
        let mut fair = Fair::new(1);
        let now = Instant(0);
        for _ in 0..1000 {
            fair.push(A, share(1), of(10), (), now);
            fair.push(B, share(1), of(10), (), now);
        }
        let (mut a, mut b) = (0_u32, 0_u32);
        for turn in 0..400 {
            if turn % 4 == 0 {
                fair.jump(A, share(1), 10, 10, now);
                a += 1;
            }
            let Next::Go { key, .. } = fair.next(now, true, |c| c) else { unreachable!() };
            if key == A {
                a += 1
            } else {
                b += 1
            }
            fair.ended(key, 1, 0);
        }
        assert!(a.abs_diff(b) <= 3, "{a} and {b}");
    }

    #[test]
    fn slots_bound_what_is_under_way_and_long_ones_get_theirs() {
        let mut fair = Fair::new(4);
        let now = Instant(0);
        for _ in 0..8 {
            fair.push(A, share(1), of(10), (), now);
        }
        fair.push(B, share(1), Demand { cost: 10, slots: 4 }, (), now);
        let mut order = Vec::new();
        while let Next::Go { key, .. } = fair.next(now, true, |c| c) {
            order.push(key);
        }
        assert_eq!((order, fair.taken()), (vec![A], 1), "the long one is next and nobody goes before it");
        fair.ended(A, 1, 0);
        assert!(matches!(fair.next(now, true, |c| c), Next::Go { key: B, .. }));
        assert_eq!(fair.next(now, true, |c| c), Next::Full);
    }

    #[test]
    fn a_limit_holds_over_any_time_and_on_an_idle_device() {
        let limited = Terms { weight: Weight::Share(SHARE_WEIGHT), limit: Some(20) };
        let mut fair = Fair::new(8);
        let (mut now, mut uses) = (Instant(0), Vec::new());
        for _ in 0..4000 {
            fair.push(A, limited, of(1_000_000), (), now);
        }
        while now.0 < 10_000_000_000 {
            match fair.next(now, true, |c| c) {
                Next::Go { key, demand, .. } => {
                    uses.push((now.0, demand.cost));
                    fair.ended(key, 1, 0);
                }
                Next::NotBefore(at) => now = at,
                Next::Nothing | Next::Full => break,
            }
        }
        let all: u64 = uses.iter().map(|(_, cost)| cost).sum();
        assert!((1_940_000_000..=2_010_000_000).contains(&all), "{all} of 2 s in 10");
        for (index, (from, _)) in uses.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &uses[index..] {
                sum += cost;
                let most = (at - from) / 5 + LIMIT_PERIOD_NS / 5 + 1_000_000;
                assert!(sum <= most, "{sum} in {} ns", at - from);
            }
        }
    }

    #[test]
    fn a_device_nobody_has_measured_takes_limited_ones_one_by_one() {
        let limited = Terms { weight: Weight::Share(SHARE_WEIGHT), limit: Some(50) };
        let mut fair = Fair::new(8);
        fair.push(A, limited, of(1), (), Instant(0));
        fair.push(A, limited, of(1), (), Instant(0));
        let later = Instant(LIMIT_PERIOD_NS);
        assert!(matches!(fair.next(later, false, |c| c), Next::Go { .. }));
        assert_eq!(fair.next(later, false, |c| c), Next::Nothing);
        fair.ended(A, 1, 0);
        assert!(matches!(fair.next(later, false, |c| c), Next::Go { .. }));
    }
}
