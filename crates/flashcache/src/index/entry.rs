//! One entry of the index: parts of a block in consecutive pages, with what is known of them, in 16 bytes.

use crate::base::tenant::{TENANT_BITS, Tenant};
use crate::base::units::{BlockKey, Page};

/// Frequency and flags in the lower five, the tenant above.
const META_BITS: u32 = 12;
const FREQUENCY_MASK: u8 = 0b11;
const SUSPECT_BIT: u8 = 0b100;
const DIRTY_BIT: u8 = 0b1000;
const AGED_BIT: u8 = 0b1_0000;
const TENANT_SHIFT: u32 = 5;
const TENANT_MASK: u64 = ((1 << TENANT_BITS) - 1) << TENANT_SHIFT;
const _: () = assert!(TENANT_SHIFT + TENANT_BITS == META_BITS);

/// One entry: some parts of a block in consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key_and_meta: u64,
    pub(crate) page: u32,
    /// The parts it was written with: gives their places.
    pub(crate) mask: u16,
    /// The parts still valid, a subset of `mask`.
    pub(crate) valid: u16,
}

const _: () = assert!(std::mem::size_of::<Entry>() == 16);

pub(crate) const EMPTY: Entry = Entry { key_and_meta: 0, page: 0, mask: 0, valid: 0 };

impl Entry {
    /// An entry with every part of `mask` valid.
    ///
    /// # Panics
    /// When `mask` is empty.
    #[must_use]
    pub(crate) fn new(key: BlockKey, page: Page, mask: u16, frequency: u8, suspect: bool) -> Entry {
        assert!(mask != 0, "an entry has parts");
        let meta = frequency & FREQUENCY_MASK | if suspect { SUSPECT_BIT } else { 0 };
        Entry { key_and_meta: key.0 << META_BITS | u64::from(meta), page: page.0, mask, valid: mask }
    }
    /// The same without the parts of `dead`.
    ///
    /// # Panics
    /// When none is left.
    #[must_use]
    pub(crate) fn without(mut self, dead: u16) -> Entry {
        self.valid &= !dead;
        assert!(self.valid != 0, "an entry has valid parts");
        self
    }
    /// The block.
    #[must_use]
    pub(crate) fn key(&self) -> BlockKey {
        BlockKey(self.key_and_meta >> META_BITS)
    }
    /// The first page of its data.
    #[must_use]
    pub(crate) fn page(&self) -> Page {
        Page(self.page)
    }
    /// The parts it was written with.
    #[must_use]
    pub(crate) fn mask(&self) -> u16 {
        self.mask
    }
    /// The parts still valid.
    #[must_use]
    pub(crate) fn valid(&self) -> u16 {
        self.valid
    }
    /// Where a part of its mask lies.
    #[must_use]
    pub(crate) fn page_of_part(&self, part: u32) -> Page {
        Page(self.page + (self.mask & ((1 << part) - 1)).count_ones())
    }
    /// How often it was asked for, saturating at 3.
    #[must_use]
    pub(crate) fn frequency(&self) -> u8 {
        self.key_and_meta as u8 & FREQUENCY_MASK
    }
    /// KEEP data that counts as DEFAULT data, since it was unused for long, until it is hit.
    #[must_use]
    pub(crate) fn aged(&self) -> bool {
        self.key_and_meta as u8 & AGED_BIT != 0
    }
    /// It has aged.
    pub(crate) fn set_aged(&mut self) {
        self.key_and_meta |= u64::from(AGED_BIT);
    }
    /// Count a hit.
    pub(crate) fn touch(&mut self) {
        self.key_and_meta &= !u64::from(AGED_BIT);
        if self.frequency() < FREQUENCY_MASK {
            self.key_and_meta += 1;
        }
    }
    /// Count a hit less.
    pub(crate) fn cool(&mut self) {
        if self.frequency() > 0 {
            self.key_and_meta -= 1;
        }
    }
    /// It has to be compared with the disk before it is served.
    #[must_use]
    pub(crate) fn suspect(&self) -> bool {
        self.key_and_meta as u8 & SUSPECT_BIT != 0
    }
    /// Set or clear [`Entry::suspect`].
    pub(crate) fn set_suspect(&mut self, suspect: bool) {
        let bit = u64::from(SUSPECT_BIT);
        self.key_and_meta = if suspect { self.key_and_meta | bit } else { self.key_and_meta & !bit };
    }
    /// Newer than the slow disk: its parts live here alone.
    #[must_use]
    pub(crate) fn dirty(&self) -> bool {
        self.key_and_meta as u8 & DIRTY_BIT != 0
    }
    /// Set or clear [`Entry::dirty`].
    pub(crate) fn set_dirty(&mut self, dirty: bool) {
        let bit = u64::from(DIRTY_BIT);
        self.key_and_meta = if dirty { self.key_and_meta | bit } else { self.key_and_meta & !bit };
    }
    /// Whose it is.
    #[must_use]
    pub(crate) fn tenant(&self) -> Tenant {
        Tenant::from_bits((self.key_and_meta >> TENANT_SHIFT) as u8)
    }
    /// It is this tenant's. Of one in an index only where the index sees it: in [`Index::visit`] and [`Index::for_each`].
    pub(crate) fn set_tenant(&mut self, tenant: Tenant) {
        self.key_and_meta = self.key_and_meta & !TENANT_MASK | u64::from(tenant.bits()) << TENANT_SHIFT;
    }
    /// The same entry, of this tenant.
    #[must_use]
    pub(crate) fn of(mut self, tenant: Tenant) -> Entry {
        self.set_tenant(tenant);
        self
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.mask == 0
    }
}

/// Parts of an entry that died: its first page, which parts, and what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Killed {
    /// The entry's first page.
    pub page: Page,
    /// The parts that died.
    pub mask: u16,
    /// They were newer than the slow disk.
    pub dirty: bool,
    /// How often the entry had been asked for.
    pub frequency: u8,
    /// Whose they were.
    pub tenant: Tenant,
}

impl Killed {
    /// Parts of a clean entry that nobody has asked for.
    #[must_use]
    pub(crate) fn clean(page: Page, mask: u16) -> Killed {
        Killed { page, mask, dirty: false, frequency: 0, tenant: Tenant::NOBODY }
    }
}
