//! What all tasks of a run share, and its turns: which process is alive, who may go on, what was asked of the director.
//!
//! Tasks of the harness live outside the cell's process; a request is a task inside it, so that it dies with it, and the
//! client lives on.

use super::book::{Answer, Book, Issue, Request, Way};
use super::canary::HostSabotage;
use super::far::Far;
use super::machine::Machine;
use super::plan::{Crash, InFlush, Io, Plan, Step, Verb};
use crate::executor::{Handle, Process};
use crate::situations::Situations;
use cell::{Cell, RequestError, Session, ZeroFlags};
use device::buf::Buf;
use device::sync::{Notify, Semaphore, lock, one_shot};
use device::{Bufs, Clock, Instant, Spawn};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A life of the cell.
#[derive(Clone)]
pub(super) struct Life {
    pub(super) number: u64,
    pub(super) process: Process,
    pub(super) cell: Arc<Cell>,
    /// For clients on other hosts.
    pub(super) front: Option<Arc<nbd::FrontEnd>>,
}

#[derive(Default)]
pub(super) struct Turns {
    life: Option<Life>,
    /// Clients may begin requests.
    running: bool,
    next_step: usize,
    /// A crash somebody asked for.
    crash: Option<Crash>,
    /// Somebody lets time pass for everybody.
    resting: bool,
    /// Clients between two steps, waiting for their turn.
    pub(super) steps_busy: usize,
    pub(super) over: bool,
}

impl Turns {
    pub(super) fn is_over(&self) -> bool {
        self.over
    }
}

/// What a client does next.
pub(super) enum Turn {
    Step(Life, usize),
    Wait(u64),
    Over,
}

/// Flushes of devices that have begun.
#[derive(Default)]
pub(super) struct Flushes {
    /// Of disks, and of flash devices.
    begun: Mutex<[u64; 2]>,
    changed: Notify,
}

impl Flushes {
    /// A flush of a flash device or a disk has begun.
    pub(super) fn begin(&self, flash: bool) {
        lock(&self.begun)[usize::from(flash)] += 1;
        self.changed.notify_all();
    }

    fn begun(&self, flash: bool) -> u64 {
        lock(&self.begun)[usize::from(flash)]
    }
}

/// See the module's head.
pub(super) struct Run {
    pub(super) plan: Arc<Plan>,
    pub(super) handle: Handle,
    pub(super) root: Process,
    pub(super) situations: Situations,
    pub(super) machine: Machine,
    pub(super) book: Mutex<Book>,
    pub(super) turns: Mutex<Turns>,
    /// One command of the administrator at a time.
    pub(super) admin_turn: Semaphore,
    pub(super) admin: Mutex<super::admin::AdminState>,
    pub(super) watch: Mutex<super::watch::Watch>,
    pub(super) history: Mutex<super::between::History>,
    pub(super) victims: Mutex<super::victims::Victims>,
    pub(super) flushes: Flushes,
    pub(super) sabotage: Option<HostSabotage>,
    /// The hosts of the clients, where they are others.
    pub(super) far: Option<Far>,
    /// Anything of the above has changed.
    pub(super) changed: Notify,
}

/// The client number of the harness's own reading.
pub(super) const READER: u64 = u64::MAX;

impl Run {
    pub(super) fn now(&self) -> Instant {
        self.handle.now()
    }

