//! The arena: one region of memory under a buddy allocator, with a fair queue of those who wait for room.
//!
//! Never allocates beyond its size, never moves a block.

use super::{Buf, Bufs};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The unit of allocation: the page that O_DIRECT and every true page divide into.
pub const PAGE_BYTES: usize = 4096;
/// Orders 0 (4 KiB) to 9 (2 MiB, a segment and a huge page).
const ORDERS: usize = 10;
/// The largest single piece.
pub const PIECE_BYTES_MAX: usize = PAGE_BYTES << (ORDERS - 1);
const NIL: u32 = u32::MAX;
const USED: u8 = 0xff;

/// Memory that one or more handles share; freed with the last of them.
pub(super) enum Block {
    Arena { arena: Arc<Shared>, page: u32, order: u8 },
    Heap { start: NonNull<u8>, layout: Layout },
    Vec(Vec<u8>),
}

// SAFETY: a block only owns memory; access goes through `Buf` and `SharedBuf`.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn heap(len: usize) -> Block {
        let Ok(layout) = Layout::from_size_align(len.max(1), PAGE_BYTES) else {
            panic!("a buffer of {len} bytes exceeds the address space");
        };
        // SAFETY: the layout has a non-zero size.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Block::Heap { start, layout }
    }

    pub(super) fn of_vec(bytes: Vec<u8>) -> Block {
        Block::Vec(bytes)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Block::Arena { order, .. } => PAGE_BYTES << order,
            Block::Heap { layout, .. } => layout.size(),
            Block::Vec(bytes) => bytes.len(),
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        match self {
            // SAFETY: every page index lies within the region.
            Block::Arena { arena, page, .. } => unsafe { arena.region.add(*page as usize * PAGE_BYTES) },
            Block::Heap { start, .. } => *start,
            // Only ever read through: a frozen vector is not written.
            Block::Vec(bytes) => NonNull::from(bytes.as_slice()).cast(),
        }
    }

    pub(super) fn arena_id(&self) -> Option<u64> {
        match self {
            Block::Arena { arena, .. } => Some(arena.id),
            _ => None,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self {
            Block::Arena { arena, page, order } => arena.free(*page, *order),
            // SAFETY: allocated with this layout in `heap`.
            Block::Heap { start, layout } => unsafe { dealloc(start.as_ptr(), *layout) },
            Block::Vec(_) => {}
        }
    }
}

/// A fixed amount of aligned memory, handed out in pieces. Clones share it.
#[derive(Clone)]
pub struct Arena(Arc<Shared>);

pub(super) struct Shared {
    id: u64,
    region: NonNull<u8>,
    layout: Layout,
    state: Mutex<State>,
}

// SAFETY: the region is plain memory; the allocator state is behind the mutex.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

struct State {
    /// Heads of the free lists.
    heads: [u32; ORDERS],
    next: Vec<u32>,
    prev: Vec<u32>,
    /// The order of the free block that starts at a page, or `USED`.
    tags: Vec<u8>,
    free_pages: usize,
    waiters: VecDeque<Arc<Waiter>>,
}

struct Waiter {
    len: usize,
    slot: Mutex<WaitState>,
}

enum WaitState {
    Waiting(Option<Waker>),
    Granted(Bufs),
    Over,
}

impl Arena {
    /// An arena of `size_bytes`, rounded up to the largest piece.
    #[must_use]
    pub fn new(size_bytes: usize) -> Arena {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let size = size_bytes.max(1).next_multiple_of(PIECE_BYTES_MAX);
        let Ok(layout) = Layout::from_size_align(size, PIECE_BYTES_MAX) else {
            panic!("an arena of {size} bytes exceeds the address space");
        };
        // SAFETY: the layout has a non-zero size.
        let Some(region) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let pages = size / PAGE_BYTES;
        assert!(pages < NIL as usize, "an arena's pages are counted in 32 bits");
        let mut state = State {
            heads: [NIL; ORDERS],
            next: vec![NIL; pages],
            prev: vec![NIL; pages],
            tags: vec![USED; pages],
            free_pages: pages,
            waiters: VecDeque::new(),
        };
        let step = PIECE_BYTES_MAX / PAGE_BYTES;
        for page in (0..pages).step_by(step).rev() {
            state.push(page as u32, ORDERS - 1);
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arena(Arc::new(Shared { id, region, layout, state: Mutex::new(state) }))
    }

    /// Its identity, as in [`Buf::arena_id`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Start and length of its memory, for registration with the kernel.
    #[must_use]
    pub fn region(&self) -> (*mut u8, usize) {
        (self.0.region.as_ptr(), self.0.layout.size())
    }

    /// All its bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.0.layout.size()
    }

