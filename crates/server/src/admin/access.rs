//! Who is at the other end, and what they may do.
//!
//! Over a unix socket the kernel tells: root, the user the server runs as, and members of the configured group are
//! administrators, everybody else is a monitor. Over TCP a certificate of the cells' own authority carries a role, or a token does.
//! Never trusts what a client says about itself.

use super::places::Place;
use super::revoked::{LIST_BYTES_MAX, ListError, Revoked};
use rustls::pki_types::CertificateDer;
use std::fmt::{self, Display, Formatter};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::unix::UCred;

/// Longest name of a person, program or database.
const NAME_BYTES_MAX: usize = 64;
/// What the URI of a role in a certificate begins with.
pub(crate) const ROLE_URI: &str = "flashcell:role:";
/// What the URI of a name in a certificate begins with.
pub(crate) const NAME_URI: &str = "flashcell:name:";

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Administrator,
    /// Look at everything, change nothing.
    Monitor,
    /// Look at the grid disks whose `availableTo` names this database, and at their metrics and pins.
    Database(String),
}

impl Role {
    /// `administrator`, `monitor` or `database:NAME`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Role> {
        match text.split_once(':') {
            None if text == "administrator" => Some(Role::Administrator),
            None if text == "monitor" => Some(Role::Monitor),
            Some(("database", name)) if is_name(name) => Some(Role::Database(name.to_owned())),
            _ => None,
        }
    }
}

impl Display for Role {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Role::Administrator => f.write_str("administrator"),
            Role::Monitor => f.write_str("monitor"),
            Role::Database(name) => write!(f, "database:{name}"),
        }
    }
}

/// Whether this can stand in a certificate and in a file of tokens.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
    fits && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c))
}

/// Somebody with a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// What they may do.
    pub(crate) role: Role,
    /// Who they are, for the audit log.
    pub(crate) who: String,
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// Known by the kernel or by a certificate.
    Known {
        /// Who it is.
        caller: Caller,
        /// What it takes of the connections: another place once it has asked for something.
        place: Arc<Place>,
    },
    /// Connected over TLS without a certificate that counts.
    Unknown {
        /// From there.
        from: String,
        /// Why the certificate it has shown does not count.
        unfit: Option<Unfit>,
        /// What it takes of the connections: a token moves it to another place.
        place: Arc<Place>,
    },
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// Neither certificate nor token.
    Nobody,
    /// A certificate that does not count, and no token.
    Unfit(Unfit),
    /// A token that is not in the file.
    WrongToken,
}

/// Why a certificate that the group's authority has made opens nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// It has no role, or no name that could be revoked: a cell's own.
    #[error("a certificate without a role opens no door; hint: `flashcell trust --client NAME --role ROLE` makes one")]
    NoRole,
    /// Its name counts no more.
    #[error("certificate {0} is revoked; hint: `flashcell trust --client` makes another, under another name")]
    Revoked(String),
    /// Nobody can say whether it is revoked.
    #[error(
        "no certificate counts while the list of revoked ones is not known: {path}: {error}; hint: mend the file, or remove it if nobody is revoked"
    )]
    Unknown {
        /// The list.
        path: PathBuf,
        /// What is the matter with it.
        error: ListError,
    },
}

/// The rules of one cell.
pub(crate) struct Access {
    /// Whom the server runs as.
    pub(crate) owner_uid: u32,
    /// Its members are administrators.
    pub(crate) group: Option<String>,
    /// The file of tokens; none where there is no TCP.
    pub(crate) tokens: Option<PathBuf>,
    /// The file of names whose certificates count no more, one on a line; none where there is no TCP.
    pub(crate) revoked: Option<PathBuf>,
}

impl Access {
    /// Whoever connected over a unix socket.
    pub(super) fn of_unix(&self, credentials: &UCred) -> Caller {
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let role = if self.is_administrator(uid, gid) { Role::Administrator } else { Role::Monitor };
        let pid = credentials.pid().map(|pid| format!(" pid {pid}")).unwrap_or_default();
        Caller { role, who: format!("uid {uid}{pid}") }
    }

    /// Whether a user of this host administers the cell.
    pub(crate) fn is_administrator(&self, uid: u32, gid: u32) -> bool {
        let is_member = || {
            let Some(group) = &self.group else { return false };
            member(&read("/etc/group"), &read("/etc/passwd"), group, uid, gid)
        };
        uid == 0 || uid == self.owner_uid || is_member()
    }

