//! Lists of dense block numbers: several lists over one pair of link arrays, a block on at most one of them.

use super::BlockId;

const NONE: BlockId = BlockId::MAX;

/// The links of all blocks.
pub(super) struct Links {
    newer: Vec<BlockId>,
    older: Vec<BlockId>,
}

/// One list: its ends and its length.
#[derive(Clone, Copy)]
pub(super) struct List {
    newest: BlockId,
    oldest: BlockId,
    len: u32,
}

impl Links {
    pub(super) fn new(distinct: u32) -> Links {
        Links { newer: vec![NONE; distinct as usize], older: vec![NONE; distinct as usize] }
    }

    /// The next newer block of the list that holds `block`.
    pub(super) fn newer(&self, block: BlockId) -> Option<BlockId> {
        Some(self.newer[block as usize]).filter(|&b| b != NONE)
    }
}

impl List {
    pub(super) fn new() -> List {
        List { newest: NONE, oldest: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<BlockId> {
        Some(self.oldest).filter(|&b| b != NONE)
    }

    pub(super) fn push(&mut self, links: &mut Links, block: BlockId) {
        links.older[block as usize] = self.newest;
        links.newer[block as usize] = NONE;
        match self.newest {
            NONE => self.oldest = block,
            newest => links.newer[newest as usize] = block,
        }
        self.newest = block;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, links: &mut Links, block: BlockId) {
        let (newer, older) = (links.newer[block as usize], links.older[block as usize]);
        match newer {
            NONE => self.newest = older,
            newer => links.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => links.newer[older as usize] = newer,
        }
        self.len -= 1;
    }

    pub(super) fn pop_oldest(&mut self, links: &mut Links) -> Option<BlockId> {
        let block = self.oldest()?;
        self.remove(links, block);
        Some(block)
    }
}
