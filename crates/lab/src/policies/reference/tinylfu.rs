//! W-TinyLFU (Einziger et al., TOS 2017): a window in front of a segmented LRU that only admits what is asked for more often
//! than what it would replace.

use super::list::{Links, List};
use super::{BlockCache, BlockId};

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    Window,
    Probation,
    Protected,
}

/// 1 % window, 80 % of the rest protected, 4-bit counters halved every ten cache sizes of requests.
pub struct WTinyLfu {
    links: Links,
    at: Vec<At>,
    window: List,
    probation: List,
    protected: List,
    window_max: u32,
    main_max: u32,
    protected_max: u32,
    sketch: Sketch,
}

impl WTinyLfu {
    /// A cache of `size` blocks.
    #[must_use]
    pub fn new(size: u32, distinct: u32) -> WTinyLfu {
        let window_max = (size / 100).max(1);
        let main_max = size.saturating_sub(window_max);
        WTinyLfu {
            links: Links::new(distinct),
            at: vec![At::Nowhere; distinct as usize],
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
            window_max,
            main_max,
            protected_max: (u64::from(main_max) * 4 / 5) as u32,
            sketch: Sketch::new(size),
        }
    }

    fn leave_window(&mut self, left: &mut dyn FnMut(BlockId)) {
        let Some(candidate) = self.window.pop_oldest(&mut self.links) else { return };
        self.at[candidate as usize] = At::Nowhere;
        if self.main_max == 0 {
            left(candidate);
            return;
        }
        if self.probation.len() + self.protected.len() >= self.main_max {
            let from_probation = self.probation.len() > 0;
            let list = if from_probation { &mut self.probation } else { &mut self.protected };
            let Some(victim) = list.oldest() else { return };
            if self.sketch.estimate(candidate) <= self.sketch.estimate(victim) {
                left(candidate);
                return;
            }
            list.remove(&mut self.links, victim);
            self.at[victim as usize] = At::Nowhere;
            left(victim);
        }
        self.probation.push(&mut self.links, candidate);
        self.at[candidate as usize] = At::Probation;
    }
}

impl BlockCache for WTinyLfu {
    fn access(&mut self, block: BlockId, left: &mut dyn FnMut(BlockId)) -> bool {
        self.sketch.count(block);
        match self.at[block as usize] {
            At::Window => {
                self.window.remove(&mut self.links, block);
                self.window.push(&mut self.links, block);
                true
            }
            At::Probation => {
                self.probation.remove(&mut self.links, block);
                self.protected.push(&mut self.links, block);
                self.at[block as usize] = At::Protected;
                if self.protected.len() > self.protected_max
                    && let Some(demoted) = self.protected.pop_oldest(&mut self.links)
                {
                    self.probation.push(&mut self.links, demoted);
                    self.at[demoted as usize] = At::Probation;
                }
                true
            }
            At::Protected => {
                self.protected.remove(&mut self.links, block);
                self.protected.push(&mut self.links, block);
                true
            }
            At::Nowhere => {
                self.window.push(&mut self.links, block);
                self.at[block as usize] = At::Window;
                if self.window.len() > self.window_max {
                    self.leave_window(left);
                }
                false
            }
        }
    }
}

/// A count-min sketch of four rows with counters up to 15.
struct Sketch {
    counters: Vec<u8>,
    mask: usize,
    counted: u64,
    period: u64,
}

const ROWS: usize = 4;
const COUNTER_MAX: u8 = 15;

impl Sketch {
    fn new(size: u32) -> Sketch {
        let columns = (size as usize * 4).next_power_of_two().max(64);
        Sketch { counters: vec![0; columns * ROWS], mask: columns - 1, counted: 0, period: u64::from(size) * 10 }
    }

    fn places(&self, block: BlockId) -> [usize; ROWS] {
        let mut hash = u64::from(block).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        std::array::from_fn(|row| {
            hash = (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            row * (self.mask + 1) + ((hash >> 32) as usize & self.mask)
        })
    }

    fn estimate(&self, block: BlockId) -> u8 {
        self.places(block).into_iter().map(|at| self.counters[at]).min().unwrap_or(0)
    }

    fn count(&mut self, block: BlockId) {
        let low = self.estimate(block);
        for at in self.places(block) {
            // Only the lowest: a conservative update.
            if self.counters[at] == low && low < COUNTER_MAX {
                self.counters[at] += 1;
            }
        }
        self.counted += 1;
        if self.counted >= self.period {
            self.counted = 0;
            self.counters.iter_mut().for_each(|c| *c /= 2);
        }
    }
}
