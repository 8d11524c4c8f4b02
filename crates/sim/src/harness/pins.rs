//! Ranges of grid disks that the administrator pins, and that a restart finds as they were acknowledged.
//!
//! What reads of them answer is the model's business; here only the catalog's word is compared.

use super::admin::Pending;
use super::plan::AU_BYTES;
use super::stage::{Life, Run};
use cell::AdminError;
use celldisk::{CachingPolicy, CachingRange, GridDisk, GridDiskId};
use device::sync::lock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By grid disk: its ranges as the catalog had them when a change was last acknowledged.
pub(super) type Pins = BTreeMap<u64, Vec<CachingRange>>;

impl Run {
    /// Pin a range; `offset` is taken modulo the size of the grid disk, and what would reach beyond its end is left out.
    pub(super) async fn pin(
        self: &Arc<Self>,
        life: &Life,
        place: u64,
        offset: u64,
        len: u64,
        policy: Option<CachingPolicy>,
    ) -> bool {
        let Some((id, name)) = self.target(place) else { return false };
        let catalog = life.cell.store().catalog();
        let Some(size_bytes) = catalog.grid_disks.get(&GridDiskId(id)).map(|record| record.size_bytes) else {
            return false;
        };
        let start = offset % size_bytes / 4096 * 4096;
        let bytes = start..start.saturating_add(len.next_multiple_of(4096).max(4096)).min(size_bytes);
        let cell = life.cell.clone();
        let store = life.cell.store().clone();
        let then = move |run: &Run, result: Result<(), AdminError>| match result {
            Ok(()) => {
                run.situations.hit(match policy {
                    None => "admin: range un-pinned",
                    Some(CachingPolicy::Default) => "admin: range pinned: default",
                    Some(CachingPolicy::Keep) => "admin: range pinned: keep",
                    Some(CachingPolicy::None) => "admin: range pinned: none",
                });
                if let Some(record) = store.catalog().grid_disks.get(&GridDiskId(id)) {
                    run.remember_pins(record);
                }
            }
            Err(error) => run.judge("pin", &error),
        };
        self.command(life, Pending::Pin { id }, async move { cell.pin(&name, bytes, policy).await }, then).await
    }

    pub(super) fn remember_pins(&self, record: &GridDisk) {
        lock(&self.admin).pins.insert(record.id.0, record.caching_ranges.clone());
    }

    /// A restart has found this record: its ranges are those acknowledged, unless a change was under way.
    pub(super) fn check_pins(&self, record: &GridDisk, pending: &[Pending], loose: bool) {
        let id = record.id.0;
        let known = lock(&self.admin).pins.insert(id, record.caching_ranges.clone()).unwrap_or_default();
        let under_way = pending.iter().any(|p| match p {
            Pending::Pin { id: of } | Pending::Resize { id: of, .. } => *of == id,
            _ => false,
        });
        if known == record.caching_ranges {
            if !known.is_empty() {
                self.situations.hit("pinned ranges found again after a restart");
            }
        } else if under_way {
            self.situations.hit("crash in a pin or resize: the ranges had changed");
        } else if !loose {
            let text = format!("grid disk {} has the ranges {:?}, not {known:?}", record.name, record.caching_ranges);
            self.violate("I2", format!("{text}, after a restart"));
        }
    }

    /// Nothing of it is pinned any more.
    pub(super) async fn unpin_all(self: &Arc<Self>, life: &Life, place: u64) {
        let _turn = self.admin_turn.acquire(1).await;
        let _answered = self.pin(life, place, 0, u64::MAX / AU_BYTES * AU_BYTES / 2, None).await;
    }
}
