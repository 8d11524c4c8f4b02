//! The admin service: CellCLI statements, status and metrics over HTTP, on unix sockets and on TCP with TLS.
//!
//! | path | what |
//! |---|---|
//! | `POST /v1/cellcli` | [`Request`] in, [`Response`] out |
//! | `GET POST PATCH DELETE /v1/griddisk` and so on | LIST, CREATE, ALTER, DROP of each object type |
//! | `GET /v1/griddisk/attributes` and so on | DESCRIBE |
//! | `GET /v1/openapi.json` | all of this, for programs |
//! | `POST /v1/flashcache/held` | what of ranges of a grid disk is on flash |
//! | `POST /v1/redo/record` | redo writes as they are answered, since the question before |
//! | `POST /v1/trace/record` | requests in the order they begin, since the question before |
//! | `GET /v1/status` | what is served, in JSON |
//! | `GET /metrics` | OpenMetrics, Prometheus text |
//!
//! Runs on one thread of its own with tokio. Changes are carried out on the cell's executor threads, where its devices
//! answer; what only looks (LIST, metrics) is made on another thread, since a walk over the index of a large cache takes
//! longer than a client's request may wait. Questions and answers of all clients have a bound of memory ([`answers`]), and answers are sent
//! as they are taken ([`stream`]). Never sees a byte of a client's data.

mod access;
mod activity_rows;
mod alert_statements;
mod alter_cell;
mod answers;
mod audit;
mod calibrate;
mod cell_disks;
mod change;
mod conditions;
mod held;
mod history;
mod in_service;
mod iorm;
mod listen;
mod metric_definitions;
mod metric_history;
mod metrics_current;
mod openapi;
mod operations;
mod patient;
mod physical_rows;
mod places;
mod prometheus;
mod protocol;
mod recording;
mod revoked;
mod rows;
mod service;
mod services;
mod statement;
mod stream;
mod watch;

pub use access::Role;
pub(crate) use access::user_names;
pub(crate) use access::{Access, NAME_URI, ROLE_URI, is_name, token_digest};
pub(crate) use answers::{Answers, bytes_max as answers_bytes_max};
pub(crate) use audit::Audit;
pub use held::Held;
pub(crate) use held::{
    BYTES_MAX as HELD_BYTES_MAX, HeldAnswer, HeldRequest, PATH as HELD_PATH, RANGES_MAX as HELD_RANGES_MAX,
};
pub(crate) use history::History;
pub(crate) use listen::AdminListener;
pub(crate) use protocol::{DateStyle, Form, Outcome, Request, Response};
pub(crate) use recording::{RecordAnswer, RecordRequest};
pub use recording::{Recordable, RecordedKind, RecordedOutcome, RecordedRequest, RecordedWrite};
pub(crate) use revoked::{LIST_BYTES_MAX, Revoked};
pub(crate) use service::Service;
pub(crate) use services::{StopCause, Stopper};

use crate::alerting::{Alerts, Hooks};
use crate::certificates::Certificates;
use crate::devices::{OpenDevice, Opener};
use crate::hot_file::HotFile;
use crate::store::Store;
use cell::Cell;
use celldisk::DeviceId;
use device::sync::lock;
use device::{Instant, World};
use nbd::FrontEnd;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// What the service tells about and works on.
pub(crate) struct Context {
    /// The cell.
    pub(crate) cell: Arc<Cell>,
    /// Its world: time and tasks.
    pub(crate) world: World,
    /// Its devices.
    pub(crate) devices: Mutex<Vec<Arc<OpenDevice>>>,
    /// Opens others.
    pub(crate) opener: Opener,
    /// Its front end.
    pub(crate) front_end: FrontEnd,
    /// Where it is configured.
    pub(crate) dir: PathBuf,
    /// Has it stop.
    pub(crate) stopper: Stopper,
    /// Who may what.
    pub(crate) access: Arc<Access>,
    /// What TCP is secured with.
    pub(crate) certificates: Arc<Certificates>,
    /// Who did what.
    pub(crate) audit: Audit,
    /// Readings of the metrics, for rates.
    pub(crate) history: History,
    /// What it remembers of its metrics and alerts.
    pub(crate) store: Store,
    /// Alerts there are and were.
    pub(crate) alerts: Alerts,
    /// Whom they are sent to.
    pub(crate) hooks: Hooks,
    /// Which run of the cell this is, for the history.
    pub(crate) life: u64,
    /// Days of history that cell.toml states.
    pub(crate) history_days_default: u64,
    /// Requests under way when they were first seen.
    pub(crate) requests_seen: Mutex<activity_rows::FirstSeen>,
    /// What is hot on flash, kept for the next life.
    pub(crate) hot_file: HotFile,
    /// Makes answers, within their memory.
    pub(crate) answers: Answers,
    /// When it began to serve.
    pub(crate) started: Instant,
    /// Where it listens, as printed.
    pub(crate) addresses: BTreeMap<&'static str, Vec<String>>,
}

impl Context {
    /// The device of a cell disk, when it is open.
    fn device(&self, id: DeviceId) -> Option<Arc<OpenDevice>> {
        self.devices().into_iter().find(|device| device.device_id == Some(id))
    }

    /// Its devices now.
    pub(crate) fn devices(&self) -> Vec<Arc<OpenDevice>> {
        lock(&self.devices).clone()
    }

    fn cell_name(&self) -> String {
        self.cell.store().catalog().cell_name.clone()
    }

    /// How long the history is kept: what the operator has said to the cell, else cell.toml.
    pub(crate) fn history_days(&self, attributes: &BTreeMap<String, String>) -> u64 {
        let said = attributes.get(history::HISTORY_DAYS).and_then(|text| text.parse().ok());
        said.filter(|days| (1..=history::HISTORY_DAYS_MAX).contains(days)).unwrap_or(self.history_days_default)
    }

    /// Whether a history is written.
    fn keeps_history(&self, attributes: &BTreeMap<String, String>) -> bool {
        attributes.get(history::METRIC_COLLECTION).is_none_or(|said| said != "FALSE")
    }

    /// Let the store keep the history as the catalog says.
    pub(crate) fn keep_history(&self) {
        let attributes = &self.cell.store().catalog().attributes;
        self.store.keep_for(self.history_days(attributes), metric_definitions::annual_counters(attributes));
    }

    /// Do `work` on an executor thread of the cell; nothing when the cell is stopping. It is done to its end though nobody
    /// waits any more.
    async fn on_cell<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (tell, told) = oneshot::channel();
        self.world.spawn.spawn(Box::pin(async move {
            // Refused when the client has gone.
            let _ = tell.send(work.await);
        }));
        told.await.ok()
    }

    /// Every counter and gauge now. Walks the cache's index.
    fn samples(&self) -> Vec<cell::metrics::Sample> {
        let catalog = self.cell.store().catalog();
        let devices: Vec<_> = self
            .devices()
            .iter()
            .filter_map(|device| {
                let member = catalog.members.get(&device.device_id?)?;
                Some(device.io.totals(member.name.clone()))
            })
            .collect();
        let (process, hosts) = (crate::process::usage(), self.front_end.hosts());
        cell::metrics::samples(&self.cell, &catalog.cell_name, &devices, &process, &hosts)
    }
}
