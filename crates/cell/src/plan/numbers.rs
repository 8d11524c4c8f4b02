//! Which number of the flash cache a database has, and what the plan lets the numbers have.
//!
//! A database gets a number when it first connects, or when a plan states a size for it, and keeps it while the cell runs, unless a
//! plan needs the number for another: a plan comes before those who merely connect, since names come from clients. Who has none is
//! one of the rest. Never looks at the cache.

use crate::plan::iorm_plan::{Directive, Plan, Subject};
use flashcache::{Quota, TENANTS_MAX, Tenant, TenantSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module. By folded name: the number, and the name as it was first written.
#[derive(Debug, Default)]
pub(crate) struct Numbers(BTreeMap<String, (Tenant, Arc<str>)>);

impl Numbers {
    /// The number of a database, if it has one.
    pub(crate) fn of(&self, folded: &str) -> Option<Tenant> {
        self.0.get(folded).map(|(tenant, _)| *tenant)
    }

    /// The database with a number.
    pub(crate) fn name_of(&self, tenant: Tenant) -> Option<Arc<str>> {
        self.0.values().find(|(of, _)| *of == tenant).map(|(_, name)| name.clone())
    }

    fn free(&self) -> Option<Tenant> {
        let taken: TenantSet = self.0.values().map(|(tenant, _)| *tenant).collect();
        Tenant::all().find(|tenant| !taken.contains(*tenant))
    }

    /// The number of a database that connects: a new one if it has none and there is one; else it is one of the rest.
    pub(crate) fn give(&mut self, folded: &str, name: &str) -> Tenant {
        if let Some(tenant) = self.of(folded) {
            return tenant;
        }
        let Some(tenant) = self.free() else { return Tenant::REST };
        self.0.insert(folded.to_owned(), (tenant, Arc::from(name)));
        tenant
    }

    /// Numbers for all databases that a plan states sizes for, which are at most as many as there are numbers. Those that others had:
    /// they are one of the rest from now on.
    pub(crate) fn make_room(&mut self, plan: &Plan) -> Vec<Tenant> {
        let sized: BTreeMap<String, &str> = sized(plan)
            .filter_map(|directive| match &directive.subject {
                Subject::Database(name) => Some((name.to_lowercase(), name.as_str())),
                Subject::Other | Subject::Default | Subject::Profile(_) => None,
            })
            .collect();
        let mut taken = Vec::new();
        for (folded, name) in &sized {
            if self.give(folded, name) == Tenant::REST {
                let victim = self.0.keys().find(|other| !sized.contains_key(*other)).cloned();
                let Some((tenant, _)) = victim.and_then(|victim| self.0.remove(&victim)) else { continue };
                self.0.insert(folded.clone(), (tenant, Arc::from(*name)));
                taken.push(tenant);
            }
        }
        taken
    }

    /// What a plan lets the numbers have of a flash cache of so many bytes.
    pub(crate) fn quotas(&self, plan: &Plan, cache_bytes: u64) -> Vec<Quota> {
        if plan.inactive {
            return Vec::new();
        }
        let reserves = plan.reserved_bytes() <= Plan::guaranteed_bytes_max(cache_bytes);
        let quota = |directive: &Directive, tenants: TenantSet, is_each: bool| {
            let size = directive.flash_cache_size_bytes.filter(|_| reserves).unwrap_or(0);
            let least = directive.flash_cache_min_bytes.unwrap_or(0).max(size);
            Quota {
                tenants,
                min_bytes: if is_each { 0 } else { plan.cut_to(least, cache_bytes) },
                limit_bytes: directive.flash_cache_limit_bytes,
                size_bytes: directive.flash_cache_size_bytes,
            }
        };
        let mut all = Vec::new();
        for directive in sized(plan) {
            if let Subject::Database(name) = &directive.subject {
                let tenants = self.of(&name.to_lowercase()).into_iter().collect();
                all.push(quota(directive, tenants, false));
                continue;
            }
            let unnamed = self.0.iter().filter(|(folded, _)| !plan.names(folded)).map(|(_, (tenant, _))| *tenant);
            let caught = unnamed.chain([Tenant::REST]);
            if directive.subject == Subject::Other {
                all.push(quota(directive, caught.collect(), false));
            } else {
                all.extend(caught.map(|tenant| quota(directive, [tenant].into_iter().collect(), true)));
            }
        }
        all
    }
}

/// The directives that state how much of the flash cache somebody may have.
pub(crate) fn sized(plan: &Plan) -> impl Iterator<Item = &Directive> {
    plan.in_force().iter().filter(|directive| directive.is_sized())
}

/// Databases that a plan may state sizes for.
pub(crate) const SIZED_MAX: usize = TENANTS_MAX as usize;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: numbers stay with who has them, a plan gets those it needs, and what it says reaches the numbers it is about.
    use super::*;
    use crate::plan::Objective;

    const G: u64 = 1 << 30;

    fn of(name: &str, min: Option<u64>, limit: Option<u64>, size: Option<u64>) -> Directive {
        Directive {
            flash_cache_min_bytes: min,
            flash_cache_limit_bytes: limit,
            flash_cache_size_bytes: size,
            ..Directive::of(Subject::named(name))
        }
    }

    fn plan(directives: Vec<Directive>) -> Plan {
        Plan::new(Objective::Auto, false, directives).unwrap()
    }

    #[test]
    fn who_connects_gets_a_number_until_there_is_none_and_a_plan_comes_first() {
        let mut numbers = Numbers::default();
        let first = numbers.give("a", "A");
        assert_eq!((numbers.give("a", "a"), numbers.name_of(first).as_deref()), (first, Some("A")));
        for n in 1..u32::from(TENANTS_MAX) {
            assert!(Tenant::all().any(|tenant| tenant == numbers.give(&format!("d{n}"), "")));
        }
        assert_eq!(numbers.give("late", "LATE"), Tenant::REST);
        let stated = plan(vec![of("A", Some(G), None, None), of("NEW", None, None, Some(G))]);
        let taken = numbers.make_room(&stated);
        assert_eq!((taken.len(), numbers.of("new"), numbers.of("a")), (1, Some(taken[0]), Some(first)));
        assert!(numbers.make_room(&stated).is_empty());
    }

    #[test]
    fn other_is_one_and_default_is_each() {
        let mut numbers = Numbers::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| numbers.give(name, name));
        let set = |all: &[Tenant]| all.iter().copied().collect::<TenantSet>();
        let other = numbers.quotas(&plan(vec![of("A", None, None, Some(G)), of("other", Some(G), None, None)]), 10 * G);
        let found: Vec<_> = other.iter().map(|q| (q.tenants, q.min_bytes, q.size_bytes)).collect();
        assert_eq!(found, [(set(&[a]), G, Some(G)), (set(&[b, c, Tenant::REST]), G, None)]);
        let each =
            numbers.quotas(&plan(vec![of("A", None, None, Some(G)), of("default", None, Some(G), None)]), 10 * G);
        let found: Vec<_> = each.iter().map(|q| (q.tenants, q.min_bytes, q.limit_bytes)).collect();
        let rest = [b, c, Tenant::REST].map(|tenant| (set(&[tenant]), 0, Some(G)));
        assert_eq!(found[0], (set(&[a]), G, None));
        assert_eq!(found[1..], rest);
        assert!(
            numbers
                .quotas(&Plan::new(Objective::Auto, true, vec![of("A", None, None, Some(G))]).unwrap(), G)
                .is_empty()
        );
    }

    #[test]
    fn a_size_is_a_reservation_while_all_fit_and_the_least_shrinks_with_the_cache() {
        let mut numbers = Numbers::default();
        let _ = (numbers.give("a", "a"), numbers.give("b", "b"));
        let stated = plan(vec![of("a", Some(2 * G), None, Some(4 * G)), of("b", None, None, Some(4 * G))]);
        let mins = |bytes| numbers.quotas(&stated, bytes).iter().map(|q| q.min_bytes).collect::<Vec<_>>();
        assert_eq!(mins(10 * G), [4 * G, 4 * G]);
        assert_eq!(mins(9 * G), [2 * G, 0], "they do not fit: only the least is guaranteed");
        assert_eq!(mins(5 * G / 4), [G, 0], "80 % of what there is");
        assert_eq!(mins(0), [0, 0]);
    }
}
