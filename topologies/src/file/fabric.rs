//! The network between hosts, and the NICs that are not as the rest.

use std::ops::Range;

use super::values::{MAX_GPUS_U32, MAX_PER_HOST, Reader};
use crate::cluster::MAX_GPUS;
use crate::error::{TopologiesError, quote};
use crate::exception::{Deviation, Exception, ExceptionPlaces, Owner};
use crate::fabric::{
    FabricKind, FabricPlaces, FabricSpec, LeafSpec, MAX_SWITCHES, Oversubscription, Ports, Routing, SpineSpec, Tree,
    TreeSwitch,
};
use crate::raw::{At, RawException, RawFabric, RawList, RawPorts, RawSwitch, Scalar};

impl Reader<'_> {
    pub(super) fn fabric(&self, raw: &RawFabric) -> Result<FabricSpec, TopologiesError> {
        let kind = self.choice("a kind of fabric", &raw.kind, FabricKind::ALL)?;
        let place = |span: &Range<usize>| Some(self.source.locate(span.clone()));
        let by_rail = matches!(kind, FabricKind::RailOptimised | FabricKind::RailOnly);
        let mut leaf = None;
        if let Some(written) = &raw.leaf {
            if let Some(per) = &written.value.per {
                let rail = self.choice("a set of ports", per, &[(true, "rail"), (false, "unit")])?;
                if rail != by_rail {
                    return Err(self.contradiction(
                        &per.span,
                        format!("leaves per {} in a {} fabric", per.value, kind.name()),
                        if by_rail { "expected \"rail\"" } else { "expected \"unit\"" },
                        "only rail-optimised and rail-only fabrics have leaves per rail",
                    ));
                }
            }
            let rate = written.value.rate.as_ref();
            leaf = Some(LeafSpec {
                rate: rate.map(|r| self.rate("the rate of the leaf", r)).transpose()?,
                down: self.optional_number("down", written.value.down.as_ref(), 1, 100_000)?,
                up: self.optional_number("up", written.value.up.as_ref(), 0, MAX_SWITCHES)?,
            });
        }
        let spine = raw
            .spine
            .as_ref()
            .map(|s| {
                Ok::<_, TopologiesError>(SpineSpec {
                    count: self.number("the count of spines", &s.value.count, 1, MAX_SWITCHES)?,
                    ports: self.number("the ports of a spine", &s.value.ports, 1, 100_000)?,
                })
            })
            .transpose()?;
        let hosts_per_unit = self.optional_number("hosts_per_unit", raw.hosts_per_unit.as_ref(), 1, MAX_GPUS_U32)?;
        let oversubscription = self.oversubscription(raw)?;
        let leaf = leaf.map(|leaf| self.check_uplinks(raw, leaf, oversubscription)).transpose()?;
        Ok(FabricSpec {
            kind,
            hosts_per_unit,
            leaf,
            spine,
            routing: self.routing(raw)?,
            oversubscription,
            sharp: raw.sharp.unwrap_or(false),
            tree: self.tree(kind, raw)?,
            places: FabricPlaces {
                file: self.source.file.to_owned(),
                kind: place(&raw.kind.span),
                hosts_per_unit: raw.hosts_per_unit.as_ref().and_then(|x| place(&x.span)),
                leaf: raw.leaf.as_ref().and_then(|x| place(&x.span)),
                spine: raw.spine.as_ref().and_then(|x| place(&x.span)),
                oversubscription: raw.oversubscription.as_ref().and_then(|x| place(&x.span)),
            },
        })
    }

    /// The switches of a listed network, checked to be a tree.
    fn tree(&self, kind: FabricKind, raw: &RawFabric) -> Result<Tree, TopologiesError> {
        let listed = kind == FabricKind::Listed;
        if listed == raw.switches.is_empty() {
            let (message, label) = if listed {
                ("a listed network has no switches", "needs [[fabric.switches]]")
            } else {
                ("switches are listed in a network of another kind", "expected \"listed\"")
            };
            let hint =
                "for example [[fabric.switches]] with name = \"leaf0\" and ports = [{ hosts = \"gpu[001-032]\" }]";
            return Err(self.contradiction(&raw.kind.span, message.to_owned(), label, hint));
        }
        if let (true, Some((key, span))) = (listed, self.generated(raw)) {
            let hint = "each switch has its own `rate` and `uplinks`";
            return Err(self.contradiction(&span, format!("`{key}` of a listed network"), "not in a list", hint));
        }
        let mut named = 0;
        let switches: Vec<TreeSwitch> =
            raw.switches.iter().map(|switch| self.switch(switch, &mut named)).collect::<Result<_, _>>()?;
        let tree = Tree { switches };
        tree.parents(self.source.file)?;
        Ok(tree)
    }

    /// A key that only generated networks have.
    fn generated(&self, raw: &RawFabric) -> Option<(&'static str, Range<usize>)> {
        let leaf = raw.leaf.as_ref().map(|leaf| ("leaf", leaf.span.clone()));
        let spine = raw.spine.as_ref().map(|spine| ("spine", spine.span.clone()));
        leaf.or(spine).or_else(|| raw.hosts_per_unit.as_ref().map(|unit| ("hosts_per_unit", unit.span.clone())))
    }

    /// A switch; `named` are the names that all lists had before it.
    fn switch(&self, raw: &RawSwitch, named: &mut usize) -> Result<TreeSwitch, TopologiesError> {
        let hint = "Slurm writes it with `scontrol show hostlist`";
        let mut expand = |list: &At<RawList>, example: &str| {
            let names = self.expand(list, example, hint)?;
            *named += names.len();
            if *named > MAX_GPUS {
                let message = format!("the switches have over {MAX_GPUS} names below them");
                return Err(self.value(&list.span, message, "too many", "a host is named once for each switch"));
            }
            Ok(names)
        };
        let mut ports = |ports: &RawPorts| {
            let nic = |nic: &At<i64>| self.number("a NIC", nic, 0, MAX_PER_HOST);
            Ok::<_, TopologiesError>(Ports {
                hosts: expand(&ports.hosts, "gpu[001-032]")?,
                nics: ports.nics.as_ref().map(|nics| nics.iter().map(nic).collect::<Result<_, _>>()).transpose()?,
            })
        };
        let all_ports = raw.ports.iter().map(&mut ports).collect::<Result<_, _>>()?;
        let below = raw.switches.as_ref().map(|list| expand(list, "leaf[0-7]")).transpose()?;
        let rate = raw.rate.as_ref().map(|rate| self.rate("the rate of the switch", rate)).transpose()?;
        let uplink_rate =
            raw.uplink_rate.as_ref().map(|rate| self.rate("the rate of the uplinks", rate)).transpose()?;
        Ok(TreeSwitch {
            name: raw.name.value.clone(),
            ports: all_ports,
            switches: below.unwrap_or_default(),
            rate,
            uplinks: self.optional_number("uplinks", raw.uplinks.as_ref(), 1, MAX_SWITCHES)?,
            uplink_rate,
            at: Some(self.source.locate(raw.name.span.clone())),
        })
    }

    fn routing(&self, raw: &RawFabric) -> Result<Routing, TopologiesError> {
        let Some(routing) = &raw.routing else {
            return Ok(Routing::Adaptive);
        };
        match &routing.value.0 {
            Scalar::Hash(seed) => Ok(Routing::Hash(seed.unsigned_abs())),
            Scalar::Text(text) if text == "adaptive" => Ok(Routing::Adaptive),
            Scalar::Text(text) if text == "spray" => Ok(Routing::Spray),
            other => Err(self.value(
                &routing.span,
                format!("`{}` is not a kind of routing", quote(&other.to_string())),
                "expected \"adaptive\", \"spray\" or { hash = 7 }",
                "static ECMP is routing = { hash = 7 }: the number is a seed, which says who shares a cable",
            )),
        }
    }

    fn oversubscription(&self, raw: &RawFabric) -> Result<Oversubscription, TopologiesError> {
        let Some(given) = &raw.oversubscription else {
            return Ok(Oversubscription::NotGiven);
        };
        let ratio = match &given.value.0 {
            Scalar::Text(text) if text == "unknown" => return Ok(Oversubscription::Unknown),
            Scalar::Text(text) => text.split_once(':').and_then(|(down, up)| {
                let number = |t: &str| t.trim().parse::<f64>().ok().filter(|x| *x > 0.0);
                Some(number(down)? / number(up)?)
            }),
            Scalar::Whole(number) => Some(*number as f64),
            Scalar::Real(number) => Some(*number),
            _ => None,
        };
        match ratio {
            Some(ratio) if (1.0..=1000.0).contains(&ratio) => {
                Ok(Oversubscription::Thousandths((ratio * 1000.0).round() as u32))
            }
            _ => Err(self.value(
                &given.span,
                format!("`{}` is not an over-subscription", quote(&given.value.0.to_string())),
                "expected a number from 1, \"3:2\" or \"unknown\"",
                "it is the rate into a leaf over the rate out of it upwards",
            )),
        }
    }

    /// A leaf whose ports and over-subscription say the same; of ports down, ports up and over-subscription any two give
    /// the third.
    fn check_uplinks(
        &self,
        raw: &RawFabric,
        leaf: LeafSpec,
        oversubscription: Oversubscription,
    ) -> Result<LeafSpec, TopologiesError> {
        let (Some(up), Oversubscription::Thousandths(asked), Some(given)) =
            (leaf.up.filter(|&up| up > 0), oversubscription, &raw.oversubscription)
        else {
            return Ok(leaf);
        };
        let (up, asked) = (u64::from(up), u64::from(asked));
        let Some(down) = leaf.down else {
            let down = u32::try_from(up * asked / 1000).ok();
            return Ok(LeafSpec { down, ..leaf });
        };
        let down = u64::from(down) * 1000;
        // Ports are whole, and there is one up.
        if down >= asked && (down / asked..=down.div_ceil(asked)).contains(&up) {
            return Ok(leaf);
        }
        let (down, is) = (down / 1000, (down / 1000) as f64 / up as f64);
        Err(self.contradiction(
            &given.span,
            format!(
                "leaves of {down} ports down and {up} up are over-subscribed {is:.2} : 1, not {:.2} : 1",
                asked as f64 / 1000.0
            ),
            "does not fit `leaf`",
            "leave `oversubscription` out, or `up` of the leaf",
        ))
    }

    pub(super) fn exception(&self, raw: &RawException, span: &Range<usize>) -> Result<Exception, TopologiesError> {
        let (owner, name) = match (&raw.host, &raw.switch) {
            (Some(host), None) => (Owner::Host, host),
            (None, Some(switch)) => (Owner::Switch, switch),
            (Some(_), Some(switch)) => {
                return Err(self.contradiction(
                    &switch.span,
                    "the exception names a host and a switch".to_owned(),
                    "both",
                    "a port of a host is `host` with `nic`, one above a switch is `switch` with `uplink`",
                ));
            }
            (None, None) => {
                return Err(TopologiesError::Key(self.source.at(
                    self.heading(span),
                    "the exception does not say where it is",
                    "needs `host` or `switch`",
                    "for example host = \"host3\" and nic = 1, or switch = \"leaf0\" and uplink = 5",
                )));
            }
        };
        let (port, other) = match owner {
            Owner::Host => (&raw.nic, &raw.uplink),
            Owner::Switch => (&raw.uplink, &raw.nic),
        };
        if let Some(other) = other {
            return Err(self.contradiction(
                &other.span,
                "the exception has a port of another kind".to_owned(),
                "not here",
                "`nic` goes with `host`, `uplink` with `switch`",
            ));
        }
        let most = if owner == Owner::Host { MAX_PER_HOST } else { MAX_SWITCHES };
        let deviation = match (&raw.rate, &raw.state) {
            (Some(rate), None) => Deviation::Rate(self.rate("the rate of the exception", rate)?),
            (None, Some(state)) => {
                self.choice("a state of a port", state, &[((), "down")])?;
                Deviation::Down
            }
            (Some(_), Some(state)) => {
                return Err(self.contradiction(
                    &state.span,
                    "the exception gives a rate and a state".to_owned(),
                    "both",
                    "a port runs at a rate or is down",
                ));
            }
            (None, None) => {
                return Err(TopologiesError::Key(self.source.at(
                    self.heading(span),
                    "the exception does not say what is different",
                    "needs `rate` or `state`",
                    "for example rate = \"200 Gb/s\", or state = \"down\"",
                )));
            }
        };
        let rate_at = raw.rate.as_ref().map(|rate| rate.span.clone());
        Ok(Exception {
            owner,
            name: name.value.clone(),
            port: self.optional_number("the port", port.as_ref(), 0, most)?,
            deviation,
            places: ExceptionPlaces {
                name: Some(name.span.clone()),
                port: port.as_ref().map(|port| port.span.clone()),
                deviation: rate_at.or_else(|| raw.state.as_ref().map(|state| state.span.clone())),
            },
        })
    }
}
