//! The daemon: from `cell.toml` to the ready line, and down again.
//!
//! Up: lock, threads, devices, cell (recovery), NBD, admin, ready. Down, within one deadline: no new requests, those
//! under way end, everything durable, labels say so. A device that hangs is named; what it holds up is then left as a
//! crash would leave it, which the next start recovers from.

use crate::admin::{
    Access, AdminListener, Answers, Audit, Context, History, Service, StopCause, Stopper, answers_bytes_max,
};
use crate::alerting::{Alerts, Hooks};
use crate::certificates::Certificates;
use crate::config::{Config, ConfigError, Located};
use crate::devices::{self, DeviceError, OpenDevice, Opener};
use crate::door;
use crate::hot_file::HotFile;
use crate::init::seed;
use crate::lock::{DirLock, LockError};
use crate::store::{Limits, Store};
use crate::supervisor;
use crate::tls;
use cell::{Cell, CellConfig, CellError, FeedConfig, OpenReport};
use celldisk::Role;
use device::{Address, Arena, MemoryGuard, Runtime, RuntimeConfig, RuntimeError};
use flashcache::{BusyTuning, CacheConfig, MemoryNeed};
use futures_util::future::{Either, join_all, select};
use nbd::{FrontEnd, FrontEndLimits};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tracing::{error, info, warn};

/// Longest path of a unix socket: `sun_path` with its final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// How long a start waits for the index of the flash cache, which it has of ten million blocks by then: without it grid disks have no hits.
const INDEX_WAIT: Duration = Duration::from_secs(1);

/// The most the process takes besides what it serves and is administrated with: the program, stacks, rings, history of metrics.
const PROCESS_BYTES_MAX: u64 = 64 << 20;
/// Of that it has for so many grid disks.
const GRID_DISKS_INCLUDED: u64 = 1024;
/// What each further grid disk takes: what it is served with, its place in the catalog, and its metrics once it is used.
const GRID_DISK_BYTES_MAX: u64 = 32 << 10;

/// How often the main thread, which waits for a stop, looks whether the admin thread lives.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Descriptors for everything but NBD connections: devices, rings, administration.
const DESCRIPTORS_OF_OTHERS: usize = 512;

/// Why a cell was not served, or not stopped clean.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is nothing to serve from.
    #[error(
        "{path} names no device that can be used\nhint: add [[device]] entries, or make a cell with `flashcell init`"
    )]
    NoDevice {
        /// The configuration.
        path: String,
    },
    /// It is being served.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// Threads or rings.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The cell cannot be opened or stopped.
    #[error("{error}{}", .hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
    Cell {
        /// Why.
        error: CellError,
        /// What to do.
        hint: Option<&'static str>,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {reason}\nhint: {hint}")]
    Listen {
        /// Which.
        address: String,
        /// Why.
        reason: String,
        /// What to do.
        hint: &'static str,
    },
    /// The admin thread could not be started.
    #[error("cannot start the admin service: {0}\nhint: look at the limits of open files and processes")]
    Admin(std::io::Error),
    /// The ready line could not be written.
    #[error("cannot write the ready line to stdout: {0}")]
    Stdout(std::io::Error),
    /// It was to start again.
    #[error(
        "the cell has stopped clean and cannot be started again: {0}\nhint: `flashcell serve`, or whatever starts it here"
    )]
    StartAgain(std::io::Error),
    /// The stop took longer than allowed.
    #[error("not stopped clean within {} s: {what}\nhint: nothing acknowledged as flushed is lost; the next start recovers", .deadline.as_secs())]
    Hang {
        /// What does not end, by name.
        what: String,
        /// How long was waited.
        deadline: Duration,
    },
}

impl From<CellError> for ServeError {
    fn from(error: CellError) -> ServeError {
        let hint = match &error {
            CellError::Format { error, .. } => error.hint(),
            CellError::Store(error) => error.hint(),
            CellError::Labels(failed) => failed.first().and_then(|failure| failure.error.hint()),
            CellError::Change(error) => error.hint(),
            CellError::Cache(_) | CellError::Unflushed => None,
        };
        ServeError::Cell { error, hint }
    }
}

