//! A volume with somebody's file system on it as a cell disk: our metadata lies beside it, in a file of the cell.
//!
//! ```text
//!  0            DATA_OFFSET                      DATA_OFFSET + volume      next multiple of 64 KiB
//!  ├─ metadata ─┼─ the volume, from its byte 0 ──┼─ metadata (the rest) ───┼─ metadata (room for a journal, or none) ─┤
//! ```
//!
//! The cell disk's own code knows nothing of it: label, claim and catalog go to the metadata file, the data area is the volume. Byte `n` of the
//! volume is byte `DATA_OFFSET + n` of the device, always. The volume is as large as when it was adopted, whatever it has become since. A
//! grid disk ends at a multiple of 64 KiB; what it has more than the volume lies in the metadata file as well. What that file has beyond
//! [`METADATA_BYTES`], in whole allocation units, is room for the journal of write-back in flush order: nothing of ours is put on the volume.
//!
//! A flush is one of the volume, and one of the metadata file where something was written there that no flush has covered. Never
//! retries, never writes by itself.

use crate::layout::{AU_BYTES_MIN, DATA_OFFSET};
use crate::slice::{cut_front, join_completed, join_outcomes};
use device::{Class, Completed, Completion, Device, FailKind, Geometry, Io, Op, Outcome, Verb};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a metadata file has: everything before the data area, and the most that a grid disk can have more than its volume.
pub const METADATA_BYTES: u64 = DATA_OFFSET + AU_BYTES_MIN;

/// A volume and its metadata file as one device. See the module's head.
pub struct Beside {
    metadata: Device,
    volume: Device,
    volume_bytes: u64,
    journal_bytes: u64,
    written: Arc<Written>,
}

/// Changes of the metadata file that are not durable by themselves.
#[derive(Debug, Default)]
struct Written {
    /// Raised when one is submitted, and when it has completed: before anybody hears of that.
    changes: AtomicU64,
    /// As many as a good flush has covered.
    flushed: AtomicU64,
}

/// Why two devices make none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BesideError {
    /// Part of the volume is gone.
    #[error("the volume has {has_bytes} bytes, {wanted_bytes} when it was adopted")]
    Shrunk {
        /// Now.
        has_bytes: u64,
        /// When it was adopted.
        wanted_bytes: u64,
    },
    /// The metadata file was cut off.
    #[error("its metadata file has {has_bytes} bytes, {METADATA_BYTES} are needed")]
    Metadata {
        /// Now.
        has_bytes: u64,
    },
    /// Less than a unit of allocation, or no whole sectors.
    #[error("a volume of {0} bytes cannot be adopted: it takes 64 KiB at least, in whole sectors")]
    Size(u64),
    /// Requests to the volume would have to be aligned to what the metadata file does not take.
    #[error("the sectors of its metadata file are larger than those of the volume")]
    Sectors,
}

impl Beside {
    /// Put `metadata` beside the first `volume_bytes` of `volume`.
    ///
    /// # Errors
    /// See [`BesideError`].
    pub fn new(metadata: Device, volume: Device, volume_bytes: u64) -> Result<Arc<Beside>, BesideError> {
        let (beside, below) = (metadata.geometry(), volume.geometry());
        if below.size_bytes < volume_bytes {
            return Err(BesideError::Shrunk { has_bytes: below.size_bytes, wanted_bytes: volume_bytes });
        }
        if beside.size_bytes < METADATA_BYTES {
            return Err(BesideError::Metadata { has_bytes: beside.size_bytes });
        }
        if volume_bytes < AU_BYTES_MIN || !volume_bytes.is_multiple_of(u64::from(below.logical_bytes)) {
            return Err(BesideError::Size(volume_bytes));
        }
        if beside.logical_bytes > below.logical_bytes {
            return Err(BesideError::Sectors);
        }
        let journal_bytes = (beside.size_bytes - METADATA_BYTES) / AU_BYTES_MIN * AU_BYTES_MIN;
        Ok(Arc::new(Beside { metadata, volume, volume_bytes, journal_bytes, written: Arc::default() }))
    }

