//! Options of the handshake, as clients send them.

use super::{CodecError, Cursor, MAGIC_OPTION, QUERIES_MAX, STRING_BYTES_MAX};

/// Option numbers.
pub mod opt {
    /// Choose an export and go on without further ado.
    pub const EXPORT_NAME: u32 = 1;
    /// Close.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and choose it.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List meta contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select meta contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use extended headers.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// The head of an option: what it is and how much data follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Option number, see [`opt`].
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Bytes of a head.
    pub const BYTES: usize = 16;

    /// Read a head.
    ///
    /// # Errors
    /// Not an option: the stream cannot be followed any further.
    pub fn decode(bytes: &[u8; OptionHeader::BYTES]) -> Result<OptionHeader, CodecError> {
        let mut cursor = Cursor::new(bytes);
        let malformed = CodecError::Malformed("option");
        let magic = cursor.u64().ok_or(malformed)?;
        if magic != MAGIC_OPTION {
            return Err(CodecError::OptionMagic(magic));
        }
        Ok(OptionHeader { option: cursor.u32().ok_or(malformed)?, len: cursor.u32().ok_or(malformed)? })
    }
}

/// An option with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOption {
    /// [`opt::EXPORT_NAME`].
    ExportName(String),
    /// [`opt::ABORT`].
    Abort,
    /// [`opt::LIST`].
    List,
    /// [`opt::STARTTLS`].
    StartTls,
    /// [`opt::INFO`].
    Info {
        /// The export.
        name: String,
        /// What the client wants to know, see [`super::info`]; unknown numbers included.
        requests: Vec<u16>,
    },
    /// [`opt::GO`].
    Go {
        /// The export.
        name: String,
        /// What the client wants to know, see [`super::info`]; unknown numbers included.
        requests: Vec<u16>,
    },
    /// [`opt::STRUCTURED_REPLY`].
    StructuredReply,
    /// [`opt::LIST_META_CONTEXT`].
    ListMetaContext {
        /// The export.
        name: String,
        /// None: all.
        queries: Vec<String>,
    },
    /// [`opt::SET_META_CONTEXT`].
    SetMetaContext {
        /// The export.
        name: String,
        /// None: select none.
        queries: Vec<String>,
    },
    /// [`opt::EXTENDED_HEADERS`].
    ExtendedHeaders,
    /// An option not known here.
    Unknown(u32),
}

