//! Sparse bytes that can be copied for the price of a table: the content of a medium.
//!
//! Chunks are shared between copies until one of them writes. Bytes never written read as zeroes.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a chunk: the unit of sharing. Larger ones cost more at the first write after a copy, smaller ones more
/// table.
pub(super) const CHUNK_BYTES: usize = 16 * 1024;

#[derive(Clone, Default)]
pub(super) struct Image {
    chunks: BTreeMap<u64, Arc<[u8; CHUNK_BYTES]>>,
}

/// The stretches of `len` bytes from `offset` within one chunk each: chunk, offset in the chunk, offset in the
/// range, bytes.
fn stretches(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let inside = (at % CHUNK_BYTES as u64) as usize;
        let n = (CHUNK_BYTES - inside).min(len - done);
        let stretch = (at / CHUNK_BYTES as u64, inside, done, n);
        done += n;
        Some(stretch)
    })
}

impl Image {
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        for (chunk, inside, done, n) in stretches(offset, into.len()) {
            match self.chunks.get(&chunk) {
                Some(bytes) => into[done..done + n].copy_from_slice(&bytes[inside..inside + n]),
                None => into[done..done + n].fill(0),
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, from: &[u8]) {
        for (chunk, inside, done, n) in stretches(offset, from.len()) {
            let bytes = self.chunks.entry(chunk).or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
            Arc::make_mut(bytes)[inside..inside + n].copy_from_slice(&from[done..done + n]);
        }
    }

    /// Zeroes; whole chunks are given back.
    pub(super) fn zero(&mut self, offset: u64, len: usize) {
        for (chunk, inside, _, n) in stretches(offset, len) {
            if n == CHUNK_BYTES {
                self.chunks.remove(&chunk);
            } else if let Some(bytes) = self.chunks.get_mut(&chunk) {
                Arc::make_mut(bytes)[inside..inside + n].fill(0);
            }
        }
    }

    /// Whether no byte of the chunk that holds `offset` was ever written, and where that chunk ends.
    pub(super) fn hole_until(&self, offset: u64) -> (bool, u64) {
        let chunk = offset / CHUNK_BYTES as u64;
        (!self.chunks.contains_key(&chunk), (chunk + 1) * CHUNK_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK_BYTES, Image};

    #[test]
    fn copies_do_not_see_each_others_writes() {
        let mut a = Image::default();
        let edge = CHUNK_BYTES as u64 - 3;
        a.write(edge, &[1, 2, 3, 4, 5, 6]);
        let mut b = a.clone();
        b.write(edge + 1, &[9, 9]);
        a.zero(0, CHUNK_BYTES);
        let mut got = [0xff; 8];
        a.read(edge - 1, &mut got);
        assert_eq!(got, [0, 0, 0, 0, 4, 5, 6, 0]);
        b.read(edge - 1, &mut got);
        assert_eq!(got, [0, 1, 9, 9, 4, 5, 6, 0]);
        assert_eq!(a.hole_until(5), (true, CHUNK_BYTES as u64));
        assert_eq!(a.hole_until(CHUNK_BYTES as u64), (false, 2 * CHUNK_BYTES as u64));
    }
}
