//! Ropes: a list of buffers that is one range of bytes. Most hold a single piece.
//!
//! Never copies, except where the name says so.

use super::{Buf, SharedBuf};
use smallvec::SmallVec;
use std::ops::Range;

/// A unique rope.
#[derive(Debug, Default)]
pub struct Bufs {
    pieces: SmallVec<[Buf; 1]>,
    len: usize,
}

/// A shared, read-only rope.
#[derive(Clone, Debug, Default)]
pub struct SharedBufs {
    pieces: SmallVec<[SharedBuf; 1]>,
    len: usize,
}

impl Bufs {
    /// No bytes.
    #[must_use]
    pub fn new() -> Bufs {
        Bufs::default()
    }

    /// All its bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Append a piece.
    pub fn push(&mut self, buf: Buf) {
        if !buf.is_empty() {
            self.len += buf.len();
            self.pieces.push(buf);
        }
    }

    /// Append a rope.
    pub fn append(&mut self, other: Bufs) {
        self.len += other.len;
        self.pieces.extend(other.pieces);
    }

    /// The pieces in order.
    #[must_use]
    pub fn pieces(&self) -> &[Buf] {
        &self.pieces
    }

    /// The pieces in order, writable.
    pub fn pieces_mut(&mut self) -> &mut [Buf] {
        &mut self.pieces
    }

    /// Take it apart.
    pub fn into_pieces(self) -> impl Iterator<Item = Buf> {
        self.pieces.into_iter()
    }

    /// Return the first `at` bytes, keep the rest.
    ///
    /// # Panics
    /// When `at` is beyond the end.
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Bufs {
        assert!(at <= self.len, "split within the rope");
        if at == self.len {
            return std::mem::take(self);
        }
        let mut head = Bufs::new();
        let mut tail = Bufs::new();
        for mut piece in std::mem::take(&mut self.pieces) {
            let want = at - head.len;
            if want == 0 {
                tail.push(piece);
            } else if piece.len() <= want {
                head.push(piece);
            } else {
                head.push(piece.split_to(want));
                tail.push(piece);
            }
        }
        *self = tail;
        head
    }

    /// Give up the bytes from `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            let head = self.split_to(len);
            *self = head;
        }
    }

    /// Make it shared and read-only.
    #[must_use]
    pub fn freeze(self) -> SharedBufs {
        SharedBufs { len: self.len, pieces: self.pieces.into_iter().map(Buf::freeze).collect() }
    }

    /// Copy `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// When that goes beyond the end.
    pub fn copy_in(&mut self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len, "copy within the rope");
        let mut done = 0;
        let mut start = 0;
        for piece in &mut self.pieces {
            let (low, high) = (at.max(start), (at + from.len()).min(start + piece.len()));
            if low < high {
                let n = high - low;
                piece[low - start..high - start].copy_from_slice(&from[done..done + n]);
                done += n;
            }
            start += piece.len();
        }
    }

    /// Copy a view to the bytes from `at` on.
    pub fn copy_in_view(&mut self, at: usize, from: View<'_>) {
        let mut at = at;
        from.for_each(|bytes| {
            self.copy_in(at, bytes);
            at += bytes.len();
        });
    }

    /// Copy the rope `from` to the bytes from `at` on.
    pub fn copy_in_rope(&mut self, at: usize, from: &SharedBufs) {
        let mut at = at;
        for piece in from.pieces() {
            self.copy_in(at, piece);
            at += piece.len();
        }
    }

    /// Copy out `range`.
    ///
    /// # Panics
    /// When `range` is not within the rope.
    #[must_use]
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let mut out = Vec::with_capacity(range.len());
        for_each_slice(self.pieces.iter().map(|p| &**p), self.len, range, |s| out.extend_from_slice(s));
        out
    }

    /// Call `f` with each contiguous stretch of `range`, in order.
    pub fn for_each(&self, range: Range<usize>, f: impl FnMut(&[u8])) {
        for_each_slice(self.pieces.iter().map(|p| &**p), self.len, range, f);
    }

    /// Borrow `range`.
    ///
    /// # Panics
    /// When `range` is not within the rope.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> View<'_> {
        assert!(range.start <= range.end && range.end <= self.len, "range within the rope");
        View { pieces: Pieces::Unique(&self.pieces), start: range.start, len: range.end - range.start }
    }

    /// Zero `range`.
    pub fn fill_zero(&mut self, range: Range<usize>) {
        assert!(range.end <= self.len, "zero within the rope");
        let mut start = 0;
        for piece in &mut self.pieces {
            let (low, high) = (range.start.max(start), range.end.min(start + piece.len()));
            if low < high {
                piece[low - start..high - start].fill(0);
            }
            start += piece.len();
        }
    }
}

