//! `dcli`: one command on many cells, over the system's ssh and scp (S6).
//!
//! ```text
//!   -c, -g --hosts--> targets --keys (-k, one after another)--> copies (-f), script (-x) or command --show--> `cell: line`
//!                                                               (so many at a time)
//! ```
//!
//! Options, output and exit codes are those of the vendor's tool. A cell that cannot be reached, or dies in the middle, is named
//! and costs the others nothing. Never speaks to a cell itself, never keeps a password, never changes how ssh trusts a host.

mod hosts;
mod keys;
mod password;
mod pool;
mod remote;
mod show;
mod vmstat;

pub(crate) use hosts::names;

use hosts::Target;
use pool::{Answer, End, Limits};
use remote::{Remote, Step};
use show::Show;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// ssh clients at a time unless told otherwise: one takes some 10 MiB of memory and a processor while keys are exchanged.
pub const BATCH_DEFAULT: usize = 64;
/// ssh clients at a time at most: with four descriptors each, below the usual limit of 1024 for a process.
pub const BATCH_MAX: usize = 200;
/// Lines kept of one cell, as the vendor's.
pub const LINES_DEFAULT: usize = 100_000;
/// Seconds for a connection to come about.
pub const CONNECT_TIMEOUT_DEFAULT_S: u32 = 10;
/// Where root's copies go with `--root-exadatatmp`.
const ROOT_TMP: &str = "/var/log/exadatatmp";

/// What is asked for; field names follow the options.
#[derive(Clone, Debug, Default)]
pub struct DcliOptions {
    /// `-c`: names separated by commas.
    pub cells: Option<String>,
    /// `-g`: a file with a name on each line.
    pub group_file: Option<PathBuf>,
    /// `-l`.
    pub user: String,
    /// `-f`: files, or patterns with `*` and `?` in their last part.
    pub files: Vec<String>,
    /// `-d`.
    pub destination: Option<String>,
    /// `-x`.
    pub script: Option<PathBuf>,
    /// `-k`.
    pub push_key: bool,
    /// `--unkey`.
    pub drop_key: bool,
    /// `--key-with-one-password`.
    pub one_password: bool,
    /// `--root-exadatatmp`.
    pub root_tmp: bool,
    /// `-n`.
    pub abbreviate: bool,
    /// `-r`.
    pub regex: Option<String>,
    /// `-s`.
    pub ssh_options: Option<String>,
    /// `--scp`.
    pub scp_options: Option<String>,
    /// `--serial`.
    pub serial: bool,
    /// `--batchsize`.
    pub batch_size: Option<usize>,
    /// `--ctimeout`, in seconds.
    pub connect_timeout_s: Option<u32>,
    /// `--maxlines`.
    pub lines_max: Option<usize>,
    /// `--hidestderr`.
    pub hide_stderr: bool,
    /// `--json`.
    pub json: bool,
    /// `--showbanner`.
    pub show_banner: bool,
    /// `-t`.
    pub list_targets: bool,
    /// `-v`.
    pub verbose: bool,
    /// `--vmstat`.
    pub vmstat: Option<String>,
    /// The command, in words.
    pub command: Vec<String>,
}

