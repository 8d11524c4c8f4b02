//! Counters by fate. Plain atomics, never reset while the cell runs.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: AtomicU64,)* }

        impl $name {
            /// Every counter with its name.
            #[must_use]
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// What a member has done.
    pub struct Counters {
        /// Parts filled after a read miss.
        fills,
        /// Bytes of them.
        fill_bytes,
        /// Parts filled by writes.
        write_fills,
        /// Bytes of them.
        write_fill_bytes,
        /// Parts that were read before, fed or offered by a buffer cache.
        inserts,
        /// Bytes of them.
        insert_bytes,
        /// Fills refused: no free segment.
        fill_skips_space,
        /// Fills refused: no free buffer.
        fill_skips_buffer,
        /// Offers refused: a request to the device is late.
        fill_skips_slow,
        /// Fills refused by the policy.
        fill_skips_policy,
        /// Fills refused: the endurance budget is low.
        fill_skips_endurance,
        /// Fills refused: the index is full.
        fill_skips_index,
        /// Fills refused: the database has what the I/O plan lets it have.
        fill_skips_quota,
        /// Fills refused: already there.
        fill_skips_exists,
        /// Blocks evicted.
        evictions,
        /// Blocks written again at reclaim.
        moves,
        /// Bytes of them.
        move_bytes,
        /// Writes not cached: the endurance budget is low, and nothing has been read since flash was last written for it.
        overwrite_skips_endurance,
        /// Blocks not written again at reclaim: the endurance budget is empty, or low and the block has not been read since flash was last
        /// written for it.
        move_skips_endurance,
        /// Entries ended by a write.
        invalidations,
        /// Parts whose checksum did not match.
        rot_parts,
        /// Entries compared with the disk and found good.
        revalidated_good,
        /// Entries compared with the disk and found stale.
        revalidated_stale,
        /// Region marks made durable.
        marks,
        /// Segments cleaned: what counted in them was copied, since the rest was garbage.
        cleans,
        /// Bytes of records that were written again since their segment was freed.
        carried_bytes,
        /// Dirty parts copied by cleaning, as dirty.
        dirty_copies,
        /// Blocks that left at reclaim since there was no room to copy them.
        copy_skips_space,
        /// Times a write, or a record, waited for a free segment.
        space_waits,
        /// Region marks cleared.
        settles,
        /// Chunks written.
        chunks,
        /// Bytes written to flash, headers and footers included.
        flash_bytes_written,
        /// Flash flushes asked for by the log.
        flash_flushes,
        /// Chunks and footers written again, since a flush of the device had failed after they were written.
        written_again,
        /// Segments reclaimed.
        reclaims,
        /// Segments discarded (TRIM) before reuse.
        discards,
        /// Bytes of them.
        discard_bytes,
        /// Discards the device refused: the segments are reused all the same.
        discard_failures,
        /// Segments looked at and kept as they are: too much of them had been hit.
        keeps,
        /// Segments whose reuse waited for a reader.
        reader_waits,
        /// Blocks admitted to the main head at once: they came back soon after they had left.
        ghost_hits,
        /// Parts of KEEP data filled into the keep head.
        keep_fills,
        /// Bytes of them.
        keep_fill_bytes,
        /// Fills of KEEP data that went where DEFAULT data goes: its share was full.
        keep_skips_share,
        /// Blocks of KEEP data written again at the keep head at reclaim.
        keep_moves,
        /// Segments that became ones of the keep head as they are: most of them was KEEP data.
        keep_adopted,
        /// Segments of the keep head that were unused for so long that they count as others.
        keep_aged,
        /// Segments of the keep head in which nothing was KEEP data any more.
        keep_released,
        /// Segments of the keep head reclaimed since little of them was left and room was wanted.
        keep_cleans,
        /// Blocks of KEEP data that left the cache for want of room.
        keep_overwrites,
        /// Bytes of them.
        keep_overwritten_bytes,
        /// Blocks that left since their database has what the I/O plan lets it have.
        quota_evictions,
        /// Blocks written again at reclaim whatever the policy says: the I/O plan guarantees their database so much.
        quota_moves,
        /// Segments kept as they are for the same reason.
        quota_keeps,
        /// Blocks that left all the same: no room, or no budget, to write them again.
        quota_overwrites,
        /// Blocks of NONE ranges that were freed.
        none_frees,
        /// Parts written dirty: acknowledged from flash.
        dirty_writes,
        /// Bytes of them.
        dirty_write_bytes,
        /// Parts that were dirty when they were written dirty again: writes the disk is spared.
        dirty_overwrites,
        /// Dirty writes that went to the disk: no room.
        dirty_skips_space,
        /// Dirty writes that went to the disk: the database has what the I/O plan lets it have.
        dirty_skips_quota,
        /// Dirty parts the disk has been given durably.
        destages,
        /// Bytes of them.
        destage_bytes,
        /// Dirty parts found again at recovery.
        dirty_recovered,
        /// Dirty parts a power cut had torn before anything was said to be durable: they count as never written.
        dirty_torn,
        /// Dirty parts read here since another member could not.
        mirror_reads,
        /// Segments whose first page could not be read back at recovery, and whose footer said the same.
        segments_headless,
        /// Headers and footers found lost by the verification of the log, and written again.
        log_repairs,
        /// Segments of which the verification of the log found headers and footer lost, and could not write them again.
        log_damage,
        /// Flash I/O errors.
        errors,
    }
}

/// Add to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    if cfg!(not(uncounted)) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
