//! Devices as text: what each figure of a model is, and who says so. Those that are built in are files beside these sources.
//!
//! A description is TOML: a kind, of which there are few, and its figures, each with its source. `keys` says which there are and what they may be,
//! `parse` reads them, `calibrate` holds a model against its data sheet. Never guesses: what is not understood is refused.

mod calibrate;
pub(crate) mod endurance;
mod keys;
mod parse;

use crate::model::disk::{Disk, DiskModel};
use crate::model::elevator::{Elevator, Order};
use crate::model::flash::{Flash, FlashModel};
use crate::model::network::{Network, NetworkModel};
use crate::model::quantiles::{QuantileModel, Quantiled};
use crate::model::raid::{Level, Raid};
use crate::model::translated::Translated;
use crate::model::{Instantly, Modelled, Timed, Timing};
use crate::output::{json_string, table};
use calibrate::Sheet;
use device::layers::{Delay, Model};
use device::{Device, Prng, World};
use endurance::Endurance;
use keys::Kind;
use sim::ftl::FtlConfig;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The descriptions there are: the name, and the file.
const BUILT_IN: [(&str, &str); 36] = [
    ("cheetah-15k.5", include_str!("../devices/cheetah-15k.5.toml")),
    ("exadata-v2-cell", include_str!("../devices/exadata-v2-cell.toml")),
    ("exadata-v2-disks", include_str!("../devices/exadata-v2-disks.toml")),
    ("exadata-v2-flash", include_str!("../devices/exadata-v2-flash.toml")),
    ("f20-module", include_str!("../devices/f20-module.toml")),
    ("iodrive-slc", include_str!("../devices/iodrive-slc.toml")),
    ("iodrive-slc-s9", include_str!("../devices/iodrive-slc-s9.toml")),
    ("network-volume", include_str!("../devices/network-volume.toml")),
    ("network-volume-2026", include_str!("../devices/network-volume-2026.toml")),
    ("network-volume-burst", include_str!("../devices/network-volume-burst.toml")),
    ("network-volume-spent", include_str!("../devices/network-volume-spent.toml")),
    ("nvme-2026", include_str!("../devices/nvme-2026.toml")),
    ("pcie-flash", include_str!("../devices/pcie-flash.toml")),
    ("qlc-nvme", include_str!("../devices/qlc-nvme.toml")),
    ("qlc-nvme-full", include_str!("../devices/qlc-nvme-full.toml")),
    ("ram-ssd", include_str!("../devices/ram-ssd.toml")),
    ("redo-drive", include_str!("../devices/redo-drive.toml")),
    ("s1-disk", include_str!("../devices/s1-disk.toml")),
    ("s1-disk-4ms", include_str!("../devices/s1-disk-4ms.toml")),
    ("s1-disk-hangs", include_str!("../devices/s1-disk-hangs.toml")),
    ("s1-disk-stalls", include_str!("../devices/s1-disk-stalls.toml")),
    ("s1-flash", include_str!("../devices/s1-flash.toml")),
    ("s10-flash", include_str!("../devices/s10-flash.toml")),
    ("s13-flash", include_str!("../devices/s13-flash.toml")),
    ("s15-drive", include_str!("../devices/s15-drive.toml")),
    ("s15-flash", include_str!("../devices/s15-flash.toml")),
    ("s3-disk", include_str!("../devices/s3-disk.toml")),
    ("s3-flash", include_str!("../devices/s3-flash.toml")),
    ("sas-15k", include_str!("../devices/sas-15k.toml")),
    ("sas-15k-x4", include_str!("../devices/sas-15k-x4.toml")),
    ("sata-7200", include_str!("../devices/sata-7200.toml")),
    ("sata-ssd", include_str!("../devices/sata-ssd.toml")),
    ("seagate-7200.7", include_str!("../devices/seagate-7200.7.toml")),
    ("x25-e", include_str!("../devices/x25-e.toml")),
    ("x25-e-inside", include_str!("../devices/x25-e-inside.toml")),
    ("x25-e-s9", include_str!("../devices/x25-e-s9.toml")),
];
/// A description is a page of text.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Requests a driver takes at once from the elevator before it. Document: the queue of SATA and of most SAS drives; a disk's own figure goes before.
const DRIVER_REQUESTS: usize = 32;
/// Pages of a drive with a translation layer: its maps take 8 bytes each.
const PAGES_MAX: u64 = 1 << 24;

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Nothing of that name.
    #[error(
        "no device {0}\nhint: one that `flashcell lab devices` lists, fixed:TIME[:PARALLEL], or a file whose name ends in .toml"
    )]
    Unknown(String),
    /// The file cannot be read.
    #[error("device {}: {what}\nhint: `flashcell lab devices NAME > FILE.toml` makes one to change", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        what: String,
    },
    /// The description is wrong.
    #[error("device {file}: {what}\nhint: {hint}")]
    Wrong {
        /// Which file, or the name of what is built in.
        file: String,
        /// Which key, and what is wrong with it.
        what: String,
        /// The way out.
        hint: String,
    },
    /// It has no room.
    #[error("device {name} holds {holds_bytes} bytes, and {wanted_bytes} are wanted\nhint: {hint}")]
    Small {
        /// Which.
        name: String,
        /// What it holds, as it is modelled.
        holds_bytes: u64,
        /// What it should hold.
        wanted_bytes: u64,
        /// The way out.
        hint: &'static str,
    },
}

