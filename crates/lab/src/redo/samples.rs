//! Measured times: counted exactly as long as that fits into memory, in a log-linear histogram beyond.
//!
//! Values are picoseconds. Distinct values and how often each came are kept in one sorted table; a trace in microseconds has some
//! thousand of them, however long it is. Beyond [`DISTINCT_MAX`] values are rounded to [`APPROXIMATE_BITS`] binary digits
//! (buckets as in HdrHistogram: linear within each power of two), which bounds the table; count, extremes, mean, deviation
//! and outliers stay exact, and [`Samples::is_exact`] says so. Quantiles are rational numbers until they are printed. Never
//! keeps the order of what it is given.

/// The most distinct values that are kept exactly: 64 MiB of table, twice that while it is built.
pub const DISTINCT_MAX: usize = 1 << 22;
/// Binary digits a value keeps beyond that: it is wrong by at most 1/32768, 0.003 %.
pub const APPROXIMATE_BITS: u32 = 14;
/// The first time the table is put in order; then whenever it has doubled.
const COMPACT_MIN: usize = 1 << 16;

// Rounded values of both signs fit into the table: it never has to be made coarser again.
const _: () = assert!((2 * (65 - APPROXIMATE_BITS as usize)) << APPROXIMATE_BITS < DISTINCT_MAX);
const _: () = assert!(COMPACT_MIN < DISTINCT_MAX);

/// A share of the values, as a fraction: 999/1000 for p99.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(pub u64, pub u64);

/// Times being collected, or collected.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Value and how often; in order and without repetitions once it is compacted.
    table: Vec<(i64, u64)>,
    compact_at: usize,
    distinct_max: usize,
    exact: bool,
    count: u64,
    min: i64,
    max: i64,
    /// Differences from the first value are summed: they are small, and so are their squares.
    first: i64,
    sum: i128,
    /// Modulo 2^128, which is enough to know a sum of squares around the mean that is below it.
    squares: u128,
    outlier_ps: i64,
    outliers: u64,
}

impl Samples {
    /// None yet; those above `outlier_ps` will count as outliers.
    #[must_use]
    pub fn new(outlier_ps: i64) -> Samples {
        Samples::bounded(outlier_ps, DISTINCT_MAX)
    }

    fn bounded(outlier_ps: i64, distinct_max: usize) -> Samples {
        Samples {
            table: Vec::new(),
            compact_at: COMPACT_MIN.min(2 * distinct_max),
            distinct_max,
            exact: true,
            count: 0,
            min: i64::MAX,
            max: i64::MIN,
            first: 0,
            sum: 0,
            squares: 0,
            outlier_ps,
            outliers: 0,
        }
    }

    /// One more, in picoseconds.
    pub fn push(&mut self, ps: i64) {
        if self.count == 0 {
            self.first = ps;
        }
        self.count += 1;
        self.min = self.min.min(ps);
        self.max = self.max.max(ps);
        let difference = i128::from(ps) - i128::from(self.first);
        self.sum += difference;
        let magnitude = difference.unsigned_abs();
        self.squares = self.squares.wrapping_add(magnitude.wrapping_mul(magnitude));
        self.outliers += u64::from(ps > self.outlier_ps);
        self.table.push((if self.exact { ps } else { rounded(ps) }, 1));
        if self.table.len() >= self.compact_at {
            self.compact();
        }
    }

    /// No more will come: put in order, memory given back.
    pub fn finish(&mut self) {
        self.compact();
        self.table.shrink_to_fit();
    }

    fn compact(&mut self) {
        merge(&mut self.table);
        if self.exact && self.table.len() > self.distinct_max {
            self.exact = false;
            self.table.iter_mut().for_each(|(ps, _)| *ps = rounded(*ps));
            merge(&mut self.table);
        }
        self.compact_at = (self.table.len() * 2).max(COMPACT_MIN.min(2 * self.distinct_max));
    }

    /// Whether every value is known exactly; else quantiles other than the extremes may be wrong by 0.003 %.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many above the outlier's bound.
    #[must_use]
    pub fn outliers(&self) -> u64 {
        self.outliers
    }

    /// The bound of outliers, in picoseconds.
    #[must_use]
    pub fn outlier_ps(&self) -> i64 {
        self.outlier_ps
    }

    /// The largest, in picoseconds; 0 without any.
    #[must_use]
    pub fn max_ps(&self) -> i64 {
        if self.count == 0 { 0 } else { self.max }
    }

    /// The values in ascending order and how often each came, after [`Samples::finish`].
    #[must_use]
    pub fn table(&self) -> &[(i64, u64)] {
        &self.table
    }

    /// How many values are below zero, after [`Samples::finish`].
    #[must_use]
    pub fn below_zero(&self) -> u64 {
        self.table.iter().take_while(|(ps, _)| *ps < 0).map(|(_, count)| count).sum()
    }

