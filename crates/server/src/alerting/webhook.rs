//! One POST of JSON over HTTP/1.1, plain or TLS, a connection each.
//!
//! Never follows anything and reads no more of an answer than its first line.

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Bytes of an answer's first line.
const STATUS_BYTES_MAX: usize = 512;
/// The certificates a host trusts, where its distribution keeps them.
const HOST_CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Where to send to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    tls: bool,
    host: String,
    port: u16,
    /// With its query.
    path: String,
}

impl Address {
    /// `http://HOST[:PORT][/PATH]`, or `https`. No user, no fragment.
    pub(crate) fn parse(url: &str) -> Option<Address> {
        let (tls, rest) = match url.split_once("://")? {
            ("http", rest) => (false, rest),
            ("https", rest) => (true, rest),
            _ => return None,
        };
        if !rest.chars().all(|c| c.is_ascii_graphic()) || rest.contains(['#', '@']) {
            return None;
        }
        let path_at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(path_at);
        let port_at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let (host, port) = match port_at {
            Some(at) => (&authority[..at], authority[at + 1..].parse().ok()?),
            None => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        (!host.is_empty()).then(|| Address { tls, host: host.to_owned(), port, path })
    }
}

/// Send it; done when the answer is a 2xx.
pub(super) async fn post(address: &Address, ca: Option<&Path>, json: &[u8]) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(text)?;
    if !address.tls {
        return exchange(stream, address, json).await;
    }
    let name = ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
    let trusted = trusted(ca)?;
    let connected = TlsConnector::from(tls(trusted)?).connect(name, stream).await;
    exchange(connected.map_err(|error| refused(&error, address, trusted))?, address, json).await
}

/// The file of certificates to know the other end by.
pub(super) fn trusted(ca: Option<&Path>) -> Result<&Path, String> {
    let host = || HOST_CERTIFICATES.iter().map(Path::new).find(|path| path.exists());
    ca.or_else(host).ok_or_else(|| "no certificates to know the other end by; ca = names a file of them".to_owned())
}

/// What stood in the way of TLS, for the log.
fn refused(error: &std::io::Error, address: &Address, trusted: &Path) -> String {
    use rustls::CertificateError::{NotValidForName, NotValidForNameContext, UnknownIssuer};
    let (host, trusted) = (&address.host, trusted.display());
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(UnknownIssuer)) => {
            format!(
                "{host} is not trusted: no certificate in {trusted} vouches for its own; ca = names a file that has one"
            )
        }
        Some(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            format!("{host} is not trusted: its certificate is for another name; the url has to say that one")
        }
        _ => format!("no TLS with {host}: {error}"),
    }
}

/// TLS with whom the certificates in a file vouch for.
pub(super) fn tls(trusted: &Path) -> Result<Arc<ClientConfig>, String> {
    let fail = |reason: String| format!("{}: {reason}", trusted.display());
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(trusted).map_err(|error| fail(error.to_string()))?;
    // One of many that makes no sense is no reason to trust none.
    roots.add_parsable_certificates(certificates.flatten());
    if roots.is_empty() {
        return Err(fail("no certificate in it".to_owned()));
    }
    client(roots)
}

/// TLS that trusts nobody, for a connection that has none.
pub(super) fn no_tls() -> Result<Arc<ClientConfig>, String> {
    client(RootCertStore::empty())
}

