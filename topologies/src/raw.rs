//! The topology file as written: serde structs with spans, nothing checked yet.
//!
//! The doc comments here are the descriptions of the JSON schema.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use toml::Spanned;

/// The schema of topology files.
pub const SCHEMA: &str = "collcast/topology/1";

/// A value with its place in the file.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Range<usize>,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<T>::deserialize(deserializer)?;
        let span = spanned.span();
        Ok(Self { value: spanned.into_inner(), span })
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Anything that is no table or list, so that a wrong type gets an error of its own.
#[derive(Clone, Debug)]
pub(crate) enum Scalar {
    Text(String),
    Whole(i64),
    Real(f64),
    Flag(bool),
    /// `{ hash = 7 }`.
    Hash(i64),
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Whole(number) => number.fmt(f),
            Self::Real(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Hash(seed) => write!(f, "{{ hash = {seed} }}"),
        }
    }
}

struct ScalarVisitor {
    hash: bool,
}

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.hash { "a string, or { hash = SEED }" } else { "a string or a number" })
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Whole(value))
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Whole(i64::try_from(value).unwrap_or(i64::MAX)))
    }
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Real(value))
    }
    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Flag(value))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        if !self.hash {
            return Err(de::Error::invalid_type(de::Unexpected::Map, &self));
        }
        let mut seed = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "hash" {
                return Err(de::Error::unknown_field(&key, &["hash"]));
            }
            seed = Some(map.next_value::<i64>()?);
        }
        seed.map(Scalar::Hash).ok_or_else(|| de::Error::missing_field("hash"))
    }
}

macro_rules! scalar {
    ($(#[$doc:meta])* $name:ident, $hash:literal, $schema:tt) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name(pub(crate) Scalar);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(ScalarVisitor { hash: $hash }).map(Self)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).trim_start_matches("Raw").into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

scalar!(
    /// A rate.
    RawRate,
    false,
    {
        "type": "string",
        "description": "A rate of one direction: `50 GB/s`, `400 Gb/s`, `400Gbps`, `46 GiB/s`.",
        "examples": ["400 Gb/s", "50 GB/s"]
    }
);
scalar!(
    /// Routing.
    RawRouting,
    true,
    {
        "oneOf": [
            { "enum": ["adaptive", "spray"] },
            {
                "type": "object",
                "properties": { "hash": { "type": "integer" } },
                "required": ["hash"],
                "additionalProperties": false
            }
        ],
        "description": "How packets choose among equal paths; `{ hash = 7 }` is static ECMP with a seed."
    }
);
scalar!(
    /// Over-subscription.
    RawOversubscription,
    false,
    {
        "oneOf": [
            { "type": "number", "minimum": 1 },
            { "type": "string", "pattern": "^(unknown|[0-9.]+:[0-9.]+)$" }
        ],
        "description": "Rate into the leaves over rate out of them: 1.5, `3:2`, or `unknown`."
    }
);

/// Names in one string, as Slurm lists hosts.
#[derive(Clone, Debug)]
pub(crate) struct RawList(pub(crate) String);

impl<'de> Deserialize<'de> for RawList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl Visitor<'_> for ListVisitor {
            type Value = RawList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("names in one string, such as \"leaf[0-7]\" or \"a,b\"")
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<RawList, E> {
                Ok(RawList(value.to_owned()))
            }
        }
        deserializer.deserialize_any(ListVisitor)
    }
}

/// A machine or a cluster for Collcast.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Collcast topology", rename = "Topology")]
pub(crate) struct RawFile {
    /// Always `collcast/topology/1`.
    pub(crate) schema: Option<At<String>>,
    /// Name of the cluster.
    pub(crate) name: Option<At<String>>,
    /// One line for lists.
    pub(crate) description: Option<At<String>>,
    /// Short form of one `[[hosts]]` table: a built-in, or a topology file beside this one, with its fabric.
    pub(crate) like: Option<At<String>>,
    /// Short form: number of hosts.
    #[schemars(with = "Option<u32>")]
    pub(crate) count: Option<At<i64>>,
    /// What forecasts of it leave out, in a sentence that every answer repeats.
    pub(crate) note: Option<At<String>>,
    /// Name of the built-in profile that fits the hardware; `prior` where none is named.
    pub(crate) profile: Option<At<String>>,
    /// What the hosts run.
    pub(crate) software: Option<RawSoftware>,
    /// Hosts, one table per kind, in rank order.
    #[serde(default)]
    pub(crate) hosts: Vec<At<RawHost>>,
    /// The network between hosts.
    pub(crate) fabric: Option<At<RawFabric>>,
    /// What is not as drawn.
    #[serde(default)]
    pub(crate) exceptions: Vec<At<RawException>>,
}

