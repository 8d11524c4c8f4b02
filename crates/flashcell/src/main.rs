//! The `flashcell` binary: the command line and nothing else. Each sub-command is one call into `server`, `lab` or `sim`.
//!
//! Exit codes: 0 done, 1 failed (the reason on stderr, a `hint:` line where one helps), 2 wrong usage. stdout is data,
//! stderr is talk. Named `cellcli` or `dcli`, it is that program.

mod adopt;
mod attach;
mod contents;
mod dcli;
mod doctor;
mod experiments;
mod manual;
mod metrics;
mod pin;
mod recording;
mod support;
mod trust;
mod warm;
mod what_if;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use server::config::ClassChoice;
use server::console::ConsoleOptions;
use server::{GridDiskPlan, InitPlan};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// An open storage cell: grid disks over NBD, flash in front of slow disks.
#[derive(Parser)]
#[command(name = "flashcell", version, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Subcommand)]
enum Sub {
    /// Make a cell in a directory
    Init(Init),
    /// Serve a cell until SIGTERM
    Serve(Serve),
    /// The main job end to end in a temporary directory: a slow disk without flash, behind a flash cache in write-through and in write-back, with the flash log, and flash alone
    Demo(Demo),
    /// Make a grid disk a block device of this host, and mount it
    Attach(attach::Attach),
    /// Unmount an attached grid disk and take its block device away
    Detach(attach::Detach),
    /// Put a cache in front of a volume that holds a file system, in place; the cell is stopped meanwhile
    Adopt(adopt::Adopt),
    /// Give an adopted volume back as it is; the cell is stopped meanwhile
    Release(adopt::Release),
    /// Writes man pages and shell completions, for packages
    #[command(hide = true)]
    Manual(manual::Manual),
    /// Keeps an attached grid disk's device: started by `attach`
    #[command(hide = true)]
    AttachKeeper(attach::Keeper),
    /// Serves an attached grid disk's device: started by its keeper
    #[command(hide = true)]
    AttachDriver(attach::Driver),
    /// Administer a cell
    Cellcli(Cellcli),
    /// Run a command, copy files or run a script on many cells over ssh
    #[command(version)]
    Dcli(dcli::Dcli),
    /// Metrics of many cells in one table
    Metrics(metrics::Metrics),
    /// Set up certificates between cells and those who administer them, in one command
    Trust(trust::Trust),
    /// Pin ranges, files or tables in the flash cache, or list what is pinned of a grid disk
    ///
    ///   flashcell pin GRIDDISK                          list its ranges
    ///   flashcell pin GRIDDISK OFFSET LENGTH POLICY     a range: 0 64K, 1.5G 10M; multiples of 4K
    ///   flashcell pin PATH... POLICY                    what the files lie on, and the files below directories
    ///   flashcell pin --table DB.SCHEMA.TABLE POLICY    a PostgreSQL table with indexes, TOAST and partitions
    ///
    /// POLICY: keep it in flash, let it come and go by merit (default), do not cache it (none); off: as the grid disk says again
    #[command(verbatim_doc_comment)]
    Pin(pin::Pin),
    /// Tell which data is on flash, by range of the grid disks, by file of a mounted file system, or by table of a database
    Contents(contents::Contents),
    /// Write down which parts of files are on flash, and bring them to flash elsewhere: a standby that is warm when it is promoted
    Warm(warm::Warm),
    /// Print a CellCLI script that makes the same cell: grid disks, flash cache and log, plan, pins, thresholds; no data, no secrets
    Backup(Backup),
    /// Tell what on this host stands in the way of durable and quick storage, and what mends it; changes nothing
    ///
    /// Exit code 0: nothing that has to be mended; 1: a warning.
    Doctor(doctor::Doctor),
    /// Write one archive for whoever is to help: configuration, attributes, metrics, alerts, process, host, log; no data, no secrets
    Support(support::Support),
    /// Keep the disks of grid disks as they are, consistent and of one moment, while their volumes are snapshot; writes wait meanwhile, but in
    /// write-back-ordered
    Freeze(Freeze),
    /// Let the disks of frozen grid disks change again
    Thaw(Thaw),
    /// Experiments and traces
    #[command(subcommand)]
    Lab(Lab),
    /// Redo (commit) times: Oracle 10046 traces, fio latency logs, columns, captures
    #[command(subcommand)]
    Redo(Redo),
    /// Where the requests of a running cell, or of a block device, go
    #[command(subcommand)]
    Trace(Trace),
    /// The engine in virtual time under power cuts, process death and device faults, judged by a model
    Sim(Sim),
}

