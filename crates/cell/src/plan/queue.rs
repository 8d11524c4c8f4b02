//! The one place where a request may be delayed: the queue of a device.
//!
//! A request passes here before it takes a range, room on flash or anything else that others wait for; it holds nothing but its own
//! buffers. What it is given is a [`Ticket`], one of the device's slots or several, which it gives back when it has ended. Whoever
//! has a ticket never waits for another one: so requests that wait for each other's ranges all get on.
//!
//! Redo, and what the cell does for itself, does not wait: redo is charged to its database, the cell's own work never comes here.
//! Never holds a lock across a wait; with no plan nobody comes here at all.

use crate::base::counters::SMALL_BYTES_MAX;
use crate::plan::account::{Account, Deeds};
use crate::plan::depth::{Aim, Depth};
use crate::plan::fair::{Demand, Fair, FlowKey, Next, Terms};
use crate::plan::iorm_plan::Objective;
use crate::plan::meter::Meter;
use crate::plan::policy::Policy;
use device::sync::{Sender, lock, one_shot};
use device::{Clock, Instant, Spawn};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, Weak};

/// With the objective auto the workload is looked at again after so many requests.
const AUTO_EVERY: u32 = 64;

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Medium {
    pub(crate) rotational: bool,
    /// Its requests count as those of flash.
    pub(crate) flash: bool,
}

/// See the module.
pub(crate) struct DeviceQueue {
    medium: Medium,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    me: Weak<DeviceQueue>,
    state: Mutex<State>,
}

struct State {
    policy: Option<Arc<Policy>>,
    fair: Fair<Waiter>,
    meter: Meter,
    /// Until when somebody sleeps to look again.
    alarm: Option<Instant>,
    depth: Depth,
    /// Somebody waits for nothing but a slot.
    is_short: bool,
    /// For the objective auto: requests since the last look, cost of them all and of the large ones.
    looked: (u32, u64, u64),
}

impl State {
    fn follow_depth(&mut self) {
        self.fair.set_slots(self.depth.slots());
    }
}

struct Waiter {
    account: Arc<Account>,
    bytes: u64,
    sender: Sender<Ticket>,
}

/// Those that may go, to be told once the lock is free.
type Told = SmallVec<[(Sender<Ticket>, Ticket); 4]>;

/// Leave to use the device, for one request.
pub(crate) struct Ticket {
    queue: Arc<DeviceQueue>,
    account: Arc<Account>,
    key: FlowKey,
    slots: u32,
    cost: u64,
    /// What was taken of the flow's time.
    taken_ns: u64,
    bytes: u64,
    begun: Instant,
    /// It did not wait, and its flow has paid.
    jumped: bool,
}

impl DeviceQueue {
    pub(crate) fn new(medium: Medium, clock: Arc<dyn Clock>, spawn: Arc<dyn Spawn>) -> Arc<DeviceQueue> {
        Arc::new_cyclic(|me| DeviceQueue {
            medium,
            clock,
            spawn,
            me: me.clone(),
            state: Mutex::new(State {
                policy: None,
                fair: Fair::new(1),
                meter: Meter::new(medium.rotational),
                alarm: None,
                depth: Depth::new(medium.rotational, Aim::Balanced),
                is_short: false,
                looked: (0, 0, 0),
            }),
        })
    }

    /// Go by this from now on; without any, whoever waits goes.
    pub(crate) fn set_policy(&self, policy: Option<Arc<Policy>>) {
        let told = {
            let mut state = lock(&self.state);
            let now = self.clock.now();
            state.depth.set_aim(match policy.as_ref().map(|policy| policy.objective) {
                Some(Objective::LowLatency) => Aim::LowLatency,
                Some(Objective::HighThroughput) => Aim::HighThroughput,
                _ => Aim::Balanced,
            });
            state.policy = policy;
            state.is_short = false;
            state.follow_depth();
            let waiting = state.fair.empty();
            match state.policy.clone() {
                Some(policy) => {
                    for (demand, waiter) in waiting {
                        let (key, terms) = policy.terms_of(&waiter.account);
                        state.fair.push(key, terms, demand, waiter, now);
                    }
                    self.dispatch(&mut state, now)
                }
                None => {
                    waiting.into_iter().map(|(demand, waiter)| self.let_go(&mut state, demand, waiter, now)).collect()
                }
            }
        };
        tell(told);
    }