/// Why an option is answered with an error; the handshake goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The data contradicts itself.
    #[error("{0}")]
    Invalid(&'static str),
    /// A string or list is beyond its limit.
    #[error("{0}")]
    TooBig(&'static str),
}

fn string(cursor: &mut Cursor<'_>) -> Result<String, OptionError> {
    let len = cursor.u32().ok_or(OptionError::Invalid("option data ends within a length"))?;
    if len as usize > STRING_BYTES_MAX {
        return Err(OptionError::TooBig("string longer than 4096 bytes"));
    }
    let bytes = cursor.bytes(len as usize).ok_or(OptionError::Invalid("string longer than the option"))?;
    text(bytes)
}

fn text(bytes: &[u8]) -> Result<String, OptionError> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(OptionError::TooBig("string longer than 4096 bytes"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| OptionError::Invalid("string is not UTF-8"))?;
    if text.contains('\0') {
        return Err(OptionError::Invalid("string holds a zero byte"));
    }
    Ok(text.to_owned())
}

fn info_data(cursor: &mut Cursor<'_>) -> Result<(String, Vec<u16>), OptionError> {
    let name = string(cursor)?;
    let count = cursor.u16().ok_or(OptionError::Invalid("option data ends before the count of requests"))?;
    if cursor.left() != usize::from(count) * 2 {
        return Err(OptionError::Invalid("count of information requests does not fit the option's length"));
    }
    let requests = (0..count).filter_map(|_| cursor.u16()).collect();
    Ok((name, requests))
}

fn context_data(cursor: &mut Cursor<'_>) -> Result<(String, Vec<String>), OptionError> {
    let name = string(cursor)?;
    let count = cursor.u32().ok_or(OptionError::Invalid("option data ends before the count of queries"))?;
    if count > QUERIES_MAX {
        return Err(OptionError::TooBig("more than 64 queries"));
    }
    let queries = (0..count).map(|_| string(cursor)).collect::<Result<Vec<_>, _>>()?;
    Ok((name, queries))
}

impl ClientOption {
    /// Read an option's data. Options not known here come back as [`ClientOption::Unknown`] whatever they hold.
    ///
    /// # Errors
    /// The data does not fit the option.
    pub fn decode(option: u32, data: &[u8]) -> Result<ClientOption, OptionError> {
        let mut cursor = Cursor::new(data);
        let decoded = match option {
            opt::EXPORT_NAME => ClientOption::ExportName(text(cursor.rest())?),
            opt::ABORT => {
                // Whatever comes with it: the client wants to leave.
                cursor.rest();
                ClientOption::Abort
            }
            opt::LIST => ClientOption::List,
            opt::STARTTLS => ClientOption::StartTls,
            opt::INFO => {
                let (name, requests) = info_data(&mut cursor)?;
                ClientOption::Info { name, requests }
            }
            opt::GO => {
                let (name, requests) = info_data(&mut cursor)?;
                ClientOption::Go { name, requests }
            }
            opt::STRUCTURED_REPLY => ClientOption::StructuredReply,
            opt::LIST_META_CONTEXT => {
                let (name, queries) = context_data(&mut cursor)?;
                ClientOption::ListMetaContext { name, queries }
            }
            opt::SET_META_CONTEXT => {
                let (name, queries) = context_data(&mut cursor)?;
                ClientOption::SetMetaContext { name, queries }
            }
            opt::EXTENDED_HEADERS => ClientOption::ExtendedHeaders,
            other => {
                cursor.rest();
                ClientOption::Unknown(other)
            }
        };
        if cursor.left() > 0 {
            return Err(OptionError::Invalid("option carries more data than it has use for"));
        }
        Ok(decoded)
    }

    /// Its number.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            ClientOption::ExportName(_) => opt::EXPORT_NAME,
            ClientOption::Abort => opt::ABORT,
            ClientOption::List => opt::LIST,
            ClientOption::StartTls => opt::STARTTLS,
            ClientOption::Info { .. } => opt::INFO,
            ClientOption::Go { .. } => opt::GO,
            ClientOption::StructuredReply => opt::STRUCTURED_REPLY,
            ClientOption::ListMetaContext { .. } => opt::LIST_META_CONTEXT,
            ClientOption::SetMetaContext { .. } => opt::SET_META_CONTEXT,
            ClientOption::ExtendedHeaders => opt::EXTENDED_HEADERS,
            ClientOption::Unknown(code) => *code,
        }
    }

    /// Append the option, head and data, to `out`.
    ///
    /// # Panics
    /// When a string is longer than [`STRING_BYTES_MAX`] or a list than its limit: callers check what users give.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC_OPTION.to_be_bytes());
        out.extend_from_slice(&self.code().to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        match self {
            ClientOption::ExportName(name) => {
                assert!(name.len() <= STRING_BYTES_MAX, "an export name fits the protocol");
                out.extend_from_slice(name.as_bytes());
            }
            ClientOption::Info { name, requests } | ClientOption::Go { name, requests } => {
                put_string(out, name);
                let Ok(count) = u16::try_from(requests.len()) else { panic!("information requests fit 16 bits") };
                out.extend_from_slice(&count.to_be_bytes());
                requests.iter().for_each(|r| out.extend_from_slice(&r.to_be_bytes()));
            }
            ClientOption::ListMetaContext { name, queries } | ClientOption::SetMetaContext { name, queries } => {
                assert!(queries.len() <= QUERIES_MAX as usize, "queries fit the limit");
                put_string(out, name);
                out.extend_from_slice(&(queries.len() as u32).to_be_bytes());
                queries.iter().for_each(|q| put_string(out, q));
            }
            ClientOption::Abort
            | ClientOption::List
            | ClientOption::StartTls
            | ClientOption::StructuredReply
            | ClientOption::ExtendedHeaders
            | ClientOption::Unknown(_) => {}
        }
        let len = (out.len() - start - OptionHeader::BYTES) as u32;
        out[start + 12..start + 16].copy_from_slice(&len.to_be_bytes());
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    assert!(text.len() <= STRING_BYTES_MAX, "a string fits the protocol");
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
