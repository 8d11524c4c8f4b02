//! ALTER CELL: what concerns the cell as a whole. Never ignores what it cannot do.

use super::Context;
use super::change::{Refusal, Step, stood};
use super::history::{HISTORY_DAYS, HISTORY_DAYS_MAX, METRIC_COLLECTION};
use super::services;
use cellcli::command::{Change, Operation};
use cellcli::{ErrorCode, ObjectType, format};
use std::sync::Arc;

/// ALTER CELL.
pub(super) async fn alter(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    if let Some(Operation::Services { action, service }) = change.operation {
        return services::services(context, action, service, change.force, lines);
    }
    for setting in &change.settings {
        match setting.name {
            "name" | "comment" | METRIC_COLLECTION => {}
            "metricHistoryDays" => check_history_days(change)?,
            "notificationPolicy" => check_policy(change)?,
            "flashCacheMode" => {}
            other => return Err(Refusal::unsupported(format!("{other} of CELL"))),
        }
    }
    // First: it may be refused, and then nothing has changed.
    if let Some(mode) = change.choice(cell::FLASH_CACHE_MODE) {
        context.cell.set_flash_cache_mode(mode == "WriteBack").await?;
    }
    let (name, comment) = (change.text("name"), change.text("comment"));
    let changed = context.cell.store().alter_cell(|catalog| {
        if let Some(name) = name {
            name.clone_into(&mut catalog.cell_name);
        }
        match comment {
            Some("") => {
                catalog.attributes.remove("comment");
            }
            Some(comment) => {
                catalog.attributes.insert("comment".to_owned(), comment.to_owned());
            }
            None => {}
        }
        if let Some(days) = change.number("metricHistoryDays") {
            catalog.attributes.insert(HISTORY_DAYS.to_owned(), days.to_string());
        }
        match change.choice(METRIC_COLLECTION) {
            Some("FALSE") => {
                catalog.attributes.insert(METRIC_COLLECTION.to_owned(), "FALSE".to_owned());
            }
            Some(_) => drop_attribute(catalog, METRIC_COLLECTION),
            None => {}
        }
        match change.list("notificationPolicy") {
            Some([]) => drop_attribute(catalog, "notificationPolicy"),
            Some(policy) => {
                catalog.attributes.insert("notificationPolicy".to_owned(), policy.join(",").to_lowercase());
            }
            None => {}
        }
    });
    stood(changed.await?);
    context.keep_history();
    lines.push(format::altered(ObjectType::Cell, &context.cell_name()));
    Ok(())
}

fn drop_attribute(catalog: &mut celldisk::Catalog, name: &str) {
    catalog.attributes.remove(name);
}

fn check_history_days(change: &Change) -> Step {
    let days = change.number(HISTORY_DAYS).unwrap_or(0);
    if (1..=HISTORY_DAYS_MAX).contains(&days) {
        return Ok(());
    }
    let what = format!("metricHistoryDays={days} is not from 1 to {HISTORY_DAYS_MAX}");
    Err(Refusal::new(ErrorCode::InvalidValue, what, None))
}

fn check_policy(change: &Change) -> Step {
    const WORDS: [&str; 4] = ["critical", "warning", "info", "clear"];
    let given = change.list("notificationPolicy").unwrap_or(&[]);
    match given.iter().find(|word| !WORDS.iter().any(|known| known.eq_ignore_ascii_case(word))) {
        None => Ok(()),
        Some(word) => {
            let what = format!("notificationPolicy takes {}, not {word}", WORDS.join(", "));
            Err(Refusal::new(ErrorCode::InvalidValue, what, None))
        }
    }
}
