//! Redo times, end to end. Goal: every digit R prints, every format read, nothing lost silently. Method: data sets that come with R,
//! whose summaries and tests R users have published; small files of each format with what goes wrong in them.
//!
//! There is no R where this was written. Where each output was published stands beside it.

#![expect(clippy::unwrap_used, reason = "tests")]

use expect_test::{Expect, expect};
use lab::redo::{Format, Reading, RedoError, RedoOptions, Unit, compare, summary};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/redo").join(name)
}

fn options() -> RedoOptions {
    let outlier_ps = lab::redo::parse_time_ps("500ms").unwrap();
    let reading = Reading { format: None, wait: None, unit: None, column: None, outlier_ps, cut_ps: None };
    RedoOptions { reading, json: None, plot: None }
}

fn json() -> RedoOptions {
    RedoOptions { json: Some("-".into()), ..options() }
}

/// A number of a JSON text, by its key; the first one of that name.
fn number(json: &str, key: &str) -> f64 {
    let from = json.find(&format!("\"{key}\":")).unwrap() + key.len() + 3;
    let rest = &json[from..];
    rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
}

fn message(error: &RedoError) -> String {
    error.to_string().replace(&fixture("").display().to_string(), "")
}

/// The lines R prints for `summary(x)`.
fn summary_of(name: &str, column: Option<&str>, expected: [&str; 6]) {
    let mut options = options();
    options.reading.column = column.map(str::to_owned);
    let text = summary(&[fixture(name)], &options).unwrap();
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.contains("Min.")).take(2).collect();
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), expected, "{name}");
}

/// `summary(rivers)`: learnxinyminutes.com/docs/r. `summary(cars$dist)`, `summary(cars$speed)`: R's own `summary(cars)` in the
/// template of every new R Markdown document. `summary(mtcars$mpg)`: any introduction to R.
#[test]
fn summaries_of_r() {
    summary_of("rivers.txt", None, ["135.0", "310.0", "425.0", "591.2", "680.0", "3710.0"]);
    summary_of("cars.txt", Some("dist"), ["2.00", "26.00", "36.00", "42.98", "56.00", "120.00"]);
    summary_of("cars.txt", Some("speed"), ["4.0", "12.0", "15.0", "15.4", "19.0", "25.0"]);
    summary_of("cars.txt", Some("3"), ["2.00", "26.00", "36.00", "42.98", "56.00", "120.00"]);
    summary_of("mtcars-mpg.txt", None, ["10.40", "15.43", "19.20", "20.09", "22.80", "33.90"]);
}

/// What R prints from `t.test` on.
fn test_of(a: &str, b: &str, expected: &Expect) {
    let text = compare(&fixture(a), &fixture(b), &options()).unwrap();
    let from = text.find("t = ").unwrap();
    let to = text.find("\nMean: ").unwrap();
    expected.assert_eq(&text[from..to]);
}

