//! An NBD export as a device, handed to a cell from outside.
//!
//! When the connection is lost it connects again for a while; requests wait. Rule I9 of DESIGN: every write since the
//! last good FLUSH is kept, and when the server's instance stamp has changed, or it has none, all of them are written
//! again before anything else is asked, so a FLUSH is never acknowledged over a loss. If that cannot be done, everything
//! fails from then on.
//!
//! What was under way when a connection was lost: reads and flushes are asked again. Writes are sent again when the
//! stamp has changed, since then the old server is gone; when it has not (or there is none), the old request may still
//! be carried out later, after a newer write to the same place, so it is not repeated and its outcome is unknown. Who never writes
//! to a place while a write to it is unanswered, and cannot do with an unknown outcome (a block device of this host), has them
//! sent again there too ([`RemoteOptions::resend_unanswered`]): each set of connections says that it takes the place of the one before
//! ([`crate::context::Lineage`]), so that a cell carries out what it has of the old one first.
//!
//! Never acknowledges a write the server has not acknowledged; never uses more memory than it reserved at the start.

use super::keep::{Keep, Kept, WriteSeq};
use super::{Client, ClientError, ClientOptions, RemoteExport, RemoteOptions};
use crate::codec::{Errno, TransmissionFlags};
use crate::context::{ALLOCATION, STATE_HOLE, STATE_ZERO};
use device::sync::{Notify, Semaphore, lock};
use device::{
    Address, Bufs, Completed, Completion, DeviceExtent, FailKind, Geometry, Io, Op, Outcome, SharedBufs, World,
};
use futures_util::future::Either;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// First pause between two attempts to connect again; it doubles up to [`RETRY_PAUSE_MAX`].
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between two attempts.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the other connections of a set may take to finish what is under way when one is lost.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
/// Longest zeroing or trim in one request; longer ones are cut.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Writes sent again at a time, as long as they do not overlap.
const REPLAY_WINDOW_MAX: usize = 32;

/// An NBD export as a device. Dropping it closes its connections.
pub struct RemoteDisk {
    shared: Arc<Shared>,
}

struct Shared {
    world: World,
    address: Address,
    export: RemoteExport,
    options: RemoteOptions,
    /// But for its size.
    geometry: Geometry,
    size_bytes: AtomicU64,
    keep: Keep,
    state: Mutex<State>,
    changed: Notify,
    /// One at a time flushes to make room.
    making_room: Semaphore,
    next_client: AtomicUsize,
    /// Number of the next set of connections.
    next_link: AtomicU64,
    /// A flush has failed: what is kept must be written again before another counts.
    suspect: AtomicBool,
}

/// How a remote disk's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Connected; what was lost with an earlier server has been written again.
    Up {
        /// The instance stamp.
        stamp: Option<u128>,
    },
    /// Connecting again; requests wait.
    Waiting,
    /// Everything fails.
    Dead,
}

#[derive(Clone)]
enum State {
    Up(Arc<Link>),
    /// Connecting again.
    Down,
    /// Nothing works any more.
    Dead,
}

/// One set of connections.
struct Link {
    clients: Vec<Client>,
    /// Raised when the stamp was seen to change: the server of an earlier generation is gone.
    generation: u64,
    stamp: Option<u128>,
}

/// Why a request was not done.
enum Failure {
    /// The server said so.
    Told(FailKind),
    /// Everything fails.
    Dead,
    /// Nobody knows whether it was done.
    Unknown,
}

impl Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Failure::Told(kind) => Outcome::Failed(*kind),
            Failure::Dead => Outcome::Failed(FailKind::Gone),
            Failure::Unknown => Outcome::Unknown,
        }
    }
}

fn fail_kind(errno: Errno) -> FailKind {
    match errno {
        Errno::Io => FailKind::Media,
        Errno::NoSpc => FailKind::NoSpace,
        Errno::NotSup => FailKind::Unsupported,
        Errno::Inval | Errno::Overflow => FailKind::Invalid,
        Errno::Shutdown => FailKind::Gone,
        Errno::Perm | Errno::NoMem => FailKind::Errno(errno.to_wire() as i32),
    }
}

