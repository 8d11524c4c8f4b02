//! Checkers beside the model, and the situations that only counters and labels tell.
//!
//! - I7: a request to a disk that is well ends within [`PATIENCE`]; a write begun after a flash device was given up is
//!   acknowledged only when the label of its disk says so.
//! - I8: indexes and arenas stay within what was announced.
//! - I3, I5: an opening never fails for flash alone, and what it says of flash is counted.

use super::book::{Book, Request};
use super::plan::Verb;
use super::stage::{Life, Run};
use cell::BatchStage;
use cell::{Cell, GridDisk, OpenReport};
use celldisk::{DeviceId, FlashState, GridDiskId};
use device::Instant;
use device::sync::lock;
use flashcache::Evidence;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long a request may take beyond the hard limit of flash while its disk is well: a disk of the harness needs 400 ms
/// for its slowest request, and a request may wait for some of others'.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often ages are looked at.
const ROUND: Duration = Duration::from_secs(5);

/// What the checkers remember.
#[derive(Default)]
pub(super) struct Watch {
    /// When members of a flash cache were first seen to have failed, by life, cache and place.
    failed_since: BTreeMap<(u64, u128, u128), Instant>,
    /// Hits seen in finished lives.
    pub(super) hits: u64,
    /// Cell disks of which a grid disk was offline when this life began: what flash that was gone by then held of the others
    /// is void, and of those when they go on.
    waited: BTreeSet<DeviceId>,
}

/// Situations counted from counters of the flash cache, by name there.
const FLASH_ROWS: &[(&str, &str)] = &[
    ("fills", "fill after a miss"),
    ("write_fills", "fill by a write"),
    ("fill_skips_space", "fill refused: no free segment"),
    ("fill_skips_buffer", "fill refused: no free buffer"),
    ("fill_skips_slow", "fill refused: a request to flash is late"),
    ("fill_skips_index", "fill refused: index full"),
    ("fill_skips_endurance", "fill refused: endurance budget low"),
    ("overwrite_skips_endurance", "overwrite not cached: endurance budget low, nobody reads the block"),
    ("fill_skips_quota", "fill refused: the database has its part of the cache"),
    ("dirty_skips_quota", "write-back refused: the database has its part of the cache"),
    ("quota_evictions", "block left since its database has its part of the cache"),
    ("quota_moves", "block written again since its database is guaranteed a part of the cache"),
    ("move_skips_endurance", "block not written again at reclaim: endurance budget low or empty"),
    ("evictions", "block evicted"),
    ("moves", "block written again at reclaim"),
    ("cleans", "segment cleaned for its garbage"),
    ("dirty_copies", "dirty part copied by cleaning"),
    ("invalidations", "cached copy ended by a write"),
    ("rot_parts", "rot caught by a checksum"),
    ("revalidated_good", "suspect block compared: good"),
    ("revalidated_stale", "suspect block compared: stale"),
    ("settles", "region settled"),
    ("reclaims", "segment reclaimed"),
    ("ghost_hits", "ghost hit: a block comes back soon after it left"),
    ("reader_waits", "reuse of a segment waited for its reader"),
    ("keep_fills", "fill of KEEP data"),
    ("keep_skips_share", "KEEP data goes with others: its share is full"),
    ("keep_aged", "KEEP data unused for long ages"),
    ("keep_released", "KEEP data is none any more"),
    ("keep_moves", "KEEP data written again at reclaim"),
    ("keep_adopted", "segment joins the KEEP data as it is"),
    ("keep_cleans", "room made among KEEP data"),
    ("keep_overwrites", "KEEP data left for want of room"),
    ("none_frees", "block of a NONE range freed"),
    ("dirty_writes", "part written dirty"),
    ("dirty_overwrites", "dirty part overwritten before it was destaged"),
    ("mirror_reads", "dirty part read from its mirror"),
    ("dirty_skips_space", "write-back refused: no room"),
    ("destages", "dirty part destaged"),
    ("dirty_recovered", "dirty part found again after a restart"),
    ("dirty_torn", "dirty part torn by a power cut"),
];

