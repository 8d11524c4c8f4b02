//! The language as HTTP operations: LIST, DESCRIBE, CREATE, ALTER and DROP of each object type, from the language's table.
//!
//! Each request becomes the statement it stands for and goes the same way: one grammar, one check of who may what. Never carries
//! anything out itself.

use super::access::Caller;
use super::service::{Shared, json_body, refuse};
use super::statement::{self, Manner, Output, Reply};
use super::stream::pieces;
use super::{DateStyle, Form};
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use axum::routing::{MethodRouter, delete, get, patch, post};
use cellcli::table::{Kind, OBJECTS, ObjectSpec};
use cellcli::{Verb, parse_one};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// The verbs on objects, in the order of the document.
pub(super) const VERBS: [Verb; 5] = [Verb::List, Verb::Describe, Verb::Create, Verb::Alter, Verb::Drop];

/// The path of an object type.
pub(super) fn path(object: &ObjectSpec, verb: Verb) -> String {
    let word = object.word.to_ascii_lowercase();
    if verb == Verb::Describe { format!("/v1/{word}/attributes") } else { format!("/v1/{word}") }
}

/// Every operation the table has.
pub(super) fn routes() -> Router<Shared> {
    let mut router = Router::new();
    for object in OBJECTS {
        for verb in VERBS.into_iter().filter(|verb| object.takes(*verb)) {
            router = router.route(&path(object, verb), handler(object, verb));
        }
    }
    router
}

fn handler(object: &'static ObjectSpec, verb: Verb) -> MethodRouter<Shared> {
    let list = move |State(shared): State<Shared>, caller: Caller, query: Result<Query<ListQuery>, _>| async move {
        match query {
            Ok(Query(query)) => run(shared, caller, &list_text(object, &query), verb, object).await,
            Err(error) => {
                let error: axum::extract::rejection::QueryRejection = error;
                refuse(StatusCode::BAD_REQUEST, &error.body_text())
            }
        }
    };
    let describe = move |State(shared): State<Shared>, caller: Caller| async move {
        run(shared, caller, &format!("DESCRIBE {}", object.word), verb, object).await
    };
    let change = move |State(shared): State<Shared>, caller: Caller, headers: HeaderMap, body: Body| async move {
        match json_body::<ChangeBody>(&shared, &caller, &headers, body).await {
            Ok((body, _question)) => match change_text(verb, object, &body) {
                Ok(text) => run(shared, caller, &text, verb, object).await,
                Err(what) => refuse(StatusCode::BAD_REQUEST, &what),
            },
            Err(refused) => refused,
        }
    };
    match verb {
        Verb::List => get(list),
        Verb::Describe => get(describe),
        Verb::Create => post(change),
        Verb::Alter => patch(change),
        Verb::Drop => delete(change),
        _ => unreachable!("{verb:?} is no verb on objects"),
    }
}

/// What LIST may be told.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct ListQuery {
    names: Option<String>,
    attributes: Option<String>,
    r#where: Option<String>,
    order_by: Option<String>,
    limit: Option<u32>,
    over: Option<String>,
    memory: bool,
}

/// What is there is a value: a null that stands for nothing could stand for a mistake.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// What CREATE, ALTER and DROP may be told.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ChangeBody {
    /// The objects by name.
    names: Vec<String>,
    /// All of them; of one disk type.
    #[serde(deserialize_with = "given")]
    all: Option<All>,
    /// Options and attributes.
    settings: BTreeMap<String, Scalar>,
    /// FLUSH, CANCEL FLUSH and so on.
    #[serde(deserialize_with = "given")]
    operation: Option<String>,
    /// FORCE, NOWAIT.
    flags: Vec<String>,
    /// A condition.
    #[serde(deserialize_with = "given")]
    r#where: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "AllGiven")]
enum All {
    Every,
    FlashDisk,
    HardDisk,
}

/// As it is written: `true` says what `"ALL"` says.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AllGiven {
    Flag(bool),
    Word(String),
}

impl TryFrom<AllGiven> for All {
    type Error = &'static str;

