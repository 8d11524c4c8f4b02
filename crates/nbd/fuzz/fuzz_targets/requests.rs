//! The request stream: any bytes. A request that passes the check lies within the export; what it decodes to encodes
//! to the same bytes; a refusal is one of the errors the protocol names.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::codec::{Command, Errno, ExportShape, Request, TransmissionFlags};

fuzz_target!(|data: &[u8]| {
    // Four bytes say what was negotiated.
    let Some((shape, mut rest)) = data.split_first_chunk::<4>() else { return };
    let shape = ExportShape {
        size_bytes: u64::from(shape[0]) << (shape[1] % 57),
        flags: TransmissionFlags::from_bits(u16::from(shape[2])),
        contexts: shape[3] & 1 != 0,
        payload_bytes_max: 1 << (12 + shape[3] % 14),
        unfragmented_bytes_max: 1 << (12 + shape[3] % 9),
    };
    while let Some((head, tail)) = rest.split_first_chunk::<{ Request::BYTES }>() {
        let Ok(request) = Request::decode(head) else { return };
        assert_eq!(&request.encode(), head);
        match request.check(&shape) {
            Ok(()) => {
                let ranged = !matches!(request.command, Command::Flush | Command::Disconnect);
                let end = u128::from(request.offset) + u128::from(request.len);
                assert!(!ranged || end <= u128::from(shape.size_bytes));
                assert!(request.payload_bytes() <= shape.payload_bytes_max);
                assert!(!(request.command.is_write() && shape.flags.contains(TransmissionFlags::READ_ONLY)));
                assert!(!matches!(request.command, Command::Unknown(_)));
            }
            Err(refusal) => assert!(Errno::ALL.contains(&refusal.errno) && !refusal.message.is_empty()),
        }
        let payload = (request.payload_bytes() as usize).min(tail.len());
        rest = &tail[payload..];
    }
});
