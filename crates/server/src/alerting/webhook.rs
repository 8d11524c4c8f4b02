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
    let stream = TlsConnector::from(tls(ca)?).connect(name, stream).await.map_err(text)?;
    exchange(stream, address, json).await
}

fn tls(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let host = || HOST_CERTIFICATES.iter().map(Path::new).find(|path| path.exists());
    let path = ca.or_else(host).ok_or("no certificates to know the other end by; ca = names a file of them")?;
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| format!("{}: {error}", path.display()))?;
    // One of many that makes no sense is no reason to trust none.
    roots.add_parsable_certificates(certificates.flatten());
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
mod tests {
    use super::*;

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
