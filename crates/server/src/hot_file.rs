//! What is hot on the flash of a cell, in `hot-blocks.json` beside cell.toml, for the flash that comes after a restart.
//!
//! Names of blocks, never data, and never believed: a wrong one costs a read of the disk. A file that is not there, damaged, or of
//! another cell is as none. Written whole, once a minute at most and only when it has changed.

use crate::dir;
use cell::HotLists;
use celldisk::{CellId, DeviceId};
use device::sync::lock;
use flashcache::hot::{HEAT_MAX, HOT_BLOCKS_MAX, HotBlock, in_heat_order};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Name of the file in a cell's directory.
const FILE_NAME: &str = "hot-blocks.json";
const VERSION: u32 = 1;
/// More than sixteen full lists of blocks far apart.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The file as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    flashcell_hot_blocks: u32,
    cell: String,
    /// By flash cell disk.
    members: BTreeMap<String, Vec<Run>>,
}

/// Blocks of one grid disk that are as hot.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    heat: u8,
    griddisk: u64,
    /// The first, then how far each is from the one before.
    blocks: Vec<u64>,
}

/// The file of one cell.
pub(crate) struct HotFile {
    path: PathBuf,
    cell: CellId,
    written: Mutex<HotLists>,
}

impl HotFile {
    /// That of the cell in this directory, and what is in it.
    pub(crate) fn load(dir: &Path, cell: CellId) -> (HotFile, HotLists) {
        let path = dir.join(FILE_NAME);
        let lists = match read(&path) {
            Ok(bytes) => parse(&bytes, cell).unwrap_or_else(|why| {
                tracing::info!(path = %path.display(), why, "the list of hot blocks is not used");
                HotLists::new()
            }),
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "the list of hot blocks cannot be read");
                }
                HotLists::new()
            }
        };
        (HotFile { path, cell, written: Mutex::new(lists.clone()) }, lists)
    }

    /// Write them, unless they are what the file has.
    pub(crate) fn keep(&self, lists: HotLists) {
        let mut written = lock(&self.written);
        if *written == lists {
            return;
        }
        match dir::write(&self.path, dir::PRIVATE, &text(&lists, self.cell)) {
            Ok(()) => *written = lists,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the list of hot blocks cannot be written");
            }
        }
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

fn text(lists: &HotLists, cell: CellId) -> Vec<u8> {
    let members = lists.iter().map(|(id, list)| (id.to_string(), list.chunk_by(is_same_run).map(run_of).collect()));
    let written = Written { flashcell_hot_blocks: VERSION, cell: cell.to_string(), members: members.collect() };
    // Numbers and plain names: it cannot fail.
    serde_json::to_vec(&written).unwrap_or_default()
}

fn is_same_run(a: &HotBlock, b: &HotBlock) -> bool {
    (a.heat, a.disk) == (b.heat, b.disk) && a.block <= b.block
}

fn run_of(hot: &[HotBlock]) -> Run {
    let first = hot[0];
    let steps = hot.windows(2).map(|pair| pair[1].block - pair[0].block);
    Run { heat: first.heat, griddisk: first.disk, blocks: std::iter::once(first.block).chain(steps).collect() }
}

/// The lists of a file of this cell, or why there are none.
fn parse(bytes: &[u8], cell: CellId) -> Result<HotLists, String> {
    let written: Written = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if written.flashcell_hot_blocks != VERSION {
        return Err(format!("it is of version {}", written.flashcell_hot_blocks));
    }
    if written.cell != cell.to_string() {
        return Err(format!("it is of the cell {}", written.cell));
    }
    written.members.into_iter().map(|(id, runs)| Ok((device_id(&id)?, blocks_of(&runs)?.into()))).collect()
}

fn device_id(text: &str) -> Result<DeviceId, String> {
    u128::from_str_radix(text, 16).map(DeviceId).map_err(|_| format!("{text:?} is no cell disk"))
}

fn blocks_of(runs: &[Run]) -> Result<Vec<HotBlock>, String> {
    let mut list = Vec::new();
    for run in runs {
        if !(1..=HEAT_MAX).contains(&run.heat) {
            return Err(format!("a heat of {}", run.heat));
        }
        let mut block = 0_u64;
        for step in run.blocks.iter().take(HOT_BLOCKS_MAX) {
            block = block.checked_add(*step).ok_or("a block beyond any disk")?;
            list.push(HotBlock { disk: run.griddisk, block, heat: run.heat });
        }
    }
    in_heat_order(&mut list);
    Ok(list)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use device::Prng;

    const CELL: CellId = CellId(0x17);

    fn lists(seed: u64, blocks: usize) -> HotLists {
        let mut prng = Prng::new(seed);
        let of_member = |prng: &mut Prng| {
            let mut list: Vec<HotBlock> = (0..blocks)
                .map(|_| HotBlock {
                    disk: 1 + prng.below(3),
                    block: prng.below(1 << 30),
                    heat: 1 + prng.below(3) as u8,
                })
                .collect();
            in_heat_order(&mut list);
            list
        };
        [DeviceId(5), DeviceId(u128::MAX)].into_iter().map(|id| (id, of_member(&mut prng).into())).collect()
    }

    #[test]
    fn what_is_kept_is_there_in_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let (file, before) = HotFile::load(dir.path(), CELL);
        assert!(before.is_empty());
        for lists in [lists(1, 1000), lists(2, 1), HotLists::new()] {
            file.keep(lists.clone());
            assert_eq!(HotFile::load(dir.path(), CELL).1, lists);
            assert!(HotFile::load(dir.path(), CellId(0x18)).1.is_empty(), "another cell's");
        }
    }

    #[test]
    fn it_is_written_only_when_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, _) = HotFile::load(dir.path(), CELL);
        file.keep(lists(1, 10));
        std::fs::remove_file(dir.path().join(FILE_NAME)).unwrap();
        file.keep(lists(1, 10));
        assert!(!dir.path().join(FILE_NAME).exists());
        file.keep(lists(2, 10));
        assert!(dir.path().join(FILE_NAME).exists());
    }

    #[test]
    fn full_lists_fit() {
        let lists = lists(3, HOT_BLOCKS_MAX);
        let bytes = text(&lists, CELL);
        assert!((bytes.len() as u64) < FILE_BYTES_MAX / 8, "{} bytes", bytes.len());
        assert_eq!(parse(&bytes, CELL).unwrap(), lists);
    }

    #[test]
    fn a_file_that_is_damaged_is_none() {
        let good = String::from_utf8(text(&lists(1, 3), CELL)).unwrap();
        let bad = [
            good[..good.len() - 1].to_owned(),
            good.replace("\"heat\":1", "\"heat\":4"),
            good.replace("blocks\":1", "blocks\":2"),
            good.replace("ffff", "fffg"),
            good.replacen("\"blocks\":[", "\"blocks\":[18446744073709551615,", 1),
            String::new(),
        ];
        assert!(parse(good.as_bytes(), CELL).is_ok());
        for bad in bad {
            assert_ne!(bad, good);
            assert!(parse(bad.as_bytes(), CELL).is_err(), "{bad}");
        }
    }
}
