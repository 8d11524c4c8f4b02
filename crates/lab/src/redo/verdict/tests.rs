//! Goal: each sentence is said when it is true. Method: samples made for it, through the whole of a comparison.

use super::*;
use crate::redo::samples::Samples;
use crate::redo::source::{Malformed, Pool};
use crate::redo::unit::US_PS;
use crate::redo::welch::welch;
use std::collections::BTreeMap;

fn sample(times_us: impl Iterator<Item = i64>) -> Summary {
    let mut samples = Samples::new(500_000 * US_PS);
    times_us.for_each(|us| samples.push(us * US_PS));
    samples.finish();
    Summary::of(Pool {
        name: String::new(),
        formats: Vec::new(),
        wait: String::new(),
        files: 1,
        samples,
        kinds: BTreeMap::new(),
        left_out: 0,
        malformed: Malformed::default(),
    })
}

/// `count` times around `centre`, every 1000th of them `stall`.
fn times(count: i64, centre: i64, stall: i64) -> Summary {
    sample((0..count).map(|i| if i % 1000 == 999 { stall } else { centre + i * 7919 % 100 }))
}

fn judged(a: &Summary, b: &Summary) -> (Option<Side>, String) {
    let verdict = verdict(a, b, welch(&a.moments(), &b.moments()).as_ref());
    (verdict.better, verdict.sentences[2].clone())
}

#[test]
fn every_verdict() {
    let said = |a: &Summary, b: &Summary, better, text: &str| {
        assert_eq!(judged(a, b), (better, text.to_owned()));
        // The other way round the other side is better, in the same words.
        let (turned, _) = judged(b, a);
        assert_eq!(turned, better.map(Side::other));
    };
    let base = times(100_000, 500, 600);
    said(
        &times(100_000, 550, 700),
        &times(100_000, 450, 590),
        Some(Side::B),
        "B is better, in the mean and in the tail",
    );
    said(&times(100_000, 520, 600), &base, Some(Side::B), "B is better, and it matters");
    said(&times(100_000, 501, 600), &base, None, "no difference that matters");
    said(&times(100_000, 500, 1200), &base, Some(Side::B), "B is better: the means are alike, its tail is shorter");
    said(
        &times(100_000, 520, 600),
        &times(100_000, 450, 800),
        None,
        "B has the lower mean and A the shorter tail: what users notice of redo is the tail",
    );
    said(
        &times(300, 500, 600),
        &times(300, 501, 600),
        None,
        "these measurements do not tell which is better: take more",
    );
    said(
        &sample([500; 20].into_iter()),
        &sample([500; 20].into_iter()),
        None,
        "no difference of the means that matters; there are too few times to compare tails",
    );
    said(&sample([510; 20].into_iter()), &sample([500; 20].into_iter()), Some(Side::B), "B is better, and it matters");
    said(&sample([510].into_iter()), &base, None, "these measurements do not tell which is better: take more");
    // A mean of stalls is wide: it does not tell, the outliers do.
    said(
        &times(20_000, 500, 600_000),
        &times(20_000, 500, 100_000),
        Some(Side::B),
        "B is better, in the mean and in the tail",
    );
}

#[test]
fn means_are_told_in_percent() {
    let (a, b) = (times(100_000, 550, 600), times(100_000, 500, 600));
    let test = welch(&a.moments(), &b.moments());
    let (mean, text) = judge_mean(&a.moments(), &b.moments(), test.as_ref());
    assert_eq!(mean, Better::Is(Side::B));
    assert_eq!(
        text,
        "B's mean is 49.95 us lower (9.09 % of B's); 95 % interval of A - B: 9.044 to 9.136 %; more than 0.5 %, so it matters"
    );
    let nothing = sample([0; 3].into_iter());
    assert_eq!(judge_mean(&b.moments(), &nothing.moments(), None).0, Better::Unknown);
}

/// Ten outliers more of a million are chance when there are a hundred, and are not when there were none.
#[test]
fn outliers_are_counted_against_chance() {
    let with = |outliers: i64| sample((0..100_000).map(move |i| if i < outliers { 900_000 } else { 500 + i % 7 }));
    assert_eq!(judge_tail(&with(15), &with(0)).0, Better::Is(Side::B));
    assert_eq!(judge_tail(&with(0), &with(15)).0, Better::Is(Side::A));
    let (better, text) = judge_tail(&with(110), &with(100));
    assert_eq!(better, Better::Neither);
    assert_eq!(text, "99.99% is 900000 us in A and 900000 us in B; outliers: 110 in A, 100 in B");
}
