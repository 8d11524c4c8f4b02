//! Moving the bytes of a handshake. Its time-out is the registry's.

use super::exports::{Exports, NoExports};
use super::negotiate::{Chosen, Negotiation, Step};
use crate::codec::{CodecError, HandshakeFlags, encode_greeting};
use crate::tls::{TlsConn, TlsError};
use device::{Buf, Conn, NetError, SharedBuf};
use rustls::{ServerConfig, ServerConnection};
use std::sync::Arc;

/// Receive buffer of the handshake: options are short.
const RECEIVE_BYTES: usize = 4096;
/// Send once so much has gathered, whether or not the client has said more.
const SEND_BYTES: usize = 16 * 1024;
/// What a client that was refused may still say while it is told so: it may have begun already, not knowing. Closing a socket
/// with unread bytes would take the alert away from it.
const REFUSED_BYTES_MAX: usize = 64 * 1024;

/// Why there is nothing to serve.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The bytes were not the protocol.
    Malformed,
    /// The connection broke, or a time-out closed it.
    Lost,
    /// TLS did not come about.
    Tls(TlsError),
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

/// Who is told what a client has chosen, before the client is.
pub(super) type OnChosen<'a> = dyn Fn(&Chosen) + Sync + 'a;

/// What an exchange of options ended with.
enum Ended {
    /// The client left.
    Left,
    /// An export was chosen; bytes received beyond the handshake.
    Chosen(Box<Chosen>, Vec<u8>),
    /// TLS shall begin; whether bytes came beyond the option that says so.
    StartTls(bool),
}

/// Say who is here: the first words.
async fn greet(conn: &Arc<dyn Conn>) -> Result<(), NetError> {
    let flags = HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES);
    conn.send(SharedBuf::from(encode_greeting(flags).to_vec()).into()).await
}

/// Negotiate where there is no TLS. Returns what was chosen and the bytes received beyond the handshake, or none when the client
/// left.
///
/// `chosen` hears what was chosen before the client does.
pub(super) async fn negotiate(
    conn: &Arc<dyn Conn>,
    exports: &(dyn Exports + Sync),
    chosen: &OnChosen<'_>,
) -> Result<Option<(Chosen, Vec<u8>)>, HandshakeError> {
    greet(conn).await?;
    choose(conn, Negotiation::new(), exports, chosen).await
}

/// The first half where TLS comes first: a connection over TLS and how the negotiation goes on over it, or none when the client
/// left before.
pub(super) async fn start_tls(
    conn: &Arc<dyn Conn>,
    config: Arc<ServerConfig>,
    proceeds: &(dyn Fn() + Sync),
) -> Result<Option<(Arc<TlsConn>, Negotiation)>, HandshakeError> {
    greet(conn).await?;
    let mut negotiation = Negotiation::before_tls();
    // It looks at no export before TLS; should it ever, there is none.
    let nothing = NoExports("TLS comes first".to_owned());
    match exchange(conn, &mut negotiation, &nothing, &|_| ()).await? {
        Ended::StartTls(false) => {}
        Ended::Left => return Ok(None),
        // Nothing may be said between STARTTLS and its answer. What is there was said by no one proven, and taken into the
        // session it would count as if it were (CVE-2021-3716 and its kin).
        Ended::StartTls(true) | Ended::Chosen(..) => return Err(HandshakeError::Malformed),
    }
    proceeds();
    let tls = ServerConnection::new(config).map_err(|error| HandshakeError::Tls(TlsError::Refused(error)))?;
    match TlsConn::start(conn.clone(), tls.into()).await {
        Ok(secured) => Ok(Some((Arc::new(secured), negotiation.secured()))),
        Err(error) => {
            if matches!(error, TlsError::Refused(_)) {
                hear_out(conn).await;
            }
            Err(HandshakeError::Tls(error))
        }
    }
}

/// The second half, over TLS; otherwise as [`negotiate`].
pub(super) async fn choose(
    conn: &Arc<dyn Conn>,
    mut negotiation: Negotiation,
    exports: &(dyn Exports + Sync),
    on_chosen: &OnChosen<'_>,
) -> Result<Option<(Chosen, Vec<u8>)>, HandshakeError> {
    match exchange(conn, &mut negotiation, exports, on_chosen).await? {
        Ended::Chosen(chosen, unread) => Ok(Some((*chosen, unread))),
        Ended::Left => Ok(None),
        Ended::StartTls(_) => unreachable!("TLS is due before the first half ends, and never after"),
    }
}

/// Let a refused client finish, and leave first.
async fn hear_out(conn: &Arc<dyn Conn>) {
    let mut buf = Buf::zeroed(RECEIVE_BYTES);
    let mut heard = 0;
    while heard < REFUSED_BYTES_MAX {
        let (result, back) = conn.receive(buf).await;
        match result {
            Ok(count) if count > 0 => heard += count,
            _ => return,
        }
        buf = back;
    }
}

async fn exchange(
    conn: &Arc<dyn Conn>,
    negotiation: &mut Negotiation,
    exports: &(dyn Exports + Sync),
    on_chosen: &OnChosen<'_>,
) -> Result<Ended, HandshakeError> {
    let mut buf = Buf::zeroed(RECEIVE_BYTES);
    let mut unread: Vec<u8> = Vec::new();
    let mut out = Vec::new();
    loop {
        let (result, back) = conn.receive(buf).await;
        buf = back;
        let count = result?;
        if count == 0 {
            return Ok(Ended::Left);
        }
        unread.extend_from_slice(&buf[..count]);
        let mut used_in_all = 0;
        let ended = loop {
            let (used, step) = negotiation.input(&unread[used_in_all..], exports, &mut out)?;
            used_in_all += used;
            if let Step::Chosen(chosen) = &step {
                // Before any of the reply is sent.
                on_chosen(chosen);
            }
            if out.len() >= SEND_BYTES {
                conn.send(SharedBuf::from(std::mem::take(&mut out)).into()).await?;
            }
            match step {
                Step::More => break None,
                Step::Next => {}
                end => break Some(end),
            }
        };
        unread.drain(..used_in_all);
        if matches!(ended, Some(Step::StartTls)) && !unread.is_empty() {
            // Not even an answer.
            return Ok(Ended::StartTls(true));
        }
        if !out.is_empty() {
            conn.send(SharedBuf::from(std::mem::take(&mut out)).into()).await?;
        }
        match ended {
            None | Some(Step::More | Step::Next) => {}
            Some(Step::Close) => return Ok(Ended::Left),
            Some(Step::Chosen(chosen)) => return Ok(Ended::Chosen(chosen, unread)),
            Some(Step::StartTls) => return Ok(Ended::StartTls(false)),
        }
    }
}
