//! Files as devices: round trips, refusals, short transfers, holes, locks, a stalled device beside a live one.

use super::{Directory, runtime, runtimes, with_arena};
use crate::buf::{Arena, Buf, Bufs, SharedBufs};
use crate::io::{Device, FailKind, Op, Outcome};
use crate::prng::Prng;
use crate::real::backend::Engine;
use crate::real::sys::lock_file;
use crate::real::{Backend, Direct, LoopDevice, OpenError, OpenOptions, Space, create_file, free_bytes};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Prng::new(seed).fill(&mut bytes);
    bytes
}

/// `bytes` in pieces of `piece` bytes each, aligned.
fn rope(bytes: &[u8], piece: usize) -> SharedBufs {
    let mut rope = SharedBufs::new();
    for part in bytes.chunks(piece) {
        rope.push(Buf::padded(part, 1).freeze());
    }
    rope
}

fn room(len: usize, piece: usize) -> Bufs {
    let mut rope = Bufs::new();
    for start in (0..len).step_by(piece) {
        rope.push(Buf::zeroed(piece.min(len - start)));
    }
    rope
}

async fn round_trip(device: Device) {
    let bytes = pattern(7, 64 << 10);
    for (offset, piece) in [(0, 64 << 10), (128 << 10, 4096), (512 << 10, 12 << 10)] {
        for fua in [false, true] {
            let written = device.write(offset, rope(&bytes, piece), fua).await;
            assert_eq!(written.outcome, Outcome::Done);
            assert!(written.bufs.is_empty());
            for room_piece in [64 << 10, 4096] {
                let read = device.read(offset, room(bytes.len(), room_piece)).await;
                assert_eq!(read.outcome, Outcome::Done);
                assert_eq!(read.bufs.to_vec(0..bytes.len()), bytes);
            }
        }
    }
    assert_eq!(device.flush().await.outcome, Outcome::Done);
    assert_eq!(device.write_zeroes(4096, 8192, true, true).await.outcome, Outcome::Done);
    let read = device.read(0, room(16 << 10, 4096)).await;
    assert_eq!(read.outcome, Outcome::Done);
    let mut expected = bytes[..16 << 10].to_vec();
    expected[4096..12288].fill(0);
    assert_eq!(read.bufs.to_vec(0..16 << 10), expected);
}

#[test]
fn round_trips_through_both_back_ends_on_disk_and_memory() {
    for memory in [true, false] {
        let directory = Directory::new(memory);
        for runtime in runtimes(2) {
            for direct in [Direct::Auto, Direct::Never] {
                let path = directory.file("a");
                create_file(&path, 4 * MIB, Space::Sparse).unwrap();
                let options = OpenOptions { direct, ..OpenOptions::default() };
                let device = runtime.open(&path, &options).unwrap();
                runtime.block_on(round_trip(device));
                std::fs::remove_file(&path).unwrap();
            }
        }
    }
}

/// Carried out at once, its transfers would hold up the thread of everybody's as long as the device takes.
#[test]
fn a_device_is_not_in_memory_for_its_node_is() {
    use std::os::fd::AsRawFd;
    let node = std::fs::File::open("/dev/zero").unwrap();
    assert!(!crate::real::sys::is_in_memory(node.as_raw_fd()));
    let directory = Directory::new(true);
    let file = directory.file("a");
    create_file(&file, MIB, Space::Sparse).unwrap();
    assert!(crate::real::sys::is_in_memory(std::fs::File::open(&file).unwrap().as_raw_fd()));
}

