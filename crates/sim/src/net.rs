//! The network: byte streams between the hosts of the virtual world.
//!
//! A stream is cut into packets of any size, each delayed, in order; a receiver gets any number of the bytes that have
//! arrived. Connections break at any byte; hosts are partitioned (packets wait), go dark (the other side is never told:
//! half-open) and come back (the other side is told on its next traffic). A killed process's connections are closed or
//! broken, as its kernel would. Unix sockets are seen on their own host only.
//!
//! Never loses or reorders bytes within a connection that lives, never copies beyond a connection's window.

mod link;

use crate::disk::Span;
use crate::executor::{EventSink, Handle, Process};
use crate::situations::Situations;
use crate::trace::Trace;
use device::sync::lock;
use device::{Address, Buf, Clock, Conn, Credentials, HangUp, Instant, Listener, Net, NetError, Prng, SharedBufs};
use link::{Answer, Link};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Connections that wait to be accepted by one listener; the kernel's limit is of that kind.
pub const BACKLOG_MAX: usize = 4096;
/// Connections at once.
pub const LINKS_MAX: usize = 1 << 17;
/// The first port given to a listener that asks for any.
const PORT_FIRST: u16 = 49152;

/// How a network behaves while nothing is wrong.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// How long a packet takes.
    pub delay: Span,
    /// Bytes under way or not yet received in one direction before a sender waits.
    pub window_bytes: usize,
    /// Largest packet; each is of any size up to this.
    pub packet_bytes_max: usize,
    /// A receiver gets any number of the bytes that arrived, not all it has room for.
    pub partial_receives: bool,
    /// Chance per million packets that the connection breaks at any of its bytes.
    pub break_ppm: u32,
}

impl NetConfig {
    /// No delay, packets as they are sent: for measurements.
    #[must_use]
    pub fn plain() -> NetConfig {
        NetConfig {
            delay: Span::new(0, 0),
            window_bytes: 256 << 10,
            packet_bytes_max: 64 << 10,
            partial_receives: false,
            break_ppm: 0,
        }
    }

