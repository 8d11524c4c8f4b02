//! Which clients may use a grid disk, whether they may write, and whether it is in service at all, as its record in the catalog has it.
//!
//! Never knows who a client is: that is the front end's. Never ends a request that has begun.

use device::sync::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The rules of one grid disk.
#[derive(Debug)]
pub(crate) struct AccessRules {
    read_only: AtomicBool,
    inactive: AtomicBool,
    available_to: Mutex<Arc<[String]>>,
}

impl Default for AccessRules {
    fn default() -> AccessRules {
        let (read_only, inactive) = (AtomicBool::new(false), AtomicBool::new(false));
        AccessRules { read_only, inactive, available_to: Mutex::new(Arc::new([])) }
    }
}

impl AccessRules {
    /// As the record has them.
    pub(crate) fn set(&self, available_to: &str, read_only: bool) {
        self.read_only.store(read_only, Ordering::Release);
        *lock(&self.available_to) = names(available_to);
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Take the grid disk out of service for every client, or give it back to those that `available_to` names.
    pub(crate) fn set_inactive(&self, inactive: bool) {
        // With the order of all: who looks for open sessions after this, and who opens one and looks here after that, must not both miss the
        // other.
        self.inactive.store(inactive, Ordering::SeqCst);
    }

    pub(crate) fn is_inactive(&self) -> bool {
        self.inactive.load(Ordering::SeqCst)
    }

    pub(crate) fn available_to(&self) -> Arc<[String]> {
        lock(&self.available_to).clone()
    }
}

/// The names of a list, as the catalog keeps it: separated by commas.
fn names(text: &str) -> Arc<[String]> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_names_between_commas() {
        assert_eq!(names(" SALES, ann,,42 ")[..], ["SALES", "ann", "42"]);
        assert!(names("").is_empty() && names(" , ").is_empty());
    }
}
