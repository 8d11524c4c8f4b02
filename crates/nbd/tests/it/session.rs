//! The front end on a real cell over memory disks, driven by bytes written by hand.

use crate::raw::*;
use crate::world::*;
use device::sync::lock;
use device::*;
use nbd::FrontEndLimits;
use nbd::codec::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn simple_replies_write_read_flush_disconnect() {
    for seed in 0..20 {
        let b = bench(seed);
        let net = b.w.net.clone();
        b.w.executor.block_on(async move {
            let mut raw = Raw::connect(net).await;
            let replies = raw.go("data", false, &[]).await;
            let OptionReply::Info(Info::Export { size_bytes, flags }) = &replies[0] else { panic!("{replies:?}") };
            assert_eq!(*size_bytes, SIZE as u64);
            // Every flag of the contract but DF, which needs structured replies, and READ_ONLY.
            assert_eq!(flags.bits(), 0b1101_0111_1101);
            assert_eq!(
                replies[1],
                OptionReply::Info(Info::BlockSize { minimum: 1, preferred: 4096, maximum: 32 << 20 })
            );
            // Odd offset and length, and one of many buffers.
            for (cookie, offset, len) in [(1, 4096, 4096), (2, 12345, 777), (3, 1 << 20, 3 << 20), (4, 0, 1)] {
                raw.write_and_read_back(cookie, offset, len).await;
            }
            raw.request(Command::Flush, NONE, 9, 0, 0).await;
            assert_eq!(raw.simple().await, (0, 9));
            raw.request(Command::Read, NONE, 10, 0, 0).await;
            assert_eq!(raw.simple().await, (0, 10));
            raw.request(Command::Disconnect, NONE, 11, 0, 0).await;
            assert!(raw.ended().await);
        });
        assert!(b.disk.durable() == b.disk.content(), "FLUSH made everything durable");
        b.w.executor.settle();
        let stats = b.front.stats();
        assert_eq!((stats.writes, stats.reads, stats.flushes, stats.disconnects), (4, 5, 1, 1));
        assert_eq!((stats.bytes_written, stats.bytes_read), (4096 + 777 + (3 << 20) + 1, 4096 + 777 + (3 << 20) + 1));
        let hosts = b.front.hosts();
        let [host] = &hosts[..] else { panic!("one host: {hosts:?}") };
        assert_eq!(host.name, nbd::server::LOCAL_HOST);
        assert_eq!((host.received_bytes, host.sent_bytes), (stats.bytes_written, stats.bytes_read));
        assert_eq!((stats.connections, stats.connections_open), (1, 0));
        assert_eq!(b.arena.free_bytes(), b.arena.size_bytes(), "all memory is back");
    }
}

#[test]
fn structured_reads_are_sparse_and_df_is_one_chunk() {
    let b = bench(1);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.go("data", true, &[]).await;
        raw.write(1, 65536, &pattern(4096, 1), NONE).await;
        assert_eq!(raw.simple().await, (0, 1));
        // 64 KiB of zeroes, 4 KiB of data, 28 KiB of zeroes, too short for a hole.
        raw.request(Command::Read, NONE, 2, 0, 98304).await;
        let (done, kind, cookie, hole) = raw.chunk().await;
        assert_eq!((done, kind, cookie), (false, 2, 2));
        assert_eq!(hole, [[0, 0, 0, 0, 0, 0, 0, 0].as_slice(), &[0, 1, 0, 0]].concat());
        let (done, kind, cookie, data) = raw.chunk().await;
        assert_eq!((done, kind, cookie, data.len()), (true, 1, 2, 8 + 32768));
        assert!(data[8..8 + 4096] == pattern(4096, 1) && data[8 + 4096..].iter().all(|b| *b == 0));
        raw.request(Command::Read, CommandFlags::DF, 3, 0, 98304).await;
        let (done, kind, _, data) = raw.chunk().await;
        assert_eq!((done, kind, data.len()), (true, 1, 8 + 98304));
        raw.request(Command::Read, CommandFlags::DF, 4, 0, (1 << 20) + 1).await;
        let (done, kind, _, error) = raw.chunk().await;
        assert_eq!((done, kind, &error[..4]), (true, 0x8001, &[0, 0, 0, 75][..]));
    });
}

