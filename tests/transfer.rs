//! Goal: transfers take what others measured, by the engine's own sharing of links, and every way obeys its bounds.
//! Method: published times between two hosts, ways on built-in machines against what their links carry, and what users give
//! that makes no sense.

use std::path::Path;

use crate::common::collcast;
use collcast::SiteSpec;
use collcast::kernels::{PeerRequest, fit_peers};
use collcast::transfer::{Outcome, Request, Row, transfer};

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/transfer").join(name).display().to_string()
}

fn on(machine: &str, from: &str, to: &str, bytes: u64) -> Request {
    Request { site: SiteSpec::new(machine), ..Request::new(from, to, bytes) }
}

fn row<'o>(outcome: &'o Outcome, path: &str) -> &'o Row {
    outcome.rows.iter().find(|row| row.path == path).unwrap()
}

/// Goal: nine published times of a cache's way between two hosts within 10%, with two of them as anchors.
#[test]
fn mooncakes_nine_transfers_are_within_ten_percent() {
    let text = std::fs::read_to_string(data("mooncake.csv")).unwrap();
    let rows: Vec<Vec<f64>> = (text.lines().filter(|l| l.starts_with(|c: char| c.is_ascii_digit())))
        .map(|line| line.split(',').map(|cell| cell.parse().unwrap()).collect())
        .collect();
    assert_eq!((rows.len(), rows.iter().filter(|row| row[3] == 1.0).count()), (9, 2));
    for row in rows {
        let bytes = (row[1] * 1048576.0) as u64;
        // One head of 128 for each of 8 ranks: 16 tokens of a block, in 16 bits.
        let request = Request { block: Some(4096), ..on("h800-roce", "gpu:0-7", "gpu:8-15", bytes) };
        let outcome = transfer(&request).unwrap();
        let found = outcome.rows.iter().find(|row| row.path == "rdma").unwrap();
        assert!(found.nixl);
        let error = found.seconds * 1e3 / row[2] - 1.0;
        assert!(error.abs() < if row[3] == 1.0 { 0.02 } else { 0.10 }, "{} tokens: {error:.3}", row[0]);
    }
}

/// Goal: copies between two H100 of one host, which nothing was fitted to, take what is forecast; `calibrate` fits their start
/// and rate to every second size, and the others are closer then.
#[test]
fn copies_between_two_h100_are_forecast_and_fitted() {
    let file = data("h100x2_copies.csv");
    let text = std::fs::read_to_string(&file).unwrap();
    let peers: Vec<(u64, f64)> = (text.lines().filter(|line| line.starts_with("peer")))
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            (cells[2].parse().unwrap(), cells[5].parse().unwrap())
        })
        .collect();
    assert_eq!(peers.len(), 10);
    for &(bytes, us) in &peers {
        let found = transfer(&on("dgx-h100", "gpu:0", "gpu:1", bytes)).unwrap();
        let error = row(&found, "nvlink").seconds * 1e6 / us - 1.0;
        // Up to 1 MiB the start counts, in the prior that of H200s.
        assert!(error.abs() < if bytes <= 1 << 20 { 0.26 } else { 0.08 }, "{bytes}: {error:.3}");
    }
    let site = SiteSpec::new("dgx-h100").nodes(1).profile("prior");
    let fitted = fit_peers(&PeerRequest { measurements: vec![file.into()], site, name: "copies".to_owned() }).unwrap();
    let found: Vec<f64> = fitted.constants.iter().map(|constant| constant.value).collect();
    assert!((found[0] - 1.94).abs() < 0.2 && (found[1] - 0.88).abs() < 0.02, "{found:?}");
    assert!(fitted.left_out.count == 5 && fitted.left_out.mean_abs_error < 0.06, "{:?}", fitted.left_out);
    assert!(fitted.left_out.mean_abs_error < fitted.left_out_before.mean_abs_error, "{fitted:?}");
    // Whoever layers it over a profile gets these times.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copies.toml");
    std::fs::write(&path, &fitted.toml).unwrap();
    let site = SiteSpec::new("dgx-h100").profile("prior").profile(path.to_str().unwrap());
    let again = transfer(&Request { site, ..Request::new("gpu:0", "gpu:1", 1 << 30) }).unwrap();
    assert!((row(&again, "nvlink").seconds * 1e6 / peers[9].1 - 1.0).abs() < 0.02);
    let (code, _, said) = collcast(&["calibrate", &data("h100x2_copies.csv")]);
    assert!(code == 2 && said.contains("name it with -t"), "{said}");
}

