//! `[listen]`: where a cell is served.

use super::{ConfigError, Located};
use device::Address;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Port of the admin service over TCP when none is given: the vendor's.
pub const ADMIN_PORT: u16 = 8888;
/// Port of NBD over TCP when none is given: the registered one.
pub const NBD_PORT: u16 = 10809;

/// Listening addresses: `unix:PATH` or `tcp:HOST[:PORT]`. TCP is TLS; see [`super::Admin`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// NBD. `tcp-plain:HOST[:PORT]` is TCP without encryption and without a login: whoever reaches it may use every grid disk
    /// without a list of clients.
    pub nbd: Vec<String>,
    /// Administration and metrics.
    pub admin: Vec<String>,
}

impl Default for Listen {
    fn default() -> Listen {
        Listen { nbd: vec!["unix:nbd.sock".to_owned()], admin: vec!["unix:admin.sock".to_owned()] }
    }
}

/// Where NBD is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdAddress {
    /// The address.
    pub address: Address,
    /// Nothing is said there before TLS, with a certificate.
    pub tls: bool,
}

impl Located {
    pub(super) fn check_listening(&self) -> Result<(), ConfigError> {
        self.config.listen.nbd.iter().try_for_each(|text| self.nbd_address(text).map(|_| ()))?;
        self.config.listen.admin.iter().try_for_each(|text| self.admin_address(text).map(|_| ()))
    }

    /// Addresses of the NBD front end.
    #[must_use]
    pub fn nbd_addresses(&self) -> Vec<NbdAddress> {
        self.config.listen.nbd.iter().filter_map(|text| self.nbd_address(text).ok()).collect()
    }

    /// Addresses of the admin service.
    #[must_use]
    pub fn admin_addresses(&self) -> Vec<Address> {
        self.config.listen.admin.iter().filter_map(|text| self.admin_address(text).ok()).collect()
    }

    fn nbd_address(&self, text: &str) -> Result<NbdAddress, ConfigError> {
        const FORM: &str =
            "it must be unix:PATH, tcp:HOST[:PORT] (TLS), or tcp-plain:HOST[:PORT] (open to whoever reaches it)";
        let (plain, form) = match text.strip_prefix("tcp-plain:") {
            Some(rest) => (true, format!("tcp:{rest}")),
            None => (false, text.to_owned()),
        };
        let address = self.address(&form, NBD_PORT).ok_or_else(|| self.bad("listen.nbd", text, FORM))?;
        let tls = !plain && matches!(address, Address::Tcp { .. });
        Ok(NbdAddress { address, tls })
    }

    fn admin_address(&self, text: &str) -> Result<Address, ConfigError> {
        let reason = match text.starts_with("tcp-plain:") {
            true => "administration over TCP is TLS: tcp:HOST[:PORT]",
            false => "it must be unix:PATH or tcp:HOST[:PORT]",
        };
        self.address(text, ADMIN_PORT).ok_or_else(|| self.bad("listen.admin", text, reason))
    }

    fn address(&self, text: &str, port: u16) -> Option<Address> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Some(Address::Unix(self.resolve(Path::new(path))));
        }
        let (host, port) = text.strip_prefix("tcp:").and_then(|rest| host_and_port(rest, port))?;
        Some(Address::Tcp { host, port })
    }
}

/// `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`; a port of 0 is allowed.
pub(crate) fn host_and_port(text: &str, port: u16) -> Option<(String, u16)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => match text.split_once(':') {
            // An IPv6 address without brackets cannot carry a port.
            Some((_, rest)) if rest.contains(':') => (text, ""),
            Some((host, _)) => (host, &text[host.len()..]),
            None => (text, ""),
        },
    };
    let port = match rest.strip_prefix(':') {
        Some(digits) => digits.parse().ok()?,
        None if rest.is_empty() => port,
        None => return None,
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::{Config, FILE_NAME};

    #[test]
    fn hosts_and_ports() {
        for (text, expected) in [
            ("a", Some(("a", 1))),
            ("a:2", Some(("a", 2))),
            ("[::1]:3", Some(("::1", 3))),
            ("[::1]", Some(("::1", 1))),
            ("::1", Some(("::1", 1))),
            ("a:", None),
            ("a:x", None),
            ("", None),
            ("[::1]x", None),
        ] {
            assert_eq!(host_and_port(text, 1), expected.map(|(host, port)| (host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn tcp_is_tls_unless_it_says_that_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let text = "[listen]\nnbd = [\"unix:x\", \"tcp:h\", \"tcp-plain:h:7\", \"tcp-plain:[::1]\"]\n";
        std::fs::write(dir.path().join(FILE_NAME), text).unwrap();
        let found = Config::load(dir.path()).unwrap().nbd_addresses();
        let told: Vec<(String, bool)> = found.iter().map(|it| (it.address.to_string(), it.tls)).collect();
        assert!(told[0].0.ends_with("/x") && !told[0].1);
        assert_eq!(told[1], ("tcp:h:10809".to_owned(), true));
        assert_eq!(told[2], ("tcp:h:7".to_owned(), false));
        assert_eq!(told[3], ("tcp:[::1]:10809".to_owned(), false));
        for bad in ["tcp-plain:", "tcp-plain:unix:x", "tls:h"] {
            std::fs::write(dir.path().join(FILE_NAME), format!("[listen]\nnbd = [\"{bad}\"]\n")).unwrap();
            assert!(Config::load(dir.path()).unwrap_err().to_string().contains("tcp:HOST[:PORT] (TLS)"), "{bad}");
        }
    }
}
