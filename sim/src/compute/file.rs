//! Profiles of GPUs as text: TOML, schema `collcast/compute/1`, and those that the program brings along.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::constants::Constant;
use super::gpu::Compute;
use crate::collective::nearest;
use crate::profile::{DataFile, OriginKind, Parameter, ProfileError};
use crate::text::toml_string;

/// The schema that this module reads.
const SCHEMA: &str = "collcast/compute/1";
/// What lies under all others: what kernels are like wherever they run.
const KERNELS: (&str, &str) = ("kernels", include_str!("../../profiles/compute/kernels.toml"));
/// Name and text of each GPU's.
const BUILTIN: &[(&str, &str)] = &[
    ("a100", include_str!("../../profiles/compute/a100.toml")),
    ("h100", include_str!("../../profiles/compute/h100.toml")),
    ("h100-500w", include_str!("../../profiles/compute/h100-500w.toml")),
    ("h200", include_str!("../../profiles/compute/h200.toml")),
    ("b200", include_str!("../../profiles/compute/b200.toml")),
    ("gb200", include_str!("../../profiles/compute/gb200.toml")),
];

/// What one file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    schema: String,
    name: String,
    evidence: String,
    /// The built-in profile that it lies over; what is common to all kernels where it names none.
    #[serde(default)]
    over: Option<String>,
    /// GPUs, as they call themselves.
    #[serde(default)]
    gpus: Vec<String>,
    #[serde(default)]
    data: Vec<DataFile>,
    /// Own errors by kind of row: see [`Compute::own_error`].
    #[serde(default)]
    errors: BTreeMap<String, f64>,
    parameters: BTreeMap<String, Parameter>,
}

impl Compute {
    /// Names of the GPUs that the program knows.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// A GPU that the program knows, whatever the case of its name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn builtin(name: &str) -> Result<Self, ProfileError> {
        let found = BUILTIN.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let Some((known, text)) = found else {
            return Err(ProfileError::Unknown {
                name: name.to_owned(),
                suggestion: nearest(name, Self::builtin_names()).map(str::to_owned),
                known: Self::builtin_names().collect::<Vec<_>>().join(" "),
            });
        };
        Self::parse(text, known)
    }

    /// Reads a GPU from its text, over the built-in one that it names; `file` is for messages.
    ///
    /// # Errors
    /// A syntax error, a wrong schema, an unknown constant, a value outside physics, a constant without a value.
    pub fn parse(text: &str, file: &str) -> Result<Self, ProfileError> {
        let raw = read(text, file)?;
        let mut given = match &raw.over {
            Some(below) => {
                let below = Self::builtin(below)?;
                Constant::ALL.iter().map(|&c| (c, below[c].clone())).collect()
            }
            None => checked(read(KERNELS.1, KERNELS.0)?.parameters, KERNELS.0)?,
        };
        given.append(&mut checked(raw.parameters, file)?);
        let missing = |constant: &Constant| ProfileError::Missing { file: file.to_owned(), name: constant.name() };
        let parameters: Vec<Parameter> =
            Constant::ALL.iter().map(|c| given.remove(c).ok_or_else(|| missing(c))).collect::<Result<_, _>>()?;
        let values = parameters.iter().map(|p| p.value).collect();
        let Raw { name, evidence, gpus, data, errors, .. } = raw;
        if let Some((group, error)) = errors.iter().find(|(_, error)| !(error.is_finite() && **error >= 0.0)) {
            let message = format!("the error of `{group}` is {error}, and can be 0 or more");
            return Err(ProfileError::Syntax { file: file.to_owned(), message });
        }
        Ok(Self { name, evidence, gpus, data, errors, parameters, values })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was measured, where and when.
    pub fn evidence(&self) -> &str {
        &self.evidence
    }

    /// Files that it was fitted to.
    pub fn data(&self) -> &[DataFile] {
        &self.data
    }

    /// What 95% of the rows of a kind, of shapes that its fit left out, are off by at most; nothing where nobody knows.
    pub fn own_error(&self, group: &str) -> Option<f64> {
        self.errors.get(group).copied()
    }

    /// With errors of its own, by kind of row.
    #[must_use]
    pub fn with_errors(self, errors: BTreeMap<String, f64>) -> Self {
        Self { errors, ..self }
    }

    /// Whether it is of the GPU that calls itself so, such as `NVIDIA H100 80GB HBM3`.
    pub fn is_of(&self, gpu: &str) -> bool {
        self.gpus.iter().any(|own| own.eq_ignore_ascii_case(gpu))
    }

    /// As a file that [`Compute::parse`] reads, over the built-in `over`, with the constants that differ from it.
    ///
    /// `fitted` are those that the files `data` set; their origin says so.
    ///
    /// # Errors
    /// An unknown name.
    pub fn file(
        &self,
        over: &str,
        name: &str,
        fitted: &[Constant],
        data: &[DataFile],
        evidence: &str,
    ) -> Result<String, ProfileError> {
        let below = Self::builtin(over)?;
        let mut text = String::new();
        for (key, value) in [("schema", SCHEMA), ("name", name), ("evidence", evidence), ("over", over)] {
            let _ = writeln!(text, "{key} = {}", toml_string(value));
        }
        let gpus: Vec<String> = self.gpus.iter().map(|gpu| toml_string(gpu)).collect();
        let _ = writeln!(text, "gpus = [{}]", gpus.join(", "));
        for file in data {
            let DataFile { file, hash, rows } = file;
            let [file, hash] = [file, hash].map(|text| toml_string(text));
            let _ = write!(text, "\n[[data]]\nfile = {file}\nhash = {hash}\nrows = {rows}\n");
        }
        if !self.errors.is_empty() {
            text += "\n[errors]\n";
            for (group, error) in &self.errors {
                let _ = writeln!(text, "{} = {error:.4}", toml_string(group));
            }
        }
        text += "\n[parameters]\n";
        for (constant, own) in Constant::ALL.iter().zip(&self.parameters) {
            if fitted.contains(constant) {
                let _ = writeln!(text, "{}", line(*constant, own.value, OriginKind::Fitted, "the files above"));
            } else if *own != below[*constant] {
                let _ = writeln!(text, "{}", line(*constant, own.value, own.origin, &own.source));
            }
        }
        Ok(text)
    }
}

