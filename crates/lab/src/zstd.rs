//! Files packed with zstd: frame after frame, as `zstd` itself takes and gives them.
//!
//! A whole frame can be read whatever becomes of those behind it: what is recorded is packed in frames of some thousand lines. Never holds more
//! of a file than one frame's window.

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::{self, BufRead, ErrorKind, Read};

/// A frame begins so.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A frame of another program's own begins so, but for the lower half of its first byte.
const SKIPPED: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

/// Whether a file that begins so is packed with zstd.
pub(crate) fn is_packed(head: &[u8]) -> bool {
    head.starts_with(&MAGIC) || head.len() >= 4 && head[0] & 0xf0 == SKIPPED[0] && head[1..4] == SKIPPED[1..]
}

/// A frame that holds these.
#[must_use]
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Unpacks all frames of a file.
pub(crate) struct Frames<R: BufRead> {
    packed: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: BufRead> Frames<R> {
    pub(crate) fn new(packed: R) -> Frames<R> {
        Frames { packed, decoder: FrameDecoder::new(), within: false }
    }

    /// On to the next frame; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.packed.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.packed) {
                Ok(()) => return Ok(true),
                // What other programs put between frames for themselves.
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut (&mut self.packed).take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(damaged(&error)),
            }
        }
        Ok(false)
    }
}

fn damaged(error: &dyn std::error::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("not whole as zstd: {error}"))
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within && (buf.is_empty() || !self.begin()?) {
                return Ok(0);
            }
            self.within = true;
            while self.decoder.can_collect() < buf.len() && !self.decoder.is_finished() {
                let wanted = BlockDecodingStrategy::UptoBytes(buf.len() - self.decoder.can_collect());
                self.decoder.decode_blocks(&mut self.packed, wanted).map_err(|error| damaged(&error))?;
            }
            let read = self.decoder.read(buf)?;
            if read > 0 || buf.is_empty() {
                return Ok(read);
            }
            self.within = false;
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // In small pieces, which end anywhere.
        let mut frames = Frames::new(io::BufReader::with_capacity(7, packed));
        let mut piece = [0; 1000];
        loop {
            match frames.read(&mut piece)? {
                0 => return Ok(bytes),
                read => bytes.extend_from_slice(&piece[..read]),
            }
        }
    }

    #[test]
    fn what_is_packed_in_frames_is_unpacked() {
        let lines = |from: u64, to: u64| -> Vec<u8> {
            let line =
                |n: u64| format!("{},DATA,SPOT,read,{},8192,{}\n", 17 * n, n * n % 8191 * 8192, n * 7919 % 100_003);
            (from..to).map(line).collect::<String>().into_bytes()
        };
        let (first, second) = (lines(0, 3), lines(3, 9000));
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let packed = [pack(&first), skippable, pack(b""), pack(&second)].concat();
        assert!(packed.starts_with(&MAGIC) && packed.len() < second.len() / 2, "{}", packed.len());
        assert!(unpacked(&packed).unwrap() == [first.clone(), second].concat());
        assert_eq!(unpacked(b"").unwrap(), b"");
        // pzstd's files begin with one that is skipped.
        assert!(
            is_packed(&packed) && is_packed(&[0x5a, 0x2a, 0x4d, 0x18]) && !is_packed(b"P*M") && !is_packed(b"time")
        );
        // Cut within a frame, or followed by something else: told, and not taken for the end.
        for damaged in [packed[..packed.len() - 1].to_vec(), [pack(&first), b"tail".to_vec()].concat()] {
            assert!(unpacked(&damaged).unwrap_err().to_string().starts_with("not whole as zstd"));
        }
    }
}