    /// Bytes of the grid disk: those of the volume, rounded up to [`AU_BYTES_MIN`].
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.volume_bytes.next_multiple_of(AU_BYTES_MIN)
    }

    /// End of the device: behind the room for a journal.
    fn size_bytes(&self) -> u64 {
        DATA_OFFSET + self.data_bytes() + self.journal_bytes
    }

    /// Where a byte is, and up to which byte of this device the next ones are there too.
    fn place(&self, at: u64) -> Place {
        let end = DATA_OFFSET + self.volume_bytes;
        let journal = DATA_OFFSET + self.data_bytes();
        if at < DATA_OFFSET {
            Place { in_volume: false, at, until: DATA_OFFSET }
        } else if at < end {
            Place { in_volume: true, at: at - DATA_OFFSET, until: end }
        } else if at < journal {
            Place { in_volume: false, at: DATA_OFFSET + (at - end), until: journal }
        } else {
            Place { in_volume: false, at: METADATA_BYTES + (at - journal), until: self.size_bytes() }
        }
    }

    fn submit_to(&self, in_volume: bool, op: Op) -> Completion {
        if in_volume {
            return self.volume.submit(op);
        }
        let changes = match &op {
            Op::Write { fua, .. } | Op::WriteZeroes { fua, .. } => !fua,
            Op::Discard { .. } => true,
            Op::Read { .. } | Op::Flush | Op::Status { .. } => false,
        };
        if !changes {
            return self.metadata.submit(op);
        }
        let written = self.written.clone();
        written.changes.fetch_add(1, Ordering::SeqCst);
        let submitted = self.metadata.submit(op);
        Completion::future(async move {
            let done = submitted.await;
            written.changes.fetch_add(1, Ordering::SeqCst);
            done
        })
    }

    fn flush(&self) -> Completion {
        let volume = self.volume.submit(Op::Flush);
        let covers = self.written.changes.load(Ordering::SeqCst);
        if self.written.flushed.load(Ordering::SeqCst) >= covers {
            return volume;
        }
        let (metadata, written) = (self.metadata.submit(Op::Flush), self.written.clone());
        Completion::future(async move {
            let metadata = metadata.await.outcome;
            if metadata == Outcome::Done {
                written.flushed.fetch_max(covers, Ordering::SeqCst);
            }
            let both = [(0, metadata), (0, volume.await.outcome)];
            Completed::bare(join_outcomes(Verb::Flush, &both))
        })
    }
}

/// Where a stretch of the device is.
struct Place {
    in_volume: bool,
    /// First byte there.
    at: u64,
    /// End of the stretch on this device.
    until: u64,
}

impl Io for Beside {
    fn geometry(&self) -> Geometry {
        let (metadata, volume) = (self.metadata.geometry(), self.volume.geometry());
        let durable = metadata.class == Class::Durable && volume.class == Class::Durable;
        Geometry {
            size_bytes: self.size_bytes(),
            volatile_cache: metadata.volatile_cache || volume.volatile_cache,
            transfer_bytes_max: metadata.transfer_bytes_max.min(volume.transfer_bytes_max),
            class: if durable { Class::Durable } else { Class::Ephemeral },
            ..volume
        }
    }

