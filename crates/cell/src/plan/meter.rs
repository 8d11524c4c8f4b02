//! What a request takes of a device: a model, and how far off it is.
//!
//! A request costs something for itself and something for each byte; what this comes to in time is measured: while anything is
//! under way the device is busy, and what it has done in its busy time was worth so much. Nobody can measure one request of several
//! that a device works on at the same time, but the relative costs of requests are known well enough, and their sum is exact (the idea
//! of Linux' blk-iocost).
//!
//! Never decides who goes next. Integers only.

use device::Instant;

/// What a request costs on a disk that seeks: a seek and half a turn, and 125 MB a second.
const ROTATIONAL: Model = Model { request_ns: 8_000_000, byte_ns_per_1024: 8 * 1024 };
/// On everything else: as an SSD of the middling sort. Of a network volume the ratio is about the same.
const OTHER: Model = Model { request_ns: 100_000, byte_ns_per_1024: 1024 };

/// The scale by which the model is right.
const SCALE_ONE: u64 = 1 << 10;
/// The first request says no more than that a device is so much slower than the model, and each measurement no more than that it
/// is so much slower than it was: a stall is not its speed, and whoever has a limit would pay for it long after it is over.
const FIRST_SCALE_MAX: u64 = SCALE_ONE << 8;
const GROWTH_MAX: u64 = 4;
/// A measurement takes so many requests and so much busy time, whichever is later.
const WINDOW_REQUESTS: u32 = 8;
const WINDOW_NS: u64 = 2_000_000;

#[derive(Clone, Copy, Debug)]
struct Model {
    request_ns: u64,
    byte_ns_per_1024: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Meter {
    model: Model,
    scale: u64,
    /// Windows so far, up to 2. The first is of one request, and good for no more than a beginning.
    windows: u32,
    under_way: u32,
    seen: Instant,
    window_ns: u64,
    window_cost: u64,
    window_requests: u32,
}

impl Meter {
    pub(crate) fn new(rotational: bool) -> Meter {
        Meter {
            model: if rotational { ROTATIONAL } else { OTHER },
            scale: SCALE_ONE,
            windows: 0,
            under_way: 0,
            seen: Instant(0),
            window_ns: 0,
            window_cost: 0,
            window_requests: 0,
        }
    }

    /// What a request of so many bytes costs, as modelled: at least 1.
    pub(crate) fn cost(&self, bytes: u64) -> u64 {
        self.model.request_ns + ((bytes.min(1 << 32) * self.model.byte_ns_per_1024) >> 10)
    }

    /// The device's time for what costs this, in nanoseconds.
    pub(crate) fn ns(&self, cost: u64) -> u64 {
        u64::try_from(u128::from(cost) * u128::from(self.scale) / u128::from(SCALE_ONE)).unwrap_or(u64::MAX)
    }

    /// Whether a request has ended since it was made.
    pub(crate) fn is_measured(&self) -> bool {
        self.windows > 0
    }

    /// One begins.
    pub(crate) fn begins(&mut self, now: Instant) {
        if self.under_way == 0 {
            self.seen = now;
        }
        self.under_way += 1;
    }

    /// One that costs this ends.
    pub(crate) fn ends(&mut self, cost: u64, now: Instant) {
        self.window_ns = self.window_ns.saturating_add(now.ns_since(self.seen));
        self.seen = now;
        self.under_way = self.under_way.saturating_sub(1);
        self.window_cost = self.window_cost.saturating_add(cost);
        self.window_requests += 1;
        let enough = self.window_requests >= WINDOW_REQUESTS && self.window_ns >= WINDOW_NS;
        if !enough && self.windows > 0 {
            return;
        }
        let found = u128::from(self.window_ns) * u128::from(SCALE_ONE) / u128::from(self.window_cost.max(1));
        let most = if self.windows == 0 { FIRST_SCALE_MAX } else { self.scale.saturating_mul(GROWTH_MAX) };
        let found = u64::try_from(found).unwrap_or(u64::MAX).clamp(1, most);
        self.scale = if self.windows < 2 { found } else { (3 * self.scale + found).div_ceil(4) };
        self.windows = (self.windows + 1).min(2);
        (self.window_ns, self.window_cost, self.window_requests) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the time the model gives is the time a device really has for its requests. Method: devices with so many requests at
    //! once, each of the same time.
    use super::*;

    fn measured(parallel: u64, ns: u64) -> u64 {
        let mut meter = Meter::new(false);
        let cost = meter.cost(4096);
        (0..parallel).for_each(|_| meter.begins(Instant(0)));
        for round in 1..200 {
            for _ in 0..parallel {
                meter.ends(cost, Instant(round * ns));
                meter.begins(Instant(round * ns));
            }
        }
        meter.ns(cost)
    }

    #[test]
    fn a_requests_time_is_its_part_of_the_busy_time() {
        for (parallel, ns) in [(1, 4_000_000), (64, 4_000_000), (8, 80_000), (1, 10_000)] {
            let found = measured(parallel, ns);
            let right = ns / parallel;
            assert!(found.abs_diff(right) * 20 <= right, "{found} instead of {right}");
        }
    }

    #[test]
    fn a_stall_is_not_the_speed_of_a_device() {
        let mut meter = Meter::new(false);
        let cost = meter.cost(4096);
        let mut now = 0;
        let mut serve = |meter: &mut Meter, times: u64, ns: u64| {
            for _ in 0..times {
                meter.begins(Instant(now));
                now += ns;
                meter.ends(cost, Instant(now));
            }
        };
        serve(&mut meter, 1, 10_000_000_000);
        assert!(meter.ns(cost) <= 30_000_000, "the first request took 10 s: {}", meter.ns(cost));
        serve(&mut meter, 800, 100_000);
        serve(&mut meter, 1, 10_000_000_000);
        serve(&mut meter, 32, 100_000);
        assert!(meter.ns(cost) <= 200_000, "after a stall of 10 s: {}", meter.ns(cost));
        serve(&mut meter, 800, 10_000_000);
        assert!(meter.ns(cost) >= 9_500_000, "a device that has become slower: {}", meter.ns(cost));
    }

    #[test]
    fn an_idle_device_is_not_busy() {
        let mut meter = Meter::new(true);
        let cost = meter.cost(4096);
        for round in 0..100 {
            meter.begins(Instant(round * 1_000_000_000));
            meter.ends(cost, Instant(round * 1_000_000_000 + 5_000_000));
        }
        assert!(meter.ns(cost).abs_diff(5_000_000) < 50_000, "{}", meter.ns(cost));
    }
}
