//! Goal: the log says of itself what is so: what fits, what is on the device, what is durable, who may take which segment. Method: a log
//! without a device; writes complete when a test says so.

use super::*;
use crate::base::units::{BlockKey, DiskSlot};
use crate::format::{BlockName, EntryKind};
use crate::index::Entry;
use crate::index::live::Live;
use device::Bufs;
use smallvec::SmallVec;

const SEGMENTS: u32 = 12;
const PAGES: u32 = 64;
const LIFE: u32 = 5;
const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 3 };

/// The opening of this number in the life of the test; 0: none yet.
fn opening(nth: u32) -> Opening {
    if nth == 0 { Opening::NEVER } else { Opening::new(LIFE, nth) }
}

struct Rig {
    log: LogState,
    writes: Vec<LogWrite>,
}

impl Rig {
    fn new() -> Rig {
        Rig::with(SEGMENTS, PAGES)
    }

    fn with(segments: u32, segment_pages: u32) -> Rig {
        let shape = Shape { segments, segment_pages, align: 1 };
        let mut log = LogState::new(shape, OWNER, LIFE, Arc::new(AtomicU64::new(1)), Prng::new(1));
        log.free.extend((0..segments).map(SegmentId));
        Rig { log, writes: Vec::new() }
    }

    fn append(&mut self, head: HeadKind, pages: u32, reserve: usize) -> Result<Page, NoSpace> {
        let record = |position| Record::Entry {
            kind: EntryKind::Clean,
            name: BlockName { disk: 1, generation: 1, block: 7 },
            mask: ((1_u32 << pages) - 1) as u16,
            position,
            sums: (0..pages).collect::<SmallVec<[u32; 4]>>(),
        };
        let data = Bufs::from(Buf::zeroed(pages as usize * 4096)).freeze();
        self.log.append_entry(head, &record, data, reserve, &mut self.writes)
    }

    /// Until the head has sealed so many segments.
    fn seal(&mut self, head: HeadKind, count: usize) {
        while self.log.sealed[head as usize].len() < count {
            self.append(head, 4, 0).expect("room");
        }
    }

    fn close(&mut self, reserve: usize) -> Result<(), NoSpace> {
        self.log.close_all(reserve, &mut self.writes)
    }

    /// Everything that was issued is on the device; what that issues as well.
    fn write_all(&mut self) {
        while !self.writes.is_empty() {
            for write in std::mem::take(&mut self.writes) {
                self.log.written(write.done(), &mut self.writes);
            }
        }
    }

    fn sync(&mut self) {
        self.close(0).expect("room");
        self.write_all();
        let (provable, covered) = (self.log.provable(), self.log.covered());
        self.log.prove(&provable);
        self.log.set_synced(covered);
    }

    fn state(&self, id: u32) -> SegmentState {
        self.log.segments[id as usize].state
    }

    fn readable(&self, id: u32) -> u32 {
        self.log.readable()[id as usize].load(Ordering::Acquire)
    }

    fn is_kept(&self, id: u32) -> bool {
        self.log.kept()[id as usize].load(Ordering::Acquire)
    }
}

fn note(note: u8) -> Record {
    Record::PolicyNote { note }
}

/// The records of a chunk.
fn records_of(write: &LogWrite) -> Vec<Record> {
    let bytes = write.data.to_vec(0..4096);
    format::decode_chunk(&bytes, &OWNER).expect("a chunk").1
}

#[test]
fn it_rests_when_nothing_waits_and_nothing_is_under_way() {
    let mut rig = Rig::new();
    assert!(rig.log.rests());
    rig.log.append_record(note(1));
    assert!(!rig.log.rests(), "a record waits");
    rig.sync();
    assert!(rig.log.rests());
    rig.append(HeadKind::Small, 4, 0).expect("room");
    assert!(!rig.log.rests(), "a chunk is open");
    rig.close(0).expect("room");
    assert!(!rig.log.rests(), "it is under way");
    rig.write_all();
    assert!(!rig.log.rests(), "it is not durable");
    rig.sync();
    assert!(rig.log.rests());
    rig.log.syncing = true;
    assert!(!rig.log.rests(), "somebody syncs");
    rig.log.syncing = false;
    rig.seal(HeadKind::Small, 1);
    rig.sync();
    let victim = rig.log.take_victim(HeadKind::Small).expect("one is full");
    assert!(!rig.log.rests(), "a segment is between two states");
    rig.log.release(victim);
    assert!(rig.log.rests());
}

