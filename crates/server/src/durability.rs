//! What the cell says of the durability class of its devices, and how a general answer of the operator is applied.
//!
//! The class of a cell disk is in its label, from the day that it was made. Nothing here changes it.

use crate::config::ClassChoice;
use device::{Class, Durability};

/// The word of the language for a class.
pub(crate) fn class_name(class: Class) -> &'static str {
    match class {
        Class::Durable => "durable",
        Class::Ephemeral => "ephemeral",
    }
}

/// What `--durable yes|no` states of a device: nothing, where its class is found out.
pub(crate) fn answer(found: &Durability, answer: Option<ClassChoice>) -> Option<ClassChoice> {
    answer.filter(|_| found.is_open())
}

/// A line for the operator, where a new cell disk is not counted as durable and only the operator can change that; `way_out`
/// says how.
pub(crate) fn note(cell_disk: &str, found: &Durability, way_out: &str) -> Option<String> {
    (found.is_open() && found.class == Class::Ephemeral).then(|| {
        format!(
            "cell disk {cell_disk} is not counted as durable: {}; flash that is not takes no data before the disk has it\n\
             hint: {way_out}",
            found.ground
        )
    })
}

/// Where the class in a cell disk's label comes from; `found`: of its device, none for an export of another server.
pub(crate) fn source(label: Class, found: Option<&Durability>) -> String {
    match found {
        None => "an export of another server: durable unless cell.toml states otherwise".to_owned(),
        Some(found) if found.class == label => found.ground.to_string(),
        Some(found) => {
            format!("stated when the cell disk was made; now {}: {}", class_name(found.class), found.ground)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Ground;

    #[test]
    fn a_general_answer_is_for_what_is_not_found_out() {
        let of = |class, ground| Durability { class, ground };
        let gone = of(Class::Ephemeral, Ground::GoneWithHost("sdb (EphemeralDisk)".to_owned()));
        let disk = of(Class::Durable, Ground::Devices(vec!["sda".to_owned()]));
        let unknown = of(Class::Ephemeral, Ground::Unknown("overlay".to_owned()));
        let memory = of(Class::Ephemeral, Ground::InMemory("tmpfs"));
        for choice in [ClassChoice::Durable, ClassChoice::Ephemeral] {
            assert_eq!([&gone, &disk].map(|found| answer(found, Some(choice))), [None, None]);
            assert_eq!([&unknown, &memory].map(|found| answer(found, Some(choice))), [Some(choice); 2]);
        }
        for found in [&gone, &disk, &unknown, &memory] {
            assert_eq!(answer(found, None), None, "nobody has answered");
            assert_eq!(note("FD_00_c", found, "").is_some(), found.is_open(), "{}", found.ground);
        }
        assert_eq!(note("FD_00_c", &of(Class::Durable, Ground::Stated), ""), None);
    }

    #[test]
    fn every_source() {
        let of = |class, ground| Durability { class, ground };
        let unknown = of(Class::Ephemeral, Ground::Unknown("overlay".to_owned()));
        assert_eq!(source(Class::Ephemeral, Some(&unknown)), "what is below overlay is not known");
        assert_eq!(
            source(Class::Durable, Some(&unknown)),
            "stated when the cell disk was made; now ephemeral: what is below overlay is not known"
        );
        assert_eq!(source(Class::Durable, Some(&of(Class::Durable, Ground::Stated))), "stated in cell.toml");
        assert!(source(Class::Durable, None).starts_with("an export"));
    }
}
