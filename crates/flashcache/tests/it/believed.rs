//! Goal: of a checkpoint that is whole, of this stop and of this device, nothing is believed unless all it says can be; and what is believed
//! is all of what the member knew. Method: the checkpoint of a real stop, decoded, changed and encoded again in its place.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::running::{next_life, run};
use device::layers::Memory;
use device::spawn::yield_now;
use device::{Buf, Device, SharedBufs, World};
use flashcache::checkpoint::{
    Binding, Fate, IndexItem, IndexOut, Item, PART_BYTES, Root, SegmentItem, Writer, decode_root, encode_root,
    visit_part,
};
use flashcache::format::Owner;
use flashcache::units::{Opening, SegmentId};
use flashcache::{
    BLOCKS_MAX, CacheConfig, CachedDisk, CheckpointPlace, DestagedList, Evidence, FillCause, FlashCache, MemberDevice,
    Recovered, Residence, RunLimits, Worth, WorthMap,
};
use std::sync::Arc;
use std::time::Duration;

const SEGMENT_BYTES: u32 = 256 << 10;
const SEGMENT_PAGES: u32 = SEGMENT_BYTES / 4096;
const SEGMENTS: u32 = 32;
const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 1 };
const DISK: CachedDisk = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };

/// An item with what it points to.
#[derive(Clone)]
enum Owned {
    Plain(Item<'static>),
    Entry(IndexItem<'static>, Vec<u32>),
}

fn owned(item: &Item<'_>) -> Owned {
    Owned::Plain(match *item {
        Item::Index(i) => {
            let mut bare = IndexItem::new(i.disk, i.block, i.page, [i.mask, i.valid], i.frequency);
            (bare.dirty, bare.aged) = (i.dirty, i.aged);
            return Owned::Entry(bare, i.sums().collect());
        }
        Item::Disk { number, generation, id } => Item::Disk { number, generation, id },
        Item::Segment(item) => Item::Segment(item),
        Item::PolicyNote(note) => Item::PolicyNote(note),
        Item::Region { disk, region } => Item::Region { disk, region },
    })
}

struct Stopped {
    image: Vec<u8>,
    place: CheckpointPlace,
    root: Root,
    items: Vec<Owned>,
}

impl Stopped {
    fn binding(&self) -> Binding {
        Binding { owner: OWNER, token: self.place.token }
    }

    /// The image with another checkpoint in its place.
    fn with(&self, root: &Root, items: &[Owned]) -> Vec<u8> {
        let mut writer = Writer::new(self.binding());
        let mut parts = vec![(0, encode_root(&self.binding(), root))];
        for item in items {
            parts.extend(match item {
                Owned::Plain(item) => writer.push(item),
                Owned::Entry(item, sums) => writer.push_entry(IndexOut { item: *item, sums }),
            });
        }
        parts.push(writer.end());
        let mut image = self.image.clone();
        for (n, bytes) in parts {
            // One segment holds four parts.
            let at = self.place.segment as usize * SEGMENT_BYTES as usize + n as usize * PART_BYTES;
            image[at..at + PART_BYTES].copy_from_slice(&bytes);
        }
        image
    }
}

async fn open(device: Device, checkpoint: Option<CheckpointPlace>, world: &World) -> (Arc<FlashCache>, Recovered) {
    let config =
        CacheConfig { segment_bytes: SEGMENT_BYTES, chunk_age: Duration::from_millis(1), ..CacheConfig::default() };
    let members = vec![MemberDevice { device, owner: OWNER, life: next_life(), durable: true, checkpoint }];
    let (cache, mut recovered) = FlashCache::open(config, members, &[DISK], world.clone()).await.unwrap();
    (cache, recovered.remove(0).unwrap())
}

async fn device_of(bytes: &[u8]) -> Device {
    let device: Device = Memory::new(bytes.len() as u64);
    for (n, piece) in bytes.chunks(1 << 20).enumerate() {
        device.write((n as u64) << 20, Buf::padded(piece, 4096).freeze().into(), false).await;
    }
    device
}

/// A cache with clean, dirty and kept blocks, some asked for, that has been stopped.
async fn stopped(world: &World) -> (Stopped, Vec<(u64, Residence)>, Vec<flashcache::hot::HotBlock>) {
    let device: Device = Memory::new(u64::from(SEGMENTS) * u64::from(SEGMENT_BYTES));
    let (cache, _) = open(device.clone(), None, world).await;
    let disk = cache.disk(DISK);
    cache.set_worth(&disk, WorthMap::new(Worth::Default, vec![(400..600, Worth::Keep)]));
    let data = SharedBufs::from(Buf::zeroed(16 << 10).freeze());
    for block in 0..200 {
        cache.fill(&disk, block * 4..block * 4 + 4, data.view(0..16 << 10), FillCause::ReadMiss, cache.membership());
        yield_now().await;
        (0..block % 4).for_each(|_| drop(cache.lookup(&disk, block * 4..block * 4 + 4)));
    }
    for block in [3, 50, 51, 300] {
        cache.write_dirty(&disk, block * 4..block * 4 + 3, &data.slice(0..12 << 10), false).await.unwrap();
    }
    // One of them is clean again.
    let limits = RunLimits { parts_max: 1, runs_max: 1, run_parts_max: 16 };
    let (mut runs, _) = cache.dirty_runs(0, &disk, 0, limits);
    let mut list = DestagedList::default();
    cache.prepare_destage(0).await.unwrap();
    assert!(list.is_empty() && cache.confirm_current(&mut runs[0]));
    list.push(&runs[0]);
    drop(runs);
    assert!(!list.is_empty());
    cache.commit_destaged(0, &list).await.unwrap();
    cache.stop().await;
    let place = cache.checkpoint().await[0].unwrap();
    let residence = cache.residence(&disk, 0..1300);
    let hot = cache.hot_blocks(0).await;
    let size = device.geometry().size_bytes as usize;
    let mut image = Vec::new();
    while image.len() < size {
        image.extend(device.read(image.len() as u64, Buf::zeroed(1 << 20).into()).await.bufs.to_vec(0..1 << 20));
    }
    let binding = Binding { owner: OWNER, token: place.token };
    let part = |n: u32| {
        let at = place.segment as usize * SEGMENT_BYTES as usize + n as usize * PART_BYTES;
        &image[at..at + PART_BYTES]
    };
    let root = decode_root(&binding, part(0)).unwrap();
    let mut items = Vec::new();
    for n in 1..root.parts {
        visit_part(&binding, n, part(n), &mut |item| items.push(owned(&item))).unwrap();
    }
    (Stopped { place, root, items, image: image.clone() }, residence, hot)
}

#[test]
fn all_that_was_known_comes_back() {
    run(|world| async move {
        let (stopped, residence, hot) = stopped(&world).await;
        assert!(residence.iter().any(|(_, r)| *r == Residence::Kept) && hot.len() > 100);
        assert_eq!(residence.iter().filter(|(_, r)| *r == Residence::Dirty).map(|(n, _)| n).sum::<u64>(), 9);
        let image = stopped.with(&stopped.root, &stopped.items);
        assert!(image == stopped.image, "encoded again it is what it was");
        let (cache, found) = open(device_of(&image).await, Some(stopped.place), &world).await;
        let disk = cache.disk(DISK);
        assert_eq!((found.evidence, found.dirty_parts), (Evidence::Checkpoint, 9));
        assert_eq!((cache.residence(&disk, 0..1300), cache.hot_blocks(0).await), (residence.clone(), hot));
        assert_eq!(cache.dirty_bytes(&disk), 9 * 4096);
        assert_eq!(cache.members().next().unwrap().entries() as u64, found.entries);
        // By the log the same is there, but for what was asked for.
        let (cache, found) = open(device_of(&image).await, None, &world).await;
        assert_eq!((found.evidence, cache.residence(&cache.disk(DISK), 0..1300)), (Evidence::Log, residence));
    });
}

#[test]
fn what_cannot_be_is_not_believed() {
    run(|world| async move {
        let (stopped, residence, _) = stopped(&world).await;
        let segment = |n: u32, fate| {
            Owned::Plain(Item::Segment(SegmentItem {
                segment: SegmentId(n),
                opening: Opening::new(1, 1),
                fate,
                aged: false,
                last_sequence: 0,
            }))
        };
        let is_segment = |item: &Owned| matches!(item, Owned::Plain(Item::Segment(_)));
        let entry = |disk, block, page, mask| {
            let mask: u16 = mask;
            Owned::Entry(IndexItem::new(disk, block, page, [mask, mask], 0), vec![0; mask.count_ones() as usize])
        };
        let last = SEGMENTS * SEGMENT_PAGES;
        // What is added to all that was said, and whether it is believed then. Grid disk 9 is not known here.
        for (added, believed) in [
            (segment(0, Fate::Free), false),
            (segment(SEGMENTS, Fate::Free), false),
            (entry(0, 5000, last - 4, 0xf), true),
            (entry(0, 5000, last - 3, 0xf), false),
            (entry(0, 5000, last, 0xf), false),
            (entry(0, 5000, SEGMENT_PAGES - 3, 0xf), false),
            (entry(0, 5000, SEGMENT_PAGES - 4, 0x1f), false),
            (entry(0, 5000, 1, 0x10), false),
            (entry(0, BLOCKS_MAX - 1, 1, 0xf), true),
            (entry(0, BLOCKS_MAX, 1, 0xf), false),
            (entry(9, 5000, 1, 0xf), true),
            (Owned::Plain(Item::Disk { number: 9, generation: 1, id: 99 }), true),
            (Owned::Plain(Item::Region { disk: 9, region: 1 }), true),
        ] {
            let mut items = stopped.items.clone();
            let said = format!("{} items", items.len());
            items.push(added);
            let (cache, found) =
                open(device_of(&stopped.with(&stopped.root, &items)).await, Some(stopped.place), &world).await;
            let what = match items.last().unwrap() {
                Owned::Plain(item) => format!("{item:?}"),
                Owned::Entry(item, _) => format!("{item:?}"),
            };
            let known = if believed { Evidence::Checkpoint } else { Evidence::LogForCheckpoint };
            assert_eq!(found.evidence, known, "{said} and {what}");
            assert_eq!(cache.residence(&cache.disk(DISK), 0..1300), residence, "{what}");
            assert!(cache.suspects(&cache.disk(DISK)).is_empty());
        }
        // A segment is missing; one is there twice instead of another.
        let at = stopped.items.iter().position(is_segment).unwrap();
        let mut items = stopped.items.clone();
        let first = items.remove(at);
        let (_, found) = open(device_of(&stopped.with(&stopped.root, &items)).await, Some(stopped.place), &world).await;
        assert_eq!(found.evidence, Evidence::LogForCheckpoint);
        items[at] = first.clone();
        items.insert(at, first);
        let (_, found) = open(device_of(&stopped.with(&stopped.root, &items)).await, Some(stopped.place), &world).await;
        assert_eq!(found.evidence, Evidence::LogForCheckpoint);
        // A region of a grid disk that is here is doubted.
        let mut items = stopped.items.clone();
        items.push(Owned::Plain(Item::Region { disk: 0, region: 1 }));
        let (cache, found) =
            open(device_of(&stopped.with(&stopped.root, &items)).await, Some(stopped.place), &world).await;
        assert_eq!((found.evidence, found.unsettled_regions), (Evidence::Checkpoint, 1));
        let suspects = cache.suspects(&cache.disk(DISK));
        assert_eq!((suspects.len(), suspects[0].1.key.region), (1, 1));
        assert!(
            cache
                .residence(&cache.disk(DISK), 256..512)
                .iter()
                .all(|(_, r)| matches!(r, Residence::Disk | Residence::Dirty))
        );
    });
}

#[test]
fn what_the_policy_asked_to_be_told_is_told_to_it() {
    run(|world| async move {
        let (stopped, ..) = stopped(&world).await;
        let mut items = stopped.items.clone();
        for item in &mut items {
            if let Owned::Plain(Item::PolicyNote(note)) = item {
                assert_eq!(*note, 1, "it began with the first of its strategies");
                *note = 8;
            }
        }
        let device = device_of(&stopped.with(&stopped.root, &items)).await;
        let (cache, _) = open(device.clone(), Some(stopped.place), &world).await;
        cache.stop().await;
        let place = cache.checkpoint().await[0].unwrap();
        let binding = Binding { owner: OWNER, token: place.token };
        let at = u64::from(place.segment) * u64::from(SEGMENT_BYTES) + PART_BYTES as u64;
        let part = device.read(at, Buf::zeroed(PART_BYTES).into()).await.bufs.to_vec(0..PART_BYTES);
        let mut notes = Vec::new();
        let gather = &mut |item: Item<'_>| {
            if let Item::PolicyNote(note) = item {
                notes.push(note);
            }
        };
        assert_eq!((visit_part(&binding, 1, &part, gather), notes), (Ok(()), vec![8]));
    });
}

#[test]
fn a_first_part_of_another_shape_or_place_is_not_believed() {
    run(|world| async move {
        let (stopped, ..) = stopped(&world).await;
        let root = &stopped.root;
        let [segments, pages, parts] = root.shape;
        assert_eq!(root.shape, [SEGMENTS, SEGMENT_PAGES, 4]);
        let other = |shape| Root { shape, ..root.clone() };
        let ids = |ids: &[u32]| Root { segments: ids.iter().map(|id| SegmentId(*id)).collect(), ..root.clone() };
        let own = stopped.place.segment;
        for (root, believed) in [
            (other([segments + 1, pages, parts]), false),
            (other([segments, pages * 2, parts]), false),
            (other([segments, pages, parts * 2]), false),
            (Root { parts: root.parts + 1, ..root.clone() }, false),
            (Root { parts: root.parts - 1, ..root.clone() }, false),
            (ids(&[own, SEGMENTS - 1]), true),
            (ids(&[own, SEGMENTS]), false),
            (ids(&[]), false),
        ] {
            let image = stopped.with(&root, &stopped.items);
            let (_, found) = open(device_of(&image).await, Some(stopped.place), &world).await;
            assert_eq!(found.evidence == Evidence::Checkpoint, believed, "{root:?}");
        }
        for segment in [SEGMENTS, u32::MAX] {
            let place = CheckpointPlace { segment, ..stopped.place };
            let (_, found) = open(device_of(&stopped.image).await, Some(place), &world).await;
            assert_eq!(found.evidence, Evidence::LogForCheckpoint);
        }
    });
}
