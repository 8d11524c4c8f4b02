//! `flashcell trust`: certificates between cells and those who administer them, in one command.
//!
//! ```text
//!   ~/.flashcell: ca.key ca.pem ── signs ──► client.pem  this user, administrator          (made when missing)
//!                                  ├───────► cell.pem    each cell named, for its host names (made anew every time)
//!                                  └───────► client.pem  somebody else, with a role          (--client)
//! ```
//!
//! One small authority for a group of cells, that of whoever runs this; its key never leaves the directory. A cell's certificate
//! serves and cannot ask; a client's asks and cannot serve. Cells elsewhere are reached with the system's ssh. Never makes a cell
//! listen: that stays a line of its cell.toml.

mod authority;
mod place;

use crate::admin::{Role, is_name, token_digest};
use crate::config::{Config, ConfigError, Located};
use crate::dcli::{DcliError, DcliOptions, Task, run_tasks};
use crate::tls;
use authority::Authority;
use place::{Place, Staging, write};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Cells of one call: as dcli's targets.
const CELLS_MAX: usize = 10_000;
/// Makes a directory on a cell's host that only its owner can enter.
const MAKE: &str = "umask 077; mkdir -p \"$1/trust\" && chmod 700 \"$1/trust\" && test -f \"$1/cell.toml\" || \
                    { echo \"$1 is not the directory of a cell\"; exit 1; }";
/// Whoever owns the cell owns its certificates.
const FINISH: &str =
    "chmod 600 \"$1\"/trust/* && chown -R --reference=\"$1/cell.toml\" \"$1/trust\" && echo 'certificate installed'";
/// Replaces the token of a name.
const ADD_TOKEN: &str = "umask 077; f=$1/trust/tokens; test -d \"$1/trust\" || { echo 'no certificates here yet'; exit 1; }; \
     touch \"$f\" && { awk -v n=\"$2\" '$2 != n' \"$f\"; echo \"$3\"; } > \"$f.new\" && \
     chown --reference=\"$1/cell.toml\" \"$f.new\" && mv \"$f.new\" \"$f\" && echo 'token installed'";

/// Takes the tokens of a name away, and its certificates' effect.
const REVOKE: &str = "umask 077; t=$1/trust; test -d \"$t\" || { echo 'no certificates here yet'; exit 1; }; \
     touch \"$t/revoked\" && { grep -vxF -e \"$2\" \"$t/revoked\"; echo \"$2\"; } > \"$t/revoked.new\" && \
     if [ -e \"$t/tokens\" ]; then awk -v n=\"$2\" '$2 != n' \"$t/tokens\" > \"$t/tokens.new\" && mv \"$t/tokens.new\" \"$t/tokens\"; fi && \
     mv \"$t/revoked.new\" \"$t/revoked\" && chown -R --reference=\"$1/cell.toml\" \"$t\" && echo 'revoked'";

/// What to set up.
#[derive(Clone, Debug, Default)]
pub struct TrustOptions {
    /// Cells: a directory on this host, `[USER@]HOST:DIR`, or a host with [`TrustOptions::at`].
    pub cells: Vec<String>,
    /// A file with a host on each line.
    pub group_file: Option<PathBuf>,
    /// The directory of the cell on every host named without one.
    pub at: Option<String>,
    /// Further names or addresses the cells are reached by.
    pub names: Vec<String>,
    /// The user on hosts named without one.
    pub user: String,
    /// For ssh and scp.
    pub ssh_options: Option<String>,
    /// The authority's and this user's directory; none: `$FLASHCELL_TRUST`, else `~/.flashcell`.
    pub dir: Option<PathBuf>,
    /// Make a certificate for this client, too.
    pub client: Option<String>,
    /// Make a token of this name, too.
    pub token: Option<String>,
    /// Take certificates and tokens of this name no more.
    pub revoke: Option<String>,
    /// The role of that client or token.
    pub role: Option<Role>,
    /// Where that client's files go.
    pub out: Option<PathBuf>,
}

