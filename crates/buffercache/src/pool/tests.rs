//! Goal: buffers are reused in the order of the rules, nothing dirty is lost, and what is known of a page is true. Method: random
//! references, beside a model that keeps the lists as vectors and searches them from one end to the other.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FRAMES: usize = 12;
const RULES: Rules = Rules { hot_percent: 50, hot_touches: 2, cool_touches: 1, touch_ns: 3, search_percent: 50 };

#[derive(Clone, Debug)]
struct Held {
    number: u64,
    version: u64,
    touches: u32,
    touched_at: u64,
    is_dirty: bool,
}

/// Lists from the head to the tail.
#[derive(Default)]
struct Naive {
    free: usize,
    hot: Vec<Held>,
    cold: Vec<Held>,
    write: Vec<Held>,
    /// What the data file has.
    disk: BTreeMap<u64, u64>,
}

impl Naive {
    fn all(&mut self) -> impl Iterator<Item = &mut Held> {
        self.hot.iter_mut().chain(&mut self.cold).chain(&mut self.write)
    }

    fn held(&mut self, number: u64) -> Option<&mut Held> {
        self.all().find(|held| held.number == number)
    }

    fn cool(&mut self) -> bool {
        let Some(mut held) = self.hot.pop() else { return false };
        held.touches = RULES.cool_touches;
        self.cold.insert(0, held);
        true
    }

    /// What goes; none when nothing may.
    fn search(&mut self) -> Option<u64> {
        let mut from_end = 0;
        for _ in 0..FRAMES * RULES.search_percent / 100 {
            if from_end == self.cold.len() && !self.cool() {
                return None;
            }
            let at = self.cold.len() - 1 - from_end;
            if self.cold[at].touches >= RULES.hot_touches {
                let mut held = self.cold.remove(at);
                held.touches = 0;
                self.hot.insert(0, held);
                while self.hot.len() > FRAMES * RULES.hot_percent / 100 && self.cool() {}
            } else if self.cold[at].is_dirty {
                let held = self.cold.remove(at);
                self.write.insert(0, held);
            } else {
                return Some(self.cold.remove(at).number);
            }
            // Nothing is being written between two steps of this test: what is looked at leaves the list.
            from_end = 0;
        }
        None
    }

