//! Completion: what is offered at the cursor, and that everything offered is right there.
//! Method: `|` marks the cursor; the proposals are compared, and random walks along proposals make statements that are right as
//! far as they go.

use cellcli::{ObjectType, complete, parse_one};
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn names(object: ObjectType) -> Vec<String> {
    match object {
        ObjectType::GridDisk => vec!["DATA_CD_00".into(), "RECO_CD_00".into()],
        ObjectType::CellDisk => vec!["CD_00".into(), "FD_00".into()],
        ObjectType::MetricCurrent => vec!["FC_BY_USED".into()],
        ObjectType::Pin => vec!["DATA_CD_00_c1".into()],
        ObjectType::Database => vec!["SALES".into()],
        _ => Vec::new(),
    }
}

fn proposals(line: &str) -> Vec<String> {
    let cursor = line.find('|').unwrap_or(line.len());
    complete(&line.replacen('|', "", 1), cursor, &names)
}

#[track_caller]
fn check(lines: &[&str], expect: &Expect) {
    let shown: String = lines
        .iter()
        .map(|line| match proposals(line) {
            none if none.is_empty() => format!("{line}\n    nothing\n"),
            some => format!("{line}\n    {}\n", some.join("  ")),
        })
        .collect();
    expect.assert_eq(&shown);
}

