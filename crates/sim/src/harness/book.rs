//! The book of a run: the model of every grid disk, the sessions, the requests under way, and what each answer means.
//!
//! Everything here happens at one moment under one lock; nothing waits. It knows which requests may fail and why, judges
//! every answer, and holds the first violation.

use super::machine::Health;
use super::plan::Verb;
use crate::disk::FlushNews;
use crate::model::{FlushId, Model, OpId, ReadId};
use cell::{GridDisk, RequestError, Session};
use device::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Where data lies on several devices, what one of them dropped leaves un-flushed data on the others: no answer is final
/// before a flush, wherever it is.
const EVERYWHERE: [Range<u64>; 1] = [Range { start: 0, end: u64::MAX }];

/// A broken promise with its place in the run.
#[derive(Clone, Debug)]
pub(super) struct Broken {
    /// `I1` … `I10`, or `harness` when the run itself could not go on.
    pub(super) invariant: &'static str,
    pub(super) text: String,
}

/// A grid disk.
pub(super) struct BookDisk {
    pub(super) name: String,
    pub(super) model: Model,
    /// Place of its cell disk.
    pub(super) home: usize,
    /// Clients stay below this.
    pub(super) limit: u64,
    /// None while its cell disk is not there.
    pub(super) served: Option<Arc<GridDisk>>,
    /// Being dropped, or the cell is stopping: requests may be refused.
    pub(super) closing: bool,
    /// A failed flush has dropped writes and the cell has not been told yet.
    doubt: Option<Doubt>,
    /// Flash has dropped what was not flushed, since the process began or the grid disk was last seen offline.
    flash_dropped: bool,
    /// How many of the losses a FLUSH of a later connection may have been told of, which is done once.
    told_late: u64,
    /// How many losses the cell had told its clients of when that was last looked at.
    told: u64,
    /// Acknowledged writes so far, those among them up to the last one that was not durable by itself, and those a flush
    /// of the disk covers.
    acked: u64,
    volatile: u64,
    flushed: u64,
    /// For each loss of its disk, the acknowledged writes that survived it.
    losses: Vec<u64>,
    /// As many of them had been acknowledged when the flash log last was before it: it gives the disk everything before it goes,
    /// with flushes that cover what has ended on the disk and is acknowledged later.
    logged: u64,
    /// The flush of its disk under way, and what had been acknowledged when it began.
    flushing: Option<(u64, u64)>,
    /// Its stale state is being accepted: it is of no moment before this one.
    pub(super) stale: Option<u64>,
    /// It goes on without redo that is lost: its disk may be of several moments.
    pub(super) torn: bool,
    /// When the last life ended its writes were taken on flash, in flush order.
    pub(super) in_order: bool,
    /// All flash was lost at the end of a life: its disk is of no moment after that.
    pub(super) lost_at: Option<u64>,
    times: super::stale::Times,
    /// Changes of a host that have failed, each with the number of the first request after that. The host keeps them with what is below,
    /// and may send them again until a FLUSH covers them: NBD promises nothing of a failed write.
    doubtful: Vec<(u64, OpId)>,
    /// Trims of a host that were acknowledged, each likewise: sent again they may do what they did not at first. NBD promises nothing of
    /// what is trimmed until it is written.
    repeated: Vec<(u64, OpId)>,
    /// Its host has died, and no other has taken its place: nobody keeps what was acknowledged and not flushed.
    exposed: bool,
    /// Changes that a host had under way when it died. They are over when another takes its place.
    orphans: Vec<OpId>,
}

impl BookDisk {
    /// The last moment at which something was acknowledged before a time.
    pub(super) fn moment_before(&self, wall_ns: u64) -> u64 {
        self.times.before(wall_ns)
    }

    /// It goes on from what was found on its disk.
    pub(super) fn go_on_from(&mut self, found: &[u8]) {
        self.model.go_on_from(found);
        self.stale = None;
        self.torn = false;
        // What flash has lost is given up: what is lost from now on is lost later.
        self.lost_at = None;
    }

