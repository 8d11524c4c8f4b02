//! What was not flushed is not below; what was is.

use super::world::World;
use crate::buf::{Buf, Bufs};
use crate::io::{Device, FailKind, Op, Outcome, Verb};
use crate::layers::{Action, Fault, Faults, Forgetful, Memory};
use crate::prng::Prng;

const SIZE: usize = 1 << 20;

fn room(len: usize) -> Bufs {
    Buf::zeroed(len).into()
}

#[test]
fn the_device_below_has_exactly_what_was_flushed() {
    for seed in 0..8 {
        let (world, _, spawn) = World::new();
        let memory: Device = Memory::new(SIZE as u64);
        let forgetful = Forgetful::new(memory.clone(), spawn, 64 << 20);
        let device: Device = forgetful.clone();
        let mut prng = Prng::new(seed);
        let (mut model, mut durable) = (vec![0_u8; SIZE], vec![0_u8; SIZE]);
        for _ in 0..800 {
            let start = prng.below(SIZE as u64 / 512) as usize * 512;
            let len = (prng.between(1, 100) as usize * 512).min(SIZE - start);
            let range = start..start + len;
            let fua = prng.chance(1, 5);
            match prng.below(100) {
                0..45 => {
                    let mut bytes = vec![0; len];
                    prng.fill(&mut bytes);
                    let data = Buf::padded(&bytes, 1).freeze().into();
                    world.block_on(device.write(start as u64, data, fua)).outcome.ok().unwrap();
                    model[range.clone()].copy_from_slice(&bytes);
                    if fua {
                        durable[range].copy_from_slice(&bytes);
                    }
                }
                45..55 => {
                    world.block_on(device.write_zeroes(start as u64, len as u64, fua, true)).outcome.ok().unwrap();
                    model[range.clone()].fill(0);
                    if fua {
                        durable[range].fill(0);
                    }
                }
                55..58 => {
                    world.block_on(device.discard(start as u64, len as u64)).outcome.ok().unwrap();
                    // Not held back, and the memory device zeroes.
                    model[range.clone()].fill(0);
                    durable[range].fill(0);
                }
                58..93 => {
                    let read = world.block_on(device.read(start as u64, room(len)));
                    assert!(read.bufs.to_vec(0..len) == model[range], "a read sees every write");
                }
                _ => {
                    world.block_on(device.flush()).outcome.ok().unwrap();
                    durable.clone_from(&model);
                    assert_eq!(forgetful.unflushed_bytes(), 0);
                }
            }
            let below = world.block_on(memory.read(0, room(SIZE))).bufs.to_vec(0..SIZE);
            assert!(below == durable, "a kill now would lose exactly what was not flushed");
        }
    }
}

#[test]
fn a_failed_flush_forgets_nothing_and_a_full_memory_goes_below() {
    let (world, _, spawn) = World::new();
    let memory: Device = Memory::new(SIZE as u64);
    let faults = Faults::new(memory.clone(), spawn.clone());
    let forgetful = Forgetful::new(faults.clone(), spawn, 16 * 4096);
    let device: Device = forgetful.clone();
    let write = |at: u64, value: u8| device.write(at, Buf::padded(&[value; 512], 1).freeze().into(), false);
    world.block_on(write(0, 1));
    faults.add(Fault::next(Verb::Write, Action::Fail(FailKind::Media)));
    assert_eq!(world.block_on(device.flush()).outcome, Outcome::Failed(FailKind::Media));
    assert_eq!(world.block_on(device.read(0, room(512))).bufs.to_vec(0..1), [1]);
    assert_eq!(world.block_on(device.flush()).outcome, Outcome::Done);
    assert_eq!(world.block_on(memory.read(0, room(512))).bufs.to_vec(0..1), [1]);
    for page in 0..100 {
        world.block_on(write(page * 4096, 2)).outcome.ok().unwrap();
        assert!(forgetful.unflushed_bytes() <= 16 * 4096, "the bound holds");
    }
    // Reads see all of it, wherever it is.
    for page in 0..100 {
        assert_eq!(world.block_on(device.read(page * 4096, room(512))).bufs.to_vec(0..1), [2]);
    }
    let status = world.block_on(device.submit(Op::Status { offset: 0, len: SIZE as u64 }));
    assert_eq!(status.extents.iter().map(|e| e.len).sum::<u64>(), SIZE as u64);
}

/// Writes, FUA writes and flushes at once: reads see the newest, and after the last flush so does the device below.
#[test]
fn many_at_once_settle_on_the_newest() {
    for seed in 0..50 {
        let (world, _, spawn) = World::new();
        let memory: Device = Memory::new(SIZE as u64);
        let device: Device = Forgetful::new(memory.clone(), spawn, 8 * 4096);
        let mut prng = Prng::new(seed);
        let mut model = vec![0_u8; SIZE];
        let mut pending = Vec::new();
        for round in 0..60_u8 {
            let start = prng.below(16) as usize * 512;
            let len = prng.between(1, 16) as usize * 512;
            let data = Buf::padded(&vec![round + 1; len], 1).freeze().into();
            model[start..start + len].fill(round + 1);
            pending.push(device.write(start as u64, data, prng.chance(1, 3)));
            if prng.chance(1, 4) {
                pending.push(device.flush());
            }
            let read = world.block_on(device.read(0, room(16 << 10)));
            assert!(read.bufs.to_vec(0..16 << 10) == model[..16 << 10], "seed {seed}");
        }
        for completion in pending {
            world.block_on(completion).outcome.ok().unwrap();
        }
        world.block_on(device.flush()).outcome.ok().unwrap();
        let below = world.block_on(memory.read(0, room(SIZE))).bufs.to_vec(0..SIZE);
        assert!(below == model, "seed {seed}");
    }
}
