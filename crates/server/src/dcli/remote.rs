//! The command lines of ssh and scp, and the few lines of shell that run on a cell.
//!
//! Everything that goes through a shell is quoted here and nowhere else. Never starts a program.

use super::hosts::Target;
use super::keys::LocalKey;
use super::{CONNECT_TIMEOUT_DEFAULT_S, DcliError, DcliOptions, password};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Seconds after which ssh asks a silent cell whether it is there, and how often: one that lost power in the middle of a
/// command is given up after 15 s instead of never.
const ALIVE: [&str; 4] = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"];
/// The head of a script that is read to see who runs it.
const SCRIPT_HEAD_BYTES: usize = 2;

/// One program to run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// `ssh` or `scp`.
    pub(super) program: &'static str,
    /// Its arguments.
    pub(super) args: Vec<String>,
    /// Answers ssh's question for a password.
    pub(super) password: Option<Arc<password::Answering>>,
    /// What it reads; none: nothing.
    pub(super) input: Option<Arc<[u8]>>,
}

/// How cells are reached.
pub(super) struct Remote {
    user: String,
    ssh: Vec<String>,
    scp: Vec<String>,
    common: Vec<String>,
    batch: bool,
    password: Option<Arc<password::Answering>>,
}

/// A script of `-x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    path: PathBuf,
    name: String,
    runner: Runner,
    /// What its copies are called where no place was given: two calls at once do not meet.
    private: String,
}

/// Who runs a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    /// The program its first line names.
    Itself,
    /// The shell.
    Shell,
    /// CellCLI: the name ends in `.scl`.
    Cellcli,
}

impl Script {
    pub(super) fn new(path: &Path) -> Result<Script, DcliError> {
        use std::io::Read;
        let fail = |reason: String| DcliError::File { path: path.to_owned(), reason };
        let io = |error: std::io::Error| fail(error.to_string());
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| fail("not a script".to_owned()))?;
        let mut file = std::fs::File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(fail("not a regular file".to_owned()));
        }
        let mut head = Vec::new();
        Read::by_ref(&mut file).take(SCRIPT_HEAD_BYTES as u64).read_to_end(&mut head).map_err(io)?;
        let runner = match (name.to_ascii_lowercase().ends_with(".scl"), head == b"#!") {
            (true, _) => Runner::Cellcli,
            (false, true) => Runner::Itself,
            (false, false) => Runner::Shell,
        };
        let salt = getrandom::u64().map_err(|error| fail(error.to_string()))?;
        let private = format!(".dcli-{salt:016x}-{name}");
        let path = std::path::absolute(path).map_err(io)?;
        Ok(Script { path, name: name.to_owned(), runner, private })
    }
}

impl Remote {
    pub(super) fn new(options: &DcliOptions) -> Result<Remote, DcliError> {
        let split = |option: &'static str, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => match shlex::split(text) {
                Some(words) => Ok(Some(words)),
                None => Err(DcliError::Quotes { option, text: text.clone() }),
            },
        };
        let ssh = split("-s", &options.ssh_options)?.unwrap_or_default();
        let scp = split("--scp", &options.scp_options)?.unwrap_or_else(|| ssh.clone());
        let timeout_s = options.connect_timeout_s.unwrap_or(CONNECT_TIMEOUT_DEFAULT_S);
        let mut common = vec!["-o".to_owned(), format!("ConnectTimeout={timeout_s}")];
        common.extend(ALIVE.map(str::to_owned));
        if !options.show_banner {
            common.extend(["-o".to_owned(), "LogLevel=ERROR".to_owned()]);
        }
        Ok(Remote { user: options.user.clone(), ssh, scp, common, batch: true, password: None })
    }

    /// As this, but passwords may be asked for: at the terminal, or once for all cells.
    pub(super) fn asking(&self, once: bool) -> Result<Remote, DcliError> {
        let password = if once { Some(Arc::new(password::Answering::ask()?)) } else { None };
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stdin());
        Ok(Remote {
            user: self.user.clone(),
            ssh: self.ssh.clone(),
            scp: self.scp.clone(),
            common: self.common.clone(),
            batch: password.is_none() && !terminal,
            password,
        })
    }

    /// The identity `-s` names, when it does.
    pub(super) fn identity(&self) -> Option<&str> {
        let mut words = self.ssh.iter();
        while let Some(word) = words.next() {
            if word == "-i" {
                return words.next().map(String::as_str);
            }
            if let Some(rest) = word.strip_prefix("-i").filter(|rest| !rest.is_empty()) {
                return Some(rest);
            }
        }
        None
    }

    /// The user's options first: ssh takes the first value it is given.
    fn args(&self, own: &[String]) -> Vec<String> {
        let batch = if self.batch { "yes" } else { "no" };
        let mut args = own.to_vec();
        args.extend(["-o".to_owned(), format!("BatchMode={batch}")]);
        if self.password.is_some() {
            args.extend(["-o".to_owned(), "NumberOfPasswordPrompts=1".to_owned()]);
        }
        args.extend_from_slice(&self.common);
        args
    }

    /// A command in the login shell of the user.
    pub(super) fn command(&self, target: &Target, command: &str) -> Step {
        let mut args = self.args(&self.ssh);
        let user = target.user(&self.user).to_owned();
        args.extend(["-l".to_owned(), user, "--".to_owned(), target.host().to_owned(), command.to_owned()]);
        Step { program: "ssh", args, password: self.password.clone(), input: None }
    }

    /// A copy of a file; an empty destination is the home directory.
    pub(super) fn copy(&self, target: &Target, file: &Path, destination: &str) -> Step {
        let mut args = self.args(&self.scp);
        let host = target.host();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let to = format!("{}@{host}:{destination}", target.user(&self.user));
        args.extend(["-q".to_owned(), "--".to_owned(), file.display().to_string(), to]);
        Step { program: "scp", args, password: None, input: None }
    }

    /// Copy a script and run it. Without a destination the copy is removed afterwards.
    pub(super) fn script(&self, target: &Target, script: &Script, destination: Option<&str>) -> Vec<Step> {
        let place = destination.unwrap_or(&script.private);
        let run = match script.runner {
            Runner::Itself => "chmod u+x \"$f\" && \"$f\"",
            Runner::Shell => "sh \"$f\"",
            Runner::Cellcli => "cellcli -x -n < \"$f\"",
        };
        let clean = if destination.is_none() { "; rc=$?; rm -f \"$f\"; exit $rc" } else { "" };
        let text = format!("f=$1; [ -d \"$f\" ] && f=${{f%/}}/$2; case $f in /*) ;; *) f=./$f;; esac; {run}{clean}");
        vec![self.copy(target, &script.path, place), self.command(target, &shell(&text, &[place, &script.name]))]
    }

    /// A text for `sh` with its arguments, and what it reads.
    pub(super) fn shell(&self, target: &Target, text: &str, args: &[String], input: Arc<[u8]>) -> Step {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Step { input: Some(input), ..self.command(target, &shell(text, &args)) }
    }

    /// Put a key into authorized_keys, or take it out of there.
    pub(super) fn key(&self, target: &Target, key: &LocalKey, push: bool) -> Step {
        let text = if push { super::keys::PUSH } else { super::keys::DROP };
        self.command(target, &shell(text, &[&key.blob, &key.line]))
    }
}

