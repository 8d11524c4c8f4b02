//! Goal: what is built in is whole and sourced, what is wrong is refused with a way out, and models do what their data sheets say. Method: every
//! built-in description is read and measured; a good one is broken, a key at a time.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

fn all() -> Vec<Arc<DeviceModel>> {
    BUILT_IN.iter().map(|(name, _)| DeviceModel::find(name).unwrap()).collect()
}

fn read(text: &str) -> Result<Arc<DeviceModel>, String> {
    parse::parse("own.toml", text, Path::new(""), 0).map_err(|error| error.to_string())
}

const DISK: &str = "kind = \"disk\"\n[figures]\nrpm = 7200\ncylinders = 1000\nheads = 2\ntrack_bytes = 524288\nseek_next_ns = 800000\n\
                    seek_average_ns = 8500000\nseek_full_ns = 17000000\n";

/// A source is one of four kinds of words, and what is assumed has a range.
fn is_source(source: &str) -> bool {
    let begins = ["document", "data sheet", "fitted"].iter().any(|word| source.starts_with(word));
    begins || source.strip_prefix("assumed (").is_some_and(|rest| rest.contains(')'))
}

#[test]
fn every_figure_that_is_built_in_has_a_source() {
    assert!(
        !is_source("") && !is_source("assumed") && !is_source("measured by somebody") && is_source("assumed (1 to 2)")
    );
    for (model, (name, text)) in all().iter().zip(BUILT_IN) {
        assert_eq!(model.name, name);
        assert!(!model.about.is_empty() && model.text == text);
        for figure in &model.figures {
            assert!(figure.source.as_deref().is_some_and(is_source), "{name}: {} = {:?}", figure.name, figure.source);
        }
        assert!(model.sheet.iter().all(|sheet| is_source(&sheet.source)), "{name}");
    }
    assert!(BUILT_IN.is_sorted_by(|(a, _), (b, _)| a < b));
    // All kinds are there.
    assert!(Kind::NAMES.iter().all(|(_, kind)| all().iter().any(|model| model.kind == *kind)));
    // What a served cell can have, a what-if can name.
    assert!(Model::NAMES.iter().all(|name| DeviceModel::find(name).unwrap().delay() == name.parse().ok().as_ref()));
}

#[test]
fn models_are_what_their_data_sheets_say() {
    let models = all();
    let (text, is_good) = devices(&DevicesOptions { check: true, ..DevicesOptions::default() }).unwrap();
    assert!(is_good, "{text}");
    // Everything but a part of another and what nobody has a figure for is held against something.
    let bare: Vec<&str> = models.iter().filter(|model| model.sheet.is_empty()).map(|model| model.name()).collect();
    let of_redo = ["s1-disk", "s1-disk-4ms", "s1-disk-hangs", "s1-disk-stalls", "s1-flash"];
    let expected = [&["exadata-v2-cell", "redo-drive"][..], &of_redo, &["s10-flash", "s3-disk", "s3-flash"]].concat();
    assert_eq!(bare, expected);
    // A model that is off is told to be.
    let (_, text) = BUILT_IN.iter().find(|(name, _)| *name == "x25-e").unwrap();
    let slow = read(&text.replace("controller_ns = { value = 12_200", "controller_ns = { value = 30_000")).unwrap();
    let (text, is_good) = calibrate::check(&[slow], false);
    assert!(!is_good && text.contains("**off**"), "{text}");
}

