//! A model held against its data sheet: the same requests that the maker names, in virtual time.

use super::DeviceError;
use super::DeviceModel;
use super::keys::Key;
use super::parse::{known, number, word};
use crate::model::sparse::Sparse;
use crate::output::{json_string, table};
use crate::run::run_all;
use device::{Buf, Bufs, Device, Outcome, Prng};
use futures_util::future::join_all;
use sim::executor::{Executor, ExecutorConfig};
use sim::plain::process_of;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use toml::{Table, Value};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Mean time of one request after another, anywhere.
    ReadNs,
    WriteNs,
    /// Requests a second, anywhere.
    RandomReads,
    RandomWrites,
    /// MB a second, one request behind the other.
    ReadsInOrder,
    WritesInOrder,
}

const TESTS: [(&str, Test); 6] = [
    ("read_ns", Test::ReadNs),
    ("write_ns", Test::WriteNs),
    ("random_reads_per_s", Test::RandomReads),
    ("random_writes_per_s", Test::RandomWrites),
    ("read_mb_per_s", Test::ReadsInOrder),
    ("write_mb_per_s", Test::WritesInOrder),
];

impl Test {
    fn name(self) -> &'static str {
        TESTS.iter().find(|(_, test)| *test == self).map_or("", |(name, _)| name)
    }

    fn is_read(self) -> bool {
        matches!(self, Test::ReadNs | Test::RandomReads | Test::ReadsInOrder)
    }

    fn is_in_order(self) -> bool {
        matches!(self, Test::ReadsInOrder | Test::WritesInOrder)
    }

    fn is_one_by_one(self) -> bool {
        matches!(self, Test::ReadNs | Test::WriteNs)
    }
}

/// A figure of a data sheet, and how it is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sheet {
    pub(super) test: Test,
    pub(super) value: u64,
    pub(super) source: String,
    /// The model may deviate by so much.
    pub(super) within_percent: u64,
    /// Requests under way at once.
    depth: u64,
    /// Of a request.
    bytes: u64,
    /// Requests that count, and those before.
    requests: u64,
    after: u64,
    /// Of the device, from there on in hundredths of it.
    span_bytes: u64,
    from_percent: u64,
}

const fn key(name: &'static str, low: u64, high: u64) -> Key {
    Key { name, low, high, default: None }
}

const VALUE: Key = key("value", 1, u64::MAX >> 1);
const WITHIN: Key = key("within_percent", 0, 1_000);
const DEPTH: Key = key("depth", 1, 1_024);
const BYTES: Key = key("bytes", 512, 4 << 20);
const REQUESTS: Key = key("requests", 1, 10_000_000);
const AFTER: Key = key("after", 0, 100_000_000);
const SPAN: Key = key("span_bytes", 4 << 20, 1 << 50);
const FROM: Key = key("from_percent", 0, 99);
/// Sheets of a description.
const SHEETS_MAX: usize = 64;

impl Sheet {
    /// Those of a description.
    pub(super) fn read(file: &str, table: &Table) -> Result<Vec<Sheet>, DeviceError> {
        let wrong = |what: &str, hint: &str| DeviceError::Wrong {
            file: file.to_owned(),
            what: what.to_owned(),
            hint: hint.to_owned(),
        };
        let form = "[[sheet]] on a line of its own, then test, value, source, within_percent";
        let sheets = match table.get("sheet") {
            None => return Ok(Vec::new()),
            Some(Value::Array(sheets)) if sheets.len() <= SHEETS_MAX => sheets,
            Some(_) => return Err(wrong("sheet is no list of tables, or a very long one", form)),
        };
        let one = |sheet: &Value| {
            let Value::Table(sheet) = sheet else { return Err(wrong("sheet is no table", form)) };
            let keys = [VALUE, WITHIN, DEPTH, BYTES, REQUESTS, AFTER, SPAN, FROM];
            let mut names: Vec<&str> = keys.iter().map(|key| key.name).collect();
            names.extend(["test", "source"]);
            known(file, "[[sheet]]", sheet, &names)?;
            let name = word(file, sheet, "test")?.unwrap_or_default();
            let Some((_, test)) = TESTS.iter().find(|(known, _)| *known == name) else {
                let all: Vec<&str> = TESTS.iter().map(|(name, _)| *name).collect();
                return Err(wrong(
                    &format!("test = {name:?} is none that there is"),
                    &format!("test is one of {}", all.join(", ")),
                ));
            };
            let of = |key: Key, default: Option<u64>| match (sheet.get(key.name), default) {
                (Some(value), _) => number(file, &key, value),
                (None, Some(default)) => Ok(default),
                (None, None) => Err(wrong(&format!("[[sheet]] has no {}", key.name), form)),
            };
            let in_order = test.is_in_order();
            let sheet = Sheet {
                test: *test,
                value: of(VALUE, None)?,
                source: word(file, sheet, "source")?.unwrap_or_default().to_owned(),
                within_percent: of(WITHIN, None)?,
                depth: if test.is_one_by_one() { 1 } else { of(DEPTH, Some(32))? },
                bytes: of(BYTES, Some(if in_order { 128 << 10 } else { 4096 }))?,
                requests: of(REQUESTS, Some(if in_order { 4_000 } else { 20_000 }))?,
                after: of(AFTER, Some(0))?,
                span_bytes: of(SPAN, Some(1 << 50))?,
                from_percent: of(FROM, Some(0))?,
            };
            if !sheet.bytes.is_multiple_of(512) {
                return Err(wrong("bytes is no multiple of 512", "whole sectors of 512 bytes, such as 4096"));
            }
            Ok(sheet)
        };
        sheets.iter().map(one).collect()
    }

