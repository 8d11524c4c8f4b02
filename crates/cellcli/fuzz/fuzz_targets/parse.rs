//! The parser on any text: it never panics, positions lie inside the text, messages keep their form, and what parses
//! prints to text that parses to the same command. Completion runs on the same text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for statement in cellcli::parse_script(text) {
        assert!(statement.position.offset_bytes <= text.len());
        match statement.command {
            Ok(command) => {
                let printed = command.to_string();
                assert_eq!(cellcli::parse_one(&printed), Ok(command), "{printed}");
            }
            Err(error) => assert!(error.render(text).starts_with("CELL-0")),
        }
    }
    let _ = cellcli::needs_continuation(text);
    let _ = cellcli::complete(text, text.len(), &|_| vec!["name".to_owned()]);
});
