//! Starting again: this process becomes its program anew, which a supervisor need not know of.
//!
//! Never stops anything: the cell has stopped clean by then.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The program of this process, as it is on disk now: another one after an upgrade. None: it is not there any more.
pub(crate) fn program() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    // So the kernel calls a file that has made way for another.
    let path = path.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map_or(path.clone(), PathBuf::from);
    rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_ok().then_some(path)
}

/// Become the program of this process anew, told the same; only to fail comes back.
pub(crate) fn start_again() -> std::io::Error {
    let Some(program) = program() else { return std::io::ErrorKind::NotFound.into() };
    Command::new(program).args(std::env::args_os().skip(1)).exec()
}
