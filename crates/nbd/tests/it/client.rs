//! The client against the front end, and against servers that break the rules.

use crate::world::*;
use device::sync::lock;
use device::*;
use nbd::codec::*;
use nbd::{Client, ClientError, ClientOptions, FrontEnd, FrontEndLimits};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SIZE: usize = 4 << 20;

fn serve(w: &TestWorld, disk: &Arc<MemoryDisk>, stamp: u128) -> FrontEnd {
    let cell = make_cell(w, vec![grid_disk("data", disk)], stamp);
    let front = FrontEnd::new(cell, w.world.clone(), Arena::new(16 << 20), FrontEndLimits::default());
    let net = w.net.clone();
    let listener = w.executor.block_on(async move { net.listen(&unix("nbd")).await.unwrap() });
    front.serve(listener);
    front
}

fn bufs(len: usize) -> Bufs {
    Buf::zeroed(len).into()
}

fn shared(bytes: &[u8]) -> SharedBufs {
    SharedBuf::from(bytes.to_vec()).into()
}

#[test]
fn every_verb_does_what_it_says() {
    for structured in [true, false] {
        let w = world(3);
        let disk = MemoryDisk::new(SIZE, w.clock.clone());
        let front = serve(&w, &disk, 77);
        let (world, disk2) = (w.world.clone(), disk.clone());
        w.executor.block_on(async move {
            let contexts = vec!["base:allocation".to_owned(), "flashcell:tier".to_owned(), "x:y".to_owned()];
            let options = ClientOptions { structured, contexts, ..ClientOptions::default() };
            let client = Client::connect(&world, &unix("nbd"), "", &options).await.unwrap();
            let export = client.export().clone();
            assert_eq!(export.size_bytes, SIZE as u64);
            assert_eq!(
                (export.block_bytes_min, export.block_bytes_preferred, export.block_bytes_max),
                (1, 4096, 8 << 20)
            );
            assert_eq!(export.instance, structured.then_some(77));
            client.write(4097, shared(&[7; 10_000]), false).await.unwrap();
            let (result, got) = client.read(4000, bufs(11_000)).await;
            result.unwrap();
            assert_eq!(got.to_vec(0..11_000), [&[0; 97][..], &[7; 10_000], &[0; 903]].concat());
            client.write(0, shared(&[9; 4096]), true).await.unwrap();
            assert_eq!(disk2.durable()[..4096], [9; 4096]);
            client.write_zeroes(0, 4096, true, false, true).await.unwrap();
            assert_eq!(disk2.durable()[..4096], [0; 4096]);
            client.trim(0, 8192, false).await.unwrap();
            client.cache(0, 1 << 20).await.unwrap();
            client.flush().await.unwrap();
            assert!(disk2.durable() == disk2.content());
            let status = client.block_status(0, 1 << 20, false).await;
            if structured {
                let status = status.unwrap();
                let names: Vec<&str> = status.iter().map(|s| s.context.as_str()).collect();
                assert_eq!(names, ["base:allocation", "flashcell:tier"]);
                assert_eq!(status[0].extents.iter().map(|e| e.len).sum::<u32>(), 1 << 20);
                assert!(status[0].extents.len() == 3 && status[0].extents[1].flags == 0);
            } else {
                assert_eq!(status, Err(ClientError::Unsupported("meta context")));
            }
            let beyond = client.write(SIZE as u64, shared(&[1]), false).await;
            assert!(matches!(beyond, Err(ClientError::Remote { errno: Errno::NoSpc, .. })), "{beyond:?}");
            let beyond = client.read(SIZE as u64 - 1, bufs(2)).await.0;
            assert!(matches!(beyond, Err(ClientError::Remote { errno: Errno::Inval, .. })), "{beyond:?}");
            disk2.fail_reads.store(true, Ordering::SeqCst);
            let failed = client.read(0, bufs(3 << 20)).await.0;
            assert!(matches!(failed, Err(ClientError::Remote { errno: Errno::Io, .. })), "{failed:?}");
            disk2.fail_reads.store(false, Ordering::SeqCst);
            client.read(0, bufs(3 << 20)).await.0.unwrap();
            let long = client.read(0, bufs((8 << 20) + 1)).await.0;
            assert_eq!(long, Err(ClientError::TooLong { len: (8 << 20) + 1, max: 8 << 20 }));
            let other = client.clone();
            client.disconnect().await;
            assert_eq!(other.flush().await, Err(ClientError::Lost));
        });
        w.executor.settle();
        assert_eq!((front.stats().disconnects, front.stats().connections_open), (1, 0));
    }
}

