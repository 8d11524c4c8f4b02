//! The director: makes the cell, opens it life after life, ends lives as the plan says, reads back what is there, and at
//! last heals everything and sees to it that the cell works and caches again.
//!
//! Safety first, then liveness: while faults are about, only wrong answers count; afterwards everything has to succeed.

use super::admin::disk_name;
use super::between::History;
use super::book::{Book, Broken};
use super::canary::Canary;
use super::far::{self, Far};
use super::machine::Machine;
use super::plan::{AU_BYTES, Admin, Caching, Crash, End, Pass, Plan, Setup, Verb};
use super::stage::{Life, READER, Run};
use super::watch::Watch;
use crate::disk::FlushNews;
use crate::executor::{Executor, ExecutorConfig, Stuck};
use crate::net::{NetConfig, SimNet};
use crate::situations::Situations;
use cell::{Cell, CellConfig, FeedConfig, NewDevice, OpenReport};
use celldisk::claim::{ClaimError, Claimed, Holder};
use celldisk::{FillStrategy, Probe, Role};
use device::sync::{Notify, Semaphore, lock, one_shot};
use device::{Device, Prng, Spawn, World};
use flashcache::CacheConfig;
use flashlog::LogConfig;
use futures_util::future::{Either, join_all, select};
use std::sync::Arc;
use std::time::Duration;

/// Steps of the executor for one seed: some hundred times what one takes.
const STEPS_MAX: u64 = 20_000_000;
/// Virtual time of one seed, for the same reason.
const TIME_NS_MAX: u64 = 24 * 3600 * 1_000_000_000;
/// How long an opening may take when every device answers: flash of which every third request takes twenty seconds has been drawn, and
/// needs more than ten minutes for its segments and ring.
const OPEN_MAX: Duration = Duration::from_secs(3600);

/// How long the end of a life waits for the flush it is to come in.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(2);

/// What became of a run.
pub(super) struct Outcome {
    pub(super) operations: u64,
    pub(super) crashes: u64,
    pub(super) hits: u64,
    pub(super) trace_hash: u64,
    pub(super) trace_events: u64,
    pub(super) situations: Situations,
    pub(super) broken: Option<Broken>,
    /// Steps of the plan that were taken.
    pub(super) steps_taken: usize,
    /// The last events.
    pub(super) log: String,
}

/// Run a plan.
pub(super) fn run_plan(plan: &Arc<Plan>, sabotage: Option<Canary>, log_events: usize) -> Outcome {
    let mut config = ExecutorConfig::seeded(plan.seed);
    config.threads = plan.setup.threads;
    config.steps_max = STEPS_MAX;
    config.time_ns_max = TIME_NS_MAX;
    config.log_events_max = log_events;
    let executor = Executor::new(config);
    let situations = Situations::new();
    let machine = Machine::new(&plan.setup, &executor.handle(), &situations);
    let far = plan.setup.far.as_ref();
    let net = far.map_or_else(NetConfig::plain, |far| far.net.clone());
    let net = SimNet::new(net, &executor.handle(), &situations);
    let run = Arc::new(Run {
        plan: plan.clone(),
        handle: executor.handle(),
        root: executor.root(),
        situations,
        machine,
        book: Book::new(far.is_some()).into(),
        turns: super::stage::Turns::default().into(),
        admin_turn: Semaphore::new(1),
        admin: super::admin::AdminState::default().into(),
        watch: Watch::default().into(),
        history: History::default().into(),
        victims: super::victims::Victims::default().into(),
        flushes: super::stage::Flushes::default(),
        sabotage: sabotage.and_then(Canary::of_host),
        far: far.map(|setup| Far::new(setup, &net, sabotage)),
        changed: Notify::new(),
    });
    let mut director = Director {
        run: run.clone(),
        net,
        sabotage,
        crashes: 0,
        lives: 0,
        boots: 0,
        claims: Vec::new(),
        prng: executor.prng("director"),
    };
    let ended = executor.run(async {
        director.direct().await;
        director.crashes
    });
    let crashes = *ended.as_ref().unwrap_or(&director_crashes(&run));
    if let Err(stuck) = &ended {
        let invariant = match stuck {
            Stuck::Panicked { .. } => "panic",
            _ => "I7",
        };
        let text = format!("{stuck}\nhint: {}\n{}", stuck.hint(), run.waiting());
        lock(&run.book).violate(invariant, text);
    }
    let trace = executor.trace();
    let book = lock(&run.book);
    Outcome {
        operations: book.operations,
        crashes,
        hits: lock(&run.watch).hits,
        trace_hash: trace.hash(),
        trace_events: trace.events(),
        situations: run.situations.clone(),
        broken: book.broken.clone(),
        steps_taken: run.steps_taken(),
        log: if book.broken.is_some() { trace.log() } else { String::new() },
    }
}