/// Serve the cell of a directory or configuration file until SIGTERM or SIGINT, or a statement, then stop clean. A second signal while
/// it stops ends the process at once. Where a statement wants the cell to start again, the process becomes this program anew.
///
/// # Errors
/// See [`ServeError`].
pub fn serve(path: &Path) -> Result<(), ServeError> {
    let located = Config::load(path)?;
    let lock = DirLock::take(&located.dir)?;
    // Before there are threads, which inherit it.
    for guard in device::guard_memory() {
        match guard {
            MemoryGuard::InForce(what) => info!("{what}"),
            MemoryGuard::Refused { what, why, hint } => warn!(why, hint, "{what}"),
        }
    }
    let arena = Arena::new(located.config.memory.requests.as_usize());
    let runtime = Arc::new(Runtime::new(RuntimeConfig {
        threads: located.config.threads,
        backend: located.config.io.into(),
        arenas: vec![arena.clone()],
    })?);
    for fact in runtime.facts() {
        info!("{fact}");
    }
    let world = runtime.world(seed());
    let found = devices::open_all(&located, &runtime, &world)?;
    for without in &found.without {
        warn!("{without}");
    }
    if found.devices.is_empty() {
        return Err(ServeError::NoDevice { path: located.path.display().to_string() });
    }
    let config = cell_config(&located)?;
    let opened: Vec<_> = found.devices.iter().map(devices::OpenDevice::for_cell).collect();
    let (cell, report) = {
        let world = world.clone();
        runtime.block_on(async move { Cell::open(opened, config, world).await })?
    };
    tell(&report);
    let (hot_file, hot) = HotFile::load(&located.dir, cell.store().catalog().cell_id);
    let blocks = cell.remember_hot(hot);
    if blocks > 0 {
        info!(blocks, "flash of the cache has come back empty: what was hot on it is read again");
    }
    if cell.is_opening() {
        info!(
            "the index of the flash cache is still being read: grid disks are served from disk, those in write-back wait for it"
        );
    } else {
        announce_index(&cell);
    }

    let access = Arc::new(Access {
        owner_uid: rustix::process::geteuid().as_raw(),
        group: located.config.admin.group.clone(),
        tokens: Some(located.trust_dir().join(tls::TOKENS)),
        revoked: Some(located.trust_dir().join(tls::REVOKED)),
    });
    let front_end = FrontEnd::new(cell.clone(), world.clone(), arena, client_limits());
    announce_memory(&cell, &front_end);
    if let Some(name) = &located.config.nbd.default {
        if cell.grid_disk(name).is_none() {
            warn!(
                grid_disk = name,
                "nbd.default in cell.toml names no grid disk: clients that name none are refused until it is created"
            );
        }
        front_end.set_default_export(name.clone());
    }
    let certificates = Arc::new(Certificates::new(located.trust_dir()));
    let nbd = door::listen(&located, &front_end, &access, &certificates, &runtime, &world)?;
    let admin = AdminThread::start(&located, &certificates)?;
    let addresses = BTreeMap::from([("nbd", nbd), ("admin", admin.addresses.clone())]);
    let history = &located.config.history;
    let store = Store::open(&located.dir, Limits { days: history.days, size_bytes: history.size.0 });
    let context = Arc::new(Context {
        alerts: Alerts::load(&store),
        hooks: Hooks::new(&located),
        life: world.clock.wall().0,
        history_days_default: history.days,
        answers: Answers::start().map_err(ServeError::Admin)?,
        requests_seen: Mutex::default(),
        store,
        started: world.clock.now(),
        cell,
        world,
        devices: found.devices.into_iter().map(Arc::new).collect::<Vec<_>>().into(),
        opener: Opener::new(&located, &runtime),
        front_end,
        dir: located.dir.clone(),
        stopper: admin.stopper.clone(),
        access,
        certificates,
        audit: Audit::new(&located.dir),
        history: History::default(),
        hot_file,
        addresses,
    });
    context.keep_history();
    ready(&context)?;
    context.world.spawn.spawn(Box::pin(end_of_start(context.cell.clone(), context.devices())));
    supervisor::watch(&context.world.spawn);
    let mut admin = admin.serve(context.clone());

    let cause = admin.wait_for_stop();
    let deadline = Duration::from_secs(located.config.stop_deadline_s);
    info!(?cause, deadline_s = deadline.as_secs(), "stopping");
    if cause != (StopCause::Statement { again: true }) {
        supervisor::stopping(deadline);
    }
    let stopped = stop(&runtime, &context, deadline);
    admin.end();
    drop(context);
    let left = stopped?;
    // Others have it only while they open a device.
    let runtime = Arc::into_inner(runtime)
        .ok_or_else(|| ServeError::Hang { what: "a device is being opened".to_owned(), deadline })?;
    runtime.shutdown(left).map_err(|error| ServeError::Hang { what: error.to_string(), deadline })?;
    info!("stopped clean");
    // A signal since then wants it to stay down.
    if cause != (StopCause::Statement { again: true }) || admin.is_signalled() {
        return Ok(());
    }
    drop(lock);
    info!("starting again");
    Err(ServeError::StartAgain(crate::again::start_again()))
}

