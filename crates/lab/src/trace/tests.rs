//! Goal: every format is told and read right, and no bytes make a reader panic. Method: small pieces of each format, the
//! traces of shared/traces where they are, and random damage.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use device::Prng;
use std::collections::BTreeSet;

const PIECES: [(Format, &str); 9] = [
    (Format::Lis, "1936993 8 0 0\n793041 16 0 1\n"),
    (Format::Lirs, "2819\n85\n*\n560\n"),
    (Format::Csv, "time,lba,size,op\n1.5,8,4096,R\n2,16,512,W\n"),
    (Format::Msr, "128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,1,Write,2822144,4096,7\n"),
    (Format::FioLog, "fio version 2 iolog\n/dev/sda add\n/dev/sda read 4096 512\n/dev/sda write 0 8192\n"),
    (
        Format::Blkparse,
        "259,2 0 1 0.000000000 4020  Q   R 282624 + 8 [java]\n259,2 0 2 0.1 4020 G R 282624 + 8 [java]\n",
    ),
    (Format::DiskSim, "5265.313 0 6357144 8 0\n5265.703 0 6307768 8 1\n"),
    (Format::DiskSimBytes, "0.000 0 200626176 4096 0\n223.412 0 3159347200 36864 1\n"),
    (Format::Spelled, "# sec dev\n0.000000 0 540672 4096 R sync\n0.022479 0 532480 4096 W async\n"),
];

fn read(bytes: &[u8], format: Option<Format>) -> (Format, Vec<Result<Request, TraceError>>) {
    let raw = Box::new(io::Cursor::new(bytes.to_vec()));
    let reader = TraceReader::over(Path::new("t"), raw, format).unwrap();
    (reader.format(), reader.collect())
}

