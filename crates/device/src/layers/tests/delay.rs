//! The models take as long as they say.

use super::world::{World, all};
use crate::buf::{Buf, Bufs};
use crate::clock::Clock;
use crate::io::{Device, Outcome};
use crate::layers::{Delay, Memory, Model};
use crate::prng::Prng;
use std::sync::Arc;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const GIB: u64 = 1 << 30;

fn device(model: &str, size_bytes: u64) -> (Arc<World>, Arc<dyn Clock>, Device) {
    let (world, clock, spawn) = World::new();
    let memory = Memory::new(size_bytes);
    let model: Model = model.parse().unwrap();
    let delay = Delay::new(memory, model, clock.clone(), spawn, Prng::new(1));
    (world, clock, delay)
}

fn room(len: usize) -> Bufs {
    Buf::zeroed(len).into()
}

/// Mean service time in nanoseconds of `count` random 4 KiB reads, `depth` at a time.
fn random_reads_ns(model: &str, depth: u64, count: u64) -> u64 {
    let (world, clock, device) = device(model, 4 * GIB);
    let started = clock.now();
    let readers = (0..depth).map(|reader| {
        let device = device.clone();
        async move {
            let mut prng = Prng::new(reader);
            for _ in 0..count / depth {
                let offset = prng.below(GIB) * 4;
                let read = device.read(offset - offset % 4096, room(4096)).await;
                assert_eq!(read.outcome, Outcome::Done);
            }
        }
    });
    world.block_on(all(readers.collect::<Vec<_>>()));
    clock.now().ns_since(started) / (count / depth * depth)
}

fn assert_near(value: u64, expected: u64, percent: u64, what: &str) {
    let slack = expected * percent / 100;
    assert!(value.abs_diff(expected) <= slack, "{what}: {value} ns, expected {expected} within {percent} %");
}

#[test]
fn random_reads_at_depth_one_take_the_documented_means() {
    // Mean seek + half a turn + electronics + transfer, as `model.rs` says.
    assert_near(random_reads_ns("sata-7200", 1, 2000), 12_800 * US, 4, "sata-7200");
    assert_near(random_reads_ns("sas-15k", 1, 2000), 5_600 * US, 4, "sas-15k");
    assert_near(random_reads_ns("network-volume", 1, 500), 1_016 * US, 3, "network-volume");
    assert_near(random_reads_ns("sata-ssd", 1, 500), 88 * US, 3, "sata-ssd");
    assert_near(random_reads_ns("pcie-flash", 1, 500), 27_700, 4, "pcie-flash");
    assert_near(random_reads_ns("fixed:4ms", 1, 100), 4 * MS, 0, "fixed");
}

#[test]
fn a_disk_gains_by_choosing_among_its_queue() {
    let alone = random_reads_ns("sata-7200", 1, 1000);
    let queued = random_reads_ns("sata-7200", 32, 3200);
    assert!(queued * 2 < alone, "32 in the queue: {queued} ns each, alone {alone} ns");
    assert!(queued * 5 > alone, "no disk is five times faster for a queue: {queued} ns");
    // Beyond its queue there is nothing to gain.
    let deeper = random_reads_ns("sata-7200", 256, 3072);
    assert!(deeper * 10 > queued * 8, "256 deep {deeper} ns, 32 deep {queued} ns");
}

#[test]
fn parallel_media_serve_many_at_once() {
    assert_near(random_reads_ns("fixed:4ms:64", 64, 6400), 4 * MS / 64, 0, "fixed, full");
    assert_near(random_reads_ns("fixed:4ms:64", 128, 12800), 4 * MS / 64, 0, "fixed, more than full");
    assert_near(random_reads_ns("fixed:4ms", 16, 160), 4 * MS, 0, "fixed, one at a time");
    // 64 at a time in about a millisecond, but no more than 250 MB/s: 16.4 us a page, and somewhat more since answers
    // take the bus in the order of their requests.
    let volume = random_reads_ns("network-volume", 64, 64_000);
    assert!((16_384..20_000).contains(&volume), "network-volume, full: {volume} ns");
}

#[test]
fn a_disk_streams_at_its_media_rate() {
    let (world, clock, device) = device("sata-7200", GIB);
    let started = clock.now();
    world.block_on(async move {
        for step in 0..256 {
            device.read(step << 20, room(1 << 20)).await;
        }
    });
    let elapsed_ns = clock.now().ns_since(started);
    // 256 MiB at 120 MB/s, and the electronics of 256 requests.
    assert_near(elapsed_ns, 256 * (1 << 20) * 1000 / 120 + 256 * 100 * US, 1, "sequential");
}

