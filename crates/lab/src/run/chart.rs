//! Charts of the report, as SVG inside a page: stacked bars, and curves on two axes.
//!
//! They are as wide as the page lets them be: what lies across is in percent, letters keep their size, so that a phone shows what a desk
//! does. What a colour says, a pattern or a letter says too. Drawing is all that is done in floats here; no figure is decided by it.

use crate::output::escaped;
use std::fmt::Write;

/// Patterns there are; the page defines them.
pub(super) const PATTERNS: usize = 8;
/// A part of a bar narrower than this, in percent of the chart, has no room for its letter.
const LETTER_PERCENT: f64 = 4.0;
const BAR_PX: u32 = 22;
/// Curves: the area, with room above it for its name and below it for marks.
const AREA_PX: f64 = 210.0;
const ABOVE_PX: f64 = 20.0;
const BELOW_PX: f64 = 36.0;

/// One bar.
pub(super) struct Bar {
    /// The configuration whose time the bar shows; printed above the bar.
    pub(super) name: String,
    /// The whole, and what is to be said of it.
    pub(super) note: String,
    /// Parts, in the order of the kinds of [`Bars`].
    pub(super) parts: Vec<f64>,
    /// The field's figure for the whole bar.
    pub(super) field: Option<f64>,
}

/// Stacked horizontal bars.
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) unit: &'static str,
    /// Who that is, mostly the field.
    pub(super) mark: &'static str,
    /// What the parts are.
    pub(super) kinds: Vec<&'static str>,
    pub(super) bars: Vec<Bar>,
}

/// An axis from one end to the other, with marks.
pub(super) struct Axis {
    pub(super) name: String,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) marks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to `high`, with four marks or so.
    pub(super) fn linear(name: &str, high: f64) -> Axis {
        let high = if high > 0.0 { high } else { 1.0 };
        let decade = 10_f64.powf(high.log10().floor());
        let steps = [0.2, 0.5, 1.0, 2.0, 5.0];
        let step = decade * steps.into_iter().find(|step| high / (decade * step) <= 5.0).unwrap_or(5.0);
        let marks = (0..=5).map(|n| f64::from(n) * step).filter(|mark| *mark <= high);
        Axis { name: name.to_owned(), low: 0.0, high: high * 1.05, marks: marks.map(|m| (m, plain(m))).collect() }
    }

    /// Where a value lies, in percent of the axis.
    fn percent(&self, value: f64) -> f64 {
        100.0 * (value - self.low) / (self.high - self.low)
    }
}

/// A curve, known by its letter.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Curves on two axes.
pub(super) struct Curves {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) curves: Vec<Curve>,
    /// Points are few: each is shown.
    pub(super) dots: bool,
    /// Curves are told by where they are highest.
    pub(super) has_tops: bool,
}

/// What is drawn of an experiment.
pub(super) enum Chart {
    Bars(Bars),
    Curves(Curves),
}

impl Chart {
    pub(super) fn html(&self) -> String {
        match self {
            Chart::Bars(bars) => bars.html(),
            Chart::Curves(curves) => curves.html(),
        }
    }
}

