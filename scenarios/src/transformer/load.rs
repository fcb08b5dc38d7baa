//! Reads a model by name or path, whatever its form.

use std::path::Path;

use collcast_sim::collective::nearest;
use collcast_sim::text::one_line;
use collcast_topologies::error::{Diagnostic, Source, TopologiesError};

use super::{Transformer, builtin, file, hugging_face};

/// Longest model file, in bytes: real ones have under 20 KiB.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// A model by name or path: a built-in (any case), a `.toml` of `collcast/model/1`, or a Hugging Face `config.json`.
///
/// Also says what a reader had to assume, for the user to see.
///
/// # Errors
/// A name that is neither, with the nearest built-in; a file that cannot be read; any mistake in it, with its place.
pub fn load(name: &str) -> Result<(Transformer, Vec<String>), TopologiesError> {
    if let Some(text) = builtin::text(name) {
        return file::read(text, &format!("<built-in {name}>")).map(|model| (model, Vec::new()));
    }
    let path = Path::new(name);
    if path.extension().is_none() && !name.contains(['/', '\\']) && !path.exists() {
        return Err(unknown(name));
    }
    let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let shown = path.display().to_string();
    let text = collcast_topologies::input::read_text(&path).map_err(|error| {
        let near = nearest(name, builtin::names());
        TopologiesError::Unreadable(Box::new(Diagnostic {
            message: format!("the model `{}` cannot be read: {error}", one_line(&shown)),
            file: String::new(),
            at: None,
            label: near.map_or_else(String::new, |near| format!("did you mean the built-in `{near}`?")),
            hint: hint(),
        }))
    })?;
    read(&text, &shown)
}

/// A model from the text of a file of either format.
///
/// # Errors
/// Any mistake, with its place.
pub fn read(text: &str, file: &str) -> Result<(Transformer, Vec<String>), TopologiesError> {
    let source = Source::new(file, text);
    if text.len() > MAX_FILE_BYTES {
        let message = format!("the file has {} bytes; a model file has at most {MAX_FILE_BYTES}", text.len());
        return Err(TopologiesError::TooLarge(source.whole(message, hint())));
    }
    if text.trim().is_empty() {
        return Err(TopologiesError::Unreadable(source.whole("the file is empty", hint())));
    }
    if text.trim_start().starts_with('{') {
        return hugging_face::read(text, file);
    }
    file::read(text, file).map(|model| (model, Vec::new()))
}

fn hint() -> String {
    let names = builtin::names().collect::<Vec<_>>().join(", ");
    format!("a model is a built-in ({names}), a TOML of schema {}, or a config.json of Hugging Face", file::SCHEMA)
}

fn unknown(name: &str) -> TopologiesError {
    let near = nearest(name, builtin::names());
    TopologiesError::UnknownName(Box::new(Diagnostic {
        message: format!(
            "`{}` is neither a built-in model nor a file",
            one_line(&name.chars().take(60).collect::<String>())
        ),
        file: String::new(),
        at: None,
        label: near.map_or_else(String::new, |near| format!("did you mean `{near}`?")),
        hint: hint(),
    }))
}