    /// Whoever showed a certificate that the group's authority has made.
    pub(super) fn of_certificate(&self, der: &CertificateDer<'_>, from: &str) -> Result<Caller, Unfit> {
        let (role, name) = self.holder(der, from)?;
        Ok(Caller { role, who: format!("certificate {name} from {from}") })
    }

    /// The names whose certificates count no more, as the file has them now.
    pub(crate) fn revoked(&self) -> Result<Revoked, Unfit> {
        let Some(path) = &self.revoked else { return Ok(Revoked::default()) };
        Revoked::load(path).map_err(|error| Unfit::Unknown { path: path.clone(), error })
    }

    /// Role and name of a certificate that the group's authority has made.
    pub(crate) fn holder(&self, der: &CertificateDer<'_>, from: &str) -> Result<(Role, String), Unfit> {
        let (role, name) = of_uris(der).ok_or(Unfit::NoRole)?;
        let unfit = match self.revoked() {
            Ok(revoked) if revoked.has(&name) => Unfit::Revoked(name),
            Ok(_) => return Ok((role, name)),
            Err(unknown) => unknown,
        };
        tracing::warn!(from, %unfit, "a certificate was shown that does not count");
        Err(unfit)
    }

    /// Whoever sends a request over a connection. A token counts only where the connection itself tells nobody.
    pub(super) fn of_request(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Denied> {
        let (from, unfit) = match peer {
            Peer::Known { caller, .. } => return Ok(caller.clone()),
            Peer::Unknown { from, unfit, .. } => (from, unfit),
        };
        let (Some(token), Some(path)) = (token, &self.tokens) else {
            return Err(unfit.clone().map_or(Denied::Nobody, Denied::Unfit));
        };
        let found = find_token(&read(path), token);
        let (role, name) = found.ok_or(Denied::WrongToken)?;
        Ok(Caller { role, who: format!("token {name} from {from}") })
    }
}

fn read(path: impl AsRef<Path>) -> String {
    let mut text = String::new();
    let opened = std::fs::File::open(path);
    // Unreadable is empty: nobody is in it.
    let _ = opened.and_then(|file| file.take(LIST_BYTES_MAX).read_to_string(&mut text));
    text
}

/// Whether a user belongs to a group: by the group of the process, the user's own group, or the list of members.
fn member(groups: &str, users: &str, group: &str, uid: u32, gid: u32) -> bool {
    let fields = |line: &'_ str| line.split(':').map(str::to_owned).collect::<Vec<String>>();
    let groups = groups.lines().map(fields).find(|fields| fields.first().is_some_and(|name| name == group));
    let Some(found) = groups else { return false };
    let Some(group_id) = found.get(2).and_then(|id| id.parse::<u32>().ok()) else { return false };
    if gid == group_id {
        return true;
    }
    let mut mine = users.lines().map(fields).filter(|f| f.get(2).and_then(|id| id.parse().ok()) == Some(uid));
    let members: Vec<&str> = found.get(3).map_or_else(Vec::new, |list| list.split(',').map(str::trim).collect());
    mine.any(|user| members.contains(&user[0].as_str()) || user.get(3).and_then(|id| id.parse().ok()) == Some(group_id))
}

/// What a user of this host is called, as `/etc/passwd` has it; several where users share a number.
pub(crate) fn user_names(uid: u32) -> Vec<String> {
    names_of(&read("/etc/passwd"), uid)
}

fn names_of(users: &str, uid: u32) -> Vec<String> {
    let named = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (!name.is_empty() && number.parse() == Ok(uid)).then(|| name.to_owned())
    });
    named.collect()
}

/// `ROLE NAME SHA256`, one on a line.
fn find_token(file: &str, token: &str) -> Option<(Role, String)> {
    let wanted = token_digest(token);
    file.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (role, name, digest) = (words.next()?, words.next()?, words.next()?);
        // Digests of 256 random bits: how long a comparison takes tells nothing that could be used.
        (digest == wanted).then(|| Some((Role::parse(role)?, name.to_owned()))).flatten()
    })
}

