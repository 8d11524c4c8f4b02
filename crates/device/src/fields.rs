//! Taking little-endian fields off the front of bytes; never beyond their end.

/// The bytes that are left.
#[derive(Clone, Debug)]
pub struct Fields<'a>(&'a [u8]);

/// Fewer bytes are left than the field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes end within a field")]
pub struct Truncated;

impl<'a> Fields<'a> {
    /// All of these bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// Fewer are left, as of every field below.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    /// One byte.
    ///
    /// # Errors
    /// None is left.
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array().map(u8::from_le_bytes)
    }

    /// Two bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_le_bytes)
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u128(&mut self) -> Result<u128, Truncated> {
        self.array().map(u128::from_le_bytes)
    }

    /// What is left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_off_the_front_and_none_beyond_the_end() {
        let mut fields = Fields::new(&[1, 2, 0, 3, 0, 0, 0, 9]);
        assert_eq!((fields.u8(), fields.u16(), fields.u32()), (Ok(1), Ok(2), Ok(3)));
        assert_eq!(
            (fields.u16(), fields.rest()),
            (Err(Truncated), &[9][..]),
            "a field that is not there takes nothing"
        );
        assert_eq!((fields.bytes(2), fields.bytes(1), fields.u8()), (Err(Truncated), Ok(&[9][..]), Err(Truncated)));
    }
}
