//! Latency histograms and counters of a device, by verb.
//!
//! Lock-free: a request costs two looks at the clock and a few relaxed additions. Never samples, never forgets; who
//! wants a rate takes two snapshots and their difference.

mod busy;

pub use busy::BusyTime;

use crate::clock::{Clock, Instant};
use crate::io::{Completed, Completion, Device, Geometry, Io, Op, Outcome, Verb};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets per doubling: values are told apart to 1/32, about 3 %.
const SUB_BUCKETS: u64 = 32;
const SUB_BITS: u32 = SUB_BUCKETS.ilog2();
/// Values from here on share the last bucket: 2^40 ns are 18 minutes.
const VALUE_BITS_MAX: u32 = 40;
const BUCKETS: usize = ((VALUE_BITS_MAX - SUB_BITS + 1) as usize) * SUB_BUCKETS as usize;

/// A log-linear histogram of integers (nanoseconds, as a rule): exact below 32, then to about 3 %.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Histogram { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }
}

fn bucket_of(value: u64) -> usize {
    let value = value.min((1 << VALUE_BITS_MAX) - 1);
    if value < SUB_BUCKETS {
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    (u64::from(shift) * SUB_BUCKETS + (value >> shift)) as usize
}

/// The largest value of a bucket.
fn top_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB_BUCKETS * 2 {
        return bucket;
    }
    let shift = bucket / SUB_BUCKETS - 1;
    ((bucket - shift * SUB_BUCKETS + 1) << shift) - 1
}

impl Histogram {
    /// Count one value.
    pub fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
        if value > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// The counts as they are now.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        HistogramSnapshot {
            count: counts.iter().sum(),
            sum: self.sum.load(Ordering::Relaxed),
            max: self.max.load(Ordering::Relaxed),
            counts,
        }
    }
}

/// A [`Histogram`] at one moment, or the difference of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: Vec<u64>,
    /// How many values.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// The largest since the beginning (not of a difference's period).
    pub max: u64,
}

impl HistogramSnapshot {
    /// The value that `numerator / denominator` of all values do not exceed, rounded up to its bucket's end; 0 when
    /// there is none.
    ///
    /// # Panics
    /// When the denominator is 0 or the numerator larger.
    #[must_use]
    pub fn quantile(&self, numerator: u64, denominator: u64) -> u64 {
        assert!(denominator > 0 && numerator <= denominator, "a quantile lies between 0 and 1");
        if self.count == 0 {
            return 0;
        }
        let rank = (u128::from(self.count) * u128::from(numerator)).div_ceil(u128::from(denominator)).max(1);
        let mut seen = 0_u128;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return top_of(bucket).min(self.max);
            }
        }
        self.max
    }

    /// The mean, rounded down; 0 when there is no value.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let counts: Vec<u64> =
            self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.saturating_sub(*then)).collect();
        HistogramSnapshot {
            count: counts.iter().sum(),
            sum: self.sum.saturating_sub(earlier.sum),
            max: self.max,
            counts,
        }
    }
}

#[derive(Default)]
struct Counters {
    bytes: AtomicU64,
    short: AtomicU64,
    failed: AtomicU64,
    unknown: AtomicU64,
    started: AtomicU64,
    ended: AtomicU64,
    latency: Histogram,
}

/// One verb's figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbSnapshot {
    /// Which.
    pub verb: Verb,
    /// Requests that were done.
    pub done: u64,
    /// Bytes of requests that were done, and of the part of short ones that was.
    pub bytes: u64,
    /// Requests with [`Outcome::Short`].
    pub short: u64,
    /// Requests with [`Outcome::Failed`].
    pub failed: u64,
    /// Requests with [`Outcome::Unknown`], and those whose end nobody waited for.
    pub unknown: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// Nanoseconds from submission to completion, of requests that were done.
    pub latency_ns: HistogramSnapshot,
}

