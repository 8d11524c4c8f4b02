//! The remote disk: an NBD server that crashes, forgets, comes back as another, or does not come back.

use crate::world::*;
use device::sync::lock;
use device::*;
use nbd::client::Standing;
use nbd::{FrontEnd, FrontEndLimits, RemoteDisk, RemoteOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SIZE: usize = 4 << 20;

/// A server that can be killed and started again.
struct Server {
    world: World,
    net: Arc<TestNet>,
    disk: Arc<MemoryDisk>,
    front: Option<FrontEnd>,
    listener: Option<Arc<dyn Listener>>,
}

impl Server {
    async fn start(&mut self, w: &TestWorld2, stamp: u128) {
        let cell = cell::Cell::of_grid_disks(vec![grid_disk("data", &self.disk)], stamp, w.0.clone());
        let front = FrontEnd::new(cell, self.world.clone(), Arena::new(16 << 20), FrontEndLimits::default());
        let listener = self.net.listen(&unix("nbd")).await.unwrap();
        front.serve(listener.clone());
        self.front = Some(front);
        self.listener = Some(listener);
    }

    /// Power cut: nothing answers any more, what was not flushed is gone.
    fn crash(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.close();
        }
        self.net.cut_all();
        self.front = None;
        self.disk.crash();
    }
}

struct TestWorld2(World);

fn run<F, Fut>(seed: u64, test: F)
where
    F: FnOnce(Server, TestWorld2) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let w = world(seed);
    let disk = MemoryDisk::new(SIZE, w.clock.clone());
    let server = Server { world: w.world.clone(), net: w.net.clone(), disk, front: None, listener: None };
    w.executor.block_on(test(server, TestWorld2(w.world.clone())));
}

/// The disk as itself and as a device.
struct Remote {
    disk: Arc<RemoteDisk>,
    io: Device,
}

impl std::ops::Deref for Remote {
    type Target = dyn Io;
    fn deref(&self) -> &Self::Target {
        &*self.io
    }
}

async fn connect(w: &TestWorld2, options: RemoteOptions) -> Remote {
    let disk = Arc::new(RemoteDisk::connect(&w.0, &unix("nbd"), "data", options).await.unwrap());
    Remote { io: disk.clone(), disk }
}

fn shared(byte: u8, len: usize) -> SharedBufs {
    SharedBuf::from(vec![byte; len]).into()
}

async fn write(disk: &Remote, offset: u64, byte: u8, len: usize) -> Outcome {
    disk.write(offset, shared(byte, len), false).await.outcome
}

async fn read(disk: &Remote, offset: u64, len: usize) -> (Outcome, Vec<u8>) {
    let done = disk.read(offset, Buf::zeroed(len).into()).await;
    (done.outcome, done.bufs.to_vec(0..len))
}

#[test]
fn acknowledged_writes_survive_a_server_that_forgets_them() {
    for seed in 0..10 {
        for connections in [1, 3] {
            run(seed, move |mut server, w| async move {
                server.start(&w, 1).await;
                let disk = connect(&w, RemoteOptions { connections, ..RemoteOptions::default() }).await;
                assert_eq!(disk.geometry().size_bytes, SIZE as u64);
                assert_eq!(write(&disk, 0, 1, 65536).await, Outcome::Done);
                assert_eq!(disk.flush().await.outcome, Outcome::Done);
                assert!(!disk.disk.has_unflushed());
                assert_eq!(write(&disk, 4096, 2, 4096).await, Outcome::Done);
                assert_eq!(write(&disk, 8192, 3, 4096).await, Outcome::Done);
                assert_eq!(disk.write_zeroes(8192, 512, false, true).await.outcome, Outcome::Done);
                assert_eq!(write(&disk, 8192 + 512, 4, 512).await, Outcome::Done);
                server.crash();
                assert_eq!(server.disk.content()[4096..8192], [1; 4096], "the server forgot");
                let flush = disk.flush();
                w.0.clock.sleep(Duration::from_secs(2)).await;
                server.start(&w, 2).await;
                assert_eq!(flush.await.outcome, Outcome::Done);
                let want = [vec![1; 4096], vec![2; 4096], vec![0; 512], vec![4; 512], vec![3; 3072]].concat();
                assert!(server.disk.durable()[..12288] == want, "everything acknowledged is durable after the flush");
                assert_eq!(read(&disk, 0, 12288).await, (Outcome::Done, want));
                assert!(!disk.disk.has_unflushed());
            });
        }
    }
}