/// What a file of tokens holds of a token: SHA-256 in hexadecimal.
pub(crate) fn token_digest(token: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Role and name in a verified certificate, by the URIs in it. None: it carries no role, or no name that could be revoked.
fn of_uris(der: &CertificateDer<'_>) -> Option<(Role, String)> {
    let certificate = webpki::EndEntityCert::try_from(der).ok()?;
    let uris: Vec<&str> = certificate.valid_uri_names().collect();
    let role = uris.iter().find_map(|uri| Role::parse(uri.strip_prefix(ROLE_URI)?))?;
    let name = uris.iter().find_map(|uri| uri.strip_prefix(NAME_URI)).filter(|name| is_name(name))?;
    Some((role, name.to_owned()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn roles() {
        for role in [Role::Administrator, Role::Monitor, Role::Database("SALES_1".to_owned())] {
            assert_eq!(Role::parse(&role.to_string()), Some(role));
        }
        for bad in ["", "root", "database", "database:", "database:a b", "monitor:x", "Administrator"] {
            assert_eq!(Role::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn members_of_a_group() {
        let groups = "root:x:0:\ndba:x:500:oracle, ann\nempty:x:501:\nbroken\ndbas:x:502:bob\n";
        let users =
            "root:x:0:0::/:\noracle:x:1000:1000::/:\nann:x:1001:1001::/:\nbob:x:1002:1002::/:\neve:x:1003:500::/:\n";
        let is = |group, uid, gid| member(groups, users, group, uid, gid);
        assert!(is("dba", 1000, 1000) && is("dba", 1001, 1001), "listed");
        assert!(is("dba", 1003, 1003), "the user's own group");
        assert!(is("dba", 1002, 500), "the group of the process");
        assert!(!is("dba", 1002, 1002) && !is("empty", 1000, 1000) && !is("nosuch", 1000, 1000) && !is("dba", 77, 77));
    }

    #[test]
    fn names_of_a_user() {
        let users = "root:x:0:0::/:\nann:x:1001:1001::/:\nbroken\nalso-ann:x:1001:7::/:\n:x:1001:7::/:\n";
        assert_eq!(names_of(users, 1001), ["ann", "also-ann"]);
        assert!(names_of(users, 7).is_empty());
    }

    #[test]
    fn tokens() {
        let file = format!(
            "# tokens\nmonitor prometheus {}\ndatabase:X x {}\nroot bad {}\n",
            token_digest("abc"),
            token_digest("xyz"),
            token_digest("bad")
        );
        assert_eq!(find_token(&file, "abc").unwrap(), (Role::Monitor, "prometheus".to_owned()));
        assert_eq!(find_token(&file, "xyz").unwrap().0, Role::Database("X".to_owned()));
        for wrong in ["", "ABC", "bad", "abc ", &token_digest("abc")] {
            assert_eq!(find_token(&file, wrong), None, "{wrong}");
        }
        assert_eq!(token_digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_token_counts_only_for_the_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, format!("administrator ann {}\n", token_digest("t"))).unwrap();
        let access = Access { owner_uid: 7, group: None, tokens: Some(path.clone()), revoked: None };
        let origin = super::super::places::Origin::Host([127, 0, 0, 1].into());
        let (place, _) = super::super::places::Places::new().stranger(origin);
        let unknown = Peer::Unknown { from: "1.2.3.4:5".to_owned(), unfit: None, place: place.clone() };
        assert_eq!(access.of_request(&unknown, None), Err(Denied::Nobody));
        assert_eq!(access.of_request(&unknown, Some("u")), Err(Denied::WrongToken));
        assert_eq!(access.of_request(&unknown, Some("t")).unwrap().role, Role::Administrator);
        let monitor = Caller { role: Role::Monitor, who: "uid 9".to_owned() };
        let known = Peer::Known { caller: monitor, place: place.clone() };
        assert_eq!(access.of_request(&known, Some("t")).unwrap().role, Role::Monitor);
        let unfit = Unfit::Revoked("ann".to_owned());
        let revoked = Peer::Unknown { from: "1.2.3.4:5".to_owned(), unfit: Some(unfit.clone()), place };
        assert_eq!(access.of_request(&revoked, None), Err(Denied::Unfit(unfit)));
        // Taken out of the file, it is nobody's at once.
        std::fs::write(&path, "").unwrap();
        assert_eq!(access.of_request(&unknown, Some("t")), Err(Denied::WrongToken));
    }
}
