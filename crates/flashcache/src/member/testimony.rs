//! What recovery has found dirty on a member.

use crate::base::units::Page;
use std::collections::BTreeMap;

/// When what is dirty on a member was written, as its recovery has found it: by page, the sequence of its chunk. Nothing is known of what
/// was left at a clean stop: then the members agree.
#[derive(Debug, Default)]
pub(crate) struct Testimony {
    pub(crate) dirty: BTreeMap<Page, u64>,
}

impl Testimony {
    pub(crate) fn found(&mut self, page: Page, sequence: u64) {
        self.dirty.insert(page, sequence);
    }
}
