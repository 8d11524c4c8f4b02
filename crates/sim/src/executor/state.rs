//! The executor's tables: tasks, lanes of ready tasks, late wake-ups, events by time.
//!
//! One lock guards them. It is held for memory work only: no future is polled or dropped, no waker called and no
//! event fired under it.

use super::Stuck;
use super::config::{ExecutorConfig, Pick};
use super::process::Process;
use crate::trace::Trace;
use device::sync::lock;
use device::{Instant, Prng, Task};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

/// The main future's task number.
pub(super) const MAIN: u64 = 0;
/// The main future's process.
pub(super) const ROOT: usize = 0;
/// Tasks alive at once: a seed with a thousand connections has a few tens of thousands.
const TASKS_MAX: usize = 1 << 20;
/// Timers and hardware events at once, a few for each task and request.
const EVENTS_MAX: usize = 1 << 22;
/// Names of waiting tasks told in a message.
const NAMES_MAX: usize = 8;

/// What happens at a time that hardware has asked for.
pub trait EventSink: Send + Sync {
    /// The time has come; `token` is what was handed in.
    fn fire(self: Arc<Self>, token: u64);
}

/// Orders events: time, a random tie-break, a number.
pub(super) type EventKey = (u64, u32, u64);

enum Event {
    Wake(Waker),
    Fire(Arc<dyn EventSink>, u64),
}

struct TaskEntry {
    process: usize,
    lane: usize,
    /// Taken out while it is polled.
    future: Option<Task>,
    waker: Waker,
    /// Ready, or about to be.
    queued: bool,
}

#[derive(Default)]
struct Lane {
    ready: VecDeque<u64>,
    parked_until_step: u64,
    /// Named in `State::busy`.
    listed: bool,
}

struct ProcessEntry {
    name: String,
    first_lane: usize,
    alive: bool,
    on_kill: Vec<Box<dyn FnOnce() + Send>>,
    /// Since when nothing of it runs, and whether its clock goes on meanwhile.
    paused: Option<(u64, PausedClock)>,
    /// What its clock leaves out.
    left_out_ns: u64,
}

impl ProcessEntry {
    fn new(name: &str, first_lane: usize) -> ProcessEntry {
        let name = name.to_owned();
        ProcessEntry { name, first_lane, alive: true, on_kill: Vec::new(), paused: None, left_out_ns: 0 }
    }
}

/// What the clock of a paused process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedClock {
    /// It stands still: no time-out counts the pause.
    StandsStill,
    /// The broken build `pause-counts`: every time-out is over when the process goes on.
    GoesOn,
}

pub(super) struct State {
    pub(super) config: ExecutorConfig,
    prng: Prng,
    pub(super) now_ns: u64,
    step: u64,
    running: Option<(u64, usize)>,
    tasks: BTreeMap<u64, TaskEntry>,
    next_task: u64,
    lanes: Vec<Lane>,
    /// Lanes with ready tasks.
    busy: Vec<usize>,
    /// Wake-ups that arrive at a step.
    late: BTreeMap<(u64, u64), u64>,
    events: BTreeMap<EventKey, Event>,
    /// Numbers events and late wake-ups.
    next_event: u64,
    processes: Vec<ProcessEntry>,
    in_run: bool,
}

/// One executor's state and trace.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) trace: Trace,
    base: Prng,
}

/// The next thing to do.
pub(super) enum Chosen {
    /// Poll this; the main future has no `future` here.
    Task { task: u64, waker: Waker, future: Option<Task> },
    /// The clock has jumped: look for due events.
    TimePassed,
    /// Nothing is ready and nothing will be.
    Nothing,
}

/// Where one run's limits lie.
pub(super) struct Limits {
    step: u64,
    first_step: u64,
    at_ns: u64,
}

struct TaskWaker {
    shared: Weak<Shared>,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.state).wake(self.task);
        }
    }
}

