//! Goal: whoever waits in the flash log for a flush of a disk hears when it fails, also where the grid disk leaves the log meanwhile and
//! nobody tells it of failed flushes any more. Method: a redo disk without flash, in virtual time, whose disk holds back a flush.

use device::layers::Memory;
use device::sync::Flag;
use device::{Completed, Completion, Device, FailKind, Geometry, Io, Op, Outcome};
use flashlog::{LogConfig, LogReader, Mode, RedoDiskConfig};
use futures_util::future::{Either, select};
use sim::plain::{full_of, in_a_world};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Holds flushes back, and refuses them in the end.
struct Refusing {
    below: Device,
    refuses: Arc<Flag>,
}

impl Io for Refusing {
    fn geometry(&self) -> Geometry {
        Geometry { volatile_cache: true, ..self.below.geometry() }
    }

    fn submit(&self, op: Op) -> Completion {
        if !matches!(op, Op::Flush) {
            return self.below.submit(op);
        }
        let refuses = self.refuses.clone();
        Completion::future(async move {
            refuses.until(true).await;
            Completed::bare(Outcome::Failed(FailKind::Media))
        })
    }
}

#[test]
fn a_flush_under_way_when_a_disk_leaves_the_log_is_answered_when_it_fails() {
    in_a_world(async |_process, world| {
        let refuses = Arc::new(Flag::default());
        let disk: Device = Arc::new(Refusing { below: Memory::new(1 << 20), refuses: refuses.clone() });
        let config = LogConfig { told_of_losses: true, ..LogConfig::default() };
        let log = LogReader::read(Vec::new(), None).await.begin(config, 1, &[], |_, _| false, world.clone()).await;
        let redo = log.attach(RedoDiskConfig {
            id: 3,
            device: disk,
            mode: Mode::Hedge,
            barred: None,
            void: Vec::new(),
            is_flushed: true,
            counters: Arc::default(),
        });
        let device: Device = redo.clone();
        assert_eq!(device.write(0, full_of(4096, 7), false).await.outcome, Outcome::Done);
        let mut flush = pin!(device.flush());
        let soon = |after| world.clock.sleep(after);
        assert!(matches!(select(flush.as_mut(), soon(Duration::from_millis(1))).await, Either::Right(_)));
        redo.leaves();
        refuses.set(true);
        match select(flush, soon(Duration::from_secs(60))).await {
            Either::Left((done, _)) => assert!(matches!(done.outcome, Outcome::Failed(_)), "{:?}", done.outcome),
            Either::Right(_) => panic!("it waits for ever"),
        }
    });
}