#[test]
fn registered_memory_carries_the_same_bytes() {
    let arena = Arena::new(4 << 20);
    let directory = Directory::new(false);
    let path = directory.file("a");
    create_file(&path, MIB, Space::Reserved).unwrap();
    let runtime = with_arena(2, Backend::Uring, &arena);
    assert!(runtime.facts().iter().any(|f| f.contains("registered")), "{:?}", runtime.facts());
    let device = runtime.open(&path, &OpenOptions::default()).unwrap();
    runtime.block_on(async move {
        let bytes = pattern(3, 256 << 10);
        let mut out = arena.alloc(bytes.len()).await;
        out.copy_in(0, &bytes);
        assert_eq!(device.write(65536, out.freeze(), true).await.outcome, Outcome::Done);
        let read = device.read(65536, arena.alloc(bytes.len()).await).await;
        assert_eq!(read.outcome, Outcome::Done);
        assert!(read.bufs.to_vec(0..bytes.len()) == bytes);
    });
}

#[test]
fn a_file_cut_short_reads_short() {
    let directory = Directory::new(true);
    for runtime in runtimes(1) {
        let path = directory.file("a");
        create_file(&path, MIB, Space::Sparse).unwrap();
        let device = runtime.open(&path, &OpenOptions::default()).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096 + 512).unwrap();
        runtime.block_on(async move {
            assert_eq!(device.read(0, room(8192, 8192)).await.outcome, Outcome::Short(4608));
            let read = device.read(8192, room(4096, 4096)).await;
            assert_eq!(read.outcome, Outcome::Short(0));
            assert_eq!(read.bufs.len_bytes(), 4096, "the buffers come back");
        });
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused_and_the_buffers_come_back() {
    let directory = Directory::new(true);
    let path = directory.file("a");
    create_file(&path, MIB, Space::Sparse).unwrap();
    for runtime in runtimes(1) {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let device = runtime.open(&path, &options).unwrap();
        runtime.block_on(async move {
            for (offset, len) in [(1, 512), (0, 513), (MIB, 512), (MIB - 512, 1024), (u64::MAX - 511, 512)] {
                let read = device.read(offset, room(len, len)).await;
                assert_eq!(read.outcome, Outcome::Failed(FailKind::Invalid), "{offset}+{len}");
                assert_eq!(read.bufs.len_bytes(), len);
            }
            let written = device.write(0, rope(&[1; 512], 512), false).await;
            assert_eq!(written.outcome, Outcome::Failed(FailKind::Unsupported), "opened read-only");
            assert_eq!(device.read(MIB, Bufs::new()).await.outcome, Outcome::Done, "nothing at the end");
        });
    }
}

#[test]
fn status_tells_data_from_holes() {
    let directory = Directory::new(true);
    for runtime in runtimes(1) {
        let path = directory.file("a");
        create_file(&path, MIB, Space::Sparse).unwrap();
        let device = runtime.open(&path, &OpenOptions { sparse: true, ..OpenOptions::default() }).unwrap();
        runtime.block_on(async move {
            device.write(64 << 10, rope(&pattern(1, 8192), 8192), false).await;
            let done = device.submit(Op::Status { offset: 0, len: MIB }).await;
            assert_eq!(done.outcome, Outcome::Done);
            let extents: Vec<_> = done.extents.iter().map(|e| (e.len, e.hole)).collect();
            assert_eq!(extents, [(64 << 10, true), (8192, false), (MIB - (72 << 10), true)]);
            device.discard(64 << 10, 8192).await.outcome.ok().unwrap();
            let done = device.submit(Op::Status { offset: 4096, len: 128 << 10 }).await;
            let extents: Vec<_> = done.extents.iter().map(|e| (e.len, e.hole)).collect();
            assert_eq!(extents, [(128 << 10, true)]);
        });
        std::fs::remove_file(&path).unwrap();
    }
}

/// Bytes that the file system has allocated to a file.
fn allocated_bytes(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn an_image_keeps_what_is_allocated_to_it_and_a_sparse_one_gives_it_back() {
    // On the disk (the range is zeroed in one go) and in memory (in two).
    for memory in [false, true] {
        let directory = Directory::new(memory);
        for (runtime, name) in runtimes(1).into_iter().zip(["a", "b"]) {
            let path = directory.file(name);
            for sparse in [false, true] {
                let space = if sparse { Space::Sparse } else { Space::Reserved };
                create_file(&path, 4 * MIB, space).unwrap();
                assert_eq!(allocated_bytes(&path), if sparse { 0 } else { 4 * MIB });
                let options = OpenOptions { sparse, ..OpenOptions::default() };
                let device = runtime.open(&path, &options).unwrap();
                assert_eq!(device.geometry().discard_bytes == 0, !sparse);
                runtime.block_on(async move {
                    let written = device.write(0, rope(&pattern(1, 2 << 20), 64 << 10), true).await;
                    assert_eq!(written.outcome, Outcome::Done);
                    assert_eq!(device.write_zeroes(0, MIB, true, true).await.outcome, Outcome::Done);
                    assert_eq!(device.discard(MIB, MIB).await.outcome, Outcome::Done);
                    let read = device.read(0, room(1 << 20, 64 << 10)).await;
                    assert!(read.bufs.to_vec(0..1 << 20).iter().all(|&b| b == 0));
                });
                assert_eq!(allocated_bytes(&path), if sparse { 0 } else { 4 * MIB }, "memory {memory}");
                std::fs::remove_file(&path).unwrap();
            }
        }
    }
}

#[test]
fn a_zeroed_range_of_an_image_is_told_as_zeroes_though_its_space_stays() {
    // Not in memory: tmpfs calls data whatever has space.
    let directory = Directory::new(false);
    for (runtime, name) in runtimes(1).into_iter().zip(["a", "b"]) {
        let path = directory.file(name);
        create_file(&path, MIB, Space::Written { progress: &mut |_| () }).unwrap();
        let device = runtime.open(&path, &OpenOptions::default()).unwrap();
        runtime.block_on(async move {
            let extents = |done: crate::io::Completed| done.extents.iter().map(|e| (e.len, e.hole)).collect::<Vec<_>>();
            let all = || device.submit(Op::Status { offset: 0, len: MIB });
            assert_eq!(extents(all().await), [(MIB, false)], "written once");
            assert_eq!(device.write_zeroes(64 << 10, 128 << 10, true, true).await.outcome, Outcome::Done);
            assert_eq!(extents(all().await), [(64 << 10, false), (128 << 10, true), (MIB - (192 << 10), false)]);
        });
        assert_eq!(allocated_bytes(&path), MIB);
    }
}

#[test]
fn a_file_is_written_once_with_progress() {
    let directory = Directory::new(false);
    let path = directory.file("a");
    let mut heard = Vec::new();
    create_file(&path, 9 * MIB, Space::Written { progress: &mut |done| heard.push(done) }).unwrap();
    assert_eq!(heard, [4 * MIB, 8 * MIB, 9 * MIB]);
    assert_eq!((std::fs::metadata(&path).unwrap().len(), allocated_bytes(&path)), (9 * MIB, 9 * MIB));
    assert!(create_file(&path, MIB, Space::Written { progress: &mut |_| () }).is_err(), "never overwrites");
    assert!(free_bytes(path.parent().unwrap()).unwrap() > 0);
}

/// The same bytes by two names: an image, by each path that leads to it, and a loop device on it.
#[test]
fn a_file_and_a_loop_device_on_it_are_not_open_together() {
    let directory = Directory::new(false);
    let (path, link) = (directory.file("a"), directory.file("hard-link"));
    create_file(&path, MIB, Space::Sparse).unwrap();
    std::fs::hard_link(&path, &link).unwrap();
    let backing = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let device = match LoopDevice::configure(&backing, 512, false, "device-test") {
        Ok(device) => Cleared(device),
        Err(error) => {
            eprintln!("skipped: no loop device is to be had: {error}");
            return;
        }
    };
    drop(backing);
    for runtime in runtimes(1) {
        let open = |path: &Path| runtime.open(path, &OpenOptions::default());
        let is_refused = |path: &Path| matches!(open(path), Err(OpenError::InUse { .. }));
        // As a cell has it that opened the file before the loop device was set up.
        let locked = std::fs::File::open(&link).unwrap();
        assert!(lock_file(locked.as_raw_fd()).unwrap());
        let on_open = is_refused(device.0.path());
        drop(locked);
        let found = [is_refused(&path), is_refused(&link), on_open, open(device.0.path()).is_err()];
        assert_eq!(
            found,
            [true, true, true, false],
            "the file, its hard link, the device while the file is open, or by itself"
        );
    }
}

/// A loop device that goes with its value.
struct Cleared(LoopDevice);

impl Drop for Cleared {
    fn drop(&mut self) {
        self.0.clear().unwrap();
    }
}

#[test]
fn a_lock_keeps_a_second_opening_out_until_the_last_request_is_done() {
    let directory = Directory::new(true);
    let path = directory.file("a");
    create_file(&path, MIB, Space::Sparse).unwrap();
    for runtime in runtimes(2) {
        let device = runtime.open(&path, &OpenOptions::default()).unwrap();
        let second = runtime.open(&path, &OpenOptions::default());
        assert!(matches!(second, Err(OpenError::InUse { .. })));
        let in_use = device.clone();
        runtime.block_on(async move {
            in_use.read(0, room(4096, 4096)).await.outcome.ok().unwrap();
        });
        drop(device);
        runtime.open(&path, &OpenOptions::default()).unwrap();
    }
}

#[test]
fn opening_says_what_is_wrong() {
    let directory = Directory::new(true);
    let runtime = runtime(1, Backend::Threads);
    let text = |path: &str, options: &OpenOptions| match runtime.open(directory.file(path), options) {
        Ok(_) => panic!("{path} was opened"),
        Err(e) => e.to_string(),
    };
    assert!(text("none", &OpenOptions::default()).contains("no such file"));
    assert!(text("", &OpenOptions::default()).contains("neither a file nor a block device"));
    create_file(directory.file("empty"), 0, Space::Sparse).unwrap();
    assert!(text("empty", &OpenOptions::default()).contains("is empty"));
    create_file(directory.file("a"), MIB, Space::Sparse).unwrap();
    let odd = OpenOptions { page_override: Some(3000), ..OpenOptions::default() };
    assert!(text("a", &odd).contains("3000"));
    assert!(create_file(directory.file("a"), MIB, Space::Sparse).is_err(), "never overwrites");
}

#[test]
fn overrides_win() {
    let directory = Directory::new(true);
    let path = directory.file("a");
    create_file(&path, MIB + 100, Space::Sparse).unwrap();
    let runtime = runtime(1, Backend::Threads);
    let options = OpenOptions {
        page_override: Some(16384),
        class_override: Some(crate::Class::Ephemeral),
        volatile_cache_override: Some(false),
        rotational_override: Some(true),
        ..OpenOptions::default()
    };
    let geometry = runtime.open(&path, &options).unwrap().geometry();
    assert_eq!(geometry.size_bytes, MIB, "cut to whole logical units");
    assert_eq!((geometry.page_bytes, geometry.class), (16384, crate::Class::Ephemeral));
    assert_eq!((geometry.volatile_cache, geometry.rotational), (false, true));
}

/// A device whose flush hangs delays nobody but itself. The hang is a job in the flush lane of device A that ends when
/// the test says so: what a stuck `fdatasync` looks like from outside.
#[test]
fn a_stalled_flush_does_not_delay_another_device() {
    for runtime in runtimes(1) {
        let directory = Directory::new(true);
        let mut devices = Vec::new();
        let (release, stalled) = mpsc::channel::<()>();
        for name in ["a", "b"] {
            let path = directory.file(name);
            create_file(&path, MIB, Space::Sparse).unwrap();
            let opened = crate::real::open::open(&path, &OpenOptions::default()).unwrap();
            devices.push(runtime.adopt_for_test(opened));
        }
        let (b_file, b) = devices.pop().unwrap();
        let (a_file, a) = devices.pop().unwrap();
        a_file.flushes().submit(move || {
            let _ = stalled.recv();
        });
        let flush_a = a.flush();
        let zero_a = a.write_zeroes(0, 4096, false, true);
        let in_flight = runtime.in_flight();
        runtime.block_on(async move {
            // Reads, zeroes and flushes of B, and even zeroes of A, finish while A's flush hangs.
            assert_eq!(b.flush().await.outcome, Outcome::Done);
            assert_eq!(b.write_zeroes(0, 4096, true, true).await.outcome, Outcome::Done);
            assert_eq!(b.read(0, room(4096, 4096)).await.outcome, Outcome::Done);
            assert_eq!(zero_a.await.outcome, Outcome::Done);
        });
        drop(b_file);
        assert!(in_flight.iter().any(|d| d.name.ends_with("/a") && d.requests >= 1), "{in_flight:?}");
        let is_uring = runtime.is_uring();
        assert_eq!(is_uring, runtime.engine_for_test() == Engine::Uring);
        // The shutdown names the device that hangs.
        let error = runtime.shutdown(Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.devices.len(), 1, "{error}");
        assert!(error.to_string().contains("/a (1 requests)"), "{error}");
        release.send(()).unwrap();
        drop((flush_a, a_file));
    }
}

#[test]
fn many_reads_in_flight_from_every_thread() {
    let directory = Directory::new(true);
    let path = directory.file("a");
    create_file(&path, 16 * MIB, Space::Sparse).unwrap();
    for runtime in runtimes(2) {
        let device = runtime.open(&path, &OpenOptions::default()).unwrap();
        let world = runtime.world(1);
        let (done_in, done) = mpsc::channel();
        for thread in 0..2_u64 {
            let (device, done) = (device.clone(), done_in.clone());
            world.spawn.spawn_on(
                thread as usize,
                Box::pin(async move {
                    let mut prng = Prng::new(thread);
                    for round in 0..20_u64 {
                        let base = thread * 8 * MIB;
                        let mut writes = Vec::new();
                        for slot in 0..200_u64 {
                            let bytes = pattern(prng.below(u64::MAX), 4096);
                            writes.push((
                                base + slot * 4096,
                                device.write(base + slot * 4096, rope(&bytes, 4096), round == 0),
                                bytes,
                            ));
                        }
                        let mut reads = Vec::new();
                        for (offset, write, bytes) in writes {
                            assert_eq!(write.await.outcome, Outcome::Done);
                            reads.push((device.read(offset, room(4096, 4096)), bytes));
                        }
                        for (read, bytes) in reads {
                            let read = read.await;
                            assert_eq!(read.outcome, Outcome::Done);
                            assert!(read.bufs.to_vec(0..4096) == bytes);
                        }
                    }
                    done.send(()).unwrap();
                }),
            );
        }
        for _ in 0..2 {
            done.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!(runtime.in_flight().is_empty());
    }
}

#[test]
fn dropping_a_completion_does_not_free_its_memory() {
    let arena = Arena::new(2 << 20);
    let directory = Directory::new(false);
    let path = directory.file("a");
    create_file(&path, 16 * MIB, Space::Reserved).unwrap();
    for backend in [Backend::Uring, Backend::Threads] {
        let runtime = with_arena(1, backend, &arena);
        let device = runtime.open(&path, &OpenOptions::default()).unwrap();
        let arena = arena.clone();
        runtime.block_on(async move {
            for round in 0..64 {
                // Abandoned at once: the arena's memory comes back only when the kernel is done with it.
                drop(device.read((round % 8) * MIB, arena.alloc(1 << 20).await));
            }
            // All of it can be had again: nothing leaked.
            let all = arena.alloc(2 << 20).await;
            assert_eq!(all.len_bytes(), 2 << 20);
        });
    }
}
