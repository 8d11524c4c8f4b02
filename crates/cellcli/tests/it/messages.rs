//! What is said of wrong statements, and the limits of the language. Method: each statement is parsed and the whole message, with
//! place and hint, compared with a snapshot.
#![expect(clippy::unwrap_used, reason = "tests")]

use cellcli::{STATEMENTS_MAX, WHERE_COMPARISONS_MAX, parse_one, parse_script};
use expect_test::{Expect, expect};

fn check_errors(statements: &[&str], expect: &Expect) {
    let mut text = String::new();
    for statement in statements {
        match parse_one(statement) {
            Ok(command) => panic!("{statement} was taken for {command}"),
            Err(error) => text.push_str(&format!("{}\n\n", error.render(statement))),
        }
    }
    expect.assert_eq(&text);
}

#[test]
fn errors_of_words() {
    check_errors(
        &[
            "",
            "lst cell",
            "desc cell",
            "list",
            "list griddsk",
            "list tablespace",
            "create cell",
            "drop metriccurrent",
            "'list' cell",
            "help me",
            "list cell; list cell",
        ],
        &expect![[r#"
            CELL-01504: Invalid command syntax: expected a statement, found nothing.

            CELL-01504: Invalid command syntax: no command begins with lst.
              lst cell
              ^
            hint: did you mean LIST?

            CELL-01504: Invalid command syntax: no command begins with desc.
              desc cell
              ^
            hint: did you mean DESCRIBE?

            CELL-01504: Invalid command syntax: expected an object type, found the end of the statement.
              list
                  ^

            CELL-01504: Invalid command syntax: griddsk is not an object type.
              list griddsk
                   ^
            hint: did you mean GRIDDISK?

            CELL-01504: Invalid command syntax: tablespace is not an object type.
              list tablespace
                   ^
            hint: HELP lists the object types

            CELL-01504: Invalid command syntax: CELL does not take CREATE.
              create cell
                     ^
            hint: HELP CELL shows what it takes

            CELL-01504: Invalid command syntax: METRICCURRENT does not take DROP.
              drop metriccurrent
                   ^
            hint: HELP METRICCURRENT shows what it takes

            CELL-01504: Invalid command syntax: expected a command, found 'list'.
              'list' cell
              ^

            CELL-01504: Invalid command syntax: no command begins with me.
              help me
                   ^
            hint: HELP lists the commands

            CELL-01504: Invalid command syntax: expected the end of the text, found another statement.
              list cell; list cell
                         ^

        "#]],
    );
}

#[test]
fn errors_of_list() {
    check_errors(
        &[
            "list griddisk where sise > 5",
            "list griddisk attributes name,",
            "list griddisk attributes name status",
            "list griddisk where name == a",
            "list griddisk where name",
            "list griddisk where (name = a",
            "list griddisk where name like '(a'",
            "list griddisk where size > 12345678901234567890123",
            "list griddisk where size > 0.3K",
            "list griddisk limit -1",
            "list griddisk limit 99999999999999999999",
            "list griddisk order size",
            "list griddisk detail detail",
            "list griddisk a b",
            "list griddisk 'a",
            "list griddisk a- b",
            "list griddisk where name in (a b)",
            "list griddisk over 5",
            "list metrichistory over",
            "list metrichistory over 0",
            "list metrichistory over 5 max, max",
        ],
        &expect![[r#"
            CELL-09001: GRIDDISK has no attribute sise.
              list griddisk where sise > 5
                                  ^
            hint: did you mean size?

            CELL-01504: Invalid command syntax: expected an attribute, found the end of the statement.
              list griddisk attributes name,
                                            ^

            CELL-01504: Invalid command syntax: expected WHERE, ATTRIBUTES, DETAIL, ORDER BY, LIMIT or the end of the statement, found status.
              list griddisk attributes name status
                                            ^

            CELL-01504: Invalid command syntax: expected a value, found '='.
              list griddisk where name == a
                                        ^

            CELL-01504: Invalid command syntax: expected =, !=, <, <=, >, >=, LIKE, IN, NOT LIKE or NOT IN, found the end of the statement.
              list griddisk where name
                                      ^

            CELL-01504: Invalid command syntax: expected ')', found the end of the statement.
              list griddisk where (name = a
                                           ^

            CELL-09004: The LIKE pattern is not usable: found open group without closing ')'.
              list griddisk where name like '(a'
                                            ^
            hint: LIKE takes a regular expression over the whole value, as in 'FC_IO.*'

            CELL-09003: size takes a number, a size in whole bytes, or text in quotes, not 12345678901234567890123.
              list griddisk where size > 12345678901234567890123
                                         ^

            CELL-09003: size takes a number, a size in whole bytes, or text in quotes, not 0.3K.
              list griddisk where size > 0.3K
                                         ^

            CELL-09003: LIMIT takes a number of objects, not -1.
              list griddisk limit -1
                                  ^

            CELL-09003: LIMIT takes a number of objects, not 99999999999999999999.
              list griddisk limit 99999999999999999999
                                  ^

            CELL-01504: Invalid command syntax: expected BY, found size.
              list griddisk order size
                                  ^

            CELL-01504: Invalid command syntax: DETAIL is given twice.
              list griddisk detail detail
                                   ^

            CELL-01504: Invalid command syntax: expected WHERE, ATTRIBUTES, DETAIL, ORDER BY, LIMIT or the end of the statement, found b.
              list griddisk a b
                              ^

            CELL-01504: Invalid command syntax: the quote is not closed on this line.
              list griddisk 'a
                            ^
            hint: a quote inside quotes is written twice

            CELL-01504: Invalid command syntax: a hyphen must be part of a word or end the line.
              list griddisk a- b
                             ^
            hint: put quotes around a name or path with such a hyphen

            CELL-01504: Invalid command syntax: expected ',', found b.
              list griddisk where name in (a b)
                                             ^

            CELL-01504: Invalid command syntax: expected WHERE, ATTRIBUTES, DETAIL, ORDER BY, LIMIT or the end of the statement, found 5.
              list griddisk over 5
                                 ^

            CELL-01504: Invalid command syntax: expected a number of minutes, found the end of the statement.
              list metrichistory over
                                     ^

            CELL-09003: OVER takes from 1 to 527040 minutes, not 0.
              list metrichistory over 0
                                      ^

            CELL-01504: Invalid command syntax: MAX is given twice.
              list metrichistory over 5 max, max
                                             ^

        "#]],
    );
}

#[test]
fn errors_of_changes() {
    check_errors(
        &[
            "create griddisk",
            "create griddisk all flashdisk",
            "create griddisk all prefx=a",
            "create griddisk a size=1G",
            "create griddisk a, b celldisk=c",
            "create griddisk a celldisk=c, size=lots",
            "create griddisk a celldisk=c cachingMode=writeback",
            "create griddisk a celldisk=c celldisk=d",
            "create griddisk a celldisk=c,",
            "create griddisk a celldisk=''",
            "alter griddisk a name=\"\"",
            "alter griddisk a wehre status = active",
            "create flashcache",
            "create flashcache size=1g",
            "create flashcache all flashdisk",
            "alter griddisk a",
            "alter griddisk a status=active",
            "alter griddisk a id=7",
            "alter griddisk a comment=x inactive",
            "alter griddisk a thaw force",
            "alter griddisk a active inactive",
            "alter griddisk a cancel",
            "alter flashcache size=1g",
            "alter flashcache",
            "alter flashcache all size=1g flush",
            "alter cell shutdown services everything",
            "alter cell shutdown",
            "drop griddisk",
            "drop griddisk a nowait",
            "drop flashcache forse",
            "drop flashcache force force",
        ],
        &expect![[r#"
            CELL-01504: Invalid command syntax: expected ALL or a name, found the end of the statement.
              create griddisk
                             ^

            CELL-09005: CREATE GRIDDISK needs prefix=name.
              create griddisk all flashdisk
                                           ^
            hint: HELP CREATE GRIDDISK shows the syntax

            CELL-09001: CREATE GRIDDISK has no option prefx.
              create griddisk all prefx=a
                                  ^
            hint: did you mean prefix?

            CELL-09005: CREATE GRIDDISK needs cellDisk=name.
              create griddisk a size=1G
                                       ^
            hint: HELP CREATE GRIDDISK shows the syntax

            CELL-01504: Invalid command syntax: expected option=value or the end of the statement, found b.
              create griddisk a, b celldisk=c
                                 ^

            CELL-09003: size takes a size in whole bytes such as 288G or 512M, not lots.
              create griddisk a celldisk=c, size=lots
                                                 ^

            CELL-09003: cachingMode takes write-through, write-back, write-back-ordered, write-around or none, not writeback.
              create griddisk a celldisk=c cachingMode=writeback
                                                       ^

            CELL-01504: Invalid command syntax: cellDisk is given twice.
              create griddisk a celldisk=c celldisk=d
                                           ^

            CELL-01504: Invalid command syntax: expected an option, found the end of the statement.
              create griddisk a celldisk=c,
                                           ^

            CELL-01504: Invalid command syntax: expected a value for cellDisk, found an empty text.
              create griddisk a celldisk=''
                                         ^

            CELL-01504: Invalid command syntax: expected a value for name, found an empty text.
              alter griddisk a name=""
                                    ^

            CELL-01504: Invalid command syntax: expected option=value, ACTIVE, INACTIVE, FLUSH, CANCEL FLUSH, FREEZE, THAW, FORCE, NOWAIT, WHERE or the end of the statement, found wehre.
              alter griddisk a wehre status = active
                               ^
            hint: did you mean WHERE?

            CELL-01504: Invalid command syntax: expected ALL or cellDisk=list, found the end of the statement.
              create flashcache
                               ^

            CELL-09005: CREATE FLASHCACHE needs cellDisk=list.
              create flashcache size=1g
                                       ^
            hint: HELP CREATE FLASHCACHE shows the syntax

            CELL-01504: Invalid command syntax: expected option=value or the end of the statement, found flashdisk.
              create flashcache all flashdisk
                                    ^

            CELL-01504: Invalid command syntax: ALTER GRIDDISK does not say what to change.
              alter griddisk a
                              ^
            hint: HELP ALTER GRIDDISK shows the syntax

            CELL-09002: status of GRIDDISK cannot be changed.
              alter griddisk a status=active
                               ^
            hint: DESCRIBE GRIDDISK marks what can be changed

            CELL-09002: id of GRIDDISK cannot be changed.
              alter griddisk a id=7
                               ^
            hint: DESCRIBE GRIDDISK marks what can be changed

            CELL-01504: Invalid command syntax: comment cannot be set together with INACTIVE.
              alter griddisk a comment=x inactive
                               ^

            CELL-01504: Invalid command syntax: FORCE has no meaning here.
              alter griddisk a thaw force
                                    ^

            CELL-01504: Invalid command syntax: an operation is given twice.
              alter griddisk a active inactive
                                      ^

            CELL-01504: Invalid command syntax: expected FLUSH, found the end of the statement.
              alter griddisk a cancel
                                     ^

            CELL-09005: size needs cellDisk here.
              alter flashcache size=1g
                                      ^

            CELL-01504: Invalid command syntax: ALTER FLASHCACHE does not say what to change.
              alter flashcache
                              ^
            hint: HELP ALTER FLASHCACHE shows the syntax

            CELL-01504: Invalid command syntax: size cannot be set together with FLUSH.
              alter flashcache all size=1g flush
                                   ^

            CELL-01504: Invalid command syntax: expected RS or MS or CELLSRV or ALL, found everything.
              alter cell shutdown services everything
                                           ^

            CELL-01504: Invalid command syntax: expected SERVICES, found the end of the statement.
              alter cell shutdown
                                 ^

            CELL-01504: Invalid command syntax: expected ALL or a name, found the end of the statement.
              drop griddisk
                           ^

            CELL-01504: Invalid command syntax: NOWAIT has no meaning here.
              drop griddisk a nowait
                              ^

            CELL-01504: Invalid command syntax: expected FORCE or the end of the statement, found forse.
              drop flashcache forse
                              ^
            hint: did you mean FORCE?

            CELL-01504: Invalid command syntax: FORCE is given twice.
              drop flashcache force force
                                    ^

        "#]],
    );
}

#[test]
fn errors_of_session_statements() {
    check_errors(
        &[
            "set",
            "set dateformat iso",
            "set echo maybe",
            "spool a b",
            "start",
            "start ''",
            "exit now",
            "describe",
            "describe cell detail",
        ],
        &expect![[r#"
            CELL-01504: Invalid command syntax: expected DATEFORMAT or ECHO, found the end of the statement.
              set
                 ^

            CELL-01504: Invalid command syntax: expected LOCAL or STANDARD, found iso.
              set dateformat iso
                             ^

            CELL-01504: Invalid command syntax: expected the end of the statement, found maybe.
              set echo maybe
                       ^

            CELL-01504: Invalid command syntax: expected the end of the statement, found b.
              spool a b
                      ^

            CELL-01504: Invalid command syntax: expected a name, found the end of the statement.
              start
                   ^

            CELL-01504: Invalid command syntax: expected a name, found an empty text.
              start ''
                    ^

            CELL-01504: Invalid command syntax: expected the end of the statement, found now.
              exit now
                   ^

            CELL-01504: Invalid command syntax: expected an object type, found the end of the statement.
              describe
                      ^

            CELL-01504: Invalid command syntax: expected the end of the statement, found detail.
              describe cell detail
                            ^

        "#]],
    );
}

/// Long or wide input is shown cut, with the mark still under the place.
#[test]
fn messages_stay_short() {
    let statement = format!("list griddisk where comment = '{}' and größe = 5", "ä".repeat(500));
    let error = parse_one(&statement).unwrap_err();
    expect![[r#"
        CELL-09001: GRIDDISK has no attribute größe.
          ääääääääääääääääääääääääääääääääääääääääääääääääääääää' and größe = 5
                                                                      ^
        hint: DESCRIBE GRIDDISK lists the attributes"#]]
    .assert_eq(&error.render(&statement));
    let long_word = "x".repeat(10_000);
    assert!(parse_one(&long_word).unwrap_err().render(&long_word).len() < 500);
}

#[test]
fn limits_are_told() {
    let nested = format!("list cell where {}name = a{}", "(".repeat(33), ")".repeat(33));
    assert_eq!(
        parse_one(&nested).unwrap_err().to_string(),
        "CELL-09006: The statement is too large: the nesting of parentheses is limited to 32."
    );
    assert!(parse_one(&nested.replacen('(', "", 1).replacen(')', "", 1)).is_ok());
    let many = parse_script(&"exit;".repeat(STATEMENTS_MAX + 5)).len();
    assert_eq!(many, STATEMENTS_MAX + 1);
    let script = "exit;".repeat(STATEMENTS_MAX + 1);
    assert_eq!(
        parse_script(&script).pop().unwrap().command.unwrap_err().to_string(),
        "CELL-09006: The statement is too large: the number of statements is limited to 10000."
    );
    let condition = |count| format!("list cell where {}", vec!["name = a"; count].join(" or "));
    assert!(parse_one(&condition(WHERE_COMPARISONS_MAX)).is_ok());
    assert_eq!(
        parse_one(&condition(WHERE_COMPARISONS_MAX + 1)).unwrap_err().to_string(),
        "CELL-09006: The statement is too large: the number of comparisons is limited to 256."
    );
    let pattern = format!("list cell where name like '{}'", "a".repeat(1025));
    assert_eq!(
        parse_one(&pattern).unwrap_err().to_string(),
        "CELL-09006: The statement is too large: the length of a LIKE pattern in bytes is limited to 1024."
    );
}