/// A text for `sh`, whatever shell the user logs in to.
fn shell(text: &str, args: &[&str]) -> String {
    let words: Vec<&str> = ["sh", "-c", text, "dcli"].iter().chain(args).copied().collect();
    match shlex::try_join(words) {
        Ok(line) => line,
        // Names come from the command line and keys from a line of a file: neither can hold a NUL.
        Err(error) => unreachable!("a word with a NUL: {error}"),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn target(name: &str) -> Target {
        Target { name: name.to_owned() }
    }

    fn remote(change: impl FnOnce(&mut DcliOptions)) -> Remote {
        let mut options = DcliOptions { user: "celladmin".to_owned(), ..DcliOptions::default() };
        change(&mut options);
        Remote::new(&options).unwrap()
    }

    #[test]
    fn a_command_line_of_ssh() {
        let step = remote(|o| o.ssh_options = Some("-p 2222 -i '/k y'".to_owned())).command(&target("c1"), "-x 'y'");
        let line = format!("{} {}", step.program, step.args.join("|"));
        expect_test::expect![[r#"ssh -p|2222|-i|/k y|-o|BatchMode=yes|-o|ConnectTimeout=10|-o|ServerAliveInterval=5|-o|ServerAliveCountMax=3|-o|LogLevel=ERROR|-l|celladmin|--|c1|-x 'y'"#]]
        .assert_eq(&line);
    }

    #[test]
    fn a_command_line_of_scp() {
        let remote = remote(|o| {
            o.ssh_options = Some("-p 2222".to_owned());
            o.scp_options = Some("-P 2222".to_owned());
            o.connect_timeout_s = Some(3);
            o.show_banner = true;
        });
        let step = remote.copy(&target("root@::1"), Path::new("/tmp/a:b"), "/x");
        let line = format!("{} {}", step.program, step.args.join("|"));
        expect_test::expect![[r#"scp -P|2222|-o|BatchMode=yes|-o|ConnectTimeout=3|-o|ServerAliveInterval=5|-o|ServerAliveCountMax=3|-q|--|/tmp/a:b|root@[::1]:/x"#]]
        .assert_eq(&line);
    }

    #[test]
    fn identities() {
        assert_eq!(remote(|o| o.ssh_options = Some("-v -i k".to_owned())).identity(), Some("k"));
        assert_eq!(remote(|o| o.ssh_options = Some("-ik".to_owned())).identity(), Some("k"));
        assert_eq!(remote(|_| ()).identity(), None);
    }

    #[test]
    fn who_runs_a_script() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text, runner) in [
            ("a.scl", "list cell\n", Runner::Cellcli),
            ("a.sh", "cellcli <<!\nlist cell\n", Runner::Shell),
            ("a", "#!/bin/bash\n", Runner::Itself),
            ("empty", "", Runner::Shell),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            let script = Script::new(&path).unwrap();
            assert_eq!(script.runner, runner, "{name}");
            assert!(script.private.ends_with(name));
        }
        assert!(Script::new(dir.path()).unwrap_err().to_string().contains("not a regular file"));
    }

    /// The text for the cell really runs the script, here, with a name that must be quoted.
    #[test]
    fn what_runs_on_the_cell() {
        let home = tempfile::tempdir().unwrap();
        let name = "it's $HOME";
        let path = home.path().join(name);
        std::fs::write(&path, "echo ran; cat <<!\nhere\n").unwrap();
        let script = Script { private: name.to_owned(), ..Script::new(&path).unwrap() };
        let steps = remote(|_| ()).script(&target("c1"), &script, None);
        let line = steps[1].args.last().unwrap().clone();
        let done = std::process::Command::new("sh").args(["-c", &line]).current_dir(home.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), "ran\nhere\n");
        assert!(!path.exists(), "the copy is removed");
        // With a destination it stays, and a directory gets the script's own name; its exit code is the command's.
        std::fs::write(&path, "exit 3").unwrap();
        let dir = home.path().to_str().unwrap();
        let steps = remote(|_| ()).script(&target("c1"), &script, Some(dir));
        let line = steps[1].args.last().unwrap().clone();
        let done = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        assert_eq!(done.status.code(), Some(3));
        assert!(path.exists());
    }
}
