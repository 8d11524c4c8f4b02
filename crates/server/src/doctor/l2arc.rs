//! ZFS's second-level cache: the limit of its writes that a drive's rating allows (reference S12).

use super::{Finding, Root, Verdict};
use std::str::FromStr;

const DAY_SECONDS: f64 = 86_400.0;
/// The rule's author would have the limit at least twice what the rating gives: the cache is seldom written to all day.
const AT_LEAST_TIMES: f64 = 2.0;
const PARAMETER: &str = "sys/module/zfs/parameters/l2arc_write_max";

/// A drive: its size, and how often a day all of it may be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rating {
    size_bytes: u64,
    writes_per_day: f64,
}

impl FromStr for Rating {
    type Err = String;

    fn from_str(text: &str) -> Result<Rating, String> {
        let wrong = || {
            format!(
                "{text:?} is no SIZE:WRITES-PER-DAY; 700e9:10 would be 700 GB that may be written ten times a day, 650G:3 is in GiB"
            )
        };
        let (size, writes) = text.split_once(':').ok_or_else(wrong)?;
        let as_number =
            size.parse::<f64>().ok().filter(|bytes| bytes.is_finite() && *bytes >= 1.0).map(|bytes| bytes as u64);
        let size_bytes = as_number.or_else(|| cellcli::answer::parse_size(size)).ok_or_else(wrong)?;
        let writes_per_day =
            writes.parse::<f64>().ok().filter(|writes| writes.is_finite() && *writes > 0.0).ok_or_else(wrong)?;
        Ok(Rating { size_bytes, writes_per_day })
    }
}

impl Rating {
    /// Bytes a second, all day, that use the drive up in the time it is rated for.
    fn bytes_per_second(self) -> f64 {
        self.size_bytes as f64 * self.writes_per_day / DAY_SECONDS
    }
}

pub(super) fn examine(root: &Root, rating: Option<Rating>) -> Vec<Finding> {
    let now = root.number(PARAMETER);
    let Some(rating) = rating else {
        return now.into_iter().map(without_rating).collect();
    };
    let wanted = (rating.bytes_per_second() * AT_LEAST_TIMES) as u64;
    let mb = |bytes: f64| bytes / 1e6;
    let rule = format!(
        "the rating allows {:.1} MB/s ({:.1} MiB/s) all day; l2arc_write_max should be at least twice that: {wanted} bytes/s ({:.0} MB/s)",
        mb(rating.bytes_per_second()),
        rating.bytes_per_second() / f64::from(1 << 20),
        mb(wanted as f64)
    );
    let finding = match now {
        Some(now) if now >= wanted => {
            Finding::good("l2arc", "zfs", format!("l2arc_write_max is {now}")).with(Verdict::Good, rule)
        }
        Some(now) => Finding::good("l2arc", "zfs", format!("l2arc_write_max is {now}")).with(Verdict::Warning, rule),
        None => Finding::good("l2arc", "zfs", "no ZFS on this host").with(Verdict::Note, rule),
    };
    let warning = "not for most ZFS hosts: it may hurt work that does not use the L2ARC. It is meant for servers with much flash under a database";
    let finding = Finding { why: finding.why.map(|why| format!("{why}\n{warning}")), ..finding };
    vec![finding.mended_by(format!(
        "Linux, now: echo {wanted} > /{PARAMETER}; echo 0 > /sys/module/zfs/parameters/l2arc_noprefetch\n\
         Linux, to stay, in /etc/modprobe.d/zfs.conf: options zfs l2arc_write_max={wanted} l2arc_noprefetch=0\n\
         Solaris, in /etc/system: set zfs:l2arc_write_max={wanted} and set zfs:l2arc_noprefetch=0\n\
         zfs set recordsize=8K POOL/DATABASE (the database's block; for new files only)"
    ))]
}

fn without_rating(now: u64) -> Finding {
    Finding::good("l2arc", "zfs", format!("l2arc_write_max is {now}"))
        .with(
            Verdict::Note,
            "what it should be follows from the drive: its default of 8 MB/s takes a day to fill 700 GB",
        )
        .mended_by("flashcell doctor --l2arc SIZE:WRITES-PER-DAY")
}
