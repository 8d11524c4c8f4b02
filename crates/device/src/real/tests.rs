//! The real world under test, both back-ends: executor, files, sockets, shutdown.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod again;
mod executor;
mod files;
mod net;

use super::{Backend, Runtime, RuntimeConfig};
use crate::buf::Arena;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A runtime of `threads` threads for each back-end this machine has.
pub(super) fn runtimes(threads: usize) -> Vec<Runtime> {
    [Backend::Uring, Backend::Threads].into_iter().map(|backend| runtime(threads, backend)).collect()
}

pub(super) fn runtime(threads: usize, backend: Backend) -> Runtime {
    Runtime::new(RuntimeConfig { threads, backend, arenas: Vec::new() }).unwrap()
}

pub(super) fn with_arena(threads: usize, backend: Backend, arena: &Arena) -> Runtime {
    Runtime::new(RuntimeConfig { threads, backend, arenas: vec![arena.clone()] }).unwrap()
}

/// A directory that goes with its value.
pub(super) struct Directory(PathBuf);

impl Directory {
    /// In `/dev/shm` (`memory`) or on the disk of the temporary directory.
    pub(super) fn new(memory: bool) -> Directory {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = if memory { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("device-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