/// The limits of clients: as many connections as there are descriptors for, which a process may ask for more of.
fn client_limits() -> FrontEndLimits {
    let limits = FrontEndLimits::default();
    let wanted = (limits.connections_max + DESCRIPTORS_OF_OTHERS) as u64;
    let now = getrlimit(Resource::Nofile);
    // None: there is no limit.
    let may = now.maximum.unwrap_or(wanted).min(wanted);
    if now.current.is_some_and(|current| current < may) {
        let more = Rlimit { current: Some(may), maximum: now.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, more) {
            warn!(%error, "the limit of open files stays as it is");
        }
    }
    let has = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    let fits = usize::try_from(has).unwrap_or(usize::MAX).saturating_sub(DESCRIPTORS_OF_OTHERS).max(1);
    if fits < limits.connections_max {
        warn!(
            connections = fits,
            open_files = has,
            "fewer NBD connections than usual: raise the limit of open files (ulimit -n)"
        );
    }
    FrontEndLimits { connections_max: limits.connections_max.min(fits), ..limits }
}

pub(crate) fn cell_config(located: &Located) -> Result<CellConfig, ServeError> {
    let tuning = &located.config.flash_cache;
    let small = |size: crate::config::Size| u32::try_from(size.0).unwrap_or(u32::MAX);
    let sabotage = located.sabotage()?;
    if let Some(sabotage) = sabotage {
        warn!(sabotage = sabotage.name(), "this cell is broken on purpose: data will be lost");
    }
    Ok(CellConfig {
        cache: CacheConfig {
            block_bytes: small(tuning.block),
            segment_bytes: small(tuning.segment),
            staging_bytes: located.config.memory.staging.as_usize(),
            soft_limit: Duration::from_millis(tuning.soft_limit_ms),
            hard_limit: Duration::from_millis(tuning.hard_limit_ms),
            endurance: located.endurance()?,
            keep_unused: Duration::from_secs(tuning.keep_unused.0),
            memory_bytes_max: located.config.memory.index.map(|size| size.0),
            busy: tuning.busy_to_disk.then(BusyTuning::default),
            ..CacheConfig::default()
        },
        arena_bytes: located.config.memory.work.as_usize(),
        journal_bytes: tuning.journal.map(|size| size.0),
        feed: FeedConfig {
            rate_bytes: tuning.feed_rate.0,
            boost: tuning.feed_boost,
            noprefetch: tuning.noprefetch,
            ..FeedConfig::default()
        },
        sequential_cutoff_bytes: tuning.sequential_cutoff.0,
        index_wait: Some(INDEX_WAIT),
        stamps_every: Some(Duration::from_secs(tuning.stamps_every.0)),
        sabotage,
        ..CellConfig::default()
    })
}

