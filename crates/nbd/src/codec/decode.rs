//! Replies of the transmission phase, as a client reads them: a state machine fed with slices.
//!
//! Data is handed on as it arrives, so nothing is ever gathered here but a header or an error text.

use super::reply::{
    CHUNK_HEADER_BYTES, FLAG_DONE, SIMPLE_REPLY_BYTES, TYPE_BLOCK_STATUS, TYPE_ERROR_OFFSET, TYPE_FLAG_ERROR,
    TYPE_NONE, TYPE_OFFSET_DATA, TYPE_OFFSET_HOLE,
};
use super::{
    CodecError, Command, Cookie, Cursor, Errno, MAGIC_SIMPLE_REPLY, MAGIC_STRUCTURED_REPLY, PAYLOAD_BYTES_MAX,
};

/// Longest payload of an error chunk or of a chunk not known here: both are thrown away but for a line of text.
const ERROR_CHUNK_BYTES_MAX: u32 = 64 * 1024;
/// Most extents in one status chunk: the payload the protocol's other limits allow.
const STATUS_CHUNK_BYTES_MAX: u32 = PAYLOAD_BYTES_MAX;
/// Most extents handed on at once; it bounds one event, not the reply.
const EXTENTS_PER_EVENT_MAX: usize = 512;

/// One stretch of a BLOCK_STATUS answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Bytes.
    pub len: u32,
    /// Meaning depends on the context.
    pub flags: u32,
}

/// What a reply may say: the request it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its verb.
    pub command: Command,
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub len: u32,
}

/// Where the decoder learns which requests wait for a reply.
pub trait Expect {
    /// The request that carries `cookie`, if one waits.
    fn expected(&self, cookie: Cookie) -> Option<Expected>;
}

/// A piece of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent<'a> {
    /// Bytes of a read, from `offset` of the export on; more of the same chunk may follow.
    Data {
        /// The request.
        cookie: Cookie,
        /// First byte, within the request.
        offset: u64,
        /// The bytes, never more than the request asked for.
        bytes: &'a [u8],
    },
    /// A stretch of a read that is zeroes.
    Hole {
        /// The request.
        cookie: Cookie,
        /// First byte, within the request.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Extents of a context; more of the same chunk may follow.
    Status {
        /// The request.
        cookie: Cookie,
        /// The context's number.
        context: u32,
        /// In order.
        extents: Vec<StatusExtent>,
    },
    /// Something went wrong; the reply is not over.
    Error {
        /// The request.
        cookie: Cookie,
        /// What.
        errno: Errno,
        /// For people; may be empty.
        message: String,
        /// Where, if the server knows.
        offset: Option<u64>,
    },
    /// The reply is over.
    Done {
        /// The request.
        cookie: Cookie,
    },
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Between replies or chunks.
    Header,
    /// Within data of a read.
    Data { cookie: Cookie, offset: u64, left: u32, done: bool },
    /// Within extents; `left` bytes.
    Status { cookie: Cookie, context: u32, left: u32, done: bool },
    /// Within bytes nobody wants.
    Skip { cookie: Cookie, left: u32, done: bool },
    /// A reply is over and has not been told yet.
    Over { cookie: Cookie },
}

/// A client's reader of replies.
#[derive(Debug)]
pub struct ReplyDecoder {
    structured: bool,
    state: State,
}

impl ReplyDecoder {
    /// A decoder at the start of the transmission phase. `structured`: structured replies were negotiated.
    #[must_use]
    pub fn new(structured: bool) -> ReplyDecoder {
        ReplyDecoder { structured, state: State::Header }
    }

