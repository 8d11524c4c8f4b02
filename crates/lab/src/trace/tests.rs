//! Goal: every format is told and read right, and no bytes make a reader panic. Method: small pieces of each format, the
//! traces of shared/traces where they are, and random damage.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use device::Prng;
use std::collections::BTreeSet;

const PIECES: [(Format, &str); 18] = [
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
    (Format::Alibaba, "419,W,8792731648,16384,1577808144360767\n725,R,59110326272,4096,1577808144360813\n"),
    (Format::Alibaba, "device_id,opcode,offset,length,timestamp\n1,R,4096,512,1000001\n1,W,0,4096,3000001\n"),
    (Format::Tencent, "1538323200,12910952,128,0,1063\n1538323203,6338688,8,1,1627\n"),
    (Format::Tencent, "Timestamp,Offset,Size,IOType,VolumeID\n1538323200,8,16,1,7\n1538323200,0,8,0,7\n"),
    (Format::Spc, "0,20941264,8192,W,0.551706\n1,8,512,r,0.554041\n0,20939840,8192,R,1.5\n"),
    (
        Format::CloudPhysicsCsv,
        "version,time,op,size,lbn\n1,5633898,42,512,42932745\n1,5633898,0,0,0\n1,6633898,40,4096,8\n",
    ),
    (Format::LibCacheSimCsv, "time,obj_id,obj_size,next_access_vtime\n3,77,4096,-1\n4,18446744073709551000,100,-1\n"),
    (
        Format::Biosnoop,
        "TIME(s)     COMM           PID    DISK      T SECTOR     BYTES  QUE(ms) LAT(ms)\n\
         0.000004    my daemon      1950   xvda1     W 13092560   4096      0.01    0.74\n\
         0.500004    jbd2           12     xvdb      WS 8         512       0.01    0.74\n\
         1.000178    pg: writer 1   1950   xvda1     R 16         8192      0.00    0.61\n",
    ),
    (
        Format::Ftrace,
        "# tracer: nop\n#\n     fio-12 [001] d..1. 10.500000: block_rq_issue: 8,0 R 4096 () 800 + 8 [fio]\n\
         a b:c-13 [000] ..... 11.000000: block_bio_queue: 8,0 WS 16 + 8 [a]\n\
         fio-12 [001] ..... 12.750000: block_bio_queue: 8,16 R 0 + 16 [fio]\n\
         fio-12 [001] ..... 12.760000: block_bio_queue: 8,16 D 0 + 16 [fio]\n",
    ),
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
    let expected: [&[(u64, u64, Op)]; 18] = [
        &[(1_936_993, 8, Op::Unknown), (793_041, 16, Op::Unknown)],
        &[(2819, 1, Op::Unknown), (85, 1, Op::Unknown), (560, 1, Op::Unknown)],
        &[(4096, 4096, Op::Read), (8192, 512, Op::Write)],
        &[(383_496_192, 32768, Op::Read), (2_822_144, 4096, Op::Write)],
        &[(4096, 512, Op::Read), (0, 8192, Op::Write)],
        &[(282_624 * 512, 4096, Op::Read)],
        &[(6_357_144 * 512, 4096, Op::Write), (6_307_768 * 512, 4096, Op::Read)],
        &[(200_626_176, 4096, Op::Write), (3_159_347_200, 36864, Op::Read)],
        &[(8_792_731_648, 16_384, Op::Write), (59_110_326_272, 4096, Op::Read)],
        &[(4096, 512, Op::Read), (0, 4096, Op::Write)],
        &[(12_910_952 * 512, 128 * 512, Op::Read), (6_338_688 * 512, 4096, Op::Write)],
        &[(4096, 8192, Op::Write), (0, 4096, Op::Read)],
        &[(20_941_264 * 512, 8192, Op::Write), (4096, 512, Op::Read), (20_939_840 * 512, 8192, Op::Read)],
        &[(42_932_745 * 512, 512, Op::Write), (4096, 4096, Op::Read)],
        &[(77, 1, Op::Unknown), (18_446_744_073_709_551_000, 1, Op::Unknown)],
        &[(13_092_560 * 512, 4096, Op::Write), (4096, 512, Op::Write), (8192, 8192, Op::Read)],
        &[(8192, 4096, Op::Write), (0, 8192, Op::Read)],
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
    assert_eq!(got[0], Request { device: 0, start: 5, count: 100, op: Op::Write, time_ns: None, latency_ns: None });
    assert_eq!(got[1], Request { device: 1, start: 0, count: 7, op: Op::Read, time_ns: None, latency_ns: None });
}

/// What is said of a piece before it is replayed.
fn told(bytes: &[u8], format: Option<Format>) -> String {
    let reader = TraceReader::over(Path::new("t"), Box::new(io::Cursor::new(bytes.to_vec())), format).unwrap();
    let (unit, format, mut understood) = (reader.unit(), reader.format(), Understood::default());
    reader.for_each(|request| understood.add(&request.unwrap()));
    format!("{format}: {}\n", understood.told(unit))
}

#[test]
fn what_is_understood_is_said() {
    let mut all: String = PIECES.iter().map(|(_, piece)| told(piece.as_bytes(), None)).collect();
    all.push_str(&told(&oracle_piece(), None));
    all.push_str(&told(&blktrace_piece(true), None));
    expect_test::expect![[r#"
        lis: 2 requests (not told what reads and what writes: all count as reads) for 24 blocks of the trace's own, 1 device, times not told
        lirs: 3 requests (not told what reads and what writes: all count as reads) for 3 blocks of the trace's own, 1 device, times not told
        csv: 2 requests (1 read, 1 write) of 4.5 KiB, up to 8.5 KiB, 1 device, times not told
        msr: 2 requests (1 read, 1 write) of 36.0 KiB, up to 365.7 MiB, 1 device, span 1.332 s
        fio: 2 requests (1 read, 1 write) of 8.5 KiB, up to 8.0 KiB, 1 device, times not told
        blkparse: 1 requests (1 read, 0 write) of 4.0 KiB, up to 138.0 MiB, 1 device, span 0.000 s
        disksim: 2 requests (1 read, 1 write) of 8.0 KiB, up to 3.0 GiB, 1 device, times not told
        disksim-bytes: 2 requests (1 read, 1 write) of 40.0 KiB, up to 2.9 GiB, 1 device, times not told
        alibaba: 2 requests (1 read, 1 write) of 20.0 KiB, up to 55.0 GiB, 2 devices, span 0.000 s
        alibaba: 2 requests (1 read, 1 write) of 4.5 KiB, up to 4.5 KiB, 1 device, span 2.000 s
        tencent: 2 requests (1 read, 1 write) of 68.0 KiB, up to 6.1 GiB, 2 devices, span 3.000 s
        tencent: 2 requests (1 read, 1 write) of 12.0 KiB, up to 12.0 KiB, 1 device, span 0.000 s
        spc: 3 requests (2 read, 1 write) of 16.5 KiB, up to 9.9 GiB, 2 devices, span 0.948 s
        cloudphysics-csv: 2 requests (1 read, 1 write) of 4.5 KiB, up to 20.4 GiB, 1 device, span 1.000 s
        libcachesim-csv: 2 requests (not told what reads and what writes: all count as reads), each for an object that counts as a block, 1 device, span 1.000 s
        biosnoop: 3 requests (1 read, 2 write) of 12.5 KiB, up to 6.2 GiB, 2 devices, span 1.000 s
        ftrace: 2 requests (1 read, 1 write) of 12.0 KiB, up to 12.0 KiB, 2 devices, span 1.750 s
        spelled: 2 requests (1 read, 1 write) of 8.0 KiB, up to 532.0 KiB, 1 device, span 0.022 s
        oracle-general: 3 requests (not told what reads and what writes: all count as reads), each for an object that counts as a block, 1 device, span 1 min 0 s
        blktrace: 2 requests (1 read, 1 write) of 8.0 KiB, up to 12.0 KiB, 1 device, span 0.250 s
    "#]].assert_eq(&all);
}

fn oracle_piece() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (seconds, object, size, next) in
        [(1_u32, u64::MAX - 9, 4096_u32, 3_i64), (5, 7, 512, -1), (61, u64::MAX - 9, 4096, -1)]
    {
        let parts = [&seconds.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &next.to_le_bytes()];
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
    }
    bytes
}

/// A read, a write of a control group, a message of the kernel with words behind it, a discard, a completion.
fn blktrace_piece(little: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let word = |n: u32| if little { n.to_le_bytes() } else { n.to_be_bytes() };
    let long = |n: u64| if little { n.to_le_bytes() } else { n.to_be_bytes() };
    let half = |n: u16| if little { n.to_le_bytes() } else { n.to_be_bytes() };
    for (n, (action, sector, rest)) in [
        (1 << 16 | 1, 8, 0),
        (1 << 17 | 1 << 8 | 1, 16, 8),
        (1 << 26 | 2, 0, 5),
        (1 << 29 | 1 << 17 | 1, 0, 0),
        (1 << 16 | 8, 8, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let (n, cpu) = (n as u32, 3);
        [word(0x6561_7407), word(n)].iter().for_each(|w| bytes.extend_from_slice(w));
        [long(u64::from(n) * 250_000_000), long(sector)].iter().for_each(|w| bytes.extend_from_slice(w));
        [word(4096), word(action), word(77), word(8 << 20), word(cpu)].iter().for_each(|w| bytes.extend_from_slice(w));
        [half(0), half(rest)].iter().for_each(|w| bytes.extend_from_slice(w));
        bytes.resize(bytes.len() + usize::from(rest), b'x');
    }
    bytes
}

#[test]
fn binary_records_are_told_and_read() {
    for little in [true, false] {
        let (told, requests) = read(&blktrace_piece(little), None);
        assert_eq!(told, Format::Blktrace);
        let got: Vec<Request> = requests.into_iter().map(|r| r.unwrap()).collect();
        let first = Request { device: 0, start: 4096, count: 4096, op: Op::Read, time_ns: Some(0), latency_ns: None };
        assert_eq!(got, [first, Request { start: 8192, op: Op::Write, time_ns: Some(250_000_000), ..first }]);
    }
    let mut later = blktrace_piece(true);
    later[0] = 8;
    assert_eq!(
        read(&later, None).1[0].as_ref().unwrap_err().to_string(),
        "t:1: a record of another version of blktrace (read as blktrace)"
    );
    let (told, requests) = read(&oracle_piece(), None);
    assert_eq!(told, Format::OracleGeneral);
    let got: Vec<(u64, u64)> = requests.into_iter().map(|r| r.unwrap()).map(|r| (r.start, r.count)).collect();
    assert_eq!(got, [(u64::MAX - 9, 1), (7, 1), (u64::MAX - 9, 1)]);
    // The next request for an object is none before: these are other records.
    let mut other = oracle_piece();
    other[40] = 1;
    other[41..48].fill(0);
    let raw = Box::new(io::Cursor::new(other));
    assert!(matches!(TraceReader::over(Path::new("t"), raw, None), Err(TraceError::Unrecognised { .. })));
}

#[test]
fn what_could_be_two_things_is_refused() {
    for text in [
        // An object and its size, or an address and bytes?
        "1,2,4096\n2,3,4096\n",
        // Sectors or bytes? Which of 0 and 1 reads?
        "1,2,4096,0\n2,3,4096,1\n",
        "12,2,4096,0,7\n13,3,4096,1,8\n",
        "1.5,8,4096,R,9,9\n",
    ] {
        let raw = Box::new(io::Cursor::new(text.as_bytes().to_vec()));
        let Err(error @ TraceError::Ambiguous { .. }) = TraceReader::over(Path::new("t"), raw, None) else {
            panic!("{text}")
        };
        assert!(error.to_string().contains("hint: --format csv"), "{error}");
    }
    let bad = |text: &str, format: Format| {
        let (_, mut requests) = read(text.as_bytes(), Some(format));
        requests.pop().unwrap().unwrap_err().to_string()
    };
    assert!(bad("1538323200,8,16,2,7\n", Format::Tencent).contains("neither 0 nor 1"));
    assert!(bad("offset,size,iotype,timestamp,volumeid\n1,2,0,3,4\n", Format::Csv).contains("--columns"));
    assert!(
        bad("offset,size,iotype,timestamp,volumeid\n1,2,0,3,4\n", Format::Tencent).contains("not those of the format")
    );
    assert!(bad("1,R,0,4096,7,8\n", Format::Alibaba).contains("not as many columns"));
    assert!(bad("0.1 bash 7 sda R 8 512 0.7\n", Format::Biosnoop).contains("names is missing"));
    assert!(bad("TIME(ms) DISK COMM PID LAT(ms)\n", Format::Biosnoop).contains("other columns"));
    assert!(bad("CPU:2 [LOST 31 EVENTS]\n", Format::Ftrace).contains("events were lost"));
    assert!(bad("0,x,8192,W,0.5\n", Format::Spc).contains("the address is not a number"));
}

#[test]
fn columns_are_as_the_command_line_says() {
    let read = |columns: &str, text: &str| -> Vec<Result<Request, String>> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let reader = TraceReader::with_columns(file.path(), columns.parse().unwrap()).unwrap();
        reader.map(|request| request.map_err(|error| error.to_string())).collect()
    };
    let got = read("time=1:ms,op=3,offset=4:sectors,bytes=5:1024,device=2", "1.5,a,R,8,4\n2,b,write,16,1\n");
    let first =
        Request { device: 0, start: 4096, count: 4096, op: Op::Read, time_ns: Some(1_500_000), latency_ns: None };
    assert_eq!(
        got,
        [
            Ok(first),
            Ok(Request {
                device: 1,
                start: 8192,
                count: 1024,
                op: Op::Write,
                time_ns: Some(2_000_000),
                latency_ns: None
            })
        ]
    );
    let got = read("space,offset=1,bytes=2,op=3:r1", "# remark\n4096  512 1\n0 512 0\n1 2 3\n");
    assert_eq!((got[0].as_ref().unwrap().op, got[1].as_ref().unwrap().op), (Op::Read, Op::Write));
    assert!(got[2].as_ref().unwrap_err().contains("neither 0 nor 1"));
    let got = read("id=2", "1,a\n2,b\n3,a\n");
    let starts: Vec<u64> = got.into_iter().map(|request| request.unwrap().start).collect();
    assert!(starts[0] == starts[2] && starts[0] != starts[1]);
    for wrong in [
        "",
        "op=1",
        "offset=1",
        "offset=0,bytes=2",
        "offset=1,offset=2,bytes=3",
        "offset=1:furlongs,bytes=2",
        "offset=1,bytes=2,op=3:maybe",
        "offset=1,bytes=2,time=3:h",
        "id=1,bytes=2",
        "offset=1,bytes=2,colour=3",
        "id=1:sectors",
    ] {
        assert!(wrong.parse::<Columns>().unwrap_err().contains("hint: offset=N"), "{wrong}");
    }
}

#[test]
fn a_request_becomes_the_blocks_it_touches() {
    let request = Request { device: 0, start: 4095, count: 2, op: Op::Read, time_ns: None, latency_ns: None };
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
    // Of the same text, by xz.
    let packed = [
        0xfd_u8, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01, 0x16, 0x00,
        0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0x01, 0x00, 0x07, 0x31, 0x0a, 0x32, 0x0a, 0x2a, 0x0a, 0x33, 0x0a, 0x00,
        0xfd, 0xeb, 0xf3, 0x7a, 0x7f, 0xb5, 0xc5, 0xd0, 0x00, 0x01, 0x20, 0x08, 0xbb, 0x19, 0xd9, 0xbb, 0x1f, 0xb6,
        0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
    ];
    assert_eq!(read(&packed, None).1.len(), 3);
    let cut = TraceReader::over(Path::new("t"), Box::new(io::Cursor::new(packed[..packed.len() - 9].to_vec())), None);
    assert!(cut.is_err() || cut.unwrap().any(|request| request.is_err()), "an end that is missing is noticed");
}

#[test]
fn no_bytes_make_a_reader_panic() {
    let mut prng = Prng::new(20);
    let mut corpus: Vec<Vec<u8>> = PIECES.iter().map(|(_, piece)| piece.as_bytes().to_vec()).collect();
    corpus.extend([
        vscsi_piece(1),
        vscsi_piece(2),
        oracle_piece(),
        blktrace_piece(true),
        vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1],
    ]);
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
        let format = (round % 3 > 0).then(|| Format::ALL[prng.below(Format::ALL.len() as u64) as usize].1);
        let raw = Box::new(io::Cursor::new(bytes));
        let Ok(reader) = TraceReader::over(Path::new("t"), raw, format) else { continue };
        let unit = reader.unit();
        for next in reader {
            match next {
                Ok(request) => {
                    requests += 1;
                    assert!(request.count > 0 && request.start.checked_add(request.count).is_some());
                    assert!(unit == Unit::Objects || request.start + request.count <= ADDRESS_MAX);
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
