//! ARC (Megiddo and Modha, FAST 2003): recency and frequency lists whose balance follows hits among what each has lost.

use super::list::{Links, List};
use super::{BlockCache, BlockId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    Recent,
    Frequent,
    GhostRecent,
    GhostFrequent,
}

/// The adaptive replacement cache.
pub struct Arc {
    links: Links,
    at: Vec<At>,
    recent: List,
    frequent: List,
    ghost_recent: List,
    ghost_frequent: List,
    /// How many blocks the recency list aims at.
    target: u32,
    size: u32,
}

impl Arc {
    /// A cache of `size` blocks.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> Arc {
        Arc {
            links: Links::new(distinct),
            at: vec![At::Nowhere; distinct as usize],
            recent: List::new(),
            frequent: List::new(),
            ghost_recent: List::new(),
            ghost_frequent: List::new(),
            target: 0,
            size,
        }
    }

    fn list(&mut self, at: At) -> Option<&mut List> {
        match at {
            At::Nowhere => None,
            At::Recent => Some(&mut self.recent),
            At::Frequent => Some(&mut self.frequent),
            At::GhostRecent => Some(&mut self.ghost_recent),
            At::GhostFrequent => Some(&mut self.ghost_frequent),
        }
    }

    fn put(&mut self, block: BlockId, to: At) {
        let from = self.at[block as usize];
        let mut links = std::mem::replace(&mut self.links, Links::new(0));
        if let Some(list) = self.list(from) {
            list.remove(&mut links, block);
        }
        if let Some(list) = self.list(to) {
            list.push(&mut links, block);
        }
        self.links = links;
        self.at[block as usize] = to;
    }

    fn replace(&mut self, in_ghost_frequent: bool, left: &mut dyn FnMut(BlockId)) {
        let recent = self.recent.len();
        let from_recent = recent > 0 && (recent > self.target || (in_ghost_frequent && recent == self.target));
        let (list, to) = if from_recent || self.frequent.len() == 0 {
            (self.recent, At::GhostRecent)
        } else {
            (self.frequent, At::GhostFrequent)
        };
        if let Some(oldest) = list.oldest() {
            self.put(oldest, to);
            left(oldest);
        }
    }

    fn forget_oldest(&mut self, list: List) {
        if let Some(oldest) = list.oldest() {
            self.put(oldest, At::Nowhere);
        }
    }
}

impl BlockCache for Arc {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        match self.at[block as usize] {
            At::Recent | At::Frequent => {
                self.put(block, At::Frequent);
                return true;
            }
            At::GhostRecent => {
                let step = (self.ghost_frequent.len() / self.ghost_recent.len()).max(1);
                self.target = (self.target + step).min(self.size);
                self.replace(false, left);
                self.put(block, At::Frequent);
            }
            At::GhostFrequent => {
                let step = (self.ghost_recent.len() / self.ghost_frequent.len()).max(1);
                self.target = self.target.saturating_sub(step);
                self.replace(true, left);
                self.put(block, At::Frequent);
            }
            At::Nowhere => {
                let seen_once = self.recent.len() + self.ghost_recent.len();
                let all = seen_once + self.frequent.len() + self.ghost_frequent.len();
                if seen_once >= self.size {
                    if self.recent.len() < self.size {
                        self.forget_oldest(self.ghost_recent);
                        self.replace(false, left);
                    } else {
                        self.recent.oldest().into_iter().for_each(&mut *left);
                        self.forget_oldest(self.recent);
                    }
                } else if all >= self.size {
                    if all >= 2 * self.size {
                        self.forget_oldest(self.ghost_frequent);
                    }
                    self.replace(false, left);
                }
                self.put(block, At::Recent);
            }
        }
        false
    }
}
