//! What a comparison is told as: a table that is Markdown too, JSON, a plot. Text from rows, nothing else.

use super::run::{ON_LOG, Row};
use crate::output::{self, escaped, json_string};
use std::fmt::Write;

/// Whom the default is measured against; CLOCK is shown, but is not one of them.
const COMPARED: [&str; 7] = ["fifo", "lru", "arc", "lirs", "s3-fifo", "sieve", "w-tinylfu"];

/// Rows of one trace at one size.
fn groups(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| a.trace == b.trace && a.size == b.size)
}

/// The best of the policies from the literature on the same log.
fn best_on_log(group: &[Row]) -> Option<&Row> {
    let compared = |row: &&Row| row.policy.strip_suffix(ON_LOG).is_some_and(|name| COMPARED.contains(&name));
    group.iter().filter(compared).min_by_key(|row| row.misses)
}

/// The best of them in place, which pay for nothing but blocks.
fn best_in_place(group: &[Row]) -> Option<&Row> {
    group.iter().filter(|row| COMPARED.contains(&row.policy.as_str())).min_by_key(|row| row.misses)
}

/// Misses of one relative to another's, in 1/1000.
fn relative(row: &Row, to: Option<&Row>) -> Option<u64> {
    to.and_then(|to| (row.misses * 1000 + to.misses / 2).checked_div(to.misses))
}

fn milli(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |m| format!("{}.{:03}", m / 1000, m % 1000))
}

fn ppm(value: u64) -> String {
    format!("{}.{:04}", value / 1_000_000, value % 1_000_000 / 100)
}

/// The table; the policy the cell runs is marked.
#[must_use]
pub(super) fn table(rows: &[Row]) -> String {
    let head = [
        "trace",
        "size",
        "blocks",
        "policy",
        "read hits",
        "all hits",
        "miss ratio",
        "to best",
        "to ideal",
        "written",
        "fills",
        "overwrites",
        "copies",
        "headers",
    ];
    let mut lines = vec![head.map(str::to_owned)];
    for group in groups(rows) {
        let (on_log, in_place) = (best_on_log(group), best_in_place(group));
        for row in group {
            let written = |bytes: u64| milli(Some(row.per_referenced_milli(bytes)));
            lines.push([
                row.trace.clone(),
                row.size.to_string(),
                row.size_blocks.to_string(),
                if row.is_default() { format!("**{}**", row.policy) } else { row.policy.clone() },
                row.read_hit_ppm().map_or_else(|| "-".to_owned(), ppm),
                ppm(row.hit_ppm()),
                ppm(row.miss_ppm()),
                milli(relative(row, on_log)),
                milli(relative(row, in_place)),
                written(row.written.all()),
                written(row.written.fills),
                written(row.written.overwrites),
                written(row.written.copies),
                written(row.written.headers),
            ]);
        }
    }
    output::table(&lines, &[0, 3])
}

