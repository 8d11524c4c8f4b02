//! A session: what one client of the database does, and where its time goes.

use crate::cache::BufferCache;
use crate::page::{PageFormat, PageNumber};
use crate::pool::{Change, Found, Place, Target};
use crate::waits::{Wait, Waits};
use crate::{PageError, Sabotage};
use device::sync::lock;
use device::{Buf, Bufs};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// See the module.
pub struct Session<F: PageFormat> {
    cache: Arc<BufferCache<F>>,
    waits: Waits,
    /// Its last change.
    changed: u64,
}

/// A buffer that is being filled: free again unless it is filled.
struct Filling<'a, F: PageFormat> {
    cache: &'a BufferCache<F>,
    frame: Option<u32>,
}

impl<F: PageFormat> Filling<'_, F> {
    fn fill(mut self, page: F::Page, place: Place, is_on_flash: bool) {
        if let Some(frame) = self.frame.take() {
            let now = self.cache.world.clock.now();
            lock(&self.cache.pool).end_read(frame, page, place, is_on_flash, now);
            self.cache.came.notify_all();
        }
    }
}

impl<F: PageFormat> Drop for Filling<'_, F> {
    fn drop(&mut self) {
        if let Some(frame) = self.frame {
            lock(&self.cache.pool).abandon_read(frame);
            self.cache.came.notify_all();
            self.cache.freed.notify_all();
        }
    }
}

impl<F: PageFormat> Session<F> {
    pub(crate) fn new(cache: Arc<BufferCache<F>>) -> Session<F> {
        Session { cache, waits: Waits::default(), changed: 0 }
    }

