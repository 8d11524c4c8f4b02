//! The row of PIN: ranges of grid disks with a caching policy of their own. The vendor pins tables in the database instead.

use super::{Attribute, Form, Kind, ObjectSpec, ObjectType, SettingSpec, TargetKind, Verb};

const ATTRIBUTES: &[Attribute] = &[
    Attribute::new("name", Kind::Name, "grid disk the range lies on; several ranges may have one").default_column(),
    Attribute::new("cachingPolicy", Kind::Status(&["default", "keep", "none"]), "how the flash cache values the range")
        .default_column()
        .own(),
    Attribute::new("length", Kind::Size, "bytes of the range").default_column().own(),
    Attribute::new("offset", Kind::Size, "bytes from the start of the grid disk").default_column().own(),
];

const RANGE: &[SettingSpec] =
    &[SettingSpec::attribute("offset").required(), SettingSpec::attribute("length").required()];
const RANGE_AND_POLICY: &[SettingSpec] = &[
    SettingSpec::attribute("offset").required(),
    SettingSpec::attribute("length").required(),
    SettingSpec::attribute("cachingPolicy").required(),
];

pub(super) const PIN: ObjectSpec = ObjectSpec {
    object: ObjectType::Pin,
    word: "PIN",
    title: "Pin of",
    title_with_name: true,
    xml_element: "pin",
    about: "ranges of grid disks with a caching policy of their own",
    attributes: ATTRIBUTES,
    forms: &[
        Form::new(Verb::Create, TargetKind::Name, "give a range of a grid disk a caching policy of its own")
            .settings(RANGE_AND_POLICY),
        Form::new(Verb::Drop, TargetKind::Name, "give a range of a grid disk the grid disk's caching policy again")
            .settings(RANGE),
    ],
};
