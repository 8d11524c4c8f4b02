//! What goes over the admin socket for CellCLI.

use serde::{Deserialize, Serialize};

/// Statements to carry out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// One or more statements.
    pub(crate) text: String,
    /// Refuse what changes anything.
    #[serde(default)]
    pub(crate) monitor: bool,
    /// How LIST and DESCRIBE answer.
    #[serde(default)]
    pub(crate) form: Form,
    /// How times are printed in text.
    #[serde(default)]
    pub(crate) dates: DateStyle,
}

/// How LIST and DESCRIBE answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    /// Columns.
    #[default]
    Text,
    /// An array of objects.
    Json,
    /// The vendor's XML.
    Xml,
}

/// How times are printed in text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DateStyle {
    /// ISO 8601.
    #[default]
    Standard,
    /// For people.
    Local,
}

/// What became of the statements, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Response {
    /// One for each statement.
    pub(crate) results: Vec<Outcome>,
}

/// What became of one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// For stdout, whole lines.
    pub(crate) output: String,
    /// For stderr: `CELL-NNNNN: ...` and perhaps a hint line. None: it was carried out.
    pub(crate) error: Option<String>,
}