/// Crashes so far of a run that got stuck.
fn director_crashes(run: &Run) -> u64 {
    run.situations.count("power cut") + run.situations.count("process killed")
}

/// A cell that is open, what there was to tell, and its front end where clients are on other hosts.
type Opened = (Arc<Cell>, OpenReport, Option<Arc<nbd::FrontEnd>>);

struct Director {
    run: Arc<Run>,
    net: Arc<SimNet>,
    sabotage: Option<Canary>,
    crashes: u64,
    lives: u64,
    /// Of the host: a power cut of everything begins another.
    boots: u128,
    /// Of the present life.
    claims: Vec<Arc<Claimed>>,
    prng: Prng,
}

impl Run {
    /// Take the claim on a device with a label, and renew it from then on.
    ///
    /// # Errors
    /// Another process uses the device.
    async fn claim(self: Arc<Self>, claim: Arc<Claimed>, us: Holder, world: World) -> Result<(), ClaimError> {
        let device: Device = claim.clone();
        if !matches!(celldisk::probe(&device).await, Ok(Probe::Flashcell(_))) {
            return Ok(());
        }
        drop(device);
        match claim.take(us, |_| false, |_| self.situations.hit("claim: a stamp of another boot is watched")).await {
            Ok(()) => {}
            // Used without a claim, as a server does.
            Err(ClaimError::Io(_) | ClaimError::NotThere) => {
                self.situations.hit("claim: it cannot be written");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let (claim, clock) = (Arc::downgrade(&claim), world.clock.clone());
        world.spawn.spawn(Box::pin(async move {
            if let Some(other) = Claimed::renew(claim, clock).await {
                self.violate("I3", format!("a claim is lost to {other}, which is no other cell"));
            }
        }));
        Ok(())
    }
}

fn cell_config(setup: &Setup, canary: Option<Canary>) -> CellConfig {
    let sabotage = canary.and_then(Canary::of_cache);
    CellConfig {
        cache: CacheConfig {
            block_bytes: setup.block_bytes,
            segment_bytes: setup.segment_bytes,
            staging_bytes: setup.staging_bytes,
            soft_limit: setup.soft_limit,
            hard_limit: setup.hard_limit,
            chunk_age: setup.chunk_age,
            mirrored: false,
            endurance: setup.endurance,
            keep_unused: setup.keep_unused,
            busy: setup.busy,
            memory_bytes_max: setup.index_bytes,
            quotas: Arc::default(),
            without: None,
            sabotage,
        },
        arena_bytes: setup.arena_bytes,
        settle_every: setup.settle_every,
        accept_diverged: setup.accept_diverged,
        believe_cache: None,
        journal_bytes: Some(setup.journal_bytes),
        redo: LogConfig {
            unflushed_bytes_max: setup.redo.as_ref().map_or(1, |redo| redo.unflushed_bytes),
            sabotage: canary.and_then(Canary::of_log),
            ..LogConfig::default()
        },
        feed: FeedConfig { rate_bytes: setup.feed_rate_bytes, waiting_bytes_max: 1 << 20, ..FeedConfig::default() },
        sequential_cutoff_bytes: setup.sequential_cutoff_bytes,
        hot_every: setup.hot_every,
        index_wait: setup.index_wait,
        stamps_every: setup.stamps_every,
        sabotage,
        disk_sabotage: canary.and_then(Canary::of_disk),
    }
}

impl Director {
    async fn direct(&mut self) {
        self.watch_flushes();
        self.create().await;
        let run = self.run.clone();
        for client in 0..run.plan.setup.clients {
            for slot in 0..run.plan.setup.depth {
                run.root.spawn_on((client + slot) as usize, Box::pin(run.clone().client(client)));
            }
        }
        run.root.spawn(Box::pin(run.clone().watchdog()));
        let mut crash: Option<Crash> = None;
        loop {
            let Some(life) = self.restart(crash.as_ref()).await else { break };
            run.settle_stale(&life).await;
            if let Some(crash) = &crash {
                self.read_back(&life, crash).await;
            }
            if run.broken() {
                break;
            }
            run.set_running(true);
            crash = match self.dies_early(&life).await {
                Some(crash) => Some(crash),
                None => self.live(&life).await,
            };
            if crash.is_none() || run.broken() {
                break;
            }
        }
        if !run.broken() {
            self.liveness().await;
        }
        run.end();
    }

    /// The book hears of flushes and losses at the moment at which they happen.
    fn watch_flushes(&self) {
        for home in 0..self.run.machine.disk_count() {
            let run = Arc::downgrade(&self.run);
            self.run.machine.disk(home).on_flush(Arc::new(move |news| {
                if let Some(run) = run.upgrade() {
                    if let FlushNews::Begun(_) = news {
                        run.flushes.begin(false);
                    }
                    lock(&run.book).flush_news(home, news);
                }
            }));
        }
        for n in 0..self.run.machine.flash_count() {
            let run = Arc::downgrade(&self.run);
            self.run.machine.flash(n).on_flush(Arc::new(move |news| {
                let Some(run) = run.upgrade() else { return };
                match news {
                    FlushNews::Begun(_) => run.flushes.begin(true),
                    FlushNews::Done(_) => {}
                    FlushNews::Dropped => {
                        let two_copies = run.has_two_copies();
                        lock(&run.book).flash_dropped(two_copies);
                    }
                }
            }));
        }
    }

    /// A new cell with its grid disks and its flash cache, stopped clean.
    async fn create(&mut self) {
        let run = self.run.clone();
        let setup = &run.plan.setup;
        let process = run.handle.process("init");
        let world = process.world(self.net.host(far::CELL, &process), "init");
        let mut devices = Vec::new();
        for n in 0..run.machine.disk_count() {
            let device = run.machine.disk(n).connect(&process);
            devices.push(new_device(device, &disk_name(n), Role::Disk));
        }
        for n in 0..run.machine.flash_count() {
            let device = run.machine.flash(n).connect(&process);
            devices.push(new_device(device, &format!("FD{n}"), Role::Flash));
        }
        let (tx, rx) = one_shot();
        let seams = world.clone();
        let task = async move {
            tx.send(Cell::create("sim", devices, false, &seams).await.map(|_| ()).map_err(|e| e.to_string()));
        };
        process.spawn(Box::pin(task));
        if let Some(Err(error)) = rx.await {
            run.violate("I3", format!("the cell could not be created: {error}"));
            return;
        }
        process.kill();
        run.machine.settle();
        let Some(life) = self.open_once("first").await else { return };
        for grid_disk in &setup.grid_disks {
            let admin = Admin::Create {
                home: grid_disk.home as u64,
                size_bytes: grid_disk.size_bytes,
                caching: grid_disk.caching,
                redo: grid_disk.redo,
            };
            run.administer(&life, admin).await;
        }
        if setup.redo.is_some() {
            run.administer(&life, Admin::CreateFlashLog).await;
        }
        run.create_cache(&life, true, setup.flash_cache_bytes).await;
        self.stop(&life).await;
    }

    /// Open in a new process until it succeeds, breaking off as the plan says.
    async fn restart(&mut self, crash: Option<&Crash>) -> Option<Life> {
        let run = self.run.clone();
        for &(end, after_ns) in crash.map_or(&[][..], |c| &c.broken_opens) {
            let name = format!("broken {}", self.lives);
            let (process, rx) = self.begin_open(&name);
            let pause = std::pin::pin!(run.sleep(Duration::from_nanos(after_ns)));
            match select(rx, pause).await {
                Either::Left(_) => run.situations.hit("crash right after an opening"),
                Either::Right(_) => run.situations.hit("crash during an opening"),
            }
            process.kill();
            self.end(end);
        }
        let name = format!("life {}", self.lives);
        let life = self.open_once(&name).await?;
        Some(life)
    }

    /// Where grid disks are served before the index is whole, flash may be slow to tell it.
    fn slow_index(&mut self) {
        let run = &self.run;
        if self.prng.chance(1, 2) {
            let time = run.plan.setup.hard_limit.mul_f64(0.01 * self.prng.between(1, 60) as f64);
            let slow = self.prng.below(run.machine.flash_count() as u64) as usize;
            run.machine.flash(slow).stall(&[device::Verb::Read], Some(time));
        }
    }

    /// Some lives do not see it whole; in some it is looked at once it is.
    async fn dies_early(&mut self, life: &Life) -> Option<Crash> {
        let run = self.run.clone();
        if !life.cell.is_opening() || self.prng.chance(1, 4) {
            return None;
        }
        if self.prng.chance(1, 2) {
            life.cell.index_is_whole().await;
            self.pass(life, Pass::Everything { step_bytes: 64 << 10 }).await;
            return None;
        }
        run.sleep(run.plan.setup.hard_limit.mul_f64(0.01 * self.prng.below(40) as f64)).await;
        if run.broken() || run.crash_asked().is_some() || !life.cell.is_opening() {
            return None;
        }
        let end = if self.prng.chance(1, 2) { End::PowerCut } else { End::Kill };
        self.die(life, end);
        run.between(&[]);
        let pass = if self.prng.chance(1, 2) { Pass::Everything { step_bytes: 64 << 10 } } else { Pass::Nothing };
        Some(Crash {
            end,
            delay_ns: 0,
            between: Vec::new(),
            broken_opens: Vec::new(),
            pass,
            evict: false,
            in_flush: None,
        })
    }

    fn begin_open(&mut self, name: &str) -> (crate::executor::Process, device::sync::Receiver<Result<Opened, String>>) {
        self.lives += 1;
        let run = &self.run;
        let process = run.handle.process(name);
        let world = process.world(self.net.host(far::CELL, &process), name);
        let cell_watches = self.sabotage == Some(Canary::Cache(flashcache::Sabotage::FailedFuaUnheard));
        let connected = run.machine.connect(&process, &world, cell_watches, &mut self.prng);
        let config = cell_config(&run.plan.setup, self.sabotage);
        let us = Holder {
            host: 1,
            boot: self.boots,
            // Counted up from there by each race.
            instance: u128::from(self.lives) << 64,
            process: self.lives as u32,
            process_started: self.lives,
            host_name: "cell".to_owned(),
        };
        self.claims = connected.iter().map(|one| one.claim.clone()).collect();
        let (tx, rx) = one_shot();
        let (run, canary) = (run.clone(), self.sabotage);
        process.spawn(Box::pin(async move {
            let claims = connected.iter().map(|one| run.clone().claim(one.claim.clone(), us.clone(), world.clone()));
            if let Some(error) = join_all(claims).await.into_iter().find_map(Result::err) {
                tx.send(Err(error.to_string()));
                return;
            }
            let devices = connected.into_iter().map(|one| one.device).collect();
            let opened = Cell::open(devices, config, world.clone()).await;
            let front = match &opened {
                Ok((cell, _)) if run.far.is_some() => Some(Arc::new(far::serve(cell, &world, canary).await)),
                _ => None,
            };
            tx.send(opened.map(|(cell, report)| (cell, report, front)).map_err(|e| e.to_string()));
        }));
        (process, rx)
    }

    async fn open_once(&mut self, name: &str) -> Option<Life> {
        let run = self.run.clone();
        let (process, rx) = self.begin_open(name);
        let limit = std::pin::pin!(run.sleep(OPEN_MAX));
        match select(rx, limit).await {
            Either::Left((Some(Ok((cell, report, front))), _)) => {
                let life = Life { number: self.lives, process, cell, front };
                run.handle.trace().text("opened", format!("{report:?}"));
                run.reconcile(&life.cell);
                run.note_open(&life.cell, &report);
                let hot = lock(&run.history).hot.clone();
                let back = life.cell.remember_hot(hot) as u64;
                run.situations.hit_times("members: hot block of an earlier life brought back to empty flash", back);
                {
                    // A disk that waits for its flash keeps its stamp, and with it the life they were in together.
                    let waits = life.cell.grid_disks().iter().any(|disk| disk.offline().is_some());
                    let mut history = lock(&run.history);
                    history.opens += u64::from(!waits);
                    history.remember(&life.cell);
                }
                if life.cell.is_opening() {
                    run.situations.hit("early: served before the index is whole");
                    life.process.spawn(Box::pin(run.clone().note_index(life.cell.clone())));
                    self.slow_index();
                }
                lock(&run.book).life_begins(run.now());
                run.begin_life(life.clone());
                Some(life)
            }
            Either::Left((Some(Err(error)), _)) => {
                run.violate("I3", format!("the cell does not open though its disks are well: {error}"));
                None
            }
            Either::Left((None, _)) => None,
            Either::Right(_) => {
                run.violate("I7", format!("the cell does not open within {OPEN_MAX:?}"));
                None
            }
        }
    }

    /// Wait for the end of a life: a crash, or the end of the plan.
    async fn live(&mut self, life: &Life) -> Option<Crash> {
        let run = self.run.clone();
        let crash = loop {
            let ticket = run.changed.ticket();
            if run.broken() {
                return None;
            }
            if let Some(crash) = run.crash_asked() {
                break crash;
            }
            if run.steps_done() {
                return None;
            }
            run.changed.wait(ticket).await;
        };
        run.sleep(Duration::from_nanos(crash.delay_ns)).await;
        if let Some(at) = crash.in_flush {
            let reached = std::pin::pin!(run.flush_reached(at));
            let limit = std::pin::pin!(run.sleep(FLUSH_WAIT_MAX));
            let _either = select(reached, limit).await;
        }
        if run.broken() {
            return None;
        }
        if crash.end == End::CleanStop {
            self.stop(life).await;
        } else {
            self.die(life, crash.end);
        }
        run.between(&crash.between);
        Some(crash)
    }

    fn die(&mut self, life: &Life, end: End) {
        let run = self.run.clone();
        run.note_end(life, true);
        if life.cell.is_opening() {
            run.situations.hit("early: crash before the index is whole");
        }
        lock(&run.history).remember(&life.cell);
        run.end_life();
        life.process.kill();
        self.end(end);
    }

    /// The power goes, or only the process has gone.
    fn end(&mut self, end: End) {
        let run = &self.run;
        run.handle.trace().text("end", format!("{end:?}"));
        self.crashes += 1;
        match end {
            End::PowerCut => {
                run.situations.hit("power cut");
                self.boots += 1;
                run.machine.power_cut();
                lock(&run.book).process_died(|_| true);
            }
            End::PowerCutOf(device) => {
                run.situations.hit("power cut of one device alone");
                let home = run.machine.power_cut_of(device);
                // Flash may hold what the disks do not have, and what it loses is lost.
                let on_flash = run.plan.setup.write_back || run.plan.setup.redo.is_some();
                lock(&run.book).process_died(|disk| on_flash || home == Some(disk.home));
            }
            End::Kill | End::CleanStop => {
                run.situations.hit("process killed");
                run.machine.settle();
                lock(&run.book).process_died(|_| false);
            }
        }
        lock(&run.victims).clear();
    }

    /// A clean stop, with requests still coming in.
    async fn stop(&mut self, life: &Life) {
        let run = self.run.clone();
        let flushes: Vec<_> = {
            let mut book = lock(&run.book);
            book.stopping = true;
            let served = book.disks.iter_mut().filter_map(|(&id, d)| Some((id, d.served.clone()?, d)));
            let begun = served.filter_map(|(id, served, d)| {
                d.closing = true;
                // Of what waits for its flash a stop promises nothing.
                served.offline().is_none().then(|| (id, d.model.flush_begin()))
            });
            begun.collect()
        };
        let (cell, front, (tx, rx)) = (life.cell.clone(), life.front.clone(), one_shot());
        let claims = std::mem::take(&mut self.claims);
        life.process.spawn(Box::pin(async move {
            if let Some(front) = front {
                front.stop().await;
            }
            let stopped = cell.stop().await.map_err(|e| e.to_string());
            if stopped.is_ok() {
                // One that cannot be given back makes nobody wait: its process is gone.
                let _ = join_all(claims.iter().map(|claim| claim.release())).await;
            }
            tx.send(stopped);
        }));
        let stopped = rx.await;
        let harmed = run.machine.some_disk_harmed(run.now());
        match stopped {
            Some(Ok(())) => {
                run.situations.hit("clean stop");
                let mut book = lock(&run.book);
                for (id, flush) in flushes {
                    if let Some(disk) = book.disks.get_mut(&id) {
                        disk.model.flush_ack(flush);
                    }
                }
            }
            Some(Err(_)) if harmed || run.machine.some_flash_harmed() || lock(&run.book).flash_hurt => {
                run.situations.hit("a stop that could not be clean");
            }
            Some(Err(error)) => run.violate("I3", format!("the cell does not stop clean: {error}")),
            None => {}
        }
        run.note_end(life, false);
        lock(&run.history).remember(&life.cell);
        run.end_life();
        life.process.kill();
        run.machine.settle();
        let cut = self.prng.chance(1, 2);
        if cut {
            self.boots += 1;
            run.machine.power_cut();
        }
        lock(&run.book).process_died(|_| cut);
        lock(&run.victims).clear();
    }

    /// Read what is there, and once more when nothing of it is cached: the first answer is final.
    async fn read_back(&mut self, life: &Life, crash: &Crash) {
        self.pass(life, crash.pass).await;
        if crash.evict && !self.run.broken() {
            self.run.evict_all(life).await;
            self.pass(life, crash.pass).await;
        }
    }

    async fn pass(&mut self, life: &Life, pass: Pass) {
        let run = self.run.clone();
        let disks: Vec<(u64, u64)> = lock(&run.book).disks.iter().map(|(&id, d)| (id, d.limit)).collect();
        match pass {
            Pass::Nothing => {}
            Pass::Everything { step_bytes } => {
                // Clients and commands may go on meanwhile.
                let limit_of = |id| lock(&run.book).disks.get(&id).map_or(0, |disk| disk.limit);
                for (id, _) in disks {
                    let mut at = 0;
                    while at < limit_of(id) && !run.broken() {
                        let end = limit_of(id).min(at + step_bytes.min(256 << 10));
                        run.request(life, READER, id, Verb::Read, at..end, false).await;
                        at = end;
                    }
                }
            }
            Pass::Some { ranges } => {
                for _ in 0..ranges {
                    let (id, limit) = disks[self.prng.below(disks.len() as u64) as usize];
                    let len = self.prng.between(1, limit.min(64 << 10));
                    let at = self.prng.below(limit - len + 1);
                    if run.broken() {
                        return;
                    }
                    run.request(life, READER, id, Verb::Read, at..at + len, false).await;
                }
            }
        }
    }

    /// Faults are over, devices are back: everything has to work, to be cached, and to stay as it is.
    async fn liveness(&mut self) {
        let run = self.run.clone();
        if let Some(life) = run.life() {
            let end = if self.prng.chance(1, 2) { End::PowerCut } else { End::Kill };
            self.die(&life, end);
        }
        run.between(&[super::plan::Between::FlashBack { flash: 0 }]);
        let Some(mut life) = self.open_once("healed").await else { return };
        life.cell.index_is_whole().await;
        // Flash that was found to have lied is void and of use again after one more start.
        if life.cell.flash_cache().is_some_and(|cache| cache.members().any(|m| m.failure().is_some())) {
            run.situations.hit("flash that has lied is given up at an opening");
            // Once that is durable.
            run.sleep(Duration::from_secs(10)).await;
            self.die(&life, End::Kill);
            let Some(next) = self.open_once("healed").await else { return };
            life = next;
        }
        run.settle_stale(&life).await;
        run.forget_stale();
        let everything = Pass::Everything { step_bytes: 64 << 10 };
        self.pass(&life, everything).await;
        self.works(&life).await;
        run.evict_all(&life).await;
        self.pass(&life, everything).await;
        if run.broken() {
            return;
        }
        self.stop(&life).await;
        let Some(life) = self.open_once("restarted").await else { return };
        run.situations.hit("restart after a clean stop");
        self.pass(&life, everything).await;
        if !run.broken() {
            self.stop(&life).await;
        }
    }

    /// Write, read, read again: the second time from flash, if there is any.
    async fn works(&mut self, life: &Life) {
        let run = self.run.clone();
        let flash = life.cell.store().cell_disks().iter().any(|d| d.role() == Role::Flash);
        if flash {
            // A cache on devices that are there.
            run.drop_cache(life).await;
            run.create_cache(life, true, 0).await;
        }
        let ids: Vec<(u64, u64)> = lock(&run.book).disks.iter().map(|(&id, d)| (id, d.limit)).collect();
        let caching = Caching { mode: celldisk::CachingMode::WriteThrough, policy: celldisk::CachingPolicy::Default };
        // Which may keep those that look from the cache.
        run.end_plan(life).await;
        let (mut hits, mut offline) = (0, false);
        for (place, &(id, limit)) in ids.iter().enumerate() {
            run.unpin_all(life, place as u64).await;
            run.administer(life, Admin::SetCaching { disk: place as u64, caching }).await;
            run.administer(life, Admin::SetFill { disk: place as u64, fill: FillStrategy::Read }).await;
            let range = 0..limit.min(AU_BYTES);
            let mut answered = true;
            answered &= run.request(life, READER, id, Verb::Write { fua: false }, range.clone(), false).await;
            answered &= run.request(life, READER, id, Verb::Read, range.clone(), false).await;
            answered &= run.request(life, READER, id, Verb::Read, range.clone(), false).await;
            answered &= run.request(life, READER, id, Verb::Flush, 0..0, false).await;
            let served = lock(&run.book).disks.get(&id).and_then(|d| d.served.clone());
            let Some(served) = served else { continue };
            hits += served.counters.cache_hits.requests.get() + served.counters.cache_partial_hits.requests.get();
            offline |= served.offline().is_some();
            if !answered {
                run.violate("I7", format!("grid disk {id} does not answer though everything is healed"));
            }
        }
        if flash && hits == 0 && !offline && !run.broken() {
            let cache = life.cell.flash_cache();
            let members = cache.iter().flat_map(|c| c.members());
            let told: Vec<String> = members
                .map(|m| {
                    let counters = m.counters.snapshot().into_iter().filter(|(_, n)| *n > 0).collect::<Vec<_>>();
                    format!("{m:?}, failure {:?}, {:?}, {counters:?}", m.failure(), m.segments())
                })
                .collect();
            let text =
                format!("flash is there and well, and nothing is cached: {told:?}; alerts {:?}", life.cell.alerts());
            run.violate("I3", text);
        } else if flash {
            run.situations.hit("caches again once everything is healed");
        }
    }
}

/// Of the units of all devices here.
pub(super) fn new_device(device: device::Device, name: &str, role: Role) -> NewDevice {
    NewDevice { au_bytes: Some(AU_BYTES), ..NewDevice::new(device, name, role) }
}
