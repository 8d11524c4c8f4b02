//! A small world for tests: a single-threaded executor with a clock that jumps, sockets in memory that cut the stream
//! at random, and a memory disk that can stall, fail and forget. Deterministic by seed.

use device::net::NetFuture;
use device::sync::lock;
use device::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

// --- executor and clock ---------------------------------------------------------------------------------------------

/// Tasks that can run, each once.
#[derive(Default)]
struct Ready(Mutex<(Vec<u64>, BTreeSet<u64>)>);

impl Ready {
    fn push(&self, id: u64) {
        let (order, known) = &mut *lock(&self.0);
        if known.insert(id) {
            order.push(id);
        }
    }

    fn pick(&self, prng: &Mutex<Prng>) -> Option<u64> {
        let (order, known) = &mut *lock(&self.0);
        if order.is_empty() {
            return None;
        }
        let pick = lock(prng).below(order.len() as u64) as usize;
        let id = order.swap_remove(pick);
        known.remove(&id);
        Some(id)
    }
}

struct TaskWaker {
    id: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.push(self.id);
    }
}

pub(crate) struct Executor {
    tasks: Mutex<BTreeMap<u64, Task>>,
    ready: Arc<Ready>,
    next: AtomicU64,
    prng: Mutex<Prng>,
    clock: TestClock,
}

#[derive(Clone, Default)]
pub(crate) struct TestClock(Arc<ClockState>);

#[derive(Default)]
struct ClockState {
    now: AtomicU64,
    timers: Mutex<Vec<(u64, Waker)>>,
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant(self.0.now.load(Ordering::SeqCst))
    }
    fn wall(&self) -> WallTime {
        WallTime(self.now().0)
    }
    fn sleep_until(&self, at: Instant) -> Timer {
        let clock = self.clone();
        Box::pin(std::future::poll_fn(move |cx| {
            if clock.now() >= at {
                return Poll::Ready(());
            }
            lock(&clock.0.timers).push((at.0, cx.waker().clone()));
            Poll::Pending
        }))
    }
}

impl Spawn for Executor {
    fn spawn(&self, task: Task) {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        lock(&self.tasks).insert(id, task);
        self.ready.push(id);
    }
    fn spawn_on(&self, _thread: usize, task: Task) {
        self.spawn(task);
    }
    fn threads(&self) -> usize {
        2
    }
}

impl Executor {
    /// Run until `main` is done. Panics when nothing can happen any more.
    pub(crate) fn block_on<T: Send + 'static>(&self, main: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        self.spawn(Box::pin(async move {
            let value = main.await;
            *lock(&slot) = Some(value);
        }));
        loop {
            if let Some(value) = lock(&result).take() {
                return value;
            }
            if !self.step() {
                panic!("nothing can happen any more and the test is not over");
            }
        }
    }

    /// Run what can run without time passing.
    pub(crate) fn settle(&self) {
        while self.run_one() {}
    }

    fn step(&self) -> bool {
        if self.run_one() {
            return true;
        }
        // Nobody is ready: time passes to the next timer.
        let wakers: Vec<Waker> = {
            let mut timers = lock(&self.clock.0.timers);
            let Some(at) = timers.iter().map(|t| t.0).min() else { return false };
            self.clock.0.now.fetch_max(at, Ordering::SeqCst);
            let (due, later) = std::mem::take(&mut *timers).into_iter().partition(|t| t.0 <= at);
            *timers = later;
            let due: Vec<(u64, Waker)> = due;
            due.into_iter().map(|t| t.1).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
        true
    }

    fn run_one(&self) -> bool {
        let Some(id) = self.ready.pick(&self.prng) else { return false };
        let Some(mut task) = lock(&self.tasks).remove(&id) else { return true };
        let waker = Waker::from(Arc::new(TaskWaker { id, ready: self.ready.clone() }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            lock(&self.tasks).insert(id, task);
        }
        true
    }
}

// --- network --------------------------------------------------------------------------------------------------------

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    closed: bool,
    wakers: Vec<Waker>,
}

/// Bytes one direction holds before its sender waits.
const PIPE_BYTES_MAX: usize = 40_000;

type Shared = Arc<Mutex<Pipe>>;

pub(crate) struct TestConn {
    input: Shared,
    output: Shared,
    prng: Arc<Mutex<Prng>>,
}

fn wake(pipe: &mut Pipe) {
    pipe.wakers.drain(..).for_each(Waker::wake);
}

