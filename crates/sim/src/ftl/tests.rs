//! Goal: the translation layer never loses or doubles a page, keeps its books, and does the same every time. Method: random requests beside a
//! naive list of what is mapped; figures that can be reckoned by hand.
use super::*;
use device::Prng;

const CONFIG: FtlConfig = FtlConfig {
    channels: 3,
    page_bytes: 4096,
    pages_per_block: 8,
    blocks_per_channel: 20,
    logical_pages: 300,
    read_ns: 25_000,
    program_ns: 250_000,
    erase_ns: 1_500_000,
    transfer_ns: 0,
    link_ns: 0,
    collect: Collect::Greedy,
    wear_gap: 8,
    idle_free_blocks: 0,
};

impl Ftl {
    /// Map and flash say the same, and blocks know what is valid in them.
    fn check(&self) {
        for channel in &self.channels {
            for (page, at) in channel.map.iter().enumerate().filter(|(_, at)| **at != NONE) {
                assert_eq!(channel.back[*at as usize] as usize, page);
            }
            let mapped = channel.map.iter().filter(|at| **at != NONE).count();
            assert_eq!(channel.back.iter().filter(|page| **page != NONE).count(), mapped);
            for (n, block) in channel.blocks.iter().enumerate() {
                let pages = &channel.back[n * self.config.pages_per_block..][..self.config.pages_per_block];
                assert_eq!(pages.iter().filter(|page| **page != NONE).count(), block.valid as usize, "block {n}");
                assert!(!channel.free.contains(&(block.erases, n)) || (block.valid == 0 && !block.is_full));
            }
        }
    }

    fn is_mapped(&self, page: usize) -> bool {
        self.channels[page % self.channels.len()].map[page / self.channels.len()] != NONE
    }
}

fn churn(config: FtlConfig, seed: u64) -> (FtlFigures, u64) {
    let (mut ftl, mut mapped, mut prng, mut now) = (Ftl::new(config), vec![false; 300], Prng::new(seed), 0);
    for step in 0..20_000 {
        let (page, pages) = (prng.below(300), prng.below(4) + 1);
        let pages = pages.min(300 - page);
        let range = page as usize..(page + pages) as usize;
        match prng.below(8) {
            0 => {
                ftl.trim(page * 4096, pages * 4096);
                mapped[range].fill(false);
            }
            1 | 2 => now = ftl.read(now, page * 4096, pages * 4096),
            _ => {
                now = ftl.write(now, page * 4096, pages * 4096);
                mapped[range].fill(true);
            }
        }
        now += prng.below(500_000);
        if step % 100 == 0 {
            ftl.check();
            assert!((0..300).all(|page| ftl.is_mapped(page) == mapped[page]), "step {step}");
        }
    }
    (ftl.figures(), now)
}

#[test]
fn nothing_is_lost_and_seeds_decide() {
    for collect in [Collect::Greedy, Collect::CostBenefit] {
        for idle_free_blocks in [0, 5] {
            let config = FtlConfig { collect, idle_free_blocks, ..CONFIG };
            let first = churn(config, 1);
            assert_eq!(first, churn(config, 1));
            assert_ne!(first, churn(config, 2));
            assert!(first.0.programmed >= first.0.written && first.0.erased > 500, "{first:?}");
        }
    }
}

#[test]
fn times_are_those_of_pages() {
    let mut ftl = Ftl::new(CONFIG);
    assert_eq!(ftl.read(7, 0, 4096), 7, "never written");
    assert_eq!(ftl.write(1_000, 0, 4096), 251_000);
    // The same channel is busy, another is not.
    assert_eq!(ftl.write(1_000, 3 * 4096, 4096), 501_000);
    assert_eq!(ftl.write(1_000, 4096, 4096), 251_000);
    assert_eq!(ftl.read(1_000_000, 0, 3 * 4096), 1_025_000, "two of three channels at once");
    // Part of a page is read first.
    assert_eq!(ftl.write(2_000_000, 512, 512), 2_275_000);
}

