//! Replies to options.

use super::{CodecError, Cursor, MAGIC_OPTION_REPLY, OPTION_REPLY_BYTES_MAX, STRING_BYTES_MAX, TransmissionFlags};

/// Numbers of information requests.
pub mod info {
    /// Size and flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A line for people.
    pub const DESCRIPTION: u16 = 2;
    /// Block size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const REP_FLAG_ERROR: u32 = 1 << 31;

/// The kind of an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepError {
    /// The option is not known.
    Unsup,
    /// The option is forbidden here.
    Policy,
    /// The option's data makes no sense.
    Invalid,
    /// Not on this platform.
    Platform,
    /// TLS comes first.
    TlsReqd,
    /// No such export.
    Unknown,
    /// The server is stopping.
    Shutdown,
    /// The client must ask for block sizes.
    BlockSizeReqd,
    /// The option is too long.
    TooBig,
    /// Extended headers come first.
    ExtHeaderReqd,
    /// A number not known here.
    Other(u32),
}

impl RepError {
    const TABLE: [(RepError, u32); 10] = [
        (RepError::Unsup, 1),
        (RepError::Policy, 2),
        (RepError::Invalid, 3),
        (RepError::Platform, 4),
        (RepError::TlsReqd, 5),
        (RepError::Unknown, 6),
        (RepError::Shutdown, 7),
        (RepError::BlockSizeReqd, 8),
        (RepError::TooBig, 9),
        (RepError::ExtHeaderReqd, 10),
    ];

    fn from_wire(kind: u32) -> RepError {
        let low = kind & !REP_FLAG_ERROR;
        RepError::TABLE.iter().find(|(_, n)| *n == low).map_or(RepError::Other(low), |(e, _)| *e)
    }

    fn to_wire(self) -> u32 {
        let low = match self {
            RepError::Other(low) => low,
            named => RepError::TABLE.iter().find(|(e, _)| *e == named).map_or(0, |(_, n)| *n),
        };
        low | REP_FLAG_ERROR
    }
}

/// One piece of information on an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Info {
    /// [`info::EXPORT`].
    Export {
        /// Bytes.
        size_bytes: u64,
        /// What it can do.
        flags: TransmissionFlags,
    },
    /// [`info::NAME`].
    Name(String),
    /// [`info::DESCRIPTION`].
    Description(String),
    /// [`info::BLOCK_SIZE`].
    BlockSize {
        /// Offsets and lengths are multiples of it, in bytes.
        minimum: u32,
        /// Fast from here on, in bytes.
        preferred: u32,
        /// Longest payload in bytes.
        maximum: u32,
    },
    /// A piece not known here.
    Unknown(u16),
}

/// The head of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option it answers.
    pub option: u32,
    /// Reply type as on the wire.
    pub kind: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Bytes of a head.
    pub const BYTES: usize = 20;

    /// Read a head.
    ///
    /// # Errors
    /// Not an option reply, or one that is too long.
    pub fn decode(bytes: &[u8; OptionReplyHeader::BYTES]) -> Result<OptionReplyHeader, CodecError> {
        let mut cursor = Cursor::new(bytes);
        let malformed = CodecError::Malformed("option reply");
        let magic = cursor.u64().ok_or(malformed)?;
        if magic != MAGIC_OPTION_REPLY {
            return Err(CodecError::OptionReplyMagic(magic));
        }
        let header = OptionReplyHeader {
            option: cursor.u32().ok_or(malformed)?,
            kind: cursor.u32().ok_or(malformed)?,
            len: cursor.u32().ok_or(malformed)?,
        };
        if header.len > OPTION_REPLY_BYTES_MAX {
            let max = u64::from(OPTION_REPLY_BYTES_MAX);
            return Err(CodecError::TooLong { what: "option reply", len: u64::from(header.len), max });
        }
        Ok(header)
    }
}

/// A reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionReply {
    /// Done.
    Ack,
    /// One export of the list.
    Server {
        /// Its name.
        name: String,
        /// A line for people.
        details: String,
    },
    /// One piece of information.
    Info(Info),
    /// One meta context.
    MetaContext {
        /// Its number in replies of this connection.
        id: u32,
        /// Its name.
        name: String,
    },
    /// Refused; the handshake goes on.
    Error {
        /// Why.
        kind: RepError,
        /// For people.
        message: String,
    },
}

impl OptionReply {
    /// An error reply.
    #[must_use]
    pub fn error(kind: RepError, message: impl Into<String>) -> OptionReply {
        OptionReply::Error { kind, message: message.into() }
    }

