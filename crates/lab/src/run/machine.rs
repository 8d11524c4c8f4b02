//! The field's machines: which devices they have, and how many.
//!
//! What a device is, each figure with its source, is in the descriptions of `devices`. *Document* is what the field says; *assumed* is what nobody
//! wrote down, with the range it may plausibly have; *fitted* was chosen so that the figures without flash and with the table on flash, which
//! calibrate, come out. No figure was fitted to what a flash cache did; `docs/lab.md` names two choices that were made after seeing one.

use super::RunOptions;
use crate::devices::{self, DeviceError, DeviceModel, Medium};
use crate::model::Modelled;
use crate::model::disk::DiskModel;
use crate::model::flash::{Flash, FlashModel};
use crate::model::raid::Raid;
use crate::what_if::Devices;
use crate::what_if::world::{Served, waking};
use device::{Device, Prng, World};
use sim::ftl::FtlConfig;
use std::sync::LazyLock;

/// A machine of the field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    pub(super) disk: DiskModel,
    pub(super) disks: usize,
    pub(super) stripe_bytes: u64,
    pub(super) flash: FlashModel,
    /// What redo is written to: a drive of its own in every arm (document: "redo and other tablespaces on another drive").
    pub(super) redo: FlashModel,
}

/// What an arm stands on: a machine of the field, or its memory and processor over devices of the user's.
#[derive(Clone, Debug)]
pub(super) struct Under {
    pub(super) machine: Machine,
    /// In place of its disks and its flash.
    pub(super) devices: Option<Devices>,
    /// What a served cell takes beside its devices counts, as it is measured as well.
    is_served: bool,
}

impl Under {
    pub(super) fn new(machine: &Machine, options: &RunOptions) -> Under {
        Under { machine: *machine, devices: options.devices.clone(), is_served: options.real.is_some() }
    }

    /// What it is called; `short` is what the machine has beside its devices.
    pub(super) fn name(&self, short: &str) -> String {
        if self.devices.is_none() { self.machine.name.to_owned() } else { format!("{short}{}", self.moved()) }
    }

    /// The names of given devices, as the end of a part's name; empty on the machine's own.
    pub(super) fn moved(&self) -> String {
        let told = |Devices { disk, flash }: &Devices| format!(", on {} and {}", disk.name(), flash.name());
        self.devices.as_ref().map_or_else(String::new, told)
    }

    /// The disks.
    pub(super) fn disk(&self, size_bytes: u64, keeps_content: bool, world: &World) -> Medium {
        let Machine { disk, disks, stripe_bytes, .. } = self.machine;
        match &self.devices {
            Some(devices) => self.given(&devices.disk, size_bytes, keeps_content, world, world.prng.fork("disk")),
            None => {
                let disks = Raid::of_disks(disk, disks, stripe_bytes, world);
                Medium::of(Modelled::new(disks, size_bytes, keeps_content))
            }
        }
    }

    /// The flash.
    pub(super) fn flash(&self, size_bytes: u64, keeps_content: bool, world: &World) -> Medium {
        match &self.devices {
            Some(devices) => self.given(&devices.flash, size_bytes, keeps_content, world, world.prng.fork("flash")),
            None => Medium::of(Modelled::new(Flash::new(self.machine.flash, world), size_bytes, keeps_content)),
        }
    }

    fn given(&self, model: &DeviceModel, size_bytes: u64, keeps_content: bool, world: &World, prng: Prng) -> Medium {
        let Medium { device, content } = model.modelled(size_bytes, keeps_content, world, prng);
        Medium { device: seen(device, self.is_served, world), content }
    }

    /// A grid disk as the database has it.
    pub(super) fn reached(&self, device: Device, is_cached: bool, world: &World) -> Device {
        reached(device, self.is_served, is_cached, world)
    }

    /// That the devices have room for so much.
    ///
    /// # Errors
    /// One of them has not.
    pub(super) fn check_room(&self, disk_bytes: u64, flash_bytes: u64) -> Result<(), DeviceError> {
        let Some(devices) = &self.devices else { return Ok(()) };
        devices.disk.check_room(disk_bytes)?;
        devices.flash.check_room(flash_bytes)
    }
}

/// A device as the cell has it: where cells are served, processors sleep while it works.
pub(super) fn seen(device: Device, is_served: bool, world: &World) -> Device {
    if is_served { waking(device, world) } else { device }
}

