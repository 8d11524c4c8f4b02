//! Which format some bytes are of. Looks at the beginning only, never fails, never panics.

use super::columns::{NAMES_ALIBABA, NAMES_CLOUDPHYSICS, NAMES_SPC, NAMES_TENCENT, names_of};
use super::text::{decimal, number, op_of, scaled_ns};
use super::{Format, Told, binary, capture, kernel};

/// Lines that have to be alike.
const LINES_LOOKED_AT: usize = 200;

/// Seconds since 1970 that a trace may begin at: 2001 to 2033.
const UNIX_SECONDS: std::ops::Range<u64> = 1_000_000_000..2_000_000_000;

/// The format of a file that begins so.
pub(super) fn format_of(head: &[u8]) -> Told {
    match sure_of(head) {
        Ok(Some(format)) => Told::As(format),
        Ok(None) => Told::Nothing,
        Err((what, hint)) => Told::Either { what, hint },
    }
}

/// What it could be, and what settles it.
type Ambiguous = (&'static str, &'static str);

fn sure_of(head: &[u8]) -> Result<Option<Format>, Ambiguous> {
    if head.starts_with(&[0x25, 0x60, 0x95, 0x13]) {
        return Ok(Some(Format::Nbd));
    }
    if capture::is_capture(head) {
        return Ok(Some(Format::Capture));
    }
    if head.starts_with(b"fio version ") {
        return Ok(Some(Format::FioLog));
    }
    if head.iter().take(64).any(|b| *b == 0) {
        if binary::blktrace_little(head).is_some() {
            return Ok(Some(Format::Blktrace));
        }
        return Ok(vscsi(head).or_else(|| oracle(head)));
    }
    // The last line may be cut.
    let cut = head.iter().rposition(|b| *b == b'\n').map_or(head.len(), |at| at + 1);
    let lines = head[..cut].split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<&[u8]> = lines.filter(|l| !l.is_empty() && !l.starts_with(b"#")).take(LINES_LOOKED_AT).collect();
    if kernel::event_among(head[..cut].split(|b| *b == b'\n').filter(|line| !line.starts_with(b"#"))).is_some() {
        return Ok(Some(Format::Ftrace));
    }
    let Some(&first) = lines.first() else { return Ok(None) };
    if kernel::biosnoop_names(first).is_some() {
        return Ok(Some(Format::Biosnoop));
    }
    let all = |test: &dyn Fn(&[u8]) -> bool| lines.iter().all(|line| test(line));
    if all(&|line| line == b"*" || number(line).is_some()) {
        return Ok(Some(Format::Lirs));
    }
    let words = |line: &[u8]| -> Vec<Vec<u8>> {
        line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).map(<[u8]>::to_vec).collect()
    };
    if blkparse_like(&words(first)) {
        return Ok(Some(Format::Blkparse));
    }
    if first.contains(&b',') {
        return csv(&lines);
    }
    if all(&|line| words(line).len() == 4 && words(line).iter().all(|w| number(w).is_some())) {
        return Ok(Some(Format::Lis));
    }
    let five = |line: &[u8]| {
        let words = words(line);
        words.len() >= 5 && decimal(&words[0]).is_some() && words[2..4].iter().all(|w| number(w).is_some())
    };
    if !all(&five) {
        return Ok(None);
    }
    if all(&|line| number(&words(line)[4]).is_some()) {
        // Bytes come in whole sectors; counts of sectors hardly all do.
        let whole = |word: &[u8]| number(word).is_some_and(|n| n % 512 == 0);
        let bytes = all(&|line| whole(&words(line)[2]) && whole(&words(line)[3]));
        return Ok(Some(if bytes { Format::DiskSimBytes } else { Format::DiskSim }));
    }
    Ok(all(&|line| op_of(&words(line)[4]).is_some()).then_some(Format::Spelled))
}

fn blkparse_like(words: &[Vec<u8>]) -> bool {
    words.len() >= 7
        && words[0].contains(&b',')
        && words[0].iter().all(|b| b.is_ascii_digit() || *b == b',')
        && words[1..3].iter().all(|w| number(w).is_some())
        && decimal(&words[3]).is_some()
}

