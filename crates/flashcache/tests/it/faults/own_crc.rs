//! Blocks that carry a CRC of their own, as file systems and databases write them: all versions of such a block have one CRC32C, and a
//! cache must tell them apart all the same.

use super::rig::*;
use crate::running::run;
use device::{Buf, SharedBufs};
use flashcache::FillCause;

/// Four parts, each with some data, the CRC32C of it, and zeroes, as PostgreSQL's control file.
fn version(number: u8) -> SharedBufs {
    let mut bytes = Vec::new();
    for part in 0..BLOCK_PARTS as u8 {
        let mut page: Vec<u8> = (0..=255).map(|n: u8| n.wrapping_mul(number) ^ part).collect();
        page.extend(crc32c::crc32c(&page).to_le_bytes());
        page.resize(4096, 0);
        bytes.extend(page);
    }
    SharedBufs::from(Buf::padded(&bytes, 4096).freeze())
}

#[test]
fn a_version_that_the_disk_has_replaced_is_not_believed_after_a_crash() {
    run(|world| async move {
        let rig = Rig::new(1, world).await;
        let (old, new) = (version(3), version(5));
        let view = old.view(0..BLOCK_BYTES);
        assert_eq!(rig.cache.fill(&rig.disk, parts(0), view, FillCause::ReadMiss, rig.cache.membership()).taken, 1);
        rig.on_flash().await;
        // The disk is written to; the death of the copy does not reach flash.
        let ticket = rig.cache.begin_write(&rig.disk, parts(0)).await.unwrap();
        rig.cache.end_write(ticket);

        let rig = rig.again().await;
        for suspect in rig.cache.suspects(&rig.disk) {
            assert_eq!(rig.cache.suspect_parts(suspect), [parts(0)]);
            rig.cache.revalidate(&rig.disk, parts(0), new.view(0..BLOCK_BYTES));
            rig.cache.trusted(suspect);
        }
        assert!(rig.misses(0), "the old version is served");
        assert_eq!((rig.counters()["revalidated_good"], rig.counters()["revalidated_stale"]), (0, 1));
    });
}
