//! Start and stop of the executor threads, and the seams they implement.
//!
//! Never waits without a deadline at shutdown: a device that hangs is named, its memory is left to the kernel.

use super::backend::{self, Backend, Engine};
use super::driver::Driver;
use super::executor::{self, Local};
use super::files::{DeviceFile, FileDevice, FixedSlot, Opened};
use super::inbox::{Inbox, Message};
use super::net::RealNet;
use super::open::{OpenError, OpenOptions};
use super::poller::Poller;
use super::running::{BEAT_EVERY, RunningClock};
use super::sys;
use super::timers::Sleep;
use super::uring::{FIXED_FILES_MAX, Uring};
use super::worker::Lane;
use crate::World;
use crate::buf::Arena;
use crate::clock::{Clock, Instant, Timer, WallTime};
use crate::io::Device;
use crate::prng::Prng;
use crate::spawn::{Spawn, Task};
use crate::sync::lock;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Executor threads: more than any machine this is for has use for; each has a ring and, at worst, the arenas
/// registered with it.
pub const THREADS_MAX: usize = 64;
/// Name look-ups at once.
const RESOLVERS_MAX: usize = 4;
/// How long a dropped runtime waits for its devices.
const DROP_DEADLINE: Duration = Duration::from_secs(5);
/// How to start a [`Runtime`].
#[derive(Clone, Debug, Default)]
pub struct RuntimeConfig {
    /// Executor threads, 0 for one per core; at most [`THREADS_MAX`].
    pub threads: usize,
    /// See [`Backend`].
    pub backend: Backend,
    /// Memory to register with every ring, where the memlock limit allows: saves pinning pages on each transfer.
    pub arenas: Vec<Arena>,
}

/// Why a runtime did not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// io_uring was demanded and is not to be had.
    #[error("io_uring cannot be used: {reason}\nhint: {hint}")]
    Uring {
        /// What forbids it.
        reason: String,
        /// What would change that.
        hint: String,
    },
    /// A setting makes no sense.
    #[error("{what}\nhint: {hint}")]
    Setting {
        /// Which and why.
        what: String,
        /// What would do.
        hint: &'static str,
    },
    /// A system call failed at start.
    #[error("cannot start an executor thread: {what}: {source}\nhint: look at the limits of open files and processes")]
    Start {
        /// Which.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// A device with requests the kernel has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlightDevice {
    /// Its name, usually its path.
    pub name: String,
    /// How many.
    pub requests: u64,
}

/// Devices that did not finish before the deadline of a shutdown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped with I/O in flight on {}", list(.devices))]
pub struct ShutdownError {
    /// Which; empty when a task did not give way.
    pub devices: Vec<InFlightDevice>,
}

fn list(devices: &[InFlightDevice]) -> String {
    if devices.is_empty() {
        return "no device: an executor thread is busy".to_owned();
    }
    let names: Vec<_> = devices.iter().map(|d| format!("{} ({} requests)", d.name, d.requests)).collect();
    names.join(", ")
}

/// What all threads of a runtime share.
pub(crate) struct Shared {
    clock: RunningClock,
    pub(crate) engine: Engine,
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    /// Free places in the rings' tables of files.
    pub(crate) fixed_free: Mutex<Vec<usize>>,
    /// Name look-ups.
    pub(crate) resolver: Lane,
    devices: Mutex<Vec<Weak<DeviceFile>>>,
    deadline_ns: AtomicU64,
}

impl Shared {
    /// Nanoseconds since the start of the runtime in which the process ran.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// When a stopping thread gives up waiting for devices.
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns.load(Ordering::Acquire)
    }

    fn in_flight(&self) -> Vec<InFlightDevice> {
        let mut devices = lock(&self.devices);
        devices.retain(|d| d.strong_count() > 0);
        let alive = devices.iter().filter_map(Weak::upgrade);
        let busy = alive.filter(|d| d.requests() > 0);
        busy.map(|d| InFlightDevice { name: d.name.clone(), requests: d.requests() }).collect()
    }
}

/// The real world.
pub struct Runtime {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Asked by `stop` alone; in a lock so that threads may share the runtime.
    ended: Mutex<mpsc::Receiver<()>>,
    facts: Vec<String>,
}

