//! The OpenAPI document of the admin protocol, made from the language's table: an operation for each verb an object type takes.
//!
//! Never lists what the router does not have: both walk the same table.

use super::operations::{VERBS, path};
use super::recording::{Recordable, RecordedRequest, RecordedWrite};
use cellcli::table::{Attribute, Form, Kind, OBJECTS, ObjectSpec, OperationSpec, SettingView, TargetKind};
use cellcli::{ObjectType, Verb};
use serde_json::{Map, Value, json};

/// The whole document.
pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    let mut schemas: Map<String, Value> = Map::new();
    for object in OBJECTS {
        schemas.insert(object.title.replace(' ', ""), row_schema(object));
        for verb in VERBS.into_iter().filter(|verb| object.takes(*verb)) {
            let item = paths.entry(path(object, verb)).or_insert_with(|| json!({}));
            item[method(verb)] = operation(object, verb);
        }
    }
    paths.insert("/v1/cellcli".to_owned(), json!({"post": statements()}));
    paths.insert(super::held::PATH.to_owned(), json!({"post": held()}));
    for (path, operation) in recordings() {
        paths.insert(path.to_owned(), json!({"post": operation}));
    }
    paths.insert("/v1/status".to_owned(), json!({"get": get("status", "what is served", json!({"type": "object"}))}));
    let this = get("openapi", "this document", json!({"type": "object"}));
    paths.insert("/v1/openapi.json".to_owned(), json!({"get": this}));
    let mut metrics = get("metrics", "metrics for Prometheus", json!({}));
    metrics["responses"]["200"]["content"] = json!({
        "text/plain": {"schema": {"type": "string"}},
        "application/openmetrics-text": {"schema": {"type": "string"}},
    });
    paths.insert("/metrics".to_owned(), json!({"get": metrics}));
    schemas.insert("Refused".to_owned(), refused_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Flashcell administration",
            "version": crate::VERSION,
            "description": "CellCLI as operations. Over the unix socket the kernel tells who asks; over TCP a client certificate or \
                            a bearer token does. Roles: administrator, monitor (changes nothing), database (sees its own grid disks).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
        // None of them is the unix socket.
        "security": [{"certificate": []}, {"token": []}, {}],
    })
}

fn method(verb: Verb) -> &'static str {
    match verb {
        Verb::Create => "post",
        Verb::Alter => "patch",
        Verb::Drop => "delete",
        _ => "get",
    }
}

/// `listGriddisk`.
fn operation_id(object: &ObjectSpec, verb: Verb) -> String {
    let word = object.word.to_ascii_lowercase();
    let (first, rest) = word.split_at(1);
    format!("{}{}{rest}", verb.word().to_ascii_lowercase(), first.to_ascii_uppercase())
}

fn operation(object: &ObjectSpec, verb: Verb) -> Value {
    let id = operation_id(object, verb);
    let reference = format!("#/components/schemas/{}", object.title.replace(' ', ""));
    let mut operation = match verb {
        Verb::List => {
            let mut list = get(&id, object.about, json!({"type": "array", "items": {"$ref": reference}}));
            list["parameters"] = list_parameters(object);
            list
        }
        Verb::Describe => get(&id, "the attributes of the type", json!({"type": "array", "items": {"type": "object"}})),
        _ => {
            let about: Vec<&str> = object.forms_of(verb).map(|form| form.about).collect();
            let answer = json!({
                "type": "object",
                "properties": {"output": {"type": "string"}, "error": {"type": "string"}},
                "required": ["output"],
            });
            let mut change = get(&id, &about.join("; or "), answer);
            let schema = body_schema(object, verb);
            change["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
            change
        }
    };
    operation["tags"] = json!([object.word]);
    operation
}

fn get(id: &str, about: &str, answer: Value) -> Value {
    let refused = json!({
        "description": "not carried out",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refused"}}},
    });
    let mut responses = Map::new();
    responses
        .insert("200".to_owned(), json!({"description": "done", "content": {"application/json": {"schema": answer}}}));
    for status in ["400", "401", "403", "404", "408", "409", "413", "415", "500", "501", "503", "507"] {
        responses.insert(status.to_owned(), refused.clone());
    }
    json!({"operationId": id, "summary": about, "responses": responses})
}

fn statements() -> Value {
    let answer = json!({
        "type": "object",
        "properties": {"results": {"type": "array", "items": {
            "type": "object",
            "properties": {"output": {"type": "string"}, "error": {"type": ["string", "null"]}},
        }}},
        "required": ["results"],
    });
    let mut operation = get("cellcli", "statements as at the prompt, one after the other", answer);
    operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": {
        "type": "object",
        "additionalProperties": false,
        "required": ["text"],
        "properties": {
            "text": {"type": "string"},
            "monitor": {"type": "boolean", "default": false, "description": "refuse what changes anything"},
            "form": {"type": "string", "enum": ["text", "json", "xml"], "default": "text"},
            "dates": {"type": "string", "enum": ["standard", "local"], "default": "standard"},
        },
    }}}});
    operation
}

