//! The values of options, read by the kind the table tells.

use super::{NESTING_MAX, Parsed, Parser};
use crate::answer::{Timestamp, parse_size};
use crate::command::SettingValue;
use crate::error::ErrorKind;
use crate::lexer::TokenKind;
use crate::table::Kind;

impl Parser<'_> {
    /// The value behind `name=`. Bare NULL is empty text, which resets what can be reset.
    pub(super) fn setting_value(&mut self, name: &'static str, kind: Kind) -> Parsed<SettingValue> {
        if kind == Kind::Directives && self.is_symbol("(") {
            return self.directives().map(SettingValue::Directives);
        }
        let text = match self.peek() {
            Some(TokenKind::Word(word)) if word.eq_ignore_ascii_case("NULL") => "",
            Some(TokenKind::Word(text) | TokenKind::Quoted(text)) => text,
            _ => return self.unexpected(format!("a value for {name}")),
        };
        let value = match kind {
            Kind::Text | Kind::Name | Kind::Reference(_) => Some(SettingValue::Text(text.to_owned())),
            Kind::Number => number(text).map(SettingValue::Number),
            Kind::Size => parse_size(text).map(SettingValue::SizeBytes),
            Kind::Status(words) => {
                words.iter().find(|word| word.eq_ignore_ascii_case(text)).map(|word| SettingValue::Choice(word))
            }
            Kind::List => Some(SettingValue::List(
                text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            )),
            Kind::DateTime => Timestamp::parse(text).map(SettingValue::DateTime),
            Kind::Directives if text.is_empty() => Some(SettingValue::Directives(Vec::new())),
            Kind::Directives | Kind::Measure => None,
        };
        let Some(value) = value else {
            let found = self.found();
            return self.fault(ErrorKind::InvalidValue { name, expected: expected(kind), found });
        };
        self.at += 1;
        Ok(value)
    }

    /// `((name=value [, name=value]...) [, (...)]...)`, or one directive without the outer parentheses.
    fn directives(&mut self) -> Parsed<Vec<Vec<(String, String)>>> {
        const { assert!(NESTING_MAX >= 2, "directives nest two deep") }
        self.expect_symbol("(")?;
        if !self.is_symbol("(") {
            return Ok(vec![self.directive()?]);
        }
        let mut directives = Vec::new();
        loop {
            self.expect_symbol("(")?;
            directives.push(self.directive()?);
            if self.take_symbol(")") {
                return Ok(directives);
            }
            self.expect_symbol(",")?;
        }
    }

    /// `name=value [, name=value]... )`, behind the opening parenthesis.
    fn directive(&mut self) -> Parsed<Vec<(String, String)>> {
        let mut directive = Vec::new();
        loop {
            let name = match self.peek() {
                Some(TokenKind::Word(word)) => word.clone(),
                _ => return self.unexpected("the name of a plan option"),
            };
            self.at += 1;
            self.expect_symbol("=")?;
            directive.push((name, self.text("a value")?));
            if self.take_symbol(")") {
                return Ok(directive);
            }
            self.expect_symbol(",")?;
        }
    }
}

fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|it| it.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// What values of `kind` look like, for messages.
fn expected(kind: Kind) -> String {
    match kind {
        Kind::Status(words) => match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        },
        Kind::Size => "a size in whole bytes such as 288G or 512M".into(),
        Kind::Number => "a whole number".into(),
        Kind::DateTime => "a time such as 2013-09-12T23:46:14+02:00".into(),
        Kind::Directives => "directives such as ((name=db1, share=2),(name=other, flashlog=on))".into(),
        Kind::Text | Kind::Name | Kind::Reference(_) | Kind::List | Kind::Measure => kind.word().into(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::lexer::{Lexer, Raw};

    fn value(text: &str, kind: Kind) -> Result<SettingValue, String> {
        let (raw, span) = Lexer::new(text).next_statement().unwrap().unwrap();
        let Raw::Tokens(tokens) = raw else { panic!("tokens expected") };
        let mut parser = Parser { tokens: &tokens, at: 0, end: span.end, comparisons: 0 };
        let value = parser.setting_value("value", kind).map_err(|fault| fault.kind.to_string())?;
        parser.expect_end().map_err(|fault| fault.kind.to_string())?;
        Ok(value)
    }

    fn pairs(directive: &[(&str, &str)]) -> Vec<(String, String)> {
        directive.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// The plan of the field reports reads as it stands.
    #[test]
    fn plan_directives() {
        assert_eq!(
            value("((name='SPOT', flashLog=on),(name=other,flashlog=on))", Kind::Directives).unwrap(),
            SettingValue::Directives(vec![
                pairs(&[("name", "SPOT"), ("flashLog", "on")]),
                pairs(&[("name", "other"), ("flashlog", "on")]),
            ])
        );
        assert_eq!(
            value("(name=db1,limit=90)", Kind::Directives).unwrap(),
            SettingValue::Directives(vec![pairs(&[("name", "db1"), ("limit", "90")])])
        );
        assert_eq!(value("\"\"", Kind::Directives).unwrap(), SettingValue::Directives(Vec::new()));
        for broken in ["()", "((name=a)", "((name=a),)", "(name)", "(name=a,)", "x"] {
            assert!(value(broken, Kind::Directives).is_err(), "{broken}");
        }
    }

    #[test]
    fn each_kind_takes_its_own() {
        assert_eq!(
            value("'a, b,,c'", Kind::List).unwrap(),
            SettingValue::List(vec!["a".into(), "b".into(), "c".into()])
        );
        assert_eq!(value("NULL", Kind::Text).unwrap(), SettingValue::Text(String::new()));
        assert_eq!(value("'null'", Kind::Text).unwrap(), SettingValue::Text("null".into()));
        assert_eq!(value("1.5g", Kind::Size).unwrap(), SettingValue::SizeBytes(3 << 29));
        assert_eq!(value("WRITEback", Kind::Status(&["WriteBack"])).unwrap(), SettingValue::Choice("WriteBack"));
        assert!(value("+7", Kind::Number).is_err());
        assert!(value("-7", Kind::Number).is_err());
        assert_eq!(value("on", Kind::Status(&["a", "b", "c"])).unwrap_err(), "value takes a, b or c, not on");
        assert!(value("5", Kind::Measure).is_err());
    }

    #[test]
    fn times() {
        let text = "2013-09-12T23:46:14+02:00";
        assert_eq!(value(text, Kind::DateTime).unwrap(), SettingValue::DateTime(Timestamp::parse(text).unwrap()));
    }
}
