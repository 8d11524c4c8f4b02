//! The network seam: byte streams over unix sockets and TCP.
//!
//! Never knows a protocol; never buffers beyond what it is handed.

use crate::buf::{Buf, SharedBufs};
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

/// Where to listen or connect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A unix socket path.
    Unix(PathBuf),
    /// A TCP host name or address and port. Port 0 on listen: any free one.
    Tcp {
        /// Host name or numeric address.
        host: String,
        /// Port.
        port: u16,
    },
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// Why a network verb failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// The other side closed, or the connection was reset.
    #[error("connection closed")]
    Closed,
    /// A live server already listens there.
    #[error("address in use: {0}")]
    InUse(Address),
    /// Nobody listens there.
    #[error("connection refused: {0}")]
    Refused(Address),
    /// Anything else.
    #[error("network error: {0}")]
    Errno(String),
}

/// A process at the other end of a unix socket, as the kernel saw it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// How much of a connection the other side has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// Nothing more follows what it has sent; it may still take replies. Over TCP a closed connection looks so until it is sent something.
    Sending,
    /// Both directions: it is closed, reset, or lost. What it sent before that may still be received.
    Both,
}

/// A boxed future of this seam.
pub type NetFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// One connection. Clones of the `Arc` may receive and send at the same time; each direction has one user at a time.
pub trait Conn: Send + Sync {
    /// Receive at least one byte into `buf`, at most its length; the count is 0 at the end of the stream.
    /// The buffer comes back in every case.
    fn receive(&self, buf: Buf) -> NetFuture<(Result<usize, NetError>, Buf)>;
    /// Send all of `data`, in order, in as few system calls as possible.
    fn send(&self, data: SharedBufs) -> NetFuture<Result<(), NetError>>;
    /// Shut down both directions; pending verbs end with [`NetError::Closed`] or end of stream.
    fn close(&self);
    /// Ready when [`Conn::hang_up`] is not `None` any more, whether or not anybody receives.
    fn hung_up(&self) -> NetFuture<()>;
    /// How much of it the other side has ended by now, as far as this host knows; all of it when this side has closed it. `None`: nothing.
    fn hang_up(&self) -> Option<HangUp>;
    /// Who is on the other side, for messages.
    fn peer(&self) -> String;
    /// Whose process is on the other side. None: it is another host's, or nobody can tell.
    fn credentials(&self) -> Option<Credentials>;
}

/// A listening socket.
pub trait Listener: Send + Sync {
    /// The next connection.
    fn accept(&self) -> NetFuture<Result<Arc<dyn Conn>, NetError>>;
    /// The address really bound.
    fn address(&self) -> Address;
    /// Stop listening; a pending accept ends with [`NetError::Closed`]. A unix socket's path is removed.
    fn close(&self);
}

/// The network seam.
pub trait Net: Send + Sync {
    /// Listen. A unix socket left by a dead server is removed first; a live one is [`NetError::InUse`].
    fn listen(&self, address: &Address) -> NetFuture<Result<Arc<dyn Listener>, NetError>>;
    /// Connect.
    fn connect(&self, address: &Address) -> NetFuture<Result<Arc<dyn Conn>, NetError>>;
}