/// A borrowed range of a rope of either kind: for who copies or checks bytes and keeps none.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pieces: Pieces<'a>,
    start: usize,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Pieces<'a> {
    Unique(&'a [Buf]),
    Shared(&'a [SharedBuf]),
}

impl<'a> View<'a> {
    /// All its bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// A sub-range.
    ///
    /// # Panics
    /// When `range` is not within the view.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> View<'a> {
        assert!(range.start <= range.end && range.end <= self.len, "range within the view");
        View { pieces: self.pieces, start: self.start + range.start, len: range.end - range.start }
    }

    /// Call `f` with each contiguous stretch, in order.
    pub fn for_each(&self, f: impl FnMut(&[u8])) {
        let range = self.start..self.start + self.len;
        match self.pieces {
            Pieces::Unique(pieces) => for_each_slice(pieces.iter().map(|p| &**p), usize::MAX, range, f),
            Pieces::Shared(pieces) => for_each_slice(pieces.iter().map(|p| &**p), usize::MAX, range, f),
        }
    }
}

impl From<Buf> for Bufs {
    fn from(buf: Buf) -> Bufs {
        let mut bufs = Bufs::new();
        bufs.push(buf);
        bufs
    }
}

impl SharedBufs {
    /// No bytes.
    #[must_use]
    pub fn new() -> SharedBufs {
        SharedBufs::default()
    }

    /// All its bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Append a piece.
    pub fn push(&mut self, buf: SharedBuf) {
        if !buf.is_empty() {
            self.len += buf.len();
            self.pieces.push(buf);
        }
    }

    /// Append a rope.
    pub fn append(&mut self, other: SharedBufs) {
        self.len += other.len;
        self.pieces.extend(other.pieces);
    }

    /// The pieces in order.
    #[must_use]
    pub fn pieces(&self) -> &[SharedBuf] {
        &self.pieces
    }

    /// A sub-range that shares the bytes.
    ///
    /// # Panics
    /// When `range` is not within the rope.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> SharedBufs {
        assert!(range.start <= range.end && range.end <= self.len, "slice within the rope");
        let mut out = SharedBufs::new();
        let mut start = 0;
        for piece in &self.pieces {
            let (low, high) = (range.start.max(start), range.end.min(start + piece.len()));
            if low < high {
                out.push(piece.slice(low - start..high - start));
            }
            start += piece.len();
        }
        out
    }

    /// Borrow `range`.
    ///
    /// # Panics
    /// When `range` is not within the rope.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> View<'_> {
        assert!(range.start <= range.end && range.end <= self.len, "range within the rope");
        View { pieces: Pieces::Shared(&self.pieces), start: range.start, len: range.end - range.start }
    }

    /// Copy out `range`.
    #[must_use]
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let mut out = Vec::with_capacity(range.len());
        self.for_each(range, |s| out.extend_from_slice(s));
        out
    }

    /// Call `f` with each contiguous stretch of `range`, in order.
    pub fn for_each(&self, range: Range<usize>, f: impl FnMut(&[u8])) {
        for_each_slice(self.pieces.iter().map(|p| &**p), self.len, range, f);
    }
}

impl From<SharedBuf> for SharedBufs {
    fn from(buf: SharedBuf) -> SharedBufs {
        let mut bufs = SharedBufs::new();
        bufs.push(buf);
        bufs
    }
}

fn for_each_slice<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    len: usize,
    range: Range<usize>,
    mut f: impl FnMut(&[u8]),
) {
    assert!(range.start <= range.end && range.end <= len, "range within the rope");
    let mut start = 0;
    for piece in pieces {
        let (low, high) = (range.start.max(start), range.end.min(start + piece.len()));
        if low < high {
            f(&piece[low - start..high - start]);
        }
        start += piece.len();
        if start >= range.end {
            break;
        }
    }
}