/// What was noticed at open, into the log.
fn tell(report: &OpenReport) {
    let store = &report.store;
    if report.unclean {
        warn!("the last stop was not clean: recovered");
    }
    for name in &store.missing {
        warn!(cell_disk = %name, "missing");
    }
    for name in store.stale.iter().chain(&store.superseded) {
        warn!(cell_disk = %name, "its copy of the catalog was brought up to date");
    }
    for (name, copies) in &store.mended {
        warn!(
            cell_disk = %name,
            copies,
            "copies of its label or catalog were not whole and were written anew from a whole one: a crash in mid-write leaves up to two, \
             more mean that the medium is failing"
        );
    }
    for name in &store.diverged {
        error!(cell_disk = %name, "was opened and changed apart from the others: not used");
    }
    for name in &store.unlisted {
        warn!(cell_disk = %name, "is of this cell, but its catalog does not know it: not used");
    }
    for (place, error) in &store.unusable {
        error!(device = place, %error, "not used");
    }
    for failure in &store.failed {
        error!(cell_disk = %failure.name, error = %failure.error, "out of service");
    }
    for note in &report.notes {
        info!("{note}");
    }
}

/// Grid disks are served: once the index of the flash cache is whole as well, the start is over. Until then a flash device that falls silent
/// must not hold up those that wait for the index.
async fn end_of_start(cell: Arc<Cell>, devices: Vec<Arc<OpenDevice>>) {
    let is_disk = |device: &Arc<OpenDevice>| {
        let of_cell = device.device_id.and_then(|id| cell.store().cell_disk(id));
        of_cell.is_some_and(|disk| disk.role() == Role::Disk)
    };
    devices.iter().filter(|device| is_disk(device)).for_each(|disk| disk.start_is_over());
    if cell.is_opening() {
        cell.index_is_whole().await;
        if let Some(report) = cell.take_late_report() {
            tell(&report);
        }
        info!("the index of the flash cache is whole");
        announce_index(&cell);
    }
    devices.iter().for_each(|device| device.start_is_over());
}

/// Whether there is a grid disk more than the memory was announced for.
pub(crate) fn exceeds_announced(grid_disks: usize) -> bool {
    grid_disks as u64 > GRID_DISKS_INCLUDED && grid_disks as u64 % GRID_DISKS_INCLUDED == 1
}

/// The most memory this process takes (I8), with as many grid disks as make the next thousand full.
pub(crate) fn announce_memory(cell: &Cell, front_end: &FrontEnd) {
    let grid_disks = (cell.grid_disks().len() as u64).next_multiple_of(GRID_DISKS_INCLUDED).max(GRID_DISKS_INCLUDED);
    let process = PROCESS_BYTES_MAX + (grid_disks - GRID_DISKS_INCLUDED) * GRID_DISK_BYTES_MAX;
    let administration = answers_bytes_max();
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let (clients, work) = (front_end.memory_bytes_max(), cell.memory_bytes_max());
    info!(
        connections_max = front_end.limits().connections_max,
        clients_max_mib = mib(clients),
        cell_and_index_max_mib = mib(work),
        grid_disks_max = grid_disks,
        administration_max_mib = mib(administration),
        process_max_mib = mib(process),
        all_max_mib = mib(clients + work + administration + process),
        "memory"
    );
}

/// What the index of the flash cache takes, now that it is whole.
fn announce_index(cell: &Cell) {
    // Reading the index took as much again in small pieces, which the allocator would keep for ever.
    device::give_back_memory();
    let Some(cache) = cell.flash_cache() else { return };
    for (id, member) in cell.flash_cache_devices().into_iter().zip(cache.members()) {
        let need = member.memory_need();
        // Of blocks filled at once; parts that come by themselves have entries of their own, up to `entries_max`.
        let (size_bytes, segment_bytes) = (member.size_bytes(), cache.config().segment_bytes);
        let per_block = MemoryNeed::of(size_bytes, segment_bytes, member.block_bytes(), None).milli_bytes_per_block();
        info!(
            flash = %id,
            blocks = need.blocks,
            block_kib = member.block_bytes() >> 10,
            entries = member.entries(),
            entries_max = need.entries_max,
            index_bytes = member.index_bytes(),
            index_bytes_max = need.index_bytes,
            checksum_bytes = need.checksum_bytes,
            ghost_bytes = need.ghost_bytes,
            other_bytes = need.other_bytes,
            bytes_per_block = %format_args!("{}.{:03}", per_block / 1000, per_block % 1000),
            "memory of the flash cache"
        );
    }
}

