//! The arena and its ropes against naive models.

#![expect(clippy::unwrap_used, reason = "tests")]

use device::buf::{Arena, Buf, Bufs, PAGE_BYTES, PIECE_BYTES_MAX, SharedBuf, SharedBufs};
use device::prng::Prng;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn counting() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count(AtomicUsize::new(0)));
    (count.clone(), Waker::from(count))
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Every page of every live allocation belongs to it alone, is aligned, and lies within the region.
#[test]
fn random_allocations_never_overlap_and_all_comes_back() {
    for seed in 0..6 {
        let arena = Arena::new(8 << 20);
        let (region, size) = arena.region();
        let pages = size / PAGE_BYTES;
        let mut owner = vec![0_u32; pages];
        let mut live: Vec<(u32, Bufs)> = Vec::new();
        let mut prng = Prng::new(seed);
        let mut used = 0;
        for id in 1..6000_u32 {
            if prng.chance(11, 20) {
                let len = match prng.below(10) {
                    0..6 => prng.between(1, 3 * PAGE_BYTES as u64),
                    6..9 => prng.between(1, 200_000),
                    _ => prng.between(1, 3 << 20),
                } as usize;
                let want = len.div_ceil(PAGE_BYTES);
                let Some(mut bufs) = arena.try_alloc(len) else {
                    assert!(want > pages - used, "refused {want} pages with {} free", pages - used);
                    continue;
                };
                assert_eq!(bufs.len_bytes(), len);
                for piece in bufs.pieces_mut() {
                    let at = piece.as_ptr().addr() - region.addr();
                    assert!(at.is_multiple_of(PAGE_BYTES) && at + piece.len() <= size);
                    assert_eq!(piece.arena_id(), Some(arena.id()));
                    assert!(piece.len() <= PIECE_BYTES_MAX);
                    for owner in &mut owner[at / PAGE_BYTES..(at + piece.len()).div_ceil(PAGE_BYTES)] {
                        assert_eq!(std::mem::replace(owner, id), 0, "a page was somebody's");
                    }
                    piece.fill(id as u8);
                }
                used += want;
                live.push((id, bufs));
            } else if !live.is_empty() {
                let (id, bufs) = live.swap_remove(prng.below(live.len() as u64) as usize);
                bufs.for_each(0..bufs.len_bytes(), |s| assert!(s.iter().all(|b| *b == id as u8), "overwritten"));
                used -= bufs.len_bytes().div_ceil(PAGE_BYTES);
                owner.iter_mut().filter(|o| **o == id).for_each(|o| *o = 0);
            }
            assert_eq!(arena.free_bytes(), (pages - used) * PAGE_BYTES);
        }
        drop(live);
        assert_eq!(arena.free_bytes(), size);
        // Everything has merged again: the largest pieces can be had.
        let all = arena.try_alloc(size).unwrap();
        assert!(all.pieces().iter().all(|p| p.len() == PIECE_BYTES_MAX));
    }
}

#[test]
fn fragments_serve_a_large_request_in_pieces() {
    let arena = Arena::new(PIECE_BYTES_MAX);
    let mut pages: Vec<_> = (0..PIECE_BYTES_MAX / PAGE_BYTES).map(|_| arena.try_alloc(1).unwrap()).collect();
    // Every second page free: no two neighbours.
    let mut keep = true;
    pages.retain(|_| {
        keep = !keep;
        keep
    });
    let half = arena.try_alloc(PIECE_BYTES_MAX / 2).unwrap();
    assert_eq!(half.pieces().len(), PIECE_BYTES_MAX / 2 / PAGE_BYTES);
    assert!(arena.try_alloc(1).is_none());
}

#[test]
fn waiters_are_served_in_the_order_they_came() {
    let arena = Arena::new(PIECE_BYTES_MAX);
    let held = arena.try_alloc(PIECE_BYTES_MAX).unwrap();
    let (count, waker) = counting();
    let mut large = pin!(arena.alloc(PIECE_BYTES_MAX - PAGE_BYTES));
    let mut small = pin!(arena.alloc(PAGE_BYTES));
    let mut last = pin!(arena.alloc(2 * PAGE_BYTES));
    assert!(poll(large.as_mut(), &waker).is_pending());
    assert!(poll(small.as_mut(), &waker).is_pending());
    assert!(poll(last.as_mut(), &waker).is_pending());
    // Part of it comes back: enough for the small ones, but the large one is first.
    let mut held = held;
    let page = held.split_to(4 * PAGE_BYTES);
    drop(page);
    assert_eq!(count.0.load(Ordering::SeqCst), 0, "a block is free with its last handle");
    assert!(arena.try_alloc(1).is_none(), "nobody overtakes");
    drop(held);
    assert_eq!(count.0.load(Ordering::SeqCst), 2, "the large one and the small one");
    let Poll::Ready(large) = poll(large.as_mut(), &waker) else { panic!("granted") };
    let Poll::Ready(_small) = poll(small.as_mut(), &waker) else { panic!("granted") };
    assert!(poll(last.as_mut(), &waker).is_pending());
    drop(large);
    assert!(poll(last.as_mut(), &waker).is_ready());
}

