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
//! What a success of FLUSH is worth: it covers what is kept only if it comes from the present connections and every durable request beside
//! it (FLUSH, FUA) has ended without a failure. After a failure everything kept is written again before anything else is asked.
//!
//! An I/O error of a server whose stamp has changed is an answer to what an earlier FLUSH lost, often one of another client. Everything kept
//! is written again on new connections, and the request is asked again, once.
//!
//! Never acknowledges a write the server has not acknowledged; never uses more memory than it reserved at the start.

use super::keep::{Again, Keep, Kept, WriteSeq};
use super::{Client, ClientError, ClientOptions, RemoteExport, RemoteOptions, Sabotage};
use crate::codec::{Errno, TransmissionFlags};
use crate::context::{ALLOCATION, STATE_HOLE, STATE_ZERO};
use device::sync::{Notify, Semaphore, UnderWay, lock};
use device::{
    Address, Bufs, Completed, Completion, DeviceExtent, FailKind, Geometry, Io, Op, Outcome, SharedBufs, World,
};
use futures_util::future::Either;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
    /// Durable requests (FLUSH, and writes with FUA) whose answer has not been dealt with, on whatever connections. A server reports a lost write once, to whichever of them reaches it first: so the success
    /// of a FLUSH counts only after all that ran beside it have ended without a failure.
    durable: UnderWay,
    /// One at a time looks for the server's stamp.
    looking: Semaphore,
    look: Mutex<Look>,
}

/// The last look for the server's stamp on a connection of its own.
struct Look {
    /// Number of looks begun.
    begun: u64,
    found: Seen,
}

/// What a new connection shows of the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Stamp(Option<u128>),
    /// The server does not answer.
    Away,
    /// The server refuses another connection.
    Refused,
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
    /// Connecting again; what is kept is written again to the servers named.
    Down(Replay),
    /// Nothing works any more.
    Dead,
}

/// The servers that what is kept is written again to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replay {
    /// A server with another stamp than the last one, or with none.
    ToAnother,
    /// Any server: a durable request has failed, and the server may have dropped what it had acknowledged.
    ToAny,
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
    /// Whether the server refused the request before it began.
    fn is_refusal(&self) -> bool {
        matches!(self, Failure::Told(FailKind::Unsupported | FailKind::Invalid))
    }

    fn outcome(&self) -> Outcome {
        match self {
            Failure::Told(kind) => Outcome::Failed(*kind),
            Failure::Dead => Outcome::Failed(FailKind::Gone),
            Failure::Unknown => Outcome::Unknown,
        }
    }
}

/// What becomes of a request that was not done.
enum Verdict {
    /// The connection is lost: the request may have been done, and may still be.
    Lost,
    /// The request has ended on a server that is suspect; it can be asked again.
    Again,
    Failed(Failure),
}

