//! A flash drive as its controller runs it: channels, pages that are programmed once, blocks that are erased whole, and a translation layer
//! that writes elsewhere, collects the garbage that this makes, levels wear, and is told by TRIM what is dead.
//!
//! It holds no data: what is on the medium is kept by whoever uses it ([`crate::disk`], the lab's models). It is a function of the requests and
//! the times they come at; integers only. Each channel is a drive of its own for every so manyth page: requests of several pages go to
//! several channels at once, and a channel that collects garbage keeps its own requests waiting.

use std::collections::BTreeSet;

/// Which block garbage is collected from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// The one with the least that is valid.
    Greedy,
    /// The one where most is gained for what it costs to copy, the longer it was left alone the better: (1 - u) x age / 2u.
    CostBenefit,
}

/// A drive.
#[derive(Clone, Copy, Debug)]
pub struct FtlConfig {
    /// Work at the same time.
    pub channels: usize,
    /// Of a page.
    pub page_bytes: u64,
    /// Pages of an erase block.
    pub pages_per_block: usize,
    /// Erase blocks of a channel, of which some are spare.
    pub blocks_per_channel: usize,
    /// Pages that its user sees.
    pub logical_pages: usize,
    /// Read a page.
    pub read_ns: u64,
    /// Program a page.
    pub program_ns: u64,
    /// Erase a block.
    pub erase_ns: u64,
    /// A page over the channel, between controller and flash.
    pub transfer_ns: u64,
    /// A page between host and controller; all channels share that way.
    pub link_ns: u64,
    /// Which block is collected.
    pub collect: Collect,
    /// A block with so many erases less than the most worn one is moved, so that it wears too.
    pub wear_gap: u64,
    /// A channel that has nothing to do collects until it has so many free blocks.
    pub idle_free_blocks: usize,
}

/// What a drive has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlFigures {
    /// Pages written by its user.
    pub written: u64,
    /// Pages programmed, those of the user and copies.
    pub programmed: u64,
    /// Blocks erased.
    pub erased: u64,
    /// Erases of the block with the fewest and with the most.
    pub erases: (u64, u64),
    /// Pages that hold something for its user, or for all that the drive knows.
    pub mapped: u64,
}

/// Nothing there.
const NONE: u32 = u32::MAX;
/// A channel always keeps so many blocks free: one to write, one to copy to.
const FREE_MIN: usize = 2;
/// Blocks of a channel that hold nothing of its user's: free ones, and those being written.
const SPARE_MIN: usize = FREE_MIN + 3;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    valid: u32,
    erases: u64,
    /// When something was last written to it, in writes of the channel.
    written_at: u64,
    is_full: bool,
}

/// A block being written.
#[derive(Clone, Copy, Debug)]
struct Open {
    block: usize,
    next: usize,
}

#[derive(Debug)]
struct Channel {
    /// Where each page of the user is.
    map: Vec<u32>,
    /// What each page of the flash holds.
    back: Vec<u32>,
    blocks: Vec<Block>,
    /// By wear: the least worn one is taken first.
    free: BTreeSet<(u64, usize)>,
    /// For the user's pages, and for copies.
    host: Open,
    copies: Open,
    writes: u64,
    busy_until: u64,
    most_erases: u64,
    programmed: u64,
    erased: u64,
    /// A block was moved for wear since the last page of the user.
    has_levelled: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Ftl {
    config: FtlConfig,
    channels: Vec<Channel>,
    link_until: u64,
    written: u64,
}

impl Channel {
    fn new(config: &FtlConfig, pages: usize) -> Channel {
        let blocks = config.blocks_per_channel;
        let open = |block| Open { block, next: 0 };
        Channel {
            map: vec![NONE; pages],
            back: vec![NONE; blocks * config.pages_per_block],
            blocks: vec![Block::default(); blocks],
            free: (2..blocks).map(|block| (0, block)).collect(),
            host: open(0),
            copies: open(1),
            writes: 0,
            busy_until: 0,
            most_erases: 0,
            programmed: 0,
            erased: 0,
            has_levelled: false,
        }
    }

    fn invalidate(&mut self, config: &FtlConfig, page: usize) {
        let at = std::mem::replace(&mut self.map[page], NONE);
        if at != NONE {
            self.back[at as usize] = NONE;
            self.blocks[at as usize / config.pages_per_block].valid -= 1;
        }
    }

