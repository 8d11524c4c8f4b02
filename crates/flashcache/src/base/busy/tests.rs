//! Goal: flash is called busy when it is, and the share comes to rest where both devices take as long. Method: times told by
//! hand; then two queues in a closed loop, computed from hit to hit.

use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A controller with a clock.
struct Told {
    busy: BusyFlash,
    now: Instant,
}

impl Told {
    fn new() -> Told {
        Told { busy: BusyFlash::new(BusyTuning::default()), now: Instant(1) }
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.after(Duration::from_nanos(ns));
    }

    /// Hits on flash, one a millisecond; how many probes were asked for.
    fn flash(&mut self, hits: u64, ns: u64) -> u32 {
        let mut probes = 0;
        for _ in 0..hits {
            self.pass(MS);
            self.busy.flash_read(ns, self.now);
            probes += self.busy.take_probes();
        }
        probes
    }

    fn disk(&mut self, hits: u64, ns: u64) {
        (0..hits).for_each(|_| self.busy.disk_read(ns, self.now));
    }

    /// Flash takes 10 ms, the disk 4.
    fn made_busy() -> Told {
        let mut told = Told::new();
        assert_eq!(told.flash(40, 10 * MS), PROBES);
        told.disk(4, 4 * MS);
        assert_eq!((told.flash(40, 10 * MS), told.busy.share()), (0, SHARE_MIN));
        told
    }
}

#[test]
fn quick_hits_ask_for_nothing() {
    let mut told = Told::new();
    assert_eq!(told.flash(10_000, 249 * US), 0);
    assert_eq!((told.busy.share(), told.busy.is_alert()), (0, false));
    // One that is slow now and then is no queue.
    for _ in 0..1000 {
        assert_eq!(told.flash(15, 100 * US) + told.flash(1, 2 * MS), 0);
    }
}

#[test]
fn a_slower_disk_is_asked_more_and_more_rarely() {
    let mut told = Told::new();
    let mut asked = Vec::new();
    for at_ms in 0..100_000_u64 {
        if told.flash(1, MS) > 0 {
            asked.push(at_ms / 100);
            told.disk(4, 8 * MS);
        }
        assert_eq!(told.busy.share(), 0);
    }
    let gaps: Vec<u64> = asked.windows(2).map(|pair| (pair[1] - pair[0]) / 10).collect();
    assert_eq!(gaps, [1, 2, 4, 8, 16, 16, 16, 16, 16], "{asked:?}");
    // Flash slower than the disk was: asked within the first rest.
    assert_eq!(told.flash(1_100, 11 * MS), PROBES);
}

#[test]
fn exactly_a_quarter_more_is_not_slower() {
    for (flash_ns, disk_ns, slower) in [(5, 4, false), (6, 4, true), (5_001, 4_000, true), (0, 0, false), (1, 0, true)]
    {
        assert_eq!(BusyFlash::is_slower(flash_ns, disk_ns), slower, "{flash_ns} and {disk_ns}");
    }
    assert!(!BusyFlash::is_slower(u64::MAX, u64::MAX), "nothing overflows");
}

#[test]
fn a_window_is_as_long_as_two_reads_within_its_bounds() {
    let mut busy = BusyFlash::new(BusyTuning::default());
    assert_eq!((busy.window_ns(), busy.patience_ns()), (10 * MS, 50 * MS));
    for (flash_ns, disk_ns, window_ns) in [
        (4 * MS, None, 10 * MS),
        (8 * MS, None, 16 * MS),
        (8 * MS, Some(20 * MS), 40 * MS),
        (MS, Some(900 * MS), 500 * MS),
    ] {
        (busy.flash_ns, busy.disk_ns) = (flash_ns, disk_ns.map(|ns| (ns, Instant(7))));
        assert_eq!(busy.window_ns(), window_ns);
        assert_eq!(busy.patience_ns(), (8 * flash_ns).max(50 * MS));
    }
}

/// The controller's arithmetic, window by window: 1024 times the difference over the sum, an eighth of it, and 1/32 of all so far.
#[test]
fn the_share_follows_its_two_terms() {
    let mut told = Told::made_busy();
    let (flash_ns, disk_ns) = (10 * MS, 6 * MS);
    let mut shares = Vec::new();
    for _ in 0..6 {
        // A window's worth of both.
        told.disk(4, disk_ns);
        told.flash(20, flash_ns);
        shares.push(told.busy.share());
    }
    // 1024 * 4 / 16 = 256: 32 at once, and 8 more with each window.
    assert_eq!(shares, [40, 48, 56, 64, 72, 80]);
    // The disk is the slower one: it shrinks by as much, and no window of either is left over.
    for _ in 0..2 {
        told.disk(4, 10 * MS);
        told.flash(20, 6 * MS);
    }
    assert_eq!(told.busy.share(), SHARE_MIN);
}

#[test]
fn a_quarter_more_than_the_disk_is_busy() {
    for (flash_ns, share) in [(4_900 * US, 0), (5_100 * US, SHARE_MIN)] {
        let mut told = Told::new();
        told.flash(40, flash_ns);
        told.disk(4, 4 * MS);
        told.flash(40, flash_ns);
        assert_eq!(told.busy.share(), share);
    }
}

