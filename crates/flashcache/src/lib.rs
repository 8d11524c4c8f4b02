//! The flash cache: index, policy, segments, admission, recovery.
