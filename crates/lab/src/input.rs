//! Files as they come: unpacked, with a look at the beginning, then in lines or records.
//!
//! Shared by the readers of block traces and of redo times. Never holds more of a file than one buffer and one line, never
//! judges what it reads.

use crate::zstd;
use std::io::{self, BufRead, BufReader, Read};

/// The longest line that is handed out: what is measured stands in shorter ones; SQL text, which does not, is passed over.
pub(crate) const LINE_BYTES_MAX: usize = 4096;
/// What is looked at to tell a format.
const HEAD_BYTES: usize = 64 << 10;

/// An xz file begins so.
const XZ_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];

/// How a line ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// There was none: the file has ended.
    None,
    /// With a line feed.
    Whole,
    /// With the file.
    Unended,
    /// It goes on beyond [`LINE_BYTES_MAX`]; the rest has been passed over.
    TooLong,
}

/// A file being read.
pub(crate) struct Input(Box<dyn BufRead + Send>);

impl Input {
    /// Over bytes that may be packed with zstd, gzip or xz; the input and its first bytes, which it will give again.
    ///
    /// # Errors
    /// They cannot be read or unpacked.
    pub(crate) fn over(raw: Box<dyn Read + Send>) -> io::Result<(Input, Vec<u8>)> {
        let mut packed = BufReader::with_capacity(HEAD_BYTES, raw);
        let magic = packed.fill_buf()?;
        let mut plain: Box<dyn Read + Send> = if zstd::is_packed(magic) {
            Box::new(zstd::Frames::new(packed))
        } else if magic.starts_with(&[0x1f, 0x8b]) {
            Box::new(flate2::bufread::MultiGzDecoder::new(packed))
        } else if magic.starts_with(&XZ_MAGIC) {
            // As xz -d does, stream after stream.
            Box::new(lzma_rust2::XzReader::new(packed, true))
        } else {
            Box::new(packed)
        };
        let mut head = Vec::with_capacity(HEAD_BYTES);
        plain.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        let again = io::Cursor::new(head.clone()).chain(plain);
        Ok((Input(Box::new(BufReader::with_capacity(HEAD_BYTES, again))), head))
    }

    /// The next line into `buffer`, without white space at its end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read_line(&mut self, buffer: &mut Vec<u8>) -> io::Result<Line> {
        buffer.clear();
        let read = (&mut self.0).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', buffer)?;
        let line = match (read, buffer.last()) {
            (0, _) => Line::None,
            (_, Some(b'\n')) => Line::Whole,
            (read, _) if read > LINE_BYTES_MAX => {
                self.0.skip_until(b'\n')?;
                Line::TooLong
            }
            _ => Line::Unended,
        };
        while buffer.last().is_some_and(u8::is_ascii_whitespace) {
            buffer.pop();
        }
        Ok(line)
    }

    /// The next `bytes` into `buffer`, fewer at the end of the file; how many.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read_record(&mut self, bytes: usize, buffer: &mut Vec<u8>) -> io::Result<usize> {
        buffer.clear();
        (&mut self.0).take(bytes as u64).read_to_end(buffer)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn lines(bytes: Vec<u8>) -> Vec<(Line, usize)> {
        let (mut input, _) = Input::over(Box::new(io::Cursor::new(bytes))).unwrap();
        let mut buffer = Vec::new();
        let mut lines = Vec::new();
        loop {
            match input.read_line(&mut buffer).unwrap() {
                Line::None => return lines,
                line => lines.push((line, buffer.len())),
            }
        }
    }

    #[test]
    fn lines_end_in_four_ways() {
        let long = LINE_BYTES_MAX;
        assert_eq!(lines(Vec::new()), []);
        assert_eq!(lines(b"ab \r\n\nc".to_vec()), [(Line::Whole, 2), (Line::Whole, 0), (Line::Unended, 1)]);
        let text = format!("{}\n{}\n{}\nend\n", "x".repeat(long), "y".repeat(long + 1), "z".repeat(300_000));
        let expected = [(Line::Whole, long), (Line::TooLong, long + 1), (Line::TooLong, long + 1), (Line::Whole, 3)];
        assert_eq!(lines(text.into_bytes()), expected);
    }

    #[test]
    fn the_head_is_given_again() {
        let bytes = vec![7; HEAD_BYTES * 2 + 1];
        let (mut input, head) = Input::over(Box::new(io::Cursor::new(bytes.clone()))).unwrap();
        assert_eq!(head.len(), HEAD_BYTES);
        let mut all = Vec::new();
        assert_eq!(input.read_record(usize::MAX, &mut all).unwrap(), bytes.len());
        assert!(all == bytes);
    }
}