impl Run {
    /// Look at what is under way now and then, until the run is over.
    pub(super) async fn watchdog(self: Arc<Self>) {
        loop {
            self.sleep(ROUND).await;
            if lock(&self.turns).over || self.broken() {
                return;
            }
            self.check_ages();
            if let Some(life) = self.life() {
                self.check_tally(&life.cell);
                self.check_well(&life.cell);
            }
        }
    }

    /// Flash that nothing has befallen in the whole run has not failed.
    fn check_well(&self, cell: &Arc<Cell>) {
        let is_hurt = {
            let book = lock(&self.book);
            book.flash_hurt || !book.hurt_flashes.is_empty()
        };
        if is_hurt || self.machine.some_flash_harmed() {
            return;
        }
        let Some(cache) = cell.flash_cache() else { return };
        if let Some(member) = cache.members().find(|member| member.has_failed()) {
            self.violate("I3", format!("flash has failed though nothing befell it: {member:?}"));
        }
    }

    fn check_ages(&self) {
        // Requests of other hosts wait for the next life.
        if self.far.is_some() && self.life().is_none() {
            return;
        }
        let now = self.now();
        let bound = PATIENCE + self.plan.setup.hard_limit;
        let old = {
            let book = lock(&self.book);
            let late = |r: &Request| now.ns_since(r.begun) > bound.as_nanos() as u64;
            let counts =
                |disk: &super::book::BookDisk, r: &Request| late(r) && !self.machine.disk_is_slow(disk.home, r.begun);
            book.oldest(counts).map(|r| format!("{r:?}"))
        };
        if let Some(request) = old {
            let cache = self.life().and_then(|life| life.cell.flash_cache());
            let members: Vec<String> = cache.iter().flat_map(|c| c.members()).map(|m| format!("{m:?}")).collect();
            let disks = self.life().map_or_else(Vec::new, |life| life.cell.grid_disks());
            let redo: Vec<String> =
                disks.iter().filter_map(|d| Some(format!("{}: {:?}", d.name(), d.redo()?))).collect();
            let text = format!(
                "{request} is not answered after {bound:?} though its disk is well; flash: {members:?}; redo: {redo:?}"
            );
            self.violate("I7", text);
        }
    }

    /// Check what an answer tells beyond its bytes.
    pub(super) fn check_answer(&self, cell: &Arc<Cell>, request: &Request, succeeded: bool) {
        let Some(life) = self.life() else { return };
        let Some(cache) = cell.flash_cache() else { return };
        let mut watch = lock(&self.watch);
        let now = self.now();
        let mut failed_before = Vec::new();
        let cache_id = cell.store().catalog().flash_cache.as_ref().map_or(0, |cache| cache.id.0);
        let devices = cell.flash_cache_devices();
        for (n, member) in cache.members().enumerate() {
            if member.has_failed() {
                let device = devices.get(n).map_or(0, |id| id.0);
                let since = *watch.failed_since.entry((life.number, cache_id, device)).or_insert(now);
                if since < request.begun {
                    failed_before.push(n);
                }
            } else if request.verb == Verb::Read && succeeded && member.segments().reclaiming > 0 {
                self.situations.hit("read answered while a segment is being reclaimed");
            }
            if member.is_slow() && request.verb == Verb::Read && succeeded {
                self.situations.hit("slow flash bypassed by a read");
            }
        }
        drop(watch);
        let changes = matches!(request.verb, Verb::Write { .. } | Verb::Zeroes { .. });
        if changes
            && succeeded
            && cache.members().count() == 1
            && failed_before == [0]
            && !self.recached_since(request.begun)
        {
            self.check_expelled(cell, request);
        }
    }

