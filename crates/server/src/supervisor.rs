//! What a supervisor that speaks systemd's protocol is told: that the cell is ready, that it stops, and that the process lives.
//!
//! Without one ($NOTIFY_SOCKET is not set) nothing happens. The process lives while every executor thread answers: requests wait on devices
//! without holding a thread, so a device that hangs does not count, and a restart would not help it. Never decides anything.

use device::Spawn;
use sd_notify::NotifyState;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How much longer than its own deadline a stop may take, until the process has ended.
const STOP_SLACK: Duration = Duration::from_secs(15);

/// The cell serves.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The cell stops within `deadline`. Not told where it starts again at once: to a supervisor that is no stop.
pub(crate) fn stopping(deadline: Duration) {
    let most = u32::try_from((deadline + STOP_SLACK).as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(most), NotifyState::Status("stopping")]);
}

/// Tell from here on that the process lives, if that is asked for ($WATCHDOG_USEC).
pub(crate) fn watch(spawn: &Arc<dyn Spawn>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let spawn = spawn.clone();
    // Three tellings in each limit: one that comes late is not the end.
    let every = limit / 3;
    let watching = std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        loop {
            let begun = Instant::now();
            if answers(&*spawn, every) {
                tell(&[NotifyState::Watchdog]);
            } else {
                warn!(
                    seconds = every.as_secs_f64(),
                    "an executor thread does not answer: the supervisor is not told that the cell lives"
                );
            }
            std::thread::sleep(every.saturating_sub(begun.elapsed()));
        }
    });
    match watching {
        Ok(_) => {
            info!(limit_s = limit.as_secs_f64(), "the supervisor ends the cell when a thread of it stops answering")
        }
        Err(error) => warn!(%error, "no watchdog thread: the supervisor is going to end the cell"),
    }
}

/// Whether all executor threads run a task within so long.
fn answers(spawn: &dyn Spawn, limit: Duration) -> bool {
    let (answer, answers) = mpsc::channel();
    for thread in 0..spawn.threads() {
        let answer = answer.clone();
        spawn.spawn_on(
            thread,
            Box::pin(async move {
                let _ = answer.send(());
            }),
        );
    }
    let until = Instant::now() + limit;
    (0..spawn.threads()).all(|_| answers.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok())
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "cannot tell the supervisor at $NOTIFY_SOCKET");
    }
}
