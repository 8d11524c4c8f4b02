//! Profiles of the I/O plan: a directive that is stated once and counts for each database that has it.
//!
//! A profile is a template: whoever has it is as if a directive of its own said the same, so that twice as many databases with eight
//! shares each have twice as many shares in all. A directive of a database's own comes before its profile. Never looked at by who
//! carries a plan out: they go by what it comes to, [`Plan::in_force`](crate::plan::Plan::in_force).

use crate::plan::iorm_plan::{Directive, Plan, PlanError, Subject};
use std::collections::BTreeSet;

/// Database and profile. Names count whatever the case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Who has it.
    pub database: String,
    /// What it has.
    pub profile: String,
}

/// The assignments after a change: databases that get a profile, or lose theirs. In the order of names, so that equal plans are equal.
pub(crate) fn changed(before: &[Assignment], change: &[(String, Option<String>)]) -> Vec<Assignment> {
    let mut after = before.to_vec();
    for (database, profile) in change {
        after.retain(|one| one.database.to_lowercase() != database.to_lowercase());
        after.extend(profile.iter().map(|profile| Assignment { database: database.clone(), profile: profile.clone() }));
    }
    after.sort_by_key(|one| one.database.to_lowercase());
    after
}

/// The directives by database that directives and assignments come to.
///
/// # Errors
/// A database has two profiles or one that there is not, or is no database.
pub(crate) fn resolve(directives: &[Directive], assignments: &[Assignment]) -> Result<Vec<Directive>, PlanError> {
    let is_profile = |directive: &&Directive| matches!(directive.subject, Subject::Profile(_));
    let mut all: Vec<Directive> = directives.iter().filter(|directive| !is_profile(directive)).cloned().collect();
    let own: BTreeSet<String> = all.iter().map(|directive| directive.subject.name().to_lowercase()).collect();
    let mut seen = BTreeSet::new();
    for Assignment { database, profile } in assignments {
        let subject = Subject::named(database);
        // Commas and parentheses would not be read back.
        if !matches!(subject, Subject::Database(_)) || database.contains([',', '(', ')', '=']) {
            return Err(PlanError::BadName(database.clone()));
        }
        let mut profiles = directives.iter().filter(is_profile);
        let stated = profiles.find(|directive| directive.subject.name().to_lowercase() == profile.to_lowercase());
        let stated =
            stated.ok_or_else(|| PlanError::NoProfile { database: database.clone(), profile: profile.clone() })?;
        if !seen.insert(database.to_lowercase()) {
            return Err(PlanError::TwoProfiles(database.clone()));
        }
        if !own.contains(&database.to_lowercase()) {
            all.push(Directive { subject, ..stated.clone() });
        }
    }
    Ok(all)
}

impl Plan {
    /// The profile of a database, as its directive is named; none where it has none.
    #[must_use]
    pub fn profile_of(&self, database: &str) -> Option<&str> {
        let given = self.assignments().iter().find(|one| one.database.to_lowercase() == database.to_lowercase())?;
        let mut profiles = self.profiles().map(|directive| directive.subject.name());
        profiles.find(|name| name.to_lowercase() == given.profile.to_lowercase())
    }

    /// The directives that are profiles, in the order they were given.
    pub fn profiles(&self) -> impl Iterator<Item = &Directive> {
        self.directives().iter().filter(|directive| matches!(directive.subject, Subject::Profile(_)))
    }

