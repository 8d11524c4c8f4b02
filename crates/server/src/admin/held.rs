//! What of ranges of a grid disk is on flash, for `flashcell contents`: what is asked and answered, and the path.
//!
//! Never learns the names of files: whoever asks knows where they lie.

use super::access::Caller;
use super::answers::Length;
use super::service::{Question, Shared, json_body, no_answer, refuse};
use super::statement::own_grid_disks;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response as HttpResponse};
use cell::Tallied;
use flashcache::Content;
use serde::{Deserialize, Serialize};

/// Where it is asked for.
pub(crate) const PATH: &str = "/v1/flashcache/held";
/// Ranges of one question.
pub(crate) const RANGES_MAX: usize = 4096;
/// Bytes of all ranges of one question: a look-up for each 4 KiB of them takes a second at most.
pub(crate) const BYTES_MAX: u64 = 16 << 30;

/// Which ranges.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeldRequest {
    /// The grid disk.
    pub(crate) grid_disk: String,
    /// Offset and length, bytes; at most [`RANGES_MAX`], and [`BYTES_MAX`] in all.
    pub(crate) ranges: Vec<(u64, u64)>,
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldAnswer {
    /// The size of the grid disk, bytes.
    pub(crate) size_bytes: u64,
    /// Of each range.
    pub(crate) held: Vec<Held>,
}

/// What of a range is on flash, and what it has served of it since the cell was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// In all.
    pub cached_bytes: u64,
    /// Under KEEP, as far as they are not newer than on disk.
    pub kept_bytes: u64,
    /// Newer than on disk.
    pub dirty_bytes: u64,
    /// Reads of clients; fractions where a range shares the place that is counted with others.
    pub reads: f64,
    /// Those that flash served whole.
    pub hits: f64,
    /// What the hits have saved: times the difference of a read from disk and one from flash, in the mean over the grid disk.
    pub saved_ms: f64,
}

impl Held {
    /// What is held of another range as well.
    pub(crate) fn add(&mut self, other: &Held) {
        self.cached_bytes += other.cached_bytes;
        self.kept_bytes += other.kept_bytes;
        self.dirty_bytes += other.dirty_bytes;
        self.reads += other.reads;
        self.hits += other.hits;
        self.saved_ms += other.saved_ms;
    }
}

pub(super) async fn held(State(shared): State<Shared>, caller: Caller, headers: HeaderMap, body: Body) -> HttpResponse {
    let question = json_body(&shared, &caller, &headers, body).await;
    let (HeldRequest { grid_disk, ranges }, _question): Question<HeldRequest> = match question {
        Ok(question) => question,
        Err(refused) => return refused,
    };
    if ranges.len() > RANGES_MAX || ranges.iter().fold(0_u64, |sum, (_, len)| sum.saturating_add(*len)) > BYTES_MAX {
        let why =
            format!("more than {RANGES_MAX} ranges, or than {} GiB in all\nhint: ask several times", BYTES_MAX >> 30);
        return refuse(StatusCode::BAD_REQUEST, &why);
    }
    let (context, role) = (shared.context.clone(), caller.role.clone());
    // Not on the one thread of the service.
    let make = move || {
        let may_see = own_grid_disks(&context, &role).iter().any(|own| own.eq_ignore_ascii_case(&grid_disk));
        let Some(disk) = context.cell.grid_disk(&grid_disk).filter(|_| may_see) else {
            let why = format!("there is no grid disk {grid_disk}\nhint: LIST GRIDDISK tells their names");
            return refuse(StatusCode::NOT_FOUND, &why);
        };
        let of = |(offset, len): (u64, u64)| {
            let range = offset..offset.saturating_add(len);
            let Content { cached_bytes, keep_bytes: kept_bytes, dirty_bytes } = disk.held(range.clone());
            let Tallied { reads, hits } = disk.tallied(range);
            let saved_ms = hits * disk.counters.times.saved_ns_per_hit() as f64 / 1e6;
            Held { cached_bytes, kept_bytes, dirty_bytes, reads, hits, saved_ms }
        };
        let held = ranges.into_iter().map(of).collect();
        Json(HeldAnswer { size_bytes: disk.size_bytes(), held }).into_response()
    };
    match shared.context.answers.make(&caller.role, Length::Short, make, |_| 0).await {
        Ok((answer, _)) => answer,
        Err(why) => no_answer(why),
    }
}
