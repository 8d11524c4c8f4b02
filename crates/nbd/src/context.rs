//! Meta contexts: what BLOCK_STATUS can say about a range, by name.
//!
//! | name | flags of an extent |
//! |---|---|
//! | `base:allocation` | bit 0: no space is allocated; bit 1: reads as zeroes |
//! | `flashcell:tier` | 0 on disk only, 1 cached clean, 2 cached dirty, 3 kept (see [`TierFlags`]) |
//! | `flashcell:instance:<32 hex digits>` | always 0: the name itself is the news |
//!
//! The last one is the export's instance stamp (DESIGN I9): it changes when data that was acknowledged but not flushed
//! may be gone. Queries: an exact name; `base:` and `flashcell:` for all of a namespace (`base:` only when listing, as
//! the protocol has it); `flashcell:instance` and `flashcell:instance:` whatever the stamp is.
//!
//! A query that is answered with no context, but with what it does: `flashcell:successor:<32 hex digits>:<16 hex digits>`, see [`Lineage`].

/// `base:allocation`: no space is allocated.
pub const STATE_HOLE: u32 = 1;
/// `base:allocation`: reads as zeroes.
pub const STATE_ZERO: u32 = 2;

/// Name of the allocation context.
pub const ALLOCATION: &str = "base:allocation";
/// Name of the tier context.
pub const TIER: &str = "flashcell:tier";
/// What the name of the instance context begins with.
pub const INSTANCE_PREFIX: &str = "flashcell:instance:";

/// What a query that names a [`Lineage`] begins with.
pub const SUCCESSOR_PREFIX: &str = "flashcell:successor:";

/// Whose connection it is, for a client that asks again on another connection what it had no answer to. The connections of one client that were made
/// together are one link. A link with a new number takes the place of the others of the client: the server reads nothing more from those, and nothing from it
/// before all that they had asked for is done. So no change of an older link comes after one of a newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// The client: a number that nobody else knows.
    pub client: u128,
    /// The link.
    pub link: u64,
}

impl Lineage {
    /// The query.
    #[must_use]
    pub fn query(self) -> String {
        format!("{SUCCESSOR_PREFIX}{:032x}:{:016x}", self.client, self.link)
    }

    /// The lineage in a query.
    #[must_use]
    pub fn parse(query: &str) -> Option<Lineage> {
        let (client, link) = query.strip_prefix(SUCCESSOR_PREFIX)?.split_once(':')?;
        let is_hex = |digits: &str, len: usize| digits.len() == len && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_hex(client, 32) || !is_hex(link, 16) {
            return None;
        }
        Some(Lineage { client: u128::from_str_radix(client, 16).ok()?, link: u64::from_str_radix(link, 16).ok()? })
    }
}

/// Values of `flashcell:tier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TierFlags {
    /// On disk only.
    Disk = 0,
    /// On disk and, clean, in the flash cache.
    CachedClean = 1,
    /// In the flash cache, newer than on disk.
    CachedDirty = 2,
    /// In the flash cache under KEEP.
    Kept = 3,
}

/// A context this server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaContext {
    /// [`ALLOCATION`].
    Allocation,
    /// [`TIER`].
    Tier,
    /// [`INSTANCE_PREFIX`] and the stamp.
    Instance,
}

impl MetaContext {
    /// Every context, in the order they are listed.
    pub const ALL: [MetaContext; 3] = [MetaContext::Allocation, MetaContext::Tier, MetaContext::Instance];

    /// Its number in status chunks.
    #[must_use]
    pub const fn id(self) -> u32 {
        match self {
            MetaContext::Allocation => 1,
            MetaContext::Tier => 2,
            MetaContext::Instance => 3,
        }
    }

    /// Its name under an instance stamp.
    #[must_use]
    pub fn name(self, stamp: u128) -> String {
        match self {
            MetaContext::Allocation => ALLOCATION.to_owned(),
            MetaContext::Tier => TIER.to_owned(),
            MetaContext::Instance => format!("{INSTANCE_PREFIX}{stamp:032x}"),
        }
    }

    fn matches(self, query: &str, stamp: u128, listing: bool) -> bool {
        match query {
            "base:" => listing && self == MetaContext::Allocation,
            "flashcell:" => self != MetaContext::Allocation,
            "flashcell:instance" | INSTANCE_PREFIX => self == MetaContext::Instance,
            exact => self.name(stamp) == exact,
        }
    }
}

/// A set of contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextSet(u8);

impl ContextSet {
    /// The contexts that any of `queries` selects. Listing without a query means all.
    #[must_use]
    pub fn of_queries(queries: &[String], stamp: u128, listing: bool) -> ContextSet {
        let mut set = ContextSet::default();
        for context in MetaContext::ALL {
            let all = listing && queries.is_empty();
            if all || queries.iter().any(|q| context.matches(q, stamp, listing)) {
                set.0 |= 1 << context.id();
            }
        }
        set
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its contexts, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = MetaContext> {
        MetaContext::ALL.into_iter().filter(move |c| self.0 & 1 << c.id() != 0)
    }
}

/// The stamp in the name of an instance context.
#[must_use]
pub fn parse_instance(name: &str) -> Option<u128> {
    let digits = name.strip_prefix(INSTANCE_PREFIX)?;
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok()
}
