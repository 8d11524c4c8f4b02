//! The HTTP service and its thread.

use super::history::PERIOD;
use super::limited::Limited;
use super::{Context, Outcome, Request, Response, prometheus, statement};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use axum::routing::{get, post};
use axum::{Json, Router};
use device::Address;
use serde::Serialize;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;

/// A body may hold the longest text the language takes, escaped at worst, and its envelope.
const BODY_BYTES_MAX: usize = cellcli::TEXT_BYTES_MAX * 2 + 4096;
/// Connections at a time on one listener: people and scrapers, not a crowd.
const CONNECTIONS_MAX: usize = 64;
/// How often alerts of the cell are looked for.
const ALERTS_EVERY: Duration = Duration::from_secs(1);
/// Time for answers under way when the service stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// A bound listener of the service.
pub(crate) enum AdminListener {
    /// On this host, for its owner.
    Unix(UnixListener, PathBuf),
    /// Read-only.
    Tcp(TcpListener),
}

impl AdminListener {
    /// Bind. A socket left by a dead server is removed; a live one is an error.
    pub(crate) async fn bind(address: &Address) -> std::io::Result<AdminListener> {
        match address {
            Address::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                // Whoever may connect may do everything: the owner alone.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(AdminListener::Unix(listener, path.clone()))
            }
            Address::Tcp { host, port } => Ok(AdminListener::Tcp(TcpListener::bind((host.as_str(), *port)).await?)),
        }
    }

    /// The address really bound.
    pub(crate) fn address(&self) -> String {
        match self {
            AdminListener::Unix(_, path) => Address::Unix(path.clone()).to_string(),
            AdminListener::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "tcp:?".to_owned(), |address| format!("tcp:{address}"))
            }
        }
    }
}

async fn remove_stale(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(std::io::Error::new(std::io::ErrorKind::AddrInUse, "a live server listens there"));
            }
            std::fs::remove_file(path)
        }
        Ok(_) => Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, "the path is taken, and no socket")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The service while it runs. Runs on the caller's tokio runtime.
pub(crate) struct Service {
    context: Arc<Context>,
    stop: watch::Receiver<bool>,
}

#[derive(Clone)]
struct Shared {
    context: Arc<Context>,
    read_only: bool,
}

impl Service {
    /// A service that ends when `stop` becomes true.
    pub(crate) fn new(context: Arc<Context>, stop: watch::Receiver<bool>) -> Service {
        Service { context, stop }
    }

    /// Serve all listeners until told to stop; then answers under way are given a moment.
    pub(crate) async fn run(self, listeners: Vec<AdminListener>) {
        let mut tasks = Vec::new();
        for listener in listeners {
            let read_only = matches!(listener, AdminListener::Tcp(_));
            let router = router(Shared { context: self.context.clone(), read_only });
            let mut stop = self.stop.clone();
            tasks.push(tokio::spawn(async move {
                let stopped = async move {
                    let _ = stop.wait_for(|stop| *stop).await;
                };
                let ended = match listener {
                    AdminListener::Unix(listener, path) => {
                        let listener = Limited::new(listener, CONNECTIONS_MAX);
                        let ended = axum::serve(listener, router).with_graceful_shutdown(stopped).await;
                        let _ = std::fs::remove_file(path);
                        ended
                    }
                    AdminListener::Tcp(listener) => {
                        let listener = Limited::new(listener, CONNECTIONS_MAX);
                        axum::serve(listener, router).with_graceful_shutdown(stopped).await
                    }
                };
                if let Err(error) = ended {
                    tracing::error!(%error, "the admin service ended");
                }
            }));
        }
        let watching = tokio::spawn(watch_cell(self.context.clone(), self.stop.clone()));
        let mut stop = self.stop.clone();
        let _ = stop.wait_for(|stop| *stop).await;
        for task in tasks {
            let _ = tokio::time::timeout(FAREWELL, task).await;
        }
        let _ = watching.await;
    }
}

/// Read the metrics once a period, and tell the log of alerts.
async fn watch_cell(context: Arc<Context>, mut stop: watch::Receiver<bool>) {
    let mut told: Vec<String> = Vec::new();
    let mut ticks = 0_u64;
    let ticks_per_period = PERIOD.as_secs() / ALERTS_EVERY.as_secs();
    loop {
        if ticks.is_multiple_of(ticks_per_period) {
            let reader = context.clone();
            let read = move || reader.history.push(reader.world.clock.now(), reader.samples());
            // Refused only when the runtime ends.
            let _ = tokio::task::spawn_blocking(read).await;
        }
        ticks += 1;
        let alerts = context.cell.alerts();
        for alert in new_alerts(&told, &alerts) {
            tracing::error!(alert = %alert, "the cell reports");
        }
        told = alerts;
        let stopped = stop.wait_for(|stop| *stop);
        if tokio::time::timeout(ALERTS_EVERY, stopped).await.is_ok() {
            return;
        }
    }
}

/// What was appended: the list grows at its end and may lose its beginning.
fn new_alerts<'a>(told: &[String], now: &'a [String]) -> &'a [String] {
    let lost = (0..=told.len()).find(|lost| now.starts_with(&told[*lost..])).unwrap_or(told.len());
    &now[told.len() - lost..]
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/cellcli", post(cellcli_statements))
        .route("/v1/status", get(status))
        .route("/metrics", get(metrics))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(shared)
}

async fn cellcli_statements(State(shared): State<Shared>, Json(mut request): Json<Request>) -> HttpResponse {
    request.monitor |= shared.read_only;
    let results = statement::run(shared.context.clone(), request).await;
    for Outcome { error, .. } in results.iter().filter(|it| it.error.is_some()) {
        tracing::debug!(error = error.as_deref().unwrap_or(""), "a statement was refused");
    }
    Json(Response { results }).into_response()
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

async fn status(State(shared): State<Shared>) -> HttpResponse {
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

async fn metrics(State(shared): State<Shared>) -> HttpResponse {
    let context = shared.context.clone();
    match tokio::task::spawn_blocking(move || prometheus::page(&context)).await {
        Ok(page) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the cell is stopping\n").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_alerts_are_told() {
        let list = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(new_alerts(&list(""), &list("ab")), list("ab"));
        assert_eq!(new_alerts(&list("ab"), &list("ab")), list(""));
        assert_eq!(new_alerts(&list("ab"), &list("abc")), list("c"));
        assert_eq!(new_alerts(&list("abc"), &list("bcd")), list("d"), "the oldest went");
        assert_eq!(new_alerts(&list("ab"), &list("cd")), list("cd"));
    }
}
