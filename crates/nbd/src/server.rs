//! The front end: sessions of NBD clients on a cell.
//!
//! One task per connection holds all of its state: it reads what the socket holds, starts every request in it, and
//! sends all replies that are ready with one call. Never spawns a task per request, never holds memory for a payload
//! that was not reserved first, never cancels a request.

mod account;
mod counters;
mod door;
mod exports;
mod fair;
mod handshake;
mod hosts;
mod intake;
mod job;
mod kin;
mod limits;
mod negotiate;
mod outbox;
mod registry;
mod transmission;

pub use counters::FrontEndStats;
pub use door::{Client, Doorkeeper, Proof, Scope};
pub use exports::{DATABASE_BYTES_MAX, ExportInfo, Exports, NoExport};
pub use hosts::{HOSTS_MAX, LOCAL_HOST, OTHER_HOST};
pub use limits::{FrontEndLimits, Sabotage};
pub use negotiate::{Chosen, Negotiation, OPTIONS_MAX, Step};

use crate::codec::UNFRAGMENTED_BYTES_MIN;
use account::Pools;
use counters::Counters;
use device::sync::{Permits, Semaphore};
use device::{Arena, Conn, Listener, NetError, World};
use exports::{CellExports, NoExports};
use futures_util::future::select;
use hosts::Hosts;
use registry::Registry;
use rustls::ServerConfig;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long to wait after a failed accept (out of descriptors): it heals when connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After a stranger had to leave for another, before the next connection is taken: so each of them has half a second at least for its
/// handshake, and a crowd that comes again as it is closed does not take the processor.
const CROWDED_PAUSE: Duration = Duration::from_millis(2);

/// The most a request takes besides its payload: what the cell keeps of it while it is under way, and its reply. Short READs whose
/// replies nobody takes were seen to take 4 to 7 KiB each.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The most a connection takes besides its requests: the receive buffer, its task, and over TLS the buffers of records. 31 KiB of
/// memory for each of 4,000, 73 over TLS, so that there is something left for the allocator.
const CONNECTION_BYTES_MAX: usize = 80 << 10;

/// The NBD front end of a cell: any number of listeners, one set of limits.
pub struct FrontEnd {
    shared: Arc<Shared>,
}

/// What all sessions share.
struct Shared {
    cell: Arc<cell::Cell>,
    world: World,
    arena: Arena,
    limits: FrontEndLimits,
    /// Connections still allowed.
    slots: Semaphore,
    /// Of these, connections still allowed to clients that are no administrators.
    others: Semaphore,
    /// And to those that show no certificate, from elsewhere.
    uncertified: Semaphore,
    /// Requests and payload memory.
    pools: Pools,
    registry: Registry,
    counters: Counters,
    hosts: Hosts,
    /// What the empty export name means.
    default: OnceLock<String>,
    /// Connections per executor thread.
    threads: Vec<AtomicUsize>,
}

impl Shared {
    fn exports<'a>(&'a self, client: &'a Client) -> CellExports<'a> {
        let default = self.default.get().map(String::as_str);
        CellExports { client, cell: &self.cell, limits: &self.limits, default }
    }
}

impl FrontEnd {
    /// A front end that serves the grid disks of `cell`.
    ///
    /// `arena` is the memory of all payloads and must not be the cell's own: a request holds memory of this one while
    /// it may wait for the cell's. Its size bounds the bytes in flight; the largest block size announced is at most
    /// half of it.
    ///
    /// # Panics
    /// When a limit is 0.
    #[must_use]
    pub fn new(cell: Arc<cell::Cell>, world: World, arena: Arena, limits: FrontEndLimits) -> FrontEnd {
        let limits = limits.fitted(arena.size_bytes());
        let threads = (0..world.spawn.threads().max(1)).map(|_| AtomicUsize::new(0)).collect();
        let shared = Shared {
            slots: Semaphore::new(limits.connections_max as u64),
            others: Semaphore::new(limits.others_max() as u64),
            uncertified: Semaphore::new(limits.uncertified_max as u64),
            pools: Pools::new(limits.requests_max, arena.size_bytes(), limits.connections_max),
            registry: Registry::default(),
            counters: Counters::default(),
            hosts: Hosts::default(),
            default: OnceLock::new(),
            cell,
            world,
            arena,
            limits,
            threads,
        };
        FrontEnd { shared: Arc::new(shared) }
    }