#[test]
fn a_long_read_comes_in_chunks_that_cover_it_once() {
    for seed in 0..10 {
        let b = bench(seed);
        let content = pattern(SIZE, 3);
        let (net, want, disk) = (b.w.net.clone(), content.clone(), b.disk.clone());
        *lock(&disk.latency) = Duration::from_millis(4);
        b.w.executor.block_on(async move {
            let mut raw = Raw::connect(net).await;
            raw.go("data", true, &[]).await;
            raw.write(1, 0, &want, CommandFlags::FUA).await;
            assert_eq!(raw.simple().await, (0, 1));
            let (offset, len) = (1000, (6 << 20) + 77);
            raw.request(Command::Read, NONE, 2, offset as u64, len as u32).await;
            let mut covered = vec![false; len];
            loop {
                let (done, kind, cookie, payload) = raw.chunk().await;
                assert_eq!(cookie, 2);
                if kind == 0 {
                    assert!(done);
                    break;
                }
                assert_eq!(kind, 1);
                let at = u64::from_be_bytes(payload[..8].try_into().unwrap()) as usize;
                let data = &payload[8..];
                assert!(data == &want[at..at + data.len()]);
                for seen in &mut covered[at - offset..at - offset + data.len()] {
                    assert!(!std::mem::replace(seen, true), "no byte twice");
                }
            }
            assert!(covered.into_iter().all(|c| c));
            // A failure is told with its place, and the stream goes on.
            disk.fail_reads.store(true, Ordering::SeqCst);
            raw.request(Command::Read, NONE, 3, 0, 4 << 20).await;
            let (done, kind, cookie, error) = raw.chunk().await;
            assert_eq!((done, kind, cookie, &error[..4]), (true, 0x8002, 3, &[0, 0, 0, 5][..]));
            let text_len = usize::from(u16::from_be_bytes(error[4..6].try_into().unwrap()));
            assert_eq!(&error[6..6 + text_len], b"input/output error");
            disk.fail_reads.store(false, Ordering::SeqCst);
            raw.request(Command::Read, NONE, 4, 5, 1).await;
            assert_eq!(raw.chunk().await.3[8..], want[5..6]);
        });
        assert_eq!(b.arena.free_bytes(), b.arena.size_bytes(), "all memory is back");
    }
}

#[test]
fn refused_writes_are_drained_and_the_stream_goes_on() {
    for seed in 0..10 {
        let b = bench_with(seed, &["data"], 16 << 20, FrontEndLimits::default());
        let net = b.w.net.clone();
        b.w.executor.block_on(async move {
            let mut raw = Raw::connect(net).await;
            let replies = raw.go("data", false, &[]).await;
            // The maximum is what the arena carries.
            assert!(replies.contains(&OptionReply::Info(Info::BlockSize {
                minimum: 1,
                preferred: 4096,
                maximum: 8 << 20
            })));
            raw.write(1, SIZE as u64 - 10, &[7; 20], NONE).await;
            assert_eq!(raw.simple().await, (28, 1));
            raw.write(2, 0, &vec![7; (8 << 20) + 1], NONE).await;
            assert_eq!(raw.simple().await, (22, 2));
            raw.write(3, 0, &[7; 20], CommandFlags::DF).await;
            assert_eq!(raw.simple().await, (22, 3));
            raw.request(Command::Unknown(4242), NONE, 4, 1, 2).await;
            assert_eq!(raw.simple().await, (22, 4));
            raw.write(5, 512, &[9; 20], NONE).await;
            assert_eq!(raw.simple().await, (0, 5));
            raw.request(Command::Read, NONE, 6, 500, 40).await;
            assert_eq!(raw.simple().await, (0, 6));
            assert_eq!(raw.take(40).await, [&[0; 12][..], &[9; 20], &[0; 8]].concat());
        });
        assert_eq!(b.front.stats().errors_of(Errno::Inval), 3);
        assert_eq!(b.front.stats().errors_of(Errno::NoSpc), 1);
    }
}

