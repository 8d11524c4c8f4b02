//! An adopted volume: whatever is done to its cell disk and grid disk, the volume changes by the writes of clients alone.

use crate::support::{cell, options};
use celldisk::{
    Beside, CachingMode, CellDisk, DeviceId, FormatOptions, GridDiskError, GridDiskId, GridDiskSpec, METADATA_BYTES,
    Purpose, Role, fingerprint,
};
use device::layers::Memory;
use device::{Buf, Bufs, Device, Outcome, WallTime};
use futures_executor::block_on;
use std::sync::Arc;

/// Not a multiple of 64 KiB, nor of a page.
const VOLUME_BYTES: u64 = (3 << 20) + 4096 + 512;
const DISK_BYTES: u64 = 64 << 20;

fn content(device: &Device, len: u64) -> Vec<u8> {
    let done = block_on(device.read(0, Bufs::from(Buf::zeroed(len as usize))));
    assert_eq!(done.outcome, Outcome::Done);
    let mut out = Vec::new();
    done.bufs.for_each(0..len as usize, |piece| out.extend_from_slice(piece));
    out
}

fn pattern(len: u64) -> Vec<u8> {
    let mut all: Vec<u8> = (0..len).map(|at| (at * 31 / 7 + at / 512) as u8 | 1).collect();
    // Something that has a fingerprint.
    all[0x1_0040..0x1_0048].copy_from_slice(b"_BHRfS_M");
    all
}

fn write(device: &Device, at: u64, bytes: &[u8]) {
    let mut buf = Buf::zeroed(bytes.len());
    buf.copy_from_slice(bytes);
    assert_eq!(block_on(device.write(at, Bufs::from(buf).freeze(), true)).outcome, Outcome::Done);
}

fn full_volume() -> Arc<Memory> {
    let volume = Memory::new(VOLUME_BYTES);
    let device: Device = volume.clone();
    write(&device, 0, &pattern(VOLUME_BYTES));
    volume
}

fn format(both: &Arc<Beside>) -> Arc<CellDisk> {
    let how = options(9, Role::Disk);
    let how = FormatOptions { au_bytes: Some(1 << 16), force: true, adopted_bytes: Some(VOLUME_BYTES), ..how };
    block_on(CellDisk::format(both.clone(), how)).unwrap()
}

fn spec(name: &str) -> GridDiskSpec {
    GridDiskSpec::new(name, DeviceId(9), 1 << 20, WallTime(1))
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, GridDiskError>) {
    assert!(matches!(result, Err(GridDiskError::Adopted { .. })), "{result:?}");
}

#[test]
fn nothing_but_writes_of_clients_reaches_the_volume() {
    let volume = full_volume();
    let below: Device = volume.clone();
    let both = Beside::new(Memory::new(METADATA_BYTES), volume, VOLUME_BYTES).unwrap();
    let disk = format(&both);
    let (store, _media) = cell(1, 0, DISK_BYTES);
    let is_as_it_was = || content(&below, VOLUME_BYTES) == pattern(VOLUME_BYTES);
    assert!(is_as_it_was(), "formatted");
    let _ = block_on(store.add(disk.clone())).unwrap();
    // Before it has its grid disk too.
    is_refused(block_on(store.create_grid_disk(spec("other"), &mut |_, _| ())).map(|_| ()));
    for (mode, purpose) in [
        (CachingMode::WriteBack, Purpose::Data),
        (CachingMode::WriteBackOrdered, Purpose::Data),
        (CachingMode::WriteThrough, Purpose::Redo),
    ] {
        let spec = GridDiskSpec { caching_mode: mode, purpose, ..spec("shop") };
        is_refused(block_on(store.adopt_volume(spec)).map(|_| ()));
    }
    let made = block_on(store.adopt_volume(spec("shop"))).unwrap().value;
    assert_eq!(made.size_bytes, VOLUME_BYTES.next_multiple_of(1 << 16));
    assert!(matches!(block_on(store.adopt_volume(spec("twice"))), Err(GridDiskError::Exists { .. })));
    is_refused(block_on(store.create_grid_disk(spec("other"), &mut |_, _| ())).map(|_| ()));
    is_refused(block_on(store.resize_grid_disk(made.id, 1 << 20, &mut |_, _| ())).map(|_| ()));
    is_refused(block_on(store.resize_grid_disk(made.id, 1 << 30, &mut |_, _| ())).map(|_| ()));
    is_refused(store.reserve_journal(made.id, 1 << 16).map(|_| ()));
    is_refused(block_on(store.alter_grid_disk(made.id, |g| g.caching_mode = CachingMode::WriteBack)).map(|_| ()));
    is_refused(block_on(store.begin_mode_switch(made.id, CachingMode::WriteBackOrdered)).map(|_| ()));
    is_refused(block_on(store.alter_grid_disk(made.id, |g| g.purpose = Purpose::Redo)).map(|_| ()));
    let _ = block_on(store.alter_grid_disk(made.id, |g| g.comment = "x".to_owned())).unwrap();
    assert!(is_as_it_was(), "after all that");

    let slice: Device = store.slice(made.id).unwrap();
    assert_eq!(slice.geometry().size_bytes, made.size_bytes);
    let shown = content(&slice, made.size_bytes);
    assert_eq!(shown[..VOLUME_BYTES as usize], pattern(VOLUME_BYTES));
    assert!(shown[VOLUME_BYTES as usize..].iter().all(|byte| *byte == 0), "what the grid disk has more");
    write(&slice, 8192, &[7; 512]);
    let mut wanted = pattern(VOLUME_BYTES);
    wanted[8192..8192 + 512].fill(7);
    assert_eq!(content(&below, VOLUME_BYTES), wanted);

    let _ = block_on(store.drop_grid_disk(GridDiskId(made.id.0))).unwrap();
    let _ = block_on(store.remove(DeviceId(9))).unwrap();
    block_on(disk.erase()).unwrap();
    assert_eq!(content(&below, VOLUME_BYTES), wanted, "erased");
}

