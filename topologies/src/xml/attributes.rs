//! Attributes of an element, checked with their place at hand.

use std::ops::Range;

use roxmltree::Node;

use crate::error::{Source, TopologiesError, quote};

/// The opening `<name` of an element.
pub(super) fn name_span(node: Node<'_, '_>) -> Range<usize> {
    let start = node.range().start;
    start..start + 1 + node.tag_name().name().len()
}

/// The value of an attribute, or the element's name where it is absent.
pub(super) fn value_span(node: Node<'_, '_>, attribute: &str) -> Range<usize> {
    node.attribute_node(attribute).map_or_else(|| name_span(node), |a| a.range_value())
}

/// Decimal or 0x hexadecimal, as NCCL's strtol reads it.
fn parse_int(text: &str) -> Option<i64> {
    let text = text.trim();
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |d| (-1, d));
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => i64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    value.ok().map(|v| sign * v)
}

#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) source: Source<'a>,
}

impl Reader<'_> {
    pub(super) fn value_error(&self, node: Node<'_, '_>, attribute: &str, expected: &str) -> TopologiesError {
        let given = node.attribute(attribute).unwrap_or_default();
        TopologiesError::Value(self.source.at(
            value_span(node, attribute),
            format!("`{attribute}` of <{}> is `{}`", node.tag_name().name(), quote(given)),
            format!("expected {expected}"),
            "",
        ))
    }

    pub(super) fn check_version(&self, root: Node<'_, '_>) -> Result<(), TopologiesError> {
        match root.attribute("version") {
            Some("1") => Ok(()),
            _ if !matches!(root.tag_name().name(), "system" | "graphs") => Ok(()),
            given => Err(TopologiesError::Schema(self.source.at(
                value_span(root, "version"),
                format!("the version `{}` of the file is not known", quote(given.unwrap_or("(none)"))),
                "expected version=\"1\"",
                "NCCL has had no other version so far",
            ))),
        }
    }

    /// A whole number of an attribute within bounds; `None` where it is absent.
    pub(super) fn int(
        &self,
        node: Node<'_, '_>,
        attribute: &str,
        min: i64,
        max: i64,
    ) -> Result<Option<i64>, TopologiesError> {
        let Some(text) = node.attribute(attribute) else {
            return Ok(None);
        };
        match parse_int(text) {
            Some(value) if (min..=max).contains(&value) => Ok(Some(value)),
            _ => Err(self.value_error(node, attribute, &format!("a whole number from {min} to {max}"))),
        }
    }

    pub(super) fn small(&self, node: Node<'_, '_>, attribute: &str, max: u32) -> Result<Option<u32>, TopologiesError> {
        let value = self.int(node, attribute, 0, i64::from(max))?;
        Ok(value.and_then(|v| u32::try_from(v).ok()))
    }

    pub(super) fn real(&self, node: Node<'_, '_>, attribute: &str) -> Result<f64, TopologiesError> {
        match node.attribute(attribute) {
            None => Ok(0.0),
            Some(text) => text
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|v| v.is_finite() && *v >= 0.0)
                .ok_or_else(|| self.value_error(node, attribute, "a number from 0")),
        }
    }
}