    /// Drawn from `prng`: from whole messages to single bytes, windows down to a page. Connections do not break by
    /// themselves.
    #[must_use]
    pub fn random(prng: &mut Prng) -> NetConfig {
        NetConfig {
            delay: Span::new(0, [0, 5_000, 200_000, 2_000_000][prng.below(4) as usize]),
            window_bytes: 4096 << prng.below(7),
            packet_bytes_max: [7, 100, 1460, 9000, 65536, 65536][prng.below(6) as usize],
            partial_receives: prng.chance(1, 2),
            break_ppm: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Unix(String, PathBuf),
    Tcp(String, u16),
}

#[derive(Default)]
struct Waiting {
    links: VecDeque<u64>,
    acceptor: Option<Waker>,
    process: u64,
    number: u64,
}

struct State {
    config: NetConfig,
    prng: Prng,
    listeners: BTreeMap<Place, Waiting>,
    links: BTreeMap<u64, Link>,
    next: u64,
    next_port: u16,
    /// Pairs of hosts between which nothing passes, the lesser name first.
    partitions: BTreeSet<(String, String)>,
    dark: BTreeSet<String>,
    /// Who waits for a partition to end.
    waiting: Vec<Waker>,
}

/// A simulated network. See the module's head.
pub struct SimNet {
    handle: Handle,
    trace: Trace,
    situations: Situations,
    state: Mutex<State>,
}

impl SimNet {
    /// A network without hosts.
    #[must_use]
    pub fn new(config: NetConfig, handle: &Handle, situations: &Situations) -> Arc<SimNet> {
        assert!(config.window_bytes > 0 && config.packet_bytes_max > 0, "streams need room");
        let state = State {
            config,
            prng: handle.prng("net"),
            listeners: BTreeMap::new(),
            links: BTreeMap::new(),
            next: 1,
            next_port: PORT_FIRST,
            partitions: BTreeSet::new(),
            dark: BTreeSet::new(),
            waiting: Vec::new(),
        };
        let (handle, trace, situations) = (handle.clone(), handle.trace(), situations.clone());
        Arc::new(SimNet { handle, trace, situations, state: Mutex::new(state) })
    }

    /// The network as a process on host `host` sees it. `localhost`, loopback and any-addresses mean that host; other
    /// TCP host names are names of hosts.
    #[must_use]
    pub fn host(self: &Arc<Self>, host: &str, process: &Process) -> Arc<dyn Net> {
        let (net, id) = (self.clone(), process.id());
        process.on_kill(move || net.process_died(id));
        Arc::new(Host { net: self.clone(), name: host.to_owned(), process: process.clone() })
    }

    /// Nothing passes between two hosts until [`SimNet::heal`]; what is under way waits, nobody is told.
    pub fn partition(&self, a: &str, b: &str) {
        self.situations.hit("net: partition");
        lock(&self.state).partitions.insert(pair(a, b));
    }

    /// The partition between two hosts ends; what was under way arrives, and connections that broke behind it are
    /// found broken.
    pub fn heal(&self, a: &str, b: &str) {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.partitions.remove(&pair(a, b));
        let mut wake = std::mem::take(&mut state.waiting);
        let dark = &state.dark;
        let between = |l: &&mut Link| pair(&l.hosts[0], &l.hosts[1]) == pair(a, b);
        let lit = |l: &&mut Link| l.severed && !l.hosts.iter().any(|h| dark.contains(h));
        state.links.values_mut().filter(between).filter(lit).for_each(|l| l.break_up(&mut wake));
        drop(guard);
        wake.into_iter().for_each(Waker::wake);
        self.deliver_all();
    }

    /// Break every connection between two hosts now: what is under way is gone. Behind a partition both sides are told
    /// when it ends.
    pub fn break_between(&self, a: &str, b: &str) {
        let mut wake = Vec::new();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let hidden = state.unreachable(a, b);
        for link in state.links.values_mut().filter(|l| pair(&l.hosts[0], &l.hosts[1]) == pair(a, b)) {
            if hidden {
                link.severed = true
            } else {
                link.break_up(&mut wake)
            }
            self.situations.hit("net: connection broken");
        }
        drop(guard);
        wake.into_iter().for_each(Waker::wake);
    }

    /// A connection breaks after `bytes` more bytes of the client's stream (`direction` 0) or the server's (1) were
    /// sent and arrived; false when it is gone already.
    pub fn break_after(&self, link: LinkId, direction: usize, bytes: u64) -> bool {
        let mut state = lock(&self.state);
        let Some(link) = state.links.get_mut(&link.0) else { return false };
        link.pipes[direction % 2].bytes_left = Some(bytes);
        true
    }

    /// The connections that live, oldest first.
    #[must_use]
    pub fn links(&self) -> Vec<LinkId> {
        lock(&self.state)
            .links
            .iter()
            .filter(|(_, l)| !l.is_closed(0) && !l.is_closed(1))
            .map(|(&n, _)| LinkId(n))
            .collect()
    }

    /// A host loses power: its listeners are gone, its connections are half-open for the others. Call it before its
    /// processes are killed.
    pub fn host_down(&self, host: &str) {
        let mut state = lock(&self.state);
        self.situations.hit("net: host went dark");
        state.dark.insert(host.to_owned());
        state.listeners.retain(|place, _| place.host() != host);
        state.links.values_mut().filter(|l| l.hosts.iter().any(|h| h == host)).for_each(|l| l.severed = true);
    }

    /// A host is back: whoever still has a connection to its former life is told that it broke.
    pub fn host_up(&self, host: &str) {
        let mut wake = Vec::new();
        let mut state = lock(&self.state);
        state.dark.remove(host);
        for link in state.links.values_mut().filter(|l| l.severed && l.hosts.iter().any(|h| h == host)) {
            link.break_up(&mut wake);
            self.situations.hit("net: half-open connection found broken");
        }
        wake.append(&mut state.waiting);
        drop(state);
        wake.into_iter().for_each(Waker::wake);
    }

    fn process_died(self: &Arc<Self>, process: u64) {
        let mut wake = Vec::new();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        state.listeners.retain(|_, l| l.process != process);
        let of = |l: &Link| l.processes.contains(&process);
        let numbers: Vec<u64> = state.links.iter().filter(|(_, l)| of(l)).map(|(&n, _)| n).collect();
        for number in numbers {
            let Some(link) = state.links.get(&number) else { continue };
            let hidden = state.unreachable(&link.hosts[0], &link.hosts[1]);
            let dead: Vec<usize> = (0..2).filter(|&e| link.processes[e] == process && !link.is_closed(e)).collect();
            for end in dead {
                let breaks = state.prng.chance(1, 2);
                if let Some(link) = state.links.get_mut(&number)
                    && breaks
                    && !link.severed
                {
                    if hidden {
                        link.severed = true
                    } else {
                        link.break_up(&mut wake)
                    }
                    self.situations.hit("net: death of a process breaks a connection");
                }
                self.close_locked(state, number, end, &mut wake);
            }
        }
        drop(guard);
        wake.into_iter().for_each(Waker::wake);
    }

    fn deliver_all(&self) {
        let now_ns = self.handle.now().0;
        let mut wake = Vec::new();
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let numbers: Vec<u64> = state.links.keys().copied().collect();
        for number in numbers {
            for pipe in 0..2 {
                state.deliver(number, pipe, now_ns, &mut wake);
            }
        }
        drop(guard);
        wake.into_iter().for_each(Waker::wake);
    }

    fn close(self: &Arc<Self>, link: u64, end: usize) {
        let mut wake = Vec::new();
        self.close_locked(&mut lock(&self.state), link, end, &mut wake);
        wake.into_iter().for_each(Waker::wake);
    }

    fn close_locked(self: &Arc<Self>, state: &mut State, link: u64, end: usize, wake: &mut Vec<Waker>) {
        let at = state.arrival(self.handle.now());
        let Some(l) = state.links.get_mut(&link) else { return };
        if let Some(at_ns) = l.close(end, at.0, wake) {
            self.trace.event("net close", [link, end as u64, 0, 0]);
            self.handle.schedule(Instant(at_ns), self.clone(), link << 1 | end as u64);
        }
        if l.is_over() {
            state.links.remove(&link);
        }
    }

    /// Make a connection if somebody listens; none: nothing gets through at present.
    fn try_connect(&self, host: &Host, address: &Address, waker: &Waker) -> Option<Result<Arc<Stream>, NetError>> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let place = host.place(address);
        let other = place.host().to_owned();
        if state.unreachable(&host.name, &other) {
            state.waiting.push(waker.clone());
            return None;
        }
        let refused = || NetError::Refused(address.clone());
        let Some(listener) = state.listeners.get_mut(&place) else { return Some(Err(refused())) };
        if listener.links.len() >= BACKLOG_MAX || state.links.len() >= LINKS_MAX {
            return Some(Err(refused()));
        }
        let number = state.next;
        state.next += 1;
        listener.links.push_back(number);
        let acceptor = listener.acceptor.take();
        let hosts = [host.name.clone(), other];
        let processes = [host.process.id(), listener.process];
        state.links.insert(number, Link::new(hosts, processes));
        self.trace.event("net connect", [number, 0, 0, 0]);
        drop(guard);
        acceptor.into_iter().for_each(Waker::wake);
        Some(Ok(host.stream(number, 0, address.to_string())))
    }
}

/// One connection of a [`SimNet`], for faults by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(u64);

impl State {
    /// When a packet sent now arrives.
    fn arrival(&mut self, now: Instant) -> Instant {
        let span = self.config.delay;
        now.after(Duration::from_nanos(self.prng.between(span.min_ns, span.max_ns)))
    }

