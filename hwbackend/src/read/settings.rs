//! From environment variables to the settings of a measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Buffers, Collective, Protocol};
use collcast_sim::measurement::{PeerAccess, Settings};
use collcast_sim::nccl::{Selection, Version};
use collcast_sim::units::{Bytes, parse_size};

/// Variables of one run, by name.
pub(super) type Env = BTreeMap<String, String>;

/// Whether a variable is worth keeping. Whole environments hold secrets; these do not.
pub(super) fn is_relevant(name: &str) -> bool {
    ["NCCL_", "OFI_NCCL_", "FI_", "UCX_", "CUDA_VISIBLE_DEVICES"].iter().any(|prefix| name.starts_with(prefix))
        && name.len() <= 128
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The settings that `env` means for `collective`; what it cannot mean goes to `notes`.
pub(super) fn from_env(env: &Env, collective: Collective, notes: &mut Vec<String>) -> Settings {
    let mut settings = Settings::default();
    if let Some(text) = env.get("NCCL_ALGO") {
        algorithm(text, collective, &mut settings, notes);
    }
    if let Some(text) = env.get("NCCL_PROTO").filter(|text| !text.is_empty()) {
        match Selection::<Protocol>::parse(text.trim(), Version::NEWEST) {
            Ok((protocols, _)) => settings.protocol = protocols.forced(collective),
            Err(error) => notes.push(format!("NCCL_PROTO={text}: {error}; ignored")),
        }
    }
    settings.channels = channels(env, collective, notes);
    settings.buffers = Buffers {
        ll: size(env, "NCCL_LL_BUFFSIZE", notes),
        ll128: size(env, "NCCL_LL128_BUFFSIZE", notes),
        simple: size(env, "NCCL_BUFFSIZE", notes),
    };
    settings.threads = count(env, "NCCL_NTHREADS", notes);
    let is_on = |name: &str| env.get(name).is_some_and(|value| value.trim() == "1");
    let local = env.get("NCCL_P2P_LEVEL").is_some_and(|level| matches!(level.trim(), "LOC" | "0"));
    if is_on("NCCL_P2P_DISABLE") || local {
        settings.peer_access = if is_on("NCCL_SHM_DISABLE") { PeerAccess::Net } else { PeerAccess::Off };
    }
    settings.nics = env.get("NCCL_IB_HCA").map(|text| nics(text)).unwrap_or_default();
    settings
}

/// `=mlx5_0:1,mlx5_3` names devices with their ports; `^` before excludes what follows.
fn nics(text: &str) -> Arc<[String]> {
    let text = text.trim().trim_start_matches('=');
    if text.starts_with('^') {
        return Arc::default();
    }
    let names: BTreeSet<String> =
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).take(NICS_MAX).map(str::to_owned).collect();
    names.into_iter().collect()
}

/// Most NICs of one list that are kept.
const NICS_MAX: usize = 256;

/// Puts what `NCCL_ALGO` says into `settings`.
pub(super) fn algorithm(text: &str, collective: Collective, settings: &mut Settings, notes: &mut Vec<String>) {
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    match Selection::<Algorithm>::parse(text, Version::NEWEST) {
        Ok((algorithms, _)) => {
            settings.algorithm = algorithms.forced(collective);
            // Kept where it is more than one name, if the collective has a choice at all.
            let more = algorithms.forced_everywhere().is_none() && has_choice(collective);
            settings.nccl_algo = more.then(|| text.to_owned());
        }
        Err(error) => {
            notes.push(format!("NCCL_ALGO={text}: {error}; kept as written"));
            settings.nccl_algo = Some(text.to_owned());
        }
    }
}

/// Whether NCCL chooses an algorithm for it (send and receive have none).
fn has_choice(collective: Collective) -> bool {
    !is_point_to_point(collective)
}

fn is_point_to_point(collective: Collective) -> bool {
    matches!(collective, Collective::SendRecv | Collective::AllToAll | Collective::Gather | Collective::Scatter)
}

fn size(env: &Env, name: &str, notes: &mut Vec<String>) -> Option<Bytes> {
    let text = env.get(name)?;
    let size = parse_size(text).ok().filter(|size| size.0 > 0);
    if size.is_none() {
        notes.push(format!("{name}={text} is not a size; ignored"));
    }
    size
}

fn count(env: &Env, name: &str, notes: &mut Vec<String>) -> Option<u32> {
    let text = env.get(name)?;
    match text.trim().parse::<u32>().ok().filter(|&value| value > 0) {
        None => {
            notes.push(format!("{name}={text} is not a positive number; ignored"));
            None
        }
        value => value,
    }
}

/// Minimum and maximum alike are a forced number; one alone is taken for both, with a note.
fn channels(env: &Env, collective: Collective, notes: &mut Vec<String>) -> Option<u32> {
    let pairs: &[[&str; 2]] = if is_point_to_point(collective) {
        &[["NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"]]
    } else {
        &[
            ["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"],
            ["NCCL_MIN_CTAS", "NCCL_MAX_CTAS"],
            ["NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"],
        ]
    };
    for &[min_name, max_name] in pairs {
        match (count(env, min_name, notes), count(env, max_name, notes)) {
            (None, None) => {}
            (Some(min), Some(max)) if min == max => return Some(min),
            (Some(min), Some(max)) => {
                notes.push(format!("{min_name}={min} and {max_name}={max} differ; channels taken as NCCL's choice"));
                return None;
            }
            (Some(only), None) => {
                notes.push(format!("{min_name}={only} alone is taken as {only} channels"));
                return Some(only);
            }
            (None, Some(only)) => {
                notes.push(format!("{max_name}={only} alone is taken as {only} channels"));
                return Some(only);
            }
        }
    }
    None
}

