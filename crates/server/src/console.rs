//! The CellCLI client: statements from the command line, from a script or from a prompt, to a cell's admin socket.
//!
//! Parses here, so that a wrong statement is shown in its place without a server; carries out what is about the session
//! (HELP, SET, SPOOL, START) itself. Never touches a cell.

mod backup;
mod flush;
mod prompt;
mod session;

pub use backup::backup;
pub(crate) use flush::Progress;
pub(crate) use session::Session;

use crate::admin::Form;
use crate::config::{ADMIN_PORT, Config, ConfigError, host_and_port};
use crate::http::Client;
use device::Address;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// The variable that names the cell when the command line does not.
pub const CELL_VARIABLE: &str = "FLASHCELL_CELL";

/// The admin socket of a cell as `flashcell init` names it.
const ADMIN_SOCKET: &str = "admin.sock";

/// How to start a client.
#[derive(Clone, Debug, Default)]
pub struct ConsoleOptions {
    /// A cell's directory or `cell.toml`, or `HOST[:PORT]`; none: [`CELL_VARIABLE`], then the current directory.
    pub cell: Option<String>,
    /// No prompt and no line editing, though stdin is a terminal.
    pub non_interactive: bool,
    /// Read-only.
    pub monitor: bool,
    /// No banner.
    pub no_banner: bool,
    /// The port of the cell's admin service on this host, or on the host of `cell`.
    pub port: Option<u16>,
    /// LIST and DESCRIBE in JSON.
    pub json: bool,
    /// LIST in XML.
    pub xml: bool,
    /// 1: tell on stderr which cell is asked; more: each statement, and how long its answer took.
    pub verbosity: u8,
    /// Carry out these statements and leave.
    pub execute: Option<String>,
}

/// Why a client cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    /// Which cell is not known.
    #[error("no cell is named\nhint: add -c DIR or -c HOST[:PORT], set {CELL_VARIABLE}, or go to the cell's directory")]
    NoCell,
    /// The cell's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It has no admin socket.
    #[error("{path} names no admin address\nhint: add one under listen.admin, such as \"unix:admin.sock\"")]
    NoAdmin {
        /// The configuration.
        path: PathBuf,
    },
    /// What was given is no address.
    #[error("{given:?} is neither a directory nor HOST[:PORT]")]
    Address {
        /// What was given.
        given: String,
    },
    /// A port beside what has one, or is reached without.
    #[error("{cell} is asked without port {port}\nhint: PORT goes with -c HOST, or stands alone for this host")]
    Port {
        /// The cell.
        cell: String,
        /// The port.
        port: u16,
    },
    /// The cell does not answer, or refuses.
    #[error("{0}")]
    Refused(String),
    /// Nothing to show to a cell reached over TLS.
    #[error("{0}")]
    NoClient(String),
    /// The terminal or stdin.
    #[error("cannot read statements: {0}")]
    Input(String),
    /// stdout.
    #[error("cannot write to stdout: {0}")]
    Output(std::io::Error),
}

/// What FREEZE adds to the line of a grid disk whose writes wait until the freeze ends.
pub(crate) const WRITES_WAIT: &str = "; its writes wait meanwhile";

/// Have a cell carry out a FREEZE; in JSON, of each grid disk its name, for how many seconds, the moment its disk is of, and whether its writes wait.
///
/// # Errors
/// See [`ConsoleError`]; what the cell refuses, in its words.
pub fn freeze(cell: Option<&str>, statement: &str) -> Result<String, ConsoleError> {
    let client = Client::new(address_of(cell)?).map_err(|error| ConsoleError::NoClient(error.to_string()))?;
    let asked = Session::new(client, false, Form::Text).ask(statement);
    let outcomes = asked.map_err(|error| ConsoleError::Refused(error.to_string()))?;
    match outcomes.iter().find_map(|outcome| outcome.error.clone()) {
        Some(refusal) => Err(ConsoleError::Refused(refusal)),
        None => Ok(frozen_json(&outcomes.into_iter().map(|outcome| outcome.output).collect::<String>())),
    }
}

/// What FREEZE answers, `GridDisk NAME frozen for N s, as of TIME` on each line, in JSON.
fn frozen_json(told: &str) -> String {
    let row = |line: &str| {
        let (name, rest) = line.strip_prefix("GridDisk ")?.split_once(" frozen for ")?;
        let (seconds, rest) = rest.split_once(" s, as of ")?;
        let seconds = seconds.parse::<u64>().ok()?;
        let (as_of, writes_wait) = rest.strip_suffix(WRITES_WAIT).map_or((rest, false), |as_of| (as_of, true));
        Some(serde_json::json!({"griddisk": name, "seconds": seconds, "as_of": as_of, "writes_wait": writes_wait}))
    };
    serde_json::Value::Array(told.lines().filter_map(row).collect()).to_string()
}