/// Whether a socket can be there.
pub(crate) fn check_socket_path(address: &Address) -> Result<(), ServeError> {
    let Address::Unix(path) = address else { return Ok(()) };
    let len = path.as_os_str().len();
    if len <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    Err(ServeError::Listen {
        address: address.to_string(),
        reason: format!("the path has {len} bytes, a socket takes {SOCKET_PATH_BYTES_MAX}"),
        hint: "name a shorter one in cell.toml, such as unix:/run/CELL.sock",
    })
}

/// The one line on stdout.
fn ready(context: &Context) -> Result<(), ServeError> {
    let mut line = String::from("ready");
    for kind in ["nbd", "admin"] {
        for address in context.addresses.get(kind).into_iter().flatten() {
            line.push_str(&format!(" {kind}={address}"));
        }
    }
    line.push_str(&format!(
        " cell={} griddisks={}\n",
        context.cell.store().catalog().cell_name,
        context.cell.grid_disks().len()
    ));
    // The log first: whoever has read the ready line finds it there.
    info!("serving");
    supervisor::ready(&format!("serving {} grid disks", context.cell.grid_disks().len()));
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever waited for the line has read it, before the cell was started again by a statement.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            warn!("nobody reads the ready line on stdout");
            Ok(())
        }
        written => written.map_err(ServeError::Stdout),
    }
}

/// Drain and stop; the part of the deadline that is left.
fn stop(runtime: &Runtime, context: &Arc<Context>, deadline: Duration) -> Result<Duration, ServeError> {
    let until = Instant::now() + deadline;
    let left = || until.saturating_duration_since(Instant::now());
    // What waits for its share, or for its limit's sake, would hold up the stop.
    context.cell.iorm().open_gates();
    // So would writes that wait for the end of a freeze.
    context.cell.end_freezes();
    let hang = |doing: &str| {
        // Counted above every layer, so a remote disk or an emulated one is seen as well as the kernel's.
        let all = context.devices();
        let busy = all.iter().map(|device| (device, device.io.totals(String::new()).in_flight));
        let devices: Vec<String> = busy
            .filter(|(_, requests)| *requests > 0)
            .map(|(device, requests)| format!("{} has {requests} requests under way", device.path.display()))
            .collect();
        let what = if devices.is_empty() { doing.to_owned() } else { format!("{doing}: {}", devices.join(", ")) };
        ServeError::Hang { what, deadline }
    };
    let drained = {
        let (context, timer) = (context.clone(), context.world.clock.sleep(left()));
        runtime.block_on(async move { matches!(select(pin!(context.front_end.stop()), timer).await, Either::Left(_)) })
    };
    if !drained {
        return Err(hang("requests do not end"));
    }
    info!("drained");
    let stopped = {
        let (context, timer) = (context.clone(), context.world.clock.sleep(left()));
        runtime.block_on(async move {
            match select(pin!(context.cell.stop()), timer).await {
                Either::Left((stopped, _)) => Some(stopped),
                Either::Right(_) => None,
            }
        })
    };
    match stopped {
        None => Err(hang("the cell does not come to rest")),
        Some(Err(error)) => Err(error.into()),
        Some(Ok(())) => {
            let claims: Vec<_> = context.devices().iter().map(|device| device.release()).collect();
            let timer = context.world.clock.sleep(left());
            match runtime.block_on(async move { select(join_all(claims), timer).await }) {
                Either::Left(_) => Ok(left()),
                Either::Right(_) => Err(hang("a claim is not given back")),
            }
        }
    }
}

