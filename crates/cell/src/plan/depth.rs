//! How many requests a device is given at a time: as many as make it quicker, and no more.
//!
//! What waits in the plan can still be overtaken, what waits in the device cannot: so few slots keep shares and latencies, and many
//! keep a device busy that works on many at once. Which of them a device is nobody can say beforehand (a network volume may look
//! like a disk that seeks). So, as long as somebody waits for slots, twice as many are tried, and half as many; twice as many
//! stay if they give so much more throughput, which is what the objectives differ in: a device that really works on all of
//! them gives twice as much, a queue nothing.
//!
//! Never decides who goes. Integers only; time comes in.

use device::Instant;

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    LowLatency,
    Balanced,
    HighThroughput,
}

/// Slots of any device: beyond that a device's own queue is full as a rule.
const SLOTS_MAX: u32 = 256;
/// A trial is measured over so many requests for each slot, so many at least, and so much time, whichever is longest.
const EPOCH_PER_SLOT: u32 = 4;
const EPOCH_REQUESTS: u32 = 64;
const EPOCH_NS: u64 = 20_000_000;
/// Epochs from a trial that failed to the next: twice as many each time, up to this, since trials cost.
const PAUSE_MAX: u32 = 64;
/// Throughput in thousandths.
const WHOLE: u64 = 1_000;

impl Aim {
    /// Slots to begin with: on what seeks, and on other devices.
    fn first(self, rotational: bool) -> u32 {
        match (self, rotational) {
            (Aim::LowLatency, true) => 4,
            (Aim::Balanced, true) => 8,
            (Aim::HighThroughput, true) | (Aim::LowLatency, false) => 32,
            (Aim::Balanced, false) => 64,
            (Aim::HighThroughput, false) => 128,
        }
    }

    /// Slots below which the order of the device's own queue would be lost.
    fn least(self) -> u32 {
        match self {
            Aim::LowLatency => 2,
            Aim::Balanced => 4,
            Aim::HighThroughput => 16,
        }
    }

    /// Throughput that twice the slots must give, in thousandths of what there was.
    fn worth(self) -> u64 {
        match self {
            Aim::LowLatency => 1_600,
            Aim::Balanced => 1_250,
            Aim::HighThroughput => 1_100,
        }
    }

    /// As the metric `IORM_MODE` shows it.
    pub(crate) fn mode(self) -> u64 {
        match self {
            Aim::LowLatency => 1,
            Aim::Balanced => 2,
            Aim::HighThroughput => 3,
        }
    }
}

/// Another number of slots on trial.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// What there was before.
    slots: u32,
    rate: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Depth {
    rotational: bool,
    aim: Aim,
    slots: u32,
    begun: Option<Instant>,
    cost: u64,
    requests: u32,
    /// What was given before the change of slots is still under way.
    settling: u32,
    trial: Option<Trial>,
    pause: u32,
    pause_next: u32,
    upwards: bool,
}

impl Depth {
    pub(crate) fn new(rotational: bool, aim: Aim) -> Depth {
        Depth {
            rotational,
            aim,
            slots: aim.first(rotational),
            begun: None,
            cost: 0,
            requests: 0,
            settling: 0,
            trial: None,
            pause: 0,
            pause_next: 1,
            upwards: true,
        }
    }

    pub(crate) fn aim(&self) -> Aim {
        self.aim
    }

