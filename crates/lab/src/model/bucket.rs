//! What is sustained at a rate, with so much ahead of it: the garbage a drive collects, credits of a volume, a cache that fills.
//!
//! Everything is counted in the time it takes at the rate.

/// See the module. Times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// What may be ahead.
    burst_ns: u64,
    /// When all so far is done at the rate.
    done_at: u64,
}

impl Bucket {
    /// With so much ahead at most, `used_ns` of which is used by now.
    pub(crate) fn new(burst_ns: u64, used_ns: u64, now: u64) -> Bucket {
        Bucket { burst_ns, done_at: now + used_ns.min(burst_ns) }
    }

    /// Something that takes so long at the rate comes now: how long it has to wait.
    pub(crate) fn take(&mut self, now: u64, each_ns: u64) -> u64 {
        self.done_at = self.done_at.max(now) + each_ns;
        (self.done_at - now).saturating_sub(self.burst_ns)
    }
}

/// How long so many take at so many a second.
pub(crate) fn time_ns(count: u64, per_s: u64) -> u64 {
    (u128::from(count) * 1_000_000_000 / u128::from(per_s.max(1))).min(u128::from(u64::MAX / 4)) as u64
}

/// How long so many bytes take at so many nanoseconds for each KiB.
pub(crate) fn moved_ns(bytes: u64, ns_per_kib: u64) -> u64 {
    (u128::from(bytes) * u128::from(ns_per_kib) / 1024).min(u128::from(u64::MAX / 4)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ahead_is_used_up_and_comes_back() {
        let mut bucket = Bucket::new(30, 0, 100);
        let waits = |bucket: &mut Bucket, now| (0..5).map(|_| bucket.take(now, 10)).collect::<Vec<_>>();
        assert_eq!(waits(&mut bucket, 100), [0, 0, 0, 10, 20]);
        // 20 later two of five are done; 40 later all but one.
        assert_eq!(bucket.take(120, 10), 10);
        assert_eq!(bucket.take(1_000, 10), 0);
        assert_eq!(waits(&mut Bucket::new(30, 30, 0), 0), [10, 20, 30, 40, 50]);
        assert_eq!([time_ns(3, 3_000), time_ns(5, 0), time_ns(u64::MAX, 1)], [1_000_000, 5_000_000_000, u64::MAX / 4]);
    }
}
