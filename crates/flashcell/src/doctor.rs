//! The command line of `flashcell doctor`.

use crate::Failure;
use clap::Args;
use server::doctor::{DoctorOptions, Rating, Verdict, doctor, table};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct Doctor {
    /// Block devices, or files and directories on them; without any all disks of the host, or those of the cell
    #[arg(value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// A cell: its directory or cell.toml
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<PathBuf>,
    /// A data directory of PostgreSQL, besides those below /etc/postgresql; may be given several times
    #[arg(long = "postgres", value_name = "DIR")]
    postgres: Vec<PathBuf>,
    /// How long syncs are timed in each directory named and beside each image file of the cell; 0: not at all
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    sync_seconds: u64,
    /// Compute ZFS's l2arc_write_max for a drive of this size that may be written so often a day: 700e9:10, 650G:3
    #[arg(long, value_name = "SIZE:WRITES-PER-DAY")]
    l2arc: Option<Rating>,
    /// All findings as JSON
    #[arg(long)]
    json: bool,
}

/// Print the findings; false when one of them is a warning.
pub(crate) fn examine(options: Doctor) -> Result<bool, Failure> {
    let Doctor { devices, cell, postgres, sync_seconds, l2arc, json } = options;
    let sync_time = Duration::from_secs(sync_seconds);
    if sync_seconds > 0 && (cell.is_some() || devices.iter().any(|path| path.is_dir())) {
        let _ = writeln!(
            std::io::stderr(),
            "timing syncs for {sync_seconds} s in each directory that is named or has images of the cell"
        );
    }
    let findings = doctor(&DoctorOptions { cell, devices, postgres, sync_time, l2arc })?;
    let text = if json { server::doctor::json(&findings) } else { table(&findings) };
    // A reader that has gone has what it wanted.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(findings.iter().all(|finding| finding.verdict != Verdict::Warning))
}
