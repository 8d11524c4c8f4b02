//! Which back-end carries out I/O: io_uring where the kernel has it and allows it, threads where not, and why.
//!
//! Never guesses silently: what forbids io_uring is named, with what would change it.

use super::runtime::RuntimeError;
use super::uring;

/// What chooses the back-end when the configuration says `Auto`: `uring` or `threads`.
const BACKEND_VARIABLE: &str = "FLASHCELL_IO";
const RING_OPCODES: [(u8, &str); 8] = [
    (io_uring::opcode::Read::CODE, "read"),
    (io_uring::opcode::Writev::CODE, "writev"),
    (io_uring::opcode::ReadFixed::CODE, "read fixed"),
    (io_uring::opcode::Recv::CODE, "recv"),
    (io_uring::opcode::SendMsg::CODE, "sendmsg"),
    (io_uring::opcode::Accept::CODE, "accept"),
    (io_uring::opcode::Connect::CODE, "connect"),
    (io_uring::opcode::AsyncCancel::CODE, "cancel"),
];

/// Which back-end carries out I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Backend {
    /// The environment variable `FLASHCELL_IO` (`uring` or `threads`) if set, else io_uring where the kernel has it and
    /// allows it, else threads; [`Runtime::facts`](crate::Runtime::facts) says why.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Blocking threads for devices, epoll for sockets.
    Threads,
}

/// The back-end that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Uring,
    Threads,
}

/// Decide on the back-end, and say why.
pub(super) fn choose(wanted: Backend) -> Result<(Engine, Vec<String>), RuntimeError> {
    let wanted = match wanted {
        Backend::Auto => match std::env::var(BACKEND_VARIABLE).as_deref() {
            Ok("uring") => Backend::Uring,
            Ok("threads") => Backend::Threads,
            Ok("") | Ok("auto") | Err(_) => Backend::Auto,
            Ok(other) => {
                let what = format!("{BACKEND_VARIABLE}={other} is not a back-end");
                return Err(RuntimeError::Setting { what, hint: "uring, threads or auto" });
            }
        },
        other => other,
    };
    match wanted {
        Backend::Threads => Ok((Engine::Threads, vec!["back-end: threads, as configured".to_owned()])),
        Backend::Uring => match probe_uring() {
            Ok(()) => Ok((Engine::Uring, vec!["back-end: io_uring".to_owned()])),
            Err((reason, hint)) => Err(RuntimeError::Uring { reason, hint }),
        },
        Backend::Auto => match probe_uring() {
            Ok(()) => Ok((Engine::Uring, vec!["back-end: io_uring".to_owned()])),
            Err((reason, hint)) => {
                let line = format!("back-end: threads, since io_uring cannot be used: {reason}; hint: {hint}");
                Ok((Engine::Threads, vec![line]))
            }
        },
    }
}

/// Whether a ring can be had and knows what is needed; else what forbids it and a hint.
fn probe_uring() -> Result<(), (String, String)> {
    let (ring, _) = uring::build_ring(8, 16).map_err(|e| {
        let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        // Of this thread, which is the one that was refused.
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        why_no_ring(&e, sysctl.trim(), mode.is_some_and(|m| m.trim() == "2"))
    })?;
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err(("the kernel is older than 5.11".to_owned(), "run a newer kernel".to_owned()));
    }
    let mut probe = io_uring::Probe::new();
    if ring.submitter().register_probe(&mut probe).is_err() {
        return Err(("the kernel cannot list its io_uring verbs".to_owned(), "run a newer kernel".to_owned()));
    }
    let missing: Vec<_> =
        RING_OPCODES.iter().filter(|(code, _)| !probe.is_supported(*code)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err((format!("the kernel's io_uring lacks {}", missing.join(", ")), "run a newer kernel".to_owned()))
}