#[test]
fn what_nothing_confirms_ends() {
    // Hits stop.
    let mut told = Told::made_busy();
    let expires = told.busy.expires();
    assert!((2_050..=2_080).contains(&(expires.ns_since(told.now) / MS)));
    told.busy.expire(Instant(expires.0 - 1));
    assert_eq!(told.busy.share(), SHARE_MIN);
    told.busy.expire(expires);
    assert_eq!(told.busy.share(), 0);
    // The disk answers nothing.
    let mut told = Told::made_busy();
    told.flash(2_100, 10 * MS);
    assert_eq!(told.busy.share(), 0);
    // The disk fails: at once, and it is not asked again at once.
    let mut told = Told::made_busy();
    told.busy.disk_failed(told.now);
    assert_eq!((told.busy.share(), told.flash(900, 10 * MS)), (0, 0));
    // Probes that nobody answers.
    let mut told = Told::new();
    assert_eq!(told.flash(2_500, 10 * MS), PROBES);
    assert!(!told.busy.is_alert());
}

#[test]
fn flash_that_is_quick_again_gets_all_hits_back() {
    let mut told = Told::made_busy();
    for _ in 0..20 {
        told.disk(4, 4 * MS);
        told.flash(20, 10 * MS);
    }
    let high = told.busy.share();
    assert!(high > 100, "{high}");
    for _ in 0..100 {
        told.disk(4, 4 * MS);
        told.flash(20, 100 * US);
    }
    assert_eq!(told.busy.share(), 0);
}

#[test]
fn the_share_is_bounded() {
    let mut told = Told::made_busy();
    for _ in 0..500 {
        told.disk(4, US);
        told.flash(20, 100 * MS);
        assert!((SHARE_MIN..=SHARE_MAX).contains(&told.busy.share()));
    }
    assert_eq!(told.busy.share(), SHARE_MAX);
    // Times beyond reason overflow nothing.
    told.disk(4, u64::MAX);
    told.flash(20, u64::MAX);
    told.busy.expire(Instant(told.now.0 + 100_000 * MS));
    assert_eq!(told.busy.share(), 0);
}

/// One server that takes `service_ns` for each hit.
struct Queue {
    service_ns: u64,
    free_ns: u64,
}

impl Queue {
    /// When a hit that comes now is served.
    fn serve(&mut self, now_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + self.service_ns;
        self.free_ns
    }
}

/// Readers in a closed loop over two queues; the disk has a latency besides. Hits served in the last two of five seconds.
fn closed_loop(readers: usize, flash_ns: u64, disk_ns: u64, disk_latency_ns: u64) -> u64 {
    let mut busy = BusyFlash::new(BusyTuning::default());
    let (mut flash, mut disk) = (Queue { service_ns: flash_ns, free_ns: 0 }, Queue { service_ns: disk_ns, free_ns: 0 });
    // When each reader's hit ends, when it began, whether the disk reads it.
    let mut ends: std::collections::BTreeSet<(u64, usize)> = (0..readers).map(|n| (n as u64, n)).collect();
    let mut under_way = vec![(0_u64, false); readers];
    let (mut turn, mut probes, mut served) = (0_u32, 0_u32, 0_u64);
    while let Some((now_ns, reader)) = ends.pop_first() {
        if now_ns > 5_000 * MS {
            break;
        }
        served += u64::from(now_ns > 3_000 * MS);
        let (begun, on_disk) = under_way[reader];
        let took_ns = now_ns - begun;
        if on_disk {
            busy.disk_read(took_ns, Instant(now_ns))
        } else {
            busy.flash_read(took_ns, Instant(now_ns))
        }
        probes += busy.take_probes();
        turn += busy.share();
        let diverted = probes > 0 || turn >= SHARE_WHOLE;
        if probes > 0 {
            probes -= 1;
        } else if diverted {
            turn -= SHARE_WHOLE;
        }
        let end_ns = if diverted { disk.serve(now_ns) + disk_latency_ns } else { flash.serve(now_ns) };
        under_way[reader] = (now_ns, diverted);
        ends.insert((end_ns, reader));
    }
    served
}

#[test]
fn two_queues_in_a_closed_loop_both_stay_busy() {
    for (readers, flash_ns, disk_ns, latency_ns) in [
        (256, 50 * US, 60 * US, 4 * MS),
        (1024, 50 * US, 60 * US, 4 * MS),
        (256, 50 * US, 500 * US, 2 * MS),
        (256, 200 * US, 30 * US, MS),
        (64, 2 * MS, 8 * MS, 0),
    ] {
        let both = 2_000 * MS / flash_ns + 2_000 * MS / disk_ns;
        let served = closed_loop(readers, flash_ns, disk_ns, latency_ns);
        assert!(served * 100 >= both * 95, "{readers} readers, {flash_ns} and {disk_ns}: {served} of {both}");
    }
    // Few readers: the disk's latency is more than the queue of flash.
    let served = closed_loop(16, 50 * US, 60 * US, 4 * MS);
    assert!(served * 100 >= 2_000 * MS / (50 * US) * 99, "{served}");
}
