//! LIST METRICHISTORY: readings of the store as rows.
//!
//! The store keeps counters and gauges; rates are made here, of each reading and the one before of the same run of the cell. What
//! the condition says of the metric and of the time is asked before rows are made; with OVER it chooses readings by that, and rows by
//! their values. Never gives more than [`ROWS_MAX`], and never holds a row: what it is made from is a tenth of it.

mod window;

use super::Context;
use super::answers::ANSWER_BYTES_MAX;
use super::rows::{amount, history_row, metric_object, rate};
use crate::store::{Moment, Reading};
use cell::metrics::{Definition, Formula, RateSample, Sample, definition, definitions};
use cellcli::answer::Matcher;
use cellcli::command::{Aggregate, Filter, List, Projection};
use cellcli::{Decimal, ErrorCode, Measure, ObjectType, Row, Source, Value, failure_text};
use device::WallTime;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use window::Window;

/// Rows of one answer.
const ROWS_MAX: usize = 50_000;
const MINUTE_NS: u64 = 60_000_000_000;
/// What a condition may say of a metric whatever its values are.
const OF_SERIES: [&str; 6] = ["name", "description", "metricObjectName", "metricType", "objectType", "unit"];
/// What it may say of the time of a reading.
const OF_TIME: [&str; 2] = ["age", "collectionTime"];

/// One line of what is asked for: where its value comes from in a reading.
struct Wanted {
    definition: &'static Definition,
    object: Arc<str>,
    from: From,
}

#[derive(Clone, Copy)]
enum From {
    Value(u32),
    /// Growth of one series, for so much time or for the growth of another.
    Rate(u32, Option<u32>),
}

/// What a row is made from.
struct Found {
    /// Place of its metric and object among the lines.
    line: u32,
    /// When its reading was taken; with OVER, the last one.
    last_ns: u64,
    last: Measure,
    /// With OVER, in the order of [`Aggregate::ALL`], in the unit of the value.
    aggregates: Option<Box<[Decimal; 3]>>,
}

impl Found {
    fn new(line: usize, over: &Window, is_over: bool) -> Found {
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        let aggregates = is_over.then(|| Box::new(over.aggregates()));
        Found { line, last_ns: over.last_ns, last: over.last, aggregates }
    }

    fn row(&self, lines: &[Wanted], now_ns: u64) -> Row {
        let it = &lines[self.line as usize];
        let row = history_row(it.definition, &it.object, WallTime(self.last_ns), now_ns);
        let aggregates = self.aggregates.iter().flat_map(|all| Aggregate::ALL.into_iter().zip(all.iter()));
        let with = |row: Row, (aggregate, number): (Aggregate, &Decimal)| {
            row.with(aggregate.attribute(), Value::Measure(Measure { number: *number, ..self.last }))
        };
        aggregates.fold(row, with).with("metricValue", Value::Measure(self.last))
    }
}

// With OVER an answer has no more lines than rows.
const _: () = assert!(
    ROWS_MAX * (size_of::<Found>() + size_of::<[Decimal; 3]>() + size_of::<Wanted>()) <= ANSWER_BYTES_MAX,
    "the longest answer fits into the memory for one"
);

/// The rows of an answer.
pub(super) struct Rows {
    lines: Vec<Wanted>,
    found: Vec<Found>,
    now_ns: u64,
}

impl Source for Rows {
    fn count(&self) -> usize {
        self.found.len()
    }

    fn row(&self, place: usize) -> Row {
        self.found[place].row(&self.lines, self.now_ns)
    }

    fn bytes(&self) -> usize {
        let of_found =
            |it: &Found| size_of::<Found>() + it.aggregates.as_ref().map_or(0, |_| size_of::<[Decimal; 3]>());
        self.lines.capacity() * size_of::<Wanted>() + self.found.iter().map(of_found).sum::<usize>()
    }
}

