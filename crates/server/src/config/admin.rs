//! `[admin]`: who may administer a cell.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Who may administer a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Over the unix socket its members are administrators, as are root and the user the cell is served as; everybody else
    /// is a monitor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The directory of certificates for TCP, as `flashcell trust` makes it.
    pub trust: PathBuf,
}

impl Admin {
    pub(super) fn is_default(&self) -> bool {
        *self == Admin::default()
    }
}

impl Default for Admin {
    fn default() -> Admin {
        Admin { group: None, trust: "trust".into() }
    }
}