/// Digits that are worth showing.
pub(super) fn plain(value: f64) -> String {
    let digits = match value.abs() {
        v if v == 0.0 || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn letter(n: usize) -> char {
    u8::try_from(n).map_or('?', |n| char::from(b'A' + n % 26))
}

impl Bars {
    fn html(&self) -> String {
        let mut out =
            format!("<figure class=\"bars\"><figcaption>{}</figcaption>\n<p class=\"key\">", escaped(&self.title));
        let used = |n: usize| self.bars.iter().any(|bar| bar.parts.get(n).is_some_and(|part| *part > 0.0));
        // Writing to a string cannot fail.
        for (n, kind) in self.kinds.iter().enumerate().filter(|(n, _)| used(*n)) {
            let _ = write!(
                out,
                "<span><svg class=\"box\" width=\"22\" height=\"14\" aria-hidden=\"true\"><rect width=\"22\" height=\"14\" fill=\"url(#p{})\"/>\
                 </svg> {}&#160;{}</span> ",
                n % PATTERNS,
                letter(n),
                escaped(kind)
            );
        }
        if self.bars.iter().any(|bar| bar.field.is_some()) {
            let _ = write!(
                out,
                "<span><svg class=\"box\" width=\"10\" height=\"14\" aria-hidden=\"true\"><line class=\"field\" x1=\"5\" y1=\"0\" x2=\"5\" y2=\"14\"/>\
                 </svg> {}</span>",
                escaped(self.mark)
            );
        }
        out.push_str("</p>\n");
        let whole = |bar: &Bar| bar.parts.iter().sum::<f64>().max(bar.field.unwrap_or(0.0));
        let longest = self.bars.iter().map(whole).fold(f64::MIN_POSITIVE, f64::max);
        for bar in &self.bars {
            self.bar(&mut out, bar, longest);
        }
        out.push_str("</figure>\n");
        out
    }

    fn bar(&self, out: &mut String, bar: &Bar, longest: f64) {
        let (name, note) = (escaped(&bar.name), escaped(&bar.note));
        let _ = writeln!(
            out,
            "<p class=\"bar\"><b>{name}</b> {note}</p>\n<svg width=\"100%\" height=\"{BAR_PX}\" role=\"img\" aria-label=\"{name}: {note}\">"
        );
        let mut at = 0.0;
        for (n, part) in bar.parts.iter().enumerate().filter(|(_, part)| **part > 0.0) {
            // The mark of the field stands in the chart, also at its end.
            let width = part / longest * 99.0;
            let _ = writeln!(
                out,
                "<rect x=\"{at:.3}%\" width=\"{width:.3}%\" height=\"{BAR_PX}\" fill=\"url(#p{})\"><title>{}: {} {}</title></rect>",
                n % PATTERNS,
                escaped(self.kinds.get(n).unwrap_or(&"")),
                plain(*part),
                self.unit
            );
            if width >= LETTER_PERCENT {
                let middle = at + width / 2.0;
                let _ = writeln!(out, "<text class=\"in\" x=\"{middle:.3}%\" y=\"16\">{}</text>", letter(n));
            }
            at += width;
        }
        if let Some(field) = bar.field {
            let x = field / longest * 99.0;
            let _ = writeln!(
                out,
                "<line class=\"field\" x1=\"{x:.3}%\" x2=\"{x:.3}%\" y1=\"0\" y2=\"{BAR_PX}\"><title>{}: {} {}</title></line>",
                escaped(self.mark),
                plain(field),
                self.unit
            );
        }
        out.push_str("</svg>\n");
    }
}

impl Curves {
    fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut out = format!("<figure class=\"curves\"><figcaption>{title}</figcaption>\n<p class=\"key\">");
        for (n, curve) in self.curves.iter().enumerate() {
            let _ = write!(
                out,
                "<span><svg class=\"box\" width=\"30\" height=\"12\" aria-hidden=\"true\"><line class=\"c c{}\" x1=\"0\" y1=\"6\" x2=\"30\" y2=\"6\"/>\
                 </svg> {}&#160;{}</span> ",
                n % PATTERNS,
                letter(n),
                escaped(&curve.name)
            );
        }
        let height = ABOVE_PX + AREA_PX + BELOW_PX;
        let _ = writeln!(out, "</p>\n<svg width=\"100%\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">");
        let y_px = |value: f64| ABOVE_PX + AREA_PX * (1.0 - self.y.percent(value) / 100.0);
        let bottom = ABOVE_PX + AREA_PX;
        for (mark, _) in &self.x.marks {
            let x = self.x.percent(*mark);
            let _ =
                writeln!(out, "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{ABOVE_PX}\" y2=\"{bottom}\"/>");
        }
        for (mark, _) in &self.y.marks {
            let y = y_px(*mark);
            let _ = writeln!(out, "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        }
        // Stretched to the width that there is; lines are not.
        let _ = writeln!(
            out,
            "<svg x=\"0\" y=\"{ABOVE_PX}\" width=\"100%\" height=\"{AREA_PX}\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\">"
        );
        for (n, curve) in self.curves.iter().enumerate() {
            let place = |(x, y): &(f64, f64)| {
                format!("{:.1},{:.1}", 10.0 * self.x.percent(*x), 1000.0 - 10.0 * self.y.percent(*y))
            };
            let points: Vec<String> = curve.points.iter().map(place).collect();
            let _ = writeln!(
                out,
                "<polyline class=\"c c{}\" vector-effect=\"non-scaling-stroke\" points=\"{}\"><title>{}</title></polyline>",
                n % PATTERNS,
                points.join(" "),
                escaped(&curve.name)
            );
        }
        out.push_str("</svg>\n");
        let mut placed = Vec::new();
        for (n, curve) in self.curves.iter().enumerate() {
            self.points(&mut out, n, curve, &y_px, &mut placed);
        }
        self.marks(&mut out, &y_px);
        out.push_str("</svg></figure>\n");
        out
    }

    /// Dots, and the letter of the curve: where it is highest, or each a bit further on.
    fn points(
        &self,
        out: &mut String,
        n: usize,
        curve: &Curve,
        y_px: &impl Fn(f64) -> f64,
        placed: &mut Vec<(f64, f64)>,
    ) {
        if self.dots {
            for (x, y) in &curve.points {
                let (cx, cy) = (self.x.percent(*x), y_px(*y));
                let _ = writeln!(
                    out,
                    "<circle class=\"d c{}\" cx=\"{cx:.2}%\" cy=\"{cy:.1}\" r=\"3.5\"><title>{}: {}</title></circle>",
                    n % PATTERNS,
                    escaped(&curve.name),
                    plain(*y)
                );
            }
        }
        let at = self.x.low + (self.x.high - self.x.low) * (n as f64 + 1.0) / (self.curves.len() as f64 + 1.0);
        let near = || curve.points.iter().min_by(|a, b| (a.0 - at).abs().total_cmp(&(b.0 - at).abs())).copied();
        let top = || curve.points.iter().max_by(|a, b| a.1.total_cmp(&b.1)).copied();
        let Some((x, y)) = (if self.has_tops { top() } else { near() }) else { return };
        let (mut x, y) = (self.x.percent(x).clamp(1.5, 98.5), y_px(y) - 5.0);
        // Curves on top of each other keep their letters apart.
        while placed.iter().any(|(other_x, other_y)| (x - other_x).abs() < 2.9 && (y - other_y).abs() < 11.0)
            && x < 98.0
        {
            x += 0.5;
        }
        placed.push((x, y));
        let _ = writeln!(out, "<text class=\"on\" x=\"{x:.2}%\" y=\"{y:.1}\">{}</text>", letter(n));
    }

    fn marks(&self, out: &mut String, y_px: &impl Fn(f64) -> f64) {
        let bottom = ABOVE_PX + AREA_PX;
        let _ = writeln!(out, "<line class=\"axis\" x1=\"0\" x2=\"100%\" y1=\"{bottom}\" y2=\"{bottom}\"/>");
        for (mark, name) in &self.y.marks {
            let _ =
                writeln!(out, "<text class=\"on y\" x=\"2\" y=\"{:.1}\">{}</text>", y_px(*mark) - 3.0, escaped(name));
        }
        // Marks that would run into each other on a phone are left out.
        let mut free = f64::NEG_INFINITY;
        for (mark, name) in &self.x.marks {
            let x = self.x.percent(*mark);
            let anchor = match x {
                ..6.0 => "start",
                94.0.. => "end",
                _ => "middle",
            };
            if x >= free {
                let _ = writeln!(
                    out,
                    "<text x=\"{x:.2}%\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
                    bottom + 15.0,
                    escaped(name)
                );
                free = x + 11.0;
            }
        }
        let _ = writeln!(out, "<text x=\"2\" y=\"12\">{}</text>", escaped(&self.y.name));
        let _ = writeln!(
            out,
            "<text x=\"100%\" y=\"{}\" text-anchor=\"end\">{}</text>",
            bottom + 31.0,
            escaped(&self.x.name)
        );
    }
}
