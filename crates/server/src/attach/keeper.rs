//! The keeper of an attachment: it makes the block device, starts the driver, starts another when that dies, and ends all of it when
//! asked. It holds the [`Gate`] that requests come through, so the device outlives its driver.
//!
//! Never touches a request. Never waits for the device on the thread that starts drivers: only a driver can answer.

use super::AttachError;
use super::block::BlockDevice;
use super::detach::end_driver;
use super::gate::{Gate, Grow, Renewed};
use super::host;
use super::link;
use super::shared::{Shared, State};
use super::spec::{Place, Record, Spec, sign, take_lock};
use device::real::{SharedWords, pass_on};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// For the first driver to come up.
const START: Duration = Duration::from_secs(20);
/// Between two looks whether the grid disk has grown.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Before another driver is started after one that died at once; doubled each time, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A driver that lived so long has not died at once.
const LONG_LIFE: Duration = Duration::from_secs(10);
/// A line that is asked.
const LINE_BYTES_MAX: u64 = 256;
const ASK: Duration = Duration::from_secs(10);
/// For a driver to answer EIO to everything once it is asked to.
const GIVE_UP: Duration = Duration::from_secs(2);

/// How an attachment is, as its keeper tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) state: State,
    pub(super) unflushed_bytes: u64,
    pub(super) given_up_bytes: u64,
    pub(super) size_bytes: u64,
    pub(super) driver_pid: u32,
    pub(super) drivers_started: u32,
}

/// What a keeper may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Status,
    /// Have everything answered EIO.
    GiveUp,
    /// The device is taken apart already: end.
    End,
}

impl Ask {
    fn word(self) -> &'static str {
        match self {
            Ask::Status => "status",
            Ask::GiveUp => "give-up",
            Ask::End => "end",
        }
    }

    /// Ask the keeper of an attachment.
    pub(super) fn of(self, place: &Place) -> Result<Told, AttachError> {
        let path = place.control_path();
        let io = |source: std::io::Error| AttachError::File { path: path.clone(), source };
        let mut stream = UnixStream::connect(&path).map_err(io)?;
        stream.set_read_timeout(Some(ASK)).map_err(io)?;
        writeln!(stream, "{}", self.word()).map_err(io)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map_err(io)?;
        serde_json::from_str(&line).map_err(|error| io(error.into()))
    }
}

enum Event {
    DriverGone(std::io::Result<ExitStatus>),
    Asked(Ask, UnixStream),
}

struct Keeper {
    spec: Spec,
    place: Place,
    shared: Shared,
    gate: Gate,
    locks: [Option<OwnedFd>; 2],
    driver_pid: u32,
    drivers_started: u32,
    started: Instant,
    pause: Duration,
    events: Sender<Event>,
}

/// Make the device and keep it there until it is detached. Says `ready DEVICE` or `failed REASON` on stdout, in a line.
///
/// # Errors
/// It did not come about; this has been said.
pub fn keep(dir: &Path) -> Result<(), AttachError> {
    let place = Place { dir: dir.to_owned() };
    let outcome = begin(&place);
    let line = match &outcome {
        Ok((_, device, _)) => format!("ready {}", device.path().display()),
        Err(error) => format!("failed {}", error.to_string().replace('\n', "\u{1}")),
    };
    let mut stdout = std::io::stdout().lock();
    // Who started this may have gone: then nobody wants to know.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    drop(stdout);
    let (keeper, device, events) = outcome?;
    keeper.run(device, &events);
    Ok(())
}

fn failed(spec: &Spec, why: impl std::fmt::Display) -> AttachError {
    AttachError::Failed { grid_disk: spec.grid_disk.clone(), why: why.to_string() }
}

type Begun = (Keeper, BlockDevice, Receiver<Event>);

fn begin(place: &Place) -> Result<Begun, AttachError> {
    // A session of its own: what happens to the terminal is nothing to it.
    let _ = rustix::process::setsid();
    let spec = place.spec()?;
    super::guard();
    // Before the locks: a kernel that never comes back from this must not keep them from the next way to attach.
    let gate = Gate::new(&spec)?;
    let held = |holder: String| AttachError::Held { grid_disk: spec.grid_disk.clone(), holder };
    let lock = place.lock()?.ok_or_else(|| held("another attach is under way".to_owned()))?;
    let cell_lock = match spec.cell_lock() {
        None => None,
        Some(path) => {
            let mut file = take_lock(&path)?.ok_or_else(|| held(super::spec::signed(&path)))?;
            sign(&mut file, &format!("process {}, recorded in {}", std::process::id(), place.dir.display()));
            Some(OwnedFd::from(file))
        }
    };
    let words = SharedWords::new().map_err(|error| failed(&spec, format!("memory: {error}")))?;
    let (events, received) = mpsc::channel();
    let mut keeper = Keeper {
        shared: Shared(words),
        gate,
        locks: [Some(OwnedFd::from(lock)), cell_lock],
        driver_pid: 0,
        drivers_started: 0,
        started: Instant::now(),
        pause: PAUSE_MIN,
        events,
        place: place.clone(),
        spec,
    };
    // What may have to be taken away when this process is killed in between.
    let early = keeper.gate.early_device().map(Path::to_owned);
    if let Some(path) = &early {
        keeper.record(path, true)?;
    }
    match keeper.come_up(early.as_deref(), &received) {
        Ok(device) => Ok((keeper, device, received)),
        Err(error) => {
            keeper.abandon();
            Err(error)
        }
    }
}