impl Runtime {
    /// Start the executor threads.
    ///
    /// # Errors
    /// See [`RuntimeError`]. In mode `Auto` a forbidden io_uring is no error: [`Runtime::facts`] tells.
    pub fn new(config: RuntimeConfig) -> Result<Runtime, RuntimeError> {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = if config.threads == 0 { cores().min(THREADS_MAX) } else { config.threads };
        if threads > THREADS_MAX {
            let what = format!("{threads} executor threads are more than {THREADS_MAX}");
            return Err(RuntimeError::Setting { what, hint: "one thread per core is enough" });
        }
        let (engine, mut facts) = backend::choose(config.backend)?;
        let inboxes: Result<Vec<_>, _> = (0..threads).map(|i| Inbox::new(i).map(Arc::new)).collect();
        let inboxes = inboxes.map_err(|source| RuntimeError::Start { what: "eventfd", source })?;
        let shared = Arc::new(Shared {
            clock: RunningClock::new(),
            engine,
            inboxes,
            fixed_free: Mutex::new((0..FIXED_FILES_MAX).rev().collect()),
            resolver: Lane::new("resolve", RESOLVERS_MAX),
            devices: Mutex::default(),
            deadline_ns: AtomicU64::new(u64::MAX),
        });
        let beating = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("flashcell-clock".to_owned())
            .spawn(move || {
                while let Some(shared) = beating.upgrade() {
                    shared.clock.beat();
                    drop(shared);
                    std::thread::sleep(BEAT_EVERY);
                }
            })
            .map_err(|source| RuntimeError::Start { what: "thread", source })?;
        let (started_in, started) = mpsc::channel();
        let (ended_in, ended) = mpsc::channel();
        let mut runtime = Runtime { shared, threads: Vec::new(), ended: Mutex::new(ended), facts: Vec::new() };
        for index in 0..threads {
            let (shared, arenas) = (runtime.shared.clone(), config.arenas.clone());
            let (started, ended) = (started_in.clone(), ended_in.clone());
            let thread = std::thread::Builder::new().name(format!("flashcell-{index}"));
            let thread = thread
                .spawn(move || thread_main(shared, index, &arenas, &started, &ended))
                .map_err(|source| RuntimeError::Start { what: "thread", source })?;
            runtime.threads.push(thread);
        }
        for _ in 0..threads {
            let lines = match started.recv() {
                Ok(Ok(lines)) => lines,
                Ok(Err(source)) => return Err(RuntimeError::Start { what: "ring", source }),
                Err(_) => unreachable!("a starter is held here"),
            };
            for line in lines {
                if !facts.contains(&line) {
                    facts.push(line);
                }
            }
        }
        facts.insert(0, format!("{threads} executor threads"));
        runtime.facts = facts;
        Ok(runtime)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What the start found out, a line each: back-end and why, ring flags, registered memory.
    #[must_use]
    pub fn facts(&self) -> &[String] {
        &self.facts
    }

    /// Whether I/O goes through io_uring.
    #[must_use]
    pub fn is_uring(&self) -> bool {
        self.shared.engine == Engine::Uring
    }

    /// The seams. The randomness is decided by `seed`.
    #[must_use]
    pub fn world(&self, seed: u64) -> World {
        World {
            clock: Arc::new(RealClock(self.shared.clone())),
            spawn: Arc::new(RealSpawn(self.shared.clone())),
            net: Arc::new(RealNet(self.shared.clone())),
            prng: Prng::new(seed),
        }
    }

    /// Open a file or block device.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<Device, OpenError> {
        let opened = super::open::open(path.as_ref(), options)?;
        Ok(self.adopt(opened))
    }

    /// Look again how large the open files and devices are: their geometry says so from here on. Those that cannot be asked stay
    /// as large as they were.
    pub fn look_for_growth(&self) {
        let devices: Vec<Arc<DeviceFile>> = lock(&self.shared.devices).iter().filter_map(Weak::upgrade).collect();
        for device in devices {
            let _ = device.look_again();
        }
    }

    fn adopt(&self, opened: Opened) -> Device {
        Arc::new(FileDevice::new(self.shared.clone(), self.register(opened)))
    }

    /// A device and its inside.
    #[cfg(test)]
    pub(crate) fn adopt_for_test(&self, opened: Opened) -> (Arc<DeviceFile>, Device) {
        let file = self.register(opened);
        (file.clone(), Arc::new(FileDevice::new(self.shared.clone(), file)))
    }

    /// Which back-end runs.
    #[cfg(test)]
    pub(crate) fn engine_for_test(&self) -> Engine {
        self.shared.engine
    }

    fn register(&self, opened: Opened) -> Arc<DeviceFile> {
        let index = lock(&self.shared.fixed_free).pop();
        let fixed = index.map(|index| FixedSlot::new(index, &self.shared));
        let file = Arc::new(DeviceFile::new(opened, fixed, &self.shared));
        let mut devices = lock(&self.shared.devices);
        devices.retain(|d| d.strong_count() > 0);
        devices.push(Arc::downgrade(&file));
        drop(devices);
        file
    }

    /// Devices with requests the kernel has not answered, those closed by everybody else included.
    #[must_use]
    pub fn in_flight(&self) -> Vec<InFlightDevice> {
        self.shared.in_flight()
    }

    /// How often a transfer of each open device was tried again because the kernel was short of something (memory, requests): by the
    /// device's name.
    #[must_use]
    pub fn tried_again(&self) -> Vec<(String, u64)> {
        let devices: Vec<Arc<DeviceFile>> = lock(&self.shared.devices).iter().filter_map(Weak::upgrade).collect();
        devices.iter().map(|device| (device.name.clone(), device.tried_again())).collect()
    }

