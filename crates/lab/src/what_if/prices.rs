//! What media cost and endure: a table in TOML that anybody may change.
//!
//! Never guesses a price: a medium that is not in the table is the one the table says stands for it.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The tables there are.
const KNOWN: [(&str, &str); 2] =
    [("2026", include_str!("../../prices/2026.toml")), ("2011", include_str!("../../prices/2011.toml"))];
/// The one used unless another is named.
pub const DEFAULT_PRICES: &str = "2026";
const DAYS_A_YEAR: f64 = 365.0;
/// A table is a page of text.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum PriceError {
    /// It cannot be read.
    #[error("prices {}: {source}\nhint: 2011, 2026, or a file; `flashcell lab prices > FILE` makes one to change", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It is not one.
    #[error("prices {}: {what}\nhint: `flashcell lab prices` prints a table that is right", path.display())]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// No table of that name.
    #[error("no table of prices {0}\nhint: 2011 or 2026")]
    Unknown(String),
}

/// What a medium costs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Medium {
    /// The model of the delay layer it is the price of.
    pub(super) model: String,
    /// In words.
    pub(super) text: String,
    /// A GB.
    pub(super) per_gb: f64,
    /// One more random request a second.
    pub(super) per_iop: f64,
    /// Rated drive writes a day.
    pub(super) dwpd: Option<f64>,
    /// For so many years.
    pub(super) warranty_years: Option<f64>,
}

impl Medium {
    /// Bytes that may be written to so many of it, as it is rated.
    pub(super) fn rated_bytes(&self, size_bytes: u64) -> Option<f64> {
        Some(self.dwpd? * self.warranty_years? * DAYS_A_YEAR * size_bytes as f64)
    }

    /// What so many bytes cost.
    pub(super) fn price(&self, bytes: u64) -> f64 {
        self.per_gb * bytes as f64 / 1e9
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stands {
    disk: String,
    flash: String,
}

/// A table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prices {
    pub(super) name: String,
    pub(super) currency: String,
    medium: Vec<Medium>,
    default: Stands,
}

impl Prices {
    /// The table of that name, or in that file.
    pub(super) fn read(name: &str) -> Result<Prices, PriceError> {
        if let Some((_, text)) = KNOWN.iter().find(|(known, _)| *known == name) {
            return Prices::parse(Path::new(name), text);
        }
        let path = PathBuf::from(name);
        let read = || {
            let mut text = String::new();
            let file = std::fs::File::open(&path)?;
            std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_BYTES_MAX), &mut text)?;
            Ok(text)
        };
        let text = read().map_err(|source| PriceError::Read { path: path.clone(), source })?;
        Prices::parse(&path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Prices, PriceError> {
        let wrong = |what: String| PriceError::Wrong { path: path.to_owned(), what };
        let prices: Prices = toml::from_str(text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
        for medium in &prices.medium {
            let Medium { model, per_gb, per_iop, dwpd, warranty_years, .. } = medium;
            let amounts = [Some(*per_gb), Some(*per_iop), *dwpd, *warranty_years];
            if !amounts.iter().flatten().all(|amount| amount.is_finite() && *amount > 0.0) {
                return Err(wrong(format!("{model}: a price or an endurance is not above 0")));
            }
        }
        for name in [&prices.default.disk, &prices.default.flash] {
            if !prices.medium.iter().any(|medium| medium.model == *name) {
                return Err(wrong(format!("[default] names {name}, which is no medium of the table")));
            }
        }
        Ok(prices)
    }

    fn of(&self, names: &[&str], stands: &str) -> &Medium {
        let named = |name: &str| self.medium.iter().find(|medium| medium.model == name);
        let Some(medium) = names.iter().find_map(|name| named(name)).or_else(|| named(stands)) else {
            unreachable!("a table is checked")
        };
        medium
    }

    /// What a disk costs that is called so, the first name that is known.
    pub(super) fn disk(&self, names: &[&str]) -> &Medium {
        self.of(names, &self.default.disk)
    }

    /// What flash costs that is called so.
    pub(super) fn flash(&self, names: &[&str]) -> &Medium {
        self.of(names, &self.default.flash)
    }
}

/// The text of a table, to be changed.
///
/// # Errors
/// There is none of that name.
pub fn prices(name: &str) -> Result<&'static str, PriceError> {
    let found = KNOWN.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| PriceError::Unknown(name.to_owned()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use device::layers::Model;

    /// Goal: the tables that are shipped are whole. Method: each model of the delay layer has a price in each; S12's endurance comes out.
    #[test]
    fn every_model_has_a_price() {
        for (name, _) in KNOWN {
            let prices = Prices::read(name).unwrap();
            for model in Model::NAMES {
                assert!(prices.medium.iter().any(|medium| medium.model == model), "{name}: {model}");
            }
            assert!(prices.flash(&["fixed:1ms"]).dwpd.is_some() && prices.flash(&["nvme", "sata-ssd"]).dwpd.is_some());
        }
        // S12: 700 GB at ten writes a day are 7000 GB a day.
        let rated = Prices::read("2011").unwrap().flash(&["pcie-flash"]).rated_bytes(700_000_000_000).unwrap();
        assert!((rated / (5.0 * 365.0) / 7e12 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let parse = |text: &str| Prices::parse(Path::new("p"), text).map(|_| ()).map_err(|error| error.to_string());
        let good = prices("2026").unwrap();
        assert_eq!(parse(good), Ok(()));
        assert!(parse(&good.replace("per_gb = 0.020", "per_gb = -1.0")).unwrap_err().contains("not above 0"));
        assert!(parse(&good.replace("disk = \"sata-7200\"", "disk = \"tape\"")).unwrap_err().contains("tape"));
        assert!(parse("name = 1").unwrap_err().contains("hint: "));
        assert!(Prices::read("no-such-file").unwrap_err().to_string().contains("hint: "));
    }
}
