//! Certificates and keys of the admin protocol and of NBD over TCP, as files: `ca.pem`, `cell.pem`, `cell.key`, `tokens`, `revoked` of a cell; `ca.pem`,
//! `client.pem`, `client.key`, `token` of a client. `flashcell trust` writes them.
//!
//! TLS 1.2 and 1.3 (NBD: 1.3), the group's own authority on both sides, never the system's. Never writes a file.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The authority's certificate.
pub(crate) const CA_CERTIFICATE: &str = "ca.pem";
/// A cell's certificate.
pub(crate) const CELL_CERTIFICATE: &str = "cell.pem";
/// Its key.
pub(crate) const CELL_KEY: &str = "cell.key";
/// Digests of the tokens a cell takes.
pub(crate) const TOKENS: &str = "tokens";
/// Names whose certificates a cell takes no more.
pub(crate) const REVOKED: &str = "revoked";
/// A client's certificate.
pub(crate) const CLIENT_CERTIFICATE: &str = "client.pem";
/// Its key.
pub(crate) const CLIENT_KEY: &str = "client.key";
/// A client's token.
pub(crate) const TOKEN: &str = "token";
/// What GnuTLS' users (libnbd, qemu) look for in a client's directory, and what it is here.
pub(crate) const GNUTLS_NAMES: [(&str, &str); 3] =
    [("ca-cert.pem", CA_CERTIFICATE), ("client-cert.pem", CLIENT_CERTIFICATE), ("client-key.pem", CLIENT_KEY)];
/// Files larger than this hold something else.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why there can be no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there or not readable.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The files do not go together.
    #[error("{dir}: {reason}")]
    Useless {
        /// Where they are.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let fail = |reason: String| TlsError::File { path: path.to_owned(), reason };
    let size = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(fail(format!("{size} bytes are too many")));
    }
    std::fs::read(path).map_err(|error| fail(error.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let fail = |reason: String| TlsError::File { path: path.to_owned(), reason };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| fail(error.to_string()))?;
    if found.is_empty() { Err(fail("no certificate in it".to_owned())) } else { Ok(found) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|error| TlsError::File { path: path.to_owned(), reason: error.to_string() })
}

fn roots(dir: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&dir.join(CA_CERTIFICATE))? {
        roots.add(certificate).map_err(|error| useless(dir, error))?;
    }
    Ok(Arc::new(roots))
}

fn useless(dir: &Path, reason: impl ToString) -> TlsError {
    TlsError::Useless { dir: dir.to_owned(), reason: reason.to_string() }
}

/// What a cell speaks TLS with in administration. A client shows a certificate of the group, or none where tokens are taken.
pub(crate) fn server(dir: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    server_config(dir, rustls::DEFAULT_VERSIONS, dir.join(TOKENS).exists()).map(Arc::new)
}

/// What a cell speaks TLS with over NBD, which knows no tokens: a client shows a certificate of the group.
pub(crate) fn nbd_server(dir: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    // Keys wear out after some 128 GiB, and only TLS 1.3 renews them within a connection; 1.2 would have to end it.
    let mut config = server_config(dir, &[&rustls::version::TLS13], false)?;
    // Connections last, and none begins with the trust of an earlier one: a certificate is judged each time.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn server_config(
    dir: &Path,
    versions: &[&'static SupportedProtocolVersion],
    tokens: bool,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(dir)?, provider.clone());
    let verifier = if tokens { verifier.allow_unauthenticated() } else { verifier };
    let verifier = verifier.build().map_err(|error| useless(dir, error))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|error| useless(dir, error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&dir.join(CELL_CERTIFICATE))?, key(&dir.join(CELL_KEY))?);
    config.map_err(|error| useless(dir, error))
}

/// What a client has: how it speaks TLS, and its token.
#[derive(Clone)]
pub(crate) struct Identity {
    /// With its certificate when it has one.
    pub(crate) config: Arc<ClientConfig>,
    /// For a cell that takes tokens.
    pub(crate) token: Option<String>,
}

impl Identity {
    /// From a client's directory.
    pub(crate) fn load(dir: &Path) -> Result<Identity, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| useless(dir, error))?
            .with_root_certificates(roots(dir)?);
        let certificate = dir.join(CLIENT_CERTIFICATE);
        let config = if certificate.exists() {
            config
                .with_client_auth_cert(certificates(&certificate)?, key(&dir.join(CLIENT_KEY))?)
                .map_err(|error| useless(dir, error))?
        } else {
            config.with_no_client_auth()
        };
        let token = dir.join(TOKEN);
        let token = if token.exists() {
            let text = String::from_utf8(read(&token)?).map_err(|error| useless(dir, error))?;
            Some(text.trim().to_owned()).filter(|token| !token.is_empty())
        } else {
            None
        };
        if token.as_deref().is_some_and(|token| !token.chars().all(|c| c.is_ascii_graphic())) {
            return Err(useless(dir, "the token has characters no token has"));
        }
        Ok(Identity { config: Arc::new(config), token })
    }
}

/// The variable that names a client's directory.
pub const TRUST_VARIABLE: &str = "FLASHCELL_TRUST";

/// A client's directory: [`TRUST_VARIABLE`], else `~/.flashcell`.
pub(crate) fn client_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match set(TRUST_VARIABLE) {
        Some(dir) => dir.into(),
        None => Path::new(&set("HOME").unwrap_or_default()).join(".flashcell"),
    }
}
