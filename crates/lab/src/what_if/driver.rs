//! Whoever asks: sessions that take the requests of a trace in its order, one after the other each, in either world.
//!
//! Never looks at what was read, never writes anything but zeroes: what is measured here is time.

use super::workload::{Call, Verb};
use cell::Session;
use device::sync::{lock, one_shot};
use device::{Buf, Bufs, Clock, Instant, SharedBufs, World};
use nbd::client::Client;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The longest piece a request is issued in; longer ones are several, one after the other.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// How often progress is told.
const TELL_EVERY: usize = 256;
/// Requests under way in an open loop; what comes beyond waits, and its time counts from when it was due.
pub(super) const OPEN_MAX: usize = 1024;

/// What a grid disk is reached through.
#[derive(Clone)]
pub(super) enum Target {
    /// In its process, for virtual time: what a served cell takes beside its devices is added.
    Cell(Arc<Session>, Arc<Beside>),
    /// Over NBD.
    Nbd(Client),
}

/// What a request takes beside the devices: the way there and back, which requests share with nobody, and processors, which they share.
pub(crate) struct Beside {
    pub(super) way_ns: u64,
    pub(super) cpu_ns: u64,
    /// When the processors have done what they were given.
    free_ns: AtomicU64,
}

impl Beside {
    pub(super) fn new(way_ns: u64, cpu_ns: u64) -> Arc<Beside> {
        Arc::new(Beside { way_ns, cpu_ns, free_ns: AtomicU64::new(0) })
    }

    pub(super) async fn pass(&self, clock: &dyn Clock) {
        let now = clock.now().0;
        // One thread at a time asks, in virtual time.
        let done = self.free_ns.load(Ordering::Relaxed).max(now) + self.cpu_ns;
        self.free_ns.store(done, Ordering::Relaxed);
        clock.sleep_until(Instant(done + self.way_ns)).await;
    }
}

/// When requests begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Requests under way at most.
    pub(super) sessions: usize,
    /// Not before their time in the trace, at so many thousandths of its speed; none: as soon as a session is free.
    pub(super) speed_milli: Option<u64>,
    /// Waiting for a free session counts: clients that do not wait for each other.
    pub(super) open: bool,
}

/// Times of one kind of request, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times(Vec<u64>);

impl Times {
    /// Of these, in any order.
    pub(super) fn of(ns: Vec<u64>) -> Times {
        let mut times = Times(ns);
        times.sort();
        times
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn sort(&mut self) {
        self.0.sort_unstable();
    }

    /// The time that so many thousandths of them do not exceed; none of none.
    pub(super) fn quantile_ns(&self, milli: u64) -> Option<u64> {
        let rank = (self.0.len() as u64 * milli).div_ceil(1000).max(1);
        self.0.get(rank as usize - 1).copied()
    }
}

/// What one device of the trace waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    pub(super) read_ns: u64,
    pub(super) write_ns: u64,
    pub(super) flush_ns: u64,
}

