//! Graph files: the channels that NCCL chose.

use roxmltree::Node;

use super::attributes::{Reader, name_span};
use super::document::{Channel, Graph, GraphSpec};
use crate::error::TopologiesError;

impl Reader<'_> {
    pub(super) fn graphs(&self, root: Node<'_, '_>) -> Result<GraphSpec, TopologiesError> {
        let mut spec = GraphSpec::default();
        for node in root.children().filter(|n| n.has_tag_name("graph")) {
            let text = |name: &str| node.attribute(name).unwrap_or_default().to_owned();
            let mut graph = Graph {
                id: self.small(node, "id", 1000)?.ok_or_else(|| self.value_error(node, "id", "0 to 4"))?,
                pattern: self.small(node, "pattern", 1000)?.unwrap_or(0),
                cross_nic: self.small(node, "crossnic", 100)?.unwrap_or(0) > 0,
                channel_count: self.small(node, "nchannels", 100_000)?.unwrap_or(0),
                speed_intra_gb_per_s: self.real(node, "speedintra")?,
                speed_inter_gb_per_s: self.real(node, "speedinter")?,
                latency_inter_us: self.real(node, "latencyinter")?,
                type_intra: text("typeintra"),
                type_inter: text("typeinter"),
                same_channels: self.small(node, "samechannels", 100)?.unwrap_or(0) > 0,
                channels: Vec::new(),
            };
            for channel in node.children().filter(|n| n.has_tag_name("channel")) {
                graph.channels.push(self.channel(channel)?);
            }
            spec.graphs.push(graph);
        }
        if spec.graphs.is_empty() {
            return Err(TopologiesError::Schema(self.source.at(
                name_span(root),
                "the graph file lists no graph",
                "no <graph> inside",
                "NCCL writes it with NCCL_GRAPH_DUMP_FILE=graph.xml",
            )));
        }
        Ok(spec)
    }

    fn channel(&self, node: Node<'_, '_>) -> Result<Channel, TopologiesError> {
        let mut channel = Channel::default();
        for child in node.children().filter(Node::is_element) {
            let dev = self
                .int(child, "dev", 0, i64::from(u32::MAX))?
                .and_then(|d| u64::try_from(d).ok())
                .ok_or_else(|| self.value_error(child, "dev", "a device number"))?;
            match child.tag_name().name() {
                "gpu" => channel.gpus.push(dev),
                "net" if channel.gpus.is_empty() => channel.net_in = Some(dev),
                "net" => channel.net_out = Some(dev),
                _ => {}
            }
        }
        Ok(channel)
    }
}
