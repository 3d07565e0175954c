"""`nest-ssl doctor`: is this machine ready for a run, what will be changed in its configuration, what suits it best."""
