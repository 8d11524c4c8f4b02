//! The store keeps what it was given within its bounds, and a damaged file never stops anybody. Method: real files.

use super::*;

const DAY_NS: u64 = 86_400_000_000_000;
const LIMITS: Limits = Limits { days: 7, size_bytes: SIZE_BYTES_MIN };

fn at(minute: u64) -> Moment {
    Moment { life: 1, mono_ns: minute * 60_000_000_000, wall_ns: 100 * DAY_NS + minute * 60_000_000_000 }
}

fn all(store: &Store) -> Vec<(u64, Vec<(String, u64)>)> {
    let mut found = Vec::new();
    store
        .walk(|series| {
            let names: BTreeMap<u32, String> =
                series.iter().map(|((name, object), id)| (*id, format!("{name}.{object}"))).collect();
            let found = &mut found;
            move |reading: Reading| {
                let values = reading.values.iter().map(|(id, value)| (names[id].clone(), *value)).collect();
                found.push((reading.at.mono_ns / 60_000_000_000, values));
                ControlFlow::Continue(())
            }
        })
        .unwrap();
    found
}

#[test]
fn readings_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    for minute in 0..3 {
        let store = Store::open(dir.path(), LIMITS);
        store.keep(at(minute), &[("B", "y", 2 * minute), ("A", "x", minute)]).unwrap();
        assert!(store.notes().is_empty());
    }
    let store = Store::open(dir.path(), LIMITS);
    let pair = |a: u64| vec![("B.y".to_owned(), 2 * a), ("A.x".to_owned(), a)];
    assert_eq!(all(&store), [(0, pair(0)), (1, pair(1)), (2, pair(2))]);
    store.write_alerts(&[(7, b"seven".to_vec()), (8, b"eight".to_vec())], &[]).unwrap();
    store.write_alerts(&[], &[7]).unwrap();
    drop(store);
    assert_eq!(Store::open(dir.path(), LIMITS).alerts().unwrap(), [(8, b"eight".to_vec())]);
}

#[test]
fn old_readings_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), LIMITS);
    store.keep(at(0), &[("A", "x", 1)]).unwrap();
    store.keep(at(7 * 24 * 60), &[("A", "x", 2)]).unwrap();
    assert_eq!(all(&store).len(), 2, "seven days to the minute");
    store.keep(at(7 * 24 * 60 + 1), &[("A", "x", 3)]).unwrap();
    assert_eq!(all(&store).iter().map(|(_, values)| values[0].1).collect::<Vec<_>>(), [2, 3]);
    store.keep_for(1, BTreeSet::new());
    store.keep(at(9 * 24 * 60), &[("A", "x", 4)]).unwrap();
    assert_eq!(all(&store).len(), 1);
}

#[test]
fn some_metrics_are_kept_for_a_year() {
    let dir = tempfile::tempdir().unwrap();
    let day = |n: u64| at(n * 24 * 60);
    let store = Store::open(dir.path(), LIMITS);
    store.keep_for(7, BTreeSet::from(["A"]));
    for n in 0..5 {
        store.keep(day(n), &[("A", "x", n), ("B", "x", n)]).unwrap();
    }
    let names = |store: &Store| all(store).into_iter().map(|(_, values)| values.len()).collect::<Vec<_>>();
    store.keep(day(9), &[("A", "x", 9), ("B", "x", 9)]).unwrap();
    assert_eq!(names(&store), [1, 1, 2, 2, 2, 2], "those of the first two days are old");
    // What was thinned stays so, in this run and the next.
    drop(store);
    let store = Store::open(dir.path(), LIMITS);
    store.keep_for(7, BTreeSet::from(["A"]));
    store.keep(day(11), &[("A", "x", 11), ("B", "x", 11)]).unwrap();
    assert_eq!(names(&store), [1, 1, 1, 1, 2, 2, 2]);
    assert!(all(&store)[..4].iter().all(|(_, values)| values[0].0 == "A.x"));
    store.keep(day(ANNUAL_DAYS + 1), &[("A", "x", 0), ("B", "x", 0)]).unwrap();
    assert_eq!(all(&store).first().unwrap().0, 24 * 60, "a year to the minute");
    // Nothing is annual any more.
    store.keep_for(7, BTreeSet::new());
    store.keep(day(ANNUAL_DAYS + 2), &[("A", "x", 0)]).unwrap();
    assert_eq!(names(&store), [2, 1]);
}

