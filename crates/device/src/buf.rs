//! Buffers: an arena of aligned memory with a fixed size, unique and shared handles to ranges of it, and ropes of them.
//!
//! Memory is reserved before it is used and never grows (DESIGN I8): [`Arena::alloc`] makes the caller wait, first come
//! first served. A request the arena has room for is always satisfied, if need be by several pieces, so fragmentation
//! cannot starve anybody. A [`Buf`] is the only handle to its bytes; a [`SharedBuf`] is read-only and may be cloned.

mod arena;
mod rope;

pub use arena::{Alloc, Arena, PAGE_BYTES, PIECE_BYTES_MAX};
pub use rope::{Bufs, SharedBufs, View};

use arena::Block;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// The only handle to a range of memory. Splitting gives two handles to disjoint ranges.
pub struct Buf {
    block: Arc<Block>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Buf` is the only handle to its range, like a `Box<[u8]>`.
unsafe impl Send for Buf {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buf {}

impl Buf {
    /// Zeroed memory from the heap, aligned to a page: for start-up, labels and tests, not for the request path.
    #[must_use]
    pub fn zeroed(len: usize) -> Buf {
        Buf::of_block(Arc::new(Block::heap(len)), len)
    }

    /// Zeroed memory from the heap holding `bytes`, padded with zeroes to a multiple of `unit`.
    #[must_use]
    pub fn padded(bytes: &[u8], unit: usize) -> Buf {
        let mut buf = Buf::zeroed(bytes.len().next_multiple_of(unit));
        buf[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    fn of_block(block: Arc<Block>, len: usize) -> Buf {
        assert!(len <= block.len(), "a buffer lies within its block");
        Buf { start: block.start(), len, block }
    }

    /// Keep the first `at` bytes, return the rest.
    ///
    /// # Panics
    /// When `at` is beyond the end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Buf {
        assert!(at <= self.len, "split within the buffer");
        // SAFETY: `at <= len`, so the pointer stays within the block or one past its end.
        let start = unsafe { self.start.add(at) };
        let rest = Buf { block: self.block.clone(), start, len: self.len - at };
        self.len = at;
        rest
    }

    /// Return the first `at` bytes, keep the rest.
    ///
    /// # Panics
    /// When `at` is beyond the end.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Buf {
        let rest = self.split_off(at);
        std::mem::replace(self, rest)
    }

    /// Give up the bytes from `len` on; the memory is held until the whole block is free.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Make it shared and read-only.
    #[must_use]
    pub fn freeze(self) -> SharedBuf {
        SharedBuf { block: self.block, start: self.start, len: self.len }
    }

    /// The arena it comes from, if any: a driver may have registered that memory with the kernel.
    #[must_use]
    pub fn arena_id(&self) -> Option<u64> {
        self.block.arena_id()
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the block, which lives as long as `self`; only this handle writes it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} B)", self.len)
    }
}

/// A read-only handle to a range of memory; clones share it.
#[derive(Clone)]
pub struct SharedBuf {
    block: Arc<Block>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: read-only.
unsafe impl Send for SharedBuf {}
// SAFETY: read-only.
unsafe impl Sync for SharedBuf {}

impl SharedBuf {
    /// A sub-range.
    ///
    /// # Panics
    /// When `range` is not within the buffer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> SharedBuf {
        assert!(range.start <= range.end && range.end <= self.len, "slice within the buffer");
        // SAFETY: `range.start <= len`.
        let start = unsafe { self.start.add(range.start) };
        SharedBuf { block: self.block.clone(), start, len: range.end - range.start }
    }

    /// See [`Buf::arena_id`].
    #[must_use]
    pub fn arena_id(&self) -> Option<u64> {
        self.block.arena_id()
    }
}

impl From<Vec<u8>> for SharedBuf {
    /// Takes over the allocation: for headers on the network; not aligned, so not for devices.
    fn from(bytes: Vec<u8>) -> SharedBuf {
        let len = bytes.len();
        let block = Arc::new(Block::of_vec(bytes));
        SharedBuf { start: block.start(), len, block }
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the block; nobody writes a frozen range.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBuf({} B)", self.len)
    }
}
