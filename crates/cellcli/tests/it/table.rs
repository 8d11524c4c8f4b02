//! The table is consistent with itself. Goal: a wrong row fails here, not in a session. Method: every row is walked and each
//! promise that the parser, help or formatter relies on is checked.

use std::collections::BTreeSet;

use cellcli::command::Flag;
use cellcli::error::ErrorCode;
use cellcli::table::{Attribute, Form, Kind, OBJECTS, ObjectSpec, TargetKind, VERBS, Verb};
use cellcli::{ObjectType, TEXT_BYTES_MAX, parse_one};

/// Every variant; the match makes the compiler ask for new ones.
fn all_object_types() -> Vec<ObjectType> {
    use ObjectType::{
        ActiveRequest, AlertDefinition, AlertHistory, Cell, CellDisk, Database, FlashCache, FlashCacheContent,
        FlashLog, GridDisk, IormPlan, IormProfile, Lun, MetricCurrent, MetricDefinition, MetricHistory, PhysicalDisk,
        Pin, Threshold,
    };
    let mut all =
        vec![Cell, CellDisk, Database, IormPlan, GridDisk, FlashCache, FlashLog, MetricDefinition, MetricCurrent, Pin];
    all.extend([MetricHistory, Threshold, AlertDefinition, AlertHistory, PhysicalDisk, Lun]);
    all.extend([ActiveRequest, FlashCacheContent, IormProfile]);
    for object in &all {
        match object {
            Cell | CellDisk | Database | IormPlan | GridDisk | FlashCache | FlashLog | MetricDefinition
            | MetricCurrent | Pin => {}
            ActiveRequest | FlashCacheContent | IormProfile => {}
            MetricHistory | Threshold | AlertDefinition | AlertHistory | PhysicalDisk | Lun => {}
        }
    }
    all
}

fn is_distinct<T: Ord>(items: impl Iterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.into_iter().all(|item| seen.insert(item))
}

#[test]
fn every_object_type_has_one_row() {
    let all = all_object_types();
    assert_eq!(all.len(), OBJECTS.len());
    for object in all {
        assert_eq!(object.spec().object, object);
        assert_eq!(ObjectType::from_word(&object.spec().word.to_lowercase()), Some(object));
    }
    assert!(is_distinct(OBJECTS.iter().map(|spec| spec.word)));
}

#[test]
fn verbs_are_distinct_and_on_objects_where_objects_take_them() {
    assert!(is_distinct(VERBS.iter().flat_map(|spec| spec.words)));
    for spec in VERBS {
        assert_eq!(spec.verb.word(), spec.words[0]);
        assert_eq!(spec.on_objects, OBJECTS.iter().any(|object| object.takes(spec.verb)), "{:?}", spec.verb);
        assert!(spec.on_objects || !spec.syntax.is_empty() || matches!(spec.verb, Verb::Exit | Verb::Quit));
    }
    // What the vendor's monitor user may do, and QUIT as EXIT.
    let read_only: Vec<&str> = VERBS.iter().filter(|spec| spec.read_only).map(|spec| spec.words[0]).collect();
    assert_eq!(read_only, ["DESCRIBE", "EXIT", "HELP", "LIST", "QUIT", "REMARK", "SET", "START"]);
}

#[test]
fn attributes_are_distinct_words_with_name_first() {
    for spec in OBJECTS {
        assert!(is_distinct(spec.attributes.iter().map(|attribute| attribute.name.to_lowercase())), "{}", spec.word);
        assert_eq!(spec.attributes[0].name, "name", "{}", spec.word);
        assert!(spec.default_columns().next().is_some_and(|first| first.name == "name"), "{}", spec.word);
        for attribute in spec.attributes {
            check_attribute(spec, attribute);
        }
    }
}

