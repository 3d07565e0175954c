"""A data loader that resumes to the bit, batches by duration, and the state of its workers."""
