//! A trace as work to be done: its requests in order, and what is known of each of its devices.
//!
//! Never does I/O but reading the trace, never holds more than the requests and the blocks they touch.

use super::WhatIfError;
use super::driver::{self, Destination, Target};
use crate::trace::{Columns, Format, Op, Request, TraceReader, Understood, Unit};
use std::collections::HashMap;
use std::path::Path;

/// The most requests of a trace: 32 bytes each while it is replayed, 40 while it is read.
pub(super) const CALLS_MAX: usize = 50_000_000;
/// The most distinct blocks that are told apart.
const BLOCKS_MAX: usize = 1 << 28;
/// What a block of a trace that counts in blocks of its own has.
const OWN_BLOCK_BYTES: u64 = 4096;
/// What flash holds whole or not at all.
const PART_ALIGN_BYTES: u64 = 4096;
/// Grid disks are as long as a whole number of these.
const GRANULE_BYTES: u64 = 16 << 20;
/// The most that the devices of a trace may span together: what one cell disk is believed to have.
pub(super) const SPAN_BYTES_MAX: u64 = 64 << 40;
/// Parts of a device whose heat is told apart.
const PARTS: u64 = 1024;
const PART_BYTES_MIN: u64 = 1 << 20;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    Flush,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// In bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Since the first request of the trace; 0 where it tells no times.
    pub(super) at_ns: u64,
    pub(super) device: u32,
    pub(super) verb: Verb,
}

/// A part of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartUse {
    /// Reads and writes that begin in it.
    pub(super) requests: u64,
    /// Blocks touched, each time.
    pub(super) references: u64,
    /// Of those, for the first time.
    pub(super) first: u64,
}

/// What the trace does with one of its devices.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceUse {
    pub(super) name: String,
    /// The end of what it touches, rounded up: as long as the grid disk is made.
    pub(super) span_bytes: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) flushes: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    /// Writes that do not begin and end at whole parts of the cache's, of [`PART_ALIGN_BYTES`].
    pub(super) unaligned_writes: u64,
    /// Requests that begin where the one before them on this device ended.
    pub(super) in_order: u64,
    /// Blocks touched by reads, each time, and of those the ones touched before by whatever.
    pub(super) read_references: u64,
    pub(super) read_again: u64,
    pub(super) distinct_blocks: u64,
    pub(super) part_bytes: u64,
    pub(super) parts: Vec<PartUse>,
}

impl DeviceUse {
    pub(super) fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// What is reached through that is this device.
    pub(super) fn destination(&self, target: Target) -> Destination {
        Destination { target, part_bytes: self.part_bytes, parts: self.parts.len() }
    }
}

/// How long requests took where the trace was recorded, in nanoseconds, of those of which it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) read_p50_ns: Option<u64>,
    pub(super) read_p99_ns: Option<u64>,
    pub(super) write_p50_ns: Option<u64>,
    pub(super) write_p99_ns: Option<u64>,
    pub(super) flush_p99_ns: Option<u64>,
}

/// Latencies by what the request does.
#[derive(Default)]
struct Latencies {
    reads: Vec<u64>,
    writes: Vec<u64>,
    flushes: Vec<u64>,
}

impl Latencies {
    fn add(&mut self, verb: Verb, ns: Option<u64>) {
        let of = match verb {
            Verb::Read => &mut self.reads,
            Verb::Write => &mut self.writes,
            Verb::Flush => &mut self.flushes,
        };
        of.extend(ns);
    }

    /// None where no request has one.
    fn recorded(self) -> Option<Recorded> {
        let [reads, writes, flushes] = [self.reads, self.writes, self.flushes].map(driver::Times::of);
        let recorded = Recorded {
            read_p50_ns: reads.quantile_ns(500),
            read_p99_ns: reads.quantile_ns(990),
            write_p50_ns: writes.quantile_ns(500),
            write_p99_ns: writes.quantile_ns(990),
            flush_p99_ns: flushes.quantile_ns(990),
        };
        [&reads, &writes, &flushes].iter().any(|times| times.count() > 0).then_some(recorded)
    }
}

/// See the module.
pub(super) struct Workload {
    pub(super) calls: Vec<Call>,
    pub(super) devices: Vec<DeviceUse>,
    pub(super) block_bytes: u64,
    /// Blocks touched, each time and once.
    pub(super) references: u64,
    pub(super) distinct_blocks: u64,
    /// From the first request to the last, where the trace tells times.
    pub(super) span_ns: Option<u64>,
    /// Where the trace says how long requests took.
    pub(super) recorded: Option<Recorded>,
    /// What was understood, in words.
    pub(super) understood: String,
}

