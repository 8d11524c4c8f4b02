//! The codec: round trips, hostile bytes, and the errno of every refusal.

use nbd::codec::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Requests waiting for replies, as a client keeps them.
#[derive(Default)]
struct Waiting(BTreeMap<u64, Expected>);

impl Expect for Waiting {
    fn expected(&self, cookie: Cookie) -> Option<Expected> {
        self.0.get(&cookie.0).copied()
    }
}

/// What a reply said, with data joined, so that it does not depend on how the bytes were cut.
#[derive(Debug, PartialEq, Clone)]
enum Said {
    Data(u64, u64, Vec<u8>),
    Hole(u64, u64, u32),
    Status(u64, u32, Vec<StatusExtent>),
    Error(u64, Errno, String, Option<u64>),
    Done(u64),
}

/// Feed `stream` in pieces of `steps` (then all) and gather what is said.
fn read_all(structured: bool, stream: &[u8], steps: &[usize], waiting: &Waiting) -> Result<Vec<Said>, CodecError> {
    let mut decoder = ReplyDecoder::new(structured);
    let mut said: Vec<Said> = Vec::new();
    let mut carry: Vec<u8> = Vec::new();
    let mut rest = stream;
    let mut steps = steps.iter();
    while !rest.is_empty() {
        let step = steps.next().copied().unwrap_or(rest.len()).clamp(1, rest.len());
        carry.extend_from_slice(&rest[..step]);
        rest = &rest[step..];
        let mut used_in_all = 0;
        loop {
            let (event, used) = decoder.next(&carry[used_in_all..], waiting)?;
            used_in_all += used;
            match event {
                None => break,
                Some(ReplyEvent::Data { cookie, offset, bytes }) => match said.last_mut() {
                    Some(Said::Data(c, o, all)) if *c == cookie.0 && *o + all.len() as u64 == offset => {
                        all.extend_from_slice(bytes);
                    }
                    _ => said.push(Said::Data(cookie.0, offset, bytes.to_vec())),
                },
                Some(ReplyEvent::Hole { cookie, offset, len }) => said.push(Said::Hole(cookie.0, offset, len)),
                Some(ReplyEvent::Status { cookie, context, extents }) => match said.last_mut() {
                    Some(Said::Status(c, x, all)) if *c == cookie.0 && *x == context => all.extend(extents),
                    _ => said.push(Said::Status(cookie.0, context, extents)),
                },
                Some(ReplyEvent::Error { cookie, errno, message, offset }) => {
                    said.push(Said::Error(cookie.0, errno, message, offset));
                }
                Some(ReplyEvent::Done { cookie }) => said.push(Said::Done(cookie.0)),
            }
        }
        carry.drain(..used_in_all);
        assert!(carry.len() <= ReplyDecoder::CARRY_BYTES_MAX, "the decoder asked to keep {} bytes", carry.len());
    }
    Ok(said)
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_@:.é-]{0,40}"
}

fn option() -> impl Strategy<Value = ClientOption> {
    prop_oneof![
        name().prop_map(ClientOption::ExportName),
        Just(ClientOption::Abort),
        Just(ClientOption::List),
        Just(ClientOption::StartTls),
        Just(ClientOption::StructuredReply),
        Just(ClientOption::ExtendedHeaders),
        (12_u32..).prop_map(ClientOption::Unknown),
        (name(), vec(any::<u16>(), 0..20)).prop_map(|(name, requests)| ClientOption::Info { name, requests }),
        (name(), vec(any::<u16>(), 0..20)).prop_map(|(name, requests)| ClientOption::Go { name, requests }),
        (name(), vec(name(), 0..8)).prop_map(|(name, queries)| ClientOption::ListMetaContext { name, queries }),
        (name(), vec(name(), 0..8)).prop_map(|(name, queries)| ClientOption::SetMetaContext { name, queries }),
    ]
}

