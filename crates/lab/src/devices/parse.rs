//! A description, read: every key is known, every figure within its limits, and they fit together.

use super::calibrate::Sheet;
use super::endurance::{Cell, Endurance};
use super::keys::{Key, Kind, SHARES};
use super::{DeviceError, DeviceModel, Figure, What};
use crate::model::disk::DiskModel;
use crate::model::elevator::Order;
use crate::model::flash::{FlashModel, WriteCache};
use crate::model::network::NetworkModel;
use crate::model::quantiles::{QuantileModel, Quantiles, Stalls};
use crate::model::raid::Level;
use sim::ftl::{Collect, FtlConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use toml::{Table, Value};

/// A pair, of sets, of disks.
const DEPTH_MAX: usize = 2;

/// Text of a description, and what names are measured against.
struct Reader<'a> {
    file: &'a str,
    dir: &'a Path,
    depth: usize,
    kind: Kind,
    figures: Vec<Figure>,
    words: Vec<(&'static str, String)>,
}

fn wrong(file: &str, what: String, hint: String) -> DeviceError {
    DeviceError::Wrong { file: file.to_owned(), what, hint }
}

fn one_of(names: &[&str]) -> String {
    match names {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}

/// The value of that name, of a closed set.
fn named<T: Copy>(file: &str, key: &str, text: &str, names: &[(&str, T)]) -> Result<T, DeviceError> {
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        wrong(file, format!("{key} = {text:?} is none that there is"), format!("{key} is {}", one_of(&known)))
    })
}

pub(super) fn word<'t>(file: &str, table: &'t Table, key: &str) -> Result<Option<&'t str>, DeviceError> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong(file, format!("{key} is no text"), format!("{key} = \"…\", in quotes"))),
    }
}

/// A whole number within its limits.
pub(super) fn number(file: &str, key: &Key, value: &Value) -> Result<u64, DeviceError> {
    let Key { name, low, high, .. } = key;
    let limits =
        if low == high { format!("{name} is {low}") } else { format!("{name} is a whole number from {low} to {high}") };
    let Value::Integer(given) = value else {
        return Err(wrong(file, format!("{name} is no whole number"), limits));
    };
    let fits = u64::try_from(*given).ok().filter(|value| (*low..=*high).contains(value));
    fits.ok_or_else(|| wrong(file, format!("{name} = {given} is out of its limits"), limits))
}

/// Refuse keys that nobody knows.
pub(super) fn known(file: &str, place: &str, table: &Table, names: &[&str]) -> Result<(), DeviceError> {
    match table.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => {
            let hint = format!("{place} has {}", one_of(names));
            Err(wrong(file, format!("{place} has no {key}"), hint))
        }
        None => Ok(()),
    }
}

/// Read it; members are looked for from `dir` on.
pub(super) fn parse(file: &str, text: &str, dir: &Path, depth: usize) -> Result<Arc<DeviceModel>, DeviceError> {
    let table: Table = toml::from_str(text).map_err(|error| {
        let hint = "`flashcell lab devices NAME` prints one that is right".to_owned();
        wrong(file, error.to_string().trim_end().to_owned(), hint)
    })?;
    let all: Vec<&str> = Kind::NAMES.iter().map(|(name, _)| *name).collect();
    let kind = word(file, &table, "kind")?
        .ok_or_else(|| wrong(file, "kind is missing".to_owned(), format!("kind is {}", one_of(&all))))?;
    let kind = named(file, "kind", kind, &Kind::NAMES)?;

    let mut names = vec!["name", "kind", "about", "priced_as", "figures", "sheet"];
    names.extend(kind.words().iter().map(|(name, _)| *name));
    known(file, &format!("a device of kind {}", kind.name()), &table, &names)?;
    let mut reader = Reader { file, dir, depth, kind, figures: Vec::new(), words: Vec::new() };
    for (name, is_needed) in kind.words() {
        match word(file, &table, name)? {
            Some(text) => reader.words.push((name, text.to_owned())),
            None if *is_needed => {
                let what = format!("{name} is missing");
                return Err(wrong(file, what, format!("a device of kind {} has {name} = \"…\"", kind.name())));
            }
            None => {}
        }
    }
    reader.read_figures(&table)?;
    let what = reader.what()?;
    let own = |key: &str| word(file, &table, key).map(|text| text.map(str::to_owned));
    let stem = Path::new(file).file_name().map_or(file.to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Arc::new(DeviceModel {
        name: own("name")?.unwrap_or(stem),
        kind,
        about: own("about")?.unwrap_or_default(),
        endurance: reader.endurance(&what)?,
        elevator: reader.elevator()?,
        priced_as: own("priced_as")?,
        sheet: Sheet::read(file, &table)?,
        text: text.to_owned(),
        figures: reader.figures,
        words: reader.words,
        what,
    }))
}

