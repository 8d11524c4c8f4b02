//! Goal: the reference policies are the published ones. Method: naive models on random streams, and the figures of
//! libCacheSim on the shared traces.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::trace::TraceReader;
use device::Prng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

/// Random blocks, a few of them often.
fn stream(seed: u64, distinct: u32) -> impl Iterator<Item = BlockId> {
    let mut prng = Prng::new(seed);
    std::iter::repeat_with(move || {
        let bound = if prng.below(3) == 0 { u64::from(distinct) } else { u64::from(distinct / 8).max(1) };
        prng.below(bound) as BlockId
    })
}

/// The same decisions with a queue searched from end to end.
fn naive(name: &str, size: usize, blocks: &[BlockId]) -> Vec<bool> {
    let mut queue: VecDeque<(BlockId, bool)> = VecDeque::new();
    let mut hand = 0;
    let mut out = Vec::new();
    for &block in blocks {
        let at = queue.iter().position(|(b, _)| *b == block);
        out.push(at.is_some());
        if let Some(at) = at {
            queue[at].1 = true;
            if name == "lru" {
                let moved = queue.remove(at).unwrap();
                queue.push_back(moved);
            }
            continue;
        }
        while queue.len() >= size {
            match name {
                "clock" => {
                    let (oldest, hit) = queue.pop_front().unwrap();
                    if hit {
                        queue.push_back((oldest, false));
                    }
                }
                "sieve" => {
                    hand %= queue.len();
                    if std::mem::take(&mut queue[hand].1) {
                        hand += 1;
                    } else {
                        queue.remove(hand);
                        // The hand goes back to the oldest only when it is used again beyond the newest.
                        if hand == queue.len() {
                            hand = 0;
                        }
                    }
                }
                _ => {
                    queue.pop_front();
                }
            }
        }
        queue.push_back((block, false));
    }
    out
}

#[test]
fn queues_agree_with_naive_ones() {
    for name in ["fifo", "lru", "clock", "sieve"] {
        for seed in 0..20 {
            let size = 1 + seed as u32 * 3;
            let blocks: Vec<BlockId> = stream(seed, 120).take(4000).collect();
            let mut cache = by_name(name, size, 120).unwrap();
            let got: Vec<bool> = blocks.iter().map(|b| cache.access(*b, &mut |_| ())).collect();
            assert_eq!(got, naive(name, size as usize, &blocks), "{name} of {size}");
        }
    }
}

#[test]
fn who_leaves_is_told() {
    for name in NAMES {
        for size in [1, 2, 5, 64] {
            let mut cache = by_name(name, size, 400).unwrap();
            let mut held = BTreeSet::new();
            for (n, block) in stream(9, 400).take(20_000).enumerate() {
                let mut left = Vec::new();
                let hit = cache.access(block, &mut |gone| left.push(gone));
                assert_eq!(hit, held.contains(&block), "{name} of {size}, access {n}");
                held.insert(block);
                for gone in left {
                    assert!(held.remove(&gone), "{name} of {size}: {gone} left twice");
                }
                assert!(held.len() as u32 <= size, "{name} of {size} holds {}", held.len());
            }
        }
    }
}

#[test]
fn no_policy_holds_more_than_its_size() {
    // Blocks hit in a row without anything new between them cannot be more than the cache holds.
    for name in NAMES {
        for size in [1, 2, 5, 64] {
            let mut cache = by_name(name, size, 400).unwrap();
            for block in stream(9, 400).take(5000) {
                cache.access(block, &mut |_| ());
            }
            let mut kept = BTreeSet::new();
            for block in 0..400 {
                // A fresh replay for each, since asking changes what is held.
                let mut replay = by_name(name, size, 400).unwrap();
                stream(9, 400).take(5000).for_each(|b| {
                    replay.access(b, &mut |_| ());
                });
                if replay.access(block, &mut |_| ()) {
                    kept.insert(block);
                }
            }
            assert!(kept.len() as u32 <= size && !kept.is_empty(), "{name} of {size} holds {}", kept.len());
        }
    }
}

/// trace, blocks, and the figures of reference/peers.md for fifo, lru, clock, arc, lirs, s3-fifo, sieve, w-tinylfu; 0 for none.
const PEERS: [(&str, u32, [u32; 8]); 8] = [
    ("arc-OLTP.lis.zst", 1868, [6341, 5837, 5783, 5460, 5837, 5353, 5971, 6305]),
    ("arc-OLTP.lis.zst", 18688, [3666, 3348, 3314, 3273, 3434, 3222, 3334, 3619]),
    ("cloudPhysicsIO.vscsi", 26921, [8729, 8741, 8729, 8245, 8145, 8110, 8329, 8398]),
    ("disksim-hp-ajw.1week.converted.txt.zst", 799, [3146, 2871, 2778, 2467, 2511, 2486, 2695, 2665]),
    ("lirs-sprite.trace.gz", 707, [1804, 1352, 1359, 1450, 1598, 1386, 1848, 2453]),
    ("lirs-2_pools.trace.gz", 993, [5011, 4562, 4558, 4570, 4568, 4565, 4568, 4564]),
    ("msr-cut-10k.rw_20_80.105.trace", 738, [5141, 4888, 4851, 4709, 4777, 4747, 4767, 4905]),
    ("ms-DTRS100M.trace.zst", 127_226, [9993, 9992, 9992, 9989, 9469, 9992, 9989, 9497]),
];

#[test]
fn figures_are_those_of_libcachesim() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let mut skipped = 0;
    for (name, size, peers) in PEERS {
        let path = dir.join(name);
        if !path.exists() {
            skipped += 1;
            continue;
        }
        let reader = TraceReader::open(&path, None).unwrap();
        let unit = reader.unit();
        let mut ids = BTreeMap::new();
        let mut blocks = Vec::new();
        for request in reader {
            let request = request.unwrap();
            for block in request.blocks(unit, 4096) {
                let next = ids.len() as BlockId;
                blocks.push(*ids.entry((request.device, block)).or_insert(next));
            }
        }
        for (policy, peer) in NAMES.iter().zip(peers) {
            let mut cache = by_name(policy, size, ids.len() as u32).unwrap();
            let misses = blocks.iter().filter(|b| !cache.access(**b, &mut |_| ())).count() as u64;
            let got = (misses * 10_000 / blocks.len() as u64) as u32;
            // Queues have one meaning. ARC, LIRS and W-TinyLFU are built with freedoms (rounding, history, sketch).
            let tolerance = match *policy {
                "fifo" | "lru" | "clock" | "sieve" | "s3-fifo" => 2,
                "arc" => 20,
                "lirs" => 150,
                _ => 480,
            };
            assert!(peer == 0 || got.abs_diff(peer) <= tolerance, "{name} {size} {policy}: {got}, peers {peer}");
        }
    }
    #[expect(clippy::print_stderr, reason = "what was skipped is told")]
    if skipped > 0 {
        eprintln!("skipped {skipped} of {} rows: traces not in {}", PEERS.len(), dir.display());
    }
}