#[test]
fn verbs_and_object_types() {
    check(
        &[
            "|",
            "l|",
            "LIST cell; a|",
            "list |",
            "create |",
            "drop g|",
            "help |",
            "help alter |",
            "describe m|",
            "set |",
            "set dateformat |",
            "list g| where",
            "rem x |",
        ],
        &expect![[r#"
            |
                ALTER  CALIBRATE  CREATE  DESCRIBE  DROP  EXIT  HELP  LIST  QUIT  REMARK  SET  SPOOL  START
            l|
                LIST
            LIST cell; a|
                ALTER
            list |
                CELL  CELLDISK  DATABASE  FLASHCACHE  FLASHLOG  GRIDDISK  IORMPLAN  IORMPROFILE  METRICCURRENT  METRICDEFINITION  PIN  METRICHISTORY  THRESHOLD  ALERTDEFINITION  ALERTHISTORY  PHYSICALDISK  LUN  ACTIVEREQUEST  FLASHCACHECONTENT
            create |
                CELLDISK  FLASHCACHE  FLASHLOG  GRIDDISK  PIN  THRESHOLD
            drop g|
                GRIDDISK
            help |
                ALTER  CALIBRATE  CREATE  DESCRIBE  DROP  EXIT  HELP  LIST  QUIT  REMARK  SET  SPOOL  START  CELL  CELLDISK  DATABASE  FLASHCACHE  FLASHLOG  GRIDDISK  IORMPLAN  IORMPROFILE  METRICCURRENT  METRICDEFINITION  PIN  METRICHISTORY  THRESHOLD  ALERTDEFINITION  ALERTHISTORY  PHYSICALDISK  LUN  ACTIVEREQUEST  FLASHCACHECONTENT
            help alter |
                CELL  CELLDISK  DATABASE  FLASHCACHE  FLASHLOG  GRIDDISK  IORMPLAN  METRICDEFINITION  THRESHOLD  ALERTHISTORY
            describe m|
                METRICCURRENT  METRICDEFINITION  METRICHISTORY
            set |
                DATEFORMAT  ECHO
            set dateformat |
                LOCAL  STANDARD
            list g| where
                GRIDDISK
            rem x |
                ALTER  CALIBRATE  CREATE  DESCRIBE  DROP  EXIT  HELP  LIST  QUIT  REMARK  SET  SPOOL  START
        "#]],
    );
}

#[test]
fn list() {
    check(
        &[
            "list griddisk |",
            "list griddisk d|",
            "list griddisk DATA_CD_00, |",
            "list griddisk where s|",
            "list griddisk where status |",
            "list griddisk where status = |",
            "list griddisk where status not |",
            "list griddisk where cellDisk=|",
            "list griddisk where name = a and (ca|",
            "list griddisk where name = a |",
            "list griddisk attributes |",
            "list griddisk attributes name,si|",
            "list griddisk attributes name |",
            "list griddisk order |",
            "list griddisk order by cachingm|",
            "list griddisk order by name |",
            "list griddisk limit |",
            "list griddisk where comment = 'x|",
        ],
        &expect![[r#"
            list griddisk |
                DATA_CD_00  RECO_CD_00  WHERE  ATTRIBUTES  DETAIL  ORDER BY  LIMIT
            list griddisk d|
                DATA_CD_00  DETAIL
            list griddisk DATA_CD_00, |
                DATA_CD_00  RECO_CD_00
            list griddisk where s|
                size  sizeAllocated  sparse  staleAsOf  status
            list griddisk where status |
                =  !=  <  <=  >  >=  LIKE  NOT LIKE  IN (  NOT IN (
            list griddisk where status = |
                active  inactive  offline  starting  'not present'  importRequired  NULL
            list griddisk where status not |
                =  <  >  LIKE  IN (
            list griddisk where cellDisk=|
                CD_00  FD_00  NULL
            list griddisk where name = a and (ca|
                cachedBy  cachingMode  cachingPolicy
            list griddisk where name = a |
                AND  OR  ATTRIBUTES  DETAIL  ORDER BY  LIMIT
            list griddisk attributes |
                ALL  name  asmDeactivationOutcome  asmDiskgroupName  asmDiskName  asmDiskRepairTime  asmDiskSize  asmFailGroupName  asmModeStatus  availableTo  cachedBy  cachingMode  cachingPolicy  cellDisk  comment  creationTime  diskType  errorCount  fillStrategy  flashLogMode  frozenFor  id  offset  purpose  readOnly  size  sizeAllocated  sparse  staleAsOf  status  virtualSize
            list griddisk attributes name,si|
                size  sizeAllocated
            list griddisk attributes name |
                WHERE  DETAIL  ORDER BY  LIMIT
            list griddisk order |
                BY
            list griddisk order by cachingm|
                cachingMode
            list griddisk order by name |
                ASC  DESC  WHERE  ATTRIBUTES  DETAIL  LIMIT
            list griddisk limit |
                nothing
            list griddisk where comment = 'x|
                nothing
        "#]],
    );
}

#[test]
fn changes() {
    check(
        &[
            "create griddisk |",
            "create griddisk all |",
            "create griddisk all flashdisk prefix=a, |",
            "create griddisk x celldisk=|",
            "create griddisk x cellDisk=CD_00, cachingMode=|",
            "alter griddisk |",
            "alter griddisk DATA_CD_00 |",
            "alter griddisk DATA_CD_00, |",
            "alter griddisk all inactive |",
            "alter griddisk all cancel |",
            "alter griddisk all where |",
            "alter flashcache |",
            "drop flashcache |",
            "alter cell |",
            "alter cell shutdown |",
            "alter cell shutdown services |",
            "alter cell flashCacheMode=w|",
            "alter tablespace |",
        ],
        &expect![[r#"
            create griddisk |
                ALL
            create griddisk all |
                FLASHDISK  HARDDISK  prefix=  size=  availableTo=  cachingMode=  cachingPolicy=  comment=  fillStrategy=  purpose=  readOnly=
            create griddisk all flashdisk prefix=a, |
                size=  availableTo=  cachingMode=  cachingPolicy=  comment=  fillStrategy=  purpose=  readOnly=
            create griddisk x celldisk=|
                CD_00  FD_00
            create griddisk x cellDisk=CD_00, cachingMode=|
                write-through  write-back  write-back-ordered  write-around  none
            alter griddisk |
                ALL  DATA_CD_00  RECO_CD_00
            alter griddisk DATA_CD_00 |
                seconds=  name=  availableTo=  cachingMode=  cachingPolicy=  comment=  fillStrategy=  flashLogMode=  purpose=  readOnly=  size=  ACTIVE  INACTIVE  FLUSH  CANCEL  FREEZE  THAW  FORCE  NOWAIT  WHERE
            alter griddisk DATA_CD_00, |
                DATA_CD_00  RECO_CD_00
            alter griddisk all inactive |
                seconds=  FORCE  NOWAIT  WHERE
            alter griddisk all cancel |
                FLUSH
            alter griddisk all where |
                name  asmDeactivationOutcome  asmDiskgroupName  asmDiskName  asmDiskRepairTime  asmDiskSize  asmFailGroupName  asmModeStatus  availableTo  cachedBy  cachingMode  cachingPolicy  cellDisk  comment  creationTime  diskType  errorCount  fillStrategy  flashLogMode  frozenFor  id  offset  purpose  readOnly  size  sizeAllocated  sparse  staleAsOf  status  virtualSize
            alter flashcache |
                ALL  cellDisk=  size=  FLUSH  CANCEL  FORCE
            drop flashcache |
                ALL  FORCE
            alter cell |
                name=  comment=  flashCacheMode=  metricCollection=  metricHistoryDays=  notificationMethod=  notificationPolicy=  smtpFrom=  smtpFromAddr=  smtpPort=  smtpServer=  smtpToAddr=  smtpUseSSL=  SHUTDOWN  STARTUP  RESTART  VALIDATE
            alter cell shutdown |
                SERVICES
            alter cell shutdown services |
                RS  MS  CELLSRV  ALL
            alter cell flashCacheMode=w|
                WriteThrough  WriteBack
            alter tablespace |
                nothing
        "#]],
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// No line and no cursor, in the middle of a character or beyond the end, makes it panic; what it offers begins with the
    /// letters typed.
    #[test]
    fn any_line_any_cursor(line in "(?s)(list |alter griddisk |create |).{0,40}", cursor in 0_usize..60) {
        let before = line.get(..cursor).unwrap_or(&line);
        let typed: String = before.chars().rev().take_while(|it| it.is_ascii_alphabetic()).collect();
        let typed: String = typed.chars().rev().collect::<String>().to_lowercase();
        for offered in complete(&line, cursor, &names) {
            prop_assert!(offered.to_lowercase().contains(&typed), "{offered} for {before}");
        }
    }

    /// From every start, words taken from the proposals give a line whose words before the cursor the parser takes as far as
    /// they go: an error, if any, is at the end, where more was expected.
    #[test]
    fn proposals_are_words_the_parser_takes(choices in proptest::collection::vec(any::<prop::sample::Index>(), 1..12)) {
        let mut line = String::new();
        for choice in &choices {
            let offered = complete(&line, line.len(), &names);
            if offered.is_empty() {
                break;
            }
            line.push_str(choice.get(&offered).as_str());
            if !line.ends_with('=') {
                line.push(' ');
            }
        }
        if let Err(error) = parse_one(&line) {
            let complained_inside = error.position.offset_bytes < line.trim_end().len();
            prop_assert!(!complained_inside, "{}", error.render(&line));
        }
    }
}
