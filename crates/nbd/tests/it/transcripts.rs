//! Handshakes as real clients do them, byte for byte, on the state machine alone.

use nbd::codec::{Info, OptionReply, OptionReplyHeader, RepError, TransmissionFlags};
use nbd::server::{Chosen, ExportInfo, Exports, Negotiation, NoExport, Step};

struct One;

fn export(name: &str, database: Option<&str>) -> ExportInfo {
    ExportInfo {
        name: name.into(),
        grid_disk: "data".into(),
        database: database.map(Into::into),
        description: "grid disk, 64 MiB".into(),
        size_bytes: 64 << 20,
        flags: TransmissionFlags::from_bits(0b1101_0110_1101),
        block_bytes_preferred: 4096,
        block_bytes_max: 32 << 20,
    }
}

impl Exports for One {
    fn list(&self) -> Vec<(String, String)> {
        vec![("data".into(), "grid disk, 64 MiB".into())]
    }
    fn find(&self, name: &str) -> Result<ExportInfo, NoExport> {
        match name {
            "" | "data" => Ok(export("data", None)),
            "data@SPOT" => Ok(export(name, Some("SPOT"))),
            "theirs" => Err(NoExport::NotForYou("theirs is not for you".into())),
            _ => Err(NoExport::Unknown),
        }
    }
    fn instance_stamp(&self) -> u128 {
        0xfeed
    }
}

/// Bytes of hexadecimal text, blanks and line ends left out; `"..."` is text.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, part) in text.split('"').enumerate() {
        if i % 2 == 1 {
            out.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> = part.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
        out.extend(digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]));
    }
    out
}

/// Feed a transcript in one go and byte by byte: the same must come out.
fn negotiate(input: &[u8]) -> (Vec<u8>, Option<Chosen>, usize) {
    let run = |step: usize| {
        let (mut negotiation, mut out, mut chosen) = (Negotiation::new(), Vec::new(), None);
        let (mut have, mut used_in_all) = (step.min(input.len()), 0);
        while chosen.is_none() {
            let (used, step_taken) = negotiation.input(&input[used_in_all..have], &One, &mut out).unwrap();
            used_in_all += used;
            match step_taken {
                Step::More if have == input.len() => break,
                Step::More => have = (have + step).min(input.len()),
                Step::Next => {}
                Step::Chosen(export) => chosen = Some(*export),
                Step::Close => break,
                Step::StartTls => panic!("there is no TLS here"),
            }
        }
        (out, chosen, used_in_all)
    };
    let whole = run(input.len());
    assert_eq!(run(1), whole);
    whole
}

