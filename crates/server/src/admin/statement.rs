//! One text of CellCLI statements: parse, see whether the caller may, carry out one after the other, render.
//!
//! A failed statement does not stop those after it, as at a terminal. Every way to a change leads through [`run_one`].

use super::access::{Caller, Role};
use super::{Context, DateStyle, Form, Outcome, Request};
use super::{calibrate, change, metric_history};
use cellcli::command::{Command, DateFormat, List, Operation};
use cellcli::{ErrorCode, ObjectType, Row, Value, failure_text, format, help, parse_script, select};
use device::sync::lock;
use std::sync::Arc;

/// What a database may look at, as far as it is its own.
const OF_DATABASES: [ObjectType; 6] = [
    ObjectType::GridDisk,
    ObjectType::Pin,
    ObjectType::MetricCurrent,
    ObjectType::MetricDefinition,
    ObjectType::MetricHistory,
    ObjectType::Database,
];

/// How answers are to look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    pub(super) form: Form,
    pub(super) dates: DateStyle,
}

/// Carry out the statements of a request.
pub(super) async fn run(context: Arc<Context>, caller: Caller, request: Request) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let manner = Manner { form: request.form, dates: request.dates };
    for statement in parse_script(&request.text) {
        let command = match statement.command {
            Err(error) => {
                outcomes.push(Outcome::failed(error.render(&request.text)));
                continue;
            }
            Ok(command) => command,
        };
        let leave = matches!(command, Command::Exit | Command::Quit);
        outcomes.push(run_one(&context, &caller, command, manner, request.monitor).await);
        if leave {
            break;
        }
    }
    outcomes
}

/// Carry out one command if the caller may; `monitor`: only if it changes nothing, whoever asks.
pub(super) async fn run_one(
    context: &Arc<Context>,
    caller: &Caller,
    command: Command,
    manner: Manner,
    monitor: bool,
) -> Outcome {
    if let Some(refusal) = refusal(&caller.role, &command, monitor) {
        context.audit.refused(&|| now(context), caller, &command.to_string(), &refusal);
        return Outcome::failed(refusal);
    }
    let changes = !command.is_read_only() && !matches!(command, Command::Spool(_));
    if !changes {
        return carry_out(context, caller, command, manner).await;
    }
    // A slow disk must not hold up the one thread of the service.
    let audited = {
        let (context, caller, statement) = (context.clone(), caller.clone(), command.to_string());
        tokio::task::spawn_blocking(move || context.audit.begin(now(&context), &caller, &statement)).await
    };
    match audited {
        Ok(Ok(())) => {}
        Ok(Err(why)) => {
            let text =
                format!("{} is not carried out: it cannot be written to the audit log, {why}", command.verb().word());
            let hint = "make room in the cell's directory, or mend the file; nothing was changed";
            return Outcome::failed(failure_text(ErrorCode::NotPermittedNow, &text, Some(hint)));
        }
        Err(_) => return stopping(),
    }
    let outcome = carry_out(context, caller, command.clone(), manner).await;
    context.audit.end(now(context), caller, &command.to_string(), outcome.error.as_deref());
    outcome
}

/// For the audit log.
fn now(context: &Context) -> String {
    super::rows::timestamp(context.world.clock.wall()).text()
}

/// Why the caller may not.
fn refusal(role: &Role, command: &Command, monitor: bool) -> Option<String> {
    let verb = command.verb().word();
    // SPOOL is of the session: not carried out here, and told so.
    if !command.is_read_only() && !matches!(command, Command::Spool(_)) {
        if monitor {
            let text = format!("{verb} is not allowed in a monitor session");
            return Some(failure_text(ErrorCode::ReadOnlySession, &text, Some("leave out -m")));
        }
        if *role != Role::Administrator {
            let text = format!("{verb} is not allowed: the role of this session is {role}");
            let hint = "administrators are root, the user the cell is served as, members of its group (admin.group in \
                        cell.toml), and who has a certificate or token that says so";
            return Some(failure_text(ErrorCode::ReadOnlySession, &text, Some(hint)));
        }
    }
    match (role, command) {
        (Role::Database(_), Command::List(query)) if !OF_DATABASES.contains(&query.object) => {
            let text = format!("LIST {} is not allowed: the role of this session is {role}", query.object.spec().word);
            let hint = "a database sees its own grid disks, their pins and their metrics";
            Some(failure_text(ErrorCode::NotAuthorized, &text, Some(hint)))
        }
        _ => None,
    }
}

