//! What a write holds: every 8-byte word of it names the write, the sector and its place in the sector.
//!
//! A word is a one-to-one scramble of (operation 28 bits, sector 30 bits, word of the sector 6 bits) under a seed, so
//! any word found anywhere can be read back, and no write needs to be remembered to know its bytes. But the last four bytes of a sector are
//! the CRC32C of those before: file systems and databases write such blocks, and all of them have the same CRC32C, so that whoever tells
//! versions apart by a CRC of his own does not.

/// Operations of one model at most: what a word has room for.
pub(super) const OPS_MAX: u64 = 1 << 28;
/// Sectors of one grid disk at most (512 GiB), with the same reason.
pub(super) const SECTORS_MAX: u64 = 1 << 30;
/// Bytes of a sector: the unit the model judges by.
pub(super) const SECTOR_BYTES: u64 = 512;
const WORD_BYTES: u64 = 8;
/// Words of a sector.
pub(super) const WORDS: u64 = SECTOR_BYTES / WORD_BYTES;
const CRC_BYTES: u64 = 4;

const FACTOR_A: u64 = 0xbf58_476d_1ce4_e5b9;
const FACTOR_B: u64 = 0x94d0_49bb_1331_11eb;

/// The inverse of an odd factor modulo 2^64, by Newton's iteration.
const fn inverse(factor: u64) -> u64 {
    let mut x = factor;
    let mut round = 0;
    while round < 6 {
        x = x.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(x)));
        round += 1;
    }
    x
}

const INVERSE_A: u64 = inverse(FACTOR_A);
const INVERSE_B: u64 = inverse(FACTOR_B);
const _: () = assert!(FACTOR_A.wrapping_mul(INVERSE_A) == 1 && FACTOR_B.wrapping_mul(INVERSE_B) == 1);

/// Where a word was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) op: u64,
    pub(super) sector: u64,
    pub(super) word: u64,
}

/// The content scheme of one model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    key: u64,
}

impl Content {
    pub(super) fn new(seed: u64) -> Content {
        Content { key: device::Prng::new(seed).fork("model.content").next_u64() }
    }

    /// The bytes of write `op` at byte `at`, a multiple of 8.
    fn bytes(self, op: u64, at: u64) -> [u8; WORD_BYTES as usize] {
        let mut bytes = self.word(op, at).to_le_bytes();
        if Content::is_last(at) {
            let mut before = [0; (SECTOR_BYTES - CRC_BYTES) as usize];
            for (n, into) in before.chunks_mut(WORD_BYTES as usize).enumerate() {
                let word = self.word(op, at / SECTOR_BYTES * SECTOR_BYTES + n as u64 * WORD_BYTES).to_le_bytes();
                into.copy_from_slice(&word[..into.len()]);
            }
            bytes[(WORD_BYTES - CRC_BYTES) as usize..].copy_from_slice(&crc32c::crc32c(&before).to_le_bytes());
        }
        bytes
    }

    /// The word of write `op` at byte `at`, a multiple of 8.
    fn word(self, op: u64, at: u64) -> u64 {
        let (sector, word) = (at / SECTOR_BYTES, at % SECTOR_BYTES / WORD_BYTES);
        let mut x = (op << 36 | sector << 6 | word) ^ self.key;
        x = x.wrapping_mul(FACTOR_A);
        x ^= x >> 32;
        x = x.wrapping_mul(FACTOR_B);
        x ^ x >> 32
    }

    /// Whether a word is the last of its sector, which does not tell its origin.
    pub(super) fn is_last(at: u64) -> bool {
        at % SECTOR_BYTES == SECTOR_BYTES - WORD_BYTES
    }

    /// The last word of a sector, when those before are of this origin.
    pub(super) fn last_word(self, before: Origin) -> u64 {
        u64::from_le_bytes(self.bytes(before.op, (before.sector + 1) * SECTOR_BYTES - WORD_BYTES))
    }

    /// Where a word comes from, if it is one of ours at all, and not the last of a sector.
    pub(super) fn origin(self, word: u64) -> Origin {
        let mut x = word ^ word >> 32;
        x = x.wrapping_mul(INVERSE_B);
        x ^= x >> 32;
        x = x.wrapping_mul(INVERSE_A) ^ self.key;
        Origin { op: x >> 36, sector: x >> 6 & (SECTORS_MAX - 1), word: x & (WORDS - 1) }
    }

    /// The bytes of write `op` from byte `at` of the grid disk on.
    pub(super) fn fill(self, op: u64, at: u64, into: &mut [u8]) {
        self.for_each_word(op, at, into.len(), |range, bytes| {
            into[range].copy_from_slice(bytes);
            true
        });
    }

    /// Whether `got`, read from byte `at`, is the content of write `op`.
    pub(super) fn matches(self, op: u64, at: u64, got: &[u8]) -> bool {
        self.for_each_word(op, at, got.len(), |range, bytes| got[range] == *bytes)
    }

    /// Calls `f` with each stretch of up to a word until it says no.
    fn for_each_word(
        self,
        op: u64,
        at: u64,
        len: usize,
        mut f: impl FnMut(std::ops::Range<usize>, &[u8]) -> bool,
    ) -> bool {
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let skip = (here % WORD_BYTES) as usize;
            let n = (WORD_BYTES as usize - skip).min(len - done);
            let bytes = self.bytes(op, here - skip as u64);
            if !f(done..done + n, &bytes[skip..skip + n]) {
                return false;
            }
            done += n;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Content, OPS_MAX, Origin, SECTORS_MAX};

    #[test]
    fn every_word_names_its_origin() {
        let content = Content::new(7);
        for (op, sector) in [(1, 0), (17, 96), (OPS_MAX - 1, SECTORS_MAX - 1), (3, 12345)] {
            let mut bytes = [0; 512];
            content.fill(op, sector * 512, &mut bytes);
            for (word, chunk) in bytes.chunks(8).take(63).enumerate() {
                let value = u64::from_le_bytes([
                    chunk[0], chunk[1], chunk[2], chunk[3], chunk[4], chunk[5], chunk[6], chunk[7],
                ]);
                assert_eq!(content.origin(value), Origin { op, sector, word: word as u64 });
            }
        }
    }

    #[test]
    fn every_version_of_a_sector_has_the_same_crc() {
        let content = Content::new(7);
        let crc = |op, sector: u64| {
            let mut bytes = [0; 512];
            content.fill(op, sector * 512, &mut bytes);
            crc32c::crc32c(&bytes)
        };
        assert!((1..50).all(|op| crc(op, op * 17) == crc(1, 0)));
    }

    #[test]
    fn any_byte_range_agrees_with_the_whole() {
        let content = Content::new(7);
        let mut whole = [0; 1536];
        content.fill(5, 1024, &mut whole);
        for (from, len) in [(0, 1), (3, 2), (5, 600), (511, 2), (1535, 1), (0, 1536)] {
            let mut part = vec![0; len];
            content.fill(5, 1024 + from as u64, &mut part);
            assert_eq!(part, &whole[from..from + len]);
            assert!(content.matches(5, 1024 + from as u64, &part));
            part[len - 1] ^= 1;
            assert!(!content.matches(5, 1024 + from as u64, &part));
        }
    }
}
