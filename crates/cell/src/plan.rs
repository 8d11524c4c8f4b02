//! The I/O resource plan: which database gets how much of each device, and whether it uses flash.
//!
//! [`Plan`] is what an operator states; the catalog keeps it. [`Iorm`] carries it out: it knows the databases that have
//! connected ([`Account`]) and has a [`queue::DeviceQueue`] for each device, which is the one place in the request path where a
//! request may be delayed. A request goes there before it takes its range: nobody waits in the plan while holding what others
//! need, but memory for its own data. The order of waiting is memory, plan, range, flash space, device.
//!
//! Never delays what the cell does for itself, nor flushes; never decides what is cached.

pub mod account;
mod depth;
mod fair;
pub(crate) mod iorm_plan;
mod meter;
pub(crate) mod numbers;
pub(crate) mod policy;
pub(crate) mod profile;
pub(crate) mod queue;
pub mod text;

pub use account::{Account, OTHER_DATABASE};
pub use iorm_plan::{Directive, Objective, Plan, PlanError, Subject};
pub use profile::Assignment;
pub(crate) use queue::{DeviceQueue, Medium, Ticket};

use celldisk::DeviceId;
use device::World;
use device::sync::lock;
use flashcache::{Quotas, Tenant};
use numbers::Numbers;
use policy::Policy;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Databases with figures of their own, beside those that the plan names: as many as a plan with shares may name. Names come from
/// clients: more of them are counted as [`OTHER_DATABASE`], until one has no connections any more.
const ACCOUNTS_MAX: usize = iorm_plan::SHARE_DIRECTIVES_MAX;

/// See the module.
pub struct Iorm {
    world: World,
    /// The plan may delay something.
    delays: Arc<AtomicBool>,
    rest: Arc<Account>,
    /// What the flash cache goes by.
    quotas: Arc<Quotas>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    plan: Arc<Plan>,
    policy: Option<Arc<Policy>>,
    /// By folded name.
    accounts: BTreeMap<String, Arc<Account>>,
    next_id: u32,
    numbers: Numbers,
    /// Of the flash cache.
    cache_bytes: u64,
    queues: BTreeMap<DeviceId, Arc<DeviceQueue>>,
}

impl Iorm {
    pub(crate) fn new(world: &World, quotas: Arc<Quotas>) -> Arc<Iorm> {
        let delays = Arc::new(AtomicBool::new(false));
        Arc::new(Iorm {
            world: World { prng: world.prng.fork("iorm"), ..world.clone() },
            rest: Arc::new(Account::new(0, OTHER_DATABASE, delays.clone())),
            delays,
            quotas,
            state: Mutex::new(State { next_id: 1, ..State::default() }),
        })
    }

