//! Models of media: what a request costs. Integers only, in nanoseconds and bytes.
//!
//! Sources: "S15", "S16" are field measurements of that number (flash internals; tiers); rotation follows from the
//! spindle speed; seeks of disks are the averages of data sheets of their class (8.5 ms for the 7200-rpm SATA disk of
//! S9's first machine, 3.5 ms for 15k-rpm SAS), around S16's 4 ms for "disk".

use std::fmt;
use std::str::FromStr;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const MB: u64 = 1_000_000;

/// Requests a disk chooses among: the depth of native command queueing.
pub const DISK_QUEUE_MAX: usize = 32;
/// Requests a parallel medium may be asked to serve at once.
pub const PARALLEL_MAX: u32 = 4096;

/// A medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Model {
    /// One actuator over a turning platter.
    Disk(DiskModel),
    /// Many requests at once behind one bus.
    Parallel(ParallelModel),
}

/// One actuator over a turning platter; queued requests are served shortest positioning time first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskModel {
    /// Seek to the next track.
    pub track_to_track_ns: u64,
    /// Seek across the whole surface. Between the two it grows with the square root of the distance, so that the mean
    /// of random seeks is `track_to_track + 8/15 (full - track_to_track)`.
    pub full_stroke_ns: u64,
    /// One turn of the platter.
    pub revolution_ns: u64,
    /// Bytes that pass the head in a second.
    pub media_bytes_per_s: u64,
    /// Electronics, per request.
    pub command_ns: u64,
    /// Volatile write cache in bytes, 0 for none.
    pub cache_bytes: u64,
    /// Bytes a second between host and cache.
    pub bus_bytes_per_s: u64,
}

/// Many requests at once behind one bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParallelModel {
    /// Read without its transfer: evenly from the first to the second.
    pub read_ns: (u64, u64),
    /// Write without its transfer.
    pub write_ns: (u64, u64),
    /// Flush, beside what the device below takes.
    pub flush_ns: u64,
    /// Bytes a second over the bus that all requests share; 0 for no limit.
    pub bytes_per_s: u64,
    /// Requests served at once; more wait their turn.
    pub parallel: u32,
    /// A completed write is durable only after a flush.
    pub volatile_cache: bool,
    /// Seeks cost time above (a model of a slow disk by one number).
    pub rotational: bool,
}

impl Model {
    /// The names [`Model::from_str`] knows, beside `fixed:TIME[:PARALLEL]`.
    pub const NAMES: [&str; 5] = ["sata-7200", "sas-15k", "network-volume", "sata-ssd", "pcie-flash"];

    /// Every request but a flush takes `time_ns`, `parallel` of them at once: what `nbdkit --filter=delay` does.
    #[must_use]
    pub fn fixed(time_ns: u64, parallel: u32) -> Model {
        Model::Parallel(ParallelModel {
            read_ns: (time_ns, time_ns),
            write_ns: (time_ns, time_ns),
            flush_ns: 0,
            bytes_per_s: 0,
            parallel: parallel.clamp(1, PARALLEL_MAX),
            volatile_cache: false,
            rotational: true,
        })
    }

    fn named(name: &str) -> Option<Model> {
        Some(match name {
            // 7200 rpm: 8.33 ms a turn; mean seek 8.5 ms; a random 4 KiB read takes 12.8 ms in the mean at depth 1.
            "sata-7200" => Model::Disk(DiskModel {
                track_to_track_ns: 800 * US,
                full_stroke_ns: 15_237 * US,
                revolution_ns: 8_333_333,
                media_bytes_per_s: 120 * MB,
                command_ns: 100 * US,
                cache_bytes: 32 << 20,
                bus_bytes_per_s: 300 * MB,
            }),
            // 15,000 rpm: 4 ms a turn; mean seek 3.5 ms; 5.6 ms in the mean. Enterprise disks ship with the cache off.
            "sas-15k" => Model::Disk(DiskModel {
                track_to_track_ns: 200 * US,
                full_stroke_ns: 6_387 * US,
                revolution_ns: 4 * MS,
                media_bytes_per_s: 160 * MB,
                command_ns: 80 * US,
                cache_bytes: 0,
                bus_bytes_per_s: 600 * MB,
            }),
            // A replicated volume over the network: about a millisecond each, 64 at once, rate-limited by its provider.
            "network-volume" => Model::Parallel(ParallelModel {
                read_ns: (800 * US, 1_200 * US),
                write_ns: (1_000 * US, 1_600 * US),
                flush_ns: 500 * US,
                bytes_per_s: 250 * MB,
                parallel: 64,
                volatile_cache: false,
                rotational: true,
            }),
            // S16: 80 us; S15: 250 us to program a page, which a flush has to wait for.
            "sata-ssd" => Model::Parallel(ParallelModel {
                read_ns: (70 * US, 90 * US),
                write_ns: (50 * US, 80 * US),
                flush_ns: 500 * US,
                bytes_per_s: 500 * MB,
                parallel: 64,
                volatile_cache: true,
                rotational: false,
            }),
            // S15, S16: 25 us; writes end in memory behind a super-capacitor (S3), so a flush has nothing to do.
            "pcie-flash" => Model::Parallel(ParallelModel {
                read_ns: (22 * US, 28 * US),
                write_ns: (15 * US, 25 * US),
                flush_ns: 5 * US,
                bytes_per_s: 1_500 * MB,
                parallel: 128,
                volatile_cache: false,
                rotational: false,
            }),
            _ => return None,
        })
    }
}