    fn try_from(given: AllGiven) -> Result<All, &'static str> {
        match given {
            AllGiven::Flag(true) => Ok(All::Every),
            AllGiven::Word(word) if word == "ALL" => Ok(All::Every),
            AllGiven::Word(word) if word == "FLASHDISK" => Ok(All::FlashDisk),
            AllGiven::Word(word) if word == "HARDDISK" => Ok(All::HardDisk),
            AllGiven::Flag(false) | AllGiven::Word(_) => {
                Err("all takes true, \"ALL\", \"FLASHDISK\" or \"HARDDISK\"; leave it out to name objects")
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Number(u64),
    Text(String),
    List(Vec<String>),
}

/// Text in quotes; a quote inside is written twice.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn list_text(object: &ObjectSpec, query: &ListQuery) -> String {
    // `?where=` is a form with nothing in it.
    let filled = |text: &'_ Option<String>| text.clone().filter(|text| !text.trim().is_empty());
    let mut text = format!("LIST {}", object.word);
    if let Some(names) = filled(&query.names) {
        let names: Vec<String> = names.split(',').map(|name| quoted(name.trim())).collect();
        text.push_str(&format!(" {}", names.join(", ")));
    }
    text.push_str(&format!(" ATTRIBUTES {}", filled(&query.attributes).as_deref().unwrap_or("ALL")));
    for (clause, words) in [("WHERE", &query.r#where), ("ORDER BY", &query.order_by)] {
        if let Some(words) = filled(words) {
            text.push_str(&format!(" {clause} {words}"));
        }
    }
    if let Some(limit) = query.limit {
        text.push_str(&format!(" LIMIT {limit}"));
    }
    if let Some(over) = filled(&query.over) {
        text.push_str(&format!(" OVER {over}"));
    }
    if query.memory {
        text.push_str(" MEMORY");
    }
    text
}

fn change_text(verb: Verb, object: &ObjectSpec, body: &ChangeBody) -> Result<String, String> {
    let mut text = format!("{} {}", verb.word(), object.word);
    match (&body.all, &body.names[..]) {
        (None, []) => {}
        (None, names) => {
            let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            text.push_str(&format!(" {}", names.join(", ")));
        }
        (Some(all), []) => text.push_str(match all {
            All::Every => " ALL",
            All::FlashDisk => " ALL FLASHDISK",
            All::HardDisk => " ALL HARDDISK",
        }),
        (Some(_), _) => return Err("names and all exclude one another".to_owned()),
    }
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == ' ');
    for (index, (name, value)) in body.settings.iter().enumerate() {
        if !word(name) || name.contains(' ') {
            return Err(format!("settings: {name:?} is no name of an option"));
        }
        let kind = object.forms_of(verb).find_map(|form| form.setting(object, name)).map(|(_, kind)| kind);
        let value = match (value, kind) {
            // An option the type does not have is the grammar's to refuse.
            (Scalar::Number(number), None | Some(Kind::Number | Kind::Size)) => number.to_string(),
            (Scalar::List(names), None | Some(Kind::List)) => quoted(&names.join(",")),
            (Scalar::Text(text), kind) if kind != Some(Kind::Number) => quoted(text),
            (_, kind) => {
                let wanted = kind.map_or("value", Kind::word);
                return Err(format!("settings: {name} takes a {wanted}, and this is of another type"));
            }
        };
        text.push_str(&format!("{} {name}={value}", if index == 0 { "" } else { "," }));
    }
    if let Some(condition) = &body.r#where {
        text.push_str(&format!(" WHERE {condition}"));
    }
    for words in body.operation.iter().chain(&body.flags) {
        if !word(words) {
            return Err(format!("{words:?} is neither an operation nor a flag"));
        }
        text.push_str(&format!(" {words}"));
    }
    Ok(text)
}

const JSON: &str = "application/json";

/// What a change answers.
#[derive(Serialize)]
struct Changed<'a> {
    output: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

async fn run(shared: Shared, caller: Caller, text: &str, verb: Verb, object: &ObjectSpec) -> HttpResponse {
    let command = match parse_one(text) {
        Ok(command) => command,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.render(text)),
    };
    // A condition that is more than one would make another statement of it; the grammar has none, and this holds if it gets one.
    if command.verb() != verb {
        return refuse(StatusCode::BAD_REQUEST, &format!("not a {} of {}", verb.word(), object.word));
    }
    let manner = Manner { form: Form::Json, dates: DateStyle::Standard };
    let Reply { output, error, is_busy } = statement::run_one(&shared.context, &caller, command, manner, false).await;
    let status = match &error {
        _ if is_busy => StatusCode::SERVICE_UNAVAILABLE,
        Some(error) => status_of(error),
        None => StatusCode::OK,
    };
    match output {
        Output::Rows(rows, held) => pieces(JSON, rows, held).await,
        Output::Text(text) if matches!(verb, Verb::List | Verb::Describe) && error.is_none() => {
            (status, [(header::CONTENT_TYPE, JSON)], text).into_response()
        }
        Output::Text(output) => {
            (status, axum::Json(Changed { output: &output, error: error.as_deref() })).into_response()
        }
    }
}

