//! A script that makes the same cell again: `flashcell backup`.
//!
//! It is made of the table of the language: what CREATE takes of an object is said there, what only ALTER takes behind it, and what stands as a
//! new object has it is left out. Nothing secret is in it: passwords, keys and tokens are no attributes. Only reads.

use super::{ConsoleError, Session, address_of};
use crate::admin::{Form, Outcome};
use crate::http::Client;
use cellcli::table::{Form as StatementForm, Kind, TargetKind};
use cellcli::{ObjectType, Verb};
use serde_json::{Map, Value};
use std::fmt::Write;

type Row = Map<String, Value>;

/// What a new object has where nothing is said.
const DEFAULTS: &[(ObjectType, &str, &str)] = &[
    (ObjectType::Cell, "metricCollection", "TRUE"),
    (ObjectType::Cell, "notificationMethod", "none"),
    (ObjectType::Cell, "smtpUseSSL", "FALSE"),
    (ObjectType::GridDisk, "cachingPolicy", "default"),
    (ObjectType::GridDisk, "fillStrategy", "read"),
    (ObjectType::GridDisk, "flashLogMode", "auto"),
    (ObjectType::GridDisk, "readOnly", "FALSE"),
    (ObjectType::MetricDefinition, "retentionPolicy", "Default"),
];

/// The script, of a cell named as in [`super::ConsoleOptions::cell`].
///
/// # Errors
/// See [`ConsoleError`]; the cell is asked once for each type of object.
pub fn backup(cell: Option<&str>) -> Result<String, ConsoleError> {
    let client = Client::new(address_of(cell)?).map_err(|error| ConsoleError::NoClient(error.to_string()))?;
    let session = Session::new(client, true, Form::Json);
    let rows = |object: ObjectType| list(&session, object);
    let cell = rows(ObjectType::Cell)?;
    let cell_disks = rows(ObjectType::CellDisk)?;
    let mut script = String::new();
    head(&mut script, &cell, &cell_disks);
    alter(&mut script, ObjectType::Cell, &cell, &["name", "flashCacheMode"]);
    alter(&mut script, ObjectType::CellDisk, &cell_disks, &["name"]);
    if cell_disks.iter().any(|row| text(row, "diskType") == "FlashDisk") {
        script.push_str("\nREM `flashcell init` has made a flash cache on all of the flash.\nDROP FLASHCACHE\n");
    }
    let mut grid_disks = rows(ObjectType::GridDisk)?;
    // As they lie on their cell disks.
    grid_disks.sort_by_key(|row| (text(row, "cellDisk"), row.get("offset").and_then(Value::as_u64)));
    make(&mut script, ObjectType::GridDisk, &grid_disks);
    // The flash log first: the cache takes what it is given.
    for object in [ObjectType::FlashLog, ObjectType::FlashCache, ObjectType::Pin] {
        make(&mut script, object, &rows(object)?);
    }
    let plan = rows(ObjectType::IormPlan)?;
    alter(&mut script, ObjectType::IormPlan, &plan, &["name"]);
    if plan.iter().any(|row| text(row, "status") == "inactive") {
        script.push_str("ALTER IORMPLAN INACTIVE\n");
    }
    for object in [ObjectType::Database, ObjectType::MetricDefinition] {
        alter(&mut script, object, &rows(object)?, &["name"]);
    }
    make(&mut script, ObjectType::Threshold, &rows(ObjectType::Threshold)?);
    for row in grid_disks.iter().filter(|row| text(row, "status") == "inactive") {
        let _ = writeln!(script, "ALTER GRIDDISK {} INACTIVE", quoted(&text(row, "name")));
    }
    Ok(script)
}

/// CREATE each object, then ALTER what CREATE does not take.
fn make(script: &mut String, object: ObjectType, rows: &[Row]) {
    let create = form(object, Verb::Create);
    let taken = create.setting_list(object.spec()).map(|setting| setting.name);
    let taken: Vec<&str> = taken.chain(["name"]).collect();
    for row in rows {
        say(script, object, create, row, &[]);
        if object.spec().takes(Verb::Alter) {
            alter(script, object, std::slice::from_ref(row), &taken);
        }
    }
}

/// ALTER each object, but for the options in `without`.
fn alter(script: &mut String, object: ObjectType, rows: &[Row], without: &[&str]) {
    rows.iter().for_each(|row| say(script, object, form(object, Verb::Alter), row, without));
}

fn list(session: &Session, object: ObjectType) -> Result<Vec<Row>, ConsoleError> {
    let word = object.spec().word;
    let mut rows = Vec::new();
    for Outcome { output, error } in
        session.ask(&format!("LIST {word} ATTRIBUTES ALL")).map_err(|error| ConsoleError::Refused(error.to_string()))?
    {
        if let Some(error) = error {
            return Err(ConsoleError::Refused(error.trim_end().to_owned()));
        }
        if !output.trim().is_empty() {
            let listed: Vec<Row> =
                serde_json::from_str(&output).map_err(|error| ConsoleError::Refused(error.to_string()))?;
            rows.extend(listed);
        }
    }
    Ok(rows)
}

