//! The checksum of what clients write.
//!
//! Not a CRC, on purpose. File systems and databases end their blocks with a CRC of what comes before, most of them with CRC32C: ext4's superblock,
//! directories and extent trees, XFS, the control file of PostgreSQL, pages of InnoDB. A CRC over data and its own CRC is the same number
//! whatever the data is, so the old and the new version of such a block have one CRC, and a cache that compares by it after a crash
//! takes the old one for the new. XXH3 has no such arithmetic: two versions have the same 32 bits once in 2^32.
//!
//! CRC32C stays where it is good: over our own headers and records, which contain no CRC of that kind, torn writes are found by it.

use crate::buf::View;
use std::hash::Hasher;
use twox_hash::xxhash3_64::{DEFAULT_SECRET_LENGTH, RawHasher, SecretBuffer};

/// The default secret of XXH3: sums do not depend on a seed. Whose data it is goes beside it, see [`data_sum_of`].
const SECRET_BYTES: usize = DEFAULT_SECRET_LENGTH;

/// The checksum of data in one piece: both halves of its XXH3 (64 bits), one over the other. Formats put the checksum of an address over it
/// (`^`), so that data which ended up elsewhere does not match.
#[must_use]
pub fn data_sum(bytes: &[u8]) -> u32 {
    fold(twox_hash::XxHash3_64::oneshot(bytes))
}

impl View<'_> {
    /// [`data_sum`] of the view's bytes: how they are cut into pieces does not matter.
    #[must_use]
    pub fn sum(&self) -> u32 {
        sum_of_pieces(self.len_bytes(), |each| self.for_each(|bytes| each(bytes)))
    }
}

/// [`data_sum`] of `len` bytes, which `each` hands over piece by piece.
fn sum_of_pieces(len: usize, each: impl FnOnce(&mut dyn FnMut(&[u8]))) -> u32 {
    let mut whole = None;
    let mut pieces: Option<RawHasher<[u8; SECRET_BYTES]>> = None;
    each(&mut |bytes| {
        if bytes.len() == len {
            whole = Some(data_sum(bytes));
        } else {
            pieces.get_or_insert_with(hasher).write(bytes);
        }
    });
    match (whole, pieces) {
        (Some(sum), None) => sum,
        (None, Some(pieces)) => fold(pieces.finish()),
        (None, None) => data_sum(&[]),
        (Some(_), Some(_)) => unreachable!("pieces make up {len} bytes"),
    }
}

fn hasher() -> RawHasher<[u8; SECRET_BYTES]> {
    match SecretBuffer::with_seed(0, [0; SECRET_BYTES]) {
        Ok(secret) => RawHasher::new(secret),
        Err(_) => unreachable!("the default secret is long enough"),
    }
}

fn fold(hash: u64) -> u32 {
    (hash >> 32) as u32 ^ hash as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block as ext4 and PostgreSQL write them: data, its CRC32C, zeroes.
    fn block(version: u8) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..292_u32).map(|n| (n * 7) as u8 ^ version).collect();
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes.resize(4096, 0);
        bytes
    }

    #[test]
    fn versions_of_a_block_with_a_crc_of_its_own_are_told_apart() {
        let (old, new) = (block(1), block(2));
        assert_eq!(crc32c::crc32c(&old), crc32c::crc32c(&new), "why this is no CRC");
        assert_ne!(data_sum(&old), data_sum(&new));
    }

    #[test]
    fn the_sum_does_not_depend_on_how_data_is_cut() {
        for len in [0, 1, 16, 17, 240, 241, 512, 4096, 5000] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 31 % 251) as u8).collect();
            for piece in [1, 7, 64, 256, 511, 512, 4095, 4096] {
                let sum = sum_of_pieces(len, |f| bytes.chunks(piece).for_each(f));
                assert_eq!(sum, data_sum(&bytes), "{len} bytes in pieces of {piece}");
            }
        }
    }

    /// It is on flash and disk: another release of the library must give the same.
    #[test]
    fn the_sum_is_xxh3() {
        assert_eq!(twox_hash::XxHash3_64::oneshot(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(data_sum(&[]), 0x2d06_8005 ^ 0x38d3_94c2);
        assert_eq!(data_sum(&[0; 4096]), fold(twox_hash::XxHash3_64::oneshot_with_seed(0, &[0; 4096])));
        assert_eq!(data_sum(&[0; 4096]), 0xdb11_e65b);
    }
}
