//! The files of a PostgreSQL table: its partitions, indexes and TOAST with it. The database is asked through its own client, so that
//! whatever connects a user to it connects this too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The file of each relation. `psql` puts the name in as a literal.
const QUERY: &str = "
WITH RECURSIVE tables (oid) AS (
    SELECT :'rel'::regclass::oid
    UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = tables.oid
), stores (oid) AS (
    SELECT oid FROM tables
    UNION SELECT reltoastrelid FROM pg_class JOIN tables USING (oid) WHERE reltoastrelid <> 0
), relations (oid) AS (
    SELECT oid FROM stores
    UNION SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM stores)
)
SELECT current_setting('data_directory') || '/' || pg_relation_filepath(oid)
FROM relations WHERE pg_relation_filepath(oid) IS NOT NULL;
";

/// The file and the name of every relation that has one. TOAST is told by the table it is of.
const RELATIONS: &str = "
SELECT current_setting('data_directory') || '/' || pg_relation_filepath(c.oid),
    CASE WHEN t.oid IS NULL THEN format('%I.%I', n.nspname, c.relname) ELSE format('%s (TOAST)', t.oid::regclass) END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_class t ON t.reltoastrelid = c.oid
WHERE pg_relation_filepath(c.oid) IS NOT NULL AND NOT c.relisshared;
";

/// A table of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    database: String,
    /// As SQL names it, with or without its schema.
    relation: String,
}

/// Why its files are not known.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The name.
    #[error("{given:?} names no table\nhint: DATABASE.SCHEMA.TABLE, or DATABASE.TABLE")]
    Name {
        /// What was given.
        given: String,
    },
    /// The client cannot be run.
    #[error(
        "cannot run {program}: {source}\nhint: --psql names the client, with what it needs: --psql 'sudo -u postgres psql'"
    )]
    Client {
        /// Which.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// The database refuses.
    #[error(
        "{table}: {why}\nhint: PGHOST, PGPORT, PGUSER and PGPASSWORD are heeded; the user has to be a superuser or in pg_monitor; \
         --psql 'sudo -u postgres psql' asks as another"
    )]
    Refused {
        /// The table.
        table: String,
        /// What the client said.
        why: String,
    },
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.database, self.relation)
    }
}

impl std::str::FromStr for Table {
    type Err = TableError;

    fn from_str(given: &str) -> Result<Table, TableError> {
        match given.split_once('.') {
            Some((database, relation)) if !database.is_empty() && !relation.is_empty() => {
                Ok(Table { database: database.to_owned(), relation: relation.to_owned() })
            }
            _ => Err(TableError::Name { given: given.to_owned() }),
        }
    }
}

impl Table {
    /// Its files now. `psql`: the client, with arguments before ours.
    pub(super) fn files(&self, psql: &str) -> Result<Vec<PathBuf>, TableError> {
        let asked = Asked { of: self.to_string(), psql, database: &self.database };
        let answer = asked.ask(QUERY, &[format!("rel={}", self.relation)])?;
        let main: Vec<PathBuf> = answer.iter().map(|line| PathBuf::from(OsStr::from_bytes(line))).collect();
        if main.is_empty() {
            return Err(asked.refused("it has no file".to_owned()));
        }
        let mut listings = Listings::default();
        let files = main.iter().map(|path| listings.files_of(path)).collect::<std::io::Result<Vec<_>>>();
        files.map(|all| all.concat()).map_err(|error| asked.no_look(&error))
    }
}

/// All tables, indexes and TOAST tables of a database with their files, by names like `public.orders`.
pub(super) fn relations(database: &str, psql: &str) -> Result<Vec<(String, Vec<PathBuf>)>, TableError> {
    let asked = Asked { of: format!("database {database}"), psql, database };
    let (mut found, mut listings) = (Vec::new(), Listings::default());
    for line in asked.ask(RELATIONS, &[])? {
        // A path has no tab in it that PostgreSQL has made.
        let Some(tab) = line.iter().position(|byte| *byte == b'\t') else { continue };
        let path = PathBuf::from(OsStr::from_bytes(&line[..tab]));
        let name = String::from_utf8_lossy(&line[tab + 1..]).into_owned();
        match listings.files_of(&path) {
            Ok(files) => found.push((name, files)),
            // It has been dropped since.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(asked.no_look(&error)),
        }
    }
    Ok(found)
}