    /// The only flash device had failed before this write began: the label of its disk must say so by now.
    fn check_expelled(&self, cell: &Arc<Cell>, request: &Request) {
        let store = cell.store();
        let catalog = store.catalog();
        let Some(record) = catalog.grid_disks.get(&GridDiskId(request.disk)) else { return };
        let cached = record.caching_mode != celldisk::CachingMode::None
            && record.caching_policy != celldisk::CachingPolicy::None;
        let Some(flash) = cell.flash_cache_devices().first().copied() else { return };
        let Some(disk) = store.cell_disk(record.cell_disk) else { return };
        let state = disk.label().flash_members.get(&flash).map(|m| m.state);
        // With a grid disk offline there, for redo too, what the flash holds of the others is void instead.
        let offline = cell.grid_disks().iter().any(|disk| {
            let home = catalog.grid_disks.get(&GridDiskId(disk.id())).map(|record| record.cell_disk);
            disk.offline().is_some() && home == Some(record.cell_disk)
        });
        let offline = offline || lock(&self.watch).waited.contains(&record.cell_disk);
        let waits = state == Some(FlashState::Dirty) && self.plan.setup.write_back || offline;
        if cached && waits {
            self.situations.hit("write acknowledged by a disk that waits for its flash");
        } else if cached && state != Some(FlashState::Expelled) {
            let text = format!("{request:?} was acknowledged without flash that its disk's label calls {state:?}");
            self.violate("I7", text);
        } else if cached {
            self.situations.hit("write acknowledged after flash was expelled while serving");
        }
    }

    /// What an opening said.
    pub(super) fn note_open(&self, cell: &Arc<Cell>, report: &OpenReport) {
        {
            let catalog = cell.store().catalog();
            let offline = cell.grid_disks().into_iter().filter(|disk| disk.offline().is_some());
            let homes = offline.filter_map(|disk| Some(catalog.grid_disks.get(&GridDiskId(disk.id()))?.cell_disk));
            lock(&self.watch).waited = homes.collect();
        }
        let mut rows: Vec<(&'static str, &str)> = vec![
            ("flash missing at open is expelled", "is missing"),
            ("flash expelled before comes back void", "had been expelled"),
            ("stamps that do not match void what is cached", "are not of one moment"),
            ("flash whose label cannot be written is left out", "its label cannot be written"),
            ("no flash usable: served from disk alone", "serving from disk alone"),
            ("flash back or blank waits until what is dirty elsewhere is on the disks", "is left out: cell disk"),
            ("grid disk offline: the only copy of something is not there", "is offline"),
            ("ordered: batch put in place at an opening", "was put in place"),
            ("redo: replayed at an opening", "bytes of redo replayed"),
            ("redo: grid disk offline, its redo cannot be had", "redo of it that flash"),
            ("redo: ring found damaged or unreadable", "flash log: "),
        ];
        rows.push(("cell disk has grown at an opening", "has grown by"));
        rows.retain(|(_, words)| report.notes.iter().any(|n| n.contains(words)));
        rows.into_iter().for_each(|(row, _)| self.situations.hit(row));
        self.situations.hit(if report.unclean { "opened after an unclean stop" } else { "opened after a clean stop" });
        self.check_grown(cell);
        let store = &report.store;
        let noted = [
            (!store.stale.is_empty(), "catalog copy brought up to date at open"),
            (!store.superseded.is_empty(), "catalog change nobody was told of is replaced at open"),
            (!store.diverged.is_empty(), "device that went its own way noticed at open"),
            (!store.unusable.is_empty(), "device unusable at open"),
        ];
        noted.into_iter().filter(|(is, _)| *is).for_each(|(_, row)| self.situations.hit(row));
        self.note_recovered(report);
    }

    fn note_recovered(&self, report: &OpenReport) {
        for (_, recovered) in &report.recovered {
            match recovered.evidence {
                Evidence::Log if report.unclean => self.situations.hit("index rebuilt from the log after a crash"),
                Evidence::Log => {}
                Evidence::LogForCheckpoint => {
                    self.situations.hit("index checkpoint not believed: rebuilt from the log")
                }
                Evidence::Checkpoint => {
                    self.situations.hit("index checkpoint used");
                    self.situations.hit_times("dirty part found again by an index checkpoint", recovered.dirty_parts);
                    self.situations.hit_times("entry found again by an index checkpoint", recovered.entries);
                }
            }
            self.situations.hit_times("recovered entry", recovered.entries);
            self.situations.hit_times("segment without a footer walked by its chunks", recovered.walked);
            self.situations.hit_times("recovery goes on in a segment without a footer", recovered.reopened);
            self.situations.hit_times("torn footer: segment walked by its chunks", recovered.torn_footers);
            self.situations.hit_times("segment known by its footer alone", recovered.headless);
            self.situations.hit_times("region to compare with disk after a crash", recovered.unsettled_regions);
        }
    }

