//! WHERE over rows: numbers compare as numbers, text as text, LIKE as a regular expression over the whole value.
//!
//! If either side is text the comparison is one of text, so `freeSpace = 0M` compares numbers and `freeSpace = "0M"` the
//! printed text. Never fails on a row: a comparison that makes no sense is false.

use std::cmp::Ordering;

use regex_lite::{Regex, RegexBuilder};

use super::decimal::Decimal;
use super::size::parse_size;
use super::timestamp::Timestamp;
use super::value::{Row, Value};
use crate::command::{Comparison, Filter, List, Literal, Operator};
use crate::error::ErrorKind;
use crate::table::{Kind, ObjectType};

/// Bytes of a LIKE pattern; the longest names it has to match are a tenth of it.
pub const LIKE_PATTERN_BYTES_MAX: usize = 1024;

/// Bytes a compiled pattern may take: enough for the longest plain pattern, and a bound on repetitions such as
/// `(a{1000}){1000}`. A condition holds at most [`crate::WHERE_COMPARISONS_MAX`] of them at once.
const LIKE_PROGRAM_BYTES_MAX: usize = 64 << 10;

/// Compiles a LIKE pattern, anchored at both ends. Matching takes time linear in the value for any pattern.
pub(crate) fn compile_pattern(pattern: &str) -> Result<Regex, ErrorKind> {
    if pattern.len() > LIKE_PATTERN_BYTES_MAX {
        return Err(ErrorKind::TooLarge { what: "the length of a LIKE pattern in bytes", max: LIKE_PATTERN_BYTES_MAX });
    }
    let compile = |text: &str| {
        RegexBuilder::new(text)
            .dot_matches_new_line(true)
            .size_limit(LIKE_PROGRAM_BYTES_MAX)
            .build()
            .map_err(|reason| ErrorKind::InvalidPattern { reason: reason.to_string() })
    };
    // Alone first, so that an unbalanced parenthesis cannot pair with the ones that anchor it.
    compile(pattern)?;
    compile(&format!("^(?:{pattern})$"))
}

/// A WHERE condition ready to be asked of many rows.
#[derive(Debug)]
pub struct Matcher {
    condition: Condition,
}

#[derive(Debug)]
enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Compare { comparison: Comparison, kind: Kind, pattern: Option<Regex> },
}

impl Matcher {
    /// Prepares `filter` for rows of `object`.
    ///
    /// # Errors
    /// A LIKE pattern that does not compile, which a parsed filter never has; or an attribute the type does not have.
    pub fn new(object: ObjectType, filter: &Filter) -> Result<Self, ErrorKind> {
        Ok(Self { condition: Condition::new(object, filter)? })
    }

    /// Prepares the condition of a query, where it has one.
    ///
    /// # Errors
    /// As [`Matcher::new`].
    pub fn of(list: &List) -> Result<Option<Self>, ErrorKind> {
        list.filter.as_ref().map(|filter| Self::new(list.object, filter)).transpose()
    }

    /// Whether `row` meets the condition.
    #[must_use]
    pub fn matches(&self, row: &Row) -> bool {
        self.condition.holds(row)
    }
}

impl Condition {
    fn new(object: ObjectType, filter: &Filter) -> Result<Self, ErrorKind> {
        let each = |filters: &[Filter]| filters.iter().map(|it| Self::new(object, it)).collect::<Result<Vec<_>, _>>();
        Ok(match filter {
            Filter::And(filters) => Self::All(each(filters)?),
            Filter::Or(filters) => Self::Any(each(filters)?),
            Filter::Compare(comparison) => {
                let Some(attribute) = object.spec().attribute(comparison.attribute) else {
                    let found = comparison.attribute.to_owned();
                    return Err(ErrorKind::UnknownAttribute { object, found, nearest: None });
                };
                let pattern = match comparison.operator {
                    Operator::Like => Some(compile_pattern(&literal_text(&comparison.literal))?),
                    _ => None,
                };
                Self::Compare { comparison: comparison.clone(), kind: attribute.kind, pattern }
            }
        })
    }

    fn holds(&self, row: &Row) -> bool {
        match self {
            Self::All(conditions) => conditions.iter().all(|it| it.holds(row)),
            Self::Any(conditions) => conditions.iter().any(|it| it.holds(row)),
            Self::Compare { comparison, kind, pattern } => {
                let value = row.get(comparison.attribute).unwrap_or(&Value::Null);
                let holds = match pattern {
                    Some(pattern) => is_like(value, &comparison.literal, pattern),
                    None => compare(value, &comparison.literal, *kind)
                        .is_some_and(|ordering| satisfies(ordering, comparison.operator)),
                };
                holds != comparison.negated
            }
        }
    }
}

const fn satisfies(ordering: Ordering, operator: Operator) -> bool {
    match operator {
        Operator::Equal => ordering.is_eq(),
        Operator::Less => ordering.is_lt(),
        Operator::LessOrEqual => ordering.is_le(),
        Operator::Greater => ordering.is_gt(),
        Operator::GreaterOrEqual => ordering.is_ge(),
        Operator::Like => false,
    }
}

