//! Waiting for a FLUSH at a terminal: how much is left and how long that takes, and what ^C means: the cell goes on without the client.
//!
//! Never ends a flush. What is shown goes to stderr and over itself; nothing is shown where stderr is no terminal.

use super::session::Session;
use crate::http::AskError;
use cellcli::ObjectType;
use cellcli::command::{Change, Target};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Between two looks at ^C and at the end: what a person does not feel.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two questions how much is left; each walks the index of the cache.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Readings that the rate is taken over: ten seconds.
const READINGS_MAX: usize = 10;
/// What is written over: longer than any line.
const WIDTH: usize = 70;

/// How a wait has ended.
pub(super) enum Waited<T> {
    /// With the cell's answer.
    Answered(T),
    /// With ^C: the flush goes on.
    Left,
}

/// Have `ask` done and show meanwhile how far the flush is.
pub(super) fn wait<T: Send + 'static>(
    session: &Session,
    change: &Change,
    ask: impl FnOnce(&Session) -> T + Send + 'static,
) -> Waited<T> {
    let waiting = Interrupts::wait();
    let (tell, told) = channel();
    let asker = session.twin();
    std::thread::spawn(move || {
        // Nobody listens after ^C.
        let _ = tell.send(ask(&asker));
    });
    let watcher = session.watcher();
    let mut progress = Progress::default();
    loop {
        match told.recv_timeout(LOOK_EVERY) {
            Ok(answer) => {
                progress.clear();
                return Waited::Answered(answer);
            }
            // It has panicked, and said so.
            Err(RecvTimeoutError::Disconnected) => std::process::exit(1),
            Err(RecvTimeoutError::Timeout) if waiting.is_interrupted() => {
                progress.clear();
                let _ = writeln!(std::io::stderr().lock(), "{}", goes_on(change));
                return Waited::Left;
            }
            Err(RecvTimeoutError::Timeout) => progress.show(|| left_bytes(&watcher, change).ok()),
        }
    }
}

/// What is said at ^C.
fn goes_on(change: &Change) -> String {
    let what = match (&change.target, change.object) {
        (Target::Names(names), object) => format!("{} {}", object.spec().word, names.join(", ")),
        (Target::Whole | Target::All(_), object) => format!("{} ALL", object.spec().word),
    };
    format!(
        "the flush goes on in the cell\nhint: ALTER {what} CANCEL FLUSH cancels it; LIST CELLDISK ATTRIBUTES name, flushStatus tells how it is"
    )
}

/// Bytes that are newer on flash than on the disks, of what is flushed.
fn left_bytes(session: &Session, change: &Change) -> Result<u64, AskError> {
    let names: Option<&[String]> = match (&change.target, change.object) {
        (Target::Names(names), ObjectType::GridDisk) => Some(names),
        _ => None,
    };
    let outcomes = session.ask("LIST METRICCURRENT GD_BY_FC_DIRTY ATTRIBUTES metricObjectName, metricValue")?;
    let rows: Vec<serde_json::Value> =
        outcomes.iter().filter_map(|outcome| serde_json::from_str::<Vec<_>>(&outcome.output).ok()).flatten().collect();
    let is_meant = |row: &serde_json::Value| {
        let name = row["metricObjectName"].as_str().unwrap_or_default();
        names.is_none_or(|names| names.iter().any(|it| it.eq_ignore_ascii_case(name)))
    };
    let mb: f64 = rows.iter().filter(|row| is_meant(row)).filter_map(|row| row["metricValue"].as_f64()).sum();
    Ok((mb * f64::from(1 << 20)) as u64)
}

/// A line that says how far it is.
#[derive(Default)]
pub(crate) struct Progress {
    asked: Option<Instant>,
    readings: VecDeque<(Instant, u64)>,
}

impl Progress {
    pub(crate) fn show(&mut self, left_bytes: impl FnOnce() -> Option<u64>) {
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now.duration_since(asked) < ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        let Some(left) = left_bytes() else { return };
        if self.readings.len() == READINGS_MAX {
            self.readings.pop_front();
        }
        self.readings.push_back((now, left));
        let first = self.readings[0];
        let text = line(left, first.1.saturating_sub(left), now.duration_since(first.0));
        let _ = write!(std::io::stderr().lock(), "\r{text:WIDTH$}");
    }

    pub(crate) fn clear(&self) {
        if self.asked.is_some() {
            let _ = write!(std::io::stderr().lock(), "\r{:WIDTH$}\r", "");
        }
    }
}

/// `left` bytes, of which `gone` went in `time`.
fn line(left: u64, gone: u64, time: Duration) -> String {
    let tenths = |bytes: u64| format!("{}.{}", bytes >> 20, ((bytes & ((1 << 20) - 1)) * 10) >> 20);
    let text = format!("{} MB left", tenths(left));
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let rate = (u128::from(gone) * 1000).checked_div(u128::from(ms)).unwrap_or(0) as u64;
    if rate == 0 {
        return text;
    }
    let seconds = left.div_ceil(rate);
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let time = match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {} s", seconds % 60),
        _ => format!("{hours} h {minutes} min"),
    };
    format!("{text}, {} MB/s, about {time} to go", tenths(rate))
}

/// What ^C does in this process from the first flush on: it ends a wait, or the process when there is none, as before.
struct Interrupts {
    waits: AtomicUsize,
    came: AtomicBool,
}

struct Waiting(&'static Interrupts);

impl Interrupts {
    fn wait() -> Waiting {
        static ALL: OnceLock<&'static Interrupts> = OnceLock::new();
        static TABLE: Interrupts = Interrupts { waits: AtomicUsize::new(0), came: AtomicBool::new(false) };
        let all = *ALL.get_or_init(|| {
            std::thread::spawn(|| TABLE.listen());
            &TABLE
        });
        all.came.store(false, Ordering::Relaxed);
        all.waits.fetch_add(1, Ordering::Relaxed);
        Waiting(all)
    }

    fn listen(&self) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if self.waits.load(Ordering::Relaxed) == 0 {
                    // As a shell sees a program that the signal has ended.
                    std::process::exit(130);
                }
                self.came.store(true, Ordering::Relaxed);
            }
        });
    }
}

impl Waiting {
    fn is_interrupted(&self) -> bool {
        self.0.came.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let mib = |n: u64| n << 20;
        assert_eq!(line(mib(10) + mib(1) / 2, 0, Duration::ZERO), "10.5 MB left");
        assert_eq!(line(mib(100), mib(30), Duration::from_secs(3)), "100.0 MB left, 10.0 MB/s, about 10 s to go");
        assert_eq!(
            line(mib(7000), mib(10), Duration::from_secs(10)),
            "7000.0 MB left, 1.0 MB/s, about 1 h 56 min to go"
        );
        assert_eq!(line(mib(100), mib(1), Duration::from_secs(1)), "100.0 MB left, 1.0 MB/s, about 1 min 40 s to go");
        assert!(line(u64::MAX, 1 << 20, Duration::from_secs(1)).len() < WIDTH);
    }
}
