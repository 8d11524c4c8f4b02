//! The I/O resource plan as a value: what an operator states of databases, checked as a whole.
//!
//! Never schedules, never does I/O. How it is written down is in [`crate::plan::text`].

use crate::plan::profile::{self, Assignment};
use crate::plan::text;

/// Directives of a plan that states shares, or nothing of the kind: as many as the vendor's.
pub(crate) const SHARE_DIRECTIVES_MAX: usize = 1024;
/// Directives of a plan with levels: as many as the vendor's.
pub(crate) const LEVEL_DIRECTIVES_MAX: usize = 32;
/// Bytes of a database name: as an export name takes.
pub(crate) const DATABASE_BYTES_MAX: usize = 128;
/// The largest share; the smallest is 1, which is also what counts when none is stated.
pub(crate) const SHARE_MAX: u32 = 32;
/// The lowest level; the highest is 1.
pub(crate) const LEVEL_MAX: u32 = 8;
/// Fifths of the flash cache that are guaranteed to databases at most.
const GUARANTEED_FIFTHS_MAX: u64 = 4;
/// The least `flashcachesize`.
pub(crate) const FLASH_CACHE_SIZE_BYTES_MIN: u64 = 4 << 20;

/// What the scheduler aims at: how many requests a device is given at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Objective {
    /// By what the databases do: as high throughput while most of a device's time goes to large requests, else balanced.
    #[default]
    Auto,
    /// Nothing is delayed: shares, allocations and limits are kept but not enforced. The switches of flash are.
    Basic,
    /// Few at a time: short queues in the device.
    LowLatency,
    /// In between.
    Balanced,
    /// Many at a time.
    HighThroughput,
}

impl Objective {
    /// Every objective.
    pub const ALL: [Objective; 5] =
        [Objective::Auto, Objective::Basic, Objective::LowLatency, Objective::Balanced, Objective::HighThroughput];

    /// As the operator writes it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Objective::Auto => "auto",
            Objective::Basic => "basic",
            Objective::LowLatency => "low_latency",
            Objective::Balanced => "balanced",
            Objective::HighThroughput => "high_throughput",
        }
    }

    /// The one written so, in any case.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Objective> {
        Objective::ALL.into_iter().find(|one| one.word().eq_ignore_ascii_case(word))
    }
}

/// What a directive is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A database, by the name its connections are tagged with, whatever the case.
    Database(String),
    /// All that have no directive, together, untagged connections included.
    Other,
    /// Each that has no directive, for itself.
    Default,
    /// Each database that has this profile, for itself.
    Profile(String),
}

impl Subject {
    pub(crate) fn named(name: &str) -> Subject {
        match name.to_ascii_lowercase().as_str() {
            "other" => Subject::Other,
            "default" => Subject::Default,
            _ => Subject::Database(name.to_owned()),
        }
    }

    /// As the operator writes it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Subject::Database(name) | Subject::Profile(name) => name,
            Subject::Other => "other",
            Subject::Default => "default",
        }
    }
}

/// One directive: what is stated of a database. What is not stated is as if there were no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// Of whom.
    pub subject: Subject,
    /// 1 to [`LEVEL_MAX`]: a level gets what those above it leave.
    pub level: Option<u32>,
    /// Per cent of what its level gets, 0 to 100.
    pub allocation: Option<u32>,
    /// 1 to [`SHARE_MAX`].
    pub share: Option<u32>,
    /// The most of a device's time, per cent, 1 to 100; counts on an idle device too.
    pub limit: Option<u32>,
    /// Whether it uses the flash cache.
    pub flash_cache: Option<bool>,
    /// Whether it uses the flash log.
    pub flash_log: Option<bool>,
    /// Bytes of the flash cache it is sure of.
    pub flash_cache_min_bytes: Option<u64>,
    /// Bytes of the flash cache it gets when the cache is full.
    pub flash_cache_limit_bytes: Option<u64>,
    /// Bytes of the flash cache it never exceeds.
    pub flash_cache_size_bytes: Option<u64>,
}

