//! The plan in force as the scheduler asks it: terms by database, found without looking through all directives.
//!
//! Never changes; another plan is another policy.

use crate::plan::account::Account;
use crate::plan::fair::{FlowKey, SHARE_WEIGHT, Terms, Weight};
use crate::plan::iorm_plan::{Directive, Kind, Objective, Plan, Subject};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) objective: Objective,
    /// By folded name.
    stated: BTreeMap<String, Terms>,
    rest: Terms,
    /// Each without a directive is for itself.
    each: bool,
}

impl Policy {
    /// None: the plan delays nothing.
    pub(crate) fn of(plan: &Plan) -> Option<Policy> {
        if !plan.delays() {
            return None;
        }
        let kind = plan.kind();
        let terms = |directive: &Directive| Terms {
            weight: match (kind, directive.level, directive.allocation) {
                (Kind::Levels, Some(level), Some(allocation)) => Weight::Level { level, allocation },
                _ => Weight::Share(u64::from(directive.share.unwrap_or(1)) * SHARE_WEIGHT),
            },
            limit: directive.limit.filter(|limit| *limit < 100),
        };
        let named = plan.in_force().iter().filter_map(|directive| match &directive.subject {
            Subject::Database(name) => Some((name.to_lowercase(), terms(directive))),
            _ => None,
        });
        let rest = plan.in_force().iter().find(|d| !matches!(d.subject, Subject::Database(_)));
        let one_share = Terms { weight: Weight::Share(SHARE_WEIGHT), limit: None };
        Some(Policy {
            objective: plan.objective,
            stated: named.collect(),
            rest: rest.map_or(one_share, terms),
            each: rest.is_none_or(|d| d.subject == Subject::Default),
        })
    }

    /// What counts for a database, and with whom it shares it.
    pub(crate) fn terms_of(&self, account: &Account) -> (FlowKey, Terms) {
        let stated = account.tag().and_then(|_| self.stated.get(&account.folded));
        match stated {
            Some(terms) => (FlowKey::Database(account.id), *terms),
            None if self.each && account.tag().is_some() => (FlowKey::Database(account.id), self.rest),
            None => (FlowKey::Rest, self.rest),
        }
    }
}
