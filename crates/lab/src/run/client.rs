//! The database of the experiments and its client, in either world: a session over a buffer cache.
//!
//! Every page that is read is held against the version it must have.

use super::database::{Load, PAGE_BYTES, Pass, Setup};
use crate::model::Modelled;
use crate::model::flash::Flash;
use buffercache::{
    BufferCache, CacheParts, Config, Figures, FlashCache, PageError, PageNumber, RedoLog, Session, Stamped, Version,
    Wait, Waits,
};
use device::{Device, Prng, World};
use std::sync::Arc;
use std::time::Duration;

/// The drive of its own that redo is written to, round and round.
const REDO_BYTES: u64 = 256 << 20;

/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum PassError {
    /// It cannot be read or written, or is no page of the database.
    #[error(transparent)]
    Page(#[from] PageError),
    /// What was read is another version than the one that was written last.
    #[error("page {}: version {found} instead of {expected}", page.0)]
    Version {
        /// Which.
        page: PageNumber,
        /// Its version.
        found: u64,
        /// What it must be.
        expected: u32,
    },
}

/// The client of the database.
struct Client {
    session: Session<Stamped>,
    load: Load,
    cpu: Duration,
    prng: Prng,
    checked: Checked,
}

/// What was read, held against what it must be.
struct Checked {
    /// The version each page has; 0: nobody has asked for it.
    versions: Vec<u32>,
    first: u64,
    verified: u64,
    /// The first page that was something else.
    wrong: Option<PassError>,
}

impl Checked {
    fn check(&mut self, page: PageNumber, found: Version) {
        let version = &mut self.versions[page.0 as usize];
        if *version == 0 {
            *version = 1;
            self.first += 1;
        }
        self.verified += 1;
        if found.0 != u64::from(*version) && self.wrong.is_none() {
            self.wrong = Some(PassError::Version { page, found: found.0, expected: *version });
        }
    }

    fn result(&mut self) -> Result<(), PassError> {
        self.wrong.take().map_or(Ok(()), Err)
    }
}

impl Client {
    async fn get(&mut self, page: PageNumber) -> Result<(), PassError> {
        let found = self.session.get(page).await?;
        self.checked.check(page, found);
        self.checked.result()
    }

    async fn pass(&mut self, operations: u64) -> Result<(), PassError> {
        match self.load {
            Load::Scan(pages) => {
                // In pieces: the processor's work comes between two reads.
                let piece = 128;
                for from in (0..pages).step_by(piece as usize) {
                    let end = (from + piece).min(pages);
                    let Client { session, checked, .. } = self;
                    session.scan(from..end, |page, found| checked.check(page, *found)).await?;
                    checked.result()?;
                    session.compute(self.cpu * u32::try_from(end - from).unwrap_or(u32::MAX)).await;
                }
            }
            Load::Reads(keys) | Load::Updates(keys) => {
                for _ in 0..operations {
                    let key = self.prng.below(keys.count);
                    self.session.compute(self.cpu).await;
                    self.get(keys.leaf(key)).await?;
                    let row = keys.row(key);
                    self.get(row).await?;
                    if matches!(self.load, Load::Updates(_)) {
                        self.session.change(row, |version| version.0 += 1).await?;
                        self.checked.versions[row.0 as usize] += 1;
                        self.session.commit().await?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A database that runs: its buffer cache and its client.
pub(super) struct Database {
    cache: Arc<BufferCache<Stamped>>,
    client: Client,
    world: World,
}

impl Database {
    /// On `data`, which holds the first version of every page; with the database's own flash cache, if it has one.
    pub(super) fn start(setup: &Setup, data: Device, flash: Option<FlashCache>, prng: Prng, world: &World) -> Database {
        let redo = Modelled::new(Flash::new(setup.under.machine.redo, world), REDO_BYTES, false);
        let frames = setup.frames.saturating_sub((setup.header_bytes() / PAGE_BYTES) as usize).max(16);
        let parts = CacheParts {
            format: Stamped::new(PAGE_BYTES as usize),
            data,
            redo: Some(RedoLog::new(redo.device())),
            flash,
            world: world.clone(),
        };
        let config = Config::new(frames);
        let config = Config { scan_pages: setup.scan_pages.min(config.scan_pages), ..config };
        let cache = BufferCache::start(config, parts);
        let client = Client {
            session: cache.session(),
            load: setup.load,
            cpu: Duration::from_nanos(setup.cpu_ns),
            prng,
            checked: Checked { versions: vec![0; setup.load.pages() as usize], first: 0, verified: 0, wrong: None },
        };
        Database { cache, client, world: world.clone() }
    }

    fn hits(&self) -> u64 {
        self.cache.flash().map_or(0, |flash| flash.figures().hits)
    }

    /// Do so much; what came of it, but for what is counted beneath the database.
    ///
    /// # Errors
    /// See [`PassError`].
    pub(super) async fn pass(&mut self, operations: u64) -> Result<Pass, PassError> {
        let before = (self.client.session.waits(), self.cache.figures(), self.hits());
        (self.client.checked.first, self.client.checked.verified) = (0, 0);
        let begun = self.world.clock.now();
        self.client.pass(operations).await?;
        let elapsed_ns = self.world.clock.now().ns_since(begun);
        let after = self.cache.figures();
        let mut waits = Waits::default();
        Wait::ALL.iter().for_each(|w| waits.add(*w, self.client.session.waits().ns(*w) - before.0.ns(*w)));
        let missed = |f: &Figures| f.reads + f.flash.map_or(0, |flash| flash.hits);
        Ok(Pass {
            elapsed_ns,
            waits,
            missed: missed(&after) - missed(&before.1),
            hits: self.hits() - before.2,
            first: self.client.checked.first,
            verified: self.client.checked.verified,
            written: after.writes - before.1.writes,
            ..Pass::default()
        })
    }

    /// Its writer ends.
    pub(super) async fn stop(self) {
        self.cache.stop().await;
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a page that is not what it must be ends a pass with its number. Method: a device whose pages were never written, and one where
    //! somebody else has written one again.
    use super::*;
    use crate::model::Instantly;
    use crate::run::RunOptions;
    use crate::run::database::{Keys, Storage};
    use crate::run::machine::{DUAL_CORE, Under};
    use buffercache::page::{PART_BYTES, Stamp};
    use device::{Buf, Bufs};
    use sim::executor::{Executor, ExecutorConfig};
    use sim::plain::process_of;

    fn said(spoil: bool) -> String {
        let executor = Executor::new(ExecutorConfig::plain(1));
        let (_process, world) = process_of(&executor);
        let keys = Keys { count: 100, row_pages: 8, leaf_pages: 2, scattered: false };
        let setup = Setup {
            seed: 1,
            under: Under::new(&DUAL_CORE, &RunOptions::default()),
            storage: Storage::Disk,
            load: Load::Reads(keys),
            operations: 200,
            later_operations: 200,
            passes: 1,
            cpu_ns: 1_000,
            scan_pages: 16,
            frames: 64,
            flash_bytes: 1 << 20,
        };
        let done = executor.run(async {
            let content = Modelled::new(Arc::new(Instantly), keys.pages() * PAGE_BYTES, true);
            if spoil {
                content.fill(0, keys.pages() * PAGE_BYTES);
                let mut page = vec![0; PAGE_BYTES as usize];
                for (n, part) in page.chunks_exact_mut(PART_BYTES).enumerate() {
                    let first = 3 * PAGE_BYTES as usize / PART_BYTES;
                    Stamp { part: (first + n) as u64, version: Version(7) }.fill(part);
                }
                content.device().write(3 * PAGE_BYTES, Bufs::from(Buf::padded(&page, 512)).freeze(), false).await;
            }
            let prng = world.prng.fork("keys");
            let mut database = Database::start(&setup, content.device(), None, prng, &world);
            database.pass(setup.operations).await.map_or_else(|error| error.to_string(), |_| String::new())
        });
        done.unwrap_or_else(|stuck| unreachable!("{stuck}"))
    }

    #[test]
    fn a_wrong_page_ends_a_pass() {
        assert_eq!(said(true), "page 3: version 7 instead of 1");
        assert!(said(false).contains("page"), "{}", said(false));
    }
}
