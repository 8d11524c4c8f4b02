//! Transfers that the kernel was short of something for, just now: EAGAIN and ENOMEM say nothing about the medium, so they are tried
//! again a few times before the failure is told.
//!
//! What makes others' writes durable is never tried again (a flush, a durable write): its failure may be the kernel's only report of
//! a write that was lost, and the second try would succeed without it. Allocates nothing.

use io_uring::types::Timespec;
use std::io;
use std::time::Duration;

/// Tries of a transfer, the first included.
pub(crate) const TRIES_MAX: u32 = 6;
/// What lies between two tries.
#[derive(Debug)]
pub(crate) struct Pause {
    /// How long.
    pub(crate) time: Duration,
    /// The same as a ring wants it.
    pub(crate) for_ring: Timespec,
}

impl Pause {
    const fn of_ms(ms: u32) -> Pause {
        Pause { time: Duration::from_millis(ms as u64), for_ring: Timespec::new().nsec(ms * 1_000_000) }
    }
}

/// The pauses: a third of a second in all, less than any time-out above. They stay where they are for as long as a ring may look.
static PAUSES: [Pause; TRIES_MAX as usize - 1] =
    [Pause::of_ms(10), Pause::of_ms(20), Pause::of_ms(40), Pause::of_ms(80), Pause::of_ms(160)];

/// Whether a failure may be over in a moment.
pub(crate) fn is_shortage(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::ENOMEM)
}

/// What to wait before the next try of a transfer that ended with `result`, a count or a negative errno, at its `tries`-th try;
/// none when that is its result.
pub(crate) fn pause(result: i32, tries: u32) -> Option<&'static Pause> {
    if result >= 0 || !is_shortage(-result) {
        return None;
    }
    PAUSES.get(tries.checked_sub(1)? as usize)
}

/// The same for a call that blocks this thread anyway: `call` until it ends otherwise or has been tried often enough; `paused` before
/// each further try.
pub(crate) fn patiently(mut call: impl FnMut() -> i32, mut paused: impl FnMut(Duration)) -> i32 {
    let mut tries = 0;
    loop {
        let result = call();
        tries += 1;
        match pause(result, tries) {
            Some(pause) => paused(pause.time),
            None => return result,
        }
    }
}

/// [`patiently`] for a call with nothing to count.
pub(crate) fn done_patiently(mut call: impl FnMut() -> io::Result<()>, paused: impl FnMut(Duration)) -> io::Result<()> {
    let mut last = Ok(());
    patiently(
        || {
            last = call();
            last.as_ref().err().map_or(0, super::sys::negative)
        },
        paused,
    );
    last
}

#[cfg(test)]
mod tests {
    //! Goal: only a shortage is tried again, with pauses that double, and not for ever. Method: all results that matter.
    use super::*;

    #[test]
    fn a_shortage_is_tried_again_and_nothing_else() {
        for tries in 0..10 {
            for result in [0, 1, 4096, i32::MAX, -libc::EIO, -libc::ENOSPC, -libc::EINTR, -libc::ETIME, i32::MIN + 1] {
                assert!(pause(result, tries).is_none(), "{result}");
            }
        }
        for errno in [libc::EAGAIN, libc::ENOMEM] {
            let pauses: Vec<_> = (1..=TRIES_MAX).map_while(|tries| pause(-errno, tries)).map(|it| it.time).collect();
            assert_eq!(pauses, [10, 20, 40, 80, 160].map(Duration::from_millis));
        }
    }

    #[test]
    fn a_blocking_call_is_made_until_it_ends_otherwise_or_six_times() {
        for (results, made) in [
            (vec![7], 1),
            (vec![-libc::EAGAIN, -libc::ENOMEM, 7], 3),
            (vec![-libc::ENOMEM, -libc::EIO, 7], 2),
            (vec![-libc::EAGAIN; 9], 6),
        ] {
            let (mut calls, mut slept) = (0, Vec::new());
            let call = || {
                calls += 1;
                results[calls - 1]
            };
            assert_eq!(patiently(call, |time| slept.push(time)), results[made - 1]);
            assert_eq!((calls, slept.len()), (made, made - 1));
            assert!(slept.iter().sum::<Duration>() < Duration::from_secs(1));
        }
    }
}
