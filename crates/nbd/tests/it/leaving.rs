//! The ends of a session and of its requests: goal: the empty export name opens what it should, a client that leaves is let go, and requests of
//! nothing are answered. Method: bytes by hand.

use crate::raw::*;
use crate::world::*;
use device::*;
use nbd::codec::*;
use nbd::{FrontEnd, FrontEndLimits};

#[test]
fn the_default_export_is_the_one_that_is_named() {
    let w = world(11);
    let disks: Vec<_> = [SIZE, SIZE / 2].map(|size| MemoryDisk::new(size, w.clock.clone())).into();
    let disks = disks.iter().zip(["one", "two"]).map(|(disk, name)| grid_disk(name, disk)).collect();
    let cell = make_cell(&w, disks, STAMP);
    let fronts = ["two", "three"].map(|default| {
        let front = FrontEnd::new(cell.clone(), w.world.clone(), Arena::new(4 << 20), FrontEndLimits::default());
        front.set_default_export(default.to_owned());
        front
    });
    let net = w.net.clone();
    w.executor.block_on(async move {
        for front in &fronts {
            front.serve(net.listen(&unix("nbd")).await.unwrap());
            let mut raw = Raw::connect(net.clone()).await;
            match (&raw.go("", false, &[]).await[0], front.stats().connections_open) {
                (OptionReply::Info(Info::Export { size_bytes, .. }), _) => assert_eq!(*size_bytes, SIZE as u64 / 2),
                (OptionReply::Error { kind, message }, _) => {
                    assert_eq!(*kind, RepError::Unknown);
                    assert_eq!(
                        message,
                        "the default export is grid disk three, which does not exist; hint: nbd.default in cell.toml"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_disconnect_is_one_whatever_its_flags() {
    let b = bench_with(12, &["data"], 4 << 20, FrontEndLimits::default());
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        for structured in [false, true] {
            let mut raw = Raw::connect(net.clone()).await;
            raw.go("data", structured, &[]).await;
            raw.request(Command::Disconnect, CommandFlags::from_bits(0xffff), 1, 7, 7).await;
            assert!(raw.ended().await, "no reply");
        }
    });
    assert_eq!(b.front.stats().disconnects, 2);
}

/// A client should send none, and the stream goes on whatever it gets.
#[test]
fn requests_of_nothing_are_answered_and_the_stream_goes_on() {
    let b = bench_with(13, &["data"], 4 << 20, FrontEndLimits::default());
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net.clone()).await;
        raw.go("data", false, &[]).await;
        for (cookie, command) in
            [Command::Read, Command::Write, Command::WriteZeroes, Command::Flush].into_iter().enumerate()
        {
            raw.request(command, CommandFlags::NONE, cookie as u64, 0, 0).await;
            assert_eq!(raw.simple().await.1, cookie as u64, "{command:?}");
        }
    });
}
