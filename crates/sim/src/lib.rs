//! The virtual world: deterministic executor, device models, faults, model checker.