/// What a device does.
#[derive(Clone, Debug)]
enum What {
    /// A model of the delay layer, which a served cell can have too.
    Delay(Model),
    Disk(DiskModel),
    /// With rates as data sheets have them; memory as well.
    Flash(FlashModel),
    Translated {
        config: FtlConfig,
        controller_ns: u64,
    },
    Raid {
        level: Level,
        members: u64,
        stripe_bytes: u64,
        member: Arc<DeviceModel>,
    },
    Network(NetworkModel),
    /// Times as they were measured.
    Quantiles(Arc<QuantileModel>),
    /// A disk and a flash that belong together.
    Pair {
        disk: Arc<DeviceModel>,
        flash: Arc<DeviceModel>,
    },
}

/// A figure as it was stated.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Figure {
    name: &'static str,
    value: u64,
    source: Option<String>,
}

/// A described device.
#[derive(Clone, Debug)]
pub struct DeviceModel {
    name: String,
    kind: Kind,
    about: String,
    figures: Vec<Figure>,
    /// Words of the kind, such as the level of a RAID set.
    words: Vec<(&'static str, String)>,
    what: What,
    endurance: Option<Endurance>,
    elevator: Order,
    priced_as: Option<String>,
    sheet: Vec<Sheet>,
    text: String,
}

/// A device of the virtual world.
pub(crate) struct Made {
    pub(crate) device: Device,
    /// What goes on inside, where that is modelled.
    pub(crate) translated: Option<Arc<Translated>>,
}

/// A device of the virtual world, and what it holds.
pub(crate) struct Medium {
    pub(crate) device: Device,
    pub(crate) content: Arc<Modelled>,
}

impl Medium {
    /// A device that takes as long as its content says.
    pub(crate) fn of(content: Arc<Modelled>) -> Medium {
        Medium { device: content.device(), content }
    }
}

impl DeviceModel {
    /// A built-in description, a model of the delay layer such as `fixed:4ms:64`, or a file.
    ///
    /// # Errors
    /// There is none, it cannot be read, or it is wrong.
    pub fn find(name: &str) -> Result<Arc<DeviceModel>, DeviceError> {
        DeviceModel::beside(name, Path::new(""), 0)
    }