/// Why it was not set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The call makes no sense.
    #[error("{what}\nhint: {hint}")]
    Usage {
        /// What is wrong.
        what: String,
        /// What would do.
        hint: &'static str,
    },
    /// A file.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A certificate could not be made.
    #[error("cannot make the certificate of {subject}: {reason}")]
    Certificate {
        /// Whose.
        subject: String,
        /// Why.
        reason: String,
    },
    /// The cell on this host.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The hosts.
    #[error(transparent)]
    Dcli(#[from] DcliError),
}

fn usage(what: impl Into<String>, hint: &'static str) -> TrustError {
    TrustError::Usage { what: what.into(), hint }
}

/// Set it up; whether every cell has what it needs. What is false has been told on stderr. A token is printed on stdout.
///
/// # Errors
/// See [`TrustError`].
pub fn trust(options: &TrustOptions) -> Result<bool, TrustError> {
    let cells = cells(options)?;
    if cells.is_empty() && options.client.is_none() {
        return Err(usage("no cells are named", "flashcell trust DIR, or HOST:DIR, or -g FILE --at DIR"));
    }
    if (options.client.is_some() || options.token.is_some()) != options.role.is_some() {
        return Err(usage(
            "--client, --token and --role go together",
            "--role administrator, monitor or database:NAME",
        ));
    }
    if let Some(name) = options.client.iter().chain(&options.token).chain(&options.revoke).find(|name| !is_name(name)) {
        return Err(usage(format!("{name:?} is no name"), "letters, digits, '.', '_', '-', '@'; at most 64"));
    }
    if let Some(name) = &options.revoke {
        return revoke(options, &cells, name);
    }
    let dir = options.dir.clone().unwrap_or_else(tls::client_dir);
    let (authority, made) = Authority::open_or_make(&dir)?;
    if made {
        talk(&format!("made an authority for a group of cells in {}: keep ca.key safe", dir.display()));
    }
    if !dir.join(tls::CLIENT_CERTIFICATE).exists() {
        let name = std::env::var("USER").ok().filter(|name| is_name(name)).unwrap_or_else(|| "operator".to_owned());
        client_files(&authority, &dir, &name, &Role::Administrator)?;
        talk(&format!("made a certificate for you ({name}, administrator) in {}", dir.display()));
    }
    if let (Some(name), Some(role)) = (&options.client, &options.role) {
        let out = options.out.as_ref();
        let out = out.ok_or_else(|| usage("where do the files of the client go?", "--out DIR"))?;
        place::make_dir(out)?;
        write(&out.join(tls::CA_CERTIFICATE), authority.certificate().as_bytes())?;
        client_files(&authority, out, name, role)?;
        talk(&format!(
            "made a certificate for {name} ({role}) in {}: it belongs into ~/.flashcell there, or where an NBD client looks for it",
            out.display()
        ));
        return Ok(true);
    }
    if let (Some(name), Some(role)) = (&options.token, &options.role) {
        return token(options, &cells, name, role);
    }
    certificates(options, &authority, &dir, &cells)
}

