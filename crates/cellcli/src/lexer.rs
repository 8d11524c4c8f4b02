//! Text to statements, statements to tokens.
//!
//! A statement ends at `;` or at the end of a line that does not end in `-`. Comments (`REM`, `REMARK`, leading `--`) run
//! to the end of their line. Never looks at the table: it does not know which words mean something.

use crate::error::ErrorKind;

/// Bytes of text taken at once: far above any script, and small enough to hold in memory many times over.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Tokens of one statement: a plan of 1024 directives with a dozen options each fits twice over.
pub const STATEMENT_TOKENS_MAX: usize = 1 << 16;

/// Bytes from the start of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A cause with its place, before the line and column are worked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: ErrorKind,
    pub(crate) at: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A bare word: keyword, name, number, size, time, path.
    Word(String),
    /// Text in quotes, without them.
    Quoted(String),
    /// `, = != < <= > >= ! ( )`
    Symbol(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) span: Span,
}

/// What stands between two statement ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Raw {
    Tokens(Vec<Token>),
    Remark(String),
}

/// Longer symbols first, so that `!=` is not read as `!` and `=`.
const SYMBOLS: [&str; 10] = ["!=", "<=", ">=", ",", "=", "<", ">", "!", "(", ")"];

fn is_word_character(character: char) -> bool {
    !(character.is_whitespace()
        || character.is_control()
        || matches!(character, ',' | '=' | '<' | '>' | '!' | '(' | ')' | ';' | '\'' | '"' | '-'))
}

/// The bytes up to and with the line end, when nothing but blanks stands before it. Reads no further than the first other
/// character, so that lexing stays linear in the text.
fn blank_to_line_end(text: &str) -> Option<usize> {
    for (at, next) in text.char_indices() {
        if next == '\n' {
            return Some(at + 1);
        }
        if !next.is_whitespace() {
            return None;
        }
    }
    Some(text.len())
}

/// Whether `text` can be written without quotes and read back as one word.
pub(crate) fn is_bare_word(text: &str) -> bool {
    let mut lexer = Lexer::new(text);
    matches!(lexer.next_statement(), Some(Ok((Raw::Tokens(tokens), _)))
        if matches!(tokens.as_slice(), [Token { kind: TokenKind::Word(word), .. }] if word == text))
}

#[derive(Debug)]
pub(crate) struct Lexer<'text> {
    text: &'text str,
    at: usize,
}