fn check_attribute(spec: &ObjectSpec, attribute: &Attribute) {
    let at = format!("{}.{}", spec.word, attribute.name);
    assert!(attribute.name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{at}");
    assert!(!attribute.about.is_empty() && !attribute.about.ends_with('.'), "{at}");
    assert!(!(attribute.hidden && attribute.default_column), "{at} is hidden and a default column");
    assert!(!(attribute.hidden && attribute.modifiable), "{at}: DESCRIBE shows one mark only");
    assert!(!(attribute.modifiable && attribute.kind == Kind::Measure), "{at}: a metric value cannot be set");
    if let Kind::Status(words) = attribute.kind {
        assert!(!words.is_empty() && is_distinct(words.iter().map(|word| word.to_lowercase())), "{at}");
    }
    assert_eq!(spec.attribute(&attribute.name.to_uppercase()).map(|it| it.name), Some(attribute.name), "{at}");
}

#[test]
fn forms_can_be_told_apart_and_name_what_exists() {
    for spec in OBJECTS {
        for form in spec.forms {
            check_form(spec, form);
        }
        // A verb and a target kind select one form.
        let class = |form: &Form| match form.target {
            TargetKind::Whole => 0,
            TargetKind::All | TargetKind::AllOfDiskType => 1,
            TargetKind::Name | TargetKind::Names => 2,
        };
        assert!(is_distinct(spec.forms.iter().map(|form| (form.verb, class(form)))), "{}", spec.word);
    }
}

fn check_form(spec: &'static ObjectSpec, form: &'static Form) {
    let at = format!("{:?} {} {:?}", form.verb, spec.word, form.target);
    assert!(matches!(form.verb, Verb::Create | Verb::Alter | Verb::Drop), "{at}");
    assert!(!form.about.is_empty() && !form.about.ends_with('.'), "{at}");
    // Panics when an option is called an attribute and is none.
    let settings: Vec<_> = form.setting_list(spec).collect();
    assert!(is_distinct(settings.iter().map(|setting| setting.name.to_lowercase())), "{at}");
    for setting in &settings {
        assert_ne!(setting.kind, Kind::Measure, "{at}.{}", setting.name);
        for other in setting.needs.iter().chain(form.beside_operation) {
            assert!(settings.iter().any(|it| it.name == *other), "{at}: no option {other}");
        }
        // Otherwise the statement could not be written at all.
        assert!(!setting.required || form.operations.is_empty(), "{at}: required option beside operations");
    }
    assert!(form.beside_operation.is_empty() || !form.operations.is_empty(), "{at}");
    assert!(is_distinct(form.operations.iter().flat_map(|operation| operation.words[0])), "{at}: first words");
    for operation in form.operations {
        assert!(!operation.words.is_empty() && !operation.about.is_empty(), "{at}");
        for word in operation.words[0] {
            assert!(form.setting(spec, word).is_none(), "{at}: {word} is an option and an operation");
            assert!(!["FORCE", "NOWAIT", "WHERE", "ALL"].contains(word), "{at}");
        }
        check_operation_text(spec, form, operation.words, operation.build);
        assert!(operation.flags.iter().all(|flag| matches!(flag, Flag::Force | Flag::NoWait)));
    }
    assert!(
        !form.needs_change || !settings.is_empty() || !form.operations.is_empty(),
        "{at}: nothing could be changed"
    );
}

/// What `build` makes of each choice of words prints as those very words.
fn check_operation_text(
    spec: &ObjectSpec,
    form: &Form,
    words: &[&[&str]],
    build: fn(&[usize]) -> cellcli::command::Operation,
) {
    let mut choices: Vec<Vec<usize>> = vec![Vec::new()];
    for alternatives in words {
        choices = choices
            .iter()
            .flat_map(|chosen| (0..alternatives.len()).map(move |index| [chosen.as_slice(), &[index]].concat()))
            .collect();
    }
    for chosen in choices {
        let written: Vec<&str> = words.iter().zip(&chosen).map(|(alternatives, index)| alternatives[*index]).collect();
        assert_eq!(build(&chosen).to_string(), written.join(" "), "{:?} {}", form.verb, spec.word);
    }
}

/// Attributes of the first floor that are ours and not the vendor's, so that the mark is never forgotten or misplaced.
#[test]
fn own_attributes_are_marked() {
    let own: Vec<String> = OBJECTS
        .iter()
        .flat_map(|spec| spec.attributes.iter().filter(|it| it.own).map(|it| format!("{}.{}", spec.word, it.name)))
        .collect();
    assert_eq!(
        own,
        [
            "CELL.instanceStamp",
            "CELLDISK.deviceClass",
            "CELLDISK.deviceClassSource",
            "CELLDISK.deviceId",
            "CELLDISK.truePageSize",
            "DATABASE.flashCache",
            "DATABASE.flashCacheUsed",
            "DATABASE.flashLog",
            "DATABASE.profile",
            "FLASHLOG.outlierLimit",
            "GRIDDISK.cachingMode",
            "GRIDDISK.fillStrategy",
            "GRIDDISK.flashLogMode",
            "GRIDDISK.frozenFor",
            "GRIDDISK.purpose",
            "GRIDDISK.readOnly",
            "GRIDDISK.staleAsOf",
            "IORMPROFILE.databases",
            "METRICCURRENT.age",
            "METRICCURRENT.description",
            "METRICCURRENT.unit",
            "PIN.cachingPolicy",
            "PIN.length",
            "PIN.offset",
            "METRICHISTORY.age",
            "METRICHISTORY.description",
            "METRICHISTORY.unit",
            "ALERTHISTORY.age",
            "ALERTHISTORY.definition",
            "ALERTHISTORY.description",
            "ALERTHISTORY.unit",
            "PHYSICALDISK.cellDisk",
            "PHYSICALDISK.deviceClass",
            "PHYSICALDISK.flushCount",
            "PHYSICALDISK.requestsInFlight",
            "PHYSICALDISK.rotational",
            "PHYSICALDISK.truePageSize",
            "PHYSICALDISK.volatileCache",
            "ACTIVEREQUEST.age",
            "FLASHCACHECONTENT.length",
            "FLASHCACHECONTENT.offset",
        ]
    );
}

/// Scripts test for `CELL-0`; numbers are given out once.
#[test]
fn codes_are_distinct_and_keep_their_prefix() {
    assert!(is_distinct(ErrorCode::ALL.iter().map(|code| code.number())));
    for code in ErrorCode::ALL {
        assert!(code.to_string().starts_with("CELL-0"), "{code}");
    }
    assert_eq!(ErrorCode::InvalidSyntax.to_string(), "CELL-01504");
}

#[test]
fn text_beyond_the_limit_is_refused_whole() {
    let text = "list cell\n".repeat(TEXT_BYTES_MAX / 10 + 1);
    let error = parse_one(&text).map_err(|error| error.kind.code());
    assert_eq!(error, Err(ErrorCode::TooLarge));
    assert_eq!(cellcli::parse_script(&text).len(), 1);
}
