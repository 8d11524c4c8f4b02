//! The client's side of the handshake.

use super::{ClientError, ClientOptions, RemoteExport};
use crate::codec::{
    ClientFlags, ClientOption, CodecError, GREETING_BYTES, HandshakeFlags, Info, OptionReply, OptionReplyHeader,
    PAYLOAD_BYTES_MAX, RepError, STRING_BYTES_MAX, TransmissionFlags, decode_greeting, info,
};
use crate::context::{INSTANCE_PREFIX, parse_instance};
use device::{Buf, Conn, NetError, SharedBuf};
use std::sync::Arc;

/// Receive buffer of the handshake.
const RECEIVE_BYTES: usize = 4096;
/// Most replies to one option: more exports or contexts than anybody lists.
const REPLIES_MAX: usize = 4096;

/// A connection read by exact lengths.
struct Wire<'a> {
    conn: &'a Arc<dyn Conn>,
    buf: Option<Buf>,
    unread: Vec<u8>,
}

impl Wire<'_> {
    async fn take(&mut self, len: usize) -> Result<Vec<u8>, ClientError> {
        while self.unread.len() < len {
            let buf = self.buf.take().unwrap_or_else(|| Buf::zeroed(RECEIVE_BYTES));
            let (result, buf) = self.conn.receive(buf).await;
            let count = result?;
            if count == 0 {
                return Err(NetError::Closed.into());
            }
            self.unread.extend_from_slice(&buf[..count]);
            self.buf = Some(buf);
        }
        Ok(self.unread.drain(..len).collect())
    }

    async fn array<const N: usize>(&mut self) -> Result<[u8; N], ClientError> {
        let bytes = self.take(N).await?;
        bytes.try_into().map_err(|_| CodecError::Malformed("length").into())
    }

    async fn send(&self, bytes: Vec<u8>) -> Result<(), ClientError> {
        Ok(self.conn.send(SharedBuf::from(bytes).into()).await?)
    }

    /// Send an option and gather its replies; the last is ACK or an error.
    async fn option(&mut self, option: &ClientOption) -> Result<Vec<OptionReply>, ClientError> {
        let mut bytes = Vec::new();
        option.encode(&mut bytes);
        self.send(bytes).await?;
        let mut replies = Vec::new();
        while replies.len() < REPLIES_MAX {
            let header = OptionReplyHeader::decode(&self.array().await?)?;
            if header.option != option.code() {
                return Err(CodecError::Malformed("option reply: to another option").into());
            }
            let data = self.take(header.len as usize).await?;
            let reply = OptionReply::decode(header.kind, &data)?;
            let last = matches!(reply, OptionReply::Ack | OptionReply::Error { .. });
            replies.push(reply);
            if last {
                return Ok(replies);
            }
        }
        Err(CodecError::TooLong {
            what: "list of option replies",
            len: REPLIES_MAX as u64 + 1,
            max: REPLIES_MAX as u64,
        }
        .into())
    }
}

/// Negotiate `name`. Returns the export and the bytes received beyond the handshake.
pub(super) async fn negotiate(
    conn: &Arc<dyn Conn>,
    name: &str,
    options: &ClientOptions,
) -> Result<(RemoteExport, Vec<u8>), ClientError> {
    if name.len() > STRING_BYTES_MAX {
        let (len, max) = (name.len() as u64, STRING_BYTES_MAX as u64);
        return Err(CodecError::TooLong { what: "export name", len, max }.into());
    }
    let mut wire = Wire { conn, buf: None, unread: Vec::new() };
    let offered = decode_greeting(&wire.array::<GREETING_BYTES>().await?)?;
    let no_zeroes = offered.contains(HandshakeFlags::NO_ZEROES);
    let fixed = offered.contains(HandshakeFlags::FIXED_NEWSTYLE);
    let flags =
        ClientFlags::NONE.with_if(ClientFlags::FIXED_NEWSTYLE, fixed).with_if(ClientFlags::NO_ZEROES, no_zeroes);
    wire.send(flags.bits().to_be_bytes().to_vec()).await?;
    let mut export = RemoteExport {
        name: name.to_owned(),
        size_bytes: 0,
        flags: TransmissionFlags::NONE,
        block_bytes_min: 1,
        block_bytes_preferred: 4096,
        block_bytes_max: PAYLOAD_BYTES_MAX,
        structured: false,
        contexts: Vec::new(),
        instance: None,
    };
    if fixed && options.structured {
        let replies = wire.option(&ClientOption::StructuredReply).await?;
        export.structured = replies.last() == Some(&OptionReply::Ack);
    }
    if export.structured {
        contexts(&mut wire, &mut export, options).await?;
    }
    if !fixed || !go(&mut wire, &mut export).await? {
        export_name(&mut wire, &mut export, no_zeroes).await?;
    }
    Ok((export, wire.unread))
}

