//! Grid disks whose flash is lost: an operator goes on from their disks alone, and all of such a disk must be the grid disk
//! at one moment (I10).
//!
//! From the command to the end of the comparison no client asks for anything of that grid disk: what it may answer is only
//! known then.

use super::admin::Pending;
use super::stage::{Life, Run};
use crate::model::Model;
use cell::{AdminError, Context};
use device::sync::{lock, one_shot};
use device::{Bufs, Spawn, buf::Buf};
use std::ops::Range;
use std::sync::Arc;

/// Bytes compared at a time.
const STEP_BYTES: u64 = 256 << 10;

impl Run {
    /// Accept the stale state of a grid disk, if it is offline.
    pub(super) async fn accept_stale(self: &Arc<Self>, life: &Life, place: u64) {
        let Some((id, name)) = self.target(place) else { return };
        let waiters: Vec<u64> = life.cell.redo_waiters(&name).iter().map(|disk| disk.id()).collect();
        // Accepted once already, with redo that is given up, and not compared yet since it is still offline for its cache's sake.
        let before;
        {
            let mut book = lock(&self.book);
            before = book.disks.get(&id).and_then(|disk| disk.stale);
            for waiter in &waiters {
                if let Some(disk) = book.disks.get_mut(waiter) {
                    (disk.stale, disk.torn) = (Some(0), true);
                }
            }
            let Some(disk) = book.disks.get_mut(&id) else { return };
            if disk.served.as_ref().is_none_or(|served| served.offline().is_none()) {
                return;
            }
            let not_before = life.cell.stale_as_of(&name).map_or(0, |as_of| disk.moment_before(as_of.0));
            disk.stale = Some(before.map_or(not_before, |before| before.min(not_before)));
            // What the flash holds is given up: a disk put back to a moment before that finds it nowhere.
            let homes = waiters.iter().chain([&id]).filter_map(|id| book.disks.get(id).map(|disk| disk.home));
            homes.for_each(|home| lock(&self.history).forget_snapshots(home));
        }
        let asked = |request: u64| request == id || waiters.contains(&request);
        loop {
            let ticket = self.changed.ticket();
            if self.broken() || self.life().is_none_or(|now| now.number != life.number) {
                return;
            }
            if !lock(&self.book).requests.values().any(|request| asked(request.disk)) {
                break;
            }
            self.changed.wait(ticket).await;
        }
        let cell = life.cell.clone();
        let torn = !waiters.is_empty();
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) if torn => run.situations.hit("redo: given up by the operator"),
            Ok(()) => run.situations.hit("ordered: stale state accepted without the flash"),
            Err(AdminError::MayBeTorn(_) | AdminError::RestartFirst(_)) => {
                run.situations.hit("ordered: stale state refused");
                if let Some(disk) = lock(&run.book).disks.get_mut(&id) {
                    disk.stale = before;
                }
            }
            Err(error) => run.judge("accept the stale state", &error),
        };
        self.command(life, Pending::Caching, async move { cell.accept_stale(&name).await }, then).await;
        self.settle_stale(life).await;
    }

    /// What is offline still has not been accepted, now that everything is healed.
    pub(super) fn forget_stale(&self) {
        let mut book = lock(&self.book);
        let offline = |disk: &&mut super::book::BookDisk| disk.served.as_ref().is_some_and(|s| s.offline().is_some());
        book.disks.values_mut().filter(offline).for_each(|disk| disk.stale = None);
    }

    /// Grid disks of which a former or this life has accepted a stale state: compare, and go on from what is there.
    pub(super) async fn settle_stale(self: &Arc<Self>, life: &Life) {
        let moments = |disk: &super::book::BookDisk| Some(disk.stale?..disk.lost_at.map_or(u64::MAX, |at| at + 1));
        let pending: Vec<(u64, Range<u64>)> =
            lock(&self.book).disks.iter().filter_map(|(&id, disk)| Some((id, moments(disk)?))).collect();
        for (id, moments) in pending {
            let Some(served) = lock(&self.book).disks.get(&id).and_then(|disk| disk.served.clone()) else { continue };
            if served.offline().is_some() {
                // It was not accepted, as far as anybody knows.
                continue;
            }
            let (tx, rx) = one_shot();
            life.process.spawn(Box::pin(async move {
                let session = served.open_session(Context::default());
                let (mut all, size_bytes) = (Vec::new(), served.size_bytes());
                while (all.len() as u64) < size_bytes {
                    let len = STEP_BYTES.min(size_bytes - all.len() as u64);
                    let (read, bufs) = session.read(all.len() as u64, Bufs::from(Buf::zeroed(len as usize))).await;
                    if read.is_err() {
                        return;
                    }
                    all.extend(bufs.to_vec(0..len as usize));
                }
                tx.send(all);
            }));
            let Some(found) = rx.await else { continue };
            let judged = {
                let mut book = lock(&self.book);
                let Some(disk) = book.disks.get_mut(&id) else { continue };
                if found.len() as u64 != disk.model.size_bytes() {
                    continue;
                }
                if disk.torn {
                    disk.go_on_from(&found);
                    continue;
                }
                let judged = disk.model.check_stale(&found, moments);
                if judged.is_ok() {
                    disk.go_on_from(&found);
                }
                judged.map(|moment| (moment, disk.model.moment())).map_err(|violation| (disk.name.clone(), violation))
            };
            match judged {
                Ok((moment, now)) => {
                    self.handle.trace().text("stale", format!("grid disk {id} is as at {moment}, now is {now}"));
                    self.situations.hit("ordered: all of a disk without its flash is of one moment");
                    if moment + 1 < now {
                        self.situations.hit("ordered: that moment is older than what was acknowledged");
                    }
                }
                Err((name, violation)) => {
                    let text = format!("grid disk {name} (id {id}) without its flash: {violation}");
                    self.violate(violation.invariant.number(), text);
                }
            }
            self.changed.notify_all();
        }
    }
}

/// What the book knows of when things were acknowledged, bounded: older moments say less.
#[derive(Default)]
pub(super) struct Times(std::collections::VecDeque<(u64, u64)>);

const TIMES_MAX: usize = 4096;

impl Times {
    /// Something was acknowledged at that time.
    pub(super) fn note(&mut self, wall_ns: u64, model: &Model) {
        if self.0.len() == TIMES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((wall_ns, model.moment()));
    }

    /// What had been acknowledged before a time is part of what was there then.
    pub(super) fn before(&self, wall_ns: u64) -> u64 {
        self.0.iter().take_while(|(at, _)| *at < wall_ns).last().map_or(0, |(_, moment)| *moment)
    }
}
