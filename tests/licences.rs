//! What the dependency tree may be used under.

use std::collections::BTreeSet;
use std::process::Command;

/// The ways to meet a licence, as SPDX has them: each a set of licences that hold together.
///
/// Covers what crates write: parts joined by AND, each alternatives joined by OR or `/`.
fn ways(expression: &str) -> Vec<BTreeSet<String>> {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], "");
    let mut ways = vec![BTreeSet::new()];
    for part in plain.split(" AND ") {
        let with = |licence: &str, way: &BTreeSet<String>| {
            let mut way = way.clone();
            way.insert(licence.trim().to_owned());
            way
        };
        ways = part.split(" OR ").flat_map(|licence| ways.iter().map(move |way| with(licence, way))).collect();
    }
    ways
}

/// Goal: every crate of the tree can be used under licences that `deny.toml` allows, and none is on its list for nothing.
#[test]
fn licences_are_those_that_are_allowed() {
    let text = std::fs::read_to_string("deny.toml").unwrap();
    let table: toml::Table = text.parse().unwrap();
    let allowed: BTreeSet<String> = table["licenses"]["allow"].clone().try_into().unwrap();
    // What other platforms need may not be here: no crate is fetched for this.
    let rustc = Command::new("rustc").arg("-vV").output().unwrap();
    let rustc = String::from_utf8(rustc.stdout).unwrap();
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let args = ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host];
    let out = Command::new(env!("CARGO")).args(args).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "{} packages", packages.len());
    let mut spare = allowed.clone();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        let met: Vec<_> = ways(licence).into_iter().filter(|way| way.is_subset(&allowed)).collect();
        assert!(!met.is_empty(), "{} {}: {licence}", package["name"], package["version"]);
        spare.retain(|one| !met.iter().any(|way| way.contains(one)));
    }
    assert!(spare.is_empty(), "no crate needs {spare:?}");
}
