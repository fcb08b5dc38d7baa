//! How a prediction goes beyond what its profile was made with: the facts that trust in it rests on.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::collective::{Algorithm, Launch, Protocol};

/// One way in which a prediction goes beyond the measurements behind its profile.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Reason {
    /// No measurement is behind the profile of this name: its values are cited.
    Cited(String),
    /// The profile was measured on other GPUs.
    Gpu {
        /// Those that it was measured on.
        seen: String,
        /// That of the machine.
        here: String,
    },
    /// It was measured inside one host, the call goes over several.
    Hosts,
    /// It was measured over other numbers of ranks.
    Ranks {
        /// The fewest and the most.
        seen: [u32; 2],
        /// Those of the call.
        here: u32,
    },
    /// Nothing was measured that was launched so.
    Launch(Launch),
    /// Nothing was measured of this algorithm with this protocol.
    Choice(Algorithm, Protocol),
    /// The constants of reduction and multicast in switches are cited.
    Switches,
}

/// What predictions rest on, the surest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Basis {
    /// Measured constants.
    #[default]
    Predicted,
    /// Cited constants.
    Cited,
    /// Measurements of something else.
    Extrapolated,
}

impl Basis {
    /// The name in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Predicted => "predicted",
            Self::Cited => "cited",
            Self::Extrapolated => "extrapolated",
        }
    }
}

/// All ways in which predictions go beyond their profile; none where everything was measured.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Beyond(BTreeSet<Reason>);

/// Most values that a reason names.
const NAMED: usize = 3;

impl Beyond {
    /// Whether everything was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The reasons.
    pub fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.0.iter()
    }

    /// Adds a reason.
    pub fn insert(&mut self, reason: Reason) {
        self.0.insert(reason);
    }

    /// Whether the profile's evidence is not of such calls on such a machine, whatever is known of switches.
    pub fn unmeasured(&self) -> bool {
        self.0.iter().any(|reason| *reason != Reason::Switches)
    }

    /// Whether the profile was measured on other GPUs.
    pub fn other_gpus(&self) -> bool {
        self.0.iter().any(|reason| matches!(reason, Reason::Gpu { .. }))
    }

    /// Whether no measurement is behind the profile.
    pub fn cited(&self) -> bool {
        self.0.iter().any(|reason| matches!(reason, Reason::Cited(_)))
    }

    /// Whether constants of reduction in switches count that nobody measured.
    pub fn switches(&self) -> bool {
        self.0.contains(&Reason::Switches)
    }

    /// What the predictions rest on.
    pub fn basis(&self) -> Basis {
        let of = |reason: &Reason| match reason {
            Reason::Cited(_) | Reason::Switches => Basis::Cited,
            Reason::Gpu { .. } | Reason::Hosts | Reason::Ranks { .. } | Reason::Launch(_) | Reason::Choice(..) => {
                Basis::Extrapolated
            }
        };
        self.0.iter().map(of).max().unwrap_or_default()
    }

    fn named<T: ToString>(&self, of: impl Fn(&Reason) -> Option<T>) -> Option<String> {
        let mut all: Vec<String> = self.0.iter().filter_map(of).map(|value| value.to_string()).collect();
        all.dedup();
        let more = all.len().saturating_sub(NAMED);
        all.truncate(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!all.is_empty()).then(|| format!("{}{more}", all.join(", ")))
    }
}

impl FromIterator<Beyond> for Beyond {
    fn from_iter<I: IntoIterator<Item = Beyond>>(all: I) -> Self {
        Self(all.into_iter().flat_map(|beyond| beyond.0).collect())
    }
}

/// The reasons, as an output names them.
impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = |seen: [u32; 2]| match seen {
            [one, other] if one == other => one.to_string(),
            [fewest, most] => format!("{fewest} to {most}"),
        };
        let lines = [
            self.named(|r| if let Reason::Cited(profile) = r { Some(profile.clone()) } else { None })
                .map(|profiles| format!("no measurement is behind profile {profiles}")),
            self.named(|r| if let Reason::Gpu { seen, here } = r { Some(format!("{seen}, not {here}")) } else { None })
                .map(|gpus| format!("the profile was measured on {gpus}")),
            self.0.contains(&Reason::Hosts).then(|| "the profile was measured inside one host".to_owned()),
            self.named(|r| if let Reason::Ranks { here, .. } = r { Some(*here) } else { None }).map(|here| {
                let seen = self.named(|r| if let Reason::Ranks { seen, .. } = r { Some(ranks(*seen)) } else { None });
                format!("the profile was measured over {} ranks, not {here}", seen.unwrap_or_default())
            }),
            self.named(|r| if let Reason::Launch(launch) = r { Some(*launch) } else { None })
                .map(|launches| format!("no row of launch {launches} was measured")),
            self.named(|r| if let Reason::Choice(a, p) = r { Some(format!("{a}/{p}")) } else { None })
                .map(|choices| format!("no row of {choices} was measured")),
            // A profile that is cited altogether needs no word about switches.
            (self.switches() && !self.0.iter().any(|r| matches!(r, Reason::Cited(_))))
                .then(|| "constants of switches are cited, not measured".to_owned()),
        ];
        f.write_str(&lines.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an output names the reasons that hold and no other, each once, with what was measured beside what was not.
    #[test]
    fn reasons_are_named() {
        let gpu = || Reason::Gpu { seen: "H200".to_owned(), here: "H100-SXM5-80GB".to_owned() };
        let ranks = |here| Reason::Ranks { seen: [2, 4], here };
        let cited = || Reason::Cited("prior".to_owned());
        let choice = |protocol| Reason::Choice(Algorithm::Tree, protocol);
        for (reasons, basis, text) in [
            (vec![], "predicted", ""),
            (vec![cited(), Reason::Switches], "cited", "no measurement is behind profile prior"),
            (vec![Reason::Switches], "cited", "constants of switches are cited, not measured"),
            (vec![gpu(), gpu()], "extrapolated", "the profile was measured on H200, not H100-SXM5-80GB"),
            (vec![choice(Protocol::Ll128)], "extrapolated", "no row of tree/ll128 was measured"),
            (vec![Reason::Launch(Launch::Graph)], "extrapolated", "no row of launch graph was measured"),
            (
                vec![ranks(8), ranks(16), Reason::Hosts, choice(Protocol::Ll)],
                "extrapolated",
                "the profile was measured inside one host; the profile was measured over 2 to 4 ranks, not 8, 16; no row of tree/ll was measured",
            ),
            (
                (5..10).map(ranks).collect(),
                "extrapolated",
                "the profile was measured over 2 to 4 ranks, not 5, 6, 7 and 2 more",
            ),
        ] {
            let beyond = Beyond(reasons.into_iter().collect());
            assert_eq!((beyond.basis().name(), beyond.to_string().as_str()), (basis, text));
        }
    }
}