impl RemoteDisk {
    /// Connect to `export` at `address`.
    ///
    /// # Errors
    /// As [`Client::connect`]; [`ClientError::Unsupported`] when the export has no FLUSH (nothing on it could be called
    /// durable) or several connections were asked for and it does not allow them.
    pub async fn connect(
        world: &World,
        address: &Address,
        export: &str,
        options: RemoteOptions,
    ) -> Result<RemoteDisk, ClientError> {
        // Another process that was this client may have counted too: none begins where another did.
        let next_link = world.prng.fork("links of a remote disk").next_u64();
        let of_client = options.of_link(next_link);
        let first = Client::connect(world, address, export, &of_client).await?;
        let described = first.export().clone();
        if !described.flags.contains(TransmissionFlags::SEND_FLUSH) {
            return Err(ClientError::Unsupported("FLUSH"));
        }
        if options.connections > 1 && !described.flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
            return Err(ClientError::Unsupported("leave for several connections (CAN_MULTI_CONN)"));
        }
        let mut clients = vec![first];
        while clients.len() < options.connections {
            clients.push(Client::connect(world, address, export, &of_client).await?);
        }
        let keep = Keep::new(options.keep_bytes_max);
        let geometry = geometry(&described, &options, keep.write_bytes_max());
        let link = Link { clients, generation: 0, stamp: described.instance };
        let shared = Shared {
            world: world.clone(),
            address: address.clone(),
            size_bytes: AtomicU64::new(described.size_bytes),
            export: described,
            geometry,
            keep,
            state: Mutex::new(State::Up(Arc::new(link))),
            changed: Notify::new(),
            making_room: Semaphore::new(1),
            next_client: AtomicUsize::new(0),
            next_link: AtomicU64::new(next_link.wrapping_add(1)),
            suspect: AtomicBool::new(false),
            options,
        };
        Ok(RemoteDisk { shared: Arc::new(shared) })
    }

    /// The export, as it was described at the first connection.
    #[must_use]
    pub fn export(&self) -> &RemoteExport {
        &self.shared.export
    }

    /// Whether everything fails.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(*lock(&self.shared.state), State::Dead)
    }

    /// Whether there are writes that no FLUSH has covered.
    #[must_use]
    pub fn has_unflushed(&self) -> bool {
        !self.shared.keep.is_empty()
    }

    /// Look whether a connection is gone without anybody asking for anything: another is made then.
    pub fn look_for_loss(&self) {
        let link = match &*lock(&self.shared.state) {
            State::Up(link) if link.clients.iter().any(Client::is_lost) => link.clone(),
            _ => return,
        };
        self.shared.lost(&link);
    }

    /// Bytes of the writes that were acknowledged and that no FLUSH has covered; of zeroes, what they would be written out.
    #[must_use]
    pub fn unflushed_bytes(&self) -> u64 {
        self.shared.keep.acked_bytes()
    }

    /// How the connection is.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match &*lock(&self.shared.state) {
            State::Up(link) => Standing::Up { stamp: link.stamp },
            State::Down => Standing::Waiting,
            State::Dead => Standing::Dead,
        }
    }

    /// Make a range read as zeroes and give its space back, where that is quick; else it fails with [`FailKind::Unsupported`].
    pub fn zero_fast(&self, offset: u64, len: u64) -> Completion {
        let (completer, completion) = Completion::pair();
        let shared = self.shared.clone();
        self.shared.world.spawn.spawn(Box::pin(async move {
            let outcome = match shared.write_zeroes(offset, len, false, false, true).await {
                Ok(()) => Outcome::Done,
                Err(failure) => failure.outcome(),
            };
            completer.complete(Completed::bare(outcome));
        }));
        completion
    }

    /// Nothing works any more: what waits fails, and so does everything from here on.
    pub fn give_up(&self) {
        self.shared.set(State::Dead);
    }

    /// Ask the server how large the export is by now. When it has grown, true: it is as large as soon as it is connected anew, since the
    /// size of an export is that of its connection. What is under way ends before, what comes meanwhile waits.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn look_for_growth(&self) -> Result<bool, ClientError> {
        let shared = &self.shared;
        let options = ClientOptions { contexts: Vec::new(), ..shared.options.client.clone() };
        let client = Client::connect(&shared.world, &shared.address, &shared.export.name, &options).await?;
        let has_grown = client.export().size_bytes > shared.size_bytes.load(Ordering::Acquire);
        client.disconnect().await;
        let link = match &*lock(&shared.state) {
            State::Up(link) if has_grown => link.clone(),
            _ => return Ok(has_grown),
        };
        shared.lost(&link);
        Ok(true)
    }
}

