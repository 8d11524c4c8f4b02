//! What a session spends its time on, by the names the field knows them by.

/// A class of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Computing.
    Cpu,
    /// Reading from data files, also when another session reads the page.
    DbFileRead,
    /// Reading from the database flash cache.
    FlashCacheRead,
    /// No buffer can be reused: those that could are dirty, and the writer is behind.
    FreeBuffer,
    /// A session wants to change a block that is being written to its data file. Readers do not wait.
    WriteComplete,
    /// The same while it is being written to the flash cache.
    WriteCompleteFlash,
    /// A commit waits for its redo.
    LogFileSync,
}

impl Wait {
    /// Every class, in the order of the field's charts.
    pub const ALL: [Wait; 7] = [
        Wait::Cpu,
        Wait::DbFileRead,
        Wait::FlashCacheRead,
        Wait::FreeBuffer,
        Wait::WriteComplete,
        Wait::WriteCompleteFlash,
        Wait::LogFileSync,
    ];

    /// The field's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Wait::Cpu => "CPU",
            Wait::DbFileRead => "db file read",
            Wait::FlashCacheRead => "flash cache read",
            Wait::FreeBuffer => "free buffer waits",
            Wait::WriteComplete => "write complete waits",
            Wait::WriteCompleteFlash => "write complete waits: flash cache",
            Wait::LogFileSync => "log file sync",
        }
    }
}

/// Time spent in each class, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Waits([u64; Wait::ALL.len()]);

impl Waits {
    /// So much more of a class.
    pub fn add(&mut self, wait: Wait, ns: u64) {
        self.0[wait as usize] += ns;
    }

    /// Of one class.
    #[must_use]
    pub fn ns(&self, wait: Wait) -> u64 {
        self.0[wait as usize]
    }

    /// Of all.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those of another session as well.
    pub fn merge(&mut self, other: &Waits) {
        Wait::ALL.iter().for_each(|wait| self.add(*wait, other.ns(*wait)));
    }
}
