//! NBD: sans-I/O codec, front-end sessions on a cell, client and remote disk.
