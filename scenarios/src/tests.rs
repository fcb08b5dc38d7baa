//! Measured layers and models of one GPU, for the tests that hold bytes and times against them.

use std::collections::HashMap;
use std::path::Path;

use crate::transformer::{Activation, Attention, Biases, Norm, Transformer};

/// A row of a table, by its header.
pub(crate) struct Row(pub(crate) HashMap<String, String>);

impl Row {
    pub(crate) fn text(&self, key: &str) -> &str {
        &self.0[key]
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.0[key].parse().unwrap()
    }

    pub(crate) fn size(&self, key: &str) -> u32 {
        self.0[key].parse().unwrap()
    }

    pub(crate) fn us(&self, key: &str) -> f64 {
        self.0[key].parse().unwrap()
    }
}

/// Rows of a table in `tests/data/compute`.
pub(crate) fn rows(file: &str) -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/compute").join(file);
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.deserialize().map(|row| Row(row.unwrap())).collect()
}

/// A model of the measured runs: Llama's layer at any shape, whole though a row of blocks gives one rank's part.
pub(crate) fn llama(row: &Row, layers: u64, vocabulary: u64, tensor: u64) -> Transformer {
    let (hidden, heads) = (row.number("hidden"), row.number("heads") * tensor);
    Transformer {
        name: row.text("name").to_owned(),
        layers,
        hidden,
        vocabulary,
        sequence: row.number("seq"),
        tied: false,
        norm: Norm::Rms,
        biases: Biases::None,
        learned_positions: 0,
        rotary: true,
        dropout: false,
        attention: Attention::Gqa {
            heads,
            kv_heads: row.number("kv_heads") * tensor,
            head_dim: hidden / heads,
            head_norm: false,
        },
        width: row.number("ffn") * tensor,
        activation: Activation::SwiGlu,
        experts: None,
        predictions: 0,
    }
}