    pub(super) async fn sleep(&self, time: Duration) {
        let clock: &(dyn Clock + 'static) = &self.root;
        clock.sleep(time).await;
    }

    /// Wait for the moment in a flush that is meant.
    pub(super) async fn flush_reached(&self, InFlush { flash, earlier, after_ns }: InFlush) {
        let wanted = self.flushes.begun(flash) + earlier;
        loop {
            let ticket = self.flushes.changed.ticket();
            if self.flushes.begun(flash) > wanted {
                break;
            }
            self.flushes.changed.wait(ticket).await;
        }
        self.sleep(Duration::from_nanos(after_ns)).await;
    }

    /// What is dirty is on two flash devices that serve, and only one of them comes to harm.
    pub(super) fn has_two_copies(&self) -> bool {
        let Some(cache) = self.life().and_then(|life| life.cell.flash_cache()) else { return false };
        let serving = cache.members().filter(|member| !member.has_failed()).count();
        let unchanged = lock(&self.admin).pending.is_none();
        self.plan.setup.mirrored && serving > 1 && unchanged && lock(&self.book).hurt_flashes.len() < 2
    }

    pub(super) fn broken(&self) -> bool {
        lock(&self.book).broken.is_some()
    }

    pub(super) fn violate(&self, invariant: &'static str, text: String) {
        lock(&self.book).violate(invariant, text);
        self.changed.notify_all();
    }

    pub(super) fn life(&self) -> Option<Life> {
        lock(&self.turns).life.clone()
    }

    pub(super) fn begin_life(&self, life: Life) {
        lock(&self.turns).life = Some(life);
    }

    pub(super) fn set_running(&self, running: bool) {
        lock(&self.turns).running = running;
        self.changed.notify_all();
    }

    /// The process dies here; its requests get no answer.
    pub(super) fn end_life(&self) -> Option<Life> {
        let life = {
            let mut turns = lock(&self.turns);
            turns.running = false;
            turns.crash = None;
            turns.life.take()
        };
        self.changed.notify_all();
        life
    }

    /// The crash that was asked for, if any.
    pub(super) fn crash_asked(&self) -> Option<Crash> {
        lock(&self.turns).crash.clone()
    }

    /// Steps taken so far.
    pub(super) fn steps_taken(&self) -> usize {
        lock(&self.turns).next_step
    }

    /// All steps are taken and done.
    pub(super) fn steps_done(&self) -> bool {
        let turns = lock(&self.turns);
        turns.next_step == self.plan.steps.len() && turns.steps_busy == 0
    }

    pub(super) fn end(&self) {
        lock(&self.turns).over = true;
        self.changed.notify_all();
    }

    fn turn(&self) -> Turn {
        let ticket = self.changed.ticket();
        let broken = self.broken();
        let mut turns = lock(&self.turns);
        if turns.over || broken {
            return Turn::Over;
        }
        let Some(life) = turns.life.clone().filter(|_| turns.running) else { return Turn::Wait(ticket) };
        match self.plan.steps.get(turns.next_step) {
            None => Turn::Wait(ticket),
            _ if turns.resting => Turn::Wait(ticket),
            Some(Step::Rest(_)) if turns.steps_busy > 0 || turns.crash.is_some() => Turn::Wait(ticket),
            Some(Step::Crash(_)) if turns.crash.is_some() => Turn::Wait(ticket),
            Some(Step::Crash(crash)) => {
                turns.crash = Some(crash.clone());
                turns.next_step += 1;
                drop(turns);
                self.changed.notify_all();
                Turn::Wait(ticket)
            }
            Some(step) => {
                turns.resting = matches!(step, Step::Rest(_));
                let at = turns.next_step;
                turns.next_step += 1;
                turns.steps_busy += 1;
                Turn::Step(life, at)
            }
        }
    }

    /// One request slot of one connection, for the whole run.
    pub(super) async fn client(self: Arc<Self>, number: u64) {
        loop {
            match self.turn() {
                Turn::Over => return,
                Turn::Wait(ticket) => self.changed.wait(ticket).await,
                Turn::Step(life, at) => {
                    let plan = self.plan.clone();
                    match &plan.steps[at] {
                        Step::Io(io) => self.io(&life, number, io).await,
                        Step::Admin(admin) => self.administer(&life, *admin).await,
                        Step::Mishap(mishap) => self.mishap(&life, mishap),
                        Step::Rest(time) => {
                            self.sleep(*time).await;
                            lock(&self.turns).resting = false;
                        }
                        Step::Crash(_) => {}
                    }
                    lock(&self.turns).steps_busy -= 1;
                    self.changed.notify_all();
                }
            }
        }
    }

    async fn io(self: &Arc<Self>, life: &Life, client: u64, io: &Io) {
        if io.think_ns > 0 {
            self.sleep(Duration::from_nanos(io.think_ns)).await;
        }
        let picked = {
            let book = lock(&self.book);
            book.pick(io.disk).and_then(|id| Some((id, book.disks.get(&id)?.limit)))
        };
        let Some((id, limit)) = picked else { return };
        let (offset, len) = match io.verb {
            Verb::Flush => (0, 0),
            Verb::BeyondEnd { write } => {
                let size = lock(&self.book).disks.get(&id).map_or(0, |d| d.model.size_bytes());
                // A write far beyond, so that a growth at the same moment cannot let it in unseen.
                (if write { size + (1 << 30) } else { size.saturating_sub(io.len - 1) }, io.len)
            }
            _ => {
                let len = io.len.min(limit);
                let room = limit - len + 1;
                (if io.offset < room { io.offset } else { io.offset % room }, len)
            }
        };
        self.request(life, client, id, io.verb, offset..offset + len, io.odd_memory).await;
    }

    /// One request from beginning to end, or to the end of the life. True when it was answered.
    pub(super) async fn request(
        self: &Arc<Self>,
        life: &Life,
        client: u64,
        id: u64,
        verb: Verb,
        range: std::ops::Range<u64>,
        odd_memory: bool,
    ) -> bool {
        let process = match &self.far {
            None => life.process.clone(),
            Some(far) => match self.host_of(far, id).await {
                Some(process) => process,
                None => return false,
            },
        };
        let (range, known) = (self.fitted(range), self.far.as_ref().and_then(|far| far.known(id)));
        // The life may have ended while the client was thinking.
        if self.life().is_none_or(|now| now.number != life.number) {
            return false;
        }
        let issue = {
            let mut book = lock(&self.book);
            let Some(home) = book.disks.get(&id).map(|d| d.home) else { return false };
            let health = self.machine.health(home, self.now());
            if known.is_some() && book.is_changing(id, verb, &range) {
                return true;
            }
            book.operations += u64::from(client != READER);
            let Some(issue) = book.begin(client, id, verb, range, self.now(), health, known) else { return false };
            issue
        };
        let number = issue.number;
        self.handle.trace().event(name_of(verb), [id, number, issue.range.start, issue.range.end]);
        let (tx, rx) = one_shot();
        let (run, cell) = (self.clone(), life.cell.clone());
        let task = async move {
            let answer = run.ask_and_keep(id, verb, issue, odd_memory).await;
            run.answered(&cell, number, answer);
            tx.send(());
        };
        let thread = (client % 7) as usize;
        process.spawn_on(thread, Box::pin(task));
        rx.await.is_some()
    }

    /// Ask; a block that is read may be one that a buffer cache keeps, or it lets go of one.
    async fn ask_and_keep(&self, disk: u64, verb: Verb, issue: Issue, odd: bool) -> Result<Answer, RequestError> {
        let Issue { number, way, range, bytes } = issue;
        let session = match (way, &self.far) {
            (Way::Near(session), _) => session,
            (Way::Far, Some(far)) => return self.ask_host(far, disk, verb, range, &bytes).await,
            (Way::Far, None) => unreachable!("a request to the device of a host"),
        };
        match verb {
            Verb::Offer => {
                self.offer_block(&session, disk).await;
                Ok(Answer::Done)
            }
            Verb::Read => {
                let note = self.note_block(&session, number, &range).await;
                let answer = ask(&session, verb, range, &bytes, odd).await;
                if let (Some(note), Ok(Answer::Bytes(bytes))) = (note, &answer) {
                    self.keep_block(disk, note, Bufs::from(Buf::padded(bytes, 4096)).freeze());
                }
                answer
            }
            _ => ask(&session, verb, range, &bytes, odd).await,
        }
    }

    /// An answer has come: at this moment it counts.
    fn answered(&self, cell: &Arc<Cell>, number: u64, answer: Result<Answer, RequestError>) {
        let succeeded = answer.is_ok();
        self.handle.trace().event(if succeeded { "answered" } else { "failed" }, [number, 0, 0, 0]);
        let tells = matches!(answer, Err(RequestError::Io | RequestError::NoSpace));
        let request = lock(&self.book)
            .finish(number, answer, self.handle.wall_ns(), |home| self.machine.health(home, self.now()));
        if let Some(request) = request {
            if let Some(far) = self.far.as_ref().filter(|_| tells) {
                let home = lock(&self.book).disks.get(&request.disk).map(|disk| disk.home);
                home.into_iter().for_each(|home| far.told(request.disk, self.machine.health(home, self.now())));
            }
            // The process that was asked first may be another.
            let now = self.far.as_ref().and_then(|_| self.life());
            self.note_answer(now.as_ref().map_or(cell, |life| &life.cell), &request, succeeded);
        }
        self.changed.notify_all();
    }

    fn note_answer(&self, cell: &Arc<Cell>, request: &Request, succeeded: bool) {
        if !succeeded {
            let what = match request.verb {
                Verb::Read => "a read failed",
                Verb::Flush => "a flush failed",
                Verb::BeyondEnd { .. } => "a request beyond the end was refused",
                _ => "a write was refused or failed",
            };
            self.situations.hit(what);
        } else if request.raced {
            self.situations.hit("overlapping requests in flight, one of them a write");
        }
        self.check_answer(cell, request, succeeded);
    }
}

/// What a request is called in the trace.
fn name_of(verb: Verb) -> &'static str {
    match verb {
        Verb::Read => "client read",
        Verb::Write { fua: false } => "client write",
        Verb::Write { fua: true } => "client write FUA",
        Verb::Zeroes { .. } => "client zeroes",
        Verb::Trim { .. } => "client trim",
        Verb::Flush => "client flush",
        Verb::Prefetch => "client prefetch",
        Verb::Offer => "client offer",
        Verb::Status => "client status",
        Verb::BeyondEnd { .. } => "client beyond end",
    }
}

