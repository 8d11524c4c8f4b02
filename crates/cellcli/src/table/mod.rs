//! The one table: every verb, object type, attribute and statement form of the language, as constant data.
//!
//! Parser, help, completion, DESCRIBE and the formatter read it; a new object type is a new [`ObjectType`] and a new row
//! in [`OBJECTS`]. Never holds behaviour: a row names, it does not act.

mod activity;
mod alert;
mod cell;
mod cell_disk;
mod database;
mod flash_cache;
mod flash_log;
mod grid_disk;
mod history;
mod iorm_plan;
mod metric;
mod physical;
mod pin;
mod verbs;

pub use verbs::{VERBS, Verb, VerbSpec};

use crate::command::{Flag, Operation};

/// The object types of the language. The variant is what a server matches on; everything else about the type is its
/// row, [`ObjectType::spec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectType {
    /// The cell itself; one per server.
    Cell,
    /// A physical disk taken into the cell.
    CellDisk,
    /// A slice of a cell disk, served as an export.
    GridDisk,
    /// A database that has connected, or that the plan names.
    Database,
    /// The flash cache of the cell; one per cell.
    FlashCache,
    /// The flash log of the cell; one per cell.
    FlashLog,
    /// The I/O resource plan of the cell; one per cell.
    IormPlan,
    /// A directive of the plan that counts for each database that has it.
    IormProfile,
    /// What a metric means.
    MetricDefinition,
    /// The latest value of a metric for one object.
    MetricCurrent,
    /// A range of a grid disk with a caching policy of its own.
    Pin,
    /// What a metric was, once a minute.
    MetricHistory,
    /// A limit of a metric that raises an alert.
    Threshold,
    /// What an alert means.
    AlertDefinition,
    /// An alert that was raised, or one of its changes.
    AlertHistory,
    /// A device below a cell disk.
    PhysicalDisk,
    /// The same, as CREATE CELLDISK names it.
    Lun,
    /// A request of a client under way.
    ActiveRequest,
    /// A range of a grid disk and what the flash cache holds of it.
    FlashCacheContent,
}

/// The rows, in the order help shows them.
pub const OBJECTS: &[ObjectSpec] = &[
    cell::CELL,
    cell_disk::CELL_DISK,
    database::DATABASE,
    flash_cache::FLASH_CACHE,
    flash_log::FLASH_LOG,
    grid_disk::GRID_DISK,
    iorm_plan::IORM_PLAN,
    iorm_plan::IORM_PROFILE,
    metric::CURRENT,
    metric::DEFINITION,
    pin::PIN,
    history::HISTORY,
    alert::THRESHOLD,
    alert::DEFINITION,
    alert::HISTORY,
    physical::PHYSICAL_DISK,
    physical::LUN,
    activity::ACTIVE_REQUEST,
    activity::FLASH_CACHE_CONTENT,
];

impl ObjectType {
    /// The row of this type.
    #[must_use]
    pub fn spec(self) -> &'static ObjectSpec {
        match OBJECTS.iter().find(|spec| spec.object == self) {
            Some(spec) => spec,
            None => unreachable!("the table test checks that every object type has a row"),
        }
    }

    /// The object type written `word`, in any case.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        OBJECTS.iter().find(|spec| spec.word.eq_ignore_ascii_case(word)).map(|spec| spec.object)
    }
}

/// One object type: its names, its attributes and the statements it takes.
#[derive(Debug)]
pub struct ObjectSpec {
    /// The type this row describes.
    pub object: ObjectType,
    /// The word of the language: `GRIDDISK`.
    pub word: &'static str,
    /// How success lines name it: `GridDisk`, `Flash cache`.
    pub title: &'static str,
    /// Whether success lines give the object's own name after the title.
    pub title_with_name: bool,
    /// The element of the XML form: `griddisk`.
    pub xml_element: &'static str,
    /// One line for help.
    pub about: &'static str,
    /// Attributes in the order of DESCRIBE and DETAIL; the first is `name`.
    pub attributes: &'static [Attribute],
    /// The CREATE, ALTER and DROP statements the type takes. LIST and DESCRIBE it takes always.
    pub forms: &'static [Form],
}