impl Reader<'_> {
    fn wrong(&self, what: String, hint: &str) -> DeviceError {
        wrong(self.file, what, hint.to_owned())
    }

    fn read_figures(&mut self, table: &Table) -> Result<(), DeviceError> {
        let (file, keys) = (self.file, self.kind.keys());
        let empty = Table::new();
        let given = match table.get("figures") {
            None => &empty,
            Some(Value::Table(given)) => given,
            Some(_) => {
                return Err(self
                    .wrong("figures is no table".to_owned(), "[figures] on a line of its own, then a figure a line"));
            }
        };
        let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
        known(file, &format!("[figures] of kind {}", self.kind.name()), given, &names)?;
        for key in keys {
            let (value, source) = match (given.get(key.name), key.default) {
                (Some(Value::Table(both)), _) => {
                    known(file, key.name, both, &["value", "source"])?;
                    let value = both.get("value").ok_or_else(|| {
                        let hint = "NAME = { value = NUMBER, source = \"…\" }, or NAME = NUMBER";
                        self.wrong(format!("{} has no value", key.name), hint)
                    })?;
                    (number(file, key, value)?, word(file, both, "source")?.map(str::to_owned))
                }
                (Some(value), _) => (number(file, key, value)?, None),
                (None, Some(default)) => (default, None),
                (None, None) => {
                    let what = format!("{} is missing from [figures]", key.name);
                    let hint = format!("{} is a whole number from {} to {}", key.name, key.low, key.high);
                    return Err(self.wrong(what, &hint));
                }
            };
            // What is not stated is not told as if it were.
            if given.contains_key(key.name) {
                self.figures.push(Figure { name: key.name, value, source });
            }
        }
        Ok(())
    }

    fn figure(&self, name: &str) -> u64 {
        let stated = self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value);
        let default = || self.kind.keys().iter().find(|key| key.name == name).and_then(|key| key.default);
        let Some(value) = stated.or_else(default) else { unreachable!("{name} is a figure of {:?}", self.kind) };
        value
    }

    fn word(&self, name: &str) -> Option<&str> {
        self.words.iter().find(|(key, _)| *key == name).map(|(_, word)| word.as_str())
    }

    fn ascending(&self, names: &[&str]) -> Result<(), DeviceError> {
        match names.windows(2).find(|pair| self.figure(pair[0]) > self.figure(pair[1])) {
            Some(pair) => {
                let what = format!(
                    "{} = {} is more than {} = {}",
                    pair[0],
                    self.figure(pair[0]),
                    pair[1],
                    self.figure(pair[1])
                );
                Err(self.wrong(what, &format!("{} at most {}", pair[0], pair[1])))
            }
            None => Ok(()),
        }
    }

    fn what(&self) -> Result<What, DeviceError> {
        let of = |name: &str| self.figure(name);
        Ok(match self.kind {
            Kind::Disk => What::Disk(self.disk()?),
            Kind::Flash => What::Flash(FlashModel {
                read_ns: of("read_ns"),
                read_ns_per_kib: of("read_ns_per_kib"),
                write_ns: of("write_ns"),
                write_ns_per_kib: of("write_ns_per_kib"),
                channels: of("channels"),
                random_writes_per_s: Some(of("random_writes_per_s")).filter(|rate| *rate > 0),
                random_burst: of("random_burst"),
                controller_ns: of("controller_ns"),
                cache: Some(WriteCache {
                    bytes: of("cache_bytes"),
                    emptied_ns_per_kib: of("cache_emptied_ns_per_kib"),
                    full_percent: of("cache_full_percent"),
                })
                .filter(|cache| cache.bytes > 0),
            }),
            Kind::Ram => What::Flash(FlashModel {
                read_ns: of("read_ns"),
                read_ns_per_kib: of("ns_per_kib"),
                write_ns: of("write_ns"),
                write_ns_per_kib: of("ns_per_kib"),
                channels: of("parallel"),
                random_writes_per_s: None,
                random_burst: 0,
                controller_ns: of("controller_ns"),
                cache: None,
            }),
            Kind::Translated => What::Translated { config: self.translated()?, controller_ns: of("controller_ns") },
            Kind::Network => {
                self.ascending(&["read_least_ns", "read_median_ns", "read_p99_ns", "read_most_ns"])?;
                self.ascending(&["write_least_ns", "write_median_ns", "write_p99_ns", "write_most_ns"])?;
                let sustained = of("requests_per_s");
                let burst = of("burst_requests_per_s");
                if burst > 0 && burst < sustained {
                    let what = format!("burst_requests_per_s = {burst} is less than requests_per_s = {sustained}");
                    return Err(self.wrong(what, "burst_requests_per_s at least requests_per_s, or left away"));
                }
                What::Network(NetworkModel {
                    read_ns: ["read_least_ns", "read_median_ns", "read_p99_ns", "read_most_ns"].map(of),
                    write_ns: ["write_least_ns", "write_median_ns", "write_p99_ns", "write_most_ns"].map(of),
                    parallel: of("parallel"),
                    requests_per_s: sustained,
                    burst_requests_per_s: burst.max(sustained),
                    credits: of("credits"),
                    credits_percent: of("credits_percent"),
                    bytes_per_s: of("bytes_per_s"),
                    request_bytes: of("request_bytes"),
                })
            }
            Kind::Quantiles => What::Quantiles(Arc::new(self.quantiles()?)),
            Kind::Raid => self.raid()?,
            Kind::Delay => {
                let name = self.word("model").unwrap_or_default();
                let model = name.parse::<device::layers::Model>().map_err(
                    |error: <device::layers::Model as std::str::FromStr>::Err| {
                        let text = error.to_string();
                        let (what, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
                        self.wrong(format!("model: {what}"), hint)
                    },
                )?;
                What::Delay(model)
            }
            Kind::Pair => What::Pair { disk: self.part("disk")?, flash: self.part("flash")? },
        })
    }

    fn elevator(&self) -> Result<Order, DeviceError> {
        self.word("elevator").map_or(Ok(Order::None), |text| named(self.file, "elevator", text, &Order::NAMES))
    }

    /// The quantiles of what is called so; of what has no most there are none.
    fn quantiles_of(&self, what: &str) -> Result<Quantiles, DeviceError> {
        let name = |share: &str| format!("{what}_{share}_ns");
        let of = |share: &str| self.figure(&name(share));
        if of("most") == 0 {
            // A distribution without an end would be none.
            return match SHARES.iter().find(|(share, _)| of(share) > 0) {
                Some((share, _)) => {
                    let (stated, most) = (name(share), name("most"));
                    Err(self.wrong(format!("{stated} is stated, and {most} is not"), "least and most at least"))
                }
                None => Ok(Quantiles::new()),
            };
        }
        let is_stated = |share: &str| matches!(share, "least" | "most") || of(share) > 0;
        let stated: Vec<(&str, u64)> = SHARES.into_iter().filter(|(share, _)| is_stated(share)).collect();
        let names: Vec<String> = stated.iter().map(|(share, _)| name(share)).collect();
        self.ascending(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(stated.into_iter().map(|(share, parts)| (parts, of(share))).collect())
    }

    fn quantiles(&self) -> Result<QuantileModel, DeviceError> {
        let of = |name: &str| self.figure(name);
        self.ascending(&["stall_least_ms", "stall_most_ms"])?;
        for name in ["page_bytes", "claimed_page_bytes"] {
            if of(name) > 0 && !(of(name).is_power_of_two() && of(name) >= 512) {
                return Err(self.wrong(format!("{name} = {} is no page", of(name)), "a power of two from 512 on"));
            }
        }
        if of("stall_every_ms") == 0
            && let Some(name) = ["stall_least_ms", "stall_most_ms", "stall_all"].into_iter().find(|name| of(name) > 0)
        {
            let what = format!("{name} is stated, and stall_every_ms is not");
            return Err(self.wrong(what, "stall_every_ms: how long it goes without a stall, in the mean"));
        }
        let ms = |name: &str| Duration::from_millis(of(name));
        let stalls = Stalls {
            every: ms("stall_every_ms"),
            length: (ms("stall_least_ms"), ms("stall_most_ms")),
            all: of("stall_all") == 1,
        };
        Ok(QuantileModel {
            volatile_cache: of("volatile_cache") == 1,
            moves: self.quantiles_of("time")?,
            flush: self.quantiles_of("flush")?,
            ns_per_kib: of("ns_per_kib"),
            parallel: of("parallel"),
            claimed_page_bytes: if of("claimed_page_bytes") > 0 { of("claimed_page_bytes") } else { of("page_bytes") }
                as u32,
            page_bytes: of("page_bytes"),
            part_of_page: self.quantiles_of("part")?,
            stalls: Some(stalls).filter(|stalls| !stalls.every.is_zero()),
        })
    }

    fn disk(&self) -> Result<DiskModel, DeviceError> {
        let of = |name: &str| self.figure(name);
        self.ascending(&["seek_next_ns", "seek_average_ns", "seek_full_ns"])?;
        self.ascending(&["inner_track_bytes", "track_bytes"])?;
        for name in ["track_bytes", "inner_track_bytes"] {
            if of(name) % 512 != 0 {
                return Err(
                    self.wrong(format!("{name} = {} is no multiple of 512", of(name)), "whole sectors of 512 bytes")
                );
            }
        }
        let inner_track_bytes = if of("inner_track_bytes") == 0 { of("track_bytes") } else { of("inner_track_bytes") };
        if inner_track_bytes < 4096 {
            return Err(
                self.wrong(format!("inner_track_bytes = {inner_track_bytes} is out of its limits"), "at least 4096")
            );
        }
        Ok(DiskModel {
            rpm: of("rpm"),
            cylinders: of("cylinders").max(of("zones")),
            heads: of("heads"),
            track_bytes: of("track_bytes"),
            inner_track_bytes,
            zones: of("zones"),
            seek_ns: ["seek_next_ns", "seek_average_ns", "seek_full_ns"].map(of),
            overhead_ns: of("overhead_ns"),
            bus_ns_per_kib: of("bus_ns_per_kib"),
            read_ahead_bytes: of("read_ahead_bytes"),
            queue: of("queue") as usize,
            cached_writes: of("cached_writes") as usize,
        })
    }

    fn translated(&self) -> Result<FtlConfig, DeviceError> {
        let of = |name: &str| self.figure(name) as usize;
        let collect = match self.word("collect") {
            None => Collect::Greedy,
            Some(text) => {
                let names = [("greedy", Collect::Greedy), ("cost-benefit", Collect::CostBenefit)];
                named(self.file, "collect", text, &names)?
            }
        };
        let config = FtlConfig {
            channels: of("channels"),
            page_bytes: self.figure("page_bytes"),
            pages_per_block: of("pages_per_block"),
            blocks_per_channel: of("blocks_per_channel"),
            logical_pages: of("logical_pages"),
            read_ns: self.figure("read_ns"),
            program_ns: self.figure("program_ns"),
            erase_ns: self.figure("erase_ns"),
            transfer_ns: self.figure("transfer_ns"),
            link_ns: self.figure("link_ns"),
            collect,
            wear_gap: self.figure("wear_gap"),
            idle_free_blocks: of("idle_free_blocks"),
        };
        let spare = super::FTL_SPARE_BLOCKS as usize;
        let room = config.channels * config.blocks_per_channel.saturating_sub(spare) * config.pages_per_block;
        if config.logical_pages > room {
            let what = format!("logical_pages = {} is more than the flash has room for", config.logical_pages);
            let hint = format!("at most channels x (blocks_per_channel - {spare}) x pages_per_block, {room} here");
            return Err(self.wrong(what, &hint));
        }
        if (config.channels * config.blocks_per_channel * config.pages_per_block) as u64 > 4 * super::PAGES_MAX {
            let what = "blocks_per_channel: more pages of flash than are modelled".to_owned();
            return Err(self.wrong(
                what,
                &format!("at most {} in all; the drive in small: its share of blocks and pages", 4 * super::PAGES_MAX),
            ));
        }
        if config.idle_free_blocks >= config.blocks_per_channel {
            return Err(self.wrong(
                "idle_free_blocks is not less than blocks_per_channel".to_owned(),
                "a hundredth of them, or 0",
            ));
        }
        Ok(config)
    }

    /// Another device that this one is made of.
    fn part(&self, key: &str) -> Result<Arc<DeviceModel>, DeviceError> {
        let name = self.word(key).unwrap_or_default();
        if self.depth >= DEPTH_MAX {
            let what = format!("{key} = {name:?} is made of parts of parts of parts");
            return Err(self.wrong(what, "a pair of sets of disks is as far as it goes; is it made of itself?"));
        }
        match DeviceModel::beside(name, self.dir, self.depth + 1) {
            Err(DeviceError::Unknown(name)) => {
                let hint = "one that `flashcell lab devices` lists, or a file beside this one whose name ends in .toml";
                Err(self.wrong(format!("{key} = {name:?} is no device"), hint))
            }
            Ok(part) if part.kind == Kind::Pair => {
                Err(self.wrong(format!("{key} = {name:?} is of kind pair"), "one device, of any other kind"))
            }
            part => part,
        }
    }

    fn raid(&self) -> Result<What, DeviceError> {
        let level = named(self.file, "level", self.word("level").unwrap_or_default(), &Level::NAMES)?;
        let (members, stripe_bytes) = (self.figure("members"), self.figure("stripe_bytes"));
        let fits = match level {
            Level::Striped => true,
            Level::Mirrored => members.is_multiple_of(2),
            Level::Parity => members >= 3,
        };
        if !fits {
            let what = format!("members = {members} make no set of that level");
            return Err(self.wrong(what, "level 1+0 has pairs, level 5 three and more"));
        }
        if stripe_bytes % 512 != 0 {
            return Err(self.wrong(
                format!("stripe_bytes = {stripe_bytes} is no multiple of 512"),
                "64 KiB is 65536, 1 MiB 1048576",
            ));
        }
        let member = self.part("member")?;
        if !matches!(member.kind, Kind::Disk | Kind::Flash | Kind::Ram) {
            let what = format!("member = {:?} is of kind {}", member.name, member.kind.name());
            return Err(self.wrong(what, "members are of kind disk, flash or ram"));
        }
        Ok(What::Raid { level, members, stripe_bytes, member })
    }

    fn endurance(&self, what: &What) -> Result<Option<Endurance>, DeviceError> {
        if let What::Raid { member, .. } = what {
            return Ok(member.endurance);
        }
        let Some(cell) = self.word("cell") else { return Ok(None) };
        let cell = named(self.file, "cell", cell, &Cell::NAMES)?;
        let erases = Some(self.figure("erases")).filter(|erases| *erases > 0).unwrap_or(cell.erases());
        let (raw_percent, amplification_percent) = match what {
            What::Translated { config: c, .. } => {
                ((c.channels * c.blocks_per_channel * c.pages_per_block * 100 / c.logical_pages) as u64, 100)
            }
            _ => (self.figure("raw_percent"), self.figure("amplification_percent")),
        };
        Ok(Some(Endurance { erases, raw_percent, amplification_percent }))
    }
}
