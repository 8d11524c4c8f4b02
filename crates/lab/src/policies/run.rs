//! Replaying traces: every policy at every size, on all cores, a trace streamed once to count and once to replay.

use super::log::{BlocksOnLog, Layout};
use super::reference::{self, BlockCache, BlockId};
use super::size::Size;
use crate::trace::{Columns, Format, Op, Request, TraceError, TraceReader, Understood, Unit};
use flashcache::model::LogModel;
use flashcache::policy::{AdaptiveLog, Policy};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

/// The policy the cell runs.
pub const DEFAULT_POLICY: &str = "flashcell";
/// The name of standard input among traces.
pub(crate) const STDIN: &str = "-";
/// What is added to the name of a policy of whole blocks that runs on the cell's log.
pub const ON_LOG: &str = "/log";
/// The most distinct blocks of a trace: their numbers and links take about 200 bytes each while it is replayed.
pub(super) const DISTINCT_MAX: usize = 1 << 28;
/// In a batch: the reference writes its block.
const WRITES: u32 = 1 << 31;
const _: () = assert!(DISTINCT_MAX < WRITES as usize);
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
    /// Bytes of a segment, as a cell has them; by the size of the cache when not given.
    pub segment_bytes: Option<u32>,
    /// Names of policies, with or without [`ON_LOG`]; all when empty.
    pub policies: Vec<String>,
    /// How to read the traces; told from their content when not given.
    pub format: Option<Format>,
    /// Which column of the traces holds what, in place of a format.
    pub columns: Option<Columns>,
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
    #[error("no policy {name}\nhint: {DEFAULT_POLICY}, {}; with {ON_LOG} behind it, on the cell's log", reference::NAMES.join(", "))]
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
    /// Segments no such cache can have.
    #[error(
        "{}: a cache of {size_blocks} blocks has no segments of {segment_bytes} bytes\nhint: leave --segment out, or a larger size",
        trace.display()
    )]
    Segment {
        /// Which trace.
        trace: PathBuf,
        /// Blocks of the cache.
        size_blocks: u64,
        /// Bytes asked for.
        segment_bytes: u32,
    },
    /// A block that is none.
    #[error("a block has 4 KiB to 64 KiB, a power of two; not {0} bytes")]
    Block(u32),
    /// More distinct blocks than can be replayed.
    #[error("{}: more than {DISTINCT_MAX} distinct blocks\nhint: a larger --block", .0.display())]
    TooMany(PathBuf),
    /// Standard input cannot be kept.
    #[error(
        "standard input, which is read twice, cannot be copied to a temporary file: {0}\nhint: room for it where TMPDIR says"
    )]
    Stdin(std::io::Error),
    /// A result cannot be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Bytes written to flash, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Blocks that were not cached.
    pub fills: u64,
    /// Blocks that were, and were written by a client.
    pub overwrites: u64,
    /// Blocks written again at reclaim.
    pub copies: u64,
    /// Headers, footers and padding.
    pub headers: u64,
}

