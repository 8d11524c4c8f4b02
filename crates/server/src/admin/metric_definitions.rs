//! METRICDEFINITION: the metrics there are, and how long the history of each is kept.
//!
//! What is kept for a year is an attribute of the catalog for each such metric. Never collects anything: METRICCURRENT is read when it is
//! asked for, so there is nothing to collect in a finer grain, and who wants a stream takes `/metrics`.

use super::Context;
use super::change::{Refusal, Step, stood, targets};
use super::rows::metric_definition;
use cell::metrics::{Definition, Formula, definition, definitions};
use cellcli::command::Change;
use cellcli::{ErrorCode, ObjectType, Row, format};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the keys of metrics kept for a year begin with, among the attributes of the catalog.
const KEY: &str = "annual.";
/// Metrics kept for a year: what the catalog has room for beside its thresholds.
const ANNUAL_MAX: usize = 64;

/// The metrics kept for a year.
fn annual(attributes: &BTreeMap<String, String>) -> BTreeSet<&'static str> {
    let named = attributes.keys().filter_map(|key| key.strip_prefix(KEY));
    named.filter_map(definition).map(|it| it.name).collect()
}

/// The counters that the metrics kept for a year are made of.
pub(super) fn annual_counters(attributes: &BTreeMap<String, String>) -> BTreeSet<&'static str> {
    let of = |it: &Definition| match it.formula {
        Formula::Counter(_) | Formula::Gauge(_) => vec![it.name],
        Formula::PerSecond(base) | Formula::PerMinute(base) | Formula::ShareOfTime(base) => vec![base],
        Formula::PerRequest(base, requests) => vec![base, requests],
    };
    annual(attributes).into_iter().filter_map(definition).flat_map(of).collect()
}

pub(super) fn rows(context: &Context) -> Vec<Row> {
    let annual = annual(&context.cell.store().catalog().attributes);
    let policy = |it: &Definition| if annual.contains(it.name) { "Annual" } else { "Default" };
    definitions().map(|it| metric_definition(it).with("retentionPolicy", policy(it))).collect()
}

/// ALTER METRICDEFINITION.
pub(super) async fn alter(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let names = targets(context, change)?;
    if let Some(policy) = change.choice("retentionPolicy") {
        let for_a_year = policy == "Annual";
        let mut all = annual(&context.cell.store().catalog().attributes);
        all.extend(names.iter().filter_map(|name| definition(name)).map(|it| it.name).filter(|_| for_a_year));
        if for_a_year && all.len() > ANNUAL_MAX {
            let what = format!("{} metrics would be kept for a year, and {ANNUAL_MAX} can be", all.len());
            let hint = "ALTER METRICDEFINITION ... retentionPolicy=Default for others; metricHistoryDays is for all";
            return Err(Refusal::new(ErrorCode::NoSpace, what, Some(hint)));
        }
        let changed = context.cell.store().alter_cell(|catalog| {
            for name in &names {
                let key = format!("{KEY}{name}");
                if for_a_year {
                    catalog.attributes.insert(key, String::new());
                } else {
                    catalog.attributes.remove(&key);
                }
            }
        });
        stood(changed.await?);
        context.keep_history();
    }
    lines.extend(names.iter().map(|name| format::altered(ObjectType::MetricDefinition, name)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_as_what_they_are_made_of() {
        let key = |name: &str| (format!("{KEY}{name}"), String::new());
        let attributes = BTreeMap::from([
            key("CD_IO_TM_R_SM_RQ"),
            key("FC_BY_USED"),
            key("NO_LONGER_THERE"),
            ("comment".to_owned(), "annual.FC_BY_DIRTY".to_owned()),
        ]);
        let made_of = BTreeSet::from(["CD_IO_TM_R_SM", "CD_IO_RQ_R_SM", "FC_BY_USED"]);
        assert_eq!(annual_counters(&attributes), made_of);
        assert_eq!(annual(&attributes), BTreeSet::from(["CD_IO_TM_R_SM_RQ", "FC_BY_USED"]));
    }
}
