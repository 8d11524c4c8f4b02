//! What a device really is: its logical unit and true page, whether it turns, has a volatile cache, outlives its host.
//!
//! Never trusts a 512-byte claim of flash: its medium writes 4 KiB pages whatever it says, and a record padded to less
//! costs a read-modify-write (field measurement S3). Never writes.

use crate::durability::{Leaf, decide, leaves};
use crate::io::Geometry;
use crate::real::OpenOptions;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The page of flash that claims less, and of media nothing is known about.
const FLASH_PAGE_BYTES: u32 = 4096;
/// The smallest logical unit there is.
const SECTOR_BYTES: u32 = 512;
/// The largest true page an operator may set.
const PAGE_BYTES_MAX: u32 = 1 << 20;
/// Largest single transfer: 1024 pages of 4 KiB, so that a rope of single pages still is one request.
const TRANSFER_BYTES_MAX: u32 = 4 << 20;

/// What probing found out, before any override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) size_bytes: u64,
    pub(crate) logical_bytes: u32,
    page_bytes: u32,
    rotational: bool,
    volatile_cache: bool,
    discard_bytes: u32,
    fast_zeroes: bool,
    leaves: Vec<Leaf>,
}

/// What the kernel says about a block device's queue. Anything it does not say is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Claims {
    physical_bytes: Option<u32>,
    rotational: Option<bool>,
    write_back: Option<bool>,
    discard_bytes: Option<u32>,
    zeroes_bytes_max: Option<u64>,
}

impl Found {
    /// The geometry under the overrides of `options`; a page that cannot be comes back as the error.
    pub(crate) fn geometry(&self, options: &OpenOptions) -> Result<Geometry, u32> {
        let page_bytes = options.page_override.unwrap_or(self.page_bytes);
        if !page_bytes.is_power_of_two() || page_bytes < self.logical_bytes || page_bytes > PAGE_BYTES_MAX {
            return Err(page_bytes);
        }
        Ok(Geometry {
            size_bytes: self.size_bytes,
            logical_bytes: self.logical_bytes,
            page_bytes,
            rotational: options.rotational_override.unwrap_or(self.rotational),
            volatile_cache: options.volatile_cache_override.unwrap_or(self.volatile_cache),
            discard_bytes: self.discard_bytes,
            fast_zeroes: self.fast_zeroes,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            class: decide(options.class_override, &self.leaves).class,
        })
    }
}

/// Probe an open file or block device. Blocks.
pub(crate) fn probe(file: &File, is_block: bool, direct: bool) -> io::Result<Found> {
    let metadata = file.metadata()?;
    let number = if is_block { metadata.rdev() } else { metadata.dev() };
    let claims = sysfs_device(number).map(|queue| claims(&queue)).unwrap_or_default();
    let mut size_bytes = if is_block { seek_end(file.as_raw_fd())? } else { metadata.len() };
    let logical_bytes = if direct { direct_unit(file, size_bytes)? } else { SECTOR_BYTES };
    size_bytes -= size_bytes % u64::from(logical_bytes);
    Ok(found(&claims, leaves(file)?, size_bytes, logical_bytes, is_block))
}

fn found(claims: &Claims, leaves: Vec<Leaf>, size_bytes: u64, logical_bytes: u32, is_block: bool) -> Found {
    let rotational = claims.rotational.unwrap_or(false);
    let claimed = claims.physical_bytes.unwrap_or(FLASH_PAGE_BYTES).max(logical_bytes);
    let sane = claimed.is_power_of_two() && claimed <= PAGE_BYTES_MAX;
    let page_bytes = match (sane, rotational) {
        (true, true) => claimed,
        (true, false) => claimed.max(FLASH_PAGE_BYTES),
        (false, _) => FLASH_PAGE_BYTES.max(logical_bytes),
    };
    // Files punch holes in file system blocks; devices say what they discard.
    let discard_bytes = if is_block { claims.discard_bytes.unwrap_or(0) } else { FLASH_PAGE_BYTES };
    Found {
        size_bytes,
        logical_bytes,
        page_bytes,
        rotational,
        // A file's metadata is in the file system's cache, whatever the device does.
        volatile_cache: !is_block || claims.write_back.unwrap_or(true),
        discard_bytes,
        fast_zeroes: !is_block || claims.zeroes_bytes_max.unwrap_or(0) > 0,
        leaves,
    }
}

