//! Which of two samples is better, and whether it matters, in sentences.
//!
//! With millions of times every difference is significant, so significance decides nothing here: the whole 95 % interval of the
//! difference of the means has to lie beyond [`MATTERS_PERCENT`] to matter, or within it to be no difference (two one-sided
//! tests, Schuirmann 1987). The mean hides what redo is about, so the tail is judged by itself. Never decides for the reader
//! where mean and tail disagree.

use super::rprint;
use super::samples::Share;
use super::summary::{PERCENTILES, Summary};
use super::welch::{Moments, Welch};

/// A difference of means within this much of B's is none: the bound this project holds its own flash log to.
pub const MATTERS_PERCENT: f64 = 0.5;
/// Tails within this ratio are alike: two runs of one thing differ by that.
const TAIL_RATIO: f64 = 1.1;
/// A percentile counts when at least so many times are above it.
const BEYOND_MIN: u64 = 10;
/// Numbers of outliers differ when they are so many of their standard errors apart (Poisson).
const OUTLIER_ERRORS: f64 = 3.0;

/// One of two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::A => "A",
            Side::B => "B",
        }
    }
    fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    /// This one is, by enough to matter.
    Is(Side),
    /// Neither, and that is known.
    Neither,
    /// The measurements do not tell.
    Unknown,
}

/// The judgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The better one; none when neither is, when it cannot be told, or when mean and tail disagree.
    pub better: Option<Side>,
    /// On the mean, on the tail, on the whole.
    pub sentences: [String; 3],
}

/// How much larger the mean of `a` is, in percent of that of `b`; none where that means nothing.
#[must_use]
pub(super) fn effect_percent(a: &Moments, b: &Moments) -> Option<f64> {
    (b.mean > 0.0).then(|| (a.mean - b.mean) / b.mean * 100.0)
}

/// Judge two samples and their test.
#[must_use]
pub(super) fn verdict(a: &Summary, b: &Summary, test: Option<&Welch>) -> Verdict {
    let (mean, on_mean) = judge_mean(&a.moments(), &b.moments(), test);
    let (tail, on_tail) = judge_tail(a, b);
    let better = |side: Side| (Some(side), format!("{} is better", side.name()));
    let (better, on_all) = match (mean, tail) {
        (Better::Is(one), Better::Is(other)) if one == other => {
            let (side, text) = better(one);
            (side, format!("{text}, in the mean and in the tail"))
        }
        (Better::Is(lower), Better::Is(shorter)) => (
            None,
            format!(
                "{} has the lower mean and {} the shorter tail: what users notice of redo is the tail",
                lower.name(),
                shorter.name()
            ),
        ),
        (Better::Is(side), _) => {
            let (side, text) = better(side);
            (side, format!("{text}, and it matters"))
        }
        (Better::Neither, Better::Is(side)) => {
            let (side, text) = better(side);
            (side, format!("{text}: the means are alike, its tail is shorter"))
        }
        (Better::Unknown, Better::Is(side)) => {
            let (side, text) = better(side);
            (side, format!("{text} in the tail; of the mean these measurements do not tell"))
        }
        (Better::Neither, Better::Neither) => (None, "no difference that matters".to_owned()),
        (Better::Neither, Better::Unknown) => {
            (None, "no difference of the means that matters; there are too few times to compare tails".to_owned())
        }
        (Better::Unknown, _) => (None, "these measurements do not tell which is better: take more".to_owned()),
    };
    Verdict { better, sentences: [on_mean, on_tail, on_all] }
}

fn one(x: f64) -> String {
    rprint::plain(x, 4)
}

fn judge_mean(a: &Moments, b: &Moments, test: Option<&Welch>) -> (Better, String) {
    let difference = a.mean - b.mean;
    let slower = if difference > 0.0 { Side::A } else { Side::B };
    let (faster, size) = (slower.other(), one(difference.abs()));
    let percent = |us: f64| us / b.mean * 100.0;
    if b.mean <= 0.0 {
        return (Better::Unknown, "B's mean is not above zero: no percentages".to_owned());
    }
    let relation = format!("{}'s mean is {size} us lower ({} % of B's)", faster.name(), one(percent(difference.abs())));
    let Some(test) = test else {
        if a.count < 2 || b.count < 2 {
            return (Better::Unknown, format!("{relation}; one time is no sample"));
        }
        // All but constant: the difference is what it is.
        return match percent(difference.abs()) > MATTERS_PERCENT {
            true => (Better::Is(faster), format!("{relation}, and the times are all but constant")),
            false => (Better::Neither, "the times are all but constant, and alike".to_owned()),
        };
    };
    let (low, high) = (percent(test.ci_low), percent(test.ci_high));
    let within = format!("95 % interval of A - B: {} to {} %", one(low), one(high));
    if low > MATTERS_PERCENT || high < -MATTERS_PERCENT {
        return (Better::Is(faster), format!("{relation}; {within}; more than {MATTERS_PERCENT} %, so it matters"));
    }
    if low >= -MATTERS_PERCENT && high <= MATTERS_PERCENT {
        return (
            Better::Neither,
            format!("{relation}; {within}; less than {MATTERS_PERCENT} %, so it does not matter"),
        );
    }
    let doubt = if low > 0.0 || high < 0.0 {
        "different, but whether by more than"
    } else {
        "whether they differ by more than"
    };
    (Better::Unknown, format!("{relation}; {within}; {doubt} {MATTERS_PERCENT} % is not known"))
}

fn judge_tail(a: &Summary, b: &Summary) -> (Better, String) {
    let outliers = |s: &Summary| (s.samples.outliers() as f64, s.samples.count() as f64);
    let ((many_a, of_a), (many_b, of_b)) = (outliers(a), outliers(b));
    let apart = (many_a / of_a - many_b / of_b).abs();
    let error = (many_a / of_a.powi(2) + many_b / of_b.powi(2)).sqrt();
    let counted = format!("outliers: {} in A, {} in B", a.samples.outliers(), b.samples.outliers());
    let enough = |share: Share| a.samples.beyond(share) >= BEYOND_MIN && b.samples.beyond(share) >= BEYOND_MIN;
    // The deepest one that rests on enough times, from 99 % on.
    let deepest = PERCENTILES.iter().enumerate().skip(2).rev().find(|(_, (_, _, share))| enough(*share));
    let (by_percentile, told) = match deepest {
        None => (Better::Unknown, "too few times for a percentile of the tail".to_owned()),
        Some((at, (name, _, _))) => {
            let (tail_a, tail_b) = (a.percentiles[at], b.percentiles[at]);
            let better = if tail_a > tail_b * TAIL_RATIO {
                Better::Is(Side::B)
            } else if tail_b > tail_a * TAIL_RATIO {
                Better::Is(Side::A)
            } else {
                Better::Neither
            };
            (better, format!("{name} is {} us in A and {} us in B", one(tail_a), one(tail_b)))
        }
    };
    let better = if apart > OUTLIER_ERRORS * error && a.samples.outliers() + b.samples.outliers() >= BEYOND_MIN {
        Better::Is(if many_a / of_a > many_b / of_b { Side::B } else { Side::A })
    } else {
        by_percentile
    };
    (better, format!("{told}; {counted}"))
}

#[cfg(test)]
mod tests;