    /// Put a page into an open block that has room.
    fn program(&mut self, config: &FtlConfig, open: Open, page: usize) -> Open {
        self.invalidate(config, page);
        let at = open.block * config.pages_per_block + open.next;
        self.map[page] = at as u32;
        self.back[at] = page as u32;
        let block = &mut self.blocks[open.block];
        block.valid += 1;
        block.written_at = self.writes;
        self.programmed += 1;
        Open { next: open.next + 1, ..open }
    }

    /// The same, or an empty block when it is full.
    fn with_room(&mut self, config: &FtlConfig, open: Open) -> Open {
        if open.next < config.pages_per_block {
            return open;
        }
        self.blocks[open.block].is_full = true;
        let Some((_, block)) = self.free.pop_first() else { unreachable!("blocks are kept free") };
        Open { block, next: 0 }
    }

    fn write(&mut self, config: &FtlConfig, page: usize) {
        self.writes += 1;
        self.has_levelled = false;
        if self.host.next == config.pages_per_block {
            while self.free.len() <= FREE_MIN {
                let Some(victim) = self.victim(config) else { unreachable!("some page is dead: there are spare ones") };
                self.busy_until += self.collect(config, victim);
            }
        }
        self.host = self.with_room(config, self.host);
        self.host = self.program(config, self.host, page);
    }

    /// Which block is collected next, and whether for wear; none where nothing is gained.
    fn victim(&mut self, config: &FtlConfig) -> Option<(usize, bool)> {
        let full = || self.blocks.iter().enumerate().filter(|(_, block)| block.is_full);
        if !self.has_levelled
            && let Some((least, block)) = full().min_by_key(|(at, block)| (block.erases, *at))
            && self.most_erases - block.erases > config.wear_gap
        {
            self.has_levelled = true;
            return Some((least, true));
        }
        let all = config.pages_per_block as u32;
        let gains = full().filter(|(_, block)| block.valid < all);
        let found = match config.collect {
            Collect::Greedy => gains.min_by_key(|(at, block)| (block.valid, *at)).map(|(at, _)| at),
            Collect::CostBenefit => {
                let worth = |block: &Block| {
                    let age = u128::from(self.writes - block.written_at) + 1;
                    // By 2u, where nothing valid must not be a division by zero.
                    (u128::from(all - block.valid) * age, u128::from(2 * block.valid).max(1))
                };
                let better = |a: &(usize, &Block), b: &(usize, &Block)| {
                    let ((a_gain, a_cost), (b_gain, b_cost)) = (worth(a.1), worth(b.1));
                    (a_gain * b_cost).cmp(&(b_gain * a_cost)).then(b.0.cmp(&a.0))
                };
                gains.max_by(better).map(|(at, _)| at)
            }
        };
        found.map(|victim| (victim, false))
    }

    fn cost_ns(&self, config: &FtlConfig, victim: usize) -> u64 {
        u64::from(self.blocks[victim].valid) * (config.read_ns + config.program_ns) + config.erase_ns
    }

    /// Copy what is valid within the channel, and erase: how long that takes.
    fn collect(&mut self, config: &FtlConfig, (victim, for_wear): (usize, bool)) -> u64 {
        let ns = self.cost_ns(config, victim);
        // What nobody changes goes where most was erased, and stays by itself.
        let worn = if for_wear { self.free.pop_last() } else { None };
        let mut open = worn.map_or(self.copies, |(_, block)| Open { block, next: 0 });
        let first = victim * config.pages_per_block;
        for at in first..first + config.pages_per_block {
            let page = self.back[at];
            if page != NONE {
                open = self.with_room(config, open);
                open = self.program(config, open, page as usize);
            }
        }
        match worn {
            Some((_, block)) => self.blocks[block].is_full = true,
            None => self.copies = open,
        }
        let block = &mut self.blocks[victim];
        assert!(block.valid == 0, "everything valid was copied");
        *block = Block { erases: block.erases + 1, ..Block::default() };
        self.free.insert((block.erases, victim));
        self.most_erases = self.most_erases.max(block.erases);
        self.erased += 1;
        ns
    }

