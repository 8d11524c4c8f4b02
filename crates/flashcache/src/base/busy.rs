//! When flash is busier than the disk behind it: what share of the clean hits the disk serves instead.
//!
//! Non-hierarchical caching (Wu et al., "The Storage Hierarchy is Not a Hierarchy", FAST '21): once a cache device is
//! saturated, more hits on it gain nothing, and the device below idles. Here the share follows the difference of two mean
//! times, of a hit read from flash and of a hit read from disk, by a proportional and an integral term: it comes to rest
//! where both take as long, so that no request waits longer than flash alone would let it. (The paper climbs on throughput
//! instead; that needs a steady load to compare two shares with.)
//!
//! What a disk takes is known only from hits that were sent there: misses are other requests (scans, sequential reads) and
//! say little of what a hit would take. So flash that looks busy is a reason to *probe*: a few hits go to the disk, and
//! while that keeps saying that the disk is no better, more and more rarely. What it said is believed for a while and is
//! not extrapolated. Flash whose hits take less than [`BusyTuning::floor`] is healthy whatever the disk does.
//!
//! Pure state: time comes with each call, nothing is drawn, nothing waits. Integers only. One per flash device and grid
//! disk: flash devices differ in load, grid disks in the disk they lie on.

use device::Instant;
use std::time::Duration;

/// Shares are in these parts.
pub const SHARE_WHOLE: u32 = 1024;
/// The largest share. What is left keeps the time of flash known: one hit in sixteen.
pub(crate) const SHARE_MAX: u32 = 960;
/// The smallest share of busy flash: it keeps the time of the disk known.
const SHARE_MIN: u32 = 8;
/// Flash is called busy when a hit takes this much longer than on disk: 5/4.
const ENTER: (u64, u64) = (5, 4);
/// Windows in a row that want no share before flash is called healthy again.
const LEAVE_WINDOWS: u32 = 4;
/// Hits read from disk in a window, at least: service times of disks vary by their own size.
const DISK_SAMPLES_MIN: u64 = 4;
/// Hits sent to the disk to learn what it takes.
pub(crate) const PROBES: u32 = 4;
/// A window lasts as long as so many reads, so that it shows what the share before it has done.
const WINDOW_READS: u64 = 2;
/// Longest window: a change of load is seen within it.
const WINDOW_NS_MAX: u64 = 500_000_000;
/// How long a state is kept that nothing confirms, besides so many reads: hits have stopped coming, or the disk answering.
const EXPIRE_NS: u64 = 2_000_000_000;
const EXPIRE_READS: u64 = 8;
/// What a disk took is believed for so long, and waited for.
const DISK_FRESH_NS: u64 = 2_000_000_000;
/// A read that takes longer counts as this: flash is given up by then, and a state must not outlive it by long.
const READ_NS_MAX: u64 = 10_000_000_000;
/// Rests between probes grow up to so many times the first: a busy cell over a slow disk spends four reads in 16 s on them.
const RESTS_MAX: u64 = 16;
/// A disk is waited for as long as so many hits on flash take, but for [`PATIENCE_NS_MIN`]. While both share the load they
/// take about as long.
const PATIENCE_READS: u64 = 8;
const PATIENCE_NS_MIN: u64 = 50_000_000;
/// Proportional term: 1/8 of the difference. A queue is the integral of the share, with a time constant of four reads at
/// this gain, twice the window: it settles without swinging.
const PROPORTIONAL: i64 = 8;
/// Integral term: 1/32 of the difference for each window, which damps the loop of two integrals by about 0.7.
const INTEGRAL: i64 = 32;

/// How busy flash is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyTuning {
    /// A hit that takes less is quick, whatever the disk takes. Default 250 us: flash without a queue takes 50 to 200.
    pub floor: Duration,
    /// Timed hits of a window, at least. Default 16.
    pub samples_min: u64,
    /// Shortest window. Default 10 ms.
    pub window: Duration,
    /// From a probe that found the disk no better to the next, at first. Default 1 s.
    pub rest: Duration,
    /// Time every hit, not one in sixteen: for simulators, which have few. Default no.
    pub every_hit: bool,
}

impl Default for BusyTuning {
    fn default() -> BusyTuning {
        BusyTuning {
            floor: Duration::from_micros(250),
            samples_min: 16,
            window: Duration::from_millis(10),
            rest: Duration::from_secs(1),
            every_hit: false,
        }
    }
}

/// Reads timed in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Timed {
    ns: u64,
    reads: u64,
}

