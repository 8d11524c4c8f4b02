//! Who this process is on the devices it claims (see `celldisk::claim`), and what is said about claims.

use celldisk::claim::{Claimed, Holder};
use device::World;
use std::path::Path;
use std::sync::Arc;
use tracing::{error, warn};

/// The first set of process ids of a boot; the kernel's own number of it.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// This process. `instance`: random.
pub(crate) fn holder(instance: u128) -> Holder {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    // What cannot be read counts as 0: two hosts without an identity still differ in their boots.
    let number = |text: &str| u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or_default();
    let mut boot = number(&read("/proc/sys/kernel/random/boot_id"));
    // A process id means something within its namespace only: containers of one host are told apart as boots are.
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy().into_owned();
    if namespace != FIRST_PID_NAMESPACE {
        boot ^= namespace.bytes().fold(0, |sum: u128, byte| sum.wrapping_mul(257).wrapping_add(u128::from(byte)));
    }
    let process = std::process::id();
    Holder {
        host: number(&read("/etc/machine-id")),
        boot,
        instance,
        process,
        process_started: started(process).unwrap_or_default(),
        host_name: read("/proc/sys/kernel/hostname").trim().to_owned(),
    }
}

/// Whether the process of a holder of this host and boot is there, and does more than wait for its parent to hear of its end.
pub(crate) fn is_alive(holder: &Holder) -> bool {
    let there = stat_of(holder.process);
    holder.process != std::process::id()
        && there.is_some_and(|stat| stat.started == holder.process_started && !stat.has_ended())
}

/// The fields of `/proc/PID/stat` that tell whether a process still runs.
struct ProcessStat {
    state: char,
    threads: u64,
    /// In clock ticks since boot.
    started: u64,
}

impl ProcessStat {
    /// The name in parentheses may hold anything; the state is the first field behind it.
    fn parse(stat: &str) -> Option<ProcessStat> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse().ok();
        Some(ProcessStat { state: fields.first()?.chars().next()?, threads: number(17)?, started: number(19)? })
    }

    /// A zombie whose other threads are gone has closed what it had open.
    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

fn stat_of(process: u32) -> Option<ProcessStat> {
    ProcessStat::parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// When a process began, in clock ticks since boot.
fn started(process: u32) -> Option<u64> {
    stat_of(process).map(|stat| stat.started)
}

/// Renew a claim as long as its device is used, and say so when it is lost.
pub(crate) fn keep(claimed: &Arc<Claimed>, path: &Path, world: &World) {
    let (claimed, clock, path) = (Arc::downgrade(claimed), world.clock.clone(), path.display().to_string());
    world.spawn.spawn(Box::pin(async move {
        if let Some(other) = Claimed::renew(claimed, clock).await {
            error!(
                device = path,
                "{other} has taken this device: nothing more is written to it; stop one of the two, and check what is on it"
            );
        }
    }));
}

/// Hears of a device which is to be watched: where it is, and for whom and who waits.
pub(crate) type Teller = fn(&Path, &str);

/// Say in the log that a start has to wait.
pub(crate) fn tell_in_log(path: &Path, why: &str) {
    warn!(device = %path.display(), "{why}");
}

/// Why a device is watched.
pub(crate) fn watching(other: Option<&Holder>, us: &Holder) -> String {
    let who = other.map_or_else(|| "by somebody whose stamp cannot be read".to_owned(), |other| format!("by {other}"));
    let seconds = celldisk::claim::WATCH_FOR.as_secs();
    format!("claimed {who}, which has not given it back; this is {us}: watching it for {seconds} s")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_known_and_another_start_of_it_is_not() {
        let us = holder(5);
        assert!(us.process_started > 0 && us.boot != 0);
        assert!(!is_alive(&us), "its own stamp is not somebody else");
        let parent = std::os::unix::process::parent_id();
        let there = Holder { process: parent, process_started: started(parent).unwrap_or_default(), ..us.clone() };
        assert!(is_alive(&there));
        assert!(!is_alive(&Holder { process_started: there.process_started + 1, ..there }), "the id was used again");
    }

    #[test]
    fn a_process_that_has_ended_and_is_not_waited_for_holds_nothing() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let there = Holder { process: child.id(), process_started: started(child.id()).unwrap(), ..holder(6) };
        assert!(is_alive(&there));
        child.kill().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while is_alive(&there) {
            assert!(std::time::Instant::now() < deadline, "it is a zombie by now");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(started(child.id()), Some(there.process_started), "nobody has waited for it");
        child.wait().unwrap();
        // A name with blanks and parentheses; a zombie with threads that still end.
        let stat =
            |state, threads| format!("7 (a) Z (b)) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0");
        for (state, threads, ended) in
            [('Z', 1, true), ('Z', 3, false), ('S', 1, false), ('X', 0, true), ('D', 1, false)]
        {
            let parsed = ProcessStat::parse(&stat(state, threads)).unwrap();
            assert_eq!((parsed.started, parsed.has_ended()), (4711, ended), "{state} {threads}");
        }
    }
}
