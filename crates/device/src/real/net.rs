//! Unix and TCP sockets over the calling thread's driver.
//!
//! Never buffers, never retries a lost connection, never removes a path that is not a dead server's socket.

use super::backend::Engine;
use super::executor;
use super::inbox::Message;
use super::request::Request;
use super::runtime::{Runtime, Shared};
use super::sys;
use super::timers::Sleep;
use crate::buf::{Buf, SharedBufs};
use crate::net::{Address, Conn, Credentials, HangUp, Listener, Net, NetError, NetFuture};
use crate::sync::one_shot;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections waiting to be accepted (the kernel's somaxconn may be lower).
const BACKLOG_MAX: i32 = 4096;
/// Pause of an accept that found no free descriptor: long enough not to spin, short enough for a person.
const ACCEPT_PAUSE_NS: u64 = 50_000_000;
/// Pause of a connect that found a full backlog, and how often it is tried: five seconds in all.
const CONNECT_PAUSE_NS: u64 = 10_000_000;
const CONNECT_TRIES_MAX: u32 = 500;
/// Only the owner may connect unless the operator opens the path.
const SOCKET_MODE: libc::mode_t = 0o600;

/// An open socket. Every request in flight holds it.
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    closed: AtomicBool,
}

impl Socket {
    fn new(fd: OwnedFd) -> Arc<Socket> {
        Arc::new(Socket { fd, closed: AtomicBool::new(false) })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Closed from this side.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        sys::shutdown(self.fd());
    }
}

/// A kernel socket address.
pub(crate) struct SocketAddress {
    storage: Storage,
}

enum Storage {
    Unix(libc::sockaddr_un),
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl SocketAddress {
    fn unix(path: &Path) -> Option<SocketAddress> {
        // SAFETY: all zeroes is a valid address of no family.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.as_os_str().as_bytes();
        // One byte stays zero: the end of the string.
        if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
            return None;
        }
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Some(SocketAddress { storage: Storage::Unix(address) })
    }

    fn tcp(address: SocketAddr) -> SocketAddress {
        let storage = match address {
            SocketAddr::V4(v4) => Storage::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Storage::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        };
        SocketAddress { storage }
    }

    fn family(&self) -> i32 {
        match &self.storage {
            Storage::Unix(_) => libc::AF_UNIX,
            Storage::V4(_) => libc::AF_INET,
            Storage::V6(_) => libc::AF_INET6,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        match &self.storage {
            Storage::Unix(a) => (&raw const *a).cast(),
            Storage::V4(a) => (&raw const *a).cast(),
            Storage::V6(a) => (&raw const *a).cast(),
        }
    }

    pub(crate) fn len(&self) -> libc::socklen_t {
        let len = match &self.storage {
            Storage::Unix(_) => size_of::<libc::sockaddr_un>(),
            Storage::V4(_) => size_of::<libc::sockaddr_in>(),
            Storage::V6(_) => size_of::<libc::sockaddr_in6>(),
        };
        len as libc::socklen_t
    }
}

fn errno_text(errno: i32) -> NetError {
    NetError::Errno(io::Error::from_raw_os_error(errno).to_string())
}

/// What a stream verb's errno means.
fn stream_error(errno: i32) -> NetError {
    match errno {
        libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN | libc::ESHUTDOWN | libc::ECANCELED | libc::ECONNABORTED => {
            NetError::Closed
        }
        other => errno_text(other),
    }
}

fn start(shared: &Arc<Shared>, request: Request) {
    if let Some(unsent) = executor::start_here(shared, request) {
        shared.inboxes[0].send(Message::Start(unsent));
    }
}

/// Make a socket; a poller needs it non-blocking, a ring needs it blocking.
fn new_socket(shared: &Shared, family: i32) -> Result<OwnedFd, i32> {
    let flag = if shared.engine == Engine::Threads { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flag, 0) };
    sys::check(fd).map(sys::own).map_err(|e| -sys::negative(&e))
}

