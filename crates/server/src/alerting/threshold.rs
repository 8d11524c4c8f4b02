//! Thresholds: when the value of a metric is an alert, as the operator has set it in the catalog.
//!
//! Compares exact numbers; never a float. Never raises anything itself: it says what is beyond a limit.

use super::definitions::name_of_metric;
use super::records::{Condition, Severity, Subject};
use cell::metrics::Definition;
use cellcli::Measure;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Thresholds of a cell: what the catalog has room for beside all else it carries.
pub(crate) const THRESHOLDS_MAX: usize = 128;
/// Most samples averaged, and most violations in a row: two hours of minutes.
pub(crate) const SAMPLES_MAX: u64 = 120;
/// What the keys of thresholds among the attributes of the catalog begin with.
const KEY: &str = "threshold.";

/// How value and limit stand when it is an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
}

impl Comparison {
    const ALL: [Comparison; 5] = [Self::Less, Self::LessOrEqual, Self::Equal, Self::GreaterOrEqual, Self::Greater];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Equal => "=",
            Comparison::GreaterOrEqual => ">=",
            Comparison::Greater => ">",
        }
    }

    pub(crate) fn named(text: &str) -> Option<Comparison> {
        Self::ALL.into_iter().find(|it| it.text() == text)
    }

    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Comparison::Less => ordering.is_lt(),
            Comparison::LessOrEqual => ordering.is_le(),
            Comparison::Equal => ordering.is_eq(),
            Comparison::GreaterOrEqual => ordering.is_ge(),
            Comparison::Greater => ordering.is_gt(),
        }
    }
}

/// Why there can be no such threshold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ThresholdError {
    #[error(
        "there is no metric {0}\nhint: a threshold is named METRIC or METRIC.OBJECT; LIST METRICDEFINITION shows the metrics"
    )]
    NoMetric(String),
    #[error("neither warning nor critical is given\nhint: at least one limit is needed")]
    NoLimit,
    #[error("{0} must be from 1 to {SAMPLES_MAX}")]
    Samples(&'static str),
    #[error("{0} makes no name of an object")]
    Object(String),
}

/// One threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Threshold {
    pub(crate) metric: String,
    /// Of all objects without.
    pub(crate) object: Option<String>,
    pub(crate) comparison: Comparison,
    /// Limits in the metric's unit.
    pub(crate) warning: Option<u64>,
    pub(crate) critical: Option<u64>,
    pub(crate) occurrences: u64,
    pub(crate) observation: u64,
}

impl Threshold {
    /// One of that name, without limits.
    pub(crate) fn named(name: &str, comparison: Comparison) -> Result<Threshold, ThresholdError> {
        let (metric, object) = name.split_once('.').map_or((name, None), |(metric, object)| (metric, Some(object)));
        let known = cell::metrics::definition(&metric.to_ascii_uppercase());
        let known = known.ok_or_else(|| ThresholdError::NoMetric(metric.to_owned()))?;
        if object.is_some_and(|object| object.is_empty() || object.chars().any(|c| c.is_control() || c == '\t')) {
            return Err(ThresholdError::Object(name.to_owned()));
        }
        Ok(Threshold {
            metric: known.name.to_owned(),
            object: object.map(str::to_owned),
            comparison,
            warning: None,
            critical: None,
            occurrences: 1,
            observation: 1,
        })
    }

    /// Whether it can be.
    pub(crate) fn check(&self) -> Result<(), ThresholdError> {
        if self.warning.is_none() && self.critical.is_none() {
            return Err(ThresholdError::NoLimit);
        }
        for (name, count) in [("occurrences", self.occurrences), ("observation", self.observation)] {
            if !(1..=SAMPLES_MAX).contains(&count) {
                return Err(ThresholdError::Samples(name));
            }
        }
        Ok(())
    }

    /// `metric` or `metric.object`.
    pub(crate) fn name(&self) -> String {
        match &self.object {
            Some(object) => format!("{}.{object}", self.metric),
            None => self.metric.clone(),
        }
    }

    /// As the catalog carries it.
    fn line(&self) -> String {
        let limit = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        let (warning, critical) = (limit(self.warning), limit(self.critical));
        let (comparison, occurrences, observation) = (self.comparison.text(), self.occurrences, self.observation);
        format!("{comparison}\t{warning}\t{critical}\t{occurrences}\t{observation}\t{}", self.name())
    }

    fn parse(line: &str) -> Option<Threshold> {
        let fields: Vec<&str> = line.splitn(6, '\t').collect();
        let [comparison, warning, critical, occurrences, observation, name] = fields[..] else { return None };
        let limit = |text: &str| if text == "-" { Some(None) } else { text.parse().ok().map(Some) };
        let threshold = Threshold {
            warning: limit(warning)?,
            critical: limit(critical)?,
            occurrences: occurrences.parse().ok()?,
            observation: observation.parse().ok()?,
            ..Threshold::named(name, Comparison::named(comparison)?).ok()?
        };
        threshold.check().ok().map(|()| threshold)
    }