impl<'text> Lexer<'text> {
    pub(crate) const fn new(text: &'text str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'text str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// The next statement with the span it covers, or the fault found in it; after a fault the lexer stands behind the
    /// line the fault is on. `None` at the end.
    pub(crate) fn next_statement(&mut self) -> Option<Result<(Raw, Span), Fault>> {
        loop {
            self.skip_blank_and_ends();
            if self.rest().is_empty() {
                return None;
            }
            let start = self.at;
            if let Some(remark) = self.remark() {
                return Some(Ok((Raw::Remark(remark), Span { start, end: self.at })));
            }
            match self.tokens() {
                // A continuation mark with nothing around it.
                Ok(tokens) if tokens.is_empty() => {}
                Ok(tokens) => {
                    let end = tokens.last().map_or(start, |token| token.span.end);
                    return Some(Ok((Raw::Tokens(tokens), Span { start, end })));
                }
                Err(fault) => {
                    self.skip_line();
                    return Some(Err(fault));
                }
            }
        }
    }

    fn skip_blank_and_ends(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches(|it: char| it.is_whitespace() || it == ';').len();
    }

    fn skip_line(&mut self) {
        let rest = self.rest();
        self.at += rest.find('\n').unwrap_or(rest.len());
    }

    /// A comment that begins here, to the end of its line.
    fn remark(&mut self) -> Option<String> {
        let rest = self.rest();
        let mark = if rest.starts_with("--") {
            "--".len()
        } else {
            let begins = |word: &str| rest.get(..word.len()).is_some_and(|it| it.eq_ignore_ascii_case(word));
            let word = ["REMARK", "REM"].into_iter().find(|word| begins(word))?;
            if !rest[word.len()..].chars().next().is_none_or(|next| next.is_whitespace() || next == ';') {
                return None;
            }
            word.len()
        };
        let line = rest.lines().next().unwrap_or("");
        self.at += line.len();
        // Trimmed last: a control character at the end becomes a blank that would not read back.
        let text: String = line[mark..].chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
        Some(text.trim().to_owned())
    }

    /// The tokens up to the end of the statement.
    fn tokens(&mut self) -> Result<Vec<Token>, Fault> {
        let mut tokens = Vec::new();
        while let Some(next) = self.peek() {
            if next == ';' || next == '\n' {
                break;
            }
            if next.is_whitespace() {
                self.at += next.len_utf8();
                continue;
            }
            if next == '-' && self.continues_line() {
                continue;
            }
            if tokens.len() == STATEMENT_TOKENS_MAX {
                return Err(Fault {
                    kind: ErrorKind::TooLarge { what: "the number of words", max: STATEMENT_TOKENS_MAX },
                    at: self.at,
                });
            }
            let start = self.at;
            let kind = self.token(next)?;
            tokens.push(Token { kind, span: Span { start, end: self.at } });
        }
        Ok(tokens)
    }

    /// Steps over a `-` that ends its line, and the line end.
    fn continues_line(&mut self) -> bool {
        let Some(blank) = blank_to_line_end(&self.rest()[1..]) else { return false };
        self.at += 1 + blank;
        true
    }

    fn token(&mut self, next: char) -> Result<TokenKind, Fault> {
        if next == '\'' || next == '"' {
            return self.quoted(next).map(TokenKind::Quoted);
        }
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| self.rest().starts_with(**symbol)) {
            self.at += symbol.len();
            return Ok(TokenKind::Symbol(symbol));
        }
        if next.is_control() {
            return Err(Fault { kind: ErrorKind::ControlCharacter, at: self.at });
        }
        self.word().map(TokenKind::Word)
    }

    /// A bare word. A hyphen belongs to it when more of the word follows; one that ends the line continues it.
    fn word(&mut self) -> Result<String, Fault> {
        let start = self.at;
        while let Some(next) = self.peek() {
            if next == '-' {
                let follower = self.rest()[1..].chars().next();
                if !follower.is_some_and(is_word_character) {
                    if self.at > start && blank_to_line_end(&self.rest()[1..]).is_some() {
                        break;
                    }
                    return Err(Fault { kind: ErrorKind::StrayHyphen, at: self.at });
                }
            } else if !is_word_character(next) {
                break;
            }
            self.at += next.len_utf8();
        }
        Ok(self.text[start..self.at].to_owned())
    }

    /// Text up to the closing `quote` on the same line; the quote itself is written twice inside.
    fn quoted(&mut self, quote: char) -> Result<String, Fault> {
        let start = self.at;
        self.at += quote.len_utf8();
        let mut text = String::new();
        while let Some(next) = self.peek() {
            if next == quote {
                self.at += quote.len_utf8();
                if self.peek() != Some(quote) {
                    return Ok(text);
                }
            } else if next == '\n' || next == '\r' {
                break;
            } else if next.is_control() {
                return Err(Fault { kind: ErrorKind::ControlCharacter, at: self.at });
            }
            text.push(next);
            self.at += next.len_utf8();
        }
        Err(Fault { kind: ErrorKind::UnterminatedQuote, at: start })
    }
}

