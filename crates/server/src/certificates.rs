//! The certificates of a cell while it serves: TLS goes by those in its `trust` directory, and by new ones once they are there.
//!
//! Connections that are there go on; new ones get the new certificate. Files that do not make TLS change nothing: the cell goes on with
//! what it has, and an alert says so as long as they are there. Never half of it: both doors change, or none.

use crate::tls::{self, TlsError};
use device::sync::lock;
use rustls::ServerConfig;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// How a door's TLS is made from a directory.
type Make = fn(&Path) -> Result<Arc<ServerConfig>, TlsError>;

/// One door's TLS.
pub(crate) struct Secure {
    make: Make,
    config: Mutex<Arc<ServerConfig>>,
}

impl Secure {
    /// What the next connection is to go by.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        lock(&self.config).clone()
    }
}

/// When each file was written, which one it is and how long; none where there is none.
type Stamp = [Option<(SystemTime, u64, u64)>; FILES.len()];

/// What a change of is a change of certificates. Tokens only by whether there are any: they are read when one is shown.
const FILES: [&str; 4] = [tls::CA_CERTIFICATE, tls::CELL_CERTIFICATE, tls::CELL_KEY, tls::TOKENS];

#[derive(Default)]
struct State {
    doors: Vec<Arc<Secure>>,
    /// Of the files that were last taken or refused.
    judged: Stamp,
    /// Of the last look: files that are still being written are not judged.
    seen: Stamp,
    failure: Option<String>,
}

/// See the module.
pub(crate) struct Certificates {
    dir: PathBuf,
    state: Mutex<State>,
}

impl Certificates {
    /// Those in a directory, which nobody needs yet.
    pub(crate) fn new(dir: PathBuf) -> Certificates {
        Certificates { dir, state: Mutex::default() }
    }

    /// TLS of the admin service.
    ///
    /// # Errors
    /// There are no certificates, or they make no TLS.
    pub(crate) fn admin(&self) -> Result<Arc<Secure>, TlsError> {
        self.door(tls::server)
    }

    /// TLS of NBD; errors as of [`Certificates::admin`].
    pub(crate) fn nbd(&self) -> Result<Arc<Secure>, TlsError> {
        self.door(tls::nbd_server)
    }

    fn door(&self, make: Make) -> Result<Arc<Secure>, TlsError> {
        let mut state = lock(&self.state);
        // Before the files are read: a change in between is seen at the next look.
        let stamp = self.stamp();
        let door = Arc::new(Secure { make, config: Mutex::new(make(&self.dir)?) });
        if state.doors.is_empty() {
            (state.judged, state.seen) = (stamp, stamp);
        }
        state.doors.push(door.clone());
        Ok(door)
    }

    /// Look whether the files have changed, and have come to rest; cheap enough for once a second.
    pub(crate) fn look(&self) {
        let mut state = lock(&self.state);
        if state.doors.is_empty() {
            return;
        }
        let stamp = self.stamp();
        let rests = std::mem::replace(&mut state.seen, stamp) == stamp;
        if rests && state.judged != stamp {
            self.judge(&mut state, stamp);
        }
    }

    /// Go by the files as they are now.
    pub(crate) fn renew(&self) {
        let mut state = lock(&self.state);
        let stamp = self.stamp();
        self.judge(&mut state, stamp);
    }

    fn judge(&self, state: &mut State, stamp: Stamp) {
        if state.doors.is_empty() {
            return;
        }
        state.judged = stamp;
        let made: Result<Vec<_>, TlsError> = state.doors.iter().map(|door| (door.make)(&self.dir)).collect();
        match made {
            Ok(configs) => {
                for (door, config) in state.doors.iter().zip(configs) {
                    *lock(&door.config) = config;
                }
                state.failure = None;
                tracing::info!(dir = %self.dir.display(), "new connections get the certificates that are there now");
            }
            Err(error) => {
                tracing::error!(%error, "the certificates that are there now are not used: the cell goes on with those before");
                state.failure = Some(error.to_string());
            }
        }
    }

    /// Why the files that are there are not gone by.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.state).failure.clone()
    }

    fn stamp(&self) -> Stamp {
        FILES.map(|name| {
            let found = std::fs::metadata(self.dir.join(name)).ok()?;
            match name {
                tls::TOKENS => Some((SystemTime::UNIX_EPOCH, 0, 0)),
                _ => Some((found.modified().unwrap_or(SystemTime::UNIX_EPOCH), found.ino(), found.len())),
            }
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: a renewed certificate is gone by and a broken one is not, in both doors. Method: real files and real handshakes.
    use super::*;
    use crate::tls::Identity;
    use crate::trust::{TrustOptions, trust};
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConnection, ServerConnection};

    /// A group with one cell; the same again renews the cell's certificate.
    fn grant(dir: &Path) {
        let (own, cell) = (dir.join("own"), dir.join("cell"));
        std::fs::create_dir_all(&cell).unwrap();
        std::fs::write(cell.join("cell.toml"), "").unwrap();
        let cells = vec![cell.display().to_string()];
        assert!(trust(&TrustOptions { cells, dir: Some(own), ..TrustOptions::default() }).unwrap());
    }

    /// The certificate that a client of the group is shown.
    fn shown(own: &Path, door: &Secure) -> CertificateDer<'static> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Identity::load(own).unwrap().config, name).unwrap();
        let mut server = ServerConnection::new(door.config()).unwrap();
        for _ in 0..8 {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
        assert!(!server.is_handshaking());
        client.peer_certificates().unwrap()[0].clone().into_owned()
    }

    #[test]
    fn renewed_ones_are_gone_by_and_broken_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        grant(dir.path());
        let (own, trust_dir) = (dir.path().join("own"), dir.path().join("cell/trust"));
        let certificates = Certificates::new(trust_dir.clone());
        let doors = [certificates.admin().unwrap(), certificates.nbd().unwrap()];
        let both = || doors.each_ref().map(|door| shown(&own, door));
        let first = both();
        assert_eq!(first[0], first[1]);
        certificates.look();
        assert_eq!(both(), first, "nothing has changed");

        grant(dir.path());
        certificates.look();
        assert_eq!(both(), first, "it may still be being written");
        certificates.look();
        let second = both();
        assert!(second[0] != first[0] && second[0] == second[1]);

        // A key that is not the certificate's, half a file, none at all.
        let key = std::fs::read(trust_dir.join(tls::CELL_KEY)).unwrap();
        let foreign = std::fs::read(own.join("client.key")).unwrap();
        for broken in [Some(&foreign[..]), Some(&key[..key.len() / 2]), None] {
            match broken {
                Some(bytes) => std::fs::write(trust_dir.join(tls::CELL_KEY), bytes).unwrap(),
                None => std::fs::remove_file(trust_dir.join(tls::CELL_KEY)).unwrap(),
            }
            certificates.look();
            certificates.look();
            let failure = certificates.failure().unwrap();
            assert!(failure.contains(&trust_dir.display().to_string()), "{failure}");
            assert_eq!(both(), second);
            certificates.renew();
            assert_eq!(both(), second, "nor when told to");
        }
        std::fs::write(trust_dir.join(tls::CELL_KEY), key).unwrap();
        certificates.renew();
        assert_eq!((certificates.failure(), both()), (None, second), "as before");
    }

    #[test]
    fn without_a_door_nothing_is_read() {
        let certificates = Certificates::new(PathBuf::from("/nonexistent"));
        certificates.look();
        certificates.renew();
        assert!(certificates.failure().is_none() && certificates.admin().is_err());
    }
}