    /// Those the attributes of a catalog carry, by name. One that makes no sense to this version is passed over.
    pub(crate) fn all(attributes: &BTreeMap<String, String>) -> Vec<Threshold> {
        let lines = attributes.iter().filter(|(key, _)| key.starts_with(KEY)).map(|(_, line)| line);
        let mut all: Vec<Threshold> = lines.filter_map(|line| Threshold::parse(line)).collect();
        all.sort_by_key(Threshold::name);
        all
    }

    /// Put it in the place of the one of its name, or beside the others.
    pub(crate) fn put(&self, attributes: &mut BTreeMap<String, String>) {
        let key = Self::key(&self.name(), attributes);
        let free = || (0..).map(|n| format!("{KEY}{n}")).find(|key| !attributes.contains_key(key));
        if let Some(key) = key.or_else(free) {
            attributes.insert(key, self.line());
        }
    }

    /// Remove the one of that name.
    pub(crate) fn remove(name: &str, attributes: &mut BTreeMap<String, String>) {
        if let Some(key) = Self::key(name, attributes) {
            attributes.remove(&key);
        }
    }

    fn key(name: &str, attributes: &BTreeMap<String, String>) -> Option<String> {
        let is_it = |line: &str| Threshold::parse(line).is_some_and(|it| it.name().eq_ignore_ascii_case(name));
        let found = attributes.iter().find(|(key, line)| key.starts_with(KEY) && is_it(line));
        found.map(|(key, _)| key.clone())
    }