/// Whether the last line of `text` ends in a continuation mark, so that an interactive client asks for more.
#[must_use]
pub fn needs_continuation(text: &str) -> bool {
    let mut lexer = Lexer::new(text);
    let mut last = None;
    while let Some(statement) = lexer.next_statement() {
        last = Some(statement);
    }
    let line = text.trim_end_matches('\n').lines().next_back().unwrap_or("").trim_end();
    let in_statement = !matches!(last, Some(Ok((Raw::Remark(_), _)) | Err(_)));
    // Inside quotes the hyphen is text, but then the line ends in the quote.
    in_statement && line.ends_with('-')
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut lexer = Lexer::new(text);
        match lexer.next_statement().unwrap().unwrap().0 {
            Raw::Tokens(tokens) => tokens
                .into_iter()
                .map(|token| match token.kind {
                    TokenKind::Word(word) => word,
                    TokenKind::Quoted(quoted) => format!("<{quoted}>"),
                    TokenKind::Symbol(symbol) => symbol.to_owned(),
                })
                .collect(),
            Raw::Remark(text) => vec!["REM".into(), text],
        }
    }

    fn fault(text: &str) -> ErrorKind {
        Lexer::new(text).next_statement().unwrap().unwrap_err().kind
    }

    fn count(text: &str) -> usize {
        let mut lexer = Lexer::new(text);
        std::iter::from_fn(|| lexer.next_statement()).count()
    }

    #[test]
    fn words_symbols_and_quotes() {
        assert_eq!(
            words("where a!=-5 and b>=2013-09-12T23:46:14+02:00"),
            ["where", "a", "!=", "-5", "and", "b", ">=", "2013-09-12T23:46:14+02:00"]
        );
        assert_eq!(words(r#"x 'it''s' "a 'b'" '' o/*/ssd*"#), ["x", "<it's>", "<a 'b'>", "<>", "o/*/ssd*"]);
        assert_eq!(words("a=(b,c)"), ["a", "=", "(", "b", ",", "c", ")"]);
    }

    #[test]
    fn a_hyphen_at_the_end_of_a_line_continues_it() {
        assert_eq!(words("list griddisk -  \n detail"), ["list", "griddisk", "detail"]);
        assert_eq!(words("list griddisk-\r\n detail"), ["list", "griddisk", "detail"]);
        assert_eq!(words("list cell -"), ["list", "cell"]);
        assert_eq!(count("-\n-\n"), 0);
        assert!(needs_continuation("list cell -"));
        assert!(needs_continuation("list cell;\nlist griddisk -\n"));
        assert!(!needs_continuation("list cell"));
        assert!(!needs_continuation("REM well -"));
        assert!(!needs_continuation("list griddisk 'a -'"));
    }

    #[test]
    fn statements_end_at_semicolons_and_lines() {
        assert_eq!(count("drop flashcache;\ncreate flashcache all;\n"), 2);
        assert_eq!(count("drop flashcache\n\n;;create flashcache all"), 2);
        assert_eq!(count("REM a; b\n-- c; d\nlist cell"), 3);
        assert_eq!(words("remark  the; rest "), ["REM", "the; rest"]);
        assert_eq!(words("rem a\u{7}b\u{0}\u{7}"), ["REM", "a b"]);
        assert_eq!(words("remarkable x"), ["remarkable", "x"]);
    }

    /// A fault costs its own line, not the ones after it.
    #[test]
    fn faults_stay_on_their_line() {
        assert_eq!(count("list 'cell\nlist cell"), 2);
        assert_eq!(fault("list 'cell\n'"), ErrorKind::UnterminatedQuote);
        assert_eq!(fault("list a- b"), ErrorKind::StrayHyphen);
        assert_eq!(fault("list --x"), ErrorKind::StrayHyphen);
        assert_eq!(fault("list \u{7}"), ErrorKind::ControlCharacter);
        assert_eq!(fault("list '\t'"), ErrorKind::ControlCharacter);
    }

    #[test]
    fn bare_words() {
        for word in ["DATA_CD_00_c1", "a-b", "/dev/sdb", "-5", "1.5G", "/tmp/fc-_aja85y1/x", "/a-/b", "a-.scl"] {
            assert!(is_bare_word(word), "{word}");
        }
        for text in ["", "a b", "a-", "-", "it's", "a;b", "REM", "--a", "a,b", "a\n"] {
            assert!(!is_bare_word(text), "{text}");
        }
    }
}
