//! What a restart after a crash costs, and what an index of that size costs afterwards.
//!
//! `cargo run --release -p cell --example restart_bench [ENTRIES [READS [crash-only]]]`: a flash device as a crash leaves it, with ENTRIES cached
//! blocks of 16 KiB (default 1,000,000); one a chunk was overwritten since, its death recorded. A hundredth of the segments
//! have no footer. Headers, footers and checksums are those of the cache's own encoders; pages of data are zeroes
//! that take no memory. Then the cache is opened over it on one executor thread, and random 4 KiB hits are read. At last, unless
//! told otherwise, it is stopped, leaves its checkpoint, and is opened again by that. Prints one
//! JSON line: nanoseconds and blocks a second of the recovery (CPU and wall), bytes of memory an entry (resident, growth over
//! the open once what was freed is given back; most while it lasted), what giving back took, nanoseconds of CPU per hit through the whole request path and per look-up in the cache alone.

#![expect(clippy::print_stdout, reason = "a program for people")]
#![expect(clippy::unwrap_used, reason = "a program for people")]
#![expect(clippy::disallowed_methods, reason = "it measures real time")]

use cell::{CachingMode, Context, GridDisk, GridDiskParts};
use device::io::{Completed, DeviceExtent, FailKind, Op};
use device::layers::Memory;
use device::sync::{Notify, lock};
use device::{
    Arena, Bufs, Class, Completion, Geometry, Io, Outcome, Prng, Runtime, RuntimeConfig, World, give_back_memory,
};
use flashcache::format::{self, BlockName, ChunkHeader, EntryKind, HeadKind, Owner, Record, SegmentLife};
use flashcache::units::{Opening, Position, SegmentId};
use flashcache::{CacheConfig, CachedDisk, Evidence, FlashCache, MemberDevice};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

const SEGMENT_BYTES: u64 = 2 << 20;
const SEGMENT_PAGES: u32 = (SEGMENT_BYTES / 4096) as u32;
const BLOCK_PARTS: u32 = 4;
/// Data pages of a chunk, as the log fills them.
const CHUNK_DATA_PAGES: u32 = 64;
/// Pages left to the footer of a segment.
const FOOTER_PAGES: u32 = 8;
/// The life in which all segments were opened.
const LIFE: u32 = 3;
/// One segment in so many has no footer.
const UNSEALED_EVERY: u32 = 100;
/// Segments that are free after the crash, beside those for the checkpoint: 36 bytes a block and slack.
const FREE_SEGMENTS: usize = 64;
const CHECKPOINT_BYTES_PER_BLOCK: u64 = 40;
const OWNER: Owner = Owner { cell_id: 1, device_id: 2, era: 1 };
const DISK: CachedDisk = CachedDisk { id: 7, generation: 1, home: 1, is_home_there: true };