/// A question to a database.
pub(super) struct Asked<'a> {
    /// What it is about.
    pub(super) of: String,
    pub(super) psql: &'a str,
    pub(super) database: &'a str,
}

impl Asked<'_> {
    pub(super) fn refused(&self, why: String) -> TableError {
        TableError::Refused { table: self.of.clone(), why }
    }

    fn no_look(&self, error: &std::io::Error) -> TableError {
        self.refused(format!("cannot look at its files: {error}"))
    }

    /// The lines of the answer.
    pub(super) fn ask(&self, query: &str, variables: &[String]) -> Result<Vec<Vec<u8>>, TableError> {
        let mut words = self.psql.split_whitespace();
        let program = words.next().unwrap_or("psql");
        let failed = |source| TableError::Client { program: program.to_owned(), source };
        let mut child = Command::new(program)
            .args(words)
            .args(["-X", "-A", "-t", "-q", "-F", "\t", "-v", "ON_ERROR_STOP=1"])
            .args(variables.iter().flat_map(|variable| ["-v", variable]))
            .args(["-d", self.database, "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that has ended says why.
            let _ = stdin.write_all(query.as_bytes());
        }
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("psql failed and says nothing");
            return Err(self.refused(line.trim().to_owned()));
        }
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.map(<[u8]>::to_vec).collect())
    }
}

/// The directories of a database, each read once: a database of many relations has all of them in one.
#[derive(Default)]
struct Listings(BTreeMap<PathBuf, BTreeSet<OsString>>);

impl Listings {
    /// The files of a relation by its first: segments of a gigabyte (`.1`), the maps of free space and of visibility (`_fsm`, `_vm`).
    fn files_of(&mut self, first: &Path) -> std::io::Result<Vec<PathBuf>> {
        let (Some(dir), Some(name)) = (first.parent(), first.file_name()) else { return Ok(Vec::new()) };
        if !self.0.contains_key(dir) {
            let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>()?;
            self.0.insert(dir.to_owned(), names);
        }
        let after = self.0.get(dir).into_iter().flat_map(|names| names.range(name.to_owned()..));
        let alike = after.take_while(|found| found.as_bytes().starts_with(name.as_bytes()));
        Ok(alike.filter(|found| is_of_relation(name, found)).map(|found| dir.join(found)).collect())
    }
}

fn is_of_relation(name: &OsStr, found: &OsStr) -> bool {
    let Some(rest) = found.as_bytes().strip_prefix(name.as_bytes()) else { return false };
    let (fork, segment) = match rest.iter().position(|byte| *byte == b'.') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &b"0"[..]),
    };
    matches!(fork, b"" | b"_fsm" | b"_vm" | b"_init") && !segment.is_empty() && segment.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn names_of_tables() {
        let table: Table = "shop.public.orders".parse().unwrap();
        assert_eq!((table.database.as_str(), table.relation.as_str()), ("shop", "public.orders"));
        for bad in ["orders", "", ".x", "x."] {
            assert!(bad.parse::<Table>().unwrap_err().to_string().contains("names no table"));
        }
    }

    #[test]
    fn segments_and_forks_belong_to_a_relation_and_longer_numbers_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["16384", "16384.1", "16384.12", "16384_fsm", "16384_vm.1", "163840", "16384.x", "16384_x", "1638"];
        names.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        let found = Listings::default().files_of(&dir.path().join("16384")).unwrap();
        let found: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(found, ["16384", "16384.1", "16384.12", "16384_fsm", "16384_vm.1"]);
    }

    #[test]
    fn a_client_that_fails_is_told_with_what_it_said() {
        let table: Table = "shop.orders".parse().unwrap();
        let missing = table.files("/no/such/psql").unwrap_err().to_string();
        assert!(missing.contains("cannot run /no/such/psql") && missing.contains("--psql"), "{missing}");
        let refused = table.files("false").unwrap_err().to_string();
        assert!(refused.starts_with("shop.orders: psql failed"), "{refused}");
    }
}
