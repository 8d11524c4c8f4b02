//! Goal: quantiles, mean and deviation are those of all values sorted. Method: a naive model on random values, exact and
//! beyond the bound; borders by hand.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::redo::unit::US_PS;
use proptest::prelude::*;

const SHARES: [Share; 7] =
    [Share(0, 1), Share(1, 4), Share(1, 2), Share(3, 4), Share(99, 100), Share(99_999, 100_000), Share(1, 1)];

fn collected(values: &[i64], distinct_max: usize) -> Samples {
    let mut samples = Samples::bounded(500 * US_PS, distinct_max);
    values.iter().for_each(|ps| samples.push(*ps));
    samples.finish();
    samples
}

/// R's own lines for type 7, on floats.
fn naive_quantile_us(values: &[i64], share: Share) -> f64 {
    let mut sorted: Vec<f64> = values.iter().map(|ps| *ps as f64 / 1e6).collect();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() - 1) as f64 * (share.0 as f64 / share.1 as f64);
    let (low, high) = (index.floor(), index.ceil());
    let h = index - low;
    (1.0 - h) * sorted[low as usize] + h * sorted[high as usize]
}

fn naive_variance_us2(values: &[i64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().map(|ps| *ps as f64 / 1e6).sum::<f64>() / n;
    values.iter().map(|ps| (*ps as f64 / 1e6 - mean).powi(2)).sum::<f64>() / (n - 1.0)
}

fn close(a: f64, b: f64, by: f64) -> bool {
    (a - b).abs() <= by * a.abs().max(b.abs()).max(1e-6)
}

fn values() -> impl Strategy<Value = Vec<i64>> {
    prop_oneof![
        // Whole microseconds, many of them the same.
        proptest::collection::vec((0_i64..3_000).prop_map(|us| us * US_PS), 1..400),
        // Anything that is a redo time, and below zero.
        proptest::collection::vec(-1_000_000_000_i64..2_000_000_000_000, 1..400),
        // Few that are far apart.
        proptest::collection::vec(prop_oneof![Just(1_i64), Just(4_000_000_000_000_000)], 1..50),
    ]
}

proptest! {
    #[test]
    fn exact_is_what_sorting_gives(values in values()) {
        let samples = collected(&values, DISTINCT_MAX);
        prop_assert!(samples.is_exact());
        for share in SHARES {
            let (ours, naive) = (samples.quantile_us(share).unwrap(), naive_quantile_us(&values, share));
            prop_assert!(close(ours, naive, 1e-11), "{share:?}: {ours} {naive}");
        }
        let mean = values.iter().map(|ps| *ps as f64 / 1e6).sum::<f64>() / values.len() as f64;
        prop_assert!(close(samples.mean_us().unwrap(), mean, 1e-11));
        if values.len() > 1 {
            let (ours, naive) = (samples.variance_us2().unwrap(), naive_variance_us2(&values));
            prop_assert!(close(ours, naive, 1e-8) || (ours - naive).abs() < 1e-6, "{ours} {naive}");
        }
        let outliers = values.iter().filter(|ps| **ps > 500 * US_PS).count() as u64;
        prop_assert_eq!(samples.outliers(), outliers);
        prop_assert_eq!(samples.below_zero(), values.iter().filter(|ps| **ps < 0).count() as u64);
    }

    #[test]
    fn beyond_the_bound_it_is_close(values in values()) {
        let distinct: std::collections::BTreeSet<i64> = values.iter().copied().collect();
        let (samples, exact) = (collected(&values, 16), collected(&values, DISTINCT_MAX));
        prop_assert_eq!(samples.is_exact(), distinct.len() <= 16);
        for share in SHARES {
            let (ours, naive) = (samples.quantile_us(share).unwrap(), naive_quantile_us(&values, share));
            // Between two values of opposite sign a quantile may be as near to 0 as it likes.
            let slack = values.iter().map(|ps| ps.unsigned_abs()).max().unwrap_or(0) as f64 / 1e6 / 32768.0;
            let by = if distinct.first() < Some(&0) { slack } else { naive.abs() / 32768.0 };
            prop_assert!((ours - naive).abs() <= by * 1.0001 + 1e-6, "{share:?}: {ours} {naive}");
        }
        prop_assert_eq!(samples.mean_us(), exact.mean_us());
        prop_assert_eq!(samples.variance_us2(), exact.variance_us2());
        prop_assert_eq!(samples.outliers(), exact.outliers());
        prop_assert_eq!(samples.quantile_us(Share(0, 1)), exact.quantile_us(Share(0, 1)));
        prop_assert_eq!(samples.quantile_us(Share(1, 1)), exact.quantile_us(Share(1, 1)));
    }

    #[test]
    fn rounding_is_narrow(ps in any::<i64>()) {
        let difference = (i128::from(rounded(ps)) - i128::from(ps)).unsigned_abs();
        prop_assert!(difference << (APPROXIMATE_BITS + 1) <= u128::from(ps.unsigned_abs()));
        prop_assert_eq!(rounded(rounded(ps)), rounded(ps));
    }
}

#[test]
fn none_and_one() {
    let none = collected(&[], DISTINCT_MAX);
    assert_eq!((none.count(), none.mean_us(), none.quantile_us(Share(1, 2)), none.max_ps()), (0, None, None, 0));
    let one = collected(&[452 * US_PS], DISTINCT_MAX);
    assert_eq!((one.mean_us(), one.variance_us2(), one.quantile_us(Share(99, 100))), (Some(452.0), None, Some(452.0)));
}

#[test]
fn equal_values_have_no_deviation() {
    let same = collected(&[i64::MAX; 1000], DISTINCT_MAX);
    assert_eq!(same.variance_us2(), Some(0.0));
    assert_eq!(same.table(), [(i64::MAX, 1000)]);
}

/// The sum of squares goes round 2^128 here.
#[test]
fn the_widest_spread_there_is() {
    let extremes = collected(&[i64::MIN, i64::MAX], DISTINCT_MAX);
    let expected = (2_f64.powi(64) / 1e6).powi(2) / 2.0;
    assert!(close(extremes.variance_us2().unwrap(), expected, 1e-12));
    assert_eq!(extremes.mean_us(), Some(-0.000_000_5));
    assert_eq!(extremes.quantile_us(Share(1, 2)), Some(-0.000_000_5));
}

/// A small deviation of large values: where sums of squares in floats have no digit left.
#[test]
fn large_values_close_together() {
    let base = 9_000_000_000_000_000_000;
    let samples = collected(&[base, base + 1, base + 2, base + 3], DISTINCT_MAX);
    assert!(close(samples.variance_us2().unwrap() * 1e12, 5.0 / 3.0, 1e-15));
}

#[test]
fn many_distinct_values_stay_bounded() {
    let mut samples = Samples::bounded(i64::MAX, 1 << 10);
    let mut ps = 1_i64;
    for _ in 0..2_000_000 {
        ps = ps.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        samples.push(ps);
    }
    samples.finish();
    assert!(!samples.is_exact());
    assert!(samples.table().len() < DISTINCT_MAX / 2, "{}", samples.table().len());
    assert_eq!(samples.table().iter().map(|(_, times)| times).sum::<u64>(), 2_000_000);
}
