//! Replies of the transmission phase, as a server writes them: headers only, the data of a read follows from elsewhere.

use super::{Cookie, Errno, MAGIC_SIMPLE_REPLY, MAGIC_STRUCTURED_REPLY, StatusExtent, TransmissionFlags};

/// Bytes of a simple reply without its data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of the head of a chunk.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Bytes of the head of a data chunk, its offset included.
pub const DATA_HEADER_BYTES: usize = CHUNK_HEADER_BYTES + 8;
/// Longest error message in a chunk: a line for people.
pub const MESSAGE_BYTES_MAX: usize = 256;

pub(super) const FLAG_DONE: u16 = 1;
pub(super) const TYPE_NONE: u16 = 0;
pub(super) const TYPE_OFFSET_DATA: u16 = 1;
pub(super) const TYPE_OFFSET_HOLE: u16 = 2;
pub(super) const TYPE_BLOCK_STATUS: u16 = 5;
pub(super) const TYPE_FLAG_ERROR: u16 = 1 << 15;
pub(super) const TYPE_ERROR: u16 = TYPE_FLAG_ERROR | 1;
pub(super) const TYPE_ERROR_OFFSET: u16 = TYPE_FLAG_ERROR | 2;

/// Append a simple reply. For a successful READ its data follows.
pub fn encode_simple(out: &mut Vec<u8>, cookie: Cookie, error: Option<Errno>) {
    out.extend_from_slice(&MAGIC_SIMPLE_REPLY.to_be_bytes());
    out.extend_from_slice(&error.map_or(0, Errno::to_wire).to_be_bytes());
    out.extend_from_slice(&cookie.0.to_be_bytes());
}

fn chunk(out: &mut Vec<u8>, cookie: Cookie, kind: u16, done: bool, len: u32) {
    let flags = if done { FLAG_DONE } else { 0 };
    out.extend_from_slice(&MAGIC_STRUCTURED_REPLY.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.0.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Append the last chunk of a successful structured reply that has nothing to say.
pub fn encode_none(out: &mut Vec<u8>, cookie: Cookie) {
    chunk(out, cookie, TYPE_NONE, true, 0);
}

/// Append the head of a data chunk; `len` bytes of data follow.
///
/// # Panics
/// When `len` is 0: a content chunk holds at least one byte.
pub fn encode_data_header(out: &mut Vec<u8>, cookie: Cookie, offset: u64, len: u32, done: bool) {
    assert!(len > 0, "a content chunk holds at least one byte");
    chunk(out, cookie, TYPE_OFFSET_DATA, done, len + 8);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Append a hole chunk: `len` bytes from `offset` read as zeroes.
///
/// # Panics
/// When `len` is 0: a content chunk describes at least one byte.
pub fn encode_hole(out: &mut Vec<u8>, cookie: Cookie, offset: u64, len: u32, done: bool) {
    assert!(len > 0, "a content chunk describes at least one byte");
    chunk(out, cookie, TYPE_OFFSET_HOLE, done, 12);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Append a status chunk of one context.
///
/// # Panics
/// When `extents` is empty: the protocol wants at least one.
pub fn encode_status(out: &mut Vec<u8>, cookie: Cookie, context: u32, extents: &[StatusExtent], done: bool) {
    assert!(!extents.is_empty(), "a status chunk holds at least one extent");
    chunk(out, cookie, TYPE_BLOCK_STATUS, done, 4 + 8 * extents.len() as u32);
    out.extend_from_slice(&context.to_be_bytes());
    for extent in extents {
        out.extend_from_slice(&extent.len.to_be_bytes());
        out.extend_from_slice(&extent.flags.to_be_bytes());
    }
}

/// Append an error chunk, the last of its reply; with `offset` when it is known where it went wrong. The message is cut
/// to [`MESSAGE_BYTES_MAX`].
pub fn encode_error(out: &mut Vec<u8>, cookie: Cookie, errno: Errno, message: &str, offset: Option<u64>) {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let message = &message.as_bytes()[..end];
    let kind = if offset.is_some() { TYPE_ERROR_OFFSET } else { TYPE_ERROR };
    let tail = if offset.is_some() { 8 } else { 0 };
    chunk(out, cookie, kind, true, (6 + message.len() + tail) as u32);
    out.extend_from_slice(&errno.to_wire().to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message);
    if let Some(offset) = offset {
        out.extend_from_slice(&offset.to_be_bytes());
    }
}

/// Append the reply to EXPORT_NAME, which has a shape of its own and ends the handshake.
pub fn encode_export_name_reply(out: &mut Vec<u8>, size_bytes: u64, flags: TransmissionFlags, zeroes: bool) {
    out.extend_from_slice(&size_bytes.to_be_bytes());
    out.extend_from_slice(&flags.bits().to_be_bytes());
    if zeroes {
        out.extend_from_slice(&[0; 124]);
    }
}