async fn carry_out(context: &Arc<Context>, caller: &Caller, command: Command, manner: Manner) -> Outcome {
    match command {
        Command::List(query) => {
            let (context, role) = (context.clone(), caller.role.clone());
            looked(move || list(&context, &role, query, manner)).await
        }
        Command::Describe(object) => Outcome::done(match manner.form {
            Form::Json => format::describe_json(object),
            Form::Text | Form::Xml => format::describe(object),
        }),
        Command::Help { verb, object } => Outcome::done(help(verb, object)),
        Command::Calibrate { force } => {
            changed(context, move |context| async move { calibrate::calibrate(&context, force).await }).await
        }
        // Not of the devices: it needs no thread of the cell's.
        Command::Alter(it) if it.object == ObjectType::AlertHistory => done(change::alter(context, &it).await),
        // Talks to a mail server, over this thread's sockets.
        Command::Alter(it) if it.operation == Some(Operation::ValidateMail) => done(change::alter(context, &it).await),
        Command::Drop(it) if it.object == ObjectType::AlertHistory => done(change::drop(context, &it).await),
        Command::Create(it) => {
            changed(context, move |context| async move { change::create(&context, &it).await }).await
        }
        Command::Alter(it) => changed(context, move |context| async move { change::alter(&context, &it).await }).await,
        Command::Drop(it) => changed(context, move |context| async move { change::drop(&context, &it).await }).await,
        Command::Remark(_) | Command::Exit | Command::Quit | Command::SetDateFormat(_) | Command::SetEcho(_) => {
            Outcome::default()
        }
        Command::Spool(_) | Command::Start(_) => Outcome::failed(failure_text(
            ErrorCode::NotSupported,
            "files are read and written by the client, not by the cell",
            Some("use `flashcell cellcli`"),
        )),
    }
}

/// Make a change on an executor thread of the cell.
async fn changed<F>(context: &Arc<Context>, change: impl FnOnce(Arc<Context>) -> F) -> Outcome
where
    F: Future<Output = change::Done> + Send + 'static,
{
    context.on_cell(change(context.clone())).await.map_or_else(stopping, done)
}

fn done((lines, refusal): change::Done) -> Outcome {
    let mut output = lines.join("\n");
    if !output.is_empty() {
        output.push('\n');
    }
    Outcome { output, error: refusal.map(|refusal| refusal.text()) }
}

/// Look at the cell where it may take a while.
async fn looked(look: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    tokio::task::spawn_blocking(look).await.unwrap_or_else(|_| stopping())
}

fn stopping() -> Outcome {
    Outcome::failed(failure_text(ErrorCode::NotPermittedNow, "the cell is stopping", None))
}

/// What of these rows a role may see.
fn visible(context: &Context, role: &Role, object: ObjectType) -> Vec<Row> {
    own(context, role, object, super::rows::rows(context, object))
}

/// Of these rows, those that a role may see.
fn own(context: &Context, role: &Role, object: ObjectType, mut rows: Vec<Row>) -> Vec<Row> {
    let Role::Database(database) = role else { return rows };
    let is_own = |row: &Row| match row.get("availableTo") {
        Some(Value::List(names)) => names.iter().any(|name| name.eq_ignore_ascii_case(database)),
        _ => false,
    };
    let disks = super::rows::rows(context, ObjectType::GridDisk);
    let own: Vec<String> = disks.iter().filter(|row| is_own(row)).map(Row::name).collect();
    let text = |row: &Row, attribute: &str| row.get(attribute).map(Value::text).unwrap_or_default();
    match object {
        ObjectType::GridDisk | ObjectType::Pin => rows.retain(|row| own.contains(&row.name())),
        ObjectType::MetricCurrent => rows.retain(|row| {
            let (of, object) = (text(row, "objectType"), text(row, "metricObjectName"));
            of == "GRIDDISK" && own.contains(&object) || of == "IORM_DATABASE" && object.eq_ignore_ascii_case(database)
        }),
        ObjectType::MetricDefinition => {
            rows.retain(|row| ["GRIDDISK", "IORM_DATABASE"].contains(&text(row, "objectType").as_str()))
        }
        // Its own, however it is written.
        ObjectType::Database => rows.retain(|row| row.name().eq_ignore_ascii_case(database)),
        // Not of databases.
        _ => rows.clear(),
    }
    rows
}