/// Goal: a fit that errs more than the profile that it started from is refused. Method: sizes that are left out take what is
/// forecast, the others a fifth more.
#[test]
fn a_fit_of_copies_for_the_worse_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let rows = (20..=30).step_by(2).map(|power| {
        let bytes: u64 = 1 << power;
        let forecast = row(&transfer(&on("dgx-h100", "gpu:0", "gpu:1", bytes)).unwrap(), "nvlink").seconds * 1e6;
        let us = if power % 4 == 0 { forecast } else { forecast * 1.2 };
        format!("peer,device,{bytes},{bytes},1,{us},{us},{us},1,{bytes}\n")
    });
    let header = "way,memory,bytes,chunk,parallel,us,us_min,us_max,gb_per_s,checked\n".to_owned();
    std::fs::write(path("copies.csv"), header + &rows.collect::<String>()).unwrap();
    let fit = ["calibrate", &path("copies.csv"), "-t", "dgx-h100", "-o", &path("mine.toml")];
    let (code, _, err) = collcast(&fit);
    assert!(code == 1 && err.contains("no better than 0.0% of the profile that it started from"), "{code} {err}");
    assert!(!Path::new(&path("mine.toml")).exists());
    let (code, _, err) = collcast(&[&fit[..], &["--force"]].concat());
    assert!(code == 0 && Path::new(&path("mine.toml")).exists(), "{err}");
}

/// Goal: tables of copies and of NICs are known behind a blank line, and fitted alone: other files, and options of
/// collectives, are refused by name.
#[test]
fn copies_and_nics_are_fitted_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (copies, nics) = (data("h100x2_copies.csv"), "tests/data/verbs/probe/1.csv");
    let nccl = "tests/data/h200x4_bench/nccl_lines_4.csv";
    for (file, machine, constant) in
        [(copies.as_str(), "dgx-h100", "copy_engine.start"), (nics, "tests/data/verbs/guest.toml", "network.proxy")]
    {
        let blank = folder.path().join("blank.csv").display().to_string();
        std::fs::write(&blank, format!("\n{}", std::fs::read_to_string(file).unwrap())).unwrap();
        let (code, out, err) = collcast(&["calibrate", &blank, "-t", machine]);
        assert!(code == 0 && out.contains(constant), "{file}: {out}{err}");
    }
    for (words, expected) in [
        (vec![copies.as_str(), nccl], "nccl_lines_4.csv` is no table of copies, as another file is"),
        (vec![nics, copies.as_str()], "h100x2_copies.csv` is no table of NICs, as another file is"),
        (vec![nics, "tests/data/verbs"], "`tests/data/verbs` is no table of NICs, as another file is"),
        (vec![copies.as_str(), "--min-size", "1M"], "--min-size has no meaning here: copies are fitted"),
        (vec![nics, "--launch", "graph", "--held-out", "out"], "--launch, --held-out have no meaning here: NICs are"),
    ] {
        let (code, _, err) = collcast(&[&["calibrate", "-t", "dgx-h100"], &words[..]].concat());
        assert!(code == 2 && err.contains(expected), "{words:?}: {code} {err}");
    }
}

