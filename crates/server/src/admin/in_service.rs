//! ALTER GRIDDISK ... ACTIVE and INACTIVE, and what LIST GRIDDISK says of it in `asmDeactivationOutcome`.
//!
//! The two agree: INACTIVE without FORCE is refused where the attribute says anything but Yes.

use super::Context;
use super::change::{Refusal, Step, targets};
use crate::attach;
use cell::{Deactivation, GridDisk};
use cellcli::command::Change;
use cellcli::{ErrorCode, ObjectType, format};
use std::sync::Arc;

/// What the vendor's attribute says where nobody would miss the grid disk.
const YES: &str = "Yes";

/// `asmDeactivationOutcome` of a grid disk.
pub(super) fn deactivation_outcome(context: &Context, disk: &GridDisk) -> String {
    if disk.is_inactive() {
        return YES.to_owned();
    }
    // Somebody who has it attached is told of by name, not as the connections that are his.
    match (attach::attached_by(&context.dir, &disk.name()), disk.hindrance()) {
        (Some(holder), _) => format!("Cannot de-activate: attached by {}", holder.trim()),
        (None, Some(hindrance)) => format!("Cannot de-activate: {hindrance}"),
        (None, None) => YES.to_owned(),
    }
}

/// ACTIVE; with FORCE also what an operator gives up by it.
pub(super) async fn activate(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    for name in targets(context, change)? {
        let last_copy = context.cell.last_copy(&name);
        if change.force {
            // Redo of a cell disk is given up for all of its grid disks of that purpose.
            let others = context.cell.redo_waiters(&name);
            let others = others.iter().map(|disk| disk.name()).filter(|other| !other.eq_ignore_ascii_case(&name));
            let others: Vec<String> = others.collect();
            context.cell.accept_stale(&name).await?;
            lines.extend(others.iter().map(|other| format::altered(ObjectType::GridDisk, other)));
        }
        context.cell.activate(&name).await?;
        lines.push(format::altered(ObjectType::GridDisk, &name));
        lines.extend(last_copy.map(|what| match context.cell.last_copy(&name) {
            None => format!("GridDisk {name}: {what} is given up"),
            Some(_) => format!("GridDisk {name} is active and offline: its flash is out of reach"),
        }));
    }
    Ok(())
}

/// INACTIVE.
pub(super) async fn deactivate(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let how = Deactivation { force: change.force, no_wait: change.no_wait };
    let end_sessions = || {
        for (who, grid_disk) in context.front_end.end_unless(|_| true) {
            tracing::warn!(who, grid_disk, "a session ends: its grid disk was taken out of service");
        }
    };
    for name in targets(context, change)? {
        if let Some(holder) = attach::attached_by(&context.dir, &name).filter(|_| !how.force) {
            let what = format!("grid disk {name} is attached by {holder}");
            let hint = format!("`flashcell detach {name}` first; with FORCE its device waits for ACTIVE, then fails");
            return Err(Refusal::new(ErrorCode::NotPermittedNow, what, Some(&hint)));
        }
        context.cell.deactivate(&name, how, &end_sessions).await?;
        let dirty_bytes = context.cell.grid_disk(&name).map_or(0, |disk| disk.dirty_bytes());
        lines.push(format::altered(ObjectType::GridDisk, &name));
        if dirty_bytes > 0 {
            let size = cellcli::answer::size_text(dirty_bytes);
            lines.push(format!(
                "GridDisk {name} is inactive with {size} that flash alone holds: GD_BY_FC_DIRTY tells what is left"
            ));
        }
    }
    Ok(())
}