/// The rows of a query that meet its condition, as far as the store goes; the query is left with no names and no condition to look at again.
pub(super) fn rows(context: &Context, query: &mut List, may_see: impl Fn(&Row) -> bool) -> Result<Rows, String> {
    let names = std::mem::take(&mut query.names);
    let unknown = names.iter().find(|name| definition(&name.to_ascii_uppercase()).is_none());
    if let Some(name) = unknown {
        let what = format!("{} does not exist: {name}", ObjectType::MetricDefinition.spec().title);
        return Err(failure_text(ErrorCode::NoSuchObject, &what, Some("LIST METRICDEFINITION shows the metrics")));
    }
    show_aggregates(query);
    let matcher = |part: Option<Filter>| {
        part.map(|part| Matcher::new(ObjectType::MetricHistory, &part)).transpose().map_err(|error| error.to_string())
    };
    let of_series = matcher(part(query.filter.as_ref(), &OF_SERIES))?;
    let now_ns = context.world.clock.wall().0;
    let mut listing = Listing {
        now_ns,
        of_time: matcher(part(query.filter.as_ref(), &OF_TIME))?,
        whole: matcher(query.filter.take())?,
        window_ns: query.over.as_ref().map(|over| over.minutes * MINUTE_NS),
        enough: match query.limit {
            Some(limit) if query.order_by.is_empty() => usize::try_from(limit).unwrap_or(usize::MAX),
            _ => usize::MAX,
        },
        lines: Vec::new(),
        windows: Vec::new(),
        before: None,
        found: Vec::new(),
        too_many: false,
    };
    let is_named = |row: &Row| names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(&row.name()));
    let is_wanted = |it: &Wanted| {
        let row = history_row(it.definition, &it.object, WallTime(now_ns), now_ns);
        is_named(&row) && holds(of_series.as_ref(), &row) && may_see(&row)
    };
    let list = &mut listing;
    let begin = move |series: &BTreeMap<(String, String), u32>| {
        list.lines = wanted(series, is_wanted);
        if list.window_ns.is_some() {
            // Each line has a row at its end, and a window that is held until then.
            if list.lines.len() > ROWS_MAX {
                list.too_many = true;
                list.lines.clear();
            }
            list.windows = vec![None; list.lines.len()];
        }
        move |reading| list.take(reading)
    };
    let walked = if query.memory {
        walk_memory(context, now_ns, begin);
        Ok(())
    } else {
        context.store.walk(begin)
    };
    let _ = listing.end();
    if listing.too_many {
        let what = format!("the answer has more than {ROWS_MAX} values");
        let hint = "ask for less: LIST METRICHISTORY name WHERE age < 3600 AND metricObjectName = '...', or for one row an hour: OVER 60";
        return Err(failure_text(ErrorCode::TooLarge, &what, Some(hint)));
    }
    walked.map_err(|error| {
        let hint = "LIST METRICHISTORY ... MEMORY shows the readings of the last minutes, which memory holds";
        failure_text(ErrorCode::DeviceFailed, &error.to_string(), Some(hint))
    })?;
    listing.found.shrink_to_fit();
    Ok(Rows { lines: listing.lines, found: listing.found, now_ns })
}

/// As the store's walk, over the readings that memory holds: whatever has become of the store.
fn walk_memory<T: FnMut(Reading) -> ControlFlow<()>>(
    context: &Context,
    now_ns: u64,
    begin: impl FnOnce(&BTreeMap<(String, String), u32>) -> T,
) {
    let readings = context.history.readings();
    let mut series = BTreeMap::new();
    for sample in readings.iter().flat_map(|(_, samples)| samples) {
        let next = u32::try_from(series.len()).unwrap_or(u32::MAX);
        series.entry((sample.definition.name.to_owned(), sample.object.to_string())).or_insert(next);
    }
    let mut visit = begin(&series);
    let mono_now = context.world.clock.now();
    for (at, samples) in readings {
        let id = |sample: &Sample| series.get(&(sample.definition.name.to_owned(), sample.object.to_string())).copied();
        let values = samples.iter().filter_map(|sample| Some((id(sample)?, sample.value))).collect();
        let wall_ns = now_ns.saturating_sub(mono_now.ns_since(at));
        let reading = Reading { at: Moment { life: context.life, mono_ns: at.0, wall_ns }, values };
        if visit(reading).is_break() {
            return;
        }
    }
}

fn holds(matcher: Option<&Matcher>, row: &Row) -> bool {
    matcher.is_none_or(|matcher| matcher.matches(row))
}

/// With OVER what is asked for of the values of a row is among its columns, unless columns are named.
fn show_aggregates(query: &mut List) {
    let Some(over) = &query.over else { return };
    if query.detail || query.projection != Projection::Default {
        return;
    }
    let all = if over.aggregates.is_empty() { &Aggregate::ALL[..] } else { &over.aggregates };
    let shown = all.iter().map(|aggregate| aggregate.attribute());
    let columns: Vec<&'static str> =
        ObjectType::MetricHistory.spec().default_columns().map(|attribute| attribute.name).collect();
    // The time stays last.
    let (last, first) = columns.split_last().map_or((None, &[][..]), |(last, first)| (Some(*last), first));
    let columns = first.iter().copied().filter(|name| *name != "metricValue").chain(shown).chain(last);
    query.projection = Projection::Attributes(columns.collect());
}

