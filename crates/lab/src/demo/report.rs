//! Results as text, JSON and a page with bars.

use crate::output::escaped;
use std::fmt::Write;
use std::time::Duration;

/// Where the table is and what is in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Configuration {
    /// On the slow disk.
    NoFlash,
    /// On the slow disk behind a flash cache that is empty at first.
    ColdFlashCache,
    /// On the slow disk behind a flash cache in use for a while.
    FlashCache,
    /// The same in write-back: flash acknowledges writes.
    WriteBack,
    /// The redo on the slow disk and on flash, whichever is first.
    FlashLog,
    /// On flash.
    TableOnFlash,
}

impl Configuration {
    /// As printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Configuration::NoFlash => "no flash",
            Configuration::ColdFlashCache => "flash cache, cold",
            Configuration::FlashCache => "flash cache",
            Configuration::WriteBack => "write-back",
            Configuration::FlashLog => "flash log",
            Configuration::TableOnFlash => "table on flash",
        }
    }

    /// Whether a flash cache is in front.
    #[must_use]
    pub fn has_cache(self) -> bool {
        matches!(self, Configuration::ColdFlashCache | Configuration::FlashCache | Configuration::WriteBack)
    }

    /// Whether what the sessions write is durable on flash first, so that flash is what they wait for.
    #[must_use]
    pub fn acknowledges_on_flash(self) -> bool {
        matches!(self, Configuration::WriteBack | Configuration::FlashLog | Configuration::TableOnFlash)
    }
}

/// What the sessions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Single blocks by key.
    IndexedReads,
    /// Read, change, write single blocks by key.
    Updates,
    /// Single blocks by key, one of two of which is an update.
    Mixed,
    /// The whole table in order.
    Scan,
    /// Small writes to the redo, each made durable before the next.
    Commits,
}

impl Workload {
    /// Every workload, in the order of the report.
    pub const ALL: [Workload; 5] =
        [Workload::IndexedReads, Workload::Updates, Workload::Mixed, Workload::Scan, Workload::Commits];

    /// As printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Workload::IndexedReads => "indexed reads",
            Workload::Updates => "primary-key updates",
            Workload::Mixed => "half reads, updates",
            Workload::Scan => "full table scan",
            Workload::Commits => "redo commits",
        }
    }

    /// What the field measured (S9), in thousandths of a second; on other hardware and far more work.
    #[must_use]
    pub fn field_elapsed_ms(self, configuration: Configuration) -> Option<u64> {
        let [none, cache, flash] = match self {
            Workload::IndexedReads => [529_700, 143_270, 48_170],
            Workload::Updates => [3_289_000, 1_693_000, 200_000],
            Workload::Scan => [418_000, 398_000, 72_000],
            Workload::Mixed | Workload::Commits => return None,
        };
        match configuration {
            Configuration::NoFlash => Some(none),
            Configuration::FlashCache => Some(cache),
            Configuration::TableOnFlash => Some(flash),
            Configuration::ColdFlashCache | Configuration::WriteBack | Configuration::FlashLog => None,
        }
    }
}

/// Where the time of a row went, in microseconds; the parts add up to the time elapsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// For the slow disk.
    pub disk_us: u64,
    /// For flash.
    pub flash_us: u64,
    /// Processor time of client and server.
    pub cpu_us: u64,
    /// Queues, sockets, locks.
    pub other_us: u64,
}

impl Waits {
    /// The parts with the names of the JSON form, in the order of the report.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, u64); 4] {
        [
            ("db file I/O", self.disk_us),
            ("flash cache I/O", self.flash_us),
            ("CPU", self.cpu_us),
            ("other", self.other_us),
        ]
    }
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Row {
    /// Where the table was.
    pub configuration: Configuration,
    /// What was done.
    pub workload: Workload,
    /// How long it took.
    pub elapsed: Duration,
    /// Blocks whose content was checked.
    pub verified_blocks: u64,
    /// Reads served from the cache, in thousandths; none without a cache.
    pub hit_ratio_milli: Option<u64>,
    /// Where the time went.
    pub waits: Waits,
}