#[test]
fn requests_under_way_are_finished_on_the_server_that_comes_back() {
    for seed in 0..10 {
        run(seed, |mut server, w| async move {
            server.start(&w, 1).await;
            *lock(&server.disk.latency) = Duration::from_millis(10);
            let disk = connect(&w, RemoteOptions::default()).await;
            let writes: Vec<Completion> =
                (0..16_u64).map(|i| disk.write(i * 4096, shared(i as u8 + 1, 4096), false)).collect();
            let reads: Vec<Completion> =
                (0..4_u64).map(|i| disk.read((100 + i) * 4096, Buf::zeroed(4096).into())).collect();
            w.0.clock.sleep(Duration::from_millis(5)).await;
            server.crash();
            server.start(&w, 2).await;
            for write in writes {
                assert_eq!(write.await.outcome, Outcome::Done);
            }
            for read in reads {
                assert_eq!(read.await.outcome, Outcome::Done);
            }
            for i in 0..16_u64 {
                assert_eq!(read(&disk, i * 4096, 4096).await, (Outcome::Done, vec![i as u8 + 1; 4096]));
            }
        });
    }
}

#[test]
fn the_same_server_is_not_written_to_twice() {
    run(1, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk = connect(&w, RemoteOptions::default()).await;
        assert_eq!(write(&disk, 0, 1, 4096).await, Outcome::Done);
        let before = server.disk.writes.load(Ordering::SeqCst);
        *lock(&server.disk.latency) = Duration::from_millis(10);
        let late = disk.write(8192, shared(5, 4096), false);
        // In another block, so that the write does not wait for it and has begun when the connection ends.
        let reading = disk.read(65536, Buf::zeroed(4096).into());
        w.0.clock.sleep(Duration::from_millis(2)).await;
        server.net.cut_all();
        // It may still be carried out: nobody can tell.
        assert_eq!(late.await.outcome, Outcome::Unknown);
        assert_eq!(reading.await.outcome, Outcome::Done);
        assert_eq!(disk.flush().await.outcome, Outcome::Done);
        assert_eq!(server.disk.writes.load(Ordering::SeqCst), before + 1, "only the late write itself");
        assert_eq!(server.disk.durable()[..4096], [1; 4096]);
    });
}

/// A block device of this host: an unknown outcome would be an error there.
#[test]
fn the_same_server_is_written_to_again_where_that_is_wanted() {
    run(1, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk = connect(&w, RemoteOptions { resend_unanswered: true, ..RemoteOptions::default() }).await;
        *lock(&server.disk.latency) = Duration::from_millis(10);
        let late = disk.write(8192, shared(5, 4096), false);
        w.0.clock.sleep(Duration::from_millis(2)).await;
        assert_eq!(disk.disk.unflushed_bytes(), 0, "not acknowledged yet");
        server.net.cut_all();
        assert_eq!(late.await.outcome, Outcome::Done);
        assert_eq!(disk.disk.unflushed_bytes(), 4096);
        assert_eq!(disk.flush().await.outcome, Outcome::Done);
        assert_eq!(server.disk.durable()[8192..12288], [5; 4096]);
        assert_eq!(disk.disk.unflushed_bytes(), 0);
    });
}

#[test]
fn a_loss_is_seen_without_a_request_and_growth_with_a_new_connection() {
    run(1, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk = connect(&w, RemoteOptions { patient: true, ..RemoteOptions::default() }).await;
        assert_eq!(write(&disk, 0, 1, 4096).await, Outcome::Done);
        assert!(!disk.disk.look_for_growth().await.unwrap(), "as large as before");
        server.crash();
        w.0.clock.sleep(Duration::from_millis(10)).await;
        disk.disk.look_for_loss();
        assert_eq!(disk.disk.standing(), Standing::Waiting);
        // Another instance, whose disk is larger: what was not flushed is written again, and the size is the new one.
        server.disk = MemoryDisk::new(2 * SIZE, w.0.clock.clone());
        server.start(&w, 2).await;
        w.0.clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(disk.disk.standing(), Standing::Up { stamp: Some(2) });
        assert_eq!(disk.geometry().size_bytes, 2 * SIZE as u64);
        assert_eq!(write(&disk, 2 * SIZE as u64 - 4096, 7, 4096).await, Outcome::Done);
        assert_eq!(read(&disk, 0, 4096).await, (Outcome::Done, vec![1; 4096]));
        // Given up: nothing waits any more.
        server.crash();
        let waiting = disk.read(0, Buf::zeroed(4096).into());
        w.0.clock.sleep(Duration::from_millis(10)).await;
        disk.disk.give_up();
        assert_eq!(waiting.await.outcome, Outcome::Failed(FailKind::Gone));
    });
}