    /// Databases with this profile, in the order of names.
    pub fn databases_of<'a>(&'a self, profile: &str) -> impl Iterator<Item = &'a str> {
        let folded = profile.to_lowercase();
        let with = self.assignments().iter().filter(move |one| one.profile.to_lowercase() == folded);
        with.map(|one| one.database.as_str())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    //! Goal: a profile counts for each database that has it as a directive of its own would, and what cannot count is refused by name.
    //! Method: plans with profiles against the same plans written out.
    use super::*;
    use crate::plan::Objective;

    fn profile(name: &str) -> Directive {
        Directive::of(Subject::Profile(name.to_owned()))
    }

    fn of(database: &str) -> Directive {
        Directive::of(Subject::named(database))
    }

    fn assigned(pairs: &[(&str, &str)]) -> Vec<Assignment> {
        let change: Vec<_> =
            pairs.iter().map(|(db, profile)| ((*db).to_owned(), Some((*profile).to_owned()))).collect();
        changed(&[], &change)
    }

    fn plan(directives: &[Directive], pairs: &[(&str, &str)]) -> Result<Plan, PlanError> {
        Plan::with_profiles(Objective::Auto, false, directives.to_vec(), assigned(pairs))
    }

    fn gold() -> Directive {
        Directive { share: Some(8), flash_cache_min_bytes: Some(1 << 30), flash_log: Some(false), ..profile("gold") }
    }

    #[test]
    fn who_has_a_profile_is_as_if_named() {
        let bronze = Directive { share: Some(1), limit: Some(20), ..profile("bronze") };
        let rest = Directive { share: Some(2), ..of("default") };
        let stated = [gold(), bronze, Directive { share: Some(9), ..of("OWN") }, rest.clone()];
        let with = plan(&stated, &[("B", "GOLD"), ("a", "gold"), ("c", "bronze"), ("own", "bronze")]).unwrap();
        let named = |name: &str, of: Directive| Directive { subject: Subject::named(name), ..of };
        let written = [stated[2].clone(), rest, named("a", gold()), named("B", gold()), named("c", stated[1].clone())];
        assert_eq!(with.in_force(), written);
        assert_eq!(with.directives(), stated, "as it was stated");
        assert_eq!(with.stated("A").and_then(|d| d.share), Some(8));
        assert_eq!(with.stated("own").and_then(|d| d.share), Some(9), "its own comes first");
        assert_eq!(with.stated("x").and_then(|d| d.share), Some(2));
        assert!(!with.uses_flash_log(Some("b")) && with.uses_flash_log(Some("c")) && with.names("C"));
        assert_eq!(
            (with.profile_of("A"), with.profile_of("own"), with.profile_of("x")),
            (Some("gold"), Some("bronze"), None)
        );
        assert_eq!(with.databases_of("Gold").collect::<Vec<_>>(), ["a", "B"]);
        // A guarantee is for each.
        assert!(with.check_flash_cache(5 << 29).is_ok() && with.check_flash_cache((5 << 29) - 5).is_err());
    }

    #[test]
    fn a_profile_of_nobody_delays_nobody() {
        let idle = plan(&[gold()], &[]).unwrap();
        assert!(!idle.delays() && idle.check_flash_cache(0).is_ok());
        assert!(plan(&[gold()], &[("a", "gold")]).unwrap().delays());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused =
            |directives: &[Directive], pairs: &[(&str, &str)]| plan(directives, pairs).unwrap_err().to_string();
        let none = refused(&[gold()], &[("SALES", "silver")]);
        assert!(none.contains("SALES has the profile silver") && none.contains("hint: LIST IORMPROFILE"), "{none}");
        assert!(refused(&[gold()], &[("other", "gold")]).contains("\"other\""));
        assert!(refused(&[gold()], &[("a,b", "gold")]).contains("\"a,b\""));
        assert!(refused(&[gold(), of("GOLD")], &[]).contains("two directives"));
        let level = |name: &str, allocation| Directive { level: Some(1), allocation: Some(allocation), ..of(name) };
        let levels = [Directive { subject: Subject::Profile("l".to_owned()), ..level("", 40) }, level("other", 10)];
        assert!(plan(&levels, &[("a", "l"), ("b", "l")]).is_ok(), "40 % each");
        assert!(refused(&levels, &[("a", "l"), ("b", "l"), ("c", "l")]).contains("come to 130 %"));
        let sized: Vec<(String, &str)> = (0..127).map(|n| (format!("d{n}"), "gold")).collect();
        let sized: Vec<(&str, &str)> = sized.iter().map(|(name, profile)| (name.as_str(), *profile)).collect();
        assert!(refused(&[gold()], &sized).contains("at most 126") && plan(&[gold()], &sized[1..]).is_ok());
        let twice = ["a", "A"].map(|name| Assignment { database: name.to_owned(), profile: "gold".to_owned() });
        let twice = Plan::with_profiles(Objective::Auto, false, vec![gold()], twice.to_vec());
        assert!(twice.unwrap_err().to_string().contains("A has two profiles"));
    }

    #[test]
    fn a_change_gives_takes_and_leaves() {
        let before = assigned(&[("a", "x"), ("b", "x")]);
        let change = [("B".to_owned(), Some("y".to_owned())), ("a".to_owned(), None), ("none".to_owned(), None)];
        assert_eq!(changed(&before, &change), assigned(&[("B", "y")]));
    }
}
