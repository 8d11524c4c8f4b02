//! The HTTP service and its thread: which path does what, for whom.

use super::access::{Access, Caller, Denied, Peer, Role};
use super::answers::{Held, Length, NoAnswer};
use super::listen::{AdminListener, serve};
use super::recording::{Recordable, RecordedRequest, RecordedWrite, recorded};
use super::stream::{pieces, streamed};
use super::{Context, Request, openapi, operations, prometheus, statement, watch as watching};
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A body may hold the longest text the language takes, escaped at worst, and its envelope.
const BODY_BYTES_MAX: usize = cellcli::TEXT_BYTES_MAX * 2 + 4096;
/// Time for a body to come.
const BODY: Duration = Duration::from_secs(30);

/// The service while it runs. Runs on the caller's tokio runtime.
pub(crate) struct Service {
    context: Arc<Context>,
    stop: watch::Receiver<bool>,
}

/// What handlers work with.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) access: Arc<Access>,
}

impl Service {
    /// A service that ends when `stop` becomes true.
    pub(crate) fn new(context: Arc<Context>, stop: watch::Receiver<bool>) -> Service {
        Service { context, stop }
    }

    /// Serve all listeners until told to stop; then answers under way are given a moment.
    pub(crate) async fn run(self, listeners: Vec<AdminListener>) {
        let access = self.context.access.clone();
        let router = router(Shared { context: self.context.clone(), access: access.clone() });
        let mut tasks = Vec::new();
        for listener in listeners {
            tasks.push(tokio::spawn(serve(listener, router.clone(), access.clone(), self.stop.clone())));
        }
        let watching = [
            tokio::spawn(watching::watch_cell(self.context.clone(), self.stop.clone())),
            tokio::spawn(watching::watch_sessions(self.context.clone(), self.stop.clone())),
        ];
        let mut stop = self.stop.clone();
        let _ = stop.wait_for(|stop| *stop).await;
        for task in tasks.into_iter().chain(watching) {
            // Each ends by itself, a moment after the stop.
            let _ = task.await;
        }
    }
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/cellcli", post(cellcli_statements))
        .route(super::held::PATH, post(super::held::held))
        .route(RecordedWrite::PATH, post(recorded::<RecordedWrite>))
        .route(RecordedRequest::PATH, post(recorded::<RecordedRequest>))
        .route("/v1/status", get(status))
        .route("/v1/openapi.json", get(openapi_document))
        .route("/metrics", get(metrics))
        .merge(operations::routes())
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "no such path; GET /v1/openapi.json tells them all") })
        .method_not_allowed_fallback(|| async { refuse(StatusCode::METHOD_NOT_ALLOWED, "not with this method") })
        .with_state(shared)
}

/// What is answered when nothing was carried out.
#[derive(Serialize)]
struct Refused<'a> {
    error: &'a str,
}

pub(super) fn refuse(status: StatusCode, error: &str) -> HttpResponse {
    (status, Json(Refused { error })).into_response()
}

impl FromRequestParts<Shared> for Caller {
    type Rejection = HttpResponse;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Caller, HttpResponse> {
        let Some(peer) = parts.extensions.get::<Peer>() else {
            return Err(refuse(StatusCode::UNAUTHORIZED, "nobody is known to be at the other end"));
        };
        let caller = shared.access.of_request(peer, bearer(&parts.headers)).map_err(|denied| {
            let from = if let Peer::Unknown { from, .. } = peer { from } else { "" };
            tracing::warn!(from, reason = ?denied, "an admin request was turned away");
            let text = match denied {
                Denied::Nobody => {
                    "a client certificate or a token is needed\nhint: `flashcell trust` makes them".to_owned()
                }
                Denied::Unfit(unfit) => unfit.to_string().replace("; hint:", "\nhint:"),
                Denied::WrongToken => "this token is not known here\nhint: `flashcell trust` makes one".to_owned(),
            };
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (challenge, refuse(StatusCode::UNAUTHORIZED, &text)).into_response()
        })?;
        // The head of a request is there, of somebody known: now it takes a place of its own.
        let (Peer::Known { place, .. } | Peer::Unknown { place, .. }) = peer;
        if !place.settle(&caller.role).await {
            tracing::warn!(who = caller.who, "too many connections of other users");
            let text = "too many connections of clients that are no administrators\nhint: try again";
            return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, text));
        }
        Ok(caller)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// What a body of JSON says, and the memory that it takes until it is answered.
pub(super) type Question<T> = (T, Held);

