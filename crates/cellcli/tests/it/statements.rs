//! Statements of the field and of the vendor's manuals, and what they are taken for. Method: each is parsed and compared with
//! the canonical text of its command; the typed view a server has is checked besides.
#![expect(clippy::unwrap_used, reason = "tests")]

use cellcli::command::{Change, DiskType, Operation, Service, ServiceAction, Spool, SpoolMode, Target};
use cellcli::{Command, ObjectType, parse_one, parse_script};
use expect_test::{Expect, expect};

#[track_caller]
fn change(text: &str) -> Change {
    match parse_one(text).unwrap() {
        Command::Create(change) | Command::Alter(change) | Command::Drop(change) => change,
        other => panic!("a change expected, not {other}"),
    }
}

/// Each statement with the canonical form of what it was taken for.
fn check(statements: &[&str], expect: &Expect) {
    let mut text = String::new();
    for statement in statements {
        let command = match parse_one(statement) {
            Ok(command) => command.to_string(),
            Err(error) => panic!("{}", error.render(statement)),
        };
        text.push_str(&format!("{statement}\n    {command}\n"));
    }
    expect.assert_eq(&text);
}

/// The commands of field measurements S1, S4, S6 and S7, as their users wrote them.
#[test]
fn the_field_s_own_commands() {
    check(
        &[
            "list metriccurrent where objectType='FLASHLOG'",
            "drop flashcache",
            "create flashcache all size=288g",
            "create griddisk all flashdisk prefix=ssddisk",
            "list metriccurrent gd_io_rq_w_sm",
            "list griddisk where cellDisk='CD_01_c5' attributes name,status",
            "LIST METRICCURRENT ATTRIBUTES name, metricObjectName, metricValue WHERE name LIKE 'FC_IO.*' AND metricValue NOT LIKE '0.*'",
            "list celldisk where freespace > 0M attributes name, freeSpace",
            "ALTER CELL flashCacheMode=WriteBack",
            "ALTER CELL notificationPolicy='critical,warning,clear', notificationMethod='mail', smtpServer='m', smtpToAddr='a@b'",
        ],
        &expect![[r#"
            list metriccurrent where objectType='FLASHLOG'
                LIST METRICCURRENT WHERE objectType = 'FLASHLOG'
            drop flashcache
                DROP FLASHCACHE
            create flashcache all size=288g
                CREATE FLASHCACHE ALL size=288G
            create griddisk all flashdisk prefix=ssddisk
                CREATE GRIDDISK ALL FLASHDISK prefix='ssddisk'
            list metriccurrent gd_io_rq_w_sm
                LIST METRICCURRENT gd_io_rq_w_sm
            list griddisk where cellDisk='CD_01_c5' attributes name,status
                LIST GRIDDISK WHERE cellDisk = 'CD_01_c5' ATTRIBUTES name, status
            LIST METRICCURRENT ATTRIBUTES name, metricObjectName, metricValue WHERE name LIKE 'FC_IO.*' AND metricValue NOT LIKE '0.*'
                LIST METRICCURRENT WHERE name LIKE 'FC_IO.*' AND metricValue NOT LIKE '0.*' ATTRIBUTES name, metricObjectName, metricValue
            list celldisk where freespace > 0M attributes name, freeSpace
                LIST CELLDISK WHERE freeSpace > 0K ATTRIBUTES name, freeSpace
            ALTER CELL flashCacheMode=WriteBack
                ALTER CELL flashCacheMode=WriteBack
            ALTER CELL notificationPolicy='critical,warning,clear', notificationMethod='mail', smtpServer='m', smtpToAddr='a@b'
                ALTER CELL notificationPolicy='critical,warning,clear', notificationMethod='mail', smtpServer='m', smtpToAddr='a@b'
        "#]],
    );
}

/// The here-document of S6: statements on lines, with and without semicolons.
#[test]
fn a_script_on_standard_input() {
    let script = "drop flashcache;\ncreate flashcache all;\n\nREM done\nlist flashcache -\n   detail\n";
    let statements = parse_script(script);
    let texts: Vec<String> = statements.iter().map(|it| it.command.as_ref().unwrap().to_string()).collect();
    assert_eq!(texts, ["DROP FLASHCACHE", "CREATE FLASHCACHE ALL", "REMARK done", "LIST FLASHCACHE DETAIL"]);
    let lines: Vec<usize> = statements.iter().map(|it| it.position.line).collect();
    assert_eq!(lines, [1, 2, 4, 5]);
    assert_eq!(statements[0].text, "drop flashcache");
}

/// One bad statement does not hide the next; whether that one runs is the caller's choice.
#[test]
fn a_bad_statement_leaves_the_others() {
    let statements = parse_script("list cell; lst cell; list 'x\nlist griddisk");
    let verdicts: Vec<(bool, usize, usize)> =
        statements.iter().map(|it| (it.command.is_ok(), it.position.line, it.position.column)).collect();
    assert_eq!(verdicts, [(true, 1, 1), (false, 1, 12), (false, 1, 27), (true, 2, 1)]);
    assert!(parse_script(" ;; \n -\n;").is_empty());
}

#[test]
fn list_clauses_in_any_order() {
    check(
        &[
            "LIST GRIDDISK",
            "list griddisk DATA_CD_00_c1, 'odd name', \"where\" detail;",
            "list griddisk attributes all detail where size>=1.5G",
            "list griddisk limit 5 order by size desc, name asc where status != active",
            "list griddisk where name not like 'DATA.*' and (size > 10g or comment = null) and errorCount ! < 5",
            "list griddisk where size = '10G' or size = 10G and size = 10 or comment = it",
            "list metriccurrent where collectionTime > '2013-09-12T23:46:14+02:00' and collectionTime<2014-01-01t00:00:00.5z",
            "list metriccurrent where metricValue > -1.50",
        ],
        &expect![[r#"
            LIST GRIDDISK
                LIST GRIDDISK
            list griddisk DATA_CD_00_c1, 'odd name', "where" detail;
                LIST GRIDDISK DATA_CD_00_c1, 'odd name', 'where' DETAIL
            list griddisk attributes all detail where size>=1.5G
                LIST GRIDDISK WHERE size >= 1.5G ATTRIBUTES ALL DETAIL
            list griddisk limit 5 order by size desc, name asc where status != active
                LIST GRIDDISK WHERE status != 'active' ORDER BY size DESC, name LIMIT 5
            list griddisk where name not like 'DATA.*' and (size > 10g or comment = null) and errorCount ! < 5
                LIST GRIDDISK WHERE name NOT LIKE 'DATA.*' AND (size > 10G OR comment = NULL) AND errorCount NOT < 5
            list griddisk where size = '10G' or size = 10G and size = 10 or comment = it
                LIST GRIDDISK WHERE size = '10G' OR size = 10G AND size = 10 OR comment = 'it'
            list metriccurrent where collectionTime > '2013-09-12T23:46:14+02:00' and collectionTime<2014-01-01t00:00:00.5z
                LIST METRICCURRENT WHERE collectionTime > '2013-09-12T23:46:14+02:00' AND collectionTime < 2014-01-01T00:00:00.500000000+00:00
            list metriccurrent where metricValue > -1.50
                LIST METRICCURRENT WHERE metricValue > -1.5
        "#]],
    );
}

#[test]
fn changes_of_first_floor_objects() {
    check(
        &[
            "create griddisk all harddisk prefix=DATA, size=10g, cachingMode=WRITE-BACK comment='it''s'",
            "create griddisk REDO1 celldisk=CD_00, size=512M, purpose=redo, cachingPolicy=none",
            "alter griddisk a, b availableTo='h1, h2',comment=null",
            "alter griddisk all where cellDisk = 'CD_00' inactive force",
            "alter griddisk all flashdisk active",
            "alter griddisk a flush nowait",
            "alter griddisk a cancel flush",
            "alter griddisk a size=20G nowait",
            "drop griddisk all prefix=ssddisk force",
            "drop griddisk a,b force",
            "create celldisk all flashdisk",
            "create celldisk CD_00 lun='/dev/sdb' deviceClass=durable truePageSize=4K force",
            "alter celldisk CD_00 name=CD_new, comment=x",
            "alter celldisk all flashdisk flush nowait",
            "drop celldisk all force",
            "create flashcache celldisk='FD_00,FD_01', size=1T",
            "alter flashcache all size=100g",
            "alter flashcache all",
            "alter flashcache celldisk='FD_00' flush nowait",
            "alter flashcache flush",
            "alter flashcache cancel flush",
            "drop flashcache all force",
            "drop flashcache force",
            "alter cell restart services cellsrv",
            "alter cell name=c1 comment=''",
            "alter metricdefinition fc_io_rq_r, FC_IO_RQ_W retentionPolicy=annual",
            "alter metricdefinition retentionPolicy=Annual where name like 'FC.*'",
        ],
        &expect![[r#"
            create griddisk all harddisk prefix=DATA, size=10g, cachingMode=WRITE-BACK comment='it''s'
                CREATE GRIDDISK ALL HARDDISK prefix='DATA', size=10G, cachingMode=write-back, comment='it''s'
            create griddisk REDO1 celldisk=CD_00, size=512M, purpose=redo, cachingPolicy=none
                CREATE GRIDDISK REDO1 cellDisk='CD_00', size=512M, purpose=redo, cachingPolicy=none
            alter griddisk a, b availableTo='h1, h2',comment=null
                ALTER GRIDDISK a, b availableTo='h1,h2', comment=''
            alter griddisk all where cellDisk = 'CD_00' inactive force
                ALTER GRIDDISK ALL WHERE cellDisk = 'CD_00' INACTIVE FORCE
            alter griddisk all flashdisk active
                ALTER GRIDDISK ALL FLASHDISK ACTIVE
            alter griddisk a flush nowait
                ALTER GRIDDISK a FLUSH NOWAIT
            alter griddisk a cancel flush
                ALTER GRIDDISK a CANCEL FLUSH
            alter griddisk a size=20G nowait
                ALTER GRIDDISK a size=20G NOWAIT
            drop griddisk all prefix=ssddisk force
                DROP GRIDDISK ALL prefix='ssddisk' FORCE
            drop griddisk a,b force
                DROP GRIDDISK a, b FORCE
            create celldisk all flashdisk
                CREATE CELLDISK ALL FLASHDISK
            create celldisk CD_00 lun='/dev/sdb' deviceClass=durable truePageSize=4K force
                CREATE CELLDISK CD_00 lun='/dev/sdb', deviceClass=durable, truePageSize=4K FORCE
            alter celldisk CD_00 name=CD_new, comment=x
                ALTER CELLDISK CD_00 name='CD_new', comment='x'
            alter celldisk all flashdisk flush nowait
                ALTER CELLDISK ALL FLASHDISK FLUSH NOWAIT
            drop celldisk all force
                DROP CELLDISK ALL FORCE
            create flashcache celldisk='FD_00,FD_01', size=1T
                CREATE FLASHCACHE cellDisk='FD_00,FD_01', size=1T
            alter flashcache all size=100g
                ALTER FLASHCACHE ALL size=100G
            alter flashcache all
                ALTER FLASHCACHE ALL
            alter flashcache celldisk='FD_00' flush nowait
                ALTER FLASHCACHE cellDisk='FD_00' FLUSH NOWAIT
            alter flashcache flush
                ALTER FLASHCACHE FLUSH
            alter flashcache cancel flush
                ALTER FLASHCACHE CANCEL FLUSH
            drop flashcache all force
                DROP FLASHCACHE ALL FORCE
            drop flashcache force
                DROP FLASHCACHE FORCE
            alter cell restart services cellsrv
                ALTER CELL RESTART SERVICES CELLSRV
            alter cell name=c1 comment=''
                ALTER CELL name='c1', comment=''
            alter metricdefinition fc_io_rq_r, FC_IO_RQ_W retentionPolicy=annual
                ALTER METRICDEFINITION fc_io_rq_r, FC_IO_RQ_W retentionPolicy=Annual
            alter metricdefinition retentionPolicy=Annual where name like 'FC.*'
                ALTER METRICDEFINITION retentionPolicy=Annual WHERE name LIKE 'FC.*'
        "#]],
    );
}

#[test]
fn session_statements() {
    check(
        &[
            "exit",
            "QUIT;",
            "help",
            "help list",
            "help create griddisk",
            "help celldisk",
            "help set",
            "describe flashcache",
            "set dateformat local",
            "set echo",
            "set echo off",
            "spool",
            "spool off",
            "spool 'off' append",
            "spool out.txt",
            "start /tmp/x.scl",
            "@x.scl",
            "@ 'my file'",
            "REM text; more",
            "-- text",
            "remark",
        ],
        &expect![[r#"
            exit
                EXIT
            QUIT;
                QUIT
            help
                HELP
            help list
                HELP LIST
            help create griddisk
                HELP CREATE GRIDDISK
            help celldisk
                HELP CELLDISK
            help set
                HELP SET
            describe flashcache
                DESCRIBE FLASHCACHE
            set dateformat local
                SET DATEFORMAT LOCAL
            set echo
                SET ECHO
            set echo off
                SET ECHO OFF
            spool
                SPOOL
            spool off
                SPOOL OFF
            spool 'off' append
                SPOOL 'off' APPEND
            spool out.txt
                SPOOL 'out.txt' REPLACE
            start /tmp/x.scl
                START /tmp/x.scl
            @x.scl
                START x.scl
            @ 'my file'
                START 'my file'
            REM text; more
                REMARK text; more
            -- text
                REMARK text
            remark
                REMARK
        "#]],
    );
    assert_eq!(
        parse_one("spool a create").unwrap(),
        Command::Spool(Spool::To { path: "a".into(), mode: SpoolMode::Create })
    );
}

/// The typed view a server works with.
#[test]
fn a_server_reads_typed_options() {
    let create = change("create griddisk all flashdisk prefix=ssddisk, size=300M, cachingMode=Write-Back-Ordered");
    assert_eq!(create.object, ObjectType::GridDisk);
    assert_eq!(create.target, Target::All(Some(DiskType::FlashDisk)));
    assert_eq!(create.text("prefix"), Some("ssddisk"));
    assert_eq!(create.size_bytes("size"), Some(300 << 20));
    assert_eq!(create.choice("cachingMode"), Some("write-back-ordered"));
    assert_eq!(create.size_bytes("prefix"), None);
    assert_eq!(create.text("purpose"), None);

    let alter = change("alter griddisk 'a', b availableTo='h1, h2'");
    assert_eq!(alter.target, Target::Names(vec!["a".into(), "b".into()]));
    assert_eq!(alter.list("availableTo"), Some(["h1".to_owned(), "h2".to_owned()].as_slice()));

    let services = change("alter cell shutdown services ALL");
    let expected = Operation::Services { action: ServiceAction::Shutdown, service: Service::All };
    assert_eq!((services.target, services.operation), (Target::Whole, Some(expected)));
    assert_eq!(change("alter cell metricHistoryDays=14").number("metricHistoryDays"), Some(14));
    let flush = change("alter flashcache all flush nowait");
    assert_eq!((flush.operation, flush.no_wait, flush.force), (Some(Operation::Flush), true, false));
}

#[test]
fn monitors_may_only_look() {
    for (text, allowed) in [
        ("list cell", true),
        ("describe cell", true),
        ("drop flashcache", false),
        ("alter cell comment=x", false),
        ("create flashcache all", false),
        ("spool x", false),
        ("start x", true),
    ] {
        assert_eq!(parse_one(text).unwrap().is_read_only(), allowed, "{text}");
    }
}
