//! Completion of a command line, generated from the table: what may stand where the cursor is.
//!
//! It follows the words before the cursor loosely and never judges them; a line that cannot be right gets fewer
//! suggestions, not an error.

use crate::command::{Aggregate, DiskType, Flag};
use crate::lexer::{Lexer, Raw, Token, TokenKind, is_bare_word};
use crate::parser::clauses_of;
use crate::table::{Form, Kind, OBJECTS, ObjectSpec, ObjectType, TargetKind, VERBS, Verb};

const OPERATORS: [&str; 10] = ["=", "!=", "<", "<=", ">", ">=", "LIKE", "NOT LIKE", "IN (", "NOT IN ("];

/// What may replace the word that ends at byte `cursor` of `line`, case ignored, in the order of the table. `names` gives the
/// names of the objects of a type. Keywords come in capitals, attributes and names as they are spelt; options end in `=`.
/// Only the statement the cursor is in counts. A cursor beyond the line, or inside a character, is taken as the end.
#[must_use]
pub fn complete(line: &str, cursor: usize, names: &dyn Fn(ObjectType) -> Vec<String>) -> Vec<String> {
    let line = line.get(..cursor).unwrap_or(line);
    let (before, word) = split_last_word(line);
    let mut candidates: Vec<String> = Vec::new();
    let tokens = last_statement(before);
    offer(&tokens, names, &mut candidates);
    let typed = word.to_lowercase();
    candidates.retain(|candidate| candidate.to_lowercase().starts_with(&typed));
    let mut seen = std::collections::BTreeSet::new();
    candidates.retain(|candidate| seen.insert(candidate.to_lowercase()));
    candidates
}

/// The word being typed, and everything before it.
fn split_last_word(line: &str) -> (&str, &str) {
    let ends_word = |it: char| it.is_whitespace() || matches!(it, ',' | '=' | '(' | ')' | ';' | '<' | '>' | '!');
    let start = line.char_indices().rev().find(|(_, it)| ends_word(*it)).map_or(0, |(at, it)| at + it.len_utf8());
    line.split_at(start)
}

/// The tokens of the statement that `text` ends in; none when it ends a statement or cannot be read.
fn last_statement(text: &str) -> Vec<Token> {
    if text.trim_end_matches([' ', '\t']).ends_with([';', '\n']) {
        return Vec::new();
    }
    let mut lexer = Lexer::new(text);
    let mut last = Vec::new();
    while let Some(statement) = lexer.next_statement() {
        last = match statement {
            Ok((Raw::Tokens(tokens), _)) => tokens,
            // Inside a comment, or behind an open quote: nothing sensible can be offered but what a new statement has.
            Ok((Raw::Remark(_), _)) | Err(_) => Vec::new(),
        };
    }
    last
}

fn word(token: Option<&Token>) -> Option<&str> {
    match &token?.kind {
        TokenKind::Word(word) => Some(word),
        TokenKind::Quoted(_) | TokenKind::Symbol(_) => None,
    }
}

fn is_word(token: Option<&Token>, wanted: &str) -> bool {
    word(token).is_some_and(|word| word.eq_ignore_ascii_case(wanted))
}

fn is_symbol(token: Option<&Token>, wanted: &str) -> bool {
    matches!(token, Some(Token { kind: TokenKind::Symbol(symbol), .. }) if *symbol == wanted)
}

fn push_words(candidates: &mut Vec<String>, words: impl IntoIterator<Item = &'static str>) {
    candidates.extend(words.into_iter().map(str::to_owned));
}

