//! What to take in place of NCCL's choice.

use collcast_reports::model::{Input, Status};
use collcast_sim::ids::Rank;
use collcast_sim::nccl::{Tuner, Version, plugin};
use collcast_tuner::host::{Host, PARTS};
use collcast_tuner::table::form;
use serde::Serialize;

use super::advice::{Range, Regret};
use super::process::Process;
use super::tuned::{Advice, Tuned};
use super::variables::Variables;
use crate::error::Error;
use crate::site::Site;
use crate::step::Collectives;

/// Which machine settings are for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Hosts.
    pub nodes: u32,
    /// Ranks of the calls.
    pub ranks: u32,
    /// The version of NCCL whose rules choices were compared with.
    pub nccl: String,
    /// Its GPU in one word, such as `H200`, where all are of one kind.
    pub gpu: Option<String>,
    /// The GPU's form, as [`collcast_tuner::table::form`] has it.
    pub form: Option<&'static str>,
    /// Variables that NCCL was told and that matter to it.
    pub with: Vec<(String, String)>,
    /// The tuner that NCCL asks there without the table: that of the network's plugin, by its library.
    pub next: Option<&'static str>,
    /// Parts of the kind of host that was measured, with their names: see [`collcast_tuner::host`].
    pub host: Vec<(&'static str, String)>,
}

impl Machine {
    /// What settings for calls of so many ranks of a site are for.
    pub(super) fn of(site: &Site, ranks: u32, version: Version) -> Self {
        let topology = &site.topology;
        let mut models = (0..ranks.min(topology.ranks())).map(|rank| topology.gpu(topology.gpu_of(Rank(rank))));
        let first = models.next().flatten().map(|gpu| gpu.model.as_str());
        let alike = models.all(|gpu| gpu.map(|gpu| gpu.model.as_str()) == first);
        // `H100-SXM5-80GB` is an H100 to its driver too.
        let word = first.filter(|_| alike).and_then(|model| model.split(['-', ' ']).next()).filter(|w| !w.is_empty());
        let nccl = &site.settings().nccl;
        let own = Tuner::of(topology).is_some() && !nccl.no_tuner && !nccl.other_tuner;
        Self {
            name: topology.name.clone(),
            nodes: site.nodes(),
            ranks,
            nccl: version.to_string(),
            gpu: word.map(str::to_owned),
            form: first.filter(|_| word.is_some()).map(form),
            with: site.told.in_effect.clone(),
            next: own.then_some(plugin::LIBRARY),
            host: Vec::new(),
        }
    }

    /// Makes the settings those of the kind of host that was measured.
    pub(super) fn measured_at(&mut self, host: &Host) {
        let part = |name: &&'static str| Some((*name, host.part(name)?.to_owned()));
        self.host = PARTS.iter().filter_map(part).collect();
    }

    /// Makes the settings those of the GPU that was measured, as its driver names it; what to know of them where the machine
    /// has another.
    pub(super) fn measured_on(&mut self, gpu: &str) -> Option<String> {
        let words = gpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !matches!(*word, "" | "NVIDIA"));
        // `NVIDIA H100 80GB HBM3` is an H100, `NVIDIA RTX 6000D` an RTX6000D.
        let mut ended = false;
        let named =
            words.take_while(|word| !std::mem::replace(&mut ended, word.contains(|c: char| c.is_ascii_digit())));
        let named: String = named.collect();
        self.form = Some(form(gpu));
        let told = self.gpu.replace(named)?;
        let here = self.gpu.as_deref().unwrap_or_default();
        (told != here).then(|| {
            format!(
                "`{}` has {told}, and {gpu} was measured: the settings are for {here}; name the topology of this host",
                self.name
            )
        })
    }
}

/// What ended a search before its time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Ended {
    /// The error in words.
    pub why: String,
    /// The exit code that it asks for.
    #[serde(skip)]
    pub code: u8,
}

impl Ended {
    pub(super) fn by(error: &Error) -> Self {
        Self { why: error.to_string(), code: error.code() }
    }
}

/// What a step gains.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct StepGain {
    /// Its time by NCCL's choices, in milliseconds.
    pub default_ms: f64,
    /// By those of the table.
    pub tuned_ms: f64,
}