/// Why nothing was run: exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum DcliError {
    /// No target.
    #[error("no cells are named\nhint: -c cell01,cell02, or -g FILE with one on each line")]
    NoTarget,
    /// Too many.
    #[error("more than {max} cells are named", max = hosts::TARGETS_MAX)]
    TooMany,
    /// Not the name of a host.
    #[error(
        "{name:?} is not the name of a host: letters, digits, '.', '-', '_', ':' and a user before '@' may be in it"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// A file on this side.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// What is the matter.
        reason: String,
    },
    /// Nothing to do.
    #[error("nothing to do on the cells\nhint: name a command, or -x, -f, -k, --unkey, -t or --vmstat")]
    NoCommand,
    /// Two things that exclude one another.
    #[error("{0} exclude one another")]
    Conflict(&'static str),
    /// Two things that belong together.
    #[error("{0}")]
    Incomplete(&'static str),
    /// `-r`.
    #[error("-r {text:?} is not a regular expression: {reason}")]
    Regex {
        /// What was given.
        text: String,
        /// Why not.
        reason: String,
    },
    /// `-s`, `--scp`, `--vmstat`.
    #[error("{option} {text:?}: a quote is not closed")]
    Quotes {
        /// Which option.
        option: &'static str,
        /// Its text.
        text: String,
    },
    /// A number out of bounds.
    #[error("{option} {value} is not from 1 to {max}")]
    Bounds {
        /// Which option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The most.
        max: usize,
    },
    /// The key of this side.
    #[error("{0}")]
    Key(String),
    /// The password was not read.
    #[error("cannot read a password: {0}\nhint: --key-with-one-password wants a terminal")]
    Password(std::io::Error),
    /// stdout.
    #[error("cannot write to stdout: {0}")]
    Output(std::io::Error),
}

/// Do it; whether every cell was reached and succeeded. What is false has been told on stderr.
///
/// # Errors
/// Nothing was run on any cell; see [`DcliError`].
pub fn dcli(options: &DcliOptions) -> Result<bool, DcliError> {
    match run(options) {
        // Something may have been run: that is no "nothing was run".
        Err(DcliError::Output(error)) => {
            // Nobody is left to tell when stderr is gone, too.
            let _ = writeln!(std::io::stderr(), "{}", DcliError::Output(error));
            Ok(false)
        }
        ended => ended,
    }
}

fn run(options: &DcliOptions) -> Result<bool, DcliError> {
    let plan = Plan::new(options)?;
    let show = Show::new(options)?;
    let has_steps = |target: &Target| !plan.steps(options, target).is_empty();
    // In JSON each answer names its cell.
    if options.list_targets && !(options.json && plan.targets.first().is_some_and(has_steps)) {
        show.targets(&plan.targets)?;
    }
    let mut good = true;
    let mut targets: Vec<&Target> = plan.targets.iter().collect();
    if options.push_key || options.drop_key {
        let key = keys::LocalKey::find(&plan.remote, options.push_key)?;
        let asking = plan.remote.asking(options.one_password)?;
        let step = |target: &Target| vec![asking.key(target, &key, options.push_key)];
        let answers = pool::serial(&targets, &step, &plan.limits, &mut |target, line| show.key_line(target, line))?;
        good &= show.ends(&targets, &answers);
        for (target, answer) in targets.iter().zip(&answers).filter(|(_, answer)| answer.end != End::Done) {
            show.lost(target, answer)?;
        }
        let reached = answers.iter().map(|answer| matches!(answer.end, End::Done));
        targets = targets.iter().zip(reached).filter(|(_, reached)| *reached).map(|(target, _)| *target).collect();
    }
    let steps = |target: &Target| plan.steps(options, target);
    if let Some(vmstat) = options.vmstat.as_deref().filter(|text| !options.json && vmstat::has_rows(text)) {
        let answers = vmstat::run(&targets, &plan.remote, vmstat, &plan.limits)?;
        return Ok(show.ends(&targets, &answers) && good);
    }
    if targets.first().is_none_or(|target| steps(target).is_empty()) {
        if options.push_key || options.drop_key {
            show.end_json()?;
        }
        return Ok(good);
    }
    let answers: Vec<Answer> = if options.serial && !options.abbreviate && !options.json {
        pool::serial(&targets, &steps, &plan.limits, &mut |target, line| show.line(target, line))?
    } else {
        let batch = if options.serial { 1 } else { plan.batch };
        pool::parallel(&targets, &steps, batch, &plan.limits, &mut |target, answer| show.answer(target, answer))?
    };
    show.summary(&targets, &answers)?;
    Ok(show.ends(&targets, &answers) && good)
}

/// One thing to be done on a host by another command of this program.
pub(crate) struct Task {
    /// A text for `sh`.
    pub(crate) text: &'static str,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// What it reads.
    pub(crate) input: Arc<[u8]>,
}

/// Do the tasks of each host, so many hosts at a time; their output goes to stderr. Whether every host did all of them.
///
/// # Errors
/// Nothing was run; see [`DcliError`].
pub(crate) fn run_tasks(options: &DcliOptions, tasks: &[(String, Task)]) -> Result<bool, DcliError> {
    if tasks.is_empty() {
        return Ok(true);
    }
    let names: Vec<&str> = tasks.iter().map(|(name, _)| name.as_str()).collect();
    let targets = hosts::targets(Some(&names.join(",")), None)?;
    let targets: Vec<&Target> = targets.iter().collect();
    let (remote, show) = (Remote::new(options)?, Show::new(options)?);
    let limits = Limits { lines_max: LINES_DEFAULT, hide_stderr: false, verbose: options.verbose };
    let steps = |target: &Target| {
        let mine = tasks.iter().filter(|(name, _)| *name == target.name);
        mine.map(|(_, task)| remote.shell(target, task.text, &task.args, task.input.clone())).collect()
    };
    let answers = pool::parallel(&targets, &steps, BATCH_DEFAULT, &limits, &mut |target, answer| {
        show.talk(target, answer);
        Ok(())
    })?;
    Ok(show.ends(&targets, &answers))
}

/// Everything checked before the first ssh is started.
struct Plan {
    targets: Vec<Target>,
    remote: Remote,
    files: Vec<PathBuf>,
    script: Option<remote::Script>,
    batch: usize,
    limits: Limits,
}

impl Plan {
    fn new(options: &DcliOptions) -> Result<Plan, DcliError> {
        let targets = hosts::targets(options.cells.as_deref(), options.group_file.as_deref())?;
        let has_command = !options.command.is_empty();
        let tasks = [has_command, options.script.is_some(), options.vmstat.is_some()];
        if tasks.iter().filter(|it| **it).count() > 1 {
            return Err(DcliError::Conflict("a command, -x and --vmstat"));
        }
        if options.push_key && options.drop_key {
            return Err(DcliError::Conflict("-k and --unkey"));
        }
        let copies = !options.files.is_empty() || options.script.is_some();
        if options.destination.is_some() && !copies {
            return Err(DcliError::Incomplete("-d tells where -f or -x copies to, and neither is given"));
        }
        if options.json && (options.abbreviate || options.regex.is_some()) {
            return Err(DcliError::Conflict("--json and -n or -r, which shape text,"));
        }
        let keys = options.push_key || options.drop_key;
        if options.one_password && !keys {
            return Err(DcliError::Incomplete("--key-with-one-password goes with -k or --unkey"));
        }
        if !copies && !keys && !options.list_targets && tasks == [false; 3] {
            return Err(DcliError::NoCommand);
        }
        let bounded = |option, value: Option<usize>, default, max| match value {
            Some(value) if !(1..=max).contains(&value) => Err(DcliError::Bounds { option, value, max }),
            value => Ok(value.unwrap_or(default)),
        };
        let batch = bounded("--batchsize", options.batch_size, BATCH_DEFAULT, BATCH_MAX)?;
        let lines_max = bounded("--maxlines", options.lines_max, LINES_DEFAULT, pool::LINES_MAX)?;
        let mut files = Vec::new();
        for pattern in &options.files {
            files.extend(hosts::local_files(pattern)?);
        }
        let script = options.script.as_deref().map(remote::Script::new).transpose()?;
        let limits = Limits { lines_max, hide_stderr: options.hide_stderr, verbose: options.verbose };
        Ok(Plan { targets, remote: Remote::new(options)?, files, script, batch, limits })
    }

    /// What one cell is asked to do, one after the other; the first that fails is the last.
    fn steps(&self, options: &DcliOptions, target: &Target) -> Vec<Step> {
        let tmp = (options.root_tmp && target.user(&options.user) == "root").then(|| ROOT_TMP.to_owned());
        let destination = options.destination.clone().or(tmp);
        let mut steps: Vec<Step> = self
            .files
            .iter()
            .map(|file| self.remote.copy(target, file, destination.as_deref().unwrap_or("")))
            .collect();
        if let Some(script) = &self.script {
            steps.extend(self.remote.script(target, script, destination.as_deref()));
        } else if let Some(vmstat) = &options.vmstat {
            steps.push(self.remote.command(target, &format!("vmstat {vmstat}")));
        } else if !options.command.is_empty() {
            steps.push(self.remote.command(target, &options.command.join(" ")));
        }
        steps
    }
}
