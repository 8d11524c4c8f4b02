//! Snapshots of HELP, and the promise that it tells the truth: what completion offers and help shows is what the parser takes.

use cellcli::table::{OBJECTS, VERBS};
use cellcli::{ObjectType, Verb, help};
use expect_test::expect;

#[test]
fn overview() {
    expect![[r#"
        Commands:
          ALTER            change attributes of objects, or have them do something
          CALIBRATE        measure each device with reads; FORCE though clients are connected
          CREATE           make objects
          DESCRIBE         show the attributes of an object type
          DROP             remove objects
          EXIT             leave
          HELP             show this list, or one verb or object type
          LIST             show objects
          QUIT             leave
          REMARK, REM, --  a comment to the end of the line
          SET              set a session option
          SPOOL            copy output to a file; alone, show the state
          START, @         run the statements of a file

        Object types:
          CELL               the cell itself
          CELLDISK           physical disks taken into the cell
          DATABASE           databases that have connected since the cell was started, and those that the I/O resource plan names
          FLASHCACHE         the flash cache of the cell
          FLASHLOG           the flash log of the cell: redo writes on disk and flash
          GRIDDISK           slices of cell disks, each served as one export
          IORMPLAN           the I/O resource plan of the cell: which database gets how much, and whether it uses flash
          IORMPROFILE        directives of the I/O resource plan that count for each database that has the profile
          METRICCURRENT      the latest value of each metric for each object
          METRICDEFINITION   what each metric means
          PIN                ranges of grid disks with a caching policy of their own
          METRICHISTORY      the values of each metric for each object, once a minute; MEMORY: those of the last minutes, which memory holds
          THRESHOLD          values of metrics that raise an alert
          ALERTDEFINITION    what each alert means
          ALERTHISTORY       alerts raised and cleared
          PHYSICALDISK       devices the cell has opened, and those it misses
          LUN                devices as CREATE CELLDISK ... LUN= names them
          ACTIVEREQUEST      requests of clients under way
          FLASHCACHECONTENT  what the flash cache holds, by grid disk, range and database

        HELP verb, HELP verb object_type and HELP object_type tell more.
        Keywords and names ignore case. A line that ends in - goes on in the next; ; is optional.
    "#]]
    .assert_eq(&help(None, None));
}

#[test]
fn verbs() {
    expect![[r#"
        ALTER: change attributes of objects, or have them do something
        Object types:
          CELL              the cell itself
          CELLDISK          physical disks taken into the cell
          DATABASE          databases that have connected since the cell was started, and those that the I/O resource plan names
          FLASHCACHE        the flash cache of the cell
          FLASHLOG          the flash log of the cell: redo writes on disk and flash
          GRIDDISK          slices of cell disks, each served as one export
          IORMPLAN          the I/O resource plan of the cell: which database gets how much, and whether it uses flash
          METRICDEFINITION  what each metric means
          THRESHOLD         values of metrics that raise an alert
          ALERTHISTORY      alerts raised and cleared
    "#]]
    .assert_eq(&help(Some(Verb::Alter), None));
    expect![[r#"
        SPOOL: copy output to a file; alone, show the state
          SPOOL [file [CREATE | REPLACE | APPEND] | OFF]
    "#]]
    .assert_eq(&help(Some(Verb::Spool), None));
    expect![[r#"
        REMARK: a comment to the end of the line
          REMARK [text]
          REM [text]
          -- [text]
    "#]]
    .assert_eq(&help(Some(Verb::Remark), None));
}

#[test]
fn statements() {
    expect![[r#"
        LIST GRIDDISK: show slices of cell disks, each served as one export
          LIST GRIDDISK [name [, name]...] [WHERE condition] [ATTRIBUTES {ALL | attribute [, attribute]...}] [DETAIL] [ORDER BY attribute [ASC | DESC] [, ...]] [LIMIT number]
          condition: attribute [NOT | !] {= | != | < | <= | > | >= | LIKE} value
                     attribute [NOT | !] IN (value [, value]...)
                     [{AND | OR} condition]..., parentheses; OR, IN and parentheses are Flashcell's own
          LIKE takes a regular expression over the whole value: name LIKE 'FC_IO.*'
          Without ATTRIBUTES: name, status
    "#]].assert_eq(&help(Some(Verb::List), Some(ObjectType::GridDisk)));
    expect![[r#"
        CREATE GRIDDISK: slices of cell disks, each served as one export
          CREATE GRIDDISK ALL [FLASHDISK | HARDDISK] prefix=name [, option=value]...
            make one grid disk on each cell disk
            options:
              prefix         first part of each name: prefix_celldisk, as in ssddisk_FD_00_c1 (name, required)
              size           bytes a client sees (size)
              availableTo    clients that may use it: names of databases, certificates or users; empty for all (list)
              cachingMode    how writes use the flash cache (word)
                             write-through | write-back | write-back-ordered | write-around | none
              cachingPolicy  how the flash cache values its data; PIN tells of ranges (word)
                             default | keep | none
              comment        free text (text)
              fillStrategy   when clean data comes into the flash cache: on a read miss, when a buffer cache lets go of it, or fed at a rate (word)
                             read | evict | feed
              purpose        what the database keeps on it (word)
                             data | redo | temp
              readOnly       whether clients may only read (word)
                             TRUE | FALSE
          CREATE GRIDDISK name cellDisk=name [, option=value]...
            make one grid disk
            options:
              cellDisk       cell disk it is on (name, required)
              size           bytes a client sees (size)
              availableTo    clients that may use it: names of databases, certificates or users; empty for all (list)
              cachingMode    how writes use the flash cache (word)
                             write-through | write-back | write-back-ordered | write-around | none
              cachingPolicy  how the flash cache values its data; PIN tells of ranges (word)
                             default | keep | none
              comment        free text (text)
              fillStrategy   when clean data comes into the flash cache: on a read miss, when a buffer cache lets go of it, or fed at a rate (word)
                             read | evict | feed
              purpose        what the database keeps on it (word)
                             data | redo | temp
              readOnly       whether clients may only read (word)
                             TRUE | FALSE
    "#]]
    .assert_eq(&help(Some(Verb::Create), Some(ObjectType::GridDisk)));
    expect![[r#"
        ALTER FLASHCACHE: the flash cache of the cell
          ALTER FLASHCACHE ALL [option=value [, option=value]...] [FLUSH [NOWAIT] | CANCEL FLUSH] [FORCE]
            use all flash cell disks; with a size drop and make again; or flush
            options:
              size  bytes in all (size)
            operations:
              FLUSH [NOWAIT]: write dirty data from flash to disk; NOWAIT returns at once
              CANCEL FLUSH: stop a flush and admit new data again
          ALTER FLASHCACHE [option=value [, option=value]...] [FLUSH [NOWAIT] | CANCEL FLUSH] [FORCE]
            use the cell disks named; with a size drop and make again; or flush
            options:
              cellDisk  flash cell disks it uses (list)
              size      bytes in all (size, with cellDisk)
            operations:
              FLUSH [NOWAIT]: write dirty data from flash to disk; NOWAIT returns at once
              CANCEL FLUSH: stop a flush and admit new data again
    "#]]
    .assert_eq(&help(Some(Verb::Alter), Some(ObjectType::FlashCache)));
    expect![[r#"
        ALTER CELL: the cell itself
          ALTER CELL [option=value [, option=value]...] [{SHUTDOWN | STARTUP | RESTART} SERVICES {RS | MS | CELLSRV | ALL} [FORCE] | VALIDATE MAIL]
            change the cell, or stop and start its services
            options:
              name                name of the cell (name)
              comment             free text (text)
              flashCacheMode      how writes use the flash cache (word)
                                  WriteThrough | WriteBack
              metricCollection    whether the history of metrics is collected (word)
                                  TRUE | FALSE
              metricHistoryDays   days metric history is kept (number)
              notificationMethod  how alerts are sent besides what cell.toml names: mail, or none (list)
              notificationPolicy  which alerts are sent: critical, warning, info, clear (list)
              smtpFrom            name mails of alerts come from (text)
              smtpFromAddr        mail address alerts come from (text)
              smtpPort            port of the mail server, 25 unless stated (number)
              smtpServer          mail server for alerts (text)
              smtpToAddr          mail addresses alerts go to (list)
              smtpUseSSL          whether mail goes over TLS: at port 465 from the start, elsewhere by STARTTLS (word)
                                  TRUE | FALSE
            operations:
              {SHUTDOWN | STARTUP | RESTART} SERVICES {RS | MS | CELLSRV | ALL} [FORCE]: stop the cell, or stop it and start it again; FORCE though clients are connected. It is one process: CELLSRV stands for ALL, RESTART of MS takes the certificates that are there now, and whatever else is of MS or RS alone is refused
              VALIDATE MAIL: send a mail to each address of smtpToAddr, now, and say what the server said
    "#]].assert_eq(&help(Some(Verb::Alter), Some(ObjectType::Cell)));
    expect![[r#"
        DESCRIBE CELL: show the attributes of CELL
          DESCRIBE CELL
    "#]]
    .assert_eq(&help(Some(Verb::Describe), Some(ObjectType::Cell)));
}

#[test]
fn object_type() {
    expect![[r#"
        CELLDISK: physical disks taken into the cell
        Statements:
          ALTER CELLDISK ALL [FLASHDISK | HARDDISK] [option=value [, option=value]...] [WHERE condition] [FLUSH [NOWAIT] | CANCEL FLUSH] [FORCE]
          ALTER CELLDISK name [, name]... [option=value [, option=value]...] [WHERE condition] [FLUSH [NOWAIT] | CANCEL FLUSH] [FORCE]
          CREATE CELLDISK ALL [FLASHDISK | HARDDISK] [option=value [, option=value]...] [FORCE]
          CREATE CELLDISK name lun=text [, option=value]... [FORCE]
          DESCRIBE CELLDISK
          DROP CELLDISK ALL [FLASHDISK | HARDDISK] [FORCE]
          DROP CELLDISK name [, name]... [FORCE]
          LIST CELLDISK [name [, name]...] [WHERE condition] [ATTRIBUTES {ALL | attribute [, attribute]...}] [DETAIL] [ORDER BY attribute [ASC | DESC] [, ...]] [LIMIT number]
        Attributes:
          name               name of the cell disk (modifiable)
          comment            free text (modifiable)
          creationTime       when it was created
          deviceClass        whether content survives a host stop (Flashcell's own)
                             durable | ephemeral
          deviceClassSource  where deviceClass comes from: stated, or found and why (Flashcell's own)
          deviceId           identity of the device, kept in its label (Flashcell's own)
          deviceName         path of the device
          devicePartition    path of the partition used
          diskType           hard disk or flash disk
                             HardDisk | FlashDisk
          errorCount         I/O errors since creation
          flushError         why the last flush failed (hidden)
          flushStatus        progress of the flush (hidden)
          freeSpace          bytes not given to grid disks, flash cache or flash log
          id                 identity of the cell disk
          interleaving       whether grid disks are spread over fast and slow parts
                             none | normal_redundancy | high_redundancy
          lun                logical unit or path it was created on
          physicalDisk       physical disk it is on
          size               bytes in all
          status             state of the cell disk
                             normal | importRequired | proactive failure | not present
          truePageSize       bytes of the device's true page, whatever it reports (Flashcell's own)
    "#]].assert_eq(&help(None, Some(ObjectType::CellDisk)));
}

/// Every page is there, ends its last line, and names every option, operation and attribute it is about.
#[test]
fn every_page_is_complete() {
    for verb in VERBS {
        let page = help(Some(verb.verb), None);
        assert!(page.starts_with(verb.words[0]) && page.ends_with('\n'), "{page}");
        for object in OBJECTS.iter().filter(|object| verb.on_objects && object.takes(verb.verb)) {
            assert!(page.contains(object.word), "{} {}", verb.words[0], object.word);
            let page = help(Some(verb.verb), Some(object.object));
            assert!(page.contains(&format!("{} {}", verb.words[0], object.word)), "{page}");
            for form in object.forms_of(verb.verb) {
                for setting in form.setting_list(object) {
                    assert!(page.contains(setting.name), "{}", setting.name);
                }
                for word in form.operations.iter().flat_map(|operation| operation.words).copied().flatten() {
                    assert!(page.contains(word), "{word}");
                }
            }
        }
    }
    for object in OBJECTS {
        let page = help(None, Some(object.object));
        for attribute in object.attributes {
            assert!(page.contains(attribute.name) && page.contains(attribute.about), "{}", attribute.name);
        }
    }
}
