//! HELP, generated from the table. Never says more than the parser takes: both read the same rows.

use crate::command::Flag;
use crate::parser::clauses_of;
use crate::table::{Form, OBJECTS, ObjectSpec, ObjectType, TargetKind, VERBS, Verb};

/// The text of `HELP [verb [object type] | object type]`, lines ended by line feeds.
#[must_use]
pub fn help(verb: Option<Verb>, object: Option<ObjectType>) -> String {
    match (verb, object.map(ObjectType::spec)) {
        (None, None) => overview(),
        (Some(verb), None) => verb_help(verb),
        (None, Some(object)) => object_help(object),
        (Some(verb), Some(object)) => statement_help(verb, object),
    }
}

fn overview() -> String {
    let mut text = String::from("Commands:\n");
    let words = |words: &[&str]| words.join(", ");
    let width = VERBS.iter().map(|spec| words(spec.words).len()).max().unwrap_or(0);
    for spec in VERBS {
        text.push_str(&format!("  {:width$}  {}\n", words(spec.words), spec.about));
    }
    text.push_str("\nObject types:\n");
    push_objects(&mut text, OBJECTS.iter());
    text.push_str("\nHELP verb, HELP verb object_type and HELP object_type tell more.\n");
    text.push_str("Keywords and names ignore case. A line that ends in - goes on in the next; ; is optional.\n");
    text
}

fn push_objects(text: &mut String, objects: impl Iterator<Item = &'static ObjectSpec> + Clone) {
    let width = objects.clone().map(|spec| spec.word.len()).max().unwrap_or(0);
    for spec in objects {
        text.push_str(&format!("  {:width$}  {}\n", spec.word, spec.about));
    }
}

fn verb_help(verb: Verb) -> String {
    let spec = verb.spec();
    let mut text = format!("{}: {}\n", verb.word(), spec.about);
    if !spec.on_objects {
        for word in spec.words {
            text.push_str(format!("  {word} {}", spec.syntax).trim_end());
            text.push('\n');
        }
        return text;
    }
    text.push_str("Object types:\n");
    push_objects(&mut text, OBJECTS.iter().filter(|object| object.takes(verb)));
    text
}

