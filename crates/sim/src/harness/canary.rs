//! Deliberately broken builds, of the flash cache and of the flash log, as one list.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Of the flash cache or the request path.
    Cache(flashcache::Sabotage),
    /// Of the flash log.
    Log(flashlog::Sabotage),
}

impl Canary {
    /// Every one of them.
    #[must_use]
    pub fn all() -> Vec<Canary> {
        let cache = flashcache::Sabotage::ALL.into_iter().map(Canary::Cache);
        cache.chain(flashlog::Sabotage::ALL.into_iter().map(Canary::Log)).collect()
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Canary::Cache(sabotage) => sabotage.name(),
            Canary::Log(sabotage) => sabotage.name(),
        }
    }

    pub(super) fn of_cache(self) -> Option<flashcache::Sabotage> {
        match self {
            Canary::Cache(sabotage) => Some(sabotage),
            Canary::Log(_) => None,
        }
    }

    pub(super) fn of_log(self) -> Option<flashlog::Sabotage> {
        match self {
            Canary::Log(sabotage) => Some(sabotage),
            Canary::Cache(_) => None,
        }
    }
}