impl Shared {
    pub(super) fn new(config: ExecutorConfig) -> Arc<Shared> {
        let base = Prng::new(config.seed);
        let trace = Trace::new(config.log_events_max);
        let root = ProcessEntry::new("main", 0);
        let state = State {
            prng: base.fork("executor.schedule"),
            now_ns: 0,
            step: 0,
            running: None,
            tasks: BTreeMap::new(),
            next_task: MAIN + 1,
            lanes: (0..config.threads).map(|_| Lane::default()).collect(),
            busy: Vec::new(),
            late: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            processes: vec![root],
            in_run: false,
            config,
        };
        Arc::new(Shared { state: Mutex::new(state), trace, base })
    }

    fn waker(self: &Arc<Self>, task: u64) -> Waker {
        Waker::from(Arc::new(TaskWaker { shared: Arc::downgrade(self), task }))
    }

    pub(super) fn start_run(self: &Arc<Self>) -> Limits {
        let waker = self.waker(MAIN);
        let mut state = lock(&self.state);
        assert!(!state.in_run, "a run within a run");
        state.in_run = true;
        state.tasks.insert(MAIN, TaskEntry { process: ROOT, lane: 0, future: None, waker, queued: false });
        state.wake(MAIN);
        Limits {
            first_step: state.step,
            step: state.step.saturating_add(state.config.steps_max),
            at_ns: state.now_ns.saturating_add(state.config.time_ns_max),
        }
    }

    pub(super) fn end_run(&self) {
        let mut state = lock(&self.state);
        state.in_run = false;
        state.tasks.remove(&MAIN);
    }

    pub(super) fn over(&self, limits: &Limits) -> Option<Stuck> {
        let mut state = lock(&self.state);
        let tasks = state.tasks.len().saturating_sub(1);
        let stuck = if state.now_ns > limits.at_ns {
            Stuck::TimeUp { at_ns: state.now_ns, tasks }
        } else if state.step >= limits.step {
            let ready = state.lanes.iter().flat_map(|l| &l.ready).take(NAMES_MAX);
            let names = ready.map(|&t| state.name(t)).collect::<Vec<_>>().join(", ");
            Stuck::Runaway { at_ns: state.now_ns, steps: state.step - limits.first_step, tasks, names }
        } else {
            return None;
        };
        state.in_run = false;
        Some(stuck)
    }

    pub(super) fn deadlock(&self) -> Stuck {
        let mut state = lock(&self.state);
        state.in_run = false;
        let waiting: Vec<u64> = state.tasks.keys().copied().filter(|&t| t != MAIN).collect();
        let mut names = waiting.iter().take(NAMES_MAX).map(|&t| state.name(t)).collect::<Vec<_>>().join(", ");
        if waiting.len() > NAMES_MAX {
            names.push_str(", …");
        }
        Stuck::Deadlock { at_ns: state.now_ns, tasks: waiting.len(), names }
    }

    pub(super) fn panicked(&self, task: u64, message: String) -> Stuck {
        let mut state = lock(&self.state);
        state.in_run = false;
        Stuck::Panicked { at_ns: state.now_ns, task: state.name(task), message }
    }

    pub(super) fn tasks(&self) -> usize {
        lock(&self.state).tasks.len()
    }

    /// The next hardware event that is due; timers that are due are woken on the way.
    pub(super) fn due(&self) -> Option<(Arc<dyn EventSink>, u64)> {
        loop {
            let mut state = lock(&self.state);
            let first = *state.events.first_key_value()?.0;
            if first.0 > state.now_ns {
                return None;
            }
            let event = state.events.remove(&first)?;
            // Events count as steps, so that hardware that goes round in circles is a runaway too.
            state.step += 1;
            let (now, step) = (state.now_ns, state.step);
            drop(state);
            self.trace.set_time(now, step);
            match event {
                Event::Wake(waker) => waker.wake(),
                Event::Fire(sink, token) => return Some((sink, token)),
            }
        }
    }

