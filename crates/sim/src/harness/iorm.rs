//! I/O resource plans of the administrator: each database of the run gets something, and a restart finds the plan as it was acknowledged.
//!
//! What requests answer under a plan is the model's business; who gets how much is that of the tests of the plan.

use super::admin::Pending;
use super::stage::{Life, Run};
use cell::PlanChange;
use cell::plan::{Assignment, Directive, Objective, Plan, Subject};
use cell::{AdminError, Cell};
use device::Prng;
use device::sync::lock;
use std::sync::Arc;

/// Databases of a run: few, so that they share grid disks.
const DATABASES: u64 = 3;

/// The tag of the sessions of a client; every other client has none.
pub(super) fn database_of(client: u64) -> Option<Arc<str>> {
    client.is_multiple_of(2).then(|| Arc::from(format!("DB{}", client / 2 % DATABASES)))
}

/// Sizes of the flash cache, drawn apart. Small ones, so that all that is guaranteed fits the smallest cache, of 512 KiB.
fn add_sizes(prng: &mut Prng, all: &mut [Directive]) {
    const KIB: u64 = 1 << 10;
    for one in all {
        if prng.chance(1, 2) {
            continue;
        }
        let least = if one.subject == Subject::Default { 0 } else { prng.between(0, 24) * 4 * KIB };
        one.flash_cache_min_bytes = prng.chance(1, 2).then_some(least).filter(|least| *least > 0);
        match prng.below(3) {
            0 => one.flash_cache_limit_bytes = Some(least + prng.between(0, 64) * 4 * KIB),
            1 => one.flash_cache_size_bytes = Some(4 << 20),
            _ => {}
        }
    }
}

fn directives(prng: &mut Prng) -> Vec<Directive> {
    let mut sizes = Prng::new(prng.clone().next_u64());
    let levels = prng.chance(1, 4);
    let mut all = Vec::new();
    for n in 0..DATABASES {
        if prng.chance(1, 4) {
            continue;
        }
        let mut one = Directive::of(Subject::Database(format!("DB{n}")));
        if levels {
            (one.level, one.allocation) = (Some(prng.between(1, 3) as u32), Some(prng.between(0, 30) as u32));
        } else if prng.chance(2, 3) {
            one.share = Some(prng.between(1, 32) as u32);
        }
        // Requests have to end within the time that a run gives them.
        one.limit = prng.chance(1, 4).then(|| prng.between(30, 100) as u32);
        one.flash_cache = prng.chance(1, 2).then(|| prng.chance(1, 2));
        one.flash_log = prng.chance(1, 2).then(|| prng.chance(1, 2));
        all.push(one);
    }
    let subject = if levels { Subject::Other } else { Subject::Default };
    if levels || prng.chance(1, 2) {
        let mut rest = Directive::of(subject);
        if levels {
            (rest.level, rest.allocation) = (Some(4), Some(50));
        }
        rest.flash_cache = prng.chance(1, 4).then_some(false);
        all.push(rest);
    }
    add_sizes(&mut sizes, &mut all);
    all
}

/// Some directives of databases as profiles that they have, drawn apart.
fn as_profiles(pick: u64, stated: &mut [Directive]) -> Vec<Assignment> {
    let mut prng = Prng::new(pick).fork("profiles");
    let mut all = Vec::new();
    for one in stated {
        let Subject::Database(database) = &one.subject else { continue };
        if prng.chance(1, 3) {
            let (database, profile) = (database.clone(), format!("P{}", prng.below(1000)));
            if !all.iter().any(|other: &Assignment| other.profile == profile) {
                one.subject = Subject::Profile(profile.clone());
                all.push(Assignment { database, profile });
            }
        }
    }
    all
}

impl Run {
    pub(super) async fn state_plan(self: &Arc<Self>, life: &Life, pick: u64) {
        let mut prng = Prng::new(pick);
        let objective = Objective::ALL[prng.below(Objective::ALL.len() as u64) as usize];
        let inactive = prng.chance(1, 8);
        let mut stated = if prng.chance(1, 5) { Vec::new() } else { directives(&mut prng) };
        let assignments = as_profiles(pick, &mut stated);
        self.alter_plan(life, objective, inactive, stated, assignments).await;
    }