/// What the log has written, by its first page: bytes up to the last that is not zero. All else reads as zeroes.
struct LogDevice {
    geometry: Geometry,
    written: Vec<[Box<[u8]>; 2]>,
    chunks: BTreeMap<u64, Box<[u8]>>,
    later: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl LogDevice {
    /// First pages and footers lie at known places; other chunk headers, of segments without a footer, are looked up.
    fn read(&self, offset: u64, bufs: &mut Bufs) {
        let mut at = offset;
        for piece in bufs.pieces_mut() {
            piece.fill(0);
            let segment = &self.written[(at / SEGMENT_BYTES) as usize];
            let within = at % SEGMENT_BYTES;
            if within == 0 {
                let len = segment[0].len().min(piece.len());
                piece[..len].copy_from_slice(&segment[0][..len]);
            } else {
                // A footer ends with its segment.
                let end = within + piece.len() as u64;
                let footer = SEGMENT_BYTES - segment[1].len() as u64;
                if footer < end && footer < SEGMENT_BYTES {
                    let from = footer.max(within);
                    let bytes = &segment[1][(from - footer) as usize..(end - footer) as usize];
                    piece[(from - within) as usize..].copy_from_slice(bytes);
                } else if segment[1].is_empty()
                    && let Some(chunk) = self.chunks.get(&at)
                {
                    let len = chunk.len().min(piece.len());
                    piece[..len].copy_from_slice(&chunk[..len]);
                }
            }
            let later = lock(&self.later);
            if !later.is_empty() {
                for (page, bytes) in piece.chunks_mut(4096).enumerate() {
                    if let Some(written) = later.get(&(at + page as u64 * 4096)) {
                        bytes.copy_from_slice(&written[..bytes.len()]);
                    }
                }
            }
            at += piece.len() as u64;
        }
    }
}

impl Io for LogDevice {
    fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }
    fn submit(&self, op: Op) -> Completion {
        match op {
            Op::Read { offset, mut bufs } => {
                self.read(offset, &mut bufs);
                Completion::ready(Completed { outcome: Outcome::Done, bufs, extents: Vec::new() })
            }
            Op::Write { offset, data, .. } => {
                let bytes: Vec<u8> = data.pieces().iter().flat_map(|piece| piece.to_vec()).collect();
                let mut later = lock(&self.later);
                for (page, bytes) in bytes.chunks(4096).enumerate() {
                    later.insert(offset + page as u64 * 4096, bytes.into());
                }
                Completion::ready(Completed::bare(Outcome::Done))
            }
            Op::Flush => Completion::ready(Completed::bare(Outcome::Done)),
            Op::Status { len, .. } => Completion::ready(Completed {
                outcome: Outcome::Done,
                bufs: Bufs::new(),
                extents: vec![DeviceExtent { len, hole: false }],
            }),
            op => Completion::failed(FailKind::Unsupported, op),
        }
    }
}

/// Numbers below `count`, each once, in no order: an odd multiplier visits each below a power of two once.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    let mask = count.next_power_of_two() - 1;
    (0..=mask).map(move |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask).filter(move |&n| n < count)
}

/// A block as the log names it.
fn entry(block: u64, position: u32) -> Record {
    let crc = |part| format::part_sum(DISK.id, DISK.generation, block * u64::from(BLOCK_PARTS) + part, &[0; 4096]);
    Record::Entry {
        kind: EntryKind::Clean,
        name: BlockName { disk: DISK.id, generation: DISK.generation, block },
        mask: (1 << BLOCK_PARTS) - 1,
        position: Position(position),
        sums: (0..u64::from(BLOCK_PARTS)).map(crc).collect::<SmallVec<[u32; 4]>>(),
    }
}

