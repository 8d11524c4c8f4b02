//! `[history]` and `[alerts]`: what a cell remembers of its metrics, and whom it tells of alerts.

use super::{ConfigError, Located, Size};
use crate::store::SIZE_BYTES_MIN;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest history: a year of minutes is half a million readings.
pub(crate) const DAYS_MAX: u64 = 366;
/// Hooks of each kind: a handful of receivers, each of which is told of every alert.
const HOOKS_MAX: usize = 16;
/// Longest time-out of a hook, in seconds: while it lasts it takes one of the few places there are.
const TIMEOUT_S_MAX: u64 = 300;
/// Most retries of a webhook: with the pauses between them about twenty minutes.
const RETRIES_MAX: u32 = 10;

/// What is remembered of the metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// Days a reading is kept, unless ALTER CELL metricHistoryDays says otherwise.
    pub days: u64,
    /// The file never grows beyond this.
    pub size: Size,
}

impl Default for History {
    fn default() -> History {
        // The vendor's week; a cell with a thousand values a minute needs a fifth of the size for it.
        History { days: 7, size: Size(256 << 20) }
    }
}

/// Whom a cell tells of alerts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Alerts {
    /// Programs that are run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<CommandHook>,
    /// Addresses that are sent to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub webhook: Vec<WebHook>,
    /// What ALTER CELL does not say of mail.
    #[serde(skip_serializing_if = "MailAccess::is_default")]
    pub mail: MailAccess,
}

/// How the mail server is spoken to; which it is, and to whom mails go, ALTER CELL says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MailAccess {
    /// The user the server knows the cell as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where its password is, alone in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// Certificates of who may be at the other end, in PEM; the host's own unless stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// An attempt is given up after so many seconds.
    pub timeout_s: u64,
    /// Further attempts when one fails, each after twice the pause of the one before, from one second on.
    pub retries: u32,
}

impl Default for MailAccess {
    fn default() -> MailAccess {
        // RFC 5321 waits minutes; a server that greylists or restarts is back within the pauses of eight attempts.
        MailAccess { user: None, password_file: None, ca: None, timeout_s: 30, retries: 8 }
    }
}

impl MailAccess {
    fn is_default(&self) -> bool {
        *self == MailAccess::default()
    }
}

/// A program that is run for each alert, with the alert in its environment and as JSON on its standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandHook {
    /// Program and arguments. No shell reads them.
    pub argv: Vec<String>,
    /// It is killed after so many seconds.
    #[serde(default = "CommandHook::timeout_default")]
    pub timeout_s: u64,
}

/// An address each alert is sent to as JSON with POST.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebHook {
    /// `http://HOST[:PORT]/PATH` or `https://…`.
    pub url: String,
    /// An attempt is given up after so many seconds.
    #[serde(default = "WebHook::timeout_default")]
    pub timeout_s: u64,
    /// Further attempts when one fails, each after twice the pause of the one before, from one second on.
    #[serde(default = "WebHook::retries_default")]
    pub retries: u32,
    /// Certificates of who may be at the other end of `https`, in PEM; the host's own unless stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

impl CommandHook {
    fn timeout_default() -> u64 {
        30
    }
}

impl WebHook {
    fn timeout_default() -> u64 {
        10
    }

    fn retries_default() -> u32 {
        3
    }
}

impl Alerts {
    pub(super) fn is_none(&self) -> bool {
        self.command.is_empty() && self.webhook.is_empty() && self.mail.is_default()
    }
}

impl History {
    pub(super) fn is_default(&self) -> bool {
        *self == History::default()
    }
}

impl Located {
    pub(super) fn check_observation(&self) -> Result<(), ConfigError> {
        let (history, alerts) = (&self.config.history, &self.config.alerts);
        if !(1..=DAYS_MAX).contains(&history.days) {
            return Err(self.bad("history.days", history.days, format!("it must be from 1 to {DAYS_MAX}")));
        }
        if history.size.0 < SIZE_BYTES_MIN {
            let reason = format!("at least {}M are needed", SIZE_BYTES_MIN >> 20);
            return Err(self.bad("history.size", history.size.0, reason));
        }
        let count = alerts.command.len().max(alerts.webhook.len());
        if count > HOOKS_MAX {
            return Err(self.bad("alerts", count, format!("at most {HOOKS_MAX} commands and {HOOKS_MAX} webhooks")));
        }
        if alerts.command.iter().any(|hook| hook.argv.first().is_none_or(String::is_empty)) {
            return Err(self.bad("alerts.command.argv", "[]", "it must name a program"));
        }
        let waits =
            alerts.command.iter().map(|hook| hook.timeout_s).chain(alerts.webhook.iter().map(|it| it.timeout_s));
        if let Some(wait) = waits.chain([alerts.mail.timeout_s]).find(|wait| !(1..=TIMEOUT_S_MAX).contains(wait)) {
            return Err(self.bad("alerts.timeout_s", wait, format!("it must be from 1 to {TIMEOUT_S_MAX}")));
        }
        if alerts.mail.retries > RETRIES_MAX {
            return Err(self.bad(
                "alerts.mail.retries",
                alerts.mail.retries,
                format!("it must be at most {RETRIES_MAX}"),
            ));
        }
        if alerts.mail.user.is_some() != alerts.mail.password_file.is_some() {
            let (user, reason) = (alerts.mail.user.as_deref().unwrap_or(""), "user and password_file go together");
            return Err(self.bad("alerts.mail.user", user, reason));
        }
        for hook in &alerts.webhook {
            if hook.retries > RETRIES_MAX {
                return Err(self.bad(
                    "alerts.webhook.retries",
                    hook.retries,
                    format!("it must be at most {RETRIES_MAX}"),
                ));
            }
            if crate::alerting::Address::parse(&hook.url).is_none() {
                let reason = "it must be http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH";
                return Err(self.bad("alerts.webhook.url", &hook.url, reason));
            }
        }
        Ok(())
    }
}
