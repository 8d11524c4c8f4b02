//! Faults: what may go wrong where, and what is wrong with which sectors.
//!
//! A fault is laid over the pristine bytes and never replaces them, so a fault can be taken away, and a test can ask
//! what the content would have been.

use super::SECTOR_BYTES;
use device::{FailKind, Prng, Verb};
use std::collections::BTreeMap;
use std::ops::Range;

/// A kind of fault, each switched on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A read fails, this once.
    ReadFails,
    /// A write, zero or discard fails and may be torn.
    WriteFails,
    /// A flush fails; what it should have made durable may be lost at the next cut, or at once.
    FlushFails,
    /// A read or write transfers only its first part.
    Short,
    /// A write ends without anybody knowing whether it happened; it may happen much later.
    Unknown,
    /// A write is acknowledged and never happens.
    Lost,
    /// A write is acknowledged and goes to another place.
    Misdirected,
    /// Bits of a sector change.
    Rot,
    /// A sector cannot be read until it is written again.
    Unreadable,
    /// A request takes very long.
    Slow,
}

impl FaultKind {
    /// Every kind, in declaration order.
    pub const ALL: [FaultKind; 10] = [
        FaultKind::ReadFails,
        FaultKind::WriteFails,
        FaultKind::FlushFails,
        FaultKind::Short,
        FaultKind::Unknown,
        FaultKind::Lost,
        FaultKind::Misdirected,
        FaultKind::Rot,
        FaultKind::Unreadable,
        FaultKind::Slow,
    ];

    /// Whether it can befall a request of this verb as it is submitted.
    fn befalls(self, verb: Verb) -> bool {
        let writes = matches!(verb, Verb::Write | Verb::WriteZeroes | Verb::Discard);
        match self {
            FaultKind::ReadFails | FaultKind::Rot | FaultKind::Unreadable => verb == Verb::Read,
            FaultKind::WriteFails | FaultKind::Unknown => writes,
            FaultKind::FlushFails => verb == Verb::Flush,
            FaultKind::Short => matches!(verb, Verb::Read | Verb::Write),
            FaultKind::Lost | FaultKind::Misdirected => verb == Verb::Write,
            FaultKind::Slow => true,
        }
    }
}

/// Where one kind of fault may strike.
#[derive(Clone, Debug)]
pub struct FaultZone {
    /// Bytes of the device, whole sectors; all of a faulty request must lie within. A misdirected write also lands
    /// within. A flush lies within every zone.
    pub range: Range<u64>,
    /// The kind.
    pub kind: FaultKind,
    /// Chance per million requests that it strikes by itself; 0: only when injected by name.
    pub ppm: u32,
}

/// The map of what may go wrong: only faults that the design claims to survive, with what is intact elsewhere.
/// Nothing outside a zone is ever injected, not even by name.
#[derive(Clone, Debug, Default)]
pub struct FaultAtlas {
    zones: Vec<FaultZone>,
}

impl FaultAtlas {
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> FaultAtlas {
        FaultAtlas::default()
    }

    /// This atlas with one more zone.
    #[must_use]
    pub fn with(mut self, kind: FaultKind, range: Range<u64>, ppm: u32) -> FaultAtlas {
        self.zones.push(FaultZone { range, kind, ppm });
        self
    }

    /// The zone that permits `kind` on all of `range`.
    #[must_use]
    pub fn zone(&self, kind: FaultKind, range: &Range<u64>) -> Option<&FaultZone> {
        let inside = |z: &&FaultZone| z.range.start <= range.start && range.end <= z.range.end;
        self.zones.iter().filter(|z| z.kind == kind).find(|z| range.is_empty() || inside(z))
    }

    /// The fault that strikes a request by itself, if any.
    pub(super) fn strike(&self, verb: Verb, range: &Range<u64>, prng: &mut Prng) -> Option<FaultKind> {
        let mut struck = None;
        for zone in &self.zones {
            let inside = range.is_empty() || zone.range.start <= range.start && range.end <= zone.range.end;
            if zone.ppm > 0 && inside && zone.kind.befalls(verb) && prng.chance(u64::from(zone.ppm), 1_000_000) {
                struck = struck.or(Some(zone.kind));
            }
        }
        struck
    }
}

/// A fault injected by name: strikes the next requests that match.
#[derive(Clone, Debug)]
pub struct Armed {
    /// What happens.
    pub kind: FaultKind,
    /// Requests that touch these bytes; for a flush anything matches.
    pub range: Range<u64>,
    /// How the failing kinds fail.
    pub fail: FailKind,
    /// How many requests it strikes.
    pub times: u32,
}

impl Armed {
    pub(super) fn matches(&self, verb: Verb, range: &Range<u64>) -> bool {
        let touches = range.is_empty() || (self.range.start < range.end && range.start < self.range.end);
        self.times > 0 && touches && self.kind.befalls(verb)
    }
}

/// What is wrong with a sector.
#[derive(Clone)]
pub(super) enum Wrong {
    /// It holds other bytes than were written: a lost or misdirected write.
    Bytes(Box<[u8; SECTOR_BYTES]>),
    /// Bits of it are turned round.
    Rot { at: u16, bits: u8 },
    /// It cannot be read.
    Unreadable,
}

/// What is wrong, by sector.
#[derive(Clone, Default)]
pub(super) struct Overlays(BTreeMap<u64, Wrong>);

impl Overlays {
    /// Lay what is wrong over `bytes`, the pristine content from `sector` on; false when part of it is unreadable.
    pub(super) fn apply(&self, sector: u64, bytes: &mut [u8]) -> bool {
        let end = sector + (bytes.len() / SECTOR_BYTES) as u64;
        let mut readable = true;
        for (&s, wrong) in self.0.range(sector..end) {
            let at = (s - sector) as usize * SECTOR_BYTES;
            match wrong {
                Wrong::Bytes(other) => bytes[at..at + SECTOR_BYTES].copy_from_slice(&other[..]),
                Wrong::Rot { at: byte, bits } => bytes[at + usize::from(*byte)] ^= bits,
                Wrong::Unreadable => readable = false,
            }
        }
        readable
    }

    pub(super) fn set(&mut self, sector: u64, wrong: Wrong) {
        self.0.insert(sector, wrong);
    }

    /// The sectors were written, or repaired: they hold what they should.
    pub(super) fn clear(&mut self, sectors: Range<u64>) {
        if !self.0.is_empty() {
            let gone: Vec<u64> = self.0.range(sectors).map(|(&s, _)| s).collect();
            gone.iter().for_each(|s| drop(self.0.remove(s)));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
