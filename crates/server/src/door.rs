//! The NBD door: where clients come in, and who they are. On a unix socket users of this host as the kernel knows them, over TCP
//! holders of a certificate of the group's authority, by the rules of administration.
//!
//! Never lets anybody in for what they say about themselves.

use crate::admin::{Access, Role, user_names};
use crate::certificates::{Certificates, Secure};
use crate::config::{Located, NbdAddress};
use crate::serve::{ServeError, check_socket_path};
use device::{Conn, NetError, Runtime, World};
use nbd::FrontEnd;
use nbd::server::{Client, Doorkeeper, Proof, Scope};
use nbd::tls::TlsError;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;

/// Listen wherever cell.toml says, and serve; the addresses really bound.
pub(crate) fn listen(
    located: &Located,
    front_end: &FrontEnd,
    access: &Arc<Access>,
    certificates: &Certificates,
    runtime: &Runtime,
    world: &World,
) -> Result<Vec<String>, ServeError> {
    let plain = Arc::new(Door { access: access.clone(), tls: None });
    let mut secure: Option<Arc<Door>> = None;
    let mut addresses = Vec::new();
    for NbdAddress { address, tls } in located.nbd_addresses() {
        let fail =
            |reason: String, hint: &'static str| ServeError::Listen { address: address.to_string(), reason, hint };
        check_socket_path(&address)?;
        let door = match (tls, &secure) {
            (false, _) => plain.clone(),
            (true, Some(door)) => door.clone(),
            (true, None) => {
                let tls = certificates.nbd().map_err(|error| {
                    let hint = "`flashcell trust DIR` makes them; tcp-plain:HOST is TCP without TLS";
                    fail(format!("TCP is TLS, and there are no certificates: {error}"), hint)
                })?;
                secure.insert(Arc::new(Door { access: access.clone(), tls: Some(tls) })).clone()
            }
        };
        let (net, wanted) = (world.net.clone(), address.clone());
        let bound = runtime.block_on(async move { net.listen(&wanted).await });
        let listener = bound.map_err(|error| {
            let hint = match error {
                NetError::InUse(_) => "stop the server that listens there, or change listen.nbd in cell.toml",
                _ => "check listen.nbd in cell.toml, and the mode of the directory",
            };
            fail(error.to_string(), hint)
        })?;
        if matches!(address, device::Address::Tcp { .. }) && !tls {
            tracing::warn!(address = %listener.address(), "NBD without TLS: whoever reaches it may use grid disks without availableTo");
        }
        addresses.push(listener.address().to_string());
        front_end.serve_at(listener, door);
    }
    Ok(addresses)
}

/// One kind of door of a cell.
struct Door {
    access: Arc<Access>,
    tls: Option<Arc<Secure>>,
}

impl Door {
    fn user(&self, uid: u32, gid: u32) -> Client {
        let mut names = Vec::new();
        let mut scope = Scope::All;
        // Who may change the lists needs no name on them, and the file of users need not be read.
        if !self.access.is_administrator(uid, gid) {
            scope = Scope::Open;
            names = user_names(uid);
            names.push(uid.to_string());
        }
        let who = names.first().map_or_else(|| format!("uid {uid}"), |name| format!("user {name}"));
        Client { who, names, scope, proof: Proof::User, database: None, may_write: true }
    }
}

/// End the sessions of clients that may not use their grid disk any more: the list of a grid disk names them no longer, or their
/// certificate is revoked. A list of revoked names that cannot be read ends no session; it lets nobody new in.
pub(crate) fn end_withdrawn(front_end: &FrontEnd, access: &Access) {
    let revoked = access.revoked().unwrap_or_default();
    let holds = |client: &Client| match &client.proof {
        Proof::Certificate(name) => !revoked.has(name),
        Proof::User | Proof::Nothing => true,
    };
    for (who, grid_disk) in front_end.end_unless(holds) {
        tracing::warn!(who, grid_disk, "the session of an NBD client ends: it may not use the grid disk any more");
    }
}

/// The holder of a certificate. A monitor looks at the cell and not at data: it has what a list gives to its name, to read.
fn holder(role: Role, name: String) -> Client {
    let who = format!("certificate {name} ({role})");
    let proof = Proof::Certificate(name.as_str().into());
    let scope = if role == Role::Administrator { Scope::All } else { Scope::Named };
    let may_write = role != Role::Monitor;
    let (names, database) = match role {
        Role::Administrator | Role::Monitor => (vec![name], None),
        Role::Database(database) => {
            let own = Some(database.as_str().into());
            (vec![database, name], own)
        }
    };
    Client { who, names, scope, proof, database, may_write }
}

impl Doorkeeper for Door {
    fn client_of(&self, conn: &dyn Conn) -> Client {
        match conn.credentials() {
            Some(user) => self.user(user.uid, user.gid),
            None => Client {
                who: "a client without a certificate".to_owned(),
                names: Vec::new(),
                scope: Scope::Open,
                proof: Proof::Nothing,
                database: None,
                may_write: true,
            },
        }
    }

    fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(|tls| tls.config())
    }

    fn client_of_certificate(&self, certificate: &CertificateDer<'_>, conn: &dyn Conn) -> Result<Client, String> {
        let from = conn.peer();
        let found = self.access.holder(certificate, &from).map_err(|unfit| unfit.to_string())?;
        let client = holder(found.0, found.1);
        tracing::debug!(from, who = client.who, "an NBD client");
        Ok(client)
    }

    fn tls_failed(&self, conn: &dyn Conn, reason: &TlsError) {
        tracing::info!(from = conn.peer(), %reason, "no TLS came about with an NBD client");
    }

    fn cut_off(&self, conn: &dyn Conn, who: &str, grid_disk: &str) {
        tracing::warn!(
            from = conn.peer(),
            who,
            grid_disk,
            "an NBD client was cut off: it held more than its share of memory or requests and made no progress while others waited"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_who_the_kernel_says() {
        let access = Arc::new(Access { owner_uid: 77, group: None, tokens: None, revoked: None });
        let door = Door { access, tls: None };
        for uid in [0, 77] {
            assert_eq!(door.user(uid, 1).scope, Scope::All, "uid {uid}");
        }
        let client = door.user(4_000_000_001, 0);
        assert_eq!((client.scope, &client.names[..]), (Scope::Open, &["4000000001".to_owned()][..]));
        let list = |name: &str| vec![name.to_owned()];
        assert!(client.may_use(&list("4000000001")) && !client.may_use(&list("77")) && client.may_use(&[]));
    }

    #[test]
    fn holders_have_what_their_role_gives() {
        let list = |name: &str| vec![name.to_owned()];
        let client = |role: &str| holder(Role::parse(role).expect("a role"), "ann".to_owned());
        let administrator = client("administrator");
        assert!(administrator.may_use(&[]) && administrator.may_use(&list("x")) && administrator.may_write);
        let monitor = client("monitor");
        assert!(!monitor.may_use(&[]) && !monitor.may_use(&list("x")) && monitor.may_use(&list("ANN")));
        assert!(!monitor.may_write);
        let sales = client("database:SALES");
        assert!(!sales.may_use(&[]) && !sales.may_use(&list("HR")) && sales.may_write);
        assert!(sales.may_use(&list("sales")) && sales.may_use(&list("ann")));
        assert_eq!(sales.tag(None), Some(Some("SALES".into())));
        assert_eq!((sales.tag(Some("HR")), monitor.tag(Some("HR"))), (None, Some(Some("HR".into()))));
    }
}