fn offer(tokens: &[Token], names: &dyn Fn(ObjectType) -> Vec<String>, out: &mut Vec<String>) {
    let verb = match tokens.first() {
        None => return push_words(out, VERBS.iter().map(|spec| spec.verb.word())),
        first => word(first).and_then(Verb::from_word),
    };
    let Some(verb) = verb else { return };
    let rest = &tokens[1..];
    let objects = || OBJECTS.iter().filter(move |spec| spec.takes(verb)).map(|spec| spec.word);
    match (verb, rest) {
        (Verb::Help, []) => {
            push_words(out, VERBS.iter().map(|it| it.verb.word()).chain(OBJECTS.iter().map(|it| it.word)))
        }
        (Verb::Help, [asked]) => {
            if let Some(asked) = word(Some(asked)).and_then(Verb::from_word).filter(|verb| verb.spec().on_objects) {
                push_words(out, OBJECTS.iter().filter(|spec| spec.takes(asked)).map(|spec| spec.word));
            }
        }
        (Verb::Calibrate, []) => push_words(out, ["FORCE"]),
        (Verb::Set, []) => push_words(out, ["DATEFORMAT", "ECHO"]),
        (Verb::Set, [option]) if is_word(Some(option), "DATEFORMAT") => push_words(out, ["LOCAL", "STANDARD"]),
        (Verb::Set, [option]) if is_word(Some(option), "ECHO") => push_words(out, ["ON", "OFF"]),
        (Verb::Spool, []) => push_words(out, ["OFF"]),
        (Verb::Spool, [file]) if !is_word(Some(file), "OFF") => push_words(out, ["CREATE", "REPLACE", "APPEND"]),
        (_, []) if verb.spec().on_objects => push_words(out, objects()),
        (Verb::List | Verb::Create | Verb::Alter | Verb::Drop, [object, rest @ ..]) => {
            let Some(object) = word(Some(object)).and_then(ObjectType::from_word).filter(|it| it.spec().takes(verb))
            else {
                return;
            };
            if verb == Verb::List {
                offer_list(object.spec(), rest, names, out);
            } else {
                offer_change(verb, object.spec(), rest, names, out);
            }
        }
        _ => {}
    }
}

/// The clause keyword the last token belongs to, and the tokens behind that keyword.
fn current_clause(object: ObjectType, tokens: &[Token]) -> Option<(&'static str, &[Token])> {
    let clauses = clauses_of(object);
    let at = tokens.iter().rposition(|token| clauses.iter().any(|clause| is_word(Some(token), clause)))?;
    let clause = clauses.iter().copied().find(|clause| is_word(tokens.get(at), clause))?;
    Some((clause, &tokens[at + 1..]))
}

fn offer_list(spec: &ObjectSpec, tokens: &[Token], names: &dyn Fn(ObjectType) -> Vec<String>, out: &mut Vec<String>) {
    let attributes = || spec.attributes.iter().map(|attribute| attribute.name);
    let last = tokens.last();
    let Some((clause, behind)) = current_clause(spec.object, tokens) else {
        if tokens.is_empty() || is_symbol(last, ",") {
            out.extend(names(spec.object));
        }
        if !is_symbol(last, ",") {
            offer_clauses(spec.object, tokens, out);
        }
        return;
    };
    match clause {
        "WHERE" => {
            if offer_condition(spec, behind, names, out) {
                push_words(out, ["AND", "OR"]);
                offer_clauses(spec.object, tokens, out);
            }
        }
        "ATTRIBUTES" if behind.is_empty() => {
            push_words(out, ["ALL"]);
            push_words(out, attributes());
        }
        "ORDER" if behind.is_empty() => push_words(out, ["BY"]),
        "ATTRIBUTES" | "ORDER" if is_symbol(last, ",") || is_word(last, "BY") => push_words(out, attributes()),
        "ORDER" => {
            if !is_word(last, "ASC") && !is_word(last, "DESC") {
                push_words(out, ["ASC", "DESC"]);
            }
            offer_clauses(spec.object, tokens, out);
        }
        "LIMIT" | "OVER" if behind.is_empty() => {}
        "OVER" => {
            let unused = Aggregate::ALL.map(Aggregate::word).into_iter();
            push_words(out, unused.filter(|word| !behind.iter().any(|token| is_word(Some(token), word))));
            offer_clauses(spec.object, tokens, out);
        }
        _ => offer_clauses(spec.object, tokens, out),
    }
}

/// The clauses not there yet.
fn offer_clauses(object: ObjectType, tokens: &[Token], out: &mut Vec<String>) {
    let all = clauses_of(object).iter().copied();
    let unused = all.filter(|clause| !tokens.iter().any(|token| is_word(Some(token), clause)));
    push_words(out, unused.map(|clause| if clause == "ORDER" { "ORDER BY" } else { clause }));
}

