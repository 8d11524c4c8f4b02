//! The structures that the kernel and the server of a ublk device exchange, byte by byte. All numbers are in this machine's byte order.

/// Bytes of one descriptor of a request.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
pub(super) const SECTOR_SHIFT: u32 = 9;

/// Flags of a device.
pub(super) const USER_RECOVERY: u64 = 1 << 3;
pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(super) const IOCTL_ENCODE: u64 = 1 << 6;
pub(super) const USER_COPY: u64 = 1 << 7;
pub(super) const UPDATE_SIZE: u64 = 1 << 10;

/// Attributes of a disk.
pub(super) const READ_ONLY: u32 = 1;
pub(super) const ROTATIONAL: u32 = 1 << 1;
pub(super) const VOLATILE_CACHE: u32 = 1 << 2;
pub(super) const FUA: u32 = 1 << 3;

/// Kinds of parameters.
const BASIC: u32 = 1;
const DISCARD: u32 = 1 << 1;

const IO_FUA: u32 = 1 << 13;
const IO_NO_UNMAP: u32 = 1 << 15;

/// Where in the character device the data of requests begins; then so many bits of queue, tag and place in the request.
const DATA_OFFSET: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;

/// The operations of the kernel's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkOp {
    /// Fill from the device.
    Read,
    /// Take what is written.
    Write,
    /// Make durable what was answered.
    Flush,
    /// The range is of no use to anybody.
    Discard,
    /// The range reads as zeroes from here on.
    WriteZeroes,
    /// Something of a later kernel.
    Other(u8),
}

/// A request of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkRequest {
    /// What.
    pub op: UblkOp,
    /// Durable before it is answered.
    pub fua: bool,
    /// Zeroes may be a hole.
    pub may_unmap: bool,
    /// Where it begins.
    pub offset_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
}

impl UblkRequest {
    /// From a descriptor: operation and flags, sectors, first sector, an address that is not used.
    pub(super) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> UblkRequest {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let flags = word(0);
        let mut first = [0; 8];
        first.copy_from_slice(&bytes[8..16]);
        UblkRequest {
            op: match flags as u8 {
                0 => UblkOp::Read,
                1 => UblkOp::Write,
                2 => UblkOp::Flush,
                3 => UblkOp::Discard,
                5 => UblkOp::WriteZeroes,
                other => UblkOp::Other(other),
            },
            fua: flags & IO_FUA != 0,
            may_unmap: flags & IO_NO_UNMAP == 0,
            offset_bytes: u64::from_ne_bytes(first) << SECTOR_SHIFT,
            len_bytes: u64::from(word(4)) << SECTOR_SHIFT,
        }
    }
}

/// Where in the character device the data of a request of queue 0 is.
pub(super) fn data_offset(tag: u16) -> u64 {
    DATA_OFFSET + (u64::from(tag) << TAG_SHIFT)
}

/// The argument of a command on the queue: answer what came before (`result`: bytes, or a negative errno), and wait for the next request.
pub(super) fn queue_argument(tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    // Queue 0; no address: data is copied by reads and writes.
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes
}

/// The argument of a command to the driver.
pub(super) fn control_argument(device: u32, buffer: Option<&mut [u8]>, data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&device.to_ne_bytes());
    // Of no queue.
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    if let Some(buffer) = buffer {
        bytes[6..8].copy_from_slice(&(buffer.len() as u16).to_ne_bytes());
        bytes[8..16].copy_from_slice(&(buffer.as_mut_ptr().addr() as u64).to_ne_bytes());
    }
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// The ublk driver's record of a device (`ublksrv_ctrl_dev_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    pub(super) transfer_bytes_max: u32,
    pub(super) device: u32,
    pub(super) flags: u64,
    /// The server's own, kept by the kernel.
    pub(super) tag: u64,
}

/// Of [`Info`].
pub(super) const STATE_LIVE: u16 = 1;

impl Info {
    pub(super) const BYTES: usize = 64;

