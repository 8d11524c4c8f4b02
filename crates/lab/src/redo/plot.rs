//! A picture of one or two samples: how dense the times lie on a logarithmic axis, which shows the hump, and their percentiles on an
//! axis of nines, which shows the tail.
//!
//! Drawing is all that is done in floats here; no number is decided by it.

use super::samples::Samples;
use super::unit::US_PS;
use crate::output::{escaped, svg_head};
use std::fmt::Write;

const WIDTH_PX: f64 = 860.0;
const PANEL_PX: f64 = 300.0;
const LEFT_PX: f64 = 80.0;
const RIGHT_PX: f64 = 20.0;
const TOP_PX: f64 = 60.0;
const BETWEEN_PX: f64 = 64.0;
const COLOURS: [&str; 2] = ["#c0392b", "#2980b9"];
/// Points of a curve, as of R's `density`.
pub(crate) const POINTS: usize = 512;
/// The last percentile drawn is the one that rests on this many times.
const TAIL_TIMES: f64 = 1.0;

/// A sample and its name.
pub(crate) struct Series<'a> {
    pub(crate) name: &'a str,
    pub(crate) samples: &'a Samples,
}

/// Decimal logarithms of times in microseconds with their weights; times of zero have none.
fn logarithms(samples: &Samples) -> impl Iterator<Item = (f64, f64)> {
    let above = samples.table().iter().filter(|(ps, _)| *ps > 0);
    above.map(|(ps, times)| ((*ps as f64 / US_PS as f64).log10(), *times as f64))
}

/// The ends of the axis of times; a decade when all are the same.
pub(crate) fn range(series: &[Series<'_>]) -> Option<(f64, f64)> {
    let mut ends: Option<(f64, f64)> = None;
    for one in series {
        for (log, _) in logarithms(one.samples) {
            let (low, high) = ends.unwrap_or((log, log));
            ends = Some((low.min(log), high.max(log)));
        }
    }
    ends.map(|(low, high)| if high - low < 0.1 { (low - 0.5, high + 0.5) } else { (low - 0.05, high + 0.05) })
}

/// Densities per decade at `POINTS` points: a Gaussian kernel of Silverman's width (R's `bw.nrd0`) over narrow bins.
pub(crate) fn density(samples: &Samples, low: f64, high: f64) -> Vec<f64> {
    let step = (high - low) / (POINTS - 1) as f64;
    let mut bins = vec![0.0_f64; POINTS];
    let (mut total, mut sum) = (0.0, 0.0);
    for (log, weight) in logarithms(samples) {
        // Shared between the two bins next to it, as R does: whole microseconds would beat with the bins.
        let at = ((log - low) / step).clamp(0.0, (POINTS - 1) as f64);
        let (bin, share) = (at as usize, at.fract());
        bins[bin] += weight * (1.0 - share);
        bins[(bin + 1).min(POINTS - 1)] += weight * share;
        total += weight;
        sum += weight * log;
    }
    if total == 0.0 {
        return bins;
    }
    let mean = sum / total;
    let variance = logarithms(samples).map(|(log, weight)| weight * (log - mean).powi(2)).sum::<f64>() / total;
    let quartile = |share: f64| {
        let mut passed = 0.0;
        let found = logarithms(samples).find(|(_, weight)| {
            passed += weight;
            passed >= share * total
        });
        found.map_or(mean, |(log, _)| log)
    };
    let spread = [variance.sqrt(), (quartile(0.75) - quartile(0.25)) / 1.34];
    let spread = spread.into_iter().filter(|s| *s > 0.0).fold(f64::INFINITY, f64::min);
    // Never narrower than the bins, or the curve shows them instead of the times.
    let narrowest = 1.5 * step;
    let width = if spread.is_finite() { (0.9 * spread * total.powf(-0.2)).max(narrowest) } else { narrowest };
    let kernel = |distance: f64| (-0.5 * (distance / width).powi(2)).exp() / (width * std::f64::consts::TAU.sqrt());
    let reach = ((5.0 * width / step).ceil() as usize).min(POINTS);
    let at = |point: usize| {
        let near = point.saturating_sub(reach)..(point + reach + 1).min(POINTS);
        near.map(|bin| bins[bin] / total * kernel((point as f64 - bin as f64) * step)).sum()
    };
    (0..POINTS).map(at).collect()
}

/// Times by how many nines are below them: (-log10 of the share above, log10 of the time).
pub(crate) fn percentiles(samples: &Samples) -> Vec<(f64, f64)> {
    let count = samples.count() as f64;
    let mut passed = 0.0;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for &(ps, times) in samples.table() {
        let above = (count - passed).max(TAIL_TIMES) / count;
        passed += times as f64;
        if ps <= 0 {
            continue;
        }
        let point = (-above.log10(), (ps as f64 / US_PS as f64).log10());
        // Half a pixel more is worth a point.
        let far = points.last().is_none_or(|last| point.0 - last.0 > 0.004 || point.1 - last.1 > 0.004);
        if far {
            points.push(point);
        }
    }
    let highest = samples.max_ps();
    if highest > 0 {
        points.push((count.log10(), (highest as f64 / US_PS as f64).log10()));
    }
    points
}

pub(crate) fn label(us: f64) -> String {
    let (value, unit) = match us {
        ..1.0 => (us * 1e3, "ns"),
        1.0..1e3 => (us, "us"),
        1e3..1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    format!("{} {unit}", (value * 1e6).round() / 1e6)
}

/// `99.9%` for three of them.
pub(crate) fn nines_label(nines: usize) -> String {
    match nines {
        0 => "0%".to_owned(),
        1 => "90%".to_owned(),
        2 => "99%".to_owned(),
        _ => format!("99.{}%", "9".repeat(nines - 2)),
    }
}

/// Marks of the axis of times: 1, 2, 5 of every decade when there are few, else decades.
pub(crate) fn marks(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = if high - low < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let decades = (low.floor() as i32)..=(high.ceil() as i32);
    let all = decades.flat_map(|decade| steps.iter().map(move |step| step.log10() + f64::from(decade)));
    all.filter(|mark| (low..=high).contains(mark)).collect()
}

fn path(svg: &mut String, points: impl Iterator<Item = (f64, f64)>, colour: &str, name: &str) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" points=\"{}\"><title>{}</title></polyline>",
        points.join(" "),
        escaped(name)
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(words));
}

fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64), stroke: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {stroke}/>");
}

/// The picture, as SVG.
pub(super) fn plot(series: &[Series<'_>]) -> String {
    let height = TOP_PX + 2.0 * PANEL_PX + BETWEEN_PX + 44.0;
    let mut svg = svg_head(WIDTH_PX as u64, height as u64);
    let right = WIDTH_PX - RIGHT_PX;
    for (i, (one, colour)) in series.iter().zip(COLOURS).enumerate() {
        let y = 18.0 + 18.0 * i as f64;
        rule(
            &mut svg,
            (LEFT_PX, y - 4.0),
            (LEFT_PX + 24.0, y - 4.0),
            &format!("stroke=\"{colour}\" stroke-width=\"3\""),
        );
        text(&mut svg, LEFT_PX + 32.0, y, "start", one.name);
    }
    let Some((low, high)) = range(series) else {
        text(&mut svg, LEFT_PX, TOP_PX + 20.0, "start", "no time above zero");
        svg.push_str("</svg>\n");
        return svg;
    };
    let grid = "stroke=\"#ddd\"";
    // Density: times from left to right.
    let x = |log: f64| LEFT_PX + (log - low) / (high - low) * (right - LEFT_PX);
    let bottom = TOP_PX + PANEL_PX;
    for mark in marks(low, high) {
        rule(&mut svg, (x(mark), TOP_PX), (x(mark), bottom), grid);
        text(&mut svg, x(mark), bottom + 16.0, "middle", &label(10_f64.powf(mark)));
    }
    let curves: Vec<Vec<f64>> = series.iter().map(|one| density(one.samples, low, high)).collect();
    let highest = curves.iter().flatten().fold(f64::MIN_POSITIVE, |most, d| most.max(*d));
    let step = (high - low) / (POINTS - 1) as f64;
    for ((one, curve), colour) in series.iter().zip(&curves).zip(COLOURS) {
        let points = curve.iter().enumerate();
        let points = points.map(|(i, d)| (x(low + i as f64 * step), bottom - d / highest * (PANEL_PX - 10.0)));
        path(&mut svg, points, colour, one.name);
    }
    text(&mut svg, LEFT_PX, TOP_PX - 6.0, "start", "density of the times (logarithmic axis)");
    rule(&mut svg, (LEFT_PX, bottom), (right, bottom), "stroke=\"#555\"");
    // Percentiles: nines from left to right, times upwards.
    let top = bottom + BETWEEN_PX;
    let bottom = top + PANEL_PX;
    let nines = series.iter().map(|one| (one.samples.count() as f64).log10()).fold(1.0, f64::max);
    let x = |nine: f64| LEFT_PX + nine / nines * (right - LEFT_PX);
    let y = |log: f64| bottom - (log - low) / (high - low) * PANEL_PX;
    for mark in marks(low, high) {
        rule(&mut svg, (LEFT_PX, y(mark)), (right, y(mark)), grid);
        text(&mut svg, LEFT_PX - 6.0, y(mark) + 4.0, "end", &label(10_f64.powf(mark)));
    }
    for nine in 0..=nines.floor() as usize {
        let name = nines_label(nine);
        rule(&mut svg, (x(nine as f64), top), (x(nine as f64), bottom), grid);
        text(&mut svg, x(nine as f64), bottom + 16.0, "middle", &name);
    }
    for (one, colour) in series.iter().zip(COLOURS) {
        path(&mut svg, percentiles(one.samples).into_iter().map(|(nine, log)| (x(nine), y(log))), colour, one.name);
    }
    text(&mut svg, LEFT_PX, top - 6.0, "start", "percentiles");
    rule(&mut svg, (LEFT_PX, bottom), (right, bottom), "stroke=\"#555\"");
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl Iterator<Item = i64>) -> Samples {
        let mut samples = Samples::new(i64::MAX);
        values.for_each(|ps| samples.push(ps));
        samples.finish();
        samples
    }

    /// The area under a density is 1, and its top is where the times are.
    #[test]
    fn density_is_one() {
        let hump = samples((0..10_000).map(|i| (400 + i % 100 + i / 100) * US_PS));
        let (low, high) = (1.0, 4.0);
        let curve = density(&hump, low, high);
        let step = (high - low) / (POINTS - 1) as f64;
        let area: f64 = curve.iter().sum::<f64>() * step;
        assert!((area - 1.0).abs() < 0.01, "{area}");
        let top = curve.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(at, _)| at);
        let us = 10_f64.powf(low + top as f64 * step);
        assert!((440.0..560.0).contains(&us), "{us}");
    }

    #[test]
    fn percentiles_rise_to_the_highest() {
        let points = percentiles(&samples((1..=1000).map(|us| us * US_PS)));
        assert!(points.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1));
        // A tenth of the times is above 900 us.
        let near = points.iter().find(|p| p.0 >= 1.0).map_or(0.0, |p| p.1);
        assert!((10_f64.powf(near) - 900.0).abs() < 10.0, "{near}");
        assert_eq!(points.last(), Some(&(3.0, 3.0)));
    }

    #[test]
    fn pictures_are_whole() {
        let (one, zero) = (samples([7 * US_PS].into_iter()), samples([0].into_iter()));
        let many = samples((1..5000).map(|us| us * US_PS));
        for (a, b) in [(&one, &many), (&zero, &one), (&zero, &zero), (&many, &many)] {
            let svg = plot(&[Series { name: "a<b", samples: a }, Series { name: "b", samples: b }]);
            assert!(svg.contains("a&lt;b") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let svg = plot(&[Series { name: "many", samples: &many }]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">1 ms<") && svg.contains(">99.9%<"), "{svg}");
    }
}