    /// Where its time went so far.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.waits
    }

    async fn timed<T>(&mut self, wait: Wait, what: impl Future<Output = T>) -> T {
        let begun = self.cache.world.clock.now();
        let out = what.await;
        self.waits.add(wait, self.cache.world.clock.now().ns_since(begun));
        out
    }

    /// Compute for so long: for worlds in which computing takes no time by itself.
    pub async fn compute(&mut self, time: Duration) {
        let cache = self.cache.clone();
        self.timed(Wait::Cpu, cache.world.clock.sleep(time)).await;
    }

    /// A page, from memory, flash or the data file.
    ///
    /// # Errors
    /// It cannot be read, or is not what was read.
    pub async fn get(&mut self, page: PageNumber) -> Result<F::Page, PageError> {
        let cache = self.cache.clone();
        if page.0 >= cache.pages() {
            return Err(PageError::Range(page));
        }
        cache.counters.gets.fetch_add(1, Ordering::Relaxed);
        loop {
            let (came, freed) = (cache.came.ticket(), cache.freed.ticket());
            let frame = {
                let mut pool = lock(&cache.pool);
                match pool.touch(page, cache.world.clock.now()) {
                    Found::Here(page) => return Ok(page),
                    Found::Coming => None,
                    Found::Absent => Some(pool.begin_read(page)),
                }
            };
            match frame {
                None => self.timed(Wait::DbFileRead, cache.came.wait(came)).await,
                Some(None) => {
                    cache.work.notify_all();
                    self.timed(Wait::FreeBuffer, cache.freed.wait(freed)).await;
                }
                Some(Some((frame, evicted))) => {
                    let filling = Filling { cache: &cache, frame: Some(frame) };
                    if let (Some(evicted), Some(flash)) = (evicted, &cache.flash)
                        && !evicted.offered
                    {
                        flash.overloaded();
                    }
                    // What moves at the cold end is the writer's business.
                    cache.work.notify_all();
                    let (content, is_on_flash) = self.fetch(&cache, page).await?;
                    filling.fill(content.clone(), Place::Midpoint, is_on_flash);
                    return Ok(content);
                }
            }
        }
    }

    /// Read a page that is not in memory; whether it came from flash.
    async fn fetch(&mut self, cache: &BufferCache<F>, page: PageNumber) -> Result<(F::Page, bool), PageError> {
        let bytes = cache.format.page_bytes();
        if let Some(flash) = &cache.flash
            && let Some(reading) = flash.read(page)
        {
            let read = flash.device().read(reading.offset(), Buf::zeroed(bytes).into());
            let done = self.timed(Wait::FlashCacheRead, read).await;
            let content = done.outcome.ok().ok().and_then(|()| cache.format.unpack(page, done.bufs.view(0..bytes)));
            drop(reading);
            match content {
                Some(content) => return Ok((content, true)),
                // It was clean: the data file has it.
                None => flash.damaged(page),
            }
        }
        let read = cache.data.read(cache.offset(page), Buf::zeroed(bytes).into());
        let done = self.timed(Wait::DbFileRead, read).await;
        done.outcome.ok().map_err(|kind| PageError::Io { page, kind })?;
        cache.counters.reads.fetch_add(1, Ordering::Relaxed);
        cache.counters.read_calls.fetch_add(1, Ordering::Relaxed);
        let content = cache.format.unpack(page, done.bufs.view(0..bytes)).ok_or(PageError::Foreign(page))?;
        Ok((content, false))
    }

    /// Change a page.
    ///
    /// # Errors
    /// As [`Session::get`].
    pub async fn change(&mut self, page: PageNumber, edit: impl Fn(&mut F::Page)) -> Result<(), PageError> {
        let cache = self.cache.clone();
        loop {
            self.get(page).await?;
            let freed = cache.freed.ticket();
            let mut number = 0;
            let change = {
                let mut pool = lock(&cache.pool);
                let change = pool.change(
                    page,
                    || {
                        number = cache.next_change();
                        number
                    },
                    &edit,
                );
                if change == Change::Done
                    && let Some(flash) = &cache.flash
                    && cache.config.sabotage != Some(Sabotage::StaleFlash)
                {
                    flash.invalidate(page);
                }
                change
            };
            match change {
                Change::Done => {
                    self.changed = number;
                    if cache.config.checkpoint_changes.is_some_and(|age| number.is_multiple_of((age / 16).max(1))) {
                        cache.work.notify_all();
                    }
                    return Ok(());
                }
                Change::Busy(Target::DataFile) => self.timed(Wait::WriteComplete, cache.freed.wait(freed)).await,
                Change::Busy(Target::Flash) => self.timed(Wait::WriteCompleteFlash, cache.freed.wait(freed)).await,
                // It left again between the two.
                Change::Absent => {}
            }
        }
    }

    /// Make this session's changes durable.
    ///
    /// # Errors
    /// Redo cannot be written.
    pub async fn commit(&mut self) -> Result<(), PageError> {
        let cache = self.cache.clone();
        let Some(redo) = &cache.redo else { return Ok(()) };
        let forced = self.timed(Wait::LogFileSync, redo.force(self.changed)).await;
        forced.map_err(PageError::Redo)
    }

    /// Read pages in order, many with one request; `each` sees every one. What is not in memory goes to the cold end, so that a scan pushes
    /// out nothing but what it has read itself. It never reads from the flash cache: that holds single blocks.
    ///
    /// # Errors
    /// As [`Session::get`].
    pub async fn scan(
        &mut self,
        pages: Range<u64>,
        mut each: impl FnMut(PageNumber, &F::Page),
    ) -> Result<(), PageError> {
        let cache = self.cache.clone();
        let page_bytes = cache.format.page_bytes();
        let mut at = pages.start;
        while at < pages.end {
            let end = (at + cache.config.scan_pages as u64).min(pages.end);
            if end > cache.pages() {
                return Err(PageError::Range(PageNumber(end - 1)));
            }
            let (came, freed) = (cache.came.ticket(), cache.freed.ticket());
            // A run of pages that are not here, each with its buffer.
            let mut run: Vec<Filling<'_, F>> = Vec::new();
            let (mut is_coming, mut is_full, mut here) = (false, false, 0);
            {
                let mut pool = lock(&cache.pool);
                for number in at..end {
                    match pool.peek(PageNumber(number)) {
                        Found::Here(page) if run.is_empty() => {
                            each(PageNumber(number), &page);
                            here += 1;
                        }
                        Found::Here(_) => break,
                        Found::Coming => {
                            is_coming = true;
                            break;
                        }
                        Found::Absent => {
                            let Some((frame, _)) = pool.begin_read(PageNumber(number)) else {
                                is_full = true;
                                break;
                            };
                            run.push(Filling { cache: &cache, frame: Some(frame) });
                        }
                    }
                }
            }
            at += here;
            if run.is_empty() {
                if is_coming {
                    self.timed(Wait::DbFileRead, cache.came.wait(came)).await;
                } else if is_full {
                    cache.work.notify_all();
                    self.timed(Wait::FreeBuffer, cache.freed.wait(freed)).await;
                }
                continue;
            }
            let first = PageNumber(at);
            let read = cache.data.read(cache.offset(first), Bufs::from(Buf::zeroed(run.len() * page_bytes)));
            let done = self.timed(Wait::DbFileRead, read).await;
            done.outcome.ok().map_err(|kind| PageError::Io { page: first, kind })?;
            cache.counters.reads.fetch_add(run.len() as u64, Ordering::Relaxed);
            cache.counters.read_calls.fetch_add(1, Ordering::Relaxed);
            for (n, filling) in run.into_iter().enumerate() {
                let number = PageNumber(first.0 + n as u64);
                let bytes = done.bufs.view(n * page_bytes..(n + 1) * page_bytes);
                let page = cache.format.unpack(number, bytes).ok_or(PageError::Foreign(number))?;
                each(number, &page);
                filling.fill(page, Place::ColdEnd, true);
                at += 1;
            }
        }
        Ok(())
    }
}

impl<F: PageFormat> std::fmt::Debug for Session<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.waits)
    }
}
