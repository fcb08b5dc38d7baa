//! Profiles that the program brings along.

use super::{Layer, Profile, ProfileError};
use crate::collective::nearest;

/// The values of all constants that nobody measured on a machine.
const PRIOR: &str = include_str!("../../profiles/prior.toml");

/// Name and text of each.
const BUILTIN: &[(&str, &str)] = &[
    ("prior", PRIOR),
    ("h200-nvswitch", include_str!("../../profiles/h200-nvswitch.toml")),
    ("h100-nvswitch", include_str!("../../profiles/h100-nvswitch.toml")),
    ("a100-nvswitch", include_str!("../../profiles/a100-nvswitch.toml")),
    ("b200-nvswitch", include_str!("../../profiles/b200-nvswitch.toml")),
    ("v100-nvlink", include_str!("../../profiles/v100-nvlink.toml")),
    ("tcp-loopback", include_str!("../../profiles/tcp-loopback.toml")),
    ("a100-efa-published", include_str!("../../profiles/a100-efa-published.toml")),
    ("a100-ib-published", include_str!("../../profiles/a100-ib-published.toml")),
    ("hopper-ib-published", include_str!("../../profiles/hopper-ib-published.toml")),
    ("b200-ib-published", include_str!("../../profiles/b200-ib-published.toml")),
    ("gb200-published", include_str!("../../profiles/gb200-published.toml")),
];

impl Profile {
    /// Names of the built-in profiles.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// The same, with the one first that is likely meant by `name`.
    pub fn builtin_names_near(name: &str) -> Vec<&'static str> {
        let near = nearest(name, Self::builtin_names());
        let mut names: Vec<_> = Self::builtin_names().collect();
        names.sort_by_key(|&known| near != Some(known));
        names
    }

    /// The text of a built-in profile, whatever the case of its name.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, text)| *text)
    }

    /// A built-in profile, over the cited values of `prior`.
    ///
    /// # Errors
    /// An unknown name.
    pub fn builtin(name: &str) -> Result<Self, ProfileError> {
        let prior = Layer::parse(PRIOR, "prior")?.complete("prior")?;
        Ok(prior.layered(Layer::stacked(known_text(name)?, name)?))
    }
}

impl Layer {
    /// Reads a profile from text as [`Layer::parse`] does, with the one that it lies [over](Self::over).
    ///
    /// # Errors
    /// As of `parse`; an unknown name below it.
    pub fn stacked(text: &str, file: &str) -> Result<Self, ProfileError> {
        let layer = Self::parse(text, file)?;
        match &layer.over {
            Some(below) => Ok(Self::stacked(known_text(below)?, below)?.layered(layer)),
            None => Ok(layer),
        }
    }
}

fn known_text(name: &str) -> Result<&'static str, ProfileError> {
    Profile::builtin_text(name).ok_or_else(|| ProfileError::Unknown {
        name: name.to_owned(),
        suggestion: nearest(name, Profile::builtin_names()).map(str::to_owned),
        known: Profile::builtin_names_near(name).join(" "),
    })
}