/// Where the admin service of a cell is.
pub(crate) fn address_of(cell: Option<&str>) -> Result<Address, ConsoleError> {
    let given = match cell {
        Some(cell) => cell.to_owned(),
        None => match std::env::var(CELL_VARIABLE) {
            Ok(cell) if !cell.is_empty() => cell,
            _ if Path::new(crate::config::FILE_NAME).exists() => ".".to_owned(),
            _ => return Err(ConsoleError::NoCell),
        },
    };
    let path = Path::new(&given);
    if path.exists() || given.contains('/') {
        let located = match Config::load(path) {
            // Its group reads cell.toml; others of this host, who may look at the cell, find the socket where it usually is.
            Err(ConfigError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied && path.join(ADMIN_SOCKET).exists() =>
            {
                return Ok(Address::Unix(path.join(ADMIN_SOCKET)));
            }
            loaded => loaded?,
        };
        // On this host the socket: there the kernel tells who asks.
        let mut addresses = located.admin_addresses();
        addresses.sort_by_key(|address| matches!(address, Address::Tcp { .. }));
        return addresses.into_iter().next().ok_or(ConsoleError::NoAdmin { path: located.path });
    }
    let (host, port) = host_and_port(&given, ADMIN_PORT).ok_or(ConsoleError::Address { given })?;
    Ok(Address::Tcp { host, port })
}

/// A host that is named without a port.
fn at_port(host: &str, port: u16) -> Result<Address, ConsoleError> {
    let given = || host.to_owned();
    if Path::new(host).exists() || host.contains('/') {
        return Err(ConsoleError::Port { cell: given(), port });
    }
    match host_and_port(host, port) {
        Some((host, found)) if found == port => Ok(Address::Tcp { host, port }),
        Some(_) => Err(ConsoleError::Port { cell: given(), port }),
        None => Err(ConsoleError::Address { given: given() }),
    }
}

/// Run a client to its end; whether every statement was carried out.
///
/// # Errors
/// See [`ConsoleError`]; a statement that fails is told on stderr and is no error here.
pub fn cellcli(options: &ConsoleOptions) -> Result<bool, ConsoleError> {
    let address = match (options.port, &options.cell) {
        (None, cell) => address_of(cell.as_deref())?,
        (Some(port), None) => Address::Tcp { host: "localhost".to_owned(), port },
        (Some(port), Some(host)) => at_port(host, port)?,
    };
    let form = match (options.json, options.xml) {
        (true, _) => Form::Json,
        (false, true) => Form::Xml,
        (false, false) => Form::Text,
    };
    if options.verbosity > 0 {
        // There is nowhere to tell that stderr is gone.
        let _ = writeln!(std::io::stderr(), "cell: {address}");
    }
    let client = Client::new(address).map_err(|error| ConsoleError::NoClient(error.to_string()))?;
    let mut session = Session::new(client, options.monitor, form);
    session.tells_times(options.verbosity > 1);
    match run(&mut session, options) {
        // Whoever reads has enough: `| head -1`.
        Err(ConsoleError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        ended => ended?,
    }
    Ok(session.is_good())
}

fn run(session: &mut Session, options: &ConsoleOptions) -> Result<(), ConsoleError> {
    if let Some(text) = &options.execute {
        session.run(text)?;
    } else if options.non_interactive || !std::io::stdin().is_terminal() {
        run_script(session)?;
    } else {
        if !options.no_banner {
            session.print(&format!("CellCLI: Release {} of Flashcell\n\n", crate::VERSION))?;
        }
        prompt::run(session)?;
    }
    Ok(())
}

/// Statements from stdin, each line as it comes: a program at the other end may wait for the answer.
fn run_script(session: &mut Session) -> Result<(), ConsoleError> {
    let mut text = String::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| ConsoleError::Input(error.to_string()))?;
        text.push_str(&line);
        text.push('\n');
        if cellcli::needs_continuation(&text) && text.len() <= cellcli::TEXT_BYTES_MAX {
            continue;
        }
        let whole = std::mem::take(&mut text);
        if session.run_in_script(&whole)? {
            return Ok(());
        }
    }
    session.run_in_script(&text).map(|_| ())
}
