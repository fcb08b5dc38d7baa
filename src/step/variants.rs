//! The variants of a scenario.

use collcast_scenarios::file;

use super::request::Request;
use crate::error::Error;

/// Most variants of one question.
const MAX_VARIANTS: usize = 200;

/// The scenario as it is, or one for each combination of `--vary key=a,b,c`, with a label.
pub(super) fn variants(request: &Request) -> Result<Vec<(String, String)>, Error> {
    let Request { text, name, vary, .. } = request;
    let mut all = vec![(String::new(), text.clone())];
    for one in vary {
        let Some((key, values)) = one.split_once('=') else {
            return Err(Error::usage(
                format!("--vary {one} has no value"),
                "give --vary key=a,b,c, such as --vary \"data_parallel.bucket=5 MiB,25 MiB\"",
            ));
        };
        let mut more = Vec::new();
        for (label, text) in &all {
            for value in values.split(',').map(str::trim) {
                let changed = file::with_value(text, key.trim(), value)
                    .map_err(|e| Error::usage(format!("--vary {one}: {e}"), "keys are dotted: layers.0.count"))?;
                if is_unknown(&changed, key.trim()) {
                    meant(text, key.trim(), value)?;
                }
                let comma = if label.is_empty() { "" } else { ", " };
                more.push((format!("{label}{comma}{key}={value}"), changed));
            }
        }
        all = more;
        if all.len() > MAX_VARIANTS {
            return Err(Error::usage(
                format!("{name} has {} variants; at most {MAX_VARIANTS} are run", all.len()),
                "vary fewer values",
            ));
        }
    }
    check_tensor(text, name, &all, vary)?;
    Ok(all)
}

/// Tables of a scenario whose keys a reader may name without the table.
const TABLES: [&str; 6] = ["machine", "layout", "data_parallel", "communication", "model", "jitter"];

/// Whether a scenario is refused for a key.
fn is_unknown(text: &str, key: &str) -> bool {
    file::read(text, "").is_err_and(|error| error.to_string().contains(&format!("the key `{key}` is not known")))
}

/// Refuses a key that a table of the scenario has, with its whole name.
fn meant(text: &str, key: &str, value: &str) -> Result<(), Error> {
    let is_whole = |whole: &String| file::with_value(text, whole, value).is_ok_and(|text| !is_unknown(&text, key));
    TABLES.iter().map(|table| format!("{table}.{key}")).find(is_whole).map_or(Ok(()), |whole| {
        Err(Error::usage(format!("--vary {key}: a scenario has no such key"), format!("did you mean `{whole}`?")))
    })
}

/// Refuses another number of tensor-parallel ranks with the same layers, which say what one of them computes.
fn check_tensor(text: &str, name: &str, variants: &[(String, String)], vary: &[String]) -> Result<(), Error> {
    if !vary.iter().any(|v| v.starts_with("layout.tensor")) || vary.iter().any(|v| v.starts_with("layers.")) {
        return Ok(());
    }
    let own = file::read(text, name)?.layout.tensor;
    for (label, text) in variants {
        if file::read(text, &format!("{name} with {label}"))?.layout.tensor != own {
            return Err(Error::usage(
                format!(
                    "--vary {label}: layers say what one of {own} tensor-parallel ranks computes, and would with any number of them"
                ),
                "vary the times or shapes of layers too (--vary layers.0.forward=...), or write a scenario for each number",
            ));
        }
    }
    Ok(())
}
