//! Pages: their numbers, how they are read from and written to bytes, and pages synthesised from (address, version).
//!
//! A synthesised page takes no memory but its version, and still every byte of it is checked when it is read.

use device::{Buf, View};

/// The number of a page in the data file: its offset divided by the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub u64);

/// How pages look on a device, and what of them is kept in memory.
pub trait PageFormat: Send + Sync + 'static {
    /// What is kept of a page.
    type Page: Clone + Send + Sync + 'static;

    /// Bytes of a page, a multiple of 4 KiB.
    fn page_bytes(&self) -> usize;

    /// What was read as this page; none when it is another page, or damaged.
    fn unpack(&self, number: PageNumber, bytes: View<'_>) -> Option<Self::Page>;

    /// The bytes of this page.
    fn pack(&self, number: PageNumber, page: &Self::Page, out: &mut [u8]);
}

/// How often a page was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

/// Bytes of a part: the unit that is stamped.
pub const PART_BYTES: usize = 4096;
/// Added from word to word; odd, so that no two words of a part are alike.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a part was synthesised from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its number: offset in the data file divided by [`PART_BYTES`].
    pub part: u64,
    /// Of its page.
    pub version: Version,
}

impl Stamp {
    fn seed(self) -> u64 {
        // SplitMix64's finaliser: neighbours in number or version share no words.
        let mut z = self.part.wrapping_mul(STEP) ^ self.version.0.rotate_left(32);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 27)
    }

    /// The part's bytes: number, version, then words that depend on both. Version 0 was never written: zeroes.
    pub fn fill(self, out: &mut [u8]) {
        if self.version == Version(0) {
            out.fill(0);
            return;
        }
        let mut word = self.seed();
        let (words, _) = out.as_chunks_mut::<8>();
        for (n, bytes) in words.iter_mut().enumerate() {
            word = word.wrapping_add(STEP);
            *bytes = match n {
                0 => self.part,
                1 => self.version.0,
                _ => word,
            }
            .to_le_bytes();
        }
    }

    /// What these bytes were synthesised from, every one of them checked; none for zeroes and for anything else.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Stamp> {
        let (words, rest) = bytes.as_chunks::<8>();
        if bytes.len() != PART_BYTES || !rest.is_empty() {
            return None;
        }
        let stamp = Stamp { part: u64::from_le_bytes(words[0]), version: Version(u64::from_le_bytes(words[1])) };
        let mut word = stamp.seed().wrapping_add(STEP.wrapping_mul(2));
        let is_filled = stamp.version != Version(0)
            && words[2..].iter().all(|bytes| {
                word = word.wrapping_add(STEP);
                u64::from_le_bytes(*bytes) == word
            });
        is_filled.then_some(stamp)
    }
}

/// Pages synthesised from their number and version.
#[derive(Clone, Copy, Debug)]
pub struct Stamped {
    page_bytes: usize,
}

impl Stamped {
    /// Pages of `page_bytes` bytes.
    ///
    /// # Panics
    /// When that is no multiple of [`PART_BYTES`].
    #[must_use]
    pub fn new(page_bytes: usize) -> Stamped {
        assert!(page_bytes > 0 && page_bytes.is_multiple_of(PART_BYTES), "pages are whole parts");
        Stamped { page_bytes }
    }

    fn parts(&self) -> u64 {
        (self.page_bytes / PART_BYTES) as u64
    }
}

impl PageFormat for Stamped {
    type Page = Version;

    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn unpack(&self, number: PageNumber, bytes: View<'_>) -> Option<Version> {
        if bytes.len_bytes() != self.page_bytes {
            return None;
        }
        // One stretch as a rule; pages in several are put together first.
        let (mut stretches, mut found) = (0, None);
        bytes.for_each(|stretch| {
            stretches += 1;
            found = if stretches == 1 && stretch.len() == self.page_bytes { self.check(number, stretch) } else { None };
        });
        if stretches > 1 {
            let mut whole = Vec::with_capacity(self.page_bytes);
            bytes.for_each(|stretch| whole.extend_from_slice(stretch));
            found = self.check(number, &whole);
        }
        found
    }

    fn pack(&self, number: PageNumber, version: &Version, out: &mut [u8]) {
        for (part, bytes) in (number.0 * self.parts()..).zip(out.chunks_mut(PART_BYTES)) {
            Stamp { part, version: *version }.fill(bytes);
        }
    }
}

impl Stamped {
    fn check(&self, number: PageNumber, bytes: &[u8]) -> Option<Version> {
        let mut version = None;
        for (part, bytes) in (number.0 * self.parts()..).zip(bytes.chunks(PART_BYTES)) {
            let this = match Stamp::of(bytes) {
                Some(stamp) if stamp.part == part => stamp.version,
                None if bytes.iter().all(|byte| *byte == 0) => Version(0),
                _ => return None,
            };
            if version.is_some_and(|v| v != this) {
                return None;
            }
            version = Some(this);
        }
        version
    }
}

/// The bytes of a page as something to be written.
pub(crate) fn packed<F: PageFormat>(format: &F, number: PageNumber, page: &F::Page) -> device::SharedBufs {
    let mut buf = Buf::zeroed(format.page_bytes());
    format.pack(number, page, &mut buf);
    device::Bufs::from(buf).freeze()
}

#[cfg(test)]
mod tests {
    //! Goal: no page is taken for another, for another version, or for whole when it is not. Method: every way to be wrong.
    use super::*;
    use device::Bufs;

    fn bytes_of(number: u64, version: u64) -> Vec<u8> {
        let mut out = vec![0; 8192];
        Stamped::new(8192).pack(PageNumber(number), &Version(version), &mut out);
        out
    }

    fn read_as(number: u64, bytes: &[u8]) -> Option<u64> {
        let rope = Bufs::from(Buf::padded(bytes, 4096));
        Stamped::new(8192).unpack(PageNumber(number), rope.view(0..bytes.len())).map(|v| v.0)
    }

    #[test]
    fn a_page_is_itself_and_nothing_else() {
        assert_eq!(read_as(7, &bytes_of(7, 3)), Some(3));
        assert_eq!(read_as(7, &bytes_of(8, 3)), None);
        assert_eq!(read_as(7, &vec![0; 8192]), Some(0));
        for torn in [4096, 512, 8000] {
            let (mut new, old) = (bytes_of(7, 3), bytes_of(7, 2));
            new[torn..].copy_from_slice(&old[torn..]);
            assert_eq!(read_as(7, &new), None, "torn at {torn}");
        }
        for at in 0..8192 {
            let mut rotten = bytes_of(7, 3);
            rotten[at] ^= 1;
            assert_eq!(read_as(7, &rotten), None, "byte {at}");
        }
    }

    #[test]
    fn a_page_in_several_pieces_is_put_together() {
        let bytes = bytes_of(9, 4);
        let mut rope = Bufs::from(Buf::padded(&bytes[..512], 512));
        rope.push(Buf::padded(&bytes[512..], 512));
        assert_eq!(Stamped::new(8192).unpack(PageNumber(9), rope.view(0..8192)), Some(Version(4)));
    }
}
