//! The memory of administration: questions and answers of all clients together take at most [`bytes_max`].
//!
//! Administrators and all other users have a [`Share`] each: what clients ask and do not take never holds the memory that the owner needs.
//! Long answers of all clients are made on one thread, one after the other, so that making takes the memory of one: a share has at most one that
//! is made or waits for it, and the owner waits for at most one of another user. A share makes its short answers on a thread of its own.
//! A made answer holds what its rows are made from, not their text, until its client has taken the text. A client that
//! finds a share taken waits for [`WAIT`]. A client that does not take its answer is cut off while others wait ([`super::stream`]).
//! Never looks at a statement.

use super::access::Role;
use super::places::KNOWN_MAX;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

const KIB: usize = 1 << 10;
/// Memory of the questions of a share: the body of one of the longest with the text in it; then that text and what its statement says once it is
/// parsed.
const QUESTIONS_BYTES: usize = 4 << 20;
/// Memory of one question, in lengths of its body. A list of names of one letter takes this much once it is parsed.
const QUESTION_FACTOR: usize = 32;
/// While a body becomes a text, or a statement is parsed: on the thread of the service, one at a time. A body is copied twice; a statement has
/// tokens of 80 bytes.
const PARSING_BYTES: usize = 6 << 20;
/// Memory of the made answers of a share: one of the longest, or one that is made beside those of ordinary length that are not yet taken.
const ANSWERS_BYTES: usize = 16 << 20;
/// The most that a made answer holds: 50,000 values of the history with OVER. With more than 1,024 grid disks an answer may hold more. The
/// memory announced for each further grid disk covers that.
pub(super) const ANSWER_BYTES_MAX: usize = 14 << 20;
/// While a long answer is made: two readings of the metrics, and what is calculated from them (with OVER a window for each row) or, later,
/// the values of one key to sort by.
const MAKING_BYTES: usize = 26 << 20;
/// Text on its way to a client: a piece being filled, one that waits, and what the connection buffers.
const CONNECTION_BYTES: usize = 160 << 10;
/// Connections to the unix socket and over TCP.
const CONNECTIONS_MAX: usize = 2 * KNOWN_MAX;
/// Short answers of a share that are made or wait to be made.
const SHORT_MAX: usize = 4;
/// How long a question or an answer waits for memory.
const WAIT: Duration = Duration::from_secs(60);

/// The most memory that all questions and answers take.
pub(crate) const fn bytes_max() -> u64 {
    let shares = 2 * (QUESTIONS_BYTES + ANSWERS_BYTES);
    (shares + PARSING_BYTES + MAKING_BYTES + CONNECTIONS_MAX * CONNECTION_BYTES) as u64
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Answers of other clients take all memory there is for them.
    Busy,
    /// The cell is stopping.
    Stopping,
}

impl NoAnswer {
    /// What happened, and why.
    pub(super) fn text(self) -> String {
        match self {
            NoAnswer::Busy => format!(
                "the memory for answers has been taken by those of other clients for {} s, and they do not take them",
                WAIT.as_secs()
            ),
            NoAnswer::Stopping => "the cell is stopping".to_owned(),
        }
    }

    /// What to do.
    pub(super) fn hint(self) -> Option<&'static str> {
        match self {
            NoAnswer::Busy => Some("try again, end clients that do not read, or ask for less with WHERE or LIMIT"),
            NoAnswer::Stopping => None,
        }
    }
}

/// How much an answer may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// Some tens of rows: its text is on its way as soon as it is made.
    Short,
    /// Up to [`ANSWER_BYTES_MAX`].
    Long,
}

type Job = Box<dyn FnOnce() + Send>;

/// Makes answers within their memory. See the module's head.
#[derive(Debug)]
pub(crate) struct Answers {
    administrators: Share,
    others: Share,
    long_jobs: mpsc::Sender<Job>,
}

impl Answers {
    /// Start the threads that make answers. They end when this is dropped.
    pub(crate) fn start() -> std::io::Result<Answers> {
        Ok(Answers { administrators: Share::start()?, others: Share::start()?, long_jobs: maker("answers")? })
    }

    fn share(&self, role: &Role) -> &Share {
        match role {
            Role::Administrator => &self.administrators,
            Role::Monitor | Role::Database(_) => &self.others,
        }
    }

    /// Acquire memory for a question with a body of so many bytes, for as long as [`Held`] lives.
    pub(super) async fn question(&self, role: &Role, body_bytes: usize) -> Result<Held, NoAnswer> {
        let bytes = body_bytes.saturating_mul(QUESTION_FACTOR).min(QUESTIONS_BYTES);
        self.share(role).questions.acquire(bytes.div_ceil(KIB)).await
    }