impl Directive {
    /// One that states nothing.
    #[must_use]
    pub fn of(subject: Subject) -> Directive {
        Directive {
            subject,
            level: None,
            allocation: None,
            share: None,
            limit: None,
            flash_cache: None,
            flash_log: None,
            flash_cache_min_bytes: None,
            flash_cache_limit_bytes: None,
            flash_cache_size_bytes: None,
        }
    }
}

/// Why there is no such plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The first attribute is not `name`.
    #[error("a directive does not begin with its name\nhint: dbplan=((name=DATABASE, share=8), (name=other, …))")]
    NoName,
    /// Not a name.
    #[error(
        "{0:?} is no name of a database\nhint: 1 to {DATABASE_BYTES_MAX} bytes without quotes and control characters"
    )]
    BadName(String),
    /// Twice the same.
    #[error("{0} has two directives\nhint: one directive holds all that is stated of a database or a profile")]
    Duplicate(String),
    /// Of a database.
    #[error("{0} has two profiles\nhint: ALTER DATABASE {0} profile=… states the one it is to have")]
    TwoProfiles(String),
    /// A profile that the plan does not state: given to a database, or taken away from under it.
    #[error(
        "database {database} has the profile {profile}, which the plan does not state\nhint: LIST IORMPROFILE shows the profiles \
         there are, ALTER DATABASE {database} profile='' takes it out of its own"
    )]
    NoProfile {
        /// Whose.
        database: String,
        /// Which.
        profile: String,
    },
    /// Twice in one.
    #[error("the directive of {0} states {1} twice")]
    Repeated(String, String),
    /// Nothing is called so.
    #[error(
        "the directive of {0} states {1}, which no directive has\nhint: level, allocation, share, limit, flashcache, flashlog, \
         flashcachemin, flashcachelimit, flashcachesize, type"
    )]
    Unknown(String, String),
    /// The vendor has it, this cell has not.
    #[error("the directive of {0} states {1}, which this version does not carry out\nhint: leave it out")]
    NotSupported(String, String),
    /// Out of bounds or not of the kind.
    #[error("the directive of {name} states {attribute}={value}\nhint: {attribute} is {wanted}")]
    BadValue {
        /// Whose.
        name: String,
        /// Which attribute.
        attribute: &'static str,
        /// What was given.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// Level or allocation alone.
    #[error("the directive of {0} has level or allocation alone\nhint: state both, or a share")]
    HalfLevel(String),
    /// Both kinds.
    #[error("the plan has shares and levels\nhint: state level and allocation for all, or a share for all")]
    Mixed,
    /// Nobody catches the rest.
    #[error("the plan has levels and no directive for other\nhint: add (name=other, level=…, allocation=…)")]
    NoOther,
    /// The wrong catcher of the rest.
    #[error("a plan with {0} has no directive for {1}\nhint: {2}")]
    WrongRest(&'static str, &'static str, &'static str),
    /// More than there is.
    #[error("the allocations of level {level} come to {sum} %\nhint: at most 100 % on each level")]
    Level {
        /// Which.
        level: u32,
        /// How much.
        sum: u32,
    },
    /// Too many.
    #[error("the plan has {count} directives\nhint: at most {max} with {kind}")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
        /// In such a plan.
        kind: &'static str,
    },
    /// Soft and hard limit at once.
    #[error("the directive of {0} has flashcachelimit and flashcachesize\nhint: state one of them")]
    LimitAndSize(String),
    /// The least is more than the most.
    #[error("the directive of {0} has a flashcachemin beyond its flashcachesize or flashcachelimit")]
    MinBeyondSize(String),
    /// More than the cache can guarantee.
    #[error(
        "the flashcachemin of all directives come to {sum_bytes} bytes, the flash cache of {size_bytes} bytes guarantees \
         {max_bytes}: the rest is for what comes and goes\nhint: state less, or make the flash cache larger",
        max_bytes = Plan::guaranteed_bytes_max(*size_bytes)
    )]
    MinBeyondCache {
        /// Of all directives.
        sum_bytes: u64,
        /// Of the flash cache.
        size_bytes: u64,
    },
    /// A promise to nobody knows how many.
    #[error(
        "the directive of default has a flashcachemin, and nobody knows how many databases it will be for\n\
         hint: state it by name, or for other, which is one"
    )]
    MinOfDefault,
    /// More than there are numbers.
    #[error("{0} directives state sizes of the flash cache\nhint: at most {max} do", max = crate::plan::numbers::SIZED_MAX)]
    TooManySized(usize),
    /// Longer than the catalog takes.
    #[error("the plan is {0} bytes long as text\nhint: at most {max}: fewer directives, or shorter names", max = celldisk::layout::IORM_PLAN_BYTES_MAX)]
    TooLong(usize),
    /// What the catalog holds is not a plan.
    #[error(
        "the catalog holds an I/O resource plan that cannot be read: {0}\nhint: ALTER IORMPLAN dbplan=\"\" begins anew"
    )]
    Unreadable(&'static str),
}

