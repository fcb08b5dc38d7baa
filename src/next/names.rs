//! Names of hosts as users give them: a Slurm host list, or a file.

use std::collections::BTreeMap;

use collcast_sim::text::one_line;
use collcast_topologies::hostlist::expand;

use super::ask::short;
use crate::error::Error;
use crate::files::read_text;

/// Most hosts that are planned for: the largest published clusters of one fabric have 3,000 (24,000 GPUs of Llama 3,
/// arXiv 2407.21783), and an argument of 4,096 names fits a command line.
pub const HOSTS_MAX: usize = 4096;
/// The way out of what is no list.
const A_LIST: &str = "name them as in `--host-names node[01-64]`, `a,b,c`, or `@FILE` with a name a line";

/// Reads `node[01-04,07]`, `a,b,c`, or `@FILE`: a list a line, with comments after `#`. The order is kept.
///
/// # Errors
/// A file that cannot be read; what is no host list; fewer than 2 or more than [`HOSTS_MAX`] names; names that are there
/// twice, or are the same up to their first dot, where nccl-tests cuts them.
pub fn read(list: &str) -> Result<Vec<String>, Error> {
    let Some(file) = list.strip_prefix('@') else { return checked(all(list, "--host-names")?, "--host-names") };
    let text = read_text("read the host names", file)?;
    let mut names = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            names.extend(all(line, &format!("{file}:{}", number + 1))?);
        }
    }
    checked(names, file)
}

fn all(list: &str, place: &str) -> Result<Vec<String>, Error> {
    let names = expand(list).map_err(|error| {
        let shown: String = one_line(list).chars().take(60).collect();
        Error::usage(format!("{place}: `{shown}` is no host list: {error}"), A_LIST)
    })?;
    // What begins with a dash would be an option of the launcher.
    match names.iter().find(|name| name.starts_with(['-', '.'])) {
        Some(name) => Err(Error::usage(format!("{place}: no host is named `{name}`"), A_LIST)),
        None => Ok(names),
    }
}

fn checked(names: Vec<String>, place: &str) -> Result<Vec<String>, Error> {
    if names.len() < 2 {
        return Err(Error::usage(format!("{place}: fewer than 2 hosts are named"), A_LIST));
    }
    if names.len() > HOSTS_MAX {
        return Err(Error::usage(
            format!("{place}: {} hosts are named, more than {HOSTS_MAX}", names.len()),
            "name those of one part of the cluster, and then of the next",
        ));
    }
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for name in &names {
        match seen.insert(short(name), name) {
            Some(earlier) if earlier == name => {
                return Err(Error::usage(format!("{place}: host `{name}` is named twice"), "name each host once"));
            }
            Some(earlier) => {
                return Err(Error::usage(
                    format!(
                        "{place}: hosts `{earlier}` and `{name}` have one name in logs: nccl-tests cuts it at the first dot"
                    ),
                    "plan for each domain on its own",
                ));
            }
            None => {}
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

    use proptest::prelude::*;

    use super::*;

    fn refused(list: &str) -> String {
        read(list).unwrap_err().render()
    }

    /// Goal: what is no list of hosts is refused with what, where and the way out.
    #[test]
    fn odd_lists_are_refused() {
        for (list, said) in [
            ("a", "fewer than 2 hosts"),
            ("a,b,a", "`a` is named twice"),
            ("a.x,a.y", "`a.x` and `a.y` have one name in logs"),
            ("a;reboot,b", "cannot contain `;`"),
            ("$(id),b", "cannot contain `$`"),
            ("-w,b", "no host is named `-w`"),
            ("n[1-", "brackets"),
            ("n[1-5000]", "more than 4096"),
            ("n[0-999999999]", "over 200000"),
            ("", "empty"),
            ("@/no/such/file", "cannot read the host names"),
        ] {
            let text = refused(list);
            assert!(text.contains(said) && text.contains("hint: "), "{list}: {text}");
        }
    }

    /// Goal: files of names have comments, and mistakes have their line.
    #[test]
    fn files_have_comments_and_lines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let list = format!("@{}", file.path().display());
        std::fs::write(&file, "# rack 1\ngpu[01-02] # two\n\ngpu07.site\n").unwrap();
        assert_eq!(read(&list).unwrap(), ["gpu01", "gpu02", "gpu07.site"]);
        std::fs::write(&file, "a\nb c\n").unwrap();
        assert!(refused(&list).contains(":2: "), "{}", refused(&list));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: numbers written as ranges are read as they were, with their zeros.
        #[test]
        fn ranges_are_read_as_written(
            prefix in "[a-z]{1,5}",
            numbers in proptest::collection::btree_set(0_u32..2000, 2..40),
            width in 4_usize..7,
        ) {
            let numbers: Vec<u32> = numbers.into_iter().collect();
            let ranges: Vec<String> = numbers
                .chunk_by(|a, b| a + 1 == *b)
                .map(|run| match run {
                    [one] => format!("{one:0width$}"),
                    run => format!("{:0width$}-{:0width$}", run[0], run[run.len() - 1]),
                })
                .collect();
            let names: Vec<String> = numbers.iter().map(|n| format!("{prefix}{n:0width$}")).collect();
            prop_assert_eq!(read(&format!("{prefix}[{}]", ranges.join(","))).unwrap(), names.clone());
            prop_assert_eq!(read(&names.join(",")).unwrap(), names);
        }
    }
}
