//! Sends alerts to programs and addresses, as cell.toml says.
//!
//! Bounded in number and time, and never in the way: a receiver that hangs or is gone costs its own messages, which the log tells.
//! Never runs a shell.

use super::mail::{self, Mail, MailPlan};
use super::records::{Record, Severity};
use super::webhook;
use crate::config::{Alerts as Config, CommandHook, Located, MailAccess, WebHook};
use cellcli::Timestamp;
use serde::Serialize;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;

/// Deliveries under way at once: what a host's processes and memory bear beside serving.
const AT_ONCE_MAX: usize = 4;
/// Deliveries waiting for their turn; beyond that new ones are given up. An hour of one a second each.
const WAITING_MAX: usize = 1000;
/// The pause before the first retry of a webhook or a mail.
const PAUSE: Duration = Duration::from_secs(1);

/// An alert as receivers see it.
#[derive(Debug, Serialize)]
pub(super) struct Message<'a> {
    pub(super) cell: &'a str,
    pub(super) name: String,
    pub(super) definition: &'a str,
    pub(super) description: String,
    pub(super) severity: &'static str,
    pub(super) object: &'a str,
    pub(super) message: &'a str,
    pub(super) begin: String,
    pub(super) end: Option<String>,
    pub(super) value: Option<&'a str>,
    pub(super) unit: Option<&'a str>,
}

fn time(ns: u64) -> String {
    let since_epoch_ns = i64::try_from(ns).unwrap_or(i64::MAX);
    Timestamp::new(since_epoch_ns, crate::process::offset_minutes(ns)).to_string()
}

impl<'a> Message<'a> {
    fn new(cell: &'a str, record: &'a Record) -> Message<'a> {
        let definition = super::definition(&record.definition);
        Message {
            cell,
            name: record.name(),
            definition: &record.definition,
            description: definition.map(|it| it.description.into_owned()).unwrap_or_default(),
            severity: record.severity.word(),
            object: &record.object,
            message: &record.message,
            begin: time(record.begin_ns),
            end: record.end_ns.map(time),
            value: record.value.as_ref().map(|(number, _)| number.as_str()),
            unit: record.value.as_ref().map(|(_, unit)| unit.as_str()),
        }
    }

    fn environment(&self) -> [(&'static str, &str); 7] {
        [
            ("FLASHCELL_ALERT_CELL", self.cell),
            ("FLASHCELL_ALERT_NAME", &self.name),
            ("FLASHCELL_ALERT_DEFINITION", self.definition),
            ("FLASHCELL_ALERT_SEVERITY", self.severity),
            ("FLASHCELL_ALERT_OBJECT", self.object),
            ("FLASHCELL_ALERT_MESSAGE", self.message),
            ("FLASHCELL_ALERT_BEGIN", &self.begin),
        ]
    }
}

/// Whom alerts are sent to.
pub(crate) struct Hooks {
    config: Config,
    /// Where relative paths begin and programs run.
    dir: PathBuf,
    programs: Queue,
    /// By itself: a mail server may be away for minutes, and a pager does not wait for it.
    mails: Queue,
}

impl Hooks {
    /// Those of a configuration.
    pub(crate) fn new(located: &Located) -> Hooks {
        Hooks::of(located.config.alerts.clone(), located.dir.clone())
    }

    fn of(config: Config, dir: PathBuf) -> Hooks {
        Hooks { config, dir, programs: Queue::new(), mails: Queue::new() }
    }

    /// Send these to everybody, and by mail as `plan` says; `policy`: only if it is as bad as one of these. Runs on the caller's tokio
    /// runtime and returns at once.
    pub(crate) fn send(&self, cell: &str, records: &[Record], policy: &[Severity], plan: Option<&MailPlan>) {
        for record in records.iter().filter(|record| policy.contains(&record.severity)) {
            let message = Message::new(cell, record);
            let Ok(json) = serde_json::to_vec(&message) else { continue };
            let json = Arc::new(json);
            for hook in &self.config.command {
                let environment = message.environment().map(|(name, value)| (name, value.replace('\0', " ")));
                let (hook, json, dir) = (hook.clone(), json.clone(), self.dir.clone());
                self.programs.deliver(hook.argv.join(" "), async move { run(&hook, dir, &environment, &json).await });
            }
            for hook in &self.config.webhook {
                let (hook, json) = (hook.clone(), json.clone());
                let ca = hook.ca.as_ref().map(|ca| self.dir.join(ca));
                self.programs.deliver(hook.url.clone(), async move { post(&hook, ca, &json).await });
            }
            for to in plan.map_or(&[][..], MailPlan::addresses) {
                let Some(plan) = plan.cloned() else { continue };
                let (mail, access, dir) = (Mail::of_alert(&message), self.config.mail.clone(), self.dir.clone());
                let to = to.clone();
                self.mails.deliver(format!("{to} by {}", plan.place()), async move {
                    let mut again = Again::new(access.retries);
                    while let Err(failed) = mail::send(&plan, &access, &dir, &to, &mail).await {
                        again.after(failed).await?;
                    }
                    Ok(())
                });
            }
        }
    }