impl Conn for TestConn {
    fn receive(&self, buf: Buf) -> NetFuture<(Result<usize, NetError>, Buf)> {
        let (input, prng) = (self.input.clone(), self.prng.clone());
        let mut buf = Some(buf);
        Box::pin(std::future::poll_fn(move |cx| {
            let mut pipe = lock(&input);
            let Some(len) = buf.as_ref().map(|b| b.len()) else { unreachable!("polled after it was ready") };
            if pipe.bytes.is_empty() {
                if pipe.closed {
                    return Poll::Ready((Ok(0), buf.take().expect("just looked")));
                }
                pipe.wakers.push(cx.waker().clone());
                return Poll::Pending;
            }
            // Streams come in arbitrary cuts.
            let most = len.min(pipe.bytes.len());
            let count = {
                let mut prng = lock(&prng);
                if prng.chance(1, 3) { prng.between(1, most as u64) as usize } else { most }
            };
            let mut out = buf.take().expect("just looked");
            let (first, second) = pipe.bytes.as_slices();
            let cut = first.len().min(count);
            out[..cut].copy_from_slice(&first[..cut]);
            out[cut..count].copy_from_slice(&second[..count - cut]);
            pipe.bytes.drain(..count);
            wake(&mut pipe);
            Poll::Ready((Ok(count), out))
        }))
    }

    fn send(&self, data: SharedBufs) -> NetFuture<Result<(), NetError>> {
        let output = self.output.clone();
        let mut at = 0;
        Box::pin(std::future::poll_fn(move |cx| {
            let mut pipe = lock(&output);
            if pipe.closed {
                return Poll::Ready(Err(NetError::Closed));
            }
            let room = PIPE_BYTES_MAX.saturating_sub(pipe.bytes.len()).min(data.len_bytes() - at);
            data.for_each(at..at + room, |bytes| pipe.bytes.extend(bytes));
            at += room;
            if room > 0 {
                wake(&mut pipe);
            }
            if at == data.len_bytes() {
                return Poll::Ready(Ok(()));
            }
            pipe.wakers.push(cx.waker().clone());
            Poll::Pending
        }))
    }

    fn close(&self) {
        for pipe in [&self.input, &self.output] {
            let mut pipe = lock(pipe);
            pipe.closed = true;
            wake(&mut pipe);
        }
    }

    fn hung_up(&self) -> NetFuture<()> {
        let input = self.input.clone();
        Box::pin(std::future::poll_fn(move |cx| {
            let mut pipe = lock(&input);
            if pipe.closed {
                return Poll::Ready(());
            }
            pipe.wakers.push(cx.waker().clone());
            Poll::Pending
        }))
    }

    fn hang_up(&self) -> Option<HangUp> {
        match (lock(&self.input).closed, lock(&self.output).closed) {
            (_, true) => Some(HangUp::Both),
            (true, false) => Some(HangUp::Sending),
            (false, false) => None,
        }
    }

    fn peer(&self) -> String {
        "test".into()
    }
    fn credentials(&self) -> Option<Credentials> {
        None
    }
}

#[derive(Default)]
struct Backlog {
    waiting: VecDeque<Arc<dyn Conn>>,
    closed: bool,
    wakers: Vec<Waker>,
}

pub(crate) struct TestListener {
    address: Address,
    backlog: Arc<Mutex<Backlog>>,
}

