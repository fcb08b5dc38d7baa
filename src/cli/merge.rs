//! `collcast merge`: the answer of `sweep`, `check` or `plan` from its parts. `program` runs the command that made them.

use std::path::PathBuf;

use super::output::{OutputArgs, PageArgs};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each part is what `sweep`, `check` or `plan` wrote with --shard. Merge in the folder where the parts were \
made, with the same files of machines, profiles and suites, the same defaults and the same version. The answer and its exit \
code are those of the command without --shard: parts of `check --update` write the baseline.

  for i in 1 2 3 4; do collcast sweep dgx-h100 --nodes 64,256 --shard $i/4 -o part-$i.json; done
  collcast merge part-*.json
  collcast merge part-*.json --format csv -o sweep.csv --report sweep.html

`examples/scale` has an array job for Slurm and an indexed Job for Kubernetes."
)]
pub(crate) struct Args {
    /// All parts, in any order
    #[arg(required = true, value_name = "PART.json")]
    pub(super) parts: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) page: PageArgs,
}