    /// Append the reply to `option`, head and data, to `out`. Strings beyond the protocol's limit are cut.
    pub fn encode(&self, option: u32, out: &mut Vec<u8>) {
        let kind = match self {
            OptionReply::Ack => REP_ACK,
            OptionReply::Server { .. } => REP_SERVER,
            OptionReply::Info(_) => REP_INFO,
            OptionReply::MetaContext { .. } => REP_META_CONTEXT,
            OptionReply::Error { kind, .. } => kind.to_wire(),
        };
        let start = out.len();
        out.extend_from_slice(&MAGIC_OPTION_REPLY.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        match self {
            OptionReply::Ack => {}
            OptionReply::Server { name, details } => {
                let name = cut(name);
                out.extend_from_slice(&(name.len() as u32).to_be_bytes());
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(cut(details).as_bytes());
            }
            OptionReply::Info(piece) => piece.encode(out),
            OptionReply::MetaContext { id, name } => {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(cut(name).as_bytes());
            }
            OptionReply::Error { message, .. } => out.extend_from_slice(cut(message).as_bytes()),
        }
        let len = (out.len() - start - OptionReplyHeader::BYTES) as u32;
        out[start + 16..start + 20].copy_from_slice(&len.to_be_bytes());
    }

    /// Read the data of a reply whose head said `kind`.
    ///
    /// # Errors
    /// A kind that is neither known nor an error, or data that does not fit it.
    pub fn decode(kind: u32, data: &[u8]) -> Result<OptionReply, CodecError> {
        let mut cursor = Cursor::new(data);
        let malformed = CodecError::Malformed("option reply");
        if kind & REP_FLAG_ERROR != 0 {
            let message = String::from_utf8_lossy(cursor.rest()).into_owned();
            return Ok(OptionReply::Error { kind: RepError::from_wire(kind), message });
        }
        let reply = match kind {
            REP_ACK => OptionReply::Ack,
            REP_SERVER => {
                let len = cursor.u32().ok_or(malformed)? as usize;
                let name = text(cursor.bytes(len).ok_or(malformed)?)?;
                let details = String::from_utf8_lossy(cursor.rest()).into_owned();
                OptionReply::Server { name, details }
            }
            REP_INFO => OptionReply::Info(Info::decode(&mut cursor)?),
            REP_META_CONTEXT => {
                let id = cursor.u32().ok_or(malformed)?;
                OptionReply::MetaContext { id, name: text(cursor.rest())? }
            }
            _ => return Err(CodecError::Malformed("option reply type")),
        };
        if cursor.left() > 0 {
            return Err(malformed);
        }
        Ok(reply)
    }
}

impl Info {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Info::Export { size_bytes, flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&size_bytes.to_be_bytes());
                out.extend_from_slice(&flags.bits().to_be_bytes());
            }
            Info::Name(name) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(cut(name).as_bytes());
            }
            Info::Description(line) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(cut(line).as_bytes());
            }
            Info::BlockSize { minimum, preferred, maximum } => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                out.extend_from_slice(&minimum.to_be_bytes());
                out.extend_from_slice(&preferred.to_be_bytes());
                out.extend_from_slice(&maximum.to_be_bytes());
            }
            Info::Unknown(number) => out.extend_from_slice(&number.to_be_bytes()),
        }
    }

    fn decode(cursor: &mut Cursor<'_>) -> Result<Info, CodecError> {
        let malformed = CodecError::Malformed("export information");
        Ok(match cursor.u16().ok_or(malformed)? {
            info::EXPORT => Info::Export {
                size_bytes: cursor.u64().ok_or(malformed)?,
                flags: TransmissionFlags::from_bits(cursor.u16().ok_or(malformed)?),
            },
            info::NAME => Info::Name(text(cursor.rest())?),
            info::DESCRIPTION => Info::Description(text(cursor.rest())?),
            info::BLOCK_SIZE => Info::BlockSize {
                minimum: cursor.u32().ok_or(malformed)?,
                preferred: cursor.u32().ok_or(malformed)?,
                maximum: cursor.u32().ok_or(malformed)?,
            },
            number => {
                cursor.rest();
                Info::Unknown(number)
            }
        })
    }
}

fn text(bytes: &[u8]) -> Result<String, CodecError> {
    if bytes.len() > STRING_BYTES_MAX {
        let (len, max) = (bytes.len() as u64, STRING_BYTES_MAX as u64);
        return Err(CodecError::TooLong { what: "string", len, max });
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| CodecError::Malformed("string: not UTF-8"))
}

/// `text` up to the protocol's limit, cut between characters.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(STRING_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
