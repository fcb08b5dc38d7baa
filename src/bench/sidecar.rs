//! The file beside measured data, for what the data cannot say itself.

use collcast_sim::collective::Launch;

use super::outcome::Outcome;
use super::request::Backend;

impl Outcome {
    /// The TOML beside the data: date, launch, machine and hardware. `source` says how it was made; `inherited` are the
    /// variables that NCCL read from the environment of this process, which a run of NCCL's own is told with.
    pub fn sidecar(
        &self,
        source: &str,
        topology: Option<&str>,
        inherited: impl IntoIterator<Item = (String, String)>,
    ) -> String {
        let title = format!("collcast bench, backend {}, every result checked", self.backend.name());
        let mut table = sidecar(&title, source, topology, &self.facts, self.launch);
        if matches!(self.backend, Backend::Nccl | Backend::NcclP2p) {
            let env = inherited.into_iter().chain(self.environment.clone());
            let env = env.map(|(name, value)| (name, toml::Value::String(value))).collect();
            table.insert("env".to_owned(), toml::Value::Table(env));
        }
        table.to_string()
    }
}

/// The same of any measurement.
pub(crate) fn sidecar(
    title: &str,
    source: &str,
    topology: Option<&str>,
    facts: &[(String, String)],
    launch: Launch,
) -> toml::Table {
    let date = date();
    let own = [("title", title), ("source", source), ("date", &date), ("launch", launch.name())];
    let topology = topology.map(|name| ("topology", name));
    let facts = facts.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let named = |(key, value): (&str, &str)| (key.to_owned(), toml::Value::String(value.to_owned()));
    own.into_iter().chain(topology).chain(facts).map(named).collect()
}

/// Today in UTC, such as 2026-11-21.
pub(crate) fn date() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}
