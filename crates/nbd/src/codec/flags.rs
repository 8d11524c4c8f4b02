//! Flag words of the protocol. Unknown bits are kept, so that the caller decides what they mean.

macro_rules! flag_word {
    ($(#[$meta:meta])* $name:ident: $repr:ty { $($(#[$flag_meta:meta])* $flag:ident = $bit:expr;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($repr);

        impl $name {
            $($(#[$flag_meta])* pub const $flag: $name = $name(1 << $bit);)*

            /// No flag.
            pub const NONE: $name = $name(0);
            /// Every flag with a name here.
            pub const KNOWN: $name = $name(0 $(| 1 << $bit)*);

            /// The word as it is on the wire, unknown bits included.
            #[must_use]
            pub const fn from_bits(bits: $repr) -> $name {
                $name(bits)
            }

            /// The word for the wire.
            #[must_use]
            pub const fn bits(self) -> $repr {
                self.0
            }

            /// Whether all of `flags` are set.
            #[must_use]
            pub const fn contains(self, flags: $name) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// The bits that have no name here.
            #[must_use]
            pub const fn unknown(self) -> $repr {
                self.0 & !Self::KNOWN.0
            }

            /// These and `other`.
            #[must_use]
            pub const fn with(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }

            /// These and `other` when `condition` holds.
            #[must_use]
            pub const fn with_if(self, other: $name, condition: bool) -> $name {
                if condition { self.with(other) } else { self }
            }

            /// These without `other`.
            #[must_use]
            pub const fn without(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }
    };
}

flag_word! {
    /// What a server offers in its greeting.
    HandshakeFlags: u16 {
        /// Options other than EXPORT_NAME are answered.
        FIXED_NEWSTYLE = 0;
        /// The 124 zeroes after EXPORT_NAME can be left out.
        NO_ZEROES = 1;
    }
}

flag_word! {
    /// What a client takes of the greeting.
    ClientFlags: u32 {
        /// The client knows option replies.
        FIXED_NEWSTYLE = 0;
        /// No 124 zeroes, please.
        NO_ZEROES = 1;
    }
}

flag_word! {
    /// What an export can do.
    TransmissionFlags: u16 {
        /// Always set.
        HAS_FLAGS = 0;
        /// Writes are refused.
        READ_ONLY = 1;
        /// FLUSH is there.
        SEND_FLUSH = 2;
        /// The FUA flag is there.
        SEND_FUA = 3;
        /// Seeks cost time.
        ROTATIONAL = 4;
        /// TRIM is there.
        SEND_TRIM = 5;
        /// WRITE_ZEROES is there.
        SEND_WRITE_ZEROES = 6;
        /// The DF flag is there (structured replies only).
        SEND_DF = 7;
        /// FLUSH and FUA cover all connections.
        CAN_MULTI_CONN = 8;
        /// RESIZE is there (an extension nobody here speaks).
        SEND_RESIZE = 9;
        /// CACHE is there.
        SEND_CACHE = 10;
        /// The FAST_ZERO flag is there.
        SEND_FAST_ZERO = 11;
    }
}

flag_word! {
    /// Flags of a request.
    CommandFlags: u16 {
        /// Durable before the reply.
        FUA = 0;
        /// WRITE_ZEROES keeps the space allocated.
        NO_HOLE = 1;
        /// READ answers in one content chunk.
        DF = 2;
        /// BLOCK_STATUS answers with one extent per context.
        REQ_ONE = 3;
        /// WRITE_ZEROES fails rather than be as slow as writing.
        FAST_ZERO = 4;
    }
}