    /// Bytes not handed out.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.0.lock().free_pages * PAGE_BYTES
    }

    /// `len` bytes (content undefined) now, or none when there is no room or somebody waits already.
    #[must_use]
    pub fn try_alloc(&self, len: usize) -> Option<Bufs> {
        let mut state = self.0.lock();
        if !state.waiters.is_empty() {
            return None;
        }
        self.0.take(&mut state, len)
    }

    /// `len` bytes (content undefined), waiting for room in the order of the calls.
    ///
    /// # Panics
    /// When `len` is more than the whole arena: that would wait for ever.
    #[must_use]
    pub fn alloc(&self, len: usize) -> Alloc {
        assert!(len <= self.size_bytes(), "{len} bytes asked of an arena of {}", self.size_bytes());
        Alloc { arena: self.0.clone(), len, waiter: None }
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({} B)", self.size_bytes())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, state: &mut State, len: usize) -> Option<Bufs> {
        let pages = len.div_ceil(PAGE_BYTES);
        if pages > state.free_pages {
            return None;
        }
        let mut bufs = Bufs::new();
        let mut left = len;
        while left > 0 {
            let want = left.div_ceil(PAGE_BYTES);
            // The largest power of two that fits what is left, or what fragmentation leaves below that.
            let order = (want.ilog2() as usize).min(ORDERS - 1);
            let (page, order) = state.pop_at_most(order);
            let block = Arc::new(Block::Arena { arena: self.clone(), page, order: order as u8 });
            let part = left.min(PAGE_BYTES << order);
            bufs.push(Buf::of_block(block, part));
            left -= part;
        }
        Some(bufs)
    }

    fn free(self: &Arc<Self>, page: u32, order: u8) {
        let wakers = {
            let mut state = self.lock();
            state.release(page, order as usize);
            self.grant(&mut state)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Serve the queue from its front as far as there is room; whom to wake once the lock is released.
    fn grant(self: &Arc<Self>, state: &mut State) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(first) = state.waiters.front().cloned() {
            let mut slot = first.slot.lock().unwrap_or_else(PoisonError::into_inner);
            // A waiter that was dropped must not be granted anything: freeing it would need the lock held here.
            if !matches!(*slot, WaitState::Over) {
                let Some(bufs) = self.take(state, first.len) else { break };
                if let WaitState::Waiting(waker) = std::mem::replace(&mut *slot, WaitState::Granted(bufs)) {
                    wakers.extend(waker);
                }
            }
            drop(slot);
            state.waiters.pop_front();
        }
        wakers
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`; every block holds a reference, so none is left.
        unsafe { dealloc(self.region.as_ptr(), self.layout) }
    }
}

impl State {
    fn push(&mut self, page: u32, order: usize) {
        let head = self.heads[order];
        self.next[page as usize] = head;
        self.prev[page as usize] = NIL;
        if head != NIL {
            self.prev[head as usize] = page;
        }
        self.heads[order] = page;
        self.tags[page as usize] = order as u8;
    }

    fn unlink(&mut self, page: u32, order: usize) {
        let (next, prev) = (self.next[page as usize], self.prev[page as usize]);
        if prev == NIL {
            self.heads[order] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != NIL {
            self.prev[next as usize] = prev;
        }
        self.tags[page as usize] = USED;
    }

    /// A block of `order`, splitting a larger one if need be; else the largest smaller one. There is a free page.
    fn pop_at_most(&mut self, order: usize) -> (u32, usize) {
        if let Some(found) = (order..ORDERS).find(|&o| self.heads[o] != NIL) {
            let page = self.heads[found];
            self.unlink(page, found);
            for o in (order..found).rev() {
                self.push(page + (1 << o), o);
            }
            self.free_pages -= 1 << order;
            return (page, order);
        }
        let Some(found) = (0..order).rev().find(|&o| self.heads[o] != NIL) else {
            unreachable!("the caller checked that pages are free");
        };
        let page = self.heads[found];
        self.unlink(page, found);
        self.free_pages -= 1 << found;
        (page, found)
    }

    fn release(&mut self, page: u32, order: usize) {
        self.free_pages += 1 << order;
        let (mut page, mut order) = (page, order);
        while order + 1 < ORDERS {
            let buddy = page ^ (1 << order);
            if self.tags.get(buddy as usize) != Some(&(order as u8)) {
                break;
            }
            self.unlink(buddy, order);
            page = page.min(buddy);
            order += 1;
        }
        self.push(page, order);
    }
}

/// The future of [`Arena::alloc`]. Dropping it gives up the place in the queue.
pub struct Alloc {
    arena: Arc<Shared>,
    len: usize,
    waiter: Option<Arc<Waiter>>,
}

impl Future for Alloc {
    type Output = Bufs;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Bufs> {
        if let Some(waiter) = &self.waiter {
            let mut slot = waiter.slot.lock().unwrap_or_else(PoisonError::into_inner);
            return match std::mem::replace(&mut *slot, WaitState::Over) {
                WaitState::Granted(bufs) => Poll::Ready(bufs),
                WaitState::Waiting(_) => {
                    *slot = WaitState::Waiting(Some(cx.waker().clone()));
                    Poll::Pending
                }
                WaitState::Over => unreachable!("an allocation is awaited once"),
            };
        }
        let arena = self.arena.clone();
        let mut state = arena.lock();
        if state.waiters.is_empty()
            && let Some(bufs) = arena.take(&mut state, self.len)
        {
            return Poll::Ready(bufs);
        }
        let slot = Mutex::new(WaitState::Waiting(Some(cx.waker().clone())));
        let waiter = Arc::new(Waiter { len: self.len, slot });
        state.waiters.push_back(waiter.clone());
        self.waiter = Some(waiter);
        Poll::Pending
    }
}

impl Drop for Alloc {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let granted = {
            let mut slot = waiter.slot.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, WaitState::Over)
        };
        if let WaitState::Waiting(_) = granted {
            // A small request queued behind this one may fit already.
            let wakers = {
                let mut state = self.arena.lock();
                state.waiters.retain(|w| !Arc::ptr_eq(w, &waiter));
                self.arena.grant(&mut state)
            };
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
