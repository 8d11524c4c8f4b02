//! A front end on a real cell over memory disks, and a client that knows bytes only.

use crate::world::*;
use device::*;
use nbd::codec::*;
use nbd::{FrontEnd, FrontEndLimits};
use std::sync::Arc;

pub(crate) const SIZE: usize = 8 << 20;
pub(crate) const STAMP: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;

pub(crate) struct Bench {
    pub(crate) w: TestWorld,
    pub(crate) disk: Arc<MemoryDisk>,
    pub(crate) cell: Arc<cell::Cell>,
    pub(crate) front: Arc<FrontEnd>,
    pub(crate) arena: Arena,
}

pub(crate) fn bench_with(seed: u64, names: &[&str], arena_bytes: usize, limits: FrontEndLimits) -> Bench {
    bench_of(seed, names, SIZE, arena_bytes, limits)
}

/// A bench whose grid disks have `size` bytes.
pub(crate) fn bench_of(seed: u64, names: &[&str], size: usize, arena_bytes: usize, limits: FrontEndLimits) -> Bench {
    let w = world(seed);
    let disk = MemoryDisk::new(size, w.clock.clone());
    let disks = names.iter().map(|n| grid_disk(n, &disk)).collect();
    let cell = make_cell(&w, disks, STAMP);
    let arena = Arena::new(arena_bytes);
    let front = Arc::new(FrontEnd::new(cell.clone(), w.world.clone(), arena.clone(), limits));
    let net = w.net.clone();
    let listener = w.executor.block_on(async move { net.listen(&unix("nbd")).await.unwrap() });
    front.serve(listener);
    Bench { w, disk, cell, front, arena }
}

pub(crate) fn bench(seed: u64) -> Bench {
    bench_with(seed, &["data"], 64 << 20, FrontEndLimits::default())
}

/// A client that knows bytes only.
pub(crate) struct Raw(pub(crate) Arc<dyn Conn>, pub(crate) Vec<u8>);

impl Raw {
    pub(crate) async fn connect(net: Arc<TestNet>) -> Raw {
        let mut raw = Raw(net.connect(&unix("nbd")).await.unwrap(), Vec::new());
        let greeting = raw.take(18).await;
        assert_eq!(greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        raw
    }
    pub(crate) async fn send(&self, bytes: &[u8]) {
        self.0.send(SharedBuf::from(bytes.to_vec()).into()).await.unwrap();
    }
    pub(crate) async fn fill(&mut self) -> usize {
        let (result, buf) = self.0.receive(Buf::zeroed(8192)).await;
        let count = result.unwrap_or(0);
        self.1.extend_from_slice(&buf[..count]);
        count
    }
    pub(crate) async fn take(&mut self, len: usize) -> Vec<u8> {
        while self.1.len() < len {
            assert!(self.fill().await > 0, "stream ended, {} of {len} bytes there", self.1.len());
        }
        self.1.drain(..len).collect()
    }
    pub(crate) async fn ended(&mut self) -> bool {
        while self.fill().await > 0 {}
        self.1.is_empty()
    }
    pub(crate) async fn option(&self, option: ClientOption) {
        let mut bytes = Vec::new();
        option.encode(&mut bytes);
        self.send(&bytes).await;
    }
    pub(crate) async fn option_reply(&mut self) -> OptionReply {
        let head: [u8; 20] = self.take(20).await.try_into().unwrap();
        let header = OptionReplyHeader::decode(&head).unwrap();
        let data = self.take(header.len as usize).await;
        OptionReply::decode(header.kind, &data).unwrap()
    }
    /// Replies up to and with the ACK or error.
    pub(crate) async fn option_replies(&mut self) -> Vec<OptionReply> {
        let mut replies = Vec::new();
        loop {
            replies.push(self.option_reply().await);
            if matches!(replies.last(), Some(OptionReply::Ack | OptionReply::Error { .. })) {
                return replies;
            }
        }
    }
    pub(crate) async fn go(&mut self, name: &str, structured: bool, queries: &[&str]) -> Vec<OptionReply> {
        self.send(&[0, 0, 0, 3]).await;
        if structured {
            self.option(ClientOption::StructuredReply).await;
            assert_eq!(self.option_reply().await, OptionReply::Ack);
        }
        if !queries.is_empty() {
            let queries = queries.iter().map(|q| (*q).to_owned()).collect();
            self.option(ClientOption::SetMetaContext { name: name.into(), queries }).await;
            self.option_replies().await;
        }
        self.option(ClientOption::Go { name: name.into(), requests: vec![info::BLOCK_SIZE] }).await;
        self.option_replies().await
    }
    pub(crate) async fn request(&self, command: Command, flags: CommandFlags, cookie: u64, offset: u64, len: u32) {
        self.send(&Request { flags, command, cookie: Cookie(cookie), offset, len }.encode()).await;
    }
    pub(crate) async fn write(&self, cookie: u64, offset: u64, data: &[u8], flags: CommandFlags) {
        let request =
            Request { flags, command: Command::Write, cookie: Cookie(cookie), offset, len: data.len() as u32 };
        let mut bytes = request.encode().to_vec();
        bytes.extend_from_slice(data);
        self.send(&bytes).await;
    }
    /// A simple reply: its errno and cookie.
    pub(crate) async fn simple(&mut self) -> (u32, u64) {
        let bytes = self.take(16).await;
        assert_eq!(bytes[..4], MAGIC_SIMPLE_REPLY.to_be_bytes(), "a simple reply is due");
        (u32::from_be_bytes(bytes[4..8].try_into().unwrap()), u64::from_be_bytes(bytes[8..].try_into().unwrap()))
    }
    /// Where replies are simple.
    pub(crate) async fn write_and_read_back(&mut self, cookie: u64, offset: u64, len: usize) {
        let data = pattern(len, cookie as u8);
        self.write(cookie, offset, &data, NONE).await;
        assert_eq!(self.simple().await, (0, cookie));
        self.request(Command::Read, NONE, cookie + 100, offset, len as u32).await;
        assert_eq!(self.simple().await, (0, cookie + 100));
        assert!(self.take(len).await == data, "write {cookie} reads back");
    }
    /// A chunk: done, type, cookie, payload.
    pub(crate) async fn chunk(&mut self) -> (bool, u16, u64, Vec<u8>) {
        let bytes = self.take(20).await;
        assert_eq!(bytes[..4], MAGIC_STRUCTURED_REPLY.to_be_bytes(), "a chunk is due");
        let len = u32::from_be_bytes(bytes[16..].try_into().unwrap());
        let payload = self.take(len as usize).await;
        let kind = u16::from_be_bytes(bytes[6..8].try_into().unwrap());
        (bytes[5] & 1 != 0, kind, u64::from_be_bytes(bytes[8..16].try_into().unwrap()), payload)
    }
}

pub(crate) const NONE: CommandFlags = CommandFlags::NONE;

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) | 1).collect()
}