    /// Let the empty export name mean grid disk `name`, for clients that come from now on. Said once; otherwise it means the only
    /// grid disk there is for a client.
    pub fn set_default_export(&self, name: String) {
        let _ = self.shared.default.set(name);
    }

    /// Serve every grid disk to whoever connects to `listener`; otherwise as [`FrontEnd::serve_at`].
    pub fn serve(&self, listener: Arc<dyn Listener>) {
        self.serve_at(listener, Arc::new(door::OpenDoor));
    }

    /// Serve what connects to `listener`, each client what `keeper` says is for it, from now until [`FrontEnd::stop`] or
    /// the listener is closed. Returns at once; a listener handed in after `stop` is closed.
    pub fn serve_at(&self, listener: Arc<dyn Listener>, keeper: Arc<dyn Doorkeeper>) {
        let shared = self.shared.clone();
        if !shared.registry.add_listener(listener.clone()) {
            listener.close();
            return;
        }
        self.shared.world.spawn.spawn(Box::pin(async move {
            accept_loop(&shared, &listener, &keeper).await;
            shared.registry.remove_listener(&listener);
        }));
    }

    /// Stop: accept nothing more, read no further request, let those under way finish and their replies go out, close.
    /// Ready when the last connection is closed. A device that hangs makes this wait; the caller sets a deadline.
    pub async fn stop(&self) {
        self.shared.registry.stop();
        self.shared.registry.empty().await;
    }

    /// End the session of every client that may not use its grid disk any more: it is inactive, its `availableTo` names the client no longer, or
    /// `holds` does not hold for the client. No further request is read, those under way end and are answered. Returns client and grid disk of each.
    pub fn end_unless(&self, holds: impl Fn(&Client) -> bool) -> Vec<(String, String)> {
        let stands = |it: &registry::Standing| {
            !it.disk.is_inactive() && it.client.may_use(&it.disk.available_to()) && holds(&it.client)
        };
        self.shared.registry.withdraw(&stands)
    }

    /// What has been served so far.
    #[must_use]
    pub fn stats(&self) -> FrontEndStats {
        self.shared.counters.snapshot()
    }

    /// What has passed to and from each client host so far: payload of successful reads and writes. A host is its address, or
    /// [`LOCAL_HOST`], or [`OTHER_HOST`].
    #[must_use]
    pub fn hosts(&self) -> Vec<cell::metrics::HostUse> {
        self.shared.hosts.snapshot()
    }

    /// The most memory it takes, in bytes: the arena, requests, and connections with the buffers of TLS.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        let shared = &self.shared;
        let (requests, connections) = (shared.limits.requests_max, shared.limits.connections_max);
        (shared.arena.size_bytes() + requests * REQUEST_BYTES_MAX + connections * CONNECTION_BYTES_MAX) as u64
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> &FrontEndLimits {
        &self.shared.limits
    }
}

impl std::fmt::Debug for FrontEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrontEnd({:?})", self.stats())
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        self.shared.registry.stop();
    }
}

impl Shared {
    /// What a client holds of the connections while it is connected; administrators need nothing.
    ///
    /// # Errors
    /// Others have it: what the client is told.
    fn admit(&self, client: &Client) -> Result<Option<Permits>, String> {
        let (of, max, whose) = match (client.scope, &client.proof) {
            (Scope::All, _) => return Ok(None),
            (_, Proof::Nothing) => {
                (&self.uncertified, self.limits.uncertified_max, "without a certificate from other hosts")
            }
            _ => (&self.others, self.limits.others_max(), "of clients that are no administrators"),
        };
        let full =
            || format!("this cell serves {max} connections {whose}, and has them; hint: close some, or try again");
        of.try_acquire(1).map(Some).ok_or_else(full)
    }
}