#[test]
fn a_server_without_a_stamp_is_always_written_to_again() {
    // The front end always has a stamp; without structured replies the client cannot see it.
    run(2, |mut server, w| async move {
        server.start(&w, 1).await;
        let mut options = RemoteOptions::default();
        options.client.structured = false;
        let disk = connect(&w, options).await;
        assert_eq!(disk.disk.export().instance, None);
        assert_eq!(write(&disk, 0, 1, 4096).await, Outcome::Done);
        server.crash();
        server.start(&w, 1).await;
        assert_eq!(disk.flush().await.outcome, Outcome::Done);
        assert_eq!(server.disk.durable()[..4096], [1; 4096]);
    });
}

#[test]
fn a_server_that_stays_away_fails_everything_for_good() {
    run(3, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk =
            connect(&w, RemoteOptions { reconnect_for: Duration::from_secs(3), ..RemoteOptions::default() }).await;
        assert_eq!(write(&disk, 0, 1, 4096).await, Outcome::Done);
        server.crash();
        let start = w.0.clock.now();
        assert_eq!(disk.flush().await.outcome, Outcome::Failed(FailKind::Gone));
        let waited = w.0.clock.now().ns_since(start) / 1_000_000;
        assert!((3000..6000).contains(&waited), "{waited} ms");
        assert!(disk.disk.is_dead());
        // Coming back later does not bring back what was promised.
        server.start(&w, 2).await;
        assert_eq!(write(&disk, 0, 2, 4096).await, Outcome::Failed(FailKind::Gone));
        assert_eq!(read(&disk, 0, 512).await.0, Outcome::Failed(FailKind::Gone));
    });
}

#[test]
fn writes_that_cannot_be_written_again_fail_everything() {
    run(4, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk = connect(&w, RemoteOptions::default()).await;
        assert_eq!(write(&disk, 0, 1, 4096).await, Outcome::Done);
        server.crash();
        server.disk.fail_writes.store(true, Ordering::SeqCst);
        server.start(&w, 2).await;
        assert_eq!(disk.flush().await.outcome, Outcome::Failed(FailKind::Gone));
        assert!(disk.disk.is_dead());
    });
}

