//! Every reader against real files: what class they are, and what is concluded from them.

use collcast_sim::profile::Profile;
use collcast_sim::topology::{LinkKind, Nic, Topology};
use collcast_sim::units::SimDuration;
use collcast_topologies::builtin;
use collcast_topologies::cluster::{ClusterSpec, profile_for};
use collcast_topologies::error::Source;
use collcast_topologies::file;
use collcast_topologies::host::{HostSpec, NvlinkTarget, Parent};
use collcast_topologies::import::{import, import_text};
use collcast_topologies::smi;
use collcast_topologies::xml::{self, Document};

fn fixture(name: &str) -> String {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn fixtures(ending: &str) -> Vec<String> {
    let folder = format!("{}/tests/data", env!("CARGO_MANIFEST_DIR"));
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.ends_with(ending))
        .collect();
    names.sort();
    names
}

fn document(name: &str) -> Document {
    xml::read(&fixture(name), name).unwrap_or_else(|e| panic!("{}", e.render()))
}

fn machine(name: &str) -> HostSpec {
    match document(name) {
        Document::Machine(host) => host,
        other => panic!("{name} is a {}", other.class()),
    }
}

fn no_files(_: &str) -> std::io::Result<Vec<u8>> {
    Err(std::io::Error::other("no files here"))
}

fn read(text: &str) -> ClusterSpec {
    file::read(text, "t.toml", &mut no_files).unwrap_or_else(|e| panic!("{}", e.render()))
}

fn draw(text: &str) -> Topology {
    read(text).build().unwrap_or_else(|e| panic!("{}", e.render()))
}

/// Goal: every XML file of the collection is read, as what it is.
#[test]
fn every_xml_fixture_has_its_class() {
    let mut seen = Vec::new();
    for name in fixtures(".xml") {
        seen.push((document(&name).class(), name));
    }
    seen.sort();
    let names =
        |class: &str| -> Vec<&str> { seen.iter().filter(|(c, _)| *c == class).map(|(_, n)| n.as_str()).collect() };
    assert_eq!(
        names("machine"),
        ["azure-ncv4-topo.xml", "h200x4-nccl-topo-2gpu.xml", "h200x4-nccl-topo.xml", "oci-h100-topology.xml"]
    );
    assert_eq!(names("graph"), ["azure-ncv4-graph.xml", "h200x4-nccl-graph-2gpu.xml", "h200x4-nccl-graph.xml"]);
    assert_eq!(names("template").len(), 8);
    assert_eq!(seen.len(), 15);
}

/// Goal: the measured machine: hidden NVSwitch, width 0, a NIC below the CPU.
#[test]
fn the_measured_machine_is_read_as_it_is() {
    let host = machine("h200x4-nccl-topo.xml");
    assert_eq!(host.gpus.len(), 4);
    for gpu in &host.gpus {
        assert_eq!(gpu.gpu.model, "H200-SXM5-141GB");
        assert_eq!(gpu.gpu.compute_capability, 90);
        assert_eq!(gpu.pcie_rate.gb_per_s(), 48.0);
        assert_eq!(gpu.nvlinks.len(), 1);
        assert_eq!(gpu.nvlinks[0].target, NvlinkTarget::Switch);
        assert_eq!(gpu.nvlinks[0].count, 18);
        assert_eq!(gpu.nvlinks[0].rate_per_link.gb_per_s(), 25.0);
    }
    let nic = &host.nics[0];
    assert_eq!((nic.nic.name.as_str(), nic.nic.kind), ("eth0", LinkKind::Ethernet));
    assert_eq!(nic.nic.rate.gb_per_s(), 1.25);
    assert!(!nic.nic.gpudirect && !nic.nic.management);
    assert!(host.assumptions.iter().any(|a| a.contains("width 0")));
    // The built-in says the same in our own format.
    for (name, nodes) in [("h200x4", 4), ("h200x2", 2)] {
        let dump = match nodes {
            4 => machine("h200x4-nccl-topo.xml"),
            _ => machine("h200x4-nccl-topo-2gpu.xml"),
        };
        let ours = &builtin::spec(name).unwrap().groups[0].host;
        assert_eq!(ours.gpus.len(), dump.gpus.len());
        for (a, b) in ours.gpus.iter().zip(&dump.gpus) {
            assert_eq!(a.nvlinks, b.nvlinks);
            assert_eq!((a.parent, a.pcie_rate), (b.parent, b.pcie_rate));
            assert_eq!(a.gpu.model, b.gpu.model);
            assert_eq!(a.gpu.memory_rate, b.gpu.memory_rate);
        }
        // NCCL's file says a latency: none.
        let plain = Nic { latency: None, ..dump.nics[0].nic.clone() };
        assert_eq!((&ours.nics[0].nic, dump.nics[0].nic.latency), (&plain, Some(SimDuration::ZERO)));
        assert_eq!(ours.cpus, dump.cpus);
    }
}

