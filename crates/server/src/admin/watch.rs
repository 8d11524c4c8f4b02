//! Watches a cell while it is served: reads the metrics once a minute, keeps them, and sees to it that what is wrong is an alert.

use super::conditions::{self, Seen};
use super::history::PERIOD;
use super::rows;
use super::{Context, activity_rows};
use crate::alerting::mail::{self, MailPlan};
use crate::alerting::{Every, Record, Severity, Threshold, Watch};
use crate::store::Moment;
use cell::metrics::{Sample, between};
use device::Instant;
use device::sync::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// How often the cell is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many looks apart the devices are asked for their size.
const LOOKS_PER_SIZE: u64 = 10;
/// So many connections fewer than there were: what they took is worth giving back.
const CONNECTIONS_GONE_MIN: u64 = 64;
/// Alerts that are sent, unless `notificationPolicy` says otherwise.
const POLICY: [Severity; 4] = [Severity::Critical, Severity::Warning, Severity::Info, Severity::Clear];

/// What goes from one look to the next.
#[derive(Default)]
struct Memory {
    seen: Seen,
    thresholds: Watch,
    last: Option<(Instant, Vec<Sample>)>,
    /// The most NBD connections since memory was given back.
    connections_most: u64,
}

/// End the sessions of NBD clients whose leave is withdrawn, until told to stop. By itself, so that nothing else that is looked at
/// holds it up.
pub(super) async fn watch_sessions(context: Arc<Context>, mut stop: watch::Receiver<bool>) {
    loop {
        let looking = context.clone();
        let look = move || crate::door::end_withdrawn(&looking.front_end, &looking.access);
        // Refused only when the runtime ends.
        let _ = tokio::task::spawn_blocking(look).await;
        if tokio::time::timeout(LOOK_EVERY, stop.wait_for(|stop| *stop)).await.is_ok() {
            return;
        }
    }
}

/// Until told to stop.
pub(super) async fn watch_cell(context: Arc<Context>, mut stop: watch::Receiver<bool>) {
    let memory = Arc::new(Mutex::new(Memory::default()));
    let mut ticks = 0_u64;
    let ticks_per_period = PERIOD.as_secs() / LOOK_EVERY.as_secs();
    let mut growing: Option<tokio::task::JoinHandle<()>> = None;
    loop {
        let is_minute = ticks.is_multiple_of(ticks_per_period);
        let asks_size = ticks.is_multiple_of(LOOKS_PER_SIZE);
        ticks += 1;
        let (looking, memory) = (context.clone(), memory.clone());
        let look = move || {
            if asks_size {
                looking.opener.look_for_growth();
            }
            let told = look(&looking, &mut lock(&memory), is_minute);
            looking.alerts.write(&looking.store);
            looking.hot_file.keep(looking.cell.hot_lists());
            told
        };
        // Refused only when the runtime ends. The files of a cell may be slow, and its index large.
        let told = tokio::task::spawn_blocking(look).await.unwrap_or_default();
        tell(&context, &told);
        // Whatever changes the cell at the moment may take long; nobody waits for it here.
        let is_growing = growing.as_ref().is_some_and(|growing| !growing.is_finished());
        if asks_size && !is_growing && context.cell.has_grown() {
            growing = Some(tokio::spawn(use_growth(context.clone())));
        }
        let stopped = stop.wait_for(|stop| *stop);
        if tokio::time::timeout(LOOK_EVERY, stopped).await.is_ok() {
            return;
        }
    }
}

/// Use what devices have more than they had.
async fn use_growth(context: Arc<Context>) {
    // It is refused while the cell is stopping: then the next start sees it.
    for note in context.cell.use_growth().await.unwrap_or_default() {
        tracing::info!("{note}");
    }
}

/// When many clients have gone, what they took in small pieces goes back to the system: the allocator would keep it.
fn give_back(context: &Context, memory: &mut Memory) {
    let open = context.front_end.stats().connections_open;
    memory.connections_most = memory.connections_most.max(open);
    if open + CONNECTIONS_GONE_MIN <= memory.connections_most {
        memory.connections_most = open;
        device::give_back_memory();
    }
}

