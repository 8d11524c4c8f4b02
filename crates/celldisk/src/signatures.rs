//! What other formats write where, so that nobody's data is formatted away by mistake.
//!
//! A table of magic numbers and a few computed places. Recognising is for the message; refusing does not depend on it,
//! because anything but zeroes is refused.

/// Bytes that tell a format by themselves.
struct Signature {
    what: &'static str,
    offset: usize,
    magic: &'static [u8],
}

const fn sig(what: &'static str, offset: usize, magic: &'static [u8]) -> Signature {
    Signature { what, offset, magic }
}

/// Specific before general: a partition table's boot mark is also found under FAT and NTFS.
const SIGNATURES: &[Signature] = &[
    sig("an XFS file system", 0, b"XFSB"),
    sig("an ext2/3/4 file system", 1080, &[0x53, 0xef]),
    sig("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    sig("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    sig("an EROFS file system", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    sig("a JFS file system", 32768, b"JFS1"),
    sig("a ReiserFS file system", 0x1_0034, b"ReIsEr"),
    sig("a GFS2 file system", 0x1_0000, &[0x01, 0x16, 0x19, 0x70]),
    sig("a SquashFS file system", 0, b"hsqs"),
    sig("an ISO 9660 file system", 32769, b"CD001"),
    sig("an NTFS file system", 3, b"NTFS    "),
    sig("an exFAT file system", 3, b"EXFAT   "),
    sig("a FAT file system", 82, b"FAT32   "),
    sig("a FAT file system", 54, b"FAT16   "),
    sig("a FAT file system", 54, b"FAT12   "),
    sig("a swap area", 4086, b"SWAPSPACE2"),
    sig("a swap area", 4086, b"SWAP-SPACE"),
    sig("a swap area", 8182, b"SWAPSPACE2"),
    sig("a swap area", 16374, b"SWAPSPACE2"),
    sig("a swap area", 65526, b"SWAPSPACE2"),
    sig("an LVM physical volume", 0, b"LABELONE"),
    sig("an LVM physical volume", 512, b"LABELONE"),
    sig("an LVM physical volume", 1024, b"LABELONE"),
    sig("an LVM physical volume", 1536, b"LABELONE"),
    sig("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    sig("a Linux RAID member (1.1)", 0, &MD_MAGIC),
    sig("a Linux RAID member (1.2)", 4096, &MD_MAGIC),
    sig(
        "a bcache device",
        4096 + 24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    sig(
        "a bcachefs file system",
        4096 + 24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    sig("a Stratis block device", 512 + 4, b"!Stra0tis"),
    sig("a Ceph BlueStore device", 0, b"bluestore block device"),
    sig("an Oracle ASM disk", 32, b"ORCLDISK"),
    sig("an Oracle data file", 28, b"}|{z"),
    sig("a qcow2 image", 0, b"QFI\xfb"),
    sig("a VMDK image", 0, b"KDMV"),
    sig("a VMDK image", 0, b"# Disk DescriptorFile"),
    sig("a VDI image", 64, &[0x7f, 0x10, 0xda, 0xbe]),
    sig("a VHDX image", 0, b"vhdxfile"),
    sig("a VHD image", 0, b"conectix"),
    sig("an SQLite database", 0, b"SQLite format 3\0"),
    sig("a GPT partition table", 512, b"EFI PART"),
    sig("a GPT partition table", 4096, b"EFI PART"),
    sig("an MBR partition table or boot sector", 510, &[0x55, 0xaa]),
];

const MD_MAGIC: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];

/// Uberblock magic in either byte order.
const ZFS_MAGICS: [[u8; 8]; 2] = [[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]];
const ZFS_LABEL_BYTES: u64 = 256 << 10;
const ZFS_UBERBLOCKS: std::ops::Range<u64> = (128 << 10)..ZFS_LABEL_BYTES;

fn matches(bytes: &[u8], offset: usize, magic: &[u8]) -> bool {
    offset.checked_add(magic.len()).and_then(|end| bytes.get(offset..end)) == Some(magic)
}

/// What the first bytes of a device tell.
pub(crate) fn in_head(head: &[u8]) -> Option<&'static str> {
    if let Some(found) = SIGNATURES.iter().find(|s| matches(head, s.offset, s.magic)) {
        return Some(found.what);
    }
    if zfs_label(head, 0) || zfs_label(head, ZFS_LABEL_BYTES) {
        return Some("a ZFS pool member");
    }
    postgresql_page(head).then_some("a PostgreSQL data file")
}

/// What the last bytes of a device of `size_bytes` tell; `tail` starts at `tail_offset`.
pub(crate) fn in_tail(tail: &[u8], tail_offset: u64, size_bytes: u64) -> Option<&'static str> {
    let at = |offset: Option<u64>, magic: &[u8]| {
        let inside = offset.and_then(|o| o.checked_sub(tail_offset)).and_then(|o| usize::try_from(o).ok());
        inside.is_some_and(|o| matches(tail, o, magic))
    };
    if at(size_bytes.checked_sub(512), b"EFI PART") || at(size_bytes.checked_sub(4096), b"EFI PART") {
        return Some("a backup GPT partition table");
    }
    let md_0_90 = (size_bytes & !0xffff).checked_sub(0x1_0000);
    let md_1_0 = size_bytes.checked_sub(8 << 10).map(|offset| offset & !0xfff);
    if at(md_1_0, &MD_MAGIC) || at(md_0_90, &MD_MAGIC) {
        return Some("a Linux RAID member");
    }
    if at(size_bytes.checked_sub(512), b"conectix") {
        return Some("a VHD image");
    }
    let zfs_end = size_bytes / ZFS_LABEL_BYTES * ZFS_LABEL_BYTES;
    let zfs_labels = [zfs_end.checked_sub(2 * ZFS_LABEL_BYTES), zfs_end.checked_sub(ZFS_LABEL_BYTES)];
    let zfs = zfs_labels.into_iter().flatten().filter_map(|o| o.checked_sub(tail_offset)).any(|o| zfs_label(tail, o));
    zfs.then_some("a ZFS pool member")
}

/// A ZFS label at `label_offset` of `bytes`: any uberblock in its second half.
fn zfs_label(bytes: &[u8], label_offset: u64) -> bool {
    ZFS_UBERBLOCKS.step_by(1024).any(|offset| {
        let offset = usize::try_from(label_offset + offset).unwrap_or(usize::MAX);
        ZFS_MAGICS.iter().any(|magic| matches(bytes, offset, magic))
    })
}

/// A page header of layout version 4 with 8 KiB pages whose pointers are in order.
fn postgresql_page(bytes: &[u8]) -> bool {
    let field = |offset: usize| bytes.get(offset..offset + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let (Some(lower), Some(upper), Some(special), Some(version)) = (field(12), field(14), field(16), field(18)) else {
        return false;
    };
    version == 0x2004 && (24..=upper).contains(&lower) && upper <= special && special <= 8192
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_recognised_by_its_own_name() {
        for s in SIGNATURES {
            let mut head = vec![0; 1 << 20];
            head[s.offset..s.offset + s.magic.len()].copy_from_slice(s.magic);
            assert_eq!(in_head(&head), Some(s.what));
            assert_eq!(in_head(&head[..s.offset + s.magic.len() - 1]), None, "{} cut short", s.what);
        }
        assert_eq!(in_head(&vec![0; 1 << 20]), None);
        assert_eq!(in_head(&[]), None);
    }

    #[test]
    fn computed_places() {
        let mut head = vec![0; 1 << 20];
        let at = (256 << 10) + (128 << 10) + 7 * 1024;
        head[at..at + 8].copy_from_slice(&ZFS_MAGICS[0]);
        assert_eq!(in_head(&head), Some("a ZFS pool member"));

        let mut page = vec![0; 8192];
        page[12..20].copy_from_slice(&[40, 0, 0, 0x1f, 0, 0x20, 4, 0x20]);
        assert_eq!(in_head(&page), Some("a PostgreSQL data file"));
        page[12] = 23;
        assert_eq!(in_head(&page), None, "lower before the header's end");

        let size = (100 << 20) + 4096;
        let tail_offset = size - (1 << 20);
        let in_tail_at = |offset: u64, magic: &[u8]| {
            let mut tail = vec![0; 1 << 20];
            let at = (offset - tail_offset) as usize;
            tail[at..at + magic.len()].copy_from_slice(magic);
            in_tail(&tail, tail_offset, size)
        };
        assert_eq!(in_tail_at(size - 512, b"EFI PART"), Some("a backup GPT partition table"));
        assert_eq!(in_tail_at((size & !0xffff) - 0x1_0000, &MD_MAGIC), Some("a Linux RAID member"));
        assert_eq!(in_tail_at(size - 8192, &MD_MAGIC), Some("a Linux RAID member"));
        assert_eq!(in_tail_at((100 << 20) - (256 << 10) + (128 << 10), &ZFS_MAGICS[1]), Some("a ZFS pool member"));
        assert_eq!(in_tail_at(size - 513, b"EFI PART"), None);
        assert_eq!(in_tail(&[], 0, 0), None);
    }
}
