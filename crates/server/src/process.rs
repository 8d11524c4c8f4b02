//! What this process and its host use, from `/proc`.
//!
//! Never fails: what cannot be read is 0.

use cell::metrics::ProcessUse;
use std::path::Path;

/// Kernel clock ticks a second in `/proc`: 100 on every Linux there is (USER_HZ).
const TICK_NS: u64 = 10_000_000;
/// The page of `/proc/self/statm`, from the kernel.
fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// As it is now.
pub(crate) fn usage() -> ProcessUse {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut usage =
        parse(&read("/proc/self/stat"), &read("/proc/self/statm"), &read("/proc/meminfo"), &read("/proc/loadavg"));
    usage.host_cpu_ns = host_cpu_ns(&read("/proc/stat"));
    let is_hardware = |name: &str| Path::new("/sys/class/net").join(name).join("device").exists();
    (usage.nic_received_bytes, usage.nic_sent_bytes) = nic_bytes(&read("/proc/net/dev"), is_hardware);
    usage
}

/// Bytes received and sent by the interfaces of a host that are hardware, or by all but its loopback where none is: what is stacked on
/// others would be counted twice.
fn nic_bytes(dev: &str, is_hardware: impl Fn(&str) -> bool) -> (u64, u64) {
    let lines = dev.lines().filter_map(|line| line.split_once(':')).map(|(name, rest)| (name.trim(), rest));
    let all: Vec<(&str, &str)> = lines.filter(|(name, _)| *name != "lo").collect();
    let any = all.iter().any(|(name, _)| is_hardware(name));
    let bytes = |rest: &str, at| rest.split_whitespace().nth(at).and_then(|word: &str| word.parse::<u64>().ok());
    let counted = all.iter().filter(|(name, _)| !any || is_hardware(name));
    counted.fold((0, 0), |(received, sent), (_, rest)| {
        (received + bytes(rest, 0).unwrap_or(0), sent + bytes(rest, 8).unwrap_or(0))
    })
}

/// Processor time in use, in the mean of the processors of a host.
fn host_cpu_ns(stat: &str) -> u64 {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or("");
    let ticks: Vec<u64> = all.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user and nice already.
    let used: u64 = ticks.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, n)| n).sum();
    let is_one =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let processors = stat.lines().filter(is_one).count().max(1) as u64;
    used * TICK_NS / processors
}

fn parse(stat: &str, statm: &str, meminfo: &str, loadavg: &str) -> ProcessUse {
    let number = |word: Option<&str>| word.and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
    // The name in parentheses may hold blanks; what follows does not. utime and stime are fields 14 and 15.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = number(fields.get(11).copied()) + number(fields.get(12).copied());
    let mut pages = statm.split_whitespace();
    let (virtual_pages, resident_pages) = (number(pages.next()), number(pages.next()));
    let kib = |name: &str| {
        let found = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        number(found.and_then(|rest| rest.split_whitespace().next()))
    };
    let (host_kib, swap_kib) = (kib("MemTotal"), kib("SwapTotal"));
    // "0.42": hundredths.
    let load = loadavg.split_whitespace().next().unwrap_or("").replace('.', "");
    ProcessUse {
        cpu_ns: ticks * TICK_NS,
        resident_bytes: resident_pages * page_bytes(),
        virtual_bytes: virtual_pages * page_bytes(),
        host_memory_bytes: host_kib << 10,
        host_memory_used_bytes: host_kib.saturating_sub(kib("MemAvailable")) << 10,
        host_swap_bytes: swap_kib << 10,
        host_swap_used_bytes: swap_kib.saturating_sub(kib("SwapFree")) << 10,
        load_milli: number(Some(&load)) * 10,
        ..ProcessUse::default()
    }
}

/// When this process was started, in nanoseconds since 1970, to a second.
pub(crate) fn started_ns() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    started(&read("/proc/self/stat"), &read("/proc/stat"))
}

/// The kernel has it in ticks since the host was started.
fn started(of_process: &str, of_host: &str) -> u64 {
    let number = |word: Option<&str>| word.and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
    let after_name = of_process.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = number(after_name.split_whitespace().nth(19));
    let boot_seconds = number(of_host.lines().find_map(|line| line.strip_prefix("btime ")).map(str::trim));
    boot_seconds * 1_000_000_000 + ticks * TICK_NS
}

/// Processors this process may use.
pub(crate) fn cpu_count() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// The offset of the host's time zone at a moment, in minutes east of UTC.
pub(crate) fn offset_minutes(since_epoch_ns: u64) -> i16 {
    use chrono::{Local, Offset, TimeZone};
    let seconds = i64::try_from(since_epoch_ns / 1_000_000_000).unwrap_or(0);
    let local = Local.timestamp_opt(seconds, 0).single();
    local.map_or(0, |t| i16::try_from(t.offset().fix().local_minus_utc() / 60).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_understood() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 1 0 0";
        let got = parse(
            stat,
            "100 40 1 1 0 1 0\n",
            "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable: 384 kB\nSwapTotal: 8 kB\nSwapFree: 6 kB\n",
            "1.25 0.5 0.1 1/2 3\n",
        );
        assert_eq!(got.cpu_ns, 2_000_000_000);
        assert_eq!(got.virtual_bytes, 100 * page_bytes());
        assert_eq!(got.resident_bytes, 40 * page_bytes());
        assert_eq!(got.host_memory_bytes, 16 << 20);
        assert_eq!(got.load_milli, 1_250);
        assert_eq!(
            (got.host_memory_used_bytes, got.host_swap_bytes, got.host_swap_used_bytes),
            (16000 << 10, 8192, 2048)
        );
        let stat = "cpu  10 20 30 1000 500 1 2 3 7 7\ncpu0 5 10 15 500 250 1 1 1 3 3\ncpu1 5 10 15 500 250 0 1 2 4 4\nintr 5\n";
        assert_eq!(host_cpu_ns(stat), 66 * TICK_NS / 2);
        assert_eq!(host_cpu_ns(""), 0);
    }

    #[test]
    fn a_process_is_started_so_long_after_its_host() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 4 0 250 0 0";
        assert_eq!(started(stat, "cpu  1 2\nbtime 1700000000\nprocesses 5\n"), 1_700_000_002_500_000_000);
        assert_eq!(started("", ""), 0);
        let now_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |it| it.as_nanos());
        assert!(u128::from(started_ns()) <= now_ns && started_ns() > 0);
    }

    #[test]
    fn interfaces_count_once() {
        let dev = "Inter-|   Receive\n face |bytes packets\n    lo: 5 1 0 0 0 0 0 0 5 1 0\n  eth0: 100 2 0 0 0 0 0 0 40 1 0\n   br0:100 2 0 0 0 0 0 0 40 1 0\n";
        assert_eq!(nic_bytes(dev, |name| name == "eth0"), (100, 40));
        assert_eq!(nic_bytes(dev, |_| false), (200, 80));
        assert_eq!(nic_bytes("", |_| true), (0, 0));
    }

    #[test]
    fn rubbish_is_nothing() {
        assert_eq!(parse("", "", "", ""), ProcessUse::default());
    }

    #[test]
    fn this_process_uses_something() {
        let now = usage();
        assert!(now.resident_bytes > 0 && now.host_memory_bytes > now.resident_bytes);
    }
}
