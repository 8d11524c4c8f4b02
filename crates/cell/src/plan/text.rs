//! The plan as text: directives as the operator writes them, and the line the catalog keeps.
//!
//! The catalog's text is `flashcell-iorm 1 objective=… status=… dbplan=(…)`, with profiles `flashcell-iorm 2 objective=… status=…
//! profiles=(…) dbplan=(…)`, who has which first: a cell that knows no profiles then says so instead of going by half a plan. An empty
//! text is the plan that nobody has stated. Never accepts what [`Plan::with_profiles`] does not.

use crate::plan::iorm_plan::{Directive, Objective, Plan, PlanError, Subject};
use crate::plan::profile::Assignment;
use std::fmt::Write;

/// How the catalog's text begins; the number is the version of its form.
const HEAD: &str = "flashcell-iorm 1 ";
/// The same of a plan with profiles.
const HEAD_WITH_PROFILES: &str = "flashcell-iorm 2 ";
/// No name holds a `=`, so that this is where it seems to be.
const PROFILES: &str = " profiles=";

/// The plan as the catalog keeps it.
pub(crate) fn write(plan: &Plan) -> String {
    if *plan == Plan::default() {
        return String::new();
    }
    let status = if plan.inactive { "inactive" } else { "active" };
    let (objective, dbplan) = (plan.objective.word(), directives(plan));
    if plan.profiles().next().is_none() {
        return format!("{HEAD}objective={objective} status={status} dbplan={dbplan}");
    }
    let all: Vec<String> = plan.assignments().iter().map(assignment).collect();
    let profiles = if all.is_empty() { String::new() } else { format!("({})", all.join(",")) };
    format!("{HEAD_WITH_PROFILES}objective={objective} status={status}{PROFILES}{profiles} dbplan={dbplan}")
}

/// The plan that the catalog keeps as this text.
///
/// # Errors
/// It is no plan, of a later version, or one that contradicts itself.
pub(crate) fn read(text: &str) -> Result<Plan, PlanError> {
    if text.is_empty() {
        return Ok(Plan::default());
    }
    let plain = text.strip_prefix(HEAD).map(|rest| (rest, false));
    let rest = plain.or_else(|| text.strip_prefix(HEAD_WITH_PROFILES).map(|rest| (rest, true)));
    let (rest, has_profiles) = rest.ok_or(PlanError::Unreadable("it is of another version"))?;
    let (head, list) = rest.split_once(" dbplan=").ok_or(PlanError::Unreadable("it has no directives"))?;
    let (head, profiles) = match has_profiles {
        true => head.split_once(PROFILES).ok_or(PlanError::Unreadable("it does not say who has which profile"))?,
        false => (head, ""),
    };
    let (objective, status) = head.split_once(' ').ok_or(PlanError::Unreadable("it has no status"))?;
    let objective = objective.strip_prefix("objective=").and_then(Objective::from_word);
    let objective = objective.ok_or(PlanError::Unreadable("its objective is not known"))?;
    let inactive = match status {
        "status=active" => false,
        "status=inactive" => true,
        _ => return Err(PlanError::Unreadable("its status is not known")),
    };
    let directives: Result<Vec<Directive>, PlanError> = parse(list)?.iter().map(|pairs| directive_of(pairs)).collect();
    let assignments: Result<Vec<Assignment>, PlanError> = parse(profiles)?.into_iter().map(assignment_of).collect();
    Plan::with_profiles(objective, inactive, directives?, assignments?)
}

fn assignment(of: &Assignment) -> String {
    format!("(name='{}',profile='{}')", of.database, of.profile)
}

fn assignment_of(pairs: Pairs) -> Result<Assignment, PlanError> {
    match <[(String, String); 2]>::try_from(pairs) {
        Ok([(name, database), (of, profile)]) if name == "name" && of == "profile" => {
            Ok(Assignment { database, profile })
        }
        _ => Err(PlanError::Unreadable("it does not say who has which profile")),
    }
}

/// The directives as `((name=a,share=2),(name=b,…))`; nothing when there are none.
#[must_use]
pub fn directives(plan: &Plan) -> String {
    let all: Vec<String> = plan.directives().iter().map(directive).collect();
    if all.is_empty() { String::new() } else { format!("({})", all.join(",")) }
}