#[derive(Args)]
struct Backup {
    /// The cell: its directory, or host[:port]; else $FLASHCELL_CELL, or the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
}

#[derive(Args)]
struct Init {
    /// Directory of the cell: cell.toml, and disk-0.img, flash-0.img … for sizes
    dir: PathBuf,
    /// A disk: SIZE makes a file (10G, 512M), PATH takes a file or block device, NBD-URI an export of another server
    #[arg(long = "disk", value_name = "SIZE|PATH|NBD-URI", required = true)]
    disks: Vec<String>,
    /// A flash device, likewise
    #[arg(long = "flash", value_name = "SIZE|PATH")]
    flash: Vec<String>,
    /// A grid disk; MODE is write-through, write-back, write-back-ordered, write-around or none
    #[arg(long = "griddisk", value_name = "NAME:SIZE[:data|redo|temp][:MODE]")]
    grid_disks: Vec<GridDiskPlan>,
    /// Emulate a medium on every disk: sata-7200, sas-15k, network-volume, sata-ssd, pcie-flash, fixed:TIME[:PARALLEL]
    #[arg(long, value_name = "NAME")]
    disk_model: Option<String>,
    /// Files take space as they need it, instead of having all of it from the beginning: for tests and demos
    #[arg(long)]
    sparse: bool,
    /// Whether data that was flushed survives a power cut of the host on devices where that cannot be found out (btrfs, ZFS, overlay, network
    /// file systems); without it they are not counted as durable, and flash there takes no data before the disk has it
    #[arg(long, value_enum, value_name = "yes|no", hide_possible_values = true)]
    durable: Option<YesNo>,
    /// Destroy what is there
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum YesNo {
    Yes,
    No,
}

#[derive(Args)]
struct Serve {
    /// Directory of the cell, or its cell.toml
    #[arg(value_name = "DIR|cell.toml")]
    cell: PathBuf,
    /// Stop when the process that started this ends, however it ends
    #[arg(long, hide = true)]
    with_parent: bool,
}

#[derive(Args)]
struct Demo {
    /// Write the rows as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with bars
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// The disk to emulate, as for init; fixed:4ms:8 answers like `nbdkit -t 8 --filter=delay` with 4 ms
    #[arg(long, value_name = "NAME", default_value = lab::demo::DISK_MODEL)]
    disk_model: String,
}

#[derive(Args)]
struct Cellcli {
    /// The cell: its directory, or host[:port]; else $FLASHCELL_CELL, else the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
    /// No prompt, no line editing
    #[arg(short = 'n')]
    non_interactive: bool,
    /// Monitor: refuse everything that changes something
    #[arg(short = 'm')]
    monitor: bool,
    /// No banner
    #[arg(short = 'x')]
    no_banner: bool,
    /// LIST and DESCRIBE answer in JSON, with raw numbers
    #[arg(long, conflicts_with = "xml")]
    json: bool,
    /// LIST answers in XML, with raw numbers; -xml as well
    #[arg(long)]
    xml: bool,
    /// Tell on stderr which cell is asked; -vv: each statement, and how long its answer took
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbosity: u8,
    /// The port of the cell's admin service, on this host or on the host that -c names
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Carry out the rest of the line and leave
    #[arg(short = 'e', value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    execute: Option<Vec<String>>,
}

#[derive(Args)]
struct Freeze {
    /// The grid disks
    #[arg(value_name = "GRIDDISK", required_unless_present = "all")]
    grid_disks: Vec<String>,
    /// All grid disks that are not offline
    #[arg(long, conflicts_with = "grid_disks")]
    all: bool,
    /// They thaw by themselves after so many seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Answer in JSON: of each grid disk its name, for how many seconds, and the moment its disk is of
    #[arg(long)]
    json: bool,
    /// The cell: its directory, or host[:port]; else $FLASHCELL_CELL, else the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
}

#[derive(Args)]
struct Thaw {
    /// The grid disks
    #[arg(value_name = "GRIDDISK", required_unless_present = "all")]
    grid_disks: Vec<String>,
    /// All grid disks
    #[arg(long, conflicts_with = "grid_disks")]
    all: bool,
    /// The cell: its directory, or host[:port]; else $FLASHCELL_CELL, else the current directory
    #[arg(short = 'c', value_name = "CELL")]
    cell: Option<String>,
}

/// Grid disks as a statement names them.
fn targets(grid_disks: &[String], all: bool) -> Result<String, Failure> {
    if all {
        return Ok("ALL".to_owned());
    }
    let names: Result<Vec<String>, Failure> = grid_disks.iter().map(|name| quoted(name)).collect();
    Ok(names?.join(", "))
}

/// A word of a statement as it stands.
fn quoted(word: &str) -> Result<String, Failure> {
    if word.is_empty() || word.contains(['\'', '"', '\n']) {
        return Err(format!("{word:?} is neither a name nor a size").into());
    }
    Ok(format!("'{word}'"))
}

#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["seed", "seeds", "twice", "canary"])))]
struct Sim {
    /// One seed: a number, or a commit hash; with --canary, of that broken build
    #[arg(long, value_name = "N")]
    seed: Option<String>,
    /// All seeds from A up to, not including, B
    #[arg(long, value_name = "A..B", conflicts_with_all = ["seed", "canary"])]
    seeds: Option<String>,
    /// One seed twice: the traces must be identical
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "seeds", "canary"])]
    twice: Option<String>,
    /// Deliberately broken builds, all or one: each must be caught
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "all")]
    canary: Option<String>,
    /// With --seed: when it fails, look for a short list of steps that fails the same way, and print it
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// With --seed: when it fails, so many of the last events are printed
    #[arg(long, value_name = "N", requires = "seed", default_value_t = sim::cli::LOG_EVENTS)]
    events: usize,
    /// With --seed or --seeds: client operations of each plan, at least
    #[arg(long, value_name = "N", conflicts_with = "twice",
        value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    operations: Option<u64>,
    /// With --seeds: run all of them and list every failing seed
    #[arg(long, requires = "seeds")]
    keep_going: bool,
    /// With --seeds: write the trace hash of each seed to a file; two builds that behave alike write the same
    #[arg(long, value_name = "FILE", requires = "seeds")]
    hashes: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Lab {
    /// Replay block traces: what the cache would miss and write, next to policies from the literature
    Policies(Policies),
    /// Replay a trace against the cell in virtual time: what flash of these sizes would give, wear and cost, and what to put where
    WhatIf(Box<what_if::WhatIf>),
    /// Print a table of prices for `what-if`, to be changed
    Prices(what_if::Prices),
    /// Models of devices: a list, a description to be changed, or how far each is from its data sheet
    Devices(what_if::DevicesArgs),
    /// What experiments there are
    List,
    /// Run experiments: the engine in virtual time on models of disks and flash, beside what the field measured
    Run(experiments::LabRun),
}

