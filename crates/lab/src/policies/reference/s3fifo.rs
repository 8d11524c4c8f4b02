//! S3-FIFO (Yang et al., SOSP 2023): a small queue that blocks must prove themselves in, a main queue, and a queue of names.

use super::list::{Links, List};
use super::{BlockCache, BlockId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    Small,
    Main,
    Ghost,
}

/// Three queues; 10 % small, ghosts for 90 %, two hits lead from small to main.
pub struct S3Fifo {
    links: Links,
    at: Vec<At>,
    frequency: Vec<u8>,
    small: List,
    main: List,
    ghost: List,
    small_size: u32,
    size: u32,
}

const FREQUENCY_MAX: u8 = 3;
const HITS_TO_MAIN: u8 = 2;

impl S3Fifo {
    /// A cache of `size` blocks.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> S3Fifo {
        S3Fifo {
            links: Links::new(distinct),
            at: vec![At::Nowhere; distinct as usize],
            frequency: vec![0; distinct as usize],
            small: List::new(),
            main: List::new(),
            ghost: List::new(),
            small_size: (size / 10).max(1),
            size,
        }
    }

    fn push(&mut self, block: BlockId, to: At) {
        let list = match to {
            At::Small => &mut self.small,
            At::Main => &mut self.main,
            _ => &mut self.ghost,
        };
        list.push(&mut self.links, block);
        self.at[block as usize] = to;
    }

    fn evict(&mut self, left: &mut dyn FnMut(BlockId)) {
        if self.main.len() > self.size - self.small_size || self.small.len() == 0 {
            return self.evict_main(left);
        }
        while let Some(oldest) = self.small.pop_oldest(&mut self.links) {
            if std::mem::take(&mut self.frequency[oldest as usize]) >= HITS_TO_MAIN {
                self.push(oldest, At::Main);
                continue;
            }
            self.push(oldest, At::Ghost);
            left(oldest);
            if self.ghost.len() > self.size - self.small_size
                && let Some(forgotten) = self.ghost.pop_oldest(&mut self.links)
            {
                self.at[forgotten as usize] = At::Nowhere;
            }
            return;
        }
        self.evict_main(left);
    }

    fn evict_main(&mut self, left: &mut dyn FnMut(BlockId)) {
        while let Some(oldest) = self.main.pop_oldest(&mut self.links) {
            if self.frequency[oldest as usize] == 0 {
                self.at[oldest as usize] = At::Nowhere;
                left(oldest);
                return;
            }
            self.frequency[oldest as usize] -= 1;
            self.push(oldest, At::Main);
        }
    }
}

impl BlockCache for S3Fifo {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        let at = self.at[block as usize];
        if matches!(at, At::Small | At::Main) {
            let frequency = &mut self.frequency[block as usize];
            *frequency = (*frequency + 1).min(FREQUENCY_MAX);
            return true;
        }
        if at == At::Ghost {
            self.ghost.remove(&mut self.links, block);
            self.at[block as usize] = At::Nowhere;
        }
        while self.small.len() + self.main.len() >= self.size {
            self.evict(left);
        }
        self.frequency[block as usize] = 0;
        self.push(block, if at == At::Ghost { At::Main } else { At::Small });
        false
    }
}
