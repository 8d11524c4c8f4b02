//! `flashcell attach --list`: what is attached to this host, and how it is.

use super::spec::{Place, Record, Spec};
use super::{host, told};
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    griddisk: String,
    cell: String,
    device: String,
    driver: String,
    state: String,
    size_bytes: u64,
    read_only: bool,
    unflushed_bytes: Option<u64>,
    mountpoints: Vec<String>,
    keeper_pid: u32,
    driver_pid: u32,
    drivers_started: Option<u32>,
}

fn row(place: &Place, spec: &Spec, record: &Record) -> Row {
    let told = told(place);
    let state = match (&told, place.is_live()) {
        (Some(told), _) => told.state.word().to_owned(),
        (None, true) => "attached".to_owned(),
        (None, false) => "gone".to_owned(),
    };
    let mounts = host::number(&record.device).map(|number| host::mounts(&number)).unwrap_or_default();
    Row {
        griddisk: spec.grid_disk.clone(),
        cell: spec.cell.clone(),
        device: record.device.display().to_string(),
        driver: record.driver.clone(),
        state,
        size_bytes: told.as_ref().map_or(spec.size_bytes, |told| told.size_bytes),
        read_only: spec.read_only,
        unflushed_bytes: told.as_ref().map(|told| told.unflushed_bytes),
        mountpoints: mounts.iter().map(|mount| mount.path.display().to_string()).collect(),
        keeper_pid: record.keeper_pid,
        driver_pid: told.as_ref().map_or(record.driver_pid, |told| told.driver_pid),
        drivers_started: told.map(|told| told.drivers_started),
    }
}

/// A table, or JSON. How an attachment is, its keeper tells root alone; to others it is `attached`.
#[must_use]
pub fn list(json: bool) -> String {
    let found = Place::all().into_iter().filter_map(|place| {
        let (spec, record) = (place.spec().ok()?, place.record().ok()?);
        Some(row(&place, &spec, &record))
    });
    let rows: Vec<Row> = found.collect();
    if json {
        return serde_json::to_string_pretty(&rows).map_or_else(|_| "[]\n".to_owned(), |text| text + "\n");
    }
    table(&rows)
}

fn size(bytes: u64) -> String {
    cellcli::answer::size_text(bytes)
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = ["GRIDDISK", "CELL", "DEVICE", "STATE", "SIZE", "UNFLUSHED", "MOUNTPOINT"].map(str::to_owned);
    let lines: Vec<[String; 7]> = std::iter::once(head)
        .chain(rows.iter().map(|row| {
            [
                row.griddisk.clone(),
                row.cell.clone(),
                row.device.clone(),
                row.state.clone(),
                size(row.size_bytes),
                row.unflushed_bytes.map_or_else(|| "-".to_owned(), size),
                if row.mountpoints.is_empty() { "-".to_owned() } else { row.mountpoints.join(",") },
            ]
        }))
        .collect();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}
