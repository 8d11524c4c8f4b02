//! A grid disk's place in the plan: which device a request will use, and the wait for it.
//!
//! Never takes a range or memory; guesses where a request will be served, since that is found out under its range. A guess that
//! was wrong charges the wrong device for one request.

use crate::base::request::{CachingMode, Context, Purpose};
use crate::base::units::PART_BYTES;
use crate::base::units::cover;
use crate::disk::grid_disk::{Binding, GridDisk};
use crate::plan::{Account, DeviceQueue, Iorm, Ticket};
use device::sync::lock;
use flashcache::Residence;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write,
    /// Zeroes, which may cost a device no more than the command.
    Zero,
}

/// See the module.
pub(crate) struct PlanSeat {
    pub(crate) iorm: Arc<Iorm>,
    home: Arc<DeviceQueue>,
    /// By member of the flash cache.
    flash: Mutex<Arc<[Arc<DeviceQueue>]>>,
    /// It carries redo.
    is_redo: AtomicBool,
}

impl PlanSeat {
    pub(crate) fn new(iorm: Arc<Iorm>, home: Arc<DeviceQueue>) -> PlanSeat {
        PlanSeat { iorm, home, flash: Mutex::new(Arc::new([])), is_redo: AtomicBool::new(false) }
    }

    /// The cache it uses has these members, and it carries redo or not.
    pub(crate) fn bind(&self, flash: Vec<Arc<DeviceQueue>>, is_redo: bool) {
        *lock(&self.flash) = flash.into();
        self.set_redo(is_redo);
    }

    /// It carries redo, or not any more.
    pub(crate) fn set_redo(&self, is_redo: bool) {
        self.is_redo.store(is_redo, Ordering::Release);
    }

    fn flash_of(&self, binding: &Binding, part: u64) -> Option<Arc<DeviceQueue>> {
        let index = binding.cache.member_of(&binding.disk, part)?;
        lock(&self.flash).get(index).cloned()
    }

    /// The device that will probably serve it.
    fn device(&self, disk: &GridDisk, account: &Account, verb: Verb, offset: u64, len: u64) -> Arc<DeviceQueue> {
        let on_flash = disk.serving_cache().and_then(|binding| {
            let span = cover(offset, len, PART_BYTES);
            let parts = span.start / PART_BYTES..span.end / PART_BYTES;
            let is_there = match verb {
                Verb::Read => {
                    let found = binding.cache.residence(&binding.disk, parts.clone());
                    let past = account.is_past_flash_cache();
                    found.iter().all(|(_, at)| if past { *at == Residence::Dirty } else { *at != Residence::Disk })
                }
                Verb::Write => match binding.mode {
                    CachingMode::WriteBack => !account.is_past_flash_cache(),
                    mode => mode == CachingMode::WriteBackOrdered,
                },
                Verb::Zero => false,
            };
            is_there.then(|| self.flash_of(&binding, parts.start)).flatten()
        });
        on_flash.unwrap_or_else(|| self.home.clone())
    }
}

impl GridDisk {
    /// Whether it carries redo.
    pub(crate) fn carries_redo(&self) -> bool {
        self.seat.get().is_some_and(|seat| seat.is_redo.load(Ordering::Acquire))
    }

    /// The device it lies on has served a request.
    pub(crate) fn served_by_disk(&self, context: &Context, bytes: u64) {
        if let (Some(account), Some(seat)) = (&context.account, self.seat.get()) {
            seat.home.deeds(account).served(bytes);
        }
    }

    /// Wait for the plan's leave, if there is one that delays anything.
    pub(crate) async fn pass_plan(&self, context: &Context, verb: Verb, offset: u64, len: u64) -> Option<Ticket> {
        let account = context.account.as_ref().filter(|account| account.may_wait())?;
        let seat = self.seat.get()?;
        let queue = seat.device(self, account, verb, offset, len);
        let is_redo = context.purpose == Purpose::Redo || self.carries_redo();
        let jumps = is_redo && verb != Verb::Read || context.purpose == Purpose::Internal;
        let bytes = if verb == Verb::Zero && self.limits().fast_zeroes { 0 } else { len };
        queue.pass(account.clone(), bytes, jumps).await
    }
}

/// Leave of the I/O plan for a piece of a client's change, if it had to ask. Never kept while the change waits for the end of a freeze: others would have
/// none meanwhile.
pub(crate) struct Leave<'a> {
    disk: &'a GridDisk,
    context: &'a Context,
    verb: Verb,
    offset: u64,
    len: u64,
    ticket: Option<Ticket>,
}

impl<'a> Leave<'a> {
    pub(crate) fn new(
        disk: &'a GridDisk,
        context: &'a Context,
        verb: Verb,
        (offset, len): (u64, u64),
        ticket: Option<Ticket>,
    ) -> Leave<'a> {
        Leave { disk, context, verb, offset, len, ticket }
    }

    /// Wait without it, then ask anew.
    pub(crate) async fn without<T>(&mut self, waits: impl Future<Output = T>) -> T {
        let had = self.ticket.take().is_some();
        let done = waits.await;
        if had {
            self.ticket = Box::pin(self.disk.pass_plan(self.context, self.verb, self.offset, self.len)).await;
        }
        done
    }
}