    fn what(&self) -> String {
        let size =
            if self.bytes >= 1024 { format!("{} KiB", self.bytes >> 10) } else { format!("{} bytes", self.bytes) };
        let place = if self.from_percent > 0 { format!(", from {} %", self.from_percent) } else { String::new() };
        let after = if self.after > 0 { format!(", after {}", self.after) } else { String::new() };
        format!("{}, {size}, {} at once{place}{after}", self.test.name(), self.depth)
    }
}

/// A device whose description does not say how large it is, is so large here.
const SIZE_BYTES: u64 = 64 << 30;

/// What the model gives, in the unit of the test.
pub(super) fn measure(model: &DeviceModel, sheet: &Sheet) -> f64 {
    let plain = ExecutorConfig::plain(1);
    let limits = ExecutorConfig { steps_max: u64::MAX, time_ns_max: u64::MAX / 2, log_events_max: 0, ..plain };
    let executor = Executor::new(limits);
    let (_process, world) = process_of(&executor);
    let prng = executor.prng("device");
    let ran = executor.run(async {
        let size_bytes = model.natural_bytes().unwrap_or(SIZE_BYTES) / 4096 * 4096;
        let device = model.over(Sparse::new(size_bytes), &world, prng).device;
        if model.is_empty_at_first() && (sheet.test.is_read() || sheet.test == Test::RandomWrites) {
            // A page that was never written is not read from flash, and what is sustained is sustained on a full drive.
            let mut at = 0;
            while at < size_bytes {
                let len = FILL_BYTES.min(size_bytes - at);
                request(&device, false, at, len).await;
                at += len;
            }
        }
        let from = (size_bytes / 100 * sheet.from_percent) / 4096 * 4096;
        let places = sheet.span_bytes.min(size_bytes - from) / sheet.bytes;
        let next = Cell::new(0_u64);
        let places_of = RefCell::new(Prng::new(1).fork("places"));
        let clock = world.clock.clone();
        let place = |number: u64| {
            let at = if sheet.test.is_in_order() {
                number % places.max(1)
            } else {
                places_of.borrow_mut().below(places.max(1))
            };
            from + at * sheet.bytes
        };
        let mut rounds = Vec::new();
        for requests in [sheet.after, sheet.requests] {
            let (begun, end) = (clock.now(), next.get() + requests);
            let session = || async {
                while next.get() < end {
                    let number = next.get();
                    next.set(number + 1);
                    request(&device, sheet.test.is_read(), place(number), sheet.bytes).await;
                }
            };
            join_all((0..sheet.depth).map(|_| session())).await;
            rounds.push(clock.now().ns_since(begun));
        }
        rounds[1] as f64
    });
    let Ok(ns) = ran else { return f64::NAN };
    match sheet.test {
        Test::ReadNs | Test::WriteNs => ns / sheet.requests as f64,
        Test::RandomReads | Test::RandomWrites => sheet.requests as f64 * 1e9 / ns,
        Test::ReadsInOrder | Test::WritesInOrder => (sheet.requests * sheet.bytes) as f64 * 1e3 / ns,
    }
}

/// Bytes of a write that fills a device.
const FILL_BYTES: u64 = 4 << 20;

async fn request(device: &Device, is_read: bool, offset: u64, len: u64) {
    let outcome = if is_read {
        device.read(offset, Bufs::from(Buf::zeroed(len as usize))).await.outcome
    } else {
        let data = Bufs::from(Buf::zeroed(len as usize)).freeze();
        device.write(offset, data, false).await.outcome
    };
    assert!(outcome == Outcome::Done, "no device fails here");
}

/// All of it: a table or JSON, and whether every model is within what its description allows.
pub(super) fn check(models: &[Arc<DeviceModel>], as_json: bool) -> (String, bool) {
    let pairs: Vec<(&Arc<DeviceModel>, &Sheet)> =
        models.iter().flat_map(|model| model.sheet.iter().map(move |sheet| (model, sheet))).collect();
    let measured = run_all(&pairs, |(model, sheet)| measure(model, sheet));
    let mut lines =
        vec![["device", "test", "data sheet", "model", "deviation", "allowed", "source"].map(str::to_owned)];
    let mut objects = Vec::new();
    let mut is_good = true;
    for ((model, sheet), value) in pairs.iter().zip(measured) {
        let off = 100.0 * (value / sheet.value as f64 - 1.0);
        let holds = off.abs() <= sheet.within_percent as f64;
        is_good &= holds;
        lines.push([
            model.name.clone(),
            sheet.what(),
            sheet.value.to_string(),
            format!("{value:.0}"),
            format!("{off:+.1} %{}", if holds { "" } else { " **off**" }),
            format!("{} %", sheet.within_percent),
            sheet.source.clone(),
        ]);
        objects.push(format!(
            "{{\"device\":{},\"test\":{},\"what\":{},\"sheet\":{},\"model\":{},\"deviation_percent\":{},\"within_percent\":{},\"holds\":{holds},\"source\":{}}}",
            json_string(&model.name),
            json_string(sheet.test.name()),
            json_string(&sheet.what()),
            sheet.value,
            finite(value),
            finite(off),
            sheet.within_percent,
            json_string(&sheet.source)
        ));
    }
    let text = if as_json { format!("[{}]\n", objects.join(",\n")) } else { table(&lines, &[0, 1, 6]) };
    (text, is_good)
}

fn finite(value: f64) -> String {
    if value.is_finite() { format!("{value:.3}") } else { "null".to_owned() }
}
