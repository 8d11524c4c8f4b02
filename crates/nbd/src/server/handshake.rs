//! Moving the bytes of a handshake. Its time-out is the registry's.

use super::exports::Exports;
use super::negotiate::{Chosen, Negotiation, Step};
use crate::codec::{CodecError, HandshakeFlags, encode_greeting};
use device::{Buf, Conn, NetError, SharedBuf};
use std::sync::Arc;

/// Receive buffer of the handshake: options are short.
const RECEIVE_BYTES: usize = 4096;
/// Send once so much has gathered, whether or not the client has said more.
const SEND_BYTES: usize = 16 * 1024;

/// Why there is nothing to serve.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The bytes were not the protocol.
    Malformed,
    /// The connection broke, or a time-out closed it.
    Lost,
}

impl From<CodecError> for HandshakeError {
    fn from(_: CodecError) -> HandshakeError {
        HandshakeError::Malformed
    }
}

impl From<NetError> for HandshakeError {
    fn from(_: NetError) -> HandshakeError {
        HandshakeError::Lost
    }
}

/// Negotiate. Returns what was chosen and the bytes received beyond the handshake, or none when the client left.
pub(super) async fn negotiate(
    conn: &Arc<dyn Conn>,
    exports: &(dyn Exports + Sync),
) -> Result<Option<(Chosen, Vec<u8>)>, HandshakeError> {
    let flags = HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES);
    conn.send(SharedBuf::from(encode_greeting(flags).to_vec()).into()).await?;
    let mut negotiation = Negotiation::new();
    let mut buf = Buf::zeroed(RECEIVE_BYTES);
    let mut unread: Vec<u8> = Vec::new();
    let mut out = Vec::new();
    loop {
        let (result, back) = conn.receive(buf).await;
        buf = back;
        let count = result?;
        if count == 0 {
            return Ok(None);
        }
        unread.extend_from_slice(&buf[..count]);
        let mut used_in_all = 0;
        let ended = loop {
            let (used, step) = negotiation.input(&unread[used_in_all..], exports, &mut out)?;
            used_in_all += used;
            if out.len() >= SEND_BYTES {
                conn.send(SharedBuf::from(std::mem::take(&mut out)).into()).await?;
            }
            match step {
                Step::More => break None,
                Step::Next => {}
                Step::Close => break Some(None),
                Step::Chosen(chosen) => break Some(Some(chosen)),
            }
        };
        unread.drain(..used_in_all);
        if !out.is_empty() {
            conn.send(SharedBuf::from(std::mem::take(&mut out)).into()).await?;
        }
        match ended {
            None => {}
            Some(None) => return Ok(None),
            Some(Some(chosen)) => return Ok(Some((*chosen, unread))),
        }
    }
}
