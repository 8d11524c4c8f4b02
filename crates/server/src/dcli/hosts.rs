//! Who is meant: lists and group files; and which local files.
//!
//! Never asks a name server: whether a name is somebody's is for ssh to find out.

use super::DcliError;
use std::path::{Path, PathBuf};

/// Targets of one call: ten times the largest field of cells anybody told of.
pub(super) const TARGETS_MAX: usize = 10_000;
/// A group file larger than this is not one.
const GROUP_FILE_BYTES_MAX: u64 = 1 << 20;

/// A cell as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// As printed before its lines: `exa1cel01`, `root@exa1cel01`.
    pub(super) name: String,
}

impl Target {
    fn parse(name: &str) -> Result<Target, DcliError> {
        let (user, host) = name.split_once('@').unwrap_or(("x", name));
        let is_word = |text: &str, extra: &str| {
            !text.is_empty()
                && !text.starts_with('-')
                && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
        };
        // What begins with a hyphen would be an option of ssh.
        if is_word(user, "._-$") && is_word(host, "._-:%") {
            return Ok(Target { name: name.to_owned() });
        }
        Err(DcliError::Name { name: name.to_owned() })
    }

    /// Without the user.
    pub(super) fn host(&self) -> &str {
        self.name.split_once('@').map_or(&self.name, |(_, host)| host)
    }

    /// The user of its name, or `default`.
    pub(super) fn user<'a>(&'a self, default: &'a str) -> &'a str {
        self.name.split_once('@').map_or(default, |(user, _)| user)
    }
}

/// Everybody of `-c` and `-g`, once each, in order.
pub(super) fn targets(cells: Option<&str>, group_file: Option<&Path>) -> Result<Vec<Target>, DcliError> {
    let mut all = Vec::new();
    for name in cells.unwrap_or("").split([',', ' ']).map(str::trim).filter(|name| !name.is_empty()) {
        add(&mut all, name)?;
    }
    if let Some(path) = group_file {
        for name in group(path)? {
            add(&mut all, &name)?;
        }
    }
    if all.is_empty() { Err(DcliError::NoTarget) } else { Ok(all) }
}

fn add(all: &mut Vec<Target>, name: &str) -> Result<(), DcliError> {
    let target = Target::parse(name)?;
    if all.len() == TARGETS_MAX {
        return Err(DcliError::TooMany);
    }
    if !all.contains(&target) {
        all.push(target);
    }
    Ok(())
}

/// The first word of every line that is no comment.
fn group(path: &Path) -> Result<Vec<String>, DcliError> {
    let file = |reason: String| DcliError::File { path: path.to_owned(), reason };
    let size = std::fs::metadata(path).map_err(|error| file(error.to_string()))?.len();
    if size > GROUP_FILE_BYTES_MAX {
        return Err(file(format!("{size} bytes are too many for a list of cells")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| file(error.to_string()))?;
    Ok(names(&text))
}

/// The names of a group file's text; `#` begins a comment.
pub(crate) fn names(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The files of one `-f`: itself, or what its pattern finds, by name. At least one.
pub(super) fn local_files(pattern: &str) -> Result<Vec<PathBuf>, DcliError> {
    let path = Path::new(pattern);
    let fail = |reason: String| DcliError::File { path: path.to_owned(), reason };
    let mut found = Vec::new();
    match std::fs::metadata(path) {
        Ok(_) => found.push(path.to_owned()),
        Err(error) => {
            let (Some(last), true) = (path.file_name().and_then(|name| name.to_str()), pattern.contains(['*', '?']))
            else {
                return Err(fail(error.to_string()));
            };
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            for entry in std::fs::read_dir(dir).map_err(|error| fail(error.to_string()))? {
                let name = entry.map_err(|error| fail(error.to_string()))?.file_name();
                let Some(text) = name.to_str() else { continue };
                // As a shell: a hidden file is meant only when the pattern says so.
                if matches(last, text) && (last.starts_with('.') || !text.starts_with('.')) {
                    found.push(dir.join(&name));
                }
            }
            found.sort();
        }
    }
    if found.is_empty() {
        return Err(fail("no file is like this".to_owned()));
    }
    for file in &found {
        let of = |reason: String| DcliError::File { path: file.clone(), reason };
        if !std::fs::metadata(file).map_err(|error| of(error.to_string()))?.is_file() {
            return Err(of("not a regular file".to_owned()));
        }
    }
    // Absolute: a colon in a relative path would name a host to scp.
    found.iter().map(|file| std::path::absolute(file).map_err(|error| fail(error.to_string()))).collect()
}

/// Whether a name is like a pattern of `*` and `?`. Iterative, linear memory.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, taken)) = star else { return false };
                // The last star takes one character more.
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn list(cells: &str) -> Result<Vec<String>, String> {
        let targets = targets(Some(cells), None).map_err(|error| error.to_string())?;
        Ok(targets.into_iter().map(|target| target.name).collect())
    }

    #[test]
    fn lists_of_cells() {
        assert_eq!(list("exa1cel01,exa1cel02, exa1cel01").unwrap(), ["exa1cel01", "exa1cel02"]);
        assert_eq!(list("root@a,10.0.0.1,::1").unwrap(), ["root@a", "10.0.0.1", "::1"]);
        for bad in ["-oProxyCommand=x", "a;b", "a/b", "x@-l", "@a", "a@", "a'b", "a\nb"] {
            assert!(list(bad).unwrap_err().contains("not the name of a host"), "{bad}");
        }
        assert!(list(" , ").unwrap_err().contains("no cells are named"));
    }

    #[test]
    fn a_group_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cells");
        std::fs::write(&path, "# all of them\nexa1cel01\n\n  exa1cel02  # the new one\nexa1cel03 rack2\n").unwrap();
        let found = targets(Some("first"), Some(&path)).unwrap();
        let names: Vec<&str> = found.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["first", "exa1cel01", "exa1cel02", "exa1cel03"]);
        let missing = targets(None, Some(&dir.path().join("none"))).unwrap_err().to_string();
        assert!(missing.contains("none: "), "{missing}");
    }

    #[test]
    fn users_of_targets() {
        let target = Target::parse("root@a").unwrap();
        assert_eq!((target.user("celladmin"), target.host()), ("root", "a"));
        let target = Target::parse("a").unwrap();
        assert_eq!((target.user("celladmin"), target.host()), ("celladmin", "a"));
    }

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("*.sh", "a.sh", true),
            ("*.sh", "a.sql", false),
            ("a?c*", "abcde", true),
            ("*a*a*", "banana", true),
            ("*a*b", "banana", false),
            ("", "", true),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.sh", "a.sh", ".c.sh", "x.sql"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let found = local_files(&format!("{}/*.sh", dir.path().display())).unwrap();
        assert_eq!(found, [dir.path().join("a.sh"), dir.path().join("b.sh")]);
        assert!(local_files(&format!("{}/*.no", dir.path().display())).is_err());
        assert!(local_files(dir.path().to_str().unwrap()).unwrap_err().to_string().contains("not a regular file"));
    }
}
