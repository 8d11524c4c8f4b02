//! How long a leg takes of late: an integer histogram that forgets.
//!
//! Buckets of an eighth of a power of two (error at most 1/16); every [`HALVE_AFTER`] samples all counts are halved, so that
//! an old regime fades within a few thousand syncs. No floats.

/// Samples between two halvings.
const HALVE_AFTER: u64 = 1024;
const SUB: u64 = 8;
const POWERS: usize = 64;
const BUCKETS: usize = POWERS * SUB as usize;

/// Recent times of one kind, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Estimate {
    counts: Box<[u32; BUCKETS]>,
    /// Sums of the buckets of a power of two: each commit asks for several quantiles.
    powers: [u32; POWERS],
    total: u64,
    since_halved: u64,
}

impl Default for Estimate {
    fn default() -> Estimate {
        Estimate { counts: Box::new([0; BUCKETS]), powers: [0; POWERS], total: 0, since_halved: 0 }
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(SUB);
    let log = u64::from(ns.ilog2());
    (log * SUB + ((ns >> (log - 3)) & (SUB - 1))) as usize
}

/// The middle of a bucket.
fn middle(bucket: usize) -> u64 {
    let (log, sub) = (bucket as u64 / SUB, bucket as u64 % SUB);
    let low = (SUB + sub) << (log.max(3) - 3);
    low + (1 << (log.max(3) - 3)) / 2
}

impl Estimate {
    pub(crate) fn add(&mut self, ns: u64) {
        let bucket = bucket(ns);
        self.counts[bucket] += 1;
        self.powers[bucket / SUB as usize] += 1;
        self.total += 1;
        self.since_halved += 1;
        if self.since_halved == HALVE_AFTER {
            self.since_halved = 0;
            self.counts.iter_mut().for_each(|count| *count /= 2);
            for (sum, of) in self.powers.iter_mut().zip(self.counts.chunks_exact(SUB as usize)) {
                *sum = of.iter().sum();
            }
            self.total = self.powers.iter().copied().map(u64::from).sum();
        }
    }

    pub(crate) fn samples(&self) -> u64 {
        self.total
    }

    /// The value below which `per_mille` of the samples lie; none without samples.
    pub(crate) fn quantile(&self, per_mille: u64) -> Option<u64> {
        if self.total == 0 {
            return None;
        }
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        let power = self.powers.iter().position(|sum| {
            seen += u64::from(*sum);
            seen >= rank
        })?;
        seen -= u64::from(self.powers[power]);
        let first = power * SUB as usize;
        let of = self.counts[first..first + SUB as usize].iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        })?;
        Some(middle(first + of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let mut estimate = Estimate::default();
        (1..=1000u64).for_each(|n| estimate.add(n * 1000));
        for per_mille in [10, 500, 900, 990] {
            let (got, want) = (estimate.quantile(per_mille).unwrap_or(0), per_mille * 1000);
            assert!(got.abs_diff(want) * 16 <= want, "{per_mille}: {got} for {want}");
        }
    }

    #[test]
    fn an_old_regime_fades() {
        let mut estimate = Estimate::default();
        (0..1024).for_each(|_| estimate.add(4_000_000));
        (0..2048).for_each(|_| estimate.add(100_000));
        assert!(estimate.quantile(500).is_some_and(|ns| ns < 110_000));
    }

    #[test]
    fn extremes_have_buckets() {
        let mut estimate = Estimate::default();
        estimate.add(0);
        estimate.add(u64::MAX);
        assert!(estimate.quantile(1).is_some() && estimate.quantile(1000).is_some());
    }
}