#[test]
fn a_bad_magic_closes_but_finishes_what_came_before() {
    let b = bench(5);
    *lock(&b.disk.latency) = Duration::from_millis(10);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.go("data", false, &[]).await;
        raw.write(1, 0, &[5; 512], NONE).await;
        raw.send(&[0x55; 28]).await;
        assert_eq!(raw.simple().await, (0, 1));
        assert!(raw.ended().await);
    });
    assert_eq!(b.disk.content()[..512], [5; 512]);
    assert_eq!(b.front.stats().malformed, 1);
}

#[test]
fn requests_begun_before_a_disconnect_are_done() {
    for seed in 0..20 {
        let b = bench(seed);
        *lock(&b.disk.latency) = Duration::from_millis(50);
        let (net, clock) = (b.w.net.clone(), b.w.clock.clone());
        let executor = b.w.executor.clone();
        b.w.executor.block_on(async move {
            let mut raw = Raw::connect(net.clone()).await;
            raw.go("data", true, &[]).await;
            for i in 0..8_u64 {
                // Each in a block of its own: none waits for another.
                raw.write(i, i * 16384, &pattern(4096, i as u8), NONE).await;
                raw.request(Command::Read, NONE, 100 + i, 4 << 20, 2 << 20).await;
            }
            clock.sleep(Duration::from_millis(10)).await;
            // Gone without reading a single reply.
            net.cut_all();
        });
        let (front, clock) = (b.front.clone(), b.w.clock.clone());
        executor.block_on(async move {
            clock.sleep(Duration::from_secs(5)).await;
            front.stop().await;
        });
        for i in 0..8 {
            assert!(b.disk.content()[i * 16384..][..4096] == pattern(4096, i as u8), "write {i} was done");
        }
        assert_eq!(b.front.stats().connections_open, 0);
        assert_eq!(b.arena.free_bytes(), b.arena.size_bytes(), "all memory is back");
    }
}

#[test]
fn block_status_speaks_of_every_context_selected() {
    let b = bench(7);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.send(&[0, 0, 0, 3]).await;
        let set = |queries: &[&str]| ClientOption::SetMetaContext {
            name: "data".into(),
            queries: queries.iter().map(|q| (*q).to_owned()).collect(),
        };
        raw.option(set(&["base:allocation"])).await;
        assert!(matches!(raw.option_replies().await[..], [OptionReply::Error { kind: RepError::Invalid, .. }]));
        raw.option(ClientOption::StructuredReply).await;
        raw.option_reply().await;
        let instance = format!("flashcell:instance:{STAMP:032x}");
        let context = |id, name: &str| OptionReply::MetaContext { id, name: name.into() };
        raw.option(ClientOption::ListMetaContext { name: "data".into(), queries: vec![] }).await;
        let all = [context(0, "base:allocation"), context(0, "flashcell:tier"), context(0, &instance)];
        assert_eq!(raw.option_replies().await, [&all[..], &[OptionReply::Ack]].concat());
        raw.option(ClientOption::ListMetaContext { name: "data".into(), queries: vec!["flashcell:".into()] }).await;
        assert_eq!(raw.option_replies().await, [&all[1..], &[OptionReply::Ack]].concat());
        raw.option(set(&["base:", "nonsense", "qemu:dirty-bitmap:x"])).await;
        assert_eq!(raw.option_replies().await, [OptionReply::Ack]);
        raw.option(set(&["base:allocation", "flashcell:tier", "flashcell:instance:"])).await;
        let chosen = [context(1, "base:allocation"), context(2, "flashcell:tier"), context(3, &instance)];
        assert_eq!(raw.option_replies().await, [&chosen[..], &[OptionReply::Ack]].concat());
        raw.option(ClientOption::Go { name: "data".into(), requests: vec![] }).await;
        raw.option_replies().await;
        raw.write(1, 8192, &[1; 4096], NONE).await;
        assert_eq!(raw.simple().await, (0, 1));
        let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
        raw.request(Command::BlockStatus, NONE, 2, 0, 16384).await;
        assert_eq!(raw.chunk().await, (false, 5, 2, words(&[1, 8192, 3, 4096, 0, 4096, 3])));
        assert_eq!(raw.chunk().await, (false, 5, 2, words(&[2, 16384, 0])));
        assert_eq!(raw.chunk().await, (true, 5, 2, words(&[3, 16384, 0])));
        raw.request(Command::BlockStatus, CommandFlags::REQ_ONE, 3, 4096, 12288).await;
        assert_eq!(raw.chunk().await, (false, 5, 3, words(&[1, 4096, 3])));
        assert_eq!(raw.chunk().await, (false, 5, 3, words(&[2, 4096, 0])));
        assert_eq!(raw.chunk().await, (true, 5, 3, words(&[3, 4096, 0])));
    });
}