    /// The index becomes whole while grid disks are served.
    pub(super) async fn note_index(self: Arc<Self>, cell: Arc<Cell>) {
        cell.index_is_whole().await;
        let Some(report) = cell.take_late_report() else { return };
        self.handle.trace().text("index is whole", format!("{report:?}"));
        let lost = report.notes.iter().any(|note| note.contains("is offline"));
        self.situations.hit(if lost {
            "early: grid disk offline when the index is whole"
        } else {
            "early: the index has become whole"
        });
        self.situations.hit_times("early: written before the index is whole", cell.written_early());
        self.note_recovered(&report);
    }

    /// What devices have more than they had is free space.
    pub(super) fn check_grown(&self, cell: &Arc<Cell>) {
        if !std::mem::take(&mut lock(&self.history).grown) || self.machine.some_flash_harmed() {
            return;
        }
        let catalog = cell.store().catalog();
        for (id, status) in cell.store().members() {
            let (celldisk::MemberStatus::InService(disk), Some(member)) = (status, catalog.members.get(&id)) else {
                continue;
            };
            let counts = (member.au_count, disk.label().au_count(), disk.au_count_possible());
            if counts.0 != counts.2 || counts.1 != counts.2 {
                self.violate("I5", format!("cell disk {}: units by catalog, label, device: {counts:?}", member.name));
            }
        }
    }

    /// Memory is within what was announced (I8).
    pub(super) fn check_memory(&self, life: &Life) {
        let cell = &life.cell;
        let Some(cache) = cell.flash_cache() else { return };
        for (n, member) in cache.members().enumerate() {
            let (used, max) = (member.index_bytes(), member.memory_bytes_max());
            if used > max {
                self.violate("I8", format!("flash member {n}: the index uses {used} bytes of at most {max}"));
            }
            let pages = member.size_bytes() / 4096;
            if member.entries() as u64 > pages || member.used_bytes() > member.size_bytes() {
                let text = format!("flash member {n}: {} entries for {pages} pages", member.entries());
                self.violate("I8", text);
            }
        }
    }