/// A plan for the I/O of databases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What the scheduler aims at.
    pub objective: Objective,
    /// Kept, but as if there were none.
    pub inactive: bool,
    directives: Vec<Directive>,
    /// In the order of names.
    assignments: Vec<Assignment>,
    /// What both come to.
    in_force: Vec<Directive>,
}

/// Which kind of directives a plan has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Neither shares nor levels: every database has one share.
    Plain,
    Shares,
    Levels,
}

impl Plan {
    /// A plan of these directives.
    ///
    /// # Errors
    /// They contradict each other or themselves.
    pub fn new(objective: Objective, inactive: bool, directives: Vec<Directive>) -> Result<Plan, PlanError> {
        Plan::with_profiles(objective, inactive, directives, Vec::new())
    }

    /// A plan of these directives, with profiles among them that databases have.
    ///
    /// # Errors
    /// They contradict each other or themselves, or somebody has a profile that is not among them.
    pub fn with_profiles(
        objective: Objective,
        inactive: bool,
        directives: Vec<Directive>,
        assignments: Vec<Assignment>,
    ) -> Result<Plan, PlanError> {
        let in_force = profile::resolve(&directives, &assignments)?;
        let plan = Plan { objective, inactive, directives, assignments, in_force };
        plan.check()?;
        let bytes = text::write(&plan).len();
        if bytes > celldisk::layout::IORM_PLAN_BYTES_MAX { Err(PlanError::TooLong(bytes)) } else { Ok(plan) }
    }

    /// Its directives in the order they were given.
    #[must_use]
    pub fn directives(&self) -> &[Directive] {
        &self.directives
    }

    /// Who has which profile, in the order of names.
    #[must_use]
    pub fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    /// What is carried out: directives of databases and of those without one. Profiles stand in it as directives of those who have
    /// them.
    #[must_use]
    pub fn in_force(&self) -> &[Directive] {
        &self.in_force
    }

    pub(crate) fn kind(&self) -> Kind {
        if self.directives.iter().any(|d| d.level.is_some()) {
            Kind::Levels
        } else if self.directives.iter().any(|d| d.share.is_some()) {
            Kind::Shares
        } else {
            Kind::Plain
        }
    }

    /// Whether anything is ever delayed by it.
    #[must_use]
    pub fn delays(&self) -> bool {
        let states = |d: &Directive| d.share.is_some() || d.level.is_some() || d.limit.is_some();
        !self.inactive && self.objective != Objective::Basic && self.in_force.iter().any(states)
    }

    /// The directive that counts for connections with this tag, and whether it is theirs alone: those it catches together share
    /// what it states.
    pub(crate) fn directive_of(&self, database: Option<&str>) -> (Option<&Directive>, bool) {
        let named = database.and_then(|name| {
            self.in_force.iter().find(|d| matches!(&d.subject, Subject::Database(of) if of.eq_ignore_ascii_case(name)))
        });
        if named.is_some() {
            return (named, true);
        }
        let of = |subject: Subject| self.in_force.iter().find(|d| d.subject == subject);
        match of(Subject::Other) {
            Some(other) => (Some(other), false),
            None => (of(Subject::Default), database.is_some()),
        }
    }

