//! An NBD client: pipelined requests on one connection, structured replies, meta contexts.
//!
//! One task per connection sends what has been asked since it last looked with one call and hands replies to who waits
//! for them. Never retries and never reconnects: [`RemoteDisk`] does.

mod driver;
mod keep;
mod negotiate;
mod options;
mod remote;
mod sabotage;
mod uri;

pub use options::RemoteOptions;
pub use remote::{RemoteDisk, Standing};
pub use sabotage::Sabotage;
pub use uri::{DEFAULT_PORT, Uri, UriError};

use crate::codec::{CodecError, Command, CommandFlags, Errno, StatusExtent, TransmissionFlags};
use device::sync::{Receiver, Semaphore, one_shot};
use device::{Address, Bufs, NetError, SharedBufs, World};
use driver::{Channel, Submission};
use std::sync::Arc;
use std::time::Duration;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Use structured replies when the server has them; without them there is neither BLOCK_STATUS nor a stamp.
    pub structured: bool,
    /// Meta contexts to select; those the server does not have are left out.
    pub contexts: Vec<String>,
    /// Requests under way at a time; further ones wait.
    pub requests_max: usize,
    /// For connecting and the whole handshake.
    pub handshake_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            structured: true,
            contexts: vec![crate::context::ALLOCATION.to_owned()],
            requests_max: 256,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// An export as the server described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteExport {
    /// The name it was asked by.
    pub name: String,
    /// Bytes.
    pub size_bytes: u64,
    /// What it can do.
    pub flags: TransmissionFlags,
    /// Offsets and lengths are multiples of it; 1 when the server does not say.
    pub block_bytes_min: u32,
    /// Fast from here on; 4096 when the server does not say.
    pub block_bytes_preferred: u32,
    /// Longest payload; 32 MiB when the server does not say.
    pub block_bytes_max: u32,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// Contexts selected, by number.
    pub contexts: Vec<(u32, String)>,
    /// The instance stamp (DESIGN I9); none for servers that have none.
    pub instance: Option<u128>,
}