impl ObjectSpec {
    /// The attribute written `word`, in any case.
    #[must_use]
    pub fn attribute(&self, word: &str) -> Option<&'static Attribute> {
        self.attributes.iter().find(|attribute| attribute.name.eq_ignore_ascii_case(word))
    }

    /// Whether the type takes `verb`.
    #[must_use]
    pub fn takes(&self, verb: Verb) -> bool {
        matches!(verb, Verb::List | Verb::Describe) || self.forms.iter().any(|form| form.verb == verb)
    }

    /// The statement forms of `verb`.
    pub fn forms_of(&self, verb: Verb) -> impl Iterator<Item = &'static Form> {
        self.forms.iter().filter(move |form| form.verb == verb)
    }

    /// The columns LIST shows when none are asked for.
    pub fn default_columns(&self) -> impl Iterator<Item = &'static Attribute> {
        self.attributes.iter().filter(|attribute| attribute.default_column)
    }
}

/// What values an attribute or option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Free text, compared as it stands.
    Text,
    /// A name or identity; `=` ignores case, as `LIST type name` does.
    Name,
    /// The name of an object of another type; compared as a name.
    Reference(ObjectType),
    /// An integer.
    Number,
    /// Bytes, with a K, M, G or T suffix.
    Size,
    /// One of a few words; `=` ignores case. Options take only these; listed values may be others.
    Status(&'static [&'static str]),
    /// Several names, `'a,b'`.
    List,
    /// A point in time.
    DateTime,
    /// A metric value: a number with a unit. Never an option.
    Measure,
    /// Plan directives, `((name=a, share=2),(name=other, flashLog=on))`, or an empty text.
    Directives,
}

impl Kind {
    /// The kind in one word, for help and messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Name | Self::Reference(_) => "name",
            Self::Number => "number",
            Self::Size => "size",
            Self::Status(_) => "word",
            Self::List => "list",
            Self::DateTime => "time",
            Self::Measure => "value",
            Self::Directives => "directives",
        }
    }

    /// The words a status kind knows; none for other kinds.
    #[must_use]
    pub const fn choices(self) -> &'static [&'static str] {
        match self {
            Self::Status(words) => words,
            _ => &[],
        }
    }
}

/// One attribute of an object type.
#[derive(Debug)]
pub struct Attribute {
    /// The name as printed.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// ALTER may set it.
    pub modifiable: bool,
    /// Shown only when asked for by name.
    pub hidden: bool,
    /// A column of LIST without ATTRIBUTES.
    pub default_column: bool,
    /// Flashcell's own: the vendor's language does not have it.
    pub own: bool,
    /// One line for help.
    pub about: &'static str,
}

impl Attribute {
    const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, modifiable: false, hidden: false, default_column: false, own: false, about }
    }

    const fn modifiable(mut self) -> Self {
        self.modifiable = true;
        self
    }

    const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    const fn default_column(mut self) -> Self {
        self.default_column = true;
        self
    }

    const fn own(mut self) -> Self {
        self.own = true;
        self
    }
}

/// Which objects a CREATE, ALTER or DROP statement may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// None: the object is the only one, or the options tell.
    Whole,
    /// The word ALL.
    All,
    /// ALL, and optionally FLASHDISK or HARDDISK.
    AllOfDiskType,
    /// One name.
    Name,
    /// One name or several, separated by commas.
    Names,
}

/// One statement form: a verb with one kind of target.
#[derive(Debug)]
pub struct Form {
    /// CREATE, ALTER or DROP.
    pub verb: Verb,
    /// What comes after the object type.
    pub target: TargetKind,
    /// `name=value` options.
    pub settings: &'static [SettingSpec],
    /// Every modifiable attribute is an option too.
    pub modifiable_attributes: bool,
    /// Operations, of which a statement has at most one.
    pub operations: &'static [OperationSpec],
    /// Options that may stand beside an operation; all others exclude it.
    pub beside_operation: &'static [&'static str],
    /// Words that may end the statement when it has no operation.
    pub flags: &'static [Flag],
    /// Takes WHERE.
    pub filter: bool,
    /// Needs an option or an operation to mean anything.
    pub needs_change: bool,
    /// One line for help.
    pub about: &'static str,
}

impl Form {
    const fn new(verb: Verb, target: TargetKind, about: &'static str) -> Self {
        Self {
            verb,
            target,
            settings: &[],
            modifiable_attributes: false,
            operations: &[],
            beside_operation: &[],
            flags: &[],
            filter: false,
            needs_change: false,
            about,
        }
    }

    const fn settings(mut self, settings: &'static [SettingSpec]) -> Self {
        self.settings = settings;
        self
    }

    const fn modifiable_attributes(mut self) -> Self {
        self.modifiable_attributes = true;
        self
    }

