//! Snapshots of everything printed about objects. Method: rows as a server gives them go through the parser, selection and each
//! formatter; TABs are shown as `<TAB>`, since scripts depend on them.
#![expect(clippy::unwrap_used, reason = "tests")]

use cellcli::answer::{Answer, Row, SelectError};
use cellcli::command::{DateFormat, Service, ServiceAction};
use cellcli::format::{self, altered, created, describe, describe_json, dropped, services_done, services_starting};
use cellcli::{
    Command, Decimal, ErrorCode, Measure, ObjectType, Source, Timestamp, Unit, Value, failure_text, parse_one, select,
};
use expect_test::{Expect, expect};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn flash_cache() -> Vec<Row> {
    vec![
        Row::new(ObjectType::FlashCache)
            .with("name", "myexa1cel01_FLASHCACHE")
            .with("cellDisk", Value::List(vec!["FD_00_c1".into(), "FD_01_c1".into()]))
            .with("creationTime", time("2011-01-23T12:34:56-05:00"))
            .with("degradedCelldisks", Value::List(Vec::new()))
            .with("effectiveCacheSize", Value::SizeBytes(373_504 << 20))
            .with("id", "8a0aadc8")
            .with("size", Value::SizeBytes(373_504 << 20))
            .with("status", "normal"),
    ]
}

fn grid_disk(name: &str, size_bytes: u64) -> Row {
    Row::new(ObjectType::GridDisk)
        .with("name", name)
        .with("cellDisk", "CD_01_c5")
        .with("errorCount", Value::Integer(0))
        .with("size", Value::SizeBytes(size_bytes))
        .with("status", "active")
}

fn grid_disks() -> Vec<Row> {
    vec![
        grid_disk("RECO_CD_01_c5", 16 << 20).with("comment", "tab\there \"quoted\" <&>"),
        grid_disk("DATA_CD_01_c5", 1 << 40),
        grid_disk("ä", 3 << 30).with("status", "inactive").with("comment", Value::Null),
    ]
}

fn time(text: &str) -> Value {
    Value::Timestamp(Timestamp::parse(text).unwrap())
}

fn metric(name: &str, object: &str, number: &str, unit: Unit) -> Row {
    Row::new(ObjectType::MetricCurrent)
        .with("name", name)
        .with("collectionTime", time("2013-09-12T23:46:14+02:00"))
        .with("metricObjectName", object)
        .with("metricValue", Value::Measure(Measure::new(Decimal::parse(number).unwrap(), unit)))
        .with("unit", unit.text())
}

fn metrics() -> Vec<Row> {
    vec![
        metric("FC_BY_USED", "FLASHCACHE", "365289.8125", Unit::Mb),
        metric("FC_IO_RQ_R_SKIP_SEC", "FLASHCACHE", "19.4", Unit::IoPerSecond),
        metric("FL_DISK_FIRST", "FLASHLOG", "32669310", Unit::IoRequests),
        metric("GD_IO_RQ_W_SM", "PRODATA_CD_00_cell01", "2665", Unit::IoRequests),
        metric("GD_IO_RQ_W_SM", "PRODATA_CD_01_cell01", "9", Unit::IoRequests),
    ]
}

fn answer(statement: &str, rows: Vec<Row>) -> Result<Answer, SelectError> {
    match parse_one(statement).unwrap() {
        Command::List(list) => select(&list, Box::new(rows)),
        other => panic!("LIST expected, not {other}"),
    }
}

fn text(answer: Answer, dates: DateFormat) -> String {
    format::text(answer, dates).collect()
}

fn json(answer: Answer) -> String {
    format::json(answer).collect()
}

fn xml(answer: Answer, cell: &str) -> String {
    format::xml(answer, cell).collect()
}

fn visible(text: &str) -> String {
    text.replace('\t', "<TAB>")
}

#[track_caller]
fn check(statement: &str, rows: Vec<Row>, expect: &Expect) {
    let answer = answer(statement, rows).unwrap();
    expect.assert_eq(&visible(&text(answer, DateFormat::Standard)));
}

