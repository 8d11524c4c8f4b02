//! What a statement means: the closed set of commands a server or client carries out.
//!
//! Every attribute and option name in a command is the table's own spelling, every value is typed by the table's kind.
//! Never says whether the object exists or the value fits: that is the server's to answer.

use crate::answer::{Decimal, Timestamp};
use crate::table::{ObjectType, Verb};

/// One statement, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Show objects.
    List(List),
    /// Show the attributes of a type.
    Describe(ObjectType),
    /// Make objects.
    Create(Change),
    /// Change objects or have them do something.
    Alter(Change),
    /// Remove objects.
    Drop(Change),
    /// Measure the devices.
    Calibrate {
        /// Though clients are connected.
        force: bool,
    },
    /// Show help: on everything, a verb, an object type, or a verb on an object type.
    Help {
        /// The verb asked about.
        verb: Option<Verb>,
        /// The object type asked about.
        object: Option<ObjectType>,
    },
    /// Leave the session.
    Exit,
    /// Leave the session.
    Quit,
    /// Set how times are shown.
    SetDateFormat(DateFormat),
    /// Show the statements of scripts as they run; without a word the setting is shown.
    SetEcho(Option<bool>),
    /// Copy output to a file.
    Spool(Spool),
    /// Run the statements of the file at this path.
    Start(String),
    /// A comment.
    Remark(String),
}

impl Command {
    /// The verb the command was written with.
    #[must_use]
    pub const fn verb(&self) -> Verb {
        match self {
            Self::List(_) => Verb::List,
            Self::Describe(_) => Verb::Describe,
            Self::Create(_) => Verb::Create,
            Self::Alter(_) => Verb::Alter,
            Self::Drop(_) => Verb::Drop,
            Self::Calibrate { .. } => Verb::Calibrate,
            Self::Help { .. } => Verb::Help,
            Self::Exit => Verb::Exit,
            Self::Quit => Verb::Quit,
            Self::SetDateFormat(_) | Self::SetEcho(_) => Verb::Set,
            Self::Spool(_) => Verb::Spool,
            Self::Start(_) => Verb::Start,
            Self::Remark(_) => Verb::Remark,
        }
    }

    /// Whether a read-only (monitor) session may run it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.verb().spec().read_only
    }
}

/// How times are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DateFormat {
    /// ISO 8601 with offset: `2013-09-12T23:46:14+02:00`.
    #[default]
    Standard,
    /// For people: `Sep 12, 2013 11:46:14 PM`.
    Local,
}

/// Copying of output to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spool {
    /// Show whether output is copied, and where to.
    Show,
    /// Stop copying.
    Off,
    /// Copy to a file.
    To {
        /// Path of the file, relative to where the client was started.
        path: String,
        /// What to do with a file that exists.
        mode: SpoolMode,
    },
}

/// What SPOOL does with a file that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpoolMode {
    /// Fail.
    Create,
    /// Overwrite it.
    #[default]
    Replace,
    /// Write after its end.
    Append,
}

/// `LIST type ...`: which objects, which of their attributes, in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The type asked for.
    pub object: ObjectType,
    /// Exact names, case ignored; empty for all.
    pub names: Vec<String>,
    /// WHERE.
    pub filter: Option<Filter>,
    /// ATTRIBUTES.
    pub projection: Projection,
    /// DETAIL: one attribute a line.
    pub detail: bool,
    /// ORDER BY, most significant first.
    pub order_by: Vec<OrderKey>,
    /// LIMIT: at most so many objects.
    pub limit: Option<u64>,
    /// OVER: of METRICHISTORY one row for so much time.
    pub over: Option<Over>,
    /// MEMORY: of METRICHISTORY what memory holds, without looking into the store.
    pub memory: bool,
}

impl List {
    /// Whether an object of this name is asked for.
    #[must_use]
    pub fn asks_for(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|it| it.eq_ignore_ascii_case(name))
    }
}

/// `OVER minutes [AVG] [MAX] [MIN]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Over {
    /// Minutes of one row, from 1 to [`OVER_MINUTES_MAX`].
    pub minutes: u64,
    /// What is shown of them besides the last value; empty for all.
    pub aggregates: Vec<Aggregate>,
}

/// The longest time of a row: a year of minutes.
pub const OVER_MINUTES_MAX: u64 = 366 * 24 * 60;

/// What is made of several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aggregate {
    /// Their mean.
    Average,
    /// The highest.
    Maximum,
    /// The lowest.
    Minimum,
}

impl Aggregate {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Average, Self::Maximum, Self::Minimum];

    /// Its word behind OVER.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Average => "AVG",
            Self::Maximum => "MAX",
            Self::Minimum => "MIN",
        }
    }

    /// The attribute it is shown as.
    #[must_use]
    pub const fn attribute(self) -> &'static str {
        match self {
            Self::Average => "metricValueAvg",
            Self::Maximum => "metricValueMax",
            Self::Minimum => "metricValueMin",
        }
    }
}

impl List {
    /// Every object of a type with its default columns.
    #[must_use]
    pub const fn all(object: ObjectType) -> Self {
        Self {
            object,
            names: Vec::new(),
            filter: None,
            projection: Projection::Default,
            detail: false,
            order_by: Vec::new(),
            limit: None,
            over: None,
            memory: false,
        }
    }
}

/// Which attributes LIST shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Projection {
    /// The type's default columns; with DETAIL, as [`Projection::All`].
    Default,
    /// Every attribute that is not hidden and that the server supplies.
    All,
    /// These, in this order.
    Attributes(Vec<&'static str>),
}

/// One key of ORDER BY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderKey {
    /// The attribute to sort by.
    pub attribute: &'static str,
    /// DESC.
    pub descending: bool,
}

