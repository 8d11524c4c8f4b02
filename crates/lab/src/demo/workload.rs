//! What the sessions do: load, indexed reads, updates, scan; and which keys they choose.
//!
//! Keys follow Zipf's law (the k-th most wanted block is asked for 1/k as often as the first), as accesses to tables of
//! real databases roughly do; the ranks are scattered over the table. All integers, so every machine draws the same.

use super::table::{BLOCK_BYTES, Table, WrongBlock};
use super::{PhaseError, SESSIONS};
use device::sync::Semaphore;
use device::{Buf, Bufs, Prng, SharedBufs};
use futures_util::future::try_join_all;
use nbd::client::Client;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Blocks of one large request: 1 MiB.
const LARGE_BLOCKS: u32 = (1 << 20) / BLOCK_BYTES as u32;
/// Large requests under way in a load or scan, as a database reads ahead.
const LARGE_DEPTH: usize = 4;
/// Locks of rows, shared by block number: many more than sessions, so that two rarely meet by accident.
const LOCKS: usize = 1024;
/// The weight of the most wanted block; the k-th has this divided by k.
const WEIGHT: u64 = 1 << 40;

/// Draws keys.
pub(super) struct Keys {
    /// Cumulated weights by rank.
    sums: Vec<u64>,
    /// Block of each rank.
    blocks: Vec<u32>,
    prng: Prng,
}

impl Keys {
    /// Keys over `blocks` blocks.
    #[must_use]
    pub(super) fn new(seed: u64, blocks: u32) -> Keys {
        let prng = Prng::new(seed);
        let mut order: Vec<u32> = (0..blocks).collect();
        let mut shuffle = prng.fork("places");
        for at in (1..order.len()).rev() {
            order.swap(at, shuffle.below(at as u64 + 1) as usize);
        }
        let mut sum = 0;
        let weights = (1..=u64::from(blocks)).map(|rank| {
            sum += WEIGHT / rank;
            sum
        });
        Keys { sums: weights.collect(), blocks: order, prng }
    }

    /// `count` keys; the same purpose gives the same ones.
    #[must_use]
    pub(super) fn draw(&self, purpose: &str, count: usize) -> Vec<u32> {
        let mut prng = self.prng.fork(purpose);
        let all = self.sums.last().copied().unwrap_or(1);
        (0..count)
            .map(|_| {
                let at = prng.below(all);
                self.blocks[self.sums.partition_point(|sum| *sum <= at)]
            })
            .collect()
    }
}

/// What a phase has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// Blocks read whose content was checked.
    pub(super) verified_blocks: u64,
    /// Time waited for the flushes between.
    pub(super) flushes: Duration,
}

/// One thing done by all sessions together.
pub(super) enum Phase {
    /// Write the whole table, then flush.
    Load,
    /// Read these blocks.
    Reads(Vec<u32>),
    /// Read, change and write these blocks, then flush.
    Updates(Vec<u32>),
    /// Read these blocks, change and write every other one, then flush.
    Mixed(Vec<u32>),
    /// Write so many blocks of redo one after the other, each durable before the next.
    Commits(usize),
    /// Read the whole table in order.
    Scan,
}

impl Phase {
    /// How many steps it takes, for the bar.
    #[must_use]
    pub(super) fn steps(&self, table: &Table) -> usize {
        match self {
            Phase::Load | Phase::Scan => table.blocks() as usize,
            Phase::Reads(keys) | Phase::Updates(keys) | Phase::Mixed(keys) => keys.len(),
            Phase::Commits(count) => *count,
        }
    }

    /// How many sessions work at the same time.
    #[must_use]
    pub(super) fn sessions(&self) -> usize {
        match self {
            Phase::Load | Phase::Scan => LARGE_DEPTH,
            Phase::Reads(_) | Phase::Updates(_) | Phase::Mixed(_) => SESSIONS,
            // A database has one log writer.
            Phase::Commits(_) => 1,
        }
    }

