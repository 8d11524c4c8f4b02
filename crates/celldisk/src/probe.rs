//! What is on a device, without changing it.
//!
//! Never writes. Anything that is neither blank nor ours is somebody's data.

use crate::codec::DecodeError;
use crate::disk::check_geometry;
use crate::error::{CellDiskError, IoError};
use crate::label::Label;
use crate::layout::{DATA_OFFSET, PAGE_BYTES, Slot};
use crate::media;
use crate::section::SectionKind;
use crate::signatures;
use crate::slots::Places;
use device::Device;

/// How much of each end is looked at: every signature known lies within it.
const LOOK_BYTES: u64 = 1 << 20;

/// What a device carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Zeroes.
    Blank,
    /// A cell disk, with its newest label.
    Flashcell(Box<Label>),
    /// Data that is not ours.
    Foreign {
        /// What was recognised, with an article: "an XFS file system".
        what: String,
    },
    /// A cell disk without any whole label.
    Damaged {
        /// What is wrong with each copy.
        why: String,
    },
    /// A cell disk that a newer release wrote.
    Newer(DecodeError),
}

/// Find out what `device` carries.
///
/// # Errors
/// I/O errors, and a geometry that no cell disk can have.
pub async fn probe(device: &Device) -> Result<Probe, CellDiskError> {
    check_geometry(&device.geometry())?;
    let survey = Survey::of(device).await;
    match survey.usable() {
        Ok((_, label)) => Ok(Probe::Flashcell(Box::new(label.clone()))),
        Err(why) => match survey.explain(device, why).await {
            CellDiskError::Blank => Ok(Probe::Blank),
            CellDiskError::Foreign { what } => Ok(Probe::Foreign { what }),
            CellDiskError::Damaged { why } => Ok(Probe::Damaged { why }),
            CellDiskError::Newer(error) => Ok(Probe::Newer(error)),
            error => Err(error),
        },
    }
}

/// All labels of a device and its first page.
pub(crate) struct Survey {
    pub(crate) labels: Places<Label>,
    page: Result<Vec<u8>, IoError>,
}

impl Survey {
    pub(crate) async fn of(device: &Device) -> Survey {
        let labels = if device.geometry().size_bytes < DATA_OFFSET {
            Places { found: Vec::new() }
        } else {
            Places::read(device, SectionKind::Label, |_, place, bytes| Label::decode(place, bytes)).await
        };
        let page_bytes = PAGE_BYTES.min(device.geometry().size_bytes);
        Survey { labels, page: media::read(device, 0, page_bytes as usize).await }
    }

    /// The newest label, when the device may be used as the cell disk it says it is; else the reason, or none when no
    /// label was found at all.
    pub(crate) fn usable(&self) -> Result<(Slot, &Label), Option<CellDiskError>> {
        if let Some(error) = self.labels.newer_release() {
            return Err(Some(CellDiskError::Newer(error)));
        }
        // The first page is ours and zero. An unreadable or rotten one harms nothing; a known signature means that
        // somebody has made something else of this device since.
        if let Ok(page) = &self.page
            && self.labels.any_trace()
            && let Some(what) = signatures::in_head(page)
        {
            return Err(Some(CellDiskError::Foreign { what: format!("{what} over a former cell disk") }));
        }
        let Some((slot, _, newest)) = self.labels.newest() else {
            let damaged = || CellDiskError::Damaged { why: self.labels.faults() };
            return Err(self.labels.any_trace().then(damaged));
        };
        let identity = |label: &Label| (label.cell_id, label.device_id);
        let whole = self.labels.found.iter().filter_map(|(_, got)| got.as_ref().ok());
        if whole.into_iter().any(|(_, label)| identity(label) != identity(newest)) {
            return Err(Some(CellDiskError::Damaged { why: "its labels name different devices".to_owned() }));
        }
        Ok((slot, newest))
    }

    /// Why it is no cell disk: looks at both ends of the device when its labels do not tell.
    pub(crate) async fn explain(&self, device: &Device, known: Option<CellDiskError>) -> CellDiskError {
        if let Some(why) = known {
            return why;
        }
        match self.look(device).await {
            Ok(why) => why,
            Err(error) => error.into(),
        }
    }

    async fn look(&self, device: &Device) -> Result<CellDiskError, IoError> {
        if let Some(error) = self.labels.io_error() {
            return Err(error);
        }
        let size_bytes = device.geometry().size_bytes;
        // Whole sectors, whatever the size.
        let end = size_bytes / PAGE_BYTES * PAGE_BYTES;
        let head = media::read(device, 0, end.min(LOOK_BYTES) as usize).await?;
        let tail_offset = end.saturating_sub(LOOK_BYTES);
        let tail = media::read(device, tail_offset, (end - tail_offset) as usize).await?;
        let known = signatures::in_head(&head).or_else(|| signatures::in_tail(&tail, tail_offset, size_bytes));
        let unknown = || head.iter().any(|&b| b != 0).then_some("unknown data");
        Ok(match known.or_else(unknown) {
            Some(what) => CellDiskError::Foreign { what: what.to_owned() },
            None => CellDiskError::Blank,
        })
    }
}