#[test]
fn contexts_hold_only_for_the_export_they_were_set_on() {
    let b = bench_with(8, &["a", "b"], 16 << 20, FrontEndLimits::default());
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.send(&[0, 0, 0, 3]).await;
        raw.option(ClientOption::StructuredReply).await;
        raw.option_reply().await;
        let queries = vec!["base:allocation".to_owned()];
        raw.option(ClientOption::SetMetaContext { name: "a".into(), queries }).await;
        assert_eq!(raw.option_replies().await.len(), 2);
        raw.option(ClientOption::Go { name: "b".into(), requests: vec![] }).await;
        raw.option_replies().await;
        raw.request(Command::BlockStatus, NONE, 1, 0, 4096).await;
        let (done, kind, cookie, error) = raw.chunk().await;
        assert_eq!((done, kind, cookie, &error[..4]), (true, 0x8001, 1, &[0, 0, 0, 22][..]));
    });
}

#[test]
fn export_names_default_tagged_and_unknown() {
    let b = bench_with(9, &["data", "redo"], 16 << 20, FrontEndLimits::default());
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net.clone()).await;
        raw.send(&[0, 0, 0, 3]).await;
        raw.option(ClientOption::List).await;
        let names: Vec<String> = raw
            .option_replies()
            .await
            .into_iter()
            .filter_map(|r| if let OptionReply::Server { name, .. } = r { Some(name) } else { None })
            .collect();
        assert_eq!(names, ["data", "redo"]);
        for name in ["", "nope", "data@", "nope@db"] {
            raw.option(ClientOption::Info { name: name.into(), requests: vec![] }).await;
            let replies = raw.option_replies().await;
            let [OptionReply::Error { kind: RepError::Unknown, message }] = &replies[..] else { panic!("{replies:?}") };
            assert!(message.contains("data, redo"), "{message}");
        }
        let requests = vec![info::NAME, info::DESCRIPTION, 77, info::NAME];
        raw.option(ClientOption::Info { name: "redo@SPOT".into(), requests }).await;
        let replies = raw.option_replies().await;
        assert_eq!(replies.len(), 4, "{replies:?}");
        assert_eq!(replies[1], OptionReply::Info(Info::Name("redo@SPOT".into())));
        // What is not spoken here is refused, and the handshake goes on.
        for option in [ClientOption::StartTls, ClientOption::ExtendedHeaders, ClientOption::Unknown(4)] {
            raw.option(option).await;
            assert!(matches!(raw.option_replies().await[..], [OptionReply::Error { kind: RepError::Unsup, .. }]));
        }
        raw.option(ClientOption::Abort).await;
        assert_eq!(raw.option_replies().await, [OptionReply::Ack]);
        assert!(raw.ended().await);
        // An unknown EXPORT_NAME has no other answer than the end.
        let mut raw = Raw::connect(net).await;
        raw.send(&[0, 0, 0, 3]).await;
        raw.option(ClientOption::ExportName("nope".into())).await;
        assert!(raw.ended().await);
    });
}

