//! The report: one HTML file that needs nothing else, of experiments that have been run.
//!
//! Well-formed as XML is, so that a test can tell. It can be read in light and in dark, in print, without colours and on a phone. The same
//! rows give the same bytes: no date, no host.

use super::chart::PATTERNS;
use super::{Bound, Experiment};
use crate::output::{escaped, html_table};
use std::fmt::Write;

/// Colours of patterns and curves, in light and in dark. Neighbours differ in lightness as well.
const COLOURS: [(&str, &str); PATTERNS] = [
    ("#8f99a8", "#8c97a6"),
    ("#d9772b", "#e08a45"),
    ("#2b7bb9", "#5aa5dd"),
    ("#b03a48", "#e0707d"),
    ("#3c8d5a", "#63b883"),
    ("#8a5fb0", "#b48ad8"),
    ("#b59a1f", "#d6bb45"),
    ("#4a4f58", "#c3c8d0"),
];

/// What tells patterns apart without colour, drawn on a tile of 8 by 8.
const STROKES: [&str; PATTERNS] = [
    "",
    "M0 8L8 0M-2 2L2 -2M6 10L10 6",
    "M0 4H8",
    "M0 0L8 8M-2 6L2 10M6 -2L10 2",
    "M4 0V8",
    "M0 4H8M4 0V8",
    "M1 1h2v2h-2zM5 5h2v2h-2z",
    "M0 0L8 8M0 8L8 0",
];
const DASHES: [&str; PATTERNS] = ["none", "7 4", "2 3", "10 3 2 3", "14 4", "5 2", "2 6", "12 3 2 3 2 3"];

const STYLE: &str = "\
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:72rem;font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper)}\n\
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2.5rem 0 .3rem;border-top:2px solid var(--line);padding-top:.8rem}\n\
p{margin:.4rem 0}pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:12.5px;margin:.6rem 0}a{color:inherit}\n\
figure{margin:1.2rem 0;min-width:0}figcaption{font-weight:600}.key{font-size:13px;color:var(--soft)}.key span{display:inline-block;margin-right:.9em}\n\
.box{vertical-align:-2px}.bar{margin:.55rem 0 .1rem;font-size:14px}svg{display:block;overflow:visible}.key svg{display:inline}\n\
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:0 2rem}.two>.bars:only-child{grid-column:1/-1}\n\
text{font:12px system-ui,sans-serif;fill:var(--ink)}.in,.on{font-weight:700;paint-order:stroke;stroke:var(--paper);stroke-width:3px}\n\
.in{text-anchor:middle}.on{text-anchor:middle}.on.y{text-anchor:start;font-weight:400}.grid{stroke:var(--line)}.axis{stroke:var(--soft)}\n\
.field{stroke:var(--ink);stroke-width:3}.c{fill:none;stroke-width:1.8}.d{stroke:none}\n\
.wide{overflow-x:auto;margin:.6rem 0}table{border-collapse:collapse;font-size:12.5px;font-variant-numeric:tabular-nums}\n\
th,td{padding:.2rem .55rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}th{white-space:nowrap}\n\
td{min-width:13rem}.n,.s{min-width:0;white-space:nowrap}.n{text-align:right}.missed{border-left:4px solid var(--ink);padding-left:.6rem}\n\
@media print{body{max-width:none;padding:0;font-size:11px}h2{break-before:page}figure,.bar,tr{break-inside:avoid}.bar{break-after:avoid}.wide{overflow:visible}\
table{font-size:6.5px}th,td{padding:.1rem .2rem;white-space:normal;min-width:0}th,.n,.s{white-space:normal}}\n";

/// The whole page.
pub(super) fn page(experiments: &[(&str, &str, Experiment)], seed: u64) -> String {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/><meta name=\"color-scheme\" content=\"light dark\"/>\
         <title>Flashcell lab</title>\n<style>",
    );
    page.push_str(&style());
    page.push_str("</style></head><body>\n");
    page.push_str(&patterns());
    // Writing to a string cannot fail.
    let _ = writeln!(
        page,
        "<h1>Flashcell lab</h1>\n<p>Experiments of the field in virtual time, on models of its devices, with the cell's own engine in the arms \
         named flashcell and flash log. Version {}, seed {seed}: the same seed gives the same bytes. Not measured on hardware; <i>reproduced</i> is within \
         20 % of the field's figure, or of its ratio to the row without flash where there is one.</p>",
        env!("CARGO_PKG_VERSION")
    );
    page.push_str(&contents(experiments));
    for (name, about, experiment) in experiments {
        section(&mut page, name, about, experiment);
    }
    page.push_str("</body></html>\n");
    page
}

