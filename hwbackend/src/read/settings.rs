//! From environment variables to the settings of a measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use collcast_sim::collective::{Algorithm, Collective};
use collcast_sim::measurement::{PeerAccess, Settings};
use collcast_sim::nccl::{Environment, NcclSettings, Selection, Version};

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
    let told = told(env, notes);
    settings.protocol = told.protocols.forced(collective);
    settings.channels = channels(&told, collective);
    settings.buffers = told.buffers;
    settings.threads = told.threads;
    let is_on = |name: &str| env.get(name).is_some_and(|value| value.trim() == "1");
    let local = env.get("NCCL_P2P_LEVEL").is_some_and(|level| matches!(level.trim(), "LOC" | "0"));
    if is_on("NCCL_P2P_DISABLE") || local {
        settings.peer_access = if is_on("NCCL_SHM_DISABLE") { PeerAccess::Net } else { PeerAccess::Off };
    }
    settings.nics = env.get("NCCL_IB_HCA").map(|text| nics(text)).unwrap_or_default();
    settings
}

/// What the variables but `NCCL_ALGO`, which is kept as it is written, tell NCCL.
fn told(env: &Env, notes: &mut Vec<String>) -> NcclSettings {
    let mut pairs = Vec::new();
    for (name, value) in env.iter().filter(|(name, _)| *name != "NCCL_ALGO") {
        let pair = (name.clone(), value.trim().to_owned());
        match Environment::parse(std::slice::from_ref(&pair), Version::NEWEST) {
            Ok(_) => pairs.push(pair),
            Err(error) => notes.push(format!("{error}; ignored")),
        }
    }
    let read = Environment::parse(&pairs, Version::NEWEST).unwrap_or_default();
    notes.extend(read.warnings);
    read.settings
}

/// The number of channels that minimum and maximum leave, where they are alike.
fn channels(told: &NcclSettings, collective: Collective) -> Option<u32> {
    let ranges = if collective.point_to_point() {
        vec![(told.min_p2p_channels, told.max_p2p_channels)]
    } else {
        vec![(told.min_channels, told.max_channels), (told.min_ctas, told.max_ctas)]
    };
    ranges.into_iter().find_map(|(least, most)| least.filter(|_| least == most))
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
    !collective.point_to_point()
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
    use collcast_sim::collective::{Buffers, Protocol};
    use collcast_sim::units::Bytes;

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
            ("NCCL_LL128_BUFFSIZE", "48000"),
            ("NCCL_NTHREADS", "256"),
            ("NCCL_P2P_DISABLE", "1"),
        ]);
        let settings = from_env(&all, Collective::AllReduce, &mut notes);
        assert_eq!(settings.algorithm, Some(Algorithm::Ring));
        assert_eq!(settings.nccl_algo, None);
        assert_eq!(settings.protocol, Some(Protocol::Ll128));
        assert_eq!(settings.channels, Some(8));
        let [ll, ll128, simple] = [128 << 10, 48_000, 1 << 20].map(|bytes| Some(Bytes(bytes)));
        assert_eq!(settings.buffers, Buffers { ll, ll128, simple });
        assert_eq!(settings.threads, Some(256));
        assert_eq!(settings.peer_access, PeerAccess::Off);
        assert!(notes.is_empty(), "{notes:?}");

        let settings = from_env(&all, Collective::SendRecv, &mut notes);
        assert_eq!((settings.algorithm, settings.channels), (None, None));
        assert_eq!(settings.nccl_algo, None);

        let odd = env(&[("NCCL_ALGO", "allgather:pat"), ("NCCL_PROTO", "^LL"), ("NCCL_BUFFSIZE", "8M")]);
        let settings = from_env(&odd, Collective::AllReduce, &mut notes);
        assert_eq!(settings.algorithm, None);
        assert_eq!(settings.nccl_algo.as_deref(), Some("allgather:pat"));
        assert_eq!(settings.buffers.simple, None);
        assert!(matches!(&notes[..], [one] if one.contains("NCCL_BUFFSIZE=8M: 8 bytes")), "{notes:?}");
    }

    /// Goal: a bound is no forced number, and numbers are read as NCCL reads them.
    #[test]
    fn bounds_leave_channels_to_nccl() {
        for (pairs, channels) in [
            (&[("NCCL_MAX_NCHANNELS", "32")][..], None),
            (&[("NCCL_MIN_CTAS", "16")], None),
            (&[("NCCL_MIN_NCHANNELS", "4"), ("NCCL_MAX_NCHANNELS", "8")], None),
            (&[("NCCL_MIN_NRINGS", "4"), ("NCCL_MAX_NCHANNELS", "4")], Some(4)),
            (&[("NCCL_MIN_CTAS", "16"), ("NCCL_MAX_CTAS", "16"), ("NCCL_MAX_NCHANNELS", "32")], Some(16)),
            (&[("NCCL_MIN_P2P_NCHANNELS", "2"), ("NCCL_MAX_P2P_NCHANNELS", "2")], None),
        ] {
            let mut notes = Vec::new();
            let settings = from_env(&env(pairs), Collective::AllReduce, &mut notes);
            assert_eq!((settings.channels, notes.len()), (channels, 0), "{pairs:?}: {notes:?}");
        }
        let mut notes = Vec::new();
        let settings = from_env(&env(&[("NCCL_NTHREADS", "100")]), Collective::AllReduce, &mut notes);
        assert_eq!((settings.threads, notes.len()), (Some(512), 1), "{notes:?}");
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
