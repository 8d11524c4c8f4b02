//! Which copy of the catalog is in force, and what the others are to it.
//!
//! The rules (docs/internals/disk-format.md, "Replicas"): the highest (term, sequence) wins. Every open raises the term on
//! all present devices before anything is served, so a copy that was absent then can never win afterwards.

use crate::catalog::{Catalog, Lineage, TermMark};
use crate::ids::{DeviceId, Stamp};
use crate::layout::TERMS_MAX;
use std::sync::Arc;

/// What a copy is, seen from the one in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kinship {
    /// The same.
    Current,
    /// An earlier state of it: its device was absent, or a crash came between two devices.
    Stale,
    /// It carries a change that was never in force: written in a term both took part in, but the other devices did not
    /// get it before a crash, so nobody was told that it happened.
    Superseded,
    /// It was opened and changed apart from this one: both lived on alone.
    Diverged,
}

/// The copy in force.
pub(crate) fn winner(copies: &[(DeviceId, Arc<Catalog>)]) -> Option<Arc<Catalog>> {
    let rank = |catalog: &Catalog| {
        let Lineage { now, changed, .. } = &catalog.lineage;
        (now.term, now.sequence, changed.term, changed.sequence, now.stamp)
    };
    copies.iter().max_by_key(|(_, catalog)| rank(catalog)).map(|(_, catalog)| catalog.clone())
}

/// `newest`, unless every copy on a disk went its own way from it: then the newest of those. Flash that lived apart from
/// the disks (left behind when they were restored from a snapshot, or back after it was given up) may not keep them from
/// being served.
pub(crate) fn not_by_flash_alone(newest: Arc<Catalog>, on_disks: &[(DeviceId, Arc<Catalog>)]) -> Arc<Catalog> {
    let all_apart = on_disks.iter().all(|(_, copy)| kinship(copy, &newest) == Kinship::Diverged);
    match winner(on_disks) {
        Some(of_disks) if all_apart => of_disks,
        _ => newest,
    }
}

/// What `copy` is to `winner`. Only real changes count: an open that changed nothing leaves no claim.
pub(crate) fn kinship(copy: &Catalog, winner: &Catalog) -> Kinship {
    if copy.lineage.now == winner.lineage.now {
        return Kinship::Current;
    }
    let changed = copy.lineage.changed;
    let ours = winner.lineage.now;
    let shared = [&ours].into_iter().chain(&winner.lineage.history).find(|mark| mark.stamp == changed.stamp);
    match shared {
        Some(end) if changed.sequence <= end.sequence => Kinship::Stale,
        _ if copy.same_content(winner) => Kinship::Stale,
        Some(_) => Kinship::Superseded,
        // Too long ago to tell: the winner has seen a full history of opens since.
        None if winner.lineage.history.len() == TERMS_MAX
            && winner.lineage.history.first().is_some_and(|oldest| changed.term < oldest.term) =>
        {
            Kinship::Stale
        }
        None => Kinship::Diverged,
    }
}

/// The lineage of a new open on top of `winner`; `term_max` is the highest term any copy has shown.
pub(crate) fn next_term(winner: &Lineage, term_max: u64, stamp: Stamp) -> Lineage {
    let mut history = winner.history.clone();
    history.push(winner.now);
    let surplus = history.len().saturating_sub(TERMS_MAX);
    history.drain(..surplus);
    let now = TermMark { term: term_max.saturating_add(1), stamp, sequence: winner.now.sequence.saturating_add(1) };
    Lineage { now, changed: winner.changed, history }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::ids::CellId;
    use device::WallTime;

    fn opened(from: &Catalog, stamp: u128) -> Catalog {
        let lineage = next_term(&from.lineage, from.lineage.now.term, Stamp(stamp));
        Catalog { lineage, ..from.clone() }
    }

    fn changed(from: &Catalog, plan: &str) -> Catalog {
        let mut next = from.clone();
        next.lineage.now.sequence += 1;
        next.lineage.changed = next.lineage.now;
        plan.clone_into(&mut next.iorm_plan);
        next
    }

    fn start() -> Catalog {
        changed(&opened(&Catalog::new(CellId(1), "c", WallTime(0), Stamp(9)), 1), "start")
    }

    #[test]
    fn an_absent_copy_never_wins_and_is_told_apart() {
        let base = start();
        // A crash between two devices: one has a change nobody was told of. The other then serves alone.
        let unheard = changed(&base, "unheard");
        let alone = changed(&opened(&base, 2), "alone");
        let copies = [(DeviceId(1), Arc::new(unheard.clone())), (DeviceId(2), Arc::new(alone.clone()))];
        assert_eq!(*winner(&copies).unwrap(), alone);
        assert_eq!(kinship(&unheard, &alone), Kinship::Superseded);
        assert_eq!(kinship(&base, &alone), Kinship::Stale);
        // Several changes in a lost term do not help it either.
        let mut busy = unheard;
        for round in 0..10 {
            busy = changed(&busy, &format!("{round}"));
        }
        let copies = [(DeviceId(1), Arc::new(busy)), (DeviceId(2), Arc::new(alone.clone()))];
        assert_eq!(*winner(&copies).unwrap(), alone);
    }

    #[test]
    fn flash_that_lived_apart_does_not_outvote_the_disks() {
        let base = start();
        let disk = Arc::new(changed(&opened(&base, 2), "disk"));
        let mut left = opened(&base, 3);
        for stamp in 4..9 {
            left = changed(&opened(&left, stamp), "flash");
        }
        let flash = Arc::new(left);
        let disks = [(DeviceId(1), disk.clone())];
        assert_eq!(not_by_flash_alone(flash.clone(), &disks), disk);
        // A disk that is merely behind is brought up to date by it.
        let disks = [(DeviceId(1), disk.clone()), (DeviceId(2), Arc::new(base))];
        assert_eq!(not_by_flash_alone(flash.clone(), &disks), flash);
        assert_eq!(not_by_flash_alone(flash.clone(), &[]), flash);
    }

    #[test]
    fn copies_that_lived_apart_are_told() {
        let base = start();
        let left = changed(&opened(&base, 2), "left");
        let right = changed(&opened(&base, 3), "right");
        assert_eq!(kinship(&left, &right), Kinship::Diverged);
        assert_eq!(kinship(&right, &left), Kinship::Diverged);
        // Opened apart, but nothing changed: no harm done.
        let idle = opened(&base, 4);
        assert_eq!(kinship(&idle, &right), Kinship::Stale);
        assert_eq!(kinship(&right, &right), Kinship::Current);
        // The same change made apart is no conflict.
        let twin = changed(&opened(&base, 5), "right");
        assert_eq!(kinship(&twin, &right), Kinship::Stale);
    }

    #[test]
    fn history_is_bounded_and_what_falls_out_counts_as_old() {
        let base = start();
        let mut long = base.clone();
        for stamp in 0..TERMS_MAX as u128 + 5 {
            long = opened(&long, 100 + stamp);
        }
        assert_eq!(long.lineage.history.len(), TERMS_MAX);
        assert_eq!(kinship(&changed(&base, "x"), &long), Kinship::Stale);
        let recent = changed(&opened(&long, 7), "apart");
        assert_eq!(kinship(&recent, &opened(&opened(&long, 8), 9)), Kinship::Diverged);
        assert!(long.validate().is_ok());
    }
}