/// How `value` stands to `literal`; `None` when one is empty and the other is not, so that only `!=` can hold.
fn compare(value: &Value, literal: &Literal, kind: Kind) -> Option<Ordering> {
    match literal {
        Literal::Null => value.is_empty().then_some(Ordering::Equal),
        Literal::Text(text) if text.is_empty() => value.is_empty().then_some(Ordering::Equal),
        _ if value.is_empty() => None,
        Literal::Number(number) => match value {
            Value::Integer(own) => Some(Decimal::from_integer(*own).cmp(number)),
            Value::SizeBytes(own) => Some(Decimal::from_count(*own).cmp(number)),
            Value::Measure(own) => Some(own.number.cmp(number)),
            Value::Null | Value::Text(_) | Value::Timestamp(_) | Value::List(_) => {
                Some(compare_text(&value.text(), &number.to_string(), kind))
            }
        },
        Literal::Size(size_bytes) => match value {
            Value::Integer(own) => Some(i128::from(*own).cmp(&i128::from(*size_bytes))),
            Value::SizeBytes(own) => Some(own.cmp(size_bytes)),
            Value::Measure(own) => {
                // In billionths of a byte, or of the unit where it does not count bytes.
                let own_scaled = own.number.at_full_scale() * own.unit.bytes().unwrap_or(1);
                Some(own_scaled.cmp(&Decimal::from_count(*size_bytes).at_full_scale()))
            }
            Value::Null | Value::Text(_) | Value::Timestamp(_) | Value::List(_) => {
                Some(compare_text(&value.text(), &literal_text(literal), kind))
            }
        },
        Literal::DateTime(timestamp) => match value {
            Value::Timestamp(own) => Some(own.since_epoch_ns().cmp(&timestamp.since_epoch_ns())),
            _ => Some(compare_text(&value.text(), &timestamp.to_string(), kind)),
        },
        Literal::Text(text) => match (value, Timestamp::parse(text)) {
            // Times are always written in quotes in the field; as text they would only compare within one offset.
            (Value::Timestamp(own), Some(timestamp)) => Some(own.since_epoch_ns().cmp(&timestamp.since_epoch_ns())),
            _ => Some(compare_text(&value.text(), text, kind)),
        },
    }
}

/// Status words and names ignore case, as `LIST type name` does; other text does not.
fn compare_text(value: &str, literal: &str, kind: Kind) -> Ordering {
    match kind {
        Kind::Status(_) | Kind::Name | Kind::Reference(_) => value.to_lowercase().cmp(&literal.to_lowercase()),
        _ => value.cmp(literal),
    }
}

/// LIKE: on plain numbers and sizes it is `=`; everything else matches as printed, metric values with commas and unit.
fn is_like(value: &Value, literal: &Literal, pattern: &Regex) -> bool {
    let text = literal_text(literal);
    match value {
        Value::Integer(own) => Decimal::parse(&text) == Some(Decimal::from_integer(*own)),
        Value::SizeBytes(own) => parse_size(&text) == Some(*own),
        Value::Null | Value::Text(_) | Value::Measure(_) | Value::Timestamp(_) | Value::List(_) => {
            pattern.is_match(&value.text())
        }
    }
}

