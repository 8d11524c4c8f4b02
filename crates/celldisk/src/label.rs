//! The label: what one device knows of itself and of the devices it works with (DESIGN I5).
//!
//! A plain value with a codec; who writes it when is [`crate::CellDisk`]'s business. Never knows a grid disk.

use crate::codec::{DecodeError, Decoder, Encoder};
use crate::dirty::DirtyMap;
use crate::ids::{CellId, DeviceId, Stamp};
use crate::layout::{self, Place};
use crate::layout::{
    AU_BYTES_MAX, AU_BYTES_MIN, DATA_OFFSET, DIRTY_BITS, DISK_STAMP_BYTES, DISKS_MAX, FLASH_MEMBER_BYTES,
    FLASH_MEMBERS_MAX, FORMAT_VERSION, LABEL_ADOPTED_OFFSET, LABEL_DIRTY_OFFSET, LABEL_MEMBERS_OFFSET,
    LABEL_NAME_OFFSET, LABEL_PAYLOAD_BYTES, LABEL_STAMPS_OFFSET, NAME_BYTES_MAX, PAGE_BYTES, TRUE_PAGE_BYTES_MAX,
    au_count_for,
};
use crate::names::check_name;
use crate::section::{self, Binding, SectionKind, Version};
use device::{Class, WallTime};
use std::collections::BTreeMap;

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Carries grid disks (`HardDisk`).
    Disk,
    /// Carries the flash cache, the flash log and grid disks (`FlashDisk`).
    Flash,
}

impl Role {
    pub(crate) fn code(self) -> u8 {
        match self {
            Role::Disk => 1,
            Role::Flash => 2,
        }
    }
    pub(crate) fn of_code(code: u8) -> Result<Role, DecodeError> {
        match code {
            1 => Ok(Role::Disk),
            2 => Ok(Role::Flash),
            _ => Err(DecodeError::Value { what: "role" }),
        }
    }
}

/// The code of a durability class.
pub(crate) fn class_code(class: Class) -> u8 {
    match class {
        Class::Durable => 1,
        Class::Ephemeral => 2,
    }
}

pub(crate) fn class_of_code(code: u8) -> Result<Class, DecodeError> {
    match code {
        1 => Ok(Class::Durable),
        2 => Ok(Class::Ephemeral),
        _ => Err(DecodeError::Value { what: "class" }),
    }
}

/// What a disk knows of what the flash cache holds of it on a flash device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashState {
    /// Holds nothing newer than the disk.
    Clean,
    /// May hold dirty blocks of this disk: without it the disk is stale.
    Dirty,
    /// Thrown out: its content about this disk is void for ever (until formatted, or paired anew with nothing kept).
    Expelled,
    /// Was a member, taken out in good order.
    Absent,
}

impl FlashState {
    /// Whether the disk is not whole without the flash device.
    #[must_use]
    pub fn holds_dirty(self) -> bool {
        self == FlashState::Dirty
    }

    /// One byte says the state and whether redo is pending.
    fn code(self, redo_pending: bool) -> u8 {
        match (self, redo_pending) {
            (FlashState::Clean, false) => 1,
            (FlashState::Dirty, false) => 2,
            (FlashState::Clean, true) => 3,
            (FlashState::Dirty, true) => 4,
            (FlashState::Expelled, false) => 5,
            (FlashState::Absent, false) => 6,
            (FlashState::Expelled, true) => 7,
            (FlashState::Absent, true) => 8,
        }
    }
    fn of_code(code: u8) -> Result<(FlashState, bool), DecodeError> {
        Ok(match code {
            1 => (FlashState::Clean, false),
            2 => (FlashState::Dirty, false),
            3 => (FlashState::Clean, true),
            4 => (FlashState::Dirty, true),
            5 => (FlashState::Expelled, false),
            6 => (FlashState::Absent, false),
            7 => (FlashState::Expelled, true),
            8 => (FlashState::Absent, true),
            _ => return Err(DecodeError::Value { what: "flash member state" }),
        })
    }
}

/// An entry of a disk's flash member table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashMember {
    /// The flash device's generation when it was last paired.
    pub generation: u64,
    /// What the flash cache holds there; durable before the first acknowledgement that needs it.
    pub state: FlashState,
    /// The flash log, if its ring there may hold acknowledged redo that is not on this disk: durable before the first such
    /// acknowledgement, whatever the state of the cache there.
    pub redo_pending: Option<Stamp>,
    /// The disk's stamp when they were last paired.
    pub paired_stamp: Stamp,
}

