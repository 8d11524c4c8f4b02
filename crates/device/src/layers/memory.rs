//! A device in RAM: for tests and for measuring the engine without a medium.
//!
//! Sparse: what was never written, or was zeroed, takes no memory. Completes every request before `submit` returns.
//! Never bounded by anything but its size, so not for production.

use crate::buf::Bufs;
use crate::io::{Class, Completed, Completion, DeviceExtent, FailKind, Geometry, Io, Op, Outcome};
use crate::sync::lock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The unit of allocation.
const CHUNK_BYTES: usize = 64 << 10;
/// Locks: enough that threads seldom meet.
const SHARDS: usize = 64;

/// Fibonacci hashing of a chunk's number: the same on every machine and in every run.
#[derive(Default)]
struct ChunkHasher(u64);

impl Hasher for ChunkHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

type Chunk = Box<[u8]>;
type Chunks<T> = HashMap<u64, T, BuildHasherDefault<ChunkHasher>>;

#[derive(Default)]
struct Shard {
    chunks: Chunks<Chunk>,
    /// What chunks changed since the last flush would be after a power cut; `None` inside: zeroes.
    undo: Chunks<Option<Chunk>>,
}

/// See the module's head.
pub struct Memory {
    geometry: Geometry,
    shards: Vec<Mutex<Shard>>,
    /// Keep what a power cut would undo.
    forgets: bool,
    gone: AtomicBool,
}

impl Memory {
    /// A device of `size_bytes` zeroes with 512-byte logical units and 4 KiB pages, without a volatile cache.
    #[must_use]
    pub fn new(size_bytes: u64) -> Arc<Memory> {
        Memory::with_geometry(
            Geometry {
                size_bytes,
                logical_bytes: 512,
                page_bytes: 4096,
                rotational: false,
                volatile_cache: false,
                discard_bytes: 4096,
                fast_zeroes: true,
                transfer_bytes_max: 4 << 20,
                class: Class::Durable,
            },
            false,
        )
    }

    /// A device with that geometry. With `forgets`, [`Memory::power_cut`] undoes what was not flushed; its geometry
    /// then has a volatile cache.
    #[must_use]
    pub fn with_geometry(geometry: Geometry, forgets: bool) -> Arc<Memory> {
        let geometry = Geometry { volatile_cache: geometry.volatile_cache || forgets, ..geometry };
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(Memory { geometry, shards, forgets, gone: AtomicBool::new(false) })
    }

