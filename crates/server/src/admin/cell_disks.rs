//! CREATE, ALTER and DROP of cell disks on the running cell: a device that was written into cell.toml joins without a restart.
//!
//! Never writes cell.toml: where devices are is for the operator to say.

use super::Context;
use super::change::{Refusal, Step, flush, stood, targets};
use crate::claim::tell_in_log;
use crate::config::{DeviceConfig, DeviceKind};
use crate::devices::{DeviceError, OpenDevice, OpenerError};
use crate::durability;
use cellcli::command::{Change, DiskType, Target};
use cellcli::{ErrorCode, ObjectType, format};
use celldisk::{Catalog, DeviceId, MemberStatus, Probe, Role};
use device::sync::lock;
use device::{Class, OpenError};
use std::path::Path;
use std::sync::Arc;

/// How a cell disk that is not counted as durable becomes one that is.
const CLASS_WAY_OUT: &str = "if a FLUSH on it does survive a power cut of the host: DROP CELLDISK, and CREATE CELLDISK \
                             with deviceClass=durable";

impl From<OpenerError> for Refusal {
    fn from(error: OpenerError) -> Refusal {
        let code = match &error {
            OpenerError::NotConfigured { .. } => ErrorCode::NoSuchObject,
            OpenerError::Open(_) => ErrorCode::ObjectExists,
            OpenerError::Remote(_) | OpenerError::Stopping => ErrorCode::NotPermittedNow,
            // Whoever has it lets go of it: this cell itself does, a moment after DROP.
            OpenerError::Device(DeviceError::Open(OpenError::InUse { .. }) | DeviceError::Claimed { .. }) => {
                ErrorCode::NotPermittedNow
            }
            OpenerError::Device(_) => ErrorCode::DeviceFailed,
        };
        let text = error.to_string();
        let (what, hint) = text.split_once("\nhint: ").map_or((text.as_str(), None), |(what, hint)| (what, Some(hint)));
        Refusal::new(code, what, hint)
    }
}

/// The attribute of the catalog with the comment on a cell disk.
pub(super) fn comment_key(id: DeviceId) -> String {
    format!("celldisk.comment.{id}")
}

pub(super) async fn create(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let disk_type = match &change.target {
        Target::All(disk_type) => *disk_type,
        Target::Names(names) => {
            let path = change.text("lun").unwrap_or("");
            for name in names {
                let opened = context.opener.open(path, &in_service(context), &context.world)?;
                create_one(context, change, opened, name, lines).await?;
            }
            return Ok(());
        }
        Target::Whole => None,
    };
    let wanted = |kind: DeviceKind| match disk_type {
        Some(DiskType::FlashDisk) => kind == DeviceKind::Flash,
        Some(DiskType::HardDisk) => kind == DeviceKind::Disk,
        None => true,
    };
    let mut found = context.opener.not_open(&in_service(context))?;
    found.retain(|device| wanted(device.kind));
    for device in &found {
        let path = device.path.display().to_string();
        let opened = context.opener.open(&path, &in_service(context), &context.world)?;
        if let Some(what) = label_on(&opened.0).await {
            lines.push(format!("{path} is passed over: it is {what}"));
            continue;
        }
        let name = free_name(&context.cell.store().catalog(), device.kind);
        create_one(context, change, opened, &name, lines).await?;
    }
    if found.is_empty() {
        let what = "every such device in cell.toml is a cell disk already";
        let hint = "add a [[device]] with path and kind = \"flash\" or \"disk\" to cell.toml first";
        return Err(Refusal::new(ErrorCode::NoSuchObject, what, Some(hint)));
    }
    Ok(())
}

/// The devices that serve cell disks: one that has failed may have made way for another at the same path.
fn in_service(context: &Context) -> Vec<Arc<OpenDevice>> {
    let statuses = context.cell.store().members();
    let serves = |device: &OpenDevice| {
        let status = device.device_id.and_then(|id| statuses.get(&id));
        matches!(status, Some(MemberStatus::InService(_)))
    };
    context.devices().into_iter().filter(|device| serves(device)).collect()
}

/// What a device is that has a cell disk on it: ALL makes none of it, whatever FORCE says.
async fn label_on(opened: &OpenDevice) -> Option<String> {
    match celldisk::probe(&opened.device()).await {
        Ok(Probe::Flashcell(label)) => Some(format!("cell disk {}", label.name)),
        Ok(Probe::Newer(_)) => Some("a cell disk of a later release".to_owned()),
        // Whether FORCE is needed, or anything would help, the making finds out.
        Ok(Probe::Blank | Probe::Foreign { .. } | Probe::Damaged { .. }) | Err(_) => None,
    }
}

/// As `flashcell init` names them: `CD_00_cell`, `FD_00_cell`, from the first number that is free.
fn free_name(catalog: &Catalog, kind: DeviceKind) -> String {
    let prefix = match kind {
        DeviceKind::Disk => "CD",
        DeviceKind::Flash => "FD",
    };
    let mut number = 0;
    loop {
        let name = format!("{prefix}_{number:02}_{}", catalog.cell_name);
        if catalog.member_named(&name).is_none() {
            return name;
        }
        number += 1;
    }
}

