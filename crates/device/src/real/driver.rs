//! The driver of one executor thread: a ring, or a poller with blocking threads beside it.

use super::executor::Local;
use super::files::FixedSlot;
use super::poller::Poller;
use super::request::Request;
use super::uring::Uring;
use std::time::Duration;

/// How long a turn may sleep in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all: tasks are ready.
    No,
    /// Until something happens or so much time has passed.
    For(Duration),
    /// Until something happens.
    Forever,
}

/// See the module's head.
pub(crate) enum Driver {
    Uring(Box<Uring>),
    Poller(Box<Poller>),
}

impl Driver {
    /// Start a request; it reaches the kernel in this turn.
    pub(crate) fn start(local: &Local, request: Request) {
        let finished = match &mut *local.driver.borrow_mut() {
            Driver::Uring(uring) => {
                uring.start(request);
                None
            }
            Driver::Poller(poller) => poller.start(request),
        };
        if let Some((request, result)) = finished {
            request.finish(result);
        }
    }

    /// Hand over what was started, take what has finished, sleep if allowed.
    pub(crate) fn turn(local: &Local, wait: Wait) {
        let mut finished = {
            let mut driver = local.driver.borrow_mut();
            match &mut *driver {
                Driver::Uring(uring) => uring.turn(wait, &local.inbox),
                Driver::Poller(poller) => poller.turn(wait, &local.inbox),
            }
        };
        for (request, result) in finished.drain(..) {
            request.finish(result);
        }
        // The list goes back for the next turn: no allocation per turn.
        match &mut *local.driver.borrow_mut() {
            Driver::Uring(uring) if uring.finished.is_empty() => uring.finished = finished,
            Driver::Poller(poller) if poller.finished.is_empty() => poller.finished = finished,
            _ => {}
        }
    }

    /// A device was closed.
    pub(crate) fn forget(&mut self, slot: &FixedSlot) {
        match self {
            Driver::Uring(uring) => uring.forget(slot),
            Driver::Poller(_) => {}
        }
    }

    /// Take back every request of a socket.
    pub(crate) fn cancel_network(&mut self) {
        match self {
            Driver::Uring(uring) => uring.cancel_network(),
            Driver::Poller(poller) => poller.cancel_network(),
        }
    }

    /// Nothing is with the kernel.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Driver::Uring(uring) => uring.is_idle(),
            Driver::Poller(poller) => poller.is_idle(),
        }
    }
}