    /// One goes that waited under a plan that is no more.
    fn let_go(&self, state: &mut State, demand: Demand, waiter: Waiter, now: Instant) -> (Sender<Ticket>, Ticket) {
        let demand = Demand { slots: 0, ..demand };
        let mut ticket = self.ticket(state, &waiter.account, FlowKey::Rest, demand, waiter.bytes, now);
        ticket.jumped = true;
        (waiter.sender, ticket)
    }

    /// Slots that a request takes: long ones keep a device for longer than those that want an answer soon should wait.
    fn slots_for(state: &State, bytes: u64) -> u32 {
        let slots = match state.depth.aim() {
            Aim::LowLatency => u32::try_from(bytes.div_ceil(SMALL_BYTES_MAX)).unwrap_or(u32::MAX).max(1),
            Aim::Balanced if bytes > SMALL_BYTES_MAX => 2,
            _ => 1,
        };
        slots.min(state.fair.slots())
    }

    /// Where this device's part of a database's deeds is counted.
    pub(crate) fn deeds<'a>(&self, account: &'a Account) -> &'a Deeds {
        if self.medium.flash { &account.flash } else { &account.disk }
    }

    /// Leave for a request of so many bytes, in its turn, or at once if it `jumps`. None: there is no plan any more.
    pub(crate) async fn pass(self: Arc<Self>, account: Arc<Account>, bytes: u64, jumps: bool) -> Option<Ticket> {
        let begun = self.clock.now();
        let (told, receiver) = {
            let mut state = lock(&self.state);
            let policy = state.policy.clone()?;
            let (key, terms) = policy.terms_of(&account);
            let demand = Demand { cost: state.meter.cost(bytes), slots: Self::slots_for(&state, bytes) };
            if jumps {
                return Some(self.jump(&mut state, (key, terms), &account, demand.cost, bytes, begun));
            }
            let (sender, receiver) = one_shot();
            let waiter = Waiter { account: account.clone(), bytes, sender };
            state.fair.push(key, terms, demand, waiter, begun);
            (self.dispatch(&mut state, begun), receiver)
        };
        let waiting = account.waits(bytes);
        tell(told);
        let ticket = receiver.await?;
        drop(waiting);
        self.deeds(&account).wait_ns.add(bytes, ticket.begun.ns_since(begun));
        Some(ticket)
    }

    fn jump(
        &self,
        state: &mut State,
        (key, terms): (FlowKey, Terms),
        account: &Arc<Account>,
        cost: u64,
        bytes: u64,
        now: Instant,
    ) -> Ticket {
        let taken_ns = state.meter.ns(cost);
        state.fair.jump(key, terms, cost, taken_ns, now);
        let mut ticket = self.ticket(state, account, key, Demand { cost, slots: 0 }, bytes, now);
        ticket.jumped = true;
        ticket
    }

    fn ticket(
        &self,
        state: &mut State,
        account: &Arc<Account>,
        key: FlowKey,
        demand: Demand,
        bytes: u64,
        now: Instant,
    ) -> Ticket {
        state.meter.begins(now);
        self.deeds(account).begins();
        Ticket {
            queue: self.arc(),
            account: account.clone(),
            key,
            slots: demand.slots,
            cost: demand.cost,
            taken_ns: state.meter.ns(demand.cost),
            bytes,
            begun: now,
            jumped: false,
        }
    }

    fn arc(&self) -> Arc<DeviceQueue> {
        self.me.upgrade().unwrap_or_else(|| unreachable!("it is called through an Arc"))
    }

    /// Whoever may go now.
    fn dispatch(&self, state: &mut State, now: Instant) -> Told {
        let mut told = Told::new();
        state.is_short = false;
        loop {
            let State { fair, meter, .. } = state;
            match fair.next(now, meter.is_measured(), |cost| meter.ns(cost)) {
                Next::Go { key, demand, what: Waiter { account, bytes, sender } } => {
                    let ticket = self.ticket(state, &account, key, demand, bytes, now);
                    told.push((sender, ticket));
                    Self::look(state, demand.cost, bytes);
                }
                Next::Nothing => return told,
                Next::Full => {
                    state.is_short = true;
                    return told;
                }
                Next::NotBefore(at) => {
                    self.wake_at(state, at);
                    return told;
                }
            }
        }
    }

    /// With the objective auto: what the device is used for.
    fn look(state: &mut State, cost: u64, bytes: u64) {
        if state.policy.as_ref().is_none_or(|policy| policy.objective != Objective::Auto) {
            return;
        }
        let (requests, all, large) = &mut state.looked;
        *requests += 1;
        *all += cost;
        *large += if bytes > SMALL_BYTES_MAX { cost } else { 0 };
        if *requests < AUTO_EVERY {
            return;
        }
        let aim = if *large * 2 > *all { Aim::HighThroughput } else { Aim::Balanced };
        state.looked = (0, 0, 0);
        state.depth.set_aim(aim);
        state.follow_depth();
    }

    /// Look again then, unless somebody does so earlier.
    fn wake_at(&self, state: &mut State, at: Instant) {
        if state.alarm.is_some_and(|alarm| alarm <= at) {
            return;
        }
        state.alarm = Some(at);
        let (me, timer) = (self.me.clone(), self.clock.sleep_until(at));
        self.spawn.spawn(Box::pin(async move {
            timer.await;
            let Some(queue) = me.upgrade() else { return };
            let told = {
                let mut state = lock(&queue.state);
                if state.alarm == Some(at) {
                    state.alarm = None;
                }
                let now = queue.clock.now();
                queue.dispatch(&mut state, now)
            };
            tell(told);
        }));
    }

    fn ended(&self, ticket: &Ticket) {
        let now = self.clock.now();
        let deeds = self.deeds(&ticket.account);
        let told = {
            let mut state = lock(&self.state);
            state.meter.ends(ticket.cost, now);
            let used_ns = state.meter.ns(ticket.cost);
            deeds.device_ns.add(ticket.bytes, used_ns);
            if !ticket.jumped {
                // What was taken for it was taken before anybody knew.
                state.fair.ended(ticket.key, ticket.slots, used_ns as i64 - ticket.taken_ns as i64);
            }
            let is_short = state.is_short;
            state.depth.ended(ticket.cost, now, is_short);
            state.follow_depth();
            if state.fair.waiting() == 0 { Told::new() } else { self.dispatch(&mut state, now) }
        };
        deeds.ends();
        deeds.time_ns.add(ticket.bytes, now.ns_since(ticket.begun));
        tell(told);
    }

    /// What it aims at now: 1 low latency, 2 balanced, 3 high throughput.
    pub(crate) fn aim(&self) -> u64 {
        lock(&self.state).depth.aim().mode()
    }

    /// Requests that wait, and slots that are taken.
    #[must_use]
    pub(crate) fn load(&self) -> (usize, u32) {
        let state = lock(&self.state);
        (state.fair.waiting(), state.fair.taken())
    }
}

/// A ticket whose request is gone is given back: so this is not for whoever holds the lock.
fn tell(told: Told) {
    for (sender, ticket) in told {
        sender.send(ticket);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let queue = self.queue.clone();
        queue.ended(self);
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({} slots, {})", self.slots, self.account.name())
    }
}

impl std::fmt::Debug for DeviceQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, taken) = self.load();
        write!(f, "DeviceQueue({waiting} wait, {taken} slots taken)")
    }
}
