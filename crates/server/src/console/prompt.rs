//! The prompt: line editing, history of the session, completion of keywords, attributes and object names.

use super::{ConsoleError, Session};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Editor, Helper};

const PROMPT: &str = "CellCLI> ";
const CONTINUED: &str = "> ";

/// Completes from the table of the language, and from the cell for names: over a session of its own, since the editor
/// keeps it for good.
struct Words(Session);

impl Completer for Words {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let candidates = cellcli::complete(line, cursor, &|object| self.0.names(object));
        Ok((word_start(line, cursor), candidates))
    }
}

/// Where the word that ends at the cursor begins, as [`cellcli::complete`] divides words.
fn word_start(line: &str, cursor: usize) -> usize {
    let before = &line[..cursor];
    let ends_word = |c: char| c.is_whitespace() || ",=();<>!".contains(c);
    before.char_indices().rev().find(|(_, c)| ends_word(*c)).map_or(0, |(at, c)| at + c.len_utf8())
}

impl Hinter for Words {
    type Hint = String;
}
impl Highlighter for Words {}
impl Validator for Words {}
impl Helper for Words {}

/// Prompt until EXIT or the end of input.
pub(super) fn run(session: &mut Session) -> Result<(), ConsoleError> {
    let input = |error: ReadlineError| ConsoleError::Input(error.to_string());
    let mut editor: Editor<Words, MemHistory> =
        Editor::with_history(Config::default(), MemHistory::new()).map_err(input)?;
    session.prompts();
    editor.set_helper(Some(Words(session.asker())));
    let mut text = String::new();
    loop {
        match editor.readline(if text.is_empty() { PROMPT } else { CONTINUED }) {
            Ok(line) => {
                // History is a convenience: a line it does not take is no failure.
                let _ = editor.add_history_entry(&line);
                text.push_str(&line);
                text.push('\n');
                if cellcli::needs_continuation(&text) {
                    continue;
                }
                if session.run(&std::mem::take(&mut text))? {
                    return Ok(());
                }
            }
            // Ctrl-C drops the line begun, as at a shell.
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(input(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_after_separators() {
        for (line, start) in [("", 0), ("li", 0), ("list gr", 5), ("list griddisk a,b", 16), ("x=a", 2), ("ä ö", 3)] {
            assert_eq!(word_start(line, line.len()), start, "{line}");
        }
    }
}
