//! The NBD protocol as bytes, both sides: pure functions and small state machines over slices.
//!
//! Never does I/O, never waits, never allocates more than a limit named here, never panics whatever the bytes are. The
//! fixed newstyle handshake, structured replies and meta contexts are spoken; oldstyle, TLS and extended headers are not.

mod cursor;
mod decode;
mod errno;
mod flags;
mod option;
mod option_reply;
mod reply;
mod request;

pub use decode::{Expect, Expected, ReplyDecoder, ReplyEvent, StatusExtent};
pub use errno::Errno;
pub use flags::{ClientFlags, CommandFlags, HandshakeFlags, TransmissionFlags};
pub use option::{ClientOption, OptionError, OptionHeader, opt};
pub use option_reply::{Info, OptionReply, OptionReplyHeader, RepError, info};
pub use reply::{
    CHUNK_HEADER_BYTES, DATA_HEADER_BYTES, MESSAGE_BYTES_MAX, SIMPLE_REPLY_BYTES, encode_data_header, encode_error,
    encode_export_name_reply, encode_hole, encode_none, encode_simple, encode_status,
};
pub use request::{Command, Cookie, ExportShape, Refusal, Request};

use cursor::Cursor;

/// "NBDMAGIC": the first eight bytes a server sends.
pub const MAGIC_GREETING: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": the second eight bytes, and the head of every option.
pub const MAGIC_OPTION: u64 = 0x4948_4156_454f_5054;
/// The head of every option reply.
pub const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// The head of every request.
pub const MAGIC_REQUEST: u32 = 0x2560_9513;
/// The head of a simple reply.
pub const MAGIC_SIMPLE_REPLY: u32 = 0x6744_6698;
/// The head of a chunk of a structured reply.
pub const MAGIC_STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Longest string on the wire (export name, context name, description): the protocol's own limit.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest option data that is looked at: a name of [`STRING_BYTES_MAX`] and another as a query, and some. It bounds
/// what a client that has not even named an export can make the server hold.
pub const OPTION_BYTES_MAX: usize = 12 * 1024;
/// Longer options up to this are read, thrown away and answered "too big"; beyond it the connection is closed, since
/// a client that sends more is not negotiating.
pub const OPTION_DRAIN_BYTES_MAX: u32 = 64 * 1024;
/// Most queries in one meta context option: far more contexts than any server has.
pub const QUERIES_MAX: u32 = 64;
/// Longest option reply a client looks at: a description or an error text of [`STRING_BYTES_MAX`] beside a name.
pub const OPTION_REPLY_BYTES_MAX: u32 = 64 * 1024;
/// Longest payload of a READ or a WRITE: what the protocol lets a client send without asking.
pub const PAYLOAD_BYTES_MAX: u32 = 32 * 1024 * 1024;
/// Longest unfragmented (DF) read that must be served: the protocol's own floor.
pub const UNFRAGMENTED_BYTES_MIN: u32 = 64 * 1024;

/// Server's greeting: both magics and the flags.
pub const GREETING_BYTES: usize = 18;
/// Client's flags after the greeting.
pub const CLIENT_FLAGS_BYTES: usize = 4;

/// Bytes that are not this protocol: the stream cannot be followed any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Neither magic of a server's greeting.
    #[error("not an NBD server: greeting {0:#018x}; hint: check the address and port")]
    Greeting(u64),
    /// A server of the old style, without options.
    #[error("server speaks the oldstyle handshake only; hint: it is older than 2011, use another server")]
    Oldstyle,
    /// The head of an option was wrong.
    #[error("option starts with {0:#018x} instead of IHAVEOPT")]
    OptionMagic(u64),
    /// The head of an option reply was wrong.
    #[error("option reply starts with the wrong magic {0:#018x}")]
    OptionReplyMagic(u64),
    /// The head of a request was wrong.
    #[error("request starts with the wrong magic {0:#010x}")]
    RequestMagic(u32),
    /// The head of a reply was wrong.
    #[error("reply starts with the wrong magic {0:#010x}")]
    ReplyMagic(u32),
    /// A client flag nobody offered.
    #[error("client set handshake flags {0:#x} that were not offered")]
    ClientFlags(u32),
    /// A length beyond its limit.
    #[error("{what} of {len} bytes is longer than {max}")]
    TooLong {
        /// What was too long.
        what: &'static str,
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// Lengths or fields that contradict each other.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A reply to a request nobody sent.
    #[error("reply with the cookie {0:#x} that no request carries")]
    UnknownCookie(u64),
}

/// The greeting of a server.
#[must_use]
pub fn encode_greeting(flags: HandshakeFlags) -> [u8; GREETING_BYTES] {
    let mut out = [0; GREETING_BYTES];
    out[..8].copy_from_slice(&MAGIC_GREETING.to_be_bytes());
    out[8..16].copy_from_slice(&MAGIC_OPTION.to_be_bytes());
    out[16..].copy_from_slice(&flags.bits().to_be_bytes());
    out
}

/// Read a server's greeting.
///
/// # Errors
/// Not a server of the newstyle.
pub fn decode_greeting(bytes: &[u8; GREETING_BYTES]) -> Result<HandshakeFlags, CodecError> {
    const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
    let mut cursor = Cursor::new(bytes);
    let malformed = CodecError::Malformed("greeting");
    let first = cursor.u64().ok_or(malformed)?;
    let second = cursor.u64().ok_or(malformed)?;
    match (first, second) {
        (MAGIC_GREETING, MAGIC_OPTION) => Ok(HandshakeFlags::from_bits(cursor.u16().ok_or(malformed)?)),
        (MAGIC_GREETING, OLDSTYLE) => Err(CodecError::Oldstyle),
        (MAGIC_GREETING, other) | (other, _) => Err(CodecError::Greeting(other)),
    }
}

/// Read a client's flags.
///
/// # Errors
/// A flag was set that the server did not offer: the protocol has the connection dropped.
pub fn decode_client_flags(bytes: [u8; CLIENT_FLAGS_BYTES]) -> Result<ClientFlags, CodecError> {
    let flags = ClientFlags::from_bits(u32::from_be_bytes(bytes));
    if flags.unknown() != 0 {
        return Err(CodecError::ClientFlags(flags.unknown()));
    }
    Ok(flags)
}
