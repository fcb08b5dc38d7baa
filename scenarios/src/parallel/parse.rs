//! Reads a layout as people write it: `tp=4,pp=8,vpp=5,dp=2`.

use std::fmt;

use collcast_sim::collective::nearest;
use collcast_sim::text::one_line;
use thiserror::Error;

use super::{Parallel, Recompute, Schedule, Split};

/// Why a layout cannot be read.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum ParallelError {
    /// A part that is no `key=value`.
    #[error("`{0}` is no key=value; a layout is written as tp=4,pp=8,dp=2")]
    NoPair(String),
    /// A key that is none.
    #[error("the key `{given}` is not known{}; keys: {}", suggested(.near.as_deref()), KEYS.join(", "))]
    UnknownKey {
        /// What was given.
        given: String,
        /// The nearest key.
        near: Option<String>,
    },
    /// A key that is there twice.
    #[error("the key `{0}` is there twice")]
    Twice(&'static str),
    /// A value that the key cannot have.
    #[error("{key} is `{given}`; expected {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// What was given.
        given: String,
        /// What it can be.
        expected: &'static str,
    },
}

fn suggested(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"))
}

/// Keys, as Megatron-LM's users abbreviate them.
const KEYS: [&str; 18] = [
    "tp",
    "pp",
    "vpp",
    "first",
    "last",
    "dp",
    "cp",
    "ep",
    "etp",
    "mbs",
    "gbs",
    "seq",
    "sp",
    "zero",
    "hsdp",
    "recompute",
    "offload",
    "schedule",
];

/// Values of `schedule`, and other names of them.
const SCHEDULES: [(&str, Schedule); 7] = [
    ("gpipe", Schedule::Gpipe),
    ("1f1b", Schedule::OneForwardOneBackward),
    ("interleaved", Schedule::Interleaved),
    ("zb", Schedule::ZeroBubble),
    ("dualpipe", Schedule::DualPipe),
    ("zb-h1", Schedule::ZeroBubble),
    ("zbh1", Schedule::ZeroBubble),
];

