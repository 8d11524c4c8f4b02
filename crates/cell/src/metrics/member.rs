//! What each member of the flash cache writes to its flash and what it may, by the name of its cell disk.
//!
//! Never keeps a value: read from the members when asked.

use crate::lifecycle::cell::Cell;
use crate::metrics::{Base, Definition, Formula, MetricObject, Reading, metric};
use flashcache::EnduranceFigures;

/// The metrics of members: about the cell disk a member lies on.
pub(crate) const ROWS: &[&[Definition]] = &[
    metric!(
        CellDisk,
        "CD_BY_FC_BUDGET",
        Bytes,
        "bytes the flash cache may write to a flash cell disk at once, of its endurance budget",
        Formula::Gauge(Reading::Member(|m| m.budget_left_bytes))
    ),
    metric!(
        CellDisk,
        "CD_BY_FC_W",
        Bytes,
        "bytes the flash cache wrote to a flash cell disk, headers and records included",
        Formula::Counter(Reading::Member(|m| Some(m.written_bytes)))
    ),
    metric!(
        CellDisk,
        "CD_BY_FC_W_SEC",
        Bytes,
        "bytes the flash cache wrote to a flash cell disk, headers and records included, a second",
        Formula::PerSecond("CD_BY_FC_W")
    ),
    metric!(
        CellDisk,
        "CD_FC_LIFETIME_DAYS",
        Count,
        "days a new flash drive would last at the flash cache's rate of writes since the cell was started",
        Formula::Gauge(Reading::Member(|m| m.lifetime_days))
    ),
    metric!(
        CellDisk,
        "CD_FC_WRITE_AMP",
        Milli,
        "bytes the flash cache wrote to a flash cell disk for each byte filled or kept of a write",
        Formula::Gauge(Reading::Member(|m| m.write_amplification_milli))
    ),
];

/// The figures of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberFigures {
    /// Name of its cell disk.
    pub name: String,
    /// What it has written and may write.
    pub endurance: EnduranceFigures,
}

impl MemberFigures {
    /// Of every member, in the order of the cache.
    pub(crate) fn all(cell: &Cell) -> Vec<MemberFigures> {
        let Some(at_work) = cell.cache_at_work() else { return Vec::new() };
        let catalog = cell.store.as_ref().map(|store| store.catalog());
        let known = |id| catalog.as_ref().and_then(|catalog| catalog.members.get(id));
        let named = at_work.devices.iter().zip(at_work.cache.members());
        let figures = named.map(|(id, member)| MemberFigures {
            name: known(id).map_or_else(|| id.to_string(), |known| known.name.clone()),
            endurance: member.endurance_figures(),
        });
        figures.collect()
    }
}
