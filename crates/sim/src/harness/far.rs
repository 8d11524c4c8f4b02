//! Clients on other hosts: each grid disk is the block device of one host, over a front end, a network and the client that
//! keeps what no FLUSH has covered, as `flashcell attach` has it.
//!
//! Such a host lives through all lives of the cell, and so does what was acknowledged to it: neither a power cut of the
//! cell nor a broken connection loses any of it, nor is a request without an answer because of them. When it dies itself, the
//! next one takes its place: what no FLUSH has covered is made durable under the stamp it was acknowledged under, or is lost
//! and told so.

use super::book::{Answer, Request};
use super::canary::Canary;
use super::machine::Health;
use super::plan::{FarSetup, Verb};
use super::stage::Run;
use crate::executor::Process;
use crate::net::SimNet;
use cell::{Cell, RequestError};
use device::buf::Buf;
use device::sync::{Semaphore, lock};
use device::{Address, Arena, Bufs, Class, FailKind, Io, Op, Outcome, World};
use nbd::client::Standing;
use nbd::{FrontEnd, FrontEndLimits, RemoteDisk, RemoteOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The host of the cell.
pub(super) const CELL: &str = "cell";
const PORT: u16 = 10809;
/// A host waits for its cell for longer than any run takes.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Between two tries to reach a cell that does not serve yet.
const AGAIN: Duration = Duration::from_millis(100);
/// Sectors of the device of a host, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The hosts of the clients.
pub(super) struct Far {
    setup: FarSetup,
    net: Arc<SimNet>,
    /// By grid disk.
    hosts: Mutex<BTreeMap<u64, Arc<Host>>>,
    connecting: Semaphore,
    /// Of those that died and that no other has taken the place of yet: the stamp of the cell it knew, by grid disk.
    dead: Mutex<BTreeMap<u64, Option<u128>>>,
    canary: Option<Canary>,
}

/// A host and its device.
struct Host {
    process: Process,
    disk: RemoteDisk,
    /// The health of its grid disk's disk when it was last told of an error, or came.
    known: Mutex<Health>,
}

fn address() -> Address {
    Address::Tcp { host: CELL.to_owned(), port: PORT }
}

fn host_name(id: u64) -> String {
    format!("host {id}")
}

/// Serve the grid disks of a cell to other hosts, in the cell's process.
pub(super) async fn serve(cell: &Arc<Cell>, world: &World, canary: Option<Canary>) -> FrontEnd {
    let sabotage = canary.and_then(Canary::of_front);
    let limits = FrontEndLimits { connections_max: 256, sabotage, ..FrontEndLimits::default() };
    let front = FrontEnd::new(cell.clone(), world.clone(), Arena::new(8 << 20), limits);
    match world.net.listen(&address()).await {
        Ok(listener) => front.serve(listener),
        Err(error) => panic!("the port of the cell is free: {error}"),
    }
    front
}

impl Far {
    pub(super) fn new(setup: &FarSetup, net: &Arc<SimNet>, canary: Option<Canary>) -> Far {
        Far {
            setup: setup.clone(),
            net: net.clone(),
            hosts: Mutex::default(),
            connecting: Semaphore::new(1),
            dead: Mutex::default(),
            canary,
        }
    }

    fn options(&self, id: u64) -> RemoteOptions {
        let mut options = RemoteOptions {
            connections: self.setup.connections,
            keep_bytes_max: self.setup.keep_bytes_max,
            reconnect_for: WAIT_MAX,
            resend_unanswered: true,
            lineage: Some(u128::from(id) + 1),
            patient: true,
            class: Class::Durable,
            sabotage: self.canary.and_then(Canary::of_client),
            ..RemoteOptions::default()
        };
        options.client.contexts.push("flashcell:instance".to_owned());
        options
    }

    /// Nothing passes between the cell and a host, any of them by `pick`, until [`Far::heal`] with its name.
    pub(super) fn partition(&self, pick: u64, breaks: bool) -> Option<String> {
        let hosts = lock(&self.hosts);
        let at = pick.checked_rem(hosts.len() as u64)?;
        let name = host_name(*hosts.keys().nth(at as usize)?);
        self.net.partition(CELL, &name);
        if breaks {
            self.net.break_between(CELL, &name);
        }
        Some(name)
    }

    pub(super) fn heal(&self, host: &str) {
        self.net.heal(CELL, host);
    }

    /// What a request of a host may have been told of by its error, when it begins now.
    pub(super) fn known(&self, id: u64) -> Option<Health> {
        lock(&self.hosts).get(&id).map(|host| *lock(&host.known))
    }

    /// A request of a host has failed, its disk being in this health.
    pub(super) fn told(&self, id: u64, health: Health) {
        if let Some(host) = lock(&self.hosts).get(&id) {
            *lock(&host.known) = health;
        }
    }
}

impl Run {
    /// The host of a grid disk, which connects when it is first asked for; it waits for a cell that serves it.
    pub(super) async fn host_of(&self, far: &Far, id: u64) -> Option<Process> {
        let known = |far: &Far| lock(&far.hosts).get(&id).map(|host| host.process.clone());
        if let Some(process) = known(far) {
            return Some(process);
        }
        let _turn = far.connecting.acquire(1).await;
        if let Some(process) = known(far) {
            return Some(process);
        }
        let (name, home) = {
            let book = lock(&self.book);
            let disk = book.disks.get(&id)?;
            (disk.name.clone(), disk.home)
        };
        let host = host_name(id);
        let process = self.handle.process(&host);
        // Each knows numbers of its own.
        let world = process.world(far.net.host(&host, &process), &format!("{host}, process {}", process.id()));
        loop {
            match RemoteDisk::connect(&world, &address(), &name, far.options(id)).await {
                Ok(disk) => {
                    self.situations.hit("far: host connected");
                    self.take_place(far, id, &disk).await;
                    let known = self.machine.health(home, self.now()).into();
                    lock(&far.hosts).insert(id, Arc::new(Host { process: process.clone(), disk, known }));
                    return Some(process);
                }
                Err(_) if lock(&self.turns).is_over() || self.broken() => return None,
                Err(_) => self.sleep(AGAIN).await,
            }
        }
    }

    /// A host that has just connected takes the place of one that died, if one did: what that one had under way is over by then.
    async fn take_place(&self, far: &Far, id: u64, disk: &RemoteDisk) {
        let Some(stamp) = lock(&far.dead).get(&id).copied() else { return };
        let flush = lock(&self.book).successor_flushes(id);
        let is_durable = match stamp {
            Some(stamp) => disk.flush_under(stamp).await,
            None => false,
        };
        self.situations.hit(match is_durable {
            true => "far: what a dead host left un-flushed is made durable",
            false => "far: what a dead host left un-flushed is told lost",
        });
        lock(&self.book).succeeded_host(id, flush.filter(|_| is_durable));
        lock(&far.dead).remove(&id);
    }

    /// A host dies, any of them by `pick`: what it has under way gets no answer, and what it kept is gone.
    pub(super) fn host_dies(&self, pick: u64) {
        let Some(far) = &self.far else { return };
        let gone = {
            let mut hosts = lock(&far.hosts);
            let id = pick.checked_rem(hosts.len() as u64).and_then(|at| hosts.keys().nth(at as usize).copied());
            id.and_then(|id| Some((id, hosts.remove(&id)?)))
        };
        let Some((id, host)) = gone else { return };
        self.situations.hit("far: host died");
        let stamp = match host.disk.standing() {
            Standing::Up { stamp } => stamp,
            Standing::Waiting | Standing::Dead => None,
        };
        lock(&far.dead).insert(id, stamp);
        lock(&self.book).host_died(id);
        host.process.kill();
    }

    /// Nothing passes between the cell and one of the hosts for a time.
    pub(super) fn partition(self: &Arc<Self>, pick: u64, time: Duration, breaks: bool) {
        let Some(host) = self.far.as_ref().and_then(|far| far.partition(pick, breaks)) else { return };
        self.situations.hit("far: nothing passes between a host and the cell");
        self.machine.not_heard_until(self.now().after(time));
        self.later(time, move |run| run.far.iter().for_each(|far| far.heal(&host)));
    }

    /// What a request touches on the device of a host: whole sectors, and no more than one transfer.
    pub(super) fn fitted(&self, range: Range<u64>) -> Range<u64> {
        let Some(far) = &self.far else { return range };
        let start = range.start / SECTOR_BYTES * SECTOR_BYTES;
        let end = range.end.next_multiple_of(SECTOR_BYTES);
        start..end.min(start + far.setup.keep_bytes_max as u64 / 2)
    }

    /// Ask a host's device.
    pub(super) async fn ask_host(&self, far: &Far, id: u64, verb: Verb, range: Range<u64>, bytes: &[u8]) -> FarAnswer {
        let host = lock(&far.hosts).get(&id).cloned();
        let Some(host) = host else { panic!("a host is there before it is asked") };
        let before = host.disk.standing();
        let answer = ask(&host.disk, verb, range, bytes).await;
        if host.disk.standing() != before {
            self.situations.hit("far: request under way while its host connects again");
        }
        answer
    }
}

type FarAnswer = Result<Answer, RequestError>;

async fn ask(disk: &RemoteDisk, verb: Verb, range: Range<u64>, bytes: &[u8]) -> FarAnswer {
    let (offset, len) = (range.start, range.end - range.start);
    let op = match verb {
        Verb::Read => Op::Read { offset, bufs: Bufs::from(Buf::zeroed(len as usize)) },
        Verb::Write { fua } => Op::Write { offset, data: Bufs::from(Buf::padded(bytes, 1)).freeze(), fua },
        Verb::Zeroes { fast: true, .. } => return answer(disk.zero_fast(offset, len).await),
        Verb::Zeroes { fua, no_hole, .. } => Op::WriteZeroes { offset, len, fua, may_unmap: !no_hole },
        Verb::Trim { .. } => Op::Discard { offset, len },
        Verb::Flush => Op::Flush,
        Verb::Status => Op::Status { offset, len },
        Verb::Prefetch | Verb::Offer | Verb::BeyondEnd { .. } => unreachable!("a block device has no such request"),
    };
    answer(disk.submit(op).await)
}

fn answer(completed: device::Completed) -> FarAnswer {
    match completed.outcome {
        Outcome::Done if completed.bufs.len_bytes() > 0 => {
            Ok(Answer::Bytes(completed.bufs.to_vec(0..completed.bufs.len_bytes())))
        }
        Outcome::Done => Ok(Answer::Done),
        Outcome::Failed(FailKind::NoSpace) => Err(RequestError::NoSpace),
        Outcome::Failed(FailKind::Unsupported) => Err(RequestError::NotSupported),
        Outcome::Failed(FailKind::Invalid) => Err(RequestError::OutOfRange),
        // A device whose cell comes back is never given up, and a request never without an outcome.
        Outcome::Failed(FailKind::Gone) | Outcome::Unknown => Err(RequestError::Fenced),
        Outcome::Failed(_) | Outcome::Short(_) => Err(RequestError::Io),
    }
}

/// Whether two requests may be under way at a time on the device of a host: not two changes of one place.
pub(super) fn excludes(a: &Request, verb: Verb, range: &Range<u64>) -> bool {
    let changes = |v: Verb| matches!(v, Verb::Write { .. } | Verb::Zeroes { .. } | Verb::Trim { .. });
    changes(a.verb) && changes(verb) && a.range.start < range.end && range.start < a.range.end
}
