//! Comparison with files that a person has reviewed.

use std::path::PathBuf;

/// Compares with the file of that name; `COLLCAST_UPDATE=1` writes it instead.
pub(crate) fn check_golden(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("COLLCAST_UPDATE").is_some() {
        std::fs::write(&path, actual).expect("the folder of golden files can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{name} is not as reviewed; if the change is meant, run with COLLCAST_UPDATE=1 and review \
         the difference. Now:\n{actual}"
    );
}