async fn create_one(
    context: &Arc<Context>,
    change: &Change,
    (mut opened, config): (OpenDevice, DeviceConfig),
    name: &str,
    lines: &mut Vec<String>,
) -> Step {
    if opened.adopted_bytes.is_some() {
        let what = format!("{} stands in cell.toml as an adopted volume", config.path.display());
        return Err(Refusal::new(
            ErrorCode::NotPermittedNow,
            what,
            Some("volumes are adopted by `flashcell adopt`, while the cell is stopped"),
        ));
    }
    let mut new = opened.to_be(&config, name.to_owned());
    let mut note = opened.durability.as_ref().and_then(|found| durability::note(name, found, CLASS_WAY_OUT));
    if let Some(class) = change.choice("deviceClass") {
        new.class = Some(if class == "durable" { Class::Durable } else { Class::Ephemeral });
        note = None;
    }
    if let Some(page_bytes) = change.size_bytes("truePageSize") {
        let fits = u32::try_from(page_bytes).ok().filter(|page| page.is_power_of_two() && *page >= 512);
        let refuse = || {
            let what = format!("truePageSize={page_bytes} is not a power of two from 512 up");
            Refusal::new(
                ErrorCode::InvalidValue,
                what,
                Some("truePageSize=4K, or 8K, 16K, … as the device's maker says"),
            )
        };
        new.page_bytes = Some(fits.ok_or_else(refuse)?);
    }
    let id = context.cell.create_cell_disk(new, change.force).await?;
    opened.device_id = Some(id);
    opened.claim(&context.world, tell_in_log).await.map_err(OpenerError::from)?;
    {
        let mut devices = lock(&context.devices);
        devices.retain(|device| device.path != opened.path);
        devices.push(Arc::new(opened));
    }
    if let Some(comment) = change.text("comment") {
        set_comment(context, &[id], comment).await?;
    }
    lines.push(format::created(ObjectType::CellDisk, name));
    lines.extend(note);
    Ok(())
}

async fn set_comment(context: &Context, ids: &[DeviceId], comment: &str) -> Step {
    let changed = context.cell.store().alter_cell(|catalog| {
        for id in ids {
            if comment.is_empty() {
                catalog.attributes.remove(&comment_key(*id));
            } else {
                catalog.attributes.insert(comment_key(*id), comment.to_owned());
            }
        }
    });
    stood(changed.await?);
    Ok(())
}

pub(super) async fn alter(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let names = targets(context, change)?;
    let catalog = context.cell.store().catalog();
    let ids: Vec<DeviceId> = names.iter().filter_map(|name| catalog.member_named(name).map(|(id, _)| id)).collect();
    if let Some(operation) = change.operation {
        // What is dirty is of grid disks: of those on a hard disk, and for flash of all that the cache is of.
        let all = ids.iter().any(|id| catalog.is_cached_on(id));
        let here = |record: &&celldisk::GridDisk| all || ids.contains(&record.cell_disk);
        let served = |record: &celldisk::GridDisk| context.cell.grid_disk(&record.name).is_some();
        let disks: Vec<String> = catalog
            .grid_disks
            .values()
            .filter(here)
            .filter(|record| served(record))
            .map(|record| record.name.clone())
            .collect();
        // None chosen are not all.
        if !disks.is_empty() {
            flush(context, operation, &disks, change.no_wait).await?;
        }
        lines.extend(names.iter().map(|name| format::altered(ObjectType::CellDisk, name)));
        return Ok(());
    }
    let new_name = change.text("name");
    if new_name.is_some() && names.len() != 1 {
        let what = format!("one name cannot be given to {} cell disks", names.len());
        return Err(Refusal::new(ErrorCode::InvalidValue, what, None));
    }
    if let Some(comment) = change.text("comment") {
        set_comment(context, &ids, comment).await?;
    }
    if let (Some(new_name), [id]) = (new_name, &ids[..]) {
        stood(context.cell.store().rename_cell_disk(*id, new_name).await?);
    }
    lines.extend(names.iter().map(|name| format::altered(ObjectType::CellDisk, new_name.unwrap_or(name))));
    Ok(())
}

pub(super) async fn drop(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    for name in targets(context, change)? {
        let member = context.cell.store().catalog().member_named(&name).map(|(id, member)| (id, member.role));
        context.cell.drop_cell_disk(&name, change.force).await?;
        let id = member.map(|(id, _)| id);
        let is_it = |device: &Arc<OpenDevice>| device.device_id.is_some() && device.device_id == id;
        let dropped: Vec<_> = lock(&context.devices).extract_if(.., |device| is_it(device)).collect();
        lines.push(format::dropped(ObjectType::CellDisk, &name));
        for device in dropped {
            device.wipe_claim().await;
            if member.is_some_and(|(_, role)| role == Role::Disk) {
                lines.push(leave_out(&device.path));
            }
        }
        let has_comment = |id: &DeviceId| context.cell.store().catalog().attributes.contains_key(&comment_key(*id));
        if let Some(id) = id.filter(has_comment) {
            set_comment(context, &[id], "").await?;
        }
    }
    Ok(())
}

/// A start refuses to go on without a disk that cell.toml names.
fn leave_out(path: &Path) -> String {
    format!("Take the [[device]] with path {} out of cell.toml before the next start.", path.display())
}
