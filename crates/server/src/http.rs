//! The client's half of the admin protocol: one HTTP request over a unix socket or over TLS, blocking.
//!
//! Speaks only what our own service answers: HTTP/1.1 with a length or in chunks, one request a connection. Never follows anything,
//! never keeps a connection, never speaks to TCP without TLS.

use crate::tls::{Identity, TlsError, client_dir};
use device::Address;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest head of an answer: ours are some 150 bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest body: the metrics of the largest cell, several times over.
const BODY_BYTES_MAX: u64 = 256 << 20;
/// A statement may zero a new grid disk; a server that says nothing for this long is gone.
const PATIENCE: Duration = Duration::from_secs(3600);
/// For a connection to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// Nobody listens.
    #[error(
        "no server answers at {address}: {source}\nhint: start it with `flashcell serve`, or name the cell with -c"
    )]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the server at {address} went away: {source}\nhint: look at its log; what was asked may have been done")]
    Lost {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// This side or the other is not believed.
    #[error(
        "no TLS with {address}: {source}\nhint: `flashcell trust` sets up both sides; ${} names another directory than ~/.flashcell",
        crate::tls::TRUST_VARIABLE
    )]
    Tls {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// There is nothing to show who we are.
    #[error(
        "{address} is reached over TLS, and this side has nothing to show: {error}\nhint: `flashcell trust` sets up both sides"
    )]
    NoIdentity {
        /// Where.
        address: String,
        /// What is missing.
        error: TlsError,
    },
    /// The server does not let us.
    #[error("{address} refuses: {what}")]
    Refused {
        /// Where.
        address: String,
        /// Its words.
        what: String,
    },
    /// What came is not an answer of our service.
    #[error("{address} does not answer like a Flashcell server: {what}\nhint: check the address given with -c")]
    Strange {
        /// Where.
        address: String,
        /// What is odd.
        what: String,
    },
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The cell does not answer, or refuses.
    #[error("{0}")]
    Http(String),
    /// Its answer is not understood.
    #[error("the server answers in a form this client does not know: {0}\nhint: use client and server of one release")]
    Form(serde_json::Error),
}

impl From<HttpError> for AskError {
    fn from(error: HttpError) -> AskError {
        AskError::Http(error.to_string())
    }
}

/// How to reach one server.
#[derive(Clone)]
pub(crate) struct Client {
    address: Address,
    identity: Option<Identity>,
    /// For a connection, with its handshake, to come about.
    connect: Duration,
    /// For the whole answer after that.
    patience: Duration,
    body_bytes_max: u64,
}

impl Client {
    /// A client for statements, which may take long. For TCP its identity is loaded.
    pub(crate) fn new(address: Address) -> Result<Client, HttpError> {
        let identity = match &address {
            Address::Unix(_) => None,
            Address::Tcp { .. } => Some(
                Identity::load(&client_dir())
                    .map_err(|error| HttpError::NoIdentity { address: address.to_string(), error })?,
            ),
        };
        Ok(Client::with(address, identity, CONNECT, PATIENCE, BODY_BYTES_MAX))
    }

    /// The same, which waits no longer than this for an answer.
    pub(crate) fn patient_for(self, patience: Duration) -> Client {
        Client { patience, ..self }
    }

    /// A client with its own bounds.
    pub(crate) fn with(
        address: Address,
        identity: Option<Identity>,
        connect: Duration,
        patience: Duration,
        body_bytes_max: u64,
    ) -> Client {
        Client { address, identity, connect, patience, body_bytes_max }
    }

    /// POST a question; the answer.
    pub(crate) fn ask<Q: Serialize, A: DeserializeOwned>(&self, path: &str, question: &Q) -> Result<A, AskError> {
        let body = serde_json::to_string(question).map_err(AskError::Form)?;
        serde_json::from_str(&self.post_json(path, &body)?).map_err(AskError::Form)
    }