impl Timed {
    fn count(&mut self, ns: u64) {
        self.ns = self.ns.saturating_add(ns.min(READ_NS_MAX));
        self.reads += 1;
    }

    fn mean_ns(self) -> u64 {
        self.ns.checked_div(self.reads).unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Every hit is read from flash.
    Healthy,
    /// Hits are being sent to the disk to learn what it takes, since then.
    Probing(Instant),
    /// It is known; what flash takes after that decides.
    Comparing,
    /// The disk serves a share.
    Busy,
}

/// See the module's head.
#[derive(Debug)]
pub struct BusyFlash {
    tuning: BusyTuning,
    state: State,
    /// When the window began.
    window: Instant,
    flash: Timed,
    disk: Timed,
    /// What a hit took in the last full window.
    flash_ns: u64,
    /// What the disk took for a hit when it was last asked, and when that was.
    disk_ns: Option<(u64, Instant)>,
    /// When it was last asked, and when it is asked again however it answered.
    probed: Option<Instant>,
    probe_after: Instant,
    /// The rest after the next probe in vain, in first rests.
    rests: u64,
    share: u32,
    /// The integral of the difference, in 1024ths times [`INTEGRAL`].
    integral: i64,
    /// Windows in a row that wanted no share.
    idle_windows: u32,
    probes_wanted: u32,
    expires: Instant,
}

impl BusyFlash {
    /// Healthy until shown otherwise.
    #[must_use]
    pub fn new(tuning: BusyTuning) -> BusyFlash {
        BusyFlash {
            tuning,
            state: State::Healthy,
            window: Instant(0),
            flash: Timed::default(),
            disk: Timed::default(),
            flash_ns: 0,
            disk_ns: None,
            probed: None,
            probe_after: Instant(0),
            rests: 1,
            share: 0,
            integral: 0,
            idle_windows: 0,
            probes_wanted: 0,
            expires: Instant(0),
        }
    }

    /// The share of clean hits to send to the disk, of [`SHARE_WHOLE`]. 0: flash is healthy, fills are welcome.
    #[must_use]
    pub fn share(&self) -> u32 {
        self.share
    }

    /// How many hits to send to the disk now, whatever the share; asked once for each probe.
    pub fn take_probes(&mut self) -> u32 {
        std::mem::take(&mut self.probes_wanted)
    }

    /// Whether every hit is to be timed, and not some: a decision is near.
    #[must_use]
    pub fn is_alert(&self) -> bool {
        self.tuning.every_hit || self.state != State::Healthy
    }

    /// When a share above 0 is confirmed by nothing any more: call [`BusyFlash::expire`] then.
    #[must_use]
    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// A hit that the disk has not answered after so many nanoseconds is read from flash, and a disk that has answered nothing
    /// for so long gets no more.
    #[must_use]
    pub fn patience_ns(&self) -> u64 {
        // Of flash, not of the disk: a disk that stalls would be waited for longer and longer.
        self.flash_ns.saturating_mul(PATIENCE_READS).max(PATIENCE_NS_MIN)
    }

    /// A hit was read from flash.
    pub fn flash_read(&mut self, ns: u64, now: Instant) {
        if self.flash.reads == 0 && self.state != State::Busy {
            // Nobody hit for a while: that time is not part of the window.
            self.window = now;
        }
        self.flash.count(ns);
        self.step(now);
    }

    /// A hit was read from disk instead.
    pub fn disk_read(&mut self, ns: u64, now: Instant) {
        self.disk.count(ns);
        if matches!(self.state, State::Probing(_)) && self.disk.reads >= u64::from(PROBES) {
            self.disk_ns = Some((self.disk.mean_ns(), now));
            self.state = State::Comparing;
            // With what flash takes from here on: a burst that is over by now is no reason.
            self.begin_window(now);
        }
        self.step(now);
    }

    /// The disk could not read a hit: it gets no more for a while.
    pub fn disk_failed(&mut self, now: Instant) {
        self.disk_ns = None;
        self.leave(now);
        self.rest(now);
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Instant) {
        if self.state == State::Busy && now >= self.expires {
            self.leave(now);
        }
    }

    fn begin_window(&mut self, now: Instant) {
        self.window = now;
        self.flash = Timed::default();
        self.disk = Timed::default();
    }

    fn leave(&mut self, now: Instant) {
        self.state = State::Healthy;
        self.share = 0;
        self.integral = 0;
        self.idle_windows = 0;
        self.probes_wanted = 0;
        self.begin_window(now);
    }