/// A WHERE condition. AND and OR hold at least two conditions each; AND binds tighter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// All hold.
    And(Vec<Filter>),
    /// At least one holds. Flashcell's own.
    Or(Vec<Filter>),
    /// One comparison.
    Compare(Comparison),
}

/// `attribute [NOT] operator literal`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// The attribute compared.
    pub attribute: &'static str,
    /// `!` or NOT stood before the operator.
    pub negated: bool,
    /// The operator.
    pub operator: Operator,
    /// The right-hand side.
    pub literal: Literal,
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Equal,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `LIKE`: a regular expression over the whole value.
    Like,
}

/// The right-hand side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Literal {
    /// `NULL`: empty or unassigned.
    Null,
    /// Quoted text, or a bare word that is none of the others.
    Text(String),
    /// A bare number.
    Number(Decimal),
    /// A bare number with a size suffix, in bytes.
    Size(u64),
    /// A bare ISO 8601 time.
    DateTime(Timestamp),
}

/// What CREATE, ALTER or DROP shall do. The table's form for the verb and target has been checked: options are known,
/// typed, not repeated and complete; the operation and flags are ones the form takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The type acted on.
    pub object: ObjectType,
    /// Which objects.
    pub target: Target,
    /// Options in the order written.
    pub settings: Vec<Setting>,
    /// The operation of an ALTER.
    pub operation: Option<Operation>,
    /// FORCE was given.
    pub force: bool,
    /// NOWAIT was given.
    pub no_wait: bool,
    /// WHERE: only those of the target that match.
    pub filter: Option<Filter>,
}

impl Change {
    /// The value of the option `name`, in the table's spelling.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&SettingValue> {
        self.settings.iter().find(|setting| setting.name == name).map(|setting| &setting.value)
    }

    /// The option `name` as text; `None` when absent or of another kind. Empty text resets an attribute.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.setting(name)? {
            SettingValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The option `name` in bytes; `None` when absent or of another kind.
    #[must_use]
    pub fn size_bytes(&self, name: &str) -> Option<u64> {
        match self.setting(name)? {
            SettingValue::SizeBytes(size_bytes) => Some(*size_bytes),
            _ => None,
        }
    }

    /// The option `name` as a number; `None` when absent or of another kind.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.setting(name)? {
            SettingValue::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The option `name` as one of the table's words, in the table's spelling; `None` when absent or of another kind.
    #[must_use]
    pub fn choice(&self, name: &str) -> Option<&'static str> {
        match self.setting(name)? {
            SettingValue::Choice(word) => Some(word),
            _ => None,
        }
    }

    /// The option `name` as a list of names; `None` when absent or of another kind.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&[String]> {
        match self.setting(name)? {
            SettingValue::List(names) => Some(names),
            _ => None,
        }
    }
}

/// Which objects a CREATE, ALTER or DROP is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Nothing was named: the one object of the type, or whatever the options tell.
    Whole,
    /// ALL, perhaps of one disk type.
    All(Option<DiskType>),
    /// These; at least one, for CREATE exactly one.
    Names(Vec<String>),
}

/// FLASHDISK or HARDDISK after ALL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskType {
    /// Flash disks only.
    FlashDisk,
    /// Hard disks only.
    HardDisk,
}

impl DiskType {
    pub(crate) const ALL: [Self; 2] = [Self::FlashDisk, Self::HardDisk];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::FlashDisk => "FLASHDISK",
            Self::HardDisk => "HARDDISK",
        }
    }
}

/// One `name=value` option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The option, in the table's spelling.
    pub name: &'static str,
    /// Its value, of the kind the table tells.
    pub value: SettingValue,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingValue {
    /// Text or a name; empty resets.
    Text(String),
    /// Several names; empty resets.
    List(Vec<String>),
    /// Bytes, not yet rounded to the allocation unit.
    SizeBytes(u64),
    /// An integer.
    Number(u64),
    /// One of the table's words.
    Choice(&'static str),
    /// A point in time.
    DateTime(Timestamp),
    /// Plan directives in order, each a list of `(name, value)`; empty resets.
    Directives(Vec<Vec<(String, String)>>),
}

/// What ALTER has an object do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Put a grid disk in service.
    Active,
    /// Take a grid disk out of service.
    Inactive,
    /// Write dirty data from flash to disk and stop taking new data into flash.
    Flush,
    /// End a flush and take new data again.
    CancelFlush,
    /// Keep the disk of a grid disk as it is for a while.
    Freeze,
    /// End that.
    Thaw,
    /// Stop or start services of the cell.
    Services {
        /// What to do.
        action: ServiceAction,
        /// To which service.
        service: Service,
    },
    /// Send a mail as alerts would be sent.
    ValidateMail,
}

/// What ALTER CELL does to services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceAction {
    /// Stop.
    Shutdown,
    /// Start.
    Startup,
    /// Stop and start.
    Restart,
}

impl ServiceAction {
    /// The word of the language.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Shutdown => "SHUTDOWN",
            Self::Startup => "STARTUP",
            Self::Restart => "RESTART",
        }
    }
}

/// A service of the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The restart server.
    Rs,
    /// The management server.
    Ms,
    /// The block server.
    Cellsrv,
    /// All of them.
    All,
}

impl Service {
    /// The word of the language.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Rs => "RS",
            Self::Ms => "MS",
            Self::Cellsrv => "CELLSRV",
            Self::All => "ALL",
        }
    }
}

/// A word that ends a statement and changes how it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// Do it though something speaks against it.
    Force,
    /// Answer at once, do it in the background.
    NoWait,
}

impl Flag {
    pub(crate) const ALL: [Self; 2] = [Self::Force, Self::NoWait];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Force => "FORCE",
            Self::NoWait => "NOWAIT",
        }
    }
}