    /// Do it, without the flush at the end. `progress` hears of steps done.
    pub(super) async fn run(
        &self,
        client: &Client,
        table: &Table,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Done, PhaseError> {
        let next = AtomicUsize::new(0);
        let sessions = 0..self.sessions();
        let mut done = Done::default();
        match self {
            Phase::Load => {
                try_join_all(sessions.map(|_| load(client, table, &next, progress))).await?;
            }
            Phase::Scan => {
                let verified = try_join_all(sessions.map(|_| scan(client, table, &next, progress))).await?;
                done.verified_blocks = verified.iter().sum();
            }
            Phase::Reads(keys) => {
                try_join_all(sessions.map(|_| read_keys(client, table, keys, &next, progress))).await?;
                done.verified_blocks = keys.len() as u64;
            }
            Phase::Updates(keys) | Phase::Mixed(keys) => {
                let every = if matches!(self, Phase::Mixed(_)) { 2 } else { 1 };
                let locks: Vec<Semaphore> = (0..LOCKS).map(|_| Semaphore::new(1)).collect();
                let work = |_| update_keys(client, table, (keys, every), &locks, &next, progress);
                try_join_all(sessions.map(work)).await?;
                done.verified_blocks = keys.len() as u64;
            }
            Phase::Commits(count) => done.flushes = commit(client, table, *count, progress).await?,
        }
        Ok(done)
    }

    /// Whether it ends with a flush.
    pub(super) fn writes(&self) -> bool {
        matches!(self, Phase::Load | Phase::Updates(_) | Phase::Mixed(_) | Phase::Commits(_))
    }
}

/// The next large stretch of blocks.
fn stretch(table: &Table, next: &AtomicUsize) -> Option<std::ops::Range<u32>> {
    let first = next.fetch_add(1, Ordering::Relaxed) as u64 * u64::from(LARGE_BLOCKS);
    let first = u32::try_from(first).ok().filter(|first| *first < table.blocks())?;
    Some(first..table.blocks().min(first + LARGE_BLOCKS))
}

fn one(buf: Buf) -> Bufs {
    let mut bufs = Bufs::new();
    bufs.push(buf);
    bufs
}

fn shared(buf: Buf) -> SharedBufs {
    one(buf).freeze()
}

async fn load(
    client: &Client,
    table: &Table,
    next: &AtomicUsize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), PhaseError> {
    while let Some(blocks) = stretch(table, next) {
        let mut buf = Buf::zeroed(blocks.len() * BLOCK_BYTES);
        for (block, bytes) in blocks.clone().zip(buf.chunks_mut(BLOCK_BYTES)) {
            table.fill(block, table.version(block), bytes);
        }
        client.write(Table::offset(blocks.start), shared(buf), false).await?;
        progress(blocks.len() as u64);
    }
    Ok(())
}

async fn scan(
    client: &Client,
    table: &Table,
    next: &AtomicUsize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64, PhaseError> {
    let mut verified = 0;
    while let Some(blocks) = stretch(table, next) {
        let bufs = one(Buf::zeroed(blocks.len() * BLOCK_BYTES));
        let (read, bufs) = client.read(Table::offset(blocks.start), bufs).await;
        read?;
        verify_all(table, blocks.clone(), &bufs)?;
        verified += blocks.len() as u64;
        progress(blocks.len() as u64);
    }
    Ok(verified)
}

fn verify_all(table: &Table, blocks: std::ops::Range<u32>, bufs: &Bufs) -> Result<(), WrongBlock> {
    for (index, block) in blocks.enumerate() {
        let start = index * BLOCK_BYTES;
        let bytes = bufs.to_vec(start..start + BLOCK_BYTES);
        table.verify(block, table.version(block), &bytes)?;
    }
    Ok(())
}

async fn read_keys(
    client: &Client,
    table: &Table,
    keys: &[u32],
    next: &AtomicUsize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), PhaseError> {
    let mut bufs = one(Buf::zeroed(BLOCK_BYTES));
    while let Some(block) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
        let read;
        (read, bufs) = client.read(Table::offset(*block), bufs).await;
        read?;
        verify_all(table, *block..*block + 1, &bufs)?;
        progress(1);
    }
    Ok(())
}

/// The log writer: the next block of redo, again from the first after the last, and a flush. How long the flushes took.
async fn commit(
    client: &Client,
    table: &Table,
    count: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Duration, PhaseError> {
    let mut flushes = Duration::ZERO;
    for block in (0..table.blocks()).cycle().take(count) {
        let version = table.version(block) + 1;
        client.write(Table::offset(block), shared(table.block(block, version)), false).await?;
        let began = Instant::now();
        client.flush().await?;
        flushes += began.elapsed();
        table.wrote(block, version);
        progress(1);
    }
    Ok(flushes)
}

/// One session: lock the row, read its block, check it, write the next version if this is one of `every` so many, unlock.
async fn update_keys(
    client: &Client,
    table: &Table,
    (keys, every): (&[u32], usize),
    locks: &[Semaphore],
    next: &AtomicUsize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), PhaseError> {
    let mut bufs = one(Buf::zeroed(BLOCK_BYTES));
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some(block) = keys.get(at) else { return Ok(()) };
        let _row = locks[*block as usize % locks.len()].acquire(1).await;
        let read;
        (read, bufs) = client.read(Table::offset(*block), bufs).await;
        read?;
        verify_all(table, *block..*block + 1, &bufs)?;
        if at.is_multiple_of(every) {
            let version = table.version(*block) + 1;
            client.write(Table::offset(*block), shared(table.block(*block, version)), false).await?;
            table.wrote(*block, version);
        }
        progress(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_zipf_and_are_scattered() {
        let keys = Keys::new(1, 1000);
        let drawn = keys.draw("a", 100_000);
        assert_eq!(drawn, keys.draw("a", 100_000), "the same purpose gives the same keys");
        assert_ne!(drawn[..100], keys.draw("b", 100)[..]);
        let mut counts = vec![0_u32; 1000];
        drawn.iter().for_each(|block| counts[*block as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The harmonic number of 1000 is 7.485: the first block gets 13.4 %, the first hundred 69.3 %.
        assert!((13_000..13_800).contains(&counts[0]), "{}", counts[0]);
        let hundred: u32 = counts[..100].iter().sum();
        assert!((68_500..70_500).contains(&hundred), "{hundred}");
        let hottest = keys.blocks[..10].iter().filter(|block| **block < 100).count();
        assert!(hottest < 5, "the hot blocks are not all at the start");
    }

    #[test]
    fn every_key_is_a_block() {
        let keys = Keys::new(1, 3);
        assert!(keys.draw("x", 1000).iter().all(|block| *block < 3));
        assert!((0..3).all(|block| keys.draw("x", 1000).contains(&block)));
    }
}