fn style() -> String {
    let mut text = String::new();
    let inks = [
        ("--ink:#1b1e23;--paper:#ffffff;--soft:#5a626e;--line:#d8dce2", false),
        ("--ink:#e7e9ec;--paper:#14171c;--soft:#a2a9b4;--line:#3a404a", true),
    ];
    let colours = |dark: bool| -> String {
        let each = COLOURS.iter().enumerate();
        each.map(|(n, (light_one, dark_one))| format!(";--c{n}:{}", if dark { dark_one } else { light_one })).collect()
    };
    let _ = writeln!(text, ":root{{color-scheme:light dark;{}{}}}", inks[0].0, colours(inks[0].1));
    // Paper is white whatever the screen prefers.
    let _ =
        writeln!(text, "@media screen and (prefers-color-scheme:dark){{:root{{{}{}}}}}", inks[1].0, colours(inks[1].1));
    for (n, dash) in DASHES.iter().enumerate() {
        let _ = writeln!(text, ".c.c{n}{{stroke:var(--c{n});stroke-dasharray:{dash}}}.d.c{n}{{fill:var(--c{n})}}");
    }
    text.push_str(STYLE);
    text
}

/// What bars are filled with.
fn patterns() -> String {
    let mut text =
        String::from("<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>\n");
    for (n, strokes) in STROKES.iter().enumerate() {
        let _ = writeln!(
            text,
            "<pattern id=\"p{n}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"8\" height=\"8\" style=\"fill:var(--c{n})\"/>\
             <path d=\"{strokes}\" style=\"fill:none;stroke:var(--paper);stroke-width:1.2;stroke-opacity:.75\"/></pattern>"
        );
    }
    text.push_str("</defs></svg>\n");
    text
}

fn missed(experiment: &Experiment) -> Vec<&Bound> {
    experiment.bounds.iter().filter(|bound| !bound.holds).collect()
}

fn contents(experiments: &[(&str, &str, Experiment)]) -> String {
    let head = ["experiment", "what it shows", "arms", "reproduced", "not reproduced", "bounds hold", "missed"];
    let mut lines = vec![head.map(str::to_owned)];
    for (name, about, experiment) in experiments {
        let missed = missed(experiment).len();
        let [reproduced, not_reproduced] = experiment.told.verdicts;
        let numbers =
            [experiment.told.objects.len(), reproduced, not_reproduced, experiment.bounds.len() - missed, missed];
        let mut line: [String; 7] =
            std::array::from_fn(|n| n.checked_sub(2).map_or(String::new(), |n| numbers[n].to_string()));
        (line[0], line[1]) = ((*name).to_owned(), (*about).to_owned());
        lines.push(line);
    }
    let mut table = html_table(&lines, &[0, 1]);
    for (name, ..) in experiments {
        let name = escaped(name);
        let cell = |text: &str| format!("<td class=\"s\">{text}</td>");
        table = table.replace(&cell(&name), &cell(&format!("<a href=\"#{name}\">{name}</a>")));
    }
    format!("<div class=\"wide\">{table}</div>\n")
}

fn section(page: &mut String, name: &str, about: &str, experiment: &Experiment) {
    let name = escaped(name);
    let _ = writeln!(page, "<h2 id=\"{name}\">{name}</h2>\n<p>{}</p>", escaped(about));
    page.push_str("<div class=\"two\">\n");
    for chart in &experiment.told.charts {
        page.push_str(&chart.html());
    }
    page.push_str("</div>\n");
    for block in experiment.notes.split("\n\n") {
        // Lines of a table stay lines.
        let (tag, text) =
            if block.starts_with('|') { ("pre", block.to_owned()) } else { ("p", block.replace('\n', " ")) };
        let _ = writeln!(page, "<{tag}>{}</{tag}>", escaped(text.trim_end()));
    }
    let missed = missed(experiment);
    let _ = writeln!(page, "<p>{} bounds hold, {} do not.</p>", experiment.bounds.len() - missed.len(), missed.len());
    for bound in missed {
        let _ = writeln!(page, "<p class=\"missed\">Missed: {}</p>", escaped(&bound.text));
    }
    let _ = writeln!(
        page,
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"figures of {name}\">{}</div>",
        html_table(&experiment.told.lines, &experiment.told.words)
    );
}

#[cfg(test)]
mod tests;
