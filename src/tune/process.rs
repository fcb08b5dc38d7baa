//! Variables that hold for a whole process: threads of a block, and FIFOs. No tuner sets them for one call, so a value must
//! help all calls together.

use std::fmt;

use collcast_sim::collective::Collective;
use collcast_sim::nccl::NcclSettings;
use collcast_sim::units::Bytes;
use serde::Serialize;

/// A variable that NCCL reads once a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub enum ProcessVariable {
    /// Threads of a block that move data by LL and Simple.
    #[serde(rename = "NCCL_NTHREADS")]
    Threads,
    /// Those by LL128.
    #[serde(rename = "NCCL_LL128_NTHREADS")]
    Ll128Threads,
    /// Bytes of a FIFO of Simple.
    #[serde(rename = "NCCL_BUFFSIZE")]
    Fifo,
    /// Bytes of one of LL.
    #[serde(rename = "NCCL_LL_BUFFSIZE")]
    LlFifo,
    /// Bytes of one of LL128.
    #[serde(rename = "NCCL_LL128_BUFFSIZE")]
    Ll128Fifo,
}

impl ProcessVariable {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Threads, Self::Ll128Threads, Self::Fifo, Self::LlFifo, Self::Ll128Fifo];

    /// NCCL's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "NCCL_NTHREADS",
            Self::Ll128Threads => "NCCL_LL128_NTHREADS",
            Self::Fifo => "NCCL_BUFFSIZE",
            Self::LlFifo => "NCCL_LL_BUFFSIZE",
            Self::Ll128Fifo => "NCCL_LL128_BUFFSIZE",
        }
    }

    /// Values to try: NCCL's default times 2 and 4 and divided by 2, of threads divided by 4 too, as far as NCCL takes them. A
    /// value that is NCCL's own on a machine changes no call there.
    fn values(self) -> &'static [u32] {
        match self {
            Self::Threads => &[128, 256, 512],
            Self::Ll128Threads => &[160, 320],
            Self::Fifo => &[2 << 20, 8 << 20, 16 << 20],
            Self::LlFifo => &[256 << 10, 1 << 20, 2 << 20],
            // NCCL's 4,915,200: 120 words of each of 640 threads, in each of 8 steps.
            Self::Ll128Fifo => &[2_457_600, 9_830_400, 19_660_800],
        }
    }

    /// Whether a user has set it.
    fn is_set(self, nccl: &NcclSettings) -> bool {
        match self {
            Self::Threads => nccl.threads.is_some(),
            Self::Ll128Threads => nccl.ll128_threads.is_some(),
            Self::Fifo => nccl.buffers.simple.is_some(),
            Self::LlFifo => nccl.buffers.ll.is_some(),
            Self::Ll128Fifo => nccl.buffers.ll128.is_some(),
        }
    }

    /// The values to try where neither a user nor `beside` sets it.
    pub(super) fn open(nccl: &NcclSettings, beside: &[ProcessSetting]) -> impl Iterator<Item = ProcessSetting> {
        let free = move |variable: &Self| !variable.is_set(nccl) && beside.iter().all(|s| s.variable != *variable);
        Self::ALL
            .into_iter()
            .filter(free)
            .flat_map(|variable| variable.values().iter().map(move |&value| ProcessSetting { variable, value }))
    }
}

/// A value of such a variable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct ProcessSetting {
    /// Which one.
    pub variable: ProcessVariable,
    /// Threads, or bytes.
    pub value: u32,
}

impl ProcessSetting {
    /// Those that the lines of an environment file set; other lines say nothing here.
    pub fn of_file(text: &str) -> Vec<Self> {
        let of = |line: &str| {
            let (name, value) = line.trim().split_once('=')?;
            let variable = ProcessVariable::ALL.into_iter().find(|variable| variable.name() == name)?;
            Some(Self { variable, value: value.parse().ok()? })
        };
        text.lines().filter_map(of).collect()
    }

    /// Puts it into NCCL's settings.
    pub fn put(self, nccl: &mut NcclSettings) {
        let bytes = Some(Bytes(u64::from(self.value)));
        match self.variable {
            ProcessVariable::Threads => nccl.threads = Some(self.value),
            ProcessVariable::Ll128Threads => nccl.ll128_threads = Some(self.value),
            ProcessVariable::Fifo => nccl.buffers.simple = bytes,
            ProcessVariable::LlFifo => nccl.buffers.ll = bytes,
            ProcessVariable::Ll128Fifo => nccl.buffers.ll128 = bytes,
        }
    }
}

/// As a line of an environment file.
impl fmt::Display for ProcessSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.variable.name(), self.value)
    }
}

/// What became of values that were tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// They save time over all calls, and slow none.
    Change,
    /// They save less than runs differ by, or than the best values.
    Keep,
    /// A call is slower with them.
    Slows,
    /// They were not measured five times.
    Unsettled,
}

impl Finding {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Keep => "keep",
            Self::Slows => "slows",
            Self::Unsettled => "unsettled",
        }
    }
}

/// The call that values serve least.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Least {
    /// Its collective.
    pub collective: Collective,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The part of its time that is saved; negative where it is slower.
    pub gain: f64,
}

/// Values for a whole process, and what they do to all calls together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tried {
    /// The values.
    pub settings: Vec<ProcessSetting>,
    /// What became of them.
    pub finding: Finding,
    /// Time saved over all calls, each counted by the objective, as a fraction.
    pub gain: f64,
    /// Standard deviation of that, as a fraction, where it is a forecast.
    pub doubt: Option<f64>,
    /// How far rounds without them lie apart over all calls, and rounds with them, as fractions.
    pub spread: Option<(f64, f64)>,
    /// Rounds in which all calls were measured with and without them, in turns.
    pub rounds: usize,
    /// Calls that were compared.
    pub calls: usize,
    /// The call that they serve least.
    pub least: Option<Least>,
}

impl Tried {
    /// The values as one text, `NAME=VALUE` each.
    pub fn words(&self) -> String {
        words(&self.settings)
    }
}

pub(super) fn words(settings: &[ProcessSetting]) -> String {
    settings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// What is known of values for a whole process.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Process {
    /// What was measured, or advised by forecasts alone.
    pub tried: Vec<Tried>,
    /// Times that were measured for it.
    pub times: usize,
}

impl Process {
    /// The values to take, if there are such.
    pub fn advised(&self) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.finding == Finding::Change)
    }

    /// Lines for an environment file; none where NCCL's own values stand.
    pub fn lines(&self) -> Vec<String> {
        self.advised().map_or_else(Vec::new, |tried| tried.settings.iter().map(ToString::to_string).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::nccl::Environment;

    /// Goal: a value means for a forecast what its line in an environment file means, and NCCL takes it as it stands.
    #[test]
    fn a_value_is_its_line() {
        for setting in ProcessVariable::open(&NcclSettings::default(), &[]) {
            let mut nccl = NcclSettings::default();
            setting.put(&mut nccl);
            let text = setting.to_string();
            let (name, value) = text.split_once('=').unwrap();
            let read = Environment::parse(&[(name.to_owned(), value.to_owned())], Default::default()).unwrap();
            assert_eq!((read.settings, read.warnings.len()), (nccl, 0), "{setting}");
            assert!(ProcessVariable::open(&nccl, &[]).all(|other| other.variable != setting.variable));
            let beside = [setting];
            let (own, variable) = (NcclSettings::default(), setting.variable);
            assert!(ProcessVariable::open(&own, &beside).all(|other| other.variable != variable));
        }
    }
}
