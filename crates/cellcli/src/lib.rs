//! CellCLI: one table of verbs, objects and attributes; text in, Command out.
