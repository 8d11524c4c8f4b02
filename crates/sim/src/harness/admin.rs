//! The administrator of a run: commands while requests go on, and what the catalog must say after a crash in mid-command.
//!
//! A command that was acknowledged is in force for ever; one that was cut off happened or did not; one that failed says
//! so and changed nothing that clients can see. Never more than one command at a time.

use super::book::BookDisk;
use super::plan::{AU_BYTES, Admin, Caching};
use super::stage::{Life, Run};
use crate::model::Model;
use cell::{AdminError, Cell, GridDisk};
use celldisk::{GridDiskError, GridDiskId, GridDiskSpec, Purpose, Role};
use device::sync::{lock, one_shot};
use device::{Instant, Spawn};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

/// A command that was begun and not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    Create {
        name: String,
        home: usize,
        size_bytes: u64,
    },
    Drop {
        id: u64,
    },
    Resize {
        id: u64,
        size_bytes: u64,
    },
    Rename {
        id: u64,
        name: String,
    },
    Pin {
        id: u64,
    },
    Members(super::members::FlashChange),
    Caching,
    /// What a disk does not take is given up: the operator has asked for that.
    GivingUp,
    Growth,
    Plan(Box<cell::plan::Plan>),
}

/// What the administrator remembers.
#[derive(Default)]
pub(super) struct AdminState {
    pub(super) pending: Option<Pending>,
    /// Commands that failed without saying whether they had happened: the next opening decides.
    undecided: Vec<Pending>,
    /// How grid disks are cached is being changed.
    recaching: bool,
    /// When that had last happened.
    recached: Option<Instant>,
    pub(super) names: u64,
    ids_seen: BTreeSet<u64>,
    pub(super) pins: super::pins::Pins,
    /// The I/O plan as last acknowledged, or found.
    pub(super) plan: cell::plan::Plan,
    /// Flash devices that have left the cache.
    pub(super) flash_left: BTreeSet<celldisk::DeviceId>,
}