impl Listener for TestListener {
    fn accept(&self) -> NetFuture<Result<Arc<dyn Conn>, NetError>> {
        let backlog = self.backlog.clone();
        Box::pin(std::future::poll_fn(move |cx| {
            let mut backlog = lock(&backlog);
            if backlog.closed {
                return Poll::Ready(Err(NetError::Closed));
            }
            match backlog.waiting.pop_front() {
                Some(conn) => Poll::Ready(Ok(conn)),
                None => {
                    backlog.wakers.push(cx.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }
    fn address(&self) -> Address {
        self.address.clone()
    }
    fn close(&self) {
        let mut backlog = lock(&self.backlog);
        backlog.closed = true;
        backlog.waiting.drain(..).for_each(|c| c.close());
        backlog.wakers.drain(..).for_each(Waker::wake);
    }
}

pub(crate) struct TestNet {
    listeners: Mutex<BTreeMap<Address, Arc<Mutex<Backlog>>>>,
    prng: Arc<Mutex<Prng>>,
    /// Both ends of every connection made, for cutting them.
    conns: Mutex<Vec<Arc<TestConn>>>,
}

impl TestNet {
    /// The client that connected last sends nothing more, and takes replies.
    pub(crate) fn finish_sending(&self) {
        let conns = lock(&self.conns);
        let mut pipe = lock(&conns.last().expect("somebody has connected").output);
        pipe.closed = true;
        wake(&mut pipe);
    }

    /// Break every connection there is.
    pub(crate) fn cut_all(&self) {
        lock(&self.conns).drain(..).for_each(|c| c.close());
    }
}

impl Net for TestNet {
    fn listen(&self, address: &Address) -> NetFuture<Result<Arc<dyn Listener>, NetError>> {
        let backlog = Arc::new(Mutex::new(Backlog::default()));
        lock(&self.listeners).insert(address.clone(), backlog.clone());
        let listener: Arc<dyn Listener> = Arc::new(TestListener { address: address.clone(), backlog });
        Box::pin(async move { Ok(listener) })
    }
    fn connect(&self, address: &Address) -> NetFuture<Result<Arc<dyn Conn>, NetError>> {
        let backlog = lock(&self.listeners).get(address).cloned();
        let refused = NetError::Refused(address.clone());
        let Some(backlog) = backlog.filter(|b| !lock(b).closed) else { return Box::pin(async move { Err(refused) }) };
        let (a, b) = (Shared::default(), Shared::default());
        let client = Arc::new(TestConn { input: a.clone(), output: b.clone(), prng: self.prng.clone() });
        let server = Arc::new(TestConn { input: b, output: a, prng: self.prng.clone() });
        lock(&self.conns).push(client.clone());
        let mut backlog = lock(&backlog);
        backlog.waiting.push_back(server);
        backlog.wakers.drain(..).for_each(Waker::wake);
        drop(backlog);
        Box::pin(async move { Ok(client as Arc<dyn Conn>) })
    }
}

// --- disk -----------------------------------------------------------------------------------------------------------

/// A disk in memory with a volatile cache: what was not flushed is gone after [`MemoryDisk::crash`].
pub(crate) struct MemoryDisk {
    state: Mutex<DiskState>,
    clock: Arc<dyn Clock>,
    pub(crate) latency: Mutex<Duration>,
    pub(crate) fail_reads: AtomicBool,
    pub(crate) fail_writes: AtomicBool,
    pub(crate) fail_flushes: AtomicBool,
    /// A failed flush drops what is not durable, as the kernel's page cache does.
    pub(crate) drop_on_failed_flush: AtomicBool,
    pub(crate) flushes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) geometry: Mutex<Geometry>,
}

struct DiskState {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// What is not durable yet, in order: a flush covers what was there when it was issued, and nothing later.
    volatile: Vec<(usize, Vec<u8>)>,
    volatile_start: usize,
}

impl DiskState {
    fn put(&mut self, offset: usize, bytes: Vec<u8>, fua: bool) {
        self.now[offset..offset + bytes.len()].copy_from_slice(&bytes);
        self.volatile.push((offset, bytes));
        if fua {
            self.destage(self.volatile_start + self.volatile.len());
        }
    }

    /// Drop what is not durable.
    fn forget(&mut self) {
        self.now.clone_from(&self.durable);
        self.volatile_start += self.volatile.len();
        self.volatile.clear();
    }

    /// Make durable what came before `point`.
    fn destage(&mut self, point: usize) {
        let count = point.saturating_sub(self.volatile_start);
        for (offset, bytes) in self.volatile.drain(..count) {
            self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        self.volatile_start += count;
    }
}

impl MemoryDisk {
    pub(crate) fn new(size: usize, clock: Arc<dyn Clock>) -> Arc<MemoryDisk> {
        let geometry = Geometry {
            size_bytes: size as u64,
            logical_bytes: 512,
            page_bytes: 4096,
            rotational: true,
            volatile_cache: true,
            discard_bytes: 4096,
            fast_zeroes: true,
            transfer_bytes_max: 1 << 30,
            class: Class::Durable,
        };
        Arc::new(MemoryDisk {
            state: Mutex::new(DiskState {
                now: vec![0; size],
                durable: vec![0; size],
                volatile: Vec::new(),
                volatile_start: 0,
            }),
            clock,
            latency: Mutex::new(Duration::ZERO),
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            fail_flushes: AtomicBool::new(false),
            drop_on_failed_flush: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            geometry: Mutex::new(geometry),
        })
    }

    /// Forget what was not flushed.
    pub(crate) fn crash(&self) {
        lock(&self.state).forget();
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        lock(&self.state).now.clone()
    }

    pub(crate) fn durable(&self) -> Vec<u8> {
        lock(&self.state).durable.clone()
    }

    /// Carry out a request that was issued when so much had been written.
    fn apply(&self, op: Op, issued: usize) -> Completed {
        let mut state = lock(&self.state);
        let failed = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        match op {
            Op::Read { offset, mut bufs } => {
                if failed(&self.fail_reads) {
                    return Completed { outcome: Outcome::Failed(FailKind::Media), bufs, extents: Vec::new() };
                }
                let len = bufs.len_bytes();
                bufs.copy_in(0, &state.now[offset as usize..offset as usize + len]);
                Completed { outcome: Outcome::Done, bufs, extents: Vec::new() }
            }
            Op::Write { offset, data, fua } => {
                self.writes.fetch_add(1, Ordering::SeqCst);
                if failed(&self.fail_writes) {
                    return Completed::bare(Outcome::Failed(FailKind::Media));
                }
                let bytes = data.to_vec(0..data.len_bytes());
                state.put(offset as usize, bytes, fua);
                Completed::bare(Outcome::Done)
            }
            Op::WriteZeroes { offset, len, fua, .. } => {
                state.put(offset as usize, vec![0; len as usize], fua);
                Completed::bare(Outcome::Done)
            }
            Op::Discard { .. } => Completed::bare(Outcome::Done),
            Op::Flush => {
                self.flushes.fetch_add(1, Ordering::SeqCst);
                if failed(&self.fail_flushes) {
                    if failed(&self.drop_on_failed_flush) {
                        state.forget();
                    }
                    return Completed::bare(Outcome::Failed(FailKind::Media));
                }
                state.destage(issued);
                Completed::bare(Outcome::Done)
            }
            Op::Status { offset, len } => {
                let mut extents: Vec<DeviceExtent> = Vec::new();
                for page in state.now[offset as usize..(offset + len) as usize].chunks(4096) {
                    let hole = page.iter().all(|b| *b == 0);
                    match extents.last_mut() {
                        Some(last) if last.hole == hole => last.len += page.len() as u64,
                        _ => extents.push(DeviceExtent { len: page.len() as u64, hole }),
                    }
                }
                Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents }
            }
        }
    }
}

/// The disk as a device: requests take effect when their time is up.
pub(crate) struct DiskDevice(pub(crate) Arc<MemoryDisk>);

impl Io for DiskDevice {
    fn geometry(&self) -> Geometry {
        lock(&self.0.geometry).clone()
    }
    fn submit(&self, op: Op) -> Completion {
        let disk = self.0.clone();
        let latency = *lock(&disk.latency);
        let issued = {
            let state = lock(&disk.state);
            state.volatile_start + state.volatile.len()
        };
        if latency.is_zero() {
            return Completion::ready(disk.apply(op, issued));
        }
        let timer = disk.clock.sleep(latency);
        Completion::future(async move {
            timer.await;
            disk.apply(op, issued)
        })
    }
}

// --- all of it --------------------------------------------------------------------------------------------------------

#[derive(Clone)]
pub(crate) struct TestWorld {
    pub(crate) executor: Arc<Executor>,
    pub(crate) net: Arc<TestNet>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) world: World,
    _tasks: Arc<Tasks>,
}

/// Ends the tasks with the world: they hold the executor, which holds them.
pub(crate) struct Tasks(Arc<Executor>);

impl Drop for Tasks {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut *lock(&self.0.tasks));
        drop(tasks);
    }
}

pub(crate) fn world(seed: u64) -> TestWorld {
    let clock = TestClock::default();
    let prng = Prng::new(seed);
    let executor = Arc::new(Executor {
        tasks: Mutex::default(),
        ready: Arc::default(),
        next: AtomicU64::new(0),
        prng: Mutex::new(prng.fork("executor")),
        clock: clock.clone(),
    });
    let clock: Arc<dyn Clock> = Arc::new(clock);
    let net = Arc::new(TestNet {
        listeners: Mutex::default(),
        prng: Arc::new(Mutex::new(prng.fork("net"))),
        conns: Mutex::default(),
    });
    let world = World { clock: clock.clone(), spawn: executor.clone(), net: net.clone(), prng: prng.fork("world") };
    let _tasks = Arc::new(Tasks(executor.clone()));
    TestWorld { executor, net, clock, world, _tasks }
}

/// A grid disk on a memory disk.
pub(crate) fn grid_disk(name: &str, disk: &Arc<MemoryDisk>) -> Arc<cell::GridDisk> {
    let size_bytes = lock(&disk.geometry).size_bytes;
    cell::GridDisk::new(cell::GridDiskParts {
        id: 1,
        name: name.into(),
        disk: Arc::new(DiskDevice(disk.clone())),
        size_bytes,
        arena: Arena::new(8 << 20),
        block_bytes: 16384,
        alarm: Arc::default(),
        sequential_cutoff_bytes: cell::SEQUENTIAL_CUTOFF_BYTES,
        sabotage: None,
    })
}

pub(crate) fn unix(path: &str) -> Address {
    Address::Unix(path.into())
}

/// A cell of ready-made grid disks.
pub(crate) fn make_cell(w: &TestWorld, disks: Vec<Arc<cell::GridDisk>>, stamp: u128) -> Arc<cell::Cell> {
    cell::Cell::of_grid_disks(disks, stamp, w.world.clone())
}