    /// Run `future` on executor thread 0 while this thread waits. A panic of the future comes out here.
    ///
    /// # Panics
    /// On an executor thread (it would wait for itself), and when the runtime is shut down meanwhile.
    pub fn block_on<F>(&self, future: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        assert!(!executor::on_executor(), "an executor thread must not wait for an executor thread");
        let (result_in, result) = mpsc::sync_channel(1);
        let mut future = Box::pin(future);
        let task = std::future::poll_fn(move |cx: &mut Context<'_>| {
            match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(value)) => {
                    let _ = result_in.send(Ok(value));
                    Poll::Ready(())
                }
                Err(panic) => {
                    let _ = result_in.send(Err(panic));
                    Poll::Ready(())
                }
            }
        });
        self.shared.inboxes[0].send(Message::Spawn(Box::pin(task)));
        match result.recv() {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => panic!("the runtime ended before the future"),
        }
    }

    /// Drop all tasks, end all connections, wait for the devices, end the threads.
    ///
    /// # Errors
    /// The devices that did not answer within `deadline`. Their buffers and rings stay allocated, and the lock of a
    /// device stays taken, until the process ends.
    pub fn shutdown(mut self, deadline: Duration) -> Result<(), ShutdownError> {
        self.stop(deadline)
    }

    fn stop(&mut self, deadline: Duration) -> Result<(), ShutdownError> {
        if self.threads.is_empty() {
            return Ok(());
        }
        let end_ns = self.shared.now_ns().saturating_add(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
        self.shared.deadline_ns.store(end_ns, Ordering::Release);
        for inbox in &self.shared.inboxes {
            inbox.send(Message::Stop);
        }
        // The threads keep to the deadline by themselves; one more second is for a task that does not give way.
        let patience = deadline.saturating_add(Duration::from_secs(1));
        let until = std::time::Instant::now().checked_add(patience);
        let threads = std::mem::take(&mut self.threads);
        let busy = threads.iter().any(|_| {
            let left = until.map_or(patience, |u| u.saturating_duration_since(std::time::Instant::now()));
            lock(&self.ended).recv_timeout(left).is_err()
        });
        if !busy {
            // Each has said that it is at its end; a panic would have ended the process.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        // Blocking verbs run beside the executor threads.
        loop {
            let devices = self.shared.in_flight();
            if devices.is_empty() && !busy {
                return Ok(());
            }
            if busy || self.shared.now_ns() >= end_ns {
                return Err(ShutdownError { devices });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Nobody can be told here; who wants to know calls `shutdown`.
        let _ = self.stop(DROP_DEADLINE);
    }
}

fn thread_main(
    shared: Arc<Shared>,
    index: usize,
    arenas: &[Arena],
    started: &mpsc::Sender<std::io::Result<Vec<String>>>,
    ended: &mpsc::Sender<()>,
) {
    sys::set_timer_slack();
    let inbox = shared.inboxes[index].clone();
    let driver = match shared.engine {
        Engine::Uring => Uring::new(arenas).map(|(uring, facts)| (Driver::Uring(Box::new(uring)), facts)),
        Engine::Threads => Poller::new(&inbox).map(|poller| (Driver::Poller(Box::new(poller)), Vec::new())),
    };
    let driver = match driver {
        Ok((driver, facts)) => {
            let _ = started.send(Ok(facts));
            driver
        }
        Err(e) => {
            inbox.close();
            let _ = started.send(Err(e));
            let _ = ended.send(());
            return;
        }
    };
    // On the heap: if a device hangs it stays there, with the ring and the buffers the kernel may write.
    let local = Box::new(Local::new(shared, inbox, driver));
    let Ok(idle) = catch_unwind(AssertUnwindSafe(|| local.run())) else {
        // The panic has been printed. Half of a storage engine must not go on.
        std::process::abort();
    };
    if !idle {
        std::mem::forget(local);
    } else {
        drop(local);
    }
    let _ = ended.send(());
}

struct RealClock(Arc<Shared>);

impl Clock for RealClock {
    fn now(&self) -> Instant {
        Instant(self.0.now_ns())
    }

    fn wall(&self) -> WallTime {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        WallTime(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, at: Instant) -> Timer {
        let sleep: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(Sleep::new(self.0.clone(), at.0));
        sleep
    }
}

struct RealSpawn(Arc<Shared>);

impl Spawn for RealSpawn {
    fn spawn(&self, task: Task) {
        let mut task = Some(task);
        executor::with_local(&self.0, |local| {
            if let Some(task) = task.take() {
                local.spawn(task);
            }
        });
        if let Some(task) = task {
            self.0.inboxes[0].send(Message::Spawn(task));
        }
    }

    fn spawn_on(&self, thread: usize, task: Task) {
        let thread = thread % self.0.inboxes.len();
        let mut task = Some(task);
        executor::with_local(&self.0, |local| {
            if local.inbox.index == thread
                && let Some(task) = task.take()
            {
                local.spawn(task);
            }
        });
        if let Some(task) = task {
            self.0.inboxes[thread].send(Message::Spawn(task));
        }
    }

    fn threads(&self) -> usize {
        self.0.inboxes.len()
    }
}