/// Goal: four NVSwitches of a dump are one, two ports of a card are two NICs.
#[test]
fn a_bare_metal_dump_merges_its_nvswitches() {
    let host = machine("oci-h100-topology.xml");
    assert_eq!((host.gpus.len(), host.nics.len(), host.cpus.len()), (8, 16, 2));
    for gpu in &host.gpus {
        assert_eq!(gpu.nvlinks.len(), 1);
        assert_eq!(gpu.nvlinks[0].count, 18);
        assert_eq!(gpu.gpu.model, "H100-SXM5-80GB");
    }
    assert_eq!(host.cpu_of(host.gpus[0].parent), Some(0));
    assert_eq!(host.cpu_of(host.gpus[7].parent), Some(1));
    assert!(host.assumptions.iter().any(|a| a.contains("slower than what is below")));
}

/// Goal: NVLinks that point at their own GPU are left out, said, and nothing is cut off.
#[test]
fn links_to_oneself_are_left_out_and_said() {
    let host = machine("azure-ncv4-topo.xml");
    assert!(host.gpus.iter().all(|g| g.nvlinks.is_empty()));
    assert!(host.assumptions.iter().any(|a| a.contains("point at the GPU itself")));
    assert!(host.assumptions.iter().any(|a| a.contains("PCIe 3.0 assumed")));
    let topology = ClusterSpec::single("ncv4", "f", host).build().unwrap();
    assert_eq!(topology.ranks(), 4);
    assert_eq!(topology.profile, None);
}

/// Goal: what NCCL chose, in order, as it wrote it (hexadecimal device numbers).
#[test]
fn graph_files_give_their_channels() {
    let Document::Graph(graphs) = document("h200x4-nccl-graph.xml") else {
        panic!("not a graph");
    };
    let ring = &graphs.graphs[0];
    assert_eq!((ring.id, ring.pattern, ring.channel_count), (0, 4, 12));
    assert_eq!(ring.channels.len(), 12);
    assert_eq!(ring.channels[0].gpus, [0, 1, 2, 3]);
    assert_eq!(ring.speed_intra_gb_per_s, 30.0);
    assert_eq!(ring.type_intra, "NVL");
    assert!(ring.same_channels);
    let Document::Graph(graphs) = document("azure-ncv4-graph.xml") else {
        panic!("not a graph");
    };
    assert_eq!(graphs.graphs[0].channels[1].gpus, [0, 3, 2, 1]);
}

/// Goal: links that few machines have: `pcilink`, `c2c`, a GPU pair listed at one end.
#[test]
fn rare_links_are_read() {
    let text = r#"<system version="1"><cpu numaid="0" arch="arm64" vendor="ARM">
      <pci busid="0000:01:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
        <pcilink target="0000:02:00.0"/>
        <pci busid="0000:03:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
          <gpu dev="1" sm="90" rank="1" gdr="1"><c2c bw="25000" count="8"/></gpu></pci>
      </pci>
      <pci busid="0000:02:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
        <pcilink target="0000:01:00.0"/>
        <pci busid="0000:04:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="8">
          <gpu dev="0" sm="90"><nvlink target="0000:03:00.0" count="6" tclass="0x030200"/></gpu></pci>
        <pci busid="0000:05:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
          <nic><net name="mlx5_2" dev="0" speed="200000" port="1" gdr="1" rail="3"/>
               <net name="eth0" dev="1" speed="-1" port="0" gdr="0"/></nic></pci>
      </pci></cpu></system>"#;
    let Document::Machine(host) = xml::read(text, "f.xml").unwrap() else {
        panic!("not a machine");
    };
    assert_eq!(host.switch_links.len(), 1);
    assert_eq!(host.gpus[0].pcie_rate.gb_per_s(), 24.0);
    assert_eq!(host.gpus[1].c2c.unwrap().gb_per_s(), 200.0);
    // Listed by one end, drawn both ways.
    assert_eq!(host.gpus[0].nvlinks[0].target, NvlinkTarget::Gpu(1));
    assert_eq!(host.gpus[1].nvlinks[0].target, NvlinkTarget::Gpu(0));
    assert_eq!(host.nics[0].nic.rail, Some(3));
    assert!(host.nics[1].nic.management, "Ethernet beside RDMA");
    assert_eq!(host.nics[1].nic.rate.gb_per_s(), 1.25);
    let topology = ClusterSpec::single("t", "f", host).build().unwrap();
    assert!(topology.links().any(|(_, _, _, l)| l.kind == LinkKind::C2c));
    assert_eq!(topology.hosts()[0].nics.len(), 1);
}

