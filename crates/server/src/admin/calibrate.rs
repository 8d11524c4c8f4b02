//! CALIBRATE: what each device of the cell reads in a second, at random and in a row.
//!
//! Reads only, below the cell, and beside whatever else goes on: so it refuses while clients are connected, unless told to. Never
//! longer than a few seconds a device; one that does not answer is named and left.

use super::Context;
use super::change::{Done, Refusal, Step};
use crate::devices::OpenDevice;
use cellcli::ErrorCode;
use celldisk::Role;
use device::{Buf, Bufs, Device, Instant};
use futures_util::future::{Either, join_all, select};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a device is read in each of the two ways.
const READ_FOR: Duration = Duration::from_secs(2);
/// A device that has not ended so long after that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Random reads at a time, and their length: a database's small reads on a busy cell.
const RANDOM_DEPTH: usize = 32;
const RANDOM_BYTES: u64 = 8 << 10;
/// Reads in a row at a time, and their length.
const SEQUENTIAL_DEPTH: usize = 4;
const SEQUENTIAL_BYTES: u64 = 1 << 20;
/// Reads of a device in one way: what bounds the work on a device that answers from memory.
const READS_MAX: u64 = 4_000_000;

/// What a device has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Read {
    requests: u64,
    bytes: u64,
    elapsed_ns: u64,
    errors: u64,
}

impl Read {
    fn per_second(self, amount: u64) -> u64 {
        (u128::from(amount) * 1_000_000_000 / u128::from(self.elapsed_ns.max(1))) as u64
    }

    fn iops(self) -> u64 {
        self.per_second(self.requests)
    }

    /// Binary megabytes a second.
    fn mbps(self) -> u64 {
        self.per_second(self.bytes) >> 20
    }
}

pub(super) async fn calibrate(context: &Arc<Context>, force: bool) -> Done {
    let mut lines = Vec::new();
    let ended = run(context, force, &mut lines).await;
    (lines, ended.err())
}

async fn run(context: &Arc<Context>, force: bool, lines: &mut Vec<String>) -> Step {
    let clients: usize = context.cell.grid_disks().iter().map(|disk| disk.sessions()).sum();
    if clients > 0 && !force {
        let what = format!("the cell serves {clients} connections, which CALIBRATE would hold up");
        return Err(Refusal::new(ErrorCode::NotPermittedNow, what, Some("disconnect them, or use CALIBRATE FORCE")));
    }
    let catalog = context.cell.store().catalog();
    let role = |device: &OpenDevice| Some(catalog.members.get(&device.device_id?)?.role);
    let mut silent = Vec::new();
    for (wanted, media) in [(Role::Disk, "hard disk"), (Role::Flash, "flash disk")] {
        let mut of_media = Vec::new();
        let mut each = Vec::new();
        for device in context.devices().iter().filter(|device| role(device) == Some(wanted)) {
            let path = device.path.display();
            match one(context, device.io.clone()).await {
                Some((random, row)) => {
                    let errors = random.errors + row.errors;
                    let failed = if errors > 0 { format!(", {errors} reads failed") } else { String::new() };
                    each.push(format!(
                        "LUN {path} sequential read throughput: {} MBPS, random reads: {} IOPS{failed}",
                        row.mbps(),
                        random.iops()
                    ));
                    of_media.push((random, row));
                }
                None => {
                    each.push(format!("LUN {path} does not answer"));
                    silent.push(path.to_string());
                }
            }
        }
        if each.is_empty() {
            continue;
        }
        let sum = |of: fn(&(Read, Read)) -> u64| of_media.iter().map(of).sum::<u64>();
        let mbps = sum(|(_, row)| row.mbps());
        let iops = sum(|(random, _)| random.iops());
        lines.push(format!("Aggregate sequential read throughput across all {media} LUNs: {mbps} MBPS"));
        lines.push(format!("Aggregate random read IOs per second (IOPS) across all {media} LUNs: {iops}"));
        lines.append(&mut each);
    }
    if silent.is_empty() {
        return Ok(());
    }
    let what = format!("no answer within {} s from {}", (READ_FOR + PATIENCE).as_secs(), silent.join(", "));
    Err(Refusal::new(ErrorCode::DeviceFailed, what, Some("LIST PHYSICALDISK and the log of the host tell more")))
}

/// Random reads, then reads in a row. None: it does not answer.
async fn one(context: &Context, device: Device) -> Option<(Read, Read)> {
    let clock = context.world.clock.clone();
    let late = clock.sleep(READ_FOR * 2 + PATIENCE);
    let work = async {
        let random = read(context, &device, RANDOM_BYTES, RANDOM_DEPTH, true).await;
        let row = read(context, &device, SEQUENTIAL_BYTES, SEQUENTIAL_DEPTH, false).await;
        (random, row)
    };
    // What is given up here ends by itself: the driver keeps its memory until then.
    match select(pin!(work), late).await {
        Either::Left((read, _)) => Some(read),
        Either::Right(_) => None,
    }
}

async fn read(context: &Context, device: &Device, bytes: u64, depth: usize, random: bool) -> Read {
    let geometry = device.geometry();
    let len =
        bytes.next_multiple_of(u64::from(geometry.logical_bytes.max(1))).min(u64::from(geometry.transfer_bytes_max));
    let places = geometry.size_bytes / len.max(1);
    let mut total = Read::default();
    if places == 0 {
        return total;
    }
    let clock = &context.world.clock;
    let begun: Instant = clock.now();
    let until = begun.after(READ_FOR);
    let lanes = (0..depth as u64).map(|lane| async move {
        let mut prng = context.world.prng.fork(&format!("calibrate {lane}"));
        let mut bufs = Bufs::from(Buf::zeroed(usize::try_from(len).unwrap_or(0)));
        let (mut mine, mut next) = (Read::default(), lane);
        while clock.now() < until && mine.requests < READS_MAX / depth as u64 {
            let place = if random { prng.below(places) } else { next % places };
            next += depth as u64;
            let completed = device.read(place * len, bufs).await;
            mine.requests += 1;
            match completed.outcome.ok() {
                Ok(()) => mine.bytes += len,
                Err(_) => mine.errors += 1,
            }
            // One that failed late may keep its memory.
            bufs = match completed.bufs {
                bufs if bufs.len_bytes() as u64 == len => bufs,
                _ => Bufs::from(Buf::zeroed(usize::try_from(len).unwrap_or(0))),
            };
            device::spawn::yield_now().await;
        }
        mine
    });
    for mine in join_all(lanes).await {
        total.requests += mine.requests;
        total.bytes += mine.bytes;
        total.errors += mine.errors;
    }
    total.elapsed_ns = clock.now().ns_since(begun);
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        let read = Read { requests: 500, bytes: 3 << 30, elapsed_ns: 2_000_000_000, errors: 0 };
        assert_eq!((read.iops(), read.mbps()), (250, 1536));
        assert_eq!(Read::default().iops(), 0);
    }
}
