//! The option phase: any bytes, cut anywhere, against a server with two exports, with and without TLS before it. What comes out
//! must be replies a client can read, only so much may be held back, and before TLS nothing is told.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::codec::{OptionReply, OptionReplyHeader, TransmissionFlags};
use nbd::server::{ExportInfo, Exports, Negotiation, NoExport, Step};

struct Two;

impl Exports for Two {
    fn list(&self) -> Vec<(String, String)> {
        vec![("data".into(), "grid disk".into()), ("redo".into(), String::new())]
    }
    fn find(&self, name: &str) -> Result<ExportInfo, NoExport> {
        let (grid_disk, database) = name.split_once('@').map_or((name, None), |(g, d)| (g, Some(d)));
        if grid_disk == "temp" {
            return Err(NoExport::NotForYou("temp is not for you".into()));
        }
        let known = matches!(grid_disk, "data" | "redo").then(|| ExportInfo {
            name: name.into(),
            grid_disk: grid_disk.into(),
            database: database.map(Into::into),
            description: "grid disk".into(),
            size_bytes: 1 << 30,
            flags: TransmissionFlags::HAS_FLAGS,
            block_bytes_preferred: 4096,
            block_bytes_max: 32 << 20,
        });
        known.ok_or(NoExport::Unknown)
    }
    fn instance_stamp(&self) -> u128 {
        7
    }
}

fuzz_target!(|data: &[u8]| {
    // The first byte says how the stream is cut; an odd one is a door where TLS comes first.
    let Some((cut, data)) = data.split_first() else { return };
    let mut tls_due = cut % 2 == 1;
    let cut = usize::from(*cut).max(1) * 7;
    let mut negotiation = if tls_due { Negotiation::before_tls() } else { Negotiation::new() };
    let mut out = Vec::new();
    let (mut used_in_all, mut have) = (0, cut.min(data.len()));
    let mut ended_with_export_name = false;
    loop {
        let Ok((used, step)) = negotiation.input(&data[used_in_all..have], &Two, &mut out) else { break };
        used_in_all += used;
        assert!(used_in_all <= have);
        match step {
            Step::More if have == data.len() => break,
            Step::More => {
                assert!(have - used_in_all <= Negotiation::CARRY_BYTES_MAX, "it asks to keep too much");
                have = (have + cut).min(data.len());
            }
            Step::Next => {}
            Step::StartTls => {
                assert!(tls_due, "once, and where it was asked for");
                tls_due = false;
                assert_eq!(told(&out).last(), Some(&OptionReply::Ack));
                let before = told(&out);
                assert!(before[..before.len() - 1].iter().all(|it| matches!(it, OptionReply::Error { .. })), "{before:?}");
                // The rest stands for what comes over TLS.
                negotiation = negotiation.secured();
            }
            Step::Chosen(chosen) => {
                assert!(!tls_due, "an export without TLS");
                assert!(chosen.export.grid_disk == "data" || chosen.export.grid_disk == "redo");
                assert!(chosen.contexts.is_empty() || chosen.structured);
                // Its answer has a shape of its own: size, flags, perhaps zeroes; it is no option reply.
                ended_with_export_name = !out.ends_with(&[0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0]);
                break;
            }
            Step::Close => break,
        }
    }
    if ended_with_export_name {
        return;
    }
    let told = told(&out);
    if tls_due {
        // An error to each option; ABORT alone is acknowledged, at the end.
        let allowed = |it: &OptionReply| matches!(it, OptionReply::Error { .. } | OptionReply::Ack);
        assert!(told.iter().all(allowed) && told.iter().rev().skip(1).all(|it| *it != OptionReply::Ack), "{told:?}");
    }
});

/// The replies in what came out.
fn told(mut rest: &[u8]) -> Vec<OptionReply> {
    let mut replies = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_first_chunk::<{ OptionReplyHeader::BYTES }>().expect("whole replies");
        let header = OptionReplyHeader::decode(head).expect("replies a client can read");
        let (data, tail) = tail.split_at(header.len as usize);
        replies.push(OptionReply::decode(header.kind, data).expect("replies a client can read"));
        rest = tail;
    }
    replies
}