fn option_reply() -> impl Strategy<Value = OptionReply> {
    prop_oneof![
        Just(OptionReply::Ack),
        (name(), name()).prop_map(|(name, details)| OptionReply::Server { name, details }),
        (any::<u64>(), any::<u16>()).prop_map(|(size_bytes, flags)| OptionReply::Info(Info::Export {
            size_bytes,
            flags: TransmissionFlags::from_bits(flags)
        })),
        name().prop_map(|n| OptionReply::Info(Info::Name(n))),
        name().prop_map(|n| OptionReply::Info(Info::Description(n))),
        any::<[u32; 3]>().prop_map(|[minimum, preferred, maximum]| OptionReply::Info(Info::BlockSize {
            minimum,
            preferred,
            maximum
        })),
        (any::<u32>(), name()).prop_map(|(id, name)| OptionReply::MetaContext { id, name }),
        (1_u32..12, name()).prop_map(|(n, message)| {
            let kind = [
                RepError::Unsup,
                RepError::Policy,
                RepError::Invalid,
                RepError::Platform,
                RepError::TlsReqd,
                RepError::Unknown,
                RepError::Shutdown,
                RepError::BlockSizeReqd,
                RepError::TooBig,
                RepError::ExtHeaderReqd,
                RepError::Other(99),
            ][n as usize - 1];
            OptionReply::Error { kind, message }
        }),
    ]
}

