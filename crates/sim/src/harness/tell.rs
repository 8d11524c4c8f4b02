//! Plans in words, for people who read a failure: a line for each step and each part of the machine.

use super::plan::{Admin, Between, Caching, Crash, End, InFlush, Io, Mishap, Pass, Setup, Step, Verb};
use device::sync::lock;
use std::fmt::{Display, Formatter, Result, Write};
use std::time::Duration;

/// The machine and the cell, a line for each thing.
pub(super) fn setup_lines(setup: &Setup) -> Vec<String> {
    let mut lines = Vec::new();
    let mut device = |what: &str, config: &crate::disk::DiskConfig| {
        let (geometry, mut line) = (&config.geometry, String::new());
        let cache = if geometry.volatile_cache { "volatile cache" } else { "no volatile cache" };
        let _ = write!(
            line,
            "{what} \"{}\": {} bytes, blocks of {}, pages of {}, {cache}, {:?}",
            config.name, geometry.size_bytes, geometry.logical_bytes, geometry.page_bytes, geometry.class
        );
        lines.push(line);
    };
    setup.disks.iter().for_each(|d| device("disk", d));
    setup.flashes.iter().for_each(|f| device("flash", f));
    for (n, g) in setup.grid_disks.iter().enumerate() {
        let redo = g.redo.map_or_else(String::new, |mode| format!(", redo: {mode:?}"));
        lines.push(format!("grid disk {n}: {} bytes on disk {}, {}{redo}", g.size_bytes, g.home, g.caching));
    }
    lines.push(format!(
        "flash cache: {} bytes, blocks of {}, segments of {}, staging {}, limits {:?} and {:?}, chunks wait {:?}",
        setup.flash_cache_bytes,
        setup.block_bytes,
        setup.segment_bytes,
        setup.staging_bytes,
        setup.soft_limit,
        setup.hard_limit,
        setup.chunk_age
    ));
    if let Some(redo) = &setup.redo {
        let (ring, held) = (redo.ring_bytes, redo.unflushed_bytes);
        lines.push(format!("flash log: {ring} bytes on each durable flash, {held} bytes of memory"));
    }
    lines.push(format!("KEEP data ages after {:?}", setup.keep_unused));
    if let Some(endurance) = &setup.endurance {
        lines.push(format!("endurance budget: {} bytes a day for each flash device", endurance.bytes_per_day()));
    }
    if let Some(every) = setup.stamps_every {
        lines.push(format!("new open stamps every {every:?}"));
    }
    lines.push(format!(
        "cell: settles every {:?}; {} clients with {} requests each; {} threads; {}",
        setup.settle_every,
        setup.clients,
        setup.depth,
        setup.threads,
        match (setup.write_back, setup.mirrored) {
            (true, true) if setup.ordered => "write-back in flush order over two flash devices",
            (true, false) if setup.ordered => "write-back in flush order",
            (true, true) => "write-back over two flash devices",
            (true, false) => "write-back",
            _ => "no write-back",
        }
    ));
    lines
}

impl Display for Caching {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "mode {:?}, policy {:?}", self.mode, self.policy)
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Step::Io(io) => io.fmt(f),
            Step::Admin(admin) => admin.fmt(f),
            Step::Mishap(mishap) => mishap.fmt(f),
            Step::Crash(crash) => crash.fmt(f),
            Step::Rest(time) if time.is_zero() => f.write_str("wait until all of this is done"),
            Step::Rest(time) => write!(f, "wait until all of this is done, and {time:?} more"),
        }
    }
}

impl Display for Io {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Io { disk, verb, offset, len, odd_memory, think_ns } = *self;
        let fua = |fua: bool| if fua { " FUA" } else { "" };
        match verb {
            Verb::Flush => write!(f, "flush grid disk {disk}")?,
            Verb::Read => write!(f, "read grid disk {disk}: {offset} +{len}")?,
            Verb::Write { fua: with } => write!(f, "write{} grid disk {disk}: {offset} +{len}", fua(with))?,
            Verb::Zeroes { fua: with, no_hole, fast } => {
                let (hole, fast) = (if no_hole { " no hole" } else { "" }, if fast { " fast" } else { "" });
                write!(f, "zeroes{}{hole}{fast} grid disk {disk}: {offset} +{len}", fua(with))?;
            }
            Verb::Trim { fua: with } => write!(f, "trim{} grid disk {disk}: {offset} +{len}", fua(with))?,
            Verb::Prefetch => write!(f, "prefetch grid disk {disk}: {offset} +{len}")?,
            Verb::Offer => write!(f, "a buffer cache offers a block of grid disk {disk}")?,
            Verb::Status => write!(f, "block status of grid disk {disk}: {offset} +{len}")?,
            Verb::BeyondEnd { write } => {
                write!(f, "{} beyond the end of grid disk {disk}: {len} bytes", if write { "write" } else { "read" })?;
            }
        }
        if odd_memory {
            f.write_str(", unaligned memory")?;
        }
        if think_ns > 0 {
            write!(f, ", after {:?}", Duration::from_nanos(think_ns))?;
        }
        Ok(())
    }
}

