//! The command line of `flashcell metrics`.

use clap::Args;
use server::metrics::MetricsOptions;
use std::path::PathBuf;

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Metrics {
    /// Cells, separated by commas: directories, or HOST[:PORT]; else a list: -g, $FLASHCELL_GROUP, ~/.flashcell/cells, ~/cell_group
    #[arg(short = 'H', long, value_name = "LIST")]
    hosts: Option<String>,
    /// File with a cell on each line
    #[arg(short = 'g', value_name = "GROUPFILE")]
    group_file: Option<PathBuf>,
    /// Metrics whose names begin like this regular expression
    #[arg(short = 'm', long, value_name = "REGEXP")]
    mask: Option<String>,
    /// Descriptions and units
    #[arg(short = 'd', long)]
    desc: bool,
    /// A column for each cell
    #[arg(short = 'c', long)]
    cells: bool,
    /// Scientific notation, six digits
    #[arg(short = 's', long)]
    sci: bool,
    /// Minimum, maximum and average over cells and objects
    #[arg(short = 'a', long)]
    stats: bool,
    /// A row for each object (grid disk, cell disk) instead of one for all
    #[arg(short = 'o', long)]
    objects: bool,
    /// Keep this reading in a file, for --diff
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
    /// Show what has changed since the reading in a file
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// Again and again, so many seconds apart
    #[arg(short = 'w', long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5")]
    watch: Option<u64>,
    /// With --watch: so many times
    #[arg(long, value_name = "N", requires = "watch", default_value_t = 0)]
    count: u64,
    /// In JSON: every value of every cell
    #[arg(long)]
    json: bool,
    /// Seconds a cell may take to answer
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Print help; followed by a list, the cells, as the field's own example has it
    #[arg(short = 'h', long = "help", value_name = "LIST", num_args = 0..=1, default_missing_value = "")]
    help: Option<String>,
}

impl Metrics {
    /// Whether help is asked for.
    pub(crate) fn wants_help(&self) -> bool {
        self.help.as_deref() == Some("")
    }

    pub(crate) fn into_options(self) -> MetricsOptions {
        MetricsOptions {
            hosts: self.hosts.or(self.help),
            group_file: self.group_file,
            mask: self.mask,
            describe: self.desc,
            cells: self.cells,
            scientific: self.sci,
            stats: self.stats,
            objects: self.objects,
            before: self.before,
            diff: self.diff,
            watch_s: self.watch,
            count: self.count,
            json: self.json,
            timeout_s: self.timeout,
        }
    }
}
