//! How long a durable write takes, beside what a device of its class takes: one that is too quick does not keep what it says.

use super::{Finding, Verdict};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 16 << 20;
/// A page of PostgreSQL's log.
const WRITE_BYTES: usize = 8192;
/// A disk of 15,000 revolutions a minute passes a place 250 times a second; it cannot make more writes of one place durable.
const TURNS_PER_SECOND_MAX: f64 = 250.0;
/// Flash that makes fewer writes durable in a second has neither power-loss protection nor quick flushes.
const FLASH_SYNCS_MIN: f64 = 500.0;

/// Write 8 KiB and `fdatasync`, over and over, in a file of its own that is gone afterwards.
pub(super) fn time(dir: &Path, length: Duration, is_rotating: bool) -> Finding {
    let subject = dir.display().to_string();
    match measure(dir, length) {
        Ok(took) => judge(&subject, took, is_rotating),
        Err(error) => Finding::good("sync", &subject, "not timed").with(Verdict::Unknown, error.to_string()),
    }
}

/// What each sync took.
fn measure(dir: &Path, length: Duration) -> Result<Vec<Duration>> {
    let path = dir.join(format!(".flashcell-doctor-{}", std::process::id()));
    let file = std::fs::File::options().write(true).create_new(true).open(&path)?;
    // Open, and without a name: gone with this process, however it ends.
    std::fs::remove_file(&path)?;
    let piece = vec![0x5a; 1 << 20];
    for offset in (0..FILE_BYTES).step_by(piece.len()) {
        file.write_all_at(&piece, offset)?;
    }
    file.sync_all()?;
    let mut took = Vec::new();
    let begun = Instant::now();
    let mut offset = 0;
    while begun.elapsed() < length {
        let at = Instant::now();
        file.write_all_at(&piece[..WRITE_BYTES], offset)?;
        file.sync_data()?;
        took.push(at.elapsed());
        offset = (offset + WRITE_BYTES as u64) % FILE_BYTES;
    }
    Ok(took)
}

pub(super) fn judge(subject: &str, mut took: Vec<Duration>, is_rotating: bool) -> Finding {
    took.sort();
    let Some(median) = took.get(took.len() / 2) else {
        return Finding::good("sync", subject, "not timed").with(Verdict::Unknown, "not one ended in time");
    };
    let slow = took[(took.len() * 99 / 100).min(took.len() - 1)];
    let rate = 1.0 / median.as_secs_f64().max(1e-9);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let found = format!(
        "{rate:.0} a second (median {:.2} ms, 99 % within {:.2} ms; 8 KiB and fdatasync)",
        ms(*median),
        ms(slow)
    );
    let finding = Finding::good("sync", subject, found);
    if is_rotating && rate > TURNS_PER_SECOND_MAX {
        finding
            .with(
                Verdict::Unknown,
                "no disk that turns is so quick: a controller with a protected cache or a network volume is, and so is one that acknowledges what is not durable",
            )
            .mended_by("find out which: pull the plug with diskchecker.pl running, or ask who runs the volume; a lying disk: hdparm -W 0")
    } else if !is_rotating && rate < FLASH_SYNCS_MIN {
        finding
            .with(Verdict::Note, "slow for flash: without power-loss protection each flush writes to the medium. A redo grid disk with a flash log wants a drive that has it")
    } else {
        finding
    }
}