#[test]
fn pages_are_readable_and_have_arrived_as_their_writes_complete() {
    let mut rig = Rig::new();
    let first = rig.append(HeadKind::Dirty, 4, 0).expect("room");
    assert_eq!((first, rig.readable(0)), (Page(1), 0));
    assert!(!rig.log.has_arrived(SegmentId(0), Position(1)));
    assert_eq!(rig.log.staged.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
    rig.close(0).expect("room");
    rig.append(HeadKind::Dirty, 4, 0).expect("room");
    rig.close(0).expect("room");
    let [one, two] = std::mem::take(&mut rig.writes).try_into().ok().expect("two chunks");
    assert_eq!([(one.position, one.pages), (two.position, two.pages)], [(0, 5), (5, 5)]);
    // The second arrives first: a walk does not find it yet.
    rig.log.written(two.done(), &mut rig.writes);
    assert_eq!((rig.readable(0), rig.log.staged.len()), (0, 4));
    assert!(!rig.log.has_arrived(SegmentId(0), Position(6)));
    rig.log.written(one.done(), &mut rig.writes);
    assert_eq!((rig.readable(0), rig.log.staged.len()), (u32::MAX, 0));
    assert!(rig.log.has_arrived(SegmentId(0), Position(6)));
    rig.append(HeadKind::Dirty, 4, 0).expect("room");
    assert!(rig.log.has_arrived(SegmentId(0), Position(9)) && !rig.log.has_arrived(SegmentId(0), Position(10)));
    assert_eq!(rig.readable(0), 10);
}

#[test]
fn a_second_chunk_of_dirty_data_goes_with_much_and_the_next_waits() {
    let mut rig = Rig::new();
    for n in 0..7 {
        rig.append(HeadKind::Dirty, 4, 0).expect("room");
        rig.log.push_dirty(&mut rig.writes);
        // The first goes alone; the second once 16 pages share its header; a third never does.
        assert_eq!(rig.writes.len(), if n < 4 { 1 } else { DIRTY_CHUNKS_MAX });
    }
    assert_eq!((rig.writes[1].position, rig.writes[1].pages), (5, 17));
    // Those that waited share a header, and go once none is under way.
    for (left, under_way) in [(1, 1), (0, 1)] {
        let first = rig.writes.remove(0);
        rig.log.written(first.done(), &mut rig.writes);
        assert_eq!(rig.writes.len(), under_way, "{left} of the first two");
    }
    assert_eq!((rig.writes[0].position, rig.writes[0].pages), (22, 9));
    rig.write_all();
    assert!(rig.log.writes_outstanding.is_empty() && rig.log.staged.is_empty());
}

#[test]
fn what_is_said_once_things_are_durable_is_said_then_and_in_order() {
    let mut rig = Rig::new();
    rig.log.append_once_durable(note(1));
    assert_eq!((rig.log.pending_records(), rig.log.appended), (1, 1), "everything is durable: at once");
    rig.log.append_once_durable(note(2));
    rig.log.append_record(note(3));
    rig.log.append_once_durable(note(4));
    assert_eq!((rig.log.pending_records(), rig.log.appended), (4, 2));
    rig.log.set_synced((1, 0));
    assert_eq!((rig.log.pending_records(), rig.log.appended, rig.log.synced), (4, 3, 1), "2 is said, 4 not yet");
    rig.log.set_synced((0, 0));
    assert_eq!(rig.log.synced, 1, "what is durable stays so");
    rig.sync();
    let writes = rig.log.appended;
    assert_eq!((rig.log.pending_records(), writes), (1, 4), "4 is said since 3 is durable");
    rig.close(0).expect("room");
    let said = records_of(&rig.writes[0]);
    assert_eq!(said.last(), Some(&note(4)));
    rig.write_all();
    rig.log.append_once_durable(note(5));
    assert_eq!(rig.log.appended, 4, "4 is not durable: 5 waits");
}

#[test]
fn each_chunk_names_the_one_before_it_and_what_is_durable() {
    let mut rig = Rig::new();
    for head in [HeadKind::Small, HeadKind::Main] {
        rig.append(head, 1, 0).expect("room");
        rig.close(0).expect("room");
    }
    let link = |segment, sequence| Record::Link {
        segment: SegmentId(segment),
        opening: opening(segment + 1),
        sequence,
        certain: false,
    };
    assert!(!records_of(&rig.writes[0]).iter().any(|record| matches!(record, Record::Link { .. })));
    assert_eq!(records_of(&rig.writes[1])[1], link(0, 1));
    let header = |write: &LogWrite| format::decode_chunk(&write.data.to_vec(0..4096), &OWNER).expect("a chunk").0;
    assert_eq!((header(&rig.writes[1]).sequence, header(&rig.writes[1]).durable), (2, 0));
    rig.sync();
    rig.append(HeadKind::Small, 1, 0).expect("room");
    rig.close(0).expect("room");
    assert_eq!(records_of(&rig.writes[0])[1], link(1, 2));
    assert_eq!((header(&rig.writes[0]).sequence, header(&rig.writes[0]).durable), (3, 2));
}

#[test]
fn records_go_as_far_as_the_header_goes_and_then_into_more_chunks() {
    let mut rig = Rig::new();
    // 3904 bytes of records fit a header of one page: 976 notes of 4 bytes, or 970 behind the 24 of a link.
    for n in 0..2500 {
        rig.log.append_record(note(n as u8));
    }
    rig.close(0).expect("room");
    let counts: Vec<usize> = rig.writes.iter().map(|write| records_of(write).len()).collect();
    assert_eq!(counts, [976, 971, 555]);
    assert_eq!(rig.log.shape.header_capacity(), 3904);
    let said = rig.writes.iter().flat_map(records_of).filter_map(|record| match record {
        Record::PolicyNote { note } => Some(note),
        _ => None,
    });
    assert!(said.eq((0..2500).map(|n| n as u8)), "in order");
}

#[test]
fn what_is_left_of_open_segments_is_kept_once_none_is_free() {
    let mut rig = Rig::with(4, 64);
    for head in [HeadKind::Small, HeadKind::Main, HeadKind::Dirty] {
        rig.append(head, 1, 0).expect("a segment");
    }
    rig.close(0).expect("room");
    rig.append(HeadKind::Small, 1, 2).expect("in a segment that is open");
    // The last one is taken by who may: nobody else uses up the room in what is open.
    while !rig.log.free.is_empty() {
        rig.append(HeadKind::Main, 4, 0).expect("the last");
    }
    rig.close(0).expect("room");
    assert_eq!(rig.append(HeadKind::Small, 1, 2), Err(NoSpace), "a fill");
    rig.log.append_record(note(1));
    assert_eq!(rig.close(1), Err(NoSpace), "a record, in whichever segment");
    assert_eq!(rig.log.pending_records(), 1, "it stays pending");
    rig.append(HeadKind::Dirty, 1, 2).expect("dirty data has a segment of its own");
    rig.close(0).expect("who may take the last has its room there");
    assert_eq!(rig.log.pending_records(), 0);
}

#[test]
fn segments_in_reserve_stay_free() {
    let mut rig = Rig::new();
    let mut blocks = 0;
    while rig.append(HeadKind::Small, 4, 3).is_ok() {
        blocks += 1;
    }
    // 15 blocks a segment: 60 pages, a header, and a footer of one page; nine segments.
    assert_eq!((blocks, rig.log.free.len()), (135, 3));
    assert!(!rig.log.surely_takes(HeadKind::Main, 4, 44, 3) && rig.log.surely_takes(HeadKind::Main, 4, 44, 2));
    assert_eq!(rig.append(HeadKind::Main, 4, 3), Err(NoSpace));
    rig.append(HeadKind::Main, 4, 2).expect("one more");
    assert!(rig.log.surely_takes(HeadKind::Main, 4, 44, 3), "its open chunk takes it");
    assert!(!rig.log.surely_takes(HeadKind::Main, 4, 4000, 3), "not with so long a record");
    assert!(!rig.log.surely_takes(HeadKind::Main, 60, 44, 3), "nor so much");
    assert_eq!((rig.log.free.len(), rig.log.segments.len()), (2, 12));
    rig.write_all();
    // Records find room in a segment that is open before they take another, or are refused.
    rig.log.append_record(note(1));
    rig.close(2).expect("behind the last chunk");
    assert_eq!(rig.log.free.len(), 2);
    rig.write_all();
    while rig.append(HeadKind::Main, 4, 2).is_ok() {}
    rig.log.append_record(note(1));
    assert_eq!((rig.close(2), rig.log.pending_records()), (Err(NoSpace), 1), "it stays pending");
    rig.close(1).expect("a segment");
    assert_eq!((rig.log.free.len(), rig.log.pending_records()), (1, 0));
}

#[test]
fn data_leaves_a_segment_to_the_head_that_takes_records() {
    let mut rig = Rig::new();
    assert_eq!((rig.log.left_by(HeadKind::Dirty, 3), rig.log.left_by(HeadKind::Small, 3)), (4, 3));
    rig.append(HeadKind::Small, 4, 3).expect("room");
    assert_eq!((rig.log.left_by(HeadKind::Dirty, 3), rig.log.left_by(HeadKind::Small, 3)), (3, 3));
    rig.seal(HeadKind::Small, 1);
    rig.close(0).expect("room");
    assert_eq!(rig.log.left_by(HeadKind::Main, 3), 3, "it has the next one");
}

/// A segment that gains nothing would be cleaned again and again, each time into the space of the last.
#[test]
fn cleaning_gains_at_least_a_page_however_small_segments_are() {
    const SEGMENT_PAGES: u32 = 16;
    let mut rig = Rig::with(8, SEGMENT_PAGES);
    let data_pages = 13;
    rig.seal(HeadKind::Main, 1);
    rig.sync();
    let id = rig.log.sealed[HeadKind::Main as usize][0];
    let first = rig.log.shape.page(id, 1);
    let live = Live::new(8, SEGMENT_PAGES);
    let entry = |nth: u32| Entry::new(BlockKey::new(DiskSlot(0), u64::from(nth)), Page(first.0 + nth), 1, 0, false);
    let worth = |rig: &Rig| rig.log.most_worth_cleaning(&live, data_pages, &|_, _| true).map(|(id, _)| id);
    // Three chunks closed for it take six pages.
    for kept in 0..data_pages {
        let gains = kept + 6 < data_pages;
        assert_eq!(worth(&rig).is_some(), gains, "{kept} of {data_pages} pages kept");
        live.begin(&entry(kept), 1);
    }
}

#[test]
fn the_keep_head_has_its_share_and_leaves_some_to_others() {
    for (segments, dirty, most) in
        [(64, 0, 51), (100, 0, 80), (40, 0, 32), (39, 0, 31), (24, 0, 16), (64, 10, 46), (9, 0, 1), (8, 0, 0)]
    {
        let mut rig = Rig::with(segments, PAGES);
        rig.seal(HeadKind::Dirty, dirty);
        assert_eq!(rig.log.keep_segments_max(), most, "{segments} with {dirty} dirty");
    }
    let mut rig = Rig::with(40, PAGES);
    while rig.append(HeadKind::Keep, 4, 0).is_ok() {}
    assert_eq!((rig.log.keep_segments(), rig.log.free.len()), (32, 8));
    rig.append(HeadKind::Small, 4, 0).expect("others have room");
    assert!((0..32).all(|id| rig.is_kept(id)) && !rig.is_kept(32));
    let held = rig.log.held();
    assert_eq!((held.small, held.main), (u64::from(PAGES), 0));
}

#[test]
fn segments_change_heads_as_they_are() {
    let mut rig = Rig::new();
    rig.seal(HeadKind::Keep, 2);
    assert_eq!((rig.log.keep_segments(), rig.state(0)), (3, SegmentState::Sealed(HeadKind::Keep)));
    rig.log.age(SegmentId(1));
    rig.log.age(SegmentId(1));
    assert_eq!(rig.log.sealed[HeadKind::Main as usize], [SegmentId(1)]);
    assert!(rig.log.segments[1].aged && !rig.is_kept(1) && rig.is_kept(0));
    let before = rig.log.pending_records();
    rig.log.change_head(SegmentId(0), HeadKind::Keep, HeadKind::Main);
    rig.log.change_head(SegmentId(0), HeadKind::Keep, HeadKind::Main);
    assert_eq!(rig.log.sealed[HeadKind::Main as usize], [SegmentId(1), SegmentId(0)], "aged ones are the oldest");
    assert_eq!(rig.log.pending_records(), before + 1, "said once");
    rig.log.change_head(SegmentId(1), HeadKind::Main, HeadKind::Keep);
    assert!(!rig.log.segments[1].aged && rig.is_kept(1));
    assert_eq!(rig.log.keep_segments(), 2);
    // Not before it is on the device.
    assert!(!rig.log.take(SegmentId(1), HeadKind::Keep));
    assert_eq!(rig.log.take_victim(HeadKind::Keep), None);
    rig.sync();
    rig.log.cleaning.extend([SegmentId(0), SegmentId(1), SegmentId(1)]);
    assert_eq!(rig.log.take_cleaning(), Some(SegmentId(1)), "the other is not of the keep head any more");
    assert_eq!((rig.log.take_cleaning(), rig.state(1)), (None, SegmentState::Reclaiming));
    rig.log.keep(SegmentId(1), HeadKind::Small);
    assert_eq!(rig.state(1), SegmentState::Sealed(HeadKind::Small));
    assert!(rig.log.segments[1].kept_at > 0);
    assert_eq!(rig.log.take_victim(HeadKind::Small), Some(SegmentId(1)));
    rig.log.release(SegmentId(1));
    assert_eq!((rig.log.free.back(), rig.state(1)), (Some(&SegmentId(1)), SegmentState::Free));
}

#[test]
fn a_segment_is_proven_when_its_footer_is_durable() {
    let mut rig = Rig::new();
    rig.append(HeadKind::Small, 4, 0).expect("room");
    rig.close(0).expect("room");
    rig.write_all();
    assert_eq!(rig.log.provable(), [], "it has no footer");
    rig.seal(HeadKind::Small, 1);
    assert_eq!(rig.log.provable(), [], "it is under way");
    rig.write_all();
    assert_eq!(rig.log.provable(), [(SegmentId(0), opening(1))]);
    rig.log.prove(&[(SegmentId(0), opening(2))]);
    assert!(!rig.log.segments[0].proven, "that is another life");
    rig.log.prove(&[(SegmentId(0), opening(1))]);
    assert!(rig.log.segments[0].proven && rig.log.provable().is_empty());
}

#[test]
fn the_link_to_the_last_chunk_of_a_segment_in_use_is_carried() {
    let mut rig = Rig::new();
    rig.seal(HeadKind::Small, 3);
    let last = rig.log.segments[0].last_sequence;
    let link =
        |nth, sequence, certain| Record::Link { segment: SegmentId(0), opening: opening(nth), sequence, certain };
    let carried = |rig: &Rig, record: Record| rig.log.link_still_needed(&record, SegmentId(1));
    assert_eq!(carried(&rig, link(1, last, false)), Some(link(1, last, false)), "not known to be durable");
    rig.sync();
    assert_eq!(carried(&rig, link(1, last, false)), Some(link(1, last, true)));
    for of_no_use in [link(1, last - 1, true), link(2, last, true), note(0)] {
        assert_eq!(carried(&rig, of_no_use), None);
    }
    assert_eq!(rig.log.link_still_needed(&link(1, last, true), SegmentId(0)), None, "it goes itself");
}

#[test]
fn a_chunk_of_this_life_in_an_opening_of_an_earlier_one_is_not_durable_for_certain() {
    let mut rig = Rig::new();
    rig.seal(HeadKind::Small, 1);
    // As after a recovery that goes on in the opening: the chunk is of this life, and no flush has covered it.
    rig.log.life += 1;
    let sequence = rig.log.segments[0].last_sequence;
    let link = |certain| Record::Link { segment: SegmentId(0), opening: opening(1), sequence, certain };
    assert_eq!(rig.log.link_still_needed(&link(false), SegmentId(1)), Some(link(false)));
    rig.log.set_life_after(sequence);
    assert_eq!(rig.log.link_still_needed(&link(false), SegmentId(1)), Some(link(true)), "recovery has made it durable");
}

#[test]
fn a_segment_is_freed_when_what_superseded_its_dirty_data_is_durable() {
    let mut rig = Rig::new();
    rig.seal(HeadKind::Dirty, 1);
    rig.sync();
    let id = rig.log.sealed[HeadKind::Dirty as usize][0];
    assert!(rig.log.successors_durable(id).is_some(), "nothing of it was superseded");
    rig.append(HeadKind::Dirty, 4, 0).expect("room");
    rig.log.superseded(id);
    rig.append(HeadKind::Dirty, 4, 0).expect("room");
    assert_eq!(rig.log.successors_durable(id), None);
    rig.close(0).expect("room");
    rig.write_all();
    assert_eq!(rig.log.successors_durable(id), None, "written is not durable");
    rig.sync();
    assert!(rig.log.take(id, HeadKind::Dirty));
    let proof = rig.log.successors_durable(id).expect("durable");
    rig.log.append_free(proof);
    let opening = rig.log.segments[id.0 as usize].opening;
    assert_eq!(rig.log.take_pending_for_test(), [Record::Free { segment: id, opening }]);
}

#[test]
#[should_panic(expected = "a segment is freed with a proof")]
fn a_free_record_without_a_proof_is_refused() {
    Rig::new().log.append_record(Record::Free { segment: SegmentId(0), opening: opening(1) });
}

#[test]
#[should_panic(expected = "after its proof was made")]
fn a_proof_does_not_cover_what_is_superseded_later() {
    let mut rig = Rig::new();
    rig.seal(HeadKind::Dirty, 1);
    rig.sync();
    let id = rig.log.sealed[HeadKind::Dirty as usize][0];
    assert!(rig.log.take(id, HeadKind::Dirty));
    let proof = rig.log.successors_durable(id).expect("durable");
    rig.append(HeadKind::Dirty, 4, 0).expect("room");
    rig.log.superseded(id);
    rig.log.append_free(proof);
}

#[test]
fn records_are_needed_as_long_as_what_they_are_about() {
    let mut rig = Rig::new();
    rig.seal(HeadKind::Small, 3);
    rig.sync();
    let dead = |segment, nth| Record::Invalidation {
        segment: SegmentId(segment),
        opening: opening(nth),
        position: Position(1),
        mask: 1,
        cleaned: false,
    };
    let free = |segment, nth| Record::Free { segment: SegmentId(segment), opening: opening(nth) };
    let kept = |segment, nth, sequence| Record::Kept {
        segment: SegmentId(segment),
        opening: opening(nth),
        head: HeadKind::Main,
        sequence,
    };
    let of = SegmentId(1);
    for (record, needed) in [
        (dead(0, 1), true),
        (dead(0, 2), false),
        (dead(1, 2), false),
        (dead(11, 0), false),
        (dead(99, 1), false),
        // Its next life proves itself; before that it is needed.
        (free(0, 0), false),
        (free(0, 1), true),
        (free(11, 0), true),
        (free(99, 0), false),
        (kept(0, 1, 7), true),
        (kept(0, 2, 7), false),
        (kept(1, 2, 7), false),
        (note(0), true),
        (note(3), false),
        (Record::Link { segment: SegmentId(0), opening: opening(1), sequence: 1, certain: false }, false),
    ] {
        assert_eq!(rig.log.still_needed(&record, of), needed, "{record:?}");
    }
    rig.log.segments[0].kept_at = 8;
    assert!(!rig.log.still_needed(&kept(0, 1, 7), of) && rig.log.still_needed(&kept(0, 1, 8), of), "the last word");
    rig.log.segments[0].proven = false;
    assert!(rig.log.still_needed(&free(0, 0), of));
    rig.log.say_policy_note(3);
    rig.log.say_policy_note(3);
    assert_eq!(rig.log.pending_records(), 1);
    assert!(rig.log.still_needed(&note(3), of) && !rig.log.still_needed(&note(0), of));
}

#[test]
fn it_goes_on_behind_the_last_chunk_where_there_is_room() {
    let life = SegmentLife { segment: SegmentId(0), opening: opening(4), head: HeadKind::Main };
    let fresh = || {
        let mut rig = Rig::new();
        rig.log.free.pop_front();
        rig.log.set_state(SegmentId(0), SegmentState::Sealed(HeadKind::Main));
        rig.log.sealed[HeadKind::Main as usize].push_back(SegmentId(0));
        rig
    };
    for (next, goes_on) in [(10, true), (62, true), (63, false), (64, false)] {
        let mut rig = fresh();
        assert_eq!(rig.log.reopen(life, next, Vec::new(), Parity::new(rig.log.shape)), goes_on, "from page {next}");
        assert_eq!(rig.state(0) == SegmentState::Open(HeadKind::Main), goes_on);
        assert_eq!(rig.log.sealed[HeadKind::Main as usize].is_empty(), goes_on);
    }
    let mut rig = fresh();
    // The footer has to hold what is there already: 40 pages of records.
    let many = vec![dead_everywhere(); 8_192];
    assert!(!rig.log.reopen(life, 24, many, Parity::new(rig.log.shape)));
    assert!(rig.log.reopen(life, 10, Vec::new(), Parity::new(rig.log.shape)));
    assert!(!rig.log.reopen(life, 10, Vec::new(), Parity::new(rig.log.shape)), "the head is there already");
    assert_eq!(rig.append(HeadKind::Main, 4, 0), Ok(Page(11)));
    let mut rig = fresh();
    rig.log.sealed[HeadKind::Main as usize].clear();
    assert!(!rig.log.reopen(life, 10, Vec::new(), Parity::new(rig.log.shape)), "it has gone elsewhere");
}

#[test]
fn a_footer_says_nothing_of_an_earlier_lifes_durable_chunks() {
    for (last_sequence, durable) in [(1 << 32 | 179, 0), (2 << 32 | 3, 2 << 32 | 3)] {
        let mut rig = Rig::new();
        let life = SegmentLife { segment: SegmentId(0), opening: opening(4), head: HeadKind::Main };
        rig.log.free.pop_front();
        rig.log.set_state(SegmentId(0), SegmentState::Sealed(HeadKind::Main));
        rig.log.sealed[HeadKind::Main as usize].push_back(SegmentId(0));
        rig.log.segments[0].last_sequence = last_sequence;
        rig.log.set_life_after(1 << 32 | 179);
        assert!(rig.log.reopen(life, 10, Vec::new(), Parity::new(rig.log.shape)));
        // The life after has durable chunks elsewhere, up to a later sequence than the segment's last one.
        (0..5).for_each(|_| {
            rig.append(HeadKind::Small, 4, 0).expect("room");
            rig.sync();
        });
        let mut writes = Vec::new();
        rig.log.seal(HeadKind::Main, &mut writes);
        let [footer] = &writes[..] else { panic!("a footer") };
        let bytes = footer.data.to_vec(0..footer.data.len_bytes());
        let trailer = format::decode_footer(&bytes, &OWNER).expect("a footer").0;
        assert_eq!((trailer.sequence, trailer.durable), (last_sequence, durable));
    }
}

fn dead_everywhere() -> Record {
    Record::Invalidation { segment: SegmentId(1), opening: opening(2), position: Position(1), mask: 1, cleaned: true }
}

#[test]
fn shapes_count_headers_footers_and_true_pages() {
    let shape = Shape { segments: 4, segment_pages: 64, align: 4 };
    assert_eq!((shape.header_capacity(), shape.footer_pages(0), shape.footer_pages(16 << 10)), (16_192, 4, 8));
    // Header and data on true pages of 16 KiB, and a footer that holds a header's worth of records: 4 pages.
    assert!(shape.takes(52, 4, 0) && !shape.takes(52, 5, 0) && !shape.takes(56, 4, 0) && shape.takes(0, 56, 0));
    assert!(!shape.takes(0, 57, 0) && shape.takes(0, 52, 16_464) && !shape.takes(0, 52, 16_465));
    assert!(shape.holds(56) && !shape.holds(57));
    assert_eq!(shape.page(SegmentId(3), 5), Page(197));
    assert_eq!(shape.place(Page(197)), (SegmentId(3), Position(5)));
}
