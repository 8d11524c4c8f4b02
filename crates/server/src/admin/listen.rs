//! The listeners of the admin service and their connections: who is there, TLS, limits of number and time.
//!
//! One request a connection. A client that is slow to speak, to finish what it says or to read the answer is cut off; one that
//! waits for the answer is not. TCP is TLS, always. Never looks into a request.

use super::access::{Access, Peer, Unfit};
use super::patient::Patient;
use super::places::{CROWDED, Origin, Place, Places};
use crate::certificates::Secure;
use crate::dir::Dir;
use axum::Router;
use axum::body::Body;
use device::Address;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// Time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// The head of a request, as hyper buffers it.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Time without a byte of the answer taken by the client.
const STALL: Duration = Duration::from_secs(60);
/// Time for answers under way when the service stops.
const FAREWELL: Duration = Duration::from_secs(2);
/// Connections that wait to be taken. A full queue has the kernel drop what asks to connect, for seconds, and a crowd that comes again at
/// once keeps it full: a crowd has to find room in it, to be taken and cut off. The kernel has a limit of its own (net.core.somaxconn).
const BACKLOG_MAX: i32 = 4096;
/// After a failed accept (no descriptors left), before the next.
const PAUSE: Duration = Duration::from_millis(100);

/// A bound listener of the service.
pub(crate) enum AdminListener {
    /// On this host, for everybody: the kernel tells who is who.
    Unix(UnixListener, PathBuf),
    /// From elsewhere, over TLS.
    Tcp(TcpListener, Arc<Secure>),
}

impl AdminListener {
    /// Bind. A socket left by a dead server is removed; a live one is an error. `tls` is needed for TCP.
    pub(crate) async fn bind(address: &Address, tls: Option<&Arc<Secure>>) -> std::io::Result<AdminListener> {
        match address {
            Address::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                // Again: the runtime's own queue is short.
                rustix::net::listen(&listener, BACKLOG_MAX)?;
                let (dir, name) = Dir::of(path)?;
                dir.open_to_all(name)?;
                Ok(AdminListener::Unix(listener, path.clone()))
            }
            Address::Tcp { host, port } => {
                let tls = tls.ok_or_else(|| std::io::Error::other("TCP needs certificates"))?;
                let listener = TcpListener::bind((host.as_str(), *port)).await?;
                rustix::net::listen(&listener, BACKLOG_MAX)?;
                Ok(AdminListener::Tcp(listener, tls.clone()))
            }
        }
    }

    /// The address really bound.
    pub(crate) fn address(&self) -> String {
        match self {
            AdminListener::Unix(_, path) => Address::Unix(path.clone()).to_string(),
            AdminListener::Tcp(listener, _) => {
                listener.local_addr().map_or_else(|_| "tcp:?".to_owned(), |address| format!("tcp:{address}"))
            }
        }
    }

    async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            AdminListener::Unix(listener, _) => Ok(Accepted::Unix(listener.accept().await?.0)),
            AdminListener::Tcp(listener, tls) => {
                let (stream, from) = listener.accept().await?;
                Ok(Accepted::Tcp(stream, from, TlsAcceptor::from(tls.config())))
            }
        }
    }
}

enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr, TlsAcceptor),
}

impl Accepted {
    fn origin(&self) -> Option<Origin> {
        match self {
            Accepted::Unix(stream) => stream.peer_cred().ok().map(|peer| Origin::User(peer.uid())),
            Accepted::Tcp(_, from, _) => Some(Origin::Host(from.ip())),
        }
    }
}

async fn remove_stale(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(std::io::Error::new(std::io::ErrorKind::AddrInUse, "a live server listens there"));
            }
            std::fs::remove_file(path)
        }
        Ok(_) => Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, "the path is taken, and no socket")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Serve a listener until told to stop; then answers under way are given a moment.
pub(super) async fn serve(
    listener: AdminListener,
    router: Router,
    access: Arc<Access>,
    mut stop: watch::Receiver<bool>,
) {
    let places = Places::new();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(accepted) => {
                // A peer the kernel cannot name does not exist.
                let Some(origin) = accepted.origin() else { continue };
                let (place, others_left) = places.stranger(origin);
                connections.spawn(connection(accepted, router.clone(), access.clone(), place));
                if others_left {
                    tokio::time::sleep(CROWDED).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the admin service cannot take a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    if let AdminListener::Unix(_, path) = &listener {
        let _ = std::fs::remove_file(path);
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(FAREWELL, all).await;
}

async fn connection(accepted: Accepted, router: Router, access: Arc<Access>, place: Arc<Place>) {
    let from = match &accepted {
        Accepted::Unix(_) => "this host".to_owned(),
        Accepted::Tcp(_, from, _) => from.to_string(),
    };
    let exchanged = async {
        match accepted {
            Accepted::Unix(stream) => {
                let Ok(credentials) = stream.peer_cred() else { return };
                let caller = access.of_unix(&credentials);
                exchange(stream, Peer::Known { caller, place: place.clone() }, router).await;
            }
            Accepted::Tcp(stream, _, tls) => over_tls(stream, &from, tls, router, &access, &place).await,
        }
    };
    tokio::select! {
        () = exchanged => {}
        () = place.cut() => tracing::info!(from, "a connection that had not said what it wants made room for others"),
    }
}

async fn over_tls(
    stream: TcpStream,
    from: &str,
    tls: TlsAcceptor,
    router: Router,
    access: &Access,
    place: &Arc<Place>,
) {
    let handshake = async {
        // Until it has said something, it is one of the silent.
        stream.readable().await?;
        place.proceeds();
        tls.accept(stream).await
    };
    let stream = match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::info!(from, %error, "no TLS came about"),
        Err(_) => return tracing::info!(from, "no TLS came about in time"),
    };
    place.proceeds();
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    // A certificate without a role is nobody's: a cell's own is no ticket to another cell.
    let unfit = match certificate.map(|certificate| access.of_certificate(certificate, from)) {
        Some(Ok(caller)) => {
            return exchange(stream, Peer::Known { caller, place: place.clone() }, router).await;
        }
        Some(Err(unfit)) => Some(unfit).filter(|unfit| *unfit != Unfit::NoRole),
        None => None,
    };
    exchange(stream, Peer::Unknown { from: from.to_owned(), unfit, place: place.clone() }, router).await;
}

async fn exchange<T: AsyncRead + AsyncWrite + Unpin>(stream: T, peer: Peer, router: Router) {
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        router.clone().oneshot(request)
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream, STALL)), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the admin service ended");
    }
}
