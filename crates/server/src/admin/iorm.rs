//! IORMPLAN and DATABASE: what is shown of the I/O resource plan, and how a statement changes it.
//!
//! Never takes what it does not carry out: category and cluster plans are refused by name.

use super::Context;
use super::change::{Refusal, Step};
use cell::iorm::{Directive, Objective, Plan, PlanChange, Subject, text};
use cellcli::command::{Change, Operation, SettingValue};
use cellcli::{ErrorCode, ObjectType, Row, Value, format};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of the plan of a cell.
fn plan_name(cell_name: &str) -> String {
    format!("{cell_name}_IORMPLAN")
}

/// The plan.
pub(super) fn plan(context: &Context) -> Row {
    let plan = context.cell.iorm().plan();
    Row::new(ObjectType::IormPlan)
        .with("name", plan_name(&context.cell_name()))
        .with("catPlan", "")
        .with("dbPlan", text::directives(&plan))
        .with("objective", plan.objective.word())
        .with("status", if plan.inactive { "inactive" } else { "active" })
}

/// Databases that have connected, and those that the plan names.
pub(super) fn databases(context: &Context) -> Vec<Row> {
    let iorm = context.cell.iorm();
    let plan = iorm.plan();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for directive in plan.directives() {
        if let Subject::Database(name) = &directive.subject {
            names.insert(name.to_lowercase(), name.clone());
        }
    }
    for account in iorm.accounts().iter().filter(|account| account.name() != cell::iorm::OTHER_DATABASE) {
        names.entry(account.name().to_lowercase()).or_insert_with(|| account.name().to_owned());
    }
    names.into_values().map(|name| database(context, &plan, name)).collect()
}

fn database(context: &Context, plan: &Plan, name: String) -> Row {
    let on_or_off = |on: bool| if on { "on" } else { "off" };
    let stated = plan.stated(&name);
    let number = |n: Option<u32>| n.map(|n| Value::Integer(i64::from(n)));
    let size = |bytes: Option<u64>| bytes.map(Value::SizeBytes);
    let tenant = context.cell.iorm().tenant_of(&name);
    let used = context.cell.flash_cache().zip(tenant).map(|(cache, tenant)| cache.tenant_bytes(tenant));
    let mut row = Row::new(ObjectType::Database)
        .with("flashCache", on_or_off(plan.uses_flash_cache(Some(&name))))
        .with("flashLog", on_or_off(plan.uses_flash_log(Some(&name))))
        .with("name", name);
    for (attribute, value) in [
        ("flashCacheLimit", size(stated.and_then(|d| d.flash_cache_limit_bytes))),
        ("flashCacheMin", size(stated.and_then(|d| d.flash_cache_min_bytes))),
        ("flashCacheSize", size(stated.and_then(|d| d.flash_cache_size_bytes))),
        ("flashCacheUsed", size(used)),
        ("iormLimit", number(stated.and_then(|d| d.limit))),
        ("iormShare", number(stated.and_then(|d| d.share))),
    ] {
        if let Some(value) = value {
            row = row.with(attribute, value);
        }
    }
    row
}

/// ALTER IORMPLAN.
pub(super) async fn alter(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    if let Some(SettingValue::Directives(directives)) = change.setting("catPlan")
        && !directives.is_empty()
    {
        let what = "catplan: connections carry no category, so that a category plan";
        return Err(Refusal::unsupported(what));
    }
    let active = match change.operation {
        None => None,
        Some(Operation::Active) => Some(true),
        Some(Operation::Inactive) => Some(false),
        Some(_) => return Err(Refusal::unsupported("such an operation on the plan")),
    };
    let objective = match change.choice("objective") {
        None => None,
        Some(word) => Some(Objective::from_word(word).ok_or_else(|| {
            Refusal::new(ErrorCode::InvalidValue, format!("objective={word} is none"), Some("HELP ALTER IORMPLAN"))
        })?),
    };
    let directives = match change.setting("dbPlan") {
        Some(SettingValue::Directives(stated)) => {
            let all: Result<Vec<Directive>, _> = stated.iter().map(|pairs| text::directive_of(pairs)).collect();
            Some(all.map_err(cell::AdminError::from)?)
        }
        _ => None,
    };
    context.cell.alter_iorm_plan(PlanChange { objective, directives, active }).await?;
    lines.push(format::altered(ObjectType::IormPlan, &plan_name(&context.cell_name())));
    Ok(())
}