/// The way to the host is shared, whatever the channels do at once.
#[test]
fn the_link_bounds_the_rate() {
    let mut ftl = Ftl::new(FtlConfig { link_ns: 200_000, ..CONFIG });
    ftl.write(0, 0, 300 * 4096);
    let begun = 1_000_000_000;
    let done = ftl.read(begun, 0, 300 * 4096);
    assert_eq!(done - begun, 300 * 200_000);
    assert_eq!(ftl.read(2 * begun, 0, 4096) - 2 * begun, 25_000 + 200_000);
}

/// Written in order and whole, a drive has nothing to copy.
#[test]
fn what_is_written_in_order_is_never_copied() {
    let mut ftl = Ftl::new(FtlConfig { wear_gap: u64::MAX, ..CONFIG });
    for _ in 0..50 {
        ftl.write(0, 0, 300 * 4096);
    }
    let figures = ftl.figures();
    assert_eq!(figures.programmed, figures.written);
}

/// Goal: blocks with data that never changes wear as well. Method: most of a drive written once, the rest over and over.
#[test]
fn wear_is_levelled() {
    let run = |wear_gap| {
        let mut ftl = Ftl::new(FtlConfig { wear_gap, ..CONFIG });
        ftl.write(0, 0, 300 * 4096);
        let mut prng = Prng::new(1);
        for _ in 0..60_000 {
            ftl.write(0, prng.below(30) * 4096, 4096);
        }
        ftl.check();
        let (least, most) = ftl.figures().erases;
        most - least
    };
    let (without, with) = (run(u64::MAX), run(8));
    // A block may get some erases further while the least worn ones are moved, one for each block that fills.
    assert!(with <= 3 * 8 && without > 10 * with, "{with} with, {without} without");
}

/// TRIM tells what is dead before it is overwritten.
#[test]
fn trim_saves_copies() {
    let run = |trims: bool| {
        let mut ftl = Ftl::new(CONFIG);
        ftl.write(0, 0, 300 * 4096);
        if trims {
            ftl.trim(150 * 4096, 150 * 4096);
        }
        let mut prng = Prng::new(1);
        for _ in 0..20_000 {
            ftl.write(0, prng.below(150) * 4096, 4096);
        }
        ftl.figures().programmed
    };
    assert!(run(true) * 10 < run(false) * 9, "{} and {}", run(true), run(false));
}

/// Goal: what a log of segments costs inside the drive. Method: segments of many blocks, one at a time or three in turns, used again in the
/// order they were written or in any.
#[test]
fn segments_cost_nothing_one_at_a_time() {
    const SEGMENT: u64 = 32 * 4096;
    let run = |heads: u64, in_order: bool| {
        let mut ftl =
            Ftl::new(FtlConfig { blocks_per_channel: 170, logical_pages: 3_200, wear_gap: u64::MAX, ..CONFIG });
        let mut prng = Prng::new(1);
        let (mut free, mut full): (Vec<u64>, Vec<u64>) = ((0..100).rev().collect(), Vec::new());
        let mut open: Vec<(u64, u64)> = (0..heads).filter_map(|_| Some((free.pop()?, 0))).collect();
        for _ in 0..20_000 {
            let (segment, at) = &mut open[prng.below(heads) as usize];
            ftl.write(0, *segment * SEGMENT + *at, 4 * 4096);
            *at += 4 * 4096;
            if *at == SEGMENT {
                full.push(*segment);
                let next = free.pop().unwrap_or_else(|| {
                    let which = if in_order { 0 } else { prng.below(full.len() as u64) as usize };
                    let reused = full.remove(which);
                    ftl.trim(reused * SEGMENT, SEGMENT);
                    reused
                });
                (*segment, *at) = (next, 0);
            }
        }
        let FtlFigures { programmed, written, .. } = ftl.figures();
        programmed * 1_000 / written
    };
    let (in_order, any, three_in_order, three_any) = (run(1, true), run(1, false), run(3, true), run(3, false));
    assert_eq!((in_order, three_in_order), (1_000, 1_000));
    assert!(three_any > any && three_any > 1_050, "{any}, {three_any}");
}
