//! TLS over a connection, as a connection again: whoever holds it need not know.
//!
//! The protocol is rustls' (RFC 8446, RFC 5246); the bytes move over the seams of `device`, in both worlds. Receiving and
//! sending wait apart from one another, so two sides that both write never hold each other up. Never reads a file, never
//! judges a certificate, sets no time-out, and holds no more than one buffer of what came and one piece of what goes.

use device::net::NetFuture;
use device::sync::lock;
use device::{Buf, Conn, Credentials, HangUp, NetError, SharedBuf, SharedBufs};
use rustls::Connection;
use rustls::pki_types::CertificateDer;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::sync::{Arc, Mutex};

/// Received and not yet decrypted: two records of the largest size, so that a long payload does not come in record by record.
const RECEIVE_BYTES: usize = 32 * 1024;
/// Plaintext that is encrypted for one send: sixteen records, the system call is cheap beside them, and the copy is bounded.
const SEND_BYTES: usize = 256 * 1024;
/// Longest record on the wire without its payload: header, explicit nonce, content type, tag (RFC 5246 6.2.3.3, RFC 8446 5.2).
const RECORD_OVERHEAD_BYTES: usize = 5 + 8 + 1 + 16;
/// Payload of a full record (RFC 8446 5.1).
const RECORD_BYTES: usize = 16 * 1024;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The other side did not speak TLS, or one did not trust the other.
    #[error("{0}")]
    Refused(rustls::Error),
    /// The connection ended before.
    #[error("the connection ended during the TLS handshake")]
    Lost,
}

/// What both directions share.
struct Session {
    tls: Connection,
    /// Ciphertext between `start` and `end`; absent while the driver has the buffer.
    cipher: Option<Buf>,
    start: usize,
    end: usize,
    /// Why nothing more can be received.
    failed: Option<NetError>,
}

impl Session {
    /// Hand a part of the ciphertext at hand to the protocol. False: there is none, or none counts any more.
    fn step(&mut self) -> Result<bool, rustls::Error> {
        let Some(cipher) = &self.cipher else { return Ok(false) };
        let mut rest = &cipher[self.start..self.end];
        if rest.is_empty() {
            return Ok(false);
        }
        // Reading from memory fails only where the plaintext has not been taken, which the callers do first.
        let count = self.tls.read_tls(&mut rest).map_err(|error| rustls::Error::General(error.to_string()))?;
        self.start += count;
        self.tls.process_new_packets()?;
        // 0: the other side has said that nothing follows.
        Ok(count > 0)
    }

    /// Fill `out` as far as what has been received goes. None: nothing is there; Some(0): the stream has ended.
    fn take(&mut self, out: &mut [u8]) -> Option<Result<usize, NetError>> {
        let mut filled = 0;
        while filled < out.len() && self.failed.is_none() {
            match self.tls.reader().read(&mut out[filled..]) {
                // The end was announced.
                Ok(0) => return Some(Ok(filled)),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self.step() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => self.failed = Some(NetError::Errno(format!("TLS: {error}"))),
                },
                Err(error) => self.failed = Some(NetError::Errno(format!("TLS: {error}"))),
            }
        }
        if filled > 0 {
            return Some(Ok(filled));
        }
        self.failed.clone().map(Err)
    }

    /// What the protocol has to send.
    fn records(&mut self, capacity: usize) -> SharedBufs {
        if !self.tls.wants_write() {
            return SharedBufs::new();
        }
        let mut records = Vec::with_capacity(capacity);
        while self.tls.wants_write() {
            // Writing to memory does not fail.
            if self.tls.write_tls(&mut records).is_err() {
                break;
            }
        }
        SharedBuf::from(records).into()
    }

    /// Encrypt `data`.
    fn encrypt(&mut self, data: &SharedBufs) -> Result<SharedBufs, NetError> {
        let slices: Vec<IoSlice<'_>> = data.pieces().iter().map(|piece| IoSlice::new(piece)).collect();
        let len = data.len_bytes();
        let taken = self.tls.writer().write_vectored(&slices).map_err(|error| NetError::Errno(error.to_string()))?;
        // The buffer has no limit; less is taken only where keys are worn out and cannot be renewed, which TLS 1.2 cannot.
        if taken < len {
            return Err(NetError::Closed);
        }
        // Some room for what the protocol itself has to say (a key update).
        Ok(self.records(len + (len / RECORD_BYTES + 2) * RECORD_OVERHEAD_BYTES + 64))
    }
}