fn replies(mut bytes: &[u8]) -> Vec<(u32, OptionReply)> {
    let mut replies = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<{ OptionReplyHeader::BYTES }>() {
        let header = OptionReplyHeader::decode(head).unwrap();
        let (data, rest) = rest.split_at(header.len as usize);
        replies.push((header.option, OptionReply::decode(header.kind, data).unwrap()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    replies
}

#[test]
fn qemu_img_info() {
    // Structured replies, one context, GO with block sizes, first request behind it.
    let input = bytes(
        r#"00000003
           "IHAVEOPT" 00000008 00000000
           "IHAVEOPT" 0000000a 0000001f 00000004 "data" 00000001 0000000f "base:allocation"
           "IHAVEOPT" 00000007 0000000c 00000004 "data" 0001 0003
           25609513 0000 0000 0000000000000001 0000000000000000 00000200"#,
    );
    let (out, chosen, used) = negotiate(&input);
    assert_eq!(used, input.len() - 28, "requests are not the handshake's");
    let want = bytes(
        r#"0003e889045565a9 00000008 00000001 00000000
           0003e889045565a9 0000000a 00000004 00000013 00000001 "base:allocation"
           0003e889045565a9 0000000a 00000001 00000000
           0003e889045565a9 00000007 00000003 0000000c 0000 0000000004000000 0ded
           0003e889045565a9 00000007 00000003 0000000e 0003 00000001 00001000 02000000
           0003e889045565a9 00000007 00000001 00000000"#,
    );
    assert_eq!(out, want);
    let chosen = chosen.unwrap();
    assert!(chosen.structured && chosen.flags.contains(TransmissionFlags::SEND_DF));
    assert_eq!(chosen.contexts.iter().count(), 1);
}

#[test]
fn nbdinfo() {
    // libnbd 1.18: extended headers are asked for first, every context is listed, name and description wanted.
    let input = bytes(
        r#"00000003
           "IHAVEOPT" 0000000b 00000000
           "IHAVEOPT" 00000008 00000000
           "IHAVEOPT" 00000009 00000008 00000000 00000000
           "IHAVEOPT" 0000000a 0000001b 00000000 00000001 0000000f "base:allocation"
           "IHAVEOPT" 00000006 0000000c 00000000 0003 0001 0002 0003
           "IHAVEOPT" 00000007 0000000c 00000000 0003 0001 0002 0003"#,
    );
    let (out, chosen, used) = negotiate(&input);
    assert_eq!(used, input.len());
    let described = |option| {
        let flags = TransmissionFlags::from_bits(0b1101_1110_1101);
        [
            (option, OptionReply::Info(Info::Export { size_bytes: 64 << 20, flags })),
            (option, OptionReply::Info(Info::Name("data".into()))),
            (option, OptionReply::Info(Info::Description("grid disk, 64 MiB".into()))),
            (option, OptionReply::Info(Info::BlockSize { minimum: 1, preferred: 4096, maximum: 32 << 20 })),
            (option, OptionReply::Ack),
        ]
    };
    let context = |option, id, name: &str| (option, OptionReply::MetaContext { id, name: name.into() });
    let mut want = vec![
        (11, OptionReply::error(RepError::Unsup, "option not supported")),
        (8, OptionReply::Ack),
        context(9, 0, "base:allocation"),
        context(9, 0, "flashcell:tier"),
        context(9, 0, "flashcell:instance:0000000000000000000000000000feed"),
        (9, OptionReply::Ack),
        context(10, 1, "base:allocation"),
        (10, OptionReply::Ack),
    ];
    want.extend(described(6));
    want.extend(described(7));
    assert_eq!(replies(&out), want);
    assert_eq!(chosen.unwrap().contexts.iter().count(), 1);
}

#[test]
fn nbd_client_for_the_kernel() {
    // No structured replies; GO with block sizes; a tagged export.
    let input = bytes(r#"00000003 "IHAVEOPT" 00000007 00000011 00000009 "data@SPOT" 0001 0003"#);
    let (out, chosen, _) = negotiate(&input);
    assert_eq!(replies(&out).len(), 3);
    let chosen = chosen.unwrap();
    assert_eq!(chosen.export.database.as_deref(), Some("SPOT"));
    assert!(!chosen.structured && !chosen.flags.contains(TransmissionFlags::SEND_DF));
}

#[test]
fn a_client_of_2012() {
    // EXPORT_NAME only, with and without the 124 zeroes.
    let (out, chosen, _) = negotiate(&bytes(r#"00000001 "IHAVEOPT" 00000001 00000004 "data""#));
    assert_eq!(out, [bytes("0000000004000000 0d6d"), vec![0; 124]].concat());
    assert!(chosen.is_some());
    let (out, _, _) = negotiate(&bytes(r#"00000003 "IHAVEOPT" 00000001 00000000"#));
    assert_eq!(out, bytes("0000000004000000 0d6d"));
}

#[test]
fn a_client_that_insists_on_tls_is_told_and_leaves() {
    let (out, chosen, _) = negotiate(&bytes(r#"00000003 "IHAVEOPT" 00000005 00000000 "IHAVEOPT" 00000002 00000000"#));
    let want = vec![(5, OptionReply::error(RepError::Unsup, "there is no TLS at this address")), (2, OptionReply::Ack)];
    assert_eq!((replies(&out), chosen), (want, None));
}

#[test]
fn a_failed_set_of_contexts_drops_the_earlier_one() {
    let (out, chosen, _) = negotiate(&bytes(
        r#"00000003
           "IHAVEOPT" 00000008 00000000
           "IHAVEOPT" 0000000a 0000001b 00000000 00000001 0000000f "base:allocation"
           "IHAVEOPT" 0000000a 0000000c 00000004 "nope" 00000000
           "IHAVEOPT" 00000007 00000006 00000000 0000"#,
    ));
    assert!(matches!(&replies(&out)[3], (10, OptionReply::Error { kind: RepError::Unknown, .. })));
    assert!(chosen.unwrap().contexts.is_empty());
}

#[test]
fn what_is_not_for_a_client_is_refused_with_the_reason() {
    let (out, chosen, _) = negotiate(&bytes(
        r#"00000003
           "IHAVEOPT" 00000006 0000000c 00000006 "theirs" 0000
           "IHAVEOPT" 00000007 0000000c 00000006 "theirs" 0000
           "IHAVEOPT" 00000008 00000000
           "IHAVEOPT" 0000000a 0000000e 00000006 "theirs" 00000000"#,
    ));
    let refused = || OptionReply::error(RepError::Policy, "theirs is not for you");
    assert_eq!(replies(&out), [(6, refused()), (7, refused()), (8, OptionReply::Ack), (10, refused())]);
    assert_eq!(chosen, None);
    // EXPORT_NAME has no error reply: nothing is said.
    let (out, chosen, _) = negotiate(&bytes(r#"00000003 "IHAVEOPT" 00000001 00000006 "theirs""#));
    assert_eq!((out, chosen), (Vec::new(), None));
}

/// Feed whole options, one after the other; what came out, and how it ended.
fn feed(negotiation: &mut Negotiation, input: &str) -> (Vec<(u32, OptionReply)>, Step) {
    let (input, mut out, mut used_in_all) = (bytes(input), Vec::new(), 0);
    loop {
        let (used, step) = negotiation.input(&input[used_in_all..], &One, &mut out).unwrap();
        used_in_all += used;
        match step {
            Step::Next => {}
            step => return (replies(&out), step),
        }
    }
}

#[test]
fn before_tls_nothing_is_answered_and_nothing_is_told() {
    let mut negotiation = Negotiation::before_tls();
    let (got, step) = feed(
        &mut negotiation,
        r#"00000003
           "IHAVEOPT" 00000003 00000000
           "IHAVEOPT" 00000008 00000000
           "IHAVEOPT" 0000000a 0000001f 00000004 "data" 00000001 0000000f "base:allocation"
           "IHAVEOPT" 00000006 0000000c 00000004 "data" 0001 0003
           "IHAVEOPT" 00000007 0000000c 00000004 "nope" 0001 0003
           "IHAVEOPT" 00000007 00000001 00
           "IHAVEOPT" 0000000b 00000000
           "IHAVEOPT" 00001267 00000000
           "IHAVEOPT" 00000005 00000001 00"#,
    );
    assert_eq!(step, Step::More);
    let kinds: Vec<_> = got
        .iter()
        .map(|(option, reply)| match reply {
            OptionReply::Error { kind, .. } => (*option, *kind),
            other => panic!("{other:?}"),
        })
        .collect();
    let reqd = RepError::TlsReqd;
    let want = [(3, reqd), (8, reqd), (10, reqd), (6, reqd), (7, reqd), (7, reqd), (11, reqd), (0x1267, reqd)];
    assert_eq!(kinds[..8], want);
    assert_eq!(kinds[8..], [(5, RepError::Invalid)], "STARTTLS has no data");
    // Too long to be looked at, and as little told.
    let long = format!("\"IHAVEOPT\" 00000006 00010000 {}", "00".repeat(65536));
    let (got, _) = feed(&mut negotiation, &long);
    assert!(matches!(got[0], (6, OptionReply::Error { kind: RepError::TlsReqd, .. })), "{got:?}");
    let (got, step) = feed(&mut negotiation, r#""IHAVEOPT" 00000005 00000000 "IHAVEOPT" 00000003 00000000"#);
    assert_eq!((got, step), (vec![(5, OptionReply::Ack)], Step::StartTls));
    // ABORT is answered, EXPORT_NAME cannot be.
    let (got, step) = feed(&mut Negotiation::before_tls(), r#"00000003 "IHAVEOPT" 00000002 00000000"#);
    assert_eq!((got, step), (vec![(2, OptionReply::Ack)], Step::Close));
    let (got, step) = feed(&mut Negotiation::before_tls(), r#"00000003 "IHAVEOPT" 00000001 00000004 "data""#);
    assert_eq!((got, step), (vec![], Step::Close));
}

#[test]
fn with_tls_it_begins_anew() {
    // Structured replies were asked for before, by whomever.
    let mut negotiation = Negotiation::before_tls();
    feed(&mut negotiation, r#"00000003 "IHAVEOPT" 00000008 00000000"#);
    let (_, step) = feed(&mut negotiation, r#""IHAVEOPT" 00000005 00000000"#);
    assert_eq!(step, Step::StartTls);
    let mut negotiation = negotiation.secured();
    let (got, step) = feed(
        &mut negotiation,
        r#""IHAVEOPT" 00000005 00000000
           "IHAVEOPT" 00000009 00000013 00000004 "data" 00000001 00000003 "a:b"
           "IHAVEOPT" 00000007 0000000a 00000004 "data" 0000"#,
    );
    assert!(matches!(got[0], (5, OptionReply::Error { kind: RepError::Invalid, .. })), "a second time");
    assert!(matches!(got[1], (9, OptionReply::Error { kind: RepError::Invalid, .. })), "without structured replies");
    let Step::Chosen(chosen) = step else { panic!("{step:?}") };
    assert!(!chosen.structured && !chosen.flags.contains(TransmissionFlags::SEND_DF));
    // NO_ZEROES is among the flags of the greeting, which is not said again.
    let (mut out, mut negotiation) = (Vec::new(), Negotiation::before_tls());
    feed(&mut negotiation, "00000003");
    let mut negotiation = negotiation.secured();
    negotiation.input(&bytes(r#""IHAVEOPT" 00000001 00000004 "data""#), &One, &mut out).unwrap();
    assert_eq!(out.len(), 10, "size and flags alone");
}