    pub(super) fn choose(&self) -> Chosen {
        let mut state = lock(&self.state);
        let Some(task) = state.pick() else {
            let Some((&(at_ns, ..), _)) = state.events.first_key_value() else { return Chosen::Nothing };
            state.now_ns = state.now_ns.max(at_ns);
            return Chosen::TimePassed;
        };
        state.step += 1;
        let step_ns_max = state.config.step_ns_max;
        if step_ns_max > 0 {
            state.now_ns += state.prng.between(0, step_ns_max);
        }
        let (now, step) = (state.now_ns, state.step);
        // A task that is gone meanwhile (a killed process) leaves its place in the lane behind.
        let Some(entry) = state.tasks.get_mut(&task) else { return Chosen::TimePassed };
        entry.queued = false;
        let (waker, future, lane) = (entry.waker.clone(), entry.future.take(), entry.lane);
        state.running = Some((task, lane));
        drop(state);
        self.trace.set_time(now, step);
        self.trace.event("poll", [task, lane as u64, 0, 0]);
        Chosen::Task { task, waker, future }
    }

    /// A task was polled: `future` is kept if it is not done and its process lives, else given back to be dropped.
    pub(super) fn polled(&self, task: u64, future: Option<Task>) -> Option<Task> {
        let mut state = lock(&self.state);
        state.running = None;
        let alive = state.tasks.contains_key(&task);
        match future {
            Some(future) if alive => {
                if let Some(entry) = state.tasks.get_mut(&task) {
                    entry.future = Some(future);
                }
                None
            }
            None if task != MAIN => {
                state.tasks.remove(&task);
                None
            }
            other => other,
        }
    }

    /// Drop every task and event, oldest first.
    pub(super) fn clear(&self) {
        loop {
            let (tasks, events, hooks) = {
                let mut state = lock(&self.state);
                state.processes.iter_mut().for_each(|p| p.alive = false);
                let hooks: Vec<_> = state.processes.iter_mut().map(|p| std::mem::take(&mut p.on_kill)).collect();
                (std::mem::take(&mut state.tasks), std::mem::take(&mut state.events), hooks)
            };
            if tasks.is_empty() && events.is_empty() {
                return;
            }
            drop(hooks);
            tasks.into_values().for_each(drop);
            events.into_values().for_each(drop);
        }
    }
}

impl State {
    fn name(&self, task: u64) -> String {
        let Some(entry) = self.tasks.get(&task) else { return format!("#{task}") };
        let process = &self.processes[entry.process];
        format!("{}/{}#{task}", process.name, entry.lane - process.first_lane)
    }

    fn wake(&mut self, task: u64) {
        let Some(entry) = self.tasks.get_mut(&task) else { return };
        if entry.queued {
            return;
        }
        entry.queued = true;
        let lane = entry.lane;
        let late_max = self.config.wake_delay_steps_max;
        let elsewhere = self.running.is_some_and(|(_, running)| running != lane);
        if elsewhere && late_max > 0 && self.prng.chance(1, 2) {
            let step = self.step + self.prng.between(1, late_max);
            let number = self.next_event;
            self.next_event += 1;
            self.late.insert((step, number), task);
        } else {
            self.make_ready(lane, task);
        }
    }

    fn make_ready(&mut self, lane: usize, task: u64) {
        self.lanes[lane].ready.push_back(task);
        let is_paused = self.tasks.get(&task).is_some_and(|task| self.processes[task.process].paused.is_some());
        if !is_paused {
            self.list(lane);
        }
    }

    fn list(&mut self, lane: usize) {
        if !self.lanes[lane].listed {
            self.lanes[lane].listed = true;
            self.busy.push(lane);
        }
    }

    fn lanes_of(&self, process: usize) -> std::ops::Range<usize> {
        let first = self.processes[process].first_lane;
        first..first + self.config.threads
    }

    /// What the clock of a process shows.
    fn shown_ns(&self, process: usize) -> u64 {
        let process = &self.processes[process];
        let until = match process.paused {
            Some((since, PausedClock::StandsStill)) => since,
            Some((_, PausedClock::GoesOn)) | None => self.now_ns,
        };
        until - process.left_out_ns
    }