fn object_help(object: &'static ObjectSpec) -> String {
    let mut text = format!("{}: {}\nStatements:\n", object.word, object.about);
    for verb in VERBS.iter().filter(|spec| spec.on_objects && object.takes(spec.verb)) {
        for line in syntax(verb.verb, object) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text.push_str("Attributes:\n");
    let width = object.attributes.iter().map(|attribute| attribute.name.len()).max().unwrap_or(0);
    for attribute in object.attributes {
        let mut marks = Vec::new();
        if attribute.modifiable {
            marks.push("modifiable");
        }
        if attribute.hidden {
            marks.push("hidden");
        }
        if attribute.own {
            marks.push("Flashcell's own");
        }
        let marks = if marks.is_empty() { String::new() } else { format!(" ({})", marks.join(", ")) };
        text.push_str(&format!("  {:width$}  {}{marks}\n", attribute.name, attribute.about));
        push_choices(&mut text, width, attribute.kind.choices());
    }
    text
}

fn statement_help(verb: Verb, object: &'static ObjectSpec) -> String {
    let mut text = format!("{} {}: ", verb.word(), object.word);
    match verb {
        Verb::List => {
            text.push_str(&format!("show {}\n", object.about));
            text.push_str(&format!("  {}\n", list_syntax(object)));
            text.push_str("  condition: attribute [NOT | !] {= | != | < | <= | > | >= | LIKE} value\n");
            text.push_str("             attribute [NOT | !] IN (value [, value]...)\n");
            text.push_str(
                "             [{AND | OR} condition]..., parentheses; OR, IN and parentheses are Flashcell's own\n",
            );
            text.push_str("  LIKE takes a regular expression over the whole value: name LIKE 'FC_IO.*'\n");
            let columns: Vec<&str> = object.default_columns().map(|attribute| attribute.name).collect();
            text.push_str(&format!("  Without ATTRIBUTES: {}\n", columns.join(", ")));
        }
        Verb::Describe => {
            text.push_str(&format!("show the attributes of {}\n", object.word));
            text.push_str(&format!("  DESCRIBE {}\n", object.word));
        }
        _ => {
            let mut forms = object.forms_of(verb).peekable();
            let about = if forms.peek().is_none() { "not taken" } else { object.about };
            text.push_str(&format!("{about}\n"));
            for form in forms {
                push_form(&mut text, object, form);
            }
        }
    }
    text
}

/// One form: its line, what it does, its options, operations and flags.
fn push_form(text: &mut String, object: &'static ObjectSpec, form: &'static Form) {
    text.push_str(&format!("  {}\n    {}\n", form_syntax(object, form), form.about));
    let settings: Vec<_> = form.setting_list(object).collect();
    let width = settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    if !settings.is_empty() {
        text.push_str("    options:\n");
    }
    for setting in &settings {
        let mut notes = vec![setting.kind.word().to_owned()];
        if setting.required {
            notes.push("required".into());
        }
        if let Some(other) = setting.needs {
            notes.push(format!("with {other}"));
        }
        text.push_str(&format!("      {:width$}  {} ({})\n", setting.name, setting.about, notes.join(", ")));
        push_choices(text, width + 4, setting.kind.choices());
    }
    if !form.operations.is_empty() {
        text.push_str("    operations:\n");
    }
    for operation in form.operations {
        let words = operation_words(operation.words);
        text.push_str(&format!("      {words}{}: {}\n", flags(operation.flags), operation.about));
    }
}

fn push_choices(text: &mut String, width: usize, choices: &[&str]) {
    if !choices.is_empty() {
        text.push_str(&format!("  {:width$}  {}\n", "", choices.join(" | ")));
    }
}

/// The lines a verb has for an object type.
fn syntax(verb: Verb, object: &'static ObjectSpec) -> Vec<String> {
    match verb {
        Verb::List => vec![list_syntax(object)],
        Verb::Describe => vec![format!("DESCRIBE {}", object.word)],
        _ => object.forms_of(verb).map(|form| form_syntax(object, form)).collect(),
    }
}

pub(crate) fn list_syntax(object: &ObjectSpec) -> String {
    format!(
        "LIST {} [name [, name]...] [WHERE condition] [ATTRIBUTES {{ALL | attribute [, attribute]...}}] [DETAIL] \
         [ORDER BY attribute [ASC | DESC] [, ...]] [LIMIT number]{}",
        object.word,
        if clauses_of(object.object).contains(&"OVER") { " [OVER minutes [AVG] [MAX] [MIN]] [MEMORY]" } else { "" }
    )
}

pub(crate) fn form_syntax(object: &'static ObjectSpec, form: &'static Form) -> String {
    let mut line = format!("{} {}", form.verb.word(), object.word);
    line.push_str(match form.target {
        TargetKind::Whole => "",
        TargetKind::All => " ALL",
        TargetKind::AllOfDiskType => " ALL [FLASHDISK | HARDDISK]",
        TargetKind::Name => " name",
        TargetKind::Names => " name [, name]...",
    });
    let settings: Vec<_> = form.setting_list(object).collect();
    let mut joined = "";
    for setting in settings.iter().filter(|setting| setting.required) {
        line.push_str(&format!("{joined} {}={}", setting.name, setting.kind.word()));
        joined = ",";
    }
    if settings.iter().any(|setting| !setting.required) {
        line.push_str(&if joined.is_empty() {
            " [option=value [, option=value]...]".to_owned()
        } else {
            format!(" [{joined} option=value]...")
        });
    }
    if form.filter {
        line.push_str(" [WHERE condition]");
    }
    if !form.operations.is_empty() {
        let each = form.operations.iter().map(|it| format!("{}{}", operation_words(it.words), flags(it.flags)));
        line.push_str(&format!(" [{}]", each.collect::<Vec<_>>().join(" | ")));
    }
    line.push_str(&flags(form.flags));
    line
}

pub(crate) fn operation_words(words: &[&[&str]]) -> String {
    let place = |alternatives: &&[&str]| match alternatives {
        [only] => (*only).to_owned(),
        several => format!("{{{}}}", several.join(" | ")),
    };
    words.iter().map(place).collect::<Vec<_>>().join(" ")
}

fn flags(flags: &[Flag]) -> String {
    flags.iter().map(|flag| format!(" [{}]", flag.word())).collect()
}
