//! CREATE and DROP of flash cell disks on the running cell: a device that was written into cell.toml joins without a restart.
//!
//! Never writes cell.toml: where devices are is for the operator to say.

use super::Context;
use super::change::{Refusal, Step, targets};
use crate::claim::tell_in_log;
use crate::devices::{OpenDevice, OpenerError};
use cellcli::command::{Change, Target};
use cellcli::{ErrorCode, ObjectType, format};
use celldisk::MemberStatus;
use device::sync::lock;
use std::sync::Arc;

impl From<OpenerError> for Refusal {
    fn from(error: OpenerError) -> Refusal {
        let code = match &error {
            OpenerError::NotConfigured { .. } => ErrorCode::NoSuchObject,
            OpenerError::Open(_) => ErrorCode::ObjectExists,
            OpenerError::Remote(_) => ErrorCode::NotSupported,
            OpenerError::Stopping => ErrorCode::NotPermittedNow,
            OpenerError::Device(_) => ErrorCode::DeviceFailed,
        };
        let text = error.to_string();
        let (what, hint) = text.split_once("\nhint: ").map_or((text.as_str(), None), |(what, hint)| (what, Some(hint)));
        Refusal::new(code, what, hint)
    }
}

pub(super) async fn create(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    let Target::Names(names) = &change.target else {
        return Err(Refusal::unsupported("CREATE CELLDISK ALL on a running cell"));
    };
    if let Some(other) = change.settings.iter().find(|setting| setting.name != "lun") {
        return Err(Refusal::unsupported(format!("{} of CELLDISK; state it in cell.toml: that", other.name)));
    }
    let path = change.text("lun").unwrap_or("");
    for name in names {
        // A device that has failed may have made way for another at the same path.
        let statuses = context.cell.store().members();
        let in_service = |device: &&Arc<crate::devices::OpenDevice>| {
            let status = device.device_id.and_then(|id| statuses.get(&id));
            matches!(status, Some(MemberStatus::InService(_)))
        };
        let open: Vec<_> = context.devices().iter().filter(in_service).cloned().collect();
        let (mut opened, config) = context.opener.open(path, &open, &context.world)?;
        let id = context.cell.create_cell_disk(opened.to_be(&config, name.clone()), change.force).await?;
        opened.device_id = Some(id);
        opened.claim(&context.world, tell_in_log).await.map_err(OpenerError::from)?;
        {
            let mut devices = lock(&context.devices);
            devices.retain(|device| device.path != opened.path);
            devices.push(Arc::new(opened));
        }
        lines.push(format::created(ObjectType::CellDisk, name));
    }
    Ok(())
}

pub(super) async fn drop(context: &Arc<Context>, change: &Change, lines: &mut Vec<String>) -> Step {
    if change.setting("erase").is_some() {
        return Err(Refusal::unsupported("erase="));
    }
    if !matches!(change.target, Target::Names(_)) {
        return Err(Refusal::unsupported("DROP CELLDISK ALL on a running cell"));
    }
    for name in targets(context, change)? {
        let id = context.cell.store().catalog().member_named(&name).map(|(id, _)| id);
        context.cell.drop_cell_disk(&name).await?;
        let is_it = |device: &Arc<OpenDevice>| device.device_id.is_some() && device.device_id == id;
        let dropped: Vec<_> = lock(&context.devices).extract_if(.., |device| is_it(device)).collect();
        for device in dropped {
            device.release().await;
        }
        lines.push(format::dropped(ObjectType::CellDisk, &name));
    }
    Ok(())
}