impl Keeper {
    /// A driver, the device, and where both are recorded.
    fn come_up(&mut self, early: Option<&Path>, received: &Receiver<Event>) -> Result<BlockDevice, AttachError> {
        let place = self.place.clone();
        let deadline = Instant::now() + START;
        self.start_driver(false).map_err(|error| failed(&self.spec, format!("cannot start the driver: {error}")))?;
        if let Some(path) = early {
            self.record(path, true)?;
        }
        while self.shared.state() != State::Up {
            let why = match received.recv_timeout(Duration::from_millis(5)) {
                Ok(_) => place.last_words(),
                Err(_) if Instant::now() >= deadline || self.shared.state() == State::Failed => {
                    format!("the driver does not come up: {}", place.last_words())
                }
                Err(_) => continue,
            };
            return Err(failed(&self.spec, why));
        }
        let mut died = || matches!(received.try_recv(), Ok(Event::DriverGone(_))).then(|| place.last_words());
        let device = self.gate.make_device(&self.spec, &mut died)?;
        let listened = self.listen().map_err(|source| AttachError::File { path: place.control_path(), source });
        if let Err(error) = listened.and_then(|()| self.record(device.path(), false)) {
            // Nobody would find it.
            let _ = device.clear();
            return Err(error);
        }
        link::make(&place, &self.spec, device.path());
        info!(device = %device.path().display(), "attached");
        Ok(device)
    }

    /// Take apart an attachment that did not come about. The driver answers EIO to what the kernel may be reading of a device that is half made, so that it can be taken apart; then it ends.
    fn abandon(mut self) {
        self.shared.ask_to_give_up();
        let until = Instant::now() + GIVE_UP;
        while self.shared.state() == State::Up && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let driver_pid = self.driver_pid;
        self.gate.let_go();
        // With the gate its device goes, and a driver that serves one ends with it; one that waits for its cell does not.
        drop(self);
        std::thread::sleep(Duration::from_millis(200));
        end_driver(driver_pid);
    }

    fn start_driver(&mut self, resumed: bool) -> std::io::Result<()> {
        // What the shared words say is of the driver that died; this one is up once it has settled what that one left.
        if self.drivers_started > 0 && self.shared.state() == State::Up {
            self.shared.set_state(State::Waiting);
        }
        let mut command = Command::new(&self.spec.program);
        command.arg("attach-driver").arg(self.place.spec_path());
        let (option, end) = self.gate.end()?;
        command.arg(option).arg(end);
        command.arg("--words").arg(pass_on(self.shared.0.fd())?.to_string());
        for lock in self.locks.iter().flatten() {
            command.arg("--lock").arg(pass_on(lock)?.to_string());
        }
        if resumed {
            command.arg("--resumed");
        }
        let log = File::options().append(true).create(true).open(self.place.log_path())?;
        let mut child: Child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        self.driver_pid = child.id();
        self.drivers_started += 1;
        self.started = Instant::now();
        let events = self.events.clone();
        let wait = move || {
            let gone = child.wait();
            let _ = events.send(Event::DriverGone(gone));
        };
        std::thread::Builder::new().name("driver".to_owned()).spawn(wait).map(drop)
    }

