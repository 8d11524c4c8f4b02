//! Signals that end or stop a process, held back while there is something to put back first: a terminal's modes.
//!
//! Never handles a signal and never loses one: when it is let go, it does what it always does, and whoever started the process sees
//! that it did.

use super::sys::{check, own};
use std::io::{Error, ErrorKind, Result};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// What a terminal or its closing sends, what `kill` does, and what stops a job.
const HELD: [i32; 5] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP];

/// The signals are held back as long as this lives, for this thread and those it starts: a process of several threads has to begin
/// with it before the others.
#[derive(Debug)]
pub struct HeldSignals {
    before: libc::sigset_t,
    arrived: OwnedFd,
    /// A mask is a thread's.
    _of_thread: PhantomData<*const ()>,
}

impl HeldSignals {
    /// Hold them from here on. What is ignored (by `nohup`, by a shell for what runs in its background) stays so: held back it would
    /// arrive all the same.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn hold() -> Result<HeldSignals> {
        let mut held = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: fills the set it is given.
        check(unsafe { libc::sigemptyset(held.as_mut_ptr()) })?;
        // SAFETY: filled above.
        let mut held = unsafe { held.assume_init() };
        for signal in HELD.into_iter().filter(|signal| !is_ignored(*signal)) {
            // SAFETY: a live set.
            check(unsafe { libc::sigaddset(&raw mut held, signal) })?;
        }
        let mut before = held;
        // SAFETY: two live sets.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, &raw mut before) };
        if failed != 0 {
            return Err(Error::from_raw_os_error(failed));
        }
        // SAFETY: a live set.
        match check(unsafe { libc::signalfd(-1, &raw const held, libc::SFD_CLOEXEC) }) {
            Ok(fd) => Ok(HeldSignals { before, arrived: own(fd), _of_thread: PhantomData }),
            Err(error) => {
                restore(&before);
                Err(error)
            }
        }
    }

    /// Wait until `from` is readable, or at its end.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`]: one of the signals has come, and will act when this is dropped. Else the call has failed.
    pub fn until_readable(&self, from: BorrowedFd<'_>) -> Result<()> {
        self.wait(Some(from), -1)
    }

    /// Wait for so long, to the millisecond.
    ///
    /// # Errors
    /// As of [`HeldSignals::until_readable`].
    pub fn pause(&self, time: Duration) -> Result<()> {
        self.wait(None, i32::try_from(time.as_millis()).unwrap_or(i32::MAX))
    }

    /// Until it is readable, or the time (in milliseconds, below 0 none) is over.
    fn wait(&self, from: Option<BorrowedFd<'_>>, limit_ms: i32) -> Result<()> {
        let wanted = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        loop {
            // One below 0 is looked past.
            let mut both = [wanted(self.arrived.as_raw_fd()), wanted(from.map_or(-1, |from| from.as_raw_fd()))];
            // SAFETY: two live entries.
            match check(unsafe { libc::poll(both.as_mut_ptr(), 2, limit_ms) }) {
                // One that is not held, and whose handler has run.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) if both[0].revents != 0 => return Err(ErrorKind::Interrupted.into()),
                Ok(found) if found == 0 || both[1].revents != 0 => return Ok(()),
                Ok(_) => {}
            }
        }
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: only asks, and fills what it is given.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: filled above where the call has not failed.
    asked == 0 && unsafe { now.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: a live set. It fails only where its first argument is none of three.
    let _ = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    /// A signal that acted would end the test.
    #[test]
    fn what_comes_is_told_and_waits() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let held = HeldSignals::hold().unwrap();
        writer.write_all(b"x").unwrap();
        held.until_readable(reader.as_fd()).unwrap();
        held.pause(Duration::from_millis(1)).unwrap();
        // To this thread alone, whose default it would be to end the process; ignored before it is let go, it is gone.
        // SAFETY: sends a signal that this thread holds.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGHUP) }, 0);
        for _ in 0..2 {
            assert_eq!(held.until_readable(reader.as_fd()).unwrap_err().kind(), ErrorKind::Interrupted);
        }
        assert_eq!(held.pause(Duration::from_secs(600)).unwrap_err().kind(), ErrorKind::Interrupted);
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: as many bytes as there are; taking the signal in is what keeps it from acting.
        let read = unsafe { libc::read(held.arrived.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) };
        assert_eq!(read, info.len() as isize);
        held.until_readable(reader.as_fd()).unwrap();
    }
}
