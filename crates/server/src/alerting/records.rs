//! The alerts there are and were. What is wrong is told again and again; here it is found what has begun, changed or ended.
//!
//! Kept in memory and written through to the store, so that a cell without a store still has its alerts. Bounded; what lasts is
//! never forgotten. Never asks whether something is wrong.

use super::definitions::{Every, Kind, definition, name_of_metric};
use crate::store::Store;
use device::sync::lock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// Records kept, about 4 MB of them: the oldest of what is over go first.
const RECORDS_MAX: usize = 10_000;
/// Bits of a record's number that count the changes of one alert.
const STEP_BITS: u32 = 16;
/// Changes of one alert: one that goes on changing is another one from then on.
const STEPS_MAX: u64 = (1 << STEP_BITS) - 1;
/// Characters of a message that are kept.
const MESSAGE_CHARS_MAX: usize = 1000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It is over.
    Clear,
    /// Good to know.
    Info,
    /// Something has to be done some day.
    Warning,
    /// Something has to be done now.
    Critical,
}

impl Severity {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Severity::Clear => "clear",
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// An alert as it was raised, or one of its changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Number of the alert.
    pub(crate) sequence: u64,
    /// Number of the change, from 1; 0 when the alert is stateless.
    pub(crate) step: u64,
    /// Name of its definition.
    pub(crate) definition: String,
    /// What it is about.
    pub(crate) object: String,
    pub(crate) severity: Severity,
    pub(crate) message: String,
    /// Nanoseconds since the epoch.
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: Option<u64>,
    pub(crate) sequence_begin_ns: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) examined_by: String,
    /// Number and unit of the metric that raised it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<(String, String)>,
}

impl Record {
    /// `3_1`; `7` for a stateless alert.
    pub(crate) fn name(&self) -> String {
        if self.step == 0 { self.sequence.to_string() } else { format!("{}_{}", self.sequence, self.step) }
    }

    fn number(&self) -> u64 {
        self.sequence << STEP_BITS | self.step
    }
}

/// Something that is wrong, or has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Name of a definition.
    pub(crate) definition: String,
    pub(crate) object: String,
    pub(crate) severity: Severity,
    pub(crate) message: String,
    pub(crate) value: Option<(String, String)>,
}

impl Condition {
    pub(crate) fn new(
        definition: &'static str,
        object: impl Into<String>,
        severity: Severity,
        message: impl Into<String>,
    ) -> Condition {
        let (definition, object) = (definition.to_owned(), object.into());
        Condition { definition, object, severity, message: message.into(), value: None }
    }

    fn kept_message(&self) -> String {
        self.message.chars().take(MESSAGE_CHARS_MAX).collect()
    }
}

/// What an alert is about: definition and object.
pub(crate) type Subject = (String, String);

#[derive(Default)]
struct State {
    records: BTreeMap<u64, Record>,
    /// Number of the last record of each alert that lasts.
    active: BTreeMap<Subject, u64>,
    last_sequence: u64,
    /// Not yet written.
    put: BTreeSet<u64>,
    removed: BTreeSet<u64>,
}

/// The alerts of a cell.
#[derive(Default)]
pub(crate) struct Alerts(Mutex<State>);

impl Alerts {
    /// As they were left in the store.
    pub(crate) fn load(store: &Store) -> Alerts {
        let mut state = State::default();
        match store.alerts() {
            Ok(all) => {
                // One of another version is passed over.
                let known = all.iter().filter_map(|(_, bytes)| serde_json::from_slice::<Record>(bytes).ok());
                known.for_each(|record| state.take_in(record));
            }
            Err(error) => tracing::warn!(%error, "earlier alerts are not known"),
        }
        Alerts(Mutex::new(state))
    }