/// What has to be there before the script is run.
fn head(script: &mut String, cell: &[Row], cell_disks: &[Row]) {
    let cell_name = cell.first().map(|row| text(row, "name")).unwrap_or_default();
    let version = cell.first().map(|row| text(row, "cellVersion")).unwrap_or_default();
    let mut init = format!("flashcell init {cell_name}");
    let _ = writeln!(script, "REM Cell {cell_name} ({version}): its configuration, without data and without secrets.");
    for row in cell_disks {
        let (bytes, what) = (text(row, "size"), text(row, "diskType"));
        let _ = writeln!(
            script,
            "REM Cell disk {}: {what}, {bytes} bytes, {}, true page {} bytes, on {}",
            text(row, "name"),
            text(row, "deviceClass"),
            text(row, "truePageSize"),
            text(row, "physicalDisk"),
        );
        let _ = write!(init, " --{} {bytes}", if what == "FlashDisk" { "flash" } else { "disk" });
    }
    let _ = writeln!(
        script,
        "REM It is for a new cell of the same name with as many devices, each as large at least:\n\
         REM     {init}        (or the paths of devices for the sizes)\n\
         REM     flashcell cellcli -c {cell_name} -e \"START 'this file'\"\n\
         REM cell.toml (listeners, users, roles), certificates and tokens are files of the cell's directory: they are not in here."
    );
}

/// The form of a statement about one object: with its name, where it has one of its own.
fn form(object: ObjectType, verb: Verb) -> &'static StatementForm {
    let is_of_one =
        |form: &&StatementForm| matches!(form.target, TargetKind::Whole | TargetKind::Name | TargetKind::Names);
    match object.spec().forms_of(verb).find(is_of_one) {
        Some(form) => form,
        None => unreachable!("the table has a form for one object of each type that a backup asks for"),
    }
}

/// The options of a statement that a row tells the values of, apart from some, and from what stands so without being said.
fn settings(object: ObjectType, form: &StatementForm, row: &Row, without: &[&str]) -> Vec<String> {
    let is_default = |name: &str, value: &str| {
        DEFAULTS.iter().any(|&(of, default, said)| of == object && default == name && said.eq_ignore_ascii_case(value))
    };
    let mut said = Vec::new();
    for setting in form.setting_list(object.spec()) {
        let value = text(row, setting.name);
        if without.contains(&setting.name) || value.is_empty() || is_default(setting.name, &value) {
            continue;
        }
        said.push(match setting.kind {
            Kind::Directives | Kind::Number | Kind::Size => format!("{}={value}", setting.name),
            _ => format!("{}={}", setting.name, quoted(&value)),
        });
    }
    said
}

/// A statement about the object of a row, if there is anything to say.
fn say(script: &mut String, object: ObjectType, form: &StatementForm, row: &Row, without: &[&str]) {
    let settings = settings(object, form, row, without);
    if !settings.is_empty() {
        let name =
            if form.target == TargetKind::Whole { String::new() } else { format!(" {}", quoted(&text(row, "name"))) };
        let _ = writeln!(script, "{} {}{name} {}", form.verb.word(), object.spec().word, settings.join(", "));
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A value as it is written in a statement; empty: none.
fn text(row: &Row, name: &str) -> String {
    match row.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what a row tells becomes a statement that says it again, and nothing else does. Method: rows by hand, read back by the parser.
    use super::*;

    fn row(json: &str) -> Row {
        serde_json::from_str(json).expect("a row is JSON")
    }

    #[test]
    fn a_grid_disk_is_made_with_what_differs_from_a_new_one() {
        let row = row(
            r#"{"name":"d'1","cellDisk":"CD_00_a","size":1048576,"cachingPolicy":"default","comment":"it's","offset":4194304,
            "availableTo":["a","b"],"readOnly":"FALSE","errorCount":3,"fillStrategy":"feed"}"#,
        );
        let mut script = String::new();
        make(&mut script, ObjectType::GridDisk, &[row]);
        let wanted = "CREATE GRIDDISK 'd''1' cellDisk='CD_00_a', size=1048576, availableTo='a,b', comment='it''s', fillStrategy='feed'\n";
        assert_eq!(script, wanted);
        assert!(cellcli::parse_one(script.trim()).is_ok());
    }

    #[test]
    fn nothing_is_said_where_nothing_is_to_be_said() {
        let row = row(r#"{"name":"x","fineGrained":"Disabled","retentionPolicy":"Default","streaming":"Disabled"}"#);
        let mut script = String::new();
        alter(&mut script, ObjectType::MetricDefinition, &[row], &["name"]);
        assert_eq!(script, "");
    }
}