fn client(roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: &Address,
    json: &[u8],
) -> Result<(), String> {
    let Address { host, port, path, .. } = address;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nuser-agent: flashcell/{}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        crate::VERSION,
        json.len(),
    )
    .into_bytes();
    request.extend(json);
    let text = |error: std::io::Error| error.to_string();
    stream.write_all(&request).await.map_err(text)?;
    stream.flush().await.map_err(text)?;
    let mut answer = Vec::new();
    let mut buffer = [0; STATUS_BYTES_MAX];
    while !answer.contains(&b'\n') && answer.len() < STATUS_BYTES_MAX {
        match stream.read(&mut buffer).await.map_err(text)? {
            0 => break,
            count => answer.extend(&buffer[..count]),
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or("").trim();
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match code {
        Some(code) if code.len() == 3 && code.starts_with('2') => Ok(()),
        _ if line.is_empty() => Err("the connection was closed without an answer".to_owned()),
        _ => Err(line.chars().take(100).collect()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::trust::{TrustOptions, trust};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, Stream};
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::PathBuf;

    /// A private authority, and a listener with a certificate of it that answers one connection; what it was asked, or why nothing.
    fn secure_listener(dir: &Path) -> (PathBuf, u16, std::thread::JoinHandle<Result<String, String>>) {
        let (own, cell) = (dir.join("own"), dir.join("cell"));
        std::fs::create_dir_all(&cell).unwrap();
        std::fs::write(cell.join("cell.toml"), "").unwrap();
        let cells = vec![cell.display().to_string()];
        assert!(trust(&TrustOptions { cells, dir: Some(own.clone()), ..TrustOptions::default() }).unwrap());
        let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cell.join("trust/cell.pem")).unwrap().collect();
        let key = PrivateKeyDer::from_pem_file(cell.join("trust/cell.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_no_client_auth().with_single_cert(chain.unwrap(), key).unwrap());
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move || {
            let mut stream = listener.accept().unwrap().0;
            let mut tls = ServerConnection::new(config).unwrap();
            let mut secured = Stream::new(&mut tls, &mut stream);
            let mut asked = Vec::new();
            let mut buffer = [0; 4096];
            while !asked.ends_with(b"}") {
                match secured.read(&mut buffer).map_err(|error| error.to_string())? {
                    0 => return Err("the end".to_owned()),
                    count => asked.extend(&buffer[..count]),
                }
            }
            secured.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            Ok(String::from_utf8(asked).unwrap())
        };
        (own.join("ca.pem"), port, std::thread::spawn(serve))
    }

    fn send(url: &str, ca: &Path) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(post(&Address::parse(url).unwrap(), Some(ca), b"{\"a\":1}"))
    }

    #[test]
    fn over_tls_who_is_trusted_is_told() {
        for host in ["localhost", "127.0.0.1"] {
            let dir = tempfile::tempdir().unwrap();
            let (ca, port, server) = secure_listener(dir.path());
            assert_eq!(send(&format!("https://{host}:{port}/alerts"), &ca), Ok(()));
            let asked = server.join().unwrap().unwrap();
            assert!(asked.starts_with("POST /alerts HTTP/1.1\r\n") && asked.ends_with("\r\n\r\n{\"a\":1}"), "{asked}");
        }
    }

    #[test]
    fn over_tls_who_is_not_trusted_is_told_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (ca, port, server) = secure_listener(dir.path());
        let other = tempfile::tempdir().unwrap();
        let (other_ca, other_port, other_server) = secure_listener(other.path());
        // Of another authority.
        let said = send(&format!("https://localhost:{port}/"), &other_ca).unwrap_err();
        let expected = "localhost is not trusted: no certificate in ";
        assert!(said.starts_with(expected) && said.contains(&other_ca.display().to_string()), "{said}");
        assert!(server.join().unwrap().is_err(), "not a byte of the alert");
        // Of the right one, for another name.
        let said = send(&format!("https://127.0.0.2:{other_port}/"), &other_ca).unwrap_err();
        assert!(said.starts_with("127.0.0.2 is not trusted: its certificate is for another name"), "{said}");
        assert!(other_server.join().unwrap().is_err());
        // Files that vouch for nobody.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        std::fs::write(dir.path().join("empty"), "nothing").unwrap();
        for (file, part) in [("nosuch", "nosuch"), ("empty", "empty: no certificate in it")] {
            let said = send(&url, &dir.path().join(file)).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
        // Somebody who speaks no TLS.
        let plain = std::thread::spawn(move || {
            let mut all: Vec<_> = (0..3).map(|_| listener.accept().unwrap().0).collect();
            all.remove(2).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        });
        let said = send(&url, &ca).unwrap_err();
        assert!(said.starts_with("no TLS with localhost: "), "{said}");
        plain.join().unwrap();
    }

    #[test]
    fn addresses() {
        let shown = |url: &str| Address::parse(url).map(|it| format!("{} {} {} {}", it.tls, it.host, it.port, it.path));
        for (url, expected) in [
            ("http://a", Some("false a 80 /")),
            ("https://a.example/x?y=1", Some("true a.example 443 /x?y=1")),
            ("http://10.0.0.1:8080?q", Some("false 10.0.0.1 8080 /?q")),
            ("https://[::1]:99/", Some("true ::1 99 /")),
            ("https://[::1]/", Some("true ::1 443 /")),
            ("ftp://a/", None),
            ("http://", None),
            ("http://:80/", None),
            ("http://a:99999/", None),
            ("http://u:p@a/", None),
            ("http://a/b c", None),
            ("http://a/\r\nx: y", None),
            ("a", None),
        ] {
            assert_eq!(shown(url).as_deref(), expected, "{url}");
        }
    }
}