#[test]
fn a_dropped_waiter_neither_blocks_nor_leaks() {
    let arena = Arena::new(PIECE_BYTES_MAX);
    let held = arena.try_alloc(PIECE_BYTES_MAX / 2).unwrap();
    let (count, waker) = counting();
    let mut large = Box::pin(arena.alloc(PIECE_BYTES_MAX));
    let mut small = Box::pin(arena.alloc(PAGE_BYTES));
    assert!(poll(large.as_mut(), &waker).is_pending());
    assert!(poll(small.as_mut(), &waker).is_pending());
    // The one in front gives up: the one behind fits and is woken.
    drop(large);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(poll(small.as_mut(), &waker).is_ready());
    // One that was granted and gives up returns what it was granted.
    let mut granted = Box::pin(arena.alloc(PIECE_BYTES_MAX));
    assert!(poll(granted.as_mut(), &waker).is_pending());
    drop((held, small));
    assert_eq!(arena.free_bytes(), 0, "granted");
    drop(granted);
    assert_eq!(arena.free_bytes(), PIECE_BYTES_MAX);
}

#[test]
fn many_threads_share_an_arena() {
    let arena = Arena::new(2 * PIECE_BYTES_MAX);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let arena = arena.clone();
            scope.spawn(move || {
                let mut prng = Prng::new(thread);
                let mut live = Vec::new();
                for _ in 0..20_000 {
                    if let Some(mut bufs) = arena.try_alloc(prng.between(1, 40_000) as usize) {
                        let stamp = prng.next_u64() as u8;
                        bufs.pieces_mut().iter_mut().for_each(|p| p.fill(stamp));
                        live.push((stamp, bufs));
                    }
                    if (live.len() > 20 || prng.chance(1, 2))
                        && let Some((stamp, bufs)) = live.pop()
                    {
                        bufs.for_each(0..bufs.len_bytes(), |s| assert!(s.iter().all(|b| *b == stamp)));
                    }
                }
            });
        }
    });
    assert_eq!(arena.free_bytes(), arena.size_bytes());
}

#[test]
fn shared_memory_is_free_with_its_last_handle() {
    let arena = Arena::new(PIECE_BYTES_MAX);
    let shared = arena.try_alloc(8192).unwrap().freeze();
    let part = shared.slice(4000..5000);
    drop(shared);
    assert_eq!(arena.free_bytes(), PIECE_BYTES_MAX - 8192);
    drop(part);
    assert_eq!(arena.free_bytes(), PIECE_BYTES_MAX);
}

/// A rope with the bytes 0, 1, 2 … in pieces of chance lengths, and the same bytes flat.
fn rope(prng: &mut Prng) -> (Bufs, Vec<u8>) {
    let (mut bufs, mut flat) = (Bufs::new(), Vec::new());
    for _ in 0..prng.below(6) {
        let len = prng.below(40) as usize;
        let bytes: Vec<u8> = (flat.len()..flat.len() + len).map(|b| b as u8).collect();
        bufs.push(Buf::padded(&bytes, 1));
        flat.extend(bytes);
    }
    (bufs, flat)
}

#[test]
fn ropes_agree_with_flat_bytes() {
    let mut prng = Prng::new(2);
    for _ in 0..3000 {
        let (mut bufs, mut flat) = rope(&mut prng);
        assert_eq!(bufs.len_bytes(), flat.len());
        assert_eq!(bufs.is_empty(), flat.is_empty());
        let start = prng.below(flat.len() as u64 + 1) as usize;
        let end = prng.between(start as u64, flat.len() as u64) as usize;
        match prng.below(6) {
            0 => {
                let head = bufs.split_to(start);
                assert_eq!(head.to_vec(0..head.len_bytes()), flat[..start]);
                flat.drain(..start);
            }
            1 => {
                bufs.truncate(start);
                flat.truncate(start);
            }
            2 => {
                let bytes = vec![0xee; end - start];
                bufs.copy_in(start, &bytes);
                flat[start..end].copy_from_slice(&bytes);
            }
            3 => {
                bufs.fill_zero(start..end);
                flat[start..end].fill(0);
            }
            4 => {
                let (other, bytes) = rope(&mut prng);
                let shared = other.freeze();
                if bytes.len() <= flat.len() {
                    bufs.copy_in_rope(0, &shared);
                    flat[..bytes.len()].copy_from_slice(&bytes);
                }
            }
            _ => {
                let (other, bytes) = rope(&mut prng);
                bufs.append(other);
                flat.extend(bytes);
            }
        }
        assert_eq!(bufs.to_vec(0..flat.len()), flat);
        assert!(bufs.pieces().iter().all(|p| !p.is_empty()), "empty pieces are not kept");
        let shared = bufs.freeze();
        let start = prng.below(flat.len() as u64 + 1) as usize;
        let end = prng.between(start as u64, flat.len() as u64) as usize;
        assert_eq!(shared.slice(start..end).to_vec(0..end - start), flat[start..end]);
        let mut joined = shared.slice(0..start);
        joined.append(shared.slice(start..flat.len()));
        assert_eq!(joined.to_vec(0..flat.len()), flat);
    }
}

#[test]
fn a_vector_becomes_a_shared_buffer_without_a_copy() {
    let bytes = vec![1, 2, 3, 4];
    let start = bytes.as_ptr();
    let shared = SharedBuf::from(bytes);
    assert_eq!(shared.as_ptr(), start);
    assert_eq!(&*shared.slice(1..3), [2, 3]);
    assert_eq!(SharedBufs::from(shared).len_bytes(), 4);
}

#[test]
fn heap_buffers_are_zeroed_and_aligned() {
    let buf = Buf::padded(&[7; 5], 512);
    assert_eq!((buf.len(), buf.as_ptr().addr() % PAGE_BYTES, buf.arena_id()), (512, 0, None));
    assert!(buf[..5] == [7; 5] && buf[5..].iter().all(|b| *b == 0));
}
