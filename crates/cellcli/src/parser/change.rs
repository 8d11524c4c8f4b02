//! CREATE, ALTER and DROP: a target, then options, one operation, flags and WHERE in any order, all checked against the
//! table's form for the verb and target.

use super::{Parsed, Parser, shortened};
use crate::command::{Change, DiskType, Filter, Flag, Operation, Setting, Target};
use crate::error::ErrorKind;
use crate::lexer::TokenKind;
use crate::suggest::nearest;
use crate::table::{Form, ObjectSpec, OperationSpec, TargetKind, Verb};

/// What has been read behind the target.
#[derive(Default)]
struct Items {
    /// Options with the index of their token.
    settings: Vec<(Setting, usize)>,
    operation: Option<(Operation, &'static OperationSpec, String)>,
    /// Flags with the index of their token.
    flags: Vec<(Flag, usize)>,
    filter: Option<Filter>,
}

impl Parser<'_> {
    /// `type target [item [,] ...]`, behind the verb.
    pub(super) fn change(&mut self, verb: Verb) -> Parsed<Change> {
        let spec = self.object(verb)?;
        let (form, target) = self.target(verb, spec)?;
        let mut items = Items::default();
        // A comma joins options; after it something must follow.
        let mut after_comma = self.take_symbol(",");
        while self.peek().is_some() {
            self.item(verb, spec, form, &mut items)?;
            after_comma = self.take_symbol(",");
        }
        if after_comma {
            return self.unexpected("an option");
        }
        self.check(verb, spec, form, &items)?;
        let given = |flag| items.flags.iter().any(|(it, _)| *it == flag);
        Ok(Change {
            object: spec.object,
            target,
            operation: items.operation.as_ref().map(|(operation, ..)| *operation),
            force: given(Flag::Force),
            no_wait: given(Flag::NoWait),
            settings: items.settings.into_iter().map(|(setting, _)| setting).collect(),
            filter: items.filter,
        })
    }

    /// The target, and the form it selects.
    fn target(&mut self, verb: Verb, spec: &'static ObjectSpec) -> Parsed<(&'static Form, Target)> {
        let form_of = |wanted: &[TargetKind]| spec.forms_of(verb).find(|form| wanted.contains(&form.target));
        if self.is_word("ALL")
            && let Some(form) = form_of(&[TargetKind::All, TargetKind::AllOfDiskType])
        {
            self.at += 1;
            let mut disk_type = None;
            if form.target == TargetKind::AllOfDiskType {
                disk_type = DiskType::ALL.into_iter().find(|it| self.is_word(it.word()));
                self.at += usize::from(disk_type.is_some());
            }
            return Ok((form, Target::All(disk_type)));
        }
        if self.peek().is_none()
            && let Some(expected) = expected_target(verb, spec)
        {
            return self.unexpected(expected);
        }
        let begins_option = matches!(self.peek_second(), Some(TokenKind::Symbol("=")));
        if !begins_option && let Some(form) = form_of(&[TargetKind::Name, TargetKind::Names]) {
            // Where the type can also stand alone, a word that begins an operation or clause is not a name.
            let alone = form_of(&[TargetKind::Whole]).is_some_and(|whole| self.begins_item(whole));
            if !alone {
                let names = if form.target == TargetKind::Name { vec![self.name()?] } else { self.names()? };
                return Ok((form, Target::Names(names)));
            }
        }
        match form_of(&[TargetKind::Whole]) {
            Some(form) => Ok((form, Target::Whole)),
            None => self.unexpected(expected_target(verb, spec).unwrap_or_default()),
        }
    }

    /// Whether the current word begins an operation, a flag or WHERE of `form`; or nothing follows at all.
    fn begins_item(&self, form: &Form) -> bool {
        let operation = form.operations.iter().any(|it| it.words[0].iter().any(|word| self.is_word(word)));
        let flag = Flag::ALL.iter().any(|flag| self.is_word(flag.word()));
        operation || flag || self.is_word("WHERE") || self.peek().is_none()
    }

    fn item(&mut self, verb: Verb, spec: &'static ObjectSpec, form: &'static Form, items: &mut Items) -> Parsed<()> {
        if matches!(self.peek_second(), Some(TokenKind::Symbol("="))) && !self.is_word("WHERE") {
            return self.setting(verb, spec, form, items);
        }
        if form.filter && self.is_word("WHERE") {
            if items.filter.is_some() {
                return self.fault(ErrorKind::Repeated { what: "WHERE" });
            }
            self.at += 1;
            items.filter = Some(self.filter(spec)?);
            return Ok(());
        }
        if let Some(flag) = Flag::ALL.into_iter().find(|flag| self.is_word(flag.word())) {
            if items.flags.iter().any(|(it, _)| *it == flag) {
                return self.fault(ErrorKind::Repeated { what: flag.word() });
            }
            items.flags.push((flag, self.at));
            self.at += 1;
            return Ok(());
        }
        let operation = form.operations.iter().find(|it| it.words[0].iter().any(|word| self.is_word(word)));
        match operation {
            Some(operation) => self.operation(operation, items),
            None => self.unexpected_among(expected_item(form), item_keywords(form)),
        }
    }