/// TABs at every eighth column, as a terminal shows them.
fn expanded(text: &str) -> String {
    let mut shown = String::new();
    let mut column = 0;
    for character in text.chars() {
        match character {
            '\t' => {
                let stop = (column / 8 + 1) * 8;
                shown.push_str(&" ".repeat(stop - column));
                column = stop;
            }
            '\n' => {
                shown.push('\n');
                column = 0;
            }
            other => {
                shown.push(other);
                column += 1;
            }
        }
    }
    shown
}

/// The rows the reference shows with true spacing come out blank for blank.
#[test]
fn spacing_is_the_vendor_s() {
    let rows = answer("list metriccurrent", metrics()[..2].to_vec()).unwrap();
    assert_eq!(
        expanded(&text(rows, DateFormat::Standard)),
        "         FC_BY_USED              FLASHCACHE      365,290 MB\n\
         \x20        FC_IO_RQ_R_SKIP_SEC     FLASHCACHE      19.4 IO/sec\n"
    );
    let rows =
        answer("list flashcache attributes name, degradedCelldisks, effectiveCacheSize detail", flash_cache()).unwrap();
    assert_eq!(
        expanded(&text(rows, DateFormat::Standard)),
        "         name:                   myexa1cel01_FLASHCACHE\n\
         \x20        degradedCelldisks:\n\
         \x20        effectiveCacheSize:     364.75G\n"
    );
}

