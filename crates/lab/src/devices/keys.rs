//! Which figures a device of each kind has, and what they may be. Limits are wide, but no figure within them makes time or memory endless.

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Disk,
    Flash,
    Translated,
    Ram,
    Raid,
    Network,
    Quantiles,
    Delay,
    Pair,
}

/// What a kernel puts before a device of which requests are timed one by one.
const ELEVATOR: (&str, bool) = ("elevator", false);

/// A figure.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) low: u64,
    pub(super) high: u64,
    /// What it is when it is not stated; none: it has to be.
    pub(super) default: Option<u64>,
}

const fn key(name: &'static str, low: u64, high: u64) -> Key {
    Key { name, low, high, default: None }
}

const fn or(name: &'static str, low: u64, high: u64, default: u64) -> Key {
    Key { name, low, high, default: Some(default) }
}

/// Of one request, or one seek: a second.
const NS_MAX: u64 = 1_000_000_000;
/// One KiB in a millisecond is 1 MB/s.
const KIB_NS_MAX: u64 = 1_000_000;
/// A thousand million requests a second are more than memory takes.
const RATE_MAX: u64 = 1_000_000_000;
const TIB: u64 = 1 << 40;

const DISK: [Key; 14] = [
    key("rpm", 100, 100_000),
    key("cylinders", 16, 10_000_000),
    key("heads", 1, 64),
    key("track_bytes", 4096, 64 << 20),
    // 0: as long as the outer ones.
    or("inner_track_bytes", 0, 64 << 20, 0),
    or("zones", 1, crate::model::disk::ZONES_MAX, 1),
    key("seek_next_ns", 0, NS_MAX),
    key("seek_average_ns", 0, NS_MAX),
    key("seek_full_ns", 0, NS_MAX),
    or("overhead_ns", 0, NS_MAX, 0),
    or("bus_ns_per_kib", 0, KIB_NS_MAX, 0),
    or("read_ahead_bytes", 0, 1 << 30, 0),
    or("queue", 1, 1024, 1),
    or("cached_writes", 0, 4096, 0),
];

const FLASH: [Key; 14] = [
    key("read_ns", 0, NS_MAX),
    key("read_ns_per_kib", 0, KIB_NS_MAX),
    key("write_ns", 0, NS_MAX),
    key("write_ns_per_kib", 0, KIB_NS_MAX),
    key("channels", 1, 4096),
    or("controller_ns", 0, NS_MAX, 0),
    // 0: as many as it takes.
    or("random_writes_per_s", 0, RATE_MAX, 0),
    or("random_burst", 0, RATE_MAX, 0),
    or("cache_bytes", 0, 64 * TIB, 0),
    or("cache_emptied_ns_per_kib", 0, KIB_NS_MAX, 0),
    or("cache_full_percent", 0, 100, 0),
    // 0: what flash with such cells bears.
    or("erases", 0, 10_000_000, 0),
    or("raw_percent", 100, 1_000, 107),
    or("amplification_percent", 100, 10_000, 120),
];

const TRANSLATED: [Key; 14] = [
    key("channels", 1, 256),
    key("page_bytes", 4096, 4096),
    key("pages_per_block", 4, 4096),
    key("blocks_per_channel", 8, 1 << 20),
    key("logical_pages", 64, super::PAGES_MAX),
    key("read_ns", 0, NS_MAX),
    key("program_ns", 0, NS_MAX),
    key("erase_ns", 0, NS_MAX),
    or("transfer_ns", 0, NS_MAX, 0),
    or("link_ns", 0, NS_MAX, 0),
    or("controller_ns", 0, NS_MAX, 0),
    or("wear_gap", 1, 1_000_000, 64),
    or("idle_free_blocks", 0, 1 << 20, 0),
    or("erases", 0, 10_000_000, 0),
];

const RAM: [Key; 5] = [
    key("read_ns", 0, NS_MAX),
    key("write_ns", 0, NS_MAX),
    key("ns_per_kib", 0, KIB_NS_MAX),
    key("parallel", 1, 4096),
    or("controller_ns", 0, NS_MAX, 0),
];

const RAID: [Key; 2] = [key("members", 2, 256), key("stripe_bytes", 4096, 64 << 20)];

const NETWORK: [Key; 15] = [
    key("read_least_ns", 0, NS_MAX),
    key("read_median_ns", 0, NS_MAX),
    key("read_p99_ns", 0, NS_MAX),
    key("read_most_ns", 0, 60 * NS_MAX),
    key("write_least_ns", 0, NS_MAX),
    key("write_median_ns", 0, NS_MAX),
    key("write_p99_ns", 0, NS_MAX),
    key("write_most_ns", 0, 60 * NS_MAX),
    key("parallel", 1, 4096),
    key("requests_per_s", 1, RATE_MAX),
    // 0: no more than it sustains.
    or("burst_requests_per_s", 0, RATE_MAX, 0),
    or("credits", 0, RATE_MAX, 0),
    or("credits_percent", 0, 100, 100),
    key("bytes_per_s", 1_000_000, TIB),
    or("request_bytes", 4096, 16 << 20, 256 << 10),
];

