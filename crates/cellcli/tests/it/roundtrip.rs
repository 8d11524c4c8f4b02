//! The parser never panics, and text and commands are two forms of one thing. Method: random text, random runs of the language's
//! own words, and random commands built from the table; each command is printed, parsed and compared.

use cellcli::answer::{Decimal, Timestamp};
use cellcli::command::{
    Aggregate, Change, Comparison, DateFormat, DiskType, Filter, Flag, List, Literal, OVER_MINUTES_MAX, Operation,
    Operator, OrderKey, Over, Projection, Setting, SettingValue, Spool, SpoolMode, Target,
};
use cellcli::table::{Form, Kind, OBJECTS, ObjectSpec, TargetKind, VERBS, Verb};
use cellcli::{Command, ObjectType, parse_one, parse_script};
use proptest::prelude::*;
use proptest::sample::select;

/// Text the language can hold: anything but control characters.
fn text() -> impl Strategy<Value = String> {
    let words: Vec<&str> = words().into_iter().filter(|word| !word.contains(char::is_control)).collect();
    prop_oneof![r"[^\p{Cc}]{0,12}", "[A-Za-z0-9_.'\" -]{0,12}", select(words).prop_map(str::to_owned)]
}

fn name() -> impl Strategy<Value = String> {
    text().prop_filter("a name is not empty", |name| !name.is_empty())
}

/// Every word and symbol of the language.
fn words() -> Vec<&'static str> {
    let mut words = vec![
        ",",
        "=",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "!",
        "(",
        ")",
        ";",
        "\n",
        "-",
        "-\n",
        "'",
        "\"",
        "''",
        "'a b'",
        "\"q'q\"",
        "ALL",
        "WHERE",
        "ATTRIBUTES",
        "DETAIL",
        "ORDER",
        "BY",
        "ASC",
        "DESC",
        "LIMIT",
        "AND",
        "OR",
        "NOT",
        "LIKE",
        "IN",
        "NULL",
        "FORCE",
        "NOWAIT",
        "FLASHDISK",
        "HARDDISK",
        "OFF",
        "ON",
        "5",
        "-5",
        "1.5G",
        "288g",
        "0M",
        "2013-09-12T23:46:14+02:00",
        "'FC.*'",
        "name",
        "'('",
        "@",
        "@f",
        "--",
        "REM",
    ];
    for verb in VERBS {
        words.extend(verb.words);
    }
    for object in OBJECTS {
        words.push(object.word);
        words.extend(object.attributes.iter().map(|attribute| attribute.name));
        for form in object.forms {
            words.extend(form.setting_list(object).map(|setting| setting.name));
            words.extend(form.operations.iter().flat_map(|operation| operation.words).copied().flatten());
        }
    }
    words
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    // From two days after the epoch, so that no offset takes the date before 1970.
    (172_800_000_000_000..9_000_000_000_000_000_000_i64, -1439..1440_i16)
        .prop_map(|(since_epoch_ns, offset)| Timestamp::new(since_epoch_ns, offset))
}

fn decimal() -> impl Strategy<Value = Decimal> {
    r"-?[0-9]{1,20}(\.[0-9]{1,9})?".prop_filter_map("within the limits", |text| Decimal::parse(&text))
}

fn comparison(spec: &'static ObjectSpec) -> impl Strategy<Value = Comparison> {
    let attribute = select(spec.attributes.iter().map(|it| it.name).collect::<Vec<_>>());
    let ordering = prop_oneof![
        Just(Operator::Equal),
        Just(Operator::Less),
        Just(Operator::LessOrEqual),
        Just(Operator::Greater),
        Just(Operator::GreaterOrEqual),
    ];
    let literal = prop_oneof![
        Just(Literal::Null),
        text().prop_map(Literal::Text),
        decimal().prop_map(Literal::Number),
        any::<u64>().prop_map(Literal::Size),
        timestamp().prop_map(Literal::DateTime),
    ];
    let pattern = prop_oneof![
        r"[A-Za-z_ ']{0,8}(\.\*)?(\|x)?".prop_map(Literal::Text),
        decimal().prop_map(Literal::Number),
        any::<u64>().prop_map(Literal::Size),
    ];
    let right = prop_oneof![(ordering, literal), (Just(Operator::Like), pattern)];
    (attribute, any::<bool>(), right).prop_map(|(attribute, negated, (operator, literal))| Comparison {
        attribute,
        negated,
        operator,
        literal,
    })
}

fn filter(spec: &'static ObjectSpec) -> impl Strategy<Value = Filter> {
    comparison(spec).prop_map(Filter::Compare).prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(Filter::And),
            prop::collection::vec(inner, 2..4).prop_map(Filter::Or),
        ]
    })
}