/// A connection over TLS.
pub struct TlsConn {
    inner: Arc<dyn Conn>,
    session: Arc<Mutex<Session>>,
}

impl TlsConn {
    /// Shake hands over `inner`, which nobody else uses from now on. `tls` is either side, fresh. The caller sets the time-out, by
    /// closing `inner`.
    ///
    /// # Errors
    /// See [`TlsError`]; the other side has been told by then.
    pub async fn start(inner: Arc<dyn Conn>, mut tls: Connection) -> Result<TlsConn, TlsError> {
        // What is encrypted at a time is bounded in `send`.
        tls.set_buffer_limit(None);
        let cipher = Some(Buf::zeroed(RECEIVE_BYTES));
        let mut session = Session { tls, cipher, start: 0, end: 0, failed: None };
        loop {
            let records = session.records(4096);
            if !records.is_empty() {
                inner.send(records).await.map_err(|_| TlsError::Lost)?;
            }
            if !session.tls.is_handshaking() {
                break;
            }
            let Some(cipher) = session.cipher.take() else { return Err(TlsError::Lost) };
            let (result, cipher) = inner.receive(cipher).await;
            let count = result.map_err(|_| TlsError::Lost)?;
            (session.cipher, session.start, session.end) = (Some(cipher), 0, count);
            // What the other side says after its last message of the handshake stays for `receive`.
            while session.tls.is_handshaking() {
                match session.step() {
                    Ok(true) => {}
                    Ok(false) if session.start < session.end || count == 0 => return Err(TlsError::Lost),
                    Ok(false) => break,
                    Err(error) => {
                        // The alert; whether it arrives changes nothing here.
                        let _ = inner.send(session.records(256)).await;
                        return Err(TlsError::Refused(error));
                    }
                }
            }
        }
        Ok(TlsConn { inner, session: Arc::new(Mutex::new(session)) })
    }

    /// The other side's certificate, as far as the configuration asked for one. It has been verified.
    #[must_use]
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        let session = lock(&self.session);
        session.tls.peer_certificates()?.first().map(|certificate| certificate.clone().into_owned())
    }

    /// Tell the other side that nothing follows (RFC 8446 6.1). When no send is under way; the caller sets a time-out.
    pub async fn farewell(&self) {
        let records = {
            let mut session = lock(&self.session);
            session.tls.send_close_notify();
            session.records(64)
        };
        // It may have gone already.
        let _ = self.inner.send(records).await;
    }
}

impl Conn for TlsConn {
    fn receive(&self, mut buf: Buf) -> NetFuture<(Result<usize, NetError>, Buf)> {
        let (inner, session) = (self.inner.clone(), self.session.clone());
        Box::pin(async move {
            loop {
                let cipher = {
                    let mut session = lock(&session);
                    if let Some(result) = session.take(&mut buf) {
                        return (result, buf);
                    }
                    session.cipher.take()
                };
                // Absent when an earlier receive was given up half way: what it would have brought is lost.
                let Some(cipher) = cipher else { return (Err(NetError::Closed), buf) };
                let (result, cipher) = inner.receive(cipher).await;
                let mut session = lock(&session);
                session.cipher = Some(cipher);
                match result {
                    // An end that was not announced is an end: requests have lengths of their own, and half a one is none.
                    Ok(0) => return (Ok(0), buf),
                    Ok(count) => (session.start, session.end) = (0, count),
                    Err(error) => {
                        session.end = session.start;
                        return (Err(error), buf);
                    }
                }
            }
        })
    }

    fn send(&self, data: SharedBufs) -> NetFuture<Result<(), NetError>> {
        let (inner, session) = (self.inner.clone(), self.session.clone());
        Box::pin(async move {
            let mut at = 0;
            while at < data.len_bytes() {
                let end = data.len_bytes().min(at + SEND_BYTES);
                let records = lock(&session).encrypt(&data.slice(at..end))?;
                inner.send(records).await?;
                at = end;
            }
            Ok(())
        })
    }

    fn close(&self) {
        self.inner.close();
    }

    fn hung_up(&self) -> NetFuture<()> {
        self.inner.hung_up()
    }

    fn hang_up(&self) -> Option<HangUp> {
        self.inner.hang_up()
    }

    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn credentials(&self) -> Option<Credentials> {
        self.inner.credentials()
    }
}
