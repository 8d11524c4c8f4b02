//! Goal: a slice is the plain device its extents make, and never says more than is true.
//! Method: against a flat array; joined outcomes against the rules, exhaustively.

use crate::support::{Fault, MIB, TestDisk, Whole, cell, read, run, write};
use celldisk::{CellStore, GridDisk, GridDiskSpec, Slice, join_outcomes};
use device::{Buf, Bufs, Class, FailKind, Io, Op, Outcome, Prng, Verb, WallTime};
use std::sync::Arc;

pub(crate) fn spec(store: &CellStore, cell_disk: &str, name: &str, size_bytes: u64) -> GridDiskSpec {
    let home = store.catalog().member_named(cell_disk).unwrap().0;
    GridDiskSpec::new(name, home, size_bytes, WallTime(5))
}

pub(crate) fn create(store: &CellStore, name: &str, size_bytes: u64) -> GridDisk {
    run(store.create_grid_disk(spec(store, "CD_01_c1", name, size_bytes), &mut |_, _| ())).whole()
}

const AU: u64 = 512 << 10;

/// A grid disk of extents of 2, 1 and 1 AU, with the space of others between them.
fn fragmented() -> (Arc<CellStore>, Arc<TestDisk>, GridDisk, Arc<Slice>) {
    let (store, media) = cell(1, 0, 64 * MIB);
    let all: Vec<GridDisk> = (0..120).map(|n| create(&store, &format!("x{n}"), AU)).collect();
    for n in [10, 20, 30, 31] {
        run(store.drop_grid_disk(all[n].id)).whole();
    }
    let g = create(&store, "g", 4 * AU);
    let counts: Vec<u32> = g.extents.iter().map(|extent| extent.count_au).collect();
    assert_eq!(counts, [2, 1, 1], "{:?}", g.extents);
    let slice = store.slice(g.id).unwrap();
    (store, media[0].clone(), g, slice)
}

#[test]
fn a_fragmented_slice_is_a_flat_device() {
    let (store, _medium, g, slice) = fragmented();
    let size = g.size_bytes;
    let geometry = slice.geometry();
    assert_eq!((geometry.size_bytes, geometry.page_bytes), (size, 4096));
    let mut model = vec![0_u8; size as usize];
    let mut prng = Prng::new(7);
    for round in 0..300_u64 {
        let offset = prng.below(size / 512) * 512;
        let len = (prng.between(1, 2 * AU / 512) * 512).min(size - offset);
        let range = offset as usize..(offset + len) as usize;
        match prng.below(4) {
            0 => {
                let op = Op::WriteZeroes { offset, len, fua: false, may_unmap: true };
                assert_eq!(run(slice.submit(op)).outcome, Outcome::Done);
                model[range].fill(0);
            }
            1 | 2 => {
                let mut bytes = vec![0; len as usize];
                prng.fill(&mut bytes);
                assert_eq!(write(&*slice, offset, &bytes, round % 2 == 0), Outcome::Done);
                model[range].copy_from_slice(&bytes);
            }
            _ => assert!(read(&*slice, offset, len as usize).unwrap() == model[range]),
        }
    }
    assert!(read(&*slice, 0, size as usize).unwrap() == model);
    // Nothing else was touched: the neighbours are zero.
    for other in store.catalog().grid_disks.values().filter(|other| other.id != g.id) {
        let neighbour = store.slice(other.id).unwrap();
        assert!(read(&*neighbour, 0, AU as usize).unwrap().iter().all(|&b| b == 0));
    }
}

#[test]
fn requests_within_an_extent_are_passed_on_as_they_are() {
    let (_store, medium, g, slice) = fragmented();
    medium.take_log();
    assert!(read(&*slice, 2 * AU + 4096, 4096).is_ok());
    assert_eq!(medium.take_log(), [(Verb::Read, slice.physical(2 * AU + 4096).unwrap(), 4096)]);
    assert_eq!(run(slice.submit(Op::Flush)).outcome, Outcome::Done);
    assert_eq!(medium.take_log(), [(Verb::Flush, 0, 0)], "one flush, whatever the extents");
    assert!(read(&*slice, 2 * AU - 4096, 8192).is_ok());
    assert_eq!(medium.take_log().len(), 2);
    assert!(read(&*slice, 0, g.size_bytes as usize).is_ok());
    assert_eq!(medium.take_log().len(), 3, "one request for each extent");
}

#[test]
fn beyond_the_end_is_refused_and_buffers_come_back() {
    let (_store, medium, g, slice) = fragmented();
    medium.take_log();
    for (offset, len) in [(g.size_bytes, 512), (g.size_bytes - 512, 1024), (u64::MAX - 511, 512), (u64::MAX, 512)] {
        let op = Op::Read { offset, bufs: Bufs::from(Buf::zeroed(len)) };
        let done = run(slice.submit(op));
        assert_eq!((done.outcome, done.bufs.len_bytes()), (Outcome::Failed(FailKind::Invalid), len));
    }
    assert!(medium.take_log().is_empty());
    assert_eq!(slice.physical(g.size_bytes), None);
}