impl Written {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.fills + self.overwrites + self.copies + self.headers
    }
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
    /// Size of the cache in blocks; on the log so many blocks' worth of flash, everything included.
    pub size_blocks: u64,
    /// Blocks it may hold, of which a policy on the log holds no more.
    pub usable_blocks: u64,
    /// References to blocks.
    pub references: u64,
    /// How many were not cached.
    pub misses: u64,
    /// Of the references, those that write their block.
    pub writes: u64,
    /// Of the misses, those.
    pub write_misses: u64,
    /// Different blocks there are: fewer misses there cannot be.
    pub distinct: u64,
    /// Bytes written to flash. In place, a block for each miss and for each write.
    pub written: Written,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl Row {
    /// Whether it is the policy the cell runs.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.policy == DEFAULT_POLICY
    }
    /// Whether it runs on the log.
    #[must_use]
    pub fn is_on_log(&self) -> bool {
        self.is_default() || self.policy.ends_with(ON_LOG)
    }
    /// Misses of a million references.
    #[must_use]
    pub fn miss_ppm(&self) -> u64 {
        (self.misses * 1_000_000).checked_div(self.references).unwrap_or(0)
    }
    /// Hits of a million references.
    #[must_use]
    pub fn hit_ppm(&self) -> u64 {
        ((self.references - self.misses) * 1_000_000).checked_div(self.references).unwrap_or(0)
    }
    /// Hits of a million reads; none: nothing is read.
    #[must_use]
    pub fn read_hit_ppm(&self) -> Option<u64> {
        let reads = self.references - self.writes;
        ((reads + self.write_misses - self.misses) * 1_000_000).checked_div(reads)
    }
    /// Of so many bytes, those for a thousand bytes referenced.
    #[must_use]
    pub fn per_referenced_milli(&self, bytes: u64) -> u64 {
        let referenced = u128::from(self.references) * u128::from(self.block_bytes);
        (u128::from(bytes) * 1000).checked_div(referenced).unwrap_or(0) as u64
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
            if self.0.len() >= DISTINCT_MAX {
                return false;
            }
        }
        true
    }
}

enum Cache {
    InPlace(Box<dyn BlockCache>),
    OnLog(Box<BlocksOnLog>),
    Cell(Box<LogModel>),
}

struct Job {
    row: Row,
    cache: Cache,
    layout: Layout,
}

impl Job {
    /// None: no such policy.
    fn new(mut row: Row, layout: Layout, distinct: u32) -> Option<Job> {
        let size = |blocks: u64| u32::try_from(blocks).unwrap_or(u32::MAX);
        row.usable_blocks = layout.usable_blocks();
        let cache = if row.is_default() {
            let policy: Arc<dyn Policy> = Arc::new(AdaptiveLog::new(layout.shape.cache));
            row.usable_blocks = layout.shape.cache.blocks();
            Cache::Cell(Box::new(LogModel::new(policy, layout.shape, distinct)))
        } else if let Some(name) = row.policy.strip_suffix(ON_LOG) {
            let blocks = reference::by_name(name, size(row.usable_blocks), distinct)?;
            Cache::OnLog(Box::new(BlocksOnLog::new(blocks, layout, distinct)))
        } else {
            row.usable_blocks = row.size_blocks;
            Cache::InPlace(reference::by_name(&row.policy, size(row.size_blocks), distinct)?)
        };
        Some(Job { row, cache, layout })
    }

    fn replay(&mut self, references: &[u32]) {
        for reference in references {
            let (block, write) = (reference & !WRITES, reference & WRITES != 0);
            let hit = match &mut self.cache {
                Cache::InPlace(cache) => cache.access(block, &mut |_| ()),
                Cache::OnLog(cache) => cache.access(block, write),
                Cache::Cell(log) if write => log.write(block),
                Cache::Cell(log) => log.read(block),
            };
            self.row.misses += u64::from(!hit);
            self.row.writes += u64::from(write);
            self.row.write_misses += u64::from(!hit && write);
        }
        self.row.references += references.len() as u64;
    }

