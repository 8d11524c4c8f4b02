//! The command line of `flashcell lab what-if`.

use crate::experiments::{DEVICES, RealArgs};
use crate::{Failure, block_bytes, segment_bytes};
use clap::Args;
use lab::what_if::{DEFAULT_PRICES, Devices, FlashSize, Mode, WhatIfOptions};
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct WhatIf {
    /// A trace in any format that `lab policies` reads, - for standard input; `flashcell trace record` makes that of a running cell
    trace: PathBuf,
    /// Sizes of the flash cache: 512M, 4G, or shares of the data that the trace touches
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "5%,20%,50%")]
    flash: Vec<FlashSize>,
    /// The disk and the flash: names that `lab devices` lists, files in TOML, fixed:TIME[:PARALLEL]; or one name or file that is a pair
    #[arg(long, value_name = "DISK,FLASH", default_value = DEVICES)]
    devices: Devices,
    /// Modes of the cache: write-through, write-back, write-back-ordered
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "write-through,write-back")]
    modes: Vec<Mode>,
    /// Requests under way at a time: each session asks again when it is answered
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    sessions: u32,
    /// Ask when the trace says, whether or not earlier requests are answered; waiting counts
    #[arg(long, conflicts_with = "sessions")]
    open: bool,
    /// Ask no earlier than the trace says, at so many times its speed: 1, 0.5, 10; without, sessions ask as fast as they are answered
    #[arg(long, value_name = "X", value_parser = speed_milli)]
    speed: Option<u64>,
    /// Go through the trace once before what is measured, so that the cache is warm
    #[arg(long)]
    warm: bool,
    /// What a request takes between client and cell and back, such as 26us over a socket of this host, 200us over a network
    #[arg(long, value_name = "TIME", default_value = "26us", value_parser = way_ns)]
    way: u64,
    /// Only the first N requests of the trace
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Bytes of a block of the cache: 4k to 64k
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = cache_block)]
    block: u32,
    /// Bytes of a segment; by the size of the cache otherwise
    #[arg(long, value_name = "SIZE", value_parser = cache_segment)]
    segment: Option<u32>,
    /// The size of the flash drive, where the cache is only a part of it: 960G, 2T; what is rated and paid is then the drive
    #[arg(long, value_name = "SIZE", value_parser = drive_bytes)]
    drive: Option<u64>,
    /// Prices: 2026, 2011, or a file; `flashcell lab prices > FILE` makes one to change
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_PRICES)]
    prices: String,
    /// Decides every choice
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Read the trace as this; see `lab policies --help`
    #[arg(long, value_name = "NAME")]
    format: Option<lab::trace::Format>,
    /// Or as lines of columns; see `lab policies --help`
    #[arg(long, value_name = "COLUMNS", conflicts_with = "format")]
    columns: Option<lab::trace::Columns>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    real: RealArgs,
}

#[derive(Args)]
pub(crate) struct Prices {
    /// 2026 or 2011
    #[arg(value_name = "NAME", default_value = DEFAULT_PRICES)]
    pub(crate) name: String,
}

#[derive(Args)]
pub(crate) struct DevicesArgs {
    /// A name, or a file in TOML: its description with the source of each figure; a list of what is built in otherwise
    #[arg(value_name = "NAME|FILE")]
    name: Option<String>,
    /// Hold the models against their data sheets; exit code 1 where one is further off than its description allows
    #[arg(long)]
    check: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Print devices; whether they agree with their data sheets.
pub(crate) fn devices(asked: DevicesArgs) -> Result<bool, Failure> {
    let DevicesArgs { name, check, json } = asked;
    let (text, agrees) = lab::devices::devices(&lab::devices::DevicesOptions { name, json, check })?;
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(agrees)
}

fn speed_milli(text: &str) -> Result<u64, String> {
    let wrong = || "a number above 0 with up to three digits behind the point, at most 1000000".to_owned();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let fraction: u64 = format!("{fraction:0<3}").parse().map_err(|_| wrong())?;
    let milli = whole.parse::<u64>().ok().and_then(|n| n.checked_mul(1000)).and_then(|n| n.checked_add(fraction));
    milli.filter(|milli| (1..=1_000_000_000).contains(milli)).ok_or_else(wrong)
}

fn drive_bytes(text: &str) -> Result<u64, String> {
    match text.parse()? {
        FlashSize::Bytes(bytes) => Ok(bytes),
        FlashSize::SharePpm(_) => Err("bytes with a unit, like 960G".to_owned()),
    }
}

fn way_ns(text: &str) -> Result<u64, String> {
    let ps = lab::redo::parse_time_ps(text).map_err(|error| error.to_string())?;
    u64::try_from(ps / 1000).map_err(|_| "a time like 26us or 1ms".to_owned())
}

fn cache_block(text: &str) -> Result<u32, String> {
    let bytes = block_bytes(text)?;
    let fits = bytes.is_power_of_two() && (4 << 10..=64 << 10).contains(&bytes);
    if fits { Ok(bytes) } else { Err("a power of two from 4k to 64k".to_owned()) }
}

fn cache_segment(text: &str) -> Result<u32, String> {
    let bytes = segment_bytes(text)?;
    let fits = bytes.is_power_of_two() && (256 << 10..=64 << 20).contains(&bytes);
    if fits { Ok(bytes) } else { Err("a power of two from 256k to 64m".to_owned()) }
}

/// Carry it out; whether what was measured agrees.
pub(crate) fn run(asked: WhatIf) -> Result<bool, Failure> {
    let real = asked.real.options(5)?;
    let (text, agrees) = lab::what_if(&WhatIfOptions {
        trace: asked.trace,
        format: asked.format,
        columns: asked.columns,
        requests_max: asked.requests,
        flash: asked.flash,
        devices: asked.devices,
        modes: asked.modes,
        sessions: asked.sessions as usize,
        open: asked.open,
        speed_milli: asked.speed,
        warm: asked.warm,
        way_ns: asked.way,
        block_bytes: asked.block,
        segment_bytes: asked.segment,
        drive_bytes: asked.drive,
        prices: asked.prices,
        seed: asked.seed,
        json: asked.json,
        real,
    })?;
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(agrees)
}
