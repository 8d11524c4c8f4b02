//! The coarse dirty bitmap of a disk's label: which stretches may have newer data on flash (DESIGN I5).
//!
//! Coarse on purpose: it names ranges when the flash is lost. The exact dirty map is the cache's business.

use crate::layout::{DIRTY_BITS, DIRTY_GRANULE_BYTES_MIN, dirty_granule_bytes_for};

const WORDS: usize = DIRTY_BITS / 64;

/// One bit per granule of the device, from its first byte.
#[derive(Clone, PartialEq, Eq)]
pub struct DirtyMap {
    granule_bytes: u64,
    words: Box<[u64; WORDS]>,
}

impl DirtyMap {
    /// Nothing dirty, granules for a device of `size_bytes`.
    #[must_use]
    pub fn new(size_bytes: u64) -> DirtyMap {
        DirtyMap { granule_bytes: dirty_granule_bytes_for(size_bytes), words: Box::new([0; WORDS]) }
    }

    /// Bytes per bit: a power of two of at least [`DIRTY_GRANULE_BYTES_MIN`].
    #[must_use]
    pub fn granule_bytes(&self) -> u64 {
        self.granule_bytes
    }

    /// Mark every granule that `offset..offset + len` touches. Returns whether that changed anything, so that a caller
    /// writes a label only for news.
    ///
    /// # Panics
    /// When the range lies beyond the device: callers map grid disk offsets first.
    pub fn set(&mut self, offset: u64, len: u64) -> bool {
        let mut changed = false;
        for bit in self.granules(offset, len) {
            let word = &mut self.words[bit / 64];
            changed |= *word & (1 << (bit % 64)) == 0;
            *word |= 1 << (bit % 64);
        }
        changed
    }

    /// Clear every granule that lies wholly in `offset..offset + len`.
    pub fn clear(&mut self, offset: u64, len: u64) {
        let Some(end) = offset.checked_add(len) else { panic!("a range lies within the device") };
        let first = offset.div_ceil(self.granule_bytes);
        let last = end / self.granule_bytes;
        for bit in first..last.min(DIRTY_BITS as u64) {
            self.words[bit as usize / 64] &= !(1 << (bit % 64));
        }
    }

    /// Nothing dirty.
    pub fn clear_all(&mut self) {
        self.words.fill(0);
    }

    /// Whether any byte of the range may be dirty.
    ///
    /// # Panics
    /// When the range lies beyond the device.
    #[must_use]
    pub fn is_dirty(&self, offset: u64, len: u64) -> bool {
        self.granules(offset, len).any(|bit| self.words[bit / 64] & (1 << (bit % 64)) != 0)
    }

    /// Number of dirty granules.
    #[must_use]
    pub fn dirty_count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Dirty stretches `(offset, len)` in bytes, ascending, neighbours merged.
    #[must_use]
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for bit in (0..DIRTY_BITS).filter(|bit| self.words[bit / 64] & (1 << (bit % 64)) != 0) {
            let offset = bit as u64 * self.granule_bytes;
            match ranges.last_mut() {
                Some((start, len)) if *start + *len == offset => *len += self.granule_bytes,
                _ => ranges.push((offset, self.granule_bytes)),
            }
        }
        ranges
    }

    /// Fit to a device that has grown: granules are merged, a merged one is dirty when either half was.
    pub fn grow_to(&mut self, size_bytes: u64) {
        let granule_bytes = dirty_granule_bytes_for(size_bytes);
        if granule_bytes <= self.granule_bytes {
            return;
        }
        let mut grown = DirtyMap { granule_bytes, words: Box::new([0; WORDS]) };
        for (offset, len) in self.ranges() {
            grown.set(offset, len);
        }
        *self = grown;
    }

    fn granules(&self, offset: u64, len: u64) -> impl Iterator<Item = usize> + use<> {
        let Some(end) = offset.checked_add(len) else { panic!("a range lies within the device") };
        let first = offset / self.granule_bytes;
        let last = if len == 0 { first } else { end.div_ceil(self.granule_bytes) };
        assert!(last <= DIRTY_BITS as u64, "a range lies within the device");
        first as usize..last as usize
    }

    /// The bits as the label carries them.
    pub(crate) fn to_bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.words.iter().flat_map(|word| word.to_le_bytes())
    }

    /// From the label's bytes; none when the granule is not valid for the size or a bit beyond the device is set.
    pub(crate) fn from_bytes(granule_bytes: u64, size_bytes: u64, bytes: &[u8]) -> Option<DirtyMap> {
        if !granule_bytes.is_power_of_two() || granule_bytes < DIRTY_GRANULE_BYTES_MIN || bytes.len() != WORDS * 8 {
            return None;
        }
        let granules = size_bytes.div_ceil(granule_bytes);
        if granules > DIRTY_BITS as u64 {
            return None;
        }
        let mut words = Box::new([0_u64; WORDS]);
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        }
        let beyond = (granules as usize..DIRTY_BITS).any(|bit| words[bit / 64] & (1 << (bit % 64)) != 0);
        (!beyond).then_some(DirtyMap { granule_bytes, words })
    }
}

impl std::fmt::Debug for DirtyMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirtyMap({} of {} B each)", self.dirty_count(), self.granule_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn set_is_generous_and_clear_is_stingy() {
        let mut map = DirtyMap::new(1 << 30);
        assert!(map.set(MIB - 1, 2));
        assert!(!map.set(0, 2 * MIB), "nothing new");
        assert_eq!(map.ranges(), [(0, 2 * MIB)]);
        map.clear(1, 2 * MIB - 1);
        assert_eq!(map.ranges(), [(0, MIB)], "a granule cleared in part stays dirty");
        assert!(map.is_dirty(MIB - 1, 1) && !map.is_dirty(MIB, MIB) && !map.is_dirty(0, 0));
        assert!(!map.set(5 * MIB, 0), "no bytes, no granule");
        map.clear_all();
        assert_eq!(map.dirty_count(), 0);
    }

    #[test]
    fn bytes_round_trip_and_stray_bits_are_refused() {
        let mut map = DirtyMap::new(10 * MIB);
        map.set(3 * MIB, 1);
        map.set(9 * MIB, MIB);
        let mut bytes: Vec<u8> = map.to_bytes().collect();
        assert_eq!(bytes[..3], [0b1000, 0b10, 0]);
        assert_eq!(DirtyMap::from_bytes(MIB, 10 * MIB, &bytes).unwrap(), map);
        bytes[1] |= 0b100;
        assert_eq!(DirtyMap::from_bytes(MIB, 10 * MIB, &bytes), None, "beyond the device");
        assert!(DirtyMap::from_bytes(MIB, 11 * MIB, &bytes).is_some());
        assert_eq!(DirtyMap::from_bytes(MIB / 2, 11 * MIB, &bytes), None, "granule too small");
        assert_eq!(DirtyMap::from_bytes(MIB * 3, 11 * MIB, &bytes), None, "granule no power of two");
        assert_eq!(DirtyMap::from_bytes(MIB, 1 << 40, &bytes), None, "granule too small for the size");
    }

    #[test]
    fn growth_keeps_what_is_dirty() {
        let mut map = DirtyMap::new(64 << 30);
        map.set((64 << 30) - 1, 1);
        map.set(3 * MIB, 1);
        map.grow_to(100 << 30);
        assert_eq!(map.granule_bytes(), 2 * MIB);
        assert_eq!(map.ranges(), [(2 * MIB, 2 * MIB), ((64 << 30) - 2 * MIB, 2 * MIB)]);
    }
}