/// A log that is flushed after each write: its next sector has gone by, whether the disk has a cache or none. Without flushes the cache streams.
#[test]
fn each_durable_write_of_a_log_takes_a_turn() {
    for (name, turn_ns) in [("sata-7200", 8_333_333), ("sas-15k", 4 * MS)] {
        let (world, clock, device) = device(name, GIB);
        let (started, paused) = (clock.now(), clock.clone());
        let log = device.clone();
        world.block_on(async move {
            for step in 0..100 {
                log.write(step * 8192, Buf::zeroed(8192).freeze().into(), false).await;
                log.flush().await;
                paused.sleep(std::time::Duration::from_nanos(200 * US)).await;
            }
        });
        let each_ns = clock.now().ns_since(started) / 100;
        assert_near(each_ns, turn_ns, 5, name);
    }
    let (world, clock, device) = device("sata-7200", GIB);
    let started = clock.now();
    world.block_on(async move {
        for step in 0..64 {
            device.write(step << 20, Buf::zeroed(1 << 20).freeze().into(), false).await;
        }
        device.flush().await;
    });
    let elapsed_ns = clock.now().ns_since(started);
    assert!(elapsed_ns < 2 * 64 * (1 << 20) * 1000 / 120, "64 MiB in {elapsed_ns} ns");
}

#[test]
fn a_volatile_cache_answers_at_once_and_the_flush_pays() {
    let (world, clock, device) = device("sata-7200", 4 * GIB);
    assert!(device.geometry().volatile_cache);
    let started = clock.now();
    let writer = device.clone();
    world.block_on(async move {
        let mut prng = Prng::new(3);
        for _ in 0..100 {
            let offset = prng.below(GIB / 1024) * 4096;
            writer.write(offset, Buf::zeroed(4096).freeze().into(), false).await;
        }
    });
    let written_ns = clock.now().ns_since(started);
    assert!(written_ns < 100 * 200 * US, "a hundred cached writes took {written_ns} ns");
    let flusher = device.clone();
    world.block_on(async move {
        flusher.flush().await.outcome.ok().unwrap();
    });
    let flushed_ns = clock.now().ns_since(started) - written_ns;
    assert!((150 * MS..900 * MS).contains(&flushed_ns), "the flush of a hundred writes took {flushed_ns} ns");
    // A second flush has nothing to do; a FUA write pays by itself.
    let before = clock.now();
    let flusher = device.clone();
    world.block_on(async move { flusher.flush().await });
    assert_eq!(clock.now(), before);
    world.block_on(async move { device.write(0, Buf::zeroed(4096).freeze().into(), true).await });
    assert!(clock.now().ns_since(before) > MS);
}

#[test]
fn a_full_cache_writes_at_the_platters_pace() {
    let (world, clock, device) = device("sata-7200", 4 * GIB);
    let started = clock.now();
    let writers: Vec<_> = (0..32_u64)
        .map(|writer| {
            let device = device.clone();
            async move {
                let mut prng = Prng::new(writer);
                for _ in 0..400 {
                    let offset = prng.below(4 * GIB / 4096) * 4096;
                    device.write(offset, Buf::zeroed(4096).freeze().into(), false).await;
                }
            }
        })
        .collect();
    world.block_on(all(writers));
    let each_ns = clock.now().ns_since(started) / (32 * 400);
    assert!((1500 * US..9 * MS).contains(&each_ns), "sustained random writes: {each_ns} ns each");
}

#[test]
fn what_is_abandoned_is_served_all_the_same() {
    let (world, _, device) = device("sas-15k", GIB);
    for step in 0..50_u64 {
        drop(device.write(step * 4096, Buf::padded(&[step as u8 + 1; 4096], 1).freeze().into(), false));
    }
    let read = world.block_on(async move {
        device.flush().await;
        // The queue is chosen from out of order, so wait for one more of each place.
        let mut bytes = Vec::new();
        for step in 0..50 {
            bytes.push(device.read(step * 4096, room(4096)).await.bufs.to_vec(0..1)[0]);
        }
        bytes
    });
    assert_eq!(read, (1..=50).collect::<Vec<u8>>());
}

#[test]
fn names_parse_and_print() {
    for name in Model::NAMES {
        assert_eq!(name.parse::<Model>().unwrap().to_string(), name);
    }
    assert_eq!("fixed:4ms:64".parse::<Model>().unwrap(), Model::fixed(4 * MS, 64));
    assert_eq!("fixed:250us".parse::<Model>().unwrap(), Model::fixed(250 * US, 1));
    for wrong in ["", "sata", "fixed:", "fixed:4", "fixed:4ms:0", "fixed:4ms:64:1", "fixed:99999999h", "fixed:4ms:9999"]
    {
        let error = wrong.parse::<Model>().unwrap_err().to_string();
        assert!(error.contains("hint:"), "{wrong}: {error}");
    }
}