    /// No plan any more.
    pub(super) async fn end_plan(self: &Arc<Self>, life: &Life) {
        let _turn = self.admin_turn.acquire(1).await;
        self.alter_plan(life, Objective::Auto, false, Vec::new(), Vec::new()).await;
    }

    async fn alter_plan(
        self: &Arc<Self>,
        life: &Life,
        objective: Objective,
        inactive: bool,
        stated: Vec<Directive>,
        assignments: Vec<Assignment>,
    ) {
        let Ok(plan) = Plan::with_profiles(objective, inactive, stated.clone(), assignments.clone()) else {
            return self.violate("I8", format!("a plan of the run contradicts itself: {stated:?}"));
        };
        let profile_of =
            |database: &str| assignments.iter().find(|one| one.database == database).map(|one| one.profile.clone());
        let change = PlanChange {
            objective: Some(objective),
            directives: Some(stated),
            active: Some(!inactive),
            profiles: (0..DATABASES).map(|n| (format!("DB{n}"), profile_of(&format!("DB{n}")))).collect(),
        };
        let (before, waited) = (life.cell.iorm().plan(), life.cell.iorm().waiting());
        let cell = life.cell.clone();
        let acked = plan.clone();
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => {
                run.situations.hit(if acked.delays() {
                    "admin: I/O plan that delays"
                } else {
                    "admin: I/O plan that delays nobody"
                });
                if waited > 0 {
                    run.situations.hit("admin: I/O plan changed while requests wait for it");
                }
                if !acked.assignments().is_empty() {
                    run.situations.hit("admin: I/O plan with profiles that databases have");
                }
                lock(&run.admin).plan = acked;
            }
            Err(error) => run.judge("state an I/O plan", &error),
        };
        lock(&self.admin).plan = (*before).clone();
        self.command(life, Pending::Plan(Box::new(plan)), async move { cell.alter_iorm_plan(change).await }, then)
            .await;
    }

    /// Whose the blocks of the flash cache are is counted as the index has it.
    pub(super) fn check_tally(&self, cell: &Cell) {
        if let Some((tenant, counted, found)) = cell.flash_cache().and_then(|cache| cache.miscounted()) {
            let whose = cell.iorm().database_of(tenant);
            self.violate(
                "I8",
                format!("{counted} parts of flash are counted for {tenant:?} ({whose:?}), who has {found}"),
            );
        }
    }

    /// What a life has done under plans.
    pub(super) fn note_plan(&self, life: &Life) {
        for disk in life.cell.grid_disks() {
            self.situations
                .hit_times("I/O plan: read past the cache", disk.counters.cache_read_skips_plan.requests.get());
            self.situations
                .hit_times("I/O plan: write past the cache", disk.counters.cache_write_skips_plan.requests.get());
        }
        self.check_tally(&life.cell);
        let accounts = life.cell.iorm().accounts();
        let waits = accounts.iter().filter(|account| account.disk.wait_ns.all() + account.flash.wait_ns.all() > 0);
        self.situations.hit_times("I/O plan: a database has waited", waits.count() as u64);
    }

    /// A restart has this plan: the one acknowledged, unless a change was under way.
    pub(super) fn check_plan(&self, cell: &Cell, pending: &[Pending]) {
        let found = cell.iorm().plan();
        let known = std::mem::replace(&mut lock(&self.admin).plan, (*found).clone());
        let under_way = pending.iter().any(|p| matches!(p, Pending::Plan(of) if **of == *found));
        if known == *found {
            if known != Plan::default() {
                self.situations.hit("I/O plan found again after a restart");
            }
        } else if under_way {
            self.situations.hit("crash in a change of the I/O plan: it had happened");
        } else if !lock(&self.book).names_loose {
            self.violate("I2", format!("the I/O plan is {found:?} after a restart, not {known:?}"));
        }
    }
}
