//! One reading of all metrics as bytes: a head of fixed width, then pairs of series and value, both as variable-length integers,
//! the series as the distance from the one before.

/// Version of the form, its first byte.
const VERSION: u8 = 1;
/// Version, life, monotonic time, wall time.
const HEAD_BYTES: usize = 1 + 3 * 8;

/// When a reading was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Which run of the cell: counters begin anew with it.
    pub(crate) life: u64,
    /// Nanoseconds of that run.
    pub(crate) mono_ns: u64,
    /// Nanoseconds since the epoch, by the host's clock at that time.
    pub(crate) wall_ns: u64,
}

/// A reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// When.
    pub(crate) at: Moment,
    /// Series and value, ascending by series.
    pub(crate) values: Vec<(u32, u64)>,
}

impl Reading {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.values.len() * 6);
        bytes.push(VERSION);
        for field in [self.at.life, self.at.mono_ns, self.at.wall_ns] {
            bytes.extend(field.to_le_bytes());
        }
        let mut before = 0;
        for (series, value) in &self.values {
            push(&mut bytes, u64::from(series - before));
            push(&mut bytes, *value);
            before = *series;
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Reading> {
        let [life, mono_ns, wall_ns] = head(bytes)?;
        let mut rest = &bytes[HEAD_BYTES..];
        let mut values = Vec::with_capacity(rest.len() / 4);
        let mut before = 0_u32;
        while !rest.is_empty() {
            let distance = take(&mut rest)?;
            before = before.checked_add(u32::try_from(distance).ok()?)?;
            values.push((before, take(&mut rest)?));
        }
        Some(Reading { at: Moment { life, mono_ns, wall_ns }, values })
    }

    /// When it was taken, without reading the rest.
    pub(super) fn wall_ns(bytes: &[u8]) -> Option<u64> {
        head(bytes).map(|[_, _, wall_ns]| wall_ns)
    }
}

fn head(bytes: &[u8]) -> Option<[u64; 3]> {
    if bytes.len() < HEAD_BYTES || bytes[0] != VERSION {
        return None;
    }
    let field = |at: usize| Some(u64::from_le_bytes(bytes.get(1 + 8 * at..9 + 8 * at)?.try_into().ok()?));
    Some([field(0)?, field(1)?, field(2)?])
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(first & 0x7f);
        value |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let at = Moment { life: u64::MAX, mono_ns: 1, wall_ns: 1 << 60 };
        for values in [vec![], vec![(0, 0)], vec![(0, u64::MAX), (127, 127), (128, 128), (u32::MAX, 1 << 63)]] {
            let reading = Reading { at, values };
            let bytes = reading.encode();
            assert_eq!(Reading::decode(&bytes).unwrap(), reading);
            assert_eq!(Reading::wall_ns(&bytes), Some(1 << 60));
            for cut in 0..HEAD_BYTES {
                assert_eq!(Reading::decode(&bytes[..cut]), None);
            }
        }
    }

    #[test]
    fn rubbish_is_no_reading() {
        let mut bytes = Reading { at: Moment::default(), values: vec![(1, 1)] }.encode();
        for tail in [&[0xff_u8; 12][..], &[0x80], &[0xff, 0xff, 0xff, 0xff, 0x7f, 1], &[0x01]] {
            bytes.truncate(HEAD_BYTES);
            bytes.extend(tail);
            assert_eq!(Reading::decode(&bytes), None, "{tail:?}");
        }
        bytes[0] = 2;
        assert_eq!(Reading::decode(&bytes), None);
    }
}