#[test]
fn columns() {
    check(
        "list griddisk",
        grid_disks(),
        &expect![[r#"
        <TAB> RECO_CD_01_c5<TAB> active
        <TAB> DATA_CD_01_c5<TAB> active
        <TAB> ä            <TAB> inactive
    "#]],
    );
    check(
        "list griddisk attributes comment, name, size",
        grid_disks(),
        &expect![[r#"
        <TAB> tab here "quoted" <&><TAB> RECO_CD_01_c5<TAB> 16M
        <TAB>                      <TAB> DATA_CD_01_c5<TAB> 1T
        <TAB>                      <TAB> ä            <TAB> 3G
    "#]],
    );
    check(
        "list griddisk attributes all",
        grid_disks(),
        &expect![[r#"
        <TAB> RECO_CD_01_c5<TAB> CD_01_c5<TAB> tab here "quoted" <&><TAB> 0<TAB> 16M<TAB> active
        <TAB> DATA_CD_01_c5<TAB> CD_01_c5<TAB>                      <TAB> 0<TAB> 1T <TAB> active
        <TAB> ä            <TAB> CD_01_c5<TAB>                      <TAB> 0<TAB> 3G <TAB> inactive
    "#]],
    );
    check(
        "list metriccurrent",
        metrics(),
        &expect![[r#"
        <TAB> FC_BY_USED         <TAB> FLASHCACHE          <TAB> 365,290 MB
        <TAB> FC_IO_RQ_R_SKIP_SEC<TAB> FLASHCACHE          <TAB> 19.4 IO/sec
        <TAB> FL_DISK_FIRST      <TAB> FLASHLOG            <TAB> 32,669,310 IO requests
        <TAB> GD_IO_RQ_W_SM      <TAB> PRODATA_CD_00_cell01<TAB> 2,665 IO requests
        <TAB> GD_IO_RQ_W_SM      <TAB> PRODATA_CD_01_cell01<TAB> 9 IO requests
    "#]],
    );
}

#[test]
fn detail() {
    check(
        "list flashcache detail",
        flash_cache(),
        &expect![[r#"
        <TAB> name:               <TAB> myexa1cel01_FLASHCACHE
        <TAB> cellDisk:           <TAB> FD_00_c1,FD_01_c1
        <TAB> creationTime:       <TAB> 2011-01-23T12:34:56-05:00
        <TAB> degradedCelldisks:
        <TAB> effectiveCacheSize: <TAB> 364.75G
        <TAB> id:                 <TAB> 8a0aadc8
        <TAB> size:               <TAB> 364.75G
        <TAB> status:             <TAB> normal
    "#]],
    );
    check(
        "list griddisk detail where name like 'RECO.*|DATA.*'",
        grid_disks(),
        &expect![[r#"
        <TAB> name:               <TAB> RECO_CD_01_c5
        <TAB> cellDisk:           <TAB> CD_01_c5
        <TAB> comment:            <TAB> tab here "quoted" <&>
        <TAB> errorCount:         <TAB> 0
        <TAB> size:               <TAB> 16M
        <TAB> status:             <TAB> active

        <TAB> name:               <TAB> DATA_CD_01_c5
        <TAB> cellDisk:           <TAB> CD_01_c5
        <TAB> comment:
        <TAB> errorCount:         <TAB> 0
        <TAB> size:               <TAB> 1T
        <TAB> status:             <TAB> active
    "#]],
    );
    // A label longer than the usual column moves the values one TAB stop on.
    let row = vec![Row::new(ObjectType::GridDisk).with("name", "a").with("asmDeactivationOutcome", "Yes")];
    check(
        "list griddisk detail",
        row,
        &expect![[r#"
        <TAB> name:                  <TAB> a
        <TAB> asmDeactivationOutcome:<TAB> Yes
    "#]],
    );
}

#[test]
fn nothing_found_prints_nothing() {
    for statement in ["list griddisk where name = x", "list griddisk detail limit 0"] {
        assert_eq!(text(answer(statement, grid_disks()).unwrap(), DateFormat::Standard), "", "{statement}");
    }
    assert_eq!(json(answer("list griddisk limit 0", grid_disks()).unwrap()), "[]\n");
}

#[test]
fn hidden_attributes_show_only_when_named() {
    let rows = || {
        vec![Row::new(ObjectType::CellDisk).with("name", "CD").with("status", "normal").with("flushStatus", "working")]
    };
    check(
        "list celldisk detail",
        rows(),
        &expect![[r#"
        <TAB> name:               <TAB> CD
        <TAB> status:             <TAB> normal
    "#]],
    );
    check(
        "list celldisk attributes name, flushStatus",
        rows(),
        &expect![[r#"
        <TAB> CD<TAB> working
    "#]],
    );
}

#[test]
fn local_dates() {
    let rows = answer("list metriccurrent FL_DISK_FIRST attributes name, collectionTime", metrics()).unwrap();
    expect![[r#"
        <TAB> FL_DISK_FIRST<TAB> Sep 12, 2013 11:46:14 PM
    "#]]
    .assert_eq(&visible(&text(rows, DateFormat::Local)));
}

#[test]
fn order_and_limit() {
    let names = |statement: &str| -> Vec<String> {
        answer(statement, grid_disks()).unwrap().rows().map(|row| row[0].text()).collect()
    };
    assert_eq!(names("list griddisk order by size"), ["RECO_CD_01_c5", "ä", "DATA_CD_01_c5"]);
    assert_eq!(names("list griddisk order by size desc limit 2"), ["DATA_CD_01_c5", "ä"]);
    assert_eq!(names("list griddisk order by status desc, name"), ["ä", "DATA_CD_01_c5", "RECO_CD_01_c5"]);
    // Nothing comes before something; the server's order stays among equals.
    assert_eq!(names("list griddisk order by comment"), ["DATA_CD_01_c5", "ä", "RECO_CD_01_c5"]);
    assert_eq!(names("list griddisk order by comment desc"), ["RECO_CD_01_c5", "DATA_CD_01_c5", "ä"]);
    assert_eq!(names("list griddisk order by comment, size"), ["ä", "DATA_CD_01_c5", "RECO_CD_01_c5"]);
    assert_eq!(names("list griddisk order by comment desc, size"), ["RECO_CD_01_c5", "ä", "DATA_CD_01_c5"]);
    let values = answer("list metriccurrent order by metricValue attributes metricValue", metrics()).unwrap();
    let values: Vec<String> = values.rows().map(|row| row[0].text()).collect();
    assert_eq!(values, ["9 IO requests", "19.4 IO/sec", "2,665 IO requests", "365,290 MB", "32,669,310 IO requests"]);
}

/// Grid disks that are made when they are looked at; counts how often.
struct Counted(Arc<AtomicUsize>);

const COUNTED: usize = 10_000;

impl Source for Counted {
    fn count(&self) -> usize {
        COUNTED
    }

    fn row(&self, place: usize) -> Row {
        self.0.fetch_add(1, Ordering::Relaxed);
        grid_disk(&format!("d{:05}", COUNTED - place), 1)
    }

    fn bytes(&self) -> usize {
        0
    }
}

#[test]
fn a_row_is_made_when_it_is_looked_at_and_not_kept() {
    let made = Arc::new(AtomicUsize::new(0));
    let select = |statement: &str| match parse_one(statement).unwrap() {
        Command::List(list) => select(&list, Box::new(Counted(made.clone()))).unwrap(),
        other => panic!("LIST expected, not {other}"),
    };
    let mut pieces = format::json(select("list griddisk attributes name"));
    assert_eq!(pieces.next().unwrap(), "[\n{\"name\":\"d10000\"}");
    assert_eq!(made.load(Ordering::Relaxed), 1);
    for statement in ["list griddisk", "list griddisk detail order by name limit 9000", "list griddisk where size = 1"]
    {
        let answer = select(statement);
        assert!(answer.bytes() <= COUNTED * size_of::<u32>(), "{statement}: {}", answer.bytes());
        assert_eq!(answer.rows().count(), answer.count());
    }
    let last = select("list griddisk order by name limit 1").row(0);
    assert_eq!(last[0].text(), "d00001");
}

#[test]
fn names_ignore_case_and_must_exist() {
    let rows = answer("list metriccurrent gd_io_rq_w_sm, fl_disk_first", metrics()).unwrap();
    assert_eq!(rows.count(), 3);
    let error = answer("list griddisk data_cd_01_C5, Missing", grid_disks()).unwrap_err();
    assert_eq!(error.to_string(), "CELL-09007: GridDisk does not exist: Missing.");
    // A name narrows before WHERE does, so a filter cannot make an object vanish into an error.
    assert!(answer("list griddisk DATA_CD_01_c5 where status = inactive", grid_disks()).unwrap().count() == 0);
}

#[test]
fn json_has_raw_numbers() {
    expect![[r#"
        [
        {"name":"RECO_CD_01_c5","size":16777216,"comment":"tab\there \"quoted\" <&>","errorCount":0},
        {"name":"DATA_CD_01_c5","size":1099511627776,"comment":null,"errorCount":0},
        {"name":"ä","size":3221225472,"comment":null,"errorCount":0}
        ]
    "#]]
    .assert_eq(&json(answer("list griddisk attributes name, size, comment, errorCount", grid_disks()).unwrap()));
    expect![[r#"
        [
        {"name":"FC_BY_USED","collectionTime":1379022374000,"metricObjectName":"FLASHCACHE","metricValue":365289.8125,"unit":"MB"},
        {"name":"FC_IO_RQ_R_SKIP_SEC","collectionTime":1379022374000,"metricObjectName":"FLASHCACHE","metricValue":19.4,"unit":"IO/sec"}
        ]
    "#]].assert_eq(&json(answer("list metriccurrent attributes all limit 2", metrics()).unwrap()));
    expect![[r#"
        [
        {"name":"myexa1cel01_FLASHCACHE","cellDisk":["FD_00_c1","FD_01_c1"],"creationTime":1295804096000,"degradedCelldisks":[],"effectiveCacheSize":391647330304,"id":"8a0aadc8","size":391647330304,"status":"normal"}
        ]
    "#]].assert_eq(&json(answer("list flashcache detail", flash_cache()).unwrap()));
    let control = vec![grid_disk("a\u{1}\\", 0)];
    expect![[r#"
        [
        {"name":"a\u0001\\","status":"active"}
        ]
    "#]]
    .assert_eq(&json(answer("list griddisk", control).unwrap()));
}

#[test]
fn xml_has_raw_numbers() {
    expect![[r#"
        <?xml version="1.0" encoding="utf-8" ?>
        <cli-output>
        <context cell="c&quot;1"/>
        <metric>
          <name>FC_BY_USED</name>
          <metricObjectName>FLASHCACHE</metricObjectName>
          <metricValue>365289.8125</metricValue>
        </metric>
        </cli-output>
    "#]]
    .assert_eq(&xml(answer("list metriccurrent limit 1", metrics()).unwrap(), "c\"1"));
    expect![[r#"
        <?xml version="1.0" encoding="utf-8" ?>
        <cli-output>
        <context cell="c1"/>
        <griddisk>
          <name>RECO_CD_01_c5</name>
          <comment>tab here &quot;quoted&quot; &lt;&amp;&gt;</comment>
          <size>16777216</size>
        </griddisk>
        </cli-output>
    "#]]
    .assert_eq(&xml(answer("list griddisk attributes name,comment,size limit 1", grid_disks()).unwrap(), "c1"));
}

#[test]
fn describe_every_type() {
    let mut shown = String::new();
    for spec in cellcli::table::OBJECTS {
        shown.push_str(&format!("{}\n{}", spec.word, visible(&describe(spec.object))));
    }
    expect![[r#"
        CELL
        <TAB> name              <TAB> modifiable
        <TAB> cellVersion
        <TAB> comment           <TAB> modifiable
        <TAB> cpuCount
        <TAB> diagHistoryDays
        <TAB> fanCount
        <TAB> fanStatus
        <TAB> flashCacheCompress
        <TAB> flashCacheMode    <TAB> modifiable
        <TAB> id
        <TAB> instanceStamp
        <TAB> makeModel
        <TAB> metricCollection  <TAB> modifiable
        <TAB> metricHistoryDays <TAB> modifiable
        <TAB> notificationMethod<TAB> modifiable
        <TAB> notificationPolicy<TAB> modifiable
        <TAB> releaseVersion
        <TAB> smtpFrom          <TAB> modifiable
        <TAB> smtpFromAddr      <TAB> modifiable
        <TAB> smtpPort          <TAB> modifiable
        <TAB> smtpServer        <TAB> modifiable
        <TAB> smtpToAddr        <TAB> modifiable
        <TAB> smtpUseSSL        <TAB> modifiable
        <TAB> status
        <TAB> temperatureReading
        <TAB> upTime
        <TAB> cellsrvStatus
        <TAB> msStatus
        <TAB> rsStatus
        CELLDISK
        <TAB> name             <TAB> modifiable
        <TAB> comment          <TAB> modifiable
        <TAB> creationTime
        <TAB> deviceClass
        <TAB> deviceClassSource
        <TAB> deviceId
        <TAB> deviceName
        <TAB> devicePartition
        <TAB> diskType
        <TAB> errorCount
        <TAB> flushError       <TAB> hidden
        <TAB> flushStatus      <TAB> hidden
        <TAB> freeSpace
        <TAB> id
        <TAB> interleaving
        <TAB> lun
        <TAB> physicalDisk
        <TAB> size
        <TAB> status
        <TAB> truePageSize
        DATABASE
        <TAB> name
        <TAB> flashCache
        <TAB> flashCacheLimit
        <TAB> flashCacheMin
        <TAB> flashCacheSize
        <TAB> flashCacheUsed
        <TAB> flashLog
        <TAB> iormLimit
        <TAB> iormShare
        <TAB> profile        <TAB> modifiable
        FLASHCACHE
        <TAB> name
        <TAB> cellDisk          <TAB> modifiable
        <TAB> creationTime
        <TAB> degradedCelldisks
        <TAB> effectiveCacheSize
        <TAB> id
        <TAB> size              <TAB> modifiable
        <TAB> status
        FLASHLOG
        <TAB> name
        <TAB> cellDisk
        <TAB> creationTime
        <TAB> degradedCelldisks
        <TAB> effectiveSize
        <TAB> efficiency
        <TAB> id
        <TAB> outlierLimit     <TAB> modifiable
        <TAB> size
        <TAB> status
        GRIDDISK
        <TAB> name                  <TAB> modifiable
        <TAB> asmDeactivationOutcome
        <TAB> asmDiskgroupName
        <TAB> asmDiskName
        <TAB> asmDiskRepairTime
        <TAB> asmDiskSize
        <TAB> asmFailGroupName
        <TAB> asmModeStatus
        <TAB> availableTo           <TAB> modifiable
        <TAB> cachedBy
        <TAB> cachingMode           <TAB> modifiable
        <TAB> cachingPolicy         <TAB> modifiable
        <TAB> cellDisk
        <TAB> comment               <TAB> modifiable
        <TAB> creationTime
        <TAB> diskType
        <TAB> errorCount
        <TAB> fillStrategy          <TAB> modifiable
        <TAB> flashLogMode          <TAB> modifiable
        <TAB> frozenFor
        <TAB> id
        <TAB> offset
        <TAB> purpose               <TAB> modifiable
        <TAB> readOnly              <TAB> modifiable
        <TAB> size                  <TAB> modifiable
        <TAB> sizeAllocated
        <TAB> sparse
        <TAB> staleAsOf
        <TAB> status
        <TAB> virtualSize
        IORMPLAN
        <TAB> name
        <TAB> catPlan  <TAB> modifiable
        <TAB> dbPlan   <TAB> modifiable
        <TAB> objective<TAB> modifiable
        <TAB> status
        IORMPROFILE
        <TAB> name
        <TAB> allocation
        <TAB> databases
        <TAB> flashCache
        <TAB> flashCacheLimit
        <TAB> flashCacheMin
        <TAB> flashCacheSize
        <TAB> flashLog
        <TAB> level
        <TAB> limit
        <TAB> share
        METRICCURRENT
        <TAB> name
        <TAB> age
        <TAB> alertState
        <TAB> collectionTime
        <TAB> description
        <TAB> metricObjectName
        <TAB> metricType
        <TAB> metricValue
        <TAB> objectType
        <TAB> unit
        METRICDEFINITION
        <TAB> name
        <TAB> description
        <TAB> fineGrained
        <TAB> metricType
        <TAB> objectType
        <TAB> retentionPolicy<TAB> modifiable
        <TAB> streaming
        <TAB> unit
        PIN
        <TAB> name
        <TAB> cachingPolicy
        <TAB> length
        <TAB> offset
        METRICHISTORY
        <TAB> name
        <TAB> age
        <TAB> description
        <TAB> metricObjectName
        <TAB> metricType
        <TAB> metricValue
        <TAB> metricValueAvg
        <TAB> metricValueMax
        <TAB> metricValueMin
        <TAB> objectType
        <TAB> unit
        <TAB> collectionTime
        THRESHOLD
        <TAB> name
        <TAB> comparison <TAB> modifiable
        <TAB> critical   <TAB> modifiable
        <TAB> observation<TAB> modifiable
        <TAB> occurrences<TAB> modifiable
        <TAB> warning    <TAB> modifiable
        ALERTDEFINITION
        <TAB> name
        <TAB> alertShortName
        <TAB> alertSource
        <TAB> alertType
        <TAB> description
        <TAB> metricName
        ALERTHISTORY
        <TAB> name
        <TAB> beginTime
        <TAB> severity
        <TAB> alertMessage
        <TAB> age
        <TAB> alertSequenceID
        <TAB> alertShortName
        <TAB> alertType
        <TAB> definition
        <TAB> description
        <TAB> endTime
        <TAB> examinedBy       <TAB> modifiable
        <TAB> metricObjectName
        <TAB> metricValue
        <TAB> sequenceBeginTime
        <TAB> unit
        PHYSICALDISK
        <TAB> name
        <TAB> cellDisk
        <TAB> deviceClass
        <TAB> diskType
        <TAB> errorCount
        <TAB> flushCount
        <TAB> id
        <TAB> luns
        <TAB> physicalSize
        <TAB> requestsInFlight
        <TAB> rotational
        <TAB> sectorSize
        <TAB> status
        <TAB> truePageSize
        <TAB> volatileCache
        LUN
        <TAB> name
        <TAB> cellDisk
        <TAB> deviceName
        <TAB> diskType
        <TAB> errorCount
        <TAB> id
        <TAB> isSystemLun
        <TAB> lunSize
        <TAB> physicalDrives
        <TAB> status
        ACTIVEREQUEST
        <TAB> name
        <TAB> age
        <TAB> dbName
        <TAB> ioBytes
        <TAB> ioGridDisk
        <TAB> ioOffset
        <TAB> ioReason
        <TAB> ioType
        <TAB> requestState
        FLASHCACHECONTENT
        <TAB> name
        <TAB> cachedKeepSize
        <TAB> cachedSize
        <TAB> cachedWriteSize
        <TAB> dbID
        <TAB> dbUniqueName
        <TAB> hitCount
        <TAB> length
        <TAB> missCount
        <TAB> objectNumber
        <TAB> offset
        <TAB> tableSpaceNumber
    "#]]
    .assert_eq(&shown);
    let lines = describe_json(ObjectType::FlashCache);
    expect![[r#"
        [
        {"attribute":"name","kind":"name","modifiable":false,"hidden":false,"default_column":true,"own":false,"description":"name of the flash cache"},
        {"attribute":"cellDisk","kind":"list","modifiable":true,"hidden":false,"default_column":false,"own":false,"description":"flash cell disks it uses"},
        {"attribute":"creationTime","kind":"time","modifiable":false,"hidden":false,"default_column":false,"own":false,"description":"when it was created"},
        {"attribute":"degradedCelldisks","kind":"list","modifiable":false,"hidden":false,"default_column":false,"own":false,"description":"flash cell disks that are configured but gone"},
        {"attribute":"effectiveCacheSize","kind":"size","modifiable":false,"hidden":false,"default_column":false,"own":false,"description":"bytes without those of degraded cell disks"},
        {"attribute":"id","kind":"name","modifiable":false,"hidden":false,"default_column":false,"own":false,"description":"identity of the flash cache"},
        {"attribute":"size","kind":"size","modifiable":true,"hidden":false,"default_column":false,"own":false,"description":"bytes in all"},
        {"attribute":"status","kind":"word","modifiable":false,"hidden":false,"default_column":true,"own":false,"description":"all, some or none of its disks present; starting: its index is still being read"}
        ]
    "#]].assert_eq(&lines);
}

#[test]
fn success_and_failure_lines() {
    let lines = [
        created(ObjectType::FlashCache, "c1_FLASHCACHE"),
        dropped(ObjectType::FlashCache, "exa1cel01_FLASHCACHE"),
        altered(ObjectType::GridDisk, "DATA_CD_00_c1"),
        altered(ObjectType::Cell, "c1"),
        created(ObjectType::CellDisk, "CD_00_c1"),
        services_starting(ServiceAction::Shutdown, Service::Cellsrv),
        services_done(ServiceAction::Shutdown, Service::Cellsrv),
        services_starting(ServiceAction::Restart, Service::All),
        failure_text(
            ErrorCode::NoSpace,
            "Cell disk CD_00 has 16M free, 1G is needed",
            Some("LIST CELLDISK ATTRIBUTES name, freeSpace"),
        ),
        failure_text(ErrorCode::DeviceFailed, "It failed.", None),
    ];
    expect![[r#"
        Flash cache c1_FLASHCACHE successfully created
        Flash cache exa1cel01_FLASHCACHE successfully dropped
        GridDisk DATA_CD_00_c1 successfully altered
        Cell c1 successfully altered
        CellDisk CD_00_c1 successfully created
        Stopping CELLSRV services...
        The SHUTDOWN of CELLSRV services was successful.
        Restarting ALL services...
        CELL-09012: Cell disk CD_00 has 16M free, 1G is needed.
        hint: LIST CELLDISK ATTRIBUTES name, freeSpace
        CELL-09013: It failed."#]]
    .assert_eq(&lines.join("\n"));
}