    /// A change has failed. Whether it may is judged elsewhere.
    fn fail(&mut self, op: OpId) {
        let all = 0..self.model.size_bytes();
        self.model.declare_offline(all.clone());
        let _permitted = self.model.fail(op);
        self.model.declare_online(all);
    }

    /// A host may send a trim of `range` again, from request `since` on.
    fn repeat_trim(&mut self, since: u64, range: Range<u64>) {
        if !range.is_empty() {
            let op = self.model.begin_trim(range, false);
            self.repeated.push((since, op));
        }
    }

    /// A change of `range` by a host begins: what is sent again there comes before it.
    fn change_begins(&mut self, range: &Range<u64>) {
        for (since, op) in std::mem::take(&mut self.repeated) {
            let trimmed = self.model.range(op);
            if trimmed.end <= range.start || range.end <= trimmed.start {
                self.repeated.push((since, op));
                continue;
            }
            self.model.ack(op);
            self.repeat_trim(since, trimmed.start..range.start.max(trimmed.start));
            self.repeat_trim(since, range.end.min(trimmed.end)..trimmed.end);
        }
    }

    /// A FLUSH of a host has succeeded, of this number: it sends nothing again that had ended before.
    fn host_flushed(&mut self, number: u64) {
        let (doubtful, repeated) = (std::mem::take(&mut self.doubtful), std::mem::take(&mut self.repeated));
        for (since, op) in doubtful {
            if since <= number { self.fail(op) } else { self.doubtful.push((since, op)) }
        }
        for (since, op) in repeated {
            if since <= number { self.model.ack(op) } else { self.repeated.push((since, op)) }
        }
    }

    /// Flash may hold what its disk does not have.
    fn is_written_back(&self) -> bool {
        self.served.as_ref().is_some_and(|served| served.is_write_back())
    }

    pub(super) fn new(name: String, model: Model, home: usize, served: Option<Arc<GridDisk>>) -> BookDisk {
        let limit = model.size_bytes();
        BookDisk {
            name,
            model,
            home,
            limit,
            served,
            closing: false,
            doubt: None,
            flash_dropped: false,
            told_late: 0,
            told: 0,
            acked: 0,
            volatile: 0,
            flushed: 0,
            losses: Vec::new(),
            logged: 0,
            flushing: None,
            stale: None,
            torn: false,
            in_order: false,
            lost_at: None,
            times: super::stale::Times::default(),
            doubtful: Vec::new(),
            repeated: Vec::new(),
            exposed: false,
            orphans: Vec::new(),
        }
    }

    /// Between a loss and the moment at which the cell knows of it a read may return what was there before or after.
    fn in_doubt(&mut self) -> bool {
        self.settle();
        self.doubt.is_some()
    }

    /// Look what the cell knows by now of what its devices have dropped, and what it has told the clients. In write-back, where flash holds what is acknowledged,
    /// nothing of that is lost unless clients are told: after an error NBD promises nothing of what no FLUSH has covered. To be called before
    /// anything is told to the model.
    fn settle(&mut self) {
        if self.doubt.is_some_and(|doubt| self.losses_heard() > doubt.heard) {
            self.doubt = None;
        }
        let offline = self.served.as_ref().is_some_and(|served| served.offline().is_some());
        if self.flash_dropped && offline {
            self.flash_dropped = false;
            self.model.lose_unflushed(&EVERYWHERE);
        }
        let told = self.losses_told();
        if told < self.told {
            // The grid disk is served anew.
            self.told_late = 0;
        }
        let news = told > std::mem::replace(&mut self.told, told);
        if news && (self.is_written_back() || self.is_logged()) {
            self.model.lose_unflushed(&EVERYWHERE);
        }
    }

    /// How often the cell has told clients that acknowledged writes may be lost.
    fn losses_told(&self) -> u64 {
        self.served.as_ref().map_or(0, |served| served.promises_broken())
    }