async fn ask(
    session: &Session,
    verb: Verb,
    range: std::ops::Range<u64>,
    bytes: &[u8],
    odd_memory: bool,
) -> Result<Answer, RequestError> {
    let (offset, len) = (range.start, range.end - range.start);
    let memory = |len: usize| {
        let mut buf = Buf::zeroed(len + usize::from(odd_memory));
        buf.split_off(usize::from(odd_memory))
    };
    match verb {
        Verb::Read | Verb::BeyondEnd { write: false } => {
            let (result, bufs) = session.read(offset, Bufs::from(memory(len as usize))).await;
            result.map(|()| Answer::Bytes(bufs.to_vec(0..bufs.len_bytes())))
        }
        Verb::Write { .. } | Verb::BeyondEnd { write: true } => {
            let fua = matches!(verb, Verb::Write { fua: true });
            let mut buf = memory(len as usize);
            if !bytes.is_empty() {
                buf.copy_from_slice(bytes);
            }
            session.write(offset, Bufs::from(buf).freeze(), fua).await.map(|()| Answer::Done)
        }
        Verb::Zeroes { fua, no_hole, fast } => {
            session.write_zeroes(offset, len, ZeroFlags { no_hole, fast, fua }).await.map(|()| Answer::Done)
        }
        Verb::Trim { fua } => session.trim(offset, len, fua).await.map(|()| Answer::Done),
        Verb::Flush => session.flush().await.map(|()| Answer::Done),
        Verb::Prefetch => session.prefetch(offset, len).await.map(|()| Answer::Done),
        Verb::Offer => unreachable!("made by a buffer cache"),
        Verb::Status => {
            let extents = session.extents(offset, len, 64).await?;
            let covered: u64 = extents.iter().map(|e| e.len).sum();
            assert!(!extents.is_empty() && covered <= len, "block status covers part of what was asked");
            Ok(Answer::Done)
        }
    }
}