/// A body of JSON, within bounds of size, memory and time. It must say that it is: a page in the browser of somebody with a certificate
/// can send forms and plain text anywhere, JSON only where it is asked.
pub(super) async fn json_body<T: DeserializeOwned>(
    shared: &Shared,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
) -> Result<Question<T>, HttpResponse> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if !kind.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a body is application/json, and says so"));
    }
    // A body is at most as long as its head says. One whose head says nothing may have any length.
    let told = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = told.map_or(BODY_BYTES_MAX, |bytes| bytes.min(BODY_BYTES_MAX));
    let held = shared.context.answers.question(&caller.role, bytes).await.map_err(no_answer)?;
    let bytes = match tokio::time::timeout(BODY, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, "the body is too long, or broke off")),
        Err(_) => return Err(refuse(StatusCode::REQUEST_TIMEOUT, "the body does not come")),
    };
    let object = object_of(&bytes).map_err(|why| refuse(StatusCode::BAD_REQUEST, &format!("the body: {why}")))?;
    Ok((object, held))
}

/// The response to a question that gets no answer.
pub(super) fn no_answer(why: NoAnswer) -> HttpResponse {
    let hint = why.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    refuse(StatusCode::SERVICE_UNAVAILABLE, &(why.text() + &hint))
}

/// What a body says. serde takes an array for an object, field by field, and one without fields where all have defaults.
fn object_of<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err("an array, where an object is wanted".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

async fn cellcli_statements(
    State(shared): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> HttpResponse {
    let (request, question): Question<Request> = match json_body(&shared, &caller, &headers, body).await {
        Ok(question) => question,
        Err(refused) => return refused,
    };
    streamed("application/json", Some(question), move |writer| {
        statement::run(shared.context.clone(), caller, request, writer)
    })
    .await
}

async fn openapi_document(_: Caller) -> HttpResponse {
    Json(openapi::document()).into_response()
}

/// What concerns the whole cell is not for databases: the answer they get.
fn not_for(caller: &Caller) -> Option<HttpResponse> {
    match &caller.role {
        Role::Administrator | Role::Monitor => None,
        Role::Database(_) => Some(refuse(StatusCode::FORBIDDEN, "not for the role of a database")),
    }
}

#[derive(Serialize)]
struct Status {
    cell: String,
    version: &'static str,
    instance_stamp: String,
    up_seconds: u64,
    grid_disks: Vec<String>,
    connections: u64,
    memory_bytes_max: u64,
    listening: std::collections::BTreeMap<&'static str, Vec<String>>,
    alerts: Vec<String>,
}

async fn status(State(shared): State<Shared>, caller: Caller) -> HttpResponse {
    if let Some(refused) = not_for(&caller) {
        return refused;
    }
    let context = &shared.context;
    Json(Status {
        cell: context.cell_name(),
        version: crate::VERSION,
        instance_stamp: format!("{:032x}", context.cell.instance_stamp()),
        up_seconds: context.world.clock.now().ns_since(context.started) / 1_000_000_000,
        grid_disks: context.cell.grid_disks().iter().map(|disk| disk.name()).collect(),
        connections: context.front_end.stats().connections_open,
        memory_bytes_max: context.cell.memory_bytes_max(),
        listening: context.addresses.clone(),
        alerts: context.cell.alerts(),
    })
    .into_response()
}

async fn metrics(State(shared): State<Shared>, caller: Caller, headers: HeaderMap) -> HttpResponse {
    if let Some(refused) = not_for(&caller) {
        return refused;
    }
    let context = shared.context.clone();
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    let style = prometheus::Style::of_accept(accept);
    let make = move || prometheus::Pages::new(&context, style);
    match shared.context.answers.make(&caller.role, Length::Long, make, prometheus::Pages::bytes).await {
        Ok((pages, held)) => pieces(style.content_type(), pages, held).await,
        Err(why) => no_answer(why),
    }
}

#[cfg(test)]
mod tests {
    use super::super::recording::RecordRequest;
    use super::object_of;

    #[test]
    fn an_array_is_no_object() {
        let after = |body: &str| object_of::<RecordRequest>(body.as_bytes()).map(|request| request.after);
        assert_eq!(after("{}"), Ok(None));
        assert_eq!(after(" {\"after\": 7}"), Ok(Some(7)));
        let last = |body: &str| object_of::<RecordRequest>(body.as_bytes()).map(|request| request.last);
        assert_eq!((last("{\"after\": 7}"), last("{\"after\": 7, \"last\": true}")), (Ok(false), Ok(true)));
        for body in ["[]", " [7]", "7", "null", "", "{\"after\": 7, \"x\": 1}"] {
            assert!(after(body).is_err(), "{body}");
        }
    }
}
