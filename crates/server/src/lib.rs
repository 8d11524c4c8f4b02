//! The daemon: configuration, admin socket, serving.