/// Inside WHERE: attribute, operator, value. True when a comparison is complete.
fn offer_condition(
    spec: &ObjectSpec,
    behind: &[Token],
    names: &dyn Fn(ObjectType) -> Vec<String>,
    out: &mut Vec<String>,
) -> bool {
    let joins = |at: usize| {
        let token = behind.get(at);
        let opens = is_symbol(token, "(") && !at.checked_sub(1).is_some_and(|before| is_word(behind.get(before), "IN"));
        opens || ["AND", "OR"].iter().any(|it| is_word(token, it))
    };
    let start = (0..behind.len()).rev().find(|at| joins(*at)).map_or(0, |at| at + 1);
    match &behind[start..] {
        [] => push_words(out, spec.attributes.iter().map(|attribute| attribute.name)),
        [_] => push_words(out, OPERATORS),
        [attribute, operator @ ..] => {
            let last = operator.last();
            if operator.iter().any(|token| is_word(Some(token), "IN")) {
                if is_word(last, "IN") {
                    push_words(out, ["("]);
                } else if is_symbol(last, "(") || is_symbol(last, ",") {
                    if let Some(attribute) = word(Some(attribute)).and_then(|it| spec.attribute(it)) {
                        offer_values(spec, attribute.name, attribute.kind, names, out);
                        push_words(out, ["NULL"]);
                    }
                } else if is_symbol(last, ")") {
                    return true;
                } else {
                    push_words(out, [")"]);
                }
                return false;
            }
            let negation = is_word(last, "NOT") || is_symbol(last, "!");
            let awaits_value =
                is_word(last, "LIKE") || ["=", "!=", "<", "<=", ">", ">="].iter().any(|symbol| is_symbol(last, symbol));
            if negation {
                push_words(out, ["=", "<", ">", "LIKE", "IN ("]);
            } else if awaits_value {
                if let Some(attribute) = word(Some(attribute)).and_then(|it| spec.attribute(it)) {
                    offer_values(spec, attribute.name, attribute.kind, names, out);
                    if !is_word(last, "LIKE") {
                        push_words(out, ["NULL"]);
                    }
                }
            } else {
                return true;
            }
        }
    }
    false
}

/// How many of `tokens` belong to the condition they begin with: what follows a complete comparison and neither joins nor
/// closes one belongs to the statement again.
fn condition_end(tokens: &[Token]) -> usize {
    let is_operator = |token: &Token| {
        let words = ["NOT", "LIKE"].iter().any(|it| is_word(Some(token), it));
        words || ["=", "!=", "<", "<=", ">", ">=", "!"].iter().any(|it| is_symbol(Some(token), it))
    };
    let mut complete = false;
    let mut in_list = false;
    let mut previous: Option<&Token> = None;
    for (at, token) in tokens.iter().enumerate() {
        if in_list || !complete && is_word(Some(token), "IN") {
            complete = is_symbol(Some(token), ")");
            in_list = !complete;
            previous = Some(token);
            continue;
        }
        let joins = ["AND", "OR"].iter().any(|it| is_word(Some(token), it));
        if complete && !joins && !is_symbol(Some(token), ")") {
            return at;
        }
        complete = !joins && (complete || previous.is_some_and(is_operator) && !is_operator(token));
        previous = Some(token);
    }
    tokens.len()
}

fn offer_values(
    spec: &ObjectSpec,
    name: &str,
    kind: Kind,
    names: &dyn Fn(ObjectType) -> Vec<String>,
    out: &mut Vec<String>,
) {
    match kind {
        Kind::Status(words) => {
            // A word with a blank needs its quotes, and so does one that is a symbol of the language.
            out.extend(words.iter().map(|it| if is_bare_word(it) { (*it).to_owned() } else { format!("'{it}'") }));
        }
        Kind::Reference(object) => out.extend(names(object)),
        Kind::Name if name == "name" => out.extend(names(spec.object)),
        _ => {}
    }
}