    /// How often the cell has heard that its device has dropped something.
    fn losses_heard(&self) -> u64 {
        self.served.as_ref().map_or(u64::MAX, |s| s.lost_epoch() + s.redo().map_or(0, |redo| redo.losses_heard()))
    }

    /// The flash log may hold what its disk drops, or alone what it has not got.
    fn is_logged(&self) -> bool {
        self.served.as_ref().is_some_and(|served| served.redo().is_some())
    }
}

/// A loss of a disk that its cell does not know of.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// How many the cell had heard of.
    heard: u64,
    /// The model does not know yet what may be lost.
    open: bool,
}

/// One connection to one grid disk.
struct Connected {
    session: Arc<Session>,
    number: u64,
    health: Health,
    doom: Doom,
}

/// Acknowledged writes of the grid disk were lost while a connection was open: how many losses the cell had heard of by then.
/// Once it has heard of one more, no request of that connection may succeed.
type Doom = Arc<OnceLock<u64>>;

/// What a request is to the model.
#[derive(Clone, Copy, Debug)]
enum Part {
    Read(ReadId),
    Change(OpId),
    Flush(FlushId),
    Other,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Request {
    number: u64,
    pub(super) disk: u64,
    pub(super) verb: Verb,
    pub(super) range: Range<u64>,
    pub(super) begun: Instant,
    client: u64,
    /// None: from another host, whose device outlives connections.
    session: Option<u64>,
    session_health: Health,
    doom: Doom,
    part: Part,
    /// The cell was stopping, or its grid disk being dropped, when it began or since.
    begun_closing: bool,
    /// Writes to its grid disk acknowledged when it began, those among them not durable by themselves, and its losses.
    acked: u64,
    volatile: u64,
    losses: usize,
    /// It overlapped a change of the same bytes, or a read of bytes that are being changed.
    pub(super) raced: bool,
}

/// What came back.
pub(super) enum Answer {
    /// Bytes of a read.
    Bytes(Vec<u8>),
    Done,
}

/// Whom to ask.
pub(super) enum Way {
    /// A session of the cell.
    Near(Arc<Session>),
    /// The device of a host.
    Far,
}

/// What is needed to issue a request.
pub(super) struct Issue {
    pub(super) number: u64,
    pub(super) way: Way,
    pub(super) range: Range<u64>,
    /// The bytes of a write.
    pub(super) bytes: Vec<u8>,
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Book {
    pub(super) disks: BTreeMap<u64, BookDisk>,
    sessions: BTreeMap<(u64, u64), Connected>,
    next_session: u64,
    pub(super) requests: BTreeMap<u64, Request>,
    next_request: u64,
    /// Requests of clients begun.
    pub(super) operations: u64,
    pub(super) broken: Option<Broken>,
    /// The cell is stopping.
    pub(super) stopping: bool,
    /// Something befell flash, or a disk was put back in time: in write-back that may cost the only copy of something, and the grid
    /// disk is offline until an operator goes on without.
    pub(super) flash_hurt: bool,
    /// So it did since faults were last healed: a grid disk in write-back that is not offline may refuse what it cannot read.
    pub(super) flash_ill: bool,
    /// Flash devices that have come to harm.
    pub(super) hurt_flashes: BTreeSet<usize>,
    /// All clients are on other hosts.
    is_far: bool,
    /// Names may be older than the last rename: the catalog went back in time with its only device.
    pub(super) names_loose: bool,
}

impl Book {
    /// An empty one; all clients are on other hosts, or on none.
    pub(super) fn new(is_far: bool) -> Book {
        Book { is_far, ..Book::default() }
    }

    /// Note a violation; the first one counts.
    pub(super) fn violate(&mut self, invariant: &'static str, text: String) {
        self.broken.get_or_insert(Broken { invariant, text });
    }

    /// The identity of the grid disk meant by `place`.
    pub(super) fn pick(&self, place: u64) -> Option<u64> {
        if self.disks.is_empty() {
            return None;
        }
        self.disks.keys().nth((place % self.disks.len() as u64) as usize).copied()
    }