/// Why a client could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The network.
    #[error("{0}")]
    Net(#[from] NetError),
    /// The server's bytes were not the protocol.
    #[error("server broke the protocol: {0}")]
    Protocol(#[from] CodecError),
    /// The server refused in the handshake.
    #[error("server refused the export {export:?}: {message}")]
    Refused {
        /// The export asked for.
        export: String,
        /// What the server said.
        message: String,
    },
    /// The server answered with an error.
    #[error("{errno}{}{message}", if .message.is_empty() { "" } else { ": " })]
    Remote {
        /// The errno.
        errno: Errno,
        /// What the server said; may be empty.
        message: String,
    },
    /// The connection was lost before the reply: the request may or may not have been done, and may still be.
    #[error("connection lost before the reply")]
    Lost,
    /// The handshake took too long.
    #[error("no answer within the handshake time-out; hint: is it an NBD server?")]
    TimedOut,
    /// The export cannot do that.
    #[error("export has no {0}")]
    Unsupported(&'static str),
    /// The request does not fit the export.
    #[error("request of {len} bytes is longer than the export's maximum of {max}")]
    TooLong {
        /// Bytes asked for.
        len: usize,
        /// Bytes allowed.
        max: u32,
    },
}

/// What one context says of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextStatus {
    /// The context's name.
    pub context: String,
    /// From the start of the range on; may end early.
    pub extents: Vec<StatusExtent>,
}

/// A connection to an export. Clones share it; it is closed when the last is dropped.
#[derive(Clone)]
pub struct Client {
    export: Arc<RemoteExport>,
    slots: Semaphore,
    channel: Arc<Hold>,
}

/// Closes the connection when the last client handle goes.
struct Hold(Arc<Channel>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Client {
    /// Connect to `export` at `address`.
    ///
    /// # Errors
    /// Nobody there, not an NBD server, no such export, or too slow.
    pub async fn connect(
        world: &World,
        address: &Address,
        export: &str,
        options: &ClientOptions,
    ) -> Result<Client, ClientError> {
        let negotiated = async {
            let conn = world.net.connect(address).await?;
            let outcome = negotiate::negotiate(&conn, export, options).await;
            if outcome.is_err() {
                conn.close();
            }
            outcome.map(|(export, unread)| (conn, export, unread))
        };
        let late = world.clock.sleep(options.handshake_timeout);
        let (conn, export, unread) = match futures_util::future::select(Box::pin(negotiated), late).await {
            futures_util::future::Either::Left((outcome, _)) => outcome?,
            futures_util::future::Either::Right(_) => return Err(ClientError::TimedOut),
        };
        let channel = Channel::start(world, conn, export.structured, unread);
        let slots = Semaphore::new(options.requests_max.max(1) as u64);
        Ok(Client { export: Arc::new(export), slots, channel: Arc::new(Hold(channel)) })
    }

    /// The export.
    #[must_use]
    pub fn export(&self) -> &RemoteExport {
        &self.export
    }

    /// Whether the connection is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.channel.0.is_lost()
    }

    /// Fill `bufs` from `offset`; they come back in every case.
    ///
    /// # Errors
    /// The server's, a lost connection, or a length beyond the export's maximum.
    pub async fn read(&self, offset: u64, bufs: Bufs) -> (Result<(), ClientError>, Bufs) {
        let len = bufs.len_bytes();
        match self.payload_len(len) {
            Ok(0) => (Ok(()), bufs),
            Ok(len) => {
                let answer = self.ask(Command::Read, CommandFlags::NONE, offset, len, SharedBufs::new(), bufs).await;
                (answer.result, answer.bufs)
            }
            Err(error) => (Err(error), bufs),
        }
    }

    /// Write `data` at `offset`; with `fua` it is durable when done.
    ///
    /// # Errors
    /// As [`Client::read`]; [`ClientError::Unsupported`] when the export has no FUA.
    pub async fn write(&self, offset: u64, data: SharedBufs, fua: bool) -> Result<(), ClientError> {
        let len = self.payload_len(data.len_bytes())?;
        let flags = self.fua(fua)?;
        self.ask(Command::Write, flags, offset, len, data, Bufs::new()).await.result
    }

    /// Make durable what was acknowledged before.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.needs(TransmissionFlags::SEND_FLUSH, "FLUSH")?;
        self.bare(Command::Flush, CommandFlags::NONE, 0, 0).await
    }

    /// The range is dead.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn trim(&self, offset: u64, len: u32, fua: bool) -> Result<(), ClientError> {
        self.needs(TransmissionFlags::SEND_TRIM, "TRIM")?;
        self.bare(Command::Trim, self.fua(fua)?, offset, len).await
    }

    /// Make the range read as zeroes.
    ///
    /// # Errors
    /// As [`Client::write`]; the server's ENOTSUP when `fast` was asked and it would be slow.
    pub async fn write_zeroes(
        &self,
        offset: u64,
        len: u32,
        no_hole: bool,
        fast: bool,
        fua: bool,
    ) -> Result<(), ClientError> {
        self.needs(TransmissionFlags::SEND_WRITE_ZEROES, "WRITE_ZEROES")?;
        if fast {
            self.needs(TransmissionFlags::SEND_FAST_ZERO, "FAST_ZERO")?;
        }
        let flags = self.fua(fua)?.with_if(CommandFlags::NO_HOLE, no_hole).with_if(CommandFlags::FAST_ZERO, fast);
        self.bare(Command::WriteZeroes, flags, offset, len).await
    }

    /// Fetch the range into the server's cache.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub async fn cache(&self, offset: u64, len: u32) -> Result<(), ClientError> {
        self.needs(TransmissionFlags::SEND_CACHE, "CACHE")?;
        self.bare(Command::Cache, CommandFlags::NONE, offset, len).await
    }

    /// What every selected context says of the range; with `one` a single extent each.
    ///
    /// # Errors
    /// As [`Client::read`]; [`ClientError::Unsupported`] when no context is selected.
    pub async fn block_status(&self, offset: u64, len: u32, one: bool) -> Result<Vec<ContextStatus>, ClientError> {
        if self.export.contexts.is_empty() {
            return Err(ClientError::Unsupported("meta context"));
        }
        let flags = CommandFlags::NONE.with_if(CommandFlags::REQ_ONE, one);
        let answer = self.ask(Command::BlockStatus, flags, offset, len, SharedBufs::new(), Bufs::new()).await;
        answer.result?;
        let name = |id| self.export.contexts.iter().find(|(known, _)| *known == id).map(|(_, name)| name.clone());
        let named = |(id, extents)| name(id).map(|context| ContextStatus { context, extents });
        Ok(answer.extents.into_iter().filter_map(named).collect())
    }

    /// Let what is under way finish, say goodbye, and close. Requests of other handles from now on are lost.
    pub async fn disconnect(self) {
        self.channel.0.leave();
        self.channel.0.closed().await;
    }

    /// Close at once: what is under way is lost.
    pub fn abort(&self) {
        self.channel.0.abort();
    }

    fn payload_len(&self, len: usize) -> Result<u32, ClientError> {
        let max = self.export.block_bytes_max;
        u32::try_from(len).ok().filter(|len| *len <= max).ok_or(ClientError::TooLong { len, max })
    }

    fn needs(&self, flag: TransmissionFlags, name: &'static str) -> Result<(), ClientError> {
        if self.export.flags.contains(flag) { Ok(()) } else { Err(ClientError::Unsupported(name)) }
    }

    fn fua(&self, fua: bool) -> Result<CommandFlags, ClientError> {
        if fua {
            self.needs(TransmissionFlags::SEND_FUA, "FUA")?;
        }
        Ok(CommandFlags::NONE.with_if(CommandFlags::FUA, fua))
    }

    async fn bare(&self, command: Command, flags: CommandFlags, offset: u64, len: u32) -> Result<(), ClientError> {
        self.ask(command, flags, offset, len, SharedBufs::new(), Bufs::new()).await.result
    }

    async fn ask(
        &self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        len: u32,
        payload: SharedBufs,
        into: Bufs,
    ) -> Answer {
        let _slot = self.slots.acquire(1).await;
        let (sender, receiver): (_, Receiver<Answer>) = one_shot();
        self.channel.0.submit(Submission { command, flags, offset, len, payload, into, sender });
        match receiver.await {
            Some(answer) => answer,
            // The driver's task is gone: only when its world has been taken down.
            None => Answer { result: Err(ClientError::Lost), bufs: Bufs::new(), extents: Vec::new() },
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.export.name)
    }
}

/// What came of a request.
pub(crate) struct Answer {
    result: Result<(), ClientError>,
    bufs: Bufs,
    extents: Vec<(u32, Vec<StatusExtent>)>,
}
