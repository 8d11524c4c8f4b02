//! The allowance of writes: what misses earn and what fills and moves spend, so that flash is written at most so much for
//! each byte missed.

use crate::admission::policy::CacheShape;
use std::sync::atomic::{AtomicI64, Ordering};

/// Written per missed page, in 1/1024: 1.1, less what rounding costs.
const EARNED_PER_PAGE: i64 = 1120;
const UNIT: i64 = 1024;

/// An allowance in 1/1024 pages.
pub(crate) struct Purse {
    content: AtomicI64,
    content_max: i64,
    price_per_page: i64,
}

impl Purse {
    /// Empty; holds at most what half the cache would cost.
    pub(crate) fn new(shape: &CacheShape) -> Purse {
        let written = i64::from(shape.segment_written_pages) * UNIT;
        let price_per_page = written / i64::from(shape.segment_data_pages).max(1);
        let content_max = (shape.data_pages() as i64 / 2).saturating_mul(price_per_page);
        Purse { content: AtomicI64::new(0), content_max, price_per_page }
    }

    /// So many pages were missed.
    pub(crate) fn earn(&self, pages: u32) {
        let more = i64::from(pages) * EARNED_PER_PAGE;
        if self.content.load(Ordering::Relaxed) + more <= self.content_max {
            self.content.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Pages are written whatever the purse holds.
    pub(crate) fn spend(&self, pages: u32) {
        self.content.fetch_sub(i64::from(pages) * self.price_per_page, Ordering::Relaxed);
    }

    /// Pages that were paid for are not written.
    pub(crate) fn refund(&self, pages: u32) {
        self.content.fetch_add(i64::from(pages) * self.price_per_page, Ordering::Relaxed);
    }

    /// Pages are written if they can be paid for.
    pub(crate) fn try_spend(&self, pages: u32) -> bool {
        let price = i64::from(pages) * self.price_per_page;
        let paid = self.content.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |content| {
            Some(content - price).filter(|left| *left >= 0)
        });
        paid.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_spends_more_than_was_earned() {
        let shape = CacheShape {
            segments: 64,
            reserve: 4,
            segment_data_pages: 100,
            segment_written_pages: 104,
            block_pages: 1,
        };
        let purse = Purse::new(&shape);
        assert!(!purse.try_spend(1));
        let mut moved = 0_u64;
        for _ in 0..10_000 {
            purse.earn(1);
            purse.spend(1);
            while purse.try_spend(1) {
                moved += 1;
            }
        }
        let written = (10_000 + moved) * 104 / 100;
        assert!((10_700..=11_000).contains(&written), "{written} written for 10000 missed");
        (0..1_000_000).for_each(|_| purse.earn(1));
        let hoard = (0..1_000_000).filter(|_| purse.try_spend(1)).count() as u64;
        assert!(hoard.abs_diff(shape.data_pages() / 2) <= 1, "it hoards no more than it can use: {hoard}");
    }
}
