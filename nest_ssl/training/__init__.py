"""From a command line to a trained model: configuration, this machine's adjustments, experiment folder, the run."""
