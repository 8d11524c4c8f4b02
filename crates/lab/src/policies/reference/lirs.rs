//! LIRS (Jiang and Zhang, SIGMETRICS 2002): blocks by the recency of their last but one use.

use super::list::{Links, List};
use super::{BlockCache, BlockId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    /// Low inter-reference recency: resident, on the stack.
    Low,
    /// High, resident: in the queue, perhaps on the stack.
    HighResident,
    /// High, not resident: a name on the stack.
    HighGone,
}

/// The stack, the queue, and names of what has gone for at most [`HISTORY`] times the cache.
pub struct Lirs {
    stack_links: Links,
    stack: List,
    queue_links: Links,
    queue: List,
    /// Names that are gone, oldest first, so that their number can be bounded.
    gone_links: Links,
    gone: List,
    state: Vec<State>,
    on_stack: Vec<bool>,
    low: u32,
    low_max: u32,
    queue_max: u32,
    gone_max: u32,
}

/// Names kept of blocks that are gone, in cache sizes.
const HISTORY: u32 = 100;

impl Lirs {
    /// A cache of `size` blocks, 1 % of it for blocks of high inter-reference recency.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> Lirs {
        let queue_max = (size / 100).max(1);
        Lirs {
            stack_links: Links::new(distinct),
            stack: List::new(),
            queue_links: Links::new(distinct),
            queue: List::new(),
            gone_links: Links::new(distinct),
            gone: List::new(),
            state: vec![State::Unknown; distinct as usize],
            on_stack: vec![false; distinct as usize],
            low: 0,
            low_max: size.saturating_sub(queue_max),
            queue_max,
            gone_max: size.saturating_mul(HISTORY),
        }
    }

    fn stack_push(&mut self, block: BlockId) {
        self.stack_leave(block);
        self.stack.push(&mut self.stack_links, block);
        self.on_stack[block as usize] = true;
    }

    fn stack_leave(&mut self, block: BlockId) {
        if std::mem::take(&mut self.on_stack[block as usize]) {
            self.stack.remove(&mut self.stack_links, block);
        }
    }

    /// The bottom of the stack is a block of low inter-reference recency.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.oldest() {
            match self.state[bottom as usize] {
                State::Low => return,
                State::HighGone => self.forget(bottom),
                _ => self.stack_leave(bottom),
            }
        }
    }

    fn forget(&mut self, block: BlockId) {
        self.gone.remove(&mut self.gone_links, block);
        self.state[block as usize] = State::Unknown;
        self.stack_leave(block);
    }

    fn queue_push(&mut self, block: BlockId) {
        self.queue.push(&mut self.queue_links, block);
        self.state[block as usize] = State::HighResident;
    }

    fn evict(&mut self, left: &mut dyn FnMut(BlockId)) {
        let Some(block) = self.queue.pop_oldest(&mut self.queue_links) else { return };
        left(block);
        if !self.on_stack[block as usize] {
            self.state[block as usize] = State::Unknown;
            return;
        }
        self.state[block as usize] = State::HighGone;
        self.gone.push(&mut self.gone_links, block);
        if self.gone.len() > self.gone_max
            && let Some(oldest) = self.gone.oldest()
        {
            self.forget(oldest);
        }
    }

    /// The block becomes one of low inter-reference recency; the lowest of these on the stack makes way.
    fn promote(&mut self, block: BlockId) {
        self.state[block as usize] = State::Low;
        self.low += 1;
        self.stack_push(block);
        while self.low > self.low_max {
            self.prune();
            let Some(bottom) = self.stack.oldest() else { break };
            self.stack_leave(bottom);
            self.low -= 1;
            self.queue_push(bottom);
            self.prune();
        }
    }
}

impl BlockCache for Lirs {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        match self.state[block as usize] {
            State::Low => {
                self.stack_push(block);
                self.prune();
                return true;
            }
            State::HighResident => {
                self.queue.remove(&mut self.queue_links, block);
                if self.on_stack[block as usize] {
                    self.promote(block);
                } else {
                    self.stack_push(block);
                    self.queue_push(block);
                }
                return true;
            }
            State::Unknown | State::HighGone => {}
        }
        if self.low < self.low_max && self.queue.len() == 0 {
            self.promote(block);
            return false;
        }
        if self.queue.len() >= self.queue_max || self.low + self.queue.len() >= self.low_max + self.queue_max {
            self.evict(left);
        }
        // Looked at again: it may have been the name that was just forgotten.
        if self.state[block as usize] == State::HighGone {
            self.gone.remove(&mut self.gone_links, block);
            self.promote(block);
            while self.queue.len() > self.queue_max {
                self.evict(left);
            }
        } else {
            self.stack_push(block);
            self.queue_push(block);
        }
        false
    }
}