/// Look once; what was raised, has changed or is over.
fn look(context: &Context, memory: &mut Memory, is_minute: bool) -> Vec<Record> {
    activity_rows::note(context);
    context.certificates.look();
    context.audit.tell_suppressed(|| rows::timestamp(context.world.clock.wall()).text());
    give_back(context, memory);
    let now_ns = context.world.clock.wall().0;
    let mut conditions = conditions::of_second(context, &mut memory.seen);
    let cell_name = context.cell_name();
    let notes = context.store.notes().into_iter();
    conditions
        .extend(notes.map(|note| crate::alerting::Condition::new("Cell_Event", &cell_name, Severity::Warning, note)));
    let mut told = context.alerts.update(Every::Second, now_ns, &conditions, &BTreeSet::new());
    if is_minute {
        told.extend(minute(context, memory, now_ns));
    }
    told
}

fn minute(context: &Context, memory: &mut Memory, now_ns: u64) -> Vec<Record> {
    let (at, samples) = (context.world.clock.now(), context.samples());
    let values: Vec<(&str, &str, u64)> =
        samples.iter().map(|sample| (sample.definition.name, &*sample.object, sample.value)).collect();
    let moment = Moment { life: context.life, mono_ns: at.0, wall_ns: now_ns };
    if context.keeps_history(&context.cell.store().catalog().attributes)
        && let Err(error) = context.store.keep(moment, &values)
    {
        tracing::debug!(%error, "a reading of the metrics is not kept");
    }
    let rates = match &memory.last {
        Some((before, last)) => between(last, &samples, at.ns_since(*before).max(1)),
        None => Vec::new(),
    };
    let thresholds = Threshold::all(&context.cell.store().catalog().attributes);
    let active = |definition: &str, object: &str| context.alerts.active(definition, object);
    let values: Vec<_> =
        rows::values(&samples, &rates).map(|(of, object, value)| (of, object.to_string(), value)).collect();
    let (mut found, mut undecided) = memory.thresholds.minute(&thresholds, &values, active);
    if memory.last.is_none() {
        // There are no rates yet: what was wrong with one is still wrong.
        let lasting = context.alerts.records().into_iter().filter(|record| !context.alerts.is_over(record.sequence));
        undecided.extend(lasting.map(|record| (record.definition, record.object)));
    }
    found.extend(conditions::of_minute(&samples, &mut memory.seen));
    context.history.push(at, samples.clone());
    memory.last = Some((at, samples));
    context.alerts.update(Every::Minute, now_ns, &found, &undecided)
}

/// The log, and whoever is to be told.
fn tell(context: &Context, told: &[Record]) {
    if told.is_empty() {
        return;
    }
    for record in told {
        let (alert, severity, message) = (record.name(), record.severity.word(), &record.message);
        match record.severity {
            Severity::Clear | Severity::Info => tracing::info!(alert, severity, message, "the cell reports"),
            Severity::Warning | Severity::Critical => tracing::error!(alert, severity, message, "the cell reports"),
        }
    }
    let attributes = context.cell.store().catalog().attributes.clone();
    let plan = mail::is_wanted(&attributes).then(|| MailPlan::new(&attributes, context.hooks.mail_access()));
    let plan = plan.and_then(|plan| {
        // It was whole when it was set: cell.toml has changed since.
        plan.inspect_err(|error| tracing::error!(%error, "alerts are not sent by mail")).ok()
    });
    context.hooks.send(&context.cell_name(), told, &policy(&attributes), plan.as_ref());
}

fn policy(attributes: &BTreeMap<String, String>) -> Vec<Severity> {
    match attributes.get("notificationPolicy") {
        Some(words) => {
            let named = |word: &str| POLICY.into_iter().find(|it| it.word().eq_ignore_ascii_case(word.trim()));
            words.split(',').filter_map(named).collect()
        }
        None => POLICY.to_vec(),
    }
}