fn directive(of: &Directive) -> String {
    let name = of.subject.name();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // Nor would a name that is a reserved word be read back as a name.
    let bare = name.chars().all(is_word)
        && !(matches!(of.subject, Subject::Database(_)) && Subject::named(name) != of.subject);
    let mut out = if bare { format!("(name={name}") } else { format!("(name='{name}'") };
    let mut number = |attribute: &str, value: Option<u64>| {
        if let Some(value) = value {
            let _ = write!(out, ",{attribute}={value}");
        }
    };
    number("level", of.level.map(u64::from));
    number("allocation", of.allocation.map(u64::from));
    number("limit", of.limit.map(u64::from));
    number("share", of.share.map(u64::from));
    let mut switch = |attribute: &str, value: Option<bool>| {
        if let Some(value) = value {
            let _ = write!(out, ",{attribute}={}", if value { "on" } else { "off" });
        }
    };
    switch("flashcache", of.flash_cache);
    switch("flashlog", of.flash_log);
    let mut size = |attribute: &str, value: Option<u64>| {
        if let Some(bytes) = value {
            let _ = write!(out, ",{attribute}={}", size_word(bytes));
        }
    };
    size("flashcachemin", of.flash_cache_min_bytes);
    size("flashcachelimit", of.flash_cache_limit_bytes);
    size("flashcachesize", of.flash_cache_size_bytes);
    out.push_str(if matches!(of.subject, Subject::Profile(_)) { ",type=profile)" } else { ")" });
    out
}

const SUFFIXES: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

fn size_word(bytes: u64) -> String {
    let fits = SUFFIXES.iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    fits.map_or_else(|| bytes.to_string(), |(suffix, shift)| format!("{}{suffix}", bytes >> shift))
}

/// `attribute=value`, one after the other.
type Pairs = Vec<(String, String)>;

/// What a list written by [`directives`], or of assignments, says.
fn parse(list: &str) -> Result<Vec<Pairs>, PlanError> {
    const TORN: PlanError = PlanError::Unreadable("its directives are not complete");
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let inner = list.strip_prefix("((").and_then(|rest| rest.strip_suffix("))")).ok_or(TORN)?;
    let mut out = Vec::new();
    for one in inner.split("),(") {
        let mut pairs = Vec::new();
        for pair in one.split(',') {
            let (attribute, value) = pair.split_once('=').ok_or(TORN)?;
            pairs.push((attribute.to_owned(), value.trim_matches('\'').to_owned()));
        }
        out.push(pairs);
    }
    Ok(out)
}

/// A directive of `attribute=value` pairs as the operator gave them, the name first.
///
/// # Errors
/// An attribute that there is not, or a value that is not of its kind.
pub fn directive_of(pairs: &[(String, String)]) -> Result<Directive, PlanError> {
    let Some(((first, name), rest)) = pairs.split_first() else { return Err(PlanError::NoName) };
    if !first.eq_ignore_ascii_case("name") {
        return Err(PlanError::NoName);
    }
    // Commas and parentheses would not be read back.
    if name.contains([',', '(', ')', '=']) {
        return Err(PlanError::BadName(name.clone()));
    }
    let mut out = Directive::of(Subject::named(name));
    let mut seen = std::collections::BTreeSet::new();
    for (attribute, value) in rest {
        let attribute = attribute.to_ascii_lowercase();
        if !seen.insert(attribute.clone()) {
            return Err(PlanError::Repeated(name.clone(), attribute));
        }
        let given = Given { name, value };
        match attribute.as_str() {
            "level" => out.level = Some(given.number("level", "1 to 8")?),
            "allocation" => out.allocation = Some(given.number("allocation", "0 to 100, per cent")?),
            "share" => out.share = Some(given.number("share", "1 to 32")?),
            "limit" => out.limit = Some(given.number("limit", "1 to 100, per cent")?),
            "flashcache" => out.flash_cache = Some(given.switch("flashcache")?),
            "flashlog" => out.flash_log = Some(given.switch("flashlog")?),
            "flashcachemin" => out.flash_cache_min_bytes = Some(given.size("flashcachemin")?),
            "flashcachelimit" => out.flash_cache_limit_bytes = Some(given.size("flashcachelimit")?),
            "flashcachesize" => out.flash_cache_size_bytes = Some(given.size("flashcachesize")?),
            "type" if value.eq_ignore_ascii_case("database") => {}
            "type" if value.eq_ignore_ascii_case("profile") => match out.subject {
                Subject::Database(name) => out.subject = Subject::Profile(name),
                _ => return Err(given.bad("type", "database where a directive is about other or default")),
            },
            "name" => return Err(PlanError::Repeated(name.clone(), attribute)),
            "type" => return Err(given.bad("type", "database or profile")),
            "role" | "asmcluster" | "pmemcache" | "pmemlog" | "xrmemcache" | "xrmemlog" => {
                return Err(PlanError::NotSupported(name.clone(), format!("{attribute}={value}")));
            }
            _ => return Err(PlanError::Unknown(name.clone(), attribute)),
        }
    }
    Ok(out)
}

struct Given<'a> {
    name: &'a str,
    value: &'a str,
}

