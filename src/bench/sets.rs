//! Which GPUs of this host run together, so that times over different sets of them say which GPU or link is slow.

use serde::Serialize;

use crate::error::Error;

/// Sets of the GPUs of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sets {
    /// All pairs: a slow GPU is in all pairs with it, a slow link in one.
    Pairs,
    /// Half of the GPUs, beginning at each of them in turn: neighbours stay together.
    Halves,
    /// Each GPU by itself, which copies in its own memory.
    Alone,
}

/// GPUs that run together, and which time it is that they do.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Set {
    /// The round, from 1: each has all sets, one after the other.
    pub round: u32,
    /// Places of the GPUs among those of this host, ascending.
    pub gpus: Vec<u32>,
}

impl Sets {
    /// GPUs of a set, of so many.
    pub fn size(self, gpus: u32) -> u32 {
        match self {
            Self::Pairs => 2,
            Self::Halves => gpus / 2,
            Self::Alone => 1,
        }
    }

    /// All sets of so many GPUs, each so many times.
    ///
    /// # Errors
    /// Too few GPUs for sets that differ.
    pub fn of(self, gpus: u32, rounds: u32) -> Result<Vec<Set>, Error> {
        let (name, least) = match self {
            Self::Pairs => ("pairs", 3),
            Self::Halves => ("halves", 4),
            Self::Alone => ("alone", 2),
        };
        if gpus < least {
            return Err(Error::usage(
                format!("--{name}: {gpus} GPUs give no sets that tell them apart; {least} do"),
                "run on a host with more GPUs, or take more --ranks",
            ));
        }
        let sets: Vec<Vec<u32>> = match self {
            Self::Pairs => (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| vec![a, b])).collect(),
            Self::Halves => (0..gpus).map(|first| window(first, gpus / 2, gpus)).collect(),
            Self::Alone => (0..gpus).map(|gpu| vec![gpu]).collect(),
        };
        let round = |round| sets.iter().map(move |gpus| Set { round, gpus: gpus.clone() });
        Ok((1..=rounds.max(1)).flat_map(round).collect())
    }
}

/// So many neighbours from one on, around the end.
fn window(first: u32, count: u32, all: u32) -> Vec<u32> {
    let mut gpus: Vec<u32> = (first..first + count).map(|gpu| gpu % all).collect();
    gpus.sort_unstable();
    gpus
}

/// The GPUs of this host as CUDA counts them, and the variables that show only those of a set to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Visible {
    /// The host's name.
    host: String,
    /// What `CUDA_VISIBLE_DEVICES` lists, where it is set.
    listed: Option<Vec<String>>,
    /// `CUDA_DEVICE_ORDER`, where it is set.
    order: Option<String>,
}

impl Visible {
    /// As the environment of this process has it.
    pub(crate) fn here() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let listed = variable("CUDA_VISIBLE_DEVICES");
        let listed = listed.map(|text| text.split(',').map(|gpu| gpu.trim().to_owned()).collect());
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| variable("HOSTNAME"));
        let host = name.as_deref().map(str::trim).filter(|name| !name.is_empty()).unwrap_or("localhost").to_owned();
        Self { host, listed, order: variable("CUDA_DEVICE_ORDER") }
    }

    fn gpu(&self, place: u32) -> String {
        let listed = self.listed.as_ref().and_then(|listed| listed.get(place as usize));
        listed.cloned().unwrap_or_else(|| place.to_string())
    }

    /// Names of a set's GPUs, as CSV has them: `node1:0`. Numbers are those of `nvidia-smi`, or what
    /// `CUDA_VISIBLE_DEVICES` lists.
    pub(crate) fn names(&self, set: &Set) -> Vec<String> {
        set.gpus.iter().map(|&place| format!("{}:{}", self.host, self.gpu(place))).collect()
    }

    /// Variables for a process that is to see the GPUs of a set alone.
    pub(crate) fn variables(&self, set: &Set) -> Vec<(String, String)> {
        let gpus: Vec<String> = set.gpus.iter().map(|&place| self.gpu(place)).collect();
        // The order of `nvidia-smi`, unless numbers that are listed were meant in another.
        let order = (self.listed.is_none() && self.order.is_none()).then_some("PCI_BUS_ID");
        let order = order.map(|order| ("CUDA_DEVICE_ORDER".to_owned(), order.to_owned()));
        order.into_iter().chain([("CUDA_VISIBLE_DEVICES".to_owned(), gpus.join(","))]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: by hand: pairs are all pairs, halves go around, and GPUs too few to be told apart are refused.
    #[test]
    fn sets_are_those_that_are_asked_for() {
        let of = |sets: Sets, gpus| sets.of(gpus, 1).unwrap().into_iter().map(|set| set.gpus).collect::<Vec<_>>();
        assert_eq!(of(Sets::Pairs, 3), [[0, 1], [0, 2], [1, 2]]);
        assert_eq!(of(Sets::Pairs, 8).len(), 28);
        assert_eq!(of(Sets::Halves, 4), [[0, 1], [1, 2], [2, 3], [0, 3]]);
        assert_eq!(of(Sets::Alone, 2), [[0], [1]]);
        let twice = Sets::Pairs.of(3, 2).unwrap();
        assert_eq!((twice.len(), twice[3].round, &twice[3].gpus), (6, 2, &vec![0, 1]));
        for (sets, gpus) in [(Sets::Pairs, 2), (Sets::Halves, 3), (Sets::Alone, 1)] {
            let refused = sets.of(gpus, 1).unwrap_err().render();
            assert!(refused.contains(&format!("{gpus} GPUs give no sets")) && refused.contains("hint: "), "{refused}");
        }
    }

    /// Goal: a process sees the GPUs of its set among those that this one sees, named as `nvidia-smi` names them.
    #[test]
    fn a_process_sees_its_set() {
        let set = Set { round: 1, gpus: vec![1, 3] };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut here = Visible { host: "n1".to_owned(), listed: None, order: None };
        assert_eq!(here.names(&set), ["n1:1", "n1:3"]);
        let all = [pair("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), pair("CUDA_VISIBLE_DEVICES", "1,3")];
        assert_eq!(here.variables(&set), all);
        here.listed = Some(["4", "5", "6", "7"].map(str::to_owned).to_vec());
        assert_eq!(here.names(&set), ["n1:5", "n1:7"]);
        assert_eq!(here.variables(&set), [pair("CUDA_VISIBLE_DEVICES", "5,7")]);
    }
}
