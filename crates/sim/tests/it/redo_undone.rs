//! Goal: a redo write that has failed, and that the disk has over what a ring holds still, is not read as long as replay would undo it:
//! the first answer for a byte is final (I2), also over the death of the process. Method: a disk that takes a write over a record which its
//! ring is not rid of, while the ring has failed, and refuses the next one; then another life of the log on the same devices.

use device::layers::Memory;
use device::{Buf, Completion, Device, FailKind, Geometry, Io, Op, Outcome, World};
use flashlog::{FlashLog, LogConfig, LogReader, Mode, Owner, RedoDisk, RedoDiskConfig, ReplayTarget, RingDevice};
use futures_util::future::join;
use sim::plain::{full_of, in_a_world};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;
const SIZE: u64 = 1 << 20;
const OLD: u8 = 1;
const NEW: u8 = 2;

/// A disk with a volatile cache that refuses writes when it is told to.
struct Refusing {
    below: Device,
    refuses: AtomicBool,
}

impl Io for Refusing {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.below.geometry() }
    }

    fn submit(&self, op: Op) -> Completion {
        if matches!(op, Op::Write { .. }) && self.refuses.load(Ordering::Acquire) {
            return Completion::failed(FailKind::Media, op);
        }
        self.below.submit(op)
    }
}

struct Life {
    log: Arc<FlashLog>,
    redo: Arc<RedoDisk>,
}

/// A life of the log over these devices; `believed`: whether the disk's label counts the ring.
async fn life(disk: &Arc<Refusing>, flash: &Device, believed: bool, world: &World) -> Life {
    let owner = Owner { cell_id: 1, device_id: 1, log_id: 1 };
    let reader = LogReader::read(vec![RingDevice { device: flash.clone(), owner }], None).await;
    let rings = if believed { vec![0] } else { Vec::new() };
    let target = ReplayTarget { id: 1, device: disk.clone(), size_bytes: SIZE, rings, lives: 0..=u64::MAX };
    assert!(reader.replay(&target).await.is_ok());
    let number = reader.life() + 1;
    let log = reader.begin(LogConfig::default(), number, &[0], |_, _| false, world.clone()).await;
    let redo = log.attach(RedoDiskConfig {
        id: 1,
        device: disk.clone(),
        mode: Mode::Flash,
        barred: None,
        void: vec![false],
        is_flushed: true,
        counters: Arc::default(),
    });
    Life { log, redo }
}

/// The first page, as far as it can be read.
async fn first_page(redo: &Arc<RedoDisk>) -> Result<u8, FailKind> {
    let device: Device = redo.clone();
    let done = device.read(0, Buf::zeroed(PAGE).into()).await;
    done.outcome.ok().map(|()| done.bufs.to_vec(0..1)[0])
}

/// What is read once the write has failed, and what is read in the next life. `void`: the disk's label is told in between that nothing in
/// the ring counts.
fn read_in_two_lives(void: bool) -> (Result<u8, FailKind>, Result<u8, FailKind>) {
    in_a_world(async |_process, world| {
        let disk = Arc::new(Refusing { below: Memory::new(SIZE), refuses: AtomicBool::new(false) });
        let flash: Device = Memory::new(8 << 20);
        let Life { log, redo } = life(&disk, &flash, true, &world).await;
        let device: Device = redo.clone();
        assert_eq!(device.write(0, full_of(PAGE, OLD), true).await.outcome, Outcome::Done);
        assert!(redo.settle().await, "the disk has it durably, and nobody has asked the ring to be rid of it");
        log.fail_ring(0, "its flash has failed");
        let (failed, ()) = join(device.write(0, full_of(PAGE, NEW), true), async {
            // Once the disk has that, it refuses another one.
            world.clock.sleep(Duration::from_millis(10)).await;
            disk.refuses.store(true, Ordering::Release);
            let other = device.write(8 * PAGE as u64, full_of(PAGE, NEW), true).await;
            assert!(matches!(other.outcome, Outcome::Failed(_)), "{:?}", other.outcome);
        })
        .await;
        assert!(matches!(failed.outcome, Outcome::Failed(_)), "no ring has it, and replay would undo it");
        disk.refuses.store(false, Ordering::Release);
        if void {
            redo.ring_is_void(0);
        }
        let now = first_page(&redo).await;
        drop((device, redo, log));
        let next = life(&disk, &flash, !void, &world).await;
        (now, first_page(&next.redo).await)
    })
}

#[test]
fn a_failed_write_that_replay_undoes_is_not_read_before() {
    assert_eq!(read_in_two_lives(false), (Err(FailKind::Media), Ok(OLD)));
}

#[test]
fn a_failed_write_is_read_once_nothing_in_the_ring_counts() {
    assert_eq!(read_in_two_lives(true), (Ok(NEW), Ok(NEW)));
}