impl Row {
    fn elapsed_us(&self) -> u64 {
        u64::try_from(self.elapsed.as_micros()).unwrap_or(u64::MAX)
    }
}

/// What the rows are about.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// The table.
    pub(super) table_mib: u64,
    /// Flash given to the cache.
    pub(super) cache_mib: u64,
    /// The table's block.
    pub(super) block_bytes: usize,
    /// Sessions at a time.
    pub(super) sessions: usize,
    /// The emulated disk.
    pub(super) disk_model: String,
    /// Reads that warm the cache.
    pub(super) warm_reads: usize,
}

impl Head {
    fn lines(&self) -> String {
        format!(
            "A table of {} MiB in {} KiB blocks; {} sessions; an emulated disk ({}), a file as flash, {} MiB of it as cache\n\
             ({} % of the table). Keys follow Zipf's law; \"flash cache\" is after {} reads, \"cold\" from the first one on,\n\
             \"write-back\" goes on from there. A commit is a write of redo and a flush, one after the other.\n",
            self.table_mib,
            self.block_bytes >> 10,
            self.sessions,
            self.disk_model,
            self.cache_mib,
            self.cache_mib * 100 / self.table_mib.max(1),
            self.warm_reads
        )
    }
}

fn find(rows: &[Row], workload: Workload, configuration: Configuration) -> Option<&Row> {
    rows.iter().find(|row| row.workload == workload && row.configuration == configuration)
}

/// How many times faster indexed reads are through the flash cache than without flash, in tenths.
#[must_use]
pub(super) fn gain_tenths(rows: &[Row]) -> Option<u32> {
    let none = find(rows, Workload::IndexedReads, Configuration::NoFlash)?;
    let cache = find(rows, Workload::IndexedReads, Configuration::FlashCache)?;
    (none.elapsed_us() * 10).checked_div(cache.elapsed_us()).and_then(|tenths| u32::try_from(tenths).ok())
}

/// Thousandths with so many digits after the point, rounded half up.
fn decimal(milli: u64, digits: u32) -> String {
    let unit = 10_u64.pow(3 - digits);
    let rounded = (milli + unit / 2) / unit;
    let scale = 10_u64.pow(digits);
    if digits == 0 {
        return rounded.to_string();
    }
    format!("{}.{:0width$}", rounded / scale, rounded % scale, width = digits as usize)
}

fn seconds(us: u64) -> String {
    decimal(us / 1000, 2)
}

/// The table for people.
#[must_use]
pub(super) fn text(head: &Head, rows: &[Row]) -> String {
    let mut text = head.lines();
    for workload in Workload::ALL {
        let of: Vec<&Row> = rows.iter().filter(|row| row.workload == workload).collect();
        let Some(first) = of.first() else { continue };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\n{:20} {:>9} {:>8} {:>6}   {:>9} {:>9} {:>7} {:>7}",
            workload.name(),
            "elapsed s",
            "faster",
            "hits",
            "disk I/O",
            "flash I/O",
            "CPU",
            "other"
        );
        for row in &of {
            let faster = (first.elapsed_us() * 1000).checked_div(row.elapsed_us()).unwrap_or(0);
            let hits =
                row.hit_ratio_milli.map_or_else(|| "-".to_owned(), |milli| format!("{} %", decimal(milli * 100, 0)));
            let parts = row.waits.parts().map(|(_, us)| seconds(us));
            let _ = writeln!(
                text,
                "  {:18} {:>9} {:>8} {:>6}   {:>9} {:>9} {:>7} {:>7}",
                row.configuration.name(),
                seconds(row.elapsed_us()),
                format!("{} x", decimal(faster, 1)),
                hits,
                parts[0],
                parts[1],
                parts[2],
                parts[3]
            );
        }
    }
    let verified: u64 = rows.iter().map(|row| row.verified_blocks).sum();
    text.push_str("\nThe parts add up to the time elapsed. disk and flash I/O: as the devices measured it; other: row locks, queues, sockets.\n");
    let _ = writeln!(
        text,
        "{verified} blocks read were verified: number, version and checksum, each the last one written."
    );
    text
}

