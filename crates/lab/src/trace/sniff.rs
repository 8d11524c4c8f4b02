//! Which format some bytes are of. Looks at the beginning only, never fails, never panics.

use super::text::{decimal, number, op_of};
use super::{Format, capture};

/// Lines that have to be alike.
const LINES_LOOKED_AT: usize = 200;

/// The format of a file that begins so.
pub(super) fn format_of(head: &[u8]) -> Option<Format> {
    if head.starts_with(&[0x25, 0x60, 0x95, 0x13]) {
        return Some(Format::Nbd);
    }
    if capture::is_capture(head) {
        return Some(Format::Capture);
    }
    if head.starts_with(b"fio version ") {
        return Some(Format::FioLog);
    }
    if head.iter().take(64).any(|b| *b == 0) {
        return vscsi(head);
    }
    // The last line may be cut.
    let cut = head.iter().rposition(|b| *b == b'\n').map_or(head.len(), |at| at + 1);
    let lines = head[..cut].split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<&[u8]> = lines.filter(|l| !l.is_empty() && !l.starts_with(b"#")).take(LINES_LOOKED_AT).collect();
    let first = *lines.first()?;
    let all = |test: &dyn Fn(&[u8]) -> bool| lines.iter().all(|line| test(line));
    if all(&|line| line == b"*" || number(line).is_some()) {
        return Some(Format::Lirs);
    }
    let words = |line: &[u8]| -> Vec<Vec<u8>> {
        line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).map(<[u8]>::to_vec).collect()
    };
    if blkparse_like(&words(first)) {
        return Some(Format::Blkparse);
    }
    if first.contains(&b',') {
        return csv(first);
    }
    if all(&|line| words(line).len() == 4 && words(line).iter().all(|w| number(w).is_some())) {
        return Some(Format::Lis);
    }
    let five = |line: &[u8]| {
        let words = words(line);
        words.len() >= 5 && decimal(&words[0]).is_some() && words[2..4].iter().all(|w| number(w).is_some())
    };
    if !all(&five) {
        return None;
    }
    if all(&|line| number(&words(line)[4]).is_some()) {
        // Bytes come in whole sectors; counts of sectors hardly all do.
        let whole = |word: &[u8]| number(word).is_some_and(|n| n % 512 == 0);
        let bytes = all(&|line| whole(&words(line)[2]) && whole(&words(line)[3]));
        return Some(if bytes { Format::DiskSimBytes } else { Format::DiskSim });
    }
    all(&|line| op_of(&words(line)[4]).is_some()).then_some(Format::Spelled)
}

fn blkparse_like(words: &[Vec<u8>]) -> bool {
    words.len() >= 7
        && words[0].contains(&b',')
        && words[0].iter().all(|b| b.is_ascii_digit() || *b == b',')
        && words[1..3].iter().all(|w| number(w).is_some())
        && decimal(&words[3]).is_some()
}

fn csv(first: &[u8]) -> Option<Format> {
    let fields: Vec<&[u8]> = first.split(|b| *b == b',').map(<[u8]>::trim_ascii).collect();
    let named = decimal(fields[0]).is_none() && number(fields[0]).is_none();
    if named {
        return Some(Format::Csv);
    }
    let msr = fields.len() >= 7
        && matches!(fields[3].to_ascii_lowercase().as_slice(), b"read" | b"write")
        && fields[4..6].iter().all(|f| number(f).is_some());
    if msr {
        return Some(Format::Msr);
    }
    (fields.len() >= 3 && fields[1..3].iter().all(|f| number(f).is_some())).then_some(Format::Csv)
}

fn vscsi(head: &[u8]) -> Option<Format> {
    let version_of = |record: &[u8], at: usize| record.get(at + 1).copied();
    let all = |bytes: usize, at: usize, version: u8| {
        let records: Vec<&[u8]> = head.chunks_exact(bytes).take(LINES_LOOKED_AT).collect();
        !records.is_empty() && records.iter().all(|r| version_of(r, at) == Some(version))
    };
    if all(32, 14, 1) {
        return Some(Format::Vscsi1);
    }
    all(40, 2, 2).then_some(Format::Vscsi2)
}
