//! Goal: `collcast plan` sets machines, counts of GPUs and ways to run a job beside each other, and says what tells them apart.
//! Method: small searches, each held against the same plan asked for by itself.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

mod common;

use collcast::plan::{Options, Request, compare, plan};
use collcast::{SiteSpec, Watch};
use serde_json::Value;

use common::collcast;

fn request(machine: &str, gpus: u64) -> Request {
    Request {
        global_batch: Some(64),
        most: 1,
        site: SiteSpec::new(machine),
        tokens: Some(1e12),
        price: Some(if machine == "dgx-h100" { 2.5 } else { 4.0 }),
        ..Request::new("llama3-8b", machine, gpus)
    }
}

fn options(requests: &[Request]) -> Options {
    compare(requests, &Watch::default()).unwrap()
}

/// Goal: an option is what the plan by itself is; efficiency, front and picks follow from the options.
#[test]
fn options_are_plans_beside_each_other() {
    let requests: Vec<Request> =
        ["dgx-h100", "dgx-b200"].iter().flat_map(|machine| [8, 16, 32].map(|gpus| request(machine, gpus))).collect();
    let options = options(&requests);
    let days = |index: usize| options.options[index].time().unwrap()[1];
    let cost = |index: usize| options.options[index].spent().unwrap()[1];
    for (index, (request, option)) in requests.iter().zip(&options.options).enumerate() {
        let alone = plan(request, &Watch::default()).unwrap();
        let own = option.plan.as_ref().unwrap();
        assert_eq!(
            (&own.layouts[0].text, own.layouts[0].step.seconds),
            (&alone.layouts[0].text, alone.layouts[0].step.seconds)
        );
        let few = options.options[index / 3 * 3].plan.as_ref().unwrap();
        let efficiency = own.layouts[0].tokens_per_s_per_gpu / few.layouts[0].tokens_per_s_per_gpu;
        assert_eq!(option.efficiency, Some(efficiency));
        assert!((cost(index) / alone.whole.unwrap().cost.unwrap() - 1.0).abs() < 1e-9);
        let beaten = (0..6).any(|other| days(other) < days(index) && cost(other) < cost(index));
        assert_eq!(option.on_front, !beaten, "{}", option.name);
    }
    assert!((0..6).all(|index| days(options.fastest.best) <= days(index)));
    assert!((0..6).all(|index| cost(options.cheapest.best) <= cost(index)));
    for (pick, of) in [(&options.fastest, &days as &dyn Fn(usize) -> f64), (&options.cheapest, &cost)] {
        let (next, times) = pick.next.unwrap();
        assert!(!pick.unsure.contains(&next) && (times - of(next) / of(pick.best)).abs() < 1e-12);
    }
    // Twice the GPUs of a kind are told apart by time.
    assert!(options.fastest.unsure.is_empty(), "{:?}", options.fastest);
}

/// Goal: a count on which nothing fits is a row, and an error where all are so; questions that cannot be compared are refused.
#[test]
fn what_has_no_plan_is_told_beside_the_others() {
    let args = ["plan", "llama3-70b", "--gpus", "8,12,64", "--layout", "tp=8,pp=2", "--format", "json"];
    let (code, out, err) = collcast(&args);
    assert_eq!(code, 0, "{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], "collcast/plan/1");
    let options = json["options"].as_array().unwrap();
    assert!(options[0]["refused"].as_str().unwrap().contains("ranks"), "{options:?}");
    assert!(options[1]["refused"].as_str().unwrap().contains("no whole number of hosts"));
    assert_eq!((options[2]["gpus"].as_u64(), options[2]["layouts"][0]["layout"]["data"].as_u64()), (Some(64), Some(4)));
    assert_eq!(json["comparison"].as_array().unwrap().len(), 3);
    let refused = |args: &[&str], parts: &[&str]| {
        let (code, _, err) = collcast(&[&["plan", "llama3-405b"], args].concat());
        assert!(code == 2 && parts.iter().all(|part| err.contains(part)), "{args:?}: {parts:?} in {err}");
    };
    refused(&["--gpus", "8,16"], &["does not fit on 8 GPUs", "it fits on "]);
    refused(&["--gpus", "16..8"], &["the range `16:8` is empty"]);
    refused(&["--gpus", "8..1e3"], &["`1e3` is no count"]);
    refused(
        &[
            "--gpus",
            "1..18446744073709551615:2",
            "--on",
            "dgx-h100",
            "--on",
            "dgx-a100",
            "--on",
            "dgx-h200",
            "--on",
            "dgx-b200",
        ],
        &["are 256 options", "at most 200"],
    );
    refused(&[], &["how many GPUs", "--gpus"]);
    refused(&["--gpus", "8", "--on", "dgx-h10"], &["dgx-h10", "did you mean"]);
    refused(&["--gpus", "8", "--price", "2"], &["needs --tokens"]);
    refused(
        &["--gpus", "8,16", "--tokens", "1T", "--on", "dgx-h100", "--on", "dgx-b200", "--price", "dgx-h100=2"],
        &["no price of `dgx-b200`"],
    );
}