/// What `auto` depends on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Software")]
pub(crate) struct RawSoftware {
    /// NCCL version, such as `2.28.9`.
    pub(crate) nccl: Option<At<String>>,
    /// Network or tuner plugin, such as `aws-ofi-nccl`.
    pub(crate) plugin: Option<At<String>>,
    /// Variables that it is run with, such as `NCCL_NVLS_ENABLE = "0"`.
    pub(crate) env: Option<std::collections::BTreeMap<String, String>>,
    /// Whether the driver offers NVLink multicast where the hardware has it; true where absent.
    pub(crate) multicast: Option<bool>,
}

/// Hosts that are alike.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Hosts")]
pub(crate) struct RawHost {
    /// How many; 1, or as many as `names`, where absent.
    #[schemars(with = "Option<u32>")]
    pub(crate) count: Option<At<i64>>,
    /// Slurm host list, such as `gpu[001-064]`; gives rank order.
    #[schemars(with = "Option<String>")]
    pub(crate) names: Option<At<RawList>>,
    /// A built-in topology to start from, or a topology file with one kind of host beside this one; keys given here replace
    /// its own.
    pub(crate) like: Option<At<String>>,
    /// NCCL topology XML (or `nvidia-smi topo -m` text) of one host, beside this file.
    pub(crate) xml: Option<At<String>>,
    /// Whether these hosts begin an NVLink domain (`nvlink.domain`) though hosts of the table before left seats in theirs; they
    /// take those seats where absent.
    pub(crate) new_domain: Option<bool>,
    /// GPUs.
    pub(crate) gpus: Option<At<RawGpus>>,
    /// NVLink.
    pub(crate) nvlink: Option<At<RawNvlink>>,
    /// PCIe tree.
    pub(crate) pcie: Option<At<RawPcie>>,
    /// NICs that carry collectives.
    pub(crate) nics: Option<At<RawNics>>,
    /// NIC for ssh and storage, so that use of the wrong NIC can be diagnosed.
    pub(crate) management: Option<At<RawManagement>>,
    /// NVMe drives and ports to object stores, for transfers of caches.
    pub(crate) storage: Option<At<RawStorage>>,
}

/// The GPUs of a host.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Gpus")]
pub(crate) struct RawGpus {
    /// How many.
    #[schemars(with = "u32")]
    pub(crate) count: At<i64>,
    /// Product, such as `H100-SXM5-80GB`.
    pub(crate) kind: Option<At<String>>,
    /// Compute capability times ten (H100: 90); needed for products that are not known.
    #[schemars(with = "Option<u32>")]
    pub(crate) compute_capability: Option<At<i64>>,
    /// Nominal memory rate.
    pub(crate) memory_rate: Option<At<RawRate>>,
    /// Rate of the chip-to-chip link to the CPU (Grace), one direction, where there is one.
    pub(crate) c2c: Option<At<RawRate>>,
}

/// How NVLinks join the GPUs of a host.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Nvlink")]
pub(crate) struct RawNvlink {
    /// `nvswitch`, `mesh` (links spread over all other GPUs), `ring` (half to each neighbour), `pairs` (bridges) or `none`.
    pub(crate) kind: At<String>,
    /// Links of one GPU.
    #[schemars(with = "Option<u32>")]
    pub(crate) links_per_gpu: Option<At<i64>>,
    /// Nominal rate of one link, one direction.
    pub(crate) rate_per_link: Option<At<RawRate>>,
    /// Hosts, in order, whose GPUs share one layer of NVSwitches (18 in an NVL72 rack); with
    /// `nvswitch` only, and beside `xml` alone with that. The next table of such hosts goes on where this one ends, unless it has `new_domain`.
    #[schemars(with = "Option<u32>")]
    pub(crate) domain: Option<At<i64>>,
}