    /// Whether a directive is about this database alone.
    #[must_use]
    pub fn names(&self, database: &str) -> bool {
        self.in_force.iter().any(|d| matches!(&d.subject, Subject::Database(of) if of.eq_ignore_ascii_case(database)))
    }

    /// The directive that counts for connections of this database, if any.
    #[must_use]
    pub fn stated(&self, database: &str) -> Option<&Directive> {
        self.directive_of(Some(database)).0
    }

    /// Whether connections with this tag use the flash cache.
    #[must_use]
    pub fn uses_flash_cache(&self, database: Option<&str>) -> bool {
        self.inactive || self.directive_of(database).0.and_then(|d| d.flash_cache).unwrap_or(true)
    }

    /// Whether redo of connections with this tag uses the flash log.
    #[must_use]
    pub fn uses_flash_log(&self, database: Option<&str>) -> bool {
        self.inactive || self.directive_of(database).0.and_then(|d| d.flash_log).unwrap_or(true)
    }

    /// The sum of all `flashcachemin` against a flash cache of this size.
    ///
    /// # Errors
    /// It is more than the cache guarantees.
    pub fn check_flash_cache(&self, size_bytes: u64) -> Result<(), PlanError> {
        let sum_bytes = self.min_bytes();
        let fits = sum_bytes <= Plan::guaranteed_bytes_max(size_bytes);
        if fits { Ok(()) } else { Err(PlanError::MinBeyondCache { sum_bytes, size_bytes }) }
    }

    /// What a flash cache of this size guarantees to databases in all: as much as to KEEP data, since what comes and goes needs some
    /// room, whoever has it.
    #[must_use]
    pub fn guaranteed_bytes_max(size_bytes: u64) -> u64 {
        size_bytes / 5 * GUARANTEED_FIFTHS_MAX
    }

    /// All `flashcachemin`.
    fn min_bytes(&self) -> u64 {
        self.in_force.iter().filter_map(|d| d.flash_cache_min_bytes).fold(0, u64::saturating_add)
    }

    /// What is guaranteed if sizes are reservations.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let least = |d: &Directive| d.flash_cache_min_bytes.max(d.flash_cache_size_bytes);
        let named = self.in_force.iter().filter(|d| d.subject != Subject::Default);
        named.filter_map(least).fold(0, u64::saturating_add)
    }

    /// What a flash cache of this size guarantees of so many bytes: less where it is smaller than when the plan was stated.
    pub(crate) fn cut_to(&self, bytes: u64, size_bytes: u64) -> u64 {
        let (sum, max) = (self.min_bytes(), Plan::guaranteed_bytes_max(size_bytes));
        if sum <= max {
            return bytes;
        }
        (u128::from(bytes) * u128::from(max) / u128::from(sum)) as u64
    }

    fn check(&self) -> Result<(), PlanError> {
        let kind = self.kind();
        let (max, what) = match kind {
            Kind::Levels => (LEVEL_DIRECTIVES_MAX, "level and allocation"),
            Kind::Shares | Kind::Plain => (SHARE_DIRECTIVES_MAX, "shares"),
        };
        // A profile is a directive for each that has it.
        let count = self.directives.len().max(self.in_force.len());
        if count > max {
            return Err(PlanError::TooMany { count, max, kind: what });
        }
        let mut seen = std::collections::BTreeSet::new();
        for directive in &self.directives {
            directive.check()?;
            if !seen.insert(directive.subject.name().to_lowercase()) {
                return Err(PlanError::Duplicate(directive.subject.name().to_owned()));
            }
            if kind == Kind::Levels && directive.share.is_some() {
                return Err(PlanError::Mixed);
            }
            if kind == Kind::Levels && directive.level.is_none() {
                return Err(PlanError::HalfLevel(directive.subject.name().to_owned()));
            }
        }
        for directive in &self.in_force {
            directive.check()?;
        }
        let sized = self.in_force.iter().filter(|d| d.is_sized()).count();
        if sized > crate::plan::numbers::SIZED_MAX {
            return Err(PlanError::TooManySized(sized));
        }
        let has = |subject| self.directives.iter().any(|d| d.subject == subject);
        match kind {
            Kind::Levels if has(Subject::Default) => {
                Err(PlanError::WrongRest("levels", "default", "other catches those without a directive"))
            }
            Kind::Levels if !has(Subject::Other) => Err(PlanError::NoOther),
            Kind::Shares if has(Subject::Other) => {
                Err(PlanError::WrongRest("shares", "other", "default is for each database without a directive"))
            }
            Kind::Plain if has(Subject::Other) && has(Subject::Default) => {
                Err(PlanError::WrongRest("other", "default", "one of the two catches those without a directive"))
            }
            Kind::Levels => self.check_levels(),
            _ => Ok(()),
        }
    }

    fn check_levels(&self) -> Result<(), PlanError> {
        for level in 1..=LEVEL_MAX {
            let on_it = self.in_force.iter().filter(|d| d.level == Some(level));
            let sum: u32 = on_it.filter_map(|d| d.allocation).sum();
            if sum > 100 {
                return Err(PlanError::Level { level, sum });
            }
        }
        Ok(())
    }
}