/// What is recorded, by path.
fn recordings() -> [(&'static str, Value); 2] {
    let number = json!({"type": "integer", "minimum": 0});
    let name = json!({"type": "string"});
    let writes = json!({
        "time_ns": number, "latency_ns": number, "grid_disk": name, "database": name,
        "outcome": {"type": "string", "enum": ["disk-first", "flash-first", "failed"]},
    });
    let requests = json!({
        "time_ns": number, "latency_ns": {"type": ["integer", "null"], "minimum": 0},
        "grid_disk": name, "database": name, "offset_bytes": number, "bytes": number,
        "request": {"type": "string", "enum": ["read", "write", "flush", "trim", "zero", "prefetch"]},
    });
    [
        (RecordedWrite::PATH, recording("redo_record", "redo writes answered since the question before", &writes)),
        (RecordedRequest::PATH, recording("trace_record", "requests begun since the question before", &requests)),
    ]
}

fn recording(id: &str, summary: &str, properties: &Value) -> Value {
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    let answer = json!({
        "type": "object",
        "properties": {
            "next": {"type": "integer", "description": "ask with this as `after` the next time"},
            "missed": {"type": "integer", "description": "so many came too fast to be kept"},
            "recorded": {"type": "array", "items": {"type": "object", "properties": properties, "required": required}},
        },
        "required": ["next", "missed", "recorded"],
    });
    let mut operation = get(id, summary, answer);
    operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": {
        "type": "object",
        "additionalProperties": false,
        "properties": {"after": {"type": ["integer", "null"], "minimum": 0, "maximum": u64::MAX,
            "description": "`next` of the answer before; without it recording begins"},
            "last": {"type": "boolean", "default": false,
            "description": "nothing is asked after this: requests under way come too, without a latency, in place of being waited for"}},
    }}}});
    operation
}

fn held() -> Value {
    let bytes = json!({"type": "integer", "minimum": 0});
    let since_start = |what: &str| json!({"type": "number", "minimum": 0, "description": format!("{what}, since the cell was started")});
    let answer = json!({
        "type": "object",
        "properties": {
            "size_bytes": {"type": "integer", "description": "the size of the grid disk"},
            "held": {"type": "array", "description": "of each range", "items": {
                "type": "object",
                "properties": {
                    "cached_bytes": bytes, "kept_bytes": bytes, "dirty_bytes": bytes,
                    "reads": since_start("reads of clients"),
                    "hits": since_start("those that flash served whole"),
                    "saved_ms": since_start("milliseconds that the hits have saved"),
                },
                "required": ["cached_bytes", "kept_bytes", "dirty_bytes", "reads", "hits", "saved_ms"],
            }},
        },
        "required": ["size_bytes", "held"],
    });
    let mut operation = get("flashcache_held", "what of ranges of a grid disk is on flash", answer);
    let number = json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
    operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": {
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "grid_disk": {"type": "string"},
            "ranges": {"type": "array", "maxItems": super::held::RANGES_MAX,
                "description": format!("offset and length of each, bytes; {} GiB in all", super::held::BYTES_MAX >> 30),
                "items": {"type": "array", "prefixItems": [number, number], "items": number, "minItems": 2, "maxItems": 2}},
        },
        "required": ["grid_disk", "ranges"],
    }}}});
    operation
}

fn refused_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "error": {"type": "string", "description": "CELL-NNNNN: text, perhaps with a line `hint: ...`"},
            "output": {"type": "string", "description": "what was done before it failed"},
        },
        "required": ["error"],
    })
}

