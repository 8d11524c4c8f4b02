//! `docs/cellcli.md` is what the table says. Goal: nobody reads of a statement that is not there, or misses one that is.

use expect_test::expect_file;

#[test]
fn the_page_is_current() {
    expect_file!["../../../../docs/cellcli.md"].assert_eq(&cellcli::reference());
}

#[test]
fn every_code_is_on_the_page() {
    let page = cellcli::reference();
    for code in cellcli::ErrorCode::ALL {
        assert!(page.contains(&format!("| {code} | ")), "{code}");
    }
}
