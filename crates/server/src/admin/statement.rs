//! One text of CellCLI statements: parse, carry out one after the other, render.
//!
//! A failed statement does not stop those after it, as at a terminal.

use super::change;
use super::{Context, DateStyle, Form, Outcome, Request};
use cellcli::command::{Command, DateFormat, List};
use cellcli::{ErrorCode, ObjectType, failure_text, format, help, parse_script, select};
use std::sync::Arc;

/// Carry out the statements of a request.
pub(super) async fn run(context: Arc<Context>, request: Request) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for statement in parse_script(&request.text) {
        let outcome = match statement.command {
            Err(error) => Outcome::failed(error.render(&request.text)),
            Ok(command) if request.monitor && !command.is_read_only() => {
                let text = format!("{} is not allowed in a monitor session", command.verb().word());
                let hint = Some("leave out -m, and connect over the unix socket: TCP is read-only");
                Outcome::failed(failure_text(ErrorCode::ReadOnlySession, &text, hint))
            }
            Ok(command) => carry_out(&context, command, &request).await,
        };
        let leave = outcome.error.is_none() && outcome.output.is_empty() && is_end(statement.text);
        outcomes.push(outcome);
        if leave {
            break;
        }
    }
    outcomes
}

fn is_end(text: &str) -> bool {
    matches!(cellcli::parse_one(text), Ok(Command::Exit | Command::Quit))
}

async fn carry_out(context: &Arc<Context>, command: Command, request: &Request) -> Outcome {
    match command {
        Command::List(query) => {
            let (context, request) = (context.clone(), request.clone());
            looked(move || list(&context, &query, &request)).await
        }
        Command::Describe(object) => Outcome::done(match request.form {
            Form::Json => format::describe_json(object),
            Form::Text | Form::Xml => format::describe(object),
        }),
        Command::Help { verb, object } => Outcome::done(help(verb, object)),
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
    let Some((lines, refusal)) = context.on_cell(change(context.clone())).await else { return stopping() };
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

fn list(context: &Context, query: &List, request: &Request) -> Outcome {
    let mut rows = super::rows::rows(context, query.object);
    let mut query = query.clone();
    if query.object == ObjectType::Pin && !query.names.is_empty() {
        // A grid disk of which nothing is pinned has no row, and is no mistake; one that does not exist is.
        let grid_disks = List { names: query.names.clone(), ..List::all(ObjectType::GridDisk) };
        if let Err(error) = select(&grid_disks, super::rows::rows(context, ObjectType::GridDisk)) {
            return Outcome::failed(error.to_string());
        }
        rows.retain(|row| query.names.iter().any(|name| name.eq_ignore_ascii_case(&row.name())));
        query.names.clear();
    }
    let answer = match select(&query, rows) {
        Ok(answer) => answer,
        Err(error) => return Outcome::failed(error.to_string()),
    };
    let dates = match request.dates {
        DateStyle::Standard => DateFormat::Standard,
        DateStyle::Local => DateFormat::Local,
    };
    Outcome::done(match request.form {
        Form::Text => format::text(&answer, dates),
        Form::Json => format::json(&answer),
        Form::Xml => format::xml(&answer, &context.cell_name()),
    })
}
