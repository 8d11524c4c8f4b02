//! Alerts by mail: one message over SMTP for each, a connection each.
//!
//! Whom and over what, ALTER CELL says; what is secret of it, cell.toml. Never sends a password in the clear, and never lets the text of
//! an alert become a header.

use super::hooks::Message;
use super::webhook;
use crate::config::MailAccess;
use mail_send::mail_builder::MessageBuilder;
use mail_send::mail_builder::headers::address::Address;
use mail_send::{Credentials, SmtpClientBuilder};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio_rustls::TlsConnector;

/// The attributes of CELL, and of its catalog.
pub(crate) const METHOD: &str = "notificationMethod";
pub(crate) const SERVER: &str = "smtpServer";
pub(crate) const PORT: &str = "smtpPort";
pub(crate) const USE_SSL: &str = "smtpUseSSL";
pub(crate) const FROM: &str = "smtpFrom";
pub(crate) const FROM_ADDRESS: &str = "smtpFromAddr";
pub(crate) const TO_ADDRESSES: &str = "smtpToAddr";

/// A host's own mail server listens there.
const PORT_DEFAULT: u16 = 25;
/// TLS from the first byte there, elsewhere by STARTTLS.
const PORT_IMPLICIT_TLS: u16 = 465;
/// Addresses mails go to: more are what a mailing list is for.
const ADDRESSES_MAX: usize = 16;
/// Longest subject, in characters: more is cut, the body has all of it.
const SUBJECT_CHARS_MAX: usize = 120;

/// Why a cell cannot send mail as its attributes are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MailError {
    /// An attribute it needs is not set.
    #[error("mail needs {0}, which is not set")]
    Missing(&'static str),
    /// Not an address.
    #[error("{attribute} takes mail addresses, not {given:?}")]
    NotAnAddress {
        /// Which attribute.
        attribute: &'static str,
        /// What it was given.
        given: String,
    },
    /// Not the name of a host.
    #[error("{SERVER} takes the name or address of a host, not {0:?}")]
    NotAHost(String),
    /// Not a port.
    #[error("{PORT} takes a port from 1 to 65535, not {0}")]
    NotAPort(String),
    /// Too many addresses.
    #[error("{TO_ADDRESSES} takes {ADDRESSES_MAX} addresses at most, not {0}; a mailing list takes more")]
    TooMany(usize),
    /// Not a method.
    #[error("{METHOD} takes mail, or none, not {0}")]
    NotAMethod(String),
    /// cell.toml has a user, and there would be no TLS.
    #[error("a password goes over TLS only: {USE_SSL} is not TRUE, and alerts.mail in cell.toml names a user")]
    PasswordInTheClear,
}

/// Over which server, from whom and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MailPlan {
    server: String,
    port: u16,
    tls: bool,
    from_name: Option<String>,
    from: String,
    to: Vec<String>,
}