impl Display for Admin {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Admin::Create { home, size_bytes, caching, redo } => {
                write!(f, "create a grid disk of {size_bytes} bytes on disk {home}, {caching}")?;
                redo.map_or(Ok(()), |mode| write!(f, ", redo: {mode:?}"))
            }
            Admin::Iorm { pick } => write!(f, "state the I/O resource plan {pick:#x}"),
            Admin::CreateFlashLog => f.write_str("create the flash log"),
            Admin::DropFlashLog { force } => {
                write!(f, "drop the flash log{}", if *force { " by force" } else { "" })
            }
            Admin::SetRedo { disk, redo: Some(mode) } => write!(f, "grid disk {disk} carries redo: {mode:?}"),
            Admin::SetRedo { disk, redo: None } => write!(f, "grid disk {disk} carries data"),
            Admin::Drop { disk } => write!(f, "drop grid disk {disk}"),
            Admin::Resize { disk, size_bytes } => write!(f, "resize grid disk {disk} to {size_bytes} bytes"),
            Admin::Rename { disk } => write!(f, "rename grid disk {disk}"),
            Admin::SetCaching { disk, caching } => write!(f, "set caching of grid disk {disk}: {caching}"),
            Admin::SetFill { disk, fill } => write!(f, "fill grid disk {disk} by {fill:?}"),
            Admin::Evict { disk } => write!(f, "drop what is cached of grid disk {disk}: policy None and back"),
            Admin::Pin { disk, offset, len, policy } => {
                let policy = policy.map_or_else(|| "as the grid disk".to_owned(), |policy| format!("{policy:?}"));
                write!(f, "pin {len} bytes of grid disk {disk} from {offset} on: {policy}")
            }
            Admin::Flush { disk, cancel } => {
                write!(f, "FLUSH of grid disk {disk}{}", if *cancel { ", then CANCEL FLUSH" } else { "" })
            }
            Admin::Grow { device, by_bytes } => {
                write!(f, "device {device} grows by {by_bytes} bytes, and the cell looks")
            }
            Admin::AcceptStale { disk } => {
                write!(f, "go on with grid disk {disk} from its disk alone, if it is offline")
            }
            Admin::ChangeFlash { pick, cancel } => {
                let cancelled = if *cancel { ", then CANCEL FLUSH" } else { "" };
                write!(f, "change the members of the flash cache (pick {pick}){cancelled}")
            }
            Admin::ReplaceFlash { pick } => {
                write!(f, "a blank flash device takes the place of those that are gone (pick {pick})")
            }
            Admin::DropFlashCache => f.write_str("drop the flash cache"),
            Admin::CreateFlashCache { all, size_bytes } => {
                write!(
                    f,
                    "create a flash cache of {size_bytes} bytes on {}",
                    if *all { "all flash" } else { "one flash" }
                )
            }
        }
    }
}

