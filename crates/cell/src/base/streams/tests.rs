//! Goal: scans are found whatever way they are asked for, and nothing else is one. Method: requests as the field makes them, in parts.

use super::*;
use device::Prng;

/// The usual cut-off.
const CUTOFF: u64 = 4 << 20;
const MIB: u64 = 1 << 20;
/// Parts of a request of the kernel's read-ahead.
const AHEAD: u64 = (128 << 10) / PART_BYTES;

fn watch() -> StreamWatch {
    StreamWatch::new(CUTOFF)
}

/// How many of these requests, `len` parts each, were found to be of a scan.
fn scanned(watch: &StreamWatch, starts: impl IntoIterator<Item = u64>, len: u64) -> usize {
    starts.into_iter().filter(|start| watch.reads(&(*start..start + len)).is_some()).count()
}

#[test]
fn a_scan_is_one_beyond_the_cutoff_whatever_its_requests() {
    for len in [1, 2, AHEAD] {
        let watch = watch();
        let requests = 64 * MIB / PART_BYTES / len;
        let found = scanned(&watch, (0..requests).map(|n| 7 + n * len), len) as u64;
        // The request that reaches the cut-off is the first.
        assert_eq!(found, requests - (CUTOFF / PART_BYTES).div_ceil(len) + 1, "requests of {len} parts");
    }
    assert_eq!(scanned(&StreamWatch::new(0), (0..1000).map(|n| n * AHEAD), AHEAD), 0, "switched off");
}

#[test]
fn a_large_request_is_a_scan_of_its_own() {
    let far_apart = || (0..100).map(|n| n * 100 * MIB / PART_BYTES);
    assert_eq!(scanned(&watch(), far_apart(), AHEAD), 0);
    assert_eq!(scanned(&watch(), far_apart(), AHEAD + 1), 100);
    assert_eq!(scanned(&StreamWatch::new(0), far_apart(), AHEAD + 1), 0, "switched off");
    let (watch, parts) = (watch(), 0..AHEAD + 1);
    assert!(watch.writes(&parts) && !watch.writes(&(10 * MIB..10 * MIB + AHEAD)));
}

#[test]
fn read_ahead_out_of_order_is_a_scan() {
    let watch = watch();
    let mut prng = Prng::new(1);
    // Four in flight: any of them is seen next, but none later than the seven after it.
    let (mut flying, mut next, mut found) = (Vec::new(), 0, 0);
    for _ in 0..1000 {
        while flying.len() < 4 {
            flying.push(next);
            next += AHEAD;
        }
        let late = flying.iter().position(|start| start + 8 * AHEAD <= next);
        let start = flying.swap_remove(late.unwrap_or(prng.below(4) as usize));
        found += scanned(&watch, [start], AHEAD);
    }
    assert!(found >= 1000 - 40, "{found} of 1000");
}

#[test]
fn workers_that_take_turns_are_scans() {
    // Chunks of one table in turn, and each a half of it.
    for (second, step) in [(AHEAD, 2 * AHEAD), (1 << 20, AHEAD)] {
        let watch = watch();
        let starts = (0..1000).flat_map(|n| [n * step, second + n * step]);
        let found = scanned(&watch, starts, AHEAD);
        assert!(found >= 2000 - 66, "{found} of 2000, the second at {second}");
    }
}

#[test]
fn a_scan_is_found_among_random_reads() {
    let watch = watch();
    let mut prng = Prng::new(2);
    let (mut found, mut wrong) = (0, 0);
    for n in 0..1000 {
        found += scanned(&watch, [n * AHEAD], AHEAD);
        wrong += scanned(&watch, (0..100).map(|_| (1 << 30) + prng.below(1 << 28)), 2);
    }
    assert!(found >= 1000 - 33, "{found} of 1000");
    assert_eq!(wrong, 0);
}