    /// Have an answer made when it is its turn; `bytes` of it are held as long as [`Held`] lives.
    ///
    /// The memory stays acquired until the answer is made, even when the client goes before: otherwise a client that asks and goes, again and
    /// again, has any number of answers waiting to be made.
    pub(super) async fn make<T: Send + 'static>(
        &self,
        role: &Role,
        length: Length,
        make: impl FnOnce() -> T + Send + 'static,
        bytes: impl FnOnce(&T) -> usize + Send + 'static,
    ) -> Result<(T, Held), NoAnswer> {
        let share = self.share(role);
        let (mut held, jobs) = match length {
            Length::Short => (share.short.acquire(1).await?, &share.short_jobs),
            Length::Long => (share.long.acquire(ANSWER_BYTES_MAX / KIB).await?, &self.long_jobs),
        };
        let (tell, told) = oneshot::channel();
        let job = Box::new(move || {
            // The client has gone while the answer waited for its turn.
            if tell.is_closed() {
                return;
            }
            let made = make();
            if length == Length::Long {
                held.keep(bytes(&made));
            }
            // Fails when the client has gone.
            let _ = tell.send((made, held));
        });
        jobs.send(job).map_err(|_| NoAnswer::Stopping)?;
        told.await.map_err(|_| NoAnswer::Stopping)
    }
}

