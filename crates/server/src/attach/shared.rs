//! What the keeper and the drivers of an attachment tell each other: numbers in memory that both have, and that outlives either.

use device::real::SharedWords;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

const STATE: usize = 0;
const STAMP_LOW: usize = 1;
const STAMP_HIGH: usize = 2;
/// Whether the two above are one.
const STAMP_KNOWN: usize = 3;
const UNFLUSHED: usize = 4;
const UNFLUSHED_BYTES: usize = 5;
const SIZE_BYTES: usize = 6;
const COMMAND: usize = 7;
const GIVEN_UP_BYTES: usize = 8;
const LINEAGE_LOW: usize = 9;
const LINEAGE_HIGH: usize = 10;

const GIVE_UP: u64 = 1;

/// How an attachment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// No driver has come up yet.
    Starting = 0,
    /// Requests are carried out.
    Up = 1,
    /// The cell is away; requests wait.
    Waiting = 2,
    /// Everything is answered EIO until it is detached.
    Failed = 3,
}

impl State {
    /// In one word.
    pub(super) fn word(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Up => "up",
            State::Waiting => "waiting for the cell",
            State::Failed => "failed",
        }
    }
}

/// See the module's head.
pub(super) struct Shared(pub(super) SharedWords);

impl Shared {
    fn get(&self, index: usize) -> u64 {
        self.0.at(index).load(Ordering::SeqCst)
    }

    fn set(&self, index: usize, value: u64) {
        self.0.at(index).store(value, Ordering::SeqCst);
    }

    pub(super) fn state(&self) -> State {
        match self.get(STATE) {
            1 => State::Up,
            2 => State::Waiting,
            3 => State::Failed,
            _ => State::Starting,
        }
    }

    pub(super) fn set_state(&self, state: State) {
        self.set(STATE, state as u64);
    }

    /// The instance stamp under which the writes were acknowledged that no FLUSH has covered.
    pub(super) fn stamp(&self) -> Option<u128> {
        (self.get(STAMP_KNOWN) != 0).then(|| u128::from(self.get(STAMP_HIGH)) << 64 | u128::from(self.get(STAMP_LOW)))
    }

    /// Nothing is remembered of a stamp halfway: a driver that dies in between leaves one that fits no server.
    pub(super) fn set_stamp(&self, stamp: Option<u128>) {
        self.set(STAMP_KNOWN, 0);
        let value = stamp.unwrap_or(0);
        self.set(STAMP_LOW, value as u64);
        self.set(STAMP_HIGH, (value >> 64) as u64);
        self.set(STAMP_KNOWN, u64::from(stamp.is_some()));
    }

    /// Who the drivers of this attachment are to the cell, one after the other; `random` when none has said so yet.
    pub(super) fn lineage(&self, random: u128) -> u128 {
        if self.get(LINEAGE_LOW) == 0 {
            self.set(LINEAGE_HIGH, (random >> 64) as u64);
            // Last: a driver that dies in between has said nothing.
            self.set(LINEAGE_LOW, random as u64 | 1);
        }
        u128::from(self.get(LINEAGE_HIGH)) << 64 | u128::from(self.get(LINEAGE_LOW))
    }

    /// Whether writes were acknowledged that no FLUSH has covered. Said before the first of them is.
    pub(super) fn is_unflushed(&self) -> bool {
        self.get(UNFLUSHED) != 0
    }

    pub(super) fn set_unflushed(&self, is: bool) {
        if self.is_unflushed() != is {
            self.set(UNFLUSHED, u64::from(is));
        }
    }

    /// Bytes of these, as of half a second ago at most.
    pub(super) fn unflushed_bytes(&self) -> u64 {
        self.get(UNFLUSHED_BYTES)
    }

    pub(super) fn set_unflushed_bytes(&self, bytes: u64) {
        self.set(UNFLUSHED_BYTES, bytes);
    }

    /// How large the grid disk is.
    pub(super) fn size_bytes(&self) -> u64 {
        self.get(SIZE_BYTES)
    }

    pub(super) fn set_size_bytes(&self, bytes: u64) {
        self.set(SIZE_BYTES, bytes);
    }

    /// Have everything answered EIO.
    pub(super) fn ask_to_give_up(&self) {
        self.set(COMMAND, GIVE_UP);
    }

    pub(super) fn is_to_give_up(&self) -> bool {
        self.get(COMMAND) == GIVE_UP
    }

    /// Bytes of acknowledged writes that nobody will ever flush.
    pub(super) fn given_up_bytes(&self) -> u64 {
        self.get(GIVEN_UP_BYTES)
    }

    pub(super) fn set_given_up_bytes(&self, bytes: u64) {
        self.set(GIVEN_UP_BYTES, bytes);
    }
}