/// The status that tells what a `CELL-NNNNN` tells.
fn status_of(error: &str) -> StatusCode {
    let number = error.strip_prefix("CELL-").and_then(|rest| rest.get(..5)?.parse::<u16>().ok());
    match number {
        Some(9007) => StatusCode::NOT_FOUND,
        Some(9008 | 9009) => StatusCode::CONFLICT,
        Some(9010) => StatusCode::NOT_IMPLEMENTED,
        Some(9011 | 9014) => StatusCode::FORBIDDEN,
        Some(9012) => StatusCode::INSUFFICIENT_STORAGE,
        Some(9013) | None => StatusCode::INTERNAL_SERVER_ERROR,
        Some(_) => StatusCode::BAD_REQUEST,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use cellcli::{ErrorCode, ObjectType};

    fn text(verb: Verb, object: ObjectType, body: &str) -> Result<String, String> {
        change_text(verb, object.spec(), &serde_json::from_str(body).map_err(|error| error.to_string())?)
    }

    #[test]
    fn statements_of_changes() {
        for (verb, object, body, expected) in [
            (
                Verb::Create,
                ObjectType::GridDisk,
                r#"{"names":["a"],"settings":{"celldisk":"CD_00_c","size":"24M","comment":"it's"}}"#,
                "CREATE GRIDDISK 'a' celldisk='CD_00_c', comment='it''s', size='24M'",
            ),
            (
                Verb::Alter,
                ObjectType::FlashCache,
                r#"{"all":"ALL","operation":"CANCEL FLUSH"}"#,
                "ALTER FLASHCACHE ALL CANCEL FLUSH",
            ),
            (Verb::Alter, ObjectType::FlashCache, r#"{"all":true,"operation":"FLUSH"}"#, "ALTER FLASHCACHE ALL FLUSH"),
            (Verb::Drop, ObjectType::GridDisk, r#"{"names":["a"],"flags":["FORCE"]}"#, "DROP GRIDDISK 'a' FORCE"),
            (Verb::Drop, ObjectType::FlashCache, "{}", "DROP FLASHCACHE"),
        ] {
            let text = text(verb, object, body).unwrap();
            assert_eq!(text, expected);
            assert_eq!(parse_one(&text).unwrap().verb(), verb);
        }
    }

    #[test]
    fn nothing_gets_past_the_quotes() {
        for body in [
            r#"{"operation":"FLUSH; DROP FLASHCACHE"}"#,
            r#"{"flags":["FORCE;"]}"#,
            r#"{"settings":{"a=1, b":"x"}}"#,
            r#"{"settings":{"":"x"}}"#,
            r#"{"colour":1}"#,
            r#"{"names":["a"],"all":"ALL"}"#,
            r#"{"all":null}"#,
            r#"{"all":false}"#,
            r#"{"all":"all"}"#,
            r#"{"settings":{"comment":1}}"#,
            r#"{"settings":{"seconds":"1"}}"#,
            r#"{"settings":{"size":["1"]}}"#,
            r#"{"where":null,"operation":"FLUSH"}"#,
        ] {
            assert!(text(Verb::Alter, ObjectType::GridDisk, body).is_err(), "{body}");
        }
        let name = text(Verb::Drop, ObjectType::GridDisk, r#"{"names":["a' FORCE; drop flashcache; --"]}"#).unwrap();
        let cellcli::Command::Drop(change) = parse_one(&name).unwrap() else { panic!("a DROP") };
        assert_eq!(change.target, cellcli::command::Target::Names(vec!["a' FORCE; drop flashcache; --".to_owned()]));
        let query = ListQuery { r#where: Some("name='a'; drop flashcache".to_owned()), ..ListQuery::default() };
        assert!(parse_one(&list_text(ObjectType::Cell.spec(), &query)).is_err());
    }

    #[test]
    fn statements_of_lists() {
        let text = |query: &str| {
            let query: Query<ListQuery> =
                Query::try_from_uri(&format!("http://cell/?{query}").parse().unwrap()).unwrap();
            list_text(ObjectType::MetricHistory.spec(), &query.0)
        };
        for (query, expected) in [
            ("", "LIST METRICHISTORY ATTRIBUTES ALL"),
            ("memory=false&where=", "LIST METRICHISTORY ATTRIBUTES ALL"),
            (
                "names=a,b&attributes=name&where=age%3C60&orderBy=name&limit=2&over=5%20MAX&memory=true",
                "LIST METRICHISTORY 'a', 'b' ATTRIBUTES name WHERE age<60 ORDER BY name LIMIT 2 OVER 5 MAX MEMORY",
            ),
        ] {
            let text = text(query);
            assert_eq!(text, expected);
            let cellcli::Command::List(list) = parse_one(&text).unwrap() else { panic!("a LIST") };
            assert_eq!(list.memory, query.contains("memory=true"), "{query}");
        }
        // Objects without readings have none in memory.
        let query = ListQuery { memory: true, ..ListQuery::default() };
        assert!(parse_one(&list_text(ObjectType::GridDisk.spec(), &query)).is_err());
    }

    #[test]
    fn every_code_has_a_status() {
        let of = |code: ErrorCode| status_of(&cellcli::failure_text(code, "x", None)).as_u16();
        let all: Vec<u16> = ErrorCode::ALL.iter().map(|code| of(*code)).collect();
        assert_eq!(all, [400, 400, 400, 400, 400, 400, 400, 400, 404, 409, 409, 501, 403, 507, 500, 403]);
    }
}
