//! Cuts reads and writes that are longer than a device takes at once.
//!
//! All pieces are under way together; their outcomes are joined into the one that is true for the whole. Never retries.

use celldisk::join_outcomes;
use device::{Completed, Completion, Device, Geometry, Io, Op};
use futures_util::future::join_all;
use std::sync::Arc;

/// A device without a limit on transfers, over one that may have one.
pub(crate) struct Transfers {
    below: Device,
    /// Longest transfer, a multiple of every block size in use; devices do not change it while open.
    bytes_max: u64,
}

/// Pieces begin and end on multiples of this, as strict devices ask; a device with a smaller limit is given its own.
const PIECE_UNIT_BYTES: u64 = 4096;

impl Transfers {
    pub(crate) fn new(below: Device) -> Arc<Transfers> {
        let limit = u64::from(below.geometry().transfer_bytes_max);
        let bytes_max = (limit / PIECE_UNIT_BYTES * PIECE_UNIT_BYTES).max(PIECE_UNIT_BYTES.min(limit.max(512)));
        Arc::new(Transfers { below, bytes_max })
    }

    fn submit_in_pieces(&self, op: Op) -> Completion {
        let verb = op.verb();
        let (start, len) = op.range();
        let mut rest = op;
        let mut lens = Vec::new();
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let offset = start + done;
            let part = self.bytes_max.min(len - done);
            let piece = match &mut rest {
                Op::Read { bufs, .. } => Op::Read { offset, bufs: bufs.split_to(part as usize) },
                Op::Write { data, fua, .. } => {
                    Op::Write { offset, data: data.slice(done as usize..(done + part) as usize), fua: *fua }
                }
                _ => unreachable!("only transfers are cut"),
            };
            pieces.push(self.below.submit(piece));
            lens.push(part);
            done += part;
        }
        Completion::future(async move {
            let mut whole = Completed::bare(device::Outcome::Done);
            let mut outcomes = Vec::new();
            for (piece, len) in join_all(pieces).await.into_iter().zip(lens) {
                outcomes.push((len, piece.outcome));
                whole.bufs.append(piece.bufs);
            }
            whole.outcome = join_outcomes(verb, &outcomes);
            whole
        })
    }
}

impl Io for Transfers {
    fn geometry(&self) -> Geometry {
        Geometry { transfer_bytes_max: u32::MAX, ..self.below.geometry() }
    }

    fn submit(&self, op: Op) -> Completion {
        let long = matches!(op, Op::Read { .. } | Op::Write { .. }) && op.range().1 > self.bytes_max;
        if long { self.submit_in_pieces(op) } else { self.below.submit(op) }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a long request reaches the device whole, in pieces it takes. Method: a memory device behind a limit.
    use super::*;
    use device::layers::Memory;
    use device::sync::lock;
    use device::{Buf, Bufs, Outcome};
    use std::sync::Mutex;

    struct Limited {
        below: Device,
        longest: Mutex<u64>,
    }

    impl Io for Limited {
        fn geometry(&self) -> Geometry {
            Geometry { transfer_bytes_max: 10_000, ..self.below.geometry() }
        }
        fn submit(&self, op: Op) -> Completion {
            let mut longest = lock(&self.longest);
            *longest = longest.max(op.range().1);
            self.below.submit(op)
        }
    }

    #[test]
    fn long_requests_arrive_whole_in_pieces_the_device_takes() {
        let limited = Arc::new(Limited { below: Memory::new(1 << 20), longest: Mutex::new(0) });
        let device: Device = Transfers::new(limited.clone());
        let bytes: Vec<u8> = (0..61_440_u32).map(|n| (n * 7 % 251) as u8).collect();
        let mut data = Buf::padded(&bytes[..20_480], 1);
        data.truncate(20_480);
        let mut rope = Bufs::from(data);
        rope.push(Buf::padded(&bytes[20_480..], 1));
        let wrote = now(device.write(4096, rope.freeze(), false));
        let read = now(device.read(4096, Bufs::from(Buf::zeroed(61_440))));
        assert_eq!((wrote.outcome, read.outcome), (Outcome::Done, Outcome::Done));
        assert_eq!(read.bufs.to_vec(0..61_440), bytes);
        assert_eq!(*lock(&limited.longest), 8192);
    }

    fn now(completion: Completion) -> Completed {
        let mut completion = std::pin::pin!(completion);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match std::future::Future::poll(completion.as_mut(), &mut cx) {
            std::task::Poll::Ready(done) => done,
            std::task::Poll::Pending => unreachable!("a memory device answers at once"),
        }
    }
}