    /// Aim at something else. What is known of the device is not forgotten.
    pub(crate) fn set_aim(&mut self, aim: Aim) {
        if self.aim == aim {
            return;
        }
        let was_first = self.slots == self.aim.first(self.rotational) && self.trial.is_none();
        *self = Depth { slots: self.slots.max(aim.least()), ..Depth::new(self.rotational, aim) };
        if was_first {
            self.slots = aim.first(self.rotational);
        }
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    fn begin(&mut self) {
        (self.begun, self.cost, self.requests) = (None, 0, 0);
    }

    fn change(&mut self, slots: u32) {
        self.settling = self.slots.max(slots);
        self.slots = slots;
        self.begin();
    }

    /// A request has ended while somebody waited for slots, or nobody did. The slots may be others after it.
    pub(crate) fn ended(&mut self, cost: u64, now: Instant, is_short: bool) {
        if !is_short {
            // What is not asked for cannot be measured.
            if let Some(trial) = self.trial.take() {
                self.change(trial.slots);
            }
            return self.begin();
        }
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
        let Some(begun) = self.begun else {
            self.begun = Some(now);
            return;
        };
        self.cost = self.cost.saturating_add(cost);
        self.requests += 1;
        let enough = EPOCH_REQUESTS.max(self.slots * EPOCH_PER_SLOT);
        let passed_ns = now.ns_since(begun);
        if self.requests < enough || passed_ns < EPOCH_NS {
            return;
        }
        let rate = u64::try_from(u128::from(self.cost) * u128::from(WHOLE) * 1_000 / u128::from(passed_ns));
        self.judge(rate.unwrap_or(u64::MAX).max(1));
    }

    fn judge(&mut self, rate: u64) {
        self.begin();
        match self.trial.take() {
            Some(before) if before.slots < self.slots => {
                if rate.saturating_mul(WHOLE) >= before.rate.saturating_mul(self.aim.worth()) {
                    // And once more, at once.
                    self.pause_next = 1;
                    self.try_other(rate);
                } else {
                    self.failed(before.slots);
                }
            }
            Some(before) => {
                // Half are enough if twice as many would not be worth it, by a margin that keeps this from going to and fro.
                let worth = WHOLE + (self.aim.worth() - WHOLE) * 3 / 4;
                if rate.saturating_mul(worth) >= before.rate.saturating_mul(WHOLE) {
                    self.pause_next = 1;
                    self.upwards = false;
                    self.try_other(rate);
                } else {
                    self.failed(before.slots);
                }
            }
            None if self.pause > 0 => self.pause -= 1,
            None => self.try_other(rate),
        }
    }

    /// Twice or half as many from now on, for a trial.
    fn try_other(&mut self, rate: u64) {
        let other = if self.upwards { self.slots * 2 } else { self.slots / 2 };
        if other > SLOTS_MAX || other < self.aim.least() {
            self.upwards = !self.upwards;
            (self.pause, self.pause_next) = (self.pause_next, (self.pause_next * 2).min(PAUSE_MAX));
            return;
        }
        self.trial = Some(Trial { slots: self.slots, rate });
        self.change(other);
    }

    fn failed(&mut self, slots: u32) {
        self.upwards = !self.upwards;
        (self.pause, self.pause_next) = (self.pause_next, (self.pause_next * 2).min(PAUSE_MAX));
        self.change(slots);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a device gets as many slots as it works on at once, about. Method: devices of a known parallelism, all slots in use.
    use super::*;

    /// The slots most of the time is spent with, after a while.
    fn settled(parallel: u64, aim: Aim, rotational: bool) -> u32 {
        let mut depth = Depth::new(rotational, aim);
        let mut now = 0;
        let mut seen = std::collections::BTreeMap::new();
        for n in 0..400_000 {
            now += 4_000_000 / parallel.min(u64::from(depth.slots()));
            depth.ended(100_000, Instant(now), true);
            if n > 100_000 {
                *seen.entry(depth.slots()).or_insert(0) += 1;
            }
        }
        seen.into_iter().max_by_key(|(_, times)| *times).map_or(0, |(slots, _)| slots)
    }

    #[test]
    fn a_device_gets_what_it_works_on_at_once() {
        for aim in [Aim::LowLatency, Aim::Balanced, Aim::HighThroughput] {
            for rotational in [true, false] {
                assert_eq!(settled(64, aim, rotational), 64, "{aim:?}, {rotational}");
                assert_eq!(settled(1, aim, rotational), aim.least(), "{aim:?}, {rotational}");
            }
        }
        assert_eq!(settled(16, Aim::Balanced, true), 16);
        assert_eq!(settled(100_000, Aim::Balanced, true), SLOTS_MAX);
    }

    #[test]
    fn without_a_queue_nothing_is_tried() {
        let mut depth = Depth::new(true, Aim::Balanced);
        (0..10_000).for_each(|n| depth.ended(1, Instant(n * 1_000_000), false));
        assert_eq!(depth.slots(), 8);
    }

    #[test]
    fn a_trial_ends_with_the_queue() {
        let mut depth = Depth::new(true, Aim::Balanced);
        let mut now = 0;
        while depth.slots() == 8 {
            now += 1_000_000;
            depth.ended(1, Instant(now), true);
        }
        assert_eq!(depth.slots(), 16);
        depth.ended(1, Instant(now), false);
        assert_eq!(depth.slots(), 8);
    }
}