/// Goal: every template finds a machine, and says what came from where.
#[test]
fn templates_import_onto_machines() {
    for (name, onto, nic_note) in [
        ("aws-p5.48xl-topo.xml", "aws-p5", "the n-th NIC in the n-th place"),
        ("aws-p4d-24xl-topo.xml", "dgx-a100", "4 places for NICs, shared"),
        ("aws-g5.48xl-topo.xml", "pcie-box", "lists no NIC"),
        ("azure-ndv2-topo.xml", "dgx-a100", "1 places for NICs, shared"),
        ("azure-ndv4-topo.xml", "dgx-a100", "the n-th NIC in the n-th place"),
        ("azure-ndv5-topo.xml", "dgx-h100", "the n-th NIC in the n-th place"),
        ("oci-b4-topo-flattened.xml", "dgx-a100", "the n-th NIC in the n-th place"),
        ("oci-gpu4-topo-flattened.xml", "dgx-a100", "the n-th NIC in the n-th place"),
    ] {
        let Document::Template(template) = document(name) else {
            panic!("{name} is no template");
        };
        let base = builtin::spec(onto).unwrap().groups[0].host.clone();
        let (host, notes) = import(&template, &base).unwrap();
        assert!(notes.iter().any(|n| n.contains(nic_note)), "{name}: {notes:?}");
        assert_eq!(host.gpus.len(), 8);
        assert_eq!(host.nics.len(), base.nics.len());
        assert_eq!(host.cpus.len(), template.cpus.len());
        assert!(host.gpus.iter().all(|g| host.cpu_of(g.parent).is_some()));
        assert!(host.nics.iter().all(|n| host.cpu_of(n.parent).is_some()));
        let topology = ClusterSpec::single("t", name, host).build();
        assert_eq!(topology.map(|t| t.ranks()), Ok(8), "{name}");
    }
}

/// Goal: devices with bus ids go where the template has them, whatever the order.
#[test]
fn imports_match_bus_ids() {
    let Document::Template(template) = document("azure-ndv5-topo.xml") else {
        panic!("not a template");
    };
    let mut base = builtin::spec("dgx-h100").unwrap().groups[0].host.clone();
    for (gpu, place) in base.gpus.iter_mut().zip(template.gpus.iter().rev()) {
        gpu.gpu.bus_id = Some(place.bus_id.to_uppercase());
    }
    let (host, notes) = import(&template, &base).unwrap();
    assert!(notes.iter().any(|n| n.contains("GPUs, by PCI bus id")), "{notes:?}");
    assert_eq!(host.gpus[0].parent, template.gpus[7].parent);
    // Rates that are the machine's own are not said to be assumed.
    for name in ["aws-p5.48xl-topo.xml", "aws-g5.48xl-topo.xml"] {
        let notes = import_text(Source::new(name, &fixture(name)), Some("dgx-h100")).unwrap().notes;
        let said = |what: &str| notes.iter().any(|note| note.contains(what));
        assert!(said("CPU vendor and rate between sockets") && !said("NCCL's figure for the CPU model"), "{notes:?}");
        // Those of p5 are switches, whose links are the template's.
        assert_eq!(said("8 PCIe links without a known speed"), name.contains("p5"), "{notes:?}");
    }
    base.keep_gpus(3);
    base.gpus[0].gpu.bus_id = None;
    let error = import(&template, &base).unwrap_err();
    let error = error.render();
    assert!(
        error.contains("places for 8 GPUs, the machine has 3") && error.contains("choose a machine of 8 GPUs"),
        "{error}"
    );
}