fn over(object: ObjectType) -> impl Strategy<Value = Option<Over>> {
    let aggregates = prop::sample::subsequence(Aggregate::ALL.to_vec(), 0..=Aggregate::ALL.len()).prop_shuffle();
    let over = (1..=OVER_MINUTES_MAX, aggregates).prop_map(|(minutes, aggregates)| Over { minutes, aggregates });
    prop::option::of(over).prop_map(move |over| over.filter(|_| object == ObjectType::MetricHistory))
}

fn list() -> impl Strategy<Value = Command> {
    select(OBJECTS.iter().collect::<Vec<_>>()).prop_flat_map(|spec| {
        let attribute = select(spec.attributes.iter().map(|it| it.name).collect::<Vec<_>>());
        let key =
            (attribute.clone(), any::<bool>()).prop_map(|(attribute, descending)| OrderKey { attribute, descending });
        let projection = prop_oneof![
            Just(Projection::Default),
            Just(Projection::All),
            prop::collection::vec(attribute, 1..4).prop_map(Projection::Attributes),
        ];
        (
            prop::collection::vec(name(), 0..3),
            prop::option::of(filter(spec)),
            projection,
            any::<bool>(),
            prop::collection::vec(key, 0..3),
            prop::option::of(any::<u64>()),
            over(spec.object),
            any::<bool>().prop_map(|memory| memory && spec.object == ObjectType::MetricHistory),
        )
            .prop_map(|(names, filter, projection, detail, order_by, limit, over, memory)| {
                let object = spec.object;
                Command::List(List { object, names, filter, projection, detail, order_by, limit, over, memory })
            })
    })
}

fn setting_value(kind: Kind) -> BoxedStrategy<SettingValue> {
    match kind {
        Kind::Text | Kind::Name | Kind::Reference(_) => text().prop_map(SettingValue::Text).boxed(),
        Kind::Number => any::<u64>().prop_map(SettingValue::Number).boxed(),
        Kind::Size => any::<u64>().prop_map(SettingValue::SizeBytes).boxed(),
        Kind::Status(words) => select(words).prop_map(SettingValue::Choice).boxed(),
        Kind::List => {
            let element = text()
                .prop_map(|text| text.replace(',', "").trim().to_owned())
                .prop_filter("an element is not empty", |text| !text.is_empty());
            prop::collection::vec(element, 0..3).prop_map(SettingValue::List).boxed()
        }
        Kind::DateTime => timestamp().prop_map(SettingValue::DateTime).boxed(),
        Kind::Directives => {
            let pair = ("[a-z]{1,8}", text());
            let directive = prop::collection::vec(pair, 1..3);
            prop::collection::vec(directive, 0..3).prop_map(SettingValue::Directives).boxed()
        }
        Kind::Measure => panic!("the table test forbids options that are metric values"),
    }
}

/// A random subset of the form's options that keeps its promises, in random order.
fn settings(spec: &'static ObjectSpec, form: &'static Form) -> BoxedStrategy<Vec<Setting>> {
    let mut all: BoxedStrategy<Vec<Option<Setting>>> = Just(Vec::new()).boxed();
    for view in form.setting_list(spec) {
        let value = setting_value(view.kind).prop_map(move |value| Setting { name: view.name, value });
        let needed = view.required || view.name == "name";
        let value = value.prop_filter("must be something", move |it| {
            let empty = match &it.value {
                SettingValue::Text(text) => text.is_empty(),
                SettingValue::List(names) => names.is_empty(),
                _ => false,
            };
            !(needed && empty)
        });
        let maybe = if view.required { value.prop_map(Some).boxed() } else { prop::option::of(value).boxed() };
        all = (all, maybe)
            .prop_map(|(mut all, one)| {
                all.push(one);
                all
            })
            .boxed();
    }
    all.prop_map(|all| all.into_iter().flatten().collect::<Vec<_>>())
        .prop_map(move |mut given: Vec<Setting>| {
            let names: Vec<&str> = given.iter().map(|setting| setting.name).collect();
            for view in form.setting_list(spec) {
                if view.needs.is_some_and(|other| !names.contains(&other)) {
                    given.retain(|setting| setting.name != view.name);
                }
            }
            given
        })
        .prop_shuffle()
        .boxed()
}

fn target(kind: TargetKind) -> BoxedStrategy<Target> {
    let disk_type = prop_oneof![Just(DiskType::FlashDisk), Just(DiskType::HardDisk)];
    match kind {
        TargetKind::Whole => Just(Target::Whole).boxed(),
        TargetKind::All => Just(Target::All(None)).boxed(),
        TargetKind::AllOfDiskType => prop::option::of(disk_type).prop_map(Target::All).boxed(),
        TargetKind::Name => name().prop_map(|name| Target::Names(vec![name])).boxed(),
        TargetKind::Names => prop::collection::vec(name(), 1..4).prop_map(Target::Names).boxed(),
    }
}

