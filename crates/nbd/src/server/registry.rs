//! Who is connected: for stopping, for time-outs, and for taking back what is lent.
//!
//! Never touches a request; closing a connection is all it does to one.

use super::Chosen;
use super::FrontEndLimits;
use super::account::{Account, Kind, Pools};
use super::door::{Client, Proof};
use super::kin::{Kin, Predecessors};
use super::limits::Sabotage;
use crate::context::Lineage;
use cell::Fence;
use device::sync::{Notify, lock};
use device::{Clock, Conn, HangUp, Listener};
use futures_util::task::AtomicWaker;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// How often time-outs are looked at; they are that coarse.
pub(super) const TICK: Duration = Duration::from_secs(1);
/// A payload must come at least this fast, besides the stall time-out: it holds memory while it comes.
const PAYLOAD_BYTES_PER_TICK_MIN: u64 = 64 * 1024;
/// Ticks for the requests under way and their replies when a client's leave is withdrawn.
const WITHDRAWN_TICKS: u64 = 10;
/// What a client must take or send within the borrowers' time-out to have made progress: less than the sockets hold by themselves.
const PROGRESS_BYTES_MIN: u64 = 64 * 1024;
const NEVER: u64 = u64::MAX;
/// In place of the order of strangers: it is none.
const KNOWN: u64 = u64::MAX;

/// Who a session serves, and what.
pub(super) struct Standing {
    pub(super) client: Client,
    pub(super) disk: Arc<cell::GridDisk>,
}

/// A session's place among the links of its client to a grid disk.
struct Place {
    lineage: Lineage,
    grid_disk: String,
    /// The sessions of earlier links that were there when it came.
    after: Vec<u64>,
}

/// A session as others see it.
pub(super) struct Handle {
    id: u64,
    conn: Arc<dyn Conn>,
    stop: AtomicBool,
    established: AtomicBool,
    /// Has not said yet who it is, where a certificate is due: the later it came, or came further, the larger. [`KNOWN`] once it has.
    stranger: AtomicU64,
    standing: OnceLock<Standing>,
    place: OnceLock<Place>,
    /// A later link of the client is there.
    superseded: AtomicBool,
    waker: AtomicWaker,
    /// Whether changes of it may begin.
    fence: Arc<Fence>,
    /// The client's connections to the grid disk.
    kin: OnceLock<Arc<Kin>>,
    /// The client has said goodbye: what it has asked for before is carried out.
    disconnected: AtomicBool,
    /// The client neither sends nor takes anything any more.
    hung_up: AtomicBool,
    sabotage: Option<Sabotage>,
    now: Arc<AtomicU64>,
    stall_ticks: u64,
    /// Ticks at which what is under way must be over.
    receive_until: AtomicU64,
    send_until: AtomicU64,
    /// Set when its leave is withdrawn.
    end_until: AtomicU64,
    account: Arc<Account>,
    /// Payload bytes received and reply bytes sent.
    moved: AtomicU64,
    /// When the client was last seen to make progress, and how many bytes had moved by then. For the sweeper alone.
    progress: Mutex<(u64, u64)>,
    cut_off: AtomicBool,
}

impl Handle {
    /// The client is known.
    pub(super) fn known(&self) {
        self.stranger.store(KNOWN, Ordering::Relaxed);
    }

    fn is_stranger(&self) -> bool {
        self.stranger.load(Ordering::Relaxed) != KNOWN
    }

