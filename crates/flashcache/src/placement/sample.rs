//! Some of what is cached, at random.

use crate::base::disk::DiskHandle;
use crate::placement::cache::FlashCache;
use device::Prng;

impl FlashCache {
    /// At most `max` parts of a grid disk that are cached and should be on the disk as well: neither dirty, nor suspect since a crash. One for each
    /// entry of the index at most, each entry as likely as another. Walks over the index.
    #[must_use]
    pub fn sample_clean(&self, disk: &DiskHandle, max: usize, prng: &mut Prng) -> Vec<u64> {
        let (mut kept, mut seen) = (Vec::with_capacity(max), 0_u64);
        for seat in self.seats.iter().filter(|seat| !seat.member.has_failed()) {
            let block_parts = u64::from(seat.member.block_parts);
            seat.member.index.for_each(|entry| {
                if entry.key().slot() != disk.slot || entry.dirty() || entry.suspect() || entry.valid() == 0 {
                    return;
                }
                seen += 1;
                // Reservoir sampling (Vitter 1985, algorithm R).
                let place = if kept.len() < max { kept.len() as u64 } else { prng.below(seen) };
                if place >= max as u64 {
                    return;
                }
                let nth = prng.below(u64::from(entry.valid().count_ones())) as usize;
                let valid = (0..16_u64).filter(|at| entry.valid() >> at & 1 == 1).nth(nth);
                let part = entry.key().block() * block_parts + valid.unwrap_or_default();
                match kept.get_mut(place as usize) {
                    Some(old) => *old = part,
                    None => kept.push(part),
                }
            });
        }
        kept
    }
}
