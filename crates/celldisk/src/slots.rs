//! Reading and writing the two slots of a section kind, two copies each.
//!
//! The commit protocol's lower half: read all four places, take the newest whole section, and write one slot after the
//! other, first the one that is not known to hold it. Never writes both slots at once.

use crate::codec::DecodeError;
use crate::error::IoError;
use crate::layout::{HEADER_BYTES, PAGE_BYTES, Place, Slot};
use crate::media;
use crate::sabotage::Sabotage;
use crate::section::{self, Header, SectionKind, Version};
use device::Device;
use futures_util::future::{join, join_all};

/// Why a place holds no usable section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Decode(DecodeError),
    Io(IoError),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Decode(error) => error.fmt(f),
            Fault::Io(error) => error.fmt(f),
        }
    }
}

/// One place and what it holds.
type Found<T> = (Place, Result<(Version, T), Fault>);

/// What the four places hold.
pub(crate) struct Places<T> {
    pub(crate) found: Vec<Found<T>>,
}

impl<T> Places<T> {
    /// Read and decode every place. A place that cannot be read counts as damaged: another may be whole.
    pub(crate) async fn read(
        device: &Device,
        kind: SectionKind,
        decode: impl Fn(&Header, Place, &[u8]) -> Result<T, DecodeError>,
    ) -> Places<T> {
        let decode = &decode;
        let reading = Place::ALL.map(|place| async move { (place, read_place(device, kind, place, decode).await) });
        Places { found: join_all(reading).await }
    }

    /// The newest whole section: where it is, its version, its value.
    pub(crate) fn newest(&self) -> Option<(Slot, Version, &T)> {
        let whole = self.found.iter().filter_map(|(place, got)| Some((place.slot, got.as_ref().ok()?)));
        whole.max_by_key(|(_, (version, _))| *version).map(|(slot, (version, value))| (slot, *version, value))
    }

    /// Places that do not hold the newest section: torn by a crash, rotten, unreadable, or not reached yet by the change
    /// that it carries. Those of its own slot come first: the others are written only when both its copies are there.
    pub(crate) fn to_heal(&self) -> Vec<Place> {
        let Some((slot, version, _)) = self.newest() else { return Vec::new() };
        let lacks = |(_, got): &&Found<T>| !matches!(got, Ok((v, _)) if *v == version);
        let mut places: Vec<Place> = self.found.iter().filter(lacks).map(|(place, _)| *place).collect();
        places.sort_by_key(|place| place.slot != slot);
        places
    }

    /// How many places hold something that is no whole section.
    pub(crate) fn damaged_count(&self) -> u32 {
        self.found.iter().filter(|(_, got)| matches!(got, Err(fault) if !is_empty(fault))).count() as u32
    }

    /// Whether a newer release wrote any of them.
    pub(crate) fn newer_release(&self) -> Option<DecodeError> {
        self.found.iter().find_map(|(_, got)| match got {
            Err(Fault::Decode(error @ DecodeError::NewerVersion { .. })) => Some(error.clone()),
            _ => None,
        })
    }

    /// The faults, for a message.
    pub(crate) fn faults(&self) -> String {
        let mut text = String::new();
        for (place, got) in &self.found {
            if let Err(fault) = got {
                let separator = if text.is_empty() { "" } else { "; " };
                text.push_str(&format!("{separator}at {}: {fault}", place.offset()));
            }
        }
        text
    }

    /// Whether any place shows that a cell disk was here: a section magic, whole or not.
    pub(crate) fn any_trace(&self) -> bool {
        self.found.iter().any(|(_, got)| match got {
            Err(Fault::Decode(DecodeError::Empty | DecodeError::Magic { .. }) | Fault::Io(_)) => false,
            Ok(_) | Err(Fault::Decode(_)) => true,
        })
    }

    /// The first error of the device itself.
    pub(crate) fn io_error(&self) -> Option<IoError> {
        self.found.iter().find_map(|(_, got)| match got {
            Err(Fault::Io(error)) => Some(*error),
            _ => None,
        })
    }
}

fn is_empty(fault: &Fault) -> bool {
    matches!(fault, Fault::Decode(DecodeError::Empty))
}

async fn read_place<T>(
    device: &Device,
    kind: SectionKind,
    place: Place,
    decode: &impl Fn(&Header, Place, &[u8]) -> Result<T, DecodeError>,
) -> Result<(Version, T), Fault> {
    let offset = kind.offset(place);
    let mut bytes = media::read(device, offset, PAGE_BYTES as usize).await.map_err(Fault::Io)?;
    let header = section::open_header(kind, place, &bytes).map_err(Fault::Decode)?;
    let total = (HEADER_BYTES + header.payload_bytes as usize).next_multiple_of(PAGE_BYTES as usize);
    if total > bytes.len() {
        let rest = media::read(device, offset + PAGE_BYTES, total - bytes.len()).await.map_err(Fault::Io)?;
        bytes.extend_from_slice(&rest);
    }
    let value = decode(&header, place, &bytes).map_err(Fault::Decode)?;
    Ok((header.binding.version, value))
}

/// What became of a write of both slots.
pub(crate) struct Written {
    /// A slot whose last write has not failed: the other one is written first next time.
    pub(crate) holder: Slot,
    /// How many copies failed while the other of their slot succeeded: the section is durable, with less protection. Or
    /// why it is not certain that the section counts from now on.
    pub(crate) result: Result<u32, IoError>,
}

/// Write a section to all four places and have it durable: both copies of `first`, then both of the other slot. Once that
/// has succeeded any two places may be lost, and no older section is left that could count instead.
///
/// It fails when neither copy of a slot is known to be durable, or when any write may still land later. The section may
/// be found at the next open then.
pub(crate) async fn write_both(
    device: &Device,
    kind: SectionKind,
    first: Slot,
    sabotage: Option<Sabotage>,
    seal: impl Fn(Place) -> Vec<u8>,
) -> Written {
    let written = write_slot(device, kind, first, &seal).await;
    let Ok(failed_copies) = written else { return Written { holder: first.other(), result: written } };
    if sabotage == Some(Sabotage::SecondSlotSkipped) {
        return Written { holder: first, result: written };
    }
    match write_slot(device, kind, first.other(), &seal).await {
        Ok(failed) => Written { holder: first.other(), result: Ok(failed_copies + failed) },
        Err(error) => Written { holder: first, result: Err(error) },
    }
}

/// Write both copies of a slot at once and have them durable. Returns how many copies failed while the other succeeded.
///
/// # Errors
/// When neither copy is known to be durable, or one of them may still land later.
async fn write_slot(
    device: &Device,
    kind: SectionKind,
    slot: Slot,
    seal: &impl Fn(Place) -> Vec<u8>,
) -> Result<u32, IoError> {
    let [primary, mirror] = slot.places();
    let (primary_bytes, mirror_bytes) = (seal(primary), seal(mirror));
    let outcomes = join(
        media::write_durable(device, kind.offset(primary), &primary_bytes),
        media::write_durable(device, kind.offset(mirror), &mirror_bytes),
    )
    .await;
    match outcomes {
        (Ok(()), Ok(())) => Ok(0),
        (Err(error), _) | (_, Err(error)) if error.is_unknown() => Err(error),
        (Err(error), Err(other)) => Err(if other.is_unknown() { other } else { error }),
        _ => Ok(1),
    }
}