/// Names of the grid disks that a role may see.
pub(super) fn own_grid_disks(context: &Context, role: &Role) -> Vec<String> {
    visible(context, role, ObjectType::GridDisk).iter().map(Row::name).collect()
}

fn list(context: &Context, role: &Role, mut query: List, manner: Manner) -> Outcome {
    let mut rows = visible(context, role, query.object);
    // One such answer at a time, to its end: what it takes is bounded.
    let is_long = matches!(query.object, ObjectType::MetricCurrent | ObjectType::MetricHistory);
    let _turn = is_long.then(|| lock(&context.listing_history));
    if query.object == ObjectType::MetricCurrent {
        match super::rows::metrics_current(context, &query) {
            Ok(found) => rows = own(context, role, query.object, found),
            Err(error) => return Outcome::failed(error),
        }
    }
    if query.object == ObjectType::MetricHistory {
        let own = matches!(role, Role::Database(_)).then(|| own_grid_disks(context, role));
        let may_see = |row: &Row| own.as_ref().is_none_or(|own| metric_history::is_of_grid_disk(row, own));
        match metric_history::rows(context, &mut query, may_see) {
            Ok(found) => rows = found,
            Err(error) => return Outcome::failed(error),
        }
    }
    if query.object == ObjectType::Pin && !query.names.is_empty() {
        // A grid disk of which nothing is pinned has no row, and is no mistake; one that does not exist is.
        let grid_disks = List { names: query.names.clone(), ..List::all(ObjectType::GridDisk) };
        if let Err(error) = select(&grid_disks, visible(context, role, ObjectType::GridDisk)) {
            return Outcome::failed(error.to_string());
        }
        rows.retain(|row| query.names.iter().any(|name| name.eq_ignore_ascii_case(&row.name())));
        query.names.clear();
    }
    let answer = match select(&query, rows) {
        Ok(answer) => answer,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    let dates = match manner.dates {
        DateStyle::Standard => DateFormat::Standard,
        DateStyle::Local => DateFormat::Local,
    };
    Outcome::done(match manner.form {
        Form::Text => format::text(&answer, dates),
        Form::Json => format::json(&answer),
        Form::Xml => format::xml(&answer, &context.cell_name()),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn refused(role: Role, text: &str, monitor: bool) -> Option<String> {
        refusal(&role, &cellcli::parse_one(text).unwrap(), monitor).map(|text| text[..10].to_owned())
    }

    #[test]
    fn who_may_what() {
        let database = || Role::Database("SALES".to_owned());
        let read_only = Some("CELL-09011".to_owned());
        for change in ["drop flashcache", "create flashcache all", "alter cell comment=x"] {
            assert_eq!(refused(Role::Administrator, change, false), None);
            assert_eq!(refused(Role::Administrator, change, true), read_only);
            assert_eq!(refused(Role::Monitor, change, false), read_only);
            assert_eq!(refused(database(), change, false), read_only);
        }
        for look in ["list cell", "list celldisk", "list flashcache"] {
            assert_eq!(refused(Role::Monitor, look, true), None);
            assert_eq!(refused(database(), look, false), Some("CELL-09014".to_owned()));
        }
        for look in ["list griddisk", "list metriccurrent", "describe cell", "help"] {
            assert_eq!(refused(database(), look, false), None);
        }
    }
}
