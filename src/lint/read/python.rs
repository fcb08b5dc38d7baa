//! Python that sets variables (`os.environ["NAME"] = "VALUE"`) or picks a backend.

use crate::lint::setting::{Scope, is_name, is_of_interest};

pub(super) fn file(text: &str) -> Scope {
    let mut scope = Scope::default();
    for (number, line) in (1_u64..).zip(text.lines()) {
        let code = line.trim();
        if code.starts_with('#') {
            continue;
        }
        if let Some((_, rest)) = code.split_once("os.environ") {
            // The first two strings are name and value, whether as an item or by `setdefault`.
            let strings = strings(rest);
            let sets = rest.starts_with(".setdefault(") || rest.split_once(']').is_some_and(|(_, r)| sets(r));
            if let ([name, value, ..], true) = (strings.as_slice(), sets)
                && is_name(name)
                && is_of_interest(name)
            {
                scope.set(name, value, Some(number));
            }
        }
        let picks = ["init_process_group(", "backend="].iter().any(|word| code.contains(word));
        if picks && strings(code).iter().any(|text| text.eq_ignore_ascii_case("gloo")) {
            scope.sign("gloo", Some(number), "the backend is gloo");
        }
    }
    scope
}

/// Whether what follows an item is one `=`.
fn sets(rest: &str) -> bool {
    rest.trim_start().strip_prefix('=').is_some_and(|rest| !rest.starts_with('='))
}

/// The texts in quotes.
fn strings(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find(['"', '\'']) {
        let quote = &rest[start..=start];
        let inner = &rest[start + 1..];
        let Some(end) = inner.find(quote) else { break };
        found.push(&inner[..end]);
        rest = &inner[end + 1..];
    }
    found
}