async fn accept_loop(shared: &Arc<Shared>, listener: &Arc<dyn Listener>, keeper: &Arc<dyn Doorkeeper>) {
    loop {
        // Taken before accepting: the clients beyond the limit wait in the listener's backlog.
        let slot = shared.slots.acquire(1).await;
        match listener.accept().await {
            Ok(conn) => {
                if start_session(shared, conn, keeper.clone(), slot) {
                    shared.world.clock.sleep(CROWDED_PAUSE).await;
                }
            }
            Err(NetError::Closed) => return,
            Err(_) => {
                shared.counters.accept_errors.fetch_add(1, Ordering::Relaxed);
                shared.world.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether another connection had to leave for it.
fn start_session(shared: &Arc<Shared>, conn: Arc<dyn Conn>, keeper: Arc<dyn Doorkeeper>, slot: Permits) -> bool {
    let tls = keeper.tls();
    let Some(added) = shared.registry.add(conn.clone(), &shared.pools, tls.is_some(), &shared.limits) else {
        conn.close();
        return false;
    };
    let registry::Added { handle, starts_sweeper, crowded } = added;
    if starts_sweeper {
        start_sweeper(shared);
    }
    shared.counters.connections.fetch_add(1, Ordering::Relaxed);
    let loads = shared.threads.iter().map(|t| t.load(Ordering::Relaxed));
    let thread = loads.enumerate().min_by_key(|(_, load)| *load).map_or(0, |(i, _)| i);
    shared.threads[thread].fetch_add(1, Ordering::Relaxed);
    let shared = shared.clone();
    let spawn = shared.world.spawn.clone();
    spawn.spawn_on(
        thread,
        Box::pin(async move {
            session(&shared, &conn, keeper.as_ref(), tls, &handle).await;
            conn.close();
            shared.threads[thread].fetch_sub(1, Ordering::Relaxed);
            shared.counters.connections_closed.fetch_add(1, Ordering::Relaxed);
            shared.registry.remove(&handle);
            drop(slot);
        }),
    );
    crowded
}

/// Close connections that have made no progress, for as long as there are connections.
fn start_sweeper(shared: &Arc<Shared>) {
    let shared = shared.clone();
    let spawn = shared.world.spawn.clone();
    spawn.spawn(Box::pin(async move {
        loop {
            shared.world.clock.sleep(registry::TICK).await;
            let Some(swept) = shared.registry.sweep(&shared.pools, &shared.limits) else { return };
            shared.counters.timed_out.fetch_add(swept.overdue, Ordering::Relaxed);
            shared.counters.cut_off.fetch_add(swept.kept, Ordering::Relaxed);
        }
    }));
}

/// Time for the other side to be told that nothing follows: one small send, to somebody who may have gone.
const FAREWELL: Duration = Duration::from_secs(1);

async fn session(
    shared: &Arc<Shared>,
    conn: &Arc<dyn Conn>,
    keeper: &dyn Doorkeeper,
    tls: Option<Arc<ServerConfig>>,
    handle: &Arc<registry::Handle>,
) {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    let Some(config) = tls else {
        let client = keeper.client_of(conn.as_ref());
        let _place = match shared.admit(&client) {
            Ok(place) => place,
            Err(why) => {
                // It is told where it asks for an export.
                let _ = handshake::negotiate(conn, &NoExports(why), &|_| ()).await;
                return;
            }
        };
        let exports = shared.exports(&client);
        let done = handshake::negotiate(conn, &exports, &|chosen| shared.registry.supersede(handle, chosen)).await;
        return serve(shared, conn, handle, client, done, keeper).await;
    };
    let (secured, negotiation) = match handshake::start_tls(conn, config, &|| shared.registry.proceeds(handle)).await {
        Ok(Some(secured)) => secured,
        Ok(None) | Err(handshake::HandshakeError::Lost) => return,
        Err(handshake::HandshakeError::Malformed) => {
            count(&shared.counters.malformed);
            return;
        }
        Err(handshake::HandshakeError::Tls(error)) => {
            count(&shared.counters.tls_failed);
            keeper.tls_failed(conn.as_ref(), &error);
            return;
        }
    };
    count(&shared.counters.tls);
    let nobody = || "no certificate was shown".to_owned();
    let client = secured
        .certificate()
        .ok_or_else(nobody)
        .and_then(|certificate| keeper.client_of_certificate(&certificate, conn.as_ref()))
        .and_then(|client| Ok((shared.admit(&client)?, client)));
    let over_tls: Arc<dyn Conn> = secured.clone();
    match client {
        Ok((_place, client)) => {
            handle.known();
            let exports = shared.exports(&client);
            let supersede = |chosen: &Chosen| shared.registry.supersede(handle, chosen);
            let done = handshake::choose(&over_tls, negotiation, &exports, &supersede).await;
            serve(shared, &over_tls, handle, client, done, keeper).await;
        }
        // The refusal is told where a client asks for an export: in words, where TLS has but numbers. There is nothing to choose.
        Err(why) => drop(handshake::choose(&over_tls, negotiation, &NoExports(why), &|_| ()).await),
    }
    let _ = select(pin!(secured.farewell()), shared.world.clock.sleep(FAREWELL)).await;
}

/// Serve what a handshake has chosen.
async fn serve(
    shared: &Arc<Shared>,
    conn: &Arc<dyn Conn>,
    handle: &Arc<registry::Handle>,
    client: Client,
    done: Result<Option<(Chosen, Vec<u8>)>, handshake::HandshakeError>,
    keeper: &dyn Doorkeeper,
) {
    let (chosen, unread) = match done {
        Ok(Some(done)) => done,
        Err(handshake::HandshakeError::Malformed) => {
            shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        Ok(None) | Err(handshake::HandshakeError::Lost | handshake::HandshakeError::Tls(_)) => return,
    };
    let Some(disk) = shared.cell.grid_disk(&chosen.export.grid_disk) else {
        // Dropped between the option and here.
        return;
    };
    let who = client.who.clone();
    shared.registry.join(handle, &client, &disk.name());
    handle.established(registry::Standing { client, disk: disk.clone() });
    // Opened before it is looked whether the grid disk is in service: whoever takes it out of it sees the session, or is seen here.
    let session = disk.open_session(cell::Context {
        database: chosen.export.database.clone(),
        fence: Some(handle.fence().clone()),
        knows_instance: chosen.contexts.iter().any(|context| context == crate::context::MetaContext::Instance),
        ..cell::Context::default()
    });
    if disk.is_inactive() {
        return;
    }
    if !shared.registry.succeed(handle).await {
        return;
    }
    let watched = handle.clone();
    shared.world.spawn.spawn(Box::pin(async move { watched.watch().await }));
    let traffic = shared.hosts.of(&conn.peer());
    let link = transmission::Link {
        session,
        traffic: traffic.clone(),
        arena: shared.arena.clone(),
        structured: chosen.structured,
        contexts: chosen.contexts,
        shape: crate::codec::ExportShape {
            size_bytes: chosen.export.size_bytes,
            flags: chosen.flags,
            contexts: !chosen.contexts.is_empty(),
            payload_bytes_max: chosen.export.block_bytes_max,
            unfragmented_bytes_max: job::PIECE_BYTES_MAX.min(chosen.export.block_bytes_max),
        },
    };
    const { assert!(job::PIECE_BYTES_MAX >= UNFRAGMENTED_BYTES_MIN) };
    transmission::run(shared.clone(), conn.clone(), handle.clone(), link, unread).await;
    if handle.is_cut_off() {
        traffic.cut_off();
        keeper.cut_off(conn.as_ref(), &who, &chosen.export.grid_disk);
    }
}
