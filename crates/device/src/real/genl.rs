//! Generic netlink as far as a kernel driver is configured over it: messages to bytes, answers from bytes, one question at a time.
//!
//! Never trusts a length; never waits for longer than [`ANSWER`].

use super::sys::{check, own};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Of `linux/netlink.h` and `linux/genetlink.h`.
const HEAD_BYTES: usize = 16;
const GENL_HEAD_BYTES: usize = 4;
const ATTRIBUTE_HEAD_BYTES: usize = 4;
const FLAG_REQUEST: u16 = 1;
const FLAG_ACK: u16 = 4;
const KIND_ERROR: u16 = 2;
const ATTRIBUTE_NESTED: u16 = 1 << 15;
/// The upper two bits of an attribute's kind are flags.
const ATTRIBUTE_KIND: u16 = !(3 << 14);
const CONTROL_FAMILY: u16 = 16;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;
/// For an answer: the kernel gives it while it is asked.
const ANSWER: Duration = Duration::from_secs(10);
/// An answer: a family describes itself and all of its operations in one.
const ANSWER_BYTES_MAX: usize = 32 << 10;
/// Messages that are not ours in a row before it is given up.
const STRANGERS_MAX: usize = 64;

/// The attributes of a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    pub(crate) fn new() -> Attributes {
        Attributes::default()
    }

    fn with(mut self, kind: u16, payload: &[u8]) -> Attributes {
        let len = u16::try_from(ATTRIBUTE_HEAD_BYTES + payload.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(&payload[..usize::from(len) - ATTRIBUTE_HEAD_BYTES]);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Attributes {
        self.with(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u64(self, kind: u16, value: u64) -> Attributes {
        self.with(kind, &value.to_ne_bytes())
    }

    /// A string, with its end.
    pub(crate) fn text(self, kind: u16, value: &str) -> Attributes {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.with(kind, &bytes)
    }

    pub(crate) fn nested(self, kind: u16, inner: &Attributes) -> Attributes {
        self.with(kind | ATTRIBUTE_NESTED, &inner.0)
    }
}

/// The payload of the first attribute of a kind.
pub(crate) fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (len, rest) = bytes.split_first_chunk::<2>()?;
        let (kind, _) = rest.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_ne_bytes(*len));
        let payload = bytes.get(ATTRIBUTE_HEAD_BYTES..len)?;
        if u16::from_ne_bytes(*kind) & ATTRIBUTE_KIND == wanted {
            return Some(payload);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

/// A question, as it is sent.
fn encode(family: u16, command: u8, sequence: u32, attributes: &Attributes) -> Vec<u8> {
    let len = (HEAD_BYTES + GENL_HEAD_BYTES + attributes.0.len()) as u32;
    let mut out = Vec::with_capacity(len as usize);
    out.extend_from_slice(&len.to_ne_bytes());
    out.extend_from_slice(&family.to_ne_bytes());
    out.extend_from_slice(&(FLAG_REQUEST | FLAG_ACK).to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&0_u32.to_ne_bytes());
    out.extend_from_slice(&[command, 1, 0, 0]);
    out.extend_from_slice(&attributes.0);
    out
}

/// One message of the kernel's answer to a question.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// It is done; or an errno.
    Done(i32),
    /// Attributes of an answer; the end of it comes apart.
    Answer(Vec<u8>),
}

/// The messages of one datagram that answer a question.
fn decode(mut bytes: &[u8], family: u16, sequence: u32) -> Vec<Said> {
    let mut out = Vec::new();
    while let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, kind) = (word(0) as usize, u16::from_ne_bytes([head[4], head[5]]));
        let Some(body) = bytes.get(HEAD_BYTES..len) else { break };
        if word(8) == sequence {
            match body.split_first_chunk::<4>() {
                Some((errno, _)) if kind == KIND_ERROR => {
                    out.push(Said::Done(i32::from_ne_bytes(*errno).wrapping_neg()))
                }
                Some((_, attributes)) if kind == family => out.push(Said::Answer(attributes.to_vec())),
                _ => {}
            }
        }
        match bytes.get(len.next_multiple_of(4)..) {
            Some(rest) => bytes = rest,
            None => break,
        }
    }
    out
}

/// A family of the kernel's, by name.
pub(crate) struct Family {
    socket: OwnedFd,
    id: u16,
    sequence: u32,
}

