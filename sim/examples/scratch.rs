use collcast_sim::collective::*;
use collcast_sim::predict::*;
use collcast_sim::profile::Profile;
use collcast_sim::schedule::Call;
use collcast_sim::topology::*;
use collcast_sim::units::*;
fn box_(n: u32) -> Topology {
    let mut b = TopologyBuilder::new("t");
    let h = b.host("h");
    let sw = b.vertex("sw", VertexKind::NvSwitch, Some(h));
    for i in 0..n {
        let g = b.vertex(
            format!("g{i}"),
            VertexKind::Gpu(Gpu {
                index: i,
                model: "H200".into(),
                compute_capability: 90,
                memory_rate: None,
                bus_id: None,
            }),
            Some(h),
        );
        b.duplex(g, sw, Link { kind: LinkKind::Nvlink, rate: Bandwidth::from_gb_per_s(450.0), width: 18 });
    }
    b.build().unwrap()
}
fn main() {
    let profile = Profile::builtin("h200-nvswitch").unwrap();
    let path = std::env::args().nth(1).unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    let mut groups: std::collections::BTreeMap<String, Vec<f64>> = Default::default();
    let (t2, t4) = (box_(2), box_(4));
    let verbose = std::env::args().nth(2);
    let start = std::time::Instant::now();
    let mut messages = 0;
    for line in text.lines().skip(1) {
        let f: Vec<&str> = line.split(',').collect();
        if f[14] != "0" {
            continue;
        }
        let coll: Collective = f[1].parse().unwrap();
        let ranks: u32 = f[4].parse().unwrap();
        let a = if f[2].is_empty() { Choice::Auto } else { Choice::Forced(f[2].parse().unwrap()) };
        let p = if f[3].is_empty() { Choice::Auto } else { Choice::Forced(f[3].parse().unwrap()) };
        let size: u64 = f[10].parse().unwrap();
        let t: f64 = f[11].parse().unwrap();
        let call = Call::of_size(coll, ranks, Bytes(size), DataType::Float32);
        let top = if ranks == 2 { &t2 } else { &t4 };
        let pr = Predictor::new(top, &profile);
        let s = Settings {
            launch: f[5].parse().unwrap(),
            channels: None,
            max_channels: f[6].parse().ok(),
            threads: f[8].parse().ok(),
            buffer_size: f[7].parse().ok().map(Bytes),
            ..Default::default()
        };
        let r = pr.predict(&call, a, p, &s).unwrap();
        messages += r.messages;
        let e = r.time.as_us() / t - 1.0;
        let band = if size < 65536 {
            "S"
        } else if size <= 16 << 20 {
            "M"
        } else {
            "L"
        };
        let forced = !f[2].is_empty();
        groups
            .entry(if forced {
                format!("{} {} {} {band}", f[5], f[2], f[3])
            } else {
                format!("auto {} {} {band}", f[5], f[1])
            })
            .or_default()
            .push(e);
        if verbose.as_deref().is_some_and(|v| f[0] == v || v == "all") {
            println!(
                "{:40} {:>10} meas {:>9.2} pred {:>9.2} {:+.1}% ch {} thr {} {}/{} by {} kernel {} folded {:?}",
                f[0],
                size,
                t,
                r.time.as_us(),
                e * 100.0,
                r.plan.channels,
                r.plan.threads,
                r.algorithm,
                r.protocol,
                r.bound_by(),
                r.kernel,
                r.folded
            );
        }
    }
    for (g, mut e) in groups {
        let bias = e.iter().sum::<f64>() / e.len() as f64;
        for x in &mut e {
            *x = x.abs();
        }
        e.sort_by(f64::total_cmp);
        println!(
            "{g:40} n {:3} median {:.1}% max {:.1}% bias {:+.1}%",
            e.len(),
            e[e.len() / 2] * 100.0,
            e[e.len() - 1] * 100.0,
            bias * 100.0
        );
    }
    println!("{messages} messages in {:?}", start.elapsed());
}