    /// The plan in force.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        lock(&self.state).plan.clone()
    }

    /// Go by this plan from now on, requests that wait included.
    pub(crate) fn set(&self, plan: Plan) {
        let policy = Policy::of(&plan).map(Arc::new);
        let mut state = lock(&self.state);
        state.plan = Arc::new(plan);
        state.policy.clone_from(&policy);
        for account in state.accounts.values().chain([&self.rest]) {
            let (cache, log) = (state.plan.uses_flash_cache(account.tag()), state.plan.uses_flash_log(account.tag()));
            account.set_switches(cache, log);
        }
        self.share_cache(&state);
        // Requests may come to the queues first and find no plan there yet; none comes later than it may.
        self.delays.store(policy.is_some(), Ordering::Release);
        let queues: Vec<Arc<DeviceQueue>> = state.queues.values().cloned().collect();
        // Under the lock, so that of two plans the later one stays in every queue.
        queues.iter().for_each(|queue| queue.set_policy(policy.clone()));
    }

    /// Give numbers to all databases whose part of the flash cache a plan states, before it is set. Those that others had: what the
    /// cache holds of them is nobody's from now on.
    pub(crate) fn make_room(&self, plan: &Plan) -> Vec<Tenant> {
        let mut state = lock(&self.state);
        let taken = state.numbers.make_room(plan);
        let accounts = state.accounts.values().filter(|account| taken.contains(&account.tenant()));
        accounts.for_each(|account| account.set_tenant(Tenant::REST));
        taken
    }

    /// The flash cache has so many bytes.
    pub(crate) fn set_cache_bytes(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.cache_bytes = bytes;
        self.share_cache(&state);
    }

    /// Who has which number, and what he may have.
    fn share_cache(&self, state: &State) {
        for account in state.accounts.values() {
            account.set_tenant(state.numbers.of(&account.folded).unwrap_or(Tenant::REST));
        }
        let rest = |directive: &Directive| !matches!(directive.subject, Subject::Database(_));
        let counts = !state.plan.inactive && numbers::sized(&state.plan).any(rest);
        // Without, what has no tag costs the cache nothing.
        self.rest.set_tenant(if counts { Tenant::REST } else { Tenant::NOBODY });
        self.quotas.set(state.numbers.quotas(&state.plan, state.cache_bytes));
    }

    /// The number of a database in the flash cache; none where it is one of the rest.
    #[must_use]
    pub fn tenant_of(&self, database: &str) -> Option<Tenant> {
        lock(&self.state).numbers.of(&database.to_lowercase())
    }

    /// The database whose blocks these are; none where it is not known, or one of the rest.
    #[must_use]
    pub fn database_of(&self, tenant: Tenant) -> Option<Arc<str>> {
        lock(&self.state).numbers.name_of(tenant)
    }

    /// Nothing is delayed any more: the cell is about to stop. The plan stays as it is.
    pub fn open_gates(&self) {
        let mut state = lock(&self.state);
        state.policy = None;
        self.delays.store(false, Ordering::Release);
        state.queues.values().for_each(|queue| queue.set_policy(None));
    }

    /// The account of connections with this tag.
    pub(crate) fn account(&self, database: Option<&str>) -> Arc<Account> {
        let Some(name) = database else { return self.rest.clone() };
        let mut state = lock(&self.state);
        let folded = name.to_lowercase();
        if let Some(account) = state.accounts.get(&folded) {
            return account.clone();
        }
        if state.accounts.len() >= ACCOUNTS_MAX {
            let idle = state.accounts.iter().find(|(_, account)| Arc::strong_count(account) == 1);
            match idle.map(|(folded, _)| folded.clone()) {
                Some(folded) => drop(state.accounts.remove(&folded)),
                None if state.plan.names(name) => {}
                None => return self.rest.clone(),
            }
        }
        let account = Arc::new(Account::new(state.next_id, name, self.delays.clone()));
        state.next_id = state.next_id.wrapping_add(1).max(1);
        account.set_switches(state.plan.uses_flash_cache(database), state.plan.uses_flash_log(database));
        account.set_tenant(state.numbers.give(&folded, name));
        state.accounts.insert(folded, account.clone());
        if numbers::sized(&state.plan).next().is_some() {
            self.share_cache(&state);
        }
        account
    }

    /// Every database that has connected since the cell was started, in the order of names; what untagged connections do last.
    #[must_use]
    pub fn accounts(&self) -> Vec<Arc<Account>> {
        lock(&self.state).accounts.values().chain([&self.rest]).cloned().collect()
    }

    /// The queue of a device.
    pub(crate) fn queue(&self, id: DeviceId, medium: Medium) -> Arc<DeviceQueue> {
        let mut state = lock(&self.state);
        if let Some(queue) = state.queues.get(&id) {
            return queue.clone();
        }
        let queue = DeviceQueue::new(medium, self.world.clock.clone(), self.world.spawn.clone());
        queue.set_policy(state.policy.clone());
        state.queues.insert(id, queue.clone());
        queue
    }

    /// What the devices are aimed at, in the mean and in thousandths: 1000 low latency, 2000 balanced, 3000 high throughput. None
    /// without a plan that delays anything.
    #[must_use]
    pub fn mode_milli(&self) -> Option<u64> {
        let state = lock(&self.state);
        state.policy.as_ref()?;
        let sum: u64 = state.queues.values().map(|queue| queue.aim()).sum();
        (sum * 1_000).checked_div(state.queues.len() as u64)
    }

    /// Requests that wait in the plan now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.state).queues.values().map(|queue| queue.load().0).sum()
    }
}

impl std::fmt::Debug for Iorm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Iorm({:?})", self.plan())
    }
}