#[test]
fn the_only_grid_disk_is_the_default_export() {
    let b = bench(10);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.send(&[0, 0, 0, 1]).await;
        raw.option(ClientOption::ExportName(String::new())).await;
        let reply = raw.take(8 + 2 + 124).await;
        assert_eq!(reply[..8], (SIZE as u64).to_be_bytes());
        assert!(reply[10..].iter().all(|b| *b == 0));
        raw.request(Command::Read, NONE, 1, 0, 512).await;
        assert_eq!(raw.simple().await, (0, 1));
    });
}

#[test]
fn options_too_long_are_drained_up_to_a_limit() {
    let b = bench(11);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net.clone()).await;
        raw.send(&[0, 0, 0, 3]).await;
        for (option, len, kind) in [
            (opt::GO, 60_000_u32, RepError::TooBig),
            (4711, 65_536, RepError::Unsup),
            (4711, 100, RepError::Unsup),
            (opt::LIST, 3, RepError::Invalid),
        ] {
            let mut bytes = MAGIC_OPTION.to_be_bytes().to_vec();
            bytes.extend_from_slice(&option.to_be_bytes());
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.resize(16 + len as usize, b'x');
            raw.send(&bytes).await;
            let replies = raw.option_replies().await;
            assert!(matches!(&replies[..], [OptionReply::Error { kind: k, .. }] if *k == kind), "{replies:?}");
        }
        let mut bytes = MAGIC_OPTION.to_be_bytes().to_vec();
        bytes.extend_from_slice(&opt::GO.to_be_bytes());
        bytes.extend_from_slice(&65_537_u32.to_be_bytes());
        raw.send(&bytes).await;
        assert!(raw.ended().await);
    });
    b.w.executor.settle();
    assert_eq!(b.front.stats().malformed, 1);
}

#[test]
fn clients_that_stall_are_closed_in_time() {
    let limits = FrontEndLimits {
        handshake_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(5),
        ..FrontEndLimits::default()
    };
    let b = bench_with(12, &["data"], 16 << 20, limits);
    let (net, clock) = (b.w.net.clone(), b.w.clock.clone());
    let arena = b.arena.clone();
    b.w.executor.block_on(async move {
        // In the handshake.
        let mut silent = Raw::connect(net.clone()).await;
        let start = clock.now();
        assert!(silent.ended().await);
        assert!((4..10).contains(&(clock.now().ns_since(start) / 1_000_000_000)));
        // In the middle of a payload: its memory is back afterwards.
        let mut half = Raw::connect(net.clone()).await;
        half.go("data", false, &[]).await;
        half.request(Command::Write, NONE, 1, 0, 65536).await;
        half.send(&[1; 1000]).await;
        assert!(half.ended().await);
        // The client hears of it first, perhaps.
        clock.sleep(Duration::from_millis(1)).await;
        assert_eq!(arena.free_bytes(), arena.size_bytes());
        // Not reading replies.
        let deaf = Raw::connect(net.clone()).await;
        let mut deaf = deaf;
        deaf.go("data", false, &[]).await;
        deaf.request(Command::Read, NONE, 1, 0, 1 << 20).await;
        clock.sleep(Duration::from_secs(12)).await;
        assert_eq!(arena.free_bytes(), arena.size_bytes());
        // Idle is not stalling.
        let mut idle = Raw::connect(net).await;
        idle.go("data", false, &[]).await;
        clock.sleep(Duration::from_secs(3600)).await;
        idle.request(Command::Read, NONE, 1, 0, 512).await;
        assert_eq!(idle.simple().await, (0, 1));
    });
    assert_eq!(b.front.stats().timed_out, 3);
}