#[test]
fn with_room_for_a_journal_it_may_be_written_on_flash_in_flush_order() {
    let volume = full_volume();
    let below: Device = volume.clone();
    let both = Beside::new(Memory::new(METADATA_BYTES + (1 << 20)), volume, VOLUME_BYTES).unwrap();
    let disk = format(&both);
    let (store, _media) = cell(1, 0, DISK_BYTES);
    let _ = block_on(store.add(disk.clone())).unwrap();
    let made = block_on(store.adopt_volume(spec("shop"))).unwrap().value;
    assert_eq!(made.size_bytes, VOLUME_BYTES.next_multiple_of(1 << 16), "the grid disk is the volume alone");
    is_refused(block_on(store.alter_grid_disk(made.id, |g| g.caching_mode = CachingMode::WriteBack)).map(|_| ()));
    is_refused(block_on(store.create_grid_disk(spec("other"), &mut |_, _| ())).map(|_| ()));
    let too_much = store.reserve_journal(made.id, (1 << 20) + 1).map(|_| ());
    assert!(matches!(too_much, Err(GridDiskError::NoSpace { .. })), "{too_much:?}");
    let space = store.reserve_journal(made.id, 1 << 20).unwrap();
    let device: Device = space.device();
    write(&device, 0, &[9; 4096]);
    write(&device, (1 << 20) - 4096, &[9; 4096]);
    let taken = block_on(store.take_journal(space, made.caching_policy)).unwrap().value;
    assert_eq!(taken.caching_mode, CachingMode::WriteBackOrdered);
    assert_eq!(content(&below, VOLUME_BYTES), pattern(VOLUME_BYTES), "nothing of the journal is on the volume");
    assert_eq!(content(&(store.journal_slice(made.id).unwrap() as Device), 4096), [9; 4096]);
}

#[test]
fn a_label_knows_what_it_has_adopted() {
    let (metadata, volume) = (Memory::new(METADATA_BYTES), full_volume());
    let both = Beside::new(metadata.clone(), volume.clone(), VOLUME_BYTES).unwrap();
    let disk = format(&both);
    let adopted = disk.label().adopted.unwrap();
    assert_eq!((adopted.volume_bytes, adopted.fingerprint), (VOLUME_BYTES, 0));
    let device: Device = both.clone();
    let print = block_on(fingerprint(&device, adopted)).unwrap();
    assert_ne!(print, 0);
    block_on(disk.update_label(|label| label.adopted.as_mut().unwrap().fingerprint = print)).unwrap();
    assert!(block_on(disk.update_label(|label| label.adopted = None)).is_err(), "it does not become an ordinary disk");
    assert!(block_on(disk.update_label(|label| label.adopted.as_mut().unwrap().volume_bytes -= 512)).is_err());
    drop(disk);
    // A volume that has grown is as large as it was.
    let larger = Memory::new(VOLUME_BYTES + (1 << 20));
    let grown: Device = larger.clone();
    write(&grown, 0, &pattern(VOLUME_BYTES));
    let both = Beside::new(metadata, larger, VOLUME_BYTES).unwrap();
    let again = block_on(CellDisk::open(both.clone())).unwrap();
    assert_eq!(again.label().adopted.unwrap().fingerprint, print);
    assert_eq!(again.au_count_possible(), again.label().au_count());
    assert_eq!(block_on(fingerprint(again.device(), again.label().adopted.unwrap())).unwrap(), print);
}