impl Given<'_> {
    fn bad(&self, attribute: &'static str, wanted: &'static str) -> PlanError {
        PlanError::BadValue { name: self.name.to_owned(), attribute, value: self.value.to_owned(), wanted }
    }

    fn number(&self, attribute: &'static str, wanted: &'static str) -> Result<u32, PlanError> {
        self.value.parse().map_err(|_| self.bad(attribute, wanted))
    }

    fn switch(&self, attribute: &'static str) -> Result<bool, PlanError> {
        match self.value.to_ascii_lowercase().as_str() {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(self.bad(attribute, "on or off")),
        }
    }

    fn size(&self, attribute: &'static str) -> Result<u64, PlanError> {
        let suffix = SUFFIXES.iter().find(|(suffix, _)| self.value.to_ascii_uppercase().ends_with(*suffix));
        let (digits, shift) =
            suffix.map_or((self.value, 0), |(_, shift)| (&self.value[..self.value.len() - 1], *shift));
        let number: Option<u64> = digits.parse().ok();
        let bytes = number.and_then(|n| n.checked_mul(1 << shift));
        bytes.ok_or_else(|| self.bad(attribute, "bytes, with K, M, G or T behind"))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: a plan is what was written, in the catalog and for the operator, and what contradicts itself is refused by name.
    //! Method: round trips of stated and of random directives; each refusal by an example.
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let one = |pair: &str| pair.split_once('=').map(|(a, v)| (a.trim().to_owned(), v.trim().to_owned())).unwrap();
        text.split(',').map(one).collect()
    }

    fn plan(lines: &[&str]) -> Result<Plan, PlanError> {
        let all: Result<Vec<Directive>, PlanError> = lines.iter().map(|line| directive_of(&pairs(line))).collect();
        Plan::new(Objective::Auto, false, all?)
    }

    fn refusal(lines: &[&str]) -> String {
        plan(lines).unwrap_err().to_string()
    }

    #[test]
    fn the_fields_plan_and_the_vendors_example_read_back() {
        let field = plan(&["name=SPOT,flashLog=on", "name=other,flashlog=on"]).unwrap();
        assert_eq!(directives(&field), "((name=SPOT,flashlog=on),(name=other,flashlog=on))");
        assert!(!field.delays());
        let vendor = plan(&["name=db1,limit=90,share=20,flashcache=on,flashlog=on"]).unwrap();
        assert_eq!(directives(&vendor), "((name=db1,limit=90,share=20,flashcache=on,flashlog=on))");
        assert!(vendor.delays());
        for one in [field, vendor, Plan::default(), Plan::new(Objective::Basic, true, Vec::new()).unwrap()] {
            assert_eq!(read(&write(&one)).unwrap(), one);
        }
    }

    #[test]
    fn profiles_read_back_and_a_plan_without_is_written_as_before() {
        let lines = ["name=gold,share=10,limit=100,type=profile", "name=FINANCE,share=8"];
        let all: Vec<Directive> = lines.iter().map(|line| directive_of(&pairs(line)).unwrap()).collect();
        let has = |name: &str| Assignment { database: name.to_owned(), profile: "GOLD".to_owned() };
        let with = |all: &[Directive], has| Plan::with_profiles(Objective::Auto, false, all.to_vec(), has).unwrap();
        let plan = with(&all, vec![has("a b"), has("SALES")]);
        let dbplan = "((name=gold,limit=100,share=10,type=profile),(name=FINANCE,share=8))";
        assert_eq!(directives(&plan), dbplan);
        let head = "flashcell-iorm 2 objective=auto status=active";
        let profiles = "((name='a b',profile='GOLD'),(name='SALES',profile='GOLD'))";
        assert_eq!(write(&plan), format!("{head} profiles={profiles} dbplan={dbplan}"));
        assert_eq!(read(&write(&plan)).unwrap(), plan);
        let idle = with(&all, Vec::new());
        assert_eq!((write(&idle), read(&write(&idle)).unwrap()), (format!("{head} profiles= dbplan={dbplan}"), idle));
        assert!(write(&with(&all[1..], Vec::new())).starts_with(HEAD));
        for text in [
            format!("{head} dbplan={dbplan}"),
            format!("{head} profiles=((name=a)) dbplan={dbplan}"),
            format!("{head} profiles=((profile=gold,name=a)) dbplan={dbplan}"),
            format!("{head} profiles=((name=a,profile=silver)) dbplan={dbplan}"),
        ] {
            assert!(read(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_name() {
        let cases: [(&[&str], &str); 21] = [
            (&["share=1,name=a"], "does not begin with its name"),
            (&["name=a,share=0"], "share=0"),
            (&["name=a,share=33"], "1 to 32"),
            (&["name=a,share=x"], "share=x"),
            (&["name=a,level=9,allocation=1", "name=other,level=1,allocation=1"], "1 to 8"),
            (&["name=a,level=1", "name=other,level=1,allocation=1"], "level or allocation alone"),
            (&["name=a,level=1,allocation=60", "name=other,level=1,allocation=41"], "come to 101 %"),
            (&["name=a,level=1,allocation=60"], "no directive for other"),
            (
                &["name=a,level=1,allocation=60", "name=b,share=2", "name=other,level=2,allocation=1"],
                "shares and levels",
            ),
            (&["name=a,limit=101"], "limit=101"),
            (&["name=a,share=1", "name=A,share=2"], "A has two directives"),
            (&["name=a,share=1", "name=other,share=2"], "no directive for other"),
            (&["name=a,sharing=1"], "which no directive has"),
            (&["name=a,role=primary"], "does not carry out"),
            (&["name=a,flashcache=maybe"], "on or off"),
            (&["name=a,type=group"], "database or profile"),
            (&["name=other,type=profile"], "type=profile"),
            (&["name=a,flashcachelimit=1G,flashcachesize=1G"], "flashcachelimit and flashcachesize"),
            (&["name=a,flashcachemin=2G,flashcachesize=1G"], "beyond its flashcachesize"),
            (&["name=a,flashcachesize=1M"], "at least 4M"),
            (&["name=default,flashcachemin=1G"], "nobody knows how many"),
        ];
        for (lines, says) in cases {
            let said = refusal(lines);
            assert!(said.contains(says), "{lines:?}: {said}");
        }
        let many: Vec<String> = (0..33).map(|n| format!("name=d{n},level=1,allocation=0")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(refusal(&many).contains("33 directives"));
        let mins = plan(&["name=a,flashcachemin=3G", "name=b,flashcachemin=2G"]).unwrap();
        assert!(mins.check_flash_cache(25 << 28).is_ok());
        assert!(mins.check_flash_cache((25 << 28) - 5).unwrap_err().to_string().contains("5368709120"));
        let sized: Vec<String> = (0..127).map(|n| format!("name=d{n},flashcachelimit=1G")).collect();
        let sized: Vec<&str> = sized.iter().map(String::as_str).collect();
        assert!(refusal(&sized).contains("at most 126") && plan(&sized[1..]).is_ok());
    }

    #[test]
    fn who_has_no_directive_is_caught_by_other_or_default() {
        let other = plan(&["name=a,flashcache=off", "name=other,flashlog=off"]).unwrap();
        assert!(!other.uses_flash_cache(Some("A")) && other.uses_flash_log(Some("a")));
        assert!(other.uses_flash_cache(Some("b")) && !other.uses_flash_log(Some("b")) && !other.uses_flash_log(None));
        assert!(!other.directive_of(Some("b")).1, "the rest is one");
        let each = plan(&["name=a,share=2", "name=default,share=3,flashcache=off"]).unwrap();
        assert!(!each.uses_flash_cache(Some("b")) && each.uses_flash_cache(Some("a")));
        assert!(each.directive_of(Some("b")).1 && !each.directive_of(None).1);
        let inactive = Plan::new(Objective::Auto, true, other.directives().to_vec()).unwrap();
        assert!(inactive.uses_flash_cache(Some("a")), "kept, not carried out");
    }

    #[test]
    fn what_is_no_plan_is_not_taken_for_one() {
        for text in ["objective=auto\n", "flashcell-iorm 3 objective=auto status=active dbplan=", "flashcell-iorm 1 x"]
        {
            assert!(matches!(read(text), Err(PlanError::Unreadable(_))), "{text}");
        }
        assert!(read("flashcell-iorm 1 objective=auto status=active dbplan=((name=a,share=99))").is_err());
    }

    proptest! {
        #[test]
        fn random_plans_read_back(
            names in proptest::collection::btree_set("[a-z][a-z0-9_. $-]{0,20}", 0..20),
            share in proptest::option::of(1u32..=32),
            limit in proptest::option::of(1u32..=100),
            cache in proptest::option::of(any::<bool>()),
            min in proptest::option::of(0u64..1 << 50),
            objective in 0usize..5,
            inactive in any::<bool>(),
        ) {
            let all = names.iter().filter(|name| *name != "other" && *name != "default").map(|name| Directive {
                share, limit, flash_cache: cache, flash_cache_min_bytes: min,
                ..Directive::of(Subject::named(name))
            });
            let plan = Plan::new(Objective::ALL[objective], inactive, all.collect()).unwrap();
            prop_assert_eq!(read(&write(&plan)).unwrap(), plan);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,100}") {
            let _ = read(&text);
            let _ = read(&format!("flashcell-iorm 1 objective=auto status=active dbplan={text}"));
            let _ = read(&format!("flashcell-iorm 2 objective=auto status=active profiles={text} dbplan={text}"));
        }
    }
}
