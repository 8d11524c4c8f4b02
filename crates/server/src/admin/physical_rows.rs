//! PHYSICALDISK and LUN: the devices below the cell disks. What is not known of a device that is not there is not shown.

use super::Context;
use crate::durability::class_name;
use cellcli::{ObjectType, Row, Value};
use celldisk::{Catalog, DeviceId, MemberStatus, Role};
use device::layers::stats::VerbSnapshot;
use device::{Io, Verb};

fn integer(n: u64) -> Value {
    Value::Integer(i64::try_from(n).unwrap_or(i64::MAX))
}

fn truth(is: bool) -> &'static str {
    if is { "TRUE" } else { "FALSE" }
}

/// One device, or the place of one.
struct Place {
    path: Option<String>,
    id: Option<DeviceId>,
    device: Option<std::sync::Arc<crate::devices::OpenDevice>>,
    status: &'static str,
}

/// Every device that is open, and every cell disk whose device is not.
fn places(context: &Context, catalog: &Catalog) -> Vec<Place> {
    let statuses = context.cell.store().members();
    let devices = context.devices();
    let open = devices.iter().map(|device| {
        let failed =
            device.device_id.is_some_and(|id| matches!(statuses.get(&id), Some(MemberStatus::OutOfService(..))));
        let status = match device.io.errors() {
            _ if failed => "failed",
            0 => "normal",
            _ => "warning - I/O errors",
        };
        let path = Some(device.path.display().to_string());
        Place { path, id: device.device_id, device: Some(device.clone()), status }
    });
    let absent = catalog.members.keys().filter(|id| !devices.iter().any(|device| device.device_id == Some(**id)));
    let absent = absent.map(|id| Place { path: None, id: Some(*id), device: None, status: "not present" });
    let mut all: Vec<Place> = open.chain(absent).collect();
    all.sort_by(|a, b| (a.path.is_none(), &a.path).cmp(&(b.path.is_none(), &b.path)));
    all
}

fn disk_type(role: Role) -> &'static str {
    match role {
        Role::Disk => "HardDisk",
        Role::Flash => "FlashDisk",
    }
}

pub(super) fn physical_disks(context: &Context) -> Vec<Row> {
    let catalog = context.cell.store().catalog();
    let row = |place: Place| {
        let member = place.id.and_then(|id| catalog.members.get(&id));
        let name = place.path.clone().or_else(|| member.map(|member| member.name.clone())).unwrap_or_default();
        let mut row = Row::new(ObjectType::PhysicalDisk).with("name", name).with("status", place.status);
        if let Some(member) = member {
            row = row.with("cellDisk", member.name.as_str()).with("diskType", disk_type(member.role));
            row = row.with("deviceClass", class_name(member.class));
        }
        if let Some(id) = place.id {
            row = row.with("id", format!("{id}"));
        }
        if let Some(path) = place.path {
            row = row.with("luns", Value::List(vec![path]));
        }
        if let Some(device) = place.device {
            let geometry = device.io.geometry();
            let verbs: Vec<VerbSnapshot> = device.io.snapshot().into_iter().flat_map(|(_, verbs)| verbs).collect();
            let flushes = verbs.iter().filter(|it| it.verb == Verb::Flush).map(|it| it.done).sum();
            row = row
                .with("errorCount", integer(device.io.errors()))
                .with("flushCount", integer(flushes))
                .with("physicalSize", Value::SizeBytes(geometry.size_bytes))
                .with("requestsInFlight", integer(verbs.iter().map(|it| it.in_flight).sum()))
                .with("rotational", truth(geometry.rotational))
                .with("sectorSize", Value::SizeBytes(u64::from(geometry.logical_bytes)))
                .with("truePageSize", Value::SizeBytes(u64::from(geometry.page_bytes)))
                .with("volatileCache", truth(geometry.volatile_cache));
        }
        row
    };
    places(context, &catalog).into_iter().map(row).collect()
}

pub(super) fn luns(context: &Context) -> Vec<Row> {
    let catalog = context.cell.store().catalog();
    let row = |place: Place| {
        let path = place.path?;
        let mut row = Row::new(ObjectType::Lun)
            .with("name", path.as_str())
            .with("deviceName", path.as_str())
            .with("isSystemLun", truth(false))
            .with("physicalDrives", Value::List(vec![path]))
            .with("status", place.status);
        if let Some(id) = place.id {
            row = row.with("id", format!("{id}"));
        }
        if let Some(member) = place.id.and_then(|id| catalog.members.get(&id)) {
            row = row.with("cellDisk", member.name.as_str()).with("diskType", disk_type(member.role));
        }
        if let Some(device) = place.device {
            row = row
                .with("errorCount", integer(device.io.errors()))
                .with("lunSize", Value::SizeBytes(device.io.geometry().size_bytes));
        }
        Some(row)
    };
    places(context, &catalog).into_iter().filter_map(row).collect()
}