/// Whether the server said that a request was tried and failed.
fn is_told_failure(error: &ClientError) -> bool {
    use Errno::{Inval, NotSup, Overflow, Shutdown};
    matches!(error, ClientError::Remote { errno, .. } if !matches!(errno, Shutdown | NotSup | Inval | Overflow))
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
        let keep = Keep::new(options.keep_bytes_max, options.sabotage);
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
            durable: UnderWay::default(),
            looking: Semaphore::new(1),
            look: Mutex::new(Look { begun: 0, found: Seen::Away }),
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
            State::Down(_) => Standing::Waiting,
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

    /// Make durable what an earlier client has left un-flushed under `stamp`, and whose writes are kept by nobody. False: some of it may
    /// be lost, since the FLUSH has failed or the server shows another stamp. To be asked before anything is written.
    pub async fn flush_under(&self, stamp: u128) -> bool {
        let shared = &self.shared;
        loop {
            let Ok(link) = shared.link().await else { return false };
            if link.stamp != Some(stamp) {
                return false;
            }
            if shared.options.sabotage == Some(Sabotage::TakeOverUnflushed) {
                return true;
            }
            let turn = shared.durable.begin();
            match shared.client(&link).flush().await {
                Ok(()) => {
                    drop(turn);
                    if shared.counts(&link).await {
                        return true;
                    }
                }
                Err(ClientError::Remote { errno: Errno::Shutdown, .. } | ClientError::Lost | ClientError::Net(_)) => {
                    shared.lost(&link);
                }
                Err(_) => return false,
            }
        }
    }

    /// Nothing works any more: what waits fails, what the server does not answer as well, and so does everything from here on.
    pub fn give_up(&self) {
        let link = match &*lock(&self.shared.state) {
            State::Up(link) => Some(link.clone()),
            State::Down(_) | State::Dead => None,
        };
        self.shared.set(State::Dead);
        link.iter().flat_map(|link| &link.clients).for_each(Client::abort);
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
                State::Down(_) => self.changed.wait(ticket).await,
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

    fn is_current(&self, link: &Arc<Link>) -> bool {
        matches!(&*lock(&self.state), State::Up(now) if Arc::ptr_eq(now, link))
    }

    /// Whether the success of a FLUSH on `link` covers what was acknowledged before it. Waits for the durable requests beside it.
    async fn counts(&self, link: &Arc<Link>) -> bool {
        if self.options.sabotage == Some(Sabotage::FlushBesideFailing) {
            return true;
        }
        self.durable.ended().await;
        self.is_current(link)
    }

    /// Tell a server's refusal from a lost connection, and from the error of a session that an earlier loss broke. On the latter two, see
    /// to it that there is another connection. A request may be asked again once on a suspect server: `may_retry`.
    async fn judge(self: &Arc<Self>, link: &Arc<Link>, error: ClientError, may_retry: &mut bool) -> Verdict {
        let told = match error {
            ClientError::Remote { errno: Errno::Shutdown, .. } | ClientError::Lost | ClientError::Net(_) => {
                self.lost(link);
                return Verdict::Lost;
            }
            ClientError::Protocol(_) => {
                // A server that answers nonsense is not asked again.
                self.set(State::Dead);
                return Verdict::Failed(Failure::Dead);
            }
            ClientError::Remote { errno, .. } => {
                if errno == Errno::Io && *may_retry && self.is_broken(link).await {
                    *may_retry = false;
                    self.lost(link);
                    return Verdict::Again;
                }
                fail_kind(errno)
            }
            ClientError::Unsupported(_) => FailKind::Unsupported,
            ClientError::TooLong { .. } | ClientError::Refused { .. } | ClientError::TimedOut => FailKind::Invalid,
        };
        Verdict::Failed(Failure::Told(told))
    }

    /// Whether an I/O error on `link` tells of a loss and not of the request: the server shows another stamp by now.
    async fn is_broken(&self, link: &Arc<Link>) -> bool {
        if link.stamp.is_none() || self.options.sabotage == Some(Sabotage::BrokenSessionTold) {
            return false;
        }
        if !self.is_current(link) {
            return self.link().await.is_ok_and(|now| now.stamp != link.stamp);
        }
        match self.look().await {
            Seen::Stamp(now) => now != link.stamp,
            // A new set of connections will tell.
            Seen::Away => true,
            Seen::Refused => false,
        }
    }

    /// What the server shows to a new connection, made after this was called. Those who ask at the same time share one.
    async fn look(&self) -> Seen {
        let asked = lock(&self.look).begun;
        let _turn = self.looking.acquire(1).await;
        {
            let mut look = lock(&self.look);
            if look.begun > asked {
                return look.found;
            }
            look.begun += 1;
        }
        let options = ClientOptions { contexts: Vec::new(), ..self.options.client.clone() };
        let found = match Client::connect(&self.world, &self.address, &self.export.name, &options).await {
            Ok(client) => {
                let stamp = client.export().instance;
                client.disconnect().await;
                Seen::Stamp(stamp)
            }
            Err(ClientError::Lost | ClientError::Net(_) | ClientError::TimedOut) => Seen::Away,
            Err(_) => Seen::Refused,
        };
        lock(&self.look).found = found;
        found
    }

    async fn read(self: &Arc<Self>, offset: u64, mut bufs: Bufs) -> (Result<(), Failure>, Bufs) {
        let mut may_retry = true;
        loop {
            let link = match self.link().await {
                Ok(link) => link,
                Err(failure) => return (Err(failure), bufs),
            };
            let (result, back) = self.client(&link).read(offset, bufs).await;
            bufs = back;
            let Err(error) = result else { return (Ok(()), bufs) };
            match self.judge(&link, error, &mut may_retry).await {
                Verdict::Failed(failure) => return (Err(failure), bufs),
                Verdict::Lost | Verdict::Again => {}
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
            let seq = self.keep_bare(Kept::Zeroes { offset: at, len: n, no_hole }).await?;
            self.change(seq, fua, |client, fua| async move { client.write_zeroes(at, n, no_hole, fast, fua).await })
                .await?;
            done += u64::from(n);
        }
        Ok(())
    }

    /// Keep a change without data, as soon as there is room.
    async fn keep_bare(self: &Arc<Self>, what: Kept) -> Result<WriteSeq, Failure> {
        loop {
            match self.keep.bare(what.clone()) {
                Some(seq) => return Ok(seq),
                None => self.make_room(0).await?,
            }
        }
    }

    /// Send a kept change and see it through.
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
        let mut may_retry = true;
        let outcome = loop {
            let link = match self.link().await {
                Ok(link) => link,
                Err(failure) => break Err(failure),
            };
            let client = self.client(&link).clone();
            let turn = native.then(|| self.durable.begin());
            let Err(error) = send(client, native).await else { break Ok(()) };
            if is_told_failure(&error) || matches!(error, ClientError::Lost | ClientError::Net(_)) {
                self.keep.again(seq);
            }
            if native && is_told_failure(&error) {
                self.distrust();
            }
            drop(turn);
            match self.judge(&link, error, &mut may_retry).await {
                Verdict::Again => {}
                // Sent again only to a server that is not the one that may still be at it.
                Verdict::Lost => match self.link().await {
                    Ok(now) if now.generation > link.generation || self.options.resend_unanswered => {}
                    Ok(_) => break Err(Failure::Unknown),
                    Err(failure) => break Err(failure),
                },
                Verdict::Failed(failure) => break Err(failure),
            }
        };
        match outcome {
            Ok(()) if native => self.keep.durable(seq),
            Ok(()) => self.keep.acked(seq),
            Err(failure) => {
                if failure.is_refusal() {
                    self.keep.refused(seq);
                } else {
                    self.keep.doubt(seq);
                }
                return Err(failure);
            }
        }
        if fua && !native { self.flush().await } else { Ok(()) }
    }

    async fn discard(self: &Arc<Self>, offset: u64, len: u64) -> Result<(), Failure> {
        let mut done = 0;
        while done < len {
            let (at, n) = (offset + done, (len - done).min(RANGE_BYTES_MAX) as u32);
            let seq = self.keep_bare(Kept::Trim { offset: at, len: n }).await?;
            self.change(seq, false, |client, fua| async move { client.trim(at, n, fua).await }).await?;
            done += u64::from(n);
        }
        Ok(())
    }

    async fn flush(self: &Arc<Self>) -> Result<(), Failure> {
        let mut may_retry = true;
        loop {
            let link = self.link().await?;
            let point = self.keep.point();
            let turn = self.durable.begin();
            let result = self.client(&link).flush().await;
            let Err(error) = result else {
                drop(turn);
                if self.counts(&link).await {
                    self.keep.flushed(point);
                    return Ok(());
                }
                continue;
            };
            if is_told_failure(&error) {
                self.distrust();
            }
            drop(turn);
            if let Verdict::Failed(failure) = self.judge(&link, error, &mut may_retry).await {
                return Err(failure);
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
        match self.flush().await {
            // Nothing is lost by it: everything kept is written again before the next FLUSH.
            Err(Failure::Told(_)) => self.flush().await?,
            flushed => flushed?,
        }
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
                State::Up(now) if Arc::ptr_eq(now, link) => *state = State::Down(Replay::ToAnother),
                _ => return,
            }
        }
        self.connect_again(link.clone());
    }

    /// A durable request has failed, on whatever connections: the server may have dropped what it had acknowledged, and a later FLUSH may
    /// succeed all the same. Everything kept is written again before anything else is asked.
    fn distrust(self: &Arc<Self>) {
        let link = {
            let mut state = lock(&self.state);
            match std::mem::replace(&mut *state, State::Down(Replay::ToAny)) {
                State::Up(link) => link,
                State::Down(_) => return,
                State::Dead => {
                    *state = State::Dead;
                    return;
                }
            }
        };
        self.connect_again(link);
    }

    fn connect_again(self: &Arc<Self>, link: Arc<Link>) {
        let shared = self.clone();
        self.world.spawn.spawn(Box::pin(async move {
            // The other connections of the set go too: nothing may be under way on the old ones when the new are used.
            let goodbye = futures_util::future::join_all(link.clients.iter().map(|c| c.clone().disconnect()));
            let late = shared.world.clock.sleep(GOODBYE_MAX);
            if let Either::Right(_) = futures_util::future::select(goodbye, late).await {
                link.clients.iter().for_each(Client::abort);
            }
            if !shared.reconnect(link.generation, link.stamp).await {
                shared.set(State::Dead);
            }
        }));
    }

    /// Whether it is connected again.
    async fn reconnect(&self, generation: u64, stamp: Option<u128>) -> bool {
        let deadline = self.world.clock.now().after(self.options.reconnect_for);
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            if matches!(*lock(&self.state), State::Dead) {
                return false;
            }
            match self.connect_once(generation, stamp).await {
                Ok(()) => return true,
                Err(Retry::No) => return false,
                Err(Retry::Yes) if self.world.clock.now() >= deadline => return false,
                Err(Retry::Yes) => {}
            }
            self.world.clock.sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    /// Whether what is kept has to be written again to any server.
    fn is_distrusted(&self) -> bool {
        matches!(*lock(&self.state), State::Down(Replay::ToAny))
    }

    /// Use `link` from now on, unless a failure has been heard of meanwhile that asks for a replay.
    fn come_up(&self, link: &Arc<Link>, has_replayed: bool) -> bool {
        {
            let mut state = lock(&self.state);
            match *state {
                // Given up meanwhile.
                State::Dead => {}
                State::Down(Replay::ToAny) if !has_replayed => return false,
                _ => *state = State::Up(link.clone()),
            }
        }
        self.changed.notify_all();
        true
    }

    async fn connect_once(&self, generation: u64, stamp: Option<u128>) -> Result<(), Retry> {
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
        let known_change = now.is_some() && stamp.is_some() && !same;
        let link = Arc::new(Link { clients, generation: generation + u64::from(known_change), stamp: now });
        let mut replays = !same || self.is_distrusted();
        loop {
            if replays {
                let replayed = self.replay(&link.clients[0]).await;
                if replayed.is_err() && self.options.sabotage == Some(Sabotage::ReplayTriedOnce) {
                    return Err(Retry::No);
                }
                replayed?;
            }
            if self.come_up(&link, replays) {
                return Ok(());
            }
            replays = true;
        }
    }

    /// The same changes, each trim followed by zeroes where an older one is written again: a server need not carry out a trim, and what has
    /// been read as zeroes must not be what it was before.
    fn zeroes_for_trims(&self, kept: Vec<Again>) -> Vec<Again> {
        if !self.export.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            return kept;
        }
        let mut all: Vec<Again> = Vec::with_capacity(kept.len());
        for again in kept {
            let Kept::Trim { offset, len } = again.what else {
                all.push(again);
                continue;
            };
            let end = offset + u64::from(len);
            let is_doubtful = again.is_doubtful;
            let older: Vec<(u64, u64)> = all
                .iter()
                .filter(|older| matches!(older.what, Kept::Bytes { .. }))
                .map(|older| older.what.range())
                .map(|(from, to)| (from.max(offset), to.min(end)))
                .filter(|(from, to)| from < to)
                .collect();
            all.push(again);
            let zeroes =
                |(from, to): (u64, u64)| Kept::Zeroes { offset: from, len: (to - from) as u32, no_hole: false };
            all.extend(older.into_iter().map(|range| Again { what: zeroes(range), is_doubtful }));
        }
        all
    }

    /// Write everything kept again, in order; neighbours in the order at the same time unless they overlap.
    async fn replay(&self, client: &Client) -> Result<(), Retry> {
        let mut window: Vec<Again> = Vec::new();
        for again in self.zeroes_for_trims(self.keep.all()) {
            let (start, end) = again.what.range();
            let overlaps = window.iter().map(|again| again.what.range()).any(|(s, e)| s < end && start < e);
            if overlaps || window.len() == REPLAY_WINDOW_MAX {
                replay_window(client, &mut window).await?;
            }
            window.push(again);
        }
        replay_window(client, &mut window).await
    }
}

/// Whether it is worth trying again.
enum Retry {
    Yes,
    No,
}

async fn replay_window(client: &Client, window: &mut Vec<Again>) -> Result<(), Retry> {
    let changes = window.drain(..).map(|Again { what, is_doubtful }| async move {
        let done = match what {
            Kept::Bytes { offset, data } => client.write(offset, data, false).await,
            Kept::Zeroes { offset, len, no_hole } => client.write_zeroes(offset, len, no_hole, false, false).await,
            Kept::Trim { offset, len } => client.trim(offset, len, false).await,
        };
        (done, is_doubtful)
    });
    for (result, is_doubtful) in futures_util::future::join_all(changes).await {
        match result {
            Ok(()) => {}
            Err(ClientError::Lost | ClientError::Net(_)) => return Err(Retry::Yes),
            Err(ClientError::Remote { errno: Errno::Shutdown, .. }) => return Err(Retry::Yes),
            // The change was not acknowledged, and fails as it did before.
            Err(ClientError::Remote { .. }) if is_doubtful => {}
            // It is kept still, and a disk may be well again, or have room again, before the time is over.
            Err(ClientError::Remote { errno: Errno::Io | Errno::NoSpc | Errno::NoMem, .. }) => return Err(Retry::Yes),
            // What cannot be written again is lost, and must not look otherwise.
            Err(_) => return Err(Retry::No),
        }
    }
    Ok(())
}