/// What comes after the table, for people.
#[must_use]
pub(super) fn farewell(good: bool, gain_tenths_min: u32, took: Duration) -> String {
    let wanted = decimal(u64::from(gain_tenths_min) * 100, 1);
    let verdict = if good {
        format!("The flash cache made indexed reads at least {wanted} times faster.")
    } else {
        format!(
            "FAILED: the flash cache did not make indexed reads {wanted} times faster.\n\
             hint: a busy machine or a very slow temporary directory blurs the times; try again, or set TMPDIR"
        )
    };
    format!(
        "{verdict} ({} s in all)\n\
         To go on:  flashcell init /srv/cell --disk 100G --flash 10G --griddisk DATA:50G && flashcell serve /srv/cell\n\
         then:      flashcell cellcli -c /srv/cell -e list griddisk detail\n",
        took.as_secs()
    )
}

/// The rows as scripts read them.
#[must_use]
pub(super) fn json(rows: &[Row]) -> String {
    let exact = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    let objects: Vec<String> = rows
        .iter()
        .map(|row| {
            let flash = find(rows, row.workload, Configuration::TableOnFlash).map(Row::elapsed_us);
            let ratio = flash.and_then(|flash| (row.elapsed_us() * 1000).checked_div(flash));
            let null = || "null".to_owned();
            let waits = row.waits.parts().map(|(name, us)| format!("\"{name}\":{}", exact(us)));
            format!(
                "{{\"experiment\":\"demo\",\"row\":\"{}\",\"configuration\":\"{}\",\"elapsed_s\":{},\
                 \"ratio_to_all_flash\":{},\"hit_ratio\":{},\"verified_blocks\":{},\"waits\":{{{}}},\"field_elapsed_s\":{}}}",
                row.workload.name(),
                row.configuration.name(),
                exact(row.elapsed_us()),
                ratio.map_or_else(null, |milli| decimal(milli, 3)),
                row.hit_ratio_milli.map_or_else(null, |milli| decimal(milli, 3)),
                row.verified_blocks,
                waits.join(","),
                row.workload.field_elapsed_ms(row.configuration).map_or_else(null, |ms| decimal(ms, 3)),
            )
        })
        .collect();
    format!("[\n{}\n]\n", objects.join(",\n"))
}

/// Width of the longest bar.
const BAR_PIXELS: u64 = 560;
const COLOURS: [&str; 4] = ["#7a869a", "#e0803a", "#3a7ac0", "#c8ccd4"];