#[test]
fn random_reads_are_no_scan_however_small_the_table() {
    let mut prng = Prng::new(3);
    for table_mib in [1, 2, 5, 10, 40, 1000] {
        let watch = watch();
        let parts = table_mib * MIB / PART_BYTES;
        let found = scanned(&watch, (0..100_000).map(|_| prng.below(parts - 4)), 4);
        assert!(found <= 100, "{found} of 100000 in {table_mib} MiB");
    }
}

#[test]
fn sorted_sparse_writes_of_a_checkpoint_are_no_scan() {
    let mut prng = Prng::new(4);
    let watch = watch();
    // Pages of 8 KiB in order, half of all there are.
    let found = (0..100_000_u64).filter(|_| prng.chance(1, 2)).filter(|n| watch.writes(&(n * 2..n * 2 + 2))).count();
    assert_eq!(found, 0);
    // And all of them, as a restore writes.
    let found = (200_000..300_000_u64).filter(|n| watch.writes(&(n * 2..n * 2 + 2))).count();
    assert_eq!(found, 100_000 - 511);
}

#[test]
fn a_log_is_no_scan_while_it_is_flushed() {
    for (len, every, is_log) in [(2, 1, true), (2, 100, true), (16, 16, true), (16, 17, false), (17, 4, false)] {
        let watch = watch();
        let mut refused = 0;
        for n in 0..4096 {
            refused += u64::from(watch.writes(&(n * len..(n + 1) * len)));
            if n % every == every - 1 {
                watch.flushes();
            }
        }
        let all = 4096 - 1024_u64.div_ceil(len) + 1;
        let expected = if is_log { 0 } else { all };
        // Beyond 1 MiB without a flush the rest is refused.
        let partly = every * len > LOG_FLUSH_PARTS && len <= 16;
        assert!(refused == expected || partly && refused > 0, "{refused} of {all}: {len} parts, a flush after {every}");
    }
}

/// Every window of a table of so many MiB once more, by the next scan: how many are admitted.
fn pass(watch: &StreamWatch, scan: u32, table_mib: u64, cache_bytes: u64) -> u64 {
    let windows = (0..table_mib).flat_map(|n| [n * MIB / PART_BYTES, n * MIB / PART_BYTES + AHEAD]);
    windows.map(|part| u64::from(watch.returns(Scan { id: scan, returns: false }, part, cache_bytes))).sum::<u64>() / 2
}

#[test]
fn a_scan_that_comes_back_and_fits_is_admitted_and_one_that_does_not_fit_never() {
    for cache_mib in [64, 512, 4096, 100_000] {
        let (cache_bytes, fits_mib) = (cache_mib * MIB, cache_mib * 3 / 4);
        let small = watch();
        assert_eq!(pass(&small, 1, fits_mib, cache_bytes), 0, "the first time");
        for scan in 2..6 {
            let admitted = pass(&small, scan, fits_mib, cache_bytes);
            assert!(admitted * 100 >= fits_mib * 90, "{admitted} of {fits_mib} MiB, a cache of {cache_mib}");
        }
        let large = watch();
        for scan in 1..6 {
            let admitted = pass(&large, scan, cache_mib * 4, cache_bytes);
            assert_eq!(admitted, 0, "scan {scan} of four times {cache_mib} MiB");
        }
    }
}

#[test]
fn bits_move_and_are_counted() {
    let mut bits = Bits::default();
    bits.set(0..3);
    bits.set(126..130);
    assert_eq!((bits.count(), bits.shift(0)), (7, 0));
    assert_eq!((bits.shift(1), bits.count()), (0, 7));
    assert_eq!((bits.shift(126), bits.count()), (1, 6));
    assert_eq!((bits.shift(3), bits.count()), (3, 3));
    assert_eq!((bits.shift(200), bits.count()), (3, 0));
    bits.set(0..256);
    assert_eq!((bits.count(), bits.shift(300)), (256, 256));
}
