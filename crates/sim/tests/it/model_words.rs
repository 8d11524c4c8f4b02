//! The model over many sectors: what it says about wrong answers, unaligned writes, sizes, and how fast it is.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::Prng;
use sim::model::{Invariant, Model, OpId, Violation};

const KIB: u64 = 1024;

fn written(model: &mut Model, range: std::ops::Range<u64>) -> OpId {
    let op = model.begin_write(range, false);
    model.ack(op);
    op
}

fn read(model: &mut Model, range: std::ops::Range<u64>, got: &[u8]) -> Result<(), Violation> {
    let read = model.read_begin(range);
    model.check_read(read, got)
}

fn flush(model: &mut Model) {
    let flush = model.flush_begin();
    model.flush_ack(flush);
}

#[test]
fn stale_data_is_named_with_both_writes() {
    let mut model = Model::new(1, 64 * KIB);
    let old = written(&mut model, 0..4096);
    written(&mut model, 512..1024);
    let bytes = model.bytes(old);
    let e = read(&mut model, 0..4096, &bytes).unwrap_err();
    assert_eq!(e.invariant, Invariant::Stale);
    assert_eq!(e.range, 512..1024);
    let told = "I2 broken, stale data: bytes 512..1024 (sector 1): got op 1 (write of 0..4096, begun at 2, \
                acknowledged at 3, not flushed); permitted: op 2 (write of 512..1024, begun at 4, acknowledged at 5, \
                not flushed)";
    assert_eq!(e.to_string(), told);
}

#[test]
fn another_places_data_is_told_from_garbage() {
    let mut model = Model::new(1, 64 * KIB);
    let op = written(&mut model, 0..64 * KIB);
    let mut bytes = model.bytes(op);
    let moved = bytes[40 * 512..41 * 512].to_vec();
    bytes[96 * 512..97 * 512].copy_from_slice(&moved);
    let e = read(&mut model.clone(), 0..64 * KIB, &bytes).unwrap_err();
    assert_eq!((e.invariant, e.range), (Invariant::Foreign, 96 * 512..97 * 512));
    assert_eq!(e.got, "op 1's data for sector 40 found at sector 96");

    let mut bytes = model.bytes(op);
    bytes[5000] ^= 4;
    let e = read(&mut model.clone(), 0..64 * KIB, &bytes).unwrap_err();
    assert_eq!((e.invariant, e.range), (Invariant::Rot, 9 * 512..10 * 512));

    // Two seeds do not take each other's data for their own.
    let mut other = Model::new(2, 64 * KIB);
    let theirs = written(&mut other, 0..512);
    let e = read(&mut model, 0..512, &other.bytes(theirs)).unwrap_err();
    assert_eq!(e.invariant, Invariant::Rot);
}

#[test]
fn a_lost_write_is_named_after_the_crash_that_lost_it() {
    let mut model = Model::new(1, 4096);
    let old = written(&mut model, 0..4096);
    let new = written(&mut model, 0..4096);
    let mut killed = model.clone();
    killed.process_kill();
    let e = read(&mut killed, 0..4096, &model.bytes(old)).unwrap_err();
    assert_eq!(e.invariant, Invariant::ProcessDeath);

    // Not flushed: a power cut may take it. The first answer is final, across the next cut too.
    let mut cut = model.clone();
    cut.power_cut();
    read(&mut cut, 0..4096, &model.bytes(old)).unwrap();
    let e = read(&mut cut.clone(), 0..4096, &model.bytes(new)).unwrap_err();
    assert_eq!(e.invariant, Invariant::Flipping);
    cut.power_cut();
    let e = read(&mut cut, 0..4096, &model.bytes(new)).unwrap_err();
    assert_eq!(e.invariant, Invariant::Durable);

    let mut flushed = model.clone();
    flush(&mut flushed);
    flushed.power_cut();
    let e = read(&mut flushed, 0..4096, &model.bytes(old)).unwrap_err();
    assert_eq!(e.invariant, Invariant::Durable);
}

#[test]
fn a_cut_may_tear_between_sectors_and_never_within_one() {
    let mut model = Model::new(1, 4096);
    let old = written(&mut model, 0..4096);
    flush(&mut model);
    let new = model.begin_write(0..4096, false);
    let mut torn = model.bytes(old);
    let fresh = model.bytes(new);
    torn[1024..2048].copy_from_slice(&fresh[1024..2048]);
    model.power_cut();
    let mut within = torn.clone();
    within[600..700].copy_from_slice(&fresh[600..700]);
    let e = read(&mut model.clone(), 0..4096, &within).unwrap_err();
    assert_eq!(e.range, 512..1024);
    assert!(e.got.starts_with("torn within a sector: op 1"), "{}", e.got);
    read(&mut model, 0..4096, &torn).unwrap();
    read(&mut model, 0..4096, &torn).unwrap();
    assert!(read(&mut model, 0..4096, &fresh).is_err());
}