impl Drop for RemoteDisk {
    fn drop(&mut self) {
        self.shared.set(State::Dead);
    }
}

impl std::fmt::Debug for RemoteDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteDisk({} at {})", self.shared.export.name, self.shared.address)
    }
}

fn geometry(export: &RemoteExport, options: &RemoteOptions, write_bytes_max: u32) -> Geometry {
    let has = |flag| export.flags.contains(flag);
    Geometry {
        size_bytes: export.size_bytes,
        logical_bytes: export.block_bytes_min.max(512),
        page_bytes: export.block_bytes_preferred.clamp(4096, 64 * 1024),
        rotational: has(TransmissionFlags::ROTATIONAL),
        volatile_cache: true,
        discard_bytes: if has(TransmissionFlags::SEND_TRIM) { export.block_bytes_preferred.max(512) } else { 0 },
        fast_zeroes: has(TransmissionFlags::SEND_FAST_ZERO),
        transfer_bytes_max: export.block_bytes_max.min(write_bytes_max),
        class: options.class,
    }
}

impl Io for RemoteDisk {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.shared.size_bytes.load(Ordering::Acquire);
        Geometry { size_bytes, ..self.shared.geometry.clone() }
    }

    fn submit(&self, op: Op) -> Completion {
        let (completer, completion) = Completion::pair();
        let shared = self.shared.clone();
        self.shared.world.spawn.spawn(Box::pin(async move {
            let completed = shared.perform(op).await;
            completer.complete(completed);
        }));
        completion
    }
}

impl Shared {
    async fn perform(self: &Arc<Self>, op: Op) -> Completed {
        let result = match op {
            Op::Read { offset, bufs } => {
                let (result, bufs) = self.read(offset, bufs).await;
                let outcome = result.map_or_else(|failure| failure.outcome(), |()| Outcome::Done);
                return Completed { outcome, bufs, extents: Vec::new() };
            }
            Op::Status { offset, len } => return self.status(offset, len).await,
            Op::Write { offset, data, fua } => self.write(offset, &data, fua).await,
            Op::WriteZeroes { offset, len, fua, may_unmap } => {
                self.write_zeroes(offset, len, fua, !may_unmap, false).await
            }
            Op::Discard { offset, len } => self.discard(offset, len).await,
            Op::Flush => self.flush().await,
        };
        Completed::bare(result.map_or_else(|failure| failure.outcome(), |()| Outcome::Done))
    }

    /// The present connections, waiting for them while they are being made.
    async fn link(&self) -> Result<Arc<Link>, Failure> {
        loop {
            let ticket = self.changed.ticket();
            let state = lock(&self.state).clone();
            match state {
                State::Up(link) => return Ok(link),
                State::Dead => return Err(Failure::Dead),
                State::Down => self.changed.wait(ticket).await,
            }
        }
    }

    fn set(&self, state: State) {
        let before = {
            let mut now = lock(&self.state);
            if matches!(*now, State::Dead) {
                return;
            }
            std::mem::replace(&mut *now, state)
        };
        // Closing connections wakes their tasks: outside the lock.
        drop(before);
        self.changed.notify_all();
    }