    /// The next ready task; late wake-ups whose step has come, or that are all there is, become ready first.
    fn pick(&mut self) -> Option<u64> {
        while let Some((&key, &task)) = self.late.first_key_value() {
            if key.0 > self.step && !self.busy.is_empty() {
                break;
            }
            self.late.remove(&key);
            if let Some(lane) = self.tasks.get(&task).map(|t| t.lane) {
                self.make_ready(lane, task);
            }
        }
        if self.busy.is_empty() {
            return None;
        }
        let mut at = self.prng.below(self.busy.len() as u64) as usize;
        if self.config.park_ppm > 0 {
            // A few draws to find a thread that is on the processor; if all are parked, one of them comes back.
            for _ in 0..self.busy.len() {
                if self.lanes[self.busy[at]].parked_until_step <= self.step {
                    break;
                }
                at = (at + 1) % self.busy.len();
            }
            if self.prng.chance(u64::from(self.config.park_ppm), 1_000_000) {
                let until = self.step + self.prng.between(1, self.config.park_steps_max.max(1));
                let lane = self.busy[at];
                self.lanes[lane].parked_until_step = until;
            }
        }
        let lane = self.busy[at];
        let ready = &mut self.lanes[lane].ready;
        let task = match self.config.pick {
            Pick::Oldest => ready.pop_front(),
            Pick::Newest => ready.pop_back(),
            Pick::Any => {
                let which = self.prng.below(ready.len() as u64) as usize;
                ready.swap_remove_back(which)
            }
        };
        if self.lanes[lane].ready.is_empty() {
            self.lanes[lane].listed = false;
            self.busy.swap_remove(at);
        }
        task
    }

    fn add_event(&mut self, at_ns: u64, event: Event) -> EventKey {
        assert!(self.events.len() < EVENTS_MAX, "more than {EVENTS_MAX} timers and hardware events at once");
        let key = (at_ns.max(self.now_ns), self.prng.next_u64() as u32, self.next_event);
        self.next_event += 1;
        self.events.insert(key, event);
        key
    }
}