/// A crashed log of `entries` blocks, the newest version of each alive.
fn crashed(entries: u64) -> LogDevice {
    let (mut written, mut chunks) = (Vec::new(), BTreeMap::new());
    let mut blocks = shuffled(entries).peekable();
    let mut sequence = (1_u64 << 32) + 1;
    let mut link: Option<Record> = None;
    // A block that comes again, and the death of its older version.
    let mut again: Option<(u64, Record)> = None;
    while blocks.peek().is_some() || again.is_some() {
        let segment = SegmentId(written.len() as u32);
        let opening = Opening::new(LIFE, segment.0 + 1);
        let life = SegmentLife { segment, opening, head: HeadKind::Small };
        let sealed = !segment.0.is_multiple_of(UNSEALED_EVERY);
        let mut records: Vec<Record> = Vec::new();
        let mut first: Box<[u8]> = Box::default();
        let mut position = 0;
        while position + 1 + CHUNK_DATA_PAGES + FOOTER_PAGES <= SEGMENT_PAGES
            && (blocks.peek().is_some() || again.is_some())
        {
            let mut own: Vec<Record> = Vec::new();
            let mut at = position + 1;
            if let Some((block, death)) = again.take() {
                own.extend([entry(block, at), death]);
                at += BLOCK_PARTS;
            }
            while at + BLOCK_PARTS <= position + 1 + CHUNK_DATA_PAGES
                && let Some(block) = blocks.next()
            {
                if again.is_none() && blocks.peek().is_some() {
                    let (position, mask) = (Position(at), (1 << BLOCK_PARTS) - 1);
                    again = Some((block, Record::Invalidation { segment, opening, position, mask, cleaned: false }));
                }
                own.push(entry(block, at));
                at += BLOCK_PARTS;
            }
            own.extend(link.replace(Record::Link { segment, opening, sequence, certain: false }));
            let (pages, durable) = (at - position, sequence - 1);
            let header = ChunkHeader { owner: OWNER, life, position: Position(position), pages, sequence, durable };
            let mut page = vec![0; 4096];
            format::encode_chunk(&header, &own, &mut page);
            page.truncate(page.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
            if position == 0 {
                first = page.into();
            } else if !sealed {
                chunks.insert(u64::from(segment.0) * SEGMENT_BYTES + u64::from(position) * 4096, page.into());
            }
            records.push(Record::Chunk { position: Position(position), sequence });
            records.append(&mut own);
            sequence += 1;
            position = at;
        }
        let last = sequence - 1;
        let footer = if sealed { format::encode_footer(OWNER, life, last, last, &records, 4096) } else { Vec::new() };
        written.push([first, footer.into()]);
    }
    let segments = written.len() + FREE_SEGMENTS + (entries * CHECKPOINT_BYTES_PER_BLOCK / SEGMENT_BYTES) as usize;
    written.resize_with(segments, || [Box::default(), Box::default()]);
    let geometry = Geometry {
        size_bytes: segments as u64 * SEGMENT_BYTES,
        logical_bytes: 512,
        page_bytes: 4096,
        rotational: false,
        volatile_cache: false,
        discard_bytes: 0,
        fast_zeroes: true,
        transfer_bytes_max: 4 << 20,
        class: Class::Durable,
    };
    LogDevice { geometry, written, chunks, later: Mutex::default() }
}

/// CPU time of this process in nanoseconds, from the scheduler's accounting.
fn cpu_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |path: std::path::PathBuf| -> u64 {
        std::fs::read_to_string(path.join("schedstat")).unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    tasks.map(|task| of(task.unwrap().path())).sum()
}

/// A line of /proc/self/status in bytes.
fn status_bytes(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn per_s(entries: u64, ns: u64) -> u64 {
    (u128::from(entries) * 1_000_000_000 / u128::from(ns.max(1))) as u64
}

/// Stop clean, and open again by the checkpoint: what is to be told of it.
async fn clean_restart(
    cache: Arc<FlashCache>,
    member: MemberDevice,
    entries: u64,
    world: World,
) -> Vec<(&'static str, u64)> {
    let start = Instant::now();
    cache.stop().await;
    let checkpoint = cache.checkpoint().await[0];
    let stop = start.elapsed().as_nanos() as u64;
    assert!(checkpoint.is_some(), "there is room for the checkpoint");
    drop(cache);
    let (cpu, start) = (cpu_ns(), Instant::now());
    let members = vec![MemberDevice { checkpoint, life: member.life + 1, ..member }];
    let (_cache, found) = FlashCache::open(CacheConfig::default(), members, &[DISK], world).await.unwrap();
    let (cpu, wall) = (cpu_ns() - cpu, start.elapsed().as_nanos() as u64);
    let found = found[0].clone().unwrap();
    assert_eq!((found.entries, found.evidence), (entries, Evidence::Checkpoint), "the checkpoint says the same");
    vec![
        ("stop_wall_ns", stop),
        ("checkpoint_cpu_ns", cpu),
        ("checkpoint_wall_ns", wall),
        ("checkpoint_blocks_per_cpu_s", per_s(entries, cpu)),
    ]
}

fn main() {
    let entries: u64 = std::env::args().nth(1).map_or(1_000_000, |a| a.parse().unwrap());
    let reads: u64 = std::env::args().nth(2).map_or(1_000_000, |a| a.parse().unwrap());
    let crash_only = std::env::args().nth(3).is_some_and(|a| a == "crash-only");
    let flash = Arc::new(crashed(entries));
    let runtime = Runtime::new(RuntimeConfig { threads: 1, ..RuntimeConfig::default() }).unwrap();
    let world = runtime.world(1);
    let line = runtime.block_on(async move {
        let size_bytes = entries * u64::from(BLOCK_PARTS) * 4096;
        // Most while it lasts is told from here on.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = status_bytes("VmRSS");
        let member =
            MemberDevice { device: flash, owner: OWNER, life: u64::from(LIFE) + 1, durable: true, checkpoint: None };
        let members = vec![member.clone()];
        let (cpu, start) = (cpu_ns(), Instant::now());
        let (cache, recovered) =
            FlashCache::open(CacheConfig::default(), members, &[DISK], world.clone()).await.unwrap();
        let (cpu, wall) = (cpu_ns() - cpu, start.elapsed().as_nanos() as u64);
        let found = recovered[0].clone().unwrap();
        let start = Instant::now();
        give_back_memory();
        let give_back = start.elapsed().as_nanos() as u64;
        let resident = status_bytes("VmRSS").saturating_sub(before);
        let most = status_bytes("VmHWM").saturating_sub(before);
        assert_eq!(found.entries, entries, "every block is found again, once");

        let handle = cache.disk(DISK);
        let mut prng = Prng::new(2);
        let looked = cpu_ns();
        let mut found_parts = 0;
        for _ in 0..reads {
            let part = prng.below(entries * u64::from(BLOCK_PARTS));
            found_parts += u64::from(!cache.lookup(&handle, part..part + 1).is_empty());
        }
        let looked = cpu_ns() - looked;
        assert_eq!(found_parts, reads, "a look-up has an answer");

        let grid_disk = GridDisk::new(GridDiskParts {
            id: DISK.id,
            name: "BENCH".to_owned(),
            disk: Memory::new(size_bytes),
            size_bytes,
            arena: Arena::new(16 << 20),
            block_bytes: u64::from(BLOCK_PARTS) * 4096,
            alarm: Arc::new(Notify::new()),
            sequential_cutoff_bytes: 0,
            sabotage: None,
        });
        grid_disk.set_cache(Some((cache.clone(), handle)), CachingMode::WriteThrough);
        let session = grid_disk.open_session(Context::default());
        let mut bufs = Arena::new(1 << 20).alloc(4096).await;
        let hit = cpu_ns();
        for _ in 0..reads {
            let offset = prng.below(entries * u64::from(BLOCK_PARTS)) * 4096;
            let (result, back) = session.read(offset, bufs).await;
            result.unwrap();
            bufs = back;
        }
        let hit = cpu_ns() - hit;
        let hits = grid_disk.counters.cache_hits.requests.get();
        let index: u64 = cache.members().map(|m| m.index_bytes()).sum();

        drop((session, grid_disk));
        let again = if crash_only { Vec::new() } else { clean_restart(cache, member, entries, world).await };
        let by_checkpoint: String = again.iter().map(|(key, value)| format!(",\"{key}\":{value}")).collect();
        format!(
            "{{\"entries\":{entries},\"reads\":{reads},\"hits\":{hits},\"segments\":{},\"walked\":{},\
             \"recovery_cpu_ns\":{cpu},\"recovery_wall_ns\":{wall},\"blocks_per_s\":{},\"blocks_per_cpu_s\":{},\
             \"index_bytes_per_entry\":{:.2},\"resident_bytes_per_entry\":{:.1},\"most_bytes_per_entry\":{:.1},\
             \"give_back_wall_ns\":{give_back},\"lookup_cpu_ns\":{},\"hit_cpu_ns\":{}{by_checkpoint}}}",
            found.segments,
            found.walked,
            per_s(entries, wall),
            per_s(entries, cpu),
            index as f64 / entries as f64,
            resident as f64 / entries as f64,
            most as f64 / entries as f64,
            looked / reads,
            hit / reads,
        )
    });
    println!("{line}");
}