    /// The same, as a part of so many; a file is looked for from `dir` on.
    fn beside(name: &str, dir: &Path, depth: usize) -> Result<Arc<DeviceModel>, DeviceError> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return parse::parse(name, text, Path::new(""), depth);
        }
        if let Ok(model) = name.parse::<Model>() {
            return Ok(Arc::new(DeviceModel::of_delay(model)));
        }
        if !name.ends_with(".toml") {
            return Err(DeviceError::Unknown(name.to_owned()));
        }
        let path = dir.join(name);
        let failed = |what: String| DeviceError::Read { path: path.clone(), what };
        let mut text = String::new();
        let file = std::fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
        std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_BYTES_MAX + 1), &mut text)
            .map_err(|error| failed(error.to_string()))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(failed(format!("more than {FILE_BYTES_MAX} bytes")));
        }
        parse::parse(name, &text, path.parent().unwrap_or(Path::new("")), depth)
    }

    /// A model of the delay layer that has no description.
    pub(crate) fn of_delay(model: Model) -> DeviceModel {
        DeviceModel {
            name: model.to_string(),
            kind: Kind::Delay,
            about: "delay layer".to_owned(),
            figures: Vec::new(),
            words: vec![("model", model.to_string())],
            what: What::Delay(model),
            endurance: None,
            elevator: Order::None,
            priced_as: None,
            sheet: Vec::new(),
            text: String::new(),
        }
    }

    /// One that is built in.
    pub(crate) fn built_in(name: &str) -> Arc<DeviceModel> {
        match DeviceModel::find(name) {
            Ok(model) => model,
            // A test reads them all.
            Err(error) => unreachable!("{name} is built in: {error}"),
        }
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Names under which a table of prices may have it, the best first.
    pub(crate) fn price_names(&self) -> Vec<&str> {
        std::iter::once(self.name.as_str()).chain(self.priced_as.as_deref()).collect()
    }

    pub(crate) fn endurance(&self) -> Option<&Endurance> {
        self.endurance.as_ref()
    }

    /// The model of the delay layer that it is; a served cell has no others.
    pub(crate) fn delay(&self) -> Option<&Model> {
        if let What::Delay(model) = &self.what { Some(model) } else { None }
    }

    /// Bytes it holds, where that is part of its description.
    fn capacity_bytes(&self) -> Option<u64> {
        match &self.what {
            What::Disk(disk) => Some(disk.capacity_bytes()),
            What::Translated { .. } => Some(PAGES_MAX * 4096),
            What::Raid { level, members, member, .. } => {
                Some(member.capacity_bytes()?.saturating_mul(level.data_members(*members)))
            }
            What::Delay(_) | What::Flash(_) | What::Network(_) | What::Quantiles(_) | What::Pair { .. } => None,
        }
    }

    /// Bytes it is measured with, where its description says so.
    fn natural_bytes(&self) -> Option<u64> {
        match &self.what {
            What::Translated { config, .. } => Some(config.logical_pages as u64 * config.page_bytes),
            _ => self.capacity_bytes(),
        }
    }

    /// What was never written is not on its medium.
    fn is_empty_at_first(&self) -> bool {
        matches!(self.what, What::Translated { .. })
    }

    /// That it has room for so many bytes.
    pub(crate) fn check_room(&self, wanted_bytes: u64) -> Result<(), DeviceError> {
        let hint = match self.what {
            What::Translated { .. } => {
                "a drive with a translation layer is modelled up to 64 GiB; `kind = \"flash\"` has rates in place of it"
            }
            _ => "a set of several: `kind = \"raid\"`, see `flashcell lab devices sas-15k-x4`",
        };
        match self.capacity_bytes() {
            Some(holds_bytes) if holds_bytes < wanted_bytes => {
                Err(DeviceError::Small { name: self.name.clone(), holds_bytes, wanted_bytes, hint })
            }
            _ => Ok(()),
        }
    }

    /// What requests cost it, as a part of a set or alone.
    fn timing(&self, size_bytes: u64, world: &World, prng: &Prng) -> (Arc<dyn Timing>, Option<Arc<Translated>>) {
        let (timing, translated) = self.bare_timing(size_bytes, world, prng);
        let depth = if let What::Disk(disk) = &self.what { disk.queue.max(1) } else { DRIVER_REQUESTS };
        match self.elevator {
            Order::None => (timing, translated),
            order => (Elevator::new(order, depth, timing, world), translated),
        }
    }

    /// The same without an elevator before it.
    fn bare_timing(&self, size_bytes: u64, world: &World, prng: &Prng) -> (Arc<dyn Timing>, Option<Arc<Translated>>) {
        match &self.what {
            What::Disk(disk) => (Disk::new(*disk, world), None),
            What::Flash(flash) => (Flash::new(*flash, world), None),
            What::Network(network) => (Network::new(*network, world, prng.clone()), None),
            What::Quantiles(model) => (Quantiled::new((**model).clone(), world, prng), None),
            What::Translated { config, controller_ns } => {
                let drive = Translated::new(sized(config, size_bytes), *controller_ns, world);
                (drive.clone(), Some(drive))
            }
            What::Raid { level, members, stripe_bytes, member } => {
                let each = size_bytes / level.data_members(*members) + stripe_bytes;
                let members = (0..*members).map(|n| member.timing(each, world, &prng.fork(&n.to_string())).0);
                (Raid::new(*level, *stripe_bytes, members.collect()), None)
            }
            What::Delay(_) | What::Pair { .. } => unreachable!("a description is checked: {} has no timing", self.name),
        }
    }

    /// A device over one that answers at once.
    pub(crate) fn over(&self, inner: Device, world: &World, prng: Prng) -> Made {
        if let What::Delay(model) = &self.what {
            let device = Delay::new(inner, model.clone(), world.clock.clone(), world.spawn.clone(), prng);
            return Made { device, translated: None };
        }
        let (timing, translated) = self.timing(inner.geometry().size_bytes, world, &prng);
        Made { device: Timed::new(inner, timing), translated }
    }

    /// A device of the virtual world that takes as long as this, and what it holds.
    pub(crate) fn modelled(&self, size_bytes: u64, keeps_content: bool, world: &World, prng: Prng) -> Medium {
        let What::Delay(model) = &self.what else {
            let (timing, _) = self.timing(size_bytes, world, &prng);
            return Medium::of(Modelled::new(timing, size_bytes, keeps_content));
        };
        let content = Modelled::new(Arc::new(Instantly), size_bytes, keeps_content);
        let device = Delay::new(content.device(), model.clone(), world.clock.clone(), world.spawn.clone(), prng);
        Medium { device, content }
    }

    /// The disk and the flash of one that has both.
    pub(crate) fn pair(&self) -> Option<(Arc<DeviceModel>, Arc<DeviceModel>)> {
        if let What::Pair { disk, flash } = &self.what { Some((disk.clone(), flash.clone())) } else { None }
    }

    fn json(&self) -> String {
        let mut text = format!(
            "{{\"name\":{},\"kind\":{},\"about\":{},\"figures\":{{",
            json_string(&self.name),
            json_string(self.kind.name()),
            json_string(&self.about)
        );
        for (n, Figure { name, value, source }) in self.figures.iter().enumerate() {
            let source = source.as_deref().map_or_else(|| "null".to_owned(), json_string);
            let comma = if n > 0 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{}:{{\"value\":{value},\"source\":{source}}}", json_string(name));
        }
        text.push('}');
        for (name, word) in &self.words {
            let _ = write!(text, ",{}:{}", json_string(name), json_string(word));
        }
        let capacity = self.natural_bytes();
        let _ = write!(text, ",\"capacity_bytes\":{}", capacity.map_or_else(|| "null".to_owned(), |b| b.to_string()));
        text.push('}');
        text
    }
}

/// The same drive with room for so many bytes: as much of its flash is spare, and rates do not depend on its size.
fn sized(config: &FtlConfig, size_bytes: u64) -> FtlConfig {
    let logical_pages = size_bytes.div_ceil(config.page_bytes).max(1);
    if logical_pages == config.logical_pages as u64 {
        return *config;
    }
    let per_block_of_each = (config.channels * config.pages_per_block) as u128;
    let raw_pages = config.blocks_per_channel as u128 * per_block_of_each;
    let wanted = u128::from(logical_pages) * raw_pages / config.logical_pages as u128;
    // A channel has blocks to write to beside those that hold what is its user's.
    let least = u128::from(logical_pages).div_ceil(per_block_of_each) + FTL_SPARE_BLOCKS;
    let blocks_per_channel = wanted.div_ceil(per_block_of_each).max(least) as usize;
    let idle = config.idle_free_blocks * blocks_per_channel / config.blocks_per_channel;
    FtlConfig { logical_pages: logical_pages as usize, blocks_per_channel, idle_free_blocks: idle, ..*config }
}

/// Blocks of a channel that hold nothing of its user's, at least, and one as pages are not spread evenly.
const FTL_SPARE_BLOCKS: u128 = 6;

/// A disk that is built in.
pub(crate) fn disk(name: &str) -> DiskModel {
    match DeviceModel::built_in(name).what {
        What::Disk(disk) => disk,
        _ => unreachable!("{name} is a disk"),
    }
}

/// Flash that is built in, with rates as data sheets have them.
pub(crate) fn flash(name: &str) -> FlashModel {
    match DeviceModel::built_in(name).what {
        What::Flash(flash) => flash,
        _ => unreachable!("{name} is flash"),
    }
}

/// A drive with a translation layer that is built in.
pub(crate) fn translated(name: &str) -> FtlConfig {
    match DeviceModel::built_in(name).what {
        What::Translated { config, .. } => config,
        _ => unreachable!("{name} has a translation layer"),
    }
}

/// A set of disks that is built in: the disk, how many, and bytes of a stripe.
pub(crate) fn disks(name: &str) -> (DiskModel, usize, u64) {
    match &DeviceModel::built_in(name).what {
        What::Raid { level: Level::Striped, members, stripe_bytes, member } => match member.what {
            What::Disk(disk) => (disk, *members as usize, *stripe_bytes),
            _ => unreachable!("{name} is a set of disks"),
        },
        _ => unreachable!("{name} is a striped set"),
    }
}

/// What is asked of `flashcell lab devices`.
#[derive(Clone, Debug, Default)]
pub struct DevicesOptions {
    /// A name or a file: its description; a list of what is built in otherwise.
    pub name: Option<String>,
    /// As JSON.
    pub json: bool,
    /// Hold models against their data sheets: this one, or each.
    pub check: bool,
}

/// Answer; what belongs on standard output, and whether models agree with their data sheets.
///
/// # Errors
/// There is no such device, or its description is wrong.
pub fn devices(options: &DevicesOptions) -> Result<(String, bool), DeviceError> {
    let models = match &options.name {
        Some(name) => vec![DeviceModel::find(name)?],
        None => BUILT_IN.iter().map(|(name, _)| DeviceModel::find(name)).collect::<Result<Vec<_>, _>>()?,
    };
    if options.check {
        return Ok(calibrate::check(&models, options.json));
    }
    let text = match (&options.name, options.json) {
        (None, true) => {
            let all: Vec<String> = models.iter().map(|model| model.json()).collect();
            format!("[{}]\n", all.join(",\n"))
        }
        (Some(_), true) => format!("{}\n", models[0].json()),
        (Some(_), false) if models[0].text.is_empty() => {
            format!("kind = \"delay\"\nmodel = {}\n", json_string(&models[0].name))
        }
        (Some(_), false) => models[0].text.clone(),
        (None, false) => {
            let mut lines = vec![["name", "kind", "what it is"].map(str::to_owned)];
            lines.extend(models.iter().map(|m| [m.name.clone(), m.kind.name().to_owned(), m.about.clone()]));
            table(&lines, &[0, 1, 2])
        }
    };
    Ok((text, true))
}

#[cfg(test)]
#[path = "devices/tests.rs"]
mod tests;
