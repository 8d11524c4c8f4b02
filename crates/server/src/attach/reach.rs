//! Which cell, where it serves NBD, and what its grid disk is.

use super::{AttachError, AttachOptions};
use crate::config::Config;
use crate::console::{CELL_VARIABLE, ConsoleError};
use device::{Address, Runtime, RuntimeConfig};
use nbd::client::{Client, ClientError, ClientOptions, RemoteExport, Uri};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A grid disk that answers.
pub(super) struct Reached {
    pub(super) export: RemoteExport,
    pub(super) address: Address,
    pub(super) cell: String,
    pub(super) cell_dir: Option<PathBuf>,
}

/// Ask the cell.
pub(super) fn reach(options: &AttachOptions) -> Result<Reached, AttachError> {
    let given = match (&options.cell, std::env::var(CELL_VARIABLE)) {
        (Some(cell), _) => cell.clone(),
        (None, Ok(cell)) if !cell.is_empty() => cell,
        _ if Path::new(crate::config::FILE_NAME).exists() => ".".to_owned(),
        _ => return Err(ConsoleError::NoCell.into()),
    };
    let (address, cell, cell_dir) = locate(&given)?;
    let export = ask(&address, &options.grid_disk)?;
    Ok(Reached { export, address, cell, cell_dir })
}

/// The address of NBD, a name of the cell, and its directory.
fn locate(given: &str) -> Result<(Address, String, Option<PathBuf>), AttachError> {
    if given.contains("://") {
        let uri: Uri = given.parse().map_err(|error| AttachError::Reach(format!("{given}: {error}")))?;
        if !uri.export.is_empty() {
            return Err(AttachError::Reach(format!(
                "{given}: the grid disk is named before it\nhint: -c nbd://HOST:PORT"
            )));
        }
        let cell = match &uri.address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(path) => name_of(path.parent().unwrap_or(path)),
        };
        return Ok((uri.address, cell, None));
    }
    let path = Path::new(given);
    if !path.exists() && !given.contains('/') {
        return Err(AttachError::Reach(format!(
            "{given} is not a directory of a cell\nhint: a cell of another host is reached with -c nbd://HOST:PORT, where it serves NBD \
             without TLS"
        )));
    }
    let located = Config::load(path)?;
    let mut addresses = located.nbd_addresses();
    addresses.sort_by_key(|address| matches!(address.address, Address::Tcp { .. }));
    match addresses.into_iter().find(|address| !address.tls) {
        Some(found) => Ok((found.address, name_of(&located.dir), Some(located.dir.clone()))),
        None => Err(AttachError::Reach(format!(
            "{} serves NBD over TLS alone\nhint: a unix socket in listen.nbd",
            located.path.display()
        ))),
    }
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map_or_else(|| "cell".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// What the server says of the export.
fn ask(address: &Address, grid_disk: &str) -> Result<RemoteExport, AttachError> {
    let fail = |why: String, hint| AttachError::Export {
        grid_disk: grid_disk.to_owned(),
        address: address.to_string(),
        why,
        hint,
    };
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() })
        .map_err(|error| fail(error.to_string(), "`ulimit -n`, `ulimit -u`"))?;
    let world = runtime.world(0);
    let (at, name) = (address.clone(), grid_disk.to_owned());
    let asked = runtime.block_on(async move {
        let client = Client::connect(&world, &at, &name, &ClientOptions::default()).await?;
        let export = client.export().clone();
        client.disconnect().await;
        Ok::<_, ClientError>(export)
    });
    // Nothing of it is under way.
    let _ = runtime.shutdown(Duration::from_secs(1));
    asked.map_err(|error| match error {
        ClientError::Net(error) => {
            fail(error.to_string(), "is the cell served? `flashcell serve DIR`; --wait waits for it")
        }
        ClientError::Refused { message, .. } => fail(message, "`flashcell cellcli -e list griddisk` names them"),
        other => fail(other.to_string(), "is it a Flashcell cell that answers there?"),
    })
}