/// Values that take all their bytes, for much longer than fit.
#[test]
fn the_file_keeps_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), LIMITS);
    let names: Vec<String> = (0..8000).map(|n| format!("M{n}")).collect();
    for minute in 0..150 {
        let values: Vec<_> = names.iter().map(|name| (name.as_str(), "x", u64::MAX - minute)).collect();
        store.keep(at(minute), &values).unwrap();
        assert!(std::fs::metadata(dir.path().join(FILE_NAME)).unwrap().len() <= SIZE_BYTES_MIN);
    }
    assert_eq!(store.notes(), Vec::<String>::new(), "no file was given up for it");
    let kept = all(&store);
    assert_eq!(kept.last().unwrap().0, 149, "the newest is there");
    assert!((30..100).contains(&kept.len()), "{} readings of 90 kB in 4.8 MB", kept.len());
}

#[test]
fn a_file_that_cannot_be_used_is_set_aside() {
    for (what, damage) in [
        ("empty", Vec::new()),
        ("short", vec![7; 100]),
        ("rubbish", (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE_NAME), &damage).unwrap();
        let store = Store::open(dir.path(), LIMITS);
        store.keep(at(1), &[("A", "x", 1)]).unwrap();
        assert_eq!(all(&store).len(), 1, "{what}");
        let notes = store.notes();
        let is_told = notes.len() == 1 && notes[0].contains("set aside");
        assert!(is_told || damage.is_empty(), "{what}: {notes:?}");
        assert!(damage.is_empty() || std::fs::read(dir.path().join(ASIDE_NAME)).unwrap() == damage, "{what}");
    }
}

/// A page of a good file overwritten, each in turn, and the file cut short: whatever comes of it, the store works afterwards.
#[test]
fn damage_anywhere_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let store = Store::open(dir.path(), LIMITS);
    for minute in 0..20 {
        let names: Vec<String> = (0..500).map(|n| format!("M{n}")).collect();
        let values: Vec<_> = names.iter().map(|name| (name.as_str(), "x", minute)).collect();
        store.keep(at(minute), &values).unwrap();
    }
    drop(store);
    let good = std::fs::read(&path).unwrap();
    let pages = good.len() / 4096;
    for page in (0..pages).step_by(pages.div_ceil(60)) {
        for cut in [false, true] {
            let mut bad = good.clone();
            if cut {
                bad.truncate(page * 4096 + 100);
            } else {
                bad[page * 4096..(page + 1) * 4096].iter_mut().for_each(|byte| *byte ^= 0x5a);
            }
            std::fs::write(&path, &bad).unwrap();
            let store = Store::open(dir.path(), LIMITS);
            let _ = store.walk(|_| |_: Reading| ControlFlow::Continue(()));
            store.keep(at(100), &[("A", "x", 1)]).unwrap();
            assert_eq!(all(&store).last().unwrap().0, 100, "page {page}, cut {cut}");
        }
    }
}

#[test]
fn a_walk_does_not_wait_for_a_file_that_is_held_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), LIMITS);
    store.keep(at(1), &[("A", "x", 1)]).unwrap();
    let held_up = lock(&store.state);
    let walked = store.walk_within(Duration::ZERO, |_| |_: Reading| ControlFlow::Continue(()));
    assert!(matches!(walked, Err(WalkError::InUse)), "{walked:?}");
    drop(held_up);
    assert_eq!(all(&store).len(), 1);
}

#[test]
fn without_a_directory_nothing_is_kept_and_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let store = Store::open(&gone, LIMITS);
    for minute in 0..3 {
        assert!(store.keep(at(minute), &[("A", "x", 1)]).is_err());
    }
    assert_eq!(store.notes().len(), 1);
    std::fs::create_dir(&gone).unwrap();
    store.keep(at(3), &[("A", "x", 1)]).unwrap();
}