/// Goal: every matrix of the collection is read; NVLinks and NUMA nodes as printed.
#[test]
fn every_matrix_is_read() {
    let mut count = 0;
    for name in fixtures(".txt") {
        let host = smi::read(&fixture(&name), &name, None).unwrap_or_else(|e| panic!("{}", e.render()));
        let topology = ClusterSpec::single(&name, &name, host.clone()).build().unwrap();
        assert!(topology.assumptions.iter().any(|a| a.contains("gives no rates")));
        let (gpus, cpus, switched, nics) = match name.as_str() {
            "aws-g5.48xlarge-nvidia-smi-topo.txt" | "aws-p3.16xlarge-nvidia-smi-topo.txt" => (8, 1, false, 0),
            "aws-p4d.24xlarge-nvidia-smi-topo.txt" | "aws-p5.48xlarge-nvidia-smi-topo.txt" => (8, 2, true, 0),
            "azure-gb300-nvidia-smi-topo.txt" => (4, 2, true, 4),
            // The page says nothing of the GPUs' own node: it is a third one.
            "oci-gb200-v3.4-nvidia-smi-topo.txt" => (4, 3, true, 8),
            other => panic!("{other} is not expected"),
        };
        assert_eq!(host.gpus.len(), gpus, "{name}");
        assert_eq!(host.cpus.len(), cpus, "{name}");
        assert_eq!(host.has_nvswitch(), switched, "{name}");
        assert_eq!(host.nics.len(), nics, "{name}");
        count += 1;
    }
    assert_eq!(count, 6);
    // V100: an uneven mesh of six links a GPU.
    let name = "aws-p3.16xlarge-nvidia-smi-topo.txt";
    let host = smi::read(&fixture(name), name, Some("V100-SXM2-16GB")).unwrap();
    for gpu in &host.gpus {
        assert_eq!(gpu.nvlinks.iter().map(|n| n.count).sum::<u32>(), 6);
        assert_eq!(gpu.gpu.compute_capability, 70);
    }
    let name = "azure-gb300-nvidia-smi-topo.txt";
    let host = smi::read(&fixture(name), name, Some("GB300")).unwrap();
    assert_eq!(host.gpus[0].nvlinks[0].rate_per_link.gb_per_s(), 50.0);
    assert_eq!(host.nics[3].nic.name, "mlx5_3");
    assert_eq!(host.cpu_of(host.nics[3].parent), host.cpu_of(host.gpus[3].parent));
}

