//! The reference page of the language, generated from the table: `docs/cellcli.md`. A test compares it.

use crate::error::ErrorCode;
use crate::help::{form_syntax, list_syntax, operation_words};
use crate::lexer::{STATEMENT_TOKENS_MAX, TEXT_BYTES_MAX};
use crate::parser::{NESTING_MAX, STATEMENTS_MAX, WHERE_COMPARISONS_MAX};
use crate::table::{Attribute, Form, OBJECTS, ObjectSpec, VERBS};

/// The page, in Markdown.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(HEAD);
    verbs(&mut page);
    page.push_str("\n## Object types\n");
    for object in OBJECTS {
        page.push_str(&format!("\n### {}\n\n{}.\n\n", object.word, capital(object.about)));
        statements(&mut page, object);
        attributes(&mut page, object);
    }
    codes(&mut page);
    limits(&mut page);
    page
}

const HEAD: &str = "\
# CellCLI: the language

Generated from the language's table (`crates/cellcli`); change that, then `UPDATE_EXPECT=1 cargo test -p cellcli reference`.

    flashcell cellcli [PORT] [-c CELL] [-n] [-m] [-v | -vv] [-x] [--json | --xml] [-e STATEMENT]

CELL is a cell's directory or HOST[:PORT]; PORT alone is that of this host or of the HOST. `-xml` is taken for `--xml`, as of old. XML and JSON
have raw numbers. With `-v` stderr tells which cell is asked, with `-vv` also each statement and how long its answer took.

Statements are separated by `;` or by the end of a line; a line that ends in `-` goes on in the next. Keywords, names and attributes ignore
case. Text is quoted with `'` or `\"`, a quote inside is written twice. `REM`, `REMARK` and `--` begin a comment. Sizes are numbers with K, M, G or
T, powers of 1024; times are ISO 8601 with an offset, `2013-09-12T23:46:14+02:00`.

A condition is `attribute [NOT | !] operator value` with `=`, `!=`, `<`, `<=`, `>`, `>=` or `LIKE` (a regular expression over the whole value), or `attribute
[NOT] IN (value, ...)`; conditions are joined by AND and OR and grouped by parentheses. NULL is what is empty. Numbers compare as numbers, unless one side is in quotes.
OR, IN, parentheses, `<=` and `>=` are Flashcell's own, and so are the attributes marked *own*.

## Verbs

";

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn verbs(page: &mut String) {
    page.push_str("| verb | what it does | also with `-m` |\n|---|---|---|\n");
    for spec in VERBS {
        let syntax = if spec.on_objects { "type ..." } else { spec.syntax };
        let words = spec.words.iter().map(|word| format!("`{}`", cell(format!("{word} {syntax}").trim_end())));
        let words: Vec<String> = words.collect();
        let read_only = if spec.read_only { "yes" } else { "" };
        page.push_str(&format!("| {} | {} | {read_only} |\n", words.join(", "), cell(spec.about)));
    }
}

fn statements(page: &mut String, object: &'static ObjectSpec) {
    page.push_str(&format!("    {}\n    DESCRIBE {}\n", list_syntax(object), object.word));
    for form in object.forms {
        page.push_str(&format!("    {}\n", form_syntax(object, form)));
    }
    for form in object.forms {
        options(page, object, form);
    }
}

fn options(page: &mut String, object: &'static ObjectSpec, form: &'static Form) {
    let target = form_syntax(object, form);
    let head: Vec<&str> = target.split(' ').take_while(|word| !word.starts_with('[') && !word.contains('=')).collect();
    page.push_str(&format!("\n`{}`: {}.\n", head.join(" "), form.about));
    let settings: Vec<_> = form.setting_list(object).collect();
    if !settings.is_empty() || !form.operations.is_empty() {
        page.push('\n');
    }
    for setting in settings {
        let mut notes = vec![kind(setting.kind.word(), setting.kind.choices())];
        if setting.required {
            notes.push("required".into());
        }
        if let Some(other) = setting.needs {
            notes.push(format!("with {other}"));
        }
        page.push_str(&format!("- `{}` ({}): {}\n", setting.name, notes.join(", "), setting.about));
    }
    for operation in form.operations {
        page.push_str(&format!("- `{}`: {}\n", operation_words(operation.words), operation.about));
    }
}

fn kind(word: &str, choices: &[&str]) -> String {
    if choices.is_empty() { word.to_owned() } else { choices.join(" \\| ") }
}

fn attributes(page: &mut String, object: &'static ObjectSpec) {
    page.push_str("\n| attribute | kind | | what it is |\n|---|---|---|---|\n");
    for Attribute { name, kind: of, modifiable, hidden, default_column, own, about } in object.attributes {
        let marks = [(*default_column, "shown"), (*modifiable, "modifiable"), (*hidden, "hidden"), (*own, "own")];
        let marks: Vec<&str> = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
        let (kind, about) = (kind(of.word(), of.choices()), cell(about));
        page.push_str(&format!("| {name} | {kind} | {} | {about} |\n", marks.join(", ")));
    }
}

fn codes(page: &mut String) {
    page.push_str("\n## Errors\n\nThe first line of a message is `CELL-NNNNN: text.`, perhaps with the place marked below it and a line `hint: ...`. ");
    page.push_str("A code once given out keeps its number and its meaning.\n\n| code | meaning |\n|---|---|\n");
    for code in ErrorCode::ALL {
        page.push_str(&format!("| {code} | {} |\n", code.about()));
    }
}

fn limits(page: &mut String) {
    page.push_str("\n## Limits\n\n| what | at most |\n|---|---|\n");
    for (what, max) in [
        ("bytes of a text", TEXT_BYTES_MAX),
        ("statements of a text", STATEMENTS_MAX),
        ("words and symbols of a statement", STATEMENT_TOKENS_MAX),
        ("comparisons in a WHERE", WHERE_COMPARISONS_MAX),
        ("parentheses within parentheses", NESTING_MAX),
    ] {
        page.push_str(&format!("| {what} | {max} |\n"));
    }
}
