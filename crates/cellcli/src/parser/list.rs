//! LIST and its clauses, and WHERE, which ALTER shares.

use super::{NESTING_MAX, Parsed, Parser, shortened};
use crate::answer::{Decimal, Timestamp, compile_pattern, parse_size};
use crate::command::{
    Aggregate, Comparison, Filter, List, Literal, OVER_MINUTES_MAX, Operator, OrderKey, Over, Projection,
};
use crate::error::ErrorKind;
use crate::lexer::TokenKind;
use crate::table::{ObjectSpec, ObjectType, Verb};

/// Comparisons in one WHERE: each may hold a compiled pattern of up to 64 KiB.
pub const WHERE_COMPARISONS_MAX: usize = 256;

/// The clauses of LIST, which may come in any order, each at most once.
pub(crate) const CLAUSES: [&str; 7] = ["WHERE", "ATTRIBUTES", "DETAIL", "ORDER", "LIMIT", "OVER", "MEMORY"];

/// Those that a type has: OVER and MEMORY are of METRICHISTORY.
pub(crate) fn clauses_of(object: ObjectType) -> &'static [&'static str] {
    if object == ObjectType::MetricHistory { &CLAUSES } else { &CLAUSES[..5] }
}

impl Parser<'_> {
    /// `LIST type [name, ...] [WHERE ..] [ATTRIBUTES ..] [DETAIL] [ORDER BY ..] [LIMIT n]
    /// [OVER minutes ..] [MEMORY]`, behind the verb.
    pub(super) fn list(&mut self) -> Parsed<List> {
        let spec = self.object(Verb::List)?;
        let mut list = List::all(spec.object);
        let clauses = clauses_of(spec.object);
        let at_clause = clauses.iter().any(|clause| self.is_word(clause));
        if matches!(self.peek(), Some(TokenKind::Word(_) | TokenKind::Quoted(_))) && !at_clause {
            list.names = self.names()?;
        }
        let mut seen = [false; CLAUSES.len()];
        while self.peek().is_some() {
            let Some(clause) = clauses.iter().position(|clause| self.is_word(clause)) else {
                let over = if clauses.contains(&"OVER") { ", OVER, MEMORY" } else { "" };
                let expected = format!("WHERE, ATTRIBUTES, DETAIL, ORDER BY, LIMIT{over} or the end of the statement");
                return self.unexpected_among(expected, clauses.iter().copied());
            };
            if seen[clause] {
                return self.fault(ErrorKind::Repeated { what: CLAUSES[clause] });
            }
            seen[clause] = true;
            self.at += 1;
            match clause {
                0 => list.filter = Some(self.filter(spec)?),
                1 => list.projection = self.projection(spec)?,
                2 => list.detail = true,
                3 => list.order_by = self.order_by(spec)?,
                4 => list.limit = Some(self.limit()?),
                5 => list.over = Some(self.over()?),
                _ => list.memory = true,
            }
        }
        Ok(list)
    }

    fn projection(&mut self, spec: &ObjectSpec) -> Parsed<Projection> {
        if self.take_word("ALL") {
            return Ok(Projection::All);
        }
        let mut attributes = vec![self.attribute(spec)?.name];
        while self.take_symbol(",") {
            attributes.push(self.attribute(spec)?.name);
        }
        Ok(Projection::Attributes(attributes))
    }

    fn order_by(&mut self, spec: &ObjectSpec) -> Parsed<Vec<OrderKey>> {
        self.expect_word("BY")?;
        let mut keys = Vec::new();
        loop {
            let attribute = self.attribute(spec)?.name;
            let descending = self.take_word("DESC");
            if !descending {
                self.take_word("ASC");
            }
            keys.push(OrderKey { attribute, descending });
            if !self.take_symbol(",") {
                return Ok(keys);
            }
        }
    }

    fn limit(&mut self) -> Parsed<u64> {
        let number = match self.peek() {
            Some(TokenKind::Word(word)) => word.parse().ok().filter(|_| word.bytes().all(|it| it.is_ascii_digit())),
            _ => return self.unexpected("a number of objects"),
        };
        let Some(number) = number else {
            let found = self.found();
            let expected = "a number of objects".into();
            return self.fault(ErrorKind::InvalidValue { name: "LIMIT", expected, found });
        };
        self.at += 1;
        Ok(number)
    }

    /// `minutes [AVG] [MAX] [MIN]`, behind OVER.
    fn over(&mut self) -> Parsed<Over> {
        let word = match self.peek() {
            Some(TokenKind::Word(word)) if word.bytes().all(|it| it.is_ascii_digit()) => word.clone(),
            _ => return self.unexpected("a number of minutes"),
        };
        let minutes = word.parse().ok().filter(|minutes| (1..=OVER_MINUTES_MAX).contains(minutes));
        let Some(minutes) = minutes else {
            let expected = format!("from 1 to {OVER_MINUTES_MAX} minutes");
            return self.fault(ErrorKind::InvalidValue { name: "OVER", expected, found: shortened(&word) });
        };
        self.at += 1;
        let mut aggregates = Vec::new();
        while let Some(aggregate) = Aggregate::ALL.into_iter().find(|aggregate| self.is_word(aggregate.word())) {
            if aggregates.contains(&aggregate) {
                return self.fault(ErrorKind::Repeated { what: aggregate.word() });
            }
            self.at += 1;
            aggregates.push(aggregate);
            self.take_symbol(",");
        }
        Ok(Over { minutes, aggregates })
    }

    /// The condition behind WHERE.
    pub(super) fn filter(&mut self, spec: &ObjectSpec) -> Parsed<Filter> {
        self.comparisons = 0;
        self.any_of(spec, 0)
    }

    /// `all [OR all]...`
    fn any_of(&mut self, spec: &ObjectSpec, depth: usize) -> Parsed<Filter> {
        let first = self.all_of(spec, depth)?;
        if !self.is_word("OR") {
            return Ok(first);
        }
        let mut any = vec![first];
        while self.take_word("OR") {
            any.push(self.all_of(spec, depth)?);
        }
        Ok(Filter::Or(any))
    }

    /// `condition [AND condition]...`
    fn all_of(&mut self, spec: &ObjectSpec, depth: usize) -> Parsed<Filter> {
        let first = self.condition(spec, depth)?;
        if !self.is_word("AND") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take_word("AND") {
            all.push(self.condition(spec, depth)?);
        }
        Ok(Filter::And(all))
    }

    /// `( filter )` or one comparison.
    fn condition(&mut self, spec: &ObjectSpec, depth: usize) -> Parsed<Filter> {
        if !self.is_symbol("(") {
            return self.comparison(spec);
        }
        if depth == NESTING_MAX {
            return self.fault(ErrorKind::TooLarge { what: "the nesting of parentheses", max: NESTING_MAX });
        }
        self.at += 1;
        let inner = self.any_of(spec, depth + 1)?;
        self.expect_symbol(")")?;
        Ok(inner)
    }

    fn count_comparison(&mut self) -> Parsed<()> {
        if self.comparisons == WHERE_COMPARISONS_MAX {
            return self.fault(ErrorKind::TooLarge { what: "the number of comparisons", max: WHERE_COMPARISONS_MAX });
        }
        self.comparisons += 1;
        Ok(())
    }

    /// `attribute [NOT] IN (literal [, literal]...)`, behind IN: equal to one of them, or to none.
    fn one_of(&mut self, attribute: &'static str, negated: bool) -> Parsed<Filter> {
        self.expect_symbol("(")?;
        let mut each = Vec::new();
        loop {
            let literal = self.literal(attribute, Operator::Equal)?;
            let comparison = Comparison { attribute, negated, operator: Operator::Equal, literal };
            each.push(Filter::Compare(comparison));
            if self.take_symbol(")") {
                break;
            }
            self.expect_symbol(",")?;
            self.count_comparison()?;
        }
        Ok(match (each.len(), negated) {
            (1, _) => each.remove(0),
            (_, false) => Filter::Or(each),
            (_, true) => Filter::And(each),
        })
    }

    /// `attribute [NOT|!] operator literal`, or IN with several.
    fn comparison(&mut self, spec: &ObjectSpec) -> Parsed<Filter> {
        self.count_comparison()?;
        let attribute = self.attribute(spec)?.name;
        let mut negated = self.take_word("NOT") || self.take_symbol("!");
        let operators = [
            ("=", Operator::Equal),
            ("<", Operator::Less),
            ("<=", Operator::LessOrEqual),
            (">", Operator::Greater),
            (">=", Operator::GreaterOrEqual),
        ];
        let operator = if let Some((symbol, operator)) = operators.into_iter().find(|(it, _)| self.is_symbol(it)) {
            self.take_symbol(symbol);
            operator
        } else if !negated && self.take_symbol("!=") {
            negated = true;
            Operator::Equal
        } else if self.take_word("LIKE") {
            Operator::Like
        } else if self.take_word("IN") {
            return self.one_of(attribute, negated);
        } else {
            return self.unexpected_among("=, !=, <, <=, >, >=, LIKE, IN, NOT LIKE or NOT IN", ["LIKE", "NOT", "IN"]);
        };
        let place = self.at;
        let literal = self.literal(attribute, operator)?;
        if operator == Operator::Like
            && let Literal::Text(pattern) = &literal
            && let Err(kind) = compile_pattern(pattern)
        {
            self.at = place;
            return self.fault(kind);
        }
        Ok(Filter::Compare(Comparison { attribute, negated, operator, literal }))
    }

    fn literal(&mut self, attribute: &'static str, operator: Operator) -> Parsed<Literal> {
        let literal = match self.peek() {
            Some(TokenKind::Quoted(text)) => Literal::Text(text.clone()),
            Some(TokenKind::Word(word)) => match bare_literal(word) {
                Some(literal) => literal,
                None => {
                    let expected = "a number, a size in whole bytes, or text in quotes".into();
                    let found = shortened(word);
                    return self.fault(ErrorKind::InvalidValue { name: attribute, expected, found });
                }
            },
            _ => return self.unexpected("a value"),
        };
        if operator == Operator::Like && literal == Literal::Null {
            return self.unexpected("a pattern");
        }
        self.at += 1;
        Ok(literal)
    }
}

/// What a bare word on the right of an operator means. `None` when it is a number or size that no value can have: taken
/// as text it would silently compare as text.
fn bare_literal(word: &str) -> Option<Literal> {
    if word.eq_ignore_ascii_case("NULL") {
        return Some(Literal::Null);
    }
    if let Some(number) = Decimal::parse(word) {
        return Some(Literal::Number(number));
    }
    if let Some(size_bytes) = parse_size(word) {
        return Some(Literal::Size(size_bytes));
    }
    if let Some(timestamp) = Timestamp::parse(word) {
        return Some(Literal::DateTime(timestamp));
    }
    let digits = word.strip_prefix('-').unwrap_or(word);
    let looks_numeric = digits.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']);
    let numeric = !looks_numeric.is_empty()
        && looks_numeric.starts_with(|it: char| it.is_ascii_digit())
        && looks_numeric.bytes().all(|it| it.is_ascii_digit() || it == b'.')
        && looks_numeric.bytes().filter(|it| *it == b'.').count() < 2;
    (!numeric).then(|| Literal::Text(word.to_owned()))
}