#[derive(Args)]
struct Policies {
    /// Traces, - for standard input, packed with zstd, gzip or xz or not: ARC and LIRS lists, CSV, MSR, Alibaba, Tencent, SPC, CloudPhysics,
    /// libCacheSim, fio iolog, blktrace, blkparse, biosnoop, ftrace, DiskSim, vscsi, NBD, what `trace record` writes
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Sizes of the cache: shares of the distinct blocks, or numbers of blocks
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1%,10%")]
    sizes: Vec<lab::policies::Size>,
    /// Bytes of a block, for traces that count in bytes: 4k to 64k
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = block_bytes)]
    block: u32,
    /// Bytes of a segment, as a cell has them; by the size of the cache otherwise
    #[arg(long, value_name = "SIZE", value_parser = segment_bytes)]
    segment: Option<u32>,
    /// Only these: flashcell; fifo, lru, clock, arc, lirs, s3-fifo, sieve, w-tinylfu in place, or on the cell's log (fifo/log, …)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policies: Vec<String>,
    /// Read the traces as this: lis, lirs, csv, msr, fio, blkparse, disksim, disksim-bytes, spelled, vscsi1, vscsi2, nbd, capture, alibaba,
    /// tencent, spc, cloudphysics-csv, libcachesim-csv, oracle-general, blktrace, biosnoop, ftrace
    #[arg(long, value_name = "NAME")]
    format: Option<lab::trace::Format>,
    /// Or as lines of columns, counted from 1: offset=4:sectors,bytes=5,op=3,device=2,time=1:us; id=2 for objects; space for white space
    /// between them. Units of bytes: bytes, sectors or a number; of op: words, r0 (0 reads), r1, scsi
    #[arg(long, value_name = "COLUMNS", conflicts_with = "format")]
    columns: Option<lab::trace::Columns>,
    /// Write the rows as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Trace {
    /// Record where the requests of a running cell go, until ^C or for a time; `lab policies` and `lab what-if` replay it
    Record(recording::TraceRecord),
}