/// How to read it.
pub(super) struct Reading<'a> {
    pub(super) format: Option<Format>,
    pub(super) columns: Option<&'a Columns>,
    /// At most so many requests, from the beginning.
    pub(super) requests_max: Option<usize>,
    pub(super) block_bytes: u64,
}

impl Workload {
    /// Read a trace.
    pub(super) fn read(path: &Path, reading: &Reading<'_>) -> Result<Workload, WhatIfError> {
        let reader = match reading.columns {
            Some(columns) => TraceReader::with_columns(path, columns.clone())?,
            None => TraceReader::open(path, reading.format)?,
        };
        Workload::of(reader.with_flushes(), path, reading)
    }

    fn of(mut reader: TraceReader, path: &Path, reading: &Reading<'_>) -> Result<Workload, WhatIfError> {
        let (unit, format) = (reader.unit(), reader.format());
        let mut understood = Understood::default();
        let mut calls: Vec<Call> = Vec::new();
        let mut objects: HashMap<u64, u64> = HashMap::new();
        let (mut times, mut latencies) = (Times::default(), Latencies::default());
        let limit = reading.requests_max.unwrap_or(usize::MAX);
        while calls.len() < limit {
            let Some(request) = reader.next() else { break };
            let request = request?;
            if calls.len() >= CALLS_MAX {
                return Err(WhatIfError::TooMany { trace: path.to_owned() });
            }
            understood.add(&request);
            times.add(&request);
            let (offset, len) = match unit {
                Unit::Bytes => (request.start, request.count),
                Unit::Blocks => (request.start * OWN_BLOCK_BYTES, request.count * OWN_BLOCK_BYTES),
                // Their numbers are no addresses: one behind the other as they come.
                Unit::Objects => {
                    let next = objects.len() as u64;
                    (*objects.entry(request.start).or_insert(next) * OWN_BLOCK_BYTES, OWN_BLOCK_BYTES)
                }
            };
            let verb = match request.op {
                Op::Write => Verb::Write,
                Op::Flush => Verb::Flush,
                Op::Read | Op::Unknown => Verb::Read,
            };
            latencies.add(verb, request.latency_ns);
            calls.push(Call { offset, len, at_ns: request.time_ns.unwrap_or(0), device: request.device, verb });
        }
        if !calls.iter().any(|call| call.verb != Verb::Flush) {
            return Err(WhatIfError::Empty { trace: path.to_owned() });
        }
        for call in &mut calls {
            call.at_ns = call.at_ns.saturating_sub(times.first_ns.unwrap_or(0));
        }
        let names = reader.device_names();
        let mut workload = Workload {
            calls,
            devices: names.into_iter().map(|name| DeviceUse { name, ..DeviceUse::default() }).collect(),
            block_bytes: reading.block_bytes,
            references: 0,
            distinct_blocks: 0,
            span_ns: times.span_ns(),
            recorded: latencies.recorded(),
            understood: format!("read as {format}: {}", understood.told(unit)),
        };
        workload.count(path)?;
        Ok(workload)
    }

    /// What it does with its devices.
    fn count(&mut self, path: &Path) -> Result<(), WhatIfError> {
        for call in &self.calls {
            let device = &mut self.devices[call.device as usize];
            device.span_bytes = device.span_bytes.max(call.offset + call.len);
        }
        for device in &mut self.devices {
            device.span_bytes = device.span_bytes.max(1).next_multiple_of(GRANULE_BYTES);
            device.part_bytes = (device.span_bytes / PARTS).next_power_of_two().max(PART_BYTES_MIN);
            device.parts = vec![PartUse::default(); device.span_bytes.div_ceil(device.part_bytes) as usize];
        }
        let spans: u64 = self.devices.iter().map(|device| device.span_bytes).sum();
        if spans > SPAN_BYTES_MAX {
            return Err(WhatIfError::TooLarge { trace: path.to_owned(), bytes: spans });
        }
        // By device and block; the numbers of blocks are below 2^44.
        let mut seen: std::collections::HashSet<(u32, u64)> = std::collections::HashSet::new();
        let mut ends = vec![u64::MAX; self.devices.len()];
        for call in &self.calls {
            let device = &mut self.devices[call.device as usize];
            let is_read = match call.verb {
                Verb::Read => true,
                Verb::Write => false,
                Verb::Flush => {
                    device.flushes += 1;
                    continue;
                }
            };
            if is_read {
                device.reads += 1;
                device.read_bytes += call.len;
            } else {
                device.writes += 1;
                let is_whole =
                    call.offset.is_multiple_of(PART_ALIGN_BYTES) && call.len.is_multiple_of(PART_ALIGN_BYTES);
                device.unaligned_writes += u64::from(!is_whole);
                device.written_bytes += call.len;
            }
            let end = std::mem::replace(&mut ends[call.device as usize], call.offset + call.len);
            device.in_order += u64::from(end == call.offset);
            device.parts[(call.offset / device.part_bytes) as usize].requests += 1;
            for block in call.offset / self.block_bytes..(call.offset + call.len).div_ceil(self.block_bytes) {
                let is_new = seen.insert((call.device, block));
                if seen.len() > BLOCKS_MAX {
                    return Err(WhatIfError::TooMany { trace: path.to_owned() });
                }
                let part = &mut device.parts[(block * self.block_bytes / device.part_bytes) as usize];
                part.references += 1;
                part.first += u64::from(is_new);
                device.distinct_blocks += u64::from(is_new);
                device.read_references += u64::from(is_read);
                device.read_again += u64::from(is_read && !is_new);
                self.references += 1;
            }
        }
        self.distinct_blocks = seen.len() as u64;
        Ok(())
    }

