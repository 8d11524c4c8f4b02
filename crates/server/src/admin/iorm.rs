//! IORMPLAN, IORMPROFILE and DATABASE: what is shown of the I/O resource plan, and how a statement changes it.
//!
//! Never takes what it does not carry out: category and cluster plans are refused by name.

use super::Context;
use super::change::{Refusal, Step};
use cell::PlanChange;
use cell::plan::{Directive, Objective, Plan, Subject, text};
use cellcli::command::{Change, Operation, SettingValue, Target};
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

/// The profiles that the plan states.
pub(super) fn profiles(context: &Context) -> Vec<Row> {
    let plan = context.cell.iorm().plan();
    plan.profiles().map(|directive| profile(&plan, directive)).collect()
}

fn number(n: Option<u32>) -> Option<Value> {
    n.map(|n| Value::Integer(i64::from(n)))
}

fn size(bytes: Option<u64>) -> Option<Value> {
    bytes.map(Value::SizeBytes)
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn profile(plan: &Plan, of: &Directive) -> Row {
    let name = of.subject.name();
    let row = Row::new(ObjectType::IormProfile)
        .with("name", name)
        .with("databases", Value::List(plan.databases_of(name).map(str::to_owned).collect()))
        .with("flashCache", on_or_off(of.flash_cache.unwrap_or(true)))
        .with("flashLog", on_or_off(of.flash_log.unwrap_or(true)));
    let stated = [
        ("allocation", number(of.allocation)),
        ("flashCacheLimit", size(of.flash_cache_limit_bytes)),
        ("flashCacheMin", size(of.flash_cache_min_bytes)),
        ("flashCacheSize", size(of.flash_cache_size_bytes)),
        ("level", number(of.level)),
        ("limit", number(of.limit)),
        ("share", number(of.share)),
    ];
    with_stated(row, stated)
}

/// With those attributes that there is a value of.
fn with_stated<const N: usize>(row: Row, stated: [(&'static str, Option<Value>); N]) -> Row {
    let given = stated.into_iter().filter_map(|(attribute, value)| Some((attribute, value?)));
    given.fold(row, |row, (attribute, value)| row.with(attribute, value))
}

/// Databases that have connected, and those that the plan names.
pub(super) fn databases(context: &Context) -> Vec<Row> {
    let iorm = context.cell.iorm();
    let plan = iorm.plan();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for directive in plan.in_force() {
        if let Subject::Database(name) = &directive.subject {
            names.insert(name.to_lowercase(), name.clone());
        }
    }
    for account in iorm.accounts().iter().filter(|account| account.name() != cell::plan::OTHER_DATABASE) {
        names.entry(account.name().to_lowercase()).or_insert_with(|| account.name().to_owned());
    }
    names.into_values().map(|name| database(context, &plan, name)).collect()
}

fn database(context: &Context, plan: &Plan, name: String) -> Row {
    let stated = plan.stated(&name);
    let profile = plan.profile_of(&name).map(Value::from);
    let tenant = context.cell.iorm().tenant_of(&name);
    let used = context.cell.flash_cache().zip(tenant).map(|(cache, tenant)| cache.tenant_bytes(tenant));
    let row = Row::new(ObjectType::Database)
        .with("flashCache", on_or_off(plan.uses_flash_cache(Some(&name))))
        .with("flashLog", on_or_off(plan.uses_flash_log(Some(&name))))
        .with("name", name);
    let stated = [
        ("flashCacheLimit", size(stated.and_then(|d| d.flash_cache_limit_bytes))),
        ("flashCacheMin", size(stated.and_then(|d| d.flash_cache_min_bytes))),
        ("flashCacheSize", size(stated.and_then(|d| d.flash_cache_size_bytes))),
        ("flashCacheUsed", size(used)),
        ("iormLimit", number(stated.and_then(|d| d.limit))),
        ("iormShare", number(stated.and_then(|d| d.share))),
        ("profile", profile),
    ];
    with_stated(row, stated)
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
    context.cell.alter_iorm_plan(PlanChange { objective, directives, active, profiles: Vec::new() }).await?;
    lines.push(format::altered(ObjectType::IormPlan, &plan_name(&context.cell_name())));
    Ok(())
}

/// ALTER DATABASE: all that are named at once, or none.
pub(super) async fn alter_databases(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let Some(profile) = change.text("profile") else {
        return Err(Refusal::unsupported("such a change of a database"));
    };
    let profile = (!profile.is_empty()).then(|| profile.to_owned());
    let databases = match &change.target {
        // One that has not connected yet may get a profile, as it may have a directive.
        Target::Names(names) if profile.is_some() => names.clone(),
        _ => super::change::targets(context, change)?,
    };
    let profiles = databases.iter().map(|database| (database.clone(), profile.clone())).collect();
    context.cell.alter_iorm_plan(PlanChange { profiles, ..PlanChange::default() }).await?;
    lines.extend(databases.iter().map(|database| format::altered(ObjectType::Database, database)));
    Ok(())
}