#[derive(Subcommand)]
enum Redo {
    /// Six-number summary as R prints it, percentiles, outliers; all files as one sample
    Summary(RedoSummary),
    /// Two samples: both summaries, Welch's t-test as R prints it, and which is better
    Compare(RedoCompare),
    /// Record the redo writes (commits) of a running cell, until ^C or for a time
    Record(recording::RedoRecord),
}

#[derive(Args)]
struct RedoSummary {
    /// Files of redo times; a directory stands for the .trc files in it, - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    options: RedoOptions,
}

#[derive(Args)]
struct RedoCompare {
    /// The first sample, a file or a directory of traces
    a: PathBuf,
    /// The second one
    b: PathBuf,
    #[command(flatten)]
    options: RedoOptions,
}

#[derive(Args)]
struct RedoOptions {
    /// What to look at: a wait (default: log file sync), read|write|trim of fio, disk-first|flash-first|failed of a capture
    #[arg(long, value_name = "NAME")]
    wait: Option<String>,
    /// Read the files as this: 10046, fio, columns, capture
    #[arg(long, value_name = "NAME")]
    format: Option<lab::redo::Format>,
    /// What the numbers count: ns, us, ms, cs, s, 1024ns (default: us; fio: ns)
    #[arg(long, value_name = "UNIT")]
    unit: Option<lab::redo::Unit>,
    /// Which of several columns: its name, or its number from 1
    #[arg(long, value_name = "NAME|N")]
    column: Option<String>,
    /// Longer times are outliers
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = lab::redo::parse_time_ps)]
    outlier: i64,
    /// Leave longer times out, to stand beside data that were cut
    #[arg(long, value_name = "TIME", value_parser = lab::redo::parse_time_ps)]
    cut: Option<i64>,
    /// Answer in JSON, or write it to FILE beside the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a picture: density on a logarithmic axis, and percentiles
    #[arg(long, value_name = "FILE.svg", visible_alias = "svg")]
    plot: Option<PathBuf>,
}

impl RedoOptions {
    fn into_lab(self) -> lab::redo::RedoOptions {
        lab::redo::RedoOptions {
            reading: lab::redo::Reading {
                format: self.format,
                wait: self.wait,
                unit: self.unit,
                column: self.column,
                outlier_ps: self.outlier,
                cut_ps: self.cut,
            },
            json: self.json,
            plot: self.plot,
        }
    }
}

fn block_bytes(text: &str) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = lower.strip_suffix('k').map_or((lower.as_str(), 1), |digits| (digits, 1024));
    let bytes = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    bytes.ok_or_else(|| "a number of bytes, or of KiB with a k".to_owned())
}

fn segment_bytes(text: &str) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match (lower.strip_suffix('k'), lower.strip_suffix('m')) {
        (Some(digits), _) => (digits, 1 << 10),
        (_, Some(digits)) => (digits, 1 << 20),
        _ => (lower.as_str(), 1),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    bytes.ok_or_else(|| "a number of bytes, of KiB with a k, or of MiB with an m".to_owned())
}

/// `cellcli` as a program of its own.
#[derive(Parser)]
#[command(name = "cellcli", version, about = "Administer a Flashcell cell")]
struct CellcliLine {
    #[command(flatten)]
    cellcli: Cellcli,
}

/// What went wrong, as it is printed.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let path = std::env::args_os().next().map(PathBuf::from);
    let command = match path.as_deref().and_then(Path::file_name).and_then(OsStr::to_str) {
        Some("cellcli") => Sub::Cellcli(CellcliLine::parse_from(with_long_xml(std::env::args_os())).cellcli),
        Some("dcli") => Sub::Dcli(dcli::DcliLine::parse().dcli),
        _ => CommandLine::parse_from(joined(with_long_xml(std::env::args_os()))).command,
    };
    // Nothing was run anywhere: 2, as the vendor's dcli.
    let refused = if matches!(command, Sub::Dcli(_)) { ExitCode::from(2) } else { ExitCode::FAILURE };
    match run(command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody is left to tell when stderr is gone.
            let _ = writeln!(std::io::stderr(), "flashcell: {error}");
            refused
        }
    }
}

