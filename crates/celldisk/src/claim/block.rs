//! The bytes of a claim.

use super::Found;
use crate::codec::{DecodeError, Decoder, Encoder};
use crate::layout::{CLAIM_HOST_NAME_BYTES_MAX, PAGE_BYTES};

/// The process that uses a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its host; the machine's identity.
    pub host: u128,
    /// Since when that has been up, and within which set of processes; random.
    pub boot: u128,
    /// This use of the device: random, and counted up with each race for the device (see [`super::race`]).
    pub instance: u128,
    /// Its process id.
    pub process: u32,
    /// When that process began, in the host's own units: ids are used again.
    pub process_started: u64,
    /// The host's name, for people; at most [`CLAIM_HOST_NAME_BYTES_MAX`] bytes are kept.
    pub host_name: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Holder { host_name, process, host, boot, .. } = self;
        write!(f, "process {process} on host {host_name} (machine {host:032x}, boot {boot:032x})")
    }
}

/// A stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// Whose.
    pub holder: Holder,
    /// Raised at each renewal.
    pub counter: u64,
    /// The holder has stopped clean.
    pub released: bool,
    /// The instance that the record named when this holder's race began (see [`super::race`]); 0: nobody. `None`: the stamp of a
    /// release that keeps no record.
    pub over: Option<u128>,
}

const MAGIC: [u8; 8] = *b"FCCLAIM\n";
const VERSION: u32 = 1;
const CHECKSUM_OFFSET: usize = 12;
const NAME_OFFSET: usize = 128;
/// What means something of the page: one sector, so that it is written whole.
const BYTES: usize = 512;

impl Stamped {
    /// One page.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Stamped { holder, counter, released, over } = self;
        let mut end = holder.host_name.len().min(CLAIM_HOST_NAME_BYTES_MAX);
        while !holder.host_name.is_char_boundary(end) {
            end -= 1;
        }
        let name = &holder.host_name.as_bytes()[..end];
        let mut e = Encoder(Vec::with_capacity(PAGE_BYTES as usize));
        e.bytes(&MAGIC);
        e.u32(VERSION);
        e.u32(0);
        e.u128(holder.host);
        e.u128(holder.boot);
        e.u128(holder.instance);
        e.u64(*counter);
        e.u64(holder.process_started);
        e.u32(holder.process);
        e.u8(u8::from(*released));
        e.u8(name.len() as u8);
        e.u8(u8::from(over.is_some()));
        e.u8(0);
        e.u128(over.unwrap_or_default());
        e.pad_to(NAME_OFFSET);
        e.bytes(name);
        e.pad_to(BYTES);
        let checksum = crc32c::crc32c(&e.0);
        e.0[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&checksum.to_le_bytes());
        e.0.resize(PAGE_BYTES as usize, 0);
        e.0
    }
}

/// What the bytes of the block are: its first sector, or more.
#[must_use]
pub fn decode(bytes: &[u8]) -> Found {
    let Some(bytes) = bytes.get(..BYTES) else { return Found::Unreadable };
    if bytes.iter().all(|&b| b == 0) {
        return Found::Nothing;
    }
    stamp(bytes).map_or(Found::Unreadable, Found::Stamp)
}

fn stamp(bytes: &[u8]) -> Result<Stamped, DecodeError> {
    let what = "claim";
    let mut blank = bytes.to_vec();
    blank[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].fill(0);
    let mut d = Decoder(bytes);
    if d.take(8, what)? != MAGIC {
        return Err(DecodeError::Magic { what });
    }
    // One of a later version is a stamp that this release cannot read: watched, like one that is torn.
    if d.u32(what)? != VERSION || d.u32(what)? != crc32c::crc32c(&blank) {
        return Err(DecodeError::Checksum { what });
    }
    let (host, boot, instance) = (d.u128(what)?, d.u128(what)?, d.u128(what)?);
    let (counter, process_started, process) = (d.u64(what)?, d.u64(what)?, d.u32(what)?);
    let released = d.flag(what)?;
    let name_bytes = d.count8(CLAIM_HOST_NAME_BYTES_MAX, what)?;
    // Earlier releases write zeroes from here to the name, and do not look at them.
    let has_record = d.flag(what)?;
    d.take(1, what)?;
    let over = d.u128(what)?;
    let over = has_record.then_some(over);
    let mut name = Decoder(&bytes[NAME_OFFSET..]);
    let host_name = std::str::from_utf8(name.take(name_bytes, what)?).map_err(|_| DecodeError::Value { what })?;
    let host_name = host_name.to_owned();
    Ok(Stamped {
        holder: Holder { host, boot, instance, process, process_started, host_name },
        counter,
        released,
        over,
    })
}

const _: () =
    assert!(NAME_OFFSET + CLAIM_HOST_NAME_BYTES_MAX <= BYTES && CLAIM_HOST_NAME_BYTES_MAX <= u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(released: bool) -> Stamped {
        let holder = Holder {
            host: 1,
            boot: u128::MAX,
            instance: 3,
            process: 4,
            process_started: 5,
            host_name: "exa1cel01".to_owned(),
        };
        Stamped { holder, counter: 6, released, over: None }
    }

    #[test]
    fn a_stamp_reads_back() {
        for released in [false, true] {
            assert_eq!(decode(&sample(released).encode()), Found::Stamp(sample(released)));
        }
        for over in [0, 7, u128::MAX] {
            let recorded = Stamped { over: Some(over), ..sample(false) };
            assert_eq!(decode(&recorded.encode()), Found::Stamp(recorded));
        }
        let mut long = sample(false);
        long.holder.host_name = "ü".repeat(CLAIM_HOST_NAME_BYTES_MAX);
        let Found::Stamp(read) = decode(&long.encode()) else { panic!("a long name is cut") };
        assert_eq!(read.holder.host_name, "ü".repeat(CLAIM_HOST_NAME_BYTES_MAX / 2));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = sample(false).encode();
        for bit in 0..BYTES * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), Found::Unreadable, "bit {bit}");
        }
        assert_eq!(decode(&[0; 4096]), Found::Nothing);
        let earlier = sample(false).encode();
        assert!(earlier[86..NAME_OFFSET].iter().all(|&b| b == 0), "as every earlier release has written it");
        assert_eq!(decode(&[1; 4096]), Found::Unreadable);
        assert_eq!(decode(&[]), Found::Unreadable);
    }
}
