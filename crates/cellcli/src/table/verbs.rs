//! The verbs: what each does in one line, its syntax, and whether a read-only session may use it.
//!
//! Never lists object types: which object takes which verb is told by the object rows.

/// The first word of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Change objects.
    Alter,
    /// Measure the devices.
    Calibrate,
    /// Make objects.
    Create,
    /// Show the attributes of a type.
    Describe,
    /// Remove objects.
    Drop,
    /// Leave.
    Exit,
    /// Show help.
    Help,
    /// Show objects.
    List,
    /// Leave.
    Quit,
    /// A comment.
    Remark,
    /// Set a session option.
    Set,
    /// Copy output to a file.
    Spool,
    /// Run a file of statements.
    Start,
}

/// One verb of the language.
#[derive(Debug)]
pub struct VerbSpec {
    /// The verb.
    pub verb: Verb,
    /// The words that write it; the first is the one printed.
    pub words: &'static [&'static str],
    /// What may follow.
    pub syntax: &'static str,
    /// One line for help.
    pub about: &'static str,
    /// Takes an object type.
    pub on_objects: bool,
    /// Allowed in a read-only (monitor) session.
    pub read_only: bool,
}

const fn verb(verb: Verb, words: &'static [&'static str], syntax: &'static str, about: &'static str) -> VerbSpec {
    VerbSpec { verb, words, syntax, about, on_objects: false, read_only: true }
}

const fn object_verb(verb: Verb, words: &'static [&'static str], about: &'static str) -> VerbSpec {
    VerbSpec { verb, words, syntax: "", about, on_objects: true, read_only: false }
}

/// All verbs, alphabetically.
pub const VERBS: &[VerbSpec] = &[
    object_verb(Verb::Alter, &["ALTER"], "change attributes of objects, or have them do something"),
    VerbSpec {
        read_only: false,
        ..verb(
            Verb::Calibrate,
            &["CALIBRATE"],
            "[FORCE]",
            "measure each device with reads; FORCE though clients are connected",
        )
    },
    object_verb(Verb::Create, &["CREATE"], "make objects"),
    VerbSpec { read_only: true, ..object_verb(Verb::Describe, &["DESCRIBE"], "show the attributes of an object type") },
    object_verb(Verb::Drop, &["DROP"], "remove objects"),
    verb(Verb::Exit, &["EXIT"], "", "leave"),
    verb(Verb::Help, &["HELP"], "[verb [object type] | object type]", "show this list, or one verb or object type"),
    VerbSpec { read_only: true, ..object_verb(Verb::List, &["LIST"], "show objects") },
    verb(Verb::Quit, &["QUIT"], "", "leave"),
    verb(Verb::Remark, &["REMARK", "REM", "--"], "[text]", "a comment to the end of the line"),
    verb(Verb::Set, &["SET"], "{DATEFORMAT {LOCAL | STANDARD} | ECHO [ON | OFF]}", "set a session option"),
    VerbSpec {
        read_only: false,
        ..verb(
            Verb::Spool,
            &["SPOOL"],
            "[file [CREATE | REPLACE | APPEND] | OFF]",
            "copy output to a file; alone, show the state",
        )
    },
    verb(Verb::Start, &["START", "@"], "file", "run the statements of a file"),
];

impl Verb {
    /// The row of this verb.
    #[must_use]
    pub fn spec(self) -> &'static VerbSpec {
        match VERBS.iter().find(|spec| spec.verb == self) {
            Some(spec) => spec,
            None => unreachable!("the table test checks that every verb has a row"),
        }
    }

    /// The word printed for the verb: `LIST`.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.spec().words[0]
    }

    /// The verb written `word`, in any case.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        VERBS.iter().find(|spec| spec.words.iter().any(|it| it.eq_ignore_ascii_case(word))).map(|spec| spec.verb)
    }
}
