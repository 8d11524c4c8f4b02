//! A device of the virtual world that takes no memory for zeroes: clients of a replay write nothing else, so that what is kept are labels,
//! headers and records.
//!
//! Completes every request before `submit` returns: what it costs is the delay layer's.

use device::sync::lock;
use device::{Class, Completed, Completion, DeviceExtent, FailKind, Geometry, Io, Op, Outcome};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const PAGE_BYTES: usize = 4096;
type Page = [u8; PAGE_BYTES];
static ZEROES: Page = [0; PAGE_BYTES];

/// See the module.
pub(crate) struct Sparse {
    size_bytes: u64,
    pages: Mutex<HashMap<u64, Box<Page>>>,
}

impl Sparse {
    pub(crate) fn new(size_bytes: u64) -> Arc<Sparse> {
        Arc::new(Sparse { size_bytes, pages: Mutex::default() })
    }
}

/// The page of a byte, and what of it lies below `len`.
fn within(at: u64, len: usize) -> (u64, Range<usize>) {
    let start = (at % PAGE_BYTES as u64) as usize;
    (at / PAGE_BYTES as u64, start..PAGE_BYTES.min(start + len))
}

fn read(pages: &HashMap<u64, Box<Page>>, mut at: u64, mut out: &mut [u8]) {
    while !out.is_empty() {
        let (number, range) = within(at, out.len());
        let (now, later) = out.split_at_mut(range.len());
        match pages.get(&number) {
            Some(page) => now.copy_from_slice(&page[range]),
            None => now.fill(0),
        }
        at += now.len() as u64;
        out = later;
    }
}

fn write(pages: &mut HashMap<u64, Box<Page>>, mut at: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (number, range) = within(at, bytes.len());
        let (now, later) = bytes.split_at(range.len());
        if now == &ZEROES[..now.len()] {
            zero(pages, number, range);
        } else {
            pages.entry(number).or_insert_with(|| Box::new(ZEROES))[range].copy_from_slice(now);
        }
        at += now.len() as u64;
        bytes = later;
    }
}

fn zero(pages: &mut HashMap<u64, Box<Page>>, number: u64, range: Range<usize>) {
    if range.len() == PAGE_BYTES {
        pages.remove(&number);
    } else if let Some(page) = pages.get_mut(&number) {
        page[range].fill(0);
    }
}

fn zero_all(pages: &mut HashMap<u64, Box<Page>>, offset: u64, len: u64) {
    let (first, last) = (offset / PAGE_BYTES as u64, (offset + len).div_ceil(PAGE_BYTES as u64));
    if last - first > pages.len() as u64 {
        // Fewer pages than that are there at all.
        let whole = offset.div_ceil(PAGE_BYTES as u64)..(offset + len) / PAGE_BYTES as u64;
        pages.retain(|number, _| !whole.contains(number));
        for edge in [first, last.saturating_sub(1)] {
            let start = offset.max(edge * PAGE_BYTES as u64);
            let end = (offset + len).min((edge + 1) * PAGE_BYTES as u64);
            if start < end {
                let (number, range) = within(start, (end - start) as usize);
                zero(pages, number, range);
            }
        }
        return;
    }
    let mut at = offset;
    while at < offset + len {
        let left = (offset + len - at).min(PAGE_BYTES as u64) as usize;
        let (number, range) = within(at, left);
        at += range.len() as u64;
        zero(pages, number, range);
    }
}

impl Io for Sparse {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes,
            logical_bytes: 512,
            page_bytes: PAGE_BYTES as u32,
            rotational: false,
            // As of a file, which is what the same run has with real files.
            volatile_cache: true,
            discard_bytes: PAGE_BYTES as u32,
            fast_zeroes: true,
            transfer_bytes_max: 4 << 20,
            class: Class::Durable,
        }
    }

    fn submit(&self, op: Op) -> Completion {
        let (offset, len) = op.range();
        if offset % 512 != 0 || len % 512 != 0 || offset.checked_add(len).is_none_or(|end| end > self.size_bytes) {
            return Completion::failed(FailKind::Invalid, op);
        }
        let mut completed = Completed::bare(Outcome::Done);
        let pages = &mut *lock(&self.pages);
        match op {
            Op::Read { offset, mut bufs } => {
                let mut at = offset;
                for piece in bufs.pieces_mut() {
                    read(pages, at, piece);
                    at += piece.len() as u64;
                }
                completed.bufs = bufs;
            }
            Op::Write { offset, data, .. } => {
                let mut at = offset;
                for piece in data.pieces() {
                    write(pages, at, piece);
                    at += piece.len() as u64;
                }
            }
            Op::WriteZeroes { offset, len, .. } | Op::Discard { offset, len } => zero_all(pages, offset, len),
            Op::Flush => {}
            Op::Status { len, .. } => completed.extents = vec![DeviceExtent { len, hole: false }],
        }
        Completion::ready(completed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Prng;

    /// Goal: it holds what bytes in memory hold. Method: random writes of noise and of zeroes, zeroes over stretches short and long.
    #[test]
    fn it_holds_what_a_memory_holds() {
        const SIZE: u64 = 256 << 10;
        let (mut pages, mut memory, mut prng) = (HashMap::new(), vec![0_u8; SIZE as usize], Prng::new(1));
        for n in 0..4_000 {
            let offset = prng.below(SIZE / 512) * 512;
            let most = if prng.below(8) == 0 { SIZE / 512 } else { 24 };
            let len = ((prng.below(most) + 1) * 512).min(SIZE - offset);
            let range = offset as usize..(offset + len) as usize;
            match prng.below(3) {
                0 => {
                    zero_all(&mut pages, offset, len);
                    memory[range].fill(0);
                }
                1 => {
                    let mut noise = vec![0; len as usize];
                    if prng.below(2) == 0 {
                        prng.fill(&mut noise);
                    }
                    write(&mut pages, offset, &noise);
                    memory[range].copy_from_slice(&noise);
                }
                _ => {
                    let mut got = vec![7; len as usize];
                    read(&pages, offset, &mut got);
                    assert!(got == memory[range], "step {n}");
                }
            }
        }
    }
}