    pub(super) fn encode(&self) -> [u8; Info::BYTES] {
        let mut bytes = [0; Info::BYTES];
        // One queue.
        bytes[0..2].copy_from_slice(&1_u16.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.queue_depth.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.state.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.transfer_bytes_max.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.device.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.tag.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Info::BYTES]) -> Info {
        let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Info {
            queue_depth: short(2),
            state: short(4),
            transfer_bytes_max: word(8),
            device: word(12),
            flags: long(24),
            tag: long(32),
        }
    }
}

/// The parameters of a ublk disk (`ublk_params`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) attributes: u32,
    /// Logical and physical: a power of two from 512 to a page.
    pub(super) block_bytes: u32,
    pub(super) transfer_bytes_max: u32,
    pub(super) size_bytes: u64,
    /// 0: not at all.
    pub(super) discard_bytes_max: u64,
    pub(super) zeroes_bytes_max: u64,
}

impl Parameters {
    pub(super) const BYTES: usize = 60;

    pub(super) fn encode(&self) -> [u8; Parameters::BYTES] {
        let mut bytes = [0; Parameters::BYTES];
        let shift = self.block_bytes.trailing_zeros() as u8;
        let sectors = |bytes: u64| ((bytes >> SECTOR_SHIFT) as u32).to_ne_bytes();
        bytes[0..4].copy_from_slice(&(Parameters::BYTES as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&(BASIC | DISCARD).to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.attributes.to_ne_bytes());
        // Logical block, physical block, best and smallest transfer.
        bytes[12..16].copy_from_slice(&[shift; 4]);
        bytes[16..20].copy_from_slice(&sectors(u64::from(self.transfer_bytes_max)));
        bytes[24..32].copy_from_slice(&(self.size_bytes >> SECTOR_SHIFT).to_ne_bytes());
        // Discards: alignment, granularity, longest one, longest write of zeroes, ranges in one.
        bytes[40..44].copy_from_slice(&self.block_bytes.to_ne_bytes());
        bytes[44..48].copy_from_slice(&self.block_bytes.to_ne_bytes());
        bytes[48..52].copy_from_slice(&sectors(self.discard_bytes_max));
        bytes[52..56].copy_from_slice(&sectors(self.zeroes_bytes_max));
        bytes[56..58].copy_from_slice(&1_u16.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the kernel's header by hand: descriptor of a FUA write of 8 sectors at sector 2^33.
    #[test]
    fn a_descriptor_is_read() {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[0..4].copy_from_slice(&(1_u32 | 1 << 13).to_ne_bytes());
        bytes[4..8].copy_from_slice(&8_u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&(1_u64 << 33).to_ne_bytes());
        let wanted =
            UblkRequest { op: UblkOp::Write, fua: true, may_unmap: true, offset_bytes: 1 << 42, len_bytes: 4096 };
        assert_eq!(UblkRequest::decode(&bytes), wanted);
        bytes[0..4].copy_from_slice(&(5_u32 | 1 << 15).to_ne_bytes());
        let zeroes = UblkRequest::decode(&bytes);
        assert_eq!((zeroes.op, zeroes.may_unmap, zeroes.fua), (UblkOp::WriteZeroes, false, false));
        bytes[0] = 200;
        assert_eq!(UblkRequest::decode(&bytes).op, UblkOp::Other(200));
    }

    #[test]
    fn what_the_driver_knows_comes_back_as_it_was_told() {
        let info = Info {
            queue_depth: 128,
            state: 2,
            transfer_bytes_max: 1 << 20,
            device: u32::MAX,
            flags: USER_COPY | UPDATE_SIZE,
            tag: 0x0123_4567_89ab_cdef,
        };
        assert_eq!(Info::decode(&info.encode()), info);
        assert_eq!(info.encode()[0..2], 1_u16.to_ne_bytes());
    }

    #[test]
    fn data_of_a_tag_is_32_mib_after_that_of_the_one_before() {
        assert_eq!((data_offset(0), data_offset(3)), (2 << 30, (2 << 30) + (96 << 20)));
    }
}
