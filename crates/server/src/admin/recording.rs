//! Redo writes as they are answered, for `flashcell redo record`: what is asked and answered, and the path.
//!
//! Never keeps anything: the cell does, as long as somebody asks.

use super::access::{Caller, Role};
use super::service::{Shared, json_body, refuse};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response as HttpResponse};
use cell::Answered;
use serde::{Deserialize, Serialize};

/// Where it is asked for.
pub(crate) const PATH: &str = "/v1/redo/record";

/// What has come since.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordRequest {
    /// `next` of the answer before; none: begin.
    #[serde(default)]
    pub(crate) after: Option<u64>,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordAnswer {
    pub(crate) next: u64,
    pub(crate) missed: u64,
    pub(crate) writes: Vec<RecordedWrite>,
}

/// One redo write: a FLUSH, or a write that is durable when it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedWrite {
    /// When it was answered, nanoseconds since 1970.
    pub time_ns: u64,
    /// How long it took, nanoseconds.
    pub latency_ns: u64,
    /// The grid disk.
    pub grid_disk: String,
    /// The database that asked; empty where the connection names none.
    pub database: String,
    /// Who answered it.
    pub outcome: RecordedOutcome,
}

/// Who answered a redo write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedOutcome {
    /// The disk.
    DiskFirst,
    /// The flash log, or flash in write-back.
    FlashFirst,
    /// Neither.
    Failed,
}

fn wire(write: cell::RedoWrite) -> RecordedWrite {
    RecordedWrite {
        time_ns: write.at.0,
        latency_ns: write.took_ns,
        grid_disk: write.grid_disk,
        database: write.database.as_deref().unwrap_or_default().to_owned(),
        outcome: match write.answered {
            Answered::Disk => RecordedOutcome::DiskFirst,
            Answered::Flash => RecordedOutcome::FlashFirst,
            Answered::Nobody => RecordedOutcome::Failed,
        },
    }
}

pub(super) async fn recorded(
    State(shared): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> HttpResponse {
    let request: RecordRequest = match json_body(&headers, body).await {
        Ok(request) => request,
        Err(refused) => return refused,
    };
    let own = match &caller.role {
        Role::Administrator | Role::Monitor => None,
        Role::Database(database) => Some(database.clone()),
    };
    let context = shared.context.clone();
    // Up to tens of thousands of them: not on the one thread of the service.
    let answer = tokio::task::spawn_blocking(move || {
        let recorded = context.cell.recorded_redo(request.after);
        let mine = |write: &RecordedWrite| own.as_ref().is_none_or(|own| write.database.eq_ignore_ascii_case(own));
        let writes = recorded.writes.into_iter().map(wire).filter(mine).collect();
        RecordAnswer { next: recorded.next, missed: recorded.missed, writes }
    });
    match answer.await {
        Ok(answer) => Json(answer).into_response(),
        Err(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, "the cell is stopping"),
    }
}