    /// Mean in microseconds; none without values.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        let count = i128::from(self.count);
        let whole = self.sum.checked_add(i128::from(self.first).checked_mul(count)?)?;
        (count > 0).then(|| ratio(whole, count * i128::from(super::unit::US_PS)))
    }

    /// Variance (divisor n - 1) in square microseconds; none below two values.
    #[must_use]
    pub fn variance_us2(&self) -> Option<f64> {
        if self.count < 2 {
            return None;
        }
        let count = i128::from(self.count);
        // Around a whole number next to the mean: exact, and no small difference of large numbers.
        let centre = (self.sum + count / 2).div_euclid(count);
        let rest = self.sum - centre * count;
        let (count_u, centre_u, sum_u) = (count as u128, centre as u128, self.sum as u128);
        let around = self
            .squares
            .wrapping_sub(centre_u.wrapping_mul(sum_u).wrapping_mul(2))
            .wrapping_add(centre_u.wrapping_mul(centre_u).wrapping_mul(count_u));
        // Bhatia and Davis 2000: a variance is at most (max - mean)(mean - min).
        let mean = i128::from(self.first) + centre;
        let (above, below) = (i128::from(self.max) - mean + 1, mean - i128::from(self.min) + 1);
        let bound = (above as f64) * (below as f64) * (self.count as f64);
        let ps2 = if bound < 2_f64.powi(127) {
            around as f64 - (rest as f64) * (rest as f64) / (self.count as f64)
        } else {
            // Times of hours beside times of microseconds, billions of them: the table knows them well enough.
            let square = |&(ps, times): &(i64, u64)| {
                let difference = (i128::from(ps) - mean) as f64;
                difference * difference * times as f64
            };
            self.table.iter().map(square).sum()
        };
        Some(ps2 / (self.count - 1) as f64 / (super::unit::US_PS as f64 * super::unit::US_PS as f64))
    }

    /// The quantile R's `quantile` computes by default (type 7 of Hyndman and Fan 1996), in microseconds, after
    /// [`Samples::finish`]; none without values.
    #[must_use]
    pub fn quantile_us(&self, share: Share) -> Option<f64> {
        let last = self.count.checked_sub(1)?;
        let Share(numerator, denominator) = share;
        assert!(numerator <= denominator && denominator > 0, "a share is at most 1");
        let position = u128::from(last) * u128::from(numerator);
        let (index, rest) = ((position / u128::from(denominator)) as u64, (position % u128::from(denominator)) as i128);
        let low = self.at(index);
        let high = if rest == 0 { low } else { self.at(index + 1) };
        let denominator = i128::from(denominator);
        let ps = i128::from(low) * denominator + (i128::from(high) - i128::from(low)) * rest;
        Some(ratio(ps, denominator * i128::from(super::unit::US_PS)))
    }

    /// How many values are above a quantile's position: what it rests on.
    #[must_use]
    pub fn beyond(&self, share: Share) -> u64 {
        let Share(numerator, denominator) = share;
        (u128::from(self.count) * u128::from(denominator - numerator) / u128::from(denominator)) as u64
    }

    /// The value at an index of the ordered values.
    fn at(&self, index: u64) -> i64 {
        // The extremes are exact always.
        if index == 0 {
            return self.min;
        }
        if index + 1 == self.count {
            return self.max;
        }
        let mut passed = 0_u64;
        for &(ps, times) in &self.table {
            passed += times;
            if passed > index {
                return ps.clamp(self.min, self.max);
            }
        }
        self.max
    }
}

/// In order, equal values as one.
fn merge(table: &mut Vec<(i64, u64)>) {
    table.sort_unstable_by_key(|(ps, _)| *ps);
    table.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        kept.1 += if same { next.1 } else { 0 };
        same
    });
}

/// The middle of the bucket of a value.
fn rounded(ps: i64) -> i64 {
    let magnitude = ps.unsigned_abs();
    let bits = u64::BITS - magnitude.leading_zeros();
    let Some(shift) = bits.checked_sub(APPROXIMATE_BITS + 1).filter(|shift| *shift > 0) else { return ps };
    let middle = (magnitude >> shift << shift) + (1 << (shift - 1));
    // The bucket of i64::MIN alone reaches beyond.
    let middle = i64::try_from(middle).unwrap_or(i64::MAX);
    if ps < 0 { -middle } else { middle }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The float nearest to a fraction; where a part of it is beyond 2^53 it may be the one next to it.
fn ratio(numerator: i128, denominator: i128) -> f64 {
    let divisor = gcd(numerator.unsigned_abs(), denominator.unsigned_abs()).max(1) as i128;
    let (numerator, denominator) = (numerator / divisor, denominator / divisor);
    const EXACT: i128 = 1 << 53;
    if numerator.abs() < EXACT && denominator < EXACT {
        return numerator as f64 / denominator as f64;
    }
    (numerator / denominator) as f64 + (numerator % denominator) as f64 / denominator as f64
}

#[cfg(test)]
mod tests;
