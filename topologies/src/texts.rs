//! The topology files that are compiled in.

macro_rules! builtins {
    ($($name:literal),+ $(,)?) => {
        const BUILTINS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../data/", $name, ".toml")))),+
        ];
    };
}

builtins!(
    "h200x4",
    "h200x2",
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "ib-rail",
    "gb200-nvl72",
    "gb300-nvl72",
    "aws-p4d",
    "aws-p4de",
    "aws-p5",
    "aws-p5e",
    "aws-p5en",
    "aws-p6-b200",
    "aws-p6-b300",
    "aws-p6e-gb200",
    "aws-g4dn",
    "azure-nd-a100-v4",
    "azure-nd-h100-v5",
    "azure-nd-h200-v5",
    "azure-nd-gb200-v6",
    "gcp-a3",
    "gcp-a3-mega",
    "gcp-a3-ultra",
    "gcp-a4",
    "gcp-a4x",
    "oci-a100",
    "oci-h100",
    "oci-b200",
    "oci-gb200",
    "abci-v100",
    "abci-a100",
    "alps-gh200",
    "kestrel-h100",
    "h800-roce",
    "pcie-box",
    "r7525-a100",
    "rtx6000d-box",
    "workstation",
);

/// Names of the built-ins.
pub fn names() -> Vec<&'static str> {
    BUILTINS.iter().map(|(name, _)| *name).collect()
}

/// The topology file of a built-in, whatever the case of its name.
pub fn text(name: &str) -> Option<&'static str> {
    BUILTINS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, text)| *text)
}
