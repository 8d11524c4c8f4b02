//! What a device of the virtual world holds: of pages of the database their stamps, of everything else the bytes. An experiment on a table of
//! gigabytes takes megabytes of memory.
//!
//! A part is kept as its stamp only if every byte of it is what the stamp says, so that nothing wrong is made right here.

use buffercache::Version;
use buffercache::page::{PART_BYTES, Stamp};
use device::{Bufs, SharedBufs};
use std::ops::Range;

enum Part {
    Zeroes,
    Stamped(Stamp),
    Bytes(Box<[u8]>),
    /// As the database was found there: its first version.
    Filled,
}

/// See the module.
pub(super) struct Content {
    parts: Vec<Part>,
    /// The parts where the database was found.
    filled: Range<u64>,
}

impl Content {
    pub(super) fn new(size_bytes: u64) -> Content {
        let parts = size_bytes.div_ceil(PART_BYTES as u64);
        Content { parts: (0..parts).map(|_| Part::Zeroes).collect(), filled: 0..0 }
    }

    pub(super) fn fill(&mut self, offset: u64, len: u64) {
        self.filled = offset / PART_BYTES as u64..(offset + len) / PART_BYTES as u64;
        for part in self.filled.clone() {
            self.parts[part as usize] = Part::Filled;
        }
    }

    fn copy(&self, part: u64, out: &mut [u8]) {
        match &self.parts[part as usize] {
            Part::Zeroes => out.fill(0),
            Part::Stamped(stamp) => stamp.fill(out),
            Part::Bytes(bytes) => out.copy_from_slice(bytes),
            Part::Filled => Stamp { part: part - self.filled.start, version: Version(1) }.fill(out),
        }
    }

    fn put(&mut self, part: u64, bytes: &[u8]) {
        self.parts[part as usize] = match Stamp::of(bytes) {
            Some(stamp) => Part::Stamped(stamp),
            None if bytes.iter().all(|byte| *byte == 0) => Part::Zeroes,
            None => Part::Bytes(bytes.into()),
        };
    }

    pub(super) fn read(&self, offset: u64, bufs: &mut Bufs) {
        let (mut at, mut whole) = (offset, [0; PART_BYTES]);
        for piece in bufs.pieces_mut() {
            let mut rest = &mut piece[..];
            while !rest.is_empty() {
                let (part, start) = (at / PART_BYTES as u64, (at % PART_BYTES as u64) as usize);
                let len = rest.len().min(PART_BYTES - start);
                let (this, left) = rest.split_at_mut(len);
                if len == PART_BYTES {
                    self.copy(part, this);
                } else {
                    self.copy(part, &mut whole);
                    this.copy_from_slice(&whole[start..start + len]);
                }
                at += len as u64;
                rest = left;
            }
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &SharedBufs) {
        let (mut at, mut whole) = (offset, [0; PART_BYTES]);
        for piece in data.pieces() {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let (part, start) = (at / PART_BYTES as u64, (at % PART_BYTES as u64) as usize);
                let len = rest.len().min(PART_BYTES - start);
                if len == PART_BYTES {
                    self.put(part, &rest[..len]);
                } else {
                    self.copy(part, &mut whole);
                    whole[start..start + len].copy_from_slice(&rest[..len]);
                    self.put(part, &whole);
                }
                at += len as u64;
                rest = &rest[len..];
            }
        }
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        let (mut at, end) = (offset, offset + len);
        let mut whole = [0; PART_BYTES];
        while at < end {
            let (part, start) = (at / PART_BYTES as u64, (at % PART_BYTES as u64) as usize);
            let len = ((end - at) as usize).min(PART_BYTES - start);
            if len == PART_BYTES {
                self.parts[part as usize] = Part::Zeroes;
            } else {
                self.copy(part, &mut whole);
                whole[start..start + len].fill(0);
                self.put(part, &whole);
            }
            at += len as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: it reads as a device in memory does, whatever is written. Method: random writes of pages, of noise and of parts of both.
    use super::*;
    use device::{Buf, Prng};

    #[test]
    fn it_holds_what_a_memory_holds() {
        const SIZE: u64 = 64 << 10;
        let (mut content, mut memory, mut prng) = (Content::new(SIZE), vec![0_u8; SIZE as usize], Prng::new(1));
        content.fill(8192, 16384);
        for part in 0..4_u64 {
            let at = 8192 + part as usize * PART_BYTES;
            Stamp { part, version: Version(1) }.fill(&mut memory[at..at + PART_BYTES]);
        }
        for n in 0..3_000 {
            let offset = prng.below(SIZE / 512) * 512;
            let len = (prng.below(24) + 1) * 512;
            let len = len.min(SIZE - offset);
            let range = offset as usize..(offset + len) as usize;
            match prng.below(4) {
                0 => {
                    content.zero(offset, len);
                    memory[range].fill(0);
                }
                1 => {
                    let part = offset / PART_BYTES as u64;
                    let mut page = vec![0; PART_BYTES];
                    Stamp { part: prng.below(99), version: Version(n) }.fill(&mut page);
                    content.write(part * PART_BYTES as u64, &Bufs::from(Buf::padded(&page, 512)).freeze());
                    memory[part as usize * PART_BYTES..][..PART_BYTES].copy_from_slice(&page);
                }
                2 => {
                    let mut noise = vec![0; len as usize];
                    prng.fill(&mut noise);
                    content.write(offset, &Bufs::from(Buf::padded(&noise, 512)).freeze());
                    memory[range].copy_from_slice(&noise);
                }
                _ => {
                    let mut read = Bufs::from(Buf::zeroed(len as usize));
                    content.read(offset, &mut read);
                    assert!(read.to_vec(0..len as usize) == memory[range], "step {n}");
                }
            }
        }
    }
}