async fn contexts(wire: &mut Wire<'_>, export: &mut RemoteExport, options: &ClientOptions) -> Result<(), ClientError> {
    // The stamp is asked for by name prefix: servers that do not know it answer with nothing, or an error.
    let list = ClientOption::ListMetaContext { name: export.name.clone(), queries: vec![INSTANCE_PREFIX.to_owned()] };
    for reply in wire.option(&list).await? {
        if let OptionReply::MetaContext { name, .. } = reply {
            export.instance = export.instance.or(parse_instance(&name));
        }
    }
    if options.contexts.is_empty() {
        return Ok(());
    }
    let set = ClientOption::SetMetaContext { name: export.name.clone(), queries: options.contexts.clone() };
    for reply in wire.option(&set).await? {
        match reply {
            OptionReply::MetaContext { id, name } => export.contexts.push((id, name)),
            // Without contexts the export is as good; GO tells if it does not exist.
            OptionReply::Error { .. } => export.contexts.clear(),
            _ => {}
        }
    }
    Ok(())
}

/// GO; false when the server does not have it.
async fn go(wire: &mut Wire<'_>, export: &mut RemoteExport) -> Result<bool, ClientError> {
    let go = ClientOption::Go { name: export.name.clone(), requests: vec![info::BLOCK_SIZE] };
    let mut described = false;
    for reply in wire.option(&go).await? {
        match reply {
            OptionReply::Info(Info::Export { size_bytes, flags }) => {
                described = true;
                (export.size_bytes, export.flags) = (size_bytes, flags);
            }
            OptionReply::Info(Info::BlockSize { minimum, preferred, maximum }) => {
                if minimum == 0 || !minimum.is_power_of_two() || maximum < minimum {
                    return Err(CodecError::Malformed("block size constraints").into());
                }
                export.block_bytes_min = minimum;
                export.block_bytes_preferred = preferred.max(minimum);
                export.block_bytes_max = maximum.min(PAYLOAD_BYTES_MAX);
            }
            OptionReply::Error { kind: RepError::Unsup, .. } => return Ok(false),
            OptionReply::Error { message, kind } => {
                let message = if message.is_empty() { format!("{kind:?}") } else { message };
                return Err(ClientError::Refused { export: export.name.clone(), message });
            }
            _ => {}
        }
    }
    if described { Ok(true) } else { Err(CodecError::Malformed("answer to GO: no size").into()) }
}

async fn export_name(wire: &mut Wire<'_>, export: &mut RemoteExport, no_zeroes: bool) -> Result<(), ClientError> {
    let mut bytes = Vec::new();
    ClientOption::ExportName(export.name.clone()).encode(&mut bytes);
    wire.send(bytes).await?;
    let refused = |_| ClientError::Refused {
        export: export.name.clone(),
        message: "connection closed; hint: no export of that name".to_owned(),
    };
    let size: [u8; 8] = wire.array().await.map_err(refused)?;
    let flags: [u8; 2] = wire.array().await?;
    if !no_zeroes {
        wire.take(124).await?;
    }
    export.size_bytes = u64::from_be_bytes(size);
    export.flags = TransmissionFlags::from_bits(u16::from_be_bytes(flags));
    Ok(())
}
