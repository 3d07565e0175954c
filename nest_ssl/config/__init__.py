"""From the command line and YAML files to a checked configuration."""