#[test]
fn what_is_wrong_is_said_with_key_and_limits() {
    assert!(read(DISK).is_ok(), "{:?}", read(DISK));
    let broken = |from: &str, to: &str| {
        let text = DISK.replace(from, to);
        assert!(text != DISK, "{from}");
        let said = read(&text).unwrap_err();
        assert!(said.starts_with("device own.toml: ") && said.contains("\nhint: "), "{said}");
        said
    };
    let says = |from: &str, to: &str, what: &[&str]| {
        let said = broken(from, to);
        assert!(what.iter().all(|part| said.contains(part)), "{said}");
    };
    says("rpm = 7200\n", "", &["rpm is missing", "100 to 100000"]);
    says("rpm = 7200", "rpm = 0", &["rpm = 0 is out of its limits", "100 to 100000"]);
    says("rpm = 7200", "rpm = -7200", &["out of its limits"]);
    says("rpm = 7200", "rpm = 7.2", &["no whole number"]);
    says("rpm = 7200", "rpm = { source = \"x\" }", &["rpm has no value"]);
    says("rpm = 7200", "rpm = { value = 7200, sauce = \"x\" }", &["rpm has no sauce", "value or source"]);
    says("rpm = 7200", "rpm = 7200\ncolour = 1", &["[figures] of kind disk has no colour", "track_bytes"]);
    says("rpm = 7200", "rpm = 7200\nrpm = 7200", &["duplicate"]);
    says("\"disk\"", "\"tape\"", &["\"tape\" is none", "disk, flash, translated"]);
    says("kind = \"disk\"", "", &["kind is missing"]);
    says("kind = \"disk\"", "kind = 1", &["kind is no text"]);
    says("\"disk\"", "\"disk\"\ncell = \"slc\"", &["has no cell"]);
    says("seek_full_ns = 17000000", "seek_full_ns = 1", &["is more than", "at most seek_full_ns"]);
    says("track_bytes = 524288", "track_bytes = 524289", &["multiple of 512"]);
    says("heads = 2", "heads = 2\ninner_track_bytes = 1048576", &["is more than"]);
    says("[figures]", "[[sheet]]\ntest = \"read_ns\"\nvalue = 1\n[figures]", &["no within_percent"]);
    says("[figures]", "[[sheet]]\ntest = \"luck\"\n[figures]", &["\"luck\" is none", "random_reads_per_s"]);
    says("[figures]", "figures = 1\n[more]", &["has no more"]);
    let raid = |words: &str| {
        read(&format!("kind = \"raid\"\n{words}\n[figures]\nmembers = 3\nstripe_bytes = 65536")).map(|_| ())
    };
    assert_eq!(raid("member = \"cheetah-15k.5\"\nlevel = \"5\""), Ok(()));
    for (words, what) in [
        ("member = \"cheetah-15k.5\"\nlevel = \"1+0\"", "members = 3"),
        ("member = \"cheetah-15k.5\"\nlevel = \"6\"", "0, 1+0 or 5"),
        ("member = \"sas-15k\"\nlevel = \"0\"", "of kind delay"),
        ("member = \"tape\"\nlevel = \"0\"", "is no device"),
        ("level = \"0\"", "member is missing"),
    ] {
        let said = raid(words).unwrap_err();
        assert!(said.contains(what) && said.contains("hint: "), "{said}");
    }
    let flash = DeviceModel::find("x25-e").unwrap().text.clone();
    assert!(read(&flash.replace("\"slc\"", "\"xlc\"")).unwrap_err().contains("slc, mlc, tlc or qlc"));
    let inside = DeviceModel::find("s15-drive").unwrap().text.clone();
    assert!(read(&inside.replace("value = 244_140", "value = 330_000")).unwrap_err().contains("has room for"));
    let network = DeviceModel::find("network-volume-burst").unwrap().text.clone();
    assert!(read(&network.replace("value = 3_000,", "value = 200,")).unwrap_err().contains("less than requests_per_s"));
    assert!(DeviceModel::find("tape").unwrap_err().to_string().contains("flashcell lab devices"));
    assert!(DeviceModel::find("no-such.toml").unwrap_err().to_string().contains("hint: "));
}

#[test]
fn files_are_read_beside_each_other_and_none_is_made_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    put("disk.toml", DISK);
    put(
        "set.toml",
        "kind = \"raid\"\nmember = \"disk.toml\"\nlevel = \"0\"\n[figures]\nmembers = 3\nstripe_bytes = 65536\n",
    );
    put("both.toml", "kind = \"pair\"\ndisk = \"set.toml\"\nflash = \"x25-e\"\n");
    put(
        "self.toml",
        "kind = \"raid\"\nmember = \"self.toml\"\nlevel = \"0\"\n[figures]\nmembers = 3\nstripe_bytes = 65536\n",
    );
    put("long.toml", &" ".repeat(FILE_BYTES_MAX as usize + 1));
    let (disk, flash) = DeviceModel::find(&path("both.toml")).unwrap().pair().unwrap();
    let one = DeviceModel::find(&path("disk.toml")).unwrap();
    assert_eq!(disk.capacity_bytes().unwrap(), 3 * one.capacity_bytes().unwrap());
    assert_eq!((flash.name(), one.name()), ("x25-e", "disk.toml"));
    assert!(DeviceModel::find(&path("self.toml")).unwrap_err().to_string().contains("made of itself"));
    assert!(DeviceModel::find(&path("long.toml")).unwrap_err().to_string().contains("more than"));
}

