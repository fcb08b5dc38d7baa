#![allow(clippy::unwrap_used)]
use collcast_scenarios::{device, file, study};
use collcast_sim::predict::{Predictor, Settings};
use collcast_sim::collective::Launch;
use collcast_sim::profile::Profile;
use collcast_sim::workload::{Level, Mechanisms, Simulator};

fn over(profile: &mut Profile) {
    for pair in std::env::var("SET").unwrap_or_default().split(',').filter(|p| !p.is_empty()) {
        let (k, v) = pair.split_once('=').unwrap();
        profile.parameters.get_mut(k).unwrap().value = v.parse().unwrap();
    }
}

#[test]
fn show() {
    let topology = collcast_topologies::load_any("h200x4", None, None).unwrap();
    let mut profile = Profile::builtin("h200-nvswitch").unwrap();
    over(&mut profile);
    let dev = device(&topology).unwrap();
    let settings = Settings { launch: Launch::Processes, version: Some("2.28.9".parse().unwrap()), nccl: collcast_sim::model::nccl::NcclSettings { nvls: Some(false), ..Default::default() }, ..Settings::default() };
    let sim = Simulator::new(Predictor::new(&topology, &profile), dev, settings);
    let mlp = |bucket: &str| format!(r#"
schema = "collcast/scenario/1"
name = "x"
[machine]
topology = "h200x4"
[layout]
data = 4
[data_parallel]
kind = "ddp"
bucket = "{bucket}"
[[layers]]
name = "block"
count = 12
forward = "0.874075 ms"
backward = "1.854987 ms"
[[layers.operations]]
name = "norm"
bytes = "32 MiB"
parameters = [4096, 4096]
[[layers.operations]]
name = "up"
forward = "400 us"
parameters = [67108864, 16384]
[[layers.operations]]
name = "gelu"
bytes = "128 MiB"
[[layers.operations]]
name = "down"
forward = "400 us"
parameters = [67108864, 4096]
"#);
    let gpt = |layers: u32, dp: &str, layout: &str, scale: f64| format!(r#"
schema = "collcast/scenario/1"
name = "x"
[machine]
topology = "h200x4"
{layout}
{dp}
[[layers]]
name = "block"
count = {layers}
forward = "{} us"
backward = "{} us"
output = "16 MiB"
[[layers.operations]]
name = "norm"
bytes = "32 MiB"
parameters = [4096, 4096]
[[layers.operations]]
name = "qkv"
forward = "310 us"
parameters = [50331648]
[[layers.operations]]
name = "attention"
forward = "130 us"
backward = "300 us"
[[layers.operations]]
name = "proj"
forward = "100 us"
parameters = [16777216]
[[layers.operations]]
name = "norm2"
bytes = "64 MiB"
parameters = [4096, 4096]
[[layers.operations]]
name = "up"
forward = "400 us"
parameters = [67108864]
[[layers.operations]]
name = "gelu"
bytes = "128 MiB"
[[layers.operations]]
name = "down"
forward = "400 us"
parameters = [67108864]
"#, 1285.5 * scale, 2845.9 * scale);
    let mut rows: Vec<(String, String, f64, f64)> = Vec::new();
    for (b, t) in [("1 MiB", 41.1657), ("5 MiB", 40.9477), ("25 MiB", 40.8688), ("50 MiB", 41.3142), ("100 MiB", 41.158), ("250 MiB", 40.495), ("1000 MiB", 42.6418)] {
        rows.push((format!("ddp mlp {b}"), mlp(b), t, 32.7487));
    }
    for (b, t) in [("5 MiB", 68.9572), ("25 MiB", 69.3204), ("200 MiB", 68.7485)] {
        rows.push((format!("ddp gpt {b}"), gpt(12, &format!("[data_parallel]\nbucket = \"{b}\""), "[layout]\ndata = 4", 1.0), t, 51.8499));
    }
    for (r, t) in [(true, 83.6293), (false, 69.3155)] {
        rows.push((format!("fsdp {r}"), gpt(12, &format!("[data_parallel]\nkind = \"fsdp\"\nreshard = {r}"), "[layout]\ndata = 4", 1.0), t, 51.8499));
    }
    for (s, m, t) in [("gpipe", 4, 61.4282), ("1f1b", 4, 60.8404), ("gpipe", 8, 98.809), ("1f1b", 8, 97.9838), ("gpipe", 16, 176.857), ("1f1b", 16, 175.1499)] {
        rows.push((format!("{s} {m}"), gpt(8, "", &format!("[layout]\npipeline = 4\nmicro_batches = {m}\nschedule = \"{s}\""), 1.0), t, 4.1314 * 2.0 * (m + 3) as f64));
    }
    for (h, f, b, t, s) in [(4096, 4.6801, 11.0643, 15.9514, "16 MiB"), (8192, 11.1586, 33.8285, 40.8485, "32 MiB")] {
        let f1 = f / 16.0; let b1 = (b - f) / 16.0;
        rows.push((format!("tp {h}"), format!(r#"
schema = "collcast/scenario/1"
name = "x"
[machine]
topology = "h200x4"
[layout]
tensor = 4
[[layers]]
name = "half"
count = 16
forward = "{f1} ms"
backward = "{b1} ms"
sum = "{s}"
sum_backward = "{s}"
"#), t, b));
    }
    for (name, text, measured, base) in rows {
        let scenario = file::read(&text, "x").unwrap_or_else(|e| panic!("{}", e.render()));
        let graph = scenario.graph(&profile, dev);
        let step = sim.run(&graph, Mechanisms::default(), Level::Flows).unwrap();
        let b = study::breakdown(&sim, &graph, &step).unwrap();
        let ms = |p: i64| p as f64 / 1e9;
        let t = step.time.as_us() / 1e3;
        let c = b.compute.as_us() / 1e3;
        println!("{name:16} step {t:8.2} measured {measured:8.2} {:+6.1}% | exposed {:6.2} vs {:6.2} {:+6.1}% | compute {c:6.2} interf {:5.2} launch {:5.2} framework {:5.2} unhidden {:5.2} | {:?}", 100.0 * (t / measured - 1.0), t - c, measured - base, 100.0 * ((t - c) / (measured - base) - 1.0), ms(b.interference), ms(b.launch), ms(b.framework), ms(b.unhidden), step.how);
    }
}