struct RealConn {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
    peer: String,
    credentials: Option<Credentials>,
}

impl RealConn {
    fn of(shared: Arc<Shared>, fd: OwnedFd, address: &Address) -> Arc<dyn Conn> {
        let (peer, credentials) = match address {
            Address::Tcp { .. } => {
                // Failing leaves Nagle's algorithm on: slower, not wrong.
                let _ = sys::set_option(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
                (peer_of_tcp(&fd), None)
            }
            Address::Unix(_) => peer_of_unix(&fd),
        };
        Arc::new(RealConn { shared, socket: Socket::new(fd), peer, credentials })
    }
}

fn peer_of_tcp(fd: &OwnedFd) -> String {
    let peer = fd.try_clone().map(TcpStream::from).and_then(|s| s.peer_addr());
    peer.map_or_else(|_| "tcp".to_owned(), |p| format!("tcp:{p}"))
}

fn peer_of_unix(fd: &OwnedFd) -> (String, Option<Credentials>) {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: fills a live struct of the length given.
    let got = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut len)
    };
    // Without a process there is nobody: the kernel has no credentials of a socket that is not connected.
    if got != 0 || who.pid == 0 {
        return ("unix".to_owned(), None);
    }
    let text = format!("unix pid {} uid {}", who.pid, who.uid);
    (text, Some(Credentials { uid: who.uid, gid: who.gid }))
}

impl Runtime {
    /// One end of a connection that another process has made, on this runtime's executors.
    ///
    /// # Errors
    /// The system's.
    pub fn connection(&self, fd: OwnedFd) -> io::Result<Arc<dyn Conn>> {
        // As `new_socket` has it.
        sys::set_nonblocking(fd.as_raw_fd(), self.shared().engine == Engine::Threads)?;
        let conn = RealConn {
            shared: self.shared().clone(),
            socket: Socket::new(fd),
            peer: "kernel".to_owned(),
            credentials: None,
        };
        Ok(Arc::new(conn))
    }
}

impl Conn for RealConn {
    fn receive(&self, buf: Buf) -> NetFuture<(Result<usize, NetError>, Buf)> {
        assert!(!buf.is_empty(), "receive into a buffer with room");
        let (shared, socket) = (self.shared.clone(), self.socket.clone());
        Box::pin(async move {
            let (reply, answer) = one_shot();
            start(&shared, Request::Receive { socket, buf, reply });
            match answer.await {
                Some((result, buf)) => (usize::try_from(result).map_err(|_| stream_error(-result)), buf),
                // The runtime has ended; the buffer went with its driver.
                None => (Err(NetError::Closed), Buf::zeroed(0)),
            }
        })
    }

    fn send(&self, data: SharedBufs) -> NetFuture<Result<(), NetError>> {
        let (shared, socket) = (self.shared.clone(), self.socket.clone());
        Box::pin(async move {
            if data.is_empty() {
                return Ok(());
            }
            let (reply, answer) = one_shot();
            start(&shared, Request::Send { socket, data, reply });
            match answer.await {
                Some(0) => Ok(()),
                Some(errno) => Err(stream_error(-errno)),
                None => Err(NetError::Closed),
            }
        })
    }

    fn close(&self) {
        self.socket.close();
    }

    fn hung_up(&self) -> NetFuture<()> {
        let (shared, socket) = (self.shared.clone(), self.socket.clone());
        Box::pin(async move {
            let (reply, answer) = one_shot();
            start(&shared, Request::HungUp { socket, reply });
            answer.await;
        })
    }

    fn hang_up(&self) -> Option<HangUp> {
        if self.socket.is_closed() { Some(HangUp::Both) } else { sys::hang_up(self.socket.fd()) }
    }

    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn credentials(&self) -> Option<Credentials> {
        self.credentials
    }
}

struct RealListener {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
    address: Address,
}

