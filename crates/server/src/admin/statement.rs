//! One text of CellCLI statements: parse, see whether the caller may, carry out one after the other, write what became of each.
//!
//! A failed statement does not stop those after it, as at a terminal. The answer of a statement is sent before the next one is carried out.
//! Every way to a change leads through [`run_one`].

use super::access::{Caller, Role};
use super::answers::{Held, Length, NoAnswer};
use super::stream::{Gone, Writer};
use super::{Context, DateStyle, Form, Request};
use super::{activity_rows, alert_statements, calibrate, change, metric_history, metrics_current};
use cellcli::command::{Command, DateFormat, List, Operation};
use cellcli::{Answer, ErrorCode, ObjectType, Row, Source, Value, failure_text, format, help, select, statements};
use std::collections::BTreeSet;
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

/// What a statement gives out.
pub(super) enum Output {
    /// Whole lines.
    Text(String),
    /// The rows of a LIST, as text that is made as it is taken, and what they hold meanwhile.
    Rows(Box<dyn Iterator<Item = String> + Send>, Held),
}

/// What became of one statement.
pub(super) struct Reply {
    /// For stdout.
    pub(super) output: Output,
    /// For stderr: `CELL-NNNNN: ...` and perhaps a hint line. None: it was carried out.
    pub(super) error: Option<String>,
    /// There was no memory for the answer in time: it may be asked for again.
    pub(super) is_busy: bool,
}

impl Reply {
    fn done(output: String) -> Reply {
        Reply { output: Output::Text(output), error: None, is_busy: false }
    }

    fn failed(error: String) -> Reply {
        Reply { error: Some(error), ..Reply::done(String::new()) }
    }

    fn none(why: NoAnswer) -> Reply {
        let error = failure_text(ErrorCode::NotPermittedNow, &why.text(), why.hint());
        Reply { is_busy: why == NoAnswer::Busy, ..Reply::failed(error) }
    }
}

/// Carry out the statements of a request, and write what became of them as a [`super::Response`].
pub(super) async fn run(
    context: Arc<Context>,
    caller: Caller,
    request: Request,
    mut writer: Writer,
) -> Result<Writer, Gone> {
    let manner = Manner { form: request.form, dates: request.dates };
    let mut begin = "{\"results\":[{\"output\":\"";
    for statement in statements(&request.text) {
        // A client that has gone wants no more of them.
        if writer.is_gone() {
            return Err(Gone);
        }
        let (reply, leave) = match statement.command {
            Err(error) => (Reply::failed(error.render(&request.text)), false),
            Ok(command) => {
                let leave = matches!(command, Command::Exit | Command::Quit);
                let is_read_only = command.is_read_only();
                let reply = run_one(&context, &caller, command, manner, request.monitor);
                // A change is carried out to its end, whether its client waits for the answer or not.
                let reply = if is_read_only {
                    tokio::select! {
                        reply = reply => reply,
                        () = writer.gone() => return Err(Gone),
                    }
                } else {
                    reply.await
                };
                (reply, leave)
            }
        };
        writer.text(begin, None).await?;
        begin = ",{\"output\":\"";
        match reply.output {
            Output::Text(text) => writer.escaped(&text, None).await?,
            Output::Rows(pieces, held) => {
                for piece in pieces {
                    writer.escaped(&piece, Some(&held)).await?;
                }
            }
        }
        let error = match &reply.error {
            Some(error) => {
                tracing::debug!(error, "a statement was refused");
                serde_json::Value::from(error.as_str()).to_string()
            }
            None => "null".to_owned(),
        };
        writer.text(&format!("\",\"error\":{error}}}"), None).await?;
        if leave {
            break;
        }
    }
    let is_empty = begin.starts_with('{');
    writer.text(if is_empty { "{\"results\":[]}" } else { "]}" }, None).await?;
    Ok(writer)
}

