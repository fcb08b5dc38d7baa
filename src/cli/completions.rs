//! `collcast completions` and `collcast man`: what a shell and `man` want, made from the options.

use std::path::PathBuf;

use collcast::Error;
use collcast::files::{failed, make_folder};

use super::call::Code;
use super::output::write;

#[derive(clap::Args, Debug)]
#[command(after_help = "The packages have them in place. By hand:

  collcast completions bash > ~/.local/share/bash-completion/completions/collcast
  collcast completions zsh > ~/.zfunc/_collcast
  collcast completions fish > ~/.config/fish/completions/collcast.fish")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: clap_complete::Shell,
    /// Write there in place of stdout: whole or not at all
    #[arg(short, long, value_name = "PATH", help_heading = "Output")]
    output: Option<PathBuf>,
}

/// Of `all`, the commands that there are.
pub(crate) fn run(args: &Args, mut all: clap::Command) -> Result<Code, Error> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut all, "collcast", &mut text);
    write(args.output.as_deref(), &text)?;
    Ok(Code::SUCCESS)
}

#[derive(clap::Args, Debug)]
#[command(after_help = "  collcast man | man -l -                 the page of the program
  collcast man -o ~/.local/share/man/man1   all pages; then `man collcast-sweep`")]
pub(crate) struct ManArgs {
    /// Write there in place of stdout: pages of all commands into a folder, which is made if it is not there
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    output: Option<PathBuf>,
}

/// Of `all`, the commands that there are.
pub(crate) fn man(args: &ManArgs, mut all: clap::Command) -> Result<Code, Error> {
    all.build();
    let Some(folder) = &args.output else {
        write(None, &page(&all)?)?;
        return Ok(Code::SUCCESS);
    };
    make_folder(folder)?;
    for (name, command) in commands(&all) {
        write(Some(&folder.join(format!("{name}.1"))), &page(command)?)?;
    }
    Ok(Code::SUCCESS)
}

/// The program and its commands by the names of their pages, such as `collcast-topo-show`.
fn commands(all: &clap::Command) -> Vec<(String, &clap::Command)> {
    let mut found = vec![(all.get_display_name().unwrap_or(all.get_name()).to_owned(), all)];
    for command in all.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        found.extend(commands(command));
    }
    found
}

fn page(command: &clap::Command) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    let made = clap_mangen::Man::new(command.clone()).render(&mut text);
    made.map_err(|source| failed("man page".as_ref(), source))?;
    Ok(text)
}
