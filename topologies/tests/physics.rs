//! What people who run clusters know, as it must come out of the mechanisms.

use collcast_sim::bounds::bandwidth;
use collcast_sim::collective::{Algorithm, Collective, DataType, Protocol};
use collcast_sim::measurement::PeerAccess;
use collcast_sim::nccl::{Interface, Transport, Version};
use collcast_sim::predict::{Choice, Predictor, Settings};
use collcast_sim::profile::Profile;
use collcast_sim::schedule::Call;
use collcast_sim::topology::Topology;
use collcast_sim::units::Bytes;
use collcast_topologies::load;

/// Time in microseconds of an algorithm with the protocol that suits it best.
fn time(topology: &Topology, settings: &Settings, collective: Collective, algorithm: Algorithm, size: u64) -> f64 {
    let profile = Profile::builtin("prior").unwrap();
    let call = Call::of_size(collective, topology.ranks(), Bytes(size), DataType::Float32);
    let predictor = Predictor::new(topology, &profile);
    predictor.predict(&call, Choice::Forced(algorithm), Choice::Best, settings).unwrap().time.as_us()
}

fn ring(topology: &Topology, settings: &Settings, size: u64) -> f64 {
    time(topology, settings, Collective::AllReduce, Algorithm::Ring, size)
}

/// Goal: a tree beats a ring for small messages on many hosts, and up to larger ones the more
/// hosts there are.
#[test]
fn the_crossover_from_tree_to_ring_moves_up_with_hosts() {
    let settings = Settings::default();
    let crossover = |hosts| {
        let topology = load("dgx-h100", Some(hosts), None).unwrap();
        let tree = |size| time(&topology, &settings, Collective::AllReduce, Algorithm::Tree, size);
        (10..32).map(|bits| 1_u64 << bits).find(|&size| ring(&topology, &settings, size) < tree(size)).unwrap()
    };
    let sizes = std::thread::scope(|scope| {
        [2, 4, 8, 16].map(|hosts| scope.spawn(move || crossover(hosts))).map(|thread| thread.join().unwrap())
    });
    assert!(sizes[0] > 1 << 10 && sizes.is_sorted() && sizes[3] >= 4 * sizes[0], "{sizes:?}");
}

/// Goal: PAT beats a ring for small all-gathers over many one-GPU hosts, the more so the more
/// hosts; they are about even at 16 (NCCL's own model: 1.2 times there, 1.5 times on 64), and
/// for large messages the ring is no worse.
#[test]
fn pat_beats_the_ring_where_hosts_are_many_and_messages_small() {
    let settings = Settings::default();
    let gain = |hosts, size| {
        let topology = load("dgx-h100", Some(hosts), Some(1)).unwrap();
        let of = |algorithm| time(&topology, &settings, Collective::AllGather, algorithm, size);
        of(Algorithm::Ring) / of(Algorithm::Pat)
    };
    let gains: Vec<f64> = [4, 16, 64].into_iter().map(|hosts| gain(hosts, 1 << 10)).collect();
    assert!(gains.is_sorted() && (0.8..1.4).contains(&gains[1]) && gains[2] > 1.5, "{gains:?}");
    assert!(gain(16, 1 << 30) < 1.05);
}

/// Goal: TCP in place of RDMA costs an order of magnitude at large sizes, and several times the
/// latency at small ones.
#[test]
fn tcp_is_an_order_of_magnitude_slower() {
    let topology = load("dgx-h100", Some(4), None).unwrap();
    let rdma = Settings::default();
    let transport = Transport { interface: Interface::Sockets, ..Transport::default() };
    let tcp = Settings { transport, ..Settings::default() };
    let slower = |size| ring(&topology, &tcp, size) / ring(&topology, &rdma, size);
    let (small, large) = (slower(1 << 10), slower(1 << 30));
    assert!((1.5..20.0).contains(&small) && (5.0..100.0).contains(&large), "{small} {large}");
}