/// Shares of a time whose quantiles are stated, in parts of a billion: a figure's name is what it is of, this and `_ns`.
pub(super) const SHARES: [(&str, u64); 11] = [
    ("least", 0),
    ("p1", 10_000_000),
    ("p2", 20_000_000),
    ("p25", 250_000_000),
    ("median", 500_000_000),
    ("p75", 750_000_000),
    ("p95", 950_000_000),
    ("p99", 990_000_000),
    ("p99_9", 999_000_000),
    ("p99_99", 999_900_000),
    ("most", 1_000_000_000),
];

// Shares between least and most that are 0 are not stated: the time grows evenly over them.
const QUANTILES: [Key; 42] = [
    key("time_least_ns", 0, 60 * NS_MAX),
    or("time_p1_ns", 0, 60 * NS_MAX, 0),
    or("time_p2_ns", 0, 60 * NS_MAX, 0),
    or("time_p25_ns", 0, 60 * NS_MAX, 0),
    or("time_median_ns", 0, 60 * NS_MAX, 0),
    or("time_p75_ns", 0, 60 * NS_MAX, 0),
    or("time_p95_ns", 0, 60 * NS_MAX, 0),
    or("time_p99_ns", 0, 60 * NS_MAX, 0),
    or("time_p99_9_ns", 0, 60 * NS_MAX, 0),
    or("time_p99_99_ns", 0, 60 * NS_MAX, 0),
    key("time_most_ns", 0, 60 * NS_MAX),
    or("flush_least_ns", 0, 60 * NS_MAX, 0),
    or("flush_p1_ns", 0, 60 * NS_MAX, 0),
    or("flush_p2_ns", 0, 60 * NS_MAX, 0),
    or("flush_p25_ns", 0, 60 * NS_MAX, 0),
    or("flush_median_ns", 0, 60 * NS_MAX, 0),
    or("flush_p75_ns", 0, 60 * NS_MAX, 0),
    or("flush_p95_ns", 0, 60 * NS_MAX, 0),
    or("flush_p99_ns", 0, 60 * NS_MAX, 0),
    or("flush_p99_9_ns", 0, 60 * NS_MAX, 0),
    or("flush_p99_99_ns", 0, 60 * NS_MAX, 0),
    or("flush_most_ns", 0, 60 * NS_MAX, 0),
    or("part_least_ns", 0, 60 * NS_MAX, 0),
    or("part_p1_ns", 0, 60 * NS_MAX, 0),
    or("part_p2_ns", 0, 60 * NS_MAX, 0),
    or("part_p25_ns", 0, 60 * NS_MAX, 0),
    or("part_median_ns", 0, 60 * NS_MAX, 0),
    or("part_p75_ns", 0, 60 * NS_MAX, 0),
    or("part_p95_ns", 0, 60 * NS_MAX, 0),
    or("part_p99_ns", 0, 60 * NS_MAX, 0),
    or("part_p99_9_ns", 0, 60 * NS_MAX, 0),
    or("part_p99_99_ns", 0, 60 * NS_MAX, 0),
    or("part_most_ns", 0, 60 * NS_MAX, 0),
    or("ns_per_kib", 0, KIB_NS_MAX, 0),
    key("parallel", 1, 4096),
    or("volatile_cache", 0, 1, 0),
    or("page_bytes", 512, 1 << 20, 4096),
    // The page it says it has; 0: the one it has.
    or("claimed_page_bytes", 0, 1 << 20, 0),
    // 0: it never stalls.
    or("stall_every_ms", 0, 3_600_000, 0),
    or("stall_least_ms", 0, 3_600_000, 0),
    or("stall_most_ms", 0, 3_600_000, 0),
    // Flushes stall; 1: reads and writes as well.
    or("stall_all", 0, 1, 0),
];

impl Kind {
    /// The words of a description.
    pub(super) const NAMES: [(&'static str, Kind); 9] = [
        ("disk", Kind::Disk),
        ("flash", Kind::Flash),
        ("translated", Kind::Translated),
        ("ram", Kind::Ram),
        ("raid", Kind::Raid),
        ("network", Kind::Network),
        ("quantiles", Kind::Quantiles),
        ("delay", Kind::Delay),
        ("pair", Kind::Pair),
    ];

    pub(super) fn name(self) -> &'static str {
        Kind::NAMES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Its figures.
    pub(super) fn keys(self) -> &'static [Key] {
        match self {
            Kind::Disk => &DISK,
            Kind::Flash => &FLASH,
            Kind::Translated => &TRANSLATED,
            Kind::Ram => &RAM,
            Kind::Raid => &RAID,
            Kind::Network => &NETWORK,
            Kind::Quantiles => &QUANTILES,
            Kind::Delay | Kind::Pair => &[],
        }
    }

    /// Its words beside `name`, `kind`, `about` and `priced_as`, and whether each has to be there.
    pub(super) fn words(self) -> &'static [(&'static str, bool)] {
        match self {
            Kind::Flash => &[("cell", false), ELEVATOR],
            Kind::Translated => &[("cell", false), ("collect", false), ELEVATOR],
            Kind::Raid => &[("member", true), ("level", true), ELEVATOR],
            Kind::Delay => &[("model", true)],
            Kind::Pair => &[("disk", true), ("flash", true)],
            Kind::Disk | Kind::Ram | Kind::Network | Kind::Quantiles => &[ELEVATOR],
        }
    }
}