/// Start a thread that makes answers one after the other.
fn maker(name: &str) -> std::io::Result<mpsc::Sender<Job>> {
    let (jobs, waiting) = mpsc::channel::<Job>();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        for job in waiting {
            // One that fails leaves its client alone without an answer.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    })?;
    Ok(jobs)
}

/// What the clients of one kind have for their questions and answers.
#[derive(Debug)]
struct Share {
    /// In KiB.
    questions: Arc<Pool>,
    /// In KiB.
    long: Arc<Pool>,
    /// In answers.
    short: Arc<Pool>,
    short_jobs: mpsc::Sender<Job>,
}

impl Share {
    fn start() -> std::io::Result<Share> {
        Ok(Share {
            questions: Pool::new(QUESTIONS_BYTES / KIB),
            long: Pool::new(ANSWERS_BYTES / KIB),
            short: Pool::new(SHORT_MAX),
            short_jobs: maker("short answers")?,
        })
    }
}

/// A bounded amount of something, given out in the order in which it was asked for.
#[derive(Debug)]
struct Pool {
    room: Arc<Semaphore>,
    /// Clients that wait for some of it.
    waiting: AtomicUsize,
}

impl Pool {
    fn new(count: usize) -> Arc<Pool> {
        Arc::new(Pool { room: Arc::new(Semaphore::new(count)), waiting: AtomicUsize::new(0) })
    }

    async fn acquire(self: &Arc<Self>, count: usize) -> Result<Held, NoAnswer> {
        let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let _waiting = Waiting::new(&self.waiting);
        match tokio::time::timeout(WAIT, self.room.clone().acquire_many_owned(count)).await {
            Ok(Ok(permit)) => Ok(Held { permit, pool: self.clone() }),
            Ok(Err(_)) => Err(NoAnswer::Stopping),
            Err(_) => Err(NoAnswer::Busy),
        }
    }
}

/// Counts one client that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The memory of a question or of a made answer.
#[derive(Debug)]
pub(super) struct Held {
    permit: OwnedSemaphorePermit,
    pool: Arc<Pool>,
}

impl Held {
    /// Release what a made answer of so many bytes does not need.
    fn keep(&mut self, bytes: usize) {
        let kept = bytes.div_ceil(KIB).max(1);
        drop(self.permit.split(self.permit.num_permits().saturating_sub(kept)));
    }

    /// Whether other clients wait for what is held.
    pub(super) fn is_wanted(&self) -> bool {
        self.pool.waiting.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: what is held is bounded for any clients, and a client that waits is answered in the end. Method: answers of given sizes in
    //! tokio's paused time.
    use super::*;

    const MANY: usize = 40;

    async fn made(answers: &Answers, role: &Role, bytes: usize) -> Result<Held, NoAnswer> {
        answers.make(role, Length::Long, || (), move |()| bytes).await.map(|((), held)| held)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    }

    #[test]
    fn made_answers_hold_no_more_than_the_share() {
        runtime().block_on(async {
            let answers = Answers::start().unwrap();
            let mut held = Vec::new();
            // As long as there is room for one of the longest.
            let refused = loop {
                match made(&answers, &Role::Monitor, 1 << 20).await {
                    Ok(one) => held.push(one),
                    Err(why) => break why,
                }
                assert!(held.len() < MANY, "without end");
            };
            assert_eq!((refused, held.len()), (NoAnswer::Busy, 3));
            // The owner has a share of their own, and short answers theirs.
            made(&answers, &Role::Administrator, 1 << 20).await.unwrap();
            answers.make(&Role::Monitor, Length::Short, || (), |()| 1).await.unwrap();
            held.pop();
            made(&answers, &Role::Database("X".to_owned()), 0).await.unwrap();
        });
    }

    #[test]
    fn who_waits_is_seen_and_comes_next() {
        runtime().block_on(async {
            let answers = Arc::new(Answers::start().unwrap());
            let held = made(&answers, &Role::Monitor, ANSWER_BYTES_MAX).await.unwrap();
            assert!(!held.is_wanted());
            let asking = answers.clone();
            let next = tokio::spawn(async move { made(&asking, &Role::Monitor, 0).await.map(drop) });
            while !held.is_wanted() {
                assert!(!next.is_finished(), "it did not wait");
                tokio::task::yield_now().await;
            }
            drop(held);
            next.await.unwrap().unwrap();
        });
    }

    #[test]
    fn a_client_that_asks_and_goes_leaves_no_row_of_answers_behind() {
        runtime().block_on(async {
            let answers = Arc::new(Answers::start().unwrap());
            let (go, gate) = mpsc::channel::<()>();
            let (begun, begins) = mpsc::channel::<()>();
            let asking = answers.clone();
            let first = tokio::spawn(async move {
                let make = move || {
                    begun.send(()).unwrap();
                    gate.recv().unwrap();
                };
                asking.make(&Role::Monitor, Length::Long, make, |()| 0).await.map(drop)
            });
            while begins.try_recv().is_err() {
                tokio::task::yield_now().await;
            }
            // The client goes while its answer is made: others still wait for the memory of that answer.
            first.abort();
            assert!(first.await.is_err());
            let refused = tokio::time::timeout(WAIT * 2, made(&answers, &Role::Monitor, 0)).await.unwrap();
            assert_eq!(refused.map(drop), Err(NoAnswer::Busy));
            // Short questions are answered meanwhile.
            answers.make(&Role::Monitor, Length::Short, || (), |()| 0).await.unwrap();
            go.send(()).unwrap();
            while answers.others.long.room.available_permits() < ANSWERS_BYTES / KIB {
                tokio::task::yield_now().await;
            }
            made(&answers, &Role::Monitor, 0).await.unwrap();
        });
    }

    #[test]
    fn answers_are_made_one_after_the_other_and_a_failed_one_ends_nothing() {
        // Time passes as it does: paused time would go on to the end of the wait while the thread makes an answer.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let answers = Answers::start().unwrap();
            let failed = answers.make(&Role::Monitor, Length::Short, || panic!("on purpose"), |&()| 0).await;
            assert_eq!(failed.map(drop), Err(NoAnswer::Stopping));
            for length in [Length::Short, Length::Long] {
                let at_once = Arc::new(AtomicUsize::new(0));
                let make = || {
                    let at_once = at_once.clone();
                    let make = move || {
                        let before = at_once.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        before
                    };
                    let made = answers.make(&Role::Monitor, length, make, |_| 0);
                    async move { made.await.map(|(before, _)| before) }
                };
                let all = futures_util::future::join_all((0..MANY).map(|_| make())).await;
                assert_eq!(all, vec![Ok(0); MANY]);
            }
        });
    }

    #[test]
    fn questions_wait_for_the_memory_of_others() {
        runtime().block_on(async {
            let answers = Answers::start().unwrap();
            let first = answers.question(&Role::Monitor, QUESTIONS_BYTES / QUESTION_FACTOR).await.unwrap();
            assert_eq!(answers.question(&Role::Monitor, 1).await.map(drop), Err(NoAnswer::Busy));
            answers.question(&Role::Administrator, 1).await.unwrap();
            assert!(!first.is_wanted());
            drop(first);
            // Any length is taken, one after the other.
            answers.question(&Role::Monitor, usize::MAX).await.unwrap();
        });
    }

    #[test]
    fn a_list_of_short_names_is_no_longer_than_announced() {
        let text = format!("list griddisk {}", vec!["a"; cellcli::STATEMENT_TOKENS_MAX / 2 - 2].join(","));
        let Ok(cellcli::Command::List(list)) = cellcli::parse_one(&text) else { panic!("a list") };
        let of_name = |name: &String| size_of::<String>() + name.capacity().next_multiple_of(16).max(24) + 8;
        let bytes = list.names.iter().map(of_name).sum::<usize>() + text.len();
        assert!(bytes <= text.len() * QUESTION_FACTOR, "{bytes} of {}", text.len());
        assert!(bytes <= QUESTIONS_BYTES);
    }
}
