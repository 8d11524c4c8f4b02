//! The buffer cache put together: buffers, data file, redo, flash cache.
//!
//! This file holds what sessions and the writer share; [`crate::session`] is what a client of the database does, [`crate::writer`] what the
//! database writer does.

use crate::Sabotage;
use crate::flash::{FlashCache, FlashFigures};
use crate::object::Objects;
use crate::page::{PageFormat, PageNumber};
use crate::pool::{Pool, Rules};
use crate::redo::RedoLog;
use crate::session::Session;
use device::sync::{Flag, Notify, lock};
use device::{Device, World};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How it works. The defaults are the vendor's where it has one.
#[derive(Clone, Debug)]
pub struct Config {
    /// Buffers.
    pub frames: usize,
    /// Share of them in the hot half.
    pub hot_percent: usize,
    /// Touches that make a buffer hot when the search for a free one comes to it.
    pub hot_touches: u32,
    /// Touches within this time count once.
    pub touch_every: Duration,
    /// Share of the buffers that search looks at before it waits for the writer.
    pub search_percent: usize,
    /// Clean buffers the writer wants at the cold end.
    pub free_target: usize,
    /// Pages the writer writes at once.
    pub batch_max: usize,
    /// Pages it writes to flash at once, when nothing else is to be done.
    pub feed_max: usize,
    /// How many buffers from the cold end on it looks at for pages that flash does not have.
    pub feed_window: usize,
    /// A page is written when so many changes were made since its first one (the incremental checkpoint); none: only when it stands in the
    /// way, or at a full checkpoint.
    pub checkpoint_changes: Option<u64>,
    /// Pages a scan reads at once.
    pub scan_pages: usize,
    /// Redo of a change.
    pub redo_bytes: u64,
    /// Objects by page range: the flash cache keeps, takes or refuses their pages.
    pub objects: Objects,
    /// Deliberate fault, for the tests.
    pub sabotage: Option<Sabotage>,
}

impl Config {
    /// That many buffers, and everything else by their number.
    #[must_use]
    pub fn new(frames: usize) -> Config {
        Config {
            frames,
            hot_percent: 50,
            hot_touches: 2,
            touch_every: Duration::from_secs(3),
            search_percent: 40,
            free_target: (frames / 16).clamp(1, 256),
            batch_max: 64,
            feed_max: 16,
            feed_window: (frames / 4).clamp(1, 256),
            checkpoint_changes: None,
            scan_pages: (frames / 8).clamp(1, 128),
            redo_bytes: 512,
            objects: Objects::new(),
            sabotage: None,
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            hot_percent: self.hot_percent,
            hot_touches: self.hot_touches,
            cool_touches: 1,
            touch_ns: u64::try_from(self.touch_every.as_nanos()).unwrap_or(u64::MAX),
            search_percent: self.search_percent,
        }
    }
}

/// The parts a buffer cache is made of.
pub struct CacheParts<F> {
    /// How pages look.
    pub format: F,
    /// The data file: page 0 is at its beginning.
    pub data: Device,
    /// Redo; without it commits are free, and nothing is durable.
    pub redo: Option<RedoLog>,
    /// The database flash cache, if there is one.
    pub flash: Option<FlashCache>,
    /// Time and tasks.
    pub world: World,
}

/// Counted since the start.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) gets: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_calls: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) feed_batches: AtomicU64,
    pub(crate) unwritten_redo: AtomicU64,
}

/// [`Counters`] and the state at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Pages asked for one at a time.
    pub gets: u64,
    /// Pages read from the data file.
    pub reads: u64,
    /// In so many requests.
    pub read_calls: u64,
    /// Pages written to the data file.
    pub writes: u64,
    /// In so many batches.
    pub batches: u64,
    /// Batches written to flash.
    pub feed_batches: u64,
    /// Pages that were written before their redo was durable: 0, always.
    pub unwritten_redo: u64,
    /// Dirty buffers now.
    pub dirty: usize,
    /// Of the flash cache.
    pub flash: Option<FlashFigures>,
}

