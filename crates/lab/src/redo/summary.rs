//! What is told of a sample: R's six numbers, percentiles, outliers, and what had to be left out.
//!
//! Everything in microseconds. Never prints.

use super::format::Format;
use super::samples::{Samples, Share};
use super::source::{Malformed, Pool};
use super::welch::Moments;

/// Percentiles that are told: as printed, key of the JSON form, share.
pub(super) const PERCENTILES: [(&str, &str, Share); 6] = [
    ("90%", "p90", Share(9, 10)),
    ("95%", "p95", Share(19, 20)),
    ("99%", "p99", Share(99, 100)),
    ("99.9%", "p99_9", Share(999, 1_000)),
    ("99.99%", "p99_99", Share(9_999, 10_000)),
    ("99.999%", "p99_999", Share(99_999, 100_000)),
];

/// A sample as it is told.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The files.
    pub name: String,
    /// Their formats.
    pub formats: Vec<Format>,
    /// How many files.
    pub files: usize,
    /// What was waited for; empty where the files do not say.
    pub wait: String,
    /// Minimum, first quartile, median, mean, third quartile, maximum.
    pub six: [f64; 6],
    /// Standard deviation; none of a single time.
    pub sd: Option<f64>,
    /// The percentiles of [`PERCENTILES`].
    pub percentiles: [f64; PERCENTILES.len()],
    /// The times themselves.
    pub samples: Samples,
    /// Times above the cut, which were left out.
    pub left_out: u64,
    /// Lines that could not be read.
    pub malformed: Malformed,
}

impl Summary {
    /// Of what was read; there is at least one time.
    pub(super) fn of(pool: Pool) -> Summary {
        let samples = pool.samples;
        let quantile = |share| samples.quantile_us(share).unwrap_or(f64::NAN);
        Summary {
            name: pool.name,
            formats: pool.formats,
            files: pool.files,
            wait: pool.wait,
            six: [
                quantile(Share(0, 1)),
                quantile(Share(1, 4)),
                quantile(Share(1, 2)),
                samples.mean_us().unwrap_or(f64::NAN),
                quantile(Share(3, 4)),
                quantile(Share(1, 1)),
            ],
            sd: samples.variance_us2().map(f64::sqrt),
            percentiles: PERCENTILES.map(|(_, _, share)| quantile(share)),
            left_out: pool.left_out,
            malformed: pool.malformed,
            samples,
        }
    }

    /// Median, in microseconds.
    #[must_use]
    pub fn median_us(&self) -> f64 {
        self.six[2]
    }

    /// Mean, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        self.six[3]
    }

    /// What a t-test needs.
    #[must_use]
    pub fn moments(&self) -> Moments {
        let variance = self.samples.variance_us2().unwrap_or(0.0);
        Moments { count: self.samples.count(), mean: self.mean_us(), variance }
    }
}
