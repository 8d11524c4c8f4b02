//! Goal: the house stands as drawn, and what it is built of may be given away. Method: ask `cargo metadata`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The picture of DESIGN section 1: who stands directly on whom. An edge is allowed along any way down.
const PICTURE: &[(&str, &[&str])] = &[
    ("flashcell", &["server", "lab"]),
    ("server", &["cellcli", "nbd"]),
    ("lab", &["buffercache", "sim"]),
    ("sim", &["nbd"]),
    ("buffercache", &["nbd"]),
    ("nbd", &["cell"]),
    ("cell", &["flashcache", "flashlog", "celldisk"]),
    ("flashcache", &["device"]),
    ("flashlog", &["device"]),
    ("celldisk", &["device"]),
    ("cellcli", &[]),
    ("device", &[]),
];

/// Licences that may be in the product.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "MIT",
    "MIT-0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "BSL-1.0",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    // Data: Mozilla's certificates, beneath the mail library.
    "CDLA-Permissive-2.0",
];

fn metadata() -> serde_json::Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn below(name: &str) -> BTreeSet<&'static str> {
    let picture: BTreeMap<&str, &[&'static str]> = PICTURE.iter().copied().collect();
    let mut found = BTreeSet::new();
    let mut todo: Vec<&str> = vec![name];
    while let Some(next) = todo.pop() {
        for &lower in picture.get(next).copied().unwrap_or_default() {
            if found.insert(lower) {
                todo.push(lower);
            }
        }
    }
    found
}

#[test]
fn arrows_go_down_only() {
    let metadata = metadata();
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    let names: BTreeSet<&str> = PICTURE.iter().map(|(name, _)| *name).collect();
    let mut edges = 0;
    for package in metadata["packages"].as_array().unwrap() {
        if !members.contains(package["id"].as_str().unwrap()) {
            continue;
        }
        let name = package["name"].as_str().unwrap();
        assert!(names.contains(name), "crate {name} is not in the picture of the house");
        let allowed = below(name);
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            let normal = dependency["kind"].is_null();
            if names.contains(to) && normal {
                edges += 1;
                assert!(allowed.contains(to), "{name} -> {to} is not a way down in the picture of the house");
            }
        }
    }
    assert!(edges >= 8, "the test sees the edges it is about");
}

/// The rooms of a crate, the top one first: a file uses its own room and those below it.
struct Rooms {
    krate: &'static str,
    rooms: &'static [&'static str],
    /// Arrows up that there still are, by file and room. The list may only become shorter.
    up: &'static [(&'static str, &'static str)],
}

const ROOMS: &[Rooms] = &[
    Rooms {
        krate: "cell",
        rooms: &[
            "metrics",
            "admin",
            "redo",
            "lifecycle",
            "request",
            "fill",
            "backing",
            "disk",
            "plan",
            "durability",
            "base",
        ],
        up: &[
            // A read that misses asks whether its fill may be late.
            ("backing/cached.rs", "fill"),
            // A request carries the account of its database.
            ("base/request.rs", "plan"),
            // A grid disk holds the state of its stages.
            ("disk/grid_disk.rs", "backing"),
            ("disk/grid_disk.rs", "fill"),
            ("disk/grid_disk.rs", "request"),
            // A buffer cache offers by its session.
            ("fill/offer.rs", "request"),
        ],
    },
    Rooms {
        krate: "flashcache",
        rooms: &["model", "placement", "recovery", "data", "member", "admission", "index", "log", "format", "base"],
        up: &[
            // Parts of `Member` and `FlashCache` that belong to what they decide.
            ("admission/governor.rs", "member"),
            ("admission/keep.rs", "member"),
            ("admission/quota.rs", "member"),
            ("admission/quota.rs", "placement"),
            ("admission/worth.rs", "placement"),
            ("data/read.rs", "placement"),
            ("index/ending.rs", "member"),
            // A member keeps segments free for the checkpoint of a clean stop.
            ("data/reclaim.rs", "recovery"),
            // The log's state holds what has not been flushed, and asks which segments are worth cleaning.
            ("log.rs", "member"),
            ("log/victims.rs", "admission"),
            ("log/victims.rs", "index"),
            // A member holds the state of its stages.
            ("member.rs", "data"),
            ("member.rs", "placement"),
            ("member/undurable.rs", "data"),
        ],
    },
];

