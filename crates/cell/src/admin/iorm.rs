//! The plan of a cell: read from the catalog at the start, changed as a whole or not at all.
//!
//! Never goes by a plan that the catalog does not have.

use crate::disk::error::AdminError;
use crate::lifecycle::cell::Cell;
use crate::lifecycle::open::OpenReport;
use crate::plan::iorm_plan::{Directive, Objective, Plan};
use crate::plan::{profile, text};

/// What to change of a plan; what is none stays.
#[derive(Clone, Debug, Default)]
pub struct PlanChange {
    /// What the scheduler aims at.
    pub objective: Option<Objective>,
    /// These directives instead of all there are.
    pub directives: Option<Vec<Directive>>,
    /// Carried out or not.
    pub active: Option<bool>,
    /// Databases that get a profile, or lose theirs.
    pub profiles: Vec<(String, Option<String>)>,
}

impl Cell {
    /// Go by the plan of the catalog. One that cannot be read stops nothing: the cell serves as if there were none, and says so.
    pub(crate) fn load_plan(&self, report: &mut OpenReport) {
        match text::read(&self.store().catalog().iorm_plan) {
            Ok(plan) => {
                // Nobody has a number yet that would have to be taken.
                let _ = self.iorm.make_room(&plan);
                self.iorm.set(plan);
                self.resize_quotas();
            }
            Err(error) => {
                let note = format!("serving without an I/O resource plan: {error}");
                self.alert(note.clone());
                report.notes.push(note);
            }
        }
    }

    /// Change the I/O resource plan. In force, for requests that wait already too, and durable when this returns.
    ///
    /// # Errors
    /// The plan would contradict itself, states what this cell does not do, or no device takes the change: then nothing changes.
    pub async fn alter_iorm_plan(&self, change: PlanChange) -> Result<(), AdminError> {
        let _turn = self.turn().await?;
        let before = self.iorm.plan();
        let objective = change.objective.unwrap_or(before.objective);
        let inactive = change.active.map_or(before.inactive, |active| !active);
        let directives = change.directives.unwrap_or_else(|| before.directives().to_vec());
        let assignments = profile::changed(before.assignments(), &change.profiles);
        let plan = Plan::with_profiles(objective, inactive, directives, assignments)?;
        if let Some(size_bytes) = self.flash_cache().map(|cache| cache.members().map(|m| m.size_bytes()).sum()) {
            plan.check_flash_cache(size_bytes)?;
        }
        let written = text::write(&plan);
        if written != self.store().catalog().iorm_plan {
            let changed = self.store().alter_cell(|catalog| catalog.iorm_plan = written).await;
            self.stood(changed?);
        }
        for tenant in self.iorm.make_room(&plan) {
            if let Some(cache) = self.flash_cache() {
                cache.disown(tenant).await;
            }
        }
        self.iorm.set(plan);
        Ok(())
    }

    /// The flash cache has other members: what the plan says of it counts for what there is now.
    pub(crate) fn resize_quotas(&self) {
        let Some(cache) = self.flash_cache() else { return };
        let size_bytes = cache.members().map(|member| member.size_bytes()).sum();
        self.iorm.set_cache_bytes(size_bytes);
        if let Err(error) = self.iorm.plan().check_flash_cache(size_bytes) {
            self.alert(format!("the I/O resource plan guarantees less than it states: {error}"));
        }
    }
}
