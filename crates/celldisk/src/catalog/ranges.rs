//! Ranges of a grid disk that are cached otherwise than the rest of it: how a file or table is pinned.
//!
//! One list for each grid disk, in one form only: ascending, apart from each other, and two that touch differ. Never knows
//! what is cached.

use super::{CachingPolicy, CachingRange};
use std::ops::Range;

/// Give `bytes` this policy, whatever was said of them before; `None` takes them out of the list. The policy of everything else
/// stays.
pub(crate) fn set(list: &mut Vec<CachingRange>, bytes: Range<u64>, policy: Option<CachingPolicy>) {
    let mut next: Vec<CachingRange> = Vec::with_capacity(list.len() + 2);
    let mut push = |range: CachingRange| match next.last_mut() {
        _ if range.start_bytes >= range.end_bytes => {}
        Some(last) if last.end_bytes == range.start_bytes && last.policy == range.policy => {
            last.end_bytes = range.end_bytes;
        }
        _ => next.push(range),
    };
    for range in list.iter() {
        push(CachingRange { end_bytes: range.end_bytes.min(bytes.start), ..*range });
    }
    if let Some(policy) = policy {
        push(CachingRange { start_bytes: bytes.start, end_bytes: bytes.end, policy });
    }
    for range in list.iter() {
        push(CachingRange { start_bytes: range.start_bytes.max(bytes.end), ..*range });
    }
    *list = next;
}

/// The grid disk ends at `size_bytes` now.
pub(crate) fn trim(list: &mut Vec<CachingRange>, size_bytes: u64) {
    list.retain_mut(|range| {
        range.end_bytes = range.end_bytes.min(size_bytes);
        range.start_bytes < range.end_bytes
    });
}

#[cfg(test)]
mod tests {
    //! Goal: every part has the policy said last, in the shortest list. Method: random changes against an array of parts.
    use super::*;
    use device::Prng;

    const PARTS: u64 = 40;

    #[test]
    fn the_list_says_of_each_part_what_was_said_last() {
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut list = Vec::new();
            let mut parts = [None; PARTS as usize];
            let mut size = PARTS;
            for _ in 0..12 {
                if prng.chance(1, 8) {
                    size = prng.between(1, PARTS);
                    trim(&mut list, size);
                    parts[size as usize..].fill(None);
                }
                let start = prng.below(size);
                let end = prng.between(start + 1, size);
                let policies = [CachingPolicy::Default, CachingPolicy::Keep, CachingPolicy::None].map(Some);
                let policy = [&policies[..], &[None]].concat()[prng.below(4) as usize];
                set(&mut list, start..end, policy);
                parts[start as usize..end as usize].fill(policy);
                let found: Vec<Option<CachingPolicy>> = (0..PARTS)
                    .map(|part| list.iter().find(|r| (r.start_bytes..r.end_bytes).contains(&part)))
                    .map(|range| range.map(|range| range.policy))
                    .collect();
                assert_eq!(found, parts, "seed {seed}");
                let borders =
                    (0..PARTS as usize).filter(|&p| parts[p].is_some() && (p == 0 || parts[p - 1] != parts[p]));
                assert_eq!(list.len(), borders.count(), "seed {seed}: {list:?}");
                assert!(list.is_sorted_by(|a, b| a.end_bytes <= b.start_bytes), "seed {seed}: {list:?}");
            }
        }
    }
}