/// Goal: large transfers reach what their narrowest part carries, and no more; the fastest way is on top.
#[test]
fn each_way_is_bound_by_its_narrowest_part() {
    let gib: u64 = 1 << 30;
    let near = transfer(&on("dgx-h100", "gpu:0", "gpu:1", gib)).unwrap();
    assert_eq!((near.rows[0].path.as_str(), near.rows[0].nixl), ("nvlink", true));
    assert!((near.rows[0].gb_per_s / (450.0 * 0.88) - 1.0).abs() < 0.01);
    // PCIe 5 both ways, one after the other in buffers: the link of the slower stage.
    let staged = row(&near, "staged");
    assert!(staged.gb_per_s > 40.0 && staged.gb_per_s < 63.0 * 0.8771, "{staged:?}");
    let far = transfer(&on("dgx-h100", "gpu:0", "gpu:9", gib)).unwrap();
    let direct = row(&far, "rdma");
    assert!(direct.nixl && direct.gb_per_s > 43.0 && direct.gb_per_s < 48.0, "{direct:?}");
    // Over two NICs of the socket: bound by the copies at both ends.
    let staged = row(&far, "rdma-staged");
    assert!(staged.gb_per_s > 50.0 && staged.gb_per_s < 63.0 * 0.8771, "{staged:?}");
    assert!(row(&far, "tcp").gb_per_s < 7.5 && row(&far, "tcp").gb_per_s > 7.0);
    let disk = transfer(&Request { drives: Some(4), ..on("dgx-h100", "disk:0", "gpu:0", gib) }).unwrap();
    assert_eq!(disk.rows[0].bound, "drives of host0", "{:?}", disk.rows);
    assert!((disk.rows[0].gb_per_s / 28.0 - 1.0).abs() < 0.02, "{:?}", disk.rows);
    let slow = transfer(&Request { drives: Some(1), ..on("dgx-h100", "disk:0", "gpu:0", gib) }).unwrap();
    assert!((slow.rows[0].gb_per_s / 7.0 - 1.0).abs() < 0.02);
}

/// Goal: drives and stores are the machine's own: DGX H100 has eight of 7 and 3.8 GB/s, and 400 Gb/s to an object store whose
/// requests of 8 MiB carry 87.5 MB/s each after 150 ms.
#[test]
fn what_is_stored_comes_at_the_rate_of_its_parts() {
    let gib: u64 = 1 << 30;
    let gb_per_s =
        |from: &str, to: &str, path: &str| row(&transfer(&on("dgx-h100", from, to, gib)).unwrap(), path).gb_per_s;
    // 56 GB/s of drives are more than PCIe takes; written, 30.4.
    let (read, write) = (gb_per_s("disk:0", "gpu:0", "gds"), gb_per_s("gpu:0", "disk:0", "gds"));
    assert!((40.0..56.0).contains(&read) && (write / 30.4 - 1.0).abs() < 0.02, "{read} {write}");
    let (drives, cached) = (gb_per_s("disk:0", "host:0", "posix"), gb_per_s("cache:0", "host:0", "posix"));
    assert!(drives <= cached && cached <= 10.0, "{drives} {cached}");
    let store = |bytes: u64| transfer(&on("dgx-h100", "store:0", "gpu:0", bytes)).unwrap().rows[0].seconds;
    let expected = |bytes: f64, requests: f64| 0.15 + bytes / (requests * 87.5e6_f64).min(50e9);
    for (bytes, requests) in [(1 << 20, 1.0), (gib, 128.0), (64 * gib, 8192.0)] {
        let (found, expected) = (store(bytes), expected(bytes as f64, requests));
        assert!((found / expected - 1.0).abs() < 0.03, "{bytes}: {found} {expected}");
    }
}

/// Goal: transfers share what they meet in: two into one NIC take twice as long, two of two NICs do not.
#[test]
fn transfers_share_links() {
    let gib: u64 = 1 << 30;
    let time =
        |from: &str, to: &str, bytes: u64| row(&transfer(&on("dgx-h100", from, to, bytes)).unwrap(), "rdma").seconds;
    let one = time("gpu:0", "gpu:8", gib);
    assert!((time("gpu:0-1", "gpu:8", 2 * gib) / one - 2.0).abs() < 0.03);
    assert!((time("gpu:0-1", "gpu:8-9", 2 * gib) / one - 1.0).abs() < 0.01);
}

