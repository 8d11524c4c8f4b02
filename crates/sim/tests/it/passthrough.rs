//! The whole virtual world at once, with nothing in between: clients on a simulated device, judged by the model.
//!
//! Goal: device and model agree on what a crash may do, and a device that breaks a promise is caught under the right
//! name. Method: a few clients over several lives of a process, killed and cut off at random; the same again with
//! layers that each break one promise. The harness over the cell has this shape too.
#![expect(clippy::unwrap_used, reason = "tests")]

use device::buf::Buf;
use device::{Bufs, Clock, Completion, Device, Geometry, Io, Op, Outcome, Prng, Spawn};
use sim::disk::{DiskConfig, SimDevice};
use sim::executor::{Executor, Stuck};
use sim::model::Model;
use sim::situations::Situations;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 64 * 512;

/// A promise to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// FLUSH is acknowledged at once.
    Flush,
    /// FUA is forgotten.
    Fua,
    /// Every thirtieth write is acknowledged and dropped.
    Write,
    /// Every thirtieth write goes one sector on.
    Place,
    /// Every thirtieth write has a bit turned round.
    Bits,
}

struct Layer {
    below: Device,
    broken: Broken,
    writes: Mutex<u64>,
}

impl Io for Layer {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        let done = || Completion::ready(device::Completed::bare(Outcome::Done));
        match (op, self.broken) {
            (Op::Flush, Broken::Flush) => done(),
            (Op::Write { offset, data, .. }, Broken::Fua) => self.below.write(offset, data, false),
            (Op::Write { offset, data, fua }, broken) => {
                let mut writes = self.writes.lock().unwrap();
                *writes += 1;
                if !writes.is_multiple_of(30) {
                    return self.below.write(offset, data, fua);
                }
                match broken {
                    Broken::Write => done(),
                    Broken::Place => self.below.write((offset + 512) % SIZE / 512 * 512, data.slice(0..512), fua),
                    Broken::Bits => {
                        let mut bytes = data.to_vec(0..data.len_bytes());
                        bytes[77] ^= 0x10;
                        self.below.write(offset, Bufs::from(Buf::padded(&bytes, 512)).freeze(), fua)
                    }
                    _ => self.below.write(offset, data, fua),
                }
            }
            (op, _) => self.below.submit(op),
        }
    }
}

async fn client(model: Arc<Mutex<Model>>, device: Device, mut prng: Prng) {
    loop {
        let sectors = prng.between(1, 8);
        let start = 512 * prng.below(SIZE / 512 - sectors + 1);
        let range = start..start + 512 * sectors;
        match prng.below(10) {
            0 => {
                let flush = model.lock().unwrap().flush_begin();
                let outcome = device.flush().await.outcome;
                assert_eq!(outcome, Outcome::Done);
                model.lock().unwrap().flush_ack(flush);
            }
            1 => {
                let fua = prng.chance(1, 3);
                let op = model.lock().unwrap().begin_zeroes(range, fua);
                let outcome = device.write_zeroes(start, 512 * sectors, fua, false).await.outcome;
                assert_eq!(outcome, Outcome::Done);
                model.lock().unwrap().ack(op);
            }
            2..6 => {
                let fua = prng.chance(1, 3);
                let (op, bytes) = {
                    let mut model = model.lock().unwrap();
                    let op = model.begin_write(range, fua);
                    (op, model.bytes(op))
                };
                let data = Bufs::from(Buf::padded(&bytes, 512)).freeze();
                let outcome = device.write(start, data, fua).await.outcome;
                assert_eq!(outcome, Outcome::Done);
                model.lock().unwrap().ack(op);
            }
            _ => {
                let read = model.lock().unwrap().read_begin(range);
                let done = device.read(start, Buf::zeroed(512 * sectors as usize).into()).await;
                let got = done.bufs.to_vec(0..done.bufs.len_bytes());
                let judged = model.lock().unwrap().check_read(read, &got);
                judged.unwrap_or_else(|violation| panic!("{violation}"));
            }
        }
    }
}

fn seed_run(seed: u64, broken: Broken) -> (Result<(), Stuck>, u64) {
    let executor = Executor::seeded(seed);
    let mut prng = executor.prng("plan");
    let mut config = DiskConfig::random("disk", SIZE, false, &mut prng);
    config.geometry.logical_bytes = 512;
    let disk = SimDevice::new(config, &executor.handle(), &Situations::new());
    let model = Arc::new(Mutex::new(Model::new(seed, SIZE)));
    let root = executor.root();
    let result = executor.run(async {
        let clock: &(dyn Clock + 'static) = &root;
        for life in 0..6 {
            let process = executor.process("server");
            let layer = Layer { below: disk.connect(&process), broken, writes: Mutex::new(0) };
            let device: Device = Arc::new(layer);
            for n in 0..prng.between(1, 5) {
                let prng = prng.fork(&format!("{life} {n}"));
                process.spawn_on(n as usize, Box::pin(client(model.clone(), device.clone(), prng)));
            }
            clock.sleep(Duration::from_nanos(prng.between(100_000, 20_000_000))).await;
            process.kill();
            if prng.chance(1, 2) {
                disk.power_cut();
                model.lock().unwrap().power_cut();
            } else {
                disk.settle();
                model.lock().unwrap().process_kill();
            }
        }
    });
    (result, executor.trace().hash())
}

#[test]
fn a_sound_device_is_never_accused() {
    for seed in 0..200 {
        let (result, hash) = seed_run(seed, Broken::Nothing);
        result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if seed % 10 == 0 {
            assert_eq!(hash, seed_run(seed, Broken::Nothing).1, "seed {seed} twice");
        }
    }
}

/// The invariants a broken device is accused of over 100 seeds, and how often.
fn accusations(broken: Broken) -> (BTreeSet<String>, u64) {
    let mut names = BTreeSet::new();
    let mut caught = 0;
    for seed in 0..100 {
        match seed_run(seed, broken).0 {
            Ok(()) => {}
            Err(Stuck::Panicked { message, .. }) => {
                caught += 1;
                names.insert(message.split(": bytes").next().unwrap().to_owned());
            }
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    (names, caught)
}

fn has(names: &BTreeSet<String>, name: &str) -> bool {
    names.iter().any(|n| n == name)
}

#[test]
fn a_device_that_breaks_a_promise_is_caught_by_name() {
    let (names, caught) = accusations(Broken::Flush);
    assert!(caught > 30 && has(&names, "I1 broken, durable data lost by a power cut"), "{caught} {names:?}");
    let (names, caught) = accusations(Broken::Fua);
    assert!(caught > 20 && has(&names, "I1 broken, durable data lost by a power cut"), "{caught} {names:?}");
    let (names, caught) = accusations(Broken::Write);
    assert!(caught > 60 && has(&names, "I2 broken, stale data"), "{caught} {names:?}");
    assert!(has(&names, "I9 broken, an acknowledged write lost by the death of a process"), "{names:?}");
    let (names, caught) = accusations(Broken::Place);
    assert!(caught > 60 && has(&names, "I2 broken, foreign data"), "{caught} {names:?}");
    let (names, caught) = accusations(Broken::Bits);
    assert!(caught > 60 && has(&names, "I4 broken, bytes that nobody wrote"), "{caught} {names:?}");
}
