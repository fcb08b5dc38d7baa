//! The `.toml` beside a data file: what the file itself cannot say.

use std::path::Path;

use collcast_sim::collective::{Collective, Launch, nearest};
use collcast_sim::measurement::Timing;

use super::error::ReadError;
use super::settings::{Env, is_relevant, plain_version};

/// Keys that change what is read.
const KEYS: [&str; 12] = [
    "topology",
    "nccl_version",
    "env",
    "ranks",
    "nodes",
    "gpus_per_node",
    "collective",
    "launch",
    "calls",
    "timed",
    "hosts_at_most",
    "publisher",
];

/// Keys that document; they are free, and listed so that no other key is taken for a typo.
const PROSE: [&str; 20] = [
    "title",
    "source",
    "date",
    "interconnect",
    "nics_per_node",
    "nic_gbit_per_s",
    "notes",
    "note",
    "confidence",
    "licence",
    "license",
    "driver",
    "cuda",
    "plugin",
    "name",
    "schema",
    "assumed",
    "choice",
    "stated",
    "transport",
];

/// What the sibling file says.
#[derive(Debug, Default, Clone)]
pub(super) struct Sidecar {
    pub(super) topology: Option<String>,
    pub(super) nccl: Option<String>,
    pub(super) env: Env,
    pub(super) ranks: Option<u32>,
    pub(super) nodes: Option<u32>,
    pub(super) gpus_per_node: Option<u32>,
    pub(super) collective: Option<Collective>,
    pub(super) launch: Option<Launch>,
    pub(super) timing: Option<Timing>,
    pub(super) hosts_at_most: Option<u32>,
    pub(super) publisher: Option<String>,
    /// The GPUs that ran it, where it is as we write it; free text names none.
    pub(super) gpu: Option<String>,
    /// Measured by our back end of CPU threads.
    pub(super) on_cpu: bool,
    pub(super) notes: Vec<String>,
}

/// Reads it. Unknown keys are free text, unless they look like a misspelt key.
pub(super) fn parse(path: &Path, text: &str) -> Result<Sidecar, ReadError> {
    let table: toml::Table = text.parse().map_err(|error| syntax(path, text, &error))?;
    let mut sidecar = Sidecar::default();
    // A profile that was fitted to the data, say, which has its own `ranks`.
    let own = table.get("schema").and_then(toml::Value::as_str).and_then(|schema| schema.strip_prefix("collcast/"));
    if own.is_some_and(|kind| !kind.starts_with("measurements/")) {
        return Ok(sidecar);
    }
    for (key, value) in &table {
        let bad = |expected: &'static str| ReadError::BadValue {
            path: path.to_owned(),
            line: line_of_key(text, key),
            column: shortened(key),
            given: shortened(&value.to_string()),
            problem: "not usable".to_owned(),
            expected,
        };
        let count = |expected: &'static str| {
            value
                .as_integer()
                .and_then(|count| u32::try_from(count).ok())
                .filter(|&count| count > 0)
                .map(Some)
                .ok_or_else(|| bad(expected))
        };
        let name = || value.as_str().ok_or_else(|| bad("a name in quotes"));
        match key.as_str() {
            "topology" => {
                // A topology file beside this one, or whatever else names a machine.
                let beside = path.with_file_name(name()?);
                let is_file = beside.is_file();
                sidecar.topology = Some(if is_file { beside.display().to_string() } else { name()?.to_owned() });
            }
            "ranks" => sidecar.ranks = count("a number of ranks, such as 16")?,
            "nodes" => sidecar.nodes = count("a number of hosts, such as 2")?,
            "gpus_per_node" => {
                sidecar.gpus_per_node = count("a number of GPUs, such as 8")?;
            }
            "calls" => {
                let timing = sidecar.timing.get_or_insert_default();
                timing.calls = count("calls of the timed loop, such as 20")?.unwrap_or(timing.calls);
            }
            "timed" => {
                let of_rank_0 = match name()? {
                    "rank 0" => true,
                    "all ranks" => false,
                    _ => return Err(bad("\"rank 0\" or \"all ranks\"")),
                };
                sidecar.timing.get_or_insert_default().of_rank_0 = of_rank_0;
            }
            "hosts_at_most" => sidecar.hosts_at_most = count("a number of hosts, such as 8")?,
            "publisher" => sidecar.publisher = Some(name()?.to_owned()),
            "collective" => {
                sidecar.collective = Some(name()?.parse().map_err(|_| bad("a collective"))?);
            }
            "launch" => {
                sidecar.launch = Some(name()?.parse().map_err(|_| bad("single_thread, threads, processes or graph"))?);
            }
            "nccl_version" => {
                let text = name()?;
                sidecar.nccl = plain_version(text);
                if sidecar.nccl.is_none() && !text.to_lowercase().starts_with("not stated") {
                    sidecar.notes.push(format!("nccl_version `{text}` is not one version; left open"));
                }
            }
            "env" => sidecar.environment(value.as_table().ok_or_else(|| bad("a table [env]"))?),
            "host" => sidecar.on_cpu = value.as_str().is_some_and(|text| text.contains("no GPU is involved")),
            "gpu" => sidecar.gpu = value.as_str().and_then(counted_gpu),
            other if PROSE.contains(&other) => {}
            other => {
                if let Some(known) = nearest(other, KEYS) {
                    sidecar.notes.push(format!("key `{other}` is not used, did you mean `{known}`?"));
                }
            }
        }
    }
    Ok(sidecar)
}