/// A LIST on its way through the store.
struct Listing {
    now_ns: u64,
    of_time: Option<Matcher>,
    whole: Option<Matcher>,
    /// OVER: nanoseconds of a row.
    window_ns: Option<u64>,
    /// Rows asked for.
    enough: usize,
    lines: Vec<Wanted>,
    /// With OVER: the window of each line that is open.
    windows: Vec<Option<Window>>,
    before: Option<(Moment, BTreeMap<u32, u64>)>,
    found: Vec<Found>,
    too_many: bool,
}

impl Listing {
    fn take(&mut self, reading: Reading) -> ControlFlow<()> {
        let at = reading.at;
        let values: BTreeMap<u32, u64> = reading.values.into_iter().collect();
        let last = self.before.take().filter(|(then, _)| then.life == at.life);
        let time = super::rows::with_time(Row::new(ObjectType::MetricHistory), WallTime(at.wall_ns), self.now_ns);
        if holds(self.of_time.as_ref(), &time) {
            for line in 0..self.lines.len() {
                let Some(measure) = value(&self.lines[line], at, &values, last.as_ref()) else { continue };
                let over = match self.window_ns {
                    None => Some(Window::of(at.wall_ns, measure)),
                    Some(window_ns) => Window::take(&mut self.windows[line], window_ns, at.wall_ns, measure),
                };
                if let Some(over) = over {
                    self.push(line, &over)?;
                }
            }
        }
        self.before = Some((at, values));
        ControlFlow::Continue(())
    }

    /// What is still open, once there are no more readings.
    fn end(&mut self) -> ControlFlow<()> {
        for (line, window) in std::mem::take(&mut self.windows).into_iter().enumerate() {
            if let Some(over) = window {
                self.push(line, &over)?;
            }
        }
        ControlFlow::Continue(())
    }

    fn push(&mut self, line: usize, over: &Window) -> ControlFlow<()> {
        let found = Found::new(line, over, self.window_ns.is_some());
        if self.whole.as_ref().is_some_and(|whole| !whole.matches(&found.row(&self.lines, self.now_ns))) {
            return ControlFlow::Continue(());
        }
        if self.found.len() >= self.enough {
            return ControlFlow::Break(());
        }
        if self.found.len() == ROWS_MAX {
            self.too_many = true;
            return ControlFlow::Break(());
        }
        self.found.push(found);
        ControlFlow::Continue(())
    }
}

/// Those of the conditions that must all hold which speak of these attributes alone.
fn part(filter: Option<&Filter>, attributes: &[&str]) -> Option<Filter> {
    fn speaks_of(filter: &Filter, attributes: &[&str]) -> bool {
        match filter {
            Filter::And(each) | Filter::Or(each) => each.iter().all(|it| speaks_of(it, attributes)),
            Filter::Compare(comparison) => attributes.contains(&comparison.attribute),
        }
    }
    let filter = filter?;
    if speaks_of(filter, attributes) {
        return Some(filter.clone());
    }
    let Filter::And(each) = filter else { return None };
    let mut parts: Vec<Filter> = each.iter().filter_map(|it| part(Some(it), attributes)).collect();
    if parts.len() < 2 { parts.pop() } else { Some(Filter::And(parts)) }
}

/// The lines that the series make and that are asked for, in the order of the table.
fn wanted(series: &BTreeMap<(String, String), u32>, is_wanted: impl Fn(&Wanted) -> bool) -> Vec<Wanted> {
    // Many lines have one object.
    let mut objects: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut shared = |object: &str| {
        objects.get(object).cloned().unwrap_or_else(|| {
            let new: Arc<str> = object.into();
            objects.insert(new.clone());
            new
        })
    };
    let of = |name: &str| {
        let from = (name.to_owned(), String::new());
        let name = name.to_owned();
        series.range(from..).take_while(move |((of, _), _)| *of == name).map(|((_, object), id)| (object, *id))
    };
    let find = |name: &str, object: &str| series.get(&(name.to_owned(), object.to_owned())).copied();
    let mut wanted = Vec::new();
    for definition in definitions() {
        let (base, requests) = match definition.formula {
            Formula::Counter(_) | Formula::Gauge(_) => (definition.name, None),
            Formula::PerSecond(base) | Formula::PerMinute(base) | Formula::ShareOfTime(base) => (base, None),
            Formula::PerRequest(base, requests) => (base, Some(requests)),
        };
        for (object, id) in of(base) {
            let from = match (definition.formula, requests.map(|requests| find(requests, object))) {
                (Formula::Counter(_) | Formula::Gauge(_), _) => From::Value(id),
                (_, None) => From::Rate(id, None),
                (_, Some(Some(requests))) => From::Rate(id, Some(requests)),
                (_, Some(None)) => continue,
            };
            let line = Wanted { definition, object: shared(object), from };
            if is_wanted(&line) {
                wanted.push(line);
            }
        }
    }
    wanted.shrink_to_fit();
    wanted
}

