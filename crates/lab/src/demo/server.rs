//! A cell of its own: made, served and administered with the real binary, in a directory that goes with it.

use device::Address;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A cell this small is ready in well under a second; a busy machine takes longer.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// A clean stop of an idle cell.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the server did not do its part.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The directory cannot be made.
    #[error("no temporary directory: {0}\nhint: set TMPDIR to a directory with 300 MB of space")]
    Directory(std::io::Error),
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

/// What to make.
pub(super) struct Plan {
    pub(super) binary: PathBuf,
    pub(super) disk: String,
    pub(super) flash: String,
    pub(super) grid_disk: String,
    pub(super) disk_model: String,
    pub(super) segment: String,
}

/// A served cell; killed and removed with this.
pub(super) struct Server {
    binary: PathBuf,
    /// Empty once the log is to be kept.
    dir: std::cell::RefCell<Option<TempDir>>,
    cell: PathBuf,
    child: Child,
}

impl Server {
    /// Make a cell called `demo` and serve it.
    pub(super) fn start(plan: &Plan) -> Result<Server, ServerError> {
        let dir = tempfile::Builder::new().prefix("flashcell-").tempdir().map_err(ServerError::Directory)?;
        let cell = dir.path().join("demo");
        let (disk, flash) = (["--disk", &plan.disk], ["--flash", &plan.flash]);
        let more = [["--griddisk", &plan.grid_disk], ["--disk-model", &plan.disk_model]];
        let mut init = Command::new(&plan.binary);
        init.arg("init").arg("--sparse").arg(&cell).args(disk).args(flash).args(more.concat());
        run(init, "init")?;
        set_segment(&cell.join("cell.toml"), &plan.segment)?;

        let log = cell.join("serve.log");
        let spawn = || {
            let file = std::fs::File::create(&log)?;
            Command::new(&plan.binary)
                .arg("serve")
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
    pub(super) fn keep_log(&self) -> PathBuf {
        if let Some(dir) = self.dir.borrow_mut().take() {
            let _ = dir.keep();
        }
        self.cell.join("serve.log")
    }

    /// Where it serves NBD.
    pub(super) fn nbd_address(&self) -> Address {
        Address::Unix(self.cell.join("nbd.sock"))
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Carry out a statement; what it printed.
    pub(super) fn cellcli(&self, statement: &str) -> Result<String, ServerError> {
        let mut command = Command::new(&self.binary);
        command.arg("cellcli").arg("-c").arg(&self.cell).args(["--json", "-e", statement]);
        run(command, statement)
    }

    /// Stop clean.
    pub(super) fn stop(mut self) -> Result<(), ServerError> {
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

/// Set the segment size for caches that will be created.
fn set_segment(path: &std::path::Path, segment: &str) -> Result<(), ServerError> {
    let config = |source| ServerError::Config { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(config)?;
    let mut found = false;
    let lines = text.lines().map(|line| {
        if line.starts_with("segment = ") {
            found = true;
            format!("segment = \"{segment}\"\n")
        } else {
            format!("{line}\n")
        }
    });
    let changed: String = lines.collect();
    if !found {
        return Err(config(std::io::Error::other("it has no line \"segment = \"")));
    }
    std::fs::write(path, changed).map_err(config)
}