/// A model that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is not a disk model\nhint: {} or fixed:TIME[:PARALLEL], such as fixed:4ms:64", Model::NAMES.join(", "))]
pub struct UnknownModel {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Model, UnknownModel> {
        let unknown = || UnknownModel { name: name.to_owned() };
        if let Some(model) = Model::named(name) {
            return Ok(model);
        }
        let mut parts = name.strip_prefix("fixed:").ok_or_else(unknown)?.split(':');
        let time_ns = parts.next().and_then(parse_time_ns).ok_or_else(unknown)?;
        let parallel = match parts.next() {
            Some(text) => text.parse().ok().filter(|p| (1..=PARALLEL_MAX).contains(p)).ok_or_else(unknown)?,
            None => 1,
        };
        if parts.next().is_some() { Err(unknown()) } else { Ok(Model::fixed(time_ns, parallel)) }
    }
}

/// A time in the largest unit that it is a multiple of.
fn in_units(ns: u64) -> (u64, &'static str) {
    let units = [(1_000 * MS, "s"), (MS, "ms"), (US, "us")];
    let found = units.into_iter().find(|(unit, _)| ns > 0 && ns.is_multiple_of(*unit));
    found.map_or((ns, "ns"), |(unit, name)| (ns / unit, name))
}

/// A time with its unit, at most an hour.
fn parse_time_ns(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ns = match unit {
        "ns" => 1,
        "us" => US,
        "ms" => MS,
        "s" => 1_000 * MS,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ns).filter(|ns| *ns <= 3_600_000 * MS)
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = Model::NAMES.iter().find(|n| Model::named(n).as_ref() == Some(self)) {
            return f.write_str(name);
        }
        match self {
            Model::Disk(_) => f.write_str("disk"),
            Model::Parallel(m) if m.read_ns.0 == m.read_ns.1 => {
                let (time, unit) = in_units(m.read_ns.0);
                write!(f, "fixed:{time}{unit}:{}", m.parallel)
            }
            Model::Parallel(_) => f.write_str("parallel"),
        }
    }
}

/// Nanoseconds that `len` bytes take at a rate; 0 without a limit.
pub(super) fn transfer_ns(len: u64, bytes_per_s: u64) -> u64 {
    if bytes_per_s == 0 {
        return 0;
    }
    (u128::from(len) * 1_000_000_000 / u128::from(bytes_per_s)) as u64
}

/// Where the head of a disk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The byte behind the last transfer.
    pub(super) at: u64,
    /// When that transfer ended, ns.
    pub(super) since_ns: u64,
}

impl DiskModel {
    /// How long the arm and the platter take to bring byte `to` under the head, starting at `now_ns`.
    pub(super) fn position_ns(&self, head: Head, to: u64, reads: bool, size_bytes: u64, now_ns: u64) -> u64 {
        if head.at == to {
            if reads {
                // The electronics have read on.
                return 0;
            }
            // A write that comes after the head has gone by waits for the rest of the turn: a disk of 7,200 turns makes no more than 120
            // commits a second durable.
            let late_ns = now_ns.saturating_sub(head.since_ns) % self.revolution_ns;
            return (self.revolution_ns - late_ns) % self.revolution_ns;
        }
        let distance = head.at.abs_diff(to);
        let track_bytes = self.track_bytes();
        let seek_ns = if head.at / track_bytes == to / track_bytes {
            0
        } else {
            // sqrt(distance / size), in units of 2^-20.
            let ratio = ((u128::from(distance) << 40) / u128::from(size_bytes.max(1))) as u64;
            let root = ratio.isqrt();
            let span = self.full_stroke_ns - self.track_to_track_ns;
            self.track_to_track_ns + ((u128::from(span) * u128::from(root)) >> 20) as u64
        };
        let there_ns = (now_ns + seek_ns) % self.revolution_ns;
        let wanted_ns = self.angle_ns(to);
        seek_ns + (wanted_ns + self.revolution_ns - there_ns) % self.revolution_ns
    }

    /// When in a turn a byte passes the head. Neighbouring tracks are offset against each other by a number without
    /// pattern, so that addresses a multiple of a track apart are not all at one angle.
    fn angle_ns(&self, at: u64) -> u64 {
        let track_bytes = self.track_bytes();
        let skew = (at / track_bytes).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let within = u128::from(at % track_bytes) * u128::from(self.revolution_ns) / u128::from(track_bytes);
        (within as u64 + skew) % self.revolution_ns
    }

    fn track_bytes(&self) -> u64 {
        ((u128::from(self.media_bytes_per_s) * u128::from(self.revolution_ns) / 1_000_000_000) as u64).max(512)
    }
}
