"""Runs a notebook from the top of the repository: `python notebook.py NOTEBOOK [SAVE_AS]`."""

import sys

import nbformat
from nbclient import NotebookClient

name = sys.argv[1]
notebook = nbformat.read(name, as_version=4)
NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
assert cells and all(cell.outputs for cell in cells), "a cell shows nothing"
if len(sys.argv) > 2:
    nbformat.write(notebook, sys.argv[2])
print(f"{name}: {len(cells)} cells ran")
