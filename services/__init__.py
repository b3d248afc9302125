"""The domain services: files, batches, scheduler. They meet in protos only."""
