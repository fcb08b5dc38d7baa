//! Measured constants as a profile that layers over another.

use std::fmt::Write as _;

use collcast_sim::profile::{Constant, Parameter};
use collcast_sim::text::toml_string;

/// Constants of a command as the text of a profile of a name; nothing where there are none.
pub(crate) fn layer_text(
    (command, name): (&str, &str),
    evidence: &str,
    constants: &[(Constant, Parameter)],
) -> Option<String> {
    if constants.is_empty() {
        return None;
    }
    let mut text = format!(
        "# Measured by `collcast {command}`; layer it over a machine's profile: --profile prior --profile FILE.\n\
         schema = \"collcast/profile/1\"\nname = {}\nevidence = {}\nuncertainty = 0.3\n\n[parameters]\n",
        toml_string(name),
        toml_string(evidence)
    );
    for (constant, parameter) in constants {
        let _ = writeln!(text, "{}", parameter.line(*constant));
    }
    Some(text)
}