/// An entry of a flash device's disk stamp table: what it holds of that disk may be used only if the disk shows one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskStamp {
    /// The accepted stamp.
    pub current: Stamp,
    /// A second accepted stamp while a renewal is under way that writes the flash first; else [`Stamp::NONE`].
    pub next: Stamp,
    /// The disk's generation when they were paired.
    pub generation: u64,
}

/// Where the checkpoint of a flash cache's index lies on its flash device, which is as it was left when that was written. It
/// is there from a clean stop until the next open, whose first write of the label takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Random, and in each of its parts. Not 0.
    pub token: u128,
    /// The segment it begins in.
    pub segment: u32,
}

/// That the data area is a volume with a file system of somebody else, whose metadata lies in a file beside it (see [`crate::Beside`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adopted {
    /// Bytes of the volume when it was adopted. Not 0.
    pub volume_bytes: u64,
    /// [`crate::fingerprint()`] of the volume as the cell has left it; 0: there is none, or the cell may have written to it since.
    pub fingerprint: u64,
}

/// The label of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The cell it belongs to. Fixed at format.
    pub cell_id: CellId,
    /// Its identity. Fixed at format.
    pub device_id: DeviceId,
    /// Raised when the device's content is declared void as a whole.
    pub device_generation: u64,
    /// Disk or flash. Fixed at format.
    pub role: Role,
    /// What a flush is worth on it (I1); settable, because it cannot always be detected.
    pub class: Class,
    /// Cell disk name, 1 to [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Usable bytes of the device, as recorded; the device may be larger, never smaller.
    pub size_bytes: u64,
    /// True page.
    pub page_bytes: u32,
    /// Allocation unit. Fixed at format.
    pub au_bytes: u64,
    /// When it was formatted.
    pub created: WallTime,
    /// Raised by one at each write; set by the writer.
    pub sequence: u64,
    /// Open stamp (I5).
    pub stamp: Stamp,
    /// The stamp a renewal under way will make current; else [`Stamp::NONE`].
    pub stamp_next: Stamp,
    /// The last stop was clean.
    pub clean_stop: bool,
    /// On disks: the flash devices it works with.
    pub flash_members: BTreeMap<DeviceId, FlashMember>,
    /// On flash: the disks it works with.
    pub disk_stamps: BTreeMap<DeviceId, DiskStamp>,
    /// On disks: where flash may be newer.
    pub dirty: DirtyMap,
    /// On disks: the life of the flash log in which redo of this disk may have been logged last.
    pub ring_generation: u64,
    /// On disks: lives of the flash log up to this one are dead: replay ignores them.
    pub ring_generation_dead: u64,
    /// On flash: raised when a flash cache is created or dropped; segments of an older era are void.
    pub cache_era: u64,
    /// On flash: the checkpoint of the cache's index.
    pub checkpoint: Option<Checkpoint>,
    /// On disks: it is an adopted volume. Fixed at format, but for the fingerprint.
    pub adopted: Option<Adopted>,
}

/// A label that may not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The name is not valid.
    #[error("cell disk name {name:?}: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A field that is fixed at format was changed.
    #[error("{field} of a label is fixed when the device is formatted")]
    Fixed {
        /// Which.
        field: &'static str,
    },
    /// A table is full.
    #[error("{table} has room for {max} entries")]
    Full {
        /// Which.
        table: &'static str,
        /// How many fit.
        max: usize,
    },
    /// A field has a value that the format or the role does not allow.
    #[error("{field} has no valid value")]
    Value {
        /// Which.
        field: &'static str,
    },
}

const WHAT: &str = "label";

impl Adopted {
    /// In place of a fingerprint: the volume was found not to be as it was left, while flash has newer data of it.
    pub const USED: u64 = u64::MAX;
    /// In place of a fingerprint: the last stop was clean, one before it was not, and nobody has been able to compare the volume with flash since.
    pub const UNCOMPARED: u64 = u64::MAX - 1;

    /// Whether the label's data area has the volume, rounded up, and behind it whole units for a journal, or none.
    fn fits(&self, label: &Label) -> bool {
        let end =
            self.volume_bytes.checked_next_multiple_of(AU_BYTES_MIN).and_then(|data| data.checked_add(DATA_OFFSET));
        let fits = |end: u64| label.size_bytes >= end && (label.size_bytes - end).is_multiple_of(AU_BYTES_MIN);
        self.volume_bytes != 0 && label.au_bytes == AU_BYTES_MIN && end.is_some_and(fits)
    }

