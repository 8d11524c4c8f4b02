//! A client's reader of replies: any bytes, cut in two ways. Both must say the same, data must lie within what was
//! asked, and only so much may be held back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::codec::{CodecError, Command, Cookie, Expect, Expected, ReplyDecoder, ReplyEvent};

/// Cookies 0 to 7 wait: reads, writes and block status of several sizes.
struct Waiting;

impl Expect for Waiting {
    fn expected(&self, cookie: Cookie) -> Option<Expected> {
        let command = match cookie.0 {
            0..=3 => Command::Read,
            4 | 5 => Command::BlockStatus,
            6 => Command::Write,
            7 => Command::Flush,
            _ => return None,
        };
        Some(Expected { command, offset: cookie.0 * 4096, len: 1 << (cookie.0 * 3) })
    }
}

/// What was said, independent of how the stream was cut.
#[derive(Debug, PartialEq)]
enum Said {
    Bytes(u64, u64, u8),
    Hole(u64, u64, u32),
    Extent(u64, u32, u32, u32),
    Error(u64, u32, String, Option<u64>),
    Done(u64),
}

fn read(structured: bool, data: &[u8], cut: usize) -> (Vec<Said>, Option<CodecError>) {
    let mut decoder = ReplyDecoder::new(structured);
    let mut said = Vec::new();
    let (mut at, mut have) = (0, cut.min(data.len()));
    loop {
        let (event, used) = match decoder.next(&data[at..have], &Waiting) {
            Ok(next) => next,
            Err(error) => return (said, Some(error)),
        };
        at += used;
        assert!(at <= have);
        match event {
            None if have == data.len() => return (said, None),
            None => {
                assert!(have - at <= ReplyDecoder::CARRY_BYTES_MAX, "it asks to keep too much");
                have = (have + cut).min(data.len());
            }
            Some(ReplyEvent::Data { cookie, offset, bytes }) => {
                let asked = Waiting.expected(cookie).expect("waits");
                assert!(offset >= asked.offset);
                assert!(offset + bytes.len() as u64 <= asked.offset + u64::from(asked.len));
                said.extend(bytes.iter().enumerate().map(|(i, b)| Said::Bytes(cookie.0, offset + i as u64, *b)));
            }
            Some(ReplyEvent::Hole { cookie, offset, len }) => {
                let asked = Waiting.expected(cookie).expect("waits");
                assert!(offset >= asked.offset && offset + u64::from(len) <= asked.offset + u64::from(asked.len));
                said.push(Said::Hole(cookie.0, offset, len));
            }
            Some(ReplyEvent::Status { cookie, context, extents }) => {
                said.extend(extents.iter().map(|e| Said::Extent(cookie.0, context, e.len, e.flags)));
            }
            Some(ReplyEvent::Error { cookie, errno, message, offset }) => {
                said.push(Said::Error(cookie.0, errno.to_wire(), message, offset));
            }
            Some(ReplyEvent::Done { cookie }) => said.push(Said::Done(cookie.0)),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else { return };
    let structured = how & 1 != 0;
    let (whole, whole_error) = read(structured, data, data.len().max(1));
    let (cut, cut_error) = read(structured, data, usize::from(how >> 1) + 1);
    assert_eq!(whole_error, cut_error);
    // Extents are told in batches: before an error in one, either cut may have told more of it.
    let told = if whole_error.is_some() { whole.len().min(cut.len()) } else { whole.len().max(cut.len()) };
    assert_eq!(whole.get(..told), cut.get(..told));
});