fn offer_change(
    verb: Verb,
    spec: &'static ObjectSpec,
    tokens: &[Token],
    names: &dyn Fn(ObjectType) -> Vec<String>,
    out: &mut Vec<String>,
) {
    let forms: Vec<&'static Form> = spec.forms_of(verb).collect();
    let has = |kinds: &[TargetKind]| forms.iter().find(|form| kinds.contains(&form.target)).copied();
    let all = has(&[TargetKind::All, TargetKind::AllOfDiskType]);
    let last = tokens.last();
    if tokens.is_empty() {
        push_words(out, all.map(|_| "ALL"));
        if has(&[TargetKind::Names]).is_some() {
            out.extend(names(spec.object));
        }
        if let Some(form) = has(&[TargetKind::Whole]) {
            offer_items(spec, form, tokens, out);
        }
        return;
    }
    // `name =`: a value, except behind WHERE, which has its own rules.
    let form = if is_word(tokens.first(), "ALL") && all.is_some() {
        all
    } else if is_symbol(tokens.get(1), "=") {
        has(&[TargetKind::Whole])
    } else {
        has(&[TargetKind::Name, TargetKind::Names]).or_else(|| has(&[TargetKind::Whole]))
    };
    let Some(form) = form else { return };
    let mut behind = tokens;
    if form.filter
        && let Some(at) = tokens.iter().rposition(|token| is_word(Some(token), "WHERE"))
    {
        let condition = &tokens[at + 1..];
        let end = condition_end(condition);
        if end == condition.len() {
            if offer_condition(spec, condition, names, out) {
                push_words(out, ["AND", "OR"]);
                offer_items(spec, form, tokens, out);
            }
            return;
        }
        behind = &condition[end..];
    }
    if is_symbol(last, "=") {
        let option = behind.len().checked_sub(2).and_then(|at| word(behind.get(at)));
        if let Some((name, kind)) = option.and_then(|option| form.setting(spec, option)) {
            offer_values(spec, name, kind, names, out);
        }
        return;
    }
    // Still in the list of names: a comma asks for another one.
    let naming = !tokens.iter().any(|token| is_symbol(Some(token), "="));
    if form.target == TargetKind::Names && naming && is_symbol(last, ",") {
        out.extend(names(spec.object));
        return;
    }
    if form.target == TargetKind::AllOfDiskType && tokens.len() == 1 {
        push_words(out, DiskType::ALL.map(DiskType::word));
    }
    offer_items(spec, form, tokens, out);
}

/// Options not given yet, operations, flags, WHERE.
fn offer_items(spec: &'static ObjectSpec, form: &'static Form, tokens: &[Token], out: &mut Vec<String>) {
    let given = |name: &str| tokens.iter().any(|token| is_word(Some(token), name));
    let second_word = form.operations.iter().find(|it| {
        it.words.len() > 1
            && word(tokens.last()).is_some_and(|last| it.words[0].iter().any(|w| w.eq_ignore_ascii_case(last)))
    });
    if let Some(operation) = second_word {
        return push_words(out, operation.words[1].iter().copied());
    }
    let third_word = form.operations.iter().find(|it| {
        it.words.len() > 2
            && word(tokens.last()).is_some_and(|last| it.words[1].iter().any(|w| w.eq_ignore_ascii_case(last)))
    });
    if let Some(operation) = third_word {
        return push_words(out, operation.words[2].iter().copied());
    }
    let begun_by =
        |token: &Token| form.operations.iter().find(|it| it.words[0].iter().any(|word| is_word(Some(token), word)));
    // The first such word tells: FLUSH behind CANCEL is not the operation FLUSH.
    let chosen = tokens.iter().find_map(begun_by);
    let beside = |name: &str| form.beside_operation.contains(&name);
    let ungiven = form.setting_list(spec).filter(|it| !given(it.name) && (chosen.is_none() || beside(it.name)));
    out.extend(ungiven.map(|setting| format!("{}=", setting.name)));
    // An operation goes neither with other options nor with flags that were meant for them.
    let open = form.setting_list(spec).all(|it| !given(it.name) || beside(it.name))
        && !Flag::ALL.into_iter().any(|flag| given(flag.word()));
    if chosen.is_none() && open {
        push_words(out, form.operations.iter().flat_map(|it| it.words[0].iter().copied()));
    }
    let flags = chosen.map_or(form.flags, |operation| operation.flags);
    push_words(out, flags.iter().copied().map(Flag::word).filter(|flag| !given(flag)));
    if form.filter && !given("WHERE") {
        push_words(out, ["WHERE"]);
    }
}
