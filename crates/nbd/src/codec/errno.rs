//! The error values of the protocol: a closed set, not the errno of any system.

/// An error on the wire; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Errno {
    /// Not permitted: a write to a read-only export.
    #[error("EPERM: operation not permitted")]
    Perm,
    /// A device failed.
    #[error("EIO: input/output error")]
    Io,
    /// No memory.
    #[error("ENOMEM: cannot allocate memory")]
    NoMem,
    /// The request makes no sense here.
    #[error("EINVAL: invalid argument")]
    Inval,
    /// No space, or a write beyond the end.
    #[error("ENOSPC: no space left on device")]
    NoSpc,
    /// An unfragmented read that is too long for one chunk.
    #[error("EOVERFLOW: value too large")]
    Overflow,
    /// A fast zero that would be slow.
    #[error("ENOTSUP: operation not supported")]
    NotSup,
    /// The server is stopping.
    #[error("ESHUTDOWN: server is being shut down")]
    Shutdown,
}

impl Errno {
    /// Every value the protocol names.
    pub const ALL: [Errno; 8] = [
        Errno::Perm,
        Errno::Io,
        Errno::NoMem,
        Errno::Inval,
        Errno::NoSpc,
        Errno::Overflow,
        Errno::NotSup,
        Errno::Shutdown,
    ];

    /// The value on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u32 {
        match self {
            Errno::Perm => 1,
            Errno::Io => 5,
            Errno::NoMem => 12,
            Errno::Inval => 22,
            Errno::NoSpc => 28,
            Errno::Overflow => 75,
            Errno::NotSup => 95,
            Errno::Shutdown => 108,
        }
    }

    /// The error a server sent: none for 0, EINVAL for a value the protocol does not name, as it tells clients to.
    #[must_use]
    pub fn from_wire(value: u32) -> Option<Errno> {
        match value {
            0 => None,
            _ => Some(Errno::ALL.into_iter().find(|e| e.to_wire() == value).unwrap_or(Errno::Inval)),
        }
    }
}
