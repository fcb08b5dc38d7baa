//! Goal: every crate could be published as it is: it says what it is, names the versions of ours that it uses, and what its code
//! takes in is part of its package.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn cargo(words: &[&str]) -> String {
    let out = Command::new(env!("CARGO")).args(words).args(["--offline", "--locked"]).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Files that code takes in, relative to the crate.
fn taken_in(folder: &Path, packaged: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let code = |file: &&PathBuf| file.starts_with("src") && file.extension().is_some_and(|e| e == "rs");
    for file in packaged.iter().filter(code).filter(|file| !file.ends_with("tests.rs")) {
        let whole = std::fs::read_to_string(folder.join(file)).unwrap();
        // Tests are not built from a package.
        let text = whole.split("#[cfg(test)]").next().unwrap();
        for call in ["include_str!(\"", "include_bytes!(\""] {
            for name in text.split(call).skip(1).map(|rest| rest.split('"').next().unwrap()) {
                let place = folder.join(file).parent().unwrap().join(name).canonicalize().unwrap();
                all.push(place.strip_prefix(folder).unwrap_or(&place).to_owned());
            }
        }
    }
    all
}

/// Goal: the wheel takes what the tests of the workspace have built: all that it is made of has the same features there.
#[test]
fn the_wheel_is_built_of_what_tests_are_built_of() {
    let features = |of: &[&str]| -> BTreeSet<String> {
        let tree = cargo(&[&["tree", "--prefix", "none", "-f", "{p} {f}"], of].concat());
        tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
    };
    let wheel = features(&["-p", "collcast-python", "-e", "normal,build"]);
    let all = features(&["--workspace", "-e", "normal,build,dev"]);
    let missing: Vec<&String> = wheel.difference(&all).collect();
    assert!(missing.is_empty(), "name the features that tests turn on in src/python/Cargo.toml: {missing:?}");
    assert!(wheel.len() > 50, "{wheel:?}");
}

#[test]
fn crates_are_ready_to_publish() {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])).unwrap();
    let mut published = 0;
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        if package["publish"].as_array().is_some_and(Vec::is_empty) {
            assert_eq!(name, "collcast-python", "{name} is published by nobody");
            continue;
        }
        published += 1;
        for key in ["description", "license", "rust_version"] {
            assert!(package[key].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {key}");
        }
        for (key, most) in [("keywords", 5), ("categories", 5)] {
            let count = package[key].as_array().unwrap().len();
            assert!((1..=most).contains(&count), "{name} has {count} {key}");
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            assert_ne!(dependency["req"], "*", "{name} names no version of {}", dependency["name"]);
        }
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let list = cargo(&["package", "-p", name, "--list", "--allow-dirty", "--no-verify"]);
        let packaged: BTreeSet<PathBuf> = list.lines().map(PathBuf::from).collect();
        assert!(packaged.contains(Path::new("src/lib.rs")), "{name}: {list}");
        for file in taken_in(folder, &packaged) {
            assert!(packaged.contains(&file), "{name}: {} is not in its package", file.display());
        }
        let bytes: u64 =
            packaged.iter().filter_map(|file| folder.join(file).metadata().ok()).map(|file| file.len()).sum();
        assert!(bytes < 10 << 20, "{name} has {bytes} bytes; a registry takes 10 MiB, compressed");
    }
    assert_eq!(published, 7);
}
