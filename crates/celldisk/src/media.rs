//! Whole transfers over the device seam: split at its limits, checked for completeness.
//!
//! For metadata and zeroing only; data goes through [`crate::Slice`] untouched. Never retries.

use crate::error::IoError;
use crate::layout::PAGE_BYTES;
use device::{Buf, Bufs, Device, FailKind, Outcome, Verb, spawn::yield_now};

/// Largest piece of a long zeroing: a device is not kept from other requests for longer than this takes.
pub(crate) const ZERO_PIECE_BYTES_MAX: u64 = 16 << 20;

/// Largest piece when zeroes have to be written out.
const ZERO_WRITE_BYTES_MAX: u64 = 1 << 20;

fn check(verb: Verb, offset: u64, len: u64, outcome: Outcome) -> Result<(), IoError> {
    if outcome == Outcome::Done { Ok(()) } else { Err(IoError { verb, offset, len, outcome }) }
}

/// The largest transfer the device takes, in whole pages.
fn piece_bytes(device: &Device) -> u64 {
    (u64::from(device.geometry().transfer_bytes_max) / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES)
}

/// `len` bytes from `offset`, both multiples of the page (or `len` up to the end of the device).
pub(crate) async fn read(device: &Device, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let mut out = Vec::with_capacity(len);
    let piece_bytes = piece_bytes(device);
    while out.len() < len {
        let at = offset + out.len() as u64;
        let part = (len - out.len()).min(piece_bytes as usize);
        let done = device.read(at, Bufs::from(Buf::zeroed(part))).await;
        check(Verb::Read, at, part as u64, done.outcome)?;
        if done.bufs.len_bytes() != part {
            let outcome = Outcome::Short(done.bufs.len_bytes() as u64);
            return Err(IoError { verb: Verb::Read, offset: at, len: part as u64, outcome });
        }
        done.bufs.for_each(0..part, |bytes| out.extend_from_slice(bytes));
    }
    Ok(out)
}

/// Write `bytes` (whole pages) at `offset`; a flush makes them durable.
pub(crate) async fn write(device: &Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
    write_pieces(device, offset, bytes, false).await
}

/// Write `bytes` (whole pages) at `offset` and have them durable.
pub(crate) async fn write_durable(device: &Device, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
    write_pieces(device, offset, bytes, true).await
}

async fn write_pieces(device: &Device, offset: u64, bytes: &[u8], fua: bool) -> Result<(), IoError> {
    let piece_bytes = piece_bytes(device) as usize;
    let mut at = offset;
    for piece in bytes.chunks(piece_bytes) {
        let mut buf = Buf::zeroed(piece.len());
        buf.copy_from_slice(piece);
        let outcome = device.write(at, Bufs::from(buf).freeze(), fua).await.outcome;
        check(Verb::Write, at, piece.len() as u64, outcome)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Make durable what has completed.
pub(crate) async fn flush(device: &Device) -> Result<(), IoError> {
    check(Verb::Flush, 0, 0, device.flush().await.outcome)
}

/// Make `offset..offset + len` read as zeroes and have that durable, in bounded pieces, giving way to other tasks between
/// them. Each piece by itself: a flush that somebody else asked for may fail and take back what had only been written,
/// and the next one succeeds with nothing left to flush. `progress` hears the bytes done so far after each piece.
pub(crate) async fn zero(
    device: &Device,
    offset: u64,
    len: u64,
    progress: &mut (dyn FnMut(u64) + Send),
) -> Result<(), IoError> {
    let mut done: u64 = 0;
    let mut verb_works = true;
    while done < len {
        let at = offset + done;
        let mut part = (len - done).min(ZERO_PIECE_BYTES_MAX);
        if verb_works {
            let outcome = device.write_zeroes(at, part, true, true).await.outcome;
            if outcome == Outcome::Failed(FailKind::Unsupported) {
                verb_works = false;
                continue;
            }
            check(Verb::WriteZeroes, at, part, outcome)?;
        } else {
            part = part.min(ZERO_WRITE_BYTES_MAX).min(piece_bytes(device));
            let zeroes = Bufs::from(Buf::zeroed(part as usize)).freeze();
            check(Verb::Write, at, part, device.write(at, zeroes, true).await.outcome)?;
        }
        done += part;
        progress(done);
        yield_now().await;
    }
    Ok(())
}