    /// What cell.toml says of mail.
    pub(crate) fn mail_access(&self) -> &MailAccess {
        &self.config.mail
    }

    /// Send a mail once, now.
    ///
    /// # Errors
    /// What the server or the way to it said.
    pub(crate) async fn try_mail(&self, plan: &MailPlan, to: &str, mail: &Mail) -> Result<(), String> {
        mail::send(plan, &self.config.mail, &self.dir, to, mail).await
    }
}

/// Deliveries that wait for each other, and for no others.
struct Queue {
    turns: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl Queue {
    fn new() -> Queue {
        let turns = Arc::new(Semaphore::new(AT_ONCE_MAX));
        Queue { turns, places: Arc::new(Semaphore::new(AT_ONCE_MAX + WAITING_MAX)) }
    }

    fn deliver(&self, to: String, delivery: impl Future<Output = Result<(), String>> + Send + 'static) {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            tracing::error!(to, "an alert is not sent: {WAITING_MAX} are waiting");
            return;
        };
        let turns = self.turns.clone();
        tokio::spawn(async move {
            // Never closed.
            let _turn = turns.acquire_owned().await;
            if let Err(error) = delivery.await {
                tracing::error!(to, error, "an alert was not delivered");
            }
            drop(place);
        });
    }
}

/// Run a program once.
async fn run(
    hook: &CommandHook,
    dir: PathBuf,
    environment: &[(&'static str, String)],
    json: &[u8],
) -> Result<(), String> {
    let Some((program, arguments)) = hook.argv.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().map(|(name, value)| (name, value))).current_dir(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // Its children go with it.
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let group = child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
    let input = child.stdin.take();
    let work = async {
        if let Some(mut input) = input {
            // It need not read.
            let _ = input.write_all(json).await;
        }
        child.wait().await
    };
    match tokio::time::timeout(Duration::from_secs(hook.timeout_s), work).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(status.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            if let Some(group) = group {
                // Refused when it has just ended.
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = child.wait().await;
            Err(format!("killed after {} s", hook.timeout_s))
        }
    }
}

async fn post(hook: &WebHook, ca: Option<PathBuf>, json: &[u8]) -> Result<(), String> {
    let address = webhook::Address::parse(&hook.url).ok_or("no address")?;
    let mut again = Again::new(hook.retries);
    loop {
        let sent = webhook::post(&address, ca.as_deref(), json);
        let failed = match tokio::time::timeout(Duration::from_secs(hook.timeout_s), sent).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => format!("no answer within {} s", hook.timeout_s),
        };
        again.after(failed).await?;
    }
}

/// Further attempts, each after twice the pause of the one before.
struct Again {
    left: u32,
    pause: Duration,
}

impl Again {
    fn new(retries: u32) -> Again {
        Again { left: retries, pause: PAUSE }
    }

    /// Wait until the next attempt is due.
    ///
    /// # Errors
    /// There is none: why the last one failed.
    async fn after(&mut self, failed: String) -> Result<(), String> {
        self.left = self.left.checked_sub(1).ok_or(failed)?;
        tokio::time::sleep(self.pause).await;
        self.pause *= 2;
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::alerting::{Alerts, Condition, Every};
    use std::collections::BTreeSet;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::time::Instant;

    fn records() -> Vec<Record> {
        let condition = Condition::new("GridDisk_Offline", "DATA", Severity::Critical, "it's\n\"off\"; rm -rf $HOME");
        Alerts::default().update(Every::Second, 1_000_000_000, &[condition], &BTreeSet::new())
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn command(argv: &[&str], timeout_s: u64) -> CommandHook {
        CommandHook { argv: argv.iter().map(|it| (*it).to_owned()).collect(), timeout_s }
    }

    async fn until(what: impl Fn() -> bool) {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it never came");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// A real process gets the alert in its environment and on standard input, in the cell's directory, through no shell of ours.
    #[test]
    fn a_program_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let script = "printf '%s|%s|%s\\n' \"$FLASHCELL_ALERT_SEVERITY\" \"$FLASHCELL_ALERT_MESSAGE\" \"$1\" > env; cat > in; mv in json";
        let config = Config {
            command: vec![command(&["sh", "-c", script, "sh", "$HOME `id`"], 30)],
            webhook: Vec::new(),
            ..Config::default()
        };
        let json = dir.path().join("json");
        runtime().block_on(async {
            Hooks::of(config, dir.path().to_owned()).send("exa1cel01", &records(), &[Severity::Critical], None);
            until(|| json.exists()).await;
        });
        assert_eq!(text(&dir.path().join("env")), "critical|it's\n\"off\"; rm -rf $HOME|$HOME `id`\n");
        let told: serde_json::Value = serde_json::from_str(&text(&json)).unwrap();
        let field = |name: &str| told[name].as_str().unwrap().to_owned();
        let all = [field("cell"), field("name"), field("definition"), field("object"), field("message")];
        assert_eq!(all, ["exa1cel01", "1_1", "GridDisk_Offline", "DATA", "it's\n\"off\"; rm -rf $HOME"]);
        assert!(told["end"].is_null());
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let hook = command(&["sh", "-c", "sleep 1000 & echo $! > child; wait"], 1);
        let done = runtime().block_on(run(&hook, dir.path().to_owned(), &[], b"{}"));
        assert_eq!(done, Err("killed after 1 s".to_owned()));
        let child = text(&dir.path().join("child"));
        let stat = || text(Path::new(&format!("/proc/{}/stat", child.trim())));
        // Gone, or waiting for its parent to notice.
        runtime().block_on(until(|| stat().is_empty() || stat().contains(") Z ")));
    }

    #[test]
    fn failures_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let run = |argv: &[&str]| runtime().block_on(run(&command(argv, 30), dir.path().to_owned(), &[], b"{}"));
        assert!(run(&["/no/such/program"]).is_err());
        assert_eq!(run(&["sh", "-c", "exit 3"]), Err("exit status: 3".to_owned()));
        assert_eq!(run(&["true"]), Ok(()), "it need not read what it is told");
    }

    #[test]
    fn only_so_many_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let script = "n=$(mktemp now.XXXXXX); ls -d now.* | wc -l >> count; sleep 0.2; rm $n; echo >> done";
        let config =
            Config { command: vec![command(&["sh", "-c", script], 30)], webhook: Vec::new(), ..Config::default() };
        let many: Vec<Record> = std::iter::repeat_n(records().remove(0), 12).collect();
        runtime().block_on(async {
            Hooks::of(config, dir.path().to_owned()).send("c", &many, &[Severity::Critical], None);
            until(|| text(&dir.path().join("done")).lines().count() == 12).await;
        });
        let counts: Vec<usize> = text(&dir.path().join("count")).lines().map(|it| it.trim().parse().unwrap()).collect();
        assert!(counts.iter().all(|count| *count <= AT_ONCE_MAX), "{counts:?}");
    }

    #[test]
    fn only_what_the_policy_asks_for() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            command: vec![command(&["sh", "-c", "echo >> done"], 30)],
            webhook: Vec::new(),
            ..Config::default()
        };
        runtime().block_on(async {
            let hooks = Hooks::of(config, dir.path().to_owned());
            hooks.send("c", &records(), &[Severity::Warning, Severity::Clear], None);
            hooks.send("c", &records(), &[Severity::Critical], None);
            until(|| dir.path().join("done").exists()).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        });
        assert_eq!(text(&dir.path().join("done")), "\n");
    }

    /// Answers each connection with the next of these, and gives back what it was asked.
    fn listener(answers: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/alerts?to=dba", listener.local_addr().unwrap());
        let serve = move || {
            let mut asked = Vec::new();
            for answer in answers {
                let mut stream: TcpStream = listener.accept().unwrap().0;
                let mut text = Vec::new();
                let mut buffer = [0; 4096];
                while !text.ends_with(b"}") {
                    let count = stream.read(&mut buffer).unwrap();
                    assert!(count > 0, "the request broke off");
                    text.extend(&buffer[..count]);
                }
                asked.push(String::from_utf8(text).unwrap());
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        };
        (url, std::thread::spawn(serve))
    }

    #[test]
    fn an_address_is_told_and_told_again_when_it_fails() {
        let (url, server) =
            listener(&["HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "", "HTTP/1.1 204 No Content\r\n\r\n"]);
        let hook = WebHook { url, timeout_s: 10, retries: 3, ca: None };
        let begin = Instant::now();
        assert_eq!(runtime().block_on(post(&hook, None, b"{\"a\":1}")), Ok(()));
        assert!(begin.elapsed() >= PAUSE * 3, "pauses of one and two seconds");
        let asked = server.join().unwrap();
        assert!(asked[0].starts_with("POST /alerts?to=dba HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(
            asked
                .iter()
                .all(|it| it.contains("content-type: application/json\r\n") && it.ends_with("\r\n\r\n{\"a\":1}"))
        );
    }

    #[test]
    fn an_address_that_is_not_there_is_given_up() {
        let (url, server) = listener(&["HTTP/1.1 404 Not Found\r\n\r\n"]);
        let hook = WebHook { url: url.clone(), timeout_s: 10, retries: 0, ca: None };
        assert_eq!(runtime().block_on(post(&hook, None, b"{}")), Err("HTTP/1.1 404 Not Found".to_owned()));
        server.join().unwrap();
        assert!(runtime().block_on(post(&hook, None, b"{}")).is_err(), "nobody listens any more");
        // One that takes the connection and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let hook = WebHook { url, timeout_s: 1, retries: 0, ca: None };
        assert_eq!(runtime().block_on(post(&hook, None, b"{}")), Err("no answer within 1 s".to_owned()));
    }
}