/// The plain version in `text`: `2.26.2+cuda12.8` and `2.8.4-1` lose their suffix.
pub(super) fn plain_version(text: &str) -> Option<String> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (version, suffix) = text.split_at(end);
    let well_formed = version.len() <= 16
        && matches!(version.split('.').count(), 2..=3)
        && version.split('.').all(|part| !part.is_empty());
    let suffix_ok = suffix.is_empty() || (suffix.starts_with(['+', '-']) && !suffix.contains(char::is_whitespace));
    (well_formed && suffix_ok).then(|| version.to_owned())
}

/// The version that NCCL's headers write as one number: 22809 is 2.28.9, 2804 is 2.8.4.
pub(super) fn version_of_code(code: u32) -> Option<String> {
    match code {
        0..2000 | 1_000_000.. => None,
        2000..10_000 => Some(format!("{}.{}.{}", code / 1000, code % 1000 / 100, code % 100)),
        _ => Some(format!("{}.{}.{}", code / 10_000, code % 10_000 / 100, code % 100)),
    }
}

/// The variables worth keeping among words such as `NAME=value`.
pub(super) fn assignments(words: &[String]) -> Env {
    words
        .iter()
        .filter_map(|word| word.split_once('='))
        .filter(|(name, _)| is_relevant(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Splits a shell line into words; quotes group, nothing is expanded.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut started = false;
    for c in line.chars() {
        match quote {
            Some(q) if c == q => quote = None,
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                started = true;
            }
            None if c.is_whitespace() => {
                if started || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                started = false;
            }
            _ => word.push(c),
        }
    }
    if started || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use collcast_sim::collective::{Algorithm, Protocol};

    fn env(pairs: &[(&str, &str)]) -> Env {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Goal: each variable of the contract lands in its setting; half-said ones say so.
    #[test]
    fn variables_become_settings() {
        let mut notes = Vec::new();
        let all = env(&[
            ("NCCL_ALGO", "Ring"),
            ("NCCL_PROTO", "LL128"),
            ("NCCL_MIN_NCHANNELS", "8"),
            ("NCCL_MAX_NCHANNELS", "8"),
            ("NCCL_BUFFSIZE", "1048576"),
            ("NCCL_LL_BUFFSIZE", "131072"),
            ("NCCL_LL128_BUFFSIZE", "4800"),
            ("NCCL_NTHREADS", "256"),
            ("NCCL_P2P_DISABLE", "1"),
        ]);
        let settings = from_env(&all, Collective::AllReduce, &mut notes);
        assert_eq!(settings.algorithm, Some(Algorithm::Ring));
        assert_eq!(settings.nccl_algo, None);
        assert_eq!(settings.protocol, Some(Protocol::Ll128));
        assert_eq!(settings.channels, Some(8));
        let [ll, ll128, simple] = [128 << 10, 4800, 1 << 20].map(|bytes| Some(Bytes(bytes)));
        assert_eq!(settings.buffers, Buffers { ll, ll128, simple });
        assert_eq!(settings.threads, Some(256));
        assert_eq!(settings.peer_access, PeerAccess::Off);
        assert!(notes.is_empty(), "{notes:?}");

        let settings = from_env(&all, Collective::SendRecv, &mut notes);
        assert_eq!((settings.algorithm, settings.channels), (None, None));
        assert_eq!(settings.nccl_algo, None);

        let odd = env(&[
            ("NCCL_ALGO", "allgather:pat"),
            ("NCCL_PROTO", "^LL"),
            ("NCCL_MAX_NCHANNELS", "4"),
            ("NCCL_NTHREADS", "many"),
        ]);
        let settings = from_env(&odd, Collective::AllReduce, &mut notes);
        assert_eq!(settings.algorithm, None);
        assert_eq!(settings.nccl_algo.as_deref(), Some("allgather:pat"));
        assert_eq!(settings.channels, Some(4));
        assert_eq!(notes.len(), 2, "{notes:?}");
    }

    /// Goal: every way of writing a version gives the plain one, and prose gives none.
    #[test]
    fn versions_are_plain_or_absent() {
        for (text, version) in [
            ("2.26.2+cuda12.8", Some("2.26.2")),
            ("2.8.4-1", Some("2.8.4")),
            ("2.18", Some("2.18")),
            ("not stated", None),
            ("2.14.3 or 2.16.2 (images)", None),
            ("2..1", None),
        ] {
            assert_eq!(plain_version(text).as_deref(), version, "{text}");
        }
        assert_eq!(version_of_code(22809).as_deref(), Some("2.28.9"));
        assert_eq!(version_of_code(2804).as_deref(), Some("2.8.4"));
        assert_eq!(version_of_code(7), None);
    }

    /// Goal: words are those of a shell, for the lines that people paste.
    #[test]
    fn words_respect_quotes() {
        assert_eq!(words("a \"b c\" d='e f'  ''"), ["a", "b c", "d=e f", ""].map(str::to_owned));
    }
}