    fn unreachable(&self, a: &str, b: &str) -> bool {
        self.partitions.contains(&pair(a, b)) || self.dark.contains(a) || self.dark.contains(b)
    }

    fn deliver(&mut self, number: u64, pipe: usize, now_ns: u64, wake: &mut Vec<Waker>) {
        let Some(link) = self.links.get(&number) else { return };
        if self.unreachable(&link.hosts[0], &link.hosts[1]) {
            return;
        }
        if let Some(link) = self.links.get_mut(&number) {
            link.deliver(pipe, now_ns, wake);
        }
    }
}

impl EventSink for SimNet {
    fn fire(self: Arc<Self>, token: u64) {
        let now_ns = self.handle.now().0;
        let mut wake = Vec::new();
        lock(&self.state).deliver(token >> 1, (token & 1) as usize, now_ns, &mut wake);
        wake.into_iter().for_each(Waker::wake);
    }
}

impl std::fmt::Debug for SimNet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimNet({} connections)", lock(&self.state).links.len())
    }
}

impl Place {
    fn host(&self) -> &str {
        match self {
            Place::Unix(host, _) | Place::Tcp(host, _) => host,
        }
    }
}

/// The network as one process sees it.
#[derive(Clone)]
struct Host {
    net: Arc<SimNet>,
    name: String,
    process: Process,
}

