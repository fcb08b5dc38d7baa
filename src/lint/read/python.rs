//! Python that sets variables (`os.environ["NAME"] = "VALUE"` and its like) or picks a backend.

use crate::lint::setting::{Scope, is_name, is_of_interest};

pub(super) fn file(text: &str) -> Scope {
    let mut scope = Scope::default();
    let tokens = tokens(text);
    for at in 0..tokens.len() {
        let Token::Name(name) = &tokens[at].0 else { continue };
        let rest = &tokens[at + 1..];
        match name.rsplit('.').next().unwrap_or_default() {
            "setdefault" | "putenv" if name != "setdefault" => {
                if let [(Token::Sign('('), _), name, (Token::Sign(','), _), value, ..] = rest {
                    set(name, value, &mut scope);
                }
            }
            "update" if name.ends_with("environ.update") => pairs(rest, &mut scope),
            "environ" if matches!(rest, [(Token::Sign('|'), _), (Token::Sign('='), _), ..]) => {
                pairs(&rest[2..], &mut scope);
            }
            "backend" | "init_process_group" => {
                if let [(Token::Sign('=' | '('), line), (Token::Text(text), _), ..] = rest
                    && text.eq_ignore_ascii_case("gloo")
                {
                    scope.sign("gloo", Some(*line), "the backend is gloo");
                }
            }
            // A comparison has two signs of equality.
            _ => {
                let item = [Token::Sign('['), Token::Sign(']'), Token::Sign('=')];
                if let [open, name, close, equals, value, ..] = rest
                    && item.iter().eq([&open.0, &close.0, &equals.0])
                {
                    set(name, value, &mut scope);
                }
            }
        }
    }
    scope
}

/// Sets what two texts say.
fn set((name, line): &(Token, u64), (value, _): &(Token, u64), scope: &mut Scope) {
    if let (Token::Text(name) | Token::Name(name), Token::Text(value)) = (name, value)
        && is_name(name)
        && is_of_interest(name)
    {
        scope.set(name, value, Some(*line));
    }
}

/// Sets what a dictionary or keywords in brackets say, up to where these close.
fn pairs(tokens: &[(Token, u64)], scope: &mut Scope) {
    let mut open = 0;
    for (at, (token, _)) in tokens.iter().enumerate() {
        match token {
            Token::Sign('(' | '{' | '[') => open += 1,
            Token::Sign(')' | '}' | ']') => open -= 1,
            _ => {}
        }
        if open <= 0 {
            return;
        }
        if let [name, (Token::Sign(':' | '='), _), value, ..] = &tokens[at..] {
            set(name, value, scope);
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// With the dots between its parts; numbers are names here.
    Name(String),
    /// What stands in quotes.
    Text(String),
    Sign(char),
}

/// The tokens of a text with their lines, without comments. What does not end, ends with the text.
fn tokens(text: &str) -> Vec<(Token, u64)> {
    let mut all = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(c) = rest.chars().next() {
        let at = line;
        let taken = match c {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => {
                let long = [r#"""""#, "'''"].into_iter().find(|quote| rest.starts_with(quote));
                let quote = long.unwrap_or(&rest[..1]);
                let inner = &rest[quote.len()..];
                let end = end_of(inner, quote);
                all.push((Token::Text(inner[..end].to_owned()), at));
                rest.len().min(2 * quote.len() + end)
            }
            c if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
                // `f"..."` is a text.
                if !(end <= 2 && rest[end..].starts_with(['"', '\''])) {
                    all.push((Token::Name(rest[..end].to_owned()), at));
                }
                end
            }
            c => {
                if !c.is_whitespace() {
                    all.push((Token::Sign(c), at));
                }
                c.len_utf8()
            }
        };
        line += rest[..taken].matches('\n').count() as u64;
        rest = &rest[taken..];
    }
    all
}

/// Where a text ends that is open.
fn end_of(inner: &str, quote: &str) -> usize {
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\n' if quote.len() == 1 => return at,
            _ if inner[at..].starts_with(quote) => return at,
            _ => {}
        }
    }
    inner.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every way of setting a variable is seen, with its line; comparisons, comments and texts about variables are not.
    #[test]
    fn ways_of_setting_are_seen() {
        let text = r#"
"""Set os.environ["NCCL_ALGO"] = "Ring" to debug."""
os.environ['NCCL_DEBUG'] = f"INFO"  # os.environ["NCCL_PROTO"] = "LL"
environ.setdefault("NCCL_NET", "IB"); os.putenv("NCCL_SHM_DISABLE", "1")
os.environ.update({
    "NCCL_IB_HCA": "mlx5_0,mlx5_1",
    **more})
os.environ.update(NCCL_NTHREADS="256")
os.environ |= {"NCCL_PAT_ENABLE": "0"}
env["NCCL_CROSS_NIC"] = "1"
if os.environ["NCCL_BUFFSIZE"] == "1": pass
doc = {"NCCL_MAX_CTAS": "most blocks"}
NCCL_MIN_CTAS = "3"
open
"#;
        let seen = file(text).settings;
        let seen: Vec<String> = seen.iter().map(|s| format!("{}:{}", s.line.unwrap_or(0), s.text())).collect();
        assert_eq!(
            seen,
            [
                "3:NCCL_DEBUG=INFO",
                "4:NCCL_NET=IB",
                "4:NCCL_SHM_DISABLE=1",
                "6:NCCL_IB_HCA=mlx5_0,mlx5_1",
                "8:NCCL_NTHREADS=256",
                "9:NCCL_PAT_ENABLE=0",
                "10:NCCL_CROSS_NIC=1",
            ]
        );
    }

    proptest::proptest! {
        /// Goal: no text panics.
        #[test]
        fn any_text_is_read(text in "(os\\.environ|NCCL_A|update|\"\"\"|[\"'\\\\#\n =\\[\\](){}|:,ä])*", other: String) {
            let _ = file(&text);
            let _ = file(&other);
        }
    }
}