/// Counts what passes to and from `inner`. See the module's head.
pub struct Stats {
    inner: Device,
    figures: Arc<Figures>,
}

/// What every request under way adds to.
struct Figures {
    clock: Arc<dyn Clock>,
    mine: BusyTime,
    all: Arc<BusyTime>,
    verbs: [Counters; Verb::ALL.len()],
}

impl Figures {
    fn busy(&self) -> [&BusyTime; 2] {
        [&self.mine, &self.all]
    }
}

impl Stats {
    /// Count the requests of `inner`.
    #[must_use]
    pub fn new(inner: Device, clock: Arc<dyn Clock>) -> Arc<Stats> {
        Stats::with_busy(inner, clock, Arc::default())
    }

    /// The same, where the requests of others count as well for the time in which any is under way.
    #[must_use]
    pub fn with_busy(inner: Device, clock: Arc<dyn Clock>, all: Arc<BusyTime>) -> Arc<Stats> {
        let figures = Figures { clock, mine: BusyTime::default(), all, verbs: Default::default() };
        Arc::new(Stats { inner, figures: Arc::new(figures) })
    }

    /// Nanoseconds in which at least one of its requests was under way.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.figures.mine.busy_ns(self.figures.clock.now())
    }

    /// The figures as they are now, in the order of [`Verb::ALL`].
    #[must_use]
    pub fn snapshot(&self) -> Vec<VerbSnapshot> {
        Verb::ALL.into_iter().map(|verb| self.verb(verb)).collect()
    }

    /// One verb's figures as they are now.
    #[must_use]
    pub fn verb(&self, verb: Verb) -> VerbSnapshot {
        let counters = &self.figures.verbs[verb as usize];
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let latency_ns = counters.latency.snapshot();
        // The end first: a request in between is then counted as under way, never as minus one.
        let ended = load(&counters.ended);
        VerbSnapshot {
            verb,
            done: latency_ns.count,
            bytes: load(&counters.bytes),
            short: load(&counters.short),
            failed: load(&counters.failed),
            unknown: load(&counters.unknown),
            in_flight: load(&counters.started).saturating_sub(ended),
            latency_ns,
        }
    }
}

/// One request; dropped without an end it counts as unknown.
struct Watch {
    figures: Arc<Figures>,
    verb: Verb,
    bytes: u64,
    start: Instant,
    /// When it ended, if somebody waited for that.
    over: Option<Instant>,
}

impl Watch {
    fn end(mut self, completed: Completed) -> Completed {
        let now = self.figures.clock.now();
        self.over = Some(now);
        let counters = &self.figures.verbs[self.verb as usize];
        match completed.outcome {
            Outcome::Done => {
                counters.latency.record(now.ns_since(self.start));
                counters.bytes.fetch_add(self.bytes, Ordering::Relaxed);
            }
            Outcome::Short(bytes) => {
                counters.short.fetch_add(1, Ordering::Relaxed);
                counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Outcome::Failed(_) => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Unknown => {
                counters.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
        completed
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let counters = &self.figures.verbs[self.verb as usize];
        counters.ended.fetch_add(1, Ordering::Relaxed);
        if self.over.is_none() {
            counters.unknown.fetch_add(1, Ordering::Relaxed);
        }
        let now = self.over.unwrap_or_else(|| self.figures.clock.now());
        self.figures.busy().iter().for_each(|busy| busy.end(now));
    }
}

impl Io for Stats {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        if cfg!(uncounted) {
            return self.inner.submit(op);
        }
        let (verb, bytes) = (op.verb(), op.range().1);
        let figures = self.figures.clone();
        figures.verbs[verb as usize].started.fetch_add(1, Ordering::Relaxed);
        let start = figures.clock.now();
        figures.busy().iter().for_each(|busy| busy.begin(start));
        let watch = Watch { figures, start, verb, bytes, over: None };
        let inner = self.inner.submit(op);
        Completion::future(async move { watch.end(inner.await) })
    }
}
