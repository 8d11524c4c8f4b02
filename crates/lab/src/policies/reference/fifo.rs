//! One queue: FIFO, LRU, CLOCK and SIEVE (Zhang et al., NSDI 2024), which differ in what a hit does and who leaves.

use super::list::{Links, List};
use super::{BlockCache, BlockId};

struct Queue {
    links: Links,
    list: List,
    resident: Vec<bool>,
    size: u32,
}

impl Queue {
    fn new(size: u32, distinct: u32) -> Queue {
        Queue { links: Links::new(distinct), list: List::new(), resident: vec![false; distinct as usize], size }
    }
    fn holds(&self, block: BlockId) -> bool {
        self.resident[block as usize]
    }
    fn full(&self) -> bool {
        self.list.len() >= self.size
    }
    fn push(&mut self, block: BlockId) {
        self.list.push(&mut self.links, block);
        self.resident[block as usize] = true;
    }
    fn remove(&mut self, block: BlockId) {
        self.list.remove(&mut self.links, block);
        self.resident[block as usize] = false;
    }
    fn evict_oldest(&mut self, left: &mut dyn FnMut(BlockId)) {
        if let Some(oldest) = self.list.oldest() {
            self.remove(oldest);
            left(oldest);
        }
    }
}

/// First in, first out.
pub struct Fifo(Queue);

impl Fifo {
    /// A cache of `size` blocks.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> Fifo {
        Fifo(Queue::new(size, distinct))
    }
}

impl BlockCache for Fifo {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        if self.0.holds(block) {
            return true;
        }
        if self.0.full() {
            self.0.evict_oldest(left);
        }
        self.0.push(block);
        false
    }
}

/// Least recently used.
pub struct Lru(Queue);

impl Lru {
    /// A cache of `size` blocks.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> Lru {
        Lru(Queue::new(size, distinct))
    }
}

impl BlockCache for Lru {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        let hit = self.0.holds(block);
        if hit {
            self.0.remove(block);
        } else if self.0.full() {
            self.0.evict_oldest(left);
        }
        self.0.push(block);
        hit
    }
}

/// FIFO with a second chance for blocks that were hit.
pub struct Clock {
    queue: Queue,
    hit: Vec<bool>,
}

impl Clock {
    /// A cache of `size` blocks.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> Clock {
        Clock { queue: Queue::new(size, distinct), hit: vec![false; distinct as usize] }
    }
}

impl BlockCache for Clock {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        if self.queue.holds(block) {
            self.hit[block as usize] = true;
            return true;
        }
        while self.queue.full() {
            let Some(oldest) = self.queue.list.oldest() else { break };
            self.queue.remove(oldest);
            if std::mem::take(&mut self.hit[oldest as usize]) {
                self.queue.push(oldest);
            } else {
                left(oldest);
            }
        }
        self.queue.push(block);
        false
    }
}

/// A queue whose hand evicts in place: survivors keep their positions.
pub struct Sieve {
    queue: Queue,
    hit: Vec<bool>,
    hand: Option<BlockId>,
}

impl Sieve {
    /// A cache of `size` blocks.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> Sieve {
        Sieve { queue: Queue::new(size, distinct), hit: vec![false; distinct as usize], hand: None }
    }
}

impl BlockCache for Sieve {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        if self.queue.holds(block) {
            self.hit[block as usize] = true;
            return true;
        }
        if self.queue.full() {
            let mut at = self.hand.or_else(|| self.queue.list.oldest());
            while let Some(candidate) = at {
                let next = self.queue.links.newer(candidate);
                if std::mem::take(&mut self.hit[candidate as usize]) {
                    at = next.or_else(|| self.queue.list.oldest());
                } else {
                    self.queue.remove(candidate);
                    left(candidate);
                    self.hand = next;
                    break;
                }
            }
        }
        self.queue.push(block);
        false
    }
}