/// A grid disk as a client has it: where cells are served, there is a way to it.
pub(super) fn reached(device: Device, is_served: bool, is_cached: bool, world: &World) -> Device {
    if is_served { Served::new(device, is_cached, world) } else { device }
}

/// Seagate Barracuda 7200.7. Experiments over more than its outer tracks take it without zones, as they were committed.
pub(super) fn seagate() -> DiskModel {
    devices::disk("seagate-7200.7")
}

/// Seagate Cheetah 15K.5.
pub(super) fn cheetah() -> DiskModel {
    devices::disk("cheetah-15k.5")
}

/// Intel X25-E, as S9's field found it.
pub(super) fn x25_e() -> FlashModel {
    devices::flash("x25-e-s9")
}

/// The flash of S13.
pub(super) fn s13_flash() -> FlashModel {
    devices::flash("s13-flash")
}

/// A drive with the flash that S15 describes and the channels of an X25-E, a 32nd of its blocks.
pub(super) static FTL_DRIVE: LazyLock<FtlConfig> = LazyLock::new(|| devices::translated("s15-drive"));

/// The same flash on eight channels: a block of each is 2 MiB together, as a segment of the flash cache is.
pub(super) fn ftl_drive_of_8() -> FtlConfig {
    FtlConfig { channels: 8, blocks_per_channel: 640, ..*FTL_DRIVE }
}

/// S9, first machine: dual core, 4 GB RAM.
pub(super) static DUAL_CORE: LazyLock<Machine> = LazyLock::new(|| Machine {
    name: "2 SATA disks, X25-E",
    disk: seagate(),
    // Document.
    disks: 2,
    // Document: ASM's allocation unit of the day.
    stripe_bytes: 1 << 20,
    flash: x25_e(),
    redo: devices::flash("redo-drive"),
});

/// S9, second machine: 2 x quad core, 32 GB RAM; S11's is taken to be the same.
pub(super) static QUAD_CORES: LazyLock<Machine> = LazyLock::new(|| {
    let (disk, disks, stripe_bytes) = devices::disks("sas-15k-x4");
    Machine {
        name: "4 SAS disks, ioDrive",
        disk,
        disks,
        stripe_bytes,
        flash: devices::flash("iodrive-slc-s9"),
        redo: devices::flash("redo-drive"),
    }
});

/// The same as its scans see it.
pub(super) static QUAD_CORES_SCANNED: LazyLock<Machine> = LazyLock::new(|| Machine {
    // Fitted to the scan without flash, beyond what is plausible (0.1 to 0.4 ms): these drives read ahead better than the field's did.
    disk: DiskModel { overhead_ns: 850_000, ..QUAD_CORES.disk },
    ..*QUAD_CORES
});

/// S12: a server with many disks and flash on PCIe, as its author has in mind.
pub(super) static MANY_DISKS: LazyLock<Machine> = LazyLock::new(|| Machine {
    name: "36 SAS disks, ioDrive",
    // Assumed: 36 (12 to 96).
    disks: 36,
    // Assumed: 1 MiB (128 KiB to 4 MiB).
    stripe_bytes: 1 << 20,
    ..*QUAD_CORES
});

/// S10: a quarter rack of Exadata V2, 3 cells of 12 SAS disks, seen over InfiniBand; `overhead_ns` of a read from disk with the network and the
/// cell's server.
fn quarter_rack(overhead_ns: u64) -> Machine {
    let (disk, disks, stripe_bytes) = devices::disks("exadata-v2-disks");
    Machine {
        name: "36 SAS disks, Exadata flash",
        disk: DiskModel { overhead_ns, ..disk },
        // Document: three cells.
        disks: 3 * disks,
        stripe_bytes,
        flash: devices::flash("s10-flash"),
        redo: devices::flash("redo-drive"),
    }
}

/// Keys side by side. Fitted to the look-ups without flash, beyond what is plausible (0.1 to 0.5 ms): so short a table is read sooner than the
/// field's was.
pub(super) static RACK_DENSE: LazyLock<Machine> = LazyLock::new(|| quarter_rack(1_640_000));
/// Keys anywhere. Fitted to the look-ups without flash (plausible: 0.1 to 0.5 ms).
pub(super) static RACK_SCATTERED: LazyLock<Machine> = LazyLock::new(|| quarter_rack(790_000));
