//! Mechanisms that a cache can do without, so that an experiment can tell what each is worth (`flashcell lab run --ablation`).
//!
//! Nothing but experiments takes one away: no configuration file names them. A cache without one is slower or writes more, and loses nothing.

/// A mechanism of the flash cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// The policy goes over to the strategy that would have missed least lately. Without, it stays with the first.
    Learning,
    /// A block that nothing is known of goes to the small head. Without, whatever is filled goes to the main head.
    Probation,
    /// While there is garbage, room is made by cleaning, and nothing that counts leaves. Without, the policy's victims make room.
    Cleaning,
    /// Overwritten and copied blocks are written apart by how long they last. Without, they go where the policy wants them, as in a cache of few
    /// segments.
    Lifetimes,
}
