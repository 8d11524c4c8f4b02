//! The seed corpus of the fuzz targets: valid streams, written by `NBD_WRITE_CORPUS=1` and checked to be current.

#![expect(clippy::disallowed_methods, reason = "the corpus is files of the repository")]

use nbd::codec::*;
use std::path::PathBuf;

fn corpus() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut files = Vec::new();
    let text = |t: &str| t.to_owned();
    // Options: how the stream is cut, the client's flags, options.
    let handshakes: [(&str, Vec<ClientOption>); 5] = [
        ("export_name", vec![ClientOption::ExportName(text("data"))]),
        ("list_abort", vec![ClientOption::List, ClientOption::StartTls, ClientOption::Abort]),
        (
            "contexts",
            vec![
                ClientOption::StructuredReply,
                ClientOption::ListMetaContext { name: text("data"), queries: vec![] },
                ClientOption::SetMetaContext {
                    name: text("data"),
                    queries: vec![text("base:allocation"), text("flashcell:tier"), text("flashcell:instance:")],
                },
                ClientOption::Go { name: text("data"), requests: vec![0, 1, 2, 3] },
            ],
        ),
        (
            "tagged",
            vec![
                ClientOption::ExtendedHeaders,
                ClientOption::Info { name: text("nope"), requests: vec![3] },
                ClientOption::Go { name: text("redo@SPOT"), requests: vec![] },
            ],
        ),
        ("unknown", vec![ClientOption::Unknown(4711), ClientOption::Unknown(4)]),
    ];
    for (name, options) in handshakes {
        let mut bytes = vec![200, 0, 0, 0, 3];
        options.iter().for_each(|o| o.encode(&mut bytes));
        files.push(("options", name, bytes));
    }
    // An odd first byte: TLS comes first.
    let mut tls = vec![201, 0, 0, 0, 3];
    let (go, structured) = (ClientOption::Go { name: text("data"), requests: vec![3] }, ClientOption::StructuredReply);
    for option in
        [ClientOption::List, structured.clone(), ClientOption::StartTls, ClientOption::StartTls, structured, go]
    {
        option.encode(&mut tls);
    }
    files.push(("options", "tls", tls));
    let mut long = vec![254, 0, 0, 0, 3];
    long.extend_from_slice(&MAGIC_OPTION.to_be_bytes());
    long.extend_from_slice(&opt::GO.to_be_bytes());
    long.extend_from_slice(&20_000_u32.to_be_bytes());
    long.resize(long.len() + 20_000, 0);
    ClientOption::Abort.encode(&mut long);
    files.push(("options", "too_long", long));
    // Requests: what was negotiated, requests with their payload.
    for (name, shape, refused) in [("all", [64, 20, 0xfd, 1], false), ("read_only", [1, 12, 2, 0], true)] {
        let mut bytes = shape.to_vec();
        for (command, flags, offset, len) in [
            (0, 4, 0, 4096),
            (1, 1, 4096, 16),
            (3, 0, 0, 0),
            (4, 1, 0, 8192),
            (5, 0, 0, 65536),
            (6, 1 | 2 | 16, 512, 512),
            (7, 8, 0, 4096),
            (1, 32, u64::MAX, 3),
            (9, 0, 0, 0),
            (2, 0, 0, 0),
        ] {
            let request = Request {
                flags: CommandFlags::from_bits(flags),
                command: Command::from_wire(command),
                cookie: Cookie(u64::from(command)),
                offset,
                len,
            };
            bytes.extend_from_slice(&request.encode());
            bytes.resize(bytes.len() + request.payload_bytes() as usize, 0xaa);
        }
        assert_eq!(bytes[3] == 0, refused);
        files.push(("requests", name, bytes));
    }
    // Replies: how, then replies to cookies the target waits for.
    let mut simple = vec![0];
    encode_simple(&mut simple, Cookie(1), None);
    simple.extend_from_slice(&[1; 8]);
    encode_simple(&mut simple, Cookie(6), None);
    encode_simple(&mut simple, Cookie(7), Some(Errno::Shutdown));
    files.push(("replies", "simple", simple));
    let mut chunks = vec![1 + 10];
    encode_data_header(&mut chunks, Cookie(2), 8192, 60, false);
    chunks.resize(chunks.len() + 60, 2);
    encode_hole(&mut chunks, Cookie(2), 8192 + 60, 4, true);
    encode_data_header(&mut chunks, Cookie(3), 3 * 4096, 256, false);
    chunks.resize(chunks.len() + 256, 3);
    encode_error(&mut chunks, Cookie(3), Errno::Io, "medium error", Some(3 * 4096 + 256));
    encode_none(&mut chunks, Cookie(0));
    let extents = [StatusExtent { len: 4096, flags: 3 }, StatusExtent { len: 8192, flags: 0 }];
    encode_status(&mut chunks, Cookie(4), 1, &extents, false);
    encode_status(&mut chunks, Cookie(4), 2, &extents[..1], true);
    encode_error(&mut chunks, Cookie(5), Errno::Inval, "", None);
    encode_simple(&mut chunks, Cookie(6), None);
    files.push(("replies", "chunks", chunks));
    let mut unknown_error = vec![1 + 4];
    unknown_error.extend_from_slice(&MAGIC_STRUCTURED_REPLY.to_be_bytes());
    unknown_error.extend_from_slice(&[0, 1, 0x80, 9]);
    unknown_error.extend_from_slice(&6_u64.to_be_bytes());
    unknown_error.extend_from_slice(&[0, 0, 0, 12, 0, 0, 0, 5, 0, 2, b'n', b'o', 1, 2, 3, 4]);
    files.push(("replies", "unknown_error", unknown_error));
    // Found by the fuzzer: a chunk shorter than an error's fields was told late when more bytes followed it.
    let mut short_error = vec![5];
    short_error.extend_from_slice(&MAGIC_STRUCTURED_REPLY.to_be_bytes());
    short_error.extend_from_slice(&[0, 1, 0x80, 9]);
    short_error.extend_from_slice(&6_u64.to_be_bytes());
    short_error.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 6, 0x67, 0x44]);
    files.push(("replies", "short_error", short_error));
    files
}

#[test]
fn the_committed_corpus_is_current() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (target, name, bytes) in corpus() {
        let path = root.join(target).join(name);
        if std::env::var_os("NBD_WRITE_CORPUS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::File::create(&path).and_then(|mut f| std::io::Write::write_all(&mut f, &bytes)).unwrap();
        }
        let mut committed = Vec::new();
        let file = std::fs::File::open(&path);
        file.and_then(|mut f| std::io::Read::read_to_end(&mut f, &mut committed)).unwrap();
        assert!(committed == bytes, "{} differs; write it with NBD_WRITE_CORPUS=1", path.display());
    }
}