/// An operation of the form with the flags it takes, or none with the flags of the form.
fn operation(form: &'static Form) -> BoxedStrategy<(Option<Operation>, &'static [Flag])> {
    let none = Just((None, form.flags)).boxed();
    if form.operations.is_empty() {
        return none;
    }
    let some = (select(form.operations.iter().collect::<Vec<_>>()), any::<[prop::sample::Index; 4]>()).prop_map(
        |(operation, indices)| {
            let chosen: Vec<usize> = operation
                .words
                .iter()
                .zip(indices)
                .map(|(alternatives, index)| index.index(alternatives.len()))
                .collect();
            (Some((operation.build)(&chosen)), operation.flags)
        },
    );
    prop_oneof![none, some].boxed()
}

fn change() -> impl Strategy<Value = Command> {
    let forms: Vec<(&'static ObjectSpec, &'static Form)> =
        OBJECTS.iter().flat_map(|spec| spec.forms.iter().map(move |form| (spec, form))).collect();
    select(forms).prop_flat_map(|(spec, form)| {
        let filter = if form.filter { prop::option::of(filter(spec)).boxed() } else { Just(None).boxed() };
        (target(form.target), settings(spec, form), operation(form), any::<(bool, bool)>(), filter).prop_filter_map(
            "an ALTER changes something",
            move |(target, mut settings, (operation, flags), (force, no_wait), filter)| {
                if operation.is_some() {
                    settings.retain(|setting| form.beside_operation.contains(&setting.name));
                }
                if form.needs_change && operation.is_none() && settings.is_empty() {
                    return None;
                }
                let change = Change {
                    object: spec.object,
                    target,
                    settings,
                    operation,
                    force: force && flags.contains(&Flag::Force),
                    no_wait: no_wait && flags.contains(&Flag::NoWait),
                    filter,
                };
                Some(match form.verb {
                    Verb::Create => Command::Create(change),
                    Verb::Alter => Command::Alter(change),
                    _ => Command::Drop(change),
                })
            },
        )
    })
}

fn session() -> impl Strategy<Value = Command> {
    let object = select(OBJECTS.iter().map(|spec| spec.object).collect::<Vec<ObjectType>>());
    let verb = select(VERBS.iter().map(|spec| spec.verb).collect::<Vec<_>>());
    let mode = prop_oneof![Just(SpoolMode::Create), Just(SpoolMode::Replace), Just(SpoolMode::Append)];
    let format = prop_oneof![Just(DateFormat::Standard), Just(DateFormat::Local)];
    let help = (prop::option::of(verb), prop::option::of(object.clone())).prop_map(|(verb, object)| {
        let taken = |object: &ObjectType| verb.is_none_or(|verb| object.spec().takes(verb));
        Command::Help { verb, object: object.filter(taken) }
    });
    prop_oneof![
        object.prop_map(Command::Describe),
        help,
        Just(Command::Exit),
        Just(Command::Quit),
        format.prop_map(Command::SetDateFormat),
        any::<Option<bool>>().prop_map(Command::SetEcho),
        Just(Command::Spool(Spool::Show)),
        Just(Command::Spool(Spool::Off)),
        (name(), mode).prop_map(|(path, mode)| Command::Spool(Spool::To { path, mode })),
        name().prop_map(Command::Start),
        text().prop_map(|text| Command::Remark(text.trim().to_owned())),
    ]
}

/// Everything promised of any text: no panic, positions inside, messages in form, what parses prints and parses again.
fn check_any_text(text: &str) -> Result<(), TestCaseError> {
    for statement in parse_script(text) {
        prop_assert!(statement.position.offset_bytes <= text.len());
        match statement.command {
            Ok(command) => {
                let printed = command.to_string();
                prop_assert_eq!(parse_one(&printed), Ok(command), "{}", printed);
            }
            Err(error) => {
                let message = error.render(text);
                prop_assert!(message.starts_with("CELL-0") && message.contains("^"), "{}", message);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in "(?s).{0,80}") {
        check_any_text(&text)?;
    }

    #[test]
    fn any_run_of_words(words in prop::collection::vec((select(words()), any::<bool>()), 0..24)) {
        let text: String = words.iter().map(|(word, spaced)| format!("{word}{}", if *spaced { " " } else { "" })).collect();
        check_any_text(&text)?;
    }

    #[test]
    fn lists_print_and_parse(command in list()) {
        let printed = command.to_string();
        prop_assert_eq!(parse_one(&printed), Ok(command), "{}", printed);
    }

    #[test]
    fn changes_print_and_parse(command in change()) {
        let printed = command.to_string();
        prop_assert_eq!(parse_one(&printed), Ok(command), "{}", printed);
    }

    #[test]
    fn session_commands_print_and_parse(command in session()) {
        let printed = command.to_string();
        prop_assert_eq!(parse_one(&printed), Ok(command), "{}", printed);
    }
}
