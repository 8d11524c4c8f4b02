//! A cell of its own: made, served and administered with the real binary, in a directory that goes with it.

use device::Address;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A cell this small is ready in well under a second; a busy machine takes longer.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// What makes a cell, as [`ServerError::Failed`] names it.
pub(crate) const INIT: &str = "init";
/// A clean stop of an idle cell.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the server did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The directory cannot be made.
    #[error("no directory for the cell's files{within}: {source}\nhint: --dir or TMPDIR names one with room for them", within = within.as_ref().map_or_else(String::new, |dir| format!(" in {}", dir.display())))]
    Directory {
        /// Where it was to be made, if that was said.
        within: Option<PathBuf>,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration could not be adjusted.
    #[error("{path}: {source}")]
    Config {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The binary cannot be run.
    #[error("cannot run {program}: {source}", program = .program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It ended with an error.
    #[error("`flashcell {what}` failed: {told}")]
    Failed {
        /// Its arguments.
        what: String,
        /// What it said.
        told: String,
    },
    /// It did not say that it is ready.
    #[error("the server did not get ready within {} s\n{log}", READY_TIMEOUT.as_secs())]
    NotReady {
        /// Its log.
        log: String,
    },
}

/// Metrics by name and object, in thousandths of their units.
pub(crate) type Metrics = BTreeMap<(String, String), u64>;

/// The sum of those of which the name is one, over the objects whose names begin so; thousandths.
pub(crate) fn sum_milli(metrics: &Metrics, is_one: impl Fn(&str) -> bool, object: &str) -> u64 {
    let of = |((name, on), _): &(&(String, String), &u64)| is_one(name) && on.starts_with(object);
    metrics.iter().filter(of).map(|(_, milli)| milli).sum()
}

/// What to make.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) binary: PathBuf,
    /// The name of the cell.
    pub(crate) name: String,
    /// Where its directory is made; where temporary files are when not given.
    pub(crate) within: Option<PathBuf>,
    /// A size, or a device.
    pub(crate) disk: String,
    /// A medium to emulate on it.
    pub(crate) disk_model: Option<String>,
    pub(crate) flash: Option<String>,
    pub(crate) flash_model: Option<String>,
    pub(crate) grid_disk: Option<String>,
    /// Sizes of `[flash_cache]` for caches that will be created: key and value.
    pub(crate) tuning: Vec<(&'static str, String)>,
    /// Destroy what is on the devices.
    pub(crate) force: bool,
}

/// A served cell; killed and removed with this.
pub(crate) struct Server {
    binary: PathBuf,
    /// Empty once the log is to be kept.
    dir: std::cell::RefCell<Option<TempDir>>,
    cell: PathBuf,
    child: Child,
}

impl Server {
    /// Make a cell: its directory, which goes when it is let go of.
    pub(crate) fn make(plan: &Plan) -> Result<(TempDir, PathBuf), ServerError> {
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix("flashcell-");
        let dir = match &plan.within {
            Some(within) => builder.tempdir_in(within),
            None => builder.tempdir(),
        };
        let dir = dir.map_err(|source| ServerError::Directory { within: plan.within.clone(), source })?;
        let cell = dir.path().join(&plan.name);
        let mut init = Command::new(&plan.binary);
        // Its data is made up, and goes with its directory, which may be in memory or in a container.
        init.arg("init").args(["--sparse", "--durable", "yes"]).arg(&cell).args(["--disk", &plan.disk]);
        let more = [("--flash", &plan.flash), ("--griddisk", &plan.grid_disk), ("--disk-model", &plan.disk_model)];
        more.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))).for_each(|(name, value)| {
            init.arg(name).arg(value);
        });
        if plan.force {
            init.arg("--force");
        }
        run(init, INIT)?;
        adjust(&cell.join("cell.toml"), plan)?;
        Ok((dir, cell))
    }

    /// Make a cell and serve it.
    pub(crate) fn start(plan: &Plan) -> Result<Server, ServerError> {
        let (dir, cell) = Server::make(plan)?;

        let log = cell.join("serve.log");
        let spawn = || {
            let file = std::fs::File::create(&log)?;
            Command::new(&plan.binary)
                .args(["serve", "--with-parent"])
                .arg(&cell)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(file)
                .spawn()
        };
        let child = spawn().map_err(|source| ServerError::Run { program: plan.binary.clone(), source })?;
        let dir = std::cell::RefCell::new(Some(dir));
        let mut server = Server { binary: plan.binary.clone(), dir, cell, child };
        server.wait_ready()?;
        Ok(server)
    }

    fn wait_ready(&mut self) -> Result<(), ServerError> {
        let (tell, told) = mpsc::channel();
        if let Some(stdout) = self.child.stdout.take() {
            std::thread::spawn(move || {
                let mut line = String::new();
                // Nobody listens any more when the time is over.
                let _ = BufReader::new(stdout).read_line(&mut line).map(|_| tell.send(line));
            });
        }
        match told.recv_timeout(READY_TIMEOUT) {
            Ok(line) if line.starts_with("ready ") => Ok(()),
            _ => Err(ServerError::NotReady { log: self.log() }),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.cell.join("serve.log")).unwrap_or_default()
    }

    /// Leave the directory for whoever looks into a failure; the path of the log.
    pub(crate) fn keep_log(&self) -> PathBuf {
        if let Some(dir) = self.dir.borrow_mut().take() {
            let _ = dir.keep();
        }
        self.cell.join("serve.log")
    }

    /// Where it serves NBD.
    pub(crate) fn nbd_address(&self) -> Address {
        Address::Unix(self.cell.join("nbd.sock"))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Carry out a statement; what it printed.
    pub(crate) fn cellcli(&self, statement: &str) -> Result<String, ServerError> {
        let mut command = Command::new(&self.binary);
        command.arg("cellcli").arg("-c").arg(&self.cell).args(["--json", "-e", statement]);
        run(command, statement)
    }

    /// Its metrics.
    pub(crate) fn metrics(&self) -> Result<Metrics, ServerError> {
        let text = self.cellcli("list metriccurrent attributes name, metricObjectName, metricValue")?;
        Ok(text.lines().filter_map(metric).collect())
    }

    /// Stop clean.
    pub(crate) fn stop(mut self) -> Result<(), ServerError> {
        let failed = |told: String| Err(ServerError::Failed { what: "serve".to_owned(), told });
        let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) else { return failed("no process id".to_owned()) };
        let run = |source| ServerError::Run { program: "SIGTERM".into(), source };
        kill_process(pid, Signal::TERM).map_err(|errno| run(errno.into()))?;
        let until = Instant::now() + STOP_TIMEOUT;
        loop {
            match self.child.try_wait().map_err(run)? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return failed(format!("{status}\n{}", self.log())),
                None if Instant::now() >= until => return failed(format!("it does not stop\n{}", self.log())),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone after a clean stop.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(mut command: Command, what: &str) -> Result<String, ServerError> {
    let program = PathBuf::from(command.get_program());
    let output = command.stdin(Stdio::null()).output().map_err(|source| ServerError::Run { program, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(ServerError::Failed { what: what.to_owned(), told })
}

/// Set in cell.toml what `init` has no words for.
fn adjust(path: &std::path::Path, plan: &Plan) -> Result<(), ServerError> {
    let config = |source| ServerError::Config { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(config)?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut set = |begins: &str, line: String, keeps: bool| {
        let found = lines.iter().position(|line| line.starts_with(begins));
        let missing = || config(std::io::Error::other(format!("it has no line \"{begins}\"")));
        let at = found.ok_or_else(missing)?;
        if keeps {
            lines.insert(at + 1, line);
        } else {
            lines[at] = line;
        }
        Ok(())
    };
    for (key, value) in &plan.tuning {
        set(&format!("{key} = "), format!("{key} = \"{value}\""), false)?;
    }
    if let Some(model) = &plan.flash_model {
        set("kind = \"flash\"", format!("model = \"{model}\""), true)?;
    }
    std::fs::write(path, lines.join("\n") + "\n").map_err(config)
}

/// `{"name":"…","metricObjectName":"…","metricValue":…}`: one line of the answer.
fn metric(line: &str) -> Option<((String, String), u64)> {
    let text = |key: &str| {
        let rest = line.split_once(&format!("\"{key}\":\""))?.1;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    };
    let number = line.split_once("\"metricValue\":")?.1;
    let number = number.split([',', '}']).next()?;
    Some(((text("name")?, text("metricObjectName")?), thousandths(number)?))
}

/// A decimal number in thousandths, the rest cut off.
fn thousandths(number: &str) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: String = fraction.chars().chain("000".chars()).take(3).collect();
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(digits.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_answer() {
        let line = r#"{"name":"CD_IO_TM_R_SM","metricObjectName":"CD_00_demo","metricValue":1234.5678},"#;
        let expected = (("CD_IO_TM_R_SM".to_owned(), "CD_00_demo".to_owned()), 1_234_567);
        assert_eq!(metric(line), Some(expected));
        assert_eq!(metric("["), None);
        assert_eq!(thousandths("7"), Some(7_000));
        assert_eq!(thousandths("-7"), None);
    }
}
