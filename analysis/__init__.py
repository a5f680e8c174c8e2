"""From run directories to numbers and figures. Reads files only."""