    /// No probe for a while.
    fn rest(&mut self, now: Instant) {
        self.probed = Some(now);
        self.probe_after = now.after(self.tuning.rest.saturating_mul(self.rests as u32));
        self.rests = (self.rests * 2).min(RESTS_MAX);
    }

    fn window_ns(&self) -> u64 {
        let disk_ns = self.disk_ns.map_or(0, |(ns, _)| ns);
        let reads_ns = self.flash_ns.max(disk_ns).saturating_mul(WINDOW_READS).min(WINDOW_NS_MAX);
        reads_ns.max(self.tuning.window.as_nanos() as u64)
    }

    fn is_slower(flash_ns: u64, disk_ns: u64) -> bool {
        u128::from(flash_ns) * u128::from(ENTER.1) > u128::from(disk_ns) * u128::from(ENTER.0)
    }

    fn step(&mut self, now: Instant) {
        if now.ns_since(self.window) < self.window_ns() || self.flash.reads < self.tuning.samples_min {
            return self.expire(now);
        }
        if self.state == State::Busy {
            if self.disk.reads < DISK_SAMPLES_MIN {
                return self.expire(now);
            }
            self.flash_ns = self.flash.mean_ns();
            self.disk_ns = Some((self.disk.mean_ns(), now));
            return self.adjust(now);
        }
        self.flash_ns = self.flash.mean_ns();
        self.judge(now);
    }

    /// A window of flash that is not called busy has ended.
    fn judge(&mut self, now: Instant) {
        let is_quick = u128::from(self.flash_ns) < self.tuning.floor.as_nanos();
        let slower = self.disk_ns.is_some_and(|(disk_ns, _)| BusyFlash::is_slower(self.flash_ns, disk_ns));
        match self.state {
            State::Probing(since) => {
                let disk = self.disk;
                self.begin_window(now);
                self.disk = disk;
                if now.ns_since(since) > DISK_FRESH_NS.max(self.patience_ns()) {
                    // Too few answers, or too few hits to ask with.
                    self.leave(now);
                    self.rest(now);
                }
            }
            State::Comparing => {
                let fresh = self.disk_ns.is_some_and(|(_, at)| now.ns_since(at) <= DISK_FRESH_NS);
                self.begin_window(now);
                self.state = State::Healthy;
                if slower && fresh && !is_quick {
                    self.state = State::Busy;
                    self.rests = 1;
                    self.set_share(SHARE_MIN, now);
                }
            }
            State::Healthy | State::Busy => {
                self.begin_window(now);
                // A disk that was no better is asked more and more rarely, unless flash has become slower than that.
                let rested = self.probed.is_none_or(|at| now >= at.after(self.tuning.rest));
                if !is_quick && (now >= self.probe_after || (slower && rested)) {
                    self.rest(now);
                    self.state = State::Probing(now);
                    self.probes_wanted = PROBES;
                }
            }
        }
    }

    /// A window of busy flash has ended.
    fn adjust(&mut self, now: Instant) {
        let (flash_ns, disk_ns) = (self.flash.mean_ns(), self.disk.mean_ns());
        let sum = i128::from(flash_ns) + i128::from(disk_ns);
        let difference = (i128::from(flash_ns) - i128::from(disk_ns)) * i128::from(SHARE_WHOLE) / sum.max(1);
        let difference = difference as i64;
        self.integral = (self.integral + difference).clamp(0, i64::from(SHARE_MAX) * INTEGRAL);
        let wanted = self.integral / INTEGRAL + difference / PROPORTIONAL;
        self.idle_windows = if wanted < i64::from(SHARE_MIN) { self.idle_windows + 1 } else { 0 };
        self.begin_window(now);
        if self.idle_windows >= LEAVE_WINDOWS {
            self.leave(now);
            return self.rest(now);
        }
        self.set_share(wanted.clamp(i64::from(SHARE_MIN), i64::from(SHARE_MAX)) as u32, now);
    }

    fn set_share(&mut self, share: u32, now: Instant) {
        self.share = share;
        let disk_ns = self.disk_ns.map_or(0, |(ns, _)| ns);
        let reads_ns = self.flash_ns.max(disk_ns).saturating_mul(EXPIRE_READS);
        self.expires = now.after(Duration::from_nanos(EXPIRE_NS.saturating_add(reads_ns)));
    }
}

// The request path takes shares modulo a whole from a counter that wraps.
const _: () = assert!(SHARE_WHOLE.is_power_of_two() && SHARE_MAX < SHARE_WHOLE && SHARE_MIN < SHARE_MAX);

#[cfg(test)]
mod tests;