impl Host {
    fn place(&self, address: &Address) -> Place {
        match address {
            Address::Unix(path) => Place::Unix(self.name.clone(), path.clone()),
            Address::Tcp { host, port } => {
                let own = ["localhost", "127.0.0.1", "::1", "0.0.0.0", "::", ""].contains(&host.as_str());
                Place::Tcp(if own { self.name.clone() } else { host.clone() }, *port)
            }
        }
    }

    fn stream(&self, link: u64, end: usize, peer: String) -> Arc<Stream> {
        Arc::new(Stream { net: self.net.clone(), link, end, peer })
    }
}

type NetFuture<T> = device::net::NetFuture<T>;

impl Net for Host {
    fn listen(&self, address: &Address) -> NetFuture<Result<Arc<dyn Listener>, NetError>> {
        let mut state = lock(&self.net.state);
        let mut address = address.clone();
        if let Address::Tcp { port, .. } = &mut address
            && *port == 0
        {
            *port = state.next_port;
            state.next_port = state.next_port.checked_add(1).unwrap_or(PORT_FIRST);
        }
        let place = self.place(&address);
        let result: Result<Arc<dyn Listener>, NetError> = if !self.process.alive() {
            Err(NetError::Closed)
        } else if place.host() != self.name {
            Err(NetError::Errno(format!("cannot bind {address}: not an address of host {}", self.name)))
        } else if state.listeners.contains_key(&place) {
            Err(NetError::InUse(address))
        } else {
            let number = state.next;
            state.next += 1;
            let waiting = Waiting { process: self.process.id(), number, ..Waiting::default() };
            state.listeners.insert(place.clone(), waiting);
            Ok(Arc::new(Door { host: self.clone(), place, number, address }))
        };
        Box::pin(std::future::ready(result))
    }

    fn connect(&self, address: &Address) -> NetFuture<Result<Arc<dyn Conn>, NetError>> {
        let (host, address) = (self.clone(), address.clone());
        Box::pin(async move {
            let at = lock(&host.net.state).arrival(host.net.handle.now());
            let clock: &dyn Clock = &host.process;
            clock.sleep_until(at).await;
            let made = poll_fn(|cx| match host.net.try_connect(&host, &address, cx.waker()) {
                Some(made) => Poll::Ready(made),
                None => Poll::Pending,
            });
            made.await.map(|stream| stream as Arc<dyn Conn>)
        })
    }
}

/// A listening socket.
struct Door {
    host: Host,
    place: Place,
    number: u64,
    address: Address,
}