    fn operation(&mut self, spec: &'static OperationSpec, items: &mut Items) -> Parsed<()> {
        if items.operation.is_some() {
            return self.fault(ErrorKind::Repeated { what: "an operation" });
        }
        let mut chosen = Vec::with_capacity(spec.words.len());
        let mut written = Vec::with_capacity(spec.words.len());
        for alternatives in spec.words {
            let Some(index) = alternatives.iter().position(|word| self.is_word(word)) else {
                return self.unexpected_among(alternatives.join(" or "), alternatives.iter().copied());
            };
            self.at += 1;
            chosen.push(index);
            written.push(alternatives[index]);
        }
        items.operation = Some(((spec.build)(&chosen), spec, written.join(" ")));
        Ok(())
    }

    fn setting(&mut self, verb: Verb, spec: &'static ObjectSpec, form: &'static Form, items: &mut Items) -> Parsed<()> {
        let word = match self.peek() {
            Some(TokenKind::Word(word)) => word.clone(),
            _ => return self.unexpected(expected_item(form)),
        };
        let Some((name, kind)) = form.setting(spec, &word) else {
            return self.fault(match spec.attribute(&word) {
                Some(attribute) if verb == Verb::Alter && !attribute.modifiable => {
                    ErrorKind::NotModifiable { object: spec.object, attribute: attribute.name }
                }
                _ => {
                    let nearest = nearest(&word, form.setting_list(spec).map(|setting| setting.name));
                    ErrorKind::UnknownOption { verb, object: spec.object, found: shortened(&word), nearest }
                }
            });
        };
        if items.settings.iter().any(|(setting, _)| setting.name == name) {
            return self.fault(ErrorKind::Repeated { what: name });
        }
        let place = self.at;
        self.at += 2;
        // What must be there must be something; other options are reset by empty text.
        let must_be_something = name == "name" || form.setting_list(spec).any(|it| it.name == name && it.required);
        let is_empty = matches!(self.peek(), Some(TokenKind::Quoted(text)) if text.is_empty()) || self.is_word("NULL");
        if must_be_something && is_empty {
            return self.unexpected(format!("a value for {name}"));
        }
        let value = self.setting_value(name, kind)?;
        items.settings.push((Setting { name, value }, place));
        Ok(())
    }

    /// What only the whole statement can tell. The parser stands at its end.
    fn check(&mut self, verb: Verb, spec: &'static ObjectSpec, form: &'static Form, items: &Items) -> Parsed<()> {
        let object = spec.object;
        let given = |name: &str| items.settings.iter().any(|(setting, _)| setting.name == name);
        for setting in form.setting_list(spec) {
            if setting.required && !given(setting.name) {
                let (option, kind) = (setting.name, setting.kind.word());
                return self.fault(ErrorKind::MissingOption { verb, object, option, kind });
            }
            if let Some(other) = setting.needs
                && given(setting.name)
                && !given(other)
            {
                return self.fault(ErrorKind::OptionNeeds { option: setting.name, other });
            }
        }
        let mut flags_taken = form.flags;
        if let Some((_, operation, written)) = &items.operation {
            let beside = |name: &str| form.beside_operation.contains(&name);
            if let Some((setting, place)) = items.settings.iter().find(|(setting, _)| !beside(setting.name)) {
                self.at = *place;
                return self.fault(ErrorKind::Conflict { option: setting.name, operation: written.clone() });
            }
            flags_taken = operation.flags;
        }
        if let Some((flag, place)) = items.flags.iter().find(|(flag, _)| !flags_taken.contains(flag)) {
            self.at = *place;
            return self.fault(ErrorKind::FlagNotTaken { flag: flag.word() });
        }
        if form.needs_change && items.operation.is_none() && items.settings.is_empty() {
            return self.fault(ErrorKind::NothingToChange { verb, object });
        }
        Ok(())
    }
}

/// What may follow in `form`, for messages.
fn expected_item(form: &Form) -> String {
    let mut expected: Vec<String> = Vec::new();
    if !form.settings.is_empty() || form.modifiable_attributes {
        expected.push("option=value".into());
    }
    for operation in form.operations {
        expected.push(operation.words.iter().map(|it| it.join("|")).collect::<Vec<_>>().join(" "));
    }
    expected.extend(form.flags.iter().map(|flag| flag.word().to_owned()));
    if form.filter {
        expected.push("WHERE".into());
    }
    expected.push("the end of the statement".into());
    match expected.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => expected.concat(),
    }
}

/// The keywords that may follow in `form`, for hints.
fn item_keywords(form: &'static Form) -> impl Iterator<Item = &'static str> {
    let operations = form.operations.iter().flat_map(|operation| operation.words[0].iter().copied());
    let flags = form.flags.iter().copied().map(Flag::word);
    operations.chain(flags).chain(form.filter.then_some("WHERE"))
}

/// What must follow the object type; `None` when the statement is complete without.
fn expected_target(verb: Verb, spec: &'static ObjectSpec) -> Option<String> {
    let mut expected: Vec<String> = Vec::new();
    for form in spec.forms_of(verb) {
        match form.target {
            TargetKind::All | TargetKind::AllOfDiskType => expected.push("ALL".into()),
            TargetKind::Name | TargetKind::Names => expected.push("a name".into()),
            TargetKind::Whole => match form.setting_list(spec).find(|setting| setting.required) {
                Some(setting) => expected.push(format!("{}={}", setting.name, setting.kind.word())),
                None => return None,
            },
        }
    }
    Some(expected.join(" or "))
}