    /// What is wrong now, of all alerts that are looked for so often: what was raised, has changed or is over. Of `undecided`
    /// nobody knows now: they stay as they are.
    pub(crate) fn update(
        &self,
        every: Every,
        now_ns: u64,
        conditions: &[Condition],
        undecided: &BTreeSet<Subject>,
    ) -> Vec<Record> {
        let mut state = lock(&self.0);
        let mut told = Vec::new();
        let mut seen = BTreeSet::new();
        for condition in conditions {
            let subject = (condition.definition.clone(), condition.object.clone());
            let Some(known) = definition(&condition.definition).filter(|it| it.kind != Kind::Stateless) else {
                told.push(state.begin(condition, now_ns, 0));
                continue;
            };
            seen.insert(subject.clone());
            let last = state.active.get(&subject).and_then(|number| state.records.get(number)).cloned();
            match last {
                Some(last)
                    if last.severity == condition.severity
                        && (!known.tells_why() || last.message == condition.kept_message()) => {}
                Some(last) if last.step < STEPS_MAX - 1 => told.push(state.go_on(&last, condition, now_ns)),
                Some(last) => {
                    told.push(state.clear(&last, now_ns));
                    told.push(state.begin(condition, now_ns, 1));
                }
                None => told.push(state.begin(condition, now_ns, 1)),
            }
        }
        // One whose definition is no more is looked for by nobody: it is over.
        let is_of = |name: &str| definition(name).map_or(every == Every::Second, |it| it.every == every);
        let over = |subject: &&Subject| is_of(&subject.0) && !seen.contains(*subject) && !undecided.contains(*subject);
        let over: Vec<Subject> = state.active.keys().filter(over).cloned().collect();
        for subject in over {
            if let Some(last) = state.active.get(&subject).and_then(|number| state.records.get(number)).cloned() {
                told.push(state.clear(&last, now_ns));
            }
        }
        state.bound();
        told
    }

    /// Write what has changed since the last time. Blocks on the disk.
    pub(crate) fn write(&self, store: &Store) {
        let (put, removed) = {
            let mut state = lock(&self.0);
            let (put, removed) = (std::mem::take(&mut state.put), std::mem::take(&mut state.removed));
            let text = |number: u64| serde_json::to_vec(state.records.get(&number)?).ok().map(|bytes| (number, bytes));
            (put.into_iter().filter_map(text).collect::<Vec<_>>(), removed.into_iter().collect::<Vec<_>>())
        };
        if put.is_empty() && removed.is_empty() {
            return;
        }
        if let Err(error) = store.write_alerts(&put, &removed) {
            tracing::error!(%error, "alerts will not outlast this run");
        }
    }

    /// Every record, oldest first.
    pub(crate) fn records(&self) -> Vec<Record> {
        lock(&self.0).records.values().cloned().collect()
    }

    /// How bad the alert is that lasts, if one does.
    pub(crate) fn active(&self, definition: &str, object: &str) -> Option<Severity> {
        let state = lock(&self.0);
        let number = state.active.get(&(definition.to_owned(), object.to_owned()))?;
        state.records.get(number).map(|record| record.severity)
    }

    /// How the value of a metric stands to its thresholds.
    pub(crate) fn of_metric(&self, metric: &str, object: &str) -> &'static str {
        self.active(&name_of_metric(metric), object).map_or("normal", Severity::word)
    }

    /// How many alerts last, by how bad they are.
    pub(crate) fn active_counts(&self) -> BTreeMap<Severity, u64> {
        let state = lock(&self.0);
        let mut counts = BTreeMap::from([(Severity::Warning, 0), (Severity::Critical, 0)]);
        for record in state.active.values().filter_map(|number| state.records.get(number)) {
            *counts.entry(record.severity).or_default() += 1;
        }
        counts
    }

    /// Say who has looked into these records.
    pub(crate) fn examine(&self, names: &[String], examined_by: &str) {
        let mut state = lock(&self.0);
        let State { records, put, .. } = &mut *state;
        for record in records.values_mut().filter(|record| names.contains(&record.name())) {
            examined_by.clone_into(&mut record.examined_by);
            put.insert(record.number());
        }
    }

    /// Forget the alerts of these records, with all of their changes. The name of one that lasts, of which nothing is forgotten.
    pub(crate) fn forget(&self, names: &[String]) -> Result<(), String> {
        let mut state = lock(&self.0);
        let named: Vec<&Record> = state.records.values().filter(|record| names.contains(&record.name())).collect();
        if let Some(lasting) = named.iter().find(|record| state.lasts(record.sequence)) {
            return Err(lasting.name());
        }
        let sequences: BTreeSet<u64> = named.iter().map(|record| record.sequence).collect();
        sequences.into_iter().for_each(|sequence| state.remove(sequence));
        Ok(())
    }

    /// Whether the alert of this record is over.
    pub(crate) fn is_over(&self, sequence: u64) -> bool {
        !lock(&self.0).lasts(sequence)
    }
}

