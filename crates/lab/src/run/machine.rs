//! The field's machines as models: every figure with where it comes from.
//!
//! *Data sheet* and *document* are what they say; *assumed* is what nobody wrote down, with the range it may plausibly have; *fitted* was
//! chosen so that the figures without flash and with the table on flash, which calibrate, come out. No figure was fitted to what a flash
//! cache did; `docs/lab.md` names two choices that were made after seeing one.

use super::model::disk::DiskModel;
use super::model::flash::FlashModel;
use sim::ftl::{Collect, FtlConfig};

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

/// Seagate Barracuda 7200.7, 80 GB, SATA.
pub(super) const SEAGATE_7200_7: DiskModel = DiskModel {
    // Data sheet.
    rpm: 7_200,
    // 80 GB over 2 surfaces of 0.75 x the outer tracks' bytes: derived from the data sheet.
    cylinders: 110_000,
    // Data sheet: 80 GB is one platter.
    heads: 2,
    // Data sheet: 58 MB/s sustained on the outer tracks, in one turn.
    track_bytes: 483_328,
    // Data sheet: 8.5 ms on average; assumed: 0.8 ms (0.5 to 1.2) to the next cylinder, 17 ms (15 to 20) over all.
    seek_ns: [800_000, 8_500_000, 17_000_000],
    // Assumed: 0.2 ms (0.1 to 0.5) for drive, controller and kernel.
    overhead_ns: 200_000,
    // Data sheet: SATA, 150 MB/s.
    bus_ns_per_kib: 6_800,
    // Assumed: one of 16 segments (8 to 32) of the 8 MB buffer of the data sheet.
    read_ahead_bytes: 512 << 10,
    // Data sheet: no NCQ on the 7200.7; the kernel's elevator orders instead. Assumed: 32 (1 to 128).
    queue: 32,
    // Assumed: on, as SATA drives are shipped; 64 writes (16 to 512) of its 8 MB.
    cached_writes: 64,
};

/// A disk of 300 GB with 15,000 turns, SAS (Seagate Cheetah 15K.5).
pub(super) const SAS_15K: DiskModel = DiskModel {
    // Document.
    rpm: 15_000,
    // 300 GB over 8 surfaces of 0.8 x the outer tracks' bytes: derived from the data sheet.
    cylinders: 94_000,
    // Data sheet.
    heads: 8,
    // Data sheet: 125 MB/s sustained on the outer tracks, in one turn.
    track_bytes: 499_712,
    // Data sheet: 3.5 ms on average, 0.2 ms to the next; assumed: 7 ms (6 to 8) over all.
    seek_ns: [200_000, 3_500_000, 7_000_000],
    // Assumed: 0.15 ms (0.1 to 0.4).
    overhead_ns: 150_000,
    // Data sheet: SAS, 300 MB/s.
    bus_ns_per_kib: 3_400,
    // Assumed: one of 32 segments (16 to 64) of the 16 MB buffer of the data sheet.
    read_ahead_bytes: 512 << 10,
    // Assumed: 32 (16 to 128).
    queue: 32,
    // Assumed: off, as SAS drives are shipped.
    cached_writes: 0,
};

/// Intel X25-E, 32 GB SLC, SATA.
pub(super) const X25_E: FlashModel = FlashModel {
    // Data sheet: 75 us; S16: 80 us for SATA flash.
    read_ns: 80_000,
    // Data sheet: 250 MB/s.
    read_ns_per_kib: 4_100,
    // Data sheet: 85 us.
    write_ns: 85_000,
    // Data sheet: 170 MB/s.
    write_ns_per_kib: 6_000,
    // Data sheet: 10 channels.
    channels: 10,
    // Field (S9): about 2,000 a second sustained.
    random_writes_per_s: Some(2_000),
    // Assumed: 1,000 (100 to 10,000).
    random_burst: 1_000,
};

/// Fusion-io ioDrive SLC, PCIe.
const IODRIVE_SLC: FlashModel = FlashModel {
    // S16: 25 us for PCIe flash.
    read_ns: 25_000,
    // Data sheet: 750 MB/s.
    read_ns_per_kib: 1_370,
    // Assumed: 30 us (15 to 60), its writes go through a buffer.
    write_ns: 30_000,
    // Data sheet: 650 MB/s.
    write_ns_per_kib: 1_580,
    // Assumed: 24 (16 to 25).
    channels: 24,
    // Data sheet: over 100,000 writes a second; sustained assumed 60,000 (20,000 to 100,000).
    random_writes_per_s: Some(60_000),
    // Assumed.
    random_burst: 10_000,
};

/// The flash of S13: several modules behind one device.
pub(super) const S13_FLASH: FlashModel = FlashModel {
    // Calibrated: answers in 0.3 ms.
    read_ns: 290_000,
    // Assumed: 2.6 GB/s (1 to 4), as 100,000 blocks of 8 KiB a second came from it.
    read_ns_per_kib: 390,
    // Assumed: 0.29 ms (0.1 to 0.5), as reads.
    write_ns: 290_000,
    write_ns_per_kib: 390,
    // Assumed: 48 (40 to 64): what two nodes have under way is answered at once.
    channels: 48,
    random_writes_per_s: None,
    random_burst: 0,
};

