//! Goal: the profile that a machine is forecast with is the one that its user would expect, and the output says which it
//! is and why.
//! Method: a folder of a machine, and folders of a user, with profiles whose latency cannot be missed.

use serde_json::Value;
use std::path::Path;

use crate::common::{program, run};

/// A profile whose launches take so many us.
fn profile(folder: &Path, name: &str, machines: &str, launch: f64) {
    let text = format!(
        "schema = \"collcast/profile/1\"\nname = \"{name}\"\nevidence = \"a test\"\nuncertainty = 0.2\ngpus = [\"H200\"]\n\
         machines = [{machines}]\n\n[parameters]\n\
         \"launch.threads\" = {{ value = {launch}.0, origin = \"assumed\", source = \"a test\" }}\n"
    );
    std::fs::write(folder.join(format!("{name}.toml")), text).unwrap();
}

/// Exit code, output and errors, with folders of the user's own.
fn collcast(folders: &str, args: &[&str]) -> (i32, String, String) {
    run(program().args(args).env("COLLCAST_PROFILES", folders))
}

/// The time in us of a small all-reduce, and the notes.
fn forecast(folders: &str, args: &[&str]) -> (f64, String) {
    let (_, out, err) = collcast(folders, &[&["simulate"], args, &["-s", "1K", "--format", "json"]].concat());
    let result: Value = serde_json::from_str(&out).expect(&err);
    (result["rows"][0]["time_us"].as_f64().expect(&out), result["assumptions"].to_string())
}

/// Goal: one beside the topology file comes first, then the user's own for that machine, then what the machine names; a
/// name on the command line comes before all; each is said.
#[test]
fn the_nearest_profile_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let [machine, own, other] = ["machine", "own", "other"].map(|name| folder.path().join(name));
    [&machine, &own, &other].iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let file = machine.join("topology.toml");
    let text = "schema = \"collcast/topology/1\"\nname = \"mybox\"\nlike = \"h200x4\"\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let folders = std::env::join_paths([&own, &other]).unwrap().into_string().unwrap();

    let (plain, said) = forecast(&folders, &[file]);
    assert!(plain < 50.0 && said.contains("profile h200-nvswitch") && !said.contains("is taken"), "{plain} {said}");
    profile(&other, "others", "\"another\"", 300.0);
    assert_eq!(forecast(&folders, &[file]).0, plain);
    // A file that is called otherwise is found by the name that it gives itself, as lists do.
    std::fs::rename(other.join("others.toml"), other.join("renamed.toml")).unwrap();
    let by_name = forecast(&folders, &[file, "--profile", "others"]).0;
    assert!(by_name >= 300.0 && by_name == forecast(&folders, &[file, "--profile", "renamed"]).0);
    profile(&own, "mine", "\"mybox\"", 100.0);
    let (mine, said) = forecast(&folders, &[file]);
    assert!(
        mine >= 100.0 && said.contains("profile mine is taken") && said.contains("measurements of `mybox`"),
        "{said}"
    );
    assert_eq!(forecast("", &[file]).0, plain, "no folder is the user's where the variable is empty");
    profile(&machine, "profile", "", 200.0);
    let (beside, said) = forecast(&folders, &[file]);
    assert!(beside >= 200.0 && said.contains("lies beside the topology file"), "{said}");
    let (named, said) = forecast(&folders, &[file, "--profile", "others"]);
    assert!(named >= 300.0 && said.contains("profile others") && !said.contains("is taken"), "{said}");
    // That of another machine is not taken, wherever it lies.
    profile(&machine, "profile", "\"another\"", 200.0);
    assert_eq!(forecast(&folders, &[file]).0, mine);

    let (code, out, err) = collcast(&folders, &["profile", "list", "-t", file, "--format", "json"]);
    let result: Value = serde_json::from_str(&out).expect(&err);
    let taken: Vec<&Value> = result["rows"].as_array().unwrap().iter().filter(|row| !row["taken"].is_null()).collect();
    assert_eq!((code, taken.len(), &taken[0]["name"], &taken[0]["taken"]), (0, 1, &"mine".into(), &"yes".into()));
}