impl State {
    fn take_in(&mut self, record: Record) {
        self.last_sequence = self.last_sequence.max(record.sequence);
        let subject = (record.definition.clone(), record.object.clone());
        if record.step > 0 && record.severity != Severity::Clear {
            self.active.insert(subject, record.number());
        } else if record.step > 0 {
            self.active.remove(&subject);
        }
        self.records.insert(record.number(), record);
    }

    fn lasts(&self, sequence: u64) -> bool {
        self.active.values().any(|number| number >> STEP_BITS == sequence)
    }

    fn add(&mut self, record: Record) -> Record {
        self.put.insert(record.number());
        self.take_in(record.clone());
        record
    }

    fn begin(&mut self, condition: &Condition, now_ns: u64, step: u64) -> Record {
        self.add(Record {
            sequence: self.last_sequence + 1,
            step,
            definition: condition.definition.clone(),
            object: condition.object.clone(),
            severity: condition.severity,
            message: condition.kept_message(),
            begin_ns: now_ns,
            end_ns: None,
            sequence_begin_ns: now_ns,
            examined_by: String::new(),
            value: condition.value.clone(),
        })
    }

    fn go_on(&mut self, last: &Record, condition: &Condition, now_ns: u64) -> Record {
        self.add(Record {
            step: last.step + 1,
            severity: condition.severity,
            message: condition.kept_message(),
            begin_ns: now_ns,
            examined_by: String::new(),
            value: condition.value.clone(),
            ..last.clone()
        })
    }

    fn clear(&mut self, last: &Record, now_ns: u64) -> Record {
        let of = |sequence: u64| sequence << STEP_BITS..(sequence + 1) << STEP_BITS;
        for (number, record) in self.records.range_mut(of(last.sequence)) {
            record.end_ns = Some(now_ns);
            self.put.insert(*number);
        }
        self.add(Record {
            step: last.step + 1,
            severity: Severity::Clear,
            message: format!("cleared: {}", last.message.trim_start_matches("cleared: ")),
            begin_ns: now_ns,
            end_ns: Some(now_ns),
            examined_by: String::new(),
            value: None,
            ..last.clone()
        })
    }

    fn remove(&mut self, sequence: u64) {
        let numbers = sequence << STEP_BITS..(sequence + 1) << STEP_BITS;
        let gone: Vec<u64> = self.records.range(numbers).map(|(number, _)| *number).collect();
        for number in gone {
            self.records.remove(&number);
            self.put.remove(&number);
            self.removed.insert(number);
        }
    }