/// What forbids a ring, and what would change that. `sysctl`: kernel.io_uring_disabled, empty where there is none;
/// `filtered`: a seccomp filter is in force.
fn why_no_ring(error: &std::io::Error, sysctl: &str, filtered: bool) -> (String, String) {
    match (error.raw_os_error(), sysctl, filtered) {
        (Some(libc::EPERM), "2", _) => {
            ("the sysctl kernel.io_uring_disabled is 2".to_owned(), "sysctl -w kernel.io_uring_disabled=0".to_owned())
        }
        (Some(libc::EPERM), "1", _) => (
            "the sysctl kernel.io_uring_disabled is 1 and this process has neither CAP_SYS_ADMIN nor the group"
                .to_owned(),
            "sysctl -w kernel.io_uring_disabled=0, or put the user's group into kernel.io_uring_group".to_owned(),
        ),
        (Some(libc::EPERM | libc::ENOSYS | libc::EACCES), _, true) => (
            format!("a seccomp filter refuses io_uring_setup ({error})"),
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile".to_owned(),
        ),
        (Some(libc::ENOSYS), _, _) => {
            ("the kernel has no io_uring".to_owned(), "run a kernel of 5.11 or newer with CONFIG_IO_URING".to_owned())
        }
        (Some(libc::ENOMEM), _, _) => {
            ("the memlock limit leaves no room for a ring".to_owned(), "raise LimitMEMLOCK / ulimit -l".to_owned())
        }
        _ => (format!("io_uring_setup: {error}"), "set FLASHCELL_IO=threads to do without".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::real::{Runtime, RuntimeConfig};
    use std::io::Error;

    #[test]
    fn what_forbids_a_ring_is_named() {
        let why = |errno, sysctl, filtered| why_no_ring(&Error::from_raw_os_error(errno), sysctl, filtered);
        assert!(why(libc::EPERM, "2", false).0.contains("kernel.io_uring_disabled is 2"));
        assert!(why(libc::EPERM, "1", true).1.contains("io_uring_group"));
        assert!(why(libc::EPERM, "0", true).0.contains("seccomp"));
        assert!(why(libc::ENOSYS, "", true).0.contains("seccomp"));
        assert!(why(libc::ENOSYS, "", false).0.contains("no io_uring"));
        assert!(why(libc::ENOMEM, "0", false).1.contains("MEMLOCK"));
    }

    /// Refuse io_uring_setup to the calling thread and the threads it starts.
    fn forbid_io_uring() {
        let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut program = [
            // Load the system call's number; is it io_uring_setup? EPERM : allow.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the program lives for the length of the calls, which copy it.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
        }
    }

    #[test]
    fn a_seccomp_filter_is_named_and_threads_take_over() {
        let forbidden = std::thread::spawn(|| {
            forbid_io_uring();
            let demanded = Runtime::new(RuntimeConfig { backend: Backend::Uring, ..RuntimeConfig::default() });
            let error = demanded.map(|_| ()).unwrap_err().to_string();
            let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
            let answer = runtime.block_on(async { 42 });
            (error, runtime.is_uring(), runtime.facts().join("\n"), answer)
        });
        let (error, is_uring, facts, answer) = forbidden.join().unwrap();
        assert!(error.contains("seccomp filter refuses io_uring_setup") && error.contains("hint:"), "{error}");
        assert!(!is_uring && answer == 42);
        assert!(facts.contains("threads, since io_uring cannot be used: a seccomp filter"), "{facts}");
    }

    /// In processes of their own, since an environment is the process's.
    #[test]
    fn the_environment_chooses_where_the_configuration_does_not() {
        const NAME: &str = "real::backend::tests::the_environment_chooses_where_the_configuration_does_not";
        const CHILD: &str = "DEVICE_TEST_BACKEND_CHILD";
        if std::env::var_os(CHILD).is_some() {
            let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() });
            match std::env::var(BACKEND_VARIABLE).unwrap().as_str() {
                "threads" => assert!(!runtime.unwrap().is_uring()),
                "uring" => assert!(runtime.unwrap().is_uring()),
                _ => assert!(matches!(runtime, Err(RuntimeError::Setting { .. }))),
            }
            return;
        }
        for value in ["threads", "uring", "carrier-pigeon"] {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME])
                .env(CHILD, "1")
                .env(BACKEND_VARIABLE, value)
                .output()
                .unwrap();
            assert!(child.status.success(), "{value}: {}", String::from_utf8_lossy(&child.stdout));
        }
    }
}
