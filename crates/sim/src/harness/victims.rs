//! A test double of a buffer cache: it keeps blocks it has read, lets go of them later, and offers them to the cell.
//!
//! Never looks whether what it keeps is still current: that is the cell's to find out.

use super::stage::Run;
use cell::{Note, Offered, Session, VictimSink};
use device::SharedBufs;
use device::sync::lock;
use std::collections::VecDeque;
use std::ops::Range;

/// Blocks kept, of all grid disks.
const KEPT_MAX: usize = 32;

/// A block that was read.
struct Victim {
    disk: u64,
    note: Note,
    data: SharedBufs,
}

/// Blocks that were read, oldest first.
#[derive(Default)]
pub(super) struct Victims(VecDeque<Victim>);

impl Victims {
    /// The process has died, and the buffer cache with it.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn keep(&mut self, victim: Victim) {
        if self.0.len() == KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(victim);
    }

    fn take(&mut self, disk: u64) -> Option<Victim> {
        let at = self.0.iter().position(|victim| victim.disk == disk)?;
        self.0.remove(at)
    }
}

impl Run {
    /// Before a read whose block may be kept.
    pub(super) async fn note_block(&self, session: &Session, number: u64, range: &Range<u64>) -> Option<Note> {
        if number.is_multiple_of(3) { session.note(range.start, range.end - range.start).await } else { None }
    }

    /// It was read.
    pub(super) fn keep_block(&self, disk: u64, note: Note, data: SharedBufs) {
        lock(&self.victims).keep(Victim { disk, note, data });
    }

    /// Let go of the block of a grid disk that was kept longest.
    pub(super) async fn offer_block(&self, session: &Session, disk: u64) {
        let Some(Victim { note, data, .. }) = lock(&self.victims).take(disk) else { return };
        self.situations.hit(match session.offer(note, data).await {
            Offered::Inserted => "offered by a buffer cache: inserted",
            Offered::Exists => "offered by a buffer cache: exists",
            Offered::NotCurrent => "offered by a buffer cache: not current",
            Offered::WriterOverloaded => "offered by a buffer cache: writer overloaded",
            Offered::NotUseful => "offered by a buffer cache: not useful",
        });
    }
}