    /// What it collects until now when it has nothing else to do.
    fn idle(&mut self, config: &FtlConfig, now: u64) {
        while self.busy_until < now && self.free.len() < config.idle_free_blocks {
            let Some(victim) = self.victim(config) else { break };
            let end = self.busy_until + self.cost_ns(config, victim.0);
            if end > now {
                break;
            }
            self.busy_until = end;
            self.collect(config, victim);
        }
        self.busy_until = self.busy_until.max(now);
    }
}

impl Ftl {
    /// A drive on which nothing was ever written.
    ///
    /// # Panics
    /// It has too few spare blocks.
    #[must_use]
    pub fn new(config: FtlConfig) -> Ftl {
        let pages = config.logical_pages.div_ceil(config.channels);
        let room = config.blocks_per_channel.saturating_sub(SPARE_MIN) * config.pages_per_block;
        assert!(pages <= room, "a channel with {pages} pages for its user has room for {room}");
        assert!(config.blocks_per_channel * config.pages_per_block < NONE as usize, "pages have numbers of 32 bits");
        let channels = (0..config.channels).map(|_| Channel::new(&config, pages)).collect();
        Ftl { config, channels, link_until: 0, written: 0 }
    }

    fn pages(&self, offset: u64, len: u64) -> std::ops::Range<usize> {
        let page = self.config.page_bytes;
        let range = (offset / page) as usize..(offset + len).div_ceil(page) as usize;
        assert!(range.end <= self.config.logical_pages, "beyond the end of the drive");
        range
    }

    /// A read that comes at `now`: when it is done.
    ///
    /// # Panics
    /// It is beyond the end of the drive.
    pub fn read(&mut self, now: u64, offset: u64, len: u64) -> u64 {
        let (pages, config, count) = (self.pages(offset, len), self.config, self.channels.len());
        let mut done = now;
        for page in pages {
            let channel = &mut self.channels[page % count];
            // What was never written is not read from the flash.
            if channel.map[page / count] != NONE {
                channel.idle(&config, now);
                channel.busy_until += config.read_ns + config.transfer_ns;
                done = done.max(channel.busy_until + config.link_ns);
                // Whatever is read first may go first.
                self.link_until = self.link_until.max(now) + config.link_ns;
                done = done.max(self.link_until);
            }
        }
        done
    }

    /// A write that comes at `now`: when it is done. Of a page that it covers in part the rest is read first.
    ///
    /// # Panics
    /// It is beyond the end of the drive.
    pub fn write(&mut self, now: u64, offset: u64, len: u64) -> u64 {
        let (pages, config, count) = (self.pages(offset, len), self.config, self.channels.len());
        let mut done = now;
        for page in pages {
            let begin = page as u64 * config.page_bytes;
            let is_whole = begin >= offset && begin + config.page_bytes <= offset + len;
            self.link_until = self.link_until.max(now) + config.link_ns;
            let channel = &mut self.channels[page % count];
            channel.idle(&config, self.link_until);
            if !is_whole && channel.map[page / count] != NONE {
                channel.busy_until += config.read_ns;
            }
            channel.write(&config, page / count);
            channel.busy_until += config.transfer_ns + config.program_ns;
            done = done.max(channel.busy_until);
            self.written += 1;
        }
        done
    }

    /// The user needs these no more; takes no time. Pages in part within it stay.
    ///
    /// # Panics
    /// It is beyond the end of the drive.
    pub fn trim(&mut self, offset: u64, len: u64) {
        let page_bytes = self.config.page_bytes;
        let (pages, config, count) = (self.pages(offset, len), self.config, self.channels.len());
        for page in pages {
            let begin = page as u64 * page_bytes;
            if begin >= offset && begin + page_bytes <= offset + len {
                self.channels[page % count].invalidate(&config, page / count);
            }
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn figures(&self) -> FtlFigures {
        let sum = |of: fn(&Channel) -> u64| self.channels.iter().map(of).sum();
        let erases = || self.channels.iter().flat_map(|channel| &channel.blocks).map(|block| block.erases);
        FtlFigures {
            written: self.written,
            programmed: sum(|channel| channel.programmed),
            erased: sum(|channel| channel.erased),
            erases: (erases().min().unwrap_or(0), erases().max().unwrap_or(0)),
            mapped: sum(|channel| channel.blocks.iter().map(|block| u64::from(block.valid)).sum()),
        }
    }
}

#[cfg(test)]
mod tests;