/// Every figure at either end of its limits: none makes a panic, nor time without end.
#[test]
fn no_figure_within_its_limits_breaks_a_model() {
    let sheet = "\n[[sheet]]\ntest = \"random_writes_per_s\"\nvalue = 1\nwithin_percent = 0\nrequests = 300\n\
                 [[sheet]]\ntest = \"read_mb_per_s\"\nvalue = 1\nwithin_percent = 0\nrequests = 300\n";
    let mut measured = 0;
    for model in all().iter().filter(|model| !matches!(model.kind, Kind::Delay | Kind::Pair)) {
        let stem = &model.text[..model.text.find("[figures]").unwrap()];
        for key in model.kind.keys() {
            for value in [key.low, key.high] {
                let mut text = format!("{stem}[figures]\n{} = {value}\n", key.name);
                for figure in model.figures.iter().filter(|figure| figure.name != key.name) {
                    text += &format!("{} = {}\n", figure.name, figure.value);
                }
                // What does not fit the other figures is refused. A table of 2^26 pages is no matter of a test.
                let is_large =
                    model.kind == Kind::Translated && key.name != "channels" && value == key.high && key.high > 4096;
                if let Ok(made) = read(&(text + sheet))
                    && !is_large
                {
                    for sheet in &made.sheet {
                        let value = calibrate::measure(&made, sheet);
                        // What takes no time at all is done without end in a second.
                        assert!(value >= 0.0, "{} {} {value}", model.name, key.name);
                        measured += 1;
                    }
                }
            }
        }
    }
    assert!(measured > 500, "{measured}");
}

/// What each mechanism is for, on small figures of its own.
#[test]
fn mechanisms_show_in_what_is_measured() {
    let rate = |name: &str, test: &str, more: &str| {
        let base = DeviceModel::find(name).unwrap();
        let text = &base.text[..base.text.find("[[sheet]]").unwrap()];
        let sheet = format!("{text}\n[[sheet]]\ntest = \"{test}\"\nvalue = 1\nwithin_percent = 0\n{more}");
        let model = read(&sheet).unwrap();
        calibrate::measure(&model, &model.sheet[0])
    };
    // Credits run out: 3,000 a second before, 300 after. 5.4 million of them would take long.
    let base = DeviceModel::find("network-volume-burst").unwrap().text.replace("value = 5_400_000", "value = 2_000");
    let sheets: Vec<f64> = ["requests = 1500", "requests = 1500\nafter = 3000"]
        .iter()
        .map(|more| {
            let text = &base[..base.find("[[sheet]]").unwrap()];
            let model = read(&format!(
                "{text}\n[[sheet]]\ntest = \"random_reads_per_s\"\nvalue = 1\nwithin_percent = 0\n{more}"
            ))
            .unwrap();
            calibrate::measure(&model, &model.sheet[0])
        })
        .collect();
    assert!(sheets[0] > 2_900.0 && (295.0..310.0).contains(&sheets[1]), "{sheets:?}");
    // Times vary, and the same seed gives the same. By hand: 475 us of one half, 1,050 of nearly another, 10,750 of a hundredth make 860.
    let mean = || rate("network-volume-2026", "read_ns", "requests = 2000");
    assert!(mean() == mean() && (820_000.0..900_000.0).contains(&mean()), "{}", mean());
    // Inner tracks are slower.
    let at = |percent: u64| {
        rate("seagate-7200.7", "read_mb_per_s", &format!("depth = 2\nrequests = 500\nfrom_percent = {percent}"))
    };
    assert!(at(0) > at(50) && at(50) > at(95), "{} {} {}", at(0), at(50), at(95));
    // Writes of less than a row cost a set with parity four requests.
    let set = |level: &str| {
        let text = format!(
            "kind = \"raid\"\nmember = \"cheetah-15k.5\"\nlevel = \"{level}\"\n[figures]\nmembers = 4\nstripe_bytes = 65536\n\
             [[sheet]]\ntest = \"random_writes_per_s\"\nvalue = 1\nwithin_percent = 0\nrequests = 3000\n"
        );
        let model = read(&text).unwrap();
        calibrate::measure(&model, &model.sheet[0])
    };
    let (striped, mirrored, parity) = (set("0"), set("1+0"), set("5"));
    assert!(striped > 1.4 * mirrored && mirrored > 1.5 * parity, "{striped} {mirrored} {parity}");
}

