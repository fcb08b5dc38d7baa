//! The file beside measured data, for what the data cannot say itself.

use std::time::{SystemTime, UNIX_EPOCH};

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
        if self.backend == Backend::Nccl {
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
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400);
    civil(days)
}

/// The date of a day since 1970-01-01, by the calendar's 400-year cycle of 146,097 days.
fn civil(days: u64) -> String {
    let shifted = days + 719_468; // Days since 0000-03-01, so that leap days come last.
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + later)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: dates by value, around leap days and centuries.
    #[test]
    fn days_become_dates() {
        for (days, date) in [(0, "1970-01-01"), (11_016, "2000-02-29"), (11_017, "2000-03-01"), (20_778, "2026-11-21")]
        {
            assert_eq!(civil(days), date);
        }
    }
}