/// See the module.
pub struct BufferCache<F: PageFormat> {
    pub(crate) config: Config,
    pub(crate) format: F,
    pub(crate) data: Device,
    pub(crate) redo: Option<RedoLog>,
    pub(crate) flash: Option<FlashCache>,
    pub(crate) world: World,
    pub(crate) pool: Mutex<Pool<F::Page>>,
    /// Buffers may be reused that could not be before, or may be changed.
    pub(crate) freed: Notify,
    /// Pages were read.
    pub(crate) came: Notify,
    /// The writer has something to do.
    pub(crate) work: Notify,
    /// Everything changed up to here is to be written.
    pub(crate) checkpoint: AtomicU64,
    pub(crate) is_stopping: AtomicBool,
    pub(crate) is_stopped: Flag,
    /// The data file refused a write: what is dirty stays dirty.
    pub(crate) write_failed: AtomicBool,
    pub(crate) counters: Counters,
    /// Changes, where there is no redo to number them.
    changes: AtomicU64,
}

impl<F: PageFormat> BufferCache<F> {
    /// An empty cache with its writer at work.
    ///
    /// # Panics
    /// When the configuration has no buffers, or scans could take all of them.
    #[must_use]
    pub fn start(config: Config, parts: CacheParts<F>) -> Arc<BufferCache<F>> {
        let fits = config.frames > config.scan_pages && config.frames < u32::MAX as usize;
        assert!(fits && config.scan_pages > 0 && config.batch_max > 0, "a cache has room for more than one scan");
        let CacheParts { format, data, redo, flash, world } = parts;
        let cache = Arc::new(BufferCache {
            pool: Mutex::new(Pool::new(config.frames, config.rules(), config.sabotage)),
            config,
            format,
            data,
            redo,
            flash,
            world,
            freed: Notify::new(),
            came: Notify::new(),
            work: Notify::new(),
            checkpoint: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            is_stopped: Flag::default(),
            write_failed: AtomicBool::new(false),
            counters: Counters::default(),
            changes: AtomicU64::new(0),
        });
        let writer = cache.clone().write_for_ever();
        cache.world.spawn.spawn(Box::pin(writer));
        cache
    }

    /// A session of a client.
    #[must_use]
    pub fn session(self: &Arc<Self>) -> Session<F> {
        Session::new(self.clone())
    }

    /// Write everything that is dirty now and make it durable. False when the data file refuses.
    pub async fn checkpoint(&self) -> bool {
        let upto = self.last_change();
        self.checkpoint.fetch_max(upto, Ordering::SeqCst);
        self.work.notify_all();
        loop {
            let ticket = self.freed.ticket();
            if self.write_failed.load(Ordering::SeqCst) || self.is_stopped.is_set() {
                return false;
            }
            if lock(&self.pool).oldest_change().is_none_or(|oldest| oldest > upto) {
                break;
            }
            self.freed.wait(ticket).await;
        }
        self.data.flush().await.outcome.ok().is_ok()
    }

    /// End the writer; what is dirty stays so. A clean stop is a checkpoint before.
    pub async fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.work.notify_all();
        self.is_stopped.until(true).await;
        self.freed.notify_all();
    }

    /// The flash cache.
    #[must_use]
    pub fn flash(&self) -> Option<&FlashCache> {
        self.flash.as_ref()
    }

    /// Counters of the buffer cache since it was made.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        Figures {
            gets: of(&counters.gets),
            reads: of(&counters.reads),
            read_calls: of(&counters.read_calls),
            writes: of(&counters.writes),
            batches: of(&counters.batches),
            feed_batches: of(&counters.feed_batches),
            unwritten_redo: of(&counters.unwritten_redo),
            dirty: lock(&self.pool).dirty(),
            flash: self.flash.as_ref().map(FlashCache::figures),
        }
    }

    pub(crate) fn offset(&self, page: PageNumber) -> u64 {
        page.0 * self.format.page_bytes() as u64
    }

    /// Pages of the data file.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.data.geometry().size_bytes / self.format.page_bytes() as u64
    }

    pub(crate) fn next_change(&self) -> u64 {
        match &self.redo {
            Some(redo) => redo.append(self.config.redo_bytes),
            None => self.changes.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    pub(crate) fn last_change(&self) -> u64 {
        self.redo.as_ref().map_or_else(|| self.changes.load(Ordering::Relaxed), RedoLog::last)
    }
}

impl<F: PageFormat> std::fmt::Debug for BufferCache<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferCache({:?})", self.figures())
    }
}
