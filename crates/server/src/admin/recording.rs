//! Redo writes as they are answered and requests in the order they begin, for `flashcell redo record` and `flashcell trace record`: what is
//! asked and answered, and the paths.
//!
//! Never keeps anything: the cell does, as long as somebody asks.

use super::access::{Caller, Role};
use super::answers::Length;
use super::service::{Question, Shared, json_body, no_answer};
use super::stream::pieces;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response as HttpResponse;
use cell::{ActiveKind, Answered, Cell, Recorded};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::iter::once;

/// What the name of a grid disk takes besides.
const NAME_BYTES: usize = 48;

/// What a cell records for who asks.
pub trait Recordable: Serialize + DeserializeOwned + Send + 'static {
    /// Where it is asked for.
    const PATH: &'static str;
    /// What the cell keeps of it.
    type Kept: Send + 'static;

    /// What has come since; `last`: what is under way too, in place of waiting for its end.
    fn since(cell: &Cell, after: Option<u64>, last: bool) -> Recorded<Self::Kept>;

    /// As it is answered.
    fn of(kept: Self::Kept) -> Self;

    /// Whose it is; empty where the connection names no database.
    fn database(&self) -> &str;
}

/// What has come since.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordRequest {
    /// `next` of the answer before; none: begin.
    #[serde(default)]
    pub(crate) after: Option<u64>,
    /// Nothing is asked after this: what is under way comes as it is.
    #[serde(default)]
    pub(crate) last: bool,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordAnswer<T> {
    pub(crate) next: u64,
    pub(crate) missed: u64,
    pub(crate) recorded: Vec<T>,
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

impl Recordable for RecordedWrite {
    const PATH: &'static str = "/v1/redo/record";
    type Kept = cell::RedoWrite;

    /// Those that are kept have been answered.
    fn since(cell: &Cell, after: Option<u64>, _: bool) -> Recorded<cell::RedoWrite> {
        cell.recorded_redo(after)
    }

    fn of(write: cell::RedoWrite) -> RecordedWrite {
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

    fn database(&self) -> &str {
        &self.database
    }
}

/// One request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedRequest {
    /// When it began, nanoseconds since 1970.
    pub time_ns: u64,
    /// How long it took, nanoseconds; none of one that has failed, and of one that was under way for longer than it is waited for.
    pub latency_ns: Option<u64>,
    /// The grid disk.
    pub grid_disk: String,
    /// The database that asked; empty where the connection names none.
    pub database: String,
    /// What it does.
    pub request: RecordedKind,
    /// From the start of the grid disk; 0 for a flush.
    pub offset_bytes: u64,
    /// How much; 0 for a flush.
    pub bytes: u64,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Make durable.
    Flush,
    /// Give up content.
    Trim,
    /// Make zeroes.
    Zero,
    /// Bring into the flash cache.
    Prefetch,
}

impl Recordable for RecordedRequest {
    const PATH: &'static str = "/v1/trace/record";
    type Kept = cell::TracedRequest;

    fn since(cell: &Cell, after: Option<u64>, last: bool) -> Recorded<cell::TracedRequest> {
        cell.recorded_trace(after, last)
    }

    fn of(request: cell::TracedRequest) -> RecordedRequest {
        RecordedRequest {
            time_ns: request.at.0,
            latency_ns: request.latency_ns(),
            grid_disk: request.grid_disk,
            database: request.database.as_deref().unwrap_or_default().to_owned(),
            request: match request.kind {
                ActiveKind::Read => RecordedKind::Read,
                ActiveKind::Write => RecordedKind::Write,
                ActiveKind::Flush => RecordedKind::Flush,
                ActiveKind::Trim => RecordedKind::Trim,
                ActiveKind::Zero => RecordedKind::Zero,
                ActiveKind::Prefetch => RecordedKind::Prefetch,
            },
            offset_bytes: request.offset,
            bytes: request.len,
        }
    }

    fn database(&self) -> &str {
        &self.database
    }
}

pub(super) async fn recorded<T: Recordable>(
    State(shared): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> HttpResponse {
    let (request, _question): Question<RecordRequest> = match json_body(&shared, &caller, &headers, body).await {
        Ok(question) => question,
        Err(refused) => return refused,
    };
    let own = match &caller.role {
        Role::Administrator | Role::Monitor => None,
        Role::Database(database) => Some(database.clone()),
    };
    let context = shared.context.clone();
    // Up to tens of thousands of them: not on the one thread of the service.
    let make = move || T::since(&context.cell, request.after, request.last);
    let bytes = |made: &Recorded<T::Kept>| made.items.len() * (size_of::<T::Kept>() + NAME_BYTES);
    match shared.context.answers.make(&caller.role, Length::Long, make, bytes).await {
        Ok((made, held)) => pieces("application/json", written::<T>(made, own), held).await,
        Err(why) => no_answer(why),
    }
}

/// A [`RecordAnswer`] in pieces: each of what is recorded is made when it is taken.
fn written<T: Recordable>(recorded: Recorded<T::Kept>, own: Option<String>) -> impl Iterator<Item = String> + Send {
    let Recorded { next, missed, items } = recorded;
    let mine = move |item: &T| own.as_ref().is_none_or(|own| item.database().eq_ignore_ascii_case(own));
    // Text and numbers always have a form.
    let items = items.into_iter().map(T::of).filter(mine).filter_map(|item| serde_json::to_string(&item).ok());
    let items = items.enumerate().map(|(place, item)| if place == 0 { item } else { format!(",{item}") });
    let head = format!("{{\"next\":{next},\"missed\":{missed},\"recorded\":[");
    once(head).chain(items).chain(once("]}".to_owned()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use device::WallTime;

    #[test]
    fn what_is_written_is_the_answer() {
        let write = |n: u64, database: &str| cell::RedoWrite {
            at: WallTime(n),
            took_ns: 2,
            grid_disk: "a\"b".to_owned(),
            database: Some(database.into()),
            answered: Answered::Disk,
        };
        for (own, expected) in
            [(None, vec![1, 2, 3]), (Some("sales".to_owned()), vec![1, 3]), (Some("X".to_owned()), vec![])]
        {
            let items = vec![write(1, "SALES"), write(2, "HR"), write(3, "SALES")];
            let text: String = written::<RecordedWrite>(Recorded { next: 9, missed: 4, items }, own).collect();
            let answer: RecordAnswer<RecordedWrite> = serde_json::from_str(&text).unwrap();
            let times: Vec<u64> = answer.recorded.iter().map(|write| write.time_ns).collect();
            assert_eq!((answer.next, answer.missed, times), (9, 4, expected));
        }
    }
}
