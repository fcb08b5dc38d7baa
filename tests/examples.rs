//! Goal: programs that use the library do what they say, without the command line.
//! Method: the examples, which `cargo test` builds beside the tests, run from a clone.

use std::path::Path;
use std::process::Command;

/// What an example prints.
fn printed(name: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_collcast")).with_file_name("examples").join(name);
    assert!(
        program.exists(),
        "{} is not built: cargo build --examples, or cargo test without --test",
        program.display()
    );
    let out = Command::new(program).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let (text, told) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr).into_owned());
    assert!(out.status.success(), "{name}: {told}");
    text
}

#[test]
fn forecast_says_how_long() {
    let text = printed("forecast");
    assert!(text.contains("# topology dgx-h100: 2 hosts x 8 H100"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" GB/s, bound by ")).count(), 8, "{text}");
}

#[test]
fn own_algorithm_is_forecast_beside_nccl() {
    let text = printed("own_algorithm");
    assert!(text.starts_with("all pairs ") && text.contains("NCCL's choice"), "{text}");
}

#[test]
fn diagnose_names_the_fault() {
    let text = printed("diagnose");
    assert!(text.starts_with("peer_access_off (error)"), "{text}");
}

#[test]
fn every_question_has_an_answer() {
    // Lines end where a screen does.
    let text = printed("questions").split_whitespace().collect::<Vec<_>>().join(" ");
    let answers = [
        "ok: a step takes",
        "goodput 5.",
        "rdma takes",
        "likely cause: peer_access_off",
        "B is slower in",
        "NCCL's choice stands",
        "parameters fitted to",
        "elements exact",
        "coll=\"allreduce\"",
    ];
    for answer in answers {
        assert!(text.contains(answer), "`{answer}` is missing in\n{text}");
    }
}