#[test]
fn writes_of_any_alignment_are_kept_apart_to_the_byte() {
    let size = 3000;
    for seed in 0..50 {
        let mut prng = Prng::new(seed);
        let mut model = Model::new(seed, size);
        let mut bytes = vec![0; size as usize];
        for _ in 0..60 {
            let (a, b) = (prng.below(size), prng.below(size));
            let range = a.min(b)..a.max(b) + 1;
            let here = range.start as usize..range.end as usize;
            match prng.below(4) {
                0 => {
                    let op = model.begin_zeroes(range, false);
                    model.ack(op);
                    bytes[here].fill(0);
                }
                1 => {
                    let op = written(&mut model, range);
                    bytes[here].copy_from_slice(&model.bytes(op));
                }
                2 => {
                    let mut wrong = bytes[here.clone()].to_vec();
                    read(&mut model, range.clone(), &wrong).unwrap();
                    let at = prng.below(wrong.len() as u64) as usize;
                    wrong[at] ^= 0x55;
                    assert!(read(&mut model.clone(), range, &wrong).is_err());
                }
                _ => {
                    let op = model.begin_trim(range, false);
                    model.ack(op);
                    if prng.chance(1, 2) {
                        bytes[here].fill(0);
                    }
                    read(&mut model, 0..size, &bytes).unwrap();
                }
            }
        }
    }
}

#[test]
fn requests_fail_only_where_something_is_offline() {
    let mut model = Model::new(1, 64 * KIB);
    let read = model.read_begin(0..4096);
    assert_eq!(model.read_failed(read).unwrap_err().invariant, Invariant::Available);
    model.declare_offline(4096..8192);
    let read = model.read_begin(0..4097);
    model.read_failed(read).unwrap();
    let op = model.begin_write(8000..9000, true);
    model.fail(op).unwrap();
    model.declare_online(0..64 * KIB);
    let op = model.begin_write(8000..9000, true);
    assert!(model.fail(op).is_err());
}

#[test]
fn what_is_cut_off_comes_back_as_zeroes() {
    let mut model = Model::new(1, 8192);
    let op = written(&mut model, 0..8192);
    model.resize(4096);
    model.resize(12288);
    let mut bytes = model.bytes(op);
    bytes[4096..].fill(0);
    bytes.resize(12288, 0);
    read(&mut model, 0..12288, &bytes).unwrap();
    bytes[4096..4608].copy_from_slice(&model.bytes(op)[4096..4608]);
    assert!(read(&mut model, 0..12288, &bytes).is_err());
}

#[test]
fn a_device_that_drops_its_cache_loses_only_what_was_not_durable() {
    let mut model = Model::new(1, 4096);
    let old = written(&mut model, 0..4096);
    flush(&mut model);
    let new = written(&mut model, 0..4096);
    let under_way = model.begin_write(0..512, false);
    let early = model.read_begin(0..4096);
    model.lose_unflushed(&[]);
    model.check_read(early, &model.bytes(new)).unwrap();
    let mut got = model.bytes(old);
    read(&mut model, 0..4096, &got).unwrap();
    // What was under way may have been lost, or come later.
    model.ack(under_way);
    read(&mut model.clone(), 0..4096, &got).unwrap();
    got[..512].copy_from_slice(&model.bytes(under_way));
    read(&mut model, 0..4096, &got).unwrap();
    // What comes after the loss stays.
    let later = written(&mut model, 0..512);
    assert!(read(&mut model.clone(), 0..4096, &got).is_err());
    got[..512].copy_from_slice(&model.bytes(later));
    read(&mut model, 0..4096, &got).unwrap();
}

/// It was on its way for so long that something newer came, and was lost.
#[test]
fn what_is_under_way_comes_back_when_what_covered_it_is_lost() {
    let mut model = Model::new(1, 4096);
    written(&mut model, 0..4096);
    let slow = model.begin_write(0..4096, false);
    let its = model.bytes(slow);
    read(&mut model, 0..4096, &its).unwrap();
    flush(&mut model);
    let newer = written(&mut model, 0..4096);
    let newer = model.bytes(newer);
    read(&mut model, 0..4096, &newer).unwrap();
    assert!(read(&mut model.clone(), 0..4096, &its).is_err(), "it was covered");
    model.lose_unflushed(&[]);
    assert!(model.fail(slow).is_err(), "no failure is expected");
    read(&mut model.clone(), 0..4096, &newer).unwrap();
    read(&mut model, 0..4096, &its).unwrap();
    assert!(read(&mut model, 0..4096, &newer).is_err(), "it is lost for good");
}

/// A seed of the harness has some 2,000 operations on a few MiB; the model must not be what takes the time.
#[test]
fn twenty_thousand_operations_stay_cheap() {
    let size = 16 << 20;
    let mut prng = Prng::new(9);
    let mut model = Model::new(9, size);
    let mut truth = vec![0; size as usize];
    for n in 0..20_000 {
        let len = 512 * prng.between(1, 64);
        let start = 512 * prng.below((size - len) / 512);
        let here = start as usize..(start + len) as usize;
        match prng.below(20) {
            0 => flush(&mut model),
            1..10 => {
                let op = written(&mut model, start..start + len);
                model.fill(op, start, &mut truth[here]);
            }
            10 if n % 500 == 10 => model.process_kill(),
            _ => read(&mut model, start..start + len, &truth[here]).unwrap(),
        }
    }
    assert!(model.segments() < 40_000);
}