/// The rows as scripts read them.
#[must_use]
pub(super) fn json(rows: &[Row]) -> String {
    let object = |row: &Row| {
        let ppm = |value: u64| format!("{}.{:06}", value / 1_000_000, value % 1_000_000);
        let under = if row.is_on_log() { "log" } else { "in place" };
        format!(
            "{{\"trace\":{},\"policy\":{},\"default\":{},\"size_blocks\":{},\"miss_ratio\":{},\
             \"flash_bytes_written\":{},\"references\":{},\"misses\":{},\"block_bytes\":{},\"size\":{},\
             \"under\":\"{under}\",\"usable_blocks\":{},\"distinct_blocks\":{},\"hit_ratio\":{},\"read_hit_ratio\":{},\
             \"writes\":{},\"write_misses\":{},\"fill_bytes\":{},\"overwrite_bytes\":{},\"copy_bytes\":{},\
             \"header_bytes\":{}}}",
            json_string(&row.trace),
            json_string(&row.policy),
            row.is_default(),
            row.size_blocks,
            ppm(row.miss_ppm()),
            row.written.all(),
            row.references,
            row.misses,
            row.block_bytes,
            json_string(&row.size.to_string()),
            row.usable_blocks,
            row.distinct,
            ppm(row.hit_ppm()),
            row.read_hit_ppm().map_or_else(|| "null".to_owned(), ppm),
            row.writes,
            row.write_misses,
            row.written.fills,
            row.written.overwrites,
            row.written.copies,
            row.written.headers,
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

/// A dot for each policy on a line for each trace and size: misses relative to the best's on the same log. What runs in place is left out
/// where anything from the literature runs on the log.
#[must_use]
pub(super) fn plot(rows: &[Row]) -> String {
    let has_log = rows.iter().any(|row| row.policy.ends_with(ON_LOG));
    let rows: Vec<Row> = rows.iter().filter(|row| row.is_on_log() || !has_log).cloned().collect();
    plot_of(&rows)
}

fn plot_of(rows: &[Row]) -> String {
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
        let reference =
            best_on_log(group).or_else(|| best_in_place(group)).or_else(|| group.iter().min_by_key(|row| row.misses));
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
    use crate::policies::run::Written;
    use crate::policies::size::Size;

    fn row(policy: &str, misses: u64) -> Row {
        Row {
            trace: "a\"<b>".to_owned(),
            policy: policy.to_owned(),
            size: Size::SharePpm(10_000),
            size_blocks: 7,
            usable_blocks: 6,
            references: 1000,
            misses,
            writes: 400,
            write_misses: misses.saturating_sub(400).min(400),
            distinct: 9,
            written: Written { fills: misses * 4096, overwrites: 290 * 4096, copies: 2048, headers: 4096 },
            block_bytes: 4096,
        }
    }

    #[test]
    fn table_relates_to_the_best_on_the_log_and_in_place() {
        let rows =
            [row("flashcell", 510), row("lru/log", 500), row("clock/log", 450), row("lru", 600), row("arc", 400)];
        let text = table(&rows);
        let line = text.lines().find(|line| line.contains("**flashcell**")).unwrap_or_default();
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let expected = [
            "a\"<b>",
            "1%",
            "7",
            "**flashcell**",
            "0.3333",
            "0.4900",
            "0.5100",
            "1.020",
            "1.275",
            "0.801",
            "0.510",
            "0.290",
            "0.000",
            "0.001",
        ];
        assert_eq!(cells[1..15], expected);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
        let alone = table(&[Row { writes: 1000, write_misses: 510, ..row("flashcell", 510) }]);
        let line = alone.lines().last().unwrap_or_default();
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!((cells[5], cells[8], cells[9]), ("-", "-", "-"), "nothing is read, nothing is compared");
    }

    #[test]
    fn json_has_the_keys_scripts_read() {
        let text = json(&[row("flashcell", 510), row("lru", 1000), row("lru/log", 1000)]);
        assert!(text.contains("\"trace\":\"a\\\"<b>\",\"policy\":\"flashcell\",\"default\":true,\"size_blocks\":7,\"miss_ratio\":0.510000,\"flash_bytes_written\":3282944"), "{text}");
        assert!(text.contains("\"default\":false,\"size_blocks\":7,\"miss_ratio\":1.000000"), "{text}");
        assert_eq!(text.matches("\"under\":\"log\"").count(), 2);
        assert!(text.contains("\"read_hit_ratio\":0.333333") && text.contains("\"overwrite_bytes\":1187840"), "{text}");
    }

    #[test]
    fn plot_shows_every_policy_on_the_log_once_a_line() {
        let svg = plot(&[row("flashcell", 510), row("lru/log", 600), row("arc/log", 500), row("arc", 400)]);
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("a&quot;&lt;b&gt; 1%") && svg.ends_with("</svg>\n"));
        assert_eq!(plot(&[row("flashcell", 510), row("lru", 600)]).matches("<title>").count(), 2);
    }
}