/// The smallest aligned transfer direct I/O takes here, found by reading.
fn direct_unit(file: &File, size_bytes: u64) -> io::Result<u32> {
    let mut buf = crate::buf::Buf::zeroed(FLASH_PAGE_BYTES as usize);
    for unit in [SECTOR_BYTES, 1024, 2048] {
        if size_bytes < u64::from(unit) * 2 {
            break;
        }
        match file.read_at(&mut buf[..unit as usize], u64::from(unit)) {
            Ok(_) => return Ok(unit),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            // A medium error in the second sector is no reason to refuse the device: the label says what it is worth.
            Err(e) if e.raw_os_error() == Some(libc::EIO) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(FLASH_PAGE_BYTES)
}

/// The size of a file or block device.
pub(crate) fn seek_end(fd: RawFd) -> io::Result<u64> {
    // SAFETY: no memory is passed; nobody uses the file's position.
    let end = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    u64::try_from(end).map_err(|_| io::Error::last_os_error())
}

/// The directory of a block device (of the whole disk, for a partition) in sysfs.
pub(crate) fn sysfs_device(number: u64) -> Option<PathBuf> {
    let link = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    let device = std::fs::canonicalize(link).ok()?;
    if device.join("queue").is_dir() {
        return Some(device);
    }
    let disk = device.parent()?;
    disk.join("queue").is_dir().then(|| disk.to_owned())
}

fn claims(device: &Path) -> Claims {
    let read = |name: &str| std::fs::read_to_string(device.join(name)).ok().map(|s| s.trim().to_owned());
    let number = |name: &str| read(name).and_then(|s| s.parse::<u64>().ok());
    let small = |name: &str| number(name).and_then(|n| u32::try_from(n).ok());
    Claims {
        physical_bytes: small("queue/physical_block_size"),
        rotational: number("queue/rotational").map(|n| n != 0),
        write_back: read("queue/write_cache").map(|s| s != "write through"),
        discard_bytes: small("queue/discard_granularity"),
        zeroes_bytes_max: number("queue/write_zeroes_max_bytes"),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn claims(physical_bytes: u32, rotational: bool) -> Claims {
        Claims { physical_bytes: Some(physical_bytes), rotational: Some(rotational), ..Claims::default() }
    }

    #[test]
    fn flash_that_claims_512_has_4_kib_pages_and_disks_are_believed() {
        let page = |claims: &Claims, logical| found(claims, Vec::new(), 1 << 30, logical, true).page_bytes;
        assert_eq!(page(&claims(512, false), 512), 4096, "S3");
        assert_eq!(page(&claims(4096, false), 512), 4096);
        assert_eq!(page(&claims(16384, false), 512), 16384);
        assert_eq!(page(&claims(512, true), 512), 512, "old disks do write sectors");
        assert_eq!(page(&claims(4096, true), 512), 4096);
        assert_eq!(page(&claims(512, true), 4096), 4096, "never below the logical unit");
        assert_eq!(page(&claims(3000, false), 512), 4096, "nonsense is not believed");
        assert_eq!(page(&Claims::default(), 512), 4096, "nothing is known");
    }

    #[test]
    fn an_override_must_be_possible() {
        let found = found(&claims(512, false), Vec::new(), 1 << 30, 4096, true);
        let with = |page| OpenOptions { page_override: Some(page), ..OpenOptions::default() };
        assert_eq!(found.geometry(&with(8192)).unwrap().page_bytes, 8192);
        for wrong in [0, 512, 4097, 2 << 20] {
            assert_eq!(found.geometry(&with(wrong)), Err(wrong));
        }
    }

    #[test]
    fn volatile_caches_are_assumed_where_nothing_is_said() {
        let volatile = |write_back, is_block| {
            found(&Claims { write_back, ..claims(4096, false) }, Vec::new(), 1 << 30, 512, is_block).volatile_cache
        };
        assert!(volatile(Some(true), true) && volatile(None, true));
        assert!(!volatile(Some(false), true));
        assert!(volatile(Some(false), false), "a file system has a cache of its own");
    }
}