/// `-xml` as older clients of the vendor take it, wherever CellCLI's own options are.
fn with_long_xml(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let (mut is_cellcli, mut is_option) = (false, true);
    args.enumerate().map(move |(at, arg)| {
        // An option of CellCLI alone, and nothing behind -e is an option.
        is_cellcli |= at < 2 && Path::new(&arg).file_name() == Some(OsStr::new("cellcli"));
        is_option &= arg != "-e";
        if is_cellcli && is_option && arg == "-xml" { OsString::from("--xml") } else { arg }
    })
}

/// `--json FILE.json` of the sub-commands whose `--json` may stand alone as `--json=FILE.json`: a trace after `--json` is never
/// taken for the file to write.
fn joined(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    for arg in args {
        let is_json = Path::new(&arg).extension().is_some_and(|suffix| suffix == "json");
        match all.last_mut() {
            Some(last) if is_json && last == "--json" => {
                last.push("=");
                last.push(arg);
            }
            _ => all.push(arg),
        }
    }
    all
}

/// Have a cell carry out a statement.
fn carry_out(statement: String, cell: Option<String>, json: bool) -> Result<bool, Failure> {
    let options = ConsoleOptions { execute: Some(statement), cell, json, ..ConsoleOptions::default() };
    Ok(server::console::cellcli(&options)?)
}

