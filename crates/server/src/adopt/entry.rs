//! The entry of an adopted volume in `cell.toml`: put in and taken out, the rest of the file as its owner wrote it.

use crate::config::{Config, DeviceConfig};
use std::path::Path;

/// Begins an entry.
const HEADER: &str = "[[device]]";
/// Stands above the entry.
const REMARK: &str = "# An adopted volume: `flashcell release` takes this entry out.";

/// The text with an entry for this device at its end.
pub(super) fn with(text: &str, before: &Config, device: &DeviceConfig) -> String {
    let mut after = before.clone();
    after.device.push(device.clone());
    let entry = match toml::to_string(device) {
        Ok(entry) => entry,
        Err(error) => unreachable!("a device is plain values: {error}"),
    };
    checked(format!("{}\n\n{REMARK}\n{HEADER}\n{entry}", text.trim_end()), &after)
}

/// The text without the entry that has this metadata file.
pub(super) fn without(text: &str, before: &Config, metadata: &Path) -> String {
    let is_it = |device: &DeviceConfig| device.metadata.as_deref() == Some(metadata);
    let mut after = before.clone();
    after.device.retain(|device| !is_it(device));
    let lines: Vec<&str> = text.lines().collect();
    let starts = (0..lines.len()).filter(|at| lines[*at].trim() == HEADER);
    let entry = starts.into_iter().find_map(|start| {
        // Up to the next table, without the remarks above that.
        let next = (start + 1..lines.len()).find(|at| lines[*at].trim_start().starts_with('['));
        let mut end = next.unwrap_or(lines.len());
        while next.is_some() && end > start + 1 && (lines[end - 1].trim().is_empty() || lines[end - 1].starts_with('#'))
        {
            end -= 1;
        }
        let one: Config = toml::from_str(&lines[start..end].join("\n")).ok()?;
        one.device.first().filter(|device| is_it(device)).map(|_| (start, end))
    });
    let Some((start, end)) = entry else { return after.to_text() };
    let above = if start > 0 && lines[start - 1].trim() == REMARK { start - 1 } else { start };
    let mut kept: Vec<&str> = lines[..above].to_vec();
    while kept.last().is_some_and(|line| line.trim().is_empty()) {
        kept.pop();
    }
    kept.extend(&lines[end..]);
    checked(kept.join("\n") + "\n", &after)
}

/// The text if it says what it should; else one that does, without the remarks of its owner.
fn checked(text: String, says: &Config) -> String {
    if toml::from_str::<Config>(&text).is_ok_and(|config| config == *says) { text } else { says.to_text() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::DeviceKind;

    fn parse(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    fn adopted(name: &str) -> DeviceConfig {
        let mut device = DeviceConfig::new(format!("/dev/{name}").into(), DeviceKind::Disk);
        device.metadata = Some(format!("adopted-{name}.meta").into());
        device
    }

    #[test]
    fn what_the_owner_wrote_stays() {
        let text = "threads = 2 # few\n\n[[device]]\npath = \"a\"\nkind = \"disk\"\n\n# mine\n[history]\ndays = 3\n";
        let one = with(text, &parse(text), &adopted("vdb"));
        assert!(one.starts_with(text.trim_end()), "{one}");
        assert_eq!(parse(&one).device[1], adopted("vdb"));
        let two = with(&one, &parse(&one), &adopted("vdc"));
        assert_eq!(parse(&two).device.len(), 3);
        let second = without(&two, &parse(&two), Path::new("adopted-vdb.meta"));
        assert_eq!(parse(&second).device[1], adopted("vdc"));
        assert!(second.contains("# few") && second.contains("# mine") && !second.contains("vdb"), "{second}");
        assert_eq!(without(&second, &parse(&second), Path::new("adopted-vdc.meta")), text);
        assert_eq!(without(text, &parse(text), Path::new("none")), parse(text).to_text());
    }

    #[test]
    fn an_entry_in_another_form_is_taken_out_as_well() {
        let text = "device = [{ path = \"/dev/vdb\", kind = \"disk\", metadata = \"m\" }, { path = \"a\", kind = \"disk\" }]\n";
        let rest = without(text, &parse(text), Path::new("m"));
        assert_eq!(parse(&rest).device, [DeviceConfig::new("a".into(), DeviceKind::Disk)]);
        // An inline list takes no further tables.
        let more = with(text, &parse(text), &adopted("vdc"));
        assert_eq!(parse(&more).device.len(), 3);
    }

    #[test]
    fn remarks_above_the_next_table_are_its_own() {
        let entry = "[[device]]\npath = \"/dev/vdb\"\nkind = \"disk\"\nmetadata = \"m\"\n";
        let text = format!("{entry}# of the next\n[[device]]\npath = \"a\"\nkind = \"disk\"\n");
        let rest = without(&text, &parse(&text), Path::new("m"));
        assert_eq!(rest, "# of the next\n[[device]]\npath = \"a\"\nkind = \"disk\"\n");
    }
}
