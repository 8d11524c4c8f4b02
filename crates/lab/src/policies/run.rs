//! Replaying traces: every policy at every size, on all cores, a trace streamed once to count and once to replay.

use super::log::{Layout, LogReplay};
use super::reference::{self, BlockCache, BlockId};
use super::size::Size;
use crate::trace::{Format, Request, TraceError, TraceReader, Unit};
use flashcache::policy::{AdaptiveLog, Policy};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

/// The policy the cell runs.
pub const DEFAULT_POLICY: &str = "flashcell";
/// The most distinct blocks of a trace: their numbers and links take about 100 bytes each while it is replayed.
pub(super) const DISTINCT_MAX: usize = 1 << 28;
/// References handed to the workers at a time.
const BATCH: usize = 1 << 16;
/// Batches a worker may lag behind: what bounds the memory of a replay.
const BATCHES_AHEAD: usize = 4;
/// How often a replay tells how far it is.
const TELL_EVERY: u64 = 10_000_000;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct PoliciesOptions {
    /// Trace files.
    pub traces: Vec<PathBuf>,
    /// Sizes of the cache.
    pub sizes: Vec<Size>,
    /// Bytes of a block, for traces that count in bytes.
    pub block_bytes: u32,
    /// Names of policies; all when empty.
    pub policies: Vec<String>,
    /// How to read the traces; told from their content when not given.
    pub format: Option<Format>,
    /// Write the rows as JSON.
    pub json: Option<PathBuf>,
    /// Write a plot.
    pub plot: Option<PathBuf>,
}

/// Why policies cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum PoliciesError {
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A name that is no policy.
    #[error("no policy {name}\nhint: {DEFAULT_POLICY}, {}", reference::NAMES.join(", "))]
    Policy {
        /// The name.
        name: String,
    },
    /// A size no block fits into.
    #[error("{}: a cache of {size} of {distinct} blocks holds nothing", trace.display())]
    Size {
        /// Which trace.
        trace: PathBuf,
        /// The size asked for.
        size: Size,
        /// Distinct blocks of the trace.
        distinct: u64,
    },
    /// A block that is none.
    #[error("a block has 4 KiB to 64 KiB, a power of two; not {0} bytes")]
    Block(u32),
    /// More distinct blocks than can be replayed.
    #[error("{}: more than {DISTINCT_MAX} distinct blocks\nhint: a larger --block", .0.display())]
    TooMany(PathBuf),
    /// A result cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// One policy on one trace at one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// File name of the trace.
    pub trace: String,
    /// The policy.
    pub policy: String,
    /// Size as it was asked for.
    pub size: Size,
    /// Size of the cache in blocks; for the default policy so many blocks' worth of flash, everything included.
    pub size_blocks: u64,
    /// References to blocks.
    pub references: u64,
    /// How many were not cached.
    pub misses: u64,
    /// Bytes written to flash; for a reference policy one block for each miss.
    pub flash_bytes_written: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl Row {
    /// Whether it is the policy the cell runs.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.policy == DEFAULT_POLICY
    }
    /// Misses of a million references.
    #[must_use]
    pub fn miss_ppm(&self) -> u64 {
        (self.misses * 1_000_000).checked_div(self.references).unwrap_or(0)
    }
    /// Bytes written to flash for a thousand bytes missed.
    #[must_use]
    pub fn written_milli(&self) -> u64 {
        let missed = u128::from(self.misses) * u128::from(self.block_bytes);
        (u128::from(self.flash_bytes_written) * 1000).checked_div(missed).unwrap_or(0) as u64
    }
}

/// Numbers of blocks, in order of appearance.
#[derive(Default)]
struct Numbers(HashMap<(u32, u64), BlockId>);

impl Numbers {
    fn of(&mut self, request: &Request, unit: Unit, block_bytes: u32, mut f: impl FnMut(BlockId)) -> bool {
        for block in request.blocks(unit, u64::from(block_bytes)) {
            let next = self.0.len() as BlockId;
            f(*self.0.entry((request.device, block)).or_insert(next));
            if self.0.len() > DISTINCT_MAX {
                return false;
            }
        }
        true
    }
}

enum Cache {
    Block(Box<dyn BlockCache>),
    Log(Box<LogReplay>),
}

struct Job {
    row: Row,
    cache: Cache,
}

impl Job {
    fn new(row: Row, distinct: u32) -> Option<Job> {
        let size = u32::try_from(row.size_blocks).unwrap_or(u32::MAX);
        let cache = if row.is_default() {
            let layout = Layout::of(row.size_blocks, row.block_bytes);
            let policy: Arc<dyn Policy> = Arc::new(AdaptiveLog::new(layout.shape));
            Cache::Log(Box::new(LogReplay::new(policy, layout, distinct)))
        } else {
            Cache::Block(reference::by_name(&row.policy, size, distinct)?)
        };
        Some(Job { row, cache })
    }