impl Display for Mishap {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Mishap::FlashFault { flash, kind, times, fail } => {
                write!(f, "flash {flash}: {kind:?} ({fail:?}) for the next {times} requests")
            }
            Mishap::FlashRot { flash, pick } => write!(f, "flash {flash}: a sector of cached data rots (pick {pick})"),
            Mishap::FlashStall { flash, time } => write!(f, "flash {flash} stalls for {time:?}"),
            Mishap::FlashVanishes { flash } => write!(f, "flash {flash} vanishes"),
            Mishap::FlashSnapshot { flash } => write!(f, "take a snapshot of flash {flash}"),
            Mishap::DiskFault { disk, kind, times } => write!(f, "disk {disk}: {kind:?} for the next {times} requests"),
            Mishap::DiskHealed { disk } => write!(f, "disk {disk} is healed"),
            Mishap::DiskStall { disk, time } => write!(f, "disk {disk} stalls for {time:?}"),
            Mishap::DiskVanishes { disk } => write!(f, "disk {disk} vanishes"),
            Mishap::DiskSnapshot { disk } => write!(f, "take a snapshot of disk {disk}"),
            Mishap::FlashFull { flash, time } => write!(f, "flash {flash} has no room for {time:?}"),
            Mishap::DiskFull { disk, time } => write!(f, "disk {disk} has no room for {time:?}"),
            Mishap::ClockStep { by, forward: true } => write!(f, "the wall clock is set forward by {by:?}"),
            Mishap::ClockStep { by, forward: false } => write!(f, "the wall clock is set back by {by:?}"),
            Mishap::Pause { time, host: false } => write!(f, "the process is paused for {time:?}"),
            Mishap::Pause { time, host: true } => write!(f, "the host is paused for {time:?}"),
            Mishap::HostDies { host } => write!(f, "host {host} dies"),
            Mishap::Partition { host, time, breaks: false } => {
                write!(f, "nothing passes between the cell and host {host} for {time:?}")
            }
            Mishap::Partition { host, time, breaks: true } => {
                write!(f, "nothing passes between the cell and host {host} for {time:?}, and their connections break")
            }
        }
    }
}

fn end_name(end: End) -> &'static str {
    match end {
        End::PowerCut => "power cut",
        End::PowerCutOf(_) => "power cut of one device, the process is killed",
        End::Kill => "the process is killed",
        End::CleanStop => "clean stop",
    }
}

impl Display for Crash {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(end_name(self.end))?;
        if self.delay_ns > 0 {
            write!(f, " after {:?}", Duration::from_nanos(self.delay_ns))?;
        }
        if let Some(InFlush { flash, earlier, after_ns }) = self.in_flush {
            let device = if flash { "a flash device" } else { "a disk" };
            let after = Duration::from_nanos(after_ns);
            write!(f, ", {after:?} into a flush of {device} after {earlier} others")?;
        }
        for between in &self.between {
            write!(f, "; then {between}")?;
        }
        for &(end, after_ns) in &self.broken_opens {
            write!(f, "; open, {} after {:?}", end_name(end), Duration::from_nanos(after_ns))?;
        }
        f.write_str("; open")?;
        match self.pass {
            Pass::Nothing => {}
            Pass::Some { ranges } => write!(f, "; read {ranges} ranges")?,
            Pass::Everything { step_bytes } => write!(f, "; read everything by {step_bytes} bytes")?,
        }
        if self.evict {
            f.write_str("; drop what is cached, read again")?;
        }
        Ok(())
    }
}

impl Display for Between {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Between::FlashAbsent { flash } => write!(f, "flash {flash} is absent"),
            Between::AllFlashAbsent => f.write_str("all flash is absent"),
            Between::FlashBack { .. } => f.write_str("all flash is back"),
            Between::FlashBlank { flash } => write!(f, "flash {flash} is blank"),
            Between::FlashStale { flash } => write!(f, "flash {flash} is back at its snapshot"),
            Between::FlashSwap { flash } => write!(f, "flash {flash} and the next change places"),
            Between::DiskAbsent => f.write_str("the last disk is absent"),
            Between::FlashStaysBad => f.write_str("bad sectors of flash stay bad"),
            Between::DiskBack => f.write_str("all disks are back"),
            Between::DiskStale { disk } => write!(f, "disk {disk} is back at its snapshot"),
            Between::FlashFault { flash, kind, ppm } => {
                write!(f, "flash {flash}: {kind:?} at {ppm} of a million requests")
            }
            Between::DeviceGrows { device, by_bytes } => write!(f, "device {device} grows by {by_bytes} bytes"),
            Between::LabelRot { slot } => {
                write!(f, "both copies of the newest label rot on every device (slot {slot})")
            }
            Between::CheckpointRot { flash, .. } => write!(f, "an index checkpoint on flash {flash} rots"),
        }
    }
}

impl super::stage::Run {
    /// What is under way in a run that got stuck: the oldest requests, and redo grid disks with what they wait for.
    pub(super) fn waiting(&self) -> String {
        let book = lock(&self.book);
        let mut lines: Vec<String> = book.oldest_requests(8);
        drop(book);
        for disk in self.life().iter().flat_map(|life| life.cell.grid_disks()) {
            lines.extend(disk.redo().filter(|redo| !redo.is_settled()).map(|redo| format!("{redo:?}")));
        }
        lines.join("\n")
    }
}
