//! Every alert there can be: those of the cell's own state, and one for each metric, raised by thresholds.

use std::borrow::Cow;

/// Whether an alert lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is cleared when its cause has gone.
    Stateful,
    /// It tells of a moment.
    Stateless,
}

/// What raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Hardware,
    Metric,
    Software,
}

/// How often its cause is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Every {
    Second,
    /// With the reading of the metrics, since it costs as much.
    Minute,
}

/// What an alert means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: Kind,
    pub(crate) source: Source,
    pub(crate) every: Every,
    pub(crate) description: Cow<'static, str>,
    /// The metric whose threshold raises it.
    pub(crate) metric: Option<&'static str>,
}

impl Definition {
    /// Whether its message is a reason, with what is to be done about it: another reason is a change of the alert, though it is as bad as before.
    pub(crate) fn tells_why(&self) -> bool {
        self.name == GRID_DISK_OFFLINE
    }
}

const fn own(name: &'static str, kind: Kind, source: Source, every: Every, description: &'static str) -> Definition {
    Definition { name: Cow::Borrowed(name), kind, source, every, description: Cow::Borrowed(description), metric: None }
}

/// Name of a definition.
pub(crate) const GRID_DISK_OFFLINE: &str = "GridDisk_Offline";

/// Those of the cell's own state.
const OWN: &[Definition] = {
    use Every::{Minute, Second};
    use Kind::{Stateful, Stateless};
    use Source::{Hardware, Software};
    &[
        own("CellDisk_NotPresent", Stateful, Hardware, Second, "a cell disk of the catalog is missing"),
        own("CellDisk_OutOfService", Stateful, Hardware, Second, "a cell disk has failed and is not used any more"),
        own(
            "FlashCache_MemberFailed",
            Stateful,
            Hardware,
            Second,
            "flash of the flash cache has failed or is missing: expelled",
        ),
        own(
            "FlashLog_RingFailed",
            Stateful,
            Hardware,
            Second,
            "flash of the flash log has failed or is missing: redo does without it",
        ),
        own(
            "GridDisk_NotServed",
            Stateful,
            Hardware,
            Second,
            "a grid disk of the catalog is not served: its disk is not there",
        ),
        own(
            GRID_DISK_OFFLINE,
            Stateful,
            Hardware,
            Second,
            "nobody may read or write a grid disk: the only copy of something is out of reach",
        ),
        own(
            "GridDisk_FlushFailed",
            Stateless,
            Hardware,
            Second,
            "a disk failed to flush: un-flushed writes may be gone, and clients are told",
        ),
        own(
            "Cell_Certificates",
            Stateful,
            Software,
            Second,
            "certificates were put in place that make no TLS: connections get those before",
        ),
        own(
            "Cell_Revocations",
            Stateful,
            Software,
            Second,
            "the list of revoked certificates cannot be read: no certificate lets anybody in",
        ),
        own("Cell_Audit", Stateful, Software, Second, "the audit log cannot be written: changes are refused"),
        own("Cell_Event", Stateless, Software, Second, "something an operator should know"),
        own(
            "FlashCache_EnduranceSpent",
            Stateful,
            Hardware,
            Minute,
            "the endurance budget of a flash cell disk is spent: nothing more is cached on it for now",
        ),
        own(
            "FlashCache_Rot",
            Stateless,
            Hardware,
            Minute,
            "cached data did not match its checksum, and was read from elsewhere",
        ),
        own("FlashCache_StaleDirty", Stateful, Hardware, Minute, "flash that has failed holds data that no disk has"),
        own(
            "GridDisk_DirtyAge",
            Stateful,
            Hardware,
            Minute,
            "writes of a grid disk have been on flash alone for an hour: its disk is behind, gone, or frozen",
        ),
        own("FlashLog_SavedRedo", Stateful, Hardware, Minute, "the flash log holds redo that its disk does not take"),
    ]
};

/// What the names of alerts raised by thresholds begin with.
const OF_METRIC: &str = "StatefulAlert_";

fn of_metric(metric: &'static cell::metrics::Definition) -> Definition {
    Definition {
        name: Cow::Owned(format!("{OF_METRIC}{}", metric.name)),
        kind: Kind::Stateful,
        source: Source::Metric,
        every: Every::Minute,
        description: Cow::Owned(format!("beyond a threshold: {}", metric.description)),
        metric: Some(metric.name),
    }
}

/// Every alert there can be.
pub(crate) fn definitions() -> impl Iterator<Item = Definition> {
    OWN.iter().cloned().chain(cell::metrics::definitions().map(of_metric))
}

/// The alert of that name.
pub(crate) fn definition(name: &str) -> Option<Definition> {
    match name.strip_prefix(OF_METRIC) {
        Some(metric) => cell::metrics::definition(metric).map(of_metric),
        None => OWN.iter().find(|own| own.name == name).cloned(),
    }
}

/// The name of the alert that a metric's threshold raises.
pub(crate) fn name_of_metric(metric: &str) -> String {
    format!("{OF_METRIC}{metric}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_found() {
        let mut seen = BTreeSet::new();
        for it in definitions() {
            assert!(seen.insert(it.name.clone()), "{} stands twice", it.name);
            assert_eq!(definition(&it.name).unwrap(), it);
        }
        assert_eq!(definition("StatefulAlert_GD_IO_ERRS_MIN").unwrap().metric, Some("GD_IO_ERRS_MIN"));
        assert!(definition("StatefulAlert_X").is_none() && definition("").is_none());
    }
}
