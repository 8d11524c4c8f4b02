//! Goal: the report is whole, whatever is in it. Method: short runs of every experiment and rows with hostile names, read by a checker of tags
//! that knows nothing of what wrote them.
#![expect(clippy::unwrap_used, reason = "tests")]

use super::super::chart::{Axis, Bar, Bars, Chart, Curve, Curves};
use super::super::told::Told;
use super::super::{Experiment, RunOptions, run};
use super::page;
use crate::output::escaped;

/// What is wrong with it as XML: tags that are not closed, attributes without quotes, ampersands that begin nothing.
fn check(text: &str) -> Result<usize, String> {
    let (mut open, mut tags): (Vec<&str>, usize) = (Vec::new(), 0);
    let mut rest = text.strip_prefix("<!DOCTYPE html>").ok_or("no doctype")?;
    while let Some(at) = rest.find('<') {
        entities(&rest[..at])?;
        let end = rest[at..].find('>').ok_or("a tag that does not end")? + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        tags += 1;
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop().ok_or(format!("</{name}> closes nothing"))?;
            if last != name {
                return Err(format!("</{name}> closes <{last}>"));
            }
            continue;
        }
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        entities(attributes)?;
        let mut attributes = attributes.trim_end_matches('/');
        while let Some((key, after)) = attributes.split_once("=\"") {
            let (value, others) = after.split_once('"').ok_or(format!("{tag}: no end of {key}"))?;
            if key.trim().contains([' ', '"']) || value.contains('<') {
                return Err(format!("{tag}: {key}"));
            }
            attributes = others;
        }
        if !attributes.trim().is_empty() {
            return Err(format!("{tag}: {attributes}"));
        }
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    match open.last() {
        Some(name) => Err(format!("<{name}> is not closed")),
        None if rest.trim().is_empty() => Ok(tags),
        None => Err("text behind the end".to_owned()),
    }
}

fn entities(text: &str) -> Result<(), String> {
    let known = ["amp;", "lt;", "gt;", "quot;", "#160;"];
    match text.split('&').skip(1).find(|after| !known.iter().any(|entity| after.starts_with(entity))) {
        Some(after) => Err(format!("&{after}")),
        None => Ok(()),
    }
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let doc = |body: &str| check(&format!("<!DOCTYPE html><a>{body}</a>"));
    assert_eq!(doc("x &lt; y <b c=\"1\" d=\"2\"/>"), Ok(3));
    for wrong in ["<b>", "</b>", "<b></c>", "<b c=1/>", "<b c=\"1/>", "a & b", "<b", "<b c=\"<\"/>"] {
        assert!(doc(wrong).is_err(), "{wrong}");
    }
}

/// Goal: every experiment is in the report, and the same seed gives the same bytes. Method: all of them with little to do, twice.
#[test]
fn a_short_run_of_everything_is_whole_and_repeatable() {
    let directory = tempfile::tempdir().unwrap();
    let run_once = |name: &str| {
        let path = |end: &str| directory.path().join(format!("{name}.{end}"));
        let options = RunOptions {
            all: true,
            seed: 1,
            syncs: Some(400),
            sessions: vec![10],
            json: Some(path("json")),
            report: Some(path("html")),
            ..RunOptions::default()
        };
        let (text, _) = run(&options).unwrap();
        let read = |end: &str| std::fs::read_to_string(path(end)).unwrap();
        (text, read("json"), read("html"))
    };
    let first = run_once("a");
    let (text, json, html) = &first;
    check(html).unwrap_or_else(|wrong| panic!("{wrong}"));
    for (name, ..) in super::super::EXPERIMENTS {
        assert!(html.contains(&format!("<h2 id=\"{name}\">")) && html.contains(&format!("href=\"#{name}\"")), "{name}");
        assert!(json.contains(&format!("\"experiment\":\"{name}\"")), "{name}");
        assert!(text.contains(&format!("{name}: ")), "{name}");
    }
    assert!(!html.contains("NaN") && !html.contains("inf%"), "no figure is no number");
    assert!(!html.contains("http"), "it needs nothing else");
    assert!(first == run_once("b"), "the same seed, other bytes");
}

/// A page of charts that nobody would draw.
#[test]
fn names_and_figures_do_not_break_out() {
    let name = "<b a=\"1\">&amp; \"x\"</b>".to_owned();
    let axis = || Axis { name: name.clone(), ..Axis::linear("", 0.0) };
    let bar = |parts: Vec<f64>, field| Bar { name: name.clone(), note: name.clone(), parts, field };
    let bars = Bars {
        title: name.clone(),
        unit: "s",
        mark: "<&>",
        kinds: vec!["a<b", "c"],
        bars: vec![bar(vec![0.0, 0.0], None), bar(vec![], Some(3.0)), bar(vec![1e9, 1e-9], Some(1e12))],
    };
    let curve = |points| Curve { name: name.clone(), points };
    let curves = |dots| {
        let curves = vec![curve(Vec::new()), curve(vec![(0.0, 0.0)]), curve(vec![(0.0, 0.0), (0.5, 1.0), (1.0, 0.5)])];
        Chart::Curves(Curves { title: name.clone(), x: axis(), y: axis(), curves, dots, has_tops: !dots })
    };
    let told = Told {
        lines: vec![vec![name.clone()], vec![name.clone()]],
        words: vec![0],
        objects: Vec::new(),
        charts: vec![Chart::Bars(bars), curves(true), curves(false)],
        verdicts: [0, 0],
    };
    let experiment = Experiment { told, bounds: Vec::new(), notes: name.clone() };
    let html = page(&[("<i>", &name, experiment)], 1);
    check(&html).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(!html.contains("<b a=") && html.contains(&escaped(&name)));
}

#[test]
fn marks_are_few_and_plain() {
    for (high, marks) in [(1.0, "0 0.2 0.4 0.6 0.8 1"), (3_289.0, "0 1000 2000 3000"), (0.07, "0 0.02 0.04 0.06")] {
        let names: Vec<String> = Axis::linear("", high).marks.into_iter().map(|(_, name)| name).collect();
        assert_eq!(names.join(" "), marks);
    }
}
