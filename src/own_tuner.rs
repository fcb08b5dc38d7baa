//! The tables of `collcast-tuner`, as the plugin reads them inside NCCL, for forecasts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use collcast_sim::collective::Protocol;
use collcast_sim::ids::Rank;
use collcast_sim::nccl::tuner::{Asked, Lines, Pair};
use collcast_sim::nccl::{ALGORITHMS, FUNCTIONS, Tuner, Version, plugin};
use collcast_sim::topology::Topology;
use collcast_tuner::table::{self, Communicator, MadeFor, Refused, Table};

use crate::error::Error;
use crate::files::read_bytes;

/// The value of `COLLCAST_TUNER_NEXT` that asks nobody.
const NONE: &str = "none";

/// Ranks and hosts of a communicator, and the fewest and the most ranks of a host.
type Shape = (u32, u32, (u32, u32));

/// Tables that were named, each as text; lines are looked up by communicator.
struct Tables {
    texts: Vec<String>,
    /// What was read of them already.
    read: Mutex<BTreeMap<Shape, Arc<Table>>>,
}

/// Two are alike where their texts are.
impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.texts).finish()
    }
}

impl Tables {
    /// The lines of a communicator.
    fn of(&self, (ranks, hosts, a_host): Shape) -> Arc<Table> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = || {
            let number = |of: u32| usize::try_from(of).unwrap_or(usize::MAX);
            let a_domain = Some((number(a_host.0), number(a_host.1)));
            let communicator = Communicator { ranks: number(ranks), nodes: number(hosts), a_domain };
            let mut all = Table::default();
            // One without lines for it is left out there.
            self.texts
                .iter()
                .filter_map(|text| Table::read(text, communicator).ok())
                .for_each(|table| all.append(table));
            Arc::new(all)
        };
        read.entry((ranks, hosts, a_host)).or_insert_with(lines).clone()
    }
}

impl Lines for Tables {
    fn find(&self, of: &Asked, open: &dyn Fn(&Pair) -> bool) -> Option<(Pair, Option<u32>)> {
        let collective = FUNCTIONS.iter().position(|(_, known)| *known == of.collective)?;
        let table = self.of((of.ranks, of.hosts, of.a_host));
        let mut lines = table.matching(collective, of.bytes, of.pipe_ops, of.registered).filter_map(|line| {
            let pair = (*ALGORITHMS.get(line.algorithm)?, *Protocol::ALL.get(line.protocol)?);
            open(&pair).then_some((pair, (line.channels > 0).then_some(line.channels)))
        });
        lines.next()
    }
}

/// The plugin with the tables that are named, and what to know of those that it would not use.
///
/// # Errors
/// A table that cannot be read.
pub(crate) fn load(
    paths: &str,
    next: Option<&str>,
    topology: &Topology,
    version: Version,
    told: Told<'_>,
) -> Result<(Tuner, Vec<String>), Error> {
    let (mut texts, mut warnings) = (Vec::new(), Vec::new());
    for path in std::env::split_paths(paths).filter(|path| !path.as_os_str().is_empty()) {
        let bytes = read_bytes("read the tuner's table (COLLCAST_TUNER_TABLE)", &path)?;
        let text = table::text(&bytes);
        match text.and_then(|text| usable(text, Some(topology), Some(version), Some(told)).map(|()| text)) {
            Ok(text) => texts.push(text.to_owned()),
            Err(why) => warnings.push(format!("{}: the plugin does not use it: {why}", path.display())),
        }
    }
    let next = next.filter(|next| *next != NONE);
    let own = Tuner::of(topology).and_then(|own| if let Tuner::Region(platform) = own { Some(platform) } else { None });
    let is_own = |next: &&str| *next == plugin::LIBRARY || next.contains("ofi");
    let asked = next.filter(is_own).and(own);
    warnings.extend(next.filter(|_| asked.is_none()).map(|next| format!("not_modelled: COLLCAST_TUNER_NEXT={next}")));
    Ok((Tuner::Own(Arc::new(Tables { texts, read: Mutex::default() }), asked), warnings))
}

/// The value that NCCL is told of a variable.
pub(crate) type Told<'t> = &'t dyn Fn(&str) -> Option<String>;

/// Whether the plugin would use a table there, as far as GPU, version and variables are known.
///
/// # Errors
/// Why it would not.
pub(crate) fn usable(
    text: &str,
    topology: Option<&Topology>,
    version: Option<Version>,
    told: Option<Told<'_>>,
) -> Result<(), Refused> {
    let gpu = topology.and_then(|topology| topology.gpu(topology.gpu_of(Rank(0))));
    let gpu = gpu.map(|gpu| gpu.model.as_str()).filter(|model| !model.is_empty());
    let made_for = MadeFor::of(text);
    made_for.check(version.map(|version| (version.major.into(), version.minor.into())), gpu)?;
    told.map_or(Ok(()), |told| made_for.check_settings(told))?;
    match Table::check(text) {
        Ok(_) | Err(Refused::Nothing) => Ok(()),
        Err(why) => Err(why),
    }
}