/// Goal: two ways at once are faster than either, and carry all bytes.
#[test]
fn two_ways_at_once_add_up() {
    let request = on("dgx-h100", "gpu:0", "gpu:1", 4 << 30);
    let alone = transfer(&request).unwrap();
    let both = transfer(&Request { path: Some("nvlink+staged".to_owned()), ..request }).unwrap();
    assert_eq!(both.rows.len(), 1);
    let sum = row(&alone, "nvlink").gb_per_s + row(&alone, "staged").gb_per_s;
    assert!((both.rows[0].gb_per_s / sum - 1.0).abs() < 0.02, "{} {sum}", both.rows[0].gb_per_s);
    // RDMA and the copies for TCP share the GPU's PCIe link.
    let far = Request { path: Some("rdma+tcp".to_owned()), ..on("dgx-h100", "gpu:0", "gpu:8", 4 << 30) };
    assert!(transfer(&far).unwrap().rows[0].gb_per_s < 63.0 * 0.8771);
}

/// Goal: a collective on the same NICs and a transfer slow each other down, by shares of the NIC, and by nothing on others.
#[test]
fn a_collective_beside_shares_the_nics() {
    let gib: u64 = 1 << 30;
    let with = |from: &str, to: &str, beside: &str| {
        let request = Request { beside: Some(beside.parse().unwrap()), ..on("dgx-h100", from, to, gib) };
        let found = row(&transfer(&request).unwrap(), "rdma").clone();
        let (alone, longer) = found.beside.unwrap();
        (found.seconds / alone, longer)
    };
    // Each of 16 ranks sends half of 16 GiB to the other host, over its NIC: much longer than the transfer.
    let (slower, longer) = with("gpu:0", "gpu:8", "alltoall,16G,gpu:0-15");
    assert!(slower > 1.8 && longer > 0.02 && longer < 0.2, "{slower} {longer}");
    // The other way of the same cable, and links inside a host, are not shared.
    let (slower, longer) = with("gpu:0", "gpu:8", "all_reduce,1G,gpu:0-7");
    assert!((slower - 1.0).abs() < 0.01 && longer.abs() < 0.01, "{slower} {longer}");
    let (slower, _) = with("gpu:0", "gpu:8", "all_reduce,4G,gpu:0-15");
    assert!(slower > 1.3, "{slower}");
}

/// Goal: memory that is registered first takes its bytes over the rate of registration longer, and ways without NICs take
/// as long as before.
#[test]
fn registration_comes_on_top() {
    let gib: u64 = 1 << 30;
    let times = |register: bool, path: &str| {
        let request = Request { register, ..on("dgx-h100", "gpu:0", "gpu:8", gib) };
        row(&transfer(&request).unwrap(), path).seconds
    };
    let more = times(true, "rdma") - times(false, "rdma");
    assert!((more / (gib as f64 / 10.2e9) - 1.0).abs() < 0.01, "{more}");
    assert_eq!(times(true, "tcp"), times(false, "tcp"));
}

/// Goal: layers that go while a prefill makes the next ones leave the last one's transfer exposed, where links are faster
/// than the prefill, and all but the first layer's time where they are slower.
#[test]
fn layers_hide_behind_a_prefill() {
    let whole = on("dgx-h100", "gpu:0", "gpu:8", 10 << 30);
    let alone = row(&transfer(&whole).unwrap(), "rdma").seconds;
    let by_layers =
        |prefill: f64| row(&transfer(&Request { layers: 80, prefill, ..whole.clone() }).unwrap(), "rdma").clone();
    let slow = by_layers(4.0 * alone);
    assert!((slow.exposed_s - (alone / 80.0)).abs() < 0.001, "{slow:?} {alone}");
    let fast = by_layers(alone / 4.0);
    assert!((fast.seconds - (alone + alone / 320.0)).abs() < 0.001, "{fast:?} {alone}");
}