proptest! {
    #[test]
    fn options_round_trip(option in option()) {
        let mut bytes = Vec::new();
        option.encode(&mut bytes);
        let (head, data) = bytes.split_first_chunk::<{ OptionHeader::BYTES }>().unwrap();
        let header = OptionHeader::decode(head).unwrap();
        prop_assert_eq!(header.len as usize, data.len());
        prop_assert_eq!(ClientOption::decode(header.option, data).unwrap(), option);
    }

    #[test]
    fn option_replies_round_trip(reply in option_reply(), option in any::<u32>()) {
        let mut bytes = Vec::new();
        reply.encode(option, &mut bytes);
        let (head, data) = bytes.split_first_chunk::<{ OptionReplyHeader::BYTES }>().unwrap();
        let header = OptionReplyHeader::decode(head).unwrap();
        prop_assert_eq!(header.option, option);
        prop_assert_eq!(header.len as usize, data.len());
        prop_assert_eq!(OptionReply::decode(header.kind, data).unwrap(), reply);
    }

    #[test]
    fn requests_round_trip(flags in any::<u16>(), command in any::<u16>(), cookie in any::<u64>(),
                           offset in any::<u64>(), len in any::<u32>()) {
        let request = Request { flags: CommandFlags::from_bits(flags), command: Command::from_wire(command),
                                cookie: Cookie(cookie), offset, len };
        prop_assert_eq!(Request::decode(&request.encode()).unwrap(), request);
    }

    #[test]
    fn a_request_that_passes_the_check_lies_within_the_export(
        flags in 0_u16..64, command in 0_u16..10, offset in prop_oneof![any::<u64>(), 0_u64..1 << 20],
        len in prop_oneof![any::<u32>(), 0_u32..1 << 20], size_bytes in 0_u64..1 << 20, read_only in any::<bool>(),
    ) {
        let shape = ExportShape {
            size_bytes,
            flags: TransmissionFlags::HAS_FLAGS.with_if(TransmissionFlags::READ_ONLY, read_only),
            contexts: true,
            payload_bytes_max: 1 << 19,
            unfragmented_bytes_max: UNFRAGMENTED_BYTES_MIN,
        };
        let request = Request { flags: CommandFlags::from_bits(flags), command: Command::from_wire(command),
                                cookie: Cookie(1), offset, len };
        if request.check(&shape).is_ok() && !matches!(request.command, Command::Flush | Command::Disconnect) {
            prop_assert!(offset as u128 + u128::from(len) <= u128::from(size_bytes));
            prop_assert!(request.payload_bytes() <= shape.payload_bytes_max);
            prop_assert!(!(read_only && request.command.is_write()));
        }
    }

    #[test]
    fn hostile_option_bytes_never_panic(option in 0_u32..14, data in vec(any::<u8>(), 0..200)) {
        let _ = ClientOption::decode(option, &data);
    }

    #[test]
    fn hostile_option_reply_bytes_never_panic(kind in prop_oneof![0_u32..6, any::<u32>()], data in vec(any::<u8>(), 0..200)) {
        let _ = OptionReply::decode(kind, &data);
    }

    #[test]
    fn hostile_replies_never_panic_and_stay_within_their_request(
        structured in any::<bool>(), noise in vec(any::<u8>(), 0..400), heads in vec((0_u8..3, 0_u16..10), 0..6),
        steps in vec(1_usize..50, 0..40),
    ) {
        // Plausible heads with noise behind them get deeper than noise alone.
        let mut waiting = Waiting::default();
        waiting.0.insert(1, Expected { command: Command::Read, offset: 4096, len: 64 });
        waiting.0.insert(2, Expected { command: Command::BlockStatus, offset: 0, len: 1 << 20 });
        let mut stream = Vec::new();
        for (magic, kind) in heads {
            let cookie = Cookie(u64::from(kind % 3));
            match magic {
                0 => encode_simple(&mut stream, cookie, Errno::from_wire(u32::from(kind))),
                1 => {
                    stream.extend_from_slice(&MAGIC_STRUCTURED_REPLY.to_be_bytes());
                    stream.extend_from_slice(&[0, (kind % 2) as u8, (kind & 8) as u8 * 16, (kind % 6) as u8]);
                    stream.extend_from_slice(&cookie.0.to_be_bytes());
                    stream.extend_from_slice(&[0, 0, 0, 12 + (kind % 8) as u8]);
                }
                _ => stream.extend_from_slice(&noise[..noise.len().min(20)]),
            }
        }
        stream.extend_from_slice(&noise);
        if let Ok(said) = read_all(structured, &stream, &steps, &waiting) {
            for piece in said {
                if let Said::Data(_, offset, bytes) = piece {
                    prop_assert!(offset >= 4096 && offset + bytes.len() as u64 <= 4096 + 64);
                }
            }
        }
    }

    #[test]
    fn replies_read_the_same_however_they_are_cut(
        pieces in vec((0_u8..6, any::<u8>(), 1_u32..3000), 1..12), steps in vec(1_usize..700, 0..60),
    ) {
        let mut waiting = Waiting::default();
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for (i, (kind, byte, len)) in pieces.into_iter().enumerate() {
            let cookie = Cookie(i as u64 + 10);
            let command = if kind == 2 { Command::BlockStatus } else { Command::Read };
            waiting.0.insert(cookie.0, Expected { command, offset: 512, len });
            match kind {
                0 => {
                    encode_data_header(&mut stream, cookie, 512, len, true);
                    stream.extend(std::iter::repeat_n(byte, len as usize));
                    expected.push(Said::Data(cookie.0, 512, vec![byte; len as usize]));
                }
                1 => {
                    encode_hole(&mut stream, cookie, 512, len, false);
                    encode_none(&mut stream, cookie);
                    expected.push(Said::Hole(cookie.0, 512, len));
                }
                2 => {
                    let extents: Vec<_> = (0..len).map(|n| StatusExtent { len: n + 1, flags: u32::from(byte) }).collect();
                    encode_status(&mut stream, cookie, 7, &extents, true);
                    expected.push(Said::Status(cookie.0, 7, extents));
                }
                3 => {
                    encode_error(&mut stream, cookie, Errno::Io, "medium error", Some(512));
                    expected.push(Said::Error(cookie.0, Errno::Io, "medium error".into(), Some(512)));
                }
                4 => {
                    encode_error(&mut stream, cookie, Errno::NoSpc, &"é".repeat(200), None);
                    expected.push(Said::Error(cookie.0, Errno::NoSpc, "é".repeat(MESSAGE_BYTES_MAX / 2), None));
                }
                _ => {
                    encode_simple(&mut stream, cookie, Some(Errno::Shutdown));
                    expected.push(Said::Error(cookie.0, Errno::Shutdown, String::new(), None));
                }
            }
            expected.push(Said::Done(cookie.0));
        }
        prop_assert_eq!(read_all(true, &stream, &steps, &waiting).unwrap(), expected);
    }
}

