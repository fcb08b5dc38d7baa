//! Bad input: each mistake is refused with what, where, and the way out; nothing panics.

use collcast_topologies::error::{Source, TopologiesError};
use collcast_topologies::import::import_text;
use collcast_topologies::{builtin, file, smi, xml};
use proptest::prelude::*;

fn no_files(name: &str) -> std::io::Result<Vec<u8>> {
    if name == "template.xml" {
        return Ok(fixture("azure-ndv5-topo.xml"));
    }
    Err(std::io::Error::other("no such file"))
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn read_and_build(bytes: &[u8], name: &str) -> Result<(), TopologiesError> {
    file::read_any(bytes, name, &mut no_files)?.build().map(drop)
}

/// The text must be refused, and the error must contain all of `parts`.
fn check_refused(bytes: &[u8], name: &str, parts: &[&str]) {
    let Err(error) = read_and_build(bytes, name) else {
        panic!("accepted: {}", String::from_utf8_lossy(bytes));
    };
    let text = error.render();
    assert!(text.starts_with("error: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
}

const HOST: &str = "schema = \"collcast/topology/1\"
name = \"t\"
[[hosts]]
count = 4
gpus = { count = 8, kind = \"H100-SXM5-80GB\" }
nvlink = { kind = \"nvswitch\", links_per_gpu = 18, rate_per_link = \"25 GB/s\" }
pcie = { generation = 5, lanes = 16, switches_per_socket = 4, sockets = 2 }
[hosts.nics]
kind = \"infiniband\"
count = 8
rate = \"400 Gb/s\"
gpu = [0, 1, 2, 3, 4, 5, 6, 7]
[fabric]
kind = \"rail-optimised\"
hosts_per_unit = 2
leaf = { per = \"rail\", rate = \"400 Gb/s\", down = 2, up = 2 }
spine = { count = 8, ports = 4 }
";

/// Goal: a mistake in one line of a good file: the place is that line and its column.
#[test]
fn mistakes_in_topology_files_are_refused() {
    assert_eq!(read_and_build(HOST.as_bytes(), "t.toml"), Ok(()));
    for (good, bad, parts) in [
        (
            "rate = \"400 Gb/s\"\ngpu",
            "rate = 400\ngpu",
            &[
                "the rate of the NICs has no unit: `400`",
                "t.toml:11:8",
                "11 | rate = 400\n   |        ^^^ expected",
                "400 Gb/s is 50 GB/s",
            ][..],
        ),
        (
            "rate = \"400 Gb/s\"\ngpu",
            "rate = \"400 Gb/s\"\nlatency = \"35\"\ngpu",
            &["the latency of the NICs cannot be read", "t.toml:12:11", "\"35 us\""],
        ),
        (
            "name = \"t\"",
            "name = \"t\"\nprofile = \"h300-nvswitch\"",
            &[
                "`h300-nvswitch` is not a built-in profile",
                "t.toml:3:11",
                "did you mean `h200-nvswitch`?",
                "known: h200-nvswitch, prior",
            ],
        ),
        (
            "rate = \"400 Gb/s\"\ngpu",
            "rate = \"400\"\ngpu",
            &["`400` has no unit", "t.toml:11:8", "hint: data sheets give bits"],
        ),
        (
            "rate = \"400 Gb/s\"\ngpu",
            "rate = \"0 Gb/s\"\ngpu",
            &["must be greater than zero", "t.toml:11:8", "a dead port is state = \"down\""],
        ),
        ("rate = \"400 Gb/s\"\ngpu", "rate = \"-4 GB/s\"\ngpu", &["must be greater than zero", "t.toml:11:8"]),
        ("rate = \"400 Gb/s\"\ngpu", "rate = \"400 Gbit\"\ngpu", &["not a known unit", "t.toml:11:8"]),
        (
            "count = 4\n",
            "coutn = 4\n",
            &[
                "the key `coutn` is not known here",
                "t.toml:4:1",
                "did you mean `count`?",
                "keys here: count, names, like",
            ],
        ),
        ("links_per_gpu", "links_per_gpus", &["`links_per_gpus`", "t.toml:6:31", "did you mean `links_per_gpu`?"]),
        ("count = 4\n", "count = 0\n", &["count is 0", "t.toml:4:9", "expected a whole number from 1 to 200000"]),
        ("count = 4\n", "count = -3\n", &["count is -3", "t.toml:4:9"]),
        ("count = 4\n", "count = 4000000000\n", &["count is 4000000000; at most 200000", "t.toml:4:9"]),
        ("count = 4\n", "count = 100000\n", &["the cluster has 800000 GPUs; at most 200000", "t.toml:3:1"]),
        ("count = 4\n", "count = \"4\"\n", &["cannot be read as TOML", "t.toml:4:9", "invalid type: string"]),
        (
            "count = 4\n",
            "count = 4\nnames = \"gpu[1-5]\"\n",
            &["count is 4, but `gpu[1-5]` names 5 hosts", "t.toml:4:9", "leave `count` out"],
        ),
        (
            "count = 4\n",
            "names = \"gpu[1-\"\n",
            &["`gpu[1-` is not a host list: the brackets do not match", "t.toml:4:9", "gpu[001-064]"],
        ),
        ("count = 4\n", "names = \"gpu[0-999999999]\"\n", &["it names over 200000 hosts", "t.toml:4:9"]),
        ("count = 4\n", "names = \"a,b,a\"\n", &["the host name `a` is used twice", "t.toml"]),
        (
            "[0, 1, 2, 3, 4, 5, 6, 7]",
            "[0, 1, 2, 3, 3, 5, 6, 7]",
            &["GPU 3 is listed 2 times", "t.toml:12:20", "list each GPU equally often"],
        ),
        (
            "[0, 1, 2, 3, 4, 5, 6, 7]",
            "[0, 1, 2, 3, 4, 5, 6, 8]",
            &["`gpu` names 8, which is none", "t.toml:12:29", "expected GPUs from 0 to 7"],
        ),
        ("[0, 1, 2, 3, 4, 5, 6, 7]", "[0, 1]", &["`gpu` has 2 entries, but there are 8 NICs", "t.toml:12:7"]),
        (
            "gpu = [0, 1, 2, 3, 4, 5, 6, 7]",
            "socket = [0, 0, 0, 0, 1, 1, 1, 2]",
            &["`socket` names 2, which is none", "t.toml:12:32", "expected sockets from 0 to 1"],
        ),
        (
            "gpu = [0, 1, 2, 3, 4, 5, 6, 7]",
            "gpu = [0, 1, 2, 3, 4, 5, 6, 7]\nsocket = [0, 0, 0, 0, 1, 1, 1, 1]",
            &["`socket` beside `gpu` or `per_gpu`", "t.toml:13:10", "one of them"],
        ),
        (
            "gpu = [0, 1, 2, 3, 4, 5, 6, 7]",
            "per_gpu = 3",
            &["3 NICs per GPU x 8 GPUs is not count = 8", "t.toml:12:11", "3 x 8 = 24"],
        ),
        (
            "gpu = [0, 1, 2, 3, 4, 5, 6, 7]",
            "ports = 3",
            &["count = 8 ports are no whole number of cards with 3", "t.toml:12:9", "a multiple of 3"],
        ),
        (
            "collcast/topology/1",
            "collcast/topology/2",
            &["the schema `collcast/topology/2` is not known", "t.toml:1:10", "another version of Collcast"],
        ),
        (
            "schema = \"collcast/topology/1\"\n",
            "",
            &["does not say its schema", "start it with: schema = \"collcast/topology/1\""],
        ),
        (
            "\"rail-optimised\"",
            "\"rail-optimized\"",
            &["`rail-optimized` is not a kind of fabric", "t.toml:14:8", "did you mean `rail-optimised`?"],
        ),
        (
            "\"rail-optimised\"",
            "\"torus\"",
            &["`torus` is not a kind of fabric", "known: rail-optimised, rail-only, fat-tree"],
        ),
        ("per = \"rail\"", "per = \"unit\"", &["leaves per unit in a rail-optimised fabric", "t.toml:16:16"]),
        (
            "spine = { count = 8,",
            "spine = { count = 7,",
            &["16 leaves x 2 up = 32 uplinks, but 7 spines x 4 ports = 28", "t.toml:17:9", "4 ports too few"],
        ),
        ("down = 2, up = 2", "down = 1, up = 2", &["has 1 ports to hosts", "t.toml:16:8", "hosts_per_unit"]),
        ("down = 2, up = 2", "down = 2, up = 0", &["the leaves have no uplinks", "t.toml:16:8", "give leaf.up"]),
        (
            "H100-SXM5-80GB",
            "H100-SXM5-8GB",
            &["the GPU `H100-SXM5-8GB` is not known", "t.toml:5:28", "did you mean `H100-SXM5-80GB`?"],
        ),
        (
            "H100-SXM5-80GB",
            "H100",
            &["the GPU `H100` is not known", "did you mean `H100-PCIE-80GB` or `H100-NVL-94GB` or `H100-SXM5-80GB`?"],
        ),
        (
            "pcie = { generation = 5, lanes = 16, switches_per_socket = 4, sockets = 2 }\n",
            "",
            &["the host has no `pcie`", "t.toml:3:1", "like = \"dgx-h100\""],
        ),
        (
            "pcie = { generation = 5, lanes = 16, switches_per_socket = 4, sockets = 2 }",
            "pcie = []",
            &["`pcie` is a table", "t.toml:7:8", "expected `{ key = value }`", "leave the key out", "without `like`"],
        ),
        ("generation = 5", "generation = 9", &["the PCIe generation is 9; at most 6", "t.toml:7:23"]),
        ("generation = 5, ", "", &["the key `generation` is missing", "t.toml:7:8"]),
        (
            "\"nvswitch\", links_per_gpu = 18",
            "\"mesh\", links_per_gpu = 18",
            &["18 links of a GPU do not spread evenly over 7 others", "t.toml:6:43"],
        ),
        (
            "kind = \"infiniband\"",
            "kind = \"infinband\"",
            &["`infinband` is not a kind of NIC", "t.toml:9:8", "did you mean `infiniband`?"],
        ),
        (
            "spine = {",
            "oversubscription = 0.5\nspine = {",
            &["`0.5` is not an over-subscription", "t.toml:17:20", "3:2"],
        ),
        ("spine = {", "routing = \"random\"\nspine = {", &["`random` is not a kind of routing", "t.toml:17:11"]),
        ("spine = {", "routing = \"ecmp\"\nspine = {", &["`ecmp` is not a kind of routing", "routing = { hash = 7 }"]),
        (
            "down = 2, up = 2 }",
            "down = 2, up = 1 }\noversubscription = 7",
            &["2 ports down and 1 up are over-subscribed 2.00 : 1, not 7.00 : 1"],
        ),
        (
            "spine = {",
            "oversubscription = 2\nspine = {",
            &[
                "2 ports down and 2 up are over-subscribed 1.00 : 1, not 2.00 : 1",
                "t.toml:17:20",
                "leave `oversubscription` out",
            ],
        ),
        ("spine = {", "routing = { hahs = 3 }\nspine = {", &["`hahs`", "t.toml:17", "did you mean `hash`?"]),
        ("name = \"t\"", "name = \"t", &["cannot be read as TOML", "t.toml:2:"]),
        ("name = \"t\"\n", "name = \"t\"\nname = \"u\"\n", &["cannot be read as TOML", "t.toml:3:1"]),
        ("name = \"t\"\n", "like = \"aws-p5\"\n", &["say the same thing twice", "t.toml:2:8"]),
        ("name = \"t\"\n", "count = 3\n", &["`count` stands alone", "t.toml:2:9"]),
    ] {
        assert!(HOST.contains(good), "{good}");
        check_refused(HOST.replacen(good, bad, 1).as_bytes(), "t.toml", parts);
    }
}

/// Goal: mistakes that need a table more than the good file has.
#[test]
fn mistakes_in_added_tables_are_refused() {
    for (added, parts) in [
        (
            "[[exceptions]]\nhost = \"host9\"\nnic = 1\nstate = \"down\"\n",
            &["names the host `host9`", "t.toml:19:8", "did you mean `host"][..],
        ),
        (
            "[[exceptions]]\nhost = \"host1\"\nnic = 8\nstate = \"down\"\n",
            &["names NIC 8 of `host1`, which has 8 NICs", "t.toml:20:7"],
        ),
        (
            "[[exceptions]]\nhost = \"host1\"\nnic = 1\nstate = \"down\"\n[[exceptions]]\nhost = \"host1\"\nnic = 1\nrate = \"200 Gb/s\"\n",
            &["two exceptions are about the same port of `host1`", "t.toml:22:1", "leave one of them out"],
        ),
        (
            "[[exceptions]]\nhost = \"host1\"\nnic = 1\n",
            &["does not say what is different", "t.toml:18:1", "needs `rate` or `state`"],
        ),
        (
            "[[exceptions]]\nhost = \"host1\"\nnic = 1\nstate = \"dwon\"\n",
            &["`dwon` is not a state of a port", "t.toml:21:9", "did you mean `down`?"],
        ),
        (
            "[[exceptions]]\nhost = \"host1\"\nstate = \"down\"\n",
            &["all NICs of host `host1` are down", "t.toml:19:8", "leave one of its NICs up"],
        ),
        (
            "[[exceptions]]\nhost = \"host1\"\nnic = 1\nrate = \"800 Gb/s\"\n",
            &["has NIC 1 of `host1` run at 100 GB/s, but its own rate is 50 GB/s", "t.toml:21:8"],
        ),
        (
            "[[exceptions]]\nstate = \"down\"\n",
            &["does not say where it is", "t.toml:18:1", "needs `host` or `switch`"],
        ),
        (
            "[[exceptions]]\nhost = \"host1\"\nswitch = \"leaf0-rail0\"\nstate = \"down\"\n",
            &["names a host and a switch", "t.toml:20:10"],
        ),
        (
            "[[exceptions]]\nswitch = \"leaf0-rail0\"\nnic = 0\nstate = \"down\"\n",
            &["a port of another kind", "t.toml:20:7", "`uplink` with `switch`"],
        ),
        (
            "[[exceptions]]\nswitch = \"leaf0-rail9\"\nuplink = 0\nstate = \"down\"\n",
            &["names the switch `leaf0-rail9`", "t.toml:19:10", "did you mean `leaf0-rail"],
        ),
        (
            "[[exceptions]]\nswitch = \"leaf0-rail0\"\nuplink = 2\nstate = \"down\"\n",
            &["an uplink of `leaf0-rail0` that it does not have: there are 2", "t.toml:20:10", "counted from 0"],
        ),
        (
            "[[exceptions]]\nswitch = \"leaf0-rail0\"\nrate = \"800 Gb/s\"\n",
            &["an uplink of `leaf0-rail0` run faster than the 50 GB/s", "t.toml:20:8"],
        ),
        (
            "[[exceptions]]\nswitch = \"leaf0-rail0\"\nuplink = 0\nstate = \"down\"\n\
             [[exceptions]]\nswitch = \"leaf0-rail0\"\nuplink = 1\nstate = \"down\"\n",
            &["all uplinks of the switch `leaf0-rail0` are down", "t.toml:23:10", "a whole switch down"],
        ),
        (
            "[[exceptions]]\nswitch = \"spine9\"\nstate = \"down\"\n",
            &["names the switch `spine9`", "t.toml:19:10", "did you mean `spine"],
        ),
        (
            "[[exceptions]]\nswitch = \"spine0\"\nuplink = 0\nstate = \"down\"\n",
            &["an uplink of `spine0` that it does not have: there are 0", "t.toml:20:10"],
        ),
        (
            "[[fabric.switches]]\nname = \"a\"\nswitches = [\"b\", \"c\"]\n",
            &["invalid type: sequence", "t.toml:20:12", "a list of names is one string", "\"leaf[0-7]\""],
        ),
        ("[[hosts]]\nlike = \"other.toml\"\n", &["cannot read `other.toml`", "t.toml:19:8"]),
        (
            "[[hosts]]\nlike = \"dgx-h10\"\n",
            &["`dgx-h10` is not a built-in topology", "t.toml:19:8", "did you mean `dgx-h100`?"],
        ),
        ("[[hosts]]\nxml = \"missing.xml\"\n", &["cannot read `missing.xml`", "t.toml:19:7", "NCCL_TOPO_DUMP_FILE"]),
        (
            "[[hosts]]\nxml = \"template.xml\"\n",
            &["`template.xml` is a PCIe template", "topo import FILE --like dgx-h100"],
        ),
        (
            "[[hosts]]\nxml = \"template.xml\"\nlike = \"dgx-h100\"\n",
            &["`like` and `xml` both say what the host is", "t.toml:20:8"],
        ),
        (
            "[[hosts]]\nxml = \"template.xml\"\nnvlink = { kind = \"nvswitch\", links_per_gpu = 18, domain = 18 }\n",
            &["`nvlink` and `xml` both say what the host is", "t.toml:20:10", "kind = \"nvswitch\", domain = 18"],
        ),
    ] {
        check_refused(format!("{HOST}{added}").as_bytes(), "t.toml", parts);
    }
}

const MACHINE: &str = r#"<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90" rank="0" gdr="1">
        <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
      </gpu>
    </pci>
    <pci busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90" rank="1" gdr="1"/>
    </pci>
  </cpu>
</system>
"#;

/// Goal: XML that NCCL never wrote is refused, with the line.
#[test]
fn bad_xml_is_refused() {
    assert_eq!(read_and_build(MACHINE.as_bytes(), "t.xml"), Ok(()));
    for (good, bad, parts) in [
        ("version=\"1\"", "version=\"2\"", &["the version `2` of the file is not known", "t.xml:1:18"][..]),
        (" version=\"1\"", "", &["version `(none)`", "t.xml:1:1"]),
        ("dev=\"1\"", "dev=\"0\"", &["GPU 0 is listed twice", "t.xml:9:17"]),
        ("0000:02:00.0", "0000:01:00.0", &["`0000:01:00.0` is listed twice", "t.xml:8:17"]),
        (" busid=\"0000:02:00.0\"", "", &["`busid` of <pci>", "t.xml:8:5", "a PCI bus id"]),
        ("sm=\"90\"", "sm=\"ninety\"", &["`sm` of <gpu> is `ninety`", "t.xml:4:24"]),
        ("count=\"18\"", "count=\"-1\"", &["`count` of <nvlink> is `-1`", "t.xml:5:49", "from 0 to 1024"]),
        ("count=\"18\"", "count=\"99999999999999999999\"", &["`count` of <nvlink>", "t.xml:5:49"]),
        ("class=\"0x030200\"", "class=\"gpu\"", &["`class` of <pci> is `gpu`", "t.xml:3:38"]),
        ("link_width=\"16\"", "link_width=\"wide\"", &["`link_width`", "t.xml:3:88"]),
        ("</gpu>", "</gup>", &["cannot be read as XML", "t.xml:6:"]),
        ("<gpu dev=\"1\"", "<gpu dev=\"1\" dev=\"1\"", &["cannot be read as XML", "t.xml:9:"]),
        ("<system", "<machine", &["t.xml"]),
    ] {
        assert!(MACHINE.contains(good), "{good}");
        check_refused(MACHINE.replacen(good, bad, 1).as_bytes(), "t.xml", parts);
    }
    check_refused(
        b"<machine version=\"1\"/>",
        "t.xml",
        &["`<machine>` is not the root of a file of NCCL", "t.xml:1:1", "expected <system> or <graphs>"],
    );
    check_refused(b"<system version=\"1\"/>", "t.xml", &["the file has no <cpu>", "t.xml:1:1"]);
    check_refused(b"<graphs version=\"1\"/>", "t.xml", &["lists no graph", "t.xml:1:1"]);
}

/// Goal: cut off anywhere, a file is refused, and most cuts are called by their name.
#[test]
fn truncated_xml_is_refused_wherever_it_ends() {
    for end in 1..MACHINE.len() - 10 {
        let error = xml::read(&MACHINE[..end], "t.xml").unwrap_err();
        assert!(error.diagnostic().hint.contains("NCCL"), "{}", error.render());
    }
    check_refused(
        &MACHINE.as_bytes()[..MACHINE.len() / 2],
        "t.xml",
        &["the XML is truncated", "t.xml:5:9", "copy the file again"],
    );
}

/// Goal: hostile XML costs nothing: no entity is expanded, no deep or wide tree built.
#[test]
fn hostile_xml_is_refused() {
    check_refused(
        b"<!DOCTYPE s [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><system version=\"1\">&b;</system>",
        "t.xml",
        &["declares a document type or entities", "t.xml:1:1", "entities can expand without bound"],
    );
    let deep = format!("<system version=\"1\">{}{}</system>", "<pci>".repeat(100_000), "</pci>".repeat(100_000));
    check_refused(deep.as_bytes(), "t.xml", &["nested deeper than 64", "t.xml:1:"]);
    let many = format!("<system version=\"1\">{}</system>", "<cpu/>".repeat(30_000));
    check_refused(many.as_bytes(), "t.xml", &["over 20000 elements"]);
    let cpus = format!("<system version=\"1\">{}</system>", "<cpu/>".repeat(1000));
    check_refused(cpus.as_bytes(), "t.xml", &["over 256 CPUs"]);
    let wide: String = (0..1000).map(|i| format!(" a{i}=\"\"")).collect();
    check_refused(format!("<system{wide}/>").as_bytes(), "t.xml", &["1000 attributes; at most 64"]);
}

/// Goal: no file is taken for what it is not.
#[test]
fn files_of_other_kinds_are_refused() {
    check_refused(b"", "t.toml", &["the file is empty", "NCCL topology XML"]);
    check_refused(b" \n\n", "t.xml", &["the file is empty"]);
    check_refused(b"\x7fELF\x02\x01\x01\0\0\0", "t.xml", &["the file is binary"]);
    check_refused(b"name = \"\xff\xfe\"", "t.toml", &["not UTF-8", "byte 8"]);
    check_refused(&vec![b'#'; 17 << 20], "t.toml", &["at most 16777216 are read"]);
    check_refused(
        &fixture("azure-ndv5-topo.xml"),
        "ndv5.xml",
        &["`ndv5.xml` is a PCIe template", "lists no <gpu>", "topo import FILE --like dgx-h100"],
    );
    check_refused(
        &fixture("azure-ncv4-graph.xml"),
        "graph.xml",
        &["`graph.xml` is a graph file", "channels that NCCL chose, not a machine"],
    );
    check_refused("[".repeat(100_000).as_bytes(), "t.toml", &["cannot be read as TOML"]);
    check_refused(format!("a = {}", "[".repeat(100_000)).as_bytes(), "t.toml", &["cannot be read as TOML"]);
}

/// Goal: the matrix of nvidia-smi, cut off or contradictory.
#[test]
fn bad_matrices_are_refused() {
    const GOOD: &str =
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\t0-31\t0\nGPU1\tNV12\t X \t0-31\t0\n";
    assert_eq!(read_and_build(GOOD.as_bytes(), "t.txt"), Ok(()));
    for (good, bad, parts) in [
        ("GPU1\tNV12\t X \t0-31\t0\n", "", &["no row for `GPU1`", "t.txt:1:7", "copy the whole output"][..]),
        ("NV12\t0-31", "NV1x\t0-31", &["`NV1x` is no entry of the matrix", "t.txt:2:10"]),
        ("NV12\t0-31", "NV4\t0-31", &["`GPU0` to `GPU1` is NV4, but the other way NV12", "t.txt:1:7"]),
        ("GPU1\tNV12\t X \t0-31\t0\n", "GPU1\tNV12\n", &["the row `GPU1` has 1 cells, the heading 2", "t.txt:3:1"]),
        ("\tGPU0\tGPU1", "\tGPU0\tGPU0", &["`GPU0` twice", "t.txt:1:7"]),
        ("GPU1\tNV12", "GPU0\tNV12", &["the row `GPU0` is there twice", "t.txt:3:1"]),
    ] {
        check_refused(GOOD.replacen(good, bad, 1).as_bytes(), "t.txt", parts);
    }
    let error = smi::read(GOOD, "t.txt", Some("H10")).unwrap_err();
    assert!(
        error.render().contains("the GPU `H10` is not known, did you mean `H100-PCIE-80GB` or"),
        "{}",
        error.render()
    );
    let error = smi::read("hello", "t.txt", None).unwrap_err();
    assert!(error.render().contains("no matrix of nvidia-smi"), "{}", error.render());
}

/// Goal: what the command line can get wrong.
#[test]
fn bad_names_and_counts_are_refused() {
    for (name, nodes, gpus, parts) in [
        ("dgx-h10", None, None, &["`dgx-h10` is neither a built-in", "did you mean `dgx-h100`?"][..]),
        ("aws-p55", None, None, &["did you mean `aws-p5`?", "built-ins: "]),
        ("no/such.toml", None, None, &["cannot read `no/such.toml`", ".toml, .xml or .txt"]),
        ("dgx-h100", Some(0), None, &["at least one host"]),
        ("dgx-h100", Some(u32::MAX), None, &["at most 200000 are supported"]),
        ("dgx-h100", None, Some(0), &["0 GPUs per host asked for"]),
        ("dgx-h100", None, Some(9), &["9 GPUs per host asked for", "has 8"]),
    ] {
        let error = collcast_topologies::load_any(name, nodes, gpus).unwrap_err();
        let text = error.render();
        for part in parts {
            assert!(text.contains(part), "`{part}` is not in\n{text}");
        }
    }
    // The most that is allowed is drawn, or refused with its count, in bounded memory.
    let most = builtin::load("aws-p5", Some(25_000), None).unwrap_err();
    assert!(most.render().contains("vertices"), "{}", most.render());
}

/// All that a reader might be given: TOML, XML, text.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        "azure-ncv4-topo.xml",
        "h200x4-nccl-topo-2gpu.xml",
        "azure-ncv4-graph.xml",
        "azure-ndv4-topo.xml",
        "azure-gb300-nvidia-smi-topo.txt",
        "aws-p3.16xlarge-nvidia-smi-topo.txt",
        "listed/nccl-graph.log",
        "listed/lstopo-h100.xml",
    ]
    .iter()
    .map(|name| fixture(name))
    .collect();
    seeds.push(HOST.as_bytes().to_vec());
    seeds.push(builtin::text("aws-p5").unwrap().as_bytes().to_vec());
    seeds
}

/// Reads bytes in every way there is; renders what is refused.
fn read_every_way(bytes: &[u8]) {
    if let Err(error) = read_and_build(bytes, "f") {
        assert!(error.render().starts_with("error: "));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = file::read(text, "f", &mut no_files).map_err(|e| e.render());
        let _ = xml::read(text, "f").map_err(|e| e.render());
        let _ = smi::read(text, "f", None).map_err(|e| e.render());
        let _ = import_text(Source::new("f", text), None).map_err(|e| e.render());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Goal: readers are total. Method: any bytes.
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        read_every_way(&bytes);
    }

    /// Goal: readers are total. Method: real files with pieces cut, repeated and replaced.
    #[test]
    fn no_mutated_file_panics(
        seed in 0_usize..10,
        edits in proptest::collection::vec((any::<u16>(), any::<u16>(), "[ -~\u{e9}\n\t]{0,6}"), 1..6),
    ) {
        let mut bytes = seeds()[seed].clone();
        for (at, length, text) in edits {
            let start = usize::from(at) % (bytes.len() + 1);
            let end = (start + usize::from(length) % 40).min(bytes.len());
            bytes.splice(start..end, text.bytes());
        }
        read_every_way(&bytes);
    }

    /// Goal: numbers of any size are refused or drawn, never overflow. Method: one number of a file is another.
    #[test]
    fn no_number_panics(seed in 0_usize..10, which in any::<prop::sample::Index>(), number in prop_oneof![
        Just(0_i64), Just(1), Just(-1), Just(1023), Just(1024), Just(i64::MAX), Just(i64::MIN), any::<i64>(), 0_i64..3000,
        Just(i64::from(i32::MAX)), Just(i64::from(i32::MIN)),
    ]) {
        let seeds = seeds();
        let seed = std::str::from_utf8(&seeds[seed]).unwrap();
        let starts = seed.as_bytes().windows(2).filter(|w| !w[0].is_ascii_digit() && w[1].is_ascii_digit()).count();
        let which = which.index(starts);
        let mut text = String::new();
        let mut seen = 0;
        let mut rest = seed;
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let end = rest[start..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |e| start + e);
            text.push_str(&rest[..start]);
            if seen == which {
                text.push_str(&number.to_string());
            } else {
                text.push_str(&rest[start..end]);
            }
            seen += 1;
            rest = &rest[end..];
        }
        text.push_str(rest);
        read_every_way(text.as_bytes());
    }
}