/// One constant in a file.
fn line(constant: Constant, value: f64, origin: OriginKind, source: &str) -> String {
    let digits = if value >= 1000.0 {
        0
    } else if value >= 10.0 {
        2
    } else {
        4
    };
    let [name, origin, source] = [constant.name(), origin.name(), source].map(toml_string);
    format!("{name} = {{ value = {value:.digits$}, origin = {origin}, source = {source} }}")
}

fn read(text: &str, file: &str) -> Result<Raw, ProfileError> {
    let file = file.to_owned();
    let raw: Raw = match toml::from_str(text) {
        Ok(raw) => raw,
        Err(e) => return Err(ProfileError::Syntax { file, message: e.to_string().trim().to_owned() }),
    };
    if raw.schema == SCHEMA { Ok(raw) } else { Err(ProfileError::Schema { file, found: raw.schema, expected: SCHEMA }) }
}

/// Constants by their names, each within its bounds.
fn checked(raw: BTreeMap<String, Parameter>, file: &str) -> Result<BTreeMap<Constant, Parameter>, ProfileError> {
    let mut parameters = BTreeMap::new();
    for (name, parameter) in raw {
        let file = file.to_owned();
        let Some(constant) = Constant::named(&name) else {
            let suggestion = Constant::near(&name).map(str::to_owned);
            return Err(ProfileError::UnknownParameter { file, name, suggestion });
        };
        let [least, most] = constant.spec().bounds;
        let value = parameter.value;
        if !(least..=most).contains(&value) {
            let (unit, expected) = (constant.spec().unit, format!("{least} to {most}"));
            return Err(ProfileError::BadValue { file, name, value, unit, expected });
        }
        parameters.insert(constant, parameter);
    }
    Ok(parameters)
}
