//! Goal: the examples of nightly jobs go on failing while a machine is slow, tell a slow decline, and take a new level only
//! where somebody accepts it. Method: the scripts as they are, with a log in place of nccl-tests that is slower by a factor.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::without_own;

/// Prints the log with times as many times as long, and with noise of its own.
const MEASURE: &str = r#"#!/bin/sh
count=$(cat "$HERE/count" 2>/dev/null || echo 0)
echo $((count + 1)) > "$HERE/count"
exec awk -v slower="$SLOWER" -v seed="$count" 'BEGIN { srand(seed) }
  $3 == "float" {
    for (at = 6; at <= 10; at += 4) {
      $at = sprintf("%.2f", $at * slower * (0.995 + rand() / 100))
      $(at + 1) = sprintf("%.2f", $1 / $at / 1e3)
      $(at + 2) = sprintf("%.2f", $1 / $at / 1e3 * 1.5)
    }
  }
  { print }' "$LOG"
"#;

/// Compares for real; all else passes.
const OURS: &str = "#!/bin/sh\nif [ \"$1\" = compare ]; then exec \"$COLLCAST\" \"$@\"; fi\n";

/// A script with what it calls, and its nights so far.
struct Job {
    folder: TempDir,
    nights: u32,
}

impl Job {
    fn new(script: &str) -> Self {
        let job = Self { folder: tempfile::tempdir().unwrap(), nights: 0 };
        let here = job.folder.path().to_str().unwrap();
        std::fs::create_dir(job.path("bin")).unwrap();
        job.program("bin/collcast", OURS);
        job.program("bin/date", "#!/bin/sh\necho \"$NIGHT\"\n");
        for name in ["sbatch", "scontrol"] {
            job.program(&format!("bin/{name}"), "#!/bin/sh\n");
        }
        for name in ["srun", "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf"] {
            job.program(&format!("bin/{name}"), MEASURE);
        }
        job.program("nightly.sh", &script.replace("/nightly", here));
        job
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), Permissions::from_mode(0o755)).unwrap();
    }

    /// Whether the next night passes, where calls take `slower` times as long as in the log.
    fn passes(&mut self, slower: f64) -> bool {
        self.nights += 1;
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200x4/all_reduce_Ring_Simple.log");
        let out = without_own(&mut Command::new("bash"))
            .arg(self.path("nightly.sh"))
            .env("PATH", path)
            .env("HERE", self.folder.path())
            .env("LOGS", self.path("logs"))
            .env("LOG", log)
            .env("COLLCAST", env!("CARGO_BIN_EXE_collcast"))
            .env("COLLCAST_CONFIG", "")
            .env("NIGHT", self.night())
            .env("SLOWER", slower.to_string())
            .env("SLURM_JOB_ID", "1")
            .output()
            .unwrap();
        let code = out.status.code();
        assert!(matches!(code, Some(0 | 1)), "{code:?}: {}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(self.path("logs").join(format!("{}.FAILED", self.night())).exists(), code == Some(1));
        code == Some(0)
    }

    fn night(&self) -> String {
        format!("2026-01-{:02}", self.nights)
    }

    /// Accepts the level of the last night, as the head of the scripts says.
    fn accept(&self) {
        std::fs::write(self.path("logs/accepted"), format!("{}\n", self.night())).unwrap();
        std::fs::remove_file(self.path("logs").join(format!("{}.FAILED", self.night()))).unwrap();
    }
}

/// Both scripts: that of Slurm, and that of Kubernetes out of its YAML.
fn scripts() -> [String; 2] {
    let read = |name: &str| std::fs::read_to_string(format!("examples/ci/{name}")).unwrap();
    let yaml = read("kubernetes-nightly.yaml");
    let block = yaml.split("nightly.sh: |\n").nth(1).unwrap().split("\n---").next().unwrap();
    let lines: Vec<&str> = block.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    [read("slurm-nightly.sh"), lines.join("\n")]
}

#[test]
fn a_night_that_fails_is_no_measure_of_the_next() {
    for script in scripts() {
        let mut job = Job::new(&script);
        assert!((0..3).all(|_| job.passes(1.0)), "steady nights pass");
        assert!((0..6).all(|_| !job.passes(1.1)), "10% slower fails every night: night {}", job.nights);
        assert!(job.passes(1.0), "and passes once it is mended");
        assert!(!job.passes(1.1));
        job.accept();
        assert!((0..3).all(|_| job.passes(1.1)), "what was accepted passes: night {}", job.nights);
        assert!(!job.passes(1.21), "and is the measure from then on");
    }
}

#[test]
fn a_slow_decline_is_told() {
    for script in scripts() {
        let mut job = Job::new(&script);
        let failed = (0..12).position(|night| !job.passes(1.01_f64.powi(night)));
        assert!(failed.is_some_and(|night| (3..8).contains(&night)), "1% a night is 5% after five nights: {failed:?}");
    }
}