/// Goal: small pieces, which cost NICs time and copies none here, put no way with copies on top; where no other leads there, the
/// answer says so. Large ones change nothing.
#[test]
fn pieces_of_copies_win_nothing() {
    let with = |to: &str, block: Option<u64>| {
        let found = transfer(&Request { block, ..on("dgx-h100", "gpu:0", to, 1 << 30) }).unwrap();
        found.rows.iter().map(|row| (row.path.clone(), row.pieces_left_out)).collect::<Vec<_>>()
    };
    let small = with("gpu:8", Some(512));
    let left_out = |path: &str| (path.to_owned(), true);
    assert_eq!(small, [("rdma".to_owned(), false), left_out("tcp"), left_out("rdma-staged")]);
    for block in [None, Some(256 << 20)] {
        assert!(with("gpu:8", block).iter().chain(&with("gpu:1", block)).all(|row| !row.1), "{block:?}");
    }
    let near = ["transfer", "dgx-h100", "--from", "gpu:0", "--to", "gpu:1", "-s", "1G"];
    let (code, out, err) = collcast(&[&near[..], &["--block", "4K"]].concat());
    assert!(code == 0 && out.contains("pieces of 4 KiB as contiguous: nvlink"), "{out}");
    assert!(err.contains("warning: nvlink takes") && err.contains("is not counted"), "{err}");
    assert!(collcast(&near).2.contains("ok: nvlink takes"));
}