/// Whether alerts are sent by mail at all.
pub(crate) fn is_wanted(attributes: &BTreeMap<String, String>) -> bool {
    attributes.get(METHOD).is_some_and(|methods| words(methods).any(|word| word.eq_ignore_ascii_case("mail")))
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// One `@` with something on both sides, and nothing that ends an SMTP command or its brackets.
fn is_address(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_graphic() && !"<>,;:\"()[]\\".contains(c);
    text.len() <= 254
        && text.chars().all(fine)
        && text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'))
}

fn is_host(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:".contains(c))
}

/// Whether what is set of the attributes makes sense, whether or not all of it is there.
///
/// # Errors
/// See [`MailError`].
pub(crate) fn check(attributes: &BTreeMap<String, String>) -> Result<(), MailError> {
    let of = |name: &str| attributes.get(name).map(String::as_str);
    if let Some(other) = of(METHOD).into_iter().flat_map(words).find(|word| !["mail", "none"].contains(word)) {
        return Err(MailError::NotAMethod(other.to_owned()));
    }
    if let Some(server) = of(SERVER).filter(|server| !is_host(server)) {
        return Err(MailError::NotAHost(server.to_owned()));
    }
    if let Some(port) = of(PORT).filter(|port| port.parse::<u16>().unwrap_or(0) == 0) {
        return Err(MailError::NotAPort(port.to_owned()));
    }
    for attribute in [FROM_ADDRESS, TO_ADDRESSES] {
        if let Some(given) = of(attribute).into_iter().flat_map(words).find(|word| !is_address(word)) {
            return Err(MailError::NotAnAddress { attribute, given: given.to_owned() });
        }
    }
    let count = of(TO_ADDRESSES).into_iter().flat_map(words).count();
    if count > ADDRESSES_MAX { Err(MailError::TooMany(count)) } else { Ok(()) }
}

impl MailPlan {
    /// As the attributes of a cell say, and what cell.toml has for it.
    ///
    /// # Errors
    /// See [`MailError`].
    pub(crate) fn new(attributes: &BTreeMap<String, String>, access: &MailAccess) -> Result<MailPlan, MailError> {
        check(attributes)?;
        let of = |name: &'static str| attributes.get(name).map(String::as_str).ok_or(MailError::Missing(name));
        let port = attributes.get(PORT).and_then(|port| port.parse().ok()).unwrap_or(PORT_DEFAULT);
        let plan = MailPlan {
            server: of(SERVER)?.to_owned(),
            port,
            tls: attributes.get(USE_SSL).is_some_and(|word| word == "TRUE"),
            from_name: attributes.get(FROM).cloned(),
            from: of(FROM_ADDRESS)?.to_owned(),
            to: words(of(TO_ADDRESSES)?).map(str::to_owned).collect(),
        };
        if access.user.is_some() && !plan.tls { Err(MailError::PasswordInTheClear) } else { Ok(plan) }
    }

    /// `smtp://HOST:PORT`, for the log.
    pub(crate) fn place(&self) -> String {
        format!("smtp://{}:{}", self.server, self.port)
    }

    /// To whom. Each gets a mail of its own, so that one that is refused costs the others nothing.
    pub(crate) fn addresses(&self) -> &[String] {
        &self.to
    }
}

/// A mail: its subject and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mail {
    subject: String,
    text: String,
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SUBJECT_CHARS_MAX).collect()
}

impl Mail {
    /// What VALIDATE MAIL sends.
    pub(crate) fn trial(cell: &str) -> Mail {
        let subject = one_line(&format!("[{cell}] test of mail notification"));
        Mail { subject, text: format!("The alerts of cell {cell} reach this address.\n") }
    }

    pub(super) fn of_alert(message: &Message<'_>) -> Mail {
        let Message { cell, name, definition, description, severity, object, message: what, begin, end, value, unit } =
            message;
        let object_of_it = if object.is_empty() { String::new() } else { format!(" {object}") };
        let subject = one_line(&format!("[{cell}] {severity}: {definition}{object_of_it}: {what}"));
        let mut text = format!("{what}\n\n");
        let measured = value.map(|value| format!("{value} {}", unit.unwrap_or("")).trim_end().to_owned());
        for (head, field) in [
            ("Cell", Some((*cell).to_owned())),
            ("Alert", Some(name.clone())),
            ("Severity", Some((*severity).to_owned())),
            ("Definition", Some((*definition).to_owned())),
            ("Description", Some(description.clone())),
            ("Object", Some((*object).to_owned())),
            ("Value", measured),
            ("Begin", Some(begin.clone())),
            ("End", end.clone()),
        ] {
            if let Some(field) = field.filter(|field| !field.is_empty()) {
                text += &format!("{head:<12} {field}\n");
            }
        }
        text += "\nLIST ALERTHISTORY on the cell shows what became of it.\n";
        Mail { subject, text }
    }
}

/// Send a mail to one address. `dir`: where relative paths of cell.toml begin.
pub(super) async fn send(
    plan: &MailPlan,
    access: &MailAccess,
    dir: &Path,
    to: &str,
    mail: &Mail,
) -> Result<(), String> {
    let sent = deliver(plan, access, dir, to, mail);
    match tokio::time::timeout(Duration::from_secs(access.timeout_s), sent).await {
        Ok(done) => done,
        Err(_) => Err(format!("no answer within {} s", access.timeout_s)),
    }
}

