//! Goal: memory that was freed in small pieces goes back to the system, also where it is locked, and is locked again. Method: the resident size of this process; pieces that stay keep the
//! allocator from giving anything back by itself.

#![cfg(target_env = "gnu")]
#![expect(clippy::unwrap_used, reason = "tests")]

use device::{MemoryGuard, give_back_memory, guard_memory};

const PIECE_BYTES: usize = 16 << 10;
const PIECES: usize = 8 << 10;
const STAYS_EVERY: usize = 64;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

fn locked_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmLck")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// One test, since there is one memory.
#[test]
fn what_was_freed_in_small_pieces_goes_back() {
    goes_back();
    assert_eq!(locked_kib(), 0, "nothing is locked unless asked for");
    let guards = guard_memory();
    assert_eq!(guards.len(), 3);
    let is_locked = matches!(guards[0], MemoryGuard::InForce(_));
    assert_eq!(locked_kib() > 0, is_locked, "{guards:?}");
    goes_back();
    assert_eq!(locked_kib() > 0, is_locked, "locked again");
}

fn goes_back() {
    let pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![7; PIECE_BYTES]).collect();
    let stay: Vec<Vec<u8>> =
        pieces.into_iter().enumerate().filter(|(n, _)| n % STAYS_EVERY == 0).map(|(_, piece)| piece).collect();
    let before = resident_bytes();
    give_back_memory();
    let after = resident_bytes();
    assert!(after + PIECES * PIECE_BYTES / 2 < before, "{before} bytes before, {after} after");
    assert!(stay.iter().all(|piece| piece.iter().all(|byte| *byte == 7)), "nothing else has changed");
}
