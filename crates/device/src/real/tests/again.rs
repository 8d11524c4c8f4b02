//! Goal: a transfer that the kernel is short of something for is tried again, within a limit, and what makes others' writes durable is
//! not. Method: results of the kernel that count as ENOMEM, on files in memory and on disk, with both back-ends.

use super::{Directory, runtime, runtimes};
use crate::buf::{Buf, SharedBufs};
use crate::io::{Device, FailKind, Outcome};
use crate::real::again::TRIES_MAX;
use crate::real::files::DeviceFile;
use crate::real::{Backend, Direct, OpenOptions, Runtime, Space, create_file};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
const SHORT: Outcome = Outcome::Failed(FailKind::Errno(libc::ENOMEM));

/// A file of 1 MiB as a device, through the page cache.
fn device(runtime: &Runtime, directory: &Directory) -> (Arc<DeviceFile>, Device) {
    let path = directory.file("a");
    let _ = std::fs::remove_file(&path);
    create_file(&path, 1 << 20, Space::Sparse).unwrap();
    let options = OpenOptions { direct: Direct::Never, ..OpenOptions::default() };
    runtime.adopt_for_test(crate::real::open::open(&path, &options).unwrap())
}

fn block(byte: u8) -> SharedBufs {
    Buf::padded(&[byte; BLOCK], 1).freeze().into()
}

/// The four ways a transfer may go.
fn everywhere(check: impl Fn(&Runtime, &Directory)) {
    for memory in [true, false] {
        for runtime in runtimes(1) {
            check(&runtime, &Directory::new(memory));
        }
    }
}

#[test]
fn a_read_that_is_short_of_memory_is_answered_in_the_end() {
    everywhere(|runtime, directory| {
        let (file, device) = device(runtime, directory);
        std::fs::File::options().write(true).open(directory.file("a")).unwrap().write_at(&[3; BLOCK], 0).unwrap();
        file.shortages.store(3, Ordering::Release);
        let read = runtime.block_on(async move { device.read(0, Buf::zeroed(BLOCK).into()).await });
        assert_eq!((read.outcome, read.bufs.to_vec(0..BLOCK)), (Outcome::Done, vec![3; BLOCK]));
        // A file in memory is tried once at once, which is not counted.
        assert!((2..=3).contains(&file.tried_again()), "{}", file.tried_again());
        assert_eq!(runtime.tried_again(), [(file.name.clone(), file.tried_again())]);
        assert!(runtime.in_flight().is_empty());
    });
}

#[test]
fn a_write_that_is_short_of_memory_is_made_again() {
    everywhere(|runtime, directory| {
        let (file, device) = device(runtime, directory);
        let under = std::fs::File::options().read(true).write(true).open(directory.file("a")).unwrap();
        file.shortages.store(4, Ordering::Release);
        let write = device.write(0, block(5), false);
        // After the second try and before the last: what the tries before have written is not enough.
        let start = Instant::now();
        while file.tried_again() < 2 {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
        under.write_at(&[0xee; BLOCK], 0).unwrap();
        assert_eq!(runtime.block_on(write).outcome, Outcome::Done);
        let mut bytes = [0; BLOCK];
        under.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [5; BLOCK]);
    });
}

#[test]
fn a_shortage_that_stays_is_told_within_a_second() {
    everywhere(|runtime, directory| {
        let (file, device) = device(runtime, directory);
        file.shortages.store(u64::MAX, Ordering::Release);
        let start = Instant::now();
        let read = runtime.block_on(async move { device.read(0, Buf::zeroed(BLOCK).into()).await });
        assert_eq!((read.outcome, read.bufs.len_bytes()), (SHORT, BLOCK), "the buffers come back");
        assert_eq!(file.tried_again(), u64::from(TRIES_MAX) - 1);
        assert!(start.elapsed() >= Duration::from_millis(310));
    });
}

#[test]
fn others_on_the_thread_go_on_between_two_tries() {
    let runtime = runtime(1, Backend::Uring);
    let directory = Directory::new(false);
    let (file, device) = device(&runtime, &directory);
    file.shortages.store(u64::from(TRIES_MAX) - 1, Ordering::Release);
    let clock = runtime.world(1).clock;
    let (read, tries) = runtime.block_on(async move {
        let read = device.read(0, Buf::zeroed(BLOCK).into());
        clock.sleep(Duration::from_millis(1)).await;
        let tries = file.tried_again();
        (read.await, tries)
    });
    assert_eq!(read.outcome, Outcome::Done);
    assert!(tries < u64::from(TRIES_MAX) - 1);
}

#[test]
fn a_durable_write_is_not_tried_again() {
    everywhere(|runtime, directory| {
        let (file, device) = device(runtime, directory);
        file.shortages.store(1, Ordering::Release);
        let write = runtime.block_on(async move { device.write(0, block(5), true).await });
        assert_eq!((write.outcome, file.tried_again()), (SHORT, 0));
    });
}

/// A ring that is stopped waits for what is between two tries, as for any other transfer.
#[test]
fn a_shutdown_waits_for_the_last_try() {
    let runtime = runtime(1, Backend::Uring);
    let directory = Directory::new(false);
    let (file, device) = device(&runtime, &directory);
    file.shortages.store(u64::MAX, Ordering::Release);
    runtime.world(1).spawn.spawn(Box::pin(async move {
        let _ = device.read(0, Buf::zeroed(BLOCK).into()).await;
    }));
    let start = Instant::now();
    while file.tried_again() == 0 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
    runtime.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!((file.requests(), file.tried_again()), (0, u64::from(TRIES_MAX) - 1));
}
