//! `collcast profile`: which profiles there are, what they are made of, what sets two apart.

use clap::Subcommand;
use collcast::profiles::{Folders, differences, list, values};
use collcast::views::profile::{differences_report, list_report, values_report};
use collcast::{Error, SiteSpec};

use super::call::Code;
use super::output::OutputArgs;
use super::selectors::profile_folders;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "A profile holds what is known of links, kernels and hosts. Where none is named, a command takes the first of:
  profile.toml beside the topology file, where it is of that machine
  one in a folder of your own that was fitted to measurements of the machine
  the one that the machine names, else one that was measured on such GPUs, as many of a host, else `prior`, whose
  values are cited; over it one that is fitted to published runs of such machines, where it is nearer on runs whose
  publisher it had not seen

Folders of your own: those in COLLCAST_PROFILES, separated by colons, or else ~/.config/collcast/profiles.
A name is looked for beside the topology file, there, and among the built-in ones.
`check` takes none from your folders: its result must be the same for all.

  collcast profile list -t dgx-h100         which one is taken, and why
  collcast profile show h200-nvswitch       its constants, with their origins
  collcast profile diff prior mine.toml     what was measured otherwise"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Subcommand, Debug)]
enum ProfileCommand {
    /// Your own and the built-in ones; with -t, which is taken and why
    List {
        /// Built-in machine or topology file
        #[arg(short, long, value_name = "TOPOLOGY")]
        topology: Option<String>,
        /// Hosts
        #[arg(long, alias = "hosts", value_name = "N", requires = "topology")]
        nodes: Option<u32>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// What one is made of: the constants that lie over `prior`, with interval and origin
    Show {
        /// Name or TOML file
        profile: String,
        /// All constants, those of `prior` too
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// The constants by which two differ, those that differ most first
    Diff {
        /// Name or TOML file; several with commas lie over each other
        before: String,
        /// Name or TOML file; several with commas lie over each other
        after: String,
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) fn run(args: &Args) -> Result<Code, Error> {
    let folders = Folders::of(None, &profile_folders()?);
    match &args.command {
        ProfileCommand::List { topology, nodes, output } => {
            let (topology, nodes) = (topology.clone(), *nodes);
            let site = SiteSpec { topology, nodes, profile_folders: profile_folders()?, ..SiteSpec::default() };
            output.print(&list_report(&list(&site)?, output.for_people()), None)?;
        }
        ProfileCommand::Show { profile, all, output } => {
            let (profile, values) = values(profile, &folders, *all)?;
            output.print(&values_report(&profile, &values), None)?;
        }
        ProfileCommand::Diff { before, after, output } => {
            output.print(&differences_report((before, after), &differences(before, after, &folders)?), None)?;
        }
    }
    Ok(Code::SUCCESS)
}
