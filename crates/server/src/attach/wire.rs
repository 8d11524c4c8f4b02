//! The FUSE protocol as far as a file system of one file needs it (`linux/fuse.h`, version 7.31 and later): bytes to messages,
//! answers to bytes. No I/O.
//!
//! Never trusts a length; never allocates.

/// Longest read and write. The kernel's default limit of pages in a request (`fs.fuse.max_pages_limit`).
pub(super) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Before every message.
const HEAD_BYTES: usize = 40;
const WRITE_BYTES: usize = 40;
/// Longest message. The kernel refuses to read into less.
pub(super) const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + WRITE_BYTES + TRANSFER_BYTES_MAX as usize;
/// Before every answer.
pub(super) const ANSWER_BYTES: usize = 16;
/// Requests of one kind that the kernel has under way before others wait: the queue of a loop device is 128 long, and its merged
/// requests may be cut into several.
const BACKGROUND_MAX: u16 = 1024;
const MAJOR: u32 = 7;
const MINOR: u32 = 38;
/// The oldest version with all that is used here (FUSE_MAX_PAGES is of 7.28; Linux 5.4).
const MINOR_MIN: u32 = 31;
const ASYNC_READ: u64 = 1;
const BIG_WRITES: u64 = 1 << 5;
const ASYNC_DIO: u64 = 1 << 15;
const MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
/// Requests an earlier reader took can be had again (Linux 6.9).
const HAS_RESEND: u64 = 1 << 39;
const OPEN_DIRECT_IO: u32 = 1;
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// The only file.
const INODE: u64 = 1;
const PAGE_BYTES: u32 = 4096;
const NOTIFY_RESEND: i32 = 7;
/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE`, `FALLOC_FL_ZERO_RANGE`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Who asked: goes into the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unique(pub(super) u64);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Init {
        major: u32,
        minor: u32,
        readahead: u32,
        flags: u64,
    },
    Attributes,
    StatFs,
    Open,
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
    },
    /// Make durable.
    Sync,
    /// Zeroes, and the space may be given back.
    PunchHole {
        offset: u64,
        len: u64,
    },
    /// Zeroes, and the space stays.
    ZeroRange {
        offset: u64,
        len: u64,
    },
    /// The last of those who had it open has closed it.
    Release,
    /// The file system ends.
    Destroy,
    /// There is nothing to answer.
    NoAnswer,
    /// Asks for something that this file does not have.
    Other,
}

/// A message that is not one: the kernel speaks another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a FUSE message: {0}")]
pub(super) struct WireError(&'static str);

/// Fields in the order they come in.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> Result<u32, WireError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WireError("it is too short"))?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*head))
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(WireError("it is too short"))?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*head))
    }
}

/// Take a message apart: all of `bytes`, as one read has given them.
pub(super) fn decode(bytes: &[u8]) -> Result<(Unique, Message<'_>), WireError> {
    let mut head = Fields(bytes);
    let (len, opcode, unique, _node) = (head.u32()?, head.u32()?, head.u64()?, head.u64()?);
    if len as usize != bytes.len() || bytes.len() < HEAD_BYTES {
        return Err(WireError("its length is wrong"));
    }
    let mut body = Fields(&bytes[HEAD_BYTES..]);
    let message = match opcode {
        // FORGET, BATCH_FORGET.
        2 | 42 => Message::NoAnswer,
        3 => Message::Attributes,
        14 => Message::Open,
        15 => {
            let (_handle, offset, len) = (body.u64()?, body.u64()?, body.u32()?);
            if len > TRANSFER_BYTES_MAX {
                return Err(WireError("a read is longer than agreed"));
            }
            Message::Read { offset, len }
        }
        16 => {
            let (_handle, offset, len) = (body.u64()?, body.u64()?, body.u32()?);
            let data = &bytes.get(HEAD_BYTES + WRITE_BYTES..).ok_or(WireError("it is too short"))?;
            if len as usize != data.len() || len > TRANSFER_BYTES_MAX {
                return Err(WireError("a write has another length than its data"));
            }
            Message::Write { offset, data }
        }
        17 => Message::StatFs,
        18 => Message::Release,
        20 => Message::Sync,
        26 => {
            let (major, minor, readahead, low) = (body.u32()?, body.u32()?, body.u32()?, body.u32()?);
            let high = if u64::from(low) & INIT_EXT != 0 { body.u32()? } else { 0 };
            Message::Init { major, minor, readahead, flags: u64::from(high) << 32 | u64::from(low) }
        }
        38 => Message::Destroy,
        43 => {
            let (_handle, offset, len, mode) = (body.u64()?, body.u64()?, body.u64()?, body.u32()?);
            if offset.checked_add(len).is_none() {
                return Err(WireError("a range has no end"));
            }
            match mode {
                mode if mode == PUNCH_HOLE | KEEP_SIZE => Message::PunchHole { offset, len },
                mode if mode & !KEEP_SIZE == ZERO_RANGE => Message::ZeroRange { offset, len },
                _ => Message::Other,
            }
        }
        _ => Message::Other,
    };
    Ok((Unique(unique), message))
}

/// What comes before `payload_bytes` of an answer; `errno` 0: it was done.
pub(super) fn answer(unique: Unique, errno: i32, payload_bytes: usize) -> [u8; ANSWER_BYTES] {
    let len = (ANSWER_BYTES + payload_bytes) as u32;
    let mut out = [0; ANSWER_BYTES];
    out[..4].copy_from_slice(&len.to_ne_bytes());
    out[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    out[8..].copy_from_slice(&unique.0.to_ne_bytes());
    out
}

/// Have the kernel hand out again what was taken and not answered.
pub(super) fn resend() -> [u8; ANSWER_BYTES] {
    let mut out = answer(Unique(0), 0, 0);
    out[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    out
}

fn words<const N: usize>(fields: &[(usize, u32)]) -> [u8; N] {
    let mut out = [0; N];
    for (at, value) in fields {
        out[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    out
}

fn put(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

/// The answer to the first message, and whether [`resend`] works here.
pub(super) fn init(major: u32, minor: u32, readahead: u32, offered: u64) -> Result<([u8; 64], bool), WireError> {
    if major != MAJOR || minor < MINOR_MIN {
        return Err(WireError("the kernel's FUSE is older than 7.31 (Linux 5.4)"));
    }
    let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | INIT_EXT | HAS_RESEND;
    let flags = wanted & offered;
    let pages = TRANSFER_BYTES_MAX / PAGE_BYTES;
    let background = u32::from(BACKGROUND_MAX) | u32::from(BACKGROUND_MAX) << 16;
    let out = words(&[
        (0, MAJOR),
        (4, MINOR.min(minor)),
        (8, readahead),
        (12, flags as u32),
        (16, background),
        (20, TRANSFER_BYTES_MAX),
        (24, 1),
        (28, pages),
        (32, (flags >> 32) as u32),
    ]);
    Ok((out, flags & HAS_RESEND != 0))
}

/// The answer to [`Message::Attributes`]; it holds at this moment only.
pub(super) fn attributes(size_bytes: u64, read_only: bool) -> [u8; 104] {
    let mode = 0o100_000 | if read_only { 0o400 } else { 0o600 };
    let mut out = words(&[(16 + 60, mode), (16 + 64, 1), (16 + 80, PAGE_BYTES)]);
    put(&mut out, 16, INODE);
    put(&mut out, 24, size_bytes);
    put(&mut out, 32, size_bytes.div_ceil(512));
    out
}

/// The answer to [`Message::Open`]: past the page cache, writes side by side.
pub(super) fn opened() -> [u8; 16] {
    words(&[(8, OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES)])
}

/// The answer to [`Message::Write`].
pub(super) fn written(len: u32) -> [u8; 8] {
    words(&[(0, len)])
}

/// The answer to [`Message::StatFs`].
pub(super) fn stat_fs(size_bytes: u64) -> [u8; 80] {
    let mut out = words(&[(40, PAGE_BYTES), (44, 255), (48, PAGE_BYTES)]);
    put(&mut out, 0, size_bytes / u64::from(PAGE_BYTES));
    put(&mut out, 24, 1);
    out
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        out[..4].copy_from_slice(&((HEAD_BYTES + body.len()) as u32).to_ne_bytes());
        out[4..8].copy_from_slice(&opcode.to_ne_bytes());
        put(&mut out, 8, 77);
        put(&mut out, 16, INODE);
        out.extend_from_slice(body);
        out
    }

    fn transfer(offset: u64, len: u32) -> Vec<u8> {
        let mut body = vec![0; 40];
        put(&mut body, 8, offset);
        body[16..20].copy_from_slice(&len.to_ne_bytes());
        body
    }

    fn range(offset: u64, len: u64, mode: u32) -> Vec<u8> {
        let mut body = vec![0; 32];
        put(&mut body, 8, offset);
        put(&mut body, 16, len);
        body[24..28].copy_from_slice(&mode.to_ne_bytes());
        body
    }

    #[test]
    fn requests_of_the_kernel_are_understood() {
        let mut write = transfer(8192, 3);
        write.extend_from_slice(b"abc");
        for (opcode, body, expected) in [
            (15, transfer(4096, 512), Message::Read { offset: 4096, len: 512 }),
            (16, write, Message::Write { offset: 8192, data: b"abc" }),
            (20, vec![0; 16], Message::Sync),
            (43, range(5, 6, PUNCH_HOLE | KEEP_SIZE), Message::PunchHole { offset: 5, len: 6 }),
            (43, range(5, 6, ZERO_RANGE | KEEP_SIZE), Message::ZeroRange { offset: 5, len: 6 }),
            (43, range(5, 6, 0), Message::Other),
            (42, vec![0; 8], Message::NoAnswer),
            (22, vec![0; 24], Message::Other),
        ] {
            assert_eq!(decode(&message(opcode, &body)).unwrap(), (Unique(77), expected));
        }
    }

    /// What does not hold together is refused: none of it may become a request to a disk.
    #[test]
    fn what_does_not_hold_together_is_refused() {
        for (opcode, body) in [
            (15, transfer(0, TRANSFER_BYTES_MAX + 1)),
            (15, vec![0; 12]),
            (16, transfer(0, 1)),
            (43, range(u64::MAX, 2, PUNCH_HOLE | KEEP_SIZE)),
        ] {
            assert!(decode(&message(opcode, &body)).is_err(), "{opcode}");
        }
        let mut longer = message(20, &[0; 16]);
        longer.push(0);
        assert!(decode(&longer).is_err() && decode(&longer[..39]).is_err());
    }

    #[test]
    fn answers_are_as_the_kernel_reads_them() {
        let head = answer(Unique(9), 5, 8);
        assert_eq!(head[..8], [24_u32.to_ne_bytes(), (-5_i32).to_ne_bytes()].concat());
        let mut init_body = vec![0; 64];
        for (at, value) in [(0, 7), (4, 45), (8, 131_072), (12, u32::MAX), (16, u32::MAX)] {
            init_body[at..at + 4].copy_from_slice(&u32::to_ne_bytes(value));
        }
        let first = message(26, &init_body);
        let Message::Init { major, minor, readahead, flags } = decode(&first).unwrap().1 else { panic!("not INIT") };
        let (out, resends) = init(major, minor, readahead, flags).unwrap();
        assert!(resends && u32::from_ne_bytes(out[4..8].try_into().unwrap()) == MINOR);
        assert!(!init(7, 31, 0, 0).unwrap().1 && init(7, 30, 0, 0).is_err() && init(8, 40, 0, 0).is_err());
        let attributes = attributes(1 << 30, true);
        assert_eq!(u64::from_ne_bytes(attributes[24..32].try_into().unwrap()), 1 << 30);
        assert_eq!(u32::from_ne_bytes(attributes[76..80].try_into().unwrap()), 0o100_400);
    }

    proptest! {
        /// Any bytes end in a message or an error, and a message never speaks of more data than there is.
        #[test]
        fn any_bytes_are_a_message_or_an_error(opcode in 0_u32..60, body in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..300) {
            let bytes = message(opcode, &body);
            let bytes = &bytes[..cut.min(bytes.len())];
            match decode(bytes) {
                Ok((_, Message::Write { data, .. })) => prop_assert!(data.len() + HEAD_BYTES + WRITE_BYTES == bytes.len()),
                Ok((_, Message::Read { len, .. })) => prop_assert!(len <= TRANSFER_BYTES_MAX),
                Ok((_, Message::PunchHole { offset, len } | Message::ZeroRange { offset, len })) => {
                    prop_assert!(offset.checked_add(len).is_some());
                }
                _ => {}
            }
        }
    }
}