impl Family {
    /// Look it up.
    ///
    /// # Errors
    /// `ENOENT`: the kernel, or this network namespace, has none of this name.
    pub(crate) fn open(name: &str) -> Result<Family> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is passed.
        let socket = own(check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) })?);
        let patience = libc::timeval { tv_sec: ANSWER.as_secs() as libc::time_t, tv_usec: 0 };
        // SAFETY: reads a live structure of the length given.
        check(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const patience).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        })?;
        let mut family = Family { socket, id: CONTROL_FAMILY, sequence: 0 };
        let asked = Attributes::new().text(CONTROL_FAMILY_NAME, name);
        let answer = family.ask(CONTROL_GET_FAMILY, &asked)?;
        let id = find(&answer, CONTROL_FAMILY_ID).and_then(|id| id.try_into().ok());
        family.id = u16::from_ne_bytes(id.ok_or_else(|| Error::from(ErrorKind::InvalidData))?);
        Ok(family)
    }

    /// Have a command carried out; the attributes of its answer, empty when it has none.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn ask(&mut self, command: u8, attributes: &Attributes) -> Result<Vec<u8>> {
        self.sequence += 1;
        let message = encode(self.id, command, self.sequence, attributes);
        // SAFETY: a live buffer of that length, only read. A socket without an address talks to the kernel.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        check(i32::try_from(sent).unwrap_or(-1))?;
        let mut buf = vec![0_u8; ANSWER_BYTES_MAX];
        let mut answer = Vec::new();
        for _ in 0..STRANGERS_MAX {
            // SAFETY: a live buffer of that length.
            let got = unsafe { libc::recv(self.socket.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
            let got = match usize::try_from(got) {
                Ok(got) => got,
                Err(_) if Error::last_os_error().kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Err(Error::last_os_error()),
            };
            for said in decode(&buf[..got], self.id, self.sequence) {
                match said {
                    Said::Answer(attributes) => answer = attributes,
                    Said::Done(0) => return Ok(answer),
                    Said::Done(errno) => return Err(Error::from_raw_os_error(errno)),
                }
            }
        }
        Err(Error::from(ErrorKind::InvalidData))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again() {
        let inner = Attributes::new().u32(1, 7);
        let all = Attributes::new().text(2, "nbd").u64(3, 1 << 40).nested(7, &inner);
        assert_eq!(all.0.len() % 4, 0);
        assert_eq!(find(&all.0, 2), Some(&b"nbd\0"[..]));
        assert_eq!(find(&all.0, 3), Some(&(1_u64 << 40).to_ne_bytes()[..]));
        assert_eq!(find(find(&all.0, 7).unwrap(), 1), Some(&7_u32.to_ne_bytes()[..]));
        assert_eq!(find(&all.0, 4), None);
    }

    /// An answer and its end come in one datagram or in two; what answers somebody else is passed over.
    #[test]
    fn answers_are_told_from_what_is_not_ours() {
        let attributes = Attributes::new().u32(1, 3);
        let answer = encode(28, 1, 5, &attributes);
        let mut end = encode(KIND_ERROR, 0, 5, &Attributes::new());
        let mut failed = end.clone();
        failed[HEAD_BYTES..].copy_from_slice(&(-libc::EBUSY).to_ne_bytes());
        end[HEAD_BYTES..].copy_from_slice(&0_i32.to_ne_bytes());
        let both = [answer, end].concat();
        assert_eq!(decode(&both, 28, 5), [Said::Answer(attributes.0), Said::Done(0)]);
        assert_eq!(decode(&both, 28, 6), []);
        assert_eq!(decode(&failed, 28, 5), [Said::Done(libc::EBUSY)]);
    }

    #[test]
    fn families_are_looked_up() {
        // Every kernel with generic netlink has this one.
        assert_eq!(Family::open("nlctrl").unwrap().id, CONTROL_FAMILY);
        assert_eq!(Family::open("no-such").err().and_then(|error| error.raw_os_error()), Some(libc::ENOENT));
    }

    /// Any bytes are taken apart without a panic, and to an end.
    #[test]
    fn any_bytes_are_taken_apart() {
        let mut prng = crate::Prng::new(1);
        for round in 0..20_000_u64 {
            let mut bytes = vec![0; prng.below(200) as usize];
            bytes.iter_mut().for_each(|byte| *byte = prng.below(256) as u8);
            if let (Some(head), true) = (bytes.first_chunk_mut::<4>(), round % 2 == 0) {
                *head = (prng.below(64) as u32).to_ne_bytes();
            }
            let _ = (decode(&bytes, 28, 5), find(&bytes, 1));
        }
    }
}