/// `t.test(extra ~ group, data = sleep)`, R's help page of `t.test`; `t.test(mpg ~ am, data = mtcars)` and
/// `t.test(len ~ supp, data = ToothGrowth)`, both in hundreds of published analyses.
#[test]
fn tests_of_r() {
    test_of(
        "sleep-1.txt",
        "sleep-2.txt",
        &expect![[r"
            t = -1.8608, df = 17.776, p-value = 0.07939
            alternative hypothesis: true difference in means is not equal to 0
            95 percent confidence interval:
             -3.3654832  0.2054832
            sample estimates:
            mean of x mean of y
                 0.75      2.33
        "]],
    );
    test_of(
        "mtcars-mpg-am0.txt",
        "mtcars-mpg-am1.txt",
        &expect![[r"
            t = -3.7671, df = 18.332, p-value = 0.001374
            alternative hypothesis: true difference in means is not equal to 0
            95 percent confidence interval:
             -11.280194  -3.209684
            sample estimates:
            mean of x mean of y
             17.14737  24.39231
        "]],
    );
    test_of(
        "tooth-growth-oj.txt",
        "tooth-growth-vc.txt",
        &expect![[r"
            t = 1.9153, df = 55.309, p-value = 0.06063
            alternative hypothesis: true difference in means is not equal to 0
            95 percent confidence interval:
             -0.1710156  7.5710156
            sample estimates:
            mean of x mean of y
             20.66333  16.96333
        "]],
    );
}

/// The same to the digits R keeps: sleep from the tests of the R package parameters, the p-values 0.001373638 (mtcars) and
/// 6.063451e-02 (ToothGrowth) as published with `$p.value`.
#[test]
fn json_has_all_digits() {
    let text = compare(&fixture("sleep-1.txt"), &fixture("sleep-2.txt"), &json()).unwrap();
    for (key, expected) in [
        ("t", -1.860_813_467_486_85),
        ("df", 17.776_473_516_178_5),
        ("p_value", 0.079_394_140_187_358_2),
        ("ci_low", -3.365_483_230_711_71),
        ("ci_high", 0.205_483_230_711_71),
    ] {
        let ours = number(&text, key);
        assert!((ours - expected).abs() < 1e-12 * expected.abs(), "{key}: {ours:?} {expected:?}");
    }
    let p = |a: &str, b: &str| number(&compare(&fixture(a), &fixture(b), &json()).unwrap(), "p_value");
    assert_eq!(format!("{:.9}", p("mtcars-mpg-am0.txt", "mtcars-mpg-am1.txt")), "0.001373638");
    assert_eq!(format!("{:.6e}", p("tooth-growth-oj.txt", "tooth-growth-vc.txt")), "6.063451e-2");
    let text = summary(&[fixture("mtcars-mpg.txt")], &json()).unwrap();
    for (key, expected) in [("count", 32.0), ("q1", 15.425), ("median", 19.2), ("mean", 20.090_625), ("max", 33.9)] {
        assert_eq!(number(&text, key), expected, "{key}");
    }
}

/// Commits among other lines, one that is broken, one that the size limit cut, one that the file's end cut.
#[test]
fn a_trace_of_oracle() {
    let text = summary(&[fixture("session.trc")], &options()).unwrap().replace(&fixture("").display().to_string(), "");
    expect![[r"
        session.trc: 10046 trace 'log file sync', 4 times, in us

            Min.  1st Qu.   Median     Mean  3rd Qu.     Max.
           452.0    488.0    533.5 203466.0 203511.5 812345.0

        | percentile |       us | times above |
        |------------|---------:|------------:|
        | 90%        | 568811.6 |           0 |
        | 95%        | 690578.3 |           0 |
        | 99%        | 787991.7 |           0 |
        | 99.9%      | 809909.7 |           0 |
        | 99.99%     | 812101.5 |           0 |
        | 99.999%    | 812320.6 |           0 |

        Standard deviation 405919.3. Outliers (above 500 ms): 1 of 4.
        Malformed, not counted: 3 lines.
          session.trc:16: not a number
          session.trc:18: no time after the name of the wait
          session.trc:19: the file ends within the line
    "]]
    .assert_eq(&text);

    let mut other = json();
    other.reading.wait = Some("DB file sequential read".to_owned());
    assert_eq!(number(&summary(&[fixture("session.trc")], &other).unwrap(), "median"), 4127.0);
    // Two files are one sample.
    let two = summary(&[fixture("session.trc"), fixture("session.trc")], &json()).unwrap();
    assert_eq!((number(&two, "count"), number(&two, "files"), number(&two, "malformed")), (8.0, 2.0, 6.0));

    // Hundredths of a second, and microseconds that are 1,024 ns.
    for (unit, median) in [(Unit::Cs, 5_335_000.0), (Unit::Ns1024, 546.304)] {
        let mut options = json();
        options.reading.unit = Some(unit);
        assert_eq!(number(&summary(&[fixture("session.trc")], &options).unwrap(), "median"), median);
    }
}

#[test]
fn a_wait_that_is_not_there() {
    let mut options = options();
    options.reading.wait = Some("log file parallel write".to_owned());
    let error = summary(&[fixture("session.trc")], &options).unwrap_err();
    expect![[r"
        session.trc: no time of 'log file parallel write', but of these:
        | wait                        | count | time s |
        |-----------------------------|------:|-------:|
        | log file sync               |     4 |  0.813 |
        | db file sequential read     |     1 |  0.004 |
        | SQL*Net message from client |     1 |  0.000 |
        | SQL*Net message to client   |     1 |  0.000 |
        hint: choose with --wait NAME"]]
    .assert_eq(&message(&error));
}

#[test]
fn a_log_of_fio() {
    let text = summary(&[fixture("fio_clat.1.log")], &json()).unwrap();
    assert_eq!((number(&text, "count"), number(&text, "malformed")), (3.0, 1.0));
    assert_eq!((number(&text, "min"), number(&text, "median")), (6.319, 6.369));
    let mut reads = json();
    reads.reading.wait = Some("read".to_owned());
    assert_eq!(number(&summary(&[fixture("fio_clat.1.log")], &reads).unwrap(), "median"), 58.757);
    let dir = tempfile::tempdir().unwrap();
    let bandwidth = dir.path().join("x_bw.1.log");
    std::fs::copy(fixture("fio_clat.1.log"), &bandwidth).unwrap();
    assert!(matches!(summary(&[bandwidth], &options()), Err(RedoError::NotLatency { .. })));
}

#[test]
fn a_capture_of_our_own() {
    let text = summary(&[fixture("capture.txt")], &json()).unwrap();
    assert_eq!((number(&text, "count"), number(&text, "malformed")), (3.0, 1.0));
    assert_eq!((number(&text, "min"), number(&text, "median"), number(&text, "max")), (452.0, 500.25, 567.0));
    for (wait, count) in [("flash-first", 1.0), ("failed", 1.0)] {
        let mut options = json();
        options.reading.wait = Some(wait.to_owned());
        assert_eq!(number(&summary(&[fixture("capture.txt")], &options).unwrap(), "count"), count, "{wait}");
    }
    let mut unit = options();
    unit.reading.unit = Some(Unit::Us);
    assert!(matches!(summary(&[fixture("capture.txt")], &unit), Err(RedoError::OwnUnit { .. })));
    let dir = tempfile::tempdir().unwrap();
    let newer = dir.path().join("newer");
    std::fs::write(&newer, "# flashcell redo capture v2\ntime_ns,x\n1,2\n").unwrap();
    assert!(matches!(summary(&[newer], &options()), Err(RedoError::Version { version: 2, .. })));
}

#[test]
fn messages() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let told = |path: &Path, change: &dyn Fn(&mut Reading)| {
        let mut options = options();
        change(&mut options.reading);
        let error = summary(&[path.to_owned()], &options).unwrap_err();
        message(&error).replace(&format!("{}/", dir.path().display()), "")
    };
    let as_is = |_: &mut Reading| {};
    let text = [
        told(&file("empty", ""), &as_is),
        told(&file("words", "some text\n"), &as_is),
        told(&file("forced", "WAIT #1: nam='x' ela= -5 p1=0\n"), &as_is),
        told(&file("two", "1,2\n"), &as_is),
        told(&file("one", "1\n"), &|r| r.column = Some("x".to_owned())),
        told(&file("plain", "1\n"), &|r| r.wait = Some("write".to_owned())),
        told(&file("long", "5000\n"), &|r| r.cut_ps = Some(4_000_000_000)),
        told(&file("asked", "1\n"), &|r| r.format = Some(Format::Oracle)),
        told(&dir.path().join("missing"), &as_is),
        told(&file("names", "# only a remark\nx\n"), &|r| r.format = Some(Format::Columns)),
    ];
    expect![[r#"
        empty: neither a 10046 trace nor a latency log of fio, a capture, or numbers in columns
        hint: name the format with --format
        words: neither a 10046 trace nor a latency log of fio, a capture, or numbers in columns
        hint: name the format with --format
        forced: no times in it (malformed lines: 1; forced:1: a time below zero)
        hint: --format names another format; event 10046 records waits at levels 8 and 12
        two: several columns: 1, 2
        hint: --column NAME, or its number from 1
        one: no column x
        hint: one of 1
        plain: columns do not say what was waited for
        hint: --column NAME chooses one
        long: all 1 times are above the cut
        hint: a larger --cut
        asked: no times in it (malformed lines: 0)
        hint: --format names another format; event 10046 records waits at levels 8 and 12
        missing: No such file or directory (os error 2)
        names: no times in it (malformed lines: 0)
        hint: --format names another format; event 10046 records waits at levels 8 and 12"#]]
    .assert_eq(&text.join("\n"));
    let twice = compare(Path::new("-"), Path::new("-"), &options());
    assert!(matches!(twice, Err(RedoError::StdinTwice)));
}

/// A directory stands for the traces in it, packed files for what is in them.
#[test]
fn directories_and_packed_files() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(summary(&[dir.path().to_owned()], &options()), Err(RedoError::Directory { .. })));
    for name in ["b.trc", "a.trc"] {
        std::fs::copy(fixture("session.trc"), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("alert.log"), "ORA-00600\n").unwrap();
    std::fs::write(dir.path().join("idle.trc"), "*** 2011-01-19 09:56:00.761\n").unwrap();
    let text = summary(&[dir.path().to_owned()], &json()).unwrap();
    assert_eq!((number(&text, "count"), number(&text, "files")), (8.0, 3.0));
    let packed = dir.path().join("times.gz");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, b"452\n500\n").unwrap();
    std::fs::write(&packed, encoder.finish().unwrap()).unwrap();
    assert_eq!(number(&summary(&[packed], &json()).unwrap(), "mean"), 476.0);
}

/// Both sides, what was left out, and the sentences; the picture and the JSON beside the text.
#[test]
fn a_comparison() {
    let dir = tempfile::tempdir().unwrap();
    let sample = |name: &str, add: u64, stall: u64| {
        let mut text = String::new();
        for i in 0..20_000_u64 {
            // Most near 500 us, some ten times that; one in a thousand stalls.
            let us = if i % 1000 == 7 { stall } else { 400 + add + i * 7919 % 200 + 4500 * u64::from(i % 100 == 0) };
            text.push_str(&format!("{us}\n"));
        }
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (on, off) = (sample("on", 33, 3999), sample("off", 0, 800_000));
    let mut options = options();
    options.json = Some(dir.path().join("out.json"));
    options.plot = Some(dir.path().join("out.svg"));
    let text = compare(&on, &off, &options).unwrap();
    expect![[r#"
        A: on: column, 20000 times, in us

           Min. 1st Qu.  Median    Mean 3rd Qu.    Max.
            434     484     535     581     585    5033

        Standard deviation 459.3969. Outliers (above 500 ms): 0 of 20000.

        B: off: column, 20000 times, in us

           Min. 1st Qu.  Median    Mean 3rd Qu.    Max.
            401     451     502    1344     552  800000

        Standard deviation 25272.93. Outliers (above 500 ms): 20 of 20000.

        |         |    A us |     B us |   A to B |
        |---------|--------:|---------:|---------:|
        | median  |     535 |      502 |  +6.57 % |
        | mean    | 581.033 | 1344.067 | -56.77 % |
        | 90%     |     615 |      582 |  +5.67 % |
        | 95%     |     625 |      592 |  +5.57 % |
        | 99%     | 4008.34 |     4900 | -18.20 % |
        | 99.9%   |    5033 |     5795 | -13.15 % |
        | 99.99%  |    5033 |   800000 | -99.37 % |
        | 99.999% |    5033 |   800000 | -99.37 % |

        	Welch Two Sample t-test

        data:  on and off
        t = -4.2691, df = 20012, p-value = 1.972e-05
        alternative hypothesis: true difference in means is not equal to 0
        95 percent confidence interval:
         -1113.3716  -412.6964
        sample estimates:
        mean of x mean of y
          581.033  1344.067

        Mean: A's mean is 763 us lower (56.77 % of B's); 95 % interval of A - B: -82.84 to -30.71 %; more than 0.5 %, so it matters.
        Tail: 99.9% is 5033 us in A and 5795 us in B; outliers: 0 in A, 20 in B.
        Verdict: A is better, in the mean and in the tail.
    "#]].assert_eq(&text);
    let json = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    assert!(json.contains("\"better\":\"a\"") && json.starts_with("{\"a\":{\"count\":20000,"), "{json}");
    let svg = std::fs::read_to_string(dir.path().join("out.svg")).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 4);

    // Cut at 4 ms, as the field's data were, the tail is gone from sight, and the text says so.
    options.reading.cut_ps = Some(4_000_000_000);
    let text = compare(&on, &off, &options).unwrap();
    assert!(text.contains("Left out: 220 times above 4 ms."), "{text}");
    assert!(text.contains("Verdict: B is better"), "{text}");
}
