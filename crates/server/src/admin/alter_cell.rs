//! ALTER CELL: what concerns the cell as a whole. Never ignores what it cannot do.

use super::Context;
use super::change::{Refusal, Step, stood};
use super::history::{HISTORY_DAYS, HISTORY_DAYS_MAX, METRIC_COLLECTION};
use super::services;
use crate::alerting::mail::{self, Mail, MailError, MailPlan};
use cellcli::command::{Change, Operation};
use cellcli::{ErrorCode, ObjectType, format};
use std::collections::BTreeMap;
use std::sync::Arc;

/// ALTER CELL.
pub(super) async fn alter(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    if let Some(Operation::Services { action, service }) = change.operation {
        return services::services(context, action, service, change.force, lines);
    }
    if change.operation == Some(Operation::ValidateMail) {
        return validate_mail(context, lines).await;
    }
    for setting in &change.settings {
        match setting.name {
            "name" | "comment" | METRIC_COLLECTION => {}
            "metricHistoryDays" => check_history_days(change)?,
            "notificationPolicy" => check_policy(change)?,
            "flashCacheMode" => {}
            mail::METHOD | mail::SERVER | mail::PORT | mail::USE_SSL => {}
            mail::FROM | mail::FROM_ADDRESS | mail::TO_ADDRESSES => {}
            other => return Err(Refusal::unsupported(format!("{other} of CELL"))),
        }
    }
    let mail = mail_settings(change);
    check_mail(context, &mail)?;
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
        set_all(&mut catalog.attributes, &mail);
    });
    stood(changed.await?);
    context.keep_history();
    lines.push(format::altered(ObjectType::Cell, &context.cell_name()));
    Ok(())
}

/// What a statement says of mail: attributes with their new values, `None` to forget one.
fn mail_settings(change: &Change) -> Vec<(&'static str, Option<String>)> {
    let one = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut settings = Vec::new();
    for name in [mail::SERVER, mail::FROM, mail::FROM_ADDRESS] {
        settings.extend(change.text(name).map(|text| (name, one(text))));
    }
    settings.extend(change.list(mail::METHOD).map(|list| (mail::METHOD, one(&list.join(",").to_lowercase()))));
    settings.extend(change.list(mail::TO_ADDRESSES).map(|list| (mail::TO_ADDRESSES, one(&list.join(",")))));
    settings.extend(change.number(mail::PORT).map(|port| (mail::PORT, Some(port.to_string()))));
    settings.extend(change.choice(mail::USE_SSL).map(|word| (mail::USE_SSL, one(word))));
    settings
}

fn set_all(attributes: &mut BTreeMap<String, String>, settings: &[(&'static str, Option<String>)]) {
    for (name, value) in settings {
        match value {
            Some(value) => attributes.insert((*name).to_owned(), value.clone()),
            None => attributes.remove(*name),
        };
    }
}

/// Mail that is switched on has all it needs, before and after a change.
fn check_mail(context: &Context, settings: &[(&'static str, Option<String>)]) -> Step {
    if settings.is_empty() {
        return Ok(());
    }
    let mut attributes = context.cell.store().catalog().attributes.clone();
    set_all(&mut attributes, settings);
    mail::check(&attributes)?;
    if mail::is_wanted(&attributes) {
        MailPlan::new(&attributes, context.hooks.mail_access())?;
    }
    Ok(())
}

/// Send a mail to each address, and say what became of it.
async fn validate_mail(context: &Context, lines: &mut Vec<String>) -> Step {
    let attributes = context.cell.store().catalog().attributes.clone();
    let plan = MailPlan::new(&attributes, context.hooks.mail_access())?;
    let (trial, mut failed) = (Mail::trial(&context.cell_name()), Vec::new());
    for to in plan.addresses() {
        match context.hooks.try_mail(&plan, to, &trial).await {
            Ok(()) => lines.push(format!("A test mail to {to} was taken by {}.", plan.place())),
            Err(error) => failed.push(format!("{to}: {error}")),
        }
    }
    if !failed.is_empty() {
        let what = format!("{} did not take a mail to {}", plan.place(), failed.join("; "));
        let hint = "LIST CELL ATTRIBUTES smtpServer, smtpPort, smtpUseSSL, smtpToAddr; user, password_file and ca are in [alerts.mail] of cell.toml";
        return Err(Refusal::new(ErrorCode::NotPermittedNow, what, Some(hint)));
    }
    if !mail::is_wanted(&attributes) {
        lines.push("Alerts do not go by mail yet: ALTER CELL notificationMethod='mail'".to_owned());
    }
    Ok(())
}

impl From<MailError> for Refusal {
    fn from(error: MailError) -> Refusal {
        let (code, hint) = match &error {
            MailError::Missing(_) => (
                ErrorCode::MissingOption,
                Some(
                    "ALTER CELL smtpServer='mail.example', smtpFromAddr='cell@example', smtpToAddr='dba@example', notificationMethod='mail'",
                ),
            ),
            MailError::PasswordInTheClear => (ErrorCode::InvalidValue, Some("ALTER CELL smtpUseSSL=TRUE")),
            MailError::NotAMethod(_) => (
                ErrorCode::InvalidValue,
                Some("programs and webhooks are told as [alerts] of cell.toml says, with any method"),
            ),
            MailError::NotAnAddress { .. }
            | MailError::NotAHost(_)
            | MailError::NotAPort(_)
            | MailError::TooMany(_) => (ErrorCode::InvalidValue, None),
        };
        Refusal::new(code, error.to_string(), hint)
    }
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