    /// POST a JSON body; the body of a 200 answer.
    pub(crate) fn post_json(&self, path: &str, body: &str) -> Result<String, HttpError> {
        let address = self.address.to_string();
        let mut stream = self.open()?;
        let is_tls = matches!(self.address, Address::Tcp { .. });
        let lost = |source: std::io::Error| {
            // A server that does not want our certificate says so after the handshake.
            let refused = is_tls && source.kind() == std::io::ErrorKind::InvalidData;
            let address = address.clone();
            if refused { HttpError::Tls { address, source } } else { HttpError::Lost { address, source } }
        };
        let strange = |what: String| HttpError::Strange { address: address.clone(), what };
        let token = self.identity.as_ref().and_then(|identity| identity.token.as_deref());
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: cell\r\n{token}content-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n",
            body.len()
        );
        // The head and body in one record.
        let sent = stream.write_all(format!("{head}{body}").as_bytes()).and_then(|()| stream.flush());
        // A server that refuses answers, or alerts, before it has read everything: that is what matters.
        let answer = read_answer(&mut stream, self.body_bytes_max);
        let answer = match (sent, answer) {
            (_, Ok(answer)) => answer,
            (_, Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => return Err(lost(error)),
            (Err(error), _) | (_, Err(error)) => return Err(lost(error)),
        };
        let (status, body) = parse(&answer).map_err(strange)?;
        match status {
            200 => Ok(body),
            401 | 403 => {
                let told = serde_json::from_str::<serde_json::Value>(&body).ok();
                let told = told.and_then(|value| Some(value.get("error")?.as_str()?.to_owned()));
                Err(HttpError::Refused { address, what: told.unwrap_or_else(|| format!("status {status}")) })
            }
            503 => Err(strange(body.trim().to_owned())),
            other => Err(strange(format!("status {other}: {}", body.trim()))),
        }
    }

    fn open(&self) -> Result<Box<dyn Stream>, HttpError> {
        let address = self.address.to_string();
        let failed = |source| HttpError::Connect { address: address.clone(), source };
        match &self.address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(failed)?;
                Ok(Box::new(Timed { stream, until: Instant::now() + self.patience }))
            }
            Address::Tcp { host, port } => {
                let Some(identity) = &self.identity else {
                    return Err(failed(std::io::Error::other("no TLS for this connection")));
                };
                let until = Instant::now() + self.connect;
                let stream = connect(host, *port, until).map_err(failed)?;
                let tls = |source: std::io::Error| HttpError::Tls { address: address.clone(), source };
                let name = ServerName::try_from(host.clone()).map_err(|error| tls(std::io::Error::other(error)))?;
                let connection = ClientConnection::new(identity.config.clone(), name);
                let connection = connection.map_err(|error| tls(std::io::Error::other(error)))?;
                let mut stream = StreamOwned::new(connection, Timed { stream, until });
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock).map_err(tls)?;
                }
                stream.sock.until = Instant::now() + self.patience;
                Ok(Box::new(stream))
            }
        }
    }
}

/// The first of a host's addresses that takes a connection.
fn connect(host: &str, port: u16, until: Instant) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// What has time-outs.
trait Socket: Read + Write {
    fn set_timeout(&self, left: Duration) -> std::io::Result<()>;
}