impl RawNvlink {
    /// Whether it says no more than how many hosts share NVSwitches.
    pub(crate) fn is_domain(&self) -> bool {
        self.domain.is_some() && self.links_per_gpu.is_none() && self.rate_per_link.is_none()
    }
}

/// The PCIe tree of a host.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pcie")]
pub(crate) struct RawPcie {
    /// 1 to 6.
    #[schemars(with = "u32")]
    pub(crate) generation: At<i64>,
    /// Lanes of each link.
    #[schemars(with = "u32")]
    pub(crate) lanes: At<i64>,
    /// PCIe switches behind each socket; 0 where GPUs hang from the CPU.
    #[schemars(with = "u32")]
    pub(crate) switches_per_socket: At<i64>,
    /// CPU sockets or NUMA nodes.
    #[schemars(with = "u32")]
    pub(crate) sockets: At<i64>,
    /// Rate between sockets, one direction; NCCL's figure for the CPU where absent.
    pub(crate) interconnect: Option<At<RawRate>>,
    /// CPU vendor as cpuid writes it: `GenuineIntel`, `AuthenticAMD`.
    pub(crate) cpu: Option<At<String>>,
}

/// NICs that carry collectives.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Nics")]
pub(crate) struct RawNics {
    /// `infiniband`, `roce`, `efa`, `slingshot` or `ethernet`.
    pub(crate) kind: At<String>,
    /// How many ports.
    #[schemars(with = "u32")]
    pub(crate) count: At<i64>,
    /// Device names, such as `mlx5_[0,3-6]`, by which `NCCL_IB_HCA` selects them.
    #[schemars(with = "Option<String>")]
    pub(crate) names: Option<At<RawList>>,
    /// Rate of a port, one direction.
    pub(crate) rate: At<RawRate>,
    /// How many behind the switch of each GPU, in order.
    #[schemars(with = "Option<u32>")]
    pub(crate) per_gpu: Option<At<i64>>,
    /// The GPU behind the same PCIe switch, per NIC.
    #[schemars(with = "Option<Vec<u32>>")]
    pub(crate) gpu: Option<At<Vec<At<i64>>>>,
    /// In place of `gpu`, where NICs are not behind the switches of GPUs: the CPU socket they hang from, per NIC.
    #[schemars(with = "Option<Vec<u32>>")]
    pub(crate) socket: Option<At<Vec<At<i64>>>>,
    /// The rail, per NIC.
    #[schemars(with = "Option<Vec<u32>>")]
    pub(crate) rail: Option<At<Vec<At<i64>>>>,
    /// Ports of a card, 1 where absent; ports of one card follow each other.
    #[schemars(with = "Option<u32>")]
    pub(crate) ports: Option<At<i64>>,
    /// Whether NICs read and write GPU memory themselves.
    pub(crate) gpudirect: Option<bool>,
    /// Rate at which a NIC reads GPU memory and at which it writes it, where that is below the rate of its links (what
    /// is between them may keep few packets in flight, or in strict order).
    pub(crate) gpudirect_rate: Option<At<RawRate>>,
    /// What a NIC reports to NCCL as its latency, such as `35 us`; as its plugin knows it where absent, 0 without one.
    pub(crate) latency: Option<At<String>>,
}

/// NIC for ssh and storage.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Management")]
pub(crate) struct RawManagement {
    /// Interface name, such as `ens32`.
    pub(crate) name: At<String>,
    /// Rate, one direction.
    pub(crate) rate: At<RawRate>,
}

/// What keeps bytes beside memory.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Storage")]
pub(crate) struct RawStorage {
    /// NVMe drives that share bytes evenly.
    #[schemars(with = "u32")]
    pub(crate) drives: At<i64>,
    /// `nvme-gen3`, `nvme-gen4` or `nvme-gen5`: rates of a drive.
    pub(crate) kind: Option<At<String>>,
    /// What one drive reads, in place of its kind's.
    pub(crate) read: Option<At<RawRate>>,
    /// What one drive writes, in place of its kind's.
    pub(crate) write: Option<At<RawRate>>,
    /// All ports to object stores together, one direction.
    pub(crate) network: Option<At<RawRate>>,
}