    fn submit(&self, op: Op) -> Completion {
        if matches!(op, Op::Flush) {
            return self.flush();
        }
        let (offset, len) = op.range();
        let end = match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes() => end,
            _ => return Completion::failed(FailKind::Invalid, op),
        };
        let (verb, mut rest, mut at) = (op.verb(), op, offset);
        let mut lens = Vec::new();
        let mut parts = Vec::new();
        while at < end {
            let place = self.place(at);
            let until = end.min(place.until);
            let piece = cut_front(&mut rest, at - offset, until - at, place.at);
            let part = self.submit_to(place.in_volume, piece);
            if (at, until) == (offset, end) {
                return part;
            }
            lens.push(until - at);
            parts.push(part);
            at = until;
        }
        Completion::future(async move { join_completed(verb, &lens, join_all(parts).await) })
    }
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Beside({} B)", self.volume_bytes)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use device::layers::{Memory, Stats};
    use device::{Buf, Bufs, SharedBufs};
    use futures_util::FutureExt;

    /// Devices in memory answer at once.
    fn now<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("memory answers at once")
    }

    fn bytes(fill: u8, len: usize) -> SharedBufs {
        let mut buf = Buf::zeroed(len);
        buf.copy_from_slice(&vec![fill; len]);
        Bufs::from(buf).freeze()
    }

    fn read(device: &Device, offset: u64, len: usize) -> Vec<u8> {
        let done = now(device.read(offset, Bufs::from(Buf::zeroed(len))));
        assert_eq!(done.outcome, Outcome::Done);
        let mut out = Vec::new();
        done.bufs.for_each(0..len, |piece| out.extend_from_slice(piece));
        out
    }

    const VOLUME_BYTES: u64 = (1 << 20) + 512;

    fn forgetful(size_bytes: u64) -> Arc<Memory> {
        Memory::with_geometry(Memory::new(size_bytes).geometry(), true)
    }

    fn pair() -> (Arc<Memory>, Arc<Memory>, Device) {
        let (metadata, volume) = (forgetful(METADATA_BYTES), forgetful(VOLUME_BYTES + 4096));
        let both = Beside::new(metadata.clone(), volume.clone(), VOLUME_BYTES).unwrap();
        (metadata, volume, both)
    }

    /// Every sector of the device is at its place, one and one alone, whatever the borders of the requests.
    #[test]
    fn each_byte_has_one_place() {
        let (metadata, volume, both) = pair();
        let size = both.geometry().size_bytes;
        assert_eq!(size, DATA_OFFSET + VOLUME_BYTES.next_multiple_of(65536));
        let end = DATA_OFFSET + VOLUME_BYTES;
        for (from, to, fill) in [
            (0, 4096, 1),
            (DATA_OFFSET - 4096, DATA_OFFSET + 8192, 2),
            (end - 1024, end + 1024, 3),
            (size - 512, size, 4),
        ] {
            let len = (to - from) as usize;
            assert_eq!(now(both.write(from, bytes(fill, len), false)).outcome, Outcome::Done);
            assert_eq!(read(&both, from, len), vec![fill; len]);
        }
        let (metadata, volume): (Device, Device) = (metadata, volume);
        assert_eq!(read(&metadata, DATA_OFFSET - 4096, 4096), vec![2; 4096]);
        assert_eq!(read(&volume, 0, 8192), vec![2; 8192]);
        assert_eq!(read(&volume, 8192, 4096), vec![0; 4096]);
        assert_eq!(read(&volume, VOLUME_BYTES - 1024, 1024), vec![3; 1024]);
        assert_eq!(read(&volume, VOLUME_BYTES, 4096), vec![0; 4096], "beyond what was adopted");
        assert_eq!(read(&metadata, DATA_OFFSET, 1024), vec![3; 1024]);
        let refused = now(both.write(size - 512, bytes(9, 1024), false)).outcome;
        assert_eq!(refused, Outcome::Failed(FailKind::Invalid));
        assert_eq!(now(both.write_zeroes(DATA_OFFSET - 512, 1024, false, false)).outcome, Outcome::Done);
        assert_eq!(read(&both, DATA_OFFSET - 1024, 2048), [vec![2; 512], vec![0; 1024], vec![2; 512]].concat());
    }

    /// Room for a journal lies behind all that the grid disk has, in the metadata file alone, in whole units.
    #[test]
    fn a_longer_metadata_file_is_room_for_a_journal() {
        let (metadata, volume) = (Memory::new(METADATA_BYTES + 3 * AU_BYTES_MIN + 512), Memory::new(VOLUME_BYTES));
        let both: Device = Beside::new(metadata.clone(), volume.clone(), VOLUME_BYTES).unwrap();
        let journal = DATA_OFFSET + VOLUME_BYTES.next_multiple_of(AU_BYTES_MIN);
        assert_eq!(both.geometry().size_bytes, journal + 3 * AU_BYTES_MIN);
        let before = read(&(volume.clone() as Device), 0, VOLUME_BYTES as usize);
        // Across the border between what the grid disk has more than the volume, and the journal.
        assert_eq!(now(both.write(journal - 512, bytes(8, 1024), false)).outcome, Outcome::Done);
        assert_eq!(now(both.write(journal + 3 * AU_BYTES_MIN - 512, bytes(9, 512), false)).outcome, Outcome::Done);
        let metadata: Device = metadata;
        assert_eq!(read(&metadata, METADATA_BYTES, 512), vec![8; 512]);
        assert_eq!(read(&metadata, METADATA_BYTES + 3 * AU_BYTES_MIN - 512, 512), vec![9; 512]);
        assert_eq!(read(&both, journal - 512, 1024), vec![8; 1024]);
        assert_eq!(read(&(volume as Device), 0, VOLUME_BYTES as usize), before, "nothing of it is on the volume");
    }

    /// What was written on either side of a border survives a power cut after a flush, and after a durable write.
    #[test]
    fn a_flush_covers_both() {
        let (metadata, volume, both) = pair();
        let cut = || [&metadata, &volume].iter().for_each(|device| device.power_cut());
        assert_eq!(now(both.write(DATA_OFFSET - 512, bytes(5, 1024), false)).outcome, Outcome::Done);
        assert_eq!(now(both.flush()).outcome, Outcome::Done);
        cut();
        assert_eq!(read(&both, DATA_OFFSET - 512, 1024), vec![5; 1024]);
        assert_eq!(now(both.write(DATA_OFFSET - 512, bytes(6, 1024), true)).outcome, Outcome::Done);
        cut();
        assert_eq!(read(&both, DATA_OFFSET - 512, 1024), vec![6; 1024]);
        assert_eq!(now(both.write(0, bytes(7, 512), false)).outcome, Outcome::Done);
        cut();
        assert_eq!(read(&both, 0, 512), vec![0; 512], "this device forgets");
    }

    /// The metadata file is flushed when something was written there, and again while that has not succeeded.
    #[test]
    fn the_metadata_file_is_flushed_when_it_must_be() {
        let metadata = forgetful(METADATA_BYTES);
        let counted = Stats::new(metadata.clone(), Arc::new(Still));
        let both: Device = Beside::new(counted.clone(), Memory::new(VOLUME_BYTES), VOLUME_BYTES).unwrap();
        let flushes = || counted.verb(Verb::Flush).done;
        assert_eq!(now(both.flush()).outcome, Outcome::Done);
        assert_eq!(now(both.write(DATA_OFFSET, bytes(1, 512), false)).outcome, Outcome::Done);
        assert_eq!(now(both.write(0, bytes(1, 512), true)).outcome, Outcome::Done);
        assert_eq!(now(both.flush()).outcome, Outcome::Done);
        assert_eq!(flushes(), 0, "nothing was written there that is not durable");
        assert_eq!(now(both.write(0, bytes(2, 512), false)).outcome, Outcome::Done);
        metadata.set_gone(true);
        assert_eq!(now(both.flush()).outcome, Outcome::Failed(FailKind::Gone));
        metadata.set_gone(false);
        assert_eq!(now(both.flush()).outcome, Outcome::Done);
        assert_eq!(flushes(), 1);
        assert_eq!(now(both.flush()).outcome, Outcome::Done);
        assert_eq!(flushes(), 1);
    }

    struct Still;

    impl device::Clock for Still {
        fn now(&self) -> device::Instant {
            device::Instant(0)
        }
        fn wall(&self) -> device::WallTime {
            device::WallTime(0)
        }
        fn sleep_until(&self, _: device::Instant) -> device::Timer {
            unreachable!("nobody sleeps here")
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let make = |metadata, volume, bytes| Beside::new(Memory::new(metadata), Memory::new(volume), bytes).map(|_| ());
        assert_eq!(make(METADATA_BYTES, 1 << 20, 1 << 20), Ok(()));
        assert!(matches!(make(METADATA_BYTES, 1 << 20, 2 << 20), Err(BesideError::Shrunk { .. })));
        assert!(matches!(make(4096, 1 << 20, 1 << 20), Err(BesideError::Metadata { .. })));
        assert_eq!(make(METADATA_BYTES, 1 << 20, 4096), Err(BesideError::Size(4096)));
        assert_eq!(make(METADATA_BYTES, 1 << 20, 65537), Err(BesideError::Size(65537)));
    }
}
