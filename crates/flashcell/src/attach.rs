//! The command line of `flashcell attach` and `flashcell detach`: grid disks as block devices of this host.

use clap::{Args, ValueEnum};
use server::attach::{
    self, AttachOptions, DetachOptions, DriverDescriptors, DriverEnd, FileSystem, ON_LOSS_SECONDS, SECTOR_BYTES,
};
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Attach {
    /// The grid disk; GRIDDISK@DATABASE tags its requests with a database for the I/O plan
    #[arg(value_name = "GRIDDISK", required_unless_present = "list")]
    grid_disk: Option<String>,
    /// Where to mount it
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: Option<PathBuf>,
    /// The cell: its directory, or nbd://HOST:PORT; else $FLASHCELL_CELL, else the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// How the block device comes about
    #[arg(long, value_name = "NAME", value_enum, default_value = "auto")]
    driver: DriverName,
    /// Nothing is written; several may have it so
    #[arg(long)]
    readonly: bool,
    /// Wait for the cell, and until who has it attached detaches it
    #[arg(long)]
    wait: bool,
    /// Detach it first where it is attached on this host
    #[arg(long, conflicts_with = "wait")]
    take_over: bool,
    /// What becomes of requests while the cell is away: eio, or wait=SECONDS and then EIO
    #[arg(long, value_name = "eio|wait=S", default_value = "wait=600", value_parser = on_loss)]
    on_loss: u64,
    /// Bytes of a sector of the device
    #[arg(long, value_name = "BYTES", default_value_t = SECTOR_BYTES, value_parser = sector)]
    sector_size: u32,
    /// NBD connections to the cell
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    connections: u16,
    /// Make a file system, on an empty grid disk only: ext4, xfs
    #[arg(long, value_name = "NAME", value_enum, requires = "mount_point")]
    mkfs: Option<FileSystemName>,
    /// Options of mount(8)
    #[arg(short = 'o', value_name = "OPTIONS", requires = "mount_point")]
    options: Option<String>,
    /// The file system grows when the grid disk does
    #[arg(long)]
    fs: bool,
    /// What is attached to this host
    #[arg(long, conflicts_with_all = ["grid_disk", "mount_point"])]
    list: bool,
    /// List in JSON
    #[arg(long, requires = "list")]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum DriverName {
    Auto,
    Ublk,
    Nbd,
    Fuse,
}

#[derive(Clone, Copy, ValueEnum)]
enum FileSystemName {
    Ext4,
    Xfs,
}

fn on_loss(text: &str) -> Result<u64, String> {
    match (text, text.strip_prefix("wait=")) {
        ("eio", _) => Ok(0),
        (_, Some(seconds)) => seconds.parse().map_err(|_| "wait=SECONDS".to_owned()),
        _ => Err(format!("eio or wait=SECONDS, such as wait={ON_LOSS_SECONDS}")),
    }
}

fn sector(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4k" | "4K" => Ok(4096),
        _ => Err("512 or 4096".to_owned()),
    }
}

#[derive(Args)]
pub(crate) struct Detach {
    /// A device, a grid disk, or where it is mounted
    #[arg(value_name = "DEV|GRIDDISK|MOUNTPOINT")]
    target: String,
    /// The cell, where grid disks of several are named alike
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// Without the cell, and from under who uses it: tells how much is given up
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
pub(crate) struct Keeper {
    dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct Driver {
    spec: PathBuf,
    #[command(flatten)]
    end: End,
    #[arg(long)]
    words: i32,
    #[arg(long)]
    lock: Vec<i32>,
    #[arg(long)]
    resumed: bool,
}

/// Where requests come out: a descriptor, or the number of a device.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct End {
    #[arg(long)]
    fuse: Option<i32>,
    #[arg(long)]
    nbd: Option<i32>,
    #[arg(long)]
    ublk: Option<u32>,
}

pub(crate) fn attach(attach: Attach) -> Result<bool, crate::Failure> {
    let Some(grid_disk) = attach.grid_disk else {
        let _ = std::io::stdout().write_all(attach::list(attach.json).as_bytes());
        return Ok(true);
    };
    let done = attach::attach(&AttachOptions {
        grid_disk,
        mount_point: attach.mount_point.map(std::path::absolute).transpose()?,
        cell: attach.cell,
        driver: match attach.driver {
            DriverName::Auto => attach::Driver::Auto,
            DriverName::Ublk => attach::Driver::Ublk,
            DriverName::Nbd => attach::Driver::Nbd,
            DriverName::Fuse => attach::Driver::Fuse,
        },
        read_only: attach.readonly,
        wait: attach.wait,
        take_over: attach.take_over,
        on_loss_seconds: attach.on_loss,
        sector_bytes: attach.sector_size,
        connections: usize::from(attach.connections),
        mkfs: attach.mkfs.map(|name| match name {
            FileSystemName::Ext4 => FileSystem::Ext4,
            FileSystemName::Xfs => FileSystem::Xfs,
        }),
        mount_options: attach.options,
        grow_fs: attach.fs,
        program: std::env::current_exe()?,
    })?;
    for note in done.notes {
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    let _ = writeln!(std::io::stdout(), "{}", done.device.display());
    Ok(true)
}

pub(crate) fn detach(detach: Detach) -> Result<bool, crate::Failure> {
    let Detach { target, cell, force } = detach;
    for note in attach::detach(&DetachOptions { target, cell, force })? {
        let _ = writeln!(std::io::stderr(), "{note}");
    }
    Ok(true)
}

pub(crate) fn keep(keeper: &Keeper) -> Result<bool, crate::Failure> {
    server::log_to_stderr();
    attach::keep(&keeper.dir)?;
    Ok(true)
}

pub(crate) fn drive(driver: &Driver) -> Result<bool, crate::Failure> {
    server::log_to_stderr();
    let mut locks = driver.lock.iter().copied();
    let locks = [locks.next(), locks.next()];
    let end = match (driver.end.nbd, driver.end.ublk, driver.end.fuse) {
        (Some(fd), ..) => DriverEnd::Nbd(fd),
        (_, Some(index), _) => DriverEnd::Ublk(index),
        // The command line has one of them.
        (None, None, fd) => DriverEnd::Fuse(fd.unwrap_or(-1)),
    };
    let descriptors = DriverDescriptors { end, words: driver.words, locks, resumed: driver.resumed };
    attach::drive(&driver.spec, descriptors)?;
    Ok(true)
}