#[test]
fn another_disk_under_the_same_name_is_not_touched() {
    run(5, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk = connect(&w, RemoteOptions::default()).await;
        assert_eq!(write(&disk, 0, 1, 4096).await, Outcome::Done);
        server.crash();
        server.disk = MemoryDisk::new(SIZE / 2, w.0.clock.clone());
        server.start(&w, 2).await;
        assert_eq!(disk.flush().await.outcome, Outcome::Failed(FailKind::Gone));
        assert_eq!(server.disk.writes.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_full_keep_flushes_and_never_forgets() {
    for seed in 0..5 {
        run(seed, |mut server, w| async move {
            server.start(&w, 1).await;
            *lock(&server.disk.latency) = Duration::from_millis(1);
            // The smallest arena is 2 MiB; twice as much is written without a flush, in parallel.
            let disk = connect(&w, RemoteOptions { keep_bytes_max: 1, ..RemoteOptions::default() }).await;
            let writes: Vec<Completion> =
                (0..64_u64).map(|i| disk.write(i * 65536, shared(i as u8 + 1, 65536), false)).collect();
            for write in writes {
                assert_eq!(write.await.outcome, Outcome::Done);
            }
            assert!(server.disk.flushes.load(Ordering::SeqCst) > 0);
            server.crash();
            server.start(&w, 2).await;
            assert_eq!(disk.flush().await.outcome, Outcome::Done);
            for i in 0..64_usize {
                assert!(server.disk.durable()[i * 65536..(i + 1) * 65536].iter().all(|b| *b == i as u8 + 1), "{i}");
            }
        });
    }
}

#[test]
fn after_a_failed_flush_everything_is_written_again() {
    run(6, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk = connect(&w, RemoteOptions::default()).await;
        assert_eq!(write(&disk, 0, 1, 4096).await, Outcome::Done);
        // The kernel's way: after the failure the page is clean, and the next flush succeeds without it.
        server.disk.drop_on_failed_flush.store(true, Ordering::SeqCst);
        server.disk.fail_flushes.store(true, Ordering::SeqCst);
        assert_eq!(disk.flush().await.outcome, Outcome::Failed(FailKind::Media));
        server.disk.fail_flushes.store(false, Ordering::SeqCst);
        assert_eq!(disk.flush().await.outcome, Outcome::Done);
        assert_eq!(server.disk.durable()[..4096], [1; 4096]);
    });
}

#[test]
fn status_and_discard_pass_through() {
    run(7, |mut server, w| async move {
        server.start(&w, 1).await;
        let disk = connect(&w, RemoteOptions::default()).await;
        assert_eq!(write(&disk, 65536, 1, 4096).await, Outcome::Done);
        let done = disk.submit(Op::Status { offset: 0, len: SIZE as u64 }).await;
        assert_eq!(done.outcome, Outcome::Done);
        assert_eq!(
            done.extents,
            [
                DeviceExtent { len: 65536, hole: true },
                DeviceExtent { len: 4096, hole: false },
                DeviceExtent { len: SIZE as u64 - 65536 - 4096, hole: true }
            ]
        );
        assert_eq!(disk.discard(65536, 4096).await.outcome, Outcome::Done);
        assert_eq!(disk.write(0, shared(1, 512), true).await.outcome, Outcome::Done);
        assert_eq!(server.disk.durable()[..512], [1; 512]);
        assert_eq!(read(&disk, SIZE as u64, 512).await.0, Outcome::Failed(FailKind::Invalid));
    });
}

#[test]
fn nothing_acknowledged_is_lost_over_many_crashes() {
    const SLOTS: u64 = 12;
    for seed in 0..20 {
        run(seed, move |mut server, w| async move {
            let mut prng = w.0.prng.fork("crashes");
            server.start(&w, 1).await;
            *lock(&server.disk.latency) = Duration::from_micros(300);
            let connections = 1 + (seed % 3) as usize;
            let options = RemoteOptions { connections, keep_bytes_max: 1, ..RemoteOptions::default() };
            let remote = Arc::new(connect(&w, options).await);
            let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let latest: Arc<std::sync::Mutex<Vec<u8>>> = Arc::new(std::sync::Mutex::new(vec![0; SLOTS as usize]));
            let written = Arc::new(std::sync::atomic::AtomicU64::new(0));
            let mut tasks = Vec::new();
            // Writers count up in their own slot; every answer is Done, since every new server has a new stamp.
            for slot in 0..SLOTS {
                let (remote, over, latest) = (remote.clone(), over.clone(), latest.clone());
                let written = written.clone();
                let clock = w.0.clock.clone();
                let mut prng = prng.fork(&format!("writer {slot}"));
                let (done, ended) = device::sync::one_shot();
                tasks.push(ended);
                w.0.spawn.spawn(Box::pin(async move {
                    let mut version = 0_u8;
                    while !over.load(Ordering::SeqCst) {
                        version = version.wrapping_add(1);
                        let fua = prng.chance(1, 10);
                        let outcome = remote.io.write(slot * 65536, shared(version, 8192), fua).await.outcome;
                        assert_eq!(outcome, Outcome::Done);
                        lock(&latest)[slot as usize] = version;
                        written.fetch_add(1, Ordering::SeqCst);
                        clock.sleep(Duration::from_micros(prng.below(2000))).await;
                        let (outcome, got) = read(&remote, slot * 65536, 8192).await;
                        assert_eq!((outcome, got), (Outcome::Done, vec![version; 8192]), "slot {slot}");
                    }
                    done.send(());
                }));
            }
            {
                let (remote, over, clock) = (remote.clone(), over.clone(), w.0.clock.clone());
                let (done, ended) = device::sync::one_shot();
                tasks.push(ended);
                w.0.spawn.spawn(Box::pin(async move {
                    while !over.load(Ordering::SeqCst) {
                        assert_eq!(remote.io.flush().await.outcome, Outcome::Done);
                        clock.sleep(Duration::from_micros(700)).await;
                    }
                    done.send(());
                }));
            }
            for stamp in 2..8 {
                w.0.clock.sleep(Duration::from_micros(prng.below(500_000))).await;
                server.crash();
                w.0.clock.sleep(Duration::from_micros(prng.below(100_000))).await;
                server.start(&w, stamp).await;
                *lock(&server.disk.latency) = Duration::from_micros(300);
            }
            w.0.clock.sleep(Duration::from_millis(50)).await;
            over.store(true, Ordering::SeqCst);
            for task in tasks {
                assert!(task.await.is_some());
            }
            assert_eq!(remote.io.flush().await.outcome, Outcome::Done);
            let durable = server.disk.durable();
            assert!(written.load(Ordering::SeqCst) > 100, "{written:?} writes are too few to mean anything");
            for (slot, version) in lock(&latest).iter().enumerate() {
                assert!(durable[slot * 65536..slot * 65536 + 8192].iter().all(|b| b == version), "slot {slot}");
            }
        });
    }
}