    fn listen(&self) -> std::io::Result<()> {
        let path = self.place.control_path();
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let events = self.events.clone();
        let run = move || {
            for stream in listener.incoming().flatten() {
                // Root alone connects; one that says nothing is not waited for.
                let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
                let mut line = String::new();
                let read = BufReader::new(std::io::Read::take(&stream, LINE_BYTES_MAX)).read_line(&mut line);
                let asked = [Ask::Status, Ask::GiveUp, Ask::End].into_iter().find(|ask| ask.word() == line.trim());
                if let (Ok(_), Some(ask)) = (read, asked)
                    && events.send(Event::Asked(ask, stream)).is_err()
                {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("control".to_owned()).spawn(run).map(drop)
    }

    /// `is_early`: the device has not come about yet.
    fn record(&self, device: &Path, is_early: bool) -> Result<(), AttachError> {
        self.place.write_record(&Record {
            device: device.to_owned(),
            driver: self.spec.driver.word().to_owned(),
            keeper_pid: std::process::id(),
            driver_pid: self.driver_pid,
            is_early,
        })
    }

    fn told(&self) -> Told {
        Told {
            state: self.shared.state(),
            unflushed_bytes: if self.shared.is_unflushed() { self.shared.unflushed_bytes() } else { 0 },
            given_up_bytes: self.shared.given_up_bytes(),
            size_bytes: self.shared.size_bytes(),
            driver_pid: self.driver_pid,
            drivers_started: self.drivers_started,
        }
    }

    fn answer(&self, mut stream: UnixStream) {
        let text = serde_json::to_string(&self.told()).unwrap_or_default();
        // Who asked may have gone.
        let _ = writeln!(stream, "{text}");
    }

    /// Until it is detached.
    fn run(mut self, device: BlockDevice, events: &Receiver<Event>) {
        let path = device.path().to_owned();
        drop(device);
        let mut size_bytes = self.shared.size_bytes();
        loop {
            match events.recv_timeout(LOOK_EVERY) {
                Ok(Event::Asked(Ask::Status, stream)) => self.answer(stream),
                Ok(Event::Asked(Ask::GiveUp, stream)) => {
                    self.shared.ask_to_give_up();
                    let until = Instant::now() + ASK / 2;
                    while self.shared.state() != State::Failed && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    self.answer(stream);
                }
                Ok(Event::Asked(Ask::End, stream)) => {
                    self.gate.let_go();
                    self.answer(stream);
                }
                Ok(Event::DriverGone(gone)) => {
                    if self.is_over(&path, gone) {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = self.shared.size_bytes();
            if now > size_bytes
                && let Some(see) = self.gate.grow(&self.spec, &path)
            {
                size_bytes = now;
                grow(see, path.clone(), self.spec.grow_fs, now);
            }
        }
        link::remove(&self.spec, &path);
        info!("detached");
        self.place.remove();
    }

    fn has_device(&self, device: &Path) -> bool {
        BlockDevice::open(device).is_ok_and(|device| device.is_of(&self.spec))
    }

    /// A driver has ended: whether that is the end of it all. If not, another is there.
    fn is_over(&mut self, device: &Path, gone: std::io::Result<ExitStatus>) -> bool {
        match gone {
            Ok(status) if status.success() => return true,
            // It says so when the device has ended and the last FLUSH has failed.
            Ok(status) if status.code() == Some(1) && !self.has_device(device) => {
                return true;
            }
            Ok(status) => error!("the driver died: {status}; another takes over"),
            Err(error) => error!("the driver died: {error}; another takes over"),
        }
        if self.started.elapsed() > LONG_LIFE {
            self.pause = PAUSE_MIN;
        }
        loop {
            std::thread::sleep(self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            match self.gate.renew(&self.spec) {
                Renewed::Ready => {}
                Renewed::Gone => return true,
                Renewed::Failed(error) => {
                    error!("no connection for another driver: {error}");
                    continue;
                }
            }
            match self.start_driver(true) {
                Ok(()) => break,
                Err(error) => error!("cannot start a driver: {error}"),
            }
        }
        if let Err(error) = self.record(device, false) {
            warn!("{error}");
        }
        false
    }
}

/// Have the device, and the file system on it, see that the grid disk has grown. On a thread of its own: the kernel asks the driver.
fn grow(see: Grow, device: PathBuf, with_fs: bool, size_bytes: u64) {
    let grow = move || {
        match see(size_bytes) {
            Err(error) => return error!("{} does not grow: {error}", device.display()),
            Ok(()) => info!(size_bytes, "{} has grown", device.display()),
        }
        if !with_fs {
            return;
        }
        let mounts = host::number(&device).map(|number| host::mounts(&number)).unwrap_or_default();
        let Some(mount) = mounts.iter().find(|mount| mount.pid.is_none()) else {
            return info!("no file system of it is mounted: none grows");
        };
        let done = match &*mount.fs {
            "ext4" | "ext3" | "ext2" => host::run(Command::new("resize2fs").arg(&device)),
            "xfs" => host::run(Command::new("xfs_growfs").arg(&mount.path)),
            other => return warn!("{} is {other}: grow it by hand", mount.path.display()),
        };
        match done {
            Ok(()) => info!("the file system at {} has grown", mount.path.display()),
            Err(error) => error!("the file system at {} does not grow: {error}", mount.path.display()),
        }
    };
    if let Err(error) = std::thread::Builder::new().name("grow".to_owned()).spawn(grow) {
        error!("no thread: {error}");
    }
}