/// Goal: times come as they were measured, and an elevator before a device matters where it must. Method: small figures, by hand.
#[test]
fn quantiles_and_elevators() {
    let one = |test: &str, figures: &str, more: &str| {
        let text = format!(
            "kind = \"quantiles\"\n[figures]\ntime_least_ns = 100000\ntime_most_ns = 300000\nparallel = 1\n{figures}\n\
             [[sheet]]\ntest = \"{test}\"\nvalue = 1\nwithin_percent = 0\nrequests = 2000\n{more}"
        );
        read(&text).map(|model| calibrate::measure(&model, &model.sheet[0]))
    };
    let mean = |figures: &str| one("read_ns", figures, "").unwrap();
    assert!((196_000.0..204_000.0).contains(&mean("")), "{}", mean(""));
    // Half of the times between 100 and 120 us, half between 120 and 300.
    assert!((156_000.0..164_000.0).contains(&mean("time_median_ns = 120000")));
    assert!(mean("ns_per_kib = 10000") > mean("") + 39_000.0, "4 KiB");
    let write = |figures: &str| one("write_ns", figures, "").unwrap();
    let parts = "part_least_ns = 50000\npart_most_ns = 50000\npage_bytes = 8192";
    assert!(write(parts) > write("") + 45_000.0 && mean(parts) == mean(""), "a read is of any size");
    let stalls = "stall_every_ms = 10\nstall_least_ms = 10\nstall_most_ms = 10";
    assert!(mean(&format!("{stalls}\nstall_all = 1")) > 1.5 * mean("") && mean(stalls) == mean(""), "flushes alone");
    for (figures, what) in [
        ("time_median_ns = 300001", "time_median_ns = 300001 is more than time_most_ns"),
        ("page_bytes = 5000", "page_bytes = 5000 is no page"),
        ("stall_every_ms = 1\nstall_least_ms = 2\nstall_most_ms = 1", "stall_least_ms = 2 is more than"),
        ("stall_most_ms = 1", "stall_every_ms is not"),
        ("flush_median_ns = 7", "flush_median_ns is stated, and flush_most_ns is not"),
    ] {
        let said = one("read_ns", figures, "").unwrap_err();
        assert!(said.contains(what) && said.contains("hint: "), "{said}");
    }
    // A disk that takes one request at a time, and has to be gone over in one direction by somebody else.
    let disk = |elevator: &str| {
        let text = DISK.replace("\"disk\"", &format!("\"disk\"\nelevator = \"{elevator}\""));
        let sheet = "[[sheet]]\ntest = \"random_reads_per_s\"\nvalue = 1\nwithin_percent = 0\nrequests = 2000\n";
        read(&format!("{text}{sheet}")).map(|model| calibrate::measure(&model, &model.sheet[0]))
    };
    let (none, deadline) = (disk("none").unwrap(), disk("deadline").unwrap());
    assert!(deadline > 1.2 * none, "{deadline} {none}");
    assert!(disk("noop").unwrap_err().contains("none, deadline or fair"));
}

#[test]
fn there_is_room_or_it_is_said() {
    let disk = DeviceModel::find("seagate-7200.7").unwrap();
    assert_eq!(disk.check_room(70 << 30), Ok(()));
    let said = disk.check_room(100 << 30).unwrap_err().to_string();
    assert!(said.contains("seagate-7200.7") && said.contains("hint: "), "{said}");
    assert_eq!(DeviceModel::find("nvme-2026").unwrap().check_room(1 << 50), Ok(()));
    let config = translated("s15-drive");
    assert_eq!(sized(&config, config.logical_pages as u64 * 4096).blocks_per_channel, config.blocks_per_channel);
    for mib in [1, 100, 700, 5_000] {
        let sized = sized(&config, mib << 20);
        let pages = sized.channels * sized.blocks_per_channel * sized.pages_per_block;
        assert!(pages > sized.logical_pages + sized.channels * 5 * sized.pages_per_block, "{mib}");
    }
}
