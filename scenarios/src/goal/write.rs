//! To text.

use std::fmt::Write as _;

use super::model::{Goal, What};

/// The schedule as text, with `comment` above it.
pub fn write(goal: &Goal, comment: &str) -> String {
    let mut out = String::new();
    for line in comment.lines() {
        let _ = writeln!(out, "// {line}");
    }
    let _ = writeln!(out, "num_ranks {}", goal.ranks.len());
    for (rank, operations) in goal.ranks.iter().enumerate() {
        let _ = writeln!(out, "\nrank {rank} {{");
        for (place, operation) in operations.iter().enumerate() {
            let any = |value: Option<u32>| value.map_or_else(|| "-1".to_owned(), |value| value.to_string());
            let _ = match operation.what {
                What::Send { bytes, to, tag } => write!(out, "l{place}: send {bytes}b to {to} tag {tag}"),
                What::Recv { bytes, from, tag } => {
                    write!(out, "l{place}: recv {bytes}b from {} tag {}", any(from), any(tag))
                }
                What::Calc(ns) => write!(out, "l{place}: calc {ns}"),
            };
            if operation.cpu > 0 {
                let _ = write!(out, " cpu {}", operation.cpu);
            }
            if operation.nic > 0 && !matches!(operation.what, What::Calc(_)) {
                let _ = write!(out, " nic {}", operation.nic);
            }
            out.push('\n');
        }
        // Labels are defined before they are used, whatever the order of the operations.
        for (place, operation) in operations.iter().enumerate() {
            for other in &operation.requires {
                let _ = writeln!(out, "l{place} requires l{other}");
            }
            for other in &operation.irequires {
                let _ = writeln!(out, "l{place} irequires l{other}");
            }
        }
        out.push_str("}\n");
    }
    out
}
