//! What a comparison is told as: a table that is Markdown too, JSON, a plot. Text from rows, nothing else.

use super::run::Row;
use crate::output::{self, escaped, json_string};
use std::fmt::Write;

/// Whom the default is measured against; CLOCK is shown, but is not one of them.
const COMPARED: [&str; 7] = ["fifo", "lru", "arc", "lirs", "s3-fifo", "sieve", "w-tinylfu"];

/// Rows of one trace at one size.
fn groups(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| a.trace == b.trace && a.size == b.size)
}

fn best(group: &[Row]) -> Option<&Row> {
    group.iter().filter(|row| COMPARED.contains(&row.policy.as_str())).min_by_key(|row| row.misses)
}

/// Misses of one relative to another's, in 1/1000.
fn relative(row: &Row, to: Option<&Row>) -> Option<u64> {
    to.and_then(|to| (row.misses * 1000 + to.misses / 2).checked_div(to.misses))
}

fn milli(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |m| format!("{}.{:03}", m / 1000, m % 1000))
}

/// The table; the policy the cell runs is marked.
#[must_use]
pub(super) fn table(rows: &[Row]) -> String {
    let head = ["trace", "size", "blocks", "policy", "miss ratio", "to best", "to LRU", "written / missed"];
    let mut lines = vec![head.map(str::to_owned)];
    for group in groups(rows) {
        let (best, lru) = (best(group), group.iter().find(|row| row.policy == "lru"));
        for row in group {
            let ppm = row.miss_ppm();
            lines.push([
                row.trace.clone(),
                row.size.to_string(),
                row.size_blocks.to_string(),
                if row.is_default() { format!("**{}**", row.policy) } else { row.policy.clone() },
                format!("{}.{:04}", ppm / 1_000_000, ppm % 1_000_000 / 100),
                milli(relative(row, best)),
                milli(relative(row, lru)),
                if row.is_default() { milli(Some(row.written_milli())) } else { "-".to_owned() },
            ]);
        }
    }
    output::table(&lines, &[0, 3])
}

/// The rows as scripts read them.
#[must_use]
pub(super) fn json(rows: &[Row]) -> String {
    let object = |row: &Row| {
        let ppm = row.miss_ppm();
        format!(
            "{{\"trace\":{},\"policy\":{},\"default\":{},\"size_blocks\":{},\"miss_ratio\":{}.{:06},\
             \"flash_bytes_written\":{},\"references\":{},\"misses\":{},\"block_bytes\":{},\"size\":{}}}",
            json_string(&row.trace),
            json_string(&row.policy),
            row.is_default(),
            row.size_blocks,
            ppm / 1_000_000,
            ppm % 1_000_000,
            row.flash_bytes_written,
            row.references,
            row.misses,
            row.block_bytes,
            json_string(&row.size.to_string()),
        )
    };
    let objects: Vec<String> = rows.iter().map(object).collect();
    format!("[\n{}\n]\n", objects.join(",\n"))
}

/// Pixels: names on the left, room for the dots, a line for each trace and size.
const NAMES_PX: u64 = 320;
const DOTS_PX: u64 = 640;
const LINE_PX: u64 = 22;
const TOP_PX: u64 = 58;
/// The plot goes from the best miss ratio to so many 1/1000 of it; what is beyond sits at the edge.
const SCALE_MILLI: u64 = 1500;
const LOW_MILLI: u64 = 950;
const COLOURS: [&str; 9] =
    ["#c0392b", "#7f8c8d", "#2c3e50", "#b2babb", "#8e44ad", "#2980b9", "#27ae60", "#d4ac0d", "#e67e22"];

