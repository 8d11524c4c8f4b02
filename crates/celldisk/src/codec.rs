//! Little-endian, hand-written, bounded: the bytes of format version 1.
//!
//! Decoding never panics, never allocates more than the bytes at hand justify, and accepts exactly what encoding
//! produces: a section that decodes encodes back to the same bytes.

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is nothing: all zero where the magic should be.
    #[error("empty")]
    Empty,
    /// Something else is there.
    #[error("no {what} magic")]
    Magic {
        /// Which section was looked for.
        what: &'static str,
    },
    /// Written by a newer release.
    #[error("format version {found} is newer than {known}, the newest this release knows")]
    NewerVersion {
        /// What the device carries.
        found: u32,
        /// The newest of what was read there.
        known: u32,
    },
    /// The checksum does not match: torn, rotten, or written for another place.
    #[error("checksum of the {what} does not match")]
    Checksum {
        /// Which part.
        what: &'static str,
    },
    /// Fewer bytes than the structure needs.
    #[error("{what} ends early")]
    Truncated {
        /// The field.
        what: &'static str,
    },
    /// A value outside its range.
    #[error("{what} has no valid value")]
    Value {
        /// The field.
        what: &'static str,
    },
    /// More of something than the format allows.
    #[error("{what} exceeds its limit of {max}")]
    Limit {
        /// The field.
        what: &'static str,
        /// The limit, in entries or bytes.
        max: usize,
    },
    /// Bytes that must be zero are not.
    #[error("{what}: reserved bytes are not zero")]
    Reserved {
        /// Where.
        what: &'static str,
    },
}

/// Appends fields. Limits were checked by the caller's `validate`.
#[derive(Debug, Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    pub(crate) fn zeroes(&mut self, count: usize) {
        self.0.resize(self.0.len() + count, 0);
    }
    /// Zeroes up to `offset`.
    pub(crate) fn pad_to(&mut self, offset: usize) {
        assert!(self.0.len() <= offset, "fields lie before offset {offset}");
        self.0.resize(offset, 0);
    }
    /// A length byte and the text.
    pub(crate) fn text8(&mut self, text: &str) {
        let Ok(len) = u8::try_from(text.len()) else { panic!("a text of {} bytes was validated", text.len()) };
        self.u8(len);
        self.bytes(text.as_bytes());
    }
    /// Two length bytes and the text.
    pub(crate) fn text16(&mut self, text: &str) {
        let Ok(len) = u16::try_from(text.len()) else { panic!("a text of {} bytes was validated", text.len()) };
        self.u16(len);
        self.bytes(text.as_bytes());
    }
}

/// Takes fields off the front.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(DecodeError::Truncated { what })?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated { what })?;
        self.0 = rest;
        Ok(*head)
    }
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
    pub(crate) fn u128(&mut self, what: &'static str) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.array(what)?))
    }
    /// 0 or 1.
    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value { what }),
        }
    }
    /// Bytes that must be zero.
    pub(crate) fn reserved(&mut self, count: usize, what: &'static str) -> Result<(), DecodeError> {
        if self.take(count, what)?.iter().any(|&b| b != 0) {
            return Err(DecodeError::Reserved { what });
        }
        Ok(())
    }
    fn text(&mut self, len: usize, max: usize, what: &'static str) -> Result<String, DecodeError> {
        if len > max {
            return Err(DecodeError::Limit { what, max });
        }
        let text = std::str::from_utf8(self.take(len, what)?).map_err(|_| DecodeError::Value { what })?;
        Ok(text.to_owned())
    }
    pub(crate) fn text8(&mut self, max: usize, what: &'static str) -> Result<String, DecodeError> {
        let len = usize::from(self.u8(what)?);
        self.text(len, max, what)
    }
    pub(crate) fn text16(&mut self, max: usize, what: &'static str) -> Result<String, DecodeError> {
        let len = usize::from(self.u16(what)?);
        self.text(len, max, what)
    }
    pub(crate) fn text32(&mut self, max: usize, what: &'static str) -> Result<String, DecodeError> {
        let len = usize::try_from(self.u32(what)?).unwrap_or(usize::MAX);
        self.text(len, max, what)
    }
    /// A count of at most `max`.
    pub(crate) fn count8(&mut self, max: usize, what: &'static str) -> Result<usize, DecodeError> {
        let count = usize::from(self.u8(what)?);
        if count > max { Err(DecodeError::Limit { what, max }) } else { Ok(count) }
    }
    /// A count of at most `max`.
    pub(crate) fn count16(&mut self, max: usize, what: &'static str) -> Result<usize, DecodeError> {
        let count = usize::from(self.u16(what)?);
        if count > max { Err(DecodeError::Limit { what, max }) } else { Ok(count) }
    }
    /// Nothing may be left.
    pub(crate) fn end(self, what: &'static str) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Value { what }) }
    }
}
