//! The command line of `flashcell dcli`, and of `dcli`.

use clap::{Args, Parser};
use server::dcli::DcliOptions;
use std::path::PathBuf;

/// Run a command, copy files or run a script on many cells, over ssh and scp.
///
/// Exit codes: 0 all cells did it, 1 some could not be reached or failed, 2 nothing was run.
#[derive(Parser)]
#[command(name = "dcli", version)]
pub(crate) struct DcliLine {
    #[command(flatten)]
    pub(crate) dcli: Dcli,
}

#[derive(Args)]
pub(crate) struct Dcli {
    /// Cells, separated by commas
    #[arg(short = 'c', value_name = "CELLS")]
    cells: Option<String>,
    /// File with the name of a cell on each line
    #[arg(short = 'g', value_name = "GROUPFILE")]
    group_file: Option<PathBuf>,
    /// User on the cells
    #[arg(short = 'l', value_name = "USERID", default_value = "celladmin")]
    user: String,
    /// Copy this file, or those like this pattern; may be given several times
    #[arg(short = 'f', value_name = "FILE")]
    files: Vec<String>,
    /// Where -f and -x copy to: a directory or a file
    #[arg(short = 'd', value_name = "DESTFILE")]
    destination: Option<String>,
    /// Copy this file and run it: .scl by cellcli, others by the shell
    #[arg(short = 'x', value_name = "EXECFILE")]
    script: Option<PathBuf>,
    /// Put the ssh key into authorized_keys of the cells, one after another; makes one (ed25519) if need be
    #[arg(short = 'k')]
    push_key: bool,
    /// Take the ssh key out of authorized_keys of the cells
    #[arg(long = "unkey")]
    drop_key: bool,
    /// With -k: ask once for the password of all cells
    #[arg(long)]
    key_with_one_password: bool,
    /// Copies of root go to /var/log/exadatatmp
    #[arg(long)]
    root_exadatatmp: bool,
    /// Shorten the output of cells that succeed to one line
    #[arg(short = 'n')]
    abbreviate: bool,
    /// Leave out lines that begin like this regular expression, and name who had them
    #[arg(short = 'r', value_name = "REGEXP")]
    regex: Option<String>,
    /// Options for ssh, and for scp unless --scp is given
    #[arg(short = 's', value_name = "SSHOPTIONS", allow_hyphen_values = true)]
    ssh_options: Option<String>,
    /// Options for scp
    #[arg(long = "scp", value_name = "SCPOPTIONS", allow_hyphen_values = true)]
    scp_options: Option<String>,
    /// One cell after another
    #[arg(long)]
    serial: bool,
    /// So many cells at a time at most
    #[arg(long = "batchsize", value_name = "MAXTHDS")]
    batch_size: Option<usize>,
    /// Seconds for a connection to come about
    #[arg(long = "ctimeout", value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..))]
    connect_timeout: Option<u32>,
    /// Lines of output kept of each cell
    #[arg(long = "maxlines", value_name = "N")]
    lines_max: Option<usize>,
    /// Leave out what commands say on stderr
    #[arg(long = "hidestderr")]
    hide_stderr: bool,
    /// One JSON array: of each cell its name, how its command ended, and its lines
    #[arg(long)]
    json: bool,
    /// Show the banner of the cells' ssh servers
    #[arg(long = "showbanner")]
    show_banner: bool,
    /// List the cells
    #[arg(short = 't')]
    list_targets: bool,
    /// Show the commands run here, on stderr
    #[arg(short = 'v')]
    verbose: bool,
    /// Run vmstat with these options everywhere: a row for each cell, minimum, maximum, average
    #[arg(long, value_name = "OPTS", allow_hyphen_values = true)]
    vmstat: Option<String>,
    /// The command
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<String>,
}

impl Dcli {
    pub(crate) fn into_options(self) -> DcliOptions {
        DcliOptions {
            cells: self.cells,
            group_file: self.group_file,
            user: self.user,
            files: self.files,
            destination: self.destination,
            script: self.script,
            push_key: self.push_key,
            drop_key: self.drop_key,
            one_password: self.key_with_one_password,
            root_tmp: self.root_exadatatmp,
            abbreviate: self.abbreviate,
            regex: self.regex,
            ssh_options: self.ssh_options,
            scp_options: self.scp_options,
            serial: self.serial,
            batch_size: self.batch_size,
            connect_timeout_s: self.connect_timeout,
            lines_max: self.lines_max,
            hide_stderr: self.hide_stderr,
            json: self.json,
            show_banner: self.show_banner,
            list_targets: self.list_targets,
            verbose: self.verbose,
            vmstat: self.vmstat,
            command: self.command,
        }
    }
}