    /// The session of a client with a grid disk, a new one if it has none.
    fn session(&mut self, client: u64, id: u64, health: Health) -> Option<&Connected> {
        let served = self.disks.get(&id)?.served.clone()?;
        let next = &mut self.next_session;
        let connected = self.sessions.entry((client, id)).or_insert_with(|| {
            *next += 1;
            let context = cell::Context { database: super::iorm::database_of(client), ..cell::Context::default() };
            let session = Arc::new(served.open_session(context));
            Connected { session, number: *next, health, doom: Doom::default() }
        });
        Some(connected)
    }

    /// A request begins; from another host where it is `known` what its device has been told of. `None` when its grid disk is not there
    /// now.
    #[expect(clippy::too_many_arguments, reason = "one place, and each is another thing")]
    pub(super) fn begin(
        &mut self,
        client: u64,
        id: u64,
        verb: Verb,
        range: Range<u64>,
        now: Instant,
        health: Health,
        known: Option<Health>,
    ) -> Option<Issue> {
        let disk = self.disks.get(&id)?;
        if disk.stale.is_some() {
            return None;
        }
        let (way, session, session_health, doom) = match known {
            Some(known) if disk.served.is_some() => (Way::Far, None, known, Doom::default()),
            Some(_) => return None,
            None => {
                let connected = self.session(client, id, health)?;
                let way = Way::Near(connected.session.clone());
                (way, Some(connected.number), connected.health, connected.doom.clone())
            }
        };
        let changes = |v: Verb| matches!(v, Verb::Write { .. } | Verb::Zeroes { .. } | Verb::Trim { .. });
        let mut raced = false;
        for other in self.requests.values_mut().filter(|r| r.disk == id) {
            let overlap = other.range.start < range.end && range.start < other.range.end;
            if overlap && (changes(other.verb) || changes(verb)) {
                other.raced = true;
                raced = true;
            }
        }
        let disk = self.disks.get_mut(&id)?;
        disk.settle();
        // What may be refused as not fast changes nothing then.
        if session.is_none() && changes(verb) && !matches!(verb, Verb::Zeroes { fast: true, .. }) {
            disk.change_begins(&range);
        }
        let mut bytes = Vec::new();
        let part = match verb {
            Verb::Read => Part::Read(disk.model.read_begin(range.clone())),
            Verb::Write { fua } => {
                let op = disk.model.begin_write(range.clone(), fua);
                bytes = disk.model.bytes(op);
                Part::Change(op)
            }
            Verb::Zeroes { fua, .. } => Part::Change(disk.model.begin_zeroes(range.clone(), fua)),
            Verb::Trim { fua } => Part::Change(disk.model.begin_trim(range.clone(), fua)),
            Verb::Flush => Part::Flush(disk.model.flush_begin()),
            Verb::Prefetch | Verb::Offer | Verb::Status | Verb::BeyondEnd { .. } => Part::Other,
        };
        if let Part::Read(read) = part
            && disk.in_doubt()
        {
            disk.model.read_beside_loss(read);
        }
        let number = self.next_request;
        self.next_request += 1;
        let request = Request {
            number,
            disk: id,
            verb,
            range: range.clone(),
            begun: now,
            client,
            session,
            session_health,
            doom,
            part,
            begun_closing: disk.closing,
            acked: disk.acked,
            volatile: disk.volatile,
            losses: disk.losses.len(),
            raced,
        };
        self.requests.insert(number, request);
        Some(Issue { number, way, range, bytes })
    }

