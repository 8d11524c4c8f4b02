//! Who is at the door, and which grid disks that client may use.
//!
//! A client is what its connection proves: the user of a process, the name in a certificate. Never what it says: the
//! database tag in an export name says whose work it is, and opens nothing.

use crate::tls::TlsError;
use device::Conn;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;

/// How far a client is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every grid disk: somebody who could change the lists anyway.
    All,
    /// Grid disks without a list, and those whose list names it.
    Open,
    /// Only those whose list names it.
    Named,
}

/// What a client has shown of who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The kernel tells whose process it is, or the front end keeps no door.
    User,
    /// A certificate of this name, which can be revoked.
    Certificate(Arc<str>),
    /// Nothing: it came from elsewhere without a certificate.
    Nothing,
}

/// A client as its connection proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// For people: `certificate sales`, `user ann`.
    pub who: String,
    /// What it is called in lists of clients; case does not count.
    pub names: Vec<String>,
    /// How far it is let in.
    pub scope: Scope,
    /// What it has shown.
    pub proof: Proof,
    /// The one database it works for, if it proves that: its connections are tagged with it, and with no other.
    pub database: Option<Arc<str>>,
    /// False: whatever it opens is read-only.
    pub may_write: bool,
}

impl Client {
    /// Whoever it is, let in everywhere: for front ends that keep no door.
    #[must_use]
    pub fn anybody() -> Client {
        let (names, scope, proof) = (Vec::new(), Scope::All, Proof::User);
        Client { who: "anybody".to_owned(), names, scope, proof, database: None, may_write: true }
    }

    /// Whether a grid disk with this list is for it; an empty list stands for all clients.
    #[must_use]
    pub fn may_use(&self, available_to: &[String]) -> bool {
        let named = || available_to.iter().any(|name| self.names.iter().any(|own| own.eq_ignore_ascii_case(name)));
        match self.scope {
            Scope::All => true,
            Scope::Open => available_to.is_empty() || named(),
            Scope::Named => named(),
        }
    }

    /// The database a connection is tagged with when the export name says `wanted`. None: it is another's.
    #[must_use]
    pub fn tag(&self, wanted: Option<&str>) -> Option<Option<Arc<str>>> {
        match (&self.database, wanted) {
            (None, wanted) => Some(wanted.map(Arc::from)),
            (Some(own), None) => Some(Some(own.clone())),
            (Some(own), Some(wanted)) => own.eq_ignore_ascii_case(wanted).then(|| Some(own.clone())),
        }
    }
}

/// Where the front end learns who has connected.
pub trait Doorkeeper: Send + Sync {
    /// Whoever is at the other end of a connection that has proved nothing by TLS.
    fn client_of(&self, conn: &dyn Conn) -> Client;
    /// What connections start TLS with before anything else is answered; it asks for a certificate. None: there is no TLS at
    /// this door.
    fn tls(&self) -> Option<Arc<ServerConfig>>;
    /// Whoever has proved to hold this certificate, which [`Doorkeeper::tls`] trusts.
    ///
    /// # Errors
    /// Why they are not let in, for people.
    fn client_of_certificate(&self, certificate: &CertificateDer<'_>, conn: &dyn Conn) -> Result<Client, String>;
    /// TLS has not come about.
    fn tls_failed(&self, conn: &dyn Conn, reason: &TlsError);
    /// A client of a grid disk was cut off: it held more memory or request slots than its share and made no progress while others
    /// waited for some.
    fn cut_off(&self, conn: &dyn Conn, who: &str, grid_disk: &str);
}

/// The door of a front end that lets everybody in everywhere.
pub(super) struct OpenDoor;

impl Doorkeeper for OpenDoor {
    fn client_of(&self, _conn: &dyn Conn) -> Client {
        Client::anybody()
    }

    fn tls(&self) -> Option<Arc<ServerConfig>> {
        None
    }

    fn client_of_certificate(&self, _certificate: &CertificateDer<'_>, _conn: &dyn Conn) -> Result<Client, String> {
        Ok(Client::anybody())
    }

    fn tls_failed(&self, _conn: &dyn Conn, _reason: &TlsError) {}

    fn cut_off(&self, _conn: &dyn Conn, _who: &str, _grid_disk: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn lists_let_in_whom_they_name() {
        let client = |scope| Client { names: list(&["Sales", "ann"]), scope, ..Client::anybody() };
        for (scope, none, named, other) in
            [(Scope::All, true, true, true), (Scope::Open, true, true, false), (Scope::Named, false, true, false)]
        {
            let client = client(scope);
            assert_eq!(client.may_use(&[]), none, "{scope:?}");
            assert_eq!(client.may_use(&list(&["bob", "SALES"])), named, "{scope:?}");
            assert_eq!(client.may_use(&list(&["bob", "sale", "sales2", ""])), other, "{scope:?}");
        }
        let nobody = Client { scope: Scope::Open, ..Client::anybody() };
        assert!(nobody.may_use(&[]) && !nobody.may_use(&list(&["", "anybody"])));
    }

    #[test]
    fn who_proves_a_database_works_for_it_alone() {
        let any = Client::anybody();
        assert_eq!((any.tag(None), any.tag(Some("X"))), (Some(None), Some(Some("X".into()))));
        let sales = Client { database: Some("SALES".into()), ..Client::anybody() };
        assert_eq!(sales.tag(None), Some(Some("SALES".into())));
        assert_eq!(sales.tag(Some("sales")), Some(Some("SALES".into())));
        assert_eq!(sales.tag(Some("SALES2")), None);
    }
}