/// A dot for each policy on a line for each trace and size: misses relative to the best's.
#[must_use]
pub(super) fn plot(rows: &[Row]) -> String {
    let groups: Vec<&[Row]> = groups(rows).collect();
    let mut policies: Vec<&str> = Vec::new();
    for row in rows {
        if !policies.contains(&row.policy.as_str()) {
            policies.push(&row.policy);
        }
    }
    let (width, height) = (NAMES_PX + DOTS_PX + 40, TOP_PX + LINE_PX * groups.len() as u64 + 30);
    let x_of =
        |milli: u64| NAMES_PX + (milli.clamp(LOW_MILLI, SCALE_MILLI) - LOW_MILLI) * DOTS_PX / (SCALE_MILLI - LOW_MILLI);
    let mut svg = output::svg_head(width, height);
    // Writing to a string cannot fail.
    let _ = writeln!(
        svg,
        "<text x=\"8\" y=\"18\" font-size=\"14\">Misses relative to the best of {}</text>",
        COMPARED.join(", ")
    );
    for (i, policy) in policies.iter().enumerate() {
        let x = 8 + i as u64 * (width - 16) / policies.len().max(1) as u64;
        let colour = COLOURS[i % COLOURS.len()];
        let _ = writeln!(
            svg,
            "<circle cx=\"{}\" cy=\"34\" r=\"5\" fill=\"{colour}\"/><text x=\"{}\" y=\"38\">{}</text>",
            x + 6,
            x + 16,
            escaped(policy)
        );
    }
    let bottom = height - 26;
    for milli in (1000..=SCALE_MILLI).step_by(100) {
        let x = x_of(milli);
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"{TOP_PX}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}.{}</text>",
            bottom + 16,
            milli / 1000,
            milli % 1000 / 100
        );
    }
    for (line, group) in groups.iter().enumerate() {
        let y = TOP_PX + line as u64 * LINE_PX + LINE_PX / 2;
        let Some(first) = group.first() else { continue };
        let label = escaped(&format!("{} {}", first.trace, first.size));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>", NAMES_PX - 10, y + 4);
        let reference = best(group).or_else(|| group.iter().min_by_key(|row| row.misses));
        // The default last, above the others.
        let (default, others): (Vec<&Row>, Vec<&Row>) = group.iter().partition(|row| row.is_default());
        for row in others.into_iter().chain(default) {
            let Some(milli) = relative(row, reference) else { continue };
            let at = policies.iter().position(|policy| *policy == row.policy).unwrap_or(0);
            let radius = if row.is_default() { 6 } else { 4 };
            let colour = COLOURS[at % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<circle cx=\"{}\" cy=\"{y}\" r=\"{radius}\" fill=\"{colour}\" fill-opacity=\"0.85\"><title>{} {}</title></circle>",
                x_of(milli),
                escaped(&row.policy),
                self::milli(Some(milli))
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::size::Size;

    fn row(policy: &str, misses: u64) -> Row {
        Row {
            trace: "a\"<b>".to_owned(),
            policy: policy.to_owned(),
            size: Size::SharePpm(10_000),
            size_blocks: 7,
            references: 1000,
            misses,
            flash_bytes_written: misses * 4096 * 105 / 100,
            block_bytes: 4096,
        }
    }

    #[test]
    fn table_relates_to_best_and_to_lru() {
        let rows = [row("flashcell", 510), row("lru", 600), row("clock", 400), row("arc", 500)];
        let text = table(&rows);
        let line = text.lines().find(|line| line.contains("**flashcell**")).unwrap_or_default();
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!(cells[1..9], ["a\"<b>", "1%", "7", "**flashcell**", "0.5100", "1.020", "0.850", "1.050"]);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
    }

    #[test]
    fn json_has_the_keys_scripts_read() {
        let text = json(&[row("flashcell", 510), row("lru", 1000)]);
        assert!(text.contains("\"trace\":\"a\\\"<b>\",\"policy\":\"flashcell\",\"default\":true,\"size_blocks\":7,\"miss_ratio\":0.510000,\"flash_bytes_written\":2193408"), "{text}");
        assert!(text.contains("\"default\":false,\"size_blocks\":7,\"miss_ratio\":1.000000"), "{text}");
    }

    #[test]
    fn plot_shows_every_policy_once_a_line() {
        let svg = plot(&[row("flashcell", 510), row("lru", 600), row("arc", 500)]);
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("a\"&lt;b&gt; 1%") && svg.ends_with("</svg>\n"));
    }
}
