//! What keeps a server of storage going when its host runs out of memory: it cannot be swapped out, does not wait for its own I/O, and is
//! the last to be ended. A host whose swap or file system lies on a cell would stand still otherwise, and a cell that waits for
//! pages of its own is one that hangs.
//!
//! Never changes anything by itself: a server asks for it once, before it starts threads.

use super::sys;
use std::sync::Mutex;

/// The kernel ends a process with -1000 never; the ones an operator needs to get in have that. A cell comes next.
const OOM_SCORE: i32 = -900;
const OOM_PATH: &str = "/proc/self/oom_score_adj";
/// The bit of CAP_IPC_LOCK, in /proc/PID/status.
const CAP_IPC_LOCK: u32 = 14;
/// That of CAP_SYS_RESOURCE.
const CAP_SYS_RESOURCE: u32 = 24;

/// Whether memory is locked. Held while that changes.
static LOCKED: Mutex<bool> = Mutex::new(false);

/// One measure against running out of memory, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryGuard {
    /// It is in force: what that means, in a line.
    InForce(&'static str),
    /// It is not.
    Refused {
        /// What that means.
        what: &'static str,
        /// Why.
        why: String,
        /// What would allow it.
        hint: &'static str,
    },
}

/// Keep this process in memory and alive as far as the kernel allows it; what came of each measure. To be called before threads are
/// started, which inherit it; processes inherit all but the lock.
#[must_use]
pub fn guard_memory() -> Vec<MemoryGuard> {
    vec![lock_memory(), set_io_flusher(), lower_oom_score()]
}

/// Give memory that was freed back to the system, where the allocator keeps it: much of what was needed once, in small pieces. Allocations
/// of other threads may wait meanwhile.
pub fn give_back_memory() {
    let mut locked = crate::sync::lock(&LOCKED);
    // The kernel takes no pages back from a locked mapping. In this moment pages may be swapped out; they come back when used.
    let unlocked = *locked && sys::unlock_memory().is_ok();
    sys::trim_heap();
    if unlocked {
        // It was allowed before.
        *locked = sys::lock_memory().is_ok();
    }
}

/// Whether a process with the capabilities of this one is allowed to not wait for its own I/O ([`guard_memory`]).
#[must_use]
pub fn may_skip_own_io() -> bool {
    has_capability(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), CAP_SYS_RESOURCE)
}

fn lock_memory() -> MemoryGuard {
    let refused = |why: String| MemoryGuard::Refused {
        what: "memory may be swapped out",
        why,
        hint: "CAP_IPC_LOCK, or an unlimited memlock (LimitMEMLOCK=infinity of a systemd unit, `ulimit -l unlimited`)",
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // With a limit, later allocations beyond it would fail.
    if !sys::may_lock_without_limit() && !has_capability(&status, CAP_IPC_LOCK) {
        return refused("the limit of locked memory does not allow it".to_owned());
    }
    let mut locked = crate::sync::lock(&LOCKED);
    match sys::lock_memory() {
        Ok(()) => {
            *locked = true;
            MemoryGuard::InForce("memory is not swapped out: locked as it is used")
        }
        Err(error) => refused(error.to_string()),
    }
}

fn set_io_flusher() -> MemoryGuard {
    match sys::set_io_flusher() {
        Ok(()) => MemoryGuard::InForce("allocations do not wait for I/O of this cell (PR_SET_IO_FLUSHER)"),
        Err(error) => MemoryGuard::Refused {
            what: "allocations may wait for I/O of this cell",
            why: format!("PR_SET_IO_FLUSHER: {error}"),
            hint: "CAP_SYS_RESOURCE (AmbientCapabilities= of a systemd unit), and Linux 5.6 or later",
        },
    }
}

fn lower_oom_score() -> MemoryGuard {
    let set = || {
        let now = std::fs::read_to_string(OOM_PATH)?;
        // One that is lower already was set by an operator.
        if now.trim().parse::<i32>().is_ok_and(|score| score <= OOM_SCORE) {
            return Ok(());
        }
        std::fs::write(OOM_PATH, OOM_SCORE.to_string())
    };
    match set() {
        Ok(()) => {
            MemoryGuard::InForce("other processes are ended first when memory runs out: oom_score_adj -900 or lower")
        }
        Err(error) => MemoryGuard::Refused {
            what: "the kernel may end this process first when memory runs out",
            why: format!("{OOM_PATH}: {error}"),
            hint: "CAP_SYS_RESOURCE, or OOMScoreAdjust=-900 of a systemd unit",
        },
    }
}

/// Whether the effective capabilities in a `/proc/PID/status` have this bit.
fn has_capability(status: &str, bit: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| (mask >> bit) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_status() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000004001\n";
        assert!(has_capability(status, 14) && has_capability(status, 0) && !has_capability(status, 1));
        assert!(!has_capability("CapPrm:\t0000000000004001\n", 14) && !has_capability("CapEff:\tx\n", 14));
    }
}
