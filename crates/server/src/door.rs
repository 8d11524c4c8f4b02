//! The NBD door: users of this host as the kernel knows them.
//!
//! Never lets anybody in for what they say about themselves.

use crate::admin::{Access, user_names};
use device::Conn;
use nbd::server::{Client, Doorkeeper, Scope};
use std::sync::Arc;

/// The door of one cell.
pub(crate) struct Door {
    access: Arc<Access>,
}

impl Door {
    pub(crate) fn new(access: Arc<Access>) -> Door {
        Door { access }
    }

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
        Client { who, names, scope, database: None, may_write: true }
    }
}

impl Doorkeeper for Door {
    fn client_of(&self, conn: &dyn Conn) -> Client {
        match conn.credentials() {
            Some(user) => self.user(user.uid, user.gid),
            None => Client {
                who: "a client without a certificate".to_owned(),
                names: Vec::new(),
                scope: Scope::Open,
                database: None,
                may_write: true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_who_the_kernel_says() {
        let door = Door::new(Arc::new(Access { owner_uid: 77, group: None, tokens: None, revoked: None }));
        for uid in [0, 77] {
            assert_eq!(door.user(uid, 1).scope, Scope::All, "uid {uid}");
        }
        let client = door.user(4_000_000_001, 0);
        assert_eq!((client.scope, &client.names[..]), (Scope::Open, &["4000000001".to_owned()][..]));
        let list = |name: &str| vec![name.to_owned()];
        assert!(client.may_use(&list("4000000001")) && !client.may_use(&list("77")) && client.may_use(&[]));
    }
}
