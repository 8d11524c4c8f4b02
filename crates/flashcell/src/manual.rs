//! Man pages and shell completions, from the command line's own tables: what `make install` and the package put in place.

use crate::Failure;
use clap::{Args, Command};
use clap_complete::{Shell, generate_to};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Manual {
    /// Becomes the directory of `man1`, `bash`, `zsh` and `fish`
    dir: PathBuf,
}

/// Write them, of `flashcell` with each of its sub-commands, and of `cellcli`.
pub(crate) fn write(manual: &Manual, flashcell: Command, cellcli: Command) -> Result<bool, Failure> {
    let pages = directory(&manual.dir, "man1")?;
    for (name, command) in [("flashcell", flashcell), ("cellcli", cellcli)] {
        let command = without_hidden(name, &command);
        for (shell, dir) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            let dir = directory(&manual.dir, dir)?;
            generate_to(shell, &mut command.clone(), name, &dir).map_err(|error| failed(&dir, &error))?;
        }
        clap_mangen::generate_to(command, &pages).map_err(|error| failed(&pages, &error))?;
    }
    Ok(true)
}

/// A copy of the program without its hidden sub-commands: clap's completion for bash offers hidden ones too.
fn without_hidden(name: &'static str, command: &Command) -> Command {
    let visible: Vec<Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let bare =
        Command::new(name).about(command.get_about().cloned().unwrap_or_default()).version(env!("CARGO_PKG_VERSION"));
    bare.args(command.get_arguments().cloned()).subcommands(visible)
}

fn directory(below: &Path, name: &str) -> Result<PathBuf, Failure> {
    let dir = below.join(name);
    std::fs::create_dir_all(&dir).map_err(|error| failed(&dir, &error))?;
    Ok(dir)
}

fn failed(dir: &Path, error: &std::io::Error) -> Failure {
    format!("cannot write to {}: {error}", dir.display()).into()
}
