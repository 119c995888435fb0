"""What methods cost: counted beforehand, estimated from one batch, and laid beside one another."""