/// Goal: GPUs of one host without peer access go through host memory, several times slower.
#[test]
fn host_memory_is_slower_than_nvlink() {
    let topology = load("dgx-h100", None, None).unwrap();
    let transport = Transport { peer_access: PeerAccess::Off, ..Transport::default() };
    let off = Settings { transport, ..Settings::default() };
    let slower = ring(&topology, &off, 1 << 30) / ring(&topology, &Settings::default(), 1 << 30);
    assert!((4.0..60.0).contains(&slower), "{slower}");
}

/// Goal: protocols keep their order: LL for small messages, Simple for large ones.
#[test]
fn each_protocol_has_its_sizes() {
    let topology = load("dgx-h100", Some(2), None).unwrap();
    let profile = Profile::builtin("prior").unwrap();
    let predictor = Predictor::new(&topology, &profile);
    let best = |size| {
        let call = Call::of_size(Collective::AllReduce, 16, Bytes(size), DataType::Float32);
        let choice = predictor.predict(&call, Choice::Forced(Algorithm::Ring), Choice::Best, &Settings::default());
        choice.unwrap().protocol
    };
    assert_eq!((best(1 << 10), best(4 << 30)), (Protocol::Ll, Protocol::Simple));
}

/// Goal: no all-reduce over hosts is faster than their NICs carry twice what all but one give away, whatever NVSwitches reduce
/// inside hosts; switches of the network that reduce halve it.
#[test]
fn all_reduces_are_bound_by_the_nics_of_all_hosts() {
    for (machine, hosts, host_gb_per_s) in
        [("azure-nd-h100-v5", 16, 400.0), ("gcp-a3-mega", 4, 200.0), ("gb200-nvl72", 36, 3600.0)]
    {
        let topology = load(machine, Some(hosts), None).unwrap();
        let call = Call::of_size(Collective::AllReduce, topology.ranks(), Bytes(1 << 30), DataType::Float32);
        let parts = if machine == "gb200-nvl72" { 2.0 } else { f64::from(hosts) };
        let all = 2.0 * (parts - 1.0) / parts * f64::from(1 << 30) / (host_gb_per_s * 1e3);
        let bound = |in_switches| bandwidth(&topology, &call, in_switches).time.as_us();
        assert!(bound(false) >= all * 0.999, "{machine}: {} for {all}", bound(false));
        assert!(topology.sharp || (bound(true) / all - 1.0).abs() < 1e-3, "{machine}: {} for {all}", bound(true));
    }
}

/// Goal: no exchange is faster than what leaves a unit goes up from its leaves, what leaves a rack through its NICs, and what
/// leaves a host over the PCIe of its GPUs.
#[test]
fn exchanges_are_bound_by_what_leaves_racks_and_units() {
    let with = |rest: &str, hosts: u32| {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        let text = format!(
            "schema = \"collcast/topology/1\"\nname = \"m\"\n[[hosts]]\ncount = {hosts}\nlike = \"dgx-h100\"\n{rest}"
        );
        std::fs::write(file.path(), text).unwrap();
        collcast_topologies::load_any(file.path().to_str().unwrap(), None, None).unwrap()
    };
    let blocking = "[fabric]\nkind = \"rail-optimised\"\nhosts_per_unit = 32\noversubscription = \"4:1\"\nrouting = \"adaptive\"\n";
    let fast = "[hosts.nics]\nkind = \"infiniband\"\ncount = 8\nrate = \"800 Gb/s\"\nper_gpu = 1\ngpudirect = true\n";
    // A GPU sends what others get of it: 96 of 128 hosts, or one of two racks, or three of four hosts, at 12.5, 50 and 48 GB/s.
    for (topology, size, seconds) in [
        (with(blocking, 128), 256 << 20, 0.75 * f64::from(256 << 20) / 12.5e9),
        (load("gb200-nvl72", Some(36), None).unwrap(), 1 << 30, 0.5 * f64::from(1 << 30) / 50e9),
        (with(fast, 4), 1 << 30, 0.75 * f64::from(1 << 30) / 48e9),
    ] {
        let call = Call::of_size(Collective::AllToAll, topology.ranks(), Bytes(size), DataType::Float32);
        let bound = bandwidth(&topology, &call, false);
        assert!((bound.time.as_us() / (seconds * 1e6) - 1.0).abs() < 0.01, "{bound:?} for {seconds}");
    }
}

