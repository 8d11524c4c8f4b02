//! `flashcell contents --database` as a view in that database, for who asks in SQL: a foreign table on the program itself.
//!
//! Never grants anybody more than reading the view.

use super::Whereabouts;
use super::table::{Asked, TableError};
use std::path::PathBuf;

/// The view; its schema holds nothing else of ours but the foreign table below it.
pub const VIEW: &str = "flashcell.contents";

/// Where PostgreSQL's own client is, and how the server is reached on its host: what the server runs has no environment of the user's.
const SERVER: &str = "
SELECT setting || '/psql', btrim(split_part(current_setting('unix_socket_directories'), ',', 1)), current_setting('port'), current_user
FROM pg_config WHERE name = 'BINDIR';
";

/// `psql` puts the command in as a literal. Of the foreign table the owner is asked for leave, of the view whoever asks.
const MAKE: &str = r#"
BEGIN;
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS file_fdw;
CREATE SCHEMA IF NOT EXISTS flashcell;
CREATE SERVER IF NOT EXISTS flashcell FOREIGN DATA WRAPPER file_fdw;
DROP VIEW IF EXISTS flashcell.contents;
DROP FOREIGN TABLE IF EXISTS flashcell.report;
CREATE FOREIGN TABLE flashcell.report (
    relation text, size_bytes bigint, located_bytes bigint, cached_bytes bigint, kept_bytes bigint, dirty_bytes bigint,
    reads bigint, hits bigint, saved_ms bigint
) SERVER flashcell OPTIONS (program :'command', format 'csv');
CREATE VIEW flashcell.contents AS
    SELECT relation, size_bytes, cached_bytes, round(100.0 * cached_bytes / nullif(located_bytes, 0), 1) AS cached_percent,
        kept_bytes, dirty_bytes, reads, round(100.0 * hits / nullif(reads, 0), 1) AS hit_percent, saved_ms
    FROM flashcell.report ORDER BY cached_bytes DESC, relation;
COMMENT ON VIEW flashcell.contents IS 'what of each table and index is on flash now, and what its reads got from there since the cell was started; asks the cell each time';
GRANT USAGE ON SCHEMA flashcell TO pg_monitor;
GRANT SELECT ON flashcell.contents TO pg_monitor;
COMMIT;
"#;

/// What somebody else has put into the schema keeps it, and nothing is dropped.
const DROP: &str = "
BEGIN;
SET client_min_messages = warning;
DROP VIEW IF EXISTS flashcell.contents;
DROP FOREIGN TABLE IF EXISTS flashcell.report;
DROP SERVER IF EXISTS flashcell;
DROP SCHEMA IF EXISTS flashcell;
COMMIT;
";

/// What a view is to be made of.
#[derive(Clone, Debug)]
pub struct ViewOptions {
    /// Whose relations, and by which cell and grid disk.
    pub database: super::DatabaseOptions,
    /// This program, for the server to run.
    pub program: PathBuf,
}

/// Make the view, in place of an older one.
///
/// # Errors
/// See [`TableError`].
pub fn make_view(options: &ViewOptions) -> Result<(), TableError> {
    let asked = asked(&options.database);
    let answer = asked.ask(SERVER, &[])?;
    let line = answer.first().map(|line| String::from_utf8_lossy(line).into_owned()).unwrap_or_default();
    let fields: Vec<&str> = line.split('\t').collect();
    let [psql, socket, port, user] = fields[..] else {
        return Err(
            asked.refused("the server does not say where its programs are: only a superuser is told".to_owned())
        );
    };
    let client = match socket {
        "" => format!("{psql} -h localhost -p {port} -U {user}"),
        socket => format!("{psql} -h {socket} -p {port} -U {user}"),
    };
    asked.ask(MAKE, &[format!("command={}", command(options, &client))]).map(drop)
}

/// Take the view away. One that is not there stays so.
///
/// # Errors
/// See [`TableError`].
pub fn drop_view(database: &super::DatabaseOptions) -> Result<(), TableError> {
    asked(database).ask(DROP, &[]).map(drop)
}

fn asked(database: &super::DatabaseOptions) -> Asked<'_> {
    Asked { of: format!("database {}", database.database), psql: &database.psql, database: &database.database }
}

/// What the server is to run, through a shell.
fn command(options: &ViewOptions, client: &str) -> String {
    let Whereabouts { cell, grid_disk, offset_bytes } = &options.database.whereabouts;
    let mut words = Vec::new();
    // Attachments are found by it.
    if let Some(dir) = std::env::var_os("FLASHCELL_RUN") {
        words.push("env".to_owned());
        words.push(format!("FLASHCELL_RUN={}", dir.display()));
    }
    words.push(options.program.display().to_string());
    words.push("contents".to_owned());
    words.extend(grid_disk.clone());
    words.extend(["--database".to_owned(), options.database.database.clone(), "--csv".to_owned()]);
    words.extend(["--psql".to_owned(), client.to_owned()]);
    // The server is somewhere else.
    let whole =
        |cell: &String| std::fs::canonicalize(cell).map_or_else(|_| cell.clone(), |dir| dir.display().to_string());
    words.extend(cell.iter().flat_map(|cell| ["-c".to_owned(), whole(cell)]));
    words.extend(offset_bytes.iter().flat_map(|bytes| ["--offset".to_owned(), bytes.to_string()]));
    let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    quoted.join(" ")
}

/// A word for the shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-=:".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_one_word_each_to_a_shell() {
        for word in ["plain", "two words", "it's", "$HOME `id` \"x\" \\", "", "a\nb", "*"] {
            let out = std::process::Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output();
            let out = out.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
            assert_eq!(out.ok().as_deref(), Some(word));
        }
    }
}
