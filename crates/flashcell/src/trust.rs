//! The command line of `flashcell trust`.

use clap::Args;
use server::Role;
use server::trust::TrustOptions;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Trust {
    /// Cells: the directory of one on this host, [USER@]HOST:DIR, or HOST with --at
    #[arg(value_name = "CELL", required_unless_present_any = ["group_file", "client", "install"])]
    cells: Vec<String>,
    /// File with a host on each line
    #[arg(short = 'g', value_name = "GROUPFILE")]
    group_file: Option<PathBuf>,
    /// Directory of the cell on hosts named without one
    #[arg(long, value_name = "DIR")]
    at: Option<String>,
    /// A further name or address the cells are reached by; may be given several times
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// User on hosts named without one
    #[arg(short = 'l', value_name = "USERID", default_value = "root")]
    user: String,
    /// Options for ssh and scp
    #[arg(short = 's', value_name = "SSHOPTIONS", allow_hyphen_values = true)]
    ssh_options: Option<String>,
    /// The directory of the authority and of your own certificate; else $FLASHCELL_TRUST, else ~/.flashcell
    #[arg(long = "trust", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Make a certificate for another client, with a role, into --out
    #[arg(long, value_name = "NAME", requires_all = ["role", "out"], conflicts_with = "token")]
    client: Option<String>,
    /// Make a bearer token with a role, take it into the cells, and print it
    #[arg(long, value_name = "NAME", requires = "role")]
    token: Option<String>,
    /// Have the cells take certificates and tokens of this name no more, from now on
    #[arg(long, value_name = "NAME", conflicts_with_all = ["client", "token"])]
    revoke: Option<String>,
    /// administrator, monitor, or database:NAME
    #[arg(long, value_name = "ROLE", value_parser = role)]
    role: Option<Role>,
    /// Directory for the files of --client
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Carry out what stdin says in the cell of this directory: what `trust` calls over ssh
    #[arg(long, value_name = "DIR", hide = true, exclusive = true)]
    install: Option<PathBuf>,
}

fn role(text: &str) -> Result<Role, String> {
    Role::parse(text).ok_or_else(|| "administrator, monitor or database:NAME".to_owned())
}

impl Trust {
    pub(crate) fn into_options(self) -> TrustOptions {
        TrustOptions {
            cells: self.cells,
            group_file: self.group_file,
            at: self.at,
            names: self.names,
            user: self.user,
            ssh_options: self.ssh_options,
            dir: self.dir,
            client: self.client,
            token: self.token,
            revoke: self.revoke,
            role: self.role,
            out: self.out,
            install: self.install,
        }
    }
}