/// Carry out one command if the caller may; `monitor`: only if it changes nothing, whoever asks.
pub(super) async fn run_one(
    context: &Arc<Context>,
    caller: &Caller,
    command: Command,
    manner: Manner,
    monitor: bool,
) -> Reply {
    if let Some(refusal) = refusal(&caller.role, &command, monitor) {
        context.audit.refused(&|| now(context), caller, &command.to_string(), &refusal);
        return Reply::failed(refusal);
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
            return Reply::failed(failure_text(ErrorCode::NotPermittedNow, &text, Some(hint)));
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

async fn carry_out(context: &Arc<Context>, caller: &Caller, command: Command, manner: Manner) -> Reply {
    match command {
        Command::List(query) => list(context, &caller.role, query, manner).await,
        Command::Describe(object) => Reply::done(match manner.form {
            Form::Json => format::describe_json(object),
            Form::Text | Form::Xml => format::describe(object),
        }),
        Command::Help { verb, object } => Reply::done(help(verb, object)),
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
            Reply::done(String::new())
        }
        Command::Spool(_) | Command::Start(_) => Reply::failed(failure_text(
            ErrorCode::NotSupported,
            "files are read and written by the client, not by the cell",
            Some("use `flashcell cellcli`"),
        )),
    }
}

/// Make a change on an executor thread of the cell.
async fn changed<F>(context: &Arc<Context>, change: impl FnOnce(Arc<Context>) -> F) -> Reply
where
    F: Future<Output = change::Done> + Send + 'static,
{
    context.on_cell(change(context.clone())).await.map_or_else(stopping, done)
}

fn done((lines, refusal): change::Done) -> Reply {
    let mut output = lines.join("\n");
    if !output.is_empty() {
        output.push('\n');
    }
    Reply { error: refusal.map(|refusal| refusal.text()), ..Reply::done(output) }
}

fn stopping() -> Reply {
    Reply::none(NoAnswer::Stopping)
}

/// The rows of a type that a role may see.
fn visible(context: &Context, role: &Role, object: ObjectType) -> Vec<Row> {
    let mut rows = super::rows::rows(context, object);
    if matches!(role, Role::Database(_)) {
        let is_own = is_own(context, role, object);
        rows.retain(|row| is_own(row));
    }
    rows
}

/// Whether a role may see a row of a type.
fn is_own(context: &Context, role: &Role, object: ObjectType) -> Box<dyn Fn(&Row) -> bool> {
    let Role::Database(database) = role else { return Box::new(|_| true) };
    let database = database.clone();
    let text = |row: &Row, attribute: &str| row.get(attribute).map(Value::text).unwrap_or_default();
    let is_available = {
        let database = database.clone();
        move |row: &Row| match row.get("availableTo") {
            Some(Value::List(names)) => names.iter().any(|name| name.eq_ignore_ascii_case(&database)),
            _ => false,
        }
    };
    let grid_disks = || -> BTreeSet<String> {
        let disks = super::rows::rows(context, ObjectType::GridDisk);
        disks.iter().filter(|row| is_available(row)).map(Row::name).collect()
    };
    match object {
        ObjectType::GridDisk => Box::new(is_available),
        ObjectType::Pin => {
            let own = grid_disks();
            Box::new(move |row| own.contains(&row.name()))
        }
        ObjectType::MetricCurrent => {
            let own = grid_disks();
            Box::new(move |row| {
                let (of, object) = (text(row, "objectType"), text(row, "metricObjectName"));
                of == "GRIDDISK" && own.contains(&object)
                    || of == "IORM_DATABASE" && object.eq_ignore_ascii_case(&database)
            })
        }
        ObjectType::MetricDefinition => {
            Box::new(move |row| ["GRIDDISK", "IORM_DATABASE"].contains(&text(row, "objectType").as_str()))
        }
        // Its own, however it is written.
        ObjectType::Database => Box::new(move |row| row.name().eq_ignore_ascii_case(&database)),
        // Not of databases.
        _ => Box::new(|_| false),
    }
}

/// Names of the grid disks that a role may see.
pub(super) fn own_grid_disks(context: &Context, role: &Role) -> Vec<String> {
    visible(context, role, ObjectType::GridDisk).iter().map(Row::name).collect()
}

/// How much a LIST of such objects may hold.
fn length(object: ObjectType) -> Length {
    match object {
        ObjectType::Cell
        | ObjectType::CellDisk
        | ObjectType::FlashCache
        | ObjectType::FlashLog
        | ObjectType::IormPlan
        | ObjectType::Lun
        | ObjectType::PhysicalDisk => Length::Short,
        ObjectType::ActiveRequest
        | ObjectType::AlertDefinition
        | ObjectType::AlertHistory
        | ObjectType::Database
        | ObjectType::FlashCacheContent
        | ObjectType::GridDisk
        | ObjectType::IormProfile
        | ObjectType::MetricCurrent
        | ObjectType::MetricDefinition
        | ObjectType::MetricHistory
        | ObjectType::Pin
        | ObjectType::Threshold => Length::Long,
    }
}

async fn list(context: &Arc<Context>, role: &Role, query: List, manner: Manner) -> Reply {
    let dates = match manner.dates {
        DateStyle::Standard => DateFormat::Standard,
        DateStyle::Local => DateFormat::Local,
    };
    let (looking, of, length) = (context.clone(), role.clone(), length(query.object));
    let make = move || {
        let answer = answer(&looking, &of, query)?;
        let bytes = answer.bytes();
        let pieces: Box<dyn Iterator<Item = String> + Send> = match manner.form {
            Form::Text => Box::new(format::text(answer, dates)),
            Form::Json => Box::new(format::json(answer)),
            Form::Xml => Box::new(format::xml(answer, &looking.cell_name())),
        };
        Ok((pieces, bytes))
    };
    let bytes = |made: &Result<(_, usize), String>| made.as_ref().map_or(0, |(_, bytes)| *bytes);
    match context.answers.make(role, length, make, bytes).await {
        Ok((Ok((pieces, _)), _)) if length == Length::Short => Reply::done(pieces.collect()),
        Ok((Ok((pieces, _)), held)) => Reply { output: Output::Rows(pieces, held), ..Reply::done(String::new()) },
        Ok((Err(error), _)) => Reply::failed(error),
        Err(why) => Reply::none(why),
    }
}

/// The rows that a role sees of what is asked for.
fn answer(context: &Arc<Context>, role: &Role, mut query: List) -> Result<Answer, String> {
    let source: Box<dyn Source> = match query.object {
        ObjectType::MetricHistory => {
            let own = matches!(role, Role::Database(_)).then(|| own_grid_disks(context, role));
            let may_see = |row: &Row| own.as_ref().is_none_or(|own| metric_history::is_of_grid_disk(row, own));
            Box::new(metric_history::rows(context, &mut query, may_see)?)
        }
        ObjectType::MetricCurrent => {
            Box::new(metrics_current::rows(context, &mut query, is_own(context, role, ObjectType::MetricCurrent))?)
        }
        ObjectType::AlertHistory => Box::new(alert_statements::AlertHistory::new(context)),
        ObjectType::FlashCacheContent => Box::new(activity_rows::flash_cache_content(context, &mut query)?),
        ObjectType::Pin if !query.names.is_empty() => {
            // A grid disk of which nothing is pinned has no row, and is no mistake; one that does not exist is.
            let names = std::mem::take(&mut query.names);
            let grid_disks = List { names: names.clone(), ..List::all(ObjectType::GridDisk) };
            let there = visible(context, role, ObjectType::GridDisk);
            select(&grid_disks, Box::new(there)).map_err(|error| error.to_string())?;
            let mut rows = visible(context, role, query.object);
            rows.retain(|row| names.iter().any(|name| name.eq_ignore_ascii_case(&row.name())));
            Box::new(rows)
        }
        object => Box::new(visible(context, role, object)),
    };
    select(&query, source).map_err(|error| error.to_string())
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
