//! A training step to simulate, and where it is found.

use std::path::Path;

use collcast_scenarios::builtin;
use collcast_sim::workload::Level;

use crate::files::read_text;
use crate::site::SiteSpec;
use crate::watch::Watch;

/// A training step to simulate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The scenario as TOML.
    pub text: String,
    /// Its name, for messages.
    pub name: String,
    /// What is asked of the machine in place of what the scenario says.
    pub site: SiteSpec,
    /// Other values of keys, `key=a,b`; each combination is a variant.
    pub vary: Vec<String>,
    /// How communication is simulated.
    pub level: Level,
    /// Follows the answer.
    pub watch: Watch,
}

impl Request {
    /// A scenario by built-in name or file; none where the argument is neither.
    ///
    /// A file is a scenario where it says so: `schema = "collcast/scenario/1"`.
    pub fn find(name: &str) -> Option<Self> {
        let request = |text: String, name: String| Self {
            text,
            name,
            site: SiteSpec::default(),
            vary: Vec::new(),
            level: Level::Auto,
            watch: Watch::default(),
        };
        if let Some(text) = builtin::text(name) {
            return Some(request(text.to_owned(), format!("{name} (built in)")));
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|e| e != "toml") || !path.is_file() {
            return None;
        }
        let text = read_text("read", path).ok()?;
        let says = |line: &str| line.trim_start().starts_with("schema") && line.contains("collcast/scenario/");
        text.lines().any(says).then(|| request(text, name.to_owned()))
    }
}