    /// Write from the tail of the write list, then in the order of first changes.
    fn write(&mut self, max: usize) {
        for _ in 0..max {
            let Some(mut held) = self.write.pop() else { return };
            held.is_dirty = false;
            self.disk.insert(held.number, held.version);
            self.cold.push(held);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Get(u64),
    Change(u64),
    Write(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..30_u64).prop_map(Step::Get),
        4 => (0..30_u64).prop_map(Step::Change),
        2 => (1..6_usize).prop_map(Step::Write),
        1 => (1..5_u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..300)
}

/// Run both; where they differ, in words.
fn differ(steps: &[Step], sabotage: Option<Sabotage>) -> Option<String> {
    let mut pool: Pool<u64> = Pool::new(FRAMES, RULES, sabotage);
    let mut naive = Naive { free: FRAMES, ..Naive::default() };
    let mut disk: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut now, mut changes) = (10, 0);
    for (n, step) in steps.iter().enumerate() {
        now += 1;
        match step {
            Step::Wait(time) => now += time,
            Step::Write(max) => {
                for job in pool.begin_writes(*max, 0) {
                    disk.insert(job.number.0, job.page);
                    pool.end_write(job.frame, true);
                }
                naive.write(*max);
            }
            Step::Get(number) | Step::Change(number) => {
                let found = pool.touch(PageNumber(*number), Instant(now));
                let known = naive.held(*number).map(|held| {
                    if held.touches == 0 || now - held.touched_at >= RULES.touch_ns {
                        held.touches += 1;
                        held.touched_at = now;
                    }
                    held.version
                });
                match (found, known) {
                    (Found::Here(page), Some(version)) if page == version => {}
                    (Found::Absent, None) => {
                        let room = pool.begin_read(PageNumber(*number));
                        let (has_room, gone) = match naive.free {
                            0 => {
                                let gone = naive.search();
                                (gone.is_some(), gone)
                            }
                            _ => {
                                naive.free -= 1;
                                (true, None)
                            }
                        };
                        let Some((frame, evicted)) = room else {
                            if has_room {
                                return Some(format!("step {n}: no buffer, expected one"));
                            }
                            continue;
                        };
                        if !has_room || evicted.map(|e| e.number.0) != gone {
                            return Some(format!("step {n}: {evicted:?} went instead of {gone:?}"));
                        }
                        let version = disk.get(number).copied().unwrap_or(0);
                        if version != naive.disk.get(number).copied().unwrap_or(0) {
                            return Some(format!("step {n}: page {number} has lost a change"));
                        }
                        pool.end_read(frame, version, Place::Midpoint, false, Instant(now));
                        let held = Held { number: *number, version, touches: 1, touched_at: now, is_dirty: false };
                        naive.cold.insert(0, held);
                    }
                    other => return Some(format!("step {n}: {other:?}")),
                }
                if matches!(step, Step::Change(_)) {
                    let next = || {
                        changes += 1;
                        changes
                    };
                    let change = pool.change(PageNumber(*number), next, |version| *version += 1);
                    if let Some(held) = naive.held(*number) {
                        held.version += 1;
                        held.is_dirty = true;
                    }
                    if change != Change::Done {
                        return Some(format!("step {n}: {change:?}"));
                    }
                }
            }
        }
        pool.check();
        let dirty = naive.all().filter(|held| held.is_dirty).count();
        if sabotage.is_none() && dirty != pool.dirty() {
            return Some(format!("step {n}: {} dirty instead of {dirty}", pool.dirty()));
        }
    }
    None
}

impl<P> Pool<P> {
    /// Every buffer is in the list it says, and found under its page.
    fn check(&self) {
        let mut seen = 0;
        for (list, home) in [(&self.hot, Home::Hot), (&self.cold, Home::Cold), (&self.write_list, Home::WriteList)] {
            for at in list.up_from_tail(&self.links) {
                seen += 1;
                assert_eq!(self.frames[at as usize].home, home);
                assert_eq!(self.index.get(self.index.key(at)), Some(at));
                let is_known = |first| self.dirty.contains(&(first, at));
                assert!(self.frames[at as usize].dirty.is_none_or(is_known), "what is dirty is known to be");
            }
        }
        assert_eq!(seen + self.free.len(), FRAMES, "no buffer is lost");
        assert!(self.hot.len() <= FRAMES * RULES.hot_percent / 100);
    }
}

proptest! {
    #[test]
    fn buffers_go_in_the_order_of_the_rules(steps in steps()) {
        prop_assert_eq!(differ(&steps, None), None);
    }
}

/// Goal: the test above can fail. Method: a pool that reuses dirty buffers, on references it must fail on.
#[test]
fn a_pool_that_loses_changes_is_caught() {
    let steps: Vec<Step> = (0..30).map(Step::Change).chain((0..30).map(Step::Get)).collect();
    assert_eq!(differ(&steps, None), None);
    assert!(differ(&steps, Some(Sabotage::ReusesDirty)).is_some());
}

/// Goal: a scan takes its own buffers again and pushes out nothing else. Method: pages touched twice, then a scan of many others.
#[test]
fn a_scan_pushes_out_nothing() {
    let mut pool: Pool<u64> = Pool::new(FRAMES, RULES, None);
    for number in 0..8 {
        let (frame, _) = pool.begin_read(PageNumber(number)).unwrap_or_else(|| panic!("there is room"));
        pool.end_read(frame, 0, Place::Midpoint, false, Instant(number));
    }
    for number in 100..200 {
        let (frame, evicted) = pool.begin_read(PageNumber(number)).unwrap_or_else(|| panic!("there is room"));
        assert!(evicted.is_none_or(|e| e.number.0 >= 100), "{evicted:?}");
        pool.end_read(frame, 0, Place::ColdEnd, true, Instant(number));
    }
}

/// Goal: what is being written is neither changed nor reused, and a checkpoint takes the oldest changes. Method: by hand.
#[test]
fn what_is_being_written_is_left_alone() {
    let mut pool: Pool<u64> = Pool::new(FRAMES, RULES, None);
    let mut changes = 0;
    for number in 0..FRAMES as u64 {
        let (frame, _) = pool.begin_read(PageNumber(number)).unwrap_or_else(|| panic!("there is room"));
        pool.end_read(frame, 0, Place::Midpoint, false, Instant(0));
        let next = || {
            changes += 1;
            changes
        };
        assert_eq!(pool.change(PageNumber(number), next, |v| *v += 1), Change::Done);
    }
    let jobs = pool.begin_writes(100, 5);
    assert_eq!(jobs.iter().map(|job| job.number.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(pool.change(PageNumber(2), || 99, |v| *v += 1), Change::Busy(Target::DataFile));
    assert_eq!(pool.touch(PageNumber(2), Instant(9)), Found::Here(1));
    assert!(pool.begin_read(PageNumber(50)).is_none(), "all is dirty or being written");
    jobs.iter().for_each(|job| pool.end_write(job.frame, true));
    assert_eq!(pool.dirty(), FRAMES - 5);
    let fed = pool.begin_feed(100, 100, |number| number.0 != 3);
    assert!(fed.iter().all(|job| job.number.0 < 5 && job.number.0 != 3) && !fed.is_empty());
    assert_eq!(pool.change(fed[0].number, || 100, |v| *v += 1), Change::Busy(Target::Flash));
    pool.end_feed(fed[0].frame);
    assert_eq!(pool.change(fed[0].number, || 100, |v| *v += 1), Change::Done);
}