/// Whether all of it was done; what is false has been told on stderr.
fn run(command: Sub) -> Result<bool, Failure> {
    match command {
        Sub::Init(init) => {
            let plan = InitPlan {
                dir: init.dir,
                disks: init.disks,
                flash: init.flash,
                grid_disks: init.grid_disks,
                disk_model: init.disk_model,
                sparse: init.sparse,
                durable: init.durable.map(|durable| match durable {
                    YesNo::Yes => ClassChoice::Durable,
                    YesNo::No => ClassChoice::Ephemeral,
                }),
                force: init.force,
            };
            for line in server::init(&plan)? {
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            Ok(true)
        }
        Sub::Serve(serve) => {
            server::log_to_stderr();
            if serve.with_parent {
                server::stop_with_parent()?;
            }
            server::serve(&serve.cell)?;
            Ok(true)
        }
        Sub::Attach(attach) => attach::attach(attach),
        Sub::Detach(detach) => attach::detach(detach),
        Sub::Adopt(options) => adopt::run(options),
        Sub::Release(options) => adopt::run_release(options),
        Sub::AttachKeeper(keeper) => attach::keep(&keeper),
        Sub::AttachDriver(driver) => attach::drive(&driver),
        Sub::Demo(demo) => Ok(lab::demo(&lab::DemoOptions {
            binary: std::env::current_exe()?,
            json: demo.json,
            report: demo.report,
            disk_model: demo.disk_model,
        })?),
        Sub::Doctor(options) => doctor::examine(options),
        Sub::Manual(manual) => manual::write(&manual, CommandLine::command(), CellcliLine::command()),
        Sub::Cellcli(cellcli) => Ok(server::console::cellcli(&ConsoleOptions {
            cell: cellcli.cell,
            non_interactive: cellcli.non_interactive,
            monitor: cellcli.monitor,
            no_banner: cellcli.no_banner,
            port: cellcli.port,
            json: cellcli.json,
            xml: cellcli.xml,
            verbosity: cellcli.verbosity,
            execute: cellcli.execute.map(|words| words.join(" ")),
        })?),
        Sub::Dcli(dcli) => Ok(server::dcli::dcli(&dcli.into_options())?),
        Sub::Metrics(metrics) if metrics.wants_help() => {
            let mut line = CommandLine::command();
            line.build();
            let help = line.find_subcommand_mut("metrics").map(clap::Command::render_long_help);
            let _ = write!(std::io::stdout(), "{}", help.unwrap_or_default());
            Ok(true)
        }
        Sub::Metrics(metrics) => Ok(server::metrics::metrics(&metrics.into_options())?),
        Sub::Trust(trust) => Ok(server::trust::trust(&trust.into_options())?),
        Sub::Pin(pin) => pin::run(pin),
        Sub::Contents(contents) => contents::run(contents),
        Sub::Warm(warm) => warm::run(warm),
        Sub::Backup(Backup { cell }) => {
            let script = server::console::backup(cell.as_deref())?;
            // A reader that has gone has what it wanted.
            let _ = std::io::stdout().write_all(script.as_bytes());
            Ok(true)
        }
        Sub::Support(options) => support::run(options),
        Sub::Freeze(Freeze { grid_disks, all, seconds, json, cell }) => {
            let execute = format!("ALTER GRIDDISK {} seconds={seconds} FREEZE", targets(&grid_disks, all)?);
            if json {
                let _ = writeln!(std::io::stdout(), "{}", server::console::freeze(cell.as_deref(), &execute)?);
                return Ok(true);
            }
            carry_out(execute, cell, false)
        }
        Sub::Thaw(Thaw { grid_disks, all, cell }) => {
            let execute = format!("ALTER GRIDDISK {} THAW", targets(&grid_disks, all)?);
            carry_out(execute, cell, false)
        }
        Sub::Lab(Lab::Policies(policies)) => {
            let table = lab::policies(&lab::PoliciesOptions {
                traces: policies.traces,
                sizes: policies.sizes,
                block_bytes: policies.block,
                segment_bytes: policies.segment,
                policies: policies.policies,
                format: policies.format,
                columns: policies.columns,
                json: policies.json,
                plot: policies.plot,
            })?;
            let _ = std::io::stdout().write_all(table.as_bytes());
            Ok(true)
        }
        Sub::Lab(Lab::WhatIf(what_if)) => what_if::run(*what_if),
        Sub::Lab(Lab::Prices(prices)) => {
            let _ = std::io::stdout().write_all(lab::what_if::prices(&prices.name)?.as_bytes());
            Ok(true)
        }
        Sub::Lab(Lab::Devices(asked)) => what_if::devices(asked),
        Sub::Lab(Lab::List) => {
            let _ = std::io::stdout().write_all(lab::run::list().as_bytes());
            Ok(true)
        }
        Sub::Lab(Lab::Run(asked)) => experiments::run(asked),
        Sub::Redo(redo) => {
            let text = match redo {
                Redo::Summary(summary) => lab::redo::summary(&summary.files, &summary.options.into_lab())?,
                Redo::Compare(compare) => lab::redo::compare(&compare.a, &compare.b, &compare.options.into_lab())?,
                Redo::Record(record) => return recording::record_redo(&record),
            };
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(true)
        }
        Sub::Trace(Trace::Record(record)) => recording::record_trace(&record),
        Sub::Sim(sim) => {
            let answer = simulate(&sim)?;
            let _ = std::io::stdout().write_all(answer.text.as_bytes());
            Ok(answer.good)
        }
    }
}

fn simulate(sim: &Sim) -> Result<sim::cli::Answer, Failure> {
    use sim::harness::{Case, OPERATIONS_MIN};
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let talk = |line: &str| {
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    let canary = match sim.canary.as_deref() {
        None | Some("all") => None,
        Some(name) => Some(sim::cli::parse_canary(name)?),
    };
    let operations = sim.operations.unwrap_or(OPERATIONS_MIN);
    if let Some(seed) = &sim.seed {
        if sim.canary.is_some() && canary.is_none() {
            return Err("a seed is run with one broken build\nhint: --canary NAME --seed N".into());
        }
        let case = Case { seed: sim::cli::parse_seed(seed)?, operations, sabotage: canary };
        return Ok(if sim.shrink {
            sim::cli::shrink(case, sim.events, &talk)
        } else {
            sim::cli::one(case, sim.events)
        });
    }
    if let Some(seed) = &sim.twice {
        return Ok(sim::cli::twice(sim::cli::parse_seed(seed)?));
    }
    if let Some(seeds) = &sim.seeds {
        let cannot = |path: &PathBuf, error| format!("{} cannot be written: {error}", path.display());
        let seeds = sim::cli::parse_range(seeds)?;
        // Before the run: it may take an hour.
        if let Some(path) = &sim.hashes {
            std::fs::write(path, "").map_err(|error| cannot(path, error))?;
        }
        let mut hashes = String::new();
        let answer = sim::cli::range(seeds, operations, threads, sim.keep_going, &mut hashes, &talk);
        if let Some(path) = &sim.hashes {
            std::fs::write(path, hashes).map_err(|error| cannot(path, error))?;
        }
        return Ok(answer);
    }
    if sim.operations.is_some() {
        return Err("--operations goes with --seed or --seeds: broken builds run plans of the usual length".into());
    }
    let chosen = canary.map_or_else(sim::cli::canaries, |one| vec![one]);
    Ok(sim::cli::canary(&chosen, threads, &talk))
}
