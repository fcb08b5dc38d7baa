//! Environment files, NCCL's own configuration files, and environments of processes.

use crate::lint::setting::{Scope, is_name, is_of_interest};

/// A file of `NAME=VALUE` lines: one a line, `#` comments, `export` before a name. Other lines are passed over.
pub(super) fn file(text: &str) -> Scope {
    let mut scope = Scope::default();
    for (number, line) in (1_u64..).zip(text.lines()) {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        if let Some((raw, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            let name = raw.trim();
            if is_name(name) && is_of_interest(name) {
                if raw != name || value.starts_with(' ') {
                    scope.sign("blank-at-equals", Some(number), format!("{name} has a blank beside its `=`"));
                }
                let value = without_comment(value.trim());
                scope.set(name, unquoted(value), Some(number));
            }
        }
    }
    scope.sign_twice();
    scope
}

/// A file that NCCL reads: up to the first `=` of a line is a name, the rest is its value, as they stand.
///
/// The first line has the number `from`. Source: NCCL 2.28 `src/misc/param.cc`, `setEnvFile`.
pub(super) fn conf(text: &str, from: u64) -> Scope {
    let mut scope = Scope::default();
    for (number, line) in (from..).zip(text.lines()) {
        let Some((raw, value)) = line.split_once('=').filter(|_| !line.trim_start().starts_with('#')) else { continue };
        let name = raw.trim().trim_start_matches("export ").trim_start();
        if !is_name(name) || !is_of_interest(name) {
            continue;
        }
        if raw != name {
            scope.sign(
                "conf-as-it-stands",
                Some(number),
                format!("the name is read as `{raw}`, which no variable is called"),
            );
            continue;
        }
        let plain = unquoted(without_comment(value.trim()));
        // Of a number NCCL reads the digits in front.
        let number_alone = value.starts_with(|c: char| c.is_ascii_digit());
        if plain != value && !number_alone {
            scope.sign("conf-as-it-stands", Some(number), format!("the value of {name} is read as `{value}`"));
        }
        scope.set(name, if number_alone { value } else { plain }, Some(number));
    }
    scope.sign_twice();
    // NCCL sets what is not set yet: of a name that is there twice the first holds, and here the last does.
    scope.settings.reverse();
    scope
}

/// What `/proc/PID/environ` holds.
pub(super) fn process(text: &str) -> Scope {
    of_process(text.split('\0').filter_map(|pair| pair.split_once('=')))
}

/// The variables of a process.
pub(in crate::lint) fn of_process<'v>(variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Scope {
    let mut scope = Scope::default();
    for (name, value) in variables {
        if is_name(name) && is_of_interest(name) {
            scope.set(name, value, None);
        }
    }
    scope
}

/// A value without the comment behind it, which a shell drops.
fn without_comment(value: &str) -> &str {
    if value.starts_with(['"', '\'']) {
        let quote = &value[..1];
        return value[1..].find(quote).map_or(value, |end| &value[..end + 2]);
    }
    value.find(" #").map_or(value, |at| value[..at].trim_end())
}

/// A value without its quotes.
pub(super) fn unquoted(value: &str) -> &str {
    let inner = |quote| value.strip_prefix(quote).and_then(|v: &str| v.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}