    /// A request has ended. The request, unless its grid disk or its life is over.
    pub(super) fn finish(
        &mut self,
        number: u64,
        answer: Result<Answer, RequestError>,
        wall_ns: u64,
        health: impl Fn(usize) -> Health,
    ) -> Option<Request> {
        let request = self.requests.remove(&number)?;
        let disk = self.disks.get_mut(&request.disk)?;
        disk.settle();
        let key = (request.client, request.disk);
        match answer {
            Ok(answer) => {
                self.succeeded(&request, answer);
                if let Some(disk) = self.disks.get_mut(&request.disk) {
                    disk.times.note(wall_ns, &disk.model);
                }
            }
            Err(error) => {
                let health = health(disk.home);
                // Reconnect after any error, as I6 asks of clients.
                if self.sessions.get(&key).is_some_and(|s| Some(s.number) == request.session)
                    && error == RequestError::Io
                {
                    self.sessions.remove(&key);
                }
                self.failed(&request, error, health);
            }
        }
        Some(request)
    }

    fn succeeded(&mut self, request: &Request, answer: Answer) {
        let Some(disk) = self.disks.get_mut(&request.disk) else { return };
        // An offer asks nothing of the disk, and says nothing of it.
        let doomed = request.doom.get().is_some_and(|&heard| disk.losses_heard() > heard);
        // The device of a host connects anew, and writes again what is lost.
        let is_near = request.session.is_some();
        if doomed && is_near && request.verb != Verb::Offer {
            let text =
                format!("{request:?} succeeded on a connection that was open when acknowledged writes were lost");
            return self.violate("I6", text);
        }
        let lost = disk.losses[request.losses..].iter().any(|&survived| request.volatile > survived);
        if lost && is_near && request.verb == Verb::Flush {
            let text = format!("{request:?} succeeded, and writes acknowledged before it were lost under way");
            return self.violate("I1", text);
        }
        // While it is made larger it serves its new size before whoever asked for that is told.
        let disk_bytes = disk.model.size_bytes().max(disk.served.as_ref().map_or(0, |s| s.size_bytes()));
        let judged = match (request.part, answer) {
            (Part::Read(read), Answer::Bytes(bytes)) => disk.model.check_read(read, &bytes),
            (Part::Change(op), _) => {
                disk.model.ack(op);
                if !is_near && matches!(request.verb, Verb::Trim { .. }) {
                    disk.repeat_trim(self.next_request, request.range.clone());
                }
                let durable = matches!(
                    request.verb,
                    Verb::Write { fua: true } | Verb::Zeroes { fua: true, .. } | Verb::Trim { .. }
                );
                disk.acked += 1;
                if disk.is_logged() {
                    disk.logged = disk.acked;
                }
                if !durable {
                    disk.volatile = disk.acked;
                }
                Ok(())
            }
            (Part::Flush(flush), _) => {
                disk.model.flush_ack(flush);
                disk.host_flushed(request.number);
                // Wherever it made them durable.
                disk.flushed = disk.flushed.max(request.acked);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(violation) = judged {
            let text = format!("grid disk {} (id {}): {violation}; in {request:?}", disk.name, request.disk);
            self.violate(violation.invariant.number(), text);
        } else if matches!(request.verb, Verb::BeyondEnd { .. }) && request.range.end > disk_bytes {
            self.violate("I2", format!("{request:?} reached beyond the end and succeeded"));
        }
    }

    fn failed(&mut self, request: &Request, error: RequestError, health: Health) {
        let Some(disk) = self.disks.get_mut(&request.disk) else { return };
        let permitted = match error {
            RequestError::Io | RequestError::NoSpace => {
                let offline = disk.served.as_ref().is_some_and(|s| s.offline().is_some());
                let lost = self.flash_hurt && offline || self.flash_ill && disk.is_written_back();
                let told = disk.losses_told();
                lost
                    || health.faulty
                    || request.session_health.faulty
                    || health.count != request.session_health.count
                    // Of a loss that no client was told of the next one hears.
                    || matches!(request.verb, Verb::Flush) && told > std::mem::replace(&mut disk.told_late, told)
            }
            RequestError::Stopping => disk.closing || request.begun_closing,
            RequestError::NotSupported => matches!(request.verb, Verb::Zeroes { fast: true, .. }),
            RequestError::OutOfRange => matches!(request.verb, Verb::BeyondEnd { .. }),
            RequestError::ReadOnly | RequestError::Fenced | RequestError::Predecessor => false,
        };
        match request.part {
            Part::Read(read) => disk.model.read_dropped(read),
            Part::Change(op) if request.session.is_none() => disk.doubtful.push((self.next_request, op)),
            Part::Change(op) => disk.fail(op),
            Part::Flush(flush) => disk.model.flush_fail(flush),
            Part::Other => {}
        }
        if !permitted {
            let text = format!("grid disk {}: {request:?} failed though its disk is well: {error}", disk.name);
            self.violate("I3", text);
        }
    }

    /// A disk tells of a flush, whoever asked for it.
    pub(super) fn flush_news(&mut self, home: usize, news: FlushNews) {
        for (&id, disk) in self.disks.iter_mut().filter(|(_, d)| d.home == home) {
            disk.settle();
            match news {
                FlushNews::Begun(number) => disk.flushing = Some((number, disk.acked)),
                FlushNews::Done(number) => {
                    if let Some((_, covers)) = disk.flushing.take_if(|(n, _)| *n == number) {
                        disk.flushed = disk.flushed.max(covers);
                    }
                }
                FlushNews::Dropped => {
                    let heard = disk.losses_heard();
                    // A drop of the disk loses nothing that flash holds, and flushes of flash are not told here.
                    if disk.is_written_back() {
                        disk.model.lose_unacknowledged();
                        disk.doubt = Some(Doubt { heard, open: true });
                        continue;
                    }
                    if disk.is_logged() {
                        disk.model.lose_unflushed(&EVERYWHERE);
                        disk.doubt = Some(Doubt { heard, open: false });
                        continue;
                    }
                    let odd = self.requests.values().filter(|r| r.disk == id && !r.range.is_empty());
                    let part = |r: &Request| r.range.start / 4096 * 4096..r.range.end.next_multiple_of(4096);
                    let rewritten: Vec<Range<u64>> = odd.map(part).collect();
                    disk.model.lose_unflushed(&rewritten);
                    disk.doubt = Some(Doubt { heard, open: false });
                    let survived = disk.flushed.max(disk.logged);
                    disk.losses.push(survived);
                    if disk.volatile <= survived {
                        continue;
                    }
                    let open =
                        self.sessions.iter().filter(|((_, d), _)| *d == id).map(|(_, connected)| &connected.doom);
                    let under_way = self.requests.values().filter(|r| r.disk == id).map(|r| &r.doom);
                    for doom in open.chain(under_way) {
                        doom.get_or_init(|| heard);
                    }
                }
            }
        }
    }

    /// A flush of flash failed and has dropped what was not flushed: in write-back that was acknowledged. The cell writes it again from memory, or fails the
    /// device. With `two_copies` of what is dirty the other device has it.
    pub(super) fn flash_dropped(&mut self, two_copies: bool) {
        let may_lose = |disk: &&mut BookDisk| disk.is_written_back() && !two_copies || disk.is_logged();
        for disk in self.disks.values_mut().filter(may_lose) {
            disk.flash_dropped = true;
            disk.model.lose_unacknowledged();
        }
    }

    /// A grid disk that was being dropped goes on after all: what is under way may have been refused meanwhile.
    pub(super) fn reopened(&mut self, id: u64) {
        if let Some(disk) = self.disks.get_mut(&id) {
            disk.closing = self.stopping;
        }
        self.requests
            .values_mut()
            .filter(|request| request.disk == id)
            .for_each(|request| request.begun_closing = true);
    }

    /// The process died: its requests with it. Grid disks of which a device `loses` power lose what was not flushed.
    pub(super) fn process_died(&mut self, loses: impl Fn(&BookDisk) -> bool) {
        self.stopping = false;
        // Those of other hosts wait for the next process.
        self.requests.retain(|_, request| request.session.is_none());
        self.sessions.clear();
        for disk in self.disks.values_mut() {
            let loses = loses(disk);
            disk.settle();
            // Nobody was told, and nobody is left to be.
            (disk.told, disk.told_late) = (0, 0);
            let flash_dropped = std::mem::take(&mut disk.flash_dropped);
            if disk.doubt.take().is_some_and(|doubt| doubt.open) || flash_dropped {
                disk.model.lose_unflushed(&EVERYWHERE);
            }
            disk.served = None;
            disk.closing = false;
            disk.limit = disk.model.size_bytes();
            disk.flushed = disk.acked;
            disk.flushing = None;
            // Changes without a host happened or did not, from here on.
            disk.orphans.clear();
            match self.is_far && !disk.exposed {
                // Hosts have kept what was not flushed, and all of their requests go on.
                true => {}
                false if loses => disk.model.power_cut(),
                false => disk.model.process_kill(),
            }
        }
    }

    /// A process serves: what waited for it has waited for nobody else.
    pub(super) fn life_begins(&mut self, now: Instant) {
        self.requests.values_mut().for_each(|request| request.begun = now);
    }

    /// Whether the device of a host has a change of a place of `range` under way.
    pub(super) fn is_changing(&self, id: u64, verb: Verb, range: &Range<u64>) -> bool {
        self.requests.values().any(|r| r.disk == id && super::far::excludes(r, verb, range))
    }

    /// The host of a grid disk has died, with what it kept.
    pub(super) fn host_died(&mut self, id: u64) {
        let Some(disk) = self.disks.get_mut(&id) else { return };
        disk.exposed = true;
        std::mem::take(&mut disk.doubtful).into_iter().for_each(|(_, op)| disk.fail(op));
        std::mem::take(&mut disk.repeated).into_iter().for_each(|(_, op)| disk.model.ack(op));
        let under_way: Vec<u64> =
            self.requests.iter().filter(|(_, r)| r.disk == id).map(|(&number, _)| number).collect();
        for request in under_way.iter().filter_map(|number| self.requests.remove(number)) {
            match request.part {
                Part::Read(read) => disk.model.read_dropped(read),
                Part::Change(op) => disk.orphans.push(op),
                Part::Flush(flush) => disk.model.flush_fail(flush),
                Part::Other => {}
            }
        }
    }

    /// Another host asks for a FLUSH of what the dead one has left.
    pub(super) fn successor_flushes(&mut self, id: u64) -> Option<FlushId> {
        self.disks.get_mut(&id).map(|disk| disk.model.flush_begin())
    }

    /// Another host has taken the place of a dead one. Without a `flush` that succeeded it was told that writes may be lost.
    pub(super) fn succeeded_host(&mut self, id: u64, flush: Option<FlushId>) {
        let Some(disk) = self.disks.get_mut(&id) else { return };
        disk.exposed = false;
        std::mem::take(&mut disk.orphans).into_iter().for_each(|op| disk.fail(op));
        match flush {
            Some(flush) => {
                disk.model.flush_ack(flush);
                disk.flushed = disk.flushed.max(disk.acked);
            }
            None => disk.model.lose_unflushed(&EVERYWHERE),
        }
    }

    /// Sessions of a grid disk are closed.
    pub(super) fn disconnect(&mut self, id: u64) {
        self.sessions.retain(|(_, disk), _| *disk != id);
    }

    /// The oldest requests under way, in words.
    pub(super) fn oldest_requests(&self, count: usize) -> Vec<String> {
        let mut all: Vec<&Request> = self.requests.values().collect();
        all.sort_by_key(|r| r.begun);
        all.into_iter().take(count).map(|r| format!("{r:?}")).collect()
    }

    /// The oldest request under way that satisfies `counts`.
    pub(super) fn oldest(&self, counts: impl Fn(&BookDisk, &Request) -> bool) -> Option<&Request> {
        let relevant = |r: &&Request| self.disks.get(&r.disk).is_some_and(|d| counts(d, r));
        self.requests.values().filter(relevant).min_by_key(|r| r.begun)
    }
}
