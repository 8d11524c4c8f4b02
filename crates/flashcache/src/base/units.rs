//! The numbers of the cache, each with a type of its own so that they cannot be swapped.

/// Bytes of a part and of a page of the flash log: the unit of checksums, validity and placement.
pub const PART_BYTES: u64 = 4096;
/// Bytes of an unsettled region: the unit in which writes that may not have reached the medium are remembered.
pub const REGION_BYTES: u64 = 1 << 20;
/// Parts of a region.
pub const REGION_PARTS: u64 = REGION_BYTES / PART_BYTES;
/// The most pages a segment may have (64 MiB): positions then fit records and RAM tables stay small.
pub const SEGMENT_PAGES_MAX: u32 = 16384;
/// The fewest pages a segment may have (64 KiB): below that headers and footers eat the space.
pub const SEGMENT_PAGES_MIN: u32 = 16;

/// A segment of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

/// One opening of a segment, by the life of the member in which it was opened and a counter within that. Never used again on a member, and
/// ordered: whatever names one means what was written in it, and nothing that came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opening(pub u64);

impl Opening {
    /// Before the first opening of a segment.
    pub const NEVER: Opening = Opening(0);

    /// Opening number `counter`, from 1 on, of a life.
    #[must_use]
    pub fn new(life: u32, counter: u32) -> Opening {
        Opening(u64::from(life) << 32 | u64::from(counter))
    }

    /// The life of the member in which it began.
    #[must_use]
    pub fn life(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A page within a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u32);

/// A page within a member: 2^32 pages are 16 TiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u32);

/// A grid disk as the cache knows it while the cell runs: small, so that index keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskSlot(pub u16);

/// The most grid disks one cache serves: the slot's bits in a [`BlockKey`].
pub const DISK_SLOTS_MAX: u16 = 1 << 14;
/// Bits of a block number in a [`BlockKey`]: 2^38 blocks of 4 KiB are 1 PiB.
const BLOCK_BITS: u32 = 38;
/// The lower bits of a slot stand on top, the two others between them and the block: keys of the first 4,096 slots, and so their hashes and
/// what policies decide by them, are those that were measured.
const SLOT_LOW_BITS: u32 = 12;
const SLOT_LOW_AT: u32 = 40;
/// The most blocks of a grid disk that is cached.
pub const BLOCKS_MAX: u64 = 1 << BLOCK_BITS;

/// A block of a grid disk in 52 bits: slot above, block number below; 12 bits are left to the index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub u64);

impl BlockKey {
    /// Pack.
    ///
    /// # Panics
    /// When slot or block number are beyond their bits.
    #[must_use]
    pub fn new(slot: DiskSlot, block: u64) -> BlockKey {
        assert!(block < BLOCKS_MAX, "block numbers have 38 bits");
        assert!(slot.0 < DISK_SLOTS_MAX, "slots have 14 bits");
        let (high, low) = (u64::from(slot.0 >> SLOT_LOW_BITS), u64::from(slot.0 & ((1 << SLOT_LOW_BITS) - 1)));
        BlockKey(low << SLOT_LOW_AT | high << BLOCK_BITS | block)
    }
    /// The grid disk.
    #[must_use]
    pub fn slot(self) -> DiskSlot {
        let (low, high) = (self.0 >> SLOT_LOW_AT, self.0 >> BLOCK_BITS & ((1 << (SLOT_LOW_AT - BLOCK_BITS)) - 1));
        DiskSlot((high << SLOT_LOW_BITS | low) as u16)
    }
    /// The block number.
    #[must_use]
    pub fn block(self) -> u64 {
        self.0 & (BLOCKS_MAX - 1)
    }
    /// A well mixed hash.
    #[must_use]
    pub fn hash(self) -> u64 {
        // The finalizer of MurmurHash3: every input bit reaches every output bit.
        let mut h = self.0;
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^ (h >> 33)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a key gives back what it was made of, and its hash spreads whatever differs over shards and places. Method: the ends of each
    //! field; every bit flipped; keys as disks have them, counted by bucket.
    use super::*;

    #[test]
    fn a_key_gives_back_what_it_was_made_of() {
        for slot in [0, 1, 77, 4095, 4096, 8191, 12_288, DISK_SLOTS_MAX - 1] {
            for block in [0, 1, BLOCKS_MAX / 3, BLOCKS_MAX - 1] {
                let key = BlockKey::new(DiskSlot(slot), block);
                assert_eq!((key.slot(), key.block()), (DiskSlot(slot), block));
                assert!(key.0 < 1 << 52);
                assert!(slot >= 4096 || key.0 == u64::from(slot) << 40 | block);
            }
        }
    }

    #[test]
    fn keys_of_a_slot_stand_together() {
        let mut ends: Vec<(u64, u64)> = (0..DISK_SLOTS_MAX)
            .map(|slot| (BlockKey::new(DiskSlot(slot), 0).0, BlockKey::new(DiskSlot(slot), BLOCKS_MAX - 1).0))
            .collect();
        ends.sort_unstable();
        assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }

    #[test]
    fn every_bit_of_a_key_changes_about_half_of_its_hash() {
        for bit in 0..52 {
            let flipped = |n: u64| (BlockKey(n).hash() ^ BlockKey(n ^ 1 << bit).hash()).count_ones();
            let all: u32 = (0..256).map(|n| flipped(n * 0x3_1234_5677)).sum();
            assert!((256 * 30..256 * 34).contains(&all), "bit {bit}: {all} of {} bits", 256 * 64);
        }
    }

    #[test]
    fn blocks_in_a_row_are_spread_by_either_half() {
        for shift in [0, 32] {
            let mut buckets = [0_u32; 64];
            (0..64_000).for_each(|n| buckets[(BlockKey::new(DiskSlot(3), n).hash() >> shift) as usize % 64] += 1);
            assert!(buckets.iter().all(|n| (850..1150).contains(n)), "{buckets:?}");
        }
    }
}
