//! The client's half of the admin protocol: one HTTP request over a unix or TCP socket, blocking.
//!
//! Speaks only what our own service answers: HTTP/1.1 with a length, one request a connection. Never follows anything,
//! never keeps a connection.

use device::Address;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Longest head of an answer: ours are some 150 bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest body: the metrics of the largest cell, several times over.
const BODY_BYTES_MAX: u64 = 256 << 20;
/// A statement may zero a new grid disk; a server that says nothing for this long is gone.
const READ_TIMEOUT: Duration = Duration::from_secs(3600);

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
    /// What came is not an answer of our service.
    #[error("{address} does not answer like a Flashcell server: {what}\nhint: check the address given with -c")]
    Strange {
        /// Where.
        address: String,
        /// What is odd.
        what: String,
    },
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn connect(address: &Address) -> std::io::Result<Box<dyn Stream>> {
    Ok(match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            Box::new(stream)
        }
        Address::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port))?;
            stream.set_read_timeout(Some(READ_TIMEOUT))?;
            Box::new(stream)
        }
    })
}

/// POST a JSON body; the body of a 200 answer.
pub(crate) fn post_json(address: &Address, path: &str, body: &str) -> Result<String, HttpError> {
    let mut stream = connect(address).map_err(|source| HttpError::Connect { address: address.to_string(), source })?;
    let lost = |source| HttpError::Lost { address: address.to_string(), source };
    let strange = |what: String| HttpError::Strange { address: address.to_string(), what };
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: cell\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(lost)?;
    let mut answer = Vec::new();
    stream.take(HEAD_BYTES_MAX as u64 + BODY_BYTES_MAX).read_to_end(&mut answer).map_err(lost)?;
    let (status, body) = parse(&answer).map_err(strange)?;
    match status {
        200 => Ok(body),
        503 => Err(strange(body.trim().to_owned())),
        other => Err(strange(format!("status {other}: {}", body.trim()))),
    }
}

/// Status and body of a whole answer.
fn parse(answer: &[u8]) -> Result<(u16, String), String> {
    let end = answer.windows(4).take(HEAD_BYTES_MAX).position(|w| w == b"\r\n\r\n");
    let end = end.ok_or_else(|| "the answer has no end of its head".to_owned())?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "the head is no text".to_owned())?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or("");
    let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| format!("it begins with {first:?}"))?;
    let length =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| "the answer does not tell its length".to_owned())?;
    let body = &answer[end + 4..];
    if body.len() != length {
        return Err(format!("{} bytes of {length} came", body.len()));
    }
    String::from_utf8(body.to_vec()).map(|body| (status, body)).map_err(|_| "the body is no text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Ok((200, "hi".to_owned())));
        for bad in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nhi",
            b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi",
            b"HTTP/1.1 x\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n\xff",
        ] {
            assert!(parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn nobody_there() {
        let address = Address::Unix("/nonexistent/admin.sock".into());
        let message = post_json(&address, "/", "").map_err(|error| error.to_string());
        assert!(message.is_err_and(|m| m.contains("hint: start it with `flashcell serve`")));
    }
}