    /// What it touches, in whole blocks.
    pub(super) fn footprint_bytes(&self) -> u64 {
        self.distinct_blocks * self.block_bytes
    }

    /// Bytes that clients read and write.
    pub(super) fn client_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.read_bytes + device.written_bytes).sum()
    }

    pub(super) fn requests(&self) -> u64 {
        self.devices.iter().map(DeviceUse::requests).sum()
    }

    pub(super) fn span_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.span_bytes).sum()
    }
}

#[derive(Default)]
struct Times {
    first_ns: Option<u64>,
    last_ns: u64,
    untimed: bool,
}

impl Times {
    fn add(&mut self, request: &Request) {
        match request.time_ns {
            Some(ns) => {
                self.first_ns = Some(self.first_ns.map_or(ns, |first| first.min(ns)));
                self.last_ns = self.last_ns.max(ns);
            }
            None => self.untimed = true,
        }
    }

    fn span_ns(&self) -> Option<u64> {
        let span = self.last_ns - self.first_ns?;
        (!self.untimed && span > 0).then_some(span)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(super) mod tests {
    use super::*;

    pub(in crate::what_if) fn workload(text: &str) -> Result<Workload, WhatIfError> {
        let bytes = format!("{}{text}", crate::trace::capture::head()).into_bytes();
        let path = Path::new("t");
        let reader = TraceReader::over(path, Box::new(std::io::Cursor::new(bytes)), None)?;
        let reading = Reading { format: None, columns: None, requests_max: None, block_bytes: 16384 };
        Workload::of(reader.with_flushes(), path, &reading)
    }

    /// Goal: requests, flushes, times, devices and what comes again are counted as they are. Method: a trace by hand.
    #[test]
    fn a_trace_becomes_work() {
        let text = "1000,a,,read,0,8192\n1500,a,,read,8192,8192\n2000,b,DB,write,33554432,16384\n2500,b,DB,flush,0,0\n4000,a,,read,4096,4096\n";
        let w = workload(text).unwrap();
        assert_eq!(w.calls.iter().map(|c| c.at_ns).collect::<Vec<_>>(), [0, 500, 1000, 1500, 3000]);
        assert_eq!((w.span_ns, w.requests(), w.references, w.distinct_blocks), (Some(3000), 4, 4, 2));
        let [a, b] = &w.devices[..] else { unreachable!("two devices") };
        assert_eq!((a.name.as_str(), a.reads, a.in_order, a.read_again, a.span_bytes), ("a", 3, 1, 2, 16 << 20));
        assert_eq!((b.writes, b.flushes, b.written_bytes, b.span_bytes), (1, 1, 16384, 48 << 20));
        assert_eq!(b.parts[32].first, 1);
    }

    #[test]
    fn what_was_recorded_is_told_where_it_is_known() {
        assert_eq!(workload("1,a,,read,0,8192\n2,a,,flush,0,0,\n").unwrap().recorded, None);
        let reads: String = (1..=200).map(|n| format!("{n},a,,read,0,8192,{}\n", 1000 * (201 - n))).collect();
        let w = workload(&format!("{reads}900,a,,write,0,8192,70\n901,a,,write,0,8192,\n")).unwrap();
        let (write_p50_ns, write_p99_ns, flush_p99_ns) = (Some(70), Some(70), None);
        let (read_p50_ns, read_p99_ns) = (Some(100_000), Some(198_000));
        assert_eq!(w.recorded, Some(Recorded { read_p50_ns, read_p99_ns, write_p50_ns, write_p99_ns, flush_p99_ns }));
    }

    #[test]
    fn nothing_to_do_is_refused() {
        assert!(matches!(workload("1,a,,flush,0,0\n"), Err(WhatIfError::Empty { .. })));
        let far = "1,a,,read,72057594037923840,4096\n";
        assert!(matches!(workload(far), Err(WhatIfError::TooLarge { .. })));
    }
}