/// A page that needs nothing else.
#[must_use]
pub(super) fn html(head: &Head, rows: &[Row]) -> String {
    let mut page = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Flashcell demo</title>\n\
         <style>body{font:15px system-ui,sans-serif;margin:2em;max-width:60em}h2{margin:1.6em 0 .4em}\
         text{font:13px system-ui,sans-serif;fill:currentColor}pre{white-space:pre-wrap}\
         @media(prefers-color-scheme:dark){body{background:#16181d;color:#e4e6ea}}</style>\n<h1>Flashcell demo</h1>\n",
    );
    // Writing to a string cannot fail.
    let _ = writeln!(page, "<p>{}</p><p>", escaped(&head.lines()));
    for ((name, _), colour) in Waits::default().parts().iter().zip(COLOURS) {
        let _ = write!(page, "<span style=\"color:{colour}\">&#9632;</span> {name} &nbsp; ");
    }
    page.push_str("</p>\n");
    for workload in Workload::ALL {
        let of: Vec<&Row> = rows.iter().filter(|row| row.workload == workload).collect();
        let longest = of.iter().map(|row| row.elapsed_us()).max().unwrap_or(1).max(1);
        let height = of.len() * 30;
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<svg width=\"880\" height=\"{height}\" role=\"img\" aria-label=\"elapsed seconds, {}\">",
            workload.name(),
            workload.name()
        );
        for (index, row) in of.iter().enumerate() {
            let y = index * 30;
            let _ = writeln!(page, "<text x=\"0\" y=\"{}\">{}</text>", y + 17, row.configuration.name());
            let mut x = 150;
            for ((name, us), colour) in row.waits.parts().iter().zip(COLOURS) {
                let width = us * BAR_PIXELS / longest;
                let _ = writeln!(
                    page,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"24\" fill=\"{colour}\"><title>{name}: {} s</title></rect>",
                    seconds(*us)
                );
                x += width;
            }
            let hits =
                row.hit_ratio_milli.map_or_else(String::new, |milli| format!(", {} % hits", decimal(milli * 100, 0)));
            let _ =
                writeln!(page, "<text x=\"{}\" y=\"{}\">{} s{hits}</text>", x + 8, y + 17, seconds(row.elapsed_us()));
        }
        page.push_str("</svg>\n");
    }
    let _ = write!(page, "<h2>Figures</h2>\n<pre>{}</pre>\n</html>\n", escaped(&text(head, rows)));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |configuration, ms, hit_ratio_milli| Row {
            configuration,
            workload: Workload::IndexedReads,
            elapsed: Duration::from_millis(ms),
            verified_blocks: 2_000,
            hit_ratio_milli,
            waits: Waits { disk_us: ms * 900, flash_us: 0, cpu_us: ms * 60, other_us: ms * 40 },
        };
        vec![
            row(Configuration::NoFlash, 9_310, None),
            row(Configuration::FlashCache, 1_520, Some(845)),
            row(Configuration::TableOnFlash, 120, None),
        ]
    }

    fn head() -> Head {
        Head {
            table_mib: 64,
            cache_mib: 16,
            block_bytes: 8192,
            sessions: 16,
            disk_model: "sata-7200".to_owned(),
            warm_reads: 9_000,
        }
    }

    #[test]
    fn the_table() {
        let expected = "\
A table of 64 MiB in 8 KiB blocks; 16 sessions; an emulated disk (sata-7200), a file as flash, 16 MiB of it as cache
(25 % of the table). Keys follow Zipf's law; \"flash cache\" is after 9000 reads, \"cold\" from the first one on,
\"write-back\" goes on from there. A commit is a write of redo and a flush, one after the other.

indexed reads        elapsed s   faster   hits    disk I/O flash I/O     CPU   other
  no flash                9.31    1.0 x      -        8.38      0.00    0.56    0.37
  flash cache             1.52    6.1 x   85 %        1.37      0.00    0.09    0.06
  table on flash          0.12   77.6 x      -        0.11      0.00    0.01    0.00

The parts add up to the time elapsed. disk and flash I/O: as the devices measured it; other: row locks, queues, sockets.
6000 blocks read were verified: number, version and checksum, each the last one written.
";
        assert_eq!(text(&head(), &rows()), expected);
    }

    #[test]
    fn json_has_the_keys_scripts_read() {
        let expected = "{\"experiment\":\"demo\",\"row\":\"indexed reads\",\"configuration\":\"flash cache\",\
            \"elapsed_s\":1.520000,\"ratio_to_all_flash\":12.666,\"hit_ratio\":0.845,\"verified_blocks\":2000,\
            \"waits\":{\"db file I/O\":1.368000,\"flash cache I/O\":0.000000,\"CPU\":0.091200,\"other\":0.060800},\
            \"field_elapsed_s\":143.270}";
        // 1520 / 120 is 12.6666…, cut off.
        let text = json(&rows());
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn the_gain() {
        assert_eq!(gain_tenths(&rows()), Some(61));
        assert_eq!(gain_tenths(&rows()[..1]), None);
    }

    #[test]
    fn decimals() {
        for (milli, digits, expected) in
            [(0, 0, "0"), (499, 0, "0"), (500, 0, "1"), (1_250, 1, "1.3"), (5, 2, "0.01"), (7, 3, "0.007")]
        {
            assert_eq!(decimal(milli, digits), expected, "{milli} {digits}");
        }
    }

    #[test]
    fn the_page_is_whole() {
        let page = html(&head(), &rows());
        assert!(page.ends_with("</html>\n"));
        assert_eq!(page.matches("<rect ").count(), 12);
        assert_eq!(page.matches("<svg ").count(), page.matches("</svg>").count());
    }
}