#[test]
fn simple_replies_carry_the_data_of_a_read() {
    let mut waiting = Waiting::default();
    waiting.0.insert(5, Expected { command: Command::Read, offset: 100, len: 3 });
    waiting.0.insert(6, Expected { command: Command::Write, offset: 0, len: 9 });
    let mut stream = Vec::new();
    encode_simple(&mut stream, Cookie(5), None);
    stream.extend_from_slice(b"abc");
    encode_simple(&mut stream, Cookie(6), None);
    let want = vec![Said::Data(5, 100, b"abc".to_vec()), Said::Done(5), Said::Done(6)];
    for step in 1..stream.len() {
        assert_eq!(read_all(false, &stream, &vec![step; 40], &waiting).unwrap(), want);
    }
}

#[test]
fn fields_of_an_unknown_error_chunk_are_skipped() {
    let mut waiting = Waiting::default();
    waiting.0.insert(1, Expected { command: Command::Write, offset: 0, len: 9 });
    let mut stream = Vec::new();
    stream.extend_from_slice(&MAGIC_STRUCTURED_REPLY.to_be_bytes());
    stream.extend_from_slice(&[0, 1, 0x80, 77]);
    stream.extend_from_slice(&1_u64.to_be_bytes());
    stream.extend_from_slice(&[0, 0, 0, 6 + 2 + 30]);
    stream.extend_from_slice(&[0, 0, 0, 5, 0, 2, b'n', b'o']);
    stream.extend_from_slice(&[0xaa; 30]);
    encode_simple(&mut stream, Cookie(1), None);
    let want = vec![Said::Error(1, Errno::Io, "no".into(), None), Said::Done(1), Said::Done(1)];
    for step in 1..stream.len() {
        assert_eq!(read_all(true, &stream, &vec![step; 80], &waiting).unwrap(), want);
    }
}

#[test]
fn content_outside_the_request_is_refused() {
    let mut waiting = Waiting::default();
    waiting.0.insert(1, Expected { command: Command::Read, offset: 4096, len: 4096 });
    for (offset, len) in [(4095, 2), (4096, 4097), (8191, 2), (u64::MAX, 2)] {
        let mut stream = Vec::new();
        encode_hole(&mut stream, Cookie(1), offset, len, true);
        assert_eq!(
            read_all(true, &stream, &[], &waiting),
            Err(CodecError::Malformed("content chunk outside its request"))
        );
    }
    let mut stream = Vec::new();
    encode_none(&mut stream, Cookie(9));
    assert_eq!(read_all(true, &stream, &[], &waiting), Err(CodecError::UnknownCookie(9)));
}

#[test]
fn a_magic_that_is_not_one_ends_the_stream() {
    assert_eq!(Request::decode(&[0x11; 28]), Err(CodecError::RequestMagic(0x1111_1111)));
    assert_eq!(OptionHeader::decode(&[0; 16]), Err(CodecError::OptionMagic(0)));
    assert_eq!(OptionReplyHeader::decode(&[0; 20]), Err(CodecError::OptionReplyMagic(0)));
    assert_eq!(decode_client_flags([0, 0, 0, 7]), Err(CodecError::ClientFlags(4)));
    let greeting = encode_greeting(HandshakeFlags::FIXED_NEWSTYLE);
    assert_eq!(decode_greeting(&greeting), Ok(HandshakeFlags::FIXED_NEWSTYLE));
    assert_eq!(decode_greeting(b"HTTP/1.1 400 Bad R"), Err(CodecError::Greeting(0x4854_5450_2f31_2e31)));
}

#[test]
fn strings_and_lists_beyond_their_limits_are_too_big() {
    let mut long = Vec::new();
    long.extend_from_slice(&4097_u32.to_be_bytes());
    long.resize(4 + 4097 + 2, b'x');
    assert!(matches!(ClientOption::decode(opt::GO, &long), Err(OptionError::TooBig(_))));
    assert!(matches!(ClientOption::decode(opt::EXPORT_NAME, &[b'x'; 4097]), Err(OptionError::TooBig(_))));
    let queries = [0, 0, 0, 0, 0, 0, 0, 65];
    assert!(matches!(ClientOption::decode(opt::SET_META_CONTEXT, &queries), Err(OptionError::TooBig(_))));
    assert!(matches!(ClientOption::decode(opt::LIST, &[0]), Err(OptionError::Invalid(_))));
    assert!(matches!(ClientOption::decode(opt::EXPORT_NAME, &[0xff]), Err(OptionError::Invalid(_))));
}