/// A drive with the flash that S15 describes and the channels of an X25-E, a 32nd of its blocks.
pub(super) const FTL_DRIVE: FtlConfig = FtlConfig {
    // Data sheet (X25-E).
    channels: 10,
    // Document: 4 KiB; 256 KiB.
    page_bytes: 4096,
    pages_per_block: 64,
    // 40 GiB of flash: assumed, what ten channels of its chips make (34 to 40).
    blocks_per_channel: 512,
    // 32 GB of it for the user: data sheet; a 32nd.
    logical_pages: 244_140,
    // Document: 25 us; 250 us.
    read_ns: 25_000,
    program_ns: 250_000,
    // Assumed: 1.5 ms (1 to 3), as chips of the day.
    erase_ns: 1_500_000,
    // Data sheet (X25-E): 75 us a read, of which 25 us are the flash's; so much for controller and channel.
    transfer_ns: 50_000,
    // Document: SATA, 300 MB/s.
    link_ns: 13_650,
    collect: Collect::Greedy,
    // Assumed: 64 (16 to 1,000).
    wear_gap: 64,
    // Assumed: a hundredth of its blocks (0 to a twentieth).
    idle_free_blocks: 5,
};

/// The same flash on eight channels: a block of each is 2 MiB together, as a segment of the flash cache is.
pub(super) const FTL_DRIVE_OF_8: FtlConfig = FtlConfig { channels: 8, blocks_per_channel: 640, ..FTL_DRIVE };

/// A drive with a write cache that takes redo.
const REDO_DRIVE: FlashModel = FlashModel {
    // Never read.
    read_ns: 0,
    read_ns_per_kib: 0,
    // Assumed: 0.1 ms (0.05 to 0.3). Whatever it is, it is in all arms, and the processor's time of an update is fitted around it.
    write_ns: 100_000,
    // Assumed: 60 MB/s.
    write_ns_per_kib: 17_000,
    channels: 1,
    random_writes_per_s: None,
    random_burst: 0,
};

/// S9, first machine: dual core, 4 GB RAM.
pub(super) static DUAL_CORE: Machine = Machine {
    name: "2 SATA disks, X25-E",
    disk: SEAGATE_7200_7,
    // Document.
    disks: 2,
    // Document: ASM's allocation unit of the day.
    stripe_bytes: 1 << 20,
    flash: X25_E,
    redo: REDO_DRIVE,
};

/// S9, second machine: 2 x quad core, 32 GB RAM; S11's is taken to be the same.
pub(super) static QUAD_CORES: Machine = Machine {
    name: "4 SAS disks, ioDrive",
    disk: SAS_15K,
    // Document.
    disks: 4,
    stripe_bytes: 1 << 20,
    flash: IODRIVE_SLC,
    redo: REDO_DRIVE,
};

/// The same as its scans see it.
pub(super) static QUAD_CORES_SCANNED: Machine = Machine {
    name: "4 SAS disks, ioDrive",
    // Fitted to the scan without flash, beyond what is plausible (0.1 to 0.4 ms): these drives read ahead better than the field's did.
    disk: DiskModel { overhead_ns: 850_000, ..SAS_15K },
    disks: 4,
    stripe_bytes: 1 << 20,
    flash: IODRIVE_SLC,
    redo: REDO_DRIVE,
};

/// S12: a server with many disks and flash on PCIe, as its author has in mind.
pub(super) static MANY_DISKS: Machine = Machine {
    name: "36 SAS disks, ioDrive",
    disk: SAS_15K,
    // Assumed: 36 (12 to 96).
    disks: 36,
    // Assumed: 1 MiB (128 KiB to 4 MiB).
    stripe_bytes: 1 << 20,
    flash: IODRIVE_SLC,
    redo: REDO_DRIVE,
};

/// S10: a quarter rack of Exadata V2, 3 cells of 12 SAS disks, seen over InfiniBand; `overhead_ns` of a read from disk with the network and the
/// cell's server.
const fn quarter_rack(overhead_ns: u64) -> Machine {
    Machine {
        name: "36 SAS disks, Exadata flash",
        disk: DiskModel { overhead_ns, ..SAS_15K },
        // Document.
        disks: 36,
        // Document: 4 MiB (S5).
        stripe_bytes: 4 << 20,
        // S15: 25 us a read; assumed: 0.2 ms (0.1 to 0.4) with SAS, the cell's server and the network.
        flash: FlashModel {
            read_ns: 225_000,
            write_ns: 250_000,
            channels: 48,
            random_writes_per_s: None,
            ..IODRIVE_SLC
        },
        redo: REDO_DRIVE,
    }
}

/// Keys side by side. Fitted to the look-ups without flash, beyond what is plausible (0.1 to 0.5 ms): so short a table is read sooner than the
/// field's was.
pub(super) static RACK_DENSE: Machine = quarter_rack(1_640_000);
/// Keys anywhere. Fitted to the look-ups without flash (plausible: 0.1 to 0.5 ms).
pub(super) static RACK_SCATTERED: Machine = quarter_rack(790_000);