fn named<T: Copy>(names: &[(&'static str, T)], value: &str) -> Option<T> {
    names.iter().find(|known| known.0 == value).map(|known| known.1)
}

impl Schedule {
    /// Its name in a layout.
    pub fn name(self) -> &'static str {
        SCHEDULES.iter().find(|known| known.1 == self).map_or("", |known| known.0)
    }
}

const COUNT: &str = "a whole number from 1";
const FLAG: &str = "on or off";

impl Parallel {
    /// Reads a layout. Keys come in any order; one that is left out is 1, or off.
    ///
    /// `vpp` above 1 makes the pipeline interleaved. Without `gbs` each replica has as many micro-batches as there are
    /// stages.
    ///
    /// # Errors
    /// An unknown key, with the nearest; a key twice; a value that the key cannot have. [`Parallel::check`] says what a
    /// model does not allow.
    ///
    /// ```
    /// use collcast_scenarios::parallel::Parallel;
    /// let layout = Parallel::parse("tp=4,pp=8,vpp=5,dp=2,gbs=128")?;
    /// assert_eq!((layout.ranks(), layout.micro_batches()), (64, 64));
    /// # Ok::<(), collcast_scenarios::parallel::ParallelError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ParallelError> {
        let shown = |text: &str| one_line(&text.chars().take(40).collect::<String>());
        let mut layout = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| ParallelError::NoPair(shown(part)))?;
            let (given, value) = (key.trim().to_ascii_lowercase(), value.trim());
            let Some(key) = KEYS.into_iter().find(|known| *known == given) else {
                let near = nearest(&given, KEYS).map(str::to_owned);
                return Err(ParallelError::UnknownKey { given: shown(&given), near });
            };
            if seen.contains(&key) {
                return Err(ParallelError::Twice(key));
            }
            seen.push(key);
            layout.set(key, value).map_err(|expected| ParallelError::Value { key, given: shown(value), expected })?;
        }
        if !seen.contains(&"gbs") {
            layout.global_batch =
                u64::from(layout.micro_batch) * u64::from(layout.data).saturating_mul(u64::from(layout.pipeline));
        }
        if !seen.contains(&"schedule") && layout.virtual_stages > 1 {
            layout.schedule = Schedule::Interleaved;
        }
        Ok(layout)
    }

    /// Sets what one key of a layout says; the others stay.
    ///
    /// # Errors
    /// What the key can be.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let large = || value.parse::<u64>().ok().filter(|&n| n > 0).ok_or(COUNT);
        let size = || large().and_then(|n| u32::try_from(n).map_err(|_| "at most 4294967295"));
        match key {
            "tp" => self.tensor = size()?,
            "pp" => self.pipeline = size()?,
            "vpp" => self.virtual_stages = size()?,
            "first" | "last" => {
                let (mut first, mut last) = match self.split {
                    Split::Ends { first, last } => (first, last),
                    _ => (None, None),
                };
                *(if key == "first" { &mut first } else { &mut last }) = Some(large()?);
                self.split = Split::Ends { first, last };
            }
            "dp" => self.data = size()?,
            "cp" => self.context = size()?,
            "ep" => self.expert = size()?,
            "etp" => self.expert_tensor = size()?,
            "mbs" => self.micro_batch = size()?,
            "gbs" => self.global_batch = large()?,
            "seq" => self.sequence = Some(large()?),
            "offload" => self.offload = if value == "0" { 0 } else { large()? },
            "hsdp" => self.shard = Some(size()?),
            "sp" => {
                self.sequence_parallel = match value {
                    "on" | "1" | "true" => true,
                    "off" | "0" | "false" => false,
                    _ => return Err(FLAG),
                }
            }
            "zero" => self.zero = value.parse().ok().filter(|&zero| zero <= 3).ok_or("0, 1, 2 or 3")?,
            "recompute" => self.recompute = Recompute::parse(value).ok_or(Recompute::EXPECTED)?,
            _ => self.schedule = named(&SCHEDULES, value).ok_or("gpipe, 1f1b, interleaved, zb or dualpipe")?,
        }
        Ok(())
    }
}

/// `tp=4,pp=8,...`: what is not its default, as [`Parallel::parse`] reads it; of [`Parallel::split`] what is given.
impl fmt::Display for Parallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = [
            ("tp", self.tensor),
            ("pp", self.pipeline),
            ("vpp", self.virtual_stages),
            ("dp", self.data),
            ("cp", self.context),
            ("ep", self.expert),
            ("etp", self.expert_tensor),
        ];
        let mut parts: Vec<String> =
            sizes.into_iter().filter(|&(_, size)| size != 1).map(|(key, size)| format!("{key}={size}")).collect();
        if let Split::Ends { first, last } = self.split {
            parts.extend(first.map(|layers| format!("first={layers}")));
            parts.extend(last.map(|layers| format!("last={layers}")));
        }
        parts.push(format!("mbs={},gbs={}", self.micro_batch, self.global_batch));
        parts.extend(self.sequence.map(|tokens| format!("seq={tokens}")));
        parts.extend(self.sequence_parallel.then(|| "sp=on".to_owned()));
        parts.extend((self.zero > 0).then(|| format!("zero={}", self.zero)));
        parts.extend(self.shard.map(|shard| format!("hsdp={shard}")));
        if self.recompute != Recompute::None {
            parts.push(format!("recompute={}", self.recompute));
        }
        parts.extend((self.offload > 0).then(|| format!("offload={}", self.offload)));
        let default = if self.virtual_stages > 1 { Schedule::Interleaved } else { Schedule::OneForwardOneBackward };
        if self.schedule != default {
            parts.push(format!("schedule={}", self.schedule.name()));
        }
        f.write_str(&parts.join(","))
    }
}