/// A seed for the content of a grid disk: those of other disks write other bytes.
pub(super) fn content_seed(seed: u64, id: u64) -> u64 {
    seed ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The name of the cell disk at a place.
pub(super) fn disk_name(home: usize) -> String {
    format!("CD{home}")
}

fn home_of(cell: &Cell, id: u64) -> Option<usize> {
    let catalog = cell.store().catalog();
    let record = catalog.grid_disks.get(&GridDiskId(id))?;
    let member = catalog.members.get(&record.cell_disk)?;
    member.name.strip_prefix("CD")?.parse().ok()
}

/// The specification of a grid disk on the cell disk at `home`.
pub(super) fn spec(
    cell: &Cell,
    name: &str,
    (home, purpose): (usize, Purpose),
    size_bytes: u64,
    caching: Caching,
) -> Option<GridDiskSpec> {
    let cell_disk = cell.store().catalog().member_named(&disk_name(home))?.0;
    Some(GridDiskSpec {
        purpose,
        caching_mode: caching.mode,
        caching_policy: caching.policy,
        ..GridDiskSpec::new(name, cell_disk, size_bytes, device::WallTime(1))
    })
}

impl Run {
    /// Carry out a command, unless the life ends before.
    pub(super) async fn administer(self: &Arc<Self>, life: &Life, admin: Admin) {
        let _turn = self.admin_turn.acquire(1).await;
        if self.life().is_none_or(|now| now.number != life.number) || self.crash_with_stop() {
            return;
        }
        self.handle.trace().text("admin", format!("{admin:?}"));
        match admin {
            Admin::Create { home, size_bytes, caching, redo } => {
                let home = (home % self.machine.disk_count() as u64) as usize;
                self.create(life, home, size_bytes, caching, redo).await;
            }
            Admin::CreateFlashLog => self.create_log(life).await,
            Admin::DropFlashLog { force } => self.drop_log(life, force).await,
            Admin::SetRedo { disk, redo } => self.set_redo(life, disk, redo).await,
            Admin::Drop { disk } => self.drop_one(life, disk).await,
            Admin::Resize { disk, size_bytes } => self.resize(life, disk, size_bytes).await,
            Admin::Rename { disk } => self.rename(life, disk).await,
            Admin::SetCaching { disk, caching } => {
                let _answered = self.set_caching(life, disk, caching).await;
            }
            Admin::SetFill { disk, fill } => self.set_fill(life, disk, fill).await,
            Admin::Evict { disk } => self.evict_one(life, disk).await,
            Admin::Pin { disk, offset, len, policy } => {
                let _answered = self.pin(life, disk, offset, len, policy).await;
            }
            Admin::Grow { device, by_bytes } => self.grow_online(life, device, by_bytes).await,
            Admin::Iorm { pick } => self.state_plan(life, pick).await,
            Admin::Flush { disk, cancel } => self.flush_one(life, disk, cancel).await,
            Admin::AcceptStale { disk } => self.accept_stale(life, disk).await,
            Admin::DropFlashCache => self.drop_cache(life).await,
            Admin::ReplaceFlash { pick } => self.replace_flash(life, pick).await,
            Admin::ChangeFlash { pick, cancel } => self.change_flash(life, pick, cancel).await,
            Admin::CreateFlashCache { all, size_bytes } => self.create_cache(life, all, size_bytes).await,
        }
    }

    /// Whether a request that began then may have been served while its grid disk was not cached.
    pub(super) fn recached_since(&self, begun: Instant) -> bool {
        let admin = lock(&self.admin);
        admin.recaching || admin.recached.is_some_and(|at| at >= begun)
    }

    fn crash_with_stop(&self) -> bool {
        self.crash_asked().is_some_and(|c| c.end == super::plan::End::CleanStop)
    }

    /// Run a command within the cell's process; none when that died before it was answered.
    pub(super) async fn command<T: Send + 'static>(
        self: &Arc<Self>,
        life: &Life,
        pending: Pending,
        what: impl Future<Output = Result<T, AdminError>> + Send + 'static,
        then: impl FnOnce(&Run, Result<T, AdminError>) + Send + 'static,
    ) -> bool {
        {
            let mut admin = lock(&self.admin);
            // A grid disk that is made smaller gets a new cache generation, and its cache anew.
            admin.recaching =
                matches!(pending, Pending::Caching | Pending::GivingUp | Pending::Members(_) | Pending::Resize { .. });
            admin.pending = Some(pending.clone());
        }
        let (tx, rx) = one_shot();
        let run = self.clone();
        let task = async move {
            let result = what.await;
            // In one moment with the command's end, as an answer on the wire would be.
            {
                let mut admin = lock(&run.admin);
                admin.pending = None;
                if let Err(AdminError::Store(GridDiskError::Lost { .. })) = &result {
                    admin.undecided.push(pending);
                }
                if std::mem::take(&mut admin.recaching) {
                    admin.recached = Some(run.now());
                }
            }
            then(&run, result);
            run.changed.notify_all();
            tx.send(());
        };
        life.process.spawn(Box::pin(task));
        rx.await.is_some()
    }

    /// A command failed: was there a reason?
    pub(super) fn judge(&self, what: &str, error: &AdminError) {
        self.handle.trace().text("admin failed", format!("{what}: {error}"));
        let space = matches!(
            error,
            AdminError::Store(GridDiskError::NoSpace { .. } | GridDiskError::TooSmall { .. })
                | AdminError::NoRoomForLog(_)
        );
        let stopping = matches!(error, AdminError::Stopping);
        let out = |status: &celldisk::MemberStatus| !matches!(status, celldisk::MemberStatus::InService(_));
        let flash_out = matches!(error, AdminError::Store(GridDiskError::NoSuch | GridDiskError::NotPresent { .. }))
            && self.life().is_some_and(|life| life.cell.store().members().values().any(out));
        let harmed = self.machine.some_disk_harmed(self.now()) || self.machine.some_flash_harmed();
        let unsafe_here = matches!(error, AdminError::WriteBackUnsafe(_));
        let memory = matches!(error, AdminError::Memory(_));
        let disk_out = self.life().is_some_and(|life| life.cell.store().members().values().any(out));
        let held = matches!(error, AdminError::StillDirty(_) | AdminError::RedoOnFlash(_) | AdminError::RingLeaving(_));
        let sole_copy = held && (lock(&self.book).flash_hurt || disk_out);
        let no_flash = matches!(error, AdminError::NoDurableFlash) && lock(&self.book).flash_hurt;
        if matches!(error, AdminError::FlashUncertain(_)) {
            self.situations.hit("admin: a discard that may still happen takes flash out of service");
        } else if matches!(error, AdminError::RedoInWriteBack(_)) {
            self.situations.hit("admin: redo in write-back refused");
        } else if unsafe_here {
            self.situations.hit("admin: write-back refused where it is not safe");
        } else if sole_copy {
            self.situations.hit("admin: refused while flash holds the only copy");
        } else if space {
            self.situations.hit("admin: no space");
        } else if memory {
            self.situations.hit("admin: refused for want of memory");
        } else if harmed || flash_out || no_flash {
            self.situations.hit("admin: a command failed with a device");
        } else if !stopping {
            self.violate("I3", format!("{what} failed though every device is well: {error}"));
        }
    }

    async fn create(
        self: &Arc<Self>,
        life: &Life,
        home: usize,
        size_bytes: u64,
        caching: Caching,
        redo: Option<celldisk::FlashLogMode>,
    ) {
        let name = {
            let mut admin = lock(&self.admin);
            admin.names += 1;
            format!("GD{}", admin.names)
        };
        let purpose = if redo.is_some() { Purpose::Redo } else { Purpose::Data };
        let Some(spec) = spec(&life.cell, &name, (home, purpose), size_bytes, caching) else { return };
        let cell = life.cell.clone();
        let pending = Pending::Create { name: name.clone(), home, size_bytes };
        let work = async move {
            let made = cell.create_grid_disk(spec, &mut |_, _| ()).await?;
            if let Some(mode) = redo {
                // Its disk may refuse: then it stays as it was made.
                let _ = cell.set_flash_log_mode(&made.name(), mode).await;
            }
            Ok(made)
        };
        let then = move |run: &Run, result: Result<Arc<GridDisk>, AdminError>| match result {
            Ok(served) => {
                run.situations.hit("admin: grid disk created");
                run.adopt(served.id(), &served.name(), served.size_bytes(), home, Some(served.clone()));
            }
            Err(error) => run.judge("create grid disk", &error),
        };
        self.command(life, pending, work, then).await;
    }

    /// A grid disk that is new to the book.
    pub(super) fn adopt(&self, id: u64, name: &str, size_bytes: u64, home: usize, served: Option<Arc<GridDisk>>) {
        let reused = !lock(&self.admin).ids_seen.insert(id);
        let mut book = lock(&self.book);
        if reused && !book.names_loose {
            book.violate("I2", format!("grid disk id {id} was used before"));
        }
        let model = Model::new(content_seed(self.plan.seed, id), size_bytes);
        let mut disk = BookDisk::new(name.to_owned(), model, home, served);
        disk.closing = book.stopping;
        book.disks.insert(id, disk);
    }

    pub(super) fn target(&self, place: u64) -> Option<(u64, String)> {
        let book = lock(&self.book);
        let id = book.pick(place)?;
        let disk = book.disks.get(&id)?;
        disk.served.as_ref()?;
        Some((id, disk.name.clone()))
    }

    async fn drop_one(self: &Arc<Self>, life: &Life, place: u64) {
        let Some((id, name)) = self.target(place) else { return };
        {
            let mut book = lock(&self.book);
            if book.disks.len() < 2 {
                return;
            }
            if let Some(disk) = book.disks.get_mut(&id) {
                disk.closing = true;
            }
        }
        let cell = life.cell.clone();
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => {
                run.situations.hit("admin: grid disk dropped");
                let mut book = lock(&run.book);
                book.disks.remove(&id);
                book.disconnect(id);
            }
            Err(error) => {
                run.judge("drop grid disk", &error);
                lock(&run.book).reopened(id);
            }
        };
        let work = async move { cell.drop_grid_disk(&name, true).await };
        self.command(life, Pending::Drop { id }, work, then).await;
    }

    async fn resize(self: &Arc<Self>, life: &Life, place: u64, size_bytes: u64) {
        let Some((id, name)) = self.target(place) else { return };
        let size_bytes = size_bytes / AU_BYTES * AU_BYTES;
        let before = {
            let mut book = lock(&self.book);
            let Some(disk) = book.disks.get_mut(&id) else { return };
            // From here on nobody begins beyond the new end.
            disk.limit = disk.limit.min(size_bytes);
            disk.model.size_bytes()
        };
        loop {
            let ticket = self.changed.ticket();
            if self.broken() || self.life().is_none_or(|now| now.number != life.number) {
                return;
            }
            let beyond = |r: &super::book::Request| {
                r.disk == id && r.range.end > size_bytes && !matches!(r.verb, super::plan::Verb::BeyondEnd { .. })
            };
            if !lock(&self.book).requests.values().any(beyond) {
                break;
            }
            self.changed.wait(ticket).await;
        }
        let cell = life.cell.clone();
        let store = cell.store().clone();
        let then = move |run: &Run, result: Result<(), AdminError>| {
            let now = {
                let mut book = lock(&run.book);
                let Some(disk) = book.disks.get_mut(&id) else { return };
                let now = disk.served.as_ref().map_or(before, |s| s.size_bytes());
                disk.model.resize(now);
                disk.limit = now;
                now
            };
            if let Some(record) = store.catalog().grid_disks.get(&GridDiskId(id)) {
                run.remember_pins(record);
            }
            match result {
                Ok(()) if now != size_bytes => {
                    run.violate("I2", format!("resized grid disk {id} has {now} bytes, not {size_bytes}"));
                }
                Ok(()) if now > before => run.situations.hit("admin: grid disk grown"),
                Ok(()) if now < before => run.situations.hit("admin: grid disk shrunk"),
                Ok(()) => {}
                Err(error) => run.judge("resize grid disk", &error),
            }
        };
        let work = async move { cell.resize_grid_disk(&name, size_bytes, &mut |_, _| ()).await };
        self.command(life, Pending::Resize { id, size_bytes }, work, then).await;
    }

    async fn rename(self: &Arc<Self>, life: &Life, place: u64) {
        let Some((id, name)) = self.target(place) else { return };
        let new_name = {
            let mut admin = lock(&self.admin);
            admin.names += 1;
            format!("GD{}", admin.names)
        };
        let (cell, to) = (life.cell.clone(), new_name.clone());
        let set = new_name.clone();
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => {
                run.situations.hit("admin: grid disk renamed");
                if let Some(disk) = lock(&run.book).disks.get_mut(&id) {
                    disk.name = set;
                }
            }
            Err(error) => run.judge("rename grid disk", &error),
        };
        let work = async move { cell.rename_grid_disk(&name, &to).await };
        self.command(life, Pending::Rename { id, name: new_name }, work, then).await;
    }

    async fn set_caching(self: &Arc<Self>, life: &Life, place: u64, caching: Caching) -> bool {
        let Some((_, name)) = self.target(place) else { return false };
        let cell = life.cell.clone();
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("admin: caching changed"),
            Err(error) => run.judge("set caching", &error),
        };
        let work = async move { cell.set_caching(&name, Some(caching.mode), Some(caching.policy)).await };
        self.command(life, Pending::Caching, work, then).await
    }

    async fn set_fill(self: &Arc<Self>, life: &Life, place: u64, fill: celldisk::FillStrategy) {
        let Some((_, name)) = self.target(place) else { return };
        let cell = life.cell.clone();
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit(match fill {
                celldisk::FillStrategy::Read => "admin: filled by read",
                celldisk::FillStrategy::Evict => "admin: filled by evict",
                celldisk::FillStrategy::Feed => "admin: filled by feed",
            }),
            Err(error) => run.judge("set fill strategy", &error),
        };
        let work = async move { cell.set_fill(&name, fill).await };
        self.command(life, Pending::Caching, work, then).await;
    }

    async fn evict_one(self: &Arc<Self>, life: &Life, place: u64) {
        let Some((id, _)) = self.target(place) else { return };
        let catalog = life.cell.store().catalog();
        let Some(record) = catalog.grid_disks.get(&GridDiskId(id)) else { return };
        let now = Caching { mode: record.caching_mode, policy: record.caching_policy };
        let none = Caching { policy: celldisk::CachingPolicy::None, ..now };
        if self.set_caching(life, place, none).await && self.set_caching(life, place, now).await {
            self.situations.hit("everything cached of a grid disk dropped while serving");
        }
    }

    async fn flush_one(self: &Arc<Self>, life: &Life, place: u64, cancel: bool) {
        let Some((_, name)) = self.target(place) else { return };
        let cell = life.cell.clone();
        let then = |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("admin: flushed"),
            // Its disk may be unwell, or its name be another by now.
            Err(error) => run.handle.trace().text("admin failed", format!("flush: {error}")),
        };
        let work = async move {
            let names = [name];
            let flushed = cell.flush_flash_cache(&names, &mut |_, _| ()).await;
            if cancel {
                cell.cancel_flush(&names).await?;
            }
            flushed
        };
        self.command(life, Pending::Caching, work, then).await;
    }

    /// Everything cached of every grid disk is dropped.
    pub(super) async fn evict_all(self: &Arc<Self>, life: &Life) {
        let count = lock(&self.book).disks.len() as u64;
        for place in 0..count {
            if self.life().is_some_and(|now| now.number == life.number) {
                let _turn = self.admin_turn.acquire(1).await;
                self.evict_one(life, place).await;
            }
        }
    }

    pub(super) async fn drop_cache(self: &Arc<Self>, life: &Life) {
        if life.cell.store().catalog().flash_cache.is_none() {
            return;
        }
        let cell = life.cell.clone();
        let then = |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("admin: flash cache dropped"),
            Err(error) => run.judge("drop flash cache", &error),
        };
        self.command(life, Pending::Caching, async move { cell.drop_flash_cache().await }, then).await;
    }

    pub(super) async fn create_cache(self: &Arc<Self>, life: &Life, all: bool, size_bytes: u64) {
        if life.cell.store().catalog().flash_cache.is_some() {
            return;
        }
        let serving = |status: celldisk::MemberStatus| match status {
            celldisk::MemberStatus::InService(disk) => Some(disk).filter(|disk| disk.role() == Role::Flash),
            _ => None,
        };
        let present: Vec<String> =
            life.cell.store().members().into_values().filter_map(serving).map(|disk| disk.name()).collect();
        if present.is_empty() {
            return;
        }
        // Those that no cache is created on to begin with are for changes.
        let setup = &self.plan.setup;
        let spares: Vec<String> =
            (setup.flashes.len() - setup.spares..setup.flashes.len()).map(|n| format!("FD{n}")).collect();
        let mut usual: Vec<String> = present.iter().filter(|name| !spares.contains(name)).cloned().collect();
        if usual.is_empty() {
            usual.clone_from(&present);
        }
        let names = match (all, spares.is_empty()) {
            (true, true) => Vec::new(),
            (true, false) => usual.clone(),
            (false, _) => usual[..1].to_vec(),
        };
        let count = if all { usual.len() as u64 } else { 1 };
        let least = 8 * u64::from(self.plan.setup.segment_bytes) * count;
        let cell = life.cell.clone();
        let then = |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => run.situations.hit("admin: flash cache created"),
            Err(error) => run.judge("create flash cache", &error),
        };
        let work = async move { cell.create_flash_cache(Some(size_bytes.max(least)), &names).await };
        self.command(life, Pending::Caching, work, then).await;
    }

    /// A new process serves: compare its catalog, and what it serves, with the book.
    pub(super) fn reconcile(&self, cell: &Arc<Cell>) {
        let (crashed, pending) = {
            let mut admin = lock(&self.admin);
            admin.recaching = false;
            let mut undecided = std::mem::take(&mut admin.undecided);
            let crashed = admin.pending.take();
            let is_crash = crashed.is_some();
            undecided.extend(crashed);
            (is_crash, undecided)
        };
        if crashed {
            self.situations.hit("crash while a catalog change was under way");
        }
        self.reconcile_members(cell, &pending);
        self.check_plan(cell, &pending);
        let catalog = cell.store().catalog();
        for record in catalog.grid_disks.values() {
            self.reconcile_one(cell, record, &pending);
        }
        let mut book = lock(&self.book);
        let unseen: Vec<u64> =
            book.disks.keys().copied().filter(|id| !catalog.grid_disks.contains_key(&GridDiskId(*id))).collect();
        for id in unseen {
            if pending.contains(&Pending::Drop { id }) {
                self.situations.hit("crash in a drop: it had happened");
                book.disks.remove(&id);
            } else {
                book.violate("I3", format!("grid disk id {id} is gone after a restart"));
            }
        }
    }

    fn reconcile_one(&self, cell: &Arc<Cell>, record: &celldisk::GridDisk, pending: &[Pending]) {
        let (id, name, size_bytes) = (record.id.0, &record.name, record.size_bytes);
        let Some(home) = home_of(cell, id) else {
            return self.violate("I3", format!("grid disk {name} lies on no cell disk"));
        };
        let served = cell.grid_disk(name);
        if served.as_ref().is_some_and(|s| (s.id(), s.size_bytes()) != (id, size_bytes)) {
            return self.violate("I3", format!("grid disk {name} is not served as its catalog record says"));
        }
        if served.is_none() && self.machine.disk(home).is_gone() {
            self.situations.hit("a grid disk whose cell disk is missing is not served, others are");
        } else if served.is_none() {
            return self.violate("I3", format!("grid disk {name} is not served though its cell disk is there"));
        }
        if !lock(&self.book).disks.contains_key(&id) {
            let expected = pending.iter().any(|p| {
                matches!(p, Pending::Create { name: n, size_bytes: s, .. }
                if n == name && *s == size_bytes)
            });
            if !expected {
                return self.violate("I3", format!("grid disk {name} (id {id}) came from nowhere"));
            }
            self.situations.hit("crash in a create: it had happened");
            return self.adopt(id, name, size_bytes, home, served);
        }
        let loose = lock(&self.book).names_loose;
        self.check_pins(record, pending, loose);
        let mut book = lock(&self.book);
        let Some(disk) = book.disks.get_mut(&id) else { return };
        let (known_name, known_bytes) = (disk.name.clone(), disk.model.size_bytes());
        let renamed = pending.contains(&Pending::Rename { id, name: name.clone() });
        let resized = pending.contains(&Pending::Resize { id, size_bytes });
        if known_bytes != size_bytes && resized {
            self.situations.hit("crash in a resize: it had happened");
            disk.model.resize(size_bytes);
        } else if known_bytes != size_bytes {
            let text = format!("grid disk {name} has {size_bytes} bytes after a restart, not {known_bytes}");
            return book.violate("I2", text);
        }
        disk.limit = size_bytes;
        let redo_waits = cell.redo_waiters(name).iter().any(|waiter| waiter.id() == id);
        if record.given_up && !redo_waits && served.as_ref().is_some_and(|served| served.offline().is_some()) {
            let text = format!("grid disk {name} waits again for flash that its operator has given up");
            return book.violate("I3", text);
        }
        if served.as_ref().is_some_and(|served| served.offline().is_none()) && disk.stale.is_none() {
            disk.lost_at = None;
        }
        disk.served = served;
        disk.name.clone_from(name);
        if known_name != *name && !renamed && !loose {
            book.violate("I2", format!("grid disk {known_name} is called {name} after a restart"));
        }
    }
}
