//! `flashcell redo` as it is typed: what goes to which stream, exit codes, the forms of `--json`. What is computed is tested in `lab`.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::process::{Command, Stdio};

/// Run it in a directory with something on standard input: exit code, stdout, stderr.
fn redo(dir: &std::path::Path, args: &[&str], stdin: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_flashcell"))
        .arg("redo")
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn typed() {
    let dir = std::env::temp_dir().join(format!("flashcell-test-{}-redo", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("a"), "452\n500\n567\n").unwrap();
    std::fs::write(dir.join("b"), "435\n481\n535\n").unwrap();

    let (code, text, talk) = redo(&dir, &["summary", "a"], "");
    assert_eq!((code, talk.as_str()), (0, ""));
    assert!(text.contains("   Min. 1st Qu.  Median    Mean 3rd Qu.    Max."), "{text}");
    let (code, piped, _) = redo(&dir, &["summary", "-", "--unit", "ms"], "0.452\n0.5\n0.567\n");
    assert_eq!((code, piped.replace("standard input", "a")), (0, text));

    // Alone it is the answer, wherever it stands; with a name it is written beside the text.
    let (_, answer, _) = redo(&dir, &["summary", "a", "--json"], "");
    assert!(answer.starts_with("{\"count\":3,\"min\":452,"), "{answer}");
    assert_eq!(redo(&dir, &["summary", "--json", "a"], "").1, answer);
    for form in [&["--json", "out.json"][..], &["--json=out.json"][..]] {
        let (code, text, _) = redo(&dir, &[&["summary", "a"], form].concat(), "");
        assert_eq!(code, 0);
        assert!(text.contains("Median"), "{text}");
        assert_eq!(std::fs::read_to_string(dir.join("out.json")).unwrap(), answer);
        std::fs::remove_file(dir.join("out.json")).unwrap();
    }
    let (_, answer, _) = redo(&dir, &["compare", "--json", "a", "b"], "");
    assert!(answer.starts_with("{\"a\":{\"count\":3,\"min\":452,") && answer.contains("\n\"t\":"), "{answer}");
    let (code, _, _) = redo(&dir, &["compare", "a", "b", "--svg", "out.svg"], "");
    assert!(code == 0 && std::fs::read_to_string(dir.join("out.svg")).unwrap().starts_with("<svg "));

    let (code, text, talk) = redo(&dir, &["summary", "missing"], "");
    assert_eq!((code, text.as_str()), (1, ""));
    assert!(talk.starts_with("flashcell: missing: "), "{talk}");
    for usage in
        [&["summary"][..], &["compare", "a"], &["summary", "a", "--outlier", "500"], &["summary", "a", "--unit", "h"]]
    {
        assert_eq!(redo(&dir, usage, "").0, 2, "{usage:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
