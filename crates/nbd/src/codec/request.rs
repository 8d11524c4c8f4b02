//! Requests of the transmission phase: 28 bytes each, followed by the payload of a WRITE.

use super::{CodecError, CommandFlags, Cursor, Errno, MAGIC_REQUEST, TransmissionFlags};

/// What a client picked to know the reply by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read.
    Read,
    /// Write; the payload follows the header.
    Write,
    /// Finish what is under way and close; no reply.
    Disconnect,
    /// Make durable every write replied to.
    Flush,
    /// The range is dead.
    Trim,
    /// Fetch the range into the cache.
    Cache,
    /// Make the range read as zeroes.
    WriteZeroes,
    /// Describe the range by the contexts negotiated.
    BlockStatus,
    /// Not a command known here: EINVAL.
    Unknown(u16),
}

impl Command {
    /// The value on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Unknown(code) => code,
        }
    }

    /// The verb of a value on the wire.
    #[must_use]
    pub const fn from_wire(code: u16) -> Command {
        match code {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            code => Command::Unknown(code),
        }
    }

    /// Flags that mean something to it, besides FUA, which the protocol allows everywhere.
    const fn flags(self) -> CommandFlags {
        match self {
            Command::Read => CommandFlags::DF,
            Command::WriteZeroes => CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO),
            Command::BlockStatus => CommandFlags::REQ_ONE,
            _ => CommandFlags::NONE,
        }
    }

    /// Whether it changes the export.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its flags, unknown bits included.
    pub flags: CommandFlags,
    /// Its verb.
    pub command: Command,
    /// Comes back in the reply.
    pub cookie: Cookie,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// What requests are checked against: the export as this connection negotiated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportShape {
    /// Bytes.
    pub size_bytes: u64,
    /// As announced.
    pub flags: TransmissionFlags,
    /// At least one meta context is selected.
    pub contexts: bool,
    /// Longest payload in bytes, as announced.
    pub payload_bytes_max: u32,
    /// Longest unfragmented read in bytes.
    pub unfragmented_bytes_max: u32,
}

/// Why a request is answered with an error before anything is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For the wire.
    pub errno: Errno,
    /// For the person at the other end.
    pub message: &'static str,
}

impl Request {
    /// Bytes of a header.
    pub const BYTES: usize = 28;

    /// Read a header.
    ///
    /// # Errors
    /// Not a request: the stream cannot be followed any further.
    pub fn decode(bytes: &[u8; Request::BYTES]) -> Result<Request, CodecError> {
        let mut cursor = Cursor::new(bytes);
        let malformed = CodecError::Malformed("request");
        let magic = cursor.u32().ok_or(malformed)?;
        if magic != MAGIC_REQUEST {
            return Err(CodecError::RequestMagic(magic));
        }
        Ok(Request {
            flags: CommandFlags::from_bits(cursor.u16().ok_or(malformed)?),
            command: Command::from_wire(cursor.u16().ok_or(malformed)?),
            cookie: Cookie(cursor.u64().ok_or(malformed)?),
            offset: cursor.u64().ok_or(malformed)?,
            len: cursor.u32().ok_or(malformed)?,
        })
    }

    /// Write a header.
    #[must_use]
    pub fn encode(&self) -> [u8; Request::BYTES] {
        let mut out = [0; Request::BYTES];
        out[..4].copy_from_slice(&MAGIC_REQUEST.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.bits().to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_wire().to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.0.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// Bytes that follow the header on the wire, whether or not the request is any good.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        match self.command {
            Command::Write => self.len,
            _ => 0,
        }
    }

    /// Whether the request may be carried out on `shape`.
    ///
    /// # Errors
    /// The errno the protocol names for what is wrong with it.
    pub fn check(&self, shape: &ExportShape) -> Result<(), Refusal> {
        let inval = |message| Refusal { errno: Errno::Inval, message };
        if self.command == Command::Disconnect {
            // It has no reply that could refuse it: flags nobody knows change nothing about leaving.
            return Ok(());
        }
        if let Command::Unknown(_) = self.command {
            return Err(inval("unknown command"));
        }
        let allowed = self.command.flags().with(CommandFlags::FUA);
        if self.flags.without(allowed) != CommandFlags::NONE {
            return Err(inval("flag not valid for this command"));
        }
        if self.command.is_write() && shape.flags.contains(TransmissionFlags::READ_ONLY) {
            return Err(Refusal { errno: Errno::Perm, message: "export is read-only" });
        }
        if self.flags.contains(CommandFlags::DF) && !shape.flags.contains(TransmissionFlags::SEND_DF) {
            return Err(inval("DF needs structured replies"));
        }
        match self.command {
            Command::Flush if self.offset != 0 || self.len != 0 => {
                return Err(inval("FLUSH has neither offset nor length"));
            }
            Command::Flush | Command::Disconnect | Command::Unknown(_) => return Ok(()),
            Command::Read | Command::Write if self.len > shape.payload_bytes_max => {
                return Err(inval("longer than the maximum block size"));
            }
            Command::Read if self.flags.contains(CommandFlags::DF) && self.len > shape.unfragmented_bytes_max => {
                return Err(Refusal { errno: Errno::Overflow, message: "too long for one chunk" });
            }
            Command::BlockStatus if !shape.contexts => return Err(inval("no meta context was negotiated")),
            Command::BlockStatus if self.len == 0 => return Err(inval("an empty range has no status")),
            _ => {}
        }
        // Cannot overflow the comparison: a sum beyond 2^64 is beyond every end.
        match self.offset.checked_add(u64::from(self.len)) {
            Some(end) if end <= shape.size_bytes => Ok(()),
            _ if matches!(self.command, Command::Write | Command::WriteZeroes) => {
                Err(Refusal { errno: Errno::NoSpc, message: "beyond the end of the export" })
            }
            _ => Err(inval("beyond the end of the export")),
        }
    }
}
