//! Deliberately broken builds, of the flash cache, the flash log, the labels, what is below the cell and what is before it, as one list.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Of the flash cache or the request path.
    Cache(flashcache::Sabotage),
    /// Of the flash log.
    Log(flashlog::Sabotage),
    /// Of labels and catalogs.
    Disk(celldisk::Sabotage),
    /// Of what a server puts between the cell and its host.
    Host(HostSabotage),
    /// Of the client that is the device of another host.
    Client(nbd::client::Sabotage),
    /// Of the front end that serves other hosts.
    Front(nbd::Sabotage),
}

/// A broken layer between the cell and its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSabotage {
    /// The clock of a paused process goes on: every time-out is over when the process goes on.
    PauseCounts,
}

impl HostSabotage {
    const ALL: [HostSabotage; 1] = [HostSabotage::PauseCounts];

    fn name(self) -> &'static str {
        match self {
            HostSabotage::PauseCounts => "pause-counts",
        }
    }
}

/// What the devices of the simulator do not show, and `tests/faults` of the flash cache do. A mirror lacks what was acknowledged only after a
/// loss that nothing shows. A segment that vanishes is missed by the links to it, and the few that nothing links to held nothing of others:
/// 600 seeds did not show one. A chunk of a lost life comes back only where a later one ends right before it, behind two power cuts of the same
/// segment. A flush of flash that is only tried again takes a failed flush, its next try and a power cut before the chunk is overwritten. One
/// of 3,000 long seeds showed an acknowledgement behind a loss. A predecessor left open takes an overwrite between the copy of a block and the
/// end of its chunk, a flush, and a death before the next one. A segment freed before its successors takes a cache of 128 segments:
/// `tests/it/freed.rs` has one. A link that is certain by its opening takes a power cut in the flush that frees the segment with the link, and
/// before any other flush of that life. A first page of an earlier opening beside a later footer: one of 2,000 long seeds. A read that waits longer is no error, nor is a device given up that could have gone on. No page of the simulator's flash is rotten or unreadable when a process starts.
const NEVER_HERE: [flashcache::Sabotage; 15] = [
    flashcache::Sabotage::AbsenceKillsMirror,
    flashcache::Sabotage::RottenSegmentVanishes,
    flashcache::Sabotage::TailKept,
    flashcache::Sabotage::FlashFlushTriedAgain,
    flashcache::Sabotage::AcknowledgedBehindLoss,
    flashcache::Sabotage::PredecessorLeftOpen,
    flashcache::Sabotage::FreedBeforeSuccessors,
    flashcache::Sabotage::CopiesWaitForCompany,
    flashcache::Sabotage::UnreadablePageEndsCache,
    flashcache::Sabotage::WitnessNotWritten,
    flashcache::Sabotage::LogNotVerified,
    flashcache::Sabotage::FooterNotWrittenAgain,
    flashcache::Sabotage::CleanLossGivesUp,
    flashcache::Sabotage::LinkCertainByOpening,
    flashcache::Sabotage::EarlierFirstPageCounts,
];

/// What the hosts here can show; the others are caught by `crates/nbd/tests`. A host here sends each change again on its next connections, and
/// two FLUSHes of which one fails are rarely under way together.
const CLIENT_HERE: [nbd::client::Sabotage; 5] = [
    nbd::client::Sabotage::TakeOverUnflushed,
    nbd::client::Sabotage::TrimsNotKept,
    nbd::client::Sabotage::FailedNotKept,
    nbd::client::Sabotage::BrokenSessionTold,
    nbd::client::Sabotage::ReplayTriedOnce,
];
const FRONT_HERE: [nbd::Sabotage; 1] = [nbd::Sabotage::PartsEndAnywhere];

impl Canary {
    /// Every one of them.
    #[must_use]
    pub fn all() -> Vec<Canary> {
        let cache =
            flashcache::Sabotage::ALL.into_iter().filter(|sabotage| !NEVER_HERE.contains(sabotage)).map(Canary::Cache);
        let log = flashlog::Sabotage::ALL.into_iter().map(Canary::Log);
        let disk = celldisk::Sabotage::ALL.into_iter().map(Canary::Disk);
        let client = CLIENT_HERE.into_iter().map(Canary::Client);
        let front = FRONT_HERE.into_iter().map(Canary::Front);
        let host = HostSabotage::ALL.into_iter().map(Canary::Host);
        cache.chain(log).chain(disk).chain(host).chain(client).chain(front).collect()
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Canary::Cache(sabotage) => sabotage.name(),
            Canary::Log(sabotage) => sabotage.name(),
            Canary::Disk(sabotage) => sabotage.name(),
            Canary::Host(sabotage) => sabotage.name(),
            Canary::Client(sabotage) => sabotage.name(),
            Canary::Front(sabotage) => sabotage.name(),
        }
    }

    /// Only worlds whose clients are on other hosts can show it.
    pub(super) fn is_far(self) -> bool {
        matches!(self, Canary::Client(_) | Canary::Front(_))
    }

    pub(super) fn of_client(self) -> Option<nbd::client::Sabotage> {
        match self {
            Canary::Client(sabotage) => Some(sabotage),
            _ => None,
        }
    }

    pub(super) fn of_front(self) -> Option<nbd::Sabotage> {
        match self {
            Canary::Front(sabotage) => Some(sabotage),
            _ => None,
        }
    }

    pub(super) fn of_host(self) -> Option<HostSabotage> {
        match self {
            Canary::Host(sabotage) => Some(sabotage),
            _ => None,
        }
    }

    pub(super) fn of_cache(self) -> Option<flashcache::Sabotage> {
        match self {
            Canary::Cache(sabotage) => Some(sabotage),
            _ => None,
        }
    }

    pub(super) fn of_log(self) -> Option<flashlog::Sabotage> {
        match self {
            Canary::Log(sabotage) => Some(sabotage),
            _ => None,
        }
    }

    pub(super) fn of_disk(self) -> Option<celldisk::Sabotage> {
        match self {
            Canary::Disk(sabotage) => Some(sabotage),
            _ => None,
        }
    }
}
