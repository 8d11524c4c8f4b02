//! Goal: every digit R prints. Method: published outputs of R on data sets that come with it, values computed with 30 digits,
//! and S1 solved backwards. There is no R on the machines this was written on: each value says where it was published.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

fn moments(values: &[f64]) -> Moments {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
    Moments { count: values.len() as u64, mean, variance }
}

fn close(ours: f64, expected: f64, by: f64) {
    assert!((ours - expected).abs() <= by * expected.abs(), "{ours:?} is not {expected:?}");
}

/// `t.test(extra ~ group, data = sleep)`, the example of R's own help page, to 15 digits: printed by the tests of the R package
/// parameters (easystats/parameters, tests/testthat, model_parameters of htest).
#[test]
fn sleep_to_fifteen_digits() {
    let one = moments(&[0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]);
    let two = moments(&[1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]);
    let test = welch(&one, &two).unwrap();
    close(test.t, -1.860_813_467_486_85, 1e-13);
    close(test.df, 17.776_473_516_178_5, 1e-13);
    close(test.p_value, 0.079_394_140_187_358_2, 1e-12);
    close(test.ci_low, -3.365_483_230_711_71, 1e-13);
    close(test.ci_high, 0.205_483_230_711_71, 1e-12);
}

/// Values of Student's distribution at many degrees of freedom, computed with 30 digits by mpmath (the quantiles by Newton's method, the
/// tails by integration of the density).
#[test]
fn student_at_every_size() {
    for (df, quantile) in [
        (1.0, 12.706_204_736_174_705),
        (2.0, 4.302_652_729_749_464),
        (9.0, 2.262_157_162_798_205_5),
        (55.309, 2.003_793_156_137_495_2),
        (1e3, 1.962_339_080_826_408_5),
        (1e5, 1.959_987_707_534_609_6),
        (1e6, 1.959_966_356_814_107),
        (7_977_922.0, 1.959_964_281_894_626_5),
    ] {
        close(quantile_975(df).unwrap(), quantile, 1e-12);
    }
    for (df, t, both) in [
        (1e5, 1.0, 0.317_312_927_564_11),
        (1e5, 5.0, 5.742_701_678_641_673e-7),
        (7_977_922.0, 1.860_8, 0.062_772_462_272_594_98),
        (7_977_922.0, 5.0, 5.733_152_568_864_658e-7),
        (1e9, 0.0001, 0.999_920_211_544_072_6),
        (1e9, 1.0, 0.317_310_508_104_884_8),
    ] {
        close(2.0 * tail(t, df).unwrap(), both, 2e-9);
    }
    // Where one way of computing hands over to the other there is no step.
    for (from, what) in [(QUANTILE_NORMAL_DF, 1e-5), (TAIL_NORMAL_DF, 1e-7)] {
        let below = from * (1.0 - 1e-12);
        close(quantile_975(below).unwrap(), quantile_975(from).unwrap(), what * 1e-6);
        close(tail(2.0, below).unwrap(), tail(2.0, from).unwrap(), 1e-9);
    }
}

/// S1: t = 263.2139, df = 7977922, 95 % interval 33.43 to 33.93 of two samples of four million each.
#[test]
fn the_field_measurement() {
    let count = 4_000_000;
    let sample = |mean: f64, deviation: f64| Moments { count, mean, variance: deviation * deviation };
    // With the deviations as they are given, rounded.
    let rounded = welch(&sample(542.38, 185.7), &sample(508.70, 176.1)).unwrap();
    assert_eq!(format!("{:.2} {:.2}", rounded.ci_low, rounded.ci_high), "33.43 33.93");
    assert_eq!(rounded.p_value, 0.0, "p < 2.2e-16");
    // Solved from t, df and the middle of the interval.
    let difference: f64 = (33.43 + 33.93) / 2.0;
    let squares = (difference / 263.2139).powi(2) * count as f64;
    // (1 + r)^2 / (1 + r^2) = df / (n - 1), r the ratio of the variances.
    let k = 7_977_922.0 / (count as f64 - 1.0);
    let r = (1.0 - (1.0 - (k - 1.0_f64).powi(2)).sqrt()) / (k - 1.0);
    let (on, off) = ((squares / (1.0 + r)).sqrt(), (squares * r / (1.0 + r)).sqrt());
    assert_eq!(format!("{on:.1} {off:.1}"), "185.7 176.1");
    let solved = welch(&sample(542.38, on), &sample(508.70, off)).unwrap();
    assert_eq!(format!("{:.4} {:.0}", solved.t, solved.df), "263.2139 7977922");
    assert_eq!(format!("{:.2} {:.2}", solved.ci_low, solved.ci_high), "33.43 33.93");
}

#[test]
fn nothing_to_test() {
    let some = Moments { count: 10, mean: 5.0, variance: 1.0 };
    assert_eq!(welch(&some, &Moments { count: 1, mean: 5.0, variance: 0.0 }), None);
    let constant = Moments { count: 10, mean: 5.0, variance: 0.0 };
    assert_eq!(welch(&constant, &constant), None);
    let test = welch(&some, &constant).unwrap();
    assert_eq!((test.t, test.p_value), (0.0, 1.0));
}

/// The other way round it is the same test.
#[test]
fn it_is_symmetric() {
    let (a, b) = (Moments { count: 40, mean: 5.0, variance: 1.0 }, Moments { count: 17, mean: 6.0, variance: 9.0 });
    let (there, back) = (welch(&a, &b).unwrap(), welch(&b, &a).unwrap());
    assert_eq!((there.t, there.df, there.p_value), (-back.t, back.df, back.p_value));
    assert_eq!((there.ci_low, there.ci_high), (-back.ci_high, -back.ci_low));
}