fn csv(lines: &[&[u8]]) -> Result<Option<Format>, Ambiguous> {
    let Some(&first) = lines.first() else { return Ok(None) };
    let fields_of = |line: &'_ [u8]| -> Vec<Vec<u8>> {
        line.split(|b| *b == b',').map(|field| field.trim_ascii().to_vec()).collect()
    };
    let fields = fields_of(first);
    if decimal(&fields[0]).is_none() && number(&fields[0]).is_none() {
        let names = names_of(first);
        let object = names.split(',').any(|name| matches!(name, "obj_id" | "object" | "object_id"));
        let msr = lines.iter().all(|line| is_msr(&fields_of(line)));
        return Ok(Some(match names.as_str() {
            _ if msr => Format::Msr,
            NAMES_ALIBABA => Format::Alibaba,
            NAMES_TENCENT => Format::Tencent,
            NAMES_SPC => Format::Spc,
            NAMES_CLOUDPHYSICS => Format::CloudPhysicsCsv,
            _ if object => Format::LibCacheSimCsv,
            _ => Format::Csv,
        }));
    }
    let all = |test: &dyn Fn(&[Vec<u8>]) -> bool| lines.iter().all(|line| test(&fields_of(line)));
    if all(&|fields| is_msr(fields)) {
        return Ok(Some(Format::Msr));
    }
    let letter = |field: &[u8]| matches!(field.to_ascii_lowercase().as_slice(), b"r" | b"w" | b"read" | b"write");
    let numbers =
        |fields: &[Vec<u8>], at: &[usize]| at.iter().all(|at| fields.get(*at).is_some_and(|f| number(f).is_some()));
    if all(&|fields| fields.len() == 5 && letter(&fields[1]) && numbers(fields, &[0, 2, 3, 4])) {
        return Ok(Some(Format::Alibaba));
    }
    // An ASU is a small number; so may a time be. The time of SPC stands behind, in seconds with a fraction.
    let spc = |fields: &[Vec<u8>]| {
        fields.len() >= 5
            && letter(&fields[3])
            && numbers(fields, &[0, 1, 2])
            && number(&fields[0]).is_some_and(|asu| asu < 1000)
            && scaled_ns(&fields[4], 1).is_some()
    };
    if all(&spc) {
        return Ok(Some(Format::Spc));
    }
    let lettered = |fields: &[Vec<u8>]| fields.len() >= 4 && numbers(fields, &[1, 2]) && decimal(&fields[0]).is_some();
    let op = |fields: &[Vec<u8>]| op_of(&fields[3]).is_some() && number(&fields[3]).is_none_or(|code| code > 1);
    if all(&|fields| lettered(fields) && op(fields)) && all(&|fields| fields.len() == 4) {
        return Ok(Some(Format::Csv));
    }
    let five = |fields: &[Vec<u8>]| fields.len() == 5 && numbers(fields, &[0, 1, 2, 3, 4]);
    let at = |fields: &[Vec<u8>], n: usize| number(&fields[n]).unwrap_or(u64::MAX);
    if all(&five) {
        let seconds = all(&|fields| UNIX_SECONDS.contains(&at(fields, 0)) && at(fields, 3) <= 1);
        let commands = all(&|fields| (1..=2).contains(&at(fields, 0)) && at(fields, 2) < 256);
        let moves = lines.iter().any(|line| matches!(at(&fields_of(line), 2), 0x28 | 0x2a | 0x88 | 0x8a));
        if seconds {
            return Ok(Some(Format::Tencent));
        }
        if commands && moves {
            return Ok(Some(Format::CloudPhysicsCsv));
        }
    }
    Err((
        "columns without names, which could be addresses in bytes, in sectors, or names of objects",
        "--format csv (time,LBA in sectors,bytes,R|W), libcachesim-csv (time,object,size), tencent, alibaba, spc, cloudphysics-csv; \
         or --columns offset=2:sectors,bytes=3,op=4:r0",
    ))
}

fn is_msr(fields: &[Vec<u8>]) -> bool {
    fields.len() >= 7
        && matches!(fields[3].to_ascii_lowercase().as_slice(), b"read" | b"write")
        && fields[4..6].iter().all(|f| number(f).is_some())
}

/// Each record names the request that asks for the same object next: a later one, or none. Nothing else looks like that by chance.
fn oracle(head: &[u8]) -> Option<Format> {
    let records: Vec<binary::Oracle> =
        head.chunks_exact(binary::ORACLE_BYTES).take(LINES_LOOKED_AT).filter_map(binary::oracle_record).collect();
    let later = |(n, record): (usize, &binary::Oracle)| record.bytes > 0 && (record.next < 0 || record.next > n as i64);
    let ordered = records.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds);
    (!records.is_empty() && ordered && records.iter().enumerate().all(later)).then_some(Format::OracleGeneral)
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
