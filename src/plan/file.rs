//! A request as a file: fields of all options, and options with fields of their own.

use std::path::Path;

use collcast_topologies::error::{Source, TopologiesError};
use collcast_topologies::input::read_text;
use serde::Deserialize;
use toml::Spanned;

use super::fields::{Layer, set};
use super::request::Request;

/// The schema of the file.
pub const SCHEMA: &str = "collcast/plan-request/1";

/// What a field is told to be.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Flag(bool),
    Whole(i64),
    Real(f64),
    Text(String),
    Many(Vec<Value>),
}

impl Value {
    /// As a flag has it.
    fn text(&self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Whole(whole) => whole.to_string(),
            Self::Real(real) => real.to_string(),
            Self::Text(text) => text.clone(),
            Self::Many(many) => many.iter().map(Self::text).collect::<Vec<_>>().join(","),
        }
    }

    fn each(&self) -> Vec<String> {
        match self {
            Self::Many(many) => many.iter().map(Self::text).collect(),
            one => vec![one.text()],
        }
    }
}

type Field = Option<Spanned<Value>>;

/// Declares the two tables of a file, which have the same fields and some of their own.
macro_rules! tables {
    ($($table:ident { $($own:ident: $type:ty),* });+ => $fields:tt) => { $(tables!(@ $table { $($own: $type),* } $fields);)+ };
    (@ $table:ident { $($own:ident: $type:ty),* } { $($field:ident $name:literal),+ $(,)? }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $table {
            $($own: $type,)*
            on: Field,
            gpus: Field,
            $($field: Field,)+
        }

        impl $table {
            /// What it says, read once so that mistakes have their place.
            fn layer(&self, name: Option<String>, source: Source<'_>) -> Result<Layer, TopologiesError> {
                let fields = [$(($name, &self.$field)),+];
                layer(name, (&self.on, &self.gpus), &fields, source)
            }
        }
    };
}

tables! {
    RawFile { schema: Spanned<String>, options: Option<Vec<RawOption>> };
    RawOption { name: Option<Spanned<String>> }
    => {
        model "model",
        gpu "gpu",
        profile "profile",
        nccl "nccl",
        env "env",
        layout "layout",
        micro_batch "micro-batch",
        global_batch "global-batch",
        seq "seq",
        precision "precision",
        param_gather "param-gather",
        recompute "recompute",
        zero "zero",
        framework "framework",
        overlap_tensor "overlap-tensor",
        overlap_experts "overlap-experts",
        fuse_experts "fuse-experts",
        dispatch "dispatch",
        tokens "tokens",
        price "price",
        failures "failures",
        spares "spares",
        repair "repair",
        restart "restart",
        storage "storage",
        checkpoint_every "checkpoint-every",
        blocking_checkpoints "blocking-checkpoints",
        top "top",
    }
}

/// Fields that may name a file, which is looked for beside the request first.
const FILES: [&str; 4] = ["model", "gpu", "profile", "failures"];

fn layer(
    name: Option<String>,
    (on, gpus): (&Field, &Field),
    fields: &[(&'static str, &Field)],
    source: Source<'_>,
) -> Result<Layer, TopologiesError> {
    let beside = |text: &str| {
        let path = Path::new(source.file).parent().unwrap_or_else(|| Path::new("")).join(text);
        if path.extension().is_some() && path.is_file() { path.display().to_string() } else { text.to_owned() }
    };
    let machines: Vec<String> = on.iter().flat_map(|on| on.get_ref().each()).map(|machine| beside(&machine)).collect();
    let mut scratch = Request::new("", machines.first().cloned().unwrap_or_default(), 0);
    let mut found = Vec::new();
    for (name, field) in fields.iter().filter_map(|(name, field)| Some((*name, field.as_ref()?))) {
        let text = field.get_ref().text();
        let texts = match name {
            // Variables add up, and have commas in their values.
            "env" => field.get_ref().each().iter().map(|one| beside(one)).collect(),
            _ if FILES.contains(&name) => {
                vec![text.split(',').map(|one| beside(one.trim())).collect::<Vec<_>>().join(",")]
            }
            _ => vec![text],
        };
        for text in texts {
            // Which machine's price it is, is known with the machine.
            if !(name == "price" && text.contains('=')) {
                set(&mut scratch, name, &text).map_err(|why| {
                    let said = text.chars().take(60).collect::<String>();
                    let message = format!("{} is `{said}`", name.replace('-', "_"));
                    TopologiesError::Value(source.at(field.span(), message, why, ""))
                })?;
            }
            found.push((name, text));
        }
    }
    Ok(Layer { name, on: machines, gpus: gpus.as_ref().map(|gpus| gpus.get_ref().text()), fields: found })
}

/// The options of a file, each with what the file says of all.
///
/// # Errors
/// Any mistake, with its place.
pub fn read(text: &str, file: &str) -> Result<Vec<Layer>, TopologiesError> {
    let source = Source::new(file, text);
    let raw: RawFile = collcast_topologies::file::parse(source)?;
    if raw.schema.get_ref() != SCHEMA {
        let message = "the file is of another schema than that of a plan's request".to_owned();
        return Err(TopologiesError::Schema(source.at(
            raw.schema.span(),
            message,
            format!("expected \"{SCHEMA}\""),
            "",
        )));
    }
    let base = raw.layer(None, source)?;
    match &raw.options {
        Some(options) if !options.is_empty() => {
            let mut names: Vec<&String> = Vec::new();
            let mut layers = Vec::new();
            for option in options {
                if let Some(name) = &option.name {
                    if names.contains(&name.get_ref()) {
                        let message = format!("two options are called `{}`", name.get_ref());
                        return Err(TopologiesError::Value(source.at(
                            name.span(),
                            message,
                            "the second one",
                            "rename one",
                        )));
                    }
                    names.push(name.get_ref());
                }
                let name = option.name.as_ref().map(|name| name.get_ref().clone());
                layers.push(base.under(&option.layer(name, source)?));
            }
            Ok(layers)
        }
        _ => Ok(vec![base]),
    }
}

/// The options of a file by its path; none where it is no request, but a model or something else.
///
/// # Errors
/// Any mistake in a request, with its place.
pub fn find(path: &str) -> Result<Option<Vec<Layer>>, TopologiesError> {
    if Path::new(path).extension().is_none_or(|extension| extension != "toml") {
        return Ok(None);
    }
    // What cannot be read is told by the reader of models.
    match read_text(Path::new(path)) {
        Ok(text) if text.contains("collcast/plan-request/") => read(&text, path).map(Some),
        _ => Ok(None),
    }
}