/// Goal: the same GPUs take the same profile and time, whether the machine has no others or the call leaves them out.
#[test]
fn gpus_without_a_rank_choose_no_profile() {
    let of = |args: &[&str]| {
        let (time, said) = forecast("", &[&["dgx-h100"], args].concat());
        (time, said.contains("profile h100-nvswitch is taken"))
    };
    let four = of(&["--gpus", "4"]);
    assert!(four.1, "{four:?}");
    let ways: [&[&str]; 4] =
        [&["--ranks", "4"], &["--nodes", "2", "--ranks", "4"], &["--placement", "4-7"], &["--split", "/4"]];
    for way in ways {
        assert_eq!(of(way), four, "{way:?}");
    }
    assert_eq!(of(&[]), of(&["--nodes", "2", "--ranks", "8"]));
    assert!(!of(&[]).1 && !of(&["--nodes", "2", "--placement", "0-3,8-11"]).1);
}

/// Goal: a name that does not exist, and a profile that cannot be read, are errors with a way out; so is one in a folder
/// that only might have been taken.
#[test]
fn what_cannot_be_read_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().to_str().unwrap();
    let (code, _, err) = collcast(own, &["simulate", "h200x4", "--profile", "h200-nvswich"]);
    assert!(code == 2 && err.contains("h200-nvswitch"), "{err}");
    std::fs::write(folder.path().join("broken.toml"), "schema = \"collcast/profile/9\"\n").unwrap();
    let (code, _, err) = collcast(own, &["simulate", "h200x4"]);
    assert!(code == 2 && err.contains("broken.toml"), "{err}");
    let (code, ..) = collcast(own, &["simulate", "h200x4", "--profile", "prior"]);
    assert_eq!(code, 0);
    // A slip in the folder's name; layers with a comma are those of two options.
    let (code, _, err) = collcast("/nowhere", &["simulate", "h200x4", "-s", "1K"]);
    assert!(code == 2 && err.contains("COLLCAST_PROFILES names `/nowhere`"), "{err}");
    let layers = ["--profile", "prior", "--profile", "h200-nvswitch"];
    assert_eq!(
        forecast("", &["h200x4", "--profile", "prior,h200-nvswitch"]).0,
        forecast("", &[&["h200x4"][..], &layers].concat()).0
    );
}

/// Goal: what a profile is made of and what sets two apart is told: own constants only, the largest difference first.
#[test]
fn profiles_are_shown_and_compared() {
    let rows = |args: &[&str]| -> Vec<Value> {
        let (code, out, err) = collcast("", &[args, &["--format", "json"]].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<Value>(&out).unwrap()["rows"].as_array().unwrap().clone()
    };
    // It lies over `b200-nvswitch`, and one constant of it was fitted.
    let own = rows(&["profile", "show", "gb200-published"]);
    let fitted: Vec<&Value> = own.iter().filter(|row| row["origin"] == "fitted").collect();
    assert!(fitted.len() == 1 && fitted[0]["name"] == "efficiency.nvlink_multimem", "{own:?}");
    assert!(rows(&["profile", "show", "gb200-published", "--all"]).len() > own.len());
    let differ = rows(&["profile", "diff", "b200-nvswitch", "gb200-published"]);
    assert!(differ.len() == 1 && differ[0]["name"] == fitted[0]["name"] && differ[0]["after"] == fitted[0]["value"]);
    assert!(rows(&["profile", "diff", "h200-nvswitch", "h200-nvswitch"]).is_empty());
    assert!(
        rows(&["profile", "diff", "prior, h200-nvswitch", "h200-nvswitch"]).is_empty(),
        "names lie over each other"
    );
    let ratios: Vec<f64> = (rows(&["profile", "diff", "prior", "h200-nvswitch"]).iter())
        .map(|row| row["ratio"].as_f64().unwrap().ln().abs())
        .collect();
    assert!(ratios.windows(2).all(|w| w[0] >= w[1]) && ratios.len() > 5, "{ratios:?}");
}
