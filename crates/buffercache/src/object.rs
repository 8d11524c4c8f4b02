//! Objects of the database: which pages are whose, and what the flash cache does with them.

use crate::page::PageNumber;
use std::ops::Range;

/// `FLASH_CACHE (KEEP | NONE | DEFAULT)` of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Keep {
    /// As it comes.
    #[default]
    Default,
    /// Not pushed out by what is not KEEP.
    Keep,
    /// Not on flash.
    None,
}

/// The objects that are not DEFAULT, by their pages.
#[derive(Clone, Debug, Default)]
pub struct Objects(Vec<(Range<u64>, Keep)>);

impl Objects {
    /// Every page is DEFAULT.
    #[must_use]
    pub fn new() -> Objects {
        Objects::default()
    }

    /// These pages are an object with a policy of its own.
    ///
    /// # Panics
    /// When they overlap those of another.
    #[must_use]
    pub fn with(mut self, pages: Range<u64>, keep: Keep) -> Objects {
        let at = self.0.partition_point(|(range, _)| range.start < pages.start);
        let apart = self.0[..at].last().is_none_or(|(before, _)| before.end <= pages.start)
            && self.0.get(at).is_none_or(|(after, _)| pages.end <= after.start);
        assert!(apart, "a page belongs to one object");
        self.0.insert(at, (pages, keep));
        self
    }

    /// What the flash cache does with a page.
    #[must_use]
    pub fn keep(&self, page: PageNumber) -> Keep {
        let at = self.0.partition_point(|(range, _)| range.start <= page.0);
        self.0[..at].last().filter(|(range, _)| range.contains(&page.0)).map_or(Keep::Default, |(_, keep)| *keep)
    }
}
