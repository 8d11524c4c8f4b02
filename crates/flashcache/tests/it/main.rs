//! The flash cache from outside, on devices in memory. One program, so that it is linked once.

mod believed;
mod checkpoint;
mod doubt;
mod endurance;
mod faults;
mod format;
mod fuzz_corpus;
mod keep;
mod members;
mod oracle;
mod quota;
mod restart;
mod running;
mod shifted;