fn list_parameters(object: &ObjectSpec) -> Value {
    let any = object.attributes.iter().map(|attribute| attribute.name).collect::<Vec<_>>().join("|");
    let text = |name: &str, about: &str, schema: Value| json!({"name": name, "in": "query", "description": about, "schema": schema});
    let pattern = |pattern: String| json!({"type": "string", "pattern": pattern});
    let order = format!("({any})( ASC| DESC)?");
    let mut all = vec![
        text("names", "these objects, separated by commas", pattern(format!("^({NAME}(,{NAME})*)?$"))),
        text("attributes", "these attributes; else all", pattern(format!("^(({any})(,({any}))*)?$"))),
        text("where", "a condition, as in LIST ... WHERE: name='a' AND size>1G", json!({"type": "string"})),
        text("orderBy", "attributes, each with ASC or DESC", pattern(format!("^({order}(,{order})*)?$"))),
        text("limit", "at most so many", json!({"type": "integer", "minimum": 0, "maximum": u32::MAX})),
    ];
    if object.object == ObjectType::MetricHistory {
        let about = "one row for so many minutes, with the mean, the highest and the lowest of their values";
        all.push(text("over", about, pattern("^([1-9][0-9]{0,4}( (AVG|MAX|MIN))?)?$".to_owned())));
        let about = "the readings of the last minutes, which memory holds, whatever has become of the store";
        all.push(text("memory", about, json!({"type": "boolean"})));
    }
    Value::Array(all)
}

/// What a name looks like in this document; the language takes more.
const NAME: &str = "[A-Za-z0-9_.-]{1,30}";

fn kind_schema(kind: Kind) -> Value {
    match kind {
        Kind::Number => json!({"type": ["integer", "null"]}),
        Kind::Size => json!({"type": ["integer", "null"], "description": "bytes"}),
        Kind::DateTime => json!({"type": ["integer", "null"], "description": "milliseconds since 1970"}),
        Kind::Measure => json!({"type": ["number", "null"]}),
        Kind::List => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        Kind::Text | Kind::Name | Kind::Reference(_) | Kind::Status(_) | Kind::Directives => {
            json!({"type": ["string", "null"]})
        }
    }
}