    fn is_about(&self, definition: &Definition, object: &str) -> bool {
        self.metric == definition.name && self.object.as_deref().is_none_or(|own| own.eq_ignore_ascii_case(object))
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[derive(Default)]
struct Course {
    /// In billionths, oldest first.
    values: VecDeque<i128>,
    warnings: u64,
    criticals: u64,
}

/// The values of late, as far as thresholds are about them.
#[derive(Default)]
pub(crate) struct Watch(BTreeMap<(String, String), Course>);

impl Watch {
    /// The values of this minute: what is beyond a limit, and what cannot be told yet. `active` says how bad an alert is that
    /// lasts: it goes on while the limit is violated at all.
    pub(crate) fn minute(
        &mut self,
        thresholds: &[Threshold],
        values: &[(&'static Definition, String, Measure)],
        active: impl Fn(&str, &str) -> Option<Severity>,
    ) -> (Vec<Condition>, BTreeSet<Subject>) {
        let mut found: BTreeMap<Subject, Condition> = BTreeMap::new();
        let mut undecided = BTreeSet::new();
        let mut courses = BTreeMap::new();
        for threshold in thresholds {
            for (definition, object, measure) in values.iter().filter(|(d, o, _)| threshold.is_about(d, o)) {
                let key = (threshold.name(), object.clone());
                let mut course = self.0.remove(&key).unwrap_or_default();
                course.values.push_back(measure.number.at_full_scale());
                while course.values.len() as u64 > threshold.observation {
                    course.values.pop_front();
                }
                let subject = (name_of_metric(definition.name), object.clone());
                if (course.values.len() as u64) < threshold.observation {
                    undecided.insert(subject);
                } else if let Some(severity) = course.judge(threshold, active(&subject.0, object)) {
                    let of = |limit: Option<u64>| limit.unwrap_or(0);
                    let limit = of(if severity == Severity::Critical { threshold.critical } else { threshold.warning });
                    let message = format!(
                        "{} of {object} is {measure}: {} {limit} as threshold {threshold} has it",
                        definition.name,
                        threshold.comparison.text(),
                    );
                    let condition = Condition {
                        definition: subject.0.clone(),
                        object: object.clone(),
                        severity,
                        message,
                        value: Some((measure.number.to_string(), measure.unit.text().to_owned())),
                    };
                    // Of a threshold for all objects and one for this, the worse.
                    let worse = found.get(&subject).is_none_or(|other| other.severity < severity);
                    if worse {
                        found.insert(subject, condition);
                    }
                }
                courses.insert(key, course);
            }
        }
        // Objects and thresholds that have gone are forgotten.
        self.0 = courses;
        (found.into_values().collect(), undecided)
    }
}

impl Course {
    fn judge(&mut self, threshold: &Threshold, active: Option<Severity>) -> Option<Severity> {
        let count = self.values.len() as i128;
        let sum: i128 = self.values.iter().fold(0, |sum, value| sum.saturating_add(*value));
        let beyond = |limit: Option<u64>| {
            let scaled = |limit: u64| cellcli::Decimal::from_count(limit).at_full_scale().saturating_mul(count);
            limit.is_some_and(|limit| threshold.comparison.holds(sum.cmp(&scaled(limit))))
        };
        let (critical, warning) = (beyond(threshold.critical), beyond(threshold.warning));
        self.criticals = if critical { self.criticals.saturating_add(1) } else { 0 };
        self.warnings = if warning || critical { self.warnings.saturating_add(1) } else { 0 };
        let is_critical = self.criticals >= threshold.occurrences || critical && active == Some(Severity::Critical);
        let is_warning = self.warnings >= threshold.occurrences || self.warnings > 0 && active.is_some();
        match (is_critical, is_warning) {
            (true, _) => Some(Severity::Critical),
            (false, true) if threshold.warning.is_some() => Some(Severity::Warning),
            // Beyond the critical limit, but not often enough yet, and there is no other.
            (false, _) => None,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use cellcli::{Decimal, Unit};

    fn threshold(warning: Option<u64>, critical: Option<u64>, occurrences: u64, observation: u64) -> Threshold {
        let named = Threshold::named("gd_io_errs_min", Comparison::Greater).unwrap();
        Threshold { warning, critical, occurrences, observation, ..named }
    }

    /// What each value, one a minute, makes of it; `?` undecided.
    fn course(threshold: &Threshold, values: &[&str]) -> String {
        let mut watch = Watch::default();
        let definition = cell::metrics::definition("GD_IO_ERRS_MIN").unwrap();
        let mut last = None;
        let mut shown = String::new();
        for value in values {
            let measure = Measure::new(Decimal::parse(value).unwrap(), Unit::PerMinute);
            let now = [(definition, "DATA".to_owned(), measure)];
            let (found, undecided) = watch.minute(std::slice::from_ref(threshold), &now, |_, _| last);
            if undecided.is_empty() {
                last = found.first().map(|condition| condition.severity);
            }
            shown.push(match (undecided.is_empty(), last) {
                (false, _) => '?',
                (true, None) => '.',
                (true, Some(Severity::Warning)) => 'w',
                (true, Some(_)) => 'c',
            });
        }
        shown
    }

    #[test]
    fn limits_occurrences_and_means() {
        let values = ["1", "2", "2.000000001", "3", "4.5", "9", "2", "9"];
        assert_eq!(course(&threshold(Some(2), None, 1, 1), &values), "..wwww.w");
        assert_eq!(course(&threshold(Some(2), Some(4), 1, 1), &values), "..wwcc.c");
        assert_eq!(course(&threshold(Some(2), Some(4), 2, 1), &values), "...wwc..");
        assert_eq!(course(&threshold(None, Some(4), 2, 1), &values), ".....c..");
        assert_eq!(course(&threshold(Some(2), None, 1, 3), &values), "??.wwwww", "means of three");
    }

    #[test]
    fn an_alert_of_the_run_before_goes_on() {
        let mut watch = Watch::default();
        let definition = cell::metrics::definition("GD_IO_ERRS_MIN").unwrap();
        let three = threshold(Some(2), None, 3, 1);
        let mut minute = |value: u64, before| {
            let measure = Measure::new(Decimal::from_count(value), Unit::PerMinute);
            watch.minute(std::slice::from_ref(&three), &[(definition, "D".to_owned(), measure)], |_, _| before).0.len()
        };
        assert_eq!(minute(3, Some(Severity::Warning)), 1, "it lasts");
        assert_eq!(minute(1, Some(Severity::Warning)), 0);
        assert_eq!(minute(3, None), 0, "once of three");
    }

    #[test]
    fn the_catalog_carries_them() {
        let mut attributes = BTreeMap::from([("comment".to_owned(), "threshold.".to_owned())]);
        let one = threshold(Some(2), Some(u64::MAX), 3, 4);
        let two = Threshold { object: Some("DATA CD.00".to_owned()), warning: None, ..one.clone() };
        one.put(&mut attributes);
        two.put(&mut attributes);
        assert_eq!(Threshold::all(&attributes), [one.clone(), two.clone()]);
        let other = Threshold { occurrences: 1, ..one.clone() };
        other.put(&mut attributes);
        assert_eq!(Threshold::all(&attributes), [other, two.clone()]);
        Threshold::remove("gd_io_errs_MIN", &mut attributes);
        assert_eq!(Threshold::all(&attributes), [two]);
        attributes.insert("threshold.7".to_owned(), ">\t1".to_owned());
        assert_eq!(Threshold::all(&attributes).len(), 1, "what makes no sense is passed over");
    }

    #[test]
    fn what_cannot_be() {
        let named = |name| Threshold::named(name, Comparison::Less);
        assert!(matches!(named("NO_SUCH"), Err(ThresholdError::NoMetric(_))));
        assert!(matches!(named("GD_IO_ERRS."), Err(ThresholdError::Object(_))));
        assert_eq!(named("gd_io_errs.D").unwrap().name(), "GD_IO_ERRS.D");
        assert_eq!(threshold(None, None, 1, 1).check(), Err(ThresholdError::NoLimit));
        assert_eq!(threshold(Some(1), None, 0, 1).check(), Err(ThresholdError::Samples("occurrences")));
        assert_eq!(threshold(Some(1), None, 1, 121).check(), Err(ThresholdError::Samples("observation")));
    }
}