impl Listener for Door {
    fn accept(&self) -> NetFuture<Result<Arc<dyn Conn>, NetError>> {
        let (host, place, number) = (self.host.clone(), self.place.clone(), self.number);
        Box::pin(poll_fn(move |cx| {
            let mut guard = lock(&host.net.state);
            let state = &mut *guard;
            let Some(listener) = state.listeners.get_mut(&place).filter(|l| l.number == number) else {
                return Poll::Ready(Err(NetError::Closed));
            };
            let Some(link) = listener.links.pop_front() else {
                listener.acceptor = Some(cx.waker().clone());
                return Poll::Pending;
            };
            let client = state.links.get(&link).map_or("gone", |l| l.hosts[0].as_str()).to_owned();
            drop(guard);
            Poll::Ready(Ok(host.stream(link, 1, format!("{client}#{link}")) as Arc<dyn Conn>))
        }))
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn close(&self) {
        let mut state = lock(&self.host.net.state);
        if state.listeners.get(&self.place).is_none_or(|l| l.number != self.number) {
            return;
        }
        let Some(listener) = state.listeners.remove(&self.place) else { return };
        drop(state);
        // Whoever was not accepted yet is turned away.
        for link in listener.links {
            self.host.net.close(link, 1);
        }
        listener.acceptor.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.close();
    }
}

/// One end of a connection.
struct Stream {
    net: Arc<SimNet>,
    link: u64,
    end: usize,
    peer: String,
}

impl Conn for Stream {
    fn receive(&self, buf: Buf) -> NetFuture<(Result<usize, NetError>, Buf)> {
        let (net, number, end) = (self.net.clone(), self.link, self.end);
        let mut buf = Some(buf);
        Box::pin(poll_fn(move |cx| {
            let Some(mut into) = buf.take() else { unreachable!("a receive is awaited once") };
            let mut wake = Vec::new();
            let answer = {
                let mut guard = lock(&net.state);
                let state = &mut *guard;
                let prng = if state.config.partial_receives { Some(&mut state.prng) } else { None };
                match state.links.get_mut(&number) {
                    Some(link) => link.receive(end, &mut into, prng, cx.waker(), &mut wake),
                    None => Answer::Closed,
                }
            };
            wake.into_iter().for_each(Waker::wake);
            match answer {
                Answer::Ready(n) => {
                    net.trace.event("net receive", [number, end as u64, n as u64, 0]);
                    Poll::Ready((Ok(n), into))
                }
                Answer::Closed => Poll::Ready((Err(NetError::Closed), into)),
                Answer::Wait => {
                    buf = Some(into);
                    Poll::Pending
                }
            }
        }))
    }

    fn send(&self, data: SharedBufs) -> NetFuture<Result<(), NetError>> {
        let (net, number, end) = (self.net.clone(), self.link, self.end);
        let mut sent = 0;
        Box::pin(poll_fn(move |cx| {
            while sent < data.len_bytes() {
                let now = net.handle.now();
                let mut guard = lock(&net.state);
                let at = guard.arrival(now).0;
                let State { config, prng, links, .. } = &mut *guard;
                let Some(link) = links.get_mut(&number) else { return Poll::Ready(Err(NetError::Closed)) };
                let room = match link.may_send(end, config.window_bytes, cx.waker()) {
                    Answer::Ready(room) => room,
                    Answer::Closed => return Poll::Ready(Err(NetError::Closed)),
                    Answer::Wait => return Poll::Pending,
                };
                let most = config.packet_bytes_max.min(room).min(data.len_bytes() - sent);
                let n = if prng.chance(1, 2) { most } else { prng.between(1, most as u64) as usize };
                let breaks = config.break_ppm > 0 && prng.chance(u64::from(config.break_ppm), 1_000_000);
                let breaks_after = if breaks { Some(prng.below(n as u64) as usize) } else { None };
                if breaks {
                    net.situations.hit("net: connection broken");
                }
                let at = link.pipes[end].put(&data.to_vec(sent..sent + n), at, breaks_after);
                sent += n;
                drop(guard);
                net.trace.event("net send", [number, end as u64, n as u64, at]);
                net.handle.schedule(Instant(at), net.clone(), number << 1 | end as u64);
            }
            Poll::Ready(Ok(()))
        }))
    }

    fn close(&self) {
        self.net.close(self.link, self.end);
    }

    fn hung_up(&self) -> NetFuture<()> {
        let (net, number, end) = (self.net.clone(), self.link, self.end);
        Box::pin(poll_fn(move |cx| {
            let mut state = lock(&net.state);
            let Some(link) = state.links.get_mut(&number) else { return Poll::Ready(()) };
            if link.hang_up(end).is_some() {
                return Poll::Ready(());
            }
            link.pipes[1 - end].watcher = Some(cx.waker().clone());
            Poll::Pending
        }))
    }

    fn hang_up(&self) -> Option<HangUp> {
        lock(&self.net.state).links.get(&self.link).map_or(Some(HangUp::Both), |link| link.hang_up(self.end))
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn credentials(&self) -> Option<Credentials> {
        None
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.net.close(self.link, self.end);
    }
}

/// Two hosts in one order.
fn pair(a: &str, b: &str) -> (String, String) {
    if a <= b { (a.to_owned(), b.to_owned()) } else { (b.to_owned(), a.to_owned()) }
}
