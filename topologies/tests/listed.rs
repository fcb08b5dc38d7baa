//! Files that list hosts, switches or devices without GPUs: what each becomes with a machine, what is refused, and that
//! no bytes break a reader.

use collcast_sim::nccl::nvlink::{self, Nvlinks};
use collcast_sim::topology::{LinkKind, Topology, VertexKind};
use collcast_topologies::catalogue::{PRODUCTS, nvlink_rate};
use collcast_topologies::cluster::{ClusterSpec, profile_for};
use collcast_topologies::error::Source;
use collcast_topologies::host::{HostSpec, NvlinkTarget, Parent};
use collcast_topologies::hostlist::{compress, expand};
use collcast_topologies::import::{Imported, import_text};
use collcast_topologies::xml::{self, Document};
use collcast_topologies::{TopologiesError, builtin, file};
use proptest::prelude::*;

fn fixture(name: &str) -> String {
    let path = format!("{}/tests/data/listed/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn import(text: &str, name: &str, like: Option<&str>) -> Result<Imported, TopologiesError> {
    import_text(Source::new(name, text), like)
}

/// The cluster that is imported, read back from the file that is written.
fn cluster(name: &str, like: Option<&str>) -> (ClusterSpec, Topology, Vec<String>) {
    read_back(&import(&fixture(name), name, like).unwrap_or_else(|e| panic!("{}", e.render())))
}

fn read_back(imported: &Imported) -> (ClusterSpec, Topology, Vec<String>) {
    let mut none = |_: &str| Err(std::io::Error::other("no files here"));
    let spec = file::read_any(imported.text.as_bytes(), "back.toml", &mut none);
    let spec = spec.unwrap_or_else(|e| panic!("{}\n{}", e.render(), imported.text));
    let topology = spec.build().unwrap_or_else(|e| panic!("{}", e.render()));
    (spec, topology, imported.notes.clone())
}

/// Network switches by layer.
fn layers(topology: &Topology) -> Vec<usize> {
    let mut layers = Vec::new();
    for (_, vertex) in topology.vertices() {
        if let VertexKind::NetSwitch { level } = vertex.kind {
            layers.resize(layers.len().max(level as usize + 1), 0);
            layers[level as usize] += 1;
        }
    }
    layers
}

/// Rate in GB/s of the cables from one vertex to another, by name.
fn rate(topology: &Topology, from: &str, to: &str) -> f64 {
    let name = |id| topology.vertex(id).name.clone();
    let links = topology.links().filter(|(_, a, b, _)| name(*a) == from && name(*b) == to);
    links.map(|(_, _, _, link)| link.rate.gb_per_s()).sum()
}

fn said(notes: &[String], text: &str) {
    assert!(notes.iter().any(|note| note.contains(text)), "`{text}` is not in {notes:#?}");
}

/// Goal: Slurm's tree of three layers, with a leaf for each rail of the machine, and its full rate upwards.
#[test]
fn slurms_tree_has_leaves_by_rail() {
    let (spec, topology, notes) = cluster("slurm-tree.conf", Some("dgx-h100"));
    assert_eq!((spec.host_count(), topology.ranks()), (96, 768));
    // 12 leaves x 8 rails, 6 spines, 1 core.
    assert_eq!(layers(&topology), [96, 6, 1]);
    assert_eq!(rate(&topology, "srv1103/nic5", "switch.1.1-rail5"), 50.0);
    assert_eq!(rate(&topology, "srv1103/nic5", "switch.1.1-rail4"), 0.0);
    assert_eq!(rate(&topology, "switch.1.2-rail7", "switch.2.1"), 8.0 * 50.0);
    assert_eq!(rate(&topology, "switch.2.6", "switch.3.1"), 16.0 * 8.0 * 50.0);
    said(&notes, "96 hosts below 12 leaf switches, 19 switches in all");
    said(&notes, "a leaf of the file is a leaf for each rail");
    said(&notes, "8 GPUs and 8 NICs of each host, with all rates, from `dgx-h100`");
    assert_eq!(spec.groups[0].names[8], "srv1201");
}

/// Goal: blocks are NVLink domains where the machine has such, with as many hosts as are listed, else leaves.
#[test]
fn slurms_blocks_are_domains_or_leaves() {
    let (spec, topology, notes) = cluster("slurm-block.conf", Some("gb200-nvl72"));
    assert_eq!((spec.groups.len(), spec.host_count()), (12, 96));
    let domains = topology.vertices().filter(|(_, v)| v.kind == VertexKind::NvSwitch).count();
    assert_eq!(domains, 12, "a block of 8 hosts is a domain of 18 seats");
    said(&notes, "a block is taken as an NVLink domain");
    said(&notes, "blocksizes (1)");
    let (spec, topology, notes) = cluster("slurm-block.conf", Some("azure-nd-h100-v5"));
    assert_eq!((spec.groups.len(), spec.host_count()), (12, 96));
    assert_eq!(layers(&topology)[0], 12 * 8);
    said(&notes, "a block is taken as a set of hosts below one leaf");
}

/// Goal: cables of InfiniBand as they are: which NIC is on which leaf, parallel spines as one, SHARP.
#[test]
fn an_infiniband_network_is_its_cables() {
    let (spec, topology, notes) = cluster("ibnetdiscover-short.txt", Some("kestrel-h100"));
    assert_eq!(
        spec.groups[0].names,
        ["a06-p1-dgx-02-c01", "a06-p1-dgx-02-c02", "a06-p1-dgx-02-c03", "a06-p1-dgx-02-c04"]
    );
    assert_eq!(layers(&topology), [2, 1]);
    assert_eq!(rate(&topology, "a06-p1-dgx-02-c02/nic0", "A09-P1-IBLEAF-01-02"), 25.0);
    assert_eq!(rate(&topology, "a06-p1-dgx-02-c02/nic1", "A09-P1-IBLEAF-04-02"), 25.0);
    // Two spines with two cables of 400 Gb/s each.
    assert_eq!(rate(&topology, "A09-P1-IBLEAF-04-02", "A10-P1-IBSPINE-02"), 4.0 * 50.0);
    assert!(topology.sharp, "each switch has an aggregation node");
    said(&notes, "the cables of the hosts carry 50 GB/s; the machine's NICs, which count here, 25 GB/s");
    said(&notes, "stands for 2 switches of layer 1 in parallel");
    said(&notes, "2 ports of adapters without the name of a host (`MT4129 ConnectX7 Mellanox Technologies`)");
    // Slower cables between switches leave the ports of hosts as they are.
    let slow = |line: &str| {
        let upwards = line.starts_with('[') && line.contains("\"S-") && !line.contains("(e09d");
        (if upwards { line.replace("4xNDR", "4xEDR") } else { line.to_owned() }) + "\n"
    };
    let text: String = fixture("ibnetdiscover-short.txt").lines().map(slow).collect();
    let (_, topology, _) = read_back(&import(&text, "ib.txt", Some("kestrel-h100")).unwrap());
    assert_eq!(rate(&topology, "a06-p1-dgx-02-c02/nic1", "A09-P1-IBLEAF-04-02"), 25.0);
    assert_eq!(rate(&topology, "A09-P1-IBLEAF-04-02", "A10-P1-IBSPINE-02"), 4.0 * 12.5);
}

/// A rail-optimised network of three layers as ibnetdiscover prints it: `units` of 4 hosts with 2 ports.
fn three_layers(units: usize, slow: Option<usize>, lost: Option<usize>) -> String {
    let mut out = String::new();
    let mut add = |guid: String, name: String, ports: Vec<String>| {
        out += &format!(
            "\nvendid=0x2c9\nswitchguid=0x{guid}({guid})\nSwitch\t64 \"S-{guid}\"\t\t# \"{name}\" base port 0 lid 1 lmc 0\n"
        );
        ports.iter().for_each(|port| out += port);
    };
    let cable = |port: usize, peer: &str, to: usize, name: &str, speed: &str| {
        format!("[{port}]\t\"{peer}\"[{to}]\t\t# \"{name}\" lid 9 {speed}\n")
    };
    for unit in 0..units {
        for rail in 0..2 {
            let mut ports = Vec::new();
            for host in 0..4 {
                let number = 4 * unit + host;
                if lost == Some(number) && rail == 1 {
                    continue;
                }
                let speed = if slow == Some(number) { "2xHDR" } else { "4xHDR" };
                ports.push(cable(
                    host + 1,
                    &format!("H-a{number:03x}{rail}"),
                    1,
                    &format!("n{number} mlx5_{rail}"),
                    speed,
                ));
            }
            for spine in 0..2 {
                ports.push(cable(10 + spine, &format!("S-b{unit}{spine}"), rail + 1, "spine", "4xHDR"));
            }
            add(format!("c{unit}{rail}"), format!("leaf-{unit}-{rail}"), ports);
        }
        for spine in 0..2 {
            let mut ports: Vec<String> =
                (0..2).map(|rail| cable(rail + 1, &format!("S-c{unit}{rail}"), 10 + spine, "leaf", "4xHDR")).collect();
            ports.push(cable(30, &format!("S-d{spine}"), unit + 1, "core", "4xHDR"));
            add(format!("b{unit}{spine}"), format!("spine-{unit}-{spine}"), ports);
        }
    }
    for core in 0..2 {
        let ports = (0..units).map(|unit| cable(unit + 1, &format!("S-b{unit}{core}"), 30, "spine", "4xHDR")).collect();
        add(format!("d{core}"), format!("core-{core}"), ports);
    }
    out
}

/// Goal: three layers keep their pods, and ports that are slow or dead are exceptions of the file.
#[test]
fn pods_slow_and_dead_ports_are_kept() {
    let text = three_layers(3, Some(5), Some(2));
    let (spec, topology, notes) = read_back(&import(&text, "ib.txt", Some("kestrel-h100")).unwrap());
    assert_eq!(spec.host_count(), 12);
    // Two rails, one merged layer of spines a pod, one core.
    assert_eq!(layers(&topology), [6, 3, 1]);
    assert_eq!(rate(&topology, "leaf-1-0", "spine-1-0"), 2.0 * 25.0);
    assert_eq!(rate(&topology, "spine-1-0", "core-0"), 2.0 * 25.0);
    assert_eq!(rate(&topology, "n5/nic0", "leaf-1-0"), 12.5);
    assert_eq!(rate(&topology, "n2/nic1", "leaf-0-1"), 0.0);
    said(&notes, "NIC 1 of n2 is not in the list: taken as down");
    said(&notes, "NIC 0 of n5 runs at 12.5 GB/s");
}

/// Goal: hosts of a list may be like those of a topology file, whose keys go before those of its own `like`.
#[test]
fn hosts_may_be_like_those_of_a_file() {
    let folder = std::env::temp_dir().join(format!("collcast-like-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("mine.toml");
    let mine = "schema = \"collcast/topology/1\"\n[[hosts]]\ncount = 4\nlike = \"dgx-h100\"\n[hosts.nics]\n\
                kind = \"roce\"\ncount = 4\nrate = \"200 Gb/s\"\n";
    std::fs::write(&path, mine).unwrap();
    let text = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=top Switches=a,b\n";
    let imported = import(text, "topology.conf", path.to_str()).unwrap_or_else(|e| panic!("{}", e.render()));
    let mut named = |name: &str| std::fs::read(name);
    let spec = file::read(&imported.text, "cluster.toml", &mut named).unwrap_or_else(|e| panic!("{}", e.render()));
    std::fs::remove_dir_all(&folder).unwrap();
    let host = &spec.groups[0].host;
    assert_eq!((spec.host_count(), host.gpus.len(), host.nics.len()), (4, 8, 4));
    assert!(host.nics.iter().all(|nic| nic.nic.rate.gb_per_s() == 25.0));
    spec.build().unwrap();
}

/// Goal: EC2's answer says which machine its instances are; others are counted.
#[test]
fn ec2_instances_are_below_their_network_nodes() {
    let (spec, topology, notes) = cluster("ec2-instances.json", None);
    assert_eq!(
        spec.groups[0].names,
        ["i-0a1111111example", "i-0c3333333example", "i-0b2222222example", "i-0d4444444example"]
    );
    assert_eq!(topology.ranks(), 32);
    // EC2's machines have a network for management too.
    assert_eq!(layers(&topology), [3 + 1, 2, 1]);
    assert_eq!(spec.groups[0].host.nics[0].nic.kind, LinkKind::Efa);
    said(&notes, "1 instances of `trn1.32xlarge`, of which no machine is known");
    let (spec, ..) = cluster("ec2-instances.json", Some("aws-p4d"));
    assert_eq!(spec.host_count(), 5, "--like holds for all");
}

/// Goal: lstopo's places with a machine's devices: ports are no switches, Ethernet is left out.
#[test]
fn lstopo_places_the_devices_of_a_machine() {
    let text = fixture("lstopo-h100.xml");
    let like = "topologies/tests/data/listed/nccl-graph.log";
    let like = format!("{}/../{like}", env!("CARGO_MANIFEST_DIR"));
    let imported = import(&text, "lstopo.xml", Some(&like)).unwrap_or_else(|e| panic!("{}", e.render()));
    let Document::Machine(host) = xml::read(&imported.text, "x.xml").unwrap() else { panic!("no machine") };
    assert_eq!((host.cpus.len(), host.switches.len(), host.gpus.len(), host.nics.len()), (2, 4, 4, 4));
    for (i, (gpu, nic)) in host.gpus.iter().zip(&host.nics).enumerate() {
        assert_eq!((gpu.parent, nic.parent), (Parent::Switch(i), Parent::Switch(i)));
        assert_eq!(gpu.pcie_rate.gb_per_s(), 48.0, "PCIe 5.0 x16 by NCCL's rule");
        assert_eq!(host.cpu_of(gpu.parent), Some(i / 2));
    }
    said(&imported.notes, "1 NICs without RDMA are left out");
    let error = import(&text, "lstopo.xml", None).unwrap_err().render();
    assert!(error.contains("--like dgx-h100"), "{error}");
    // GPUs of another number than there are places.
    let error = import(&text, "lstopo.xml", Some("dgx-h100")).unwrap_err().render();
    assert!(error.contains("places for 4 GPUs, the machine has 8"), "{error}");
}

/// Goal: a log with the subsystem GRAPH is a machine by itself: hosts, version, variables, tree, NVLinks.
#[test]
fn a_log_of_nccl_is_a_machine() {
    let mut none = |_: &str| Err(std::io::Error::other("no files here"));
    let text = fixture("nccl-graph.log");
    let spec = file::read_any(text.as_bytes(), "nccl.log", &mut none).unwrap_or_else(|e| panic!("{}", e.render()));
    assert_eq!(spec.groups[0].names, ["gpu01", "gpu02"]);
    assert_eq!(spec.software.nccl, "2.28.9".parse().ok());
    assert_eq!(spec.software.env, [("NCCL_NVLS_ENABLE".to_owned(), "0".to_owned())]);
    let host = &spec.groups[0].host;
    assert_eq!((host.cpus.len(), host.switches.len(), host.gpus.len(), host.nics.len()), (2, 4, 4, 4));
    for (i, gpu) in host.gpus.iter().enumerate() {
        assert_eq!((gpu.gpu.model.as_str(), gpu.gpu.compute_capability), ("H100-SXM5-80GB", 90));
        assert_eq!((gpu.parent, gpu.pcie_rate.gb_per_s()), (Parent::Switch(i), 48.0));
        assert_eq!((gpu.nvlinks[0].target, gpu.nvlinks[0].count), (NvlinkTarget::Switch, 18));
        assert_eq!(gpu.gpu.bus_id.as_deref(), Some(format!("0000:{:02x}:00.0", 0x1b + 16 * i).as_str()));
        let nic = &host.nics[i];
        assert_eq!((nic.nic.name.as_str(), nic.nic.kind), (format!("mlx5_{i}").as_str(), LinkKind::Infiniband));
        assert_eq!((nic.nic.rate.gb_per_s(), nic.parent), (50.0, Parent::Switch(i)));
    }
    assert_eq!(host.cpus[0].interconnect.gb_per_s(), 22.0);
    assert_eq!(spec.build().unwrap().ranks(), 8);
    // The same as XML of one host.
    let imported = import(&text, "nccl.log", None).unwrap();
    let Document::Machine(back) = xml::read(&imported.text, "x.xml").unwrap() else { panic!("no machine") };
    assert_eq!((back.gpus.len(), back.gpus[0].nvlinks[0].count), (4, 18));
    said(&imported.notes, "the 2 hosts of the log");
}

/// A log of two GPUs with a line of NVLinks, and the host that it is read as.
fn drawn(version: &str, links: &str, cpu: &str) -> HostSpec {
    let mut text = format!("h1:1:1 [0] NCCL INFO NCCL version {version}\n");
    for rank in 0..2 {
        text += &format!("h1:1:1 [0] NCCL INFO comm 0x5 rank {rank} nranks 2 cudaDev {rank}\n");
    }
    text +=
        &format!("h1:1:1 [0] NCCL INFO === System : maxBw 1.0 totalBw 1.0 ===\nh1:1:1 [0] NCCL INFO CPU/0 ({cpu})\n");
    for (rank, gpu) in ["1B000", "1C000"].iter().enumerate() {
        text += &format!("h1:1:1 [0] NCCL INFO + PCI[12.0] - GPU/{gpu} ({rank})\nh1:1:1 [0] NCCL INFO     + {links}\n");
    }
    text += "h1:1:1 [0] NCCL INFO ======\n";
    let mut none = |_: &str| Err(std::io::Error::other("no files here"));
    let spec = file::read_any(text.as_bytes(), "nccl.log", &mut none).unwrap_or_else(|e| panic!("{}", e.render()));
    spec.groups[0].host.clone()
}

/// Goal: GPUs that a log does not name are told by NVLinks that real ones have, and said to be unknown where several have such.
#[test]
fn nvlinks_of_a_log_tell_the_gpus() {
    for (version, links, capability, count, note) in [
        ("2.19.3", "NVL[120.0] - NVS/0", 70, 6, "capability 70 assumed"),
        ("2.19.4", "NVL[360.0] - NVS/0", 90, 18, "capability 90 assumed"),
        ("2.28.9", "NVL[240.0] - NVS/0", 80, 12, "capability 80 assumed"),
        ("2.28.9", "NVL[721.8] - NVS/0", 100, 18, "capability 100 assumed"),
        ("2.19.4", "NVL[160.0] - NVS/0", 0, 8, "may be of compute capability 80 or 90"),
        ("2.28.9", "NVL[80.0] - NVS/0", 0, 4, "no kind that is known"),
    ] {
        let host = drawn(version, links, "1/1/2");
        let gpu = &host.gpus[0];
        assert_eq!((gpu.gpu.compute_capability, gpu.nvlinks[0].count), (capability, count), "{version} {links}");
        assert!(host.assumptions.iter().any(|said| said.contains(note)), "{note}: {:?}", host.assumptions);
    }
}

/// Goal: a model of a CPU that no CPU has is none that is known, not an overflow.
#[test]
fn any_cpu_model_is_read() {
    for (model, rate) in [("-2147483648", 6.0), ("1", 6.0), ("2", 10.0), ("2147483647", 40.0)] {
        let host = drawn("2.28.9", "NVL[370.8] - NVS/0", &format!("1/1/{model}"));
        assert_eq!(host.cpus[0].interconnect.gb_per_s(), rate, "{model}");
    }
}

/// Goal: a GPU of the catalogue is one to everything that goes by generations: the rate of its NVLinks, a log that does not
/// name it, and the profile of a host.
#[test]
fn every_product_is_known_everywhere() {
    let mut with_switches = 0;
    for product in PRODUCTS {
        let cc = product.compute_capability;
        let links = Nvlinks::of(cc);
        assert_eq!(
            nvlink_rate(cc).map(collcast_sim::units::Bandwidth::gb_per_s),
            links.map(|links| links.nominal),
            "{}",
            product.name
        );
        let Some(links) = links else { continue };
        for &count in links.switched {
            let printed = format!("NVL[{:.1}] - NVS/0", f64::from(count) * nvlink::counted(cc));
            let mut host = drawn("2.30.7", &printed, "1/1/2");
            let gpu = &mut host.gpus[0];
            assert!(links.capability.contains(&gpu.gpu.compute_capability), "{}: {printed}", product.name);
            assert_eq!(gpu.nvlinks[0].count, count, "{}", product.name);
            // All since A100 have a profile of hosts of 4.
            product.name.clone_into(&mut gpu.gpu.model);
            host.gpus = vec![host.gpus[0].clone(); 4];
            assert_eq!(
                profile_for(&ClusterSpec::single("drawn", "nccl.log", host).build().unwrap()).is_some(),
                cc >= 80 && !product.name.starts_with("GH"),
                "{}",
                product.name
            );
            with_switches += 1;
        }
    }
    assert!(with_switches > 10, "{with_switches}");
}

/// Goal: a log without that subsystem gives hosts, version and variables to a machine that is named.
#[test]
fn a_log_without_devices_needs_a_machine() {
    let text: String = fixture("nccl-graph.log")
        .lines()
        .filter(|l| !l.contains("+ ") && !l.contains("=== "))
        .map(|l| format!("{l}\n"))
        .collect();
    let mut none = |_: &str| Err(std::io::Error::other("no files here"));
    let error = file::read_any(text.as_bytes(), "nccl.log", &mut none).unwrap_err().render();
    assert!(error.contains("NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH") && error.contains("--like"), "{error}");
    let (spec, topology, notes) = read_back(&import(&text, "nccl.log", Some("dgx-h100")).unwrap());
    assert_eq!(
        (spec.groups[0].names.as_slice(), topology.ranks()),
        (["gpu01".to_owned(), "gpu02".to_owned()].as_slice(), 16)
    );
    assert_eq!(spec.software.nccl, "2.28.9".parse().ok());
    said(&notes, "a host of the log has 4 ranks, one of `dgx-h100` 8 GPUs");
}

/// Goal: ranks of a log are told apart where threads of one process write it, and behind the tags of mpirun; both are the same
/// machine as the log of processes. Method: its process numbers are made one a host, and tags put in front.
#[test]
fn logs_of_threads_and_of_mpirun_are_read_alike() {
    let plain = fixture("nccl-graph.log");
    let without_graph = |text: &str| {
        let kept =
            |line: &&str| !line.starts_with('#') && (line.contains("ncclCommInit") || line.contains("NCCL version"));
        text.lines().filter(kept).map(|line| format!("{line}\n")).collect::<String>()
    };
    let threads = ["100", "101", "102", "103"].iter().fold(plain.clone(), |text, process| {
        ["gpu01", "gpu02"]
            .iter()
            .fold(text, |text, host| text.replace(&format!("{host}:{process}:"), &format!("{host}:100:")))
    });
    assert!(threads.contains("gpu02:100:123 [3]") && !threads.contains(":103:"));
    // A tag is of the process that writes.
    let tagged = |text: &str| {
        let tag = |line: &str| {
            let process = line.split(':').take(2).collect::<Vec<_>>().join(":");
            let number = usize::from(process.starts_with("gpu02")) * 4
                + usize::from(process.as_bytes()[process.len() - 1] - b'0');
            if line.starts_with('#') { format!("{line}\n") } else { format!("[1,{number}]<stdout>:{line}\n") }
        };
        text.lines().map(tag).collect::<String>()
    };
    for text in [&plain, &without_graph(&plain)] {
        let of = |text: &str| {
            let imported = import(text, "nccl.log", Some("dgx-h100"));
            imported.unwrap_or_else(|e| panic!("{}\n{text}", e.render()))
        };
        let expected = of(text);
        for other in [&threads, &tagged(&plain), &tagged(&threads)] {
            let other = if text == &plain { other.clone() } else { without_graph(other) };
            let found = of(&other);
            assert_eq!(found.text, expected.text, "{other}");
            assert_eq!(found.notes, expected.notes, "{other}");
        }
    }
}

/// Goal: ASTRA-sim's own networks are hosts of that shape, at their rates of 2^30 bytes, of as many NVLinks as the GPU needs for
/// them; the next dimension are hosts.
#[test]
fn networks_of_astra_sim_are_machines() {
    let gib = |count: f64| count * 1.073_741_824;
    for (name, gpus, ends, links) in [
        ("astra-hgx-h100.yml", 8, 400.0, (17, 1)),
        ("astra-hgx-h100.json", 8, 400.0, (17, 1)),
        ("astra-ring-4.yml", 4, 50.0, (4, 2)),
        ("astra-full-8.yml", 8, 50.0, (14, 7)),
    ] {
        let (spec, topology, notes) = cluster(name, Some("dgx-h100"));
        assert_eq!((spec.host_count(), topology.ranks()), (1, gpus), "{name}");
        let nvlinks = &spec.groups[0].host.gpus[0].nvlinks;
        let to_peer = nvlinks[0].rate_per_link.gb_per_s() * f64::from(nvlinks[0].count);
        assert!((to_peer - gib(ends)).abs() < 1e-3, "{name}: {nvlinks:?}");
        let (count, peers) = (nvlinks.iter().map(|n| n.count).sum::<u32>(), nvlinks.len());
        assert_eq!((count, peers), links, "{name}");
        assert_eq!(spec.groups[0].host.gpus[0].gpu.model, "H100-SXM5-80GB");
        said(&notes, "latencies are those of the profile");
    }
    let two =
        "topology:\n  - Switch\n  - Switch\nnpus_count: [ 4, 3 ]\nbandwidth: [ 400, 50 ]\nlatency: [ 500, 1000 ]\n";
    let (spec, topology, _) =
        read_back(&import(two, "n.yml", Some("dgx-h100")).unwrap_or_else(|e| panic!("{}", e.render())));
    assert_eq!((spec.host_count(), topology.ranks(), layers(&topology)), (3, 12, vec![4]));
    assert!((rate(&topology, "host1/nic2", "leaf0-rail2") - gib(50.0)).abs() < 1e-3);
    for (text, expected) in [
        (two.replace("[ 4, 3 ]", "[ 4 ]"), "`npus_count` has 1 entries, `topology` 2"),
        (two.replace("- Switch\n", "- Torus\n"), "`Torus` is no shape"),
        (two.replace("400,", "x,"), "`x` is no bandwidth"),
        (two.replace("latency", "delay"), "the key `delay` is not read"),
        (two.replace("[ 4, 3 ]", "4"), "`4` is no list"),
        (
            r#"{"topology": ["Switch"], "npus_count": [8, 2], "bandwidth": [1], "latency": [1]}"#.to_owned(),
            "`npus_count` has 2 entries",
        ),
        (
            r#"{"topology": ["Switch"], "npus_count": [8], "bandwidth": [1], "delay": [1]}"#.to_owned(),
            "the key `delay` is not read",
        ),
        (r#"{"topology": ["Switch"], "npus_count": [8]"#.to_owned(), "it is no JSON"),
        (
            two.replace("[ 4, 3 ]", "[ 4, 3, 2 ]").replacen("- Switch\n", "- Switch\n  - Switch\n", 1),
            "`bandwidth` has 2 entries",
        ),
    ] {
        let error = import(&text, "n.yml", Some("dgx-h100")).unwrap_err().render();
        assert!(error.contains(expected), "`{expected}` of {text}\n{error}");
    }
    let three = "topology: [Ring, Ring, Ring]\nnpus_count: [2, 2, 2]\nbandwidth: [1, 1, 1]\nlatency: [1, 1, 1]\n";
    let error = import(three, "n.yml", Some("dgx-h100")).unwrap_err().render();
    assert!(error.contains("3 dimensions of several NPUs"), "{error}");
    let ring = "topology: [Switch, Ring]\nnpus_count: [2, 4]\nbandwidth: [1, 1]\nlatency: [1, 1]\n";
    let error = import(ring, "n.yml", Some("dgx-h100")).unwrap_err().render();
    assert!(error.contains("hosts in a Ring") && error.contains("n.yml:1"), "{error}");
}

/// Goal: what cannot be meant is refused with what, where and the way out.
#[test]
fn mistakes_are_refused_with_their_place() {
    let cases: [(&str, Option<&str>, &[&str]); 14] = [
        ("SwitchName=a Nodes=n[1-2]\n", None, &["lists hosts, but no GPU", "--like dgx-h100"]),
        ("SwitchName=a Nodes=n[1-2\n", Some("dgx-h100"), &["t:1:20", "the brackets do not match"]),
        ("SwitchName=a Nodes\n", Some("dgx-h100"), &["`Nodes` is no setting", "Key=value"]),
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Switches=c\n",
            Some("dgx-h100"),
            &["t:2:12", "has `c` below it, which is not listed"],
        ),
        // Neither the switch itself nor its other one is what was meant.
        ("SwitchName=s0 Nodes=n1\nSwitchName=s1 Switches=s0,s7\n", Some("dgx-h100"), &["`s7` below it", "list it too"]),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", Some("dgx-h100"), &["lists no host"]),
        (
            "SwitchName=x Nodes=n1\nSwitchName=a Switches=b\nSwitchName=b Switches=a\n",
            Some("dgx-h100"),
            &["is below itself"],
        ),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", Some("dgx-h100"), &["`n1` is below two switches", "t:2:12"]),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", Some("dgx-h100"), &["switches and blocks"]),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n1\n", Some("dgx-h100"), &["`n1` is in two blocks"]),
        ("SwitchName=a Nodes=n[1-2]\n", Some("dgx-h10"), &["did you mean `dgx-h100`"]),
        ("{\"NetworkNodes\": 1}", None, &["no answer of DescribeInstanceTopology"]),
        (
            "switchguid=0x1(1)\nSwitch\t4 \"S-1\"\t\t# \"a\" base port 0\n[1] garbage\n",
            Some("dgx-h100"),
            &["t:3:1", "is no port"],
        ),
        ("<topology version=\"1\"></topology>", Some("dgx-h100"), &["hwloc 1"]),
    ];
    for (text, like, expected) in cases {
        let error = import(text, "t", like).map(|i| i.text).unwrap_err().render();
        for part in expected {
            assert!(error.contains(part), "`{part}` of\n{text}\n{error}");
        }
    }
    // A machine is not what lists hosts alone.
    let mut none = |_: &str| Err(std::io::Error::other("no files here"));
    for name in
        ["slurm-tree.conf", "ibnetdiscover-short.txt", "ec2-instances.json", "lstopo-h100.xml", "astra-full-8.yml"]
    {
        let error = file::read_any(fixture(name).as_bytes(), name, &mut none).unwrap_err().render();
        assert!(error.contains("says nothing of GPUs") && error.contains("topo import FILE --like"), "{error}");
    }
}

/// Goal: cables inside a layer are refused: such a network is no tree.
#[test]
fn a_torus_is_refused() {
    let mut text = three_layers(2, None, None);
    text = text.replace(
        "\"leaf-0-0\" base port 0 lid 1 lmc 0\n",
        "\"leaf-0-0\" base port 0 lid 1 lmc 0\n[60]\t\"S-c01\"[60]\t\t# \"x\" lid 9 4xNDR\n",
    );
    let error = import(&text, "ib.txt", Some("kestrel-h100")).unwrap_err().render();
    assert!(error.contains("no folded Clos") && error.contains("`leaf-0-0`"), "{error}");
    // A chain of thousands of switches takes no time either.
    let mut text = three_layers(2, None, None);
    for at in 0..5000 {
        let below = if at == 0 { "c00".to_owned() } else { format!("e{}", at - 1) };
        text += &format!(
            "\nswitchguid=0xe{at}(e{at})\nSwitch\t64 \"S-e{at}\"\t\t# \"chain-{at}\" base port 0\n[1]\t\"S-{below}\"[{}]\t\t# \"x\" lid 9 \
             4xNDR\n",
            if at == 0 { 50 } else { 2 },
        );
    }
    let error = import(&text, "ib.txt", Some("kestrel-h100")).unwrap_err().render();
    assert!(error.contains("over 8 layers"), "{error}");
}

/// A listed network in a topology file.
const LISTED: &str = r#"schema = "collcast/topology/1"
[[hosts]]
names = "n[0-3]"
like = "kestrel-h100"
[fabric]
kind = "listed"
[[fabric.switches]]
name = "a"
ports = [{ hosts = "n[0-1]" }, { hosts = "n2", nics = [0] }]
rate = "100 Gb/s"
uplinks = 3
[[fabric.switches]]
name = "b"
ports = [{ hosts = "n3" }, { hosts = "n2", nics = [1] }]
[[fabric.switches]]
name = "top"
switches = "a,b"
"#;

fn read_toml(text: &str) -> Result<Topology, TopologiesError> {
    let mut none = |_: &str| Err(std::io::Error::other("no files here"));
    file::read(text, "t.toml", &mut none)?.build()
}

/// Goal: a network by hand: ports by NIC, rates, uplinks; and each mistake at its place.
#[test]
fn a_listed_network_is_drawn_and_checked() {
    let topology = read_toml(LISTED).unwrap_or_else(|e| panic!("{}", e.render()));
    assert_eq!(rate(&topology, "n0/nic1", "a"), 12.5);
    assert_eq!(rate(&topology, "n2/nic1", "b"), 25.0);
    assert_eq!(rate(&topology, "a", "top"), 3.0 * 12.5);
    assert_eq!(rate(&topology, "b", "top"), 3.0 * 25.0, "three ports, non-blocking");
    // The rate of uplinks is their own, with and without their number.
    let own = read_toml(&LISTED.replacen("uplinks = 3", "uplinks = 3\nuplink_rate = \"400 Gb/s\"", 1)).unwrap();
    assert_eq!((rate(&own, "n0/nic1", "a"), rate(&own, "a", "top"), rate(&own, "b", "top")), (12.5, 150.0, 75.0));
    let alone = read_toml(&LISTED.replacen("uplinks = 3", "uplink_rate = \"400 Gb/s\"", 1)).unwrap();
    assert_eq!(
        (rate(&alone, "n0/nic1", "a"), rate(&alone, "a", "top")),
        (12.5, 100.0),
        "five ports of 12.5 fill two of 50"
    );
    for (from, to, expected) in [
        ("nics = [1]", "nics = [0]", &["in another switch too", "t.toml:13"][..]),
        (", { hosts = \"n2\", nics = [1] }", "", &["NIC 1 of `n2` is in no switch"]),
        ("switches = \"a,b\"", "switches = \"a,c\"", &["`c` below it, which is not listed", "t.toml:16"]),
        ("name = \"b\"", "name = \"a\"", &["`a` is listed twice"]),
        ("switches = \"a,b\"", "", &["has nothing below it"]),
        ("kind = \"listed\"", "kind = \"fat-tree\"", &["switches are listed in a network of another kind"]),
        ("kind = \"listed\"", "kind = \"listed\"\nhosts_per_unit = 2", &["`hosts_per_unit` of a listed network"]),
        ("kind = \"listed\"", "kind = \"listed\"\nrouting = { hash = 7 }", &["static hashing"]),
        ("uplinks = 3", "uplinks = 0", &["uplinks is 0"]),
    ] {
        let text = LISTED.replacen(from, to, 1);
        assert_ne!(text, LISTED);
        let error = read_toml(&text).map(|_| ()).unwrap_err().render();
        for part in expected {
            assert!(error.contains(part), "`{part}` of\n{error}");
        }
    }
}

/// All samples, with a machine that fits.
const SAMPLES: [(&str, &str); 9] = [
    ("slurm-tree.conf", "dgx-h100"),
    ("slurm-block.conf", "gb200-nvl72"),
    ("ibnetdiscover-short.txt", "kestrel-h100"),
    ("ec2-instances.json", "aws-p5"),
    ("lstopo-h100.xml", "h200x4"),
    ("nccl-graph.log", "dgx-h100"),
    ("slurm-block.conf", "dgx-a100"),
    ("astra-ring-4.yml", "dgx-h100"),
    ("astra-hgx-h100.json", "dgx-h100"),
];

fn try_all(text: &str, like: &str) {
    for like in [None, Some(like)] {
        match import(text, "f", like) {
            Ok(imported) if imported.text.starts_with('<') => drop(xml::read(&imported.text, "x.xml")),
            // What is written is always read.
            Ok(imported) => drop(read_back(&imported)),
            Err(error) => assert!(error.render().starts_with("error: ")),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: readers are total, and what they accept is written as a file that reads. Method: samples with pieces cut,
    /// repeated and replaced.
    #[test]
    fn no_mutated_file_panics(
        sample in 0_usize..SAMPLES.len(),
        edits in proptest::collection::vec((any::<u16>(), any::<u16>(), "[ -~\u{e9}\n\t]{0,6}"), 1..6),
    ) {
        let (name, like) = SAMPLES[sample];
        let mut bytes = fixture(name).into_bytes();
        for (at, length, text) in edits {
            let start = usize::from(at) % (bytes.len() + 1);
            let end = (start + usize::from(length) % 40).min(bytes.len());
            bytes.splice(start..end, text.bytes());
        }
        if let Ok(text) = std::str::from_utf8(&bytes) {
            try_all(text, like);
        }
    }

    /// Goal: a byte more or less is no panic either. Method: cut at any byte, one byte flipped.
    #[test]
    fn no_cut_or_flipped_byte_panics(sample in 0_usize..SAMPLES.len(), cut in any::<u16>(), at in any::<u16>(), bit in 0_u32..7) {
        let (name, like) = SAMPLES[sample];
        let mut bytes = fixture(name).into_bytes();
        let at = usize::from(at) % bytes.len();
        bytes[at] ^= 1 << bit;
        bytes.truncate(usize::from(cut) % bytes.len() + 1);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            try_all(text, like);
        }
    }

    /// Goal: any tree of switches is written and read as the same machine.
    #[test]
    fn any_tree_survives_the_way_through_a_file(
        leaves in proptest::collection::vec(1_usize..6, 1..7), arity in 2_usize..4, width in 1_usize..4,
    ) {
        let (mut conf, mut next) = (String::new(), 0);
        for (leaf, hosts) in leaves.iter().enumerate() {
            conf += &format!("SwitchName=l{leaf} Nodes=n[{next:0width$}-{:0width$}]\n", next + hosts - 1);
            next += hosts;
        }
        let (mut below, mut layer): (Vec<String>, _) = ((0..leaves.len()).map(|leaf| format!("l{leaf}")).collect(), 0);
        while below.len() > 1 {
            layer += 1;
            below = below.chunks(arity).enumerate().map(|(i, chunk)| {
                conf += &format!("SwitchName=s{layer}x{i} Switches={}\n", chunk.join(","));
                format!("s{layer}x{i}")
            }).collect();
        }
        let imported = import(&conf, "t.conf", Some("pcie-box")).unwrap_or_else(|e| panic!("{}", e.render()));
        let (spec, topology, _) = read_back(&imported);
        prop_assert_eq!(spec.host_count(), next);
        // One host has no network.
        prop_assume!(next > 1);
        // Every host reaches the root at full rate: the network is not over-subscribed.
        let nics: f64 = spec.groups[0].host.data_nics().map(|nic| nic.nic.rate.gb_per_s()).sum();
        let into_top: f64 = topology.links().filter(|(_, _, to, _)| topology.vertex(*to).name == below[0])
            .map(|(_, _, _, link)| link.rate.gb_per_s()).sum();
        prop_assert!((into_top - nics * next as f64).abs() < 1e-6, "{} of {}", into_top, nics * next as f64);
    }

    /// Goal: host lists are written so that they read the same.
    #[test]
    fn host_lists_survive_their_own_reading(names in proptest::collection::vec("[a-z]{1,2}(-?[0-9]{1,4}){0,2}[a-z]?", 1..30)) {
        prop_assert_eq!(expand(&compress(&names)).unwrap(), names);
    }
}

/// Goal: the built-ins that other programs' names lead to exist.
#[test]
fn every_instance_type_has_its_machine() {
    let types = ["p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200"];
    for like in types.map(|name| format!("aws-{name}")) {
        let like = like.as_str();
        assert!(builtin::spec(like).is_ok(), "{like}");
    }
}

/// Goal: what no file says of a network is not written as known: whoever reads the result says what it assumes.
#[test]
fn an_unknown_oversubscription_stays_unknown() {
    let text = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[3-4]\nSwitchName=top Switches=a,b\n";
    for (like, written, assumed) in [
        ("dgx-h100", "oversubscription = \"unknown\"\n", true),
        ("aws-p5", "oversubscription = \"unknown\"\n", true),
        ("abci-v100", "oversubscription = 3.0\n", false),
    ] {
        let imported = import(text, "topology.conf", Some(like)).unwrap_or_else(|e| panic!("{}", e.render()));
        assert!(imported.text.contains(written), "{like}: {}", imported.text);
        let (_, topology, notes) = read_back(&imported);
        assert_eq!(topology.assumptions.iter().any(|a| a.contains("over-subscription is unknown")), assumed, "{like}");
        said(&notes, if assumed { "1 to 1 is assumed" } else { "3 to 1, that of `abci-v100`: an assumption" });
    }
}

/// Goal: a file of no known format is told what is read; mistakes in TOML keep their place.
#[test]
fn an_unknown_format_is_told_what_is_read() {
    for (name, text, known) in [
        ("junk.txt", "garbage\n", false),
        ("hosts", "10.0.0.1 gpu01\n", false),
        ("junk.toml", "garbage\n", true),
        ("machine", "schema = \"collcast/topology/1\"\ngarbage\n", true),
        ("machine", "hosts = 3\n", true),
    ] {
        let mut none = |_: &str| Err(std::io::Error::other("no files here"));
        let error = file::read_any(text.as_bytes(), name, &mut none).map(|_| ()).unwrap_err().render();
        assert_eq!(error.contains("no known format") && error.contains("nvidia-smi topo -m"), !known, "{error}");
        assert_eq!(error.contains(&format!("{name}:")), known, "{error}");
    }
}
