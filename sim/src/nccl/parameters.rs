//! Every variable that NCCL, its plugins and its tests read, and those that people set in vain.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The table; provenance in the file.
const TABLE: &str = include_str!("data/parameters.csv");

/// A variable, by what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Who reads it, and as what: `int-param`, `string`, `ofi-plugin`, `not-nccl`.
    pub kind: &'static str,
    /// What holds where it is not set; empty where that is none, or the communicator's.
    pub default: &'static str,
    /// What it takes beside that, as `0|1`, `1..64`, `0..` or words; empty where the table does not say.
    pub values: &'static str,
    /// What there is to know.
    pub note: &'static str,
}

static PARAMETERS: LazyLock<BTreeMap<&'static str, Parameter>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let parameter = |line: &'static str| {
        let mut fields = line.splitn(5, ',');
        let mut field = || fields.next().unwrap_or_default();
        Parameter { name: field(), kind: field(), default: field(), values: field(), note: field() }
    };
    lines.map(parameter).map(|parameter| (parameter.name, parameter)).collect()
});

/// Kinds of variables that nothing of NCCL reads.
const UNREAD: [&str; 5] = ["not-nccl", "removed", "ofi-plugin-removed", "pytorch", "build"];

impl Parameter {
    /// The variable of this name, if the table has it.
    pub fn of(name: &str) -> Option<&'static Self> {
        PARAMETERS.get(name)
    }

    /// The names of all of them.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PARAMETERS.keys().copied()
    }

    /// Whether NCCL or something that comes with it reads the variable.
    pub fn is_read(&self) -> bool {
        !UNREAD.contains(&self.kind)
    }

    /// Whether it is one of builds and containers, which mean nothing to a run.
    pub fn is_of_builds(&self) -> bool {
        self.kind == "build"
    }

    /// Whether NCCL reads its value as a whole number.
    pub fn is_number(&self) -> bool {
        self.kind == "int-param"
    }

    /// Whether a value is one that the table lists, or the default; `None` where the table lists none.
    pub fn takes(&self, value: &str) -> Option<bool> {
        let (number, rest) = strtoll(value);
        let is = |known: &str| match known.split_once("..") {
            Some((least, most)) => {
                let most = if most.is_empty() { i64::MAX } else { strtoll(most).0 };
                let least = strtoll(least).0;
                !rest && (least..=most).contains(&number)
            }
            None if self.is_number() => !rest && number == strtoll(known).0,
            // Levels are compared as they are; what is none is passed over in silence.
            None if self.kind == "level" => value == known,
            None => value.eq_ignore_ascii_case(known),
        };
        // Most numbers mean automatic at -2 or -1.
        let automatic = self.is_number() && !rest && matches!(number, -2 | -1);
        (!self.values.is_empty()).then(|| automatic || self.default == value || self.values.split('|').any(is))
    }
}

/// Whether NCCL or the plugin of libfabric reads the variable of this name.
pub fn is_read(name: &str) -> bool {
    let theirs = name.starts_with("NCCL_") || name.starts_with("OFI_NCCL_");
    theirs && Parameter::of(name).is_some_and(Parameter::is_read)
}

/// Families of variables of plugins that the table does not list. Source: the manifests and the set-up scripts that come
/// with Google's GPUDirect-TCPX and GPUDirect-TCPXO (FasTrak).
const OF_PLUGINS: [&str; 3] = ["NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_"];

/// Whether a variable is of a family that a plugin reads, whose names nobody lists.
pub fn is_of_plugin(name: &str) -> bool {
    OF_PLUGINS.iter().any(|family| name.starts_with(family))
}

/// Reads `text` as C's `strtoll` with base 0 does: the number and whether text follows it.
pub fn strtoll(text: &str) -> (i64, bool) {
    let text = text.trim_start();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (radix, digits) = match hex {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_hexdigit()) => (16, rest),
        _ if digits.starts_with('0') => (8, digits),
        _ => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let magnitude = match &digits[..end] {
        "" => 0,
        number => i64::from_str_radix(number, radix).unwrap_or(i64::MAX),
    };
    (if negative { -magnitude } else { magnitude }, end < digits.len() || end == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers are what C makes of them.
    #[test]
    fn numbers_are_read_as_strtoll_does() {
        for (text, number, rest) in [
            ("8", 8, false),
            ("8M", 8, true),
            ("true", 0, true),
            ("0x10", 16, false),
            ("010", 8, false),
            (" -2", -2, false),
            ("0", 0, false),
            ("", 0, true),
            ("99999999999999999999", i64::MAX, false),
        ] {
            assert_eq!(strtoll(text), (number, rest), "{text}");
        }
    }

    /// Goal: what a run is described by is what NCCL read: no variable of a container, none that never was.
    #[test]
    fn what_nccl_reads_is_told_from_what_is_only_named_like_it() {
        for (name, read) in [
            ("NCCL_NTHREADS", true),
            ("NCCL_LL_BUFFSIZE", true),
            ("OFI_NCCL_TUNER_TYPE", true),
            ("NCCL_VERSION", false),
            ("NCCL_ALGO_ALL", false),
            ("PATH", false),
        ] {
            assert_eq!(is_read(name), read, "{name}");
        }
    }

    /// Goal: every variable takes its own default, and the values that its notes name; ranges have ends.
    #[test]
    fn values_are_those_of_the_table() {
        for name in Parameter::names() {
            let parameter = Parameter::of(name).unwrap();
            if !parameter.default.is_empty() {
                assert_ne!(parameter.takes(parameter.default), Some(false), "{name}");
            }
        }
        for (name, value, takes) in [
            ("NCCL_IB_TC", "106", Some(true)),
            ("NCCL_IB_TC", "256", Some(false)),
            ("NCCL_IB_TC", "-1", Some(true)),
            ("NCCL_IB_TC", "0x6a", Some(true)),
            ("NCCL_NVLS_ENABLE", "3", Some(false)),
            ("NCCL_DEBUG", "info", Some(true)),
            ("NCCL_DEBUG", "DEBUG", Some(false)),
            ("NCCL_P2P_LEVEL", "PHB", Some(true)),
            ("NCCL_P2P_LEVEL", "3", Some(true)),
            ("NCCL_NET_GDR_LEVEL", "7", Some(true)),
            ("NCCL_NET_GDR_LEVEL", "7x", Some(false)),
            ("NCCL_P2P_LEVEL", "nvl", Some(false)),
            ("NCCL_BUFFSIZE", "1", None),
        ] {
            assert_eq!(Parameter::of(name).unwrap().takes(value), takes, "{name}={value}");
        }
    }
}
