//! Image files of a new cell: made with the space they need, flash written once, with progress on stderr.
//!
//! Never overwrites a file.

use crate::config::DeviceKind;
use crate::init::InitError;
use cellcli::answer::size_text;
use device::{Space, copies_on_write, create_file, free_bytes};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{ErrorKind, IsTerminal, Write, stderr};
use std::path::Path;

/// Make an image of `size_bytes`. Unless `sparse`, its space is allocated; that of flash is written once as well, so that later
/// writes change nothing of what the file system knows of the file.
///
/// # Errors
/// [`InitError::NoRoom`], or the system's.
pub(crate) fn make(path: &Path, size_bytes: u64, kind: DeviceKind, sparse: bool) -> Result<(), InitError> {
    let io = |source| InitError::Io { path: path.to_owned(), source };
    let directory = path.parent().unwrap_or(Path::new("."));
    if sparse {
        return create_file(path, size_bytes, Space::Sparse).map_err(io);
    }
    // Asked first: a file system that is filled to its end on the way does not serve others meanwhile.
    let free = free_bytes(directory).map_err(io)?;
    let no_room = |free_bytes| InitError::NoRoom { path: path.to_owned(), wanted_bytes: size_bytes, free_bytes };
    if size_bytes > free {
        return Err(no_room(free));
    }
    if let Some(name) = copies_on_write(directory).map_err(io)? {
        tell(&format!("warning: {}: {}", path.display(), copy_on_write_limit(name)));
    }
    let made = match kind {
        DeviceKind::Disk => create_file(path, size_bytes, Space::Reserved),
        DeviceKind::Flash => {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let bar = bar(&format!("writing {file} once ({})", size_text(size_bytes)), size_bytes);
            let made = create_file(path, size_bytes, Space::Written { progress: &mut |done| bar.set_position(done) });
            bar.finish_and_clear();
            made
        }
    };
    made.map_err(|source| match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => no_room(free_bytes(directory).unwrap_or_default()),
        _ => io(source),
    })
}

/// What an image on such a file system cannot have.
pub(crate) fn copy_on_write_limit(file_system: &str) -> String {
    format!(
        "{file_system} writes what is overwritten to new places, so space that is allocated to an image does not keep \
         its writes from failing when the file system is full; use a block device, or ext4 or XFS"
    )
}

/// A bar on a terminal; elsewhere one line.
fn bar(text: &str, size_bytes: u64) -> ProgressBar {
    if !stderr().is_terminal() {
        tell(text);
        return ProgressBar::with_draw_target(Some(size_bytes), ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("{msg} {bar:30} {percent}% {elapsed}");
    ProgressBar::new(size_bytes)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(text.to_owned())
}

fn tell(line: &str) {
    // Talk only: who closed stderr does not want it.
    let _ = writeln!(stderr(), "{line}");
}