fn row_schema(object: &ObjectSpec) -> Value {
    let property = |attribute: &Attribute| {
        let mut schema = kind_schema(attribute.kind);
        let unit = schema["description"].as_str().map(|unit| format!(", in {unit}")).unwrap_or_default();
        schema["description"] = json!(format!("{}{unit}", attribute.about));
        (attribute.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = object.attributes.iter().map(property).collect();
    json!({"type": "object", "description": object.about, "properties": properties})
}

/// The body of a change: what one of the verb's forms takes.
fn body_schema(object: &ObjectSpec, verb: Verb) -> Value {
    let mut forms: Vec<Value> = Vec::new();
    for form in object.forms_of(verb) {
        // An operation stands alone, but for a few options; without one, there are the others.
        forms.push(form_schema(object, form, None));
        forms.extend(form.operations.iter().map(|operation| form_schema(object, form, Some(operation))));
    }
    json!({"anyOf": forms})
}

fn form_schema(object: &ObjectSpec, form: &Form, operation: Option<&OperationSpec>) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    let mut add = |name: &str, schema: Value, needed: bool| {
        properties.insert(name.to_owned(), schema);
        if needed {
            required.push(name.to_owned());
        }
    };
    let names = |most: usize| json!({"type": "array", "items": {"type": "string", "pattern": format!("^{NAME}$")}, "minItems": 1, "maxItems": most});
    match form.target {
        TargetKind::Whole => {}
        TargetKind::All => add("all", json!({"enum": ["ALL", true]}), true),
        TargetKind::AllOfDiskType => add("all", json!({"enum": ["ALL", true, "FLASHDISK", "HARDDISK"]}), true),
        TargetKind::Name => add("names", names(1), true),
        TargetKind::Names => add("names", names(64), true),
    }
    let is_beside = |name: &str| operation.is_none() || form.beside_operation.contains(&name);
    let settings: Vec<SettingView> = form.setting_list(object).filter(|setting| is_beside(setting.name)).collect();
    if !settings.is_empty() {
        let needed: Vec<&str> = settings.iter().filter(|setting| setting.required).map(|it| it.name).collect();
        let change = form.needs_change && operation.is_none();
        let schemas: Map<String, Value> =
            settings.iter().map(|setting| (setting.name.to_owned(), setting_schema(setting))).collect();
        let others: Map<String, Value> =
            settings.iter().filter_map(|it| Some((it.name.to_owned(), json!([it.needs?])))).collect();
        let schema = json!({
            "type": "object",
            "properties": schemas,
            "required": needed,
            "dependentRequired": others,
            "minProperties": u8::from(change),
            "additionalProperties": false,
        });
        add("settings", schema, change || !needed.is_empty());
    }
    if let Some(operation) = operation {
        add("operation", json!({"type": "string", "enum": runs(operation.words)}), true);
    }
    let flags = operation.map_or(form.flags, |operation| operation.flags);
    if !flags.is_empty() {
        let words: Vec<String> = flags.iter().map(|flag| format!("{flag:?}").to_ascii_uppercase()).collect();
        let one = json!({"type": "string", "enum": words});
        add("flags", json!({"type": "array", "items": one, "uniqueItems": true}), false);
    }
    if form.filter {
        add("where", json!({"type": "string"}), false);
    }
    json!({"type": "object", "description": form.about, "properties": properties, "required": required, "additionalProperties": false})
}

fn setting_schema(setting: &SettingView) -> Value {
    let number = json!({"type": "integer", "minimum": 0, "maximum": u64::MAX});
    let mut schema = match setting.kind {
        Kind::Number => number,
        Kind::Size => json!({"anyOf": [number, {"type": "string", "pattern": "^[1-9][0-9]{0,5}[KMGT]$"}]}),
        Kind::List => json!({"anyOf": [
            {"type": "array", "items": {"type": "string", "pattern": format!("^{NAME}$")}},
            {"type": "string", "description": "separated by commas"},
        ]}),
        Kind::Status(words) => json!({"type": "string", "enum": words}),
        // Empty takes away what the attribute refers to.
        Kind::Reference(_) if !setting.required => json!({"type": "string", "pattern": format!("^({NAME})?$")}),
        Kind::Name | Kind::Reference(_) => json!({"type": "string", "pattern": format!("^{NAME}$")}),
        _ => json!({"type": "string", "pattern": "^[ -~]*$"}),
    };
    schema["description"] = json!(setting.about);
    schema
}

/// Every way to write an operation.
fn runs(words: &[&[&str]]) -> Vec<String> {
    words.iter().fold(vec![String::new()], |runs, alternatives| {
        let longer = |run: &String| {
            let run = run.clone();
            alternatives.iter().map(move |word| format!("{run} {word}").trim().to_owned())
        };
        runs.iter().flat_map(longer).collect()
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn operations() -> BTreeSet<(String, String)> {
        let document = document();
        let mut found = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let new =
                    found.insert((format!("{method} {path}"), operation["operationId"].as_str().unwrap().to_owned()));
                assert!(new && operation["responses"]["200"].is_object());
            }
        }
        found
    }

    #[test]
    fn every_verb_of_every_object_is_an_operation_and_no_other() {
        let mut ids: BTreeSet<String> = operations().into_iter().map(|(_, id)| id).collect();
        let all = ids.len();
        for object in OBJECTS {
            for verb in cellcli::table::VERBS.iter().filter(|spec| spec.on_objects && object.takes(spec.verb)) {
                let id = operation_id(object, verb.verb);
                assert!(ids.remove(&id), "{} {} is no operation", verb.words[0], object.word);
            }
        }
        assert_eq!(
            ids.into_iter().collect::<Vec<_>>(),
            ["cellcli", "flashcache_held", "metrics", "openapi", "redo_record", "status", "trace_record"]
        );
        assert_eq!(all, operations().len(), "ids are unique");
    }

    #[test]
    fn references_lead_somewhere() {
        let document = document();
        let text = document.to_string();
        let mut count = 0;
        for piece in text.split("\"$ref\":\"#").skip(1) {
            let pointer = piece.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
            count += 1;
        }
        assert!(count > 50);
    }

    #[test]
    fn a_body_names_what_the_table_has() {
        let griddisk =
            document()["paths"]["/v1/griddisk"]["patch"]["requestBody"]["content"]["application/json"]["schema"]
                .clone();
        let text = griddisk.to_string();
        for part in ["cachingPolicy", "CANCEL FLUSH", "FREEZE", "FORCE", "FLASHDISK", "\"where\""] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(runs(&[&["A", "B"], &["X"]]), ["A X", "B X"]);
    }
}