    fn replay(&mut self, blocks: &[BlockId]) {
        let misses = match &mut self.cache {
            Cache::Block(cache) => blocks.iter().filter(|&&block| !cache.access(block)).count(),
            Cache::Log(log) => blocks.iter().filter(|&&block| !log.access(block)).count(),
        };
        self.row.misses += misses as u64;
        self.row.references += blocks.len() as u64;
    }

    fn finish(mut self) -> Row {
        self.row.flash_bytes_written = match &self.cache {
            Cache::Block(_) => self.row.misses * u64::from(self.row.block_bytes),
            Cache::Log(log) => log.flash_bytes_written(),
        };
        self.row
    }
}

/// Replay every trace; tells on `talk` how far it is. Rows by trace, size and policy.
///
/// # Errors
/// See [`PoliciesError`].
pub fn replay(options: &PoliciesOptions, talk: &mut dyn Write) -> Result<Vec<Row>, PoliciesError> {
    let policies: Vec<String> = if options.policies.is_empty() {
        std::iter::once(DEFAULT_POLICY).chain(reference::NAMES).map(str::to_owned).collect()
    } else {
        options.policies.clone()
    };
    let known = |name: &String| name == DEFAULT_POLICY || reference::NAMES.contains(&name.as_str());
    if let Some(unknown) = policies.iter().find(|name| !known(name)) {
        return Err(PoliciesError::Policy { name: unknown.clone() });
    }
    if !options.block_bytes.is_power_of_two() || !(4096..=65536).contains(&options.block_bytes) {
        return Err(PoliciesError::Block(options.block_bytes));
    }
    let mut rows = Vec::new();
    for trace in &options.traces {
        rows.extend(replay_one(options, trace, &policies, talk)?);
    }
    Ok(rows)
}

fn replay_one(
    options: &PoliciesOptions,
    trace: &Path,
    policies: &[String],
    talk: &mut dyn Write,
) -> Result<Vec<Row>, PoliciesError> {
    let mut numbers = Numbers::default();
    let mut references = 0_u64;
    let reader = TraceReader::open(trace, options.format)?;
    let (unit, format) = (reader.unit(), reader.format());
    for request in reader {
        if !numbers.of(&request?, unit, options.block_bytes, |_| references += 1) {
            return Err(PoliciesError::TooMany(trace.to_owned()));
        }
    }
    let distinct = numbers.0.len() as u64;
    let name = trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    // Talk that nobody hears changes nothing.
    let _ = writeln!(talk, "{name}: {format}, {references} references to {distinct} blocks");
    let mut jobs = Vec::new();
    for &size in &options.sizes {
        let size_blocks = size.of(distinct);
        if size_blocks == 0 {
            return Err(PoliciesError::Size { trace: trace.to_owned(), size, distinct });
        }
        for policy in policies {
            let row = Row {
                trace: name.clone(),
                policy: policy.clone(),
                size,
                size_blocks,
                references: 0,
                misses: 0,
                flash_bytes_written: 0,
                block_bytes: options.block_bytes,
            };
            jobs.extend(Job::new(row, distinct as u32));
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs.len().max(1));
    let mut shares: Vec<Vec<(usize, Job)>> = (0..workers).map(|_| Vec::new()).collect();
    jobs.into_iter().enumerate().for_each(|(i, job)| shares[i % workers].push((i, job)));
    let mut finished: Vec<(usize, Row)> = std::thread::scope(|scope| {
        let mut senders: Vec<SyncSender<Arc<[BlockId]>>> = Vec::new();
        let mut handles = Vec::new();
        for mut share in shares {
            let (sender, receiver) = sync_channel::<Arc<[BlockId]>>(BATCHES_AHEAD);
            senders.push(sender);
            handles.push(scope.spawn(move || {
                for batch in receiver {
                    share.iter_mut().for_each(|(_, job)| job.replay(&batch));
                }
                share.into_iter().map(|(i, job)| (i, job.finish())).collect::<Vec<_>>()
            }));
        }
        let mut batch = Vec::with_capacity(BATCH);
        let mut sent = 0_u64;
        for request in TraceReader::open(trace, options.format)? {
            numbers.of(&request?, unit, options.block_bytes, |block| batch.push(block));
            if batch.len() >= BATCH {
                let before = sent / TELL_EVERY;
                sent += batch.len() as u64;
                send(&senders, &mut batch);
                if sent / TELL_EVERY > before {
                    let _ = writeln!(talk, "{name}: {sent} of {references}");
                }
            }
        }
        send(&senders, &mut batch);
        drop(senders);
        // A worker that panicked takes the run with it: results would be missing.
        let done = handles.into_iter().flat_map(|handle| match handle.join() {
            Ok(rows) => rows,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        Ok::<_, PoliciesError>(done.collect())
    })?;
    finished.sort_by_key(|(i, _)| *i);
    Ok(finished.into_iter().map(|(_, row)| row).collect())
}

fn send(senders: &[SyncSender<Arc<[BlockId]>>], batch: &mut Vec<BlockId>) {
    let shared: Arc<[BlockId]> = std::mem::take(batch).into();
    for sender in senders {
        // A worker that is gone has panicked, which joining it tells.
        let _ = sender.send(shared.clone());
    }
}