fn literal_text(literal: &Literal) -> String {
    match literal {
        Literal::Null => String::new(),
        Literal::Text(text) => text.clone(),
        Literal::Number(_) | Literal::Size(_) | Literal::DateTime(_) => literal.to_string(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::answer::{Measure, Unit};
    use crate::command::Command;
    use crate::parser::parse_one;

    /// Whether `condition` holds for `row`, through the parser.
    fn holds(row: &Row, condition: &str) -> bool {
        let text = format!("list {} where {condition}", row.object().spec().word);
        match parse_one(&text).unwrap() {
            Command::List(list) => Matcher::new(row.object(), &list.filter.unwrap()).unwrap().matches(row),
            other => panic!("LIST expected, not {other}"),
        }
    }

    #[track_caller]
    fn check(row: &Row, yes: &[&str], no: &[&str]) {
        for condition in yes {
            assert!(holds(row, condition), "should hold: {condition}");
        }
        for condition in no {
            assert!(!holds(row, condition), "should not hold: {condition}");
        }
    }

    fn metric(number: &str, unit: Unit) -> Row {
        Row::new(ObjectType::MetricCurrent)
            .with("name", "FC_BY_USED")
            .with("alertState", "normal")
            .with("metricValue", Value::Measure(Measure::new(Decimal::parse(number).unwrap(), unit)))
            .with("collectionTime", Value::Timestamp(Timestamp::parse("2013-09-12T23:46:14+02:00").unwrap()))
    }

    #[test]
    fn numbers_compare_as_numbers_and_text_as_text() {
        let disk = Row::new(ObjectType::CellDisk)
            .with("name", "CD_00")
            .with("freeSpace", Value::SizeBytes(0))
            .with("size", Value::SizeBytes(9 << 30))
            .with("errorCount", Value::Integer(12));
        check(
            &disk,
            &[
                "freeSpace = 0M",
                "freeSpace = 0",
                "freeSpace != '0M'",
                "size > 8G",
                "size <= 9216M",
                "errorCount > 9",
                "size = '9G'",
            ],
            &["freeSpace = \"0M\"", "size > 10G", "errorCount > '9'", "size < 9G"],
        );
        // LIKE on numbers is `=`, without wildcards.
        check(
            &disk,
            &["errorCount like 12", "errorCount like '12'", "size like '9G'", "size like 9216M"],
            &["errorCount like '1.*'", "size like '9.*'", "errorCount not like 12"],
        );
    }

    #[test]
    fn metric_values_match_as_printed() {
        let row = metric("1234.5", Unit::IoPerSecond);
        check(
            &row,
            &[
                "metricValue not like '0.*'",
                "metricValue like '1,235 IO/sec'",
                "metricValue > 1234",
                "metricValue = 1234.5",
            ],
            &["metricValue like '1234.*'", "metricValue = 1235"],
        );
        check(&metric("0", Unit::IoRequests), &["metricValue like '0.*'"], &["metricValue not like '0.*'"]);
    }

    /// A size against a value in MB compares bytes with bytes.
    #[test]
    fn sizes_compare_with_megabytes() {
        check(&metric("2048", Unit::Mb), &["metricValue = 2G", "metricValue > 1.5G"], &["metricValue > 2G"]);
        check(&metric("2048", Unit::IoRequests), &["metricValue = 2K"], &["metricValue = 2G"]);
        check(&metric("99999999999999999999", Unit::Mb), &["metricValue > 16777215T"], &[]);
    }

    #[test]
    fn case_matters_only_for_patterns_and_free_text() {
        let row = metric("1", Unit::Mb);
        check(
            &row,
            &[
                "alertState = 'Normal'",
                "alertState = NORMAL",
                "name = fc_by_used",
                "name like 'FC_.*'",
                "NAME LIKE 'FC_BY_USED'",
            ],
            &["alertState != 'Normal'", "name like 'fc_.*'", "name like 'FC'", "name like 'FC_%'"],
        );
        let disk = Row::new(ObjectType::GridDisk).with("comment", "Spare");
        check(&disk, &["comment = 'Spare'"], &["comment = 'spare'"]);
    }

    /// Anchors hold for every alternative of a pattern, not for the first and last only.
    #[test]
    fn like_covers_the_whole_value() {
        let row = metric("1", Unit::Mb);
        check(&row, &["name like 'X|FC_BY_USED'"], &["name like 'FC|X'", "name like 'X|USED'"]);
    }

    #[test]
    fn null_is_empty_or_unassigned() {
        let disk =
            Row::new(ObjectType::GridDisk).with("name", "a").with("comment", "").with("cachedBy", Value::List(vec![]));
        check(
            &disk,
            &[
                "comment = NULL",
                "cachedBy = null",
                "size = NULL",
                "name != NULL",
                "size != 5",
                "comment = ''",
                "comment like ''",
            ],
            &["name = NULL", "size > 0", "size <= 0", "size = 0", "comment = 'NULL'"],
        );
    }

    #[test]
    fn times_compare_as_instants() {
        let row = metric("1", Unit::Mb);
        check(
            &row,
            &[
                "collectionTime = 2013-09-12T21:46:14Z",
                "collectionTime > '2013-09-12T22:46:13+01:00'",
                "collectionTime like '2013-09-12T23:.*'",
                "collectionTime < '2014'",
            ],
            &["collectionTime > 2013-09-12T21:46:14Z"],
        );
    }

    #[test]
    fn and_binds_tighter_than_or() {
        let disk = Row::new(ObjectType::GridDisk).with("name", "a").with("status", "active");
        check(
            &disk,
            &["name = a or name = b and status = inactive", "name NOT = b", "name ! = b"],
            &["(name = a or name = b) and status = inactive", "name not > 0", "name = b or name = c"],
        );
    }

    #[test]
    fn in_is_one_of_several() {
        let disk = Row::new(ObjectType::GridDisk).with("name", "a").with("size", Value::SizeBytes(1 << 30));
        check(
            &disk,
            &[
                "name in (a)",
                "name IN ('b', A)",
                "size in (512M, 1G)",
                "name not in (b, c)",
                "comment in (NULL, x)",
                "name in (b, c) or name in (a, d) and size in (1G)",
            ],
            &["name in (b, c)", "name ! in (a, b)", "size in (1M)", "name in (b) or name in (c, d) and name = a"],
        );
    }

    #[test]
    fn patterns_are_bounded() {
        assert!(matches!(compile_pattern(&"a".repeat(LIKE_PATTERN_BYTES_MAX + 1)), Err(ErrorKind::TooLarge { .. })));
        for bad in ["(", ")", ")(", "a{1000}{1000}{1000}", "[", "*"] {
            assert!(matches!(compile_pattern(bad), Err(ErrorKind::InvalidPattern { .. })), "{bad}");
        }
    }
}