/// Talk; nobody is left to tell when stderr is gone.
fn talk(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn cells(options: &TrustOptions) -> Result<Vec<Place>, TrustError> {
    let mut all = Vec::new();
    for cell in &options.cells {
        all.push(Place::parse(cell, options.at.as_deref())?);
    }
    if let Some(path) = &options.group_file {
        let file = |reason: std::io::Error| TrustError::File { path: path.clone(), reason: reason.to_string() };
        for name in crate::dcli::names(&std::fs::read_to_string(path).map_err(file)?) {
            all.push(Place::parse(&name, options.at.as_deref())?);
        }
    }
    if all.len() > CELLS_MAX {
        return Err(usage(format!("{} cells are named", all.len()), "at most 10,000 at a time"));
    }
    Ok(all)
}

fn client_files(authority: &Authority, dir: &Path, name: &str, role: &Role) -> Result<(), TrustError> {
    let (certificate, key) = authority.client(name, role)?;
    write(&dir.join(tls::CLIENT_KEY), key.as_bytes())?;
    write(&dir.join(tls::CLIENT_CERTIFICATE), certificate.as_bytes())?;
    tls::GNUTLS_NAMES.iter().try_for_each(|(name, file)| place::link(&dir.join(name), file))
}

/// How hosts are reached.
fn over_ssh(options: &TrustOptions) -> DcliOptions {
    let user = options.user.clone();
    DcliOptions { user, ssh_options: options.ssh_options.clone(), ..DcliOptions::default() }
}

fn certificates(
    options: &TrustOptions,
    authority: &Authority,
    dir: &Path,
    cells: &[Place],
) -> Result<bool, TrustError> {
    let staging = Staging::new(dir)?;
    let mut tasks = Vec::new();
    for cell in cells {
        let mut names = cell.names();
        names.extend(options.names.iter().cloned());
        let (certificate, key) = authority.cell(&names)?;
        let files = [
            (tls::CA_CERTIFICATE, authority.certificate()),
            (tls::CELL_KEY, key.as_str()),
            (tls::CELL_CERTIFICATE, certificate.as_str()),
        ];
        match cell {
            Place::Here(path) => {
                let located = Config::load(path)?;
                let to = located.trust_dir();
                place::make_dir(&to)?;
                for (name, text) in files {
                    write(&to.join(name), text.as_bytes())?;
                }
                place::owned_like(&located.path, &to)?;
                talk(&format!("{}: certificate installed for {}", path.display(), names.join(", ")));
            }
            Place::There { host, dir } => {
                let mut steps = vec![Task::Shell(MAKE, vec![dir.clone()])];
                for (name, text) in files {
                    steps.push(Task::Copy(staging.file(host, name, text)?, format!("{dir}/trust/{name}")));
                }
                steps.push(Task::Shell(FINISH, vec![dir.clone()]));
                tasks.push((host.clone(), steps));
            }
        }
    }
    let good = run_tasks(&over_ssh(options), &tasks)?;
    talk(
        "cells that listen on TCP use them within seconds, others from their start on with \"tcp:HOST\" in listen.admin or listen.nbd of cell.toml",
    );
    Ok(good)
}

fn token(options: &TrustOptions, cells: &[Place], name: &str, role: &Role) -> Result<bool, TrustError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|error| TrustError::Certificate { subject: name.to_owned(), reason: error.to_string() })?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("{role} {name} {}", token_digest(&token));
    let mut tasks = Vec::new();
    for cell in cells {
        match cell {
            Place::Here(path) => {
                let located = Config::load(path)?;
                let is_other = |line: &str| line.split_whitespace().nth(1) != Some(name);
                rewrite(&located, tls::TOKENS, &is_other, Some(&line))?;
            }
            Place::There { host, dir } => {
                let args = vec![dir.clone(), name.to_owned(), line.clone()];
                tasks.push((host.clone(), vec![Task::Shell(ADD_TOKEN, args)]));
            }
        }
    }
    let good = run_tasks(&over_ssh(options), &tasks)?;
    talk("a cell takes its first token within seconds, further ones at once");
    // The only time it is seen.
    writeln!(std::io::stdout(), "{token}").map_err(DcliError::Output)?;
    Ok(good)
}

/// Write a list of a cell anew: the lines to keep, and one more.
fn rewrite(located: &Located, file: &str, keep: &dyn Fn(&str) -> bool, more: Option<&str>) -> Result<(), TrustError> {
    let to = located.trust_dir().join(file);
    let before = std::fs::read_to_string(&to).unwrap_or_default();
    let kept = before.lines().filter(|line| keep(line));
    let text: String = kept.chain(more).map(|line| format!("{line}\n")).collect();
    write(&to, text.as_bytes())?;
    place::owned_like(&located.path, &to)
}

fn revoke(options: &TrustOptions, cells: &[Place], name: &str) -> Result<bool, TrustError> {
    let mut tasks = Vec::new();
    for cell in cells {
        match cell {
            Place::Here(path) => {
                let located = Config::load(path)?;
                rewrite(&located, tls::REVOKED, &|line| line.trim() != name, Some(name))?;
                if located.trust_dir().join(tls::TOKENS).exists() {
                    rewrite(&located, tls::TOKENS, &|line| line.split_whitespace().nth(1) != Some(name), None)?;
                }
                talk(&format!("{}: revoked", path.display()));
            }
            Place::There { host, dir } => {
                tasks.push((host.clone(), vec![Task::Shell(REVOKE, vec![dir.clone(), name.to_owned()])]));
            }
        }
    }
    run_tasks(&over_ssh(options), &tasks).map_err(TrustError::Dcli)
}

#[cfg(test)]
mod tests;