#[test]
fn connections_beyond_the_limit_wait_for_a_place() {
    let b = bench_with(13, &["data"], 16 << 20, FrontEndLimits { connections_max: 2, ..FrontEndLimits::default() });
    let (net, front) = (b.w.net.clone(), b.front.clone());
    let executor = b.w.executor.clone();
    b.w.executor.block_on(async move {
        let one = Raw::connect(net.clone()).await;
        let _two = Raw::connect(net.clone()).await;
        let third = net.connect(&unix("nbd")).await.unwrap();
        let mut greeting = third.receive(Buf::zeroed(18));
        let waiting = std::future::poll_fn(|cx| std::task::Poll::Ready(greeting.as_mut().poll(cx).is_pending())).await;
        assert!(waiting);
        assert_eq!(front.stats().connections, 2);
        one.0.close();
        assert!(greeting.await.0.unwrap() > 0);
    });
    drop(executor);
}

#[test]
fn memory_and_requests_in_flight_stay_within_their_limits() {
    for seed in 0..6 {
        let limits = FrontEndLimits {
            requests_per_connection_max: 8,
            requests_max: 12,
            payload_bytes_max: 1 << 20,
            ..FrontEndLimits::default()
        };
        // 2 MiB of memory for three clients that each want 8 MiB at a time.
        let b = bench_with(seed, &["data"], 2 << 20, limits);
        *lock(&b.disk.latency) = Duration::from_millis(1);
        let (front, clock) = (b.front.clone(), b.w.clock.clone());
        let mut clients = Vec::new();
        for client in 0..3_u64 {
            let net = b.w.net.clone();
            clients.push(async move {
                let mut raw = Raw::connect(net).await;
                raw.go("data", false, &[]).await;
                let base = client * (2 << 20);
                for i in 0..16_u64 {
                    raw.write(i, base + i * 131_072, &pattern(131_072, (client * 16 + i) as u8), NONE).await;
                }
                for i in 0..16_u64 {
                    let (errno, cookie) = raw.simple().await;
                    assert_eq!((errno, cookie < 16), (0, true), "{i}");
                }
                for i in 0..16_u64 {
                    raw.request(Command::Read, NONE, i, base + i * 131_072, 131_072).await;
                }
                for _ in 0..16 {
                    let (errno, cookie) = raw.simple().await;
                    assert_eq!(errno, 0);
                    assert!(raw.take(131_072).await == pattern(131_072, (client * 16 + cookie) as u8));
                }
            });
        }
        b.w.executor.block_on(async move {
            let all = futures_util::future::join_all(clients);
            let late = clock.sleep(Duration::from_secs(60));
            if let futures_util::future::Either::Right(_) = futures_util::future::select(Box::pin(all), late).await {
                panic!("stuck: {:?}", front.stats());
            }
        });
        assert_eq!(b.arena.free_bytes(), b.arena.size_bytes(), "all memory is back");
    }
}