    /// The next event in `bytes`, none when more bytes are needed, and how many of them were used up: in both cases the
    /// caller goes on behind them. It keeps at most [`ReplyDecoder::CARRY_BYTES_MAX`] unused bytes.
    ///
    /// # Errors
    /// The stream is not one of replies to what was asked and cannot be followed any further.
    pub fn next<'a>(
        &mut self,
        bytes: &'a [u8],
        expect: &dyn Expect,
    ) -> Result<(Option<ReplyEvent<'a>>, usize), CodecError> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            match self.state {
                State::Over { cookie } => {
                    self.state = State::Header;
                    return Ok((Some(ReplyEvent::Done { cookie }), used));
                }
                State::Data { cookie, offset, left, done } => {
                    if rest.is_empty() {
                        return Ok((None, used));
                    }
                    let take = rest.len().min(left as usize);
                    let left = left - take as u32;
                    self.state = if left > 0 {
                        State::Data { cookie, offset: offset + take as u64, left, done }
                    } else {
                        after(cookie, done)
                    };
                    return Ok((Some(ReplyEvent::Data { cookie, offset, bytes: &rest[..take] }), used + take));
                }
                State::Status { cookie, context, left, done } => {
                    let take = (rest.len() / 8).min(left as usize / 8).min(EXTENTS_PER_EVENT_MAX);
                    if take == 0 {
                        return Ok((None, used));
                    }
                    let mut cursor = Cursor::new(&rest[..take * 8]);
                    let mut extents = Vec::with_capacity(take);
                    while let (Some(len), Some(flags)) = (cursor.u32(), cursor.u32()) {
                        if len == 0 {
                            return Err(CodecError::Malformed("block status: empty extent"));
                        }
                        extents.push(StatusExtent { len, flags });
                    }
                    let left = left - 8 * take as u32;
                    self.state =
                        if left > 0 { State::Status { cookie, context, left, done } } else { after(cookie, done) };
                    return Ok((Some(ReplyEvent::Status { cookie, context, extents }), used + take * 8));
                }
                State::Skip { cookie, left, done } => {
                    let take = rest.len().min(left as usize);
                    let left = left - take as u32;
                    used += take;
                    if left > 0 {
                        self.state = State::Skip { cookie, left, done };
                        return Ok((None, used));
                    }
                    self.state = after(cookie, done);
                }
                State::Header => match self.header(rest, expect)? {
                    None => return Ok((None, used)),
                    Some((event, taken)) => {
                        used += taken;
                        if event.is_some() {
                            return Ok((event, used));
                        }
                    }
                },
            }
        }
    }

    /// Read a header and, where it is short and complete by itself, what follows it.
    fn header(
        &mut self,
        bytes: &[u8],
        expect: &dyn Expect,
    ) -> Result<Option<(Option<ReplyEvent<'static>>, usize)>, CodecError> {
        let mut cursor = Cursor::new(bytes);
        let Some(magic) = cursor.u32() else { return Ok(None) };
        match magic {
            MAGIC_SIMPLE_REPLY => {
                let (Some(error), Some(cookie)) = (cursor.u32(), cursor.u64()) else { return Ok(None) };
                self.simple(Errno::from_wire(error), Cookie(cookie), expect)
            }
            MAGIC_STRUCTURED_REPLY if self.structured => {
                let (Some(flags), Some(kind)) = (cursor.u16(), cursor.u16()) else { return Ok(None) };
                let (Some(cookie), Some(len)) = (cursor.u64(), cursor.u32()) else { return Ok(None) };
                let head = Chunk { kind, cookie: Cookie(cookie), len, done: flags & FLAG_DONE != 0 };
                self.chunk(head, cursor.rest(), expect)
            }
            other => Err(CodecError::ReplyMagic(other)),
        }
    }

    fn simple(
        &mut self,
        error: Option<Errno>,
        cookie: Cookie,
        expect: &dyn Expect,
    ) -> Result<Option<(Option<ReplyEvent<'static>>, usize)>, CodecError> {
        let asked = expect.expected(cookie).ok_or(CodecError::UnknownCookie(cookie.0))?;
        let needs_chunks =
            matches!(asked.command, Command::BlockStatus) || (self.structured && asked.command == Command::Read);
        let event = match error {
            Some(errno) => {
                self.state = State::Over { cookie };
                Some(ReplyEvent::Error { cookie, errno, message: String::new(), offset: None })
            }
            None if needs_chunks => return Err(CodecError::Malformed("simple reply where chunks were due")),
            None if asked.command == Command::Read && asked.len > 0 => {
                self.state = State::Data { cookie, offset: asked.offset, left: asked.len, done: true };
                None
            }
            None => {
                self.state = State::Over { cookie };
                None
            }
        };
        Ok(Some((event, SIMPLE_REPLY_BYTES)))
    }

    fn chunk(
        &mut self,
        head: Chunk,
        body: &[u8],
        expect: &dyn Expect,
    ) -> Result<Option<(Option<ReplyEvent<'static>>, usize)>, CodecError> {
        let Chunk { kind, cookie, len, done } = head;
        let asked = expect.expected(cookie).ok_or(CodecError::UnknownCookie(cookie.0))?;
        let mut cursor = Cursor::new(body);
        match kind {
            TYPE_NONE => {
                if len != 0 || !done {
                    return Err(CodecError::Malformed("empty chunk"));
                }
                self.state = State::Over { cookie };
                Ok(Some((None, CHUNK_HEADER_BYTES)))
            }
            TYPE_OFFSET_DATA => {
                if len < 9 || asked.command != Command::Read {
                    return Err(CodecError::Malformed("data chunk"));
                }
                let Some(offset) = cursor.u64() else { return Ok(None) };
                let left = len - 8;
                within(&asked, offset, left)?;
                self.state = State::Data { cookie, offset, left, done };
                Ok(Some((None, CHUNK_HEADER_BYTES + 8)))
            }
            TYPE_OFFSET_HOLE => {
                if len != 12 || asked.command != Command::Read {
                    return Err(CodecError::Malformed("hole chunk"));
                }
                let (Some(offset), Some(hole)) = (cursor.u64(), cursor.u32()) else { return Ok(None) };
                if hole == 0 {
                    return Err(CodecError::Malformed("hole chunk: empty"));
                }
                within(&asked, offset, hole)?;
                self.state = after(cookie, done);
                Ok(Some((Some(ReplyEvent::Hole { cookie, offset, len: hole }), CHUNK_HEADER_BYTES + 12)))
            }
            TYPE_BLOCK_STATUS => {
                if len < 12 || !(len - 4).is_multiple_of(8) || asked.command != Command::BlockStatus {
                    return Err(CodecError::Malformed("status chunk"));
                }
                if len > STATUS_CHUNK_BYTES_MAX {
                    let max = u64::from(STATUS_CHUNK_BYTES_MAX);
                    return Err(CodecError::TooLong { what: "status chunk", len: u64::from(len), max });
                }
                let Some(context) = cursor.u32() else { return Ok(None) };
                self.state = State::Status { cookie, context, left: len - 4, done };
                Ok(Some((None, CHUNK_HEADER_BYTES + 4)))
            }
            error if error & TYPE_FLAG_ERROR != 0 => self.error_chunk(head, body),
            _ => Err(CodecError::Malformed("chunk type")),
        }
    }

    fn error_chunk(
        &mut self,
        head: Chunk,
        body: &[u8],
    ) -> Result<Option<(Option<ReplyEvent<'static>>, usize)>, CodecError> {
        let Chunk { kind, cookie, len, done } = head;
        if len > ERROR_CHUNK_BYTES_MAX {
            let max = u64::from(ERROR_CHUNK_BYTES_MAX);
            return Err(CodecError::TooLong { what: "error chunk", len: u64::from(len), max });
        }
        if len < 6 {
            return Err(CodecError::Malformed("error chunk"));
        }
        let mut cursor = Cursor::new(body);
        let (Some(error), Some(message_len)) = (cursor.u32(), cursor.u16()) else { return Ok(None) };
        let tail = if kind == TYPE_ERROR_OFFSET { 8 } else { 0 };
        if len < 6 + u32::from(message_len) + tail {
            return Err(CodecError::Malformed("error chunk: message longer than the chunk"));
        }
        let Some(message) = cursor.bytes(usize::from(message_len)) else { return Ok(None) };
        let offset = match kind {
            TYPE_ERROR_OFFSET => match cursor.u64() {
                Some(offset) => Some(offset),
                None => return Ok(None),
            },
            _ => None,
        };
        let Some(errno) = Errno::from_wire(error) else {
            return Err(CodecError::Malformed("error chunk: no error"));
        };
        let rest = len - 6 - u32::from(message_len) - tail;
        // An error type not known here carries fields of its own; the known ones may too in a later protocol.
        self.state = if rest > 0 { State::Skip { cookie, left: rest, done } } else { after(cookie, done) };
        let message = String::from_utf8_lossy(message).into_owned();
        let taken = CHUNK_HEADER_BYTES + (len - rest) as usize;
        Ok(Some((Some(ReplyEvent::Error { cookie, errno, message, offset }), taken)))
    }

    /// Most bytes a caller has to keep between calls: an error chunk.
    pub const CARRY_BYTES_MAX: usize = CHUNK_HEADER_BYTES + ERROR_CHUNK_BYTES_MAX as usize;
}

/// The head of a chunk.
#[derive(Clone, Copy)]
struct Chunk {
    kind: u16,
    cookie: Cookie,
    len: u32,
    done: bool,
}

fn after(cookie: Cookie, done: bool) -> State {
    if done { State::Over { cookie } } else { State::Header }
}

/// Content lies within the request.
fn within(asked: &Expected, offset: u64, len: u32) -> Result<(), CodecError> {
    let end = asked.offset.saturating_add(u64::from(asked.len));
    match offset.checked_add(u64::from(len)) {
        Some(chunk_end) if offset >= asked.offset && chunk_end <= end => Ok(()),
        _ => Err(CodecError::Malformed("content chunk outside its request")),
    }
}