impl Waited {
    pub(super) fn all_ns(&self) -> u64 {
        self.read_ns + self.write_ns + self.flush_ns
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// From the first request to the last answer.
    pub(super) elapsed_ns: u64,
    pub(super) reads: Times,
    pub(super) writes: Times,
    pub(super) flushes: Times,
    /// By device of the trace.
    pub(super) waited: Vec<Waited>,
    /// By device and part of it, reads and writes that begin there, in nanoseconds.
    pub(super) by_part: Vec<Vec<u64>>,
}

/// All sessions together.
struct Driver {
    calls: Arc<Vec<Call>>,
    targets: Vec<Destination>,
    pace: Pace,
    clock: Arc<dyn Clock>,
    begun: Instant,
    zeroes: SharedBufs,
    next: AtomicUsize,
    tally: Mutex<Tally>,
    failed: Mutex<Option<String>>,
    progress: Arc<dyn Fn(u64) + Send + Sync>,
}

/// Where requests go: a target for each device of the trace, and how long its parts are and how many.
#[derive(Clone)]
pub(super) struct Destination {
    pub(super) target: Target,
    pub(super) part_bytes: u64,
    pub(super) parts: usize,
}

/// Do the work; `progress` hears of requests done.
///
/// # Errors
/// What a request was answered that failed.
pub(super) async fn drive(
    calls: &Arc<Vec<Call>>,
    targets: Vec<Destination>,
    pace: Pace,
    world: &World,
    progress: Arc<dyn Fn(u64) + Send + Sync>,
) -> Result<Tally, String> {
    let waited = vec![Waited::default(); targets.len()];
    let by_part = targets.iter().map(|to| vec![0; to.parts]).collect();
    let driver = Arc::new(Driver {
        calls: calls.clone(),
        targets,
        pace,
        clock: world.clock.clone(),
        begun: world.clock.now(),
        zeroes: Bufs::from(Buf::zeroed(PIECE_BYTES_MAX as usize)).freeze(),
        next: AtomicUsize::new(0),
        tally: Mutex::new(Tally { waited, by_part, ..Tally::default() }),
        failed: Mutex::default(),
        progress,
    });
    let sessions = if pace.open { OPEN_MAX } else { pace.sessions }.clamp(1, calls.len().max(1));
    let mut ends = Vec::new();
    for _ in 0..sessions {
        let (sender, receiver) = one_shot();
        let driver = driver.clone();
        world.spawn.spawn(Box::pin(async move {
            driver.session().await;
            sender.send(());
        }));
        ends.push(receiver);
    }
    for end in ends {
        let _ = end.await;
    }
    if let Some(failed) = lock(&driver.failed).take() {
        return Err(failed);
    }
    let mut tally = std::mem::take(&mut *lock(&driver.tally));
    tally.elapsed_ns = world.clock.now().ns_since(driver.begun);
    for times in [&mut tally.reads, &mut tally.writes, &mut tally.flushes] {
        times.sort();
    }
    Ok(tally)
}

impl Driver {
    async fn session(&self) {
        let mut spare = Bufs::new();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(call) = self.calls.get(number).copied() else { return };
            let due = self.pace.speed_milli.map(|milli| {
                let after = u128::from(call.at_ns) * 1000 / u128::from(milli.max(1));
                Instant(self.begun.0 + after as u64)
            });
            if let Some(due) = due {
                self.clock.sleep_until(due).await;
            }
            let begun = due.filter(|_| self.pace.open).unwrap_or_else(|| self.clock.now());
            let done = self.perform(&call, &mut spare).await;
            let took = self.clock.now().ns_since(begun);
            if let Err(error) = done {
                let mut failed = lock(&self.failed);
                failed.get_or_insert(format!("{:?} of {} bytes at {}: {error}", call.verb, call.len, call.offset));
                // The others have nothing more to do.
                self.next.store(self.calls.len(), Ordering::Relaxed);
                return;
            }
            let mut tally = lock(&self.tally);
            let waited = &mut tally.waited[call.device as usize];
            match call.verb {
                Verb::Read => waited.read_ns += took,
                Verb::Write => waited.write_ns += took,
                Verb::Flush => waited.flush_ns += took,
            }
            if call.verb != Verb::Flush {
                let part = call.offset / self.targets[call.device as usize].part_bytes;
                tally.by_part[call.device as usize][part as usize] += took;
            }
            match call.verb {
                Verb::Read => tally.reads.0.push(took),
                Verb::Write => tally.writes.0.push(took),
                Verb::Flush => tally.flushes.0.push(took),
            }
            drop(tally);
            if (number + 1).is_multiple_of(TELL_EVERY) {
                (self.progress)(TELL_EVERY as u64);
            }
        }
    }

    async fn perform(&self, call: &Call, spare: &mut Bufs) -> Result<(), String> {
        let target = &self.targets[call.device as usize].target;
        if let Target::Cell(_, beside) = target {
            beside.pass(&*self.clock).await;
        }
        if call.verb == Verb::Flush {
            return match target {
                Target::Cell(session, _) => session.flush().await.map_err(|error| error.to_string()),
                Target::Nbd(client) => client.flush().await.map_err(|error| error.to_string()),
            };
        }
        let (mut at, end) = (call.offset, call.offset + call.len);
        while at < end {
            let len = (end - at).min(PIECE_BYTES_MAX);
            if call.verb == Verb::Write {
                let data = self.zeroes.slice(0..len as usize);
                match target {
                    Target::Cell(session, _) => {
                        session.write(at, data, false).await.map_err(|error| error.to_string())?
                    }
                    Target::Nbd(client) => client.write(at, data, false).await.map_err(|error| error.to_string())?,
                }
            } else {
                let mut bufs = std::mem::take(spare);
                if bufs.len_bytes() != len as usize {
                    bufs = Bufs::from(Buf::zeroed(len as usize));
                }
                let (read, bufs) = match target {
                    Target::Cell(session, _) => {
                        let (read, bufs) = session.read(at, bufs).await;
                        (read.map_err(|error| error.to_string()), bufs)
                    }
                    Target::Nbd(client) => {
                        let (read, bufs) = client.read(at, bufs).await;
                        (read.map_err(|error| error.to_string()), bufs)
                    }
                };
                read?;
                *spare = bufs;
            }
            at += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were() {
        let times = Times((1..=100).map(|n| n * 10).collect());
        assert_eq!([0, 500, 990, 1000].map(|q| times.quantile_ns(q)), [Some(10), Some(500), Some(990), Some(1000)]);
        assert_eq!(Times::default().quantile_ns(500), None);
        assert_eq!(Times(vec![7]).quantile_ns(990), Some(7));
    }
}