fn value(
    wanted: &Wanted,
    at: Moment,
    values: &BTreeMap<u32, u64>,
    last: Option<&(Moment, BTreeMap<u32, u64>)>,
) -> Option<Measure> {
    let (definition, object) = (wanted.definition, Default::default());
    match wanted.from {
        From::Value(id) => Some(amount(&Sample { definition, object, value: *values.get(&id)? })),
        From::Rate(base, requests) => {
            let (then, before) = last?;
            let grown = |id| Some(values.get(&id)?.saturating_sub(before.get(&id).copied().unwrap_or(0)));
            let per = match requests {
                Some(requests) => grown(requests)?,
                None => at.mono_ns.saturating_sub(then.mono_ns),
            };
            let amount = grown(base)?;
            (per > 0).then(|| rate(&RateSample { definition, object, amount, per }))
        }
    }
}

/// Whether a database may see a row: those of its grid disks.
pub(super) fn is_of_grid_disk(row: &Row, own: &[String]) -> bool {
    let text = |attribute| row.get(attribute).map(cellcli::Value::text).unwrap_or_default();
    text("objectType") == metric_object_word() && own.contains(&text("metricObjectName"))
}

fn metric_object_word() -> &'static str {
    definition("GD_IO_ERRS").map_or("GRIDDISK", metric_object)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use cellcli::Command;

    fn parts(text: &str) -> (String, String) {
        let Command::List(list) = cellcli::parse_one(&format!("list metrichistory where {text}")).unwrap() else {
            panic!("a LIST")
        };
        let shown = |attributes| part(list.filter.as_ref(), attributes).map_or("-".to_owned(), |it| it.to_string());
        (shown(&OF_SERIES), shown(&OF_TIME))
    }

    #[test]
    fn what_is_asked_before_rows_are_made() {
        for (text, series, time) in [
            ("name = a", "name = 'a'", "-"),
            ("age < 60 and name = a", "name = 'a'", "age < 60"),
            ("age < 60 or name = a", "-", "-"),
            ("metricValue > 1 and name like 'A.*' and unit != MB", "name LIKE 'A.*' AND unit != 'MB'", "-"),
            ("(name = a or name = b) and age < 1 and age > 0", "name = 'a' OR name = 'b'", "age < 1 AND age > 0"),
            ("(name = a or age = 1) and metricValue > 1", "-", "-"),
        ] {
            assert_eq!(parts(text), (series.to_owned(), time.to_owned()), "{text}");
        }
    }

    #[test]
    fn rates_are_of_one_run() {
        let series = |name: &str, id| ((name.to_owned(), "D".to_owned()), id);
        let all = BTreeMap::from([series("GD_IO_ERRS", 3), series("CD_IO_TM_R_SM", 4), series("CD_IO_RQ_R_SM", 5)]);
        let wanted = wanted(&all, |_| true);
        let at = |mono_s: u64| Moment { life: 1, mono_ns: mono_s * 1_000_000_000, wall_ns: 0 };
        let before = (at(0), BTreeMap::from([(3, 1), (4, 1_000_000), (5, 10)]));
        let now = BTreeMap::from([(3, 4), (4, 9_000_000), (5, 12)]);
        let shown = |name: &str, last: Option<&(Moment, BTreeMap<u32, u64>)>| {
            let it = wanted.iter().find(|it| it.definition.name == name).unwrap();
            value(it, at(30), &now, last).map(|it| it.to_string())
        };
        assert_eq!(shown("GD_IO_ERRS", None).unwrap(), "4");
        assert_eq!(shown("GD_IO_ERRS_MIN", None), None);
        assert_eq!(shown("GD_IO_ERRS_MIN", Some(&before)).unwrap(), "6.0 /min");
        assert_eq!(shown("CD_IO_TM_R_SM_RQ", Some(&before)).unwrap(), "4,000 us/request");
        let idle = (at(0), now.clone());
        assert_eq!(shown("CD_IO_TM_R_SM_RQ", Some(&idle)), None, "no request, no time of one");
    }
}