    fn finish(mut self) -> Row {
        let written = match &self.cache {
            Cache::InPlace(_) => None,
            Cache::OnLog(cache) => Some(cache.log().written()),
            Cache::Cell(log) => Some(log.written()),
        };
        let (row, layout) = (&mut self.row, self.layout);
        row.written = match written {
            Some(written) => Written {
                fills: layout.bytes_of(written.fills),
                overwrites: layout.bytes_of(written.overwrites),
                copies: layout.bytes_of(written.copies),
                headers: layout.bytes_of(written.headers),
            },
            None => Written {
                fills: row.misses * u64::from(row.block_bytes),
                overwrites: (row.writes - row.write_misses) * u64::from(row.block_bytes),
                ..Written::default()
            },
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
        let on_log = reference::NAMES.iter().map(|name| format!("{name}{ON_LOG}"));
        let in_place = reference::NAMES.iter().map(|name| (*name).to_owned());
        std::iter::once(DEFAULT_POLICY.to_owned()).chain(on_log).chain(in_place).collect()
    } else {
        options.policies.clone()
    };
    let known = |name: &String| {
        name == DEFAULT_POLICY || reference::NAMES.contains(&name.strip_suffix(ON_LOG).unwrap_or(name.as_str()))
    };
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
    let spool = if trace == Path::new(STDIN) { Some(spool()?) } else { None };
    let name = match &spool {
        Some(_) => "stdin".to_owned(),
        None => trace.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
    };
    let trace = spool.as_ref().map_or(trace, tempfile::NamedTempFile::path);
    let mut numbers = Numbers::default();
    let mut references = 0_u64;
    let mut understood = Understood::default();
    let open = || match &options.columns {
        Some(columns) => TraceReader::with_columns(trace, columns.clone()),
        None => TraceReader::open(trace, options.format),
    };
    let reader = open()?;
    let (unit, format) = (reader.unit(), reader.format());
    for request in reader {
        let request = request?;
        understood.add(&request);
        if !numbers.of(&request, unit, options.block_bytes, |_| references += 1) {
            return Err(PoliciesError::TooMany(trace.to_owned()));
        }
    }
    let distinct = numbers.0.len() as u64;
    // Talk that nobody hears changes nothing.
    let _ = writeln!(talk, "{name}: read as {format}: {}", understood.told(unit));
    let _ = writeln!(talk, "{name}: {references} references to {distinct} blocks");
    let mut jobs = Vec::new();
    for &size in &options.sizes {
        let size_blocks = size.of(distinct);
        if size_blocks == 0 {
            return Err(PoliciesError::Size { trace: trace.to_owned(), size, distinct });
        }
        let layout = match options.segment_bytes {
            None => Layout::of(size_blocks, options.block_bytes),
            Some(segment_bytes) => Layout::real(size_blocks, options.block_bytes, segment_bytes)
                .ok_or_else(|| PoliciesError::Segment { trace: trace.to_owned(), size_blocks, segment_bytes })?,
        };
        for policy in policies {
            let row = Row {
                trace: name.clone(),
                policy: policy.clone(),
                size,
                size_blocks,
                usable_blocks: 0,
                references: 0,
                misses: 0,
                writes: 0,
                write_misses: 0,
                distinct,
                written: Written::default(),
                block_bytes: options.block_bytes,
            };
            jobs.extend(Job::new(row, layout, distinct as u32));
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs.len().max(1));
    let mut shares: Vec<Vec<(usize, Job)>> = (0..workers).map(|_| Vec::new()).collect();
    jobs.into_iter().enumerate().for_each(|(i, job)| shares[i % workers].push((i, job)));
    let mut finished: Vec<(usize, Row)> = std::thread::scope(|scope| {
        let mut senders: Vec<SyncSender<Arc<[u32]>>> = Vec::new();
        let mut handles = Vec::new();
        for mut share in shares {
            let (sender, receiver) = sync_channel::<Arc<[u32]>>(BATCHES_AHEAD);
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
        for request in open()? {
            let request = request?;
            let write = if request.op == Op::Write { WRITES } else { 0 };
            numbers.of(&request, unit, options.block_bytes, |block| batch.push(block | write));
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

/// A copy of standard input, since a trace is read twice.
pub(crate) fn spool() -> Result<tempfile::NamedTempFile, PoliciesError> {
    let copy = || {
        let mut file = tempfile::NamedTempFile::new()?;
        std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
        file.flush()?;
        Ok(file)
    };
    copy().map_err(PoliciesError::Stdin)
}

fn send(senders: &[SyncSender<Arc<[u32]>>], batch: &mut Vec<u32>) {
    let shared: Arc<[u32]> = std::mem::take(batch).into();
    for sender in senders {
        // A worker that is gone has panicked, which joining it tells.
        let _ = sender.send(shared.clone());
    }
}