/// The network between hosts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Fabric")]
pub(crate) struct RawFabric {
    /// `rail-optimised`, `rail-only`, `fat-tree`, `dragonfly+`, `single-switch`, `listed` (by `switches`), or
    /// `loopback` (processes of one machine that take each other for hosts).
    pub(crate) kind: At<String>,
    /// Hosts that share a set of leaves.
    #[schemars(with = "Option<u32>")]
    pub(crate) hosts_per_unit: Option<At<i64>>,
    /// Leaves.
    pub(crate) leaf: Option<At<RawLeaf>>,
    /// Spines.
    pub(crate) spine: Option<At<RawSpine>>,
    /// Routing.
    pub(crate) routing: Option<At<RawRouting>>,
    /// Over-subscription of the leaves.
    pub(crate) oversubscription: Option<At<RawOversubscription>>,
    /// Whether switches reduce in the network.
    pub(crate) sharp: Option<bool>,
    /// The switches of a `listed` network, a table each.
    #[serde(default)]
    pub(crate) switches: Vec<RawSwitch>,
}

/// A switch of a listed network, or several in parallel.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Switch")]
pub(crate) struct RawSwitch {
    /// Its name.
    pub(crate) name: At<String>,
    /// Hosts that plug in.
    #[serde(default)]
    pub(crate) ports: Vec<RawPorts>,
    /// Switches below it, as Slurm lists hosts.
    #[schemars(with = "Option<String>")]
    pub(crate) switches: Option<At<RawList>>,
    /// Rate of a port, one direction; that of the fastest port below where absent.
    pub(crate) rate: Option<At<RawRate>>,
    /// Cables to the switch above; as `oversubscription` says where absent.
    #[schemars(with = "Option<u32>")]
    pub(crate) uplinks: Option<At<i64>>,
    /// Rate of one of these, one direction; that of a port where absent.
    pub(crate) uplink_rate: Option<At<RawRate>>,
}

/// Hosts that plug into a switch alike.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Ports")]
pub(crate) struct RawPorts {
    /// The hosts, as Slurm lists them.
    #[schemars(with = "String")]
    pub(crate) hosts: At<RawList>,
    /// Which of their NICs, from 0; all where absent.
    #[schemars(with = "Option<Vec<u32>>")]
    pub(crate) nics: Option<Vec<At<i64>>>,
}

/// Leaves, the switches that hosts plug into.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Leaf")]
pub(crate) struct RawLeaf {
    /// `rail` or `unit`.
    pub(crate) per: Option<At<String>>,
    /// Rate of a port, one direction.
    pub(crate) rate: Option<At<RawRate>>,
    /// Ports to hosts.
    #[schemars(with = "Option<u32>")]
    pub(crate) down: Option<At<i64>>,
    /// Ports to spines.
    #[schemars(with = "Option<u32>")]
    pub(crate) up: Option<At<i64>>,
}

/// Spines, the switches that join leaves.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Spine")]
pub(crate) struct RawSpine {
    /// How many; in a dragonfly+ per unit, in rail-only per rail.
    #[schemars(with = "u32")]
    pub(crate) count: At<i64>,
    /// Ports of each.
    #[schemars(with = "u32")]
    pub(crate) ports: At<i64>,
}

/// What is not as drawn: a NIC, or a cable from a switch to those above it, that is slower or down.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Exception")]
pub(crate) struct RawException {
    /// Name of the host.
    pub(crate) host: Option<At<String>>,
    /// NIC, from 0; all of the host where absent.
    #[schemars(with = "Option<u32>")]
    pub(crate) nic: Option<At<i64>>,
    /// In place of a host, name of the switch: `leaf0`, `leaf0-rail3` (unit 0), or that of `[[fabric.switches]]`.
    pub(crate) switch: Option<At<String>>,
    /// Its cable to the switches above, from 0; all of them where absent.
    #[schemars(with = "Option<u32>")]
    pub(crate) uplink: Option<At<i64>>,
    /// The rate it runs at, at most its own.
    pub(crate) rate: Option<At<RawRate>>,
    /// `down`.
    pub(crate) state: Option<At<String>>,
}