/// Goal: GPUs that a matrix does not name are those of so many NVLinks, and the machine says that it is assumed; of the others
/// nothing is known.
#[test]
fn nvlinks_tell_the_generation() {
    for (name, capability, said) in [
        ("aws-p3.16xlarge-nvidia-smi-topo.txt", 70, "compute capability 70 is assumed of GPUs with 6 NVLinks"),
        ("aws-p4d.24xlarge-nvidia-smi-topo.txt", 80, "compute capability 80 is assumed of GPUs with 12 NVLinks"),
        ("aws-p5.48xlarge-nvidia-smi-topo.txt", 90, "compute capability 90 is assumed of GPUs with 18 NVLinks"),
        ("aws-g5.48xlarge-nvidia-smi-topo.txt", 0, "the compute capability of GPUs with 0 NVLinks is unknown"),
    ] {
        let host = smi::read(&fixture(name), name, None).unwrap();
        assert!(host.gpus.iter().all(|gpu| gpu.gpu.compute_capability == capability), "{name}");
        assert!(host.assumptions.iter().any(|a| a.contains(said)), "{name}: {:?}", host.assumptions);
    }
    // XML that says none, and XML that names the product.
    let of = |a100: &str| {
        format!(
            r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
        <pci busid="0000:01:00.0" class="0x030200" {a100} link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="0" rank="0" gdr="1"><nvlink target="fffffff:ff:ff.0" count="12" tclass="0x068000"/></gpu>
        </pci></cpu></system>"#
        )
    };
    for (text, assumed) in [(of(""), true), (of(r#"device="0x20b0""#), false)] {
        let Document::Machine(host) = xml::read(&text, "x.xml").unwrap() else { panic!("no machine") };
        assert_eq!(host.gpus[0].gpu.compute_capability, 80);
        assert_eq!(host.assumptions.iter().any(|a| a.contains("compute capability 80 is assumed")), assumed);
    }
}

/// Goal: PIX is one switch, PXB two levels, and copied text with a legend is read too.
#[test]
fn a_matrix_gives_the_switches() {
    let text = "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tPIX\tPXB\t0-31\t0\t\tN/A
GPU1\tSYS\t X \tSYS\tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tPXB\t\t\t\t
NIC1\tPXB\tSYS\tPXB\t X \t\t\t\t

Legend:

  X    = Self
NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_3
";
    let host = smi::read(text, "t.txt", Some("L40S")).unwrap();
    assert_eq!(host.cpus.len(), 2);
    assert_eq!(host.switches.len(), 3, "a root, one per PIX group");
    assert_eq!(host.gpus[0].parent, host.nics[0].parent);
    assert_ne!(host.gpus[0].parent, host.nics[1].parent);
    assert_eq!(host.gpus[1].parent, Parent::Cpu(1));
    assert_eq!(host.nics[1].nic.name, "mlx5_3");
    assert_eq!(ClusterSpec::single("t", "t.txt", host).build().unwrap().ranks(), 2);
}

/// The two examples of the contract, letter for letter.
const CLUSTER_A: &str = r#"schema = "collcast/topology/1"     # 64 hosts x 8 H100, NDR InfiniBand, one leaf per rail per 32 hosts
name = "cluster-a"
[software]                         # what `auto` depends on
nccl = "2.28.9"
[[hosts]]                          # repeat for mixed hardware
count = 64
names = "gpu[001-064]"             # Slurm host list; gives rank order
like = "dgx-h100"                  # or xml = "nccl_topo.xml", dumped on one host
[hosts.nics]                       # replaces those of `like`
kind = "infiniband"
count = 8
rate = "400 Gb/s"                  # per port, one direction
gpu = [0, 1, 2, 3, 4, 5, 6, 7]     # GPU behind the same PCIe switch
rail = [0, 1, 2, 3, 4, 5, 6, 7]
gpudirect = true
[fabric]
kind = "rail-optimised"            # rail-only, fat-tree, dragonfly+, single-switch
hosts_per_unit = 32
leaf = { per = "rail", rate = "400 Gb/s", down = 32, up = 32 }
spine = { count = 8, ports = 64 }  # checked: 16 leaves x 32 up = 8 x 64
routing = "adaptive"               # or { hash = 7 } for static ECMP, seeded
sharp = false
[[exceptions]]                     # what is not as drawn
host = "gpu017"
nic = 3
rate = "200 Gb/s"                  # or state = "down"
"#;

const TRAIN_P5: &str = r#"schema = "collcast/topology/1"     # 32 x p5.48xlarge; short form: like = "aws-p5", count = 32
name = "train-p5"
[software]
nccl = "2.26.2"
plugin = "aws-ofi-nccl"            # its region tuner decides before NCCL's table
[[hosts]]
count = 32
gpus = { count = 8, kind = "H100-SXM5-80GB" }
nvlink = { kind = "nvswitch", links_per_gpu = 18, rate_per_link = "25 GB/s" }
pcie = { generation = 5, lanes = 16, switches_per_socket = 4, sockets = 2 }
[hosts.nics]
kind = "efa"
count = 32
rate = "100 Gb/s"
per_gpu = 4
gpudirect = true
[hosts.management]                 # so that "wrong NIC" can be diagnosed
name = "ens32"
rate = "100 Gb/s"
[fabric]
kind = "single-switch"
routing = "spray"                  # packets over many paths (SRD)
oversubscription = "unknown"
"#;

/// Goal: the contract's first example: rails, spines that fit, one slow port.
#[test]
fn the_first_example_of_the_contract_loads() {
    let topology = draw(CLUSTER_A);
    assert_eq!(topology.name, "cluster-a");
    assert_eq!(topology.ranks(), 512);
    assert_eq!(topology.software.nccl, "2.28.9".parse().ok());
    assert_eq!(topology.profile.as_deref(), None);
    assert_eq!(topology.hosts()[16].name, "gpu017");
    assert!(topology.assumptions.iter().any(|a| a.starts_with("fabric: 8 spines are drawn as one switch")));
    let leaf = topology.find("leaf0-rail3").unwrap();
    let slow = topology.find("gpu017/nic3").unwrap();
    let rates: Vec<f64> =
        topology.links_from(leaf).filter(|(_, to, _)| *to == slow).map(|(_, _, l)| l.rate.gb_per_s()).collect();
    assert_eq!(rates, [25.0]);
    let spine = topology.find("spine").unwrap();
    assert_eq!(topology.links_from(spine).count(), 16);
    for (_, _, link) in topology.links_from(spine) {
        assert_eq!((link.rate.gb_per_s(), link.width), (1600.0, 32));
    }
    assert!(topology.find("leaf1-rail7").is_some());
    assert!(topology.find("leaf2-rail0").is_none());
    // Static hashing keeps each spine and each cable apart.
    let hashed = draw(&CLUSTER_A.replace("routing = \"adaptive\"", "routing = { hash = 7 }"));
    let spine = hashed.find("spine7").unwrap();
    assert_eq!(hashed.links_from(spine).count(), 16 * 4);
    assert!(hashed.links_from(spine).all(|(_, _, l)| l.width == 1));
    // Fewer hosts drop the count of spines and the exceptions of hosts that are gone.
    let few = read(CLUSTER_A).with_nodes(8).unwrap().build().unwrap();
    assert_eq!(few.ranks(), 64);
    assert!(few.assumptions.iter().any(|a| a.contains("counts spines for 64 hosts")));
    // A port that is down is absent.
    let down = draw(&CLUSTER_A.replace("rate = \"200 Gb/s\" ", "state = \"down\" "));
    let nic = down.find("gpu017/nic3").unwrap();
    assert!(down.links_from(nic).all(|(_, _, l)| l.kind == LinkKind::Pcie));
}

/// Goal: the contract's second example: explicit keys, a management NIC, unknowns.
#[test]
fn the_second_example_of_the_contract_loads() {
    let topology = draw(TRAIN_P5);
    assert_eq!(topology.ranks(), 256);
    assert_eq!(topology.software.plugin.as_deref(), Some("aws-ofi-nccl"));
    assert!(topology.assumptions.iter().any(|a| a.contains("over-subscription is unknown")));
    assert!(topology.assumptions.iter().any(|a| a.contains("between CPU sockets assumed")));
    assert_eq!(topology.hosts()[0].nics.len(), 32);
    let management = topology.find("host0/nic32").unwrap();
    assert!(topology.nic(management).unwrap().management);
    let gpu = topology.gpu(topology.find("host0/gpu0").unwrap()).unwrap();
    assert_eq!(gpu.compute_capability, 90);
    assert_eq!(gpu.memory_rate.unwrap().gb_per_s(), 3350.0);
    // NICs 4 to 7 sit behind the switch of GPU 1.
    let switch = topology.find("host0/pcisw1").unwrap();
    let below: Vec<String> = topology.links_from(switch).map(|(_, to, _)| topology.vertex(to).name.clone()).collect();
    for name in ["host0/gpu1", "host0/nic4", "host0/nic7"] {
        assert!(below.iter().any(|b| b == name), "{name}: {below:?}");
    }
}

/// Goal: the short form is the built-in with its fabric; own keys replace parts of it.
#[test]
fn short_forms_and_overrides() {
    let short = draw("schema = \"collcast/topology/1\"\nlike = \"aws-p5\"\ncount = 32\n");
    assert_eq!(short.ranks(), 256);
    assert_eq!(short.profile, None);
    let kept =
        draw("schema = \"collcast/topology/1\"\n[[hosts]]\ncount = 2\nlike = \"dgx-h100\"\ngpus = { count = 4 }\n");
    assert_eq!(kept.ranks(), 8);
    assert!(kept.assumptions.iter().any(|a| a.contains("that of the built-in `dgx-h100`")));
    // Mixed hardware, ranks in file order.
    let mixed = draw(
        "schema = \"collcast/topology/1\"\n[[hosts]]\nnames = \"a[1-2]\"\nlike = \"dgx-h100\"\n\
         [[hosts]]\nnames = \"b1\"\nlike = \"dgx-h200\"\n",
    );
    assert_eq!(mixed.ranks(), 24);
    assert_eq!(mixed.hosts()[2].name, "b1");
    // A file beside this one.
    let spec = file::read(
        "schema = \"collcast/topology/1\"\n[[hosts]]\ncount = 2\nxml = \"nccl_topo.xml\"\n\
         [hosts.nics]\nkind = \"infiniband\"\ncount = 4\nrate = \"400 Gb/s\"\nper_gpu = 1\n",
        "t.toml",
        &mut |name| {
            assert_eq!(name, "nccl_topo.xml");
            Ok(fixture("h200x4-nccl-topo.xml").into_bytes())
        },
    )
    .unwrap();
    let topology = spec.build().unwrap();
    assert_eq!(topology.ranks(), 8);
    assert_eq!(profile_for(&topology), Some(("h200-nvswitch", true)));
    assert_eq!(topology.hosts()[0].nics.len(), 4);
}

/// Goal: each shape of fabric has the switches that its name says.
#[test]
fn fabrics_have_their_shape() {
    let cluster = |count: u32, fabric: &str| {
        draw(&format!(
            "schema = \"collcast/topology/1\"\n[[hosts]]\ncount = {count}\nlike = \"dgx-h100\"\n[fabric]\n{fabric}\n"
        ))
    };
    let switches =
        |t: &Topology| t.vertices().filter(|(_, v)| v.host.is_none()).map(|(_, v)| v.name.clone()).collect::<Vec<_>>();
    assert_eq!(switches(&cluster(4, "kind = \"single-switch\"")), ["switch"]);
    let rails = "hosts_per_unit = 2\nleaf = { rate = \"400 Gb/s\", down = 2, up = 2 }";
    assert_eq!(switches(&cluster(4, &format!("kind = \"rail-optimised\"\n{rails}"))).len(), 17);
    // Rail-only: a spine per rail, none over all.
    let only = switches(&cluster(4, &format!("kind = \"rail-only\"\n{rails}")));
    assert_eq!(only.len(), 24);
    assert!(only.contains(&"spine-rail7".to_owned()));
    let tree = cluster(4, "kind = \"fat-tree\"\nhosts_per_unit = 2\nleaf = { rate = \"400 Gb/s\", down = 16, up = 4 }");
    assert_eq!(switches(&tree), ["leaf0", "leaf1", "spine"]);
    let spine = tree.find("spine").unwrap();
    assert!(tree.links_from(spine).all(|(_, _, l)| l.rate.gb_per_s() == 200.0));
    // 3:1 over-subscription: 16 ports down, 6 up.
    let thin = cluster(4, "kind = \"fat-tree\"\nhosts_per_unit = 2\noversubscription = \"3:1\"");
    let spine = thin.find("spine").unwrap();
    assert!(thin.links_from(spine).all(|(_, _, l)| l.width == 6));
    let fly = cluster(
        6,
        "kind = \"dragonfly+\"\nhosts_per_unit = 2\nleaf = { rate = \"400 Gb/s\", down = 16, up = 16 }\nspine = { count = 1, ports = 20 }",
    );
    assert_eq!(switches(&fly).len(), 6);
    let a = fly.find("spine-unit0").unwrap();
    assert_eq!(fly.links_from(a).filter(|(_, _, l)| l.width == 2).count(), 2);
}

/// Goal: every built-in loads with any number of hosts, connected, with its figures and a profile that there is, if any.
#[test]
fn every_built_in_loads_with_any_number_of_hosts() {
    for name in builtin::names() {
        assert!(builtin::describe(name).is_some_and(|d| !d.is_empty()), "{name}");
        for nodes in [None, Some(1), Some(2), Some(32), Some(65)] {
            let topology =
                builtin::load(name, nodes, None).unwrap_or_else(|e| panic!("{name} {nodes:?}\n{}", e.render()));
            let profile = topology.profile.as_deref();
            assert!(profile.is_none_or(|p| Profile::builtin_text(p).is_some()), "{name} names profile {profile:?}");
            let hosts = nodes.unwrap_or(if name == "ib-rail" { 32 } else { 1 });
            assert_eq!(topology.hosts().len(), hosts as usize);
            for rank in 0..topology.ranks() {
                let id = topology.gpu_of(collcast_sim::ids::Rank(rank));
                let gpu = topology.gpu(id).unwrap();
                assert!(gpu.memory_rate.is_some() && gpu.compute_capability > 0);
            }
        }
        let two = builtin::load(name, Some(2), Some(2)).unwrap();
        assert_eq!(two.ranks(), 4, "{name}");
    }
    let unit = builtin::load("ib-rail", None, None).unwrap();
    assert_eq!(unit.ranks(), 256);
    assert!(unit.find("spine").is_some());
    // H100 to its NVSwitches: 18 x 25 GB/s.
    let dgx = builtin::load("dgx-h100", Some(1), None).unwrap();
    let gpu = dgx.gpu_of(collcast_sim::ids::Rank(0));
    assert_eq!(dgx.total_rate(gpu, LinkKind::Nvlink), 450_000_000_000);
}

/// Goal: the machines have the links of their data sheets. Values: NVLink and CPU link of a GPU,
/// PCIe between them, ports of a host and what all carry together, in GB/s of one direction.
#[test]
fn built_ins_have_the_rates_of_their_data_sheets() {
    let cases = [
        ("aws-p4d", 8, 300.0, 0.0, 12.0, 4, 50.0),
        ("aws-p4de", 8, 300.0, 0.0, 12.0, 4, 50.0),
        ("aws-p5", 8, 450.0, 0.0, 48.0, 32, 400.0),
        ("aws-p5e", 8, 450.0, 0.0, 48.0, 32, 400.0),
        ("aws-p5en", 8, 450.0, 0.0, 48.0, 16, 400.0),
        ("aws-p6-b200", 8, 900.0, 0.0, 48.0, 8, 400.0),
        ("aws-p6-b300", 8, 900.0, 0.0, 96.0, 16, 800.0),
        ("aws-p6e-gb200", 4, 900.0, 450.0, 48.0, 4, 200.0),
        ("gcp-a4x", 4, 900.0, 450.0, 48.0, 4, 200.0),
        ("azure-nd-gb200-v6", 4, 900.0, 450.0, 48.0, 4, 200.0),
        ("aws-g4dn", 8, 0.0, 0.0, 12.0, 1, 12.5),
        ("azure-nd-a100-v4", 8, 300.0, 0.0, 24.0, 8, 200.0),
        ("azure-nd-h200-v5", 8, 450.0, 0.0, 48.0, 8, 400.0),
        ("gcp-a3", 8, 450.0, 0.0, 48.0, 4, 100.0),
        ("gcp-a3-mega", 8, 450.0, 0.0, 48.0, 8, 200.0),
        ("gcp-a4", 8, 900.0, 0.0, 48.0, 8, 400.0),
        ("oci-a100", 8, 300.0, 0.0, 24.0, 16, 200.0),
        ("oci-h100", 8, 450.0, 0.0, 48.0, 16, 400.0),
        ("gb200-nvl72", 4, 900.0, 450.0, 48.0, 4, 200.0),
        ("gb300-nvl72", 4, 900.0, 450.0, 48.0, 4, 400.0),
        ("oci-gb200", 4, 900.0, 450.0, 48.0, 8, 400.0),
        ("abci-v100", 4, 150.0, 0.0, 12.0, 2, 25.0),
        ("abci-a100", 8, 300.0, 0.0, 24.0, 4, 100.0),
        ("alps-gh200", 4, 450.0, 450.0, 24.0, 4, 100.0),
        ("kestrel-h100", 4, 450.0, 0.0, 48.0, 2, 50.0),
        ("rtx6000d-box", 8, 0.0, 0.0, 48.0, 8, 400.0),
        ("workstation", 4, 0.0, 0.0, 48.0, 1, 1.25),
    ];
    for (name, gpus, nvlink, c2c, pcie, ports, total) in cases {
        let one = builtin::load(name, Some(1), None).unwrap();
        assert_eq!(one.ranks(), gpus, "{name}");
        let two = builtin::load(name, Some(2), None).unwrap();
        for rank in 0..gpus {
            let gpu = two.gpu_of(collcast_sim::ids::Rank(rank));
            let rate = |kind| two.total_rate(gpu, kind) as f64 / 1e9;
            assert_eq!(
                (rate(LinkKind::Nvlink), rate(LinkKind::C2c), rate(LinkKind::Pcie)),
                (nvlink, c2c, pcie),
                "{name}"
            );
        }
        let nics: Vec<f64> =
            two.hosts()[0].nics.iter().filter_map(|&n| two.nic(n)).map(|n| n.rate.gb_per_s()).collect();
        assert_eq!((nics.len(), nics.iter().sum::<f64>()), (ports, total), "{name}");
    }
    // A mesh of four: each pair of V100 has two links of 25 GB/s.
    let abci = builtin::load("abci-v100", Some(1), None).unwrap();
    let (a, b) = (abci.gpu_of(collcast_sim::ids::Rank(0)), abci.gpu_of(collcast_sim::ids::Rank(3)));
    let pair = abci.links_from(a).find(|l| l.1 == b && l.2.kind == LinkKind::Nvlink).unwrap().2;
    assert_eq!((pair.width, pair.rate.gb_per_s()), (2, 50.0));
}

/// Goal: any path a user gives: TOML, XML, text; nodes multiply files too.
#[test]
fn files_are_loaded_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let toml = folder.path().join("cluster.toml");
    std::fs::write(&toml, "schema = \"collcast/topology/1\"\n[[hosts]]\nxml = \"dump.xml\"\n").unwrap();
    let xml = folder.path().join("dump.xml");
    std::fs::write(&xml, fixture("oci-h100-topology.xml")).unwrap();
    let txt = folder.path().join("smi.txt");
    std::fs::write(&txt, fixture("azure-gb300-nvidia-smi-topo.txt")).unwrap();
    for (path, per_host) in [(&toml, 8), (&xml, 8), (&txt, 4)] {
        for nodes in [1, 3] {
            let topology = collcast_topologies::load_any(path.to_str().unwrap(), Some(nodes), None)
                .unwrap_or_else(|e| panic!("{}", e.render()));
            assert_eq!(topology.ranks(), per_host * nodes);
        }
    }
}

/// Goal: the schema is JSON, and knows the keys of the contract.
#[test]
fn the_json_schema_names_the_keys() {
    let schema: serde_json::Value = serde_json::from_str(&file::json_schema()).unwrap();
    for key in ["schema", "hosts", "fabric", "exceptions", "like", "count", "software"] {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
    assert_eq!(schema["additionalProperties"], serde_json::json!(false));
    assert!(schema["$defs"]["Nics"]["properties"]["rate"].is_object());
}

/// Goal: the largest cluster that is allowed is drawn, as the bound on memory promises.
#[test]
fn the_largest_cluster_is_drawn() {
    let topology = builtin::load("dgx-h100", Some(25_000), None).unwrap();
    assert_eq!(topology.ranks(), 200_000);
    assert!(builtin::load("dgx-h100", Some(25_001), None).is_err());
}