#[test]
fn trim_zeroes_cache_and_their_flags() {
    let b = bench(14);
    let net = b.w.net.clone();
    let disk = b.disk.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.go("data", true, &[]).await;
        raw.write(1, 0, &[1; 65536], CommandFlags::FUA).await;
        assert_eq!(raw.simple().await, (0, 1));
        raw.request(Command::WriteZeroes, CommandFlags::FUA.with(CommandFlags::NO_HOLE), 2, 100, 5000).await;
        assert_eq!(raw.simple().await, (0, 2));
        let durable = disk.durable();
        assert!(durable[100..5100].iter().all(|b| *b == 0) && durable[99] == 1 && durable[5100] == 1);
        raw.request(Command::Trim, CommandFlags::FUA, 3, 8192, 8192).await;
        assert_eq!(raw.simple().await, (0, 3));
        raw.request(Command::Cache, NONE, 4, 0, 1 << 20).await;
        assert_eq!(raw.simple().await, (0, 4));
        raw.request(Command::Cache, NONE, 5, 0, u32::MAX).await;
        assert_eq!(raw.chunk().await.3[..4], [0, 0, 0, 22]);
        // A fast zero that would be slow is refused.
        lock(&disk.geometry).fast_zeroes = false;
        raw.request(Command::WriteZeroes, CommandFlags::FAST_ZERO, 6, 0, 4096).await;
        assert_eq!(raw.chunk().await.3[..4], [0, 0, 0, 95]);
        disk.fail_writes.store(true, Ordering::SeqCst);
        raw.write(7, 0, &[1; 512], NONE).await;
        assert_eq!(raw.chunk().await.3[..4], [0, 0, 0, 5]);
    });
}

#[test]
fn stop_finishes_what_is_under_way_and_closes() {
    for seed in 0..10 {
        let b = bench(seed);
        *lock(&b.disk.latency) = Duration::from_millis(20);
        let (net, front) = (b.w.net.clone(), b.front.clone());
        let clock = b.w.clock.clone();
        b.w.executor.block_on(async move {
            let mut raw = Raw::connect(net.clone()).await;
            raw.go("data", false, &[]).await;
            let mut shaking = Raw::connect(net.clone()).await;
            for i in 0..5 {
                raw.write(i, i * 4096, &[6; 4096], NONE).await;
            }
            // Long enough for all to be received, not for any to be done.
            clock.sleep(Duration::from_millis(10)).await;
            let stopping = front.stop();
            let replies = async {
                for _ in 0..5 {
                    assert_eq!(raw.simple().await.0, 0);
                }
                assert!(raw.ended().await);
                assert!(shaking.ended().await);
            };
            futures_util::future::join(stopping, replies).await;
            assert_eq!(front.stats().connections_open, 0);
            assert!(net.connect(&unix("nbd")).await.is_err(), "nobody listens any more");
        });
    }
}

#[test]
fn a_flush_covers_writes_answered_on_another_connection() {
    let b = bench(15);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut one = Raw::connect(net.clone()).await;
        let mut two = Raw::connect(net).await;
        one.go("data", false, &[]).await;
        two.go("data@SPOT", false, &[]).await;
        one.write(1, 4096, &[3; 4096], NONE).await;
        assert_eq!(one.simple().await, (0, 1));
        two.request(Command::Flush, NONE, 2, 0, 0).await;
        assert_eq!(two.simple().await, (0, 2));
    });
    b.disk.crash();
    assert_eq!(b.disk.content()[4096..8192], [3; 4096]);
    assert_eq!(b.cell.grid_disks().len(), 1);
}

#[test]
fn replies_that_are_ready_together_go_in_one_send() {
    let b = bench(16);
    *lock(&b.disk.latency) = Duration::from_millis(1);
    let net = b.w.net.clone();
    b.w.executor.block_on(async move {
        let mut raw = Raw::connect(net).await;
        raw.go("data", true, &[]).await;
        let mut bytes = Vec::new();
        for i in 0..32_u64 {
            let request = Request { flags: NONE, command: Command::Read, cookie: Cookie(i), offset: i * 512, len: 512 };
            bytes.extend_from_slice(&request.encode());
        }
        raw.send(&bytes).await;
        for _ in 0..32 {
            assert_eq!(raw.chunk().await.1, 1);
        }
    });
    let stats = b.front.stats();
    assert_eq!(stats.replies, 32);
    assert!(stats.batches <= 8, "{} sends for 32 replies", stats.batches);
}