    /// The end of a life, the process still there: what its counters and the moment tell.
    pub(super) fn note_end(&self, life: &Life, crash: bool) {
        self.check_memory(life);
        self.note_redo(life, crash);
        self.note_plan(life);
        let cell = &life.cell;
        let (mut hits, mut partial) = (0, 0);
        for disk in cell.grid_disks() {
            self.note_order(&disk, crash);
            self.note_feed(&disk);
            hits += disk.counters.cache_hits.requests.get();
            partial += disk.counters.cache_partial_hits.requests.get();
            let rows = [
                ("read past the cache: large", &disk.counters.cache_read_skips_large),
                ("read past the cache: flash slow or rotten", &disk.counters.cache_read_skips_flash),
                ("hit sent to the disk: flash busy", &disk.counters.cache_read_skips_busy),
                ("fill declined: flash busy", &disk.counters.cache_fill_skips_busy),
                ("fill by a write declined: flash busy", &disk.counters.cache_write_fill_skips_busy),
                ("fill declined: scan", &disk.counters.cache_fill_skips_scan),
                ("write past the cache: scan", &disk.counters.cache_write_skips_scan),
                ("write past the cache: large", &disk.counters.cache_write_skips_large),
            ];
            rows.into_iter().for_each(|(row, traffic)| self.situations.hit_times(row, traffic.requests.get()));
        }
        self.situations.hit_times("hit", hits);
        self.situations.hit_times("members: hot block brought back to new flash", cell.refilled_blocks());
        self.situations.hit_times("partial hit", partial);
        lock(&self.watch).hits += hits;
        if cell.alerts().iter().any(|a| a.contains("is offline")) {
            self.situations.hit("grid disk goes offline while serving");
        }
        if cell.alerts().iter().any(|a| a.contains("expelled:")) {
            self.situations.hit("flash expelled while serving");
        }
        if let Some(cache) = cell.flash_cache() {
            for member in cache.members() {
                let segments = member.segments();
                for (name, count) in member.counters.snapshot() {
                    if let Some((_, row)) = FLASH_ROWS.iter().find(|(counter, _)| *counter == name) {
                        self.situations.hit_times(row, count);
                    }
                    if name == "reclaims" && count > 0 && segments.free > 0 && crash {
                        self.situations.hit("crash between free record and reuse");
                    }
                    if name == "reclaims" && count > u64::from(segments.all()) {
                        self.situations.hit("every segment reused on average");
                    }
                }
                if member.is_covered() && member.dirty_bytes() > 0 {
                    self.situations.hit("flash with dirty data fails while serving: its mirror goes on");
                }
                if crash && member.dirty_bytes() > 0 {
                    self.situations.hit("crash with dirty data");
                }
                if crash && segments.reclaiming > 0 {
                    self.situations.hit("crash during reclaim");
                }
                if crash && !member.regions().is_empty() {
                    self.situations.hit("crash with unsettled regions");
                }
            }
        }
        if crash {
            self.note_requests(&lock(&self.book));
        }
    }

    /// What was fed, or was not. What buffer caches offer is counted where they do.
    fn note_feed(&self, disk: &Arc<GridDisk>) {
        let counters = &disk.counters;
        let rows = [
            ("feed: written to flash", &counters.fed),
            ("feed: made room for younger data", &counters.feed_overruns),
            ("feed: left out as prefetched", &counters.feed_skips_prefetch),
        ];
        rows.into_iter().for_each(|(row, counter)| self.situations.hit_times(row, counter.get()));
    }

    /// Flush order: what batches there were, and how far the last one is.
    fn note_order(&self, disk: &Arc<GridDisk>, crash: bool) {
        if let Some(known) = lock(&self.book).disks.get_mut(&disk.id()).filter(|_| disk.offline().is_none()) {
            known.in_order = disk.is_on_flash_in_order();
        }
        let counters = &disk.counters;
        let rows = [
            ("ordered: batch that reaches the disk whole", &counters.ordered_batches),
            ("ordered: cut at a FLUSH of a client", &counters.ordered_cuts_at_flush),
            ("ordered: write taken while a batch is written to the journal", &counters.ordered_writes_during_batch),
            ("ordered: grid disk whole, its writes go to the disk", &counters.ordered_wholes),
        ];
        rows.into_iter().for_each(|(row, counter)| self.situations.hit_times(row, counter.get()));
        match disk.batch_stage().filter(|_| crash) {
            Some(BatchStage::Journal) => self.situations.hit("ordered: batch cut off in the journal"),
            Some(BatchStage::InPlace) => self.situations.hit("ordered: batch cut off in place"),
            None => {}
        }
    }

    fn note_requests(&self, book: &Book) {
        let (on_disk, on_flash) = self.machine.in_flight();
        let changes = |r: &&Request| matches!(r.verb, Verb::Write { .. } | Verb::Zeroes { .. });
        let writing = book.requests.values().any(|r| changes(&r));
        if writing && on_disk == 0 && on_flash > 0 {
            self.situations.hit("crash while a write waits for its mark on flash");
        }
        if writing && on_disk > 0 {
            self.situations.hit("crash between the mark and the end of the disk write");
        }
        if book.requests.values().any(|r| r.verb == Verb::Flush) {
            self.situations.hit("crash during a flush");
        }
        if book.requests.values().any(|r| r.raced) {
            self.situations.hit("crash while a fill and a write race for a block");
        }
    }
}