#[test]
fn every_refusal_has_the_errno_of_the_protocol() {
    let all = TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_DF);
    let shape = ExportShape {
        size_bytes: 1 << 30,
        flags: all,
        contexts: true,
        payload_bytes_max: 32 << 20,
        unfragmented_bytes_max: 1 << 20,
    };
    let ask = |command, flags, offset, len, shape: &ExportShape| {
        let request = Request { flags, command, cookie: Cookie(1), offset, len };
        request.check(shape).err().map(|r| r.errno)
    };
    let (end, none, fua) = (1_u64 << 30, CommandFlags::NONE, CommandFlags::FUA);
    // Beyond the end: EINVAL for what reads, ENOSPC for what writes.
    assert_eq!(ask(Command::Read, none, end - 1, 2, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::Write, none, end - 1, 2, &shape), Some(Errno::NoSpc));
    assert_eq!(ask(Command::WriteZeroes, none, u64::MAX, 2, &shape), Some(Errno::NoSpc));
    assert_eq!(ask(Command::Trim, none, end, 1, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::Cache, none, end, 1, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::BlockStatus, none, end, 1, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::Read, none, end, 0, &shape), None);
    // FUA is allowed on everything; other flags only where they mean something.
    for command in [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes, Command::Cache] {
        assert_eq!(ask(command, fua, 0, 512, &shape), None);
    }
    assert_eq!(ask(Command::Flush, fua, 0, 0, &shape), None);
    assert_eq!(ask(Command::Flush, none, 0, 1, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::Write, CommandFlags::NO_HOLE, 0, 512, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::WriteZeroes, CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO), 0, 512, &shape), None);
    assert_eq!(ask(Command::Read, CommandFlags::REQ_ONE, 0, 512, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::BlockStatus, CommandFlags::REQ_ONE, 0, 512, &shape), None);
    assert_eq!(ask(Command::Read, CommandFlags::from_bits(1 << 5), 0, 512, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::Unknown(8), none, 0, 0, &shape), Some(Errno::Inval));
    // Sizes.
    assert_eq!(ask(Command::Read, none, 0, (32 << 20) + 1, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::Write, none, 0, u32::MAX, &shape), Some(Errno::Inval));
    assert_eq!(ask(Command::WriteZeroes, none, 0, 1 << 30, &shape), None);
    assert_eq!(ask(Command::Read, CommandFlags::DF, 0, 1 << 20, &shape), None);
    assert_eq!(ask(Command::Read, CommandFlags::DF, 0, (1 << 20) + 1, &shape), Some(Errno::Overflow));
    // What was not negotiated.
    let bare = ExportShape { flags: TransmissionFlags::HAS_FLAGS, contexts: false, ..shape };
    assert_eq!(ask(Command::Read, CommandFlags::DF, 0, 512, &bare), Some(Errno::Inval));
    assert_eq!(ask(Command::BlockStatus, none, 0, 512, &bare), Some(Errno::Inval));
    assert_eq!(ask(Command::BlockStatus, none, 0, 0, &shape), Some(Errno::Inval));
    // Read-only.
    let read_only = ExportShape { flags: all.with(TransmissionFlags::READ_ONLY), ..shape };
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        assert_eq!(ask(command, none, 0, 512, &read_only), Some(Errno::Perm));
    }
    assert_eq!(ask(Command::Flush, none, 0, 0, &read_only), None);
}

#[test]
fn errno_values_are_those_of_the_protocol() {
    let wire: Vec<u32> = Errno::ALL.iter().map(|e| e.to_wire()).collect();
    assert_eq!(wire, [1, 5, 12, 22, 28, 75, 95, 108]);
    for errno in Errno::ALL {
        assert_eq!(Errno::from_wire(errno.to_wire()), Some(errno));
    }
    assert_eq!(Errno::from_wire(0), None);
    assert_eq!(Errno::from_wire(4242), Some(Errno::Inval));
}
