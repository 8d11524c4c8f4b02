//! The device of a grid disk, with or without the flash log before it: the one place where that changes, with I/O running.

use device::sync::lock;
use device::{Completion, Device, Geometry, Io, Op};
use flashlog::RedoDisk;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// See the module.
pub(crate) struct RedoPort {
    below: Device,
    has_redo: AtomicBool,
    redo: Mutex<Option<Arc<RedoDisk>>>,
}

impl RedoPort {
    pub(crate) fn new(below: Device) -> Arc<RedoPort> {
        Arc::new(RedoPort { below, has_redo: AtomicBool::new(false), redo: Mutex::default() })
    }

    /// The device itself.
    pub(crate) fn below(&self) -> &Device {
        &self.below
    }

    /// The flash log before it.
    pub(crate) fn redo(&self) -> Option<Arc<RedoDisk>> {
        if self.has_redo.load(Ordering::Acquire) { lock(&self.redo).clone() } else { None }
    }

    /// Requests from here on go through this; those under way end where they began.
    pub(crate) fn set(&self, redo: Option<Arc<RedoDisk>>) {
        let mut now = lock(&self.redo);
        self.has_redo.store(redo.is_some(), Ordering::Release);
        *now = redo;
    }
}

impl Io for RedoPort {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, op: Op) -> Completion {
        match self.redo() {
            Some(redo) => redo.submit(op),
            None => self.below.submit(op),
        }
    }
}