impl Listener for RealListener {
    fn accept(&self) -> NetFuture<Result<Arc<dyn Conn>, NetError>> {
        let (shared, socket, address) = (self.shared.clone(), self.socket.clone(), self.address.clone());
        Box::pin(async move {
            loop {
                if socket.is_closed() {
                    return Err(NetError::Closed);
                }
                let (reply, answer) = one_shot();
                start(&shared, Request::Accept { socket: socket.clone(), reply });
                match answer.await {
                    Some(Ok(fd)) => return Ok(RealConn::of(shared, fd, &address)),
                    // A client that went away while it waited.
                    Some(Err(libc::ECONNABORTED | libc::EINTR | libc::EPROTO)) => {}
                    // Out of descriptors or memory: others will end and give theirs back.
                    Some(Err(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) => {
                        Sleep::new(shared.clone(), shared.now_ns() + ACCEPT_PAUSE_NS).await;
                    }
                    Some(Err(errno)) if socket.is_closed() || errno == libc::ECANCELED => {
                        return Err(NetError::Closed);
                    }
                    Some(Err(errno)) => return Err(errno_text(errno)),
                    None => return Err(NetError::Closed),
                }
            }
        })
    }

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn close(&self) {
        if self.socket.is_closed() {
            return;
        }
        // The path first: whoever finds the socket refusing must not take the next server's path for stale.
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
        self.socket.close();
    }
}

impl Drop for RealListener {
    fn drop(&mut self) {
        self.close();
    }
}

/// The network seam of the real world.
pub(crate) struct RealNet(pub(crate) Arc<Shared>);

impl Net for RealNet {
    fn listen(&self, address: &Address) -> NetFuture<Result<Arc<dyn Listener>, NetError>> {
        let (shared, address) = (self.0.clone(), address.clone());
        Box::pin(async move {
            let (fd, address) = match &address {
                Address::Unix(path) => (listen_unix(&shared, path)?, address),
                Address::Tcp { host, port } => {
                    let found = resolve(&shared, host, *port).await?;
                    listen_tcp(&shared, &found, host, &address)?
                }
            };
            Ok(Arc::new(RealListener { shared, socket: Socket::new(fd), address }) as Arc<dyn Listener>)
        })
    }

