//! How long a durable write takes, beside what a device of its class takes: one that is too quick does not keep what it says.

use super::{Examined, Finding, Root, Verdict};
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

/// A device itself: its syncs cannot be timed without writing to it, which may be what somebody has on it.
pub(super) fn untimed(root: &Root, device: &Examined) -> Finding {
    let mend = match mounted_at(root, &device.name) {
        Some(dir) if dir.contains(char::is_whitespace) => format!("flashcell doctor '{dir}'"),
        Some(dir) => format!("flashcell doctor {dir}"),
        None if device.kind.is_some() => {
            "while the cell is served: LIST METRICCURRENT CD_IO_TM_FLUSH_RQ, what its own flushes take".to_owned()
        }
        None => format!(
            "a file system on it, mounted: flashcell doctor MOUNTPOINT. If it carries nothing, for this destroys what it carries: \
             fio --name=sync --filename={} --rw=write --bs=8k --fdatasync=1 --runtime=5 --time_based",
            device.name
        ),
    };
    Finding::good("sync", &device.name, "not timed")
        .with(
            Verdict::Unknown,
            "a sync that has nothing to make durable tells nothing, and doctor writes to no block device",
        )
        .mended_by(mend)
}

/// Where a device, or a partition of it, is mounted for writing.
fn mounted_at(root: &Root, name: &str) -> Option<String> {
    let mounts = root.text("proc/self/mounts")?;
    let is_of = |source: &str| {
        // sda1, nvme0n1p1: digits behind the name, behind a p where that ends in a digit.
        let rest = source.strip_prefix(name)?;
        let number = if name.ends_with(|c: char| c.is_ascii_digit()) { rest.strip_prefix('p') } else { Some(rest) };
        (rest.is_empty() || number.is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()))).then_some(())
    };
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (source, dir, _, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        is_of(source)?;
        // As the kernel writes a space.
        options.split(',').any(|option| option == "rw").then(|| dir.replace("\\040", " "))
    })
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
