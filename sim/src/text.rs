//! Text of strangers (names in files, names of files) where a terminal or a CI log shows it.

/// Whether a character is drawn, or one of a word before it: no control or escape, no mark that turns the
/// direction of text, nothing invisible.
pub fn is_shown(c: char) -> bool {
    // After a letter, Rust's form for debugging leaves accents as they are and escapes what Unicode does
    // not count as printed.
    c == ' ' || c.is_ascii_graphic() || (!c.is_ascii() && format!("a{c}").escape_debug().count() == 2)
}

/// The text on one line, as itself: line breaks are spaces, what is not shown is escaped.
///
/// ```
/// use collcast_sim::text::one_line;
/// assert_eq!(one_line("h\u{f4}te\n::error::\u{1b}[31m\u{202e}x "), "h\u{f4}te ::error::\\u{1b}[31m\\u{202e}x");
/// ```
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim().chars() {
        match c {
            c if c.is_whitespace() => line.push(' '),
            c if is_shown(c) => line.push(c),
            c => line.extend(c.escape_unicode()),
        }
    }
    line
}

/// The text as a string of TOML, with its quotes.
///
/// ```
/// use collcast_sim::text::toml_string;
/// assert_eq!(format!("a = {}", toml_string("\u{7f}b")), "a = \"\\u007Fb\"");
/// ```
pub fn toml_string(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// What begins a command to a CI system anywhere in a line of a log: of GitHub Actions, Azure Pipelines and TeamCity.
const COMMANDS: [&str; 3] = ["##[", "##vso[", "##teamcity["];

/// Lines for a log, none of which a CI system takes for a command: a backslash stands before the `::` that a line begins
/// with, which GitHub Actions looks for after spaces, and within what commands of other forms begin with.
///
/// ```
/// use collcast_sim::text::no_commands;
/// assert_eq!(no_commands("a ::b\n ::error::c\n## d ##[e]\n"), "a ::b\n \\::error::c\n## d #\\#[e]\n");
/// ```
pub fn no_commands(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let rest = line.trim_start();
        out.push_str(&line[..line.len() - rest.len()]);
        if rest.starts_with("::") {
            out.push('\\');
        }
        out.push_str(rest);
    }
    let broken = |text: String, command: &str| text.replace(command, &format!("#\\{}", &command[1..]));
    COMMANDS.into_iter().fold(out, broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Goal: of any text nothing reaches a terminal that is not drawn, and no second line.
        #[test]
        fn any_text_is_one_drawn_line(text: String, marks in "[\\x00-\\x1f\\x7f-\\x9f\u{ad}\u{200b}-\u{202e}\u{2066}-\u{2069}\u{feff}a]*") {
            for text in [&text, &marks] {
                let line = one_line(text);
                proptest::prop_assert!(line.chars().all(is_shown), "{line:?}");
                let turns = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
                proptest::prop_assert!(!line.contains(turns), "{line:?}");
            }
        }
    }
}