async fn deliver(plan: &MailPlan, access: &MailAccess, dir: &Path, to: &str, mail: &Mail) -> Result<(), String> {
    let credentials = match (&access.user, &access.password_file) {
        (Some(user), Some(file)) => {
            let path = dir.join(file);
            let secret = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Some(Credentials::Plain {
                username: user.clone(),
                secret: secret.trim_end_matches(['\r', '\n']).to_owned(),
            })
        }
        _ => None,
    };
    let ca = access.ca.as_ref().map(|ca| dir.join(ca));
    // Without TLS the library wants a connector all the same.
    let tls = if plan.tls { webhook::tls(webhook::trusted(ca.as_deref())?)? } else { webhook::no_tls()? };
    let host = if plan.server.contains(':') { format!("[{}]", plan.server) } else { plan.server.clone() };
    let client = SmtpClientBuilder {
        // Never reached: what sends has a time-out for all of it.
        timeout: Duration::from_secs(2 * access.timeout_s),
        tls_connector: TlsConnector::from(tls),
        tls_hostname: plan.server.clone(),
        tls_implicit: plan.port == PORT_IMPLICIT_TLS,
        credentials,
        addr: format!("{host}:{}", plan.port),
        is_lmtp: false,
        say_ehlo: true,
        local_host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        local_ip: None,
    };
    let name = plan.from_name.as_deref().map(one_line);
    let message = MessageBuilder::new()
        .from(Address::new_address(name.as_deref(), plan.from.as_str()))
        .to(Address::new_address(None::<&str>, to))
        .subject(mail.subject.as_str())
        // What an automatic answer is not to answer.
        .header("Auto-Submitted", mail_send::mail_builder::headers::raw::Raw::new("auto-generated"))
        .text_body(mail.text.as_str());
    let text = |error: mail_send::Error| error.to_string().trim_end().to_owned();
    if plan.tls {
        let mut client = client.connect().await.map_err(text)?;
        client.send(message).await.map_err(text)?;
        // It has been taken; how the server ends the talk is its affair.
        let _ = client.quit().await;
    } else {
        let mut client = client.connect_plain().await.map_err(text)?;
        client.send(message).await.map_err(text)?;
        let _ = client.quit().await;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: only what makes sense is taken, and the text of an alert stays text. Method: attributes as ALTER CELL keeps them, alerts
    //! of a hostile kind. What goes over the wire: `tests/e2e/case_mail.py`.
    use super::*;

    fn attributes(set: &[(&str, &str)]) -> BTreeMap<String, String> {
        set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const FULL: [(&str, &str); 4] = [
        (METHOD, "mail"),
        (SERVER, "mail.example"),
        (FROM_ADDRESS, "cell@example"),
        (TO_ADDRESSES, "a@b, c@d.example"),
    ];

    #[test]
    fn a_plan_is_whole_or_says_what_is_missing() {
        let plan = MailPlan::new(&attributes(&FULL), &MailAccess::default()).unwrap();
        assert_eq!(plan.place(), "smtp://mail.example:25");
        assert_eq!(plan.addresses(), ["a@b", "c@d.example"]);
        for missing in [SERVER, FROM_ADDRESS, TO_ADDRESSES] {
            let mut some = attributes(&FULL);
            some.remove(missing);
            assert_eq!(MailPlan::new(&some, &MailAccess::default()), Err(MailError::Missing(missing)));
            assert_eq!(check(&some), Ok(()), "an attribute may be set before the others");
        }
        let secret = MailAccess { user: Some("u".to_owned()), ..MailAccess::default() };
        assert_eq!(MailPlan::new(&attributes(&FULL), &secret), Err(MailError::PasswordInTheClear));
        let mut tls = attributes(&FULL);
        tls.insert(USE_SSL.to_owned(), "TRUE".to_owned());
        assert!(MailPlan::new(&tls, &secret).unwrap().tls);
    }

    #[test]
    fn what_would_end_a_command_is_no_address() {
        for bad in ["a", "@b", "a@", "a@b@c", "a@b>\r\nRCPT TO:<x@y", "a b@c", "<a@b>", "a@b,c@d x", "ü@b"] {
            let given = attributes(&[(TO_ADDRESSES, bad)]);
            assert!(matches!(check(&given), Err(MailError::NotAnAddress { .. })), "{bad:?}");
        }
        for (name, bad) in [(SERVER, "a b"), (SERVER, "x\r\ny"), (PORT, "0"), (PORT, "65536"), (METHOD, "snmp")] {
            assert!(check(&attributes(&[(name, bad)])).is_err(), "{name}={bad:?}");
        }
        let many = vec!["a@b"; ADDRESSES_MAX + 1].join(",");
        assert_eq!(check(&attributes(&[(TO_ADDRESSES, &many)])), Err(MailError::TooMany(ADDRESSES_MAX + 1)));
        assert!(!is_wanted(&attributes(&[(METHOD, "none")])) && is_wanted(&attributes(&FULL)));
    }

    #[test]
    fn a_subject_is_one_line() {
        let long = format!("[c]\r\nBcc: x@y\t{}", "z".repeat(500));
        let line = one_line(&long);
        assert!(line.starts_with("[c]  Bcc: x@y z") && line.chars().count() == SUBJECT_CHARS_MAX, "{line}");
    }
}