impl Socket for UnixStream {
    fn set_timeout(&self, left: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl Socket for TcpStream {
    fn set_timeout(&self, left: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

/// A socket until a moment: one that sends a byte now and then does not last longer.
struct Timed<S> {
    stream: S,
    until: Instant,
}

impl<S: Socket> Timed<S> {
    fn wait<R>(&mut self, verb: impl FnOnce(&mut S) -> std::io::Result<R>) -> std::io::Result<R> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        self.stream.set_timeout(left)?;
        verb(&mut self.stream).map_err(|error| match error.kind() {
            // What the kernel says when a time-out of a socket ends.
            std::io::ErrorKind::WouldBlock => std::io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }
}

impl<S: Socket> Read for Timed<S> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.wait(|stream| stream.read(buf))
    }
}

impl<S: Socket> Write for Timed<S> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.wait(|stream| stream.write(buf))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Bytes(usize),
    /// Each chunk tells its own; one without bytes is the end.
    Chunked,
}

/// Everything until the length it tells has come, or the end.
fn read_answer(stream: &mut dyn Stream, body_bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    let mut wanted = None;
    loop {
        if wanted.is_none() {
            wanted = head_of(&answer).ok().map(|(end, _, length)| match length {
                Length::Bytes(length) => end.saturating_add(length),
                // The server closes the connection behind it.
                Length::Chunked => usize::MAX,
            });
        }
        let bytes_max = HEAD_BYTES_MAX as u64 + if wanted.is_some() { body_bytes_max } else { 0 };
        if wanted.is_some_and(|wanted| answer.len() >= wanted) || answer.len() as u64 > bytes_max {
            return Ok(answer);
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(answer),
            Ok(n) => answer.extend_from_slice(&chunk[..n]),
            // A peer that ends without saying goodbye to TLS: the length tells whether everything has come.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(answer),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Where the body begins, the status, and the length told.
fn head_of(answer: &[u8]) -> Result<(usize, u16, Length), String> {
    let end = answer.windows(4).take(HEAD_BYTES_MAX).position(|w| w == b"\r\n\r\n");
    let end = end.ok_or_else(|| "the answer has no end of its head".to_owned())?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "the head is no text".to_owned())?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or("");
    let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| format!("it begins with {first:?}"))?;
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let value =
        |name: &str| headers.iter().find(|(it, _)| it.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
    let length = if value("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        Length::Chunked
    } else {
        let length = value("content-length").and_then(|value| value.parse().ok());
        Length::Bytes(length.ok_or_else(|| "the answer does not tell its length".to_owned())?)
    };
    Ok((end + 4, status, length))
}

/// What chunks hold; they must come to their end.
fn of_chunks(mut rest: &[u8]) -> Result<Vec<u8>, String> {
    let broken = |body: &[u8]| format!("the answer broke off after {} bytes", body.len());
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n").ok_or_else(|| broken(&body))?;
        let told = std::str::from_utf8(&rest[..end]).ok().and_then(|told| usize::from_str_radix(told, 16).ok());
        let length = told.ok_or_else(|| "a chunk does not tell its length".to_owned())?;
        if length == 0 {
            return Ok(body);
        }
        let chunk = rest.get(end + 2..).and_then(|after| after.split_at_checked(length));
        let (chunk, after) = chunk.ok_or_else(|| broken(&body))?;
        body.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n").ok_or_else(|| broken(&body))?;
    }
}

/// Status and body of a whole answer.
fn parse(answer: &[u8]) -> Result<(u16, String), String> {
    let (begin, status, length) = head_of(answer)?;
    let body = &answer[begin..];
    let body = match length {
        Length::Bytes(length) if body.len() != length => return Err(format!("{} bytes of {length} came", body.len())),
        Length::Bytes(_) => body.to_vec(),
        Length::Chunked => of_chunks(body)?,
    };
    String::from_utf8(body).map(|body| (status, body)).map_err(|_| "the body is no text".to_owned())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Ok((200, "hi".to_owned())));
        let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nA\r\n, and more\r\n0\r\n\r\n";
        assert_eq!(parse(chunks), Ok((200, "hi, and more".to_owned())));
        for bad in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nhi",
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi",
            b"HTTP/1.1 x\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n\xff",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi!\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nhi\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\nhi\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        ] {
            assert!(parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn nobody_there() {
        let client = Client::new(Address::Unix("/nonexistent/admin.sock".into())).unwrap();
        let message = client.post_json("/", "").map_err(|error| error.to_string());
        assert!(message.is_err_and(|m| m.contains("hint: start it with `flashcell serve`")));
    }

    /// What a server does with one connection.
    type Behaviour = fn(UnixStream);

    #[test]
    fn servers_that_talk_without_end_or_not_at_all() {
        let behaviours: [(Behaviour, &str); 3] = [
            (
                |mut stream| {
                    while stream.write_all(&[b'x'; 4096]).is_ok() {}
                },
                "no end of its head",
            ),
            (
                |mut stream| {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n");
                    while stream.write_all(&[b'x'; 4096]).is_ok() {}
                },
                "bytes of 999999999 came",
            ),
            // A byte now and then does not make it last longer.
            (
                |mut stream| {
                    while stream.write_all(b"H").is_ok() {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                },
                "timed out",
            ),
        ];
        for (behaviour, part) in behaviours {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let serving = std::thread::spawn(move || behaviour(listener.accept().unwrap().0));
            let second = Duration::from_secs(1);
            let client = Client::with(Address::Unix(path), None, second, second, 1 << 20);
            let began = Instant::now();
            let error = client.post_json("/", "").unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(began.elapsed() < second * 5, "{part}");
            drop(client);
            serving.join().unwrap();
        }
    }
}