impl Sidecar {
    /// Takes the variables of `[env]`.
    fn environment(&mut self, table: &toml::Table) {
        for (name, value) in table {
            let value = match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            // A remark in brackets after the value is for people.
            let plain = match value.split_once(" (") {
                Some((plain, remark)) if remark.ends_with(')') => {
                    if is_relevant(name) {
                        let text = format!("{name} = `{value}` is read as `{plain}`");
                        self.notes.push(text);
                    }
                    plain.to_owned()
                }
                _ => value,
            };
            self.env.insert(name.clone(), plain);
        }
    }
}

/// The GPU of `4 x NVIDIA H100 80GB HBM3, sm_90, ...`.
pub(super) fn counted_gpu(text: &str) -> Option<String> {
    let (count, name) = text.split_once(" x ")?;
    count.parse::<u32>().ok()?;
    let name = name.split([',', ';']).next().map(str::trim).filter(|name| !name.is_empty())?;
    Some(shortened(name))
}

/// What is no TOML, with its place.
fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> ReadError {
    let offset = error.span().map_or(0, |span| span.start).min(text.len());
    let before = text.get(..offset).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    ReadError::Syntax {
        path: path.to_owned(),
        format: "TOML",
        line: before.matches('\n').count() as u64 + 1,
        column: (offset - line_start) as u64 + 1,
        message: message(error.message().to_owned()),
    }
}

fn line_of_key(text: &str, key: &str) -> u64 {
    text.lines()
        .position(|line| {
            let line = line.trim_start().trim_start_matches('[');
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', ']', '.']))
        })
        .map_or(1, |index| index as u64 + 1)
}

/// At most the first 60 characters: enough of a file's words to find them.
pub(super) fn shortened(text: &str) -> String {
    bounded(text.chars().take(61).collect(), 60)
}

/// A message, which may quote a file, at a length that can be read.
pub(super) fn message(text: String) -> String {
    bounded(text, 400)
}

fn bounded(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is said is used, prose is free, slips are named with their place.
    #[test]
    fn metadata_is_used_and_slips_are_named() {
        let path = Path::new("x.toml");
        let text = "title = \"t\"\ntopology = \"aws-p5\"\nnccl_version = \"2.26.2+cuda12.8\"\nranks = 16\ncalls = 100\ntimed = \"rank 0\"\ntopolgy = 1\n[env]\nNCCL_ALGO = \"NVLS (as the page says)\"\n";
        let sidecar = parse(path, text).unwrap();
        assert_eq!(sidecar.topology.as_deref(), Some("aws-p5"));
        assert_eq!(sidecar.nccl.as_deref(), Some("2.26.2"));
        assert_eq!(sidecar.ranks, Some(16));
        assert_eq!(sidecar.timing, Some(Timing { calls: 100, of_rank_0: true }));
        assert_eq!(sidecar.env["NCCL_ALGO"], "NVLS");
        assert_eq!(sidecar.notes.len(), 2, "{:?}", sidecar.notes);
        for (given, gpu) in [
            ("\"4 x NVIDIA H200, sm_90, 132 multiprocessors\"", Some("NVIDIA H200")),
            ("\"H100-SXM5-80GB (8 x a host)\"", None),
            ("[0]", None),
        ] {
            let read = parse(path, &format!("gpu = {given}\n"));
            assert_eq!(read.ok().and_then(|sidecar| sidecar.gpu).as_deref(), gpu, "{given}");
        }
        let error = parse(path, "title = \"t\"\nranks = 0\n").unwrap_err();
        assert!(error.to_string().contains("x.toml:2"), "{error}");
        let error = parse(path, "timed = \"rank 1\"\n").unwrap_err();
        assert!(error.to_string().contains("all ranks"), "{error}");
        let error = parse(path, "a = 1\nb = \n").unwrap_err();
        assert!(error.to_string().contains("x.toml:2"), "{error}");
    }
}