/// The thread that runs tokio: admin sockets and signals.
struct AdminThread {
    addresses: Vec<String>,
    context: Option<oneshot::Sender<Arc<Context>>>,
    stop: watch::Sender<bool>,
    stops: mpsc::Receiver<StopCause>,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl AdminThread {
    /// Bind the listeners and catch signals from here on.
    fn start(located: &Located, certificates: &Arc<Certificates>) -> Result<AdminThread, ServeError> {
        let addresses = located.admin_addresses();
        addresses.iter().try_for_each(check_socket_path)?;
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Admin)?;
        let (context, given) = oneshot::channel();
        let (stop, stopped) = watch::channel(false);
        let (stop_in, stops) = mpsc::channel();
        let stopper = Stopper(stop_in.clone());
        let listeners = tokio.block_on(bind(&addresses, certificates))?;
        let bound = listeners.iter().map(AdminListener::address).collect();
        let mut caught = {
            // Registering needs the runtime's driver.
            let _inside = tokio.enter();
            let terminate = signal(SignalKind::terminate()).map_err(ServeError::Admin)?;
            let interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Admin)?;
            let hangup = signal(SignalKind::hangup()).map_err(ServeError::Admin)?;
            (terminate, interrupt, hangup)
        };
        let certificates = certificates.clone();
        let run = move || {
            tokio.block_on(async move {
                let service = tokio::spawn(async move {
                    // Nobody gives a context when the start has failed.
                    if let Ok(context) = given.await {
                        Service::new(context, stopped).run(listeners).await;
                    }
                });
                let watch = tokio::spawn(async move {
                    let mut count = 0;
                    loop {
                        let name = tokio::select! {
                            _ = caught.0.recv() => "SIGTERM",
                            _ = caught.1.recv() => "SIGINT",
                            _ = caught.2.recv() => {
                                // A few small files.
                                certificates.renew();
                                continue;
                            }
                        };
                        count += 1;
                        if count > 1 {
                            error!(signal = name, "stopped by a second signal: not clean");
                            std::process::exit(1);
                        }
                        // The main thread has gone when it failed by itself.
                        let _ = stop_in.send(StopCause::Signal(name));
                    }
                });
                let _ = service.await;
                watch.abort();
            });
        };
        let thread = std::thread::Builder::new().name("flashcell-admin".to_owned()).spawn(run);
        let thread = Some(thread.map_err(ServeError::Admin)?);
        Ok(AdminThread { addresses: bound, context: Some(context), stop, stops, stopper, thread })
    }

    /// Answer from now on.
    fn serve(mut self, context: Arc<Context>) -> AdminThread {
        if let Some(give) = self.context.take() {
            // Refused only when the thread has died; then the wait for a signal ends at once.
            let _ = give.send(context);
        }
        self
    }

    fn wait_for_stop(&mut self) -> StopCause {
        // The thread never ends by itself but by a panic; then nobody could stop the cell but a signal to a thread that is gone.
        loop {
            match self.stops.recv_timeout(ALIVE_EVERY) {
                Ok(cause) => return cause,
                Err(_) if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) => {}
                Err(_) => return StopCause::Signal("the end of the admin thread"),
            }
        }
    }

    /// Whether a signal has come that nobody has looked at.
    fn is_signalled(&self) -> bool {
        self.stops.try_iter().any(|cause| matches!(cause, StopCause::Signal(_)))
    }

    fn end(&mut self) {
        let _ = self.stop.send(true);
        self.context = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the cell has stopped by now.
            let _ = thread.join();
        }
    }
}

async fn bind(addresses: &[Address], certificates: &Certificates) -> Result<Vec<AdminListener>, ServeError> {
    let mut listeners = Vec::new();
    let mut secure = None;
    for address in addresses {
        let fail =
            |reason: String, hint: &'static str| ServeError::Listen { address: address.to_string(), reason, hint };
        if matches!(address, Address::Tcp { .. }) && secure.is_none() {
            let tls = certificates.admin().map_err(|error| {
                fail(format!("TCP is TLS, and there are no certificates: {error}"), "`flashcell trust DIR` makes them")
            })?;
            secure = Some(tls);
        }
        let bound = AdminListener::bind(address, secure.as_ref()).await.map_err(|error| {
            fail(error.to_string(), "check listen.admin in cell.toml, and the mode of the directory")
        })?;
        listeners.push(bound);
    }
    Ok(listeners)
}

/// Be told to stop, as by SIGTERM, when the thread that started this process ends.
///
/// # Errors
/// The kernel refuses.
pub fn stop_with_parent() -> std::io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?)
}

/// Logs of this process go to stderr from here on: level `info`, or what the variable `FLASHCELL_LOG` says (`error`,
/// `warn`, `info`, `debug`, `trace`). Call it once.
pub fn log_to_stderr() {
    let level = std::env::var("FLASHCELL_LOG").ok().and_then(|text| text.parse().ok()).unwrap_or(tracing::Level::INFO);
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).with_ansi(ansi).init();
}
