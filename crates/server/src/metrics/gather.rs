//! Asking all cells, so many at a time; each has the same short time.
//!
//! A thread that hangs (a name server that does not answer) is left behind: nobody waits for it. Never asks twice.

use super::reading::{Known, Reading, parse};
use crate::admin::{DateStyle, Form, Request, Response};
use crate::console::address_of;
use crate::http::Client;
use crate::tls::{Identity, client_dir};
use device::Address;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Cells asked at a time: with a handshake of TLS at a millisecond of processor and 40 ms of waiting, more would wait for processors.
const AT_ONCE: usize = 128;
/// Longest answer of a cell: ten times the largest one's. What hostile ones can make of it is [`AT_ONCE`] times as much.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Beyond the two time-outs of a cell, before those still asked are given up: names that are looked up.
const GRACE: Duration = Duration::from_secs(2);

/// Who failed, and why in a line.
pub(super) type Failures = Vec<(String, String)>;

/// The readings of those that answer, in order, and who does not.
pub(super) fn gather(hosts: &[String], timeout: Duration, describe: bool) -> (Vec<Reading>, Failures) {
    gather_with(hosts, timeout, describe, None)
}

/// As [`gather`], with this identity instead of the user's.
pub(super) fn gather_with(
    hosts: &[String],
    timeout: Duration,
    describe: bool,
    identity: Option<Result<Identity, String>>,
) -> (Vec<Reading>, Failures) {
    let todo: Arc<Mutex<VecDeque<(usize, String)>>> = Arc::new(Mutex::new(hosts.iter().cloned().enumerate().collect()));
    // Loaded once, and not at all where only sockets of this host are asked.
    let identity: Arc<Mutex<Option<Result<Identity, String>>>> = Arc::new(Mutex::new(identity));
    let (give, take) = mpsc::channel();
    for _ in 0..AT_ONCE.min(hosts.len()) {
        let (give, todo, identity) = (give.clone(), todo.clone(), identity.clone());
        // Not scoped: see the head of the module.
        std::thread::spawn(move || {
            let mut known = Known::new();
            loop {
                let next = device::sync::lock(&todo).pop_front();
                let Some((index, host)) = next else { return };
                let answer = ask(&host, &identity, timeout, describe, &mut known);
                // Refused when nobody waits any more.
                if give.send((index, answer)).is_err() {
                    return;
                }
            }
        });
    }
    drop(give);
    let mut answers: Vec<Option<Result<Reading, String>>> = hosts.iter().map(|_| None).collect();
    while let Ok((index, answer)) = take.recv_timeout(timeout * 2 + GRACE) {
        answers[index] = Some(answer);
    }
    let mut readings = Vec::new();
    let mut failures = Vec::new();
    for (host, answer) in hosts.iter().zip(answers) {
        match answer.unwrap_or_else(|| Err("no answer".to_owned())) {
            Ok(reading) => readings.push(reading),
            Err(why) => failures.push((host.clone(), why)),
        }
    }
    (readings, failures)
}

fn ask(
    host: &str,
    identity: &Mutex<Option<Result<Identity, String>>>,
    timeout: Duration,
    describe: bool,
    known: &mut Known,
) -> Result<Reading, String> {
    let first_line = |text: String| text.lines().next().unwrap_or("").to_owned();
    let address = address_of(Some(host)).map_err(|error| first_line(error.to_string()))?;
    let identity = match &address {
        Address::Unix(_) => None,
        Address::Tcp { .. } => {
            let mut held = device::sync::lock(identity);
            let loaded = held.get_or_insert_with(|| Identity::load(&client_dir()).map_err(|error| error.to_string()));
            Some(loaded.clone().map_err(|why| format!("reached over TLS, and this side has nothing to show: {why}"))?)
        }
    };
    let client = Client::with(address, identity, timeout, timeout, ANSWER_BYTES_MAX);
    let description = if describe { ", description" } else { "" };
    let text = format!(
        "LIST CELL ATTRIBUTES name; LIST METRICCURRENT ATTRIBUTES name, metricObjectName, metricType, metricValue, objectType, \
         unit, collectionTime{description}"
    );
    let request = Request { text, monitor: true, form: Form::Json, dates: DateStyle::Standard };
    let body = serde_json::to_string(&request).map_err(|error| error.to_string())?;
    let answer = client.post_json("/v1/cellcli", &body).map_err(|error| first_line(error.to_string()))?;
    let response: Response = serde_json::from_str(&answer).map_err(|error| format!("answers strangely: {error}"))?;
    let [cell, metrics] = &response.results[..] else {
        return Err(format!("answers strangely: {} results for two statements", response.results.len()));
    };
    if let Some(error) = &metrics.error {
        return Err(first_line(error.clone()));
    }
    // A database may not ask for the cell, and knows it by the address.
    let name = cell_name(&cell.output).unwrap_or_else(|| host.to_owned());
    parse(&name, &metrics.output, known).map_err(|error| format!("answers strangely: {error}"))
}

fn cell_name(output: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Row {
        name: String,
    }
    let rows: Vec<Row> = serde_json::from_str(output).ok()?;
    let name = rows.into_iter().next()?.name;
    super::reading::checked(&name).is_ok().then_some(name)
}