    fn client<'a>(&self, link: &'a Link) -> &'a Client {
        let turn = self.next_client.fetch_add(1, Ordering::Relaxed);
        &link.clients[turn % link.clients.len()]
    }

    /// Tell a server's refusal from a lost connection; on the latter, see to it that there is another.
    fn judge(self: &Arc<Self>, link: &Arc<Link>, error: ClientError) -> Option<Failure> {
        match error {
            ClientError::Remote { errno: Errno::Shutdown, .. } | ClientError::Lost | ClientError::Net(_) => {
                self.lost(link);
                None
            }
            ClientError::Protocol(_) => {
                // A server that answers nonsense is not asked again.
                self.set(State::Dead);
                Some(Failure::Dead)
            }
            ClientError::Remote { errno, .. } => Some(Failure::Told(fail_kind(errno))),
            ClientError::Unsupported(_) => Some(Failure::Told(FailKind::Unsupported)),
            ClientError::TooLong { .. } | ClientError::Refused { .. } | ClientError::TimedOut => {
                Some(Failure::Told(FailKind::Invalid))
            }
        }
    }

    async fn read(self: &Arc<Self>, offset: u64, mut bufs: Bufs) -> (Result<(), Failure>, Bufs) {
        loop {
            let link = match self.link().await {
                Ok(link) => link,
                Err(failure) => return (Err(failure), bufs),
            };
            let (result, back) = self.client(&link).read(offset, bufs).await;
            bufs = back;
            match result.map_err(|error| self.judge(&link, error)) {
                Ok(()) => return (Ok(()), bufs),
                Err(Some(failure)) => return (Err(failure), bufs),
                Err(None) => {}
            }
        }
    }

    async fn write(self: &Arc<Self>, offset: u64, data: &SharedBufs, fua: bool) -> Result<(), Failure> {
        if data.len_bytes() > self.geometry.transfer_bytes_max as usize {
            return Err(Failure::Told(FailKind::Invalid));
        }
        let (seq, kept) = loop {
            match self.keep.bytes(offset, data) {
                Some(kept) => break kept,
                None => self.make_room(data.len_bytes()).await?,
            }
        };
        self.change(seq, fua, |client, fua| {
            let data = kept.clone();
            async move { client.write(offset, data, fua).await }
        })
        .await
    }

    async fn write_zeroes(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        fua: bool,
        no_hole: bool,
        fast: bool,
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < len {
            let (at, n) = (offset + done, (len - done).min(RANGE_BYTES_MAX) as u32);
            let seq = loop {
                match self.keep.zeroes(at, n, no_hole) {
                    Some(seq) => break seq,
                    None => self.make_room(0).await?,
                }
            };
            self.change(seq, fua, |client, fua| async move { client.write_zeroes(at, n, no_hole, fast, fua).await })
                .await?;
            done += u64::from(n);
        }
        Ok(())
    }

    /// Send a kept write and see it through.
    async fn change<F>(
        self: &Arc<Self>,
        seq: WriteSeq,
        fua: bool,
        send: impl Fn(Client, bool) -> F,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), ClientError>>,
    {
        // A FUA the export does not have is a write and a flush.
        let native = fua && self.export.flags.contains(TransmissionFlags::SEND_FUA);
        let outcome = loop {
            let link = match self.link().await {
                Ok(link) => link,
                Err(failure) => break Err(failure),
            };
            let client = self.client(&link).clone();
            match send(client, native).await.map_err(|error| self.judge(&link, error)) {
                Ok(()) => break Ok(()),
                Err(Some(failure)) => break Err(failure),
                // Lost: sent again only to a server that is not the one that may still be at it.
                Err(None) => match self.link().await {
                    Ok(now) if now.generation > link.generation || self.options.resend_unanswered => {}
                    Ok(_) => break Err(Failure::Unknown),
                    Err(failure) => break Err(failure),
                },
            }
        };
        match outcome {
            Ok(()) if native => self.keep.durable(seq),
            Ok(()) => self.keep.acked(seq),
            Err(failure) => {
                self.keep.forget(seq);
                return Err(failure);
            }
        }
        if fua && !native { self.flush().await } else { Ok(()) }
    }

    async fn discard(self: &Arc<Self>, offset: u64, len: u64) -> Result<(), Failure> {
        let mut done = 0;
        while done < len {
            let n = (len - done).min(RANGE_BYTES_MAX) as u32;
            let link = self.link().await?;
            match self.client(&link).trim(offset + done, n, false).await.map_err(|error| self.judge(&link, error)) {
                Ok(()) => done += u64::from(n),
                Err(Some(failure)) => return Err(failure),
                // A late one could hit newer data, as with writes.
                Err(None) => match self.link().await? {
                    now if now.generation > link.generation || self.options.resend_unanswered => {}
                    _ => return Err(Failure::Unknown),
                },
            }
        }
        Ok(())
    }

    async fn flush(self: &Arc<Self>) -> Result<(), Failure> {
        loop {
            let link = self.link().await?;
            let point = self.keep.point();
            match self.client(&link).flush().await.map_err(|error| self.judge(&link, error)) {
                Ok(()) => {
                    self.keep.flushed(point);
                    return Ok(());
                }
                Err(Some(failure)) => {
                    // The server may have dropped what it could not make durable, and a later flush of its would
                    // succeed all the same: nothing is believed until everything kept has been written again.
                    self.suspect.store(true, Ordering::SeqCst);
                    self.lost(&link);
                    return Err(failure);
                }
                // What was lost with the server is written again before the next link is up.
                Err(None) => {}
            }
        }
    }

    /// Flush, unless somebody before in the queue has made room already.
    async fn make_room(self: &Arc<Self>, bytes: usize) -> Result<(), Failure> {
        let _turn = self.making_room.acquire(1).await;
        if self.keep.has_room(bytes) {
            return Ok(());
        }
        let ticket = self.keep.changed().ticket();
        self.flush().await?;
        if !self.keep.has_room(bytes) {
            // What is under way fills it: a flush covers that once it is acknowledged.
            self.keep.changed().wait(ticket).await;
        }
        Ok(())
    }

    async fn status(self: &Arc<Self>, offset: u64, len: u64) -> Completed {
        let extents = vec![DeviceExtent { len, hole: false }];
        let unknown = Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents };
        let asked = u32::try_from(len).unwrap_or(!0xffff);
        let Ok(link) = self.link().await else { return Completed::bare(Outcome::Failed(FailKind::Gone)) };
        // The answer is a hint: everything that goes wrong means "data".
        let Ok(contexts) = self.client(&link).block_status(offset, asked, false).await else { return unknown };
        let Some(allocation) = contexts.into_iter().find(|c| c.context == ALLOCATION) else { return unknown };
        let zero = |flags: u32| flags & (STATE_HOLE | STATE_ZERO) == STATE_HOLE | STATE_ZERO;
        let mut left = len;
        let mut extents = Vec::new();
        for extent in allocation.extents {
            let len = u64::from(extent.len).min(left);
            left -= len;
            if len > 0 {
                extents.push(DeviceExtent { len, hole: zero(extent.flags) });
            }
        }
        if left > 0 {
            extents.push(DeviceExtent { len: left, hole: false });
        }
        Completed { outcome: Outcome::Done, bufs: Bufs::new(), extents }
    }

    // --- connecting again -------------------------------------------------------------------------------------------

    /// `link` is no good any more: the first to see it starts making another.
    fn lost(self: &Arc<Self>, link: &Arc<Link>) {
        {
            let mut state = lock(&self.state);
            match &*state {
                State::Up(now) if Arc::ptr_eq(now, link) => *state = State::Down,
                _ => return,
            }
        }
        let (shared, link) = (self.clone(), link.clone());
        self.world.spawn.spawn(Box::pin(async move {
            // The other connections of the set go too: nothing may be under way on the old ones when the new are used.
            let goodbye = futures_util::future::join_all(link.clients.iter().map(|c| c.clone().disconnect()));
            let late = shared.world.clock.sleep(GOODBYE_MAX);
            if let Either::Right(_) = futures_util::future::select(goodbye, late).await {
                link.clients.iter().for_each(Client::abort);
            }
            let state = shared.reconnect(link.generation, link.stamp).await.map_or(State::Dead, State::Up);
            shared.set(state);
        }));
    }

    async fn reconnect(&self, generation: u64, stamp: Option<u128>) -> Option<Arc<Link>> {
        let deadline = self.world.clock.now().after(self.options.reconnect_for);
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            if matches!(*lock(&self.state), State::Dead) {
                return None;
            }
            match self.connect_once(generation, stamp).await {
                Ok(link) => return Some(Arc::new(link)),
                Err(Retry::No) => return None,
                Err(Retry::Yes) if self.world.clock.now() >= deadline => return None,
                Err(Retry::Yes) => {}
            }
            self.world.clock.sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    async fn connect_once(&self, generation: u64, stamp: Option<u128>) -> Result<Link, Retry> {
        let mut clients: Vec<Client> = Vec::new();
        let options = self.options.of_link(self.next_link.fetch_add(1, Ordering::Relaxed));
        while clients.len() < self.options.connections.max(1) {
            let connect = Client::connect(&self.world, &self.address, &self.export.name, &options);
            let client = match connect.await {
                Ok(client) => client,
                Err(ClientError::Refused { .. }) if self.options.patient => return Err(Retry::Yes),
                Err(ClientError::Refused { .. } | ClientError::Protocol(_)) => return Err(Retry::No),
                Err(_) => return Err(Retry::Yes),
            };
            let (now, before) = (client.export(), &self.export);
            // Another disk under the same name, or one that cannot do what was promised of it.
            let size_bytes = self.size_bytes.load(Ordering::Acquire);
            let same = now.size_bytes == size_bytes && now.flags == before.flags;
            let grown = self.options.patient && now.size_bytes >= size_bytes && now.flags.contains(before.flags);
            if !same && !grown {
                return Err(Retry::No);
            }
            self.size_bytes.fetch_max(now.size_bytes, Ordering::AcqRel);
            clients.push(client);
        }
        let now = clients[0].export().instance;
        if clients.iter().any(|c| c.export().instance != now) {
            // The server was replaced between two connections.
            return Err(Retry::Yes);
        }
        let same = now.is_some() && now == stamp;
        if !same || self.suspect.load(Ordering::SeqCst) {
            self.replay(&clients[0]).await?;
            self.suspect.store(false, Ordering::SeqCst);
        }
        let known_change = now.is_some() && stamp.is_some() && !same;
        Ok(Link { clients, generation: generation + u64::from(known_change), stamp: now })
    }

    /// Write everything kept again, in order; neighbours in the order at the same time unless they overlap.
    async fn replay(&self, client: &Client) -> Result<(), Retry> {
        let mut window: Vec<Kept> = Vec::new();
        for kept in self.keep.all() {
            let (start, end) = kept.range();
            let overlaps = window.iter().map(Kept::range).any(|(s, e)| s < end && start < e);
            if overlaps || window.len() == REPLAY_WINDOW_MAX {
                replay_window(client, &mut window).await?;
            }
            window.push(kept);
        }
        replay_window(client, &mut window).await
    }
}

/// Whether it is worth trying again.
enum Retry {
    Yes,
    No,
}

async fn replay_window(client: &Client, window: &mut Vec<Kept>) -> Result<(), Retry> {
    let writes = window.drain(..).map(|kept| async move {
        match kept {
            Kept::Bytes { offset, data } => client.write(offset, data, false).await,
            Kept::Zeroes { offset, len, no_hole } => client.write_zeroes(offset, len, no_hole, false, false).await,
        }
    });
    for result in futures_util::future::join_all(writes).await {
        match result {
            Ok(()) => {}
            Err(ClientError::Lost | ClientError::Net(_)) => return Err(Retry::Yes),
            Err(ClientError::Remote { errno: Errno::Shutdown, .. }) => return Err(Retry::Yes),
            // What cannot be written again is lost, and must not look otherwise.
            Err(_) => return Err(Retry::No),
        }
    }
    Ok(())
}