/// What hardware and timers need of an executor; clones share it.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Handle {
        Handle { shared }
    }

    /// Virtual now.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant(lock(&self.shared.state).now_ns)
    }

    /// The trace of the run.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.shared.trace.clone()
    }

    /// A generator for one purpose, by name.
    #[must_use]
    pub fn prng(&self, name: &str) -> Prng {
        self.shared.base.fork(name)
    }

    /// Call `sink.fire(token)` at `at`, or soon when that is past. Events of one instant come in any order.
    pub fn schedule(&self, at: Instant, sink: Arc<dyn EventSink>, token: u64) {
        lock(&self.shared.state).add_event(at.0, Event::Fire(sink, token));
    }

    /// A new process with threads of its own; `name` is for messages.
    #[must_use]
    pub fn process(&self, name: &str) -> Process {
        let mut state = lock(&self.shared.state);
        let first_lane = state.lanes.len();
        let threads = state.config.threads;
        state.lanes.extend((0..threads).map(|_| Lane::default()));
        state.processes.push(ProcessEntry::new(name, first_lane));
        let id = state.processes.len() - 1;
        drop(state);
        Process::new(self.clone(), id)
    }

    pub(crate) fn wall_ns(&self) -> u64 {
        let state = lock(&self.shared.state);
        state.config.wall_ns + state.now_ns
    }

    /// Set the wall clock of the host forward or back.
    pub(crate) fn step_wall(&self, by: Duration, forward: bool) {
        let by_ns = by.as_nanos() as u64;
        let mut state = lock(&self.shared.state);
        let wall_ns = state.config.wall_ns;
        state.config.wall_ns = if forward { wall_ns + by_ns } else { wall_ns - by_ns };
    }

    pub(super) fn threads(&self) -> usize {
        lock(&self.shared.state).config.threads
    }

    pub(super) fn spawn(&self, process: usize, thread: Option<usize>, future: Task) {
        let refused = {
            let mut state = lock(&self.shared.state);
            if state.processes[process].alive {
                assert!(state.tasks.len() < TASKS_MAX, "more than {TASKS_MAX} tasks at once");
                let (first, threads) = (state.processes[process].first_lane, state.config.threads);
                let own = first..first + threads;
                let lane = match thread {
                    Some(thread) => first + thread % threads,
                    None => state.running.map(|(_, lane)| lane).filter(|lane| own.contains(lane)).unwrap_or(first),
                };
                let task = state.next_task;
                state.next_task += 1;
                let waker = self.shared.waker(task);
                let entry = TaskEntry { process, lane, future: Some(future), waker, queued: false };
                state.tasks.insert(task, entry);
                state.wake(task);
                None
            } else {
                Some(future)
            }
        };
        // Outside the lock: its destructors may call back.
        drop(refused);
    }

    pub(super) fn alive(&self, process: usize) -> bool {
        lock(&self.shared.state).processes[process].alive
    }

    pub(super) fn on_kill(&self, process: usize, hook: Box<dyn FnOnce() + Send>) {
        let mut state = lock(&self.shared.state);
        if state.processes[process].alive {
            state.processes[process].on_kill.push(hook);
            return;
        }
        drop(state);
        hook();
    }

    /// Tasks of a process.
    pub(super) fn tasks_of(&self, process: usize) -> usize {
        lock(&self.shared.state).tasks.values().filter(|t| t.process == process).count()
    }

    pub(super) fn kill(&self, process: usize) {
        assert!(process != ROOT, "the main process is not killed");
        let hooks = {
            let mut state = lock(&self.shared.state);
            if !state.processes[process].alive {
                return;
            }
            state.processes[process].alive = false;
            std::mem::take(&mut state.processes[process].on_kill)
        };
        self.shared.trace.event("kill", [process as u64, 0, 0, 0]);
        hooks.into_iter().for_each(|hook| hook());
        let dead: Vec<TaskEntry> = {
            let mut state = lock(&self.shared.state);
            let first = state.processes[process].first_lane;
            let own = first..first + state.config.threads;
            state.lanes[own.clone()].iter_mut().for_each(|lane| lane.ready.clear());
            state.lanes[own.clone()].iter_mut().for_each(|lane| lane.listed = false);
            state.busy.retain(|lane| !own.contains(lane));
            let ids: Vec<u64> = state.tasks.iter().filter(|(_, t)| t.process == process).map(|(&id, _)| id).collect();
            ids.into_iter().filter_map(|id| state.tasks.remove(&id)).collect()
        };
        // One by one in the order they were spawned, outside the lock: their destructors may wake others.
        dead.into_iter().for_each(drop);
    }

    /// Set a timer, or give a set one a new waker; true when its time has come already.
    pub(super) fn pause(&self, process: usize, clock: PausedClock) {
        let mut state = lock(&self.shared.state);
        assert!(process != ROOT, "the main process cannot be paused: nobody would let it go on");
        let now_ns = state.now_ns;
        state.processes[process].paused.get_or_insert((now_ns, clock));
        let lanes = state.lanes_of(process);
        state.busy.retain(|lane| !lanes.contains(lane));
        state.lanes[lanes].iter_mut().for_each(|lane| lane.listed = false);
    }

    pub(super) fn resume(&self, process: usize) {
        let mut state = lock(&self.shared.state);
        let Some((since, clock)) = state.processes[process].paused.take() else { return };
        if clock == PausedClock::StandsStill {
            state.processes[process].left_out_ns += state.now_ns - since;
        }
        for lane in state.lanes_of(process) {
            if !state.lanes[lane].ready.is_empty() {
                state.list(lane);
            }
        }
    }

    /// What the clock of a process shows.
    pub(super) fn now_of(&self, process: usize) -> Instant {
        Instant(lock(&self.shared.state).shown_ns(process))
    }

    /// Wake `waker` when the clock of `process` shows `at`; true when it does.
    pub(super) fn set_timer(&self, process: usize, at: Instant, key: &mut Option<EventKey>, waker: &Waker) -> bool {
        let mut state = lock(&self.shared.state);
        if state.shown_ns(process) >= at.0 {
            return true;
        }
        let due_ns = at.0.saturating_add(state.processes[process].left_out_ns);
        // A pause has moved it.
        let moved = key.take_if(|key| key.0 < due_ns).and_then(|key| state.events.remove(&key));
        let old = match key {
            Some(key) => state.events.insert(*key, Event::Wake(waker.clone())),
            None => {
                *key = Some(state.add_event(due_ns, Event::Wake(waker.clone())));
                None
            }
        };
        drop(moved);
        drop(state);
        drop(old);
        false
    }

    pub(super) fn drop_timer(&self, key: EventKey) {
        let old = lock(&self.shared.state).events.remove(&key);
        drop(old);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle(at {} ns)", self.now().0)
    }
}
