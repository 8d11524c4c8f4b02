//! `flashcell trust`: certificates between cells and those who administer them, in one command.
//!
//! ```text
//!   ~/.flashcell: ca.key ca.pem ── signs ──► client.pem  this user, administrator          (made when missing)
//!                                  ├───────► cell.pem    each cell named, for its host names (made anew every time)
//!                                  └───────► client.pem  somebody else, with a role          (--client)
//! ```
//!
//! One small authority for a group of cells, that of whoever runs this; its key never leaves the directory. A cell's certificate
//! serves and cannot ask; a client's asks and cannot serve. Cells elsewhere are reached with the system's ssh, and get the same [`Order`]
//! that one on this host carries out. Never makes a cell listen: that stays a line of its cell.toml.

mod authority;
mod order;
mod place;

use crate::admin::{Role, is_name, token_digest};
use crate::config::ConfigError;
use crate::dcli::{DcliError, DcliOptions, Task, run_tasks};
use crate::tls;
use authority::Authority;
use order::{ORDER_BYTES_MAX, Order};
use place::{Keep, Place};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Cells of one call: as dcli's targets.
const CELLS_MAX: usize = 10_000;
/// Carries out an order on a cell's host, which reads it from its stdin.
const INSTALL: &str = "exec flashcell trust --install \"$1\"";

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
    /// Nothing of all that: carry out an order from stdin in the cell of this directory. What another host's `trust` calls over ssh.
    pub install: Option<PathBuf>,
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
    /// A list of a cell that cannot be read whole, and so is not written anew.
    #[error(
        "{path} is left as it is: {reason}\nhint: look at it, and mend it or put it aside; until then nothing is added to it"
    )]
    List {
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

fn fail(path: &Path) -> impl Fn(std::io::Error) -> TrustError + '_ {
    |error| TrustError::File { path: path.to_owned(), reason: error.to_string() }
}

/// Set it up; whether every cell has what it needs. What is false has been told on stderr. A token is printed on stdout.
///
/// # Errors
/// See [`TrustError`].
pub fn trust(options: &TrustOptions) -> Result<bool, TrustError> {
    if let Some(cell) = &options.install {
        return install(cell);
    }
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
        Keep::open_or_make(out)?.write(tls::CA_CERTIFICATE, authority.certificate())?;
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
    certificates(options, &authority, &cells)
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
    let keep = Keep::open_or_make(dir)?;
    keep.write(tls::CLIENT_KEY, &key)?;
    keep.write(tls::CLIENT_CERTIFICATE, &certificate)?;
    tls::GNUTLS_NAMES.iter().try_for_each(|(name, file)| keep.link(name, file))
}

/// How hosts are reached.
fn over_ssh(options: &TrustOptions) -> DcliOptions {
    let user = options.user.clone();
    DcliOptions { user, ssh_options: options.ssh_options.clone(), ..DcliOptions::default() }
}

/// Carry out the order that stdin has.
fn install(cell: &Path) -> Result<bool, TrustError> {
    let bad = |why: String| {
        usage(format!("this is no order: {why}"), "`flashcell trust HOST:DIR` on another host sends them")
    };
    let mut text = String::new();
    std::io::stdin().take(ORDER_BYTES_MAX).read_to_string(&mut text).map_err(|error| bad(error.to_string()))?;
    let order: Order = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let done = order.carry_out(cell)?;
    writeln!(std::io::stdout(), "{done}").map_err(DcliError::Output)?;
    Ok(true)
}

/// Have each cell carry out its order; whether all have.
fn send(options: &TrustOptions, orders: Vec<(&Place, Order, String)>) -> Result<bool, TrustError> {
    let mut tasks = Vec::new();
    for (cell, order, about) in orders {
        match cell {
            Place::Here(path) => talk(&format!("{}: {}{about}", path.display(), order.carry_out(path)?)),
            Place::There { host, dir } => {
                // Text only: it cannot fail.
                let input = serde_json::to_vec(&order).unwrap_or_default();
                tasks.push((host.clone(), Task { text: INSTALL, args: vec![dir.clone()], input: input.into() }));
            }
        }
    }
    run_tasks(&over_ssh(options), &tasks).map_err(TrustError::Dcli)
}

fn certificates(options: &TrustOptions, authority: &Authority, cells: &[Place]) -> Result<bool, TrustError> {
    let mut orders = Vec::new();
    for cell in cells {
        let mut names = cell.names();
        names.extend(options.names.iter().cloned());
        let (certificate, key) = authority.cell(&names)?;
        let order = Order::Certificates { authority: authority.certificate().to_owned(), certificate, key };
        orders.push((cell, order, format!(" for {}", names.join(", "))));
    }
    let good = send(options, orders)?;
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
    let order = || Order::Token { name: name.to_owned(), line: line.clone() };
    let good = send(options, cells.iter().map(|cell| (cell, order(), String::new())).collect())?;
    talk("a cell takes its first token within seconds, further ones at once");
    // The only time it is seen.
    writeln!(std::io::stdout(), "{token}").map_err(DcliError::Output)?;
    Ok(good)
}

fn revoke(options: &TrustOptions, cells: &[Place], name: &str) -> Result<bool, TrustError> {
    let order = || Order::Revoke { name: name.to_owned() };
    send(options, cells.iter().map(|cell| (cell, order(), String::new())).collect())
}

#[cfg(test)]
mod tests;