#[test]
fn many_requests_at_once_agree_with_a_model() {
    for seed in 0..8 {
        let w = world(seed);
        let disk = MemoryDisk::new(SIZE, w.clock.clone());
        *lock(&disk.latency) = Duration::from_micros(100);
        let _front = serve(&w, &disk, 1);
        let world = w.world.clone();
        w.executor.block_on(async move {
            let mut prng = world.prng.fork("model");
            let options = ClientOptions { requests_max: 24, ..ClientOptions::default() };
            let client = Client::connect(&world, &unix("nbd"), "data", &options).await.unwrap();
            // 64 slots of 64 KiB; each round touches distinct slots at the same time.
            let mut model = vec![0_u8; SIZE];
            for _ in 0..12 {
                let mut work = Vec::new();
                for slot in 0..64_usize {
                    let base = slot * 65536 + prng.below(4096) as usize;
                    let len = 1 + prng.below(60_000) as usize;
                    let (verb, byte) = (prng.below(4), prng.below(256) as u8);
                    let want = model[base..base + len].to_vec();
                    match verb {
                        0 => model[base..base + len].fill(byte),
                        1 => model[base..base + len].fill(0),
                        _ => {}
                    }
                    let client = client.clone();
                    work.push(async move {
                        match verb {
                            0 => client.write(base as u64, shared(&vec![byte; len]), false).await.unwrap(),
                            1 => client.write_zeroes(base as u64, len as u32, false, false, false).await.unwrap(),
                            _ => {
                                let (result, got) = client.read(base as u64, bufs(len)).await;
                                result.unwrap();
                                assert!(got.to_vec(0..len) == want, "slot {slot}");
                            }
                        }
                    });
                }
                futures_util::future::join_all(work).await;
            }
            let (result, got) = client.read(0, bufs(SIZE)).await;
            result.unwrap();
            assert!(got.to_vec(0..SIZE) == model);
        });
    }
}

#[test]
fn dropping_every_handle_says_goodbye() {
    let w = world(4);
    let disk = MemoryDisk::new(SIZE, w.clock.clone());
    let front = serve(&w, &disk, 1);
    let world = w.world.clone();
    w.executor.block_on(async move {
        drop(Client::connect(&world, &unix("nbd"), "data", &ClientOptions::default()).await.unwrap());
    });
    w.executor.settle();
    assert_eq!((front.stats().disconnects, front.stats().connections_open), (1, 0));
}

#[test]
fn what_cannot_be_connected_is_told() {
    let w = world(5);
    let disk = MemoryDisk::new(SIZE, w.clock.clone());
    let _front = serve(&w, &disk, 1);
    let (world, net) = (w.world.clone(), w.net.clone());
    w.executor.block_on(async move {
        let options = ClientOptions::default();
        let nobody = Client::connect(&world, &unix("nobody"), "data", &options).await.err();
        assert_eq!(nobody, Some(ClientError::Net(NetError::Refused(unix("nobody")))));
        let Some(ClientError::Refused { export, message }) =
            Client::connect(&world, &unix("nbd"), "nope", &options).await.err()
        else {
            panic!("refused")
        };
        assert_eq!(
            (export.as_str(), message.as_str()),
            ("nope", "no grid disk nope for this client; hint: there is data")
        );
        // A listener that never says anything.
        let _mute = net.listen(&unix("mute")).await.unwrap();
        assert_eq!(Client::connect(&world, &unix("mute"), "x", &options).await.err(), Some(ClientError::TimedOut));
    });
}