    /// Allocation units that hold the volume: what the data area has more is room for a journal.
    #[must_use]
    pub fn au_count(&self) -> u32 {
        u32::try_from(self.volume_bytes.div_ceil(AU_BYTES_MIN)).unwrap_or(u32::MAX)
    }
}

impl Label {
    /// Allocation units of the data area.
    #[must_use]
    pub fn au_count(&self) -> u32 {
        au_count_for(self.size_bytes, self.au_bytes)
    }

    /// Whether a flash device may hold dirty blocks of this disk.
    #[must_use]
    pub fn is_dirty_on(&self, flash: &DeviceId) -> bool {
        self.flash_members.get(flash).is_some_and(|member| member.state.holds_dirty())
    }

    /// Whether the disk waits for redo in the ring of a flash device.
    #[must_use]
    pub fn has_redo_pending(&self) -> bool {
        self.flash_members.values().any(|member| member.redo_pending.is_some())
    }

    /// Whether the disk is whole without any flash cache.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.flash_members.values().any(|member| member.state.holds_dirty())
    }

    /// Whether what `flash` holds of `disk` may be used: the flash accepts a stamp that the disk shows (I5). Says nothing
    /// about [`FlashState::Expelled`], which [`Label::flash_members`] of the disk tells.
    #[must_use]
    pub fn stamps_match(disk: &Label, flash: &Label) -> bool {
        let Some(accepted) = flash.disk_stamps.get(&disk.device_id) else { return false };
        let shown = [disk.stamp, disk.stamp_next];
        accepted.generation == disk.device_generation
            && [accepted.current, accepted.next].iter().any(|stamp| stamp.is_some() && shown.contains(stamp))
    }

    /// Whether it can be written.
    ///
    /// # Errors
    /// The first field that exceeds the format.
    pub fn validate(&self) -> Result<(), LabelError> {
        if let Err(why) = check_name(&self.name, NAME_BYTES_MAX) {
            return Err(LabelError::Name { name: self.name.clone(), why });
        }
        let value = |field| Err(LabelError::Value { field });
        if !self.au_bytes.is_power_of_two() || self.au_bytes < AU_BYTES_MIN || self.au_bytes > AU_BYTES_MAX {
            return value("allocation unit");
        }
        if self.au_count() == 0 {
            return value("size");
        }
        let page_bytes = u64::from(self.page_bytes);
        if !page_bytes.is_power_of_two() || !(512..=TRUE_PAGE_BYTES_MAX).contains(&page_bytes) {
            return value("true page");
        }
        if self.flash_members.len() > FLASH_MEMBERS_MAX {
            return Err(LabelError::Full { table: "flash member table", max: FLASH_MEMBERS_MAX });
        }
        if self.disk_stamps.len() > DISKS_MAX {
            return Err(LabelError::Full { table: "disk stamp table", max: DISKS_MAX });
        }
        if self.dirty.granule_bytes() != layout::dirty_granule_bytes_for(self.size_bytes) {
            return value("dirty granule");
        }
        match self.role {
            Role::Disk if !self.disk_stamps.is_empty() || self.cache_era != 0 => value("disk stamp table of a disk"),
            Role::Flash if self.adopted.is_some() => value("adopted volume"),
            Role::Disk if self.adopted.is_some_and(|adopted| !adopted.fits(self)) => value("adopted volume"),
            Role::Disk if self.checkpoint.is_some() => value("checkpoint of a disk"),
            Role::Flash if self.checkpoint.is_some_and(|checkpoint| checkpoint.token == 0) => value("checkpoint"),
            Role::Flash if !self.flash_members.is_empty() || self.dirty.dirty_count() != 0 => {
                value("flash member table of a flash device")
            }
            Role::Disk if self.flash_members.values().any(|m| m.redo_pending == Some(Stamp::NONE)) => {
                value("pending redo")
            }
            _ => Ok(()),
        }
    }

    /// The label section for `place`, padded to a page.
    ///
    /// # Panics
    /// When [`Label::validate`] would fail.
    #[must_use]
    pub fn encode(&self, place: Place) -> Vec<u8> {
        let valid = self.validate();
        assert!(valid.is_ok(), "an invalid label is never written: {valid:?}");
        let binding = Binding {
            cell_id: self.cell_id,
            device_id: self.device_id,
            place,
            version: Version { epoch: self.sequence, sequence: 0 },
        };
        section::seal(SectionKind::Label, FORMAT_VERSION, &binding, &self.payload())
    }

    fn payload(&self) -> Vec<u8> {
        let mut e = Encoder(Vec::with_capacity(LABEL_PAYLOAD_BYTES));
        e.u8(self.role.code());
        e.u8(class_code(self.class));
        e.u8(u8::from(self.clean_stop));
        e.u8(self.name.len() as u8);
        e.u32(self.page_bytes);
        e.u64(self.device_generation);
        e.u64(self.size_bytes);
        e.u64(self.au_bytes);
        e.u64(self.created.0);
        e.u128(self.stamp.0);
        e.u128(self.stamp_next.0);
        e.u64(self.ring_generation);
        e.u64(self.ring_generation_dead);
        e.u64(self.cache_era);
        e.u64(self.dirty.granule_bytes());
        e.u16(self.flash_members.len() as u16);
        e.u16(self.disk_stamps.len() as u16);
        let checkpoint = self.checkpoint.unwrap_or(Checkpoint { token: 0, segment: 0 });
        e.u128(checkpoint.token);
        e.u32(checkpoint.segment);
        e.pad_to(LABEL_NAME_OFFSET);
        e.bytes(self.name.as_bytes());
        e.pad_to(LABEL_ADOPTED_OFFSET);
        let adopted = self.adopted.unwrap_or(Adopted { volume_bytes: 0, fingerprint: 0 });
        e.u64(adopted.volume_bytes);
        e.u64(adopted.fingerprint);
        e.pad_to(LABEL_MEMBERS_OFFSET);
        for (device_id, member) in &self.flash_members {
            e.u128(device_id.0);
            e.u64(member.generation);
            e.u128(member.paired_stamp.0);
            e.u8(member.state.code(member.redo_pending.is_some()));
            e.u128(member.redo_pending.unwrap_or(Stamp::NONE).0);
            e.zeroes(FLASH_MEMBER_BYTES - 57);
        }
        e.pad_to(LABEL_STAMPS_OFFSET);
        for (device_id, stamp) in &self.disk_stamps {
            e.u128(device_id.0);
            e.u128(stamp.current.0);
            e.u128(stamp.next.0);
            e.u64(stamp.generation);
            e.zeroes(DISK_STAMP_BYTES - 56);
        }
        e.pad_to(LABEL_DIRTY_OFFSET);
        e.0.extend(self.dirty.to_bytes());
        assert!(e.0.len() == LABEL_PAYLOAD_BYTES, "a label's payload has one size");
        e.0
    }

    /// From the bytes of a label section read from `place`.
    ///
    /// # Errors
    /// Anything that [`Label::encode`] would not have written.
    pub fn decode(place: Place, bytes: &[u8]) -> Result<Label, DecodeError> {
        let header = section::open_header(SectionKind::Label, place, bytes)?;
        let payload = section::open_payload(&header, bytes)?;
        if header.binding.version.sequence != 0 {
            return Err(DecodeError::Value { what: "label sequence" });
        }
        Label::decode_payload(&header.binding, payload)
    }

    fn decode_payload(binding: &Binding, payload: &[u8]) -> Result<Label, DecodeError> {
        if payload.len() != LABEL_PAYLOAD_BYTES {
            return Err(DecodeError::Truncated { what: WHAT });
        }
        let mut d = Decoder(payload);
        let role = Role::of_code(d.u8(WHAT)?)?;
        let class = class_of_code(d.u8(WHAT)?)?;
        let clean_stop = d.flag("clean stop")?;
        let name_bytes = d.count8(NAME_BYTES_MAX, "name")?;
        let page_bytes = d.u32(WHAT)?;
        let device_generation = d.u64(WHAT)?;
        let size_bytes = d.u64(WHAT)?;
        let au_bytes = d.u64(WHAT)?;
        let created = WallTime(d.u64(WHAT)?);
        let stamp = Stamp(d.u128(WHAT)?);
        let stamp_next = Stamp(d.u128(WHAT)?);
        let ring_generation = d.u64(WHAT)?;
        let ring_generation_dead = d.u64(WHAT)?;
        let cache_era = d.u64(WHAT)?;
        let granule_bytes = d.u64(WHAT)?;
        let member_count = d.count16(FLASH_MEMBERS_MAX, "flash member table")?;
        let stamp_count = d.count16(DISKS_MAX, "disk stamp table")?;
        let checkpoint = Checkpoint { token: d.u128(WHAT)?, segment: d.u32(WHAT)? };
        if checkpoint.token == 0 && checkpoint.segment != 0 {
            return Err(DecodeError::Value { what: "checkpoint" });
        }
        let checkpoint = Some(checkpoint).filter(|checkpoint| checkpoint.token != 0);
        let mut name = Decoder(d.take(LABEL_ADOPTED_OFFSET - LABEL_NAME_OFFSET, WHAT)?);
        let name_text = std::str::from_utf8(name.take(name_bytes, WHAT)?);
        let name_text = name_text.map_err(|_| DecodeError::Value { what: "name" })?.to_owned();
        name.reserved(name.0.len(), "name")?;
        let adopted = Adopted { volume_bytes: d.u64(WHAT)?, fingerprint: d.u64(WHAT)? };
        if adopted.volume_bytes == 0 && adopted.fingerprint != 0 {
            return Err(DecodeError::Value { what: "adopted volume" });
        }
        let adopted = Some(adopted).filter(|adopted| adopted.volume_bytes != 0);
        d.reserved(LABEL_MEMBERS_OFFSET - LABEL_ADOPTED_OFFSET - 16, WHAT)?;

        let mut table = Decoder(d.take(LABEL_STAMPS_OFFSET - LABEL_MEMBERS_OFFSET, WHAT)?);
        let mut flash_members = BTreeMap::new();
        for _ in 0..member_count {
            let device_id = DeviceId(table.u128(WHAT)?);
            let generation = table.u64(WHAT)?;
            let paired_stamp = Stamp(table.u128(WHAT)?);
            let (state, is_pending) = FlashState::of_code(table.u8(WHAT)?)?;
            let redo_pending = Some(Stamp(table.u128(WHAT)?)).filter(|log| log.is_some());
            if redo_pending.is_some() != is_pending {
                return Err(DecodeError::Value { what: "pending redo" });
            }
            table.reserved(FLASH_MEMBER_BYTES - 57, "flash member")?;
            ascending(&flash_members, device_id, "flash member table")?;
            flash_members.insert(device_id, FlashMember { generation, state, redo_pending, paired_stamp });
        }
        table.reserved(table.0.len(), "flash member table")?;

        let mut table = Decoder(d.take(LABEL_DIRTY_OFFSET - LABEL_STAMPS_OFFSET, WHAT)?);
        let mut disk_stamps = BTreeMap::new();
        for _ in 0..stamp_count {
            let device_id = DeviceId(table.u128(WHAT)?);
            let current = Stamp(table.u128(WHAT)?);
            let next = Stamp(table.u128(WHAT)?);
            let generation = table.u64(WHAT)?;
            table.reserved(DISK_STAMP_BYTES - 56, "disk stamp")?;
            ascending(&disk_stamps, device_id, "disk stamp table")?;
            disk_stamps.insert(device_id, DiskStamp { current, next, generation });
        }
        table.reserved(table.0.len(), "disk stamp table")?;

        let bits = d.take(DIRTY_BITS / 8, WHAT)?;
        d.end(WHAT)?;
        let dirty =
            DirtyMap::from_bytes(granule_bytes, size_bytes, bits).ok_or(DecodeError::Value { what: "dirty bitmap" })?;
        let label = Label {
            cell_id: binding.cell_id,
            device_id: binding.device_id,
            device_generation,
            role,
            class,
            name: name_text,
            size_bytes,
            page_bytes,
            au_bytes,
            created,
            sequence: binding.version.epoch,
            stamp,
            stamp_next,
            clean_stop,
            flash_members,
            disk_stamps,
            dirty,
            ring_generation,
            ring_generation_dead,
            cache_era,
            checkpoint,
            adopted,
        };
        label.validate().map_err(|_| DecodeError::Value { what: WHAT })?;
        Ok(label)
    }
}

/// Tables are sorted and hold no key twice: one value has one encoding.
fn ascending<V>(table: &BTreeMap<DeviceId, V>, next: DeviceId, what: &'static str) -> Result<(), DecodeError> {
    match table.last_key_value() {
        Some((last, _)) if *last >= next => Err(DecodeError::Value { what }),
        _ => Ok(()),
    }
}

const _: () = assert!(108 + 16 + 4 == LABEL_NAME_OFFSET, "the checkpoint ends where the name begins");
const _: () = assert!(LABEL_NAME_OFFSET + NAME_BYTES_MAX == LABEL_ADOPTED_OFFSET && DATA_OFFSET > PAGE_BYTES);