    const fn operations(mut self, operations: &'static [OperationSpec]) -> Self {
        self.operations = operations;
        self
    }

    const fn beside_operation(mut self, names: &'static [&'static str]) -> Self {
        self.beside_operation = names;
        self
    }

    const fn flags(mut self, flags: &'static [Flag]) -> Self {
        self.flags = flags;
        self
    }

    const fn filter(mut self) -> Self {
        self.filter = true;
        self
    }

    const fn needs_change(mut self) -> Self {
        self.needs_change = true;
        self
    }

    /// The option written `word`, in any case: its name as printed and the kind of its value.
    #[must_use]
    pub fn setting(&self, object: &ObjectSpec, word: &str) -> Option<(&'static str, Kind)> {
        self.setting_list(object).find(|setting| setting.name.eq_ignore_ascii_case(word)).map(|it| (it.name, it.kind))
    }

    /// All options of the form, required ones first as the row has them, then the modifiable attributes.
    pub fn setting_list(&self, object: &ObjectSpec) -> impl Iterator<Item = SettingView> {
        let own = self.settings.iter().map(|setting| {
            let attribute = object.attribute(setting.name);
            let (kind, about) = match (setting.source, attribute) {
                (SettingSource::Own { kind, about }, _) => (kind, about),
                (SettingSource::Attribute, Some(attribute)) => (attribute.kind, attribute.about),
                (SettingSource::Attribute, None) => {
                    unreachable!("the table test checks that attribute options name attributes")
                }
            };
            SettingView { name: setting.name, kind, about, required: setting.required, needs: setting.needs }
        });
        let named = self.settings;
        let modifiable = if self.modifiable_attributes { object.attributes } else { &[] };
        own.chain(
            modifiable
                .iter()
                .filter(|attribute| attribute.modifiable)
                .filter(|attribute| !named.iter().any(|setting| setting.name == attribute.name))
                .map(|it| SettingView { name: it.name, kind: it.kind, about: it.about, required: false, needs: None }),
        )
    }
}

/// An option with everything the table knows about it.
#[derive(Debug, Clone, Copy)]
pub struct SettingView {
    /// The name as printed.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// One line for help.
    pub about: &'static str,
    /// The form is not complete without it.
    pub required: bool,
    /// Another option that must be given with it.
    pub needs: Option<&'static str>,
}

/// One `name=value` option of a form.
#[derive(Debug)]
pub struct SettingSpec {
    /// The name as printed.
    pub name: &'static str,
    /// Where kind and description come from.
    pub source: SettingSource,
    /// The form is not complete without it.
    pub required: bool,
    /// Another option that must be given with it.
    pub needs: Option<&'static str>,
}

/// Where an option's kind and description come from.
#[derive(Debug, Clone, Copy)]
pub enum SettingSource {
    /// The attribute of the same name.
    Attribute,
    /// The option is not an attribute.
    Own {
        /// What values it takes.
        kind: Kind,
        /// One line for help.
        about: &'static str,
    },
}

impl SettingSpec {
    const fn attribute(name: &'static str) -> Self {
        Self { name, source: SettingSource::Attribute, required: false, needs: None }
    }

    const fn own(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, source: SettingSource::Own { kind, about }, required: false, needs: None }
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    const fn needs(mut self, other: &'static str) -> Self {
        self.needs = Some(other);
        self
    }
}

/// An operation of ALTER: a run of words, each one of a few alternatives.
#[derive(Debug)]
pub struct OperationSpec {
    /// The alternatives at each place.
    pub words: &'static [&'static [&'static str]],
    /// The operation, from the index of the alternative chosen at each place.
    pub build: fn(&[usize]) -> Operation,
    /// Words that may end the statement after it.
    pub flags: &'static [Flag],
    /// One line for help.
    pub about: &'static str,
}

const FLUSH: OperationSpec = OperationSpec {
    words: &[&["FLUSH"]],
    build: |_| Operation::Flush,
    flags: &[Flag::NoWait],
    about: "write dirty data from flash to disk; NOWAIT returns at once",
};

const CANCEL_FLUSH: OperationSpec = OperationSpec {
    words: &[&["CANCEL"], &["FLUSH"]],
    build: |_| Operation::CancelFlush,
    flags: &[],
    about: "stop a flush and admit new data again",
};

const HARD_OR_FLASH: Kind = Kind::Status(&["HardDisk", "FlashDisk"]);
