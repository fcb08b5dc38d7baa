//! Which GPU each rank runs on: a launcher's distribution, host lists, GPU numbers.

use collcast_sim::ids::{Rank, VertexId};
use collcast_sim::topology::{Topology, TopologyError};

use crate::hostlist::{self, HostListError};

/// A placement that cannot be used.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum PlacementError {
    /// An item that is none of the known forms.
    #[error("`{0}` is neither GPU numbers (0-7), nor hosts (gpu[01-04]), nor GPUs of hosts (gpu[01-04]:0-3)")]
    Item(String),
    /// A host that the machine does not have.
    #[error("the machine has no host `{host}`; its hosts are {known}")]
    UnknownHost {
        /// The host given.
        host: String,
        /// First and last name of the machine's hosts.
        known: String,
    },
    /// A number beyond the GPUs there are.
    #[error("`{item}` names GPU {gpu}, but {place} has {gpus} GPUs, numbered from 0")]
    UnknownGpu {
        /// The item.
        item: String,
        /// The number.
        gpu: u64,
        /// The machine or the host.
        place: String,
        /// How many there are.
        gpus: usize,
    },
    /// `plane=` without a number.
    #[error("`{0}` needs a number of GPUs of at least 1, such as plane=2")]
    Plane(String),
    /// A host list that cannot be read.
    #[error("`{item}`: {error}")]
    Hosts {
        /// The item.
        item: String,
        /// Why.
        error: HostListError,
    },
    /// GPUs that cannot hold the ranks.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// The machine with its ranks placed.
///
/// - `block`: the GPUs of the first host, then those of the second (Slurm's and most launchers'
///   default); `cyclic`: one GPU of each host in turn; `plane=N`: N of each host in turn.
/// - items separated by commas or line breaks, in rank order: `0-7,16` numbers GPUs over the
///   whole machine; `gpu[01-04]` takes all GPUs of hosts; `gpu[01-04]:0-3` those with these
///   numbers. `7-0` counts down. `#` starts a comment.
///
/// # Errors
/// See [`PlacementError`].
pub fn place(topology: &Topology, text: &str) -> Result<Topology, PlacementError> {
    let text = text.trim();
    let gpus = match text {
        "block" => planes(topology, usize::MAX),
        "cyclic" => planes(topology, 1),
        _ => match text.strip_prefix("plane=") {
            Some(size) => {
                let size = size.parse().ok().filter(|&n: &usize| n > 0);
                planes(topology, size.ok_or_else(|| PlacementError::Plane(text.to_owned()))?)
            }
            None => listed(topology, text)?,
        },
    };
    Ok(topology.placed(&gpus)?)
}

/// GPUs of the hosts in turn, `size` at a time.
fn planes(topology: &Topology, size: usize) -> Vec<VertexId> {
    let most = topology.hosts().iter().map(|h| h.gpus.len()).max().unwrap_or(0);
    (0..most)
        .step_by(size.min(most.max(1)))
        .flat_map(|at| {
            let of_host = move |h: &[VertexId]| h.iter().copied().skip(at).take(size).collect::<Vec<_>>();
            topology.hosts().iter().flat_map(move |h| of_host(&h.gpus))
        })
        .collect()
}

fn listed(topology: &Topology, text: &str) -> Result<Vec<VertexId>, PlacementError> {
    let all: Vec<VertexId> = (0..topology.ranks()).map(|r| topology.gpu_of(Rank(r))).collect();
    let mut gpus = Vec::new();
    for line in text.lines().map(|l| l.split('#').next().unwrap_or("").trim()).filter(|l| !l.is_empty()) {
        let items =
            hostlist::split_outside(line).map_err(|error| PlacementError::Hosts { item: line.to_owned(), error })?;
        for item in items.into_iter().map(str::trim) {
            if let Some((from, to)) = numbers(item) {
                gpus.extend(pick(&all, from, to, item, &format!("`{}`", topology.name))?);
                continue;
            }
            let (hosts, range) = match item.rsplit_once(':') {
                Some((hosts, range)) => (hosts, Some(range)),
                None => (item, None),
            };
            let range = match range.map(numbers) {
                Some(None) => return Err(PlacementError::Item(item.to_owned())),
                range => range.flatten(),
            };
            let names =
                hostlist::expand(hosts).map_err(|error| PlacementError::Hosts { item: item.to_owned(), error })?;
            for name in names {
                let host = topology.hosts().iter().find(|h| h.name == name).ok_or_else(|| unknown(topology, &name))?;
                match range {
                    Some((from, to)) => gpus.extend(pick(&host.gpus, from, to, item, &name)?),
                    None => gpus.extend(&host.gpus),
                }
            }
        }
    }
    Ok(gpus)
}

fn unknown(topology: &Topology, host: &str) -> PlacementError {
    let names: Vec<&str> = topology.hosts().iter().map(|h| h.name.as_str()).collect();
    let known = match names.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first, .., last] => format!("{first} to {last}"),
    };
    PlacementError::UnknownHost { host: host.to_owned(), known }
}

/// `3` or `0-7`.
fn numbers(item: &str) -> Option<(u64, u64)> {
    let (from, to) = item.split_once('-').unwrap_or((item, item));
    Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
}

fn pick(gpus: &[VertexId], from: u64, to: u64, item: &str, place: &str) -> Result<Vec<VertexId>, PlacementError> {
    let largest = from.max(to);
    if largest >= gpus.len() as u64 {
        let (item, place) = (item.to_owned(), place.to_owned());
        return Err(PlacementError::UnknownGpu { item, gpu: largest, place, gpus: gpus.len() });
    }
    let range = (from.min(to)..=largest).map(|i| gpus[usize::try_from(i).unwrap_or(0)]);
    Ok(if from <= to { range.collect() } else { range.rev().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Result<Vec<String>, PlacementError> {
        let machine = crate::load("dgx-h100", Some(2), Some(4)).unwrap();
        let placed = place(&machine, text)?;
        Ok((0..placed.ranks()).map(|r| placed.vertex(placed.gpu_of(Rank(r))).name.clone()).collect())
    }

    fn numbered(text: &str) -> Vec<usize> {
        let all = order("block").unwrap();
        order(text).unwrap().iter().map(|name| all.iter().position(|a| a == name).unwrap()).collect()
    }

    /// Goal: every form gives the ranks in the order it names them.
    #[test]
    fn forms_place_ranks() {
        assert_eq!(numbered("block"), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(numbered("cyclic"), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(numbered("plane=2"), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(numbered("7-6,0"), [7, 6, 0]);
        let machine = crate::load("dgx-h100", Some(2), Some(4)).unwrap();
        let (first, second) = (&machine.hosts()[0].name, &machine.hosts()[1].name);
        assert_eq!(numbered(&format!("{second}:1-2\n{first}:0 # the head\n")), [5, 6, 0]);
        assert_eq!(numbered(&format!("{second},{first}")), [4, 5, 6, 7, 0, 1, 2, 3]);
    }

    /// Goal: what cannot be placed is refused and named.
    #[test]
    fn bad_placements_are_refused() {
        for (text, part) in [
            ("0-8", "names GPU 8"),
            ("0,0", "two ranks"),
            ("plane=0", "needs a number"),
            ("nowhere", "no host `nowhere`"),
            ("nowhere:x", "neither GPU numbers"),
            ("a[1", "brackets"),
            ("", "no GPU"),
        ] {
            let error = order(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
