//! Goal: who is trusted is who should be. Method: real handshakes between configurations of made files.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::tls::{self, Identity};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::sync::Arc;

/// A group: an authority and a cell.
fn group() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (own, cell) = (dir.path().join("own"), dir.path().join("cell"));
    std::fs::create_dir(&cell).unwrap();
    std::fs::write(cell.join("cell.toml"), "").unwrap();
    let cells = vec![cell.display().to_string()];
    assert!(trust(&TrustOptions { cells, dir: Some(own.clone()), ..TrustOptions::default() }).unwrap());
    (dir, own, cell.join("trust"))
}

/// Both ends' errors; none when they come to trust one another.
fn handshake(client: &Path, cell: &Path, name: &str) -> Option<String> {
    handshake_with(client, tls::server(cell).unwrap(), name)
}

fn handshake_with(client: &Path, server: Arc<ServerConfig>, name: &str) -> Option<String> {
    handshake_of(Identity::load(client).unwrap(), server, name)
}

fn handshake_of(identity: Identity, server: Arc<ServerConfig>, name: &str) -> Option<String> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(identity.config, name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    for _ in 0..8 {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        if let Err(error) = server.process_new_packets() {
            return Some(format!("cell: {error}"));
        }
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        if let Err(error) = client.process_new_packets() {
            return Some(format!("client: {error}"));
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    None
}

#[test]
fn one_command_makes_both_sides() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, own, cell) = group();
    for name in ["localhost", "127.0.0.1", "::1"] {
        assert_eq!(handshake(&own, &cell, name), None);
    }
    for file in [own.join("ca.key"), own.join("client.key"), cell.join("cell.key")] {
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
    for (name, file) in tls::GNUTLS_NAMES {
        assert_eq!(std::fs::read(own.join(name)).unwrap(), std::fs::read(own.join(file)).unwrap(), "{name}");
    }
    assert!(!cell.join("ca.key").exists(), "the authority's key stays");
    assert!(handshake(&own, &cell, "exa1cel09").unwrap().starts_with("client: "), "a name that is not the cell's");
}

#[test]
fn another_group_is_nobody() {
    let (_a, own, cell) = group();
    let (_b, other, other_cell) = group();
    assert!(handshake(&own, &other_cell, "localhost").unwrap().starts_with("client: "));
    // With the right authority to believe, and the certificate of another one to show.
    for file in ["client.pem", "client.key"] {
        std::fs::copy(other.join(file), own.join(file)).unwrap();
    }
    assert!(handshake(&own, &cell, "localhost").unwrap().starts_with("cell: "));
    // None to show.
    std::fs::remove_file(own.join("client.pem")).unwrap();
    assert!(handshake(&own, &cell, "localhost").unwrap().starts_with("cell: "));
    // Unless the cell takes tokens.
    std::fs::write(cell.join("tokens"), "").unwrap();
    assert_eq!(handshake(&own, &cell, "localhost"), None);
    // NBD has no tokens to show.
    let nbd = || tls::nbd_server(&cell).unwrap();
    assert!(handshake_with(&own, nbd(), "localhost").unwrap().starts_with("cell: "));
    let (_c, own, cell) = group();
    assert_eq!(handshake_with(&own, tls::nbd_server(&cell).unwrap(), "localhost"), None);
    // Nor a version that cannot renew its keys.
    let mut old = Identity::load(&own).unwrap();
    let mut config = ClientConfig::builder_with_provider(old.config.crypto_provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.client_auth_cert_resolver = old.config.client_auth_cert_resolver.clone();
    old.config = Arc::new(config);
    assert!(handshake_of(old, tls::nbd_server(&cell).unwrap(), "localhost").unwrap().starts_with("cell: "));
}

/// A cell's certificate does not ask, and a client's does not serve.
#[test]
fn certificates_have_one_side() {
    let (_dir, own, cell) = group();
    let pair = |from: &Path, names: [&str; 2], to: &Path, as_names: [&str; 2]| {
        for (name, as_name) in names.iter().zip(as_names) {
            std::fs::copy(from.join(name), to.join(as_name)).unwrap();
        }
    };
    let thief = tempfile::tempdir().unwrap();
    std::fs::copy(own.join("ca.pem"), thief.path().join("ca.pem")).unwrap();
    pair(&cell, ["cell.pem", "cell.key"], thief.path(), ["client.pem", "client.key"]);
    assert!(handshake(thief.path(), &cell, "localhost").unwrap().starts_with("cell: "));
    pair(&own, ["client.pem", "client.key"], thief.path(), ["cell.pem", "cell.key"]);
    assert!(handshake(&own, thief.path(), "localhost").unwrap().starts_with("client: "));
}

#[test]
fn the_authority_stays_and_cells_are_renewed() {
    let (dir, own, cell) = group();
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    let before = (read(own.join("ca.pem")), read(own.join("client.pem")), read(cell.join("cell.pem")));
    let cells = vec![dir.path().join("cell").display().to_string()];
    let names = vec!["exa1cel01".to_owned(), "10.1.2.3".to_owned()];
    trust(&TrustOptions { cells, names, dir: Some(own.clone()), ..TrustOptions::default() }).unwrap();
    assert_eq!((read(own.join("ca.pem")), read(own.join("client.pem"))), (before.0, before.1));
    assert!(read(cell.join("cell.pem")) != before.2);
    assert_eq!(handshake(&own, &cell, "exa1cel01"), None);
    assert_eq!(handshake(&own, &cell, "10.1.2.3"), None);
    // Where the authority's key is not, nothing is made.
    std::fs::remove_file(own.join("ca.key")).unwrap();
    let again = TrustOptions { cells: vec!["/x".to_owned()], dir: Some(own), ..TrustOptions::default() };
    assert!(trust(&again).unwrap_err().to_string().contains("not its key"));
}

#[test]
fn clients_with_roles() {
    let (dir, own, cell) = group();
    let out = dir.path().join("out");
    let options = TrustOptions {
        client: Some("grafana".to_owned()),
        role: Some(Role::Monitor),
        out: Some(out.clone()),
        dir: Some(own.clone()),
        ..TrustOptions::default()
    };
    trust(&options).unwrap();
    assert_eq!(handshake(&out, &cell, "localhost"), None);
    assert!(!out.join("ca.key").exists());
    for (change, part) in [
        (TrustOptions { role: None, ..options.clone() }, "go together"),
        (TrustOptions { out: None, ..options.clone() }, "--out"),
        (TrustOptions { client: Some("a b".to_owned()), ..options.clone() }, "is no name"),
        (TrustOptions { client: None, role: None, ..options.clone() }, "no cells are named"),
    ] {
        assert!(trust(&change).unwrap_err().to_string().contains(part), "{part}");
    }
}
