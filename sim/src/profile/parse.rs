//! Profiles as text: TOML, schema `collcast/profile/1`.

use std::collections::BTreeMap;

use thiserror::Error;

use super::{Constant, Layer, Parameter, Profile, Values};

/// The schema that this module reads.
const SCHEMA: &str = "collcast/profile/1";

/// A profile that cannot be used.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum ProfileError {
    /// Not TOML, or not of the right form.
    #[error("{file}: not a profile: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A schema of another kind or version.
    #[error("{file}: schema is `{found}`, expected `{expected}`")]
    Schema {
        /// The file.
        file: String,
        /// What it says.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// A parameter that does not exist.
    #[error("{file}: there is no parameter `{name}`{}", suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default())]
    UnknownParameter {
        /// The file.
        file: String,
        /// The name.
        name: String,
        /// A name near to it.
        suggestion: Option<String>,
    },
    /// A value outside physics.
    #[error("{file}: `{name}` is {value} {unit}, expected {expected}")]
    BadValue {
        /// The file.
        file: String,
        /// The parameter.
        name: String,
        /// Its value.
        value: f64,
        /// Its unit.
        unit: &'static str,
        /// What would do.
        expected: String,
    },
    /// A constant without a value.
    #[error("{file}: `{name}` has no value")]
    Missing {
        /// The file.
        file: String,
        /// The constant.
        name: &'static str,
    },
    /// No built-in profile of this name.
    #[error("there is no built-in profile `{name}`{}; known: {known}", suggestion.as_ref().map(|s| format!(", did you mean `{s}`?")).unwrap_or_default())]
    Unknown {
        /// The name.
        name: String,
        /// A name near to it.
        suggestion: Option<String>,
        /// All of them.
        known: String,
    },
}

impl Layer {
    /// Reads what a file says from its text; `file` is for messages.
    ///
    /// # Errors
    /// A syntax error, a wrong schema, an unknown parameter, or a value outside physics.
    pub fn parse(text: &str, file: &str) -> Result<Self, ProfileError> {
        let file = file.to_owned();
        let mut raw: Profile<BTreeMap<String, Parameter>> = toml::from_str(text)
            .map_err(|e| ProfileError::Syntax { file: file.clone(), message: e.to_string().trim().to_owned() })?;
        if raw.schema != SCHEMA {
            return Err(ProfileError::Schema { file, found: raw.schema, expected: SCHEMA });
        }
        let mut parameters = BTreeMap::new();
        for (name, parameter) in std::mem::take(&mut raw.parameters) {
            let Some(constant) = Constant::named(&name) else {
                let suggestion = Constant::near(&name).map(str::to_owned);
                return Err(ProfileError::UnknownParameter { file, name, suggestion });
            };
            let (value, spec) = (parameter.value, constant.spec());
            let [least, most] = spec.bounds;
            let good = (least..=most).contains(&value);
            let around = parameter.interval.is_none_or(|[low, high]| low <= value && value <= high);
            if !good || !around {
                let expected = if good { "a value inside its `interval`".into() } else { format!("{least} to {most}") };
                return Err(ProfileError::BadValue { file, name, value, unit: spec.unit, expected });
            }
            parameters.insert(constant, parameter);
        }
        if !(0.0..10.0).contains(&raw.uncertainty) {
            return Err(ProfileError::BadValue {
                file,
                name: "uncertainty".to_owned(),
                value: raw.uncertainty,
                unit: "relative",
                expected: "0 or more and below 10".to_owned(),
            });
        }
        Ok(raw.with(parameters))
    }

    /// The profile of a file that gives every constant a value; `file` is for messages.
    ///
    /// # Errors
    /// A constant that is missing.
    pub fn complete(mut self, file: &str) -> Result<Profile, ProfileError> {
        let values = Values::complete(std::mem::take(&mut self.parameters))
            .map_err(|constant| ProfileError::Missing { file: file.to_owned(), name: constant.name() })?;
        Ok(self.with(values))
    }
}
