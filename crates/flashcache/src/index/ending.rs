//! How entries leave the index: under the lock of the log, and with the record of their death in the same step.
//!
//! A death names the opening of the segment its entry lies in. Between an index that has forgotten an entry and a record that is written
//! later, under another hold of that lock, reclaim may free the segment and the log open it anew: the record would then name data that
//! was written since. So the index ends entries through [`Ending`] alone, which holds the log, and what has ended is a [`Dead`], which
//! holds it too: the record goes to the log as it was when the index forgot.

use crate::base::units::{BlockKey, Page};
use crate::index::{Entry, Index, IndexFull, KilledList};
use crate::log::LogState;
use crate::member::Member;

/// An index whose entries may end now: the log's lock is held.
pub(crate) struct Ending<'a> {
    index: &'a Index,
    log: &'a mut LogState,
}

/// Entries that have left the index, and the log as it was then.
#[must_use = "a death that is not recorded is forgotten at a crash"]
pub(crate) struct Dead<'a> {
    list: KilledList,
    log: &'a mut LogState,
}

impl Index {
    /// The index under the log's lock.
    pub(crate) fn under<'a>(&'a self, log: &'a mut LogState) -> Ending<'a> {
        Ending { index: self, log }
    }
}

impl<'a> Ending<'a> {
    /// [`Index::insert`]: parts that older entries hold die.
    ///
    /// # Errors
    /// [`IndexFull`]: nothing was changed.
    pub(crate) fn insert(self, entry: Entry) -> Result<Dead<'a>, IndexFull> {
        let list = self.index.insert(entry)?;
        Ok(Dead { list, log: self.log })
    }

    /// [`Index::kill`]: parts of a block die.
    pub(crate) fn kill(self, key: BlockKey, mask: u16) -> Dead<'a> {
        Dead { list: self.index.kill(key, mask), log: self.log }
    }

    /// [`Index::cut_at`]: parts of the entry whose data starts at `page` die.
    pub(crate) fn cut_at(self, key: BlockKey, page: Page, mask: u16) -> Dead<'a> {
        Dead { list: self.index.cut_at(key, page, mask), log: self.log }
    }

    /// The same of all of a clean entry; nothing of one that is dirty.
    pub(crate) fn end_clean(self, key: BlockKey, page: Page) -> Dead<'a> {
        // What becomes dirty does so under the log's lock.
        let is_clean = self.index.get_at(key, page).is_some_and(|entry| !entry.dirty());
        let list = if is_clean { self.index.cut_at(key, page, u16::MAX) } else { KilledList::new() };
        Dead { list, log: self.log }
    }

    /// [`Index::relocate`]: the same data lies elsewhere now.
    pub(crate) fn relocate(self, key: BlockKey, from: Page, expected: u16, to: Page, frequency: u8) -> bool {
        self.index.relocate(key, from, expected, to, frequency)
    }
}

impl Dead<'_> {
    /// How long ago the youngest of them was written, in pages of the log.
    pub(crate) fn age(&self) -> Option<u64> {
        self.list.iter().map(|killed| self.log.age_of(killed.page)).min()
    }

    /// How often the one most hit of them was.
    pub(crate) fn frequency(&self) -> u8 {
        self.list.iter().map(|killed| killed.frequency).max().unwrap_or(0)
    }

    /// Record what has died; the list of it.
    pub(crate) fn record(self, member: &Member) -> KilledList {
        member.append_deaths(self.log, &self.list);
        self.list
    }

    /// No record: the caller has another that says the same (the segment's free record, a raised generation, the death before the
    /// entry was forgotten), or records them before anything can be opened anew, as recovery does.
    pub(crate) fn unsaid(self) -> KilledList {
        self.list
    }
}

#[cfg(test)]
mod tests;