impl Directive {
    /// Whether it states how much of the flash cache somebody may have.
    pub(crate) fn is_sized(&self) -> bool {
        let sizes = [self.flash_cache_min_bytes, self.flash_cache_limit_bytes, self.flash_cache_size_bytes];
        sizes.iter().any(Option::is_some)
    }

    fn check(&self) -> Result<(), PlanError> {
        let name = self.subject.name();
        if name.is_empty()
            || name.len() > DATABASE_BYTES_MAX
            || name.contains(|c: char| c.is_control() || "'\"\\".contains(c))
        {
            return Err(PlanError::BadName(name.to_owned()));
        }
        let bad = |attribute, value: u32, wanted| PlanError::BadValue {
            name: name.to_owned(),
            attribute,
            value: value.to_string(),
            wanted,
        };
        if let Some(share) = self.share.filter(|share| !(1..=SHARE_MAX).contains(share)) {
            return Err(bad("share", share, "1 to 32"));
        }
        if let Some(level) = self.level.filter(|level| !(1..=LEVEL_MAX).contains(level)) {
            return Err(bad("level", level, "1 to 8"));
        }
        if let Some(allocation) = self.allocation.filter(|allocation| *allocation > 100) {
            return Err(bad("allocation", allocation, "0 to 100, per cent"));
        }
        if let Some(limit) = self.limit.filter(|limit| !(1..=100).contains(limit)) {
            return Err(bad("limit", limit, "1 to 100, per cent"));
        }
        if self.level.is_some() != self.allocation.is_some() {
            return Err(PlanError::HalfLevel(name.to_owned()));
        }
        if self.level.is_some() && self.share.is_some() {
            return Err(PlanError::Mixed);
        }
        if self.flash_cache_limit_bytes.is_some() && self.flash_cache_size_bytes.is_some() {
            return Err(PlanError::LimitAndSize(name.to_owned()));
        }
        if self.flash_cache_size_bytes.is_some_and(|size| size < FLASH_CACHE_SIZE_BYTES_MIN) {
            let value = self.flash_cache_size_bytes.unwrap_or(0).to_string();
            let (attribute, wanted) = ("flashcachesize", "at least 4M");
            return Err(PlanError::BadValue { name: name.to_owned(), attribute, value, wanted });
        }
        if self.subject == Subject::Default && self.flash_cache_min_bytes.is_some() {
            return Err(PlanError::MinOfDefault);
        }
        let most = self.flash_cache_size_bytes.or(self.flash_cache_limit_bytes);
        if most.zip(self.flash_cache_min_bytes).is_some_and(|(most, least)| least > most) {
            return Err(PlanError::MinBeyondSize(name.to_owned()));
        }
        Ok(())
    }
}
