//! An experiment's rows in each form: a table, JSON, charts.

use super::chart::Chart;
use crate::output::json_string;
use std::fmt::Write;

/// See the module.
pub(super) struct Told {
    /// A table, its head first.
    pub(super) lines: Vec<Vec<String>>,
    /// Columns of it that hold words.
    pub(super) words: Vec<usize>,
    /// Objects of JSON, one a row.
    pub(super) objects: Vec<String>,
    pub(super) charts: Vec<Chart>,
    /// Rows of the field that are reproduced, and that are not.
    pub(super) verdicts: [usize; 2],
}

/// A row as scripts read it, by the keys of every experiment and further ones of its own.
pub(super) struct Object<'a> {
    pub(super) experiment: &'static str,
    pub(super) row: &'a str,
    pub(super) configuration: &'a str,
    pub(super) elapsed_s: f64,
    pub(super) ratio_to_all_flash: Option<f64>,
    pub(super) verified_blocks: u64,
    /// Seconds.
    pub(super) waits: &'a [(&'static str, f64)],
    pub(super) field_elapsed_s: Option<f64>,
    pub(super) further: &'a [(&'static str, Option<f64>)],
    pub(super) verdict: &'a str,
}

fn number(value: Option<f64>) -> String {
    value.filter(|v| v.is_finite()).map_or_else(|| "null".to_owned(), |v| format!("{v:.6}"))
}

/// What came of a row on a served cell.
pub(super) struct Measured<'a> {
    pub(super) elapsed_s: f64,
    pub(super) verified_blocks: u64,
    /// Seconds.
    pub(super) waits: &'a [(&'static str, f64)],
}

fn waits_json(waits: &[(&'static str, f64)]) -> String {
    let waits: Vec<String> = waits.iter().map(|(name, s)| format!("{}:{s:.6}", json_string(name))).collect();
    waits.join(",")
}

impl Object<'_> {
    pub(super) fn json(&self) -> String {
        self.json_beside(None)
    }

    /// With what was measured beside what was foretold.
    pub(super) fn json_beside(&self, measured: Option<&Measured<'_>>) -> String {
        let mut text = format!(
            "{{\"experiment\":{},\"row\":{},\"configuration\":{},\"elapsed_s\":{:.6},\"ratio_to_all_flash\":{},\"hit_ratio\":null,\
             \"verified_blocks\":{},\"waits\":{{{}}},\"field_elapsed_s\":{},\"verdict\":{}",
            json_string(self.experiment),
            json_string(self.row),
            json_string(self.configuration),
            self.elapsed_s,
            number(self.ratio_to_all_flash),
            self.verified_blocks,
            waits_json(self.waits),
            number(self.field_elapsed_s),
            json_string(self.verdict)
        );
        for (name, value) in self.further {
            // Writing to a string cannot fail.
            let _ = write!(text, ",{}:{}", json_string(name), number(*value));
        }
        if let Some(Measured { elapsed_s, verified_blocks, waits }) = measured {
            let waits = waits_json(waits);
            let _ = write!(
                text,
                ",\"measured\":{{\"elapsed_s\":{elapsed_s:.6},\"verified_blocks\":{verified_blocks},\"waits\":{{{waits}}}}}"
            );
        }
        text.push('}');
        text
    }
}

/// A prediction within this of the field is reproduced, in percent.
pub(super) const REPRODUCED_PERCENT: f64 = 20.0;

/// Whether what was foretold is that near to what was measured.
pub(super) fn agrees(model: f64, measured: f64) -> bool {
    (model / measured - 1.0).abs() * 100.0 <= REPRODUCED_PERCENT
}

/// What a prediction is, beside a figure of the field.
pub(super) fn verdict(model: f64, field: f64) -> String {
    let off = 100.0 * (model / field - 1.0);
    let word = if agrees(model, field) { "reproduced" } else { "NOT reproduced" };
    format!("{word}, {off:+.0} %")
}

/// How many of these are reproduced, and how many are not.
pub(super) fn count<'a>(verdicts: impl Iterator<Item = &'a str>) -> [usize; 2] {
    let mut counts = [0, 0];
    for verdict in verdicts {
        counts[0] += usize::from(verdict.starts_with("reproduced"));
        counts[1] += usize::from(verdict.starts_with("NOT reproduced"));
    }
    counts
}
