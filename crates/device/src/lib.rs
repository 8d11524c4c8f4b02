//! The floor: I/O, network, time, randomness and tasks, in the real world.