    /// What it holds.
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// So many bytes have been received or sent.
    pub(super) fn has_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The number of the current [`TICK`].
    pub(super) fn tick(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Whether it was closed because it kept from others what it had borrowed.
    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// For how many ticks the client has made no progress that it could have made: while we do not wait for it, it need not.
    fn idle_ticks(&self, now: u64) -> u64 {
        let awaited = [&self.receive_until, &self.send_until].into_iter().any(|at| at.load(Ordering::Relaxed) != NEVER);
        let moved = self.moved.load(Ordering::Relaxed);
        let mut progress = lock(&self.progress);
        if !awaited || moved >= progress.1 + PROGRESS_BYTES_MIN {
            *progress = (now, moved);
        }
        now - progress.0
    }

    /// Whether its changes may begin.
    pub(super) fn fence(&self) -> &Arc<Fence> {
        &self.fence
    }

    /// The client sends nothing more. Its later changes on other connections wait for all it has sent.
    pub(super) fn leaves(&self) {
        if let Some(kin) = self.kin.get() {
            kin.leaves(&self.fence);
        }
    }

    /// The client has said goodbye, which leaves what it has asked for before to be done.
    pub(super) fn disconnects(&self) {
        self.disconnected.store(true, Ordering::Release);
        self.leaves();
    }

    /// The client neither sends nor takes anything any more. Its session reads what has come as far as it can at once, for a goodbye that may be in it, and then
    /// the connection [ends](Handle::ends).
    fn hangs_up(&self) {
        self.leaves();
        self.hung_up.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the client neither sends nor takes anything any more.
    pub(super) fn has_hung_up(&self) -> bool {
        self.hung_up.load(Ordering::Acquire)
    }

    /// Replies cannot be sent. A client that may still send is not waited for.
    pub(super) fn cannot_send(&self) {
        match self.conn.hang_up() {
            Some(HangUp::Both) => self.hangs_up(),
            Some(HangUp::Sending) | None => self.ends(),
        }
    }

    /// The connection has ended: of what its client has sent nothing begins any more, unless it has said goodbye.
    pub(super) fn ends(&self) {
        self.leaves();
        if !self.disconnected.load(Ordering::Acquire)
            && !self.fence.is_closed()
            && self.sabotage != Some(Sabotage::DeadClientsGoOn)
        {
            self.fence.close();
            self.waker.wake();
        }
    }

    /// Whether its client sends nothing more, and may still take replies.
    fn has_left(&self) -> bool {
        !self.fence.is_closed() && self.kin.get().is_some_and(|kin| kin.has_left(&self.fence))
    }

    /// Close it from this side.
    fn close(&self) {
        self.ends();
        self.conn.close();
    }

    /// Look whether the client has ended it.
    fn look(&self) {
        match self.conn.hang_up() {
            None => {}
            Some(HangUp::Sending) => self.leaves(),
            Some(HangUp::Both) => self.hangs_up(),
        }
    }

    /// Wait for the client to end it, in one direction at least. Where that is one, [`Registry::sweep`] looks for the other.
    pub(super) async fn watch(&self) {
        self.conn.hung_up().await;
        self.look();
    }

    /// What has to be over before a change of the client that has just been received begins.
    pub(super) fn predecessors(&self, clock: &Arc<dyn Clock>, limits: &FrontEndLimits) -> Option<Box<Predecessors>> {
        if limits.sabotage == Some(Sabotage::NewcomersDoNotWait) {
            return None;
        }
        self.kin.get()?.predecessors(&self.fence, clock, limits.predecessor_timeout)
    }

    /// The handshake is over.
    pub(super) fn established(&self, standing: Standing) {
        // Once a session.
        let _ = self.standing.set(standing);
        self.established.store(true, Ordering::Release);
        self.receive_until.store(NEVER, Ordering::Relaxed);
        // A stop between the two stores of `Registry::stop` and this has closed the connection already.
    }

    /// Whether the session shall end. Registers `waker` for when it shall.
    pub(super) fn stopping(&self, waker: &std::task::Waker) -> bool {
        self.waker.register(waker);
        self.stop.load(Ordering::Acquire)
    }

    /// A payload of `bytes` is due, from when this was first said on.
    pub(super) fn payload_due(&self, bytes: u64) {
        if self.receive_until.load(Ordering::Relaxed) != NEVER {
            return;
        }
        let ticks = self.stall_ticks + bytes / PAYLOAD_BYTES_PER_TICK_MIN;
        self.receive_until.store(self.now.load(Ordering::Relaxed) + ticks, Ordering::Relaxed);
    }

    /// The payload is there.
    pub(super) fn payload_done(&self) {
        self.receive_until.store(NEVER, Ordering::Relaxed);
    }

    /// A batch of replies is being sent.
    pub(super) fn send_due(&self) {
        self.send_until.store(self.now.load(Ordering::Relaxed) + self.stall_ticks, Ordering::Relaxed);
    }

    /// The batch is sent.
    pub(super) fn send_done(&self) {
        self.send_until.store(NEVER, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    changed: Notify,
    now: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    stopping: bool,
    sweeping: bool,
    next_id: u64,
    /// Of the next stranger, or of one that comes further.
    next_stranger: u64,
    sessions: BTreeMap<u64, Arc<Handle>>,
    /// By client, where it comes from if it has shown nothing, and grid disk.
    kin: BTreeMap<(String, String, String), Weak<Kin>>,
    listeners: Vec<Arc<dyn Listener>>,
}

impl State {
    fn next_stranger(&mut self) -> u64 {
        self.next_stranger += 1;
        self.next_stranger - 1
    }
}

/// A connection that is known.
pub(super) struct Added {
    pub(super) handle: Arc<Handle>,
    /// A sweeper is to be started.
    pub(super) starts_sweeper: bool,
    /// A stranger had to leave for it.
    pub(super) crowded: bool,
}

impl Registry {
    /// Know a listener; false when everything is stopping.
    pub(super) fn add_listener(&self, listener: Arc<dyn Listener>) -> bool {
        let mut state = lock(&self.state);
        if !state.stopping {
            state.listeners.push(listener);
        }
        !state.stopping
    }

    pub(super) fn remove_listener(&self, listener: &Arc<dyn Listener>) {
        lock(&self.state).listeners.retain(|l| !Arc::ptr_eq(l, listener));
        self.changed.notify_all();
    }

    /// Know a connection; `stranger`: it has to prove who it is first. Where there are too many strangers, one leaves for it. None when
    /// everything is stopping.
    pub(super) fn add(
        &self,
        conn: Arc<dyn Conn>,
        pools: &Pools,
        stranger: bool,
        limits: &FrontEndLimits,
    ) -> Option<Added> {
        let ticks = |d: Duration| d.as_secs().max(1) + 1;
        let mut leaving = None;
        let mut state = lock(&self.state);
        if state.stopping {
            return None;
        }
        if stranger {
            let strangers = state.sessions.values().filter(|handle| handle.is_stranger());
            leaving = crowding(strangers, limits.unproven_max).cloned();
            // It is counted no more, though it may take a moment to go.
            leaving.iter().for_each(|handle| handle.known());
        }
        let id = state.next_id;
        state.next_id += 1;
        let order = if stranger { state.next_stranger() } else { KNOWN };
        let handle = Arc::new(Handle {
            id,
            conn,
            stop: AtomicBool::new(false),
            established: AtomicBool::new(false),
            stranger: AtomicU64::new(order),
            standing: OnceLock::new(),
            place: OnceLock::new(),
            superseded: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            fence: Fence::new(),
            kin: OnceLock::new(),
            disconnected: AtomicBool::new(false),
            hung_up: AtomicBool::new(false),
            sabotage: limits.sabotage,
            now: self.now.clone(),
            stall_ticks: ticks(limits.stall_timeout),
            receive_until: AtomicU64::new(self.now.load(Ordering::Relaxed) + ticks(limits.handshake_timeout)),
            send_until: AtomicU64::new(NEVER),
            end_until: AtomicU64::new(NEVER),
            account: Account::new(pools.clone()),
            moved: AtomicU64::new(0),
            progress: Mutex::new((self.now.load(Ordering::Relaxed), 0)),
            cut_off: AtomicBool::new(false),
        });
        state.sessions.insert(id, handle.clone());
        let starts_sweeper = !std::mem::replace(&mut state.sweeping, true);
        drop(state);
        leaving.iter().for_each(|handle| handle.close());
        Some(Added { handle, starts_sweeper, crowded: leaving.is_some() })
    }

    /// A stranger has come further with showing who it is: others leave before it.
    pub(super) fn proceeds(&self, handle: &Handle) {
        let mut state = lock(&self.state);
        if handle.is_stranger() {
            handle.stranger.store(state.next_stranger(), Ordering::Relaxed);
        }
    }

    /// Let a connection have a place among those of its client to a grid disk, and look which of them have ended by now: a client comes again
    /// when its last connection has broken, and the news of that may be behind.
    pub(super) fn join(&self, handle: &Arc<Handle>, client: &Client, grid_disk: &str) {
        // What has shown nothing is known by where it comes from.
        let place = match client.proof {
            Proof::Nothing => super::hosts::name_of(&handle.conn.peer()),
            Proof::User | Proof::Certificate(_) => String::new(),
        };
        let (kin, relatives) = {
            let mut state = lock(&self.state);
            state.kin.retain(|_, kin| kin.strong_count() > 0);
            let key = (client.who.clone(), place, grid_disk.to_owned());
            let known = state.kin.get(&key).and_then(Weak::upgrade);
            let kin = known.unwrap_or_default();
            state.kin.insert(key, Arc::downgrade(&kin));
            let same = |other: &&Arc<Handle>| other.kin.get().is_some_and(|theirs| Arc::ptr_eq(theirs, &kin));
            let relatives: Vec<_> = state.sessions.values().filter(same).cloned().collect();
            (kin, relatives)
        };
        relatives.iter().for_each(|relative| relative.look());
        // Once a session.
        let _ = handle.kin.set(kin);
        handle.look();
    }

    pub(super) fn remove(&self, handle: &Handle) {
        // Nothing of it is under way any more.
        handle.fence.close();
        if let Some(kin) = handle.kin.get() {
            kin.forget(&handle.fence);
        }
        lock(&self.state).sessions.remove(&handle.id);
        self.changed.notify_all();
    }

    /// A tick has passed: close what is overdue, and who keeps from others what is lent. None when there is nobody left to watch.
    pub(super) fn sweep(&self, pools: &Pools, limits: &FrontEndLimits) -> Option<Swept> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let sessions: Vec<Arc<Handle>> = {
            let mut state = lock(&self.state);
            if state.sessions.is_empty() {
                state.sweeping = false;
                return None;
            }
            state.sessions.values().cloned().collect()
        };
        // Of a client that sends nothing more nobody tells when it takes nothing more.
        sessions.iter().filter(|h| h.has_left()).for_each(|h| h.look());
        let late = |h: &Handle| {
            [&h.receive_until, &h.send_until, &h.end_until].iter().any(|until| until.load(Ordering::Relaxed) < now)
        };
        let overdue: Vec<&Arc<Handle>> = sessions.iter().filter(|h| late(h)).collect();
        let kept: Vec<&Arc<Handle>> = {
            let over = Kind::ALL.map(|kind| Over::look(kind, &sessions, pools));
            let keeps = |h: &Handle| over.iter().any(|over| over.is_kept_by(&h.account));
            let ticks = limits.borrower_timeout.as_secs().max(1);
            // Everybody's progress is looked at, whoever holds what.
            sessions.iter().filter(|h| h.idle_ticks(now) >= ticks && keeps(h)).collect()
        };
        kept.iter().for_each(|handle| handle.cut_off.store(true, Ordering::Relaxed));
        for handle in overdue.iter().chain(&kept) {
            handle.close();
            // Counted once.
            handle.payload_done();
            handle.send_done();
            handle.end_until.store(NEVER, Ordering::Relaxed);
        }
        Some(Swept { overdue: overdue.len() as u64, kept: kept.len() as u64 })
    }

    /// End every session that `holds` does not hold for: it reads no further request, and what is under way ends and is answered, within
    /// [`WITHDRAWN_TICKS`]. Returns client and grid disk of each.
    pub(super) fn withdraw(&self, holds: &dyn Fn(&Standing) -> bool) -> Vec<(String, String)> {
        let sessions: Vec<Arc<Handle>> = lock(&self.state).sessions.values().cloned().collect();
        let mut ended = Vec::new();
        for handle in sessions {
            let Some(standing) = handle.standing.get() else { continue };
            if holds(standing) || handle.stop.swap(true, Ordering::AcqRel) {
                continue;
            }
            handle.end_until.store(self.now.load(Ordering::Relaxed) + WITHDRAWN_TICKS, Ordering::Relaxed);
            handle.waker.wake();
            ended.push((standing.client.who.clone(), standing.disk.name()));
        }
        ended
    }

    /// Take the place of the client's earlier links to the grid disk: they are read no more. To be called before the client hears that it is connected:
    /// whatever it asks for on a link, that link is known by then, and which of two is the later.
    pub(super) fn supersede(&self, handle: &Handle, chosen: &Chosen) {
        let Some(lineage) = chosen.lineage else { return };
        let grid_disk = chosen.export.grid_disk.clone();
        let predecessors: Vec<Arc<Handle>> = {
            let state = lock(&self.state);
            let is_earlier = |place: &Place| {
                let Lineage { client, link } = place.lineage;
                client == lineage.client && link != lineage.link && place.grid_disk == grid_disk
            };
            let earlier = |other: &&Arc<Handle>| other.id != handle.id && other.place.get().is_some_and(is_earlier);
            let earlier: Vec<_> = state.sessions.values().filter(earlier).cloned().collect();
            earlier.iter().for_each(|handle| handle.superseded.store(true, Ordering::Release));
            // Once a session.
            let after = earlier.iter().map(|handle| handle.id).collect();
            let _ = handle.place.set(Place { lineage, grid_disk, after });
            earlier
        };
        predecessors.iter().for_each(|handle| handle.close());
        // One that waits itself does so for nothing.
        self.changed.notify_all();
    }

    /// Wait until all that the earlier links had asked for is done. False: nothing of this one may be read, since another has taken its place meanwhile, or all is
    /// stopping.
    pub(super) async fn succeed(&self, handle: &Handle) -> bool {
        loop {
            let ticket = self.changed.ticket();
            if handle.superseded.load(Ordering::Acquire) {
                return false;
            }
            let waits = handle.place.get().is_some_and(|place| {
                let state = lock(&self.state);
                place.after.iter().any(|id| state.sessions.contains_key(id))
            });
            if !waits {
                return true;
            }
            if handle.stop.load(Ordering::Acquire) {
                return false;
            }
            self.changed.wait(ticket).await;
        }
    }

    /// Close the listeners and tell every session to end.
    pub(super) fn stop(&self) {
        let (listeners, sessions): (Vec<_>, Vec<_>) = {
            let mut state = lock(&self.state);
            state.stopping = true;
            (state.listeners.clone(), state.sessions.values().cloned().collect())
        };
        listeners.iter().for_each(|l| l.close());
        for handle in sessions {
            handle.stop.store(true, Ordering::Release);
            if !handle.established.load(Ordering::Acquire) {
                handle.conn.close();
            }
            handle.waker.wake();
        }
        self.changed.notify_all();
    }

    /// Ready when nobody is connected and nothing listens.
    pub(super) async fn empty(&self) {
        loop {
            let ticket = self.changed.ticket();
            {
                let state = lock(&self.state);
                if state.sessions.is_empty() && state.listeners.is_empty() {
                    return;
                }
            }
            self.changed.wait(ticket).await;
        }
    }
}

/// Which of the strangers leaves when there are `max`: of the host that has most the one that has come no further for longest. A host with a
/// crowd of them crowds out its own.
fn crowding<'a>(strangers: impl Iterator<Item = &'a Arc<Handle>>, max: usize) -> Option<&'a Arc<Handle>> {
    let strangers: Vec<_> = strangers.collect();
    if strangers.len() < max {
        return None;
    }
    let mut hosts: BTreeMap<String, Vec<&Arc<Handle>>> = BTreeMap::new();
    for handle in strangers {
        hosts.entry(super::hosts::name_of(&handle.conn.peer())).or_default().push(handle);
    }
    hosts.into_values().max_by_key(Vec::len)?.into_iter().min_by_key(|handle| handle.stranger.load(Ordering::Relaxed))
}

/// How many connections a sweep has closed.
pub(super) struct Swept {
    pub(super) overdue: u64,
    /// Because they kept from others what they had borrowed.
    pub(super) kept: u64,
}

/// Who has more than their share of one kind, while others wait.
struct Over {
    kind: Kind,
    share: usize,
    waiting: usize,
}

impl Over {
    fn look(kind: Kind, sessions: &[Arc<Handle>], pools: &Pools) -> Over {
        let count = |which: &dyn Fn(&Account) -> bool| sessions.iter().filter(|h| which(&h.account)).count();
        let share = pools.of(kind).share(count(&|account| account.claims(kind)));
        Over { kind, share, waiting: count(&|account| account.waits(kind)) }
    }

    fn is_kept_by(&self, account: &Account) -> bool {
        account.held(self.kind) > self.share && self.waiting > usize::from(account.waits(self.kind))
    }
}