impl StepGain {
    /// Simulates a step with and without a table.
    pub(super) fn of(step: &Collectives, table: &str) -> Result<Self, Error> {
        let ms = |table| Ok::<f64, Error>(step.time(table)?.as_us() / 1e3);
        Ok(Self { default_ms: ms(None)?, tuned_ms: ms(Some(table))? })
    }

    /// The part of the step that is saved.
    pub fn saved(&self) -> f64 {
        1.0 - self.tuned_ms / self.default_ms
    }
}

/// What to take in place of NCCL's choice.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Which machine the settings are for.
    pub machine: Machine,
    /// The calls, by collective and size: those asked about, and those of sizes around that settings hold for too.
    pub calls: Vec<Tuned>,
    /// Whether most measured times of NCCL's choice are outside of what is forecast for it.
    pub contradicted: bool,
    /// Whether measured times are of other GPUs than the machine has.
    pub other_gpus: bool,
    /// What to take over which sizes.
    pub ranges: Vec<Range>,
    /// What is lost without it.
    pub regrets: Vec<Regret>,
    /// What the step gains that was asked about.
    pub step: Option<StepGain>,
    /// Whether other choices make calls faster and the step takes no less time with them: then they are left out.
    pub in_vain: bool,
    /// Variables that slow no size.
    pub variables: Variables,
    /// Values for the whole process that save time over all calls and slow none, and those that were tried.
    pub process: Process,
    /// Table for our tuner plugin (`COLLCAST_TUNER_TABLE`) and NVIDIA's example (`NCCL_TUNER_CONFIG_FILE`).
    pub tuner_csv: String,
    /// The variables as a file.
    pub nccl_env: String,
    /// Why the settings are not to be used: measured times that do not belong together.
    pub refused: Option<String>,
    /// What ended the search early; what was measured until then counts.
    pub ended: Option<Ended>,
    /// Times that the search has measured, without those for values of a process.
    pub times: usize,
    /// The same as a file that is read as measurements again.
    #[serde(skip)]
    pub measured_csv: Option<String>,
    /// Files that it rests on.
    pub inputs: Vec<Input>,
    /// What was assumed.
    pub notes: Vec<String>,
    /// What to know before the settings are used.
    pub warnings: Vec<String>,
    /// How far to trust the forecasts.
    pub status: Status,
    /// The same in words.
    pub confidence: String,
    /// What they rest on: `predicted`, `cited` or `extrapolated`.
    pub basis: String,
}

impl Outcome {
    /// The calls that were asked about.
    pub fn asked(&self) -> impl Iterator<Item = &Tuned> {
        self.calls.iter().filter(|call| !call.beyond)
    }

    /// Whether the table changes a choice, or values for the whole process go with it.
    pub fn does_something(&self) -> bool {
        self.changes().next().is_some() || self.process.advised().is_some()
    }

    /// The calls for which a change is advised, with the change.
    pub fn changes(&self) -> impl Iterator<Item = (&Tuned, &Advice)> {
        self.calls.iter().filter_map(|call| Some((call, call.advice.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: settings are for the GPU that was measured, in the words by which the tuner plugin knows it, and a machine that
    /// has another is told.
    #[test]
    fn settings_are_for_the_gpu_that_was_measured() {
        let machine = |gpu: &str| Machine {
            name: "m".to_owned(),
            nodes: 1,
            ranks: 2,
            nccl: "2.28.9".to_owned(),
            gpu: Some(gpu.to_owned()),
            form: None,
            with: Vec::new(),
            next: None,
            host: Vec::new(),
        };
        for (told, driver, word) in [
            ("H100", "NVIDIA H100 80GB HBM3", "H100"),
            ("A100", "NVIDIA A100-SXM4-80GB", "A100"),
            ("H100", "NVIDIA H200", "H200"),
            ("H200", "NVIDIA RTX 6000D", "RTX6000D"),
        ] {
            let mut machine = machine(told);
            let note = machine.measured_on(driver);
            assert_eq!(machine.gpu.as_deref(), Some(word));
            assert_eq!(note.is_some(), told != word, "{note:?}");
        }
    }
}