    fn bound(&mut self) {
        while self.records.len() > RECORDS_MAX {
            let over = self.records.values().map(|record| record.sequence).find(|sequence| !self.lasts(*sequence));
            // What lasts is bounded by the objects there are.
            let Some(sequence) = over else { return };
            self.remove(sequence);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::store::{Limits, SIZE_BYTES_MIN};

    #[test]
    fn another_reason_for_being_offline_is_a_change_of_the_alert() {
        let (alerts, none) = (Alerts::default(), BTreeSet::new());
        let because = |why: &str| Condition::new("GridDisk_Offline", "a", Severity::Critical, why);
        let step = |at, why: &str| {
            let told = alerts.update(Every::Second, at, &[because(why)], &none);
            told.into_iter().map(|record| (record.name(), record.message)).collect::<Vec<_>>()
        };
        let told = |name: &str, why: &str| vec![(name.to_owned(), why.to_owned())];
        assert_eq!(step(1, "flash is away"), told("1_1", "flash is away"));
        assert_eq!(step(2, "flash is away"), []);
        assert_eq!(step(3, "it was used"), told("1_2", "it was used"));
        let long = "x".repeat(2 * MESSAGE_CHARS_MAX);
        assert_eq!(step(4, &long).len(), 1);
        assert_eq!(step(5, &long), [], "known, though it was cut");
    }

    fn offline(object: &str, severity: Severity) -> Condition {
        Condition::new("GridDisk_Offline", object, severity, format!("{object} is offline"))
    }

    fn shown(records: &[Record]) -> Vec<String> {
        let end = |record: &Record| record.end_ns.map_or_else(|| "-".to_owned(), |ns| ns.to_string());
        records.iter().map(|it| format!("{} {} {}..{}", it.name(), it.severity.word(), it.begin_ns, end(it))).collect()
    }

    #[test]
    fn an_alert_begins_changes_and_ends() {
        let alerts = Alerts::default();
        let none = BTreeSet::new();
        let step = |at, now: &[Condition]| shown(&alerts.update(Every::Second, at, now, &none));
        assert_eq!(step(1, &[offline("a", Severity::Warning)]), ["1_1 warning 1..-"]);
        assert_eq!(step(2, &[offline("a", Severity::Warning)]), [""; 0]);
        let both = [offline("a", Severity::Critical), offline("b", Severity::Critical)];
        assert_eq!(step(3, &both), ["1_2 critical 3..-", "2_1 critical 3..-"]);
        assert_eq!(step(4, &[offline("b", Severity::Critical)]), ["1_3 clear 4..4"]);
        assert_eq!(
            step(5, &[offline("a", Severity::Critical), offline("b", Severity::Critical)]),
            ["3_1 critical 5..-"]
        );
        let all = ["1_1 warning 1..4", "1_2 critical 3..4", "1_3 clear 4..4", "2_1 critical 3..-", "3_1 critical 5..-"];
        assert_eq!(shown(&alerts.records()), all);
        assert_eq!(alerts.active("GridDisk_Offline", "b"), Some(Severity::Critical));
        // What is looked for once a minute is not over because nobody looked this second.
        let saved = Condition::new("FlashLog_SavedRedo", "FLASHLOG", Severity::Warning, "x");
        alerts.update(Every::Minute, 6, &[saved], &none);
        alerts.update(Every::Second, 7, &[], &none);
        assert_eq!(alerts.active("FlashLog_SavedRedo", "FLASHLOG"), Some(Severity::Warning));
        let unknown = BTreeSet::from([("FlashLog_SavedRedo".to_owned(), "FLASHLOG".to_owned())]);
        assert!(alerts.update(Every::Minute, 8, &[], &unknown).is_empty(), "nobody knows");
        assert_eq!(shown(&alerts.update(Every::Minute, 9, &[], &none)), ["4_2 clear 9..9"]);
    }

    #[test]
    fn they_outlast_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(dir.path(), Limits { days: 1, size_bytes: SIZE_BYTES_MIN });
        let none = BTreeSet::new();
        {
            let (store, alerts) = (open(), Alerts::default());
            alerts.update(Every::Second, 1, &[offline("a", Severity::Critical)], &none);
            let event = Condition::new("Cell_Event", "", Severity::Info, "x".repeat(5000));
            alerts.update(Every::Second, 2, &[event, offline("a", Severity::Critical)], &none);
            alerts.examine(&["2".to_owned()], "mr. x");
            alerts.write(&store);
        }
        let store = open();
        let alerts = Alerts::load(&store);
        assert_eq!(shown(&alerts.records()), ["1_1 critical 1..-", "2 info 2..-"]);
        assert_eq!(alerts.records()[1].examined_by, "mr. x");
        assert_eq!(alerts.records()[1].message.len(), MESSAGE_CHARS_MAX);
        assert!(alerts.update(Every::Second, 3, &[offline("a", Severity::Critical)], &none).is_empty(), "known");
        assert_eq!(alerts.forget(&["1_1".to_owned()]), Err("1_1".to_owned()), "it lasts");
        assert_eq!(shown(&alerts.update(Every::Second, 4, &[], &none)), ["1_2 clear 4..4"]);
        alerts.forget(&["1_2".to_owned()]).unwrap();
        alerts.write(&store);
        drop(store);
        assert_eq!(shown(&Alerts::load(&open()).records()), ["2 info 2..-"]);
    }

    #[test]
    fn the_oldest_that_are_over_go() {
        let alerts = Alerts::default();
        let none = BTreeSet::new();
        alerts.update(Every::Second, 1, &[offline("a", Severity::Critical)], &none);
        let event = Condition::new("Cell_Event", "", Severity::Info, "x");
        let many: Vec<Condition> = std::iter::repeat_n(event, RECORDS_MAX).collect();
        let with_it = [vec![offline("a", Severity::Critical)], many].concat();
        alerts.update(Every::Second, 2, &with_it, &none);
        let left = alerts.records();
        assert_eq!(left.len(), RECORDS_MAX);
        assert_eq!((left[0].name(), left[1].name()), ("1_1".to_owned(), "3".to_owned()));
    }
}
