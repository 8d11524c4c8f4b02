//! What a device is and how it behaves while nothing is wrong with it.

use super::faults::FaultAtlas;
use device::{Class, Geometry, Prng, Verb};

/// No device of [`DiskConfig::random`] flushes in less, nanoseconds.
pub const FLUSH_NS_MIN: u64 = 30_000;

/// A span of virtual time a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Shortest, nanoseconds.
    pub min_ns: u64,
    /// Longest, nanoseconds.
    pub max_ns: u64,
}

impl Span {
    /// From `min_ns` to `max_ns`.
    #[must_use]
    pub const fn new(min_ns: u64, max_ns: u64) -> Span {
        Span { min_ns, max_ns }
    }
}

/// How long requests take: uniform within a span for each verb, a part by length, now and then much longer.
/// For the service times of a real disk put the `delay` layer of `device` over a device with [`Latency::NONE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// By verb, in the order of [`Verb::ALL`].
    pub spans: [Span; Verb::ALL.len()],
    /// For each KiB transferred.
    pub per_kib_ns: u64,
    /// Chance per million that a request takes `tail_times` as long.
    pub tail_ppm: u32,
    /// See `tail_ppm`.
    pub tail_times: u64,
}

impl Latency {
    /// Nothing takes any time.
    pub const NONE: Latency =
        Latency { spans: [Span::new(0, 0); Verb::ALL.len()], per_kib_ns: 0, tail_ppm: 0, tail_times: 1 };

    /// Every verb within one span.
    #[must_use]
    pub const fn uniform(min_ns: u64, max_ns: u64) -> Latency {
        Latency { spans: [Span::new(min_ns, max_ns); Verb::ALL.len()], per_kib_ns: 0, tail_ppm: 0, tail_times: 1 }
    }

    pub(super) fn draw(&self, verb: Verb, len: u64, prng: &mut Prng) -> u64 {
        let span = self.spans[Verb::ALL.iter().position(|&v| v == verb).unwrap_or(0)];
        let ns = prng.between(span.min_ns, span.max_ns.max(span.min_ns)) + len.div_ceil(1024) * self.per_kib_ns;
        let tail = self.tail_ppm > 0 && prng.chance(u64::from(self.tail_ppm), 1_000_000);
        if tail { ns.saturating_mul(self.tail_times) } else { ns }
    }
}

/// A device to be made.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// For messages and traces, and the name of its random numbers: different devices have different names.
    pub name: String,
    /// What it says it is; what it does accords with that. A page larger than the logical block means only that
    /// smaller writes are slow: tearing is always by 512 bytes, the least a device may promise.
    pub geometry: Geometry,
    /// How long requests take.
    pub latency: Latency,
    /// Largest number of parts of one request that take effect at different moments (1: all at once). More than one
    /// lets overlapping requests interleave, as on a real device.
    pub parts_max: u64,
    /// Chance per million writes that the volatile cache destages something by itself.
    pub destage_ppm: u32,
    /// Buffers must be aligned to this, in address and length of every piece, as O_DIRECT has it (1: anything goes).
    pub memory_align_bytes: usize,
    /// On a device of class `ephemeral`: whether a power cut takes everything.
    pub gone_after_power_cut: bool,
    /// Whether a durable write or zero that fails may drop what the volatile cache holds of others.
    pub failed_fua_drops: bool,
    /// Whether what a failed flush drops may go on being read until the power goes.
    pub failed_flush_shows: bool,
    /// Which faults may be injected where.
    pub atlas: FaultAtlas,
}

impl DiskConfig {
    /// A device without latency, faults or disorder: 512-byte blocks, a volatile cache, discard.
    #[must_use]
    pub fn plain(name: &str, size_bytes: u64) -> DiskConfig {
        DiskConfig {
            name: name.to_owned(),
            geometry: Geometry {
                size_bytes,
                logical_bytes: 512,
                page_bytes: 4096,
                rotational: false,
                volatile_cache: true,
                discard_bytes: 4096,
                fast_zeroes: true,
                transfer_bytes_max: 8 << 20,
                class: Class::Durable,
            },
            latency: Latency::NONE,
            parts_max: 1,
            destage_ppm: 0,
            memory_align_bytes: 1,
            gone_after_power_cut: false,
            failed_fua_drops: false,
            failed_flush_shows: false,
            atlas: FaultAtlas::none(),
        }
    }

    /// A device whose kind is drawn from `prng`: page 512 to 4096, logical block 512 or 4096, flash or rotating, with
    /// or without volatile cache and discard; requests overlap, interleave and come out of order. No faults.
    #[must_use]
    pub fn random(name: &str, size_bytes: u64, rotational: bool, prng: &mut Prng) -> DiskConfig {
        let logical_bytes = if prng.chance(3, 4) { 512 } else { 4096 };
        let page_bytes = logical_bytes.max(512 << prng.below(4));
        let scale = if rotational { 20 } else { 1 };
        let spread = |prng: &mut Prng, min: u64| Span::new(min, min * prng.between(1, 20));
        let read = spread(prng, 20_000 * scale);
        let write = spread(prng, 10_000 * scale);
        let flush = spread(prng, FLUSH_NS_MIN * scale);
        DiskConfig {
            name: name.to_owned(),
            geometry: Geometry {
                size_bytes: size_bytes - size_bytes % u64::from(page_bytes),
                logical_bytes,
                page_bytes,
                rotational,
                volatile_cache: prng.chance(3, 4),
                discard_bytes: if rotational || prng.chance(1, 4) { 0 } else { page_bytes },
                fast_zeroes: prng.chance(1, 2),
                transfer_bytes_max: 1 << prng.between(16, 23),
                class: Class::Durable,
            },
            latency: Latency {
                spans: [read, write, write, write, flush, Span::new(0, 1_000)],
                per_kib_ns: prng.below(300),
                tail_ppm: [0, 2_000, 20_000][prng.below(3) as usize],
                tail_times: 50,
            },
            parts_max: prng.between(1, 4),
            destage_ppm: [0, 50_000, 500_000][prng.below(3) as usize],
            memory_align_bytes: 1,
            gone_after_power_cut: false,
            failed_fua_drops: false,
            failed_flush_shows: false,
            atlas: FaultAtlas::none(),
        }
    }
}