fn vscsi_piece(version: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (command, lbn) in [(0x2a_u16, 800_u64), (0x28, 0), (0x12, 0)] {
        let (sn, len, sg) = (7_u32.to_le_bytes(), 4096_u32.to_le_bytes(), 1_u32.to_le_bytes());
        let (command, version_bytes) = (command.to_le_bytes(), (version << 8).to_le_bytes());
        if version == 1 {
            [&sn[..], &len, &sg, &command, &version_bytes].iter().for_each(|f| bytes.extend_from_slice(f));
        } else {
            [&command[..], &version_bytes, &sn, &len, &sg].iter().for_each(|f| bytes.extend_from_slice(f));
        }
        bytes.extend_from_slice(&lbn.to_le_bytes());
        bytes.extend_from_slice(&99_u64.to_le_bytes());
        if version == 2 {
            bytes.extend_from_slice(&5_u64.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn formats_are_told_and_read() {
    let expected: [&[(u64, u64, Op)]; 9] = [
        &[(1_936_993, 8, Op::Unknown), (793_041, 16, Op::Unknown)],
        &[(2819, 1, Op::Unknown), (85, 1, Op::Unknown), (560, 1, Op::Unknown)],
        &[(4096, 4096, Op::Read), (8192, 512, Op::Write)],
        &[(383_496_192, 32768, Op::Read), (2_822_144, 4096, Op::Write)],
        &[(4096, 512, Op::Read), (0, 8192, Op::Write)],
        &[(282_624 * 512, 4096, Op::Read)],
        &[(6_357_144 * 512, 4096, Op::Write), (6_307_768 * 512, 4096, Op::Read)],
        &[(200_626_176, 4096, Op::Write), (3_159_347_200, 36864, Op::Read)],
        &[(540_672, 4096, Op::Read), (532_480, 4096, Op::Write)],
    ];
    for ((format, piece), expected) in PIECES.iter().zip(expected) {
        let (told, requests) = read(piece.as_bytes(), None);
        assert_eq!(told, *format);
        let got: Vec<(u64, u64, Op)> =
            requests.into_iter().map(|r| r.unwrap()).map(|r| (r.start, r.count, r.op)).collect();
        assert_eq!(got, expected, "{format}");
    }
    for (version, format) in [(1, Format::Vscsi1), (2, Format::Vscsi2)] {
        let (told, requests) = read(&vscsi_piece(version), None);
        assert_eq!(told, format);
        let got: Vec<(u64, Op)> = requests.into_iter().map(|r| r.unwrap()).map(|r| (r.start, r.op)).collect();
        assert_eq!(got, [(800 * 512, Op::Write), (0, Op::Read)]);
    }
    let (told, requests) = read(b"fio version 3 iolog\n12 f open\n13 f read 0 4096\n14 f sync\n", None);
    assert_eq!((told, requests.len()), (Format::FioLog, 1));
    let (_, requests) = read(b"device,rw,length,offset,time\nb,write,100,5,1\na,r,7,0,2\n", None);
    let got: Vec<Request> = requests.into_iter().map(|r| r.unwrap()).collect();
    assert_eq!(got[0], Request { device: 0, start: 5, count: 100, op: Op::Write });
    assert_eq!(got[1], Request { device: 1, start: 0, count: 7, op: Op::Read });
}

#[test]
fn a_request_becomes_the_blocks_it_touches() {
    let request = Request { device: 0, start: 4095, count: 2, op: Op::Read };
    assert_eq!(request.blocks(Unit::Bytes, 4096), 0..2);
    assert_eq!(request.blocks(Unit::Blocks, 4096), 4095..4097);
}

#[test]
fn bad_lines_name_file_and_line() {
    let (_, mut requests) = read(b"1 2 0 0\n3 x 0 0\n", Some(Format::Lis));
    assert_eq!(requests.len(), 2, "reading ends at the error");
    let error = requests.pop().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "t:2: the second column is not a count (read as lis)");
    for (bytes, format) in [
        (&b"18446744073709551615 2 0 0\n"[..], Format::Lis),
        (b"1 4294967297 0 0\n", Format::Lis),
        (b"1 0 18446744073709551615 8 0\n", Format::DiskSim),
        (&[b'9'; 5000], Format::Lirs),
        (&[0x25, 0x60, 0x95, 0x13, 1, 2], Format::Nbd),
        (&[1, 2, 3, 4, 5], Format::Nbd),
        (&[0; 31], Format::Vscsi1),
        (b"a read 0 1\n", Format::FioLog),
    ] {
        let (_, requests) = read(bytes, Some(format));
        assert!(requests.last().is_some_and(Result::is_err), "{format} {bytes:?}");
    }
    let raw = Box::new(io::Cursor::new(b"once upon a time\n".to_vec()));
    assert!(matches!(TraceReader::over(Path::new("t"), raw, None), Err(TraceError::Unrecognised { .. })));
}

#[test]
fn packed_traces_are_unpacked() {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    io::Write::write_all(&mut gz, b"1\n2\n*\n3\n").unwrap();
    assert_eq!(read(&gz.finish().unwrap(), None).1.len(), 3);
    let packed = ruzstd::encoding::compress_to_vec(&b"1\n2\n*\n3\n"[..], ruzstd::encoding::CompressionLevel::Fastest);
    assert_eq!(read(&packed, None).1.len(), 3);
}

#[test]
fn no_bytes_make_a_reader_panic() {
    let mut prng = Prng::new(20);
    let mut corpus: Vec<Vec<u8>> = PIECES.iter().map(|(_, piece)| piece.as_bytes().to_vec()).collect();
    corpus.extend([vscsi_piece(1), vscsi_piece(2), vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]]);
    corpus.push(ruzstd::encoding::compress_to_vec(&b"1\n2\n3\n"[..], ruzstd::encoding::CompressionLevel::Fastest));
    let (mut errors, mut requests) = (0, 0);
    for round in 0..40_000 {
        let mut bytes = corpus[prng.below(corpus.len() as u64) as usize].clone();
        for _ in 0..=prng.below(4) {
            let at = prng.below(bytes.len() as u64) as usize;
            match prng.below(4) {
                0 => bytes[at] = prng.next_u64() as u8,
                1 => bytes.truncate(at.max(1)),
                2 => bytes.insert(at, b"0123456789,.-+* \nRW#\0\xff"[prng.below(22) as usize]),
                _ => bytes.extend_from_within(at..),
            }
        }
        let format = (round % 3 > 0).then(|| Format::ALL[prng.below(12) as usize].1);
        let raw = Box::new(io::Cursor::new(bytes));
        let Ok(reader) = TraceReader::over(Path::new("t"), raw, format) else { continue };
        for next in reader {
            match next {
                Ok(request) => {
                    requests += 1;
                    assert!(request.count > 0 && request.start + request.count <= ADDRESS_MAX);
                }
                Err(_) => errors += 1,
            }
        }
    }
    assert!(errors > 1000 && requests > 1000, "both good and bad input is tried: {errors} {requests}");
}

/// A trace of shared/traces: name, format, requests, references of 4 KiB (or of own units), distinct ones.
const SHARED: [(&str, Format, u64, u64, u64); 13] = [
    ("cloudPhysicsIO.vscsi", Format::Vscsi1, 113_872, 1_141_869, 269_210),
    ("arc-OLTP.lis.zst", Format::Lis, 914_145, 914_145, 186_880),
    ("arc-P3.lis.zst", Format::Lis, 238_578, 3_912_296, 762_543),
    ("arc-P12.lis.zst", Format::Lis, 547_147, 13_208_930, 3_153_310),
    ("disksim-hp-ajw.1week.converted.txt.zst", Format::Spelled, 44_519, 73_519, 7_993),
    ("ms-DTRS100M.trace.zst", Format::DiskSim, 127_043, 1_759_180, 1_272_267),
    ("msr-cut-10k.rw_20_80.105.trace", Format::DiskSimBytes, 10_000, 16_551, 7_385),
    ("lirs-sprite.trace.gz", Format::Lirs, 0, 0, 7_075),
    ("lirs-2_pools.trace.gz", Format::Lirs, 0, 0, 9_939),
    ("lirs-multi2.trace.gz", Format::Lirs, 0, 0, 0),
    ("disksim-ssd-iozone-100K.trace.zst", Format::DiskSim, 100_000, 8_997_978, 271_320),
    ("nbd-integrity-test.tr", Format::Nbd, 0, 0, 0),
    ("blkparse-sample.txt", Format::Blkparse, 1_695, 0, 0),
];

#[test]
fn shared_traces_have_the_figures_of_their_description() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let mut skipped = 0;
    for (name, format, requests, references, distinct) in SHARED {
        let path = dir.join(name);
        if !path.exists() {
            skipped += 1;
            continue;
        }
        let reader = TraceReader::open(&path, None).unwrap();
        assert_eq!(reader.format(), format, "{name}");
        let unit = reader.unit();
        let (mut got_requests, mut got_references, mut seen) = (0, 0, BTreeSet::new());
        for request in reader {
            let request = request.unwrap();
            got_requests += 1;
            got_references += request.count;
            let blocks = request.blocks(unit, 4096);
            got_references = got_references - request.count + (blocks.end - blocks.start);
            // Counting the distinct blocks of the large ones takes too long for a test.
            if references < 2_000_000 {
                seen.extend(blocks.map(|b| (request.device, b)));
            }
        }
        // 0 where the description says nothing.
        for (what, expected, got) in [("requests", requests, got_requests), ("references", references, got_references)]
        {
            assert!(expected == 0 || expected == got, "{name}: {what} {got}, described as {expected}");
        }
        if distinct > 0 && references < 2_000_000 {
            assert_eq!(seen.len() as u64, distinct, "{name}");
        }
    }
    #[expect(clippy::print_stderr, reason = "what was skipped is told")]
    if skipped > 0 {
        eprintln!("skipped {skipped} of {} traces: not in {}", SHARED.len(), dir.display());
    }
}
