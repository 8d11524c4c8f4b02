//! Which numbered thing holds a page: hash chains, as the buffer cache of a database has them.
//!
//! One allocation, made once. The hash is the same on every machine and in every run.

use crate::list::NONE;
use crate::page::PageNumber;

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Vec<u32>,
    /// The next holder in the chain of this one.
    chain: Vec<u32>,
    keys: Vec<PageNumber>,
    shift: u32,
}

impl Index {
    /// For `holders` holders, 0 and up.
    pub(crate) fn new(holders: usize) -> Index {
        let buckets = holders.next_power_of_two().max(2);
        Index {
            shift: 64 - buckets.ilog2(),
            buckets: vec![NONE; buckets],
            chain: vec![NONE; holders],
            keys: vec![PageNumber(u64::MAX); holders],
        }
    }

    fn bucket(&self, key: PageNumber) -> usize {
        (key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The buffer that holds a page, if one does.
    pub(crate) fn get(&self, key: PageNumber) -> Option<u32> {
        let mut at = self.buckets[self.bucket(key)];
        while at != NONE {
            if self.keys[at as usize] == key {
                return Some(at);
            }
            at = self.chain[at as usize];
        }
        None
    }

    /// `holder`, which holds nothing, holds `key`, which nobody holds.
    pub(crate) fn insert(&mut self, key: PageNumber, holder: u32) {
        debug_assert!(self.get(key).is_none(), "a page is in one buffer");
        let bucket = self.bucket(key);
        self.keys[holder as usize] = key;
        self.chain[holder as usize] = self.buckets[bucket];
        self.buckets[bucket] = holder;
    }

    /// `holder` holds nothing any more; what it held.
    pub(crate) fn remove(&mut self, holder: u32) -> PageNumber {
        let key = self.keys[holder as usize];
        let bucket = self.bucket(key);
        let after = self.chain[holder as usize];
        let mut at = self.buckets[bucket];
        if at == holder {
            self.buckets[bucket] = after;
        } else {
            while self.chain[at as usize] != holder {
                at = self.chain[at as usize];
                assert!(at != NONE, "who holds a page is in its chain");
            }
            self.chain[at as usize] = after;
        }
        self.keys[holder as usize] = PageNumber(u64::MAX);
        key
    }

    /// The page that a buffer holds.
    pub(crate) fn key(&self, holder: u32) -> PageNumber {
        self.keys[holder as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn it_knows_what_a_map_knows() {
        let (mut index, mut map, mut prng) = (Index::new(50), BTreeMap::new(), Prng::new(1));
        for _ in 0..20_000 {
            let (holder, key) = (prng.below(50) as u32, PageNumber(prng.below(200)));
            match map.iter().find(|(_, h)| **h == holder).map(|(k, _)| *k) {
                Some(held) => {
                    assert_eq!(index.remove(holder), held);
                    map.remove(&held);
                }
                None if !map.contains_key(&key) => {
                    index.insert(key, holder);
                    map.insert(key, holder);
                }
                None => {}
            }
            assert_eq!(index.get(key), map.get(&key).copied());
        }
    }
}
