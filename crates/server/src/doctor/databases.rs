//! Settings of PostgreSQL that decide whether commits survive.

use super::{Finding, Root, Verdict};
use std::path::{Path, PathBuf};

/// Where Debian keeps configurations: VERSION/CLUSTER below it.
const DEBIAN: &str = "etc/postgresql";

/// The settings of a server, as its files have them: the last one counts, and ALTER SYSTEM's file comes last.
#[derive(Default)]
struct Settings(Vec<(String, String)>);

impl Settings {
    fn read(&mut self, root: &Root, path: &Path) {
        for line in root.text(path).unwrap_or_default().lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let Some((name, value)) = line.split_once(|c: char| c == '=' || c.is_whitespace()) else { continue };
            let value = value.trim().trim_start_matches('=').trim().trim_matches('\'');
            self.0.push((name.trim().to_lowercase(), value.to_owned()));
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    fn is_off(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value.to_lowercase().as_str(), "off" | "false" | "no" | "0"))
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

pub(super) fn examine(root: &Root, dirs: &[PathBuf]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for dir in dirs {
        findings.extend(server(root, dir, dir));
    }
    for cluster in entries(&root.path(DEBIAN)).iter().flat_map(|version| entries(version)) {
        let below = cluster.strip_prefix(&root.0).unwrap_or(&cluster).to_path_buf();
        let mut settings = Settings::default();
        settings.read(root, &below.join("postgresql.conf"));
        let data = settings.get("data_directory").map_or_else(|| below.clone(), PathBuf::from);
        findings.extend(server(root, &below, &data));
    }
    findings
}

/// A server by the directory of its configuration and that of its data.
fn server(root: &Root, configuration: &Path, data: &Path) -> Vec<Finding> {
    let subject = Path::new("/").join(data).display().to_string();
    let file = configuration.join("postgresql.conf");
    if !root.exists(&file) {
        let found = Finding::good("postgresql", &subject, "has no postgresql.conf that can be read");
        return vec![found.with(Verdict::Unknown, "not a data directory, or not yours to read")];
    }
    let mut settings = Settings::default();
    settings.read(root, &file);
    settings.read(root, &data.join("postgresql.auto.conf"));
    let setting = |name: &'static str, verdict: Verdict, why: &str| {
        let is_off = settings.is_off(name);
        let finding = Finding::good(name, &subject, if is_off { "off" } else { "on" });
        if is_off {
            finding.with(verdict, why).mended_by(format!("ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"))
        } else {
            finding
        }
    };
    vec![
        setting("fsync", Verdict::Warning, "a crash of the host loses the whole database, not the last commits alone"),
        setting(
            "full_page_writes",
            Verdict::Warning,
            "a cell writes 4 KiB at a time whole, PostgreSQL's pages have 8: a power cut may leave half of one, which then cannot be recovered",
        ),
        setting(
            "synchronous_commit",
            Verdict::Note,
            "the last commits before a crash are lost, though acknowledged; a redo grid disk makes them cheap",
        ),
    ]
}