#[test]
fn the_label_knows_better_than_the_device() {
    let (store, _media) = cell(1, 0, 64 * MIB);
    let g = create(&store, "g", AU);
    run(store.cell_disks()[0].update_label(|label| {
        label.page_bytes = 16 << 10;
        label.class = Class::Ephemeral;
    }))
    .unwrap();
    let geometry = store.slice(g.id).unwrap().geometry();
    assert_eq!((geometry.page_bytes, geometry.class, geometry.logical_bytes), (16 << 10, Class::Ephemeral, 512));
}

#[test]
fn joined_outcomes_follow_the_rules() {
    let all = [
        Outcome::Done,
        Outcome::Short(1),
        Outcome::Failed(FailKind::Media),
        Outcome::Failed(FailKind::NoSpace),
        Outcome::Unknown,
    ];
    for a in all {
        for b in all {
            for c in all {
                for verb in Verb::ALL {
                    let parts = [(10, a), (20, b), (30, c)];
                    let joined = join_outcomes(verb, &parts);
                    let outcomes = [a, b, c];
                    let failed = outcomes.iter().find(|o| matches!(o, Outcome::Failed(_)));
                    let expected = if outcomes.contains(&Outcome::Unknown) {
                        Outcome::Unknown
                    } else if let Some(first) = failed {
                        *first
                    } else {
                        match (outcomes.iter().position(|o| *o == Outcome::Short(1)), verb) {
                            (None, _) => Outcome::Done,
                            (Some(gap), Verb::Read) => Outcome::Short([0, 10, 30][gap] + 1),
                            (Some(2), _) => Outcome::Short(31),
                            (Some(_), _) => Outcome::Failed(FailKind::Media),
                        }
                    };
                    assert_eq!(joined, expected, "{verb:?} {parts:?}");
                }
            }
        }
    }
}

#[test]
fn a_split_request_tells_what_became_of_it() {
    let (_store, medium, _g, slice) = fragmented();
    let second = slice.physical(2 * AU).unwrap();
    for (fault, reads, writes) in [
        (Fault::Fail(FailKind::Media), Outcome::Failed(FailKind::Media), Outcome::Failed(FailKind::Media)),
        (Fault::Short(512), Outcome::Short(4096 + 512), Outcome::Failed(FailKind::Media)),
        (Fault::Unknown, Outcome::Unknown, Outcome::Unknown),
    ] {
        medium.fail(move |_, offset, _| (offset == second).then_some(fault));
        // Over three extents, the middle one at fault.
        let len = 4096 + AU as usize + 4096;
        let op = Op::Read { offset: 2 * AU - 4096, bufs: Bufs::from(Buf::zeroed(len)) };
        let done = run(slice.submit(op));
        assert_eq!((done.outcome, done.bufs.len_bytes()), (reads, len));
        assert_eq!(write(&*slice, 2 * AU - 4096, &vec![1; len], true), writes);
    }
    medium.mend();
}

#[test]
fn status_covers_the_whole_range() {
    let (_store, medium, _g, slice) = fragmented();
    assert_eq!(write(&*slice, 2 * AU, &[1; 4096], false), Outcome::Done);
    let op = || Op::Status { offset: 2 * AU - 4096, len: AU + 8192 };
    let done = run(slice.submit(op()));
    let extents: Vec<(u64, bool)> = done.extents.iter().map(|e| (e.len, e.hole)).collect();
    assert_eq!(extents, [(4096, true), (AU, false), (4096, true)]);
    let second = slice.physical(2 * AU).unwrap();
    medium.fail(move |_, offset, _| (offset == second).then_some(Fault::Fail(FailKind::Media)));
    let done = run(slice.submit(op()));
    assert_eq!((done.outcome, done.extents.len()), (Outcome::Failed(FailKind::Media), 0));
}

#[test]
fn a_slice_follows_the_catalog() {
    let (store, _media) = cell(1, 0, 64 * MIB);
    let g = create(&store, "g", 2 * AU);
    let slice = store.slice(g.id).unwrap();
    assert!(Arc::ptr_eq(&slice, &store.slice(g.id).unwrap()), "one for all");
    assert_eq!(write(&*slice, AU, &[7; 512], false), Outcome::Done);
    run(store.resize_grid_disk(g.id, 4 * AU, &mut |_, _| ())).whole();
    assert_eq!(slice.geometry().size_bytes, 4 * AU);
    assert_eq!(read(&*slice, AU, 512).unwrap(), [7; 512]);
    run(store.resize_grid_disk(g.id, AU, &mut |_, _| ())).whole();
    assert_eq!(read(&*slice, AU, 512), Err(FailKind::Invalid));
    run(store.drop_grid_disk(g.id)).whole();
    assert!(slice.is_closed());
    assert_eq!(slice.geometry().size_bytes, 0);
    assert_eq!(read(&*slice, 0, 512), Err(FailKind::Gone));
    assert_eq!(run(slice.submit(Op::Flush)).outcome, Outcome::Failed(FailKind::Gone));
    // A new grid disk in the same place is another device.
    let h = create(&store, "g", AU);
    assert_eq!(h.extents[0].start_au, g.extents[0].start_au);
    assert_ne!(h.id, g.id);
    assert!(slice.is_closed() && !store.slice(h.id).unwrap().is_closed());
}