/// Goal: two ports of a card carry no more than its PCIe slot, as one port of their summed rate; two cards have a slot each.
/// Method: 2 hosts whose card is behind 16 lanes of the fourth generation, 24 GB/s. NCCL makes one device of both ports, or two.
#[test]
fn ports_of_a_card_share_its_slot() {
    let exchange = |nics: &str, version| {
        let text = format!(
            "schema = \"collcast/topology/1\"\n[[hosts]]\ncount = 2\ngpus = {{ count = 4, kind = \"A100-SXM4-80GB\" }}\n\
             pcie = {{ generation = 4, lanes = 16, sockets = 1, switches_per_socket = 1, cpu = \"AuthenticAMD\" }}\n\
             [hosts.nics]\nkind = \"infiniband\"\ngpudirect = true\n{nics}\n[fabric]\nkind = \"single-switch\"\n"
        );
        let mut none = |_: &str| Err(std::io::Error::other("no file is named"));
        let topology = collcast_topologies::file::read(&text, "t.toml", &mut none).unwrap().build().unwrap();
        let settings = Settings { version: Some(version), ..Settings::default() };
        time(&topology, &settings, Collective::AllToAll, Algorithm::Direct, 1 << 30)
    };
    for version in [Version::new(2, 19, 3), Version::new(2, 28, 9)] {
        let of = |nics| exchange(nics, version);
        let one = of("count = 1\nrate = \"400 Gb/s\"\ngpu = [0]");
        let ports = of("count = 2\nports = 2\nrate = \"200 Gb/s\"\ngpu = [0, 0]");
        let cards = of("count = 2\nrate = \"200 Gb/s\"\ngpu = [0, 0]");
        assert!((ports / one - 1.0).abs() < 0.05 && cards < 0.6 * one, "{version}: {one} {ports} {cards}");
    }
}

/// Goal: one rank copies in one go, at the rate of its memory: what it reads and writes of 4800 GB/s.
#[test]
fn one_rank_copies_as_fast_as_its_memory() {
    let topology = load("h200x4", None, None).unwrap();
    let profile = Profile::builtin("h200-nvswitch").unwrap();
    let call = Call::of_size(Collective::AllReduce, 1, Bytes(1 << 30), DataType::Float32);
    let predicted =
        Predictor::new(&topology, &profile).predict(&call, Choice::Auto, Choice::Auto, &Settings::default()).unwrap();
    let least = 2.0 * f64::from(1 << 30) / 4800e3;
    assert!((1.0..1.3).contains(&(predicted.time.as_us() / least)), "{} for {least}", predicted.time);
    assert!((predicted.bound.time.as_us() / least - 1.0).abs() < 1e-3, "{:?}", predicted.bound);
    assert_eq!(predicted.plan.channels, 1);
}

/// Goal: what of a long call's middle is left out changes nothing: where channels get unlike parts of the links and end one
/// after the other, times grow evenly with sizes.
#[test]
fn long_calls_have_one_rate() {
    let (topology, settings) = (load("dgx-h100", Some(1), None).unwrap(), Settings::default());
    let rate =
        |gib: u64| (gib << 30) as f64 / time(&topology, &settings, Collective::AllReduce, Algorithm::Nvls, gib << 30);
    let base = rate(12);
    for gib in [13, 14, 16, 18] {
        let off = rate(gib) / base - 1.0;
        println!("{gib} GiB: {:+.2}%", 100.0 * off);
        assert!(off.abs() < 0.003, "{gib} GiB: {off}");
    }
}
