//! Built-in scenarios: files to run and to start from.

/// Name and text of each.
const BUILTIN: &[(&str, &str)] = &[
    ("ten-and-twelve", include_str!("../data/ten-and-twelve.toml")),
];

/// The text of a built-in scenario.
pub fn text(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}

/// Names of all of them.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}