/// The source files below a directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// What the product code of a file names behind `crate::`: the room, or a name of the crate's root.
fn named_from_root(text: &str) -> BTreeSet<String> {
    let product = text.split("#[cfg(test)]").next().unwrap();
    let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    let word = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '{')).collect();
    code.flat_map(|line| line.split("crate::").skip(1).map(word).collect::<Vec<String>>()).collect()
}

#[test]
fn rooms_of_a_crate_use_those_below_them() {
    for Rooms { krate, rooms, up } in ROOMS {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(krate).join("src");
        let rank = |room: &str| rooms.iter().position(|one| *one == room);
        let (mut found, mut down) = (BTreeSet::new(), 0);
        for path in sources(&source) {
            let file = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
            if file == "lib.rs" || file.ends_with("tests.rs") {
                continue;
            }
            let room = file.split(['/', '.']).next().unwrap();
            let from = rank(room).unwrap_or_else(|| panic!("{krate}: {file} is in no room of the house"));
            for to in named_from_root(&std::fs::read_to_string(&path).unwrap()) {
                let Some(to_rank) = rank(&to) else { panic!("{krate}: {file} names crate::{to}, not a room") };
                if to_rank < from {
                    found.insert((file.clone(), to));
                } else {
                    down += 1;
                }
            }
        }
        let allowed: BTreeSet<(String, String)> =
            up.iter().map(|(file, room)| ((*file).to_owned(), (*room).to_owned())).collect();
        let new: Vec<_> = found.difference(&allowed).collect();
        assert!(new.is_empty(), "{krate}: arrows up between rooms: {new:?}");
        let gone: Vec<_> = allowed.difference(&found).collect();
        assert!(gone.is_empty(), "{krate}: these arrows up are no more, take them off the list: {gone:?}");
        assert!(down > rooms.len(), "{krate}: the test sees the arrows it is about");
    }
}

#[test]
fn engine_crates_have_no_runtime_of_their_own() {
    let metadata = metadata();
    let engine = ["device", "celldisk", "flashcache", "cell", "buffercache", "nbd", "cellcli", "sim"];
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        if !engine.contains(&name) || !package["source"].is_null() {
            continue;
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            let banned = ["tokio", "axum", "serde", "serde_json"].contains(&to);
            assert!(!banned || !dependency["kind"].is_null(), "{name} must not depend on {to}");
        }
    }
}

/// `MIT OR Apache-2.0`, `(MIT OR Apache-2.0) AND Unicode-3.0`, `MIT/Apache-2.0`: every AND term needs an allowed
/// alternative.
fn allowed(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], "");
    flat.split(" AND ").all(|term| term.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn licences_may_be_given_away() {
    let metadata = metadata();
    let mut checked = 0;
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or("none stated");
        assert!(allowed(licence), "{name} has licence {licence}, which is not on the list");
        checked += 1;
    }
    assert!(checked > 20, "the test sees the packages it is about");
    assert!(!allowed("GPL-3.0-only") && !allowed("MIT AND GPL-2.0-only") && allowed("GPL-2.0-only OR MIT"));
}

/// The version in labels stands for all that is written on a device: by it alone a release is refused, or a package (packaging/debian/preinst).
#[test]
fn a_label_says_all_formats_of_its_device() {
    let number = |path: &str, name: &str| -> u32 {
        let text = std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let line = text.lines().find(|line| line.contains(&format!("const {name}: "))).unwrap();
        line.rsplit("= ").next().unwrap().trim_end_matches(';').parse().unwrap()
    };
    // Flash cache, its checkpoint, flash log, journal of write-back-ordered: a number that changes here takes the label's with it.
    let of_label = [
        number("flashcache/src/format.rs", "FORMAT_VERSION"),
        number("flashcache/src/format/checkpoint.rs", "CHECKPOINT_VERSION"),
        number("flashlog/src/format.rs", "FORMAT_VERSION"),
        number("cell/src/backing/ordered/format.rs", "VERSION"),
    ];
    assert_eq!((number("celldisk/src/layout.rs", "FORMAT_VERSION"), of_label), (1, [3, 4, 2, 2]));
}