    fn connect(&self, address: &Address) -> NetFuture<Result<Arc<dyn Conn>, NetError>> {
        let (shared, address) = (self.0.clone(), address.clone());
        Box::pin(async move {
            match &address {
                Address::Unix(path) => {
                    let fd = connect_unix(&shared, path, &address).await?;
                    Ok(RealConn::of(shared, fd, &address))
                }
                Address::Tcp { host, port } => {
                    let mut last = NetError::Refused(address.clone());
                    for found in resolve(&shared, host, *port).await? {
                        match connect_one(&shared, SocketAddress::tcp(found)).await {
                            Ok(fd) => return Ok(RealConn::of(shared, fd, &address)),
                            Err(libc::ECONNREFUSED) => last = NetError::Refused(address.clone()),
                            Err(errno) => last = errno_text(errno),
                        }
                    }
                    Err(last)
                }
            }
        })
    }
}

/// Connect one socket to one address, or an errno.
async fn connect_one(shared: &Arc<Shared>, to: SocketAddress) -> Result<OwnedFd, i32> {
    let socket = Socket::new(new_socket(shared, to.family())?);
    let (reply, answer) = one_shot();
    start(shared, Request::Connect { socket: socket.clone(), address: Box::new(to), reply });
    match answer.await {
        Some(0) => match Arc::try_unwrap(socket) {
            Ok(socket) => Ok(socket.fd),
            // The request is gone, so nobody else holds it; a copy of the descriptor is as good.
            Err(shared) => shared.fd.try_clone().map_err(|e| -sys::negative(&e)),
        },
        Some(errno) => Err(-errno),
        None => Err(libc::ECANCELED),
    }
}

async fn connect_unix(shared: &Arc<Shared>, path: &Path, address: &Address) -> Result<OwnedFd, NetError> {
    for _ in 0..CONNECT_TRIES_MAX {
        let Some(to) = SocketAddress::unix(path) else {
            return Err(bad_path(path));
        };
        match connect_one(shared, to).await {
            Ok(fd) => return Ok(fd),
            // The backlog of a unix socket is full; there is nothing to poll for.
            Err(libc::EAGAIN) => Sleep::new(shared.clone(), shared.now_ns() + CONNECT_PAUSE_NS).await,
            Err(libc::ECONNREFUSED | libc::ENOENT) => return Err(NetError::Refused(address.clone())),
            Err(errno) => return Err(errno_text(errno)),
        }
    }
    Err(NetError::Refused(address.clone()))
}

fn bad_path(path: &Path) -> NetError {
    NetError::Errno(format!("{} is not a socket path: it must have 1 to 107 bytes", path.display()))
}

fn listen_unix(shared: &Shared, path: &Path) -> Result<OwnedFd, NetError> {
    let address = SocketAddress::unix(path).ok_or_else(|| bad_path(path))?;
    let fd = new_socket(shared, libc::AF_UNIX).map_err(errno_text)?;
    // The mode of the socket's own inode is what bind gives the path: there is no moment at which others may connect.
    // SAFETY: no memory is passed.
    sys::check(unsafe { libc::fchmod(fd.as_raw_fd(), SOCKET_MODE) }).map_err(|e| errno_text(-sys::negative(&e)))?;
    let bind = || {
        // SAFETY: the address lives and has that length.
        sys::check(unsafe { libc::bind(fd.as_raw_fd(), address.as_ptr(), address.len()) })
    };
    if let Err(e) = bind() {
        if e.raw_os_error() != Some(libc::EADDRINUSE) {
            return Err(errno_text(-sys::negative(&e)));
        }
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if !is_socket {
            return Err(NetError::Errno(format!("{} exists and is not a socket", path.display())));
        }
        match UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
            _ => return Err(NetError::InUse(Address::Unix(path.to_owned()))),
        }
        std::fs::remove_file(path).map_err(|e| errno_text(-sys::negative(&e)))?;
        bind().map_err(|e| errno_text(-sys::negative(&e)))?;
    }
    // SAFETY: no memory is passed.
    sys::check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG_MAX) }).map_err(|e| errno_text(-sys::negative(&e)))?;
    Ok(fd)
}

fn listen_tcp(
    shared: &Shared,
    found: &[SocketAddr],
    host: &str,
    address: &Address,
) -> Result<(OwnedFd, Address), NetError> {
    let listener = TcpListener::bind(found).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => NetError::InUse(address.clone()),
        _ => NetError::Errno(format!("{address}: {e}")),
    })?;
    let port = listener.local_addr().map_err(|e| NetError::Errno(e.to_string()))?.port();
    if shared.engine == Engine::Threads {
        listener.set_nonblocking(true).map_err(|e| NetError::Errno(e.to_string()))?;
    }
    let fd = OwnedFd::from(listener);
    // Again, with a backlog for thousands.
    // SAFETY: no memory is passed.
    sys::check(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG_MAX) }).map_err(|e| errno_text(-sys::negative(&e)))?;
    Ok((fd, Address::Tcp { host: host.to_owned(), port }))
}

/// The addresses of a host; a name is looked up on a thread that may block.
async fn resolve(shared: &Arc<Shared>, host: &str, port: u16) -> Result<Vec<SocketAddr>, NetError> {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (reply, answer) = one_shot();
    let name = host.clone();
    shared.resolver.submit(move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        reply.send(found.map_err(|e| e.to_string()));
    });
    match answer.await {
        Some(Ok(found)) if !found.is_empty() => Ok(found),
        Some(Ok(_)) => Err(NetError::Errno(format!("{host} has no address"))),
        Some(Err(e)) => Err(NetError::Errno(format!("{host}: {e}"))),
        None => Err(NetError::Closed),
    }
}