/// A server that sends `script` bytes after each so many bytes received.
async fn scripted(net: Arc<TestNet>, script: Vec<(usize, Vec<u8>)>) {
    let listener = net.listen(&unix("script")).await.unwrap();
    let conn = listener.accept().await.unwrap();
    for (bytes_before, reply) in script {
        let mut left = bytes_before;
        while left > 0 {
            let (count, _) = conn.receive(Buf::zeroed(left)).await;
            left -= count.unwrap();
        }
        let _ = conn.send(SharedBuf::from(reply).into()).await;
    }
    // Until the client leaves.
    while conn.receive(Buf::zeroed(4096)).await.0.unwrap_or(0) > 0 {}
}

fn option_reply(option: u32, reply: OptionReply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.encode(option, &mut out);
    out
}

/// The handshake of an old server: options are all unknown to it but EXPORT_NAME. Size 1 MiB, flags READ_ONLY.
fn old_server() -> Vec<(usize, Vec<u8>)> {
    let unsup = |option| option_reply(option, OptionReply::error(RepError::Unsup, ""));
    let mut export = Vec::new();
    let flags = TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::READ_ONLY);
    encode_export_name_reply(&mut export, 1 << 20, flags, true);
    vec![
        (0, encode_greeting(HandshakeFlags::FIXED_NEWSTYLE).to_vec()),
        (4 + 16, unsup(opt::STRUCTURED_REPLY)),
        (16 + 4 + 1 + 2 + 2, unsup(opt::GO)),
        (16 + 1, export),
    ]
}

#[test]
fn an_old_server_is_good_enough() {
    let w = world(6);
    let mut script = old_server();
    let mut reply = Vec::new();
    encode_simple(&mut reply, Cookie(1), None);
    reply.extend_from_slice(&[0xab; 512]);
    script.push((Request::BYTES, reply));
    let (world, net) = (w.world.clone(), w.net.clone());
    w.executor.block_on(async move {
        world.spawn.spawn(Box::pin(scripted(net, script)));
        device::spawn::yield_now().await;
        world.clock.sleep(Duration::from_millis(1)).await;
        let client = Client::connect(&world, &unix("script"), "x", &ClientOptions::default()).await.unwrap();
        let export = client.export();
        assert_eq!((export.size_bytes, export.structured, export.instance), (1 << 20, false, None));
        assert_eq!((export.block_bytes_min, export.block_bytes_max), (1, 32 << 20));
        let (result, got) = client.read(0, bufs(512)).await;
        result.unwrap();
        assert_eq!(got.to_vec(0..512), [0xab; 512]);
        assert_eq!(client.flush().await, Err(ClientError::Unsupported("FLUSH")));
        assert_eq!(client.write(0, shared(&[1]), true).await, Err(ClientError::Unsupported("FUA")));
    });
}

#[test]
fn replies_that_break_the_rules_end_the_connection() {
    let mut unknown = Vec::new();
    encode_simple(&mut unknown, Cookie(99), None);
    let mut chunk = Vec::new();
    encode_none(&mut chunk, Cookie(1));
    let cases = [
        (unknown, CodecError::UnknownCookie(99)),
        (chunk, CodecError::ReplyMagic(MAGIC_STRUCTURED_REPLY)),
        (b"HTTP/1.1 200 OK\r\n".to_vec(), CodecError::ReplyMagic(0x4854_5450)),
    ];
    for (reply, want) in cases {
        let w = world(7);
        let mut script = old_server();
        script.push((Request::BYTES, reply));
        let (world, net) = (w.world.clone(), w.net.clone());
        w.executor.block_on(async move {
            world.spawn.spawn(Box::pin(scripted(net, script)));
            world.clock.sleep(Duration::from_millis(1)).await;
            let client = Client::connect(&world, &unix("script"), "x", &ClientOptions::default()).await.unwrap();
            let (result, back) = client.read(0, bufs(512)).await;
            assert_eq!((result, back.len_bytes()), (Err(ClientError::Protocol(want)), 512));
            assert!(client.is_lost());
            assert_eq!(client.read(0, bufs(512)).await.0, Err(ClientError::Lost));
        });
    }
}