/// Goal: what makes no sense is refused with the way out, and exit code 2.
#[test]
fn slips_are_refused() {
    let (code, _, err) = collcast(&["transfer", "--from", "gpu:0", "--to", "gpu:9", "-s", "1G", "--precision", "x"]);
    assert!(code == 2 && err.contains("--precision") && err.contains("--break-even"), "{err}");
    for (args, says) in [
        (vec!["--from", "gpu:0", "--to", "gpu:0", "-s", "1G"], "sends to itself"),
        (vec!["--from", "gpu:0", "--to", "cpu:0", "-s", "1G"], "there is no `cpu`"),
        (vec!["--from", "gpu:0-3", "--to", "gpu:8-9", "-s", "1G"], "4 places send to 2"),
        (vec!["--from", "gpu:0", "--to", "gpu:1", "-s", "0"], "0 bytes"),
        (
            vec!["--from", "gpu:0", "--to", "gpu:1", "-s", "1G", "--block", "0"],
            "--block 0: a piece has 1 or more bytes",
        ),
        (
            vec!["--from", "gpu:0", "--to", "gpu:1", "-s", "1G", "--env", "NCCL_ALGO=Ring"],
            "a transfer has no collective",
        ),
        (
            "--from gpu:0 --to gpu:8 -s 1G --beside all_reduce,1G,gpu:0-15 --env NCCL_IB_DISABLE=1"
                .split(' ')
                .collect(),
            "--env has no meaning here: --beside counts a collective's bytes on links",
        ),
        (
            vec!["--from", "gpu:0-7", "--to", "gpu:4-11", "-s", "1G"],
            "no single way serves all pairs from gpu:0-7 to gpu:4-11: gpu:0 to gpu:4 by nvlink",
        ),
        (vec!["--from", "store:7", "--to", "gpu:0", "-s", "1G"], "there is one, store:0"),
        (vec!["--from", "gpu:0", "--to", "gpu:8", "-s", "1G", "--drives", "3"], "no drive is in this transfer"),
        (vec!["--break-even", "llama3-8b", "--drives", "0"], "give --drives 1 or more"),
        (vec!["--from", "disk:0", "--to", "gpu:8", "-s", "1G"], "no way leads"),
        (vec!["--from", "gpu:0", "--to", "gpu:8", "-s", "1G", "--path", "nvlink"], "these do: rdma rdma-staged tcp"),
        (vec!["--from", "store:0", "--to", "disk:0", "-s", "1G"], "no way leads"),
        (vec!["h200x4", "--from", "store:0", "--to", "gpu:0", "-s", "1G"], "`network` of their"),
        (vec!["--from", "gpu:0", "--to", "gpu:8", "-s", "1G", "--beside", "all_reduce"], "has not three parts"),
        (vec!["--from", "gpu:0", "--to", "gpu:8", "-s", "1G", "--beside", "broadcast,1G,gpu:0-7"], "is none of"),
        (vec!["--from", "gpu:0", "--to", "gpu:8", "-s", "1G", "--beside", "all_reduce,1G,host:0"], "2 to 128 GPUs"),
        (vec!["--from", "gpu:0", "--to", "gpu:4000000000", "-s", "1G"], ""),
        (vec!["--from", "gpu:0", "--to", "gpu:8", "-s", "1G", "--layers", "0"], "1 to 4096"),
        (vec!["h200x2", "--nodes", "1", "--from", "gpu:0", "--to", "gpu:2", "-s", "1G"], "more --nodes"),
    ] {
        let args: Vec<&str> = std::iter::once("transfer").chain(args).collect();
        let (code, _, text) = collcast(&args);
        assert_eq!(code, 2, "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    }
}

/// Goal: memory of a Grace CPU holds no copy over NVLink-C2C back, as its data sheet has it; a bound that is assumed says so.
#[test]
fn memory_of_hosts_is_that_of_their_cpus() {
    let found = transfer(&on("gb200-nvl72", "gpu:0", "host:0", 10 << 30)).unwrap();
    let copy = row(&found, "copy");
    assert!(copy.gb_per_s > 300.0 && copy.gb_per_s < 450.0 && !copy.bound.contains("memory"), "{copy:?}");
    assert_eq!(copy.assumed, None);
    let found = transfer(&on("dgx-h100", "cache:0", "gpu:0", 1 << 30)).unwrap();
    let verdict = found.report().verdict.unwrap().sentence;
    assert!(verdict.contains("bound by thread for files of host0, whose rate is assumed"), "{verdict}");
    assert!(found.notes.iter().any(|note| note.starts_with("the rate of thread for files of host0 is assumed: ")));
}

/// Goal: a worker that has no room on one host is refused with what this question can change, and runs where NVLink reaches
/// as many GPUs.
#[test]
fn break_even_names_a_way_out_of_its_own() {
    let on = |more: &[&str]| collcast(&[&["transfer", "--break-even", "llama3-405b", "--tensor"], more].concat());
    for (tensor, says) in [("8", "weights of `llama3-405b` take"), ("16", "span hosts of 8"), ("32", "span hosts of 8")]
    {
        let (code, _, err) = on(&[tensor]);
        let way_out = "take --precision fp8, another --tensor, or a machine with more GPUs in an NVLink domain";
        assert!(code == 2 && err.contains(says) && err.contains(way_out), "{tensor}: {err}");
    }
    // What fits on a host needs no lower precision.
    let (code, _, err) = collcast(&["transfer", "--break-even", "llama3-70b", "--tensor", "16"]);
    assert!(code == 2 && err.contains("span hosts of 8") && err.contains("take another --tensor"), "{err}");
    let (code, _, err) = on(&["200032"]);
    assert!(code == 2 && err.contains("ask for fewer GPUs"), "{err}");
    let (code, out, err) = on(&["16", "gb200-nvl72"]);
    assert!(code == 0 && out.contains("on 16 GPUs of gb200-nvl72"), "{out}{err}");
}

/// Goal: NCCL's variables change the collectives by which a cache is computed again.
#[test]
fn break_even_has_the_variables_of_nccl() {
    let recompute = |env: &[&str]| {
        let (code, out, err) =
            collcast(&[&["transfer", "--break-even", "llama3-70b", "--format", "json"], env].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["rows"][0]["recompute_ms"].as_f64().unwrap()
    };
    let [plain, slow] = [&[][..], &["--env", "NCCL_ALGO=Ring", "--env", "NCCL_PROTO=Simple"]].map(recompute);
    assert!(slow > 1.1 * plain, "{plain} {slow}");
}