    /// Undo every write, zero and discard that no flush covered. Without `forgets` nothing is lost.
    pub fn power_cut(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let Shard { chunks, undo } = &mut *shard;
            for (index, before) in undo.drain() {
                match before {
                    Some(chunk) => chunks.insert(index, chunk),
                    None => chunks.remove(&index),
                };
            }
        }
    }

    /// From now on (`true`) every request fails with [`FailKind::Gone`], or (`false`) the device is back.
    pub fn set_gone(&self, gone: bool) {
        self.gone.store(gone, Ordering::SeqCst);
    }

    /// Bytes of RAM in use for content.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.shards.iter().map(|s| lock(s).chunks.len() as u64).sum::<u64>() * CHUNK_BYTES as u64
    }

    fn shard(&self, chunk: u64) -> &Mutex<Shard> {
        &self.shards[(chunk % SHARDS as u64) as usize]
    }

    fn read(&self, offset: u64, bufs: &mut Bufs) {
        let mut at = offset;
        for piece in bufs.pieces_mut() {
            let mut rest = &mut piece[..];
            while !rest.is_empty() {
                let (chunk, start, len) = split(at, rest.len());
                let (part, left) = rest.split_at_mut(len);
                match lock(self.shard(chunk)).chunks.get(&chunk) {
                    Some(bytes) => part.copy_from_slice(&bytes[start..start + len]),
                    None => part.fill(0),
                }
                at += len as u64;
                rest = left;
            }
        }
    }

    /// Put `bytes` (or zeroes) at `offset`; `durable` also into what a power cut leaves.
    fn write(&self, offset: u64, len: usize, bytes: Option<&[u8]>, durable: bool) {
        let mut done = 0;
        while done < len {
            let (index, start, part) = split(offset + done as u64, len - done);
            let mut shard = lock(self.shard(index));
            let Shard { chunks, undo } = &mut *shard;
            if self.forgets && !durable {
                undo.entry(index).or_insert_with(|| chunks.get(&index).cloned());
            }
            let from = bytes.map(|b| &b[done..done + part]);
            put(chunks, index, start, part, from);
            if self.forgets
                && durable
                && let Some(before) = undo.get_mut(&index)
            {
                let before = before.get_or_insert_with(|| vec![0; CHUNK_BYTES].into());
                match from {
                    Some(from) => before[start..start + part].copy_from_slice(from),
                    None => before[start..start + part].fill(0),
                }
            }
            done += part;
        }
    }

    fn zero(&self, offset: u64, len: u64, durable: bool) {
        // Chunk by chunk, so that the length of a piece fits a usize on every machine.
        let mut done = 0;
        while done < len {
            let part = (len - done).min(CHUNK_BYTES as u64);
            self.write(offset + done, part as usize, None, durable);
            done += part;
        }
    }

    fn status(&self, offset: u64, len: u64) -> Vec<DeviceExtent> {
        let mut extents: Vec<DeviceExtent> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (chunk, start, _) = split(at, CHUNK_BYTES);
            let part = (CHUNK_BYTES as u64 - start as u64).min(end - at);
            let hole = !lock(self.shard(chunk)).chunks.contains_key(&chunk);
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += part,
                _ => extents.push(DeviceExtent { len: part, hole }),
            }
            at += part;
        }
        extents
    }

    fn refusal(&self, op: &Op) -> Option<FailKind> {
        let (offset, len) = op.range();
        let unit = u64::from(self.geometry.logical_bytes);
        let fits = offset.is_multiple_of(unit)
            && len.is_multiple_of(unit)
            && offset.checked_add(len).is_some_and(|end| end <= self.geometry.size_bytes);
        if self.gone.load(Ordering::SeqCst) { Some(FailKind::Gone) } else { (!fits).then_some(FailKind::Invalid) }
    }
}

/// The chunk of a byte, where in it, and how many of `len` bytes lie in it.
fn split(offset: u64, len: usize) -> (u64, usize, usize) {
    let start = (offset % CHUNK_BYTES as u64) as usize;
    (offset / CHUNK_BYTES as u64, start, len.min(CHUNK_BYTES - start))
}

fn put(chunks: &mut Chunks<Chunk>, index: u64, start: usize, len: usize, from: Option<&[u8]>) {
    match from {
        Some(from) => {
            let chunk = chunks.entry(index).or_insert_with(|| vec![0; CHUNK_BYTES].into());
            chunk[start..start + len].copy_from_slice(from);
        }
        None if len == CHUNK_BYTES => drop(chunks.remove(&index)),
        None => {
            if let Some(chunk) = chunks.get_mut(&index) {
                chunk[start..start + len].fill(0);
            }
        }
    }
}

impl Io for Memory {
    fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }

    fn submit(&self, op: Op) -> Completion {
        if let Some(kind) = self.refusal(&op) {
            return Completion::failed(kind, op);
        }
        let done = |bufs, extents| Completion::ready(Completed { outcome: Outcome::Done, bufs, extents });
        match op {
            Op::Read { offset, mut bufs } => {
                self.read(offset, &mut bufs);
                return done(bufs, Vec::new());
            }
            Op::Write { offset, data, fua } => {
                let mut at = offset;
                for piece in data.pieces() {
                    self.write(at, piece.len(), Some(piece), fua);
                    at += piece.len() as u64;
                }
            }
            Op::WriteZeroes { offset, len, fua, .. } => self.zero(offset, len, fua),
            Op::Discard { offset, len } => self.zero(offset, len, false),
            Op::Flush => {
                for shard in &self.shards {
                    lock(shard).undo.clear();
                }
            }
            Op::Status { offset, len } => return done(Bufs::new(), self.status(offset, len)),
        }
        done(Bufs::new(), Vec::new())
    }
}
